"""Overlap of communication and compute, and the cost of exposed communication.

``compute`` measures each rank's devices, also over time, and combines all ranks;
``reasons`` divides exposed communication by its reason; ``result`` has the data, verdict, notes,
tables and charts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option

By = Literal["device", "step", "stream", "group", "phase", "group,phase"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show how much communication is overlapped with compute, and what the rest costs.

    Each device's time is divided into compute, exposed communication (no compute running), exposed
    copies (neither running) and idle. PATH is a trace, several of them, or a folder.
    """

    by: By = option(
        "device",
        help="Rows of the first table. group, phase: communication by process group, and by "
        "forward, backward and optimizer; within and between nodes apart.",
        choices=get_args(By),
        show_default=True,
        measured=False,
    )
    comm_patterns: Sequence[str] = comm_patterns()
