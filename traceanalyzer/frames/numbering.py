"""Rows numbered by what they hold: what grouping needs, in little memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.int32]

#: As many combinations are counted in a table; beyond, they are sorted.
_TABLE = 1 << 22


def numbered(columns: Sequence[pl.Series]) -> tuple[Numbers, Numbers]:
    """Rows that agree in all columns have one number, from 0; null is a value like any other.

    Meant for many rows of few distinct values: a number costs 4 bytes a row, and the work besides
    is an array or two of that size.

    Returns:
        The first row of each number, and each row's number.
    """
    number = np.zeros(columns[0].len(), np.int32)
    for column in columns:
        own, distinct = _codes(column)
        number = _dense(number, own, distinct)
    first = np.zeros(number.max(initial=-1) + 1, np.int32)
    rows = np.arange(number.size, dtype=np.int32)
    first[number[::-1]] = rows[::-1]
    return first, number


def _codes(column: pl.Series) -> tuple[Numbers, int]:
    """A number below the second answer for each value of a column, in the order of the values."""
    if column.dtype == pl.String:
        column = column.cast(pl.Categorical)
    if isinstance(column.dtype, pl.Categorical | pl.Enum):
        column = column.to_physical()
    least, most = column.min(), column.max()
    low, high = (least, most) if isinstance(least, int) and isinstance(most, int) else (0, 0)
    values = column.fill_null(low).to_numpy()
    if high - low < _TABLE:  # a table of all possible values is quicker than a search
        place = values if low == 0 else values - values.dtype.type(low)
        occurs = np.zeros(high - low + 1, np.bool_)
        occurs[place] = True
        found = (np.cumsum(occurs, dtype=np.int32) - np.int32(1))[place]
        distinct = int(occurs.sum())
    else:
        known = column.drop_nulls().unique().sort().to_numpy()
        found, distinct = np.searchsorted(known, values).astype(np.int32), len(known)
    if column.null_count():
        found[column.is_null().to_numpy()] = distinct
    return found, distinct + 1


def _dense(outer: Numbers, inner: Numbers, distinct: int) -> Numbers:
    """One number for each pair that occurs, in the order of the pairs."""
    combinations = (int(outer.max(initial=0)) + 1) * distinct
    if combinations > _TABLE:
        pairs = outer.astype(np.int64) * distinct + inner
        found: Numbers = np.unique(pairs, return_inverse=True)[1].astype(np.int32)
        return found
    pair = outer * np.int32(distinct) + inner
    occurs = np.bincount(pair, minlength=combinations) > 0
    dense = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    number: Numbers = dense[pair]
    return number
