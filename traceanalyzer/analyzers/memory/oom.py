"""Why memory ran out: one row an out-of-memory error, with what could have served the request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.memory import regions
from traceanalyzer.analyzers.memory.attribution import frame_text
from traceanalyzer.analyzers.memory.compute import needs
from traceanalyzer.analyzers.memory.ledger import Ledger
from traceanalyzer.analyzers.memory.options import OomOptions
from traceanalyzer.analyzers.memory.rank_memory import RankMemory, alive, rank_memory
from traceanalyzer.analyzers.memory.regions import ROUND, Regions
from traceanalyzer.analyzers.memory.result import shown_table, summed, times_of, with_line
from traceanalyzer.errors import OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_bytes

FRAGMENTATION: Final = "fragmentation"
LIMIT: Final = "limit"
ELSEWHERE: Final = "another pool or stream"
OUTSIDE: Final = "outside PyTorch"
DEMAND: Final = "real demand"
UNKNOWN: Final = "not known"
CAUSE = pl.Enum((FRAGMENTATION, LIMIT, ELSEWHERE, OUTSIDE, DEMAND, UNKNOWN))

#: What the allocator asks of the driver: 2 MiB, 20 MiB up to 10 MiB, then multiples of 2 MiB.
_LARGE_SEGMENT: Final = 20 << 20
_LARGE_REQUEST: Final = 10 << 20
#: Memory that others hold is worth naming from this share of the device on.
_OUTSIDE_FRAC: Final = 0.1
#: A request of so many times all that the device has is no matter of memory.
_ABSURD: Final = 16

#: Segments from here on are those whose division ``max_split_size_mb`` would prevent.
_SPLIT_BYTES: Final = 200 << 20

_SCHEMA: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "rank": pl.Int32,
    "path": pl.String,
    "device": pl.Int32,
    "event": pl.Int64,
    "time_ns": pl.Int64,
    "request_bytes": pl.Int64,
    "device_free_bytes": pl.Int64,
    "reserved_bytes": pl.Int64,
    "allocated_bytes": pl.Int64,
    "unused_bytes": pl.Int64,
    "usable_bytes": pl.Int64,
    "largest_free_bytes": pl.Int64,
    "pending_bytes": pl.Int64,
    "outside_bytes": pl.Int64,
    "missing_bytes": pl.Int64,
    "cause": CAUSE,
    "advice": pl.String,
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
}
_ERRORS: Final = {
    "on": "device",
    "event": "event",
    "time_ns": "at",
    "request_bytes": "asked for",
    "device_free_bytes": "free on the device",
    "reserved_bytes": "reserved",
    "allocated_bytes": "allocated",
    "usable_bytes": "usable",
    "largest_free_bytes": "largest piece",
    "outside_bytes": "outside PyTorch",
    "cause": "cause",
}
_TO_TRY: Final = {"cause": "cause", "n": "errors", "advice": "what to try"}
_ALIVE: Final = {
    "on": "device",
    "event": "event",
    "at": "line of code",
    "category": "category",
    "n": "n",
    "live_bytes": "bytes",
    "live_frac": "share",
}


@dataclass(frozen=True)
class Part:
    """One rank's errors.

    Attributes:
        errors: a row an error.
        alive: what was live at each, by stack, with ``event``.
        devices: rank, path, device, events of each device looked at.
    """

    errors: pl.DataFrame
    alive: pl.DataFrame
    devices: pl.DataFrame


def measure(trace: Trace, options: OomOptions) -> Part:
    """The out-of-memory errors of a trace of one rank.

    Raises:
        MissingData: it tells nothing of memory.
        OptionError: the capacity is less than what is known to be there.
    """
    own = rank_memory(trace, options)
    told = dict(trace.memory_totals.select("event", "free_bytes").drop_nulls().rows())
    rows: list[dict[str, Any]] = []
    held: list[pl.DataFrame] = []
    for of in own.ledgers:
        for row, live in _errors(of, own, told, options.capacity_bytes):
            rows.append(row)
            held.append(live)
    nothing = alive(own.ledgers[0], own, 0).clear().with_columns(event=pl.lit(None, pl.Int64))
    places = [(own.rank, own.path, of.device, of.rows.height) for of in own.ledgers]
    return Part(
        errors=pl.DataFrame(rows, schema=_SCHEMA),
        alive=pl.concat([nothing, *held]),
        devices=pl.DataFrame(
            places,
            schema={"rank": pl.Int32, "path": pl.String, "device": pl.Int32, "events": pl.Int64},
            orient="row",
        ),
    )


def combine(parts: Sequence[Part], options: OomOptions, _base: Sequence[Part] = ()) -> MemoryErrors:
    """The errors of all ranks."""
    return MemoryErrors(
        errors=pl.concat([part.errors for part in parts]),
        alive=pl.concat([part.alive for part in parts]),
        devices=pl.concat([part.devices for part in parts]),
        windowed=options.windowed,
    )


def _errors(
    of: Ledger, own: RankMemory, told: dict[int, int], capacity: int | None
) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    failed = of.rows.with_row_index("at").filter(pl.col("kind").cast(pl.String) == "oom")
    first, last = of.between(*own.window)
    for row in failed.iter_rows(named=True):
        position = int(row["at"]) + 1
        if not first < position <= last:
            continue
        held = regions.regions(of, *own.of_device(of.device), position)
        known = _known(of, own, row, held, told.get(row["event"]), capacity)
        divided = held is not None and held.divided(_SPLIT_BYTES)
        at = situation(known, own.settings, divided=divided)
        unclear = None in (known["unused_bytes"], known["device_free_bytes"])
        why = UNKNOWN if unclear else cause(at)
        line = own.lines.of(pl.Series([row["stack"]], dtype=pl.UInt32))
        yield (
            {
                "rank": own.rank,
                "path": own.path,
                "device": of.device,
                "event": row["at"],
                "time_ns": row["ts"],
                **known,
                "missing_bytes": None if unclear else at.missing,
                "cause": why,
                "advice": advice(at, why),
                **(line.select("function", "file", "line").row(0, named=True)),
            },
            alive(of, own, position).with_columns(event=pl.lit(row["at"], pl.Int64)),
        )


def _known(
    of: Ledger,
    own: RankMemory,
    row: dict[str, Any],
    held: Regions | None,
    free: int | None,
    capacity: int | None,
) -> dict[str, Any]:
    """The sizes of a row of errors."""
    position = int(row["at"]) + 1
    reserved = None if of.reserved is None else int(of.reserved[position])
    if capacity is not None and capacity < (reserved or 0) + (free or 0):
        there = f"{format_bytes(reserved)} reserved and {format_bytes(free)} free"
        raise OptionError(f"--capacity {format_bytes(capacity)}: {own.path} has {there}")
    request = row["bytes"]
    serving = None if held is None else held.serving(request or 0, row["stream"])["total_bytes"]
    largest = None if serving is None else serving.max()
    return {
        "request_bytes": request,
        "device_free_bytes": free,
        "reserved_bytes": reserved,
        "allocated_bytes": int(of.live[position]),
        "unused_bytes": None if held is None else int(held.free()["total_bytes"].sum()),
        "usable_bytes": None if serving is None else int(serving.sum()),
        "largest_free_bytes": 0 if serving is not None and largest is None else largest,
        "pending_bytes": _pending(of, position),
        "outside_bytes": _outside(capacity, reserved, free),
    }


def _pending(of: Ledger, position: int) -> int:
    """Bytes that were freed and stay until another stream is done with them."""
    asked = of.rows[:position].select("kind", "address", asked=pl.int_range(1, pl.len() + 1))
    requests = asked.filter(pl.col("kind").cast(pl.String) == "free_requested")
    last = requests.group_by("address").agg(pl.col("asked").max())
    waiting = of.alive(position).join(last, on="address").filter(pl.col("asked") > pl.col("start"))
    return int(waiting["bytes"].sum())


def _outside(capacity: int | None, reserved: int | None, free: int | None) -> int | None:
    """What neither PyTorch's allocator holds nor is free."""
    if capacity is None or reserved is None or free is None:
        return None
    return max(capacity - reserved - free, 0)


