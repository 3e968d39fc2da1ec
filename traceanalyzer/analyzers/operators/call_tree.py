"""The call tree of each thread as in PyTorch, with the device work and memory of each call."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import columns, device_work, launching, replays
from traceanalyzer.analyzers.common.names import one_name_for_steps, without_addresses
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, nesting, numbering, slice_tree
from traceanalyzer.trace import Trace, of_kinds, record_hint
from traceanalyzer.vocabulary import ANNOTATION_KINDS, DEVICE_WORK, HOST_KINDS, SPAN_KINDS

#: Slices that name a part of the program; device work is counted for them.
MARKED = ("cpu_op", *ANNOTATION_KINDS)

#: Python frames, where they were recorded.
FRAMES = "python_function"

#: Slices of traces without any of these.
OTHER = "other"

#: Runtime calls of operators: separate rows, as in PyTorch, but without device work.
CALLS = tuple(kind for kind in HOST_KINDS if kind not in (*MARKED, FRAMES, OTHER, "osrt"))

#: Slices between a begin and an end that may be on several threads.
ASYNC = "async"

#: All of these.
HOST = (*MARKED, FRAMES, OTHER, *CALLS, ASYNC)

#: Instants of allocations and frees.
ALLOCATIONS = "cpu_instant_event"

#: c10 device types with host memory: CPU, MKLDNN, IDEEP.
_HOST_TYPES = (0, 2, 5)

#: Separator of the frames of a stack, the innermost first.
BETWEEN = "; "

#: Bookkeeping of autograd and the profiler: PyTorch counts it as self time of the caller.
_UNNAMED = (
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
)


def build(calls: pl.DataFrame) -> pl.DataFrame:
    """Add the parent of each call of :func:`all_calls`.

    Returns:
        The calls with ``depth``, ``parent`` (row) and ``self_time``, which adds up to the time in
        which the thread was in any call.
    """
    return slice_tree.build_tree(calls, ["thread"])


def counted_as(tree: pl.DataFrame) -> nesting.Rows:
    """Return the call that each call is counted as (a row number).

    That is the call itself, except for an operator that is the only call of a call of the same
    name: as in PyTorch it is merged with its caller. Recursive functions are not merged.
    """
    parent, name = slice_tree.parents(tree), tree["name"].to_physical().to_numpy()
    is_operator = (tree["kind"] == "cpu_op").to_numpy()
    nested = np.flatnonzero((parent != nesting.ROOT) & is_operator).astype(np.int32)
    same_name = nested[name[nested] == name[parent[nested]]]
    calls = np.bincount(parent[nested], minlength=tree.height)
    merged = same_name[calls[parent[same_name]] == 1]
    target = np.arange(tree.height, dtype=np.int32)
    target[merged] = parent[merged]
    while (chained := target[target] != target).any():
        target[chained] = target[target[chained]]
    return target


def outermost(tree: pl.DataFrame, row: numbering.Numbers) -> intervals.Bools:
    """Return which calls are in no other call of the same row: total times count these.

    Args:
        tree: the rows of :func:`build`.
        row: the row of the result that each call belongs to.
    """
    calls = tree.select("thread", "start", "end", "depth", row=pl.Series(row))
    before = pl.col("end").cum_max().shift(1).over("row", "thread", order_by=["start", "depth"])
    return calls.select((pl.col("start") >= before).fill_null(value=True)).to_series().to_numpy()


def unclosed(trace: Trace) -> int:
    """Count the operators and annotations without an end; NVTX marks need none."""
    open_ended = of_kinds(MARKED) & (pl.col("kind") != "nvtx") & pl.col("dur").is_null()
    return trace.events.filter(open_ended).height


def all_calls(trace: Trace) -> pl.DataFrame:
    """Return every call of a rank's threads, in the order of the trace.

    Calls are operators, annotations, NVTX ranges, Python frames and their runtime calls; in traces
    with runtime calls only, all other host slices. All profiler steps get the same name, and names
    with the address of an object are without it.

    Returns:
        ``event`` (row of ``events``), ``kind``, ``name``, ``external_id``, ``thread`` (a number),
        ``start``, ``end``.

    Raises:
        MissingData: no calls were recorded.
    """
    on_host = pl.col("device").is_null() & pl.col("tid").is_not_null() & (pl.col("dur") >= 0)
    of_kind = pl.col("kind") == OTHER
    if trace.events["kind"].is_in((*MARKED, FRAMES)).any():
        of_kind = pl.col("kind").is_in((*MARKED, FRAMES, *CALLS))
    names = trace.names
    event = trace.events.select(on_host & of_kind & _is_named(trace)).to_series().arg_true()
    if event.is_empty() and spans(trace).is_empty():
        hint = record_hint(trace.meta, "cpu_op")
        raise MissingData(f"{trace.meta.path}: no operators were recorded; {hint}")
    thread = numbering.numbered([trace.events[name].gather(event) for name in ("pid", "tid")])[1]
    same = one_name_for_steps(names) | without_addresses(names)
    calls = trace.events.select("kind", "name", "external_id", "ts", "dur")[event]
    return calls.select(
        event.alias("event"), "kind",
        pl.col("name").replace(same) if same else "name",
        "external_id",
        pl.Series("thread", thread),
        start="ts", end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip


def _is_named(trace: Trace) -> pl.Expr:
    unnamed = [name for name in trace.names if name in _UNNAMED]
    return pl.col("name").is_not_null() & ~pl.col("name").is_in(unnamed)


#: Columns of :func:`spans`.
SPANS = {"thread": pl.String, "name": pl.String} | dict.fromkeys(
    ("n", "self_ns", "total_ns", "max_ns"), pl.Int64
)


def spans(trace: Trace) -> pl.DataFrame:
    """Return the named slices of a program of which neither operators nor GPU calls were recorded.

    Returns:
        One row per thread and name: thread (its name, or its number; null for asynchronous spans,
        which may begin and end on several), name, n, ``self_ns`` (null for asynchronous ones),
        ``total_ns``, ``max_ns``.
    """
    known = {*MARKED, FRAMES, *CALLS, *DEVICE_WORK}
    if not trace.kinds & {*SPAN_KINDS} or trace.kinds & known:
        return pl.DataFrame(schema=SPANS)
    key, thread = ["pid", "tid"], pl.format("thread {}", "tid")
    on_host = pl.col("device").is_null() & (pl.col("dur") >= 0)
    rows = trace.events.filter(of_kinds(SPAN_KINDS), on_host, _is_named(trace))
    if rows["pid"].n_unique() > 1:
        thread = pl.format("process {}, thread {}", *key)
    rows = rows.select("kind", *key, "name", start="ts", end=pl.col("ts") + pl.col("dur"))
    parts = rows.partition_by("kind", as_dict=True, include_key=False)
    empty = rows.drop("kind").clear()
    tree = slice_tree.build_tree(parts.get((OTHER,), empty), key)
    labels = trace.lanes.filter(pl.col("tid").is_not_null()).unique(key)[[*key, "label"]]
    on_threads = tree.join(labels, on=key, how="left", nulls_equal=True).with_columns(
        pl.col("label").fill_null(thread), self_ns="self_time"
    )
    others = parts.get((ASYNC,), empty).with_columns(label=None, self_ns=None)
    length = pl.col("end") - pl.col("start")
    sums = [
        part.group_by(thread=pl.col("label").cast(pl.String), name=pl.col("name").cast(pl.String))
        .agg(
            n=pl.len().cast(pl.Int64),
            self_ns=pl.col("self_ns").cast(pl.Int64).sum(),
            total_ns=length.sum(),
            max_ns=length.max(),
        )
        .with_columns(self_ns=pl.when(pl.col("thread").is_not_null()).then("self_ns"))
        for part in (on_threads, others)
    ]
    return pl.concat(sums)


# --- device work and memory ----------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Bytes allocated minus bytes freed.

    Attributes:
        host: host memory of each call without its nested calls; None if not recorded.
        device: device memory of each call without its nested calls; None if not recorded.
        outside: host and device memory outside of any call.
    """

    host: intervals.Ints | None
    device: intervals.Ints | None
    outside: int


