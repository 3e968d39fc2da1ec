"""Weights of the stacks of one file: of samples, or of nested slices."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.columns import left_join
from traceanalyzer.analyzers.common.kernel_names import short_names
from traceanalyzer.analyzers.common.names import python_frame
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.frames import intervals, nesting, numbering, stack_weights
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK

#: Most levels of a stack; deeper frames are merged.
DEEPEST = 2_000

#: Names of frames without a name, or of merged frames.
NO_STACK = "(no stack)"
TOO_DEEP = f"(deeper than {DEEPEST:,} frames)"

#: Columns of a table of functions; ``first`` and ``last`` are lines.
FRAMES = {"name": pl.String, "file": pl.String, "first": pl.Int32, "last": pl.Int32}

#: Unit of samples for each ``--weight``.
_UNITS = {"time": "ns", "bytes": "bytes"}
_ADVICE = {
    "time": "the sampling rate was not recorded; without --weight samples are counted",
    "bytes": "omit --weight",
}

_LANES = ("rank", "pid", "tid", "device", "stream")

#: Each step has a different name; stacks of all steps are merged.
_STEP = r"^(ProfilerStep)#\d+$"


@dataclass(frozen=True)
class Calls:
    """Weights at rows of call trees, unordered.

    Attributes:
        frames: ``name``, ``file`` and ``line`` of each row of the trees.
        parent: the calling row of each row, or ROOT.
        row: the row of each weight; ROOT for a stack without frames.
        weight: the weights.
        before: mask of the weights of the base run in the same file.
        events: the row of ``events`` of each weight.
        unit: unit of the weights: ``samples``, ``ns``, ``bytes``, ``events``, or empty if unknown.
        counts: counts of what was left out or is unusual, by key of the notes.
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
    """Weights on a call tree, with one frame per function.

    Attributes:
        unit: of the weights.
        frames: the functions by (name, file), columns :data:`FRAMES`; ``forest`` has their row
            numbers.
        forest: the call tree, in order.
        node: the node of each weight.
        group: the group number of each weight.
        weights: the weights; the second series, if any, is of the base run.
        groups: labels of the groups.
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
        counts: counts of what was left out or is unusual, by key of the notes.
    """

    path: str
    counts: Counter[str]


