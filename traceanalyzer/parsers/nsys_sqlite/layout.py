"""The tables of an export that are read, and the columns each must have.

Every table may be missing: nsys writes a table when something was recorded for it. Columns that
came or went with the versions are read where they are there, by name (users add their own). What
is listed here has been the same from exports of before 2022 to those of 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

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
CUDNN = "CUDNN_EVENTS"
CUBLAS = "CUBLAS_EVENTS"
SCHED = "SCHED_EVENTS"
SAMPLES = "COMPOSITE_EVENTS"
CALLCHAINS = "SAMPLING_CALLCHAINS"
GPU_METRICS = "GPU_METRICS"
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
PAYLOAD_ENTRIES = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
#: What an export says about itself, by the names of newer and of older versions.
EXPORT = ("META_DATA_EXPORT", "EXPORT_META_DATA")

_SLICE = ("start", "end")
_ON_DEVICE = (*_SLICE, "deviceId", "streamId", "correlationId", "globalPid")
_ON_THREAD = (*_SLICE, "globalTid")

#: Columns without which a table cannot be read.
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
    CUDNN: (*_ON_THREAD, "nameId"),
    CUBLAS: (*_ON_THREAD, "nameId"),
    SCHED: ("start", "cpu", "isSchedIn", "globalTid"),
    SAMPLES: ("id", "start", "globalTid"),
    CALLCHAINS: ("id", "symbol", "module", "stackDepth"),
    GPU_METRICS: ("timestamp", "typeId", "metricId", "value"),
    GPU_METRIC_NAMES: ("typeId", "metricId", "metricName"),
    MPI_COLLECTIVES: (*_ON_THREAD, "textId"),
    MPI_P2P: (*_ON_THREAD, "textId"),
    MPI_WAIT: (*_ON_THREAD, "textId"),
    MPI_OTHER: (*_ON_THREAD, "textId"),
    MPI_RANKS: ("globalTid", "rank"),
    STRINGS: ("id", "value"),
    PROCESSES: ("globalPid", "name"),
    THREAD_NAMES: ("nameId", "globalTid"),
    GPUS: ("id", "name"),
    CUDA_DEVICES: ("gpuId", "cudaId", "pid"),
    CUDA_STREAMS: ("processId",),
    CUDA_CONTEXTS: ("processId", "deviceId"),
    SESSION: ("utcEpochNs",),
    SYSTEM: ("name", "value"),
    DIAGNOSTICS: ("severity", "text"),
    PAYLOAD_ENTRIES: ("domainId", "schemaId", "type", "name", "offset"),
}

#: Tables of which any tells that a database is an export.
TELLING = (*REQUIRED, *EXPORT)

#: Tables that hold nothing that happened, or what other tables say as well.
DESCRIBING = (
    *EXPORT,
    "ANALYSIS_DETAILS",
    "ANALYSIS_FILE",
    "META_DATA_CAPTURE",
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
    """A table of events: what they are, and the option of ``nsys profile`` that records them."""

    table: str
    what: str
    option: str


RECORDINGS = (
    Recording(KERNEL, "kernels", "--trace=cuda"),
    Recording(GRAPH_TRACE, "whole CUDA graphs", "--trace=cuda"),
    Recording(MEMCPY, "copies", "--trace=cuda"),
    Recording(MEMSET, "memsets", "--trace=cuda"),
    Recording(SYNCHRONIZATION, "synchronisation", "--trace=cuda"),
    Recording(RUNTIME, "CUDA API calls", "--trace=cuda"),
    Recording(NVTX, "NVTX ranges", "--trace=nvtx"),
    Recording(OSRT, "calls of the C library that wait", "--trace=osrt"),
    Recording(CUDNN, "cuDNN calls", "--trace=cudnn"),
    Recording(CUBLAS, "cuBLAS calls", "--trace=cublas"),
    Recording(MPI_COLLECTIVES, "MPI calls", "--trace=mpi"),
    Recording(MPI_P2P, "MPI calls", "--trace=mpi"),
    Recording(MPI_WAIT, "MPI calls", "--trace=mpi"),
    Recording(MPI_OTHER, "MPI calls", "--trace=mpi"),
    Recording(SAMPLES, "sampled stacks", "--sample=process-tree"),
    Recording(SCHED, "threads on cores", "--cpuctxsw=process-tree"),
    Recording(MEMORY_USAGE, "allocations of GPU memory", "--cuda-memory-usage=true"),
    Recording(GPU_METRICS, "GPU metrics", "--gpu-metrics-devices=all"),
)
