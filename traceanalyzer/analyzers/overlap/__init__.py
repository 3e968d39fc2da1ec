"""How much of the communication is hidden behind compute, and what the rest of it costs.

``compute`` measures each rank's devices, over time too, and combines all ranks; ``result`` holds
the numbers and what is shown of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.overlap.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.overlap.result import Overlap
    from traceanalyzer.reading import Inputs


def overlap(
    inputs: Inputs,
    *,
    by: By = "device",
    patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Overlap:
    """How much of the communication is hidden behind compute, and what the rest of it costs.

    Of files only device work and annotations are read.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: what is told first: ``device``, ``step`` or ``stream``.
        patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work in the inputs, or no steps are marked and they are asked for.
        OptionError: ``by`` is none of these, or a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.overlap.compute import OVERLAP
    from traceanalyzer.run import run

    return run(OVERLAP, inputs, Options(by, patterns), **reading)
