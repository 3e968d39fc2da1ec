"""Results of analyzers, as data independent of rendering.

A result is a frozen dataclass that derives from :class:`Result`. Its fields are scalars with the
unit in the name (``busy_ns``, ``idle_frac``, ``sent_bytes``) and frames; ``tables``, ``charts``,
``diagnosis``, ``verdict`` and ``notes`` define what renderers display. A :class:`Report` contains
several results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, overload

import polars as pl
import polars.selectors as cs

from traceanalyzer.drawings import Budget, Chart, Flame, Lanes, Occupancy
from traceanalyzer.errors import OptionError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

R = TypeVar("R", bound="Result")

# --- content of a result: tables and findings, as data -----------------------------------------


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
        gain_basis: ``replay`` if the gain is from a replay of the run; ``bound`` if only
            ``cost_ns`` is known, the gain is at most that; empty without a cost in time.
        gain_change: what is removed in that replay; ``what-if --finding ID`` (or its number) does
            it again.
        effects: findings that this one explains; their cost is part of its cost or follows from it.
        intervals: rank, device, start_ns, end_ns (on the clock of each file), or None.
        ranks: the ranks that a fix changes: of a pipeline stage or with larger inputs (their work
            moves to others), or with a slow host.
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
    gain_basis: GainBasis = ""
    gain_change: str = ""
    effects: tuple[Finding, ...] = ()
    intervals: pl.DataFrame | None = field(default=None, compare=False, repr=False)
    ranks: tuple[int, ...] = field(default=(), compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return everything except intervals and ranks as plain Python values."""
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


# --- base class of results ---------------------------------------------------------------------


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
class Result:
    """Base class of all results: fields with the numbers, and a :class:`View` of them.

    Notebook methods import :mod:`traceanalyzer.render` on use, the only dependency of a lower layer
    on a higher one.

    Attributes:
        question: the question that it answers, the title of ``view_from``.
        scalar_names: fields that are its scalars: ``n, total_ns``.
        input_notes: skipped or truncated inputs, a line each.
        input_warning: what limits all numbers; it is before the verdict.
    """

    question: ClassVar[str] = ""
    scalar_names: ClassVar[str] = ""
    input_notes: tuple[str, ...] = field(default=(), kw_only=True)
    input_warning: str = field(default="", kw_only=True)

    def view(self) -> View:
        """Return the content: verdict, notes, tables, charts."""
        raise NotImplementedError

    def view_from(
        self: R,
        verdict: Callable[[R], str],
        notes: Callable[[R], Iterable[str]],
        tables: Callable[[R], Iterable[Table]],
        charts: Callable[[R], Iterable[Chart]] | None = None,
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

    def to_pandas(self, table: str | None = None) -> pd.DataFrame:
        """Return a table as a pandas frame with nullable types: integers with nulls stay exact.

        Raises:
            MissingExtra: pandas is not installed.
            OptionError: the result has no table of that name.
        """
        renderer = import_module("traceanalyzer.render.data")
        frame: pd.DataFrame = renderer.to_pandas(self.to_polars(table))
        return frame

    def table(self, *, top: int | None = 10) -> str:
        """Return the result as text, as in the terminal."""
        text: str = import_module("traceanalyzer.render.table").render(self, top=top)
        return text

    def save(self, path: str, *, top: int | None = None, force: bool = False) -> None:
        """Write the result to a file, in the format of its suffix, as ``-o`` of the commands.

        Args:
            path: a name that ends in html, json, csv, md, txt, sqlite, svg or png.
            top: rows per table; default: as the commands, all in data formats.
            force: overwrite an existing file.

        Raises:
            OptionError: unknown suffix, or a picture of a result without charts.
            OutputError: the file exists and ``force`` is not set, or it cannot be written.
        """
        import_module("traceanalyzer.render").save(self, path, top=top, force=force)

    @overload
    def plot(self, chart: None = None, *, ax: None = None) -> NDArray[np.object_]: ...
    @overload
    def plot(self, chart: str, *, ax: None = None) -> Axes | NDArray[np.object_]: ...
    @overload
    def plot(self, chart: str | None = None, *, ax: Axes) -> Axes: ...
    def plot(
        self, chart: str | None = None, *, ax: Axes | None = None
    ) -> Axes | NDArray[np.object_]:
        """Draw one chart, or all of them in one figure, with matplotlib.

        As with pandas, a notebook displays the figure at the end of the cell. In a script only the
        caller refers to the figure, and no display is needed:
        ``result.plot("gaps").figure.savefig("gaps.png")``.

        Args:
            chart: name of a chart (``result.charts``) or of a drawing of memory
                (``result.occupancies``); by default all.
            ax: draw one chart on these axes, in the current style.

        Returns:
            The axes of the chart, or an array if it has several panels; without a name an array of
            all axes, whose figure is ``axes[0].figure.figure``.

        Raises:
            OptionError: nothing to draw, no chart of that name, or several charts for ``ax``.
        """
        axes: Axes | NDArray[np.object_]
        axes = import_module("traceanalyzer.render.plot").plot(self, chart, ax)
        return axes

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.verdict}>"

    def _repr_html_(self) -> str:
        html: str = import_module("traceanalyzer.render.html").fragment(self)
        return html


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
    result: Result


@dataclass(frozen=True, eq=False, repr=False)
class Report(Result):
    """Several results of one run, problems first.

    Attributes:
        about: the inputs, in short.
        diagnosis_result: the result with the findings and the skipped checks.
        facts: key numbers of the run.
        overview: a table with one row per rank.
        sections: the other results, in order.
        command: the command line of this report.
        timeline: the section with the timeline, on which findings are marked, or None.
    """

    about: str
    diagnosis_result: Result
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
