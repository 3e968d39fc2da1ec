"""Which row belongs to which: by ids, or by lying inside in time.

Points have an Int64 column ``ts``; slices and intervals are half open, as in
:mod:`traceanalyzer.frames.intervals`: one that ends at a point does not hold it, one of no duration
holds nothing, a row that is no interval is ignored. Rows are named by their number in the frame.
Columns named by ``by`` keep groups apart, null being a value like any other; an id that is null
matches nothing.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.frames import intervals, nesting
from traceanalyzer.frames.intervals import Ints, Spans
from traceanalyzer.frames.nesting import NEVER, ROOT, Rows
from traceanalyzer.frames.numbering import group_numbers, numbered

#: Numbers of ids stay below.
_ROOM = 1 << 62
#: Ids are looked up in a table where their range is at most so many times the number of rows ...
_RANGE_PER_ROW = 8
#: ... and this much more.
_SMALL_RANGE = 1 << 16


def link(left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    """Which row of ``left`` has the same ids as each row of ``right``?

    Many rows of ``right`` may belong to one of ``left``. Of several rows of ``left`` with the same
    ids the first one is taken.

    Args:
        left: one row for each id.
        right: any number of rows for each id.
        on: the id columns, of the same type in both; a null in any of them matches nothing.

    Returns:
        Row numbers ``left`` and ``right`` of each match, ordered by ``right``, each of its rows at
        most once.
    """
    found = first_match(left, right, on)
    hit = np.flatnonzero(found != ROOT)
    return pl.DataFrame({"left": found[hit].astype(np.uint32), "right": hit.astype(np.uint32)})


def first_match(left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str]) -> Rows:
    """The first row of ``left`` with the same ids as each row of ``right``; :data:`ROOT` for none.

    Ids that are counted up are sorted already, or nearly: 5.6 million calls and 3.7 million kernels
    whose ids are far apart take 0.5 s and 175 MB.

    Args:
        left: one row for each id, or several.
        right: any number of rows for each id.
        on: the id columns; a null in any of them matches nothing.
    """
    ids = pl.concat([left[list(on)], right[list(on)]], how="vertical_relaxed")
    number, size = _as_one_number(ids)
    for name in on:
        if ids[name].null_count():
            number[ids[name].is_null().to_numpy()] = -1
    of_left, of_right = np.split(number, [left.height])
    if size <= _RANGE_PER_ROW * (left.height + right.height) + _SMALL_RANGE:
        return _by_table(of_left, of_right, size)
    return _by_search(of_left, of_right)


def enclosing(points: pl.DataFrame, slices: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Which slice of its group was the innermost one running at each point?

    The innermost is the one that started last; of several that started together the shortest, of
    several alike the last row. Slices may overlap in any way. O(n log n) for n points and slices.

    Returns:
        ``points`` with ``slice``, a row number of ``slices``, null where none was running.
    """
    if points.is_empty() or slices.is_empty():
        return points.with_columns(pl.lit(None, pl.UInt32).alias("slice"))
    asked, at, rows, spans = _spans(points, slices, by)
    group, start, end = (np.concatenate(pair) for pair in zip(spans, at, strict=True))
    # a point comes after the slices that start with it
    order = nesting.slice_order(group, start, end)
    group, start, end = group[order], start[order], end[order]
    inner = np.full(order.size, ROOT)
    for lo, hi in nesting.blocks(group):
        found = _innermost(start[lo:hi], end[lo:hi])
        inner[lo:hi] = np.where(found == ROOT, ROOT, found + lo)
    hit = np.flatnonzero((order >= rows.size) & (inner != ROOT))
    return _with_rows(points, "slice", asked[order[hit] - rows.size], rows[order[inner[hit]]])


def label_by_interval(
    points: pl.DataFrame, ranges: pl.DataFrame, by: Sequence[str] = ()
) -> pl.DataFrame:
    """Which interval of its group holds each point, where intervals do not overlap?

    Where they do overlap only the last one to start before the point is considered;
    :func:`enclosing` considers all. O(n log n).

    Returns:
        ``points`` with ``interval``, a row number of ``ranges``, null where none holds it.
    """
    if points.is_empty() or ranges.is_empty():
        return points.with_columns(pl.lit(None, pl.UInt32).alias("interval"))
    asked, at, rows, spans = _spans(points, ranges, by)
    order = intervals.stable_order(spans.group, spans.start)
    spans = Spans(*(column[order] for column in spans))
    last = intervals.count_begun(spans, at.group, at.start) - 1
    hit = np.flatnonzero(last >= 0)
    last = last[hit]
    held = (spans.group[last] == at.group[hit]) & (at.start[hit] < spans.end[last])
    return _with_rows(points, "interval", asked[hit[held]], rows[order[last[held]]])


