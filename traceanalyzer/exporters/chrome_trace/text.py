"""JSON text as polars expressions on whole columns."""

from collections.abc import Sequence
from typing import IO

import numpy as np
import orjson
import polars as pl


def lookup(rows: pl.DataFrame, table: pl.DataFrame, on: Sequence[str]) -> pl.DataFrame:
    """Join the rows, in their order, with a table; null is a key like any other."""
    return rows.join(table, on=on, how="left", nulls_equal=True, maintain_order="left")


def microseconds(ns: pl.Expr) -> pl.Expr:
    """Format nanoseconds as microseconds with three decimals, exact for every Int64."""
    return (ns.cast(pl.Decimal(38, 3)) / 1000).cast(pl.String)


def member(key: str, value: pl.Expr) -> pl.Expr:
    """Format ``"key":value`` from JSON values; null for null."""
    return pl.lit(f"{quoted(key)}:") + value.cast(pl.String)


def members(*expressions: pl.Expr) -> pl.Expr:
    """Join members with commas, without nulls; empty if all are null."""
    return pl.concat_str(expressions, separator=",", ignore_nulls=True)


def quoted(text: str) -> str:
    """Format a text as a JSON string."""
    return orjson.dumps(text).decode()


def quoted_column(column: pl.Series) -> pl.Expr:
    """Return the column of that name as JSON strings; each distinct text is escaped once."""
    distinct = column.drop_nulls().unique()
    texts = pl.Series([quoted(text) for text in distinct.cast(pl.String)], dtype=pl.String)
    return pl.col(column.name).replace_strict(distinct, texts, default=None, return_dtype=pl.String)


class Items:
    """Writes the items of a JSON array or object to a file, one per line."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._separator = b"\n"

    def write(self, items: pl.Series) -> None:
        """Write a column of items, without nulls."""
        lines = (",\n" + items.drop_nulls()).to_arrow(compat_level=pl.CompatLevel.oldest())
        if len(lines) == 0:
            return
        # the texts of an Arrow column are contiguous in one buffer
        _, offsets, data = lines.buffers()
        ends = np.frombuffer(offsets, np.int64)[lines.offset :]
        self._file.write(self._separator)
        self._file.write(memoryview(data)[ends[0] + 2 : ends[len(lines)]])
        self._separator = b",\n"
