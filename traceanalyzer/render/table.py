"""A result as text for a terminal: verdict, tables, notes."""

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tabulate import MIN_PADDING, tabulate

from traceanalyzer.render.scale import cells, is_number
from traceanalyzer.render.text import prose, shorten, visible

if TYPE_CHECKING:
    from traceanalyzer.result import Result, Table

_FALLBACK = (120, 24)  # where no terminal tells its size
_PROSE_WIDTH = 100  # longer lines of prose are hard to read
_SHORTEST = 20  # a name cut further says nothing
_SEPARATOR = 3  # " | "


@dataclass(frozen=True)
class _Column:
    heading: str
    cells: list[str]
    numeric: bool

    @property
    def width(self) -> int:
        heading = max(map(len, self.heading.split("\n")), default=0)
        return max([heading + int(MIN_PADDING), *map(len, self.cells)])


def render(result: Result, *, top: int | None = 10, width: int | None = None) -> str:
    """The result as plain text, without colour.

    Args:
        result: what to show.
        top: rows shown of each table; None shows all.
        width: columns of the terminal; by default asked of it (``COLUMNS`` first).
    """
    width = width or shutil.get_terminal_size(_FALLBACK).columns
    line = min(width, _PROSE_WIDTH)
    parts = [prose(result.title), textwrap.fill(prose(result.verdict), line)]
    parts += [_table(table, top, width) for table in result.tables]
    if result.notes:
        parts.append("\n".join(_note(note, line) for note in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table, top: int | None, width: int) -> str:
    title = prose(table.title)
    rows = table.frame.height
    if not rows:
        return f"{title}: {visible(table.empty)}"
    shown = rows if top is None else min(top, rows)
    columns = _fitted(_columns(table, shown), width)
    text = tabulate(
        list(zip(*(column.cells for column in columns), strict=True)),
        headers=[column.heading for column in columns],
        tablefmt="presto",
        disable_numparse=True,
        colalign=["right" if column.numeric else "left" for column in columns],
    )
    body = "\n".join(line.rstrip() for line in text.split("\n"))
    rest = f"\n({shown} of {rows} rows; --top all shows the rest)" if shown < rows else ""
    return f"{title}\n{body}{rest}"


def _columns(table: Table, shown: int) -> list[_Column]:
    made = []
    for name, label in table.columns.items():
        values = table.frame[name].head(shown).to_list()
        scale, texts = cells(name, values)
        made.append(_Column(scale.heading(visible(label)), texts, is_number(values)))
    return made


def _fitted(columns: list[_Column], width: int) -> list[_Column]:
    """The columns narrowed towards the width: headings in lines first, then long names cut."""
    if _total(columns) > width:
        columns = [
            _Column(column.heading.replace(" ", "\n"), column.cells, column.numeric)
            for column in columns
        ]
    limit = _text_limit(columns, width)
    return [
        column
        if column.numeric
        else _Column(column.heading, [shorten(cell, limit) for cell in column.cells], numeric=False)
        for column in columns
    ]


def _text_limit(columns: list[_Column], width: int) -> int:
    """The widest a text cell may be so that the table fits; the longest texts give way first."""
    texts = sorted(column.width for column in columns if not column.numeric)
    room = width - (_total(columns) - sum(texts))
    for place, needed in enumerate(texts):
        share = room // (len(texts) - place)
        if needed > share:
            return max(share, _SHORTEST)
        room -= needed
    return max(texts, default=_SHORTEST)


def _total(columns: list[_Column]) -> int:
    return sum(column.width + _SEPARATOR for column in columns) - 1


def _note(note: str, width: int) -> str:
    return textwrap.fill(prose(note), width, initial_indent="- ", subsequent_indent="  ")
