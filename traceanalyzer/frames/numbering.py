"""Number rows by their values, in little memory, for grouping."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

Numbers = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

#: Maximum number of combinations counted in a table; more are sorted.
_TABLE = 1 << 22
#: Rows per batch, so that results stay in the CPU cache.
_AT_ONCE = 1 << 16
#: A table larger than the rows by this much costs no noticeable time.
_SMALL = 1 << 16


def numbered(columns: Sequence[pl.Series]) -> tuple[Numbers, Numbers]:
    """Number rows by their values in all columns, from 0; null is a value like any other.

    For many rows with few distinct values: a number takes 4 bytes per row, and the computation one
    or two arrays of that size.

    Returns:
        The first row of each number, and the number of each row.
    """
    rows = columns[0].len()
    number, size = np.zeros(rows, np.int32), 1
    table = min(rows + _SMALL, _TABLE)
    for column in columns:
        codes, distinct = _codes(column, table)
        if size * distinct > table:
            number, size = _dense(number, size)
        if size * distinct > table:
            codes, distinct = _dense(codes, distinct)
        if size * distinct > table:
            pairs = number.astype(np.int64) * distinct + codes
            number = np.unique(pairs, return_inverse=True)[1].astype(np.int32)
            size = int(number.max(initial=-1)) + 1
            continue
        if size > 1:
            number *= np.int32(distinct)
            number += codes
        else:
            number = codes
        size *= distinct
    number, size = _dense(number, size)
    return _first_rows(number, size), number


def _first_rows(number: Numbers, size: int) -> Numbers:
    """Return the first row of each number; stops as soon as all numbers have occurred."""
    first = np.full(size, -1, np.int32)
    left = size
    for low in range(0, len(number), _AT_ONCE):
        some = number[low : low + _AT_ONCE]
        fresh = np.flatnonzero(first[some] < 0)[::-1]  # reversed: the first row is written last
        if fresh.size:
            first[some[fresh]] = fresh + low
            left -= int(np.count_nonzero(first[some[fresh]] == fresh + low))
            if not left:
                break
    return first


def group_numbers(
    by: Sequence[str], *frames: pl.DataFrame
) -> tuple[pl.DataFrame, tuple[Places, ...]]:
    """Return the sorted distinct values of ``by`` in all frames, and each row's group number."""
    if not by:
        return pl.DataFrame(), tuple(np.zeros(frame.height, np.int64) for frame in frames)
    if (only := only_group(by, frames)) is not None:  # often: one device, one rank
        return only, tuple(np.zeros(frame.height, np.int64) for frame in frames)
    keys = pl.concat([frame[:, list(by)] for frame in frames], how="vertical_relaxed")
    first, number = numbered(keys.get_columns())
    groups = keys[first].with_row_index("_number").sort(by)
    place = np.empty(groups.height, np.int64)
    place[groups["_number"].to_numpy()] = np.arange(groups.height)
    bounds = np.cumsum([frame.height for frame in frames])[:-1]
    return groups.drop("_number"), tuple(np.split(place[number], bounds))


def summed_by_text(
    rows: pl.DataFrame, by: Sequence[str], *sums: pl.Expr
) -> tuple[pl.DataFrame, Places]:
    """Return one row per combination of texts, sorted, with sums; and each row's group number."""
    groups = rows.with_row_index("_row").group_by(by).agg(*sums, "_row")
    groups = groups.with_columns(pl.col(by).cast(pl.String)).sort(by)
    number = np.empty(rows.height, np.int64)
    sizes = groups["_row"].list.len().to_numpy()
    number[groups["_row"].explode(empty_as_null=False).to_numpy()] = np.repeat(
        np.arange(groups.height), sizes
    )
    return groups.drop("_row"), number


def only_group(by: Sequence[str], frames: Sequence[pl.DataFrame]) -> pl.DataFrame | None:
    """Return the group if all rows are of one group of integers, texts or nulls; else None."""
    filled = [frame for frame in frames if frame.height]
    for name in by:
        columns = [frame.get_column(name) for frame in filled]
        if not all(column.dtype.is_integer() or column.dtype == pl.String for column in columns):
            return None
        nulls = {column.null_count() / column.len() for column in columns}
        ends = {end for column in columns for end in (column.min(), column.max())}
        if len(nulls) > 1 or not nulls <= {0, 1} or len(ends) > 1:
            return None
    return (filled or frames)[0][:1, list(by)]


def _codes(column: pl.Series, table: int) -> tuple[Numbers, int]:
    """Return a code for each value of a column, and an upper bound of the codes."""
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
        codes, distinct = np.empty(len(values), np.int32), high - low + 1
        for start in range(0, len(values), _AT_ONCE):
            some = slice(start, start + _AT_ONCE)
            codes[some] = values[some] - values.dtype.type(low)
    else:
        known = column.drop_nulls().unique().sort().to_numpy()
        codes, distinct = np.searchsorted(known, values).astype(np.int32), len(known)
    if column.null_count():
        codes[column.is_null().to_numpy()] = distinct
        distinct += 1
    return codes, distinct


def _dense(number: Numbers, size: int) -> tuple[Numbers, int]:
    """Renumber densely, keeping the order, in place; also return the count of distinct numbers."""
    occurs = np.zeros(size, np.bool_)
    for low in range(0, len(number), _AT_ONCE):
        some = number[low : low + _AT_ONCE]
        if size > _AT_ONCE:
            occurs[some] = True
        else:  # counting is faster
            occurs |= np.bincount(some, minlength=size) > 0
    count = int(occurs.sum())
    if count < size:
        dense = np.cumsum(occurs, dtype=np.int32) - np.int32(1)
        for low in range(0, len(number), _AT_ONCE):
            some = number[low : low + _AT_ONCE]
            np.take(dense, some, out=some, mode="clip")
    return number, count
