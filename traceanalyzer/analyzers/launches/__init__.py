"""Launch overhead: launch delays, queues, launch-bound stretches, synchronising calls.

``calls`` joins device work to launch calls and measures the queues, ``stretches`` finds
launch-bound time and the cost of synchronising calls, ``compute`` measures a rank and combines all
ranks; ``result`` has the data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.launches.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.launches.result import Launches
    from traceanalyzer.trace import Inputs


def launches(
    inputs: Inputs, *, step_name: str | None = None, **reading: Unpack[Reading]
) -> Launches:
    """Return how fast the host launches device work.

    The result has the delay from launch call to start, the launch queue of each stream,
    launch-bound time, and the cost of synchronising calls. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        step_name: a regular expression; slices whose names match are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: device work or its launch calls were not recorded.
        OptionError: ``step_name`` is not a regular expression.
    """
    from traceanalyzer.analyzers.launches.compute import LAUNCHES
    from traceanalyzer.run.loop import run

    return run(LAUNCHES, inputs, Options(step_name), **reading)
