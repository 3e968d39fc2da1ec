"""What one rank contributes: its calls, and what they copied, set and allocated."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.api_calls.findings import of_moves, sum_if_known
from traceanalyzer.analyzers.api_calls.sorts import Sorts, sorted_out
from traceanalyzer.analyzers.names import distinct
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import CUDA_CALLS, LAUNCH_KINDS

_MOVES = ("gpu_memcpy", "gpu_memset")

#: Calls, and the copies and sets that they start.
NEEDS = Needs(
    frozenset((*LAUNCH_KINDS, *_MOVES)),
    unused=("category", "tid", "device", "stream", "external_id"),
)


@dataclass(frozen=True)
class Part:
    """One rank's calls.

    Attributes:
        rank: or None.
        path: the file.
        calls: call and dur_ns, a row a call that has an end.
        sorts: what the calls do.
        moves: calls that copied or set memory, by call, name (of the copy or set) and finding: n,
            moved_bytes (null where no size is known), host_ns (in the calls), max_ns, copy_ns (of
            the copies), waited (calls that returned when the copy had run, or later).
        allocations: by call: n, total_ns, max_ns; loop_n and loop_ns of calls between the first
            and the last launch of their process, late_n and late_ns in the second half of that.
        span_ns: from the start of the first call to the end of the last.
        unfinished: calls without an end.
        alone: calls that copy or set memory of which no copy was recorded.
    """

    rank: int | None
    path: str
    calls: pl.DataFrame
    sorts: Sorts
    moves: pl.DataFrame
    allocations: pl.DataFrame
    span_ns: int
    unfinished: int
    alone: int


def extract(trace: Trace) -> Part:
    """The calls of a trace of one rank.

    Raises:
        MissingData: no call of the runtime or driver was recorded, or none has an end.
    """
    of_calls = pl.col("kind").is_in(LAUNCH_KINDS)
    if not trace.events.select(of_calls.any()).item():
        trace.require(*CUDA_CALLS)
    events = trace.events.lazy()
    found = events.filter(of_calls, pl.col("dur") >= 0)
    calls = found.select(call="name", dur_ns="dur").collect()
    if calls.is_empty():
        raise MissingData(f"{trace.meta.path}: no API call that was recorded ever ends")
    first, last = found.select(
        pl.col("ts").min().alias("first"), (pl.col("ts") + pl.col("dur")).max().alias("last")
    ).collect().row(0)  # fmt: skip
    sorts = sorted_out(distinct(calls.rename({"call": "name"})))
    moving = found.filter(pl.col("name").is_in(sorts.moving)).select(
        "pid", "correlation", call="name", host_ns="dur", call_end=pl.col("ts") + pl.col("dur")
    )
    moved, alone = _moves(trace, moving.collect(), sorts)
    recorded = trace.events.select(of_calls.sum()).item()
    return Part(
        rank=trace.meta.rank,
        path=trace.meta.path,
        calls=calls,
        sorts=sorts,
        moves=moved,
        allocations=_allocations(found, sorts),
        span_ns=last - first,
        unfinished=recorded - calls.height,
        alone=alone,
    )


def _moves(trace: Trace, calls: pl.DataFrame, sorts: Sorts) -> tuple[pl.DataFrame, int]:
    """Calls that moved memory by what they moved, and how many moved nothing that was recorded."""
    work = (
        trace.events.lazy()
        .filter(pl.col("kind").is_in(_MOVES), pl.col("dur") >= 0)
        .select(
            "kind", "pid", "name", "correlation", "dur",
            moved_bytes="bytes",
            end=pl.col("ts") + pl.col("dur"),
        )
        .collect()
    )  # fmt: skip
    within = ["correlation"] if work["pid"].null_count() else ["pid", "correlation"]
    links = linking.link(calls, work, within)
    work = work.select("kind", "name", "moved_bytes", "dur", "end")[links["right"]]
    joined = work.with_columns(
        calls.select("call", "host_ns", "call_end")[links["left"]], number=links["left"]
    )
    if joined["number"].n_unique() < joined.height:
        # a call may start several copies: its own time counts once
        joined = joined.group_by("number").agg(
            pl.col("kind", "name", "call", "host_ns", "call_end").first(),
            sum_if_known("moved_bytes"),
            pl.col("dur").sum(),
            pl.col("end").max(),
        )
    told = joined.with_columns(of_moves(joined, sorts))
    summed = told.group_by("call", "name", "finding").agg(
        sum_if_known("moved_bytes"),
        n=pl.len().cast(pl.Int64),
        host_ns=pl.col("host_ns").sum(),
        max_ns=pl.col("host_ns").max(),
        copy_ns=pl.col("dur").sum(),
        waited=(pl.col("call_end") >= pl.col("end")).sum().cast(pl.Int64),
    )
    return summed, calls.height - joined.height


def _allocations(calls: pl.LazyFrame, sorts: Sorts) -> pl.DataFrame:
    """What allocating functions cost, in all and in the loop: between first and last launch."""
    loops = (
        calls.filter(pl.col("name").is_in(sorts.launching))
        .group_by("pid")
        .agg(first=pl.col("ts").min(), last=pl.col("ts").max())
    )
    own = (
        calls.filter(pl.col("name").is_in(sorts.allocating))
        .select("pid", "ts", "dur", call="name")
        .join(loops, on="pid", how="left", nulls_equal=True)
    )
    inside = (pl.col("ts") > pl.col("first")) & (pl.col("ts") < pl.col("last"))
    half = pl.col("first") + (pl.col("last") - pl.col("first")) // 2
    late = inside & (pl.col("ts") >= half)
    return (
        own.group_by("call")
        .agg(
            n=pl.len().cast(pl.Int64),
            total_ns=pl.col("dur").sum(),
            max_ns=pl.col("dur").max(),
            loop_n=inside.sum().cast(pl.Int64),
            loop_ns=pl.col("dur").filter(inside).sum(),
            late_n=late.sum().cast(pl.Int64),
            late_ns=pl.col("dur").filter(late).sum(),
        )
        .collect()
    )
