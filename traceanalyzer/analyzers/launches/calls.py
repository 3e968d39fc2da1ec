"""Launch calls with the device work that they started, and the queue of each stream."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.launching import launches
from traceanalyzer.analyzers.common.names import named
from traceanalyzer.analyzers.gpu_idle.causes import LOADS_CODE, QUEUE_FULL
from traceanalyzer.frames import intervals, numbering
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import LAUNCH_KINDS

#: What tells devices apart: the file too, since it may not tell its rank.
DEVICE = ["rank", "path", "device"]

#: What tells streams apart: each process has its own.
STREAM = ["device", "process", "stream"]

#: A stream's line is drawn with at most three times as many changes.
_PARTS = 300

#: A queue is full where launch calls block: they take this many times as long as those into a
#: short queue, and at least so long. CUDA's limit, about 1,022 launches, varies.
_BLOCKED_FACTOR = 5
_BLOCKED_NS = 10_000
#: Shorter queues are never full.
_LEAST_FULL = 100

#: A kernel that runs shorter than this costs about as much to launch as it runs.
SHORT_KERNEL_NS = 10_000

#: Calls that are there to start device work; those of host functions start none.
LAUNCHING = r"(?i)(?:launch|memcpy|memset)"
_HOST_FUNCTION = r"(?i)hostfunc"

#: What CUDA and the profiler record of launch calls that are held up.
OVERHEAD = "overhead"

#: Calls of the driver that load the code of kernels, within the launch call that needs it.
_LOADING_CALLS = r"^cu(?:da)?(?:Module(?:Load|GetFunction)|Library(?:Load|GetKernel)|FuncGetAttr)"

_CALL = ("launch", "launch_name", "launch_start", "launch_end")


def with_launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Device work with what was before it, and with its launch call where that was recorded.

    Args:
        trace: of one rank.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`, by start.

    Returns:
        kind, name, device, process (its own pid, null where the file does not tell), stream,
        start, end; rank_free, device_free and stream_free (when all earlier work of the rank, the
        device, the stream had ended; null for the first); launch (row of ``events``), launch_pid,
        launch_tid, launch_name, launch_start, launch_end, null where no call is known. A row for
        each of ``work``.
    """
    found = launches(trace, work).drop_nulls("launch_end")
    calls = found.select(*_CALL, launch_pid="pid", launch_tid="tid")
    if found.height < work.height:
        calls = pl.DataFrame(
            [column.gather(_places(found["work"], work.height)) for column in calls]
        )
    ended = pl.col("end").cum_max().shift(1)
    return work.select(
        "kind", "name", "device", "stream", "start", "end",
        *calls,
        process="pid",
        rank_free=ended,
        device_free=ended.over("device"),
        stream_free=ended.over("device", "pid", "stream"),
    )  # fmt: skip


def _places(rows: pl.Series, height: int) -> pl.Series:
    """Of each number below ``height`` its place among the rows, null where it is not there."""
    place, known = np.zeros(height, np.uint32), np.zeros(height, np.bool_)
    place[rows], known[rows] = np.arange(rows.len()), True
    return intervals.nullable("place", place, known)


def launch_calls(work: pl.DataFrame) -> pl.DataFrame:
    """One row for each launch call that started work, by the start of its first piece.

    A graph launch is one call with many pieces.

    Args:
        work: rows of :func:`with_launches`.

    Returns:
        launch, pid, tid, launch_name, launch_start, launch_end; device, process, stream and start
        of the first piece, pieces (how many there are), call_ns, delay_ns (from the end of the call
        to the start of the first piece, 0 where that started earlier) and waited (whether earlier
        work of its stream had not ended when the call had).
    """
    columns = ("device", "process", "stream", "start", "stream_free")
    launched = work.select(*_CALL, "launch_pid", "launch_tid", *columns).drop_nulls("launch")
    pieces = pl.len().over("launch").cast(pl.UInt32)
    launched = launched.with_columns(pieces=pieces)
    if launched["pieces"].max() != 1:
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
    """Launch calls with the time in which code was loaded and in which the queue was full.

    Args:
        trace: of one rank.
        calls: rows of :func:`launch_calls`.
        runtime: rows of :func:`runtime_calls`.

    Returns:
        The calls with loading_ns and full_ns: the part of the call during recorded overhead of that
        sort on any thread, whose thread Kineto does not record, and in driver calls that load code
        on the same thread.
    """
    overhead = trace.events.filter(pl.col("kind") == OVERHEAD, pl.col("dur") >= 0).select(
        "name", start="ts", end=pl.col("ts") + pl.col("dur")
    )
    times = calls.select("pid", "tid", start="launch_start", end="launch_end")
    loads, full = (overhead.filter(named(overhead, [name])) for name in (LOADS_CODE, QUEUE_FULL))
    loading, waiting = (intervals.overlap_with(times, rows)["overlap"] for rows in (loads, full))
    inside = runtime.filter(named(runtime, [_LOADING_CALLS]))
    called = intervals.overlap_with(times, inside, ["pid", "tid"])["overlap"]
    more = pl.DataFrame({"loading": loading, "called": called, "full_ns": waiting})
    loading_ns = pl.max_horizontal("loading", "called").alias("loading_ns")
    return calls.hstack(more.select(loading_ns, "full_ns"))


