"""Collectives in which one rank kept the others waiting, and the stretches to look into."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers.ranks import WARN_FRAC, WARN_STEPS
from traceanalyzer.units import NS_PER_MS

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
    own = rows.filter("is_last").select("instance", "path", window_end_ns="ts")
    return (
        chosen.join(own, on="instance", how="left", maintain_order="left")
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
    own = pl.col("arrival").filter(is_late).first()
    others = pl.col("arrival").filter(~is_late).median().floor().cast(pl.Int64)
    return (
        chosen.select("instance", "step", "late_rank")
        .join(entries, on="step")
        .group_by("instance")
        .agg((own - others).alias("into_step_ns"))
    )
