"""Device work and operators of one rank, summed up for each step.

What starts within a step's marks belongs to it, what starts outside of all to none.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traceanalyzer.analyzers import kernels
from traceanalyzer.analyzers.operators.attribution import callers
from traceanalyzer.analyzers.operators.ground import Ground
from traceanalyzer.analyzers.operators.question import FRAMES
from traceanalyzer.analyzers.operators.tree import call_tree, counted_as
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.frames.nesting import ROOT


def work(pieces: pl.DataFrame, part: kernels.Part, marks: pl.DataFrame | None) -> pl.DataFrame:
    """Kernels, copies and sets of each step.

    Args:
        pieces: :func:`~traceanalyzer.analyzers.device_work.device_work` of the rank.
        part: of the same pieces, in their order.
        marks: start and end of the steps, which do not overlap; None without any.

    Returns:
        mark (the step's start, null outside), name, family, n, total_ns.
    """
    rows = pieces.select(_mark(pieces["start"], marks)).hstack(part.work)
    sums = rows.group_by("mark", "kernel").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("length_ns").sum()
    )
    told = part.kernels[sums["kernel"]].with_columns(pl.col("name").cast(pl.String))
    named = sums.drop("kernel").hstack(told)
    alike = named.group_by("mark", "name", "family").agg(pl.col("n", "total_ns").sum())
    return alike.select("mark", "name", "family", "n", "total_ns")


def operators(ground: Ground, marks: pl.DataFrame | None) -> pl.DataFrame:
    """Operators, annotations and calls of each step, without Python frames.

    Args:
        ground: of the rank's calls.
        marks: as for :func:`work`.

    Returns:
        mark, name, kind, n, host_ns (time in it less that in the calls it makes), device_ns (work
        that it launched itself, null where no device work was recorded).
    """
    tree = call_tree(ground.calls)
    counted = counted_as(tree)
    device = np.zeros(tree.height, np.int64)
    caller = callers(ground.work, tree)
    np.add.at(device, caller[caller != ROOT], ground.work["length_ns"].to_numpy()[caller != ROOT])
    launched = pl.lit(None, pl.Int64) if ground.work.is_empty() else pl.Series(device)
    own = counted == np.arange(tree.height)
    rows = tree.select(
        _mark(tree["start"].gather(counted), marks),
        "name",
        tree["kind"].gather(counted),
        n=pl.Series(own.astype(np.int64)),
        host_ns="self_time",
        device_ns=launched,
    )
    sums = rows.filter(pl.col("kind") != FRAMES).group_by("mark", "name", "kind")
    unlaunched = ground.work.is_empty()
    total = sums.agg(
        pl.col("n", "host_ns").sum(),
        pl.lit(None, pl.Int64).alias("device_ns") if unlaunched else pl.col("device_ns").sum(),
    )
    return total.with_columns(pl.col("name", "kind").cast(pl.String))


def _mark(times: pl.Series, marks: pl.DataFrame | None) -> pl.Series:
    """The start of the step that each time lies in; null outside of all."""
    if marks is None or marks.is_empty():
        return pl.Series("mark", [None] * times.len(), dtype=pl.Int64)
    ordered = marks.sort("start")
    start, end = ordered["start"].to_numpy(), ordered["end"].to_numpy()
    at = times.to_numpy()
    place = np.searchsorted(start, at, side="right") - 1
    inside = (place >= 0) & (at < end[place])
    return nullable("mark", start[np.maximum(place, 0)], inside)
