"""Plain text of a result for a terminal: verdict, tables, notes."""

import shutil
import textwrap
from dataclasses import dataclass, replace

from tabulate import SEPARATING_LINE, tabulate

from traceanalyzer.render.text import costs, prose, shorten, table_cells, visible
from traceanalyzer.result import Finding, Result, Table

_FALLBACK_WIDTH = 120  # without a terminal
_PROSE_WIDTH = 100  # longer lines of prose are hard to read
_LONGEST = 160  # characters of a name
_SHORTEST = 20  # shorter names are unreadable
_HEADING = 8  # narrower headings need too many lines
_SEPARATOR = 3  # " | "


@dataclass(frozen=True)
class _Column:
    heading: list[str]
    cells: list[str]
    numeric: bool

    @property
    def width(self) -> int:
        return max(map(len, [*self.heading, *self.cells]))


def render(result: Result, *, top: int | None = 10, width: int | None = None) -> str:
    """Return a result as plain text without colours.

    Args:
        result: the result.
        top: rows per table, without detail tables; None means all rows of all tables.
        width: columns of the terminal; by default its width (``COLUMNS`` first).
    """
    known = width or shutil.get_terminal_size((0, 0)).columns
    width = known or _FALLBACK_WIDTH
    line = min(width, _PROSE_WIDTH)
    parts = [prose(result.title), _filled(prose(result.verdict), line)]
    parts += [_finding(number, finding, line) for number, finding in enumerate(result.diagnosis, 1)]
    parts += [
        _table(table, top, known if table.whole else width)
        for table in result.visible_tables
        if top is None or not table.detail
    ]
    more = [table.title for table in result.visible_tables if top is not None and table.detail]
    if more:
        text = f"More with --top all, or in html and json: {'; '.join(map(prose, more))}."
        parts.append(_filled(text, line))
    if result.notes:
        parts.append("\n".join(_filled(prose(one), line, begin="- ") for one in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(table: Table, top: int | None, width: int) -> str:
    """Return a table of at most ``width`` columns; 0 means unlimited."""
    title = prose(table.title)
    rows = table.frame.height
    if not rows:
        return f"{title}: {visible(table.empty)}"
    visible_rows = rows if top is None else min(top, rows)
    columns = _columns(table, visible_rows)
    columns = _fitted(columns, width) if width else columns
    # headings are rows: tabulate would pad the columns of headers by two
    lines = max(len(column.heading) for column in columns)
    text = tabulate(
        [
            *_rows([[""] * (lines - len(c.heading)) + c.heading for c in columns]),
            SEPARATING_LINE,
            *_rows([column.cells for column in columns]),
        ],
        tablefmt="presto",
        disable_numparse=True,
        colalign=["right" if column.numeric else "left" for column in columns],
    )
    body = "\n".join(line.rstrip() for line in text.split("\n"))
    rest = ""
    if visible_rows < rows:
        rest = f"\n({visible_rows} of {rows} rows; --top all shows the rest)"
    return f"{title}\n{body}{rest}"


def _rows(columns: list[list[str]]) -> list[list[str]]:
    return [list(row) for row in zip(*columns, strict=True)]


def _columns(table: Table, rows: int) -> list[_Column]:
    columns = []
    for name, label in table.columns.items():
        scale, texts, numeric = table_cells(table, name, rows)
        texts = [shorten(text, _LONGEST) for text in texts]
        columns.append(_Column([scale.heading(visible(label))], texts, numeric))
    return columns


def _fitted(columns: list[_Column], width: int) -> list[_Column]:
    """Narrow columns to fit: first wrap headings, then shorten long names."""
    if _total(columns) > width:
        columns = [replace(column, heading=_in_lines(column)) for column in columns]
    limit = _text_limit(columns, width)
    return [
        column
        if column.numeric
        else replace(column, cells=[shorten(cell, limit) for cell in column.cells])
        for column in columns
    ]


def _in_lines(column: _Column) -> list[str]:
    """Wrap the heading between words, no narrower than the cells."""
    text = column.heading[0]
    widest = max(_HEADING, *map(len, [*text.split(), *column.cells]))
    return textwrap.wrap(text, widest, break_on_hyphens=False) or [""]


def _text_limit(columns: list[_Column], width: int) -> int:
    """Return the width of text cells at which the table fits; the longest are cut first."""
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


def _finding(number: int, finding: Finding, width: int) -> str:
    """Return a finding: severity, cost, title, evidence, advice, effects, confidence."""
    cost = ", ".join(costs(finding))
    head = prose(f"{number}. {finding.severity}: {finding.id}{f' ({cost})' if cost else ''}")
    sentences = [finding.title, *finding.evidence]
    if finding.advice:
        sentences.append(f"Try: {finding.advice}")
    lines = [_filled(prose(one), width, begin="   ") for one in sentences]
    effects = [
        _filled(prose(f"{one.id}: {one.title}"), width, begin="   -> ") for one in finding.effects
    ]
    confidence = f"   Confidence: {finding.confidence}."
    return "\n".join([head, *filter(None, lines), *effects, confidence])


def _filled(text: str, width: int, *, begin: str = "") -> str:
    """Wrap text between words (``no-time`` is one word) with the indent of its first line."""
    further = " " * len(begin)
    return textwrap.fill(
        text, width, initial_indent=begin, subsequent_indent=further, break_on_hyphens=False
    )
