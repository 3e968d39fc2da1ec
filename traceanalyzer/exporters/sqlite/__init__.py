"""A tidy SQLite database, for Datasette and plain SQL.

A Trace enters; a database leaves: every table of the schema, with ``names``, ``arguments``,
``sources``, ``devices`` and ``about`` beside them. ``tables`` says which columns there are,
``rows`` fills them, ``views`` answers first questions. It is for other programs: no parser of this
package reads it back.

Names of events, functions, files and counters are numbers in ``names``: there are few of them, they
are long, and the database is half as large. Arguments lie in a table of their own, so that whoever
goes through ``events`` does not go through them. An address of 2^63 or more is the negative number
of the same bits, which ``printf('%x', address)`` shows rightly; SQLite has no larger integers. NaN
is null.
"""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import IO, TYPE_CHECKING

import adbc_driver_manager as adbc

from traceanalyzer import schema
from traceanalyzer.errors import OutputError
from traceanalyzer.exporters.sqlite import tables, views
from traceanalyzer.exporters.sqlite.rows import Names, fill
from traceanalyzer.sqlite_tools import sqlite_utils

if TYPE_CHECKING:
    from traceanalyzer.trace import Trace

#: The file is not there under its name before it is whole: a journal would save nothing.
_PRAGMAS = ("journal_mode = off", "synchronous = off", "locking_mode = exclusive")
#: Rows of each index that are looked at to choose between indexes later.
_ANALYSED = 1000


def write_sqlite(trace: Trace, file: IO[bytes]) -> None:
    """Write a trace as an SQLite database, some ten thousand rows in memory at a time.

    Args:
        trace: what to write; nothing is left out, on-request columns are kept where they are there.
        file: an empty file with a name, opened for writing; SQLite writes it itself.

    Raises:
        OutputError: the output is a pipe or a device.
        OSError: SQLite could not write.
    """
    path = Path(file.name)
    if not path.is_file():
        raise OutputError(f"{path}: a database is written to a file, not to a pipe or a device")
    names = Names(trace)
    try:
        with closing(_opened(path)) as connection:
            tables.create(sqlite_utils.Database(connection))
        fill(path, _PRAGMAS, trace, names)
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
    """What is made at the end: the few rows about the trace, indexes and views."""
    tables.describe(database, trace)
    for table, columns, condition in tables.INDEXES:
        where = f" WHERE {condition}" if condition else ""
        name = "_".join(("ix", table, *columns))
        listed = ", ".join(f'"{column}"' for column in columns)
        database.execute(f'CREATE INDEX "{name}" ON "{table}" ({listed}){where}')
    for name, query in views.VIEWS.items():
        database.create_view(name, query)
    database.execute(f"PRAGMA application_id = {schema.SQLITE_APPLICATION}")
    database.execute(f"PRAGMA user_version = {schema.VERSION}")
    database.execute(f"PRAGMA analysis_limit = {_ANALYSED}")
    database.execute("ANALYZE")
