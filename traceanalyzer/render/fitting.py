"""Sort and select rows and columns of a table, and fit it into a width.

Names of one column are shortened so that different names stay different.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
from os.path import commonprefix
from typing import TypeVar

import polars as pl

from traceanalyzer.errors import OptionError
from traceanalyzer.result import Result, Table

_READABLE = 24  # columns are hidden before names are shorter than this
_SHORTEST = 10  # the limit where all other columns are hidden
_HEADING = 8  # narrower headings need too many lines
_SEPARATOR = 3  # " | "
_ELLIPSIS = "..."
_WORD = re.compile(r"[^\W\d_]+|\d+|.", re.DOTALL)
_COPY = re.compile(r"(?:Memcpy )?(\w+) \((\w+) -> (\w+)\)")
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
        columns = [column for column in columns if column.name != name]
        hidden.append(name)
    limit = max(_text_limit(columns, width), _SHORTEST if hiding_order else _READABLE)
    return [_shortened(column, limit) for column in columns], hidden


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
    long = {text for text in texts if len(text) > width}
    if not long:
        return list(texts)
    brief = {text: _brief(text) if text in long else text for text in texts}
    short = _without_common(list(dict.fromkeys(brief.values())), width)
    return [short[brief[text]] for text in texts]


def _brief(text: str) -> str:
    """Return ``HtoD pinned`` for ``Memcpy HtoD (Pinned -> Device)``, other texts unchanged."""
    match = _COPY.fullmatch(text)
    if match is None:
        return text
    kinds = [kind.lower() for kind in match.group(2, 3) if kind != "Device"]
    return " ".join((match[1], *kinds))


def _without_common(texts: Sequence[str], width: int) -> dict[str, str]:
    counts = Counter(word for text in texts for word in set(_WORD.findall(text)))
    short = {text: _cut(text, width, counts, len(texts)) for text in texts}
    equal = defaultdict(list)
    for text in texts:
        equal[short[text]].append(text)
    for same in equal.values():
        if len(same) == len(texts) > 1:
            return {text: _around_difference(text, texts, width) for text in texts}
        if len(same) > 1:
            short |= _without_common(same, width)
    return short


def _cut(text: str, width: int, counts: Mapping[str, int], n: int) -> str:
    """Keep both ends or a part within, whichever has the words that fewest of ``n`` texts have."""
    if len(text) <= width:
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


R = TypeVar("R", bound=Result)

_DESCENDING = {"asc": False, "desc": True}
_UNITS = ("_ns", "_bytes", "_frac", "_gbps", "_tflops")


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
        columns: columns to keep, in order.

    Raises:
        OptionError: no table has the column; the message lists the columns.
    """
    keys = [_ordered(text, result.tables) for text in sort]
    _require("--sort", [name for name, _ in keys], result.tables)
    _require("--columns", columns, result.tables)
    tables = tuple(_selected(_sorted(table, keys), columns) for table in result.tables)
    view = replace(result._view, tables=tables)
    changed = copy(result)
    vars(changed)["_view"] = view
    return changed


def _ordered(text: str, tables: Sequence[Table]) -> tuple[str, bool | None]:
    """Return the column of a text like ``COLUMN:desc``, and whether it is descending, if given.

    Headings may contain a colon: ``idle: launches``.
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
            raise OptionError(f"{option}: unknown column {name!r}; tables have {'; '.join(lists)}")


def _short_names(table: Table) -> list[str]:
    return [_without_unit(name) for name in table.columns or table.frame.columns]


def _column(table: Table, text: str) -> str | None:
    """Return the column of the table that a text names, or None."""
    first, dot, rest = text.partition(".")
    if dot and _plain(first) not in (table.name, _plain(table.title)):
        return None
    names = table.frame.columns
    known = {_without_unit(name): name for name in reversed(names)}
    known |= {_plain(label): name for name, label in table.columns.items()}
    known |= {name: name for name in names}
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
