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
    size = 1
    for column in columns:
        own, distinct = _codes(column)
        if size * distinct > _TABLE:
            number, size = _dense(number, size)
        if size * distinct > _TABLE:
            own, distinct = _dense(own, distinct)
        if size * distinct > _TABLE:
            pairs = number.astype(np.int64) * distinct + own
            number = np.unique(pairs, return_inverse=True)[1].astype(np.int32)
            size = int(number.max(initial=-1)) + 1
            continue
        number = number * np.int32(distinct) + own if size > 1 else own
        size *= distinct
    number, size = _dense(number, size)
    first = np.zeros(size, np.int32)
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
    if high - low < _TABLE:
        shifted = values if low == 0 else values - values.dtype.type(low)
        found, distinct = shifted.astype(np.int32), high - low + 1
    else:
        known = column.drop_nulls().unique().sort().to_numpy()
        found, distinct = np.searchsorted(known, values).astype(np.int32), len(known)
    if column.null_count():
        found[column.is_null().to_numpy()] = distinct
        distinct += 1
    return found, distinct


def _dense(number: Numbers, size: int) -> tuple[Numbers, int]:
    """The same numbers, in their order, without those that do not occur, and how many there are."""
    occurs = np.zeros(size, np.bool_)
    occurs[number] = True
    dense = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
    found: Numbers = dense[number]
    return found, int(occurs.sum())
