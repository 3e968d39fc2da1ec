"""The answer of an analyzer: data, no ink.

A result is a frozen dataclass that derives from :class:`Result`. Its own fields hold scalars with
the unit in the name (``busy_ns``, ``idle_frac``, ``sent_bytes``) and frames; ``tables``,
``charts``, ``diagnosis``, ``verdict`` and ``notes`` say what to show. A :class:`Report` holds
several results. Renderers know nothing else about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

import polars as pl

from traceanalyzer.errors import OptionError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

# --- what an answer shows: tables, findings and drawings, as data ------------------------------


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
        id: the name of the rule that found it, which does not change from version to version.
        severity: how grave it is.
        confidence: how sure it is.
        title: what is wrong, one sentence.
        evidence: the numbers behind it, a sentence each.
        advice: what to try; empty for an effect.
        analysis: the analysis that it rests on, which shows more.
        rank, device, step: where it is; None where it is not in one place.
        cost_ns: the most time that removing it can gain, as the mean per step and device (per
            device where no steps are marked), or None.
        cost_bytes: memory that it costs, or None.
        cost_frac: the cost as a share, or None.
        of: what ``cost_frac`` is a share of.
        per: what ``cost_ns`` is the mean of: ``step and GPU``, ``GPU``; empty where it is a sum.
        effects: findings that this one explains; what they cost is part of its own cost, or follows
            from it.
        intervals: when it is: rank, device, start_ns, end_ns (on the clock of each file), or None.
    """

    id: str
    severity: Severity
    confidence: Confidence
    title: str
    evidence: tuple[str, ...]
    advice: str
    analysis: str
    rank: int | None = None
    device: int | None = None
    step: str | None = None
    cost_ns: int | None = None
    cost_bytes: int | None = None
    cost_frac: float | None = None
    of: str = ""
    per: str = ""
    effects: tuple[Finding, ...] = ()
    intervals: pl.DataFrame | None = field(default=None, compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """All but the intervals as plain Python values."""
        values = {name: value for name, value in vars(self).items() if name != "intervals"}
        effects = [effect.to_dict() for effect in self.effects]
        return values | {"evidence": list(self.evidence), "effects": effects}


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
        y_label: axis label without unit; empty where the axis has names.
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
    y_label: str = ""
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
        axis_ns: where the axis of times begins and ends, for drawings with a common one; None for
            the times of the drawing.
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


# --- what every answer is ----------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """Everything that is shown of a result.

    Attributes:
        title: the question it answers.
        verdict: the answer, one paragraph.
        notes: what was not counted, assumed or missing.
        tables: the numbers, the most telling table first.
        scalars: numbers by name, unit in the name.
        charts: makes the charts, the most telling first; called where something is drawn.
        flames: makes the flame graphs.
        occupancies: makes the drawings of what filled memories over time.
        findings: problems, the most severe first.
    """

    title: str
    verdict: str
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    scalars: Mapping[str, Any] = field(default_factory=dict)
    charts: Callable[[], tuple[Chart, ...]] = tuple
    flames: Callable[[], tuple[Flame, ...]] = tuple
    occupancies: Callable[[], tuple[Occupancy, ...]] = tuple
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Result:
    """What every analyzer returns: fields with the numbers, and a :class:`View` of them.

    Notebook methods draw through :mod:`traceanalyzer.render`, loaded when they are called: the
    one place where a lower room reaches for a higher one.

    Attributes:
        input_notes: inputs that were skipped or are truncated, a line each.
    """

    input_notes: tuple[str, ...] = field(default=(), kw_only=True)

    def view(self) -> View:
        """What is shown: verdict, notes, tables, charts."""
        raise NotImplementedError

    @cached_property
    def _view(self) -> View:
        return self.view()

    @property
    def title(self) -> str:
        """The question this result answers."""
        return self._view.title

    @property
    def verdict(self) -> str:
        """The answer in plain words, one paragraph."""
        return self._view.verdict

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not counted, assumed or missing."""
        return (*self._view.notes, *self.input_notes)

    @property
    def diagnosis(self) -> tuple[Finding, ...]:
        """What is wrong, the gravest first."""
        return self._view.findings

    @property
    def tables(self) -> tuple[Table, ...]:
        """The answer's numbers as tables, the most telling first."""
        return self._view.tables

    @property
    def tables_shown(self) -> tuple[Table, ...]:
        """Those to show: the others are data of what is shown in another way."""
        return tuple(table for table in self.tables if table.columns)

    @cached_property
    def charts(self) -> tuple[Chart, ...]:
        """Charts to draw, the most telling first."""
        return self._view.charts()

    @cached_property
    def flames(self) -> tuple[Flame, ...]:
        """Flamegraphs to draw."""
        return self._view.flames()

    @cached_property
    def occupancies(self) -> tuple[Occupancy, ...]:
        """What filled memories over time, to draw."""
        return self._view.occupancies()

    @property
    def scalars(self) -> dict[str, Any]:
        """Numbers by name, unit in the name."""
        return dict(self._view.scalars)

    def numbers(self, *names: str) -> dict[str, Any]:
        """These fields by name."""
        return {name: getattr(self, name) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain Python values: title, verdict, scalars, tables (rows), notes."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            **self.scalars,
            **{table.name: table.frame.to_dicts() for table in self.tables},
            "notes": list(self.notes),
        }

    def to_polars(self, table: str | None = None) -> pl.DataFrame:
        """One table's frame, raw units; the first table when no name is given.

        Raises:
            OptionError: the result has no table of that name.
        """
        if table is None:
            return self.tables[0].frame
        frames = {t.name: t.frame for t in self.tables}
        if table not in frames:
            raise OptionError(f"this result has no table {table!r}; it has {', '.join(frames)}")
        return frames[table]

    def to_pandas(self, table: str | None = None) -> pd.DataFrame:
        """As :meth:`to_polars`, for pandas, in nullable types: integers stay exact beside nulls.

        Raises:
            MissingExtra: pandas is not installed.
            OptionError: the result has no table of that name.
        """
        renderer = import_module("traceanalyzer.render.data")
        frame: pd.DataFrame = renderer.to_pandas(self.to_polars(table))
        return frame

    def table(self, *, top: int | None = 10) -> str:
        """The whole result as text, as the terminal shows it."""
        text: str = import_module("traceanalyzer.render.table").render(self, top=top)
        return text

    @overload
    def plot(self, chart: None = None, *, ax: None = None) -> NDArray[np.object_]: ...
    @overload
    def plot(self, chart: str, *, ax: None = None) -> Axes | NDArray[np.object_]: ...
    @overload
    def plot(self, chart: str | None = None, *, ax: Axes) -> Axes: ...
    def plot(
        self, chart: str | None = None, *, ax: Axes | None = None
    ) -> Axes | NDArray[np.object_]:
        """Draws one chart, or all of them below one another, on axes of matplotlib to adapt.

        As with pandas, a notebook shows the figure when the cell ends. In a script it is nobody's
        but the caller's, needs no display and goes with the last reference to it:
        ``result.plot("gaps").figure.savefig("gaps.png")``.

        Args:
            chart: the name of a chart (``result.charts``) or of what fills a memory
                (``result.occupancies``); all of the result without one.
            ax: draw one chart on these axes instead, in the style that is set.

        Returns:
            The axes of the one chart, or an array where it has several panels; an array of all
            axes when no chart is named, whose figure is ``axes[0].figure.figure``.

        Raises:
            OptionError: there is nothing to draw, nothing of that name, or more than fits ``ax``.
        """
        drawn: Axes | NDArray[np.object_]
        drawn = import_module("traceanalyzer.render.plot").plot(self, chart, ax)
        return drawn

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.verdict}>"

    def _repr_html_(self) -> str:
        html: str = import_module("traceanalyzer.render.html").fragment(self)
        return html


