"""Open the inputs of an analysis, one by one or in workers.

:class:`OpenedInputs` applies rank, time window and needs to all inputs in the same way, and skips
unreadable and repeated ones. :func:`measure_all` measures them in order.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, Unpack

import polars as pl

from traceanalyzer.analyzers.base import Needs, Reading, Skipped
from traceanalyzer.analyzers.common import ranks
from traceanalyzer.analyzers.common.repeats import Repeats
from traceanalyzer.errors import (
    InputError,
    MalformedInput,
    MissingData,
    OptionError,
    UnreadableFile,
)
from traceanalyzer.machine import cores, free_memory
from traceanalyzer.reading import (
    Inputs,
    PathLike,
    Progress,
    Start,
    each,
    is_of_composer,
    is_summary,
    ranks_of_series,
    read,
    starts_of,
    with_assumed_rank,
    without_torch,
)
from traceanalyzer.trace import Meta, Trace, is_truncated
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT, PRINTED_TEXT

if TYPE_CHECKING:
    from traceanalyzer.summarized import State

M = TypeVar("M", bound="Measures")

#: Tables that say nothing without events.
_ABOUT_EVENTS = ("lanes", "issues")
#: Key of the metadata of a file that ``merge`` wrote.
_MERGED = '"traceanalyzer merge"'
#: Columns that only samples and counters use: a fifth of the memory of events.
_OF_SAMPLES = ("address", "stack", "weight")


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
    kinds: tuple[str, ...] | None = None
    read: Callable[..., Trace] | None = None


@dataclass
class Opened:
    """One input: its traces by rank, which are removed from the list when they are measured."""

    path: str
    is_file: bool
    truncated: bool
    traces: list[Trace]


class OpenedInputs:
    """The inputs, opened one after another.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces opened, by path.
        skipped: unreadable inputs, and those without the required data.
        repeats: recordings that several files contain.
        every_file: whether copies of a file and repeated recordings count.
        read: paths of the files with traces of the selected ranks, in order.
        several: whether there are several inputs.
        folder: the folder of all inputs, if there are several; otherwise None.
        summaries: those that are summaries, by the path of the input they were made from.
        any_rows: whether a file has an event, a counter or a sample.
    """

    def __init__(self, inputs: Inputs, needs: Needs | None, how: How, *, split: bool = True):
        self.items = each(inputs)
        self.metas: dict[str, Meta] = {}
        self.skipped: list[Skipped] = []
        self.read: dict[str, None] = {}
        self.repeats = Repeats()
        self.every_file = len(self.items) < 2
        self.several = len(self.items) > 1
        self.folder = _folder_of(self.items)
        self.summaries: dict[str, str] = {}
        self._starts: set[Start] = set()
        self._series = ranks_of_series([item for item in self.items if isinstance(item, str)])
        self._needs, self.how, self._split = needs, how, split
        self._failed: InputError | MissingData | None = None
        self._failed_text = False
        # inputs without events in the time window; whether another input has some
        self._outside: list[Trace | str] = []
        self._any_inside = self.any_rows = False
        self._apart = False
        self._ranks: set[int | None] = set()
        if how.assume_rank is not None and len(self.items) > 1:
            raise OptionError(
                f"--assume-rank needs one file without a rank; {len(self.items)} files are given"
            )

    def __iter__(self) -> Iterator[Opened]:
        return self.each(self.items)

    @property
    def state(self) -> State:
        """What the inputs opened so far added."""
        from traceanalyzer.summarized import Failure, State

        failed = None if self._failed is None else Failure.of(self._failed)
        skipped = tuple(self.skipped)
        return State(
            tuple(self.metas.values()),
            skipped,
            skipped,
            tuple(self.read),
            frozenset(self._starts),
            frozenset(self._ranks),
            failed,
            self._any_inside,
            self.any_rows,
            self.repeats,
        )

    def join_state(self, state: State, *, measured: bool = True) -> None:
        """Add the state of an input that was summarized.

        Args:
            state: its state.
            measured: whether its parts are in the result; otherwise only what it is.
        """
        lacks = state.failed is not None and state.failed.kind == "MissingData"
        if measured or not lacks:
            if self._failed is None and state.failed is not None:
                self._failed = state.failed.error()
            self.skipped += state.skipped_later if self.skipped else state.skipped
        self.metas |= {meta.path: meta for meta in state.metas}
        self.read |= dict.fromkeys(state.read) if measured else {}
        self._starts |= state.starts
        self._ranks |= state.ranks | {meta.rank for meta in state.metas}
        self._any_inside |= state.any_inside
        self.any_rows |= state.any_rows
        self.repeats.join(state.repeats)

    def each(self, items: Iterable[Trace | str]) -> Iterator[Opened]:
        """Yield some of the inputs, opened one after another."""
        for item in items:
            try:
                opened = self.open(item)
            except InputError as error:
                self.fail(error.path, error)
                continue
            if opened.traces:
                sources = [meta for trace in opened.traces for meta in trace.sources]
                self.read |= dict.fromkeys(meta.path for meta in sources)
                yield opened

    def open(self, item: Trace | str, *, replace_needs: Needs | None = None) -> Opened:
        """Open one input; return the traces of the selected ranks."""
        how = self.how
        if isinstance(item, Trace):
            trace = _cut(item, how) if self._needs else _cut_but_snapshots(item, how)
        elif self._needs:
            needs = replace_needs or self._needs
            once = replace(how, progress=None, on_trace=None) if replace_needs else how
            trace = _lightened(read_needed(item, needs, once), needs)
        else:
            trace = _read(item, how, columns=how.columns, kinds=how.kinds, inputs_of=how.inputs_of)
            trace = _cut_but_snapshots(trace, how)
        if how.assume_rank is not None:
            trace = with_assumed_rank(trace, how.assume_rank)
        if trace.events.is_empty() and trace.counters.is_empty():
            self._outside.append(item)
        else:
            self._any_inside = True
        if isinstance(item, str) and _MERGED in (trace.meta.extra or ""):
            raise MalformedInput(
                item, "written by traceanalyzer merge", hint="pass the files that it was made from"
            )
        self.any_rows |= any(
            table.height for name, table in trace.tables.items() if name not in _ABOUT_EVENTS
        )
        trace = self._once(trace)
        path, truncated = trace.meta.path, is_truncated(trace)
        if not self.every_file:
            trace, why = self.repeats.without_repeats(trace, is_file=isinstance(item, str))
            if why:
                self.skip(path, why)
                return Opened(path, isinstance(item, str), truncated, [])
        self.metas |= {meta.path: meta for meta in trace.sources}
        if not self._split and how.rank is None:
            return Opened(path, isinstance(item, str), truncated, [trace])
        sources, whole = trace.sources, [trace]
        del trace
        traces = ranks.split_by_rank(whole)
        # a rank may have no events of the kinds that were read
        self._ranks |= {one.meta.rank for one in traces} | {meta.rank for meta in sources}
        chosen = [one for one in traces if how.rank in (None, one.meta.rank)]
        if not chosen:
            chosen = _without_events(traces[0], [m for m in sources if m.rank == how.rank])
        return Opened(path, isinstance(item, str), truncated, chosen)

    def _once(self, trace: Trace) -> Trace:
        """Return the trace with the rank of its series, without repeated PyTorch events."""
        number = self._series.get(trace.meta.path)
        if number is not None and trace.meta.rank is None and trace.events["rank"].is_null().all():
            trace = trace.with_rank(number)
        if self._apart and is_of_composer(trace):
            raise DependsOnOthersError
        trace = without_torch(trace, self._starts)
        self._starts |= starts_of(trace)
        return trace

    def of(self, items: Sequence[Trace | str]) -> Self:
        """Return a subset of the inputs, to open in another process."""
        part = copy(self)
        part.items, part._apart = items, True
        part.metas, part.skipped, part.read = {}, [], {}
        part._starts, part._ranks, part._failed = set(), set(), None
        part._failed_text = False
        part._outside, part._any_inside, part.any_rows = [], False, False
        part.repeats = Repeats()
        part.how = replace(self.how, progress=None, on_trace=None, client=None)
        return part

    def join(self, other: Self) -> None:
        """Add the state of inputs that were opened in another process."""
        self.metas |= other.metas
        self.skipped += other.skipped
        self.read |= other.read
        self._starts |= other._starts
        self.repeats.join(other.repeats)
        self._ranks |= other._ranks
        if self._failed is None or (self._failed_text and other._failed and not other._failed_text):
            self._failed, self._failed_text = other._failed, other._failed_text
        self._outside += other._outside
        self._any_inside |= other._any_inside
        self.any_rows |= other.any_rows

    def fail(self, path: str, error: InputError | MissingData) -> None:
        """Record an input that cannot be used."""
        # text, which has no timeline, is skipped next to files with one: their error says more
        if self._failed is None or (self._failed_text and not _is_text(path, self.metas)):
            self._failed, self._failed_text = error, _is_text(path, self.metas)
        why = error.what if isinstance(error, InputError) else str(error)
        self.skip(path, why.removeprefix(f"{path}: "))

    def skip(self, path: str, why: str) -> None:
        """Record a skipped input."""
        self.skipped.append(Skipped(path, why))

    def require(self, *, any_part: bool, may_be_empty: bool = False) -> None:
        """Raise the first error if there is no part, or no event in the time window."""
        if self._outside and not self._any_inside:
            self._check_window(self._outside[0])
        if any_part or (may_be_empty and not self._ranks):
            return
        if self._failed and not may_be_empty:
            raise self._failed
        raise _unknown_rank(self.how.rank, self._ranks)

    def _check_window(self, item: Trace | str) -> None:
        """Raise an error if an input has events, but none in the time window."""
        how = self.how
        if how.since_ns is None and how.until_ns is None:
            return
        from traceanalyzer.analyzers.common.windows import no_events, recorded_span

        whole = How(how.format)
        if isinstance(item, Trace):
            trace = item
        else:
            trace = read_needed(item, self._needs, whole) if self._needs else _read(item, whole)
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


def _is_text(path: str, metas: dict[str, Meta]) -> bool:
    return path in metas and metas[path].format == PRINTED_TEXT


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
        OptionError: it does not have the rank.
    """
    how = How(**reading)
    if isinstance(source, Trace):
        trace = _cut(source, how)
    else:
        trace = _read(source, how, columns=columns, since_ns=how.since_ns, until_ns=how.until_ns)
    if how.assume_rank is not None:
        trace = with_assumed_rank(trace, how.assume_rank)
    if how.rank is None:
        return trace
    traces = ranks.split_by_rank([trace])
    for one in traces:
        if one.meta.rank == how.rank:
            return one
    raise _unknown_rank(how.rank, [one.meta.rank for one in traces])


