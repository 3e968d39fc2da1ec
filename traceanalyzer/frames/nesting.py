"""Nesting of the slices of a thread: depth, parent and self time.

A slice frame has Int64 columns ``start`` and ``end`` (half open) and the columns ``by``, which
identify threads (null is a value like any other). Slices are ordered by (start, longest first,
row): of two equal slices, the earlier row encloses the later. A slice of zero duration encloses
nothing; its parent is running at its instant, so it is not a slice that ends there. A row with a
null bound, or that ends before it starts, is not a slice and gets nulls.

If no slice of a group outlives an earlier open one, depth is the number of earlier starts minus the
number of ends so far, and the parent is the last previous slice one level up: array sorts and
searches, O(n log n). Otherwise a stack processes the group slice by slice, linear except for the
search among overflow lanes. A million random slices, in order, on one core of an AMD EPYC with
Python 3.11: 0.11 s with arrays, 0.23 s with the stack. Ten million with two grouping columns, all
included: 2 s if every group nests exactly, 4.6 s if none does.
"""

from array import array
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.frames import intervals
from traceanalyzer.frames.intervals import Bools, Ints
from traceanalyzer.frames.numbering import group_numbers

Rows = npt.NDArray[np.int32]

#: The parent of a root.
ROOT = -1

#: End of the virtual slice around the roots: greater than any Int64.
NEVER = 1 << 63

#: A depth costs the array method as much as this many slices cost the stack.
_SLICES_PER_DEPTH = 32

#: Slices converted to Python integers per batch, to limit memory.
_BLOCK = 1 << 16


def row_numbers(rows: Rows, name: str = "row") -> pl.Series:
    """Return row numbers as a column, null for :data:`ROOT`."""
    return intervals.nullable(name, rows.astype(np.uint32), rows != ROOT)


def nest(frame: pl.DataFrame, by: Sequence[str] = (), tolerance: int = 1) -> pl.DataFrame:
    """Compute depth, parent and lane of each slice.

    The parent is the innermost open slice that the slice does not outlive. A slice that outlives
    an open one by at most ``tolerance`` is still its child, as if both ended together; a slice that
    starts at most ``tolerance`` before the open one's end follows it. Any other partial overlap
    moves the slice to an overflow lane: its parent there is the open slice that ends soonest after
    it, in any overflow lane, or it is a root of the first free lane. Each lane nests properly, and
    every slice is in one lane.

    Args:
        frame: the slices.
        by: columns that identify threads.
        tolerance: partial overlap to ignore, in the unit of the times.

    Returns:
        ``frame`` with ``depth`` (0 for a root), ``parent`` (row of the enclosing slice, null for a
        root) and ``lane`` (0 for the main one).
    """
    valid = intervals.is_interval(frame)
    _, (group,) = group_numbers(by, frame)
    slices = np.flatnonzero(valid)
    group, (start, end) = group[slices], (bound[slices] for bound in intervals.bounds(frame))
    order = slice_order(group, start, end)
    group, start, end, slices = group[order], start[order], end[order], slices[order]
    depth, parent, lane = (np.zeros(frame.height, np.int32) for _ in range(3))
    for lo, hi in blocks(group):
        rows = slices[lo:hi]
        depth[rows], above, lane[rows] = _nest_group(start[lo:hi], end[lo:hi], tolerance)
        parent[rows] = np.where(above == ROOT, ROOT, rows[above])
    return frame.with_columns(
        intervals.nullable("depth", depth.astype(np.uint32), valid),
        intervals.nullable("parent", parent, valid & (parent != ROOT)).cast(pl.UInt32),
        intervals.nullable("lane", lane.astype(np.uint32), valid),
    )


