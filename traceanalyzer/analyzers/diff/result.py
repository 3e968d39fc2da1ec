"""Result of the diff analysis: data, verdict, notes, tables and charts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.device_work import COMMUNICATION, PART_NAMES
from traceanalyzer.analyzers.common.display import headings, known_columns, listed, sentences
from traceanalyzer.analyzers.common.replays import GRAPH_LAUNCH
from traceanalyzer.analyzers.diff import runs
from traceanalyzer.analyzers.diff.comparable import SOME_SHAPES, UNLIKE
from traceanalyzer.analyzers.diff.roles import FUSED, SAME
from traceanalyzer.analyzers.diff.runs import Measure, Name, Outcome
from traceanalyzer.analyzers.memory.diff import MemoryDiff
from traceanalyzer.drawings import Chart, Flame
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import (
    format_bytes,
    format_change,
    format_frac,
    format_ns,
    format_ratio,
    format_weight,
)
from traceanalyzer.vocabulary import LAUNCH, LAUNCH_KINDS, call_class

Comparability = Literal["comparable", "with reservations", "not comparable"]


@dataclass(frozen=True)
class Expected:
    """What a fix should gain, by the diagnosis of the run before.

    Attributes:
        fixed: rules of the findings whose gain is predicted.
        findings: one row per rule: finding, state (gone, remains, new, present: before it was no
            finding of its own, not checked: a run lacks the data), gain_ns and gain_frac (predicted
            by the diagnosis; null if unknown), before_ns and after_ns (costs, also of what is no
            finding), title.
        gain_frac: the predicted gain, at most 1; None if unknown.
        measured_frac: the measured gain; None if the runs cannot be compared.
        noise_frac: the noise of the measured gain; None if unknown.
        of: what they are shares of: ``mean step before``, that without the first step, or the time.
    """

    fixed: tuple[str, ...]
    findings: pl.DataFrame
    gain_frac: float | None
    measured_frac: float | None
    noise_frac: float | None
    of: str

    def named(self, state: str) -> list[str]:
        """Return the rules of the findings in a state, with both costs if they remain."""
        rows = self.findings.filter(pl.col("state") == state)
        return [
            f"{name} ({format_ns(before)} before, {format_ns(after)} after)"
            if before is not None and after is not None
            else name
            for name, before, after in rows.select("finding", "before_ns", "after_ns").iter_rows()
        ]

    def verdict(self, measure: Measure | None) -> str:
        """Compare the predicted with the measured gain, and name what is gone and new."""
        fixed, gain = listed(self.fixed) or "no finding", self.gain_frac
        predicted, measured = "unknown" if gain is None else format_frac(gain), self.measured_frac
        text = f"Gain of fixing {fixed}: predicted {predicted} of the {self.of}"
        if measured is not None and measure is not None:
            noise = self.noise_frac
            spread, done = "", measured / gain if gain and measured > 0 else None
            if noise is not None and abs(measured) <= noise:
                spread, done = f" (within the noise, {format_frac(noise)})", None
            elif noise is not None:
                spread = f" (noise {format_frac(noise)})"
            part = "" if done is None else f": {format_frac(done)} of the predicted gain"
            text += f", measured {format_frac(measured)}{spread}{part}"
        states = [
            f"{label}: {listed(names)}."
            for state, label in _FOUND.items()
            if (names := self.named(state))
        ]
        return " ".join((f"{text}.", *states))


#: Names of the states of findings.
_FOUND = {
    "gone": "Gone", "remains": "Remaining", "new": "New",
    "present": "In both runs, a finding only after", "not checked": "Not checked in both runs",
}  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Diff(Result):
    """Result of :func:`traceanalyzer.diff`.

    Frames of times have, after the key columns, ``before_ns`` and ``after_ns`` (null if a run does
    not have the row), ``change_ns``, ``change_frac`` (of before), ``noise_ns`` (null if unknown)
    and ``state`` (slower, faster, within noise, no change, new, gone), the largest change first.
    Times are means over typical steps if steps are compared, else sums of a device's or rank's
    recording.

    Attributes:
        measure: the measure that the runs are judged by; None if they cannot be compared.
        why: why they cannot be compared; None if they can.
        parts: ``part``: the parts of the time, which add up to it.
        places: where most of a part is that changed, see :func:`~.compared.places`.
        roles: kernels by role: ``role`` (operator, or family), ``kernel`` (short), ``in_place_of``
            (the kernel before, null if it is the same), ``operator``, ``shapes``, ``family``,
            ``pairing`` (same kernel, other kernel, fused, null for new and gone), ``position``,
            ``before_kernel``, ``after_kernel``, and ``before_n``, ``after_n``.
        paired_frac: the smaller share of the device time of a run in roles that both runs have.
        kernels: ``kernel`` (short), ``name``, ``family``, and ``before_n``, ``after_n``.
        families: ``family``, the same.
        on_device: ``name``, ``kind`` of operators, by self device time.
        on_host: the same by self host time.
        collectives: collective, dtype, message_bytes, group_size, kernel (if the size is unknown):
            medians of durations, ``before_n``, ``after_n``, and those in steps (all if steps are
            not known): ``before_step_n``, ``after_step_n``.
        functions: ``name``, ``place``, ``is_own_code``, self shares of all samples
            (``before_frac``, ``after_frac``, ``change_frac``, ``noise_frac``) and total shares
            (``before_total_frac``, ``after_total_frac``).
        memory: changes of the memory live at the peak.
        steps: run, rank, path, on, step, number, duration_ns, warm_up.
        runs: run, path (common path of its files), files, ranks, steps (counted ones), format,
            gpus.
        files: run, path, rank, format, gpus, cut_off.
        flame: the sampled stacks after, compared with those before.
        remarks: remarks on the comparison, the reservations included.
        reservations: why a change may have other causes than the code, a sentence each.
        expected: what a fix should gain, of :func:`traceanalyzer.check_fix`; otherwise None.
        repeats: run, path, value (of the measure), one row per run if a side has several.
    """

    question = "Did it get slower, and where?"

    measure: Measure | None
    why: str | None
    parts: pl.DataFrame | None
    places: Mapping[str, str]
    roles: pl.DataFrame | None
    paired_frac: float | None
    kernels: pl.DataFrame | None
    families: pl.DataFrame | None
    on_device: pl.DataFrame | None
    on_host: pl.DataFrame | None
    collectives: pl.DataFrame | None
    functions: pl.DataFrame | None
    memory: MemoryDiff | None
    steps: pl.DataFrame
    runs: pl.DataFrame
    files: pl.DataFrame
    flame: Flame | None = None
    remarks: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    repeats: pl.DataFrame | None = None
    expected: Expected | None = None

    @property
    def comparability(self) -> Comparability:
        """``comparable``, ``with reservations`` or ``not comparable``."""
        if self.measure is None:
            return "not comparable"
        return "with reservations" if self.reservations else "comparable"

    @property
    def outcome(self) -> Outcome:
        """``regression``, ``improvement``, ``no change``, ``not judged`` or ``cannot be compared``.

        Of sampled stacks only shares are compared; the change of their total is not judged, as that
        of a single step.
        """
        return "cannot be compared" if self.measure is None else self.measure.outcome

    def view(self) -> View:
        """Build the view: parts of a step, kernels, operators, collectives, functions, memory."""
        scalars, flames = self._scalars(), self._flames
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=scalars, flames=flames)

    def _flames(self) -> tuple[Flame, ...]:
        """Return the differential flame graph if runs are judged by samples."""
        sampled = self.measure is not None and self.measure.name == "samples"
        return (self.flame,) if sampled and self.flame is not None else ()

    def _scalars(self) -> dict[str, Any]:
        """Return the measure, in the unit of ``unit``."""
        outcome: dict[str, Any] = {
            "outcome": self.outcome,
            "why": self.why,
            "comparability": self.comparability,
            "reservations": list(self.reservations),
            "paired_frac": self.paired_frac,
        }
        names = (
            "name", "unit", "before", "after", "change", "change_frac", "noise", "noise_frac",
            "least",
        )  # fmt: skip
        values = {name: getattr(self.measure, name, None) for name in names}
        values["measure"] = values.pop("name")
        if self.expected is not None:
            values["expected_gain_frac"] = self.expected.gain_frac
            values["measured_gain_frac"] = self.expected.measured_frac
        if self.memory is not None:
            values["peak_before_bytes"] = self.memory.base_bytes
            values["peak_after_bytes"] = self.memory.peak_bytes
        return outcome | values


#: Least share of the change to name a part, and how many are named.
_WORTH_FRAC, _NAMED = 0.1, 3

#: Shares of samples that differ by less are equal, beside their noise.
_SHARE_FRAC = 0.005

#: Operators for the forward pass of attention that differ by the library.
_ATTENTION = (
    r"^aten::_scaled_dot_product_\w*attention\w*$|^flash_attn\w*::\w*forward|FlashAttn\w*Func$"
)

#: Least number of single launches that a launch of a graph is in place of.
_GRAPH_KERNELS = 3

#: Least change of a named kernel, as a fraction of a step, and the share of the whole change above
#: which it is given.
_KERNEL_FRAC, _MOST_FRAC = 0.01, 0.5

#: Kernels of all kinds changed by one factor: how near their ratios and counts are to it, the share
#: of time and number of families that are, the most that one kernel takes, and factors of clocks.
_ALIKE_FRAC, _COUNT_FRAC, _NEARLY_FRAC, _KINDS, _KINDS_FRAC = 0.5, 0.02, 0.9, 3, 0.6
_CLOCK_FRAC = (0.03, 1.0)

#: The same of a part if the whole did not change.
_PART_FRAC = 0.05

#: Noise above this hides relevant changes.
_NOISY_FRAC = 0.1

_BOTH = ("before", "after")

#: Collectives of gradients, and of parameters that are sharded.
_SHARDING = {"all_reduce", "all_gather", "reduce_scatter"}

_SUBJECTS: dict[Name, str] = {
    "step": "step time",
    "mean": "step time",
    "device": "span of device work (first start to last end, mean over devices)",
    "thread": "span of the main threads (mean)",
    "samples": "total weight",
    "memory": "memory peak",
}
#: How steps are compared.
BASIS: dict[Name, str] = {"step": "median", "mean": "mean of all steps"}
_STEP = {"step": "A typical step (mean of the middle half)", "mean": "The mean step"}
#: The outcomes whose names are no start of a sentence.
_OUTCOMES: dict[str, str] = {"not judged": "Not enough steps to tell"}
#: Number of steps that is usually enough.
_ENOUGH = 10
#: How to know more, from the number of steps.
_RECORD = "record more steps ({}), or several runs of each version (--more-before, --more-after)."


def _verdict(result: Diff) -> str:
    expected = result.expected.verdict(result.measure) if result.expected else ""
    return sentences(expected, _of_runs(result))


def _of_runs(result: Diff) -> str:
    """Describe the outcome with its size and noise, and the changes that explain it."""
    measure = result.measure
    if measure is None:
        return f"Cannot be compared: {result.why}."
    unlike = any(text.startswith(UNLIKE) for text in result.reservations)
    reserved = _reserved(result.reservations)
    if measure.name == "samples":
        return sentences(reserved, _functions(result), _total(measure), _peak(result, measure))
    return sentences(
        *([reserved] if unlike else []),
        _outcome(result, measure, judged=not unlike),
        *([] if unlike else [reserved]),
        _explained(result, measure),
        _means(result, measure),
        *_calls(result, measure),
        _kernels(result, measure),
        _collectives(result),
        _functions(result),
        _peak(result, measure),
    )


def _reserved(reservations: tuple[str, ...]) -> str:
    """Name the reservations; the notes have their details."""
    heads = [text.partition(":")[0].removesuffix(".") for text in reservations]
    named = "; ".join(head[:1].lower() + head[1:] for head in heads)
    return f"Comparable with reservations: {named}." if named else ""


def _total(measure: Measure) -> str:
    """Describe the total of samples, which does not measure speed."""
    values = (measure.after, measure.before)
    after, before = (format_weight(value, measure.unit) for value in values)
    return (
        f"Total weight: {after}, before {before} (depends on duration and threads, not on speed)."
    )


def noise_text(noise: float | None) -> str:
    """Return ``noise 1.4 %``."""
    return "noise unknown" if noise is None else f"noise {format_frac(noise)}"


def _outcome(result: Diff, measure: Measure, *, judged: bool) -> str:
    """Return the values of both runs; ``judged``: with the outcome."""
    middle = f"{BASIS[measure.name]}; " if measure.in_steps else ""
    noise, spread = measure.noise_frac, noise_text(measure.noise_frac)
    many = measure.in_steps and (result.runs["steps"].min() or 0) >= _ENOUGH  # type: ignore[operator]
    record = _RECORD.format("4 times as many halve the noise" if many else f"{_ENOUGH} in each run")
    change = "" if measure.change_frac is None else f"{format_change(measure.change_frac)}, "
    limit = ""
    if measure.outcome == "not judged":
        limit = f" {record.capitalize()}"
    elif measure.outcome == "no change" and (noise or 0) > _NOISY_FRAC:
        limit = f" Only changes above {format_frac(noise)} are significant: {record}"
    same = "for the same work, " if measure.work != 1 else ""
    values = (measure.after, measure.before)
    after, before = (format_weight(value, measure.unit) for value in values)
    subject = _SUBJECTS[measure.name]
    numbers = f"{after}, before {before} ({middle}{change}{spread}).{limit}"
    if not judged:
        text = f"{same}{subject} {numbers}"
        return text[0].upper() + text[1:]
    if measure.outcome != "no change":
        outcome = _OUTCOMES.get(measure.outcome, measure.outcome.capitalize())
        return f"{outcome}: {same}{subject} {numbers}"
    outcome = "No change" if _is_small(measure) else "No significant change"
    return f"{outcome} of {subject}: {same}{numbers}"


def _is_small(measure: Measure) -> bool:
    """Whether the change is below the least significant change."""
    return abs(measure.change) <= measure.least * min(measure.before, measure.after)


def _explained(result: Diff, measure: Measure) -> str:
    """Describe the parts that changed with the whole, and those that changed against it."""
    if result.parts is None or measure.unit != "ns":
        return ""
    if measure.outcome == "no change":
        return _parts_alone(result, result.parts, measure)
    whole = int(result.parts["change_ns"].sum())
    if not whole or (whole > 0) != (measure.change > 0):
        return ""
    least = _WORTH_FRAC * abs(whole)
    rows = result.parts.filter(pl.col("state") != runs.UNSURE, pl.col("change_ns").abs() >= least)
    along = rows.filter((pl.col("change_ns") > 0) == (whole > 0)).head(_NAMED)
    against = rows.filter((pl.col("change_ns") > 0) != (whole > 0)).head(_NAMED)
    more, less = ("more", "less") if whole > 0 else ("less", "more")
    named = [
        " ".join(filter(None, (part, format_ns(abs(n)), result.places.get(part))))
        for part, n in along.select("part", "change_ns").rows()
    ]
    step = _STEP.get(measure.name, "The run")
    text = f"{step} takes {format_ns(abs(whole))} {more}{': ' * bool(named)}{listed(named)}."
    if against.height:
        others = [
            f"{part} takes {format_ns(abs(n))} {less}"
            for part, n in against.select("part", "change_ns").rows()
        ]
        text += f" In contrast, {listed(others)}."
    return text


def _parts_alone(result: Diff, parts: pl.DataFrame, measure: Measure) -> str:
    """Describe parts with a significant change if the whole has none."""
    rows = parts.filter(
        pl.col("state").is_in(("slower", "faster", runs.NEW, runs.GONE)),
        pl.col("change_ns").abs() >= _PART_FRAC * measure.before,
    ).head(_NAMED)
    named = [
        _changed(row, " ".join(filter(None, (row["part"], result.places.get(row["part"])))))
        for row in rows.iter_rows(named=True)
    ]
    sure = "" if measure.noise is None else "significant "
    return f"Parts with a {sure}change: {listed(named)}." if named else ""


def _means(result: Diff, measure: Measure) -> str:
    """Describe the mean or the median if only the mean changed."""
    if not measure.in_steps or result.steps.is_empty():
        return ""
    kept, time = result.steps.filter(~pl.col("warm_up")), pl.col("duration_ns")
    of_step = kept.group_by("run", "number").agg(time.mean()).sort("number")
    sides = [of_step.filter(run=run)["duration_ns"].to_numpy() for run in ("before", "after")]
    other = np.mean if measure.name == "step" else np.median
    before, after = (float(other(times)) for times in sides)
    numbers = f"({format_ns(after)}, before {format_ns(before)})"
    if measure.name == "mean":
        which = "after" if measure.change > 0 else "before"
        names = zip(("before", "after"), sides, strict=True)
        if uneven := [f"the run {name}" for name, times in names if runs.alternates(times)]:
            where = f"Every second step is slow in {listed(uneven)}"
            return f"{where}: the median is uncertain {numbers}."
        if result.expected is not None:  # judged by the mean whatever the median does
            return ""
        more = " significantly" * (abs(after - before) >= runs.MEAN_FRAC * before)
        return (
            f"The median did not change{more} {numbers}: one step in a few is slow in the run "
            f"{which}."
        )
    small = measure.outcome == "no change" and _is_small(measure)
    if not small or abs(after - before) < runs.MEAN_FRAC * before:
        return ""
    return f"The mean of all steps changed {numbers} because of a few slow steps."


def _calls(result: Diff, measure: Measure) -> Iterator[str]:
    """Name operators for attention, and launches of graphs or kernels, in place of the others."""
    if result.on_host is None:
        return
    rows = result.on_host.filter(pl.col("name").str.contains(_ATTENTION))
    new, gone = (rows.filter(state=one)["name"].to_list() for one in (runs.NEW, runs.GONE))
    if new and gone:
        yield f"Attention runs as {listed(new)} in place of {listed(gone)}."
    calls = result.on_host.filter(pl.col("kind").is_in(LAUNCH_KINDS)).fill_null(0)
    calls = calls.filter([call_class(name) == LAUNCH for name in calls["name"]])
    is_graph, n = pl.col("name").str.contains(GRAPH_LAUNCH), pl.col("before_n", "after_n")
    graphs, single = (calls.filter(of).select(n.sum()).row(0) for of in (is_graph, ~is_graph))
    lost, fewer = graphs[0] > graphs[1], abs(graphs[0] - graphs[1])
    more = single[1] - single[0] if lost else single[0] - single[1]
    if fewer > min(graphs) and more >= _GRAPH_KERNELS * fewer:
        of, state = " per step" * measure.in_steps, "lost" if lost else "new"
        now, then = [[f"{round(n, 1):,.12g}" for n in (graphs[at], single[at])] for at in (1, 0)]
        yield (
            f"CUDA graphs are {state}: {now[0]} graph and {now[1]} single launches{of}, before "
            f"{then[0]} and {then[1]}."
        )


def _kernels(result: Diff, measure: Measure) -> str:
    """Name the roles (kernels, if roles are unknown) that changed most."""
    frame, name = (result.kernels, "kernel") if result.roles is None else (result.roles, "role")
    if frame is None or measure.unit != "ns":
        return ""
    if text := _all_kernels(result):
        return text
    if result.collectives is not None:  # their time includes waits, see _collectives
        frame = frame.filter(pl.col("family") != COMMUNICATION)
    rows = frame.filter(
        ~pl.col("state").is_in((runs.SAME, runs.UNSURE)),
        pl.col("change_ns").abs() >= _KERNEL_FRAC * measure.before,
    ).head(_NAMED - 1)
    if rows.is_empty():
        return ""
    step = " per step" * measure.in_steps
    named = []
    for row in rows.iter_rows(named=True):
        by = _by(row)
        first, *more = (row["kernel"] or "").split(", ")
        of = row[name] if row.get("operator") or by else first + " and others" * bool(more)
        named.append(_changed(row, of or "(no name)") + by + _most(result, measure, row))
    return f"Largest kernel changes{step}: {'; '.join(named)}."


def _most(result: Diff, measure: Measure, row: Mapping[str, Any]) -> str:
    """Return the share of a role that explains more than half of the change; otherwise nothing."""
    if result.parts is None or measure.outcome not in ("regression", "improvement"):
        return ""
    whole = int(result.parts["change_ns"].sum())
    share = row["change_ns"] / whole if whole else 0.0
    return f", {format_frac(share)} of the change" if _MOST_FRAC < share <= 1 else ""


def _all_kernels(result: Diff) -> str:
    """Say that kernels of all kinds changed by one factor: the GPU is slower, not one kernel."""
    unlike = (*UNLIKE, SOME_SHAPES)
    if result.roles is None or any(text.startswith(unlike) for text in result.reservations):
        return ""
    each = result.roles.filter(pl.col("family") != COMMUNICATION).with_columns(
        ratio=pl.col("after_ns") / pl.col("before_ns")
    )
    before, after = int(each["before_ns"].sum()), int(each["after_ns"].sum())
    change = after / before - 1 if before else 0.0
    alike = each.filter(
        pl.col("pairing") == SAME,
        (pl.col("ratio") - 1 - change).abs() <= _ALIKE_FRAC * abs(change),
        (pl.col("after_n") / pl.col("before_n") - 1).abs() < _COUNT_FRAC,
    )
    time = alike["before_ns"]
    if (
        not _CLOCK_FRAC[0] <= abs(change) <= _CLOCK_FRAC[1]
        or int(time.sum()) < _NEARLY_FRAC * before
        or alike["family"].n_unique() < _KINDS
        or int(time.max() or 0) > _KINDS_FRAC * before  # type: ignore[arg-type]
    ):
        return ""
    known = int(time.filter(alike["shapes"].is_not_null()).sum()) > int(time.sum()) / 2
    slower, larger = ("slower", "larger") if change > 0 else ("faster", "smaller")
    of = " (clock, power limit, temperature, another process)"
    inputs = "" if known else f", or all inputs are {larger}: record_shapes=True shows that"
    same = " and equal input shapes" if known else ""
    return (
        f"Kernels of all kinds take {format_ratio(1 + change)} as long, with as many "
        f"launches{same}: the GPU is {slower}{of}{inputs}."
    )


def _by(row: dict[str, Any]) -> str:
    """Return which kernel of a role is in place of which one; empty for the same one."""
    before, after = row.get("in_place_of"), row["kernel"]
    if before is None:
        return ""
    then, now = (round(row[n] or 0, 1) for n in ("before_n", "after_n"))
    if row["pairing"] == FUSED and then != now:
        more, into = "s" * (then != 1), "fused" if then > now else "split"
        return f": {then:,.12g} kernel{more} ({before}) {into} into {now:,.12g} ({after})"
    alike = after.partition("<")[0] == before.partition("<")[0]  # with other template arguments
    return "" if alike else f": {after} in place of {before}"


def _changed(row: dict[str, Any], name: str) -> str:
    if row["state"] == runs.NEW:
        return f"{name} is new ({format_ns(row['after_ns'])})"
    if row["state"] == runs.GONE:
        return f"{name} is gone ({format_ns(row['before_ns'])})"
    change = f" ({format_change(row['change_frac'])})" if row["change_frac"] is not None else ""
    return f"{name} from {format_ns(row['before_ns'])} to {format_ns(row['after_ns'])}{change}"


def _collectives(result: Diff) -> str:
    """Describe the kinds of collective that are gone and new, or the one that changed most."""
    if result.collectives is None:
        return ""
    if text := _other_collectives(result, result.collectives):
        return text
    if PART_NAMES["exposed_communication_ns"] in result.places:
        return ""
    rows = result.collectives.filter(
        pl.col("state").is_in(("slower", "faster")), pl.col("change_frac").abs() >= _WORTH_FRAC
    )
    if rows.is_empty():
        return ""
    row = rows.row(0, named=True)
    size = f" of {format_bytes(row['message_bytes'])}" if row["message_bytes"] is not None else ""
    return (
        f"{rows.height} of {result.collectives.height} kinds of collective changed, "
        f"{row['collective']}{size} most: {format_ns(row['after_ns'])}, before "
        f"{format_ns(row['before_ns'])} (median)."
    )


def _other_collectives(result: Diff, collectives: pl.DataFrame) -> str:
    """Describe collectives in place of those of other kinds, with the bytes per step and rank."""
    steps = {} if result.steps.is_empty() else dict(result.steps["run"].value_counts().rows())
    if len(steps) < len(_BOTH):
        return ""
    size = pl.col("message_bytes")
    sums = collectives.group_by("collective").agg(
        (pl.col(f"{run}_step_n") * size).sum().alias(run) / steps[run] for run in _BOTH
    )
    texts, kinds = list[str](), list[list[str]]()
    for one, other in (_BOTH[::-1], _BOTH):
        is_only = pl.col(other) < _WORTH_FRAC * pl.col(one)
        rows = sums.filter(is_only, pl.col(one) >= _WORTH_FRAC * pl.col(one).sum())
        kinds.append(rows["collective"].drop_nulls().sort().to_list())
        texts.append(f"{listed(kinds[-1])} ({format_bytes(round(rows[one].sum()))} per step)")
    if not all(kinds):
        return ""
    sharded = ["all_reduce"] in kinds and {*kinds[0], *kinds[1]} <= _SHARDING
    what = "The sharding changed" if sharded else "Collectives changed"
    return f"{what}: {texts[0]} in place of {texts[1]}."


def _functions(result: Diff) -> str:
    if result.functions is None:
        return ""
    rows = result.functions.filter(~pl.col("state").is_in((runs.SAME, runs.UNSURE)))
    if rows.is_empty():
        return "No function's share of samples changed significantly."
    only = _only_change(result.functions)
    named = [
        f"{row['name'] or '(no name)'}{_called_by(result.functions, row)} from "
        f"{format_frac(row['before_frac'] or 0)} to {format_frac(row['after_frac'] or 0)}"
        for row in rows.head(1 if only else _NAMED).iter_rows(named=True)
    ]
    rest = "; the others change in proportion" if only and rows.height > 1 else ""
    return f"Largest changes of functions' self shares: {'; '.join(named)}{rest}."


def _only_change(functions: pl.DataFrame) -> bool:
    """Whether the other shares make room for the first one, in proportion within their noise."""
    before, after = (pl.col(f"{side}_frac").fill_null(0) for side in ("before", "after"))
    first = functions.select(before, after).row(0)
    factor = (1 - first[1]) / max(1 - first[0], 1e-9)
    apart = (after - factor * before).abs() > pl.col("noise_frac").fill_null(0) + _SHARE_FRAC
    return not functions[1:].select(apart.any()).item()


def _called_by(functions: pl.DataFrame, row: Mapping[str, Any]) -> str:
    """Return your own function whose total share changed like the self share of a function."""
    change = pl.col("after_total_frac") - pl.col("before_total_frac") - row["change_frac"]
    alike = change.abs() <= _SHARE_FRAC + 0.1 * abs(row["change_frac"])
    is_caller = pl.col("change_frac").abs() < abs(row["change_frac"]) / 2
    callers = functions.filter("is_own_code", alike, is_caller).select("name", "place").rows()
    return " in {} ({})".format(*callers[0]) if len(callers) == 1 else ""


def _peak(result: Diff, measure: Measure) -> str:
    """Describe the change of the memory peak if runs are not judged by it."""
    memory = result.memory
    if memory is None:
        return ""
    if measure.name == "memory":
        return memory.largest_changes()
    before, after = memory.base_bytes, memory.peak_bytes
    if abs(after - before) <= measure.least * min(before, after):
        return ""
    frac = f" ({format_change(after / before - 1)})" if before else ""
    return f"The memory peak changed from {format_bytes(before)} to {format_bytes(after)}{frac}."


def _notes(result: Diff) -> Iterator[str]:
    """Describe how the numbers are defined."""
    measure = result.measure
    if measure is None:
        yield from result.remarks
        return
    yield (
        f"A change is significant if it is above {format_frac(measure.least)} (--min-change) and "
        f"above the noise ({runs.ERRORS} standard errors of the difference)."
    )
    shorter = measure.change_frac is not None and measure.change_frac < 0
    if shorter and result.expected is not None and result.expected.named("present"):
        yield "The limits of findings are shares of the step: of a shorter step, less is a finding."
    if result.roles is not None and (result.paired_frac or 0) < 1:
        yield (
            f"{format_frac(result.paired_frac or 0)} of the device time is in kernels with the "
            "same role in both runs; the others are new or gone."
        )
    if measure.in_steps and result.parts is not None:
        some = "typical steps (the middle half by time)" if measure.name == "step" else "all steps"
        yield (
            f"Sums per step are means over {some}, so parts add "
            "up. Kernels and operators count for the step in which they start."
        )
    yield from result.remarks


_TIMES = headings(
    "before_ns: before, after_ns: after, change_ns: change, change_frac: change, noise_ns: noise, "
    "state: verdict"
)
_ALIKE = (("before_ns", "after_ns"), ("change_ns", "noise_ns"))
#: Names of kernels come after the numbers: they are what a narrow terminal hides.
_ROLES = {
    "role": "role", **{name: label for name, label in _TIMES.items() if name != "noise_ns"},
    "kernel": "kernel", "in_place_of": "in place of",
}  # fmt: skip
#: Columns that a narrow terminal hides before the verdict.
_LESS = ("in_place_of", "kernel", "before_n", "noise_ns", "change_ns")
_COUNTS = {"before_n": "n before", "after_n": "n after"}
_RUNS = headings("run, path, files, ranks, steps, format, gpus: GPU")
_FILES = headings("run, path: file, rank, format, gpus: GPU, cut_off: truncated")
_BARS = 15


def _tables(result: Diff) -> tuple[Table, ...]:
    """Build the tables: parts first, then the runs, then the others."""
    tables = list(_comparisons(result))
    compared = Table("runs", "Compared runs", result.runs, _known_columns(result.runs, _RUNS))
    repeats = () if result.repeats is None else (_repeats_table(result.repeats),)
    first, rest = (tables[:1], tables[1:]) if len(tables) > 1 else ([], tables)
    if result.expected is not None:
        labels = headings(
            "finding, state, gain_ns: predicted gain, gain_frac: of time, before_ns: cost before, "
            "after_ns: cost after"
        )
        found = result.expected.findings
        first = [Table("findings", "Findings before and after", found, labels), *first]
    return (*first, compared, *repeats, *rest)


def _repeats_table(repeats: pl.DataFrame) -> Table:
    labels = {"run": "run", "path": "path", "value_ns": "value", "value_bytes": "value",
              "value": "value"}  # fmt: skip
    return Table("repeats", "Repeated runs", repeats, _known_columns(repeats, labels))


def _comparisons(result: Diff) -> Iterator[Table]:
    step = "per step" if result.measure is not None and result.measure.in_steps else "total"
    named: tuple[tuple[str, str, pl.DataFrame | None, dict[str, str], bool], ...] = (
        ("parts", f"Time breakdown, {step}", result.parts, {"part": "part"}, False),
        ("families", f"Device work by family, {step}", result.families,
         {"family": "family"}, False),
        ("roles", f"Kernels by role, {step}", result.roles,
         _ROLES, False),
        ("kernels", f"Kernels, copies and memsets by name, {step}", result.kernels,
         {"kernel": "kernel"}, result.roles is not None),
        ("collectives", "Collectives by kind, medians", result.collectives,
         {"collective": "collective", "dtype": "dtype", "message_bytes": "message",
          "group_size": "ranks", "kernel": "kernel"}, False),
        ("operators_on_device", f"Operators by self device time, {step}",
         result.on_device, {"name": "operator"}, True),
        ("operators_on_host", f"Operators by self host time, {step}",
         result.on_host, {"name": "operator"}, False),
    )  # fmt: skip
    for name, title, frame, keys, detail in named:
        if frame is not None:
            less = _LESS
            if name == "roles" and frame["operator"].null_count() == frame.height:
                # roles are only families
                keys, less = {"kernel": "kernel", **keys}, ("role", "in_place_of", *_LESS[2:])
            columns = _known_columns(frame, {**keys, **_TIMES, **_COUNTS})
            yield Table(
                name, title, frame, columns, "none in either run", detail=detail, alike=_ALIKE,
                hide_first=less,
            )  # fmt: skip
    if result.functions is not None:
        yield _function_table(result.functions)
    if result.memory is not None:
        lines, _, peaks = result.memory.tables
        yield Table("memory", "Memory live at the peak by line of code, changes",
                    lines.frame, lines.columns, "nothing changed")  # fmt: skip
        yield Table("peaks", peaks.title, peaks.frame, peaks.columns, detail=True)
    yield Table("files", "Files", result.files, _known_columns(result.files, _FILES), detail=True)


def _known_columns(frame: pl.DataFrame, columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns with known values; counts only if they differ."""
    known = known_columns(frame, columns)
    if frame.is_empty():
        known = {name: label for name, label in columns.items() if name in frame.columns}
    if _COUNTS.keys() <= known.keys() and frame["before_n"].equals(frame["after_n"]):
        return {name: label for name, label in known.items() if name not in _COUNTS}
    return known


