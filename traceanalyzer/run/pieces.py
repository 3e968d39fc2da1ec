"""Open the inputs of an analysis.

:class:`OpenedInputs` applies rank, time window and needs to all inputs in the same way, and skips
unreadable and repeated ones.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Literal, Self, Unpack

import polars as pl

from traceanalyzer import errors
from traceanalyzer.analyzers.base import Needs, Reading, Skipped
from traceanalyzer.errors import InputError, MalformedInput, MissingData, OptionError
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.source import size_of
from traceanalyzer.run import ranks
from traceanalyzer.run.find import each, ranks_of_series
from traceanalyzer.run.ranks import Repeats
from traceanalyzer.run.read import (
    Start,
    in_files,
    is_of_composer,
    ranks_apart,
    read,
    read_ranks,
    starts_of,
    with_assumed_rank,
    without_torch,
)
from traceanalyzer.trace import Inputs, Meta, PathLike, Trace, another_recording, is_truncated
from traceanalyzer.units import format_ranges
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT, MERGED, PRINTED_TEXT

#: Tables that say nothing without events.
_ABOUT_EVENTS = ("lanes", "issues")
#: Why a time window does not apply to a single memory snapshot.
_WHOLE_SNAPSHOT = "--since and --until apply to a memory snapshot only in traceanalyzer memory"
#: Columns that only samples and counters use: a fifth of the memory of events.
_OF_SAMPLES = ("address", "stack", "weight")
#: Ranks of files of at least this size are read in two passes, for less memory.
_LARGE_BYTES = 1 << 29


@dataclass(frozen=True)
class How:
    """The keywords of :class:`Reading`, checked, and what is read without :class:`Needs`."""

    format: str | None = None
    rank: int | None = None
    assume_rank: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    progress: Progress | None = None
    on_trace: Callable[[Trace], None] | None = None
    workers: int | Literal["auto"] = 1
    client: Any = None
    unused: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    inputs_of: frozenset[str] = frozenset()
    args_with_modules: bool | Literal["lines"] = False
    kinds: tuple[str, ...] | None = None
    read: Callable[..., Trace] | None = None
    ranks: frozenset[int] | None = None
    is_window_of_analyzer: bool = False

    @property
    def has_window(self) -> bool:
        """Whether there is a time window: of what is read, or one that the analyzer applies."""
        return self.is_window_of_analyzer or (self.since_ns, self.until_ns) != (None, None)


def checked_how(function: str, reading: Mapping[str, Any], **more: Any) -> How:
    """Return the keywords of :class:`Reading` of a function, and what else is read.

    Raises:
        TypeError: an unknown keyword; the message has those of the function.
        OptionError: ``workers`` is neither a number nor ``auto``.
    """
    known = Reading.__annotations__.keys()
    for name in reading:
        if name not in known:
            import traceanalyzer as ta

            of_function = signature(getattr(ta, function)).parameters
            options = [one.name for one in of_function.values() if one.kind is one.KEYWORD_ONLY]
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}; choose from "
                f"{', '.join([*options, *known])}"
            )
    if not isinstance(workers := reading.get("workers", "auto"), int) and workers != "auto":
        raise OptionError(f"workers must be a number or 'auto' (got {workers!r})")
    return How(**reading, **more)


class Opened:
    """One input: the traces of its ranks.

    Iterating reads and yields them one by one, once; a trace can be freed before the next is built.

    Attributes:
        path: the file.
        is_file: whether it is a file, not a trace in memory.
        truncated: whether the file is truncated.
    """

    def __init__(self, path: str, traces: Iterator[Trace], *, is_file: bool) -> None:
        self._first, self._others = list(islice(traces, 1)), traces
        self.is_file = is_file
        self.path = self._first[0].meta.path if self._first else path
        self.truncated = bool(self._first) and is_truncated(self._first[0])

    @property
    def first(self) -> Trace | None:
        """The trace that is yielded next, or None."""
        return self._first[0] if self._first else None

    def __iter__(self) -> Iterator[Trace]:
        while self._first:
            yield self._first.pop()
            self._first += islice(self._others, 1)


@dataclass(frozen=True)
class Failure:
    """An error about an input: name of its class, and its arguments."""

    kind: Literal[
        "InputError", "UnreadableFile", "UnknownFormat", "MalformedInput",
        "MissingData",
    ]  # fmt: skip
    path: str
    what: str
    where: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: InputError | MissingData) -> Self:
        """Return the failure of an error."""
        if isinstance(error, MissingData):
            return cls("MissingData", "", str(error))
        name: Any = type(error).__name__
        return cls(name, error.path, error.what, error.where, error.hint)

    def error(self) -> InputError | MissingData:
        """Return the error."""
        if self.kind == "MissingData":
            return MissingData(self.what)
        kind: type[InputError] = getattr(errors, self.kind)
        return kind(self.path, self.what, where=self.where, hint=self.hint)


@dataclass
class State:
    """What opening inputs found; joined in the order of the inputs.

    Attributes:
        metas: of the traces opened, by path.
        skipped: unreadable inputs, and those without the required data.
        read: paths of the files with traces of the selected ranks, in order.
        truncated: paths of truncated files.
        starts: keys that identify the recording of a rank.
        ranks: ranks of the inputs.
        failed: why the first unusable input cannot be used.
        failed_text: whether that is printed text.
        outside: paths of the inputs without events in the time window.
        any_inside: whether another input has some.
        any_rows: whether a file has an event, a counter or a sample.
        repeats: recordings that several files contain.
        read_again: what was read of inputs that were opened again.
    """

    metas: dict[str, Meta] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    starts: set[Start] = field(default_factory=set)
    ranks: set[int | None] = field(default_factory=set)
    failed: Failure | None = None
    failed_text: bool = False
    outside: list[str] = field(default_factory=list)
    any_inside: bool = False
    any_rows: bool = False
    repeats: Repeats = field(default_factory=Repeats)
    read_again: list[Needs] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether every input was used as it is, and has events."""
        return not (self.skipped or self.failed or self.outside or self.repeats.notes)

    def join(self, other: State) -> None:
        """Add the state of the inputs that follow."""
        self.metas |= other.metas
        self.skipped += [one for one in other.skipped if one not in self.skipped]
        self.was_read(other.read)
        self.truncated += other.truncated
        self.starts |= other.starts
        self.ranks |= other.ranks
        if self.failed is None or (self.failed_text and other.failed and not other.failed_text):
            self.failed, self.failed_text = other.failed, other.failed_text
        self.outside += other.outside
        self.any_inside |= other.any_inside
        self.any_rows |= other.any_rows
        self.repeats.join(other.repeats)
        self.read_again += other.read_again

    def was_read(self, paths: Iterable[str]) -> None:
        """Record files with traces of the selected ranks."""
        self.read += [path for path in dict.fromkeys(paths) if path not in self.read]

    def fail(self, path: str, error: InputError | MissingData) -> None:
        """Record an input that cannot be used."""
        # text, which has no timeline, is skipped next to files with one: their error says more
        is_text = path in self.metas and self.metas[path].format == PRINTED_TEXT
        if self.failed is None or (self.failed_text and not is_text):
            self.failed, self.failed_text = Failure.of(error), is_text
        if path in self.read:
            self.read.remove(path)
        why = error.what if isinstance(error, InputError) else str(error)
        self.skip(path, why.removeprefix(f"{path}: "))

    def skip(self, path: str, why: str) -> None:
        """Record a skipped input."""
        if Skipped(path, why) not in self.skipped:  # it may be read again
            self.skipped.append(Skipped(path, why))


