"""Why is training slow? Reads what profilers wrote and names the cause.

>>> import traceanalyzer as ta
>>> trace = ta.read("fixtures/nccl_8ranks/rank5.json.gz")  # any format, told by its content
>>> trace.events.select("ts", "dur", "kind").height        # a polars table, whole nanoseconds
489
>>> idle = trace.gpu_idle()                                # each question is a method of a trace
>>> print(idle.verdict)
The GPU is idle 25.1 % of the time (32.05 ms of 127.8 ms). Loader-bound: ...
>>> late = ta.comm_outliers("fixtures/nccl_8ranks")        # and a function of files and folders
>>> late.to_polars("ranks").select("rank", "imposed_ns").row(0)
(5, 185117496)
>>> axes = idle.plot("gaps")                               # matplotlib axes, yours to adapt

A result shows itself in a notebook; ``print(result)`` is what the command line prints. Its
``verdict`` is the answer in words, ``to_polars(name)`` one of its tables, ``scalars`` its numbers:
names carry the unit (``_ns``, ``_bytes``, ``_frac``). ``help(trace.gpu_idle)`` says what a question
answers and takes. What was not recorded raises ``MissingData``, which says how to record it.

Names are loaded when they are first used, so that importing the package costs nothing.
"""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceanalyzer.analyzers.annotations import Annotations
    from traceanalyzer.analyzers.api_calls import CudaApi
    from traceanalyzer.analyzers.comm_outliers import CommOutliers
    from traceanalyzer.analyzers.diagnosis import Diagnosis
    from traceanalyzer.analyzers.diff import Diff
    from traceanalyzer.analyzers.flamegraph import FlameGraph
    from traceanalyzer.analyzers.gpu_idle import GpuIdle
    from traceanalyzer.analyzers.host_metrics import HostMetrics
    from traceanalyzer.analyzers.info import Info
    from traceanalyzer.analyzers.kernels import Kernels
    from traceanalyzer.analyzers.launches import Launches
    from traceanalyzer.analyzers.leaf_paths import LeafPaths
    from traceanalyzer.analyzers.memory import Memory, MemoryDiff, MemoryErrors, MemoryGrowth
    from traceanalyzer.analyzers.operators import Operators
    from traceanalyzer.analyzers.overlap import Overlap
    from traceanalyzer.analyzers.steps import Steps
    from traceanalyzer.analyzers.transfers import Transfers
    from traceanalyzer.api import (
        annotations,
        comm_outliers,
        convert,
        cuda_api,
        diagnose,
        diff,
        find_inputs,
        flamegraph,
        gpu_idle,
        host_metrics,
        info,
        kernels,
        launches,
        memory,
        memory_diff,
        memory_growth,
        memory_oom,
        operators,
        overlap,
        py_spy_report,
        read,
        report,
        steps,
        transfers,
    )
    from traceanalyzer.errors import (
        InputError,
        MalformedInput,
        MissingData,
        MissingExtra,
        OptionError,
        OutputError,
        TraceAnalyzerError,
        UnknownFormat,
        UnreadableFile,
    )
    from traceanalyzer.result import Chart, Finding, Report, Result, Table
    from traceanalyzer.trace import Device, Meta, Trace, concat

    __version__: str

_HOME = {
    **dict.fromkeys(
        (
            "annotations",
            "comm_outliers",
            "convert",
            "cuda_api",
            "diagnose",
            "diff",
            "find_inputs",
            "flamegraph",
            "gpu_idle",
            "host_metrics",
            "info",
            "kernels",
            "launches",
            "memory",
            "memory_diff",
            "memory_growth",
            "memory_oom",
            "operators",
            "overlap",
            "py_spy_report",
            "read",
            "report",
            "steps",
            "transfers",
        ),
        "api",
    ),
    **dict.fromkeys(("Device", "Meta", "Trace", "concat"), "trace"),
    **dict.fromkeys(("Chart", "Finding", "Report", "Result", "Table"), "result"),
    **dict.fromkeys(
        (
            "InputError",
            "MalformedInput",
            "MissingData",
            "MissingExtra",
            "OptionError",
            "OutputError",
            "TraceAnalyzerError",
            "UnknownFormat",
            "UnreadableFile",
        ),
        "errors",
    ),
    "Annotations": "analyzers.annotations",
    "CommOutliers": "analyzers.comm_outliers",
    "CudaApi": "analyzers.api_calls",
    "Diagnosis": "analyzers.diagnosis",
    "Diff": "analyzers.diff",
    "FlameGraph": "analyzers.flamegraph",
    "GpuIdle": "analyzers.gpu_idle",
    "HostMetrics": "analyzers.host_metrics",
    "Info": "analyzers.info",
    "Kernels": "analyzers.kernels",
    "Launches": "analyzers.launches",
    "LeafPaths": "analyzers.leaf_paths",
    **dict.fromkeys(("Memory", "MemoryDiff", "MemoryErrors", "MemoryGrowth"), "analyzers.memory"),
    "Operators": "analyzers.operators",
    "Overlap": "analyzers.overlap",
    "Steps": "analyzers.steps",
    "Transfers": "analyzers.transfers",
}

__all__ = [
    "Annotations",
    "Chart",
    "CommOutliers",
    "CudaApi",
    "Device",
    "Diagnosis",
    "Diff",
    "Finding",
    "FlameGraph",
    "GpuIdle",
    "HostMetrics",
    "Info",
    "InputError",
    "Kernels",
    "Launches",
    "LeafPaths",
    "MalformedInput",
    "Memory",
    "MemoryDiff",
    "MemoryErrors",
    "MemoryGrowth",
    "Meta",
    "MissingData",
    "MissingExtra",
    "Operators",
    "OptionError",
    "OutputError",
    "Overlap",
    "Report",
    "Result",
    "Steps",
    "Table",
    "Trace",
    "TraceAnalyzerError",
    "Transfers",
    "UnknownFormat",
    "UnreadableFile",
    "annotations",
    "comm_outliers",
    "concat",
    "convert",
    "cuda_api",
    "diagnose",
    "diff",
    "find_inputs",
    "flamegraph",
    "gpu_idle",
    "host_metrics",
    "info",
    "kernels",
    "launches",
    "memory",
    "memory_diff",
    "memory_growth",
    "memory_oom",
    "operators",
    "overlap",
    "py_spy_report",
    "read",
    "report",
    "steps",
    "transfers",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("traceanalyzer")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
