"""Rows of a database: which are selected, and all of them in one order."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer import schema
from traceanalyzer.machine import executor
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.sqlite.database import Database, overlap_test
from traceanalyzer.parsers.tables import Ints, Order, time_order

#: Side tables whose columns the rows may contain in addition to those of ``events``.
_SIDE_TABLES = {
    "launch_configs": schema.LAUNCH_CONFIGS,
    "collectives": schema.COLLECTIVES,
    "memory_totals": schema.MEMORY_TOTALS,
}


@dataclass
class Reading:
    """An open database and the selection.

    Attributes:
        database: the open file.
        selection: what to read.
    """

    database: Database
    selection: Selection

    def fills(self, column: str) -> bool:
        """Whether the caller uses this column or side table."""
        return column not in self.selection.unused

    def inside(self, start: str = "start", end: str | None = "end") -> str | None:
        """Return the SQL condition that a row overlaps a selected window."""
        return overlap_test(self.selection.windows, start, end)

    def within(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that overlap a window, for rows whose times are computed."""
        length = pl.col("dur") if "dur" in rows.columns else pl.lit(0)
        end = pl.col("ts") + length
        tests = [(pl.col("ts") < hi) & (end > lo) for lo, hi in self.selection.windows]
        return rows.filter(pl.any_horizontal(tests)) if tests else rows

    def selected(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with a selected kind or name."""
        kinds = self.selection.kinds
        if kinds is None or set(rows["kind"].unique()) <= kinds:
            return rows
        of_kind = pl.col("kind").cast(pl.String).is_in(sorted(kinds))
        names = list(self.selection.names)
        if not names:
            return rows.filter(of_kind)
        named = pl.col("name").cast(pl.String).str.contains_any(names).fill_null(value=False)
        return rows.filter(of_kind | named)


def assemble(parts: list[pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Build ``events`` and its side tables.

    Args:
        parts: rows of one table each, with columns of ``events`` and of side tables; the list is
            emptied.
    """
    rows = _Rows(parts)
    if not rows.height:
        return {name: schema.empty(name) for name in ("events", *_SIDE_TABLES)}
    order = rows.order()
    frames = {name: _side_table(rows, fields, order) for name, fields in _SIDE_TABLES.items()}
    present = [column for column in schema.EVENTS if rows.has(column)]
    with executor(2) as pool:  # more columns at a time need more memory
        ordered = pool.map(lambda column: _ordered(rows.take(column), order), present)
        events = {column.name: values for column, values in zip(present, ordered, strict=True)}
    frames["events"] = pl.DataFrame(events).select(
        pl.col(c.name) if c.name in events else pl.lit(None, dtype=c.dtype).alias(c.name)
        for c in schema.EVENTS
        if c.name in events or not c.on_request
    )
    return frames


class _Rows:
    """Concatenated rows of several tables, taken column by column.

    A column is released when it is taken, so that not all are in memory twice.
    """

    def __init__(self, parts: list[pl.DataFrame]) -> None:
        self._parts = [{column.name: column for column in part} for part in parts]
        self._heights = [part.height for part in parts]
        self.height = sum(self._heights)
        parts.clear()

    def has(self, column: schema.Column) -> bool:
        """Whether any of the tables has this column."""
        return any(column.name in part for part in self._parts)

    def column(self, name: str, dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
        """Return a column of all rows; null for tables that do not have it."""
        pieces = [
            part[name].cast(dtype)
            if name in part
            else pl.repeat(None, height, dtype=dtype, eager=True)
            for part, height in zip(self._parts, self._heights, strict=True)
        ]
        return pl.concat(pieces, rechunk=True).alias(name)

    def take(self, column: schema.Column) -> pl.Series:
        """Return and release a column."""
        series = self.column(column.name, column.dtype)
        for part in self._parts:
            part.pop(column.name, None)
        return series

    def order(self) -> pl.Series | None:
        """Return row numbers ordered by time; None if the rows are ordered already."""

        def lengths(tied: Order) -> Ints:
            return self.column("dur", pl.Int64).gather(tied).fill_null(-1).to_numpy()

        order = time_order(self.column("ts", pl.Int64).to_numpy(), lengths)
        return None if order is None else pl.Series(order)


def _ordered(column: pl.Series, order: pl.Series | None) -> pl.Series:
    return column if order is None else column.gather(order)


def _side_table(
    rows: _Rows, fields: Sequence[schema.Column], order: pl.Series | None
) -> pl.DataFrame:
    """Build a side table of the rows with any value in it, by row of ``events``."""
    filled = [field.name for field in fields if rows.has(field)]
    if not filled:
        return pl.DataFrame(schema={field.name: field.dtype for field in fields})
    event, *values = fields
    every = pl.DataFrame([_ordered(rows.take(field), order) for field in values])
    known = every.with_row_index(event.name).filter(pl.any_horizontal(pl.col(filled).is_not_null()))
    return known.cast({event.name: event.dtype})
