"""The tables of the answer: raw numbers, and the same in units that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from traceanalyzer.result import Table

if TYPE_CHECKING:
    from traceanalyzer.analyzers.host_metrics.result import HostMetrics

_STATISTICS = ("min", "mean", "median", "max")


def tables(result: HostMetrics) -> tuple[Table, ...]:
    """Each series of each process in raw units; then sizes, rates and others of all processes."""
    unit = pl.col("unit")
    sizes = _table(result, "sizes", "Memory and other sizes", unit == "bytes", "_bytes")
    rates = _table(result, "rates", "Bytes a second", unit == "bytes/s", "_bytes")
    other = _table(result, "others", "Other counters", ~unit.is_in(("bytes", "bytes/s")), "")
    return (_counters(result), *(t for t in (other, sizes, rates) if t.frame.height))


def _counters(result: HostMetrics) -> Table:
    columns = {
        "on": "on",
        "counter": "counter",
        "series": "series",
        "unit": "unit",
        "n": "n",
        "first": "first",
        "min": "min",
        "mean": "mean",
        "median": "median",
        "max": "max",
        "last": "last",
    }
    title = "Every series of every process, in base units"
    return Table("counters", title, result.counters, columns, detail=True)


def _table(result: HostMetrics, name: str, title: str, chosen: pl.Expr, suffix: str) -> Table:
    """The series of a unit; columns with a suffix that tells it."""
    several = result.counters["on"].n_unique() > 1
    shown = {stat: f"{stat}{suffix}" for stat in _STATISTICS}
    frame = result.series.filter(chosen).select(
        "counter", "series", "unit", "n", *(pl.col(s).alias(c) for s, c in shown.items()), "max_on"
    )
    columns = {
        "counter": "counter",
        "series": "series",
        **({} if suffix else {"unit": "unit"}),
        "n": "n",
        **{column: stat for stat, column in shown.items()},
        **({"max_on": "max on"} if several else {}),
    }
    return Table(name, title, frame, columns)
