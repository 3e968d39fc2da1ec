"""The ranks of traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import polars as pl

from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK


def by_rank(traces: Trace | Sequence[Trace]) -> list[Trace]:
    """One trace for each rank of each trace.

    In a trace of several ranks, processes that have none, such as a launcher, are left out unless
    they use a device.
    """
    found = []
    for trace in [traces] if isinstance(traces, Trace) else traces:
        found += apart([trace])
    return found


def of_rank(held: list[Trace], rank: int | None, *, alone: bool) -> list[Trace]:
    """The traces of one rank in a trace, or one for each where none is asked for.

    A trace of one process that is the only input is of the rank that the user says.

    Args:
        held: the trace; the list is emptied, so that it can be forgotten while it is divided.
        rank: which, or None for all.
        alone: the trace is the only input.
    """
    found = apart(held)
    if rank is None:
        return found
    if alone and len(found) == 1:
        return [found[0].with_rank(rank)]
    return [own for own in found if own.meta.rank == rank]


def ranges(numbers: Sequence[int]) -> str:
    """Sorted whole numbers with runs joined: ``0-3, 6``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)


def apart(held: list[Trace]) -> list[Trace]:
    """The trace in the list, which is emptied, divided by rank; a column at a time."""
    trace = held.pop()
    ranks = _ranks(trace.events)
    if len(ranks) <= 1:
        return [trace]
    column = trace.events["rank"]
    masks = [column.eq_missing(pl.Series([rank], dtype=pl.Int32)) for rank in ranks]
    # issues of one file are of all its ranks, those of joined files tell theirs
    whole = ("events", "issues") if len(trace.sources) == 1 else ("events",)
    side = {name: frame for name, frame in trace.tables.items() if name not in whole}
    issues = trace.issues
    sources, names = trace.sources, trace.events.columns
    columns = [trace.events[name] for name in reversed(names) if name != "rank"]
    del trace, column
    with ThreadPoolExecutor(2) as pool:  # a core each; with more columns at once memory would grow
        each = list(pool.map(lambda column: _divided(column, masks), _given(columns)))
    found = []
    for number, (rank, own) in enumerate(zip(ranks, masks, strict=True)):
        meta = next((m for m in sources if m.rank == rank), sources[0])
        events = _with_rank([parts[number] for parts in each], rank).select(names)
        tables = {"issues": issues} | {
            name: _of_rank(name, frame, rank, own) for name, frame in side.items()
        }
        found.append(Trace(sources=(replace(meta, rank=rank),), events=events, **tables))
    return found


def _given(columns: list[pl.Series]) -> Iterator[pl.Series]:
    """The columns, the last first; the list forgets each."""
    while columns:
        yield columns.pop()


def _divided(column: pl.Series, masks: Sequence[pl.Series]) -> list[pl.Series | pl.Expr]:
    """A column's rows under each mask; of one that holds nothing, nothing in its place."""
    if column.null_count() == len(column):
        return [pl.lit(None, column.dtype).alias(column.name)] * len(masks)
    return [column.filter(own) for own in masks]


def _with_rank(columns: Sequence[pl.Series | pl.Expr], rank: int | None) -> pl.DataFrame:
    held = pl.DataFrame([column for column in columns if isinstance(column, pl.Series)])
    nothing = [column for column in columns if isinstance(column, pl.Expr)]
    return held.with_columns(*nothing, rank=pl.lit(rank, pl.Int32))


def _ranks(events: pl.DataFrame) -> list[int | None]:
    """The ranks that events belong to; None among them where it counts."""
    ranks: list[int | None] = events["rank"].unique().sort().to_list()
    if len(ranks) > 1 and ranks[0] is None:
        working = pl.col("rank").is_null() & pl.col("kind").is_in(DEVICE_WORK)
        if not events.select(working.any()).item():
            return ranks[1:]
    return ranks


def _of_rank(name: str, frame: pl.DataFrame, rank: int | None, own: pl.Series) -> pl.DataFrame:
    """What of a side table belongs to a rank, whose rows of ``events`` are these."""
    if frame.height and "event" in frame.columns:
        event = frame["event"].fill_null(0).to_numpy()
        kept = np.flatnonzero(own.to_numpy())
        place = np.searchsorted(kept, event)
        hit = kept[np.minimum(place, len(kept) - 1)] == event if len(kept) else place < 0
        bound = pl.Series(hit) & frame["event"].is_not_null()
        moved = pl.Series("event", place.astype(np.uint32))
        if name != "flows":
            return frame.with_columns(moved).filter(bound)
        frame = frame.with_columns(event=pl.when(bound).then(moved))
    if "rank" not in frame.columns:
        return frame
    of_it = pl.col("rank").eq_missing(pl.lit(rank, dtype=pl.Int32))
    # names and readings that are nobody's are everybody's
    return frame.filter(of_it if name == "flows" else of_it | pl.col("rank").is_null())