def runtime_calls(trace: Trace) -> pl.DataFrame:
    """All calls of the runtime and the driver: event, pid, tid, name, start, end; by start."""
    call = pl.col("kind").is_in(LAUNCH_KINDS) & (pl.col("dur") >= 0)
    event = trace.events.select(call).to_series().arg_true()
    return trace.events.select("pid", "tid", "name", "ts", "dur")[event].select(
        event.alias("event"), "pid", "tid", "name", start="ts", end=pl.col("ts") + pl.col("dur")
    )


def without_work(runtime: pl.DataFrame, calls: pl.DataFrame) -> int:
    """How many launch calls started no work that was recorded.

    Args:
        runtime: rows of :func:`runtime_calls`.
        calls: rows of :func:`launch_calls`.
    """
    text = pl.col("name").cast(pl.String)
    launching = text.str.contains(LAUNCHING) & ~text.str.contains(_HOST_FUNCTION)
    names = runtime.select(pl.col("name").unique().drop_nulls()).filter(launching)["name"]
    # work may be joined to a call of any name
    own = calls.filter(pl.col("launch_name").is_in(names.implode())).height
    return runtime.filter(pl.col("name").is_in(names.implode())).height - own


# --- queues --------------------------------------------------------------------------------


def queue_changes(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The queue's length of each stream from each moment at which it changed.

    A launch enters the queue of its stream when its call starts and leaves it when its first piece
    of work starts, so the length is launches started less works started. A graph launch counts
    once, in the stream of its first piece.

    Args:
        calls: rows of :func:`launch_calls`.
        work: the rank's device work.

    Returns:
        queue (its number), device, process, stream, ts, length, lasted (to the next change, at last
        to the end of the stream's last work); by queue and ts, a row for each moment of a change.
    """
    groups, (group, of_work) = numbering.group_numbers(STREAM, calls, work)
    leave = calls["start"].to_numpy()
    # work that seems to start before its call: the clocks differ
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
    """Each stream's queue, from its first launch call to the end of its last work.

    Returns:
        device, process, stream, launches, mean_queue (weighted by time), max_queue, queue_ns (the
        time looked at), empty_ns (how long nothing waited) and full_ns (how long launch calls
        blocked because the queue was full, see :func:`blocked_ns`).
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
    """How long launch calls of each queue blocked because it was full.

    A call blocks if the profiler recorded so for half of it or more, or if it takes at least
    :data:`_BLOCKED_NS` and :data:`_BLOCKED_FACTOR` times the median of calls of its name into
    queues of less than half the stream's greatest length, while the queue has at least half that
    length. Calls that load code do not block.

    Returns:
        queue, full_ns (summed durations of the calls that block); queues without any are left out.
    """
    longest = changes.group_by("queue").agg(pl.col(STREAM).first(), most=pl.col("length").max())
    if longest.filter(pl.col("most") >= _LEAST_FULL).is_empty() and not calls["full_ns"].sum():
        return pl.DataFrame(schema={"queue": pl.Int64, "full_ns": pl.Int64})
    placed = calls.join(longest, on=STREAM, nulls_equal=True).select(
        "queue", "most", "launch_name", "call_ns", "full_ns", "loading_ns",
        ts=pl.min_horizontal("launch_start", "start"),
    )  # fmt: skip
    lengths = changes.select("queue", "ts", "length").sort("ts")
    entered = placed.sort("ts").join_asof(lengths, on="ts", by="queue", check_sortedness=False)
    is_long = 2 * pl.col("length") >= pl.col("most")
    usual = pl.col("call_ns").filter(~is_long).median().over("launch_name").fill_null(0)
    is_slow = pl.col("call_ns") >= pl.max_horizontal(pl.lit(_BLOCKED_NS), _BLOCKED_FACTOR * usual)
    recorded = 2 * pl.col("full_ns") >= pl.max_horizontal(1, "call_ns")
    can_fill = (pl.col("most") >= _LEAST_FULL) & (2 * pl.col("loading_ns") < pl.col("call_ns"))
    blocked = entered.filter(recorded | (can_fill & is_long & is_slow))
    return blocked.group_by("queue").agg(full_ns=pl.col("call_ns").sum())


def drawn(changes: pl.DataFrame) -> pl.DataFrame:
    """Few points of each stream that show the course of its queue, its extremes exactly.

    Of each of some hundred equal parts of a stream's time the longest and the shortest queue, each
    where it was first reached, and the last one. A change is two points of one time: the length
    before it and after.

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
    steps = changes.select(*STREAM, "ts")[rows.repeat(2)]
    both = np.stack([before, length[rows]], axis=1).ravel()
    return steps.with_columns(pl.Series("length", both))


def _firsts(values: intervals.Ints, starts: intervals.Ints) -> intervals.Ints:
    """Where the largest value of each part is first reached; parts begin at ``starts``."""
    size = values.size
    # the value decides, then the place, the first ahead
    ranked = values * size + np.arange(size, 0, -1) - 1
    return size - 1 - np.maximum.reduceat(ranked, starts) % size