# --- causes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Situation:
    """What there was when a request failed.

    Attributes:
        request: bytes asked for.
        device_free: free on the device, 0 where that is not told.
        reserved: held by the allocator, 0 where that is not known.
        unused: free of it.
        usable: free of it in segments that serve such requests: of the size's class, the stream,
            and no private pool.
        largest: the largest run of those.
        pending: live only because another stream may still use it.
        outside: neither held by the allocator nor free; None where the capacity is not known.
        capacity: memory of the device, or None.
        expandable: segments are expandable.
        limited: large blocks are not split.
        divided: there are large segments that are in use in part.
    """

    request: int
    device_free: int
    reserved: int
    unused: int
    usable: int
    largest: int
    pending: int
    outside: int | None
    capacity: int | None
    expandable: bool
    limited: bool
    divided: bool

    @property
    def missing(self) -> int:
        """What all free memory together falls short of the request."""
        return max(self.request - self.unused - self.device_free, 0)


def situation(known: dict[str, Any], settings: dict[str, Any], *, divided: bool) -> Situation:
    """The situation of a row of errors; what is not known counts as 0."""
    split = settings.get("max_split_size")
    reserved, free = known["reserved_bytes"] or 0, known["device_free_bytes"] or 0
    outside = known["outside_bytes"]
    return Situation(
        request=known["request_bytes"] or 0,
        device_free=free,
        reserved=reserved,
        unused=known["unused_bytes"] or 0,
        usable=known["usable_bytes"] or 0,
        largest=known["largest_free_bytes"] or 0,
        pending=known["pending_bytes"],
        outside=outside,
        capacity=None if outside is None else outside + reserved + free,
        expandable=settings.get("expandable_segments") is True,
        limited=isinstance(split, int) and split > 0,
        divided=divided,
    )


