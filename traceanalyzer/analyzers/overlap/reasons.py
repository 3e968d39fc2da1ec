"""Why communication is exposed: each collective's exposed time by reason.

The exposed time of a collective is its duration without the time in which compute runs on the same
device. It is divided in this order:

- ``waiting``: up to its wait time, which is known if other ranks are given;
- ``shared_stream``: compute is launched on the same stream, so the two cannot overlap;
- ``launched_late``: the launch call began after all earlier compute of the device had ended;
- ``after_compute``: launched in time, but it started only after all earlier compute had ended;
- ``other``: it started during compute, but took longer;
- ``unknown``: its launch call was not recorded.

The phase of a collective (forward, backward, optimizer) is the innermost range with such a name on
the launching thread. Without one, PyTorch runs the backward pass on threads of its own: work that
they launch is of the backward pass, work of the thread that marks the steps is of the forward pass.
If one thread launches all work, the name of the process group decides ("forward:6-7", of pipelines
that have a group for each direction); else the phase is unknown.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers import (
    Options as CommOptions,
    arrivals,
    collectives,
    matching,
    outliers,
)
from traceanalyzer.analyzers.comm_outliers.compute import measure as measure_communication
from traceanalyzer.analyzers.common.columns import ratio, sum_if_known
from traceanalyzer.analyzers.common.device_steps import device_steps
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE
from traceanalyzer.analyzers.common.host_code import slices
from traceanalyzer.analyzers.common.launching import launch_rows, launches
from traceanalyzer.analyzers.common.names import matching as named_like
from traceanalyzer.frames import linking, nesting
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ANNOTATION_KINDS

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

#: Names of ranges, the first match counts.
RANGES = {
    OPTIMIZER: r"(?i)^Optimizer\.step#|\boptim(?:izer)?[ _.:-]*step|^optimizer$",
    BACKWARD: r"(?i)backward|(?:\b|_)bwd(?:\b|_)",
    FORWARD: r"(?i)forward|(?:\b|_)fwd(?:\b|_)",
}
_THREAD = ["pid", "tid"]


def phases(trace: Trace, calls: pl.DataFrame, threads: pl.DataFrame) -> pl.Series:
    """Return the phase of each launch call.

    Args:
        trace: the trace of one rank.
        calls: pid, tid, ``launch_start``.
        threads: pid and tid of all threads that launch work.
    """
    known: dict[str, str] = {}
    for phase, pattern in RANGES.items():
        known = dict.fromkeys(named_like(trace.names, [pattern]), phase) | known
    ranges = slices(trace, *ANNOTATION_KINDS).filter(pl.col("name").is_in([*known]))
    ranges = ranges.drop_nulls("tid")
    at = calls.select(*_THREAD, ts="launch_start")
    names = ranges["name"].cast(pl.String)[linking.enclosing(at, ranges, _THREAD)["slice"]]
    named = names.replace_strict(known, default=None, return_dtype=pl.String)
    main = _main_threads(trace, ranges)
    if main.is_empty() or threads.join(main, on=_THREAD, how="anti").is_empty():
        return named.fill_null(UNKNOWN).alias("phase")
    is_main = pl.struct(_THREAD).is_in(main.to_struct().implode())
    by_thread = pl.when(is_main).then(pl.lit(FORWARD)).otherwise(pl.lit(BACKWARD))
    return calls.select(phase=pl.coalesce(named, by_thread)).to_series()


def _main_threads(trace: Trace, ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the threads that mark steps, or run the optimizer."""
    steps = device_steps(trace).drop_nulls("tid")[_THREAD]
    is_optimizer = pl.col("name").cast(pl.String).str.contains(RANGES[OPTIMIZER])
    return pl.concat([steps, ranges.filter(is_optimizer)[_THREAD]]).unique()


WAITING, SHARED, LATE, AFTER = "waiting", "shared_stream", "launched_late", "after_compute"

OTHER, UNKNOWN = "other", "unknown"

#: A stream with less of its device's compute is not a compute stream.
_SHARED_FRAC = 0.01

_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "reason": pl.String,
    "exposed_ns": pl.Int64,
    "collectives": pl.UInt32,
    "streams": pl.List(pl.Int64),
    "rank": pl.Int32,
    "share_frac": pl.Float64,
}


#: Whether all ranks of a group are in one node.
WITHIN, BETWEEN = "within a node", "between nodes"

#: Communication by process group.
GROUPS: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(("group", "group_ranks", "place", "phase"), pl.String),
    **dict.fromkeys(("ranks", "n", "message_bytes", "communication_ns"), pl.Int64),
    **dict.fromkeys(("overlapped_ns", "exposed_ns", "waiting_ns"), pl.Int64),
}