class DependsOnOthersError(Exception):
    """The result of this input depends on the inputs before it."""


class OpenedInputs:
    """The inputs, opened one after another.

    Attributes:
        items: traces in memory and paths.
        how: how they are read.
        state: what was found in those opened so far.
        every_file: whether copies of a file and repeated recordings count.
        several: whether there are several inputs.
        folder: the folder of all inputs, if there are several; otherwise None.
        summaries: those that are summaries, by the path of the input they were made from.
        jobs: that those measured are of several jobs, or empty.
    """

    def __init__(self, inputs: Inputs, needs: Needs | None, how: How, *, split: bool = True):
        self.items = each(inputs)
        self.state, self.jobs = State(), ""
        self.every_file = len(self.items) < 2
        self.several = len(self.items) > 1
        self.folder = _folder_of(self.items)
        self.summaries: dict[str, str] = {}
        # starts known when each of Composer's files was opened first: it may be opened again
        self._starts_before: dict[str, frozenset[Start]] = {}
        self._series = ranks_of_series([item for item in self.items if isinstance(item, str)])
        self._needs, self.how, self._split = needs, how, split
        self._apart = False
        if how.assume_rank is not None and len(self.items) > 1:
            raise OptionError(
                f"--assume-rank needs one file without a rank; {len(self.items)} files are given"
            )

    def __iter__(self) -> Iterator[Opened]:
        return self.each(self.items)

    @property
    def is_split(self) -> bool:
        """Whether each rank of a file is a trace of its own."""
        return self._split or self.how.rank is not None

    def each(self, items: Iterable[Trace | str]) -> Iterator[Opened]:
        """Yield some of the inputs, opened one after another."""
        for item in items:
            try:
                opened = self.open(item)
            except InputError as error:
                self.state.fail(error.path, error)
                continue
            if opened.first and (why := self._no_window(opened.first)):
                self.state.fail(opened.path, MissingData(f"{opened.path}: {why}"))
            elif opened.first:
                yield opened

    def _no_window(self, trace: Trace) -> str | None:
        """Return why the time window does not apply to an input; None if it does."""
        if not self.how.has_window:
            return None
        if self._needs is None and trace.meta.format == MEMORY_SNAPSHOT:  # not cut
            return None if self.several else _WHOLE_SNAPSHOT
        from traceanalyzer.analyzers.common.clocks import no_timeline

        return no_timeline(trace)

    def open(self, item: Trace | str, *, replace_needs: Needs | None = None) -> Opened:
        """Open one input, with the traces of the selected ranks."""
        path = item if isinstance(item, str) else item.meta.path
        if replace_needs:
            self.state.read_again.append(replace_needs)
        return Opened(path, self._chosen(item, replace_needs), is_file=isinstance(item, str))

    def _chosen(self, item: Trace | str, replace_needs: Needs | None) -> Iterator[Trace]:
        """Yield the traces of the selected ranks of one input; this holds none that it yielded."""
        rank, any_chosen, blank = self.how.rank, False, None
        state = self.state
        for build in self._builders(item, replace_needs):
            traces = self._prepared(build(), item)
            sources = traces[0].sources if traces else ()
            traces = ranks.split_by_rank(traces) if traces and self.is_split else traces
            # a rank may have no events of the kinds that were read
            state.ranks |= {meta.rank for meta in sources} if self.is_split else set()
            while traces:
                meta = traces[0].meta
                state.ranks |= {meta.rank} if self.is_split else set()
                if rank in (None, meta.rank):
                    any_chosen = True
                    state.was_read(source.path for source in traces[0].sources)
                    yield in_files(traces.pop(0)) if isinstance(item, str) else traces.pop(0)
                    continue
                one, of_rank = traces.pop(0), [meta for meta in sources if meta.rank == rank]
                blank = blank or _without_events(one, of_rank)
        if blank and not any_chosen:
            state.was_read([blank.meta.path])
            yield blank

    def _builders(
        self, item: Trace | str, replace_needs: Needs | None
    ) -> Iterable[Callable[[], Trace]]:
        """Return the functions that build the traces of one input, within the time window."""
        how, split = self.how, self.is_split
        if isinstance(item, Trace):
            cut = _cut if self._needs else _cut_but_snapshots
            return [lambda: cut(item, how)]
        needs = replace_needs or self._needs
        once = replace(how, progress=None, on_trace=None) if replace_needs else how
        builders = _read_ranks(item, once, split=split, **_reading_of(needs, how))
        if needs:
            return (partial(_then, build, _lightened, needs) for build in builders)
        return (partial(_then, build, _cut_but_snapshots, how) for build in builders)

    def _prepared(self, trace: Trace, item: Trace | str) -> list[Trace]:
        """Return a trace without events of earlier inputs, as a list; empty if it is skipped."""
        if self.how.assume_rank is not None:
            trace = with_assumed_rank(trace, self.how.assume_rank)
        if trace.events.is_empty() and trace.counters.is_empty():
            self.state.outside.append(trace.meta.path)
        else:
            self.state.any_inside = True
        if isinstance(item, str) and f'"{MERGED}"' in (trace.meta.extra or ""):
            raise MalformedInput(
                item, "written by traceanalyzer merge", hint="pass the files that it was made from"
            )
        self.state.any_rows |= any(
            table.height for name, table in trace.tables.items() if name not in _ABOUT_EVENTS
        )
        if another := another_recording(trace):
            self.state.skip(trace.meta.path, another)
        trace = self._once(trace)
        if not self.every_file:
            trace, why = self.state.repeats.without_repeats(trace, is_file=isinstance(item, str))
            if why:
                self.state.skip(trace.meta.path, why)
                return []
        self.state.metas |= {meta.path: meta for meta in trace.sources}
        return [trace]

    def _once(self, trace: Trace) -> Trace:
        """Return the trace with the rank of its series, without repeated PyTorch events."""
        number = self._series.get(trace.meta.path)
        if number is not None and trace.meta.rank is None and trace.events["rank"].is_null().all():
            trace = trace.with_rank(number)
        if is_of_composer(trace):
            if self._apart:
                raise DependsOnOthersError
            path, known = trace.meta.path, frozenset(self.state.starts)
            trace = without_torch(trace, self._starts_before.setdefault(path, known))
        self.state.starts |= starts_of(trace)
        return trace

    def of(self, items: Sequence[Trace | str], ranks: frozenset[int] | None = None) -> Self:
        """Return a subset of the inputs, or only some of their ranks, to open elsewhere."""
        part = copy(self)
        part.items, part._apart = items, True
        part.state, part._starts_before = State(), {}
        part.how = replace(self.how, progress=None, on_trace=None, client=None, ranks=ranks)
        return part

    def require(self, *, any_part: bool, may_be_empty: bool = False) -> None:
        """Raise the first error if there is no part, or no event in the time window."""
        state = self.state
        if state.outside and not state.any_inside:
            self._check_window(state.outside[0])
        if any_part or (may_be_empty and not state.ranks):
            return
        if state.failed and not may_be_empty:
            raise state.failed.error()
        raise _unknown_rank(self.how.rank, state.ranks)

    def _check_window(self, path: str) -> None:
        """Raise an error if an input has events, but none in the time window."""
        how = self.how
        if how.since_ns is None and how.until_ns is None:
            return
        traces = (item for item in self.items if isinstance(item, Trace))
        item = next((one for one in traces if one.meta.path == path), path)
        from traceanalyzer.analyzers.common.clocks import no_events, recorded_span

        whole = How(how.format)
        if isinstance(item, Trace):
            trace = item
        else:
            trace = _read(item, whole, **_reading_of(self._needs, whole))
        if how.rank is not None:
            of_rank = [one for one in ranks.by_rank(trace) if one.meta.rank == how.rank]
            trace = of_rank[0] if of_rank else trace
        span = recorded_span(trace)
        if span is not None:
            raise OptionError(no_events(trace.meta.path, span, how.since_ns, how.until_ns))


