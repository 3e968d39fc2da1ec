"""The one loop over inputs: read, split ranks, take, measure, combine.

:func:`run` answers one analyzer, :func:`examine` all of them with each file read once. Both skip
inputs that cannot be read as long as another one can, note truncated files, select ``rank`` and
apply the time window in the same way. One file is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Unpack

import polars as pl

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Analyzer, Examination, Needs, O, P, R, Reading, Skipped
from traceanalyzer.analyzers.common import ranks
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.reading import (
    Inputs,
    PathLike,
    Progress,
    Start,
    each,
    ranks_of_series,
    read,
    starts_of,
    with_assumed_rank,
    without_torch,
)
from traceanalyzer.result import Result
from traceanalyzer.trace import Meta, Trace, is_cut_off
from traceanalyzer.vocabulary import MEMORY_SNAPSHOT

#: Columns that events with a duration have no use for, a fifth of their memory.
_OF_SAMPLES = ("address", "stack", "weight")


def run(analyzer: Analyzer[O, P, R], inputs: Inputs, options: O, **reading: Unpack[Reading]) -> R:
    """The result of an analyzer over all inputs.

    Of several inputs those that cannot be read are skipped; so are ranks that lack what is needed
    where others have it. The notes of the result name them, and truncated files.

    Args:
        analyzer: what to compute.
        inputs: a trace, a file or a folder, or several of them.
        options: of the analyzer.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: nothing has what is needed.
        OptionError: an option is not allowed, or no input has the rank.
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
    """The parts of all ranks of all inputs; raises as :func:`run` does.

    Args:
        analyzer: whose parts.
        inputs: as of :func:`run`.
        options: of the analyzer.
        may_be_empty: that no input can be read is not an error.
        **reading: as of :func:`run`.
    """
    return _collect(analyzer, inputs, options, _How(**reading), may_be_empty=may_be_empty)


def only_trace(
    source: PathLike | Trace, *, columns: Sequence[str] = (), **reading: Unpack[Reading]
) -> Trace:
    """One input as it is, of the rank and in the time window that are asked for.

    Args:
        source: a file, or a trace in memory.
        columns: columns made only on request.
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
    found = ranks.apart([trace])
    for one in found:
        if one.meta.rank == how.rank:
            return one
    raise _not_there(how.rank, [one.meta.rank for one in found])


def with_notes(result: R, notes: Iterable[str]) -> R:
    """The result with further notes after its own."""
    more = tuple(notes)
    return replace(result, input_notes=(*result.input_notes, *more)) if more else result


def skipped_notes(skipped: Iterable[Skipped]) -> tuple[str, ...]:
    """A line of a result's notes for each input that was skipped."""
    return tuple(f"Left out: {one.path}: {one.why}." for one in skipped)


def truncated_notes(paths: Iterable[str]) -> tuple[str, ...]:
    """A line of a result's notes for each truncated input."""
    lost = "what was lost at its end is in none of these numbers"
    return tuple(f"{path} is cut off: {lost}." for path in paths)


def perhaps_truncated(error: MissingData, *, truncated: bool) -> MissingData:
    """The error, with the hint that the file is truncated: profilers write kernels last."""
    if not truncated:
        return error
    return MissingData(f"{error} (this file is cut off: what is missing may have been at its end)")


