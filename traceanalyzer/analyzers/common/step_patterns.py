"""Steps that nobody marked: found where the same sequence of kernels repeats."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.names import named
from traceanalyzer.analyzers.common.step_marks import step_marks
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace

#: A pattern that occurs less often is none.
_LEAST_STEPS = 4
#: A shorter sequence is a loop within a step.
_LEAST_KERNELS = 3
#: So much of the sequence must repeat.
_SAME_FRAC = 0.9
#: The note where steps are not marked but found.
FOUND_BY_KERNELS = (
    "No steps are marked: a step is one repeat of a sequence of kernels. steps --step-every REGEX "
    "shows steps that begin at another kernel."
)
#: Kernels tried as the one that occurs once a step, the rarest first.
_MOST_TRIED = 50


def steps(trace: Trace, step_name: str | None = None) -> pl.DataFrame:
    """The marked steps; where none is marked and no ``step_name`` asked for, those by kernels.

    Returns:
        Rows of :func:`~.step_marks.step_marks`, or of :func:`repeated`.

    Raises:
        OptionError: ``step_name`` is not a regular expression.
    """
    marks = step_marks(trace, step_name)
    if marks.height or step_name is not None:
        return marks
    return trace.once("repeated", lambda: repeated(trace))


def by_kernels(steps: pl.DataFrame) -> bool:
    """Whether :func:`steps` found them by kernels: no thread of the host marks them."""
    return steps.height > 0 and bool(steps["tid"].is_null().all())


def repeated(trace: Trace, every: str | None = None) -> pl.DataFrame:
    """Steps of each rank by its kernels, on the stream that has most of them.

    A step runs from a kernel that begins it to the next such kernel, the last one to the end of its
    last kernel; repeats that are cut off are left out. Without ``every`` steps are the longest
    sequence of kernels that repeats: kernels that occur once in it are equally far apart, and 90 %
    of the kernels are the same in the next repeat. It begins after the kernel behind which the
    stream usually pauses longest.

    Args:
        trace: with kernels.
        every: a regular expression; a step begins at each kernel whose name it matches.

    Returns:
        rank, pid, tid (null), step, start, end; empty where nothing repeats.

    Raises:
        OptionError: ``every`` is not a regular expression.
    """
    lane = ["rank", "pid", "device", "stream"]
    kernels = (
        trace.events.filter(pl.col("kind") == "kernel", pl.col("dur") >= 0)
        .select(*lane, "name", start="ts", end=pl.col("ts") + pl.col("dur"))
        .with_columns(n=pl.len().over(lane))
    )
    rows = []
    for (rank,), own in kernels.sort("n", descending=True, maintain_order=True).group_by(
        ["rank"], maintain_order=True
    ):
        first = own.row(0, named=True)
        same = [pl.col(column).eq_missing(first[column]) for column in lane]
        rows.append(_of_stream(own.filter(same).sort("start"), every, rank))
    types = {"rank": pl.Int32, "pid": pl.Int64, "tid": pl.Int64, "step": pl.String}
    empty = pl.DataFrame(schema={**types, "start": pl.Int64, "end": pl.Int64})
    return pl.concat([empty, *rows])


def _of_stream(kernels: pl.DataFrame, every: str | None, rank: object) -> pl.DataFrame:
    start, end = kernels["start"].to_numpy(), kernels["end"].to_numpy()
    if every is None:
        codes = kernels["name"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
        pauses = np.append(0, start[1:] - np.maximum.accumulate(end)[:-1])
        begins, period = _begins(codes, pauses)
    else:
        begins = kernels.select(named(kernels, [every])).to_series().arg_true().to_numpy()
        period = start.size
    after = np.append(begins[1:], begins[-1:] + period)
    until = np.append(start, end.max())[np.minimum(after, start.size)]
    return pl.DataFrame(
        {"start": start[begins], "end": until}, schema={"start": pl.Int64, "end": pl.Int64}
    ).select(
        pl.lit(rank, pl.Int32).alias("rank"),
        pl.lit(None, pl.Int64).alias("pid"),
        pl.lit(None, pl.Int64).alias("tid"),
        pl.format("step {}", pl.int_range(pl.len())).alias("step"),
        "start",
        "end",
    )


def _begins(codes: Ints, pauses: Ints) -> tuple[Ints, int]:
    """Where each whole repeat of the longest repeated sequence begins, and its length.

    Empty where nothing repeats.
    """
    names, counts = np.unique(codes, return_counts=True)
    often = counts >= _LEAST_STEPS
    rarest = names[often][np.argsort(counts[often], kind="stable")]
    for code in rarest[:_MOST_TRIED]:
        places = np.flatnonzero(codes == code)
        apart = np.diff(places)
        period = int(np.median(apart))
        if period < _LEAST_KERNELS or np.mean(apart == period) < _SAME_FRAC:
            continue
        same = codes[places[0] : -period] == codes[places[0] + period :]
        covered = (places[-1] - places[0] + period) / codes.size
        if covered >= _SAME_FRAC and same.size and same.mean() >= _SAME_FRAC:
            begins = _after_pauses(places, period, pauses)
            first = codes[begins[0] :][:period] == codes[begins[1] :][:period]
            return begins[int(first.mean() < _SAME_FRAC) :], period
    return np.zeros(0, np.int64), 0


def _after_pauses(places: Ints, period: int, pauses: Ints) -> Ints:
    """The places moved, by less than a period, to where the pause before a kernel is longest."""
    usual = []
    for shift in range(period):
        moved = places + shift
        usual.append(np.median(pauses[moved[moved < pauses.size]]))
    moved = places + int(np.argmax(usual))
    both = np.append(moved[0] - period, moved)
    return both[(both >= 0) & (both + period <= pauses.size)]
