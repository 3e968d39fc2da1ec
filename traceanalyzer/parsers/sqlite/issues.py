"""What could not be read of a database."""

from collections.abc import Iterable, Iterator

import polars as pl

from traceanalyzer.parsers.sqlite.database import Database
from traceanalyzer.parsers.sqlite.pages import File

#: (severity, code, count, where)
Finding = tuple[str, str, int, str | None]


def of_file(file: File, damage: str | None) -> Iterator[Finding]:
    """Report a damaged or truncated file."""
    if damage:
        yield "data_loss", "damaged-file", 1, damage
    if file.missing:
        yield "data_loss", "truncated", 1, f"byte {file.size:,} of {file.size + file.missing:,}"


def of_rows(parts: Iterable[pl.DataFrame], timeless: int) -> Iterator[Finding]:
    """Report rows without a time, or that end before they start."""
    if timeless:
        yield "data_loss", "no-time", timeless, None
    lengths = [part["dur"] for part in parts if "dur" in part.columns]
    if negative := sum(int((length < 0).sum()) for length in lengths):
        yield "notice", "negative-duration", negative, None


def of_database(database: Database) -> Iterator[Finding]:
    """Report rows on damaged pages, and values of a wrong type."""
    for table, rows in sorted(database.losses.rows.items()):
        yield "data_loss", "unreadable-rows", sum(rows.values()), f"{table}, row {min(rows)}"
    for table, values in sorted(database.losses.mistyped.items()):
        if count := sum(values.values()):
            yield "data_loss", "wrong-type", count, table
