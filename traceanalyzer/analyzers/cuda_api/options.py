"""The options of ``cuda_api``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show the host time of CUDA and HIP runtime and driver calls, and which block the host.

    Findings are blocking copies and memsets, calls that wait for the device, and memory allocated
    between the first and the last launch. PATH is a trace, several of them, or a folder.
    """
