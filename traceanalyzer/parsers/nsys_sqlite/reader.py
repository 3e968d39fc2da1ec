"""The work of the parser: which tables to read, and what they make together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.contract import Progress, Selection
from traceanalyzer.parsers.nsys_sqlite import (
    counters,
    device,
    findings,
    host,
    layout,
    mpi,
    nvtx,
    sampling,
)
from traceanalyzer.parsers.nsys_sqlite.assemble import assemble
from traceanalyzer.parsers.nsys_sqlite.database import Database
from traceanalyzer.parsers.nsys_sqlite.export import Export
from traceanalyzer.parsers.nsys_sqlite.file import on_disk
from traceanalyzer.parsers.nsys_sqlite.identity import (
    Identity,
    describe,
    identified,
    identify,
    lanes,
)
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace, issue_rows


@dataclass(frozen=True)
class _Reader:
    """What reads some tables.

    Attributes:
        tables: read where any of them is there.
        kinds: of the events they hold.
        read: makes rows of them.
        names: the column of string ids that name the rows; None where we name them.
    """

    tables: tuple[str, ...]
    kinds: tuple[str, ...]
    read: Callable[[Export], pl.DataFrame]
    names: str | None = None


_MPI = (layout.MPI_COLLECTIVES, layout.MPI_P2P, layout.MPI_WAIT, layout.MPI_OTHER)
_READERS = (
    _Reader((layout.KERNEL,), ("kernel",), device.kernels, "demangledName"),
    _Reader((layout.GRAPH_TRACE,), ("kernel",), device.graphs),
    _Reader((layout.MEMCPY,), ("gpu_memcpy",), device.copies),
    _Reader((layout.MEMSET,), ("gpu_memset",), device.sets),
    _Reader((layout.SYNCHRONIZATION,), ("cuda_sync",), device.synchronisation),
    _Reader((layout.MEMORY_USAGE,), ("alloc", "free_completed"), device.allocations),
    _Reader((layout.RUNTIME,), ("cuda_runtime", "cuda_driver"), host.calls, "nameId"),
    _Reader((layout.NVTX,), ("nvtx",), nvtx.ranges),
    _Reader((layout.OSRT,), ("osrt",), host.system_calls, "nameId"),
    _Reader((layout.OVERHEAD,), ("overhead",), host.overhead, "nameId"),
    _Reader((layout.CUDNN,), ("other",), host.cudnn, "nameId"),
    _Reader((layout.CUBLAS,), ("other",), host.cublas, "nameId"),
    _Reader(_MPI, ("mpi",), mpi.calls, "textId"),
    _Reader((layout.SCHED,), ("sched",), host.running),
)


def parse(source: Source, selection: Selection, progress: Progress | None, name: str) -> Trace:
    """Read an export; only the tables, columns and rows that are asked for.

    Raises:
        UnknownFormat: a database that is no export of nsys.
        MalformedInput: it is being written, or damaged so that not even its tables can be listed.
        UnreadableFile: the operating system refused.
    """
    with (
        on_disk(source) as file,
        Database(file.path, source.path, progress) as database,
    ):
        if not database.has(*layout.TELLING):
            raise UnknownFormat(source.path, "an SQLite database, but no export of nsys")
        unusable = findings.without_columns(database)
        export = Export(database, selection)
        identity = identify(export, source.path)
        trace, timeless = _trace(export, identity, source.path, name)
        issues = [
            *findings.of_file(file, source.damage),
            *unusable,
            *findings.of_rows(trace.events, timeless),
            *findings.of_database(database),
            *findings.of_export(export, identity, trace.meta.version),
        ]
    return replace(trace, issues=issue_rows(issues, trace.meta.rank))


def _trace(export: Export, identity: Identity, path: str, name: str) -> tuple[Trace, int]:
    """The trace without its issues, and the number of rows left out that have no time."""
    kinds = export.selection.kinds
    readers = [reader for reader in _READERS if _is_asked(export, reader)]
    sampled = (kinds is None or "sample" in kinds) and export.database.has(layout.SAMPLES)
    counted = (kinds is None or "counter" in kinds) and export.database.has(layout.GPU_METRICS)
    export.database.expect(
        *(table for reader in readers for table in reader.tables),
        *((layout.SAMPLES, layout.CALLCHAINS) if sampled else ()),
        *((layout.GPU_METRICS,) if counted else ()),
    )
    processes = export.fills("pid")
    parts = [
        identified(export.selected(reader.read(export)), identity, processes=processes)
        for reader in readers
    ]
    stacks = schema.empty("stacks")
    if sampled:
        samples, stacks = sampling.samples(export)
        parts.append(identified(samples, identity, processes=processes))
    timeless = sum(part["ts"].null_count() for part in parts)
    if timeless:
        parts = [part.drop_nulls("ts") for part in parts]
    tables = assemble(parts)
    if counted:
        tables["counters"] = counters.gpu_metrics(export)
    if kinds is None or "lane" in kinds:
        seen = tables["events"].select("pid", "tid").unique()
        tables["lanes"] = lanes(export, identity, seen)
    meta = describe(export, identity, path, name)
    return Trace(sources=(meta,), **{**tables, "stacks": stacks}), timeless


def _is_asked(export: Export, reader: _Reader) -> bool:
    """Whether a reader's rows may be asked for: by kind, or by name if such a name is there."""
    asked = export.selection.kinds
    if not export.database.has(*reader.tables):
        return False
    if asked is None or asked.intersection(reader.kinds):
        return True
    if not export.selection.names:
        return False
    return reader.names is None or export.any_named()
