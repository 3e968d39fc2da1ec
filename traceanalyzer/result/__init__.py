"""The answer of an analyzer: data, no ink.

A result is a frozen dataclass that derives from :class:`Result`. Its own fields hold scalars with
the unit in the name (``busy_ns``, ``idle_frac``, ``sent_bytes``) and frames; ``tables``,
``charts``, ``diagnosis``, ``verdict`` and ``notes`` say what to show, in the words of ``shown``. A
:class:`Report` holds several results. Renderers know nothing else about them.
"""

from traceanalyzer.result.base import Fact, Report, Result, Section, View
from traceanalyzer.result.shown import (
    SEVERITIES,
    Chart,
    Confidence,
    Finding,
    Flame,
    Occupancy,
    Severity,
    Table,
)

__all__ = [
    "SEVERITIES",
    "Chart",
    "Confidence",
    "Fact",
    "Finding",
    "Flame",
    "Occupancy",
    "Report",
    "Result",
    "Section",
    "Severity",
    "Table",
    "View",
]
