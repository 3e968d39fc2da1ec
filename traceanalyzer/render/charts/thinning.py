"""Which marks of a chart a page holds where there are more than anybody can see apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

#: What is kept of each mark, in words.
KEPT = {
    "scatter": "the extremes, and every n-th of the others",
    "line": "the extremes of each stretch",
    "bar": "the largest",
    "span": "the longest",
}


def thin(rows: pl.DataFrame, mark: str, limit: int) -> pl.DataFrame:
    """At most ``limit`` rows, in their order: those that shape the picture.

    Args:
        rows: ``x``, ``y``, ``x2``, ``color``, ``panel`` as numbers, and ``emphasis``.
        mark: what the rows are drawn as.
        limit: how many rows to keep.
    """
    if rows.height <= limit:
        return rows
    rows = rows.with_row_index("row")
    ringed = rows.filter("emphasis")
    if ringed.height > limit // 2:
        ringed = ringed.top_k(limit // 2, by="y")
    kept = _KEEPERS[mark](rows, limit - ringed.height)
    chosen = pl.concat([ringed["row"], kept]).unique().sort()
    return rows.filter(pl.col("row").is_in(chosen.implode())).drop("row")


def _scatter(rows: pl.DataFrame, limit: int) -> pl.Series:
    edges = _in_stretches(rows, ["panel", "color"], limit // 2, _ENDS[:2])
    return pl.concat([edges, _every(rows["row"], limit - len(edges))])


def _line(rows: pl.DataFrame, limit: int) -> pl.Series:
    return _in_stretches(rows, ["panel", "color"], limit, _ENDS)


def _span(rows: pl.DataFrame, limit: int) -> pl.Series:
    length = pl.col("x2").cast(pl.Float64) - pl.col("x").cast(pl.Float64)
    long = rows.with_columns(y=length.abs(), lane=pl.col("y"))
    ends = _in_stretches(long, ["panel", "lane", "color"], limit // 2, _ENDS[:1])
    return pl.concat([ends, long.top_k(limit - len(ends), by="y")["row"]])


def _bar(rows: pl.DataFrame, limit: int) -> pl.Series:
    """Whole places, so that no stack loses a part."""
    place = ["panel", "x"]
    sizes = rows.group_by(place).agg(pl.col("y").abs().sum().alias("size"), pl.len())
    ranked = sizes.sort(["size", *place], descending=[True, False, False])
    kept = ranked.filter(pl.col("len").cum_sum() <= limit)
    return rows.join(kept, on=place, how="semi")["row"]


_KEEPERS: dict[str, Callable[[pl.DataFrame, int], pl.Series]] = {
    "scatter": _scatter,
    "line": _line,
    "bar": _bar,
    "span": _span,
}
_ENDS = (
    pl.col("row").sort_by("y", descending=True, maintain_order=True).first().alias("high"),
    pl.col("row").sort_by("y", maintain_order=True).first().alias("low"),
    pl.col("row").first().alias("first"),
    pl.col("row").last().alias("last"),
)


def _in_stretches(
    rows: pl.DataFrame, group: list[str], limit: int, ends: tuple[pl.Expr, ...]
) -> pl.Series:
    """Some rows of each stretch of the horizontal axis, at most ``limit`` in all."""
    stretches = max(limit // (len(ends) * rows.select(group).n_unique()), 1)
    low, high = rows["x"].min(), rows["x"].max()
    wide = (pl.lit(high) - pl.lit(low)).cast(pl.Float64)
    at = (pl.col("x") - pl.lit(low)).cast(pl.Float64) * stretches / wide
    stretch = at.fill_nan(0).clip(0, stretches - 1).cast(pl.Int64).alias("stretch")
    found = rows.group_by([*group, stretch], maintain_order=True).agg(ends)
    chosen = pl.concat([found[end.meta.output_name()] for end in ends]).unique().sort()
    return _every(chosen, limit)


def _every(rows: pl.Series, limit: int) -> pl.Series:
    """At most ``limit`` of these, evenly."""
    return rows.gather_every(-(-len(rows) // limit)) if len(rows) > limit > 0 else rows.head(limit)
