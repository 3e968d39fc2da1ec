"""Results of analyzers: numbers and frames, and how they are displayed.

A result is a frozen dataclass that derives from :class:`Result`. Its fields are scalars with the
unit in the name (``busy_ns``, ``idle_frac``, ``sent_bytes``) and frames; ``view`` returns what is
shown of them (:mod:`traceanalyzer.drawings`), which is all that renderers know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, overload

from traceanalyzer.drawings import (
    SCHEMA_VERSION as SCHEMA_VERSION,
    SEVERITIES as SEVERITIES,
    Confidence as Confidence,
    Content,
    Finding as Finding,
    Fix as Fix,
    ReportContent,
    Severity as Severity,
    Table as Table,
    View as View,
    finding_number as finding_number,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


def memoized(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Compute once what a method or function of a frozen object returns for equal arguments."""
    name = f"{method.__module__}.{method.__qualname__}"  # no attribute has a dot

    @wraps(method)
    def once(self: S, /, *arguments: P.args, **options: P.kwargs) -> T:
        known: dict[tuple[object, ...], T] = self.__dict__.setdefault(name, {})
        key = (*arguments, *options.items())
        if key not in known:
            known[key] = method(self, *arguments, **options)
        return known[key]

    return once


@dataclass(frozen=True)
class Result(Content):
    """Base class of all results: fields with the numbers, and a :class:`View` of them.

    Notebook methods import :mod:`traceanalyzer.render` on use, the only dependency of a lower layer
    on a higher one.

    Attributes:
        question: the question that it answers, the title of ``view_from``.
        scalar_names: fields that are its scalars: ``n, total_ns``.
        input_notes: skipped or truncated inputs, a line each.
        input_warning: what limits all numbers; it is before the verdict.
    """

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


@dataclass(frozen=True, eq=False, repr=False)
class Report(ReportContent, Result):
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
