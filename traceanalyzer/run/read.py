"""Read one input file: its trace, or those of its ranks.

The tables of a large trace are in temporary files: only what an analysis uses of them is in memory.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import polars as pl
from polars.exceptions import PanicException

from traceanalyzer import schema
from traceanalyzer.analyzers.common import soundness
from traceanalyzer.errors import (
    InputError,
    MalformedInput,
    OptionError,
    TraceAnalyzerError,
    UnreadableFile,
)
from traceanalyzer.machine import give_back, return_large
from traceanalyzer.parsers import registry
from traceanalyzer.parsers.chrome_trace.producers import ONE_CLOCK, TORCH_START
from traceanalyzer.parsers.contract import Format, Progress, Selection, bounded
from traceanalyzer.parsers.source import Source
from traceanalyzer.parsers.tables import spilled, unload
from traceanalyzer.trace import Meta, PathLike, Trace
from traceanalyzer.units import one_of
from traceanalyzer.vocabulary import CUDA_CALLS, DEVICE_WORK, KINDS, RANGE, TABLE_KINDS

_LAST = (1 << 63) - 1
T = TypeVar("T")
#: Ranks of files of at least this size are read apart.
_LARGE_BYTES = 1 << 28
#: Traces of fewer events stay in memory.
_LEAST_EVENTS = 1_000_000


def read(
    path: PathLike,
    *,
    kinds: str | Iterable[str] | None = None,
    names: str | Sequence[str] = (),
    columns: Iterable[str] = (),
    unused: Iterable[str] = (),
    windows: Iterable[tuple[int, int]] = (),
    metrics: str | Sequence[str] = (),
    inputs_of: Iterable[str] = (),
    args_with_modules: bool | Literal["lines"] = False,
    format: str | None = None,  # noqa: A002 - as on the command line
    assume_rank: int | None = None,
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Read one profiler file of any supported format.

    Args:
        path: the file; compressed files (gz, zip, zst) are supported.
        kinds: event kinds to read (``kernel``, ``cpu_op`` ...; ``counter``, ``flow``, ``lane`` and
            ``metric`` for those tables); None for all. Fewer kinds need less time and memory.
        names: substrings; events whose name contains one are read whatever their kind.
        columns: columns of :data:`~traceanalyzer.schema.ON_REQUEST` to fill.
        unused: columns of ``events`` and side tables that a parser may leave null or empty.
        windows: (start, end) in ns on the file's clock; only slices that overlap one are read.
        metrics: substrings; only metrics whose name contains one are read. Empty for all.
        inputs_of: names of operators; a parser may leave the inputs of others null.
        args_with_modules: fill ``args`` for modules, functions and lines; "lines": for lines only.
        format: name of the format, to override detection by content.
        assume_rank: the rank of a file without one.
        since_ns: ignore events that end before this time after the file's first event.
        until_ns: ignore events that start at or after this time after the file's first event.
        progress: called with (bytes read, total bytes).

    Returns:
        The trace; its ``issues`` list lost or odd data of the file.

    Raises:
        InputError: the file cannot be read; the message says why and what to do.
        OptionError: unknown kind, column or format; or ``assume_rank`` for a file that has a rank.
    """
    selection = _selection(
        kinds=kinds,
        names=names,
        columns=columns,
        unused=unused,
        windows=windows,
        metrics=metrics,
        inputs_of=inputs_of,
        args_with_modules=args_with_modules,
    )
    source = Source(path)
    with _contained(source):
        parsed = _parser(source, format).parse(source, selection, _passed_on(progress))
        trace = _checked(parsed, source, selection)
    if assume_rank is not None:
        trace = with_assumed_rank(trace, assume_rank)
    return trace.between(since_ns, until_ns)


def read_ranks(
    path: PathLike,
    *,
    format: str | None = None,  # noqa: A002 - as on the command line
    since_ns: int | None = None,
    until_ns: int | None = None,
    progress: Progress | None = None,
    **selected: Any,
) -> list[Callable[[], Trace]]:
    """Read one file like :func:`read`; return a function per rank that builds its trace, once.

    Only one trace is then in memory at a time. If the parser builds only whole traces, there is one
    function for all ranks.
    """
    source = Source(path)
    selection = _selection(**selected)
    if selection.kinds and {*DEVICE_WORK} <= selection.kinds:
        # say why there are no kernels
        selection = replace(selection, kinds=selection.kinds | {RANGE})

    def finished(build: Callable[[], Trace]) -> Trace:
        with _contained(source):
            return _checked(build(), source, selection).between(since_ns, until_ns)

    with _contained(source):
        parser = _parser(source, format)
        parse = parser.parse_ranks or (lambda *what: [[parser.parse(*what)].pop])
        return [
            partial(finished, build) for build in parse(source, selection, _passed_on(progress))
        ]


