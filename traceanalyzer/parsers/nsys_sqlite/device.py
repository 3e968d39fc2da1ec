"""Device events: kernels, copies, memsets, synchronisation, graphs, allocations, GPU metrics."""

from collections.abc import Callable, Iterator, Sequence

import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.parsers.nsys_sqlite import tables
from traceanalyzer.parsers.sqlite.rows import kind_of, span

#: CUPTI's memory kinds, in Kineto's spelling.
_MEMORY_KINDS = dict(
    enumerate(
        (
            "Pageable",
            "Pinned",
            "Device",
            "Array",
            "Managed",
            "Device Static",
            "Managed Static",
            "Unknown",
        )
    )
)
#: CUPTI's copy kinds, from 1 on, and unified memory migrations, from 11 on.
_COPY_KINDS = dict(
    enumerate(("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP"), 1)
) | {11: "UVM HtoD", 12: "UVM DtoH", 13: "UVM DtoD"}
_MIGRATIONS = (11, 12, 13)
_UNKNOWN, _MANAGED = 7, 4
_SYNC_TYPES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_OPERATION, _FREE = "memoryOperationType", 1
_KERNEL_SHAPE = {
    **{f"{of}_{axis}": f"{of}{axis.upper()}" for of in ("grid", "block") for axis in "xyz"},
    "registers": "registersPerThread",
    "local_memory": "localMemoryPerThread",
}
_PLACE = ("start", "end", "deviceId", "globalPid")


def kernels(export: tables.Export) -> pl.DataFrame:
    """Return one row per kernel, with its demangled name."""
    extra, sizes = _launch_config(export)
    columns = [*_placed(export, tables.KERNEL), tables.name_id("demangledName"), *sizes]
    rows = _rows(export, tables.KERNEL, "demangledName", *extra, columns=columns)
    return rows.with_columns(export.named(rows["name"]), kind_of("kernel"))


def processes(export: tables.Export) -> set[int | None]:
    """Return the processes of all kernels, copies and memsets; None if one is not recorded."""
    pids: set[int | None] = set()
    for table in (tables.KERNEL, tables.GRAPH_TRACE, tables.MEMCPY, tables.MEMSET):
        rows = export.read(table, "globalPid", shape=lambda piece: piece.unique())
        pids.update(rows.select(tables.pid("globalPid"))["pid"])
    return pids


def _launch_config(export: tables.Export) -> tuple[list[str], list[pl.Expr]]:
    """Return the used columns of launch configurations, and those of ``launch_configs``."""
    if not export.fills("launch_configs"):
        return [], []
    shape = {ours: theirs for ours, theirs in _KERNEL_SHAPE.items() if export.fills(ours)}
    sizes = [
        pl.col(theirs).cast(pl.Int32, strict=False).alias(ours) for ours, theirs in shape.items()
    ]
    if not export.fills("shared_memory"):
        return [*shape.values()], sizes
    memory = ["staticSharedMemory", "dynamicSharedMemory"]
    both = (pl.col(memory[0]) + pl.col(memory[1])).alias("shared_memory")
    return [*shape.values(), *memory], [*sizes, both]


def copies(export: tables.Export) -> pl.DataFrame:
    """Return one row per copy, named as in Kineto: ``Memcpy HtoD (Pinned -> Device)``."""
    key = ("copyKind", "srcKind", "dstKind")
    return _work(export, tables.MEMCPY, "gpu_memcpy", key, _copy, sized=True)


def memsets(export: tables.Export) -> pl.DataFrame:
    """Return one row per memset, named by the memory: ``Memset (Device)``."""
    return _work(export, tables.MEMSET, "gpu_memset", ("memKind",), _memset, sized=True)


def synchronisation(export: tables.Export) -> pl.DataFrame:
    """Return one row per wait of the host (stream, event, context) or of a stream (event)."""
    return _work(export, tables.SYNCHRONIZATION, "cuda_sync", ("syncType",), _wait)


