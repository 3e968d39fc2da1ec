"""Who came when to each collective, who waited, for whom, and which rank is late.

Within one matched collective: a rank *arrives* when its kernel starts. It *waits* from then until
the last rank arrives, or until its own kernel ends if that is sooner (the root of a broadcast need
not wait): ``wait = min(last arrival, end) - start``. What follows the last arrival is the
communication itself: ``pure = min(end) - last arrival`` over the ranks, never below 0. The last
rank is *late by* its distance from the median arrival of the others, and *imposes* the sum of the
others' waits, so the waits of all ranks and what late ranks impose have the same total.

The wait is TraceLens' definition too. What a rank takes beyond the shortest of the ranks,
``dur - min(dur)``, agrees with it only as far as all kernels end at once: on the 8-rank DLRM trace
it is up to 7 us off in a collective and 14 us in a rank's total.

How far apart the ranks' clocks are is known from collectives that end everywhere at once. Every
lane (process group) gives each of its ranks a distance from the lane's median end; the ranks' clock
offsets are those that fit all lanes best (least squares over the lanes' medians), so that hosts
that share only some groups are joined through them. Collectives with a root are left out: there a
rank may be done early.

An offset is *applied* only where it is clearly there (more than five times the residual and 50 us)
and cannot be the ordinary skew of ends: three collectives or more speak for it and the hosts differ
or are not known, or it exceeds the typical duration of the collectives. On one host it should be a
few microseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import Part
from traceanalyzer.analyzers.comm_outliers.matching import ROOTED
from traceanalyzer.analyzers.common.columns import ratio, sum_if_known
from traceanalyzer.frames import intervals
from traceanalyzer.units import NS_PER_MS

#: Ends that lie so far before the last arrival cannot be the end of the same collective.
_SLACK_NS = 100_000

CLEAR_RESIDUALS = 5

CLEAR_NS = 50_000

#: Of fewer collectives a residual says little: ends may differ by chance.
FEW = 3

_TYPES = {
    "rank": pl.Int32,
    "n": pl.UInt32,
    "offset_ns": pl.Int64,
    "residual_ns": pl.Int64,
    "applied": pl.Boolean,
}

#: A straggler's share of the step from which it is worth a warning, and more than that (traceml).
WARN_FRAC = 0.10

CRITICAL_FRAC = 0.20

#: A rank that is late in one step only may have had bad luck.
WARN_STEPS = 2

#: What counts as late where no step tells how much matters.
_DEFAULT_NS = NS_PER_MS

#: Collectives shown of a rank that is late a little in many of them.
_SAMPLES = 3

#: So many stretches are looked into; each may need a part of a file read again.
_WINDOWS = 20


@dataclass(frozen=True)
class Window:
    """A stretch of one rank during which others waited for it, on its own trace's clock.

    ``device`` is the one of its collective, None where that is the host's.
    """

    path: str
    rank: int
    start_ns: int
    end_ns: int
    device: int | None = None


def arrivals(instances: pl.DataFrame, offsets: Mapping[int, int]) -> pl.DataFrame:
    """One row a rank in each matched collective, on one clock.

    Adds to the instances' columns ``arrival`` (start less the rank's applied clock offset),
    ``leave`` (end, likewise), ``after_first_ns``, ``wait_ns`` and ``is_last``. Of ranks that arrive
    at the same last moment the lowest counts; where all arrive at once nobody is late. ``step`` is
    that of the first to arrive: a late rank may start in the step after.
    """
    shift = offset_of(pl.col("rank"), offsets)
    rows = instances.filter(pl.col("instance").is_not_null()).with_columns(
        arrival=pl.col("start") - shift, leave=pl.col("end") - shift
    )
    first = pl.col("arrival").min().over("instance")
    last = pl.col("arrival").max().over("instance")
    culprit = pl.col("rank").filter(pl.col("arrival") == pl.col("arrival").max()).min()
    step = pl.col("step").sort_by("arrival", "rank").drop_nulls().first()
    return rows.with_columns(
        step.over("instance"),
        after_first_ns=pl.col("arrival") - first,
        wait_ns=pl.min_horizontal(last, "leave") - pl.col("arrival"),
        is_last=(pl.col("rank") == culprit.over("instance")) & (last > first),
    )


def plausible(rows: pl.DataFrame) -> pl.DataFrame:
    """Only the collectives whose ranks can have been in it together.

    One that some rank left well before another arrived is a wrong match: the ranks are in groups
    that the file does not tell apart, or events are missing. Collectives with a root are exempt.
    """
    apart = pl.col("arrival").max().over("instance") - pl.col("leave").min().over("instance")
    return rows.filter((apart <= _SLACK_NS) | pl.col("collective").is_in(ROOTED))


def collectives(rows: pl.DataFrame) -> pl.DataFrame:
    """One row for each matched collective, in order of time.

    ``late_rank`` is null where all arrived at once. ``late_ns`` is the last arrival less the
    median arrival of the others; ``skew_ns`` the last less the first; ``imposed_ns`` the sum of the
    waits. ``missing`` is how many ranks of the group are not there (null if its size is not known).
    """
    by_arrival = rows.sort("instance", "arrival", "rank")
    late = pl.col("is_last")
    last, first = pl.col("arrival").max(), pl.col("arrival").min()
    others = pl.col("arrival").filter(~late).median().floor().cast(pl.Int64)
    described = ["collective", "dtype", "message_bytes", "group", "group_size", "kernel", "step"]
    table = by_arrival.group_by("instance", maintain_order=True).agg(
        *(pl.col(name).drop_nulls().first() for name in described),
        pl.len().alias("ranks"),
        pl.col("rank").first().alias("first_rank"),
        pl.col("rank").filter(late).first().alias("late_rank"),
        first.alias("first_arrival_ns"),
        last.alias("last_arrival_ns"),
        (last - others).alias("late_ns"),
        (last - first).alias("skew_ns"),
        pl.col("wait_ns").sum().alias("imposed_ns"),
        (pl.col("leave").min() - last).clip(lower_bound=0).alias("pure_ns"),
        (pl.col("leave").max() - pl.col("leave").min()).alias("end_skew_ns"),
    )
    missing = (pl.col("group_size") - pl.col("ranks").cast(pl.Int64)).clip(lower_bound=0)
    return table.with_columns(missing=missing).sort("first_arrival_ns", "instance")


def with_waits(
    instances: pl.DataFrame,
    rows: pl.DataFrame,
    collectives: pl.DataFrame,
    offsets: dict[int, int],
) -> pl.DataFrame:
    """Adds what is known of the collective (null if unmatched), and ``at_ns``.

    That is ``wait_ns``, ``late_rank``, ``root_rank``, ``pure_ns`` and ``slow``.
    """
    waits = rows.select("id", "wait_ns")
    of_collective = collectives.select("instance", "late_rank", "root_rank", "pure_ns", "slow")
    at = pl.col("start") - offset_of(pl.col("rank"), offsets)
    return (
        instances.join(waits, on="id", how="left", maintain_order="left")
        .with_columns(instance=pl.when(pl.col("wait_ns").is_not_null()).then("instance"))
        .join(of_collective, on="instance", how="left", maintain_order="left")
        .with_columns(at_ns=at - at.min())
    )


# --- who is late ---------------------------------------------------------------------------


def steps(rows: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """One row a step: its straggler and what it costs.

    The straggler is the rank that waited least in the step. ``cost_ns`` is the ranks' median wait
    less its own: what the typical rank would have been spared; ``cost_frac`` is that over the
    median length of the step (below 10 % not worth attention, from 10 % a warning, from 20 %
    critical). A rank that waits in two collectives at once waits once here.

    Args:
        rows: arrivals of all matched collectives.
        marks: the step annotations of all ranks, with ``rank``.
    """
    of = ["step", "rank"]
    met = rows.filter(pl.col("step").is_not_null())
    waiting = met.select(*of, start="arrival", end=pl.col("arrival") + pl.col("wait_ns"))
    counts = met.group_by(of).agg(pl.col("instance").n_unique().alias("collectives"))
    waits = intervals.measure(waiting, of).rename({"length": "wait_ns"}).join(counts, on=of)
    length = (pl.col("end") - pl.col("start")).median().round().cast(pl.Int64)
    lengths = marks.group_by("step").agg(length.alias("step_ns"), pl.col("start").min())
    cost = (pl.col("wait_ns").median() - pl.col("wait_ns").min()).round().cast(pl.Int64)
    table = (
        waits.sort("step", "wait_ns", "rank")
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
        .select("step", "straggler", "cost_ns", "cost_frac", "step_ns", "collectives", "ranks")
    )


def ranks(
    parts: Sequence[Part],
    instances: pl.DataFrame,
    rows: pl.DataFrame,
    steps: pl.DataFrame,
    roots: pl.DataFrame,
) -> pl.DataFrame:
    """One row a rank, the root of most wait time first.

    ``comm_ns`` is the summed duration of its collectives; ``wait_ns`` the part of it spent waiting
    in matched ones; ``imposed_ns`` the wait time of which it is the root (``roots``, of
    :func:`~.chains.roots`), also where a rank that it had delayed was last; ``times_first`` counts
    every rank that nobody preceded. ``late_steps`` are the steps it cost at least 10 %,
    ``late_frac`` what it cost in those over all steps' time. ``busy_ns``, ``idle_ns`` and
    ``overlap_frac`` (communication hidden by compute) are of its device, over ``span_ns``.
    """
    total = instances.group_by("rank").agg(
        pl.len().alias("n"),
        pl.col("duration_ns").sum().alias("comm_ns"),
        pl.col("outlier").sum().alias("outliers"),
    )
    imposed = roots.group_by(rank="root_rank").agg(pl.col("root_ns").sum().alias("imposed_ns"))
    met = rows.group_by("rank").agg(
        pl.len().alias("matched"),
        pl.col("wait_ns").sum(),
        pl.col("is_last").sum().alias("times_last"),
        (pl.col("after_first_ns") == 0).sum().alias("times_first"),
    )
    late = steps.filter(pl.col("cost_frac") >= WARN_FRAC)
    cost = late.group_by(rank="straggler").agg(
        pl.len().alias("late_steps"),
        (pl.col("cost_ns").sum() / steps["step_ns"].sum()).alias("late_frac"),
    )
    table = devices = _devices(parts)
    for other in (total, met, imposed, cost):
        table = table.join(other, on="rank", how="left")
    return table.with_columns(pl.exclude(devices.columns).fill_null(0)).sort(
        "imposed_ns", "wait_ns", "rank", descending=[True, False, False]
    )


def _devices(parts: Sequence[Part]) -> pl.DataFrame:
    times = ("span_ns", "busy_ns", "comm_ns", "overlap_ns")
    rows = pl.DataFrame(
        [{name: getattr(part, name) for name in ("rank", "host", *times)} for part in parts],
        schema={"rank": pl.Int32, "host": pl.String, **dict.fromkeys(times, pl.Int64)},
    )
    summed = rows.group_by("rank").agg(
        pl.col("host").drop_nulls().first(),
        pl.col("span_ns", "comm_ns").sum(),
        sum_if_known("busy_ns"),
        sum_if_known("overlap_ns"),
    )
    return summed.with_columns(
        idle_ns=pl.col("span_ns") - pl.col("busy_ns"),
        overlap_frac=ratio("overlap_ns", "comm_ns"),
    ).drop("overlap_ns", "comm_ns")


def threshold(steps: pl.DataFrame) -> int:
    """Lateness worth naming, in ns: a tenth of the median step, 1 ms where no steps are marked."""
    typical = steps["step_ns"].median()
    return round(WARN_FRAC * typical) if isinstance(typical, float) else _DEFAULT_NS


def late(
    collectives: pl.DataFrame,
    rows: pl.DataFrame,
    steps: pl.DataFrame,
    marks: pl.DataFrame,
    least_ns: int,
) -> pl.DataFrame:
    """The collectives whose last rank was at least ``least_ns`` late, most imposed waiting first.

    Also the three worst of a rank that has none of those, but costs at least 10 % of the steps'
    time over two steps or more by many small delays. ``into_step_ns`` says how much later than
    the median of the others it had entered the step already (null where unknown). ``path``,
    ``window_start_ns`` and ``window_end_ns`` are the stretch between the others' median arrival
    and its own, on the clock of its trace.
    """
    worst = collectives.filter(pl.col("late_rank").is_not_null(), pl.col("late_ns") > 0).sort(
        "imposed_ns", "instance", descending=[True, False]
    )
    order = pl.int_range(pl.len()).over("late_rank")
    enough = pl.col("late_ns") >= least_ns
    creeping = pl.col("late_rank").is_in(_habitual(steps)) & ~enough.any().over("late_rank")
    chosen = worst.filter(enough | (creeping & (order < _SAMPLES)))
    last = rows.filter("is_last").select(
        "instance", "path", window_device="device", window_end_ns="ts"
    )
    return (
        chosen.join(last, on="instance", how="left", maintain_order="left")
        .with_columns(window_start_ns=pl.col("window_end_ns") - pl.col("late_ns"))
        .join(_entered(chosen, marks), on="instance", how="left", maintain_order="left")
    )


def windows(late: pl.DataFrame) -> tuple[Window, ...]:
    """The stretches of the worst rows of :func:`late`, longest imposed waiting first."""
    columns = ("path", "late_rank", "window_start_ns", "window_end_ns", "window_device")
    return tuple(Window(*row) for row in late.head(_WINDOWS).select(columns).iter_rows())


def _habitual(steps: pl.DataFrame) -> list[int]:
    """Ranks that cost at least a tenth of all steps' time, in two steps or more."""
    late = steps.filter(pl.col("cost_frac") >= WARN_FRAC)
    share = pl.col("cost_ns").sum() / steps["step_ns"].sum()
    by_rank = late.group_by("straggler").agg(pl.len().alias("n"), share.alias("share"))
    often = by_rank.filter(pl.col("n") >= WARN_STEPS, pl.col("share") >= WARN_FRAC)
    return often["straggler"].to_list()


