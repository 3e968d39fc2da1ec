"""What is drawn: the parts of each device's time, whole and over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.parts import IDLE, PARTS
from traceanalyzer.analyzers.places import places
from traceanalyzer.result import Chart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traceanalyzer.analyzers.overlap.result import Overlap

_PARTS = {f"{part}_ns": part.replace("memory", "copies").replace("_", " ") for part in PARTS}
_SORTS = {"compute_ns": "compute", "communication_ns": "communication", "memory_ns": "copies"}


def charts(result: Overlap) -> tuple[Chart, ...]:
    """Stacked parts of what is told first, and each device's shares over time."""
    first = {"device": _devices, "step": _steps, "stream": _streams}[result.by](result)
    return (first, *([_timeline(result)] if result.timeline.height else []))


def _devices(result: Overlap) -> Chart:
    frame = result.devices.with_columns(places(result.devices))
    return _stacked("What the devices' time is made of", _long(frame, ["on"], _PARTS), "on")


def _steps(result: Overlap) -> Chart:
    frame = result.steps.with_columns(places(result.steps))
    long = _long(frame, ["on", "step"], _PARTS)
    return _stacked("What the steps' time is made of", long, "step", panel=_panel(frame))


def _streams(result: Overlap) -> Chart:
    frame = result.streams.with_columns(places(result.streams))
    long = _long(frame, ["on", "stream"], _SORTS)
    return _stacked("What each stream was busy with", long, "stream", panel=_panel(frame))


def _timeline(result: Overlap) -> Chart:
    """Shares of each stretch; what is missing to 100 % is idle."""
    frame = result.timeline.with_columns(places(result.timeline))
    busy = {name: label for name, label in _PARTS.items() if label != IDLE}
    shares = frame.with_columns(pl.col(name) / pl.col("span_ns") for name in busy)
    return Chart(
        name="utilisation",
        title="How busy each device was over time",
        mark="bar",
        frame=_long(shares, ["on", "at_ns"], busy, "share_frac"),
        x="at_ns",
        y="share_frac",
        x_label="time since the first device work",
        y_label="share of the time",
        color="part",
        panel=_panel(frame),
        stacked=True,
    )


def _stacked(title: str, frame: pl.DataFrame, x: str, panel: str | None = None) -> Chart:
    return Chart(
        name="parts",
        title=title,
        mark="bar",
        frame=frame,
        x=x,
        y="time_ns",
        x_label="" if x == "on" else x,
        y_label="time",
        color="part",
        panel=panel,
        stacked=True,
    )


def _panel(frame: pl.DataFrame) -> str | None:
    return "on" if frame["on"].n_unique() > 1 else None


def _long(
    frame: pl.DataFrame, keys: list[str], parts: Mapping[str, str], value: str = "time_ns"
) -> pl.DataFrame:
    """A row for each row and part, parts in the order given."""
    wide = frame.select(*keys, *(pl.col(name).alias(label) for name, label in parts.items()))
    return wide.unpivot(index=keys, variable_name="part", value_name=value)
