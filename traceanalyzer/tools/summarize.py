"""Write summaries: the measured parts of each input, which every command accepts in its place.

Each input is measured alone, so that the ranks of a run can be summarized by many processes that do
not know each other. The process that completes a folder reads once more the events around the waits
for stragglers, which are known only when all ranks are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from traceanalyzer import __version__, schema
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Needs, Skipped
from traceanalyzer.analyzers.common.launching import Beginning, read_launched_before
from traceanalyzer.errors import (
    InputError,
    MalformedInput,
    MissingData,
    OptionError,
    OutputError,
    TraceAnalyzerError,
    UnreadableFile,
)
from traceanalyzer.machine import give_back
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.run.baselines import PARTS_SCHEMA
from traceanalyzer.run.find import InputList, each, is_summary
from traceanalyzer.run.loop import InputReader
from traceanalyzer.run.parts import Header, Summary, Writer
from traceanalyzer.run.pieces import DependsOnOthersError, How, OpenedInputs, State, read_needed
from traceanalyzer.run.questions import Questions
from traceanalyzer.run.read import Issues, read, report_read
from traceanalyzer.run.summaries import context_path
from traceanalyzer.schema import INPUTS
from traceanalyzer.trace import Inputs, PathLike, Trace, in_spans
from traceanalyzer.units import format_count

#: Analyses that no summary has: they compare two inputs of one call.
_WITHOUT = ("memory_diff", "what_if_replay")
_STEM = re.compile(r"[^A-Za-z0-9._-]+")
_STEM_CHARS = 80


@dataclass(frozen=True)
class Summarized:
    """What :func:`summarize` did.

    Attributes:
        written: paths of the summaries written.
        kept: paths of the summaries that were already there, of unchanged inputs.
        skipped: inputs that cannot be read, with the reason; their summaries say so.
        missing: number of inputs of the run without a summary in the folder.
        contexts: paths of the events around waits, written when no summary is missing.
    """

    written: tuple[str, ...]
    kept: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    missing: int
    contexts: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One sentence."""
        text = f"{format_count(len(self.written), 'file')} summarized"
        if self.kept:
            text += f", {len(self.kept):,} kept (the files did not change)"
        return (
            f"{text}; {self.missing:,} more of the run are missing." if self.missing else f"{text}."
        )


def summarize(
    sources: Inputs,
    output: PathLike,
    *,
    shard: tuple[int, int] = (0, 1),
    analyses: Sequence[tuple[str, Any]] = (),
    force: bool = False,
    workers: int | Literal["auto"] = 1,
    progress: Progress | None = None,
    on_trace: Callable[[Trace], None] | None = None,
) -> Summarized:
    """Write a summary of each input, with the parts that all analyses combine.

    Every function accepts the folder in place of the inputs, with the same result, for default
    options and for those that ``measure`` does not depend on. Several processes may write to one
    folder; summaries of unchanged inputs are kept.

    Args:
        sources: files and folders of one run; all processes get the same ones.
        output: the folder of the summaries; it is created.
        shard: (i, n): summarize every n-th input from number i on, counted from 0.
        analyses: more analyses to measure: (name of the function, its options by name).
        force: write the summaries of unchanged inputs again.
        workers: number of processes that read several files at once; ``auto``: one per core.
        progress: callback with (bytes read, total bytes) of each file.
        on_trace: callback with the trace of each file, for its ``issues``.

    Raises:
        InputError: none of the inputs of this shard can be read.
        OptionError: the shard is invalid, or an input is a trace in memory or a summary.
        OutputError: a summary cannot be written.
    """
    number, shards = shard
    if not 0 <= number < shards:
        raise OptionError(f"shard {number}/{shards} does not exist; use 0/{shards} and higher")
    paths = _paths(each(sources))
    folder = _created(os.fspath(output))
    every = [_Task(path, i, paths, _target(folder, path)) for i, path in enumerate(paths)]
    given = tuple((name, _options(name, options)) for name, options in analyses)
    tasks = [replace(one, analyses=given) for one in every[number::shards]]
    kept = [] if force else [one for one in tasks if one.is_done()]
    left = [one for one in tasks if one not in kept]
    skipped: list[Skipped] = []
    errors: list[InputError] = []
    for task, error, issues in _each_written(left, workers):
        if error:
            skipped.append(Skipped(task.path, error.what))
            errors.append(error)
        report_read([task.header.bytes], issues, progress, on_trace)
    if errors and len(errors) == len(tasks):
        raise errors[0]
    missing = sum(not Path(one.target).exists() for one in every)
    contexts = [] if missing else _write_contexts(every, force=bool(left))
    done = tuple(one.target for one in left)
    return Summarized(
        done, tuple(one.target for one in kept), tuple(skipped), missing, tuple(contexts)
    )


