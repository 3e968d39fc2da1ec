"""Parser of ``gputimes``: kernels timed by our launcher, one per line.

#gputimes 1 rank=0
start_ns,dur_ns,device,stream,kernel
1000,250,0,7,my_gemm
"""

from __future__ import annotations

import re

from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Meta, Trace, from_rows

_FIRST = re.compile(rb"#gputimes (\d+)(?: rank=(\d{1,6}))?\r?\n")
_LINE = re.compile(r"(-?\d{1,18}),(\d{1,18}),(\d{1,4}),(\d{1,9}),([^,]+)", re.ASCII)
_COLUMNS = ("ts", "dur", "device", "stream", "name", "kind")


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - formats are detected by content
    """Return whether the first bytes are those of a gputimes file."""
    return _FIRST.match(head) is not None


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read the selected rows of one file and count the lines that are lost.

    Raises:
        MalformedInput: the file has another format.
    """
    text = b"".join(source.blocks(progress=progress))
    first = _FIRST.match(text)
    if first is None:
        raise MalformedInput(source.path, "does not begin with #gputimes")
    lines = text[first.end() :].decode(errors="replace").replace("\r\n", "\n").split("\n")[1:]
    lines = lines[:-1] if lines[-1:] == [""] else lines
    matches = [_LINE.fullmatch(line) for line in lines]
    rows = [(*match.groups(), "kernel") for match in matches if match]
    bad = [number for number, match in enumerate(matches, start=3) if not match]
    issues = [("data_loss", "bad-line", len(bad), f"line {bad[0]}")] if bad else []
    if source.damage:
        issues.append(("data_loss", "damaged-file", 1, source.damage))
    rank = None if first[2] is None else int(first[2])
    meta = Meta(source.path, FORMAT.name, version=first[1].decode(), rank=rank)
    return selection.apply(from_rows(meta, rows, issues, columns=_COLUMNS))


FORMAT = Format(
    name="gputimes",
    suffixes=(".gputimes",),
    description="kernels timed by our launcher",
    sniff=sniff,
    parse=parse,
    priority=1_500,
)
