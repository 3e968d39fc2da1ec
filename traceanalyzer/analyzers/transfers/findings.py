"""Copies by direction, memory and size, and what is worth changing about them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.columns import sum_if_known
from traceanalyzer.units import format_bytes

#: What a set is called among directions.
SET = "set"
#: The direction of a copy without a name.
NAMELESS = "not told"

_BOUNDS = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20)
#: Copies of fewer bytes are small: the time is that of starting them.
SMALL_BYTES = _BOUNDS[1]

_WORDS = tuple(map(format_bytes, _BOUNDS))
_CLASSES = (
    f"< {_WORDS[0]}",
    *(f"{low} - {high}" for low, high in pairwise(_WORDS)),
    f">= {_WORDS[-1]}",
)
#: The classes of small copies.
SMALL_SIZES = _CLASSES[: _BOUNDS.index(SMALL_BYTES) + 1]
UNKNOWN = "unknown"
SIZE = pl.Enum((*_CLASSES, UNKNOWN))

#: ``Memcpy HtoD (Pinned -> Device)``, ``Memset (Device)``.
_NAME = re.compile(r"^(?:Memcpy (?P<direction>.+?)|Memset) \((?P<memory>.+)\)$")


def ways(names: pl.Series) -> pl.DataFrame:
    """Direction and memory of copies and sets, by their distinct names.

    Returns:
        name, direction (``HtoD``; ``set``; the whole name where it does not tell), memory
        (``Pinned -> Device``, null where the name does not tell).
    """
    distinct = names.unique().drop_nulls()
    matches = [(name, _NAME.match(name)) for name in distinct.cast(pl.String)]
    rows = [
        (name, m["direction"] or SET, m["memory"]) if m else (name, name, None)
        for name, m in matches
    ]
    types = {"name": pl.String, "direction": pl.String, "memory": pl.String}
    told = pl.DataFrame(rows, schema=types, orient="row")
    return told.with_columns(name=distinct)


def size_class() -> pl.Expr:
    """The class of size of each row's ``moved_bytes``."""
    size = pl.col("moved_bytes")
    place = pl.sum_horizontal((size >= bound).cast(pl.UInt8) for bound in _BOUNDS)
    known = place.replace_strict(dict(enumerate(_CLASSES)), return_dtype=pl.String)
    return pl.when(size.is_null()).then(pl.lit(UNKNOWN)).otherwise(known).cast(SIZE).alias("size")


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


def findings_of(copies: pl.DataFrame, sizes: pl.DataFrame, span_ns: int) -> pl.DataFrame:
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
    sums = (pl.col("n", "moved_bytes", "total_ns").sum(), sum_if_known("exposed_ns"))
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
