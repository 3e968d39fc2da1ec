"""SQLite database for Datasette and plain SQL.

Contains every table of the schema, plus ``names``, ``arguments``, ``sources``, ``devices`` and
``about``, and views for common questions. For other programs: no parser of this package reads it.

Names of events, functions, files and counters are ids in ``names``: they are few and long, and the
database is half as large. Arguments have a separate table, so that scans of ``events`` do not read
them. An address of 2^63 or more is stored as the negative number with the same bits, which
``printf('%x', address)`` formats correctly, as SQLite has no unsigned integers. NaN is null.
"""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import adbc_driver_manager as adbc
import adbc_driver_sqlite.dbapi
import polars as pl
import sqlite_utils
from adbc_driver_manager.dbapi import Cursor

from traceanalyzer import schema
from traceanalyzer.errors import OutputError
from traceanalyzer.trace import Meta, Trace
from traceanalyzer.vocabulary import LAUNCH_KINDS

#: The file gets its name only when it is complete: a journal is useless.
_PRAGMAS = ("journal_mode = off", "synchronous = off", "locking_mode = exclusive")
#: Rows of each index that ANALYZE examines.
_ANALYSED = 1000
#: Rows converted to Arrow per batch.
_ROWS = 1 << 16
#: Rows per batch for texts of any length.
_TEXT_ROWS = 1 << 12
_TEXT_TYPES = (pl.Categorical, pl.Enum)

#: Columns with long, often repeated texts: stored as ids in ``names``.
NAMED = ("name", "file", "series", "group_ranks", "splits_in", "splits_out")

#: Columns with row numbers of another table.
_POINTS_TO = {"event": "events", "stack": "stacks", "segment": "segments"}

#: Table, columns, condition.
_INDEXES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("events", ("ts",), ""),
    ("events", ("kind", "name_id", "dur"), ""),
    ("events", ("name_id",), ""),
    ("events", ("rank", "ts"), "rank IS NOT NULL"),
    ("events", ("correlation",), "correlation IS NOT NULL"),
    ("names", ("name",), ""),
    ("stacks", ("parent",), ""),
    ("launch_configs", ("event",), ""),
    ("collectives", ("event",), ""),
    ("memory_totals", ("event",), ""),
    ("lanes", ("pid", "tid"), ""),
    ("flows", ("flow",), ""),
    ("counters", ("name_id", "ts"), ""),
    ("blocks", ("segment",), ""),
)

_ABOUT = {
    "what": "a profiler trace, written by traceanalyzer convert",
    "times": "integer nanoseconds on the trace's clock: ts - start_ns is the time since the start",
    "sizes": "bytes",
    "null": "missing or unknown; never zero",
    "names": f"columns that end in {'_id, '.join(NAMED)}_id: names.id",
    "arguments": "JSON text as the profiler wrote it: json_extract(args, '$.\"Seq\"')",
    "addresses": "printf('0x%x', address); those from 2^63 on are negative",
    "columns": "about_columns describes every column of every table",
}


