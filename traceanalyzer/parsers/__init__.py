"""Parsers: the only code that knows a file format.

Input: a :class:`~traceanalyzer.parsers.source.Source` of bytes and a Selection of what to keep.
Output: a :class:`~traceanalyzer.trace.Trace`; lost or odd data is listed in its ``issues``.
Format quirks are handled here and nowhere else. ``registry`` finds the parser of a file,
``contract`` defines the parser interface.
"""
