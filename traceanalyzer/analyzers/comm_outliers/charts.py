"""Pictures of the answer: durations over time, and who arrived when."""

from __future__ import annotations

import polars as pl

from traceanalyzer.result import Chart

_RANK = pl.format("rank {}", "rank").alias("rank")
_TIME = "time since the first collective"


def durations(instances: pl.DataFrame) -> Chart:
    """How long every collective took, by time and rank, the outliers ringed."""
    return Chart(
        name="durations",
        title="Duration of each collective",
        mark="scatter",
        # a logarithm needs more than 0
        frame=instances.select("at_ns", _RANK, pl.col("duration_ns").clip(1), "outlier"),
        x="at_ns",
        y="duration_ns",
        x_label=_TIME,
        y_label="duration",
        color="rank",
        emphasis="outlier",
        emphasis_label="outlier",
        log_y=True,
    )


def arrivals(met: pl.DataFrame, late: pl.DataFrame) -> Chart:
    """How long after the first rank every rank came to each collective, the late ones ringed."""
    first = pl.col("arrival").min()
    named = pl.col("instance").is_in(late["instance"].implode())
    return Chart(
        name="arrivals",
        title="How long after the first rank each rank arrived",
        mark="scatter",
        frame=met.select(
            (first.over("instance") - first).alias("at_ns"),
            _RANK,
            "after_first_ns",
            (pl.col("is_last") & named).alias("late"),
        ),
        x="at_ns",
        y="after_first_ns",
        x_label=_TIME,
        y_label="arrival after the first rank",
        color="rank",
        emphasis="late",
        emphasis_label="late rank",
    )
