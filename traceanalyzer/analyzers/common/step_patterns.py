"""Detection of steps without marks: repeats of a sequence of kernels."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.common.names import named
from traceanalyzer.analyzers.common.step_marks import step_marks
from traceanalyzer.frames import numbering
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.trace import Trace

#: Minimum number of repeats.
_LEAST_STEPS = 4
#: Minimum length of the sequence: shorter ones are loops within a step.
_LEAST_KERNELS = 3
#: Minimum share of equal kernels in the next repeat.
_SAME_FRAC = 0.9
#: Note for detected steps.
INFERRED_STEPS = (
    "No steps are marked: each repeat of a sequence of kernels counts as a step. "
    "steps --step-every REGEX begins a step at each matching kernel."
)
#: Maximum number of kernels tried as the one that occurs once per step, rarest first.
_MOST_TRIED = 50


def steps(trace: Trace, step_name: str | None = None) -> pl.DataFrame:
    """Return the marked steps; without marks and ``step_name``, steps detected from kernels.

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
    """Whether :func:`steps` detected the steps from kernels."""
    return steps.height > 0 and bool(steps["tid"].is_null().all())


def repeated(trace: Trace, every: str | None = None) -> pl.DataFrame:
    """Detect the steps of each rank from the kernels on its stream with most kernels.

    A step lasts from its first kernel to the first kernel of the next step, the last step to the
    end of its last kernel; incomplete repeats are dropped. Without ``every``, steps are the longest
    repeating sequence of kernels: kernels that occur once in it are equally spaced, and 90 % of the
    kernels are equal in the next repeat. It starts after the longest typical pause of the stream.

    Args:
        trace: trace with kernels.
        every: regular expression of the names of kernels that start a step.

    Returns:
        rank, pid, tid (null), step, start, end; empty where nothing repeats.

    Raises:
        OptionError: ``every`` is not a regular expression.
    """
    lane = ["rank", "pid", "device", "stream"]
    work = device_work(trace)[["kind", *lane, "name", "start", "end"]]
    first, number = numbering.numbered(work[["kind", *lane]].get_columns())
    streams = work[first].with_columns(
        number=pl.int_range(pl.len()), n=pl.Series(np.bincount(number, minlength=first.size))
    )
    kernels = streams.filter(pl.col("kind") == "kernel")
    most = kernels.sort("n", "start", "number", descending=[True, False, False])
    rows = []
    for stream in most.unique("rank", keep="first", maintain_order=True).iter_rows(named=True):
        of_stream = work[["name", "start", "end"]].filter(pl.Series(number == stream["number"]))
        rows.append(_of_stream(of_stream, every, stream["rank"]))
    types = {"rank": pl.Int32, "pid": pl.Int64, "tid": pl.Int64, "step": pl.String}
    empty = pl.DataFrame(schema={**types, "start": pl.Int64, "end": pl.Int64})
    return pl.concat([empty, *rows])


def _of_stream(kernels: pl.DataFrame, every: str | None, rank: object) -> pl.DataFrame:
    start, end = kernels["start"].to_numpy(), kernels["end"].to_numpy()
    if every is None:
        codes = _codes(kernels["name"])
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


def _codes(names: pl.Series) -> Ints:
    """Return the number of each name in alphabetical order."""
    first, number = numbering.numbered([names])
    order = names[first].cast(pl.String).rank("ordinal").fill_null(0).to_numpy()
    return order.astype(np.int64)[number]


def _begins(codes: Ints, pauses: Ints) -> tuple[Ints, int]:
    """Return the start of each complete repeat of the longest repeating sequence, and its length.

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
    """Shift places by less than a period to the kernels after the longest pauses."""
    usual = []
    for shift in range(period):
        moved = places + shift
        usual.append(np.median(pauses[moved[moved < pauses.size]]))
    moved = places + int(np.argmax(usual))
    both = np.append(moved[0] - period, moved)
    return both[(both >= 0) & (both + period <= pauses.size)]
