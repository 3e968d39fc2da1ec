"""Time, memory and FLOPs of each ``nn.Module``, forward and backward.

``sequences`` joins backward nodes to forward operators, ``assignment`` gives each call to a module
and a phase, ``compute`` sums the calls of a rank and combines the ranks, ``result`` has the data,
verdict, notes, tables, charts and flame graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.modules.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.modules.result import Modules
    from traceanalyzer.trace import Inputs


def modules(
    inputs: Inputs,
    *,
    patterns: str | Sequence[str] = (),
    depth: int | None = None,
    **reading: Unpack[Reading],
) -> Modules:
    """Return time, memory and FLOPs of each ``nn.Module``, forward and backward.

    One file is in memory at a time; the ranks are summed.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        patterns: regular expressions; annotations with matching names are modules too.
        depth: count modules below this depth for the module at this depth; None for all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no modules were recorded.
        OptionError: a pattern is not a regular expression, or ``depth`` is below 1.
    """
    from traceanalyzer.analyzers.modules.compute import MODULES
    from traceanalyzer.run.loop import run

    return run(MODULES, inputs, Options(patterns, depth), **reading)
