"""Device work by kind, and the breakdown of device time.

The parts of device time are compute, exposed communication, exposed memory work and idle. They are
disjoint and sum to the measured time exactly. Compute comes first, then communication, then copies
and memsets: time with both compute and communication is compute, and that communication is
overlapped. All streams of a device count together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.columns import grouped
from traceanalyzer.analyzers.common.names import matching, named
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.vocabulary import COMMUNICATION_PATTERN, DEVICE_WORK, ONLY_COMMUNICATION

COMPUTE = "compute"
COMMUNICATION = "communication"
MEMORY = "memory"

#: Kind of device work: communication, copy or memset, or any other kernel.
WORK_KIND = pl.Enum((COMPUTE, COMMUNICATION, MEMORY))

#: Columns that identify a device: device numbers are local to a rank.
DEVICE = ("rank", "device")

EXPOSED_COMMUNICATION = "exposed_communication"
EXPOSED_MEMORY = "exposed_memory"
IDLE = "idle"

#: The parts of device time, in order of priority.
PARTS = (COMPUTE, EXPOSED_COMMUNICATION, EXPOSED_MEMORY, IDLE)

#: Column of the time of each part, and its name.
PART_NAMES = {f"{part}_ns": part.replace("memory", "copies").replace("_", " ") for part in PARTS}


def require_all_work(trace: Trace) -> None:
    """Check that the profiler records all device work, so that other time is idle time.

    Raises:
        MissingData: it records communication only.
    """
    if trace.meta.format in ONLY_COMMUNICATION:
        path = trace.meta.path
        raise MissingData(
            f"{path}: only communication was recorded, no other kernels; "
            f"traceanalyzer comm-outliers {path} compares the ranks"
        )


def device_work(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """Return all completed device work, classified as compute, communication or memory.

    Communication is work whose name matches :data:`~traceanalyzer.vocabulary.COMMUNICATION_PATTERN`
    or one of ``patterns``, and kernels with a collective in their arguments; memory is copies and
    memsets; compute is the rest. ``gpu_user_annotation`` and ``cuda_sync`` are not work.

    Returns:
        One row per kernel, copy or memset in order of start: event (row of ``events``), rank, pid,
        device, stream, kind, name, correlation, external_id, bytes, start, end, work_kind.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    return trace.once(("device_work", tuple(patterns)), lambda: _device_work(trace, patterns))


#: Names of migrations of managed memory: nothing launches them.
MIGRATIONS = r"^Memcpy UVM "


def launched_work(trace: Trace) -> pl.DataFrame:
    """Return :func:`device_work` without migrations of managed memory, which nothing launches."""
    work = device_work(trace)
    return work.filter(~named(work, [MIGRATIONS])) if matching(trace.names, [MIGRATIONS]) else work


def work_rows(trace: Trace) -> pl.Series:
    """Return the rows of ``events`` that are device work with an end."""
    is_work = of_kinds(DEVICE_WORK) & (pl.col("dur") >= 0)
    return trace.once(
        "work_rows", lambda: trace.events.select(event=is_work.arg_true()).to_series()
    )


def _device_work(trace: Trace, patterns: Sequence[str]) -> pl.DataFrame:
    columns = ["rank", "pid", "device", "stream", "kind", "name", "correlation", "external_id",
               "bytes"]  # fmt: skip
    event, rows = work_rows(trace), trace.events[[*columns, "ts", "dur"]]
    if event.len() < rows.height:  # otherwise nothing else was read: no copy is needed
        rows = rows[event]
    work = rows.select(event, *columns, start="ts", end=pl.col("ts") + pl.col("dur"))
    is_collective = pl.lit(value=False)
    if trace.collectives.height:
        is_collective = pl.col("event").is_in(trace.collectives["event"].implode())
    work_kind = (
        pl.when(named(work, [COMMUNICATION_PATTERN, *patterns]) | is_collective)
        .then(pl.lit(COMMUNICATION, dtype=WORK_KIND))
        .when(pl.col("kind") == "kernel")
        .then(pl.lit(COMPUTE, dtype=WORK_KIND))
        .otherwise(pl.lit(MEMORY, dtype=WORK_KIND))
    )
    return work.with_columns(work_kind=work_kind)


def extent(work: pl.DataFrame, by: Sequence[str] = DEVICE) -> pl.DataFrame:
    """Return first start and last end of the work of each device: ``by``, ``start``, ``end``."""
    return grouped(work, by, start=pl.col("start").min(), end=pl.col("end").max()).sort(by)


# --- time breakdown ------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Intervals in which each kind of work runs on each device, for :func:`measure_parts`."""

    by_kind: Sequence[pl.DataFrame]
    kernels: pl.DataFrame
    all_work: pl.DataFrame


def runs(trace: Trace, patterns: Sequence[str] = ()) -> Runs:
    """Return the unions of intervals of a trace's device work; see :func:`device_work`."""
    key = ("device_runs", tuple(patterns))
    return trace.once(key, lambda: runs_of(device_work(trace, patterns)))


def runs_of(work: pl.DataFrame) -> Runs:
    """Return the unions of intervals of device work; rows of :func:`device_work` in any order."""
    times = work[[*DEVICE, "start", "end", "work_kind"]]
    by_kind = [
        intervals.union(times.filter(pl.col("work_kind") == kind), DEVICE)
        for kind in (COMPUTE, COMMUNICATION, MEMORY)
    ]
    # the work itself is in order, their union is not
    kernels, communication, copies = by_kind
    if communication.height:
        kernels = intervals.union(times.filter(pl.col("work_kind") != MEMORY), DEVICE)
    return Runs(by_kind, kernels, intervals.union(times, DEVICE) if copies.height else kernels)


def measure_parts(work: pl.DataFrame | Runs, windows: pl.DataFrame) -> pl.DataFrame:
    """Measure the parts of device time in each window.

    Args:
        work: rows of :func:`device_work`, in any order, or the result of :func:`runs`.
        windows: :data:`DEVICE`, ``start``, ``end`` and any other columns. Windows may overlap; each
            is measured separately.

    Returns:
        ``windows`` with, in ns: the parts compute_ns, exposed_communication_ns, exposed_memory_ns
        and idle_ns, which sum to end - start; busy_ns (the window without idle); communication_ns
        and overlapped_communication_ns (communication overlapped with compute); memory_ns and
        overlapped_memory_ns (copies and memsets overlapped with compute or communication).
        Exposed and overlapped sum to the total. Null if a window has no start or end.
    """
    runs = work if isinstance(work, Runs) else runs_of(work)
    keys = windows[[*DEVICE, "start", "end"]]
    measured = intervals.overlaps(keys, [*runs.by_kind, runs.kernels, runs.all_work], DEVICE)
    compute, communication, memory, either, any_work = measured
    exposed_communication, exposed_memory = either - compute, any_work - either
    return windows.with_columns(
        compute_ns=compute,
        exposed_communication_ns=exposed_communication,
        exposed_memory_ns=exposed_memory,
        idle_ns=keys["end"] - keys["start"] - any_work,
        busy_ns=any_work,
        communication_ns=communication,
        overlapped_communication_ns=communication - exposed_communication,
        memory_ns=memory,
        overlapped_memory_ns=memory - exposed_memory,
    )


def per_device(marks: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return each step of one rank for each of its devices.

    Returns:
        rank, device, step, start, end, sorted by start and device.
    """
    devices = grouped(work, DEVICE).sort(DEVICE)
    windows = marks[["step", "start", "end"]].join(devices, how="cross")
    return windows.sort("start", *DEVICE)[[*DEVICE, "step", "start", "end"]]
