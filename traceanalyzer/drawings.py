"""What is shown of a result, as data: drawings, tables, findings, and the view with all of them.

Renderers know only this module: they draw on a page, with matplotlib, or as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, TypeVar

import polars as pl
import polars.selectors as cs

from traceanalyzer.errors import OptionError

C = TypeVar("C", bound="Content")

# --- drawings ----------------------------------------------------------------------------------


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


# --- tables and findings -----------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A frame with its presentation.

    Attributes:
        name: key in JSON, file suffix in a folder of CSVs.
        title: heading of the table.
        frame: all rows and columns, raw units, for programs; NaN and infinity become null.
        columns: displayed columns and their headings, in order. The unit of a value follows from
            the suffix of its column: ``_ns`` times, ``_bytes`` sizes, ``_frac`` ratios in percent,
            ``_gbps`` 10^9 bytes per second, ``_tflops`` 10^12 FLOP/s. Empty: data that is
            displayed in another form.
        empty: text in place of a table without rows.
        detail: by default a terminal prints its name only.
        missing: text for null by column, by default empty.
        whole: names are shortened only to fit a terminal, not in a file or a pipe.
        alike: groups of columns with one unit, to be compared.
        hide_first: columns that a narrow terminal hides first, the least important first; the other
            columns follow from the right, without the first two. None: it hides no column.
        sentences: columns of sentences, which no output shortens: a terminal that is too narrow
            prints them below the table, each with its rows by their first column, and a page long
            ones.
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
    hide_first: tuple[str, ...] | None = ()
    sentences: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # a share of nothing is unknown
        known = pl.when(cs.float().is_finite()).then(cs.float())
        object.__setattr__(self, "frame", self.frame.with_columns(known))

    @property
    def hiding_order(self) -> tuple[str, ...]:
        """Return the columns that a narrow terminal may hide, the least important first."""
        if self.hide_first is None:
            return ()
        first = [name for name in self.hide_first if name in self.columns]
        rest = [name for name in list(self.columns)[2:] if name not in first]
        return (*first, *reversed(rest))


#: Severity of a finding, in ascending order.
Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")

#: Confidence in a finding.
Confidence = Literal["low", "medium", "high"]

#: How the gain of removing the cause of a finding is known.
GainBasis = Literal["", "replay", "bound"]
#: What of the run an advice changes.
Fix = Literal["", "fewer-calls", "move-layers", "with-others"]


@dataclass(frozen=True)
class Finding:
    """A problem or a remark, with its cost.

    Attributes:
        id: name of the check, stable across versions.
        severity: info, warning or critical.
        confidence: low, medium or high.
        title: the problem in one sentence.
        evidence: numbers that support it, a sentence each.
        advice: what to try; empty for an effect.
        analysis: analysis with more details.
        rank, device, step: location; None if it is not specific to one.
        cost_ns: lost time, as the mean per step and device (per device without steps), or None.
        cost_bytes: memory that it costs, or None.
        cost_frac: the cost as a share, or None.
        of: the whole of which ``cost_frac`` is a share.
        per: the unit of the mean ``cost_ns``: ``step and GPU``, ``GPU``; empty for a sum.
        gain_ns: by how much a step (or the run, without steps) is shorter without the cause; None
            if it is not known.
        gain_frac: the same as a share of the step (or run).
        gain_of: the whole of which that is a share; empty: ``of``.
        gain_basis: ``replay`` if the gain is from a replay of the run; ``bound`` if only
            ``cost_ns`` is known, the gain is at most that; empty without a cost in time.
        gain_change: what is removed in that replay; ``what-if --finding ID`` (or its number) does
            it again.
        effects: findings that this one explains; their cost is part of its cost or follows from it.
        intervals: rank, device, start_ns, end_ns (on the clock of each file), or None.
        ranks: the ranks that a fix changes: of a pipeline stage or with larger inputs (their work
            moves to others), or with a slow host.
        fix: what the advice changes, if the gain depends on it: ``fewer-calls`` of collectives, or
            ``move-layers`` to other pipeline stages.
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
    gain_ns: int | None = None
    gain_frac: float | None = None
    gain_of: str = ""
    gain_basis: GainBasis = ""
    gain_change: str = ""
    effects: tuple[Finding, ...] = ()
    intervals: pl.DataFrame | None = field(default=None, compare=False, repr=False)
    ranks: tuple[int, ...] = field(default=(), compare=False, repr=False)
    fix: Fix = field(default="", compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except intervals, ranks and fix as plain Python values."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.repr}
        effects = [effect.to_dict() for effect in self.effects]
        return values | {"evidence": list(self.evidence), "effects": effects}


def finding_number(finding: str | int, findings: Sequence[Finding]) -> int:
    """Return the number of a finding, or of the finding that explains an effect of this id.

    Raises:
        OptionError: there is no such finding.
    """
    for number, one in enumerate(findings, 1):
        if str(finding) in (str(number), one.id):
            return number
    for number, one in enumerate(findings, 1):
        if finding in [effect.id for effect in one.effects]:
            return number
    listed = ", ".join(f"{number} ({one.id})" for number, one in enumerate(findings, 1))
    known = f"the findings are {listed}" if listed else "diagnose finds no problem"
    raise OptionError(f"no finding {str(finding)!r}; {known}")


#: Version of the keys and meanings of all JSON output, see ``docs/definitions.md``.
SCHEMA_VERSION = 1


# --- a result -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """The content of a result for renderers.

    Attributes:
        title: the question it answers.
        verdict: the answer, one paragraph.
        notes: assumptions, and data that is missing or was not counted.
        tables: tables, the most important first.
        scalars: numbers by name, unit in the name.
        charts: creates the charts, the most important first; called only for drawings.
        flames: creates the flame graphs.
        occupancies: creates the drawings of memory over time.
        timelines: creates the drawings of what devices do over time.
        findings: problems, the most severe first.
        recorded: what was recorded, in one line.
        budget_bar: where the time goes, or None.
    """

    title: str
    verdict: str
    notes: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    scalars: Mapping[str, Any] = field(default_factory=dict)
    charts: Callable[[], Iterable[Chart]] = tuple
    flames: Callable[[], tuple[Flame, ...]] = tuple
    occupancies: Callable[[], tuple[Occupancy, ...]] = tuple
    timelines: Callable[[], tuple[Lanes, ...]] = tuple
    findings: tuple[Finding, ...] = ()
    recorded: str = ""
    budget_bar: Budget | None = None


@dataclass(frozen=True)
class Content:
    """What renderers get of a result: its numbers, and a :class:`View` of them.

    Results derive from :class:`traceanalyzer.result.Result`, which describes the fields.
    """

    question: ClassVar[str] = ""
    scalar_names: ClassVar[str] = ""
    input_notes: tuple[str, ...] = field(default=(), kw_only=True)
    input_warning: str = field(default="", kw_only=True)

    def view(self) -> View:
        """Return the content: verdict, notes, tables, charts."""
        raise NotImplementedError

    def view_from(
        self: C,
        verdict: Callable[[C], str],
        notes: Callable[[C], Iterable[str]],
        tables: Callable[[C], Iterable[Table]],
        charts: Callable[[C], Iterable[Chart]] | None = None,
        *,
        title: str = "",
        scalars: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> View:
        """Return the view whose parts these functions build.

        Args:
            verdict: builds the verdict.
            notes: builds the notes.
            tables: builds the tables.
            charts: builds the charts, when they are drawn.
            title: default: ``question``.
            scalars: default: the fields of ``scalar_names``.
            **more: other attributes of the view.
        """
        numbers = self.numbers() if scalars is None else scalars
        content = verdict(self), tuple(notes(self)), tuple(tables(self)), numbers
        drawn = partial(charts, self) if charts else tuple
        return View(title or self.question, *content, charts=drawn, **more)

    @cached_property
    def _view(self) -> View:
        return self.view()

    @property
    def title(self) -> str:
        """Return the question that the result answers."""
        return self._view.title

    @property
    def verdict(self) -> str:
        """Return the answer, one paragraph."""
        return " ".join(filter(None, (self.input_warning, self._view.verdict)))

    @property
    def notes(self) -> tuple[str, ...]:
        """Return assumptions, and data that is missing or was not counted."""
        return (*self._view.notes, *self.input_notes)

    @property
    def diagnosis(self) -> tuple[Finding, ...]:
        """Return the findings, the most severe first."""
        return self._view.findings

    @property
    def recorded(self) -> str:
        """Return what was recorded, in one line, or an empty text."""
        return self._view.recorded

    @property
    def budget_bar(self) -> Budget | None:
        """Return where the time goes, or None."""
        return self._view.budget_bar

    @property
    def tables(self) -> tuple[Table, ...]:
        """Return the tables, the most important first."""
        return self._view.tables

    @property
    def visible_tables(self) -> tuple[Table, ...]:
        """Return the tables to display; the data of the others is displayed in another form."""
        return tuple(table for table in self.tables if table.columns)

    @cached_property
    def charts(self) -> tuple[Chart, ...]:
        """Return the charts, the most important first."""
        return tuple(self._view.charts())

    @cached_property
    def flames(self) -> tuple[Flame, ...]:
        """Return the flame graphs."""
        return self._view.flames()

    @cached_property
    def occupancies(self) -> tuple[Occupancy, ...]:
        """Return the drawings of memory over time."""
        return self._view.occupancies()

    @cached_property
    def timelines(self) -> tuple[Lanes, ...]:
        """Return the drawings of what devices do over time."""
        return self._view.timelines()

    @property
    def scalars(self) -> dict[str, Any]:
        """Return numbers by name, unit in the name."""
        return dict(self._view.scalars)

    def numbers(self, *names: str) -> dict[str, Any]:
        """Return these fields by name, by default those of ``scalar_names``."""
        chosen = names or filter(None, self.scalar_names.split(", "))
        return {name: getattr(self, name) for name in chosen}

    def to_dict(self) -> dict[str, Any]:
        """Return title, verdict, scalars, tables (as rows) and notes as plain Python values."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            **self.scalars,
            **{table.name: table.frame.to_dicts() for table in self.tables},
            "notes": list(self.notes),
        }

    def to_polars(self, table: str | None = None) -> pl.DataFrame:
        """Return the frame of a table in raw units, by default of the first table.

        Raises:
            OptionError: the result has no table of that name.
        """
        if table is None:
            return self.tables[0].frame
        frames = {t.name: t.frame for t in self.tables}
        if table not in frames:
            raise OptionError(f"this result has no table {table!r}; it has {', '.join(frames)}")
        return frames[table]