def graphs(export: tables.Export) -> pl.DataFrame:
    """Return one row of kind kernel per graph launch, recorded instead of its kernels."""
    return _work(export, tables.GRAPH_TRACE, "kernel", ("graphId",), "CUDA graph {}".format)


def allocations(export: tables.Export) -> pl.DataFrame:
    """Return one row per allocation or free of device, pinned or managed memory.

    ``allocated_bytes`` is the running total of that memory kind on that device.
    """
    columns = ("start", "globalPid", "deviceId", "address", "bytes", "memKind", _OPERATION)
    rows = export.read(tables.MEMORY_USAGE, *columns).sort("start", maintain_order=True)
    frees = pl.col(_OPERATION) == _FREE
    size = pl.when(frees).then(-pl.col("bytes")).otherwise("bytes")
    events = rows.select(
        export.pid("globalPid"),
        "memKind",
        ts="start",
        device=pl.col("deviceId").cast(pl.Int32, strict=False),
        bytes=size,
        address=pl.col("address").cast(pl.UInt64, strict=False),
        kind=pl.when(frees).then(kind_of("free_completed")).otherwise(kind_of("alloc")),
        allocated_bytes=size.cum_sum().over(tables.pid("globalPid"), "deviceId", "memKind"),
    )
    return export.within(_named(events, ["memKind"], _memory))


def gpu_faults(export: tables.Export) -> pl.DataFrame:
    """Return one row per group of GPU page faults of managed memory, with its handling time."""
    rows = export.read(tables.GPU_FAULTS, *_PLACE, windows=export.selection.windows)
    return rows.select(
        *span(),
        export.pid("globalPid"),
        kind_of("page_fault"),
        device=pl.col("deviceId").cast(pl.Int32, strict=False),
        name=pl.lit("GPU page faults").cast(schema.NAME),
    )


def cpu_faults(export: tables.Export) -> pl.DataFrame:
    """Return one row per host page fault of managed memory; no duration is recorded."""
    inside = export.inside("start", None)
    rows = export.read(tables.CPU_FAULTS, "start", "globalPid", where=inside)
    return rows.select(
        export.pid("globalPid"),
        kind_of("page_fault"),
        ts="start",
        name=pl.lit("CPU page fault").cast(schema.NAME),
    )


def gpu_metrics(export: tables.Export) -> pl.DataFrame:
    """Build ``counters``: one row per reading, named by its metric, one series per GPU.

    Metrics are identified by name; their numbers depend on the file and on the GPU model. The low
    byte of the type is the GPU's number. Readings belong to no process.
    """
    key = ("typeId", "metricId")
    names = export.read(tables.GPU_METRIC_NAMES, *key, texts=("metricName",))
    inside = export.inside("timestamp", None)
    rows = export.read(tables.GPU_METRICS, "timestamp", *key, "value", where=inside)
    distinct = names.unique(key, maintain_order=True)
    named = rows.join(distinct, on=key, how="left", maintain_order="left")
    unknown = pl.format("metric {}", "metricId")
    readings = named.drop_nulls(["timestamp", "typeId", "value"]).select(
        ts="timestamp",
        name=pl.coalesce("metricName", unknown).cast(schema.NAME),
        series=pl.format("GPU {}", pl.col("typeId") & 0xFF).cast(schema.NAME),
        rank=pl.lit(None, dtype=pl.Int32),
        pid=pl.lit(None, dtype=pl.Int64),
        value=pl.col("value").cast(pl.Float64),
    )
    return readings.sort("ts", maintain_order=True)


