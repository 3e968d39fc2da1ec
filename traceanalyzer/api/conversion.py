"""One format into another."""

from __future__ import annotations

import os

from traceanalyzer import files
from traceanalyzer.analyzers.ranks import of_rank
from traceanalyzer.api.reading import PathLike, Progress, read
from traceanalyzer.errors import OptionError
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
    """Write a trace as Parquet, Chrome JSON, an SQLite database, or stacks for speedscope.

    The suffix tells: ``.parquet``, ``.json``, ``.json.gz``, ``.sqlite``, ``.speedscope.json``.
    Parquet and SQLite leave nothing out; what has no place in Chrome JSON is lost, and speedscope
    takes the sampled stacks only. The file appears under its name only when it is whole. Returns
    the trace.

    Of a file that holds several ranks only ``rank`` is written; one of a single rank is said to be
    of that rank. The other arguments are those of :func:`read`.

    Raises:
        InputError: the source cannot be read.
        OptionError: the output's suffix names no form, or the source does not hold the rank.
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
            since_ns=since_ns,
            until_ns=until_ns,
            progress=progress,
        )
        trace = trace if rank is None else _of_rank(trace, rank)
    with files.opened(target) as file:
        writer(trace, file)
    return trace


def _of_rank(trace: Trace, rank: int) -> Trace:
    found = of_rank([trace], rank, alone=True)
    if not found:
        raise OptionError(f"{trace.meta.path}: holds no rank {rank}")
    return found[0]
