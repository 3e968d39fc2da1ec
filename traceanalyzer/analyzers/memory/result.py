"""How much memory was used, when most, and by what; and what is shown of it."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import places
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.memory.attribution import NO_STACK, frame_text
from traceanalyzer.analyzers.memory.growth import MemoryGrowth
from traceanalyzer.analyzers.memory.oom import MemoryErrors
from traceanalyzer.analyzers.memory.tables import ALIVE, shown_table, summed, times_of, with_line
from traceanalyzer.result import Chart, Occupancy, Result, Table, View
from traceanalyzer.units import format_bytes, format_frac, format_ns

_NAMED = 3
#: From this share of reserved memory on, free memory between blocks in use is worth a sentence.
_SPLIT_FRAC = 0.1
#: A device whose peak differs from the median by more than this share is the odd one out.
_ODD_FRAC = 0.1
#: It takes so many to tell.
_ODD_OF = 3
#: From this share on, what has no stack is worth a clause.
_BARE_FRAC = 0.1
#: How a history is recorded; without one, only what was held at the end is known.
_RECORD = "torch.cuda.memory._record_memory_history()"

#: What sizes are, by who noted them.
_SIZES = {
    "snapshot": "requested",
    "instants": "allocated",
    "calls": "allocated by the process from the driver",
}
_MEANT = {
    "snapshot": "Live bytes are what was asked for; the allocator rounds each up to 512 bytes, so "
    "torch.cuda.memory_allocated() tells a little more.",
    "instants": "Live bytes are of blocks, as PyTorch's allocator rounds sizes up.",
    "calls": "Live bytes are what the process got of the driver, PyTorch's cache included.",
}

_DEVICES = headings(
    "on: device, peak_bytes: peak in use, peak_ns: at, reserved_peak_bytes: peak reserved, "
    "fullest_free_bytes: free then, fullest_split_bytes: between blocks, "
    "end_bytes: in use at the end"
)
_CATEGORIES = headings(
    "on: device, category, confidence: how sure, n, live_bytes: bytes, live_frac: share"
)
_CHURN = headings(
    "on: device, start_bytes: in use at the start, reserved_at_peak_bytes: reserved at the peak, "
    "reserved_end_bytes: reserved at the end, fragmentation_frac: unused at the end, "
    "inactive_split_bytes: split at the end, largest_free_bytes: largest free, events, "
    "allocations, segment_allocs: segments taken, "
    "segment_frees: given back, retries: cudaMalloc retries, ooms: out of memory, "
    "before_n: before the history, before_bytes: their bytes"
)
_QUALITY = {
    "on": "device",
    "reused_n": "address in use",
    "twice_n": "freed twice",
    "resized_n": "other size at free",
    "lost_n": "never freed, in no block",
    "difference_bytes": "live at the end less blocks",
}
_TIMELINE = headings(
    "on: device, event, time_ns: time, live_bytes: in use, reserved_bytes: reserved"
)


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
            segments that are in use), largest_free_bytes; at the first out-of-memory error, else
            when most is reserved, fullest_event, fullest_ns, fullest_reserved_bytes,
            fullest_free_bytes, fullest_split_bytes (free between blocks in use, less whole pages of
            expandable segments, which can be unmapped); expandable; allocations, segment_allocs,
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
        errors: the result of ``memory_oom`` on the same history; None where it was not asked for.
        growth: the result of ``memory_growth``; None also where no steps were found.
    """

    devices: pl.DataFrame
    alive: pl.DataFrame
    timeline: pl.DataFrame
    maps: tuple[Occupancy, ...]
    remarks: tuple[str, ...] = ()
    errors: MemoryErrors | None = None
    growth: MemoryGrowth | None = None

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
    def peak_bytes(self) -> int:
        """The highest peak."""
        return int(self.devices["peak_bytes"].max() or 0)  # type: ignore[arg-type]

    def odd_one(self) -> dict[str, Any] | None:
        """The device whose peak differs most from the median of all; None of too few devices.

        Its row with ``on``, ``median`` (bytes) and ``by`` (the difference as a share of it).
        """
        median = self.devices["peak_bytes"].median()
        if self.devices.height < _ODD_OF or not isinstance(median, float) or not median:
            return None
        by = pl.col("peak_bytes") / median - 1
        rows = self.devices.with_columns(places.places(self.devices), by=by, median=pl.lit(median))
        return largest_first(rows, pl.col("by").abs(), "on").row(0, named=True)

    def view(self) -> View:
        """Devices, lines, categories; stacks, churn, quality and the timeline as details."""
        return View(
            title="What fills the GPU's memory?",
            verdict=_verdict(self),
            notes=(*_notes(self), *self.remarks),
            tables=_tables(self),
            scalars={
                "peak_bytes": self.peak_bytes,
                "ooms": int(self.devices["ooms"].sum()),
                "retries": int(self.devices["retries"].sum()),
            },
            charts=partial(_charts, self.devices),
            occupancies=partial(tuple, self.maps),
        )


