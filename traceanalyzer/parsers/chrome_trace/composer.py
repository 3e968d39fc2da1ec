"""Counters of MosaicML Composer's system profiler, under names and in units that are true.

Its "gb" of memory are bytes / 2**9, its "kb" of the network bytes / 2**3, its disk counters have
a series that is literally called ``field_name``, and its CUDA memory is in 10^9 bytes under names
that do not tell. Only what is spelled exactly so is changed, and into nothing that is spelled so:
reading a file that was exported changes nothing more.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import polars as pl


class TrueCounter(NamedTuple):
    """What a counter is called here, and what its readings are multiplied by."""

    name: str
    series: str
    factor: float


_MEMORY = re.compile(r"memory/(?:swap|virtual)")
_MEMORY_SERIES = re.compile(r"(used|free|available)_gb")
_CUDA = re.compile(r"memory/cuda/((?:current|peak)_(?:allocated|active|inactive|reserved))_mem")
_RETRIES = ("memory/cuda/alloc_retries", "alloc_retries")
_DISK = re.compile(r"(disk/.+)/((?:read|write)_(?:count|bytes|time)|busy_time)", re.DOTALL)
_NETWORK = re.compile(r"(network/.+)/kb_(sent|recv)", re.DOTALL)


def true_counter(name: str, series: str) -> TrueCounter | None:
    """What a counter of Composer's spelling really is; None for any other."""
    if _MEMORY.fullmatch(name) and (told := _MEMORY_SERIES.fullmatch(series)):
        return TrueCounter(name, f"{told[1]}_bytes", 2**9)
    if (told := _CUDA.fullmatch(name)) and series == f"{told[1]}_mem":
        return TrueCounter("memory/cuda", f"{told[1]}_bytes", 10**9)
    if (name, series) == _RETRIES:
        return TrueCounter("memory/cuda", series, 1)
    if (told := _DISK.fullmatch(name)) and series == "field_name":
        return TrueCounter(told[1], told[2].replace("_time", "_time_ms"), 1)
    if (told := _NETWORK.fullmatch(name)) and series == f"kb_{told[2]}":
        return TrueCounter(told[1], f"{told[2]}_bytes", 2**3)
    return None


def undo_units(counters: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Readings with true names and values, and how many of them were changed.

    Bytes are whole: of what Composer rounded to five digits of 10^9 bytes the rest is 0.

    Args:
        counters: the table ``counters``, its names as text.
    """
    pairs = counters.select("name", "series").unique()
    told = [(*pair, *true) for pair in pairs.iter_rows() if (true := true_counter(*pair))]
    if not told:
        return counters, 0
    texts = dict.fromkeys(("name", "series", "true_name", "true_series"), pl.String)
    known = pl.DataFrame(told, schema={**texts, "factor": pl.Float64}, orient="row")
    joined = counters.join(known, on=["name", "series"], how="left", maintain_order="left")
    changed = joined.with_columns(
        name=pl.coalesce("true_name", "name"),
        series=pl.coalesce("true_series", "series"),
        value=pl.coalesce((pl.col("value") * pl.col("factor")).round(), "value"),
    )
    return changed.select(counters.columns), int(joined["factor"].is_not_null().sum())
