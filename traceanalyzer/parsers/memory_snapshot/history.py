"""The history of the allocator: what it did on each device, in order."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.limits import LAST_EPOCH_NS
from traceanalyzer.parsers.memory_snapshot import layout
from traceanalyzer.parsers.memory_snapshot.stacks import Stacks
from traceanalyzer.parsers.memory_snapshot.words import Ints, Reading, Table, Words
from traceanalyzer.vocabulary import ALLOCATOR_KINDS

#: Words of an action that are not those of the schema.
_ALIASES: Final = {"free": "free_completed"}
#: Times beyond are no microseconds since 1970 that leave room on the clock.
LAST_US: Final = LAST_EPOCH_NS // 1000
_LEFTOVERS: Final = ("compile_context", "user_metadata", "pool_id")
#: Letters of their text.
_LONGEST: Final = 4096


@dataclass(frozen=True)
class History:
    """What was recorded, device by device, each in the order of the file.

    Attributes:
        table: all rows of the file.
        rows: those of ``table`` that belong to a device, in this order.
        device: of each of them.
        time_us: of each of them; null where the file has no time. Never earlier than the one before
            on the same device.
        backwards: how many were.
    """

    table: Table
    rows: Ints
    device: Ints
    time_us: pl.Series
    backwards: int

    def words(self, name: str) -> Words:
        """A field of each row."""
        return self.table.words(name)[self.rows]


def read(reading: Reading, traces: list[int]) -> History:
    """The history of each device.

    Args:
        reading: the file.
        traces: the words of the devices' lists.
    """
    table = reading.table(layout.EVENTS)
    rows, device = reading.owners(np.array(traces, np.uint64), layout.EVENTS)
    if not reading.document.complete:
        # what stands in no list yet belongs to the one that the file's end cut off
        rest = np.ones(table.height, np.bool_)
        rest[rows] = False
        rows = np.append(rows, np.flatnonzero(rest))
        device = np.append(device, np.full(int(rest.sum()), max(len(traces) - 1, 0)))
    told = reading.integers(table.words("time_us")[rows])
    usable = ((told >= 0) & (told <= LAST_US)).fill_null(value=False)
    time = told.set(~usable, None)
    kept = (
        pl.DataFrame({"device": device, "time": time})
        .select(pl.col("time").cum_max().forward_fill().over("device"))
        .to_series()
    )
    return History(table, rows, device, kept, int((kept > time).sum()))


def events(reading: Reading, found: History, stacks: Stacks, *, args: bool) -> pl.DataFrame:
    """The rows of ``events`` that the history is, without ``ts``."""
    spelled = reading.strings(found.words("action"))
    kind = spelled.replace(_ALIASES)
    frame = pl.DataFrame(
        {
            "kind": kind.set(~kind.is_in(ALLOCATOR_KINDS).fill_null(value=False), "other"),
            "name": spelled,
            "device": found.device,
            "stream": reading.integers(found.words("stream")),
            "bytes": reading.sizes(found.words("size"), (kind == "oom").fill_null(value=False)),
            "address": reading.addresses(found.words("addr")),
            "stack": stacks.of(reading, found.words("frames")),
        }
    ).cast({"kind": schema.KIND, "name": schema.NAME, "device": pl.Int32})
    return frame.with_columns(args=_arguments(reading, found)) if args else frame


def free_bytes(reading: Reading, found: History) -> pl.Series:
    """What an out-of-memory error says is free on the device; null for all other events."""
    return reading.sizes(found.words("device_free"))


def _arguments(reading: Reading, found: History) -> pl.Series:
    """Fields that have no column, as JSON text; null where there are none."""
    names = [name for name in _LEFTOVERS if found.table.has(name)]
    if not names:
        return pl.repeat(None, found.rows.size, dtype=pl.String, eager=True)
    told = pl.DataFrame({name: found.words(name) for name in names}).with_row_index("row")
    distinct = told.group_by(names, maintain_order=True).agg("row")
    texts = [
        json.dumps(dict(zip(names, map(reading.value, row), strict=True)), default=str)[:_LONGEST]
        for row in distinct.select(names).iter_rows()
    ]
    every = distinct.with_columns(args=pl.Series(texts, dtype=pl.String)).explode("row")
    return every.sort("row")["args"]