def _function_table(frame: pl.DataFrame) -> Table:
    columns = headings(
        "name: function, place: file:lines, before_frac: before, after_frac: after, "
        "change_frac: change, noise_frac: noise, state: verdict, "
        "before_total_frac: total before, after_total_frac: total after"
    )
    return Table("functions", "Functions by self share of samples", frame,
                 _known_columns(frame, columns))  # fmt: skip


def _charts(result: Diff) -> Iterator[Chart]:
    """Build charts of step times of both runs, and of changes of parts and kernels."""
    if result.steps.height and result.measure is not None:
        yield _times(result.steps)
    for frame, what, label in (
        (result.parts, "part", "Time breakdown: changes"),
        (result.kernels, "kernel", "Kernels: changes"),
    ):
        if frame is not None and (frame["change_ns"] != 0).any():
            yield _changes(frame, what, label)


def _times(steps: pl.DataFrame) -> Chart:
    return Chart(
        name="steps", title="Step times", mark="scatter",
        frame=steps.select("run", "number", "duration_ns", "warm_up"),
        x="number", y="duration_ns", x_label="step", y_label="time", color="run",
        emphasis="warm_up", emphasis_label="warm-up",
    )  # fmt: skip


def _changes(frame: pl.DataFrame, what: str, title: str) -> Chart:
    rows = frame.filter(pl.col("change_ns") != 0).head(_BARS)
    return Chart(
        name=f"{what}s", title=title, mark="span",
        frame=rows.select(what, pl.lit(0, pl.Int64).alias("zero_ns"), "change_ns",
                          pl.col("state").cast(runs.STATE)),
        x="zero_ns", x2="change_ns", y=what, x_label="change", color="state",
    )  # fmt: skip
