"""How many launches wait in each stream's queue, over time."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceanalyzer.analyzers.launches.needs import FULL_QUEUE
from traceanalyzer.frames.intervals import Ints, stable_order
from traceanalyzer.frames.numbering import group_numbers

#: What tells streams apart: each process has its own.
STREAM = ["device", "process", "stream"]

#: A stream's line is drawn with at most three times as many changes.
_PARTS = 300


def queue_changes(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """The queue's length of each stream from each moment at which it changed.

    A launch enters the queue of its stream when its call starts and leaves it when its first piece
    of work starts, so the length is launches started less works started. A graph launch counts
    once, in the stream of its first piece.

    Args:
        calls: rows of :func:`~.calls.launch_calls`.
        work: the rank's device work.

    Returns:
        queue (its number), device, process, stream, ts, length, lasted (to the next change, at last
        to the end of the stream's last work); by queue and ts, a row for each moment of a change.
    """
    groups, (group, of_work) = group_numbers(STREAM, calls, work)
    leave = calls["start"].to_numpy()
    # work that seems to start before its call: the clocks differ
    enter = np.minimum(calls["launch_start"].to_numpy(), leave)
    both, time = np.tile(group, 2), np.concatenate([enter, leave])
    order = stable_order(both, time)
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
        time looked at), empty_ns and full_ns (how long nothing waited, and :data:`FULL_QUEUE` or
        more).
    """
    length, lasted = pl.col("length"), pl.col("lasted")
    whole = lasted.sum()
    measured = changes.group_by("queue").agg(
        pl.col(STREAM).first(),
        mean_queue=pl.when(whole > 0).then((length * lasted).sum() / whole),
        max_queue=length.max(),
        queue_ns=whole,
        empty_ns=(lasted * (length == 0)).sum(),
        full_ns=(lasted * (length >= FULL_QUEUE)).sum(),
    )
    counts = calls.group_by(STREAM).agg(launches=pl.len())
    return counts.join(measured.drop("queue"), on=STREAM, nulls_equal=True).sort(STREAM)


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


def _firsts(values: Ints, starts: Ints) -> Ints:
    """Where the largest value of each part is first reached; parts begin at ``starts``."""
    size = values.size
    # the value decides, then the place, the first ahead
    ranked = values * size + np.arange(size, 0, -1) - 1
    return size - 1 - np.maximum.reduceat(ranked, starts) % size
