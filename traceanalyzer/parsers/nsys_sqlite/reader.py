"""Build a trace from an open export: read the tables, order the rows, report issues."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.nsys_sqlite import device, host, nvtx, tables
from traceanalyzer.parsers.nsys_sqlite.identity import (
    Identity,
    describe,
    failed_calls,
    identify,
    issues_of,
    lanes,
    untraced_processes,
)
from traceanalyzer.parsers.source import Source
from traceanalyzer.parsers.sqlite import rows
from traceanalyzer.parsers.sqlite.database import Database, TableFolder
from traceanalyzer.parsers.sqlite.pages import File, on_disk
from traceanalyzer.trace import Issue, Meta, Trace, issue_rows
from traceanalyzer.vocabulary import (
    FAILED_CALLS,
    RANKS_NUMBERED,
    SHARED_DEVICE,
    SHARING,
    UNTRACED_PROCESSES,
)

#: The newest supported schema.
_KNOWN_SCHEMA = (3, 30)
_WRITER = "nsys export"
_REMEDY = "export the report again: nsys export --type sqlite"

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


def _library(table: str, name: str, kind: str = "other") -> _Reader:
    read = partial(host.named, table=table, kind=kind, category=name)
    return _Reader((table,), (kind,), read, "nameId")


_MPI = (tables.MPI_COLLECTIVES, tables.MPI_P2P, tables.MPI_WAIT, tables.MPI_OTHER)
_READERS = (
    _Reader((tables.KERNEL,), ("kernel",), device.kernels, "demangledName"),
    _Reader((tables.GRAPH_TRACE,), ("kernel",), device.graphs),
    _Reader((tables.MEMCPY,), ("gpu_memcpy",), device.copies),
    _Reader((tables.MEMSET,), ("gpu_memset",), device.memsets),
    _Reader((tables.SYNCHRONIZATION,), ("cuda_sync",), device.synchronisation),
    _Reader((tables.MEMORY_USAGE,), ("alloc", "free_completed"), device.allocations),
    _Reader((tables.RUNTIME,), ("cuda_runtime", "cuda_driver"), host.calls, "nameId"),
    _Reader((tables.NVTX,), ("nvtx", "mpi"), nvtx.ranges),
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
    # named by construct and line, as ranges are
    *(_library(table, "openacc", "nvtx") for table in tables.OPENACC),
    _Reader(_MPI, ("mpi",), host.mpi_calls, "textId"),
    _Reader((tables.SCHED,), ("sched",), host.running),
)


#: Column of the process of device work.
_PROCESS = "globalPid"


@dataclass
class _Recording:
    """What was read of an export, before the rows are put in order.

    Attributes:
        meta: metadata of the file.
        parts: rows of each table.
        stacks: the table ``stacks``.
        counters: the table ``counters``.
        lanes: the table ``lanes``.
        issues: the table ``issues``.
    """

    meta: Meta
    parts: list[pl.DataFrame] = field(default_factory=list)
    stacks: pl.DataFrame = field(default_factory=lambda: schema.empty("stacks"))
    counters: pl.DataFrame = field(default_factory=lambda: schema.empty("counters"))
    lanes: pl.DataFrame = field(default_factory=lambda: schema.empty("lanes"))
    issues: pl.DataFrame = field(default_factory=lambda: schema.empty("issues"))

    def trace(self, parts: list[pl.DataFrame]) -> Trace:
        """Return the trace of some rows; the list is emptied."""
        side = {name: getattr(self, name) for name in ("stacks", "counters", "lanes", "issues")}
        return Trace(sources=(self.meta,), **rows.assemble(parts), **side)

    def trace_of(self, rank: int | None, parts: list[pl.DataFrame]) -> Trace:
        """Return the trace of the rows of one of several ranks; the list is emptied."""
        of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32)) | pl.col("rank").is_null()
        sources = (replace(self.meta, rank=rank),)
        return replace(self.trace(parts), sources=sources, lanes=self.lanes.filter(of_rank))


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read the selected tables, columns and rows of an export.

    Raises:
        UnknownFormat: the database is not an nsys export.
        MalformedInput: it is being written, or too damaged to list its tables.
        UnreadableFile: the file cannot be read.
    """
    recording = _read(source, selection, progress, split=False)
    return recording.trace(recording.parts)


