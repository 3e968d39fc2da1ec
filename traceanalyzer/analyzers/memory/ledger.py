"""The history of each device's memory, and the allocations that it consists of.

Snapshots of PyTorch's allocator have a history of it; ``torch.profiler`` notes the allocator's
allocations as ``[memory]`` instants, ``nsys`` what the process asks of the driver.

A position is a moment between events: 0 before the first, k after the k-th. An allocation is there
at the positions from its ``start`` up to, not including, its ``end``.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import AnalyzerOptions, Needs
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace, is_cut_off, record_hint
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

#: How an allocation is known: from its event, only from its free, only from the blocks at the end.
ORIGIN = pl.Enum(("recorded", "freed", "held"))
ACTIVE = ("active_allocated", "active_pending_free")

_SNAPSHOT = "memory-snapshot"
_CPU = 0
#: Sorts of memory that nsys notes beside a device's own.
_HOST_MEMORY = ("Pinned", "Pageable")
#: Memory is free when a free is completed; where ``skip_actions`` left that out, when it was asked.
_CLOSING = ("free_completed", "free_requested")
_GROWING = ("segment_alloc", "segment_map")
_SHRINKING = ("segment_free", "segment_unmap")


def needs(_options: AnalyzerOptions) -> Needs:
    """Allocations and the code that was running, whatever is asked about them."""
    return NEEDS


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


@dataclass(frozen=True)
class Quality:
    """How well a history fits what the allocator held at its end.

    Attributes:
        before_n: allocations that were there before the history began ...
        before_bytes: ... and their sizes.
        reused_n: allocations at an address where one was already.
        twice_n: frees of what was freed before; not counted.
        resized_n: allocations of another size at their free, or in the snapshot's blocks.
        lost_n: allocations that are never freed and are in no block.
        difference_bytes: live at the end less what the blocks hold; None where no block is known.
    """

    before_n: int
    before_bytes: int
    reused_n: int
    twice_n: int
    resized_n: int
    lost_n: int
    difference_bytes: int | None


@dataclass(frozen=True)
class Ledger(Operations):
    """One device's history, and its allocations.

    Attributes:
        allocations: a row an allocation: ``start``, ``end`` (positions), ``bytes``, ``address``,
            ``stack`` (that allocated it; of one freed only, that freed it), ``freed_by`` (the
            stack, or null), ``origin``.
        live: bytes of all allocations at each position.
        reserved: bytes of all segments at each position, or None.
        quality: how well the history fits its end.
    """

    allocations: pl.DataFrame
    live: Ints
    reserved: Ints | None
    quality: Quality

    @property
    def positions(self) -> int:
        """Moments there are: events and one."""
        return self.live.size

    def alive(self, position: int) -> pl.DataFrame:
        """The allocations that are there at a position."""
        return self.allocations.filter(pl.col("start") <= position, pl.col("end") > position)

    def between(self, since_ns: int | None, until_ns: int | None) -> tuple[int, int]:
        """The first and last position of a stretch of time; all of them where neither is given."""
        time = self.rows["ts"]
        first = 0 if since_ns is None else int((time < since_ns).sum())
        last = self.positions - 1 if until_ns is None else int((time < until_ns).sum())
        return min(first, last), last

    def time_ns(self, position: int) -> int | None:
        """When a position begins; None before the first event, and where there are no times."""
        found: int | None = self.times(pl.Series([position])).item()
        return found

    def times(self, positions: pl.Series, *, whole: bool = False) -> pl.Series:
        """When each position begins; null before the first event and after the last.

        Args:
            positions: the positions.
            whole: give these the times of the events next to them.
        """
        n = self.rows.height
        if not n:
            return pl.repeat(None, positions.len(), dtype=pl.Int64, eager=True)
        time = self.rows["ts"].gather((positions - 1).clip(0, n - 1))
        return time if whole else time.set(~positions.is_between(1, n), None)


def ledgers(trace: Trace) -> list[Ledger]:
    """The allocations of each device of a trace of one rank.

    Raises:
        MissingData: nothing about memory was recorded.
        OptionError: the trace is several files', and tells no ranks.
    """
    found = []
    for of in operations(trace):
        own, held = of_device(trace.segments, trace.blocks, of.device)
        # of a file that was cut off, segments may be missing
        known = of.noted == "snapshot" and (own.height > 0 or not is_cut_off(trace))
        found.append(ledger(of, held, int(own["total_bytes"].sum()) if known else None))
    return found


def of_device(
    segments: pl.DataFrame, blocks: pl.DataFrame, device: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Segments of a device, and the blocks in them."""
    own = segments.filter(pl.col("device").eq_missing(pl.lit(device, pl.Int32)))
    return own, blocks.filter(pl.col("segment").is_in(own["id"].implode()))


