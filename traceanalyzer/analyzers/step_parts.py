"""What each training step's time on each device is made of."""

from __future__ import annotations

import polars as pl

from traceanalyzer.analyzers.device_work import DEVICE
from traceanalyzer.analyzers.parts import measure_parts


def step_parts(work: pl.DataFrame, marks: pl.DataFrame) -> pl.DataFrame:
    """The parts of every device's time in every step, as the host marks it.

    Device work counts for the step in whose window it *runs*. A device lags behind its host, so
    work may run in the step after the one that launched it.

    Args:
        work: :func:`~traceanalyzer.analyzers.device_work.device_work` of one rank.
        marks: :func:`~traceanalyzer.analyzers.step_marks.step_marks` of that rank.

    Returns:
        The rows of :func:`per_device` with the columns of
        :func:`~traceanalyzer.analyzers.parts.measure_parts`.
    """
    return measure_parts(work, per_device(marks, work))


def per_device(marks: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Every step of one rank on every device of its work.

    Returns:
        rank, device, step, start, end, by start and device.
    """
    devices = work.select(DEVICE).unique().sort(DEVICE)
    windows = marks.select("step", "start", "end").join(devices, how="cross")
    return windows.sort("start", *DEVICE).select(*DEVICE, "step", "start", "end")
