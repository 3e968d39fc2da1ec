"""Our own columnar form, as ``traceanalyzer.exporters.parquet`` writes and describes it.

In: a Parquet file of ours. Out: the trace it was written from. ``reader`` does the work; it loads
pyarrow, 30 MB and 0.1 s, which reading any other format does not need.
"""

from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.foreign import is_nsys_table
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace


def sniff(head: bytes, path: str) -> bool:
    """Whether the file is a Parquet file; whether it is one of ours only its end can tell."""
    return head.startswith(b"PAR1") and not is_nsys_table(path)


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read a trace back; see :func:`traceanalyzer.parsers.parquet.reader.parse`."""
    from traceanalyzer.parsers.parquet import reader

    return reader.parse(source, selection, progress)


FORMAT: Format = Format(
    name="parquet",
    suffixes=(".parquet",),
    description="traceanalyzer's own columnar form",
    spec_url="https://parquet.apache.org/docs/file-format/",
    sniff=sniff,
    parse=parse,
    priority=100,
)
