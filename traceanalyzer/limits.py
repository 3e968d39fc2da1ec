"""What no time, size, address or weight of a trace is beyond, so that sums of them fit Int64.

Files may say anything. Numbers beyond these are damage or malice, and what a parser finds of them
does not reach an analysis: see :mod:`traceanalyzer.parsers.contract`.
"""

import polars as pl

#: No event starts or ends further from 0 (137 years): the time between any two moments, and a
#: moment after any epoch, rounded up to a grid, fit Int64.
LAST_NS = (1 << 62) - (1 << 58)
#: The last absolute time of a clock's 0, in the year 2116: there is room for the times behind it.
LAST_EPOCH_NS = 1 << 62
#: No memory has as many bytes (17 TB), and no copy moves as many.
MOST_BYTES = 1 << 44
#: No pointer to held memory points as far.
MOST_ADDRESS = 1 << 57
#: Whole numbers below are exact as Float64; no sample counts more.
MOST_WEIGHT = 1 << 53
#: No job has as many ranks.
MOST_RANKS = 1 << 22

_SIZES = (
    *(("memory_totals", name) for name in ("allocated_bytes", "reserved_bytes", "free_bytes")),
    *(("collectives", name) for name in ("elements_in", "elements_out")),
    *(("segments", name) for name in ("total_bytes", "allocated_bytes", "active_bytes")),
    *(("blocks", name) for name in ("size_bytes", "requested_bytes")),
)
#: Columns, and the first number that is too far from 0.
_TOO_FAR = {
    **dict.fromkeys((("events", "bytes"), *_SIZES), MOST_BYTES),
    **{(table, "address"): MOST_ADDRESS for table in ("segments", "blocks")},
    **{(table, "ts"): LAST_NS + 1 for table in ("flows", "counters")},
    ("events", "weight"): MOST_WEIGHT + 2,  # the next number that Float64 has
}


def bounded(table: str) -> list[str]:
    """The columns of a table whose values have a bound."""
    return [column for of, column in _TOO_FAR if of == table]


def beyond(table: str, column: str) -> pl.Expr:
    """Whether a value of a column of :func:`bounded` is beyond what there can be.

    What was asked for when memory ran out may be more than any memory has.
    """
    bound = _TOO_FAR[table, column]
    own = pl.col(column)
    # addresses have no sign, and the other bound does not fit their type
    far = own >= bound if column == "address" else (own >= bound) | (own <= -bound)
    if (table, column) == ("events", "bytes"):
        far &= pl.col("kind") != "oom"
    return far.fill_null(value=False)


def on_the_clock() -> pl.Expr:
    """Whether an event has no time, or starts and ends within :data:`LAST_NS` of 0."""
    ts, dur = pl.col("ts"), pl.col("dur").fill_null(0)
    # what is left on the clock fits Int64 where the start does, the end may not
    fits = dur.is_between(-LAST_NS - ts, LAST_NS - ts)
    return (ts.is_between(-LAST_NS, LAST_NS) & fits).fill_null(ts.is_null())
