"""What is wrong, what does it cost, and what helps? Checks of the results of all analyzers.

``judge`` applies each rule of its ``RULES`` to the result that it checks, and lists effects below
their causes. The rules are functions in ``communication``, ``straggling``, ``copies``, ``idle``,
``busy``, ``heavy_kernels``, ``hardware``, ``steps``, ``memory`` and ``work``; they use results,
not traces. ``device_time`` assigns each lost moment to one cause, ``gains`` replays the run without
it, and so does ``what_if`` on request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading, result_of

if TYPE_CHECKING:
    from traceanalyzer.analyzers.base import Examination
    from traceanalyzer.findings.result import Diagnosis
    from traceanalyzer.trace import Inputs


def diagnose(
    inputs: Inputs, *, thresholds: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> Diagnosis:
    """What is wrong, what does it cost, and what helps?

    Runs all analyses that the checks need and the files allow; each file is read once. Applies the
    documented checks to the results. Checks without the required data are listed as skipped.

    Args:
        inputs: traces, files and folders of any format, of one run.
        thresholds: changed thresholds, for example ``straggler=5%`` or ``straggler:critical=0.3``.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: a threshold is invalid, or no input is of the selected rank.
    """
    return diagnosed(inputs, thresholds, **reading)[0]


def diagnosed(
    inputs: Inputs, thresholds: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> tuple[Diagnosis, Examination]:
    """Return what :func:`diagnose` returns, and the results that it is about."""
    from traceanalyzer.analyzers.printed.result import Printed
    from traceanalyzer.findings.judge import analyses, judge, with_thresholds
    from traceanalyzer.run.loop import examine, guarded

    rules = with_thresholds(thresholds)
    examined = examine(inputs, {*analyses(rules), "printed"}, use="findings", **reading)
    printed = result_of(examined.results, Printed)  # a report has a section of it
    with guarded(examined.summaries):
        return replace(judge(examined, rules), printed=printed), examined
