"""From one rank's trace: when each device was idle, and why."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import polars as pl

from traceanalyzer.analyzers.device_work import COMMUNICATION, COMPUTE
from traceanalyzer.analyzers.gpu_idle import causes, filling, host
from traceanalyzer.analyzers.gpu_idle.causes import CAUSES
from traceanalyzer.analyzers.gpu_idle.ground import Ground, lay
from traceanalyzer.analyzers.gpu_idle.part import MEASURES, Part
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace

_UNIT = ["unit"]


def extract(
    trace: Trace,
    *,
    min_gap_ns: int = 10_000,
    dataloader: Sequence[str] = (),
    patterns: Sequence[str] = (),
    by_process: bool = False,
    libraries: Sequence[str] = (),
    step_name: str | None = None,
) -> Part:
    """One rank's idleness by cause.

    Args:
        trace: one rank, read with :data:`~.needs.NEEDS`.
        min_gap_ns: shorter gaps, after the profiler's own overhead is taken out, are the cause
            ``short_gap``, whatever the host did.
        dataloader: regular expressions of further slices that are dataloading.
        patterns: regular expressions of further kernels that are communication.
        by_process: a device is judged for each process that uses it.
        libraries: whose Python frames are told of gaps; none: the user's own code's.
        step_name: a regular expression of the slices that are steps.

    Raises:
        MissingData: neither device work nor operators were recorded.
        OptionError: a pattern is not a regular expression.
    """
    ground = lay(trace, patterns=patterns, by_process=by_process, step_name=step_name)
    return measure(ground, min_gap_ns=min_gap_ns, dataloader=dataloader, libraries=libraries)


def measure(
    ground: Ground,
    *,
    min_gap_ns: int = 10_000,
    dataloader: Sequence[str] = (),
    libraries: Sequence[str] = (),
) -> Part:
    """The idleness of what was taken of a rank's trace; arguments as for :func:`extract`."""
    loader, copies = host.loading(ground, dataloader), host.copying(ground)
    busy = _busy(ground, loader)
    units = _spans(ground)
    profiler = intervals.subtract(ground.overhead, busy, _UNIT)
    idle = intervals.gaps(pl.concat([busy, profiler]), _UNIT, units)
    short = pl.col("end") - pl.col("start") < min_gap_ns
    gaps = idle.filter(~short)
    # most slices run while the device is busy: only the others can tell why it is not
    near = replace(ground, slices=ground.slices.filter(intervals.meets(ground.slices, gaps)))
    why = [loader, copies, *_other_causes(near, gaps), host.extents(ground)]
    pieces = [busy, profiler, idle.filter(short), *_divided(gaps, why)]
    with ThreadPoolExecutor(1) as pool:  # what fills the longest needs nothing of how much it is
        filled = pool.submit(filling.longest, ground, gaps, pieces, libraries)
        hidden = intervals.intersect(loader, busy, _UNIT)
        windows = [*pieces, loader, copies, hidden, _exposed(ground)]
        marked = ground.steps.select("step", "start", "end").join(units.select("unit"), how="cross")
        measured = _measured(pl.concat([units, marked], how="diagonal"), windows)
        by_cause = _by_cause(pieces)
    return Part(
        rank=ground.rank,
        path=ground.path,
        on_host=ground.on_host,
        work_lost=ground.work_lost,
        host_known=ground.slices.height > 0,
        launches_known=ground.launched.height > 0,
        units=measured.head(units.height).drop("step"),
        causes=by_cause,
        steps=measured.tail(marked.height).drop("device", "pid"),
        gaps=filled.result(),
        gap_count=gaps.height,
        hints=ground.hints,
    )


# --- when it is ------------------------------------------------------------------------------


def _busy(ground: Ground, loader: pl.DataFrame) -> pl.DataFrame:
    """When each unit's work runs; when a training thread is in operators, not loading or saving."""
    if not ground.on_host:
        return intervals.union(ground.work, _UNIT)
    waiting = pl.concat([loader, host.saving(ground)])
    return intervals.subtract(host.running(ground), waiting, _UNIT)


def _spans(ground: Ground) -> pl.DataFrame:
    """The units with start and end: from their first work to their last, and the marked steps."""
    active = host.extents(ground) if ground.on_host else ground.work.select("unit", "start", "end")
    marked = ground.steps.select("start", "end").join(ground.units.select("unit"), how="cross")
    spans = pl.concat([active, marked.select("unit", "start", "end")])
    ends = spans.group_by("unit").agg(pl.col("start").min(), pl.col("end").max())
    return ground.units.join(ends, on="unit", maintain_order="left")


# --- why it is -------------------------------------------------------------------------------


def _other_causes(ground: Ground, gaps: pl.DataFrame) -> list[pl.DataFrame]:
    """When each cause between those of the input and other host code applies, in their order."""
    return [
        host.calls(ground, causes.SYNCHRONISING),
        host.calls(ground, causes.MANAGING_MEMORY),
        host.saving(ground),
        host.pending(ground),
        host.launching(ground, gaps),
    ]


def _divided(gaps: pl.DataFrame, why: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """The gaps in pieces, by the first cause that applies; the last of the list: by none."""
    pieces = intervals.first_running(why, gaps, _UNIT)
    first = pl.col("first").fill_null(len(why))
    return [pieces.filter(first == place).drop("first") for place in range(len(why) + 1)]


# --- how much --------------------------------------------------------------------------------


def _exposed(ground: Ground) -> pl.DataFrame:
    """When communication runs without compute."""
    communication, compute = (
        ground.work.filter(pl.col("sort") == sort) for sort in (COMMUNICATION, COMPUTE)
    )
    return intervals.subtract(communication, compute, _UNIT)


def _by_cause(pieces: Sequence[pl.DataFrame]) -> pl.DataFrame:
    length = pl.col("end") - pl.col("start")
    summed = [
        idle.group_by("unit")
        .agg(
            pl.len().cast(pl.Int64).alias("gaps"),
            length.sum().alias("idle_ns"),
            length.max().alias("longest_ns"),
        )
        .select("unit", pl.lit(cause).alias("cause"), "gaps", "idle_ns", "longest_ns")
        for cause, idle in zip(CAUSES, pieces[1:], strict=True)
    ]
    return pl.concat(summed)


def _measured(rows: pl.DataFrame, windows: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows with :data:`~.part.MEASURES`: how much of each is which."""
    keys = rows.select("unit", "start", "end")
    times = {
        name: intervals.overlap_with(keys, frame, _UNIT)["overlap"]
        for name, frame in zip(MEASURES, windows, strict=True)
    }
    return rows.with_columns(**times)
