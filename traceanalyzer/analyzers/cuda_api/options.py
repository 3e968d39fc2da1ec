"""The options of ``cuda_api``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """What calls of the CUDA or HIP runtime and driver cost the host, and which hold it up.

    Found are copies and sets that block, calls that wait for the device, and memory allocated
    between the first and the last launch. PATH is a trace, several of them, or a folder.
    """
