"""Which slice lies in which: depth, parent and self time of the slices of a thread.

A slice frame has Int64 columns ``start`` and ``end`` (half open) and the columns named by ``by``,
which tell threads apart (null is a value like any other). Slices count in the order of (start,
longest first, row): of two alike the earlier row encloses the later. A slice of no duration
encloses nothing; it lies in what is running at its instant, so not in a slice that ends there. A
row whose bound is null, or that ends before it starts, is no slice and gets nulls.

Where no slice of a group outlives an earlier one that was still open, depth is the number of
earlier starts less the number of ends so far, and a parent is the last slice before of the depth
above: sorts and searches over whole arrays, O(n log n). Else a stack walks the group slice by
slice, linear but for the search among its overflow lanes. A million random slices, in order, on
one core of an AMD EPYC with Python 3.11: 0.11 s by arrays, 0.23 s by the stack. Ten million with
two grouping columns, all included: 2 s where every group nests exactly, 4.6 s where none does.
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

#: The end of what encloses the roots: later than any Int64.
NEVER = 1 << 63

#: One depth costs the array method as much as about so many slices cost the stack.
_SLICES_PER_DEPTH = 32

#: Slices turned into Python integers at once, to bound memory.
_BLOCK = 1 << 16


def nest(frame: pl.DataFrame, by: Sequence[str] = (), tolerance: int = 1) -> pl.DataFrame:
    """Which slice does each one lie in?

    A slice lies in the innermost open one that it does not outlive. One that outlives an open
    slice by at most ``tolerance`` lies in it too, as if it ended with it; one that started at most
    ``tolerance`` before the open slice's end follows it. Any other partial overlap sends the slice
    to an overflow lane, as if it were not in the main one: there it lies in the open slice that
    ends soonest after it, in any overflow lane, or is a root of the first lane that is free. Each
    lane nests properly and every slice has a place.

    Args:
        frame: the slices.
        by: the columns that tell threads apart.
        tolerance: partial overlap to forgive, in the unit of the times.

    Returns:
        ``frame`` with ``depth`` (0 for a root), ``parent`` (row of the enclosing slice, null for a
        root) and ``lane`` (0 the main one).
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
    """How long does a slice run without any of its children running?

    ``end - start`` less the measure of the union of the direct children, each cut to the slice.
    Children in another lane are not known to it and not taken off.

    Args:
        frame: slices with ``start``, ``end`` and the ``parent`` that :func:`nest` gives.

    Returns:
        ``frame`` with ``self_time``, null for a row that is no slice.
    """
    start, end = intervals.bounds(frame)
    child = np.flatnonzero(frame["parent"].is_not_null().to_numpy())
    parent = frame["parent"].gather(child).to_numpy().astype(np.int64)
    order = intervals.stable_order(parent, start[child])
    child, parent = child[order], parent[order]
    until = np.minimum(end[child], end[parent])
    since = start[child]
    # siblings follow one another, but for the overlap that was forgiven
    after_sibling = np.flatnonzero(parent[1:] == parent[:-1]) + 1
    since[after_sibling] = np.maximum(since[after_sibling], until[after_sibling - 1])
    own = end - start
    np.subtract.at(own, parent, until - since)
    return frame.with_columns(intervals.nullable("self_time", own, intervals.is_interval(frame)))


def slice_order(group: Ints, start: Ints, end: Ints) -> Ints:
    """The order of slices by (group, start, longest first), ties in the order given."""
    order = np.argsort(start, kind="stable")
    since, until = start[order], end[order]
    if ((since[1:] == since[:-1]) & (until[1:] > until[:-1])).any():
        order = np.lexsort((~end, start))
    return order[np.argsort(intervals.narrow(group)[order], kind="stable")]


def blocks(group: npt.NDArray[np.integer]) -> Iterator[tuple[int, int]]:
    """Where each group begins and ends among rows ordered by group."""
    cuts = np.flatnonzero(np.diff(group)) + 1
    edges = [0, *cuts.tolist(), group.size] if group.size else []
    return pairwise(edges)


