"""Splitting traces by rank."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import DEVICE_WORK


def by_rank(traces: Trace | Sequence[Trace]) -> list[Trace]:
    """Return one trace per rank of each trace.

    In a trace of several ranks, processes without a rank (a launcher) are dropped unless they use a
    device.
    """
    several = [traces] if isinstance(traces, Trace) else traces
    return [one for trace in several for one in split_by_rank([trace])]


def split_by_rank(holder: list[Trace]) -> list[Trace]:
    """Split the trace in a list by rank; the list is emptied.

    Columns of events are split and freed one by one, so that they are not in memory twice.
    """
    trace = holder.pop()
    if trace.aggregates.height:
        return _of_text(trace)
    ranks = _ranks(trace.events)
    if len(ranks) <= 1:
        return [_of_only(ranks[0], trace) if ranks else trace]
    # issues of one file belong to all its ranks; those of joined files have a rank
    whole = ("events", "issues") if len(trace.sources) == 1 else ("events",)
    side = {name: frame for name, frame in trace.tables.items() if name not in whole}
    sources, issues, events = trace.sources, trace.issues, trace.events
    masks = [events["rank"].eq_missing(pl.Series([rank], dtype=pl.Int32)) for rank in ranks]
    # frames of one column: a constant column, such as null, takes no memory in a frame
    columns = [events.select(name) for name in events.columns]
    del trace, events
    columns_of: list[list[pl.DataFrame]] = [[] for _ in ranks]
    while columns:
        column = columns.pop(0)
        for of_rank, mask in zip(columns_of, masks, strict=True):
            of_rank.append(column.filter(mask))
    traces = []
    for rank, of_rank, mask in zip(ranks, columns_of, masks, strict=True):
        meta = next((m for m in sources if m.rank == rank), sources[0])
        tables = {"issues": issues} | {
            name: _of_rank(name, frame, rank, mask) for name, frame in side.items()
        }
        divided = pl.concat(of_rank, how="horizontal").with_columns(rank=pl.lit(rank, pl.Int32))
        traces.append(Trace(sources=(replace(meta, rank=rank),), events=divided, **tables))
    return traces


def _of_only(rank: int | None, trace: Trace) -> Trace:
    """Return a trace with the rank of all its events, if its file has several ranks."""
    if rank is None or trace.meta.rank is not None or len(trace.sources) > 1:
        return trace
    return replace(trace, sources=(replace(trace.meta, rank=rank),))


def _of_text(trace: Trace) -> list[Trace]:
    """Return one trace per rank of printed text, which has no events."""
    tables = trace.aggregates.partition_by("rank", maintain_order=True)
    if len(tables) <= 1:
        return [trace]
    return [
        replace(trace, sources=(replace(trace.meta, rank=rows["rank"][0]),), aggregates=rows)
        for rows in tables
    ]


def _ranks(events: pl.DataFrame) -> list[int | None]:
    """Return the ranks of events, including None if its processes use a device."""
    ranks: list[int | None] = events["rank"].unique().sort().to_list()
    if len(ranks) > 1 and ranks[0] is None:
        working = pl.col("rank").is_null() & pl.col("kind").is_in(DEVICE_WORK)
        if not events.select(working.any()).item():
            return ranks[1:]
    return ranks


def _of_rank(name: str, frame: pl.DataFrame, rank: int | None, mask: pl.Series) -> pl.DataFrame:
    """Return the rows of a side table that belong to a rank, given its mask of ``events``."""
    if frame.height and "event" in frame.columns:
        event = frame["event"].fill_null(0).to_numpy()
        kept = np.flatnonzero(mask.to_numpy())
        place = np.searchsorted(kept, event)
        hit = kept[np.minimum(place, len(kept) - 1)] == event if len(kept) else place < 0
        bound = pl.Series(hit) & frame["event"].is_not_null()
        moved = pl.Series("event", place.astype(np.uint32))
        if name != "flows":
            return frame.with_columns(moved).filter(bound)
        frame = frame.with_columns(event=pl.when(bound).then(moved))
    if "rank" not in frame.columns:
        return frame
    same = pl.col("rank").eq_missing(pl.lit(rank, dtype=pl.Int32))
    # names and counters without a rank belong to all ranks
    return frame.filter(same if name == "flows" else same | pl.col("rank").is_null())
