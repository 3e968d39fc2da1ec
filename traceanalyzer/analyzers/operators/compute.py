"""Operator statistics of each rank, combined over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import replays
from traceanalyzer.analyzers.common.columns import per_rank, sum_if_known
from traceanalyzer.analyzers.common.host_code import with_call_stacks
from traceanalyzer.analyzers.operators import Options, SortBy, call_tree, result, sort_column
from traceanalyzer.analyzers.operators.result import Operators
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, nesting, numbering, slice_tree
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK

#: Sums of each row; null if the data was not recorded.
SUMS = (
    "calls", "self_host_ns", "total_host_ns", "self_device_ns", "total_device_ns",
    "self_host_memory_bytes", "total_host_memory_bytes",
    "self_device_memory_bytes", "total_device_memory_bytes",
)  # fmt: skip

#: Total times of calls that are in no other call of the row, for shares.
_ONCE = ("once_host_ns", "once_device_ns")

#: Time columns of the host and of the device.
_TIMES = ("self_{}_ns", "self_{}_frac", "total_{}_ns", "total_{}_frac", "mean_{}_ns")

#: Name of the missing data if there is nothing to sort by, and the event kind that has it.
_LACKING = {
    "device": ("device work", "kernel"),
    "memory": ("allocation of that kind", "cpu_instant_event"),
}

#: Data that may be missing, as :func:`record_hint` names it.
_MAY_LACK = ("kernel", "cpu_instant_event", "other code")


def needs(options: Options) -> Needs:
    """Host calls, device work and allocations; input shapes and code of kernels if requested."""
    wanted = {"input_dims": options.group_by_input_shape, "args": options.group_by_stack}
    columns = tuple(name for name, is_wanted in wanted.items() if is_wanted)
    kinds = frozenset((*call_tree.HOST, *DEVICE_WORK, call_tree.ALLOCATIONS))
    return Needs(kinds, columns=columns, unused=("category",))


@dataclass(frozen=True)
class Part:
    """One rank's operators.

    Attributes:
        rank: global rank, or None if the file has none.
        path: the file.
        rows: one row per operator: the keys of the options, :data:`SUMS` and :data:`_ONCE`.
        running: ``name``, ``kind`` and ``self_host_ns`` of the threads that run operators.
        device_ns: time of all device work; None if there is none.
        unlaunched_ns: part of it without a known call.
        replays: kernels replayed by graphs: :data:`~.common.replays.CONTEXTS`, ``row`` (the row of
            ``rows`` that they count for, or null), ``n`` and ``length_ns``.
        launchers: the result of :func:`~.common.replays.known` for the others.
        threads: number of threads with calls.
        outside_bytes: bytes allocated minus bytes freed outside of any call.
        unclosed: number of operators without an end, which are not counted.
        hints: how the profiler that wrote the file records missing data, by kind.
        spans: rows of :func:`.call_tree.spans`.
    """

    rank: int | None
    path: str
    rows: pl.DataFrame
    running: pl.DataFrame
    device_ns: int | None
    unlaunched_ns: int
    replays: pl.DataFrame
    launchers: pl.DataFrame
    threads: int
    outside_bytes: int
    unclosed: int
    hints: Mapping[str, str]
    spans: pl.DataFrame


@dataclass(frozen=True)
class Excerpt:
    """The data needed of one rank, without the trace.

    Attributes:
        rank: global rank, or None if the file has none.
        path: the file.
        calls: rows of :func:`.call_tree.all_calls` without ``event``, with ``input_dims`` if
            grouped by it.
        work: rows of :func:`.call_tree.launched_work`, with ``code``: the innermost functions that
            kernels state, if grouped by stack.
        captured: rows of :func:`.call_tree.captured_calls`.
        instants: rows of :func:`.call_tree.instants_of`.
        unclosed: number of operators without an end, which are not counted.
        hints: how the profiler that wrote the file records missing data, by kind.
        spans: rows of :func:`.call_tree.spans`.
    """

    rank: int | None
    path: str
    calls: pl.DataFrame
    work: pl.DataFrame
    captured: pl.DataFrame
    instants: pl.DataFrame
    unclosed: int
    hints: Mapping[str, str]
    spans: pl.DataFrame


def take(trace: Trace, options: Options) -> Excerpt:
    """Extract the needed columns of a trace, so that it can be freed.

    Raises:
        MissingData: no operators were recorded, or not the data to group by.
    """
    if options.group_by_stack:
        trace = with_call_stacks(trace)
    calls = call_tree.all_calls(trace)
    event = calls["event"]
    kept = calls.drop("event")
    if options.group_by_input_shape:
        kept = kept.with_columns(_input_shapes(trace).gather(event))
    work = call_tree.launched_work(trace, event)
    work = work.with_columns(_stated_code(trace, work["event"], options.group_by_stack))
    has_frames = (kept["kind"] == call_tree.FRAMES).any() or work["code"].count()
    if options.group_by_stack and not has_frames:
        hint = record_hint(trace.meta, call_tree.FRAMES)
        raise MissingData(f"{trace.meta.path}: no {call_tree.FRAMES} events were recorded; {hint}")
    return Excerpt(
        rank=trace.meta.rank,
        path=trace.meta.path,
        calls=kept,
        work=work,
        captured=call_tree.captured_calls(trace, event),
        instants=call_tree.instants_of(trace, calls),
        unclosed=call_tree.unclosed(trace),
        hints={what: record_hint(trace.meta, what) for what in _MAY_LACK},
        spans=call_tree.spans(trace),
    )


def measure(excerpt: Excerpt, options: Options) -> Part:
    """Return the operators of one rank."""
    work, tree = excerpt.work, call_tree.build(excerpt.calls)
    caller = call_tree.callers(work, tree)
    device = call_tree.device_time(work, caller, tree.height)
    device_ns = int(work["length_ns"].sum())
    memory = call_tree.allocations(excerpt.instants, tree)
    counted = call_tree.counted_as(tree)
    columns = _keys(tree, options, counted)
    first, row = numbering.numbered(columns.get_columns())
    keys = columns[first].with_columns(pl.col("name", "kind").cast(pl.String))
    is_counted = counted == np.arange(tree.height)
    is_outermost = is_counted & call_tree.outermost(tree, row)
    self_host = tree["self_time"].to_numpy()
    whole = (tree["end"] - tree["start"]).to_numpy()
    sums = [
        _summed("calls", is_counted.astype(np.int64), row, keys),
        _summed("self_host_ns", self_host, row, keys),
        _summed("total_host_ns", whole * is_counted, row, keys),
        _summed("once_host_ns", whole * is_outermost, row, keys),
    ]
    for name, values in (
        ("device_ns", device if work.height else None),
        ("host_memory_bytes", memory.host),
        ("device_memory_bytes", memory.device),
    ):
        sums.append(_summed(f"self_{name}", values, row, keys))
        nested = None if values is None else slice_tree.with_descendants(values, tree)
        total = None if nested is None else nested * is_counted
        sums.append(_summed(f"total_{name}", total, row, keys))
        if name == "device_ns":
            once = None if nested is None else nested * is_outermost
            sums.append(_summed(f"once_{name}", once, row, keys))
    running = _summed("self_host_ns", self_host * runs_operators(tree), row, keys)
    in_capture = call_tree.callers(excerpt.captured, tree)
    work, captured = (
        rows.with_columns(intervals.nullable("row", row[of], of != nesting.ROOT))
        for rows, of in ((work, caller), (excerpt.captured, in_capture))
    )
    rows, to = _by_code(keys.hstack(sums), keys.columns, work)
    keys, work = rows.select(keys.columns), work.with_columns(to)
    return Part(
        rank=excerpt.rank,
        path=excerpt.path,
        rows=rows,
        running=columns.select("name", "kind")[first].hstack([running]),
        device_ns=device_ns if work.height else None,
        unlaunched_ns=device_ns - int(device.sum()),
        replays=_replays(work),
        launchers=_launchers(work, captured, keys),
        threads=tree["thread"].n_unique(),
        outside_bytes=memory.outside,
        unclosed=excerpt.unclosed,
        hints=excerpt.hints,
        spans=excerpt.spans,
    )


def combine(parts: Sequence[Part], options: Options) -> result.Operators:
    """Sum the operators of all ranks by row.

    Raises:
        MissingData: the data to sort by was not recorded.
    """
    busy = [part.device_ns for part in parts if part.device_ns is not None]
    device_ns = sum(busy) if busy else None
    matched, moved = _matched_replays(parts, options.keys)
    rows = _added([*(part.rows for part in parts), moved], options.keys)
    replayed = pl.concat([part.replays.select("n", "length_ns") for part in parts])
    running = _added([part.running for part in parts], ("name", "kind"))
    sort_by = options.sort_by or ("self_host" if device_ns is None else "self_device")
    host_ns = int(rows["self_host_ns"].sum())
    rows = with_shares(rows, host_ns, device_ns)
    spans = _spans(parts, _ORDER.get(sort_by, "self_ns"))
    if rows.height or spans.is_empty():
        _require(rows, sort_by, parts[0])
    ordered = rows.sort(
        sort_column(sort_by),
        "self_host_ns",  # many calls launch nothing, or allocate nothing
        *options.keys,
        descending=[True, True, *(False for _ in options.keys)],
        nulls_last=True,
    )
    return result.Operators(
        sort_by=sort_by,
        n_calls=int(rows["calls"].sum()),
        host_ns=host_ns,
        device_ns=device_ns,
        unlaunched_ns=sum(part.unlaunched_ns for part in parts)
        - int(matched.filter(pl.col("row").is_null())["length_ns"].sum()),
        replayed=int(replayed["n"].sum()),
        replayed_ns=int(replayed["length_ns"].sum()),
        replayed_matched=int(matched["n"].sum()),
        replayed_matched_ns=int(matched["length_ns"].sum()),
        outside_bytes=sum(part.outside_bytes for part in parts),
        unclosed=sum(part.unclosed for part in parts),
        operators=ordered,
        running=running.sort("self_host_ns", "name", "kind", descending=[True, False, False]),
        ranks=per_rank(parts, [_numbers(part) for part in parts]),
        code_hint=parts[0].hints["other code"],
        spans=spans,
    )


#: Columns to sort spans by, if not by self time.
_ORDER: Mapping[SortBy, str] = {"total_host": "total_ns", "calls": "n"}


def _spans(parts: Sequence[Part], order: str) -> pl.DataFrame:
    """Return the spans of all ranks in descending order of a column, if none has operators."""
    if any(part.rows.height and part.spans.is_empty() for part in parts):
        return pl.DataFrame(schema=call_tree.SPANS)
    of = pl.col("self_ns", "n", "total_ns").sum(), pl.col("max_ns").max()
    rows = pl.concat([part.spans for part in parts]).group_by("thread", "name").agg(*of)
    rows = rows.with_columns(self_ns=pl.when(pl.col("thread").is_not_null()).then("self_ns"))
    by, flags = (order, "total_ns", "name", "thread"), [True, True, False, False]
    return rows.sort(by, descending=flags, nulls_last=True).select(*call_tree.SPANS)


OPERATORS = Analyzer("operators", Options, needs, measure, combine, take=take, slow=True)


# --- one rank ------------------------------------------------------------------------------


def _input_shapes(trace: Trace) -> pl.Series:
    if "input_dims" not in trace.events:
        hint = 'traceanalyzer.read(path, columns=["input_dims"]) reads them'
        raise MissingData(f"{trace.meta.path}: read without input shapes; {hint}")
    if trace.events["input_dims"].is_null().all():
        hint = record_hint(trace.meta, "input_dims")
        raise MissingData(f"{trace.meta.path}: no input shapes were recorded; {hint}")
    return trace.events["input_dims"]


def _stated_code(trace: Trace, events: pl.Series, frames: int) -> pl.Series:
    """Return the innermost functions, or modules, that kernels state; null if not grouped by."""
    if not frames:
        return pl.repeat(None, len(events), dtype=pl.String, eager=True).alias("code")
    from traceanalyzer.analyzers.modules.assignment import code_paths

    levels = code_paths(trace, events).str.split("\n").list.reverse().list.head(frames)
    return levels.list.join(call_tree.BETWEEN).alias("code")


def _by_code(
    rows: pl.DataFrame, keys: Sequence[str], work: pl.DataFrame
) -> tuple[pl.DataFrame, pl.Series]:
    """Count kernels for their call with the code that they state instead of its stack.

    Returns:
        The rows with those changes, and the row of each piece of work.
    """
    moved = work.group_by("row", "code", maintain_order=True).agg(pl.col("length_ns").sum())
    moved = moved.drop_nulls().with_row_index("to", rows.height)
    of_call, time = rows.select(keys)[moved["row"]], moved["length_ns"]
    times = [f"{which}_device_ns" for which in ("self", "total", "once")]
    more = of_call.with_columns(moved["code"].alias("stack")) if moved.height else of_call
    changes = [
        one.with_columns(ns.alias(t) for t in times) for one, ns in ((more, time), (of_call, -time))
    ]
    to = work.join(moved, on=["row", "code"], how="left", maintain_order="left")
    row = to.select(row=pl.coalesce("to", "row").cast(work.schema["row"])).to_series()
    return pl.concat([rows, *changes], how="diagonal_relaxed"), row


def _summed(
    name: str, values: intervals.Ints | None, row: numbering.Numbers, keys: pl.DataFrame
) -> pl.Series:
    """Return the exact integer sum of the values of each row; null without values."""
    if values is None:
        return pl.Series(name, [None] * keys.height, dtype=pl.Int64)
    total = np.zeros(keys.height, np.int64)
    np.add.at(total, row, values)
    return pl.Series(name, total)


def runs_operators(tree: pl.DataFrame) -> intervals.Bools:
    """Return a mask of the calls in threads that run operators; all calls if no thread does.

    Threads that only wait for other threads or the network have Python frames or annotations only.
    """
    threads = tree["thread"].filter(tree["kind"] == "cpu_op").unique()
    if threads.is_empty():
        return np.ones(tree.height, np.bool_)
    return tree["thread"].is_in(threads.implode()).to_numpy()


def _keys(tree: pl.DataFrame, options: Options, counted: nesting.Rows) -> pl.DataFrame:
    """Return the columns to group by, of the call that each one is counted as."""
    columns = [tree["name"], tree["kind"].gather(counted)]
    if options.group_by_input_shape:
        columns.append(tree["input_dims"].gather(counted))
    if options.group_by_stack:
        columns.append(call_tree.python_stacks(tree, options.group_by_stack).gather(counted))
    return pl.DataFrame(columns)


def _replays(work: pl.DataFrame) -> pl.DataFrame:
    rows = work.filter("replayed").group_by(*replays.CONTEXTS, "row")
    return rows.agg(n=pl.len().cast(pl.Int64), length_ns=pl.col("length_ns").sum())


def _launchers(work: pl.DataFrame, captured: pl.DataFrame, keys: pl.DataFrame) -> pl.DataFrame:
    """Return the operators (or null) of kernels launched one by one and of captured kernels.

    Annotations around a launch do not count as its operator.
    """
    rows = [work.filter(~pl.col("replayed")), captured]
    known = pl.concat([replays.known(one.drop_nulls("row"), ["row"]) for one in rows])
    operators = keys["kind"].is_in(("cpu_op", call_tree.FRAMES))
    names = keys.with_columns(pl.when(operators).then("name").alias("name"))
    return known.drop("row").hstack(names[known["row"]])


# --- all ranks -----------------------------------------------------------------------------


def _matched_replays(
    parts: Sequence[Part], keys: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return replayed kernels with a known operator, and their device time as rows of sums.

    The self time moves from the graph launch to the operator; the total times of the graph launch
    and of the calls around it do not change.
    """
    first = np.cumsum([0, *(part.rows.height for part in parts)])  # row of each part's first row
    each = pl.concat(
        part.replays.with_columns(pl.col("row") + begin)
        for part, begin in zip(parts, first, strict=False)
    )
    matches = replays.resolved(each, [part.launchers for part in parts], keys)
    time = pl.col("length_ns")
    resolved = matches.select(*keys, self_device_ns=time, total_device_ns=time, once_device_ns=time)
    with_row = matches.drop_nulls("row")
    launch = pl.concat(part.rows.select(keys) for part in parts)[with_row["row"]]
    from_launches = launch.with_columns(self_device_ns=-with_row["length_ns"])
    sums = pl.concat([parts[0].rows.clear(), resolved, from_launches], how="diagonal_relaxed")
    return matches, sums


