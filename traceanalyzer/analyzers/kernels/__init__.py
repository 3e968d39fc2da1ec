"""Kernel, copy and memset time by family and by name, and by what launched them.

``compute`` measures each rank's device work and combines all ranks; ``result`` holds the numbers
and what is shown of them. Families and short names are in ``analyzers/common``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.kernels.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.kernels.result import Kernels
    from traceanalyzer.reading import Inputs


def kernels(
    inputs: Inputs,
    *,
    by: By | None = None,
    patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Kernels:
    """Which kernels, copies and sets take the devices' time, by family and by name?

    Of files only device work is read, and what launched it where that is asked.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: also group by ``device``, ``stream``, ``rank``, ``operator`` or ``annotation``.
        patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: nothing can be read.
        MissingData: no device work was recorded, or not what kernels are to be grouped by.
        OptionError: ``by`` is none of these, or a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.kernels.compute import KERNELS
    from traceanalyzer.run import run

    return run(KERNELS, inputs, Options(by, patterns), **reading)
