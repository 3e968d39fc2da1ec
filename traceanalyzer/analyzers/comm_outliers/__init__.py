"""Which collectives stand out, which rank is late, and what it was doing meanwhile.

``compute`` takes each rank's collectives (``collectives`` says which events those are) and compares
the ranks: ``matching`` finds the same collective on each, ``arrivals`` who came when and who is
late, ``outliers`` which durations stand out. ``context`` looks at what late ranks did and how full
devices were. ``result`` holds the numbers and says what is wrong, ``tables`` shows them,
``notes`` says what was not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.comm_outliers.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
    from traceanalyzer.reading import Inputs


def comm_outliers(
    inputs: Inputs,
    *,
    baseline: Inputs | None = None,
    memory: Inputs = (),
    factor: float = 3.0,
    z: float = 3.5,
    patterns: str | Sequence[str] = (),
    min_wait_ns: int | None = None,
    **reading: Unpack[Reading],
) -> CommOutliers:
    """Which collectives took unusually long, which rank was late, and what it was doing meanwhile.

    Of files no more is read than needed: device work and annotations of every file, launch calls
    where they alone tell which collective a kernel belongs to, and host events only of late ranks,
    only in the stretches in which the others waited. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them, a rank each. Memory snapshots among
            them are taken for ``memory``.
        baseline: the same of another run, to compare each group's median with.
        memory: memory snapshots, or traces with ``[memory]`` instants: was the device nearly full
            when collectives were slow?
        factor: an outlier lasts longer than this many times its group's median ...
        z: ... and has a modified z-score above this.
        patterns: regular expressions of further kernel names that are communication.
        min_wait_ns: lateness worth naming; default a tenth of the median step, 1 ms without steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no communication in the inputs, or in the baseline; nothing about memory in
            what was given for it.
        OptionError: a pattern or a number makes no sense.
    """
    from traceanalyzer.analyzers.comm_outliers.compute import COMM_OUTLIERS
    from traceanalyzer.reading import each, without_snapshots
    from traceanalyzer.run import run

    traces, snapshots = without_snapshots(each(inputs), reading.get("format"))
    options = Options(baseline, (*snapshots, *each(memory)), factor, patterns, z, min_wait_ns)
    return run(COMM_OUTLIERS, traces, options, **reading)
