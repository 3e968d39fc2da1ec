"""Host time of annotations, and the device work that is launched in them.

``attribution`` gives each piece of device work to the ranges around its launch call, ``compute``
measures a rank's ranges and sums ranges of the same name over all ranks, ``result`` has the
data, verdict, notes, tables and charts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.annotations.options import By, Options
from traceanalyzer.analyzers.base import Reading

if TYPE_CHECKING:
    from traceanalyzer.analyzers.annotations.result import Annotations
    from traceanalyzer.trace import Inputs


def annotations(
    inputs: "Inputs",
    *,
    names: str | Sequence[str] = (),
    by: By | None = None,
    **reading: Unpack[Reading],
) -> "Annotations":
    """Return host and device time of annotated ranges (``record_function``, NVTX).

    One file is in memory at a time; the ranks are summed.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        names: regular expressions; only annotations with matching names count, as if there were no
            others. Default: all.
        by: also group by ``rank``.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no annotations were recorded, or none with a matching name.
        OptionError: ``by`` is unknown, or a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.annotations.compute import ANNOTATIONS
    from traceanalyzer.run.loop import run

    return run(ANNOTATIONS, inputs, Options(names, by), **reading)
