"""The file on disk: unpacked where it must be, not being written, and whole or not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from traceanalyzer.errors import MalformedInput, UnreadableFile
from traceanalyzer.parsers.source import Source

#: Where SQLite locks a file that is being written, and how many bytes of locks there are.
_LOCKS = (0x40000000, 512)
#: A header of a database: page size at 16, change counter at 24, pages at 28, valid-for at 92.
_HEADER = struct.Struct(">16xH6xII60xI")
_SMALLEST_PAGE, _LARGEST_PAGE = 1 << 9, 1 << 16


@dataclass(frozen=True)
class File:
    """A database on disk.

    Attributes:
        path: where it is.
        size: bytes that are there.
        missing: bytes that its header promises and that are not there.
    """

    path: str
    size: int
    missing: int


@contextlib.contextmanager
def on_disk(source: Source) -> Iterator[File]:
    """The database as a file that SQLite can open.

    A compressed one is unpacked to the system's temporary folder. One that is cut off is copied
    there and made as long as its header says, with empty pages: SQLite opens no shorter one.

    Raises:
        MalformedInput: another process is writing it.
        UnreadableFile: there is no room for it.
    """
    if source.compression is None:
        _refuse_unfinished(source.path)
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
                hint="unpack it yourself, or set TMPDIR to a folder with room",
            ) from None
        yield file


def _measured(path: str) -> File:
    size = os.stat(path).st_size  # noqa: PTH116
    with open(path, "rb") as file:  # noqa: PTH123
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size:
        return File(path, size, 0)
    page, changed, pages, valid_for = _HEADER.unpack(head)
    # a number that no disk holds is damage
    pages = min(pages, 64 * (size // _SMALLEST_PAGE))
    promised = pages * (_LARGEST_PAGE if page == 1 else page) if changed == valid_for else 0
    return File(path, size, max(promised - size, 0))


def _refuse_unfinished(path: str) -> None:
    """A database is read as it is on disk; that is not all of it while somebody writes."""
    for ending in ("-journal", "-wal"):
        with contextlib.suppress(OSError):
            if os.stat(path + ending).st_size:  # noqa: PTH116
                raise MalformedInput(
                    path,
                    f"is being written, or writing was interrupted ({path}{ending} is there)",
                    hint="wait for nsys export to end, or export again",
                )
    if _is_locked(path):
        raise MalformedInput(
            path, "is locked: another process is writing it", hint="wait for nsys export to end"
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
