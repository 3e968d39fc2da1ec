"""Rows of many tables to the sorted tables of the schema."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.ordering import Order, time_order

#: Side tables whose columns may stand beside those of ``events`` in the rows.
_BESIDE = {
    "launch_configs": schema.LAUNCH_CONFIGS,
    "collectives": schema.COLLECTIVES,
    "memory_totals": schema.MEMORY_TOTALS,
}


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


def assemble(parts: list[pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """``events`` and the side tables that belong to them.

    Args:
        parts: rows of one sort each, with columns of ``events`` and of side tables; the list is
            emptied.
    """
    rows = Rows(parts)
    if not rows.height:
        return {name: schema.empty(name) for name in ("events", *_BESIDE)}
    ts = rows.take("ts", pl.Int64)
    order = time_order(
        ts.to_numpy(),
        lambda tied: rows.look("dur", pl.Int64).gather(tied).fill_null(-1).to_numpy(),
    )
    tables = {name: _side_table(rows, fields, order) for name, fields in _BESIDE.items()}
    place = None if order is None else pl.Series(order)
    del order
    found = [ts if place is None else ts.gather(place)]
    del ts
    found += _ordered(rows, place)
    events = pl.DataFrame(found)
    tables["events"] = events.select(
        pl.col(c.name) if c.name in events.columns else pl.lit(None, dtype=c.dtype).alias(c.name)
        for c in schema.EVENTS
        if c.name in events.columns or not c.on_request
    )
    return tables


def _ordered(rows: Rows, order: pl.Series | None) -> list[pl.Series]:
    """The columns of ``events`` that rows still have, in order."""
    found = []
    for column in schema.EVENTS:
        if rows.has(column.name):
            whole = rows.take(column.name, column.dtype)
            found.append(whole if order is None else whole.gather(order))
            del whole
    return found


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
