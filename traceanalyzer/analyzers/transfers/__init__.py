"""What is copied and set, by direction, memory and size, how fast, and whether kernels hide it.

``compute`` measures each rank's copies and sets and sums up all ranks; ``result`` holds the
numbers, what is worth changing, and what is shown of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.transfers.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.transfers.result import Transfers
    from traceanalyzer.reading import Inputs


def transfers(inputs: Inputs, **reading: Unpack[Reading]) -> Transfers:
    """What is copied and set, by direction, memory and size, how fast, and is it hidden?

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no copy or set was recorded.
    """
    from traceanalyzer.analyzers.transfers.compute import TRANSFERS
    from traceanalyzer.run import run

    return run(TRANSFERS, inputs, Options(), **reading)
