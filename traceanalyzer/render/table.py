"""Text of a result for a terminal: verdict, tables, notes."""

import re
import shutil
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from os.path import commonprefix
from typing import TypeVar

import polars as pl

from traceanalyzer.drawings import Content, Finding, Table
from traceanalyzer.errors import OptionError
from traceanalyzer.render.palette import OWN_CODE, SEVERITY, colored
from traceanalyzer.render.text import (
    answer,
    further_costs,
    gain,
    prose,
    row_sentences,
    table_cells,
    visible,
)
from traceanalyzer.units import one_of

_READABLE = 24  # columns are hidden before names are shorter than this
_SHORTEST = 10  # the limit where all other columns are hidden
_FURTHER = 20  # names after the first one may be so short if that one is then complete
_HEADING = 8  # narrower headings need too many lines
_SEPARATOR = 3  # " | "
_ELLIPSIS = "..."
#: Of longer names only the ends are looked at.
_LONGEST = 2_000
#: The space between a number and its unit.
_WITH_UNIT = re.compile(r"(?<=\d) ((?:%|[num]?s|[KMGT]?i?B|GB/s)(?!\w))")
_NO_BREAK = "\N{NO-BREAK SPACE}"
_WORD = re.compile(r"[^\W\d_]+|\d+|.", re.DOTALL)
_COPY = re.compile(r"(?:Memcpy )?(\w+) \((\w+) -> (\w+)\)")
#: The share of the first of several: ``f 3 ms (61 %) ...``.
_SHARE = re.compile(r" \([\d.]+ %\) \.\.\.$")
#: The folders of a place: ``f (pkg/train.py:7)``.
_FOLDERS = re.compile(r"\((?:[^()/]*/)+(?=[^()/]+\)$)")
#: Characters before the first difference that are kept.
_LEAD = 2


@dataclass(frozen=True)
class Column:
    """A column of a table as text.

    Attributes:
        name: its name in the frame.
        heading: the lines of its heading.
        cells: one text per row.
        numeric: whether it is aligned to the right, and never shortened.
    """

    name: str
    heading: list[str]
    cells: list[str]
    numeric: bool

    @property
    def width(self) -> int:
        """Return the number of characters."""
        return max(map(len, [*self.heading, *self.cells]))


def fitted(
    columns: Sequence[Column], width: int, hiding_order: Sequence[str]
) -> tuple[list[Column], list[str]]:
    """Return the columns that fit, with wrapped headings and short names, and the hidden ones.

    Args:
        columns: all columns.
        width: characters of a line.
        hiding_order: names of the columns that may be hidden, the least important first.
    """
    columns, hidden = list(columns), list[str]()
    if _total(columns) > width:
        columns = [replace(column, heading=_in_lines(column)) for column in columns]
    for name in hiding_order:
        if _least(columns) <= width:
            break
        pair = (name, name.replace("before_", "after_"))  # one is of no use without the other
        columns = [column for column in columns if column.name not in pair]
        hidden += pair
    limit = max(_text_limit(columns, width), _SHORTEST if hiding_order else _READABLE)
    return _with_short_names(columns, width, limit), hidden


def _with_short_names(columns: Sequence[Column], width: int, limit: int) -> list[Column]:
    """Return columns of names that fit; the first of several loses folders rather than its end."""
    names = [column for column in columns if not column.numeric]
    for first in names[: len(names) > 1]:
        brief = replace(first, cells=[_brief(cell) for cell in first.cells])
        others = [one for one in columns if one is not first]
        further = _text_limit(others, width - brief.width - _SEPARATOR)
        if first.width > limit and further >= _FURTHER:
            return [_shortened(one, brief.width if one is first else further) for one in columns]
    return [_shortened(column, limit) for column in columns]


def _shortened(column: Column, limit: int) -> Column:
    return column if column.numeric else replace(column, cells=shorten_all(column.cells, limit))


def _in_lines(column: Column) -> list[str]:
    """Wrap the heading between words, no narrower than the cells."""
    text = " ".join(column.heading)
    widest = max(_HEADING, *map(len, [*text.split(), *column.cells]))
    return textwrap.wrap(text, widest, break_on_hyphens=False) or [""]


