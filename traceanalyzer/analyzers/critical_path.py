"""The critical path: what the run waited for at each moment.

The programs of all ranks (:mod:`~traceanalyzer.analyzers.replay`) are replayed, and the longest
path is followed back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, MEMORY
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.common.kernel_names import families_of, short_names
from traceanalyzer.analyzers.common.names import one_name_for_numbers
from traceanalyzer.analyzers.replay import changes, engine, program, sample
from traceanalyzer.analyzers.replay.engine import Job, Times, Weights
from traceanalyzer.analyzers.replay.program import Program
from traceanalyzer.analyzers.what_if import PathOptions as Options
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs
from traceanalyzer.units import format_frac, format_ns

KERNELS: str = "kernels"
COPIES: str = "copies"
TRANSFERS: str = "transfers"
OPERATORS: str = "operators"
GAPS: str = "gaps between kernels"
LAUNCHES: str = "launches"
LOADING: str = "data loading"
#: Calls that neither launch nor wait, by their kind in a program, with the names of idle causes.
_OF_CALLS = {
    "allocate": "memory management", "memory": "memory management", "graph": "graph building",
    "module": "module loading", "other": "other API calls",
}  # fmt: skip
CODE: str = "other host code"
SYNCHRONISATION: str = "end of waiting calls"
BEFORE: str = "not recorded"
#: What the longest path runs through.
CLASSES = (
    KERNELS, OPERATORS, COPIES, TRANSFERS, GAPS, LAUNCHES, LOADING, CODE, SYNCHRONISATION, BEFORE,
    *dict.fromkeys(_OF_CALLS.values()),
)  # fmt: skip

_OTHER = (
    ("classes", "Longest path", "kind: waiting for"),
    ("names", "Kernels and calls on the path", "kind: waiting for, name"),
    ("families", "Families of kernels, and other classes", "family"),
    ("annotations", "Annotations around the path, or around its launch calls", "annotation"),
    ("ranks", "Ranks on the path", "rank"),
    ("stages", "Pipeline stages on the path", "stage"),
)
_PATH = headings("at_ns: at, rank, kind: waiting for, name, time_ns: time")
#: A rank is named if its share of the path exceeds that of an equal division by this factor.
_MUCH = 1.5


@dataclass(frozen=True, eq=False, repr=False)
class CriticalPath(Result):
    """The longest path through all ranks, within the steps.

    Attributes:
        classes: one row per class, the most time first: ``kind``, ``parts`` (number of parts of the
            path), ``time_ns`` (mean per step), ``time_frac`` (of the step time; adds up to 1).
        names: the same by class and name of the kernel, copy, collective or call.
        ranks: the same by rank; families: by family of kernels, or class; annotations: by innermost
            annotation, of work that around its launch call; stages: by pipeline stage.
        path: the path in order of time: ``rank``, ``kind``, ``name``, ``at_ns`` (from the start of
            the run), ``time_ns``.
        steps: number of steps.
        step_ns: mean step time, the sum of ``time_ns`` of each table.
        sampled: which steps are replayed (``4 of 20 steps (12 to 15)``); empty if all are.
        error_frac: relative error of the replayed step time.
        edges: number of waits of a stream for another one.
        inferred: number of those that are not recorded but inferred.
        hint: how to record them, or empty.
    """

    question = "What did the run wait for at each moment?"
    scalar_names = "steps, step_ns, error_frac, edges, inferred"

    classes: pl.DataFrame
    names: pl.DataFrame
    ranks: pl.DataFrame
    families: pl.DataFrame
    annotations: pl.DataFrame
    stages: pl.DataFrame
    path: pl.DataFrame
    steps: int
    step_ns: float
    sampled: str
    error_frac: float
    edges: int
    inferred: int
    hint: str

    def view(self) -> View:
        """Build the view: classes, names, ranks and the path."""
        return self.view_from(_verdict, _notes, _tables, _charts)


def _verdict(result: CriticalPath) -> str:
    named = [
        f"{row['kind']} {format_frac(row['time_frac'])}"
        for row in result.classes.head(3).iter_rows(named=True)
    ]
    names = result.names.drop_nulls("name").filter(pl.col("kind") == result.classes["kind"][0])
    most = names.row(0, named=True) if names.height else None
    what = "A step" if result.steps > 1 else "The run"
    name = f"Longest: {most['name']}, {format_frac(most['time_frac'])}." if most else ""
    return sentences(
        f"{what} ({format_ns(result.step_ns)}) waits for: {', '.join(named)}.", name, _rank(result)
    )


def _rank(result: CriticalPath) -> str:
    """Name the rank with most of the path, if that is much more than an equal share."""
    count = result.ranks.height
    if count < 2:
        return ""
    row = result.ranks.row(0, named=True)
    if row["time_frac"] < min(_MUCH / count, 0.9):
        return ""
    return f"Of the longest path, {format_frac(row['time_frac'])} is on rank {row['rank']}."


def _notes(result: CriticalPath) -> Iterator[str]:
    yield (
        "Only time on the path makes a step shorter; traceanalyzer what-if estimates by how much."
    )
    yield from of_sample(result.sampled)
    yield from inferred_waits(result.inferred, result.edges, result.hint)


def of_sample(steps: str) -> Iterator[str]:
    """Say which steps are replayed if not all are."""
    if steps:
        yield f"There is much device work, so {steps} of typical length are replayed."


def inferred_waits(inferred: int, edges: int, hint: str) -> Iterator[str]:
    """Say how many of the waits between streams are inferred, and how to record them."""
    if inferred:
        text = (
            f"{inferred:,} of {edges:,} waits between streams are inferred from the order of calls"
        )
        yield f"{text}; to know them, {hint}." if hint else f"{text}."


def _tables(result: CriticalPath) -> Iterator[Table]:
    whole = "step" if result.steps > 1 else "run"
    for name, title, by in _OTHER:
        frame = getattr(result, name)
        if frame.height > 1 or name in ("classes", "names"):
            texts = headings(f"{by}, parts, time_ns: time, time_frac: of {whole}")
            mean = ", mean per step" * (name == "classes" and result.steps > 1)
            yield Table(name, f"{title}{mean}", frame, texts, missing={"annotation": "(none)"})
    yield Table("path", "The path", result.path, _PATH, detail=True)


def _charts(result: CriticalPath) -> Iterator[Chart]:
    yield Chart("classes", "Longest path of a step", "bar", result.classes, "kind", "time_ns", "",
              "time per step")  # fmt: skip


def combine(parts: Sequence[Program], _options: Options) -> CriticalPath:
    """Follow the longest path through all ranks.

    Raises:
        MissingData: the replay without a change differs too much from the recording.
    """
    job = engine.job_of(parts)
    times, error = engine.checked_replay(job)
    path, steps = in_steps(job, times)
    ranks = [one.rank for one in job.programs]
    stages: dict[int | None, int] = {
        rank: n for n, some in enumerate(changes.stages(job)) for rank in some
    }
    is_kernel = pl.col("kind") == KERNELS
    family = families_of(path.filter(is_kernel)["name"].drop_nulls().unique())
    around = path["annotation"].unique().drop_nulls()
    path = path.with_columns(
        rank=pl.Series(ranks, dtype=pl.Int64)[path["program"]],
        stage=pl.Series([stages.get(rank) for rank in ranks], dtype=pl.Int64)[path["program"]],
        family=pl.when(is_kernel).then(pl.col("name").replace(family)).otherwise("kind"),
        time_ns=pl.col("end") - pl.col("start"),
        name=_names(path),
        annotation=pl.col("annotation").replace(one_name_for_numbers(around.to_list())),
    )
    waits = engine.between_streams(job)
    return CriticalPath(
        classes=_summed(path, steps, "kind"),
        names=_summed(path, steps, "kind", "name"),
        ranks=_summed(path, steps, "rank"),
        families=_summed(path, steps, "family"),
        annotations=_summed(path, steps, "annotation"),
        stages=_summed(path if stages else path.clear(), steps, "stage"),
        path=_joined(path, job.begins[0]),
        steps=steps,
        step_ns=float(path["time_ns"].sum()) / steps,
        sampled=job.sampled,
        error_frac=error,
        edges=waits.len(),
        inferred=int(waits.sum()),
        hint=job.programs[0].hint,
    )


CRITICAL_PATH = Analyzer(
    "critical_path", Options, program.NEEDS, sample.measure, combine,
    more=program.more_with_graphs, of_one_job="only",
)  # fmt: skip


def in_steps(
    job: Job, times: Sequence[Times], weights: Sequence[Weights] | None = None
) -> tuple[pl.DataFrame, int]:
    """Return the longest path within the steps, see :func:`longest_path`; and their number."""
    bounds = engine.step_bounds(job, times)
    return _within(longest_path(job, times, weights), bounds), len(bounds)


def _within(path: pl.DataFrame, bounds: Sequence[tuple[float, float]]) -> pl.DataFrame:
    """Cut the path to the time of the steps, without parts that take no time."""
    first, last = min(begin for begin, _ in bounds), max(end for _, end in bounds)
    cut = path.with_columns(
        start=pl.col("start").clip(first, last), end=pl.col("end").clip(first, last)
    )
    return cut.filter(pl.col("end") > pl.col("start"))


def _names(path: pl.DataFrame) -> pl.Expr:
    """Return names with those of kernels shortened, and one name for all steps."""
    kernels = path.filter(pl.col("kind") == KERNELS)["name"].unique().drop_nulls()
    ranges = path.filter(pl.col("kind").is_in((CODE, LAUNCHES, LOADING)))["name"].unique()
    numbered = one_name_for_numbers(ranges.drop_nulls().to_list())
    return pl.col("name").replace(short_names(kernels) | numbered)


def _summed(path: pl.DataFrame, steps: int, *by: str) -> pl.DataFrame:
    """Return the mean time per step by class, name or rank, the most first; and its share."""
    whole = pl.lit(float(path["time_ns"].sum()))
    sums = path.group_by(by).agg(
        parts=pl.len().cast(pl.Int64), time_ns=pl.col("time_ns").sum() / steps
    )
    shares = sums.with_columns(time_frac=ratio("time_ns", whole / steps))
    return shares.sort("time_ns", *by, descending=[True, *(False for _ in by)], nulls_last=True)


def _joined(path: pl.DataFrame, begin: float) -> pl.DataFrame:
    """Join neighbours of one rank, class and name: at_ns from the start of the run, time_ns."""
    key = pl.struct("program", "kind", "name").rle_id()
    return (
        path.group_by(run=key, maintain_order=True)
        .agg(
            pl.col("rank", "kind", "name").first(),
            at_ns=pl.col("start").first() - begin,
            time_ns=pl.col("time_ns").sum(),
        )
        .drop("run")
    )


# --- the longest path ---


class Part(NamedTuple):
    """A part of the path, from start to end: of a rank, of a class, with the name of the work.

    The device is that of the work; None on the host. The annotation is around it or its call.
    """

    rank: int
    kind: str
    name: str | None
    start: float
    end: float
    device: int | None = None
    annotation: str | None = None


def longest_path(
    job: Job, times: Sequence[Times], weights: Sequence[Weights] | None = None
) -> pl.DataFrame:
    """Return the longest path, from the end of the last device work back to the start.

    Args:
        job: the programs of all ranks.
        times: of a replay.
        weights: the times of that replay, if they are not the recorded ones.

    Returns:
        program (number), kind (of :data:`CLASSES`), name (of the work or call), start, end in ns on
        the axis of the job, device (null on the host), annotation, in order; the parts follow each
        other without a gap.
    """
    walk = _Walk(job, times, weights or job.weights)
    parts = [part for window in range(len(job.begins)) for part in [*walk.back(window)][::-1]]
    schema = {"program": pl.Int64, "kind": pl.String, "name": pl.String, "start": pl.Float64,
              "end": pl.Float64, "device": pl.Int32, "annotation": pl.String}  # fmt: skip
    return pl.DataFrame(parts, schema=schema, orient="row")


class _Walk:
    """Goes from a node of the program to the one that it waited for."""

    def __init__(self, job: Job, times: Sequence[Times], weights: Sequence[Weights]) -> None:
        self.job, self.times, self.weights = job, times, weights
        self.names = [one.work["name"].cast(pl.String).to_list() for one in job.programs]
        self.kinds = [one.work["work_kind"].cast(pl.String).to_list() for one in job.programs]
        self.devices = [one.work["device"].to_list() for one in job.programs]
        self.calls = [one.work["call"].to_list() for one in job.programs]
        self.call_names, self.call_kinds = (
            [one.calls[column].cast(pl.String).to_list() for one in job.programs]
            for column in ("name", "kind")
        )
        self.ranges, self.around = (
            [getattr(one, table)[column].to_list() for one in job.programs]
            for table, column in (("calls", "range_before"), ("work", "range"))
        )
        self.code = [one.calls["code"].to_list() for one in job.programs]
        before = pl.int_range(pl.len(), dtype=pl.Int64).shift(1, fill_value=-1).over("thread")
        self.before = [one.calls.select(before).to_series().to_list() for one in job.programs]

    def back(self, window: int) -> Iterator[Part]:
        """Yield the parts of the path in a window, the last one first."""
        begin, at = self.job.begins[window], self._last(window)
        while at is not None:
            step = {
                "end of work": self._end_of_work,
                "start of work": self._start_of_work,
                "end of call": self._end_of_call,
                "start of call": self._start_of_call,
            }[at[0]]
            parts, following = step(at[1], at[2])
            annotation = self._annotation(*at)
            for part in parts:
                yield part._replace(start=max(part.start, begin), annotation=annotation)
                if part.start <= begin:
                    return
            if following is None and parts:
                yield Part(at[1], BEFORE, None, begin, parts[-1].start)
            at = following

    def _last(self, window: int) -> tuple[str, int, int] | None:
        """Return rank and row of the work that ends last in a window, None without work."""
        ends = []
        for number, (times, windows) in enumerate(zip(self.times, self.job.windows, strict=True)):
            *_, first, last = windows[window]
            of_rank = times.end[first:last]
            last_end = of_rank.max(initial=-np.inf)
            ends += [(last_end, number, first + row) for row in np.flatnonzero(of_rank == last_end)]
        _, rank, row = max(ends, default=(0.0, 0, None))
        return None if row is None else ("end of work", rank, int(row))

    def _end_of_work(self, rank: int, row: int) -> _Step:
        times = self.times[rank]
        end, name, device = times.end[row], self.names[rank][row], self.devices[rank][row]
        if times.late[row] >= 0:
            part = Part(rank, TRANSFERS, name, end, end, device)
            return self._after_last(part, times.late[row])
        compute = OPERATORS if self.job.programs[rank].on_host else KERNELS
        kind = {MEMORY: COPIES, COMMUNICATION: TRANSFERS}.get(self.kinds[rank][row], compute)
        return [Part(rank, kind, name, times.start[row], end, device)], ("start of work", rank, row)

    def _after_last(self, part: Part, member: int) -> _Step:
        """Go on with the rank that arrived last at a collective, which begins there."""
        other, row = self.job.member(member)
        if row >= 0:
            start = self.times[other].start[row]
            return [part._replace(start=start)], ("start of work", other, row)
        start = self.times[other].calls[-1 - row]
        return [part._replace(start=start)], ("start of call", other, -1 - row)

    def _start_of_work(self, rank: int, row: int) -> _Step:
        times = self.times[rank]
        start, bound, name = times.start[row], times.bound[row], self.names[rank][row]
        device = self.devices[rank][row]
        if bound >= 0:
            part = Part(rank, GAPS, name, times.end[bound], start, device)
            return [part], ("end of work", rank, bound)
        if bound == -1:
            call = self.calls[rank][row]
            part = Part(rank, LAUNCHES, name, times.calls[call], start)
            return [part], ("start of call", rank, call)
        return [Part(rank, GAPS, name, start, start, device)], None

    def _end_of_call(self, rank: int, call: int) -> _Step:
        times = self.times[rank]
        done, row = times.done[call], times.blocked[call]
        name = self._call_name(rank, call)
        if row >= 0:
            part = Part(rank, SYNCHRONISATION, name, times.end[row], done)
            return [part], ("end of work", rank, row)
        if times.met[call] >= 0:
            return self._after_last(Part(rank, TRANSFERS, name, done, done), times.met[call])
        kind = _OF_CALLS.get(self.call_kinds[rank][call] or "", LAUNCHES)
        return [Part(rank, kind, name, times.calls[call], done)], ("start of call", rank, call)

    def _start_of_call(self, rank: int, call: int) -> _Step:
        times, weights = self.times[rank], self.weights[rank]
        start, before = times.calls[call], self.before[rank][call]
        names = self._before_names(rank, call)
        last = names[-1][0]
        if before < 0 or np.isnan(times.done[before]):
            return [Part(rank, CODE, last, start, start)], None
        parts, until = [], start
        whole = start - times.done[before]
        host = weights.code[call], weights.launch[call], weights.loader[call]
        scale = whole / sum(host) if sum(host) else 0.0
        spent = [(CODE, name, host[0] * share) for name, share in names[::-1]]
        for kind, name, time in [*spent, (LAUNCHES, last, host[1]), (LOADING, last, host[2])]:
            if time:
                parts.append(Part(rank, kind, name, until - time * scale, until))
                until -= time * scale
        if parts:
            parts[-1] = parts[-1]._replace(start=times.done[before])
        return parts, ("end of call", rank, before)

    def _before_names(self, rank: int, call: int) -> list[tuple[str, float]]:
        """Return the code or annotation in which the time before a call is, or the call; shares."""
        name = self._annotation("start of call", rank, call)
        name = f"before {self._call_name(rank, call)}" if name is None else name
        parts = self.code[rank][call] or [{"name": name, "frac": 1.0}]
        return [(part["name"] or name, part["frac"]) for part in parts]

    def _annotation(self, what: str, rank: int, row: int) -> str | None:
        number = (self.ranges if what.endswith("call") else self.around)[rank][row]
        return None if number is None else self.job.programs[rank].ranges[number]

    def _call_name(self, rank: int, call: int) -> str | None:
        name: str | None = self.call_names[rank][call]
        return name


_Step = tuple[list[Part], "tuple[str, int, int] | None"]


def critical_path(inputs: Inputs, **reading: Unpack[Reading]) -> CriticalPath:
    """Return what lies on the longest path of the run, as shares of the step time.

    The path goes back from the end of the last device work: to the work, launch call, host code or
    rank that each part waited for. The shares add up to the step time. Only what is on the path
    makes a step shorter if it becomes shorter; how much shorter, ``what_if`` tells.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work, or too few of its launch calls, were recorded; or the replay of
            the unchanged run differs from the recording by more than 10 %.
    """
    return run(CRITICAL_PATH, inputs, Options(), **reading)