# --- rows of the same ids ---------------------------------------------------------------------


def _by_table(of_left: Ints, of_right: Ints, size: int) -> Rows:
    row_of = np.full(size + 1, ROOT, np.int32)
    # of several rows with one id the last written, the first, stays; the last place is for none
    row_of[of_left[::-1]] = np.arange(of_left.size - 1, -1, -1, dtype=np.int32)
    row_of[-1] = ROOT
    found: Rows = row_of[of_right]
    return found


def _by_search(of_left: Ints, of_right: Ints) -> Rows:
    order = np.argsort(of_left, kind="stable").astype(np.int32)
    of_left = of_left[order]
    place = np.searchsorted(of_left, of_right).astype(np.int32)
    hit = np.flatnonzero((place < order.size) & (of_right >= 0)).astype(np.int32)
    hit = hit[of_left[place[hit]] == of_right[hit]]
    found = np.full(of_right.size, ROOT, np.int32)
    found[hit] = order[place[hit]]
    return found


def _as_one_number(ids: pl.DataFrame) -> tuple[Ints, int]:
    """A number from 0 for each combination of ids, and a number that is larger than all of them.

    Integers whose ranges multiply to less than :data:`_ROOM` need not be looked up.
    """
    number, size = np.zeros(ids.height, np.int64), 1
    for column in ids:
        low, high = column.min(), column.max()
        if not (isinstance(low, int) and isinstance(high, int) and size * (high - low) < _ROOM):
            number = numbered(ids.get_columns())[1].astype(np.int64)
            return number, int(number.max(initial=0)) + 1
        number *= high - low + 1
        known = column.fill_null(low) if column.null_count() else column
        number += (known.cast(pl.Int64) - low).to_numpy()
        size *= high - low + 1
    return number, size


# --- rows in which points lie ------------------------------------------------------------------


def _spans(
    points: pl.DataFrame, ranges: pl.DataFrame, by: Sequence[str]
) -> tuple[Ints, Spans, Ints, Spans]:
    """Row numbers and spans of the points, as spans of no duration, and of what can hold them."""
    _, (at_group, group) = group_numbers(by, points, ranges)
    start, end = intervals.bounds(ranges)
    rows = np.flatnonzero(intervals.is_interval(ranges) & (start < end))
    asked, times = np.arange(points.height), points["ts"].cast(pl.Int64)
    if times.null_count():
        asked = np.flatnonzero(times.is_not_null().to_numpy())
        at_group, times = at_group[asked], times.drop_nulls()
    time = times.to_numpy()
    return (
        asked,
        Spans(at_group, time, time),
        rows,
        Spans(group[rows], start[rows], end[rows]),
    )


def _innermost(start: Ints, end: Ints) -> Rows:
    """For each ordered span of one group the last one before it that is still open.

    Where spans nest that is the parent. In the other stretches a stack finds it.
    """
    most = nesting.nest_mostly(start, end)
    if most is None:
        return _innermost_by_stack(start, end)
    _, last, rest = most
    found = _innermost_by_stack(start[rest], end[rest])
    last[rest] = np.where(found == ROOT, ROOT, rest[found])
    return last


def _innermost_by_stack(start: Ints, end: Ints) -> Rows:
    """The same, span by span: one that a later span outlives is never the last open one again."""
    last = array("i")
    ends, rows = [NEVER], [ROOT]
    for row, (since, until) in enumerate(nesting.pairs(start, end)):
        while ends[-1] <= since:
            ends.pop()
            rows.pop()
        last.append(rows[-1])
        while ends[-1] <= until:
            ends.pop()
            rows.pop()
        ends.append(until)
        rows.append(row)
    return np.array(last, np.int32)


def _with_rows(frame: pl.DataFrame, name: str, at: Ints, rows: Ints) -> pl.DataFrame:
    """The frame with a column of row numbers, null but in the rows ``at``."""
    column = np.zeros(frame.height, np.uint32)
    column[at] = rows
    valid = np.zeros(frame.height, np.bool_)
    valid[at] = True
    return frame.with_columns(intervals.nullable(name, column, valid))
