"""Result of the CUDA API analysis: data, verdict, notes, tables and charts."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import bars, headings, table_of_known
from traceanalyzer.analyzers.common.places import places
from traceanalyzer.analyzers.cuda_api.findings import ALLOC_IN_LOOP, FINDINGS
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

_NAMED = 3

#: Least share of the time in calls to report a finding.
_WORTH_FRAC = 0.01

_SUMMED = (
    "Durations are summed over all threads; a runtime call and the driver call in it both count if "
    "both were recorded."
)

_FINDINGS = headings(
    """finding, what, n, host_ns: host time, host_frac: of all calls, moved_bytes: moved,
    copy_ns: device time, waited: waited for it"""
)
_CALLS = headings(
    """call, n, total_ns: total, total_frac: of all, mean_ns: mean, median_ns: median, min_ns: min,
    max_ns: max, p99_ns: p99"""
)
_MOVES = headings(
    """call, copy, n, moved_bytes: moved, host_ns: host time, copy_ns: device time,
    waited: waited for it, finding"""
)
_ALLOCATIONS = headings(
    """call, n, total_ns: host time, max_ns: max, loop_n: in the loop, loop_ns: host time there,
    late_n: in its second half, late_ns: host time then"""
)
_RANKS = headings(
    """on: rank, n, total_ns: total, span_ns: first to last call, waiting_ns: waiting,
    copying_ns: blocking copies, allocating_ns: allocating in the loop"""
)


@dataclass(frozen=True, eq=False, repr=False)
class CudaApi(Result):
    """Host time of runtime and driver calls, and findings of calls that block the host.

    Attributes:
        n: number of runtime and driver calls.
        total_ns: sum of their durations over all threads.
        span_ns: first start to last end of calls, summed over ranks.
        findings: one row per finding: finding, rule (of ``nsys analyze``, or null), what, n,
            host_ns (in these calls), host_frac (of total_ns), moved_bytes and copy_ns (of the
            copies and memsets on the device), waited (calls that returned after the copy), advice.
        calls: one row per name: call, n, total_ns, total_frac, mean_ns, median_ns, min_ns, max_ns,
            p99_ns, synchronises (only waits for the device); the largest total
            first.
        moves: calls that copied or set memory by call, name (of the copy or memset) and finding: n,
            moved_bytes, host_ns, max_ns, copy_ns, waited.
        allocations: by call: n, total_ns, max_ns, loop_n and loop_ns between the first and the
            last launch, late_n and late_ns in the second half of that.
        ranks: one row per rank: rank, path, n, total_ns, span_ns, waiting_ns, copying_ns,
            allocating_ns.
        by_rank: the columns of ``calls`` for each rank and path.
        unfinished: number of calls without an end, which are not counted.
        alone: number of calls that copy or set memory without a recorded copy or memset.
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

    def view(self) -> View:
        """Build the view: findings, calls by name, copies, allocations, ranks."""
        return View(
            title="What do CUDA calls cost the host, and which block it?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers("n", "total_ns", "span_ns", "unfinished", "alone"),
            charts=partial(_charts, self),
        )


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: CudaApi) -> str:
    """Describe the calls with most time, and findings with advice."""
    if not result.total_ns:
        return f"{format_count(result.n, 'API call')} of zero duration: nothing to measure."
    heaviest = [
        f"{call or 'calls without a name'} {format_frac(frac)}"
        for call, frac in result.calls.select("call", "total_frac").head(_NAMED).rows()
    ]
    took = "takes" if result.n == 1 else "take"
    counted = f"{format_count(result.n, 'API call')} {took} {format_ns(result.total_ns)}"
    parts = [f"{counted} of host time: {', '.join(heaviest)}."]
    worth = result.findings.filter(pl.col("host_frac") >= _WORTH_FRAC)
    parts += [_finding(result, row) for row in worth.rows(named=True)]
    if result.findings.is_empty():
        parts.append("No blocking copies, synchronising calls or allocations between launches.")
    elif worth.is_empty():
        parts.append(
            "Blocking copies, synchronising calls and allocations between launches take < 1 %."
        )
    return " ".join(parts)


def _finding(result: CudaApi, row: dict[str, Any]) -> str:
    took = "takes" if row["n"] == 1 else "take"
    cost = f"{took} {format_ns(row['host_ns'])} ({format_frac(row['host_frac'])})"
    opening = f"{row['n']:,} {FINDINGS[row['finding']].sentence(row['n'])} {cost}"
    if row["copy_ns"] is not None:
        opening += f", the copies take {format_ns(row['copy_ns'])} on the device"
    if row["finding"] == ALLOC_IN_LOOP and not result.allocations["late_n"].sum():
        return f"{opening}, all in the first half: probably warm-up."
    return f"{opening}: {row['advice']}."


def _notes(result: CudaApi) -> tuple[str, ...]:
    """Describe what was not counted, and how to read the numbers."""
    notes = [_SUMMED]
    if result.alone:
        calls = format_count(result.alone, "call")
        notes.append(
            f"{calls} that copy or set memory without a recorded copy or memset: only the call is "
            "counted."
        )
    if result.unfinished:
        notes.append(f"Not counted: {format_count(result.unfinished, 'call')} without an end.")
    return tuple(notes)


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: CudaApi) -> tuple[Table, ...]:
    """Build the tables: findings, calls by name, copies, allocations, ranks."""
    copy = pl.col("name").str.strip_prefix("Memcpy ").alias("copy")
    moves = result.moves.with_columns(copy)
    tables = [
        table_of_known("findings", "Findings", result.findings, _FINDINGS),
        Table("calls", "Calls", result.calls, _CALLS, hide_first=("min_ns", "p99_ns", "mean_ns")),
        table_of_known("moves", "Calls that copy or set memory", moves, _MOVES),
        Table("allocations", "Calls that allocate or free", result.allocations, _ALLOCATIONS),
    ]
    if result.ranks.height > 1:
        ranks = result.ranks.with_columns(places(result.ranks))
        by_rank = result.by_rank.with_columns(places(result.by_rank))
        tables.append(Table("ranks", "Ranks", ranks, _RANKS))
        columns = {"on": "rank", **_CALLS}
        tables.append(Table("by_rank", "Calls by rank", by_rank, columns, detail=True))
    return tuple(tables)


def _charts(result: CudaApi) -> tuple[Chart, ...]:
    """Build bars of the calls with most time."""
    title = "Calls by total time"
    return (
        bars("calls", title, result.calls, length="total_ns", label="call", x_label="host time"),
    )
