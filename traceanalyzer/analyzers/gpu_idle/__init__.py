"""Why the GPU is idle: each gap by its cause, data loading first.

``host`` takes of a rank's trace what its device and the threads that feed it were at, and when each
cause applies; ``compute`` divides the gaps of each device among the causes and joins all ranks;
``causes`` names and describes causes; ``result`` holds the numbers and what is shown of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from traceanalyzer.analyzers.base import Reading
from traceanalyzer.analyzers.gpu_idle.options import By, Options

if TYPE_CHECKING:
    from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
    from traceanalyzer.reading import Inputs


def gpu_idle(
    inputs: Inputs,
    *,
    min_gap_ns: int = 10_000,
    dataloader: str | Sequence[str] = (),
    patterns: str | Sequence[str] = (),
    by: By = "device",
    library_names: str | Sequence[str] = (),
    step_name: str | None = None,
    **reading: Unpack[Reading],
) -> GpuIdle:
    """Why is the GPU idle, and what does waiting for the data loader cost?

    A gap is a maximal stretch of a device's span in which none of its work runs, on any stream.
    Each moment of it has one cause: what the threads that launch the device's kernels were at, the
    first that fits of :data:`~traceanalyzer.analyzers.gpu_idle.causes.CAUSES`; so the causes add up
    to the idle time. The span reaches from the first start to the last end of the device's work,
    and takes in the marked steps.

    Where no device work was recorded, the thread that marks steps (else the one with most time in
    operators) is looked at instead: it is busy in operators that are not part of loading data.

    Args:
        inputs: a trace, a file or a folder, or several of them, a rank each.
        min_gap_ns: shorter gaps count as ``short_gap``, the ordinary distance of kernels.
        dataloader: regular expressions of the host slices that are data loading, in place of
            :data:`~traceanalyzer.analyzers.gpu_idle.causes.DATALOADER`.
        patterns: regular expressions of further kernels that are communication.
        by: ``device``; ``process``: each process's part of a device; ``step``: steps come first.
        library_names: whose innermost Python frame is told of each gap; none: the user's own code.
        step_name: a regular expression of the slices that are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no file can be read.
        MissingData: neither device work nor operators were recorded.
        OptionError: an option makes no sense.
    """
    from traceanalyzer.analyzers.gpu_idle.compute import GPU_IDLE
    from traceanalyzer.run import run

    options = Options(min_gap_ns, dataloader, patterns, by, library_names, step_name)
    return run(GPU_IDLE, inputs, options, **reading)
