"""Fit a table into a width: wrap headings, hide columns, shorten names.

Names of one column are shortened so that different names stay different.
"""

from __future__ import annotations

import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from os.path import commonprefix

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
