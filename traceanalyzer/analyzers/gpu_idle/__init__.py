"""Why is the GPU idle? Each gap by its cause, dataloading first.

In goes a rank's trace, read for :data:`NEEDS`; :func:`lay` takes the few columns of it that count,
so that the rest can be forgotten; :func:`measure` finds the gaps of each device and what the host
did in them; :func:`combine` puts ranks together into a :class:`GpuIdle`. :func:`gpu_idle` is all of
it for traces in memory. The public API and the command line import this.
"""

from traceanalyzer.analyzers.gpu_idle.combine import combine, gpu_idle
from traceanalyzer.analyzers.gpu_idle.extract import extract, measure
from traceanalyzer.analyzers.gpu_idle.ground import Ground, lay
from traceanalyzer.analyzers.gpu_idle.needs import NEEDS
from traceanalyzer.analyzers.gpu_idle.part import Part
from traceanalyzer.analyzers.gpu_idle.result import By, GpuIdle

__all__ = [
    "NEEDS",
    "By",
    "GpuIdle",
    "Ground",
    "Part",
    "combine",
    "extract",
    "gpu_idle",
    "lay",
    "measure",
]
