"""The weights of one file's stacks: those of samples, and of slices by how they nest."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.columns import looked_up
from traceanalyzer.analyzers.common.names import python_frame
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.frames import intervals, nesting, numbering, stack_weights
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
    parent: intervals.Ints
    row: intervals.Ints
    weight: stack_weights.Weights
    before: intervals.Bools
    events: pl.Series
    unit: str
    counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Weighted:
    """Weights on a call tree, a function being one frame whatever its line.

    Attributes:
        unit: of the weights.
        frames: the functions by (name, file), columns :data:`FRAMES`; row numbers are the numbers
            that ``forest`` has.
        forest: the call tree, in order.
        node: the node of each weight.
        group: the number of the group it belongs to.
        weights: the weights; the second series, if there is one, is of the run compared with.
        groups: what the groups are called.
    """

    unit: str
    frames: pl.DataFrame
    forest: stack_weights.Forest
    node: intervals.Ints
    group: intervals.Ints
    weights: stack_weights.Weights
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Part(Weighted):
    """A file's weighted stacks.

    Attributes:
        path: the file.
        counts: what was left out or is odd, by the words of the notes.
    """

    path: str
    counts: Counter[str]


def part(path: str, calls: Calls, group: intervals.Ints, groups: tuple[str, ...]) -> Part:
    """One file's part, of the weights of its rows and the group of each."""
    frames, number = _functions(calls.frames)
    rest, no_stack = frames.height, frames.height + 1
    extra = pl.DataFrame({"name": [TOO_DEEP, NO_STACK]})
    bare = calls.row == stack_weights.ROOT
    parent = np.append(calls.parent, stack_weights.ROOT) if bare.any() else calls.parent
    frame = np.append(number, no_stack) if bare.any() else number
    forest, node = stack_weights.merge(parent, frame, DEEPEST, rest)
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
    parent = trace.stacks["parent"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    row = chosen["stack"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy()
    if (parent >= np.arange(parent.size)).any() or row.max(
        initial=stack_weights.ROOT
    ) >= parent.size:
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
        parent=slices["parent"].cast(pl.Int64).fill_null(stack_weights.ROOT).to_numpy(),
        row=at,
        weight=own.to_numpy()[at].astype(np.float64),
        before=np.zeros(at.size, np.bool_),
        events=slices["_event"].gather(at),
        unit={"bytes": "bytes", "count": "events"}.get(weight or "time", "ns"),
        counts=counts,
    )


def _functions(frames: pl.DataFrame) -> tuple[pl.DataFrame, intervals.Ints]:
    """The distinct (name, file), sorted, with the first and last line; the number of each row."""
    first, last = pl.col("line").min().alias("first"), pl.col("line").max().alias("last")
    found, number = numbering.summed_by_text(frames, ["name", "file"], first, last)
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
    return looked_up(names.to_frame("slice"), known, "slice").drop("slice")


# --- groups ----------------------------------------------------------------------------------

_KEYS = {"process": ["rank", "pid"], "thread": ["rank", "pid", "tid"], "rank": ["rank"]}
_SHOWN_THREADS = 5


def of_threads(trace: Trace, threads: Sequence[str]) -> pl.Expr:
    """The events of threads, each told by its number or by a part of its name.

    Raises:
        OptionError: no thread of the trace is called so; some that there are are named.
    """
    if not threads:
        return pl.lit(value=True)
    known = _labels(trace).filter(pl.col("tid").is_not_null())
    present = trace.events.select("pid", "tid").unique().drop_nulls("tid")
    named = present.join(known, on=["pid", "tid"], how="left", nulls_equal=True)
    wanted = pl.lit(value=False)
    for thread in threads:
        by_name = pl.col("label").str.contains(thread, literal=True).fill_null(value=False)
        by_number = pl.col("tid").cast(pl.String) == thread
        wanted |= by_name | by_number
    chosen = named.filter(wanted)
    if chosen.is_empty():
        some = named.select(pl.coalesce("label", pl.col("tid").cast(pl.String))).to_series()
        words = ", ".join(sorted(set(some))[:_SHOWN_THREADS]) or "none"
        raise OptionError(f"--thread {threads[0]}: no such thread; there are {words}")
    key = pl.struct(pl.col("pid", "tid").cast(pl.Int64))
    return key.is_in(chosen.select(key).to_series().implode())


def groups(trace: Trace, rows: pl.Series, by: str | None) -> tuple[intervals.Ints, tuple[str, ...]]:
    """The number of the group of each event, and what the groups are called.

    Args:
        trace: the trace.
        rows: its rows of ``events``.
        by: ``process``, ``thread``, ``rank`` or ``file``; None for a single group.
    """
    if by is None or (by == "file" and len(trace.sources) == 1):
        return np.zeros(rows.len(), np.int64), (_file(trace.meta.path),)
    keys = _KEYS["rank" if by == "file" else by]
    found, (number,) = numbering.group_numbers(keys, trace.events.select(keys)[rows])
    if by == "file":
        paths = {meta.rank: _file(meta.path) for meta in trace.sources}
        labels = [paths.get(rank, _rank(rank)) for rank in found["rank"]]
    elif by == "rank":
        labels = [_rank(rank) for rank in found["rank"]]
    else:
        labels = _lane_words(trace, found)
    distinct = sorted(set(labels))
    places = np.array([distinct.index(label) for label in labels], np.int64)
    return places[number], tuple(distinct)


def _labels(trace: Trace) -> pl.DataFrame:
    """A label for each process and thread that has one."""
    lanes = trace.lanes.select("rank", "pid", "tid", "label").drop_nulls("label")
    return lanes.unique(["rank", "pid", "tid"], keep="first", maintain_order=True)


def _lane_words(trace: Trace, lanes: pl.DataFrame) -> list[str]:
    """``rank 3, process 2311: python train.py, thread 2316: MainThread``."""
    known = {(rank, pid, tid): label for rank, pid, tid, label in _labels(trace).iter_rows()}
    several = lanes["rank"].n_unique() > 1
    words = []
    for lane in lanes.iter_rows(named=True):
        rank, pid, tid = lane["rank"], lane["pid"], lane.get("tid")
        parts = [_rank(rank)] if several or rank is not None else []
        parts.append(_named("process", pid, known.get((rank, pid, None))))
        if "tid" in lane:
            parts.append(_named("thread", tid, known.get((rank, pid, tid))))
        words.append(", ".join(parts))
    return words


def _named(what: str, number: int | None, label: str | None) -> str:
    return f"{what} {'unknown' if number is None else number}{f': {label}' if label else ''}"


def _rank(rank: int | None) -> str:
    return "no rank" if rank is None else f"rank {rank}"


def _file(path: str) -> str:
    return PurePath(path).name or path
