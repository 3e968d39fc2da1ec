"""Rows numbered by what they hold: what grouping needs, in little memory."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

#: As many combinations are counted in a table; beyond, they are sorted.
_TABLE = 1 << 22
#: Rows looked at together: what is computed of them stays in the processor's cache.
_AT_ONCE = 1 << 16
#: A table that is this much larger than the rows takes no time yet.
_SMALL = 1 << 16


def numbered(columns: Sequence[pl.Series]) -> tuple[Numbers, Numbers]:
    """Rows that agree in all columns have one number, from 0; null is a value like any other.

    Meant for many rows of few distinct values: a number costs 4 bytes a row, and the work besides
    is an array or two of that size.

    Returns:
        The first row of each number, and each row's number.
    """
    rows = columns[0].len()
    number, size = np.zeros(rows, np.int32), 1
    table = min(rows + _SMALL, _TABLE)
    for column in columns:
        own, distinct = _codes(column, table)
        if size * distinct > table:
            number, size = _dense(number, size)
        if size * distinct > table:
            own, distinct = _dense(own, distinct)
        if size * distinct > table:
            pairs = number.astype(np.int64) * distinct + own
            number = np.unique(pairs, return_inverse=True)[1].astype(np.int32)
            size = int(number.max(initial=-1)) + 1
            continue
        if size > 1:
            number *= np.int32(distinct)
            number += own
        else:
            number = own
        size *= distinct
    number, size = _dense(number, size)
    return _first_rows(number, size), number


def _first_rows(number: Numbers, size: int) -> Numbers:
    """The first row of each number; mostly all are met soon, and the rest is not looked at."""
    first = np.full(size, -1, np.int32)
    left = size
    for low in range(0, len(number), _AT_ONCE):
        some = number[low : low + _AT_ONCE]
        fresh = np.flatnonzero(first[some] < 0)[::-1]  # of a number's rows the first is to stay
        if fresh.size:
            first[some[fresh]] = fresh + low
            left -= len(np.unique(some[fresh]))
            if not left:
                break
    return first


def group_numbers(
    by: Sequence[str], *frames: pl.DataFrame
) -> tuple[pl.DataFrame, tuple[Places, ...]]:
    """The distinct values of the columns ``by`` over all frames, sorted, and each row's number."""
    if not by:
        return pl.DataFrame(), tuple(np.zeros(frame.height, np.int64) for frame in frames)
    if (only := _only_group(by, frames)) is not None:  # most often: one device, one rank
        return only, tuple(np.zeros(frame.height, np.int64) for frame in frames)
    keys = pl.concat([frame[list(by)] for frame in frames], how="vertical_relaxed")
    first, number = numbered(keys.get_columns())
    groups = keys[first].with_row_index("_number").sort(by)
    place = np.empty(groups.height, np.int64)
    place[groups["_number"].to_numpy()] = np.arange(groups.height)
    bounds = np.cumsum([frame.height for frame in frames])[:-1]
    return groups.drop("_number"), tuple(np.split(place[number], bounds))


def summed_by_text(
    rows: pl.DataFrame, by: Sequence[str], *sums: pl.Expr
) -> tuple[pl.DataFrame, Places]:
    """A row for each combination of texts, sorted by them, with sums; and each row's number."""
    groups = rows.with_row_index("_row").group_by(by).agg(*sums, "_row")
    groups = groups.with_columns(pl.col(by).cast(pl.String)).sort(by)
    number = np.empty(rows.height, np.int64)
    sizes = groups["_row"].list.len().to_numpy()
    number[groups["_row"].explode(empty_as_null=False).to_numpy()] = np.repeat(
        np.arange(groups.height), sizes
    )
    return groups.drop("_row"), number


def _only_group(by: Sequence[str], frames: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    """The one group that all rows are of, where its values are integers or null; else None."""
    held = [frame for frame in frames if frame.height]
    for name in by:
        columns = [frame[name] for frame in held]
        if not all(column.dtype.is_integer() for column in columns):
            return None
        nulls = {column.null_count() / column.len() for column in columns}
        ends = {end for column in columns for end in (column.min(), column.max())}
        if len(nulls) > 1 or not nulls <= {0, 1} or len(ends) > 1:
            return None
    return (held or frames)[0][list(by)].head(1)


def _codes(column: pl.Series, table: int) -> tuple[Numbers, int]:
    """A number below the second answer for each value of a column."""
    if column.dtype == pl.String:
        column = column.cast(pl.Categorical)
    if isinstance(column.dtype, pl.Categorical | pl.Enum):
        column = column.to_physical()
    if not column.dtype.is_integer():
        column = column.rank("dense")
    least, most = column.min(), column.max()
    low, high = (least, most) if isinstance(least, int) and isinstance(most, int) else (0, 0)
    values = (column.fill_null(low) if column.null_count() else column).to_numpy()
    if values.itemsize < np.int32().itemsize:  # too narrow for a difference
        values = values.astype(np.int32)
    if high - low < table:
        found, distinct = np.empty(len(values), np.int32), high - low + 1
        for start in range(0, len(values), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            found[some] = values[some] - values.dtype.type(low)
    else:
        known = column.drop_nulls().unique().sort().to_numpy()
        found, distinct = np.searchsorted(known, values).astype(np.int32), len(known)
    if column.null_count():
        found[column.is_null().to_numpy()] = distinct
        distinct += 1
    return found, distinct


def _dense(number: Numbers, size: int) -> tuple[Numbers, int]:
    """The same numbers, in their order, without those that do not occur, and how many there are.

    They are changed in place.
    """
    occurs = np.zeros(size, np.bool_)
    for low in range(0, len(number), _AT_ONCE):
        some = number[low : low + _AT_ONCE]
        if size > _AT_ONCE:
            occurs[some] = True
        else:  # counting is quicker
            occurs |= np.bincount(some, minlength=size) > 0
    count = int(occurs.sum())
    if count < size:
        dense = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
        for low in range(0, len(number), _AT_ONCE):
            some = number[low : low + _AT_ONCE]
            np.take(dense, some, out=some, mode="clip")
    return number, count
