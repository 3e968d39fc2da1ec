"""Which ranges each piece of device work was launched in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.frames.holding import hold
from traceanalyzer.frames.intervals import Ints, nullable, stable_order
from traceanalyzer.frames.nesting import ROOT, Rows, blocks, slice_order
from traceanalyzer.frames.ranges import Held, innermost_range


@dataclass(frozen=True)
class Attribution:
    """Device work by range.

    Attributes:
        ranges: the ranges with ``self_ns``, host time without the ranges that lie in it (null for
            those of the process); ``n``, ``kernels`` and ``device_ns``, the pieces of work that
            were launched in it, kernels among them, and the sum of their durations;
            ``projected_start`` and ``projected_end``, when the first of them starts and the last
            one ends, null without any; and ``own_n``, ``own_kernels``, ``own_device_ns``: those of
            which it is the innermost range.
        innermost: for each piece of work the row of its innermost range, -1 for none.
    """

    ranges: pl.DataFrame
    innermost: Rows


def attribute(ranges: pl.DataFrame, work: pl.DataFrame) -> Attribution:
    """Attributes device work to the ranges of its launching thread that hold the launch call whole.

    Args:
        ranges: thread, start, end, and any other columns; in the order of start, longest first.
        work: thread (null: that of no range), since and until (of the launch call), start, end,
            kernel.
    """
    sums = {name: np.zeros(ranges.height, np.int64) for name in ("n", "kernels", "device_ns")}
    own = {f"own_{name}": values.copy() for name, values in sums.items()}
    bounds = [np.zeros(ranges.height, np.int64) for _ in range(2)]
    innermost = np.full(work.height, ROOT, np.int32)
    start, end = (ranges[name].to_numpy() for name in ("start", "end"))
    since, until = work["since"].to_numpy(), work["until"].to_numpy()
    begun, ended = work["start"].to_numpy(), work["end"].to_numpy()
    kernel = work["kernel"].cast(pl.Int64).to_numpy()
    for rows, pieces in _threads(ranges, work):
        calls = since[pieces], until[pieces]
        inner = innermost_range(start[rows], end[rows], *calls)
        known = inner != ROOT
        innermost[pieces[known]] = rows[inner[known]]
        values = {"kernels": kernel[pieces], "device_ns": ended[pieces] - begun[pieces]}
        held = Held(start[rows], end[rows], *calls)
        sums["n"][rows] = held.count
        for name, value in values.items():
            sums[name][rows] = held.sum(value)
            np.add.at(own[f"own_{name}"], rows[inner[known]], value[known])
        np.add.at(own["own_n"], rows[inner[known]], 1)
        bounds[0][rows] = held.lowest(begun[pieces])
        bounds[1][rows] = held.highest(ended[pieces])
    some = sums["n"] > 0
    projected = [
        nullable(f"projected_{name}", values, some)
        for name, values in zip(("start", "end"), bounds, strict=True)
    ]
    found = ranges.with_columns(_self_time(ranges), *projected, **sums, **own)
    return Attribution(found, innermost)


def _threads(ranges: pl.DataFrame, work: pl.DataFrame) -> Iterator[tuple[Ints, Ints]]:
    """Each thread's ranges, by start and the longest first, and its work, by launch call."""
    rows = np.flatnonzero(ranges["thread"].is_not_null().to_numpy())
    of_range = ranges["thread"].gather(rows).to_numpy().astype(np.int64)
    start, end = (ranges[name].gather(rows).to_numpy() for name in ("start", "end"))
    order = slice_order(of_range, start, end)
    rows, of_range = rows[order], of_range[order]
    pieces = np.flatnonzero(work["thread"].is_not_null().to_numpy())
    of_work = work["thread"].gather(pieces).to_numpy().astype(np.int64)
    order = stable_order(of_work, work["since"].gather(pieces).to_numpy())
    pieces, of_work = pieces[order], of_work[order]
    for low, high in blocks(of_work):
        first, last = np.searchsorted(of_range, [of_work[low], of_work[low] + 1])
        yield rows[first:last], pieces[low:high]


def _self_time(ranges: pl.DataFrame) -> pl.Series:
    """Host time of each range without the ranges of its thread that lie in it."""
    threads = ranges.select("thread", "start", "end")
    own = hold(threads, ["thread"])["self_time"]
    of_thread = ranges["thread"].is_not_null()
    return pl.select(pl.when(of_thread).then(own).alias("self_ns")).to_series()
