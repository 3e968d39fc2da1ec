"""Drawings of results as data: charts, flame graphs, memory over time, timelines, budgets.

Renderers draw them on a page, with matplotlib, or as text.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import polars as pl


@dataclass(frozen=True)
class Chart:
    """A plot by column names of a frame; units follow from the suffixes of the columns.

    Attributes:
        name: key of the chart.
        title: title of the chart.
        mark: ``scatter`` points, ``line``, ``bar``, or ``span`` (horizontal bars from x to x2).
        frame: the rows to draw.
        x: column on the horizontal axis.
        y: column on the vertical axis.
        x_label: axis label without unit.
        y_label: axis label without unit; empty where the axis has names.
        color: column that determines the colour (a category), or None. Charts with columns of one
            Enum use the same colours.
        x2: end column of a ``span``.
        emphasis: boolean column of marks to highlight with a ring, or None.
        emphasis_label: legend entry of highlighted marks.
        panel: column with one panel per value (shared x axis), or None.
        log_x: logarithmic horizontal axis, of ``scatter`` and ``line``.
        log_y: logarithmic vertical axis.
        stacked: bars at one position are stacked in the order of the frame.
        size: column of the area of points as a share of the largest, 0 to 1, or None.
        symbol: column that determines the symbol of points (at most four values), or None.
        label: column with the name of each mark, for its tooltip, or None.
        lines: reference lines in the units of the columns: ``label``, ``x``, ``y``, ``x2``,
            ``y2``; or None.
    """

    name: str
    title: str
    mark: Literal["scatter", "line", "bar", "span"]
    frame: pl.DataFrame
    x: str
    y: str
    x_label: str
    y_label: str = ""
    color: str | None = None
    x2: str | None = None
    emphasis: str | None = None
    emphasis_label: str = ""
    panel: str | None = None
    log_y: bool = False
    stacked: bool = False
    log_x: bool = False
    size: str | None = None
    symbol: str | None = None
    label: str | None = None
    lines: pl.DataFrame | None = None


@dataclass(frozen=True)
class Flame:
    """A tree of weights for a flame graph.

    Attributes:
        name: key of the flame graph.
        title: title of the drawing.
        subtitle: a line below it, or empty.
        unit: unit of the weights: ``samples``, ``ns``, ``bytes``, ``events``, or empty.
        frame: one row per box, callers before callees, with these columns: ``id`` UInt32, its row
            number; ``parent`` UInt32, null for a root; ``name`` String; ``place`` String, file and
            line or null; ``group`` String, the package, which determines the colour, or null;
            ``is_own_code`` Boolean, code to highlight; ``imports`` Boolean, the import of a module
            begins in it; ``self`` and ``total`` Float64, weight of a
            box without and with its callees; ``hidden`` UInt32, number of small boxes that this one
            sums up (0: it is a frame); ``base`` Float64, the total in the base run, scaled to the
            same sum, null without a base.
        inverted: bottom-up: the roots are the functions that ran.
    """

    name: str
    title: str
    subtitle: str
    unit: str
    frame: pl.DataFrame
    inverted: bool = False


@dataclass(frozen=True)
class Occupancy:
    """Memory over time by allocation, for a drawing of stacked areas.

    The horizontal axis counts allocator events from 0; ``*_ns`` columns are their times, null in
    all rows if the file has no times.

    Attributes:
        name: key of the drawing.
        title: title of the drawing.
        subtitle: a line below it, or empty.
        boxes: one row per allocation that is drawn individually, by start: ``start`` Int64, the
            event of its allocation (0: before the first event), ``end`` Int64, the event of its
            release (``events`` if it is not released), ``start_ns``, ``end_ns`` Int64 (null if
            before the first event, or not released), ``live_bytes`` Int64, ``stack`` UInt32 (row
            of ``stacks``, or null), ``label`` String (its line of code), ``category`` String or
            null.
        levels: one row per step of the curves, by event; a value is valid until the next row:
            ``event`` Int64, ``time_ns`` Int64, ``live_bytes`` Int64 (all allocations),
            ``rest_bytes`` Int64 (those without a box), ``reserved_bytes`` Int64 or null.
        marks: highlighted times: ``event`` Int64, ``time_ns`` Int64, ``kind`` String (``peak`` or
            ``oom``), ``label`` String.
        spans: steps, drawn below: ``start``, ``end`` Int64, ``start_ns``, ``end_ns`` Int64,
            ``label`` String.
        stacks: ``id`` UInt32, its row number, and ``frames`` List(String), innermost first.
        segments: memory reserved at the peak, by address: ``id`` UInt32, ``address`` UInt64,
            ``total_bytes`` Int64, ``label`` String.
        blocks: their content, by segment and offset: ``segment`` UInt32, ``offset_bytes`` Int64,
            ``total_bytes`` Int64, ``state`` String (``live`` or ``free``), ``stack`` UInt32 or
            null, ``label`` String or null.
        events: number of events.
        boxed_frac: share of the boxes in all bytes x events of live allocations.
        axis_ns: start and end of a time axis shared by several drawings; None for the times of
            this drawing.
        epoch_ns: absolute time of time 0, or None.
    """

    name: str
    title: str
    subtitle: str
    boxes: pl.DataFrame
    levels: pl.DataFrame
    marks: pl.DataFrame
    spans: pl.DataFrame
    stacks: pl.DataFrame
    segments: pl.DataFrame
    blocks: pl.DataFrame
    events: int
    boxed_frac: float
    axis_ns: tuple[int, int] | None = None
    epoch_ns: int | None = None


#: Label of the row of the critical path.
ON_PATH = "critical path"


@dataclass(frozen=True)
class Lanes:
    """What several devices do over time, for a timeline of one row per device.

    Times are Int64 ns on one axis, which begins with the recording. It is drawn from the first
    start of a lane to the last end.

    Attributes:
        name: key of the drawing.
        title: title of the drawing.
        lanes: one row per device, in order: ``lane`` UInt32, its number; ``on`` String, its label;
            ``host`` String or null; ``start``, ``end``; ``lost_frac`` Float64 or null, by which the
            worst, median and best lanes are labelled.
        states: partition of the time of each lane, sorted by lane and start: ``lane``, ``start``,
            ``end``, ``state`` Enum, ``cause`` String or null (of idle time), ``peer`` Int32 or null
            (the rank waited for).
        names: label of each state.
        events: ``lane``, ``stream``, ``start``, ``end``, ``name``, ``sort`` (compute, communication
            or memory), ``bytes``, ``operator``, ``collective``, ``count`` (more than 1: short
            events merged into one).
        steps: ``lane``, ``step``, ``start``, ``end``.
        gaps: idle gaps to describe: ``lane``, ``start``, ``end``, ``before``, ``after``, ``host``.
        marks: findings: ``lane``, ``start``, ``end``, ``number`` UInt32, ``label`` String.
        path: the critical path: ``lane``, ``start``, ``end``; what it waits for is a row of its
            own, the last lane, with the label :data:`ON_PATH`. None if it is not drawn.
        merged_ns: shorter states and events are merged; 0 if none is.
        left_out: number of devices that are not drawn.
    """

    name: str
    title: str
    lanes: pl.DataFrame
    states: pl.DataFrame
    names: Mapping[str, str]
    events: pl.DataFrame
    steps: pl.DataFrame
    gaps: pl.DataFrame
    marks: pl.DataFrame
    path: pl.DataFrame | None = None
    merged_ns: int = 0
    left_out: int = 0

    @property
    def by_loss(self) -> list[int]:
        """The devices, the one with most lost time first."""
        devices = self.lanes.filter(pl.col("on") != ON_PATH)
        return devices.sort("lost_frac", descending=True, nulls_last=True)["lane"].to_list()


@dataclass(frozen=True)
class BudgetPart:
    """A part of a total: its state (as in a timeline), label, time and share."""

    state: str
    label: str
    ns: int
    frac: float


@dataclass(frozen=True)
class Budget:
    """A total time and its disjoint parts, for one bar."""

    title: str
    parts: tuple[BudgetPart, ...]
