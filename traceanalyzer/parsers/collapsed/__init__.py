"""Collapsed ("folded") stacks of py-spy (raw), FlameGraph, inferno, Austin, Python, PyTorch.

Input: text with one sample per line: frames joined by ``;``, outermost first, then a count. Output:
one ``sample`` event per line and the prefix tree of the frames. ``text`` splits lines and detects
the dialect, ``labels`` parses frames, ``lines`` turns lines into numbers.

Specification: <https://github.com/brendangregg/FlameGraph#2-fold-stacks>
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.errors import MalformedInput
from traceanalyzer.parsers.collapsed import text
from traceanalyzer.parsers.contract import Format, Progress, Selection
from traceanalyzer.parsers.source import Source, rank_or_node_from_name
from traceanalyzer.parsers.tables import Frame, lanes_table, sample_events, stacks_table
from traceanalyzer.trace import Issue, Meta, Trace, issue_rows

if TYPE_CHECKING:
    from traceanalyzer.frames import stacks
    from traceanalyzer.parsers.collapsed.lines import Lines


def sniff(head: bytes, path: str) -> bool:  # noqa: ARG001 - a parser's signature
    """Whether the first bytes look like collapsed stacks; the file name does not matter."""
    return text.looks_collapsed(text.with_newlines(head))


def parse(source: Source, selection: Selection, progress: Progress | None = None) -> Trace:
    """Read one file of collapsed stacks.

    The count is the sample's weight. With two columns, the first is a sample of category
    ``before``, the second one of category ``after``. Empty stacks are samples without ``stack``.

    Raises:
        MalformedInput: the file is binary or JSON, or has no line with a stack and a count.
        UnreadableFile: the file cannot be read.
    """
    # every command loads this module, to detect formats
    from traceanalyzer.frames import stacks
    from traceanalyzer.parsers.collapsed.lines import Lines

    kinds = selection.kinds
    rank = rank_or_node_from_name(source.path)
    if kinds is not None and not kinds & {"sample", "lane"}:
        return Trace(sources=(_meta(source, rank, None),))
    head = text.with_newlines(source.head())
    if foreign := text.foreign(head):
        raise MalformedInput(source.path, f"{foreign}, not text with stacks and counts")
    dialect = text.detect_dialect(head)
    lines, chunk, bad = Lines(dialect), [b""], 0
    for chunk in text.chunks(source, progress):
        bad = lines.bad
        lines.add(chunk)
    lines.add([], last=True)
    # a last line without a line end is a chunk of its own
    cut = lines.bad - bad if len(chunk) == 1 else 0
    if not lines.lengths:
        raise MalformedInput(
            source.path,
            "no line has a stack and a count",
            where=f"line {lines.first_bad}" if lines.first_bad else None,
            hint="record with py-spy record --format raw",
        )
    trace = Trace(
        sources=(_meta(source, rank, dialect.unit),),
        lanes=lanes_table(lines.lanes, rank),
        issues=issue_rows(_issues(source, lines, cut), rank),
    )
    if kinds is not None and "sample" not in kinds:
        return trace
    tree = stacks.build(_numbers(lines.frames), _numbers(lines.lengths))
    return replace(
        trace, events=_events(lines, tree, rank), stacks=stacks_table(tree, _split(lines, dialect))
    )


def _meta(source: Source, rank: int | None, unit: str | None) -> Meta:
    return Meta(path=source.path, format=FORMAT.name, rank=rank, weight_unit=unit)


def _split(lines: Lines, dialect: text.Dialect) -> Iterator[Frame]:

    split = text.split_torch if dialect.torch else text.split
    split = text.split_austin if dialect.austin else split
    return (split(frame.decode(errors="replace")) for frame in lines.numbers)


def _events(lines: Lines, tree: stacks.Tree, rank: int | None) -> pl.DataFrame:
    lane_of = _numbers(lines.lane_of)
    weights = np.frombuffer(lines.weights, np.float64)
    if not lines.second:
        return sample_events(lines.lanes, lane_of, weights, tree.leaf, rank)
    both = np.column_stack((weights, np.frombuffer(lines.second, np.float64))).ravel()
    category = pl.Series(["before", "after"] * len(weights), dtype=schema.NAME)
    twice = (np.repeat(column, 2) for column in (lane_of, tree.leaf))
    lane_of, leaf = twice
    return sample_events(lines.lanes, lane_of, both, leaf, rank, category=category)


def _issues(source: Source, lines: Lines, cut: int) -> list[Issue]:
    freed = "samples of freed memory: only allocations are counted"
    return [
        ("data_loss", "bad-line", lines.bad - cut, f"line {lines.first_bad}"),
        ("data_loss", "truncated", cut, f"line {lines.line - 1}"),
        ("notice", "freed-memory", lines.freed, freed),
        *source.issues,
    ]


def _numbers(values: array[int]) -> stacks.Numbers:
    return np.frombuffer(values, np.uint32)


FORMAT: Format = Format(
    name="collapsed",
    suffixes=(".txt", ".raw", ".folded", ".collapsed"),
    description="collapsed stacks: py-spy raw, FlameGraph and inferno folded, Austin, Python's "
    "profiling.sampling, PyTorch export_stacks",
    sniff=sniff,
    parse=parse,
    priority=-100,
)
