"""States of a device: a partition of its time, with the cause of each idle interval.

Compute comes first: while a kernel computes, the device computes, whatever else runs.
Communication without compute is exposed: before the last rank of a collective has arrived it is
waiting, then transfer. Copies count where no kernel runs; the rest is idle, by cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE, DEVICE, MEMORY
from traceanalyzer.analyzers.common.host_code import places_of
from traceanalyzer.analyzers.common.launching import launches
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.frames import intervals
from traceanalyzer.frames.intervals import Ints, nullable
from traceanalyzer.frames.nesting import ROOT
from traceanalyzer.frames.numbering import group_numbers
from traceanalyzer.trace import Trace

#: States of a device and their names, in the order in which they are stacked and listed.
NAMES = {
    "compute": "compute",
    "overlapped": "compute + communication",
    "transfer": "communication (exposed)",
    "waiting": "waiting for another rank",
    "copies": "copies (exposed)",
    "dataloading": "idle: data loading",
    "launch": "idle: launch overhead",
    "synchronisation": "idle: synchronisation",
    "host": "idle: host code and calls",
    "idle": "idle: other",
}
STATE = pl.Enum(tuple(NAMES))

#: States that are not lost by the device itself.
NOT_LOST = ("compute", "overlapped", "transfer", "waiting")

#: The state of each cause of lost time. A main thread in a collective waits or transfers, as a
#: device does.
OF_CAUSE = {
    causes.EXPOSED: "transfer",
    causes.COPIES: "copies",
    causes.DATALOADING: "dataloading",
    causes.LAUNCH: "launch",
    causes.SYNCHRONISATION: "synchronisation",
    causes.PEER: "transfer",
    causes.HOST_CODE: "host",
    causes.BATCH_COPY: "host",
    causes.SMALL_COPIES: "host",
    causes.COMMUNICATOR: "host",
    causes.MODULE_LOADING: "host",
    causes.GRAPH_BUILDING: "host",
    causes.API_CALLS: "host",
    causes.MEMORY_MANAGEMENT: "host",
    causes.CHECKPOINT_IO: "host",
    causes.PROFILER: "idle",
    causes.SHORT_GAP: "idle",
    causes.DEVICE_WAIT: "idle",
    causes.UNKNOWN: "idle",
}
_DEVICE = list(DEVICE)


def states(work: pl.DataFrame, idle: pl.DataFrame) -> pl.DataFrame:
    """Divide the time of the devices of one rank.

    Args:
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.
        idle: rank, device, start, end, cause: all idle time, and copies with a cause.

    Returns:
        rank, device, start, end, state, cause (heading of the cause of idle time, else null); one
        row per interval, disjoint, sorted by device and start. Exposed communication is
        ``transfer``.
    """
    compute, communication, memory = (
        work.select(*_DEVICE, "start", "end").filter(work["work_kind"] == kind)
        for kind in (COMPUTE, COMMUNICATION, MEMORY)
    )
    kernels = pl.concat([compute, communication])
    busy = {
        "compute": intervals.subtract(compute, communication, _DEVICE),
        "overlapped": intervals.intersect(compute, communication, _DEVICE),
        "transfer": intervals.subtract(communication, compute, _DEVICE),
        # copies of checkpoints and files have a cause
        "copies": intervals.subtract(
            memory, pl.concat([kernels, idle.select(kernels.columns)]), _DEVICE
        ),
    }
    none = pl.lit(None, pl.String)
    rows = [
        frame.select(*_DEVICE, "start", "end", state=pl.lit(state, STATE), cause=none)
        for state, frame in busy.items()
    ]
    rows.append(lost_states(idle, _DEVICE))
    divided = pl.concat(rows)
    # faster than a sort by three columns
    _, (device,) = group_numbers(_DEVICE, divided)
    return divided[intervals.stable_order(device, divided["start"].to_numpy())]


def lost_states(lost: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return lost time as states: ``by``, start, end, state, cause.

    Args:
        lost: ``by``, start, end, cause (of idle time, exposed communication or exposed copies).
        by: columns that identify a device.
    """
    cause = pl.col("cause").cast(causes.LOSS)  # an Enum, as replacing texts is slow
    return lost.select(
        *by,
        "start",
        "end",
        state=cause.replace_strict(OF_CAUSE, return_dtype=STATE),
        cause=cause.replace_strict(causes.NAMES, default=None, return_dtype=pl.String),
    )


