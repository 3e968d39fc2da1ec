"""The loop over inputs: read, split ranks, take, measure, combine.

:func:`run` runs one analyzer, :func:`examine` all of them; each file is read once. Both skip
unreadable inputs if another one can be read, note truncated files, select ``rank`` and apply the
time window in the same way. One file is in memory at a time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Generic, Protocol, Self, TypeVar, Unpack

import polars as pl

from traceanalyzer import workers
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Analyzer, Examination, Needs, O, P, R, Reading, Skipped
from traceanalyzer.analyzers.common import jobs, ranks
from traceanalyzer.analyzers.common.repeats import Repeats
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.reading import (
    Inputs,
    PathLike,
    Progress,
    Start,
    each,
    is_of_composer,
    ranks_of_series,
    read,
    starts_of,
    with_assumed_rank,
    without_torch,
)
from traceanalyzer.result import Result
from traceanalyzer.trace import Meta, Trace, is_truncated
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT

M = TypeVar("M", bound="_Measures")

#: Columns that only samples and counters use: a fifth of the memory of events.
_OF_SAMPLES = ("address", "stack", "weight")


def run(analyzer: Analyzer[O, P, R], inputs: Inputs, options: O, **reading: Unpack[Reading]) -> R:
    """Return the result of an analyzer over all inputs.

    Of several inputs, unreadable ones are skipped; so are ranks without the required data if others
    have it. Notes of the result list them, and truncated files.

    Args:
        analyzer: the analyzer.
        inputs: a trace, a file or a folder, or several of them.
        options: of the analyzer.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no input has the required data.
        OptionError: an option is invalid, or no input has the rank.
    """
    how = _How(**reading)
    options, base = _without_inputs(analyzer, options)
    if hasattr(options, "window"):
        options = replace(options, window=(how.since_ns, how.until_ns))  # type: ignore[call-arg]
    if analyzer.whole_file:
        how = replace(how, since_ns=None, until_ns=None)
    collected = _collect(analyzer, inputs, options, how)
    other = None if base is None else _collect(analyzer, base, options, how)
    try:
        result = analyzer.combine(collected.parts, options, other.parts if other else ())
    except MissingData as error:
        truncated = collected.truncated or (other.truncated if other else [])
        raise perhaps_truncated(error, truncated=bool(truncated)) from None
    reader = Reader(collected.items, collected.metas, how)
    if analyzer.refine:
        result = analyzer.refine(result, options, reader)
    return with_notes(result, [*collected.notes, *(other.notes if other else ()), *reader.notes])


def collect(
    analyzer: Analyzer[O, P, R],
    inputs: Inputs,
    options: O,
    *,
    may_be_empty: bool = False,
    **reading: Unpack[Reading],
) -> Collected[P]:
    """Return the parts of all ranks of all inputs; raises the same errors as :func:`run`.

    Args:
        analyzer: the analyzer.
        inputs: see :func:`run`.
        options: of the analyzer.
        may_be_empty: do not raise an error if no input can be read.
        **reading: see :func:`run`.
    """
    return _collect(analyzer, inputs, options, _How(**reading), may_be_empty=may_be_empty)


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
    how = _How(**reading)
    if isinstance(source, Trace):
        trace = _cut(source, how)
    else:
        trace = _read(source, how, columns=columns, since_ns=how.since_ns, until_ns=how.until_ns)
    if how.assume_rank is not None:
        trace = with_assumed_rank(trace, how.assume_rank)
    if how.rank is None:
        return trace
    traces = ranks.apart([trace])
    for one in traces:
        if one.meta.rank == how.rank:
            return one
    raise _unknown_rank(how.rank, [one.meta.rank for one in traces])


def with_notes(result: R, notes: Iterable[str]) -> R:
    """Append notes to those of the result."""
    more = tuple(notes)
    return replace(result, input_notes=(*result.input_notes, *more)) if more else result


def skipped_notes(skipped: Iterable[Skipped]) -> tuple[str, ...]:
    """Return a note for each skipped input."""
    return tuple(f"Skipped: {one.path}: {one.why}." for one in skipped)


def truncated_notes(paths: Iterable[str]) -> tuple[str, ...]:
    """Return a note for each truncated input."""
    lost = "events at its end are missing in all numbers"
    return tuple(f"{path} is truncated: {lost}." for path in paths)


def perhaps_truncated(error: MissingData, *, truncated: bool) -> MissingData:
    """Add the hint that the file is truncated: profilers write kernels last."""
    if not truncated:
        return error
    return MissingData(
        f"{error} (the file is truncated: the missing data may have been at its end)"
    )


@dataclass(frozen=True)
class Reader:
    """Reads inputs again, for :attr:`Analyzer.refine`.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces read, by path.
        how: how files are read.
        collected: parts of other analyzers that were measured on the same inputs, by name.
        notes: missing data in the inputs, one line each.
    """

    items: Sequence[Trace | str]
    metas: Mapping[str, Meta]
    how: _How
    collected: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def collect(self, analyzer: Analyzer[O, P, R], inputs: Inputs, options: O) -> list[P]:
        """Return parts of another analyzer: those already measured, and of further inputs."""
        done: list[P] = list(self.collected.get(analyzer.name, ()))
        if not each(inputs):
            return done
        how = _How(progress=self.how.progress, on_trace=self.how.on_trace)
        further = _collect(analyzer, inputs, options, how)
        self.notes.extend(further.notes)
        return [*done, *further.parts]

    def traces(self, needs: Needs, windows: Mapping[str, Sequence[tuple[int, int]]]) -> list[Trace]:
        """Return all ranks of the traces in memory, and of the files in ``windows``.

        Args:
            needs: what to read.
            windows: by path, the (start, end) on the file's clock that slices must overlap.
        """
        memory = ranks.by_rank([item for item in self.items if isinstance(item, Trace)])
        known = {trace.meta.path for trace in memory}
        how = _How(self.how.format)
        left = {path: stretches for path, stretches in windows.items() if path not in known}
        again = [_read_needed(path, needs, how, windows) for path, windows in left.items()]
        return [*memory, *ranks.by_rank(again)]


# --- one analyzer ----------------------------------------------------------------------------


@dataclass
class Collected(Generic[P]):
    """The parts of all inputs, with skipped and truncated inputs.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces read, by path.
        parts: one per rank; if the analyzer merges parts in a tree, about one per binary digit of
            the number of ranks.
        skipped: inputs and ranks that are not part of the result.
        repeats: recordings that several files contain.
        truncated: paths of truncated inputs.
        added: number of ranks.
    """

    items: Sequence[Trace | str]
    metas: Mapping[str, Meta]
    parts: list[P] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)
    truncated: list[str] = field(default_factory=list)
    added: int = 0

    def add(self, parts: Iterable[P], merge: Callable[[P, P], P] | None) -> None:
        """Add the parts of further ranks; merge neighbours of equally many ranks."""
        for part in parts:
            self.parts.append(part)
            self.added += 1
            number = self.added
            while merge and number % 2 == 0:
                last = self.parts.pop()
                self.parts[-1] = merge(self.parts[-1], last)
                number //= 2

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for each truncated or skipped input, and for each pair that overlaps."""
        overlaps = self.repeats.notes.values()
        return (*truncated_notes(self.truncated), *skipped_notes(self.skipped), *overlaps)