def _paths(items: Sequence[Trace | str]) -> list[str]:
    """Return the paths of the inputs.

    Raises:
        OptionError: an input is a trace in memory, or all are summaries.
    """
    for item in items:
        if isinstance(item, Trace):
            raise OptionError("summarize needs files; this is a trace in memory")
    # the output folder may be inside the input folder
    paths = [str(item) for item in items if not is_summary(str(item))]
    if not paths:
        raise OptionError("all inputs are summaries already; pass the traces")
    return paths


def _options(name: str, options: Any) -> Any:
    """Return the options of an analysis, given as an object or by name."""
    if name not in registry.ENTRIES:
        raise OptionError(f"unknown analysis {name!r}")
    known = registry.ENTRIES[name].options_class()
    return known(**options) if isinstance(options, Mapping) else options


def _created(folder: str) -> str:
    """Create the folder of the summaries.

    Raises:
        OutputError: it cannot be created.
    """
    try:
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - the name is kept as it was given
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written: {error.strerror}") from None
    return folder


def _target(folder: str, path: str) -> str:
    """Return the path of the summary of an input: names of inputs never leave the folder."""
    stem = _STEM.sub("_", Path(path).name).strip(".")[:_STEM_CHARS]
    return str(Path(folder, f"{stem}-{sha256(path.encode()).hexdigest()[:12]}.parquet"))


# --- one input -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """One input to summarize.

    Attributes:
        path: the input.
        index: its position among all inputs.
        paths: all inputs.
        target: path of its summary.
        analyses: analyses with other options than the default.
    """

    path: str
    index: int
    paths: Sequence[str] = field(repr=False)
    target: str = ""
    analyses: tuple[tuple[str, Any], ...] = ()

    @property
    def header(self) -> Header:
        """The header of its summary."""
        try:
            known = os.stat(self.path)  # noqa: PTH116 - the name is kept as it was given
            size, changed = known.st_size, known.st_mtime_ns
        except OSError:
            size = changed = 0
        return Header(
            PARTS_SCHEMA, __version__, self.path, None, size, changed, self.index, len(self.paths)
        )

    def is_done(self) -> bool:
        """Whether there is a summary of the unchanged input with all analyses."""
        try:
            summary = Summary(self.target)
            sections = summary.sections
        except InputError:
            return False
        wanted = {one.section for one, _ in _measured(self.analyses)}
        return replace(summary.header, format=None) == self.header and wanted <= {*sections}


def _measured(analyses: Sequence[tuple[str, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield what measures the parts of each section, and its analyzer if there is only one."""
    ours = [entry.name for entry in registry.in_report() if not entry.package]
    names = [*ours, registry.REPLAY]
    yield Questions.of_all("findings", names), None
    yield Questions.of_all("page", names), None
    names = [name for name in registry.ENTRIES if name not in _WITHOUT]
    sections = set()
    for name, options in [*((name, None) for name in names), *analyses]:
        analyzer = registry.ENTRIES[name].analyzer()
        one = Questions.of_one(analyzer, options or analyzer.options())
        if one.section not in sections:
            sections.add(one.section)
            yield one, analyzer


