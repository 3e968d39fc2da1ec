"""Parsers: the only code that knows a file format.

In: a :class:`~traceanalyzer.parsers.source.Source` of bytes and a Selection of what is wanted.
Out: a :class:`~traceanalyzer.trace.Trace`; what was lost or odd is in its ``issues``.
Every quirk of a format dies here. Imported by ``api`` and ``cli`` only; ``registry`` finds the
parser for a file, ``contract`` says what a parser is.
"""
