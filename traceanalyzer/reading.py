"""Files found and read."""

import ctypes
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import polars as pl

from traceanalyzer.errors import InputError, OptionError, UnreadableFile
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.chrome_trace import composer
from traceanalyzer.parsers.contract import Selection, bounded
from traceanalyzer.parsers.foreign import recognise
from traceanalyzer.parsers.source import (
    Source,
    threads as threads,  # the number of cores, for callers
)
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import KINDS, MEMORY_SNAPSHOT, TABLE_KINDS

#: Called with (bytes read so far, bytes in all) while a file is read.
Progress = Callable[[int, int], None]
PathLike = str | os.PathLike[str]
T = TypeVar("T")
#: One input or several: traces in memory, files, folders.
Inputs = Trace | PathLike | Sequence[Trace | PathLike]

_COLUMNS = ("args", "input_dims")
_LAST = (1 << 63) - 1
_NUMBERED = re.compile(r"(?s)(.*[-_.])(\d{1,6})((?:\.[A-Za-z]\w*)+)")
#: Why a file that Composer merged is left out.
_MERGED = "Composer merged it of the other files in its folder, whose events would count twice"
_EXPORTED = "its export (.sqlite) is read instead"
_NO_TEXT = "its name is not UTF-8"
#: Why a file in a folder is no input: no parser recognises it.
NO_FORMAT = "no format we know"