@dataclass(frozen=True)
class Exposed:
    """The collectives of one rank with exposed communication.

    Attributes:
        communication: the collectives, as comm-outliers measures them.
        streams: device, stream of each stream that compute runs on.
        launched: device, stream, start (absolute) of each collective with a launch call, with
            ``late`` (launched after earlier compute had ended), ``after`` (started after that) and
            ``phase`` (see :func:`phases`).
    """

    communication: collectives.Part
    streams: pl.DataFrame
    launched: pl.DataFrame


def measure(trace: Trace, work: pl.DataFrame, patterns: Sequence[str]) -> Exposed:
    """Collect the data on why the communication of one rank is exposed.

    Args:
        trace: the trace of one rank.
        work: its device work, from :func:`~traceanalyzer.analyzers.common.device_work.device_work`.
        patterns: regular expressions of further kernel names that are communication.
    """
    part = measure_communication(trace, CommOptions(comm_patterns=patterns))
    columns = ("device", "stream", "start", "end")
    compute = work[[*columns, "work_kind"]].filter(pl.col("work_kind") == COMPUTE)
    length = (pl.col("end") - pl.col("start")).sum()
    by_stream = compute.group_by("device", "stream").agg(length.alias("ns"))
    enough = pl.col("ns") > _SHARED_FRAC * pl.col("ns").sum().over("device")
    of_all = nesting.row_numbers(launch_rows(trace, work)).drop_nulls()
    threads = trace.events[["pid", "tid"]][of_all].unique()
    work = work.filter(pl.col("work_kind") == COMMUNICATION)
    calls = launches(trace, work)
    pieces = work[["device", "stream", "start"]][calls["work"]]
    launched = pieces.hstack([calls["launch_start"].alias("launch"), phases(trace, calls, threads)])
    ended = pl.col("end").cum_max()
    ends = compute.select("device", before="start", ended=ended.over("device"))
    timed = launched.sort("start").join_asof(
        ends, left_on="start", right_on="before", by="device", check_sortedness=False
    )
    is_late = (pl.col("launch") >= pl.col("ended")).fill_null(value=False)
    is_after = (pl.col("start") >= pl.col("ended")).fill_null(value=False)
    start = pl.col("start") + part.shift_ns
    late = timed.select("device", "stream", start, "phase", late=is_late, after=is_after)
    streams = by_stream.filter(enough)[["device", "stream"]]
    return Exposed(part, streams, late.unique(["device", "stream", "start"]))


def divide(rows: pl.DataFrame, parts: Sequence[Exposed]) -> pl.DataFrame:
    """Divide the exposed time of all ranks by reason, the largest first.

    Args:
        rows: rows of :func:`communication`.
        parts: the same ranks.

    Returns:
        reason, exposed_ns (sum over collectives), collectives, streams (of these collectives),
        rank (the one that half or more of the wait time is for, else null) and share_frac of all
        exposed time.
    """
    if rows.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    paths = [pl.lit(part.communication.path).alias("path") for part in parts]
    streams = pl.concat(
        p.streams.with_columns(path) for p, path in zip(parts, paths, strict=True)
    ).unique()
    by = ["path", "device", "stream"]
    flagged = rows.join(
        streams.with_columns(shares=pl.lit(value=True)), on=by, how="left", nulls_equal=True
    )
    rest = pl.col("exposed_ns") - pl.col("waiting_ns")
    of_graph = pl.col("replayed").fill_null(value=False)  # whose edges determine the streams
    reason = (
        pl.when(pl.col("shares") & ~of_graph).then(pl.lit(SHARED)).when("late").then(pl.lit(LATE))
    )
    reason = reason.when(pl.col("late").is_null()).then(pl.lit(UNKNOWN))
    reason = reason.when("after").then(pl.lit(AFTER))
    pieces = pl.concat(
        [
            flagged.select("stream", "last", reason=pl.lit(WAITING), exposed_ns="waiting_ns"),
            flagged.select("stream", reason=reason.otherwise(pl.lit(OTHER)), exposed_ns=rest),
        ],
        how="diagonal",
    ).filter(pl.col("exposed_ns") > 0)
    exposed = pl.col("exposed_ns").sum()
    is_most = 2 * exposed.over("reason", "last") >= exposed.over("reason")
    summed = pieces.group_by("reason").agg(
        pl.col("exposed_ns").sum(),
        pl.len().alias("collectives"),
        pl.col("stream").drop_nulls().unique().sort().alias("streams"),
        pl.col("last").filter(is_most).min().cast(pl.Int32).alias("rank"),
    )
    return summed.with_columns(share_frac=ratio("exposed_ns", pl.col("exposed_ns").sum())).sort(
        "exposed_ns", "reason", descending=[True, False]
    )


