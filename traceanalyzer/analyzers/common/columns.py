"""Expressions and frames that several analyzers compute alike."""

from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

import polars as pl

from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.limits import MOST_WEIGHT
from traceanalyzer.trace import Meta


class OfRank(Protocol):
    """A part that knows its rank and file."""

    @property
    def rank(self) -> int | None:
        """Global rank, or None."""

    @property
    def path(self) -> str:
        """The file."""


def ratio(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """A part as a fraction of the whole; null where the whole is zero or unknown."""
    part, whole = (pl.col(one) if isinstance(one, str) else one for one in (part, whole))
    return pl.when(whole > 0).then(part / whole)


def sum_if_known(column: str) -> pl.Expr:
    """The sum of a column under its name; null where all values are null."""
    value = pl.col(column)
    return pl.when(value.count() > 0).then(value.sum()).alias(column)


def whole(value: pl.Expr) -> pl.Expr:
    """Rounded to an integer; null where it does not fit into 64 bits (times of three centuries)."""
    return value.round().cast(pl.Int64, strict=False)


def with_source(frame: pl.DataFrame, part: OfRank) -> pl.DataFrame:
    """The frame with the ``rank`` and ``path`` of the part it belongs to as its first columns."""
    rank = pl.Series("rank", [part.rank], pl.Int32).new_from_index(0, frame.height)
    path = pl.Series("path", [part.path], pl.String).new_from_index(0, frame.height)
    return pl.DataFrame([rank, path, *frame])


def joined(parts: Sequence[OfRank], table: str) -> pl.DataFrame:
    """One table of all parts, with the ``rank`` and ``path`` of each part as its first columns."""
    return pl.concat(with_source(getattr(part, table), part) for part in parts)


def together(parts: Sequence[object], *tables: str) -> list[pl.DataFrame]:
    """Tables of all parts, the rows of one part after those of another."""
    return [pl.concat(getattr(part, table) for part in parts) for table in tables]


def largest_first(
    frame: pl.DataFrame, size: str | pl.Expr, *ties: str, nulls_last: bool = False
) -> pl.DataFrame:
    """The rows by size, of equal ones by the other columns."""
    descending = [True, *(False for _ in ties)]
    return frame.sort(size, *ties, descending=descending, nulls_last=nulls_last)


def looked_up(rows: pl.DataFrame, table: pl.DataFrame, keys: str | Sequence[str]) -> pl.DataFrame:
    """The rows, in their order, with the columns that a table has for the keys of each.

    Null is a key like any other; where the table lacks a key, its columns are null.
    """
    return rows.join(table, on=keys, how="left", nulls_equal=True, maintain_order="left")


def per_rank(parts: Sequence[OfRank], numbers: Sequence[Mapping[str, int | None]]) -> pl.DataFrame:
    """One row for each part: ``rank``, ``path`` and its whole numbers; sorted by rank and path."""
    rows = [
        {"rank": part.rank, "path": part.path, **more}
        for part, more in zip(parts, numbers, strict=True)
    ]
    types = dict.fromkeys(rows[0], pl.Int64) | {"rank": pl.Int32, "path": pl.String}
    frame = pl.DataFrame(rows, schema=types)
    return frame.sort("rank", "path", nulls_last=True, maintain_order=True)


# --- weights: which files' can be added --------------------------------------------------------


class Weighted(Protocol):
    """A part whose weights have a unit."""

    @property
    def path(self) -> str:
        """The file."""

    @property
    def unit(self) -> str | None:
        """Of the weights; None or empty where that is not known."""


W = TypeVar("W", bound=Weighted)


def of_one_unit(parts: Sequence[tuple[Meta, W]]) -> tuple[list[W], list[Skipped]]:
    """The parts of one unit, samples if there are any, and the others with the reason."""
    units = [part.unit for _, part in parts]
    unit = "samples" if "samples" in units else units[0]
    alike = [part for _, part in parts if part.unit == unit]
    others = [part for _, part in parts if part.unit != unit]
    return alike, [Skipped(part.path, f"counts {part.unit or 'nothing known'}") for part in others]


def is_whole(weights: pl.Series) -> bool:
    """Whether all weights are whole numbers, and exact as such."""
    return bool(((weights == weights.round()) & (weights.abs() <= MOST_WEIGHT)).all())
