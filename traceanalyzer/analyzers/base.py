"""Definition of an analyzer: options, data to read, and steps from a trace to a result.

This module does not import polars, to keep ``--help`` fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from shlex import quote
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypedDict, TypeVar

from traceanalyzer.errors import OptionError

if TYPE_CHECKING:
    from traceanalyzer.result import Result
    from traceanalyzer.trace import Inputs, Meta, Trace

O = TypeVar("O", bound="AnalyzerOptions")  # noqa: E741 - options, part, result
P = TypeVar("P")
R = TypeVar("R", bound="Result")

#: What a result is for: a command, a page with all analyses, or the rules of ``diagnose``.
Use = Literal["answer", "page", "findings"]


class Reading(TypedDict, total=False):
    """Options for reading files; all keywords are optional.

    Attributes:
        format: format of the files; default: detected by content.
        rank: read only this rank.
        assume_rank: rank of a single file without a rank.
        since_ns: ignore events that end before this time (ns after the first event of the input).
        until_ns: ignore events that start at or after this time (ns after the first event).
        progress: callback with (bytes read, total bytes) of each file.
        on_trace: callback with the trace of each file, for its ``issues``; for a file read by
            another process, the trace has only ``sources`` and ``issues``.
        workers: number of processes that read several files at once, or the ranks of a large nsys
            export for an analysis that takes longer than reading; default 1, this process.
            ``auto``: one per core (one per two cores for ranks), as far as the free memory allows,
            if the files are worth it.
        client: a ``distributed.Client``, whose cluster reads the files instead.
    """

    format: str | None
    rank: int | None
    assume_rank: int | None
    since_ns: int | None
    until_ns: int | None
    progress: Callable[[int, int], None] | None
    on_trace: Callable[[Trace], None] | None
    workers: int | Literal["auto"]
    client: Any


@dataclass(frozen=True)
class Option:
    """Metadata of an option for the command line, validation and reference.

    Attributes:
        help: text of ``--help``.
        flag: name on the command line; default: name of the field.
        metavar: placeholder of the value.
        choices: allowed values; empty for any.
        unit: ``time`` or ``bytes``: the command line parses ``10us`` or ``80GiB``.
        minimum: minimum value.
        above: exclusive lower bound.
        show_default: whether ``--help`` prints the default.
        default_text: the default as written on the command line, if it differs.
        command_line: False for a keyword of the Python function only.
        inputs: whether the value is more input files or traces, which ``run`` reads.
        measured: whether ``needs``, ``measure`` or ``more`` depends on the value, so that a summary
            is of one value only; or the values for which they do.
    """

    help: str
    flag: str | None = None
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    unit: str | None = None
    minimum: float | None = None
    above: float | None = None
    show_default: bool = False
    default_text: str | None = None
    command_line: bool = True
    inputs: bool = False
    measured: bool | tuple[str, ...] = True

    def check(self, name: str, value: Any) -> None:
        """Raise :class:`OptionError` if a value is not allowed."""
        if self.choices and value not in self.choices:
            raise OptionError(f"invalid {name}={value!r}; choose one of {', '.join(self.choices)}")
        if self.minimum is not None and not value >= self.minimum:
            raise OptionError(f"{name} must be >= {self.minimum:g} (got {value:g})")
        if self.above is not None and not value > self.above:  # rejects nan too
            raise OptionError(f"{name} must be > {self.above:g} (got {value:g})")


def option(default: Any, **about: Any) -> Any:
    """Return a field of an options class with a default and the attributes of :class:`Option`."""
    return field(default=default, metadata={"option": Option(**about)})


def measured_text(options: AnalyzerOptions) -> str:
    """Return the options that ``measure`` depends on as on the command line, without defaults."""
    texts: list[str] = []
    for item in fields(options):
        definition: Option = item.metadata["option"]
        value, measured = getattr(options, item.name), definition.measured
        if definition.inputs or value == item.default or measured is False:
            continue
        if isinstance(measured, tuple) and value not in measured:
            continue
        flag = definition.flag or "--" + item.name.replace("_", "-")
        if value is True:
            texts.append(flag)
            continue
        for one in value if isinstance(value, tuple) else (value,):
            texts += [flag, quote(f"{one}{'ns' if definition.unit == 'time' else ''}")]
    return " ".join(texts)


def comm_patterns() -> Any:
    """Return the option for additional names of communication kernels."""
    return option(
        (),
        help="Kernels whose names match are communication too. Repeatable.",
        flag="--comm-pattern",
        metavar="REGEX",
    )


def step_name() -> Any:
    """Return the option for the names of steps."""
    return option(
        None,
        help="Slices whose names match are the steps. Default: as in the command steps.",
        metavar="REGEX",
    )


@dataclass(frozen=True)
class AnalyzerOptions:
    """Base class of options: frozen fields created by :func:`option`.

    The docstring of a subclass is the description in ``--help``. A field with a tuple as default
    accepts one string or several.

    Raises:
        OptionError: a value is not allowed.
    """

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            definition: Option = item.metadata["option"]
            if definition.inputs:
                continue
            if isinstance(item.default, tuple):
                value = (value,) if isinstance(value, str) else tuple(value)
                object.__setattr__(self, item.name, value)
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None:
                    definition.check(item.name, one)


@dataclass(frozen=True)
class Needs:
    """Data that an analyzer requests from a parser; less data is read faster.

    Attributes:
        kinds: event kinds; ``counter``, ``flow`` and ``lane`` request those tables.
        names: substrings; events whose name contains one are read regardless of their kind.
        columns: columns that are read only on request.
        unused: unused columns of ``events``; columnar formats leave them null.
        samples: whether address, stack and weight are used.
        everything: read events of all kinds regardless of ``kinds``.
        metrics: substrings of the names of metrics to read; empty for all, with the kind
            ``metric``.
        inputs_of: operators whose inputs the rules of ``diagnose`` use; empty for all.
    """

    kinds: Set[str]
    names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    samples: bool = False
    everything: bool = False
    metrics: tuple[str, ...] = ()
    inputs_of: Set[str] = frozenset()


class Reader(Protocol):
    """Reads inputs again, for :attr:`Analyzer.refine`.

    Attributes:
        metas: of the traces read, by path.
        collected: parts of other analyzers that were measured on the same inputs, by name.
    """

    @property
    def metas(self) -> Mapping[str, Meta]:
        """Metadata of the traces read, by path."""

    @property
    def collected(self) -> Mapping[str, Sequence[Any]]:
        """Parts of other analyzers that were measured on the same inputs, by name."""

    def collect(self, analyzer: Analyzer[O, P, R], inputs: Inputs, options: O) -> list[P]:
        """Return parts of another analyzer: those already measured, and of further inputs."""

    def traces(self, needs: Needs, windows: Mapping[str, Sequence[tuple[int, int]]]) -> list[Trace]:
        """Return all ranks of the traces in memory, and of the files in ``windows``."""


@dataclass(frozen=True)
class Skipped:
    """An input, or one of its ranks, that is not in the result: path and reason."""

    path: str
    why: str


def result_of(results: Mapping[str, Result], kind: type[R]) -> R | None:
    """Return the result of a class, or None."""
    return next((one for one in results.values() if isinstance(one, kind)), None)


@dataclass(frozen=True)
class Examination:
    """The results of all analyzers.

    Attributes:
        results: available results by name of the analyzer, in the order of a report.
        missing: reason for each missing result, by name of the analyzer.
        notes: one line per skipped or truncated file.
        files: paths of the files that were read.
        jobs: assignment of files to different jobs; empty if all can belong to one job.
        truncated: paths of truncated files.
        summaries: the summary of each summarized input, by the path of the input.
        replay: the replayed run, for gains, or None.
    """

    results: Mapping[str, Result]
    missing: Mapping[str, str]
    notes: tuple[str, ...]
    files: tuple[str, ...]
    jobs: str = ""
    truncated: tuple[str, ...] = ()
    summaries: Mapping[str, str] = field(default_factory=dict)
    replay: Result | None = None


@dataclass(frozen=True)
class Analyzer(Generic[O, P, R]):
    """One analysis: from the trace of each rank to one result.

    Attributes:
        name: name of the Python function, the JSON section and the registry entry.
        options: options class.
        needs: the data to read from each file, or what returns it for options.
        measure: compute the part of one rank; small and picklable, possibly in another process.
        combine: combine the parts of all ranks, in any order, to the result; with ``base``, the
            third argument is the parts of the run to compare with.
        take: extract the data for ``measure`` from a trace, so that the trace can be freed.
        prepare: compute what ``measure`` finds cached, for several small traces at once.
        more: return the data of a second read of a file if its parts require one.
        refine: complete the result with more data from the inputs.
        base: option with the inputs of the run to compare with.
        split_ranks: measure each rank of a file separately.
        every_file: whether files are described: copies and repeated recordings are kept.
        slow: measuring takes longer than reading: workers share the ranks of a large file.
        whole_file: read the whole file regardless of the time window; ``run`` sets the option
            ``window`` of the analyzer, if it has one.
        of_one_job: what if the inputs are of several jobs: ``mixed``, the verdict says that numbers
            mix them; ``only``, an error; empty, the analyzer compares jobs, or tells them apart.
        measure_for: what replaces ``measure`` for a page, which passes files of all formats to all
            analyzers, and for findings, which use less; that of a page is for both, and gets the
            trace instead of what ``take`` extracts.
    """

    name: str
    options: type[O]
    needs: Needs | Callable[[O], Needs]
    measure: Callable[[Any, O], P]
    combine: Callable[[Sequence[P], O], R]
    take: Callable[[Trace, O], Any] | None = None
    prepare: Callable[[Sequence[Trace], O], None] | None = None
    more: Callable[[Sequence[P], O], Needs | None] | None = None
    refine: Callable[[R, O, Reader], R] | None = None
    base: str | None = None
    split_ranks: bool = True
    every_file: bool = False
    slow: bool = False
    whole_file: bool = False
    of_one_job: Literal["mixed", "only", ""] = "mixed"
    measure_for: Mapping[Use, Callable[[Any, O], P]] = field(default_factory=dict)

    def needed(self, options: O) -> Needs:
        """Return the data to read from each file."""
        return self.needs if isinstance(self.needs, Needs) else self.needs(options)

    def measure_used(self, use: Use) -> Callable[[Any, O], P]:
        """Return the function that measures a rank for a use."""
        of_page = self.measure_for.get("page", self.measure)
        return self.measure if use == "answer" else self.measure_for.get(use, of_page)

    def part(self, trace: Trace, options: O) -> P:
        """Compute the part of the trace of one rank."""
        return self.measure(self.take(trace, options) if self.take else trace, options)
