"""Launch calls with the device work that they launched, and the queue of each stream."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.launching import first_launches, launch_rows
from traceanalyzer.analyzers.common.names import distinct, matching
from traceanalyzer.analyzers.gpu_idle.causes import LOADS_CODE, QUEUE_FULL
from traceanalyzer.frames import intervals, nesting, numbering
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.vocabulary import LAUNCH_KINDS, LAUNCHES_WORK, LOAD_MODULE, call_class

#: Key of a device; with the file, as a file may have no rank.
DEVICE = ["rank", "path", "device"]

#: Key of a stream of a rank: each process has separate streams.
STREAM = ["device", "process", "stream"]

#: The line of a stream has at most three times as many changes.
_PARTS = 300

#: A queue is full if launch calls block: they take at least this many times as long as those into a
#: short queue, and at least this long. CUDA's limit, about 1,022 launches, varies.
_BLOCKED_FACTOR = 5
_BLOCKED_NS = 10_000
#: Shorter queues are never full.
_LEAST_FULL = 100

#: The launch of a kernel shorter than this takes about as long as the kernel.
SHORT_KERNEL_NS = 10_000

#: Kind of the overhead that CUDA and the profiler record in blocked launch calls.
OVERHEAD = "overhead"

_CALL = ("launch", "launch_name", "launch_start", "launch_end")


def with_launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Add to device work the end of earlier work and, if recorded, its launch call.

    Args:
        trace: the trace of one rank.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`, by start.

    Returns:
        kind, name, device, process (pid of the work, or null), stream, start, end; rank_free,
        device_free and stream_free (when all earlier work of the rank, the device, the stream had
        ended; null for the first); launch (row of ``events``), launch_pid, launch_tid, launch_name,
        launch_start, launch_end, null if no call is known. One row per row of ``work``.
    """
    launch = nesting.row_numbers(launch_rows(trace, work), "launch")
    end = pl.when(pl.col("dur") >= 0).then(pl.col("ts") + pl.col("dur"))
    calls = trace.events.select("pid", "tid", "name", "ts", end=end)
    ended = calls["end"][launch]
    if ended.null_count() > launch.null_count():  # a call without an end is not used
        launch = launch.zip_with(ended.is_not_null(), pl.Series([None], dtype=launch.dtype))
    columns = {"launch_pid": "pid", "launch_tid": "tid", "launch_name": "name"}
    times = {"launch_start": "ts", "launch_end": "end"}
    return work.select(
        "kind", "name", "device", "stream", "start", "end", launch,
        **{name: calls[column][launch] for name, column in (columns | times).items()},
        process="pid",
        rank_free=pl.col("end").cum_max().shift(1),
        device_free=_ended(work, ["device"]),
        stream_free=_ended(work, ["device", "pid", "stream"]),
    )  # fmt: skip


def _ended(work: pl.DataFrame, by: list[str]) -> pl.Series | pl.Expr:
    """Return when all earlier work of a group had ended; null for its first."""
    ended = pl.col("end").cum_max().shift(1)
    if numbering.only_group(by, [work]) is not None:
        return work.select(ended).to_series()
    return ended.over(by)


def launch_calls(work: pl.DataFrame) -> pl.DataFrame:
    """Return one row per launch call with device work, by the start of its first event.

    A graph launch is one call with many device events.

    Args:
        work: rows of :func:`with_launches`.

    Returns:
        launch, pid, tid, launch_name, launch_start, launch_end; device, process, stream and start
        of the first device event, pieces (number of device events), call_ns, delay_ns (from the end
        of the call to the start of the first event, at least 0) and waited (whether earlier work of
        the stream was still running at the end of the call).
    """
    columns = ("device", "process", "stream", "start", "stream_free")
    launched = work[[*_CALL, "launch_pid", "launch_tid", *columns]].drop_nulls("launch")
    launch = launched["launch"].to_numpy()
    pieces = np.bincount(launch)[launch].astype(np.uint32)
    launched = launched.with_columns(pieces=pl.Series(pieces))
    if pieces.max(initial=1) > 1:
        launched = launched.unique("launch", keep="first", maintain_order=True)
    call_end = pl.col("launch_end")
    return launched.select(
        "launch", "launch_name", "launch_start", "launch_end", "device", "process",
        "stream", "start", "pieces",
        pid="launch_pid",
        tid="launch_tid",
        call_ns=call_end - pl.col("launch_start"),
        delay_ns=(pl.col("start") - call_end).clip(0),
        waited=(pl.col("stream_free") > call_end).fill_null(value=False),
    )  # fmt: skip


