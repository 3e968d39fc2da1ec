"""Run one analyzer on inputs: take, measure, combine.

Each file is read once, and one is in memory at a time. Unreadable inputs are skipped if another one
can be read; truncated files are noted. ``examining.py`` runs all analyzers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self, Unpack

import polars as pl

from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import (
    Analyzer,
    Needs,
    O,
    P,
    R,
    Reading,
    Skipped,
    measured_text,
)
from traceanalyzer.errors import (
    InputError,
    MalformedInput,
    MissingData,
    TraceAnalyzerError,
)
from traceanalyzer.run import ranks
from traceanalyzer.run.find import each
from traceanalyzer.run.fitting_commands import not_for, with_fitting_command
from traceanalyzer.run.measure import measure_all
from traceanalyzer.run.pieces import (
    How,
    Measures,
    Opened,
    OpenedInputs,
    bytes_of,
    checked_how,
    read_needed,
)
from traceanalyzer.run.ranks import Repeats
from traceanalyzer.trace import Inputs, Meta, Trace
from traceanalyzer.vocabulary import NCU_CSV, PRINTED_TEXT

#: Formats whose tables may have any place in a file.
_DATABASES = ("nsys-sqlite", "rocpd")
#: Larger files are not read again to name the command that fits them.
_READ_AGAIN_BYTES = 1 << 26


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
    how = checked_how(analyzer.name, reading)
    options, base = _without_inputs(analyzer, options)
    if hasattr(options, "window"):
        options = replace(options, window=(how.since_ns, how.until_ns))  # type: ignore[call-arg]
    if analyzer.whole_file:
        how = replace(how, since_ns=None, until_ns=None, is_window_of_analyzer=how.has_window)
    collected = _collect(analyzer, inputs, options, how)
    other = None if base is None else _collect(analyzer, base, options, how)
    summaries = {**collected.summaries, **(other.summaries if other else {})}
    try:
        with guarded(summaries):
            result = analyzer.combine(collected.parts, options, other.parts if other else ())
    except MissingData as error:
        truncated = collected.truncated or (other.truncated if other else [])
        if first := next(iter(collected.metas.values()), None):
            error = with_fitting_command(error, first, analyzer.name, None)
        raise perhaps_truncated(error, truncated=bool(truncated)) from None
    reader = InputReader(collected.items, collected.metas, how, summaries=collected.summaries)
    with guarded(summaries):
        if analyzer.refine:
            result = analyzer.refine(result, options, reader)
        if summaries:
            result.view()
    return with_notes(result, [*collected.notes, *(other.notes if other else ()), *reader.notes])


@contextmanager
def guarded(summaries: Mapping[str, str]) -> Iterator[None]:
    """Turn the errors of an analysis of crafted parts into MalformedInput.

    The types of all values are known, but not which columns a table has.
    """
    try:
        yield
    except TraceAnalyzerError:
        raise
    except (Exception, pl.exceptions.PanicException) as error:
        if not summaries:
            raise
        reason = (str(error).splitlines() or [""])[0][:200]
        raise MalformedInput(
            str(Path(next(iter(summaries.values()))).parent),
            f"the parts of the summaries do not fit together ({type(error).__name__}: {reason})",
            hint="write them again with traceanalyzer summarize",
        ) from error


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
    return _collect(analyzer, inputs, options, How(**reading), may_be_empty=may_be_empty)


def with_notes(result: R, notes: Iterable[str]) -> R:
    """Append notes to those of the result."""
    more = tuple(notes)
    return replace(result, input_notes=(*result.input_notes, *more)) if more else result


def skipped_notes(skipped: Iterable[Skipped]) -> tuple[str, ...]:
    """Return a note for each skipped input."""
    return tuple(f"Skipped: {one.path}: {one.why}." for one in skipped)


def truncated_notes(
    paths: Iterable[str], metas: Mapping[str, Meta] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return a note for each truncated input: text and databases have rows, traces have events."""

    def lost(path: str) -> str:
        form = metas[path].format if path in metas else ""
        if form in (PRINTED_TEXT, NCU_CSV):
            return "rows of its last table"
        return "rows of any of its tables" if form in _DATABASES else "events at its end"

    return tuple(f"{path} is truncated: {lost(path)} are missing in all numbers." for path in paths)