def self_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Compute the self time of slices, without that of their children.

    ``end - start`` minus the measure of the union of the direct children, clipped to the slice.
    Slices in another lane are not children.

    Args:
        frame: slices with ``start``, ``end`` and the ``parent`` computed by :func:`nest`.

    Returns:
        ``frame`` with ``self_time``, null for a row that is not a slice.
    """
    start, end = intervals.bounds(frame)
    child = np.flatnonzero(frame["parent"].is_not_null().to_numpy())
    parent = frame["parent"][child].to_numpy().astype(np.int64)
    order = intervals.stable_order(parent, start[child])
    child, parent = child[order], parent[order]
    until = np.minimum(end[child], end[parent])
    since = start[child]
    # siblings do not overlap by more than the tolerance
    after_sibling = np.flatnonzero(parent[1:] == parent[:-1]) + 1
    since[after_sibling] = np.maximum(since[after_sibling], until[after_sibling - 1])
    self_time = end - start
    np.subtract.at(self_time, parent, until - since)
    valid = intervals.is_interval(frame)
    return frame.with_columns(intervals.nullable("self_time", self_time, valid))


def slice_order(group: Ints, start: Ints, end: Ints) -> Ints:
    """Return the order by (group, start, longest first), stable for ties."""
    order = np.argsort(start, kind="stable")
    since, until = start[order], end[order]
    if ((since[1:] == since[:-1]) & (until[1:] > until[:-1])).any():
        order = np.lexsort((~end, start))
    return order[np.argsort(intervals.narrow(group)[order], kind="stable")]


def blocks(group: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Yield the range of rows of each group, for rows ordered by group."""
    cuts = np.flatnonzero(np.diff(group)) + 1
    return pairwise([0, *cuts.tolist(), group.size] if group.size else [])


def nest_mostly(start: Ints, end: Ints) -> tuple[Rows, Rows, Rows] | None:
    """Return depth and parent of the ordered slices of one group, and rows that must be recomputed.

    These rows are all slices of each busy interval in which a slice outlives an earlier open one.
    None if there are so few slices, or so many depths, that a stack is faster.
    """
    if start.size < _SLICES_PER_DEPTH:
        return None
    is_parent = np.zeros(start.size, np.bool_)  # still open when the next one starts
    is_parent[:-1] = start[1:] < end[:-1]
    over = np.bincount(np.searchsorted(start, end[is_parent]), minlength=start.size + 1)
    ended = np.cumsum(over[: start.size], dtype=np.int32)
    depth = np.cumsum(is_parent, dtype=np.int32) - is_parent - ended
    sizes = np.bincount(depth)
    if sizes.size * _SLICES_PER_DEPTH > start.size:
        return None
    parent = _last_above(depth, sizes)
    crossing = (parent != ROOT) & (end > end[parent])
    return depth, parent, _around(crossing, start, end)


