"""Answers to standard output, or to a file that appears whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from traceanalyzer.errors import OptionError, OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator

STDOUT = "-"


def check(path: str | None, *, force: bool, binary: bool = False) -> None:
    """Refuses what cannot be written, before any work is done.

    Raises:
        OutputError: the file exists and ``force`` is not set, or its folder is not there.
        OptionError: an image would go to a terminal.
    """
    if path is None or path == STDOUT:
        if binary and sys.stdout is not None and sys.stdout.isatty():
            raise OptionError("a terminal cannot show this form; give -o FILE")
        return
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{path}: is a folder; give a file")
    if not target.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {target.parent}")
    if target.exists() and _is_regular(target) and not force:
        raise OutputError(f"{path}: exists; --force overwrites it")


def write(data: bytes, path: str | None, *, binary: bool = False) -> None:
    """Writes an answer to a file, or to standard output when ``path`` is None or ``-``.

    Raises:
        OutputError: the operating system refused.
    """
    if path is None or path == STDOUT:
        _to_stdout(data, binary=binary)
        return
    with opened(path) as file:
        file.write(data)


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """A binary file that becomes ``path`` when the block ends well; otherwise nothing is left.

    Written beside its place under a hidden name and moved there at the end. A pipe or a device is
    written to directly.

    Raises:
        OutputError: the operating system refused.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    direct = target.exists() and not _is_regular(target)
    place = target if direct else target.with_name(f".{os.getpid()}.{target.name}"[:200])
    try:
        with place.open("wb" if direct else "xb") as file:
            yield file
        if not direct:
            place.replace(target)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if not direct:
            place.unlink(missing_ok=True)


def _to_stdout(data: bytes, *, binary: bool) -> None:
    if sys.stdout is None:
        raise OutputError("standard output is closed; give -o FILE")
    encoding = (sys.stdout.encoding or "utf-8").lower()
    if not binary and encoding not in ("utf-8", "utf8"):
        data = data.decode().encode(encoding, "backslashreplace")
    sys.stdout.buffer.write(data)
    sys.stdout.flush()


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.stat().st_mode)
