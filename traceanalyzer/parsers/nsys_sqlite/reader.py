"""Build a trace from an open export: read the tables, order the rows, report issues."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.nsys_sqlite import capture, device, host, nvtx, tables
from traceanalyzer.parsers.nsys_sqlite.capture import Finding
from traceanalyzer.parsers.nsys_sqlite.database import Database
from traceanalyzer.parsers.nsys_sqlite.identity import Identity, describe, identify, lanes
from traceanalyzer.parsers.nsys_sqlite.pages import File, on_disk
from traceanalyzer.parsers.source import Source
from traceanalyzer.parsers.tables import Ints, Order, time_order
from traceanalyzer.trace import Trace, issue_rows

#: The newest supported schema.
_KNOWN_SCHEMA = (3, 30)

#: Side tables whose columns the rows may contain in addition to those of ``events``.
_SIDE_TABLES = {
    "launch_configs": schema.LAUNCH_CONFIGS,
    "collectives": schema.COLLECTIVES,
    "memory_totals": schema.MEMORY_TOTALS,
}


_COUNTERS = (tables.GPU_METRICS, tables.NIC_METRICS)


@dataclass(frozen=True)
class _Reader:
    """A reader of some tables.

    Attributes:
        sources: tables, read if any of them exists.
        kinds: kinds of the events in them.
        read: function that returns the rows.
        names: column with the string ids of the rows' names; None if the reader builds the names.
    """

    sources: tuple[str, ...]
    kinds: tuple[str, ...]
    read: Callable[[tables.Export], pl.DataFrame]
    names: str | None = None


def _library(table: str, name: str) -> _Reader:
    read = partial(host.named, table=table, kind="other", category=name)
    return _Reader((table,), ("other",), read, "nameId")


_MPI = (tables.MPI_COLLECTIVES, tables.MPI_P2P, tables.MPI_WAIT, tables.MPI_OTHER)
_READERS = (
    _Reader((tables.KERNEL,), ("kernel",), device.kernels, "demangledName"),
    _Reader((tables.GRAPH_TRACE,), ("kernel",), device.graphs),
    _Reader((tables.MEMCPY,), ("gpu_memcpy",), device.copies),
    _Reader((tables.MEMSET,), ("gpu_memset",), device.memsets),
    _Reader((tables.SYNCHRONIZATION,), ("cuda_sync",), device.synchronisation),
    _Reader((tables.MEMORY_USAGE,), ("alloc", "free_completed"), device.allocations),
    _Reader((tables.RUNTIME,), ("cuda_runtime", "cuda_driver"), host.calls, "nameId"),
    _Reader((tables.NVTX,), ("nvtx",), nvtx.ranges),
    _Reader((tables.OSRT,), ("osrt",), host.system_calls, "nameId"),
    _Reader(
        (tables.OVERHEAD,),
        ("overhead",),
        partial(host.named, table=tables.OVERHEAD, kind="overhead"),
        "nameId",
    ),
    _Reader((tables.CUDA_OVERHEAD,), ("overhead",), host.cuda_overhead),
    _Reader((tables.GPU_FAULTS,), ("page_fault",), device.gpu_faults),
    _Reader((tables.CPU_FAULTS,), ("page_fault",), device.cpu_faults),
    _library(tables.CUDNN, "cudnn"),
    _library(tables.CUBLAS, "cublas"),
    _Reader(_MPI, ("mpi",), host.mpi_calls, "textId"),
    _Reader((tables.SCHED,), ("sched",), host.running),
)


def parse(source: Source, selection: Selection, progress: Progress | None, name: str) -> Trace:
    """Read the selected tables, columns and rows of an export.

    Raises:
        UnknownFormat: the database is not an nsys export.
        MalformedInput: it is being written, or too damaged to list its tables.
        UnreadableFile: the file cannot be read.
    """
    with (
        on_disk(source) as file,
        Database(file.path, source.path, progress) as database,
    ):
        if not database.has(*tables.IDENTIFYING):
            raise UnknownFormat(source.path, "an SQLite database, but not an nsys export")
        unusable = _without_columns(database)
        export = tables.Export(database, selection)
        identity = identify(export, source.path)
        trace, timeless = _trace(export, identity, source.path, name)
        issues = [
            *_of_file(file, source.damage),
            *unusable,
            *_of_rows(trace.events, timeless),
            *_of_database(database),
            *_of_export(export, identity, trace.meta.version),
        ]
    return replace(trace, issues=issue_rows(issues, trace.meta.rank))


def _trace(export: tables.Export, identity: Identity, path: str, name: str) -> tuple[Trace, int]:
    """Return the trace without its issues, and the number of dropped rows without a time."""
    kinds = export.selection.kinds
    readers = [reader for reader in _READERS if _is_selected(export, reader)]
    sampled = (kinds is None or "sample" in kinds) and export.database.has(tables.SAMPLES)
    counted = (kinds is None or "counter" in kinds) and export.database.has(*_COUNTERS)
    export.database.expect(
        *(table for reader in readers for table in reader.sources),
        *((tables.SAMPLES, tables.CALLCHAINS) if sampled else ()),
        *(_COUNTERS if counted else ()),
    )
    processes = export.fills("pid")
    parts = [
        identity.applied(export.selected(reader.read(export)), processes=processes)
        for reader in readers
    ]
    stacks = schema.empty("stacks")
    if sampled:
        samples, stacks = host.samples(export)
        parts.append(identity.applied(samples, processes=processes))
    timeless = sum(part["ts"].null_count() for part in parts)
    if timeless:
        parts = [part.drop_nulls("ts") for part in parts]
    frames = assemble(parts)
    if counted:
        both = pl.concat([device.gpu_metrics(export), device.nic_metrics(export)])
        frames["counters"] = both.sort("ts", maintain_order=True)
    if kinds is None or "lane" in kinds:
        threads = frames["events"].select("pid", "tid").unique()
        frames["lanes"] = lanes(export, identity, threads)
    meta = describe(export, identity, path, name)
    return Trace(sources=(meta,), **{**frames, "stacks": stacks}), timeless


def _is_selected(export: tables.Export, reader: _Reader) -> bool:
    """Whether the selection may include a reader's rows, by kind or by name."""
    kinds = export.selection.kinds
    if not export.database.has(*reader.sources):
        return False
    if kinds is None or kinds.intersection(reader.kinds):
        return True
    if not export.selection.names:
        return False
    return reader.names is None or export.any_named()


