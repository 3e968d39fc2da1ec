"""Limits of times, sizes, addresses and weights, chosen so that their sums fit Int64.

Larger numbers in a file are damage or malice and never reach an analysis: see
:mod:`traceanalyzer.parsers.contract`.
"""

import polars as pl

#: Maximum absolute time of an event (137 years): differences of times, and times after any epoch,
#: rounded up to a grid, fit Int64.
LAST_NS = (1 << 62) - (1 << 58)
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

_SIZES = (
    *(("memory_totals", name) for name in ("allocated_bytes", "reserved_bytes", "free_bytes")),
    *(("collectives", name) for name in ("elements_in", "elements_out")),
    *(("collective_records", name) for name in ("elements_in", "elements_out")),
    *(("segments", name) for name in ("total_bytes", "allocated_bytes", "active_bytes")),
    *(("blocks", name) for name in ("size_bytes", "requested_bytes")),
)
#: Column -> the smallest absolute value that is out of range.
_TOO_FAR = {
    **dict.fromkeys((("events", "bytes"), *_SIZES), MAX_BYTES),
    **{(table, "address"): MAX_ADDRESS for table in ("segments", "blocks")},
    **{(table, "ts"): LAST_NS + 1 for table in ("flows", "counters")},
    ("events", "weight"): MAX_WEIGHT + 2,  # the next Float64
}


def bounded(table: str) -> list[str]:
    """Return the columns of a table with a limit."""
    return [column for of, column in _TOO_FAR if of == table]


def are_within(table: str, column: pl.Series) -> bool:
    """Whether all values of a column of :func:`bounded` are in range; faster than a query."""
    if column.null_count() == len(column):
        return True
    bound = _TOO_FAR[table, column.name]
    smallest, largest = column.min(), column.max()
    # fractions may be NaN, which these do not show
    return (
        isinstance(smallest, int)
        and isinstance(largest, int)
        and -bound < smallest <= largest < bound
    )


def beyond(table: str, column: str) -> pl.Expr:
    """Return the condition that a value of a column of :func:`bounded` is out of range.

    The size of a request that failed (out of memory) has no limit.
    """
    bound = _TOO_FAR[table, column]
    value = pl.col(column)
    # addresses are unsigned, and the lower bound does not fit their type
    far = value >= bound if column == "address" else (value >= bound) | (value <= -bound)
    if (table, column) == ("events", "bytes"):
        far &= pl.col("kind") != "oom"
    return far.fill_null(value=False)


def on_the_clock() -> pl.Expr:
    """Return the condition that an event has no time, or is within :data:`LAST_NS` of 0."""
    ts, dur = pl.col("ts"), pl.col("dur").fill_null(0)
    # the end may not fit Int64, so the duration is compared with the remaining range
    fits = dur.is_between(-LAST_NS - ts, LAST_NS - ts)
    return (ts.is_between(-LAST_NS, LAST_NS) & fits).fill_null(ts.is_null())
