"""Result of ``what-if``: data, verdict, notes, tables and charts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.replay.changes import CLASSES, SYNCHRONISATION
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_frac, format_ns, format_ranges

#: A smaller share of the step is no gain.
NO_GAIN = 0.01

#: Changes with this share of the largest gain are as good.
_ALIKE = 0.95

_CHANGES = headings("change, step_ns: step, gain_ns: gain, gain_frac: of step")
_STEPS = headings("run, step, step_ns: time")


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf(Result):
    """Step times of the run as recorded, replayed without a change, and replayed with changes.

    Attributes:
        changes: one row per change, the largest gain first: ``change``, ``step_ns`` (mean step time
            with it), ``gain_ns`` (replayed_ns - step_ns), ``gain_frac`` (of replayed_ns).
        steps: time of each step: ``run`` (``recorded``, ``replayed``, or the change), ``step``,
            ``step_ns``.
        given: the change was given; otherwise each usual one was tried.
        faster_ranks: ranks that are faster than the others: like them, steps would be longer.
            Without a given change, ``changes`` has no row for that.
        ranks: number of ranks.
        kernels: number of kernels and copies.
        recorded_ns: mean step time as recorded.
        replayed_ns: mean step time, replayed without a change.
        error_frac: replayed_ns / recorded_ns - 1.
        start_error_ns: median difference of the starts of device work.
        start_error_p95_ns: 95th percentile of that difference.
        edges: number of waits of a stream for another one.
        inferred: number of those that are not recorded but inferred.
        hint: how to record them, or empty.
        missing: number of kernels and copies without a launch call.
        one_by_one: steps were not recorded one after another; each is replayed alone.
        world_size: number of ranks of the job, or None.
    """

    changes: pl.DataFrame
    steps: pl.DataFrame
    given: bool
    faster_ranks: tuple[int, ...]
    ranks: int
    kernels: int
    recorded_ns: float
    replayed_ns: float
    error_frac: float
    start_error_ns: float
    start_error_p95_ns: float
    edges: int
    inferred: int
    hint: str
    missing: int
    one_by_one: bool
    world_size: int | None

    @property
    def alike(self) -> list[dict[str, Any]]:
        """The changes with at least 95 % of the largest gain; what the host does, then waits.

        Without waits the host runs ahead, which hides what it does after each of them.
        """
        least = _ALIKE * self.changes["gain_ns"][0]
        rows = self.changes.filter(pl.col("gain_ns") >= least).to_dicts()
        return sorted(rows, key=lambda row: row["change"] == CLASSES[SYNCHRONISATION])

    def view(self) -> View:
        """Build the view: the changes by gain, and the steps before and after."""
        return View(
            title="What would a fix gain?",
            verdict=_verdict(self),
            notes=tuple(_notes(self)),
            tables=(
                Table("changes", "Step time with each change", self.changes, _CHANGES, whole=True),
                Table("steps", "Steps", self.steps, _STEPS, detail=True),
            ),
            scalars=self.numbers(
                "ranks", "kernels", "recorded_ns", "replayed_ns", "error_frac", "start_error_ns",
                "start_error_p95_ns", "edges", "inferred", "missing",
            ),
            charts=partial(_charts, self),
        )  # fmt: skip


def _verdict(result: WhatIf) -> str:
    steps = result.steps.filter(pl.col("run") == "recorded").height
    taken = format_ns(result.recorded_ns)
    counted = f"mean of {steps}" if result.one_by_one else f"mean of {steps} after the first"
    step = f"A step takes {taken} ({counted})." if steps > 1 else f"The run takes {taken}."
    best = result.changes.row(0, named=True)
    if result.given:
        return sentences(step, f"With the change ({best['change']}): {_compared(best)}.")
    alike = result.alike
    if best["gain_frac"] < NO_GAIN:
        return sentences(step, "None of the usual changes gains 1 % of it.")
    names = " or ".join(row["change"] for row in alike)
    gain = f"Largest gain, with {names}: {_compared(alike[0])}."
    return sentences(step, gain, _second(result, len(alike)))


def _compared(row: dict[str, float]) -> str:
    step, gain = format_ns(row["step_ns"]), format_ns(abs(row["gain_ns"]))
    share = format_frac(abs(row["gain_frac"]))
    if abs(row["gain_frac"]) < NO_GAIN:
        return f"{step}, no gain (below 1 %)"
    return f"{step}, {gain} ({share}) {'less' if row['gain_ns'] > 0 else 'more'}"


def _second(result: WhatIf, nth: int) -> str:
    """Name the change after the first ones."""
    if result.changes.height <= nth or result.changes["gain_frac"][nth] < NO_GAIN:
        return ""
    row = result.changes.row(nth, named=True)
    return f"Next: {row['change']}, {format_ns(row['gain_ns'])} ({format_frac(row['gain_frac'])})."


def _notes(result: WhatIf) -> Iterator[str]:
    yield (
        f"The replay of the unchanged run differs from the recording by "
        f"{format_frac(abs(result.error_frac))} in step time, and in starts of work by "
        f"{format_ns(result.start_error_ns)} (median), {format_ns(result.start_error_p95_ns)} "
        "(95th percentile)."
    )
    yield (
        "A gain is an estimate from the recorded program: changed kernels may compete for memory "
        "bandwidth and clocks. Gains of several changes do not add up."
    )
    if result.faster_ranks:
        ranks = format_ranges(result.faster_ranks)
        yield (
            f"Steps would be longer if these ranks were like the others, because their work is "
            f"shorter than that of the others: {ranks}."
        )
    yield from inferred_waits(result.inferred, result.edges, result.hint)
    if result.missing:
        yield (
            f"Kernels and copies without a recorded launch call: {result.missing:,}; they follow "
            "the work before them."
        )
    if result.one_by_one:
        yield "Only some steps were recorded: each one is replayed alone."
    if result.world_size and result.ranks < result.world_size:
        yield (
            f"{result.ranks} of {result.world_size} ranks were given: waiting for the others "
            "counts as time of transfers."
        )


def inferred_waits(inferred: int, edges: int, hint: str) -> Iterator[str]:
    """Say how many of the waits between streams are inferred, and how to record them."""
    if inferred:
        text = (
            f"{inferred:,} of {edges:,} waits between streams are inferred from the order of calls"
        )
        yield f"{text}; to know them, {hint}." if hint else f"{text}."


def _charts(result: WhatIf) -> tuple[Chart, ...]:
    gains = result.changes.filter(pl.col("gain_frac") >= NO_GAIN)
    order = ["recorded", "replayed", *result.changes["change"].head(3)]
    steps = result.steps.filter(pl.col("run").is_in(order))
    steps = steps.with_columns(number=pl.int_range(pl.len()).over("run"))
    charts = []
    if gains.height:
        charts.append(
            Chart("gains", "Gain of each change", "bar", gains, "change", "gain_ns", "", "gain")
        )
    if steps["number"].n_unique() > 1:
        charts.append(
            Chart("steps", "Steps before and after", "line", steps, "number", "step_ns", "step",
                  "time", color="run")
        )  # fmt: skip
    return tuple(charts)
