"""The schema that every parser writes and every analyzer reads.

``schema.toml`` has the tables, each a tuple of :class:`Column`; the documentation page
``docs/schema.md`` and :func:`check` are derived from these definitions. Missing values are null:
no -1 or 0 sentinels, no NaN. Times are exact Int64 nanoseconds, sizes are bytes.
"""

import functools
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.files import packaged
from traceanalyzer.vocabulary import ALLOCATOR_KINDS, KINDS

#: Version of these tables, stored in every Parquet export; increased when a table changes.
VERSION = 2

#: Application id in the header of an exported SQLite database, which cannot be read back.
SQLITE_APPLICATION = int.from_bytes(b"TrAn")

#: Footer keys of a Parquet export: version, metadata of sources, offsets of side tables.
PARQUET_VERSION = "traceanalyzer.schema"
PARQUET_SOURCES = "traceanalyzer.sources"
PARQUET_TABLES = "traceanalyzer.tables"
#: Key of the metadata of a Parquet file written by ``summarize``.
SUMMARY = "traceanalyzer.summary"
#: End of the name of the file with the events that a summary refers to.
CONTEXT_SUFFIX = ".context.parquet"

#: Kinds of events that some profilers record without a time; all others have one.
TIMELESS_KINDS: tuple[str, ...] = ("sample", "other", *ALLOCATOR_KINDS)

KIND = pl.Enum(KINDS)
SEVERITY = pl.Enum(("info", "notice", "data_loss", "error"))
FLOW_PHASE = pl.Enum(("start", "step", "end"))
STATE = pl.Enum(("scheduled", "started", "completed"))
NAME = pl.Categorical()

#: Columns of ``events`` with the inputs of operators, which are read on request.
INPUTS = ("input_dims", "input_types", "concrete_inputs")

# Limits, chosen so that sums of values within them fit Int64. Larger numbers in a file are damage
# or malice and never reach an analysis: see :mod:`traceanalyzer.parsers.contract`.

#: Maximum absolute time of an event (137 years): differences of times, and times after any epoch,
#: rounded up to a grid, fit Int64.
LAST_NS = (1 << 62) - (1 << 58)
#: Maximum duration of an event, and of the reverse (104 days; exact as Float64).
MAX_DURATION_NS = 1 << 53
#: Maximum absolute time of a clock's 0, in the year 2116, so that later times fit Int64.
LAST_EPOCH_NS = 1 << 62
#: Upper bound of memory sizes and copies in bytes (17 TB).
MAX_BYTES = 1 << 44
#: Upper bound of addresses.
MAX_ADDRESS = 1 << 57
#: Upper bound of weights; smaller integers are exact as Float64.
MAX_WEIGHT = 1 << 53
#: Upper bound of the number of ranks.
MAX_RANKS = 1 << 22


@dataclass(frozen=True)
class Column:
    """One column: name, type, unit, meaning, and meaning of null."""

    name: str
    dtype: pl.DataType | type[pl.DataType]
    meaning: str
    unit: str = ""
    null: str = "never"
    on_request: bool = False


def _column(name: str, about: dict[str, Any]) -> Column:
    """Return the column of a line of ``schema.toml``."""
    of_name = about.pop("type")
    dtype = _ENUMS.get(of_name) or getattr(pl, of_name)
    return Column(name, dtype, **about)


#: Types by the names in ``schema.toml`` that are not those of polars.
_ENUMS = {"NAME": NAME, "KIND": KIND, "SEVERITY": SEVERITY, "PHASE": FLOW_PHASE, "STATE": STATE}
TABLES: dict[str, tuple[Column, ...]] = {
    table: tuple(_column(name, about) for name, about in columns.items())
    for table, columns in packaged("schema.toml").items()
}

#: Columns of ``events`` that are read only on request.
ON_REQUEST: tuple[str, ...] = tuple(one.name for one in TABLES["events"] if one.on_request)

