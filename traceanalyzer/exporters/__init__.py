"""Exporters: write a :class:`~traceanalyzer.trace.Trace` to a file.

A writer is ``(trace, file) -> None`` and is selected by the output's suffix; a parser of this
package reads back all formats except databases. Writers handle formats, never paths, options or the
terminal; ``tools`` and ``cli`` select them here.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import PurePath
from typing import IO

from traceanalyzer.errors import OptionError
from traceanalyzer.trace import Trace

#: Writes a trace to an empty binary file.
Writer = Callable[[Trace, IO[bytes]], None]

_WRITERS: dict[str, tuple[str, str]] = {
    ".parquet": ("parquet", "write_parquet"),
    ".speedscope.json": ("speedscope", "write_speedscope"),
    ".json": ("chrome_trace", "write_chrome_trace"),
    ".json.gz": ("chrome_trace", "write_chrome_trace_gz"),
    ".sqlite": ("sqlite", "write_sqlite"),
    ".db": ("sqlite", "write_sqlite"),
}

#: Supported suffixes of ``convert``.
SUFFIXES: tuple[str, ...] = tuple(_WRITERS)


def writer_for(path: str | PurePath) -> Writer:
    """Return the writer for the suffix of an output path.

    Raises:
        OptionError: unknown suffix.
    """
    name = PurePath(path).name.lower()
    for suffix, (module, function) in _WRITERS.items():
        if name.endswith(suffix):
            writer: Writer = getattr(import_module(f"{__name__}.{module}"), function)
            return writer
    if name.endswith((".pftrace", ".perfetto-trace")):
        raise OptionError(f"{path}: traceanalyzer merge writes Perfetto's format")
    known = ", ".join(SUFFIXES[:-1]) + " or " + SUFFIXES[-1]
    raise OptionError(f"{path}: unknown output format. Use the suffix {known}")
