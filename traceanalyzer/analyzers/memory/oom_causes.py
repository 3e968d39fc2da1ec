"""Why a request for memory failed, and what to try."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.memory import regions
from traceanalyzer.analyzers.memory.rank_memory import RankMemory
from traceanalyzer.units import format_bytes

FRAGMENTATION = "fragmentation"
LIMIT = "limit"
ELSEWHERE = "another pool or stream"
OUTSIDE = "outside PyTorch"
DEMAND = "real demand"
UNKNOWN = "not known"
CAUSE = pl.Enum((FRAGMENTATION, LIMIT, ELSEWHERE, OUTSIDE, DEMAND, UNKNOWN))

#: What the allocator asks of the driver: 2 MiB, 20 MiB up to 10 MiB, then multiples of 2 MiB.
_LARGE_SEGMENT = 20 << 20
_LARGE_REQUEST = 10 << 20
#: Memory that others hold is worth naming from this share of the device on.
_OUTSIDE_FRAC = 0.1
#: A request of so many times all that the device has is no matter of memory.
_ABSURD = 16

#: Segments from here on are those whose division ``max_split_size_mb`` would prevent.
SPLIT_BYTES = 200 << 20


@dataclass(frozen=True)
class Situation:
    """What there was when a request failed.

    What is not known is 0.

    Attributes:
        request: bytes asked for.
        device_free: free on the device.
        reserved: held by the allocator.
        allocated: of it in use.
        unused: free of it.
        usable: free of it in segments that serve such requests: of the size's class, the stream,
            and no private pool.
        largest_free: the largest run of those.
        pending: live only because another stream may still use it.
        outside: neither held by the allocator nor free; 0 where the capacity is not known.
        expandable: segments are expandable.
        limited: large blocks are not split.
        divided: there are large segments that are in use in part.
    """

    request: int = 0
    device_free: int = 0
    reserved: int = 0
    allocated: int = 0
    unused: int = 0
    usable: int = 0
    largest_free: int = 0
    pending: int = 0
    outside: int = 0
    expandable: bool = False
    limited: bool = False
    divided: bool = False

    @property
    def missing(self) -> int:
        """What all free memory together falls short of the request."""
        return max(self.request - self.unused - self.device_free, 0)

    @property
    def capacity(self) -> int:
        """Memory of the device, less what is held outside where that is not known."""
        return self.reserved + self.device_free + self.outside


def situation(known: dict[str, int | None], own: RankMemory, *, divided: bool) -> Situation:
    """The situation of a row of errors."""
    split = own.settings.get("max_split_size")
    return Situation(
        **{name.removesuffix("_bytes"): size or 0 for name, size in known.items()},
        expandable=own.expandable,
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
    if at.largest_free < at.request <= at.usable + at.device_free and at.usable:
        return FRAGMENTATION
    if at.unused and not at.missing:
        return ELSEWHERE
    if at.outside and at.outside >= max(_OUTSIDE_FRAC * at.capacity, at.missing):
        return OUTSIDE
    return DEMAND


def sentence(row: Mapping[str, Any]) -> str:
    """The cause of a row of errors."""
    match row["cause"]:
        case "fragmentation":
            return "Cause: fragmentation; what was free would have been enough in one piece."
        case "limit":
            return "Cause: a limit, or memory that came free since; the device had room."
        case "another pool or stream":
            return "Cause: what was free was not for such a request."
        case "outside PyTorch":
            return f"Cause: {format_bytes(row['outside_bytes'])} are held outside PyTorch."
        case "real demand":
            missing = format_bytes(row["missing_bytes"])
            return f"Cause: real demand; {missing} more than there was."
    return "The cause cannot be told: segments, or what was free, are not known."


def segment_size(request: int, *, expandable: bool) -> int:
    """What the allocator asks of the driver for a request that no cached block serves."""
    size = -(-request // regions.ROUND) * regions.ROUND
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
    if at.request > _ABSURD * at.capacity:
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
    return _ADVICE[why]


_ADVICE = {
    UNKNOWN: "take the snapshot with torch.cuda.memory._dump_snapshot, which tells what was free",
    LIMIT: "the device had room: look for torch.cuda.set_per_process_memory_fraction, or for "
    "memory that another process gave back since",
    ELSEWHERE: "what is free belongs to other streams, to private pools of CUDA graphs or to the "
    "other class of sizes: allocate on one stream, share the pool, or call "
    "torch.cuda.empty_cache() between phases",
    OUTSIDE: "other processes, NCCL, CUDA contexts and libraries hold it: look at nvidia-smi; "
    "NCCL_BUFFSIZE and fewer process groups make NCCL smaller",
    DEMAND: "no setting of the allocator helps: a smaller batch, activation checkpointing, "
    "sharding or offloading does",
}
