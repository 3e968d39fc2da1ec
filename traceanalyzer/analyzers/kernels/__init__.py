"""Kernel, copy and memset time by family, name, device, stream, operator or annotation.

``compute`` measures each rank's device work and combines all ranks; ``result`` has the data,
verdict, notes, tables and charts. Families and short names are in ``analyzers/common``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.kernels.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.kernels.result import Kernels
    from traceanalyzer.trace import Inputs


def kernels(
    inputs: Inputs,
    *,
    by: By | None = None,
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Kernels:
    """Return which kernels, copies and memsets take device time, by family and by name.

    Only device work is read, and launch calls if grouped by operator or annotation.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: also group by ``device``, ``stream``, ``rank``, ``operator`` or ``annotation``.
        comm_patterns: regular expressions of further kernel names that are communication.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: device work or the data to group by was not recorded.
        OptionError: ``by`` is unknown, or a pattern is not a regular expression.
    """
    from traceanalyzer.analyzers.kernels.compute import KERNELS
    from traceanalyzer.run.loop import run

    return run(KERNELS, inputs, Options(by, comm_patterns), **reading)
