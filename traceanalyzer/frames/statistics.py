"""Sums and quantiles of the values of each group, exact, for millions of values.

Group and value are put into one integer and sorted once; every statistic is then a slice of the
sorted values. 7.5 million values of 40 groups on one core: 0.3 s, by ``group_by`` with a median and
a quantile 0.45 s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]

_BITS = 63
_HALF = 31


def grouped(values: pl.Series, number: Numbers, groups: int) -> pl.DataFrame:
    """Statistics of the values of each group.

    Args:
        values: whole numbers, none of them null.
        number: the group of each, from 0.
        groups: how many groups there are; one without values has no statistics but n = 0.

    Returns:
        One row a group: n, total (Int64), mean (Float64), min, median, p99, max. ``median`` and
        ``p99`` lie between the two values they fall between, by their distance from them.
    """
    ordered, base, starts = _ordered(values, number, groups)
    n = np.diff(starts)
    known = n > 0
    first, last = starts[:-1], starts[1:] - 1
    sums = np.zeros(groups, np.int64)
    if known.any():  # beyond 64 bits and back: only the sum itself must fit
        sums[known] = np.add.reduceat(ordered, first[known], dtype=np.int64)
        sums -= n * base

    def at(place: Ints) -> Ints:
        held = ordered[np.clip(place, 0, len(ordered) - 1)] if len(ordered) else place
        found: Ints = held.astype(np.int64) - base
        return found

    def between(share: float) -> npt.NDArray[np.float64]:
        exact = (n - 1) * share
        below = np.floor(exact).astype(np.int64)
        low, high = at(first + below), at(first + np.minimum(below + 1, n - 1))
        found: npt.NDArray[np.float64] = low + (high - low) * (exact - below)
        return found

    found = {
        "n": n,
        "total": sums,
        "mean": sums / np.maximum(n, 1),
        "min": at(first),
        "median": between(0.5),
        "p99": between(0.99),
        "max": at(last),
    }
    return pl.DataFrame(found).with_columns(
        pl.when(pl.col("n") > 0).then(pl.col(name)) for name in found if name not in ("n", "total")
    )


def _ordered(
    values: pl.Series, number: Numbers, groups: int
) -> tuple[npt.NDArray[np.integer], Ints, Ints]:
    """Numbers in the order of (group, value), what to take from each group's, and its start."""
    least, most = values.min(), values.max()
    low, high = (least, most) if isinstance(least, int) and isinstance(most, int) else (0, 0)
    bits = (high - low).bit_length()
    starts = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(number, minlength=groups), out=starts[1:])
    wide = bits + groups.bit_length()
    if wide > _BITS:
        plain = values.to_numpy()
        return plain[np.lexsort((plain, number))], np.zeros(groups, np.int64), starts
    # half the width is sorted in half the time
    dtype: Any = np.uint32 if wide <= _HALF else np.int64
    key: Any = number.astype(dtype)
    key <<= dtype(bits)
    key += (values - low if low else values).to_numpy().astype(dtype, copy=False)
    base = (np.arange(groups, dtype=np.int64) << bits) - low
    return pl.Series(key).sort().to_numpy(), base, starts