def _folder_of(items: Sequence[Trace | str]) -> str | None:
    paths = [item for item in items if isinstance(item, str)]
    if len(paths) < 2:
        return None
    try:
        return os.path.commonpath([str(PurePath(path).parent) for path in paths]) or "."
    except ValueError:  # other drives, or relative and absolute paths
        return None


def only_trace(
    source: PathLike | Trace, *, columns: Sequence[str] = (), **reading: Unpack[Reading]
) -> Trace:
    """Return one input as a trace of the selected rank and time window.

    Args:
        source: a file, or a trace in memory.
        columns: columns that are created only on request.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: it cannot be read.
        MissingData: it has no timeline, and a time window is given.
        OptionError: it does not have the rank.
    """
    how = checked_how("convert", reading)
    if isinstance(source, Trace):
        trace = _cut(source, how)
    else:
        trace = _read(source, how, columns=columns, since_ns=how.since_ns, until_ns=how.until_ns)
    if how.has_window:
        from traceanalyzer.analyzers.common.clocks import no_timeline

        if why := no_timeline(trace):
            raise MissingData(f"{trace.meta.path}: {why}")
    if how.assume_rank is not None:
        trace = with_assumed_rank(trace, how.assume_rank)
    if how.rank is None:
        return trace
    traces = ranks.split_by_rank([trace])
    for one in traces:
        if one.meta.rank == how.rank:
            return one
    raise _unknown_rank(how.rank, [one.meta.rank for one in traces])


