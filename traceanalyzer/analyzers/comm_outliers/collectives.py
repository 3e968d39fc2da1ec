"""Which events of a rank are communication, what is known about each, and what ran beside it.

A kernel's description comes from, in this order: its own arguments; its name; the host event that
issued it (``record_param_comms`` or ``nccl:*``), found by External id, or through the launch call
that shares the kernel's correlation id and lies inside the host event. ``gpu_user_annotation``
rows are projections and never work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.common import names
from traceanalyzer.analyzers.common.device_work import extent
from traceanalyzer.analyzers.common.jobs import Recording
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Trace

_DESCRIPTION = ("dtype", "elements_in", "elements_out", "group", "group_size", "group_ranks", "seq")

_TEXT = ("collective", "dtype", "group", "group_ranks")

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
    "beside": pl.String,
}


#: Span, busy time, communication and its overlap with compute, in ns, see :func:`activity`.
Activity = tuple[int, int | None, int, int | None]


@dataclass(frozen=True)
class Part:
    """One file's communication.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        host: host name, or None.
        world_size: ranks in the job, or None.
        shift_ns: added to the trace's times to give the times here.
        epoch_known: those are absolute times, so that parts can be compared.
        instances: one row per collective, columns :data:`INSTANCES`, absolute times.
        steps: the steps' annotations, columns :data:`STEPS`, absolute times.
        span_ns: first start to last end of device work, and of communication where that is the
            host's; of all events read where there is no device work.
        busy_ns: union of all device work, over all streams; None without device work.
        comm_ns: union of the communication, over all streams.
        overlap_ns: part of ``comm_ns`` during which compute kernels ran on the same device; on any
            where the communication is the host's.
        unclosed: communication events without an end, which are not counted.
        wants_launches: reading the launch calls too would tell more about its collectives.
        rank_known: False once a rank was made up for a file that does not tell.
        record_hint: how collectives are recorded with the profiler that wrote the file.
        by_device: span, busy, communication and overlap of each device, where several communicate.
        gpu: name of the GPU that communicates, or None.
        node_gpus: GPUs that the file lists, 0 where it lists none or only one.
        recording: what the file records about its job.
    """

    rank: int | None
    path: str
    host: str | None
    world_size: int | None
    shift_ns: int
    epoch_known: bool
    instances: pl.DataFrame
    steps: pl.DataFrame
    span_ns: int
    busy_ns: int | None
    comm_ns: int
    overlap_ns: int | None
    unclosed: int = 0
    wants_launches: bool = False
    rank_known: bool = True
    record_hint: str = ""
    by_device: Mapping[int, Activity] = field(default_factory=dict)
    gpu: str | None = None
    node_gpus: int = 0
    recording: Recording | None = None


def communication(
    trace: Trace, work: pl.DataFrame, patterns: Sequence[str] = ()
) -> tuple[pl.DataFrame, bool]:
    """The communication events of one rank, each with what is known about it.

    Device work where there is any; else, as in CPU runs, the host events that run a collective
    (``gloo:*``, ``mpi:*``, ``ucc:*``, calls of MPI). ``patterns`` are regular expressions of
    further names. ``issued`` is the time at which the host asked for it, null where the trace does
    not tell.

    The second value says whether reading the launch calls too would tell more: kernels lack their
    message size, some host events describe collectives that no kernel is joined to, and no launch
    call has been read.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    by_name = names.named(work, [vocabulary.COMMUNICATION_PATTERN, *patterns])
    described = pl.col("event").is_in(trace.collectives["event"].implode())
    found, wants_launches = _rows(trace, work.filter(by_name | described)["event"]), False
    if found.is_empty():
        found = _host_communication(trace, patterns).with_columns(issued="ts")
    else:
        found, wants_launches = _with_host_descriptions(found, trace)
    dtype = names.mapped(found["dtype"], _plain_dtype)
    return found.with_columns(dtype=dtype, message_bytes=_message_bytes(found)), wants_launches


def _host_communication(trace: Trace, patterns: Sequence[str]) -> pl.DataFrame:
    hosts = trace.events.with_row_index("event").filter(pl.col("tid").is_not_null())
    runs = names.starting_with(*vocabulary.HOST_COLLECTIVE_PREFIXES)
    described = (pl.col("kind") == "mpi") & pl.col("event").is_in(
        trace.collectives["event"].implode()
    )
    return _rows(trace, hosts.filter(names.named(hosts, [runs, *patterns]) | described)["event"])


def _rows(trace: Trace, event: pl.Series) -> pl.DataFrame:
    """These rows of ``events`` with their numbers, words as text.

    Beside them is what ``collectives`` says, null where it says nothing.
    """
    events = trace.events[event].insert_column(0, event)
    rows = events.join(trace.collectives, on="event", how="left", maintain_order="left")
    return rows.with_columns(pl.col("name", *_TEXT).cast(pl.String))