def _added(frames: Sequence[pl.DataFrame], keys: Sequence[str]) -> pl.DataFrame:
    """Sum the rows by the keys; a sum of nulls is null."""
    rows = pl.concat(frames)
    return rows.group_by(keys).agg(sum_if_known(name) for name in rows.columns if name not in keys)


def _require(rows: pl.DataFrame, sort_by: SortBy, part: Part) -> None:
    if rows[sort_column(sort_by)].is_not_null().any():
        return
    what, kind = _LACKING["memory" if "memory" in sort_by else "device"]
    raise MissingData(f"{part.path}: no {what} was recorded; {part.hints[kind]}")


def with_shares(rows: pl.DataFrame, host_ns: int, device_ns: int | None) -> pl.DataFrame:
    """Add means per call and shares of all host time and all device work."""
    keys = [name for name in rows.columns if name not in (*SUMS, *_ONCE)]
    added: list[pl.Expr] = []
    for side, whole in (("host", host_ns), ("device", device_ns)):
        added += [_share(f"self_{side}", f"self_{side}_ns", whole)]
        added += [_share(f"total_{side}", f"once_{side}_ns", whole)]
        mean = pl.col(f"total_{side}_ns") / pl.col("calls")
        added.append(mean.round().cast(pl.Int64).alias(f"mean_{side}_ns"))
    times = [name.format(side) for side in ("host", "device") for name in _TIMES]
    memory = [name for name in SUMS if "memory" in name]
    return rows.with_columns(added).select(*keys, "calls", *times, *memory)


def _share(name: str, part: str, whole: int | None) -> pl.Expr:
    value = pl.col(part) / whole if whole else pl.lit(None, pl.Float64)
    return value.alias(f"{name}_frac")


def _numbers(part: Part) -> dict[str, int | None]:
    return {
        "calls": int(part.rows["calls"].sum()),
        "threads": part.threads,
        "host_ns": int(part.rows["self_host_ns"].sum()),
        "device_ns": part.device_ns,
    }


def operators(
    inputs: Inputs,
    *,
    sort_by: SortBy | None = None,
    group_by_input_shape: bool = False,
    group_by_stack: int = 0,
    **reading: Unpack[Reading],
) -> Operators:
    """Return which operators take the time, as PyTorch's ``key_averages`` does.

    One file is in memory at a time; the ranks are summed.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        sort_by: the column to sort by, in descending order; None for self device time if there is
            device work, else self host time.
        group_by_input_shape: also group by input shapes.
        group_by_stack: also group by this many innermost Python frames; 0 for none.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: operators or the requested data were not recorded.
        OptionError: ``sort_by`` is not a known column.
    """
    options = Options(sort_by, group_by_input_shape, group_by_stack)
    return run(OPERATORS, inputs, options, **reading)
