"""The options of ``kernels``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option, patterns

By = Literal["device", "stream", "rank", "operator", "annotation"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Which kernels, copies and sets take the time of the devices, by family and by name.

    PATH is a trace, several of them, or a folder.
    """

    by: By | None = option(None, help="Tell kernels apart by this too.", choices=get_args(By))
    patterns: Sequence[str] = patterns()
