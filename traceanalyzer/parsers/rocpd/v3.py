"""Databases of rocprofv3 and rocprof-sys: dispatches, copies, regions, allocations, counters.

The grid of a dispatch is recorded in work items. An API call and the device work that it launches
have the same ``stack_id``.

Every table has the file's uuid in its name (``rocpd_region_0000abcd``), and a merged database has
one set of tables per process. Views without the uuid would join them; they are never used, so the
tables are found by name and concatenated. Rows refer to each other by ``id`` within one ``guid``.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from traceanalyzer import schema
from traceanalyzer.parsers.rocpd import recording as names
from traceanalyzer.parsers.rocpd.recording import COUNTERS, LANES, Recording
from traceanalyzer.parsers.sqlite.database import Database
from traceanalyzer.parsers.sqlite.rows import (
    RANK_VARIABLES,
    DatabaseReader,
    kind_of,
    span,
    with_collectives,
)
from traceanalyzer.schema import MAX_RANKS
from traceanalyzer.trace import Device

DISPATCH, COPY, REGION = "rocpd_kernel_dispatch", "rocpd_memory_copy", "rocpd_region"
ALLOCATE, COUNTER, SAMPLE = "rocpd_memory_allocate", "rocpd_pmc_event", "rocpd_sample"
EVENT, ARGUMENT, STRING, METADATA = "rocpd_event", "rocpd_arg", "rocpd_string", "rocpd_metadata"
SYMBOL, AGENT, NODE = "rocpd_info_kernel_symbol", "rocpd_info_agent", "rocpd_info_node"
PROCESS, THREAD, PMC = "rocpd_info_process", "rocpd_info_thread", "rocpd_info_pmc"
TRACK, STREAM, QUEUE = "rocpd_track", "rocpd_info_stream", "rocpd_info_queue"

#: Required columns by table.
REQUIRED: dict[str, tuple[str, ...]] = {
    DISPATCH: ("id", "pid", "agent_id", "kernel_id", "start", "end"),
    COPY: ("id", "pid", "start", "end", "name_id", "size"),
    REGION: ("id", "pid", "tid", "start", "end", "name_id"),
    ALLOCATE: ("id", "pid", "type", "start", "size"),
    COUNTER: ("event_id", "pmc_id", "value"),
    SAMPLE: ("timestamp",),
    EVENT: ("id", "stack_id"),
    ARGUMENT: ("event_id", "name", "value"),
    STRING: ("id", "string"),
    METADATA: ("tag", "value"),
    SYMBOL: ("id", "kernel_name"),
    AGENT: ("id", "type"),
    NODE: ("id",),
    PROCESS: ("id", "pid"),
    THREAD: ("id", "tid"),
    PMC: ("id", "name"),
    TRACK: ("id",),
}
#: Tables that identify the format.
IDENTIFYING = (DISPATCH, REGION, COPY, PROCESS)
#: Tables without events.
DESCRIBING = (STREAM, QUEUE, "rocpd_info_code_object")

#: Names of agents that do not name a model.
_NO_MODEL = r"^[CG]PU_Agent$"
#: The uuid behind a table's name, with or without an underscore.
_UUID = re.compile(r"_?(?:[0-9a-fA-F]{4,}(?:[_-][0-9a-fA-F]{4,})*)?")
_ID = ["guid", "id"]
_MOST_GPUS = 1 << 16
#: Tables without which rows have no name or place.
ESSENTIAL = ("rocpd_string", "rocpd_info_process", "rocpd_info_agent", "rocpd_info_kernel_symbol")


def logical_name(table: str) -> str | None:
    """Return the name of a table without its uuid, or None for an unknown table."""
    matches = (
        name
        for name in (*REQUIRED, *DESCRIBING)
        if table.startswith(name) and _UUID.fullmatch(table, len(name))
    )
    return max(matches, key=len, default=None)


@dataclass
class Tables:
    """The tables of an open database by their names without uuid.

    Attributes:
        reading: the database and the selection.
        places: the tables of each name.
    """

    reading: DatabaseReader
    places: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for table in sorted(self.reading.database.tables):
            if name := logical_name(table):
                self.places.setdefault(name, []).append(table)

    @property
    def database(self) -> Database:
        """The open file."""
        return self.reading.database

    def has(self, *names: str) -> bool:
        """Whether any of the tables exists."""
        return any(name in self.places for name in names)

    def read(
        self,
        name: str,
        *,
        integers: Sequence[str] = (),
        texts: Sequence[str] = (),
        reals: Sequence[str] = (),
        where: str | None = None,
    ) -> pl.DataFrame:
        """Read columns of all tables of a name, with ``guid``."""
        parts = [
            self.database.read(
                table, integers=integers, texts=("guid", *texts), reals=reals, where=where
            ).with_columns(pl.col("guid").fill_null(table))
            # a name that no table has: no rows
            for table in self.places.get(name, ("",))
        ]
        return pl.concat(parts)

    def described(
        self, name: str, *, integers: Sequence[str] = (), texts: Sequence[str] = ()
    ) -> pl.DataFrame:
        """Read a table that rows refer to: one row per (guid, id)."""
        rows = self.read(name, integers=("id", *integers), texts=texts).drop_nulls("id")
        return rows.unique(_ID, keep="first", maintain_order=True)

    def joined(self, rows: pl.DataFrame, key: str, table: pl.DataFrame) -> pl.DataFrame:
        """Add the columns of a table that ``key`` refers to."""
        return rows.join(
            table, left_on=["guid", key], right_on=_ID, how="left", maintain_order="left"
        )

    def strings(self) -> pl.DataFrame:
        """Return all strings."""
        return self.described(STRING, texts=("string",))

    def processes(self) -> pl.DataFrame:
        """Return the processes: guid, id, real_pid, owner (number in the file), ..."""
        rows = self.described(PROCESS, integers=("pid", "nid"), texts=("command", "environment"))
        return rows.rename({"pid": "real_pid"}).with_row_index("owner").cast({"owner": pl.Int64})

    def threads(self) -> pl.DataFrame:
        """Return the threads: guid, id, real_tid, process (id), label."""
        rows = self.described(THREAD, integers=("tid", "pid"), texts=("name",))
        return rows.rename({"tid": "real_tid", "pid": "process", "name": "label"})

    def agents(self) -> pl.DataFrame:
        """Return CPUs and GPUs: guid, id, device (number of a GPU, null for a CPU), label."""
        rows = self.described(
            AGENT, integers=("type_index", "nid"), texts=("type", "name", "product_name")
        )
        gpu = pl.col("type") == "GPU"
        place = gpu.cast(pl.Int64).cum_sum().over("guid", "nid") - 1
        recorded = pl.when(pl.col("type_index").is_between(0, _MOST_GPUS)).then("type_index")
        number = pl.coalesce(recorded, place).cast(pl.Int32)
        name = pl.when(~pl.col("name").str.contains(_NO_MODEL)).then("name")
        return rows.select(
            *_ID, device=pl.when(gpu).then(number), label=pl.coalesce("product_name", name)
        )

    def on_gpu(self, rows: pl.DataFrame, key: str) -> pl.DataFrame:
        """Add the ``device`` of an agent; its id in a file without descriptions of agents."""
        if not self.has(AGENT):
            return rows.with_columns(device=pl.col(key).cast(pl.Int32, strict=False))
        return self.joined(rows, key, self.agents().select(*_ID, "device"))

    def events(self) -> pl.DataFrame:
        """Return guid, id, stack_id and category of all events."""
        rows = self.described(EVENT, integers=("stack_id", "category_id"))
        named = self.joined(rows, "category_id", self.strings())
        return named.select(
            *_ID,
            correlation=pl.when(pl.col("stack_id") != 0).then("stack_id"),
            category=pl.col("string"),
        )

    def placed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Replace ids by the process, ``owner`` and thread they refer to."""
        rows = self.joined(rows, "pid", self.processes().select(*_ID, "real_pid", "owner"))
        rows = rows.with_columns(pid=pl.coalesce("real_pid", "pid")).drop("real_pid")
        if "tid" not in rows.columns:
            return rows
        rows = self.joined(rows, "tid", self.threads().select(*_ID, "real_tid"))
        return rows.with_columns(tid=pl.coalesce("real_tid", "tid")).drop("real_tid")