# --- what was done ---------------------------------------------------------------------------


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
    is_known = noted == "snapshot" or trace.events["kind"].is_in(_kinds(noted)).any()
    found = list(_by_device(trace, _rows(trace, noted), noted)) if is_known else []
    if not found:
        hint = record_hint(trace.meta, "cpu_instant_event")
        raise MissingData(f"{trace.meta.path}: no allocations on a device were recorded; {hint}")
    return found


def _noted(trace: Trace) -> Noted:
    if trace.meta.format == _SNAPSHOT or trace.segments.height:
        return "snapshot"
    return "instants" if (trace.events["kind"] == "cpu_instant_event").any() else "calls"


def _kinds(noted: Noted) -> tuple[str, ...]:
    return ("cpu_instant_event",) if noted == "instants" else ALLOCATOR_KINDS


def _rows(trace: Trace, noted: Noted) -> pl.DataFrame:
    beside = trace.memory_totals.select("event", "device_type", "allocated_bytes", "reserved_bytes")
    rows = (
        trace.events.select(
            pl.col("ts") - origin(trace),
            *("kind", "name", "device", "stream", "address", "bytes", "stack"),
        )
        .with_row_index("event")
        .filter(pl.col("kind").is_in(_kinds(noted)))
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


# --- allocations -----------------------------------------------------------------------------


def ledger(of: Operations, blocks: pl.DataFrame, reserved_bytes: int | None) -> Ledger:
    """The allocations of one device.

    An allocation begins at its event and ends when its address is freed. A free of an address that
    nobody is known to have allocated means that the block was there before the history began, and
    so was a block that the snapshot holds although no allocation of it is known.

    Args:
        of: what was done.
        blocks: blocks held at the end by the segments of the device, with ``address``,
            ``size_bytes``, ``requested_bytes``, ``state``, ``stack``; may be empty.
        reserved_bytes: the sizes of those segments; None where they are not known.
    """
    rows = of.rows
    n = rows.height
    pairs, twice = _pairs(rows)
    held = blocks.filter(pl.col("state").cast(pl.String).is_in(ACTIVE)).select(
        "address", "stack", bytes=pl.coalesce("requested_bytes", "size_bytes")
    )
    opened = pairs.filter(pl.col("end") > n)
    ghosts = held.join(opened.select("address"), on="address", how="anti", maintain_order="left")
    found = pl.concat([pairs.drop("resized", "reused"), _there_before(ghosts, n)]).sort(
        "start", "end", "address", maintain_order=True
    )
    live = running(found, n)
    noted_before = _unaccounted(rows, live)
    if noted_before:
        live = live + noted_before
        # nothing but their sum is known
        anonymous = ghosts.clear(1).with_columns(bytes=pl.lit(noted_before, pl.Int64))
        found = pl.concat([_there_before(anonymous, n), found])
    counts = of.noted == "snapshot" and reserved_bytes is not None
    return Ledger(
        **vars(of),
        allocations=found,
        live=live,
        reserved=_reserved(rows, reserved_bytes),
        quality=_quality(pairs, found, held if counts else None, live, twice),
    )


def _quality(
    pairs: pl.DataFrame, found: pl.DataFrame, held: pl.DataFrame | None, live: Ints, twice: int
) -> Quality:
    """How well a history fits the blocks held at its end; None where these are not known."""
    opened = pairs.filter(pl.col("end") >= live.size)
    old = found.filter(pl.col("start") == 0)
    lost = resized = 0
    if held is not None:
        matched = opened.join(held, on="address", suffix="_held")
        resized = int((matched["bytes"] != matched["bytes_held"]).sum())
        lost = opened.height - matched.height
    return Quality(
        before_n=old.height,
        before_bytes=int(old["bytes"].sum()),
        reused_n=int(pairs["reused"].sum()),
        twice_n=twice,
        resized_n=int(pairs["resized"].sum()) + resized,
        lost_n=lost,
        difference_bytes=None if held is None else int(live[-1]) - int(held["bytes"].sum()),
    )


def _pairs(rows: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Allocations with the event that ends each: the next one at the same address.

    And how many frees there are of what was freed before.
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
    found = at.with_columns(
        end=pl.when(following).then(pl.col("start").shift(-1)),
        freed_by=pl.when(pair).then(pl.col("stack").shift(-1)),
        resized=(pair & (pl.col("bytes").shift(-1) != pl.col("bytes"))).fill_null(value=False),
        reused=(following & (pl.col("change").shift(-1) == 1)).fill_null(value=False),
        first=first,
    )
    size = pl.col("bytes").fill_null(0)
    recorded = found.filter(pl.col("change") == 1).select(
        "start", pl.col("end").fill_null(n + 1), size, "address", "stack", "freed_by",
        pl.lit("recorded", ORIGIN).alias("origin"), "resized", "reused",
    )  # fmt: skip
    freed = found.filter(pl.col("change") == -1, "first").select(
        pl.lit(0, pl.Int64).alias("start"), pl.col("start").alias("end"), size, "address", "stack",
        pl.col("stack").alias("freed_by"), pl.lit("freed", ORIGIN).alias("origin"),
        pl.lit(value=False).alias("resized"), pl.lit(value=False).alias("reused"),
    )  # fmt: skip
    twice = (pl.col("change") == -1) & (pl.col("change").shift(1) == -1) & ~pl.col("first")
    return pl.concat([recorded, freed]), int(found.select(twice.sum()).item())


def running(allocations: pl.DataFrame, n: int) -> Ints:
    """Bytes of the allocations that are there at each position."""
    change = np.zeros(n + 2, np.int64)
    size = allocations["bytes"].to_numpy()
    np.add.at(change, allocations["start"].to_numpy(), size)
    np.subtract.at(change, allocations["end"].to_numpy(), size)
    return np.cumsum(change)[:-1]


def _unaccounted(rows: pl.DataFrame, live: Ints) -> int:
    """What the profiler says was allocated before its first event, less what is known of it."""
    told = rows.select("allocated_bytes", position=pl.int_range(1, pl.len() + 1)).drop_nulls()
    if told.is_empty():
        return 0
    total, position = told.row(0)
    return max(int(total) - int(live[position]), 0)


def _there_before(allocations: pl.DataFrame, n: int) -> pl.DataFrame:
    """What was there before the first event and stays: ``address``, ``stack``, ``bytes``."""
    return allocations.select(
        start=pl.lit(0, pl.Int64), end=pl.lit(n + 1, pl.Int64), bytes="bytes", address="address",
        stack="stack", freed_by=pl.lit(None, pl.UInt32), origin=pl.lit("held", ORIGIN),
    )  # fmt: skip


def _reserved(rows: pl.DataFrame, at_end: int | None) -> Ints | None:
    """Bytes of segments at each position: what there is at the end, less what came since."""
    told = rows["reserved_bytes"]
    if told.null_count() < told.len():
        known = told.forward_fill().backward_fill()
        return np.concatenate([known[:1].to_numpy(), known.to_numpy()]).astype(np.int64)
    if at_end is None:
        return None
    change = rows.select((pl.col("segment_change") * pl.col("bytes").fill_null(0)).alias("c"))["c"]
    grown = np.concatenate([[0], np.cumsum(change.to_numpy())]).astype(np.int64)
    return grown + (at_end - int(grown[-1]))
