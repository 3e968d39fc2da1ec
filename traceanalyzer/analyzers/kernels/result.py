"""The answer: which kernels take the device's time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.kernels.question import Question
from traceanalyzer.analyzers.kernels.shown import charts, tables
from traceanalyzer.analyzers.kernels.words import notes, verdict
from traceanalyzer.result import Chart, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class Kernels(Result):
    """Which kernels, copies and sets take the devices' time.

    Attributes:
        question: what was asked.
        n: pieces of device work.
        total_ns: their summed durations.
        busy_ns: time in which at least one of them ran, summed over the devices.
        span_ns: first start to last end of each device's work, summed over the devices.
        unfinished: pieces without an end, which are not counted.
        families: one row a family: the columns of the groups where asked for, ``family``, ``n``,
            ``total_ns``, ``busy_frac`` and ``span_frac`` (total over the busy time and the span),
            ``mean_ns``, ``min_ns``, ``median_ns``, ``p99_ns``, ``max_ns``; largest total first.
        names: the same by ``name``, with ``kernel``, which is the name cut to what tells it from
            the others, and ``family``.
        groups: one row a group where asked for: ``n``, ``total_ns``, the shares, the ``family``
            that takes most of it, and ``family_frac``, how much of the group's total.
        devices: one row a device: ``rank``, ``path``, ``device``, ``n``, ``total_ns``,
            ``busy_ns``, ``span_ns``, ``busy_frac`` (busy over span).
        remarks: what else is to be said.
    """

    question: Question
    n: int
    total_ns: int
    busy_ns: int
    span_ns: int
    unfinished: int
    families: pl.DataFrame
    names: pl.DataFrame
    groups: pl.DataFrame | None
    devices: pl.DataFrame
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "Which kernels take the time?"

    @property
    def verdict(self) -> str:
        """The answer in plain words."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """How shares are meant, and what was not counted."""
        return (*notes(self), *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Groups where asked for, families, names, devices."""
        return tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Total by family and by name."""
        return charts(self)

    @property
    def scalars(self) -> dict[str, Any]:
        """Counts and sums."""
        names = ("n", "total_ns", "busy_ns", "span_ns", "unfinished")
        return {"by": self.question.by, **{name: getattr(self, name) for name in names}}

    def heaviest(self, key: str) -> pl.DataFrame:
        """``key`` (``family`` or ``name``), ``n`` and ``total_ns`` over all groups."""
        rows = self.families if key == "family" else self.names
        keys = ["family"] if key == "family" else ["name", "kernel", "family"]
        sums = rows.group_by(keys).agg(pl.col("n", "total_ns").sum())
        return sums.sort("total_ns", *keys, descending=[True, *(False for _ in keys)])
