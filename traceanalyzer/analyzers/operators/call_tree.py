"""The calls of each thread as PyTorch builds them: who made which, their device work and memory."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import columns, device_work, launching, replays
from traceanalyzer.analyzers.common.names import distinct, one_name_for_steps
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import holding, intervals, nesting, numbering
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import ANNOTATION_KINDS, HOST_KINDS

#: Slices that code was given a name by, and what device work is counted for.
MARKED = ("cpu_op", *ANNOTATION_KINDS)

#: Python frames, where they were recorded.
FRAMES = "python_function"

#: Slices of traces that know none of these.
OTHER = "other"

#: Calls that operators make: rows of their own, as PyTorch has them, but without device work.
CALLS = tuple(kind for kind in HOST_KINDS if kind not in (*MARKED, FRAMES, OTHER, "osrt"))

#: All of these.
HOST = (*MARKED, FRAMES, OTHER, *CALLS)

#: Instants that tell of allocations.
ALLOCATIONS = "cpu_instant_event"

#: c10's device types whose memory is the host's: CPU, MKLDNN, IDEEP.
_HOST_TYPES = (0, 2, 5)

#: Between the frames of a stack, the innermost first.
BETWEEN = "; "

#: Bookkeeping of autograd and of the profiler: PyTorch counts it as its caller's own time.
_UNNAMED = (
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
)


def build(calls: pl.DataFrame) -> pl.DataFrame:
    """What holds each of :func:`all_calls`.

    Returns:
        The calls, each with ``depth``, ``parent`` (row), and ``self_time``, which adds up to the
        time in which the thread was in any call.
    """
    return holding.hold(calls, ["thread"])


def counted_as(tree: pl.DataFrame) -> nesting.Rows:
    """The call that each call is counted as: itself but for an operator, the only one in its like.

    PyTorch takes a call whose only call has the same name for one with it: a wrapper and what it
    wraps. A function that calls itself is called again.
    """
    parent, name = holding.parents(tree), tree["name"].to_physical().to_numpy()
    is_operator = (tree["kind"] == "cpu_op").to_numpy()
    held = np.flatnonzero((parent != nesting.ROOT) & is_operator).astype(np.int32)
    like = held[name[held] == name[parent[held]]]
    calls = np.bincount(parent[held], minlength=tree.height)
    again = like[calls[parent[like]] == 1]
    found = np.arange(tree.height, dtype=np.int32)
    found[again] = parent[again]
    while (further := found[found] != found).any():
        found[further] = found[found[further]]
    return found


def unclosed(trace: Trace) -> int:
    """Operators and annotations that never end, and are not counted; NVTX marks need no end."""
    open_ended = pl.col("kind").is_in(MARKED) & (pl.col("kind") != "nvtx") & pl.col("dur").is_null()
    return trace.events.filter(open_ended).height


def all_calls(trace: Trace) -> pl.DataFrame:
    """Every call of a rank's threads, in the order of the trace.

    Calls are operators, annotations, NVTX ranges, Python frames and the runtime calls they make; in
    traces without any of these but the last, all other host slices. The steps of the profiler have
    one name.

    Returns:
        ``event`` (row of ``events``), ``kind``, ``name``, ``external_id``, ``thread`` (a number),
        ``start``, ``end``.

    Raises:
        MissingData: no call was recorded.
    """
    on_host = pl.col("device").is_null() & pl.col("tid").is_not_null() & (pl.col("dur") >= 0)
    of_kind = pl.col("kind") == OTHER
    if trace.events["kind"].is_in((*MARKED, FRAMES)).any():
        of_kind = pl.col("kind").is_in((*MARKED, FRAMES, *CALLS))
    names = distinct(trace.events)
    unnamed = [name for name in names if name in _UNNAMED]
    is_named = pl.col("name").is_not_null() & ~pl.col("name").is_in(unnamed)
    event = trace.events.select(on_host & of_kind & is_named).to_series().arg_true()
    if event.is_empty():
        hint = record_hint(trace.meta, "cpu_op")
        raise MissingData(f"{trace.meta.path}: no operators were recorded; {hint}")
    thread = numbering.numbered([trace.events[name].gather(event) for name in ("pid", "tid")])[1]
    steps = one_name_for_steps(names)
    calls = trace.events.select("kind", "name", "external_id", "ts", "dur")[event]
    return calls.select(
        event.alias("event"), "kind",
        pl.col("name").replace(steps) if steps else "name",
        "external_id",
        pl.Series("thread", thread),
        start="ts", end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip


# --- device work and memory ----------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Bytes allocated less bytes freed.

    Attributes:
        host: by each call itself, or None where no allocation of the host's memory was recorded.
        device: by each call itself, or None where none of a device's was.
        outside: in no call, host and device.
    """

    host: intervals.Ints | None
    device: intervals.Ints | None
    outside: int


