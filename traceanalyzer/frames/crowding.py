"""When several intervals of a group run at once; intervals as in :mod:`~.intervals`."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.frames.intervals import IS_INTERVAL, union


def crowded(frame: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """When are two or more intervals running?

    In order of start, each is crowded until it or the last of those before it has ended.

    Returns:
        The columns ``by``, ``start``, ``end``, one row for each maximal run, sorted.
    """
    before = pl.col("end").cum_max().shift(1)
    return union(
        frame.filter(IS_INTERVAL)
        .select(*by, "start", "end")
        .sort("start")
        .with_columns(before=before.over(by) if by else before)
        .drop_nulls("before")
        .with_columns(end=pl.min_horizontal("end", "before")),
        by,
    )
