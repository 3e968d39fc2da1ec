"""The answer: what calls cost, and which hold the host up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.api_calls.words import notes, verdict
from traceanalyzer.analyzers.places import places
from traceanalyzer.result import Chart, Result, Table

_BARS = 15
_FINDINGS = {
    "finding": "finding",
    "what": "what",
    "n": "n",
    "host_ns": "host time",
    "host_frac": "of all calls",
    "moved_bytes": "moved",
    "copy_ns": "on the device",
    "waited": "waited for it",
}
_LENGTHS = {
    "mean_ns": "mean",
    "median_ns": "median",
    "min_ns": "min",
    "max_ns": "max",
    "p99_ns": "p99",
}
_CALLS = {"call": "call", "n": "n", "total_ns": "total", "total_frac": "of all", **_LENGTHS}
_MOVES = {
    "call": "call",
    "copy": "copy",
    "n": "n",
    "moved_bytes": "moved",
    "host_ns": "host time",
    "copy_ns": "on the device",
    "waited": "waited for it",
    "finding": "finding",
}
_ALLOCATIONS = {
    "call": "call",
    "n": "n",
    "total_ns": "host time",
    "max_ns": "longest",
    "loop_n": "in the loop",
    "loop_ns": "host time there",
    "late_n": "in its second half",
    "late_ns": "host time then",
}
_RANKS = {
    "on": "rank",
    "n": "n",
    "total_ns": "total",
    "span_ns": "first to last call",
    "waiting_ns": "waiting",
    "copying_ns": "blocking copies",
    "allocating_ns": "allocating in the loop",
}


@dataclass(frozen=True, eq=False, repr=False)
class CudaApi(Result):
    """What :func:`cuda_api` found.

    Attributes:
        n: calls of the runtime and the driver.
        total_ns: their summed durations, over all threads.
        span_ns: first start to last end of calls, summed over ranks.
        findings: a row a finding: finding, rule (of ``nsys analyze``, null where it has none),
            what, n, host_ns (in these calls), host_frac (of total_ns), moved_bytes and copy_ns (of
            the copies and sets on the device), waited (calls that returned when the copy had run,
            or later), advice.
        calls: a row a name: call, n, total_ns, total_frac, mean_ns, median_ns, min_ns, max_ns,
            p99_ns, synchronises (waits for the device and does nothing else); the largest total
            first.
        moves: calls that copied or set memory by call, name (of the copy or set) and finding: n,
            moved_bytes, host_ns, max_ns, copy_ns, waited.
        allocations: by call: n, total_ns, max_ns, loop_n and loop_ns between the first and the
            last launch, late_n and late_ns in the second half of that.
        ranks: a row a rank: rank, path, n, total_ns, span_ns, waiting_ns, copying_ns,
            allocating_ns.
        by_rank: the columns of ``calls`` for each rank and path.
        unfinished: calls without an end, not counted.
        alone: calls that copy or set memory of which no copy or set was recorded.
        remarks: further notes.
    """

    n: int
    total_ns: int
    span_ns: int
    findings: pl.DataFrame
    calls: pl.DataFrame
    moves: pl.DataFrame
    allocations: pl.DataFrame
    ranks: pl.DataFrame
    by_rank: pl.DataFrame
    unfinished: int
    alone: int
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "What do CUDA calls cost the host, and which hold it up?"

    @property
    def verdict(self) -> str:
        """Where the time in calls goes, and what to change."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not counted."""
        return (*notes(self), *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Findings, calls by name, copies, allocations; ranks where there are several."""
        copy = pl.col("name").str.strip_prefix("Memcpy ").alias("copy")
        moves = self.moves.with_columns(copy)
        found = [
            _table("findings", "Findings", self.findings, _FINDINGS),
            Table("calls", "Calls", self.calls, _CALLS),
            _table("moves", "Calls that copy or set memory", moves, _MOVES),
            Table("allocations", "Calls that allocate or free", self.allocations, _ALLOCATIONS),
        ]
        if self.ranks.height > 1:
            ranks = self.ranks.with_columns(places(self.ranks))
            own = self.by_rank.with_columns(places(self.by_rank))
            found.append(Table("ranks", "Ranks", ranks, _RANKS))
            columns = {"on": "rank", **_CALLS}
            found.append(Table("by_rank", "Calls by rank", own, columns, detail=True))
        return tuple(found)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The calls that take most, and those of each rank."""
        frame = self.calls.filter(pl.col("total_ns") > 0).head(_BARS)
        total = Chart(
            name="calls",
            title="Calls by total time",
            mark="span",
            frame=frame.with_columns(zero_ns=pl.lit(0, pl.Int64)),
            x="total_ns",
            x2="zero_ns",
            y="call",
            x_label="host time",
            y_label="",
        )
        return (total,)

    @property
    def scalars(self) -> dict[str, Any]:
        """Counts and sums."""
        names = ("n", "total_ns", "span_ns", "unfinished", "alone")
        return {name: getattr(self, name) for name in names}


def _table(name: str, title: str, frame: pl.DataFrame, columns: Mapping[str, str]) -> Table:
    """A table without the columns of which nothing is known."""
    known = {n: label for n, label in columns.items() if frame[n].null_count() < frame.height}
    return Table(name, title, frame, known or columns)
