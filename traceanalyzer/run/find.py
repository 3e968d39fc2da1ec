"""Find the input files: in folders, by content, and in reading order."""

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeVar

from traceanalyzer import schema
from traceanalyzer.errors import InputError, OptionError, UnreadableFile
from traceanalyzer.parsers import foreign, perfetto, registry
from traceanalyzer.parsers.chrome_trace import producers
from traceanalyzer.parsers.source import Source, size_of as size_of, table_files
from traceanalyzer.run import baselines
from traceanalyzer.trace import Inputs, PathLike, Trace
from traceanalyzer.units import natural
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT, MERGED

T = TypeVar("T")
_NUMBERED = re.compile(r"(?s)(.*[-_.])(\d{1,6})((?:\.[A-Za-z]\w*)+|_(?:pqt|arw)dir)")
#: Why a file merged by Composer is skipped.
_MERGED = "Composer merged it from the other files in its folder, whose events would count twice"
_EXPORTED = "an export of it is read instead"
#: Endings of the forms of one recording of nsys, the first of them is read.
_NSYS_FORMS = (".sqlite", "_pqtdir", "_arwdir", ".nsys-rep")
_NO_TEXT = "its name is not UTF-8"
#: Why a file in a folder is skipped: no parser recognises it.
NO_FORMAT = "unknown file format"


def known_formats() -> dict[str, str]:
    """Return the description of each format by its name."""
    return {one.name: one.description for one in registry.formats()}


def format_of(path: PathLike) -> str | None:
    """Detect the format of a file by its content; None if it is unknown.

    Raises:
        InputError: the file cannot be read.
    """
    return _beginning(os.fspath(path)).format


class _Beginning(NamedTuple):
    """What the first bytes of a file tell: its format, and whether Composer wrote it."""

    format: str | None
    is_part: bool
    is_merged: bool


