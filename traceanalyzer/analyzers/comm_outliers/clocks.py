"""How far apart the ranks' clocks are, from collectives that end everywhere at once.

Every lane (process group) gives each of its ranks a distance from the lane's median end; the
ranks' clock offsets are those that fit all lanes best (least squares over the lanes' medians), so
that hosts that share only some groups are joined through them. Collectives with a root are left
out: there a rank may be done early.

An offset is *applied* only where it is clearly there (more than five times the residual and 50 us)
and cannot be the ordinary skew of ends: three collectives or more speak for it and the hosts differ
or are not known, or it exceeds the typical duration of the collectives. On one host it should be a
few microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.matching import ROOTED

CLEAR_RESIDUALS = 5
CLEAR_NS = 50_000
#: Of fewer collectives a residual says little: ends may differ by chance.
FEW = 3

_TYPES = {
    "rank": pl.Int32,
    "n": pl.UInt32,
    "offset_ns": pl.Int64,
    "residual_ns": pl.Int64,
    "applied": pl.Boolean,
}


def offsets(matched: pl.DataFrame, hosts: Mapping[int | None, str | None]) -> pl.DataFrame:
    """One row a rank: collectives used, offset, residual (MAD) in ns, and whether it is applied.

    A positive offset says that the rank's clock is ahead of the (lower) median rank's. Empty where
    no collective can tell.

    Args:
        matched: rows with ``instance``, ``lane``, ``rank``, ``collective``, ``end``,
            ``duration_ns``.
        hosts: host name by rank, None where it is not known.
    """
    rows = matched.filter(
        pl.col("instance").is_not_null(), ~pl.col("collective").is_in(ROOTED)
    ).with_columns(behind=pl.col("end") - pl.col("end").median().over("instance"))
    if rows.is_empty():
        return pl.DataFrame(schema=_TYPES)
    fitted = _fit(rows.group_by("lane", "rank").agg(pl.col("behind").median()))
    corrected = (
        rows.join(fitted, on="rank")
        .with_columns(end=pl.col("end") - pl.col("offset_ns"))
        .with_columns(off=(pl.col("end") - pl.col("end").median().over("instance")))
    )
    residual = (pl.col("off") - pl.col("off").median()).abs().median()
    found = corrected.group_by("rank").agg(
        pl.len().alias("n"),
        pl.col("offset_ns").first(),
        residual.round().cast(pl.Int64).alias("residual_ns"),
        pl.col("duration_ns").median().alias("typical"),
    )
    one_host = len(set(hosts.values())) == 1 and None not in hosts.values()
    return (
        found.with_columns(applied=_applies(one_host=one_host))
        .sort("rank")
        .select(pl.col(name).cast(dtype) for name, dtype in _TYPES.items())
    )


def applied(found: pl.DataFrame) -> dict[int, int]:
    """The offset in ns of each rank whose clock is to be corrected."""
    return dict(found.filter("applied").select("rank", "offset_ns").iter_rows())


def offset_of(rank: pl.Expr, offsets: Mapping[int, int]) -> pl.Expr:
    """Each rank's offset, 0 where it has none."""
    return rank.replace_strict(offsets, default=0, return_dtype=pl.Int64)


def _applies(*, one_host: bool) -> pl.Expr:
    size = pl.col("offset_ns").abs()
    clear = (size > CLEAR_RESIDUALS * pl.col("residual_ns")) & (size > CLEAR_NS)
    beyond = size > pl.col("typical")
    return clear & (beyond if one_host else beyond | (pl.col("n") >= FEW))


def _fit(medians: pl.DataFrame) -> pl.DataFrame:
    """``rank`` and ``offset_ns`` that explain every lane's medians best; their lower median is 0.

    A rank's own offset, not the mean of two, is the zero: so one of two hosts keeps its clock.
    """
    ranks = medians["rank"].unique().sort()
    row = {rank: i for i, rank in enumerate(ranks)}
    normal = np.zeros((len(ranks), len(ranks)))
    right = np.zeros(len(ranks))
    for lane in medians.sort("rank").partition_by("lane", maintain_order=True):
        at = [row[rank] for rank in lane["rank"]]
        centre = np.eye(len(at)) - 1 / len(at)
        normal[np.ix_(at, at)] += centre
        right[at] += centre @ lane["behind"].to_numpy()
    found = np.linalg.lstsq(normal, right, rcond=None)[0]
    zero = np.sort(found)[(len(found) - 1) // 2]
    return pl.DataFrame({"rank": ranks, "offset_ns": np.rint(found - zero)}).cast(
        {"offset_ns": pl.Int64}
    )
