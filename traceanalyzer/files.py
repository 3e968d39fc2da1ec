"""Files that appear under their name whole, or not at all."""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from traceanalyzer.errors import OutputError

_PART = ".part"
_NAME_BYTES, _HOST_CHARS = 150, 64
_LOADED = time.time_ns()


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

    Written beside its place under a hidden name, ``.NAME.HOST.PID.part``, and moved there at the
    end. Whoever is killed (``kill -9``) leaves that; the next one on the same machine to write the
    same file removes it. A pipe or a device is written to directly.

    Raises:
        OutputError: the operating system refused.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    direct = target.exists() and not _is_regular(target)
    place = target if direct else _beside(target, os.getpid())
    try:
        if not direct:
            _remove_abandoned(target)
        with place.open("wb" if direct else "xb") as file:
            yield file
        if not direct:
            place.replace(target)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        if not direct:
            place.unlink(missing_ok=True)


def _beside(target: Path, pid: int | str) -> Path:
    """Where a process writes what is to become the target."""
    # a name has at most 255 bytes, those of other scripts up to four for a character
    name = os.fsdecode(os.fsencode(target.name)[:_NAME_BYTES])
    return target.with_name(f".{name}.{os.uname().nodename[:_HOST_CHARS]}.{pid}{_PART}")


def _remove_abandoned(target: Path) -> None:
    """Removes what processes of this machine began to write for this target and left behind."""
    start, end = _beside(target, "*").name.split("*")
    with os.scandir(target.parent) as entries:
        parts = [Path(one.path) for one in entries if one.name.startswith(start)]
    for part in parts:
        pid = part.name.removeprefix(start).removesuffix(end)
        if part.name.endswith(end) and pid.isdecimal() and not _is_written(part, int(pid)):
            part.unlink(missing_ok=True)


def _is_written(part: Path, pid: int) -> bool:
    """Whether the process that began the file may still be at it."""
    if pid == os.getpid():  # or a namesake that ran before
        return part.stat().st_mtime_ns >= _LOADED
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.stat().st_mode)
