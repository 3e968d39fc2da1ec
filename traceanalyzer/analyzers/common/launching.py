"""Launch calls of device work: host call, thread and operator."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Needs, Reader
from traceanalyzer.analyzers.common.columns import grouped
from traceanalyzer.analyzers.common.device_work import device_work, work_rows
from traceanalyzer.analyzers.common.names import distinct
from traceanalyzer.frames import intervals, linking, nesting
from traceanalyzer.trace import Trace, of_kinds
from traceanalyzer.units import format_frac, format_ns
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH, LAUNCH_KINDS, call_class


def launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return the launch call of device work, matched by correlation id within the process.

    Args:
        trace: trace of one rank with calls of :data:`~traceanalyzer.vocabulary.LAUNCH_KINDS`.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        One row per row of ``work`` with a recorded call, in the order of ``work``: work (row
        number), launch (row of ``events``), rank, pid, tid, launch_name, launch_start, launch_end.
        A graph launch has many rows of work.
    """
    rows = launch_rows(trace, work)
    known = np.flatnonzero(rows != nesting.ROOT)
    launch = pl.Series("launch", rows[known], dtype=pl.UInt32)
    joined = trace.events[["rank", "pid", "tid", "name", "ts", "dur"]][launch]
    return joined.select(
        pl.Series("work", known, dtype=pl.UInt32), launch, "rank", "pid", "tid",
        launch_name="name", launch_start="ts", launch_end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip


def is_graph_capture(trace: Trace) -> bool:
    """Whether a trace is the recording of a capture of CUDA or HIP graphs.

    Inference engines record the capture separately: most of its launch calls start no device work,
    and no graph is launched.
    """
    calls = trace.events[["kind", "name"]].filter(of_kinds(LAUNCH_KINDS))
    names = distinct(calls)
    captures = any("StreamBeginCapture" in name for name in names)
    if not captures or any("GraphLaunch" in name for name in names):
        return False
    launching = [name for name in names if call_class(name) == LAUNCH]
    launched = calls.select(pl.col("name").is_in(launching).sum()).item()
    return 2 * len(work_rows(trace)) < int(launched)


def launch_rows(trace: Trace, work: pl.DataFrame) -> nesting.Rows:
    """Return the row in ``events`` of the launch call of ``work``; ROOT if not recorded.

    Args:
        trace: trace of one rank.
        work: device work with an end, or some of it: ``event`` (row of ``events``), in order.
    """
    rows = trace.once("launch_rows", lambda: _launch_rows(trace))
    if work.height == rows.size:
        return rows
    return rows[np.searchsorted(work_rows(trace).to_numpy(), work["event"].to_numpy())]


def _launch_rows(trace: Trace) -> nesting.Rows:
    """Return the launch calls of all :func:`~.device_work.work_rows`."""
    work = trace.events[["pid", "correlation"]][work_rows(trace)]
    launching = of_kinds(LAUNCH_KINDS) & pl.col("correlation").is_not_null()
    calls = trace.events.select(launching).to_series().arg_true()
    # without the process of device work, the file is of one process
    keys = ["correlation"] if work["pid"].null_count() else ["pid", "correlation"]
    rows = linking.first_match(trace.events.select(keys)[calls], work, keys)
    launched = rows != nesting.ROOT
    rows[launched] = calls.to_numpy()[rows[launched]]
    return rows


#: Calls that replay a CUDA or HIP graph.
GRAPH_LAUNCH = r"(?i)graphlaunch"

#: A launch call that takes longer than this is slow.
SLOW_CALL_NS = 50_000

#: A first launch that takes this many times as long as the later ones of its kernel loads its code.
_FIRST_FACTOR = 10


def first_launches(trace: Trace) -> pl.DataFrame:
    """Return the launch calls that load the code of a kernel, as recorded times show.

    CUDA and HIP load the code of a kernel at its first launch. That call takes more than 50 us and
    ten times as long as the later launches of the kernel, and no earlier work of the stream runs
    when it returns: otherwise it may wait for a place in the queue.

    Args:
        trace: the trace of one rank.

    Returns:
        work (row of :func:`~.device_work.device_work`), launch (row of ``events``), start, end,
        over_ns (its duration less the median of the later calls).
    """
    return trace.once("first_launches", lambda: _first_launches(trace))


def _first_launches(trace: Trace) -> pl.DataFrame:
    work = device_work(trace)
    launch = nesting.row_numbers(launch_rows(trace, work), "launch")
    is_kernel = work["kind"] == "kernel"
    is_slow = is_kernel & (trace.events["dur"][launch] > SLOW_CALL_NS)
    slow = work["name"].filter(is_slow).drop_nulls().unique()
    rows = (is_kernel & work["name"].is_in(slow.implode())).arg_true().alias("work")
    called = trace.events.select("ts", "dur", call="name")[launch[rows]]
    calls = pl.DataFrame([rows, launch[rows], work["name"][rows]]).hstack(called)
    if calls.is_empty():
        return calls.select("work", "launch", start="ts", end="ts", over_ns="dur")
    of_slow = calls.filter(~pl.col("call").cast(pl.String).str.contains(GRAPH_LAUNCH))
    ordered = of_slow.sort("ts").with_columns(
        nth=pl.int_range(pl.len()).over("name"),
        usual=pl.col("dur").slice(1).median().over("name").round().cast(pl.Int64),
    )
    # without a later launch, usual is null
    is_long = pl.col("dur") > pl.max_horizontal(
        pl.lit(SLOW_CALL_NS), _FIRST_FACTOR * pl.col("usual")
    )
    first = ordered.filter(pl.col("nth") == 0, pl.col("usual").is_not_null(), is_long).select(
        "work", "launch", start="ts", end=pl.col("ts") + pl.col("dur"),
        over_ns=pl.col("dur") - pl.col("usual"),
    )  # fmt: skip
    if first.is_empty():
        return first
    free = intervals.reached(work, ["device", "stream"])
    return first.filter((free[first["work"]] <= first["end"]).fill_null(value=True))


#: If device work starts within this time of the first event, it may be launched before.
_AT_START_NS = 2_000_000

#: Upper bound of queued device work: the launch queue of CUDA has about 1,022 entries.
_MOST_QUEUED = 4096

#: Launch calls are not read if the first device work is below this share of the time.
_SMALL_FRAC = 0.05


@dataclass(frozen=True)
class Beginning:
    """The first device work of a recording without launch calls, which were not read.

    Attributes:
        path: path of the file.
        rank: rank of the device work.
        window: (start, end) in which the work starts, on the clock of the file.
    """

    path: str
    rank: int | None
    window: tuple[int, int]


def launched_before(trace: Trace, work: pl.DataFrame) -> int | Beginning | None:
    """Return the total time of device work launched before the recording started.

    Correlation ids increase with time: work was launched before the recording if its id is smaller
    than that of all recorded launch calls of the process. Only traces whose device work starts
    within 2 ms of the first event are checked.

    Args:
        trace: trace of one rank.
        work: all rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        The time in ns. If launch calls were not read, the input of :func:`read_launched_before`, or
        None if the first 4,096 rows take less than 5 % of the time of all work.
    """
    return trace.once("launched_before", lambda: _launched_before(trace, work))


def _launched_before(trace: Trace, work: pl.DataFrame) -> int | Beginning | None:
    first, start = work["start"].min(), trace.meta.start_ns
    if not isinstance(first, int) or start is None or first - start > _AT_START_NS:
        return 0
    is_call = of_kinds(LAUNCH_KINDS) & (pl.col("correlation") > 0)
    calls = trace.events[["kind", "pid", "correlation"]].filter(is_call)
    if not calls.is_empty():
        return _before_ns(calls, work)
    length = work["end"] - work["start"]
    if int(length.head(_MOST_QUEUED).sum()) < _SMALL_FRAC * int(length.sum()):
        return None
    last = work["start"].head(_MOST_QUEUED)[-1]
    return Beginning(trace.meta.path, trace.meta.rank, (start, last + 1))


def _before_ns(calls: pl.DataFrame, work: pl.DataFrame) -> int:
    """Return the time of work with a smaller correlation id than all calls of its process."""
    least = grouped(calls, ["pid"], least=pl.col("correlation").min())
    is_before = pl.lit(value=False)
    if work["pid"].null_count():  # the file is of one process
        is_before = pl.col("correlation") < least["least"].min()
    else:
        for pid, first in least.drop_nulls().iter_rows():
            is_before |= (pl.col("pid") == pid) & (pl.col("correlation") < first)
    length = (pl.col("end") - pl.col("start")).filter(is_before).sum()
    count, before_ns = work.select(is_before.sum().alias("n"), length.alias("ns")).row(0)
    return int(before_ns) if count < work.height else 0


def read_launched_before(beginnings: Sequence[Beginning], reader: Reader) -> int | None:
    """Read the launch calls of beginnings, and return the time as :func:`launched_before`.

    Only events in the windows are read again. None without beginnings.
    """
    if not beginnings:
        return None
    windows = {one.path: [one.window] for one in beginnings}
    ranks = {None, *(one.rank for one in beginnings)}  # on a second read, a file may have no rank
    unused = ("tid", "stream", "external_id", "bytes")
    traces = reader.traces(Needs({*DEVICE_WORK, *LAUNCH_KINDS}, unused=unused), windows)
    return known_ns(
        launched_before(trace, device_work(trace))
        for trace in traces
        if trace.meta.path in windows and trace.meta.rank in ranks
    )


def known_ns(before: Iterable[int | Beginning | None]) -> int | None:
    """Return the sum of known times; None if none is known."""
    known = [time for time in before if isinstance(time, int)]
    return sum(known) if known else None


def beginnings(before: Iterable[int | Beginning | None]) -> tuple[Beginning, ...]:
    """Return the beginnings whose launch calls are not yet read."""
    return tuple(one for one in before if isinstance(one, Beginning))


def note_launched_before(before_ns: int | None, whole_ns: int) -> tuple[str, ...]:
    """Return a note on device work launched before the recording started, if any."""
    if not before_ns or not whole_ns:
        return ()
    share = f"{format_frac(before_ns / whole_ns)} of the time of device work"
    missing = "was launched before the recording started: no launch call was recorded for it."
    return (f"{share} ({format_ns(before_ns)}) {missing}",)


def with_external_ids(
    caller: nesting.Rows, work: pl.DataFrame, slices: pl.DataFrame
) -> nesting.Rows:
    """Return the callers of device work, completed by external ids.

    Some versions of PyTorch renumber operators when they write the file, so that an id refers to an
    unrelated operator. Ids are used only if they agree for most work with a known caller.

    Args:
        caller: row of ``slices`` per row of ``work``, or :data:`~.frames.nesting.ROOT`.
        work: external_id, start.
        slices: start, external_id (null without an operator).
    """
    has_id = pl.col("external_id") > 0  # 0 is not an operator
    rest = work[["external_id", "start"]].with_row_index("work")
    rest = rest.filter(has_id, pl.Series(caller == nesting.ROOT))
    if rest.is_empty():
        return caller
    known = np.flatnonzero(caller != nesting.ROOT)
    agree = (work["external_id"][known] == slices["external_id"][caller[known]]).mean()
    if isinstance(agree, float) and agree < 1 / 2:
        return caller
    used = pl.col("external_id").is_in(rest["external_id"].unique().implode())
    rows = slices[["start", "external_id"]].with_row_index("row").filter(used)
    pairs = linking.link(rows, rest, ["external_id"])
    left, right = rows[pairs["left"]], rest[pairs["right"]]
    possible = left["start"] <= right["start"]
    callers = caller.copy()
    callers[right["work"].filter(possible)] = left["row"].filter(possible)
    return callers


def is_blocking(work: pl.DataFrame, launched: pl.DataFrame) -> bool:
    """Return whether nearly all kernels that are not short run within their own launch call.

    Args:
        work: kind, start, end of device work.
        launched: work (row), start, end of its launch calls.
    """
    kernels = launched.hstack(work.select("kind", begin="start", until="end")[launched["work"]])
    long = pl.col("until") - pl.col("begin") > _LONG_NS
    kernels = kernels.filter(long, pl.col("kind") == "kernel")
    within = (pl.col("start") <= pl.col("begin")) & (pl.col("until") <= pl.col("end"))
    share = kernels.select(within.mean()).item() or 0
    return bool(kernels.height >= _ENOUGH_KERNELS and share >= _NEARLY_ALL)


def wait_for_null_stream(work: pl.DataFrame, launched: pl.DataFrame) -> bool:
    """Return whether nearly all copies on other streams run between kernels of the null stream.

    Each was enqueued before one of these kernels ended, began right after it, and ended before the
    next one began. Copies of CUDA graphs do not count.

    Args:
        work: device, stream, kind, start, end of device work.
        launched: work (row), start, end of its launch calls.
    """
    is_kernel = pl.col("kind") == "kernel"
    of_null = work.filter(is_kernel, pl.col("stream").is_in(_NULL_STREAMS)).select(
        "device", since="end", until=pl.col("start").shift(-1).over("device")
    )
    alone = launched.filter(pl.col("start").is_unique()).select("work", enqueued="end")
    copies = work.select("device", "stream", "kind", "start", "end")[alone["work"]].hstack(alone)
    copies = copies.filter(~is_kernel, ~pl.col("stream").is_in(_NULL_STREAMS)).sort("start")
    rows = copies.join_asof(
        of_null.sort("since"), left_on="start", right_on="since", by="device",
        check_sortedness=False,
    )  # fmt: skip
    begin, next_ = pl.col("start") - pl.col("since"), pl.col("until").fill_null(pl.col("end"))
    waits = (pl.col("enqueued") < pl.col("since")) & (begin < _LONG_NS) & (pl.col("end") <= next_)
    return rows.height >= _ENOUGH_KERNELS and (rows.select(waits.mean()).item() or 0) >= _NEARLY_ALL


def is_late(work: pl.DataFrame, launched: pl.DataFrame) -> bool:
    """Return whether most copies have streams of their own, but what is launched next waits.

    It is most of their time, their streams run no kernels, and kernels run in less than half of it.

    Args:
        work: device, stream, kind, start, end of device work.
        launched: work (row), start, end of its launch calls.
    """
    rows = work.select("device", "stream", "kind", "start", "end")[launched["work"]]
    rows = rows.with_columns(at=launched["start"])
    copies, length = rows.filter(kind="gpu_memcpy").sort("at"), pl.col("end") - pl.col("start")
    if copies.is_empty():
        return False
    kernels = rows.filter(kind="kernel").sort("at")
    apart = copies.join(kernels, on=["device", "stream"], how="anti", nulls_equal=True)
    waits = apart.join_asof(
        kernels.select("device", "at", begin="start"), on="at", by="device", strategy="forward",
        check_sortedness=False,
    ).filter(pl.col("begin") >= pl.col("end"))  # fmt: skip
    waiting, whole = (int(one.select(length.sum()).item()) for one in (waits, copies))
    overlap = intervals.overlap_with(waits, kernels, ["device"])["overlap"].sum()
    return 2 * waiting > whole and 2 * overlap < waiting


#: The null stream in CUPTI and in ROCm.
_NULL_STREAMS = (7, 0)
#: From this number of longer kernels and share on, launch calls wait for their kernels.
_LONG_NS, _ENOUGH_KERNELS, _NEARLY_ALL = 10_000, 20, 0.95
