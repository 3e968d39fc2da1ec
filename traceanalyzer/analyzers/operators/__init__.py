"""Which operators take the time: calls, host and device time, memory, as PyTorch sums them up.

Traces of one rank each come in; :func:`extract` sums up a rank's calls by operator (:func:`lay`
takes from the trace what counts, :func:`measure` sums up), :func:`combine` the ranks. ``question``
says what can be asked, ``tree`` builds the calls of each thread, ``attribution`` gives them device
work and memory, ``stacks`` their Python frames; ``result`` holds the answer, ``shown`` its tables
and charts, ``words`` its verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.operators.combine import combine
from traceanalyzer.analyzers.operators.extract import Part, extract, measure
from traceanalyzer.analyzers.operators.ground import Ground, lay
from traceanalyzer.analyzers.operators.question import SORT_BY, Question, SortBy
from traceanalyzer.analyzers.operators.result import Operators
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.trace import Trace

__all__ = [
    "SORT_BY", "Ground", "Operators", "Part", "Question", "SortBy", "combine", "extract", "lay",
    "measure", "operators",
]  # fmt: skip


def operators(
    traces: Trace | Sequence[Trace],
    *,
    sort_by: SortBy | None = None,
    group_by_input_shape: bool = False,
    group_by_stack: int = 0,
) -> Operators:
    """What each operator of traces in memory cost; see :class:`Question` for what can be asked.

    Raises:
        MissingData: a trace has no operators, or not what is asked for.
        OptionError: there is nothing of that name to sort by.
    """
    question = Question(sort_by, group_by_input_shape, group_by_stack)
    return combine([extract(trace, question) for trace in by_rank(traces)], question)
