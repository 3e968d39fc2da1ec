"""Rows of a database: which are selected, all of them in one order, and what could not be read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer import schema
from traceanalyzer.machine import executor
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.parsers.sqlite.database import Database, overlap_test
from traceanalyzer.parsers.sqlite.pages import File
from traceanalyzer.parsers.tables import Ints, Order, time_order
from traceanalyzer.trace import Issue, in_spans, overlaps
from traceanalyzer.vocabulary import DEVICE_WORK

#: Side tables whose columns the rows may contain in addition to those of ``events``.
_SIDE_TABLES = ("launch_configs", "collectives", "memory_totals")
#: Variables of the environment of a process: its rank, and the number of ranks.
RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


def numbered_by_device(used: Mapping[int, Set[int | None]]) -> dict[int, int]:
    """Number processes by device if each has a device to itself, else by process id.

    Args:
        used: the devices that each process uses.
    """
    single = {process: next(iter(one)) for process, one in used.items() if len(one) == 1}
    distinct = len(set(single.values())) == len(used) and None not in single.values()
    ordered = sorted(used, key=lambda process: (single[process] or 0 if distinct else 0, process))
    return {process: number for number, process in enumerate(ordered)}


def lanes_of(rows: pl.DataFrame) -> pl.DataFrame:
    """Build ``lanes`` from rank, pid, tid and label: the processes, then their named threads."""
    rows = rows.unique(["rank", "pid", "tid"], keep="first", maintain_order=True)
    return rows.sort("tid", "pid", nulls_last=False, maintain_order=True).select(
        *("rank", "pid", "tid", "label"),
        labels=pl.lit(None, dtype=pl.String),
        sort_index=pl.lit(None, dtype=pl.Int64),
        textual=pl.lit(value=False),
    )


def span() -> tuple[pl.Expr, pl.Expr]:
    """Return ``ts`` and ``dur`` from columns start and end; null duration without an end."""
    return pl.col("start").alias("ts"), (pl.col("end") - pl.col("start")).alias("dur")


def kind_of(word: str) -> pl.Expr:
    """Return a constant ``kind`` column."""
    return pl.lit(word, dtype=schema.KIND).alias("kind")


@dataclass
class DatabaseReader:
    """An open database and the selection.

    Attributes:
        database: the open file.
        selection: what to read.
    """

    database: Database
    selection: Selection

    def read(self, table: str, *integers: str, **how: Any) -> pl.DataFrame:
        """Read columns of a table, see :meth:`Database.read`."""
        return self.database.read(table, integers=integers, **how)

    def fills(self, column: str) -> bool:
        """Whether the caller uses this column or side table."""
        return column not in self.selection.unused

    def inside(self, start: str = "start", end: str | None = "end") -> str | None:
        """Return the SQL condition that a row overlaps a selected window."""
        return overlap_test(self.selection.windows, start, end)

    def within(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows that overlap a window, for rows whose times are computed."""
        spans, time = self.selection.windows, pl.col("ts")
        if not spans:
            return rows
        return rows.filter(
            in_spans(spans) if "dur" in rows.columns else overlaps(time, time, spans)
        )

    def selected(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows with a selected kind or name."""
        kinds = self.selection.kinds
        if kinds is None or set(rows["kind"].unique()) <= kinds:
            return rows
        of_kind = pl.col("kind").cast(pl.String).is_in(sorted(kinds))
        names = list(self.selection.names)
        if not names:
            return rows.filter(of_kind)
        named = pl.col("name").cast(pl.String).str.contains_any(names).fill_null(value=False)
        return rows.filter(of_kind | named)


#: Types of the values that :func:`with_collectives` adds.
_COLLECTIVES = {
    **dict.fromkeys(("collective", "dtype"), pl.String),
    **dict.fromkeys(("elements_in", "elements_out"), pl.Int64),
    "group": pl.String,
    "group_size": pl.Int32,
}


def with_collectives(
    events: pl.DataFrame, values: Sequence[tuple[object, ...]], key: Mapping[str, Any]
) -> pl.DataFrame:
    """Add columns of ``collectives`` to rows.

    Args:
        events: the rows.
        values: of each call, its key, collective, type, elements in and out, group and its size.
        key: the columns that identify a row, with their types.
    """
    described = pl.DataFrame(values, schema={**key, **_COLLECTIVES}, orient="row")
    named = described.with_columns(pl.col("collective", "dtype", "group").cast(schema.NAME))
    distinct = named.unique([*key], keep="first")
    return events.join(distinct, on=[*key], how="left", maintain_order="left")


def assemble(parts: list[pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """Build ``events`` and its side tables.

    Args:
        parts: rows of one table each, with columns of ``events`` and of side tables; the list is
            emptied.
    """
    rows = _Rows(parts)
    if not rows.height:
        return {name: schema.empty(name) for name in ("events", *_SIDE_TABLES)}
    order = rows.order()
    frames = {name: rows.side_table(name, order) for name in _SIDE_TABLES}
    present = [column for column in schema.TABLES["events"] if rows.has(column)]
    with executor(2) as pool:  # more columns at a time need more memory
        ordered = pool.map(lambda column: _as_expression(rows.take(column), order), present)
        events = {column.name: values for column, values in zip(present, ordered, strict=True)}
    frames["events"] = pl.select(
        events.get(c.name, pl.lit(None, dtype=c.dtype)).alias(c.name)
        for c in schema.TABLES["events"]
        if c.name in events or not c.on_request
    )
    return frames


def _as_expression(column: pl.Series, order: pl.Series | None) -> pl.Expr:
    """Return an ordered column; a constant one, such as the rank, takes no memory in a frame."""
    if column.name != "ts" and _is_constant(column):
        return pl.lit(column[0], dtype=column.dtype)
    return pl.lit(_ordered(column, order))


def _is_constant(column: pl.Series) -> bool:
    """Whether all values are equal, or all are null."""
    if column.null_count():
        return column.null_count() == column.len()
    numbers = column.to_physical()
    return bool(numbers.min() == numbers.max())


def split_by_rank(rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the rows of each rank; columns that are constant then take no memory."""
    ranks = rows["rank"].unique()
    for rank in ranks:
        is_of_rank = pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
        of_rank = rows.filter(is_of_rank) if len(ranks) > 1 else rows
        constant = [column for column in of_rank if _is_constant(column)]
        yield of_rank.with_columns(
            pl.lit(column[0], dtype=column.dtype).alias(column.name) for column in constant
        )


def grouped_by_rank(parts: list[pl.DataFrame]) -> dict[int | None, list[pl.DataFrame]]:
    """Return the results of :func:`split_by_rank` of several tables by rank; empty the list.

    Processes without a rank (a launcher) are dropped unless they use a device.
    """
    parts_of: dict[int | None, list[pl.DataFrame]] = {}
    while parts:
        part = parts.pop()
        parts_of.setdefault(part["rank"][0], []).insert(0, part)
    launchers = parts_of.get(None, [])
    if len(parts_of) > 1 and not any(rows["kind"].is_in(DEVICE_WORK).any() for rows in launchers):
        parts_of.pop(None, None)
    return dict(sorted(parts_of.items(), key=lambda item: -1 if item[0] is None else item[0]))


class _Rows:
    """Concatenated rows of several tables, taken column by column.

    A column is released when it is taken, so that not all are in memory twice.
    """

    def __init__(self, parts: list[pl.DataFrame]) -> None:
        self._parts = [{column.name: column for column in part} for part in parts]
        self._heights = [part.height for part in parts]
        self.height = sum(self._heights)
        parts.clear()

    def has(self, column: schema.Column) -> bool:
        """Whether any of the tables has this column."""
        return any(column.name in part for part in self._parts)

    def column(self, name: str, dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
        """Return a column of all rows; null for tables that do not have it."""
        pieces = [
            part[name].cast(dtype)
            if name in part
            else pl.repeat(None, height, dtype=dtype, eager=True)
            for part, height in zip(self._parts, self._heights, strict=True)
        ]
        return pl.concat(pieces, rechunk=True).alias(name)

    def take(self, column: schema.Column) -> pl.Series:
        """Return and release a column."""
        series = self.column(column.name, column.dtype)
        for part in self._parts:
            part.pop(column.name, None)
        return series

    def side_table(self, name: str, order: pl.Series | None) -> pl.DataFrame:
        """Build a side table of the rows with any value in it, by row of ``events``; release them.

        Few tables have such columns: the rows of the others are not touched.
        """
        types = schema.types(name)
        pieces = [pl.DataFrame(schema=types)]
        low = 0
        for part, height in zip(self._parts, self._heights, strict=True):
            filled = {column: part.pop(column) for column in types if column in part}
            if filled:
                place, rows = _of_range(order, low, height)
                columns = {name: _ordered(column, rows) for name, column in filled.items()}
                table = pl.DataFrame({"event": place, **columns})
                has_any = pl.any_horizontal(pl.col(list(filled)).is_not_null())
                pieces.append(table if _is_filled(columns.values()) else table.filter(has_any))
            low += height
        joined = pl.concat(pieces, how="diagonal_relaxed")
        ordered = joined.sort("event") if len(pieces) > 2 else joined
        return ordered.cast(types)

    def order(self) -> pl.Series | None:
        """Return row numbers ordered by time; None if the rows are ordered already."""

        def lengths(tied: Order) -> Ints:
            return self.column("dur", pl.Int64).gather(tied).fill_null(-1).to_numpy()

        order = time_order(self.column("ts", pl.Int64).to_numpy(), lengths)
        return None if order is None else pl.Series(order)


def _ordered(column: pl.Series, order: pl.Series | None) -> pl.Series:
    return column if order is None else column.gather(order)


def _of_range(order: pl.Series | None, low: int, height: int) -> tuple[pl.Series, pl.Series | None]:
    """Return the places of some rows in ``events``, and their numbers, in the order of places.

    The rows are ``height`` ones from ``low`` on; their numbers count from ``low``.
    """
    if order is None:
        return pl.int_range(low, low + height, dtype=pl.UInt32, eager=True), None
    numbers = order.to_numpy()
    place = np.flatnonzero((numbers >= low) & (numbers < low + height)).astype(np.uint32)
    return pl.Series(place), pl.Series(numbers[place] - np.uint32(low))


def _is_filled(columns: Iterable[pl.Series]) -> bool:
    """Whether any of the columns has no nulls."""
    return any(not column.null_count() for column in columns)


def of_file(file: File) -> Iterator[Issue]:
    """Report a truncated file."""
    if file.missing:
        yield "data_loss", "truncated", 1, f"byte {file.size:,} of {file.size + file.missing:,}"


def of_rows(timeless: int, negative: int) -> Iterator[Issue]:
    """Report rows without a time, or that end before they start."""
    yield "data_loss", "no-time", timeless, None
    yield "notice", "negative-duration", negative, None


def negative(parts: Iterable[pl.DataFrame]) -> int:
    """Count the rows that end before they start."""
    return sum(int((part["dur"] < 0).sum()) for part in parts if "dur" in part.columns)


def of_database(database: Database) -> Iterator[Issue]:
    """Report damaged definitions of tables, rows on damaged pages, and values of a wrong type."""
    if database.damaged_schema:
        yield "data_loss", "damaged-file", 1, "definitions of tables"
    for table, rows in sorted(database.losses.rows.items()):
        yield "data_loss", "unreadable-rows", sum(rows.values()), f"{table}, row {min(rows)}"
    for table, values in sorted(database.losses.mistyped.items()):
        yield "data_loss", "wrong-type", sum(values.values()), table
