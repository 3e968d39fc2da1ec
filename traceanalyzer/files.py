"""Files that appear under their name whole, or not at all."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from traceanalyzer.errors import OutputError


def check(path: str, *, force: bool) -> None:
    """Refuse what cannot be written, before any work is done.

    Raises:
        OutputError: the file exists and ``force`` is not set, or its folder is not there.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{path}: is a folder; give a file")
    if not target.parent.is_dir():
        raise OutputError(f"{path}: there is no folder {target.parent}")
    if target.exists() and _is_regular(target) and not force:
        raise OutputError(f"{path}: exists; --force overwrites it")


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


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.stat().st_mode)
