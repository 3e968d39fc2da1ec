"""How long training steps take, how much that varies, and what the slow ones spend it on.

In go traces in which steps are marked; out comes a :class:`Steps`. :func:`extract` makes of one
rank the rows that :func:`combine` joins and compares; :func:`steps` is both for traces in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.analyzers.steps.combine import combine
from traceanalyzer.analyzers.steps.extract import NEEDS, Part, extract, needs
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.trace import Trace

__all__ = ["NEEDS", "Part", "Steps", "combine", "extract", "needs", "steps"]


def steps(traces: Trace | Sequence[Trace], *, step_name: str | None = None) -> Steps:
    """The steps of traces in memory.

    Args:
        traces: one trace, or one for each rank or part of its recording; a trace of several ranks
            is taken apart.
        step_name: a regular expression; host slices whose name it matches are the steps. Default:
            see :func:`~traceanalyzer.analyzers.step_marks.step_marks`.

    Raises:
        MissingData: a trace marks no steps.
        OptionError: there is no trace, or ``step_name`` is not a regular expression.
    """
    return combine([extract(trace, step_name) for trace in by_rank(traces)])
