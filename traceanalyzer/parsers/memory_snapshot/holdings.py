"""What the allocator held when the snapshot was taken: segments, and the blocks in them."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.memory_snapshot import layout
from traceanalyzer.parsers.memory_snapshot.stacks import Stacks
from traceanalyzer.parsers.memory_snapshot.words import Ints, Reading, Table

#: An older spelling of a state.
_ALIASES = {"active_awaiting_free": "active_pending_free"}


def segments(reading: Reading, stacks: Stacks, rank: int | None) -> pl.DataFrame:
    """The table ``segments``, in the order of the file."""
    table = reading.table(layout.SEGMENTS)
    sizes = {
        f"{name.split('_')[0]}_bytes": reading.sizes(table.words(name)).fill_null(0)
        for name in ("total_size", "allocated_size", "active_size")
    }
    columns = {
        "id": pl.int_range(table.height, dtype=pl.UInt32, eager=True),
        "rank": pl.repeat(rank, table.height, dtype=pl.Int32, eager=True),
        "device": reading.integers(table.words("device")).cast(pl.Int32, strict=False).fill_null(0),
        "address": reading.addresses(table.words("address")).fill_null(0),
        **sizes,
        "stream": reading.integers(table.words("stream")),
        "pool": _pools(reading, table),
        "segment_type": reading.strings(table.words("segment_type"), schema.NAME),
        "expandable": reading.booleans(table.words("is_expandable")),
        "stack": stacks.of(reading, table.words("frames")),
    }
    return pl.DataFrame(columns)


def blocks(reading: Reading, stacks: Stacks, of_segments: pl.DataFrame) -> pl.DataFrame:
    """The table ``blocks``. One without an address lies behind the one before it."""
    table = reading.table(layout.BLOCKS)
    rows, segment = reading.owners(reading.table(layout.SEGMENTS).words("blocks"), layout.BLOCKS)
    size = reading.sizes(table.words("size")).fill_null(0)[rows]
    state = reading.strings(table.words("state"))[rows].replace(_ALIASES).fill_null("?")
    requested, stack = _asked_for(reading, table, stacks)
    found = pl.DataFrame(
        {
            "segment": segment,
            "address": reading.addresses(table.words("address"))[rows],
            "size_bytes": size,
            "requested_bytes": requested[rows],
            "state": state,
            "stack": stack[rows],
        }
    )
    before = pl.col("size_bytes").cum_sum().over("segment") - pl.col("size_bytes")
    start = pl.Series(of_segments["address"])[segment]
    return found.with_columns(
        segment=pl.col("segment").cast(pl.UInt32),
        address=pl.coalesce("address", start + before.cast(pl.UInt64, strict=False)),
        state=pl.col("state").cast(schema.NAME),
        # an inactive block is nobody's: what it says was asked for is of its last owner, or 0
        requested_bytes=pl.when(pl.col("state") != "inactive").then("requested_bytes"),
    )


def _pools(reading: Reading, table: Table) -> pl.Series:
    """The pool of each segment as text; null for the allocator's own."""
    words, place = np.unique(table.words("segment_pool_id"), return_inverse=True)
    told = [reading.value(int(word)) for word in words]
    names = [
        ".".join(map(str, ids)) if isinstance(ids, list) and any(ids) else None for ids in told
    ]
    return pl.Series(names, dtype=pl.String).gather(place).cast(schema.NAME)


def _asked_for(reading: Reading, table: Table, stacks: Stacks) -> tuple[pl.Series, pl.Series]:
    """The size that was asked for, and the stack of who did; older files have it in a history."""
    requested = reading.sizes(table.words("requested_size"))
    stack = stacks.of(reading, table.words("frames"))
    if not table.has("history"):
        return requested, stack
    past = reading.table(layout.HISTORY)
    latest = reading.first_rows(table.words("history"), layout.HISTORY)
    size = _at(reading.sizes(past.words("real_size")), latest)
    by = _at(stacks.of(reading, past.words("frames")), latest)
    return requested.zip_with(requested.is_not_null(), size), stack.zip_with(
        stack.is_not_null(), by
    )


def _at(values: pl.Series, rows: Ints) -> pl.Series:
    """Values at rows; null for row -1."""
    if values.is_empty():
        return pl.repeat(None, rows.size, dtype=values.dtype, eager=True)
    return values[np.maximum(rows, 0)].set(pl.Series(rows < 0), None)
