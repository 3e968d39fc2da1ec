"""Text of a result for a terminal: verdict, tables, notes."""

import shutil
import textwrap
from dataclasses import replace

from tabulate import SEPARATING_LINE, tabulate

from traceanalyzer.render.fitting import Column, fitted, shorten_all
from traceanalyzer.render.palette import OWN_CODE, SEVERITY, colored
from traceanalyzer.render.text import further_costs, prose, row_sentences, table_cells, visible
from traceanalyzer.result import Finding, Result, Table

_FALLBACK_WIDTH = 120  # without a terminal
#: Sentences of evidence per finding, so that several fit on a screen; --top all prints all.
_EVIDENCE = 1
_PROSE_WIDTH = 100  # longer lines of prose are hard to read
_LONGEST = 160  # characters of a name


def render(
    result: Result, *, top: int | None = 10, width: int | None = None, color: bool = False
) -> str:
    """Return a result as text.

    Args:
        result: the result.
        top: rows per table, without detail tables; None means all rows of all tables.
        width: columns of the terminal; by default its width (``COLUMNS`` first). Without a
            terminal no column is hidden.
        color: whether severities and own code are coloured.
    """
    known = width or shutil.get_terminal_size((0, 0)).columns
    room = known or _FALLBACK_WIDTH
    line = min(room, _PROSE_WIDTH)
    parts = [_heading(result, line), _filled(prose(result.verdict), line)]
    parts += _strips(result, room, top, color=color)
    parts += [
        _finding(number, finding, line, color=color, evidence=None if top is None else _EVIDENCE)
        for number, finding in enumerate(result.diagnosis, 1)
    ]
    parts += [
        _table(table, top, known, color=color)
        for table in result.visible_tables
        if top is None or not table.detail
    ]
    more = [table.title for table in result.visible_tables if top is not None and table.detail]
    if top is not None and any(len(one.evidence) > _EVIDENCE for one in result.diagnosis):
        more.insert(0, "Evidence of each finding")
    if more:
        text = f"More with --top all, or in html and json: {'; '.join(map(prose, more))}."
        parts.append(_filled(text, line))
    if result.notes:
        parts.append("\n".join(_filled(prose(one), line, begin="- ") for one in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _strips(result: Result, width: int, top: int | None, *, color: bool) -> list[str]:
    """Return where the time goes, and the timelines."""
    if not (result.budget_bar or result.timelines):
        return []
    from traceanalyzer.render.timeline import strip  # few results have one

    bar = [strip.bar(result.budget_bar, width, color=color)] if result.budget_bar else []
    return [*bar, *(strip.text(one, width, top=top, color=color) for one in result.timelines)]


def _heading(result: Result, width: int) -> str:
    """Return the title and what was recorded."""
    recorded = _filled(prose(result.recorded), width) if result.recorded else ""
    return "\n".join(filter(None, [prose(result.title), recorded]))


def _table(table: Table, top: int | None, width: int, *, color: bool) -> str:
    """Return a table that fits into ``width`` columns; 0 means that the width is unknown."""
    title = prose(table.title)
    if not table.frame.height:
        return f"{title}: {visible(table.empty)}"
    rows = table.frame.head(top).height if top is not None else table.frame.height
    columns, hidden = _columns(table, rows), list[str]()
    columns = [column for column in columns if column.name not in table.sentences]
    if width:
        columns, hidden = fitted(columns, width, table.hiding_order)
    elif not table.whole:
        columns, _ = fitted(columns, _FALLBACK_WIDTH, ())
    if color:
        columns = _colored(table, columns)
    lines = [title, _grid(columns)]
    if rows < table.frame.height:
        lines.append(f"({rows} of {table.frame.height} rows; --top all shows the rest)")
    if hidden:
        lines.append(_filled(_hidden_note(table, hidden), min(width, _PROSE_WIDTH)))
    line = min(width or _FALLBACK_WIDTH, _PROSE_WIDTH)
    texts = (text for name in table.sentences for text in row_sentences(table, name, rows))
    lines += [_filled(text, line, further="  ") for text in texts]
    return "\n".join(lines)


def _grid(columns: list[Column]) -> str:
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
    return "\n".join(line.rstrip() for line in text.split("\n"))


def _rows(columns: list[list[str]]) -> list[list[str]]:
    return [list(row) for row in zip(*columns, strict=True)]


def _columns(table: Table, rows: int) -> list[Column]:
    columns = []
    for column in table_cells(table, rows):
        heading = column.scale.heading(visible(column.label))
        texts = shorten_all(column.texts, _LONGEST)
        columns.append(Column(column.name, [heading], texts, column.numeric))
    return columns


def _hidden_note(table: Table, hidden: list[str]) -> str:
    """Name the hidden columns, in the order of the table."""
    labels = [visible(label) for name, label in table.columns.items() if name in hidden]
    columns, them = ("1 column", "it") if len(labels) == 1 else (f"{len(labels)} columns", "them")
    names = ", ".join(labels)
    return f"({columns} hidden at this width: {names}; --columns or a wider terminal shows {them})"


def _colored(table: Table, columns: list[Column]) -> list[Column]:
    """Colour the cells of severities, and the names in rows of own code."""
    marked = table.frame["is_own_code"] if "is_own_code" in table.frame.columns else None
    return [
        replace(column, cells=[colored(text, SEVERITY.get(text)) for text in column.cells])
        if column.name == "severity"
        else column
        if marked is None or column.numeric
        else replace(column, cells=_in_rows(column.cells, marked.head(len(column.cells)).to_list()))
        for column in columns
    ]


def _in_rows(cells: list[str], marked: list[bool | None]) -> list[str]:
    pairs = zip(cells, marked, strict=True)
    return [colored(text, OWN_CODE if is_own_code else None) for text, is_own_code in pairs]


def _finding(
    number: int, finding: Finding, width: int, *, color: bool, evidence: int | None
) -> str:
    """Return a finding: severity, title, cost, evidence, effects, advice, confidence, rule.

    Args:
        number: its number.
        finding: the finding.
        width: characters per line.
        color: whether the severity is coloured.
        evidence: most sentences of evidence; None means all.
    """
    cost = ", ".join(further_costs(finding))
    severity = finding.severity.upper()
    head = prose(f"{number}. {severity}: {finding.title}{f' Cost: {cost}.' if cost else ''}")
    head = _filled(head, width, further="   ")
    head = head.replace(
        severity, colored(severity, SEVERITY[finding.severity] if color else None), 1
    )
    reasons = [_filled(prose(one), width, begin="   ") for one in finding.evidence[:evidence]]
    effects = [
        _filled(prose(f"{one.id}: {one.title}"), width, begin="   -> ") for one in finding.effects
    ]
    advice = _filled(prose(f"Try: {finding.advice}"), width, begin="   ") if finding.advice else ""
    last = f"   Confidence: {finding.confidence}. Rule: {prose(finding.id)}."
    return "\n".join([head, *filter(None, [*reasons, *effects, advice]), last])


def _filled(text: str, width: int, *, begin: str = "", further: str | None = None) -> str:
    """Wrap text between words (``no-time`` is one word), indented like its start by default."""
    further = " " * len(begin) if further is None else further
    return textwrap.fill(
        text, width, initial_indent=begin, subsequent_indent=further, break_on_hyphens=False
    )
