"""The package's functions on files: find, read, analyze, convert. No ink, no terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from traceanalyzer import files
from traceanalyzer.analyzers import comm_outliers as comm
from traceanalyzer.analyzers import flamegraph as flame
from traceanalyzer.analyzers import leaf_paths
from traceanalyzer.analyzers.comm_outliers import CommOutliers, Needs, Part, by_rank
from traceanalyzer.analyzers.flamegraph import FlameGraph
from traceanalyzer.analyzers.info import Info
from traceanalyzer.analyzers.info import info as describe
from traceanalyzer.analyzers.leaf_paths import By, GroupBy, LeafPaths, Match, Question
from traceanalyzer.errors import InputError, MissingData, OptionError, UnreadableFile
from traceanalyzer.exporters import writer_for
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS, TABLE_KINDS

#: Called with (bytes read so far, bytes in all) while a file is read.
Progress = Callable[[int, int], None]
PathLike = str | os.PathLike[str]

_COLUMNS = ("args", "input_dims")
_LAST = (1 << 63) - 1
_NO_TEXT = "its name is not UTF-8"


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
        since_ns: leave out what ends before this time after the file's first event.
        until_ns: leave out what starts at or after this time after the file's first event.
        progress: called with (bytes read, bytes in all).

    Returns:
        The trace; what was lost or odd in the file is in its ``issues``.

    Raises:
        InputError: the file cannot be read; the message says why and what to do.
        OptionError: a kind, column or format nobody knows.
    """
    selection = Selection(
        kinds=None if kinds is None else _known(kinds, (*KINDS, *TABLE_KINDS), "kind"),
        names=(names,) if isinstance(names, str) else tuple(names),
        columns=_known(columns, _COLUMNS, "column"),
        windows=tuple((_clipped(low), _clipped(high)) for low, high in windows),
    )
    source = Source(path)
    parser = registry.by_name(format) if format else registry.require(source)
    trace = parser.parse(source, selection, progress)
    # a converted trace remembers the file it was made from; it is this one that can be read again
    here = tuple(replace(meta, path=source.path) for meta in trace.sources)
    trace = replace(trace, sources=here)
    if rank is not None:
        trace = trace.with_rank(rank)
    return trace.between(since_ns, until_ns)


def comm_outliers(
    inputs: Trace | PathLike | Sequence[Trace | PathLike],
    *,
    baseline: Trace | PathLike | Sequence[Trace | PathLike] | None = None,
    factor: float = 3.0,
    z: float = 3.5,
    patterns: Sequence[str] = (),
    min_wait_ns: int | None = None,
    format: str | None = None,  # noqa: A002 - the command line's word
    rank: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
    seen: Callable[[Trace], None] | None = None,
) -> CommOutliers:
    """Which collectives took unusually long, which rank was late, and what it was doing meanwhile.

    The analysis is :func:`traceanalyzer.analyzers.comm_outliers.comm_outliers`; this function
    reads from files no more than it needs: device work and annotations of every file, launch calls
    where they alone tell which collective a kernel belongs to, and host events only of late ranks,
    only in the stretches in which the others waited. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, a rank each.
        baseline: the same of another run, to compare each group's median with.
        factor: an outlier lasts longer than this many times its group's median ...
        z: ... and has a modified z-score above this.
        patterns: regular expressions of further kernel names that are communication.
        min_wait_ns: lateness worth naming; default a tenth of the median step, 1 ms without steps.
        format: the files' format, to override detection by content.
        rank: of several files, only those of this rank; of one file, its rank where it does not
            tell or tells wrong.
        since_ns: leave out what ends before this time after each file's first event.
        until_ns: leave out what starts at or after this time after each file's first event.
        progress: called with (bytes read, bytes in all) of each file while it is first read.
        seen: called with each trace as it was first read, for its ``issues``.

    Raises:
        InputError: a file cannot be read.
        MissingData: no communication in the inputs, or in the baseline.
        OptionError: a pattern or a number makes no sense.
    """

    def reading(path: PathLike, needs: Needs, own_rank: int | None, **more: Any) -> Trace:
        window = {"since_ns": since_ns, "until_ns": until_ns}
        how = {"format": format, "rank": own_rank, **window, **more}
        return read(path, kinds=needs.kinds, names=needs.names, **how)

    def parts(items: Sequence[Trace | str]) -> list[Part]:
        own_rank = rank if len(items) == 1 else None
        wanted = [patterns] if isinstance(patterns, str) else patterns

        def extracted(trace: Trace) -> list[Part]:
            chosen = (own for own in by_rank(trace) if rank in (None, own_rank, own.meta.rank))
            return [comm.extract(own, wanted) for own in chosen]

        found: list[Part] = []
        for item in items:
            if isinstance(item, Trace):
                found += extracted(item)
                continue
            trace = reading(item, comm.NEEDS, own_rank, progress=progress)
            if seen:
                seen(trace)
            own = extracted(trace)
            if any(part.wants_launches for part in own):
                own = extracted(reading(item, comm.LAUNCHES, own_rank))
            found += own
        if not found:
            raise OptionError("no input" if rank is None else f"no input is of rank {rank}")
        return found

    items = _each(inputs)
    result = comm.combine(
        parts(items),
        baseline=None if baseline is None else parts(_each(baseline)),
        factor=factor,
        z=z,
        min_wait_ns=min_wait_ns,
    )
    return comm.with_context(result, _contexts(result, items, reading))