def _without_inputs(analyzer: Analyzer[O, P, R], options: O) -> tuple[O, Inputs | None]:
    """Return the options for ``measure``, and the inputs of the base run."""
    if analyzer.base is None:
        return options, None
    return replace(options, **{analyzer.base: None}), getattr(options, analyzer.base)


def _collect(
    analyzer: Analyzer[O, P, R],
    inputs: Inputs,
    options: O,
    how: _How,
    *,
    may_be_empty: bool = False,
) -> Collected[P]:
    opened = _Inputs(inputs, analyzer.needs(options), how, split=analyzer.split_ranks)
    opened.every_file |= analyzer.every_file
    collected = Collected[P](
        opened.items, opened.metas, skipped=opened.skipped, repeats=opened.repeats
    )
    parts = _Parts(analyzer, options, collected)
    _measure_all(opened, parts)
    opened.require(any_part=bool(parts.collected.parts), may_be_empty=may_be_empty)
    return parts.collected


@dataclass
class _Parts(Generic[O, P, R]):
    """The parts of one analyzer; a :class:`_Measures`."""

    analyzer: Analyzer[O, P, R]
    options: O
    collected: Collected[P]

    def measure(self, opened: _Inputs, one: _Opened) -> None:
        analyzer, options = self.analyzer, self.options
        parts, lacking = _measured(analyzer, one, options)
        if analyzer.more and parts and (needs := analyzer.more(parts, options)) and one.is_file:
            again = opened.open(one.path, replace_needs=needs)
            parts, lacking = _measured(analyzer, again, options)
        if lacking and not parts:
            opened.fail(one.path, lacking[0][1])
            return
        self.collected.add(parts, analyzer.merge)
        for rank, error in lacking:
            opened.skip(rank_of(one.path, rank), str(error).removeprefix(f"{one.path}: "))
        if one.truncated:
            self.collected.truncated.append(one.path)

    def empty(self) -> Self:
        # parts are merged after join, in order
        return replace(
            self, analyzer=replace(self.analyzer, merge=None), collected=Collected((), {})
        )

    def join(self, other: Self) -> None:
        self.collected.add(other.collected.parts, self.analyzer.merge)
        self.collected.truncated.extend(other.collected.truncated)


