"""Which collectives stand out, which rank is late, and what it was doing meanwhile.

In go traces, one or more ranks each; out comes a :class:`CommOutliers`. A big trace is read in up
to three readings: :data:`NEEDS`, then :data:`LAUNCHES` if a part ``wants_launches``, both for
:func:`extract`; :func:`combine` compares what was extracted, and :func:`with_context` adds what is
found in :data:`CONTEXT` of the result's ``windows``. :func:`comm_outliers` is all of it for traces
in memory. The public API and the command line are to import this.
"""

from traceanalyzer.analyzers.comm_outliers.combine import (
    combine,
    comm_outliers,
    with_context,
    with_memory,
)
from traceanalyzer.analyzers.comm_outliers.extract import extract
from traceanalyzer.analyzers.comm_outliers.late import Window
from traceanalyzer.analyzers.comm_outliers.needs import CONTEXT, LAUNCHES, NEEDS
from traceanalyzer.analyzers.comm_outliers.part import Part
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers

__all__ = [
    "CONTEXT",
    "LAUNCHES",
    "NEEDS",
    "CommOutliers",
    "Part",
    "Window",
    "combine",
    "comm_outliers",
    "extract",
    "with_context",
    "with_memory",
]
