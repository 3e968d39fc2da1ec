"""The package's functions on files: find, read, analyze, convert. No ink, no terminal.

What comes in are paths and options, what goes out are traces and results. The command line and
``import traceanalyzer`` are built on this and nothing below it.
"""

from traceanalyzer.analyzers.leaf_paths import By, GroupBy, Match
from traceanalyzer.api.communication import comm_outliers
from traceanalyzer.api.contents import info
from traceanalyzer.api.conversion import convert
from traceanalyzer.api.reading import Inputs, PathLike, Progress, find_inputs, natural, read
from traceanalyzer.api.stacks import flamegraph, py_spy_report

__all__ = [
    "By", "GroupBy", "Inputs", "Match", "PathLike", "Progress", "comm_outliers", "convert",
    "find_inputs", "flamegraph", "info", "natural", "py_spy_report", "read",
]  # fmt: skip
