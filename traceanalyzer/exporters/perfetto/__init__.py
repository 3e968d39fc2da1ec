"""Perfetto's protobuf trace format, for https://ui.perfetto.dev and its trace processor.

A documented minimal writer: ``wire`` encodes columns as protobuf messages, ``packets`` has the
messages of a trace, ``tracks`` assigns the rows of a recording to tracks, ``writer`` converts its
tables and writes one recording after another, so that memory is bounded by one of them.
"""

from traceanalyzer.exporters.perfetto.writer import PerfettoWriter as PerfettoWriter
