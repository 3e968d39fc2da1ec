"""The public functions: two runs, several runs of each version, and several runs in order.

Several runs of a version show the noise between runs; a series shows in which version a role
became slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import R, Reading
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.diff import MIN_CHANGE, Options, compute, runs
from traceanalyzer.analyzers.diff.comparable import WITHIN
from traceanalyzer.analyzers.diff.compute import DIFF
from traceanalyzer.analyzers.diff.result import BASIS, Diff, noise_text
from traceanalyzer.analyzers.diff.runs import Measure, Part
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.baselines import run_paths
from traceanalyzer.run.find import require_readable
from traceanalyzer.run.loop import collect, guarded, notes_on, run, with_notes
from traceanalyzer.trace import Inputs
from traceanalyzer.units import format_change, format_ns

#: The parts of all ranks of one run.
Parts = Sequence[Part]


def median_runs(before: Sequence[Parts], after: Sequence[Parts], options: Options) -> Diff:
    """Compare the median run of each version; the noise includes that between the runs.

    Args:
        before: the runs before, at least one.
        after: the runs after, at least one.
        options: the options.

    Raises:
        OptionError: a side has no run.
    """
    if not before or not after:
        raise OptionError("diff_runs needs at least one run of each version")
    usual_before, usual_after = _typical(before), _typical(after)
    pairs = [*((usual_after, run) for run in before), *((run, usual_before) for run in after)]
    every = _by_one_measure(pairs, options, len(before))
    of_before, of_after = every[: len(before)], every[len(before) :]
    impossible = next((one for one in every if one.measure is None), None)
    if impossible is not None:
        return impossible
    measures = [one.measure for one in every if one.measure is not None]
    values = (
        [one.before for one in measures[: len(before)]],
        [one.after for one in measures[len(before) :]],
    )
    middle = [sorted(range(len(side)), key=side.__getitem__)[(len(side) - 1) // 2]
              for side in values]  # fmt: skip
    by_mean = measures[0].name == "mean"
    result = compute.combine(after[middle[1]], options, before[middle[0]], by_mean=by_mean)
    if result.measure is None or len({(one.name, one.unit) for one in measures}) > 1:
        why = "the runs of one version have different data; compare two runs"
        return replace(result, measure=None, why=why)
    repeats = _repeats(of_before, of_after, values, result.measure)
    reserved = tuple(dict.fromkeys(text for one in every for text in one.reservations))
    others = [text for text in result.remarks if text not in (WITHIN, *result.reservations)]
    return replace(
        result,
        measure=_with_noise(result.measure, values),
        reservations=reserved,
        remarks=(*reserved, *others, _remark(values, repeats, middle)),
        repeats=repeats,
    )


def _typical(every: Sequence[Parts]) -> Parts:
    """Return the run with the median of the mean step times; the first without steps."""
    means = []
    for parts in every:
        times = runs.step_times(runs.run_of(parts))
        if not times.size:
            return every[0]
        means.append(float(times.mean()))
    return every[int(np.argsort(means, kind="stable")[len(means) // 2])]


def _by_one_measure(
    pairs: Sequence[tuple[Parts, Parts]], options: Options, n_before: int = 0
) -> list[Diff]:
    """Compare each run (after) with another (before): all by the mean step if any is by it.

    Of runs of two versions, most of each version, as slow steps of one run are chance. Runs in
    order are compared each by its own measure if a change is lost otherwise.
    """
    each = [compute.combine(run, options, base) for run, base in pairs]
    by_mean = np.array([one.measure is not None and one.measure.name == "mean" for one in each])
    if not by_mean.any():
        return each
    if n_before and min(by_mean[:n_before].mean(), by_mean[n_before:].mean()) <= 0.5:
        return [compute.combine(run, options, base, by_mean=False) for run, base in pairs]
    means = [compute.combine(run, options, base, by_mean=True) for run, base in pairs]
    both = [(one.outcome, mean.outcome) for one, mean in zip(each, means, strict=True)]
    lost = any(one != mean == "no change" for one, mean in both)
    return each if lost and not n_before else means


def _with_noise(measure: Measure, values: tuple[list[float], list[float]]) -> Measure:
    """Return the measure of the median runs; the noise is the larger one of steps and runs."""
    medians = [float(np.median(side)) for side in values]
    between = runs.noise_of(*_errors(values))
    known = [noise for noise in (measure.noise, between) if noise is not None]
    noise = max((one for one in known if not np.isnan(one)), default=None)
    return replace(measure, before=medians[0], after=medians[1], noise=noise)


def _errors(values: tuple[list[float], list[float]]) -> tuple[float, float]:
    """Return the standard error of each side; one run varies as much as those of the other side."""
    errors = [float(runs.standard_errors(np.array([side], dtype=float))[0]) for side in values]
    counts = [len(side) for side in values]
    for one, other in ((0, 1), (1, 0)):
        if counts[one] == 1 and counts[other] > 1:
            errors[one] = errors[other] * counts[other] ** 0.5
    return errors[0], errors[1]


def _repeats(
    of_before: Sequence[Diff],
    of_after: Sequence[Diff],
    values: tuple[list[float], list[float]],
    measure: Measure,
) -> pl.DataFrame:
    """Return one row per run: run, path, value_ns (or value_bytes, value)."""
    column = f"value_{measure.unit}" if measure.unit in ("ns", "bytes") else "value"
    rows = [
        {"run": when, "path": one.runs.filter(run=when)["path"].item(), column: value}
        for when, each, side in zip(("before", "after"), (of_before, of_after), values, strict=True)
        for one, value in zip(each, side, strict=True)
    ]
    return pl.DataFrame(rows)


def _remark(
    values: tuple[list[float], list[float]], repeats: pl.DataFrame, middle: Sequence[int]
) -> str:
    paths = repeats["path"].to_list()
    pair = (paths[middle[0]], paths[len(values[0]) + middle[1]])
    return (
        f"Runs: {len(values[0])} before, {len(values[1])} after. The noise is the larger one of "
        "that between steps and that between runs; a single run is assumed to vary like those of "
        f"the other side. Tables compare the median runs: {pair[0]} and {pair[1]}."
    )


#: States of a role that changed.
_CHANGED = (runs.SLOWER, runs.FASTER, runs.NEW, runs.GONE)
_NAMED = 2
_NOTE = "Each run is compared with the first one; a role has changed in the first run that differs."


@dataclass(frozen=True, eq=False, repr=False)
class DiffSeries(Result):
    """Result of :func:`traceanalyzer.diff_series`.

    Attributes:
        runs: run (its number), path, basis (``median`` or ``mean of all steps``, or what is
            measured without steps), value_ns, change_frac, noise_frac and outcome (against the
            first run).
        roles: role, run_1_ns, run_2_ns ... (null if a run does not have the role), jump (number of
            the first run that differs significantly from run 1, or null), change_ns, kernel and
            in_place_of (in that run); the largest change first.
    """

    runs: pl.DataFrame
    roles: pl.DataFrame

    def view(self) -> View:
        """Build the view: the runs, and roles by run."""
        names = [name for name in self.roles.columns if name.startswith("run_")]
        labels = {"role": "role"} | {name: name[4:-3] for name in names}
        more = headings("jump: changed in run, change_ns: change, kernel, in_place_of: in place of")
        columns = headings(
            "run, path, basis: compared, value_ns: value, change_frac: change, noise_frac: noise, "
            "outcome: verdict"
        )
        return View(
            title="In which run did it get slower?",
            verdict=self._verdict(),
            notes=(_NOTE,),
            tables=(
                Table("runs", "Runs", self.runs, columns),
                Table("roles", "Kernels by role and run", self.roles, {**labels, **more}),
            ),
            scalars={"runs": self.runs.height},
        )

    def _verdict(self) -> str:
        changed = self.runs.filter(pl.col("outcome").is_in(("regression", "improvement")))
        if changed.is_empty():
            text = "No run differs significantly from the first one."
            return f"{text}{self._changed_roles(self.roles['jump'].min() or 0)}"
        row = changed.row(0, named=True)
        text = (
            f"Run {row['run']} ({row['path']}) is the first that differs: "
            f"{format_ns(row['value_ns'])}, {format_change(row['change_frac'])} "
            f"({row['basis']}; {noise_text(row['noise_frac'])}; {row['outcome']})."
        )
        return f"{text}{self._changed_roles(row['run'])}"

    def _changed_roles(self, run: object) -> str:
        """Name the roles that changed first in this run, if any."""
        rows = self.roles.filter(pl.col("jump") == run).head(_NAMED)
        by = [
            f"{role} {format_ns(abs(ns))} {'more' if ns > 0 else 'less'}"
            + (f", {kernel} in place of {other}" if other else "")
            for role, ns, kernel, other in rows.select(
                "role", "change_ns", "kernel", "in_place_of"
            ).iter_rows()
        ]
        return f" Roles that changed in run {run}: {'; '.join(by)}." if by else ""


def in_order(every: Sequence[Sequence[Part]], options: Options) -> DiffSeries:
    """Compare each run with the one before it.

    Raises:
        OptionError: there are fewer than two runs.
        MissingData: two runs cannot be compared.
    """
    if len(every) < 2:
        raise OptionError("diff_series needs at least two runs")
    pairs = [(after, every[0]) for after in every[1:]]
    each = _by_one_measure(pairs, options)
    rows: list[tuple[object, ...]] = []
    roles: list[pl.DataFrame] = []
    for number, one in enumerate(each, 2):
        if one.measure is None or one.roles is None:
            why = one.why or "no kernels were recorded"
            raise MissingData(f"run {number} cannot be compared with the first one: {why}")
        basis = BASIS.get(one.measure.name, one.measure.name)
        paths = dict(one.runs.select("run", "path").iter_rows())
        if number == 2:
            rows.append((1, paths["before"], basis, round(one.measure.before), None, None, None))
        rows.append((
            number, paths["after"], basis, round(one.measure.after), one.measure.change_frac,
            one.measure.noise_frac, one.outcome,
        ))  # fmt: skip
        roles.append(_named(one.roles).with_columns(run=pl.lit(number)))
    table = pl.DataFrame(rows, orient="row", schema={
        "run": pl.Int64, "path": pl.String, "basis": pl.String, "value_ns": pl.Int64,
        "change_frac": pl.Float64, "noise_frac": pl.Float64, "outcome": pl.String,
    })  # fmt: skip
    return DiffSeries(table, _by_run(roles))


def _named(roles: pl.DataFrame) -> pl.DataFrame:
    """Return roles by operator and shapes, or by the kernel of the first run that has it."""
    kernel = pl.coalesce("before_kernel", "after_kernel")
    name = pl.col("role").str.replace(r" \(position .*\)$", "")
    sums = [
        pl.when(pl.col(column).count() > 0).then(pl.col(column).sum()).alias(column)
        for column in ("before_ns", "after_ns", "change_ns")
    ]
    keyed = roles.with_columns(
        role=pl.when(pl.col("operator").is_null()).then(kernel).otherwise(name)
    )
    firsts = pl.col("state", "kernel", "in_place_of").first()
    return keyed.group_by("role", maintain_order=True).agg(*sums, firsts)


def _by_run(roles: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per role with its time in each run, and the run in which it changed."""
    wide = roles[0].select("role", run_1_ns="before_ns")
    for number, frame in enumerate(roles, 2):
        column = frame.select("role", pl.col("after_ns").alias(f"run_{number}_ns"))
        wide = wide.join(column, on="role", how="full", coalesce=True)
    changed = pl.concat(roles).filter(pl.col("state").is_in(_CHANGED))
    first = changed.sort("run", maintain_order=True).unique("role", keep="first")
    jumps = first.select("role", "kernel", "in_place_of", jump=pl.col("run"))
    times = [name for name in wide.columns if name != "role"]
    rows = wide.filter(pl.any_horizontal(pl.col(times).is_not_null())).join(
        jumps, on="role", how="left"
    )
    # of the times shown: a run without shapes has roles of several shapes as one
    each = [
        pl.when(jump=number).then(pl.col(name).fill_null(0) - pl.col(times[0]).fill_null(0))
        for number, name in enumerate(times, 1)
    ]
    rows = rows.with_columns(change_ns=pl.coalesce(each))
    ordered = largest_first(rows, pl.col("change_ns").abs(), "role", nulls_last=True)
    return ordered.select("role", *times, "jump", "change_ns", "kernel", "in_place_of")


