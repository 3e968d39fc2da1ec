"""Read the rows of each form of printed text; all ranks are in the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import aggregates
from traceanalyzer.analyzers.common.aggregates import Aggregates
from traceanalyzer.analyzers.printed import (
    Options,
    collectives,
    flops,
    job,
    memory,
    operators,
    timers,
)
from traceanalyzer.analyzers.printed.result import Printed
from traceanalyzer.errors import MissingData
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace

#: In the order of their tables.
_MODULES = (timers, flops, operators, memory, collectives, job)
FORMS = tuple(form for module in _MODULES for form in module.FORMS)


def measure(trace: Trace, _options: Options) -> Aggregates:
    """Return the rows of printed text of one rank.

    Raises:
        MissingData: the input is not printed text.
    """
    rows = aggregates.of_forms(trace, FORMS)
    if rows is None:
        raise MissingData(f"{trace.meta.path}: no text printed by PyTorch or DeepSpeed")
    return rows


def combine(parts: Sequence[Aggregates], options: Options) -> Printed:
    """Return the tables of all forms.

    Raises:
        MissingData: no table has a complete row.
    """
    rows = aggregates.joined(parts)
    forms = tuple(form for module in _MODULES if (form := module.form(rows, options)))
    if not forms:
        raise MissingData(f"{parts[0].path}: no printed table has a complete row; print it again")
    return Printed(forms)


PRINTED = Analyzer("printed", Options, Needs(frozenset()), measure, combine)


def printed(
    inputs: Inputs, *, peak: str | Sequence[str] = (), **reading: Unpack[Reading]
) -> Printed:
    """Return the tables and lines that PyTorch and DeepSpeed printed, the largest rows first.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        peak: dense peak of the GPU as ``PRECISION=TFLOPS``, for the MFU of a flops profile.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no input has printed text, or a time window is given.
        OptionError: the peak is not valid, or no input has the rank.
    """
    return run(PRINTED, inputs, Options(peak), **reading)
