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

from traceanalyzer.analyzers import registry

if TYPE_CHECKING:
    from traceanalyzer.analyzers.annotations import annotations as annotations
    from traceanalyzer.analyzers.annotations.result import Annotations as Annotations
    from traceanalyzer.analyzers.comm_outliers import comm_outliers as comm_outliers
    from traceanalyzer.analyzers.comm_outliers.result import CommOutliers as CommOutliers
    from traceanalyzer.analyzers.cuda_api import cuda_api as cuda_api
    from traceanalyzer.analyzers.cuda_api.result import CudaApi as CudaApi
    from traceanalyzer.analyzers.diagnosis import diagnose as diagnose
    from traceanalyzer.analyzers.diagnosis.result import Diagnosis as Diagnosis
    from traceanalyzer.analyzers.diff import diff as diff
    from traceanalyzer.analyzers.diff.result import Diff as Diff
    from traceanalyzer.analyzers.flamegraph import flamegraph as flamegraph
    from traceanalyzer.analyzers.flamegraph.result import FlameGraph as FlameGraph
    from traceanalyzer.analyzers.gpu_idle import gpu_idle as gpu_idle
    from traceanalyzer.analyzers.gpu_idle.result import GpuIdle as GpuIdle
    from traceanalyzer.analyzers.host_metrics import host_metrics as host_metrics
    from traceanalyzer.analyzers.host_metrics.result import HostMetrics as HostMetrics
    from traceanalyzer.analyzers.info import info as info
    from traceanalyzer.analyzers.info.result import Info as Info
    from traceanalyzer.analyzers.kernels import kernels as kernels
    from traceanalyzer.analyzers.kernels.result import Kernels as Kernels
    from traceanalyzer.analyzers.launches import launches as launches
    from traceanalyzer.analyzers.launches.result import Launches as Launches
    from traceanalyzer.analyzers.memory import (
        memory as memory,
    )
    from traceanalyzer.analyzers.memory import (
        memory_diff as memory_diff,
    )
    from traceanalyzer.analyzers.memory import (
        memory_growth as memory_growth,
    )
    from traceanalyzer.analyzers.memory import (
        memory_oom as memory_oom,
    )
    from traceanalyzer.analyzers.memory.diff import MemoryDiff as MemoryDiff
    from traceanalyzer.analyzers.memory.growth import MemoryGrowth as MemoryGrowth
    from traceanalyzer.analyzers.memory.oom import MemoryErrors as MemoryErrors
    from traceanalyzer.analyzers.memory.result import Memory as Memory
    from traceanalyzer.analyzers.operators import operators as operators
    from traceanalyzer.analyzers.operators.result import Operators as Operators
    from traceanalyzer.analyzers.overlap import overlap as overlap
    from traceanalyzer.analyzers.overlap.result import Overlap as Overlap
    from traceanalyzer.analyzers.py_spy_report import py_spy_report as py_spy_report
    from traceanalyzer.analyzers.py_spy_report.result import LeafPaths as LeafPaths
    from traceanalyzer.analyzers.report import report as report
    from traceanalyzer.analyzers.steps import steps as steps
    from traceanalyzer.analyzers.steps.result import Steps as Steps
    from traceanalyzer.analyzers.transfers import transfers as transfers
    from traceanalyzer.analyzers.transfers.result import Transfers as Transfers
    from traceanalyzer.conversion import convert as convert
    from traceanalyzer.errors import (
        InputError as InputError,
    )
    from traceanalyzer.errors import (
        MalformedInput as MalformedInput,
    )
    from traceanalyzer.errors import (
        MissingData as MissingData,
    )
    from traceanalyzer.errors import (
        MissingExtra as MissingExtra,
    )
    from traceanalyzer.errors import (
        OptionError as OptionError,
    )
    from traceanalyzer.errors import (
        OutputError as OutputError,
    )
    from traceanalyzer.errors import (
        TraceAnalyzerError as TraceAnalyzerError,
    )
    from traceanalyzer.errors import (
        UnknownFormat as UnknownFormat,
    )
    from traceanalyzer.errors import (
        UnreadableFile as UnreadableFile,
    )
    from traceanalyzer.reading import find_inputs as find_inputs
    from traceanalyzer.reading import read as read
    from traceanalyzer.result import (
        Chart as Chart,
    )
    from traceanalyzer.result import (
        Finding as Finding,
    )
    from traceanalyzer.result import (
        Report as Report,
    )
    from traceanalyzer.result import (
        Result as Result,
    )
    from traceanalyzer.result import (
        Table as Table,
    )
    from traceanalyzer.trace import Device as Device
    from traceanalyzer.trace import Meta as Meta
    from traceanalyzer.trace import Trace as Trace
    from traceanalyzer.trace import concat as concat

    __version__: str

#: Public names by the module they are in, but for the functions of analyzers: those are found in
#: the registry.
_MODULES = {
    "analyzers.annotations.result": ("Annotations",),
    "analyzers.comm_outliers.result": ("CommOutliers",),
    "analyzers.cuda_api.result": ("CudaApi",),
    "analyzers.diagnosis": ("diagnose",),
    "analyzers.diagnosis.result": ("Diagnosis",),
    "analyzers.diff.result": ("Diff",),
    "analyzers.flamegraph.result": ("FlameGraph",),
    "analyzers.gpu_idle.result": ("GpuIdle",),
    "analyzers.host_metrics.result": ("HostMetrics",),
    "analyzers.info.result": ("Info",),
    "analyzers.kernels.result": ("Kernels",),
    "analyzers.launches.result": ("Launches",),
    "analyzers.memory.diff": ("MemoryDiff",),
    "analyzers.memory.growth": ("MemoryGrowth",),
    "analyzers.memory.oom": ("MemoryErrors",),
    "analyzers.memory.result": ("Memory",),
    "analyzers.operators.result": ("Operators",),
    "analyzers.overlap.result": ("Overlap",),
    "analyzers.py_spy_report.result": ("LeafPaths",),
    "analyzers.report": ("report",),
    "analyzers.steps.result": ("Steps",),
    "analyzers.transfers.result": ("Transfers",),
    "conversion": ("convert",),
    "errors": (
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
    "reading": ("find_inputs", "read"),
    "result": ("Chart", "Finding", "Report", "Result", "Table"),
    "trace": ("Device", "Meta", "Trace", "concat"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

__all__ = sorted([*_HOME, *(entry.name for entry in registry.public())])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("traceanalyzer")
    if name in _HOME:
        value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    elif name in __all__:
        value = registry.ENTRIES[name].function()
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