def gpu_name(trace: Trace, device: int | None) -> str | None:
    """The name of a device; of another one of the node where this one is not listed."""
    gpus = {gpu.id: gpu.name for gpu in trace.meta.devices if gpu.name}
    return gpus.get(device if device is not None else -1, next(iter(gpus.values()), None))


# --- the host's side -----------------------------------------------------------------------


def _with_host_descriptions(kernels: pl.DataFrame, trace: Trace) -> tuple[pl.DataFrame, bool]:
    """Fills what a kernel's own row leaves open from the host call that issued it.

    A kernel named SendRecv may be any of all_to_all, send and recv: there the host knows better.
    Also says whether there are kernels and calls that launch calls, not yet read, might join.
    """
    calls = _host_calls(trace)
    by_id = _by_external_id(kernels, calls)
    bare = kernels.filter(pl.col("elements_in").is_null()).join(by_id, on="event", how="anti")
    spare = calls.filter(pl.col("elements_in") > 0).join(by_id, on="call", how="anti")
    launches = trace.events.filter(pl.col("kind").is_in(vocabulary.LAUNCH_KINDS))
    wants_launches = launches.is_empty() and bare.height > 0 and spare.height > 0
    links = by_id
    if launches.height:
        links = pl.concat([by_id, _by_correlation(kernels, calls, launches)])
    descriptions = links.unique("event", keep="first", maintain_order=True).join(
        calls.select("call", "collective", *_DESCRIPTION, issued="ts"), on="call"
    )
    filled = kernels.join(
        descriptions, on="event", how="left", suffix="_host", maintain_order="left"
    )
    vague = pl.col("collective").is_null() | (pl.col("collective") == "send_recv")
    better = pl.coalesce("collective_host", "collective")
    filled = filled.with_columns(
        collective=pl.when(vague).then(better).otherwise("collective"),
        **{name: pl.coalesce(name, f"{name}_host") for name in _DESCRIPTION},
    ).select(*kernels.columns, "issued")
    return filled, wants_launches


def _host_calls(trace: Trace) -> pl.DataFrame:
    """One row per call that issued a collective: where it ran and what it tells.

    ``record_param_comms`` encloses ``nccl:*`` and NCCL's own range, and each knows things that
    the other does not: rows that overlap on one thread are one call, described by whichever tells
    first. Columns: call, pid, tid, ts, end, external_ids, and the description.
    """
    issuing = names.starting_with(
        vocabulary.PARAM_COMMS, *vocabulary.NCCL_ANNOTATION_PREFIXES, vocabulary.NCCL_CALL
    )
    hosts = (
        trace.events.select("name", "tid", "dur")
        .with_row_index("event")
        .filter(pl.col("tid").is_not_null(), pl.col("dur").is_not_null())
    )
    rows = _rows(trace, hosts.filter(names.named(hosts, [issuing]))["event"])
    lane = ["pid", "tid"]
    end = pl.col("ts") + pl.col("dur")
    starts_new = pl.col("ts") >= end.shift(1).cum_max().over(lane)
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
    """``event`` and ``call`` of each kernel that shares an External id with a host call.

    Recordings of 2022 and 2023 repeat the correlation id as External id: that joins nothing.
    """
    ids = calls.select("call", external_id="external_ids").explode("external_id")
    differs = pl.col("external_id") != pl.col("correlation").fill_null(-1)
    asking = kernels.select("event", external_id=pl.when(differs).then("external_id"))
    return _pairs(linking.link(ids, asking, ["external_id"]), ids, asking)


def _by_correlation(
    kernels: pl.DataFrame, calls: pl.DataFrame, launches: pl.DataFrame
) -> pl.DataFrame:
    """``event`` and ``call`` of each kernel whose launch call lies inside a host call."""
    spans = calls.rename({"ts": "start"})
    inside = linking.enclosing(launches, spans, ["pid", "tid"]).drop_nulls("slice")
    called = inside.select("correlation", call=spans["call"].gather(inside["slice"]))
    return _pairs(linking.link(called, kernels, ["correlation"]), called, kernels)


def _pairs(found: pl.DataFrame, calls: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "event": kernels["event"].gather(found["right"]),
            "call": calls["call"].gather(found["left"]),
        }
    )


# --- sizes ---------------------------------------------------------------------------------


def _message_bytes(rows: pl.DataFrame) -> pl.Expr:
    """Bytes of the full message: what comes out of an all_gather, what goes in otherwise."""
    gathers = pl.col("collective") == "all_gather"
    whole = pl.coalesce("elements_out", pl.col("elements_in") * pl.col("group_size"))
    elements = pl.when(gathers).then(whole).otherwise("elements_in")
    return elements * names.mapped(rows["dtype"], vocabulary.dtype_bytes, pl.Int64)


def _plain_dtype(dtype: str) -> str:
    """One spelling: ``c10::BFloat16``, ``BFloat16`` -> ``bfloat16``."""
    return dtype.removeprefix("c10::").lower()


# --- what else the device did --------------------------------------------------------------


