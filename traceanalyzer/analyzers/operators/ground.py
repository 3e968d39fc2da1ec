"""What is looked at of one rank, taken from its trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.operators.attribution import instants_of, launched_work
from traceanalyzer.analyzers.operators.question import FRAMES, Question
from traceanalyzer.analyzers.operators.tree import all_calls, unclosed
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace, record_hint

#: What may be missing or unknown in the end, in the words of :func:`record_hint`.
_MAY_LACK = ("kernel", "cpu_instant_event", "other code")


@dataclass(frozen=True)
class Ground:
    """What is looked at of one rank, without the trace.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        calls: rows of :func:`~.tree.all_calls` without ``event``, with ``input_dims`` where rows
            are told apart by them.
        work: rows of :func:`~.attribution.launched_work`.
        instants: rows of :func:`~.attribution.instants_of`.
        unclosed: operators without an end, which are not counted.
        hints: how the profiler that wrote the file records what it lacks, by kind.
    """

    rank: int | None
    path: str
    calls: pl.DataFrame
    work: pl.DataFrame
    instants: pl.DataFrame
    unclosed: int
    hints: Mapping[str, str]


def lay(trace: Trace, question: Question) -> Ground:
    """The few columns of a trace that count, so that it can be forgotten.

    Args:
        trace: one rank, read with what the question needs.
        question: what is asked.

    Raises:
        MissingData: no operator was recorded, or not what rows are to be told apart by.
    """
    calls = all_calls(trace)
    event = calls["event"]
    kept = calls.drop("event")
    if question.by_input_shape:
        kept = kept.with_columns(_input_shapes(trace).gather(event))
    if question.by_stack and not (kept["kind"] == FRAMES).any():
        hint = record_hint(trace.meta, FRAMES)
        raise MissingData(f"{trace.meta.path}: no {FRAMES} events were recorded; {hint}")
    return Ground(
        rank=trace.meta.rank,
        path=trace.meta.path,
        calls=kept,
        work=launched_work(trace, event),
        instants=instants_of(trace, calls),
        unclosed=unclosed(trace),
        hints={what: record_hint(trace.meta, what) for what in _MAY_LACK},
    )


def _input_shapes(trace: Trace) -> pl.Series:
    if "input_dims" not in trace.events:
        hint = 'traceanalyzer.read(path, columns=["input_dims"]) reads them'
        raise MissingData(f"{trace.meta.path}: read without input shapes; {hint}")
    if trace.events["input_dims"].is_null().all():
        hint = record_hint(trace.meta, "input_dims")
        raise MissingData(f"{trace.meta.path}: no input shapes were recorded; {hint}")
    return trace.events["input_dims"]
