"""What one rank contributes: each copy and set, and how much of it no kernel hides."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.device_work import DEVICE
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.analyzers.transfers.sizes import NAMELESS, ways
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK

_MOVES = ("gpu_memcpy", "gpu_memset")

#: Copies and sets, and the kernels that may run beside them.
NEEDS = Needs(
    frozenset(DEVICE_WORK),
    unused=("category", "pid", "tid", "stream", "correlation", "external_id"),
)


@dataclass(frozen=True)
class Part:
    """One rank's copies and sets.

    Attributes:
        path: the file.
        moves: a row a copy or set that has an end: rank, device, direction, memory, moved_bytes,
            dur_ns, exposed_ns (in which no kernel ran on its device; null where no kernel was
            recorded).
        devices: a row a device: rank, path, device, span_ns (of its work), busy_ns (in which at
            least one copy or set ran), alone_ns (the part of it without a kernel, or null).
        unfinished: copies and sets without an end.
    """

    path: str
    moves: pl.DataFrame
    devices: pl.DataFrame
    unfinished: int


def extract(trace: Trace) -> Part:
    """The copies and sets of a trace of one rank.

    Raises:
        MissingData: there is none that has an end.
    """
    of_moves = pl.col("kind").is_in(_MOVES)
    work = (
        trace.events.lazy()
        .filter(pl.col("kind").is_in(DEVICE_WORK), pl.col("dur") >= 0)
        .with_columns(start="ts", end=pl.col("ts") + pl.col("dur"))
    )
    moves = work.filter(of_moves).select(
        *DEVICE, "start", "end", "name", moved_bytes="bytes", dur_ns="dur"
    ).collect()  # fmt: skip
    if moves.is_empty():
        hint = record_hint(trace.meta, "device work")
        raise MissingData(f"{trace.meta.path}: no copy or set was recorded; {hint}")
    kernels = intervals.union(
        work.filter(~of_moves).select(*DEVICE, "start", "end").collect(), DEVICE
    )
    known = trace.events.select((pl.col("kind") == "kernel").any()).item()
    hidden = intervals.overlap_with(moves.select(*DEVICE, "start", "end"), kernels, DEVICE)
    exposed = (pl.col("dur_ns") - hidden["overlap"]) if known else pl.lit(None, pl.Int64)
    told = moves.with_columns(exposed_ns=exposed).join(ways(moves["name"]), on="name", how="left")
    recorded = int(trace.events.select(of_moves.sum()).item())
    path = pl.lit(trace.meta.path).alias("path")
    return Part(
        path=trace.meta.path,
        moves=told.select(
            *DEVICE,
            pl.col("direction").fill_null(NAMELESS),
            "memory",
            "moved_bytes",
            "dur_ns",
            "exposed_ns",
        ),
        devices=_devices(work, moves, kernels if known else None).select(
            "rank", path, "device", "span_ns", "busy_ns", "alone_ns"
        ),
        unfinished=recorded - moves.height,
    )


def _devices(work: pl.LazyFrame, moves: pl.DataFrame, kernels: pl.DataFrame | None) -> pl.DataFrame:
    """How long each device copied, and for how much of that it did nothing else."""
    length = pl.col("end") - pl.col("start")
    copying = intervals.union(moves, DEVICE)
    if kernels is None:
        alone_ns = pl.lit(None, pl.Int64)
    else:
        # a difference of the two would sort millions of kernels among some copies
        copying = intervals.overlap_with(copying, kernels, DEVICE)
        alone_ns = (length - pl.col("overlap")).sum()
    busy = copying.group_by(DEVICE).agg(busy_ns=length.sum(), alone_ns=alone_ns)
    moved = moves.select(DEVICE).unique()
    span = work.group_by(DEVICE).agg(span_ns=pl.col("end").max() - pl.col("start").min())
    joined = moved.join(span.collect(), on=DEVICE, how="left", nulls_equal=True)
    found = joined.join(busy, on=DEVICE, how="left", nulls_equal=True).sort(DEVICE)
    # a device all of whose copies are of no duration
    zero = pl.col("busy_ns", *(() if kernels is None else ("alone_ns",))).fill_null(0)
    return found.with_columns(zero)
