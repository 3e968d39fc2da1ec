"""What a fix would gain: the run is replayed with changes.

``compute`` joins the programs of all ranks (:mod:`~traceanalyzer.analyzers.replay`), replays them,
and has the result; ``schedule`` has that of a pipeline. ``replay`` is the run for other analyses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, option

Typical = Literal["others", "all"]
#: A change: what is measured does not depend on it.
_option = partial(option, measured=False)


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Show how long a step would take with a change: is a fix worth it?

    The run is replayed: kernels, copies, collectives and host calls in recorded order, each after
    what it waits for, with other times. Without a change, each usual one is tried. PATH is a trace,
    several of them, or a folder.
    """

    finding: Sequence[str] = _option(
        (),
        help="Without the cause of this finding of diagnose: its id or number.",
        metavar="ID|N",
    )
    free: Sequence[str] = _option(
        (),
        help="Time that becomes 0: launches, short-gaps, data-loading, host-code, "
        "synchronisation, communication, copies, small-copies, memory-management, graph-building, "
        "module-loading, api-calls, or the kernels and annotations whose names match. Repeatable.",
        metavar="CLASS|REGEX",
    )
    scale: Sequence[str] = _option(
        (),
        help="Kernels and annotations whose names match become faster by a factor. Repeatable.",
        metavar="REGEX=FACTOR",
    )
    typical_rank: Sequence[str] = _option(
        (), help="A rank that becomes like the others. Repeatable.", metavar="N"
    )
    typical_stage: Sequence[str] = _option(
        (), help="A pipeline stage (from 0) that becomes like the others. Repeatable.", metavar="N"
    )
    equal_stages: bool = _option(
        False, help="The compute of each pipeline stage takes as long as the mean."
    )
    typical: Typical = option(
        "others",
        help="Typical times are the mean of the other ranks, or of all.",
        choices=get_args(Typical),
        show_default=True,
        measured=False,
    )
    network: float = _option(
        1.0, help="Transfers become faster by this factor.", metavar="FACTOR", above=0
    )
    no_wait: bool = _option(False, help="Collectives do not wait for other ranks.")


@dataclass(frozen=True)
class ReplayOptions(AnalyzerOptions):
    """Prepare the replays for the gains of findings."""


@dataclass(frozen=True)
class PathOptions(AnalyzerOptions):
    """Show what the run waited for at each moment: kernels, launches, data loading, other ranks.

    The longest path through all ranks, as shares of the step time, which add up to it. PATH is a
    trace, several of them, or a folder.
    """