def _written(task: _Task, error: InputError | None = None) -> tuple[InputError | None, Issues]:
    """Write the summary of one input; return why it cannot be read, and its issues.

    With ``error``, why it cannot be read is known, and it is not read.
    """
    writer, reading = Writer(), _ReadOnce(error)
    issues: Issues = []
    for questions, analyzer in _measured(task.analyses):
        stored, answered, failed = _section(task, questions, analyzer, reading)
        writer.add(questions.section, stored)
        writer.add(f"{questions.section}/issues", reading.issues)
        answered.store(writer.add)
        error, issues = error or failed, issues or reading.issues
    known = None if reading.trace is None else reading.trace.meta.format
    writer.write(task.target, replace(task.header, format=known))
    return error, issues


def _section(
    task: _Task, questions: Questions, analyzer: Any, reading: _ReadOnce
) -> tuple[tuple[State, list[Skipped]], Questions, InputError | None]:
    """Measure one input for one section; return what is stored of it, and why it failed."""
    needs = None if analyzer is None else analyzer.needed(questions.asked[analyzer.name].options)
    unused = ("flows",) if questions.use == "findings" else ()
    split = analyzer is None or analyzer.split_ranks
    how = How(read=reading, unused=unused, columns=() if analyzer else INPUTS)
    whole = OpenedInputs(InputList(task.paths), needs, how, split=split)
    whole.every_file |= analyzer is not None and analyzer.every_file
    opened, result = whole.of([task.path]), questions.empty()
    failed = _measure(opened, result)
    state = opened.state
    skipped_later = state.skipped
    if state.failed and state.failed.kind == "MissingData":
        # later inputs are not searched for the command that fits them
        again = whole.of([task.path])
        again.state.skip("", "")
        _measure(again, questions.empty())
        skipped_later = again.state.skipped[1:]
    if analyzer is not None and analyzer.refine:
        reader = InputReader(opened.items, state.metas, how)
        parts = result.asked[analyzer.name].parts
        parts[:] = [(meta, _with_launched_before(part, reader)) for meta, part in parts]
    return (state, skipped_later), result, failed


def _measure(opened: OpenedInputs, questions: Questions) -> InputError | None:
    """Measure one input; return why it cannot be read."""
    try:
        for one in opened:
            if one.first and one.first.aggregates.height:
                why = "printed text has no timeline to summarize"
                opened.state.fail(
                    one.path, MalformedInput(one.path, why, hint="pass the file itself")
                )
            else:
                questions.measure(opened, one)
    except DependsOnOthersError:
        path = str(opened.items[0])
        why = "Composer's file repeats the events of PyTorch's file, which no summary can remove"
        opened.state.fail(path, MalformedInput(path, why, hint="pass the traces"))
    failed = opened.state.failed
    error = failed.error() if failed else None
    return error if isinstance(error, InputError) else None


def _with_launched_before(part: Any, reader: InputReader) -> Any:
    """Return a part with the time of work launched before the recording, instead of its place."""
    before = getattr(part, "before", None)
    if not isinstance(before, Beginning):
        return part
    return replace(part, before=read_launched_before([before], reader))


class _ReadOnce:
    """Reads a file once, and selects from it what each analysis needs.

    Attributes:
        trace: all events of the file, after it was read.
        issues: sources and issues of the file.
    """

    def __init__(self, error: InputError | None) -> None:
        self.trace: Trace | None = None
        self.issues: Issues = []
        self._error = error

    def __call__(
        self,
        path: str,
        *,
        kinds: Collection[str] | None = None,
        names: Sequence[str] = (),
        columns: Sequence[str] = (),
        windows: Sequence[tuple[int, int]] = (),
        progress: Progress | None = None,  # noqa: ARG002 - as read
        **what: Any,
    ) -> Trace:
        """Return the selected events of the file; see :func:`traceanalyzer.run.read.read`."""
        if self._error:
            raise self._error
        if not set(columns) <= set(INPUTS):
            return read(path, kinds=kinds, names=names, columns=columns, windows=windows, **what)
        try:
            whole = self.trace = self.trace or read(path, columns=INPUTS)
        except InputError as error:
            self._error = error
            raise
        self.issues = [(whole.sources, whole.issues)]
        selection = Selection(None if kinds is None else frozenset(kinds), tuple(names))
        unused = set(INPUTS) - set(columns)
        whole = replace(whole, events=whole.events.drop(unused, strict=False))
        return _selected(whole, selection, windows)


