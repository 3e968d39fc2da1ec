"""The options of ``launches``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, step_name


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show how fast the host launches work: delays, queues, launch-bound time, synchronisation.

    PATH is a trace, several of them, or a folder.
    """

    step_name: str | None = step_name()
