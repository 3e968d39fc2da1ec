"""Memory that grows from step to step: possible leaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common import columns, display
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.memory import GrowthOptions, attribution, ledger, rank_memory, steps
from traceanalyzer.analyzers.memory.oom_causes import ADVICE
from traceanalyzer.analyzers.memory.rank_memory import known_table, with_line
from traceanalyzer.drawings import Chart
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.units import format_bytes

#: Minimum number of consecutive steps of growth that make a line a suspect.
SUSPECT_STEPS = 3

_MOST_STEPS = 10_000

_NAMED = 3
_GROWTH = headings(
    "on: device, at: line of code, first_bytes: after first step, last_bytes: after last step, "
    "grown_bytes: growth, per_step_bytes: per step of growth, "
    "grew_n: steps of growth, collected_bytes: freed at once"
)
_STEPS = headings("on: device, step, name, time_ns: ends at, live_bytes: live")
#: What to check in lines whose memory grows, and in those whose memory is freed at once later.
GROWTH_ADVICE, COLLECTED_ADVICE = (ADVICE["other"][name] for name in ("growth", "cycle"))
_SOURCES = {
    steps.OPTIMIZER: "No step annotations: a step ends when the optimizer finishes.",
    steps.BACKWARD: "No step annotations: a step ends when a backward pass finishes.",
    steps.REPETITION: "No step annotations: a step is a repeating sequence of allocations.",
    steps.LOW: "No step annotations: a step ends where live memory is lowest between two peaks.",
}
_NO_STEPS = (
    "no steps detected (no step annotations, optimizer calls or repeated allocations). Give their "
    "length: --step-every TIME, or a number of events"
)
_NO_HISTORY = (
    "the history was not recorded; call torch.cuda.memory._record_memory_history() before the "
    "workload"
)
_NOTE = (
    "Live bytes are measured at the end of each step. One-time allocations of the first steps "
    "(optimizer state, caches) are not steady growth."
)


def measure(trace: Trace, options: GrowthOptions) -> MemoryGrowth:
    """Return the growth of the memory of a trace of one rank.

    Raises:
        MissingData: no memory events or no steps were recorded.
        OptionError: an option is not a time, number or regular expression.
    """
    rank = rank_memory.rank_memory(trace, options, options.step_name)
    return of_rank(rank, None if options.step_every is None else str(options.step_every))


def of_rank(rank: rank_memory.RankMemory, step_every: str | None = None) -> MemoryGrowth:
    """Return the growth of the memory of a rank; raises as :func:`measure`."""
    boundaries, growth = [], []
    for history in rank.ledgers:
        ends = steps.boundaries(history, rank, step_every)
        if ends.is_empty():
            continue
        if ends.height > _MOST_STEPS:
            raise MissingData(
                f"{rank.path}: too many steps ({ends.height:,}, the limit is {_MOST_STEPS:,}). "
                "Use longer steps, or select a time window with --since and --until."
            )
        at = ends["position"].to_numpy()
        live = pl.Series(history.live[at])
        ends = ends.rename({"position": "event"}).with_columns(live_bytes=live)
        boundaries.append(rank.with_device(history, ends))
        growth.append(rank.with_device(history, _growth(history, rank, at)))
    if not boundaries:
        recorded = any(history.rows.height > 1 for history in rank.ledgers)
        raise MissingData(f"{rank.path}: {_NO_STEPS if recorded else _NO_HISTORY}")
    return MemoryGrowth(pl.concat(boundaries), pl.concat(growth))


def combine(parts: Sequence[MemoryGrowth], _options: GrowthOptions) -> MemoryGrowth:
    """Combine the growth of all ranks."""
    return MemoryGrowth(*columns.concat_tables(parts, "steps", "growth"))


def _growth(history: ledger.Ledger, rank: rank_memory.RankMemory, at: Ints) -> pl.DataFrame:
    """Return the change of live bytes between step boundaries by stack."""
    recorded = rank.sized(history.allocations).filter(pl.col("origin") != "freed")
    stack = rank_memory.allocation_stack(recorded)
    code = rank.code(history, recorded).with_columns(row=stack)
    groups = code.unique(maintain_order=True).with_row_index("group")
    group = columns.left_join(code, groups, code.columns)["group"].to_numpy()
    first = np.searchsorted(at, recorded["start"].to_numpy(), side="left")
    last = np.searchsorted(at, recorded["end"].to_numpy(), side="left")
    size = recorded["bytes"].to_numpy()
    # requests that are freed a step or two later may be larger in each step, and do not grow
    kept = size * (
        (last - first >= SUSPECT_STEPS) | (recorded["end"].to_numpy() >= history.positions)
    )
    change = np.zeros((2, groups.height, at.size + 1), np.int64)
    for which, each in enumerate((size, kept)):
        np.add.at(change[which], (group, first), each)
        np.subtract.at(change[which], (group, last), each)
    live, kept = np.cumsum(change, axis=2)[:, :, :-1]
    change = np.diff(kept, axis=1)
    old = np.bincount(group, last - first >= SUSPECT_STEPS, groups.height) > 0
    collected = np.where(old, _collected(live), 0)
    grew = change > 0
    # consecutive steps of growth up to the last step
    steady = grew.shape[1] - 1 - np.where(grew, -1, np.arange(grew.shape[1])).max(axis=1)
    grew_n = grew.sum(axis=1)
    numbers = {
        "first_bytes": live[:, 0],
        "last_bytes": live[:, -1],
        "grown_bytes": live[:, -1] - live[:, 0],
        "grown_steps": steady,
        "grew_n": grew_n,
        "shrank_n": (change < 0).sum(axis=1),
        "per_step_bytes": (live[:, -1] - live[:, 0]) // np.maximum(grew_n, 1),
        "collected_bytes": collected,
        "is_regular": pl.Series(list(map(_is_regular, change)), dtype=pl.Boolean),
    }
    rows = groups.select(*attribution.LINE, "row").hstack(pl.DataFrame(numbers))
    rows = rows.filter((pl.col("grown_bytes") != 0) | (pl.col("collected_bytes") > 0))
    rows = rows.with_columns(stack=rank.lines.paths(rows["row"])).drop("row")
    return columns.largest_first(rows, "grown_bytes", *attribution.LINE[:3], "stack")


def _is_regular(change: Ints) -> bool:
    """Whether live bytes grow by about as much in every Nth step, until the end."""
    steps, n = np.flatnonzero(change), change.size
    apart, more = np.diff(steps), change[steps]
    if steps.size < SUSPECT_STEPS or apart.min() < apart.max():
        return False
    return bool(more.max() <= _ALIKE * more.min() and steps[-1] + apart[0] >= n)


#: Largest ratio of the growth of one step to that of another one, if they are alike.
_ALIKE = 1.25


def _collected(live: Ints) -> Ints:
    """Return the most bytes that grew over three or more steps and were then freed in one step.

    0 for rows (stacks) in which this happened less than twice.
    """
    run, falls, most = np.zeros((3, live.shape[0]), np.int64)
    base = live[:, 0]
    for before, after in pairwise(live.T):
        grown = before - base
        fell = (run >= SUSPECT_STEPS) & (10 * (after - base) <= grown)
        falls += fell
        most = np.where(fell, np.maximum(most, grown), most)
        run = np.where(after > before, run + 1, np.where(after < before, 0, run))
        base = np.where(after < before, after, base)
    return np.where(falls > 1, most, 0)


# --- result ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MemoryGrowth(Result):
    """Result of :func:`traceanalyzer.memory_growth`.

    Attributes:
        steps: one row per step boundary: rank, path, device, step, name, by (annotations, optimizer
            calls, backward passes, repeated allocations, lows of live memory or --step-every),
            event, time_ns, live_bytes.
        growth: one row per stack whose live bytes differ between the first and the last boundary,
            or grew and were freed in between:
            rank, path, device, function, file, line, is_own_code, first_bytes, last_bytes,
            grown_bytes, grown_steps (consecutive steps of growth up to the last), grew_n and
            shrank_n (steps of growth and of shrinkage), per_step_bytes (grown_bytes / grew_n),
            collected_bytes (the most that grew over three or more steps and was freed in one step,
            if that happened at least twice; else 0), is_regular (it grew by about as much in every
            Nth step), stack.
    """

    question = "What grows from step to step?"

    steps: pl.DataFrame
    growth: pl.DataFrame

    @property
    def suspects(self) -> pl.DataFrame:
        """Rows of ``growth`` that grew in each of the last three steps, a third or every Nth one.

        ``intervals`` is the number of steps of their device.
        """
        return _suspects(self.growth, self.steps)

    def summary(self) -> str:
        """Return the growth and its lines in a sentence; empty without suspects."""
        total = int(self.suspects["grown_bytes"].sum())
        if not total:
            return ""
        lines = with_line(self.suspects).group_by("at").agg(
            pl.col("grown_bytes").sum(),
            per_step=(pl.col("grown_bytes") / pl.col("intervals")).sum(),
        )  # fmt: skip
        grown = columns.largest_first(lines, "grown_bytes", "at").head(_NAMED)[["at", "per_step"]]
        named = ", ".join(f"{at} {format_bytes(size)} per step" for at, size in grown.iter_rows())
        devices = self.suspects.select("rank", "path", "device").n_unique()
        where = f" on {devices:,} devices in total" if devices > 1 else ""
        counts = self.suspects.select(pl.col("intervals").min(), most=pl.col("intervals").max())
        n = " to ".join(f"{count:,}" for count in sorted({*counts.row(0)}))
        return f"Memory grows by {format_bytes(total)}{where} over {n} steps, at {named}."

    def collected(self) -> str:
        """Return what grows and is then freed at once, and its lines; empty without any."""
        rows = with_line(self.growth.filter(pl.col("collected_bytes") > 0))
        sums = rows.group_by("at").agg(pl.col("collected_bytes").sum())
        lines = columns.largest_first(sums, "collected_bytes", "at")
        named = ", ".join(f"{at} {format_bytes(n)}" for at, n in lines.head(_NAMED).iter_rows())
        return named and (
            f"Memory grows over several steps and is then freed in one step, again and again: "
            f"up to {format_bytes(int(lines['collected_bytes'].sum()))}, at {named}."
        )

    def view(self) -> View:
        """Return suspects, all changes and steps, with a chart of live bytes."""
        scalars = {"gained_bytes": int(self.suspects["grown_bytes"].sum())}
        return self.view_from(_verdict, _notes, _tables, _charts, scalars=scalars)


def _suspects(growth: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return stacks that grew in at least the last :data:`SUSPECT_STEPS` steps in a row.

    Also stacks that never shrank and grew in at least that many steps, which are a third of all, or
    every Nth one by about as much (an evaluation, a checkpoint).
    """
    keys = ["rank", "path", "device"]
    counted = steps.group_by(keys).agg(intervals=pl.len().cast(pl.Int64) - 1)
    rows = columns.left_join(growth, counted, keys)
    often = (pl.col("grew_n") >= SUSPECT_STEPS) & (3 * pl.col("grew_n") >= pl.col("intervals"))
    often = (often | pl.col("is_regular")) & (pl.col("shrank_n") == 0)
    suspect = (pl.col("grown_steps") >= SUSPECT_STEPS) | often
    return rows.filter(suspect, pl.col("grown_bytes") > 0, pl.col("collected_bytes") == 0)


