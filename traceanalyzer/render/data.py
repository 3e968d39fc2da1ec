"""Data formats of a result: CSV, JSON, SQLite and pandas.

Values are in raw units; all rows are included by default. Libraries are imported on use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer.drawings import SCHEMA_VERSION
from traceanalyzer.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd
    import sqlite_utils

    from traceanalyzer.drawings import Content

# Spreadsheets evaluate a cell that starts like this as a formula.
_FORMULA = r"^[=+\-@\t\r\n]"
_INT64_END, _UINT64_END = 1 << 63, 1 << 64
_CATEGORIES = (pl.Categorical, pl.Enum)
_WHOLE = ("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64")


def to_csv(result: Content, *, table: str | None = None, top: int | None = None) -> str:
    """Return one table as CSV, by default the first with rows; null is an empty cell, a list JSON.

    Text that a spreadsheet would evaluate as a formula gets a leading apostrophe; numbers never do.

    Raises:
        OptionError: the result has no table of that name.
    """
    first = next((one.name for one in result.tables if one.frame.height), None)
    frame = result.to_polars(table or first)
    rows = frame if top is None else frame.head(top)
    # queries name their columns
    head = pl.DataFrame([_csv_column(pl.Series(name, [name])) for name in rows.columns])
    plain = pl.DataFrame([_csv_column(rows[name]) for name in rows.columns])
    return head.write_csv(include_header=False) + plain.write_csv(include_header=False)


def _csv_column(values: pl.Series) -> pl.Series:
    if values.dtype.is_nested():
        lists = [None if value is None else json.dumps(value) for value in values.to_list()]
        return pl.Series(values.name, lists, dtype=pl.String)
    if isinstance(values.dtype, (pl.String, *_CATEGORIES)):
        return values.cast(pl.String).str.replace(_FORMULA, "'$0")
    return values


def to_json(result: Content, *, top: int | None = None) -> bytes:
    """Return ``Result.to_dict()`` as JSON with at most ``top`` rows per table; NaN is null.

    ``schema_version`` is :data:`~traceanalyzer.drawings.SCHEMA_VERSION`.
    """
    values = {"schema_version": SCHEMA_VERSION} | result.to_dict()
    if top is not None:
        values |= {table.name: table.frame.head(top).to_dicts() for table in result.tables}
    return as_json(values)


def as_json(values: Mapping[str, Any]) -> bytes:
    """Return plain Python values as JSON, sorted and indented; NaN is null."""
    import orjson

    options = (
        orjson.OPT_SORT_KEYS
        | orjson.OPT_INDENT_2
        | orjson.OPT_NON_STR_KEYS
        | orjson.OPT_SERIALIZE_NUMPY
        | orjson.OPT_APPEND_NEWLINE
    )
    return orjson.dumps({key: _fitting(value) for key, value in values.items()}, option=options)


def _fitting(value: Any) -> Any:
    """Return an integer beyond 64 bits as the nearest float."""
    beyond = isinstance(value, int) and not -_INT64_END <= value < _UINT64_END
    return float(value) if beyond else value


def to_sqlite(result: Content, *, top: int | None = None) -> bytes:
    """Return an SQLite database: tables, boxes of flame graphs, and ``about``.

    ``about`` contains title, verdict, notes and scalars. Null, NaN and infinity are NULL; a list
    is JSON text; an unsigned number of 2^63 or more is the negative number with the same bits.

    Args:
        result: the result.
        top: rows per table; None means all.
    """
    import sqlite_utils

    database = sqlite_utils.Database(memory=True)
    with closing(database.conn) as connection:
        _about(database, result)
        frames = [(table.name, table.frame) for table in result.tables]
        for name, frame in frames + [(flame.name, flame.frame) for flame in result.flames]:
            _insert(database, name, frame if top is None else frame.head(top))
        connection.commit()
        image: bytes = connection.serialize()
    return image


def _about(database: sqlite_utils.Database, result: Content) -> None:
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
    types: dict[str, type] = {}
    used = set[str]()
    for column, dtype in frame.schema.items():
        while column.lower() in used:  # SQLite ignores the case, a query does not
            column += "_"
        used.add(column.lower())
        types[column] = _type(dtype)
    database.table(name).create(types)
    places = ", ".join("?" * frame.width)
    columns = ([_value(value) for value in column.to_list()] for column in frame)
    # table names come from the analyses, not from input files
    insert = f'INSERT INTO "{name}" VALUES ({places})'  # noqa: S608
    database.conn.executemany(insert, zip(*columns, strict=True))


def _type(dtype: pl.DataType) -> type:
    if dtype.is_float():
        return float
    return int if dtype.is_integer() or dtype == pl.Boolean else str


def _value(value: Any) -> Any:
    """Return a value for SQLite; types it lacks become JSON text."""
    if isinstance(value, int):
        signed = value - _UINT64_END if value >= _INT64_END else value
        return signed if abs(signed) < _INT64_END else float(value)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    return json.dumps(value, default=str)


def to_pandas(frame: pl.DataFrame) -> pd.DataFrame:
    """Convert a frame to pandas; integers with nulls stay integers, nanoseconds stay exact.

    Integers and booleans get pandas' nullable types: otherwise a null would turn a column of
    nanoseconds into floats. Enums become ordered categories.

    Raises:
        MissingExtra: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("to_pandas()", "pandas") from None
    import pyarrow as pa

    nullable = {pa.type_for_alias(name.lower()): pd.api.types.pandas_dtype(name) for name in _WHOLE}
    nullable[pa.bool_()] = pd.BooleanDtype()
    # as text: pyarrow 17 does not convert the dictionaries of polars
    categories = {name: dtype for name, dtype in frame.schema.items() if dtype in _CATEGORIES}
    plain = frame.with_columns(pl.col(name).cast(pl.String) for name in categories)
    converted: pd.DataFrame = plain.to_arrow().to_pandas(types_mapper=nullable.get)
    return converted.astype({name: _category(dtype) for name, dtype in categories.items()})


def _category(dtype: pl.DataType) -> Any:
    import pandas as pd

    if isinstance(dtype, pl.Enum):
        return pd.CategoricalDtype(dtype.categories.to_list(), ordered=True)
    return pd.CategoricalDtype()
