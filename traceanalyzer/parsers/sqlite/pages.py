"""The database file: unpacked if needed, checked for truncation, integers read from its pages.

Most of a large export is integers in a few of many columns. SQLite processes every row in its
virtual machine; the compiled scan reads the row in place, three times as fast. It supports ordinary
rows only: any other row, and damaged pages, are left to SQLite.
"""

import contextlib
import fcntl
import os
import struct
import tempfile
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.errors import MalformedInput, UnreadableFile
from traceanalyzer.parsers.source import Source

try:
    from traceanalyzer.parsers.sqlite import _pages
except ImportError:  # pragma: no cover - built without a compiler
    _pages = None  # type: ignore[assignment]

PageNumbers = npt.NDArray[np.uint32]

#: Pages scanned at a time: 4 MiB of 4 KiB each.
AT_ONCE = 1024
#: Offset and length of the range that SQLite locks while it writes.
_LOCKS = (0x40000000, 512)
#: The database header: page size at 16, unused bytes per page at 20, change counter at 24, pages at
#: 28, valid-for at 92.
_HEADER = struct.Struct(">16xH2xB3xII60xI")
_SMALLEST_PAGE, _LARGEST_PAGE = 1 << 9, 1 << 16
#: The first byte of an interior page, which has the numbers of other pages.
_INTERIOR = 5
_DEEPEST = 20
_MOST_COLUMNS = 32
_NOTHING = np.iinfo(np.int64).min


@dataclass(frozen=True)
class File:
    """A database on disk.

    Attributes:
        path: path of the file.
        size: size in bytes.
        missing: bytes missing from the size in its header.
    """

    path: str
    size: int
    missing: int


@contextlib.contextmanager
def on_disk(source: Source, writer: str) -> Iterator[File]:
    """Provide the database as a file that SQLite can open.

    A compressed file is unpacked to the system's temporary folder. A truncated file is copied there
    and padded with empty pages to the size in its header, as SQLite requires.

    Args:
        source: the input.
        writer: program that writes these files, for messages.

    Raises:
        MalformedInput: another process is writing the file.
        UnreadableFile: not enough disk space.
    """
    if source.compression is None:
        _refuse_unfinished(source.path, writer)
        file = _measured(source.path)
        if not file.missing:
            yield file
            return
    with tempfile.TemporaryDirectory(prefix="traceanalyzer-") as folder:
        path = os.path.join(folder, "export.sqlite")  # noqa: PTH118 - SQLite takes a name
        try:
            with open(path, "wb") as unpacked:  # noqa: PTH123
                for block in source.blocks():
                    unpacked.write(block)
            file = _measured(path)
            if file.missing:
                os.truncate(path, file.size + file.missing)
        except OSError as error:
            reason = error.strerror or str(error)
            raise UnreadableFile(
                source.path,
                f"cannot be unpacked to {tempfile.gettempdir()}: {reason.lower()}",
                hint="unpack it yourself, or set TMPDIR to a folder with enough space",
            ) from None
        yield file