def with_overhead(trace: Trace, calls: pl.DataFrame, runtime: pl.DataFrame) -> pl.DataFrame:
    """Add the time of code loading and of a full queue to launch calls.

    Args:
        trace: the trace of one rank.
        calls: rows of :func:`launch_calls`.
        runtime: rows of :func:`runtime_calls`.

    Returns:
        The calls with loading_ns and full_ns: the part of the call during recorded overhead of that
        kind on any thread (Kineto does not record the thread), and for loading_ns during driver
        calls that load code on the same thread, or :func:`~.launching.first_launches`.
    """
    known = first_launches(trace).group_by("launch").agg(pl.col("over_ns").max())
    first = calls["launch"].replace_strict(
        known["launch"], known["over_ns"], default=0, return_dtype=pl.Int64
    )
    loads, full = (_overhead(trace, pattern) for pattern in (LOADS_CODE, QUEUE_FULL))
    names = [name for name in distinct(runtime) if call_class(name) == LOAD_MODULE]
    if loads is None and full is None and not names:
        return calls.with_columns(first.alias("loading_ns"), full_ns=pl.lit(0, pl.Int64))
    times = calls.select("pid", "tid", start="launch_start", end="launch_end")
    inside = runtime.filter(pl.col("name").is_in(names))
    loading, full_ns = (
        pl.lit(0, pl.Int64) if rows is None else pl.lit(intervals.overlaps(times, [rows])[0])
        for rows in (loads, full)
    )
    (called,) = intervals.overlaps(times, [inside], ["pid", "tid"])
    return calls.with_columns(loading_ns=pl.max_horizontal(loading, called, first), full_ns=full_ns)


def _overhead(trace: Trace, pattern: str) -> pl.DataFrame | None:
    """Return recorded overhead by name: start, end; None if nothing has such a name."""
    names = matching(trace.names, [pattern])
    if not names:
        return None
    is_overhead = (pl.col("kind") == OVERHEAD) & pl.col("name").is_in(names) & (pl.col("dur") >= 0)
    rows = trace.events[["kind", "name", "ts", "dur"]].filter(is_overhead)
    return rows.select(start="ts", end=pl.col("ts") + pl.col("dur"))


def runtime_calls(trace: Trace) -> pl.DataFrame:
    """Return all runtime and driver calls by start: event, pid, tid, name, start, end."""
    rows = trace.events[["kind", "pid", "tid", "name", "ts", "dur"]].with_row_index("event")
    calls = rows.filter(of_kinds(LAUNCH_KINDS), pl.col("dur") >= 0)
    return calls.select("event", "pid", "tid", "name", start="ts", end=pl.col("ts") + pl.col("dur"))


def without_work(runtime: pl.DataFrame, calls: pl.DataFrame) -> int:
    """Count the calls that launch, copy or set memory without recorded device work.

    Args:
        runtime: rows of :func:`runtime_calls`.
        calls: rows of :func:`launch_calls`.
    """
    launching = [name for name in distinct(runtime) if call_class(name) in LAUNCHES_WORK]
    # work may have a launch call of any name
    with_work = calls.select(pl.col("launch_name").is_in(launching).sum()).item()
    recorded = runtime.select(pl.col("name").is_in(launching).sum()).item()
    return int(recorded) - int(with_work)


# --- queues --------------------------------------------------------------------------------

#: No rows of :func:`streams` and of :func:`drawn`.
_OF_STREAM = {"device": pl.Int32, "process": pl.Int64, "stream": pl.Int64}
NO_STREAMS = pl.DataFrame(
    schema={
        **_OF_STREAM,
        "launches": pl.UInt32,
        "mean_queue": pl.Float64,
        **dict.fromkeys(("max_queue", "queue_ns", "empty_ns", "full_ns"), pl.Int64),
    }
)
NO_QUEUE = pl.DataFrame(schema={**_OF_STREAM, "ts": pl.Int64, "length": pl.Int64})


