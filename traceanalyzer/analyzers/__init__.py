"""Analyzers: one file or folder per analysis.

Input are one or several :class:`~traceanalyzer.trace.Trace`, output is a
:class:`~traceanalyzer.result.Result`. Analyzers are pure functions: they do not read files, print,
draw or change their inputs, and equal inputs give equal bytes.
"""
