"""FLOP/s and memory bandwidth of operators against the peaks of the GPU, and MFU.

``formulas`` has the FLOPs and bytes of each operator, ``inputs`` the recorded shapes and types,
``peaks`` the GPUs. ``calls`` assigns kernels to operators, ``compute`` combines steps and ranks,
``result`` has the data, verdict, notes, tables and charts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.efficiency.options import Options, Precision

if TYPE_CHECKING:
    from traceanalyzer.analyzers.efficiency.result import Efficiency
    from traceanalyzer.trace import Inputs


def efficiency(
    inputs: Inputs,
    *,
    peak: str | Sequence[str] = (),
    bandwidth: float | None = None,
    precision: Precision | None = None,
    params: float | None = None,
    tokens: float | None = None,
    gpus: int | None = None,
    step_name: str | None = None,
    comm_patterns: str | Sequence[str] = (),
    **reading: Unpack[Reading],
) -> Efficiency:
    """Return FLOP/s, memory bandwidth and MFU against the peaks of the GPU.

    FLOPs and bytes of an operator follow from the shapes and types of its inputs, the time is that
    of its kernels. Operators without a formula and collectives are not counted.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        peak: dense peaks as ``PRECISION=TFLOPS``, such as ``bf16=989.4``; they override the table.
        bandwidth: memory bandwidth of the GPU in GB/s.
        precision: peak that MFU is relative to; default: the precision with most FLOPs.
        params: parameters of the model, for MFU as 6 N T.
        tokens: tokens per step on all GPUs, for MFU as 6 N T.
        gpus: GPUs that share the tokens; default: the world size, else the GPUs in the files.
        step_name: regular expression of the names of steps.
        comm_patterns: regular expressions of additional communication kernels, not counted.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no kernels, or neither input shapes nor ``params`` and ``tokens`` are known.
        OptionError: a peak or a regular expression is not valid.
    """
    from traceanalyzer.analyzers.efficiency.compute import EFFICIENCY
    from traceanalyzer.run.loop import run

    options = Options(peak, bandwidth, precision, params, tokens, gpus, step_name, comm_patterns)
    return run(EFFICIENCY, inputs, options, **reading)
