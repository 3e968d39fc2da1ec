"""The ranks of traces."""

from collections.abc import Sequence
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
    several = [traces] if isinstance(traces, Trace) else traces
    return [one for trace in several for one in apart([trace])]


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
    """The trace in the list, which is emptied, divided by rank.

    Columns of events are divided and freed one by one: they are not all in memory twice.
    """
    trace = held.pop()
    ranks = _ranks(trace.events)
    if len(ranks) <= 1:
        return [trace]
    # issues of one file are of all its ranks, those of joined files tell theirs
    whole = ("events", "issues") if len(trace.sources) == 1 else ("events",)
    side = {name: frame for name, frame in trace.tables.items() if name not in whole}
    sources, issues, events = trace.sources, trace.issues, trace.events
    owns = [events["rank"].eq_missing(pl.Series([rank], dtype=pl.Int32)) for rank in ranks]
    # frames of one column: a column that is one value, such as null, takes no memory in a frame
    columns = [events.select(name) for name in events.columns]
    del trace, events
    each: list[list[pl.DataFrame]] = [[] for _ in ranks]
    while columns:
        column = columns.pop(0)
        for mine, own in zip(each, owns, strict=True):
            mine.append(column.filter(own))
    found = []
    for rank, mine, own in zip(ranks, each, owns, strict=True):
        meta = next((m for m in sources if m.rank == rank), sources[0])
        tables = {"issues": issues} | {
            name: _of_rank(name, frame, rank, own) for name, frame in side.items()
        }
        divided = pl.concat(mine, how="horizontal").with_columns(rank=pl.lit(rank, pl.Int32))
        found.append(Trace(sources=(replace(meta, rank=rank),), events=divided, **tables))
    return found


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
