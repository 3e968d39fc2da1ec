"""What is found in copies: pageable memory, many small ones, copies that no kernel hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from traceanalyzer.analyzers.transfers.sizes import SET, SMALL_BYTES, SMALL_SIZES
from traceanalyzer.units import format_bytes

PAGEABLE = "pageable"
SMALL = "small-copies"
EXPOSED = "exposed-copies"

#: The findings, and what to do about each.
ADVICE = {
    PAGEABLE: "pin the host memory (pin_memory=True, tensor.pin_memory()) and copy with "
    "non_blocking=True; traceanalyzer api tells how long they hold the host up",
    EXPOSED: "copies between host and device from pinned memory, non_blocking=True, on a stream of "
    "their own could run beside kernels of the step before",
    SMALL: "gather them into one buffer and copy that once: each costs some microseconds whatever "
    "its size",
}

_SCHEMA = pl.Schema(
    {
        "finding": pl.Enum(tuple(ADVICE)),
        "what": pl.String(),
        "n": pl.Int64(),
        "moved_bytes": pl.Int64(),
        "total_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "advice": pl.String(),
    }
)

_PAGEABLE = "Pageable"
#: Directions from or to the host.
_HOST = r"^(?:UVM )?(?:HtoD|DtoH|HtoA|AtoH)$"
#: Fewer small copies than this are no pattern.
_MANY = 100
#: From this share of its copies on, a direction is one of small copies.
_MOSTLY = 0.5
#: From this share of the devices' time on, copies that no kernel hides are worth hiding.
_WORTH_FRAC = 0.01


def found(copies: pl.DataFrame, sizes: pl.DataFrame, span_ns: int) -> pl.DataFrame:
    """One row a finding and way: direction and memory.

    Args:
        copies: sums by direction and memory.
        sizes: the same by class of size.
        span_ns: first start to last end of work, summed over devices.

    Returns:
        finding, what, n, moved_bytes, total_ns, exposed_ns (null where it is not known), advice.
    """
    rows = [*_pageable(copies), *_exposed(copies, span_ns), *_small(copies, sizes)]
    told = [{**row, "advice": ADVICE[row["finding"]]} for row in rows]
    return pl.DataFrame(told, schema=_SCHEMA)


def _pageable(copies: pl.DataFrame) -> Iterator[dict[str, Any]]:
    own = copies.filter(pl.col("memory").str.contains(_PAGEABLE), pl.col("direction") != SET)
    for row in own.rows(named=True):
        yield {"finding": PAGEABLE, "what": _way(row), **_sums(row)}


def _exposed(copies: pl.DataFrame, span_ns: int) -> Iterator[dict[str, Any]]:
    own = copies.filter(pl.col("direction").str.contains(_HOST), pl.col("exposed_ns") > 0)
    for row in own.filter(pl.col("exposed_ns") >= _WORTH_FRAC * span_ns).rows(named=True):
        yield {"finding": EXPOSED, "what": _way(row), **_sums(row), "n": row["exposed_n"]}


def _small(copies: pl.DataFrame, sizes: pl.DataFrame) -> Iterator[dict[str, Any]]:
    small = sizes.filter(pl.col("size").is_in(SMALL_SIZES), pl.col("direction") != SET)
    way = ["direction", "memory"]
    known = pl.when(pl.col("exposed_ns").count() > 0).then(pl.col("exposed_ns").sum())
    sums = (pl.col("n", "moved_bytes", "total_ns").sum(), known.alias("exposed_ns"))
    both = small.group_by(way).agg(sums).join(
        copies.select(*way, of="n"), on=way, nulls_equal=True
    )  # fmt: skip
    many = both.filter(pl.col("n") >= _MANY, pl.col("n") >= _MOSTLY * pl.col("of"))
    for row in many.sort("n", *way, descending=[True, False, False]).rows(named=True):
        what = f"{_way(row)} < {format_bytes(SMALL_BYTES)}"
        yield {"finding": SMALL, "what": what, **_sums(row)}


def _way(row: dict[str, Any]) -> str:
    return f"{row['direction']} ({row['memory']})" if row["memory"] else str(row["direction"])


def _sums(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("n", "moved_bytes", "total_ns", "exposed_ns")}
