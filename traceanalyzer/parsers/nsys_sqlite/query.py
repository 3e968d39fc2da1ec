"""Columns of a table as SQL, and the rows that ADBC makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

#: What stands in place of bytes that are no UTF-8.
NO_TEXT = "\ufffd"
#: Longer texts are not names; reading one of a gigabyte would take as much memory.
_LONGEST_TEXT = 1 << 16


@dataclass(frozen=True)
class Query:
    """Columns of a table as SQL."""

    table: str
    integers: tuple[str, ...]
    texts: tuple[str, ...]
    reals: tuple[str, ...]
    blobs: tuple[str, ...]
    where: str | None

    def sql(self, have: Sequence[str], bounds: str, *, checked: bool = False) -> str:
        """The query; its first row is a dummy that tells ADBC each column's type."""
        types = {
            **dict.fromkeys(self.integers, "0"),
            **dict.fromkeys(self.texts, "x''"),
            **dict.fromkeys(self.reals, "0.0"),
            **dict.fromkeys(self.blobs, "x''"),
        }
        dummy = ", ".join(f'{value} AS "{name}"' for name, value in types.items())
        columns = ", ".join(self._value(name, have, checked=checked) for name in types)
        where = f"{bounds} AND ({self.where})" if self.where else bounds
        return f'SELECT {dummy} UNION ALL SELECT {columns} FROM "{self.table}" WHERE {where}'  # noqa: S608

    def _value(self, name: str, have: Sequence[str], *, checked: bool) -> str:
        if name not in have:
            return "NULL"
        column = f'"{name}"'
        if name in self.texts:
            told = f"'(text of ' || octet_length({column}) || ' bytes)'"
            short = f"octet_length({column}) <= {_LONGEST_TEXT}"
            return (
                f"CASE WHEN {short} THEN CAST({column} AS BLOB)"
                f" WHEN {column} IS NOT NULL THEN CAST({told} AS BLOB) END"
            )
        if name in self.blobs:
            short = f"octet_length({column}) <= {_LONGEST_TEXT}"
            return f"CASE WHEN {short} THEN CAST({column} AS BLOB) END"
        if name in self.reals:
            return (
                f"CASE WHEN typeof({column}) IN ('real', 'integer') THEN CAST({column} AS REAL) END"
            )
        return f"CASE WHEN typeof({column}) = 'integer' THEN {column} END" if checked else column

    def mistyped(self, have: Sequence[str], bounds: str) -> str:
        """A query for the number of integers that are none."""
        tests = " + ".join(
            f"(typeof(\"{name}\") NOT IN ('integer', 'null'))"
            for name in self.integers
            if name in have
        )
        return f'SELECT sum({tests}) AS "n" FROM "{self.table}" WHERE {bounds}'  # noqa: S608

    def is_typed(self, rows: pl.DataFrame) -> bool:
        """Whether the integers are: ADBC widens a column whose first rows are not."""
        return all(rows.schema[name] == pl.Int64 for name in self.integers)

    def rows(self, found: pl.DataFrame) -> pl.DataFrame:
        """The rows behind the dummy, texts as text."""
        own = found.slice(1)
        return own.with_columns(utf8(own[name]) for name in self.texts) if self.texts else own

    def empty(self) -> pl.DataFrame:
        """What there is where nothing can be read."""
        return pl.DataFrame(
            schema={
                **dict.fromkeys(self.integers, pl.Int64),
                **dict.fromkeys(self.texts, pl.String),
                **dict.fromkeys(self.reals, pl.Float64),
                **dict.fromkeys(self.blobs, pl.Binary),
            }
        )


def decoded(data: bytes) -> str:
    """Bytes as text; what is no UTF-8 is replaced by :data:`NO_TEXT`."""
    return data.decode("utf-8", "replace")


def utf8(binary: pl.Series) -> pl.Series:
    """A column of bytes as text, as :func:`decoded`."""
    try:
        return binary.cast(pl.String)
    except pl.exceptions.PolarsError:
        texts = [None if b is None else decoded(b) for b in binary]
        return pl.Series(binary.name, texts, dtype=pl.String)
