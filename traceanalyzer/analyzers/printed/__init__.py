"""The tables and lines that PyTorch and DeepSpeed print, from files and job logs.

A module per text: ``operators`` (key_averages), ``memory`` (memory_summary, see_memory_usage),
``flops`` (flops profiler), ``timers`` and ``collectives`` (DeepSpeed's log). Each returns a
``result.Form``, the tables of it; ``compute`` calls them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option
from traceanalyzer.analyzers.efficiency.peaks import Peaks, with_given


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show the tables that PyTorch and DeepSpeed print: operators, memory, FLOPs, timers.

    PATH is a text or a job log with key_averages().table(), memory_summary(), or the flops profile,
    timers, memory and communication lines of DeepSpeed, several of them, or a folder.
    """

    peak: Sequence[str] = option(
        (),
        help="Dense peak of the GPU in TFLOP/s, such as bf16=989.4, for the MFU of a flops "
        "profile, which does not name the GPU.",
        metavar="PRECISION=TFLOPS",
        measured=False,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        with_given(Peaks({}), self.peak, None)
