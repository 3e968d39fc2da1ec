"""Step times, their variation, and the parts of slow steps.

``compute`` finds each rank's steps and their parts, and joins ranks and recordings; ``statistics``
has warm-up detection and statistics; ``result`` has the data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.steps.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.steps.result import Steps
    from traceanalyzer.trace import Inputs


def steps(
    inputs: Inputs,
    *,
    step_name: str | None = None,
    step_every: str | None = None,
    by: By = "launch",
    **reading: Unpack[Reading],
) -> Steps:
    """Return step times, their variation, and the parts of slow steps.

    Only device work, its launch calls and slices that may mark steps are read.

    Args:
        inputs: a trace, a file or a folder, or several of them. Several files of one rank whose
            steps do not overlap are parts of one recording.
        step_name: a regular expression; host slices whose name it matches are the steps. Default:
            see :func:`~traceanalyzer.analyzers.common.step_marks.step_marks`.
        step_every: a regular expression; a step begins at each kernel whose name it matches.
            Default if no steps are marked:
            see :func:`~traceanalyzer.analyzers.common.step_marks.repeated`.
        by: ``launch``: device work counts for the step that launched it, see
            :func:`~traceanalyzer.analyzers.common.device_steps.device_steps`; ``window``: it counts
            for the step on the host in which it runs.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no steps are marked, and no sequence of kernels repeats.
        OptionError: ``step_name`` or ``step_every`` is not a regular expression.
    """
    from traceanalyzer.analyzers.steps.compute import STEPS
    from traceanalyzer.run.loop import run

    return run(STEPS, inputs, Options(step_name, step_every, by), **reading)
