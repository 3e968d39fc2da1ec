"""What is drawn: the steps' times in their order, and what each is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.places import places, told_by_rank
from traceanalyzer.analyzers.steps.statistics import DEVICE_PARTS
from traceanalyzer.result import Chart

if TYPE_CHECKING:
    from traceanalyzer.analyzers.steps.result import Steps


def charts(result: Steps) -> tuple[Chart, ...]:
    """Times by rank, and the parts stacked, where they are known."""
    return (_times(result), *([_parts(result)] if result.parts else []))


def _times(result: Steps) -> Chart:
    each = result.steps.unique(["rank", "path", "number"], keep="first", maintain_order=True)
    color = "rank" if told_by_rank(result.ranks) else "on"
    several = result.ranks.height > 1
    return Chart(
        name="times",
        title="How long each step takes",
        mark="line" if several else "bar",  # bars begin at 0
        frame=each.select("step", "duration_ns", "warm_up", color),
        x="step",
        y="duration_ns",
        x_label="step",
        y_label="time",
        color=color if several else None,
        emphasis="warm_up",
        emphasis_label="warm-up",
    )


def _parts(result: Steps) -> Chart:
    frame = result.steps.with_columns(places(result.steps))
    # all of a device's parts, so that each has its colour whatever else there is
    parts = DEVICE_PARTS if "compute_ns" in result.parts else result.parts
    wide = frame.select("on", "step", *(pl.col(n).alias(label) for n, label in parts.items()))
    return Chart(
        name="parts",
        title="What the steps' time is made of",
        mark="bar",
        frame=wide.unpivot(index=["on", "step"], variable_name="part", value_name="time_ns"),
        x="step",
        y="time_ns",
        x_label="step",
        y_label="time",
        color="part",
        panel="on" if frame["on"].n_unique() > 1 else None,
        stacked=True,
    )
