"""One frame's text -> function, file and line."""

from __future__ import annotations

import re

from traceanalyzer.parsers.sampled import Frame

_LINE = re.compile(r":(0|[1-9]\d{0,8})\)\Z")
#: What a Python frame names as its file: a source file, or what the compiler was told.
_PYTHON = re.compile(r"(?i)\.py[xwi]?\Z|\A<|>\Z")
_AUSTIN = re.compile(r"(?s)(.*):(.*?):(0|[1-9]\d{0,8})\Z")
#: py-spy's word for a library it does not know.
_UNKNOWN = "?"


def split(text: str) -> Frame:
    """``NAME (FILE:LINE)``, ``NAME (FILE)``, ``NAME (LIBRARY)`` or ``NAME``.

    Paths and C++ names hold ``(`` themselves: a Python frame ends its name at the first `` (``, a
    native one at the last.
    """
    if not text.endswith(")"):
        return Frame(text)
    name, _, rest = text.partition(" (")
    found = _LINE.search(rest)
    if found and found.start():
        return Frame(name, rest[: found.start()], int(found[1]))
    file = rest[:-1]
    if not _PYTHON.search(file):
        name, _, rest = text.rpartition(" (")
        file = rest[:-1]
    if not file or not name:
        return Frame(text)
    return Frame(name, None if file == _UNKNOWN else file)


def split_austin(text: str) -> Frame:
    """``FILE:NAME:LINE``; the file may hold colons."""
    found = _AUSTIN.match(text)
    if not found:
        return Frame(text)
    file, name, line = found.groups()
    return Frame(name, file or None, int(line))
