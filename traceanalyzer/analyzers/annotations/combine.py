"""Several ranks' annotations in one answer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.annotations.ground import Amount
from traceanalyzer.analyzers.annotations.part import MEASURES, Part
from traceanalyzer.analyzers.annotations.question import Question
from traceanalyzer.analyzers.annotations.result import Annotations

_RANKS = {
    "rank": pl.Int32, "path": pl.String, "ranges": pl.Int64, "n": pl.Int64, "device_ns": pl.Int64,
    "inside_n": pl.Int64, "inside_ns": pl.Int64, "inside_frac": pl.Float64,
}  # fmt: skip


def combine(parts: Sequence[Part], question: Question, notes: Sequence[str] = ()) -> Annotations:
    """The annotations of all ranks, summed up by domain and name."""
    all_work = _added([part.all_work for part in parts])
    ranges = pl.concat(
        [part.ranges.with_columns(path=pl.lit(part.path)) for part in parts]
        if question.by and any(part.rank is None for part in parts)
        else [part.ranges for part in parts]
    )
    outer = ["path"] if "path" in ranges.columns else ["rank"] if question.by else []
    rows = _summed(ranges, [*outer, "domain", "name"], all_work)
    return Annotations(
        question=question,
        ranges=ranges.height,
        process_wide=sum(part.process_wide for part in parts),
        unclosed=sum(part.unclosed for part in parts),
        work=all_work,
        inside=_added([part.inside for part in parts]),
        beside=_added([part.beside for part in parts]),
        unlaunched=_added([part.unlaunched for part in parts]),
        annotations=rows,
        ranks=_ranks(parts),
        remarks=tuple(notes),
    )


def _added(amounts: Sequence[Amount]) -> Amount:
    return Amount(sum(each.n for each in amounts), sum(each.total_ns for each in amounts))


def _summed(ranges: pl.DataFrame, keys: Sequence[str], work: Amount) -> pl.DataFrame:
    """One row for each combination of the keys, most device work first."""
    host = pl.col("host_ns")
    sums = ranges.group_by(keys).agg(
        ranges=pl.len().cast(pl.Int64),
        **{name: _sum(name) for name in MEASURES},
        mean_ns=_whole(host.mean()),
        median_ns=_whole(host.median()),
        min_ns=host.min(),
        max_ns=host.max(),
        launching=(pl.col("n") > 0).sum().cast(pl.Int64),
    )
    share = pl.col("device_ns") / work.total_ns if work.total_ns else pl.lit(None, pl.Float64)
    return (
        sums.with_columns(pl.col("domain", "name").cast(pl.String), device_frac=share)
        .select(
            *keys, "ranges", "host_ns", "self_ns", "mean_ns", "median_ns", "min_ns", "max_ns",
            "launching", "projected_ns", "n", "kernels", "device_ns", "device_frac",
            "own_n", "own_kernels", "own_device_ns",
        )
        .sort("device_ns", "host_ns", *keys, descending=[True, True, *(False for _ in keys)])
    )  # fmt: skip


def _sum(name: str) -> pl.Expr:
    """The sum, null where nothing is known."""
    value = pl.col(name)
    return pl.when(value.is_not_null().any()).then(value.sum())


def _whole(value: pl.Expr) -> pl.Expr:
    """Rounded; null where files tell of three centuries, which Int64 does not hold."""
    return value.round().cast(pl.Int64, strict=False)


def _ranks(parts: Sequence[Part]) -> pl.DataFrame:
    rows = [
        (
            part.rank,
            part.path,
            part.ranges.height,
            part.all_work.n,
            part.all_work.total_ns,
            part.inside.n,
            part.inside.total_ns,
            part.inside.total_ns / part.all_work.total_ns if part.all_work.total_ns else None,
        )
        for part in parts
    ]
    frame = pl.DataFrame(rows, schema=_RANKS, orient="row")
    return frame.sort("rank", "path", nulls_last=True, maintain_order=True)