def _measured(
    analyzer: Analyzer[O, P, R], one: _Opened, options: O
) -> tuple[list[P], list[tuple[int | None, MissingData]]]:
    """Return the parts of the ranks of one input, and errors of ranks without the data.

    The taken data of all ranks is in memory at once, after the trace has been freed.
    """
    lacking: list[tuple[int | None, MissingData]] = []

    def attempt(function: Callable[[Any, O], Any], what: Any, rank: int | None) -> list[Any]:
        try:
            return [function(what, options)]
        except MissingData as error:
            lacking.append((rank, perhaps_truncated(error, truncated=one.truncated)))
            return []

    taken: list[tuple[int | None, Any]] = []
    while one.traces:
        trace = one.traces.pop(0)
        rank = trace.meta.rank
        taken += [(rank, x) for x in attempt(analyzer.take or analyzer.measure, trace, rank)]
        del trace
    if analyzer.take is None:
        return [part for _, part in taken], lacking
    parts: list[P] = []
    while taken:
        rank, little = taken.pop(0)
        parts += attempt(analyzer.measure, little, rank)
    return parts, lacking


def rank_of(path: str, rank: int | None) -> str:
    """Name one rank of a file."""
    return path if rank is None else f"{path}, rank {rank}"


# --- inputs ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _How:
    """The keywords of :class:`Reading`, checked."""

    format: str | None = None
    rank: int | None = None
    assume_rank: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    progress: Progress | None = None
    on_trace: Callable[[Trace], None] | None = None
    processes: int = 1


@dataclass
class _Opened:
    """One input: its traces by rank, which are removed from the list when they are measured."""

    path: str
    is_file: bool
    truncated: bool
    traces: list[Trace]


