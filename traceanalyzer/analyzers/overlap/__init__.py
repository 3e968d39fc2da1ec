"""Overlap of communication and compute, and the cost of exposed communication.

``compute`` measures each rank's devices, also over time, and combines all ranks; ``result`` has the
data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.overlap.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.overlap.result import Overlap
    from traceanalyzer.trace import Inputs


def overlap(
    inputs: Inputs,
    *,
    by: By = "device",
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Overlap:
    """Return how much communication is overlapped with compute, and the cost of the rest.

    Only device work and annotations are read.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: the rows of the first table: ``device``, ``step`` or ``stream``; or communication by
            ``group``, ``phase`` (forward, backward, optimizer) or ``group,phase``.
        comm_patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work was recorded, or no steps are marked and ``by`` is ``step``.
        OptionError: ``by`` is unknown, or a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.overlap.compute import OVERLAP
    from traceanalyzer.run.loop import run

    return run(OVERLAP, inputs, Options(by, comm_patterns), **reading)
