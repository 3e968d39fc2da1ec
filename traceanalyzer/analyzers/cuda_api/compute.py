"""Runtime and driver calls of each rank, combined over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import columns
from traceanalyzer.analyzers.common.names import distinct, mapped
from traceanalyzer.analyzers.cuda_api import Options, result
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import linking
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, of_kinds
from traceanalyzer.vocabulary import CUDA_CALLS, LAUNCH_KINDS, call_class

_MOVES = ("gpu_memcpy", "gpu_memset")
_MOVED = ("n", "moved_bytes", "host_ns", "copy_ns", "waited")
_ALLOCATED = ("n", "total_ns", "loop_n", "loop_ns", "late_n", "late_ns")


#: Calls, and the copies and memsets that they start.
NEEDS = Needs(
    {*LAUNCH_KINDS, *_MOVES}, unused=("category", "tid", "device", "stream", "external_id")
)


@dataclass(frozen=True)
class Part:
    """One rank's calls.

    Attributes:
        rank: or None.
        path: the file.
        calls: call, dur_ns, n: how many calls with an end took how long, sorted.
        sorts: the names of the calls by what they do.
        moves: calls that copied or set memory, by call, name (of the copy or memset) and finding:
            n, moved_bytes (null if unknown), host_ns (in the calls), max_ns, copy_ns (of the
            copies), waited (calls that returned after the copy had run).
        allocations: by call: n, total_ns, max_ns; loop_n and loop_ns of calls between the first
            and the last launch of their process, late_n and late_ns in the second half of that.
        span_ns: from the start of the first call to the end of the last.
        unfinished: calls without an end.
        alone: number of calls that copy or set memory without a recorded copy.
    """

    rank: int | None
    path: str
    calls: pl.DataFrame
    sorts: result.Sorts
    moves: pl.DataFrame
    allocations: pl.DataFrame
    span_ns: int
    unfinished: int
    alone: int


def measure(trace: Trace, _options: Options) -> Part:
    """Return the calls of one rank.

    Raises:
        MissingData: no runtime or driver call with an end was recorded.
    """
    of_calls = of_kinds(LAUNCH_KINDS)
    if not trace.events.select(of_calls.any()).item():
        trace.require(*CUDA_CALLS)
    wanted = trace.events.select(of_calls & (pl.col("dur") >= 0)).to_series()
    ended = trace.events[["name", "pid", "correlation", "ts", "dur"]].filter(wanted)
    if ended.is_empty():
        raise MissingData(f"{trace.meta.path}: all recorded API calls lack an end time")
    first, last = ended.select(
        pl.col("ts").min().alias("first"), (pl.col("ts") + pl.col("dur")).max().alias("last")
    ).row(0)  # fmt: skip
    sorts = result.sorted_out(distinct(ended))
    counted = ended.group_by(call="name", dur_ns="dur").agg(n=pl.len().cast(pl.Int64))
    moving = ended.filter(pl.col("name").is_in(sorts.moving)).select(
        "pid", "correlation", call="name", host_ns="dur", call_end=pl.col("ts") + pl.col("dur")
    )
    moved, alone = _moves(trace, moving, sorts)
    return Part(
        rank=trace.meta.rank,
        path=trace.meta.path,
        calls=counted.sort("call", "dur_ns"),
        sorts=sorts,
        moves=moved,
        allocations=_allocations(ended, sorts),
        span_ns=last - first,
        unfinished=trace.events.select(of_calls.sum()).item() - ended.height,
        alone=alone,
    )


def combine(parts: Sequence[Part], _options: Options) -> result.CudaApi:
    """Combine the calls of all ranks."""
    moved, allocated = columns.concat_tables(parts, "moves", "allocations")
    numbers = pl.Series(range(len(parts)), dtype=pl.UInt32)
    every = columns.stacked([part.calls for part in parts], part=numbers).sort("dur_ns")
    waiting = _synchronising(parts)
    calls = _by_name(every, waiting)
    by_part = [calls]
    if len(parts) > 1:
        by_part = _by_name(every, waiting, ["part"]).partition_by("part", include_key=False)
    total_ns = int(calls["total_ns"].sum())
    moves = _summed(moved, ["call", "name", "finding"], _MOVED, "host_ns")
    allocations = _summed(allocated, ["call"], _ALLOCATED, "total_ns")
    rows_of_findings = result.findings_of(calls, moves, allocations)
    by_rank = columns.with_sources(by_part, parts)
    return result.CudaApi(
        n=int(calls["n"].sum()),
        total_ns=total_ns,
        span_ns=sum(part.span_ns for part in parts),
        findings=rows_of_findings.with_columns(
            host_frac=columns.ratio("host_ns", pl.lit(total_ns))
        ),
        calls=calls,
        moves=moves,
        allocations=allocations,
        ranks=columns.per_rank(parts, list(map(_numbers, parts, by_part))),
        by_rank=by_rank.sort("call", "rank", "path", nulls_last=True),
        unfinished=sum(part.unfinished for part in parts),
        alone=sum(part.alone for part in parts),
    )


CUDA_API = Analyzer("cuda_api", Options, NEEDS, measure, combine)


# --- one rank ------------------------------------------------------------------------------


def _moves(trace: Trace, calls: pl.DataFrame, sorts: result.Sorts) -> tuple[pl.DataFrame, int]:
    """Return calls that moved memory by kind of move, and the number without a recorded move."""
    moves = of_kinds(_MOVES) & (pl.col("dur") >= 0)
    work = trace.events.select(
        "kind", "pid", "name", "correlation", "dur",
        moved_bytes="bytes",
        end=pl.col("ts") + pl.col("dur"),
    ).filter(trace.events.select(moves).to_series())  # fmt: skip
    within = ["correlation"] if work["pid"].null_count() else ["pid", "correlation"]
    links = linking.link(calls, work, within)
    work = work[["kind", "name", "moved_bytes", "dur", "end"]][links["right"]]
    joined = work.with_columns(
        calls[["call", "host_ns", "call_end"]][links["left"]], number=links["left"]
    )
    if joined["number"].n_unique() < joined.height:
        # a call may start several copies: its host time counts once
        joined = joined.group_by("number").agg(
            pl.col("kind", "name", "call", "host_ns", "call_end").first(),
            columns.sum_if_known("moved_bytes"),
            pl.col("dur").sum(),
            pl.col("end").max(),
        )
    classified = joined.with_columns(result.of_moves(joined, sorts))
    summed = classified.group_by("call", "name", "finding").agg(
        columns.sum_if_known("moved_bytes"),
        n=pl.len().cast(pl.Int64),
        host_ns=pl.col("host_ns").sum(),
        max_ns=pl.col("host_ns").max(),
        copy_ns=pl.col("dur").sum(),
        waited=(pl.col("call_end") >= pl.col("end")).sum().cast(pl.Int64),
    )
    return summed, calls.height - joined.height


def _allocations(calls: pl.DataFrame, sorts: result.Sorts) -> pl.DataFrame:
    """Return the cost of allocating calls, in total and between the first and last launch.

    The first of several calls of a function is setup if it takes longer than all others together:
    it creates the context, or loads a library.
    """
    loops = (
        calls.filter(pl.col("name").is_in(sorts.launching))
        .group_by("pid")
        .agg(first=pl.col("ts").min(), last=pl.col("ts").max())
    )
    allocating = (
        calls.filter(pl.col("name").is_in(sorts.allocating))
        .select("pid", "ts", "dur", call="name")
        .join(loops, on="pid", how="left", nulls_equal=True)
    )
    function = ("pid", "call")
    others_ns = pl.col("dur").sum().over(function) - pl.col("dur")
    is_first = pl.col("ts") == pl.col("ts").min().over(function)
    setup = is_first & (pl.len().over(function) > 1) & (pl.col("dur") > others_ns)
    inside = ~setup & (pl.col("ts") > pl.col("first")) & (pl.col("ts") < pl.col("last"))
    half = pl.col("first") + (pl.col("last") - pl.col("first")) // 2
    late = inside & (pl.col("ts") >= half)
    return allocating.group_by("call").agg(
        n=pl.len().cast(pl.Int64),
        total_ns=pl.col("dur").sum(),
        max_ns=pl.col("dur").max(),
        loop_n=inside.sum().cast(pl.Int64),
        loop_ns=pl.col("dur").filter(inside).sum(),
        late_n=late.sum().cast(pl.Int64),
        late_ns=pl.col("dur").filter(late).sum(),
    )


# --- all ranks -----------------------------------------------------------------------------


def _synchronising(parts: Sequence[Part]) -> pl.DataFrame:
    """Return part (its number) and call: the names of calls that wait for the device."""
    rows = [
        (number, call) for number, part in enumerate(parts) for call in part.sorts.synchronising
    ]
    waiting = pl.DataFrame(rows, schema={"part": pl.UInt32, "call": pl.String}, orient="row")
    return waiting.with_columns(synchronises=pl.lit(value=True))


def _by_name(calls: pl.DataFrame, waiting: pl.DataFrame, keys: Sequence[str] = ()) -> pl.DataFrame:
    """Return one row per name (and ``keys``), the largest total first."""
    dur, n = pl.col("dur_ns"), pl.col("n")
    total = (dur * n).sum()
    sums = calls.group_by(*keys, "call").agg(
        n=n.sum(),
        total_ns=total,
        mean_ns=columns.whole(total / n.sum()),
        median_ns=columns.whole(columns.quantile("dur_ns", 0.5)),
        min_ns=dur.min(),
        max_ns=dur.max(),
        p99_ns=columns.whole(columns.quantile("dur_ns", 0.99)),
    )
    all_ns = pl.col("total_ns").sum()
    named = sums.with_columns(pl.col("call").cast(pl.String))
    flagged = columns.left_join(
        named, waiting[[*keys, "call", "synchronises"]].unique(), [*keys, "call"]
    )
    return flagged.select(
        *keys, "call", mapped(flagged["call"], call_class).alias("class"), "n", "total_ns",
        columns.ratio("total_ns", all_ns.over(keys) if keys else all_ns).alias("total_frac"),
        "mean_ns", "median_ns", "min_ns", "max_ns", "p99_ns",
        synchronises=pl.col("synchronises").fill_null(value=False),
    ).sort(
        *keys, "total_ns", "call", descending=[*(False for _ in keys), True, False]
    )  # fmt: skip


def _summed(
    rows: pl.DataFrame, keys: Sequence[str], sums: Sequence[str], order: str
) -> pl.DataFrame:
    """Sum the rows of all ranks by the keys, the largest first."""
    texts = pl.col([key for key in keys if key != "finding"]).cast(pl.String)
    joined: pl.DataFrame = rows.group_by(keys).agg(
        *map(columns.sum_if_known, sums), pl.col("max_ns").max()
    )
    return columns.largest_first(joined.with_columns(texts), order, *keys, nulls_last=True)


def _numbers(part: Part, calls: pl.DataFrame) -> dict[str, int | None]:
    """Return the time of a rank's calls, and of its findings."""
    of_findings = part.moves["finding"].is_not_null()
    return {
        "n": int(calls["n"].sum()),
        "total_ns": int(calls["total_ns"].sum()),
        "span_ns": part.span_ns,
        "waiting_ns": int(calls["total_ns"].filter(calls["synchronises"]).sum()),
        "copying_ns": int(part.moves["host_ns"].filter(of_findings).sum()),
        "allocating_ns": int(part.allocations["loop_ns"].sum()),
    }


def cuda_api(inputs: Inputs, **reading: Unpack[Reading]) -> result.CudaApi:
    """Return the host time of CUDA and HIP runtime and driver calls, and which block the host.

    By name: count, total, mean, median, minimum, maximum, 99th percentile. Findings are copies and
    memsets that block the host, calls that wait for the device, and memory that is allocated
    between the first and the last launch.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no calls were recorded.
    """
    return run(CUDA_API, inputs, Options(), **reading)
