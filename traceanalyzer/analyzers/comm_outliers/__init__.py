"""Outliers among collectives, stragglers, and what stragglers did while others waited.

``compute`` extracts each rank's collectives (``collectives`` defines which events those are) and
compares the ranks: ``matching`` joins the events of one collective across ranks, ``arrivals`` has
arrival times, wait times and stragglers, ``chains`` the ranks that caused them, ``outliers`` the
outlying durations. ``activity`` has what stragglers did and how full devices were, ``pipelines``
sends and receives, ``experts`` the tokens of all-to-alls, ``inspector`` collectives without times.
``result`` has the numbers and the verdict, ``tables`` the tables, charts and notes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from traceanalyzer.analyzers.base import AnalyzerOptions, comm_patterns, option

if TYPE_CHECKING:
    from traceanalyzer.trace import Inputs


By = Literal["pair"]


@dataclass(frozen=True)
class Options(AnalyzerOptions):
    """Which collectives took unusually long, and which rank is the straggler?

    PATH is a trace of one rank, several of them, or a folder of all ranks' traces. DeepSpeed's
    communication log gives times and bandwidths by size.
    """

    baseline: Inputs | None = option(
        None,
        help="Compare with the same kinds of collectives in OTHER.",
        metavar="OTHER",
        inputs=True,
    )
    memory: Inputs = option(
        (),
        help="Memory snapshots, or traces with [memory] instants: was the device nearly full when "
        "collectives were slow? Snapshots among PATH... are used too. Repeatable.",
        metavar="PATH",
        inputs=True,
    )
    factor: float = option(
        3.0,
        help="An outlier takes longer than X times the median of its group.",
        metavar="X",
        above=1,
        show_default=True,
        measured=False,
    )
    comm_patterns: Sequence[str] = comm_patterns()
    z: float = option(
        3.5,
        help="The modified z-score of an outlier.",
        minimum=0,
        command_line=False,
        measured=False,
    )
    min_wait_ns: int | None = option(
        None, help="Smallest reported arrival delay.", minimum=0, command_line=False, measured=False
    )
    by: By | None = option(
        None,
        help="pair: tokens and bytes from each rank to each other in all-to-alls of unequal sizes.",
        choices=get_args(By),
        measured=False,
    )
