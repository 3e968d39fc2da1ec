"""What is copied and set, by direction, memory and size, how fast, and whether kernels hide it.

Traces of one rank each come in; :func:`extract` measures each copy and set of a rank,
:func:`combine` sums up all ranks; :func:`transfers` does both for traces in memory. ``sizes`` tells
direction, memory and class of size, ``findings`` what is to be said of them, ``result`` holds the
answer, ``words`` says it.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.analyzers.transfers.combine import combine
from traceanalyzer.analyzers.transfers.extract import NEEDS, Part, extract
from traceanalyzer.analyzers.transfers.result import Transfers
from traceanalyzer.trace import Trace

__all__ = ["NEEDS", "Part", "Transfers", "combine", "extract", "transfers"]


def transfers(traces: Trace | Sequence[Trace]) -> Transfers:
    """The copies and sets of traces in memory; see :func:`traceanalyzer.transfers`.

    Raises:
        MissingData: a trace holds no copy or set.
        OptionError: there is no trace.
    """
    return combine([extract(trace) for trace in by_rank(traces)])