def recorded_ranks(processes: pl.DataFrame) -> dict[int, tuple[int, int | None]]:
    """Return rank and world size by owner, from the recorded environment of each process."""
    ranks = {}
    for owner, text in processes.select("owner", "environment").drop_nulls().iter_rows():
        values = _environment(text)
        for rank_name, size_name in RANK_VARIABLES:
            rank, size = _number(values.get(rank_name)), _number(values.get(size_name))
            if rank is not None:
                ranks[owner] = rank, size
                break
    return ranks


def _environment(text: str) -> dict[str, object]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _number(value: object) -> int | None:
    text = str(value)
    number = int(text) if re.fullmatch(r"[0-9]{1,7}", text) else None
    return number if number is not None and number < MAX_RANKS else None


#: Kind by pattern of a region's category; the first match is used.
_CATEGORIES = (
    ("cuda_runtime", r"^HIP_"),
    ("cuda_driver", r"^HSA_"),
    ("nvtx", r"^(?:MARKER|RCCL|ROCTX)"),
)
#: A roctx call, whose message is the name of the range.
_ROCTX = r"^roctx"
_GROUPS = ("comm", "communicator")
_COUNTS = ("count", "sendcount", "recvcount")


def read(reading: DatabaseReader) -> Recording:
    """Read the selected rows of a database of rocprofv3."""
    tables, kinds = Tables(reading), reading.selection.kinds
    metadata = tables.read(METADATA, texts=("tag", "value"))
    version = metadata.filter(pl.col("tag") == "schema_version")["value"].drop_nulls()
    recording = Recording(f"rocpd, schema {version[0] if len(version) else 'unknown'}")
    wanted = None if kinds is None or reading.selection.names else kinds
    readers = (
        (DISPATCH, {"kernel"}, _kernels),
        (COPY, {"gpu_memcpy"}, _copies),
        (REGION, {"cuda_runtime", "cuda_driver", "nvtx", "other"}, _regions),
        (ALLOCATE, {"alloc", "free_completed"}, _allocations),
    )
    for table, contents, rows in readers:
        if tables.has(table) and (wanted is None or wanted & contents):
            recording.parts.append(rows(tables))
    if (kinds is None or "counter" in kinds) and tables.has(COUNTER):
        recording.counters = _counters(tables)
    processes, agents = tables.processes(), tables.agents()
    recording.used = _used(tables)
    recording.ranks = recorded_ranks(processes)
    recording.lanes = _lanes(tables, processes)
    gpus = agents.filter(pl.col("device") >= 0).unique("device", keep="first").sort("device")
    recording.devices = tuple(Device(*row) for row in gpus.select("device", "label").iter_rows())
    hosts = tables.described(NODE, texts=("hostname",))["hostname"].drop_nulls().unique()
    recording.host = hosts[0] if len(hosts) == 1 else None
    starts = [
        tables.read(table, integers=("start",))["start"].min() for table in (DISPATCH, COPY, REGION)
    ]
    recording.start_ns = min((time for time in starts if isinstance(time, int)), default=None)
    return recording


