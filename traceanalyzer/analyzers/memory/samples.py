"""What is live at the peak as sampled stacks, so that it can be drawn as a flamegraph."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from traceanalyzer.analyzers.memory.ground import ground, known_stack
from traceanalyzer.analyzers.memory.peak import peak_position
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ALLOCATOR_KINDS


def is_snapshot(trace: Trace) -> bool:
    """Whether a trace is one of an allocator's memory, and of nothing else."""
    kinds = trace.events["kind"].unique().cast(pl.String)
    of_memory = (*ALLOCATOR_KINDS, "user_annotation", "other")
    return trace.segments.height > 0 and bool(kinds.is_in(of_memory).all())


def at_peak(trace: Trace) -> Trace:
    """The trace with a sample for each allocation that is live at its device's peak.

    A sample's weight is the allocation's size in bytes. What was there before the history began has
    no stack unless the snapshot's blocks tell it.

    Raises:
        MissingData: nothing about memory was recorded.
    """
    own = ground(trace)
    empty = trace.select(pl.lit(value=False))
    kind = trace.events.schema["kind"]
    found = []
    for of in own.ledgers:
        there = of.alive(peak_position(of))
        sample = there.select(
            kind=pl.lit("sample", kind),
            rank=pl.lit(own.rank, pl.Int32),
            stack=known_stack(there),
            weight=pl.col("bytes").cast(pl.Float64),
        )
        found.append(sample)
    events = pl.concat([empty.events, *found], how="diagonal")
    sources = tuple(replace(meta, weight_unit="bytes", start_ns=None) for meta in trace.sources)
    return replace(empty, sources=sources, events=events)
