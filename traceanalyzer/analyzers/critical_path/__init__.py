"""The critical path: what the run waited for at each moment.

``compute`` replays the programs of all ranks (:mod:`~traceanalyzer.analyzers.replay`) and follows
the longest path back; ``result`` has the data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.what_if.options import PathOptions as Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.critical_path.result import CriticalPath
    from traceanalyzer.trace import Inputs


def critical_path(inputs: Inputs, **reading: Unpack[Reading]) -> CriticalPath:
    """Return what lies on the longest path of the run, as shares of the step time.

    The path goes back from the end of the last device work: to the work, launch call, host code or
    rank that each part waited for. The shares add up to the step time. Only what is on the path
    makes a step shorter if it becomes shorter; how much shorter, ``what_if`` tells.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work, or too few of its launch calls, were recorded; or the replay of
            the unchanged run differs from the recording by more than 10 %.
    """
    from traceanalyzer.analyzers.critical_path.compute import CRITICAL_PATH
    from traceanalyzer.run.loop import run

    return run(CRITICAL_PATH, inputs, Options(), **reading)