def _used(tables: Tables) -> pl.DataFrame:
    """Return the processes and GPUs of all kernels and copies."""
    rows = pl.concat(
        [
            tables.read(DISPATCH, integers=("pid", "agent_id")),
            tables.read(COPY, integers=("pid", "dst_agent_id")).rename(
                {"dst_agent_id": "agent_id"}
            ),
        ]
    ).unique(maintain_order=True)
    placed = tables.on_gpu(tables.placed(rows), "agent_id")
    return placed.select("owner", "device").drop_nulls().unique()


def _lanes(tables: Tables, processes: pl.DataFrame) -> pl.DataFrame:
    """Return the processes with their commands, and the named threads."""
    threads = tables.joined(tables.threads(), "process", processes.drop("nid"))
    rows = pl.concat(
        [
            processes.select(
                "owner", pid="real_pid", tid=pl.lit(None, dtype=pl.Int64), label=pl.col("command")
            ),
            threads.select("owner", pid="real_pid", tid="real_tid", label="label"),
        ]
    )
    return rows.drop_nulls(["owner", "pid"]).select(*LANES)


def _kernels(tables: Tables) -> pl.DataFrame:
    """Return one row per dispatch of a kernel."""
    sizes = [f"{of}_size_{axis}" for of in ("workgroup", "grid") for axis in "xyz"]
    rows = tables.read(
        DISPATCH,
        integers=(
            "pid", "agent_id", "kernel_id", "queue_id", "stream_id", "start", "end", "event_id",
            "group_segment_size", "private_segment_size", *sizes,
        ),
        where=tables.reading.inside(),
    )  # fmt: skip
    symbols = tables.described(
        SYMBOL, integers=("arch_vgpr_count",), texts=("display_name", "kernel_name")
    ).with_columns(symbol=pl.coalesce("display_name", "kernel_name"))
    rows = tables.joined(rows, "kernel_id", symbols)
    rows = tables.on_gpu(rows, "agent_id")
    rows = tables.joined(tables.placed(rows), "event_id", tables.events())
    return rows.select(
        *span(),
        kind_of("kernel"),
        "owner", "pid", "device", "correlation",
        *names.launch_shape("grid_size_{}", "workgroup_size_{}", "xyz"),
        category=pl.col("category").cast(schema.NAME),
        name=pl.col("symbol").cast(schema.NAME),
        stream=pl.coalesce("stream_id", "queue_id"),
        registers=pl.col("arch_vgpr_count").cast(pl.Int32, strict=False),
        shared_memory="group_segment_size",
        local_memory="private_segment_size",
    )  # fmt: skip


