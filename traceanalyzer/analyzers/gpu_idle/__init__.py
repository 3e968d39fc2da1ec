"""Why the GPU is idle: each gap by its cause, data loading first.

``host`` extracts the work of a rank's devices, the activity of the threads that launch it, and when
each cause applies; ``compute`` divides the gaps of each device among the causes and joins all
ranks; ``causes`` names and describes the causes; ``result`` has the numbers and their display.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option, step_name

By = Literal["device", "process", "step"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Why is the GPU idle, and what does waiting for the data loader cost?

    PATH is a trace of one rank, several of them, or a folder of all ranks' traces. Without GPU work
    in the file, the main thread is analysed in the same way.
    """

    min_gap_ns: int = option(
        10_000,
        help="Shorter gaps count as short gaps between kernels, without another cause, except "
        "before late launches.",
        flag="--min-gap",
        metavar="TIME",
        unit="time",
        minimum=0,
        default_text="10us",
        show_default=True,
    )
    dataloader: Sequence[str] = option(
        (),
        help="Host slices whose names match are data loading, not known loaders. Repeatable.",
        metavar="REGEX",
    )
    comm_patterns: Sequence[str] = comm_patterns()
    by: By = option(
        "device",
        help="A row per device, a row per process on a device, or steps first.",
        choices=get_args(By),
        show_default=True,
        measured=("process",),
    )
    library_names: Sequence[str] = option(
        (),
        help="Report this library's innermost Python frame in each gap. Default: your own code's.",
        flag="--library-name",
        metavar="NAME",
    )
    step_name: str | None = step_name()
