"""Counters over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.result import Chart

if TYPE_CHECKING:
    from traceanalyzer.analyzers.host_metrics.result import HostMetrics

#: Devices of one kind are drawn below one another on one scale.
_FAMILY = r"^(disk|network)/"

#: Counts of operations say less than the bytes they move.
_LESS_TELLING = "1/s"

_LABELS = {
    "bytes": "size",
    "bytes/s": "per second",
    "1/s": "per second",
    "ms/s": "ms per second",
    "%": "percent",
}


def charts(result: HostMetrics) -> tuple[Chart, ...]:
    """A chart for each counter, disks and networks together, with a panel a series, a line a rank.

    What never changes is left out, and so are rates of operations, unless there is nothing else.
    """
    changing = result.series.filter(pl.col("max") > pl.col("min"))
    telling = changing.filter(pl.col("unit") != _LESS_TELLING)
    chosen = next((s for s in (telling, changing, result.series) if s.height), result.series)
    family = pl.coalesce(pl.col("counter").str.extract(_FAMILY), "counter")
    groups = chosen.select("counter", "series", "unit", family=family)
    found = []
    for family_name, unit in (
        groups.select("family", "unit").unique(maintain_order=True).iter_rows()
    ):
        members = groups.filter(pl.col("family") == family_name, pl.col("unit") == unit)
        found.append(_chart(result, family_name, unit, members))
    return tuple(found)


def _chart(result: HostMetrics, family: str, unit: str, members: pl.DataFrame) -> Chart:
    several = result.counters["on"].n_unique() > 1
    within = pl.when(pl.col("counter") == family).then("series")
    panel = within.otherwise(
        pl.format("{} {}", pl.col("counter").str.replace(_FAMILY, ""), "series")
    )
    value = "value_bytes" if unit.startswith("bytes") else "value"
    keys = ["counter", "series"]
    rows = result.readings.join(members.select(keys), on=keys, how="semi").sort(
        *keys, "on", "at_ns"
    )
    frame = rows.select("at_ns", "on", panel.alias("counter"), pl.col("value").alias(value))
    label = _LABELS.get(unit, unit or "value")
    return Chart(
        f"{family} {unit}".strip(),
        f"{family}, {label}" if unit.endswith("/s") else family,
        "line",
        frame,
        x="at_ns",
        y=value,
        x_label="time from the start",
        y_label=label,
        color="on" if several else None,
        panel="counter",
    )
