"""One format into another."""

from __future__ import annotations

import os

from traceanalyzer import files
from traceanalyzer.api.reading import PathLike, Progress, read
from traceanalyzer.exporters import writer_for
from traceanalyzer.trace import Trace

_COLUMNS = ("args", "input_dims")


def convert(
    source: PathLike | Trace,
    output: PathLike,
    *,
    force: bool = False,
    format: str | None = None,  # noqa: A002 - the command line's word
    rank: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Write a trace as Parquet, Chrome JSON (``.json``, ``.json.gz``) or ``.speedscope.json``.

    Nothing is left out, but speedscope takes the sampled stacks only. The file appears under its
    name only when it is whole. Returns the trace; the other arguments are those of :func:`read`.

    Raises:
        InputError: the source cannot be read.
        OptionError: the output's suffix names no form.
        OutputError: the output exists and ``force`` is not given, or cannot be written.
    """
    target = os.fspath(output)
    writer = writer_for(target)
    files.check(target, force=force)
    if isinstance(source, Trace):
        trace = source
    else:
        trace = read(
            source,
            columns=_COLUMNS,
            format=format,
            rank=rank,
            since_ns=since_ns,
            until_ns=until_ns,
            progress=progress,
        )
    with files.opened(target) as file:
        writer(trace, file)
    return trace
