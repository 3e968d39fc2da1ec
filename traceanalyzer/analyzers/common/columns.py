"""Expressions and frames that several analyzers compute alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import polars as pl


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
    rank, path = pl.lit(part.rank, pl.Int32).alias("rank"), pl.lit(part.path).alias("path")
    return frame.select(rank, path, pl.all())


def joined(parts: Sequence[OfRank], table: str) -> pl.DataFrame:
    """One table of all parts, with the ``rank`` and ``path`` of each part as its first columns."""
    return pl.concat(with_source(getattr(part, table), part) for part in parts)


def per_rank(parts: Sequence[OfRank], numbers: Sequence[Mapping[str, int | None]]) -> pl.DataFrame:
    """One row for each part: ``rank``, ``path`` and its whole numbers; sorted by rank and path."""
    rows = [
        {"rank": part.rank, "path": part.path, **more}
        for part, more in zip(parts, numbers, strict=True)
    ]
    types = dict.fromkeys(rows[0], pl.Int64) | {"rank": pl.Int32, "path": pl.String}
    frame = pl.DataFrame(rows, schema=types)
    return frame.sort("rank", "path", nulls_last=True, maintain_order=True)
