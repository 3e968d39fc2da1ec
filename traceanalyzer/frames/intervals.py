"""Algebra of half-open intervals [start, end), within groups of rows.

An interval frame has Int64 columns ``start`` and ``end`` in any unit, and the columns ``by``: rows
with equal values in all of them form a group, null being a value like any other. Rows may overlap
and have any order. A row with a null ``start`` or ``end``, or that ends before it starts, is
ignored; one of zero length has measure 0 and covers nothing. Set operations return the columns
``by``, ``start``, ``end``, one row per maximal run, sorted by group and start. Results are exact if
lengths fit Int64, and take O(n log n) for n rows.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.frames.numbering import group_numbers

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: Rows per batch.
_AT_ONCE = 1 << 16

#: Whether a row is an interval (null for a null bound, which a filter drops).
IS_INTERVAL = pl.col("end") >= pl.col("start")


class Spans(NamedTuple):
    """Intervals as arrays, each with the number of its group."""

    group: Ints
    start: Ints
    end: Ints


def union(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Return the union of intervals; intervals that overlap or touch become one."""
    if frame.is_empty():
        return frame[:, [*by, "start", "end"]]
    groups, (group,) = group_numbers(by, frame)
    return _to_frame(groups, _union(_spans(frame, group)))


def reached(rows: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Return the latest end of the earlier rows of each row's group; null for its first row."""
    _, (group,) = group_numbers(by, rows)
    order = np.argsort(narrow(group), kind="stable")
    first, latest = np.diff(group[order], prepend=-1) > 0, integers(rows["end"])[order]
    for low, high in itertools.pairwise([*np.flatnonzero(first), order.size]):
        np.maximum.accumulate(latest[low:high], out=latest[low:high])
    before, known = np.empty_like(latest), np.empty_like(first)
    before[order[1:]], known[order] = latest[:-1], ~first
    return nullable("reached", before, known)


def crowded(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Return the time in which two or more intervals overlap.

    In order of start, each one overlaps others until it or the last of the previous ones ends.

    Returns:
        The columns ``by``, ``start``, ``end``, one row per maximal run, sorted.
    """
    rows = frame.filter(IS_INTERVAL).select(*by, "start", "end").sort("start")
    rows = rows.hstack([reached(rows, by)]).drop_nulls("reached")
    return union(rows.with_columns(end=pl.min_horizontal("end", "reached")), by)


def measure(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Return the total length of the union of intervals.

    Returns:
        The columns ``by`` and ``length``, one row per group of the frame, sorted; a group without
        any interval has length 0. Without ``by`` one row, also for an empty frame.
    """
    groups, (group,) = group_numbers(by, frame)
    runs = _union(_spans(frame, group))
    length = _sums(runs.group, runs.end - runs.start, groups.height if by else 1)
    return pl.DataFrame([*groups, pl.Series("length", length)])


def summary(frame: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return count, total length, union length and bounds of the intervals of each group.

    For few groups of many intervals, processed one by one; :func:`measure` is for any number.

    Returns:
        The columns ``by``, n, total (sum of lengths), length (of the union), start and end (of
        all), one row per group of the frame, sorted; without intervals start and end are 0.
    """
    groups, (group,) = group_numbers(by, frame)
    spans = _ordered(_spans(frame, group))
    names = ("n", "total", "length", "start", "end")
    columns = {name: np.zeros(groups.height, np.int64) for name in names}
    first = _firsts(spans.group) if spans.group.size else np.zeros(0, np.int64)
    for low, high in itertools.pairwise([*first, spans.group.size]):
        values = _summarize(spans.start[low:high], spans.end[low:high])
        for name, value in zip(columns, values, strict=True):
            columns[name][spans.group[low]] = value
    return pl.DataFrame([*groups, *(pl.Series(name, column) for name, column in columns.items())])


def _summarize(start: Ints, end: Ints) -> tuple[int, int, int, int, int]:
    """Return n, total, union length, first start and last end of intervals ordered by start.

    An interval adds to the union what extends beyond all previous ends. Processed in batches that
    fit the CPU cache.
    """
    total = length = 0
    reached = int(start[0])
    for low in range(0, start.size, _AT_ONCE):
        some, ends = start[low : low + _AT_ONCE], end[low : low + _AT_ONCE]
        before = np.empty(some.size + 1, np.int64)
        before[0] = reached
        np.maximum.accumulate(ends, out=before[1:])
        np.maximum(before, reached, out=before)
        total += int((ends - some).sum())
        length += int((before[1:] - np.maximum(before[:-1], some)).sum())
        reached = int(before[-1])
    return start.size, total, length, int(start[0]), reached


def _sums(group: Ints, values: Ints, groups: int) -> Ints:
    """Return the sum of each group's values, which are ordered by group."""
    sums = np.zeros(groups, np.int64)
    if group.size:
        first = _firsts(group)
        sums[group[first]] = np.add.reduceat(values, first)
    return sums


def _firsts(group: Ints) -> Ints:
    """Return the first row of each group."""
    changes: Ints = np.flatnonzero(group[1:] != group[:-1])
    return np.concatenate([[0], changes + 1])


def gaps(
    frame: pl.DataFrame, by: Sequence[str] = (), span: pl.DataFrame | None = None
) -> pl.DataFrame:
    """Return the gaps: the maximal parts of the span that no interval covers.

    Args:
        frame: the intervals.
        by: grouping columns.
        span: the intervals to search, with the same ``by``; a group without intervals is one gap, a
            group that is not in ``span`` is dropped. Default: each group's first start to its last
            end.
    """
    if span is None:
        groups, (group,) = group_numbers(by, frame)
        spans = _spans(frame, group)
        return _to_frame(groups, _between(_union(spans), *_extent(spans)))
    groups, (group, group_of_span) = group_numbers(by, frame, span)
    within = _union(_spans(span, group_of_span))
    if np.any(within.group[1:] == within.group[:-1]):  # several spans of a group
        return subtract(span, frame, by)
    runs = _clipped(_union(_spans(frame, group)), within, groups.height)
    return _to_frame(groups, _between(runs, *within))


def intersect(a: pl.DataFrame, b: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Return the intersection of the unions of ``a`` and ``b``."""
    if a.is_empty() or b.is_empty():
        return a[:0, [*by, "start", "end"]]
    groups, (runs, others) = _unions(by, a, b)
    return _to_frame(groups, _inside(runs, others, _met(runs, others)))


def subtract(a: pl.DataFrame, b: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Return the union of ``a`` without the union of ``b``."""
    if a.is_empty() or b.is_empty():
        return union(a, by)
    groups, (runs, others) = _unions(by, a, b)
    return _to_frame(groups, _outside(runs, others, _met(runs, others)))


def divide(
    within: pl.DataFrame, frames: Sequence[pl.DataFrame], by: Sequence[str] = ()
) -> list[pl.DataFrame]:
    """Divide the union of ``within`` by the first of the frames with a running interval.

    Returns:
        For each of the frames, the time of which it is the first, and last the time in which no
        interval of any frame runs; columns ``by``, ``start``, ``end``, disjoint and sorted.
    """
    groups, numbers = group_numbers(by, within, *frames)
    left, pieces = _union(_spans(within, numbers[0])), []
    for frame, number in zip(frames, numbers[1:], strict=True):  # one union at a time in memory
        runs = _union(_spans(frame, number))
        met = _met(left, runs)
        pieces.append(_inside(left, runs, met))
        left = _outside(left, runs, met)
    return [_to_frame(groups, spans) for spans in (*pieces, left)]


def clip(frame: pl.DataFrame, start: int | None = None, end: int | None = None) -> pl.DataFrame:
    """Return the rows that overlap [start, end), clipped to it; None leaves a side open.

    A row of zero length is kept if it is in [start, end). All columns and the row order are kept.
    """
    keep = IS_INTERVAL
    if start is not None:
        keep &= (pl.col("end") > start) | (pl.col("start") >= start)
    if end is not None:
        keep &= pl.col("start") < end
    return frame.filter(keep).with_columns(
        pl.col("start").clip(lower_bound=start), pl.col("end").clip(upper_bound=end)
    )


def overlap_with(rows: pl.DataFrame, windows: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Compute how long each row overlaps the windows of its group.

    Returns:
        ``rows`` with a column ``overlap``: the measure of the row's intersection with the union of
        the windows, null if the row is not an interval. Rows may overlap each other.
    """
    return rows.hstack(overlaps(rows, [windows], by))


def overlaps(
    rows: pl.DataFrame, windows: Sequence[pl.DataFrame], by: Sequence[str] = ()
) -> list[pl.Series]:
    """Return the column ``overlap`` of :func:`overlap_with` for several frames of windows."""
    start, end, valid = _checked_bounds(rows)
    if rows.is_empty() or all(frame.is_empty() for frame in windows):
        return [nullable("overlap", np.zeros(start.size, np.int64), valid) for _ in windows]
    _, (group, *window_groups) = group_numbers(by, rows, *windows)
    columns = []
    for frame, window_group in zip(windows, window_groups, strict=True):
        if frame.is_empty():
            columns.append(nullable("overlap", np.zeros(start.size, np.int64), valid))
            continue
        runs = _union(_spans(frame, window_group))
        columns.append(nullable("overlap", _covered(runs, group, start, end), valid))
    return columns


def meets(rows: pl.DataFrame, windows: pl.DataFrame) -> Bools:
    """Mark the rows that overlap any of the windows, whatever their groups."""
    runs = _union(_spans(windows, np.zeros(windows.height, np.int64)))
    begins = np.append(runs.start, np.iinfo(np.int64).max)
    start, end, valid = _checked_bounds(rows)
    for some in pieces(start.size):
        # the first run that has not ended
        first = begins[np.searchsorted(runs.end, start[some], side="right")]
        valid[some] &= (first < end[some]) & (end[some] > start[some])
    return valid


def is_interval(frame: pl.DataFrame) -> Bools:
    """Mark the rows with both bounds, in order."""
    return _checked_bounds(frame)[2]


def _checked_bounds(frame: pl.DataFrame) -> tuple[Ints, Ints, Bools]:
    """Return :func:`bounds` and :func:`is_interval`."""
    start, end = bounds(frame)
    valid = end >= start
    for column in (frame["start"], frame["end"]):
        if column.null_count():
            valid &= column.is_not_null().to_numpy()
    return start, end, valid


def bounds(frame: pl.DataFrame) -> tuple[Ints, Ints]:
    """Return ``start`` and ``end`` as arrays, 0 for null."""
    return integers(frame["start"]), integers(frame["end"])


def integers(column: pl.Series) -> Ints:
    """Return a column as an array, 0 for null."""
    if column.dtype != pl.Int64:
        column = column.cast(pl.Int64)
    return (column.fill_null(0) if column.null_count() else column).to_numpy()


def stable_order(group: Ints, time: Ints) -> Ints:
    """Return the stable order by (group, time); nearly O(n) if ``time`` is sorted."""
    if (time[1:] >= time[:-1]).all():
        return np.argsort(narrow(group), kind="stable")
    order = np.argsort(time, kind="stable")
    return order[np.argsort(narrow(group)[order], kind="stable")]


def narrow(numbers: npt.NDArray[np.integer]) -> npt.NDArray[np.integer]:
    """Convert non-negative integers to 16 bits if they fit: numpy sorts those by radix, O(n)."""
    return numbers.astype(np.uint16) if numbers.max(initial=0) < 1 << 16 else numbers


def pieces(size: int) -> Iterator[slice]:
    """Yield the rows of a table in pieces, so that what is computed of each takes little memory."""
    for low in range(0, size, _AT_ONCE):
        yield slice(low, low + _AT_ONCE)


def counting(begun: Spans, groups: Ints) -> Callable[[Ints, Ints], Ints]:
    """Return a function that counts the spans at or before each (group, time).

    The last of them, if it is of the same group, is the last one to start by then.

    Args:
        begun: spans, ordered by (group, start).
        groups: all groups that are asked for.
    """
    if not begun.start.size or not (begun.group.any() or groups.any()):
        return lambda _, time: np.searchsorted(begun.start, time, side="right")
    first, last = int(begun.start.min()), int(begun.start.max())
    known, size = None, last - first + 3
    if size * (1 + int(max(begun.group.max(), groups.max(initial=0)))) >= 1 << 63:
        known = np.unique(begun.start)
        size = known.size + 1

    def key(group: Ints, time: Ints) -> Ints:
        if known is None:
            return group * size + (np.clip(time, first - 1, last + 1) - (first - 1))
        return group * size + np.searchsorted(known, time, side="right")

    keys = key(begun.group, begun.start)
    return lambda group, time: np.searchsorted(keys, key(group, time), side="right")


def nullable(name: str, values: npt.NDArray[np.generic], valid: Bools) -> pl.Series:
    """Return the values as a column, null if not valid."""
    column = pl.Series(name, values)
    if valid.all():
        return column
    return column.zip_with(pl.Series(valid), pl.Series([None], dtype=column.dtype))


def nulls(name: str, dtype: type[pl.DataType], height: int) -> pl.Series:
    """Return a column of nulls."""
    return pl.Series(name, [None], dtype=dtype).new_from_index(0, height)


def _unions(by: Sequence[str], *frames: pl.DataFrame) -> tuple[pl.DataFrame, list[Spans]]:
    """Return the groups of all frames, and the union of each frame."""
    groups, numbers = group_numbers(by, *frames)
    spans = [_union(_spans(frame, number)) for frame, number in zip(frames, numbers, strict=True)]
    return groups, spans


class _Met(NamedTuple):
    """For each span of a union, the first span of another that it overlaps, and their number."""

    first: Ints
    number: Ints


def _met(a: Spans, b: Spans) -> _Met:
    """Search the spans of ``b`` that those of ``a`` overlap; both are unions."""
    ended = counting(Spans(b.group, b.end, b.end), a.group)(a.group, a.start)
    return _Met(ended, counting(b, a.group)(a.group, a.end - 1) - ended)


def _inside(a: Spans, b: Spans, met: _Met) -> Spans:
    """Return the intersection of two unions."""
    row, other = _expanded(met.first, met.number)
    start = np.maximum(a.start[row], b.start[other])
    return Spans(a.group[row], start, np.minimum(a.end[row], b.end[other]))


def _outside(a: Spans, b: Spans, met: _Met) -> Spans:
    """Return a union without another: the parts before, between and after the spans it meets."""
    if not met.number.any():
        return a
    row, other = _expanded(met.first, met.number + 1)
    start, end = a.start[row], a.end[row]
    later, earlier = other > met.first[row], other < (met.first + met.number)[row]
    start[later] = b.end[other[later] - 1]
    end[earlier] = b.start[other[earlier]]
    kept = end > start
    return Spans(a.group[row[kept]], start[kept], end[kept])


def _expanded(first: Ints, count: Ints) -> tuple[Ints, Ints]:
    """Return a row number for each of ``count`` numbers from ``first`` on, and these numbers."""
    row = np.repeat(np.arange(first.size), count)
    before = np.cumsum(count) - count
    return row, np.arange(row.size) + (first - before)[row]


def _union(spans: Spans) -> Spans:
    """Return the maximal runs of time with an open span."""
    covers = spans.end > spans.start
    if not covers.all():
        spans = Spans(*(column[covers] for column in spans))
    group, start, end = spans
    apart = (start[1:] > end[:-1]) & (group[1:] == group[:-1])
    if (apart | (group[1:] > group[:-1])).all():  # they are a union already
        return spans
    group, start, end = _ordered(spans)
    if end is spans.end:
        end = end.copy()
    new_group = np.flatnonzero(group[1:] != group[:-1]) + 1
    for low, high in itertools.pairwise([0, *new_group, group.size]):
        np.maximum.accumulate(end[low:high], out=end[low:high])
    begins = np.ones(group.size, np.bool_)
    begins[1:] = start[1:] > end[:-1]
    begins[new_group] = True
    last = np.flatnonzero(np.append(begins[1:], [True] * bool(group.size)))
    return Spans(group[begins], start[begins], end[last])


def _extent(spans: Spans) -> tuple[Ints, Ints, Ints]:
    """Return the groups with intervals, also of zero length, their first start and last end."""
    groups = int(spans.group.max(initial=-1)) + 1
    lowest = np.full(groups, np.iinfo(np.int64).max)
    highest = np.full(groups, np.iinfo(np.int64).min)
    np.minimum.at(lowest, spans.group, spans.start)
    np.maximum.at(highest, spans.group, spans.end)
    used = np.flatnonzero(highest >= lowest)
    return used, lowest[used], highest[used]


def _clipped(runs: Spans, within: Spans, groups: int) -> Spans:
    """Return the parts of the runs that are inside the only span of their group."""
    first, last = np.zeros((2, max(groups, 1)), np.int64)
    first[within.group], last[within.group] = within.start, within.end
    start, end = np.maximum(runs.start, first[runs.group]), np.minimum(runs.end, last[runs.group])
    inside = end > start
    if inside.all():
        return Spans(runs.group, start, end)
    return Spans(runs.group[inside], start[inside], end[inside])


def _between(runs: Spans, groups: Ints, lowest: Ints, highest: Ints) -> Spans:
    """Return the gaps between the runs of each group, and between them and its bounds."""
    first, behind = (np.searchsorted(runs.group, groups, side) for side in ("left", "right"))
    # the gap before each run of a group, then the one after its last run
    count = behind - first + 1
    group = np.repeat(groups, count)
    start = np.insert(runs.end, first, lowest)
    end = np.insert(runs.start, behind, highest)
    free = end > start
    return Spans(group[free], start[free], end[free])


def _ordered(spans: Spans) -> Spans:
    """Return the spans ordered by (group, start), as events mostly are already."""
    if is_ordered(spans):
        return spans
    order = stable_order(spans.group, spans.start)
    return Spans(*(column[order] for column in spans))


def is_ordered(spans: Spans) -> bool:
    """Whether the spans are ordered by (group, start)."""
    group, start = spans.group, spans.start
    later = (group[1:] == group[:-1]) & (start[1:] >= start[:-1])
    return bool((later | (group[1:] > group[:-1])).all())


def _covered(runs: Spans, group: Ints, start: Ints, end: Ints) -> Ints:
    """Return how much of each time disjoint, ordered runs of its group cover."""
    count, covered = counting(runs, group), np.empty(start.size, np.int64)
    before = np.concatenate([[0], np.cumsum(runs.end - runs.start)])
    for some in pieces(start.size):
        since, until = (
            _before(runs, before, count(group[some], time[some]), group[some], time[some])
            for time in (start, end)
        )
        covered[some] = until - since
    return covered


def _before(runs: Spans, before: Ints, begun: Ints, group: Ints, time: Ints) -> Ints:
    """Return the measure of disjoint, ordered runs before each time, plus a constant per group."""
    covered = before[begun]
    behind = np.flatnonzero(begun)
    last = begun[behind] - 1
    ahead = np.where(runs.group[last] == group[behind], runs.end[last] - time[behind], 0)
    covered[behind] -= np.maximum(ahead, 0)
    return covered


def _spans(frame: pl.DataFrame, group: Ints) -> Spans:
    """Return the rows that are intervals."""
    start, end, valid = _checked_bounds(frame)
    spans = Spans(group, start, end)
    return spans if valid.all() else Spans(*(column[valid] for column in spans))


def _to_frame(groups: pl.DataFrame, spans: Spans) -> pl.DataFrame:
    if groups.height == 1:
        keys = [column.new_from_index(0, spans.group.size) for column in groups]
    else:
        keys = [column.gather(spans.group) for column in groups]
    return pl.DataFrame([*keys, pl.Series("start", spans.start), pl.Series("end", spans.end)])
