"""Collectives by kind: how often, how long, how fast, and how much of the time."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceanalyzer.analyzers.comm_outliers.outliers import GROUP
from traceanalyzer.vocabulary import bus_factor

_BASELINE_KEYS = (
    ("collective", "dtype", "message_bytes", "group_size"),
    ("collective", "kernel"),
)


def summarize(instances: pl.DataFrame, spans: Mapping[int, int]) -> pl.DataFrame:
    """One row a group (all ranks together), the largest total first.

    Percentiles interpolate linearly. ``share_frac`` is the summed duration over the summed spans
    of the ranks that take part. ``algbw_gbps`` is message bytes over the median duration, waiting
    included, in 10^9 bytes a second; ``busbw_gbps`` is that times the bus factor of nccl-tests.
    They are null where the size, or the group's size, is not known. ``compute_frac`` is the share
    of the duration during which compute kernels ran on the same device (null without a device).
    With several ranks ``pure_ns`` is the median time after the last arrival, and
    ``pure_busbw_gbps`` the bus bandwidth in it.

    Args:
        instances: judged collectives, with ``duration_ns`` and ``pure_ns``.
        spans: each rank's span in ns.
    """
    duration = pl.col("duration_ns")
    quantiles = {"median_ns": 0.5, "p95_ns": 0.95, "p99_ns": 0.99}
    table = instances.group_by(GROUP).agg(
        pl.len().alias("n"),
        pl.col("rank").n_unique().alias("ranks"),
        *(_whole(duration.quantile(q, "linear")).alias(name) for name, q in quantiles.items()),
        duration.max().alias("max_ns"),
        duration.sum().alias("total_ns"),
        pl.col("rank").unique().replace_strict(spans, return_dtype=pl.Int64).sum().alias("span"),
        _whole(pl.col("pure_ns").median()).alias("pure_ns"),
        _sum(pl.col("compute_ns")).alias("compute"),
        pl.col("outlier").sum().alias("outliers"),
        pl.col("judged_by").first(),
    )
    return (
        table.with_columns(
            _ratio(pl.col("total_ns"), pl.col("span")).alias("share_frac"),
            _ratio(pl.col("compute"), pl.col("total_ns")).alias("compute_frac"),
            *_speed("median_ns", ""),
        )
        .with_columns(*_speed("pure_ns", "pure_"))
        .drop("span", "compute", "pure_algbw_gbps")
        .sort("total_ns", *GROUP, descending=[True, *(False for _ in GROUP)], nulls_last=True)
    )


def compare(groups: pl.DataFrame, baseline: pl.DataFrame) -> pl.DataFrame:
    """Ratio of medians to the same group of a baseline, the largest first.

    Groups are the same by (collective, dtype, size, group size); those of unknown size by
    (collective, kernel). Several groups of one key (other process groups) count as one, by the
    median of their medians. Groups that the other side does not have are left out.
    """
    found = [
        _pooled(groups, key).join(
            _pooled(baseline, key), on=key, suffix="_baseline", nulls_equal=True
        )
        for key in _BASELINE_KEYS
    ]
    both = pl.concat(found, how="diagonal")
    ratio = _ratio(pl.col("median_ns"), pl.col("median_ns_baseline"))
    names = ("collective", "dtype", "message_bytes", "group_size", "kernel")
    values = ("n", "median_ns", "compute_frac")
    before = {"n_baseline": "n_before", "median_ns_baseline": "baseline_ns"}
    before["compute_frac_baseline"] = "compute_before_frac"
    return (
        both.with_columns(ratio=ratio)
        .select(*names, "ratio", *values, *before)
        .rename(before)
        .sort("ratio", *names, descending=[True, *(False for _ in names)], nulls_last=True)
    )


def _pooled(groups: pl.DataFrame, key: tuple[str, ...]) -> pl.DataFrame:
    sized = pl.col("message_bytes").is_not_null()
    wanted = groups.filter(sized if "message_bytes" in key else ~sized)
    median = _whole(pl.col("median_ns").median())
    beside = (pl.col("compute_frac") * pl.col("total_ns")).sum() / pl.col("total_ns").sum()
    told = pl.col("compute_frac").is_not_null().any() & (pl.col("total_ns").sum() > 0)
    return wanted.group_by(key).agg(
        pl.col("n").sum(),
        median.alias("median_ns"),
        pl.when(told).then(beside).alias("compute_frac"),
    )


def _speed(time: str, prefix: str) -> tuple[pl.Expr, pl.Expr]:
    algbw = _ratio(pl.col("message_bytes"), pl.col(time))
    factor = pl.struct("collective", "group_size").map_elements(
        lambda key: bus_factor(key["collective"], key["group_size"]), return_dtype=pl.Float64
    )
    return algbw.alias(f"{prefix}algbw_gbps"), (algbw * factor).alias(f"{prefix}busbw_gbps")


def _ratio(part: pl.Expr, whole: pl.Expr) -> pl.Expr:
    """Null where there is nothing to divide by."""
    return pl.when(whole > 0).then(part / whole)


def _sum(value: pl.Expr) -> pl.Expr:
    """Null, not 0, where there is no value at all."""
    return pl.when(value.is_not_null().any()).then(value.sum())


def _whole(value: pl.Expr) -> pl.Expr:
    return value.round().cast(pl.Int64)
