"""The peak of each device, the memory live at the peak, and the quality of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common.columns import concat_tables
from traceanalyzer.analyzers.memory import (
    GrowthOptions,
    MemoryOptions,
    OomOptions,
    Options,
    attribution,
    growth,
    ledger,
    oom,
    rank_memory,
    regions,
    result,
)
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.drawings import Occupancy
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, is_truncated
from traceanalyzer.units import format_bytes

#: Columns of the table of devices that are not Int64.
_TYPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "source": pl.String,
    "fragmentation_frac": pl.Float64,
    "expandable": pl.Boolean,
}

_WINDOWED = "Only the selected time window is analyzed, except for the blocks at the end."
_NO_AXIS = "A file has no absolute times, so the plots do not share a time axis."
_FAR_APART = "The recordings are far apart in time, so the plots do not share a time axis."
#: Plots share an axis that is at most this many times as long as all recordings together.
_MOST_APART = 2
_TRUNCATED = (
    "Truncated file: its blocks are newer than its last event, and allocations made in between "
    "count as made before the first event."
)


def measure(
    trace: Trace, options: Options, *, drawn: bool = True, causes: bool = True
) -> result.Memory:
    """Return the memory of the devices of a trace of one rank.

    Args:
        trace: trace read with :data:`~.ledger.NEEDS`.
        options: libraries that name allocations, time window, capacity and steps.
        drawn: include the plots; a comparison and rules use none.
        causes: include out-of-memory errors and growth; a comparison has none, and rules use the
            results of these analyses.

    Raises:
        MissingData: no memory events were recorded, or none of the requested steps.
        OptionError: the capacity or the definition of a step is invalid.
    """
    full = options if isinstance(options, MemoryOptions) else MemoryOptions()
    rank = rank_memory.rank_memory(trace, options, full.step_name)
    devices = [_device(one, rank) for one in rank.ledgers]
    types = {name: _TYPES.get(name, pl.Int64) for name in devices[0]}
    return result.Memory(
        devices=pl.DataFrame(devices, schema=types),
        alive=pl.concat(
            rank_memory.alive(one, rank, rank_memory.peak_position(one, rank.window))
            for one in rank.ledgers
        ),
        timeline=pl.concat(
            rank.with_device(one, rank_memory.timeline(one)) for one in rank.ledgers
        ),
        pools=pl.concat(rank.with_device(one, _pools(one, rank)) for one in rank.ledgers),
        maps=tuple(occupancy(one, rank) for one in rank.ledgers) if drawn else (),
        remarks=(_TRUNCATED,) if is_truncated(trace) else (),
        errors=oom.of_rank(rank, full.capacity_bytes) if causes else None,
        growth=_growth(rank, full) if causes else None,
    )


def _growth(rank: rank_memory.RankMemory, options: MemoryOptions) -> growth.MemoryGrowth | None:
    """Return the growth; None with no steps or too many, unless the user defined them."""
    every = options.step_every
    try:
        return growth.of_rank(rank, None if every is None else str(every))
    except (MissingData, OptionError):
        if options.has_step_options:
            raise
        return None


def combine(parts: Sequence[result.Memory], options: Options) -> result.Memory:
    """Combine the memory of all ranks."""
    remarks = dict.fromkeys(remark for part in parts for remark in part.remarks)
    devices, alive, timeline, pools = concat_tables(parts, "devices", "alive", "timeline", "pools")
    of_ranks = [part.errors for part in parts if part.errors]
    errors = oom.combine(of_ranks, OomOptions(window=options.window)) if of_ranks else None
    growths = [part.growth for part in parts if part.growth]
    maps, separate = _on_one_axis(parts)
    return result.Memory(
        devices=devices.sort("rank", "path", "device", nulls_last=True),
        alive=alive,
        timeline=timeline,
        pools=pools,
        maps=_ordered(maps, errors),
        remarks=(*remarks, *[_WINDOWED] * options.windowed, *_smaller(options), *separate),
        errors=errors,
        growth=growth.combine(growths, GrowthOptions()) if growths else None,
    )


def _smaller(options: Options) -> list[str]:
    if not options.min_bytes:
        return []
    size = format_bytes(options.min_bytes)
    return [f"Allocations below {size} are not listed (--min-bytes) but count in peaks and shares."]


def _ordered(maps: list[Occupancy], errors: oom.MemoryErrors | None) -> tuple[Occupancy, ...]:
    """Return the plots, first that of the first error, else that of the highest peak."""
    failed = errors.errors.select("rank", "device").head(1).rows() if errors else []
    names = [_name(*row) for row in failed]

    def priority(one: Occupancy) -> tuple[bool, int]:
        return one.name not in names, -int(one.levels["live_bytes"].max() or 0)  # type: ignore[arg-type]

    first = min(maps, key=priority, default=None)
    return tuple(sorted(maps, key=lambda one: one is not first))


def _name(rank: int | None, device: int | None) -> str:
    return f"memory_{rank}_{device}"


MEMORY = Analyzer(
    "memory",
    MemoryOptions,
    ledger.NEEDS,
    measure,
    combine,
    whole_file=True,
    measure_for={"findings": partial(measure, drawn=False, causes=False)},
)


def _device(history: ledger.Ledger, rank: rank_memory.RankMemory) -> dict[str, Any]:
    """Return a row of the table of devices."""
    first, last = history.between(*rank.window)
    return {
        "rank": rank.rank,
        "path": rank.path,
        "device": history.device,
        **_curve(history, rank_memory.peak_position(history, rank.window), first, last),
        **_at_end(history, rank),
        **_fullest(history, rank),
        "expandable": rank.expandable,
        **_churn(history, first, last),
        **vars(history.quality),
    }


def _curve(history: ledger.Ledger, at: int, first: int, last: int) -> dict[str, Any]:
    reserved = history.reserved
    top = None if reserved is None else first + int(reserved[first : last + 1].argmax())
    return {
        "source": history.source,
        "events": history.rows.height,
        "peak_bytes": int(history.live[at]),
        "peak_ns": history.time_ns(at),
        "peak_event": at - 1 if at else None,
        "peak_n": history.alive(at).height,
        "reserved_at_peak_bytes": None if reserved is None else int(reserved[at]),
        "reserved_peak_bytes": None if reserved is None or top is None else int(reserved[top]),
        "reserved_peak_ns": None if top is None else history.time_ns(top),
        "start_bytes": int(history.live[first]),
        "end_bytes": int(history.live[last]),
        "reserved_end_bytes": None if reserved is None else int(reserved[last]),
    }


def _at_end(history: ledger.Ledger, rank: rank_memory.RankMemory) -> dict[str, Any]:
    """Return sizes of the blocks at the end; None without blocks."""
    segments, blocks = rank.of_device(history.device)
    active = pl.col("state").cast(pl.String).is_in(ledger.ACTIVE)
    inactive = blocks.with_columns(split=active.any().over("segment")).filter(~active)
    allocated = int(blocks.filter(active)["size_bytes"].sum())
    reserved = int(segments["total_bytes"].sum())
    split = inactive.filter("split")
    sizes = {
        "allocated_end_bytes": allocated,
        "fragmentation_frac": 1 - allocated / reserved if reserved else None,
        "inactive_bytes": int(inactive["size_bytes"].sum()),
        "inactive_split_bytes": int(split["size_bytes"].sum()),
        "inactive_split_n": split.height,
        "largest_free_bytes": int(inactive["size_bytes"].max() or 0),  # type: ignore[arg-type]
    }
    return dict.fromkeys(sizes) if blocks.is_empty() else sizes


def _pools(history: ledger.Ledger, rank: rank_memory.RankMemory) -> pl.DataFrame:
    """Return the memory of each pool at the end; no rows if all memory is in the default pool."""
    segments, blocks = rank.of_device(history.device)
    if segments["pool"].null_count() == segments.height:
        segments, blocks = segments.clear(), blocks.clear()
    named = segments.select("id", "total_bytes", pool=pl.col("pool").cast(pl.String))
    placed = blocks.join(named, left_on="segment", right_on="id", maintain_order="left")
    free = pl.col("state").cast(pl.String).is_in(ledger.ACTIVE).not_()
    size = pl.col("size_bytes")
    used = placed.group_by("pool").agg(
        allocated_bytes=size.filter(~free).sum(),
        largest_free_bytes=size.filter(free).max(),
        stack=pl.col("stack").sort_by(size, descending=True).drop_nulls().first(),
    )
    pools = (
        named.group_by("pool")
        .agg(segments=pl.len().cast(pl.Int64), reserved_bytes=pl.col("total_bytes").sum())
        .join(used, on="pool", how="left", nulls_equal=True)
        .with_columns(pl.col("allocated_bytes", "largest_free_bytes").fill_null(0))
        .sort("reserved_bytes", "pool", descending=[True, False], nulls_last=True)
    )
    free_bytes = pl.col("reserved_bytes") - pl.col("allocated_bytes")
    return pools.select(
        *("pool", "segments", "reserved_bytes", "allocated_bytes"),
        free_bytes.alias("free_bytes"),
        "largest_free_bytes",
        *rank.lines.code_of(pools["stack"]),
    )


def _fullest(history: ledger.Ledger, rank: rank_memory.RankMemory) -> dict[str, Any]:
    """Return free bytes at the first out-of-memory error, else when reserved is at its peak."""
    names = ("event", "ns", "reserved_bytes", "free_bytes", "split_bytes")
    at, tables = rank_memory.fullest_position(history, rank.window), rank.of_device(history.device)
    known = at is not None and (tables[0].height or (history.rows["segment_change"] != 0).any())
    memory = regions.regions(history, *tables, at) if at is not None and known else None
    if at is None or memory is None or memory.segments.is_empty():
        return {f"fullest_{name}": None for name in names}
    reserved = int(memory.segments["total_bytes"].sum())
    free = int(memory.free()["total_bytes"].sum())
    values = (at - 1 if at else None, history.time_ns(at), reserved, free, memory.split_bytes())
    return {f"fullest_{name}": value for name, value in zip(names, values, strict=True)}


def _churn(history: ledger.Ledger, first: int, last: int) -> dict[str, Any]:
    """Count allocations, segments, retries and errors from one position to another."""
    rows = history.rows[first:last]
    kind = rows["kind"].cast(pl.String)
    freed = rows["segment_change"] == -1
    # before it retries cudaMalloc or fails, the allocator frees cached segments in the same call;
    # torch.cuda.empty_cache() frees them in a separate call
    followed = kind.shift(-1).is_in(["segment_alloc", "segment_map", "oom"])
    retry = freed & followed & (rows["stack"] == rows["stack"].shift(-1))
    # a segment that goes in the moment in which its block is freed was not cached
    same = [rows[name].eq_missing(rows[name].shift(1)) for name in ("ts", "address", "stack")]
    retry &= ~(kind.shift(1).str.starts_with("free_") & same[0] & same[1] & same[2])
    return {
        "allocations": int((rows["change"] == 1).sum()),
        "segment_allocs": int((rows["segment_change"] == 1).sum()),
        "segment_frees": int((rows["segment_change"] == -1).sum()),
        "retries": int(retry.sum()),
        "ooms": int((kind == "oom").sum()),
    }


# --- plots -----------------------------------------------------------------------------------

#: Meaning of sizes by source.
_SUBTITLES = {
    "snapshot": "Requested bytes, from the history of PyTorch's allocator",
    "instants": "Allocated bytes (block sizes), from torch.profiler",
    "calls": "Bytes allocated from the driver, from nsys",
}
#: Maximum number of allocations drawn individually, and of points of the curves.
BOXES = 2000
LEVELS = 4000


def occupancy(history: ledger.Ledger, rank: rank_memory.RankMemory) -> Occupancy:
    """Return the plot of a device, with a box for each of the largest allocations.

    Largest is by bytes x lifetime in events.
    """
    allocations = history.allocations
    area = allocations["bytes"].cast(pl.Float64) * (allocations["end"] - allocations["start"])
    large = (allocations["bytes"] >= (rank.options.min_bytes or 0)).arg_true()
    chosen = large.gather(area.gather(large).arg_sort(descending=True)[:BOXES]).sort()
    boxes = allocations[chosen]
    rest = allocations.filter(~pl.int_range(pl.len()).is_in(chosen.implode()))
    total = float(area.sum())
    frac = float(area[chosen].sum()) / total if total else 1.0
    at = rank_memory.peak_position(history, rank.window)
    memory = regions.regions(history, *rank.of_device(history.device), at)
    blocks = _blocks(memory)
    labels = _labels(rank.code(history, boxes))
    boxes = boxes.with_columns(stack=rank_memory.allocation_stack(boxes))
    stacks, numbers = _stacks(rank, pl.concat([boxes["stack"], blocks["stack"]]))
    return Occupancy(
        name=_name(rank.rank, history.device),
        title=_title(history, rank),
        subtitle=_SUBTITLES[history.source],
        boxes=pl.DataFrame(
            {
                "start": boxes["start"],
                "end": boxes["end"],
                "start_ns": history.times(boxes["start"]),
                "end_ns": history.times(boxes["end"]),
                "live_bytes": boxes["bytes"],
                "stack": numbers[: boxes.height],
                "label": labels,
                "category": _known(boxes["category"]),
            }
        ),
        levels=_levels(history, rest),
        marks=_marks(history, at),
        spans=_spans(history, rank),
        stacks=stacks,
        segments=_segments(memory),
        blocks=blocks.with_columns(
            stack=numbers[boxes.height :], label=_labels(rank.lines.code_of(blocks["stack"]))
        ),
        events=history.positions,
        boxed_frac=frac,
        axis_ns=_axis(rank),
        epoch_ns=rank.epoch_ns,
    )


def _on_one_axis(parts: Sequence[result.Memory]) -> tuple[list[Occupancy], list[str]]:
    """Return the plots of all files on one absolute time axis, and a remark if that fails.

    Recordings far apart in time keep separate axes: on one they would be thin stripes.
    """
    maps = [one for part in parts for one in part.maps]
    if len([part for part in parts if part.maps]) < 2:
        return maps, []
    known = [
        (one.epoch_ns + one.axis_ns[0], one.epoch_ns + one.axis_ns[1])
        for one in maps
        if one.epoch_ns is not None and one.axis_ns is not None
    ]
    if len(known) < len(maps):
        return maps, [_NO_AXIS]
    first, last = min(start for start, _ in known), max(end for _, end in known)
    if last - first > _MOST_APART * sum(end - start for start, end in known):
        return maps, [_FAR_APART]
    return [
        replace(one, axis_ns=(first - one.epoch_ns, last - one.epoch_ns))
        for one in maps
        if one.epoch_ns is not None
    ], []


def _axis(rank: rank_memory.RankMemory) -> tuple[int, int] | None:
    """Return the times of the first and the last event of all devices; None without times."""
    times = pl.concat([one.rows["ts"] for one in rank.ledgers])
    first, last = times.min(), times.max()
    if times.null_count() or not isinstance(first, int) or not isinstance(last, int):
        return None
    return first, last


def _title(history: ledger.Ledger, rank: rank_memory.RankMemory) -> str:
    rank_text = f"rank {rank.rank}" if rank.rank is not None else ""
    where = f"{rank_text} device {history.device}".strip() if len(rank.ledgers) > 1 else rank_text
    return f"Memory of {where}" if where else "Memory over time"


def _known(categories_: pl.Series) -> pl.Series:
    """Return categories as text; null for unknown."""
    texts = categories_.cast(pl.String)
    return texts.set(texts == attribution.UNKNOWN, None)


def _levels(history: ledger.Ledger, rest: pl.DataFrame) -> pl.DataFrame:
    """Return the curves, with the bytes that are not in boxes."""
    curve = rank_memory.timeline(history, LEVELS)
    rest_bytes = ledger.running_bytes(rest, history.rows.height)[curve["event"].to_numpy()]
    return curve.select(
        "event",
        time_ns=history.times(curve["event"], clamp=True),
        live_bytes="live_bytes",
        rest_bytes=pl.Series(rest_bytes),
        reserved_bytes="reserved_bytes",
    )


def _marks(history: ledger.Ledger, at: int) -> pl.DataFrame:
    """Return the marks of the peak and of out-of-memory errors."""
    failed = (history.rows["kind"].cast(pl.String) == "oom").arg_true()
    sizes = history.rows["bytes"][failed].to_list()
    event = pl.Series([at, *(failed + 1).to_list()], dtype=pl.Int64)
    labels = [
        f"peak {format_bytes(int(history.live[at]))}",
        *(f"out of memory: {format_bytes(size)} requested" for size in sizes),
    ]
    return pl.DataFrame(
        {
            "event": event,
            "time_ns": history.times(event, clamp=True),
            "kind": ["peak", *("oom" for _ in sizes)],
            "label": labels,
        }
    )


def _spans(history: ledger.Ledger, rank: rank_memory.RankMemory) -> pl.DataFrame:
    steps = rank.steps_of(history.device)
    if history.rows["ts"].null_count():
        steps = steps.clear()
    return pl.DataFrame(
        {
            "start": rank_memory.positions(history, steps["ts"]),
            "end": rank_memory.positions(history, steps["end"]),
            "start_ns": steps["ts"],
            "end_ns": steps["end"],
            "label": steps["name"],
        }
    )


def _segments(memory: regions.Regions | None) -> pl.DataFrame:
    if memory is None:
        types = {"id": pl.UInt32, "address": pl.UInt64, "total_bytes": pl.Int64, "label": pl.String}
        return pl.DataFrame(schema=types)
    labels = [
        f"{'mapped range' if mapped else 'segment'} of {format_bytes(size)}"
        f"{'' if pool is None else f', private pool {pool}'}"
        for size, mapped, pool in memory.segments.select("total_bytes", "expandable", "pool").rows()
    ]
    return memory.segments.with_columns(label=pl.Series(labels, dtype=pl.String))


def _blocks(memory: regions.Regions | None) -> pl.DataFrame:
    numbers = dict.fromkeys(("offset_bytes", "total_bytes"), pl.Int64)
    types = {"segment": pl.UInt32, **numbers, "state": pl.String, "stack": pl.UInt32}
    return pl.DataFrame(schema=types) if memory is None else memory.blocks


def _stacks(rank: rank_memory.RankMemory, used: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """Return the distinct stacks, and the number of each row's stack."""
    distinct = used.drop_nulls().unique().sort()
    number = dict(zip(distinct.to_list(), range(distinct.len()), strict=True))
    frames = [rank.lines.path(row) for row in distinct]
    table = pl.DataFrame(
        {"id": range(distinct.len()), "frames": frames},
        schema={"id": pl.UInt32, "frames": pl.List(pl.String)},
    )
    return table, used.replace_strict(number, default=None, return_dtype=pl.UInt32)


def _labels(code: pl.DataFrame) -> pl.Series:
    rows = code.select("function", "file", "line").rows()
    return pl.Series([attribution.frame_text(*row) for row in rows], dtype=pl.String)


def memory(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    capacity_bytes: int | None = None,
    step_name: str | None = None,
    step_every: str | int | None = None,
    **reading: Unpack[Reading],
) -> Memory:
    """How much memory does each GPU use, when is the peak, and which code allocated it?

    Args:
        inputs: memory snapshots (``torch.cuda.memory._dump_snapshot``), traces with ``[memory]``
            instants or nsys exports with allocations; one, several, or a folder.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        capacity_bytes: memory of the device, for out-of-memory errors as in :func:`memory_oom`.
        step_name: regular expression of step annotations, for growth as in :func:`memory_growth`.
        step_every: length of a step as a time or a number of events, for growth.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded, or none of the requested steps.
        OptionError: an option is invalid.
    """
    options = MemoryOptions(
        library_name,
        min_bytes,
        capacity_bytes=capacity_bytes,
        step_name=step_name,
        step_every=step_every,
    )
    return run(MEMORY, inputs, options, **reading)
