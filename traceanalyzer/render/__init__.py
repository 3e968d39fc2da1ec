"""Result in, text or an image out: one ink a file, for every result alike.

Units are chosen and text is made harmless here and nowhere else. Renderers know
:mod:`traceanalyzer.result` and :mod:`traceanalyzer.units`, never a parser, a trace or an analyzer,
and never ask which analysis a result came from. The command line and a result's notebook methods
import this folder.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from traceanalyzer.errors import OptionError

if TYPE_CHECKING:
    from traceanalyzer.result import Result

Form = Literal["table", "md", "csv", "json", "sqlite", "html", "svg", "png"]

#: What a result can be rendered to.
FORMS: tuple[Form, ...] = ("table", "md", "csv", "json", "sqlite", "html", "svg", "png")

#: Forms that no terminal can show.
BINARY: tuple[Form, ...] = ("png", "sqlite")

#: Rows shown of each table unless told; forms for other programs hold all rows.
TOP: dict[str, int] = {"table": 10, "md": 20, "html": 100, "report": 50}

_SUFFIXES: dict[str, Form] = {
    ".csv": "csv",
    ".json": "json",
    ".sqlite": "sqlite",
    ".db": "sqlite",
    ".html": "html",
    ".htm": "html",
    ".svg": "svg",
    ".png": "png",
    ".txt": "table",
    ".md": "md",
}


def form_of(path: str) -> Form | None:
    """The form that a file name's suffix asks for; None when it asks for none."""
    return _SUFFIXES.get(PurePath(path).suffix.lower())


def render(result: Result, to: Form, *, top: int | None = None) -> bytes:
    """The result in one of :data:`FORMS`, text as UTF-8.

    Args:
        result: what to show.
        to: the form.
        top: rows of each table; None means all of them.

    Raises:
        OptionError: a picture of a result without a chart was asked for, or a PNG of a flamegraph.
    """
    # imported here: a table needs no matplotlib, a picture no tabulate
    if to == "table":
        from traceanalyzer.render import table

        return table.render(result, top=top).encode()
    if to == "md":
        from traceanalyzer.render import markdown

        return markdown.render(result, top=top).encode()
    if to in ("csv", "json", "sqlite"):
        from traceanalyzer.render import data

        if to == "csv":
            return data.to_csv(result, top=top).encode()
        return data.to_json(result, top=top) if to == "json" else data.to_sqlite(result, top=top)
    if to == "html":
        from traceanalyzer.render import html, report
        from traceanalyzer.result import Report

        if isinstance(result, Report):
            return report.page(result, top=top).encode()
        return html.page(result, top=top).encode()
    if result.flames and not result.occupancies:
        return _flamegraph(result, to)
    from traceanalyzer.render import plot

    picture = plot.figure(result)
    return plot.to_png(picture) if to == "png" else plot.to_svg(picture).encode()


def _flamegraph(result: Result, to: Form) -> bytes:
    if to == "png":
        raise OptionError("a flamegraph is written as svg or html, not as png")
    if len(result.flames) > 1:
        raise OptionError(f"an svg holds one flamegraph, not {len(result.flames)}; write html")
    from traceanalyzer.render import flamegraph

    return flamegraph.svg(result.flames[0]).encode()