def cause(at: Situation) -> str:
    """Why the request failed, the first of these that holds.

    ``limit``: the device had room for a new segment; ``fragmentation``: what is usable, with what
    is free on the device, would do in one piece; ``another pool or stream``: all that is unused
    would; ``outside PyTorch``: others hold what is missing; else ``real demand``.
    """
    if at.device_free >= segment_size(at.request, expandable=at.expandable):
        return LIMIT
    if at.largest < at.request <= at.usable + at.device_free and at.usable:
        return FRAGMENTATION
    if at.unused and not at.missing:
        return ELSEWHERE
    if at.outside and at.capacity and at.outside >= max(_OUTSIDE_FRAC * at.capacity, at.missing):
        return OUTSIDE
    return DEMAND


def segment_size(request: int, *, expandable: bool) -> int:
    """What the allocator asks of the driver for a request that no cached block serves."""
    size = -(-request // ROUND) * ROUND
    if size <= regions.SMALL_REQUEST:
        return regions.SMALL_SEGMENT
    if expandable:
        return -(-size // _LARGE_SEGMENT) * _LARGE_SEGMENT
    return (
        _LARGE_SEGMENT
        if size < _LARGE_REQUEST
        else -(-size // regions.SMALL_SEGMENT) * regions.SMALL_SEGMENT
    )


def advice(at: Situation, why: str) -> str:
    """What to try."""
    if at.request > _ABSURD * max(at.reserved + at.device_free, at.capacity or 0):
        return "no device has as much: look at the shape that was asked for"
    if at.pending and 2 * at.pending >= at.missing:
        return (
            f"{_advice(at, why)}; {format_bytes(at.pending)} of what is live was freed and waits "
            "for another stream (record_stream, FSDP without limit_all_gathers)"
        )
    return _advice(at, why)


def _advice(at: Situation, why: str) -> str:
    if why == FRAGMENTATION and at.expandable:
        return (
            "segments are expandable already, and what is free is too finely divided: give it back "
            "earlier with garbage_collection_threshold:0.8, or allocate the largest first"
        )
    if why == FRAGMENTATION:
        more = ", or max_split_size_mb:200" if at.divided and not at.limited else ""
        return (
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets segments grow in place, so that "
            f"free pieces add up{more}"
        )
    if why == UNKNOWN:
        return "take the snapshot with torch.cuda.memory._dump_snapshot, which tells what was free"
    if why == LIMIT:
        return (
            "the device had room: look for torch.cuda.set_per_process_memory_fraction, or for "
            "memory that another process gave back since"
        )
    if why == ELSEWHERE:
        return (
            "what is free belongs to other streams, to private pools of CUDA graphs or to the "
            "other class of sizes: allocate on one stream, share the pool, or call "
            "torch.cuda.empty_cache() between phases"
        )
    if why == OUTSIDE:
        return (
            "other processes, NCCL, CUDA contexts and libraries hold it: look at nvidia-smi; "
            "NCCL_BUFFSIZE and fewer process groups make NCCL smaller"
        )
    return (
        "no setting of the allocator helps: a smaller batch, activation checkpointing, sharding or "
        "offloading does"
    )


# --- result ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MemoryErrors(Result):
    """What :func:`traceanalyzer.memory_oom` found.

    Attributes:
        errors: a row an out-of-memory error: rank, path, device, event, time_ns, request_bytes,
            device_free_bytes (free on the device, as the allocator was told), reserved_bytes,
            allocated_bytes (requested by all that was live), unused_bytes (free in what is
            reserved), usable_bytes (of it in segments that serve such requests: of the size's
            class, the stream, and no private pool), largest_free_bytes (the largest run of those),
            pending_bytes (freed, but waiting for another stream), outside_bytes (capacity less
            reserved less free; null where the capacity is not given), missing_bytes (that all free
            memory together falls short of), cause, advice, and function, file, line of the request.
        alive: what was live at each, by stack: as ``Memory.alive``, with event.
        devices: the devices looked at: rank, path, device, events.
        windowed: only a stretch of the history was looked at.
    """

    errors: pl.DataFrame
    alive: pl.DataFrame
    devices: pl.DataFrame
    windowed: bool = False

    def view(self) -> View:
        """Errors, what to try, what was live at the first."""
        return View(
            title="Why did memory run out?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars={"ooms": self.errors.height},
        )


def _verdict(result: MemoryErrors) -> str:
    """The first error, and the causes of all."""
    if result.errors.is_empty() and result.windowed:
        return "No out-of-memory error is in this stretch of the history."
    if result.errors.is_empty():
        return (
            "No out-of-memory error is in the history. To record one, keep "
            "torch.cuda.memory._record_memory_history() on and dump the snapshot in "
            "torch._C._cuda_attach_out_of_memory_observer."
        )
    first = result.errors.row(0, named=True)
    n = result.errors.height
    times = times_of(n)
    line = frame_text(first["function"], first["file"], first["line"])
    return f"Memory ran out {times}. The first: {_failure(first, line)}"


def _failure(row: dict[str, Any], line: str) -> str:
    size = row["request_bytes"]
    asked = f"{line} asked for {'memory' if size is None else format_bytes(size)}"
    free, reserved = row["device_free_bytes"], row["reserved_bytes"]
    told = [
        f"{format_bytes(free)} were free on the device" if free is not None else "",
        f"{format_bytes(reserved)} were reserved" if reserved is not None else "",
        f"{format_bytes(row['allocated_bytes'])} {'' if reserved is None else 'of it '}in use",
    ]
    if row["unused_bytes"] is not None:
        told.append(f"{format_bytes(row['unused_bytes'])} unused")
    if row["usable_bytes"]:
        usable, largest = format_bytes(row["usable_bytes"]), format_bytes(row["largest_free_bytes"])
        told.append(f"{usable} of that for such requests, the largest piece {largest}")
    missing = format_bytes(row["missing_bytes"])
    why = {
        FRAGMENTATION: "Cause: fragmentation; what was free would have been enough in one piece.",
        LIMIT: "Cause: a limit, or memory that came free since; the device had room.",
        ELSEWHERE: "Cause: what was free was not for such a request.",
        OUTSIDE: f"Cause: {format_bytes(row['outside_bytes'])} are held outside PyTorch.",
        UNKNOWN: "The cause cannot be told: segments, or what was free, are not known.",
        DEMAND: f"Cause: real demand; {missing} more than there was.",
    }[row["cause"]]
    return f"{asked}; {', '.join(one for one in told if one)}. {why} To try: {row['advice']}."


def _notes(result: MemoryErrors) -> tuple[str, ...]:
    """How numbers are meant."""
    said = []
    for why, what in result.errors.select("cause", "advice").unique(maintain_order=True).rows()[1:]:
        said.append(f"Other errors, {why}: {what}.")
    if result.errors.height:
        said.append(
            "What was unused is reconstructed from the history; blocks freed since are counted "
            "at the size that was asked for, rounded up to 512 bytes."
        )
        if result.errors["outside_bytes"].null_count():
            said.append(
                "A snapshot does not tell how much memory the device has; with --capacity SIZE "
                "memory outside PyTorch can be told."
            )
    return tuple(said)


def _tables(result: MemoryErrors) -> tuple[Table, ...]:
    """Errors, what to try, what was live at the first."""
    advice = result.errors.group_by("cause", "advice", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64)
    )
    first = result.errors.head(1).select("rank", "path", "device", "event")
    keys = [*first.columns, "function", "file", "line", "category"]
    lines = with_line(summed(result.alive, keys))
    at_first = lines.join(first, on=first.columns, nulls_equal=True, maintain_order="left")
    return (
        shown_table("errors", "Errors", result.errors, _ERRORS),
        Table("advice", "What to try", advice, _TO_TRY, detail=True, whole=True),
        shown_table("first", "Live at the first error", at_first, _ALIVE),
        shown_table("alive", "Live at each error", with_line(result.alive), _ALIVE, detail=True),
    )


MEMORY_OOM = Analyzer("memory_oom", OomOptions, needs, measure, combine, whole_file=True)
