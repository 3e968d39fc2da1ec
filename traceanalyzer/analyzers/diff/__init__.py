"""Did it get slower, and where? Two runs, whatever recorded them.

Traces of one rank each come in; :func:`extract` puts the questions of the other analyses to each,
:func:`combine` compares two runs of such parts. ``question`` says what is asked and read, ``part``
what a rank contributes, ``stepwise`` its device work and operators by step, ``run`` joins the ranks
of a run. ``measure`` is the number that runs are judged by, ``usual`` what a typical step has,
``noise`` what may be chance, ``compared`` the rows beside one another, ``comparable`` what forbids
a comparison or weakens it; ``result``, ``shown`` and ``words`` are the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.diff.combine import combine
from traceanalyzer.analyzers.diff.extract import extract
from traceanalyzer.analyzers.diff.part import Part
from traceanalyzer.analyzers.diff.question import MIN_CHANGE, Question
from traceanalyzer.analyzers.diff.result import Diff
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.trace import Trace

__all__ = ["MIN_CHANGE", "Diff", "Part", "Question", "combine", "diff", "extract"]


def diff(
    before: Trace | Sequence[Trace],
    after: Trace | Sequence[Trace],
    *,
    step_name: str | None = None,
    patterns: Sequence[str] = (),
    min_change: float = MIN_CHANGE,
) -> Diff:
    """What changed between traces in memory; see :func:`traceanalyzer.diff`.

    Raises:
        MissingData: nothing in a trace can be compared.
        OptionError: an option makes no sense.
    """
    question = Question(step_name, patterns, min_change)
    own, other = ([extract(trace, question) for trace in by_rank(run)] for run in (after, before))
    return combine(question, other, own)