def _text_limit(columns: Sequence[Column], width: int) -> int:
    """Return the width of text cells at which the table fits; the longest are cut first."""
    texts = sorted(column.width for column in columns if not column.numeric)
    room = width - (_total(columns) - sum(texts))
    for place, needed in enumerate(texts):
        share = room // (len(texts) - place)
        if needed > share:
            return share
        room -= needed
    return max(texts, default=0)


def _total(columns: Sequence[Column]) -> int:
    return sum(column.width + _SEPARATOR for column in columns) - 1


def _least(columns: Sequence[Column]) -> int:
    """Return the width of the table with names that are just readable."""
    excess = [max(column.width - _READABLE, 0) for column in columns if not column.numeric]
    return _total(columns) - sum(excess)


# --- names ---------------------------------------------------------------------------------------


def shorten_all(texts: Sequence[str], width: int) -> list[str]:
    """Shorten the texts of one column to ``width`` characters.

    The cut removes what most texts have in common: ``...AllReduce_Sum_bf16_...``. Between equal
    choices it removes the middle. Copies get a short name: ``HtoD pinned``.

    Args:
        texts: all texts of the column.
        width: at least 10.
    """
    texts = [_within_limit(text) for text in texts]
    long = {text for text in texts if len(text) > width}
    if not long:
        return list(texts)
    brief = {text: _brief(text) if text in long else text for text in texts}
    if len({*brief.values()}) < len(brief):
        brief = {text: text for text in brief}
    short = _numbered(_without_common(list(dict.fromkeys(brief.values())), width), width)
    return [short[brief[text]] for text in texts]


def _numbered(short: dict[str, str], width: int) -> dict[str, str]:
    """Number equal texts, which differ in several places: ``...Functor_add... (2)``."""
    so_far = Counter[str]()
    for text, cut in short.items():
        so_far[cut] += 1
        if (n := so_far[cut]) > 1:
            short[text] = f"{cut[: width - len(f' ({n})')]} ({n})"
    return short


