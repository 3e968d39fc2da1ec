"""A SQLite file of a stranger, read fast and without touching it.

The file is opened read-only and immutable: no lock, no journal, nothing is written beside it, and
views, triggers and virtual tables are never used. Whole numbers of ordinary tables are read from
the pages themselves (:mod:`.pages`); everything else, and what is out of the ordinary, by SQLite in
ranges of row ids, several at a time, into Arrow memory (ADBC). 6 million rows of 5 columns on two
cores: about half a second, by ADBC alone 1.3 s; ``pandas.read_sql`` takes 10 s.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import adbc_driver_manager as adbc
import adbc_driver_sqlite
import polars as pl

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Progress
from traceanalyzer.parsers.nsys_sqlite import pages
from traceanalyzer.parsers.source import threads

#: Rows read at once by a thread; more cost memory, fewer time.
PIECE_ROWS = 1 << 17
#: A damaged page holds about as many rows: what is smaller is not searched for readable ones.
_SMALLEST = 64
#: So many damaged places of a piece are searched around; one with more is not worth the time.
_MOST_DAMAGED = 250
#: What stands in place of bytes that are no UTF-8.
NO_TEXT = "\ufffd"
#: Longer texts are not names; reading one of a gigabyte would take as much memory.
_LONGEST_TEXT = 1 << 16
_NO_DATABASE = "not an SQLite database, or an encrypted one"
_ROW_IDS = ("rowid", "_rowid_", "oid")

#: What is raised where SQLite does not like the file; its message may hold the file's bytes.
_SQLITE_ERRORS = (adbc.Error, sqlite3.Error, OSError, UnicodeError, pl.exceptions.PolarsError)

Shape = Callable[[pl.DataFrame], pl.DataFrame]


@dataclass
class Losses:
    """What could not be read, by table; a row that is asked for again is not lost again.

    Attributes:
        rows: ranges of row ids that are lost, by their first: how many.
        mistyped: values that are of another type than their column's, by the first row id.
    """

    rows: dict[str, dict[int, int]] = field(default_factory=dict)
    mistyped: dict[str, dict[int, int]] = field(default_factory=dict)


class Database:
    """An opened database: its tables with their columns, and rows of them.

    Attributes:
        tables: the columns of each table; views and virtual tables are not among them.
        losses: what could not be read so far.
    """

    def __init__(self, path: str, shown: str, progress: Progress | None = None) -> None:
        self._uri = Path(path).absolute().as_uri() + "?mode=ro&immutable=1"
        self._shown = shown
        self.losses = Losses()
        self._database = adbc_driver_sqlite.connect(self._uri)
        self._connections: list[adbc.AdbcConnection] = []
        self._mine = threading.local()
        self._damaged_schema = False
        self._pool = ThreadPoolExecutor(threads())
        self._progress = progress
        self._rows_read = self._expected = 0
        self._size = Path(path).stat().st_size
        self._places: dict[str, pages.Place] = {}
        try:
            self.tables = self._listed()
        except _SQLITE_ERRORS as error:
            self.tables = self._salvaged(error)
        self._pages = pages.PageFile(path)

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown(cancel_futures=True)
        self._pages.close()
        for connection in self._connections:
            connection.close()
        self._database.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(self, *tables: str) -> None:
        """Tell for the progress which tables will be read."""
        self._expected = sum(last - first + 1 for t in tables for first, last in self._pieces(t))

    def has(self, *tables: str) -> bool:
        """Whether any of the tables is there."""
        return any(table in self.tables for table in tables)

    def read(
        self,
        table: str,
        *,
        integers: Sequence[str] = (),
        texts: Sequence[str] = (),
        reals: Sequence[str] = (),
        blobs: Sequence[str] = (),
        where: str | None = None,
        shape: Shape | None = None,
        first: int | None = None,
    ) -> pl.DataFrame:
        """Columns of a table, in the order of its rows.

        Args:
            table: its name; a table that is not there has no rows.
            integers: columns of whole numbers; Int64. What is of another type is null and counted.
            texts: columns of text; String. Bytes that are no UTF-8 are replaced.
            reals: columns of numbers; Float64.
            blobs: columns of bytes; Binary.
            where: an SQL condition that rows must meet; only if it names columns that are there.
            shape: what to make of each piece, in the thread that read it.
            first: only so many row ids, from the first.

        Returns:
            The columns by these names; one that the table lacks is null.
        """
        columns = {
            **dict.fromkeys(integers, INTEGER),
            **dict.fromkeys(texts, TEXT),
            **dict.fromkeys(reals, REAL),
            **dict.fromkeys(blobs, BLOB),
        }
        query = Query(table, columns, self.tables.get(table, ()), where)
        plain = query.have and where is None and first is None and not (texts or reals or blobs)
        found = self._scanned(query, shape) if plain else None
        if found is None:
            pieces = self._pieces(table, first)
            parts = self._pool.map(lambda piece: self._piece(query, shape, *piece), pieces)
            found = self._gathered(parts)
        if not found:
            found = [shape(query.empty()) if shape else query.empty()]
        return pl.concat(found, how="vertical", rechunk=False)

    # --- what is there ---------------------------------------------------------------------

    def _listed(self) -> dict[str, tuple[str, ...]]:
        """All tables with their columns; computed columns and virtual tables are left out."""
        found = {}
        with contextlib.closing(sqlite3.connect(self._uri, uri=True)) as connection:
            connection.text_factory = decoded
            connection.execute("PRAGMA trusted_schema = OFF")
            listed = connection.execute(
                "SELECT name, rootpage, sql FROM sqlite_master WHERE type = 'table'"
            )
            for table, root, sql in listed.fetchall():
                if NO_TEXT in table or (sql or "").lstrip().upper().startswith("CREATE VIRTUAL"):
                    continue
                quoted = table.replace('"', '""')
                columns = connection.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall()
                stored = [row for row in columns if not row[-1]]
                found[table] = tuple(name for _, name, *_ in stored)
                if root and stored and len(stored) == len(columns):
                    keys = [(name, kind, key) for _, name, kind, _, _, key, _ in columns]
                    self._places[table] = pages.place_of(root, keys)
        return found

    def _salvaged(self, error: Exception) -> dict[str, tuple[str, ...]]:
        """The tables whose definitions can be read, where not all can."""
        self._damaged_schema = True
        self._places = {}
        names = 'SELECT CAST("name" AS BLOB) AS "name" FROM'
        try:
            listed = self._run(f"{names} pragma_table_list WHERE type = 'table'")
        except _SQLITE_ERRORS:
            raise self._unusable(str(error)) from None
        found = {}
        for table in utf8(listed["name"]):
            quoted = table.replace("'", "''")
            with contextlib.suppress(*_SQLITE_ERRORS):
                columns = self._run(f"{names} pragma_table_info('{quoted}')")["name"]
                found[table] = tuple(utf8(columns))
        if not any(found.values()):
            raise self._unusable(str(error))
        with contextlib.suppress(*_SQLITE_ERRORS):
            roots = self._run(f"{names.replace('FROM', ', rootpage FROM')} sqlite_schema")
            self._places = {
                table: pages.Place(root, {}, None)
                for table, root in zip(utf8(roots["name"]), roots["rootpage"], strict=True)
            }
        return found

    def _unusable(self, why: str) -> MalformedInput:
        what = _NO_DATABASE if "not a database" in why else f"cut off or damaged: {why}"
        hint = "export the report again: nsys export --type sqlite"
        return MalformedInput(self._shown, what, hint=hint)

    def _row_id(self, table: str) -> str:
        """A name of the row id that is not hidden by a column."""
        columns = {column.lower() for column in self.tables[table]}
        return next((name for name in _ROW_IDS if name not in columns), "rowid")

    def _pieces(self, table: str, most: int | None = None) -> Iterator[tuple[int, int]]:
        """Ranges of row ids, the first and the last of each."""
        if table not in self.tables:
            return
        row_id = self._row_id(table)
        ends: list[int | None] = []
        for end in ("min", "max"):
            query = f'SELECT {end}({row_id}) AS "id" FROM "{table}"'  # noqa: S608 - our own words
            try:
                ends.append(self._run(query)["id"].item())
            except _SQLITE_ERRORS:
                place = self._places.get(table)
                last_told = self._pages.last_row_id(place.root) if place else None
                if last_told is None:
                    self.losses.rows.setdefault(table, {})[0] = 1
                    return
                if end == "max":  # the rows behind it are lost, nobody knows how many
                    self.losses.rows.setdefault(table, {})[last_told + 1] = 1
                ends.append(1 if end == "min" else last_told)
        first, last = ends
        if first is None or last is None:
            return
        if most is not None:
            last = min(last, first + most - 1)
        if last - first >= self._size:  # every row takes bytes: these ids are far apart
            yield first, last
            return
        for low in range(first, last + 1, PIECE_ROWS):
            yield low, min(low + PIECE_ROWS - 1, last)

    # --- reading ---------------------------------------------------------------------------

    def _scanned(self, query: Query, shape: Shape | None) -> list[pl.DataFrame] | None:
        """The table by its pages; None where they are not all of the ordinary sort."""
        place = self._places.get(query.table)
        if place is None or not place.can_scan(query.columns):
            return None
        leaves = self._pages.leaves(place.root)
        if leaves is None:
            return None

        def scan(start: int) -> pl.DataFrame | None:
            some = leaves[start : start + pages.AT_ONCE]
            rows = self._pages.numbers(some, place, tuple(query.columns))
            return None if rows is None else shape(rows) if shape else rows

        return self._gathered(self._pool.map(scan, range(0, len(leaves), pages.AT_ONCE)))

    def _gathered(self, parts: Iterator[pl.DataFrame | None]) -> list[pl.DataFrame] | None:
        """The parts, with their progress; None where one is None."""
        found = []
        for part in parts:
            if part is None:
                return None
            found.append(part)
            self._rows_read += part.height
            if self._progress and self._expected:
                share = min(self._rows_read / self._expected, 1.0)
                self._progress(int(self._size * share), self._size)
        return found

    def _piece(self, query: Query, shape: Shape | None, low: int, high: int) -> pl.DataFrame:
        row_id = self._row_id(query.table)
        frame = self._rows(query, row_id, low, high, [])
        # copied, so that the driver's memory is free for the next piece
        return (shape(frame) if shape else frame).rechunk()

    def _rows(
        self, query: Query, row_id: str, low: int, high: int, damaged: list[int]
    ) -> pl.DataFrame:
        """Rows of a range; where a page is damaged, those before and behind it.

        ``damaged`` are the places of the piece that were met so far.
        """
        bounds = f"{row_id} BETWEEN {low} AND {high}"
        try:
            found = self._run(query.sql(bounds))
            if query.is_typed(found):
                return query.rows(found)
            return self._checked(query, bounds, low)
        except _SQLITE_ERRORS as error:
            if "mismatch" in str(error):
                return self._checked(query, bounds, low)
        if high - low < _SMALLEST or len(damaged) > _MOST_DAMAGED:
            damaged.append(low)
            self.losses.rows.setdefault(query.table, {})[low] = high - low + 1
            return query.empty()
        middle = (low + high) // 2
        halves = (low, middle), (middle + 1, high)
        return pl.concat([self._rows(query, row_id, *half, damaged) for half in halves])

    def _checked(self, query: Query, bounds: str, low: int) -> pl.DataFrame:
        """Rows of which some values are not of their column's type: those are null."""
        frame = query.rows(self._run(query.sql(bounds, checked=True)))
        wrong = self._run(query.mistyped(bounds))["n"].item()
        lost = self.losses.mistyped.setdefault(query.table, {})
        lost[low] = max(lost.get(low, 0), wrong or 0)
        return frame

    def _run(self, sql: str) -> pl.DataFrame:
        """The rows of a query, on this thread's connection."""
        connection = getattr(self._mine, "connection", None)
        if connection is None:
            connection = self._mine.connection = self._connected()
        with adbc.AdbcStatement(connection) as statement:
            statement.set_options(**{"adbc.sqlite.query.batch_rows": str(1 << 16)})
            statement.set_sql_query(sql)
            stream: Any = statement.execute_query()[0]
            return pl.DataFrame(stream)

    def _connected(self) -> adbc.AdbcConnection:
        connection = adbc.AdbcConnection(self._database)
        self._connections.append(connection)
        self._mine.connection = connection
        for pragma in ("trusted_schema = OFF", "cell_size_check = ON"):
            self._run(f"PRAGMA {pragma}")
        if self._damaged_schema:  # what can be read of the tables' definitions is taken
            self._run("PRAGMA writable_schema = ON")
            with contextlib.suppress(*_SQLITE_ERRORS):
                self._run("SELECT name FROM sqlite_schema")
        return connection


