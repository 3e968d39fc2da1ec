"""The memory history of each device, and the allocations in it.

Snapshots of PyTorch's allocator contain its history; ``torch.profiler`` records allocations as
``[memory]`` instants, ``nsys`` records the allocations that the process makes from the driver.

A position is a moment between events: 0 before the first, k after the k-th. An allocation is live
at the positions from its ``start`` up to, but not including, its ``end``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Needs
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace, is_truncated, record_hint
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, MEMORY_SNAPSHOT

Source = Literal["snapshot", "instants", "calls"]

#: Event kinds of allocations and frees.
ALLOCATIONS = frozenset((*ALLOCATOR_KINDS, "cpu_instant_event"))

#: Allocations, the ranges around them, and the code that was running.
NEEDS = Needs(
    ALLOCATIONS | {"cpu_op", "nvtx", "python_function", "user_annotation"},
    unused=("correlation", "external_id"),
    samples=True,
)

#: Where an allocation is known from: its event, only its free, or only the blocks at the end.
ORIGIN = pl.Enum(("recorded", "freed", "block"))
ACTIVE = ("active_allocated", "active_pending_free")

_CPU = 0
#: Kinds of host memory that nsys records besides device memory.
_HOST_MEMORY = ("Pinned", "Pageable")
#: Memory is free when its free completes, or, if ``skip_actions`` drops that event, on request.
_CLOSING = ("free_completed", "free_requested")
_GROWING = ("segment_alloc", "segment_map")
_SHRINKING = ("segment_free", "segment_unmap")


@dataclass(frozen=True)
class History:
    """The memory events of one device, in order.

    Attributes:
        device: device ordinal, or None.
        rows: one row per event: ``event`` (row of ``events``), ``ts`` (ns after the first event of
            the file), ``kind``, ``category`` (of a snapshot: the user's text), ``stream``,
            ``address``, ``bytes`` (never negative), ``stack``, ``change`` (of the number of live
            allocations: 1, -1 or 0), ``segment_change`` (of the number of segments), and for
            instants ``allocated_bytes`` and ``reserved_bytes`` after the event.
        source: what recorded the events.
    """

    device: int | None
    rows: pl.DataFrame
    source: Source


@dataclass(frozen=True)
class Quality:
    """Consistency of a history with the blocks at its end.

    Attributes:
        before_n: allocations made before the history starts.
        before_bytes: total size of these allocations.
        reused_n: allocations at an address that is already in use.
        double_free_n: frees of a free address; ignored.
        resized_n: allocations with a different size at their free, or in the snapshot's blocks.
        never_freed_n: allocations that are neither freed nor in a block.
        difference_bytes: live bytes at the end minus bytes of active blocks; None without blocks.
    """

    before_n: int
    before_bytes: int
    reused_n: int
    double_free_n: int
    resized_n: int
    never_freed_n: int
    difference_bytes: int | None


@dataclass(frozen=True)
class Ledger(History):
    """The history of one device and its allocations.

    Attributes:
        allocations: one row per allocation: ``start``, ``end`` (positions), ``bytes``, ``address``,
            ``stack`` (of the allocation, or of the free if ``origin`` is ``freed``), ``freed_by``
            (stack of the free, or null), ``origin``.
        live: live bytes at each position.
        reserved: reserved bytes at each position, or None; also if the segments at the end are
            smaller than what is live in them.
        quality: consistency of the history with the blocks at its end.
    """

    allocations: pl.DataFrame
    live: Ints
    reserved: Ints | None
    quality: Quality

    @property
    def positions(self) -> int:
        """Number of positions: one more than events."""
        return self.live.size

    def alive(self, position: int) -> pl.DataFrame:
        """Return the allocations that are live at a position."""
        return self.allocations.filter(pl.col("start") <= position, pl.col("end") > position)

    def between(self, since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
        """Return the first and last position of a time window; all positions without bounds."""
        time = self.rows["ts"]
        first = 0 if since_ns is None else int((time < since_ns).sum())
        last = self.positions - 1 if until_ns is None else int((time < until_ns).sum())
        return min(first, last), last

    def time_ns(self, position: int) -> int | None:
        """Return the start of a position in ns; None before the first event or without times."""
        time: int | None = self.times(pl.Series([position])).item()
        return time

    def times(self, positions: pl.Series, *, clamp: bool = False) -> pl.Series:
        """Return the start of each position in ns; null before the first event, after the last.

        Args:
            positions: the positions.
            clamp: use the time of the nearest event instead of null.
        """
        n = self.rows.height
        if not n:
            return pl.repeat(None, positions.len(), dtype=pl.Int64, eager=True)
        time = self.rows["ts"].gather((positions - 1).clip(0, n - 1))
        return time if clamp else time.set(~positions.is_between(1, n), None)


def ledgers(trace: Trace) -> list[Ledger]:
    """Return the ledger of each device of a trace of one rank.

    Raises:
        MissingData: no memory events were recorded.
        OptionError: the trace was joined from several files without ranks.
    """
    return trace.once("ledgers", lambda: _ledgers(trace))


def _ledgers(trace: Trace) -> list[Ledger]:
    result = []
    for history in histories(trace):
        segments, blocks = of_device(trace.segments, trace.blocks, history.device)
        # a truncated file may lack segments
        known = history.source == "snapshot" and (segments.height > 0 or not is_truncated(trace))
        reserved = int(segments["total_bytes"].sum()) if known else None
        result.append(ledger(history, blocks, reserved))
    return result


def of_device(
    segments: pl.DataFrame, blocks: pl.DataFrame, device: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the segments of a device and the blocks in them."""
    segments = segments.filter(pl.col("device").eq_missing(pl.lit(device, pl.Int32)))
    return segments, blocks.filter(pl.col("segment").is_in(segments["id"].implode()))


# --- histories -------------------------------------------------------------------------------


_ONLY_CPU = (
    "only allocations of CPU memory were recorded, which are not analysed; operators shows which "
    "operators allocate it. For the memory of a GPU, {hint}"
)


def histories(trace: Trace) -> list[History]:
    """Return the history of each device of a trace of one rank, sorted by device.

    Raises:
        MissingData: no memory events were recorded.
        OptionError: the trace was joined from several files without ranks.
    """
    if len(trace.sources) > 1:
        paths = ", ".join(meta.path for meta in trace.sources[:2])
        raise OptionError(
            f"{paths}: joined without ranks. Assign a rank to each file, or analyze one at a time."
        )
    source = _source(trace)
    recorded = source == "snapshot" or not trace.kinds.isdisjoint(_kinds(source))
    result = list(_by_device(trace, _rows(trace, source), source)) if recorded else []
    if not result:
        hint = record_hint(trace.meta, "cpu_instant_event")
        if recorded:
            raise MissingData(f"{trace.meta.path}: {_ONLY_CPU.format(hint=hint)}")
        raise MissingData(f"{trace.meta.path}: no allocations on a device were recorded; {hint}")
    return result


def _source(trace: Trace) -> Source:
    if trace.meta.format == MEMORY_SNAPSHOT or trace.segments.height:
        return "snapshot"
    return "instants" if "cpu_instant_event" in trace.kinds else "calls"


def _kinds(source: Source) -> tuple[str, ...]:
    return ("cpu_instant_event",) if source == "instants" else ALLOCATOR_KINDS


def _rows(trace: Trace, source: Source) -> pl.DataFrame:
    totals = trace.memory_totals.select("event", "device_type", "allocated_bytes", "reserved_bytes")
    rows = (
        trace.events.select(
            pl.col("ts") - origin(trace),
            *("kind", "category", "name", "device", "stream", "address", "bytes", "stack"),
        )
        .with_row_index("event")
        .filter(pl.col("kind").is_in(_kinds(source)))
        .join(totals, on="event", how="left", maintain_order="left")
    )
    if source == "snapshot":
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
        pl.col("bytes").abs(), change=_sign(opens, closes), segment_change=_sign(grows, shrinks)
    )


