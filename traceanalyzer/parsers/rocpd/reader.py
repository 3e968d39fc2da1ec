"""Build a trace from an open database: ranks, rows in order, issues."""

from collections.abc import Iterator
from dataclasses import replace
from types import ModuleType

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.rocpd import rpd, v3
from traceanalyzer.parsers.rocpd.recording import Recording
from traceanalyzer.parsers.source import Source, rank_from_name
from traceanalyzer.parsers.sqlite.database import Database
from traceanalyzer.parsers.sqlite.pages import on_disk
from traceanalyzer.parsers.sqlite.rows import (
    DatabaseReader,
    assemble,
    lanes_of,
    negative,
    numbered_by_device,
    of_database,
    of_file,
    of_rows,
)
from traceanalyzer.trace import Issue, Meta, Trace, issue_rows
from traceanalyzer.vocabulary import RANKS_NUMBERED, ROCPD, SHARED_DEVICE, SHARING

_WRITER = "the profiler"
_REMEDY = "record it again, or recover it: sqlite3 FILE .recover"


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read the selected rows of a recording.

    Raises:
        UnknownFormat: the database is neither an RPD file nor one of rocprofv3.
        MalformedInput: it is being written, or too damaged to list its tables.
        UnreadableFile: the file cannot be read.
    """
    with (
        on_disk(source, _WRITER) as file,
        Database(file.path, source.path, progress, remedy=_REMEDY) as database,
    ):
        # rocprofv3's tables have names that RPD's do not have
        layout = rpd if database.has(*rpd.IDENTIFYING) else v3
        names = {layout.logical_name(table) for table in database.tables}
        if names.isdisjoint(layout.IDENTIFYING):
            raise UnknownFormat(
                source.path, "an SQLite database, but not a recording of RPD or rocprofv3"
            )
        unusable = _without_columns(database, layout)
        reading = DatabaseReader(database, selection)
        recording = layout.read(reading)
        parts = [reading.selected(part) for part in recording.parts]
        timeless = sum(part["ts"].null_count() for part in parts)
        parts = [part.drop_nulls("ts") for part in parts]
        odd = [*of_rows(timeless, negative(parts))]
        trace = _trace(recording, parts, reading, source.path)
        issues = [
            *source.issues,
            *of_file(file),
            *unusable,
            *odd,
            *of_database(database),
            *recording.issues,
            *_of_recording(database, recording, layout),
        ]
    return replace(trace, issues=issue_rows(issues, trace.meta.rank))


def _trace(
    recording: Recording, parts: list[pl.DataFrame], reading: DatabaseReader, path: str
) -> Trace:
    """Return the trace without its issues."""
    rank, ranks = _ranks(recording, path)
    kinds = reading.selection.kinds
    frames = assemble([_with_rank(part, rank, ranks).drop("owner") for part in parts])
    counters = recording.counters.with_columns(rank=pl.lit(rank, dtype=pl.Int32))
    ordered = counters.sort("ts", maintain_order=True)
    frames["counters"] = ordered.select(*schema.types("counters"))
    if kinds is None or "lane" in kinds:
        frames["lanes"] = lanes_of(_with_rank(recording.lanes, rank, ranks))
    sizes = [size for _, size in recording.ranks.values() if size is not None]
    meta = Meta(
        path=path,
        format=ROCPD,
        version=recording.version,
        start_ns=recording.start_ns,
        rank=rank,
        world_size=max(sizes, default=None),
        devices=recording.devices,
        host=recording.host,
    )
    return Trace(sources=(meta,), **frames)


def _ranks(recording: Recording, path: str) -> tuple[int | None, dict[int, int]]:
    """Return the rank of the whole file, or the rank of each process.

    From the recorded environment; with one process on the GPUs, from the file's name; several
    processes without a recorded rank are numbered by GPU, or else in the order of their ids.
    """
    ranks = {owner: rank for owner, (rank, _) in recording.ranks.items()}
    if len(ranks) == 1 or len(set(ranks.values())) == 1:
        return next(iter(ranks.values())), {}
    if ranks:
        return None, ranks
    devices: dict[int, set[int | None]] = {}
    for owner, device in recording.used.drop_nulls("owner").iter_rows():
        devices.setdefault(owner, set()).add(device)
    if len(devices) < 2 or _share_a_device(recording):
        return rank_from_name(path), {}
    return None, numbered_by_device(devices)


def _share_a_device(recording: Recording) -> bool:
    """Whether several processes use the only GPU: they are not the ranks of a job, one per GPU.

    If there are several, device numbers may be local to a process.
    """
    used = recording.used.drop_nulls().unique(["owner", "device"])
    return len(recording.devices) == 1 and used.height > used["device"].n_unique()


def _with_rank(rows: pl.DataFrame, rank: int | None, ranks: dict[int, int]) -> pl.DataFrame:
    if not ranks:
        return rows.with_columns(rank=pl.lit(rank, dtype=pl.Int32))
    known = pl.col("owner").replace_strict(ranks, default=None, return_dtype=pl.Int32)
    return rows.with_columns(rank=known)


def _without_columns(database: Database, layout: ModuleType) -> list[Issue]:
    """Report missing tables; drop tables without a required column, and report them."""
    names = {table: layout.logical_name(table) for table in sorted(database.tables)}
    issues: list[Issue] = [
        ("data_loss", "missing-table", 1, table)
        for table in layout.ESSENTIAL
        if table not in names.values()
    ]
    for table, name in names.items():
        columns = layout.REQUIRED.get(name, ())
        missing = [column for column in columns if column not in database.tables[table]]
        if missing:
            del database.tables[table]
            issues.append(("data_loss", "missing-column", 1, f"{table}.{missing[0]}"))
    return issues


def _of_recording(database: Database, recording: Recording, layout: ModuleType) -> Iterator[Issue]:
    """Report assumed ranks and tables that were not read."""
    owners = recording.used["owner"].drop_nulls().n_unique()
    if owners > 1 and not recording.ranks and _share_a_device(recording):
        yield "notice", SHARED_DEVICE, owners, SHARING.format(owners)
    elif owners > 1 and not recording.ranks:
        yield "notice", RANKS_NUMBERED, owners, "ranks not recorded: numbered by device"
    for table in sorted(database.tables):
        if layout.logical_name(table) is None and table != "sqlite_sequence":
            yield "info", "not-read", 1, table
