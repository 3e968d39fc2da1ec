"""Slices fully inside ranges, where ranges may overlap in any way.

A range contains a slice that starts no earlier and ends no later; both bounds are inclusive. Slices
and ranges are arrays of Int64 starts and ends, of one thread. n slices and ranges take O(n log n),
nested slices O(n log² n).
"""

from collections.abc import Iterator

import numpy as np

from traceanalyzer.frames.intervals import Bools, Ints
from traceanalyzer.frames.nesting import ROOT, Rows

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
