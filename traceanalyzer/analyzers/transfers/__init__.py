"""Copies and memsets by direction, memory and size, their bandwidth and overlap with kernels.

``compute`` measures each rank's copies and memsets and sums over all ranks; ``result`` has the
data, findings, verdict, notes, tables and charts.
"""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show copies and memsets by direction, memory and size, their bandwidth and overlap.

    PATH is a trace, several of them, or a folder.
    """
