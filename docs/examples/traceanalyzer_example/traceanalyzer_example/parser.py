"""Parser of ``gputimes``: kernels timed by our launcher, one per line.

#gputimes 1 rank=0
start_ns,dur_ns,device,stream,kernel
1000,250,0,7,my_gemm
"""

from __future__ import annotations

import re

import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source
from traceanalyzer.trace import Meta, Trace, issue_rows, sort_events

_FIRST = re.compile(rb"#gputimes (\d+)(?: rank=(\d{1,6}))?\r?\n")
_LINE = re.compile(r"(-?\d{1,18}),(\d{1,18}),(\d{1,4}),(\d{1,9}),([^,]+)")
_FIELDS = ("ts", "dur", "device", "stream", "name")


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
    rank = None if first[2] is None else int(first[2])
    lines = text[first.end() :].decode(errors="replace").splitlines()[1:]
    matches = [_LINE.fullmatch(line) for line in lines]
    rows = [match.groups() for match in matches if match]
    bad = [number for number, match in enumerate(matches, start=3) if not match]
    issues = [("data_loss", "bad-line", len(bad), f"line {bad[0]}")] if bad else []
    if source.damage:
        issues.append(("data_loss", "damaged-file", 1, source.damage))
    meta = Meta(
        path=source.path,
        format=FORMAT.name,
        version=first[1].decode(),
        start_ns=min((int(row[0]) for row in rows), default=None),
        rank=rank,
    )
    selected = [row for row in rows if selection.wants("kernel", row[-1])]
    trace = Trace((meta,), events=_events(selected, rank), issues=issue_rows(issues, rank))
    if selection.windows:
        trace = trace.select(pl.any_horizontal(*map(_overlaps, selection.windows)))
    return sort_events(trace)


def _events(rows: list[tuple[str, ...]], rank: int | None) -> pl.DataFrame:
    """Return the rows in the schema of events; columns that the format lacks are null."""
    texts = pl.DataFrame(rows, schema=dict.fromkeys(_FIELDS, pl.String), orient="row")
    known = texts.with_columns(kind=pl.lit("kernel"), rank=pl.lit(rank))
    return known.select(
        (pl.col(column.name) if column.name in known.columns else pl.lit(None))
        .cast(column.dtype)
        .alias(column.name)
        for column in schema.EVENTS
        if not column.on_request
    )


def _overlaps(window: tuple[int, int]) -> pl.Expr:
    start, end = window
    return (pl.col("ts") < end) & (pl.col("ts") + pl.col("dur") > start)


FORMAT = Format(
    name="gputimes",
    suffixes=(".gputimes",),
    description="kernels timed by our launcher",
    spec_url="https://example.org/gputimes",
    sniff=sniff,
    parse=parse,
    priority=1_500,
)