def perhaps_truncated(error: MissingData, *, truncated: bool) -> MissingData:
    """Add the hint that the file is truncated: profilers write kernels last."""
    if not truncated:
        return error
    return MissingData(
        f"{error} (the file is truncated: the missing data may have been at its end)"
    )


@dataclass(frozen=True)
class InputReader:
    """Reads inputs again, for :attr:`Analyzer.refine`.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces read, by path.
        how: how files are read.
        collected: parts of other analyzers that were measured on the same inputs, by name.
        summaries: the summary of each summarized input, by the path of the input.
        notes: missing data in the inputs, one line each.
    """

    items: Sequence[Trace | str]
    metas: Mapping[str, Meta]
    how: How
    collected: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    summaries: Mapping[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def collect(self, analyzer: Analyzer[O, P, R], inputs: Inputs, options: O) -> list[P]:
        """Return parts of another analyzer: those already measured, and of further inputs."""
        done: list[P] = list(self.collected.get(analyzer.name, ()))
        if not each(inputs):
            return done
        how = How(progress=self.how.progress, on_trace=self.how.on_trace)
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
        how = How(self.how.format, read=self.how.read)
        left = {path: stretches for path, stretches in windows.items() if path not in known}
        again = []
        for path, stretches in left.items():
            if path in self.summaries:
                again += self._stored(path, stretches)
            elif path in self.items:
                again.append(read_needed(path, needs, how, stretches))
        return [*memory, *ranks.by_rank(again)]

    def _stored(self, path: str, windows: Sequence[tuple[int, int]]) -> list[Trace]:
        """Return the stored events of a summarized input in the windows; note if there are none."""
        from traceanalyzer.run.summaries import stored_context

        try:
            return [stored_context(self.summaries[path], windows)]
        except (InputError, MissingData) as error:
            self.notes.append(f"What {path} did while others waited is not known: {error}.")
            return []


@dataclass
class Collected(Generic[P]):
    """The parts of all inputs, with skipped and truncated inputs.

    Attributes:
        items: traces in memory and paths.
        metas: of the traces read, by path.
        parts: one per rank.
        skipped: inputs and ranks that are not part of the result.
        repeats: recordings that several files contain.
        summaries: the summary of each summarized input, by the path of the input.
        truncated: paths of truncated inputs.
    """

    items: Sequence[Trace | str]
    metas: Mapping[str, Meta]
    parts: list[P] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    repeats: Repeats = field(default_factory=Repeats)
    summaries: Mapping[str, str] = field(default_factory=dict)
    truncated: list[str] = field(default_factory=list)

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for each truncated or skipped input, and for each pair that overlaps."""
        overlaps = self.repeats.notes.values()
        return (
            *truncated_notes(self.truncated, self.metas),
            *skipped_notes(self.skipped),
            *overlaps,
        )


def _without_inputs(analyzer: Analyzer[O, P, R], options: O) -> tuple[O, Inputs | None]:
    """Return the options for ``measure``, and the inputs of the base run."""
    if analyzer.base is None:
        return options, None
    return replace(options, **{analyzer.base: None}), getattr(options, analyzer.base)


def _collect(
    analyzer: Analyzer[O, P, R],
    inputs: Inputs,
    options: O,
    how: How,
    *,
    may_be_empty: bool = False,
) -> Collected[P]:
    opened = OpenedInputs(inputs, analyzer.needs(options), how, split=analyzer.split_ranks)
    opened.every_file |= analyzer.every_file
    collected = Collected[P](
        opened.items,
        opened.metas,
        skipped=opened.skipped,
        repeats=opened.repeats,
        summaries=opened.summaries,
    )
    parts = _Parts(analyzer, options, collected)
    measure_all(opened, parts)
    opened.require(any_part=bool(collected.parts), may_be_empty=may_be_empty)
    return collected


def measures_of_one(analyzer: Analyzer[O, P, R], options: O) -> Measures:
    """Return what measures the parts of one analyzer, for summaries."""
    return _Parts(analyzer, _without_inputs(analyzer, options)[0], Collected[P]((), {}))


@dataclass
class _Parts(Generic[O, P, R]):
    """The parts of one analyzer; a :class:`Measures`."""

    analyzer: Analyzer[O, P, R]
    options: O
    collected: Collected[P]

    def measure(self, opened: OpenedInputs, one: Opened) -> None:
        analyzer, options = self.analyzer, self.options
        if one.first and (error := not_for(analyzer.name, one.first.meta)):
            opened.fail(one.path, error)
            return
        parts, lacking = _measured(analyzer, one, options)
        if analyzer.more and parts and (needs := analyzer.more(parts, options)) and one.is_file:
            again = opened.open(one.path, replace_needs=needs)
            parts, lacking = _measured(analyzer, again, options)
        if lacking and not parts:
            opened.fail(one.path, self._explained(lacking[0][1], opened, one))
            return
        self.collected.parts += parts
        for rank, error in lacking:
            opened.skip(rank_of(one.path, rank), str(error).removeprefix(f"{one.path}: "))
        if one.truncated:
            self.collected.truncated.append(one.path)

    def _explained(self, error: MissingData, opened: OpenedInputs, one: Opened) -> MissingData:
        """Add the command that fits the file to the error."""

        def read() -> Trace:
            return read_needed(
                one.path,
                Needs(frozenset(), everything=True),
                How(opened.how.format, read=opened.how.read),
            )

        # reading takes time; the message about the first file is enough
        small = one.is_file and not opened.skipped and bytes_of(one.path) <= _READ_AGAIN_BYTES
        meta = opened.metas[one.path]
        again = read if small else None
        return with_fitting_command(error, meta, self.analyzer.name, again, opened.folder)

    def empty(self) -> Self:
        return replace(self, collected=Collected[P]((), {}))

    def join(self, other: Self) -> None:
        self.collected.parts += other.collected.parts
        self.collected.truncated += other.collected.truncated

    @property
    def section(self) -> str:
        entry = registry.ENTRIES.get(self.analyzer.name)  # none for one of another package
        command = entry.command if entry else self.analyzer.name.replace("_", "-")
        return " ".join(filter(None, (command, measured_text(self.options))))

    @property
    def is_slow(self) -> bool:
        return self.analyzer.slow

    def store(self, add: Callable[[str, Any, Any], None]) -> None:
        values = (self.collected.parts, self.collected.truncated)
        add(f"{self.section}/parts", values, self._kind)

    def restored(self, summary: Any) -> Self:
        parts, truncated = summary.read(f"{self.section}/parts", self._kind)
        empty = self.empty()
        empty.collected.parts += parts
        empty.collected.truncated += truncated
        return empty

    @property
    def _kind(self) -> Any:
        from traceanalyzer.run.summaries import part_type

        return tuple[list[part_type(self.analyzer.measure)], list[str]]  # type: ignore[misc]


def _measured(
    analyzer: Analyzer[O, P, R], one: Opened, options: O
) -> tuple[list[P], list[tuple[int | None, MissingData]]]:
    """Return the parts of the ranks of one input, and errors of ranks without the data.

    A rank is measured when its trace has been freed, before the next one is taken.
    """
    lacking: list[tuple[int | None, MissingData]] = []

    def attempt(function: Callable[[Any, O], Any], what: Any, rank: int | None) -> list[Any]:
        try:
            return [function(what, options)]
        except MissingData as error:
            lacking.append((rank, perhaps_truncated(error, truncated=one.truncated)))
            return []

    parts: list[P] = []
    for trace in one:
        rank = trace.meta.rank
        taken = attempt(analyzer.take or analyzer.measure, trace, rank)
        del trace
        if analyzer.take is None:
            parts += taken
        elif taken:
            parts += attempt(analyzer.measure, taken.pop(), rank)
    return parts, lacking


def rank_of(path: str, rank: int | None) -> str:
    """Name one rank of a file."""
    return path if rank is None else f"{path}, rank {rank}"
