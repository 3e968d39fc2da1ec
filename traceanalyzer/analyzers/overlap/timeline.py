"""Device time over time: in stretches short enough to see, on a grid that all ranks share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.analyzers.device_work import DEVICE

#: Most stretches that a rank's recording is measured in, and that a picture shows.
FINE, COARSE = 2_000, 200


def stretches(span: pl.DataFrame, epoch_ns: int | None) -> pl.DataFrame:
    """Where to measure a rank's devices: on the absolute clock, where known, cut at 10^k ns.

    Args:
        span: rank, device, start and end of each device's work.
        epoch_ns: absolute time of the clock's 0.

    Returns:
        rank, device, start and end, at most :data:`FINE` + 1 for each device.
    """
    first, last = span.select(pl.col("start").min(), pl.col("end").max()).row(0)
    width = 1
    while (last - first) > FINE * width:
        width *= 10
    epoch = epoch_ns or 0
    grid = np.arange((first + epoch) // width, (last + epoch) // width + 2, dtype=np.int64)
    edges = np.clip(grid * width - epoch, first, last)
    windows = pl.DataFrame({"start": edges[:-1], "end": edges[1:]}).filter(
        pl.col("end") > pl.col("start")
    )
    return span.select(DEVICE).join(windows, how="cross")


def timeline(measured: Sequence[pl.DataFrame], *, one_clock: bool) -> pl.DataFrame:
    """The ranks' stretches put together to at most :data:`COARSE` + 1 of 1, 2 or 5 times 10^k ns.

    Args:
        measured: for each rank rank, path, device, start, end and measures, absolute times if
            ``one_clock``.
        one_clock: the times of all are on one clock; else each rank's begin with 0.

    Returns:
        rank, path, device, at_ns, span_ns and the measures, summed.
    """
    extents = [
        frame.select(pl.col("start").min(), pl.col("end").max()).row(0) for frame in measured
    ]
    known = [(first, last) for first, last in extents if first is not None]
    if not known:
        return _summed(pl.concat(measured), 1, pl.lit(0, pl.Int64))
    begins, ends = zip(*known, strict=True)
    length = max(ends) - min(begins) if one_clock else max(last - first for first, last in known)
    width = _width(length)
    placed = [
        _summed(frame, width, pl.lit((min(begins) if one_clock else first or 0) // width * width))
        for frame, (first, _) in zip(measured, extents, strict=True)
    ]
    return pl.concat(placed)


def _width(length: int) -> int:
    width = 1
    while True:
        for times in (1, 2, 5):
            if length <= COARSE * times * width:
                return times * width
        width *= 10


def _summed(frame: pl.DataFrame, width: int, origin: pl.Expr) -> pl.DataFrame:
    keys = ["rank", "path", "device", "at_ns"]
    return (
        frame.with_columns(
            at_ns=pl.col("start") // width * width - origin,
            span_ns=pl.col("end") - pl.col("start"),
        )
        .drop("start", "end")
        .group_by(keys, maintain_order=True)
        .agg(pl.all().sum())
    )