# --- the rows of all tables in one order ---------------------------------------------------------


def assemble(parts: list[pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Build ``events`` and its side tables.

    Args:
        parts: rows of one table each, with columns of ``events`` and of side tables; the list is
            emptied.
    """
    rows = _Rows(parts)
    if not rows.height:
        return {name: schema.empty(name) for name in ("events", *_SIDE_TABLES)}
    order = rows.order()
    frames = {name: _side_table(rows, fields, order) for name, fields in _SIDE_TABLES.items()}
    present = [column for column in schema.EVENTS if rows.has(column)]
    with ThreadPoolExecutor(2) as pool:  # more columns at a time need more memory
        ordered = pool.map(lambda column: _ordered(rows.take(column), order), present)
        events = {column.name: values for column, values in zip(present, ordered, strict=True)}
    frames["events"] = pl.DataFrame(events).select(
        pl.col(c.name) if c.name in events else pl.lit(None, dtype=c.dtype).alias(c.name)
        for c in schema.EVENTS
        if c.name in events or not c.on_request
    )
    return frames


class _Rows:
    """Concatenated rows of several tables, taken column by column.

    A column is released when it is taken, so that not all are in memory twice.
    """

    def __init__(self, parts: list[pl.DataFrame]) -> None:
        self._parts = [{column.name: column for column in part} for part in parts]
        self._heights = [part.height for part in parts]
        self.height = sum(self._heights)
        parts.clear()

    def has(self, column: schema.Column) -> bool:
        """Whether any of the tables has this column."""
        return any(column.name in part for part in self._parts)

    def column(self, name: str, dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
        """Return a column of all rows; null for tables that do not have it."""
        pieces = [
            part[name].cast(dtype)
            if name in part
            else pl.repeat(None, height, dtype=dtype, eager=True)
            for part, height in zip(self._parts, self._heights, strict=True)
        ]
        return pl.concat(pieces, rechunk=True).alias(name)

    def take(self, column: schema.Column) -> pl.Series:
        """Return and release a column."""
        series = self.column(column.name, column.dtype)
        for part in self._parts:
            part.pop(column.name, None)
        return series

    def order(self) -> pl.Series | None:
        """Return row numbers ordered by time; None if the rows are ordered already."""

        def lengths(tied: Order) -> Ints:
            return self.column("dur", pl.Int64).gather(tied).fill_null(-1).to_numpy()

        order = time_order(self.column("ts", pl.Int64).to_numpy(), lengths)
        return None if order is None else pl.Series(order)


def _ordered(column: pl.Series, order: pl.Series | None) -> pl.Series:
    return column if order is None else column.gather(order)


def _side_table(
    rows: _Rows, fields: Sequence[schema.Column], order: pl.Series | None
) -> pl.DataFrame:
    """Build a side table of the rows with any value in it, by row of ``events``."""
    filled = [field.name for field in fields if rows.has(field)]
    if not filled:
        return pl.DataFrame(schema={field.name: field.dtype for field in fields})
    event, *values = fields
    every = pl.DataFrame([_ordered(rows.take(field), order) for field in values])
    known = every.with_row_index(event.name).filter(pl.any_horizontal(pl.col(filled).is_not_null()))
    return known.cast({event.name: event.dtype})


# --- issues --------------------------------------------------------------------------------------


def _without_columns(database: Database) -> list[Finding]:
    """Drop tables without a required column, and report them."""
    issues: list[Finding] = []
    for table, required in tables.REQUIRED.items():
        missing = [c for c in required if c not in database.tables.get(table, required)]
        if missing:
            del database.tables[table]
            issues.append(("data_loss", "missing-column", 1, f"{table}.{missing[0]}"))
    return issues


def _of_file(file: File, damage: str | None) -> Iterator[Finding]:
    """Report a damaged or truncated file."""
    if damage:
        yield "data_loss", "damaged-file", 1, damage
    if file.missing:
        yield "data_loss", "truncated", file.missing, f"byte {file.size:,}"


def _of_rows(events: pl.DataFrame, timeless: int) -> Iterator[Finding]:
    """Report rows without a time, or that end before they start."""
    if timeless:
        yield "data_loss", "no-time", timeless, None
    if negative := int((events["dur"] < 0).sum()):
        yield "notice", "negative-duration", negative, None


def _of_database(database: Database) -> Iterator[Finding]:
    """Report rows on damaged pages, and values of a wrong type."""
    for table, rows in sorted(database.losses.rows.items()):
        yield "data_loss", "unreadable-rows", sum(rows.values()), f"{table}, row {min(rows)}"
    for table, values in sorted(database.losses.mistyped.items()):
        if count := sum(values.values()):
            yield "data_loss", "wrong-type", count, table


def _of_export(export: tables.Export, identity: Identity, version: str | None) -> Iterator[Finding]:
    """Report warnings of nsys, missing recordings, unread tables, and assumed ranks."""
    if identity.numbered:
        count = len(identity.ranks)
        yield "notice", "ranks-numbered", count, "ranks not recorded: numbered by device"
    if _schema(version) > _KNOWN_SCHEMA:
        yield (
            "notice",
            "newer-schema",
            1,
            f"{version}; supported up to {_KNOWN_SCHEMA[0]}.{_KNOWN_SCHEMA[1]}",
        )
    yield from capture.findings(export)
    for table in sorted(export.database.tables):
        known = table in tables.REQUIRED or table in tables.DESCRIBING
        if not known and not table.startswith(tables.DESCRIBING_PREFIXES):
            yield "info", "not-read", 1, table


def _schema(version: str | None) -> tuple[int, int]:
    number = (version or "").partition("schema ")[2].rstrip(")")
    parts = number.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return 0, 0
    return int(parts[0]), int(parts[1])
