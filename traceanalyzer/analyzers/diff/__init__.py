"""Comparison of two runs, in any formats: did it get slower, and where?

``compute`` runs other analyzers on each rank and compares the two runs. ``runs`` has the data of a
rank and of a run, the measure that runs are judged by and its noise; ``compared`` joins the rows of
both runs, ``comparable`` checks whether runs can be compared, ``series`` compares several runs of
each version; ``result`` has the data, verdict, notes, tables and charts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option, step_name
from traceanalyzer.errors import OptionError

#: Smaller changes are never significant.
MIN_CHANGE = 0.02


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Compare two runs: did it get slower, where, and is the change significant?

    BEFORE and AFTER are a trace each, or a folder of all ranks' traces; they may be of different
    formats.
    """

    step_name: str | None = step_name()
    comm_patterns: Sequence[str] = comm_patterns()
    min_change: float = option(
        MIN_CHANGE,
        help="The least significant change, as a fraction of the smaller value.",
        minimum=0,
        command_line=False,
        measured=False,
    )
    before: object = option(None, help="The run to compare with.", inputs=True, command_line=False)
    window: tuple[int | None, int | None] = option(
        (None, None), help="The time window, which ``run`` sets.", command_line=False
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.min_change):
            raise OptionError(f"min_change must be a number (got {self.min_change:g})")

    @property
    def with_memory(self) -> bool:
        """Whether memory is compared: only without a time window."""
        return self.window == (None, None)
