"""What annotations cost: host time, and the device work that is launched in them.

``attribution`` gives each piece of device work to the ranges around its launch call, ``compute``
takes a rank's ranges and work and sums up ranges of one name over all ranks, ``result`` holds the
numbers and what is shown of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.annotations.options import By, Options
from traceanalyzer.analyzers.base import Reading

if TYPE_CHECKING:
    from traceanalyzer.analyzers.annotations.result import Annotations
    from traceanalyzer.reading import Inputs


def annotations(
    inputs: "Inputs",
    *,
    names: str | Sequence[str] = (),
    by: By | None = None,
    **reading: Unpack[Reading],
) -> "Annotations":
    """What do annotated ranges (``record_function``, NVTX) cost, on the host and on the devices?

    One file is in memory at a time; the ranks are summed up.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        names: regular expressions; only annotations of which one matches count, as if there were
            no others. All without any.
        by: ``rank``: those of other ranks are other rows.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no annotations were recorded, or none of these names.
        OptionError: annotations cannot be told apart so, or a pattern is no regular expression.
    """
    from traceanalyzer.analyzers.annotations.compute import ANNOTATIONS
    from traceanalyzer.run import run

    return run(ANNOTATIONS, inputs, Options(names, by), **reading)
