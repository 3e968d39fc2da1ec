"""What is measured of each input: one analysis, or all of a page or of ``diagnose``.

The same for a command and for a report, in this process, in a worker and from a summary. A file
without the data of an analysis raises an error that names the commands for it.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, Self, get_origin

from traceanalyzer import vocabulary
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Analyzer, Needs, O, P, R, Skipped, Use, measured_text
from traceanalyzer.analyzers.common import jobs
from traceanalyzer.analyzers.registry import COMPANIONS, REPLAY
from traceanalyzer.errors import MissingData, OptionError, TraceAnalyzerError
from traceanalyzer.run.pieces import How, Opened, OpenedInputs, bytes_of, read_needed
from traceanalyzer.trace import Meta, Trace

#: Of an analyzer of another package that raises an error.
FAILED: Final = "failed"
_ONLY_TEXT = "printed text has no timeline"
#: Larger files are not read again to name the command that fits them.
_READ_AGAIN_BYTES = 1 << 26
#: Analyses with much temporary data come before those that cache data for others.
_FIRST = ("gpu_idle", "launches")
_STACKS = ("py_spy_report", "flamegraph")
_NCU = ("this is a report of Nsight Compute, without a timeline", ("roofline",))
#: By format: what a file is, and the analyzers for it.
_OF_FORMAT = {
    vocabulary.MEMORY_SNAPSHOT: ("this is a memory snapshot", ("memory",)),
    vocabulary.FLIGHT_RECORDER: ("this is a Flight Recorder dump", ("hang",)),
    vocabulary.NCCL_INSPECTOR: ("these are lines of NCCL Inspector", ("comm_outliers",)),
    vocabulary.PY_SPY_DUMP: ("these are the stacks of one moment", ("hang", "flamegraph")),
    vocabulary.NCU_CSV: _NCU,
    vocabulary.NCU_REP: _NCU,
    vocabulary.REQUEST_LOG: ("this is a request log, without a timeline", ("requests",)),
    vocabulary.ITWINAI: ("these are metrics of itwinai, without a timeline", ("scaling",)),
    "collapsed": ("these are sampled stacks", _STACKS),
    "speedscope": ("these are sampled stacks", _STACKS),
}
_IN_REPORTS = (vocabulary.MEMORY_SNAPSHOT, "collapsed", "speedscope")
#: Analyzers of printed text, which has no timeline.
_OF_TEXT = ("printed", "info")
#: Forms of text that are the log of a job, for ``hang``.
_OF_JOBS = ("job_events", "engine", "out_of_memory")
#: By kinds of events, if a file of another format has no others.
_OF_KINDS = (
    (
        {*vocabulary.ALLOCATOR_KINDS, "cpu_instant_event"},
        "the file has only memory events",
        ("memory",),
    ),
    ({"sample"}, "the file has only sampled stacks", _STACKS),
    ({"python_function"}, "the file has only Python stacks", ("flamegraph",)),
)
_INCIDENTAL = {"trace", "other"}


@dataclass
class Question(Generic[O, P, R]):
    """One analysis, and what was measured for it.

    Attributes:
        analyzer: the analysis.
        options: its options.
        use: what the result is for.
        package: the package that it is of, if that is another one.
        parts: of each rank with the data: metadata of its trace, and the part.
        lacking: of each rank without the data: metadata of its trace, and why.
    """

    analyzer: Analyzer[O, P, R]
    options: O
    use: Use = "answer"
    package: str = ""
    parts: list[tuple[Meta, P]] = field(default_factory=list)
    lacking: list[tuple[Meta, str]] = field(default_factory=list)

    @property
    def measure(self) -> Callable[[Any, O], P]:
        """The function that measures one rank, after ``take`` unless it is that of a page."""
        return self.analyzer.measure_used(self.use)

    def ask(self, traces: list[Trace], *, truncated: bool, is_last: bool = False) -> None:
        """Measure one rank.

        Args:
            traces: its trace; emptied as soon as an analysis has taken what it needs, if
                ``is_last``.
            truncated: whether its file is truncated.
            is_last: whether nobody else needs the trace.
        """
        meta, measure, take = traces[0].meta, self.measure, self.analyzer.take
        with_take = take is not None and measure is not self.analyzer.measure_for.get("page")
        kept: Callable[[Any], Any] = traces[0].kept
        try:
            with self._shielded():
                what: Any = kept(take(traces[0], self.options)) if with_take and take else traces[0]
                if is_last:
                    traces.clear()
                self.parts.append((meta, kept(measure(what, self.options))))
        except MissingData as error:
            self.lacking.append(
                (meta, str(perhaps_truncated(error, truncated=truncated, form=meta.format)))
            )

    def result(self, reader: Any, base: Iterable[tuple[Meta, P]] = ()) -> R:
        """Return the result of all parts, and free them.

        Raises:
            MissingData: there are no parts, or they lack the data.
        """
        if not self.parts:
            raise MissingData(self.lacking[0][1] if self.lacking else _ONLY_TEXT)
        parts = [part for _, part in self.parts]
        self.parts.clear()
        with self._shielded():
            combine: Callable[..., R] = self.analyzer.combine
            compared = ([part for _, part in base],) if self.analyzer.base else ()
            result = combine(parts, self.options, *compared)
            if self.analyzer.refine:
                result = self.analyzer.refine(result, self.options, reader)
            if self.package:
                result.to_dict(), result.charts
        return result

    def skipped(self) -> tuple[Skipped, ...]:
        """Return files and ranks without data that others of the same format have."""
        formats = {meta.format for meta, _ in self.parts}
        paths = {meta.path for meta, _ in self.parts}
        skipped = (
            Skipped(
                rank_of(meta.path, meta.rank) if meta.path in paths else meta.path,
                why.removeprefix(f"{meta.path}: "),
            )
            for meta, why in self.lacking
            if meta.format in formats
        )
        return tuple(dict.fromkeys(skipped))

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
            raise MissingData(f"{place} {FAILED}: {text}") from None

    def store(self, add: Callable[[str, Any], None], place: str) -> None:
        """Call ``add`` with the parts, and the reasons why there are none, at a place."""
        kinds = [get_origin(kind) or kind for kind in self._part_types]
        parts = [
            (meta, *(part if isinstance(part, kind) else None for kind in kinds))
            for meta, part in self.parts
        ]
        add(place, (parts, self.lacking))

    def restore(self, summary: Any, place: str) -> None:
        """Set the parts, and the reasons why there are none, to those in a summary."""
        of_rank: Any = tuple[(Meta, *(kind | None for kind in self._part_types))]  # type: ignore[misc]
        stored, self.lacking = summary.read(place, tuple[list[of_rank], list[tuple[Meta, str]]])
        for meta, *parts in stored:
            self.parts += [(meta, part) for part in parts if part is not None]

    @property
    def _part_types(self) -> tuple[Any, ...]:
        from traceanalyzer.run.parts import part_types

        return part_types(self.measure)


@dataclass
class Questions:
    """All that is measured of the inputs of one call.

    Attributes:
        asked: the analyses, by name.
        use: what the results are for; of an answer there is one analysis.
        on_rank: called with the trace of each rank after it was measured.
        recordings: of each rank, to tell jobs apart; only of several inputs.
    """

    asked: dict[str, Question[Any, Any, Any]]
    use: Use
    on_rank: Callable[[Trace], None] | None = None
    recordings: list[jobs.Recording] = field(default_factory=list)

    @classmethod
    def of_one(cls, analyzer: Analyzer[O, P, R], options: O) -> Self:
        """Return the question of one command."""
        if analyzer.base is not None:
            options = replace(options, **{analyzer.base: None})
        return cls({analyzer.name: Question(analyzer, options)}, "answer")

    @classmethod
    def of_all(
        cls,
        use: Use,
        names: Iterable[str] | None = None,
        options: Mapping[str, Any] | None = None,
        on_rank: Callable[[Trace], None] | None = None,
    ) -> Self:
        """Return the questions of a page or of ``diagnose``.

        Args:
            use: what the results are for.
            names: names of the analyzers, or None for all.
            options: of analyzers, by name; default: the defaults.
            on_rank: see :class:`Questions`.
        """
        wanted = [*(entry.name for entry in registry.in_report()), REPLAY]
        entries = [registry.entry(one) for one in wanted if names is None or one in names]
        others = [registry.entry(COMPANIONS[one.name]) for one in entries if one.name in COMPANIONS]
        asked = {}
        for entry in (*entries, *others):
            analyzer = entry.analyzer()
            given = (options or {}).get(entry.name) or analyzer.options()
            asked[entry.name] = Question(analyzer, given, use, entry.package)
        return cls(asked, use, on_rank)

    @property
    def is_slow(self) -> bool:
        """Whether measuring takes longer than reading."""
        return self.use != "answer" or self._only.analyzer.slow

    @property
    def _only(self) -> Question[Any, Any, Any]:
        """The question of a command."""
        (question,) = self.asked.values()
        return question

    def prepare(self, several: Iterable[Opened]) -> None:
        """Compute at once for several small inputs what measuring each of them finds cached."""
        traces = [one.first for one in several if one.first]
        for question in self.asked.values():
            if question.analyzer.prepare and len(traces) > 1:
                question.analyzer.prepare(traces, question.options)

    def measure(self, opened: OpenedInputs, one: Opened) -> None:
        """Measure one input."""
        if one.first and (error := self._not_for(one.first.meta, opened)):
            opened.state.fail(one.path, error)
        elif self.use == "answer":
            self._answer(opened, one)
        else:
            opened.state.truncated += [one.path] if one.truncated else []
            replay = self.asked.get(REPLAY)
            known = len(replay.parts) if replay else 0
            for trace in one:
                self._ask_all(trace, opened, truncated=one.truncated)
                del trace
            if replay and (again := _again(replay, replay.parts[known:], opened, one)):
                del replay.parts[known:]
                _ask_each(replay, again)

    def _not_for(self, meta: Meta, opened: OpenedInputs) -> MissingData | None:
        if self.use == "answer":
            return not_for(self._only.analyzer.name, meta)
        return not_for_reports(meta, opened.folder)

    def _ask_all(self, trace: Trace, opened: OpenedInputs, *, truncated: bool) -> None:
        """Measure one rank with every analyzer; when this returns, the trace can be freed."""
        if opened.several and trace.meta.format != vocabulary.PRINTED_TEXT:
            self.recordings.append(jobs.recording(trace))
        for name in sorted(self.asked, key=lambda name: name not in _FIRST):
            if not not_for(name, trace.meta):
                self.asked[name].ask([trace], truncated=truncated)
        if self.on_rank:
            self.on_rank(trace)

    def _answer(self, opened: OpenedInputs, one: Opened) -> None:
        """Measure one input for a command; it may be read again with more data."""
        question, state = self._only, opened.state
        of_input = replace(question, parts=[], lacking=[])
        known = self.recordings if opened.several and question.analyzer.of_one_job else None
        _ask_each(of_input, one, known)
        if again := _again(question, of_input.parts, opened, one):
            of_input = replace(question, parts=[], lacking=[])
            _ask_each(of_input, again)
        if of_input.lacking and not of_input.parts:
            state.fail(one.path, self._explained(of_input.lacking[0][1], opened, one))
            return
        question.parts += of_input.parts
        for meta, why in of_input.lacking:
            state.skip(rank_of(one.path, meta.rank), why.removeprefix(f"{one.path}: "))
        state.truncated += [one.path] if one.truncated else []

    def _explained(self, why: str, opened: OpenedInputs, one: Opened) -> MissingData:
        """Return the error about missing data, with the command that fits the file."""

        def read() -> Trace:
            everything = Needs(frozenset(), everything=True)
            how = How(opened.how.format, read=opened.how.read)
            return read_needed(one.path, everything, how)

        # reading takes time; the message about the first file is enough
        state, name = opened.state, self._only.analyzer.name
        small = one.is_file and not state.skipped and bytes_of(one.path) <= _READ_AGAIN_BYTES
        again = read if small else None
        return with_fitting_command(
            MissingData(why), state.metas[one.path], name, again, opened.folder
        )

    def empty(self) -> Self:
        """Return a copy without any result."""
        asked = self.asked.items()
        return replace(
            self,
            asked={name: replace(one, parts=[], lacking=[]) for name, one in asked},
            recordings=[],
        )

    def join(self, other: Self) -> None:
        """Add the results of the inputs that follow."""
        for name, question in other.asked.items():
            self.asked[name].parts += question.parts
            self.asked[name].lacking += question.lacking
        self.recordings += other.recordings

    # --- in summaries ---

    @property
    def section(self) -> str:
        """The name of the results in a summary."""
        if self.use != "answer":
            return "diagnose" if self.use == "findings" else "report"
        name, question = self._only.analyzer.name, self._only
        entry = registry.ENTRIES.get(name)  # none for one of another package
        command = entry.command if entry else name.replace("_", "-")
        return " ".join(filter(None, (command, measured_text(question.options))))

    def _place(self, name: str) -> str:
        """Return where the parts of an analyzer are in a summary: programs are stored once."""
        if self.use == "page" and name == REPLAY:
            return f"diagnose/{name}"
        return f"{self.section}/{name}"

    def store(self, add: Callable[[str, Any], None]) -> None:
        """Call ``add`` with the section and value of each result."""
        add(f"{self.section}/recordings", self.recordings)
        for name, question in self.asked.items():
            place = self._place(name)
            if place.startswith(f"{self.section}/") and not question.package:
                question.store(add, place)

    def restored(self, summary: Any) -> Self:
        """Return a copy with the results of a summary."""
        if self.on_rank:
            raise OptionError(f"{summary.path}: a summary has no events; pass the traces")
        empty = self.empty()
        empty.recordings = summary.read(f"{self.section}/recordings", list[jobs.Recording])
        for name, question in empty.asked.items():
            if question.package and self.use != "answer":
                meta = Meta(summary.header.path, summary.header.format or "")
                question.lacking.append((meta, "the summaries do not have it; pass the traces"))
                continue
            question.restore(summary, self._place(name))
        return empty


def _ask_each(
    question: Question[Any, Any, Any], one: Opened, recordings: list[jobs.Recording] | None = None
) -> None:
    """Measure the ranks of one input; each trace is freed before the next one is taken."""
    for trace in one:
        traces = [trace]
        if recordings is not None and trace.meta.format != vocabulary.PRINTED_TEXT:
            recordings.append(jobs.recording(trace))
        del trace
        question.ask(traces, truncated=one.truncated, is_last=True)


def _again(
    question: Question[Any, Any, Any],
    parts: Sequence[tuple[Meta, Any]],
    opened: OpenedInputs,
    one: Opened,
) -> Opened | None:
    """Open an input again if its parts require more data."""
    more = question.analyzer.more
    if not more or not parts or not one.is_file:
        return None
    needs = more([part for _, part in parts], question.options)
    return opened.open(one.path, replace_needs=needs) if needs else None


def rank_of(path: str, rank: int | None) -> str:
    """Name one rank of a file."""
    return path if rank is None else f"{path}, rank {rank}"


def perhaps_truncated(error: MissingData, *, truncated: bool, form: str = "") -> MissingData:
    """Add the hint that the file is truncated: profilers write kernels last.

    Of a truncated database any table may be missing: options of the profiler would not help.
    """
    if not truncated:
        return error
    damaged = form in vocabulary.DATABASES
    what = str(error).partition("; ")[0] if damaged else error
    why = vocabulary.DAMAGED_TABLES if damaged else "the missing data may have been at its end"
    return MissingData(f"{what} (the file is truncated: {why})")


def with_fitting_command(
    error: MissingData,
    meta: Meta,
    analyzer: str,
    read: Callable[[], Trace] | None,
    folder: str | None = None,
) -> MissingData:
    """Return an error with ``this is a memory snapshot: traceanalyzer memory FILE``.

    For a format of its own this replaces the advice on recording.

    Args:
        error: the error of the analyzer.
        meta: metadata of the file.
        analyzer: name of the analyzer.
        read: reads all events of the file; None if that takes long.
        folder: see :func:`not_for_reports`.
    """
    begin, (what, names) = f"{meta.path}: ", _OF_FORMAT.get(meta.format, ("", ()))
    if not what and read is not None:
        recorded = {*read().events["kind"].unique()} - _INCIDENTAL
        matches = ((text, names) for kinds, text, names in _OF_KINDS if recorded <= kinds)
        begin, (what, names) = f"{error}; ", next(matches, ("", ())) if recorded else ("", ())
    if analyzer == "py_spy_report" and not names:
        begin, what, names = f"{error}; ", "this is a trace", ("flamegraph", "diagnose")
    if analyzer in ("hang", "printed") and not names:
        begin, what, names = f"{error}; ", "this is a trace", ("diagnose",)
    if not names or analyzer.startswith(names):
        return error
    several = folder if meta.format in _OF_FORMAT else None
    return MissingData(f"{begin}{what}: {_command_lines(names, several)}")


def not_for(analyzer: str, meta: Meta) -> MissingData | None:
    """Return the error for printed text, unless it is for this analyzer."""
    is_log = any(form in (meta.version or "").split(", ") for form in _OF_JOBS)
    if meta.format != vocabulary.PRINTED_TEXT or analyzer in (*_OF_TEXT, *["hang"] * is_log):
        return None
    return MissingData(
        f"{meta.path}: this is printed text without a timeline: traceanalyzer printed FILE"
    )


def not_for_reports(meta: Meta, folder: str | None = None) -> MissingData | None:
    """Return the error for a file that no analysis of a report uses, with its command.

    Args:
        meta: metadata of the file.
        folder: folder of all inputs, if there are several: dumps of all ranks are analyzed at once.
    """
    if meta.format not in _OF_FORMAT or meta.format in _IN_REPORTS:
        return None
    what, names = _OF_FORMAT[meta.format]
    return MissingData(f"{meta.path}: {what}: {_command_lines(names, folder)}")


def _command_lines(names: Sequence[str], folder: str | None = None) -> str:
    """Return the commands; with a slash at its end a folder is the same with a full stop after."""
    place = shlex.quote(f"{folder.rstrip('/')}/") if folder else "FILE"
    return " or ".join(f"traceanalyzer {name.replace('_', '-')} {place}" for name in names)
