"""What files hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from traceanalyzer.analyzers.info import Info
from traceanalyzer.analyzers.info import info as describe
from traceanalyzer.api.reading import PathLike, Progress, find_inputs, read
from traceanalyzer.errors import InputError
from traceanalyzer.trace import Trace


def info(
    paths: PathLike | Sequence[PathLike],
    *,
    skipped: Iterable[tuple[str, str]] = (),
    format: str | None = None,  # noqa: A002 - the command line's word
    rank: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
) -> Info:
    """What files and folders hold; arguments as for :func:`read`.

    One file is in memory at a time. Among several, a file that cannot be read is listed with the
    reason instead of ending it all, as are those of ``skipped``: (path, reason) of files that the
    caller has left out already.

    Raises:
        InputError: the only file cannot be read.
    """
    inputs, foreign = find_inputs(paths)
    left_out = [*skipped, *foreign]

    several = len(inputs) > 1

    def traces() -> Iterator[Trace]:
        for path in inputs:
            try:
                trace = read(
                    path,
                    format=format,
                    rank=None if several else rank,
                    since_ns=since_ns,
                    until_ns=until_ns,
                    progress=progress,
                )
                if not several or rank in (None, trace.meta.rank):
                    yield trace
            except InputError as error:
                if len(inputs) == 1:
                    raise
                left_out.append((path, error.what))

    return describe(traces(), left_out)
