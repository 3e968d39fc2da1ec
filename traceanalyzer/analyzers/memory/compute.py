"""The peak of each device, what is live then, and how well that is known."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.common.columns import together
from traceanalyzer.analyzers.memory import (
    attribution,
    growth,
    ledger,
    oom,
    rank_memory,
    regions,
    result,
)
from traceanalyzer.analyzers.memory.options import (
    GrowthOptions,
    MemoryOptions,
    OomOptions,
    Options,
)
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.result import Occupancy
from traceanalyzer.trace import Trace, is_cut_off
from traceanalyzer.units import format_bytes

#: Types of columns of the table of devices that are no whole numbers of 64 bits.
_TYPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "noted": pl.String,
    "fragmentation_frac": pl.Float64,
    "expandable": pl.Boolean,
}

_WINDOWED = "Only what lies in the stretch asked for counts, but for the blocks at the end."
_NO_AXIS = "A file has no absolute times: drawings of several files have time axes of their own."
_FAR_APART = "Recordings lie far apart in time: each drawing has a time axis of its own."
#: Drawings have one axis if it is at most so many times as long as all recordings together.
_MOST_APART = 2
_CUT_OFF = (
    "A file is cut off: its blocks are of a later moment than its last event, and what was "
    "allocated in between counts as if it had been there before the first."
)


def measure(
    trace: Trace, options: Options, *, drawn: bool = True, causes: bool = True
) -> result.Memory:
    """The memory of the devices of a trace of one rank.

    Args:
        trace: read with :data:`~.ledger.NEEDS`.
        options: the libraries that name allocations, the window, the capacity and the steps.
        drawn: with the pictures; a comparison shows none.
        causes: with out-of-memory errors and growth; a comparison shows none.

    Raises:
        MissingData: it tells nothing of memory, or has no steps as asked for.
        OptionError: the capacity, or what a step is, makes no sense.
    """
    asked = options if isinstance(options, MemoryOptions) else MemoryOptions()
    rank = rank_memory.rank_memory(trace, options, asked.step_name)
    devices = [_device(of, rank) for of in rank.ledgers]
    types = {name: _TYPES.get(name, pl.Int64) for name in devices[0]}
    return result.Memory(
        devices=pl.DataFrame(devices, schema=types),
        alive=pl.concat(
            rank_memory.alive(of, rank, rank_memory.peak_position(of, rank.window))
            for of in rank.ledgers
        ),
        timeline=pl.concat(rank.placed(of, rank_memory.timeline(of)) for of in rank.ledgers),
        maps=tuple(occupancy(of, rank) for of in rank.ledgers) if drawn else (),
        remarks=(_CUT_OFF,) if is_cut_off(trace) else (),
        errors=oom.of_rank(rank, asked.capacity_bytes) if causes else None,
        growth=_growth(rank, asked) if causes else None,
    )


def _growth(rank: rank_memory.RankMemory, asked: MemoryOptions) -> growth.MemoryGrowth | None:
    """What grows; None where there are no steps, or too many, unless the user chose them."""
    every = asked.step_every
    try:
        return growth.of_rank(rank, None if every is None else str(every))
    except (MissingData, OptionError):
        if asked.steps_asked:
            raise
        return None


def combine(
    parts: Sequence[result.Memory], options: Options, _base: Sequence[result.Memory] = ()
) -> result.Memory:
    """The memory of all ranks."""
    remarks = dict.fromkeys(remark for part in parts for remark in part.remarks)
    devices, alive, timeline = together(parts, "devices", "alive", "timeline")
    failed = [part.errors for part in parts if part.errors]
    errors = oom.combine(failed, OomOptions(window=options.window)) if failed else None
    grown = [part.growth for part in parts if part.growth]
    maps, separate = _on_one_axis(parts)
    return result.Memory(
        devices=devices.sort("rank", "path", "device", nulls_last=True),
        alive=alive,
        timeline=timeline,
        maps=_ordered(maps, errors),
        remarks=(*remarks, *_windowed(options), *_smaller(options), *separate),
        errors=errors,
        growth=growth.combine(grown, GrowthOptions()) if grown else None,
    )


def _windowed(options: Options) -> list[str]:
    return [_WINDOWED] if options.windowed else []


def _smaller(options: Options) -> list[str]:
    if not options.min_bytes:
        return []
    size = format_bytes(options.min_bytes)
    return [f"Allocations below {size} are not listed (--min-bytes); peaks and shares count them."]


def _ordered(maps: list[Occupancy], errors: oom.MemoryErrors | None) -> tuple[Occupancy, ...]:
    """The pictures; first that of the device of the verdict: of the first error, else the peak."""
    failed = errors.errors.select("rank", "device").head(1).rows() if errors else []
    names = [_name(*row) for row in failed]

    def place(one: Occupancy) -> tuple[bool, int]:
        return one.name not in names, -int(one.levels["live_bytes"].max() or 0)  # type: ignore[arg-type]

    first = min(maps, key=place, default=None)
    return tuple(sorted(maps, key=lambda one: one is not first))


def _name(rank: int | None, device: int | None) -> str:
    return f"memory_{rank}_{device}"


MEMORY = Analyzer(
    "memory",
    MemoryOptions,
    ledger.needs,
    measure,
    combine,
    whole_file=True,
)


def _device(of: ledger.Ledger, rank: rank_memory.RankMemory) -> dict[str, Any]:
    """A row of the table of devices."""
    first, last = of.between(*rank.window)
    return {
        "rank": rank.rank,
        "path": rank.path,
        "device": of.device,
        **_curve(of, rank_memory.peak_position(of, rank.window), first, last),
        **_held(of, rank),
        **_fullest(of, rank),
        "expandable": rank.expandable,
        **_churn(of, first, last),
        **vars(of.quality),
    }


def _curve(of: ledger.Ledger, at: int, first: int, last: int) -> dict[str, Any]:
    reserved = of.reserved
    top = None if reserved is None else first + int(reserved[first : last + 1].argmax())
    return {
        "noted": of.noted,
        "events": of.rows.height,
        "peak_bytes": int(of.live[at]),
        "peak_ns": of.time_ns(at),
        "peak_event": at - 1 if at else None,
        "peak_n": of.alive(at).height,
        "reserved_at_peak_bytes": None if reserved is None else int(reserved[at]),
        "reserved_peak_bytes": None if reserved is None or top is None else int(reserved[top]),
        "reserved_peak_ns": None if top is None else of.time_ns(top),
        "start_bytes": int(of.live[first]),
        "end_bytes": int(of.live[last]),
        "reserved_end_bytes": None if reserved is None else int(reserved[last]),
    }


def _held(of: ledger.Ledger, rank: rank_memory.RankMemory) -> dict[str, Any]:
    """What the blocks tell of the end; None where there are none."""
    segments, blocks = rank.of_device(of.device)
    active = pl.col("state").cast(pl.String).is_in(ledger.ACTIVE)
    idle = blocks.with_columns(split=active.any().over("segment")).filter(~active)
    allocated = int(blocks.filter(active)["size_bytes"].sum())
    reserved = int(segments["total_bytes"].sum())
    split = idle.filter("split")
    found = {
        "allocated_end_bytes": allocated,
        "fragmentation_frac": 1 - allocated / reserved if reserved else None,
        "inactive_bytes": int(idle["size_bytes"].sum()),
        "inactive_split_bytes": int(split["size_bytes"].sum()),
        "inactive_split_n": split.height,
        "largest_free_bytes": int(idle["size_bytes"].max() or 0),  # type: ignore[arg-type]
    }
    return dict.fromkeys(found) if blocks.is_empty() else found


def _fullest(of: ledger.Ledger, rank: rank_memory.RankMemory) -> dict[str, Any]:
    """What is free at the first out-of-memory error, else when most is reserved."""
    names = ("event", "ns", "reserved_bytes", "free_bytes", "split_bytes")
    at = rank_memory.fullest_position(of, rank.window)
    held = None if at is None else regions.regions(of, *rank.of_device(of.device), at)
    if at is None or held is None or held.segments.is_empty():
        return {f"fullest_{name}": None for name in names}
    reserved = int(held.segments["total_bytes"].sum())
    free = int(held.free()["total_bytes"].sum())
    values = (at - 1 if at else None, of.time_ns(at), reserved, free, held.split_bytes())
    return {f"fullest_{name}": value for name, value in zip(names, values, strict=True)}


def _churn(of: ledger.Ledger, first: int, last: int) -> dict[str, Any]:
    """How often memory was asked of the driver and given back, from one position to another."""
    rows = of.rows[first:last]
    kind = rows["kind"].cast(pl.String)
    given_back = rows["segment_change"] == -1
    # before a cudaMalloc is tried again, and before an error, one call gives cached segments back;
    # torch.cuda.empty_cache() does so too, but by a call of its own
    followed = kind.shift(-1).is_in(["segment_alloc", "segment_map", "oom"])
    retry = given_back & followed & (rows["stack"] == rows["stack"].shift(-1))
    return {
        "allocations": int((rows["change"] == 1).sum()),
        "segment_allocs": int((rows["segment_change"] == 1).sum()),
        "segment_frees": int((rows["segment_change"] == -1).sum()),
        "retries": int(retry.sum()),
        "ooms": int((kind == "oom").sum()),
    }


# --- drawing ---------------------------------------------------------------------------------

#: What sizes are, by who noted them.
_SUBTITLES = {
    "snapshot": "Bytes that the code asked for, by PyTorch's history of its allocator",
    "instants": "Bytes of blocks, as torch.profiler noted them",
    "calls": "Bytes that the process got of the driver, as nsys noted them",
}
#: Allocations drawn one by one, and moments of the curves.
BOXES = 2000
LEVELS = 4000


def occupancy(of: ledger.Ledger, rank: rank_memory.RankMemory) -> Occupancy:
    """What fills a device, the largest allocations one by one.

    Largest is by bytes x time, time being counted in events.
    """
    told = of.allocations
    area = told["bytes"].cast(pl.Float64) * (told["end"] - told["start"])
    large = (told["bytes"] >= (rank.options.min_bytes or 0)).arg_true()
    chosen = large.gather(area.gather(large).arg_sort(descending=True)[:BOXES]).sort()
    boxes = told[chosen]
    rest = told.filter(~pl.int_range(pl.len()).is_in(chosen.implode()))
    total = float(area.sum())
    frac = float(area[chosen].sum()) / total if total else 1.0
    at = rank_memory.peak_position(of, rank.window)
    held = regions.regions(of, *rank.of_device(of.device), at)
    blocks = _blocks(held)
    labels = _labels(rank.code(of, boxes))
    boxes = boxes.with_columns(stack=rank_memory.known_stack(boxes))
    stacks, numbers = _stacks(rank, pl.concat([boxes["stack"], blocks["stack"]]))
    return Occupancy(
        name=_name(rank.rank, of.device),
        title=_title(of, rank),
        subtitle=_SUBTITLES[of.noted],
        boxes=pl.DataFrame(
            {
                "start": boxes["start"],
                "end": boxes["end"],
                "start_ns": of.times(boxes["start"]),
                "end_ns": of.times(boxes["end"]),
                "live_bytes": boxes["bytes"],
                "stack": numbers[: boxes.height],
                "label": labels,
                "category": _known(boxes["category"]),
            }
        ),
        levels=_levels(of, rest),
        marks=_marks(of, at),
        spans=_spans(of, rank),
        stacks=stacks,
        segments=_segments(held),
        blocks=blocks.with_columns(
            stack=numbers[boxes.height :], label=_labels(rank.lines.of(blocks["stack"]))
        ),
        events=of.positions,
        boxed_frac=frac,
        axis_ns=_axis(rank),
        epoch_ns=rank.epoch_ns,
    )


def _on_one_axis(parts: Sequence[result.Memory]) -> tuple[list[Occupancy], list[str]]:
    """The drawings of all files on one axis of absolute times, and a remark where that fails.

    Recordings that lie far apart keep axes of their own: on one they would be thin stripes.
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
    """The time from the first event to the last of all devices; None without times."""
    times = pl.concat([of.rows["ts"] for of in rank.ledgers])
    first, last = times.min(), times.max()
    if times.null_count() or not isinstance(first, int) or not isinstance(last, int):
        return None
    return first, last


