"""The answer to: how did the host fare?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.host_metrics.charts import charts
from traceanalyzer.analyzers.host_metrics.tables import tables
from traceanalyzer.analyzers.host_metrics.verdict import notes, verdict
from traceanalyzer.result import Chart, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class HostMetrics(Result):
    """What :func:`host_metrics` found.

    Attributes:
        span_ns: from the earliest reading to the last.
        counters: a row a series of a process: on (the rank, process or file), rank, path, pid,
            process, counter, series, unit (``bytes``, ``%``, ``ms``; with ``/s`` a rate; empty
            where not known), rate, n (readings, or stretches between two), first, min, mean
            (weighted by time), median, max, last.
        series: the same for all processes together: counter, series, unit, rate, n, min, mean,
            median, max, max_on (where the highest was read).
        readings: on, rank, path, pid, counter, series, unit, rate, at_ns (from the file's first
            event), lasted_ns, value.
        resets: times that a counter that only counts up went down.
        more_notes: what else is to be said.
    """

    span_ns: int
    counters: pl.DataFrame
    series: pl.DataFrame
    readings: pl.DataFrame
    resets: int
    more_notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "How did the host fare?"

    @property
    def verdict(self) -> str:
        """What stands out: busy processors, full memory, swap, the busiest disk and network."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """How means are made, and what has no rate."""
        return notes(self)

    @property
    def tables(self) -> tuple[Table, ...]:
        """All series in raw units; sizes, rates and all others as people read them."""
        return tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """A panel for each series that changes, a line a rank."""
        return charts(self)

    @property
    def scalars(self) -> dict[str, Any]:
        """The time looked at, and resets."""
        return {"span_ns": self.span_ns, "resets": self.resets}
