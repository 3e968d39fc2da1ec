"""Who came when to each collective, who waited, and for whom.

Within one matched collective: a rank *arrives* when its kernel starts. It *waits* from then until
the last rank arrives, or until its own kernel ends if that is sooner (the root of a broadcast need
not wait): ``wait = min(last arrival, end) - start``. What follows the last arrival is the
communication itself: ``pure = min(end) - last arrival`` over the ranks, never below 0. The last
rank is *late by* its distance from the median arrival of the others, and *imposes* the sum of the
others' waits, so the waits of all ranks and what late ranks impose have the same total.

The wait is TraceLens' definition too. What a rank takes beyond the shortest of the ranks,
``dur - min(dur)``, agrees with it only as far as all kernels end at once: on the 8-rank DLRM trace
it is up to 7 us off in a collective and 14 us in a rank's total.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceanalyzer.analyzers.comm_outliers import clocks
from traceanalyzer.analyzers.comm_outliers.matching import ROOTED

#: Ends that lie so far before the last arrival cannot be the end of the same collective.
_SLACK_NS = 100_000


def arrivals(instances: pl.DataFrame, offsets: Mapping[int, int]) -> pl.DataFrame:
    """One row a rank in each matched collective, on one clock.

    Adds to the instances' columns ``arrival`` (start less the rank's applied clock offset),
    ``leave`` (end, likewise), ``after_first_ns``, ``wait_ns`` and ``is_last``. Of ranks that arrive
    at the same last moment the lowest counts; where all arrive at once nobody is late. ``step`` is
    that of the first to arrive: a late rank may start in the step after.
    """
    shift = clocks.offset_of(pl.col("rank"), offsets)
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
    told = ["collective", "dtype", "message_bytes", "group", "group_size", "kernel", "step"]
    table = by_arrival.group_by("instance", maintain_order=True).agg(
        *(pl.col(name).drop_nulls().first() for name in told),
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
