"""Result of ``critical-path``: data, verdict, notes, tables and charts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.what_if.result import inferred_waits
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_frac, format_ns

_CLASSES = headings("kind: waiting for, parts, time_ns: time, time_frac: of step")
_NAMES = headings("kind: waiting for, name, parts, time_ns: time, time_frac: of step")
_RANKS = headings("rank, parts, time_ns: time, time_frac: of step")
_PATH = headings("at_ns: at, rank, kind: waiting for, name, time_ns: time")
#: A rank is named if its share of the path exceeds that of an equal division by this factor.
_MUCH = 1.5


@dataclass(frozen=True, eq=False, repr=False)
class CriticalPath(Result):
    """The longest path through all ranks, within the steps.

    Attributes:
        classes: one row per class, the most time first: ``kind``, ``parts`` (number of parts of the
            path), ``time_ns`` (mean per step), ``time_frac`` (of the step time; adds up to 1).
        names: the same by class and name of the kernel, copy, collective or call.
        ranks: the same by rank.
        path: the path in order of time: ``rank``, ``kind``, ``name``, ``at_ns`` (from the begin of
            the run), ``time_ns``.
        steps: number of steps.
        step_ns: mean step time, the sum of ``time_ns`` of each table.
        error_frac: relative error of the replayed step time.
        edges: number of waits of a stream for another one.
        inferred: number of those that are not recorded but inferred.
        hint: how to record them, or empty.
    """

    classes: pl.DataFrame
    names: pl.DataFrame
    ranks: pl.DataFrame
    path: pl.DataFrame
    steps: int
    step_ns: float
    error_frac: float
    edges: int
    inferred: int
    hint: str

    def view(self) -> View:
        """Build the view: classes, names, ranks and the path."""
        several = self.ranks.height > 1
        return View(
            title="What did the run wait for at each moment?",
            verdict=_verdict(self),
            notes=tuple(_notes(self)),
            tables=(
                Table("classes", "Longest path, mean per step", self.classes, _CLASSES),
                Table("names", "Kernels and calls on the path", self.names, _NAMES),
                *((Table("ranks", "Ranks on the path", self.ranks, _RANKS),) if several else ()),
                Table("path", "The path", self.path, _PATH, detail=True),
            ),
            scalars=self.numbers("steps", "step_ns", "error_frac", "edges", "inferred"),
            charts=partial(_charts, self),
        )


def _verdict(result: CriticalPath) -> str:
    named = [
        f"{row['kind']} {format_frac(row['time_frac'])}"
        for row in result.classes.head(3).iter_rows(named=True)
    ]
    names = result.names.drop_nulls("name").filter(pl.col("kind") == result.classes["kind"][0])
    most = names.row(0, named=True) if names.height else None
    name = f"Longest: {most['name']}, {format_frac(most['time_frac'])}." if most else ""
    return sentences(
        f"A step ({format_ns(result.step_ns)}) waits for: {', '.join(named)}.",
        name,
        _rank(result),
    )


def _rank(result: CriticalPath) -> str:
    """Name the rank with most of the path, if that is much more than an equal share."""
    count = result.ranks.height
    if count < 2:
        return ""
    row = result.ranks.row(0, named=True)
    if row["time_frac"] < min(_MUCH / count, 0.9):
        return ""
    return f"Of the longest path, {format_frac(row['time_frac'])} is on rank {row['rank']}."


def _notes(result: CriticalPath) -> Iterator[str]:
    yield (
        "Only time on the path makes a step shorter; traceanalyzer what-if estimates by how much."
    )
    yield from inferred_waits(result.inferred, result.edges, result.hint)


def _charts(result: CriticalPath) -> tuple[Chart, ...]:
    return (
        Chart("classes", "Longest path of a step", "bar", result.classes, "kind", "time_ns", "",
              "time per step"),
    )  # fmt: skip
