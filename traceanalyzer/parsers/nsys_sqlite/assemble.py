"""Rows of many tables to the sorted tables of the schema."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.ordering import Ints, Order, time_order

#: Side tables whose columns may stand beside those of ``events`` in the rows.
_BESIDE = {
    "launch_configs": schema.LAUNCH_CONFIGS,
    "collectives": schema.COLLECTIVES,
    "memory_totals": schema.MEMORY_TOTALS,
}

#: First row and number of rows, of each sort.
Spans = Sequence[Sequence[int]]

#: Rows put in order at once: they stay in the processor's cache.
_AT_ONCE = 1 << 17


@dataclass(frozen=True)
class Window:
    """A stretch of time: the rows of each sort that start in it, and their order.

    Attributes:
        spans: of which rows.
        order: of these rows, one sort behind the other; None where they stand in order.
    """

    spans: Spans
    order: pl.Series | None


class Rows:
    """Rows of several sorts, one behind the other, given away column by column.

    So no column lies in memory twice for longer than it takes to put it in order.
    """

    def __init__(self, parts: list[pl.DataFrame]) -> None:
        self._parts = [{name: part[name] for name in part.columns} for part in parts]
        self.height = sum(part.height for part in parts)
        self.starts = np.cumsum([0, *(part.height for part in parts)])
        parts.clear()

    def has(self, name: str) -> bool:
        """Whether any sort of rows has this column."""
        return any(name in part for part in self._parts)

    def each(self, name: str) -> list[pl.Series]:
        """A column that all sorts of rows have, of each."""
        return [part[name] for part in self._parts]

    def look(self, name: str, dtype: pl.DataType | type[pl.DataType], spans: Spans) -> pl.Series:
        """A column of some rows of each sort; null where a sort of rows does not have it."""
        pieces = [
            part[name].slice(*span).cast(dtype)
            if name in part
            else pl.repeat(None, span[1], dtype=dtype, eager=True)
            for part, span in zip(self._parts, spans, strict=True)
            if span[1]
        ]
        return pl.concat(pieces, rechunk=True)

    def take(
        self, name: str, dtype: pl.DataType | type[pl.DataType], windows: Sequence[Window]
    ) -> pl.Series:
        """A column of all rows in their order, once: the rows forget it."""

        def ordered(window: Window) -> pl.Series:
            column = self.look(name, dtype, window.spans)
            return column if window.order is None else column.gather(window.order)

        pieces = map(ordered, windows)
        is_plain = dtype.is_integer() and self._is_filled(name) and len(windows) > 1
        column = _in_one(pieces, self.height) if is_plain else pl.concat(pieces, rechunk=True)
        for part in self._parts:
            part.pop(name, None)
        return column.alias(name)

    def _is_filled(self, name: str) -> bool:
        return all(name in part and not part[name].null_count() for part in self._parts)

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


def _in_one(pieces: Iterator[pl.Series], height: int) -> pl.Series:
    """Numbers in one piece, of which no more than one lies in memory twice."""
    first = next(pieces).to_numpy()
    found = np.empty(height, first.dtype)
    done = 0
    for piece in itertools.chain([first], (piece.to_numpy() for piece in pieces)):
        found[done : done + len(piece)] = piece
        done += len(piece)
    return pl.Series(found)


def assemble(parts: list[pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """``events`` and the side tables that belong to them.

    Args:
        parts: rows of one sort each, with columns of ``events`` and of side tables; the list is
            emptied.
    """
    rows = Rows(parts)
    if not rows.height:
        return {name: schema.empty(name) for name in ("events", *_BESIDE)}
    windows = _windows(rows)
    tables = {name: _side_table(rows, fields, windows) for name, fields in _BESIDE.items()}
    held = [column for column in schema.EVENTS if rows.has(column.name)]
    with ThreadPoolExecutor(2) as pool:  # a core each; with more columns at once memory would grow
        ordered = pool.map(lambda column: rows.take(column.name, column.dtype, windows), held)
        events = pl.DataFrame(list(ordered))
    tables["events"] = events.select(
        pl.col(c.name) if c.name in events.columns else pl.lit(None, dtype=c.dtype).alias(c.name)
        for c in schema.EVENTS
        if c.name in events.columns or not c.on_request
    )
    return tables


def _windows(rows: Rows) -> list[Window]:
    """The rows cut by time, so that what lies together in time is put in order by itself.

    That takes a part of the memory and of the time of ordering all, where each sort of rows stands
    in order, as it mostly does; where one does not, one window has all.
    """
    starts = rows.each("ts")
    bounds = np.zeros(0, np.int64)
    if rows.height > _AT_ONCE and all(own.is_sorted() for own in starts):
        longest = max(starts, key=len)
        bounds = np.unique(longest.gather_every(_AT_ONCE, offset=_AT_ONCE).to_numpy())
    cuts = np.array([[0, *_below(own, bounds), own.len()] for own in starts])
    spans = np.stack([cuts[:, :-1], np.diff(cuts)], axis=-1).swapaxes(0, 1).tolist()
    return [_window(rows, own) for own in spans if any(count for _, count in own)]


def _below(times: pl.Series, bounds: Ints) -> Ints:
    """How many of the sorted times lie before each bound."""
    found = np.zeros(len(bounds), np.int64)
    for piece in times.get_chunks():
        found += np.searchsorted(piece.to_numpy(), bounds)
    return found


def _window(rows: Rows, spans: Spans) -> Window:
    def lengths(tied: Order) -> Ints:
        return rows.look("dur", pl.Int64, spans).gather(tied).fill_null(-1).to_numpy()

    order = time_order(rows.look("ts", pl.Int64, spans).to_numpy(), lengths)
    return Window(spans, None if order is None else pl.Series(order))


def _side_table(
    rows: Rows, fields: Sequence[schema.Column], windows: Sequence[Window]
) -> pl.DataFrame:
    """Rows of a side table: those of which anything is known, by the row of ``events``."""
    names = [field.name for field in fields[1:]]
    told = rows.beside(names)
    if told.is_empty():
        return pl.DataFrame(schema={field.name: field.dtype for field in fields})
    known = told.filter(
        pl.any_horizontal(pl.col(n).is_not_null() for n in names if n in told.columns)
    )
    return (
        known.with_columns(event=_places(rows, windows).gather(known["row"]))
        .select(
            (pl.col(f.name) if f.name in known.columns or f.name == "event" else pl.lit(None))
            .cast(f.dtype)
            .alias(f.name)
            for f in fields
        )
        .sort("event")
    )


def _places(rows: Rows, windows: Sequence[Window]) -> pl.Series:
    """Where in order each row comes."""
    place = np.empty(rows.height, np.uint32)
    done = 0
    for window in windows:
        spans = zip(rows.starts, window.spans, strict=False)
        held = np.concatenate(
            [np.arange(start + low, start + low + n) for start, (low, n) in spans]
        )
        own = held if window.order is None else held[window.order.to_numpy()]
        place[own] = np.arange(done, done + len(own), dtype=np.uint32)
        done += len(own)
    return pl.Series(place)