def _sign(up: pl.Expr, down: pl.Expr) -> pl.Expr:
    return pl.when(up).then(1).when(down).then(-1).otherwise(0).cast(pl.Int8)


def _by_device(trace: Trace, rows: pl.DataFrame, source: Source) -> Iterator[History]:
    devices = pl.concat([rows["device"], trace.segments["device"]]).unique()
    for device in devices.sort(nulls_last=True):
        device_rows = rows.filter(pl.col("device").eq_missing(pl.lit(device, pl.Int32)))
        yield History(device, device_rows.drop("name", "device", "device_type"), source)


def origin(trace: Trace) -> int:
    """Return the time that counts as 0: that of the first event of the file."""
    start = trace.meta.start_ns
    first = trace.events["ts"].min() if start is None else start
    return first if isinstance(first, int) else 0


# --- allocations -----------------------------------------------------------------------------


def ledger(history: History, blocks: pl.DataFrame, reserved_bytes: int | None) -> Ledger:
    """Return the allocations of one device.

    An allocation starts at its event and ends when its address is freed. Memory that is freed, or
    is in an active block of the snapshot, without a recorded allocation was allocated before the
    history starts.

    Args:
        history: the events of the device.
        blocks: blocks of the device at the end, with ``address``, ``size_bytes``,
            ``requested_bytes``, ``state``, ``stack``; may be empty.
        reserved_bytes: total size of the segments of the device at the end; None if not known.
    """
    rows = history.rows
    n = rows.height
    pairs, double_frees = _pairs(rows)
    active = blocks.filter(pl.col("state").cast(pl.String).is_in(ACTIVE)).select(
        "address", "stack", bytes=pl.coalesce("requested_bytes", "size_bytes")
    )
    still_live = pairs.filter(pl.col("end") > n)
    unmatched = active.join(
        still_live.select("address"), on="address", how="anti", maintain_order="left"
    )
    allocations = pl.concat([pairs.drop("resized", "reused"), _always_live(unmatched, n)]).sort(
        "start", "end", "address", maintain_order=True
    )
    live = running_bytes(allocations, n)
    unaccounted = _unaccounted(rows, live)
    if unaccounted:
        live = live + unaccounted
        # only their total is known
        anonymous = unmatched.clear(1).with_columns(bytes=pl.lit(unaccounted, pl.Int64))
        allocations = pl.concat([_always_live(anonymous, n), allocations])
    comparable = history.source == "snapshot" and reserved_bytes is not None
    # segments that do not hold what is live were not written, or not read
    holds = reserved_bytes is None or reserved_bytes >= live[-1]
    return Ledger(
        **vars(history),
        allocations=allocations,
        live=live,
        reserved=_reserved(rows, reserved_bytes if holds else None),
        quality=_quality(pairs, allocations, active if comparable else None, live, double_frees),
    )