def read(
    path: PathLike,
    *,
    kinds: str | Iterable[str] | None = None,
    names: str | Sequence[str] = (),
    columns: Iterable[str] = (),
    unused: Iterable[str] = (),
    windows: Iterable[tuple[int, int]] = (),
    format: str | None = None,  # noqa: A002 - the command line's word
    assume_rank: int | None = None,
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
        unused: columns of ``events`` and side tables that you will not look at; a parser may leave
            them null or empty.
        windows: (start, end) in ns on the file's clock; only slices that overlap one are read.
        format: a format's name, to override detection by content.
        assume_rank: the rank of a file that has none.
        since_ns: leave out what ends before this time after the file's first event.
        until_ns: leave out what starts at or after this time after the file's first event.
        progress: called with (bytes read, bytes in all).

    Returns:
        The trace; what was lost or odd in the file is in its ``issues``.

    Raises:
        InputError: the file cannot be read; the message says why and what to do.
        OptionError: a kind, column or format nobody knows; the file has a rank, and one is to be
            assumed.
    """
    selection = Selection(
        kinds=None if kinds is None else known(kinds, (*KINDS, *TABLE_KINDS), "kind"),
        names=several(names),
        columns=known(columns, _COLUMNS, "column"),
        unused=frozenset(unused),
        windows=tuple((_clipped(low), _clipped(high)) for low, high in windows),
    )
    source = Source(path)
    parser = registry.by_name(format) if format else registry.require(source)
    trace = bounded(parser.parse(source, selection, progress))
    _give_back()
    # a converted trace remembers the file it was made from; it is this one that can be read again
    here = tuple(replace(meta, path=source.path) for meta in trace.sources)
    trace = replace(trace, sources=here)
    if assume_rank is not None:
        trace = with_assumed_rank(trace, assume_rank)
    return trace.between(since_ns, until_ns)


def with_assumed_rank(trace: Trace, rank: int) -> Trace:
    """A trace that has no rank, as of this rank.

    Raises:
        OptionError: it has one.
    """
    known = {*trace.events["rank"].unique(), *(meta.rank for meta in trace.sources)}
    if found := ", ".join(map(str, sorted(one for one in known if one is not None))):
        raise OptionError(
            f"--assume-rank is for a file that has no rank; {trace.meta.path} is of rank {found}"
        )
    return trace.with_rank(rank)


def format_of(path: PathLike) -> str | None:
    """The format of a file, told by its content; None where nothing recognises it.

    Raises:
        InputError: the file cannot be read.
    """
    found = registry.detect(Source(path))
    return None if found is None else found.name


class Found(tuple[T, ...]):
    """Inputs that are complete: existing files and traces, in reading order, without duplicates."""


def find_inputs(paths: PathLike | Sequence[PathLike]) -> tuple[list[str], list[tuple[str, str]]]:
    """Files to read, and files left out with the reason.

    A file named directly is always an input. In a folder (and below) every file whose content a
    parser recognises is one; hidden files and links to folders are passed over. Natural order:
    ``rank2`` before ``rank10``. The reason is :data:`NO_FORMAT` for what is no trace; any other
    tells of a file or folder that may be one and cannot be read.

    Raises:
        UnreadableFile: a path that does not exist, or a folder with nothing to read in it.
    """
    inputs, skipped = found_inputs(paths)
    return list(inputs), skipped


def found_inputs(
    paths: PathLike | Sequence[PathLike],
) -> tuple[Found[str], list[tuple[str, str]]]:
    """As :func:`find_inputs`, but marked as complete, so that nobody looks for them again."""
    inputs: list[str] = []
    skipped: list[tuple[str, str]] = []
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    for path in [os.fspath(p) for p in given]:
        if not os.path.isdir(path):  # noqa: PTH112 - the name is kept as it was given
            _require(path)
            if not _is_text(path):
                raise UnreadableFile(path, _NO_TEXT, hint="rename it")
            inputs.append(path)
            continue
        found, foreign = _in_folder(path)
        if not found:
            raise _nothing_in(path, foreign)
        inputs += found
        skipped += foreign
    inputs, merged = _ordered(list(dict.fromkeys(inputs)))
    return Found(inputs), [*skipped, *merged]


def each(inputs: Inputs) -> Sequence[Trace | str]:
    """Traces as they are, files by name, folders as the files in them."""
    return each_and_foreign(inputs)[0]


def each_and_foreign(inputs: Inputs) -> tuple[Sequence[Trace | str], list[tuple[str, str]]]:
    """As :func:`each`, and what of folders is left out, with the reason."""
    if isinstance(inputs, Found):
        return inputs, []
    items = [inputs] if isinstance(inputs, Trace | str | os.PathLike) else list(inputs)
    files = [item for item in items if not isinstance(item, Trace)]
    paths, foreign = found_inputs(files) if files else ((), [])
    found: list[Trace | str] = [*(item for item in items if isinstance(item, Trace)), *paths]
    # a file that is named twice counts once; traces are told apart by who they are
    alike = {one if isinstance(one, str) else id(one): one for one in found}
    return Found(alike.values()), foreign


def _ordered(paths: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Files in the order to read them, and those that hold events of others, with the reason.

    Files of Composer come last: PyTorch's events in them are left out where PyTorch's file of the
    same rank was read. A file that Composer merged is left out beside its parts.
    """
    heads = {path: _head(path) for path in paths if ".json" in path} if len(paths) > 1 else {}
    parts = [path for path, head in heads.items() if composer.is_part(head)]
    folders = {str(Path(path).parent) for path in parts}
    merged = [
        path
        for path, head in heads.items()
        if composer.is_merged(head) and str(Path(path).parent) in folders
    ]
    exported = [path for path in paths if _is_exported(path, paths)]
    others = [path for path in paths if path not in {*parts, *merged, *exported}]
    left = [*((path, _MERGED) for path in merged), *((path, _EXPORTED) for path in exported)]
    return others + parts, left


def _is_exported(path: str, paths: Collection[str]) -> bool:
    """Whether a file is a report of nsys of which the export is among the files."""
    stem, is_report, _ = path.partition(".nsys-rep")
    return bool(is_report) and f"{stem}.sqlite" in paths


def _head(path: str) -> bytes:
    try:
        return Source(path).head()
    except InputError:
        return b""


#: Rank and start of a file, or rank, time, duration and name of its first event.
Start = tuple[int | str | None, ...]


def starts_of(trace: Trace) -> set[Start]:
    """What identifies PyTorch's file of a rank, for :func:`without_torch`."""
    first = [(trace.meta.rank, *row) for row in _first_of_torch(trace)]
    return {*((meta.rank, meta.start_ns) for meta in trace.sources), *first}


def is_of_composer(trace: Trace) -> bool:
    """Whether Composer wrote the file, so that PyTorch's file may hold the same events."""
    extra = trace.meta.extra or ""
    return composer.ONE_CLOCK in extra or composer.TORCH_START in extra


def without_torch(trace: Trace, starts: Set[Start]) -> Trace:
    """A trace of Composer without PyTorch's events, where PyTorch's file was read too.

    Args:
        trace: of any format; others than Composer's are not changed.
        starts: of :func:`starts_of`, of the files that were read before.
    """
    extra = trace.meta.extra or ""
    same: list[Start]
    if composer.ONE_CLOCK in extra:
        same = [(trace.meta.rank, *row) for row in _first_of_torch(trace)]
    elif composer.TORCH_START in extra:
        same = [(trace.meta.rank, json.loads(extra).get(composer.TORCH_START))]
    else:
        return trace
    if not starts & set(same):
        return trace
    issues = trace.issues.filter(pl.col("code") != "two-clocks")
    return replace(trace.select(_OF_COMPOSER), flows=trace.flows.clear(), issues=issues)


def _first_of_torch(trace: Trace) -> list[Start]:
    """Time, duration and name of the first event that is not Composer's; empty without any."""
    first = trace.events.select((~_OF_COMPOSER).arg_true().head(1)).to_series()
    return trace.events.select("ts", "dur", "name")[first].cast({"name": pl.String}).rows()


#: Events that Composer writes itself.
_OF_COMPOSER = (pl.col("kind") == "other") & (pl.col("category") != "Trace").fill_null(value=True)


def ranks_of_series(paths: Sequence[str]) -> dict[str, int]:
    """Ranks of files whose names differ in their last number only, and count from 0.

    ``run_0.sqlite``, ``run_4.sqlite``. The number stands behind ``_``, ``-`` or a dot.
    """
    matches = {path: _NUMBERED.fullmatch(path) for path in paths}
    found = {path: int(match[2]) for path, match in matches.items() if match}
    stems = {(match[1], match[3]) for match in matches.values() if match}
    is_series = len(found) == len(paths) > 1 and len(stems) == 1 and 0 in found.values()
    return found if is_series and len({*found.values()}) == len(found) else {}


def without_snapshots(
    items: Sequence[Trace | str], given: str | None = None
) -> tuple[Found[Trace | str], Found[Trace | str]]:
    """Traces, and the memory snapshots among them; snapshots alone are taken for traces.

    Args:
        items: of :func:`each`.
        given: the format of all files, to override detection by content.
    """
    if len(items) == 1:
        return Found(items), Found()
    traces: list[Trace | str] = []
    snapshots: list[Trace | str] = []
    for item in items:
        name = item.meta.format if isinstance(item, Trace) else given or _detected(item)
        (snapshots if name == MEMORY_SNAPSHOT else traces).append(item)
    return (Found(traces), Found(snapshots)) if traces else (Found(snapshots), Found())


def _detected(path: str) -> str | None:
    """The format of a file; None also where it cannot be read, which reading it will say."""
    try:
        return format_of(path)
    except InputError:
        return None


def known(words: str | Iterable[str], names: Iterable[str], what: str) -> frozenset[str]:
    """The words, or one word, all of which must be among the names.

    Raises:
        OptionError: one is not.
    """
    asked = frozenset((words,) if isinstance(words, str) else words)
    have = frozenset(names)
    if unknown := sorted(asked - have):
        raise OptionError(
            f"no {what} is called {unknown[0]!r}; known are {', '.join(sorted(have))}"
        )
    return asked


def _in_folder(folder: str) -> tuple[list[str], list[tuple[str, str]]]:
    found: list[str] = []
    foreign: list[tuple[str, str]] = []

    def refused(error: OSError) -> None:
        if error.filename == folder:
            raise UnreadableFile(folder, _reason(error)) from None
        foreign.append((_spelled(str(error.filename)), _reason(error)))

    for base, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural)
        for name in sorted((f for f in names if not f.startswith(".")), key=natural):
            path = str(Path(base, name))
            if not _is_text(path):
                foreign.append((_spelled(path), _NO_TEXT))
                continue
            try:
                source = Source(path)
                format_ = registry.detect(source)
            except InputError as error:
                foreign.append((path, error.what))
                continue
            if format_ is None:
                foreign.append((path, _not_read(source)))
            else:
                found.append(path)
    return found, foreign