def launched_work(trace: Trace, calls: pl.Series) -> pl.DataFrame:
    """Return all device work that has an end, with the call that launched it.

    Args:
        trace: the trace of one rank.
        calls: the rows of ``events`` that are calls, in order.

    Returns:
        event, external_id, call (the position of its launch in ``calls``, null if it is not there),
        start, length_ns, and the columns of :func:`~.common.replays.contexts`.
    """
    work = device_work.device_work(trace)
    events, launch = calls.to_numpy(), launching.launch_rows(trace, work)
    at = np.minimum(np.searchsorted(events, launch), events.size - 1)
    call = np.where(events[at] == launch, at, nesting.ROOT).astype(np.int32)
    return work.select(
        "event",
        "external_id",
        intervals.nullable("call", call, call != nesting.ROOT),
        "start",
        length_ns=pl.col("end") - pl.col("start"),
    ).hstack(replays.contexts(trace, work, launch))


def captured_calls(trace: Trace, calls: pl.Series) -> pl.DataFrame:
    """Return captured launch calls: call (position in ``calls``), external_id, start, place."""
    places = pl.DataFrame({"event": calls}).with_row_index("call")
    captured = replays.captured(trace).join(places, on="event")
    unknown = (pl.lit(None, pl.Int64).alias(name) for name in ("external_id", "start"))
    return captured.select(pl.col("call").cast(pl.Int32), *unknown, "place")


