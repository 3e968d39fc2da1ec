"""What one rank's file tells of its devices' memory, ready to be asked."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from traceanalyzer.analyzers.memory.categories import categories
from traceanalyzer.analyzers.memory.ledger import Ledger, ledger
from traceanalyzer.analyzers.memory.lines import Lines, lines
from traceanalyzer.analyzers.memory.operations import operations, origin
from traceanalyzer.analyzers.memory.where import Where, where
from traceanalyzer.analyzers.names import named
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace, is_cut_off
from traceanalyzer.vocabulary import steps_pattern

#: Times after the first event, None for no bound.
Window = tuple[int | None, int | None]

_SETTINGS: Final = "allocator_settings"


@dataclass(frozen=True)
class Ground:
    """One rank.

    Attributes:
        rank: of the file, or None.
        path: the file.
        settings: the allocator's, where the file tells them.
        ledgers: one for each device; its allocations have ``category`` and ``confidence`` too.
        segments: held at the end, on all devices.
        blocks: what is in them.
        lines: the code of each stack.
        where: where threads were, for allocations that have no stack; None where they have.
        steps: ``name``, ``device`` (or null), ``ts``, ``end`` of each step that is marked.
        window: (since, until) in ns after the first event: what happens outside is not asked for.
    """

    rank: int | None
    path: str
    settings: dict[str, Any]
    ledgers: tuple[Ledger, ...]
    segments: pl.DataFrame
    blocks: pl.DataFrame
    lines: Lines
    where: Where | None
    steps: pl.DataFrame
    window: Window = (None, None)

    def code(self, of: Ledger, allocations: pl.DataFrame) -> pl.DataFrame:
        """``function``, ``file``, ``line`` and ``own`` of allocations of a ledger."""
        if self.where is None:
            return self.lines.of(known_stack(allocations))
        begun = pl.col("start") > 0
        event = allocations.select(pl.when(begun).then(pl.col("start") - 1)).to_series()
        return self.where.of(of.rows["event"].gather(event))

    def of_device(self, device: int | None) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Segments of a device, and the blocks in them."""
        return _of_device(self.segments, self.blocks, device)

    def steps_of(self, device: int | None) -> pl.DataFrame:
        """Steps of a device, and those that tell none."""
        own = pl.col("device").is_null() | pl.col("device").eq_missing(pl.lit(device, pl.Int32))
        return self.steps.filter(own)


def _of_device(
    segments: pl.DataFrame, blocks: pl.DataFrame, device: int | None
) -> tuple[pl.DataFrame, pl.DataFrame]:
    own = segments.filter(pl.col("device").eq_missing(pl.lit(device, pl.Int32)))
    return own, blocks.filter(pl.col("segment").is_in(own["id"].implode()))


def ledgers(trace: Trace) -> list[Ledger]:
    """The allocations of each device of a trace of one rank.

    Raises:
        MissingData: nothing about memory was recorded.
        OptionError: the trace is several files', and tells no ranks.
    """
    found = []
    for of in operations(trace):
        own, held = _of_device(trace.segments, trace.blocks, of.device)
        # of a file that was cut off, segments may be missing
        known = of.noted == "snapshot" and (own.height > 0 or not is_cut_off(trace))
        found.append(ledger(of, held, int(own["total_bytes"].sum()) if known else None))
    return found


def ground(
    trace: Trace,
    library_names: Sequence[str] = (),
    step_name: str | None = None,
    window: Window = (None, None),
) -> Ground:
    """What a trace of one rank tells.

    Args:
        trace: read with :data:`~.operations.NEEDS`.
        library_names: libraries whose frames count as one's own; by default the user's code does.
        step_name: a regular expression of the annotations that are steps.
        window: what to ask for, in ns after the first event.

    Raises:
        MissingData: nothing about memory was recorded, or no times, and a window is asked for.
        OptionError: ``step_name`` is no regular expression.
    """
    if window != (None, None) and trace.events["ts"].null_count():
        raise MissingData(f"{trace.meta.path}: has no times; leave --since and --until out")
    code = lines(trace, library_names)
    found = [of.with_columns(categories(of, code)) for of in ledgers(trace)]
    instants = any(of.noted == "instants" for of in found)
    return Ground(
        rank=trace.meta.rank,
        path=trace.meta.path,
        settings=_settings(trace.meta.extra),
        ledgers=tuple(found),
        segments=trace.segments,
        blocks=trace.blocks,
        lines=code,
        where=where(trace, library_names) if instants else None,
        steps=_steps(trace, step_name),
        window=window,
    )


def known_stack(allocations: pl.DataFrame) -> pl.Series:
    """The stacks of allocations; of one freed only, the stack is that of who freed it."""
    own = pl.when(pl.col("origin") != "freed").then("stack")
    return allocations.select(own).to_series()


def _settings(extra: str | None) -> dict[str, Any]:
    told = json.loads(extra) if extra else {}
    found = told.get(_SETTINGS) if isinstance(told, dict) else None
    return found if isinstance(found, dict) else {}


def _steps(trace: Trace, step_name: str | None) -> pl.DataFrame:
    kinds = ("user_annotation", "nvtx")
    ranges = trace.events.lazy().filter(pl.col("kind").is_in(kinds), pl.col("dur") >= 0)
    told = (
        ranges.with_columns(pl.col("name").cast(pl.String), ts=pl.col("ts") - origin(trace))
        .select("name", "device", "ts", end=pl.col("ts") + pl.col("dur"))
        .sort("ts", "end")
        .collect()
    )
    return told.filter(named(told, [step_name or steps_pattern()]))


def positions(of: Ledger, times: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The position at each time: how many events have happened by then."""
    ts = of.rows["ts"].to_numpy()
    return np.searchsorted(ts, times.to_numpy(), side="right").astype(np.int64)
