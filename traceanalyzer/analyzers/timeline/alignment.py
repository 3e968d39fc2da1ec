"""One axis for the recordings of a run: what is added to the times of each.

By the best evidence there is: absolute times of the files, corrected by the ends of matched
collectives where these show a clear offset, and by the clock synchronisation of MosaicML Composer
where a rank has no matched collective. Without absolute times, by the collectives alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.comm_outliers import arrivals
from traceanalyzer.analyzers.comm_outliers.matching import ROOTED
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import clocks
from traceanalyzer.trace import Meta

#: Times from this value on (2001) are times since 1970, even if the file does not specify it.
_ABSOLUTE_NS = 10**18
#: Keys of ``Meta.extra``: time of Composer's synchronisation on the clock of the rank, its error.
COMPOSER_SYNC, COMPOSER_ERROR = "composer_clock_sync_ns", "composer_clock_sync_error_ns"


@dataclass(frozen=True)
class Recorded:
    """One recording: its first and last moment on its own clock.

    Attributes:
        rank: global rank, or None.
        path: the file.
        epoch_ns: absolute time of the clock's 0, or None.
        begin: first moment.
        end: last moment.
        start_ns: time of the file's first event, or None.
        sync_ns: moment at which the clocks of all ranks were read, or None.
        sync_error_ns: upper bound of the error of this moment, or None.
    """

    rank: int | None
    path: str
    epoch_ns: int | None
    begin: int
    end: int
    start_ns: int | None = None
    sync_ns: int | None = None
    sync_error_ns: int | None = None


def recorded(meta: Meta, begin: int, end: int) -> Recorded:
    """Return the recording of a file; times since 1970 without a time base are absolute."""
    absolute = 0 if begin >= _ABSOLUTE_NS else None
    epoch_ns = absolute if meta.epoch_ns is None else meta.epoch_ns
    extra = json.loads(meta.extra or "{}") if COMPOSER_SYNC in (meta.extra or "") else {}
    sync = (extra.get(COMPOSER_SYNC), extra.get(COMPOSER_ERROR))
    return Recorded(meta.rank, meta.path, epoch_ns, begin, end, meta.start_ns, *sync)


def shifts(several: Sequence[Recorded], compared: CommOutliers | None) -> tuple[list[int], bool]:
    """Return what is added to the times of each recording, and whether all share an axis.

    If they do (see :func:`~.common.clocks.one_clock`), 0 is the first event of the first file.
    Otherwise each rank begins at 0.

    Args:
        several: the recordings.
        compared: the comparison of their collectives, if communication was recorded.
    """
    offsets = clock_offsets(several, compared)
    zeros = _zeros(several, compared)
    placed = [zero - offset for zero, offset in zip(zeros, offsets, strict=True)]
    begins = [one.begin + shift for one, shift in zip(several, placed, strict=True)]
    ends = [one.end + shift for one, shift in zip(several, placed, strict=True)]
    shared = clocks.one_clock(
        [one.epoch_ns for one in several], begins, ends, pauses_ns=_between(several)
    )
    of = [one.path if one.rank is None else one.rank for one in several]
    starts = [
        (one.begin if one.start_ns is None else one.start_ns) + shift
        for one, shift in zip(several, placed, strict=True)
    ]
    zeros = clocks.to_zero(starts, of, one_clock=shared)
    return [shift + zero for shift, zero in zip(placed, zeros, strict=True)], shared


def clock_offsets(several: Sequence[Recorded], compared: CommOutliers | None) -> list[int]:
    """Return how far the clock of each recording is ahead, in ns; 0 if that is not known."""
    matched = arrivals.applied(compared.clocks) if compared is not None else {}
    compared_ranks = set(compared.clocks["rank"]) if compared is not None else set()
    known = [one for one in several if one.sync_ns is not None and one.rank is not None]
    lowest = min((one.rank for one in known if one.rank is not None), default=None)
    reference = [one.sync_ns for one in known if one.rank == lowest and one.sync_ns is not None]
    offsets = []
    for one in several:
        offset = matched.get(one.rank, 0) if one.rank is not None else 0
        if one.sync_ns is not None and one.rank is not None and one.rank not in compared_ranks:
            # a run with several cycles has one synchronisation per cycle
            offset = min((one.sync_ns - sync for sync in reference), key=abs)
        offsets.append(offset)
    return offsets


def _between(several: Sequence[Recorded]) -> int:
    """Return the time between the cycles of a rank, which belong to one run."""
    pauses = 0
    for rank in {one.rank for one in several if one.rank is not None and one.epoch_ns is not None}:
        of_rank = [one for one in several if one.rank == rank and one.epoch_ns is not None]
        starts = [one.begin + (one.epoch_ns or 0) for one in of_rank]
        ends = [one.end + (one.epoch_ns or 0) for one in of_rank]
        covered = sum(ends) - sum(starts)
        pauses = max(pauses, max(ends) - min(starts) - covered)
    return pauses


def _zeros(several: Sequence[Recorded], compared: CommOutliers | None) -> list[int]:
    """Return the time of each 0: absolute; else as the comparison of collectives has it."""
    if compared is None or any(one.epoch_ns is not None for one in several):
        return [one.epoch_ns or 0 for one in several]
    known = dict(compared.instances.select("path", "shift_ns").unique("path").iter_rows())
    return [known.get(one.path, 0) for one in several]


#: Standard error of a median of n values in units of their MAD / sqrt(n), if they are normal.
_ERROR_OF_MEDIAN = 1.86


def residual(compared: CommOutliers | None) -> tuple[int, int] | None:
    """Return the error of the clocks after correction in ns, and the number of collectives used.

    The largest of the ranks: the standard error of the median of its distances from the median ends
    of the collectives, plus the offset that was not corrected. Ends of one collective differ
    without an error of the clocks, so their spread is not in it. None without a matched collective
    of all ranks without a root.
    """
    if compared is None:
        return None
    left = pl.when("applied").then(0).otherwise(pl.col("offset_ns").abs())
    of_median = _ERROR_OF_MEDIAN * pl.col("residual_ns") / pl.col("n").sqrt()
    error = compared.clocks.select((of_median + left).max()).item()
    rooted = pl.col("collective").is_in(ROOTED)
    number = compared.collectives.filter(~rooted)["end_skew_ns"].drop_nulls().len()
    return None if error is None or not number else (int(error), number)
