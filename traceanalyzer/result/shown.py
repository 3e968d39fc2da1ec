"""What an answer shows: tables, findings and drawings, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl


@dataclass(frozen=True)
class Table:
    """A frame to show.

    Attributes:
        name: key in JSON, file suffix in a folder of CSVs.
        title: one line above the table.
        frame: all rows and columns, raw units, for machines.
        columns: shown columns and their headings, in order. The unit of a value follows from its
            column's suffix: ``_ns`` times, ``_bytes`` sizes, ``_frac`` ratios shown in percent,
            ``_gbps`` 10^9 bytes a second. None: data that is shown in another way.
        empty: what to say instead of a table with no rows.
        detail: left out of a terminal's first view, which names it instead.
        missing: what to show for null, by column; nothing where a column is not named.
        whole: names are shortened only to fit a terminal, not in a file or a pipe.
        alike: groups of columns that are shown in one unit, to be compared.
    """

    name: str
    title: str
    frame: pl.DataFrame
    columns: Mapping[str, str]
    empty: str = "none"
    detail: bool = False
    missing: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    alike: tuple[tuple[str, ...], ...] = ()


#: How grave a finding is, the least first.
Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")

#: How sure a finding is.
Confidence = Literal["low", "medium", "high"]


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or worth knowing, with what it costs.

    Attributes:
        rule: the id of the rule that found it.
        severity: how grave it is.
        confidence: how sure it is.
        title: what is wrong, one sentence.
        evidence: the numbers behind it, a sentence each.
        advice: what to try.
        analysis: the analysis that it rests on, which shows more.
        cost_ns: time that it costs, all devices together, or None.
        cost_bytes: memory that it costs, or None.
        cost_frac: the cost as a share, or None.
        of: what ``cost_frac`` is a share of.
    """

    rule: str
    severity: Severity
    confidence: Confidence
    title: str
    evidence: tuple[str, ...]
    advice: str
    analysis: str
    cost_ns: int | None = None
    cost_bytes: int | None = None
    cost_frac: float | None = None
    of: str = ""


@dataclass(frozen=True)
class Chart:
    """A plot by column names of a frame; units follow from the columns' suffixes.

    Attributes:
        name: key of the chart.
        title: what the picture says.
        mark: ``scatter`` points, ``line``, ``bar``, or ``span`` (horizontal bars from x to x2).
        frame: the rows to draw.
        x: column on the horizontal axis.
        y: column on the vertical axis.
        x_label: axis label without unit.
        y_label: axis label without unit.
        color: column that colours the marks (a category), or None. Charts whose columns are of one
            Enum colour its categories alike.
        x2: end column of a ``span``.
        emphasis: boolean column of marks to ring and draw on top, or None.
        emphasis_label: the legend entry of emphasised marks.
        panel: column whose values get a panel each (shared x axis), or None.
        log_y: logarithmic vertical axis.
        stacked: bars of one place stand on one another, in the order of the frame.
    """

    name: str
    title: str
    mark: Literal["scatter", "line", "bar", "span"]
    frame: pl.DataFrame
    x: str
    y: str
    x_label: str
    y_label: str
    color: str | None = None
    x2: str | None = None
    emphasis: str | None = None
    emphasis_label: str = ""
    panel: str | None = None
    log_y: bool = False
    stacked: bool = False


@dataclass(frozen=True)
class Flame:
    """A tree of weights to draw as a flamegraph.

    Attributes:
        name: key of the flamegraph.
        title: what the picture says.
        subtitle: a line below it, or empty.
        unit: of the weights: ``samples``, ``ns``, ``bytes``, ``events``, or empty.
        frame: one row a box, callers before what they call, with these columns: ``id`` UInt32, its
            row number; ``parent`` UInt32, null for a root; ``name`` String; ``place`` String, file
            and line or null; ``group`` String, the package that decides the colour, or null;
            ``own`` Boolean, code to stand out; ``self`` and ``total`` Float64, weight of the box
            alone and with all it calls; ``hidden`` UInt32, how many boxes too small to draw are
            summed up in this one (0: it is a frame); ``base`` Float64, the total in the run that
            this one is compared with, scaled to the same sum, null where nothing is compared.
        inverted: callees are below their callers: the roots are the functions that ran.
    """

    name: str
    title: str
    subtitle: str
    unit: str
    frame: pl.DataFrame
    inverted: bool = False


@dataclass(frozen=True)
class Occupancy:
    """What fills a memory over time, allocation by allocation, to draw as stacked areas.

    The horizontal axis counts allocator events from 0; ``*_ns`` columns are their times, null in
    all rows where the file has no times.

    Attributes:
        name: key of the drawing.
        title: what the picture says.
        subtitle: a line below it, or empty.
        boxes: one row an allocation that is drawn by itself, by start: ``start`` Int64, the event
            from which it is there (0: it was there before the first), ``end`` Int64, the event
            from which it is not (``events`` where it stays), ``start_ns``, ``end_ns`` Int64 (null
            where it begins before or stays), ``live_bytes`` Int64, ``stack`` UInt32 (row of
            ``stacks``, or null), ``label`` String (the line of code to name it by), ``category``
            String or null.
        levels: one row a step of the curves, by event; a value holds until the next row:
            ``event`` Int64, ``time_ns`` Int64, ``live_bytes`` Int64 (all allocations),
            ``rest_bytes`` Int64 (those that have no box), ``reserved_bytes`` Int64 or null.
        marks: moments to point at: ``event`` Int64, ``time_ns`` Int64, ``kind`` String (``peak`` or
            ``oom``), ``label`` String.
        spans: steps, drawn below: ``start``, ``end`` Int64, ``start_ns``, ``end_ns`` Int64,
            ``label`` String.
        stacks: ``id`` UInt32, its row number, and ``frames`` List(String), the innermost first.
        segments: the memory held at the peak, by address: ``id`` UInt32, ``address`` UInt64,
            ``total_bytes`` Int64, ``label`` String.
        blocks: what is in them, by segment and offset: ``segment`` UInt32, ``offset_bytes`` Int64,
            ``total_bytes`` Int64, ``state`` String (``live`` or ``free``), ``stack`` UInt32 or
            null, ``label`` String or null.
        events: how many events there are.
        boxed_frac: share of all bytes x events of live allocations that the boxes hold.
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
