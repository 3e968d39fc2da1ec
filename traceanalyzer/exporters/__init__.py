"""Traces out: a :class:`~traceanalyzer.trace.Trace` enters, the bytes of a file leave.

A writer is ``(trace, file) -> None`` and is chosen by the output's suffix; whatever it writes, but
for a database, a parser of this package reads back. Writers know formats, never paths, options or
the terminal. They may import ``trace, schema, vocabulary, units, errors`` and ``frames``; the
``api`` and the ``cli`` import them from here.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import PurePath
from typing import IO

from traceanalyzer.errors import OptionError
from traceanalyzer.trace import Trace

#: Writes a trace to a binary file opened at its start.
Writer = Callable[[Trace, IO[bytes]], None]

_WRITERS: dict[str, tuple[str, str]] = {
    ".parquet": ("parquet", "write_parquet"),
    ".speedscope.json": ("speedscope", "write_speedscope"),
    ".json": ("chrome_trace", "write_chrome_trace"),
    ".json.gz": ("chrome_trace", "write_chrome_trace_gz"),
    ".sqlite": ("sqlite", "write_sqlite"),
    ".db": ("sqlite", "write_sqlite"),
}

#: Suffixes an output of ``convert`` can have.
SUFFIXES: tuple[str, ...] = tuple(_WRITERS)


def writer_for(path: str | PurePath) -> Writer:
    """The writer of the format that an output's suffix names.

    Raises:
        OptionError: no format has this suffix.
    """
    name = PurePath(path).name.lower()
    for suffix, (module, function) in _WRITERS.items():
        if name.endswith(suffix):
            writer: Writer = getattr(import_module(f"{__name__}.{module}"), function)
            return writer
    known = ", ".join(SUFFIXES[:-1]) + " or " + SUFFIXES[-1]
    raise OptionError(f"{path}: cannot tell the format; let its name end in {known}")
