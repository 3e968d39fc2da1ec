"""What else the device did: beside each collective, and over the whole recording."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import polars as pl

from traceanalyzer.analyzers.device_work import extent
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK


class Activity(TypedDict):
    """How long a rank's device did what, in ns; see :class:`~.part.Part`."""

    span_ns: int
    busy_ns: int | None
    comm_ns: int
    overlap_ns: int | None


def device_work(trace: Trace) -> pl.DataFrame:
    """All device work as intervals: ``event``, device, kind, name, ``start``, ``end``.

    What has no end has no ``end`` here.
    """
    end = pl.when(pl.col("dur") >= 0).then(pl.col("ts") + pl.col("dur"))
    return (
        trace.events.select("device", "kind", "name", start="ts", end=end)
        .with_row_index("event")
        .filter(pl.col("kind").is_in(DEVICE_WORK))
    )


def compute_kernels(work: pl.DataFrame, communication: pl.DataFrame) -> pl.DataFrame:
    """The kernels of :func:`device_work` that are not communication, and have an end."""
    kernels = work.filter(pl.col("kind") == "kernel", pl.col("end").is_not_null())
    return kernels.join(communication, on="event", how="anti")


def activity(
    trace: Trace, work: pl.DataFrame, communication: pl.DataFrame, compute: pl.DataFrame
) -> Activity:
    """Span, busy time, communication and its overlap with compute: sums over the devices.

    Where communication is the host's, the rank's devices count as one, and the span takes in the
    communication too. Without device work the span is that of all events, and nothing is busy or
    overlaps.

    busy is the union of all device work over all streams, so idle = span - busy; overlap is the
    union of communication intersected with the union of compute kernels. Copies and memsets are
    neither.
    """
    if communication.height and _of_host(communication):
        one = pl.lit(0, pl.Int32).alias("device")
        communication, work, compute = (f.with_columns(one) for f in (communication, work, compute))
    comm = intervals.union(communication, ["device"])
    work = work.drop_nulls("end")
    if work.is_empty():
        closed = trace.events.filter(pl.col("dur") >= 0)
        first, last = closed["ts"].min(), (closed["ts"] + closed["dur"]).max()
        span = last - first if isinstance(first, int) and isinstance(last, int) else 0
        return Activity(span_ns=span, busy_ns=None, comm_ns=_length(comm), overlap_ns=None)
    spans = extent(pl.concat([work.select(comm.columns), comm]), ["device"])
    return Activity(
        span_ns=_length(spans),
        busy_ns=_length(intervals.union(work, ["device"])),
        comm_ns=_length(comm),
        overlap_ns=int(intervals.overlap_with(comm, compute, ["device"])["overlap"].sum()),
    )


def _of_host(communication: pl.DataFrame) -> bool:
    return communication["device"].null_count() == communication.height


def _length(rows: pl.DataFrame) -> int:
    return int((rows["end"] - rows["start"]).sum())


def add(communication: pl.DataFrame, work: pl.DataFrame, compute: pl.DataFrame) -> pl.DataFrame:
    """Adds what ran on the same device meanwhile: ``compute_ns``, ``memory_ns``, ``beside``.

    The times are unions; ``beside`` is the kernel, copy or set, by name, with the largest sum of
    overlaps (ties by name). All null where the communication is the host's.
    """
    if _of_host(communication):
        blank = {"compute_ns": pl.Int64, "memory_ns": pl.Int64, "beside": pl.String}
        return communication.with_columns(pl.lit(None, t).alias(n) for n, t in blank.items())
    memory = work.filter(pl.col("kind") != "kernel", pl.col("end").is_not_null())
    found = communication
    for name, windows in (("compute_ns", compute), ("memory_ns", memory)):
        found = intervals.overlap_with(found, windows, ["device"]).rename({"overlap": name})
    busiest = _busiest(communication, pl.concat([compute, memory]))
    return found.join(busiest, on="event", how="left", maintain_order="left")


def _busiest(communication: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """``event`` and ``beside``: the name that shares most time with each collective."""
    comm = communication.select("event", "device", "start", "end")
    found = [
        _shared(mine, others.filter(pl.col("device") == mine["device"][0]))
        for mine in comm.drop_nulls("device").partition_by("device", maintain_order=True)
    ]
    none = pl.DataFrame(schema={"event": pl.UInt32, "beside": pl.String, "shared": pl.Int64})
    return (
        pl.concat([none, *found])
        .group_by("event", "beside")
        .agg(pl.col("shared").sum())
        .sort("shared", "beside", descending=[True, False])
        .unique("event", keep="first", maintain_order=True)
        .select("event", "beside")
    )


def _shared(comm: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """``event``, ``beside``, ``shared``: every pair that overlaps on one device, and for how long.

    With the collectives in order of start, those that overlap another interval are a run of rows
    between the first whose predecessors have not all ended and the last that has started.
    """
    comm = comm.sort("start", "end")
    start, end = comm["start"].to_numpy(), comm["end"].to_numpy()
    other_start, other_end = others["start"].to_numpy(), others["end"].to_numpy()
    first = np.searchsorted(np.maximum.accumulate(end), other_start, side="right")
    count = np.maximum(np.searchsorted(start, other_end, side="left") - first, 0)
    other = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    mine = np.arange(len(other)) - before[other] + first[other]
    shared = np.minimum(end[mine], other_end[other]) - np.maximum(start[mine], other_start[other])
    return pl.DataFrame(
        {
            "event": comm["event"].gather(mine),
            "beside": others["name"].gather(other).cast(pl.String),
            "shared": shared,
        }
    ).filter(pl.col("shared") > 0)