#: Columns of collectives that are not used here, and those that are after ranks are matched.
_UNUSED = (
    "overlapped_by", "memory_ns", "elements_in", "elements_out", "splits_in"
)  # fmt: skip
_NEEDED = [
    *("id", "instance", "lane", "path", "rank", "device", "stream", "step", "start", "end", "ts"),
    *("duration_ns", "compute_ns", "message_bytes", "collective", "group", "group_size"),
    *("group_ranks", "replayed"),
]


def communication(each: Sequence[Exposed]) -> pl.DataFrame:
    """Return all collectives: path, device, stream, exposed_ns, waiting_ns, late, phase.

    Those that the host runs count only if devices run none. ``last`` is the rank that arrived
    last, ``one_node`` see :func:`~.outliers.with_nodes`. Empty without collectives.
    """
    parts = [one.communication for one in each]
    if not any(part.instances.height for part in parts):
        return pl.DataFrame()
    shifts = {part.path: part.shift_ns for part in parts}
    ordered = matching.ordered(matching.devices_apart(parts))
    matched = matching.match(matching.joined(ordered, _UNUSED))[_NEEDED]
    clocks = arrivals.clock_offsets(matched, {part.rank: part.host for part in ordered})
    met = arrivals.plausible(arrivals.arrivals(matched, arrivals.applied(clocks)))
    last = pl.col("rank").filter("is_last").first().over("instance")
    matched = outliers.with_nodes(matched, ordered)
    on_device = pl.col("device").is_not_null()
    matched = matched.filter(on_device | ~on_device.any())
    rows = matched.join(met.select("id", "wait_ns", last=last), on="id", how="left")
    exposed = pl.col("duration_ns") - pl.col("compute_ns").fill_null(0)
    shift = pl.col("path").replace_strict(shifts, return_dtype=pl.Int64)
    rows = rows.with_columns(exposed_ns=exposed, absolute=pl.col("ts") + shift).with_columns(
        waiting_ns=pl.min_horizontal(pl.col("wait_ns").fill_null(0), "exposed_ns")
    )
    launched = pl.concat(
        one.launched.with_columns(pl.lit(one.communication.path).alias("path")) for one in each
    ).rename({"start": "absolute"})
    keys = ["path", "device", "stream", "absolute"]
    return rows.join(launched, on=keys, how="left", nulls_equal=True)


_KNOWN_PHASE = pl.col("phase").replace(UNKNOWN, None)


def _of_group() -> pl.Expr:
    """Return the phase that the name of the process group says, or null."""
    group = pl.col("group").cast(pl.String)
    says = {**RANGES, OPTIMIZER: r"(?i)^optim(?:izer)?\b"}
    phases = (pl.when(group.str.contains(like)).then(pl.lit(phase)) for phase, like in says.items())
    return pl.coalesce(*phases)


def by_group(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the communication by process group, place and phase, over all ranks.

    Bytes that were not recorded, and wait time of ranks that were not compared, are null.

    Args:
        rows: rows of :func:`communication`.

    Returns:
        The columns of :data:`GROUPS`, most exposed time first. Times and bytes are sums over
        collectives, also of those that run at the same time.
    """
    if rows.is_empty():
        return pl.DataFrame(schema=GROUPS)
    between = pl.when(~pl.col("one_node")).then(pl.lit(BETWEEN))
    place = pl.when("one_node").then(pl.lit(WITHIN)).otherwise(between)
    named = rows.with_columns(
        place=place, phase=pl.coalesce(_KNOWN_PHASE, _of_group(), pl.lit(UNKNOWN))
    )
    length = pl.col("duration_ns")
    sums = named.group_by("group", "group_ranks", "place", "phase").agg(
        ranks=pl.col("rank").n_unique().cast(pl.Int64),
        n=pl.len().cast(pl.Int64),
        message_bytes=sum_if_known("message_bytes"),
        communication_ns=length.sum(),
        overlapped_ns=(length - pl.col("exposed_ns")).sum(),
        exposed_ns=pl.col("exposed_ns").sum(),
        waiting_ns=pl.when(pl.col("wait_ns").count() > 0).then(pl.col("waiting_ns").sum()),
    )
    order = ["exposed_ns", "communication_ns", "group", "group_ranks", "phase"]
    return sums.select(*GROUPS).sort(order, descending=[True, True, *[False] * 3], nulls_last=True)
