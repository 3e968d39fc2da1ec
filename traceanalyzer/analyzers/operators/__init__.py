"""Operator statistics as in PyTorch's ``key_averages``: calls, host and device time, memory.

``call_tree`` builds the call tree of each thread and assigns device work and memory to the calls,
``compute`` sums the calls of a rank by operator and combines the ranks, ``result`` has the data,
verdict, notes, tables and charts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.operators.options import Options, SortBy

if TYPE_CHECKING:
    from traceanalyzer.analyzers.operators.result import Operators
    from traceanalyzer.trace import Inputs


def operators(
    inputs: Inputs,
    *,
    sort_by: SortBy | None = None,
    group_by_input_shape: bool = False,
    group_by_stack: int = 0,
    **reading: Unpack[Reading],
) -> Operators:
    """Return which operators take the time, as PyTorch's ``key_averages`` does.

    One file is in memory at a time; the ranks are summed.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        sort_by: the column to sort by, in descending order; None for self device time if there is
            device work, else self host time.
        group_by_input_shape: also group by input shapes.
        group_by_stack: also group by this many innermost Python frames; 0 for none.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: operators or the requested data were not recorded.
        OptionError: ``sort_by`` is not a known column.
    """
    from traceanalyzer.analyzers.operators.compute import OPERATORS
    from traceanalyzer.run.loop import run

    options = Options(sort_by, group_by_input_shape, group_by_stack)
    return run(OPERATORS, inputs, options, **reading)
