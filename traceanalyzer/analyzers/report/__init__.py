"""Everything that is known of a run, as one report.

``build`` puts it together: the findings, the run in a few numbers, its ranks side by side, and the
result of every analyzer.
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
    """Findings first, then every analysis that the files allow, each file read once.

    Args:
        inputs: traces, files and folders of any format, of one run.
        thresholds: other thresholds of findings, such as ``late-rank=5%``.
        named: what to call the inputs in the title and in commands, such as the folder they were
            found in; by default as they are given.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        OptionError: a threshold makes no sense, or no input is of the rank that is asked for.
    """
    from traceanalyzer.analyzers.diagnosis.judge import with_thresholds
    from traceanalyzer.analyzers.report.build import build
    from traceanalyzer.run import examine

    rules = with_thresholds(thresholds)
    return build(examine(inputs, **reading), rules, list(named) or _paths(inputs))


def _paths(inputs: Inputs) -> list[str]:
    from traceanalyzer.trace import Trace

    given = [inputs] if isinstance(inputs, Trace | str | os.PathLike) else list(inputs)
    return [one.meta.path if isinstance(one, Trace) else os.fspath(one) for one in given]