def write_sqlite(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as an SQLite database, with some ten thousand rows in memory at a time.

    Args:
        trace: the trace; all tables are written, including optional columns that it has.
        file: an empty named file, open for writing; SQLite writes to its path.

    Raises:
        OutputError: the output is a pipe or a device.
        OSError: SQLite could not write.
    """
    path = Path(file.name)
    if not path.is_file():
        raise OutputError(f"{path}: cannot write a database to a pipe or a device. Pass a file")
    names = _Names(trace)
    try:
        with closing(_opened(path)) as connection:
            _create_tables(sqlite_utils.Database(connection))
        _fill(path, trace, names)
        with closing(_opened(path)) as connection:
            _finish(sqlite_utils.Database(connection), trace)
    except (sqlite3.Error, adbc.Error) as error:
        raise OSError(errno.EIO, str(error).splitlines()[0].lower()) from None


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    return connection


def _finish(database: sqlite_utils.Database, trace: Trace) -> None:
    """Write metadata, indexes and views."""
    _describe(database, trace)
    for table, columns, condition in _INDEXES:
        where = f" WHERE {condition}" if condition else ""
        name = "_".join(("ix", table, *columns))
        listed = ", ".join(f'"{column}"' for column in columns)
        database.execute(f'CREATE INDEX "{name}" ON "{table}" ({listed}){where}')
    for name, query in VIEWS.items():
        database.create_view(name, query)
    database.execute(f"PRAGMA application_id = {schema.SQLITE_APPLICATION}")
    database.execute(f"PRAGMA user_version = {schema.VERSION}")
    database.execute(f"PRAGMA analysis_limit = {_ANALYSED}")
    database.execute("ANALYZE")


# --- tables and their descriptions ----------------------------------------------------------------


def _stored_name(column: str) -> str:
    """Return the name of a schema column in the database."""
    return f"{column}_id" if column in NAMED else column


def _create_tables(database: sqlite_utils.Database) -> None:
    """Create all tables; tables without data stay empty."""
    _create(database, "names", {"id": int, "name": str}, key="id")
    # tables with foreign keys follow the tables they refer to
    for name in ("stacks", "events", *schema.TABLES):
        if not database.table(name).exists():
            _create_of_schema(database, name)
    columns = {"event": int, **dict.fromkeys(schema.ON_REQUEST, str)}
    _create(database, "arguments", columns, key="event", points={"event": "events"})


def _describe(database: sqlite_utils.Database, trace: Trace) -> None:
    """Write ``about``, ``about_columns``, ``sources`` and ``devices``."""
    database.execute("CREATE TABLE about (key TEXT PRIMARY KEY, value)")
    about = {**_ABOUT, "schema_version": schema.VERSION, "start_ns": _start(trace)}
    database.conn.executemany("INSERT INTO about VALUES (?, ?)", about.items())
    explained = [
        {
            "table_name": table,
            "column_name": _stored_name(column.name),
            "unit": column.unit,
            "meaning": column.meaning,
            "null_says": None if column.null == "never" else column.null,
        }
        for table, columns in schema.TABLES.items()
        for column in columns
    ]
    database.table("about_columns").insert_all(explained)
    sources = [meta.recorded() for meta in trace.sources]
    devices = [
        {"source": number, **device}
        for number, source in enumerate(sources)
        for device in source.pop("devices")
    ]
    of_source = {f.name: int if "int" in str(f.type) else str for f in fields(Meta)}
    del of_source["devices"], of_source["window"]
    _create(database, "sources", {"id": int, **of_source}, key="id")
    database.table("sources").insert_all({"id": at, **source} for at, source in enumerate(sources))
    columns = {"source": int, "id": int, "name": str, "total_bytes": int}
    _create(database, "devices", columns, points={"source": "sources"})
    database.table("devices").insert_all(devices)


def _start(trace: Trace) -> int:
    """Return the time of the first event of all files; 0 without any times."""
    starts = [meta.start_ns for meta in trace.sources if meta.start_ns is not None]
    first = min(starts) if starts else trace.events["ts"].min()
    return first if isinstance(first, int) else 0


def _create_of_schema(database: sqlite_utils.Database, name: str) -> None:
    columns: dict[str, Any] = {}
    points: dict[str, str] = {}
    keyed = name in ("stacks", "segments")
    if name == "events":
        columns["id"] = int
    for column in schema.TABLES[name]:
        if column.on_request:
            continue
        stored = _stored_name(column.name)
        columns[stored] = int if column.name in NAMED else _type(column)
        if column.name in NAMED:
            points[stored] = "names"
        elif column.name in _POINTS_TO:
            points[stored] = _POINTS_TO[column.name]
    if name == "stacks":
        points["parent"] = "stacks"
    _create(database, name, columns, key="id" if keyed or name == "events" else None, points=points)


def _create(
    database: sqlite_utils.Database,
    name: str,
    columns: dict[str, Any],
    *,
    key: str | None = None,
    points: dict[str, str] | None = None,
) -> None:
    foreign = [(column, other, "id") for column, other in (points or {}).items()]
    database.table(name).create(columns, pk=key, foreign_keys=foreign)


def _type(column: schema.Column) -> type:
    if column.dtype in (pl.Float64, pl.Float32):
        return float
    is_text = isinstance(column.dtype, pl.Categorical | pl.Enum) or column.dtype == pl.String
    return str if is_text else int


# --- rows, inserted as Arrow batches --------------------------------------------------------------


class _Names:
    """The table ``names``: texts of all columns in ``NAMED``, in order of appearance."""

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
        """Return the ids of a column of texts."""
        numbers = self._numbers.get((table, texts.name))
        if numbers is None:
            return pl.repeat(None, texts.len(), dtype=pl.Int64, eager=True).alias(texts.name)
        return numbers.gather(texts.to_physical()).alias(texts.name)


def _fill(path: Path, trace: Trace, names: _Names) -> None:
    """Insert the trace's rows into the empty tables."""
    uri = path.absolute().as_uri()
    with (
        closing(adbc_driver_sqlite.dbapi.connect(uri, autocommit=True)) as connection,
        closing(connection.cursor()) as cursor,
    ):
        for pragma in _PRAGMAS:
            cursor.execute(f"PRAGMA {pragma}")
            cursor.fetchall()
        cursor.execute("BEGIN")
        _insert(cursor, "names", names.table.iter_slices(_ROWS))
        for name, frame in trace.tables.items():
            stored = frame.drop(schema.ON_REQUEST, strict=False)
            _insert(cursor, name, _batches(name, stored, names))
        _insert(cursor, "arguments", _arguments(trace.events))
        cursor.execute("COMMIT")


def _batches(table: str, frame: pl.DataFrame, names: _Names) -> Iterator[pl.DataFrame]:
    """Yield the table's rows as stored in the database; those of ``events`` with their number."""
    first = 0
    for rows in frame.iter_slices(_ROWS):
        columns = [
            names.numbered(table, column) if column.name in NAMED else _plain(column)
            for column in rows
        ]
        batch = pl.DataFrame([column.alias(_stored_name(column.name)) for column in columns])
        yield batch.with_row_index("id", first) if table == "events" else batch
        first += rows.height


def _arguments(events: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the optional text columns of the rows that have any."""
    present = [name for name in schema.ON_REQUEST if name in events.columns]
    if not present:
        return
    for rows in events.select(present).with_row_index("event").iter_slices(_TEXT_ROWS):
        filled = rows.filter(pl.any_horizontal(pl.col(present).is_not_null()))
        if filled.height:
            yield filled


def _insert(cursor: Cursor, table: str, batches: Iterator[pl.DataFrame]) -> None:
    for batch in batches:
        columns = ", ".join(f'"{name}"' for name in batch.columns)
        places = ", ".join("?" * batch.width)
        rows = batch.to_arrow(compat_level=pl.CompatLevel.oldest())
        # table and column names come from the schema
        insert = f'INSERT INTO "{table}" ({columns}) VALUES ({places})'  # noqa: S608
        cursor.executemany(insert, rows)


def _plain(column: pl.Series) -> pl.Series:
    """Convert a column to a type that SQLite supports."""
    if isinstance(column.dtype, _TEXT_TYPES):
        return column.cast(pl.String)
    if column.dtype == pl.UInt64:
        return column.reinterpret(signed=True)
    return column.cast(pl.Int8) if column.dtype == pl.Boolean else column


def _numbers(names: pl.Series, table: pl.DataFrame) -> pl.Series:
    """Return the id in ``names`` by the physical code of a column; null for unused codes."""
    texts = names.cast(pl.String).alias("name").to_frame()
    ids = texts.join(table, on="name", how="left", maintain_order="left")["id"].cast(pl.Int64)
    codes = names.to_physical()
    room = int(codes.to_numpy().max()) + 1
    return pl.repeat(None, room, dtype=pl.Int64, eager=True).scatter(codes, ids)


# --- views ----------------------------------------------------------------------------------------


def _views() -> dict[str, str]:
    """Return the queries of ``views.sql`` by the names of the views."""
    text = files(__package__).joinpath("views.sql").read_text(encoding="utf-8")
    calls = ", ".join(f"'{kind}'" for kind in LAUNCH_KINDS)
    text = text.replace("$START", "(SELECT value FROM about WHERE key = 'start_ns')")
    _, *parts = text.replace("$CALLS", calls).split("-- view: ")
    named = (part.partition("\n") for part in parts)
    return {name: query.strip() for name, _, query in named}


#: View -> its query.
VIEWS = _views()
