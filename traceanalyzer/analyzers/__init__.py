"""Analyzers: one question a file (a folder where it needs more).

In: a :class:`~traceanalyzer.trace.Trace`, or several. Out: a :class:`~traceanalyzer.result.Result`.
Pure functions: no reading, printing or drawing, nothing of the caller's is changed, and equal
inputs give equal bytes. Imported by ``api``; they may import ``frames, trace, result, vocabulary,
units, errors`` and nothing else of the package.
"""