#: Tables with an ``event`` column, a row number of ``events``.
EVENT_TABLES: tuple[str, ...] = ("launch_configs", "collectives", "memory_totals", "flows")

#: Columns with row numbers: the table, the column, and the table they refer to.
_ROW_NUMBERS: tuple[tuple[str, str, str], ...] = (
    *((name, "event", "events") for name in EVENT_TABLES),
    *((name, "stack", "stacks") for name in ("events", "segments", "blocks", "collective_records")),
    ("blocks", "segment", "segments"),
)


def types(table: str, on_request: Container[str] = (), *, plain: bool = False) -> pl.Schema:
    """Return the types of the columns of a table.

    Args:
        table: name of the table.
        on_request: optional columns to include.
        plain: names are String instead of Categorical.
    """
    return pl.Schema(
        (one.name, pl.String if plain and one.dtype == NAME else one.dtype)
        for one in TABLES[table]
        if not one.on_request or one.name in on_request
    )


@functools.cache
def empty(table: str) -> pl.DataFrame:
    """Return an empty frame of a table, without optional columns."""
    return pl.DataFrame(schema=types(table))


def check(frames: Mapping[str, pl.DataFrame]) -> list[str]:
    """Return the violations of the schema as text; an empty list for valid tables.

    Checked: table names; column names, order and dtypes; nulls in columns without null; row numbers
    within their table; callers before callees; finite numbers; events without a time, range of
    times; order of ``events`` by (ts, -dur).
    """
    wrong = [f"unknown table {name}" for name in frames if name not in TABLES]
    for name in TABLES:
        if name not in frames:
            wrong.append(f"table {name} is missing")
            continue
        wrong += check_columns(name, frames[name])
    return wrong or [*_check_rows(frames), *_check_times(frames["events"])]


def check_columns(name: str, frame: pl.DataFrame) -> list[str]:
    """Return the violations of the schema by the columns of one table; see :func:`check`."""
    columns = TABLES[name]
    required = [c.name for c in columns if not c.on_request]
    optional = [c.name for c in columns if c.on_request and c.name in frame.columns]
    if frame.columns != required + optional:
        return [f"{name}: columns {frame.columns}, not {required + optional}"]
    wrong = []
    for column in columns:
        if column.name not in frame.columns:
            continue
        series = frame[column.name]
        if series.dtype != column.dtype:
            wrong.append(f"{name}.{column.name}: {series.dtype}, not {column.dtype}")
        elif column.null == "never" and series.null_count():
            wrong.append(f"{name}.{column.name}: null {series.null_count()} times")
        elif series.dtype == pl.Float64 and not series.is_finite().all():
            wrong.append(f"{name}.{column.name}: not a finite number")
    if wrong or frame.is_empty():
        return wrong
    far = frame.select(beyond(name, c).any().alias(c) for c in bounded_columns(name))
    return [f"{name}.{column.name}: value out of range" for column in far if column.any()]


