"""How much of the communication is hidden behind compute, and what the rest of it costs.

In go traces with device work; out comes an :class:`Overlap`. :func:`extract` makes of one rank the
small frames that :func:`combine` joins; :func:`overlap` is both for traces in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.overlap.combine import combine
from traceanalyzer.analyzers.overlap.extract import NEEDS, Part, extract
from traceanalyzer.analyzers.overlap.result import By, Overlap
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.trace import Trace

__all__ = ["NEEDS", "By", "Overlap", "Part", "combine", "extract", "overlap"]


def overlap(
    traces: Trace | Sequence[Trace], *, by: By = "device", patterns: Sequence[str] = ()
) -> Overlap:
    """What the devices' time is made of, in traces in memory.

    Args:
        traces: one trace, or one for each rank; a trace of several ranks is taken apart.
        by: what is told first: devices, steps or streams.
        patterns: regular expressions of further kernel names that are communication.

    Raises:
        MissingData: a trace holds no device work, or no steps are marked and they are asked for.
        OptionError: there is no trace, or a pattern is not a regular expression.
    """
    return combine([extract(trace, patterns) for trace in by_rank(traces)], by=by)
