"""Copies and memsets by direction, memory and size, their bandwidth and overlap with kernels.

``compute`` measures each rank's copies and memsets and sums over all ranks; ``result`` has the
data, findings, verdict, notes, tables and charts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.transfers.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.transfers.result import Transfers
    from traceanalyzer.trace import Inputs


def transfers(inputs: Inputs, **reading: Unpack[Reading]) -> Transfers:
    """Return copies and memsets by direction, memory and size, their bandwidth and overlap.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no copies or memsets were recorded.
    """
    from traceanalyzer.analyzers.transfers.compute import TRANSFERS
    from traceanalyzer.run.loop import run

    return run(TRANSFERS, inputs, Options(), **reading)
