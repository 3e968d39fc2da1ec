"""Which code was running: leaf frames of sampled stacks, tagged by the library that called them.

In go traces with ``sample`` events; out comes a :class:`LeafPaths`. :func:`extract` makes of one
trace the rows that :func:`combine` joins and ranks; :func:`leaf_paths` is both for traces in
memory. The public API and the command line are to import this.

The method is that of itwinai's ``generate-py-spy-report``: a stack counts for its leaf, and is
tagged by the innermost frame of the library. Unlike there, every sample counts unless it is asked
to be left out: those of module code, of idle processes, of stacks without frames.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.leaf_paths.combine import combine
from traceanalyzer.analyzers.leaf_paths.extract import Part, extract
from traceanalyzer.analyzers.leaf_paths.question import By, GroupBy, Match, Question
from traceanalyzer.analyzers.leaf_paths.result import LeafPaths
from traceanalyzer.trace import Trace

__all__ = [
    "By", "GroupBy", "LeafPaths", "Match", "Part", "Question", "combine", "extract", "leaf_paths",
]  # fmt: skip


def leaf_paths(
    traces: Trace | Sequence[Trace], question: Question, *, rate: float | None = None
) -> LeafPaths:
    """The report of traces in memory; see :class:`Question` for what can be asked.

    Raises:
        MissingData: a trace has no samples.
        OptionError: the traces count different things.
    """
    given = [traces] if isinstance(traces, Trace) else traces
    return combine([extract(trace, question) for trace in given], question, rate=rate)