def parse_ranks(
    source: Source, selection: Selection, progress: Progress | None = None
) -> list[Callable[[], Trace]]:
    """Read an export like :func:`parse`; return a function per rank that builds its trace."""
    recording = _read(source, selection, progress, split=True)
    parts_of = rows.grouped_by_rank(recording.parts)
    if parts_of.keys() <= {recording.meta.rank} and selection.ranks is None:
        parts = [part for parts in parts_of.values() for part in parts]
        return [partial(recording.trace, parts)]
    return [partial(recording.trace_of, rank, parts) for rank, parts in parts_of.items()]


def ranks(source: Source) -> list[int]:
    """Return the ranks that can be read apart; none unless all device work is of a known rank."""
    if source.compression:  # each process would unpack the file
        return []
    with _opened(source) as (file, database):
        if file.missing:
            return []
        _without_columns(database, None)
        export = tables.Export(database, Selection())
        known = identify(export, source.path).ranks
        working = device.processes(export) if known else set()
    return sorted(set(known.values())) if working <= known.keys() else []


@contextmanager
def _opened(source: Source, progress: Progress | None = None) -> Iterator[tuple[File, Database]]:
    """Open the database or the folder of an export."""
    if source.tables:
        yield File(source.path, source.size, 0), TableFolder(source, progress)
        return
    with (
        on_disk(source, _WRITER) as file,
        Database(file.path, source.path, progress, remedy=_REMEDY) as database,
    ):
        yield file, database


def _read(
    source: Source, selection: Selection, progress: Progress | None, *, split: bool
) -> _Recording:
    """Read all rows of an export; ``split`` yields parts of one rank each."""
    with _opened(source, progress) as (file, database):
        if not database.has(*tables.IDENTIFYING):
            form = "a folder of tables" if source.tables else "an SQLite database"
            form += f", truncated ({file.missing:,} bytes are missing)" * (file.missing > 0)
            raise UnknownFormat(source.path, f"{form}, but not an nsys export")
        only_process = _only_process(database)
        unusable = _without_columns(database, only_process)
        export = tables.Export(database, selection, only_process=only_process)
        identity = identify(export, source.path)
        export.processes = identity.processes_of(selection.ranks)
        meta = describe(export, identity, source.path)
        recording = _Recording(meta)
        timeless = backwards = 0
        for part in _parts(export, identity, recording):
            missing = part["ts"].null_count()
            timeless += missing
            backwards += rows.negative([part])
            timed = part.drop_nulls("ts") if missing else part
            if selection.ranks is not None:
                timed = timed.filter(pl.col("rank").is_in(sorted(selection.ranks)))
            recording.parts += rows.split_by_rank(timed) if split else [timed]
            del part, timed
        timeless += sum(odd[0] for odd in export.dropped)
        backwards += sum(sum(odd[1:]) for odd in export.dropped)
        recording.counters = _counters(export)
        recording.lanes = _lanes(export, identity, recording.parts)
        issues = [
            *source.issues,
            *rows.of_file(file),
            *unusable,
            *rows.of_rows(timeless, backwards),
            *rows.of_database(database),
            *_of_export(export, identity, meta.version),
        ]
    recording.issues = issue_rows(issues, meta.rank)
    return recording


def _parts(
    export: tables.Export, identity: Identity, recording: _Recording
) -> Iterator[pl.DataFrame]:
    """Yield the rows of each selected table, with ranks; fill the table of stacks."""
    readers = [reader for reader in _READERS if _is_selected(export, reader)]
    sampled = _is_wanted(export, "sample", tables.SAMPLES)
    export.database.expect(
        *(table for reader in readers for table in reader.sources),
        *((tables.SAMPLES, tables.CALLCHAINS) if sampled else ()),
        *(_COUNTERS if _is_wanted(export, "counter", *_COUNTERS) else ()),
    )
    processes = export.fills("pid")
    for reader in readers:
        yield identity.applied(export.selected(reader.read(export)), processes=processes)
    if sampled:
        samples, recording.stacks = host.samples(export)
        yield identity.applied(samples, processes=processes)


def _counters(export: tables.Export) -> pl.DataFrame:
    if not _is_wanted(export, "counter", *_COUNTERS):
        return schema.empty("counters")
    both = pl.concat([device.gpu_metrics(export), device.nic_metrics(export)])
    return both.sort("ts", maintain_order=True)


