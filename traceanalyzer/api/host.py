"""What the host does for its devices, and how it fares itself, from files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import host_metrics as metrics
from traceanalyzer.analyzers import launches as launching
from traceanalyzer.analyzers.host_metrics import HostMetrics
from traceanalyzer.analyzers.launches import Launches
from traceanalyzer.api.gathering import Reading, gather, skipped_notes
from traceanalyzer.api.reading import Inputs, several
from traceanalyzer.trace import Trace


def launches(
    inputs: Inputs, *, step_name: str | None = None, **reading: Unpack[Reading]
) -> Launches:
    """How fast does the host feed the device?

    The analysis is :func:`traceanalyzer.analyzers.launches.launches`: how long work waits after its
    launch call, how many launches wait in each stream's queue, when the device runs out of work
    again and again, and what synchronising calls cost. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        step_name: a regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no device work was recorded, or not the calls that launched it.
        OptionError: ``step_name`` is no regular expression.
    """

    def take(trace: Trace) -> launching.Ground:
        return launching.lay(trace, step_name=step_name)

    parts, skipped = gather(inputs, launching.NEEDS, launching.measure, take=take, **reading)
    return launching.combine(parts, skipped_notes(skipped))


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
    parts, skipped = gather(
        inputs, metrics.NEEDS, lambda trace: metrics.extract(trace, patterns), **reading
    )
    return metrics.combine(parts, skipped_notes(skipped))