def _check_rows(frames: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    for name, column, of in _ROW_NUMBERS:
        top, rows = frames[name][column].max(), frames[of].height
        if isinstance(top, int) and top >= rows:
            yield f"{name}.{column}: row {top} of {rows}"
    for name in ("stacks", "segments"):
        numbers = frames[name]["id"]
        if not numbers.equals(pl.int_range(numbers.len(), dtype=pl.UInt32, eager=True)):
            yield f"{name}.id: not the row numbers"
    if (frames["stacks"]["parent"] >= frames["stacks"]["id"]).any():
        yield "stacks.parent: parent after its child"


def _check_times(events: pl.DataFrame) -> Iterator[str]:
    timeless = events.filter(pl.col("ts").is_null())["kind"].cast(pl.String)
    if not timeless.is_in(TIMELESS_KINDS).all():
        yield "events.ts: null for a kind that requires a time"
    if not events.select(on_the_clock().all()).item():
        yield f"events: a time beyond {LAST_NS} ns, or a duration beyond {MAX_DURATION_NS} ns"
    order = events.select(
        # an open-ended event sorts after the closed ones of the same start
        later=(pl.col("ts") > pl.col("ts").shift(1)).fill_null(True),
        longest_first=(
            (pl.col("ts") == pl.col("ts").shift(1))
            & (pl.col("dur").fill_null(-1) <= pl.col("dur").shift(1).fill_null(-1))
        ).fill_null(True),
    )
    unordered = (~(order["later"] | order["longest_first"])).sum()
    if unordered and events["ts"].null_count() == 0:
        yield f"events: {unordered} rows not ordered by (ts, -dur)"


# --- limits of values ----------------------------------------------------------------------------

_SIZES = (
    *(("memory_totals", name) for name in ("allocated_bytes", "reserved_bytes", "free_bytes")),
    *(("collectives", name) for name in ("elements_in", "elements_out")),
    *(("collective_records", name) for name in ("elements_in", "elements_out")),
    *(("segments", name) for name in ("total_bytes", "allocated_bytes", "active_bytes")),
    *(("blocks", name) for name in ("size_bytes", "requested_bytes")),
)
_SIZED = frozenset((("events", "bytes"), *_SIZES))
#: Events of which a negative size is a free.
_WITH_FREES = ("cpu_instant_event", *ALLOCATOR_KINDS)
#: Column -> the smallest absolute value that is out of range.
_TOO_FAR = {
    **dict.fromkeys((("events", "bytes"), *_SIZES), MAX_BYTES),
    **{(table, "address"): MAX_ADDRESS for table in ("segments", "blocks")},
    **{(table, "ts"): LAST_NS + 1 for table in ("flows", "counters")},
    ("events", "weight"): MAX_WEIGHT + 2,  # the next Float64
}


def bounded_columns(table: str) -> list[str]:
    """Return the columns of a table with a limit."""
    return [column for of, column in _TOO_FAR if of == table]


def are_within(table: str, column: pl.Series) -> bool:
    """Whether all values of a bounded column are in range; faster than a query."""
    if column.null_count() == len(column):
        return True
    bound = _TOO_FAR[table, column.name]
    # sizes are not negative, except those of frees
    least = 1 - bound if (table, column.name) not in _SIZED else 0
    smallest, largest = column.min(), column.max()
    # fractions may be NaN, which these do not show
    return (
        isinstance(smallest, int)
        and isinstance(largest, int)
        and least <= smallest <= largest < bound
    )


def beyond(table: str, column: str) -> pl.Expr:
    """Return the condition that a value of a column of :func:`bounded_columns` is out of range.

    The size of a request that failed (out of memory) has no limit.
    """
    bound = _TOO_FAR[table, column]
    value = pl.col(column)
    # addresses are unsigned, and the lower bound does not fit their type
    far = value >= bound if column == "address" else (value >= bound) | (value <= -bound)
    if (table, column) == ("events", "bytes"):
        far &= pl.col("kind") != "oom"
        far |= (value < 0) & ~pl.col("kind").is_in(_WITH_FREES)
    elif (table, column) in _SIZED:
        far |= value < 0
    return far.fill_null(value=False)


def on_the_clock() -> pl.Expr:
    """Return the condition that an event has no time, or is within :data:`LAST_NS` of 0.

    Its duration is at most :data:`MAX_DURATION_NS`.
    """
    ts, dur = pl.col("ts"), pl.col("dur").fill_null(0)
    # the end may not fit Int64, so the duration is compared with the remaining range
    fits = dur.is_between(-LAST_NS - ts, LAST_NS - ts)
    fits &= dur.is_between(-MAX_DURATION_NS, MAX_DURATION_NS)
    return (ts.is_between(-LAST_NS, LAST_NS) & fits).fill_null(ts.is_null())
