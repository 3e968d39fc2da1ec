"""Several ranks' kernels in one answer."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.kernel_names import short_names
from traceanalyzer.analyzers.kernels.extract import Part
from traceanalyzer.analyzers.kernels.question import By, Question
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.names import mapped
from traceanalyzer.frames import statistics
from traceanalyzer.frames.numbering import numbered

#: What the busy time and the span that shares are of belong to: the device of the row where that
#: is told, else all devices.
_SCOPE: dict[By | None, tuple[str, ...]] = {
    "rank": ("rank",),
    "device": ("rank", "device"),
    "stream": ("rank", "device"),
}


def combine(parts: Sequence[Part], question: Question, notes: Sequence[str] = ()) -> Kernels:
    """The kernels of all ranks, summed up by family and by name."""
    work = pl.concat([part.work for part in parts])
    devices = pl.concat([part.devices for part in parts]).sort(
        "rank", "path", "device", nulls_last=True
    )
    group = question.group
    scope = _scopes(devices, _SCOPE.get(question.by, ()))
    brief = short_names(work["name"].unique().drop_nulls().cast(pl.String).to_list())
    names = _summed(work, (*group, "name", "family"), scope)
    return Kernels(
        question=question,
        n=work.height,
        total_ns=int(devices["total_ns"].sum()),
        busy_ns=int(devices["busy_ns"].sum()),
        span_ns=int(devices["span_ns"].sum()),
        unfinished=sum(part.unfinished for part in parts),
        families=_summed(work, (*group, "family"), scope),
        names=names.insert_column(
            len(group), mapped(names["name"].cast(pl.String), brief.__getitem__).alias("kernel")
        ).with_columns(pl.col("name").cast(pl.String)),
        groups=_groups(work, group, scope) if group else None,
        devices=devices.with_columns(busy_frac=_ratio("busy_ns", "span_ns")),
        remarks=tuple(notes),
    )


def _scopes(devices: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    sums = [pl.col("busy_ns", "span_ns").sum()]
    return devices.group_by(by).agg(sums) if by else devices.select(sums)


def _summed(work: pl.DataFrame, keys: Sequence[str], scope: pl.DataFrame) -> pl.DataFrame:
    """One row for each combination of the keys, the largest total first."""
    first, number = numbered([work[key] for key in keys])
    told = work.select(keys)[first]
    if "family" in keys:  # rows are sorted by its text
        told = told.with_columns(pl.col("family").cast(pl.String))
    found = statistics.grouped(work["length_ns"], number, len(first))
    sums = told.hstack(
        found.select(
            "n",
            pl.col("total").alias("total_ns"),
            *(
                pl.col(name).round().cast(pl.Int64, strict=False).alias(f"{name}_ns")
                for name in ("mean", "min", "median", "p99", "max")
            ),
        )
    )
    return _with_shares(sums, keys, scope)


def _groups(work: pl.DataFrame, group: Sequence[str], scope: pl.DataFrame) -> pl.DataFrame:
    """One row a group, with the family that takes most of it."""
    families = work.group_by(*group, pl.col("family").cast(pl.String)).agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("length_ns").sum()
    )
    ordered = families.sort("total_ns", "family", descending=[True, False])
    total = pl.col("total_ns").sum()
    sums = ordered.group_by(group, maintain_order=True).agg(
        n=pl.col("n").sum(),
        total_ns=total,
        family=pl.col("family").first(),
        family_frac=pl.when(total > 0).then(pl.col("total_ns").first() / total),
    )
    return _with_shares(sums, group, scope)


def _with_shares(sums: pl.DataFrame, keys: Sequence[str], scope: pl.DataFrame) -> pl.DataFrame:
    by = [name for name in scope.columns if name in keys]
    whole = (
        sums.join(scope, on=by, how="left", nulls_equal=True)
        if by
        else sums.join(scope, how="cross")
    )
    shares = whole.with_columns(
        busy_frac=_ratio("total_ns", "busy_ns"), span_frac=_ratio("total_ns", "span_ns")
    ).drop("busy_ns", "span_ns")
    first = ["n", "total_ns", "busy_frac", "span_frac"]
    rest = [name for name in shares.columns if name not in (*keys, *first)]
    order = [False] * len(keys)
    return shares.select(*keys, *first, *rest).sort(
        "total_ns", *keys, descending=[True, *order], nulls_last=True
    )


def _ratio(part: str, whole: str) -> pl.Expr:
    return pl.when(pl.col(whole) > 0).then(pl.col(part) / pl.col(whole))
