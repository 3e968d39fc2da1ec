"""The answer: how much memory was used, when most, and by what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.memory.lines import frame_text
from traceanalyzer.analyzers.memory.words import notes, verdict
from traceanalyzer.analyzers.places import places
from traceanalyzer.result import Chart, Occupancy, Result, Table

_DEVICES: Final = {
    "on": "device",
    "peak_bytes": "peak in use",
    "peak_ns": "at",
    "reserved_peak_bytes": "peak reserved",
    "end_bytes": "in use at the end",
    "fragmentation_frac": "unused",
    "inactive_split_bytes": "split",
    "largest_free_bytes": "largest free",
}
_LINES: Final = {
    "on": "device",
    "at": "line of code",
    "n": "n",
    "live_bytes": "bytes",
    "live_frac": "share",
}
_CATEGORIES: Final = {
    "on": "device",
    "category": "category",
    "confidence": "how sure",
    "n": "n",
    "live_bytes": "bytes",
    "live_frac": "share",
}
_STACKS: Final = {
    "on": "device",
    "at": "line of code",
    "leaf": "innermost frame",
    "category": "category",
    "n": "n",
    "live_bytes": "bytes",
    "live_frac": "share",
}
_CHURN: Final = {
    "on": "device",
    "start_bytes": "in use at the start",
    "reserved_at_peak_bytes": "reserved at the peak",
    "reserved_end_bytes": "reserved at the end",
    "events": "events",
    "allocations": "allocations",
    "segment_allocs": "segments taken",
    "segment_frees": "given back",
    "retries": "cudaMalloc retries",
    "ooms": "out of memory",
    "before_n": "before the history",
    "before_bytes": "their bytes",
}
_QUALITY: Final = {
    "on": "device",
    "reused_n": "address in use",
    "twice_n": "freed twice",
    "resized_n": "other size at free",
    "lost_n": "never freed, in no block",
    "difference_bytes": "live at the end less blocks",
}
_TIMELINE: Final = {
    "on": "device",
    "event": "event",
    "time_ns": "time",
    "live_bytes": "in use",
    "reserved_bytes": "reserved",
}


@dataclass(frozen=True, eq=False, repr=False)
class Memory(Result):
    """What :func:`traceanalyzer.memory` found.

    Bytes are what was asked for (requested), unless ``noted`` is ``instants`` (allocated: rounded
    up by the allocator) or ``calls`` (of the driver). Reserved is what the allocator holds.

    Attributes:
        devices: a row a device of a rank: rank, path, device, noted, events; peak_bytes, peak_ns
            (null: before the first event, or no times), peak_event (its number on the device from
            0, null before the first), peak_n (allocations alive), reserved_at_peak_bytes,
            reserved_peak_bytes, reserved_peak_ns, start_bytes, end_bytes, reserved_end_bytes; of
            the blocks at the end allocated_end_bytes (rounded), fragmentation_frac (1 - allocated /
            reserved), inactive_bytes, inactive_split_bytes and inactive_split_n (free blocks in
            segments that are in use), largest_free_bytes; allocations, segment_allocs,
            segment_frees, retries (of cudaMalloc, after giving cached segments back), ooms;
            before_n and before_bytes (there before the history); reused_n, twice_n, resized_n,
            lost_n, difference_bytes (how well history and blocks agree; 0 where they do).
        alive: what is live at the peak, a row a stack and category: rank, path, device, category,
            confidence, function, file, line, own (the user's or the library's), n, live_bytes,
            live_frac (of the device's peak), before_n, stack (frames, the outermost first).
        timeline: rank, path, device, event, time_ns, live_bytes, reserved_bytes at up to 2,000
            moments.
        maps: what to draw.
        remarks: further notes.
    """

    devices: pl.DataFrame
    alive: pl.DataFrame
    timeline: pl.DataFrame
    maps: tuple[Occupancy, ...]
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "What fills the GPU's memory?"

    @property
    def verdict(self) -> str:
        """The peak, what holds it, and what is odd."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """How numbers are meant, and what is not known."""
        return (*notes(self), *self.remarks)

    @property
    def lines(self) -> pl.DataFrame:
        """What is live at the peak, by line of code."""
        keys = ["rank", "path", "device", "function", "file", "line", "own"]
        return summed(self.alive, keys)

    @property
    def categories(self) -> pl.DataFrame:
        """What is live at the peak, by what it is for."""
        return summed(self.alive, ["rank", "path", "device", "category", "confidence"])

    @property
    def tables(self) -> tuple[Table, ...]:
        """Devices, lines, categories; stacks, churn, quality and the timeline as details."""
        placed = [
            ("devices", "Devices", self.devices, _DEVICES, False),
            ("lines", "Live at the peak, by line of code", with_line(self.lines), _LINES, False),
            ("categories", "Live at the peak, by category", self.categories, _CATEGORIES, False),
            ("stacks", "Live at the peak, by stack", _with_leaf(self.alive), _STACKS, True),
            ("churn", "Allocator", self.devices, _CHURN, True),
            ("quality", "How well the history fits the blocks", self.devices, _QUALITY, True),
            ("timeline", "Over time", self.timeline, _TIMELINE, True),
        ]
        return tuple(
            shown_table(name, title, frame, columns, detail=detail)
            for name, title, frame, columns, detail in placed
        )

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The peaks side by side, where there are several devices."""
        if self.devices.height < 2:
            return ()
        frame = self.devices.with_columns(places(self.devices))
        return (
            Chart(
                name="peaks", title="Peak of each device", mark="bar", frame=frame, x="on",
                y="peak_bytes", x_label="device", y_label="peak in use",
            ),
        )  # fmt: skip

    @property
    def occupancies(self) -> tuple[Occupancy, ...]:
        """What fills each device over time."""
        return self.maps

    @property
    def scalars(self) -> dict[str, Any]:
        """The highest peak, and counts."""
        return {
            "peak_bytes": int(self.devices["peak_bytes"].max() or 0),  # type: ignore[arg-type]
            "ooms": int(self.devices["ooms"].sum()),
            "retries": int(self.devices["retries"].sum()),
        }


def summed(alive: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Rows of ``alive`` by fewer columns, the most bytes first."""
    sums = alive.group_by(keys).agg(pl.col("n", "live_bytes", "live_frac").sum())
    return sums.sort("live_bytes", *keys, descending=[True, *(False for _ in keys)])


def with_line(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with ``at``: function, file and line as one text."""
    return frame.with_columns(
        at=pl.Series(
            [frame_text(*row) for row in frame.select("function", "file", "line").rows()],
            dtype=pl.String,
        )
    )


def _with_leaf(frame: pl.DataFrame) -> pl.DataFrame:
    leaf = pl.col("stack").str.split(";").list.last()
    return with_line(frame).with_columns(leaf=leaf)


def shown_table(
    name: str, title: str, frame: pl.DataFrame, columns: dict[str, str], *, detail: bool = False
) -> Table:
    """A table without the columns of which nothing is known, nor that of the only device."""
    shown = frame.with_columns(places(frame))
    if frame.is_empty():
        return Table(
            name, title, shown, {n: columns[n] for n in columns if n != "on"}, detail=detail
        )
    alone = frame.select("rank", "path", "device").n_unique() < 2
    known = {
        column: heading
        for column, heading in columns.items()
        if shown[column].null_count() < shown.height and not (alone and column == "on")
    }
    return Table(name, title, shown, known or columns, detail=detail)
