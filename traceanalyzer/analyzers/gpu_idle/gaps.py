"""Idle gaps of a device: the work that ends them, and whether a synchronisation caused them."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.host import Excerpt
from traceanalyzer.frames import intervals, linking
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.vocabulary import ANNOTATION_KINDS


def with_launches(excerpt: Excerpt, gaps: pl.DataFrame) -> pl.DataFrame:
    """Add ``launched``: when the first launch call of the work that ends the gap returned.

    Null if that work has no launch call.
    """
    returned = np.full(excerpt.work.height, _NEVER)
    calls = excerpt.launched[["work", "end"]].drop_nulls()
    returned[calls["work"].to_numpy()] = calls["end"].to_numpy()
    unit, start = (excerpt.work[name].to_numpy() for name in ("unit", "start"))
    unit_of_gap, end = (gaps[name].to_numpy() for name in ("unit", "end"))
    launched = np.full(gaps.height, _NEVER)
    for number in excerpt.units["unit"]:
        of_unit, of_gap = unit == number, unit_of_gap == number
        launched[of_gap] = _first_returned(start[of_unit], returned[of_unit], end[of_gap])
    return gaps.with_columns(intervals.nullable("launched", launched, launched < _NEVER))


def _first_returned(start: Ints, returned: Ints, end: Ints) -> Ints:
    """Return when the first call of the work that starts at each end returned.

    Args:
        start: starts of work, in order.
        returned: when the call of each of them returned, or :data:`_NEVER`.
        end: ends of gaps.
    """
    if not start.size:
        return np.full(end.size, _NEVER)
    first = np.flatnonzero(np.append(True, start[1:] != start[:-1]))
    if first.size < start.size:  # several kernels or copies may start at once
        start, returned = start[first], np.minimum.reduceat(returned, first)
    place = np.minimum(np.searchsorted(start, end), start.size - 1)
    return np.where(start[place] == end, returned[place], _NEVER)


#: The time of a call that was not recorded.
_NEVER = np.iinfo(np.int64).max


def queued(gaps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return when the work that ends a gap was queued: from the end of its launch call.

    Args:
        gaps: rows of :func:`with_launches`.

    Returns:
        unit, start, end, at most one row per gap: of work that waits (it was launched before the
        gap began, or takes longer than :data:`~.causes.LAUNCH_LATENCY_NS` to start), and of others.
    """
    delayed = pl.col("end") - pl.col("launched") > causes.LAUNCH_LATENCY_NS
    rows = gaps.select(
        "unit",
        start=pl.max_horizontal("start", "launched"),
        end="end",
        launched="launched",
        waits=delayed | (pl.col("launched") <= pl.col("start")),
    )
    begun = (pl.col("start") < pl.col("end")) & pl.col("launched").is_not_null()
    waits, prompt = (rows.filter(begun & which) for which in (pl.col("waits"), ~pl.col("waits")))
    columns = ["unit", "start", "end"]
    return waits[columns], prompt[columns]


def drained(
    excerpt: Excerpt, gaps: pl.DataFrame, busy: pl.DataFrame, synchronising: pl.DataFrame
) -> pl.DataFrame:
    """Return the gaps caused by a synchronisation before them.

    Such a gap begins when a synchronising call or blocking copy ends, with an empty launch queue.
    Without the call the host would have used its wait to get ahead: a gap that is not longer than
    the rest of the last waits is due to them. A longer gap is caused by the host's activity, and so
    is a gap that is half covered by a range that begins in it.

    Args:
        excerpt: one rank.
        gaps: unit, start, end.
        busy: unit, start, end: when each unit's work runs.
        synchronising: unit, start, end of synchronising calls and blocking copies.

    Returns:
        unit, start, end.
    """
    waits = intervals.union(synchronising, ["unit"])
    if waits.is_empty() or gaps.is_empty():
        return gaps[["unit", "start", "end"]].clear()
    waits = intervals.overlap_with(waits, busy, ["unit"]).filter(pl.col("overlap") > 0)
    ended = waits.select("unit", "overlap", ended="end").sort("ended")
    latest = pl.col("start") + causes.LAUNCH_LATENCY_NS
    begun = gaps.select("unit", "start", "end", latest=latest).sort("latest")
    after_wait = begun.join_asof(
        ended, left_on="latest", right_on="ended", by="unit", coalesce=False, check_sortedness=False
    ).filter(pl.col("ended") >= pl.col("start") - causes.LAUNCH_LATENCY_NS)
    fitting = after_wait.filter(_ahead(after_wait))[["unit", "start", "end"]]
    if fitting.is_empty():
        return fitting
    ranges = excerpt.slices.filter(pl.col("kind").is_in(ANNOTATION_KINDS))
    marked = excerpt.of_units(ranges)
    return fitting.filter(~_mostly_covered(fitting, marked))


def _mostly_covered(gaps: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Return which gaps are covered by half or more by ranges that begin in them."""
    if ranges.is_empty():
        return pl.repeat(value=False, n=gaps.height, dtype=pl.Boolean, eager=True)
    begun = linking.label_by_interval(ranges.rename({"start": "ts"}), gaps, ["unit"])
    begun = begun.drop_nulls("interval")
    gap_end = gaps["end"][begun["interval"]]
    inside = begun.select("unit", start="ts", end=pl.min_horizontal("end", gap_end))
    covered = intervals.overlap_with(gaps, inside, ["unit"])
    return covered.select(2 * pl.col("overlap") >= pl.col("end") - pl.col("start")).to_series()


def _ahead(gaps: pl.DataFrame) -> pl.Series:
    """Return which gaps are not longer than the host's spare wait time before them."""
    left: dict[int, int] = {}
    fits = []
    length = pl.col("end") - pl.col("start")
    for unit, wait, gap in gaps.select("unit", "overlap", length).iter_rows():
        spare = max(left.get(unit, 0), wait)
        fits.append(gap <= spare)
        left[unit] = max(spare - gap, 0)
    return pl.Series(fits, dtype=pl.Boolean)
