"""What calls do, by their names, and what is found in them.

Found are copies and sets that hold the host up, waiting, and allocating in the loop. The first four
go by rules of ``nsys analyze``, which :data:`FINDINGS` names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.columns import sum_if_known
from traceanalyzer.analyzers.common.names import matcher
from traceanalyzer.analyzers.gpu_idle.causes import MANAGING_MEMORY
from traceanalyzer.vocabulary import SYNCHRONISING_CALLS

ASYNC_PAGEABLE = "async-pageable"
SYNC_MEMCPY = "sync-memcpy"
SYNC_PINNED = "sync-memcpy-pinned"
SYNC_MEMSET = "sync-memset"
VALUE_READ = "value-read"
SYNC_CALL = "sync-call"
ALLOC_IN_LOOP = "alloc-in-loop"

#: Synchronous copies of at most so many bytes to the device return before they are done.
_STAGED_BYTES = 64 * 1024

#: A copy of at most so many bytes from the device reads a value or a few, not a buffer.
_VALUE_BYTES = 256

_PAGEABLE = r"Pageable"
_FROM_DEVICE = r"DtoH"
_TO_DEVICE = r"HtoD"
_ON_DEVICE = r"[DA]to[DA] |PtoP"
#: Memory whose sets by a synchronous call wait; those of device memory do not.
_HOST_VISIBLE = r"Pinned|Managed"

_MOVING = r"(?i)mem(?:cpy|set)"
_LAUNCHING = r"(?i)launch(?!HostFunc)"
_ASYNCHRONOUS = r"(?i)async|enqueue|append"


@dataclass(frozen=True)
class Sorts:
    """The names of calls, by what they do.

    Attributes:
        moving: that copy or set memory.
        waiting: of those, the ones that by their name return when the copy is done.
        synchronising: that wait for the device and do nothing else.
        allocating: that get memory from the driver or give it back; those in the order of a stream
            (``cudaMallocAsync``) come from a pool, and are not among them.
        launching: that launch kernels or graphs.
    """

    moving: tuple[str, ...]
    waiting: tuple[str, ...]
    synchronising: tuple[str, ...]
    allocating: tuple[str, ...]
    launching: tuple[str, ...]


def sorted_out(names: Iterable[str]) -> Sorts:
    """Which of the names do what."""
    moves, waits, manages, launches, returns = map(
        matcher, ([_MOVING], SYNCHRONISING_CALLS, MANAGING_MEMORY, [_LAUNCHING], [_ASYNCHRONOUS])
    )
    known = sorted(names)
    prompt = {name for name in known if returns(name)}
    moving = [name for name in known if moves(name)]
    return Sorts(
        moving=tuple(moving),
        waiting=tuple(name for name in moving if name not in prompt),
        synchronising=tuple(name for name in known if waits(name) and name not in moving),
        allocating=tuple(name for name in known if manages(name) and name not in prompt),
        launching=tuple(name for name in known if launches(name)),
    )


@dataclass(frozen=True)
class Finding:
    """What is found.

    Attributes:
        rule: the rule of ``nsys analyze`` that finds the same, or None.
        what: the call, in a few words.
        one: the call, in a sentence.
        several: the calls, in a sentence.
        advice: what to do.
    """

    rule: str | None
    what: str
    one: str
    several: str
    advice: str

    def sentence(self, n: int) -> str:
        """So many of the calls, in a sentence."""
        return self.one if n == 1 else self.several


FINDINGS: Mapping[str, Finding] = {
    ASYNC_PAGEABLE: Finding(
        rule="cuda_memcpy_async",
        what="async copy, pageable memory",
        one="asynchronous copy from or to pageable memory",
        several="asynchronous copies from or to pageable memory",
        advice="pin the host memory (pin_memory=True, tensor.pin_memory()) and copy with "
        "non_blocking=True, else they run like synchronous ones",
    ),
    SYNC_MEMCPY: Finding(
        rule="cuda_memcpy_sync",
        what="synchronous copy",
        one="copy by a synchronous call",
        several="copies by synchronous calls",
        advice="copy asynchronously on a stream, from or to pinned memory",
    ),
    SYNC_PINNED: Finding(
        rule="cuda_memcpy_sync",
        what="synchronous copy, pinned",
        one="copy of pinned or managed memory by a synchronous call",
        several="copies of pinned or managed memory by synchronous calls",
        advice="copy asynchronously on a stream (non_blocking=True); managed memory can be "
        "prefetched instead (cudaMemPrefetchAsync)",
    ),
    SYNC_MEMSET: Finding(
        rule="cuda_memset_sync",
        what="synchronous set, host memory",
        one="set of pinned or managed memory by a synchronous call",
        several="sets of pinned or managed memory by synchronous calls",
        advice="set the memory asynchronously on a stream",
    ),
    VALUE_READ: Finding(
        rule=None,
        what="value read from the device",
        one=f"blocking read of a value (at most {_VALUE_BYTES} B) from the device",
        several=f"blocking reads of values (at most {_VALUE_BYTES} B each) from the device",
        advice="read values less often, or several at once, and keep them on the device until "
        "then; pinned memory does not help. Where the device is busy meanwhile, nothing is lost",
    ),
    SYNC_CALL: Finding(
        rule="cuda_api_sync",
        what="waits for the device",
        one="call that waits for the device",
        several="calls that wait for the device",
        advice="traceanalyzer launches tells where they are made and how long the device is idle "
        "for them",
    ),
    ALLOC_IN_LOOP: Finding(
        rule=None,
        what="allocates between launches",
        one="call that allocates or frees memory between the first and the last launch",
        several="calls that allocate or free memory between the first and the last launch",
        advice="allocate before the loop and reuse the memory, or take it from a pool (stream-"
        "ordered allocation, the caching allocator of the framework)",
    ),
}

ID = pl.Enum(tuple(FINDINGS))


def of_moves(moves: pl.DataFrame, sorts: Sorts) -> pl.Series:
    """What is found in calls that copied or set memory; null for those that hold nothing up.

    Args:
        moves: call (its name), kind, name (of the copy or set) and moved_bytes.
        sorts: what calls do.
    """
    name = pl.col("name").cast(pl.String)
    waits = pl.col("call").cast(pl.String).is_in(sorts.waiting)
    copies = pl.col("kind") == "gpu_memcpy"
    staged = name.str.contains(_TO_DEVICE) & (pl.col("moved_bytes") <= _STAGED_BYTES)
    blocks = copies & ~staged.fill_null(value=False) & ~name.str.contains(_ON_DEVICE)
    blocking = (waits & blocks) | (~waits & name.str.contains(_PAGEABLE))
    is_value = name.str.contains(_FROM_DEVICE) & (pl.col("moved_bytes") <= _VALUE_BYTES)
    found = (
        pl.when(copies & blocking & is_value)
        .then(pl.lit(VALUE_READ))
        .when(copies & ~waits & name.str.contains(_PAGEABLE))
        .then(pl.lit(ASYNC_PAGEABLE))
        .when(waits & blocks & name.str.contains(_HOST_VISIBLE))
        .then(pl.lit(SYNC_PINNED))
        .when(waits & blocks)
        .then(pl.lit(SYNC_MEMCPY))
        .when(waits & ~copies & name.str.contains(_HOST_VISIBLE))
        .then(pl.lit(SYNC_MEMSET))
    )
    return moves.select(found.cast(ID).alias("finding")).to_series()


def findings_of(
    calls: pl.DataFrame, moves: pl.DataFrame, allocations: pl.DataFrame
) -> pl.DataFrame:
    """One row a finding that there is, the one that costs the host most first.

    Args:
        calls: synchronises, n and total_ns of each name.
        moves: finding, n, moved_bytes, host_ns, copy_ns and waited of calls that copied or set
            memory.
        allocations: loop_n and loop_ns of allocating functions.

    Returns:
        finding, rule, what, n, host_ns, moved_bytes and copy_ns (of the copies and sets), waited
        (how many calls returned when the copy was done), advice.
    """
    moved = (
        moves.drop_nulls("finding")
        .group_by("finding")
        .agg(pl.col("n", "host_ns", "copy_ns", "waited").sum(), sum_if_known("moved_bytes"))
    )
    waiting = calls.filter("synchronises").select(
        pl.lit(SYNC_CALL, ID).alias("finding"), pl.col("n").sum(), host_ns=pl.col("total_ns").sum()
    )
    allocating = allocations.select(
        pl.lit(ALLOC_IN_LOOP, ID).alias("finding"),
        n=pl.col("loop_n").sum(),
        host_ns=pl.col("loop_ns").sum(),
    )
    rows = pl.concat([moved, waiting, allocating], how="diagonal").filter(pl.col("n") > 0)
    names = rows["finding"].cast(pl.String).to_list()
    texts = {
        text: pl.Series([getattr(FINDINGS[name], text) for name in names], dtype=pl.String)
        for text in ("rule", "what", "advice")
    }
    told = rows.with_columns(**texts).select(
        "finding", "rule", "what", "n", "host_ns", "moved_bytes", "copy_ns", "waited", "advice"
    )
    return told.sort("host_ns", "finding", descending=[True, False])