def _selected(trace: Trace, selection: Selection, windows: Sequence[tuple[int, int]]) -> Trace:
    """Return the events that a parser would have read."""
    rows = selection.rows()
    if windows:
        inside = in_spans(windows)
        rows = inside if rows is None else rows & inside
    if rows is None:
        return trace
    kinds = selection.kinds or frozenset()
    unread: dict[str, Any] = {
        table: schema.empty(table)
        for table, kind in (("flows", "flow"), ("counters", "counter"))
        if selection.kinds is not None and kind not in kinds
    }
    return replace(trace, **unread).select(rows)


# --- many inputs -------------------------------------------------------------------------------


def _each_written(
    tasks: Sequence[_Task], workers: int | Literal["auto"]
) -> Iterator[tuple[_Task, InputError | None, Issues]]:
    """Write the summaries, in worker processes if allowed.

    Raises:
        OutputError: a summary cannot be written.
    """
    from traceanalyzer import machine
    from traceanalyzer.run.workers import Ended, each as each_apart

    number = min(len(tasks), machine.cores() if workers == "auto" else workers)
    if number < 2:
        for task in tasks:
            yield task, *_written(task)
            give_back()
        return
    for task, answer in zip(tasks, each_apart(_written, tasks, number), strict=True):
        if isinstance(answer, Ended):
            error = UnreadableFile(task.path, f"the process that read it {answer.why}")
            yield task, *_written(task, error)
        else:
            yield task, *(answer or _written(task))


# --- events around the waits -------------------------------------------------------------------


@dataclass(frozen=True)
class _Asking(InputReader):
    """Notes which events an analysis reads again, and reads none."""

    asked: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    needs: list[Needs] = field(default_factory=list)

    def traces(self, needs: Needs, windows: Any) -> list[Trace]:
        """Note the windows."""
        self.needs.append(needs)
        for path, stretches in windows.items():
            self.asked.setdefault(path, set()).update(stretches)
        return []


def _write_contexts(tasks: Sequence[_Task], *, force: bool) -> list[str]:
    """Write the events around the waits for stragglers, from the inputs of the stragglers.

    Raises:
        OutputError: a context cannot be written.
    """
    by_path = {one.path: one for one in tasks}
    if not force and any(Path(context_path(one.target)).exists() for one in tasks):
        return []
    asking = _Asking((), {}, How())
    comm = registry.ENTRIES["comm_outliers"].analyzer()
    summaries = InputList(one.target for one in tasks)
    every = Questions.of_all("findings", [comm.name])
    for questions in (Questions.of_one(comm, comm.options()), every):
        try:
            parts = _parts_of(questions, summaries)
            if parts:
                result = comm.combine(parts, comm.options())
                comm.refine(result, comm.options(), asking)  # type: ignore[misc]
        except TraceAnalyzerError:  # no communication, or no input can be read
            continue
    written = []
    for path, windows in asking.asked.items():
        task = by_path.get(path)
        if task is None:
            continue
        try:
            trace = read_needed(path, asking.needs[0], How(), sorted(windows))
        except (InputError, MissingData):
            continue
        writer, target = Writer(), context_path(task.target)
        writer.add("context", (sorted(windows), replace(trace)))  # without what was computed of it
        writer.write(target, replace(task.header, format=trace.meta.format, context=True))
        written.append(target)
    return written


def _parts_of(questions: Questions, summaries: Sequence[str]) -> list[Any]:
    """Return the parts of ``comm_outliers`` in the summaries."""
    from traceanalyzer.run.measure import measure_all

    measure_all(OpenedInputs(summaries, None, How()), questions)
    return [part for _, part in questions.asked["comm_outliers"].parts]
