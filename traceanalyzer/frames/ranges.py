"""Which slices lie whole in which ranges, where ranges may overlap one another in any way.

A range holds a slice that starts no sooner and ends no later; both bounds count as inside. Slices
and ranges are arrays of Int64 starts and ends, of one thread. No pair is looked at by itself: n
slices and ranges take O(n log n), slices that lie in one another O(n log² n).
"""

from collections.abc import Iterator

import numpy as np

from traceanalyzer.frames.intervals import Bools, Ints
from traceanalyzer.frames.nesting import ROOT, Rows

_SOONEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def innermost_range(start: Ints, end: Ints, since: Ints, until: Ints) -> Rows:
    """The last range to start of those that hold each slice; :data:`ROOT` where none does.

    Args:
        start: of the ranges, which are ordered by (start, longest first).
        end: of the ranges.
        since: starts of the slices, in any order.
        until: their ends.
    """
    found = np.full(since.size, ROOT, np.int32)
    if not start.size:
        return found
    begun = np.searchsorted(start, since, side="right") - 1
    reached = np.maximum.accumulate(end)[begun] >= until  # by any that has begun
    asked = np.flatnonzero((begun >= 0) & reached)
    found[asked] = _last_reaching(end, begun[asked], until[asked])
    return found


def _last_reaching(end: Ints, place: Ints, need: Ints) -> Ints:
    """The last row up to each place whose end is no sooner than needed; there is one.

    A tree of the latest end of 2, 4, 8 ... rows is climbed until the rows before reach so far, and
    descended to the last of them: a few steps where the row is near.
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


class Held:
    """What the slices that each range holds amount to.

    In the order of their starts the slices of a range lie side by side, if they end in that order
    too. A slice that holds another spoils it; such slices are few, and are looked up apart.

    Attributes:
        count: how many slices each range holds.
    """

    def __init__(self, start: Ints, end: Ints, since: Ints, until: Ints) -> None:
        """Looks up which slices each range holds.

        Args:
            start: of the ranges, in any order.
            end: of the ranges.
            since: starts of the slices, which are ordered by them.
            until: their ends.
        """
        soonest = np.minimum.accumulate(until[::-1])[::-1]  # end from here on
        self._holds: Bools = until > soonest
        self._any_holds = bool(self._holds.any())
        plain = self._plain(since), self._plain(until)
        self._low = np.searchsorted(plain[0], start)
        self._high = np.maximum(np.searchsorted(plain[1], end, side="right"), self._low)
        self._nested = _Nested(start, end, since[self._holds], until[self._holds])
        self.count: Ints = self.sum(np.ones(since.size, np.int64))

    def sum(self, values: Ints) -> Ints:
        """The sum of a value of each slice, 0 where a range holds none."""
        before = np.concatenate([[0], np.cumsum(self._plain(values))])
        total: Ints = before[self._high] - before[self._low]
        return total + self._nested.sum(values[self._holds]) if self._any_holds else total

    def lowest(self, values: Ints) -> Ints:
        """The lowest of a value of each slice; the highest Int64 where a range holds none."""
        found = _over(self._plain(values), self._low, self._high, np.minimum, _LATEST)
        if not self._any_holds:
            return found
        return np.minimum(found, self._nested.extreme(values[self._holds], np.minimum, _LATEST))

    def highest(self, values: Ints) -> Ints:
        """The highest of a value of each slice; the lowest Int64 where a range holds none."""
        found = _over(self._plain(values), self._low, self._high, np.maximum, _SOONEST)
        if not self._any_holds:
            return found
        return np.maximum(found, self._nested.extreme(values[self._holds], np.maximum, _SOONEST))

    def _plain(self, values: Ints) -> Ints:
        return values[~self._holds] if self._any_holds else values


def _over(values: Ints, low: Ints, high: Ints, pick: np.ufunc, none: int) -> Ints:
    """The pick of the values from ``low`` to before ``high``, of two stretches that cover them."""
    found = np.full(low.size, none, np.int64)
    size = np.frexp(high - low)[1].astype(np.int8)  # bits: a stretch is the half or more of all
    order = np.argsort(size, kind="stable").astype(np.uint32)
    edges = np.searchsorted(size[order], np.arange(1, int(size.max(initial=0)) + 2))
    for bit in range(edges.size - 1):
        rows, width = order[edges[bit] : edges[bit + 1]], 1 << bit
        found[rows] = pick(values[low[rows]], values[high[rows] - width])
        values = pick(values[:-width], values[width:])  # of twice as many
    return found


class _Nested:
    """The same for slices of which each may hold others.

    Those that start no sooner than a range are a few blocks of 1, 2, 4 ... slices; in each, ordered
    by end, the ones that the range holds come first.
    """

    def __init__(self, start: Ints, end: Ints, since: Ints, until: Ints) -> None:
        self._size = 1 << (since.size - 1).bit_length() if since.size else 0
        self._first = np.searchsorted(since, start)
        order = np.argsort(until, kind="stable")
        self._ended = np.searchsorted(until[order], end, side="right")
        self._place = np.arange(self._size)  # in the order of ends; padded ones never end
        self._place[order] = np.arange(since.size)

    def sum(self, values: Ints) -> Ints:
        """The sum of a value of each slice."""
        total = np.zeros(self._first.size, np.int64)
        padded = np.append(values, np.zeros(self._size - values.size, np.int64))
        for order, _, rows, low, high in self._blocks():
            before = np.concatenate([[0], np.cumsum(padded[order])])
            total[rows] += before[high] - before[low]
        return total

    def extreme(self, values: Ints, pick: np.ufunc, none: int) -> Ints:
        """The pick of a value of each slice."""
        found = np.full(self._first.size, none, np.int64)
        padded = np.append(values, np.full(self._size - values.size, none, np.int64))
        for order, width, rows, _, high in self._blocks():
            picked = pick.accumulate(padded[order].reshape(-1, width), axis=1).ravel()
            found[rows] = pick(found[rows], picked[high - 1])
        return found

    def _blocks(self) -> Iterator[tuple[Ints, int, Ints, Ints, Ints]]:
        """The slices of each range block by block, for each size of blocks.

        Gives the order of slices in blocks of the size, the size, the rows of the ranges that hold
        slices of such a block, and from where to where in that order these are.
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
