"""Which parser reads a file: decided by its first bytes, never by its name alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points

from traceanalyzer.errors import OptionError, UnknownFormat
from traceanalyzer.parsers import parquet
from traceanalyzer.parsers.chrome_trace import parser as chrome_trace
from traceanalyzer.parsers.contract import Format
from traceanalyzer.parsers.source import Source

#: Packages elsewhere add a Format under this entry-point group.
ENTRY_POINTS = "traceanalyzer.parsers"

_BUILT_IN = (chrome_trace.FORMAT, parquet.FORMAT)


@cache
def formats() -> tuple[Format, ...]:
    """All known formats, the first asked first."""
    found = {f.name: f for f in _BUILT_IN}
    for entry in entry_points(group=ENTRY_POINTS):
        extra: Format = entry.load()
        found.setdefault(extra.name, extra)
    return tuple(sorted(found.values(), key=lambda f: (-f.priority, f.name)))


def by_name(name: str) -> Format:
    """The format of this name.

    Raises:
        OptionError: there is none; the message lists them.
    """
    for candidate in formats():
        if candidate.name == name:
            return candidate
    known = ", ".join(f.name for f in formats())
    raise OptionError(f"no format is called {name!r}; known are {known}")


def detect(source: Source) -> Format | None:
    """The format whose parser recognises the content, or None."""
    head = source.head()
    return next((f for f in formats() if f.sniff(head, source.path)), None)


def require(source: Source, tried: Sequence[Format] = ()) -> Format:
    """The format of a file.

    Raises:
        UnknownFormat: no parser recognises the content; the message says what was tried.
    """
    found = detect(source)
    if found is None:
        names = ", ".join(f.name for f in (tried or formats()))
        what = "is empty" if source.size == 0 else f"is no format we know (tried {names})"
        hint = None if source.size == 0 else "--format NAME overrides the detection"
        raise UnknownFormat(source.path, what, hint=hint)
    return found
