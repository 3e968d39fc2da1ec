"""Outliers among collectives, stragglers, and what stragglers did while others waited.

``compute`` extracts each rank's collectives (``collectives`` defines which events those are) and
compares the ranks: ``matching`` joins the events of one collective across ranks, ``arrivals`` has
arrival times, wait times and stragglers, ``outliers`` the outlying durations. ``context`` has what
stragglers did and how full devices were. ``result`` has the numbers and the verdict, ``tables``
the tables and charts, ``notes`` the notes on missing data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.comm_outliers.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
    from traceanalyzer.trace import Inputs


def comm_outliers(
    inputs: Inputs,
    *,
    baseline: Inputs | None = None,
    memory: Inputs = (),
    factor: float = 3.0,
    z: float = 3.5,
    comm_patterns: str | Sequence[str] = (),
    min_wait_ns: int | None = None,
    by: By | None = None,
    **reading: Unpack[Reading],
) -> CommOutliers:
    """Which collectives took unusually long, which rank is the straggler, and what did it do?

    Files are read only as far as needed: device work and annotations of every file, launch calls
    if they are required to join kernels to collectives, and host events only of stragglers in the
    intervals in which other ranks waited. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, one per rank. Memory snapshots
            among them are used as ``memory``.
        baseline: traces of another run, to compare each group's median with.
        memory: memory snapshots, or traces with ``[memory]`` instants: was the device nearly full
            when collectives were slow?
        factor: an outlier takes longer than this many times its group's median ...
        z: ... and has a modified z-score above this.
        comm_patterns: regular expressions of further kernel names that are communication.
        min_wait_ns: smallest reported arrival delay; default a tenth of the median step, 1 ms
            without steps.
        by: ``pair`` lists the tokens from each rank to each other first.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no communication in the inputs or in the baseline, or no memory data in the
            inputs of ``memory``.
        OptionError: a pattern or a number is invalid.
    """
    from traceanalyzer.analyzers.comm_outliers.compute import COMM_OUTLIERS
    from traceanalyzer.run.find import each, without_snapshots
    from traceanalyzer.run.loop import run

    traces, snapshots = without_snapshots(each(inputs), reading.get("format"))
    options = Options(
        baseline, (*snapshots, *each(memory)), factor, comm_patterns, z, min_wait_ns, by
    )
    return run(COMM_OUTLIERS, traces, options, **reading)
