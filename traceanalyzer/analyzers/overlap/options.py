"""The options of ``overlap``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option, patterns

By = Literal["device", "step", "stream"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """How much of the communication is hidden behind compute, and what the rest of it costs.

    Each device's time is taken apart: compute, communication without compute beside it, copies with
    neither beside them, and idle. PATH is a trace, several of them, or a folder.
    """

    by: By = option(
        "device",
        help="What the first table has a row for.",
        choices=get_args(By),
        show_default=True,
    )
    patterns: Sequence[str] = patterns()
