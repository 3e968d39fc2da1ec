"""The weights of one file's stacks: those of samples, and of slices by how they nest."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.names import python_frame
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.frames import intervals, nesting
from traceanalyzer.frames.intervals import Bools, Ints
from traceanalyzer.frames.stack_weights import ROOT, Forest, Weights, merge
from traceanalyzer.trace import Trace

#: Levels of a stack that are told apart; deeper frames become one.
DEEPEST = 2_000

#: Stands in a stack for what is not known by name, or not told apart.
NO_STACK = "(no stack)"
TOO_DEEP = f"(deeper than {DEEPEST:,} frames)"

#: Columns of a table of functions; ``first`` and ``last`` are the lines seen in it.
FRAMES = {"name": pl.String, "file": pl.String, "first": pl.Int32, "last": pl.Int32}

#: What ``--weight`` asks for, in the unit that samples have it.
_UNITS = {"time": "ns", "bytes": "bytes"}
_ADVICE = {
    "time": "the rate is not recorded; without --weight samples are counted",
    "bytes": "leave --weight out",
}

_LANES = ("rank", "pid", "tid", "device", "stream")

#: Each step has a name of its own; stacks of all steps belong together.
_STEP = r"^(ProfilerStep)#\d+$"


@dataclass(frozen=True)
class Calls:
    """Weights at rows of call trees, as they come.

    Attributes:
        frames: ``name``, ``file`` and ``line`` of each row of the trees.
        parent: the calling row of each row, or ROOT.
        row: the row that each weight lies at; ROOT for a stack without frames.
        weight: the weights.
        before: which of them are of the run that the file itself compares with.
        events: the row of ``events`` of each weight.
        unit: of the weights: ``samples``, ``ns``, ``bytes``, ``events``, or empty if not known.
        counts: what was left out or is odd, by the words of the notes.
    """

    frames: pl.DataFrame
    parent: Ints
    row: Ints
    weight: Weights
    before: Bools
    events: pl.Series
    unit: str
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Part:
    """A file's weighted stacks, a function being one frame whatever its line.

    Attributes:
        path: the file.
        unit: of the weights.
        frames: the functions by (name, file), columns :data:`FRAMES`; row numbers are the numbers
            that ``forest`` has.
        forest: the call tree, in order.
        node: the node of each weight.
        group: the number of the group it belongs to.
        weights: the weights; the second series is of the run that the file compares with.
        groups: what the groups are called.
        counts: what was left out or is odd, by the words of the notes.
    """

    path: str
    unit: str
    frames: pl.DataFrame
    forest: Forest
    node: Ints
    group: Ints
    weights: Weights
    groups: tuple[str, ...]
    counts: Counter[str]


def part(path: str, calls: Calls, group: Ints, groups: tuple[str, ...]) -> Part:
    """One file's part, of the weights of its rows and the group of each."""
    frames, number = _functions(calls.frames)
    rest, no_stack = frames.height, frames.height + 1
    extra = pl.DataFrame({"name": [TOO_DEEP, NO_STACK]})
    bare = calls.row == ROOT
    parent = np.append(calls.parent, ROOT) if bare.any() else calls.parent
    frame = np.append(number, no_stack) if bare.any() else number
    forest, node = merge(parent, frame, DEEPEST, rest)
    pairs = node[np.where(bare, parent.size - 1, calls.row)] * len(groups) + group
    used, place = np.unique(pairs, return_inverse=True)
    weights = [
        np.bincount(place[side], calls.weight[side], used.size)
        for side in (~calls.before, calls.before)
    ]
    return Part(
        path=path,
        unit=calls.unit,
        frames=pl.concat([frames, extra], how="diagonal"),
        forest=forest,
        node=used // len(groups),
        group=used % len(groups),
        weights=np.array(weights, np.float64),
        groups=groups,
        counts=calls.counts,
    )


