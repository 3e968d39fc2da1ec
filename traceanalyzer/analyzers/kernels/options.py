"""The options of ``kernels``."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option

By = Literal["device", "stream", "rank", "operator", "annotation"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show which kernels, copies and memsets take device time, by family and by name.

    PATH is a trace, several of them, or a folder.
    """

    by: By | None = option(None, help="Also group by this.", choices=get_args(By))
    comm_patterns: Sequence[str] = comm_patterns()