def with_peers(compared: CommOutliers, units: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the arrivals (of units) that wait, with ``peer``, the rank waited for: the root."""
    last = compared.collectives.select("instance", "root_rank", "last_rank")
    rows = compared.arrivals.filter(pl.col("wait_ns") > 0)
    if units is not None:
        rows = rows.join(units, on=["path", "rank"], how="semi", nulls_equal=True)
    is_root = pl.col("root_rank") == pl.col("rank")
    peer = pl.when(is_root).then("last_rank").otherwise(pl.coalesce("root_rank", "last_rank"))
    return rows.join(last, on="instance").with_columns(peer=peer)


def with_waits(rows: pl.DataFrame, waits: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Divide exposed communication into waiting for another rank and transfer.

    Args:
        rows: ``by``, start, end, state, cause.
        waits: ``by``, start, end, peer: when a device waits in a collective, and for which rank.
        by: columns that identify a device.

    Returns:
        The rows with ``peer``, the rank that the device waits for (null in other states).
    """
    none = pl.lit(None, pl.Int32).alias("peer")
    if waits.is_empty():
        return rows.with_columns(none)
    keys = list(by)
    is_exposed = pl.col("state") == "transfer"
    exposed = rows.filter(is_exposed)
    parts = [rows.filter(~is_exposed).with_columns(none)]
    left = exposed
    for (peer,), of_peer in waits.sort("peer").group_by(["peer"], maintain_order=True):
        waiting = intervals.intersect(left, of_peer, keys)
        left = intervals.subtract(left, of_peer, keys)
        parts.append(
            _exposed(waiting, "waiting", keys).with_columns(pl.lit(peer, pl.Int32).alias("peer"))
        )
    parts.append(_exposed(left, "transfer", keys).with_columns(none))
    return pl.concat(parts, how="vertical").sort(*keys, "start")


def _exposed(rows: pl.DataFrame, state: str, keys: Sequence[str]) -> pl.DataFrame:
    none = pl.lit(None, pl.String)
    return rows.select(*keys, "start", "end", state=pl.lit(state, STATE), cause=none)


#: Most rows of states, and of events, of one rank and of the result: about so many.
MOST = 500_000


def coarser(
    rows: pl.DataFrame, most: int, by: Sequence[str], kind: str
) -> tuple[pl.DataFrame, int]:
    """Merge the shortest rows if there are more than ``most``; about as many remain.

    Time is cut into cells. The short rows of one ``kind`` that start in a cell become one row with
    their summed length, one after the other in the order of their first start; rows longer than a
    cell are kept. The total length of each kind in a cell is unchanged.

    Args:
        rows: ``by``, start, end, ``kind``, perhaps ``count`` (1, or the number of rows merged
            before), and any other columns, of which the longest row's values remain.
        most: number of rows that need no merge.
        by: columns that identify a row of the timeline.
        kind: column of what is merged, an Enum.

    Returns:
        The rows, sorted by ``by`` and start, and the width of a cell in ns (0: nothing was merged).
    """
    if rows.height <= most:
        return rows, 0
    groups, (lane,) = group_numbers(by, rows)
    start, end = rows["start"].to_numpy(), rows["end"].to_numpy()
    length = end - start
    cell = max(int(end.max() - start.min()) * groups.height // most, 1)
    while np.count_nonzero(length >= cell) > most // 2:
        cell *= 2
    is_short = length < cell
    short = np.flatnonzero(is_short)
    place = (start[short] - start.min()) // cell
    place += lane[short].astype(np.int64) * (int(place.max()) + 1)
    kinds = rows[kind].to_physical().to_numpy()[short].astype(np.int64)
    merged = _merged(place * (int(kinds.max()) + 1) + kinds, length[short], start[short])
    begin = _one_after_the_other(place[merged.longest], merged.start, merged.length)
    frame = rows[short[merged.longest]].with_columns(
        start=pl.Series(begin), end=pl.Series(begin + merged.length)
    )
    if "count" in rows.columns:
        counts = np.bincount(merged.number, rows["count"].to_numpy()[short])
        frame = frame.with_columns(count=pl.Series(counts).cast(pl.UInt32))
    return pl.concat([rows.filter(~is_short), frame]).sort(*by, "start"), cell


@dataclass(frozen=True)
class _Merged:
    """Groups of rows: number of each row's group; longest row, first start and length of each."""

    number: Ints
    longest: Ints
    start: Ints
    length: Ints


def _merged(key: Ints, length: Ints, start: Ints) -> _Merged:
    _, number = np.unique(key, return_inverse=True)
    order = np.lexsort((length, number))
    last = np.flatnonzero(np.diff(number[order], append=-1))
    first = np.full(last.size, np.iinfo(np.int64).max)
    np.minimum.at(first, number, start)
    return _Merged(number, order[last], first, np.bincount(number, length).astype(np.int64))


def _one_after_the_other(place: Ints, start: Ints, length: Ints) -> Ints:
    """Return starts such that the rows of one place follow each other from its first start."""
    order = np.lexsort((start, place))
    begins = np.flatnonzero(np.diff(place[order], prepend=-1))
    before = np.cumsum(length[order]) - length[order]
    rows = np.diff(begins, append=order.size)
    result = np.empty_like(start)
    first = start[order][begins] - before[begins]
    result[order] = np.repeat(first, rows) + before
    return result


#: Most gaps with a description, the longest first.
_GAPS = 4_000


def events(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return kernels, copies and memsets with the operator that launched them.

    Returns:
        device, stream, start, end, name, work_kind, bytes (of a copy), operator (the innermost
        operator or annotation around the launch call, or null), collective (null), count (1).
    """
    return work.select(
        "device", "stream", "start", "end", "name", "work_kind", "bytes",
        _operators(trace, work), collective=pl.lit(None, pl.String), count=pl.lit(1, pl.UInt32),
    )  # fmt: skip


def _operators(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Return the innermost operator or annotation around the launch call of each row."""
    calls = launches(trace, work)
    names = places_of(trace).range(calls.select("pid", "tid", ts="launch_start"))
    row = np.full(work.height, ROOT, np.int32)
    row[calls["work"].to_numpy()] = np.arange(calls.height)
    return names.gather(nullable("row", row, row != ROOT)).alias("operator")


def with_collectives(rows: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Set collective and bytes (the message size) of the kernels of collectives.

    Args:
        rows: rows of :func:`events` with lane.
        instances: lane, stream, start, collective, message_bytes.
    """
    keys = ["lane", "stream", "start"]
    known = instances.select(*keys, "message_bytes", of="collective").unique(keys, keep="first")
    joined = rows.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
    sizes = pl.coalesce("message_bytes", "bytes").alias("bytes")
    return joined.with_columns(sizes, collective="of").drop("of", "message_bytes")


def gaps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the longest gaps with the work on either side and the host's activity.

    Args:
        rows: rows of ``GpuIdle.gaps`` with lane.

    Returns:
        lane, start, end, before, after, host (the host's activity: own code, Python, sampled
        function or slice, the first that is known), sorted by lane and start.
    """
    longest = rows.sort(pl.col("end") - pl.col("start"), descending=True).head(_GAPS)
    host = pl.coalesce("own_code", "python", "sampled", "host_event", "annotation")
    return longest.select(
        "lane", "start", "end", "before", "after", host=host.cast(pl.String)
    ).sort("lane", "start")
