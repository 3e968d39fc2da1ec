"""Writing of results to standard output, or atomically to a file."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath

import click

from traceanalyzer import files
from traceanalyzer.errors import InputError, OptionError, OutputError
from traceanalyzer.render.palette import SEQUENCE
from traceanalyzer.render.text import visible

STDOUT = "-"

#: Parameters of commands that are inputs.
_INPUTS = ("paths", "before", "after", "base", "baseline", "memory")

# a terminal would interpret control characters, also at the end of a pipe
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_LAYOUT = re.compile(r"([\n\t]+)")
_LAYOUT_OR_COLOR = re.compile(rf"([\n\t]+|{SEQUENCE.pattern})")


def check(path: str | None, *, force: bool, binary: bool = False) -> None:
    """Check that the output can be written, before any work is done.

    Raises:
        OutputError: the file exists and ``force`` is not set, it is an input, or its folder does
            not exist.
        OptionError: an image would go to a terminal.
    """
    if path is None or path == STDOUT:
        if binary and sys.stdout is not None and sys.stdout.isatty():
            raise OptionError("a terminal cannot show this output format; use -o FILE")
        return
    files.check(path, force=force, keyword="--force")
    if force and os.path.isfile(path):  # noqa: PTH113 - the name is kept as it was given
        files.keep_inputs(path, _input_files())


def is_colored(path: str | None, choice: bool | None) -> bool:
    """Return whether text is coloured: as chosen, else in a terminal, unless it cannot.

    https://no-color.org and https://force-color.org: a variable that is not empty counts.

    Args:
        path: the output file; None or ``-`` for standard output.
        choice: the value of ``--color``, None for ``auto``.
    """
    if choice is not None:
        return choice
    if path not in (None, STDOUT) or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def write(data: bytes, path: str | None, *, binary: bool = False, colored: bool = False) -> None:
    """Write a result to a file, or to standard output when ``path`` is None or ``-``.

    Args:
        data: the result.
        path: the file.
        binary: whether the result is not text.
        colored: whether it has colours, which a terminal gets unchanged.

    Raises:
        OutputError: the operating system reports an error.
    """
    if path is None or path == STDOUT:
        _to_stdout(data, binary=binary, layout=_LAYOUT_OR_COLOR if colored else _LAYOUT)
        return
    with files.opened(path) as file:
        file.write(data)


def _input_files() -> Iterator[str]:
    """Return the files that the command reads, those in folders included."""
    from traceanalyzer.run.find import collect_inputs

    for path in _inputs():
        with suppress(InputError):  # reported when it is read
            yield from collect_inputs(path)[0]


def _inputs() -> list[str]:
    """Return the inputs as they were given."""
    context = click.get_current_context(silent=True)
    given = context.params if context else {}
    return [path for name in _INPUTS for path in _several(given.get(name))]


def input_folders() -> tuple[str, ...]:
    """Return the folders of the command's absolute inputs, which a page does not show."""
    inputs = list(map(PurePath, _inputs()))
    parents = {str(path.parent) for path in inputs if path.is_absolute() and path.parent.name}
    if len(parents) > 1 and (common := os.path.commonpath(parents)) != "/":
        parents = {common}
    return tuple(f"{parent}/" for parent in parents)


def _several(value: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value or ()


def _without_controls(text: str) -> str:
    """Escape control characters as JSON does."""
    return _CONTROL.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def _to_stdout(data: bytes, *, binary: bool, layout: re.Pattern[str]) -> None:
    if sys.stdout is None:
        raise OutputError("standard output is closed; use -o FILE")
    if not binary and (sys.stdout.isatty() or _CONTROL.search(data.decode())):
        # what reads a pipe may be a terminal too
        escaped = visible if sys.stdout.isatty() else _without_controls
        parts = layout.split(data.decode())
        data = "".join(one if layout.match(one) else escaped(one) for one in parts).encode()
    encoding = (sys.stdout.encoding or "utf-8").lower()
    if not binary and encoding not in ("utf-8", "utf8"):
        data = data.decode().encode(encoding, "backslashreplace")
    if binary or not _paged(data):
        sys.stdout.buffer.write(data)
        sys.stdout.flush()


def _paged(data: bytes) -> bool:
    """Show text longer than the terminal in the user's pager, and return whether it was shown.

    As git does: ``TRACEANALYZER_PAGER``, else ``PAGER``, else ``less``, which leaves the text on
    the screen; none if it is empty or ``cat``, and in terminals of programs, which have no size.
    """
    program = shlex.split(os.environ.get("TRACEANALYZER_PAGER", os.environ.get("PAGER", "less")))
    context = click.get_current_context(silent=True)
    off = context is None or not context.find_root().params.get("pager")
    if off or not program or program == ["cat"] or os.environ.get("TERM", "dumb") == "dumb":
        return False
    if not (sys.stdin and sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    lines = os.get_terminal_size(sys.stdout.fileno()).lines
    if not lines or data.count(b"\n") < lines:
        return False
    sys.stdout.flush()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pager
    try:
        subprocess.run(program, input=data, env={"LESS": "FRX", **os.environ}, check=False)
    except OSError:  # no such program
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True
