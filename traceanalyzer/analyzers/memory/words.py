"""The answer in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from traceanalyzer.analyzers.memory.lines import NO_STACK, frame_text
from traceanalyzer.analyzers.places import places
from traceanalyzer.units import format_bytes, format_frac, format_ns

if TYPE_CHECKING:
    from traceanalyzer.analyzers.memory.result import Memory

_NAMED: Final = 3
#: From this share of reserved memory on, what lies unused is worth a sentence.
_UNUSED_FRAC: Final = 0.2
#: A device whose peak differs from the median by more than this share is the odd one out.
_ODD_FRAC: Final = 0.1
#: It takes so many to tell.
_ODD_OF: Final = 3
#: From this share on, what has no stack is worth a clause.
_BARE_FRAC: Final = 0.1
#: How a history is recorded; without one, only what was held at the end is known.
RECORD: Final = "torch.cuda.memory._record_memory_history()"

#: What sizes are, by who noted them.
_SIZES: Final = {
    "snapshot": "requested",
    "instants": "allocated",
    "calls": "allocated by the process from the driver",
}


def verdict(result: Memory) -> str:
    """The highest peak and what holds it; devices that stand out; what lies unused."""
    # an empty history beside one that is not means that nothing happened
    recorded = (pl.col("events") > 1).any().over("rank", "path").alias("recorded")
    devices = result.devices.with_columns(places(result.devices), recorded)
    top = devices.sort("peak_bytes", "on", descending=[True, False]).row(0, named=True)
    said = [_peak(top, devices.height), _holders(result, top), _unused(top), _retries(devices)]
    return " ".join([*(one for one in said if one), *_odd(devices)])


def _peak(row: dict[str, Any], devices: int) -> str:
    where = f" on {row['on']}" if devices > 1 else ""
    sizes = _SIZES[row["noted"]]
    held = row["reserved_at_peak_bytes"]
    of = f" of {format_bytes(held)} reserved" if held is not None else ""
    if not row["recorded"]:
        return (
            f"{format_bytes(row['end_bytes'])} are in use{where}{of}; no history was recorded, so "
            f"only the moment of the snapshot is known: call {RECORD} before the work."
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
    lines = result.lines.filter(*own).filter(pl.col("function").is_not_null())
    named = [
        f"{frame_text(row['function'], row['file'], row['line'])} {format_frac(row['live_frac'])}"
        for row in lines.head(_NAMED).rows(named=True)
    ]
    bare = 1 - float(lines["live_frac"].sum() or 0)
    if not named:
        return "No stacks were recorded, so no line of code can be named."
    rest = f"; {format_frac(bare)} has {NO_STACK.strip('()')}" if bare >= _BARE_FRAC else ""
    return f"Most of it was allocated at {', '.join(named)}{rest}."


def _unused(row: dict[str, Any]) -> str:
    frac = row["fragmentation_frac"]
    if frac is None or frac < _UNUSED_FRAC:
        return ""
    return (
        f"At the end {format_frac(frac)} of what is reserved is unused, "
        f"{format_bytes(row['inactive_split_bytes'])} of it in pieces between blocks in use."
    )


def _retries(devices: pl.DataFrame) -> str:
    retries, ooms = int(devices["retries"].sum()), int(devices["ooms"].sum())
    said = []
    if ooms:
        said.append(f"Memory ran out {times_of(ooms)}: traceanalyzer memory --oom says why.")
    if retries:
        said.append(
            f"{times_of(retries).capitalize()} cached memory had to be given back before "
            "cudaMalloc could be tried again, which stops the device."
        )
    return " ".join(said)


def times_of(n: int) -> str:
    """``once``, ``twice``, ``3 times``."""
    return {1: "once", 2: "twice"}.get(n, f"{n:,} times")


def _odd(devices: pl.DataFrame) -> Iterator[str]:
    """The device whose peak differs most from the others'."""
    median = devices["peak_bytes"].median()
    if devices.height < _ODD_OF or not isinstance(median, float) or not median:
        return
    apart = devices.with_columns(by=(pl.col("peak_bytes") / median - 1))
    row = apart.sort(pl.col("by").abs(), "on", descending=[True, False]).row(0, named=True)
    if abs(row["by"]) > _ODD_FRAC:
        more = "more" if row["by"] > 0 else "less"
        yield (
            f"The odd one out is {row['on']}: {format_bytes(row['peak_bytes'])}, "
            f"{format_frac(abs(row['by']))} {more} than the median of "
            f"{format_bytes(median)}."
        )


def notes(result: Memory) -> tuple[str, ...]:
    """How numbers are meant, and what is not known."""
    devices = result.devices
    said = []
    if (devices["noted"] == "snapshot").any():
        said.append(
            "Live bytes are what was asked for; the allocator rounds each up to 512 bytes, so "
            "torch.cuda.memory_allocated() tells a little more."
        )
    if (devices["noted"] == "instants").any():
        said.append("Live bytes are of blocks, as PyTorch's allocator rounds sizes up.")
    if (devices["noted"] == "calls").any():
        said.append("Live bytes are what the process got of the driver, PyTorch's cache included.")
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