def _within_limit(text: str) -> str:
    """Return the text, of a very long one both ends: the next steps look at each character."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}{_ELLIPSIS}{text[-half:]}"


def _brief(text: str) -> str:
    """Return ``HtoD pinned`` for ``Memcpy HtoD (Pinned -> Device)``, and the first of shares.

    Places lose their folders: ``f (train.py:7)``.
    """
    match = _COPY.fullmatch(text)
    if match is None:
        text = _FOLDERS.sub("(", text)
        return f"{text.partition('%), ')[0]}%) ..." if "%), " in text else text
    kinds = [kind.lower() for kind in match.group(2, 3) if kind != "Device"]
    return " ".join((match[1], *kinds))


def _without_common(texts: Sequence[str], width: int) -> dict[str, str]:
    counts = Counter(word for text in texts for word in set(_WORD.findall(text)))
    short = {text: _cut(text, width, counts, len(texts)) for text in texts}
    if len(texts) > 1 and len({*short.values()}) == 1:
        short = {text: _around_difference(text, texts, width) for text in texts}
    equal = defaultdict(list)
    for text in texts:
        equal[short[text]].append(text)
    for same in equal.values():
        if 1 < len(same) < len(texts):
            short |= _without_common(same, width)
    return short


def _cut(text: str, width: int, counts: Mapping[str, int], n: int) -> str:
    """Keep both ends or a part within, whichever has the words that fewest of ``n`` texts have."""
    if len(text) <= width or len(text := _SHARE.sub("", text)) <= width:
        return text
    rarity = [n - counts[word] for word in _WORD.findall(text) for _ in word]
    sums = list(accumulate(rarity, initial=0))
    removed = len(text) - (width - len(_ELLIPSIS))
    middle = (len(text) - removed + 1) // 2
    starts = range(len(text) - removed + 1)
    cut = min(starts, key=lambda at: (sums[at + removed] - sums[at], abs(at - middle)))
    kept = width - 2 * len(_ELLIPSIS)
    part = max(range(len(text) - kept + 1), key=lambda at: (sums[at + kept] - sums[at], at))
    if sums[part + kept] - sums[part] > sums[-1] - (sums[cut + removed] - sums[cut]):
        return f"{_ELLIPSIS}{text[part : part + kept]}{_ELLIPSIS}"
    return f"{text[:cut]}{_ELLIPSIS}{text[cut + removed :]}"


def _around_difference(text: str, texts: Sequence[str], width: int) -> str:
    """Return the text from its first difference to the others on."""
    start = max(len(commonprefix(texts)) - _LEAD, 0)  # noqa: RUF071 - by characters
    rest, room = text[start:], width - len(_ELLIPSIS)
    if len(rest) > room:
        rest = rest[: room - len(_ELLIPSIS)] + _ELLIPSIS
    return _ELLIPSIS + rest


R = TypeVar("R", bound=Content)

_DESCENDING = {"asc": False, "desc": True}
_UNITS = ("_ns", "_bytes", "_frac", "_gbps", "_tflops")


#: In place of columns: all of them, in a terminal of any width.
ALL = "all"


def arranged(result: R, *, sort: Sequence[str] = (), columns: Sequence[str] = ()) -> R:
    """Return the result with sorted rows and only some columns in its tables.

    A column is ``TABLE.COLUMN``, or ``COLUMN`` of every table that has it, by its name (with or
    without unit) or its heading; a table by its name or title. Tables without any of the columns
    stay as they are.

    Args:
        result: the result.
        sort: columns to sort by, the most important first: numbers in descending order (lists by
            their length), text ascending; ``COLUMN:asc`` and ``COLUMN:desc`` override that. Nulls
            come last.
        columns: columns to keep, in order; :data:`ALL`, also among others, for all of each table.

    Raises:
        OptionError: no table has the column; the message lists the columns.
    """
    keys = [_ordered(text, result.tables) for text in sort]
    _require("--sort", [name for name, _ in keys], result.tables)
    names = [one for one in columns if one != ALL]
    _require("--columns", names, result.tables)
    kept = [] if ALL in columns else names
    tables = tuple(_selected(_sorted(table, keys), kept) for table in result.tables)
    if ALL in columns:
        tables = tuple(replace(table, hide_first=None) for table in tables)
    view = replace(result._view, tables=tables)
    changed = copy(result)
    vars(changed)["_view"] = view
    return changed


def _ordered(text: str, tables: Sequence[Table]) -> tuple[str, bool | None]:
    """Return the column of a text like ``COLUMN:desc``, and whether it is descending, if given.

    Headings may contain a colon: ``idle: other``.
    """
    name, colon, order = text.rpartition(":")
    if any(_column(table, text) for table in tables):
        return text, None
    if colon and order.strip() in _DESCENDING:
        return name, _DESCENDING[order.strip()]
    if colon and any(_column(table, name) for table in tables):
        raise OptionError(f"--sort: unknown order {order!r}; use :asc or :desc")
    return text, None


def _require(option: str, names: Sequence[str], tables: Sequence[Table]) -> None:
    for name in names:
        if not any(_column(table, name) for table in tables):
            lists = [f"{table.name}: {', '.join(_short_names(table))}" for table in tables]
            each = {one for table in tables for one in _short_names(table)}
            hint = one_of(name, each, f"tables have {'; '.join(lists)}")
            raise OptionError(f"{option}: unknown column {name!r}; {hint}")


def _short_names(table: Table) -> list[str]:
    """Return the headings of a table as names, and the columns' own names of equal headings."""
    columns = table.columns or {name: _without_unit(name) for name in table.frame.columns}
    counts = Counter(columns.values())
    return [_plain(label) if counts[label] == 1 else name for name, label in columns.items()]


def _column(table: Table, text: str) -> str | None:
    """Return the column of the table that a text names, or None."""
    first, dot, rest = text.partition(".")
    if dot and _plain(first) not in (table.name, _plain(table.title)):
        return None
    names = table.frame.columns
    known = {_without_unit(name): name for name in reversed(names)} | {name: name for name in names}
    # what is displayed comes before what is not
    known |= {_plain(label): name for name, label in reversed(list(table.columns.items()))}
    known |= {name: name for name in table.columns}
    if "n" in names:
        known.setdefault("count", "n")
    return known.get(_plain(rest if dot else first))


def _sorted(table: Table, sort: Sequence[tuple[str, bool | None]]) -> Table:
    keys, descending = list[pl.Expr](), list[bool]()
    hide_first = table.hiding_order
    for name, is_descending in sort:
        column = _column(table, name)
        if column is not None:
            dtype = table.frame.schema[column]
            is_number = dtype.is_numeric() or dtype.is_nested() or dtype == pl.Boolean
            keys.append(_key(column, dtype))
            descending.append(is_number if is_descending is None else is_descending)
            hide_first = tuple(one for one in hide_first if one != column)
    if not keys:
        return table
    frame = table.frame.sort(keys, descending=descending, nulls_last=True, maintain_order=True)
    return replace(table, frame=frame, hide_first=hide_first)


