"""Did it get slower, and where? Two runs, whatever recorded them.

``compute`` puts the questions of other analyzers to each rank and compares the two runs. ``runs``
holds what a rank and a run have, the number that runs are judged by and what may be chance;
``compared`` the rows of both side by side, ``comparable`` what forbids a comparison or weakens it;
``result`` what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.diff.options import MIN_CHANGE, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.diff.result import Diff
    from traceanalyzer.reading import Inputs


def diff(
    before: Inputs,
    after: Inputs,
    *,
    step_name: str | None = None,
    patterns: str | Sequence[str] = (),
    min_change: float = MIN_CHANGE,
    **reading: Unpack[Reading],
) -> Diff:
    """Did it get slower, where, and can that be trusted?

    Two runs are judged by the first of these that both have: the median time of a step, the span of
    the devices' work, that of the main threads, all samples, the peak of memory. Compared are
    what a step's time is made of, idle causes among it, kernels, operators, collectives, functions
    and memory. A change counts where it is beyond the noise and beyond ``min_change``. Each file is
    read once, and one is in memory at a time.

    Args:
        before: a trace, a file or a folder, or several of them: the run to compare with.
        after: the same of the run to look at; it may be of another format.
        step_name: a regular expression of the slices that are steps.
        patterns: regular expressions of further kernel names that are communication.
        min_change: the least change that counts, as a part of the smaller value.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing of a run can be read.
        MissingData: nothing in a run can be compared.
        OptionError: an option makes no sense.
    """
    from traceanalyzer.analyzers.diff.compute import DIFF
    from traceanalyzer.run import run

    return run(DIFF, after, Options(step_name, patterns, min_change, before), **reading)
