"""Who is late: each step's straggler, each rank, and the collectives that a rank came late to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.common.columns import ratio, sum_if_known
from traceanalyzer.frames import intervals
from traceanalyzer.units import NS_PER_MS

if TYPE_CHECKING:
    from traceanalyzer.analyzers.comm_outliers.compute import Part

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
    """A stretch of one rank during which others waited for it, on its own trace's clock."""

    path: str
    rank: int
    start_ns: int
    end_ns: int


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
        sum_if_known("busy_ns"),
        sum_if_known("overlap_ns"),
    )
    return summed.with_columns(
        idle_ns=pl.col("span_ns") - pl.col("busy_ns"),
        overlap_frac=ratio("overlap_ns", "comm_union_ns"),
    ).drop("overlap_ns", "comm_union_ns")


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
    last = rows.filter("is_last").select("instance", "path", window_end_ns="ts")
    return (
        chosen.join(last, on="instance", how="left", maintain_order="left")
        .with_columns(window_start_ns=pl.col("window_end_ns") - pl.col("late_ns"))
        .join(_entered(chosen, marks), on="instance", how="left", maintain_order="left")
    )


def windows(late: pl.DataFrame) -> tuple[Window, ...]:
    """The stretches of the worst rows of :func:`late`, longest imposed waiting first."""
    columns = ("path", "late_rank", "window_start_ns", "window_end_ns")
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
