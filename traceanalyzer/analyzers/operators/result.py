"""The answer: what each operator cost, on the host and on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.operators.question import Question, SortBy
from traceanalyzer.analyzers.operators.shown import charts, tables
from traceanalyzer.analyzers.operators.words import notes, verdict
from traceanalyzer.result import Chart, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class Operators(Result):
    """What each operator cost, all calls and ranks together.

    Attributes:
        question: what was asked.
        sort_by: what the rows are sorted by.
        n_calls: calls counted.
        host_ns: time in which threads were in any call, summed over the threads of all ranks.
        device_ns: device work, summed; None where none was recorded.
        unlaunched_ns: part of it that no operator is known for.
        outside_bytes: allocated less freed outside of every call.
        unclosed: operators without an end, which are not counted.
        operators: one row an operator: ``name``, ``kind``, ``input_dims`` and ``stack`` where rows
            are told apart by them, ``calls``, then ``self_``, ``total_`` and ``mean_`` of
            ``host_ns`` and ``device_ns``, ``self_`` and ``total_`` shares ``host_frac`` and
            ``device_frac``, ``self_`` and ``total_`` of ``host_memory_bytes`` and
            ``device_memory_bytes``. Null where nothing of the sort was recorded.
        running: ``name``, ``kind`` and ``self_host_ns``, as in ``operators``, of the threads that
            run operators: without those that only wait in Python, or for the network.
        ranks: one row a file and rank: ``rank``, ``path``, ``calls``, ``threads``, ``host_ns``,
            ``device_ns``.
        code_hint: what shows the code that no call accounts for.
        remarks: what else is to be said.
    """

    question: Question
    sort_by: SortBy
    n_calls: int
    host_ns: int
    device_ns: int | None
    unlaunched_ns: int
    outside_bytes: int
    unclosed: int
    operators: pl.DataFrame
    running: pl.DataFrame
    ranks: pl.DataFrame
    code_hint: str = ""
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "Which operators take the time?"

    @property
    def verdict(self) -> str:
        """The answer in plain words."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was not counted, and how shares are meant."""
        return (*notes(self), *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Operators, their memory where it was recorded, ranks where there are several."""
        return tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """The operators with most self time, on the device and on the host."""
        return charts(self)

    @property
    def scalars(self) -> dict[str, Any]:
        """Counts and sums."""
        names = (
            "sort_by", "n_calls", "host_ns", "device_ns", "unlaunched_ns", "outside_bytes",
            "unclosed",
        )  # fmt: skip
        return {name: getattr(self, name) for name in names}
