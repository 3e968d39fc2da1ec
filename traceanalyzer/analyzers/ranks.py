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


def _of_rank(trace: Trace, rank: int | None) -> Trace:
    meta = next((m for m in trace.sources if m.rank == rank), trace.meta)
    own = trace.select(pl.col("rank").eq_missing(rank))
    return replace(own, sources=(replace(meta, rank=rank),))
