"""A result as an SQLite database: a table of rows for each table, raw units, for plain SQL."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.sqlite_tools import sqlite_utils

if TYPE_CHECKING:
    from traceanalyzer.result import Result

_MOST = (1 << 63) - 1
_BEYOND = 1 << 64


def render(result: Result, *, top: int | None = None) -> bytes:
    """The database's bytes: the result's tables, its flamegraphs' boxes, and ``about``.

    ``about`` holds title, verdict, notes and the single numbers. Null is NULL, as are NaN and
    infinity; a list is JSON text; an unsigned number of 2^63 or more is the negative one of the
    same bits.

    Args:
        result: what to write.
        top: rows of each table; None means all of them.
    """
    database = sqlite_utils.Database(memory=True)
    with closing(database.conn) as connection:
        _about(database, result)
        frames = [(table.name, table.frame) for table in result.tables]
        for name, frame in frames + [(flame.name, flame.frame) for flame in result.flames]:
            _insert(database, name, frame if top is None else frame.head(top))
        connection.commit()
        image: bytes = connection.serialize()
    return image


def _about(database: sqlite_utils.Database, result: Result) -> None:
    rows = [
        ("title", result.title),
        ("verdict", result.verdict),
        *((name, _value(value)) for name, value in result.scalars.items()),
        *(("note", note) for note in result.notes),
    ]
    database.execute("CREATE TABLE about (key TEXT, value)")
    database.conn.executemany("INSERT INTO about VALUES (?, ?)", rows)


def _insert(database: sqlite_utils.Database, name: str, frame: pl.DataFrame) -> None:
    if not frame.width:
        return
    database.table(name).create({column: _type(dtype) for column, dtype in frame.schema.items()})
    places = ", ".join("?" * frame.width)
    columns = ([_value(value) for value in column.to_list()] for column in frame)
    # a result's tables are called by the analyses, not by what they read
    insert = f'INSERT INTO "{name}" VALUES ({places})'  # noqa: S608
    database.conn.executemany(insert, zip(*columns, strict=True))


def _type(dtype: pl.DataType) -> type:
    if dtype.is_float():
        return float
    return int if dtype.is_integer() or dtype == pl.Boolean else str


def _value(value: Any) -> Any:
    """A single value; what SQLite does not have as JSON or other text."""
    if isinstance(value, int):
        own = value - _BEYOND if value > _MOST else value
        return own if abs(own) <= _MOST else float(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return json.dumps(value, default=str)
