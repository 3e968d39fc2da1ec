"""Counters of the host over time: CPU, memory, disk, network and others.

``compute`` reads a file's counters, converts cumulative ones to rates and combines files;
``result`` has the data, verdict, notes, tables and charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from traceanalyzer.analyzers.base import AnalyzerOptions, option


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show host counters over time: CPU, memory, disk, network and others.

    PATH is a trace, several of them, or a folder.
    """

    counters: Sequence[str] = option(
        (),
        help="Only counters whose NAME/SERIES matches this regular expression. Repeatable.",
        flag="--counter",
        metavar="PATTERN",
    )
    by: Literal["kernel"] | None = option(
        None,
        help="Also show the mean of each counter of a GPU while each kernel ran.",
        choices=("kernel",),
    )
