"""Host time of CUDA and HIP runtime and driver calls, and which of them block the host.

``compute`` measures a rank's calls with their copies and memsets and combines all ranks; ``result``
classifies calls by name, and has the data, findings, verdict, notes, tables and charts.
"""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show the host time of CUDA and HIP runtime and driver calls, and which block the host.

    Findings are blocking copies and memsets, calls that wait for the device, and memory allocated
    between the first and the last launch. PATH is a trace, several of them, or a folder.
    """
