"""The longest path of a run, within its steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.kernel_names import short_names
from traceanalyzer.analyzers.critical_path.result import CriticalPath
from traceanalyzer.analyzers.replay import engine, program
from traceanalyzer.analyzers.replay.path import KERNELS, longest_path
from traceanalyzer.analyzers.replay.program import Program
from traceanalyzer.analyzers.what_if import PathOptions as Options
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs


def combine(
    parts: Sequence[Program], _options: Options, _base: Sequence[Program] = ()
) -> CriticalPath:
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
    "critical_path", Options, program.needs, program.measure, combine, more=program.more_with_graphs
)


def _within(path: pl.DataFrame, bounds: Sequence[tuple[float, float]]) -> pl.DataFrame:
    """Cut the path to the time of the steps, without parts that take no time."""
    first, last = min(begin for begin, _ in bounds), max(end for _, end in bounds)
    cut = path.with_columns(
        start=pl.col("start").clip(first, last), end=pl.col("end").clip(first, last)
    )
    return cut.filter(pl.col("end") > pl.col("start"))


def _names(path: pl.DataFrame) -> pl.Expr:
    """Return names with those of kernels shortened."""
    kernels = path.filter(pl.col("kind") == KERNELS)["name"].unique().drop_nulls()
    return pl.col("name").replace(short_names(kernels))


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