def _beginning(path: str) -> _Beginning:
    """Read the first bytes of a file; once, as long as it does not change.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        info = os.stat(path)  # noqa: PTH116 - the name is kept as it was given
    except (OSError, ValueError):
        return _read_beginning(path, 0, 0)  # raises the error
    return _read_beginning(path, info.st_size, info.st_mtime_ns)


@lru_cache(maxsize=1 << 14)
def _read_beginning(path: str, size: int, modified_ns: int) -> _Beginning:  # noqa: ARG001 - keys
    source = Source(path)
    head, detected = source.head(), registry.detect(source)
    return _Beginning(
        None if detected is None else detected.name,
        producers.is_part(head),
        producers.is_merged(head),
    )


class InputList(tuple[T, ...]):
    """Inputs that are complete: existing files and traces, in reading order, without duplicates."""


def find_inputs(paths: PathLike | Sequence[PathLike]) -> tuple[list[str], list[tuple[str, str]]]:
    """Find the files to read, and the skipped files with the reason.

    A file passed directly is always an input. Folders are searched recursively for files that a
    parser recognises by content, without hidden files and links to folders. ``baseline:NAME`` is a
    saved run, unless a file has this name. The order is natural, ``rank2`` before ``rank10``,
    whatever the order of ``paths``, so that no result depends on it. The reason is
    :data:`NO_FORMAT` for a file that is not a trace; any other reason is for a file or folder that
    may be one and cannot be read.

    Raises:
        UnreadableFile: a path does not exist, or a folder has no readable file.
    """
    inputs, skipped = collect_inputs(paths)
    return list(inputs), skipped


def collect_inputs(
    paths: PathLike | Sequence[PathLike],
) -> tuple[InputList[str], list[tuple[str, str]]]:
    """Like :func:`find_inputs`, but marked as complete, so that files are not searched again."""
    inputs: list[str] = []
    skipped: list[tuple[str, str]] = []
    for path in sorted((baselines.resolved(os.fspath(p)) for p in _listed(paths)), key=_order):
        if not os.path.isdir(path):  # noqa: PTH112 - the name is kept as it was given
            _require(path)
            if _is_text(path):
                inputs.append(path)
            else:
                skipped.append((_spelled(path), _NO_TEXT))
            continue
        recognised, others = _in_folder(path)
        if not recognised:
            raise _nothing_in(path, others)
        inputs += recognised
        skipped += others
    if skipped and not inputs:
        raise UnreadableFile(*skipped[0], hint="rename it")
    inputs, merged = _ordered(list(dict.fromkeys(inputs)))
    return InputList(inputs), [*skipped, *merged]


def _listed(inputs: Any) -> list[Any]:
    if isinstance(inputs, Trace | str | os.PathLike):
        return [inputs]
    if not isinstance(inputs, Iterable):
        raise OptionError(f"pass a path, a trace, or a list of them (got {inputs!r})")
    return list(inputs)


def each(inputs: Inputs) -> Sequence[Trace | str]:
    """Return traces as they are, files by name, folders as the files in them."""
    return each_and_skipped(inputs)[0]


def each_and_skipped(inputs: Inputs) -> tuple[Sequence[Trace | str], list[tuple[str, str]]]:
    """Like :func:`each`, plus the skipped files of folders with the reason."""
    if isinstance(inputs, InputList):
        return inputs, []
    items = _listed(inputs)
    files = [item for item in items if not isinstance(item, Trace)]
    paths, others = collect_inputs(files) if files else ((), [])
    traces = sorted(
        (one for one in items if isinstance(one, Trace)), key=lambda t: _order(t.meta.path)
    )
    every: list[Trace | str] = [*traces, *paths]
    # a file that is passed twice counts once; traces are compared by identity
    distinct = {one if isinstance(one, str) else id(one): one for one in every}
    return InputList(distinct.values()), others


def require_readable(runs: Iterable[Inputs], **reading: Any) -> None:
    """Check that each run has a file of a known format, before any run is analysed.

    Raises:
        InputError: a file does not exist; or there is none of a known format.
    """
    for run in runs if reading.get("format") is None else ():
        files = each(run)
        unknown = [one for one in files if isinstance(one, str) and not _known(one)]
        if files and len(unknown) == len(files):
            registry.require(Source(unknown[0]))


def _order(path: str) -> tuple[object, str]:
    return natural(path), path


def _ordered(paths: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the files in reading order, and skipped duplicates with the reason.

    Composer's files come last: PyTorch's events in them are skipped if PyTorch's file of the same
    rank was read. A file merged by Composer is skipped if its parts are inputs.
    """
    texts = [path for path in paths if ".json" in path] if len(paths) > 1 else []
    known = {path: one for path in texts if (one := _detected(path)) is not None}
    parts = [path for path, one in known.items() if one.is_part]
    folders = {str(Path(path).parent) for path in parts}
    merged = [
        path for path, one in known.items() if one.is_merged and str(Path(path).parent) in folders
    ]
    exported = []
    for better, form in itertools.combinations(_NSYS_FORMS, 2):
        of_form = [path for path in paths if form in path and path not in exported]
        exported += [path for path in of_form if path.partition(form)[0] + better in paths]
    others = [path for path in paths if path not in {*parts, *merged, *exported}]
    left = [*((path, _MERGED) for path in merged), *((path, _EXPORTED) for path in exported)]
    return others + parts, left


def is_merged(path: str) -> bool:
    """Whether a file was written by ``traceanalyzer merge``."""
    head = _head(path)
    return f'"{MERGED}":'.encode() in head or perfetto.is_merged(head)


def _head(path: str) -> bytes:
    try:
        return Source(path).head()
    except InputError:
        return b""


def ranks_of_series(paths: Sequence[str]) -> dict[str, int]:
    """Return the ranks of files whose names differ only in their last number, including 0.

    ``run_0.sqlite``, ``run_4.sqlite``. The number follows ``_``, ``-`` or a dot.
    """
    matches = {path: _NUMBERED.fullmatch(path) for path in paths}
    ranks = {path: int(match[2]) for path, match in matches.items() if match}
    stems = {(match[1], match[3]) for match in matches.values() if match}
    is_series = len(ranks) == len(paths) > 1 and len(stems) == 1 and 0 in ranks.values()
    return ranks if is_series and len({*ranks.values()}) == len(ranks) else {}