def _by_line(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the rows of a line of code, which several stacks may contain."""
    keys = ["rank", "path", "device", *attribution.LINE, "at"]
    summed = (
        with_line(rows)
        .group_by(keys, maintain_order=True)
        .agg(
            pl.col("first_bytes", "last_bytes", "grown_bytes", "per_step_bytes").sum(),
            pl.col("grown_steps", "grew_n", "shrank_n").max(),
            stacks=pl.len().cast(pl.Int64),
        )
    )
    return columns.largest_first(summed, "grown_bytes", *attribution.LINE[:3])


def _verdict(result: MemoryGrowth) -> str:
    """State the growth, its lines and what to check."""
    n = result.steps["step"].n_unique()
    if n <= SUSPECT_STEPS:
        return f"{n} steps are too few: growth needs at least {SUSPECT_STEPS + 1}."
    if result.suspects.is_empty():
        if collected := result.collected():
            return f"{collected} {COLLECTED_ADVICE}"
        return (
            f"No steady growth: no line's live bytes grew in each of the last {SUSPECT_STEPS} of "
            f"{n:,} steps, in a third of all steps, or in every Nth one."
        )
    return f"{result.summary()} {GROWTH_ADVICE}"


def _notes(result: MemoryGrowth) -> Iterator[str]:
    """Yield how steps were detected, if they are not annotated."""
    yield from (text for by, text in _SOURCES.items() if (result.steps["by"] == by).any())
    yield _NOTE


def _tables(result: MemoryGrowth) -> Iterator[Table]:
    grown = with_line(result.growth)
    yield known_table("suspects", "Steady growth", _by_line(result.suspects), _GROWTH)
    yield known_table("growth", "All changes", grown, _GROWTH, detail=True)
    yield known_table("steps", "Live at the end of each step", result.steps, _STEPS)


def _charts(result: MemoryGrowth) -> Iterator[Chart]:
    """Yield the chart of live bytes over steps."""
    frame = result.steps.with_columns(display.places(result.steps))
    yield Chart(
        name="steps", title="Live at the end of each step", mark="line", frame=frame,
        x="step", y="live_bytes", x_label="step", y_label="live", color="on",
    )  # fmt: skip


MEMORY_GROWTH = Analyzer(
    "memory_growth", GrowthOptions, ledger.NEEDS, measure, combine, whole_file=True
)


def memory_growth(
    inputs: Inputs,
    *,
    library_name: str | Sequence[str] = (),
    min_bytes: int | None = None,
    step_name: str | None = None,
    step_every: str | int | None = None,
    **reading: Unpack[Reading],
) -> MemoryGrowth:
    """Which memory grows from step to step and is never freed?

    Live bytes are measured at the end of each step by stack. A stack that grew in at least the last
    three steps is a suspect.

    Args:
        inputs: memory snapshots.
        library_name: packages whose frames name an allocation; default: your own code.
        min_bytes: list and draw only allocations of at least this size; totals count all.
        step_name: regular expression of step annotations; default: those of torch.profiler, and
            names like ``step 3``.
        step_every: length of a step as a time (``250ms``) or a number of events.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no memory events were recorded, or no steps.
        OptionError: an option is invalid.
    """
    options = GrowthOptions(library_name, min_bytes, step_name=step_name, step_every=step_every)
    return run(MEMORY_GROWTH, inputs, options, **reading)