def ranks_apart(path: PathLike, name: str | None = None) -> Sequence[int]:
    """Return the ranks of a large file that :func:`read_ranks` can read apart; empty if it cannot.

    Args:
        path: the file.
        name: name of the format, to override detection by content.

    Raises:
        InputError: the file cannot be read.
    """
    source = Source(path)
    if source.size < _LARGE_BYTES:
        return []
    with _contained(source):
        parser = _parser(source, name)
        return parser.ranks(source) if parser.ranks else []


def _selection(
    *,
    kinds: str | Iterable[str] | None = None,
    names: str | Sequence[str] = (),
    columns: Iterable[str] = (),
    unused: Iterable[str] = (),
    windows: Iterable[tuple[int, int]] = (),
    metrics: str | Sequence[str] = (),
    inputs_of: Iterable[str] = (),
    args_with_modules: bool | Literal["lines"] = False,
    ranks: Iterable[int] | None = None,
) -> Selection:
    """Check and convert the keywords of :func:`read`."""
    return Selection(
        kinds=None if kinds is None else known(kinds, (*KINDS, *TABLE_KINDS), "kind"),
        names=several(names),
        columns=known(columns, schema.ON_REQUEST, "column"),
        unused=frozenset(unused),
        windows=tuple((_clipped(low), _clipped(high)) for low, high in windows),
        metrics=several(metrics),
        inputs_of=frozenset(inputs_of),
        args_with_modules=args_with_modules,
        ranks=None if ranks is None else frozenset(ranks),
    )


def _parser(source: Source, name: str | None) -> Format:
    return registry.by_name(name) if name else registry.require(source)


class _ProgressError(Exception):
    """An exception of the callback for progress, which is not one of a reader."""


def _passed_on(progress: Progress | None) -> Progress | None:
    """Return a callback whose exceptions are passed on by :func:`_contained`."""
    if progress is None:
        return None

    def call(done: int, size: int) -> None:
        try:
            progress(done, size)
        except Exception as error:
            raise _ProgressError(error) from error

    return call


@contextmanager
def _contained(source: Source) -> Iterator[None]:
    """Turn any exception of a reader into an error of this file, so that others are still read.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        yield
        source.require_unchanged()
    except (TraceAnalyzerError, MemoryError, BrokenPipeError) as error:
        if isinstance(error, InputError):
            source.require_unchanged()
        raise
    except _ProgressError as error:
        raise error.args[0] from None
    except OSError as error:
        raise UnreadableFile(source.path, (error.strerror or str(error)).lower()) from error
    except (Exception, PanicException) as error:
        source.require_unchanged()
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        what = f"the reader of this format failed: {text}"
        raise MalformedInput(source.path, what, hint="please report it") from error


def _checked(trace: Trace, source: Source, selection: Selection) -> Trace:
    """Return the trace of a parser without impossible values, with the path of the file."""
    kinds, wanted = selection.kinds, {*DEVICE_WORK, *CUDA_CALLS}
    complete = not selection.windows and (kinds is None or wanted <= kinds)
    trace = in_files(bounded(trace))
    trace = soundness.repaired(trace, complete=complete)
    if source.size > _SMALL_BYTES:
        give_back()
    # a converted trace has the path of its source; the path of this file is needed to read it again
    return replace(trace, sources=tuple(replace(m, path=source.path) for m in trace.sources))


def with_assumed_rank(trace: Trace, rank: int) -> Trace:
    """Return a trace without a rank as one of this rank.

    Raises:
        OptionError: the trace has a rank.
    """
    known = {*trace.events["rank"].unique(), *(meta.rank for meta in trace.sources)}
    if ranks := ", ".join(map(str, sorted(one for one in known if one is not None))):
        raise OptionError(
            f"--assume-rank is for files without a rank; {trace.meta.path} has rank {ranks}"
        )
    return trace.with_rank(rank)


#: Sources and issues of each file that was read elsewhere.
Issues = list[tuple[tuple[Meta, ...], pl.DataFrame]]


class OfAllFiles:
    """Progress of files that are read one after another, of their bytes together."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress, self._total = progress, total
        self._before = self._done = 0

    def __call__(self, done: int, total: int) -> None:
        """Record ``done`` bytes of a file; fewer than last time means the next file."""
        self._done += done - self._before if done >= self._before else done
        self._before = 0 if done >= total else done
        self._progress(min(self._done, self._total), self._total)


