"""Run one analyzer on inputs, or all of them for ``diagnose`` and reports: measure, combine.

Each file is read once, and one is in memory at a time. Unreadable inputs are skipped if another one
can be read; truncated files are noted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Unpack

import polars as pl

from traceanalyzer import schema
from traceanalyzer.analyzers.base import (
    Analyzer,
    Examination,
    Needs,
    O,
    P,
    R,
    Reading,
    Skipped,
    Use,
)
from traceanalyzer.analyzers.common import jobs
from traceanalyzer.analyzers.registry import COMPANIONS, REPLAY
from traceanalyzer.errors import InputError, MalformedInput, MissingData, TraceAnalyzerError
from traceanalyzer.result import Result
from traceanalyzer.run import ranks
from traceanalyzer.run.find import each, require_readable
from traceanalyzer.run.measure import measure_all
from traceanalyzer.run.pieces import How, OpenedInputs, State, checked_how, read_needed
from traceanalyzer.run.questions import (
    FAILED,
    Question,
    Questions,
    perhaps_truncated,
    with_fitting_command,
)
from traceanalyzer.trace import Inputs, Meta, Trace
from traceanalyzer.units import format_first
from traceanalyzer.vocabulary import DATABASES, NCU_CSV, PRINTED_TEXT

_MIXED = "The files are of different jobs, so totals and shares mix them (see the notes)."
_NO_EVENTS = "the profiler was not active during the run, or the file is damaged; record again"
#: Arrows, which are only counted in reports, and columns of side tables that no rule uses.
_UNUSED_BY_RULES = ("flows", "block_x", "block_y", "block_z", "registers", "shared_memory")


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
    base = None if analyzer.base is None else getattr(options, analyzer.base)
    if hasattr(options, "window"):
        options = replace(options, window=(how.since_ns, how.until_ns))  # type: ignore[call-arg]
    if analyzer.whole_file:
        how = replace(how, since_ns=None, until_ns=None, is_window_of_analyzer=how.has_window)
    if base is not None:
        require_readable([inputs, base], **reading)
    opened, question = _collect(analyzer, inputs, options, how)
    others = [] if base is None else [_collect(analyzer, base, options, how)]
    states = [opened.state, *(other.state for other, _ in others)]
    summaries = opened.summaries | {k: v for other, _ in others for k, v in other.summaries.items()}
    reader = InputReader(opened.items, opened.state.metas, how, summaries=opened.summaries)
    try:
        with guarded(summaries):
            result = question.result(reader, [part for _, other in others for part in other.parts])
            if summaries:
                result.view()
    except MissingData as error:
        if first := next(iter(opened.state.metas.values()), None):
            error = with_fitting_command(error, first, analyzer.name, None)
        truncated = any(state.truncated for state in states)
        form = first.format if first else ""
        raise perhaps_truncated(error, truncated=truncated, form=form) from None
    notes = [*(n for state in states for n in notes_on(state)), *reader.notes]
    return with_notes(result, notes, opened.jobs)


def examine(
    inputs: Inputs,
    names: Collection[str] | None = None,
    *,
    use: Use = "page",
    options: Mapping[str, Any] | None = None,
    on_rank: Callable[[Trace], None] | None = None,
    **reading: Unpack[Reading],
) -> Examination:
    """Return the result of every analyzer that the files allow; one file is in memory at a time.

    Args:
        inputs: traces, files and folders, of any format, of one run.
        names: names of the analyzers, or None for all.
        use: ``page``, or ``findings``: measure only what the rules of ``diagnose`` use; the results
            are not displayed.
        options: of analyzers, by name; default: the defaults.
        on_rank: called with the trace of each rank, with all its tables, after it was measured.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: no input has the rank.
    """
    questions = Questions.of_all(use, names, options, on_rank)
    how = _how(reading, questions)
    opened = OpenedInputs(inputs, None, how)
    measure_all(opened, questions)
    state = opened.state
    opened.require(any_part=bool(state.read))
    if not state.any_rows:
        raise MissingData(f"{', '.join(state.read)}: no events were recorded; {_NO_EVENTS}")
    asked = dict(questions.asked)
    others = [name for name in COMPANIONS.values() if name in asked]
    collected = {name: [part for _, part in asked.pop(name).parts] for name in others}
    reader = InputReader(opened.items, state.metas, how, collected, opened.summaries)
    results: dict[str, Result] = {}
    missing: dict[str, str] = {}
    only = state.read[0] if len(state.read) == 1 else ""
    for name, question in asked.items():
        try:
            with guarded(opened.summaries):
                notes = skipped_notes(question.skipped())
                results[name] = with_notes(question.result(reader), notes)
                if opened.summaries and use == "page" and name != REPLAY:
                    results[name].view()
        except MissingData as error:
            missing[name] = str(error).removeprefix(f"{only}: ")
            if question.package and f"{question.package} {FAILED}" in missing[name]:
                warnings.warn(missing[name], stacklevel=2)
    return Examination(
        results,
        missing,
        (*notes_on(state), *dict.fromkeys(reader.notes)),
        tuple(state.read),
        jobs.several_jobs(questions.recordings),
        tuple(state.truncated),
        opened.summaries,
        results.pop(REPLAY, None),
    )


def _how(reading: Reading, questions: Questions) -> How:
    """Return how to read files for a report, or only for rules."""
    if questions.use == "page":
        return checked_how("report", reading, columns=schema.INPUTS, args_with_modules=True)
    if questions.on_rank is not None:  # its traces are kept
        return checked_how("report", reading, args_with_modules="lines")
    needed = (one.analyzer.needed(one.options).inputs_of for one in questions.asked.values())
    inputs_of = frozenset().union(*needed)
    more = {"unused": _UNUSED_BY_RULES, "columns": schema.INPUTS, "inputs_of": inputs_of}
    return checked_how("diagnose", reading, args_with_modules="lines", **more)


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
) -> tuple[OpenedInputs, list[P]]:
    """Return the inputs and the parts of all their ranks; raises the same errors as :func:`run`.

    Args:
        analyzer: the analyzer.
        inputs: see :func:`run`.
        options: of the analyzer.
        may_be_empty: do not raise an error if no input can be read.
        **reading: see :func:`run`.
    """
    how = How(**reading)
    opened, question = _collect(analyzer, inputs, options, how, may_be_empty=may_be_empty)
    return opened, [part for _, part in question.parts]


def with_notes(result: R, notes: Iterable[str], several_jobs: str = "") -> R:
    """Append notes to those of the result; what says that inputs are of several jobs limits all."""
    more = (*result.input_notes, *filter(None, [several_jobs]), *notes)
    warning = _MIXED if several_jobs else ""
    return replace(result, input_notes=more, input_warning=warning) if more else result


def skipped_notes(skipped: Iterable[Skipped]) -> tuple[str, ...]:
    """Return a note for each reason for which inputs are skipped."""
    paths: dict[str, list[str]] = {}
    for one in skipped:
        paths.setdefault(one.why, []).append(one.path)
    return tuple(f"Skipped: {format_first(each, 3)}: {why}." for why, each in paths.items())


def truncated_notes(
    paths: Iterable[str], metas: Mapping[str, Meta] = MappingProxyType({})
) -> tuple[str, ...]:
    """Return a note for each truncated input: text and databases have rows, traces have events."""

    def lost(path: str) -> str:
        form = metas[path].format if path in metas else ""
        if form in (PRINTED_TEXT, NCU_CSV):
            return "rows of its last table"
        return "rows of any of its tables" if form in DATABASES else "events at its end"

    return tuple(f"{path} is truncated: {lost(path)} are missing in all numbers." for path in paths)


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
        opened, question = _collect(analyzer, inputs, options, how)
        self.notes.extend(notes_on(opened.state))
        return [*done, *(part for _, part in question.parts)]

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


def notes_on(state: State) -> tuple[str, ...]:
    """Return a note for each truncated or skipped input, and for each pair that overlaps."""
    overlaps = state.repeats.notes.values()
    return (
        *truncated_notes(state.truncated, state.metas), *skipped_notes(state.skipped), *overlaps
    )  # fmt: skip


def _collect(
    analyzer: Analyzer[O, P, R], inputs: Inputs, options: O, how: How, *, may_be_empty: bool = False
) -> tuple[OpenedInputs, Question[O, P, R]]:
    opened = OpenedInputs(inputs, analyzer.needed(options), how, split=analyzer.split_ranks)
    opened.every_file |= analyzer.every_file
    questions = Questions.of_one(analyzer, options)
    measure_all(opened, questions)
    question = questions.asked[analyzer.name]
    opened.jobs = jobs.several_jobs(questions.recordings)
    if opened.jobs and analyzer.of_one_job == "only":
        raise MissingData(f"nothing can be replayed. {opened.jobs}")
    opened.require(any_part=bool(question.parts), may_be_empty=may_be_empty)
    return opened, question
