"""Add the results of summaries to those of other inputs.

A summary was measured by ``traceanalyzer summarize``, one input after another. It has one
:class:`State` per analysis, because each analysis reads its own kinds of events. Nothing but the
summary itself is opened: the paths in it are only names.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.errors import InputError, MalformedInput, MissingData, OptionError
from traceanalyzer.run.parts import AGAIN, Summary
from traceanalyzer.run.pieces import OpenedInputs, State
from traceanalyzer.run.questions import Questions
from traceanalyzer.run.read import Issues, report_read
from traceanalyzer.schema import CONTEXT_SUFFIX, MAX_RANKS, check, check_columns
from traceanalyzer.trace import Meta, Trace, in_spans
from traceanalyzer.units import format_ranges, natural

#: Missing inputs that are listed.
_NAMED = 64
#: Options for reading that need the events.
_NEED_EVENTS = {
    "format": "--input-format",
    "assume_rank": "--assume-rank",
    "since_ns": "--since",
    "until_ns": "--until",
}


def join_summaries(opened: OpenedInputs, questions: Questions, paths: Sequence[str]) -> None:
    """Add the results of summaries, in the order of the inputs that they were made from.

    Damaged summaries, and those of another version, are skipped and named; so is what is missing.

    Raises:
        OptionError: an option needs the events.
    """
    for name, flag in _NEED_EVENTS.items():
        if getattr(opened.how, name) is not None:
            raise OptionError(f"{flag} needs the traces; a summary has only measured parts")
    summaries: list[Summary] = []
    columns: dict[bytes, pl.Series] = {}
    for path in paths:
        try:
            summaries.append(Summary(path, columns))
        except InputError as error:
            opened.state.fail(path, error)
    incomplete = [*_incomplete(summaries, len(paths) - len(summaries))]
    summaries.sort(key=lambda one: (one.header.index, natural(one.header.path)), reverse=True)
    while summaries:
        one = summaries.pop()  # each needs more memory than its results
        try:
            _join(opened, questions, one)
        except InputError as error:
            opened.state.fail(one.path, error)
    for folder, why in incomplete:
        opened.state.skip(folder, why)


def _join(opened: OpenedInputs, questions: Questions, summary: Summary) -> None:
    """Add the results of one summary."""
    how = opened.how
    section = questions.section
    if section not in summary.sections:
        opened.state.fail(summary.path, MissingData(not_stored(section, summary.sections)))
        return
    state, skipped_later = summary.read(section, STORED)
    issues: Issues = summary.read(f"{section}/issues", Issues)
    for sources, of_file in issues:
        _require_schema(summary.path, sources, check_columns("issues", of_file))
    restored = questions.restored(summary)
    if any(opened.summaries.get(path, summary.path) != summary.path for path in state.metas):
        opened.state.skip(summary.path, f"another summary is of {summary.header.path} too")
        return
    opened.summaries |= dict.fromkeys(state.metas, summary.path)
    if not opened.every_file and (copied := opened.state.repeats.copied(state.repeats)):
        opened.state.skip(summary.header.path, f"it is a copy of {copied}")
        return
    if not opened.every_file and opened.state.repeats.repeated(state.repeats):
        raise MalformedInput(
            summary.path, "repeats the recording of another input", hint="pass the traces"
        )
    known = state.ranks | {meta.rank for meta in state.metas.values()}
    chosen = how.rank is None or known == {how.rank}
    if how.rank in known and not chosen:
        raise OptionError(
            f"--rank needs the trace of {summary.header.path}, which has several ranks"
        )
    state.ranks = known
    if opened.state.skipped:
        state.skipped = skipped_later
    if chosen:
        questions.join(restored)
    else:
        state.read.clear()
        if state.failed and state.failed.kind == "MissingData":
            state.failed, state.skipped = None, []
    opened.state.join(state)
    report_read([summary.header.bytes], issues, how.progress, how.on_trace)


def _require_schema(path: str, sources: tuple[Meta, ...], wrong: Sequence[str]) -> None:
    """Require tables of at least one file that do not violate the schema.

    Raises:
        MalformedInput: they do, or are of no file.
    """
    if wrong or not sources:
        why = wrong[0] if wrong else "no source"
        raise MalformedInput(path, f"tables violate the schema: {why}", hint=AGAIN)


def not_stored(section: str, stored: Sequence[str]) -> str:
    """Return the sentence about an analysis that a summary does not have.

    Args:
        section: its name and options, as on the command line.
        stored: the sections of the summary.
    """
    command, _, options = section.partition(" ")
    with_default = any(one.partition(" ")[0] == command for one in stored)
    what = f"{command} with {options}" if with_default and options else section
    return (
        f"the summaries do not have {what}; pass the traces, or add it: traceanalyzer summarize "
        f"TRACES -o FOLDER --analysis {section!r}"
    )


def _incomplete(summaries: Sequence[Summary], damaged: int) -> Iterator[tuple[str, str]]:
    """Return the folders in which summaries are missing, with the positions of their inputs."""
    indexes: dict[tuple[str, int], set[int]] = {}
    for one in summaries:
        key = (str(Path(one.path).parent), one.header.total)
        indexes.setdefault(key, set()).add(one.header.index)
    for (folder, total), present in indexes.items():
        missing = sorted({*range(min(total, MAX_RANKS))} - present)
        why = f"{len(missing):,} of {total:,} summaries are missing or damaged"
        where = f"inputs {format_ranges(missing[:_NAMED])}, counted from 0"
        # a complete folder of which some were chosen
        others = sum(one.name.endswith(".parquet") for one in Path(folder).iterdir())
        contexts = sum(one.name.endswith(CONTEXT_SUFFIX) for one in Path(folder).iterdir())
        if len(missing) > damaged and others - contexts < total:
            yield folder, f"{why} ({where}); run traceanalyzer summarize again"


# --- events around the waits -------------------------------------------------------------------

#: What opening an input found, and what is skipped of it if another input was skipped before.
STORED = tuple[State, list[Skipped]]
#: The windows that a context has, and the events in them.
CONTEXT = tuple[list[tuple[int, int]], Trace]


def context_path(path: str) -> str:
    """Return the path of the context that belongs to a summary."""
    return path.removesuffix(".parquet") + CONTEXT_SUFFIX


def stored_context(path: str, windows: Sequence[tuple[int, int]]) -> Trace:
    """Return the events of a summarized input in the windows.

    Args:
        path: its summary.
        windows: (start, end) on the clock of the input.

    Raises:
        InputError: the context cannot be read.
        MissingData: it does not have these windows.
    """
    place = context_path(path)
    if not Path(place).exists():
        raise MissingData("the summaries have no events of it; pass the traces")
    known, trace = Summary(place).read("context", CONTEXT)
    if not {*map(tuple, windows)} <= {*known}:
        raise MissingData("the summaries have its events of other times; pass the traces")
    _require_schema(place, trace.sources, check(trace.tables))
    return trace if {*map(tuple, windows)} == {*known} else trace.select(in_spans(windows))  # type: ignore[no-any-return]
