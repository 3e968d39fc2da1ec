"""Speed-up and parallel efficiency of runs on different numbers of GPUs, and where the loss is.

``compute`` measures the steps and the states of each device (as ``timeline`` does) and compares the
runs, ``result`` has the data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.scaling.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.scaling.result import Scaling
    from traceanalyzer.trace import Inputs


def scaling(
    runs: Inputs,
    *,
    weak: bool = False,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Scaling:
    """Return step time, speed-up and parallel efficiency of runs on different numbers of GPUs.

    Args:
        runs: a folder per run, or several traces; the number of GPUs is the recorded world size,
            else the number of devices in the folder. Runs on the same number are averaged.
        weak: the work per GPU is the same in all runs; default: the work of all GPUs together.
        step_name: regular expression of the names of steps.
        comm_patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no steps are known, or all runs are on the same number of GPUs.
        OptionError: a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.scaling.compute import SCALING
    from traceanalyzer.run.loop import run

    return run(SCALING, runs, Options(weak, step_name, comm_patterns), **reading)