def part(path: str, calls: Calls, group: intervals.Ints, groups: tuple[str, ...]) -> Part:
    """Build one file's part from the weights of its rows and the group of each."""
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
    """Return the stacks of sample events with their weights.

    Args:
        trace: the trace.
        rows: its rows of ``events`` to count.
        weight: ``time``, ``bytes`` or ``count``; None for the recorded weights.

    Raises:
        OptionError: the samples do not have this weight.
        InputError: the table ``stacks`` is not a tree.
    """
    units = {meta.weight_unit for meta in trace.sources}
    unit = trace.meta.weight_unit or ""
    if len(units) > 1:
        several = ", ".join(sorted(other or "unknown" for other in units))
        raise InputError(trace.meta.path, f"weights have several units ({several})")
    if weight in _UNITS and unit != _UNITS[weight]:
        known = unit or "an unknown unit"
        raise OptionError(f"--weight {weight}: the samples are in {known}; {_ADVICE[weight]}")
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
        raise InputError(
            trace.meta.path, "the table of stacks is not a tree", hint="convert it again"
        )
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
    """Return the slices with self time (or bytes, or 1) at their place in the nesting.

    Args:
        trace: the trace.
        rows: its rows of ``events`` with the selected slices.
        weight: ``time`` (also None), ``bytes`` or ``count``.
        window: start and end on the trace's clock; slices are cut to it.

    Raises:
        MissingData: the weight is bytes, and no slice has any.
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
            raise MissingData(f"{trace.meta.path}: the events have no sizes in bytes")
        weights = slices["bytes"].fill_null(0).clip(lower_bound=0)
    else:
        weights = pl.Series(np.ones(slices.height)) if weight == "count" else slices["self_time"]
    at = np.flatnonzero(weights.to_numpy() > 0)
    parent = slices["parent"].cast(pl.Int64).fill_null(stack_weights.ROOT)
    names, parent = _below_code(trace, slices["_event"], slices["name"], parent)
    return Calls(
        frames=_frames(names),
        parent=parent.to_numpy(),
        row=at,
        weight=weights.to_numpy()[at].astype(np.float64),
        before=np.zeros(at.size, np.bool_),
        events=slices["_event"].gather(at),
        unit={"bytes": "bytes", "count": "events"}.get(weight or "time", "ns"),
        counts=counts,
    )


def _below_code(
    trace: Trace, events: pl.Series, names: pl.Series, parent: pl.Series
) -> tuple[pl.Series, pl.Series]:
    """Give kernels short names, and the functions of the program or modules that they state."""
    kinds = trace.events["kind"].gather(events)
    if "args" not in trace.events.columns or not kinds.is_in(DEVICE_WORK).all():
        return names, parent
    from traceanalyzer.analyzers.modules.assignment import code_paths

    names = names.replace(short_names(names.drop_nulls().unique().cast(pl.String).to_list()))
    paths = code_paths(trace, events)
    distinct = paths.drop_nulls().unique(maintain_order=True)
    levels = distinct.str.split("\n")
    added, sizes = levels.explode().cast(names.dtype), levels.list.len().cast(pl.Int64)
    last = sizes.cum_sum() + names.len() - 1
    callers = pl.int_range(added.len(), eager=True) + names.len() - 1
    callers = callers.scatter(sizes.cum_sum() - sizes, stack_weights.ROOT)
    code = paths.replace_strict(distinct, last, default=stack_weights.ROOT, return_dtype=pl.Int64)
    parent = code.zip_with(parent == stack_weights.ROOT, parent)
    return pl.concat([names, added]), pl.concat([parent, callers])


def _functions(frames: pl.DataFrame) -> tuple[pl.DataFrame, intervals.Ints]:
    """Return distinct (name, file), sorted, with first and last line; the number of each row."""
    first, last = pl.col("line").min().alias("first"), pl.col("line").max().alias("last")
    distinct, number = numbering.summed_by_text(frames, ["name", "file"], first, last)
    return distinct.select(pl.col(name).cast(dtype) for name, dtype in FRAMES.items()), number


def _frames(names: pl.Series) -> pl.DataFrame:
    """Return name, file and line of slices, from their names."""
    distinct = names.unique().to_frame("slice")
    text = pl.col("slice").cast(pl.String)
    parsed = python_frame(text).struct
    known = distinct.with_columns(
        name=pl.coalesce(parsed.field("name"), text.str.replace(_STEP, "$1")),
        file=parsed.field("file"),
        line=parsed.field("line"),
    )
    return left_join(names.to_frame("slice"), known, "slice").drop("slice")


# --- groups ----------------------------------------------------------------------------------

_KEYS = {"process": ["rank", "pid"], "thread": ["rank", "pid", "tid"], "rank": ["rank"]}
_NAMED_THREADS = 5


def of_threads(trace: Trace, threads: Sequence[str]) -> pl.Expr:
    """Select the events of threads, by number or by a part of the name.

    Raises:
        OptionError: no thread matches; the text has some thread names.
    """
    if not threads:
        return pl.lit(value=True)
    known = _labels(trace).filter(pl.col("tid").is_not_null())
    present = trace.events.select("pid", "tid").unique().drop_nulls("tid")
    named = present.join(known, on=["pid", "tid"], how="left", nulls_equal=True)
    wanted = pl.lit(value=False)
    for thread in threads:
        by_name = pl.col("label").str.contains(thread, literal=True).fill_null(value=False)
        wanted |= by_name | (pl.col("tid").cast(pl.String) == thread)
    chosen = named.filter(wanted)
    if chosen.is_empty():
        some = named.select(pl.coalesce("label", pl.col("tid").cast(pl.String))).to_series()
        available = ", ".join(sorted(set(some))[:_NAMED_THREADS]) or "none"
        raise OptionError(f"--thread {threads[0]}: no such thread; available: {available}")
    key = pl.struct(pl.col("pid", "tid").cast(pl.Int64))
    return key.is_in(chosen.select(key).to_series().implode())


def groups(trace: Trace, rows: pl.Series, by: str | None) -> tuple[intervals.Ints, tuple[str, ...]]:
    """Return the group number of each event, and the labels of the groups.

    Args:
        trace: the trace.
        rows: its rows of ``events``.
        by: ``process``, ``thread``, ``rank`` or ``file``; None for a single group.
    """
    if by is None or (by == "file" and len(trace.sources) == 1):
        return np.zeros(rows.len(), np.int64), (_file(trace.meta.path),)
    keys = _KEYS["rank" if by == "file" else by]
    lanes, (number,) = numbering.group_numbers(keys, trace.events.select(keys)[rows])
    if by == "file":
        paths = {meta.rank: _file(meta.path) for meta in trace.sources}
        labels = [paths.get(rank, _rank(rank)) for rank in lanes["rank"]]
    elif by == "rank":
        labels = [_rank(rank) for rank in lanes["rank"]]
    else:
        labels = _lane_labels(trace, lanes)
    distinct = sorted(set(labels))
    places = np.array([distinct.index(label) for label in labels], np.int64)
    return places[number], tuple(distinct)


def _labels(trace: Trace) -> pl.DataFrame:
    """Return the labels of processes and threads."""
    lanes = trace.lanes.select("rank", "pid", "tid", "label").drop_nulls("label")
    return lanes.unique(["rank", "pid", "tid"], keep="first", maintain_order=True)


def _lane_labels(trace: Trace, lanes: pl.DataFrame) -> list[str]:
    """Return labels such as ``rank 3, process 2311: python train.py, thread 2316: MainThread``."""
    known = {(rank, pid, tid): label for rank, pid, tid, label in _labels(trace).iter_rows()}
    several = lanes["rank"].n_unique() > 1
    labels = []
    for lane in lanes.iter_rows(named=True):
        rank, pid, tid = lane["rank"], lane["pid"], lane.get("tid")
        parts = [_rank(rank)] if several or rank is not None else []
        parts.append(_named("process", pid, known.get((rank, pid, None))))
        if "tid" in lane:
            parts.append(_named("thread", tid, known.get((rank, pid, tid))))
        labels.append(", ".join(parts))
    return labels


def _named(what: str, number: int | None, label: str | None) -> str:
    return f"{what} {'unknown' if number is None else number}{f': {label}' if label else ''}"


def _rank(rank: int | None) -> str:
    return "no rank" if rank is None else f"rank {rank}"


def _file(path: str) -> str:
    return PurePath(path).name or path
