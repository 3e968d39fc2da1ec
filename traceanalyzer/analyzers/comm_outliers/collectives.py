"""The communication events of a rank, their descriptions, and the device work that overlaps them.

A kernel is described by, in this order: its arguments; its name; the host event that issued it
(``record_param_comms`` or ``nccl:*``), joined by External id, or by the launch call with the
kernel's correlation id inside the host event. ``gpu_user_annotation`` rows are projections and
never work.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.comm_outliers import Options, pipelines
from traceanalyzer.analyzers.common import names
from traceanalyzer.analyzers.common.device_work import device_work as ended_work, extent
from traceanalyzer.analyzers.common.jobs import Recording
from traceanalyzer.frames import intervals, linking
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace, compute_together, of_kinds

_DESCRIPTION = (
    *("dtype", "elements_in", "elements_out"),
    *("group", "group_size", "group_ranks", "seq", "peer", "ends", "splits_in", "splits_out"),
)

#: Calls of a thread that overlap by at most this follow each other: profilers round times.
_ROUNDING_NS = 1_000

_TEXT = ("collective", "dtype", "group", "group_ranks", "splits_in", "splits_out")

#: Columns of :attr:`Part.instances`, one row per collective of this rank, in order of start.
INSTANCES: dict[str, type[pl.DataType]] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.String,
    "collective": pl.String,
    "dtype": pl.String,
    "message_bytes": pl.Int64,
    "group": pl.String,
    "group_size": pl.Int32,
    "group_ranks": pl.String,
    "seq": pl.Int64,
    "device": pl.Int32,
    "stream": pl.Int64,
    "step": pl.String,
    "compute_ns": pl.Int64,
    "memory_ns": pl.Int64,
    "overlapped_by": pl.String,
    "elements_in": pl.Int64,
    "elements_out": pl.Int64,
    "splits_in": pl.String,
    "replayed": pl.Boolean,
}


class Activity(NamedTuple):
    """Time of a file or device, see :func:`activity`.

    Attributes:
        span_ns: first start to last end of device work, and of host communication; of all read
            events without device work.
        busy_ns: union of all device work, over all streams; None without device work.
        comm_ns: union of the communication, over all streams.
        overlap_ns: part of ``comm_ns`` during which compute kernels ran on the same device (on any
            device for host communication).
    """

    span_ns: int
    busy_ns: int | None
    comm_ns: int
    overlap_ns: int | None


@dataclass(frozen=True)
class Part:
    """One file's communication.

    Attributes:
        rank: global rank, None if not recorded.
        path: the file.
        host: host name, or None.
        world_size: ranks in the job, or None.
        shift_ns: added to the trace's times to give the times here.
        epoch_known: those are absolute times, so that parts can be compared.
        start_ns: time of the file's first event on its own clock, or None.
        instances: one row per collective, columns :data:`INSTANCES`, absolute times.
        steps: the steps' annotations, columns :data:`STEPS`, absolute times.
        activity: its span, busy time, communication and overlap.
        unclosed: communication events without an end, which are not counted.
        rank_known: False if the rank was assigned to a file without one.
        record_hint: how to record collectives with the profiler that wrote the file.
        by_device: activity of each device, if several communicate.
        gpu: name of the GPU that communicates, or None.
        node_gpus: GPUs listed in the file, 0 if none or only one.
        recording: the file's metadata of its job.
    """

    rank: int | None
    path: str
    host: str | None
    world_size: int | None
    shift_ns: int
    epoch_known: bool
    start_ns: int | None
    instances: pl.DataFrame
    steps: pl.DataFrame
    activity: Activity
    unclosed: int = 0
    rank_known: bool = True
    record_hint: str = ""
    by_device: Mapping[int, Activity] = field(default_factory=dict)
    gpu: str | None = None
    node_gpus: int = 0
    recording: Recording | None = None


def communication(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """Return the communication events of one rank with their descriptions.

    These are device work and the host events that run a collective or wait for messages
    (``gloo:*``, ``mpi:*``, ``ucc:*``, MPI calls), which have no device. UCC may run kernels: its
    events count only if there are none. ``issued`` is the time of the host call, null if not
    recorded.

    Args:
        trace: one rank.
        patterns: regular expressions of further names.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    key = ("communication events", tuple(patterns))
    return trace.once(key, lambda: _communication(trace, patterns))


