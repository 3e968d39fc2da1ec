"""Expressions and frames shared by several analyzers."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
import polars as pl

from traceanalyzer.frames import numbering
from traceanalyzer.schema import MAX_WEIGHT


class OfRank(Protocol):
    """A part with a rank and a file."""

    @property
    def rank(self) -> int | None:
        """Global rank, or None."""

    @property
    def path(self) -> str:
        """Path of the file."""


def ratio(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """Return a part as a fraction of the whole; null if the whole is zero or unknown."""
    part, whole = (pl.col(one) if isinstance(one, str) else one for one in (part, whole))
    return pl.when(whole > 0).then(part / whole)


def previous(value: pl.Expr, *keys: str) -> pl.Expr:
    """Return the value in the row before; null in the first row of each group of equal keys.

    The rows are sorted by the keys: faster and in less memory than a window over texts.
    """
    same = (pl.col(key).eq_missing(pl.col(key).shift(1)) for key in keys)
    return pl.when(*same).then(value.shift(1))


def sum_if_known(column: str) -> pl.Expr:
    """Return the sum of a column under its name; null if all values are null."""
    value = pl.col(column)
    return pl.when(value.count() > 0).then(value.sum()).alias(column)


def whole(value: pl.Expr) -> pl.Expr:
    """Round to an integer; null if it does not fit into 64 bits (292 years in ns)."""
    return value.round().cast(pl.Int64, strict=False)


def quantile(value: str, frac: float) -> pl.Expr:
    """Return the quantile of values that occur ``n`` times each, interpolated between two of them.

    The rows are sorted by the value.
    """
    at, until = (pl.col("n").sum() - 1.0) * frac, pl.col("n").cum_sum()
    low, high = (pl.col(value).filter(until > row).first() for row in (at.floor(), at.ceil()))
    return low + (at - at.floor()) * (high - low)


def with_source(frame: pl.DataFrame, part: OfRank) -> pl.DataFrame:
    """Return the frame with ``rank`` and ``path`` of its part as first columns."""
    rank = pl.Series("rank", [part.rank], pl.Int32).new_from_index(0, frame.height)
    path = pl.Series("path", [part.path], pl.String).new_from_index(0, frame.height)
    return pl.DataFrame([rank, path, *frame])


def stacked(frames: Sequence[pl.DataFrame], **values: pl.Series) -> pl.DataFrame:
    """Concatenate frames, and set columns from one value per frame.

    One query instead of one per frame: a run has hundreds of ranks.

    Args:
        frames: frames with the same columns.
        **values: for each column, its value in each frame.
    """
    number = pl.Series(np.repeat(np.arange(len(frames)), [frame.height for frame in frames]))
    columns = {name: of_frame[number].alias(name) for name, of_frame in values.items()}
    rows = {column.name: column for column in pl.concat(frames)}
    return pl.DataFrame(list((rows | columns).values()))


def source_of(parts: Sequence[OfRank]) -> dict[str, pl.Series]:
    """Return ``rank`` and ``path`` of each part, for :func:`stacked`."""
    return {
        "rank": pl.Series([part.rank for part in parts], dtype=pl.Int32),
        "path": pl.Series([part.path for part in parts], dtype=pl.String),
    }


def with_sources(frames: Sequence[pl.DataFrame], parts: Sequence[OfRank]) -> pl.DataFrame:
    """Concatenate a frame of each part, with ``rank`` and ``path`` as first columns."""
    rows = stacked(frames, **source_of(parts))
    return rows[["rank", "path", *(name for name in rows.columns if name not in {"rank", "path"})]]


def joined(parts: Sequence[OfRank], table: str) -> pl.DataFrame:
    """Concatenate a table of all parts, with ``rank`` and ``path`` as first columns."""
    return with_sources([getattr(part, table) for part in parts], parts)


def concat_tables(parts: Sequence[object], *tables: str) -> list[pl.DataFrame]:
    """Concatenate tables of all parts, in the order of the parts."""
    return [pl.concat(getattr(part, table) for part in parts) for table in tables]


def largest_first(
    frame: pl.DataFrame, size: str | pl.Expr, *ties: str, nulls_last: bool = False
) -> pl.DataFrame:
    """Sort rows by decreasing size, and ties by the other columns."""
    descending = [True, *(False for _ in ties)]
    return frame.sort(size, *ties, descending=descending, nulls_last=nulls_last)


def grouped(rows: pl.DataFrame, keys: Sequence[str], **sums: pl.Expr) -> pl.DataFrame:
    """Aggregate rows by keys, as ``group_by`` does, in any order.

    Rows of one group, often those of one device, are aggregated without grouping: much faster.
    """
    only = None if rows.is_empty() else numbering.only_group(keys, [rows])
    if only is None:
        return rows.group_by(keys).agg(**sums)
    return only.hstack(rows.select(**sums))


def left_join(rows: pl.DataFrame, table: pl.DataFrame, keys: str | Sequence[str]) -> pl.DataFrame:
    """Left-join a table to rows by keys, in the order of the rows.

    Null matches null; the columns of a missing key are null.
    """
    return rows.join(table, on=keys, how="left", nulls_equal=True, maintain_order="left")


def per_rank(parts: Sequence[OfRank], numbers: Sequence[Mapping[str, int | None]]) -> pl.DataFrame:
    """Return one row per part: ``rank``, ``path`` and its integers; sorted by rank and path."""
    rows = [
        {"rank": part.rank, "path": part.path, **more}
        for part, more in zip(parts, numbers, strict=True)
    ]
    types = dict.fromkeys(rows[0], pl.Int64) | {"rank": pl.Int32, "path": pl.String}
    frame = pl.DataFrame(rows, schema=types)
    return frame.sort("rank", "path", nulls_last=True, maintain_order=True)


# --- weights of samples ------------------------------------------------------------------------


class Weighted(Protocol):
    """A part with weights of one unit."""

    @property
    def path(self) -> str:
        """Path of the file."""

    @property
    def unit(self) -> str | None:
        """Unit of the weights; None or empty if not known."""


W = TypeVar("W", bound=Weighted)


def of_one_unit(parts: Sequence[W]) -> tuple[list[W], tuple[str, ...]]:
    """Return the parts of one unit (samples, else time, if available), and notes on the others."""
    units = [part.unit for part in parts]
    unit = next((unit for unit in ("samples", "ns") if unit in units), units[0])
    others = [part for part in parts if part.unit != unit]
    notes = (
        f"Skipped: {one.path}: its stacks are weighted in {one.unit or 'an unknown unit'}, those "
        f"of other files in {unit or 'an unknown unit'}."
        for one in others
    )
    return [part for part in parts if part.unit == unit], tuple(notes)


def is_whole(weights: pl.Series) -> bool:
    """Whether all weights are exact integers."""
    return bool(((weights == weights.round()) & (weights.abs() <= MAX_WEIGHT)).all())