@dataclass(frozen=True)
class Reader:
    """Reads the inputs again, for :attr:`Analyzer.refine`.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces read, by path.
        how: how files are read.
        collected: parts of other analyzers that were measured on the same inputs, by name.
        notes: what is missing in what was read, a line each.
    """

    items: Sequence[Trace | str]
    metas: Mapping[str, Meta]
    how: _How
    collected: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def collect(self, analyzer: Analyzer[O, P, R], inputs: Inputs, options: O) -> list[P]:
        """The parts of another analyzer: those measured already, and of these inputs, all ranks."""
        done: list[P] = list(self.collected.get(analyzer.name, ()))
        if not each(inputs):
            return done
        how = _How(progress=self.how.progress, seen=self.how.seen)
        found = _collect(analyzer, inputs, options, how)
        self.notes.extend(found.notes)
        return [*done, *found.parts]

    def traces(self, needs: Needs, windows: Mapping[str, Sequence[tuple[int, int]]]) -> list[Trace]:
        """Every rank of the traces in memory, and of the files in ``windows``.

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
    """The parts of all inputs, and what is missing in them.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces read, by path.
        parts: of all ranks, those of an analyzer that merges parts in a tree: about as many as the
            number of ranks has binary digits.
        skipped: inputs and ranks that are not part of the result.
        truncated: paths of truncated inputs.
        added: how many ranks there were.
    """

    items: Sequence[Trace | str]
    metas: Mapping[str, Meta]
    parts: list[P] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)
    added: int = 0

    def add(self, parts: Iterable[P], merge: Callable[[P, P], P] | None) -> None:
        """Add the parts of further ranks; neighbours that stand for equally many are merged."""
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
        """A line for each input that is truncated or was skipped."""
        return (*truncated_notes(self.truncated), *skipped_notes(self.skipped))


def _without_inputs(analyzer: Analyzer[O, P, R], options: O) -> tuple[O, Inputs | None]:
    """The options as ``measure`` gets them, and the inputs of the other run."""
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
    found = Collected[P](opened.items, opened.metas, skipped=opened.skipped)
    for one in opened:
        parts, lacking = _measured(analyzer, one, options)
        if analyzer.more and parts and (needs := analyzer.more(parts, options)) and one.is_file:
            again = opened.open(one.path, replace_needs=needs)
            parts, lacking = _measured(analyzer, again, options)
        if lacking and not parts:
            opened.fail(one.path, lacking[0][1])
            continue
        found.add(parts, analyzer.merge)
        for rank, error in lacking:
            opened.skip(rank_of(one.path, rank), str(error).removeprefix(f"{one.path}: "))
        if one.truncated:
            found.truncated.append(one.path)
    opened.require(any_part=bool(found.parts), may_be_empty=may_be_empty)
    return found


def _measured(
    analyzer: Analyzer[O, P, R], one: _Opened, options: O
) -> tuple[list[P], list[tuple[int | None, MissingData]]]:
    """The parts of one input's ranks, and what the others lack.

    What is taken of all ranks lies in memory at once, but then the trace is gone.
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
    """What to call one rank of a file."""
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
    seen: Callable[[Trace], None] | None = None


@dataclass
class _Opened:
    """One input: its traces by rank; whoever looks at them takes them out of the list."""

    path: str
    is_file: bool
    truncated: bool
    traces: list[Trace]


class _Inputs:
    """The inputs, opened one after another.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces opened, by path.
        skipped: what could not be read, or lacks what is needed.
        read: paths of the files that had traces of the ranks asked for, in order.
    """

    def __init__(self, inputs: Inputs, needs: Needs | None, how: _How, *, split: bool = True):
        self.items = each(inputs)
        self.metas: dict[str, Meta] = {}
        self.skipped: list[Skipped] = []
        self.read: dict[str, None] = {}
        self._starts: set[Start] = set()
        self._series = ranks_of_series([item for item in self.items if isinstance(item, str)])
        self._needs, self._how, self._split = needs, how, split
        self._failed: InputError | MissingData | None = None
        self._ranks: set[int | None] = set()
        if how.assume_rank is not None and len(self.items) > 1:
            raise OptionError(
                f"--assume-rank is for one file that has no rank; {len(self.items)} are given"
            )

    def __iter__(self) -> Iterator[_Opened]:
        for item in self.items:
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
        """One input, read as needed, with the traces of the ranks that are asked for."""
        how = self._how
        if isinstance(item, Trace):
            trace = _cut(item, how) if self._needs else _cut_but_snapshots(item, how)
        elif self._needs:
            needs = replace_needs or self._needs
            once = replace(how, progress=None, seen=None) if replace_needs else how
            trace = _lightened(_read_needed(item, needs, once), needs)
        else:
            trace = _cut_but_snapshots(_read(item, how), how)
        if how.assume_rank is not None:
            trace = with_assumed_rank(trace, how.assume_rank)
        trace = self._once(trace)
        path, truncated = trace.meta.path, is_cut_off(trace)
        self.metas |= {meta.path: meta for meta in trace.sources}
        if not self._split and how.rank is None:
            return _Opened(path, isinstance(item, str), truncated, [trace])
        sources, held = trace.sources, [trace]
        del trace
        traces = ranks.apart(held)
        # a rank may have no event of the kinds that were read
        self._ranks |= {one.meta.rank for one in traces} | {meta.rank for meta in sources}
        chosen = [one for one in traces if how.rank in (None, one.meta.rank)]
        if not chosen:
            chosen = _without_events(traces[0], [m for m in sources if m.rank == how.rank])
        return _Opened(path, isinstance(item, str), truncated, chosen)

    def _once(self, trace: Trace) -> Trace:
        """The trace with the rank of its series, without what another file holds too."""
        number = self._series.get(trace.meta.path)
        if number is not None and trace.meta.rank is None and trace.events["rank"].is_null().all():
            trace = trace.with_rank(number)
        trace = without_torch(trace, self._starts)
        self._starts |= starts_of(trace)
        return trace

    def fail(self, path: str, error: InputError | MissingData) -> None:
        """Remember an input of which nothing can be used."""
        self._failed = self._failed or error
        why = error.what if isinstance(error, InputError) else str(error)
        self.skip(path, why.removeprefix(f"{path}: "))

    def skip(self, path: str, why: str) -> None:
        """Remember what is left out."""
        self.skipped.append(Skipped(path, why))

    def require(self, *, any_part: bool, may_be_empty: bool = False) -> None:
        """Raise the reason why there is nothing, where there is nothing."""
        if any_part or (may_be_empty and not self._ranks):
            return
        if self._failed and not may_be_empty:
            raise self._failed
        raise _not_there(self._how.rank, self._ranks)


