"""Who came when to each collective, who waited, and for whom; on clocks that agree.

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

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.matching import ROOTED

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
    """Adds ``wait_ns``, ``late_rank``, ``pure_ns``, ``slow`` (null if unmatched), and ``at_ns``."""
    waits = rows.select("id", "wait_ns")
    of_collective = collectives.select("instance", "late_rank", "pure_ns", "slow")
    at = pl.col("start") - offset_of(pl.col("rank"), offsets)
    return (
        instances.join(waits, on="id", how="left", maintain_order="left")
        .with_columns(instance=pl.when(pl.col("wait_ns").is_not_null()).then("instance"))
        .join(of_collective, on="instance", how="left", maintain_order="left")
        .with_columns(at_ns=at - at.min())
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
