"""What a fix would gain: the run is replayed with changes.

``options`` and this package have the command and the function; ``compute`` joins the programs of
all ranks (:mod:`~traceanalyzer.analyzers.replay`) and replays them; ``result`` has the data,
verdict, notes, tables and charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.what_if.options import Options, Typical

if TYPE_CHECKING:
    from traceanalyzer.analyzers.what_if.result import WhatIf
    from traceanalyzer.trace import Inputs


def what_if(
    inputs: Inputs,
    *,
    free: str | Sequence[str] = (),
    scale: str | Sequence[str] = (),
    typical_rank: int | str | Sequence[int | str] = (),
    typical_stage: int | str | Sequence[int | str] = (),
    typical: Typical = "others",
    network: float = 1.0,
    no_wait: bool = False,
    **reading: Unpack[Reading],
) -> WhatIf:
    """Return how long a step would take with a change; without a change, with each usual one.

    The program of the run (what each kernel and each call waits for) is replayed with other times.
    step time = from the end of the work of the steps before to the end of its own work, over all
    ranks; gain = replayed step time - step time with the change.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        free: ``launches``, ``data-loading``, ``host-code``, ``synchronisation``,
            ``communication``, ``copies``, ``small-copies``, or a regular expression of kernels or
            annotations, whose time becomes 0.
        scale: ``REGEX=FACTOR``: kernels and annotations become faster by the factor.
        typical_rank: ranks that become like the others.
        typical_stage: pipeline stages that become like the others, from 0.
        typical: whether times become those of the ``others``, or the mean of ``all`` ranks.
        network: factor by which transfers become faster.
        no_wait: collectives do not wait for other ranks.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work, or too few of its launch calls, were recorded; or the replay of
            the unchanged run differs from the recording by more than 10 %.
        OptionError: a regular expression, factor, rank or stage is not valid.
    """
    from traceanalyzer.analyzers.what_if.compute import WHAT_IF
    from traceanalyzer.run.loop import run

    ranks, stages = (
        tuple(map(str, (given,) if isinstance(given, (int, str)) else given))
        for given in (typical_rank, typical_stage)
    )
    options = Options(free, scale, ranks, stages, typical, network, no_wait)
    return run(WHAT_IF, inputs, options, **reading)
