"""Why the GPU is idle: each gap by its cause, data loading first.

``host`` extracts the work of a rank's devices, the activity of the threads that launch it, and when
each cause applies; ``compute`` divides the gaps of each device among the causes and joins all
ranks; ``causes`` names and describes the causes; ``result`` has the numbers and their display.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.gpu_idle.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
    from traceanalyzer.trace import Inputs


def gpu_idle(
    inputs: Inputs,
    *,
    min_gap_ns: int = 10_000,
    dataloader: str | Sequence[str] = (),
    comm_patterns: str | Sequence[str] = (),
    by: By = "device",
    library_names: str | Sequence[str] = (),
    step_name: str | None = None,
    **reading: Unpack[Reading],
) -> GpuIdle:
    """Why is the GPU idle, and what does waiting for the data loader cost?

    A gap is a maximal interval of a device's span in which no work runs on any of its streams.
    Each moment of it has one cause, the first of
    :data:`~traceanalyzer.analyzers.gpu_idle.causes.CAUSES` that matches the activity of the threads
    that launch the device's kernels; so the causes add up to the idle time. The span is from the
    first start to the last end of the device's work, extended to the marked steps.

    Without recorded device work, the thread that marks steps (otherwise the one with most time in
    operators) is analysed: it is busy in operators that are not part of data loading.

    Args:
        inputs: a trace, a file or a folder, or several of them, one per rank.
        min_gap_ns: shorter gaps count as ``short_gap``, the normal distance between kernels.
        dataloader: regular expressions of the host slices that are data loading, in place of
            :data:`~traceanalyzer.analyzers.gpu_idle.causes.DATALOADER`.
        comm_patterns: regular expressions of further kernels that are communication.
        by: ``device``; ``process``: a row per process on a device; ``step``: list steps first.
        library_names: libraries whose innermost Python frame is reported for each gap; none: the
            user's own code.
        step_name: a regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: neither device work nor operators were recorded.
        OptionError: an option is invalid.
    """
    from traceanalyzer.analyzers.gpu_idle.compute import GPU_IDLE
    from traceanalyzer.run.loop import run

    options = Options(min_gap_ns, dataloader, comm_patterns, by, library_names, step_name)
    return run(GPU_IDLE, inputs, options, **reading)