def _without_events(trace: Trace, sources: Sequence[Meta]) -> list[Trace]:
    """Return an empty trace of a rank without events, or the trace if it has no rank and no events.

    Its analyzer raises the error about the missing data.
    """
    if sources:
        nothing = trace.select(pl.lit(value=False), pl.lit(value=False))
        return [replace(nothing, sources=tuple(sources[:1]))]
    return [trace] if trace.meta.rank is None and trace.events.is_empty() else []


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
    return OptionError(f"no input is of rank {rank}; there {are} {ranks.ranges(known)}")


def read_needed(
    path: str, needs: Needs, how: How, windows: Iterable[tuple[int, int]] = ()
) -> Trace:
    """Read the events of a file that an analyzer needs, within the windows if there are any."""
    of_samples = () if needs.samples else _OF_SAMPLES
    return _read(
        path,
        how,
        kinds=None if needs.everything else needs.kinds,
        names=needs.names,
        columns=needs.columns,
        unused=(*of_samples, "launch_configs", *needs.unused),
        windows=windows,
        metrics=needs.metrics,
        since_ns=how.since_ns,
        until_ns=how.until_ns,
    )


def _read(path: PathLike, how: How, *, unused: Sequence[str] = (), **what: Any) -> Trace:
    """Read a file as requested, and call ``on_trace``."""
    unused = (*unused, *how.unused)
    trace = (how.read or read)(
        path, format=how.format, progress=how.progress, unused=unused, **what
    )
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
    types = trace.events.schema
    unused = [pl.lit(None, types[name]).alias(name) for name in needs.unused]
    events = trace.events.drop(() if needs.samples else _OF_SAMPLES).with_columns(unused)
    return replace(trace, events=events, launch_configs=trace.launch_configs.clear())


