"""Operator statistics as in PyTorch's ``key_averages``: calls, host and device time, memory.

``call_tree`` builds the call tree of each thread and assigns device work and memory to the calls,
``compute`` sums the calls of a rank by operator and combines the ranks, ``result`` has the data,
verdict, notes, tables and charts.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option

SortBy = Literal[
    "self_host", "total_host", "mean_host", "self_device", "total_device", "mean_device", "calls",
    "self_host_memory", "total_host_memory", "self_device_memory", "total_device_memory",
]  # fmt: skip

#: Columns that rows can be sorted by.
SORT_BY: tuple[SortBy, ...] = get_args(SortBy)


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show which operators take the time, as PyTorch's key_averages does.

    PATH is a trace, several of them, or a folder; ranks are summed.
    """

    sort_by: SortBy | None = option(
        None,
        help=f"One of {', '.join(SORT_BY)}. Default: self_device; without device work self_host.",
        metavar="COLUMN",
        choices=SORT_BY,
        measured=False,
    )
    group_by_input_shape: bool = option(default=False, help="Also group by input shapes.")
    group_by_stack: int = option(
        0, help="Also group by the N innermost Python frames.", metavar="N", minimum=0
    )

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns to group by."""
        shape = ("input_dims",) if self.group_by_input_shape else ()
        return ("name", "kind", *shape, *(("stack",) if self.group_by_stack else ()))


def sort_column(sort_by: SortBy) -> str:
    """Return the column of the result to sort by."""
    return (
        sort_by if sort_by == "calls" else f"{sort_by}_{'bytes' if 'memory' in sort_by else 'ns'}"
    )
