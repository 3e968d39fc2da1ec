"""What annotated ranges cost, from files."""

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import annotations as marks
from traceanalyzer.analyzers.annotations import Annotations, By, Ground
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs, several
from traceanalyzer.trace import Trace


def annotations(
    inputs: Inputs,
    *,
    names: str | Sequence[str] = (),
    by: By | None = None,
    **reading: Unpack[Reading],
) -> Annotations:
    """What do annotated ranges (``record_function``, NVTX) cost, on the host and on the devices?

    The analysis is :func:`traceanalyzer.analyzers.annotations.annotations`. One file is in memory
    at a time; the ranks are summed up.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        names: regular expressions; only annotations of which one matches count. All without any.
        by: ``rank``: those of other ranks are other rows.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no annotations were recorded, or none of these names.
        OptionError: annotations cannot be told apart so, or a pattern is no regular expression.
    """
    question = marks.Question(several(names), by)

    def take(trace: Trace) -> Ground:
        return marks.lay(trace, question)

    found = gather(inputs, marks.NEEDS, marks.measure, take=take, **reading)
    return marks.combine(found.parts, question, found.notes)