def diff(
    before: Inputs,
    after: Inputs,
    *,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> Diff:
    """Return what changed from one run to another, and what is significant.

    Two runs are judged by the first of these that both have: the median step time, the span of the
    devices' work, the span of the main threads, the total of samples, the memory peak. The result
    compares the parts of step time (with idle causes), kernels, operators, collectives, functions
    and memory. A change is significant if it is above the noise and above ``min_change``. Each file
    is read once, and one is in memory at a time.

    A baseline with several runs is compared by :func:`diff_runs`.

    Args:
        before: a trace, a file or a folder, or several of them: the run to compare with.
        after: the same for the run to judge; it may have another format.
        step_name: a regular expression; slices whose names match are steps.
        comm_patterns: regular expressions of further kernel names that are communication.
        min_change: the least significant change, as a fraction of the smaller value.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file of a run can be read.
        MissingData: a run has no data to compare.
        OptionError: an option is invalid.
    """
    sides = [run_paths(side) if isinstance(side, str) else [side] for side in (before, after)]
    if any(len(side) > 1 for side in sides):
        how = {"step_name": step_name, "comm_patterns": comm_patterns, "min_change": min_change}
        return diff_runs(sides[0], sides[1], **how, **reading)  # type: ignore[arg-type]
    return run(DIFF, after, Options(step_name, comm_patterns, min_change, before), **reading)


def diff_runs(
    before: Sequence[Inputs],
    after: Sequence[Inputs],
    *,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> Diff:
    """Return what changed between two versions with several runs each.

    The median runs are compared; a change is significant if it is also above the noise between the
    runs of a version.

    Args:
        before: the runs to compare with, each one as for :func:`diff`.
        after: the runs to judge, of one version.
        step_name: see :func:`diff`.
        comm_patterns: see :func:`diff`.
        min_change: see :func:`diff`.
        **reading: see :func:`diff`.

    Raises:
        InputError: no file of a run can be read.
        MissingData: a run has no data to compare.
        OptionError: an option is invalid, or a side has no run.
    """
    options = Options(step_name, comm_patterns, min_change)
    return _answered(median_runs, (before, after), options, reading)


def diff_series(
    runs: Sequence[Inputs],
    *,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> DiffSeries:
    """In which of several runs did a role of kernels become slower?

    Args:
        runs: the runs in order, such as versions; each one as for :func:`diff`, read once.
        step_name: see :func:`diff`.
        comm_patterns: see :func:`diff`.
        min_change: see :func:`diff`.
        **reading: see :func:`diff`.

    Raises:
        InputError: no file of a run can be read.
        MissingData: a run cannot be compared with the one before it.
        OptionError: an option is invalid, or there are fewer than two runs.
    """
    return _answered(in_order, (runs,), Options(step_name, comm_patterns, min_change), reading)


def _answered(
    answer: Callable[..., R], sides: Sequence[Sequence[Inputs]], options: Options, reading: Reading
) -> R:
    """Measure the runs of each side, compare them and add the notes on reading."""
    options = replace(options, window=(reading.get("since_ns"), reading.get("until_ns")))
    require_readable([run for side in sides for run in side], **reading)
    measured = [[collect(DIFF, run, options, **reading) for run in side] for side in sides]
    opened = [run for side in measured for run, _ in side]
    with guarded({path: one for run in opened for path, one in run.summaries.items()}):
        result = answer(*([parts for _, parts in side] for side in measured), options)
        result.view()
    return with_notes(result, dict.fromkeys(note for run in opened for note in notes_on(run.state)))