def _not_read(source: Source) -> str:
    """Why a file that no parser recognises is left out."""
    known = recognise(source.head(), source.path)
    if known and known.is_recording:
        return known.what
    return NO_FORMAT if source.size else "empty"


def _nothing_in(folder: str, others: Sequence[tuple[str, str]]) -> UnreadableFile:
    """The error for a folder without a trace; the first file that is known says what to do."""
    what = "no trace in this folder"
    if others:
        what += f" ({len(others)} other file{'s' if len(others) > 1 else ''})"
    for path, _ in others:
        if known := recognise(_head(path), path):
            what = f"{what}: {Path(path).name} is {known.what}"
            return UnreadableFile(folder, what, hint=known.hint)
    return UnreadableFile(folder, what, hint="traceanalyzer info FILE says what a file is")


def _require(path: str) -> None:
    try:
        os.stat(path)  # noqa: PTH116 - the name is kept as it was given
    except (OSError, ValueError) as error:
        raise UnreadableFile(path, _reason(error)) from None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    return str(getattr(error, "strerror", None) or error).lower()


def _spelled(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()


def _is_text(path: str) -> bool:
    """Whether a file's name is UTF-8; the tables, which hold it, know no other text."""
    return path.encode(errors="ignore").decode() == path


def several(words: str | Sequence[str]) -> tuple[str, ...]:
    """One word, or several, as several."""
    return (words,) if isinstance(words, str) else tuple(words)


def natural(name: str) -> list[tuple[int, int, str]]:
    """A sort key in which numbers count as numbers."""
    return [
        (0, int(part), "") if part.isdecimal() else (1, 0, part.lower())
        for part in re.split(r"(\d+)", name)
        if part
    ]


def _give_back() -> None:
    """Returns memory that parsing has freed to the system, where the C library (glibc) can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _clipped(time: int) -> int:
    """A time that fits Int64; there are no events beyond."""
    return max(min(time, _LAST), -_LAST)