def queue_changes(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Return the queue length of each stream after each change.

    A launch enters the queue of its stream when its call starts and leaves it when its first device
    event starts. A graph launch counts once, in the stream of its first event.

    Args:
        calls: rows of :func:`launch_calls`.
        work: the rank's device work.

    Returns:
        queue (its number), device, process, stream, ts, length, lasted (until the next change or
        the end of the stream's last work); by queue and ts, one row per time of a change.
    """
    groups, (group, of_work) = numbering.group_numbers(STREAM, calls, work)
    leave = calls["start"].to_numpy()
    # work may seem to start before its call: the clocks differ
    enter = np.minimum(calls["launch_start"].to_numpy(), leave)
    both, time = np.tile(group, 2), np.concatenate([enter, leave])
    order = intervals.stable_order(both, time)
    group, time = both[order], time[order]
    length = np.cumsum(np.where(order < enter.size, 1, -1))
    settled = np.ones(time.size, np.bool_)
    settled[:-1] = (group[1:] != group[:-1]) | (time[1:] != time[:-1])
    group, time, length = group[settled], time[settled], length[settled]
    last = np.full(groups.height, np.iinfo(np.int64).min)
    np.maximum.at(last, of_work, work["end"].to_numpy())
    until = np.append(time[1:], 0)
    final = np.append(group[1:] != group[:-1], [True] * bool(group.size))
    until[final] = last[group[final]]
    return pl.DataFrame(
        [
            pl.Series("queue", group),
            *(column.gather(group) for column in groups),
            pl.Series("ts", time),
            pl.Series("length", length),
            pl.Series("lasted", until - time),
        ]
    )


def streams(changes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Summarize each stream's queue, from its first launch call to the end of its last work.

    Returns:
        device, process, stream, launches, mean_queue (weighted by time), max_queue, queue_ns
        (measured time), empty_ns (time without a waiting launch) and full_ns (time in which launch
        calls blocked because the queue was full, see :func:`blocked_ns`).
    """
    length, lasted = pl.col("length"), pl.col("lasted")
    whole = lasted.sum()
    measured = changes.group_by("queue").agg(
        pl.col(STREAM).first(),
        mean_queue=pl.when(whole > 0).then((length * lasted).sum() / whole),
        max_queue=length.max(),
        queue_ns=whole,
        empty_ns=(lasted * (length == 0)).sum(),
    )
    full = blocked_ns(changes, calls)
    measured = measured.join(full, on="queue", how="left").with_columns(
        full_ns=pl.min_horizontal(pl.col("full_ns").fill_null(0), "queue_ns")
    )
    counts = calls.group_by(STREAM).agg(launches=pl.len())
    return counts.join(measured.drop("queue"), on=STREAM, nulls_equal=True).sort(STREAM)


def blocked_ns(changes: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return how long launch calls of each queue blocked because it was full.

    A call blocks if the profiler recorded so for at least half of it. It also blocks if its queue
    has at least half of the stream's maximal length and the call takes at least
    :data:`_BLOCKED_NS` and :data:`_BLOCKED_FACTOR` times the median of calls of the same name into
    shorter queues. Calls that load code do not block.

    Returns:
        queue, full_ns (summed durations of blocked calls); only queues with blocked calls.
    """
    longest = changes.group_by("queue").agg(pl.col(STREAM).first(), most=pl.col("length").max())
    if longest.filter(pl.col("most") >= _LEAST_FULL).is_empty() and not calls["full_ns"].sum():
        return pl.DataFrame(schema={"queue": pl.Int64, "full_ns": pl.Int64})
    placed = calls.join(longest, on=STREAM, nulls_equal=True).select(
        "queue", "most", "launch_name", "call_ns", "full_ns", "loading_ns",
        ts=pl.min_horizontal("launch_start", "start"),
    )  # fmt: skip
    lengths = changes[["queue", "ts", "length"]].sort("ts")
    entered = placed.sort("ts").join_asof(lengths, on="ts", by="queue", check_sortedness=False)
    is_long = 2 * pl.col("length") >= pl.col("most")
    usual = pl.col("call_ns").filter(~is_long).median().over("launch_name").fill_null(0)
    is_slow = pl.col("call_ns") >= pl.max_horizontal(pl.lit(_BLOCKED_NS), _BLOCKED_FACTOR * usual)
    recorded = 2 * pl.col("full_ns") >= pl.max_horizontal(1, "call_ns")
    can_fill = (pl.col("most") >= _LEAST_FULL) & (2 * pl.col("loading_ns") < pl.col("call_ns"))
    blocked = entered.filter(recorded | (can_fill & is_long & is_slow))
    return blocked.group_by("queue").agg(full_ns=pl.col("call_ns").sum())


def drawn(changes: pl.DataFrame) -> pl.DataFrame:
    """Reduce the changes to few points per stream for a chart, with exact extremes.

    A stream's time is divided into :data:`_PARTS` equal parts. Each part keeps the first longest,
    the first shortest and the last queue. A change is two points at the same time: the length
    before and after it.

    Returns:
        device, process, stream, ts, length; in order.
    """
    queue, ts, length = (changes[name].to_numpy() for name in ("queue", "ts", "length"))
    first = np.flatnonzero(np.diff(queue, prepend=-1))
    last = np.append(first[1:], queue.size) - 1
    begun, whole = ts[first], ts[last] - ts[first] + 1
    place = np.searchsorted(first, np.arange(queue.size), side="right") - 1
    part = place * _PARTS + (ts - begun[place]) * _PARTS // whole[place]
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    ends = np.append(starts[1:], part.size) - 1
    rows = np.unique(np.concatenate([_firsts(length, starts), _firsts(-length, starts), ends]))
    before = np.where(rows == first[place[rows]], 0, length[rows - 1])
    steps = changes[[*STREAM, "ts"]][rows.repeat(2)]
    both = np.stack([before, length[rows]], axis=1).ravel()
    return steps.hstack([pl.Series("length", both)])


def _firsts(values: intervals.Ints, starts: intervals.Ints) -> intervals.Ints:
    """Return the position of the first maximum of each part; parts begin at ``starts``."""
    size = values.size
    # order by value, then by position, the first ahead
    ranked = values * size + np.arange(size, 0, -1) - 1
    return size - 1 - np.maximum.reduceat(ranked, starts) % size
