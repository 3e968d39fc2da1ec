"""The answer in one paragraph, and what is to be known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.api_calls.findings import ALLOC_IN_LOOP, FINDINGS
from traceanalyzer.units import format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.api_calls.result import CudaApi

_NAMED = 3

#: From this share of the time in calls on, a finding is worth a sentence.
_WORTH_FRAC = 0.01

_SUMMED = (
    "Durations are summed over all threads; a call of the runtime that makes one of the driver "
    "counts with it where both were recorded."
)


def verdict(result: CudaApi) -> str:
    """The calls that take most, the findings that cost something, and what to do about them."""
    if not result.total_ns:
        return f"{_counted(result.n, 'API call')} of no duration: there is nothing to measure."
    heaviest = [
        f"{call or 'calls without a name'} {format_frac(frac)}"
        for call, frac in result.calls.select("call", "total_frac").head(_NAMED).rows()
    ]
    took = "takes" if result.n == 1 else "take"
    counted = f"{_counted(result.n, 'API call')} {took} {format_ns(result.total_ns)}"
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
    opening = f"{row['n']:,} {FINDINGS[row['finding']].told(row['n'])} {cost}"
    if row["copy_ns"] is not None:
        opening += f", while the device is at it for {format_ns(row['copy_ns'])}"
    if row["finding"] == ALLOC_IN_LOOP and not result.allocations["late_n"].sum():
        return f"{opening}, all in the first half: warming up, as it seems."
    return f"{opening}: {row['advice']}."


def notes(result: CudaApi) -> tuple[str, ...]:
    """What was not counted, and how to read the numbers."""
    said = [_SUMMED]
    if result.alone:
        said.append(
            f"{_counted(result.alone, 'call')} to copy or set memory without a copy or set in the "
            "recording: only the calls are counted."
        )
    if result.unfinished:
        said.append(f"Not counted: {_counted(result.unfinished, 'call')} without an end.")
    return tuple(said)


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"
