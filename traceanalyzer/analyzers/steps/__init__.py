"""Step times, their variation, and the parts of slow steps.

``compute`` finds each rank's steps and their parts, joins ranks and recordings, and has the
statistics; ``slow_steps`` names what only slow steps have, ``engine`` the phases of an inference
engine; ``result`` has the data, verdict, notes, tables and charts.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option

By = Literal["launch", "window"]


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
    by: By = option(
        "launch",
        help="launch: device work counts for the step that launched it. window: it counts for the "
        "step on the host in which it runs.",
        choices=get_args(By),
        show_default=True,
    )