def closed(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """Return :func:`communication` with an end, with :func:`with_overlapping_work`."""
    key = ("closed communication", tuple(patterns))
    return trace.once(key, lambda: _closed(trace, patterns))


def _closed(trace: Trace, patterns: Sequence[str]) -> pl.DataFrame:
    rows = communication(trace, patterns).filter(pl.col("dur") >= 0)
    rows = rows.with_columns(start="ts", end=pl.col("ts") + pl.col("dur"))
    work = device_work(trace)
    return with_overlapping_work(rows, work, compute_kernels(work, rows))


def prepare(traces: Sequence[Trace], options: Options) -> None:
    """Compute the tables above of several small traces at once, to find them cached.

    Not if there are sends and receives, whose groups and numbers depend on the rank.
    """
    patterns = options.comm_patterns

    def compute(whole: Trace, of_event: Ints) -> dict[Hashable, pl.DataFrame]:
        rows = communication(whole, patterns)
        is_single = pl.col("collective").is_in(pipelines.SINGLES)
        if whole.collectives["peer"].count() or rows.filter(is_single).height:
            return {}
        on_device = rows.filter(of_kinds(vocabulary.DEVICE_WORK))["event"].to_numpy()
        if len({*of_event[on_device]}) not in {0, len(traces)}:  # elsewhere that of the host counts
            return {}
        return {
            "all device work": device_work(whole),
            ("device_work", ()): ended_work(whole),
            ("communication events", tuple(patterns)): rows,
            ("closed communication", tuple(patterns)): closed(whole, patterns),
        }

    compute_together(traces, compute)


def _communication(trace: Trace, patterns: Sequence[str]) -> pl.DataFrame:
    work = device_work(trace)
    by_name = names.named(work, [vocabulary.COMMUNICATION_PATTERN, *patterns])
    described = pl.col("event").is_in(trace.collectives["event"].implode())
    rows = _rows(trace, work.filter(by_name | described)["event"])
    if rows.is_empty():
        rows = _host_communication(trace, patterns)
    else:
        on_host = _host_communication(trace).filter(~pl.col("name").str.starts_with("ucc:"))
        rows = pl.concat([_with_host_descriptions(rows, trace), on_host]).sort("event")
    rows = pipelines.in_pairs(rows, trace.meta.rank).drop("peer", "ends")
    dtype = names.mapped(rows["dtype"], _plain_dtype)
    return rows.with_columns(dtype=dtype, message_bytes=_message_bytes(rows))


def _host_communication(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    runs = [names.starting_with(*vocabulary.HOST_COLLECTIVE_PREFIXES), *patterns]
    described = pl.col("event").is_in(trace.collectives["event"].implode())
    waits = names.named(trace.names, [r"^MPI_(?:Wait(?:all)?|Sendrecv(?:_replace)?)$"])
    mpi = (pl.col("kind") == "mpi") & (described | waits)
    hosts = trace.events[["kind", "name", "tid"]].with_row_index("event")
    is_call = pl.col("tid").is_not_null() & (names.named(trace.names, runs) | mpi)
    return _rows(trace, hosts.filter(is_call)["event"]).with_columns(issued="ts")


def _rows(trace: Trace, event: pl.Series) -> pl.DataFrame:
    """Return these rows of ``events`` with row numbers and the columns of ``collectives``.

    Categorical columns are cast to text; without a description they are null.
    """
    events = trace.events.select(pl.exclude(pl.String))[event].insert_column(0, event)
    rows = events.join(trace.collectives, on="event", how="left", maintain_order="left")
    name = pl.col("name").cast(pl.String)
    return rows.with_columns(
        name, pl.col(_TEXT).cast(pl.String), ends=name.str.extract(pipelines.ENDS)
    )


def gpu_name(trace: Trace, device: int | None) -> str | None:
    """Return the name of a device; that of another GPU of the node if it is not listed."""
    gpus = {gpu.id: gpu.name for gpu in trace.meta.devices if gpu.name}
    return gpus.get(device if device is not None else -1, next(iter(gpus.values()), None))


# --- host calls ----------------------------------------------------------------------------


def _with_host_descriptions(kernels: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Complete the descriptions of kernels by those of the host calls that issued them.

    A kernel named SendRecv may be all_to_all, send or recv: there the host call takes precedence.
    """
    calls = _host_calls(trace)
    by_id = _by_external_id(kernels, calls)
    is_launch = of_kinds(vocabulary.LAUNCH_KINDS)
    is_launch &= pl.col("correlation").is_in(kernels["correlation"].implode())
    launches = trace.events[["kind", "pid", "tid", "ts", "correlation"]].filter(is_launch)
    alone = pl.concat([by_id, _by_correlation(kernels, calls, launches)])
    batches = _by_batch(kernels, calls, launches)
    links = pl.concat([alone.with_columns(collective=None), batches], how="vertical_relaxed")
    descriptions = (
        links.unique("event", keep="first", maintain_order=True)
        .join(
            calls.select("call", "collective", *_DESCRIPTION, issued="ts"),
            on="call",
            suffix="_of_call",
        )
        .with_columns(pl.coalesce("collective", "collective_of_call").alias("collective"))
    )
    filled = kernels.join(
        descriptions, on="event", how="left", suffix="_host", maintain_order="left"
    )
    vague = pl.col("collective").is_null() | (pl.col("collective") == "send_recv")
    known = pl.when(pl.col("collective_host") != "coalesced").then("collective_host")
    better = pl.coalesce(known, "collective", "collective_host")
    return filled.with_columns(
        collective=pl.when(vague).then(better).otherwise("collective"),
        **{name: pl.coalesce(name, f"{name}_host") for name in _DESCRIPTION},
    ).select(*kernels.columns, "issued")


def _host_calls(trace: Trace) -> pl.DataFrame:
    """Return one row per call that issued a collective, with its thread and description.

    ``record_param_comms`` encloses ``nccl:*`` and NCCL's range, each with other details: rows that
    overlap on one thread, not only by rounding, are one call, described by the first known value of
    each column. Columns: call, pid, tid, ts, end, external_ids, and the description.
    """
    issuing = names.starting_with(
        vocabulary.PARAM_COMMS, *vocabulary.NCCL_ANNOTATION_PREFIXES, vocabulary.NCCL_CALL
    )
    is_call = pl.col("tid").is_not_null() & pl.col("dur").is_not_null()
    named = names.named(trace.names, [issuing])
    events = trace.events[["name", "tid", "dur"]].select(is_call & named).to_series()
    rows = _rows(trace, events.arg_true().alias("event"))
    lane = ["pid", "tid"]
    end = pl.col("ts") + pl.col("dur")
    reached = end.shift(1).cum_max().over(lane)
    starts_new = (pl.col("ts") >= reached - _ROUNDING_NS) & (end > reached)
    first_known = [pl.col(name).drop_nulls().first() for name in ("collective", *_DESCRIPTION)]
    return (
        rows.sort(*lane, "ts", "event")
        .with_columns(call=starts_new.fill_null(value=True).cum_sum())
        .group_by("call", *lane, maintain_order=True)
        .agg(
            pl.col("ts").min(),
            end.max().alias("end"),
            pl.col("external_id").drop_nulls().alias("external_ids"),
            *first_known,
        )
    )


def _by_external_id(kernels: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``event`` and ``call`` of each kernel that shares an External id with a host call.

    Recordings of 2022 and 2023 repeat the correlation id as External id, which is ignored.
    """
    ids = calls.select("call", external_id="external_ids").explode("external_id")
    differs = pl.col("external_id") != pl.col("correlation").fill_null(-1)
    linked = kernels.select("event", external_id=pl.when(differs).then("external_id"))
    return _pairs(linking.link(ids, linked, ["external_id"]), ids, linked)


def _by_correlation(
    kernels: pl.DataFrame, calls: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """Return ``event`` and ``call`` of each kernel with its launch call inside a host call."""
    spans = calls.rename({"ts": "start"})
    inside = linking.enclosing(launches, spans, ["pid", "tid"]).drop_nulls("slice")
    called = inside.select("correlation", call=spans["call"][inside["slice"]])
    return _pairs(linking.link(called, kernels, ["correlation"]), called, kernels)


def _by_batch(kernels: pl.DataFrame, calls: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Return ``event`` and ``call`` of each kernel of ``batch_isend_irecv``.

    PyTorch launches it after the calls of its sends and receives: the last one before the launch,
    after the launch before, counts if all calls of the batch are with one rank. With the collective
    of the batch: ``send_recv`` if it does both.
    """
    lane = ["pid", "tid"]
    batch = calls.filter(pl.col("collective").is_in(vocabulary.POINT_TO_POINT))
    if batch.is_empty():
        return calls[:0, ["call", "collective"]].insert_column(0, kernels["event"][:0])
    of_kernels = kernels.select("event", "correlation").drop_nulls()
    launched = launches.join(of_kernels, on="correlation").sort("ts")
    rows = batch.sort("ts").join_asof(
        launched.select(*lane, "event", at="ts"), left_on="ts", right_on="at", by=lane,
        strategy="forward", check_sortedness=False,
    )  # fmt: skip
    one = pl.struct("peer", pl.col("ends").str.extract(r"(\d+)$")).n_unique() == 1
    both = pl.when(pl.col("collective").n_unique() > 1).then(pl.lit("send_recv"))
    found = rows.drop_nulls("event").group_by("event", maintain_order=True)
    each = found.agg(pl.col("call").last(), one=one, collective=both)
    return each.filter("one").select("event", "call", "collective")


def _pairs(links: pl.DataFrame, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame([kernels["event"][links["right"]], calls["call"][links["left"]]])


# --- sizes ---------------------------------------------------------------------------------


def _message_bytes(rows: pl.DataFrame) -> pl.Expr:
    """Return the bytes of the full message: the output of an all_gather, the input otherwise."""
    gathers = pl.col("collective") == "all_gather"
    whole = pl.coalesce("elements_out", pl.col("elements_in") * pl.col("group_size"))
    elements = pl.when(gathers).then(whole).otherwise("elements_in")
    described = elements * names.mapped(rows["dtype"], vocabulary.dtype_bytes, pl.Int64)
    return pl.coalesce(described, "bytes")


def _plain_dtype(dtype: str) -> str:
    """Return the short lower-case name: ``c10::BFloat16``, ``BFloat16`` -> ``bfloat16``."""
    return dtype.removeprefix("c10::").lower()


# --- other device work ---------------------------------------------------------------------


def device_work(trace: Trace) -> pl.DataFrame:
    """Return all device work: ``event``, device, kind, name, ``start``, ``end`` (may be null)."""
    return trace.once("all device work", lambda: _device_work(trace))


def _device_work(trace: Trace) -> pl.DataFrame:
    is_work = trace.events.select(pl.col("kind").is_in(vocabulary.DEVICE_WORK)).to_series()
    event = is_work.arg_true().alias("event")
    end = pl.when(pl.col("dur") >= 0).then(pl.col("ts") + pl.col("dur"))
    return trace.events[["device", "kind", "name", "ts", "dur"]][event].select(
        event, "device", "kind", "name", start="ts", end=end
    )


def compute_kernels(work: pl.DataFrame, communication: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of :func:`device_work` with an end that are not communication."""
    is_other = ~pl.col("event").is_in(communication["event"].implode())
    return work.filter(pl.col("kind") == "kernel", pl.col("end").is_not_null(), is_other)


def activity(
    trace: Trace, work: pl.DataFrame, communication: pl.DataFrame, compute: pl.DataFrame
) -> Activity:
    """Return span, busy time, communication and its overlap with compute in ns, over all devices.

    Communication on the host counts if there is no other: the rank's devices count as one for it,
    and the span includes the communication. Without device work the span is that of all events;
    busy and overlap are None.

    busy is the union of all device work over all streams, so idle = span - busy; overlap is the
    union of communication intersected with the union of compute kernels. Copies and memsets are
    neither.
    """
    if communication.height and not _on_host(communication):
        communication = communication.drop_nulls("device")
    elif communication.height:
        one = pl.lit(0, pl.Int32).alias("device")
        communication, work, compute = (f.with_columns(one) for f in (communication, work, compute))
    comm = intervals.union(communication, ["device"])
    work = work.drop_nulls("end")
    if work.is_empty():
        closed = trace.events.filter(pl.col("dur") >= 0)
        first, last = closed["ts"].min(), (closed["ts"] + closed["dur"]).max()
        span = last - first if isinstance(first, int) and isinstance(last, int) else 0
        return Activity(span, None, _length(comm), None)
    spans = extent(pl.concat([work[comm.columns], comm]), ["device"])
    overlap = int(intervals.overlap_with(comm, compute, ["device"])["overlap"].sum())
    busy = _length(intervals.union(work, ["device"]))
    return Activity(_length(spans), busy, _length(comm), overlap)


def by_device(
    trace: Trace, work: pl.DataFrame, communication: pl.DataFrame, compute: pl.DataFrame
) -> dict[int, Activity]:
    """Return :func:`activity` of each device that communicates; empty if fewer than two do."""
    devices = communication["device"].drop_nulls().unique().sort()
    if len(devices) < 2:
        return {}
    return {
        device: activity(trace, *(f.filter(device=device) for f in (work, communication, compute)))
        for device in devices
    }


def _on_host(communication: pl.DataFrame) -> bool:
    return communication["device"].null_count() == communication.height


def _length(rows: pl.DataFrame) -> int:
    return int((rows["end"] - rows["start"]).sum())


def with_overlapping_work(
    communication: pl.DataFrame, work: pl.DataFrame, compute: pl.DataFrame
) -> pl.DataFrame:
    """Add overlapping work on the same device: ``compute_ns``, ``memory_ns``, ``overlapped_by``.

    The times are unions; ``overlapped_by`` is the name of the kernel, copy or memset with the
    largest sum of overlaps (ties by name). All are null for communication on the host.
    """
    if _on_host(communication):
        blank = {"compute_ns": pl.Int64, "memory_ns": pl.Int64, "overlapped_by": pl.String}
        return communication.with_columns(pl.lit(None, t).alias(n) for n, t in blank.items())
    memory = work.filter(pl.col("kind") != "kernel", pl.col("end").is_not_null())
    on_device = communication["device"].is_not_null()
    both = intervals.overlaps(communication, [compute, memory], ["device"])
    in_compute, in_memory = (times.set(~on_device, None) for times in both)
    rows = communication.hstack([in_compute.alias("compute_ns"), in_memory.alias("memory_ns")])
    if not (in_compute.sum() or in_memory.sum()):
        return rows.hstack([intervals.nulls("overlapped_by", pl.String, rows.height)])
    names = _overlapped_by(communication, pl.concat([compute, memory]))
    return rows.join(names, on="event", how="left", maintain_order="left")


def _overlapped_by(communication: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return ``event`` and ``overlapped_by``: the name with the largest overlap per collective."""
    comm = communication[["event", "device", "start", "end"]]
    pairs = [
        _shared(comm.filter(pl.col("device") == device), others.filter(pl.col("device") == device))
        for device in comm["device"].drop_nulls().unique()
    ]
    return (
        pl.concat(pairs)
        .group_by("event", "overlapped_by")
        .agg(pl.col("shared").sum())
        .sort("shared", "overlapped_by", descending=[True, False])
        .unique("event", keep="first", maintain_order=True)[["event", "overlapped_by"]]
    )


def _shared(comm: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """Return ``event``, ``overlapped_by``, ``shared`` (in ns) of all pairs that overlap.

    With the collectives in order of start, those that overlap another interval are a run of rows
    between the first whose predecessors have not all ended and the last that has started.
    """
    comm = comm.sort("start", "end")
    start, end = comm["start"].to_numpy(), comm["end"].to_numpy()
    other_start, other_end = others["start"].to_numpy(), others["end"].to_numpy()
    first = np.searchsorted(np.maximum.accumulate(end), other_start, side="right")
    count = np.maximum(np.searchsorted(start, other_end, side="left") - first, 0)
    other = np.repeat(np.arange(len(count)), count)
    before = np.cumsum(count) - count
    mine = np.arange(len(other)) - before[other] + first[other]
    shared = np.minimum(end[mine], other_end[other]) - np.maximum(start[mine], other_start[other])
    overlap = np.flatnonzero(shared > 0)
    return pl.DataFrame(
        {
            "event": comm["event"][mine[overlap]],
            "overlapped_by": others["name"][other[overlap]].cast(pl.String),
            "shared": shared[overlap],
        }
    )
