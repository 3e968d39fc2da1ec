"""Pair the begin and end events of tracks.

An end closes the innermost open slice of its track, in order of time. PyTorch writes all begins of
a kind, then all their ends in the same order: these are paired by their numbers, so that slices
that overlap or meet stay exact.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from traceanalyzer.parsers.perfetto.wire import Ints

BEGIN, END = 1, 2
Numbers = npt.NDArray[np.integer[Any]]


class Pairs(NamedTuple):
    """Slices: rows of their begin and end events (-1: never ended), and the ends without begin."""

    begin: Ints
    end: Ints
    unmatched: int


def pair(ts: Ints, track: Numbers, type_: Ints) -> Pairs:
    """Pair begin and end events.

    Args:
        ts: time of each event, in the order of the file.
        track: number of its track.
        type_: ``BEGIN`` or ``END``.
    """
    partner = np.full(len(ts), -1, np.int64)
    order = np.argsort(track, kind="stable")
    if not _in_order(ts[order], track[order]):
        _by_number(ts, track, type_, partner)
        rest = np.flatnonzero(partner < 0)
        order = rest[np.lexsort((ts[rest], track[rest]))]
    unmatched = _nested(track[order], type_[order], order, partner)
    begin = np.flatnonzero(type_ == BEGIN)
    return Pairs(begin, partner[begin], unmatched)


def _in_order(ts: Ints, track: Numbers) -> bool:
    """Whether times do not decrease within tracks, which are one after another."""
    return not ((ts[1:] < ts[:-1]) & (track[1:] == track[:-1])).any()


def _by_number(ts: Ints, track: Numbers, type_: Ints, partner: Ints) -> None:
    """Pair runs of begins with the run of as many ends of the same tracks that follows."""
    edge = np.flatnonzero(np.diff(type_)) + 1
    start = np.concatenate([[0], edge])
    size = np.diff(np.concatenate([start, [len(type_)]]))
    is_pair = (type_[start[:-1]] == BEGIN) & (size[:-1] == size[1:]) & (size[:-1] > 1)
    for run in np.flatnonzero(is_pair).tolist():
        low, n = int(start[run]), int(size[run])
        begins, ends = slice(low, low + n), slice(low + n, low + 2 * n)
        both = slice(low, low + 2 * n)
        if not np.array_equal(track[begins], track[ends]) or (ts[begins] > ts[ends]).any():
            continue
        by_track = np.argsort(track[both], kind="stable")
        same = np.diff(track[both][by_track]) == 0
        if not (np.diff(ts[both][by_track])[same] < 0).any():
            continue  # in order of time: nested slices
        partner[begins] = np.arange(low + n, low + 2 * n)
        partner[ends] = np.arange(low, low + n)


def _nested(track: Numbers, type_: Ints, rows: Ints, partner: Ints) -> int:
    """Pair sorted events by depth; return the number of ends without a begin.

    At each depth of a track, begins and ends alternate.
    """
    if not len(rows):
        return 0
    is_begin = type_ == BEGIN
    step = np.where(is_begin, 1, -1)
    # tracks one after another: each starts at its own level
    first = np.flatnonzero(np.concatenate([[True], np.diff(track) != 0]))
    length = np.diff(np.concatenate([first, [len(track)]]))
    level = np.cumsum(step)
    level -= np.repeat(level[first] - step[first], length)
    floor = np.empty(len(level), np.int64)
    for low, n in zip(first.tolist(), length.tolist(), strict=True):
        floor[low : low + n] = np.minimum.accumulate(np.minimum(level[low : low + n], 0))
    before = np.concatenate([[0], floor[:-1]])
    before[first] = 0
    stray = ~is_begin & (floor < before)
    depth = level - floor - is_begin  # of the slice that begins or ends
    kept = np.flatnonzero(~stray)
    order = kept[np.lexsort((kept, depth[kept], track[kept]))]
    ends = np.flatnonzero(~is_begin[order])
    begins = ends - 1  # the event before an end at its depth is its begin
    partner[rows[order[begins]]] = rows[order[ends]]
    return int(stray.sum())