class _Inputs:
    """The inputs, opened one after another.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces opened, by path.
        skipped: unreadable inputs, and those without the required data.
        repeats: recordings that several files contain.
        every_file: whether copies of a file and repeated recordings count.
        read: paths of the files with traces of the selected ranks, in order.
    """

    def __init__(self, inputs: Inputs, needs: Needs | None, how: _How, *, split: bool = True):
        self.items = each(inputs)
        self.metas: dict[str, Meta] = {}
        self.skipped: list[Skipped] = []
        self.read: dict[str, None] = {}
        self.repeats = Repeats()
        self.every_file = len(self.items) < 2
        self._starts: set[Start] = set()
        self._series = ranks_of_series([item for item in self.items if isinstance(item, str)])
        self._needs, self.how, self._split = needs, how, split
        self._failed: InputError | MissingData | None = None
        self._apart = False
        self._ranks: set[int | None] = set()
        if how.assume_rank is not None and len(self.items) > 1:
            raise OptionError(
                f"--assume-rank needs one file without a rank; {len(self.items)} files are given"
            )

    def __iter__(self) -> Iterator[_Opened]:
        return self.each(self.items)

    def each(self, items: Iterable[Trace | str]) -> Iterator[_Opened]:
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

    def open(self, item: Trace | str, *, replace_needs: Needs | None = None) -> _Opened:
        """Open one input; return the traces of the selected ranks."""
        how = self.how
        if isinstance(item, Trace):
            trace = _cut(item, how) if self._needs else _cut_but_snapshots(item, how)
        elif self._needs:
            needs = replace_needs or self._needs
            once = replace(how, progress=None, on_trace=None) if replace_needs else how
            trace = _lightened(_read_needed(item, needs, once), needs)
        else:
            trace = _cut_but_snapshots(_read(item, how), how)
        if how.assume_rank is not None:
            trace = with_assumed_rank(trace, how.assume_rank)
        trace = self._once(trace)
        path, truncated = trace.meta.path, is_truncated(trace)
        if not self.every_file:
            trace, why = self.repeats.without_repeats(trace, is_file=isinstance(item, str))
            if why:
                self.skip(path, why)
                return _Opened(path, isinstance(item, str), truncated, [])
        self.metas |= {meta.path: meta for meta in trace.sources}
        if not self._split and how.rank is None:
            return _Opened(path, isinstance(item, str), truncated, [trace])
        sources, whole = trace.sources, [trace]
        del trace
        traces = ranks.apart(whole)
        # a rank may have no events of the kinds that were read
        self._ranks |= {one.meta.rank for one in traces} | {meta.rank for meta in sources}
        chosen = [one for one in traces if how.rank in (None, one.meta.rank)]
        if not chosen:
            chosen = _without_events(traces[0], [m for m in sources if m.rank == how.rank])
        return _Opened(path, isinstance(item, str), truncated, chosen)

    def _once(self, trace: Trace) -> Trace:
        """Return the trace with the rank of its series, without repeated PyTorch events."""
        number = self._series.get(trace.meta.path)
        if number is not None and trace.meta.rank is None and trace.events["rank"].is_null().all():
            trace = trace.with_rank(number)
        if self._apart and is_of_composer(trace):
            raise _DependsOnOthersError
        trace = without_torch(trace, self._starts)
        self._starts |= starts_of(trace)
        return trace

    def of(self, items: Sequence[Trace | str]) -> Self:
        """Return a subset of the inputs, to open in another process."""
        part = copy(self)
        part.items, part._apart = items, True
        part.metas, part.skipped, part.read = {}, [], {}
        part._starts, part._ranks, part._failed = set(), set(), None
        part.repeats = Repeats()
        part.how = replace(self.how, progress=None, on_trace=None)
        return part

    def join(self, other: Self) -> None:
        """Add the state of inputs that were opened in another process."""
        self.metas |= other.metas
        self.skipped += other.skipped
        self.read |= other.read
        self._starts |= other._starts
        self.repeats.join(other.repeats)
        self._ranks |= other._ranks
        self._failed = self._failed or other._failed

    def fail(self, path: str, error: InputError | MissingData) -> None:
        """Record an input that cannot be used."""
        self._failed = self._failed or error
        why = error.what if isinstance(error, InputError) else str(error)
        self.skip(path, why.removeprefix(f"{path}: "))

    def skip(self, path: str, why: str) -> None:
        """Record a skipped input."""
        self.skipped.append(Skipped(path, why))

    def require(self, *, any_part: bool, may_be_empty: bool = False) -> None:
        """Raise the first error if there is no part."""
        if any_part or (may_be_empty and not self._ranks):
            return
        if self._failed and not may_be_empty:
            raise self._failed
        raise _unknown_rank(self.how.rank, self._ranks)


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


def _read_needed(
    path: str, needs: Needs, how: _How, windows: Iterable[tuple[int, int]] = ()
) -> Trace:
    of_samples = () if needs.samples else _OF_SAMPLES
    return _read(
        path,
        how,
        kinds=None if needs.everything else needs.kinds,
        names=needs.names,
        columns=needs.columns,
        unused=(*of_samples, "launch_configs", *needs.unused),
        windows=windows,
        since_ns=how.since_ns,
        until_ns=how.until_ns,
    )


def _read(path: PathLike, how: _How, **what: Any) -> Trace:
    """Read a file as requested, and call ``on_trace``."""
    trace = read(path, format=how.format, progress=how.progress, **what)
    if how.on_trace:
        how.on_trace(trace)
    return trace


def _cut(trace: Trace, how: _How) -> Trace:
    """Apply the time window to a trace in memory."""
    return trace.between(how.since_ns, how.until_ns)


def _cut_but_snapshots(trace: Trace, how: _How) -> Trace:
    """Apply the time window, except to snapshots."""
    return trace if trace.meta.format == MEMORY_SNAPSHOT else _cut(trace, how)


