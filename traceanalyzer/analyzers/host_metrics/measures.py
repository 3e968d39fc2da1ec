"""What of a host's counters may be a fault, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from traceanalyzer.analyzers.host_metrics.result import HostMetrics

#: Processors this busy (in percent) have nothing left for more loader workers.
BUSY_PERCENT = 95


def busy_processors(result: HostMetrics) -> tuple[float, float] | None:
    """Share of the time in which processors were that busy, and how busy they were on average."""
    readings = of(result, "cpu", "cpu_percent").drop_nulls("lasted_ns")
    held = int(readings["lasted_ns"].sum())
    if not held:
        return None
    busy = int(readings.filter(pl.col("value") >= BUSY_PERCENT)["lasted_ns"].sum())
    return busy / held, result.series.filter(pl.col("series") == "cpu_percent")["mean"][0]


def fullest_memory(result: HostMetrics) -> dict[str, Any] | None:
    """The reading at which most memory was used: ``value`` of ``total`` bytes, ``frac``."""
    used, available = (of(result, "memory/virtual", s) for s in ("used_bytes", "available_bytes"))
    keys = ["on", "path", "at_ns"]
    both = used.join(available.select(*keys, free="value"), on=keys)
    both = both.with_columns(total=pl.col("value") + pl.col("free")).filter(pl.col("total") > 0)
    full = both.with_columns(frac=pl.col("value") / pl.col("total")).sort("frac", descending=True)
    return full.row(0, named=True) if full.height else None


def most_swap(result: HostMetrics) -> dict[str, Any] | None:
    """The row of ``counters`` with most swap in use; None where there is none."""
    used = result.counters.filter(
        (pl.col("counter") == "memory/swap")
        & (pl.col("series") == "used_bytes")
        & (pl.col("max") > 0)
    )
    order = used.sort("max", "on", descending=[True, False])
    return order.row(0, named=True) if order.height else None


def busiest_disk(result: HostMetrics) -> dict[str, Any] | None:
    """The row of ``series`` of the disk that was busy for most of the time, in ms a second."""
    found = result.series.filter(
        pl.col("counter").str.starts_with("disk/"), pl.col("series") == "busy_time_ms"
    ).sort("max", "counter", descending=[True, False], nulls_last=True)
    return found.row(0, named=True) if found.height and found["max"][0] is not None else None


def of(result: HostMetrics, counter: str, series: str) -> pl.DataFrame:
    """The readings of one series."""
    return result.readings.filter(pl.col("counter") == counter, pl.col("series") == series)