def device_work(trace: Trace) -> pl.DataFrame:
    """All device work as intervals: ``event``, device, kind, name, ``start``, ``end``.

    What has no end has no ``end`` here.
    """
    end = pl.when(pl.col("dur") >= 0).then(pl.col("ts") + pl.col("dur"))
    return (
        trace.events.select("device", "kind", "name", start="ts", end=end)
        .with_row_index("event")
        .filter(pl.col("kind").is_in(vocabulary.DEVICE_WORK))
    )


def compute_kernels(work: pl.DataFrame, communication: pl.DataFrame) -> pl.DataFrame:
    """The kernels of :func:`device_work` that are not communication, and have an end."""
    kernels = work.filter(pl.col("kind") == "kernel", pl.col("end").is_not_null())
    return kernels.join(communication, on="event", how="anti")


def activity(
    trace: Trace, work: pl.DataFrame, communication: pl.DataFrame, compute: pl.DataFrame
) -> Activity:
    """Span, busy time, communication and its overlap with compute, in ns: sums over the devices.

    Where communication is the host's, the rank's devices count as one, and the span takes in the
    communication too. Without device work the span is that of all events, and nothing is busy or
    overlaps.

    busy is the union of all device work over all streams, so idle = span - busy; overlap is the
    union of communication intersected with the union of compute kernels. Copies and memsets are
    neither.
    """
    if communication.height and _of_host(communication):
        one = pl.lit(0, pl.Int32).alias("device")
        communication, work, compute = (f.with_columns(one) for f in (communication, work, compute))
    comm = intervals.union(communication, ["device"])
    work = work.drop_nulls("end")
    if work.is_empty():
        closed = trace.events.filter(pl.col("dur") >= 0)
        first, last = closed["ts"].min(), (closed["ts"] + closed["dur"]).max()
        span = last - first if isinstance(first, int) and isinstance(last, int) else 0
        return span, None, _length(comm), None
    spans = extent(pl.concat([work.select(comm.columns), comm]), ["device"])
    overlap = int(intervals.overlap_with(comm, compute, ["device"])["overlap"].sum())
    return _length(spans), _length(intervals.union(work, ["device"])), _length(comm), overlap


def by_device(
    trace: Trace, work: pl.DataFrame, communication: pl.DataFrame, compute: pl.DataFrame
) -> dict[int, Activity]:
    """:func:`activity` of each device that communicates; empty where fewer than two do."""
    devices = communication["device"].drop_nulls().unique().sort()
    if len(devices) < 2:
        return {}
    return {
        device: activity(trace, *(f.filter(device=device) for f in (work, communication, compute)))
        for device in devices
    }


def _of_host(communication: pl.DataFrame) -> bool:
    return communication["device"].null_count() == communication.height


def _length(rows: pl.DataFrame) -> int:
    return int((rows["end"] - rows["start"]).sum())


def with_work_beside(
    communication: pl.DataFrame, work: pl.DataFrame, compute: pl.DataFrame
) -> pl.DataFrame:
    """Adds what ran on the same device meanwhile: ``compute_ns``, ``memory_ns``, ``beside``.

    The times are unions; ``beside`` is the kernel, copy or set, by name, with the largest sum of
    overlaps (ties by name). All null where the communication is the host's.
    """
    if _of_host(communication):
        blank = {"compute_ns": pl.Int64, "memory_ns": pl.Int64, "beside": pl.String}
        return communication.with_columns(pl.lit(None, t).alias(n) for n, t in blank.items())
    memory = work.filter(pl.col("kind") != "kernel", pl.col("end").is_not_null())
    found = communication
    for name, windows in (("compute_ns", compute), ("memory_ns", memory)):
        found = intervals.overlap_with(found, windows, ["device"]).rename({"overlap": name})
    busiest = _busiest(communication, pl.concat([compute, memory]))
    return found.join(busiest, on="event", how="left", maintain_order="left")


def _busiest(communication: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """``event`` and ``beside``: the name that shares most time with each collective."""
    comm = communication.select("event", "device", "start", "end")
    found = [
        _shared(mine, others.filter(pl.col("device") == mine["device"][0]))
        for mine in comm.drop_nulls("device").partition_by("device", maintain_order=True)
    ]
    none = pl.DataFrame(schema={"event": pl.UInt32, "beside": pl.String, "shared": pl.Int64})
    return (
        pl.concat([none, *found])
        .group_by("event", "beside")
        .agg(pl.col("shared").sum())
        .sort("shared", "beside", descending=[True, False])
        .unique("event", keep="first", maintain_order=True)
        .select("event", "beside")
    )


def _shared(comm: pl.DataFrame, others: pl.DataFrame) -> pl.DataFrame:
    """``event``, ``beside``, ``shared``: every pair that overlaps on one device, and for how long.

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
    return pl.DataFrame(
        {
            "event": comm["event"].gather(mine),
            "beside": others["name"].gather(other).cast(pl.String),
            "shared": shared,
        }
    ).filter(pl.col("shared") > 0)
