"""Run all analyzers on inputs, for ``diagnose`` and reports; each file is read once.

Inputs are opened, skipped and noted as in ``run.py``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, Unpack

from traceanalyzer import schema
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Analyzer, Examination, Reading, Skipped
from traceanalyzer.analyzers.common import jobs
from traceanalyzer.analyzers.registry import REPLAY
from traceanalyzer.errors import MissingData, OptionError, TraceAnalyzerError
from traceanalyzer.result import Result
from traceanalyzer.run.fitting_commands import not_for, not_for_reports
from traceanalyzer.run.loop import (
    InputReader,
    guarded,
    perhaps_truncated,
    rank_of,
    skipped_notes,
    truncated_notes,
    with_notes,
)
from traceanalyzer.run.measure import measure_all
from traceanalyzer.run.pieces import How, Measures, Opened, OpenedInputs, checked_how
from traceanalyzer.trace import Inputs, Meta, Trace
from traceanalyzer.vocabulary import PRINTED_TEXT

_ONLY_TEXT = "printed text has no timeline"
_NO_EVENTS = "check that the profiler was active while the program ran, and record again"


#: Of an analyzer of another package that raises an error.
_FAILED = "failed"


@dataclass
class _Asked:
    """The parts of one analyzer in an examination."""

    analyzer: Analyzer[Any, Any, Any]
    options: Any
    for_rules: bool
    package: str = ""
    parts: list[tuple[Meta, Any]] = field(default_factory=list)
    lacking: list[tuple[Meta, str]] = field(default_factory=list)

    @property
    def measure(self) -> Callable[[Any, Any], Any]:
        """The function that measures one rank; it may differ from that of the command."""
        measure = self.analyzer.report_measure or self.analyzer.measure
        return (self.analyzer.rules_measure if self.for_rules else None) or measure

    def ask(self, trace: Trace, *, truncated: bool) -> None:
        """Measure one rank."""
        measure = self.measure
        if measure is self.analyzer.measure:
            measure = self.analyzer.part
        try:
            with self._shielded():
                self.parts.append((trace.meta, measure(trace, self.options)))
        except MissingData as error:
            why = str(perhaps_truncated(error, truncated=truncated))
            self.lacking.append((trace.meta, why.removeprefix(f"{trace.meta.path}: ")))

    def result(self, reader: InputReader) -> Result:
        """Return the result of all parts, and free them.

        Raises:
            MissingData: there are no parts.
        """
        if not self.parts:
            raise MissingData(self.lacking[0][1] if self.lacking else _ONLY_TEXT)
        parts, others = [part for _, part in self.parts], list[Skipped]()
        if self.analyzer.report_parts:
            parts, others = self.analyzer.report_parts(self.parts)
        notes = skipped_notes([*self._lacking(), *others])
        self.parts.clear()
        with self._shielded():
            result = self.analyzer.combine(parts, self.options, ())
            if self.analyzer.refine:
                result = self.analyzer.refine(result, self.options, reader)
            noted: Result = with_notes(result, notes)
            if self.package:
                noted.to_dict(), noted.charts
        return noted

    @contextmanager
    def _shielded(self) -> Iterator[None]:
        """Turn an error in an analyzer of another package into missing data."""
        try:
            yield
        except TraceAnalyzerError:
            raise
        except Exception as error:
            if not self.package:
                raise
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            place = f"{self.analyzer.name} of {self.package}"
            raise MissingData(f"{place} {_FAILED}: {text}") from None

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
    inputs: Inputs,
    names: Collection[str] | None = None,
    *,
    for_rules: bool = False,
    on_rank: Callable[[Trace], None] | None = None,
    **reading: Unpack[Reading],
) -> Examination:
    """Return the result of every analyzer that the files allow; one file is in memory at a time.

    Args:
        inputs: traces, files and folders, of any format, of one run.
        names: names of the analyzers, or None for all.
        for_rules: measure only what the rules of ``diagnose`` use; the results are not displayed.
        on_rank: called with the trace of each rank, with all its tables, after it was measured.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: no input has the rank.
    """
    wanted = [*(entry.name for entry in registry.in_report()), REPLAY]
    chosen = [name for name in wanted if names is None or name in names]
    asked = _asked(chosen, for_rules=for_rules)
    how = _how(reading, asked.values(), for_rules=for_rules, traces_are_kept=on_rank is not None)
    opened = OpenedInputs(inputs, None, how)
    questions = _Questions(asked, for_rules, on_rank)
    measure_all(opened, questions)
    opened.require(any_part=bool(opened.read))
    if not opened.any_rows:
        raise MissingData(f"{', '.join(opened.read)}: no events were recorded; {_NO_EVENTS}")
    companions = {name for question in asked.values() if (name := question.analyzer.companion)}
    collected = {name: [part for _, part in asked.pop(name).parts] for name in companions}
    reader = InputReader(opened.items, opened.metas, how, collected, opened.summaries)
    results: dict[str, Result] = {}
    missing: dict[str, str] = {}
    only = next(iter(opened.read)) if len(opened.read) == 1 else ""
    for name, question in asked.items():
        try:
            with guarded(opened.summaries):
                results[name] = question.result(reader)
                if opened.summaries and not for_rules and name != REPLAY:
                    results[name].view()
        except MissingData as error:
            missing[name] = str(error).removeprefix(f"{only}: ")
            if question.package and f"{question.package} {_FAILED}" in missing[name]:
                warnings.warn(missing[name], stacklevel=2)
    overlaps = opened.repeats.notes.values()
    lost = truncated_notes(questions.truncated, opened.metas)
    notes = (*lost, *skipped_notes(opened.skipped), *overlaps, *dict.fromkeys(reader.notes))
    several = jobs.several_jobs(questions.recordings)
    truncated = tuple(questions.truncated)
    files = tuple(opened.read)
    replay = results.pop(REPLAY, None)
    return Examination(results, missing, notes, files, several, truncated, opened.summaries, replay)


def measures_of_all(*, for_rules: bool) -> Measures:
    """Return what measures the parts of ``diagnose`` or of a report, for summaries."""
    names = [*(entry.name for entry in registry.in_report() if not entry.package), REPLAY]
    return _Questions(_asked(names, for_rules=for_rules), for_rules)


def _how(
    reading: Reading, asked: Iterable[_Asked], *, for_rules: bool, traces_are_kept: bool
) -> How:
    """Return how to read files for a report, or only for rules."""
    if not for_rules:
        return checked_how("report", reading, columns=schema.INPUTS, args_with_modules=True)
    if traces_are_kept:
        return checked_how("report", reading)
    needed = (one.analyzer.needs(one.options).inputs_of for one in asked)
    inputs_of = frozenset().union(*needed)
    more = {"unused": _UNUSED_BY_RULES, "columns": schema.INPUTS, "inputs_of": inputs_of}
    return checked_how("diagnose", reading, **more)


#: Arrows, which are only counted in reports, and columns of side tables that no rule uses.
_UNUSED_BY_RULES = ("flows", "block_x", "block_y", "block_z", "registers", "shared_memory")


@dataclass
class _Questions:
    """The parts of all analyzers, by name, and the truncated files; a :class:`Measures`."""

    asked: dict[str, _Asked]
    for_rules: bool
    on_rank: Callable[[Trace], None] | None = None
    truncated: list[str] = field(default_factory=list)
    recordings: list[jobs.Recording] = field(default_factory=list)

    def measure(self, opened: OpenedInputs, one: Opened) -> None:
        if one.first and (error := not_for_reports(one.first.meta, opened.folder)):
            opened.read.pop(one.path, None)
            opened.fail(one.path, error)
            return
        self.truncated += [one.path] if one.truncated else []
        for trace in one:
            if opened.several and trace.meta.format != PRINTED_TEXT:
                self.recordings.append(jobs.recording(trace))
            self._ask_all(trace, truncated=one.truncated)
            del trace

    def _ask_all(self, trace: Trace, *, truncated: bool) -> None:
        """Measure one rank with every analyzer; when this returns, the trace can be freed."""
        for question in sorted(
            self.asked.values(), key=lambda one: one.analyzer.name not in _FIRST
        ):
            if not not_for(question.analyzer.name, trace.meta):
                question.ask(trace, truncated=truncated)
        if self.on_rank:
            self.on_rank(trace)

    def empty(self) -> Self:
        asked = self.asked.items()
        return replace(
            self,
            asked={name: replace(one, parts=[], lacking=[]) for name, one in asked},
            truncated=[],
            recordings=[],
        )

    def join(self, other: Self) -> None:
        for name, question in other.asked.items():
            self.asked[name].parts += question.parts
            self.asked[name].lacking += question.lacking
        self.truncated += other.truncated
        self.recordings += other.recordings

    @property
    def section(self) -> str:
        return "diagnose" if self.for_rules else "report"

    @property
    def is_slow(self) -> bool:
        return True

    def _place(self, name: str) -> str:
        """Return where the parts of an analyzer are in a summary: programs are stored once."""
        return f"{'diagnose' if name == REPLAY else self.section}/{name}"

    def store(self, add: Callable[[str, Any, Any], None]) -> None:
        add(f"{self.section}/files", (self.truncated, self.recordings), _FILES)
        for name, question in self.asked.items():
            if self._place(name).startswith(f"{self.section}/"):
                values = (question.parts, question.lacking)
                add(self._place(name), values, _kind_of(question))

    def restored(self, summary: Any) -> Self:
        if self.on_rank:
            raise OptionError(f"{summary.path}: a summary has no events; pass the traces")
        empty = self.empty()
        empty.truncated, empty.recordings = summary.read(f"{self.section}/files", _FILES)
        for name, question in empty.asked.items():
            if question.package:
                meta = Meta(summary.header.path, summary.header.format or "")
                question.lacking.append((meta, "the summaries do not have it; pass the traces"))
                continue
            values = summary.read(self._place(name), _kind_of(question))
            question.parts, question.lacking = values
        return empty


#: Analyses with much temporary data come before those that cache data for others.
_FIRST = ("gpu_idle", "launches")
_FILES = tuple[list[str], list[jobs.Recording]]


def _kind_of(question: _Asked) -> Any:
    """Return the type of the parts of an analyzer, and of the reasons why there are none."""
    from traceanalyzer.run.summaries import part_type

    part = part_type(question.measure)
    return tuple[list[tuple[Meta, part]], list[tuple[Meta, str]]]  # type: ignore[valid-type]


def _asked(names: Iterable[str], *, for_rules: bool) -> dict[str, _Asked]:
    """Return the analyzers with their options, and those that they need parts of."""
    entries = [registry.entry(name) for name in names]
    companions = [one.companion for entry in entries if (one := entry.analyzer()).companion]
    asked = {}
    for entry in (*entries, *(registry.ENTRIES[name] for name in companions)):
        one = entry.analyzer()
        options = one.report_options or one.options()
        asked[one.name] = _Asked(one, options, for_rules, entry.package)
    return asked
