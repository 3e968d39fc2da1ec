"""What grows from step to step: memory that nobody gives back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.common import columns, places
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.memory import attribution, ledger, rank_memory, steps
from traceanalyzer.analyzers.memory.options import GrowthOptions
from traceanalyzer.analyzers.memory.tables import shown_table, with_line
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.result import Chart, Result, View
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_bytes

#: From so many steps in a row on in which a line's live bytes grow, it is suspected.
SUSPECT_STEPS = 3

_MOST_STEPS = 10_000

_NAMED = 3
_GROWTH = headings(
    "on: device, at: line of code, first_bytes: after the first step, last_bytes: after the last, "
    "grown_bytes: grown, per_step_bytes: per step, grew_n: steps"
)
_STEPS = headings("on: device, step, name, time_ns: ends at, live_bytes: live")
#: What to look for in lines whose memory grows.
GROWTH_ADVICE = (
    "Something keeps what these lines allocate: a list of losses (use .item() or .detach()), a "
    "graph that is kept, a cache."
)
_SOURCES = {
    steps.OPTIMIZER: "No steps are annotated; a step ends where the optimizer finishes.",
    steps.BACKWARD: "No steps are annotated; a step ends where a backward pass finishes.",
    steps.REPETITION: "No steps are annotated; a step is a sequence of allocations that repeats.",
}
_NOTE = (
    "Live bytes are taken at the end of each step; what the first steps set up once (optimizer "
    "state, caches) grows, but not steadily."
)


def measure(trace: Trace, options: GrowthOptions) -> MemoryGrowth:
    """How the memory of a trace of one rank grows.

    Raises:
        MissingData: memory was not recorded, or no steps were found.
        OptionError: an option is no time, number or regular expression.
    """
    rank = rank_memory.rank_memory(trace, options, options.step_name)
    return of_rank(rank, None if options.step_every is None else str(options.step_every))


def of_rank(rank: rank_memory.RankMemory, step_every: str | None = None) -> MemoryGrowth:
    """How the memory of a rank grows; raises as :func:`measure`."""
    marks, growth = [], []
    for of in rank.ledgers:
        found = steps.boundaries(of, rank, step_every)
        if found.is_empty():
            continue
        if found.height > _MOST_STEPS:
            raise OptionError(
                f"{rank.path}: {found.height:,} steps, more than {_MOST_STEPS:,}: make them "
                "longer, or look at a part with --since and --until"
            )
        at = found["position"].to_numpy()
        found = found.rename({"position": "event"}).with_columns(live_bytes=pl.Series(of.live[at]))
        marks.append(rank.placed(of, found))
        growth.append(rank.placed(of, _growth(of, rank, at)))
    if not marks:
        raise MissingData(
            f"{rank.path}: found no steps: no annotations, no optimizer calls and no repeated "
            "allocations; give --step-every N, a number of events"
        )
    return MemoryGrowth(pl.concat(marks), pl.concat(growth))


def combine(
    parts: Sequence[MemoryGrowth], _options: GrowthOptions, _base: Sequence[MemoryGrowth] = ()
) -> MemoryGrowth:
    """The growth of all ranks."""
    return MemoryGrowth(*columns.together(parts, "steps", "growth"))


def _growth(of: ledger.Ledger, own: rank_memory.RankMemory, at: Ints) -> pl.DataFrame:
    """Live bytes at each boundary by stack; of those that grew, by how much and for how long."""
    recorded = own.sized(of.allocations).filter(pl.col("origin") != "freed")
    code = own.code(of, recorded).with_columns(row=rank_memory.known_stack(recorded))
    groups = code.unique(maintain_order=True).with_row_index("group")
    group = columns.looked_up(code, groups, code.columns)["group"].to_numpy()
    first = np.searchsorted(at, recorded["start"].to_numpy(), side="left")
    last = np.searchsorted(at, recorded["end"].to_numpy(), side="left")
    change = np.zeros((groups.height, at.size + 1), np.int64)
    size = recorded["bytes"].to_numpy()
    np.add.at(change, (group, first), size)
    np.subtract.at(change, (group, last), size)
    live = np.cumsum(change, axis=1)[:, :-1]
    change = np.diff(live, axis=1)
    grew = change > 0
    # how many steps in a row up to the last
    steady = grew.shape[1] - 1 - np.where(grew, -1, np.arange(grew.shape[1])).max(axis=1)
    often = grew.sum(axis=1)
    numbers = {
        "first_bytes": live[:, 0],
        "last_bytes": live[:, -1],
        "grown_bytes": live[:, -1] - live[:, 0],
        "grown_steps": steady,
        "grew_n": often,
        "shrank_n": (change < 0).sum(axis=1),
        "per_step_bytes": (live[:, -1] - live[:, 0]) // np.maximum(often, 1),
    }
    found = groups.select(*attribution.LINE, "row").hstack(pl.DataFrame(numbers))
    found = found.filter(pl.col("grown_bytes") != 0)
    found = found.with_columns(stack=own.lines.paths(found["row"])).drop("row")
    return columns.largest_first(found, "grown_bytes", *attribution.LINE[:3], "stack")


# --- result ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class MemoryGrowth(Result):
    """What :func:`traceanalyzer.memory_growth` found.

    Attributes:
        steps: a row a step boundary: rank, path, device, step, name, by (annotations, optimizer
            calls, backward passes, repeated allocations or --step-every), event, time_ns,
            live_bytes.
        growth: a row a stack whose live bytes changed from the first boundary to the last: rank,
            path, device, function, file, line, own, first_bytes, last_bytes, grown_bytes,
            grown_steps (in a row, up to the last, in which they grew), grew_n, shrank_n (steps in
            which they did), per_step_bytes (grown_bytes / grew_n), stack.
    """

    steps: pl.DataFrame
    growth: pl.DataFrame

    @property
    def suspects(self) -> pl.DataFrame:
        """Rows of ``growth`` that grew in each of the last three steps, or in a third of all."""
        return _suspects(self.growth, self.steps)

    def summary(self) -> str:
        """What grew, over how many steps, and at which lines; empty where nothing grew steadily."""
        total = int(self.suspects["grown_bytes"].sum())
        if not total:
            return ""
        counts = self.steps.group_by("rank", "path", "device").len()["len"]
        n = int(counts.max() or 0) - 1  # type: ignore[arg-type]
        lines = with_line(self.suspects).group_by("at", maintain_order=True)
        grown = lines.agg(pl.col("grown_bytes").sum()).head(_NAMED).rows()
        named = ", ".join(f"{at} {format_bytes(size // n)} per step" for at, size in grown)
        devices = self.suspects.select("rank", "path", "device").n_unique()
        where = f" on {devices:,} devices together" if devices > 1 else ""
        return (
            f"Memory grows: {format_bytes(total)} more in use{where} after {n:,} steps, at {named}."
        )

    def view(self) -> View:
        """Suspects, all that changed, steps; live bytes over steps."""
        suspects, grown = self.suspects, with_line(self.growth)
        return View(
            title="What grows from step to step?",
            verdict=_verdict(self),
            notes=(*_sources(self.steps), _NOTE),
            tables=(
                shown_table("suspects", "Grows steadily", with_line(suspects), _GROWTH),
                shown_table("growth", "All that changed", grown, _GROWTH, detail=True),
                shown_table("steps", "Live at the end of each step", self.steps, _STEPS),
            ),
            scalars={"gained_bytes": int(suspects["grown_bytes"].sum())},
            charts=partial(_charts, self.steps),
        )


def _suspects(growth: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Stacks whose live bytes grew in each of the last :data:`SUSPECT_STEPS` steps at least.

    And those that never shrank, and grew in as many steps and in a third of all.
    """
    keys = ["rank", "path", "device"]
    counted = steps.group_by(keys).agg(intervals=pl.len().cast(pl.Int64) - 1)
    told = columns.looked_up(growth, counted, keys)
    often = (pl.col("grew_n") >= SUSPECT_STEPS) & (3 * pl.col("grew_n") >= pl.col("intervals"))
    wanted = (pl.col("grown_steps") >= SUSPECT_STEPS) | (often & (pl.col("shrank_n") == 0))
    return told.filter(wanted, pl.col("grown_bytes") > 0).drop("intervals")


def _verdict(result: MemoryGrowth) -> str:
    """How much is gained, and by which code."""
    n = result.steps["step"].n_unique()
    if n <= SUSPECT_STEPS:
        return f"{n} steps are too few: growth needs {SUSPECT_STEPS + 1} steps or more."
    if result.suspects.is_empty():
        return (
            f"Nothing grows steadily: no line's live bytes grew in each of the last "
            f"{SUSPECT_STEPS} of {n:,} steps, or in a third of all."
        )
    return f"{result.summary()} {GROWTH_ADVICE}"


def _sources(marks: pl.DataFrame) -> list[str]:
    """How the steps were found, where nobody marked them."""
    return [text for by, text in _SOURCES.items() if (marks["by"] == by).any()]


def _charts(marks: pl.DataFrame) -> tuple[Chart, ...]:
    """Live bytes over steps."""
    frame = marks.with_columns(places.places(marks))
    return (
        Chart(
            name="steps", title="Live at the end of each step", mark="line", frame=frame,
            x="step", y="live_bytes", x_label="step", y_label="live", color="on",
        ),
    )  # fmt: skip


MEMORY_GROWTH = Analyzer(
    "memory_growth", GrowthOptions, ledger.needs, measure, combine, whole_file=True
)
