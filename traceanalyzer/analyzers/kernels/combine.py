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
    work, kernels = _joined(parts)
    devices = pl.concat([part.devices for part in parts]).sort(
        "rank", "path", "device", nulls_last=True
    )
    group = question.group
    scope = _scopes(devices, _SCOPE.get(question.by, ()))
    brief = short_names(kernels["name"].unique().drop_nulls().cast(pl.String).to_list())
    families, names = _summed(work, kernels, group, scope)
    return Kernels(
        question=question,
        n=work.height,
        total_ns=int(devices["total_ns"].sum()),
        busy_ns=int(devices["busy_ns"].sum()),
        span_ns=int(devices["span_ns"].sum()),
        unfinished=sum(part.unfinished for part in parts),
        families=families,
        names=names.insert_column(
            len(group), mapped(names["name"].cast(pl.String), brief.__getitem__).alias("kernel")
        ).with_columns(pl.col("name").cast(pl.String)),
        groups=_groups(work, kernels, group, scope) if group else None,
        devices=devices.with_columns(busy_frac=_ratio("busy_ns", "span_ns")),
        remarks=tuple(notes),
    )


def _joined(parts: Sequence[Part]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The work of all parts, its kernels numbered alike, and those kernels."""
    each = [part.kernels for part in parts]
    first, number = numbered(pl.concat(each).get_columns())
    held, below = [], 0
    for part in parts:
        own = number[below : below + part.kernels.height]
        below += part.kernels.height
        held.append(part.work.with_columns(kernel=pl.Series(own[part.work["kernel"].to_numpy()])))
    return pl.concat(held), pl.concat(each)[first]


def _scopes(devices: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    sums = [pl.col("busy_ns", "span_ns").sum()]
    return devices.group_by(by).agg(sums) if by else devices.select(sums)


def _summed(
    work: pl.DataFrame, kernels: pl.DataFrame, group: Sequence[str], scope: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """One row for each family and for each name of each group, the largest total first.

    Args:
        work: pieces of work, with ``kernel``.
        kernels: name and family of each kernel.
        group: the columns of ``work`` that tell groups apart.
        scope: what shares are of.
    """
    number, told = work["kernel"].to_numpy(), kernels
    if group:
        first, number = numbered([*(work[key] for key in group), work["kernel"]])
        own = work.select(*group, "kernel")[first]
        told = own.drop("kernel").hstack(kernels[own["kernel"]])
    first, within = numbered(told.drop("name").get_columns())
    by_name, by_family = statistics.nested(work["length_ns"], number, within)
    return (
        _with_shares(_in_ns(told.drop("name")[first], by_family), (*group, "family"), scope),
        _with_shares(_in_ns(told, by_name), (*group, "name", "family"), scope),
    )


def _in_ns(told: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """What is told of each row, and its statistics in whole nanoseconds."""
    return told.hstack(
        found.select(
            "n",
            pl.col("total").alias("total_ns"),
            *(
                pl.col(name).round().cast(pl.Int64, strict=False).alias(f"{name}_ns")
                for name in ("mean", "min", "median", "p99", "max")
            ),
        )
    )


def _groups(
    work: pl.DataFrame, kernels: pl.DataFrame, group: Sequence[str], scope: pl.DataFrame
) -> pl.DataFrame:
    """One row a group, with the family that takes most of it."""
    families = work.group_by(*group, "kernel").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("length_ns").sum()
    )
    told = families.with_columns(kernels["family"].gather(families["kernel"]))
    summed = told.group_by(*group, "family").agg(pl.col("n", "total_ns").sum())
    ordered = summed.sort("total_ns", "family", descending=[True, False])
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
