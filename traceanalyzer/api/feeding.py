"""How fast the host feeds its devices, from files."""

from __future__ import annotations

from typing import Unpack

from traceanalyzer.analyzers import launches as launching
from traceanalyzer.analyzers.launches import Launches
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs
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

    found = gather(inputs, launching.NEEDS, launching.measure, take=take, **reading)
    return launching.combine(found.parts, found.notes)
