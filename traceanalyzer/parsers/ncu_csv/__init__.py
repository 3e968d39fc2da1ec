"""Reports of Nsight Compute as CSV (``ncu --csv``), in every layout that ncu writes.

``lines`` separates rows from the other output of the program, finds the header and the columns, and
converts numbers and units; ``reader`` builds the table ``metrics``.
"""

from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.ncu_csv.lines import is_report
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import NCU_CSV


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether a line is a header of ncu, or a message of ncu."""
    return is_report(head)


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read a report; see :func:`traceanalyzer.parsers.ncu_csv.reader.parse`."""
    from traceanalyzer.parsers.ncu_csv import reader

    return reader.parse(source, selection, progress)


FORMAT: Format = Format(
    name=NCU_CSV,
    suffixes=(".csv", ".txt", ".log"),
    description="metrics of Nsight Compute (ncu --csv), any page",
    spec_url="https://docs.nvidia.com/nsight-compute/NsightComputeCli/index.html",
    sniff=sniff,
    parse=parse,
    priority=40,
)
