"""Rows of many tables to the sorted tables of the schema."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.nsys_sqlite.identity import Identity
from traceanalyzer.parsers.ordering import Order, time_order

#: Side tables whose columns may stand beside those of ``events`` in the rows.
_BESIDE = {"kernels": schema.KERNELS, "collectives": schema.COLLECTIVES, "memory": schema.MEMORY}


class Rows:
    """Rows of several sorts, one behind the other, given away column by column.

    So no column lies in memory twice for longer than it takes to put it in order.
    """

    def __init__(self, parts: list[pl.DataFrame]) -> None:
        self._heights = [part.height for part in parts]
        self._parts = [{name: part[name] for name in part.columns} for part in parts]
        parts.clear()
        self.height = sum(self._heights)
        self.starts = np.cumsum([0, *self._heights])

    def has(self, name: str) -> bool:
        """Whether any sort of rows has this column."""
        return any(name in part for part in self._parts)

    def look(self, name: str, dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
        """A column of all rows; null where a sort of rows does not have it."""
        pieces = [
            part[name].cast(dtype)
            if name in part
            else pl.repeat(None, height, dtype=dtype, eager=True)
            for part, height in zip(self._parts, self._heights, strict=True)
        ]
        return pl.concat(pieces, rechunk=True).alias(name)

    def take(self, name: str, dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
        """As :meth:`look`, once: the rows forget the column."""
        column = self.look(name, dtype)
        for part in self._parts:
            part.pop(name, None)
        return column

    def beside(self, names: Sequence[str]) -> pl.DataFrame:
        """Those of these columns that any sort of rows has, with ``row``; the rows forget them."""
        found = []
        for part, first in zip(self._parts, self.starts, strict=False):
            own = {name: part.pop(name) for name in names if name in part}
            if own:
                frame = pl.DataFrame(own)
                numbers = pl.int_range(pl.len(), dtype=pl.UInt32) + int(first)
                found.append(frame.with_columns(row=numbers.cast(pl.UInt32)))
        return pl.concat(found, how="diagonal") if found else pl.DataFrame()


def assemble(
    parts: list[pl.DataFrame], identity: Identity, unused: Container[str] = ()
) -> dict[str, pl.DataFrame]:
    """``events`` and the side tables that belong to them.

    Args:
        parts: rows of one sort each, with columns of ``events`` and of side tables; the list is
            emptied.
        identity: the ranks of processes, and the numbers of GPUs.
        unused: columns that need not be filled once the rank is known.
    """
    rows = Rows(parts)
    if not rows.height:
        return {name: schema.empty(name) for name in ("events", *_BESIDE)}
    order = time_order(rows.look("ts", pl.Int64), lambda: rows.look("dur", pl.Int64))
    tables = {name: _side_table(rows, fields, order) for name, fields in _BESIDE.items()}
    events = _ordered(rows, order).with_columns(rank=identity.of(pl.col("pid")))
    tables["events"] = _on_gpus(events, identity).select(
        pl.col(c.name)
        if c.name in events.columns and c.name not in unused
        else pl.lit(None, dtype=c.dtype).alias(c.name)
        for c in schema.EVENTS
        if c.name in events.columns or not c.on_request
    )
    return tables


def _ordered(rows: Rows, order: Order | None) -> pl.DataFrame:
    """The columns of ``events`` that rows have, in order; two at a time, a core each."""
    had = [column for column in schema.EVENTS if rows.has(column.name)]
    found: list[pl.Series] = []
    for pair in (had[place : place + 2] for place in range(0, len(had), 2)):
        columns = pl.DataFrame([rows.take(column.name, column.dtype) for column in pair])
        if order is not None:
            columns = columns.select(pl.all().gather(pl.lit(pl.Series(order))))
        found += columns.get_columns()
    return pl.DataFrame(found)


def _side_table(rows: Rows, fields: Sequence[schema.Column], order: Order | None) -> pl.DataFrame:
    """Rows of a side table: those of which anything is known, by the row of ``events``."""
    names = [field.name for field in fields[1:]]
    told = rows.beside(names)
    if told.is_empty():
        return pl.DataFrame(schema={field.name: field.dtype for field in fields})
    known = told.filter(
        pl.any_horizontal(pl.col(n).is_not_null() for n in names if n in told.columns)
    )
    event = known["row"]
    if order is not None:
        place = np.empty(len(order), np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        event = pl.Series(place[event.to_numpy()])
    return (
        known.with_columns(event=event)
        .select(
            (pl.col(f.name) if f.name in known.columns or f.name == "event" else pl.lit(None))
            .cast(f.dtype)
            .alias(f.name)
            for f in fields
        )
        .sort("event")
    )


def _on_gpus(events: pl.DataFrame, identity: Identity) -> pl.DataFrame:
    """Devices by the GPUs' numbers, where processes number them differently.

    Synchronisation is recorded on device 0 whichever device it is of: that of its process.
    """
    if "device" not in events.columns:
        return events
    waits = pl.col("kind") == "cuda_sync"
    if any(identity.devices.values()) and events.select(waits.any()).item():
        own = pl.col("pid").replace_strict(identity.devices, default=None, return_dtype=pl.Int32)
        device = pl.when(waits).then(pl.coalesce(own, "device")).otherwise("device")
        events = events.with_columns(device=device)
    if not identity.gpus:
        return events
    known = pl.DataFrame(
        [(*own, gpu) for own, gpu in identity.gpus.items()],
        schema={"pid": pl.Int64, "device": pl.Int32, "gpu": pl.Int32},
        orient="row",
    )
    joined = events.join(known, on=["pid", "device"], how="left", maintain_order="left")
    return joined.with_columns(device=pl.coalesce("gpu", "device")).drop("gpu")