def _title(of: ledger.Ledger, rank: rank_memory.RankMemory) -> str:
    of_rank = f"rank {rank.rank}" if rank.rank is not None else ""
    where = f"{of_rank} device {of.device}".strip() if len(rank.ledgers) > 1 else of_rank
    return f"Memory of {where}" if where else "Memory over time"


def _known(categories_: pl.Series) -> pl.Series:
    """Categories as text; null where nothing is known."""
    told = categories_.cast(pl.String)
    return told.set(told == attribution.UNKNOWN, None)


def _levels(of: ledger.Ledger, rest: pl.DataFrame) -> pl.DataFrame:
    """The curves, and what of them the boxes leave out."""
    told = rank_memory.timeline(of, LEVELS)
    return told.select(
        "event",
        time_ns=of.times(told["event"], whole=True),
        live_bytes="live_bytes",
        rest_bytes=pl.Series(ledger.running(rest, of.rows.height)[told["event"].to_numpy()]),
        reserved_bytes="reserved_bytes",
    )


def _marks(of: ledger.Ledger, at: int) -> pl.DataFrame:
    """The peak, and each time memory ran out."""
    failed = (of.rows["kind"].cast(pl.String) == "oom").arg_true()
    sizes = of.rows["bytes"][failed].to_list()
    event = pl.Series([at, *(failed + 1).to_list()], dtype=pl.Int64)
    labels = [
        f"peak {format_bytes(int(of.live[at]))}",
        *(f"out of memory: {format_bytes(size)} asked for" for size in sizes),
    ]
    return pl.DataFrame(
        {
            "event": event,
            "time_ns": of.times(event, whole=True),
            "kind": ["peak", *("oom" for _ in sizes)],
            "label": labels,
        }
    )