def launched_work(trace: Trace, calls: pl.Series) -> pl.DataFrame:
    """All device work that has an end, with the call that launched it.

    Args:
        trace: of one rank.
        calls: the rows of ``events`` that are calls, in order.

    Returns:
        external_id, call (the place of its launch in ``calls``, null where that was not recorded or
        is none of them), start, length_ns, and the columns of :func:`~.common.replays.contexts`.
    """
    work = device_work.device_work(trace)
    events, launch = calls.to_numpy(), launching.launch_rows(trace, work)
    at = np.minimum(np.searchsorted(events, launch), events.size - 1)
    call = np.where(events[at] == launch, at, nesting.ROOT).astype(np.int32)
    return work.select(
        "external_id",
        intervals.nullable("call", call, call != nesting.ROOT),
        "start",
        length_ns=pl.col("end") - pl.col("start"),
    ).hstack(replays.contexts(trace, work, launch))


def captured_calls(trace: Trace, calls: pl.Series) -> pl.DataFrame:
    """Launch calls that a graph captured: call (place in ``calls``), external_id, start, place."""
    places = pl.DataFrame({"event": calls}).with_row_index("call")
    captured = replays.captured(trace).join(places, on="event")
    unknown = (pl.lit(None, pl.Int64).alias(name) for name in ("external_id", "start"))
    return captured.select(pl.col("call").cast(pl.Int32), *unknown, "place")


def callers(work: pl.DataFrame, tree: pl.DataFrame) -> nesting.Rows:
    """The call that each piece of device work is counted for, a row of ``tree`` or :data:`ROOT`.

    That is the innermost operator or annotation around the launch call, else the innermost Python
    frame. Other work belongs to the operator of its external id.

    Args:
        work: rows of :func:`launched_work`.
        tree: rows of :func:`build`.
    """
    call = work["call"].fill_null(nesting.ROOT).to_numpy()
    caller = np.full(work.height, nesting.ROOT, np.int32)
    for kinds in (*MARKED, OTHER), (FRAMES,):
        wanted = tree["kind"].is_in(kinds).to_numpy()
        still = np.flatnonzero((caller == nesting.ROOT) & (call != nesting.ROOT))
        if still.size and wanted.any():
            caller[still] = holding.nearest(tree, wanted)[call[still]]
    named = pl.col("kind").is_in((*MARKED, OTHER))
    ids = tree.select("start", external_id=pl.when(named).then("external_id"))
    return launching.with_told_by_id(caller, work, ids)


def device_time(work: pl.DataFrame, caller: nesting.Rows, height: int) -> intervals.Ints:
    """The device work in ns that is counted for each of so many calls; see :func:`callers`."""
    known = caller != nesting.ROOT
    length = np.zeros(height, np.int64)
    np.add.at(length, caller[known], work["length_ns"].to_numpy()[known])
    return length


def instants_of(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """All allocations: thread (as of ``calls``, null for others), ts, bytes, of_host."""
    told = trace.memory_totals.filter(pl.col("device_type").is_not_null())
    first = calls.group_by("thread").agg(pl.col("event").first())
    threads = first.select("thread").hstack(trace.events.select("pid", "tid")[first["event"]])
    instants = trace.events.select("pid", "tid", "ts", "bytes")[told["event"]]
    instants = columns.looked_up(instants, threads, ["pid", "tid"])
    of_host = told["device_type"].is_in(_HOST_TYPES).alias("of_host")
    return instants.select("thread", "ts", pl.col("bytes").fill_null(0), of_host)


def allocations(instants: pl.DataFrame, tree: pl.DataFrame) -> Memory:
    """What each call itself allocated and freed, by the time and thread of :func:`instants_of`."""
    if instants.is_empty():
        return Memory(None, None, 0)
    inner = holding.innermost(instants, tree, ["thread"])
    size, of_host = instants["bytes"], instants["of_host"]
    host, device = (
        _summed(inner.filter(kept), size.filter(kept), tree.height) if kept.any() else None
        for kept in (of_host, ~of_host)
    )
    return Memory(host, device, int(size.filter(inner.is_null()).sum()))


def _summed(inner: pl.Series, size: pl.Series, height: int) -> intervals.Ints:
    known = inner.is_not_null()
    own = np.zeros(height, np.int64)
    np.add.at(own, inner.filter(known).to_numpy(), size.filter(known).to_numpy())
    return own


# --- Python frames -------------------------------------------------------------------------


def python_stacks(tree: pl.DataFrame, frames: int) -> pl.Series:
    """The names of so many innermost Python frames around each call, null where there is none.

    A frame is not around itself. Operators of the backward pass run in a thread without frames.
    """
    around = holding.nearest(tree, (tree["kind"] == FRAMES).to_numpy())
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
