"""The package's functions on files: find, read, analyze, convert. No ink, no terminal.

What comes in are paths and options, what goes out are traces and results. The command line and
``import traceanalyzer`` are built on this and nothing below it. A function is loaded when it is
first used, so that a question does not pay for the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from traceanalyzer.analyzers.leaf_paths import By, GroupBy, Match
    from traceanalyzer.api.communication import comm_outliers
    from traceanalyzer.api.contents import info
    from traceanalyzer.api.conversion import convert
    from traceanalyzer.api.reading import Inputs, PathLike, Progress, find_inputs, natural, read
    from traceanalyzer.api.stacks import flamegraph, py_spy_report

_HOME = {
    **dict.fromkeys(("By", "GroupBy", "Match"), "analyzers.leaf_paths"),
    "comm_outliers": "api.communication",
    "convert": "api.conversion",
    **dict.fromkeys(("flamegraph", "py_spy_report"), "api.stacks"),
    "info": "api.contents",
    **dict.fromkeys(
        ("Inputs", "PathLike", "Progress", "find_inputs", "natural", "read"), "api.reading"
    ),
}

__all__ = [
    "By", "GroupBy", "Inputs", "Match", "PathLike", "Progress", "comm_outliers", "convert",
    "find_inputs", "flamegraph", "info", "natural", "py_spy_report", "read",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"traceanalyzer.{_HOME[name]}"), name)
    globals()[name] = value
    return value