def _contexts(
    result: CommOutliers, items: Sequence[Trace | str], reading: Callable[..., Trace]
) -> list[Trace]:
    """Traces that show what late ranks were doing: those in memory, and files read again."""
    in_memory = [own for item in items if isinstance(item, Trace) for own in by_rank(item)]
    windows: dict[str, list[tuple[int, int]]] = {}
    for window in result.windows:
        windows.setdefault(window.path, []).append((window.start_ns, window.end_ns))
    for trace in in_memory:
        windows.pop(trace.meta.path, None)
    whole = {"since_ns": None, "until_ns": None}
    again = [
        reading(path, comm.CONTEXT, None, windows=stretches, **whole)
        for path, stretches in windows.items()
    ]
    return [*in_memory, *(own for trace in again for own in by_rank(trace))]


def _each(
    inputs: Trace | PathLike | Sequence[Trace | PathLike],
) -> Sequence[Trace | str]:
    """Traces as they are, files by name, folders as the files in them."""
    items = [inputs] if isinstance(inputs, Trace | str | os.PathLike) else list(inputs)
    found: list[Trace | str] = []
    for item in items:
        found += [item] if isinstance(item, Trace) else find_inputs([item])[0]
    return found


def py_spy_report(
    inputs: Trace | PathLike | Sequence[Trace | PathLike],
    *,
    library_names: str | Sequence[str] = (),
    match: Match = "component",
    aggregate_leaf_paths: bool = False,
    group_by: GroupBy | None = None,
    by: By | None = None,
    drop_module: bool = False,
    exclude_idle_process: bool = False,
    rate: float | None = None,
    format: str | None = None,  # noqa: A002 - the command line's word
    rank: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
    seen: Callable[[Trace], None] | None = None,
) -> LeafPaths:
    """Which code was running when a sampling profiler looked, and whose it is.

    A stack counts for its leaf frame, and is tagged by the innermost frame of a library, as
    :mod:`traceanalyzer.analyzers.leaf_paths` says. Any format with sampled stacks will do.

    Args:
        inputs: a trace, a file or a folder, or several of them. Of a folder or of several, what
            cannot be read or has no samples is skipped and named.
        library_names: whose frames to look for, the first listed wins; none: the user's own code,
            which is what lies outside of the standard library and the installed packages.
        match: ``component``: whole components of a path; ``substring``: anywhere in the path.
        aggregate_leaf_paths: one row for equal paths instead of one for each line of the file.
        group_by: sum by ``function``, ``line``, ``file``, ``module`` or ``library``: self, and
            total with what it calls.
        by: rows apart for each ``process``, ``thread``, ``rank`` or ``file``.
        drop_module: leave out module-level code, as itwinai's report does.
        exclude_idle_process: leave out samples without any Python frame.
        rate: samples a second; then the answer is in seconds.
        format: the files' format, to override detection by content.
        rank: of several files, only those of this rank; of one file, its rank.
        since_ns: leave out what was before, where samples have a time.
        until_ns: leave out what was then or later, where samples have a time.
        progress: called with (bytes read, bytes in all) of each file.
        seen: called with each trace, for its ``issues``.

    Raises:
        InputError: no file can be read.
        MissingData: no samples.
        OptionError: an option makes no sense.
    """
    names = (library_names,) if isinstance(library_names, str) else tuple(library_names)
    asked = Question(
        names, match, aggregate_leaf_paths, group_by, by, drop_module, exclude_idle_process
    )
    items = _each(inputs)

    def reading(path: str) -> Trace:
        trace = read(
            path,
            kinds=("sample",),
            format=format,
            rank=rank if len(items) == 1 else None,
            since_ns=since_ns,
            until_ns=until_ns,
            progress=progress,
        )
        if seen:
            seen(trace)
        return trace

    parts: list[leaf_paths.Part] = []
    skipped: list[tuple[str, str]] = []
    failed: InputError | MissingData | None = None
    for item in items:
        try:
            trace = item if isinstance(item, Trace) else reading(item)
            if len(items) == 1 or rank in (None, trace.meta.rank):
                parts.append(leaf_paths.extract(trace, asked))
        except (InputError, MissingData) as error:
            failed = failed or error
            why = error.what if isinstance(error, InputError) else "no sampled stacks"
            skipped.append((str(item), why))
    if failed and not parts:
        raise failed
    if not parts:
        raise OptionError(f"no input is of rank {rank}")
    return leaf_paths.combine(parts, asked, rate=rate, skipped=skipped)


