"""How did the host fare? Counters over time: processor, memory, disk, network, and any other.

In goes a file's trace, read for :data:`NEEDS`; :func:`extract` takes its counters and turns those
that only count up into rates; :func:`combine` puts files together into a :class:`HostMetrics`.
:func:`host_metrics` is both for traces in memory. The public API and the command line import this.
"""

from traceanalyzer.analyzers.host_metrics.combine import combine, host_metrics
from traceanalyzer.analyzers.host_metrics.extract import NEEDS, Part, extract
from traceanalyzer.analyzers.host_metrics.result import HostMetrics

__all__ = ["NEEDS", "HostMetrics", "Part", "combine", "extract", "host_metrics"]
