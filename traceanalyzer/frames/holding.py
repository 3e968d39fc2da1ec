"""The tree of a thread whose slices may overlap in part: which slice holds which, and how much.

Slices are those of :mod:`traceanalyzer.frames.nesting`, and count in the same order: (start,
longest first, row). Where they nest properly both trees are one. Where they do not, nothing is set
aside here: a slice that outlives an earlier one is the innermost from its start on, and the earlier
one has no time for itself from there on. So every instant of a thread belongs to one slice, and
what all of them have for themselves adds up to the time in which any of them ran.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.frames import intervals, linking, nesting
from traceanalyzer.frames.intervals import Bools, Ints
from traceanalyzer.frames.nesting import ROOT, Rows
from traceanalyzer.frames.numbering import Numbers, numbered

#: So many slices that ended are passed one by one on the way up; beyond, a stack finds the way.
#: Calls are seldom so deep.
_CLIMBS = 128


def hold(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Which slice holds each one whole: of all that do, the last to start?

    Returns:
        ``frame`` with ``depth`` (0 for a root), ``parent`` (row of the holding slice, null for a
        root) and ``self_time``: for how long it was the last to start of those that were running.
        All are null for a row that is no slice.
    """
    valid = intervals.is_interval(frame)
    start, end = intervals.bounds(frame)
    group = numbered([frame[name] for name in by])[1] if by else np.zeros(frame.height, np.int32)
    order = _in_order(group, start, end, valid)
    depth, parent = (np.zeros(frame.height, np.int32) for _ in range(2))
    own = np.zeros(frame.height, np.int64)
    for lo, hi in nesting.blocks(group[order]):
        rows = order[lo:hi]
        depth[rows], above, until = _hold_group(start[rows], end[rows])
        parent[rows] = np.where(above == ROOT, ROOT, rows[above])
        until -= start[rows]  # the rest is the parent's, or another's
        own[rows] += until
        held = above != ROOT
        np.subtract.at(own, rows[above[held]], until[held])
    return frame.with_columns(
        intervals.nullable("depth", depth.astype(np.uint32), valid),
        intervals.nullable("parent", parent, valid & (parent != ROOT)).cast(pl.UInt32),
        intervals.nullable("self_time", own, valid),
    )


def innermost(points: pl.DataFrame, tree: pl.DataFrame, by: Sequence[str] = ()) -> pl.Series:
    """The last slice to start of those of its group that are running at each point.

    Args:
        points: Int64 ``ts`` and the columns ``by``.
        tree: slices in order of start, with the ``parent`` that :func:`hold` gives.
        by: the columns that tell threads apart.

    Returns:
        Row numbers of ``tree``, null where none is running. A slice that ends at a point is not.
    """
    number = np.zeros(points.height + tree.height, np.int32)
    if by:
        keys = pl.concat([points.select(by), tree.select(by)], how="vertical_relaxed")
        number = numbered(keys.get_columns())[1]
    at_group, group = np.split(number, [points.height])
    start, end = intervals.bounds(tree)
    order = np.argsort(intervals.narrow(group), kind="stable")
    asked = np.argsort(intervals.narrow(at_group), kind="stable")
    edges = np.searchsorted(group[order], np.arange(number.max(initial=-1) + 2))
    time = points["ts"].cast(pl.Int64).fill_null(np.iinfo(np.int64).min).to_numpy()
    at = np.full(points.height, ROOT)
    for low, high in nesting.blocks(at_group[asked]):
        own = asked[low:high]
        rows = order[slice(*edges[at_group[own[0]] :][:2])]
        before = np.searchsorted(start[rows], time[own], side="right")
        begun = before > 0
        at[own[begun]] = rows[before[begun] - 1]
    nesting.climb(at, time, end, parents(tree), _CLIMBS)
    late = np.flatnonzero((at != ROOT) & (end[at] <= time)) if tree.height else at[:0]
    if late.size:
        found = linking.enclosing(points[late], tree, by)["slice"]
        at[late] = found.cast(pl.Int64).fill_null(ROOT).to_numpy()
    return intervals.nullable("slice", at, at != ROOT).cast(pl.UInt32)


def nearest(tree: pl.DataFrame, wanted: Bools) -> Rows:
    """The innermost wanted slice that each slice lies in, a row number; :data:`ROOT` for none."""
    parent = parents(tree)
    found = np.full(tree.height, ROOT, np.int32)
    for level in _levels(tree, parent):
        above = parent[level]
        found[level] = np.where(wanted[above], above, found[above])
    return found


def parents(tree: pl.DataFrame) -> Rows:
    """The parent of each slice as an array, :data:`ROOT` where there is none."""
    parent: Rows = tree["parent"].cast(pl.Int32).fill_null(ROOT).to_numpy()
    return parent


def with_descendants(values: Ints, tree: pl.DataFrame) -> Ints:
    """Each slice's value and those of all slices in it, by ``depth`` and ``parent`` of the tree."""
    total = values.copy()
    parent = parents(tree)
    for level in reversed(_levels(tree, parent)):
        np.add.at(total, parent[level], total[level])
    return total


def _levels(tree: pl.DataFrame, parent: Rows) -> list[Rows]:
    """The rows of each depth, from 1 on."""
    rows = np.flatnonzero(parent != ROOT).astype(np.int32)
    depth = tree["depth"].fill_null(0).to_numpy()[rows]
    order = np.argsort(intervals.narrow(depth), kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(depth))[:-1])


def _in_order(group: Numbers, start: Ints, end: Ints, valid: Bools) -> Rows:
    """The rows that are slices by (group, start, longest first), ties in the order given."""
    rows = np.flatnonzero(valid).astype(np.int32)
    at, until = (start, end) if valid.all() else (start[rows], end[rows])
    later = at[1:] > at[:-1]
    if (later | ((at[1:] == at[:-1]) & (until[1:] <= until[:-1]))).all():
        return rows[np.argsort(intervals.narrow(group[rows]), kind="stable")]
    return rows[nesting.slice_order(group[rows].astype(np.int64), at, until)]


def _hold_group(start: Ints, end: Ints) -> tuple[Rows, Rows, Ints]:
    """Depth and parent of the ordered slices of one group, and until when each counts.

    That is its end, or the start of the first slice that starts in it and outlives it.
    """
    found = nesting.nest_mostly(start, end)
    if found is None:
        return _hold_by_stack(start, end)
    depth, parent, rest = found
    until = end.copy()
    if rest.size:
        depth[rest], above, until[rest] = _hold_by_stack(start[rest], end[rest])
        parent[rest] = np.where(above == ROOT, ROOT, rest[above])
    return depth, parent, until


def _hold_by_stack(start: Ints, end: Ints) -> tuple[Rows, Rows, Ints]:
    """The same, slice by slice."""
    depth, parent, until = array("i"), array("i"), end.copy()
    ends, rows = [nesting.NEVER], [ROOT]  # the open slices, the innermost last
    for row, (since, last) in enumerate(nesting.pairs(start, end)):
        while ends[-1] <= since:
            ends.pop()
            rows.pop()
        while ends[-1] < last:
            ends.pop()
            until[rows.pop()] = since
        depth.append(len(rows) - 1)
        parent.append(rows[-1])
        ends.append(last)
        rows.append(row)
    return np.array(depth, np.int32), np.array(parent, np.int32), until
