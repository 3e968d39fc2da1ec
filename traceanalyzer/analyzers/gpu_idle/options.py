"""The options of ``gpu_idle``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option, patterns

By = Literal["device", "process", "step"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Why is the GPU idle, and what does waiting for the data loader cost?

    PATH is a trace of one rank, several of them, or a folder of all ranks' traces. Without GPU work
    in the file the main thread is judged in the same way.
    """

    min_gap_ns: int = option(
        10_000,
        help="Shorter gaps are the ordinary distance of kernels.",
        flag="--min-gap",
        metavar="TIME",
        unit="time",
        minimum=0,
        default_text="10us",
        show_default=True,
    )
    dataloader: Sequence[str] = option(
        (),
        help="Host slices that are data loading, instead of those of known loaders. Repeatable.",
        metavar="REGEX",
    )
    patterns: Sequence[str] = patterns()
    by: By = option(
        "device",
        help="Judge devices, each process's part of them, or show steps first.",
        choices=get_args(By),
        show_default=True,
    )
    library_names: Sequence[str] = option(
        (),
        help="Tell this library's innermost Python frame of each gap. Default: your own code's.",
        flag="--library-name",
        metavar="NAME",
    )
    step_name: str | None = option(
        None, help="Slices whose names match are the steps.", metavar="REGEX"
    )