# --- reports -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fact:
    """One key number of a run.

    Attributes:
        name: name whose suffix determines the unit (``median_ns``, ``busy_frac``).
        label: its label.
        value: the number.
    """

    name: str
    label: str
    value: float


@dataclass(frozen=True)
class Section:
    """One result in a report.

    Attributes:
        key: name of the analysis, to which findings refer.
        short: entry in the list of contents.
        command: equivalent command line.
        result: the result.
    """

    key: str
    short: str
    command: str
    result: Content


@dataclass(frozen=True, eq=False, repr=False)
class ReportContent(Content):
    """What renderers get of a report; :class:`traceanalyzer.result.Report` describes the fields."""

    about: str
    diagnosis_result: Content
    facts: tuple[Fact, ...]
    overview: Table
    sections: tuple[Section, ...]
    command: str
    timeline: Section | None = None

    def view(self) -> View:
        """Return the overview of ranks, findings and checks, and every other result by name."""
        return View(
            title=f"Report on {self.about}",
            verdict=self.diagnosis_result.verdict,
            notes=self.diagnosis_result.notes,
            tables=(self.overview, *self.diagnosis_result.tables),
            scalars={
                **{fact.name: fact.value for fact in self.facts},
                **self.diagnosis_result.scalars,
                **{section.key: section.result.to_dict() for section in self.sections},
            },
            findings=self.diagnosis_result.diagnosis,
        )
