"""The options of ``transfers``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """What is copied and set, by direction, memory and size, how fast, and is it hidden?

    PATH is a trace, several of them, or a folder.
    """
