"""Which functions does the time go into? Weighted stacks as a flamegraph.

In go traces with sampled stacks, or with slices that nest; out comes a :class:`FlameGraph`, whose
picture any renderer can draw. :func:`extract` takes from a trace its call tree and weights, and
:func:`combine` adds those of several files up, or compares them with others, so that one file is
in memory at a time; :data:`KINDS` is what to read. The public API is to import this.
"""

from traceanalyzer.analyzers.flamegraph.combine import combine
from traceanalyzer.analyzers.flamegraph.extract import KINDS, By, Weight, extract
from traceanalyzer.analyzers.flamegraph.part import Part
from traceanalyzer.analyzers.flamegraph.result import FlameGraph

__all__ = ["KINDS", "By", "FlameGraph", "Part", "Weight", "combine", "extract"]
