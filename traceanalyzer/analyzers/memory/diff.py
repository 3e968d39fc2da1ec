"""What holds more or less memory at the peak of one run than at that of another."""

from __future__ import annotations

from typing import Final

import polars as pl

_KEYS: Final = ("device", "function", "file", "line", "stack")


def difference(new: pl.DataFrame, old: pl.DataFrame) -> pl.DataFrame:
    """Live bytes at the peak by stack, in two runs; the largest change first.

    Args:
        new: rows of ``Memory.alive``.
        old: those of the run to compare with.

    Returns:
        device, function, file, line, stack, n, base_n, live_bytes, base_bytes, changed_bytes.
    """
    own, base = (_summed(frame) for frame in (new, old))
    joined = own.join(
        base.rename({"n": "base_n", "live_bytes": "base_bytes"}),
        on=_KEYS,
        how="full",
        coalesce=True,
        nulls_equal=True,
    ).with_columns(pl.col("n", "base_n", "live_bytes", "base_bytes").fill_null(0))
    changed = joined.with_columns(changed_bytes=pl.col("live_bytes") - pl.col("base_bytes"))
    return changed.sort(
        pl.col("changed_bytes").abs(), *_KEYS, descending=[True, *(False for _ in _KEYS)]
    )


def _summed(alive: pl.DataFrame) -> pl.DataFrame:
    return alive.group_by(_KEYS).agg(pl.col("n", "live_bytes").sum())
