"""Kernel, copy and memset time by family, name, device, stream, or what launches it.

``compute`` measures each rank's device work and combines all ranks, ``training`` divides it by its
purpose in a step; ``result`` has the data, verdict, notes, tables and charts. Families and short
names are in ``analyzers/common``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option

By = Literal["device", "stream", "rank", "operator", "annotation", "module", "code"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show which kernels, copies and memsets take device time, by family and by name.

    PATH is a trace, several of them, or a folder.
    """

    by: By | None = option(None, help="Also group by this.", choices=get_args(By))
    comm_patterns: Sequence[str] = comm_patterns()
