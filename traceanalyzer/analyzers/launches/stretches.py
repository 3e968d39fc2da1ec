"""Stretches of time in which a device runs out of work again and again."""

from __future__ import annotations

import polars as pl

from traceanalyzer.analyzers.launches.needs import LONG_NS, MIN_GAPS, MOSTLY_BUSY_FRAC, PROMPT_NS
from traceanalyzer.frames import intervals, linking

_DEVICE = ["device"]


def device_gaps(work: pl.DataFrame) -> pl.DataFrame:
    """When each device was idle between two pieces of its work, by start.

    Args:
        work: rows of :func:`~.calls.with_launches`.

    Returns:
        device, start, end, launch (the call that launched the piece which ended the gap, a row of
        ``events``), launch_end.
    """
    ended = work.lazy().filter(pl.col("start") > pl.col("device_free"))
    return ended.select(
        "device", "launch", "launch_end", start="device_free", end="start"
    ).collect()


def launch_gaps(gaps: pl.DataFrame, synchronising: pl.DataFrame) -> pl.DataFrame:
    """Gaps of a device that ended because the host launched something, none of them long.

    When such a gap began nothing was queued for the device: the launch call of the piece that
    ended the gap had not returned, or not even begun. That piece started no more than
    :data:`~.needs.PROMPT_NS` after its call, so that it waited for nothing else, and the gap lasted
    no more than :data:`~.needs.LONG_NS`: what is longer has another cause.

    Args:
        gaps: rows of :func:`device_gaps`.
        synchronising: start, end of calls in which the host waited for the device.

    Returns:
        device, start, end, launch, synchronised (whether the host was in such a call in the gap);
        by device and start.
    """
    queued_late = pl.col("launch_end") >= pl.col("start")
    prompt = pl.col("end") - pl.col("launch_end") <= PROMPT_NS
    short = pl.col("end") - pl.col("start") <= LONG_NS
    found = gaps.filter(queued_late, prompt, short).drop("launch_end")
    held = intervals.overlap_with(found, synchronising)["overlap"] > 0
    return found.with_columns(synchronised=held).sort("device", "start")


def stretches(launched: pl.DataFrame, gaps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Stretches in which launches hold the device up: maximal runs of launch gaps.

    The next gap of a run begins within :data:`~.needs.LONG_NS` of the end of the one before. Runs
    of fewer than :data:`~.needs.MIN_GAPS` gaps, and those in which the device was busy for more
    than :data:`~.needs.MOSTLY_BUSY_FRAC`, are none.

    Args:
        launched: rows of :func:`launch_gaps`.
        gaps: rows of :func:`device_gaps`.
        work: device, start.

    Returns:
        device, start, end, gaps, waiting_ns (in launch gaps), synchronised_ns (in those of them in
        which the host was in a synchronising call), pieces (of work that started in it), busy_ns;
        by device and start.
    """
    apart = pl.col("start") - pl.col("end").shift(1).over(_DEVICE) > LONG_NS
    length = pl.col("end") - pl.col("start")
    runs = (
        launched.with_columns(run=apart.fill_null(value=True).cum_sum())
        .group_by("device", "run", maintain_order=True)
        .agg(
            pl.col("start").first(),
            pl.col("end").last(),
            gaps=pl.len(),
            waiting_ns=length.sum(),
            synchronised_ns=length.filter("synchronised").sum(),
        )
        .filter(pl.col("gaps") >= MIN_GAPS)
        .drop("run")
    )
    # a gap lies in a run or outside
    idle = _inside(gaps.select("device", length.alias("idle_ns"), ts="start"), runs)
    pieces = _inside(work.select("device", ts="start"), runs)
    summed = idle.group_by("interval").agg(pl.col("idle_ns").sum())
    counted = pieces.group_by("interval").agg(pieces=pl.len())
    found = runs.with_row_index("interval")
    for more in (summed, counted):
        found = found.join(more, on="interval", how="left", maintain_order="left")
    measured = found.with_columns(busy_ns=length - pl.col("idle_ns")).drop("interval", "idle_ns")
    return measured.filter(pl.col("busy_ns") <= MOSTLY_BUSY_FRAC * length)


def waiting_for(calls: pl.DataFrame, gaps: pl.DataFrame, stretches: pl.DataFrame) -> pl.Series:
    """How long devices waited for each launch call in the gaps of stretches that it ended, in ns.

    Args:
        calls: rows of :func:`~.calls.launch_calls`.
        gaps: rows of :func:`launch_gaps`.
        stretches: rows of :func:`stretches`.
    """
    length = pl.col("end") - pl.col("start")
    inside = _inside(
        gaps.select("device", "launch", length.alias("waiting_ns"), ts="start"), stretches
    )
    waiting = inside.group_by("launch").agg(pl.col("waiting_ns").sum())
    found = calls.select("launch").join(waiting, on="launch", how="left", maintain_order="left")
    return found["waiting_ns"].fill_null(0)


def most_launched_in(
    stretches: pl.DataFrame, calls: pl.DataFrame, places: dict[str, pl.Series]
) -> pl.DataFrame:
    """The stretches, each with the place in which most of its launches happened.

    Args:
        stretches: rows of :func:`stretches`.
        calls: rows of :func:`~.calls.launch_calls`.
        places: for each column to add the name of each call's place; null is none.
    """
    inside = _inside(calls.select("device", ts="start", **places), stretches)
    found = stretches.with_row_index("interval")
    for column in places:
        counts = inside.drop_nulls(column).group_by("interval", column).agg(n=pl.len())
        most = (
            counts.with_columns(pl.col(column).cast(pl.String))
            .sort("n", column, descending=[True, False])
            .unique("interval", keep="first")
            .drop("n")
        )
        found = found.join(most, on="interval", how="left", maintain_order="left")
    return found.drop("interval")


def _inside(points: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """The points that lie in a stretch of their device, with its row number ``interval``."""
    return linking.label_by_interval(points, stretches, _DEVICE).drop_nulls("interval")