# --- inputs in several processes -------------------------------------------------------------

#: Files of up to this size are tasks of several files, to have fewer messages.
_SMALL_BYTES = 1 << 17
_TOGETHER = 8
#: Estimated time of a short analysis of a file and of its bytes, and to start the workers.
_FILE_SECONDS, _BYTE_SECONDS, _START_SECONDS = 0.03, 4e-9, 0.6
#: Estimated memory to analyze a file: of the program, and for each of its bytes.
_PROGRAM_BYTES, _BYTES_PER_BYTE = 150 << 20, 2
#: Estimated size of a compressed file when decompressed.
_INFLATED = {".gz": 10, ".zst": 10, ".zip": 10}


class DependsOnOthersError(Exception):
    """The result of this input depends on the inputs before it."""


class Measures(Protocol):
    """Measures inputs, in this process or another one, and joins the results.

    Attributes:
        section: where a summary has the results.
    """

    @property
    def section(self) -> str:
        """Name of the results in a summary."""

    def store(self, add: Callable[[str, Any, Any], None]) -> None:
        """Call ``add`` with the section, value and type of each result."""

    def restored(self, summary: Any) -> Self:
        """A copy with the results of a summary."""

    def measure(self, opened: OpenedInputs, one: Opened) -> None:
        """Measure one input."""

    def empty(self) -> Self:
        """A copy without any result."""

    def join(self, other: Self) -> None:
        """Add the results of the inputs that follow."""


