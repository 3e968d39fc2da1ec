"""The tables and lines that PyTorch and DeepSpeed print, from files and job logs.

A module per text: ``operators`` (key_averages), ``memory`` (memory_summary, see_memory_usage),
``flops`` (flops profiler), ``timers`` and ``collectives`` (DeepSpeed's log). Each returns a
``result.Form``, the tables of it; ``compute`` calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.printed.options import Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.printed.result import Printed
    from traceanalyzer.trace import Inputs


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
    from traceanalyzer.analyzers.printed.compute import PRINTED
    from traceanalyzer.run.loop import run

    return run(PRINTED, inputs, Options(peak), **reading)
