"""Summaries written by ``traceanalyzer summarize``: recognised, but they have no events."""

import os
from typing import NoReturn

from traceanalyzer import schema
from traceanalyzer.errors import UnknownFormat
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source

#: The footer of a Parquet file ends with its length and this magic.
_MAGIC, _END = b"PAR1", 8
_LONGEST = 1 << 20


def is_written_by_summarize(path: str) -> bool:
    """Whether a regular file is a summary, or the context that belongs to one."""
    return schema.SUMMARY.encode() in _footer(path)


def is_summary(path: str) -> bool:
    """Whether a regular file is a summary."""
    return is_written_by_summarize(path) and not path.endswith(schema.CONTEXT_SUFFIX)


def sniff(head: bytes, path: str) -> bool:
    """Whether a file is a summary."""
    return head.startswith(_MAGIC) and is_summary(path)


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> NoReturn:  # noqa: ARG001 - contract
    """Raise the error for a command that needs events.

    Raises:
        UnknownFormat: always.
    """
    if not is_written_by_summarize(source.path):
        raise UnknownFormat(
            source.path, "not a summary of traceanalyzer", hint="run without --input-format summary"
        )
    raise UnknownFormat(
        source.path,
        "a summary written by traceanalyzer summarize, which has no events",
        hint="pass the trace",
    )


def _footer(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - the name is kept as it was given
            size = os.fstat(file.fileno()).st_size
            file.seek(max(size - _END, 0))
            end = file.read(_END)
            length = int.from_bytes(end[:4], "little")
            if not end.endswith(_MAGIC) or length > min(size, _LONGEST):
                return b""
            file.seek(size - _END - length)
            return file.read(length)
    except (OSError, ValueError):
        return b""


FORMAT: Format = Format(
    name="summary",
    suffixes=(".parquet",),
    description="measured parts of one input, written by traceanalyzer summarize",
    spec_url="https://parquet.apache.org/docs/file-format/",
    sniff=sniff,
    parse=parse,
    priority=110,
)
