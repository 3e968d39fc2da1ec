"""Parquet files written by ``traceanalyzer.exporters.parquet``, which documents the layout.

Returns the trace the file was written from. ``reader`` does the work; it imports pyarrow (30 MB,
0.1 s), which no other format needs.

Specification: <https://parquet.apache.org/docs/file-format/>
"""

from traceanalyzer.parsers.contract import Format, on_use
from traceanalyzer.parsers.foreign import is_nsys_table, is_written_by_summarize


def sniff(head: bytes, path: str) -> bool:
    """Whether this is a Parquet file; only the footer identifies traceanalyzer's own files."""
    is_parquet = head.startswith(b"PAR1") and not is_nsys_table(path)
    return is_parquet and not is_written_by_summarize(path)


FORMAT: Format = Format(
    name="parquet",
    suffixes=(".parquet",),
    description="traceanalyzer's own columnar form",
    sniff=sniff,
    parse=on_use("traceanalyzer.parsers.parquet.reader:parse"),
    priority=100,
)
