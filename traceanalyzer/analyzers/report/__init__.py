"""Report on a run with the results of all analyzers.

``build`` assembles the findings, key numbers, an overview of ranks, and the result of each
analyzer.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading

if TYPE_CHECKING:
    from traceanalyzer.reading import Inputs
    from traceanalyzer.result import Report


def report(
    inputs: Inputs,
    *,
    thresholds: str | Sequence[str] = (),
    named: Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Report:
    """Run diagnose and all analyses that the files support, reading each file once.

    Args:
        inputs: traces, files and folders of any format, of one run.
        thresholds: changed thresholds of findings, for example ``straggler=5%``.
        named: names of the inputs in the title and in commands, for example their folder; default:
            the inputs.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        OptionError: a threshold is invalid, or no input has the requested rank.
    """
    from traceanalyzer.analyzers.diagnosis.judge import with_thresholds
    from traceanalyzer.analyzers.report.build import build
    from traceanalyzer.examining import examine
    from traceanalyzer.run import guarded

    rules = with_thresholds(thresholds)
    examined = examine(inputs, **reading)
    with guarded(examined.summaries):
        return build(examined, rules, list(named) or _paths(inputs))


def _paths(inputs: Inputs) -> list[str]:
    from traceanalyzer.trace import Trace

    several = [inputs] if isinstance(inputs, Trace | str | os.PathLike) else list(inputs)
    return [one.meta.path if isinstance(one, Trace) else os.fspath(one) for one in several]
