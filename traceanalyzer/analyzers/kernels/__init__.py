"""Which kernels take the devices' time: by family, by name, by what launched them.

Traces of one rank each come in; :func:`extract` gives each piece of a rank's device work its
family, :func:`combine` sums up all ranks. ``question`` says what can be asked; ``result`` holds the
answer, ``shown`` its tables and charts, ``words`` its verdict. Families and short names are in
``kernel_families`` and ``kernel_names`` beside this folder.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.kernels.combine import combine
from traceanalyzer.analyzers.kernels.extract import Part, extract
from traceanalyzer.analyzers.kernels.question import BY, By, Question
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.trace import Trace

__all__ = ["BY", "By", "Kernels", "Part", "Question", "combine", "extract", "kernels"]


def kernels(
    traces: Trace | Sequence[Trace], *, by: By | None = None, patterns: Sequence[str] = ()
) -> Kernels:
    """Which kernels of traces in memory take the time; see :class:`Question` for what can be asked.

    Raises:
        MissingData: a trace has no device work, or not what kernels are to be told apart by.
        OptionError: kernels cannot be told apart so, or a pattern is not a regular expression.
    """
    question = Question(by, patterns)
    return combine([extract(trace, question) for trace in by_rank(traces)], question)
