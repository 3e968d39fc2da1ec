"""Joins by ids, and by time.

Points have an Int64 column ``ts``; slices and intervals are half open, as in
:mod:`traceanalyzer.frames.intervals`: an interval that ends at a point does not contain it, one of
zero duration contains nothing, a row that is not an interval is ignored. Results are row numbers.
The columns ``by`` define groups, null being a value like any other; a null id matches nothing.

Ranges may overlap in any way, and their bounds are inclusive: a range contains a slice that starts
no earlier and ends no later. Both are arrays of Int64 starts and ends, of one thread. n slices and
ranges take O(n log n), nested slices O(n log² n).
"""

from array import array
from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceanalyzer.frames import intervals, nesting
from traceanalyzer.frames.intervals import Bools, Ints, Spans
from traceanalyzer.frames.nesting import NEVER, ROOT, Rows
from traceanalyzer.frames.numbering import group_numbers, numbered

#: Upper bound of id numbers.
_ROOM = 1 << 62
#: Ids are looked up in a table if their range is at most this many times the number of rows ...
_RANGE_PER_ROW = 8
#: ... plus this.
_SMALL_RANGE = 1 << 16


def link(left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    """Match each row of ``right`` with the row of ``left`` that has the same ids.

    Several rows of ``right`` may match one of ``left``. Of several rows of ``left`` with the same
    ids, the first one is used.

    Args:
        left: one row per id.
        right: any number of rows per id.
        on: the id columns, of the same type in both; a null in any of them matches nothing.

    Returns:
        Row numbers ``left`` and ``right`` of each match, ordered by ``right``, each of its rows at
        most once.
    """
    match = first_match(left, right, on)
    hit = np.flatnonzero(match != ROOT)
    return pl.DataFrame({"left": match[hit].astype(np.uint32), "right": hit.astype(np.uint32)})


def first_match(left: pl.DataFrame, right: pl.DataFrame, on: Sequence[str]) -> Rows:
    """Return the first row of ``left`` for the ids of each row of ``right``, or :data:`ROOT`.

    Sequential ids are (nearly) sorted already: 5.6 million calls and 3.7 million kernels with
    sparse ids take 0.5 s and 175 MB.

    Args:
        left: one or more rows per id.
        right: any number of rows per id.
        on: the id columns; a null in any of them matches nothing.
    """
    ids = pl.concat([left[:, list(on)], right[:, list(on)]], how="vertical_relaxed")
    number, size = _as_one_number(ids)
    for name in on:
        if ids[name].null_count():
            number[ids[name].is_null().to_numpy()] = -1
    of_left, of_right = np.split(number, [left.height])
    if size <= _RANGE_PER_ROW * (left.height + right.height) + _SMALL_RANGE:
        return _by_table(of_left, of_right, size)
    return _by_search(of_left, of_right)


def enclosing(points: pl.DataFrame, slices: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Match each point with the innermost running slice of its group.

    The innermost slice is the one that started last; of equal starts the shortest, of equal slices
    the last row. Slices may overlap in any way. O(n log n) for n points and slices.

    Returns:
        ``points`` with ``slice``, a row number of ``slices``, null if none was running.
    """
    if points.is_empty() or slices.is_empty():
        return points.hstack([intervals.nulls("slice", pl.UInt32, points.height)])
    _, (at, group) = group_numbers(by, points, slices)
    rows, spans = _ranges(slices, group)
    after = (spans.start[1:] >= spans.end[:-1]) & (spans.group[1:] == spans.group[:-1])
    if (after | (spans.group[1:] > spans.group[:-1])).all():  # one after another
        return label_by_interval(points, slices, by).rename({"interval": "slice"})
    time = intervals.integers(points["ts"])
    group, start, end = map(np.concatenate, zip(spans, (at, time, time), strict=True))
    # a point follows the slices that start at its time
    order = nesting.slice_order(group, start, end)
    group, start, end = group[order], start[order], end[order]
    inner = np.full(order.size, ROOT)
    for lo, hi in nesting.blocks(group):
        nearest = _innermost(start[lo:hi], end[lo:hi])
        inner[lo:hi] = np.where(nearest == ROOT, ROOT, nearest + lo)
    hit = np.flatnonzero((order >= rows.size) & (inner != ROOT))
    if points["ts"].null_count():
        hit = hit[points["ts"].is_not_null().to_numpy()[order[hit] - rows.size]]
    return _with_rows(points, "slice", order[hit] - rows.size, rows[order[inner[hit]]])


def divided(rows: pl.DataFrame, at: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Divide disjoint intervals at points of their group, in column ``ts``; sorted."""
    inside = label_by_interval(at, rows, by).drop_nulls("interval")
    later = rows[inside["interval"]].with_columns(start=inside["ts"])
    parts = pl.concat([rows, later]).sort(*by, "start", "end", maintain_order=True)
    end = pl.min_horizontal("end", pl.col("start").shift(-1).over(by))
    return parts.with_columns(end=end).filter(pl.col("start") < pl.col("end"))


def label_by_interval(
    points: pl.DataFrame, ranges: pl.DataFrame, by: Sequence[str] = ()
) -> pl.DataFrame:
    """Match each point with the interval of its group that contains it.

    Intervals should not overlap: only the last one to start before the point is considered, while
    :func:`enclosing` considers all. O(n log n).

    Returns:
        ``points`` with ``interval``, a row number of ``ranges``, null if none contains it.
    """
    if points.is_empty() or ranges.is_empty():
        return points.hstack([intervals.nulls("interval", pl.UInt32, points.height)])
    _, (at, group) = group_numbers(by, points, ranges)
    rows, spans = _ranges(ranges, group)
    if not intervals.is_ordered(spans):
        order = intervals.stable_order(spans.group, spans.start)
        spans, rows = Spans(*(column[order] for column in spans)), rows[order]
    inside, row = np.ones(at.size, np.bool_), np.zeros(at.size, np.uint32)
    if points["ts"].null_count():
        inside = points["ts"].is_not_null().to_numpy(writable=True)
    times = intervals.integers(points["ts"])
    count = intervals.counting(spans, at)
    for some in intervals.pieces(at.size):
        last = count(at[some], times[some]) - 1
        inside[some] &= last >= 0
        hit = np.flatnonzero(inside[some])
        last = last[hit]
        within = (spans.group[last] == at[some][hit]) & (times[some][hit] < spans.end[last])
        row[some][hit] = np.where(within, rows[last], 0)
        inside[some][hit] = within
    return points.hstack([intervals.nullable("interval", row, inside)])


# --- joins by ids ------------------------------------------------------------------------------


def _by_table(of_left: Ints, of_right: Ints, size: int) -> Rows:
    row_of = np.full(size + 1, ROOT, np.int32)
    # reversed, so that the first of several rows wins; the last place is for -1
    row_of[of_left[::-1]] = np.arange(of_left.size - 1, -1, -1, dtype=np.int32)
    row_of[-1] = ROOT
    match: Rows = row_of[of_right]
    return match


def _by_search(of_left: Ints, of_right: Ints) -> Rows:
    order = np.argsort(of_left, kind="stable").astype(np.int32)
    of_left = of_left[order]
    place = np.searchsorted(of_left, of_right).astype(np.int32)
    hit = np.flatnonzero((place < order.size) & (of_right >= 0)).astype(np.int32)
    hit = hit[of_left[place[hit]] == of_right[hit]]
    match = np.full(of_right.size, ROOT, np.int32)
    match[hit] = order[place[hit]]
    return match


def _as_one_number(ids: pl.DataFrame) -> tuple[Ints, int]:
    """Return a number for each combination of ids, and an upper bound of the numbers.

    Integers are combined directly if the product of their ranges is less than :data:`_ROOM`.
    """
    number, size = np.zeros(0, np.int64), 1
    for column in ids:
        low, high = column.min(), column.max()
        if not (isinstance(low, int) and isinstance(high, int) and size * (high - low) < _ROOM):
            number = numbered(ids.get_columns())[1].astype(np.int64)
            return number, int(number.max(initial=0)) + 1
        if low == high:  # often the process
            continue
        known = column.fill_null(low) if column.null_count() else column
        counted = np.subtract(known.cast(pl.Int64).to_numpy(), low)
        number = counted if size == 1 else number * (high - low + 1) + counted
        size *= high - low + 1
    return (number if size > 1 else np.zeros(ids.height, np.int64)), size


# --- joins by time -----------------------------------------------------------------------------


def _ranges(ranges: pl.DataFrame, group: Ints) -> tuple[Ints, Spans]:
    """Return the rows that are intervals with a length, and their spans."""
    start, end = intervals.bounds(ranges)
    rows = np.flatnonzero(intervals.is_interval(ranges) & (start < end))
    if rows.size == start.size:
        return rows, Spans(group, start, end)
    return rows, Spans(group[rows], start[rows], end[rows])


def _innermost(start: Ints, end: Ints) -> Rows:
    """Return for each ordered span of one group the last previous one that is still open.

    For nested spans that is the parent. All others are processed with a stack.
    """
    most = nesting.nest_mostly(start, end)
    if most is None:
        return _innermost_by_stack(start, end)
    _, last, rest = most
    nearest = _innermost_by_stack(start[rest], end[rest])
    last[rest] = np.where(nearest == ROOT, ROOT, rest[nearest])
    return last


def _innermost_by_stack(start: Ints, end: Ints) -> Rows:
    """Like :func:`_innermost`; a span outlived by a later one is never the last open one again."""
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
    """Add a column of row numbers, null except in the rows ``at``."""
    column = np.zeros(frame.height, np.uint32)
    column[at] = rows
    valid = np.zeros(frame.height, np.bool_)
    valid[at] = True
    return frame.hstack([intervals.nullable(name, column, valid)])


# --- slices in ranges ----------------------------------------------------------------------------

_SOONEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def innermost_range(start: Ints, end: Ints, since: Ints, until: Ints) -> Rows:
    """Return the last range to start among those that contain each slice; :data:`ROOT` for none.

    Args:
        start: starts of the ranges, ordered by (start, longest first).
        end: ends of the ranges.
        since: starts of the slices, in any order.
        until: ends of the slices.
    """
    innermost = np.full(since.size, ROOT, np.int32)
    if not start.size:
        return innermost
    begun = np.searchsorted(start, since, side="right") - 1
    reached = np.maximum.accumulate(end)[begun] >= until  # by any range that has begun
    queries = np.flatnonzero((begun >= 0) & reached)
    innermost[queries] = _last_reaching(end, begun[queries], until[queries])
    return innermost


def _last_reaching(end: Ints, place: Ints, need: Ints) -> Ints:
    """Return the last row up to each place whose end is not before ``need``; it must exist.

    A tree of the latest end of 2, 4, 8 ... rows is climbed until the previous rows reach ``need``,
    and descended to the last of them: a few steps if the row is near.
    """
    latest = [end]
    while latest[-1].size > 1:
        even = latest[-1] if latest[-1].size % 2 == 0 else np.append(latest[-1], _SOONEST)
        latest.append(np.maximum(even[::2], even[1::2]))
    at, turned = place.copy(), np.zeros(place.size, np.int8)
    climbing = np.flatnonzero(end[at] < need)
    for level, ends in enumerate(latest):
        behind = at[climbing] % 2 == 1
        behind[behind] = ends[at[climbing[behind]] - 1] >= need[climbing[behind]]
        turning, climbing = climbing[behind], climbing[~behind]
        at[turning] -= 1
        turned[turning] = level
        at[climbing] >>= 1
    for level in range(int(turned.max(initial=0)), 0, -1):
        down = np.flatnonzero(turned >= level)
        ends, later = latest[level - 1], 2 * at[down] + 1
        there = later < ends.size
        there[there] = ends[later[there]] >= need[down[there]]
        at[down] = later - ~there
    return at


class RangeContents:
    """Aggregates of the slices in each range.

    Ordered by start, the slices of a range are contiguous if they also end in that order. Slices
    that contain others break this; they are few and processed separately.

    Attributes:
        count: number of slices in each range.
    """

    def __init__(self, start: Ints, end: Ints, since: Ints, until: Ints) -> None:
        """Look up the slices of each range.

        Args:
            start: starts of the ranges, in any order.
            end: ends of the ranges.
            since: starts of the slices, ascending.
            until: ends of the slices.
        """
        soonest = np.minimum.accumulate(until[::-1])[::-1]  # earliest end from here on
        self._holds: Bools = until > soonest
        self._any_holds = bool(self._holds.any())
        plain = self._plain(since), self._plain(until)
        self._low = np.searchsorted(plain[0], start)
        self._high = np.maximum(np.searchsorted(plain[1], end, side="right"), self._low)
        self._nested = _Nested(start, end, since[self._holds], until[self._holds])
        self.count: Ints = self.sum(np.ones(since.size, np.int64))

    def sum(self, values: Ints) -> Ints:
        """Return the sum of a value per slice for each range, 0 without slices."""
        before = np.concatenate([[0], np.cumsum(self._plain(values))])
        total: Ints = before[self._high] - before[self._low]
        return total + self._nested.sum(values[self._holds]) if self._any_holds else total

    def lowest(self, values: Ints) -> Ints:
        """Return the minimum of a value per slice for each range, without slices maximum Int64."""
        lowest = _over(self._plain(values), self._low, self._high, np.minimum, _LATEST)
        if not self._any_holds:
            return lowest
        return np.minimum(lowest, self._nested.extreme(values[self._holds], np.minimum, _LATEST))

    def highest(self, values: Ints) -> Ints:
        """Return the maximum of a value per slice for each range, without slices minimum Int64."""
        highest = _over(self._plain(values), self._low, self._high, np.maximum, _SOONEST)
        if not self._any_holds:
            return highest
        return np.maximum(highest, self._nested.extreme(values[self._holds], np.maximum, _SOONEST))

    def _plain(self, values: Ints) -> Ints:
        return values[~self._holds] if self._any_holds else values


def _over(values: Ints, low: Ints, high: Ints, pick: np.ufunc, none: int) -> Ints:
    """Return the extreme (``pick``) of the values in [low, high), from two blocks that cover it."""
    extremes = np.full(low.size, none, np.int64)
    size = np.frexp(high - low)[1].astype(np.int8)  # bits: a block is at least half of the range
    order = np.argsort(size, kind="stable").astype(np.uint32)
    edges = np.searchsorted(size[order], np.arange(1, int(size.max(initial=0)) + 2))
    for bit in range(edges.size - 1):
        rows, width = order[edges[bit] : edges[bit + 1]], 1 << bit
        extremes[rows] = pick(values[low[rows]], values[high[rows] - width])
        values = pick(values[:-width], values[width:])  # blocks of twice the size
    return extremes


class _Nested:
    """Aggregates of slices that may contain each other.

    The slices that start no earlier than a range are a few blocks of 1, 2, 4 ... slices; ordered by
    end, those inside the range come first in each block.
    """

    def __init__(self, start: Ints, end: Ints, since: Ints, until: Ints) -> None:
        self._size = 1 << (since.size - 1).bit_length() if since.size else 0
        self._first = np.searchsorted(since, start)
        order = np.argsort(until, kind="stable")
        self._ended = np.searchsorted(until[order], end, side="right")
        self._place = np.arange(self._size)  # in the order of ends; padding never ends
        self._place[order] = np.arange(since.size)

    def sum(self, values: Ints) -> Ints:
        """Return the sum of a value per slice for each range."""
        total = np.zeros(self._first.size, np.int64)
        padded = np.append(values, np.zeros(self._size - values.size, np.int64))
        for order, _, rows, low, high in self._blocks():
            before = np.concatenate([[0], np.cumsum(padded[order])])
            total[rows] += before[high] - before[low]
        return total

    def extreme(self, values: Ints, pick: np.ufunc, none: int) -> Ints:
        """Return the extreme (``pick``) of a value per slice for each range."""
        extremes = np.full(self._first.size, none, np.int64)
        padded = np.append(values, np.full(self._size - values.size, none, np.int64))
        for order, width, rows, _, high in self._blocks():
            picked = pick.accumulate(padded[order].reshape(-1, width), axis=1).ravel()
            extremes[rows] = pick(extremes[rows], picked[high - 1])
        return extremes

    def _blocks(self) -> Iterator[tuple[Ints, int, Ints, Ints, Ints]]:
        """Yield the slices of each range by blocks, for each block size.

        Yields the order of slices in blocks of this size, the size, the rows of ranges with slices
        in such a block, and the start and end of these slices in that order.
        """
        at = self._first.copy()
        width = 1
        while width <= self._size:
            key = np.arange(self._size) // width * self._size + self._place
            order = np.argsort(key)
            rows = np.flatnonzero((at % 2 == 1) | (width == self._size) & (at == 0))
            rows = rows[at[rows] * width < self._size]
            low = at[rows] * width
            high = np.searchsorted(key[order], at[rows] * self._size + self._ended[rows])
            some = high > low
            yield order, width, rows[some], low[some], high[some]
            at = (at + 1) // 2
            width *= 2