def _spans(of: ledger.Ledger, rank: rank_memory.RankMemory) -> pl.DataFrame:
    steps = rank.steps_of(of.device)
    if of.rows["ts"].null_count():
        steps = steps.clear()
    return pl.DataFrame(
        {
            "start": rank_memory.positions(of, steps["ts"]),
            "end": rank_memory.positions(of, steps["end"]),
            "start_ns": steps["ts"],
            "end_ns": steps["end"],
            "label": steps["name"],
        }
    )


def _segments(held: regions.Regions | None) -> pl.DataFrame:
    if held is None:
        types = {"id": pl.UInt32, "address": pl.UInt64, "total_bytes": pl.Int64, "label": pl.String}
        return pl.DataFrame(schema=types)
    labels = [
        f"{'mapped range' if mapped else 'segment'} of {format_bytes(size)}"
        for size, mapped in held.segments.select("total_bytes", "expandable").rows()
    ]
    return held.segments.with_columns(label=pl.Series(labels, dtype=pl.String))


def _blocks(held: regions.Regions | None) -> pl.DataFrame:
    numbers = dict.fromkeys(("offset_bytes", "total_bytes"), pl.Int64)
    types = {"segment": pl.UInt32, **numbers, "state": pl.String, "stack": pl.UInt32}
    return pl.DataFrame(schema=types) if held is None else held.blocks


def _stacks(rank: rank_memory.RankMemory, used: pl.Series) -> tuple[pl.DataFrame, pl.Series]:
    """The stacks that occur, and the number of each row's."""
    named = used.drop_nulls().unique().sort()
    number = dict(zip(named.to_list(), range(named.len()), strict=True))
    frames = [rank.lines.path(row) for row in named]
    table = pl.DataFrame(
        {"id": range(named.len()), "frames": frames},
        schema={"id": pl.UInt32, "frames": pl.List(pl.String)},
    )
    return table, used.replace_strict(number, default=None, return_dtype=pl.UInt32)


def _labels(code: pl.DataFrame) -> pl.Series:
    told = code.select("function", "file", "line").rows()
    return pl.Series([attribution.frame_text(*row) for row in told], dtype=pl.String)
