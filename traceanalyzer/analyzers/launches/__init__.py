"""Launch overhead: launch delays, queues, launch-bound stretches, synchronising calls.

``calls`` joins device work to launch calls and measures the queues, ``launch_bound`` finds
launch-bound time and the cost of synchronising calls, ``compute`` measures a rank and combines all
ranks; ``result`` has the data, verdict, notes, tables and charts.
"""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, step_name


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show how fast the host launches work: delays, queues, launch-bound time, synchronisation.

    PATH is a trace, several of them, or a folder.
    """

    step_name: str | None = step_name()