def _without_events(trace: Trace, sources: Sequence[Meta]) -> Trace | None:
    """Return an empty trace of a rank without events, or the trace if it has no rank and no events.

    Its analyzer raises the error about the missing data.
    """
    if sources:
        nothing = trace.select(pl.lit(value=False), pl.lit(value=False))
        return replace(nothing, sources=tuple(sources[:1]))
    return trace if trace.meta.rank is None and trace.events.is_empty() else None


def _unknown_rank(rank: int | None, ranks_read: Collection[int | None]) -> OptionError:
    """Return the error for a rank that no input has, with the known ranks."""
    if rank is None:
        return OptionError("no input")
    known = sorted(one for one in ranks_read if one is not None)
    if not known:
        return OptionError(
            f"no input is of rank {rank}: none has a rank; --assume-rank {rank} treats a file "
            f"without a rank as rank {rank}"
        )
    are = "is rank" if len(known) == 1 else "are ranks"
    return OptionError(f"no input is of rank {rank}; there {are} {format_ranges(known)}")


def read_needed(
    path: str, needs: Needs, how: How, windows: Iterable[tuple[int, int]] = ()
) -> Trace:
    """Read the events of a file that an analyzer needs, within the windows if there are any."""
    return _read(path, how, windows=windows, **_reading_of(needs, how))