def _quality(
    pairs: pl.DataFrame,
    allocations: pl.DataFrame,
    active: pl.DataFrame | None,
    live: Ints,
    double_frees: int,
) -> Quality:
    """Compare a history with the active blocks at its end; None if these are not known."""
    still_live = pairs.filter(pl.col("end") >= live.size)
    before = allocations.filter(pl.col("start") == 0)
    never_freed = resized = 0
    if active is not None:
        matched = still_live.join(active, on="address", suffix="_of_block")
        resized = int((matched["bytes"] != matched["bytes_of_block"]).sum())
        never_freed = still_live.height - matched.height
    return Quality(
        before_n=before.height,
        before_bytes=int(before["bytes"].sum()),
        reused_n=int(pairs["reused"].sum()),
        double_free_n=double_frees,
        resized_n=int(pairs["resized"].sum()) + resized,
        never_freed_n=never_freed,
        difference_bytes=None if active is None else int(live[-1]) - int(active["bytes"].sum()),
    )


def _pairs(rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Pair each allocation with the event that ends it: the next one at the same address.

    Also return the number of frees of addresses that are already free.
    """
    n = rows.height
    at = (
        rows.select("address", "bytes", "stack", "change", start=pl.int_range(1, n + 1))
        .filter(pl.col("change") != 0, pl.col("address").is_not_null())
        .sort("address", maintain_order=True)
    )
    following = pl.col("address").shift(-1) == pl.col("address")
    first = (pl.col("address").shift(1) != pl.col("address")).fill_null(value=True)
    pair = following & (pl.col("change").shift(-1) == -1)
    paired = at.with_columns(
        end=pl.when(following).then(pl.col("start").shift(-1)),
        freed_by=pl.when(pair).then(pl.col("stack").shift(-1)),
        resized=(pair & (pl.col("bytes").shift(-1) != pl.col("bytes"))).fill_null(value=False),
        reused=(following & (pl.col("change").shift(-1) == 1)).fill_null(value=False),
        first=first,
    )
    size = pl.col("bytes").fill_null(0)
    recorded = paired.filter(pl.col("change") == 1).select(
        "start", pl.col("end").fill_null(n + 1), size, "address", "stack", "freed_by",
        pl.lit("recorded", ORIGIN).alias("origin"), "resized", "reused",
    )  # fmt: skip
    freed = paired.filter(pl.col("change") == -1, "first").select(
        pl.lit(0, pl.Int64).alias("start"), pl.col("start").alias("end"), size, "address", "stack",
        pl.col("stack").alias("freed_by"), pl.lit("freed", ORIGIN).alias("origin"),
        pl.lit(value=False).alias("resized"), pl.lit(value=False).alias("reused"),
    )  # fmt: skip
    double_free = (pl.col("change") == -1) & (pl.col("change").shift(1) == -1) & ~pl.col("first")
    return pl.concat([recorded, freed]), int(paired.select(double_free.sum()).item())


def running_bytes(allocations: pl.DataFrame, n: int) -> Ints:
    """Return the bytes of the live allocations at each of n + 1 positions."""
    change = np.zeros(n + 2, np.int64)
    size = allocations["bytes"].to_numpy()
    np.add.at(change, allocations["start"].to_numpy(), size)
    np.subtract.at(change, allocations["end"].to_numpy(), size)
    return np.cumsum(change)[:-1]


def _unaccounted(rows: pl.DataFrame, live: Ints) -> int:
    """Return the bytes that the profiler counts as allocated beyond the known allocations."""
    totals = rows.select("allocated_bytes", position=pl.int_range(1, pl.len() + 1)).drop_nulls()
    if totals.is_empty():
        return 0
    total, position = totals.row(0)
    return max(int(total) - int(live[position]), 0)


def _always_live(allocations: pl.DataFrame, n: int) -> pl.DataFrame:
    """Return allocations (``address``, ``stack``, ``bytes``) as live over the whole history."""
    return allocations.select(
        start=pl.lit(0, pl.Int64), end=pl.lit(n + 1, pl.Int64), bytes="bytes", address="address",
        stack="stack", freed_by=pl.lit(None, pl.UInt32), origin=pl.lit("block", ORIGIN),
    )  # fmt: skip


def _reserved(rows: pl.DataFrame, at_end: int | None) -> Ints | None:
    """Return reserved bytes at each position, backwards from the end; None if not known."""
    recorded = rows["reserved_bytes"]
    if recorded.null_count() < recorded.len():
        filled = recorded.forward_fill().backward_fill()
        return np.concatenate([filled[:1].to_numpy(), filled.to_numpy()]).astype(np.int64)
    if at_end is None:
        return None
    change = rows.select((pl.col("segment_change") * pl.col("bytes").fill_null(0)).alias("c"))["c"]
    grown = np.concatenate([[0], np.cumsum(change.to_numpy())]).astype(np.int64)
    return grown + (at_end - int(grown[-1]))
