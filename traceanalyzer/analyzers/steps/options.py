"""The options of ``steps``."""

from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, option


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """How long steps take, how much that varies, and what the slow ones spend it on.

    PATH is a trace, several of them, or a folder: of one rank, of all ranks, or a file for each
    batch, as Composer writes them.
    """

    step_name: str | None = option(
        None,
        help="Slices of the host whose names match are the steps. Default: ProfilerStep#, else "
        "annotations like '## train', else batches of Composer.",
        metavar="REGEX",
    )
    step_every: str | None = option(
        None,
        help="A step begins at each kernel whose name matches. Default, where no steps are marked: "
        "the sequence of kernels that repeats.",
        metavar="REGEX",
    )
