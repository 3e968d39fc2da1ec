"""Which tables and columns a database has, and what it says about itself."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import polars as pl

from traceanalyzer import schema

if TYPE_CHECKING:
    import sqlite_utils

    from traceanalyzer.trace import Trace

#: Columns whose texts are long and often repeated: numbers in ``names``.
NAMED = ("name", "file", "series", "group_ranks")

#: Columns that hold a row's number in another table.
_POINTS_TO = {"event": "events", "stack": "stacks", "segment": "segments"}

#: Table, columns, and which rows only.
INDEXES: tuple[tuple[str, tuple[str, ...], str], ...] = (
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
    "what": "a trace of a profiler, written by traceanalyzer convert",
    "times": "whole nanoseconds on the trace's clock: ts - start_ns is the time since the start",
    "sizes": "bytes",
    "null": "not there, not known; never zero",
    "names": "columns that end in name_id, file_id, series_id or group_ranks_id: names.id",
    "arguments": "JSON text as the profiler wrote it: json_extract(args, '$.\"Seq\"')",
    "addresses": "printf('0x%x', address); those from 2^63 on are negative",
    "columns": "about_columns says what each column of each table means",
}


def stored_name(column: str) -> str:
    """What a column of the schema is called in the database."""
    return f"{column}_id" if column in NAMED else column


def create(database: sqlite_utils.Database) -> None:
    """All tables, empty; those that nothing was recorded for stay so."""
    _create(database, "names", {"id": int, "name": str}, key="id")
    # what others point to has to be there before them
    for name in ("stacks", "events", *schema.TABLES):
        if not database.table(name).exists():
            _create_of_schema(database, name)
    columns = {"event": int, "args": str, "input_dims": str}
    _create(database, "arguments", columns, key="event", points={"event": "events"})


def describe(database: sqlite_utils.Database, trace: Trace) -> None:
    """``about``, ``about_columns``, and what the files say of themselves."""
    database.execute("CREATE TABLE about (key TEXT PRIMARY KEY, value)")
    about = {**_ABOUT, "schema_version": schema.VERSION, "start_ns": start(trace)}
    database.conn.executemany("INSERT INTO about VALUES (?, ?)", about.items())
    explained = [
        {
            "table_name": table,
            "column_name": stored_name(column.name),
            "unit": column.unit,
            "meaning": column.meaning,
            "null_says": None if column.null == "never" else column.null,
        }
        for table, columns in schema.TABLES.items()
        for column in columns
    ]
    database.table("about_columns").insert_all(explained)
    sources = [asdict(meta) for meta in trace.sources]
    devices = [
        {"source": number, **device}
        for number, source in enumerate(sources)
        for device in source.pop("devices")
    ]
    _create(database, "sources", {"id": int, **_SOURCE}, key="id")
    database.table("sources").insert_all({"id": at, **source} for at, source in enumerate(sources))
    columns = {"source": int, "id": int, "name": str, "total_bytes": int}
    _create(database, "devices", columns, points={"source": "sources"})
    database.table("devices").insert_all(devices)


_SOURCE: dict[str, Any] = {
    "path": str,
    "format": str,
    "version": str,
    "epoch_ns": int,
    "start_ns": int,
    "rank": int,
    "world_size": int,
    "host": str,
    "backend": str,
    "extra": str,
    "weight_unit": str,
}


def start(trace: Trace) -> int:
    """Time of the first event of all files; 0 where nothing has a time."""
    told = [meta.start_ns for meta in trace.sources if meta.start_ns is not None]
    first = min(told) if told else trace.events["ts"].min()
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
        stored = stored_name(column.name)
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
