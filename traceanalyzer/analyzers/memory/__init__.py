"""What fills the memory of GPUs: when most is in use, by which code, and what is odd about it.

Traces of one rank each come in: memory snapshots, or traces with ``[memory]`` instants or
allocations of the process. ``operations`` makes one history of each device of them, ``ledger`` the
allocations it consists of, ``lines`` and ``categories`` say what each is for; :func:`extract`
measures a rank, :func:`combine` puts ranks side by side. ``regions`` tells what memory was held at
a moment and where in it there was room, ``drawing`` makes the picture, ``result`` holds the answer,
``words`` says it.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceanalyzer.analyzers.memory.answers import (
    MemoryDiff,
    MemoryErrors,
    MemoryGrowth,
    diff_of,
    errors_of,
    growth_of,
)
from traceanalyzer.analyzers.memory.combine import combine
from traceanalyzer.analyzers.memory.extract import Part, extract
from traceanalyzer.analyzers.memory.fill import FILL_NEEDS, Fill, fills
from traceanalyzer.analyzers.memory.operations import NEEDS
from traceanalyzer.analyzers.memory.result import Memory
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.trace import Trace

__all__ = [
    "FILL_NEEDS", "NEEDS", "Fill", "Memory", "MemoryDiff", "MemoryErrors", "MemoryGrowth", "Part",
    "combine", "diff_of", "errors_of", "extract", "fills", "growth_of", "memory",
]  # fmt: skip


def memory(traces: Trace | Sequence[Trace], *, library_names: Sequence[str] = ()) -> Memory:
    """The memory of traces in memory; see :func:`traceanalyzer.memory`.

    Raises:
        MissingData: a trace tells nothing of memory.
        OptionError: there is no trace.
    """
    return combine([extract(trace, library_names) for trace in by_rank(traces)])