# --- several answers about one run, as one -----------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """One number to show large.

    Attributes:
        name: a column's name, whose suffix gives the unit (``median_ns``, ``busy_frac``).
        label: what it is.
        value: the number.
    """

    name: str
    label: str
    value: float


@dataclass(frozen=True)
class Section:
    """One answer in a report.

    Attributes:
        key: of the analysis; findings refer to it.
        short: what it is called in a list of contents.
        command: what gives the same on the command line.
        result: the answer.
    """

    key: str
    short: str
    command: str
    result: Result


@dataclass(frozen=True, eq=False, repr=False)
class Report(Result):
    """Several answers about one run, what is wrong first.

    Attributes:
        about: what was looked at, in a few words.
        told: the answer that holds the findings, and what cannot be told.
        facts: the run in a few numbers.
        overview: a table with a row a rank.
        sections: the other answers, in order.
        command: what makes this report.
    """

    about: str
    told: Result
    facts: tuple[Fact, ...]
    overview: Table
    sections: tuple[Section, ...]
    command: str

    def view(self) -> View:
        """The ranks side by side; findings and rules; every other result by its name."""
        return View(
            title=f"Report on {self.about}",
            verdict=self.told.verdict,
            notes=self.told.notes,
            tables=(self.overview, *self.told.tables),
            scalars={
                **{fact.name: fact.value for fact in self.facts},
                **self.told.scalars,
                **{section.key: section.result.to_dict() for section in self.sections},
            },
            findings=self.told.diagnosis,
        )
