"""What grows from step to step: memory that nobody gives back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.common import columns, places
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.memory import attribution, compute, ledger, rank_memory
from traceanalyzer.analyzers.memory.options import GrowthOptions
from traceanalyzer.analyzers.memory.result import shown_table, with_line
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.result import Chart, Result, View
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_bytes, parse_ns
from traceanalyzer.vocabulary import PROFILER_STEP

#: From so many steps in a row on in which a line's live bytes grow, it is suspected.
SUSPECT_STEPS = 3

_MOST_STEPS = 10_000
_EVENTS = re.compile(r"\d+")

_NAMED = 3
_GROWTH = headings(
    "on: device, at: line of code, first_bytes: after the first step, last_bytes: after the last, "
    "grown_bytes: grown, per_step_bytes: a step, grew_n: steps"
)
_STEPS = headings("on: device, step, name, time_ns: ends at, live_bytes: live")
_NOTE = (
    "Live bytes are taken at the end of each step; what the first steps set up once (optimizer "
    "state, caches) grows, but not steadily."
)


def measure(trace: Trace, options: GrowthOptions) -> MemoryGrowth:
    """How the memory of a trace of one rank grows.

    Raises:
        MissingData: it tells nothing of memory, or marks no steps.
        OptionError: an option is no time, number or regular expression.
    """
    own = rank_memory.rank_memory(trace, options, options.step_name)
    step_every = None if options.step_every is None else str(options.step_every)
    steps, growth = [], []
    for of in own.ledgers:
        first, last = of.between(*options.window)
        marks = _boundaries(of, own, step_every).filter(pl.col("position").is_between(first, last))
        if marks.height < 2:
            continue
        if marks.height > _MOST_STEPS:
            raise OptionError(
                f"{own.path}: {marks.height:,} steps, more than {_MOST_STEPS:,}: make them longer, "
                "or look at a part with --since and --until"
            )
        at = marks["position"].to_numpy()
        marks = marks.rename({"position": "event"}).with_columns(live_bytes=pl.Series(of.live[at]))
        steps.append(own.placed(of, marks))
        growth.append(own.placed(of, _growth(of, own, at)))
    if not steps:
        untimed = any(of.rows["ts"].null_count() for of in own.ledgers)
        hint = (
            "the file has no times, so say --step-every N, a number of events"
            if untimed
            else "call profiler.step() while memory is recorded, or say --step-every TIME"
        )
        raise MissingData(f"{own.path}: fewer than two steps are marked; {hint}")
    return MemoryGrowth(pl.concat(steps), pl.concat(growth))


def combine(
    parts: Sequence[MemoryGrowth], _options: GrowthOptions, _base: Sequence[MemoryGrowth] = ()
) -> MemoryGrowth:
    """The growth of all ranks."""
    return MemoryGrowth(*columns.together(parts, "steps", "growth"))


def _boundaries(
    of: ledger.Ledger, own: rank_memory.RankMemory, step_every: str | None
) -> pl.DataFrame:
    """The ends of steps: step (a number), name, position, time_ns."""
    if step_every is not None:
        at, times = _every(of, step_every)
        names: list[str | None] = [None] * at.size
    else:
        if of.rows["ts"].null_count():
            return pl.DataFrame(schema={"position": pl.Int64})
        marked = _one_family(own, of.device)
        times, names = marked["end"], marked["name"].to_list()
        at = rank_memory.positions(of, times)
    return pl.DataFrame(
        {"step": range(at.size), "name": names, "position": at, "time_ns": times},
        schema={"step": pl.Int64, "name": pl.String, "position": pl.Int64, "time_ns": pl.Int64},
    )


def _one_family(rank: rank_memory.RankMemory, device: int | None) -> pl.DataFrame:
    """The steps of one name but for its number: a range in a step may be called a step too.

    Of several names the profiler's, else that of which there are most; of a device that has none,
    those of all devices.
    """
    own = rank.steps_of(device)
    own = (rank.steps if own.is_empty() else own).unique(["name", "end"]).with_columns(
        family=pl.col("name").str.replace_all(r"\d+", "#")
    )  # fmt: skip
    profilers = pl.col("family") == f"{PROFILER_STEP}#"
    families = own.group_by("family").agg(pl.len(), profilers.any().alias("first"))
    best = families.sort("first", "len", "family", descending=[True, True, False])["family"].head(1)
    return own.filter(pl.col("family").is_in(best.implode())).sort("end", "name")


def _every(of: ledger.Ledger, step_every: str) -> tuple[Ints, pl.Series]:
    ts = of.rows["ts"]
    if _EVENTS.fullmatch(step_every):
        size = int(step_every)
        if not size:
            raise OptionError("--step-every is a time, or a number of events above 0")
        at = np.arange(size, of.positions, size)
        return at, ts.gather(at - 1)
    length = parse_ns(step_every)
    if length <= 0:
        raise OptionError("--step-every is a time above 0, or a number of events")
    if ts.null_count() or not ts.len():
        raise OptionError("--step-every: the file has no times; give a number of events")
    if (int(ts[-1]) - int(ts[0])) // length > ts.len():
        raise OptionError(f"--step-every {step_every}: shorter than the time between two events")
    times = pl.Series(np.arange(int(ts[0]) + length, int(ts[-1]) + 1, length), dtype=pl.Int64)
    return rank_memory.positions(of, times), times


def _growth(of: ledger.Ledger, own: rank_memory.RankMemory, at: Ints) -> pl.DataFrame:
    """Live bytes at each boundary by stack; of those that grew, by how much and for how long."""
    recorded = of.allocations.filter(pl.col("origin") != "freed")
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
        "per_step_bytes": np.where(grew, change, 0).sum(axis=1) // np.maximum(often, 1),
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
        steps: a row a step boundary: rank, path, device, step, name, event, time_ns, live_bytes.
        growth: a row a stack whose live bytes changed from the first boundary to the last: rank,
            path, device, function, file, line, own, first_bytes, last_bytes, grown_bytes,
            grown_steps (in a row, up to the last, in which they grew), grew_n, shrank_n (steps in
            which they did), per_step_bytes (of steps in which they grew), stack.
    """

    steps: pl.DataFrame
    growth: pl.DataFrame

    @property
    def suspects(self) -> pl.DataFrame:
        """Rows of ``growth`` that grew in each of the last three steps, or in a third of all."""
        return _suspects(self.growth, self.steps)

    def view(self) -> View:
        """Suspects, all that changed, steps; live bytes over steps."""
        suspects, grown = self.suspects, with_line(self.growth)
        return View(
            title="What grows from step to step?",
            verdict=_verdict(suspects, self.steps["step"].n_unique()),
            notes=(_NOTE,),
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


def _verdict(found: pl.DataFrame, n: int) -> str:
    """How much is gained, and by which code."""
    total = int(found["grown_bytes"].sum())
    if n <= SUSPECT_STEPS:
        return f"{n} steps are too few to tell: it takes {SUSPECT_STEPS + 1} at least."
    if found.is_empty():
        return (
            f"Nothing grows steadily: no line's live bytes grew in each of the last "
            f"{SUSPECT_STEPS} of {n:,} steps, or in a third of all."
        )
    rows = with_line(found).head(_NAMED).rows(named=True)
    named = [f"{row['at']} {format_bytes(row['per_step_bytes'])} a step" for row in rows]
    return (
        f"{format_bytes(total)} were gained after the first of {n:,} steps and never given "
        f"back, at "
        f"{', '.join(named)}. Something holds on to what these lines allocate: a list of "
        "losses, a graph that is kept, a cache."
    )


def _charts(steps: pl.DataFrame) -> tuple[Chart, ...]:
    """Live bytes over steps."""
    frame = steps.with_columns(places.places(steps))
    return (
        Chart(
            name="steps", title="Live at the end of each step", mark="line", frame=frame,
            x="step", y="live_bytes", x_label="step", y_label="live", color="on",
        ),
    )  # fmt: skip


MEMORY_GROWTH = Analyzer(
    "memory_growth", GrowthOptions, compute.needs, measure, combine, whole_file=True
)