@dataclass(frozen=True)
class Sort:
    """What a column is read as: its dtype, and a value that tells ADBC so."""

    dtype: type[pl.DataType]
    example: str


INTEGER, TEXT = Sort(pl.Int64, "0"), Sort(pl.String, "x''")
REAL, BLOB = Sort(pl.Float64, "0.0"), Sort(pl.Binary, "x''")


@dataclass(frozen=True)
class Query:
    """Columns of a table as SQL.

    Attributes:
        table: its name.
        columns: those wanted, and as what.
        have: the columns that the table has.
        where: a condition that rows must meet.
    """

    table: str
    columns: Mapping[str, Sort]
    have: Sequence[str]
    where: str | None

    def sql(self, bounds: str, *, checked: bool = False) -> str:
        """The query; its first row is a dummy that tells ADBC each column's type."""
        dummy = ", ".join(f'{sort.example} AS "{name}"' for name, sort in self.columns.items())
        columns = ", ".join(self._value(name, checked=checked) for name in self.columns)
        where = f"{bounds} AND ({self.where})" if self.where else bounds
        return f'SELECT {dummy} UNION ALL SELECT {columns} FROM "{self.table}" WHERE {where}'  # noqa: S608

    def _value(self, name: str, *, checked: bool) -> str:
        if name not in self.have:
            return "NULL"
        column, sort = f'"{name}"', self.columns[name]
        size = f"octet_length({column})"
        if sort in (TEXT, BLOB):
            told = f"CAST('(text of ' || {size} || ' bytes)' AS BLOB)"
            long = f" WHEN {column} IS NOT NULL THEN {told}" if sort is TEXT else ""
            return f"CASE WHEN {size} <= {_LONGEST_TEXT} THEN CAST({column} AS BLOB){long} END"
        if sort is REAL:
            return (
                f"CASE WHEN typeof({column}) IN ('real', 'integer') THEN CAST({column} AS REAL) END"
            )
        return f"CASE WHEN typeof({column}) = 'integer' THEN {column} END" if checked else column

    def mistyped(self, bounds: str) -> str:
        """A query for the number of integers that are none."""
        tests = " + ".join(
            f"(typeof(\"{name}\") NOT IN ('integer', 'null'))"
            for name in self._of(INTEGER)
            if name in self.have
        )
        return f'SELECT sum({tests}) AS "n" FROM "{self.table}" WHERE {bounds}'  # noqa: S608

    def is_typed(self, rows: pl.DataFrame) -> bool:
        """Whether the integers are: ADBC widens a column whose first rows are not."""
        return all(rows.schema[name] == pl.Int64 for name in self._of(INTEGER))

    def rows(self, found: pl.DataFrame) -> pl.DataFrame:
        """The rows behind the dummy, texts as text."""
        own, texts = found.slice(1), self._of(TEXT)
        return own.with_columns(utf8(own[name]) for name in texts) if texts else own

    def empty(self) -> pl.DataFrame:
        """What there is where nothing can be read."""
        return pl.DataFrame(schema={name: sort.dtype for name, sort in self.columns.items()})

    def _of(self, sort: Sort) -> list[str]:
        return [name for name, own in self.columns.items() if own is sort]


def decoded(data: bytes) -> str:
    """Bytes as text; what is no UTF-8 is replaced by :data:`NO_TEXT`."""
    return data.decode("utf-8", "replace")


def utf8(binary: pl.Series) -> pl.Series:
    """A column of bytes as text, as :func:`decoded`."""
    try:
        return binary.cast(pl.String)
    except pl.exceptions.PolarsError:
        texts = [None if b is None else decoded(b) for b in binary]
        return pl.Series(binary.name, texts, dtype=pl.String)
