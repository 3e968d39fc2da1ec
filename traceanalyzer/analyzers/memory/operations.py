"""What was done to the memory of each device, whichever profiler noted it.

Snapshots of PyTorch's allocator have a history of it; ``torch.profiler`` notes the allocator's
allocations as ``[memory]`` instants, ``nsys`` what the process asks of the driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import ALLOCATOR_KINDS

Noted = Literal["snapshot", "instants", "calls"]

#: Kinds of allocations and frees.
ALLOCATIONS = frozenset((*ALLOCATOR_KINDS, "cpu_instant_event"))

#: These, the ranges they lie in, and the code that was running.
NEEDS = Needs(
    ALLOCATIONS | {"cpu_op", "nvtx", "python_function", "user_annotation"},
    unused=("category", "correlation", "external_id"),
    samples=True,
)

_SNAPSHOT: Final = "memory-snapshot"
_CPU: Final = 0
#: Sorts of memory that nsys notes beside a device's own.
_HOST_MEMORY: Final = ("Pinned", "Pageable")
#: Memory is free when a free is completed; where ``skip_actions`` left that out, when it was asked.
_CLOSING: Final = ("free_completed", "free_requested")
_GROWING: Final = ("segment_alloc", "segment_map")
_SHRINKING: Final = ("segment_free", "segment_unmap")


@dataclass(frozen=True)
class Operations:
    """The history of one device, in order.

    Attributes:
        device: its ordinal, or None.
        rows: a row an event: ``event`` (row of ``events``), ``ts`` (after the file's first event),
            ``kind``, ``stream``, ``address``, ``bytes`` (never negative), ``stack``, ``change`` (1:
            from here on there is one allocation more, -1: one less, else 0), ``segment_change``
            (the same of segments), and of instants ``allocated_bytes`` and ``reserved_bytes``
            after the event.
        noted: by whom.
    """

    device: int | None
    rows: pl.DataFrame
    noted: Noted


def operations(trace: Trace) -> list[Operations]:
    """The history of each device of a trace of one rank, by device.

    Raises:
        MissingData: nothing about memory was recorded.
        OptionError: the trace is several files', and tells no ranks.
    """
    if len(trace.sources) > 1:
        paths = ", ".join(meta.path for meta in trace.sources[:2])
        raise OptionError(f"{paths}: joined without ranks; give each its rank, or one at a time")
    noted = _noted(trace)
    rows = _rows(trace, noted)
    found = list(_by_device(trace, rows, noted))
    if not found:
        hint = record_hint(trace.meta, "cpu_instant_event")
        raise MissingData(f"{trace.meta.path}: no allocations on a device were recorded; {hint}")
    return found


def _noted(trace: Trace) -> Noted:
    if trace.meta.format == _SNAPSHOT or trace.segments.height:
        return "snapshot"
    return "instants" if (trace.events["kind"] == "cpu_instant_event").any() else "calls"


def _rows(trace: Trace, noted: Noted) -> pl.DataFrame:
    kinds = ("cpu_instant_event",) if noted == "instants" else ALLOCATOR_KINDS
    beside = trace.memory_totals.select("event", "device_type", "allocated_bytes", "reserved_bytes")
    rows = (
        trace.events.select(
            pl.col("ts") - origin(trace),
            *("kind", "name", "device", "stream", "address", "bytes", "stack"),
        )
        .with_row_index("event")
        .filter(pl.col("kind").is_in(kinds))
        .join(beside, on="event", how="left", maintain_order="left")
    )
    if noted == "snapshot":
        kind = pl.col("kind").cast(pl.String)
        recorded = set(rows["kind"].unique())
        closing = [name for name in _CLOSING if name in recorded][:1]
        opens, closes = kind == "alloc", kind.is_in(closing)
        grows, shrinks = kind.is_in(_GROWING), kind.is_in(_SHRINKING)
    else:
        host = pl.col("name").cast(pl.String).is_in(_HOST_MEMORY).fill_null(value=False)
        sized = (
            pl.col("address").is_not_null() & ~host & (pl.col("device_type").fill_null(1) != _CPU)
        )
        rows = rows.filter(sized)
        opens, closes = pl.col("bytes") > 0, pl.col("bytes") < 0
        grows = shrinks = pl.lit(value=False)
    return rows.with_columns(
        pl.col("bytes").abs(),
        change=_sign(opens, closes),
        segment_change=_sign(grows, shrinks),
    )


def _sign(up: pl.Expr, down: pl.Expr) -> pl.Expr:
    chosen = pl.when(up).then(1).when(down).then(-1).otherwise(0)
    return chosen.cast(pl.Int8)


def _by_device(trace: Trace, rows: pl.DataFrame, noted: Noted) -> Iterator[Operations]:
    devices = pl.concat([rows["device"], trace.segments["device"]]).unique()
    for device in devices.sort(nulls_last=True):
        own = rows.filter(pl.col("device").eq_missing(pl.lit(device, pl.Int32)))
        yield Operations(device, own.drop("name", "device", "device_type"), noted)


def origin(trace: Trace) -> int:
    """The time that counts as 0: that of the file's first event."""
    told = trace.meta.start_ns
    first = trace.events["ts"].min() if told is None else told
    return first if isinstance(first, int) else 0