def _lanes(
    export: tables.Export, identity: Identity, parts: Sequence[pl.DataFrame]
) -> pl.DataFrame:
    kinds = export.selection.kinds
    if kinds is not None and "lane" not in kinds:
        return schema.empty("lanes")
    used = {pid for part in parts if "pid" in part.columns for pid in part["pid"].unique()}
    return lanes(export, identity, used - {None})


def _is_wanted(export: tables.Export, kind: str, *sources: str) -> bool:
    """Whether a kind is selected, and any of its tables exists."""
    kinds = export.selection.kinds
    return (kinds is None or kind in kinds) and export.database.has(*sources)


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


# --- issues --------------------------------------------------------------------------------------


def _only_process(database: Database) -> int | None:
    """Return the process of all calls if a table of device work does not have the process."""
    device = (table for table, columns in tables.REQUIRED.items() if _PROCESS in columns)
    if all(_PROCESS in database.tables.get(table, (_PROCESS,)) for table in device):
        return None
    if "globalTid" not in database.tables.get(tables.RUNTIME, ()):
        return None
    callers = database.read(
        tables.RUNTIME,
        integers=("globalTid",),
        shape=lambda piece: piece.select(tables.pid("globalTid")).unique(),
    )
    known = callers["pid"].drop_nulls().unique()
    return known.item() if known.len() == 1 else None


#: Tables of device work that tells something without its launch calls, too.
_UNLINKED = (tables.KERNEL, tables.MEMCPY, tables.MEMSET)


def _without_columns(database: Database, only_process: int | None) -> list[Issue]:
    """Drop tables without a required column, and report them and missing tables.

    The process may be missing if the export has only this one.
    """
    issues: list[Issue] = [
        ("data_loss", "missing-table", 1, f"{table} is a view or virtual table")
        for table in sorted(database.not_tables.intersection([*tables.REQUIRED, tables.STRINGS]))
    ]
    if not database.has(tables.STRINGS) and tables.STRINGS not in database.not_tables:
        issues.append(("data_loss", "missing-table", 1, f"{tables.STRINGS}: names"))
    for table, required in tables.REQUIRED.items():
        recorded = database.tables.get(table, required)
        needed = (c for c in required if c != _PROCESS or only_process is None)
        missing = [c for c in needed if c not in recorded]
        if missing == ["correlationId"] and table in _UNLINKED:
            text = f"{table}.correlationId: its rows are read without their launch calls"
            issues.append(("data_loss", "missing-column", 1, text))
        elif missing:
            del database.tables[table]
            issues.append(("data_loss", "missing-column", 1, f"{table}.{missing[0]}"))
    return issues


def _of_export(export: tables.Export, identity: Identity, version: str | None) -> Iterator[Issue]:
    """Report warnings of nsys, missing recordings, unread tables, and assumed ranks."""
    if identity.numbered:
        count = len(identity.ranks)
        yield "notice", RANKS_NUMBERED, count, "ranks not recorded: numbered by device"
    if identity.owners > 1:
        yield "notice", SHARED_DEVICE, identity.owners, SHARING.format(identity.owners)
    if _schema(version) > _KNOWN_SCHEMA:
        yield (
            "notice",
            "newer-schema",
            1,
            f"{version}; supported up to {_KNOWN_SCHEMA[0]}.{_KNOWN_SCHEMA[1]}",
        )
    yield from issues_of(export)
    if _is_wanted(export, "cuda_runtime", tables.RUNTIME) and (failed := failed_calls(export)):
        yield "notice", FAILED_CALLS, *failed
    alone = None if identity.rank is not None else identity.devices
    if alone and (untraced := untraced_processes(export, alone)):
        yield "notice", UNTRACED_PROCESSES, *untraced
    for table in sorted(export.database.tables):
        known = table in tables.REQUIRED or table in tables.DESCRIBING
        if not known and not table.startswith(tables.DESCRIBING_PREFIXES):
            yield "info", "not-read", 1, table


def _schema(version: str | None) -> tuple[int, int]:
    parts = (version or "").partition("schema ")[2].rstrip(")").split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return 0, 0
    return int(parts[0]), int(parts[1])
