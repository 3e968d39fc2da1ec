"""What one rank contributes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.annotations.attribution import attribute
from traceanalyzer.analyzers.annotations.ground import Amount, Ground
from traceanalyzer.frames.intervals import Bools, union
from traceanalyzer.frames.nesting import ROOT

#: What is told of each range.
MEASURES = (
    "host_ns", "self_ns", "projected_ns", "n", "kernels", "device_ns",
    "own_n", "own_kernels", "own_device_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """One rank's annotations.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        ranges: one row a range: name, domain, rank and :data:`MEASURES`.
        process_wide: ranges that belong to no thread, of which only host time is known.
        all_work: all device work.
        inside: part of it that was launched in an annotation.
        beside: part of it that was launched in none of its thread, while one of another ran.
        unlaunched: part of it whose launch call was not recorded, or never ends.
        unclosed: annotations that never end, and are not counted.
    """

    rank: int | None
    path: str
    ranges: pl.DataFrame
    process_wide: int
    all_work: Amount
    inside: Amount
    beside: Amount
    unlaunched: Amount
    unclosed: int


def measure(ground: Ground) -> Part:
    """Device work by annotation, of what was taken of a rank's trace."""
    found = attribute(ground.ranges, ground.work)
    of_any = found.innermost != ROOT
    beside = ~of_any & _while_any_runs(ground)
    return Part(
        rank=ground.rank,
        path=ground.path,
        ranges=found.ranges.select(
            "name",
            "domain",
            pl.lit(ground.rank, pl.Int32).alias("rank"),
            (pl.col("end") - pl.col("start")).alias("host_ns"),
            "self_ns",
            (pl.col("projected_end") - pl.col("projected_start")).alias("projected_ns"),
            *MEASURES[3:],
        ),
        process_wide=ground.ranges["thread"].null_count(),
        all_work=ground.all_work,
        inside=_amount(ground.work, of_any),
        beside=_amount(ground.work, beside),
        unlaunched=ground.unlaunched,
        unclosed=ground.unclosed,
    )


def _while_any_runs(ground: Ground) -> Bools:
    """Which work was launched while an annotation ran, on any thread."""
    runs = union(ground.ranges.drop_nulls("thread"))
    since = ground.work["since"].to_numpy()
    begun = np.searchsorted(runs["start"].to_numpy(), since, side="right")
    ended = np.searchsorted(runs["end"].to_numpy(), since, side="right")
    found: Bools = begun > ended
    return found


def _amount(work: pl.DataFrame, chosen: Bools) -> Amount:
    length = (work["end"] - work["start"]).to_numpy()[chosen]
    return Amount(length.size, int(length.sum()))
