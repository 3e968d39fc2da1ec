"""Writing of results to standard output, or atomically to a file."""

import re
import sys

from traceanalyzer import files
from traceanalyzer.errors import OptionError, OutputError
from traceanalyzer.render.text import visible

STDOUT = "-"

# machine-readable formats keep text unchanged; a terminal would interpret control characters
_LAYOUT = re.compile(r"([\n\t]+)")


def check(path: str | None, *, force: bool, binary: bool = False) -> None:
    """Check that the output can be written, before any work is done.

    Raises:
        OutputError: the file exists and ``force`` is not set, or its folder does not exist.
        OptionError: an image would go to a terminal.
    """
    if path is None or path == STDOUT:
        if binary and sys.stdout is not None and sys.stdout.isatty():
            raise OptionError("a terminal cannot show this output format; use -o FILE")
        return
    files.check(path, force=force)


def write(data: bytes, path: str | None, *, binary: bool = False) -> None:
    """Write a result to a file, or to standard output when ``path`` is None or ``-``.

    Raises:
        OutputError: the operating system reports an error.
    """
    if path is None or path == STDOUT:
        _to_stdout(data, binary=binary)
        return
    with files.opened(path) as file:
        file.write(data)


def _to_stdout(data: bytes, *, binary: bool) -> None:
    if sys.stdout is None:
        raise OutputError("standard output is closed; use -o FILE")
    if not binary and sys.stdout.isatty():
        parts = _LAYOUT.split(data.decode())
        data = "".join(one if _LAYOUT.match(one) else visible(one) for one in parts).encode()
    encoding = (sys.stdout.encoding or "utf-8").lower()
    if not binary and encoding not in ("utf-8", "utf8"):
        data = data.decode().encode(encoding, "backslashreplace")
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
