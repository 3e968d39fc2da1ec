"""The timeline: what each device does at each moment, on one axis for all ranks.

``states`` divides the time of a device, ``detail`` describes its kernels, copies and gaps,
``compute`` measures each rank and aligns all of them; ``result`` is what is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.timeline.options import Options, Order

if TYPE_CHECKING:
    from traceanalyzer.analyzers.timeline.result import Timeline
    from traceanalyzer.trace import Inputs


def timeline(
    inputs: Inputs,
    *,
    order: Order = "rank",
    comm_patterns: str | Sequence[str] = (),
    step_name: str | None = None,
    **reading: Unpack[Reading],
) -> Timeline:
    """Return what each device does at each moment, on one axis for all ranks.

    The time of a device from its first work to its last is divided into compute, compute with
    overlapped communication, exposed communication (transfer, and waiting for another rank), copies
    and idle time by cause; the parts are disjoint and sum to the span. Ranks are aligned by
    absolute time, corrected by the ends of matched collectives as in ``comm_outliers``; without
    absolute times every rank begins at 0.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        order: order of the rows: ``rank``, ``host``, or ``cost`` (most copying and idle time
            first).
        comm_patterns: regular expressions of further kernel names that are communication.
        step_name: regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work was recorded.
        OptionError: ``order`` is unknown, or a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.timeline.compute import TIMELINE
    from traceanalyzer.run.loop import run

    return run(TIMELINE, inputs, Options(order, comm_patterns, step_name), **reading)