_Issues = list[tuple[tuple[Meta, ...], pl.DataFrame]]


def measure_all(opened: OpenedInputs, measures: Measures) -> None:
    """Measure all inputs in order, in worker processes or a cluster if allowed and worth it.

    A file that ends its worker is skipped.
    """
    paths = [one for one in opened.items if isinstance(one, str) and is_summary(one)]
    items = [one for one in opened.items if isinstance(one, Trace) or one not in paths]
    if paths:
        from traceanalyzer.summarized import join_summaries

        join_summaries(opened, measures, paths)
    apart = _apart(opened, items)
    if apart is None:
        for one in opened.each(items):
            measures.measure(opened, one)
        return
    from traceanalyzer.workers import Ended

    def task(items: Sequence[Trace | str]) -> tuple[OpenedInputs, Measures]:
        return opened.of(items), measures.empty()

    def take(items: Sequence[Trace | str], answer: Any) -> None:
        if isinstance(answer, Ended):
            if len(items) == 1:
                path = str(items[0])
                opened.fail(path, UnreadableFile(path, f"the process that read it {answer.why}"))
                return
            for item in items:  # one of them ended the worker
                with closing(apart([task([item])])) as alone:
                    take([item], next(alone))
        # recordings that files of different workers share are detected when read again here
        elif answer and not opened.repeats.repeated(answer[0].repeats):
            other, measured, issues = answer
            opened.join(other)
            measures.join(measured)
            _report(opened.how, items, issues)
        else:
            for one in opened.each(items):
                measures.measure(opened, one)

    chunks = _chunks(items)
    tasks = [task(items) for items, is_file in chunks if is_file]
    with closing(apart(tasks)) as answers:
        for items, is_file in chunks:
            take(items, next(answers) if is_file else None)


