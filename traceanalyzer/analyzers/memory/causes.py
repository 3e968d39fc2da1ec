"""Why a request could not be served, and what to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from traceanalyzer.analyzers.memory.regions import ROUND, SMALL_REQUEST, SMALL_SEGMENT
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
    if size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if expandable:
        return -(-size // _LARGE_SEGMENT) * _LARGE_SEGMENT
    return _LARGE_SEGMENT if size < _LARGE_REQUEST else -(-size // SMALL_SEGMENT) * SMALL_SEGMENT


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
