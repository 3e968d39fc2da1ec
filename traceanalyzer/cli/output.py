"""Answers to standard output, or to a file that appears whole or not at all."""

import re
import sys

from traceanalyzer import files
from traceanalyzer.errors import OptionError, OutputError
from traceanalyzer.render.text import visible

STDOUT = "-"

# forms for programs hold text as it is; a terminal would obey some of it
_LAYOUT = re.compile(r"([\n\t]+)")


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
    files.check(path, force=force)


def write(data: bytes, path: str | None, *, binary: bool = False) -> None:
    """Writes an answer to a file, or to standard output when ``path`` is None or ``-``.

    Raises:
        OutputError: the operating system refused.
    """
    if path is None or path == STDOUT:
        _to_stdout(data, binary=binary)
        return
    with files.opened(path) as file:
        file.write(data)


def _to_stdout(data: bytes, *, binary: bool) -> None:
    if sys.stdout is None:
        raise OutputError("standard output is closed; give -o FILE")
    if not binary and sys.stdout.isatty():
        parts = _LAYOUT.split(data.decode())
        data = "".join(one if _LAYOUT.match(one) else visible(one) for one in parts).encode()
    encoding = (sys.stdout.encoding or "utf-8").lower()
    if not binary and encoding not in ("utf-8", "utf8"):
        data = data.decode().encode(encoding, "backslashreplace")
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
