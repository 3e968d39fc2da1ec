"""What files hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Unpack

from traceanalyzer.analyzers.info import Info
from traceanalyzer.analyzers.info import info as describe
from traceanalyzer.api.gathering import Reading, cut
from traceanalyzer.api.reading import Inputs, each_and_foreign, read
from traceanalyzer.errors import InputError
from traceanalyzer.trace import Trace


def info(
    inputs: Inputs,
    *,
    skipped: Iterable[tuple[str, str]] = (),
    **reading: Unpack[Reading],
) -> Info:
    """What is in these files: format, rank, host, time, events by kind, communication, losses?

    One file is in memory at a time. Among several, a file that cannot be read is listed with the
    reason instead of ending it all, as are those of ``skipped``.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        skipped: (path, reason) of files that the caller has left out already.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: the only file cannot be read.
    """
    items, foreign = each_and_foreign(inputs)
    left_out = [*skipped, *foreign]
    rank, several = reading.get("rank"), len(items) > 1

    def traces() -> Iterator[Trace]:
        for item in items:
            try:
                trace = _whole(item, None if several else rank, reading)
                if not several or rank in (None, trace.meta.rank):
                    yield trace
            except InputError as error:
                if not several:
                    raise
                left_out.append((error.path, error.what))

    return describe(traces(), left_out)


def _whole(item: Trace | str, rank: int | None, how: Reading) -> Trace:
    """All of a file, or of a trace in memory, in the stretch that is asked for."""
    if isinstance(item, Trace):
        return cut(item if rank is None else item.with_rank(rank), how)
    trace = read(
        item,
        format=how.get("format"),
        rank=rank,
        since_ns=how.get("since_ns"),
        until_ns=how.get("until_ns"),
        progress=how.get("progress"),
    )
    if seen := how.get("seen"):
        seen(trace)
    return trace
