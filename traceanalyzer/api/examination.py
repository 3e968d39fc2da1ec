"""All questions asked of all files at once, each file read once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

from traceanalyzer.analyzers.comm_outliers import CommOutliers, with_memory
from traceanalyzer.analyzers.memory import fills
from traceanalyzer.analyzers.ranks import of_rank
from traceanalyzer.api.communication import with_late_ranks
from traceanalyzer.api.gathering import (
    Reading,
    Skipped,
    cut,
    perhaps_cut_off,
    rank_of,
    skipped_notes,
)
from traceanalyzer.api.questions import QUESTIONS, SNAPSHOT, Question
from traceanalyzer.api.reading import Inputs, each, read
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.result import Result
from traceanalyzer.trace import Meta, Trace, is_cut_off

if TYPE_CHECKING:
    from traceanalyzer.analyzers.memory import Fill


@dataclass(frozen=True)
class Examination:
    """The answers to questions.

    Attributes:
        answers: by the name of the analysis, those that there are; in the order of a report.
        missing: why the others have none.
        commands: what asks each question on the command line.
        skipped: files that could not be read, and why.
        files: how many could.
    """

    answers: Mapping[str, Result]
    missing: Mapping[str, str]
    commands: Mapping[str, str]
    skipped: tuple[Skipped, ...]
    files: int


@dataclass
class _Gathered:
    """What files contribute to one question."""

    question: Question
    parts: list[tuple[Meta, Any]] = field(default_factory=list)
    lacking: list[tuple[Meta, str]] = field(default_factory=list)

    def chosen(self) -> list[Any]:
        """The parts that count: steps of a snapshot are those of a trace, seen once more."""
        timed = [part for meta, part in self.parts if meta.format != SNAPSHOT]
        return timed if timed and self.question.timed else [part for _, part in self.parts]

    def notes(self) -> tuple[str, ...]:
        """Files that lack what others of their format have, ranks what others of theirs have."""
        formats = {meta.format for meta, _ in self.parts}
        paths = {meta.path for meta, _ in self.parts}
        found = [
            Skipped(rank_of(m.path, m.rank) if m.path in paths else m.path, why)
            for m, why in self.lacking
            if m.format in formats
        ]
        return skipped_notes(dict.fromkeys(found))


def examine(
    inputs: Inputs, analyses: Collection[str] | None = None, **reading: Unpack[Reading]
) -> Examination:
    """Whatever can be told of the files; one of them is in memory at a time.

    Args:
        inputs: traces, files and folders, of any format, of one run.
        analyses: the names of those that are asked for, or None for all.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: no input is of the rank that is asked for.
    """
    items = each(inputs)
    asked = [q for q in QUESTIONS if analyses is None or q.name in analyses]
    gathered = [_Gathered(question) for question in asked]
    held: list[Fill] = []
    metas: dict[str, Meta] = {}
    skipped: list[Skipped] = []
    failed: InputError | None = None
    for item in items:
        try:
            held.extend(_looked_at(item, gathered, metas, reading, alone=len(items) == 1))
        except InputError as error:
            failed = failed or error
            skipped.append(Skipped(error.path, error.what))
    if failed and not metas:
        raise failed
    if not metas:
        raise OptionError(f"no input is of rank {reading.get('rank')}")
    answers, missing = _answered(gathered)
    found = answers.get("comm_outliers")
    if isinstance(found, CommOutliers):
        told = with_late_ranks(found, items, reading)
        answers["comm_outliers"] = with_memory(told, metas, held) if held else told
    commands = {question.name: question.command for question in asked}
    return Examination(answers, missing, commands, tuple(skipped), len(metas))


def _looked_at(
    item: Trace | str,
    gathered: Sequence[_Gathered],
    metas: dict[str, Meta],
    reading: Reading,
    *,
    alone: bool,
) -> list[Fill]:
    """Asks all questions of one input, which is forgotten then; gives how full its devices were."""
    traces = [_cut(item if isinstance(item, Trace) else _read(item, reading), reading)]
    ranks = of_rank(traces, reading.get("rank"), alone=alone)
    full: list[Fill] = []
    while ranks:
        own = ranks.pop(0)
        metas |= {meta.path: meta for meta in own.sources}
        full += _fills(own)
        _ask(own, gathered)
    return full


def _read(path: str, reading: Reading) -> Trace:
    trace = read(path, format=reading.get("format"), progress=reading.get("progress"))
    if seen := reading.get("seen"):
        seen(trace)
    return trace


def _cut(trace: Trace, reading: Reading) -> Trace:
    """The stretch that is asked for; what memory holds depends on its whole history."""
    return trace if trace.meta.format == SNAPSHOT else cut(trace, reading)


def _ask(trace: Trace, gathered: Sequence[_Gathered]) -> None:
    for into in gathered:
        try:
            into.parts.append((trace.meta, into.question.extract(trace)))
        except MissingData as error:
            why = str(perhaps_cut_off(error, is_cut=is_cut_off(trace)))
            into.lacking.append((trace.meta, why.removeprefix(f"{trace.meta.path}: ")))


def _answered(gathered: Sequence[_Gathered]) -> tuple[dict[str, Result], dict[str, str]]:
    answers: dict[str, Result] = {}
    missing: dict[str, str] = {}
    for own in gathered:
        name = own.question.name
        missing[name] = next((why for _, why in own.lacking), "nothing was recorded")
        if own.parts:
            try:
                answers[name] = own.question.combine(own.chosen(), own.notes())
                del missing[name]
            except MissingData as error:
                missing[name] = str(error)
            own.parts.clear()
    return answers, missing


def _fills(trace: Trace) -> list[Fill]:
    try:
        return fills(trace)
    except MissingData:
        return []