def _lightened(trace: Trace, needs: Needs) -> Trace:
    """Remove unused columns of a trace, for any parser."""
    types = trace.events.schema
    unused = [pl.lit(None, types[name]).alias(name) for name in needs.unused]
    events = trace.events.drop(() if needs.samples else _OF_SAMPLES).with_columns(unused)
    return replace(trace, events=events, launch_configs=trace.launch_configs.clear())


# --- inputs in several processes -------------------------------------------------------------

#: Larger files are read one after another, so that one of them is in memory at a time.
_SMALL_BYTES = 1 << 17
#: Minimum number of files for workers, and number of files per task.
_FEWEST, _TOGETHER = 24, 8


class _DependsOnOthersError(Exception):
    """The result of this input depends on the inputs before it."""


class _Measures(Protocol):
    """Measures inputs, in this process or another one, and joins the results."""

    def measure(self, opened: _Inputs, one: _Opened) -> None:
        """Measure one input."""

    def empty(self) -> Self:
        """A copy without any result."""

    def join(self, other: Self) -> None:
        """Add the results of the inputs that follow."""


_Issues = list[tuple[tuple[Meta, ...], pl.DataFrame]]


def _measure_all(opened: _Inputs, measures: _Measures) -> None:
    """Measure all inputs in order; many small files in worker processes, if allowed."""
    chunks = _chunks(opened)
    tasks = [(opened.of(items), measures.empty()) for items, small in chunks if small]
    with closing(workers.each(_measured_apart, tasks, opened.how.processes)) as answers:
        for items, small in chunks:
            answer = next(answers) if small else None
            # recordings that files of different workers share are detected when read again here
            if answer and not opened.repeats.repeated(answer[0].repeats):
                other, measured, issues = answer
                opened.join(other)
                measures.join(measured)
                _report(opened.how, items, issues)
            else:
                for one in opened.each(items):
                    measures.measure(opened, one)


def _chunks(opened: _Inputs) -> list[tuple[list[Trace | str], bool]]:
    """Return the inputs in ordered groups, and whether a worker may measure each group."""
    items = opened.items
    small = [isinstance(item, str) and _bytes_of(item) <= _SMALL_BYTES for item in items]
    if opened.how.processes < 2 or sum(small) < _FEWEST:
        return [(list(items), False)]
    chunks: list[tuple[list[Trace | str], bool]] = []
    for is_small, run_of in groupby(zip(items, small, strict=True), key=lambda pair: pair[1]):
        run = [item for item, _ in run_of]
        length = _TOGETHER if is_small else len(run)
        chunks += [(run[i : i + length], is_small) for i in range(0, len(run), length)]
    return chunks


def _bytes_of(path: str) -> float:
    """Return the size of a file in bytes; infinite if unknown, for example for a pipe."""
    try:
        return os.path.getsize(path) or math.inf  # noqa: PTH202
    except OSError:
        return math.inf


def _measured_apart(task: tuple[_Inputs, M]) -> tuple[_Inputs, M, _Issues]:
    """Run a task in a worker; return it with all results, and the issues of its files."""
    opened, measures = task
    issues: _Issues = []
    how = opened.how
    opened.how = replace(how, on_trace=lambda trace: issues.append((trace.sources, trace.issues)))
    for one in opened:
        measures.measure(opened, one)
    opened.how = how
    return opened, measures, issues


def _report(how: _How, items: Sequence[Trace | str], issues: _Issues) -> None:
    """Report progress and issues of files that a worker read."""
    for item in items:
        if how.progress and isinstance(item, str):
            size = int(_bytes_of(item))
            how.progress(size, size)
    for sources, of_file in issues:
        if how.on_trace:
            how.on_trace(Trace(sources, issues=of_file))


# --- all analyzers ---------------------------------------------------------------------------


