"""The package's functions on files: find, read, analyze, convert. No ink, no terminal.

What comes in are paths and options, what goes out are traces and results. The command line and
``import traceanalyzer`` are built on this and nothing below it. A function is loaded when it is
first used, so that a question does not pay for the others.
"""

from importlib import import_module
from inspect import isfunction
from typing import TYPE_CHECKING, Any

from traceanalyzer.api.spelling import spelled_out

if TYPE_CHECKING:
    from traceanalyzer.analyzers.leaf_paths import By, GroupBy, Match
    from traceanalyzer.api.annotated import annotations
    from traceanalyzer.api.communication import comm_outliers
    from traceanalyzer.api.comparing import diff
    from traceanalyzer.api.contents import info
    from traceanalyzer.api.conversion import convert
    from traceanalyzer.api.cuda import cuda_api, transfers
    from traceanalyzer.api.diagnosis import diagnose
    from traceanalyzer.api.feeding import launches
    from traceanalyzer.api.held import memory, memory_diff, memory_growth, memory_oom
    from traceanalyzer.api.host import host_metrics
    from traceanalyzer.api.idle import gpu_idle
    from traceanalyzer.api.operating import operators
    from traceanalyzer.api.reading import (
        NO_FORMAT,
        Inputs,
        PathLike,
        Progress,
        find_inputs,
        natural,
        read,
    )
    from traceanalyzer.api.reporting import report
    from traceanalyzer.api.stacks import flamegraph, py_spy_report
    from traceanalyzer.api.time import overlap, steps
    from traceanalyzer.api.work import kernels

_HOME = {
    **dict.fromkeys(("By", "GroupBy", "Match"), "analyzers.leaf_paths"),
    "annotations": "api.annotated",
    "comm_outliers": "api.communication",
    "convert": "api.conversion",
    "diff": "api.comparing",
    **dict.fromkeys(("cuda_api", "transfers"), "api.cuda"),
    "diagnose": "api.diagnosis",
    **dict.fromkeys(("flamegraph", "py_spy_report"), "api.stacks"),
    **dict.fromkeys(("overlap", "steps"), "api.time"),
    "gpu_idle": "api.idle",
    "host_metrics": "api.host",
    "info": "api.contents",
    "launches": "api.feeding",
    "report": "api.reporting",
    **dict.fromkeys(("memory", "memory_diff", "memory_growth", "memory_oom"), "api.held"),
    "kernels": "api.work",
    "operators": "api.operating",
    **dict.fromkeys(
        ("NO_FORMAT", "Inputs", "PathLike", "Progress", "find_inputs", "natural", "read"),
        "api.reading",
    ),
}

__all__ = [
    "NO_FORMAT", "By", "GroupBy", "Inputs", "Match", "PathLike", "Progress", "annotations",
    "comm_outliers", "convert", "cuda_api", "diagnose", "diff", "find_inputs", "flamegraph",
    "gpu_idle", "host_metrics",
    "info", "kernels", "launches", "memory", "memory_diff", "memory_growth", "memory_oom",
    "natural", "operators", "overlap", "py_spy_report", "read", "report", "steps", "transfers",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"traceanalyzer.{_HOME[name]}"), name)
    if isfunction(value):
        value = spelled_out(value)
    globals()[name] = value
    return value