# --- verdict and notes -----------------------------------------------------------------------


def _verdict(result: Memory) -> str:
    """The highest peak and what holds it; devices that stand out; what lies unused."""
    # an empty history beside one that is not means that nothing happened
    recorded = (pl.col("events") > 1).any().over("rank", "path").alias("recorded")
    devices = result.devices.with_columns(places.places(result.devices), recorded)
    top = devices.sort("peak_bytes", "on", descending=[True, False]).row(0, named=True)
    said = (_peak(top, devices.height), _holders(result, top), _unused(top), _retries(devices))
    return sentences(*_wrong(result), *said, _odd(result))


def _wrong(result: Memory) -> tuple[str, ...]:
    """What is wrong, in a sentence each: it comes first."""
    grown = result.growth.summary() if result.growth else ""
    return (
        result.errors.summary() if result.errors else "",
        f"{grown} See traceanalyzer memory --growth." if grown else "",
    )


def _peak(row: dict[str, Any], devices: int) -> str:
    where = f" on {row['on']}" if devices > 1 else ""
    sizes = _SIZES[row["noted"]]
    held = row["reserved_at_peak_bytes"]
    of = f" of {format_bytes(held)} reserved" if held is not None else ""
    if not row["recorded"]:
        return (
            f"{format_bytes(row['end_bytes'])} are in use{where}{of}; no history was recorded, so "
            f"only the moment of the snapshot is known: call {_RECORD} before the work."
        )
    when = "before the first event" if row["peak_event"] is None else _when(row)
    return f"The peak{where} is {format_bytes(row['peak_bytes'])} {sizes}{of}, {when}."


def _when(row: dict[str, Any]) -> str:
    if row["peak_ns"] is None:
        return f"at event {row['peak_event']:,} of {row['events']:,}"
    return f"{format_ns(row['peak_ns'])} after the first event"


def _holders(result: Memory, top: dict[str, Any]) -> str:
    """Lines and categories that hold most of the peak."""
    own = [pl.col(name).eq_missing(pl.lit(top[name])) for name in ("rank", "path", "device")]
    every = result.lines.filter(*own)
    lines = every.filter(pl.col("function").is_not_null())
    named = [
        f"{frame_text(row['function'], row['file'], row['line'])} {format_frac(row['live_frac'])}"
        for row in lines.head(_NAMED).rows(named=True)
    ]
    bare = float(every.filter(pl.col("function").is_null())["live_frac"].sum())
    if not named:
        return "No stacks were recorded, so no line of code can be named."
    rest = f"; {format_frac(bare)} has {NO_STACK.strip('()')}" if bare >= _BARE_FRAC else ""
    return f"Most of it was allocated at {', '.join(named)}{rest}."


def _unused(row: dict[str, Any]) -> str:
    split, reserved = row["fullest_split_bytes"], row["fullest_reserved_bytes"]
    if not split or split < _SPLIT_FRAC * reserved:
        return ""
    return (
        f"{'At the out-of-memory error' if row['ooms'] else 'When most was reserved'}, "
        f"{format_bytes(split)} of {format_bytes(reserved)} ({format_frac(split / reserved)}) were "
        "free between blocks in use (fragmentation)."
    )