@dataclass
class _Asked:
    """The parts of one analyzer in an examination."""

    analyzer: Analyzer[Any, Any, Any]
    options: Any
    parts: list[tuple[Meta, Any]] = field(default_factory=list)
    lacking: list[tuple[Meta, str]] = field(default_factory=list)

    def ask(self, trace: Trace, *, truncated: bool) -> None:
        """Measure one rank."""
        measure = self.analyzer.report_measure or self.analyzer.part
        try:
            self.parts.append((trace.meta, measure(trace, self.options)))
        except MissingData as error:
            why = str(perhaps_truncated(error, truncated=truncated))
            self.lacking.append((trace.meta, why.removeprefix(f"{trace.meta.path}: ")))

    def result(self, reader: Reader) -> Result:
        """Return the result of all parts, and free them.

        Raises:
            MissingData: there are no parts.
        """
        if not self.parts:
            raise MissingData(self.lacking[0][1] if self.lacking else "nothing was recorded")
        parts, others = [part for _, part in self.parts], list[Skipped]()
        if self.analyzer.report_parts:
            parts, others = self.analyzer.report_parts(self.parts)
        notes = skipped_notes([*self._lacking(), *others])
        self.parts.clear()
        result = self.analyzer.combine(parts, self.options, ())
        if self.analyzer.refine:
            result = self.analyzer.refine(result, self.options, reader)
        noted: Result = with_notes(result, notes)
        return noted

    def _lacking(self) -> Iterable[Skipped]:
        """Return files and ranks without data that others of the same format have."""
        formats = {meta.format for meta, _ in self.parts}
        paths = {meta.path for meta, _ in self.parts}
        return dict.fromkeys(
            Skipped(rank_of(meta.path, meta.rank) if meta.path in paths else meta.path, why)
            for meta, why in self.lacking
            if meta.format in formats
        )


def examine(
    inputs: Inputs, names: Collection[str] | None = None, **reading: Unpack[Reading]
) -> Examination:
    """Return the result of every analyzer that the files allow; one file is in memory at a time.

    Args:
        inputs: traces, files and folders, of any format, of one run.
        names: names of the analyzers, or None for all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: no input has the rank.
    """
    how = _How(**reading)
    wanted = [entry.name for entry in registry.in_report()]
    asked = _asked(name for name in wanted if names is None or name in names)
    opened = _Inputs(inputs, None, how)
    questions = _Questions(asked)
    _measure_all(opened, questions)
    opened.require(any_part=bool(opened.read))
    companions = {name for question in asked.values() if (name := question.analyzer.companion)}
    collected = {name: [part for _, part in asked.pop(name).parts] for name in companions}
    reader = Reader(opened.items, opened.metas, how, collected)
    results: dict[str, Result] = {}
    missing: dict[str, str] = {}
    for name, question in asked.items():
        try:
            results[name] = question.result(reader)
        except MissingData as error:
            missing[name] = str(error)
    overlaps = opened.repeats.notes.values()
    notes = (*truncated_notes(questions.truncated), *skipped_notes(opened.skipped), *overlaps)
    several = jobs.several_jobs(questions.recordings)
    truncated = tuple(questions.truncated)
    return Examination(results, missing, notes, tuple(opened.read), several, truncated)


@dataclass
class _Questions:
    """The parts of all analyzers, by name, and the truncated files; a :class:`_Measures`."""

    asked: dict[str, _Asked]
    truncated: list[str] = field(default_factory=list)
    recordings: list[jobs.Recording] = field(default_factory=list)

    def measure(self, opened: _Inputs, one: _Opened) -> None:
        self.truncated += [one.path] if one.truncated else []
        if len(opened.items) > 1:
            self.recordings += [jobs.recording(trace) for trace in one.traces]
        while one.traces:
            self._ask_all(one.traces.pop(0), truncated=one.truncated)

    def _ask_all(self, trace: Trace, *, truncated: bool) -> None:
        """Measure one rank with every analyzer; when this returns, the trace can be freed."""
        for question in self.asked.values():
            question.ask(trace, truncated=truncated)

    def empty(self) -> Self:
        asked = self.asked.items()
        return replace(
            self,
            asked={name: _Asked(one.analyzer, one.options) for name, one in asked},
            truncated=[],
            recordings=[],
        )

    def join(self, other: Self) -> None:
        for name, question in other.asked.items():
            self.asked[name].parts += question.parts
            self.asked[name].lacking += question.lacking
        self.truncated += other.truncated
        self.recordings += other.recordings


def _asked(names: Iterable[str]) -> dict[str, _Asked]:
    """Return the analyzers with their default options, and those that they need parts of."""
    analyzers = [registry.ENTRIES[name].analyzer() for name in names]
    companions = [registry.ENTRIES[one.companion].analyzer() for one in analyzers if one.companion]
    return {one.name: _Asked(one, one.options()) for one in (*analyzers, *companions)}