def without_snapshots(
    items: Sequence[Trace | str], given: str | None = None
) -> tuple[InputList[Trace | str], InputList[Trace | str]]:
    """Separate memory snapshots from other traces; snapshots alone count as traces.

    Args:
        items: traces and files from :func:`each`.
        given: format of all files, to override detection by content.
    """
    if len(items) == 1:
        return InputList(items), InputList()
    traces: list[Trace | str] = []
    snapshots: list[Trace | str] = []
    for item in items:
        if isinstance(item, Trace):
            name: str | None = item.meta.format
        else:
            name = given or getattr(_detected(item), "format", None)
        (snapshots if name == MEMORY_SNAPSHOT else traces).append(item)
    return (
        (InputList(traces), InputList(snapshots)) if traces else (InputList(snapshots), InputList())
    )


def is_summary(path: str) -> bool:
    """Whether a file was written by ``traceanalyzer summarize``."""
    return os.path.isfile(path) and foreign.is_summary(path)  # noqa: PTH113 - as it was given


def _detected(path: str) -> _Beginning | None:
    """Read the first bytes of a file; None if it cannot be read, which is reported later."""
    try:
        return _beginning(path)
    except InputError:
        return None


def _known(path: str) -> bool:
    known = _detected(path)
    return is_summary(path) or (known is not None and known.format is not None)


def _in_folder(folder: str) -> tuple[list[str], list[tuple[str, str]]]:
    recognised: list[str] = []
    others: list[tuple[str, str]] = []

    def refused(error: OSError) -> None:
        if error.filename == folder:
            raise UnreadableFile(folder, _reason(error)) from None
        others.append((_spelled(str(error.filename)), _reason(error)))

    for base, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural)
        tables = {PurePath(file).name for file in table_files(base).values()}
        recognised += [base] if tables else []
        for name in sorted((f for f in {*names} - tables if f[0] != "."), key=natural):
            path = str(Path(base, name))
            if not _is_text(path):
                others.append((_spelled(path), _NO_TEXT))
                continue
            if name.endswith(schema.CONTEXT_SUFFIX) and foreign.is_written_by_summarize(path):
                continue
            try:
                known = format_of(path)
            except InputError as error:
                others.append((path, error.what))
                continue
            if known is None:
                others.append((path, _not_read(Source(path))))
            else:
                recognised.append(path)
    return recognised, others


def _not_read(source: Source) -> str:
    """Return why a file that no parser recognises is skipped."""
    known = foreign.recognise(source.head(), source.path)
    if known and known.is_recording:
        return known.what
    return NO_FORMAT if source.size else "empty"


def _nothing_in(folder: str, others: Sequence[tuple[str, str]]) -> UnreadableFile:
    """Return the error for a folder without a trace, with advice for the first known file."""
    what = "no trace in this folder"
    if others:
        what += f" ({len(others)} other file{'s' if len(others) > 1 else ''})"
    for path, _ in others:
        if known := foreign.recognise(_head(path), path):
            what = f"{what}: {Path(path).name} is {known.what}"
            return UnreadableFile(folder, what, hint=known.hint)
    return UnreadableFile(folder, what, hint="traceanalyzer info FILE describes a file")


def _require(path: str) -> None:
    try:
        os.stat(path)  # noqa: PTH116 - the name is kept as it was given
    except (OSError, ValueError) as error:
        if path == "-":
            what = "standard input cannot be read here"
            raise UnreadableFile(path, what, hint="write it to a file and pass that") from None
        raise UnreadableFile(path, _reason(error), hint=_similar(path)) from None


def _similar(path: str) -> str | None:
    """Suggest a file for a misspelt path, or for one without its suffix."""
    folder, name = os.path.split(path)
    try:
        names = [one.name for one in Path(folder).iterdir()]
    except (OSError, ValueError):
        return None
    close = [] if name in names else get_close_matches(name, names, n=1)
    return f"did you mean {Path(folder, close[0])}?" if close else None


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file or folder"
    return str(getattr(error, "strerror", None) or error).lower()


def _spelled(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()


def _is_text(path: str) -> bool:
    """Whether a file name is valid UTF-8, as required by text columns."""
    return path.encode(errors="ignore").decode() == path
