"""Databases of rocprofv3 and rocprof-sys: dispatches, copies, regions, allocations, counters.

The grid of a dispatch is recorded in work items. An API call and the device work that it launches
have the same ``stack_id``.
"""

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.rocpd import recording as names, v3_tables as t
from traceanalyzer.parsers.rocpd.recording import COUNTERS, LANES, Recording
from traceanalyzer.parsers.sqlite.rows import DatabaseReader
from traceanalyzer.trace import Device

#: Kind by pattern of a region's category; the first match is used.
_CATEGORIES = (
    ("cuda_runtime", r"^HIP_"),
    ("cuda_driver", r"^HSA_"),
    ("nvtx", r"^(?:MARKER|RCCL|ROCTX)"),
)
#: A roctx call, whose message is the name of the range.
_ROCTX = r"^roctx"
_GROUPS = ("comm", "communicator")
_SIZES = ("count", "sendcount", "recvcount")


def read(reading: DatabaseReader) -> Recording:
    """Read the selected rows of a database of rocprofv3."""
    tables, kinds = t.Tables(reading), reading.selection.kinds
    metadata = tables.read(t.METADATA, texts=("tag", "value"))
    version = metadata.filter(pl.col("tag") == "schema_version")["value"].drop_nulls()
    recording = Recording(f"rocpd, schema {version[0] if len(version) else 'unknown'}")
    wanted = None if kinds is None or reading.selection.names else kinds
    readers = (
        (t.DISPATCH, {"kernel"}, _kernels),
        (t.COPY, {"gpu_memcpy"}, _copies),
        (t.REGION, {"cuda_runtime", "cuda_driver", "nvtx", "other"}, _regions),
        (t.ALLOCATE, {"alloc", "free_completed"}, _allocations),
    )
    for table, contents, rows in readers:
        if tables.has(table) and (wanted is None or wanted & contents):
            recording.parts.append(rows(tables))
    if (kinds is None or "counter" in kinds) and tables.has(t.COUNTER):
        recording.counters = _counters(tables)
    processes, agents = tables.processes(), tables.agents()
    recording.used = _used(tables)
    recording.ranks = t.recorded_ranks(processes)
    recording.lanes = _lanes(tables, processes)
    gpus = agents.filter(pl.col("device") >= 0).unique("device", keep="first").sort("device")
    recording.devices = tuple(Device(*row) for row in gpus.select("device", "label").iter_rows())
    hosts = tables.described(t.NODE, texts=("hostname",))["hostname"].drop_nulls().unique()
    recording.host = hosts[0] if len(hosts) == 1 else None
    starts = [
        tables.read(table, integers=("start",))["start"].min()
        for table in (t.DISPATCH, t.COPY, t.REGION)
    ]
    recording.start_ns = min((time for time in starts if isinstance(time, int)), default=None)
    return recording


def _used(tables: t.Tables) -> pl.DataFrame:
    """Return the processes and GPUs of all kernels and copies."""
    rows = pl.concat(
        [
            tables.read(t.DISPATCH, integers=("pid", "agent_id")),
            tables.read(t.COPY, integers=("pid", "dst_agent_id")).rename(
                {"dst_agent_id": "agent_id"}
            ),
        ]
    ).unique(maintain_order=True)
    placed = tables.on_gpu(tables.placed(rows), "agent_id")
    return placed.select("owner", "device").drop_nulls().unique()


def _lanes(tables: t.Tables, processes: pl.DataFrame) -> pl.DataFrame:
    """Return the processes with their commands, and the named threads."""
    threads = tables.joined(tables.threads(), "process", processes.drop("nid"))
    rows = pl.concat(
        [
            processes.select(
                "owner",
                pid="real_pid",
                tid=pl.lit(None, dtype=pl.Int64),
                label=pl.col("command"),
            ),
            threads.select("owner", pid="real_pid", tid="real_tid", label="label"),
        ]
    )
    return rows.drop_nulls(["owner", "pid"]).select(*LANES)


