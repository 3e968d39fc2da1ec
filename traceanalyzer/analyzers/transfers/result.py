"""The answer: what is copied and set, how fast, and what of it no kernel hides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.places import places
from traceanalyzer.analyzers.transfers.words import notes, verdict
from traceanalyzer.result import Chart, Result, Table

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
    """What :func:`transfers` found.

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
        remarks: further notes.
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
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "What is copied, how fast, and is it hidden?"

    @property
    def verdict(self) -> str:
        """What is copied, what of it holds the device up, and what to change."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """How numbers are meant, and what was not counted."""
        return (*notes(self), *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Findings, copies and sets by direction and memory, by size, by device."""
        devices = self.devices.with_columns(places(self.devices))
        found = [
            _table("findings", "Findings", self.findings, _FINDINGS),
            _table("copies", "Copies and sets", self.copies, _COPIES),
            _table("sizes", "By size", self.sizes, _SIZES),
            _table("devices", "Devices", devices, _DEVICES),
        ]
        if devices.height > 1:
            own = self.by_device.with_columns(places(self.by_device))
            columns = {"on": "device", **_COPIES}
            table = _table("by_device", "Copies and sets by device", own, columns, detail=True)
            found.append(table)
        return tuple(found)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Time and bandwidth by class of size."""
        words = [pl.col("direction"), pl.format(" ({})", "memory").fill_null("")]
        frame = self.sizes.with_columns(way=pl.concat_str(words)).sort("size", "way")
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

    @property
    def scalars(self) -> dict[str, Any]:
        """Counts and sums."""
        names = (
            "n", "moved_bytes", "total_ns", "span_ns", "alone_ns", "unsized", "unfinished",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}


def _table(
    name: str, title: str, frame: pl.DataFrame, columns: Mapping[str, str], *, detail: bool = False
) -> Table:
    """A table without the columns of which nothing is known."""
    known = {n: label for n, label in columns.items() if frame[n].null_count() < frame.height}
    return Table(name, title, frame, known or columns, detail=detail)