def _around(chosen: Bools, start: Ints, end: Ints) -> Rows:
    """Return the ordered slices of each busy interval that contains a chosen one."""
    if not chosen.any():
        return np.zeros(0, np.int32)
    ended = np.ones(start.size, np.bool_)  # all previous slices have ended
    ended[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    first = np.flatnonzero(ended)
    inside = np.repeat(np.logical_or.reduceat(chosen, first), np.diff(first, append=start.size))
    return np.flatnonzero(inside).astype(np.int32)


def _last_above(depth: Rows, sizes: Ints) -> Rows:
    """Return for each slice the last previous one that is one level up."""
    order = np.argsort(intervals.narrow(depth), kind="stable").astype(np.int32)
    levels = np.split(order, np.cumsum(sizes[:-1]))
    parent = np.full(depth.size, ROOT, np.int32)
    for above, here in pairwise(levels):
        parent[here] = above[np.searchsorted(above, here) - 1]
    return parent


def _nest_group(start: Ints, end: Ints, tolerance: int) -> tuple[Rows, Rows, Rows]:
    """Return depth, parent and lane of the ordered slices of one group."""
    depth, parent, lane = (np.zeros(start.size, np.int32) for _ in range(3))
    rest = np.arange(start.size, dtype=np.int32)
    most = nest_mostly(start, end)
    if most is not None:
        depth, parent, rest = most
    depth[rest], above, left = _nest_main(start[rest], end[rest], tolerance)
    parent[rest] = np.where(above == ROOT, ROOT, rest[above])
    if left.size:
        left = rest[left]
        depth[left], above, lane[left] = _nest_overflow(start[left], end[left], tolerance)
        parent[left] = np.where(above == ROOT, ROOT, left[above])
    return depth, parent, lane


def _nest_main(start: Ints, end: Ints, tolerance: int) -> tuple[Rows, Rows, Rows]:
    """Return depth and parent in the main lane, and the slices that do not fit in it."""
    depth, parent, left = array("i"), array("i"), array("i")
    ends, rows = [NEVER], [ROOT]  # the open slices, the innermost last
    nearest = NEVER  # ends[-1]
    for row, (since, until) in enumerate(pairs(start, end)):
        while nearest <= since:
            ends.pop()
            rows.pop()
            nearest = ends[-1]
        if until > nearest:
            keep = _forgive(ends, since, until, tolerance)
            if not keep:
                left.append(row)
                depth.append(0)
                parent.append(ROOT)
                continue
            del ends[keep:], rows[keep:]
            until = min(until, ends[-1])
        depth.append(len(rows) - 1)
        parent.append(rows[-1])
        ends.append(until)
        rows.append(row)
        nearest = until
    return np.array(depth, np.int32), np.array(parent, np.int32), np.array(left, np.int32)


def _forgive(ends: list[int], since: int, until: int, tolerance: int) -> int:
    """Return how many slices stay open around one that outlives the innermost; 0: does not fit."""
    keep = len(ends)
    while until > ends[keep - 1] + tolerance:
        if since < ends[keep - 1] - tolerance:
            return 0
        keep -= 1
    return keep


def _nest_overflow(start: Ints, end: Ints, tolerance: int) -> tuple[Rows, Rows, Rows]:
    """Return depth, parent and lane, from 1, of slices that do not fit in the main lane."""
    depth, parent, lane = array("i"), array("i"), array("i")
    lanes: list[list[tuple[int, int]]] = []  # (end, row) of each lane's open slices
    nearest: list[tuple[int, int]] = []  # (end of the innermost open slice, lane), sorted
    for row, (since, until) in enumerate(pairs(start, end)):
        while nearest and nearest[0][0] <= since:
            _, ended = nearest.pop(0)
            lanes[ended].pop()
            insort(nearest, (lanes[ended][-1][0], ended))
        place = bisect_left(nearest, (until - tolerance, 0))
        if place == len(nearest):
            nearest.append((NEVER, len(lanes)))
            lanes.append([(NEVER, ROOT)])
        around, number = nearest[place]
        depth.append(len(lanes[number]) - 1)
        parent.append(lanes[number][-1][1])
        lane.append(number + 1)
        nearest[place] = (min(until, around), number)
        lanes[number].append((nearest[place][0], row))
    return np.array(depth, np.int32), np.array(parent, np.int32), np.array(lane, np.int32)


def pairs(start: Ints, end: Ints) -> Iterator[tuple[int, int]]:
    """Yield (start, end) as Python integers, converted in blocks to limit memory."""
    return chain.from_iterable(
        zip(start[lo : lo + _BLOCK].tolist(), end[lo : lo + _BLOCK].tolist(), strict=True)
        for lo in range(0, start.size, _BLOCK)
    )


def climb(at: npt.NDArray[np.integer], time: Ints, end: Ints, parent: Rows, levels: int) -> None:
    """Replace each slice by its first ancestor that has not ended at the given time.

    Args:
        at: rows of slices, or :data:`ROOT`; changed in place.
        time: time of each entry of ``at``.
        end: ends of the slices.
        parent: parents of the slices.
        levels: maximum number of levels to climb.
    """
    over = np.flatnonzero(at != ROOT)
    while over.size and levels > 0:
        over = over[end[at[over]] <= time[over]]
        at[over] = parent[at[over]]
        over = over[at[over] != ROOT]
        levels -= 1
