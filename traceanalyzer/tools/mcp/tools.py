"""Tools for language models and other programs: functions with a JSON schema of their arguments.

One tool per analysis of the registry, with its options, and ``check_fix``, ``diagnose``, ``query``
and ``timeline_slice``.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from inspect import Parameter, formatannotation, signature
from typing import Any

import polars as pl

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.base import Option
from traceanalyzer.errors import OptionError, UnreadableFile
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.result import Result, Table, View
from traceanalyzer.tools.query import columns_of
from traceanalyzer.units import format_count, parse_bytes, parse_ns


class Roots:
    """Folders whose files may be read.

    Args:
        folders: existing folders.

    Raises:
        UnreadableFile: a folder does not exist.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        for folder in folders:
            if not os.path.isdir(folder):  # noqa: PTH112 - names, not Paths
                raise UnreadableFile(folder, "no such folder", hint="choose another --root")
        self.folders = tuple(os.path.realpath(folder) for folder in folders)

    def resolve(self, path: str) -> str:
        """Return the real path of a file or folder below a root.

        Args:
            path: absolute, or relative to a root; the first root that has it.

        Raises:
            OptionError: the path, with links resolved, is outside all roots.
            UnreadableFile: it does not exist, or is neither a file nor a folder.
        """
        if "\0" in path:
            raise OptionError("a path must not contain a null character")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise OptionError("a path must not contain half of a character (surrogate)") from None
        reals = [os.path.realpath(os.path.join(root, path)) for root in self.folders]  # noqa: PTH118
        inside = [real for real in reals if self.contains(real)]
        if not inside:
            raise OptionError(f"{path}: outside the folders of this server; see --root")
        for real in inside:
            try:
                mode = os.stat(real).st_mode  # noqa: PTH116
            except OSError:
                continue
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise UnreadableFile(path, "is neither a file nor a folder")
            return real
        raise UnreadableFile(path, "no such file or folder")

    def contains(self, real: str) -> bool:
        """Whether a real path is a root or below one."""
        return any(os.path.commonpath((root, real)) == root for root in self.folders)

    def files(self, path: str) -> list[tuple[str, int, int]]:
        """Return path, size and time of change of a file, or of all files in a folder.

        Raises:
            OptionError: a link in the folder leads to a file outside all roots.
        """
        top = self.resolve(path)
        if not os.path.isdir(top):  # noqa: PTH112
            return [_signature(top)]
        signatures = []
        for base, folders, names in os.walk(top):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(name for name in names if not name.startswith(".")):
                file = os.path.join(base, name)  # noqa: PTH118
                if not self.contains(os.path.realpath(file)):
                    raise OptionError(
                        f"{path}: {name} is a link to a file outside the folders of this server; "
                        "pass the other files instead of the folder"
                    )
                signatures.append(_signature(file))
        return signatures


def _signature(path: str) -> tuple[str, int, int]:
    try:
        about = os.stat(path)  # noqa: PTH116
    except OSError:  # a broken link
        return path, 0, 0
    return path, about.st_size, about.st_mtime_ns


#: Rows per table of an answer, unless another number is asked for, and the most.
ROWS, MOST_ROWS = 10, 50
_MOST_PATHS, _LONGEST_ARGUMENT = 1_000, 20_000
_LAST_RANK = (1 << 31) - 1
_LAST_INT = (1 << 62) - 1

#: Arguments that select a part of the answer, not of the input.
PAGE = ("tables", "offset", "limit")
_PARSED: dict[str, Callable[[str, str], int]] = {"time": parse_ns, "bytes": parse_bytes}
#: Tables whose columns are in the description of ``query``.
_WITH_COLUMNS = ("events", "collectives", "counters", "launch_configs")
_NUMBERS = {"int": "integer", "float": "number"}
#: Names of the argument ``paths`` in functions.
_OF_A_RUN = ("inputs", "runs")

Schema = dict[str, Any]


def _text(description: str) -> Schema:
    return {"type": "string", "maxLength": _LONGEST_ARGUMENT, "description": description}


def _texts(description: str, most: int = 100) -> Schema:
    items = {"type": "string", "maxLength": _LONGEST_ARGUMENT}
    return {"type": "array", "items": items, "maxItems": most, "description": description}


def _paths(description: str) -> Schema:
    return {**_texts(f"{description} Below a root of the server.", _MOST_PATHS), "minItems": 1}


def _integer(description: str, least: int = 0, most: int = _LAST_RANK) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": most, "description": description}


