"""Which call of the host launched each piece of device work, on which thread, in which operator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Needs
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.frames import linking, nesting
from traceanalyzer.trace import Trace
from traceanalyzer.units import format_frac, format_ns
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS

if TYPE_CHECKING:
    from traceanalyzer.run import Reader


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

#: More pieces of device work are not queued: the launch queue of CUDA holds about 1,022.
_MOST_QUEUED = 4096

#: Launch calls are not read where the first pieces of device work take less of its time.
_SMALL_FRAC = 0.05


@dataclass(frozen=True)
class Beginning:
    """The first device work of a recording, whose launch calls were not read.

    Attributes:
        path: the file.
        rank: of the device work.
        window: (start, end) in which the work starts, on the file's clock.
    """

    path: str
    rank: int | None
    window: tuple[int, int]


def launched_before(trace: Trace, work: pl.DataFrame) -> int | Beginning | None:
    """How long device work ran that was launched before the recording started, summed up.

    Correlation ids grow with time: work was launched before the recording if its id is smaller than
    that of any recorded launch call of the process. It is looked for in traces whose device work
    begins within 2 ms of their first event.

    Args:
        trace: of one rank.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        The time in ns. Where no launch calls were read, what :func:`read_launched_before` needs;
        None where the first 4,096 pieces take less than 5 % of the time of all work.
    """
    first, start = work["start"].min(), trace.meta.start_ns
    if not isinstance(first, int) or start is None or first - start > _AT_START_NS:
        return 0
    calls = trace.events.filter(pl.col("kind").is_in(LAUNCH_KINDS), pl.col("correlation") > 0)
    if not calls.is_empty():
        return _before_ns(calls, work)
    length = work["end"] - work["start"]
    if int(length.head(_MOST_QUEUED).sum()) < _SMALL_FRAC * int(length.sum()):
        return None
    last = work["start"].head(_MOST_QUEUED)[-1]
    return Beginning(trace.meta.path, trace.meta.rank, (start, last + 1))


def _before_ns(calls: pl.DataFrame, work: pl.DataFrame) -> int:
    """The time of work with a correlation id below those of all calls of its process."""
    # a file that does not tell the process of device work is one process's
    pid = pl.lit(None, pl.Int64).alias("pid") if work["pid"].null_count() else pl.col("pid")
    least = calls.group_by(pid).agg(least=pl.col("correlation").min())
    pieces = work.select(pid, "correlation", length=pl.col("end") - pl.col("start"))
    joined = pieces.join(least, on="pid", how="left", nulls_equal=True)
    before = joined.filter(pl.col("correlation") < pl.col("least"))
    return int(before["length"].sum()) if before.height < work.height else 0


def read_launched_before(beginnings: Sequence[Beginning], reader: Reader) -> int | None:
    """As :func:`launched_before`, by the launch calls of the beginnings; None where there are none.

    Of each file only the events of that time are read again.
    """
    if not beginnings:
        return None
    windows = {one.path: [one.window] for one in beginnings}
    ranks = {None, *(one.rank for one in beginnings)}  # read again, a file may not tell its rank
    unused = ("tid", "stream", "external_id", "bytes")
    traces = reader.traces(Needs({*DEVICE_WORK, *LAUNCH_KINDS}, unused=unused), windows)
    return known_ns(
        launched_before(trace, device_work(trace))
        for trace in traces
        if trace.meta.path in windows and trace.meta.rank in ranks
    )


def known_ns(before: Iterable[int | Beginning | None]) -> int | None:
    """The sum of the times that are known; None where none is."""
    known = [time for time in before if isinstance(time, int)]
    return sum(known) if known else None


def beginnings(before: Iterable[int | Beginning | None]) -> tuple[Beginning, ...]:
    """Those whose launch calls are still to be read."""
    return tuple(one for one in before if isinstance(one, Beginning))


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
