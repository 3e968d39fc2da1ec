"""Counters of the host over time: processor, memory, disk, network, and any other.

``compute`` takes a file's counters, turns those that only count up into rates and puts files
together; ``result`` holds the numbers and what is shown of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.host_metrics.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.host_metrics.result import HostMetrics
    from traceanalyzer.reading import Inputs


def host_metrics(
    inputs: Inputs, *, counters: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> HostMetrics:
    """How did the host fare: processor, memory, disk, network, and whatever else was counted?

    One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        counters: regular expressions; only counters whose ``COUNTER/SERIES`` one matches, all
            without any.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no counters were recorded, or none that matches.
        OptionError: a pattern is no regular expression.
    """
    from traceanalyzer.analyzers.host_metrics.compute import HOST_METRICS
    from traceanalyzer.run import run

    return run(HOST_METRICS, inputs, Options(counters), **reading)