def _apart(
    opened: OpenedInputs, items: Sequence[Trace | str]
) -> Callable[[Sequence[Any]], Generator[Any]] | None:
    """Return the function that runs tasks in other processes; None if this one reads the inputs."""
    if opened.how.client is not None:
        from traceanalyzer import cluster

        return partial(cluster.each, opened.how.client, _measured_on_host)
    number = _number_of_workers(opened, items)
    if number == 1:
        return None
    from traceanalyzer import workers

    threads = max(1, cores() // number)
    return partial(workers.each, _measured_apart, number=number, threads=threads)


def _number_of_workers(opened: OpenedInputs, items: Sequence[Trace | str]) -> int:
    """Return the number of processes that read the inputs; 1 is this process."""
    files = [item for item in items if isinstance(item, str) and bytes_of(item) < math.inf]
    wanted = opened.how.workers
    if wanted != "auto":
        return max(1, min(wanted, len(files)))
    sizes = [bytes_of(file) * _INFLATED.get(PurePath(file).suffix.lower(), 1) for file in files]
    if len(files) < 2:
        return 1
    fitting = free_memory() // (_PROGRAM_BYTES + _BYTES_PER_BYTE * max(sizes))
    number = max(1, int(min(cores(), fitting, len(files))))
    seconds = len(files) * _FILE_SECONDS + sum(sizes) * _BYTE_SECONDS
    return number if seconds - seconds / number > _START_SECONDS else 1


def _chunks(items: Sequence[Trace | str]) -> list[tuple[list[Trace | str], bool]]:
    """Return the inputs in ordered groups, and whether a worker may measure each group."""
    chunks: list[tuple[list[Trace | str], bool]] = []
    for size, run_of in groupby(items, key=_size_class):
        run = list(run_of)
        length = _TOGETHER if size == "small" else 1
        apart = size != "unknown"
        chunks += [(run[i : i + length], apart) for i in range(0, len(run), length)]
    return chunks


def _size_class(item: Trace | str) -> Literal["small", "large", "unknown"]:
    size = bytes_of(item) if isinstance(item, str) else math.inf
    if size == math.inf:
        return "unknown"
    return "small" if size <= _SMALL_BYTES else "large"


def bytes_of(path: str) -> float:
    """Return the size of a file in bytes; infinite if unknown, for example for a pipe."""
    try:
        return os.path.getsize(path) or math.inf  # noqa: PTH202
    except OSError:
        return math.inf


def _measured_apart(task: tuple[OpenedInputs, M]) -> tuple[OpenedInputs, M, _Issues]:
    """Run a task in a worker; return it with all results, and the issues of its files."""
    opened, measures = task
    issues: _Issues = []
    how = opened.how
    opened.how = replace(how, on_trace=lambda trace: issues.append((trace.sources, trace.issues)))
    for one in opened:
        measures.measure(opened, one)
    opened.how = how
    return opened, measures, issues


def _measured_on_host(task: tuple[OpenedInputs, M]) -> tuple[OpenedInputs, M, _Issues]:
    """Run a task on a worker that may be another machine, without the files it cannot see."""
    from traceanalyzer.cluster import unseen

    opened, _ = task
    hidden = {path: why for path in opened.items if isinstance(path, str) and (why := unseen(path))}
    opened.items = [item for item in opened.items if item not in hidden]
    answer = _measured_apart(task)
    for path, why in hidden.items():
        answer[0].fail(path, UnreadableFile(path, why))
    return answer


def _report(how: How, items: Sequence[Trace | str], issues: _Issues) -> None:
    """Report progress and issues of files that a worker read."""
    for item in items:
        if how.progress and isinstance(item, str):
            size = int(bytes_of(item))
            how.progress(size, size)
    for sources, of_file in issues:
        if how.on_trace:
            how.on_trace(Trace(sources, issues=of_file))
