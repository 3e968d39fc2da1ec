"""From where to where a copy goes, and of what size it is."""

from __future__ import annotations

import re
from itertools import pairwise

import polars as pl

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
