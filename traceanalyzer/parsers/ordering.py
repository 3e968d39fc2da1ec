"""The order of rows of ``events``: by start, the longest first, then as the file has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

Order = npt.NDArray[np.uint32]


def time_order(ts: pl.Series, durations: Callable[[], pl.Series]) -> Order | None:
    """Row numbers by (ts, -dur, row), open-ended rows behind the closed ones of their start.

    Nearly all times are distinct: one stable sort by time, which is quick where the rows are a few
    sorted runs, then only the runs of equal times again.

    Args:
        ts: the starts.
        durations: called for ``dur`` if there are equal starts.

    Returns:
        None where the rows are in order already.
    """
    start = ts.to_numpy()
    if (start[1:] > start[:-1]).all():
        return None
    order = np.argsort(start, kind="stable").astype(np.uint32)
    ordered = start[order]
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return order
    tied = np.zeros(len(start), dtype=bool)
    tied[1:] = same
    tied[:-1] |= same
    run = np.cumsum(~np.concatenate([[False], same]))[tied]
    rows = order[tied]
    length = durations().gather(rows).fill_null(-1).to_numpy()
    order[tied] = rows[np.lexsort((rows, -length, run))]
    return order