def _retries(devices: pl.DataFrame) -> str:
    retries = int(devices["retries"].sum())
    if not retries:
        return ""
    return (
        f"{times_of(retries).capitalize()} cached memory had to be given back before "
        "cudaMalloc could be tried again, which stops the device."
    )


def _odd(result: Memory) -> str:
    """The device whose peak differs most from the others'."""
    row = result.odd_one()
    if row is None or abs(row["by"]) <= _ODD_FRAC:
        return ""
    more = "more" if row["by"] > 0 else "less"
    return (
        f"The odd one out is {row['on']}: {format_bytes(row['peak_bytes'])}, "
        f"{format_frac(abs(row['by']))} {more} than the median of {format_bytes(row['median'])}."
    )


def _notes(result: Memory) -> tuple[str, ...]:
    """How numbers are meant, and what is not known."""
    devices = result.devices
    said = [text for noted, text in _MEANT.items() if (devices["noted"] == noted).any()]
    before = int(devices.filter(pl.col("events") > 1)["before_bytes"].sum())
    if before:
        said.append(
            f"{format_bytes(before)} were there before the history began; what has no stack "
            "cannot be attributed."
        )
    lost = {
        "reused_n": ("allocation at an address in use", "allocations at an address in use"),
        "twice_n": ("free of what was free", "frees of what was free"),
        "lost_n": (
            "allocation that is neither freed nor in a block",
            "allocations that are neither freed nor in a block",
        ),
    }
    odd = [
        f"{n:,} {one if n == 1 else many}"
        for name, (one, many) in lost.items()
        if (n := int(devices[name].sum()))
    ]
    if odd:
        said.append(f"The history does not fit the blocks: {', '.join(odd)}.")
    differs = devices.filter(pl.col("difference_bytes") != 0)["difference_bytes"]
    if differs.len():
        total = format_bytes(int(differs.abs().sum()))
        said.append(f"At the end the history and the blocks differ by {total}.")
    if (result.alive["confidence"] != "none").any():
        said.append("Categories are told by the code in the stacks; PyTorch does not record them.")
    return tuple(said)


# --- tables and charts -----------------------------------------------------------------------


def _tables(result: Memory) -> tuple[Table, ...]:
    placed = [
        ("devices", "Devices", result.devices, _DEVICES, False),
        ("lines", "Live at the peak, by line of code", with_line(result.lines), ALIVE, False),
        ("categories", "Live at the peak, by category", result.categories, _CATEGORIES, False),
        ("stacks", "Live at the peak, by stack", _with_leaf(result.alive), ALIVE, True),
        ("churn", "Allocator", result.devices, _CHURN, True),
        ("quality", "How well the history fits the blocks", result.devices, _QUALITY, True),
        ("timeline", "Over time", result.timeline, _TIMELINE, True),
    ]
    shown = [
        shown_table(name, title, frame, columns, detail=detail)
        for name, title, frame, columns, detail in placed
    ]
    wrong = [
        table
        for one in (result.errors, result.growth)
        if one
        for table in one.view().tables
        if table.name in ("errors", "suspects") and not table.frame.is_empty()
    ]
    return (*wrong, *shown)


def _charts(devices: pl.DataFrame) -> tuple[Chart, ...]:
    """The peaks side by side, where there are several devices."""
    if devices.height < 2:
        return ()
    frame = devices.with_columns(places.places(devices))
    return (
        Chart(
            name="peaks", title="Peak of each device", mark="bar", frame=frame, x="on",
            y="peak_bytes", x_label="device", y_label="peak in use",
        ),
    )  # fmt: skip


def _with_leaf(frame: pl.DataFrame) -> pl.DataFrame:
    leaf = pl.col("stack").str.split(";").list.last()
    return with_line(frame).with_columns(leaf=leaf)
