"""The options of ``critical-path``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show what the run waited for at each moment: kernels, launches, data loading, other ranks.

    The longest path through all ranks, as shares of the step time, which add up to it. PATH is a
    trace, several of them, or a folder.
    """
