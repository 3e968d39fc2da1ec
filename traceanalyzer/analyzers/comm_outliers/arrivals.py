"""Arrival times, wait times and stragglers of matched collectives, and clock offsets of ranks.

Within one matched collective: a rank *arrives* when its kernel starts. Its *wait time* is from then
to the arrival of the last rank, or to the end of its kernel if that is sooner (the root of a
broadcast need not wait): ``wait = min(last arrival, end) - start``. The *transfer time* follows the
last arrival: ``transfer = min(end) - last arrival`` over the ranks, at least 0. The *arrival delay*
of the last rank is relative to the median arrival of the others; the rank *imposes* the sum of the
others' wait times. Several collectives of a rank may wait at once, as for gradient buckets: in sums
over collectives each moment of a rank counts once, for the first of them, so wait times and imposed
times have the same total over all ranks.

TraceLens defines wait time in the same way. The time beyond the shortest rank, ``dur - min(dur)``,
is the same only if all kernels end at once: on the 8-rank DLRM trace it differs by up to 7 us in a
collective and 14 us in a rank's total.

Clock offsets are derived from collectives that end at the same time on all ranks. Every lane
(process group) gives each of its ranks a distance from the lane's median end; the offsets fit all
lanes best (least squares over the lanes' medians), so that hosts that share only some groups are
joined through them. Collectives with a root are excluded: there a rank may finish early.

An offset is *applied* only if it is clear (more than five times the residual and 50 us) and cannot
be the normal skew of ends: it is derived from three collectives or more and the hosts differ or are
unknown, or it exceeds the typical duration of the collectives. On one host it should be a few
microseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Activity, Part
from traceanalyzer.analyzers.comm_outliers.matching import ROOTED, UNEVEN
from traceanalyzer.analyzers.common import soundness
from traceanalyzer.analyzers.common.columns import previous, ratio, sum_if_known
from traceanalyzer.analyzers.common.device_steps import is_warm_up
from traceanalyzer.frames import intervals
from traceanalyzer.units import NS_PER_MS

#: An end this far before the last arrival cannot be of the same collective.
_SLACK_NS = 100_000

CLEAR_RESIDUALS = 5

CLEAR_NS = 50_000

#: With fewer collectives ends may differ by chance, so the residual is not reliable.
FEW = 3

_TYPES = {
    "rank": pl.Int32,
    "n": pl.UInt32,
    "offset_ns": pl.Int64,
    "residual_ns": pl.Int64,
    "applied": pl.Boolean,
}

#: A straggler's share of the step for a warning, and for a critical finding (as in traceml).
WARN_FRAC = 0.10

CRITICAL_FRAC = 0.20

#: A straggler in one step only may be chance.
WARN_STEPS = 2

#: Smallest reported arrival delay without steps.
DEFAULT_NS = NS_PER_MS

#: Reported collectives of a rank with many small arrival delays.
_SAMPLES = 3

#: Analysed intervals; each may require another read of a part of a file.
_WINDOWS = 20


@dataclass(frozen=True)
class Window:
    """An interval of one rank during which others waited for it, on the clock of its trace.

    ``device`` is that of its collective, None for a collective on the host.
    """

    path: str
    rank: int
    start_ns: int
    end_ns: int
    device: int | None = None


def arrivals(instances: pl.DataFrame, offsets: Mapping[int, int]) -> pl.DataFrame:
    """Return one row per rank of each matched collective, on one clock.

    Adds ``arrival`` (start less the rank's applied clock offset), ``leave`` (end, likewise),
    ``after_first_ns``, ``wait_ns``, ``once_ns`` (the part of it before which no other collective of
    the rank waits) and ``is_last``. If several ranks arrive last, the lowest is the
    last rank; if all arrive at once, there is none. ``step`` is that of the first rank to arrive: a
    straggler may start in the next step.
    """
    shift = offset_of(pl.col("rank"), offsets)
    rows = instances.filter(pl.col("instance").is_not_null()).with_columns(
        arrival=pl.col("start") - shift, leave=pl.col("end") - shift
    )
    first = pl.col("arrival").min().over("instance")
    last = pl.col("arrival").max().over("instance")
    straggler = pl.col("rank").filter(pl.col("arrival") == pl.col("arrival").max()).min()
    step = pl.col("step").sort_by("arrival", "rank").drop_nulls().first()
    return _once(
        rows.with_columns(
            step.over("instance"),
            after_first_ns=pl.col("arrival") - first,
            wait_ns=pl.min_horizontal(last, "leave") - pl.col("arrival"),
            is_last=(pl.col("rank") == straggler.over("instance")) & (last > first),
        )
    )


def _once(rows: pl.DataFrame) -> pl.DataFrame:
    """Add ``once_ns``: wait time during which no earlier collective of the rank waits."""
    until = pl.col("arrival") + pl.col("wait_ns")
    before = until.cum_max().shift(1).over("rank", order_by=["arrival", "instance"])
    begin = pl.max_horizontal("arrival", before)
    return rows.with_columns(once_ns=(until - begin).clip(lower_bound=0))


def plausible(rows: pl.DataFrame) -> pl.DataFrame:
    """Drop collectives that a rank left well before another one arrived.

    Such a match is wrong: the ranks are in groups that the file does not distinguish, or events are
    missing. Collectives with a root are exempt.
    """
    apart = pl.col("arrival").max().over("instance") - pl.col("leave").min().over("instance")
    return rows.filter((apart <= _SLACK_NS) | pl.col("collective").is_in(ROOTED))


def collectives(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per matched collective, in order of time.

    ``last_rank`` is null if all arrived at once. ``arrival_delay_ns`` is the last arrival less the
    median arrival of the others; ``skew_ns`` the last less the first; ``imposed_ns`` the sum of the
    wait times; ``transfer_ns`` the transfer time. ``missing`` is the number of ranks of the group
    without an event (null if the group's size is unknown).
    """
    by_arrival = rows.sort("instance", "arrival", "rank")
    is_last = pl.col("is_last")
    last, first = pl.col("arrival").max(), pl.col("arrival").min()
    others = pl.col("arrival").filter(~is_last).median().floor().cast(pl.Int64)
    described = [
        *("collective", "dtype", "message_bytes", "group", "group_size", "group_ranks"),
        *("kernel", "step", "link", "replayed"),
    ]
    described = [name for name in described if name in rows.columns]
    table = by_arrival.group_by("instance", maintain_order=True).agg(
        *(pl.col(name).drop_nulls().first() for name in described),
        pl.len().alias("ranks"),
        pl.col("rank").first().alias("first_rank"),
        pl.col("rank").filter(is_last).first().alias("last_rank"),
        first.alias("first_arrival_ns"),
        last.alias("last_arrival_ns"),
        (last - others).alias("arrival_delay_ns"),
        (last - first).alias("skew_ns"),
        pl.col("wait_ns").sum().alias("imposed_ns"),
        (pl.col("leave").min() - last).clip(lower_bound=0).alias("transfer_ns"),
        (pl.col("leave").max() - pl.col("leave").min()).alias("end_skew_ns"),
    )
    missing = (pl.col("group_size") - pl.col("ranks").cast(pl.Int64)).clip(lower_bound=0)
    return table.with_columns(missing=missing).sort("first_arrival_ns", "instance")


def on_axis(parts: Sequence[Part], offsets: Mapping[int, int]) -> pl.Expr:
    """Return the start of each instance on an axis that begins with the first event of all files.

    Without a known first event, a file begins with its first collective. ``parts`` are on one
    clock, see :func:`~.matching.ordered`.
    """
    with_time = [part for part in parts if part.epoch_known] or parts
    starts = [(offsets.get(part.rank or 0, 0), _start(part)) for part in with_time]
    zero = min((start - offset for offset, start in starts if start is not None), default=0)
    return pl.col("start") - offset_of(pl.col("rank"), offsets) - zero


def _start(part: Part) -> int | None:
    if part.start_ns is not None:
        return part.start_ns + part.shift_ns
    first = part.instances["start"].min()
    return first if isinstance(first, int) else None


def begins(parts: Sequence[Part], offsets: Mapping[int, int]) -> pl.DataFrame:
    """Return when each recording begins, and from when on all ranks are recorded.

    Returns:
        path, rank, begin (absolute, on one clock), from_ns (on the clock of the file); null if the
        recording began less than :data:`~.soundness.APART_NS` before the last one, or if the file
        has communication only, so that its first event is a collective.
    """
    rows = [
        (part.path, part.rank, part.shift_ns, offsets.get(part.rank or 0, 0), part.start_ns)
        for part in parts
        if part.epoch_known and part.activity.busy_ns is not None
    ]
    names = ("path", "rank", "shift", "offset", "start")
    types = (pl.String, pl.Int32, pl.Int64, pl.Int64, pl.Int64)
    frame = pl.DataFrame(rows, schema=dict(zip(names, types, strict=True)), orient="row")
    clock = pl.col("shift") - pl.col("offset")
    first = frame.with_columns(begin=pl.col("start") + clock)
    last = pl.col("begin").min().over("rank").max()
    is_early = last - pl.col("begin") >= soundness.APART_NS
    return first.select("path", "rank", "begin", from_ns=pl.when(is_early).then(last - clock))


def recorded_by_all(
    matched: pl.DataFrame, begins: pl.DataFrame, offsets: Mapping[int, int]
) -> tuple[pl.DataFrame, int]:
    """Drop collectives that a rank entered long before another one of them was recorded.

    Their duration is the time until the other profiler started (or the other process, again), not
    a delay of that rank. The other one may be missing: its sequence numbers begin again.

    Returns:
        The other rows, and the number of dropped collectives.
    """
    if begins["from_ns"].null_count() == begins.height:
        return matched, 0
    keys = ["path", "rank"]
    rows = matched[*keys, "start", "end", "group_size", "instance"]
    rows = rows.join(begins, on=keys, how="left", nulls_equal=True, maintain_order="left")
    shift = offset_of(pl.col("rank"), offsets)
    first = (pl.col("start") - shift).min().over("instance")
    spans = pl.col("begin").max().over("instance") - first >= soundness.APART_NS
    begun = begins.filter(pl.col("from_ns").is_null())["begin"].min()
    lacks = pl.col("rank").n_unique().over("instance") < pl.col("group_size")
    running = pl.lit(begun) < (pl.col("end") - shift).max().over("instance")
    spans |= lacks & running & (pl.lit(begun) - first >= soundness.APART_NS)
    spanning = rows.select((spans & pl.col("instance").is_not_null()).fill_null(value=False))
    dropped = matched.filter(spanning.to_series())["instance"].n_unique()
    return matched.filter(~spanning.to_series()), dropped


def with_waits(
    instances: pl.DataFrame, rows: pl.DataFrame, collectives: pl.DataFrame
) -> pl.DataFrame:
    """Add columns of the collective (null if unmatched).

    These are ``wait_ns``, ``last_rank``, ``root_rank``, ``transfer_ns``, ``slow`` and ``setup``.
    """
    waits = rows.select("id", "wait_ns")
    names = ["instance", "last_rank", "root_rank", "transfer_ns", "slow", "setup"]
    of_collective = collectives.select(names)
    return (
        instances.join(waits, on="id", how="left", maintain_order="left")
        .with_columns(instance=pl.when(pl.col("wait_ns").is_not_null()).then("instance"))
        .join(of_collective, on="instance", how="left", maintain_order="left")
    )


# --- stragglers ----------------------------------------------------------------------------

#: Collectives of a stream with a shorter gap between them are queued behind each other.
_GAP_NS = 20_000
#: Columns of arrivals for sums of wait time: those of many ranks are large.
_WAITING = [
    *("instance", "path", "rank", "lane", "step", "ts", "arrival"),
    *("duration_ns", "compute_ns", "wait_ns"),
]


def in_sequences(rows: pl.DataFrame) -> pl.DataFrame:
    """Sort arrivals by the stream and time, and number those that are queued, ``sequence``."""
    lane, end = ("path", "rank", "lane"), pl.col("ts") + pl.col("duration_ns")
    gap = pl.col("ts") - previous(end, *lane)
    return rows.sort(*lane, "ts").with_columns(sequence=((gap > _GAP_NS) | gap.is_null()).cum_sum())


def carried(sequence: pl.Series, hidden: pl.Series, exposed: pl.Series) -> pl.Series:
    """Return the exposed transfers that overlapped wait time delays, of rows in sequences.

    Compute hides such wait time, but the transfer starts later, and so do the collectives queued
    behind it. Of the overlapped wait time in such a sequence, as much is lost as there are exposed
    transfers after it::

        owed = max(0, owed before + overlapped wait time - exposed transfer)
        lost = owed before + overlapped wait time - owed

    Nothing is owed at the start of a sequence. Windows over many short sequences would be slow.
    """
    wait = hidden.to_numpy()
    added, before = wait - exposed.to_numpy(), wait.cumsum() - wait
    first = np.flatnonzero(sequence.diff().fill_null(1).to_numpy())
    level = added.copy()
    level[first] -= np.diff(before[first], prepend=0)  # more is not owed by the sequence before
    level = level.cumsum()
    least = level.copy()
    least[first] -= np.maximum(added[first], 0)
    owed = level - np.minimum.accumulate(least)
    owed_before = np.append(0, owed)[:-1]
    owed_before[first] = 0
    return pl.Series(owed_before + wait - owed)


def _lost(rows: pl.DataFrame, of: Sequence[str]) -> pl.DataFrame:
    """Return ``wait_ns``, ``lost_ns`` and collectives by these columns, see :func:`steps`."""
    waiting = rows.select(*of, start="arrival", end=pl.col("arrival") + pl.col("wait_ns"))
    alone = pl.col("duration_ns") - pl.col("compute_ns").fill_null(0)
    direct = pl.min_horizontal("wait_ns", alone)
    ordered = in_sequences(rows).with_columns(lost=direct, hidden=pl.col("wait_ns") - direct)
    later = carried(
        ordered["sequence"], ordered["hidden"], ordered.select(alone - direct).to_series()
    )
    sums = ordered.with_columns(pl.col("lost") + later).group_by(of)
    counts = sums.agg(collectives=pl.col("instance").n_unique(), lost=pl.col("lost").sum())
    waits = intervals.measure(waiting, of).rename({"length": "wait_ns"}).join(counts, on=of)
    return waits.with_columns(lost_ns=pl.min_horizontal("wait_ns", "lost"))


def steps(rows: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step: its straggler and the cost.

    The straggler is the rank with the least wait time in the step. ``cost_ns`` is the median of
    what the others lose by waiting, less what the straggler loses: the saving of the typical one;
    ``cost_frac`` is its share of the median step time (from 10 % a warning, from 20 % critical). A
    rank loses wait time without compute, and exposed transfers that overlapped wait time delays
    (:func:`carried`). Wait times that overlap count once. ``warm_up``: by
    :func:`~.device_steps.is_warm_up` of the median.

    Args:
        rows: arrivals of all matched collectives.
        marks: the step annotations of all ranks, with ``rank``.
    """
    length = (pl.col("end") - pl.col("start")).median().round().cast(pl.Int64)
    lengths = marks.group_by("step").agg(length.alias("step_ns"), pl.col("start").min())
    spans = lengths.with_columns(end=pl.col("start") + pl.col("step_ns"))
    lengths = lengths.with_columns(is_warm_up(spans, ()))
    # in order of wait time: the straggler is the first
    usual = pl.col("lost_ns").slice(1).median().fill_null(pl.col("lost_ns").first())
    cost = (usual - pl.col("lost_ns").first()).clip(0).round().cast(pl.Int64)
    table = (
        _lost(rows[_WAITING].drop_nulls("step"), ["step", "rank"])
        .sort("step", "wait_ns", "rank")
        .group_by("step", maintain_order=True)
        .agg(
            pl.col("rank").first().alias("straggler"),
            cost.alias("cost_ns"),
            pl.col("collectives").max(),
            pl.len().alias("ranks"),
        )
    )
    return (
        table.join(lengths, on="step")
        .with_columns(
            cost_frac=ratio("cost_ns", "step_ns"),
            straggler=pl.when(pl.col("cost_ns") > 0).then("straggler"),
        )
        .sort("start", "step")
        .select(
            "step",
            "straggler",
            "cost_ns",
            "cost_frac",
            "step_ns",
            "collectives",
            "ranks",
            "warm_up",
        )
    )


def ranks(
    parts: Sequence[Part],
    instances: pl.DataFrame,
    rows: pl.DataFrame,
    steps: pl.DataFrame,
    roots: pl.DataFrame,
    marks: pl.DataFrame,
) -> pl.DataFrame:
    """Return one row per rank, most imposed wait time first.

    ``comm_ns`` is the summed duration of its collectives; ``wait_ns`` the time in which matched
    ones wait; ``imposed_ns`` the wait time of which it is the root (``roots``, of
    :func:`~.chains.roots`), also if a rank that it had delayed arrived last; ``times_first`` counts
    every rank that arrived first, also together with others. ``straggler_steps`` are the steps of
    which it cost at least 10 %; of a rank with such steps, ``straggler_frac`` is the share of step
    time that the other ranks lose by waiting for it, in the mean of all ranks. Both are without
    warm-up.
    ``busy_ns``, ``compute_ns`` (busy without communication alone; that of the host keeps no device
    busy), ``idle_ns`` and ``overlap_frac`` (communication overlapped by compute) are of its device,
    over ``span_ns``.
    """
    total = instances.group_by("rank").agg(
        pl.len().alias("n"),
        pl.col("duration_ns").sum().alias("comm_ns"),
        pl.col("outlier").sum().alias("outliers"),
    )
    imposed = roots.group_by(rank="root_rank").agg(pl.col("root_ns").sum().alias("imposed_ns"))
    met = rows.group_by("rank").agg(
        pl.len().alias("matched"),
        pl.col("once_ns").sum().alias("wait_ns"),
        pl.col("is_last").sum().alias("times_last"),
        (pl.col("after_first_ns") == 0).sum().alias("times_first"),
    )
    table = devices = _devices(parts)
    counted = pl.col("step").is_in(steps.filter(~pl.col("warm_up"))["step"].implode())
    waits = _waits_for(rows[_WAITING].filter(counted), roots, marks.filter(counted))
    costs = _costs(steps).drop("straggler_frac").join(waits, on="rank")
    for other in (total, met, imposed, costs):
        table = table.join(other, on="rank", how="left")
    return table.with_columns(pl.exclude(devices.columns).fill_null(0)).sort(
        "imposed_ns", "wait_ns", "rank", descending=[True, False, False]
    )


def _devices(parts: Sequence[Part]) -> pl.DataFrame:
    times = dict.fromkeys((*Activity._fields, "compute_ns"), pl.Int64)
    rows = pl.DataFrame(
        [(part.rank, part.host, *part.activity, _compute_ns(part)) for part in parts],
        {"rank": pl.Int32, "host": pl.String, **times},
        orient="row",
    )
    summed = rows.group_by("rank").agg(
        pl.col("host").drop_nulls().first(),
        pl.col("span_ns", "comm_ns").sum(),
        *map(sum_if_known, ("busy_ns", "overlap_ns", "compute_ns")),
    )
    return summed.with_columns(
        idle_ns=pl.col("span_ns") - pl.col("busy_ns"), overlap_frac=ratio("overlap_ns", "comm_ns")
    ).drop("overlap_ns", "comm_ns")


def _compute_ns(part: Part) -> int | None:
    """Return the busy time without communication alone."""
    _, busy, comm, overlap = part.activity
    on_host = part.instances["device"].null_count() == part.instances.height
    return busy if busy is None or overlap is None or on_host else busy - comm + overlap


def threshold(steps: pl.DataFrame) -> int:
    """Return the smallest reported arrival delay in ns: 10 % of the median step, else 1 ms.

    Steps of warm-up do not count.
    """
    typical = steps.filter(~pl.col("warm_up"))["step_ns"].median()
    return round(WARN_FRAC * typical) if isinstance(typical, float) else DEFAULT_NS


def delayed(
    collectives: pl.DataFrame,
    rows: pl.DataFrame,
    steps: pl.DataFrame,
    marks: pl.DataFrame,
    least_ns: int,
) -> pl.DataFrame:
    """Return collectives with an arrival delay of at least ``least_ns``, most imposed time first.

    Also the three worst of a rank that has none of those, but costs at least 10 % of step time over
    two steps or more by many small delays. ``into_step_ns`` is its delay at the start of the step,
    relative to the median of the others (null if unknown). ``path``, ``window_start_ns`` and
    ``window_end_ns`` are the interval between the others' median arrival and the last arrival, on
    the clock of its trace.
    """
    worst = collectives.filter(
        pl.col("last_rank").is_not_null(), pl.col("arrival_delay_ns") > 0
    ).sort("imposed_ns", "instance", descending=[True, False])
    order = pl.int_range(pl.len()).over("last_rank")
    enough = pl.col("arrival_delay_ns") >= least_ns
    repeated = pl.col("last_rank").is_in(_repeated_stragglers(steps))
    small = repeated & ~enough.any().over("last_rank")
    chosen = worst.filter(enough | (small & (order < _SAMPLES)))
    last = rows.filter("is_last").select(
        "instance", "path", window_device="device", window_end_ns="ts"
    )
    return (
        chosen.join(last, on="instance", how="left", maintain_order="left")
        .with_columns(window_start_ns=pl.col("window_end_ns") - pl.col("arrival_delay_ns"))
        .join(_entered(chosen, marks), on="instance", how="left", maintain_order="left")
    )


def windows(delayed: pl.DataFrame) -> tuple[Window, ...]:
    """Return the intervals of the first rows of :func:`delayed`."""
    columns = ("path", "last_rank", "window_start_ns", "window_end_ns", "window_device")
    return tuple(Window(*row) for row in delayed.head(_WINDOWS).select(columns).iter_rows())


def _costs(steps: pl.DataFrame) -> pl.DataFrame:
    """Return what stragglers cost: rank, straggler_steps, straggler_frac; without warm-up."""
    steps = steps.filter(~pl.col("warm_up"))
    costly = steps.filter(pl.col("cost_frac") >= WARN_FRAC)
    return costly.group_by(rank="straggler").agg(
        straggler_steps=pl.len(), straggler_frac=pl.col("cost_ns").sum() / steps["step_ns"].sum()
    )


def _waits_for(rows: pl.DataFrame, roots: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return rank and ``straggler_frac``, see :func:`ranks`, of rows and marks of some steps."""
    whole = int(marks.select((pl.col("end") - pl.col("start")).sum()).item())
    of_roots = roots.drop_nulls("root_rank").unique("instance", keep="first", maintain_order=True)
    met = rows.join(of_roots, on="instance", maintain_order="left")
    waits = _lost(met, ["step", "rank", "root_rank"]).filter(pl.col("rank") != pl.col("root_rank"))
    sums = waits.group_by(rank="root_rank").agg(pl.col("lost_ns").sum())
    return sums.select("rank", straggler_frac=ratio("lost_ns", pl.lit(whole)))


def _repeated_stragglers(steps: pl.DataFrame) -> list[int]:
    """Return ranks that cost at least 10 % of the time of all steps, in two steps or more."""
    is_often = pl.col("straggler_steps") >= WARN_STEPS, pl.col("straggler_frac") >= WARN_FRAC
    return _costs(steps).filter(*is_often)["rank"].to_list()


def _entered(chosen: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """Return ``instance``, ``into_step_ns``: the last rank's delay at the start of the step."""
    entries = marks.group_by("step", "rank").agg(pl.col("arrival").min())
    is_last = pl.col("rank") == pl.col("last_rank")
    entered = pl.col("arrival").filter(is_last).first()
    others = pl.col("arrival").filter(~is_last).median().floor().cast(pl.Int64)
    return (
        chosen.select("instance", "step", "last_rank")
        .join(entries, on="step")
        .group_by("instance")
        .agg((entered - others).alias("into_step_ns"))
    )


# --- clocks --------------------------------------------------------------------------------


def clock_offsets(matched: pl.DataFrame, hosts: Mapping[int | None, str | None]) -> pl.DataFrame:
    """Return one row per rank: collectives used, offset, residual (MAD) in ns, and ``applied``.

    A positive offset means that the rank's clock is ahead of the (lower) median rank's. Empty
    without suitable collectives.

    Args:
        matched: rows with ``instance``, ``lane``, ``rank``, ``collective``, ``end``,
            ``duration_ns``, ``message_bytes`` (of an all_to_all; 0: waits for nobody).
        hosts: host name by rank, None if unknown.
    """
    names = ("instance", "lane", "rank", "collective", "message_bytes", "end", "duration_ns")
    known = matched[names]
    rows = known.filter(
        pl.col("instance").is_not_null(),
        ~pl.col("collective").is_in(ROOTED),
        pl.col("collective").ne(UNEVEN) | pl.col("message_bytes").ne_missing(0),
    ).with_columns(behind=pl.col("end") - pl.col("end").median().over("instance"))
    if rows.is_empty():
        return pl.DataFrame(schema=_TYPES)
    fitted = _fit(rows.group_by("lane", "rank").agg(pl.col("behind").median()))
    corrected = (
        rows.join(fitted, on="rank")
        .with_columns(end=pl.col("end") - pl.col("offset_ns"))
        .with_columns(off=(pl.col("end") - pl.col("end").median().over("instance")))
    )
    residual = (pl.col("off") - pl.col("off").median()).abs().median()
    offsets = corrected.group_by("rank").agg(
        pl.len().alias("n"),
        pl.col("offset_ns").first(),
        residual.round().cast(pl.Int64).alias("residual_ns"),
        pl.col("duration_ns").median().alias("typical"),
    )
    one_host = len(set(hosts.values())) == 1 and None not in hosts.values()
    lasts = known.group_by("rank").agg(last=pl.col("end").max())
    return (
        offsets.join(lasts, on="rank")
        .with_columns(applied=_applies(one_host=one_host))
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    )


def applied(clocks: pl.DataFrame) -> dict[int, int]:
    """Return the offset in ns of each rank whose clock is corrected."""
    return dict(clocks.filter("applied").select("rank", "offset_ns").iter_rows())


def offset_of(rank: pl.Expr, offsets: Mapping[int, int]) -> pl.Expr:
    """Return each rank's offset, 0 if it has none."""
    return rank.replace_strict(offsets, default=0, return_dtype=pl.Int64)


def _applies(*, one_host: bool) -> pl.Expr:
    size = pl.col("offset_ns").abs()
    clear = (size > CLEAR_RESIDUALS * pl.col("residual_ns")) & (size > CLEAR_NS)
    beyond = size > pl.col("typical")
    # a rank that restarts and counts again is shifted by seconds, but ends with the others
    same = pl.col("last").filter(size < soundness.APART_NS).median()
    is_shifted = (pl.col("last") - same - pl.col("offset_ns")).abs() <= size / 2
    on_one = beyond & ((size < soundness.APART_NS) | is_shifted)
    return clear & (on_one if one_host else beyond | (pl.col("n") >= FEW))


def _fit(medians: pl.DataFrame) -> pl.DataFrame:
    """Return ``rank`` and ``offset_ns`` that fit every lane's medians best; lower median 0.

    Zero is the offset of one rank, not the mean of two: so one of two hosts keeps its clock.
    """
    ranks = medians["rank"].unique().sort()
    row = {rank: i for i, rank in enumerate(ranks)}
    normal = np.zeros((len(ranks), len(ranks)))
    right = np.zeros(len(ranks))
    joined = np.arange(len(ranks))  # equal for ranks that lanes connect, directly or not
    for lane in medians.sort("rank").partition_by("lane", maintain_order=True):
        at = [row[rank] for rank in lane["rank"]]
        centre = np.eye(len(at)) - 1 / len(at)
        normal[np.ix_(at, at)] += centre
        right[at] += centre @ lane["behind"].to_numpy()
        joined[np.isin(joined, joined[at])] = joined[at].min()
    # the smallest solution has the mean 0 in each connected set
    fitted = np.linalg.solve(normal + (joined[:, None] == joined), right)
    zero = np.sort(fitted)[(len(fitted) - 1) // 2]
    return pl.DataFrame({"rank": ranks, "offset_ns": np.rint(fitted - zero)}).cast(
        {"offset_ns": pl.Int64}
    )