def _without_events(trace: Trace, sources: Sequence[Meta]) -> list[Trace]:
    """A rank of a file of which nothing that was read belongs to it, or to any rank.

    Whoever measures it says what was not recorded.
    """
    if sources:
        nothing = trace.select(pl.lit(value=False), pl.lit(value=False))
        return [replace(nothing, sources=tuple(sources[:1]))]
    return [trace] if trace.meta.rank is None and trace.events.is_empty() else []


def _not_there(rank: int | None, ranks_read: Collection[int | None]) -> OptionError:
    """The error for a rank that no input has; it lists the ranks there are."""
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
    beside = () if needs.samples else _OF_SAMPLES
    return _read(
        path,
        how,
        kinds=None if needs.everything else needs.kinds,
        names=needs.names,
        columns=needs.columns,
        unused=(*beside, "launch_configs", *needs.unused),
        windows=windows,
        since_ns=how.since_ns,
        until_ns=how.until_ns,
    )


def _read(path: PathLike, how: _How, **what: Any) -> Trace:
    """A file, read as it is asked for; ``seen`` is told."""
    trace = read(path, format=how.format, progress=how.progress, **what)
    if how.seen:
        how.seen(trace)
    return trace


def _cut(trace: Trace, how: _How) -> Trace:
    """The time window of a trace in memory, as it is read of a file."""
    return trace.between(how.since_ns, how.until_ns)


def _cut_but_snapshots(trace: Trace, how: _How) -> Trace:
    """The time window; of a snapshot the whole history counts."""
    return trace if trace.meta.format == MEMORY_SNAPSHOT else _cut(trace, how)


def _lightened(trace: Trace, needs: Needs) -> Trace:
    """The trace without what is not looked at, whichever parser made it."""
    types = trace.events.schema
    unused = [pl.lit(None, types[name]).alias(name) for name in needs.unused]
    events = trace.events.drop(() if needs.samples else _OF_SAMPLES).with_columns(unused)
    return replace(trace, events=events, launch_configs=trace.launch_configs.clear())


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
        """The result of all parts, which are freed.

        Raises:
            MissingData: there is none.
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
        found: Result = with_notes(result, notes)
        return found

    def _lacking(self) -> Iterable[Skipped]:
        """Files that lack what others of their format have, ranks what others of theirs have."""
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
    """The result of every analyzer that the files allow; one file is in memory at a time.

    Args:
        inputs: traces, files and folders, of any format, of one run.
        names: of the analyzers wanted, or None for all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: no input has the rank.
    """
    how = _How(**reading)
    wanted = [entry.name for entry in registry.in_report()]
    asked = _asked(name for name in wanted if names is None or name in names)
    opened = _Inputs(inputs, None, how)
    truncated = []
    for one in opened:
        truncated += [one.path] if one.truncated else []
        while one.traces:
            _ask_all(asked.values(), one.traces.pop(0), truncated=one.truncated)
    opened.require(any_part=bool(opened.read))
    beside = {name for question in asked.values() if (name := question.analyzer.beside)}
    collected = {name: [part for _, part in asked.pop(name).parts] for name in beside}
    reader = Reader(opened.items, opened.metas, how, collected)
    results: dict[str, Result] = {}
    missing: dict[str, str] = {}
    for name, question in asked.items():
        try:
            results[name] = question.result(reader)
        except MissingData as error:
            missing[name] = str(error)
    notes = (*truncated_notes(truncated), *skipped_notes(opened.skipped))
    return Examination(results, missing, notes, tuple(opened.read))


def _ask_all(questions: Iterable[_Asked], trace: Trace, *, truncated: bool) -> None:
    """Measure one rank with every analyzer; when this returns, the trace can be freed."""
    for question in questions:
        question.ask(trace, truncated=truncated)


def _asked(names: Iterable[str]) -> dict[str, _Asked]:
    """The analyzers with their default options, and those whose parts they need besides."""
    analyzers = [registry.ENTRIES[name].analyzer() for name in names]
    beside = [registry.ENTRIES[one.beside].analyzer() for one in analyzers if one.beside]
    return {one.name: _Asked(one, one.options()) for one in (*analyzers, *beside)}
