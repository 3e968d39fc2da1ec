"""What operators cost, from files."""

from __future__ import annotations

from typing import Unpack

from traceanalyzer.analyzers import operators as operator
from traceanalyzer.analyzers.operators import Operators, SortBy
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs
from traceanalyzer.trace import Trace


def operators(
    inputs: Inputs,
    *,
    sort_by: SortBy | None = None,
    group_by_input_shape: bool = False,
    group_by_stack: int = 0,
    **reading: Unpack[Reading],
) -> Operators:
    """Which operators take the time, as PyTorch's ``key_averages`` sums them up?

    The analysis is :func:`traceanalyzer.analyzers.operators.operators`. One file is in memory at a
    time; the ranks are summed up.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        sort_by: the column to sort by, the largest first; None for self device time where there is
            device work, else self host time.
        group_by_input_shape: calls with other input shapes are other rows.
        group_by_stack: calls from other Python frames are other rows: so many of the innermost
            count; 0 for none.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no operators were recorded, or not what is asked for.
        OptionError: there is nothing of that name to sort by.
    """
    question = operator.Question(sort_by, group_by_input_shape, group_by_stack)

    def take(trace: Trace) -> operator.Ground:
        return operator.lay(trace, question)

    def measure(ground: operator.Ground) -> operator.Part:
        return operator.measure(ground, question)

    found = gather(inputs, question.needs, measure, take=take, **reading)
    return operator.combine(found.parts, question, found.notes)
