"""Roofline of kernels from reports of Nsight Compute, and of operators from traces.

``metrics`` has the metrics of ncu and their formulas, ``launches`` the rates of each launch,
``compute`` reads them, or the operators of ``efficiency``, and combines files, ``texts`` has the
sentences and the advice on recording, ``result`` the data, tables and charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.roofline.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.roofline.result import Roofline
    from traceanalyzer.trace import Inputs


def roofline(
    inputs: Inputs,
    *,
    by: By = "kernel",
    peak: str | Sequence[str] = (),
    bandwidth: str | Sequence[str] = (),
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Roofline:
    """Return FLOP/s over arithmetic intensity of kernels or operators, and their roofs.

    Reports of Nsight Compute give kernels with the traffic of HBM, L2 and L1, the speed of light,
    occupancy and the rules of ncu. Its times are measured with locked clocks while kernels are
    replayed, and are never combined with those of traces. Traces give operators with the FLOPs and
    bytes of ``efficiency``.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        by: points of a report of Nsight Compute: ``kernel``, or each ``launch``.
        peak: dense peaks as ``PRECISION=TFLOPS``; they override those of the report and the table.
        bandwidth: bandwidths as ``LEVEL=GBPS``, such as ``HBM=3350``; a number alone is HBM.
        comm_patterns: regular expressions of additional communication kernels, not counted.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no metric of a roofline and no speed of light, no input shapes in a trace, or
            reports and traces together.
        OptionError: a peak, a bandwidth or a regular expression is not valid.
    """
    from traceanalyzer.analyzers.roofline.compute import ROOFLINE
    from traceanalyzer.run.loop import run

    return run(ROOFLINE, inputs, Options(by, peak, bandwidth, comm_patterns), **reading)