def _entered(chosen: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """``instance``, ``into_step_ns``: the late rank's step entry after the others' median entry."""
    entries = marks.group_by("step", "rank").agg(pl.col("arrival").min())
    is_late = pl.col("rank") == pl.col("late_rank")
    entered = pl.col("arrival").filter(is_late).first()
    others = pl.col("arrival").filter(~is_late).median().floor().cast(pl.Int64)
    return (
        chosen.select("instance", "step", "late_rank")
        .join(entries, on="step")
        .group_by("instance")
        .agg((entered - others).alias("into_step_ns"))
    )


# --- clocks --------------------------------------------------------------------------------


def clock_offsets(matched: pl.DataFrame, hosts: Mapping[int | None, str | None]) -> pl.DataFrame:
    """One row a rank: collectives used, offset, residual (MAD) in ns, and whether it is applied.

    A positive offset says that the rank's clock is ahead of the (lower) median rank's. Empty where
    no collective can tell.

    Args:
        matched: rows with ``instance``, ``lane``, ``rank``, ``collective``, ``end``,
            ``duration_ns``.
        hosts: host name by rank, None where it is not known.
    """
    rows = matched.filter(
        pl.col("instance").is_not_null(), ~pl.col("collective").is_in(ROOTED)
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
    found = corrected.group_by("rank").agg(
        pl.len().alias("n"),
        pl.col("offset_ns").first(),
        residual.round().cast(pl.Int64).alias("residual_ns"),
        pl.col("duration_ns").median().alias("typical"),
    )
    one_host = len(set(hosts.values())) == 1 and None not in hosts.values()
    return (
        found.with_columns(applied=_applies(one_host=one_host))
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    )


def applied(found: pl.DataFrame) -> dict[int, int]:
    """The offset in ns of each rank whose clock is to be corrected."""
    return dict(found.filter("applied").select("rank", "offset_ns").iter_rows())


def offset_of(rank: pl.Expr, offsets: Mapping[int, int]) -> pl.Expr:
    """Each rank's offset, 0 where it has none."""
    return rank.replace_strict(offsets, default=0, return_dtype=pl.Int64)


def _applies(*, one_host: bool) -> pl.Expr:
    size = pl.col("offset_ns").abs()
    clear = (size > CLEAR_RESIDUALS * pl.col("residual_ns")) & (size > CLEAR_NS)
    beyond = size > pl.col("typical")
    return clear & (beyond if one_host else beyond | (pl.col("n") >= FEW))


def _fit(medians: pl.DataFrame) -> pl.DataFrame:
    """``rank`` and ``offset_ns`` that explain every lane's medians best; their lower median is 0.

    A rank's own offset, not the mean of two, is the zero: so one of two hosts keeps its clock.
    """
    ranks = medians["rank"].unique().sort()
    row = {rank: i for i, rank in enumerate(ranks)}
    normal = np.zeros((len(ranks), len(ranks)))
    right = np.zeros(len(ranks))
    for lane in medians.sort("rank").partition_by("lane", maintain_order=True):
        at = [row[rank] for rank in lane["rank"]]
        centre = np.eye(len(at)) - 1 / len(at)
        normal[np.ix_(at, at)] += centre
        right[at] += centre @ lane["behind"].to_numpy()
    found = np.linalg.lstsq(normal, right, rcond=None)[0]
    zero = np.sort(found)[(len(found) - 1) // 2]
    return pl.DataFrame({"rank": ranks, "offset_ns": np.rint(found - zero)}).cast(
        {"offset_ns": pl.Int64}
    )
