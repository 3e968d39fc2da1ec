"""The critical path: what the run waited for at each moment.

The programs of all ranks (:mod:`~traceanalyzer.analyzers.replay`) are replayed, and the longest
path is followed back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.common.kernel_names import short_names
from traceanalyzer.analyzers.common.names import one_name_for_steps
from traceanalyzer.analyzers.replay import engine, program
from traceanalyzer.analyzers.replay.path import KERNELS, longest_path
from traceanalyzer.analyzers.replay.program import Program
from traceanalyzer.analyzers.what_if import PathOptions as Options
from traceanalyzer.analyzers.what_if.compute import inferred_waits
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs
from traceanalyzer.units import format_frac, format_ns

_CLASSES = headings("kind: waiting for, parts, time_ns: time, time_frac: of step")
_NAMES = headings("kind: waiting for, name, parts, time_ns: time, time_frac: of step")
_RANKS = headings("rank, parts, time_ns: time, time_frac: of step")
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
        ranks: the same by rank.
        path: the path in order of time: ``rank``, ``kind``, ``name``, ``at_ns`` (from the begin of
            the run), ``time_ns``.
        steps: number of steps.
        step_ns: mean step time, the sum of ``time_ns`` of each table.
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
    path: pl.DataFrame
    steps: int
    step_ns: float
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
    yield from inferred_waits(result.inferred, result.edges, result.hint)


def _tables(result: CriticalPath) -> Iterator[Table]:
    yield Table("classes", "Longest path, mean per step", result.classes, _CLASSES)
    yield Table("names", "Kernels and calls on the path", result.names, _NAMES)
    if result.ranks.height > 1:
        yield Table("ranks", "Ranks on the path", result.ranks, _RANKS)
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
    bounds = engine.step_bounds(job, times)
    path = _within(longest_path(job, times), bounds)
    ranks = pl.Series([one.rank for one in job.programs], dtype=pl.Int64)
    path = path.with_columns(
        rank=ranks[path["program"]], time_ns=pl.col("end") - pl.col("start"), name=_names(path)
    )
    steps = len(bounds)
    waits = engine.between_streams(job)
    return CriticalPath(
        classes=_summed(path, steps, "kind"),
        names=_summed(path, steps, "kind", "name"),
        ranks=_summed(path, steps, "rank"),
        path=_joined(path, job.begins[0]),
        steps=steps,
        step_ns=float(path["time_ns"].sum()) / steps,
        error_frac=error,
        edges=waits.len(),
        inferred=int(waits.sum()),
        hint=job.programs[0].hint,
    )


CRITICAL_PATH = Analyzer(
    "critical_path", Options, program.NEEDS, program.measure, combine,
    more=program.more_with_graphs, of_one_job="only",
)  # fmt: skip


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
    steps = one_name_for_steps(path["name"].unique().drop_nulls().to_list())
    return pl.col("name").replace(short_names(kernels) | steps)


def _summed(path: pl.DataFrame, steps: int, *by: str) -> pl.DataFrame:
    """Return the mean time per step by class, name or rank, the most first; and its share."""
    whole = pl.lit(float(path["time_ns"].sum()))
    sums = path.group_by(by).agg(
        parts=pl.len().cast(pl.Int64), time_ns=pl.col("time_ns").sum() / steps
    )
    shares = sums.with_columns(time_frac=ratio("time_ns", whole / steps))
    return shares.sort("time_ns", *by, descending=[True, *(False for _ in by)], nulls_last=True)


def _joined(path: pl.DataFrame, begin: float) -> pl.DataFrame:
    """Join neighbours of one rank, class and name: at_ns from the begin of the run, time_ns."""
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
