"""Slice tree of a thread with partially overlapping slices: depth, parent and self time.

Slices are defined and ordered as in :mod:`traceanalyzer.frames.nesting`: (start, longest first,
row). For properly nested slices both trees are equal. There are no overflow lanes here: a slice
that outlives an earlier one is the innermost from its start on, and the earlier one has no self
time from then on. So every instant of a thread belongs to one slice, and all self times add up to
the time in which any slice ran.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.frames import intervals, linking, nesting
from traceanalyzer.frames.intervals import Bools, Ints
from traceanalyzer.frames.nesting import ROOT, Rows
from traceanalyzer.frames.numbering import Numbers, numbered

#: Maximum number of ended slices to climb one by one; beyond, a stack is used. Calls are rarely so
#: deep.
_CLIMBS = 128


def build_tree(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Compute depth, parent and self time of each slice.

    The parent is the last slice to start among those that fully contain the slice.

    Returns:
        ``frame`` with ``depth`` (0 for a root), ``parent`` (row of the containing slice, null for a
        root) and ``self_time``: the time in which it was the last started of the running slices.
        All are null for a row that is not a slice.
    """
    valid = intervals.is_interval(frame)
    start, end = intervals.bounds(frame)
    group = numbered([frame[name] for name in by])[1] if by else np.zeros(frame.height, np.int32)
    order = _in_order(group, start, end, valid)
    depth, parent = (np.zeros(frame.height, np.int32) for _ in range(2))
    self_time = np.zeros(frame.height, np.int64)
    for lo, hi in nesting.blocks(group[order]):
        rows = order[lo:hi]
        depth[rows], above, until = _tree_of_group(start[rows], end[rows])
        parent[rows] = np.where(above == ROOT, ROOT, rows[above])
        until -= start[rows]  # the rest belongs to other slices
        self_time[rows] += until
        has_parent = above != ROOT
        np.subtract.at(self_time, rows[above[has_parent]], until[has_parent])
    return frame.with_columns(
        intervals.nullable("depth", depth.astype(np.uint32), valid),
        intervals.nullable("parent", parent, valid & (parent != ROOT)).cast(pl.UInt32),
        intervals.nullable("self_time", self_time, valid),
    )


def innermost(points: pl.DataFrame, tree: pl.DataFrame, by: Sequence[str] = ()) -> pl.Series:
    """Return the last slice to start among those of its group that are running at each point.

    Args:
        points: Int64 ``ts`` and the columns ``by``.
        tree: slices in order of start, with the ``parent`` computed by :func:`build_tree`.
        by: columns that identify threads.

    Returns:
        Row numbers of ``tree``, null if none is running. A slice that ends at a point is not
        running.
    """
    return Lookup(tree, by).innermost(points)


class Lookup:
    """The slices of a tree by group, for several searches; see :func:`innermost`."""

    def __init__(self, tree: pl.DataFrame, by: Sequence[str] = ()) -> None:
        self._tree, self._by = tree, list(by)
        group = np.zeros(tree.height, np.int32)
        self._first = group[:1]
        if by:
            self._first, group = numbered([tree[name] for name in by])
        order = np.argsort(intervals.narrow(group), kind="stable")
        self._edges = np.searchsorted(group[order], np.arange(self._first.size + 1))
        start, self._end = intervals.bounds(tree)
        self._order, self._start = order.astype(np.int32), start[order]
        self._parent = parents(tree)

    def innermost(self, points: pl.DataFrame) -> pl.Series:
        """Return the row of the last slice to start of those that run at each point."""
        number = np.zeros(self._first.size + points.height, np.int32)
        if self._by:
            keys = [self._tree[:, self._by][self._first], points[:, self._by]]
            number = numbered(pl.concat(keys, how="vertical_relaxed").get_columns())[1]
        groups, at_group = np.split(number, [self._first.size])
        order = np.argsort(intervals.narrow(at_group), kind="stable")
        time = points["ts"].cast(pl.Int64).fill_null(np.iinfo(np.int64).min).to_numpy()
        at = np.full(points.height, ROOT)
        for low, high in nesting.blocks(at_group[order]):
            of_group = order[low:high]
            for group in np.flatnonzero(groups == at_group[of_group[0]]):  # one, or none
                first, last = self._edges[group : group + 2]
                before = np.searchsorted(self._start[first:last], time[of_group], side="right")
                begun = before > 0
                at[of_group[begun]] = self._order[first + before[begun] - 1]
        nesting.climb(at, time, self._end, self._parent, _CLIMBS)
        late = np.flatnonzero((at != ROOT) & (self._end[at] <= time)) if self._end.size else at[:0]
        if late.size:
            slices = linking.enclosing(points[late], self._tree, self._by)["slice"]
            at[late] = slices.cast(pl.Int64).fill_null(ROOT).to_numpy()
        return nesting.row_numbers(at, "slice")


def nearest(tree: pl.DataFrame, wanted: Bools) -> Rows:
    """Return the row of each slice's innermost wanted ancestor; :data:`ROOT` for none."""
    parent = parents(tree)
    ancestor = np.full(tree.height, ROOT, np.int32)
    for level in _levels(tree, parent):
        above = parent[level]
        ancestor[level] = np.where(wanted[above], above, ancestor[above])
    return ancestor


def parents(tree: pl.DataFrame) -> Rows:
    """Return the parent of each slice as an array, :data:`ROOT` for a root."""
    parent: Rows = tree["parent"].cast(pl.Int32).fill_null(ROOT).to_numpy()
    return parent


def with_descendants(values: Ints, tree: pl.DataFrame) -> Ints:
    """Return the sum of each slice's value and those of its descendants."""
    total = values.copy()
    parent = parents(tree)
    for level in reversed(_levels(tree, parent)):
        np.add.at(total, parent[level], total[level])
    return total


def _levels(tree: pl.DataFrame, parent: Rows) -> list[Rows]:
    """Return the rows of each depth, from 1 on."""
    rows = np.flatnonzero(parent != ROOT).astype(np.int32)
    depth = tree["depth"].fill_null(0).to_numpy()[rows]
    order = np.argsort(intervals.narrow(depth), kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(depth))[:-1])


def _in_order(group: Numbers, start: Ints, end: Ints, valid: Bools) -> Rows:
    """Return the slices ordered by (group, start, longest first), stable for ties."""
    rows = np.flatnonzero(valid).astype(np.int32)
    at, until = (start, end) if valid.all() else (start[rows], end[rows])
    later = at[1:] > at[:-1]
    if (later | ((at[1:] == at[:-1]) & (until[1:] <= until[:-1]))).all():
        return rows[np.argsort(intervals.narrow(group[rows]), kind="stable")]
    return rows[nesting.slice_order(group[rows].astype(np.int64), at, until)]


def _tree_of_group(start: Ints, end: Ints) -> tuple[Rows, Rows, Ints]:
    """Return depth, parent and effective end of the ordered slices of one group.

    The effective end is the slice's end, or the start of the first slice that starts in it and
    outlives it.
    """
    nested = nesting.nest_mostly(start, end)
    if nested is None:
        return _tree_by_stack(start, end)
    depth, parent, rest = nested
    until = end.copy()
    if rest.size:
        depth[rest], above, until[rest] = _tree_by_stack(start[rest], end[rest])
        parent[rest] = np.where(above == ROOT, ROOT, rest[above])
    return depth, parent, until


def _tree_by_stack(start: Ints, end: Ints) -> tuple[Rows, Rows, Ints]:
    """Like :func:`_tree_of_group`, slice by slice."""
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
