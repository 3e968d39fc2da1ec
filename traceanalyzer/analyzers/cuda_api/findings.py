"""Classes of calls by name, and findings in them.

Findings are copies and memsets that block the host, waiting, and allocating in the loop. The first
four follow rules of ``nsys analyze``, which :data:`FINDINGS` names.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.common.columns import sum_if_known
from traceanalyzer.analyzers.common.names import distinct, matcher, named
from traceanalyzer.analyzers.gpu_idle.causes import MANAGING_MEMORY
from traceanalyzer.vocabulary import SYNCHRONISING_CALLS

ASYNC_PAGEABLE = "async-pageable"
SYNC_MEMCPY = "sync-memcpy"
SYNC_PINNED = "sync-memcpy-pinned"
SYNC_MEMSET = "sync-memset"
VALUE_READ = "value-read"
SYNC_CALL = "sync-call"
ALLOC_IN_LOOP = "alloc-in-loop"

#: Synchronous copies to the device of at most this many bytes return before they are done.
_STAGED_BYTES = 64 * 1024

#: A copy from the device of at most this many bytes reads single values, not a buffer.
_VALUE_BYTES = 256

_PAGEABLE = r"Pageable"
_FROM_DEVICE = r"DtoH"
_TO_DEVICE = r"HtoD"
_ON_DEVICE = r"[DA]to[DA] |PtoP"
#: Memory for which a synchronous memset waits; memsets of device memory do not.
_HOST_VISIBLE = r"Pinned|Managed"

_MOVING = r"(?i)mem(?:cpy|set)"
_LAUNCHING = r"(?i)launch(?!HostFunc)"
_ASYNCHRONOUS = r"(?i)async|enqueue|append"


@dataclass(frozen=True)
class Sorts:
    """Names of calls by what they do.

    Attributes:
        moving: calls that copy or set memory.
        waiting: those of ``moving`` that by name return after the copy.
        synchronising: calls that only wait for the device.
        allocating: calls that allocate or free driver memory; stream-ordered calls
            (``cudaMallocAsync``) use a pool and are not included.
        launching: calls that launch kernels or graphs.
    """

    moving: tuple[str, ...]
    waiting: tuple[str, ...]
    synchronising: tuple[str, ...]
    allocating: tuple[str, ...]
    launching: tuple[str, ...]


def sorted_out(names: Iterable[str]) -> Sorts:
    """Classify names of calls."""
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
    """Texts of a finding.

    Attributes:
        rule: the corresponding rule of ``nsys analyze``, or None.
        what: short label of the call.
        one: subject of a sentence, singular.
        several: subject of a sentence, plural.
        advice: what to do.
    """

    rule: str | None
    what: str
    one: str
    several: str
    advice: str

    def sentence(self, n: int) -> str:
        """Return the subject of a sentence on ``n`` calls."""
        return self.one if n == 1 else self.several


FINDINGS: Mapping[str, Finding] = {
    ASYNC_PAGEABLE: Finding(
        rule="cuda_memcpy_async",
        what="async copy, pageable memory",
        one="asynchronous copy from or to pageable memory",
        several="asynchronous copies from or to pageable memory",
        advice="pin the host memory (pin_memory=True, tensor.pin_memory()) and copy with "
        "non_blocking=True; otherwise they run like synchronous copies",
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
        what="synchronous memset, host memory",
        one="memset of pinned or managed memory by a synchronous call",
        several="memsets of pinned or managed memory by synchronous calls",
        advice="set the memory asynchronously on a stream",
    ),
    VALUE_READ: Finding(
        rule=None,
        what="value read from the device",
        one=f"blocking read of a value (at most {_VALUE_BYTES} B) from the device",
        several=f"blocking reads of values (at most {_VALUE_BYTES} B each) from the device",
        advice="read values less often or several at once, and keep them on the device until "
        "then; pinned memory does not help. No time is lost if the device is busy meanwhile",
    ),
    SYNC_CALL: Finding(
        rule="cuda_api_sync",
        what="waits for the device",
        one="call that waits for the device",
        several="calls that wait for the device",
        advice="traceanalyzer launches shows where they are called and how long the device is idle",
    ),
    ALLOC_IN_LOOP: Finding(
        rule=None,
        what="allocates between launches",
        one="call that allocates or frees memory between the first and the last launch",
        several="calls that allocate or free memory between the first and the last launch",
        advice="allocate before the loop and reuse the memory, or use a pool (stream-ordered "
        "allocation, the caching allocator of the framework)",
    ),
}

ID = pl.Enum(tuple(FINDINGS))


def of_moves(moves: pl.DataFrame, sorts: Sorts) -> pl.Series:
    """Return the finding of calls that copied or set memory; null for calls that do not block.

    Args:
        moves: call (its name), kind, name (of the copy or memset) and moved_bytes.
        sorts: the names of calls by what they do.
    """
    names = distinct(moves)
    to_device, from_device, on_device, pageable, visible = (
        named(names, [pattern])
        for pattern in (_TO_DEVICE, _FROM_DEVICE, _ON_DEVICE, _PAGEABLE, _HOST_VISIBLE)
    )
    waits = pl.col("call").is_in(sorts.waiting)
    copies = (pl.col("kind") == "gpu_memcpy") & pl.col("name").is_not_null()
    staged = to_device & (pl.col("moved_bytes") <= _STAGED_BYTES)
    blocks = copies & ~staged.fill_null(value=False) & ~on_device
    blocking = (waits & blocks) | (~waits & pageable)
    is_value = from_device & (pl.col("moved_bytes") <= _VALUE_BYTES)
    finding = (
        pl.when(copies & blocking & is_value)
        .then(pl.lit(VALUE_READ))
        .when(copies & ~waits & pageable)
        .then(pl.lit(ASYNC_PAGEABLE))
        .when(waits & blocks & visible)
        .then(pl.lit(SYNC_PINNED))
        .when(waits & blocks)
        .then(pl.lit(SYNC_MEMCPY))
        .when(waits & ~copies & visible)
        .then(pl.lit(SYNC_MEMSET))
    )
    return moves.select(finding.cast(ID).alias("finding")).to_series()


def findings_of(
    calls: pl.DataFrame, moves: pl.DataFrame, allocations: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per finding that occurs, the most host time first.

    Args:
        calls: synchronises, n and total_ns of each name.
        moves: finding, n, moved_bytes, host_ns, copy_ns and waited of calls that copied or set
            memory.
        allocations: loop_n and loop_ns of allocating functions.

    Returns:
        finding, rule, what, n, host_ns, moved_bytes and copy_ns (of the copies and memsets), waited
        (number of calls that returned after the copy), advice.
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
    labelled = rows.with_columns(**texts)[
        ["finding", "rule", "what", "n", "host_ns", "moved_bytes", "copy_ns", "waited", "advice"]
    ]
    return labelled.sort("host_ns", "finding", descending=[True, False])