def callers(work: pl.DataFrame, tree: pl.DataFrame) -> nesting.Rows:
    """Return the call that each piece of device work counts for: a row of ``tree`` or :data:`ROOT`.

    That is the innermost operator or annotation around the launch call, else the innermost Python
    frame. Work without either belongs to the operator with its external id.

    Args:
        work: rows of :func:`launched_work`.
        tree: rows of :func:`build`.
    """
    call = work["call"].fill_null(nesting.ROOT).to_numpy()
    caller = np.full(work.height, nesting.ROOT, np.int32)
    for kinds in (*MARKED, OTHER), (FRAMES,):
        wanted = tree["kind"].is_in(kinds).to_numpy()
        open_work = np.flatnonzero((caller == nesting.ROOT) & (call != nesting.ROOT))
        if open_work.size and wanted.any():
            caller[open_work] = slice_tree.nearest(tree, wanted)[call[open_work]]
    named = pl.col("kind").is_in((*MARKED, OTHER))
    ids = tree.select("start", external_id=pl.when(named).then("external_id"))
    return launching.with_external_ids(caller, work, ids)


def device_time(work: pl.DataFrame, caller: nesting.Rows, height: int) -> intervals.Ints:
    """Return the device time in ns of each of ``height`` calls; see :func:`callers`."""
    known = caller != nesting.ROOT
    length = np.zeros(height, np.int64)
    np.add.at(length, caller[known], work["length_ns"].to_numpy()[known])
    return length


def instants_of(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return all allocations: thread (as in ``calls``, null for others), ts, bytes, of_host."""
    totals = trace.memory_totals.filter(pl.col("device_type").is_not_null())
    first = calls.group_by("thread").agg(pl.col("event").first())
    threads = first.select("thread").hstack(trace.events.select("pid", "tid")[first["event"]])
    instants = trace.events.select("pid", "tid", "ts", "bytes")[totals["event"]]
    instants = columns.left_join(instants, threads, ["pid", "tid"])
    of_host = totals["device_type"].is_in(_HOST_TYPES).alias("of_host")
    return instants.select("thread", "ts", pl.col("bytes").fill_null(0), of_host)


def allocations(instants: pl.DataFrame, tree: pl.DataFrame) -> Memory:
    """Return the memory of each call from the time and thread of :func:`instants_of`."""
    if instants.is_empty():
        return Memory(None, None, 0)
    inner = slice_tree.innermost(instants, tree, ["thread"])
    size, of_host = instants["bytes"], instants["of_host"]
    host, device = (
        _summed(inner.filter(mask), size.filter(mask), tree.height) if mask.any() else None
        for mask in (of_host, ~of_host)
    )
    return Memory(host, device, int(size.filter(inner.is_null()).sum()))


def _summed(inner: pl.Series, size: pl.Series, height: int) -> intervals.Ints:
    known = inner.is_not_null()
    sums = np.zeros(height, np.int64)
    np.add.at(sums, inner.filter(known).to_numpy(), size.filter(known).to_numpy())
    return sums


# --- Python frames -------------------------------------------------------------------------


def python_stacks(tree: pl.DataFrame, frames: int) -> pl.Series:
    """Return the names of this many innermost Python frames around each call; null if none.

    A frame does not count as around itself. Backward operators run in a thread without frames.
    """
    around = slice_tree.nearest(tree, (tree["kind"] == FRAMES).to_numpy())
    names = tree["name"].cast(pl.String)
    levels: list[pl.Series] = []
    at = around
    while len(levels) < frames and (at != nesting.ROOT).any():
        name = intervals.nullable("name", np.maximum(at, 0), at != nesting.ROOT).cast(pl.UInt32)
        levels.append(names.gather(name).alias(str(len(levels))))
        at = np.where(at == nesting.ROOT, nesting.ROOT, around[at])
    if not levels:
        return pl.repeat(None, tree.height, dtype=pl.String, eager=True).alias("stack")
    text = pl.concat_str(pl.all(), separator=BETWEEN, ignore_nulls=True)
    known = pl.when(pl.col("0").is_not_null())
    return pl.DataFrame(levels).select(known.then(text).alias("stack")).to_series()