def _measured(path: str) -> File:
    size = os.stat(path).st_size  # noqa: PTH116
    with open(path, "rb") as file:  # noqa: PTH123
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return File(path, size, 0)
    page, _, changed, pages, valid_for = _HEADER.unpack(head)
    # an impossible number of pages is damage
    pages = min(pages, 64 * (size // _SMALLEST_PAGE))
    promised = pages * (_LARGEST_PAGE if page == 1 else page) if changed == valid_for else 0
    return File(path, size, max(promised - size, 0))


def _refuse_unfinished(path: str, writer: str) -> None:
    """Reject a database that is being written: the file on disk is incomplete."""
    for ending in ("-journal", "-wal"):
        with contextlib.suppress(OSError):
            if os.stat(path + ending).st_size:  # noqa: PTH116
                raise MalformedInput(
                    path,
                    f"is being written, or {writer} was interrupted ({path}{ending} exists)",
                    hint=f"wait for {writer} to finish, or run it again",
                )
    if _is_locked(path):
        raise MalformedInput(
            path, "is locked: another process is writing it", hint=f"wait for {writer} to finish"
        )


def _is_locked(path: str) -> bool:
    first, length = _LOCKS
    with open(path, "rb") as file:  # noqa: PTH123
        try:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, length, first)
        except (BlockingIOError, PermissionError):
            return True
        except OSError:  # a file system without locks
            return False
        fcntl.lockf(file, fcntl.LOCK_UN, length, first)
    return False


@dataclass(frozen=True)
class Place:
    """The location of a table's columns.

    Attributes:
        root: root page of the table.
        columns: number of each column in a row.
        key: the column that is an alias of the row id, or None.
    """

    root: int
    columns: dict[str, int]
    key: str | None

    def can_scan(self, names: Collection[str]) -> bool:
        """Whether these columns can be scanned."""
        some = 0 < len(names) <= _MOST_COLUMNS
        return _pages is not None and some and all(name in self.columns for name in names)


class PageFile:
    """A database as pages; must be closed."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY)
        head = os.pread(self._file, _HEADER.size, 0).ljust(_HEADER.size, b"\0")
        page, unused, _, pages, _ = _HEADER.unpack(head)
        self.size = _LARGEST_PAGE if page == 1 else page
        self.usable = self.size - unused
        self.count = min(pages, os.fstat(self._file).st_size // max(self.size, 1))
        self._mine = threading.local()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def leaves(self, root: int) -> PageNumbers | None:
        """Return the leaf pages of a table, in row order; None if they cannot be determined."""
        if _pages is None or self.usable < 480 or self.size < 512:
            return None
        level = np.array([root], np.uint32)
        for _ in range(_DEEPEST):
            if not self._are_pages(level):
                return None
            first = self.read(level[:1])
            if first is None or first[0] != _INTERIOR:
                # a page that occurs twice is a loop
                return None if first is None or np.bincount(level).max() > 1 else level
            below = []
            for start in range(0, len(level), AT_ONCE):
                data = self.read(level[start : start + AT_ONCE])
                children = data and _pages.children(data, self.size, self.usable)
                if not children:
                    return None
                below.append(np.frombuffer(children, np.uint32))
            level = np.concatenate(below)
        return None

    def last_row_id(self, root: int) -> int | None:
        """Return the largest row id in the interior pages that exist, or None.

        In a truncated file, rows can be read up to this id.
        """
        page, last = root, None
        for _ in range(_DEEPEST):
            data = self.read(np.array([page], np.uint32)) if 0 < page <= self.count else None
            # page 1 starts with the file header
            if data is None or page == 1 or data[0] != _INTERIOR:
                break
            cells = int.from_bytes(data[3:5])
            place = int.from_bytes(data[10 + 2 * cells : 12 + 2 * cells]) + 4  # after the child
            if not cells or place > len(data):
                break
            last, page = _varint(data[place : place + 9]), int.from_bytes(data[8:12])
        return last

    def read(self, pages: PageNumbers) -> memoryview | None:
        """Return the bytes of pages, valid until this thread reads again."""
        room = getattr(self._mine, "room", None)
        if room is None or len(room) < len(pages) * self.size:
            room = self._mine.room = bytearray(len(pages) * self.size)
        data = memoryview(room)[: len(pages) * self.size]
        cuts = np.flatnonzero(np.diff(pages.astype(np.int64)) != 1) + 1
        for low, high in zip([0, *cuts], [*cuts, len(pages)], strict=True):
            part = data[low * self.size : high * self.size]
            if os.preadv(self._file, [part], (int(pages[low]) - 1) * self.size) != len(part):
                return None
        return data

    def numbers(
        self, pages: PageNumbers, place: Place, names: Sequence[str]
    ) -> pl.DataFrame | None:
        """Return columns of the rows on these pages; None if a row is not an ordinary one."""
        ordered = sorted(names, key=place.columns.__getitem__)
        wanted = np.array([place.columns[name] for name in ordered], np.uint16)
        key = ordered.index(place.key) if place.key in ordered else -1
        read = self.read(pages)
        scanned = read and _pages.numbers(read, self.size, self.usable, wanted.tobytes(), key)
        if not scanned:
            return None
        columns, nulls = scanned
        by_name = dict(zip(ordered, columns, strict=True))
        frame = pl.DataFrame({name: np.frombuffer(by_name[name], np.int64) for name in names})
        if not nulls:  # no polars query: its threads would compete with ours
            return frame
        empty = [name for at, name in enumerate(ordered) if nulls >> at & 1]
        return frame.with_columns(pl.when(pl.col(n) != _NOTHING).then(n) for n in empty)

    def _are_pages(self, numbers: PageNumbers) -> bool:
        return (
            0 < len(numbers) <= self.count
            and int(numbers.min()) > 1
            and int(numbers.max()) <= self.count
        )


def _varint(data: memoryview) -> int:
    """Decode an SQLite varint: seven bits per byte, eight in the ninth."""
    number = 0
    for byte in data[:8]:
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number
    number = number << 8 | (data[8] if len(data) > 8 else 0)
    return number - (1 << 64) if number >> 63 else number


def place_of(root: int, columns: Sequence[tuple[str, str, int]]) -> Place:
    """Return the location of columns, given as name, type and place in the key."""
    keys = [(name, kind) for name, kind, key in columns if key]
    alias = len(keys) == 1 and keys[0][1].upper() == "INTEGER"
    return Place(
        root,
        columns={name: number for number, (name, *_) in enumerate(columns)},
        key=keys[0][0] if alias else None,
    )