def nest_mostly(start: Ints, end: Ints) -> tuple[Rows, Rows, Rows] | None:
    """Depth and parent of the ordered slices of one group, and the rows for which they are not so.

    These are all slices of a stretch, between moments at which none is running, in which one
    outlives another that was open before it. None when there are so few slices, or so many depths,
    that a stack is faster.
    """
    if start.size < _SLICES_PER_DEPTH:
        return None
    holds = np.zeros(start.size, np.bool_)  # still open when the next one starts
    holds[:-1] = start[1:] < end[:-1]
    over = np.bincount(np.searchsorted(start, end[holds]), minlength=start.size + 1)
    ended = np.cumsum(over[: start.size], dtype=np.int32)
    depth = np.cumsum(holds, dtype=np.int32) - holds - ended
    sizes = np.bincount(depth)
    if sizes.size * _SLICES_PER_DEPTH > start.size:
        return None
    parent = _last_above(depth, sizes)
    crossing = (parent != ROOT) & (end > end[parent])
    return depth, parent, _around(crossing, start, end)


def _around(chosen: Bools, start: Ints, end: Ints) -> Rows:
    """The ordered slices of each stretch, between moments when none runs, that has a chosen one."""
    if not chosen.any():
        return np.zeros(0, np.int32)
    ended = np.ones(start.size, np.bool_)  # all slices before have
    ended[1:] = start[1:] >= np.maximum.accumulate(end)[:-1]
    first = np.flatnonzero(ended)
    held = np.repeat(np.logical_or.reduceat(chosen, first), np.diff(first, append=start.size))
    return np.flatnonzero(held).astype(np.int32)


def _last_above(depth: Rows, sizes: Ints) -> Rows:
    """For each slice the last one before it that is one depth less deep."""
    order = np.argsort(intervals.narrow(depth), kind="stable").astype(np.int32)
    levels = np.split(order, np.cumsum(sizes[:-1]))
    parent = np.full(depth.size, ROOT, np.int32)
    for above, here in pairwise(levels):
        parent[here] = above[np.searchsorted(above, here) - 1]
    return parent


def _nest_group(start: Ints, end: Ints, tolerance: int) -> tuple[Rows, Rows, Rows]:
    """Depth, parent and lane of the ordered slices of one group."""
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
    """Depth and parent in the main lane, and the slices that it cannot hold."""
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
    """How many of the open slices stay open around one that outlives the innermost; 0: no place."""
    keep = len(ends)
    while until > ends[keep - 1] + tolerance:
        if since < ends[keep - 1] - tolerance:
            return 0
        keep -= 1
    return keep


def _nest_overflow(start: Ints, end: Ints, tolerance: int) -> tuple[Rows, Rows, Rows]:
    """Depth, parent and lane, from 1, of slices that the main lane cannot hold."""
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
        around, own = nearest[place]
        depth.append(len(lanes[own]) - 1)
        parent.append(lanes[own][-1][1])
        lane.append(own + 1)
        nearest[place] = (min(until, around), own)
        lanes[own].append((nearest[place][0], row))
    return np.array(depth, np.int32), np.array(parent, np.int32), np.array(lane, np.int32)


def pairs(start: Ints, end: Ints) -> Iterator[tuple[int, int]]:
    """(start, end) as Python integers, a block at a time to bound memory."""
    return chain.from_iterable(
        zip(start[lo : lo + _BLOCK].tolist(), end[lo : lo + _BLOCK].tolist(), strict=True)
        for lo in range(0, start.size, _BLOCK)
    )


def climb(at: npt.NDArray[np.integer], time: Ints, end: Ints, parent: Rows, levels: int) -> None:
    """Moves each place up to the first slice that has not ended by its time.

    Args:
        at: rows of slices, or :data:`ROOT`; changed in place.
        time: the time of each place.
        end: of the slices.
        parent: of the slices.
        levels: how many levels to climb at most.
    """
    over = np.flatnonzero(at != ROOT)
    while over.size and levels > 0:
        over = over[end[at[over]] <= time[over]]
        at[over] = parent[at[over]]
        over = over[at[over] != ROOT]
        levels -= 1
