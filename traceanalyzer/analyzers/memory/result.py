"""Result of the memory analysis: peaks, allocation sites, and their presentation."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import display
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.memory.attribution import NO_STACK, frame_text
from traceanalyzer.analyzers.memory.growth import MemoryGrowth
from traceanalyzer.analyzers.memory.oom import MemoryErrors
from traceanalyzer.analyzers.memory.rank_memory import (
    ALIVE,
    known_table,
    summed,
    times_of,
    with_line,
)
from traceanalyzer.drawings import Chart, Occupancy
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_bytes, format_frac, format_ns

_NAMED = 3
#: Minimum share of free memory between live blocks in reserved memory for a sentence.
_SPLIT_FRAC = 0.1
#: Minimum relative difference of a peak from the median for an outlier.
_OUTLIER_FRAC = 0.1
#: Minimum number of devices for an outlier.
_OUTLIER_DEVICES = 3
#: Minimum share of memory without a stack for a clause.
_NO_STACK_FRAC = 0.1
#: Call that records a history; without one, only the memory at the end is known.
_RECORD = "torch.cuda.memory._record_memory_history()"

#: Meaning of sizes by source.
_SIZES = {"snapshot": "allocated", "instants": "allocated", "calls": "allocated from the driver"}
_SIZE_NOTES = {
    "snapshot": "Allocated and live bytes are requested sizes. The allocator rounds each up to 512 "
    "bytes, so torch.cuda.memory_allocated() is slightly higher.",
    "instants": "Allocated and live bytes are block sizes, as rounded up by PyTorch's allocator.",
    "calls": "Allocated and live bytes come from the driver and include PyTorch's cache.",
}

_DEVICES = headings(
    "on: device, peak_bytes: peak allocated, peak_ns: at, reserved_peak_bytes: peak reserved, "
    "fullest_free_bytes: free in reserved, fullest_split_bytes: between live blocks, "
    "end_bytes: allocated at end"
)
_CATEGORIES = headings("on: device, category, confidence, n, live_bytes: bytes, live_frac: share")
_POOLS = headings(
    "on: device, pool, at: line of code of the largest block, segments, reserved_bytes: reserved, "
    "allocated_bytes: allocated, free_bytes: free, largest_free_bytes: largest free block"
)
_CHURN = headings(
    "on: device, start_bytes: allocated at start, reserved_at_peak_bytes: reserved at peak, "
    "reserved_end_bytes: reserved at end, fragmentation_frac: unused at end, "
    "inactive_split_bytes: inactive split at end, largest_free_bytes: largest free block, events, "
    "allocations, segment_allocs: segment allocs, segment_frees: segment frees, "
    "retries: cudaMalloc retries, ooms: out-of-memory errors, "
    "before_n: allocated before history, before_bytes: bytes before history"
)
_QUALITY = {
    "on": "device",
    "reused_n": "address in use",
    "double_free_n": "double free",
    "resized_n": "size differs at free",
    "never_freed_n": "never freed, not in a block",
    "difference_bytes": "live at end - blocks",
}
_TIMELINE = headings("on: device, event, time_ns: time, live_bytes: live, reserved_bytes: reserved")


@dataclass(frozen=True, eq=False, repr=False)
class Memory(Result):
    """Result of :func:`traceanalyzer.memory`.

    Bytes are requested sizes, unless ``source`` is ``instants`` (allocated: rounded up by the
    allocator) or ``calls`` (allocated from the driver). Reserved is the memory of all segments.

    Attributes:
        devices: one row per device of a rank: rank, path, device, source, events; peak_bytes,
            peak_ns (null before the first event or without times), peak_event (event number on the
            device from 0, null before the first), peak_n (live allocations),
            reserved_at_peak_bytes, reserved_peak_bytes, reserved_peak_ns, start_bytes, end_bytes,
            reserved_end_bytes; from the blocks at the end allocated_end_bytes (rounded),
            fragmentation_frac (1 - allocated / reserved), inactive_bytes, inactive_split_bytes and
            inactive_split_n (free blocks in segments with live blocks), largest_free_bytes; at the
            first out-of-memory error, else when reserved is at its peak, fullest_event, fullest_ns,
            fullest_reserved_bytes, fullest_free_bytes, fullest_split_bytes (free between live
            blocks, without whole pages of expandable segments, which can be unmapped); expandable;
            allocations, segment_allocs, segment_frees, retries (of cudaMalloc, after freeing cached
            segments), ooms; before_n and before_bytes (allocated before the history); reused_n,
            double_free_n, resized_n, never_freed_n, difference_bytes (mismatches between history
            and blocks; 0 if consistent).
        alive: memory live at the peak, one row per stack and category: rank, path, device,
            category, confidence, function, file, line, is_own_code (code of the user or of the
            chosen library), n, live_bytes, live_frac (of the peak of the device), before_n, stack
            (frames, outermost first).
        timeline: rank, path, device, event, time_ns, live_bytes, reserved_bytes at up to 2,000
            events.
        pools: memory at the end, one row per device and pool if any memory is in a private pool (of
            CUDA graphs or ``torch.cuda.MemPool``): rank, path, device, pool (as the file numbers
            it; null for the default pool), segments, reserved_bytes, allocated_bytes (rounded),
            free_bytes, largest_free_bytes (largest free block), and function, file, line,
            is_own_code of its largest block.
        maps: the plots.
        remarks: further notes.
        errors: result of ``memory_oom`` on the same history; None if not requested.
        growth: result of ``memory_growth``; None if not requested or without steps.
    """

    question = "What fills the GPU's memory?"

    devices: pl.DataFrame
    alive: pl.DataFrame
    timeline: pl.DataFrame
    pools: pl.DataFrame
    maps: tuple[Occupancy, ...]
    remarks: tuple[str, ...] = ()
    errors: MemoryErrors | None = None
    growth: MemoryGrowth | None = None

    @property
    def lines(self) -> pl.DataFrame:
        """Memory live at the peak, by line of code."""
        keys = ["rank", "path", "device", "function", "file", "line", "is_own_code"]
        return summed(self.alive, keys)

    @property
    def categories(self) -> pl.DataFrame:
        """Memory live at the peak, by category."""
        return summed(self.alive, ["rank", "path", "device", "category", "confidence"])

    @property
    def peak_bytes(self) -> int:
        """The highest peak."""
        return int(self.devices["peak_bytes"].max() or 0)  # type: ignore[arg-type]

    def outlier(self) -> dict[str, Any] | None:
        """Return the device whose peak differs most from the median; None with too few devices.

        The row also has ``on``, ``median`` (bytes) and ``by`` (the difference relative to it).
        """
        median = self.devices["peak_bytes"].median()
        if self.devices.height < _OUTLIER_DEVICES or not isinstance(median, float) or not median:
            return None
        by = pl.col("peak_bytes") / median - 1
        rows = self.devices.with_columns(display.places(self.devices), by=by, median=pl.lit(median))
        return largest_first(rows, pl.col("by").abs(), "on").row(0, named=True)

    def view(self) -> View:
        """Return devices, lines, categories; stacks, churn, quality and timeline as details."""
        ooms, retries = (int(self.devices[name].sum()) for name in ("ooms", "retries"))
        scalars = {"peak_bytes": self.peak_bytes, "ooms": ooms, "retries": retries}
        maps = partial(tuple, self.maps)
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=scalars, occupancies=maps)


# --- verdict and notes -----------------------------------------------------------------------


def _verdict(result: Memory) -> str:
    """State problems first, then the highest peak, its code, fragmentation and outliers."""
    # an empty history next to a non-empty one means that nothing happened on the device
    has_history = (pl.col("events") > 1) | (pl.col("source") != "snapshot")
    recorded = has_history.any().over("rank", "path").alias("recorded")
    devices = result.devices.with_columns(display.places(result.devices), recorded)
    top = devices.sort("peak_bytes", "on", descending=[True, False]).row(0, named=True)
    pools = private_pools(result)
    in_pools = pools is not None and 2 * pools.free_bytes > (top["fullest_split_bytes"] or 0)
    split = "" if in_pools else _fragmentation(top)
    peak = (_peak(top, devices.height), _sites(result, top), split, _retries(devices))
    private = pools.text if pools else ""
    return sentences(*_problems(result), *peak, private, _twice(result), _outlier(result))


#: Frames of DDP that allocate the buckets of gradients, and their least share of the peak.
_BUCKETS, _TWICE_FRAC = r"\b_ddp_init_helper \(|c10d::Reducer::", 0.05


def _twice(result: Memory) -> str:
    """State the gradients that lie in the buckets of DDP, too."""
    rows = result.alive.with_columns(
        apart=~pl.col("stack").cast(pl.String).str.contains(_BUCKETS).fill_null(value=False)
    )
    size, is_gradient = pl.col("live_bytes"), pl.col("category").eq_missing(pl.lit("gradients"))
    both = [size.filter(of).sum() for of in (~pl.col("apart"), pl.col("apart") & is_gradient)]
    sums = rows.group_by("rank", "path", "device").agg(pl.min_horizontal(both), whole=size.sum())
    twice = sums.filter(size > _TWICE_FRAC * pl.col("whole"))["live_bytes"].max()
    if not isinstance(twice, int):
        return ""
    most = " on one GPU" * (sums.height > 1)
    return (
        f"{format_bytes(twice)} of gradients{most} lie in memory twice, also in the buckets of "
        "DDP: DistributedDataParallel(..., gradient_as_bucket_view=True) keeps one of them."
    )


def _problems(result: Memory) -> tuple[str, ...]:
    """Return a sentence each on out-of-memory errors and growth."""
    growth = (result.growth.summary() or result.growth.collected()) if result.growth else ""
    return (
        result.errors.summary() if result.errors else "",
        f"{growth} See traceanalyzer memory --growth." if growth else "",
    )


def _peak(row: dict[str, Any], devices: int) -> str:
    where = f" on {row['on']}" if devices > 1 else ""
    sizes = _SIZES[row["source"]]
    reserved = row["reserved_at_peak_bytes"]
    also = f", {format_bytes(reserved)} reserved" if reserved is not None else ""
    if not row["recorded"]:
        return (
            f"{format_bytes(row['end_bytes'])} {sizes}{also}{where} at the snapshot. The history "
            f"was not recorded: call {_RECORD} before the workload."
        )
    when = "before the first event" if row["peak_event"] is None else _when(row)
    return f"Peak memory{where}: {format_bytes(row['peak_bytes'])} {sizes}{also}, {when}."


def _when(row: dict[str, Any]) -> str:
    if row["peak_ns"] is None:
        return f"at event {row['peak_event']:,} of {row['events']:,}"
    return f"{format_ns(row['peak_ns'])} after the first event"


def _sites(result: Memory, top: dict[str, Any]) -> str:
    """State the lines that allocated most of the peak."""
    same = [pl.col(name).eq_missing(pl.lit(top[name])) for name in ("rank", "path", "device")]
    of_device = result.lines.filter(*same)
    lines = of_device.filter(pl.col("function").is_not_null())
    named = [
        f"{frame_text(row['function'], row['file'], row['line'])} {format_frac(row['live_frac'])}"
        for row in lines.head(_NAMED).rows(named=True)
    ]
    bare = float(of_device.filter(pl.col("function").is_null())["live_frac"].sum())
    if not named:
        return "No stacks were recorded, so no line of code is known."
    rest = f", {NO_STACK.strip('()')} {format_frac(bare)}" if bare >= _NO_STACK_FRAC else ""
    return f"Top allocation sites: {', '.join(named)}{rest}."


def _fragmentation(row: dict[str, Any]) -> str:
    split, reserved = row["fullest_split_bytes"], row["fullest_reserved_bytes"]
    if not split or split < _SPLIT_FRAC * reserved:
        return ""
    return (
        f"Fragmentation: {format_bytes(split)} of {format_bytes(reserved)} reserved "
        f"({format_frac(split / reserved)}) were free between live blocks "
        f"{'at the out-of-memory error' if row['ooms'] else 'when reserved memory peaked'}."
    )


def _retries(devices: pl.DataFrame) -> str:
    retries = int(devices["retries"].sum())
    if not retries:
        return ""
    return (
        f"The allocator freed cached segments and retried cudaMalloc {times_of(retries)}, which "
        "synchronises the device."
    )


@dataclass(frozen=True)
class PrivatePools:
    """The private pools with free memory of the device that has most of it.

    Attributes:
        text: a sentence on their number and sums.
        n: their number.
        free_bytes: free memory in them at the end, which only their CUDA graphs use.
        captured: the code that captured a graph, if live memory shows it.
    """

    text: str
    n: int
    free_bytes: int
    captured: str

    @property
    def advice(self) -> str:
        """What to do about several pools."""
        where = f" in {self.captured}" * bool(self.captured)
        return (
            f"Let the graphs that are captured{where} share one pool: torch.cuda.graph(..., "
            "pool=torch.cuda.graph_pool_handle()) or make_graphed_callables(..., pool=...) with "
            "one handle for all that never run at the same time; or capture fewer sizes (padding)."
        )


#: The frame that captures a CUDA graph.
_CAPTURES = r"([^;]*);[^;]*torch[/\\]cuda[/\\]graphs\.py"


def private_pools(result: Memory) -> PrivatePools | None:
    """Return the private pools, if much of the memory of their device is free in them."""
    keys = ["rank", "path", "device"]
    whole = pl.col("reserved_bytes").sum().over(keys)
    located = result.pools.with_columns(display.places(result.pools), whole=whole)
    private = located.filter(pl.col("pool").is_not_null(), pl.col("free_bytes") > 0)
    sizes = private.group_by(keys).agg(
        pl.col("free_bytes", "reserved_bytes").sum(), pl.len(), pl.col("whole").first()
    )
    largest = sizes.filter(pl.col("free_bytes") >= _SPLIT_FRAC * pl.col("whole"))
    if largest.is_empty():
        return None
    first = largest_first(largest, "free_bytes", *keys).head(1)
    sums = first.row(0, named=True)
    of_device = private.join(first, on=keys, how="semi", nulls_equal=True)
    row = largest_first(of_device, "free_bytes", "pool").row(0, named=True)
    where = f" on {row['on']}" if result.devices.height > 1 else ""
    n, line = sums["len"], frame_text(row["function"], row["file"], row["line"])
    which = f"Private pool {row['pool']}" if n == 1 else f"{n:,} private pools"
    stacks = result.alive.sort("live_bytes", descending=True)["stack"].cast(pl.String)
    captured = stacks.str.extract(_CAPTURES).drop_nulls().head(1).str.replace(r"[^( ]*[/\\]", "")
    return PrivatePools(
        f"{which}{where}, filled by {line}: {format_bytes(sums['free_bytes'])} of "
        f"{format_bytes(sums['reserved_bytes'])} are free at the end, and only "
        f"{'this pool (its CUDA graphs) uses' if n == 1 else 'their CUDA graphs use'} them.",
        n,
        int(sums["free_bytes"]),
        captured[0] if captured.len() else "",
    )


def _outlier(result: Memory) -> str:
    """State the device whose peak differs most from the others."""
    row = result.outlier()
    if row is None or abs(row["by"]) <= _OUTLIER_FRAC:
        return ""
    side = "above" if row["by"] > 0 else "below"
    return (
        f"Outlier: {row['on']} with a peak of {format_bytes(row['peak_bytes'])}, "
        f"{format_frac(abs(row['by']))} {side} the median of {format_bytes(row['median'])}."
    )


def _notes(result: Memory) -> Iterator[str]:
    """Return the meaning of sizes, and limits of the data."""
    devices = result.devices
    yield from (text for source, text in _SIZE_NOTES.items() if (devices["source"] == source).any())
    before = int(devices.filter(pl.col("events") > 1)["before_bytes"].sum())
    if before:
        yield (
            f"{format_bytes(before)} were allocated before the history starts; allocations without "
            "a stack cannot be attributed."
        )
    texts = {
        "reused_n": ("allocation at an address in use", "allocations at an address in use"),
        "double_free_n": ("double free", "double frees"),
        "never_freed_n": (
            "allocation neither freed nor in a block",
            "allocations neither freed nor in a block",
        ),
    }
    mismatches = [
        f"{n:,} {one if n == 1 else many}"
        for name, (one, many) in texts.items()
        if (n := int(devices[name].sum()))
    ]
    if mismatches:
        yield f"The history does not match the blocks: {', '.join(mismatches)}."
    differs = devices.filter(pl.col("difference_bytes") != 0)["difference_bytes"]
    if differs.len():
        total = format_bytes(int(differs.abs().sum()))
        yield f"At the end, history and blocks differ by {total}."
    if result.alive["confidence"].is_in(["high", "medium", "low"]).any():
        exact = (result.alive["confidence"] == "exact").any()
        recorded = "exact ones are recorded" if exact else "PyTorch does not record them"
        yield f"Categories are inferred from stacks; {recorded}."
    yield from result.remarks


# --- tables and charts -----------------------------------------------------------------------


def _tables(result: Memory) -> tuple[Table, ...]:
    has_pools = result.pools.height > 0
    tables = [
        ("devices", "Devices", result.devices, _DEVICES, False),
        ("lines", "Live at the peak, by line of code", with_line(result.lines), ALIVE, False),
        ("categories", "Live at the peak, by category", result.categories, _CATEGORIES, False),
        *([("pools", "Pools at the end", _with_pool(result.pools), _POOLS, False)] * has_pools),
        ("stacks", "Live at the peak, by stack", _with_leaf(result.alive), ALIVE, True),
        ("churn", "Allocator", result.devices, _CHURN, True),
        ("quality", "Consistency of history and blocks", result.devices, _QUALITY, True),
        ("timeline", "Timeline", result.timeline, _TIMELINE, True),
    ]
    problems = [
        table
        for one in (result.errors, result.growth)
        if one
        for table in one.view().tables
        if table.name in ("errors", "suspects") and not table.frame.is_empty()
    ]
    known = [
        known_table(name, title, frame, columns, detail=detail)
        for name, title, frame, columns, detail in tables
    ]
    return (*problems, *known)


def _charts(result: Memory) -> tuple[Chart, ...]:
    """Return the chart of peaks, for several devices."""
    devices = result.devices
    if devices.height < 2:
        return ()
    frame = devices.with_columns(display.places(devices))
    return (
        Chart(
            name="peaks", title="Peak of each device", mark="bar", frame=frame, x="on",
            y="peak_bytes", x_label="device", y_label="peak allocated",
        ),
    )  # fmt: skip


def _with_pool(frame: pl.DataFrame) -> pl.DataFrame:
    return with_line(frame).with_columns(pl.col("pool").fill_null("default"))


def _with_leaf(frame: pl.DataFrame) -> pl.DataFrame:
    return with_line(frame).with_columns(leaf=pl.col("stack").str.split(";").list.last())
