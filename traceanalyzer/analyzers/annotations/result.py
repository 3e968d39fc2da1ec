"""The answer: what annotations cost on the host and on the devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.annotations.ground import Amount
from traceanalyzer.analyzers.annotations.question import Question
from traceanalyzer.analyzers.annotations.shown import charts, tables
from traceanalyzer.analyzers.annotations.words import notes, verdict
from traceanalyzer.result import Chart, Result, Table


@dataclass(frozen=True, eq=False, repr=False)
class Annotations(Result):
    """What ranges that were named by users and libraries cost, in host time and in device work.

    Device work is kernels, copies and sets; of an *amount* ``n`` is pieces, ``total_ns`` the sum of
    their durations. Work is in a range when the thread of the range launched it by a call that lies
    whole in it.

    Attributes:
        question: what was asked.
        ranges: how many ranges there are.
        process_wide: those that belong to no thread, of which only host time is known.
        unclosed: annotations that never end, and are not counted.
        work: all device work.
        inside: the amount launched in any annotation.
        beside: the amount launched in no annotation of its thread, while one of another thread ran.
        unlaunched: the amount whose launch call was not recorded, or never ends.
        annotations: a row for each name in a domain, most device work first: ``domain`` (null: the
            default one, or no NVTX), ``name``, ``ranges`` (how many); host time: ``host_ns``,
            ``self_ns`` (without the annotations in it), ``mean_ns``, ``median_ns``, ``min_ns`` and
            ``max_ns`` of a range; ``launching`` (ranges with device work); ``projected_ns``: from
            the start of the first piece of work launched in a range to the end of the last, summed
            over ranges; ``n``, ``kernels`` and ``device_ns``: pieces of work launched in it,
            kernels among them, and the sum of their durations; ``device_frac``: that over all
            device work; ``own_n``, ``own_kernels``, ``own_device_ns``: those of which it is the
            innermost annotation. ``rank`` where asked for (``path`` where a file does not tell it).
        ranks: a row a rank: ``rank``, ``path``, ``ranges``, ``n`` and ``device_ns`` of all its
            work, ``inside_n``, ``inside_ns`` and ``inside_frac`` of that in annotations.
        remarks: what else is to be said.
    """

    question: Question
    ranges: int
    process_wide: int
    unclosed: int
    work: Amount
    inside: Amount
    beside: Amount
    unlaunched: Amount
    annotations: pl.DataFrame
    ranks: pl.DataFrame
    remarks: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The question."""
        return "What do annotated ranges cost?"

    @property
    def verdict(self) -> str:
        """The answer in plain words."""
        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """How work is attributed, and what was not counted."""
        return (*notes(self), *self.remarks)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Annotations, host times, ranks."""
        return tables(self)

    @property
    def charts(self) -> tuple[Chart, ...]:
        """Device work and host time by annotation."""
        return charts(self)

    @property
    def scalars(self) -> dict[str, Any]:
        """Counts and sums."""
        amounts = {
            f"{name}_{unit}": value
            for name in ("work", "inside", "beside", "unlaunched")
            for unit, value in (
                ("n", getattr(self, name).n),
                ("ns", getattr(self, name).total_ns),
            )
        }
        counts = {name: getattr(self, name) for name in ("ranges", "process_wide", "unclosed")}
        return {"by": self.question.by, **counts, **amounts}