def flamegraph(
    inputs: Trace | PathLike | Sequence[Trace | PathLike],
    *,
    base: Trace | PathLike | Sequence[Trace | PathLike] | None = None,
    kinds: Sequence[str] = (),
    threads: Sequence[str] = (),
    weight: Weight | None = None,
    by: By | None = None,
    reverse: bool = False,
    focus: str | None = None,
    min_frac: float | None = None,
    library_names: str | Sequence[str] = (),
    title: str | None = None,
    format: str | None = None,  # noqa: A002 - the command line's word
    rank: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
    seen: Callable[[Trace], None] | None = None,
) -> FlameGraph:
    """Which functions does the time, or whatever else was sampled, go into?

    Sampled stacks count with their weight, slices of a trace with their time less that of the
    slices in them. A function is one frame whatever its line. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, added up.
        base: the same of another run, scaled to the same sum, to compare with.
        kinds: kinds of events; without any the samples, else ``python_function``, else all slices
            on threads of the host.
        threads: only threads of these numbers, or with these words in their name.
        weight: ``time``, ``count`` or ``bytes``; by default what samples were recorded with, and
            the time of slices.
        by: a root for each ``process``, ``thread``, ``rank`` or ``file``.
        reverse: from the functions that ran up to their callers.
        focus: a regular expression; only stacks through functions whose name it matches, from the
            outermost such function down.
        min_frac: boxes smaller than this part of everything are summed up, their number and
            weight shown; by default none as long as they can be drawn, then all but the 5,000
            heaviest.
        library_names: whose code stands out; none: the user's own code.
        title: of the picture.
        format: the files' format, to override detection by content.
        rank: of several files, only those of this rank; of one file, its rank.
        since_ns: leave out what is before this time after each file's first event.
        until_ns: leave out what is at or after this time; slices are cut there.
        progress: called with (bytes read, bytes in all) of each file.
        seen: called with each trace, for its ``issues``.

    Raises:
        InputError: a file cannot be read.
        MissingData: there are no stacks, or nothing of what is asked for.
        OptionError: an option makes no sense, or weights are of several units.
    """
    _known(kinds, KINDS, "kind")
    wanted = {"sample", "lane", *kinds} if kinds else flame.KINDS

    def parts(inputs: Trace | PathLike | Sequence[Trace | PathLike]) -> list[flame.Part]:
        items = _each(inputs)
        own_rank = rank if len(items) == 1 else None
        found = []
        for item in items:
            trace = item
            if not isinstance(trace, Trace):
                trace = read(
                    trace, kinds=wanted, format=format, rank=own_rank, progress=progress
                )
                if seen:
                    seen(trace)
            if rank in (None, own_rank, trace.meta.rank):
                how = {"kinds": kinds, "threads": threads, "weight": weight, "by": by}
                found.append(flame.extract(trace, **how, since_ns=since_ns, until_ns=until_ns))
        if not found:
            raise OptionError("no input" if rank is None else f"no input is of rank {rank}")
        return found

    return flame.combine(
        parts(inputs),
        () if base is None else parts(base),
        by_group=by is not None,
        reverse=reverse,
        focus=focus,
        min_frac=min_frac,
        libraries=(library_names,) if isinstance(library_names, str) else tuple(library_names),
        title=title,
    )


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
    """Write a trace as Parquet (``.parquet``) or Chrome JSON (``.json``, ``.json.gz``).

    Nothing is left out. The file appears under its name only when it is whole. Returns the trace;
    the other arguments are those of :func:`read`.

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


def find_inputs(paths: PathLike | Sequence[PathLike]) -> tuple[list[str], list[tuple[str, str]]]:
    """Files to read, and files left out with the reason.

    A file named directly is always an input. In a folder (and below) every file whose content a
    parser recognises is one; hidden files and links to folders are passed over. Natural order:
    ``rank2`` before ``rank10``.

    Raises:
        UnreadableFile: a path that does not exist, or a folder with nothing to read in it.
    """
    inputs: list[str] = []
    skipped: list[tuple[str, str]] = []
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    for path in [os.fspath(p) for p in given]:
        if not os.path.isdir(path):  # noqa: PTH112 - the name is kept as it was given
            if not os.path.exists(path):  # noqa: PTH110
                raise UnreadableFile(path, "no such file or folder")
            if not _is_text(path):
                raise UnreadableFile(path, _NO_TEXT, hint="rename it")
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


def _in_folder(folder: str) -> tuple[list[str], list[tuple[str, str]]]:
    found: list[str] = []
    foreign: list[tuple[str, str]] = []
    for base, folders, names in os.walk(folder):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural)
        for name in sorted((f for f in names if not f.startswith(".")), key=natural):
            path = str(Path(base, name))
            if not _is_text(path):
                foreign.append((path.encode(errors="backslashreplace").decode(), _NO_TEXT))
                continue
            try:
                source = Source(path)
                known = registry.detect(source)
            except InputError as error:
                foreign.append((path, error.what))
                continue
            if known is None:
                foreign.append((path, "no format we know" if source.size else "empty"))
            else:
                found.append(path)
    return found, foreign


def _is_text(path: str) -> bool:
    """Whether a file's name is UTF-8; the tables, which hold it, know no other text."""
    return path.encode(errors="ignore").decode() == path


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key in which numbers count as numbers."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part.lower())
        for part in re.split(r"(\d+)", name)
        if part
    ]


def _clipped(time: int) -> int:
    """A time that fits Int64; there are no events beyond."""
    return max(min(time, _LAST), -_LAST)


def _known(words: Iterable[str], known: Iterable[str], what: str) -> frozenset[str]:
    asked = frozenset((words,) if isinstance(words, str) else words)
    have = frozenset(known)
    if unknown := sorted(asked - have):
        raise OptionError(
            f"no {what} is called {unknown[0]!r}; known are {', '.join(sorted(have))}"
        )
    return asked
