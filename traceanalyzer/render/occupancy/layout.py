"""Where allocations stand in the stack, level by level; no drawing library is known here.

A box is there at a level if the level's event lies in its lifetime. Boxes stand on one another in
the order of their start, what has no box stands on top of them all: so at every level the top of
the stack is the sum of the boxes and the rest, whatever happens between two levels.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceanalyzer.result import Occupancy

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """An occupancy as arrays, boxes by start and levels by event.

    The times of boxes, marks and spans count from the first level, too; they are null where times
    are not known.

    Attributes:
        boxes: the boxes' rows in the order of the arrays.
        levels: the levels' rows in the order of the arrays.
        marks: in the order in which they get room for their labels: the peak, then by event.
        spans: by their start.
        start: event from which a box is there.
        end: event from which it is not.
        size: bytes of each box.
        event: event of each level.
        time: nanoseconds of each level since the first; None where times are not known.
        live: bytes of all allocations at each level.
        rest: bytes of those without a box.
        reserved: bytes reserved, NaN where not known.
        events: how many events there are.
        peak_event: the event of the peak.
        end_time: where the axis of times ends.
    """

    boxes: pl.DataFrame
    levels: pl.DataFrame
    marks: pl.DataFrame
    spans: pl.DataFrame
    start: Ints
    end: Ints
    size: Ints
    event: Ints
    time: Floats | None
    live: Ints
    rest: Ints
    reserved: Floats
    events: int
    peak_event: int
    end_time: float

    @cached_property
    def first(self) -> Ints:
        """The first level at which each box is there."""
        return np.searchsorted(self.event, self.start, side="left").astype(np.int64)

    @cached_property
    def last(self) -> Ints:
        """The first level at which each box is there no more."""
        return np.searchsorted(self.event, self.end, side="left").astype(np.int64)

    @property
    def at_peak(self) -> NDArray[np.bool_]:
        """Which boxes are there at the peak."""
        return (self.start <= self.peak_event) & (self.end > self.peak_event)

    @property
    def area(self) -> Floats:
        """Bytes x events of each box."""
        return self.size.astype(np.float64) * (self.end - self.start)

    def axis(self) -> tuple[Floats, float]:
        """Where each level begins on the horizontal axis, in time if known, and where that ends."""
        if self.time is None:
            return self.event.astype(np.float64), float(max(self.events, 1))
        return self.time, self.end_time


@dataclass(frozen=True)
class Stack:
    """The stack in columns: a row a box, a column a stretch of the horizontal axis.

    Attributes:
        levels: the level that each column shows, -1 before the first.
        edges: borders of the columns, one more than there are columns.
        bottom: lower edge of each box in each column, NaN where it is not there.
        size: bytes of each box.
        rest: bytes of what has no box here.
        live: top of the stack.
        reserved: bytes reserved, NaN where not known.
    """

    levels: Ints
    edges: Floats
    bottom: Floats
    size: Ints
    rest: Floats
    live: Floats
    reserved: Floats


def lay_out(occupancy: Occupancy) -> Layout:
    """The arrays of an occupancy."""
    levels = occupancy.levels.sort("event", maintain_order=True)
    boxes = occupancy.boxes.sort("start", maintain_order=True)
    live = _ints(levels["live_bytes"])
    time, origin, end_time = None, 0, 0.0
    known = levels["time_ns"].fill_null(strategy="backward").fill_null(strategy="forward")
    if levels.height and not known.null_count():
        times = np.maximum.accumulate(_ints(known))
        if occupancy.axis_ns:
            times[0] = min(occupancy.axis_ns[0], times[0])
        origin = int(times[0])
        time = (times - origin).astype(np.float64)
        ends = pl.concat([known, boxes["end_ns"], occupancy.spans["end_ns"]]).drop_nulls()
        end = max(int(ends.to_numpy().max()), *(occupancy.axis_ns or (0,)))
        end_time = float(max(end - origin, 1))
    peaks = occupancy.marks.filter(kind="peak")["event"].to_list()
    event = _ints(levels["event"])
    highest = int(event[int(np.argmax(live))]) if len(live) else 0
    marks = occupancy.marks.sort(pl.col("kind") != "peak", "event", maintain_order=True)
    since = pl.col("^.*_ns$") - pl.lit(None if time is None else origin, pl.Int64)
    return Layout(
        boxes=boxes.with_columns(since),
        levels=levels,
        marks=marks.with_columns(since),
        spans=occupancy.spans.sort("start").with_columns(since),
        start=_ints(boxes["start"]),
        end=_ints(boxes["end"]),
        size=_ints(boxes["live_bytes"]),
        event=event,
        time=time,
        live=live,
        rest=_ints(levels["rest_bytes"]),
        reserved=levels["reserved_bytes"].cast(pl.Float64).fill_null(float("nan")).to_numpy(),
        events=occupancy.events,
        peak_event=peaks[0] if peaks else highest,
        end_time=end_time,
    )


def largest(layout: Layout, count: int) -> Ints:
    """The boxes that weigh most in bytes x events, at most ``count``, in the order of the stack."""
    heaviest = np.argsort(-layout.area, kind="stable")[:count]
    return np.sort(heaviest)


def columns(layout: Layout, count: int) -> tuple[Ints, Floats]:
    """The level that each of ``count`` columns shows, and the columns' borders.

    A column shows its fullest moment, so that no peak is too short to be seen; -1 before the
    first level.
    """
    x, end = layout.axis()
    edges = end * np.arange(count + 1) / count
    held = np.searchsorted(x, edges[:-1], side="right") - 1
    held = np.minimum(np.searchsorted(x, edges[:-1], side="left"), held)  # all that begin there
    until = np.searchsorted(x, edges[1:], side="left")
    until[-1] = len(x)
    shown = held.astype(np.int64)
    for column, (low, high) in enumerate(zip(held.tolist(), until.tolist(), strict=True)):
        low = max(low, 0)
        if high - low > 1:
            shown[column] = low + int(np.argmax(layout.live[low:high]))
        elif high > low:
            shown[column] = low
    return shown, edges


def stack(layout: Layout, chosen: Ints, levels: Ints, edges: Floats) -> Stack:
    """The chosen boxes on one another at these levels; all others belong to the rest."""
    there = _there(layout, chosen, levels)
    size = layout.size[chosen]
    heights = there * size[:, None]
    known = levels >= 0
    tops = np.cumsum(heights, axis=0, dtype=np.int64)
    boxed = total(layout, np.arange(len(layout.size)), levels)
    own = heights.sum(axis=0).astype(np.float64)
    rest = np.where(known, layout.rest[levels] if len(layout.rest) else 0, 0) + boxed - own
    bottom = np.where(there, tops - heights, np.nan)
    reserved = layout.reserved[levels] if len(layout.reserved) else np.full(len(levels), np.nan)
    return Stack(levels, edges, bottom, size, rest, own + rest, np.where(known, reserved, np.nan))


def total(layout: Layout, boxes: Ints, levels: Ints) -> Floats:
    """Bytes of these boxes at these levels."""
    there = _there(layout, boxes, levels).astype(np.float64)
    summed: Floats = layout.size[boxes].astype(np.float64) @ there
    return summed


def _there(layout: Layout, boxes: Ints, levels: Ints) -> NDArray[np.bool_]:
    """Which boxes (rows) are there at which levels (columns)."""
    since, until = layout.first[boxes, None], layout.last[boxes, None]
    known: NDArray[np.bool_] = (since <= levels) & (levels < until) & (levels >= 0)
    return known


def _ints(values: pl.Series) -> Ints:
    return values.cast(pl.Int64).to_numpy().astype(np.int64)
