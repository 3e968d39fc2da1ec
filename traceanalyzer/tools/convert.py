"""Conversion of traces between formats."""

import os
from typing import Unpack

from traceanalyzer import files, schema
from traceanalyzer.analyzers.base import Reading
from traceanalyzer.exporters import writer_for
from traceanalyzer.run.pieces import only_trace
from traceanalyzer.trace import PathLike, Trace


def convert(
    source: PathLike | Trace, output: PathLike, *, force: bool = False, **reading: Unpack[Reading]
) -> Trace:
    """Write a trace as Parquet, Chrome JSON, an SQLite database, or speedscope JSON.

    The suffix selects the format: ``.parquet``, ``.json``, ``.json.gz``, ``.sqlite``,
    ``.speedscope.json``. Parquet and SQLite contain all data, Chrome JSON what the format supports,
    speedscope JSON the sampled stacks only. The file gets its name only when it is complete.

    Args:
        source: a file, or a trace in memory.
        output: the file to write.
        force: overwrite an existing file.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Returns:
        The trace.

    Raises:
        InputError: the source cannot be read.
        OptionError: unknown suffix of the output, or the source does not contain the rank.
        OutputError: the output exists and ``force`` is not set, or cannot be written.
    """
    target = os.fspath(output)
    writer = writer_for(target)
    files.check(target, force=force)
    if not isinstance(source, Trace):
        files.keep_inputs(target, [os.fspath(source)])
    trace = only_trace(source, columns=schema.ON_REQUEST, **reading)
    with files.opened(target) as file:
        writer(trace, file)
    return trace