def _copies(tables: Tables) -> pl.DataFrame:
    """Return one row per copy, on the GPU that receives it or else the one that sends it."""
    rows = tables.read(
        COPY,
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
        *span(),
        kind_of("gpu_memcpy"),
        "owner", "pid", "correlation",
        category=pl.col("category").cast(schema.NAME),
        name=name.cast(schema.NAME),
        device=pl.coalesce("target", "device"),
        stream=pl.coalesce("stream_id", "queue_id"),
        bytes=pl.when(pl.col("size") >= 0).then("size"),
    )  # fmt: skip


def _regions(tables: Tables) -> pl.DataFrame:
    """Return one row per API call and range; RCCL's calls with the columns of ``collectives``."""
    rows = tables.read(
        REGION,
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
    category = pl.when(pl.col("kind") == "nvtx").then(names.range_category(pl.col("title")))
    launching = pl.col("kind").is_in(("cuda_runtime", "cuda_driver"))
    events = rows.select(
        *span(),
        "kind", "owner", "pid", "tid", "guid", "event_id",
        category=pl.coalesce(category, pl.col("category").cast(schema.NAME)),
        name=pl.col("title").cast(schema.NAME),
        correlation=pl.when(launching).then("correlation"),
    )  # fmt: skip
    return _with_collectives(tables, events).drop("guid", "event_id")


def _with_collectives(tables: Tables, events: pl.DataFrame) -> pl.DataFrame:
    """Add collective, type, count and group of RCCL's calls, from their arguments."""
    calls = events.filter(pl.col("category") == names.RCCL_CATEGORY).drop_nulls("event_id")
    if calls.is_empty():
        return events
    arguments = tables.read(ARGUMENT, integers=("event_id",), texts=("name", "value"))
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
    return with_collectives(events, values, {"guid": pl.String, "event_id": pl.Int64})


def _collective(name: str | None, arguments: dict[str, str]) -> tuple[object, ...]:
    collective = names.collective(name)
    if collective is None:
        return (None,) * 6
    count = next((arguments[key] for key in _COUNTS if key in arguments), "")
    group = next((arguments[key] for key in _GROUPS if key in arguments), None)
    is_count = count.isdecimal() and len(count) < 16
    dtype = names.dtype(arguments.get("datatype"))
    return collective, dtype, int(count) if is_count else None, None, group, None


def _allocations(tables: Tables) -> pl.DataFrame:
    """Return one row per allocation or free of a GPU's memory, with the running total.

    A free without a size has that of the last allocation at its address.
    """
    rows = tables.read(
        ALLOCATE,
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
        kind_of("alloc"),
        "owner", "pid", "tid", "device", "bytes",
        ts="start",
        frees=frees,
        name=pl.lit("Device", dtype=schema.NAME),
        address=pl.col("address").cast(pl.UInt64, strict=False),
        allocated_bytes=limited.cum_sum().over("owner", "device"),
    )  # fmt: skip
    of_frees = pl.when("frees").then(kind_of("free_completed")).otherwise("kind")
    return tables.reading.within(events.with_columns(kind=of_frees).drop("frees"))


def _counters(tables: Tables) -> pl.DataFrame:
    """Return ``counters``: samples, and the hardware counters of kernels at their start."""
    rows = tables.read(COUNTER, integers=("event_id", "pmc_id"), reals=("value",))
    times = pl.concat(
        [
            tables.read(SAMPLE, integers=("event_id", "timestamp")).rename({"timestamp": "ts"}),
            tables.read(DISPATCH, integers=("event_id", "start")).rename({"start": "ts"}),
        ]
    ).drop_nulls()
    metrics = tables.described(PMC, integers=("agent_id",), texts=("name", "units"))
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
