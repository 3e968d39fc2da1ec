"""What is wrong, what does it cost, and what helps? The results of all analyzers, by rules.

``judge`` asks each rule of its ``RULES`` about the result it looks at, and puts effects under their
causes. The rules are in ``communication``, ``copies``, ``idle``, ``busy`` and ``work``, a function
each; none looks at a trace. ``device_time`` gives each lost moment to one cause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading

if TYPE_CHECKING:
    from traceanalyzer.analyzers.diagnosis.result import Diagnosis
    from traceanalyzer.reading import Inputs


def diagnose(
    inputs: Inputs, *, thresholds: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> Diagnosis:
    """What is wrong, what does it cost, and what helps?

    Every analysis that rules need and the files allow is made, each file read once, and its answer
    judged by documented rules. What no rule can judge, because it was not recorded, is said too.

    Args:
        inputs: traces, files and folders of any format, of one run.
        thresholds: other thresholds, such as ``late-rank=5%`` or ``late-rank:critical=0.3``.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: a threshold makes no sense, or no input is of the rank that is asked for.
    """
    from traceanalyzer.analyzers.diagnosis.judge import judge, with_thresholds
    from traceanalyzer.run import examine

    rules = with_thresholds(thresholds)
    analyses = {name for rule in rules for name in (rule.analysis, *rule.uses)}
    found = examine(inputs, analyses, **reading)
    return judge(found, rules)
