"""The options of ``hang``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Find the rank that a hanging job waits for, from Flight Recorder dumps.

    PATH is a dump, or a folder with one dump per rank (pickle or JSON), and optionally the output
    of py-spy dump of the same ranks.
    """