def _key(column: str, dtype: pl.DataType) -> pl.Expr:
    """Return what to sort a column by: lists by length, categories by name."""
    if dtype.is_nested():
        return pl.col(column).list.len()
    return pl.col(column).cast(pl.String) if dtype == pl.Categorical else pl.col(column)


def _selected(table: Table, columns: Sequence[str]) -> Table:
    selected = [column for text in columns if (column := _column(table, text))]
    if not selected:
        return table
    names = list(dict.fromkeys(selected))
    labels = {name: table.columns.get(name, _without_unit(name)) for name in names}
    displayed = labels if table.columns else {}
    return replace(table, frame=table.frame.select(names), columns=displayed, hide_first=None)


def _plain(text: str) -> str:
    return text.strip().lower().replace(" ", "_").replace("-", "_")


def _without_unit(name: str) -> str:
    return next((name.removesuffix(unit) for unit in _UNITS if name.endswith(unit)), name)


_FALLBACK_WIDTH = 120  # without a terminal
_LONGEST_STRIP = 1000  # COLUMNS may have any value
#: Sentences of evidence per finding, so that several fit on a screen; --top all prints all.
_EVIDENCE = 1
_PROSE_WIDTH = 100  # longer lines of prose are hard to read
_LONGEST = 160  # characters of a name


def render(
    result: Content, *, top: int | None = 10, width: int | None = None, color: bool = False
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
    room = min(known, _LONGEST_STRIP) or _FALLBACK_WIDTH
    line = min(room, _PROSE_WIDTH)
    lead, points = answer(prose(result.verdict))
    parts = [_heading(result, line), _filled(lead, line)]
    parts.append("\n".join(_filled(point, line, begin="- ") for point in points))
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
    if result.diagnosis:
        from traceanalyzer.render.pieces import fixes  # few results have findings

        for one in [one for one in result.diagnosis if one.id in fixes()][:1]:
            text = f"Code before and after a change: traceanalyzer diagnose --explain {one.id}."
            parts.append(_filled(text, line))
    if result.notes:
        parts.append("\n".join(_filled(prose(one), line, begin="- ") for one in result.notes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _strips(result: Content, width: int, top: int | None, *, color: bool) -> list[str]:
    """Return where the time goes, and the timelines."""
    if not (result.budget_bar or result.timelines):
        return []
    from traceanalyzer.render import timeline  # few results have one

    bar = [timeline.bar(result.budget_bar, width, color=color)] if result.budget_bar else []
    return [*bar, *(timeline.text(one, width, top=top, color=color) for one in result.timelines)]


def _heading(result: Content, width: int) -> str:
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
    below = table.sentences if _total(columns) > (width or _FALLBACK_WIDTH) else ()
    columns = [column for column in columns if column.name not in below]
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
    texts = (text for name in below for text in row_sentences(table, name, rows))
    lines += [_filled(text, line, further="  ") for text in texts]
    return "\n".join(lines)


def _grid(columns: list[Column]) -> str:
    from tabulate import SEPARATING_LINE, tabulate  # on use: most findings need no table

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
    return f"({columns} hidden at this width: {names}; --columns {ALL} shows {them})"


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
    gained = f"   Gain: {gain(finding)}." if gain(finding) else ""
    advice = _filled(prose(f"Try: {finding.advice}"), width, begin="   ") if finding.advice else ""
    last = f"   Confidence: {finding.confidence}. Rule: {prose(finding.id)}."
    return "\n".join([head, *filter(None, [gained, *reasons, *effects, advice]), last])


def _filled(text: str, width: int, *, begin: str = "", further: str | None = None) -> str:
    """Wrap text between words, indented like its start by default.

    ``no-time`` is one word, and so is ``1.5 ms``.
    """
    further = " " * len(begin) if further is None else further
    text = _WITH_UNIT.sub(f"{_NO_BREAK}\\1", text)
    filled = textwrap.fill(
        text, width, initial_indent=begin, subsequent_indent=further, break_on_hyphens=False
    )
    return filled.replace(_NO_BREAK, " ")