def _reading_of(needs: Needs | None, how: How) -> dict[str, Any]:
    """Return the keywords that read what an analyzer needs, or without needs what ``how`` says."""
    if needs is None:
        names = ("columns", "kinds", "inputs_of", "args_with_modules")
        return {name: getattr(how, name) for name in names}
    of_samples = () if needs.samples else _OF_SAMPLES
    return {
        "kinds": None if needs.everything else needs.kinds,
        "names": needs.names,
        "columns": needs.columns,
        "unused": (*of_samples, "launch_configs", *needs.unused),
        "metrics": needs.metrics,
        "since_ns": how.since_ns,
        "until_ns": how.until_ns,
    }


def _read(path: PathLike, how: How, *, unused: Sequence[str] = (), **what: Any) -> Trace:
    """Read a file as requested, and call ``on_trace``."""
    unused = (*unused, *how.unused)
    trace = (how.read or read)(
        path, format=how.format, progress=how.progress, unused=unused, **what
    )
    if how.on_trace:
        how.on_trace(trace)
    return trace


def _read_ranks(
    path: PathLike, how: How, *, split: bool, unused: Sequence[str] = (), **what: Any
) -> Iterator[Callable[[], Trace]]:
    """Read a file like :func:`_read`; with ``split`` like :func:`read_ranks`."""
    # assumed ranks are an error for several ranks
    if not split or how.read or how.assume_rank is not None:
        yield [_read(path, how, unused=unused, **what)].pop
        return
    what |= {"format": how.format, "progress": how.progress, "unused": (*unused, *how.unused)}
    chosen = how.ranks
    apart = ranks_apart(path, how.format) if chosen is None else ()
    builders: Iterable[Callable[[], Trace]]
    if how.rank is None and len(apart) > 1 and Path(path).stat().st_size >= _LARGE_BYTES:
        builders = _in_two_passes(path, apart, what)
    else:
        if how.rank is not None and how.rank in apart:
            chosen = frozenset([how.rank])
        builders = read_ranks(path, **what, ranks=chosen)
        if not builders and how.ranks is None:  # the selected rank has no events
            builders = read_ranks(path, **what)
    for number, build in enumerate(builders):
        # the issues of a file belong to all its ranks
        yield build if number else partial(_then, build, _reported, how)


def _in_two_passes(
    path: PathLike, apart: Sequence[int], what: dict[str, Any]
) -> Iterator[Callable[[], Trace]]:
    """Read half of the ranks of a large file after the others were measured."""
    any_read, progress, half = False, what.pop("progress"), (len(apart) + 1) // 2
    for number, some in enumerate((apart[:half], apart[half:])):

        def share(done: int, size: int, passes: int = number) -> None:
            progress((passes * size + done) // 2, size)

        for build in read_ranks(path, **what, progress=progress and share, ranks=some):
            any_read = True
            yield build
    if not any_read:
        yield from read_ranks(path, **what)


def _then(build: Callable[[], Trace], change: Callable[[Trace, Any], Trace], how: Any) -> Trace:
    """Build a trace and change it."""
    return change(build(), how)


def _reported(trace: Trace, how: How) -> Trace:
    """Call ``on_trace``."""
    if how.on_trace:
        how.on_trace(trace)
    return trace


def _cut(trace: Trace, how: How) -> Trace:
    """Apply the time window to a trace in memory."""
    return trace.between(how.since_ns, how.until_ns)


def _cut_but_snapshots(trace: Trace, how: How) -> Trace:
    """Apply the time window, except to snapshots."""
    return trace if trace.meta.format == MEMORY_SNAPSHOT else _cut(trace, how)


def _lightened(trace: Trace, needs: Needs) -> Trace:
    """Remove unused columns of a trace, for any parser."""
    events, types = trace.events, trace.events.schema
    if not needs.samples:
        events = events[[name for name in events.columns if name not in _OF_SAMPLES]]
    if needs.unused:
        unused = [pl.lit(None, types[name]).alias(name) for name in needs.unused]
        events = events.with_columns(unused)
    return replace(trace, events=events, launch_configs=trace.launch_configs.clear())


def bytes_of(path: str) -> float:
    """Return the size of a file in bytes; infinite if unknown, for example for a pipe."""
    try:
        return size_of(path) or math.inf
    except OSError:
        return math.inf
