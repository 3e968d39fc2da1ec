"""What every answer is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, overload

import polars as pl

from traceanalyzer.errors import OptionError
from traceanalyzer.result.shown import Chart, Finding, Flame, Occupancy, Table

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray


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
