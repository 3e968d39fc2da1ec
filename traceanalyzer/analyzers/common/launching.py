"""Which call of the host launched each piece of device work, on which thread, in which operator."""

from collections.abc import Iterable

import numpy as np
import polars as pl

from traceanalyzer.frames import linking, nesting
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_frac, format_ns
from traceanalyzer.vocabulary import LAUNCH_KINDS


def launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """The launch call of each piece of device work, joined by correlation id within the process.

    Args:
        trace: of one rank, with its calls of :data:`~traceanalyzer.vocabulary.LAUNCH_KINDS`.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        One row for each row of ``work`` whose call was recorded, in the order of ``work``: work
        (its row number), launch (row of ``events``), rank, pid, tid, launch_name, launch_start,
        launch_end. A graph launch has many rows of work.
    """
    rows = launch_rows(trace, work)
    known = np.flatnonzero(rows != nesting.ROOT)
    launch = pl.Series("launch", rows[known], dtype=pl.UInt32)
    joined = trace.events.select("rank", "pid", "tid", "name", "ts", "dur")[launch]
    return joined.select(
        pl.Series("work", known, dtype=pl.UInt32), launch, "rank", "pid", "tid",
        launch_name="name", launch_start="ts", launch_end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip


def is_graph_capture(trace: Trace) -> bool:
    """Whether a trace recorded the capture of CUDA or HIP graphs, and none of their replays.

    Engines record the capture apart from what they serve. Programs that go on to launch the graphs
    are judged as usual.
    """
    calls = trace.events.filter(pl.col("kind").is_in(LAUNCH_KINDS))["name"].cast(pl.String)
    captures = calls.str.contains("StreamBeginCapture").any()
    return captures and not calls.str.contains("GraphLaunch").any()


def launch_rows(trace: Trace, work: pl.DataFrame) -> nesting.Rows:
    """The row in ``events`` of the call that launched each piece; :data:`ROOT` where not recorded.

    Of ``work`` only pid and correlation are needed. The rows are computed once for each frame and
    kept with it: analyses share the frame of device work.
    """
    key = ("launch_rows", id(work))
    return trace.once(key, lambda: (work, _launch_rows(trace, work)))[1]


def _launch_rows(trace: Trace, work: pl.DataFrame) -> nesting.Rows:
    launching = pl.col("kind").is_in(LAUNCH_KINDS) & pl.col("correlation").is_not_null()
    calls = trace.events.select(launching).to_series().arg_true()
    # a file that does not tell the process of device work is one process's
    within = ["correlation"] if work["pid"].null_count() else ["pid", "correlation"]
    found = linking.first_match(trace.events.select(within)[calls], work, within)
    launched = found != nesting.ROOT
    found[launched] = calls.to_numpy()[found[launched]]
    return found


#: A recording whose device work begins within this of its first event may hold work of before.
_AT_START_NS = 2_000_000


def launched_before_ns(trace: Trace, work: pl.DataFrame) -> int | None:
    """How long device work ran that was launched before the recording started, summed up.

    That is work without a launch call in a trace whose device work begins within 2 ms of its first
    event, and that has launch calls for other work. None where no launch calls were read.
    """
    first, start = work["start"].min(), trace.meta.start_ns
    if not isinstance(first, int) or start is None or first - start > _AT_START_NS:
        return 0
    if not trace.events.select(pl.col("kind").is_in(LAUNCH_KINDS).any()).item():
        return None
    unknown = launch_rows(trace, work) == nesting.ROOT
    return 0 if unknown.all() else int((work["end"] - work["start"]).to_numpy()[unknown].sum())


def sum_of_known(values: Iterable[int | None]) -> int | None:
    """The sum of the values that are known; None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def note_launched_before(before_ns: int | None, whole_ns: int) -> tuple[str, ...]:
    """The note that device work was launched before the recording started, where some was."""
    if not before_ns or not whole_ns:
        return ()
    share = f"{format_frac(before_ns / whole_ns)} of the time of device work"
    missing = "was launched before the recording started: no launch call was recorded for it."
    return (f"{share} ({format_ns(before_ns)}) {missing}",)


def with_told_by_id(caller: nesting.Rows, work: pl.DataFrame, slices: pl.DataFrame) -> nesting.Rows:
    """The slice that each piece of device work is counted for, with what only external ids tell.

    Some versions of PyTorch number operators anew when they write the file, so that an id leads to
    an unrelated operator. Ids are trusted where most of the work with a known caller agrees.

    Args:
        caller: of each piece of work a row of ``slices`` or :data:`~.frames.nesting.ROOT`.
        work: external_id, start.
        slices: start, external_id (null where it names no operator).
    """
    told = pl.col("external_id") > 0  # 0 is no operator's
    rest = work.select("external_id", "start").with_row_index("work")
    rest = rest.filter(told, pl.Series(caller == nesting.ROOT))
    if rest.is_empty():
        return caller
    known = np.flatnonzero(caller != nesting.ROOT)
    theirs = slices["external_id"].gather(caller[known])
    agree = (work["external_id"].gather(known) == theirs).mean()
    if isinstance(agree, float) and agree < 1 / 2:
        return caller
    asked = pl.col("external_id").is_in(rest["external_id"].unique().implode())
    rows = slices.select("start", "external_id").with_row_index("row").filter(asked)
    pairs = linking.link(rows, rest, ["external_id"])
    left, right = rows[pairs["left"]], rest[pairs["right"]]
    possible = left["start"] <= right["start"]
    found = caller.copy()
    found[right["work"].filter(possible)] = left["row"].filter(possible)
    return found
