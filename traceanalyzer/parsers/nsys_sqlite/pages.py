"""Whole numbers of a table read from the file's pages, without SQLite.

Most of a large export is numbers in a few of many columns. SQLite walks every row through its
virtual machine for them; the compiled scan looks at the row where it lies, three times as fast. It
knows ordinary rows only: of anything else, and of damage, it reads nothing, and SQLite is asked.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

try:
    from traceanalyzer.parsers.nsys_sqlite import _pages
except ImportError:  # pragma: no cover - built without a compiler
    _pages = None  # type: ignore[assignment]

PageNumbers = npt.NDArray[np.uint32]

#: Pages scanned at once: 4 MB of 4 KiB each.
AT_ONCE = 1024
#: Page size at 16, bytes of each page that are not used at 20, pages at 28.
_HEADER = struct.Struct(">16xH2xB7xI")
_DEEPEST = 20
_MOST_COLUMNS = 32
_NOTHING = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Place:
    """Where columns of a table lie.

    Attributes:
        root: the table's first page.
        columns: the number of each column in a row.
        key: the column that is another name of the row id, or None.
    """

    root: int
    columns: dict[str, int]
    key: str | None


class PageFile:
    """A database as pages; close it when done."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        page, unused, pages = _HEADER.unpack(os.pread(self._file, _HEADER.size, 0))
        self.size = 1 << 16 if page == 1 else page
        self.usable = self.size - unused
        self.count = min(pages, os.fstat(self._file).st_size // max(self.size, 1))
        self._mine = threading.local()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def leaves(self, root: int) -> PageNumbers | None:
        """The pages that hold a table's rows, in their order; None where that is not known."""
        if _pages is None or self.usable < 480 or self.size < 512:
            return None
        level = np.array([root], np.uint32)
        for _ in range(_DEEPEST):
            if not self._are_pages(level):
                return None
            first = self.read(level[:1])
            if first is None or first[0] != _INTERIOR:
                return None if first is None or self._repeat(level) else level
            below = []
            for start in range(0, len(level), AT_ONCE):
                held = self.read(level[start : start + AT_ONCE])
                found = held and _pages.children(held, self.size, self.usable)
                if not found:
                    return None
                below.append(np.frombuffer(found, np.uint32))
            level = np.concatenate(below)
        return None

    def last_row_id(self, root: int) -> int | None:
        """The largest row id that pages above the rows tell, as far as those are there; or None.

        Where the file is cut off, that is how far rows can be asked for.
        """
        page, last = root, None
        for _ in range(_DEEPEST):
            held = self.read(np.array([page], np.uint32)) if 0 < page <= self.count else None
            # the header of the first page is that of the file
            if held is None or page == 1 or held[0] != _INTERIOR:
                break
            cells = int.from_bytes(held[3:5])
            place = int.from_bytes(held[10 + 2 * cells : 12 + 2 * cells]) + 4  # behind the child
            if not cells or place > len(held):
                break
            last, page = _varint(held[place : place + 9]), int.from_bytes(held[8:12])
        return last

    def read(self, pages: PageNumbers) -> memoryview | None:
        """The bytes of pages, until this thread reads again; of neighbours at once."""
        room = getattr(self._mine, "room", None)
        if room is None or len(room) < len(pages) * self.size:
            room = self._mine.room = bytearray(len(pages) * self.size)
        held = memoryview(room)[: len(pages) * self.size]
        cuts = np.flatnonzero(np.diff(pages.astype(np.int64)) != 1) + 1
        for low, high in zip([0, *cuts], [*cuts, len(pages)], strict=True):
            part = held[low * self.size : high * self.size]
            if os.preadv(self._file, [part], (int(pages[low]) - 1) * self.size) != len(part):
                return None
        return held

    def numbers(
        self, pages: PageNumbers, place: Place, names: Sequence[str]
    ) -> pl.DataFrame | None:
        """Columns of the rows on these pages; None where a row is out of the ordinary."""
        ordered = sorted(names, key=place.columns.__getitem__)
        wanted = np.array([place.columns[name] for name in ordered], np.uint16)
        key = ordered.index(place.key) if place.key in ordered else -1
        read = self.read(pages)
        found = read and _pages.numbers(read, self.size, self.usable, wanted.tobytes(), key)
        if not found:
            return None
        columns, nulls = found
        held = dict(zip(ordered, columns, strict=True))
        frame = pl.DataFrame({name: np.frombuffer(held[name], np.int64) for name in names})
        if not nulls:  # no query: two threads of ours and two of polars are in each other's way
            return frame
        empty = [name for at, name in enumerate(ordered) if nulls >> at & 1]
        return frame.with_columns(pl.when(pl.col(n) != _NOTHING).then(n) for n in empty)

    def _repeat(self, numbers: PageNumbers) -> bool:
        """Whether any of these pages comes twice, as in a loop."""
        met = np.zeros(self.count + 1, np.bool_)
        met[numbers] = True
        return bool(np.count_nonzero(met) < len(numbers))

    def _are_pages(self, numbers: PageNumbers) -> bool:
        return (
            0 < len(numbers) <= self.count
            and int(numbers.min()) > 1
            and int(numbers.max()) <= self.count
        )


#: The first byte of a page that holds the numbers of other pages.
_INTERIOR = 5


def _varint(data: memoryview) -> int:
    """A whole number as SQLite writes one: seven bits a byte, the ninth has eight."""
    number = 0
    for byte in data[:8]:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number
    number = number << 8 | (data[8] if len(data) > 8 else 0)
    return number - (1 << 64) if number >> 63 else number


def chunks(pages: PageNumbers) -> Iterator[PageNumbers]:
    """So many pages at a time."""
    for start in range(0, len(pages), AT_ONCE):
        yield pages[start : start + AT_ONCE]


def can_scan(place: Place | None, names: Sequence[str]) -> bool:
    """Whether these columns of a table can be asked for."""
    return (
        _pages is not None
        and place is not None
        and 0 < len(names) <= _MOST_COLUMNS
        and all(name in place.columns for name in names)
    )


def places(rows: Sequence[tuple[Any, ...]]) -> Place:
    """Where columns lie, from the root page and the table's columns.

    Args:
        rows: (root page, column, type, place in the primary key) in the order of the columns.
    """
    keys = [row for row in rows if row[3]]
    alias = len(keys) == 1 and str(keys[0][2]).upper() == "INTEGER"
    return Place(
        root=rows[0][0],
        columns={row[1]: number for number, row in enumerate(rows)},
        key=keys[0][1] if alias else None,
    )
