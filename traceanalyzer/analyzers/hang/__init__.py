"""Why does a distributed job hang? From the Flight Recorder dumps of its ranks.

``compute`` reads each rank's records and combines them; ``groups`` identifies process groups,
``matching`` aligns collectives by sequence number and compares the calls of the ranks,
``point_to_point`` matches sends with receives, ``waiting`` finds what waits for what, and the
causes at the end; ``texts`` has the sentences and the advice, ``result`` the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.hang.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.hang.result import Hang
    from traceanalyzer.trace import Inputs


def hang(inputs: Inputs, **reading: Unpack[Reading]) -> Hang:
    """Find the rank that a hanging job waits for.

    Inputs are Flight Recorder dumps of PyTorch, one per rank, and optionally the output of
    ``py-spy dump`` of the same ranks. Collectives are aligned by group and sequence number, sends
    and receives by their order. Ranks of a group without a dump are suspects, not errors. A time
    window is ignored: dumps have no beginning.

    Args:
        inputs: a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`. All dumps are compared;
            ``rank`` selects the rows of the tables of ranks and stacks.

    Raises:
        InputError: no input can be read, or the dumps are of several jobs.
        MissingData: no input is a Flight Recorder dump of a known rank.
        OptionError: no input has the rank.
    """
    from traceanalyzer.analyzers.hang.compute import HANG
    from traceanalyzer.run.loop import run

    rank = reading.pop("rank", None)
    return run(HANG, inputs, Options(), **reading).of_rank(rank)
