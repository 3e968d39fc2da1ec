"""The options of ``host_metrics``."""

from collections.abc import Sequence
from dataclasses import dataclass

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
