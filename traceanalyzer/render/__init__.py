"""Renderers: each module writes any result in one output format.

Only this package chooses units and escapes text. Renderers depend on
:mod:`traceanalyzer.drawings` and :mod:`traceanalyzer.units`, never on a parser, a trace, an
analyzer or the class of a result, and treat the results of all analyses alike. The command line and
the notebook methods of a result import this package.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

from traceanalyzer import files
from traceanalyzer.errors import OptionError

if TYPE_CHECKING:
    from traceanalyzer.drawings import Content

Form = Literal["table", "md", "csv", "json", "sqlite", "html", "svg", "png"]

#: Output formats.
FORMS: tuple[Form, ...] = ("table", "md", "csv", "json", "sqlite", "html", "svg", "png")

#: Formats that a terminal cannot show.
BINARY: tuple[Form, ...] = ("png", "sqlite")

#: Default rows per table; data formats contain all rows.
TOP: dict[str, int] = {"table": 10, "md": 20, "html": 100, "report": 50}

#: Output format of each suffix.
SUFFIXES: dict[str, Form] = {
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


_KNOWN = ", ".join(SUFFIXES)


def form_of(path: str) -> Form | None:
    """Return the output format by the suffix of a file name, or None."""
    return SUFFIXES.get(PurePath(path).suffix.lower())


def render(
    result: Content,
    to: Form,
    *,
    top: int | None = None,
    color: bool = False,
    table: str | None = None,
) -> bytes:
    """Render a result in one of :data:`FORMS`, text as UTF-8.

    Args:
        result: the result.
        to: the output format.
        top: rows per table; None means all.
        color: whether a table is coloured.
        table: the table of a CSV file; None for the first with rows.

    Raises:
        OptionError: an image of a result without charts, or a PNG of a flame graph.
    """
    # imported on use: a table needs no matplotlib, an image no tabulate
    if to == "table":
        from traceanalyzer.render.table import render as render_tables

        return render_tables(result, top=top, color=color).encode()
    if to == "md":
        from traceanalyzer.render import markdown

        return markdown.render(result, top=top).encode()
    if to in ("csv", "json", "sqlite"):
        from traceanalyzer.render import data

        if to == "csv":
            return data.to_csv(result, table=table, top=top).encode()
        return data.to_json(result, top=top) if to == "json" else data.to_sqlite(result, top=top)
    if to == "html":
        from traceanalyzer.render import html

        return html.page(result, top=top).encode()
    if result.flames and not result.occupancies:
        return _flamegraph(result, to)
    from traceanalyzer.render import plot

    picture = plot.figure(result)
    return plot.to_png(picture) if to == "png" else plot.to_svg(picture).encode()


def save(result: Content, path: str, *, top: int | None = None, force: bool = False) -> None:
    """Write a result to a file in the format of its suffix, see ``Result.save``."""
    form = form_of(path)
    if form is None:
        raise OptionError(f"{path}: unknown output format; the suffix is one of {_KNOWN}")
    files.check(path, force=force)
    rows = TOP.get(form) if top is None else top
    data = render(result, form, top=rows)
    with files.opened(path) as file:
        file.write(data)


def _flamegraph(result: Content, to: Form) -> bytes:
    if to == "png":
        raise OptionError("a flame graph cannot be written as png; use svg or html")
    if len(result.flames) > 1:
        raise OptionError(f"an svg contains one flame graph (got {len(result.flames)}); use html")
    from traceanalyzer.render import flamegraph

    return flamegraph.svg(result.flames[0]).encode()
