"""The package's functions on files: find, read, analyze, convert. No ink, no terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from traceanalyzer.analyzers.info import Info
from traceanalyzer.analyzers.info import info as describe
from traceanalyzer.errors import InputError, OptionError, UnreadableFile
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS, TABLE_KINDS

#: Called with (bytes read so far, bytes in all) while a file is read.
Progress = Callable[[int, int], None]
PathLike = str | os.PathLike[str]

_COLUMNS = ("args", "input_dims")


def read(
    path: PathLike,
    *,
    kinds: Iterable[str] | None = None,
    names: Iterable[str] = (),
    columns: Iterable[str] = (),
    windows: Iterable[tuple[int, int]] = (),
    format: str | None = None,  # noqa: A002 - the command line's word
    rank: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read one profiler file of any known format.

    Args:
        path: the file; compressed files (gz, zip, zst) are read as they are.
        kinds: event kinds wanted (``kernel``, ``cpu_op`` ...; ``counter``, ``flow`` and ``lane``
            for those tables); None for all. The fewer, the faster and smaller.
        names: substrings; events whose name holds one are read whatever their kind.
        columns: columns made only on request: ``args``, ``input_dims``.
        windows: (start, end) in ns on the file's clock; only slices that overlap one are read.
        format: a format's name, to override detection by content.
        rank: the rank of the file, where it does not tell or tells wrong.
        since_ns: leave out what ends before this time after the first event.
        until_ns: leave out what starts at or after this time after the first event.
        progress: called with (bytes read, bytes in all).

    Returns:
        The trace; what was lost or odd in the file is in its ``issues``.

    Raises:
        InputError: the file cannot be read; the message says why and what to do.
        OptionError: a kind, column or format nobody knows.
    """
    selection = Selection(
        kinds=None if kinds is None else _known(kinds, (*KINDS, *TABLE_KINDS), "kind"),
        names=tuple(names),
        columns=_known(columns, _COLUMNS, "column"),
        windows=tuple(windows),
    )
    source = Source(path)
    parser = registry.by_name(format) if format else registry.require(source)
    trace = parser.parse(source, selection, progress)
    if rank is not None:
        trace = trace.with_rank(rank)
    return trace.between(since_ns, until_ns)


def find_inputs(paths: Sequence[PathLike]) -> tuple[list[str], list[tuple[str, str]]]:
    """Files to read, and files left out with the reason.

    A file named directly is always an input. In a folder (and below) every file whose content a
    parser recognises is one; hidden files and links to folders are passed over. Natural order:
    ``rank2`` before ``rank10``.

    Raises:
        UnreadableFile: a path that does not exist, or a folder with nothing to read in it.
    """
    inputs: list[str] = []
    skipped: list[tuple[str, str]] = []
    for path in [os.fspath(p) for p in paths]:
        if not os.path.isdir(path):  # noqa: PTH112 - the name is kept as it was given
            if not os.path.exists(path):  # noqa: PTH110
                raise UnreadableFile(path, "no such file or folder")
            inputs.append(path)
            continue
        found, foreign = _in_folder(path)
        if not found:
            what = "no trace in this folder" + (f" ({len(foreign)} other files)" if foreign else "")
            raise UnreadableFile(path, what, hint="traceanalyzer info FILE says what a file is")
        inputs += found
        skipped += foreign
    return inputs, skipped


def info(
    paths: Sequence[PathLike],
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

    def traces() -> Iterator[Trace]:
        for path in inputs:
            try:
                yield read(
                    path,
                    format=format,
                    rank=rank,
                    since_ns=since_ns,
                    until_ns=until_ns,
                    progress=progress,
                )
            except InputError as error:
                if len(inputs) == 1:
                    raise
                left_out.append((path, error.what))

    return describe(traces(), left_out)


def _in_folder(folder: str) -> tuple[list[str], list[tuple[str, str]]]:
    found: list[str] = []
    foreign: list[tuple[str, str]] = []
    for base, folders, files in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural)
        for name in sorted((f for f in files if not f.startswith(".")), key=natural):
            path = str(Path(base, name))
            try:
                known = registry.detect(Source(path))
            except UnreadableFile as error:
                foreign.append((path, error.what))
                continue
            if known is None:
                foreign.append((path, "no format we know"))
            else:
                found.append(path)
    return found, foreign


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key in which numbers count as numbers."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part.lower())
        for part in re.split(r"(\d+)", name)
        if part
    ]


def _known(words: Iterable[str], known: Iterable[str], what: str) -> frozenset[str]:
    asked, have = frozenset(words), frozenset(known)
    if unknown := sorted(asked - have):
        raise OptionError(
            f"no {what} is called {unknown[0]!r}; known are {', '.join(sorted(have))}"
        )
    return asked
