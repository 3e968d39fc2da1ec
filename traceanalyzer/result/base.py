"""What every answer is."""

from __future__ import annotations

from dataclasses import dataclass
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
class Result:
    """What every analyzer returns.

    Notebook methods draw through :mod:`traceanalyzer.render`, loaded when they are called: the
    one place where a lower room reaches for a higher one.
    """

    @property
    def title(self) -> str:
        """The question this result answers."""
        raise NotImplementedError

    @property
    def verdict(self) -> str:
        """The answer in plain words, one paragraph."""
        raise NotImplementedError

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not counted, assumed or missing."""
        return ()

    @property
    def diagnosis(self) -> tuple[Finding, ...]:
        """What is wrong, the gravest first."""
        return ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """The answer's numbers as tables, the most telling first."""
        return ()

    @property
    def tables_shown(self) -> tuple[Table, ...]:
        """Those to show: the others are data of what is shown in another way."""
        return tuple(table for table in self.tables if table.columns)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Charts to draw, the most telling first."""
        return ()

    @property
    def flames(self) -> tuple[Flame, ...]:
        """Flamegraphs to draw."""
        return ()

    @property
    def occupancies(self) -> tuple[Occupancy, ...]:
        """What filled memories over time, to draw."""
        return ()

    @property
    def scalars(self) -> dict[str, Any]:
        """Numbers by name, unit in the name."""
        return {}

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
        renderer = import_module("traceanalyzer.render.pandas")
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
