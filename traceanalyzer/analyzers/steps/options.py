"""The options of ``steps``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show step times, their variation, and the parts of slow steps.

    PATH is a trace, several of them, or a folder: of one rank, of all ranks, or one file per batch,
    as Composer writes them.
    """

    step_name: str | None = option(
        None,
        help="Host slices whose names match are steps. Default: ProfilerStep#, else "
        "annotations like '## train', else Composer's batches.",
        metavar="REGEX",
    )
    step_every: str | None = option(
        None,
        help="A step begins at each kernel whose name matches. Default if no steps are marked: "
        "repeats of a sequence of kernels.",
        metavar="REGEX",
    )
