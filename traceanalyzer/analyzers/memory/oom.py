"""Why memory ran out: one row an out-of-memory error, with what could have served the request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.memory.ground import Ground, Window, ground
from traceanalyzer.analyzers.memory.ledger import Ledger
from traceanalyzer.analyzers.memory.peak import alive
from traceanalyzer.analyzers.memory.regions import ROUND, SMALL_REQUEST, SMALL_SEGMENT, regions
from traceanalyzer.trace import Trace

CAUSES: Final = ("fragmentation", "outside PyTorch", "real demand", "another pool or stream")
CAUSE = pl.Enum(CAUSES)

#: What the allocator asks of the driver: 2 MiB, 20 MiB up to 10 MiB, then multiples of 2 MiB.
_LARGE_SEGMENT: Final = 20 << 20
_LARGE_REQUEST: Final = 10 << 20
#: Memory that others hold is worth naming from this share of the device on.
_OUTSIDE_FRAC: Final = 0.1
#: Blocks larger than this that were split are what ``max_split_size_mb`` would keep whole.
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
    "largest_free_bytes": pl.Int64,
    "outside_bytes": pl.Int64,
    "missing_bytes": pl.Int64,
    "cause": CAUSE,
    "advice": pl.String,
    "function": pl.String,
    "file": pl.String,
    "line": pl.Int32,
}


@dataclass(frozen=True)
class Part:
    """One rank's errors.

    Attributes:
        errors: a row an error.
        alive: what was live at each, by stack, with ``event``.
        settings: whether anything is known of the allocator's settings.
    """

    errors: pl.DataFrame
    alive: pl.DataFrame
    devices: pl.DataFrame


def extract(
    trace: Trace,
    library_names: Sequence[str] = (),
    capacity_bytes: int | None = None,
    window: Window = (None, None),
) -> Part:
    """The out-of-memory errors of a trace of one rank.

    Args:
        trace: read with :data:`~.operations.NEEDS`.
        library_names: libraries whose frames name an allocation.
        capacity_bytes: memory of the device; a snapshot does not tell it.
        window: (since, until) in ns after the first event.

    Raises:
        MissingData: it tells nothing of memory.
    """
    own = ground(trace, library_names, window=window)
    told = dict(trace.memory.select("event", "free_bytes").drop_nulls().rows())
    rows: list[dict[str, Any]] = []
    held: list[pl.DataFrame] = []
    for of in own.ledgers:
        for row, live in _errors(of, own, told, capacity_bytes):
            rows.append(row)
            held.append(live)
    nothing = alive(own.ledgers[0], own, 0).clear().with_columns(event=pl.lit(None, pl.Int64))
    places = [(own.rank, own.path, of.device, of.rows.height) for of in own.ledgers]
    return Part(
        errors=pl.DataFrame(rows, schema=_SCHEMA),
        alive=pl.concat([nothing, *held]).drop("row"),
        devices=pl.DataFrame(
            places,
            schema={"rank": pl.Int32, "path": pl.String, "device": pl.Int32, "events": pl.Int64},
            orient="row",
        ),
    )


def _errors(
    of: Ledger, own: Ground, told: dict[int, int], capacity: int | None
) -> Iterator[tuple[dict[str, Any], pl.DataFrame]]:
    failed = of.rows.with_row_index("at").filter(pl.col("kind").cast(pl.String) == "oom")
    first, last = of.between(*own.window)
    for row in failed.iter_rows(named=True):
        position = int(row["at"]) + 1
        if not first <= position <= last:
            continue
        request = int(row["bytes"] or 0)
        held = regions(of, *own.of_device(of.device), position)
        reserved = None if of.reserved is None else int(of.reserved[position])
        free = told.get(row["event"])
        known = {
            "request_bytes": request,
            "device_free_bytes": free,
            "reserved_bytes": reserved,
            "allocated_bytes": int(of.live[position]),
            "unused_bytes": None if held is None else held.free_bytes,
            "largest_free_bytes": None if held is None else held.largest_free(request),
            "outside_bytes": _outside(capacity, reserved, free),
        }
        cause, missing = _cause(known, capacity)
        line = own.lines.of(pl.Series([row["stack"]], dtype=pl.UInt32))
        place = {"rank": own.rank, "path": own.path, "device": of.device, "event": row["at"]}
        yield (
            {
                **place,
                "time_ns": row["ts"],
                **known,
                "missing_bytes": missing,
                "cause": cause,
                "advice": _advice(cause, own, held is not None and _splits(own, of)),
                **(line.select("function", "file", "line").row(0, named=True)),
            },
            alive(of, own, position).with_columns(event=pl.lit(row["at"], pl.Int64)),
        )


def _outside(capacity: int | None, reserved: int | None, free: int | None) -> int | None:
    """What neither PyTorch's allocator holds nor is free."""
    if capacity is None or reserved is None or free is None:
        return None
    return max(capacity - reserved - free, 0)


def segment_size(request: int) -> int:
    """What the allocator asks of the driver for a request that no cached block serves."""
    size = -(-request // ROUND) * ROUND
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    return _LARGE_SEGMENT if size < _LARGE_REQUEST else -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


def _cause(known: dict[str, Any], capacity: int | None) -> tuple[str, int]:
    """Why a request could not be served, and how many bytes were missing at least.

    ``missing`` is what the device would have had to have free beyond what it had, if all that lies
    unused in reserved memory could have been used.
    """
    request, unused = known["request_bytes"], known["unused_bytes"] or 0
    free, largest = known["device_free_bytes"] or 0, known["largest_free_bytes"] or 0
    missing = max(request - unused - free, 0)
    if largest >= request:
        return "another pool or stream", 0
    outside = known["outside_bytes"]
    if not missing:
        return "fragmentation", 0
    if outside is not None and capacity and outside >= max(_OUTSIDE_FRAC * capacity, missing):
        return "outside PyTorch", missing
    return "real demand", missing


def _splits(own: Ground, of: Ledger) -> bool:
    """Whether free memory lies in large segments that are in use in part."""
    segments, _ = own.of_device(of.device)
    return bool((segments["total_bytes"] >= _SPLIT_BYTES).any())


def _advice(cause: str, own: Ground, splits: bool) -> str:
    expandable = own.settings.get("expandable_segments") is True
    limited = isinstance(size := own.settings.get("max_split_size"), int) and size > 0
    if cause == "fragmentation":
        if not expandable:
            more = "" if limited or not splits else ", or max_split_size_mb:200"
            return (
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets segments grow in place, so "
                f"that free pieces add up{more}"
            )
        return (
            "segments are expandable already: what is unused is of another pool or stream, or too "
            "finely divided; garbage_collection_threshold:0.8 gives it back earlier"
        )
    if cause == "another pool or stream":
        return (
            "a free block was large enough, but of another stream, or of a private pool of CUDA "
            "graphs: allocate on one stream, or share the pool"
        )
    if cause == "outside PyTorch":
        return (
            "other processes, NCCL, CUDA contexts and libraries hold it: look at nvidia-smi; "
            "NCCL_BUFFSIZE and fewer process groups make NCCL smaller"
        )
    return (
        "no setting of the allocator helps: a smaller batch, activation checkpointing, sharding or "
        "offloading does"
    )
