"""How the host fared, from files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import host_metrics as metrics
from traceanalyzer.analyzers.host_metrics import HostMetrics
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs, several


def host_metrics(
    inputs: Inputs, *, counters: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> HostMetrics:
    """How did the host fare: processor, memory, disk, network, and whatever else was counted?

    The analysis is :func:`traceanalyzer.analyzers.host_metrics.host_metrics`. One file is in memory
    at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        counters: regular expressions; only counters of which one matches, all without any.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no counters were recorded, or none that matches.
        OptionError: a pattern is no regular expression.
    """
    patterns = several(counters)
    found = gather(inputs, metrics.NEEDS, lambda trace: metrics.extract(trace, patterns), **reading)
    return metrics.combine(found.parts, found.notes)
