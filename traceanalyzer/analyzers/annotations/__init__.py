"""What annotations cost: host time, and the device work that is launched in them.

Traces of one rank each come in; :func:`lay` takes the few columns that count, so that the rest can
be forgotten, :func:`measure` attributes each piece of device work to the ranges around its launch
call, and :func:`combine` sums up ranges of one name over all ranks. ``question`` says what can be
asked; ``result`` holds the answer, ``shown`` its tables and charts, ``words`` its verdict.
"""

from collections.abc import Sequence

from traceanalyzer.analyzers.annotations.attribution import Attribution, attribute
from traceanalyzer.analyzers.annotations.combine import combine
from traceanalyzer.analyzers.annotations.ground import Ground, lay
from traceanalyzer.analyzers.annotations.part import Part, measure
from traceanalyzer.analyzers.annotations.question import BY, NEEDS, By, Question
from traceanalyzer.analyzers.annotations.result import Annotations
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.trace import Trace

__all__ = [
    "BY",
    "NEEDS",
    "Annotations",
    "Attribution",
    "By",
    "Ground",
    "Part",
    "Question",
    "annotations",
    "attribute",
    "combine",
    "lay",
    "measure",
]


def annotations(
    traces: Trace | Sequence[Trace], *, names: Sequence[str] = (), by: By | None = None
) -> Annotations:
    """What the annotations of traces in memory cost; see :class:`Question` for what can be asked.

    Raises:
        MissingData: a trace has no annotations, or none of that name.
        OptionError: annotations cannot be told apart so, or a pattern is no regular expression.
    """
    question = Question(names, by)
    parts = [measure(lay(trace, question)) for trace in by_rank(traces)]
    return combine(parts, question)
