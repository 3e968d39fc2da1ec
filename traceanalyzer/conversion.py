"""One format into another."""

import os
from typing import Unpack

from traceanalyzer import files
from traceanalyzer.analyzers.base import Reading
from traceanalyzer.exporters import writer_for
from traceanalyzer.reading import PathLike
from traceanalyzer.run import only_trace
from traceanalyzer.trace import Trace

_COLUMNS = ("args", "input_dims")


def convert(
    source: PathLike | Trace, output: PathLike, *, force: bool = False, **reading: Unpack[Reading]
) -> Trace:
    """Write a trace as Parquet, Chrome JSON, an SQLite database, or stacks for speedscope.

    The suffix tells: ``.parquet``, ``.json``, ``.json.gz``, ``.sqlite``, ``.speedscope.json``.
    Parquet and SQLite leave nothing out; what has no place in Chrome JSON is lost, and speedscope
    takes the sampled stacks only. The file appears under its name only when it is whole. Returns
    the trace.

    Args:
        source: a file, or a trace in memory.
        output: the file to write.
        force: overwrite it if it exists.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: the source cannot be read.
        OptionError: the output's suffix names no form, or the source does not hold the rank.
        OutputError: the output exists and ``force`` is not given, or cannot be written.
    """
    target = os.fspath(output)
    writer = writer_for(target)
    files.check(target, force=force)
    trace = only_trace(source, columns=_COLUMNS, **reading)
    with files.opened(target) as file:
        writer(trace, file)
    return trace
