"""Several ranks' calls in one answer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.api_calls.extract import Part
from traceanalyzer.analyzers.api_calls.findings import ALLOC_IN_LOOP, SYNC_CALL, found, sum_if_known
from traceanalyzer.analyzers.api_calls.result import CudaApi
from traceanalyzer.errors import OptionError

_MOVED = ("n", "moved_bytes", "host_ns", "copy_ns", "waited")
_ALLOCATED = ("n", "total_ns", "loop_n", "loop_ns", "late_n", "late_ns")


def combine(parts: Sequence[Part], remarks: Sequence[str] = ()) -> CudaApi:
    """The calls of all ranks; ``remarks`` are further notes.

    Raises:
        OptionError: there are no parts.
    """
    if not parts:
        raise OptionError("no trace was given")
    each = [(part, _by_name(part.calls, [part])) for part in parts]
    calls = each[0][1] if len(parts) == 1 else _by_name(_all(parts, "calls"), parts)
    total_ns = int(calls["total_ns"].sum())
    moves = _summed(_all(parts, "moves"), ["call", "name", "finding"], _MOVED, "host_ns")
    allocations = _summed(_all(parts, "allocations"), ["call"], _ALLOCATED, "total_ns")
    ranks = pl.concat([_rank(part, own) for part, own in each])
    return CudaApi(
        n=int(calls["n"].sum()),
        total_ns=total_ns,
        span_ns=sum(part.span_ns for part in parts),
        findings=found(calls, moves, allocations).with_columns(host_frac=_of("host_ns", total_ns)),
        calls=calls,
        moves=moves,
        allocations=allocations,
        ranks=ranks.sort("rank", "path", nulls_last=True),
        by_rank=_calls_by_rank(each),
        unfinished=sum(part.unfinished for part in parts),
        alone=sum(part.alone for part in parts),
        remarks=tuple(remarks),
    )


def _all(parts: Sequence[Part], name: str) -> pl.DataFrame:
    frames: list[pl.DataFrame] = [getattr(part, name) for part in parts]
    return pl.concat(frames)


def _by_name(calls: pl.DataFrame, parts: Sequence[Part]) -> pl.DataFrame:
    """One row a name, the largest total first."""
    dur = pl.col("dur_ns")
    sums = calls.group_by("call").agg(
        n=pl.len().cast(pl.Int64),
        total_ns=dur.sum(),
        mean_ns=_whole(dur.mean()),
        median_ns=_whole(dur.median()),
        min_ns=dur.min(),
        max_ns=dur.max(),
        p99_ns=_whole(dur.quantile(0.99, "linear")),
    )
    waiting = {name for part in parts for name in part.sorts.synchronising}
    named = sums.with_columns(pl.col("call").cast(pl.String))
    return named.select(
        "call", "n", "total_ns",
        _of("total_ns", int(sums["total_ns"].sum())).alias("total_frac"),
        "mean_ns", "median_ns", "min_ns", "max_ns", "p99_ns",
        synchronises=pl.col("call").is_in(sorted(waiting)).fill_null(value=False),
    ).sort("total_ns", "call", descending=[True, False])  # fmt: skip


def _summed(
    rows: pl.DataFrame, keys: Sequence[str], sums: Sequence[str], order: str
) -> pl.DataFrame:
    """The ranks' rows of the same keys as one, with the longest of them, the most costly first."""
    words = pl.col([key for key in keys if key != "finding"]).cast(pl.String)
    joined: pl.DataFrame = rows.group_by(keys).agg(*map(sum_if_known, sums), pl.col("max_ns").max())
    return joined.with_columns(words).sort(
        order, *keys, descending=[True, *(False for _ in keys)], nulls_last=True
    )


def _rank(part: Part, calls: pl.DataFrame) -> pl.DataFrame:
    """One row: what a rank's calls, and each sort of finding in them, take."""
    findings = found(calls, part.moves, part.allocations)
    cost = dict(findings.select(pl.col("finding").cast(pl.String), "host_ns").rows())
    waiting, allocating = cost.pop(SYNC_CALL, 0), cost.pop(ALLOC_IN_LOOP, 0)
    row = {
        "rank": part.rank,
        "path": part.path,
        "n": int(calls["n"].sum()),
        "total_ns": int(calls["total_ns"].sum()),
        "span_ns": part.span_ns,
        "waiting_ns": waiting,
        "copying_ns": sum(cost.values()),
        "allocating_ns": allocating,
    }
    types = dict.fromkeys(row, pl.Int64) | {"rank": pl.Int32, "path": pl.String}
    return pl.DataFrame([row], schema=types)


def _calls_by_rank(each: Sequence[tuple[Part, pl.DataFrame]]) -> pl.DataFrame:
    frames = [
        calls.select(
            pl.lit(part.rank, pl.Int32).alias("rank"), pl.lit(part.path).alias("path"), pl.all()
        )
        for part, calls in each
    ]
    return pl.concat(frames).sort("call", "rank", "path", nulls_last=True)


def _of(column: str, whole: int) -> pl.Expr:
    """Null where there is nothing of the whole."""
    return pl.col(column) / whole if whole else pl.lit(None, pl.Float64)


def _whole(value: pl.Expr) -> pl.Expr:
    return value.round().cast(pl.Int64)
