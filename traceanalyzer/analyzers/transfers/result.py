"""The copies and sets of all ranks, and what is shown of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import table_of_known
from traceanalyzer.analyzers.common.places import places
from traceanalyzer.analyzers.transfers import findings
from traceanalyzer.result import Chart, Result, Table, View
from traceanalyzer.units import format_bytes, format_frac, format_ns

_NAMED = 3

#: From this share of the devices' time on, small copies are worth a sentence.
_WORTH_FRAC = 0.01

#: Greater rates are told without decimals.
_GREAT_GBPS = 100


_FINDINGS = {
    "finding": "finding",
    "what": "what",
    "n": "n",
    "moved_bytes": "moved",
    "total_ns": "time",
    "exposed_ns": "exposed",
}
_WAY = {"direction": "direction", "memory": "memory"}
_AMOUNT = {"n": "n", "moved_bytes": "moved", "total_ns": "total"}
_SPEED = {"rate_gbps": "bandwidth", "exposed_frac": "exposed"}
_COPIES = {
    **_WAY,
    **_AMOUNT,
    "min_ns": "min",
    "median_ns": "median",
    "max_ns": "max",
    **_SPEED,
}
_SIZES = {**_WAY, "size": "size", **_AMOUNT, "median_ns": "median", **_SPEED}
_DEVICES = {
    "on": "device",
    **_AMOUNT,
    "busy_ns": "busy copying",
    "busy_frac": "of its span",
    "alone_ns": "without a kernel",
    "alone_frac": "share of its span",
}


@dataclass(frozen=True, eq=False, repr=False)
class Transfers(Result):
    """What is copied and set, how fast, and what of it no kernel hides.

    Rows of ``copies``, ``sizes`` and ``by_device`` have n, moved_bytes (null where no size was
    recorded), total_ns, min_ns, median_ns, max_ns, rate_gbps (bytes over time, in 10^9 bytes a
    second), exposed_n and exposed_ns (copies, and their time, while no kernel ran on the device;
    exposed_ns is null where no kernel was recorded) and exposed_frac (of total_ns).

    Attributes:
        n: copies and sets.
        moved_bytes: their sizes, summed.
        total_ns: their durations, summed.
        span_ns: first start to last end of device work, summed over devices.
        alone_ns: time in which a device copies or sets and runs no kernel, summed over devices;
            None where no kernel was recorded.
        findings: a row a finding: finding, what, n, moved_bytes, total_ns, exposed_ns, advice.
        copies: by direction (``HtoD`` ...; ``set``) and memory; the largest total first.
        sizes: the same by size, a class.
        devices: a row a device: rank, path, device, n, moved_bytes, total_ns, span_ns (first to
            last device work), busy_ns (in which anything is copied or set), alone_ns (the part of
            it in which no kernel runs), busy_frac and alone_frac (of the span).
        by_device: ``copies`` by rank, path and device.
        unsized: copies and sets of which no size was recorded.
        unfinished: copies and sets without an end, not counted.
    """

    n: int
    moved_bytes: int
    total_ns: int
    span_ns: int
    alone_ns: int | None
    findings: pl.DataFrame
    copies: pl.DataFrame
    sizes: pl.DataFrame
    devices: pl.DataFrame
    by_device: pl.DataFrame
    unsized: int
    unfinished: int

    def view(self) -> View:
        """Findings, copies and sets by direction and memory, by size, by device; time by size."""
        return View(
            title="What is copied, how fast, and is it hidden?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=self.numbers(
                "n", "moved_bytes", "total_ns", "span_ns", "alone_ns", "unsized", "unfinished"
            ),
            charts=partial(_charts, self),
        )


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Transfers) -> str:
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
    if rate is None or row["moved_bytes"] < findings.SMALL_BYTES * row["n"]:
        return told
    return f"{told} at {rate:,.0f} GB/s" if rate >= _GREAT_GBPS else f"{told} at {rate:.3g} GB/s"


def _exposed(result: Transfers) -> str:
    """How much of the devices' time copies take for themselves."""
    if result.alone_ns is None or not result.span_ns:
        return ""
    share = format_frac(result.alone_ns / result.span_ns)
    took = f"{format_ns(result.alone_ns)}, {share} of the devices' time"
    found = f"While no kernel runs, copies and sets take {took}"
    hideable = (result.findings["finding"] == findings.EXPOSED).any()
    return f"{found}: {findings.ADVICE[findings.EXPOSED]}." if hideable else f"{found}."


def _pageable(result: Transfers) -> str:
    rows = result.findings.filter(pl.col("finding") == findings.PAGEABLE)
    if rows.is_empty():
        return ""
    n, total = int(rows["n"].sum()), int(rows["total_ns"].sum())
    copies = "1 copy is" if n == 1 else f"{n:,} copies are"
    advice = findings.ADVICE[findings.PAGEABLE]
    return f"{copies} from or to pageable memory ({format_ns(total)}): {advice}."


def _small(result: Transfers) -> str:
    """Small copies, where they take a share of the time worth a sentence."""
    rows = result.findings.filter(pl.col("finding") == findings.SMALL)
    n, total = int(rows["n"].sum()), int(rows["total_ns"].sum())
    if not total or total < _WORTH_FRAC * result.span_ns:
        return ""
    size = format_bytes(findings.SMALL_BYTES)
    advice = findings.ADVICE[findings.SMALL]
    return f"{n:,} copies are of less than {size} ({format_ns(total)}): {advice}."


def _notes(result: Transfers) -> tuple[str, ...]:
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


# --- tables and charts ---------------------------------------------------------------------


def _tables(result: Transfers) -> tuple[Table, ...]:
    """Findings, copies and sets by direction and memory, by size, by device."""
    devices = result.devices.with_columns(places(result.devices))
    tables = [
        table_of_known("findings", "Findings", result.findings, _FINDINGS),
        table_of_known("copies", "Copies and sets", result.copies, _COPIES),
        table_of_known("sizes", "By size", result.sizes, _SIZES),
        table_of_known("devices", "Devices", devices, _DEVICES),
    ]
    if devices.height > 1:
        own = result.by_device.with_columns(places(result.by_device))
        columns = {"on": "device", **_COPIES}
        table = table_of_known("by_device", "Copies and sets by device", own, columns, detail=True)
        tables.append(table)
    return tuple(tables)


def _charts(result: Transfers) -> tuple[Chart, ...]:
    """Time and bandwidth by class of size."""
    words = [pl.col("direction"), pl.format(" ({})", "memory").fill_null("")]
    frame = result.sizes.with_columns(way=pl.concat_str(words)).sort("size", "way")
    total = Chart(
        name="total",
        title="Time of copies and sets by size",
        mark="bar",
        frame=frame,
        x="size",
        y="total_ns",
        x_label="size",
        y_label="total",
        color="way",
        stacked=True,
    )
    rate = Chart(
        name="bandwidth",
        title="Bandwidth by size",
        mark="scatter",
        frame=frame.drop_nulls("rate_gbps"),
        x="size",
        y="rate_gbps",
        x_label="size",
        y_label="bandwidth",
        color="way",
        log_y=True,
    )
    return (total, *([rate] if rate.frame.height else []))