def report_read(
    sizes: Iterable[int],
    issues: Issues,
    progress: Progress | None,
    on_trace: Callable[[Trace], None] | None,
) -> None:
    """Report files that were read elsewhere: their bytes, and their sources with their issues."""
    for size in sizes if progress else ():
        progress(size, size)  # type: ignore[misc]
    for sources, of_file in issues if on_trace else ():
        on_trace(Trace(sources, issues=of_file))  # type: ignore[misc]


#: Reading a smaller file leaves little memory to give back.
_SMALL_BYTES = 1 << 17

#: Rank and start of a file; or rank, time, duration and name of its first event.
Start = tuple[int | str | None, ...]


def starts_of(trace: Trace) -> set[Start]:
    """Return the keys that identify PyTorch's file of a rank, for :func:`without_torch`."""
    first = [(trace.meta.rank, *row) for row in _first_of_torch(trace)]
    return {*((meta.rank, meta.start_ns) for meta in trace.sources), *first}


def is_of_composer(trace: Trace) -> bool:
    """Whether Composer wrote the file, so that PyTorch's file may contain the same events."""
    extra = trace.meta.extra or ""
    return ONE_CLOCK in extra or TORCH_START in extra


def without_torch(trace: Trace, starts: Set[Start]) -> Trace:
    """Remove PyTorch's events from a Composer trace if PyTorch's file was read too.

    Args:
        trace: a trace of any format; only Composer's traces are changed.
        starts: keys from :func:`starts_of` of the files that were read before.
    """
    extra = trace.meta.extra or ""
    same: list[Start]
    if ONE_CLOCK in extra:
        same = [(trace.meta.rank, *row) for row in _first_of_torch(trace)]
    elif TORCH_START in extra:
        same = [(trace.meta.rank, json.loads(extra).get(TORCH_START))]
    else:
        return trace
    if not starts & set(same):
        return trace
    issues = trace.issues.filter(pl.col("code") != "two-clocks")
    return replace(trace.select(_OF_COMPOSER), flows=trace.flows.clear(), issues=issues)


def _first_of_torch(trace: Trace) -> list[Start]:
    """Return time, duration and name of the first event that is not Composer's, if any."""
    events, first = trace.events[:, ["ts", "dur", "name"]], pl.Series([0])
    if events.is_empty() or trace.events["kind"][0] == "other":
        first = trace.events.select((~_OF_COMPOSER).arg_true().head(1)).to_series()
    return events[first].rows()


#: Events written by Composer itself.
_OF_COMPOSER = (pl.col("kind") == "other") & (pl.col("category") != "Trace").fill_null(value=True)


def known(values: str | Iterable[str], names: Iterable[str], what: str) -> frozenset[str]:
    """Return one or several values as a set, after checking them against the allowed names.

    Raises:
        OptionError: unknown value.
    """
    given = frozenset((values,) if isinstance(values, str) else values)
    allowed = frozenset(names)
    if unknown := sorted(given - allowed):
        raise OptionError(f"unknown {what} {unknown[0]!r}; {one_of(unknown[0], allowed)}")
    return given


def several(values: str | Sequence[str]) -> tuple[str, ...]:
    """Return one or several values as a tuple."""
    return (values,) if isinstance(values, str) else tuple(values)


def _clipped(time: int) -> int:
    """Clip a time to Int64; there are no events beyond."""
    return max(min(time, _LAST), -_LAST)


# --- tables in temporary files ---------------------------------------------------------------


class _Computed(dict[Any, Any]):
    """What is computed once of a trace whose tables are in files."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, self.keep(value))

    @staticmethod
    def keep(value: T) -> T:
        """Return a value in files, out of memory until it is used."""
        moved = spilled(value)
        unload()
        return moved


def in_files(trace: Trace) -> Trace:
    """Return a trace whose tables are in temporary files if it is large."""
    if trace.events.height < _LEAST_EVENTS:
        return trace
    return_large()
    tables: dict[str, Any] = {name: spilled(table) for name, table in trace.tables.items()}
    changed = replace(trace, **tables)
    object.__setattr__(changed, "_computed", _Computed())
    unload()
    return changed
