"""From one rank's trace: the parts of its devices' time; by step, by stream, over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import polars as pl

from traceanalyzer.analyzers.device_work import (
    COMMUNICATION,
    COMPUTE,
    DEVICE,
    MEMORY,
    device_work,
    extent,
)
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.overlap.timeline import stretches
from traceanalyzer.analyzers.parts import measure_parts
from traceanalyzer.analyzers.step_marks import MARK_NAMES, step_marks
from traceanalyzer.analyzers.step_parts import per_device
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.frames.crowding import crowded
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK

#: Device work, and the annotations that mark steps.
NEEDS = Needs(
    frozenset((*DEVICE_WORK, "user_annotation", "nvtx")),
    MARK_NAMES,
    unused=("correlation", "external_id", "bytes"),
)

STREAM = (*DEVICE, "stream")
SORTS = (COMPUTE, COMMUNICATION, MEMORY)

_NO_WORK = (
    "{path}: no device work was recorded, so nothing can overlap; {hint}. Of runs without a GPU "
    "comm-outliers compares the collectives and gpu-idle looks at the training thread"
)


@dataclass(frozen=True)
class Part:
    """One rank's device time.

    All frames have rank, device, start and end, and but for ``streams`` the columns of
    :func:`~traceanalyzer.analyzers.parts.measure_parts`.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        epoch_ns: absolute time of the trace's ts 0, or None.
        devices: a row a device, from its first start to its last end.
        steps: a row a step and device.
        streams: a row a stream: stream, events, busy_ns, compute_ns, communication_ns, memory_ns
            (of this stream alone), alone_ns (no other stream of the device running).
        stretches: a row a device and stretch of time, see :func:`~.timeline.stretches`.
        unfinished: pieces of work without an end, which are not counted.
        step_hint: how steps are marked for the profiler that wrote the file.
    """

    rank: int | None
    path: str
    epoch_ns: int | None
    devices: pl.DataFrame
    steps: pl.DataFrame
    streams: pl.DataFrame
    stretches: pl.DataFrame
    unfinished: int
    step_hint: str = ""


def extract(trace: Trace, patterns: Sequence[str] = ()) -> Part:
    """The device time of a trace of one rank.

    Raises:
        MissingData: the trace holds no device work.
        OptionError: a pattern is not a regular expression.
    """
    work = device_work(trace, patterns)
    if work.is_empty():
        hint = record_hint(trace.meta, "device work")
        raise MissingData(_NO_WORK.format(path=trace.meta.path, hint=hint))
    span = extent(work)
    recorded = trace.events.filter(pl.col("kind").is_in(DEVICE_WORK)).height
    devices, steps, over_time = _measured(
        work,
        span,
        per_device(step_marks(trace), work),
        stretches(span, trace.meta.epoch_ns),
    )
    return Part(
        rank=trace.meta.rank,
        path=trace.meta.path,
        epoch_ns=trace.meta.epoch_ns,
        devices=devices.drop("step"),
        steps=steps,
        streams=_streams(work),
        stretches=over_time.drop("step"),
        unfinished=recorded - work.height,
        step_hint=record_hint(trace.meta, "step"),
    )


def _measured(work: pl.DataFrame, *windows: pl.DataFrame) -> list[pl.DataFrame]:
    """The parts of each frame's windows, all looked for at once."""
    joined = measure_parts(work, pl.concat(windows, how="diagonal"))
    ends = accumulate(frame.height for frame in windows)
    return [
        joined.slice(end - frame.height, frame.height)
        for frame, end in zip(windows, ends, strict=True)
    ]


def _streams(work: pl.DataFrame) -> pl.DataFrame:
    """How long each stream was busy, with what, and how long it alone was."""
    runs = intervals.union(work, (*STREAM, "sort"))
    busy = intervals.union(runs, STREAM)
    crowd = intervals.overlap_with(busy, crowded(busy, DEVICE), DEVICE)
    length = pl.col("end") - pl.col("start")
    by_sort = {f"{sort}_ns": length.filter(pl.col("sort") == sort).sum() for sort in SORTS}
    streams = work.group_by(STREAM).agg(
        pl.len().cast(pl.Int64).alias("events"), pl.col("start").min(), pl.col("end").max()
    )
    for frame in (
        crowd.group_by(STREAM).agg(
            busy_ns=length.sum(), alone_ns=(length - pl.col("overlap")).sum()
        ),
        runs.group_by(STREAM).agg(**by_sort),
    ):
        streams = streams.join(frame, on=STREAM, how="left", nulls_equal=True)
    return streams.with_columns(pl.col("^.*_ns$").fill_null(0)).sort(STREAM)
