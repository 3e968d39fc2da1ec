"""Sums and quantiles of the values of each group, exact, for millions of values.

Group and value are put into one integer and sorted once; every statistic is then a slice of the
sorted values. 7.5 million values of 40 groups on one core: 0.3 s, by ``group_by`` with a median and
a quantile 0.45 s.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]

_BITS = 63


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
    ordered, starts = _ordered(values, number, groups)
    n = np.diff(starts)
    known = n > 0
    first, last = starts[:-1], starts[1:] - 1
    sums = np.zeros(groups, np.int64)
    if known.any():
        sums[known] = np.add.reduceat(ordered, first[known])
    found = {
        "n": n,
        "total": sums,
        "mean": sums / np.maximum(n, 1),
        "min": _at(ordered, first),
        "median": _between(ordered, first, n, 0.5),
        "p99": _between(ordered, first, n, 0.99),
        "max": _at(ordered, last),
    }
    return pl.DataFrame(found).with_columns(
        pl.when(pl.col("n") > 0).then(pl.col(name)) for name in found if name not in ("n", "total")
    )


def _ordered(values: pl.Series, number: Numbers, groups: int) -> tuple[Ints, Ints]:
    """The values by group and size, and where each group starts."""
    least, most = values.min(), values.max()
    low, high = (least, most) if isinstance(least, int) and isinstance(most, int) else (0, 0)
    bits = (high - low).bit_length()
    starts = np.zeros(groups + 1, np.int64)
    np.cumsum(np.bincount(number, minlength=groups), out=starts[1:])
    if bits + groups.bit_length() <= _BITS:
        key = number.astype(np.int64) << bits
        key |= values.to_numpy() - low
        ordered = pl.Series(key).sort().to_numpy() & ((1 << bits) - 1)
        return ordered + low, starts
    plain = values.to_numpy()
    return plain[np.lexsort((plain, number))], starts


def _at(ordered: Ints, place: Ints) -> Ints:
    found: Ints = ordered[np.clip(place, 0, max(len(ordered) - 1, 0))] if len(ordered) else place
    return found


def _between(ordered: Ints, first: Ints, n: Ints, share: float) -> npt.NDArray[np.float64]:
    """The value below which a share of each group lies."""
    exact = (n - 1) * share
    below = np.floor(exact).astype(np.int64)
    low = _at(ordered, first + below)
    high = _at(ordered, first + np.minimum(below + 1, n - 1))
    found: npt.NDArray[np.float64] = low + (high - low) * (exact - below)
    return found