#: Arguments of all tools: how files are read, and which page of the answer is returned.
_SHARED: Schema = {
    "rank": _integer("Only this rank."),
    "assume_rank": _integer("Rank of a single file without one."),
    "since": _text("Ignore events that end before this time from the start, such as 1.5s."),
    "until": _text("Ignore events that start at this time or later, such as 300ms."),
    "format": _text("Format of the files. Default: detected by content."),
    "tables": _texts("Return rows of these tables only. Default: of all tables."),
    "offset": _integer("First row of each table: next_offset of the page before.", 0, 10**9),
    "limit": _integer(f"Rows per table. Default: {ROWS}.", 1, MOST_ROWS),
}
_INPUTS = _paths("Files and folders of one run, all ranks.")


@dataclass(frozen=True)
class Tool:
    """A function that answers a question about files.

    Attributes:
        name: name of the Python function, if it is one of the package.
        description: question it answers.
        options: JSON schema of each argument that is not shared by all tools.
        inputs: names of the arguments that are paths, passed by position.
        function: gets lists of paths, options by keyword; returns a result.
        optional_inputs: names of further arguments that are paths, passed by keyword.
        parsers: functions for texts with a unit by name of the option.
    """

    name: str
    description: str
    options: Schema
    inputs: tuple[str, ...]
    function: Callable[..., Result]
    optional_inputs: tuple[str, ...] = ()
    parsers: Mapping[str, Callable[[str, str], int]] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def schema(self) -> Schema:
        """Return the JSON schema of all arguments."""
        return {
            "type": "object",
            "properties": self.options | _SHARED,
            "required": [*self.inputs, *self.required],
            "additionalProperties": False,
        }

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Check arguments against the schema.

        Raises:
            OptionError: the first argument that does not fit.
        """
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import best_match

        error = best_match(Draft202012Validator(self.schema()).iter_errors(arguments))
        if error is not None:
            place = ".".join(map(str, error.absolute_path))
            raise OptionError(f"{self.name}: {place + ': ' if place else ''}{error.message}")

    def call(self, arguments: Mapping[str, Any], roots: Roots, progress: Progress | None) -> Result:
        """Return the result for checked arguments.

        Raises:
            TraceAnalyzerError: the function raises it, or a path is not below a root.
        """
        values = {name: value for name, value in arguments.items() if name not in PAGE}
        for name in ("since", "until"):
            if name in values:
                values[f"{name}_ns"] = parse_ns(values.pop(name), name)
        for name, parse in self.parsers.items():
            if isinstance(values.get(name), str):
                values[name] = parse(values[name], name)
        for name in (*self.inputs, *self.optional_inputs):
            if name in values:
                values[name] = [roots.resolve(path) for path in values[name]]
        inputs = [values.pop(name) for name in self.inputs]
        return self.function(*inputs, **values, progress=progress)

    def paths(self, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Yield the paths among the arguments."""
        for name in (*self.inputs, *self.optional_inputs):
            yield from arguments.get(name, ())


@cache
def tools() -> dict[str, Tool]:
    """Return all tools by name: those that are used first come first."""
    thresholds = _texts("Changed thresholds of checks, such as straggler=5%.")
    by_hand = (
        Tool(
            "diagnose",
            "Find performance problems, their cost and advice. Start here: the findings name the "
            "analysis with more details.",
            {"paths": _INPUTS, "thresholds": thresholds},
            ("paths",),
            ta.diagnose,
        ),
        Tool(
            "check_fix",
            "Was a fix worth it? The gain that diagnose predicts for a finding of the run before, "
            "compared with the measured gain; which findings are gone, and which are new.",
            {
                "before": _paths("Files and folders of the run before the fix."),
                "after": _paths("Files and folders of the run after it."),
                "expected": _text("Rule of the fixed finding.") | {"pattern": "^[a-z0-9-]+$"},
            },
            ("before", "after"),
            ta.check_fix,
            required=("expected",),
        ),
        Tool(
            "query",
            "Rows that SQL returns, read-only: one SELECT on a table, with JOIN ... ON or USING "
            "(event, rank). Times (ts, dur) are ns on one clock. Tables: " + _known_tables(),
            {"paths": _INPUTS, "sql": _text("One SELECT or WITH ... SELECT.")},
            ("paths",),
            ta.query,
            required=("sql",),
        ),
        Tool(
            "timeline_slice",
            "States, events, steps and gaps of each device between two times of the axis of "
            "timeline, on which all ranks are aligned.",
            {
                "paths": _INPUTS,
                "start": _text("Start of the slice on the axis, such as 1.5s."),
                "end": _text("End of the slice on the axis."),
            },
            ("paths",),
            timeline_slice,
            parsers={"start": parse_ns, "end": parse_ns},
            required=("start", "end"),
        ),
    )
    every = [*by_hand, *map(_tool, (*registry.public(), *registry.plugins()))]
    return {tool.name: tool for tool in every}