def _kernels(tables: t.Tables) -> pl.DataFrame:
    """Return one row per dispatch of a kernel."""
    sizes = [f"{of}_size_{axis}" for of in ("workgroup", "grid") for axis in "xyz"]
    rows = tables.read(
        t.DISPATCH,
        integers=(
            "pid", "agent_id", "kernel_id", "queue_id", "stream_id", "start", "end", "event_id",
            "group_segment_size", *sizes,
        ),
        where=tables.reading.inside(),
    )  # fmt: skip
    symbols = tables.described(
        t.SYMBOL, integers=("arch_vgpr_count",), texts=("display_name", "kernel_name")
    ).with_columns(symbol=pl.coalesce("display_name", "kernel_name"))
    rows = tables.joined(rows, "kernel_id", symbols)
    rows = tables.on_gpu(rows, "agent_id")
    rows = tables.joined(tables.placed(rows), "event_id", tables.events())
    shape = []
    for axis in "xyz":
        items, block = pl.col(f"grid_size_{axis}"), pl.col(f"workgroup_size_{axis}")
        blocks = pl.when(block > 0).then((items + block - 1) // block)
        shape += [
            blocks.cast(pl.Int32, strict=False).alias(f"grid_{axis}"),
            block.cast(pl.Int32, strict=False).alias(f"block_{axis}"),
        ]
    return rows.select(
        *_span(),
        t.kind("kernel"),
        "owner", "pid", "device", "correlation",
        *shape,
        category=pl.col("category").cast(schema.NAME),
        name=pl.col("symbol").cast(schema.NAME),
        stream=pl.coalesce("stream_id", "queue_id"),
        registers=pl.col("arch_vgpr_count").cast(pl.Int32, strict=False),
        shared_memory="group_segment_size",
    )  # fmt: skip


def _copies(tables: t.Tables) -> pl.DataFrame:
    """Return one row per copy, on the GPU that receives it or else the one that sends it."""
    rows = tables.read(
        t.COPY,
        integers=(
            "pid", "start", "end", "name_id", "dst_agent_id", "src_agent_id", "size", "queue_id",
            "stream_id", "event_id",
        ),
        where=tables.reading.inside(),
    )  # fmt: skip
    rows = tables.joined(rows, "name_id", tables.strings())
    rows = tables.on_gpu(rows, "dst_agent_id").rename({"device": "target"})
    rows = tables.on_gpu(rows, "src_agent_id")
    rows = tables.joined(tables.placed(rows), "event_id", tables.events())
    spelled = {text: names.copy_name(text) for text in rows["string"].drop_nulls().unique()}
    name = pl.col("string").replace_strict(
        spelled, default=names.copy_name(None), return_dtype=pl.String
    )
    return rows.select(
        *_span(),
        t.kind("gpu_memcpy"),
        "owner", "pid", "correlation",
        category=pl.col("category").cast(schema.NAME),
        name=name.cast(schema.NAME),
        device=pl.coalesce("target", "device"),
        stream=pl.coalesce("stream_id", "queue_id"),
        bytes=pl.when(pl.col("size") >= 0).then("size"),
    )  # fmt: skip


def _regions(tables: t.Tables) -> pl.DataFrame:
    """Return one row per API call and range; RCCL's calls with the columns of ``collectives``."""
    rows = tables.read(
        t.REGION,
        integers=("id", "pid", "tid", "start", "end", "name_id", "event_id"),
        texts=("extdata",),
        where=tables.reading.inside(),
    )
    rows = tables.joined(rows, "name_id", tables.strings())
    rows = tables.joined(tables.placed(rows), "event_id", tables.events())
    by_name = pl.when(pl.col("category").is_null()).then(names.api_kind(pl.col("string")))
    message = pl.col("extdata").str.extract(r'"message":\s*"((?:[^"\\]|\\.)+)"')
    is_roctx = pl.col("string").str.contains(_ROCTX).fill_null(value=False)
    name = pl.when(is_roctx).then(pl.coalesce(message, "string")).otherwise("string")
    rows = rows.with_columns(
        kind=pl.coalesce(
            names.first_kind(pl.col("category"), _CATEGORIES),
            by_name,
            pl.lit("other", dtype=schema.KIND),
        ),
        title=name,
    )
    is_range = pl.col("kind") == "nvtx"
    category = pl.when(is_range).then(names.range_category(pl.col("title")))
    launching = pl.col("kind").is_in(("cuda_runtime", "cuda_driver"))
    events = rows.select(
        *_span(),
        "kind", "owner", "pid", "tid", "guid", "event_id",
        category=pl.coalesce(category, pl.col("category").cast(schema.NAME)),
        name=pl.col("title").cast(schema.NAME),
        correlation=pl.when(launching).then("correlation"),
    )  # fmt: skip
    return _with_collectives(tables, events).drop("guid", "event_id")


def _with_collectives(tables: t.Tables, events: pl.DataFrame) -> pl.DataFrame:
    """Add collective, type, count and group of RCCL's calls, from their arguments."""
    calls = events.filter(pl.col("category") == names.RCCL_CATEGORY).drop_nulls("event_id")
    if calls.is_empty():
        return events
    arguments = tables.read(t.ARGUMENT, integers=("event_id",), texts=("name", "value"))
    ours = arguments.join(
        calls.select("guid", "event_id"), on=["guid", "event_id"], how="semi"
    ).drop_nulls()
    by_call: dict[tuple[str, int], dict[str, str]] = {}
    for guid, event, name, value in ours.select("guid", "event_id", "name", "value").iter_rows():
        by_call.setdefault((guid, event), {})[name] = value
    values = [
        (guid, event, *_collective(name, by_call.get((guid, event), {})))
        for guid, event, name in calls.select(
            "guid", "event_id", pl.col("name").cast(pl.String)
        ).iter_rows()
    ]
    types = {
        "guid": pl.String,
        "event_id": pl.Int64,
        "collective": pl.String,
        "dtype": pl.String,
        "elements_in": pl.Int64,
        "group": pl.String,
    }
    described = pl.DataFrame(values, schema=types, orient="row").unique(
        ["guid", "event_id"], keep="first"
    )
    named = described.with_columns(pl.col("collective", "dtype", "group").cast(schema.NAME))
    return events.join(named, on=["guid", "event_id"], how="left", maintain_order="left")


def _collective(name: str | None, arguments: dict[str, str]) -> tuple[object, ...]:
    collective = names.collective(name)
    if collective is None:
        return None, None, None, None
    count = next((arguments[key] for key in _SIZES if key in arguments), "")
    group = next((arguments[key] for key in _GROUPS if key in arguments), None)
    is_count = count.isdecimal() and len(count) < 16
    return (
        collective,
        names.dtype(arguments.get("datatype")),
        int(count) if is_count else None,
        group,
    )


def _allocations(tables: t.Tables) -> pl.DataFrame:
    """Return one row per allocation or free of a GPU's memory, with the running total.

    A free without a size has that of the last allocation at its address.
    """
    rows = tables.read(
        t.ALLOCATE,
        integers=("pid", "tid", "agent_id", "start", "address", "size", "stream_id"),
        texts=("type", "level"),
    )
    rows = rows.filter(
        pl.col("type").is_in(("ALLOC", "FREE")),
        pl.col("level").eq_missing("REAL") | pl.col("level").is_null(),
    ).sort("start", maintain_order=True)
    rows = tables.on_gpu(tables.placed(rows), "agent_id")
    frees = pl.col("type") == "FREE"
    allocated = pl.when(~frees & (pl.col("size") >= 0)).then("size")
    before = allocated.forward_fill().over("guid", "owner", "address")
    size = pl.when(frees).then(-pl.when(pl.col("size") > 0).then("size").otherwise(before))
    rows = rows.drop_nulls("device").with_columns(bytes=size.otherwise(allocated))
    limited = pl.col("bytes").clip(-(1 << 44), 1 << 44)
    events = rows.select(
        t.kind("alloc"),
        "owner", "pid", "tid", "device", "bytes",
        ts="start",
        frees=frees,
        name=pl.lit("Device", dtype=schema.NAME),
        address=pl.col("address").cast(pl.UInt64, strict=False),
        allocated_bytes=limited.cum_sum().over("owner", "device"),
    )  # fmt: skip
    kind = pl.when("frees").then(t.kind("free_completed")).otherwise("kind")
    return tables.reading.within(events.with_columns(kind=kind).drop("frees"))


def _counters(tables: t.Tables) -> pl.DataFrame:
    """Return ``counters``: samples, and the hardware counters of kernels at their start."""
    rows = tables.read(t.COUNTER, integers=("event_id", "pmc_id"), reals=("value",))
    times = pl.concat(
        [
            tables.read(t.SAMPLE, integers=("event_id", "timestamp")).rename({"timestamp": "ts"}),
            tables.read(t.DISPATCH, integers=("event_id", "start")).rename({"start": "ts"}),
        ]
    ).drop_nulls()
    metrics = tables.described(t.PMC, integers=("agent_id",), texts=("name", "units"))
    rows = rows.join(
        times.unique(["guid", "event_id"], keep="first"),
        on=["guid", "event_id"],
        how="inner",
        maintain_order="left",
    )
    rows = tables.joined(rows, "pmc_id", metrics)
    rows = tables.on_gpu(rows, "agent_id")
    units = pl.col("units").fill_null("")
    name = pl.when(units != "").then(pl.format("{} [{}]", "name", units)).otherwise("name")
    series = pl.format("GPU {}", "device")
    readings = rows.filter(pl.col("value").is_finite(), pl.col("name").is_not_null()).select(
        ts="ts",
        name=name.cast(schema.NAME),
        series=pl.coalesce(series, pl.lit("host")).cast(schema.NAME),
        pid=pl.lit(None, dtype=pl.Int64),
        value="value",
    )
    return tables.reading.within(readings).select(*COUNTERS)


def _span() -> tuple[pl.Expr, pl.Expr]:
    """Return ``ts`` and ``dur``."""
    return pl.col("start").alias("ts"), (pl.col("end") - pl.col("start")).alias("dur")
