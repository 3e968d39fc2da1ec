"""What grows from step to step: memory that nobody gives back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory.ground import (
    Ground,
    Window,
    ground,
    known_stack,
    positions,
)
from traceanalyzer.analyzers.memory.ledger import Ints, Ledger
from traceanalyzer.analyzers.memory.lines import LINE
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace
from traceanalyzer.units import parse_ns
from traceanalyzer.vocabulary import PROFILER_STEP

#: From so many steps in a row on in which a line's live bytes grow, it is suspected.
SUSPECT_STEPS: Final = 3

_MOST_STEPS: Final = 10_000
_EVENTS: Final = re.compile(r"\d+")


@dataclass(frozen=True)
class Part:
    """One rank's growth.

    Attributes:
        steps: a row a boundary: rank, path, device, step, name, event, time_ns, live_bytes.
        growth: a row a stack: rank, path, device, function, file, line, own, first_bytes,
            last_bytes, grown_bytes, grown_steps (in a row, up to the last), grew_n and shrank_n
            (steps in which they did), per_step_bytes (of those in which they grew), stack.
    """

    steps: pl.DataFrame
    growth: pl.DataFrame


def extract(
    trace: Trace,
    library_names: Sequence[str] = (),
    step_name: str | None = None,
    step_every: str | None = None,
    window: Window = (None, None),
) -> Part:
    """How the memory of a trace of one rank grows.

    Args:
        trace: read with :data:`~.operations.NEEDS`.
        library_names: libraries whose frames name an allocation.
        step_name: a regular expression of the annotations that are steps.
        step_every: a time (``250ms``) or a number of events that makes a step instead.
        window: (since, until) in ns after the first event.

    Raises:
        MissingData: it tells nothing of memory, or marks no steps.
        OptionError: an option is no time, number or regular expression.
    """
    own = ground(trace, library_names, step_name, window)
    steps, growth = [], []
    for of in own.ledgers:
        first, last = of.between(*window)
        marks = _boundaries(of, own, step_every).filter(pl.col("position").is_between(first, last))
        if marks.height < 2:
            continue
        if marks.height > _MOST_STEPS:
            raise OptionError(
                f"{own.path}: {marks.height:,} steps, more than {_MOST_STEPS:,}: make them longer, "
                "or look at a part with --since and --until"
            )
        at = marks["position"].to_numpy()
        place = [
            pl.lit(own.rank, pl.Int32).alias("rank"),
            pl.lit(own.path).alias("path"),
            pl.lit(of.device, pl.Int32).alias("device"),
        ]
        steps.append(marks.select(*place, "step", "name", event="position", time_ns="time_ns",
                                  live_bytes=pl.Series(of.live[at])))  # fmt: skip
        growth.append(_growth(of, own, at).select(*place, pl.all()))
    if not steps:
        untimed = any(of.rows["ts"].null_count() for of in own.ledgers)
        hint = (
            "the file has no times, so say --step-every N, a number of events"
            if untimed
            else "call profiler.step() while memory is recorded, or say --step-every TIME"
        )
        raise MissingData(f"{own.path}: fewer than two steps are marked; {hint}")
    return Part(pl.concat(steps), pl.concat(growth))


def _boundaries(of: Ledger, own: Ground, step_every: str | None) -> pl.DataFrame:
    """The ends of steps: step (a number), name, position, time_ns."""
    if step_every is not None:
        at, times = _every(of, step_every)
        names: list[str | None] = [None] * at.size
    else:
        if of.rows["ts"].null_count():
            return pl.DataFrame(schema={"position": pl.Int64})
        marked = _one_family(own, of.device)
        at, times, names = positions(of, marked["end"]), marked["end"], marked["name"].to_list()
    return pl.DataFrame(
        {"step": range(at.size), "name": names, "position": at, "time_ns": times},
        schema={"step": pl.Int64, "name": pl.String, "position": pl.Int64, "time_ns": pl.Int64},
    )


def _one_family(ground: Ground, device: int | None) -> pl.DataFrame:
    """The steps of one name but for its number: a range in a step may be called a step too.

    Of several names the profiler's, else that of which there are most; of a device that has none,
    those of all devices.
    """
    own = ground.steps_of(device)
    own = (ground.steps if own.is_empty() else own).unique(["name", "end"]).with_columns(
        family=pl.col("name").str.replace_all(r"\d+", "#")
    )  # fmt: skip
    profilers = pl.col("family") == f"{PROFILER_STEP}#"
    families = own.group_by("family").agg(pl.len(), profilers.any().alias("first"))
    best = families.sort("first", "len", "family", descending=[True, True, False])["family"].head(1)
    return own.filter(pl.col("family").is_in(best.implode())).sort("end", "name")


def _every(of: Ledger, step_every: str) -> tuple[Ints, pl.Series]:
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
    return positions(of, times), times


def _growth(of: Ledger, own: Ground, at: Ints) -> pl.DataFrame:
    """Live bytes at each boundary by stack; of those that grew, by how much and for how long."""
    recorded = of.allocations.filter(pl.col("origin") != "freed")
    code = own.code(of, recorded).with_columns(row=known_stack(recorded))
    groups = code.unique(maintain_order=True).with_row_index("group")
    numbered = code.join(groups, on=code.columns, nulls_equal=True, maintain_order="left")
    group = numbered["group"].to_numpy()
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
    grown = live[:, -1] - live[:, 0]
    found = (
        groups.select(*LINE, "row")
        .with_columns(
            first_bytes=pl.Series(live[:, 0]),
            last_bytes=pl.Series(live[:, -1]),
            grown_bytes=pl.Series(grown),
            grown_steps=pl.Series(steady).cast(pl.Int64),
            grew_n=pl.Series(grew.sum(axis=1)).cast(pl.Int64),
            shrank_n=pl.Series((change < 0).sum(axis=1)).cast(pl.Int64),
            per_step_bytes=pl.Series(
                np.where(grew, change, 0).sum(axis=1) // np.maximum(grew.sum(axis=1), 1)
            ),
        )
        .filter(pl.col("grown_bytes") != 0)
    )
    keys = (*LINE[:3], "stack")
    return found.with_columns(stack=own.lines.paths(found["row"])).drop("row").sort(
        "grown_bytes", *keys, descending=[True, *(False for _ in keys)]
    )  # fmt: skip


def suspects(growth: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Stacks whose live bytes grew in each of the last :data:`SUSPECT_STEPS` steps at least.

    And those that never shrank, and grew in as many steps and in a third of all.
    """
    keys = ["rank", "path", "device"]
    counted = steps.group_by(keys).agg(intervals=pl.len().cast(pl.Int64) - 1)
    told = growth.join(counted, on=keys, how="left", nulls_equal=True, maintain_order="left")
    often = (pl.col("grew_n") >= SUSPECT_STEPS) & (3 * pl.col("grew_n") >= pl.col("intervals"))
    wanted = (pl.col("grown_steps") >= SUSPECT_STEPS) | (often & (pl.col("shrank_n") == 0))
    return told.filter(wanted, pl.col("grown_bytes") > 0).drop("intervals")
