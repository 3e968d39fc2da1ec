"""Counters of the host over time: CPU, memory, disk, network and others.

``compute`` reads a file's counters, converts cumulative ones to rates and combines files;
``result`` has the data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.host_metrics.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.host_metrics.result import HostMetrics
    from traceanalyzer.trace import Inputs


def host_metrics(
    inputs: Inputs, *, counters: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> HostMetrics:
    """Return host counters over time: CPU, memory, disk, network and others.

    One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        counters: regular expressions; only counters with a matching ``COUNTER/SERIES``. Default:
            all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no counters were recorded, or none matches.
        OptionError: a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.host_metrics.compute import HOST_METRICS
    from traceanalyzer.run.loop import run

    return run(HOST_METRICS, inputs, Options(counters), **reading)
