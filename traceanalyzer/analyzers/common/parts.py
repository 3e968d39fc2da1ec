"""What a device's time is made of: compute, exposed communication, exposed memory work, idle.

The four parts are disjoint and add up to the time looked at, exactly. Compute comes first, then
communication, then copies and sets: time in which compute and communication run together is
compute, and the communication in it is hidden. All streams of a device count together.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.common.device_work import (
    COMMUNICATION,
    COMPUTE,
    DEVICE,
    MEMORY,
    extent,
)
from traceanalyzer.frames import intervals

EXPOSED_COMMUNICATION = "exposed_communication"
EXPOSED_MEMORY = "exposed_memory"
IDLE = "idle"

#: The parts of a device's time, in the order in which they are looked for.
PARTS = (COMPUTE, EXPOSED_COMMUNICATION, EXPOSED_MEMORY, IDLE)
PART = pl.Enum(PARTS)


def part_intervals(
    work: pl.DataFrame, windows: pl.DataFrame | None = None, by: Sequence[str] = DEVICE
) -> pl.DataFrame:
    """When was each device in which part of its time?

    Args:
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`, in any order.
        windows: ``by``, ``start``, ``end``; the time to look at is their union. Default: each
            device's first start to its last end.
        by: the columns that tell devices apart.

    Returns:
        ``by``, start, end, part (one of :data:`PARTS`), sorted by device and start: intervals that
        are disjoint and cover the windows. Neighbours differ in their part.
    """
    sorts = [_of(work, sort, by) for sort in (COMPUTE, COMMUNICATION, MEMORY)]
    found = intervals.first_running(sorts, extent(work, by) if windows is None else windows, by)
    part = pl.col("first").fill_null(PARTS.index(IDLE)).replace_strict(dict(enumerate(PARTS)))
    return found.select(*by, "start", "end", part=part.cast(PART))


def measure_parts(
    work: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str] = DEVICE
) -> pl.DataFrame:
    """How much of each window is which part of its device's time?

    Args:
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`, in any order.
        windows: ``by``, ``start``, ``end`` and any other columns. Windows may overlap one another;
            each is measured for itself.
        by: the columns that tell devices apart.

    Returns:
        ``windows`` with, in ns: the parts compute_ns, exposed_communication_ns, exposed_memory_ns
        and idle_ns, which add up to end - start; busy_ns, which is the window without idle;
        communication_ns and hidden_communication_ns (communication while compute runs);
        memory_ns and hidden_memory_ns (copies and sets while compute or communication runs).
        Exposed and hidden add up to the whole. Null where a window has no start or end.
    """
    sorts = [intervals.union(_of(work, sort, by), by) for sort in (COMPUTE, COMMUNICATION, MEMORY)]
    kernels = intervals.union(pl.concat(sorts[:2]), by)
    busy = pl.concat([kernels, sorts[2]])
    keys = windows.select(*by, "start", "end")

    def within(rows: pl.DataFrame) -> pl.Series:
        return intervals.overlap_with(keys, rows, by)["overlap"]

    compute, communication, memory = map(within, sorts)
    either, any_work = within(kernels), within(busy)
    exposed_communication, exposed_memory = either - compute, any_work - either
    return windows.with_columns(
        compute_ns=compute,
        exposed_communication_ns=exposed_communication,
        exposed_memory_ns=exposed_memory,
        idle_ns=keys["end"] - keys["start"] - any_work,
        busy_ns=any_work,
        communication_ns=communication,
        hidden_communication_ns=communication - exposed_communication,
        memory_ns=memory,
        hidden_memory_ns=memory - exposed_memory,
    )


def step_parts(work: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """The parts of every device's time in every step, as the host marks it.

    Device work counts for the step in whose window it *runs*. A device lags behind its host, so
    work may run in the step after the one that launched it.

    Args:
        work: :func:`~traceanalyzer.analyzers.common.device_work.device_work` of one rank.
        marks: :func:`~traceanalyzer.analyzers.common.step_marks.step_marks` of that rank.

    Returns:
        The rows of :func:`per_device` with the columns of
        :func:`~traceanalyzer.analyzers.common.parts.measure_parts`.
    """
    return measure_parts(work, per_device(marks, work))


def per_device(marks: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Every step of one rank on every device of its work.

    Returns:
        rank, device, step, start, end, by start and device.
    """
    devices = work.select(DEVICE).unique().sort(DEVICE)
    windows = marks.select("step", "start", "end").join(devices, how="cross")
    return windows.sort("start", *DEVICE).select(*DEVICE, "step", "start", "end")


def _of(work: pl.DataFrame, sort: str, by: Sequence[str]) -> pl.DataFrame:
    return work.lazy().filter(pl.col("sort") == sort).select(*by, "start", "end").collect()
