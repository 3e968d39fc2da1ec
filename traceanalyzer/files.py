"""Atomic output files, and data files of the package."""

import os
import stat
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import get_data
from typing import IO, Any

from traceanalyzer.errors import OutputError

_PART = ".part"
_NAME_BYTES, _HOST_CHARS = 150, 64
_LOADED = time.time_ns()


def packaged(place: str) -> dict[str, Any]:
    """Return the tables of a TOML file of the package, such as ``analyzers/commands.toml``."""
    return tomllib.loads((get_data("traceanalyzer", place) or b"").decode())


def check(path: str, *, force: bool, keyword: str = "force=True") -> None:
    """Check that a file can be written, before any work is done.

    Args:
        path: the file.
        force: overwrite it.
        keyword: how the caller sets ``force``, for the error.

    Raises:
        OutputError: the file exists and ``force`` is not set, or its folder does not exist.
    """
    target = Path(path)
    if target.is_dir():
        raise OutputError(f"{path}: is a folder; pass a file")
    if not target.parent.is_dir():
        raise OutputError(f"{path}: folder {target.parent} does not exist")
    if target.exists() and _is_regular(target) and not force:
        raise OutputError(f"{path}: exists; {keyword} overwrites it")


def keep_inputs(path: str, inputs: Iterable[str]) -> None:
    """Check that a file that is to be written differs from all inputs.

    Raises:
        OutputError: it is one; inputs are never overwritten.
    """
    if Path(path).exists():
        for one in inputs:
            if Path(one).exists() and Path(path).samefile(one):
                raise OutputError(f"{path}: is an input; write to another file")


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a binary file that becomes ``path`` when the block succeeds; nothing remains otherwise.

    The data is written to a hidden file in the same folder, ``.NAME.HOST.PID.part``, which is
    renamed at the end. A killed process (``kill -9``) leaves that file; the next process on the
    same machine that writes the same output removes it. Pipes and devices are written directly.

    Raises:
        OutputError: the file cannot be written.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    direct = target.exists() and not _is_regular(target)
    place = target if direct else _temporary_path(target, os.getpid())
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


def _temporary_path(target: Path, pid: int | str) -> Path:
    """Return the temporary path of a process for the target."""
    # a name has at most 255 bytes, with up to four bytes per character
    name = os.fsdecode(os.fsencode(target.name)[:_NAME_BYTES])
    return target.with_name(f".{name}.{os.uname().nodename[:_HOST_CHARS]}.{pid}{_PART}")


def _remove_abandoned(target: Path) -> None:
    """Remove temporary files of the target left by ended processes of this machine."""
    start, end = _temporary_path(target, "*").name.split("*")
    with os.scandir(target.parent) as entries:
        parts = [Path(one.path) for one in entries if one.name.startswith(start)]
    for part in parts:
        pid = part.name.removeprefix(start).removesuffix(end)
        if part.name.endswith(end) and pid.isdecimal() and not _is_written(part, int(pid)):
            part.unlink(missing_ok=True)


def _is_written(part: Path, pid: int) -> bool:
    """Whether the process that created the file may still be writing it."""
    if pid == os.getpid():  # or an earlier process with the same id
        return part.stat().st_mtime_ns >= _LOADED
    return is_running(pid)


def is_running(pid: int) -> bool:
    """Whether there is a process with this id on this machine."""
    try:
        os.kill(pid, 0)
    except OSError as error:  # or a process of another user
        return not isinstance(error, ProcessLookupError)
    return True


def _is_regular(path: Path) -> bool:
    return stat.S_ISREG(path.stat().st_mode)