def _known_tables() -> str:
    """Return the tables of ``query``, the most used ones with their columns."""
    texts = (
        f"{name} ({', '.join(columns_of(name))})" if name in _WITH_COLUMNS else name
        for name in schema.TABLES
    )
    return ", ".join(texts)


def _tool(entry: registry.Entry) -> Tool:
    """Return the tool of an analyzer: an argument per option."""
    options: Schema = {}
    parsers, optional = {}, []
    function = entry.function()
    names = tuple(
        "paths" if name in _OF_A_RUN else name
        for name, parameter in signature(function).parameters.items()
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD
    )
    for name in names:
        options[name] = _INPUTS if name == "paths" else _paths("Files and folders of this run.")
    for item in fields(entry.options_class()):
        about: Option = item.metadata["option"]
        if not about.command_line or item.name in names:
            continue
        annotation = item.type if isinstance(item.type, str) else formatannotation(item.type)
        options[item.name] = _paths(about.help) if about.inputs else _argument(item, annotation)
        if about.inputs:
            optional.append(item.name)
        if about.unit:
            parsers[item.name] = _PARSED[about.unit]
    question = (function.__doc__ or "").partition("\n")[0]
    description = f"{entry.summary} {question}".strip()
    function = _info if entry.name == "info" else function
    return Tool(entry.name, description, options, names, function, tuple(optional), parsers)


def _argument(item: Any, annotation: str) -> Schema:
    """Return the JSON schema of an option."""
    about: Option = item.metadata["option"]
    if item.default is False:
        return {"type": "boolean", "description": about.help}
    if isinstance(item.default, tuple):
        texts = _texts(about.help)
        choices = {"enum": list(about.choices)} if about.choices else {}
        return {**texts, "items": texts["items"] | choices}
    if about.unit:
        unit = "ns" if about.unit == "time" else "bytes"
        return {**_integer(f"{about.help} A text with a unit, or {unit}.", most=_LAST_INT),
                "type": ["integer", "string"]}  # fmt: skip
    if about.choices:
        return {"type": "string", "enum": list(about.choices), "description": about.help}
    number = _NUMBERS.get(annotation.removesuffix(" | None"))
    if number is None:
        return _text(about.help)
    argument: Schema = {"type": number, "description": about.help}
    if number == "integer":
        argument["maximum"] = _LAST_RANK
    if about.minimum is not None:
        argument["minimum"] = about.minimum
    if about.above is not None:
        argument["exclusiveMinimum"] = about.above
    return argument


def _info(paths: Sequence[str], **reading: Any) -> Result:
    inputs, skipped = ta.find_inputs(paths)
    return ta.info(inputs, skipped=skipped, **reading)


# --- a part of a timeline ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class TimelineSlice(Result):
    """A part of a timeline.

    Attributes:
        start_ns, end_ns: the part, on the axis of the timeline.
        frames: rows of lanes, states, events, steps and gaps that overlap it; times in ns.
    """

    start_ns: int
    end_ns: int
    frames: Mapping[str, pl.DataFrame]
    timeline_notes: tuple[str, ...]

    def view(self) -> View:
        """Return the frames as tables."""
        counts = [format_count(self.frames[name].height, name[:-1]) for name in self.frames]
        return View(
            title="What does each device do in a part of the timeline?",
            verdict=f"{', '.join(counts)}.",
            notes=self.timeline_notes,
            tables=tuple(Table(name, name, frame, {}) for name, frame in self.frames.items()),
            scalars=self.numbers("start_ns", "end_ns"),
        )


def timeline_slice(paths: Sequence[str], *, start: int, end: int, **reading: Any) -> TimelineSlice:
    """Return the rows of a timeline that overlap a part of its axis.

    Args:
        paths: files and folders of all ranks.
        start: start of the part in ns on the axis of :func:`traceanalyzer.timeline`.
        end: its end.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work was recorded.
        OptionError: the part is empty.
    """
    if start >= end:
        raise OptionError("start must be before end")
    timeline = ta.timeline(paths, **reading)
    overlaps = (pl.col("start") < end) & (pl.col("end") > start)
    on = timeline.lanes.select("lane", "on")
    frames = {"lanes": timeline.lanes.filter(overlaps)}
    for name in ("states", "events", "steps", "gaps"):
        rows: pl.DataFrame = getattr(timeline, name).filter(overlaps)
        frames[name] = rows.join(on, on="lane", how="left", maintain_order="left")
    frames = {
        name: frame.rename({"start": "start_ns", "end": "end_ns"}) for name, frame in frames.items()
    }
    return TimelineSlice(start, end, frames, timeline.notes)
