"""Which operators take the time: calls, host and device time, memory, as PyTorch sums them up.

``call_tree`` builds the calls of each thread and gives them device work and memory, ``compute``
sums up a rank's calls by operator and joins all ranks, ``result`` holds the numbers and what is
shown of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.operators.options import Options, SortBy

if TYPE_CHECKING:
    from traceanalyzer.analyzers.operators.result import Operators
    from traceanalyzer.reading import Inputs


def operators(
    inputs: Inputs,
    *,
    sort_by: SortBy | None = None,
    group_by_input_shape: bool = False,
    group_by_stack: int = 0,
    **reading: Unpack[Reading],
) -> Operators:
    """Which operators take the time, as PyTorch's ``key_averages`` sums them up?

    One file is in memory at a time; the ranks are summed up.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        sort_by: the column to sort by, the largest first; None for self device time where there is
            device work, else self host time.
        group_by_input_shape: calls with other input shapes are other rows.
        group_by_stack: calls from other Python frames are other rows: so many of the innermost
            count; 0 for none.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no operators were recorded, or not what is asked for.
        OptionError: there is nothing of that name to sort by.
    """
    from traceanalyzer.analyzers.operators.compute import OPERATORS
    from traceanalyzer.run import run

    options = Options(sort_by, group_by_input_shape, group_by_stack)
    return run(OPERATORS, inputs, options, **reading)
