"""An opened export and what is asked of it: what the readers of tables share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

from traceanalyzer import schema
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.nsys_sqlite import layout
from traceanalyzer.parsers.nsys_sqlite.database import Database

#: Ids of strings asked for one by one; of more, the whole table is read.
_FEW = 2000
#: A stream or device that is none, as CUPTI writes it.
_NONE = (0xFFFFFFFF, -1)


@dataclass
class Export:
    """A database, the selection, and the strings read so far.

    Attributes:
        database: the opened file.
        selection: what is asked for.
    """

    database: Database
    selection: Selection
    _texts: dict[int, str | None] = field(default_factory=dict)
    _named: bool | None = None

    def any_named(self) -> bool:
        """Whether any string holds one of the names that are asked for."""
        if self._named is None:
            quoted = [name.replace("'", "''") for name in self.selection.names]
            tests = " OR ".join(f"instr(\"value\", '{name}')" for name in quoted)
            found = self.database.read(layout.STRINGS, integers=("id",), where=tests)
            self._named = found.height > 0
        return self._named

    def fills(self, column: str) -> bool:
        """Whether the caller looks at this column or side table."""
        return column not in self.selection.unused

    def inside(self, start: str = "start", end: str | None = "end") -> str | None:
        """An SQL condition: the row overlaps one of the windows that are asked for."""
        stop = f'COALESCE("{end}", "{start}")' if end else f'"{start}"'
        tests = [f'("{start}" < {hi} AND {stop} > {lo})' for lo, hi in self.selection.windows]
        return " OR ".join(tests) or None

    def within(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows that overlap one of the windows, where the table itself could not tell."""
        length = pl.col("dur") if "dur" in rows.columns else pl.lit(0)
        end = pl.col("ts") + length
        tests = [(pl.col("ts") < hi) & (end > lo) for lo, hi in self.selection.windows]
        return rows.filter(pl.any_horizontal(tests)) if tests else rows

    def texts(self, ids: pl.Series) -> dict[int, str | None]:
        """The strings of these ids; None for an id that is not there."""
        new = sorted(set(ids.drop_nulls().to_list()) - self._texts.keys())
        if new:
            few = len(new) <= _FEW
            where = f'"id" IN ({", ".join(map(str, new))})' if few else None
            rows = self.database.read(
                layout.STRINGS, integers=("id",), texts=("value",), where=where
            )
            self._texts.update(dict.fromkeys(new))
            self._texts.update(zip(rows["id"], rows["value"], strict=True))
        return self._texts

    def named(self, ids: pl.Series, spelled: Callable[[str], str] = str) -> pl.Series:
        """String ids to names: a Categorical series, null where there is no string.

        ``spelled`` is how each distinct string is written.
        """
        first, number = numbered([ids])
        distinct = ids.gather(first)
        known = self.texts(distinct)
        words = [None if own is None else known[own] for own in distinct]
        texts = pl.Series([w if w is None else spelled(w) for w in words], dtype=schema.NAME)
        return texts.gather(pl.Series(number)).alias(ids.name)

    def selected(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows whose kind or name is asked for."""
        asked = self.selection.kinds
        if asked is None or set(rows["kind"].unique()) <= asked:
            return rows
        of_kind = pl.col("kind").cast(pl.String).is_in(sorted(asked))
        names = list(self.selection.names)
        if not names:
            return rows.filter(of_kind)
        named = pl.col("name").cast(pl.String).str.contains_any(names).fill_null(value=False)
        return rows.filter(of_kind | named)


def process_of(thread: int) -> int:
    """The process id in a serialised global id: 8 bits hardware, 8 VM, 24 process, 24 thread."""
    return (thread >> 24) & 0xFFFFFF


def pid(column: str) -> pl.Expr:
    """As :func:`process_of`, of a column."""
    return ((pl.col(column) // (1 << 24)) & 0xFFFFFF).alias("pid")


def tid(column: str) -> pl.Expr:
    """The thread id in a serialised global id."""
    return (pl.col(column) & 0xFFFFFF).alias("tid")


def span() -> tuple[pl.Expr, pl.Expr]:
    """``ts`` and ``dur`` of columns start and end; an end that is not there is no duration."""
    return pl.col("start").alias("ts"), (pl.col("end") - pl.col("start")).alias("dur")


def none_if_unset(column: str, name: str) -> pl.Expr:
    """A stream or device, null where CUPTI wrote that there is none."""
    return pl.when(~pl.col(column).is_in(_NONE)).then(column).alias(name)


def name_id(column: str) -> pl.Expr:
    """The id of a string in a column, to be named by :meth:`Export.named`."""
    return pl.col(column).cast(pl.UInt32, strict=False).alias("name")


def kind(word: str) -> pl.Expr:
    """A column of one kind."""
    return pl.lit(word, dtype=schema.KIND).alias("kind")
