"""What stands out, in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.analyzers.host_metrics.measures import (
    BUSY_PERCENT,
    busiest_disk,
    busy_processors,
    fullest_memory,
    most_swap,
)
from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.host_metrics.result import HostMetrics

#: From this share of the time on, busy processors are worth naming; always from this mean on.
_BUSY_FRAC = 0.05

#: Memory this full leaves no room for the file cache, and soon none for the program.
_FULL_FRAC = 0.9

#: A disk that is busy for this share of the time is at its limit.
_DISK_BUSY_MS = 800


def verdict(result: HostMetrics) -> str:
    """What stands out of processors, memory, swap, the allocator, disks and networks."""
    found = [
        _processors(result),
        _memory(result),
        _swap(result),
        _retries(result),
        _disks(result),
    ]
    alarming = [sentence for sentence in found if sentence]
    if not alarming:
        alarming = [_nothing(result)]
    return " ".join([*alarming, *_busiest(result)])


def notes(result: HostMetrics) -> tuple[str, ...]:
    """How means are made, and what has no rate."""
    said = []
    if result.readings.height:
        said.append("Means are over time: each reading holds until the next.")
    if result.counters["rate"].any():
        said.append("Disk and network counters only count up: shown is the increase a second.")
    if result.resets:
        times = "once" if result.resets == 1 else f"{result.resets:,} times"
        said.append(f"A counter that only counts up went down {times}: no rate there.")
    return (*said, *result.more_notes)


def _processors(result: HostMetrics) -> str:
    found = busy_processors(result)
    if found is None or found[0] < _BUSY_FRAC:
        return ""
    share, mean = found
    return (
        f"The host's processors were at {BUSY_PERCENT} % or more for {format_frac(share)} "
        f"of the time ({mean:.0f} % on average): whatever runs on the host competes, data loading "
        "and the launching of kernels among it."
    )


def _memory(result: HostMetrics) -> str:
    worst = fullest_memory(result)
    if worst is None or worst["frac"] < _FULL_FRAC:
        return ""
    return (
        f"Memory was up to {format_frac(worst['frac'])} full: {format_bytes(worst['value'])} used "
        f"of {format_bytes(worst['total'])} (used and available)."
    )


def _swap(result: HostMetrics) -> str:
    worst = most_swap(result)
    if worst is None:
        return ""
    grew = worst["last"] - worst["first"]
    more = f", {format_bytes(grew)} more at the end than at the start" if grew > 0 else ""
    return f"Swap is in use: up to {format_bytes(worst['max'])}{more}."


def _retries(result: HostMetrics) -> str:
    found = result.counters.filter(pl.col("series") == "alloc_retries")
    more = (found["last"] - found["first"]).sum()
    if not more:
        return ""
    return (
        f"PyTorch's CUDA allocator had to free its cache and try again {more:.0f} "
        f"{'time' if more == 1 else 'times'}: device memory is short."
    )


def _disks(result: HostMetrics) -> str:
    disk = busiest_disk(result)
    if disk is None or disk["max"] < _DISK_BUSY_MS:
        return ""
    return (
        f"{disk['counter'].removeprefix('disk/')} was busy for {format_frac(disk['max'] / 1000)} "
        f"of the time at worst, {format_frac(disk['mean'] / 1000)} on average."
    )


def _busiest(result: HostMetrics) -> list[str]:
    """The disk and the network with the highest rate."""
    said = []
    for family in ("disk", "network"):
        found = result.series.filter(
            pl.col("counter").str.starts_with(f"{family}/"),
            pl.col("unit") == "bytes/s",
            pl.col("mean") > 0,
        ).sort("mean", "counter", "series", descending=[True, False, False])
        if found.height:
            top = found.row(0, named=True)
            said.append(
                f"{top['counter'].partition('/')[2]} had the highest {family} rate: "
                f"{top['series'].removesuffix('_bytes')} {format_bytes(top['mean'])} a second, up "
                f"to {format_bytes(top['max'])}."
            )
    return said


def _nothing(result: HostMetrics) -> str:
    return (
        f"{_number(result.series.height, 'series', '')} of counters over "
        f"{format_ns(result.span_ns)}; nothing in them is known to be a fault."
    )


def _number(n: int, thing: str, plural: str = "s") -> str:
    return f"{n:,} {thing}{'' if n == 1 else plural}"
