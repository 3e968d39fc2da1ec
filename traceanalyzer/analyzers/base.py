"""What an analyzer is: its options, what it reads, and its steps from a trace to a result.

Nothing here loads polars, so that ``--help`` of a command costs no more than its options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar

from traceanalyzer.errors import OptionError

if TYPE_CHECKING:
    from traceanalyzer.result import Result
    from traceanalyzer.trace import Meta, Trace

O = TypeVar("O", bound="AnalyzerOptions")  # noqa: E741 - options, part, result
P = TypeVar("P")
R = TypeVar("R", bound="Result")


class Reading(TypedDict, total=False):
    """How files are read; every keyword may be left out.

    Attributes:
        format: the files' format, to override detection by content.
        rank: only this rank of the inputs.
        assume_rank: the rank of a single file that has none.
        since_ns: ignore events that end before this time after each input's first event.
        until_ns: ignore events that start at or after this time after each input's first event.
        progress: called with (bytes read, bytes in all) of each file.
        seen: called with the trace of each file, for its ``issues``; for a file that another
            process read, the trace has only ``sources`` and ``issues``.
        processes: maximum number of processes that read small files; default 1, this process.
    """

    format: str | None
    rank: int | None
    assume_rank: int | None
    since_ns: int | None
    until_ns: int | None
    progress: Callable[[int, int], None] | None
    seen: Callable[[Trace], None] | None
    processes: int


@dataclass(frozen=True)
class Option:
    """What the command line, the validation and the reference need to know about one option.

    Attributes:
        help: text of ``--help``.
        flag: on the command line; by default the field's name.
        metavar: placeholder of the value.
        choices: the only values allowed.
        unit: ``time`` or ``bytes``: the command line parses ``10us`` or ``80GiB``.
        minimum: the least value allowed.
        above: a value must be greater than this.
        show_default: whether ``--help`` shows the default.
        default_text: the default as it is written on the command line, where that is another text.
        command_line: False for a keyword of the Python function only.
        inputs: the value is further input files or traces; ``run`` reads them.
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

    def check(self, name: str, value: Any) -> None:
        """Raise :class:`OptionError` for a value that is not allowed."""
        if self.choices and value not in self.choices:
            raise OptionError(f"invalid {name}={value!r}; choose one of {', '.join(self.choices)}")
        if self.minimum is not None and not value >= self.minimum:
            raise OptionError(f"{name} must be >= {self.minimum:g} (got {value:g})")
        if self.above is not None and not value > self.above:  # nor is "nan"
            raise OptionError(f"{name} must be > {self.above:g} (got {value:g})")


def option(default: Any, **about: Any) -> Any:
    """A field of an options class: its default, and the attributes of :class:`Option`."""
    return field(default=default, metadata={"option": Option(**about)})


def patterns() -> Any:
    """The option of further names that are communication."""
    return option(
        (),
        help="Kernels whose names match are communication too. Repeatable.",
        flag="--pattern",
        metavar="REGEX",
    )


@dataclass(frozen=True)
class AnalyzerOptions:
    """Base of every analyzer's options: frozen fields made by :func:`option`.

    The docstring of a subclass is the description that ``--help`` shows. A field whose default is a
    tuple takes one text or several.

    Raises:
        OptionError: a value is not allowed.
    """

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            about: Option = item.metadata["option"]
            if about.inputs:
                continue
            if isinstance(item.default, tuple):
                value = (value,) if isinstance(value, str) else tuple(value)
                object.__setattr__(self, item.name, value)
            for one in value if isinstance(value, tuple) else (value,):
                if one is not None:
                    about.check(item.name, one)


@dataclass(frozen=True)
class Needs:
    """What an analyzer asks a parser for; the less, the faster.

    Attributes:
        kinds: event kinds; ``counter``, ``flow`` and ``lane`` for those tables.
        names: substrings; events whose name contains one are read whatever their kind.
        columns: columns made only on request.
        unused: columns of ``events`` that are not looked at; formats that store columns leave them
            null.
        samples: whether address, stack and weight are looked at, which events with a duration have
            no use for.
        everything: events of all kinds, whatever ``kinds`` says.
    """

    kinds: Set[str]
    names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    samples: bool = False
    everything: bool = False


@dataclass(frozen=True)
class Skipped:
    """An input, or a rank of it, that is not part of the result: its path, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Examination:
    """The results of all analyzers.

    Attributes:
        results: by the name of the analyzer, those that there are, in the order of a report.
        missing: why the others have none.
        notes: files that were skipped or are truncated, a line each.
        files: paths of those that were read.
        jobs: which files are of different jobs; empty where all can be of one.
        truncated: paths of truncated files.
    """

    results: Mapping[str, Result]
    missing: Mapping[str, str]
    notes: tuple[str, ...]
    files: tuple[str, ...]
    jobs: str = ""
    truncated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Analyzer(Generic[O, P, R]):
    """One analysis: from the trace of each rank to one result.

    Attributes:
        name: of the Python function, the section of JSON and the entry in the registry.
        options: its options class.
        needs: what to read of each file.
        measure: the part of one rank; small and picklable, it may be computed in another process.
        combine: the result of the parts of all ranks, in any order; the third argument are the
            parts of the run to compare with.
        merge: one part of two that are neighbours, so that a thousand ranks are combined in a tree
            and few parts are in memory at a time; ``combine`` gets what is left.
        take: the little of a trace that ``measure`` gets instead, so that the trace can be freed.
        more: a second read of a file, where its parts show that the first does not suffice.
        refine: completes the result with what it reads from the inputs.
        beside: the analyzer whose parts of the same inputs ``refine`` gets in a report.
        base: the option that holds the inputs of the run to compare with.
        split_ranks: measure each rank of a file separately.
        every_file: it describes files, so that copies of one and what two record are not left out.
        whole_file: read the whole file whatever the time window, which ``run`` puts into the
            option ``window`` where an analyzer has one.
        report_measure: replaces ``measure`` in a report, where files of all formats are given to
            every analyzer.
        report_parts: the parts that count in a report, and the others with the reason.
    """

    name: str
    options: type[O]
    needs: Callable[[O], Needs]
    measure: Callable[[Any, O], P]
    combine: Callable[[Sequence[P], O, Sequence[P]], R]
    merge: Callable[[P, P], P] | None = None
    take: Callable[[Trace, O], Any] | None = None
    more: Callable[[Sequence[P], O], Needs | None] | None = None
    refine: Callable[[R, O, Any], R] | None = None
    beside: str | None = None
    base: str | None = None
    split_ranks: bool = True
    every_file: bool = False
    whole_file: bool = False
    report_measure: Callable[[Trace, O], P] | None = None
    report_parts: Callable[[Sequence[tuple[Meta, P]]], tuple[list[P], list[Skipped]]] | None = None

    def part(self, trace: Trace, options: O) -> P:
        """The part of one rank's trace."""
        return self.measure(self.take(trace, options) if self.take else trace, options)
