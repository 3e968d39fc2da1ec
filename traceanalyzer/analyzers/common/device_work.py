"""What devices did: each piece of work by its sort, and what a device's time is made of.

The parts of a device's time are compute, exposed communication, exposed memory work and idle. They
are disjoint and add up to the time looked at, exactly. Compute comes first, then communication,
then copies and sets: time in which compute and communication run together is compute, and the
communication in it is hidden. All streams of a device count together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.names import named
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import COMMUNICATION_PATTERN, DEVICE_WORK

COMPUTE = "compute"
COMMUNICATION = "communication"
MEMORY = "memory"

#: What a piece of device work is: communication, a copy or set, or any other kernel.
SORT = pl.Enum((COMPUTE, COMMUNICATION, MEMORY))

#: What tells devices apart: each rank has its own, whatever their numbers.
DEVICE = ("rank", "device")

EXPOSED_COMMUNICATION = "exposed_communication"
EXPOSED_MEMORY = "exposed_memory"
IDLE = "idle"

#: The parts of a device's time, in the order in which they are looked for.
PARTS = (COMPUTE, EXPOSED_COMMUNICATION, EXPOSED_MEMORY, IDLE)

#: Columns of the time of each part, and what people call it.
PART_NAMES = {f"{part}_ns": part.replace("memory", "copies").replace("_", " ") for part in PARTS}


def device_work(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """All device work that has an end, with what sort of work it is.

    Communication is work whose name matches :data:`~traceanalyzer.vocabulary.COMMUNICATION_PATTERN`
    or one of ``patterns``, and kernels that name a collective in their arguments; memory are copies
    and sets; compute is the rest. Rows of ``gpu_user_annotation`` and ``cuda_sync`` are not work.

    Returns:
        One row a piece in order of start: event (its row of ``events``), rank, pid, device, stream,
        kind, name, correlation, external_id, bytes, start, end, sort.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    key = ("device_work", tuple(patterns))
    return trace.once(key, lambda: _device_work(trace, patterns))


def _device_work(trace: Trace, patterns: Sequence[str]) -> pl.DataFrame:
    is_work = trace.events.select(
        pl.col("kind").is_in(DEVICE_WORK) & (pl.col("dur") >= 0).fill_null(value=False)
    ).to_series()
    if is_work.all():  # where nothing else was read, the columns are taken as they are
        rows, event = trace.events, pl.int_range(len(is_work), dtype=pl.UInt32, eager=True)
    else:
        rows, event = trace.events.filter(is_work), is_work.arg_true()
    work = rows.select(
        event.alias("event"),
        "rank", "pid", "device", "stream", "kind", "name", "correlation", "external_id", "bytes",
        start="ts", end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip
    told = pl.lit(value=False)
    if trace.collectives.height:
        told = pl.col("event").is_in(trace.collectives["event"].implode())
    sort = (
        pl.when(named(work, [COMMUNICATION_PATTERN, *patterns]) | told)
        .then(pl.lit(COMMUNICATION, dtype=SORT))
        .when(pl.col("kind") == "kernel")
        .then(pl.lit(COMPUTE, dtype=SORT))
        .otherwise(pl.lit(MEMORY, dtype=SORT))
    )
    return work.with_columns(sort=sort)


def extent(work: pl.DataFrame, by: Sequence[str] = DEVICE) -> pl.DataFrame:
    """First start to last end of each device's work: ``by``, ``start``, ``end``, sorted."""
    return work.group_by(by).agg(pl.col("start").min(), pl.col("end").max()).sort(by)


# --- what time is made of ------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """When work of each sort ran on each device: unions of intervals, for :func:`measure_parts`."""

    by_sort: Sequence[pl.DataFrame]
    kernels: pl.DataFrame
    all_work: pl.DataFrame


def runs_of(work: pl.DataFrame) -> Runs:
    """The runs of device work, rows of :func:`device_work` in any order."""
    by_sort = [intervals.union(_of(work, sort), DEVICE) for sort in SORT.categories]
    kernels = intervals.union(pl.concat(by_sort[:2]), DEVICE)
    return Runs(by_sort, kernels, intervals.union(pl.concat([kernels, by_sort[2]]), DEVICE))


def measure_parts(work: pl.DataFrame | Runs, windows: pl.DataFrame) -> pl.DataFrame:
    """How much of each window is which part of its device's time?

    Args:
        work: rows of :func:`device_work`, in any order, or what :func:`runs_of` makes of them.
        windows: :data:`DEVICE`, ``start``, ``end`` and any other columns. Windows may overlap one
            another; each is measured for itself.

    Returns:
        ``windows`` with, in ns: the parts compute_ns, exposed_communication_ns, exposed_memory_ns
        and idle_ns, which add up to end - start; busy_ns, which is the window without idle;
        communication_ns and hidden_communication_ns (communication while compute runs);
        memory_ns and hidden_memory_ns (copies and sets while compute or communication runs).
        Exposed and hidden add up to the whole. Null where a window has no start or end.
    """
    runs = work if isinstance(work, Runs) else runs_of(work)
    keys = windows.select(*DEVICE, "start", "end")
    measured = intervals.overlaps(keys, [*runs.by_sort, runs.kernels, runs.all_work], DEVICE)
    compute, communication, memory, either, any_work = measured
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
        work: :func:`device_work` of one rank.
        marks: :func:`~traceanalyzer.analyzers.common.step_marks.step_marks` of that rank.

    Returns:
        The rows of :func:`per_device` with the columns of
        :func:`measure_parts`.
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


def _of(work: pl.DataFrame, sort: str) -> pl.DataFrame:
    return work.select(*DEVICE, "start", "end").filter(work["sort"] == sort)
