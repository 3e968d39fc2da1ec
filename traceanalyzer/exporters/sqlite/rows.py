"""Rows of frames into the tables of a database, as Arrow batches that the driver takes whole."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import adbc_driver_sqlite.dbapi
import polars as pl

from traceanalyzer.exporters.sqlite.tables import NAMED, stored_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from adbc_driver_manager.dbapi import Cursor

    from traceanalyzer.trace import Trace

#: Rows turned into Arrow at once.
_ROWS = 1 << 16
#: Rows with texts of any length.
_TEXT_ROWS = 1 << 12
_ON_REQUEST = ("args", "input_dims")
_WORDS = (pl.Categorical, pl.Enum)


class Names:
    """The texts of all columns that are numbers in ``names``, numbered in order of appearance."""

    def __init__(self, trace: Trace) -> None:
        distinct = {
            (table, column): frame[column].drop_nulls().unique(maintain_order=True)
            for table, frame in trace.tables.items()
            for column in NAMED
            if column in frame.columns
        }
        texts = [names.cast(pl.String) for names in distinct.values()]
        self.table = (
            pl.concat(texts)
            .unique(maintain_order=True)
            .alias("name")
            .to_frame()
            .with_row_index("id")
        )
        self._numbers = {
            key: _numbers(names, self.table) for key, names in distinct.items() if names.len()
        }

    def numbered(self, table: str, texts: pl.Series) -> pl.Series:
        """A column of texts as numbers."""
        numbers = self._numbers.get((table, texts.name))
        if numbers is None:
            return pl.repeat(None, texts.len(), dtype=pl.Int64, eager=True).alias(texts.name)
        return numbers.gather(texts.to_physical()).alias(texts.name)


def fill(path: Path, pragmas: Sequence[str], trace: Trace, names: Names) -> None:
    """Put the trace's rows into the tables, which are there and empty."""
    uri = path.absolute().as_uri()
    with (
        closing(adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
            cursor.fetchall()
        cursor.execute("BEGIN")
        _insert(cursor, "names", names.table.iter_slices(_ROWS))
        for name, frame in trace.tables.items():
            own = frame.drop(_ON_REQUEST, strict=False)
            _insert(cursor, name, _batches(name, own, names))
        _insert(cursor, "arguments", _arguments(trace.events))
        cursor.execute("COMMIT")


def _batches(table: str, frame: pl.DataFrame, names: Names) -> Iterator[pl.DataFrame]:
    """The table's rows as the database has them; those of ``events`` with their number."""
    first = 0
    for rows in frame.iter_slices(_ROWS):
        columns = [
            names.numbered(table, column) if column.name in NAMED else _plain(column)
            for column in rows
        ]
        batch = pl.DataFrame([column.alias(stored_name(column.name)) for column in columns])
        yield batch.with_row_index("id", first) if table == "events" else batch
        first += rows.height


def _arguments(events: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Texts made on request, of the rows that have some."""
    asked = [name for name in _ON_REQUEST if name in events.columns]
    if not asked:
        return
    texts = events.select(asked).with_row_index("event")
    for rows in texts.iter_slices(_TEXT_ROWS):
        told = rows.filter(pl.any_horizontal(pl.col(asked).is_not_null()))
        if told.height:
            yield told


def _insert(cursor: Cursor, table: str, batches: Iterator[pl.DataFrame]) -> None:
    for batch in batches:
        columns = ", ".join(f'"{name}"' for name in batch.columns)
        places = ", ".join("?" * batch.width)
        rows = batch.to_arrow(compat_level=pl.CompatLevel.oldest())
        # tables and columns are the schema's
        insert = f'INSERT INTO "{table}" ({columns}) VALUES ({places})'  # noqa: S608
        cursor.executemany(insert, rows)


def _plain(column: pl.Series) -> pl.Series:
    """A column in a type that SQLite has."""
    if isinstance(column.dtype, _WORDS):
        return column.cast(pl.String)
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    return column.cast(pl.Int8) if column.dtype == pl.Boolean else column


def _numbers(names: pl.Series, table: pl.DataFrame) -> pl.Series:
    """The number in ``names`` by the number a column has for it; null where it has none."""
    texts = names.cast(pl.String).alias("name").to_frame()
    ids = texts.join(table, on="name", how="left", maintain_order="left")["id"].cast(pl.Int64)
    codes = names.to_physical()
    room = int(codes.to_numpy().max()) + 1
    return pl.repeat(None, room, dtype=pl.Int64, eager=True).scatter(codes, ids)
