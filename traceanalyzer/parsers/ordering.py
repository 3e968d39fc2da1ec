"""The order of rows of ``events``: by start, the longest first, then as the file has them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import polars as pl

Order = npt.NDArray[np.uint32]

_AT_ONCE = 1 << 20


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
    same = _repeated(start, order)
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


def _repeated(start: npt.NDArray[np.int64], order: Order) -> npt.NDArray[np.bool_]:
    """Which starts are those before them, in order; a part at a time, to save memory."""
    same = np.zeros(len(order) - 1, np.bool_)
    for low in range(0, len(same), _AT_ONCE):
        some = start[order[low : low + _AT_ONCE + 1]]
        same[low : low + _AT_ONCE] = some[1:] == some[:-1]
    return same
