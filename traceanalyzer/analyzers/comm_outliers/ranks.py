"""Each rank over the whole recording, and each step's straggler."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.comm_outliers.part import Part
from traceanalyzer.frames import intervals

#: A straggler's share of the step from which it is worth a warning, and more than that (traceml).
WARN_FRAC = 0.10
CRITICAL_FRAC = 0.20

#: A rank that is late in one step only may have had bad luck.
WARN_STEPS = 2


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
    share = pl.when(pl.col("step_ns") > 0).then(pl.col("cost_ns") / pl.col("step_ns"))
    return (
        table.join(lengths, on="step")
        .with_columns(cost_frac=share, straggler=pl.when(pl.col("cost_ns") > 0).then("straggler"))
        .sort("start", "step")
        .select("step", "straggler", "cost_ns", "cost_frac", "step_ns", "collectives", "ranks")
    )


def ranks(
    parts: Sequence[Part], instances: pl.DataFrame, rows: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """One row a rank, whoever imposed most waiting on others first.

    ``comm_ns`` is the summed duration of its collectives; ``wait_ns`` the part of it spent waiting
    in matched ones; ``imposed_ns`` what the others waited when it was last; ``times_first`` counts
    every rank that nobody preceded. ``late_steps`` are the steps it cost at least 10 %,
    ``late_frac`` what it cost in those over all steps' time. ``busy_ns``, ``idle_ns`` and
    ``overlap_frac`` (communication hidden by compute) are of its device, over ``span_ns``.
    """
    total = instances.group_by("rank").agg(
        pl.len().alias("n"),
        pl.col("duration_ns").sum().alias("comm_ns"),
        pl.col("outlier").sum().alias("outliers"),
    )
    blamed = rows.with_columns(imposed=pl.col("wait_ns").sum().over("instance"))
    met = blamed.group_by("rank").agg(
        pl.len().alias("matched"),
        pl.col("wait_ns").sum(),
        pl.col("imposed").filter("is_last").sum().alias("imposed_ns"),
        pl.col("is_last").sum().alias("times_last"),
        (pl.col("after_first_ns") == 0).sum().alias("times_first"),
    )
    late = steps.filter(pl.col("cost_frac") >= WARN_FRAC)
    cost = late.group_by(rank="straggler").agg(
        pl.len().alias("late_steps"),
        (pl.col("cost_ns").sum() / steps["step_ns"].sum()).alias("late_frac"),
    )
    table = _devices(parts)
    for other in (total, met, cost):
        table = table.join(other, on="rank", how="left")
    counts = [
        "n",
        "comm_ns",
        "outliers",
        "matched",
        "wait_ns",
        "imposed_ns",
        "times_last",
        "times_first",
        "late_steps",
    ]
    return table.with_columns(pl.col(counts).fill_null(0), pl.col("late_frac").fill_null(0.0)).sort(
        "imposed_ns", "wait_ns", "rank", descending=[True, False, False]
    )


def _devices(parts: Sequence[Part]) -> pl.DataFrame:
    rows = pl.DataFrame(
        [(p.rank, p.host, p.span_ns, p.busy_ns, p.comm_ns, p.overlap_ns) for p in parts],
        schema={
            "rank": pl.Int32,
            "host": pl.String,
            "span_ns": pl.Int64,
            "busy_ns": pl.Int64,
            "comm_union_ns": pl.Int64,
            "overlap_ns": pl.Int64,
        },
        orient="row",
    )
    summed = rows.group_by("rank").agg(
        pl.col("host").drop_nulls().first(),
        pl.col("span_ns", "comm_union_ns").sum(),
        *(_sum_or_null(name) for name in ("busy_ns", "overlap_ns")),
    )
    overlap = pl.when(pl.col("comm_union_ns") > 0).then(
        pl.col("overlap_ns") / pl.col("comm_union_ns")
    )
    return summed.with_columns(
        idle_ns=pl.col("span_ns") - pl.col("busy_ns"), overlap_frac=overlap
    ).drop("overlap_ns", "comm_union_ns")


def _sum_or_null(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().any()).then(pl.col(name).sum())
