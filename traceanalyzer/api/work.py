"""What kernels cost, from files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers import kernels as kernel
from traceanalyzer.analyzers.kernels import By, Kernels
from traceanalyzer.api.gathering import Reading, gather
from traceanalyzer.api.reading import Inputs, several


def kernels(
    inputs: Inputs,
    *,
    by: By | None = None,
    patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Kernels:
    """Which kernels, copies and sets take the devices' time, by family and by name?

    The analysis is :func:`traceanalyzer.analyzers.kernels.kernels`; of files only device work is
    read, and what launched it where that is asked.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: what kernels are told apart by besides: ``device``, ``stream``, ``rank``, ``operator``
            or ``annotation``.
        patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.api.gathering.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no device work was recorded, or not what kernels are to be told apart by.
        OptionError: a pattern is not a regular expression.
    """
    question = kernel.Question(by, several(patterns))
    found = gather(inputs, question.needs, lambda trace: kernel.extract(trace, question), **reading)
    return kernel.combine(found.parts, question, found.notes)
