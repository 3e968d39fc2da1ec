"""Lost time of a rank's devices as intervals by cause: idle, and exposed work."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.causes import CAUSES, COPIES, EXPOSED, LOSS
from traceanalyzer.frames import intervals
from traceanalyzer.frames.intervals import Ints, Spans

#: Number of rows of a rank from which :func:`merged` merges short ones.
MANY = 100_000
#: How the length of short ones grows while there are still more rows.
_LONGER = 4


def lost(pieces: Sequence[pl.DataFrame], late_launches: pl.DataFrame) -> pl.DataFrame:
    """Return all lost intervals with their cause; short gaps before a late launch are launch-bound.

    Args:
        pieces: idle time by each of :data:`CAUSES`, exposed communication, exposed copies of
            checkpoints and files, and other exposed copies.
        late_launches: short gaps at whose start the next work was not launched.

    Returns:
        unit, start, end, cause; sorted by unit and start.
    """
    *idle, exposed, saved, copies = (frame[["unit", "start", "end"]] for frame in pieces)
    named = zip((*CAUSES, EXPOSED, COPIES), (*idle, exposed, copies), strict=True)
    frames = dict(named)
    frames[causes.CHECKPOINT_IO] = pl.concat([frames[causes.CHECKPOINT_IO], saved])
    if late_launches.height:
        launch = late_launches[["unit", "start", "end"]]
        short = frames[causes.SHORT_GAP]
        frames[causes.SHORT_GAP] = short.join(launch, on=launch.columns, how="anti")
        frames[causes.LAUNCH] = pl.concat([frames[causes.LAUNCH], launch])
    rows = labelled(list(frames.values()), pl.Series(list(frames), dtype=LOSS))
    order = intervals.stable_order(rows["unit"].to_numpy(), rows["start"].to_numpy())
    return rows[order]


def labelled(frames: Sequence[pl.DataFrame], causes: pl.Series) -> pl.DataFrame:
    """Return the intervals of frames, one per cause, as unit, start, end, cause."""
    number = np.repeat(np.arange(len(frames)), [frame.height for frame in frames])
    rows = pl.concat([frame[["unit", "start", "end"]] for frame in frames])
    return rows.hstack([causes[number].alias("cause")])


def merged(rows: pl.DataFrame, marks: pl.DataFrame, limit_ns: int) -> pl.DataFrame:
    """Merge short intervals if there are more than :data:`MANY`, and longer ones while there are.

    The short intervals of one cause from one long interval or mark to the next become one row with
    their summed length; the rows of several causes follow each other from the first start. So the
    time of each cause from one mark to another is unchanged, and rows stay disjoint. Exposed
    communication and intervals around a mark stay as they are.

    Args:
        rows: unit, start, end, cause, disjoint and sorted; see :func:`lost`.
        marks: unit, ts: times between which the time of each cause must be right.
        limit_ns: intervals shorter than this are short at first.

    Returns:
        unit, start, end, cause; sorted.
    """
    length = pl.col("end") - pl.col("start")
    longest = rows.select(length.max().fill_null(0)).item()
    if rows.height > MANY:  # at most half as many rows stay as they are
        kept = length.top_k(MANY // 2).min().fill_null(0)
        limit_ns = max(limit_ns, rows.select(kept).item())
    while rows.height > MANY and limit_ns <= _LONGER * longest:
        rows = _without_short(rows, marks, limit_ns)
        limit_ns *= _LONGER
    return rows


def _without_short(rows: pl.DataFrame, marks: pl.DataFrame, limit_ns: int) -> pl.DataFrame:
    """Merge the intervals that are shorter than a limit."""
    unit, start, end = (rows[name].to_numpy() for name in ("unit", "start", "end"))
    cause = rows["cause"].to_physical().to_numpy()
    length = end - start
    cell, last = _cells(marks, unit, start, end)
    exposed = pl.Series([EXPOSED], dtype=LOSS).to_physical()[0]
    short = (length < limit_ns) & (cause != exposed) & (cell == last)
    begins = np.ones(start.size, np.bool_)
    begins[1:] = ~(short[1:] & short[:-1]) | (unit[1:] != unit[:-1]) | (cell[1:] != cell[:-1])
    run = np.cumsum(begins)
    order = np.argsort(run * len(LOSS.categories) + cause, kind="stable")
    run, cause = run[order], cause[order]
    first = np.flatnonzero(np.diff(run, prepend=0) | np.diff(cause.astype(np.int8), prepend=-1))
    sums = np.add.reduceat(length[order], first)
    # each row begins where the previous one of its run ends
    run, ends = run[first], np.cumsum(sums)
    of_run = np.flatnonzero(np.diff(run, prepend=0))
    base = start[begins] - (ends - sums)[of_run]
    since = ends - sums + np.repeat(base, np.diff(of_run, append=run.size))
    return rows[["unit", "cause"]][order[first]].select(
        "unit", pl.Series("start", since), pl.Series("end", since + sums), "cause"
    )


def _cells(marks: pl.DataFrame, unit: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the number of marks until the start of each interval, and before its end."""
    known, at = marks["unit"].to_numpy(), marks["ts"].to_numpy()
    order = intervals.stable_order(known, at)
    spans = Spans(known[order], at[order], at[order])
    begun = intervals.count_begun(spans, unit, start)
    return begun, intervals.count_begun(spans, unit, np.maximum(end - 1, start))
