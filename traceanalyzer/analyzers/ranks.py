"""The ranks of traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from traceanalyzer.trace import Trace


def by_rank(traces: Trace | Sequence[Trace]) -> list[Trace]:
    """One trace for each rank of each trace."""
    found = []
    for trace in [traces] if isinstance(traces, Trace) else traces:
        held = trace.events["rank"].unique().sort().to_list()
        found += [trace] if len(held) <= 1 else [_of_rank(trace, rank) for rank in held]
    return found


def of_rank(trace: Trace, rank: int | None, *, alone: bool) -> list[Trace]:
    """The traces of one rank in a trace, or one for each where none is asked for.

    A trace of one process that is the only input is of the rank that the user says.
    """
    held = by_rank(trace)
    if rank is None:
        return held
    if alone and len(held) == 1:
        return [trace.with_rank(rank)]
    return [own for own in held if own.meta.rank == rank]


def _of_rank(trace: Trace, rank: int | None) -> Trace:
    meta = next((m for m in trace.sources if m.rank == rank), trace.meta)
    own = trace.select(pl.col("rank").eq_missing(rank))
    return replace(own, sources=(replace(meta, rank=rank),))
