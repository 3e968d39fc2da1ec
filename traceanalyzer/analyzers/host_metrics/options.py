"""The options of ``host_metrics``."""

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """How did the host fare: processor, memory, disk, network, and what else was counted.

    PATH is a trace, several of them, or a folder.
    """

    counters: Sequence[str] = option(
        (),
        help="Only counters whose NAME/SERIES matches this regular expression. Repeatable.",
        flag="--counter",
        metavar="PATTERN",
    )