def sampled(trace: Trace, rows: pl.Series, weight: str | None) -> Calls:
    """The stacks of sample events, each with its weight.

    Args:
        trace: the trace.
        rows: its rows of ``events`` to count.
        weight: ``time``, ``bytes`` or ``count``; None takes the weights as they are recorded.

    Raises:
        OptionError: the samples do not have such a weight.
        InputError: the table ``stacks`` is no tree.
    """
    units = {meta.weight_unit for meta in trace.sources}
    unit = trace.meta.weight_unit or ""
    if len(units) > 1:
        words = ", ".join(sorted(other or "of no known unit" for other in units))
        raise InputError(trace.meta.path, f"weights are {words}, which cannot be added")
    if weight in _UNITS and unit != _UNITS[weight]:
        has = unit or "of no known unit"
        raise OptionError(f"--weight {weight}: what the samples count is {has}; {_ADVICE[weight]}")
    events = trace.events.select(
        "stack", "weight", before=pl.col("category").cast(pl.String).eq_missing("before")
    )
    chosen = events[rows]
    counts: Counter[str] = Counter()
    if weight == "count" and unit != "samples":
        chosen, unit = chosen.with_columns(weight=1.0), "samples"
    counted = chosen.select(
        ((pl.col("weight") > 0) & pl.col("weight").is_finite()).fill_null(False)
    )
    keep = counted.to_series()
    counts["unweighted"] = chosen.height - int(keep.sum())
    chosen, rows = chosen.filter(keep), rows.filter(keep)
    parent = trace.stacks["parent"].cast(pl.Int64).fill_null(ROOT).to_numpy()
    row = chosen["stack"].cast(pl.Int64).fill_null(ROOT).to_numpy()
    if (parent >= np.arange(parent.size)).any() or row.max(initial=ROOT) >= parent.size:
        raise InputError(trace.meta.path, "the table of stacks is no tree", hint="convert it again")
    return Calls(
        frames=trace.stacks.select("name", "file", "line"),
        parent=parent,
        row=row,
        weight=chosen["weight"].to_numpy(),
        before=chosen["before"].to_numpy(),
        events=rows,
        unit=unit,
        counts=counts,
    )


def sliced(
    trace: Trace, rows: pl.Series, weight: str | None, window: tuple[int | None, int | None]
) -> Calls:
    """The slices, each with its own time (or bytes, or 1) at its place in the nesting.

    Args:
        trace: the trace.
        rows: its rows of ``events`` that are the slices wanted, each of some duration.
        weight: ``time`` (also None), ``bytes`` or ``count``.
        window: start and end on the trace's clock; slices are cut to it.

    Raises:
        MissingData: bytes are asked for, and no slice has any.
    """
    wanted = ["name", "bytes", *_LANES]
    slices = trace.events.select(*wanted, start="ts", end=pl.col("ts") + pl.col("dur"))[rows]
    counts: Counter[str] = Counter()
    slices = slices.with_columns(_event=rows)
    slices = intervals.clip(slices, *window)
    slices = nesting.self_time(nesting.nest(slices, _LANES))
    counts["overlapping"] = int((slices["lane"] > 0).sum())
    if weight == "bytes":
        if slices["bytes"].drop_nulls().is_empty():
            raise MissingData(f"{trace.meta.path}: none of these events has a size in bytes")
        own = slices["bytes"].fill_null(0).clip(lower_bound=0)
    else:
        own = pl.Series(np.ones(slices.height)) if weight == "count" else slices["self_time"]
    at = np.flatnonzero(own.to_numpy() > 0)
    return Calls(
        frames=_frames(slices["name"]),
        parent=slices["parent"].cast(pl.Int64).fill_null(ROOT).to_numpy(),
        row=at,
        weight=own.to_numpy()[at].astype(np.float64),
        before=np.zeros(at.size, np.bool_),
        events=slices["_event"].gather(at),
        unit={"bytes": "bytes", "count": "events"}.get(weight or "time", "ns"),
        counts=counts,
    )


def _functions(frames: pl.DataFrame) -> tuple[pl.DataFrame, Ints]:
    """The distinct (name, file), sorted, with the first and last line; the number of each row."""
    found = (
        frames.with_row_index("_row")
        .group_by("name", "file")
        .agg(pl.col("line").min().alias("first"), pl.col("line").max().alias("last"), "_row")
        .with_columns(pl.col("name", "file").cast(pl.String))
        .sort("name", "file")
    )
    number = np.empty(frames.height, np.int64)
    number[found["_row"].explode(empty_as_null=False).to_numpy()] = np.repeat(
        np.arange(found.height), found["_row"].list.len().to_numpy()
    )
    return found.select(pl.col(name).cast(dtype) for name, dtype in FRAMES.items()), number


def _frames(names: pl.Series) -> pl.DataFrame:
    """Name, file and line of slices, by their names."""
    distinct = names.unique().to_frame("slice")
    text = pl.col("slice").cast(pl.String)
    told = python_frame(text).struct
    known = distinct.with_columns(
        name=pl.coalesce(told.field("name"), text.str.replace(_STEP, "$1")),
        file=told.field("file"),
        line=told.field("line"),
    )
    frames = names.to_frame("slice").join(
        known, on="slice", how="left", nulls_equal=True, maintain_order="left"
    )
    return frames.select("name", "file", "line")
