"""The tables of an export, and helpers for the modules that read them.

Any table may be missing: nsys writes a table only if it recorded data for it. Columns that differ
between versions are read by name if they exist (users add columns). The names here are the same in
exports from before 2022 to 2026.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.parsers.sqlite.database import Shape
from traceanalyzer.parsers.sqlite.rows import DatabaseReader

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
MEMCPY = "CUPTI_ACTIVITY_KIND_MEMCPY"
MEMSET = "CUPTI_ACTIVITY_KIND_MEMSET"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCHRONIZATION = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
GRAPH_TRACE = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
MEMORY_USAGE = "CUDA_GPU_MEMORY_USAGE_EVENTS"
NVTX = "NVTX_EVENTS"
OSRT = "OSRT_API"
OVERHEAD = "PROFILER_OVERHEAD"
CUDA_OVERHEAD = "CUPTI_ACTIVITY_KIND_OVERHEAD"
GPU_FAULTS = "CUDA_UM_GPU_PAGE_FAULT_EVENTS"
CPU_FAULTS = "CUDA_UM_CPU_PAGE_FAULT_EVENTS"
CUDNN = "CUDNN_EVENTS"
CUBLAS = "CUBLAS_EVENTS"
OPENACC = ("OPENACC_DATA_EVENTS", "OPENACC_LAUNCH_EVENTS", "OPENACC_OTHER_EVENTS")
SCHED = "SCHED_EVENTS"
SAMPLES = "COMPOSITE_EVENTS"
CALLCHAINS = "SAMPLING_CALLCHAINS"
GPU_METRICS = "GPU_METRICS"
NIC_METRICS = "NET_NIC_METRIC"
NIC_METRIC_NAMES = "TARGET_INFO_NETWORK_METRICS"
GPU_METRIC_NAMES = "TARGET_INFO_GPU_METRICS"
MPI_COLLECTIVES = "MPI_COLLECTIVES_EVENTS"
MPI_P2P = "MPI_P2P_EVENTS"
MPI_WAIT = "MPI_START_WAIT_EVENTS"
MPI_OTHER = "MPI_OTHER_EVENTS"
MPI_RANKS = "MPI_RANKS"
STRINGS = "StringIds"
PROCESSES = "PROCESSES"
THREAD_NAMES = "ThreadNames"
GPUS = "TARGET_INFO_GPU"
CUDA_DEVICES = "TARGET_INFO_CUDA_DEVICE"
CUDA_STREAMS = "TARGET_INFO_CUDA_STREAM"
CUDA_CONTEXTS = "TARGET_INFO_CUDA_CONTEXT_INFO"
SESSION = "TARGET_INFO_SESSION_START_TIME"
SYSTEM = "TARGET_INFO_SYSTEM_ENV"
DIAGNOSTICS = "DIAGNOSTIC_EVENT"
CAPTURE = "META_DATA_CAPTURE"
PAYLOAD_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
#: Metadata of an export, by its names in newer and in older versions.
EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")

_SLICE = ("start", "end")
_ON_DEVICE = (*_SLICE, "deviceId", "streamId", "correlationId", "globalPid")
_ON_THREAD = (*_SLICE, "globalTid")

#: Required columns by table.
REQUIRED: dict[str, tuple[str, ...]] = {
    KERNEL: (*_ON_DEVICE, "demangledName"),
    MEMCPY: (*_ON_DEVICE, "bytes", "copyKind"),
    MEMSET: (*_ON_DEVICE, "bytes"),
    RUNTIME: (*_ON_THREAD, "correlationId", "nameId"),
    SYNCHRONIZATION: (*_ON_DEVICE, "syncType"),
    GRAPH_TRACE: (*_ON_DEVICE, "graphId"),
    MEMORY_USAGE: ("start", "globalPid", "deviceId", "address", "bytes", "memoryOperationType"),
    NVTX: (*_ON_THREAD, "eventType", "text"),
    OSRT: (*_ON_THREAD, "nameId"),
    OVERHEAD: (*_ON_THREAD, "nameId"),
    CUDA_OVERHEAD: (*_ON_THREAD, "overheadType"),
    GPU_FAULTS: (*_SLICE, "globalPid", "deviceId"),
    CPU_FAULTS: ("start", "globalPid"),
    CUDNN: (*_ON_THREAD, "nameId"),
    CUBLAS: (*_ON_THREAD, "nameId"),
    **dict.fromkeys(OPENACC, (*_ON_THREAD, "nameId")),
    SCHED: ("start", "cpu", "isSchedIn", "globalTid"),
    SAMPLES: ("id", "start", "globalTid"),
    CALLCHAINS: ("id", "symbol", "module", "stackDepth"),
    GPU_METRICS: ("timestamp", "typeId", "metricId", "value"),
    NIC_METRICS: ("start", "globalId", "portId", "metricsListId", "metricsIdx", "value"),
    NIC_METRIC_NAMES: ("metricsListId", "metricsIdx", "name"),
    GPU_METRIC_NAMES: ("typeId", "metricId", "metricName"),
    MPI_COLLECTIVES: (*_ON_THREAD, "textId"),
    MPI_P2P: (*_ON_THREAD, "textId"),
    MPI_WAIT: (*_ON_THREAD, "textId"),
    MPI_OTHER: (*_ON_THREAD, "textId"),
    MPI_RANKS: ("globalTid", "rank"),
    STRINGS: ("id", "value"),
    PROCESSES: ("globalPid", "name"),
    THREAD_NAMES: ("nameId", "globalTid"),
    GPUS: ("name",),
    CUDA_DEVICES: ("gpuId", "cudaId", "pid"),
    CUDA_STREAMS: ("processId",),
    CUDA_CONTEXTS: ("processId", "deviceId"),
    SESSION: ("utcEpochNs",),
    SYSTEM: ("name", "value"),
    DIAGNOSTICS: ("severity", "text"),
    CAPTURE: ("name", "value"),
    PAYLOAD_ENTRIES: ("domainId", "schemaId", "type", "name", "offset"),
}

#: Any of these tables identifies an export.
IDENTIFYING = (*REQUIRED, *EXPORT)

#: Tables without events, or with data that other tables have too.
DESCRIBING = (
    *EXPORT,
    "ANALYSIS_DETAILS",
    "ANALYSIS_FILE",
    "NVTX_PAYLOAD_SCHEMAS",
    "NVTX_PAYLOAD_ENUMS",
    "NVTX_PAYLOAD_ENUM_ENTRIES",
    "NVTX_SCOPES",
    "MPI_COMMUNICATORS",
    "ProcessStreams",
    "UnwindMethodType",
    "OSRT_CALLCHAINS",
    "CUDA_CALLCHAINS",
    "SystemInfo",
)
DESCRIBING_PREFIXES = ("ENUM_", "TARGET_INFO_", "sqlite_")


@dataclass(frozen=True)
class Recording:
    """A table of events, their description, and the ``nsys profile`` option that records them."""

    table: str
    what: str
    option: str


RECORDINGS = (
    Recording(KERNEL, "kernels", "--trace=cuda"),
    Recording(GRAPH_TRACE, "CUDA graph launches", "--trace=cuda"),
    Recording(MEMCPY, "copies", "--trace=cuda"),
    Recording(MEMSET, "memsets", "--trace=cuda"),
    Recording(SYNCHRONIZATION, "synchronisation", "--trace=cuda"),
    Recording(RUNTIME, "CUDA API calls", "--trace=cuda"),
    Recording(NVTX, "NVTX ranges", "--trace=nvtx"),
    Recording(OSRT, "blocking OS runtime calls", "--trace=osrt"),
    Recording(CUDNN, "cuDNN calls", "--trace=cudnn"),
    Recording(CUBLAS, "cuBLAS calls", "--trace=cublas"),
    Recording(MPI_COLLECTIVES, "MPI calls", "--trace=mpi"),
    Recording(MPI_P2P, "MPI calls", "--trace=mpi"),
    Recording(MPI_WAIT, "MPI calls", "--trace=mpi"),
    Recording(MPI_OTHER, "MPI calls", "--trace=mpi"),
    Recording(SAMPLES, "sampled stacks", "--sample=process-tree"),
    Recording(SCHED, "thread scheduling", "--cpuctxsw=process-tree"),
    Recording(MEMORY_USAGE, "GPU memory allocations", "--cuda-memory-usage=true"),
    Recording(GPU_METRICS, "GPU metrics", "--gpu-metrics-devices=all"),
)

#: Maximum number of string ids to query by id; for more, the whole table is read.
_FEW = 2000
#: CUPTI's values for "no stream" or "no device".
_NONE = (0xFFFFFFFF, -1)


@dataclass
class Export(DatabaseReader):
    """An open export, and the strings read so far.

    Attributes:
        processes: read only events of these processes; None for all.
        only_process: the process of device work without one.
        dropped: of rows of other processes, the number without a start, and that end before it.
    """

    processes: frozenset[int] | None = None
    only_process: int | None = None
    dropped: list[tuple[int, ...]] = field(default_factory=list)
    _texts: dict[int, str | None] = field(default_factory=dict)
    _named: bool | None = None

    def of_processes(self, shape: Shape, place: str = "globalTid") -> Shape:
        """Return the shape of only those rows whose process is read.

        Args:
            shape: see :meth:`Database.read`.
            place: column with the global id of the thread or process.
        """
        if self.processes is None:
            return shape
        is_chosen = self.pid(place).is_in(sorted(self.processes)).fill_null(value=False)
        start, end = pl.col("start"), pl.col("end")

        def of_chosen(piece: pl.DataFrame) -> pl.DataFrame:
            chosen = piece.select(is_chosen).to_series()
            odd = [start.is_null(), *([end < start] if "end" in piece.columns else [])]
            self.dropped.append(piece.select((test & ~chosen).sum() for test in odd).row(0))
            return shape(piece.filter(chosen))

        return of_chosen

    def inside_windows(
        self, table: str, *integers: str, columns: Sequence[str | pl.Expr], **how: Any
    ) -> pl.DataFrame:
        """Read the rows of the chosen processes that overlap a selected window.

        Args:
            table: name of the table.
            integers: columns to read.
            columns: columns to return.
            how: ``place``, see :meth:`of_processes`, and options of :meth:`Database.read`.
        """
        place = how.pop("place", "globalTid")
        shape = self.of_processes(lambda piece: piece.select_seq(*columns), place)
        return self.read(table, *integers, windows=self.selection.windows, shape=shape, **how)

    def pid(self, column: str) -> pl.Expr:
        """Return the process of a global id, or the only process."""
        known = pid(column)
        return known if self.only_process is None else known.fill_null(self.only_process)

    def any_named(self) -> bool:
        """Whether any string contains one of the selected names."""
        if self._named is None:
            named = pl.col("value").str.contains_any(list(self.selection.names))
            texts = self.read(STRINGS, texts=("value",), shape=lambda piece: piece.filter(named))
            self._named = texts.height > 0
        return self._named

    def texts(self, ids: pl.Series) -> dict[int, str | None]:
        """Return the strings of these ids; None for unknown ids."""
        new = sorted(set(ids.drop_nulls().to_list()) - self._texts.keys())
        if new:
            where = f'"id" IN ({", ".join(map(str, new))})' if len(new) <= _FEW else None
            rows = self.read(STRINGS, "id", texts=("value",), where=where)
            self._texts.update(dict.fromkeys(new))
            self._texts.update(zip(rows["id"], rows["value"], strict=True))
        return self._texts

    def named(self, ids: pl.Series, spelled: Callable[[str], str] = str) -> pl.Series:
        """Replace string ids by names: a Categorical series, null without a string.

        ``spelled`` is applied to each distinct string.
        """
        first, number = numbered([ids])
        distinct = ids.gather(first)
        known = self.texts(distinct)
        names = [None if string is None else known[string] for string in distinct]
        texts = pl.Series([n if n is None else spelled(n) for n in names], dtype=schema.NAME)
        return texts.gather(pl.Series(number)).alias(ids.name)


def process_of(thread: int) -> int:
    """Return the process id in a global id: 8 bits hardware, 8 VM, 24 process, 24 thread."""
    return (thread >> 24) & 0xFFFFFF


def pid(column: str) -> pl.Expr:
    """Like :func:`process_of`, for a column."""
    return ((pl.col(column) // (1 << 24)) & 0xFFFFFF).alias("pid")


def tid(column: str) -> pl.Expr:
    """Return the thread id in a global id."""
    return (pl.col(column) & 0xFFFFFF).alias("tid")


def none_if_unset(column: str, name: str) -> pl.Expr:
    """Return a stream or device, null for CUPTI's "none"."""
    return pl.when(~pl.col(column).is_in(_NONE)).then(column).alias(name)


def name_id(column: str) -> pl.Expr:
    """Return a string id as ``name``, to be replaced by :meth:`Export.named`."""
    return pl.col(column).cast(pl.UInt32, strict=False).alias("name")
