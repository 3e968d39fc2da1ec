"""The peak of each device, what is live then, and how well that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.memory import rank_memory
from traceanalyzer.analyzers.memory.drawing import occupancy
from traceanalyzer.analyzers.memory.ledger import ACTIVE, NEEDS, Ledger
from traceanalyzer.analyzers.memory.options import Options
from traceanalyzer.analyzers.memory.rank_memory import RankMemory, peak_position
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.result import Occupancy
from traceanalyzer.trace import Trace, is_cut_off

#: Columns of the table of devices; see :class:`~.result.Memory`.
DEVICES: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "noted": pl.String,
    "events": pl.Int64,
    "peak_bytes": pl.Int64,
    "peak_ns": pl.Int64,
    "peak_event": pl.Int64,
    "peak_n": pl.Int64,
    "reserved_at_peak_bytes": pl.Int64,
    "reserved_peak_bytes": pl.Int64,
    "reserved_peak_ns": pl.Int64,
    "start_bytes": pl.Int64,
    "end_bytes": pl.Int64,
    "reserved_end_bytes": pl.Int64,
    "allocated_end_bytes": pl.Int64,
    "fragmentation_frac": pl.Float64,
    "inactive_bytes": pl.Int64,
    "inactive_split_bytes": pl.Int64,
    "inactive_split_n": pl.Int64,
    "largest_free_bytes": pl.Int64,
    "allocations": pl.Int64,
    "segment_allocs": pl.Int64,
    "segment_frees": pl.Int64,
    "retries": pl.Int64,
    "ooms": pl.Int64,
    "before_n": pl.Int64,
    "before_bytes": pl.Int64,
    "reused_n": pl.Int64,
    "twice_n": pl.Int64,
    "resized_n": pl.Int64,
    "lost_n": pl.Int64,
    "difference_bytes": pl.Int64,
}

_WINDOWED: Final = "Only what lies in the stretch asked for counts, but for the blocks at the end."
_CUT_OFF: Final = (
    "A file is cut off: its blocks are of a later moment than its last event, and what was "
    "allocated in between counts as if it had been there before the first."
)


@dataclass(frozen=True)
class Part:
    """One rank's devices.

    Attributes:
        devices: a row a device: see :class:`~.result.Memory`.
        alive: a row a stack that holds memory at the peak of its device.
        timeline: live and reserved bytes over time.
        maps: the picture of each device.
        truncated: the end of the file is missing, and with it the end of the history.
    """

    devices: pl.DataFrame
    alive: pl.DataFrame
    timeline: pl.DataFrame
    maps: tuple[Occupancy, ...]
    truncated: bool = False


def needs(_options: Options) -> Needs:
    """Allocations and the code that was running, whatever is asked about them."""
    return NEEDS


def measure(trace: Trace, options: Options, *, drawn: bool = True) -> Part:
    """The memory of the devices of a trace of one rank.

    Args:
        trace: read with :data:`~.ledger.NEEDS`.
        options: the libraries that name allocations, and the window.
        drawn: with the pictures; a comparison shows none.

    Raises:
        MissingData: it tells nothing of memory.
    """
    rank = rank_memory.rank_memory(trace, options)
    return Part(
        devices=pl.DataFrame([_device(of, rank) for of in rank.ledgers], schema=DEVICES),
        alive=pl.concat(
            [rank_memory.alive(of, rank, peak_position(of, rank.window)) for of in rank.ledgers]
        ),
        timeline=pl.concat([_timeline(of, rank) for of in rank.ledgers]),
        maps=tuple(occupancy(of, rank) for of in rank.ledgers) if drawn else (),
        truncated=is_cut_off(trace),
    )


def combine(parts: Sequence[Part], options: Options, _base: Sequence[Part] = ()) -> Memory:
    """The memory of all ranks."""
    remarks = [_CUT_OFF] if any(part.truncated for part in parts) else []
    if options.windowed:
        remarks.append(_WINDOWED)
    return Memory(
        devices=pl.concat([part.devices for part in parts]).sort(
            "rank", "path", "device", nulls_last=True
        ),
        alive=pl.concat([part.alive for part in parts]),
        timeline=pl.concat([part.timeline for part in parts]),
        maps=tuple(one for part in parts for one in part.maps),
        remarks=tuple(remarks),
    )


MEMORY = Analyzer("memory", Options, needs, measure, combine, whole_file=True)


def _device(of: Ledger, rank: RankMemory) -> dict[str, Any]:
    """A row of the table of devices."""
    first, last = of.between(*rank.window)
    return {
        "rank": rank.rank,
        "path": rank.path,
        "device": of.device,
        **_curve(of, peak_position(of, rank.window), first, last),
        **_held(of, rank),
        **_churn(of, first, last),
        **vars(of.quality),
    }


def _timeline(of: Ledger, rank: RankMemory) -> pl.DataFrame:
    place = {"rank": rank.rank, "path": rank.path, "device": of.device}
    known = [pl.lit(value, DEVICES[name]).alias(name) for name, value in place.items()]
    return rank_memory.timeline(of).select(*known, pl.all())


def _curve(of: Ledger, at: int, first: int, last: int) -> dict[str, Any]:
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


def _held(of: Ledger, rank: RankMemory) -> dict[str, Any]:
    """What the blocks tell of the end; None where there are none."""
    segments, blocks = rank.of_device(of.device)
    names = (
        "allocated_end_bytes", "fragmentation_frac", "inactive_bytes", "inactive_split_bytes",
        "inactive_split_n", "largest_free_bytes",
    )  # fmt: skip
    if blocks.is_empty():
        return dict.fromkeys(names)
    active = pl.col("state").cast(pl.String).is_in(ACTIVE)
    size = pl.col("size_bytes")
    whole = blocks.group_by("segment").agg(split=active.any())
    idle = blocks.filter(~active).join(whole, on="segment")
    allocated = int(blocks.filter(active)["size_bytes"].sum())
    reserved = int(segments["total_bytes"].sum())
    split = idle.filter("split")
    largest = idle.select(size.max()).item()
    told = (
        allocated,
        1 - allocated / reserved if reserved else None,
        int(idle["size_bytes"].sum()),
        int(split["size_bytes"].sum()),
        split.height,
        int(largest or 0),
    )
    return dict(zip(names, told, strict=True))


def _churn(of: Ledger, first: int, last: int) -> dict[str, Any]:
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
