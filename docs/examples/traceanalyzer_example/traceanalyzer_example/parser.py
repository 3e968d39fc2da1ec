"""Reads ``gputimes``: kernels timed by a launcher of our own, one a line.

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


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a format is known by its content
    """Whether these first bytes are of a gputimes file."""
    return _FIRST.match(head) is not None


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """One file to a trace: what is asked for of it, and what was lost.

    Raises:
        MalformedInput: the file is another one.
    """
    text = b"".join(source.blocks(progress=progress))
    first = _FIRST.match(text)
    if first is None:
        raise MalformedInput(source.path, "does not begin with #gputimes")
    rank = None if first[2] is None else int(first[2])
    lines = text[first.end() :].decode(errors="replace").splitlines()[1:]
    found = [_LINE.fullmatch(line) for line in lines]
    rows = [match.groups() for match in found if match]
    lost = [number for number, match in enumerate(found, start=3) if not match]
    findings = [("data_loss", "bad-line", len(lost), f"line {lost[0]}")] if lost else []
    if source.damage:
        findings.append(("data_loss", "damaged-file", 1, source.damage))
    meta = Meta(
        path=source.path,
        format=FORMAT.name,
        version=first[1].decode(),
        start_ns=min((int(row[0]) for row in rows), default=None),
        rank=rank,
    )
    wanted = [row for row in rows if selection.wants("kernel", row[-1])]
    trace = Trace((meta,), events=_events(wanted, rank), issues=issue_rows(findings, rank))
    if selection.windows:
        trace = trace.select(pl.any_horizontal(*map(_overlaps, selection.windows)))
    return sort_events(trace)


def _events(rows: list[tuple[str, ...]], rank: int | None) -> pl.DataFrame:
    """The rows as the schema has them; columns that the format does not tell are null."""
    texts = pl.DataFrame(rows, schema=dict.fromkeys(_FIELDS, pl.String), orient="row")
    told = texts.with_columns(kind=pl.lit("kernel"), rank=pl.lit(rank))
    return told.select(
        (pl.col(column.name) if column.name in told.columns else pl.lit(None))
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
