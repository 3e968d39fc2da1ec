"""The answer in one paragraph, and what is to be known of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.analyzers.transfers.findings import ADVICE, EXPOSED, PAGEABLE, SMALL
from traceanalyzer.analyzers.transfers.sizes import SMALL_BYTES
from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.transfers.result import Transfers

_NAMED = 3

#: From this share of the devices' time on, small copies are worth a sentence.
_WORTH_FRAC = 0.01

#: Greater rates are told without decimals.
_GREAT_GBPS = 100


def verdict(result: Transfers) -> str:
    """What is copied, at what cost, and what to change."""
    ways = [_way(row) for row in result.copies.head(_NAMED).rows(named=True)]
    of = f"{format_bytes(result.moved_bytes)} in " if result.moved_bytes else ""
    subject = "1 copy or set moves" if result.n == 1 else f"{result.n:,} copies and sets move"
    took = f"{subject} {of}{format_ns(result.total_ns)}"
    said = [f"{took}: {', '.join(ways)}.", _exposed(result), _pageable(result), _small(result)]
    return " ".join(sentence for sentence in said if sentence)


def _way(row: dict[str, Any]) -> str:
    """Direction, memory and time; the bandwidth where copies are large enough to have one."""
    memory = f" ({row['memory']})" if row["memory"] else ""
    told = f"{row['direction']}{memory} {format_ns(row['total_ns'])}"
    rate = row["rate_gbps"]
    if rate is None or row["moved_bytes"] < SMALL_BYTES * row["n"]:
        return told
    return f"{told} at {rate:,.0f} GB/s" if rate >= _GREAT_GBPS else f"{told} at {rate:.3g} GB/s"


def _exposed(result: Transfers) -> str:
    """How much of the devices' time copies take for themselves."""
    if result.alone_ns is None or not result.span_ns:
        return ""
    share = format_frac(result.alone_ns / result.span_ns)
    took = f"{format_ns(result.alone_ns)}, {share} of the devices' time"
    found = f"While no kernel runs, copies and sets take {took}"
    hideable = (result.findings["finding"] == EXPOSED).any()
    return f"{found}: {ADVICE[EXPOSED]}." if hideable else f"{found}."


def _pageable(result: Transfers) -> str:
    rows = result.findings.filter(pl.col("finding") == PAGEABLE)
    if rows.is_empty():
        return ""
    n, total = int(rows["n"].sum()), int(rows["total_ns"].sum())
    copies = "1 copy is" if n == 1 else f"{n:,} copies are"
    return f"{copies} from or to pageable memory ({format_ns(total)}): {ADVICE[PAGEABLE]}."


def _small(result: Transfers) -> str:
    """Small copies, where they take a share of the time worth a sentence."""
    rows = result.findings.filter(pl.col("finding") == SMALL)
    n, total = int(rows["n"].sum()), int(rows["total_ns"].sum())
    if not total or total < _WORTH_FRAC * result.span_ns:
        return ""
    size = format_bytes(SMALL_BYTES)
    return f"{n:,} copies are of less than {size} ({format_ns(total)}): {ADVICE[SMALL]}."


def notes(result: Transfers) -> tuple[str, ...]:
    """How numbers are meant, and what was not counted."""
    said = []
    if result.devices["alone_ns"].null_count():
        said.append("Where no kernel was recorded, it is not known what hides copies.")
    if result.alone_ns is not None:
        said.append(
            "Exposed is the time of copies and sets in which no kernel ran on their device; "
            "communication kernels hide them too."
        )
    if result.unsized:
        said.append(f"{result.unsized:,} copies or sets tell no size: they have no bandwidth.")
    if result.unfinished:
        said.append(f"Not counted: {result.unfinished:,} copies or sets without an end.")
    return tuple(said)
