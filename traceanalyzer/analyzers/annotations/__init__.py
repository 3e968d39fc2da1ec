"""Host time of annotations, and the device work that is launched in them.

``compute`` gives each piece of device work to the ranges around its launch call, and sums ranges of
the same name over all ranks; ``result`` has the data, verdict, notes, tables and charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option

By = Literal["rank"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show the host time of annotated ranges, and the device work that is launched in them.

    Annotations are NVTX ranges and record_function. PATH is a trace, several of them, or a folder.
    """

    names: Sequence[str] = option(
        (),
        help="Only annotations with matching names, as if there were no others. Repeatable.",
        flag="--name",
        metavar="REGEX",
    )
    by: By | None = option(None, help="Also group by this.", choices=get_args(By), measured=False)
