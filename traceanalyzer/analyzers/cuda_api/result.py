"""The calls of all ranks, and what is shown of them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import bars, headings, table_of_known
from traceanalyzer.analyzers.common.places import places
from traceanalyzer.analyzers.cuda_api.findings import ALLOC_IN_LOOP, FINDINGS
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

_NAMED = 3

#: From this share of the time in calls on, a finding is worth a sentence.
_WORTH_FRAC = 0.01

_SUMMED = (
    "Durations are summed over all threads; a call of the runtime that makes one of the driver "
    "counts with it where both were recorded."
)

_FINDINGS = headings(
    """finding, what, n, host_ns: host time, host_frac: of all calls, moved_bytes: moved,
    copy_ns: on the device, waited: waited for it"""
)
_CALLS = headings(
    """call, n, total_ns: total, total_frac: of all, mean_ns: mean, median_ns: median, min_ns: min,
    max_ns: max, p99_ns: p99"""
)
_MOVES = headings(
    """call, copy, n, moved_bytes: moved, host_ns: host time, copy_ns: on the device,
    waited: waited for it, finding"""
)
_ALLOCATIONS = headings(
    """call, n, total_ns: host time, max_ns: longest, loop_n: in the loop, loop_ns: host time there,
    late_n: in its second half, late_ns: host time then"""
)
_RANKS = headings(
    """on: rank, n, total_ns: total, span_ns: first to last call, waiting_ns: waiting,
    copying_ns: blocking copies, allocating_ns: allocating in the loop"""
)


@dataclass(frozen=True, eq=False, repr=False)
class CudaApi(Result):
    """What calls of the runtime and the driver cost the host, and which hold it up.

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
        """Findings, calls by name, copies, allocations; ranks where there are several."""
        return View(
            title="What do CUDA calls cost the host, and which hold it up?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers("n", "total_ns", "span_ns", "unfinished", "alone"),
            charts=partial(_charts, self),
        )


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: CudaApi) -> str:
    """The calls that take most, the findings that cost something, and what to do about them."""
    if not result.total_ns:
        return f"{format_count(result.n, 'API call')} of no duration: there is nothing to measure."
    heaviest = [
        f"{call or 'calls without a name'} {format_frac(frac)}"
        for call, frac in result.calls.select("call", "total_frac").head(_NAMED).rows()
    ]
    took = "takes" if result.n == 1 else "take"
    counted = f"{format_count(result.n, 'API call')} {took} {format_ns(result.total_ns)}"
    said = [f"{counted} of the host's time: {', '.join(heaviest)}."]
    worth = result.findings.filter(pl.col("host_frac") >= _WORTH_FRAC)
    said += [_finding(result, row) for row in worth.rows(named=True)]
    if result.findings.is_empty():
        said.append("No call copies, waits or allocates so that it holds the host up.")
    elif worth.is_empty():
        said.append("Calls that copy, wait or allocate so that they hold the host up take < 1 %.")
    return " ".join(said)


def _finding(result: CudaApi, row: dict[str, Any]) -> str:
    took = "takes" if row["n"] == 1 else "take"
    cost = f"{took} {format_ns(row['host_ns'])} ({format_frac(row['host_frac'])})"
    opening = f"{row['n']:,} {FINDINGS[row['finding']].sentence(row['n'])} {cost}"
    if row["copy_ns"] is not None:
        opening += f", while the device is at it for {format_ns(row['copy_ns'])}"
    if row["finding"] == ALLOC_IN_LOOP and not result.allocations["late_n"].sum():
        return f"{opening}, all in the first half: warming up, as it seems."
    return f"{opening}: {row['advice']}."


def _notes(result: CudaApi) -> tuple[str, ...]:
    """What was not counted, and how to read the numbers."""
    said = [_SUMMED]
    if result.alone:
        calls = format_count(result.alone, "call")
        said.append(
            f"{calls} to copy or set memory without a copy or set in the recording: only the calls "
            "are counted."
        )
    if result.unfinished:
        said.append(f"Not counted: {format_count(result.unfinished, 'call')} without an end.")
    return tuple(said)


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: CudaApi) -> tuple[Table, ...]:
    """Findings, calls by name, copies, allocations; ranks where there are several."""
    copy = pl.col("name").str.strip_prefix("Memcpy ").alias("copy")
    moves = result.moves.with_columns(copy)
    found = [
        table_of_known("findings", "Findings", result.findings, _FINDINGS),
        Table("calls", "Calls", result.calls, _CALLS),
        table_of_known("moves", "Calls that copy or set memory", moves, _MOVES),
        Table("allocations", "Calls that allocate or free", result.allocations, _ALLOCATIONS),
    ]
    if result.ranks.height > 1:
        ranks = result.ranks.with_columns(places(result.ranks))
        own = result.by_rank.with_columns(places(result.by_rank))
        found.append(Table("ranks", "Ranks", ranks, _RANKS))
        columns = {"on": "rank", **_CALLS}
        found.append(Table("by_rank", "Calls by rank", own, columns, detail=True))
    return tuple(found)


def _charts(result: CudaApi) -> tuple[Chart, ...]:
    """The calls that take most."""
    title = "Calls by total time"
    return (
        bars("calls", title, result.calls, length="total_ns", label="call", x_label="host time"),
    )