def nic_metrics(export: tables.Export) -> pl.DataFrame:
    """Build ``counters``: one row per reading of a network adapter, one series per port."""
    key = ("metricsListId", "metricsIdx")
    names = export.read(tables.NIC_METRIC_NAMES, *key, texts=("name", "unit"))
    columns = ("start", "globalId", "portId", *key, "value")
    rows = export.read(tables.NIC_METRICS, *columns, where=export.inside("start", None))
    distinct = names.unique(key, maintain_order=True)
    named = rows.join(distinct, on=key, how="left", maintain_order="left")
    name = pl.format("{} [{}]", "name", pl.col("unit").fill_null(""))
    unknown = pl.format("network metric {}", "metricsIdx")
    return named.drop_nulls(["start", "value"]).select(
        ts="start",
        name=pl.coalesce(name, unknown).cast(schema.NAME),
        series=pl.format("NIC {} port {}", "globalId", "portId").cast(schema.NAME),
        rank=pl.lit(None, dtype=pl.Int32),
        pid=pl.lit(None, dtype=pl.Int64),
        value=pl.col("value").cast(pl.Float64),
    )


def _is_linked(export: tables.Export, table: str) -> bool:
    """Whether to read the launch calls of device work, and the table has them."""
    return export.fills("correlation") and "correlationId" in export.database.tables.get(table, ())


def _place(export: tables.Export, table: str) -> tuple[str, ...]:
    """Return the database columns for time and place of device work."""
    stream = ("streamId",) if export.fills("stream") else ()
    return (*_PLACE, *stream, *(("correlationId",) if _is_linked(export, table) else ()))


def _rows(
    export: tables.Export, table: str, *more: str, columns: Sequence[str | pl.Expr]
) -> pl.DataFrame:
    """Read device work: time, place and more columns."""
    read = (*_place(export, table), *more)
    return export.inside_windows(table, *read, columns=columns, place="globalPid")


def _work(
    export: tables.Export,
    table: str,
    kind: str,
    key: Sequence[str],
    name: Callable[..., str],
    *,
    sized: bool = False,
) -> pl.DataFrame:
    """Return rows of device work of one kind, named by a function of the key columns."""
    size = ("bytes",) if sized and export.fills("bytes") else ()
    rows = _rows(export, table, *size, *key, columns=[*_placed(export, table), *size, *key])
    return _named(rows, key, name).with_columns(kind_of(kind))


def _placed(export: tables.Export, table: str) -> Iterator[pl.Expr]:
    """Return the columns for time and place of device work."""
    yield from span()
    yield export.pid("globalPid")
    yield pl.col("deviceId").cast(pl.Int32, strict=False).alias("device")
    if export.fills("stream"):
        yield tables.none_if_unset("streamId", "stream")
    if export.fills("correlation"):
        unknown = pl.lit(None, pl.Int64)
        linked = pl.col("correlationId") if _is_linked(export, table) else unknown
        yield linked.alias("correlation")


def _named(rows: pl.DataFrame, key: Sequence[str], name: Callable[..., str]) -> pl.DataFrame:
    """Name rows by a function of the key columns, which are dropped."""
    first, number = numbered([rows[column] for column in key])
    distinct = [name(*values) for values in rows.select(key)[first].iter_rows()]
    names = pl.Series("name", distinct, dtype=schema.NAME).gather(pl.Series(number))
    return rows.drop(key).with_columns(names)


def _memory(of: int | None) -> str:
    return _MEMORY_KINDS.get(_UNKNOWN if of is None else of, "Unknown")


def _memset(of: int | None) -> str:
    return f"Memset ({_memory(of)})"


def _wait(of: int | None) -> str:
    return "Sync" if of is None else _SYNC_TYPES.get(of, f"Sync type {of}")


def _copy(of: int | None, source: int | None, target: int | None) -> str:
    direction = "Unknown" if of is None else _COPY_KINDS.get(of, "Unknown")
    if of in _MIGRATIONS:  # nsys does not record the kind of memory; only managed memory migrates
        unset = (None, _UNKNOWN)
        source, target = (_MANAGED if kind in unset else kind for kind in (source, target))
    return f"Memcpy {direction} ({_memory(source)} -> {_memory(target)})"
