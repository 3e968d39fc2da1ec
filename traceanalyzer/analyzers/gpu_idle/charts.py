"""The answer as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES
from traceanalyzer.analyzers.gpu_idle.words import NAMES
from traceanalyzer.analyzers.places import places
from traceanalyzer.result import Chart

if TYPE_CHECKING:
    from traceanalyzer.analyzers.gpu_idle.result import GpuIdle

#: What tells units apart.
UNIT = ("rank", "path", "device", "pid")


def charts(result: GpuIdle) -> tuple[Chart, ...]:
    """Idle by cause per step; per device, where there are several; the longest gaps over time."""
    return (
        *([_steps(result)] if result.steps.height else []),
        *([_units(result)] if result.units.height > 1 else []),
        _gaps(result),
    )


def _with_unit(result: GpuIdle, frame: pl.DataFrame) -> pl.DataFrame:
    """Adds ``on``: what a unit is called."""
    called = pl.concat([result.units.select(UNIT), frame.select(UNIT)])
    words = places(called).tail(frame.height)
    process = pl.format("{} process {}", words, "pid")
    return frame.with_columns(on=pl.coalesce(process, words))


def _colors(result: GpuIdle) -> pl.Enum:
    """The causes that occur, and being busy: each has one colour in all charts."""
    occur = [NAMES[cause] for cause, lost in result.idle_by_cause.items() if lost]
    return pl.Enum([*occur, BUSY])


def _times(frame: pl.DataFrame, keep: list[str], colors: pl.Enum) -> pl.DataFrame:
    """A row for each of ``colors``, in their order: ``cause`` and ``time_ns``, beside ``keep``."""
    columns = {f"{BUSY}_ns": BUSY} | {f"{cause}_ns": NAMES[cause] for cause in CAUSES}
    rows = frame.with_row_index("_row").unpivot(
        list(columns), index=["_row", *keep], variable_name="cause", value_name="time_ns"
    )
    cause = pl.col("cause").replace_strict(columns)
    shown = rows.with_columns(cause).filter(pl.col("cause").is_in(colors.categories.to_list()))
    return shown.with_columns(pl.col("cause").cast(colors)).sort("cause", "_row").drop("_row")


def _steps(result: GpuIdle) -> Chart:
    frame = _with_unit(result, result.steps)
    rows = _times(frame, ["step", "on"], _colors(result)).filter(pl.col("cause") != BUSY)
    waiting = "Waiting" if result.on_host else "Idle"
    return Chart(
        "steps",
        f"{waiting} time of each step, by cause",
        "bar",
        rows,
        x="step",
        y="time_ns",
        x_label="step",
        y_label=waiting.lower(),
        color="cause",
        panel="on" if result.units.height > 1 else None,
        stacked=True,
    )


def _units(result: GpuIdle) -> Chart:
    rows = _times(_with_unit(result, result.units), ["on"], _colors(result))
    return Chart(
        "devices",
        "What the time of each went into",
        "bar",
        rows,
        x="on",
        y="time_ns",
        x_label="",
        y_label="time",
        color="cause",
        stacked=True,
    )


def _gaps(result: GpuIdle) -> Chart:
    cause = pl.col("cause").cast(pl.String).replace_strict(NAMES).cast(_colors(result))
    rows = _with_unit(result, result.gaps).with_columns(
        cause=cause, end_ns=pl.col("start_ns") + pl.col("end") - pl.col("start")
    )
    return Chart(
        "gaps",
        "The longest gaps, by their main cause",
        "span",
        rows.sort("rank", "device", "pid", "start"),
        x="start_ns",
        y="on" if result.units.height > 1 else "cause",
        x_label="time from the start",
        y_label="",
        color="cause",
        x2="end_ns",
    )
