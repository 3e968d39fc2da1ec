"""Positions of allocations in the stack at each level, independent of the drawing library.

A box is live at a level if the event of the level is in its lifetime. Boxes are stacked in the
order of their start, allocations without a box on top: at every level the top of the stack is the
sum of the boxes and the rest.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceanalyzer.drawings import Occupancy

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """An occupancy as arrays, boxes by start and levels by event.

    The times of boxes, marks and spans also count from the first level; unknown times are null.

    Attributes:
        boxes: the boxes' rows in the order of the arrays.
        levels: the levels' rows in the order of the arrays.
        marks: by priority of their labels: the peak, then by event.
        spans: by start.
        start: event at which a box is allocated.
        end: event at which it is freed.
        size: bytes of each box.
        event: event of each level.
        time: nanoseconds of each level since the first; None if unknown.
        live: bytes of all allocations at each level.
        rest: bytes of those without a box.
        reserved: reserved bytes, NaN if unknown.
        events: number of events.
        peak_event: event of the peak.
        end_time: end of the time axis.
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
        """Return the first level at which each box is live."""
        return np.searchsorted(self.event, self.start, side="left").astype(np.int64)

    @cached_property
    def last(self) -> Ints:
        """Return the first level at which each box is freed."""
        return np.searchsorted(self.event, self.end, side="left").astype(np.int64)

    @property
    def at_peak(self) -> NDArray[np.bool_]:
        """Return which boxes are live at the peak."""
        return (self.start <= self.peak_event) & (self.end > self.peak_event)

    @property
    def area(self) -> Floats:
        """Return bytes x events of each box."""
        return self.size.astype(np.float64) * (self.end - self.start)

    def axis(self) -> tuple[Floats, float]:
        """Return the start of each level on the horizontal axis, and the end of the axis."""
        if self.time is None:
            return self.event.astype(np.float64), float(max(self.events, 1))
        return self.time, self.end_time


@dataclass(frozen=True)
class Stack:
    """The stack by columns: a row is a box, a column an interval of the horizontal axis.

    Attributes:
        levels: level of each column, -1 before the first.
        edges: borders of the columns, one more than columns.
        bottom: lower edge of each box in each column, NaN where it is not live.
        size: bytes of each box.
        rest: bytes of allocations without a box.
        live: top of the stack.
        reserved: reserved bytes, NaN if unknown.
    """

    levels: Ints
    edges: Floats
    bottom: Floats
    size: Ints
    rest: Floats
    live: Floats
    reserved: Floats


def lay_out(occupancy: Occupancy) -> Layout:
    """Return the arrays of an occupancy."""
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
    """Return the ``count`` largest boxes by bytes x events, in the order of the stack."""
    heaviest = np.argsort(-layout.area, kind="stable")[:count]
    return np.sort(heaviest)


def columns(layout: Layout, count: int) -> tuple[Ints, Floats]:
    """Return the level of each of ``count`` columns, and the borders of the columns.

    A column has the level with the most live bytes, so that short peaks are visible; -1 before the
    first level.
    """
    x, end = layout.axis()
    edges = end * np.arange(count + 1) / count
    since = np.searchsorted(x, edges[:-1], side="right") - 1
    since = np.minimum(np.searchsorted(x, edges[:-1], side="left"), since)  # all that start there
    until = np.searchsorted(x, edges[1:], side="left")
    until[-1] = len(x)
    levels = since.astype(np.int64)
    for column, (low, high) in enumerate(zip(since.tolist(), until.tolist(), strict=True)):
        low = max(low, 0)
        if high - low > 1:
            levels[column] = low + int(np.argmax(layout.live[low:high]))
        elif high > low:
            levels[column] = low
    return levels, edges


def stack(layout: Layout, chosen: Ints, levels: Ints, edges: Floats) -> Stack:
    """Stack the chosen boxes at these levels; all others belong to the rest."""
    live = _is_live(layout, chosen, levels)
    size = layout.size[chosen]
    heights = live * size[:, None]
    known = levels >= 0
    tops = np.cumsum(heights, axis=0, dtype=np.int64)
    boxed = total(layout, np.arange(len(layout.size)), levels)
    stacked = heights.sum(axis=0).astype(np.float64)
    rest = np.where(known, layout.rest[levels] if len(layout.rest) else 0, 0) + boxed - stacked
    bottom = np.where(live, tops - heights, np.nan)
    reserved = layout.reserved[levels] if len(layout.reserved) else np.full(len(levels), np.nan)
    return Stack(
        levels, edges, bottom, size, rest, stacked + rest, np.where(known, reserved, np.nan)
    )


def total(layout: Layout, boxes: Ints, levels: Ints) -> Floats:
    """Return the bytes of these boxes at these levels."""
    live = _is_live(layout, boxes, levels).astype(np.float64)
    summed: Floats = layout.size[boxes].astype(np.float64) @ live
    return summed


def _is_live(layout: Layout, boxes: Ints, levels: Ints) -> NDArray[np.bool_]:
    """Return which boxes (rows) are live at which levels (columns)."""
    since, until = layout.first[boxes, None], layout.last[boxes, None]
    live: NDArray[np.bool_] = (since <= levels) & (levels < until) & (levels >= 0)
    return live


def _ints(values: pl.Series) -> Ints:
    return values.cast(pl.Int64).to_numpy().astype(np.int64)
