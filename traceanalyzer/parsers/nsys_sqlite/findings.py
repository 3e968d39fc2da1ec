"""What is missing, odd or lost in an export: rows of ``issues``."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.database import Database
from traceanalyzer.parsers.nsys_sqlite.export import Export
from traceanalyzer.parsers.nsys_sqlite.file import File
from traceanalyzer.parsers.nsys_sqlite.identity import Identity

#: (severity, code, count, where)
Finding = tuple[str, str, int, str | None]

#: The newest schema whose description has been read.
_KNOWN_SCHEMA = (3, 30)
#: Messages of nsys that warn or tell of an error; what is less is not said.
_SEVERITIES = (2, 3, 4)
_MOST_MESSAGES = 20
_LONGEST_MESSAGE = 200


def without_columns(database: Database) -> list[Finding]:
    """Tables that lack a column we cannot do without; they are taken for not there."""
    found: list[Finding] = []
    for table, required in layout.REQUIRED.items():
        missing = [c for c in required if c not in database.tables.get(table, required)]
        if missing:
            del database.tables[table]
            found.append(("data_loss", "missing-column", 1, f"{table}.{missing[0]}"))
    return found


def of_file(file: File, damage: str | None) -> Iterator[Finding]:
    """A file that is cut off."""
    if damage:
        yield "data_loss", "damaged-file", 1, damage
    if file.missing:
        yield "data_loss", "truncated", file.missing, f"byte {file.size:,}"


def of_rows(events: pl.DataFrame, timeless: int) -> Iterator[Finding]:
    """Rows without a time, or that end before they start."""
    if timeless:
        yield "data_loss", "no-time", timeless, None
    if negative := int((events["dur"] < 0).sum()):
        yield "notice", "negative-duration", negative, None


def of_database(database: Database) -> Iterator[Finding]:
    """Rows on damaged pages, values of a wrong type."""
    for table, rows in sorted(database.losses.rows.items()):
        yield "data_loss", "unreadable-rows", sum(rows.values()), f"{table}, row {min(rows)}"
    for table, values in sorted(database.losses.mistyped.items()):
        if count := sum(values.values()):
            yield "data_loss", "wrong-type", count, table


def of_export(export: Export, identity: Identity, version: str | None) -> Iterator[Finding]:
    """What nsys warned of, what was not recorded, what we do not read, whom we numbered."""
    yield from _messages(export)
    if identity.numbered:
        count = len(identity.ranks)
        yield "notice", "ranks-numbered", count, "no process tells its rank: numbered by device"
    if _schema(version) > _KNOWN_SCHEMA:
        yield (
            "notice",
            "newer-schema",
            1,
            f"{version}; known is {_KNOWN_SCHEMA[0]}.{_KNOWN_SCHEMA[1]}",
        )
    yield from _not_recorded(export.database)
    for table in sorted(export.database.tables):
        known = table in layout.REQUIRED or table in layout.DESCRIBING
        if not known and not table.startswith(layout.DESCRIBING_PREFIXES):
            yield "info", "not-read", 1, table


def _messages(export: Export) -> Iterator[Finding]:
    """Warnings and errors that nsys wrote while it recorded, each text once."""
    rows = export.database.read(layout.DIAGNOSTICS, integers=("severity",), texts=("text",))
    told = rows.drop_nulls().filter(pl.col("severity").is_in(_SEVERITIES))
    counted = told.group_by("text", maintain_order=True).len()
    for text, count in counted.head(_MOST_MESSAGES).iter_rows():
        line = " ".join(text.split())
        yield "info", "nsys-message", count, line[:_LONGEST_MESSAGE]


def _not_recorded(database: Database) -> Iterator[Finding]:
    """What nsys was not asked to record, with the option that does.

    A table that is missing beside one of the same option says that there was nothing to record.
    """
    said = {r.option for r in layout.RECORDINGS if database.has(r.table)}
    for recording in layout.RECORDINGS:
        if recording.option not in said:
            said.add(recording.option)
            yield "info", "not-recorded", 1, f"{recording.what}: nsys profile {recording.option}"


def _schema(version: str | None) -> tuple[int, int]:
    number = (version or "").partition("schema ")[2].rstrip(")")
    parts = number.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return 0, 0
    return int(parts[0]), int(parts[1])
