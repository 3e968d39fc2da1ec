"""The program of one rank: host calls, device work, and what each of them waits for.

Sources: CUDA C++ Programming Guide (streams, events); Lumos, arXiv 2504.09307, for edges between
streams; OSDI'25 "Understanding Stragglers in Large Model Training Using What-if Analysis" for
transfers of collectives.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.base import AnalyzerOptions, Needs
from traceanalyzer.analyzers.comm_outliers.collectives import communication
from traceanalyzer.analyzers.comm_outliers.pipelines import POINT_TO_POINT_NAME
from traceanalyzer.analyzers.common import clocks, device_steps, soundness, step_marks
from traceanalyzer.analyzers.common.device_work import launched_work
from traceanalyzer.analyzers.common.host_code import THREAD, places_of, running, slices
from traceanalyzer.analyzers.common.launching import first_launches, launch_rows
from traceanalyzer.analyzers.common.names import distinct, mapped, matching, named
from traceanalyzer.analyzers.common.replays import captures
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.host import computing, launch_time, slices_of
from traceanalyzer.analyzers.replay import host, profiler
from traceanalyzer.analyzers.replay.host import RUN
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, linking, nesting
from traceanalyzer.trace import Trace, of_kinds, record_hint
from traceanalyzer.vocabulary import (
    ALLOCATES,
    ANNOTATION_KINDS,
    BUILD_GRAPH,
    COPY,
    DEVICE_WORK,
    EVENT_RECORD,
    HOST_KINDS,
    LAUNCH_KINDS,
    LOAD_MODULE,
    NUMBERED_STEP,
    OTHER_CALLS,
    POINT_TO_POINT,
    STREAM_WAIT,
    SYNCHRONISE,
    SYNCHRONISING_CALLS,
    call_class,
)

#: Device work starts at most this long after its launch call if nothing else delays it.
LATENCY_NS = 10_000
#: Work follows the work that it waits for within this time if nothing else delays it ...
GAP_NS = 2_000
#: ... or within this time if it was launched long before.
LONG_GAP_NS = 10_000
#: Time of host code before a call that has the name of its Python frame or operator.
_CODE_NS = 100_000
#: Times of host and device that differ by less are equal.
ROUNDING_NS = 2_000
#: A launch call that takes this long may wait for a free entry of the launch queue ...
BLOCKED_NS = 50_000
#: ... if this many launches are queued.
QUEUED = 500

#: So much work may begin and end within the rounding.
_SHORT_WORK = 3

#: A call after which the thread waits for the device in a pause, without a recorded call.
PAUSE = "pause"
#: A shorter pause is no wait; most of it has no recorded calls ...
_PAUSE_NS, _LEAST_PAUSE = 100_000, 0.9
#: ... and in half of them, at least so many, it ends so shortly after work, as a share.
_LEAST_PAUSES, _REST = 8, 0.1
#: Fewer pauses are waits if they end with all queued work (or so much earlier, by the clock of the
#: device) more exactly than by this chance.
_FEW_PAUSES, _EARLY, _CHANCE = 4, 0.01, 1e-4
#: Clocks and rounding may put the end of a wait before that of the work, by this share. By chance
#: it lies so close behind that of all work in this share of pauses.
_EXACT = 0.001

#: Without a recorded launch call for this share of the work, the program is not known.
MOST_MISSING = 0.25

#: Kinds of calls that neither launch nor wait, by class; other calls count if they are long.
OF_CALLS = {"memory": ALLOCATES, "graph": (BUILD_GRAPH,), "module": (LOAD_MODULE,),
            "other": OTHER_CALLS}  # fmt: skip
_IF_LONG = (LOAD_MODULE, *OTHER_CALLS)
#: Numbers in names with more digits are not numbers of steps.
_MOST_DIGITS = 9
_LANE = ["device", "stream"]
_SPAN = ["thread", "start", "end"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Program(clocks.Origin):
    """The program of one rank. Times are on the clock of the file, in ns.

    Attributes:
        world_size: number of ranks of the job, or None.
        calls: host calls that launch device work or wait for it, in order: name, start, end; thread
            (threads that launch kernels count as one), loader_ns, launch_ns, code_ns: the time
            since the previous call of the thread in the data loader, in operators and calls, in
            other code; profiler_frac, profiler_most_frac, see :func:`.profiler.shares`; call_ns,
            the time in the call without waiting, and while a graph is captured; tail_ns, from the
            end of the work that the call waits for to its end; kind: ``synchronise``,
            ``allocate``, ``copy``, ``queue``, ``collective``, ``run`` (an operator, without
            devices), ``pause`` (after it the thread waits, without a recorded call), those of
            :data:`OF_CALLS`, which do not wait, or null; step
            (number); group, a collective on the host; range, the innermost annotation, and
            range_before, of the time before the call; code, the name and share of each part of
            the host code in that time, if only a step is around it; operator, the number of the
            innermost one.
        work: device work in order of launch: call (row of calls, null if not recorded), device,
            stream, start, end, name, work_kind, step; after, the row of work that it follows on its
            stream (-1: none); latency_ns after the launch call, lag_ns after the work that it waits
            for, rest_ns, unexplained; collective, elements_in, group, size, seq of a collective;
            range.
        waits: work (row) or call (row), and after, the row of work that it waits for; inferred.
        steps: rows of :func:`~traceanalyzer.analyzers.common.device_steps.device_steps`.
        ranges: names of annotations.
        recorded_steps: number of steps of the recording; ``steps`` may be a :mod:`.sample`.
        missing: number of rows of work without a launch call.
        unread_events: the events that streams wait for are in arguments that were not read.
        apart: the steps were not recorded one after another.
        hint: how to record (or to read) which events streams wait for, or empty.
    """

    world_size: int | None
    calls: pl.DataFrame
    work: pl.DataFrame
    waits: pl.DataFrame
    steps: pl.DataFrame
    ranges: tuple[str, ...]
    recorded_steps: int
    missing: int
    unread_events: bool
    apart: bool
    hint: str

    @property
    def in_pairs(self) -> npt.NDArray[np.bool_]:
        """Which rows of work are sends and receives: without the data, the next work cannot run."""
        pairs = self.work["collective"].cast(pl.String).str.contains(POINT_TO_POINT_NAME)
        return pairs.fill_null(value=False).to_numpy()

    @property
    def is_sample(self) -> bool:
        """Whether not all recorded steps are replayed."""
        return self.steps.height < self.recorded_steps

    @property
    def on_host(self) -> bool:
        """Whether no device work was recorded: the work is operators of the main thread."""
        return bool((self.calls["kind"] == RUN).any())


_READ = 'read the file with columns=["args"]'
#: The data that a program is built from.
NEEDS = Needs(
    {*DEVICE_WORK, *HOST_KINDS, "cuda_sync"} - {"osrt", "overhead"}, step_marks.MARK_NAMES
)


def more(parts: Sequence[Program], _options: AnalyzerOptions) -> Needs | None:
    """Request arguments too if they tell which event a stream waits for."""
    unread = any(part.unread_events for part in parts)
    return replace(NEEDS, columns=("args",)) if unread else None


def more_with_graphs(parts: Sequence[Program], options: AnalyzerOptions) -> Needs | None:
    """Request the arrows too, which have the dependencies of the nodes of CUDA graphs."""
    if not any(part.work["call"].drop_nulls().is_duplicated().any() for part in parts):
        return more(parts, options)
    wanted = more(parts, options) or NEEDS
    return replace(wanted, kinds=wanted.kinds | {"flow"})


def measure(
    trace: Trace, _options: AnalyzerOptions | None = None, steps: pl.DataFrame | None = None
) -> Program:
    """Return the program of the rank of a trace, with these steps or those found in it.

    Raises:
        MissingData: neither device work nor operators, or too few launch calls, were recorded.
    """
    work = launched_work(trace)
    if work.is_empty():
        return _of_host(trace)
    launched_by = launch_rows(trace, work)
    _require_launches(trace, launched_by)
    collectives = communication(trace)
    steps = device_steps.device_steps(trace) if steps is None else steps
    calls = _calls(trace, launched_by, collectives, steps)
    calls = calls.hstack(profiler.shares(trace, calls))
    order, call = _launch_order(calls, work, launched_by)
    work, call = work[order], call[order]
    launched_at = calls["start"].gather(pl.Series(call).replace(-1, None))
    step = device_steps.launching_step(steps, launched_at, work["start"])
    called_in = device_steps.launching_step(steps, calls["start"], calls["start"])
    work = work.with_columns(step, lane=_lanes(work))
    graphs = _graph_edges(trace, work)
    edges = pl.concat([_event_edges(trace, calls, work, call), graphs])
    chain = _stream_order(work, call)
    nodes = graphs["work"].to_numpy()
    nodes = nodes[call[nodes] == call[chain[nodes]]]
    chain[nodes] = -1  # nodes of one graph wait for what they depend on, not for their stream
    unexplained = _delays(work, calls, call, _ready(work, edges, chain))
    edges = pl.concat([edges, _coincidences(unexplained)])
    work = _delays(work, calls, call, _ready(work, edges, chain))
    calls, blocking = _blocking(trace, calls, work, call)
    calls, paused = _pauses(calls, work, call)
    ranges, of_call, of_work = _ranges(trace, calls, work, call)
    has_events = "cuda_sync" in trace.kinds
    unread = has_events and "args" not in trace.events.columns
    return Program(
        **clocks.origin(trace.meta),
        world_size=trace.meta.world_size,
        calls=calls.with_columns(called_in).hstack(of_call).drop("event"),
        work=_described(work, collectives).with_columns(
            pl.Series("call", call).replace(-1, None), after=pl.Series(chain), range=of_work
        ),
        waits=pl.concat([edges, blocking, paused], how="diagonal"),
        steps=steps,
        ranges=tuple(ranges.to_list()),
        recorded_steps=steps.height,
        missing=int((call < 0).sum()),
        unread_events=unread,
        apart=_apart(steps["step"].to_list()),
        hint=_READ * unread if has_events else record_hint(trace.meta, "cuda_sync"),
    )


def _of_host(trace: Trace) -> Program:
    """Return the program of a rank without device work; see :mod:`.host`."""
    steps = device_steps.device_steps(trace)
    calls, ran = host.calls(trace, steps)
    calls = calls.with_columns(_host_time(trace, calls, steps)).drop("since")
    work = host.work(calls, ran)
    call = work["call"].to_numpy()
    on_thread = work["stream"].is_not_null().to_numpy()
    chain = np.where(on_thread, _stream_order(work.with_columns(_lanes(work)), call), -1)
    ready = _ready(work, _edges(call[:0], call[:0], inferred=False), chain)
    rest = work["start"].to_numpy() - np.maximum(ready, calls["start"].to_numpy()[call])
    ranges, of_call, of_work = _ranges(trace, calls, work, call)
    return Program(
        **clocks.origin(trace.meta), world_size=trace.meta.world_size, calls=calls.hstack(of_call),
        work=work.drop("awaited", "called").with_columns(
            rest_ns=pl.Series(rest), after=pl.Series(chain), range=of_work
        ),
        waits=host.waits(calls, work), steps=steps, ranges=tuple(ranges.to_list()),
        recorded_steps=steps.height, missing=0, unread_events=False,
        apart=_apart(steps["step"].to_list()), hint="",
    )  # fmt: skip


def _require_launches(trace: Trace, launched_by: nesting.Rows) -> None:
    count, missing = launched_by.size, int((launched_by == nesting.ROOT).sum())
    if missing > MOST_MISSING * count:
        problem = soundness.unlinked(trace) or (
            f"the launch calls of {missing:,} of {count:,} kernels and copies were not recorded, "
            f"so it is not known what they waited for; {record_hint(trace.meta, 'device work')}"
        )
        raise MissingData(f"{trace.meta.path}: {problem}")


def _apart(names: list[str | None]) -> bool:
    """Whether half of the numbers of steps jump: they were not recorded one after another."""
    digits = [int(text) for text in (_last_number(name) for name in names) if text is not None]
    return 2 * sum(b - a > 1 for a, b in pairwise(digits)) >= max(len(digits) - 1, 1)


def _last_number(name: str | None) -> str | None:
    digits = (name or "").rpartition("#")[2]
    return digits if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None


# --- host calls ------------------------------------------------------------------------------


def _calls(
    trace: Trace, launched_by: nesting.Rows, collectives: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Return the calls that matter: event, name, start, end, thread, and the time before each.

    The time before the first call of the threads that launch kernels begins with the first step.
    ``does`` is the class of a call; of a collective on the host, ``group`` is not null.
    """
    launching = np.zeros(trace.events.height, bool)
    launching[launched_by[launched_by != nesting.ROOT]] = True
    on_host = collectives.filter(
        pl.col("stream").is_null(), ~pl.col("collective").is_in(POINT_TO_POINT).fill_null(False)
    ).select("event", group=pl.coalesce("group", "name"))
    meeting = np.zeros(trace.events.height, bool)
    meeting[on_host["event"].to_numpy()] = True
    is_call = of_kinds(LAUNCH_KINDS)
    names = distinct(trace.events[["kind", "name"]].filter(is_call))
    known = [name for name in names if call_class(name) in (SYNCHRONISE, *ALLOCATES, BUILD_GRAPH)]
    known += matching(names, [*SYNCHRONISING_CALLS, EVENT_RECORD, STREAM_WAIT])
    other = [name for name in names if call_class(name) in _IF_LONG]
    is_long = pl.col("name").is_in(other) & (pl.col("dur") > causes.LONG_CALL_NS)
    is_call &= pl.col("name").is_in(known) | is_long
    closed = pl.col("tid").is_not_null() & (pl.col("dur") >= 0)
    matter = is_call | pl.Series(launching | meeting)
    event = trace.events.select((closed & matter).arg_true()).to_series().alias("event")
    rows = trace.events[["name", "pid", "tid", "ts", "dur"]][event]
    calls = rows.select(
        event, "name", "pid", "tid", start="ts", end=pl.col("ts") + pl.col("dur"),
        does=mapped(rows["name"], call_class),
        launching=pl.Series(launching)[event],
    ).join(on_host, on="event", how="left", maintain_order="left")  # fmt: skip
    kernel_threads = calls.filter("launching", pl.col("does") != COPY)["tid"].unique()
    thread = pl.when(pl.col("tid").is_in(kernel_threads.implode())).then(-1).otherwise("tid")
    calls = calls.with_columns(thread=thread).sort("start", "event")
    begin = pl.when(pl.col("thread") == -1).then(pl.lit(steps["host_start"].min(), pl.Int64))
    before = pl.col("end").cum_max().shift(1).over("thread")
    since = pl.min_horizontal(pl.coalesce(before, begin), "start")
    overlap = (pl.coalesce(before, "start") - pl.col("start")).clip(lower_bound=0)
    calls = calls.with_columns(
        since=since, call_ns=(pl.col("end") - pl.col("start") - overlap).clip(lower_bound=0)
    )
    calls = calls.with_columns(_host_time(trace, calls, steps)).drop("since", "launching")
    return _capturing(calls, trace.names)


def _capturing(calls: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return the calls; host time while the thread captures a graph becomes time in calls of it."""
    after = calls.select("thread", ts=pl.col("start") - 1)
    inside = linking.label_by_interval(after, captures(calls, names), ["thread"])["interval"]
    is_inside, before = inside.is_not_null(), calls["launch_ns"] + calls["code_ns"]
    return calls.with_columns(
        pl.col("launch_ns", "code_ns") * ~is_inside,
        call_ns=calls["call_ns"] + before * is_inside,
        does=pl.when(is_inside).then(pl.lit(BUILD_GRAPH)).otherwise("does"),
    )


def _host_time(trace: Trace, calls: pl.DataFrame, steps: pl.DataFrame) -> list[pl.Series]:
    """Divide the time before each call: in the data loader, launching or in calls, elsewhere.

    What the thread that marks the steps loads counts for the threads that launch kernels.
    """
    windows = calls.select("thread", start="since", end="start")
    threads = calls[["pid", "tid", "thread"]].unique()
    looping = steps.select("pid", "tid", thread=pl.lit(-1, pl.Int64)).unique()
    looping = looping.join(threads, on=looping.columns, how="anti", nulls_equal=True)
    slices, others = (slices_of(trace, some) for some in (threads, looping))
    loads = of_kinds(causes.DATALOADER_KINDS) & named(trace.names, causes.DATALOADER)
    loader = pl.concat([slices, others]).filter(loads)
    of_calls = slices.filter(pl.col("kind").is_in(LAUNCH_KINDS))
    launches = pl.col("launching") if "launching" in calls.columns else pl.lit(value=False)
    launched, rest = calls.filter(launches), calls.filter(~launches)
    others = pl.concat([rest[_SPAN], of_calls[_SPAN]])
    on_cpu = computing(slices, trace.names, launched)
    launch = launch_time(slices, trace.names, launched, others)
    launch = intervals.subtract(launch, on_cpu, ["thread"])
    length = windows["end"] - windows["start"]
    loading = intervals.overlap_with(windows, loader, ["thread"])["overlap"]
    both = pl.concat([loader[_SPAN], launch])
    launching = intervals.overlap_with(windows, both, ["thread"])["overlap"] - loading
    return [
        loading.alias("loader_ns"),
        launching.alias("launch_ns"),
        (length - loading - launching).alias("code_ns"),
    ]


def _launch_order(
    calls: pl.DataFrame, work: pl.DataFrame, launched_by: nesting.Rows
) -> tuple[Ints, Ints]:
    """Return the order in which work was launched, and the call of each row of work (-1: none).

    Work without a call comes before the first call that began after the work.
    """
    events = calls["event"].to_numpy()
    by_event = np.argsort(events, kind="stable")
    place = np.searchsorted(events[by_event], launched_by)
    known = (launched_by != nesting.ROOT) & (events.size > 0)  # calls without a thread are none
    call = np.full(work.height, -1, np.int64)
    call[known] = by_event[np.minimum(place[known], events.size - 1)]
    start = work["start"].to_numpy()
    at = np.where(
        known, call.astype(float), np.searchsorted(calls["start"].to_numpy(), start) - 0.5
    )
    return np.lexsort((np.arange(work.height), start, at)), call


# --- device work -----------------------------------------------------------------------------


def _lanes(work: pl.DataFrame) -> pl.Series:
    return work.select(pl.struct(_LANE).rank("dense").cast(pl.Int64) - 1).to_series().alias("lane")


def _stream_order(work: pl.DataFrame, call: Ints) -> Ints:
    """Return the row of work that each row follows on its stream; -1 for the first.

    That is the row before it. Nodes of one graph may run at the same time on one stream: such a row
    follows the last one that had ended, and the row after the graph the one that ends last.
    """
    after = np.full(work.height, -1, np.int64)
    lanes = work["lane"].to_numpy()
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    for lane in np.unique(lanes):
        rows = np.flatnonzero(lanes == lane)
        after[rows[1:]] = rows[:-1]
        ends = np.maximum.accumulate(end[rows])
        same_graph = (call[rows[1:]] == call[rows[:-1]]) & (call[rows[1:]] >= 0)
        parallel = np.append(False, same_graph & (start[rows[1:]] < ends[:-1] - ROUNDING_NS))
        if not parallel.any():
            continue
        by_end = rows[np.argsort(end[rows], kind="stable")]
        place = np.searchsorted(end[by_end], start[rows[parallel]], "right") - 1
        found = by_end[np.maximum(place, 0)]
        after[rows[parallel]] = np.where((place >= 0) & (found < rows[parallel]), found, -1)
        reached = np.flatnonzero(end[rows] == ends)
        last = reached[np.searchsorted(reached, np.arange(rows.size), "right") - 1]
        behind = np.flatnonzero(np.append(False, parallel[:-1]) & ~parallel)
        after[rows[behind]] = rows[last[behind - 1]]
    return after


def _edges(row: Ints, after: Ints, *, inferred: bool) -> pl.DataFrame:
    known = after >= 0
    columns = {"work": row, "after": after, "inferred": np.full(row.size, inferred)}
    return pl.DataFrame([pl.Series(name, column[known]) for name, column in columns.items()])


def _ready(work: pl.DataFrame, edges: pl.DataFrame, chain: Ints) -> Floats:
    """Return when all work that each row waits for had ended; -inf if it waits for none."""
    end = work["end"].to_numpy().astype(float)
    ready = np.where(chain >= 0, end[np.maximum(chain, 0)], -np.inf)
    np.maximum.at(ready, edges["work"].to_numpy(), end[edges["after"].to_numpy()])
    return ready


def _delays(work: pl.DataFrame, calls: pl.DataFrame, call: Ints, ready: Floats) -> pl.DataFrame:
    """Explain the start of each row: its launch call, the work that it waits for, or neither.

    start = max(ready + lag, launch + latency) + rest.
    """
    start = work["start"].to_numpy().astype(float)
    at = calls["start"].to_numpy().astype(float) if calls.height else np.zeros(1)
    launch = np.where(call >= 0, at[np.maximum(call, 0)], -np.inf)
    since, waited = start - ready, start - launch
    by_work = (since <= GAP_NS) | ((since <= LONG_GAP_NS) & (waited > LATENCY_NS))
    by_launch = ~by_work & (waited <= LATENCY_NS)
    gaps = since[by_work & (since >= 0)]
    usual_gap = float(np.median(gaps)) if gaps.size else 0.0
    usual = np.median(waited[by_launch]) if by_launch.any() else LATENCY_NS / 2
    latency = np.where(by_launch, waited, np.minimum(waited, usual))
    lag = np.where(by_work, since, np.minimum(since, usual_gap))
    expected = np.maximum(ready + lag, launch + latency)
    rest = np.where(np.isfinite(expected), start - expected, 0.0)
    return work.with_columns(
        latency_ns=pl.Series(np.where(call >= 0, latency, 0.0)),
        lag_ns=pl.Series(np.where(np.isfinite(ready), lag, 0.0)),
        rest_ns=pl.Series(rest),
    )


def _described(work: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Add group, size and number of the collectives."""
    size = pl.coalesce("group_size", pl.col("group_ranks").str.count_matches(",") + 1)
    group = pl.concat_str(
        pl.coalesce("group", pl.col("stream").cast(pl.String)),
        pl.col("group_ranks").fill_null(""),
        separator=" ",
    )
    known = collectives.filter(pl.col("stream").is_not_null()).select(
        "event",
        "seq",
        "collective",
        "elements_in",
        group=group.cast(pl.Categorical),
        size=size.cast(pl.Int64),
    )
    return work.join(known, on="event", how="left", maintain_order="left").drop(
        "event", "pid", "correlation", "external_id", "bytes", "kind", "rank", "lane"
    )


# --- events of streams -----------------------------------------------------------------------


def _event_edges(trace: Trace, calls: pl.DataFrame, work: pl.DataFrame, call: Ints) -> pl.DataFrame:
    """Return which work waits for which: a stream waits for an event of another stream.

    Exact where the events were recorded; otherwise a wait is for the record before it.
    """
    empty = _edges(np.zeros(0, np.int64), np.zeros(0, np.int64), inferred=False)
    if not matching(trace.names, [STREAM_WAIT]):
        return empty
    lanes = _Lanes(work["lane"].to_numpy(), call)
    exact = _recorded_events(trace, calls, work)
    if exact is not None:
        records, waits = exact
        of_record = {key: lanes.last(lane, at) for key, lane, at in records.iter_rows()}
        pairs = [
            (lanes.next(lane, at), of_record.get(key, -1)) for key, lane, at in waits.iter_rows()
        ]
    else:
        pairs = _nearest_records(trace, calls, lanes)
    if not pairs:
        return empty
    row, after = np.array(pairs, np.int64).T
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    possible = (row >= 0) & (after >= 0) & (after < row)
    if exact is None:
        possible &= start[row] >= end[after] - ROUNDING_NS
    return _edges(row[possible], after[possible], inferred=exact is None).unique(
        maintain_order=True
    )


def _graph_edges(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return the recorded dependencies of the nodes of graphs.

    They are arrows from the end of a node to the start of another one, of the same replay.
    """
    if trace.flows.is_empty():
        return _edges(*np.zeros((2, 0), np.int64), inferred=False)
    lane = ["pid", "tid"]
    lane_of_work = (pl.col(name).cast(pl.Int64) for name in _LANE)
    rows = work.select(
        *("start", "end", "correlation"), pl.int_range(pl.len()).alias("row"),
        **dict(zip(lane, lane_of_work, strict=True)),
    )  # fmt: skip
    first, last = (
        trace.flows.filter(phase=phase).join(
            rows.unique([*lane, time]), left_on=[*lane, "ts"], right_on=[*lane, time]
        )
        for phase, time in (("start", "end"), ("end", "start"))
    )
    found = last.join(first, on=["flow", "correlation"]).filter(pl.col("row_right") < pl.col("row"))
    after = found["row_right"].to_numpy()
    return _edges(found["row"].to_numpy(), after, inferred=False).unique(maintain_order=True)


class _Lanes:
    """Work by lane, in order of launch."""

    def __init__(self, lane: Ints, call: Ints) -> None:
        self.lane, self.call = lane, call
        self.rows = {int(one): np.flatnonzero(lane == one) for one in np.unique(lane)}
        self.calls = {one: np.maximum.accumulate(call[rows]) for one, rows in self.rows.items()}

    def last(self, lane: int | None, at: int) -> int:
        """Return the last work of a lane that was launched before a call; -1 for none."""
        if lane is None or lane not in self.rows:
            return -1
        place = int(np.searchsorted(self.calls[lane], at))
        return int(self.rows[lane][place - 1]) if place else -1

    def next(self, lane: int | None, at: int) -> int:
        """Return the first work of a lane that was launched after a call; -1 for none."""
        if lane is None or lane not in self.rows:
            return -1
        place = int(np.searchsorted(self.calls[lane], at, "right"))
        rows = self.rows[lane]
        return int(rows[place]) if place < rows.size else -1


def _recorded_events(
    trace: Trace, calls: pl.DataFrame, work: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame] | None:
    """Return the recorded events and waits: key (correlation of the record), lane, call.

    None if ``cuda_sync`` rows or their arguments were not recorded or not read.
    """
    if "args" not in trace.events.columns:
        return None
    columns = ["name", "device", "stream", "correlation", "args"]
    rows = trace.events.filter(pl.col("kind") == "cuda_sync")[columns]
    target = pl.col("args").str.json_path_match("$.wait_on_cuda_event_record_corr_id")
    rows = rows.with_columns(
        pl.col("name").cast(pl.String), key=target.cast(pl.Int64, strict=False)
    )
    lanes = work.unique("lane").select("lane", *_LANE)
    numbered = calls.select(at=pl.int_range(pl.len()), event="event").with_columns(
        correlation=trace.events["correlation"][calls["event"]]
    )
    rows = rows.join(lanes, on=_LANE, how="left", maintain_order="left").join(
        numbered.unique("correlation"), on="correlation", maintain_order="left"
    )
    waits = rows.filter(pl.col("key") >= 0).select("key", "lane", "at")
    if waits.is_empty():
        return None
    records = rows.filter(pl.col("name").str.contains("Record"))
    return records.select(key="correlation", lane="lane", at="at"), waits


def _nearest_records(trace: Trace, calls: pl.DataFrame, lanes: _Lanes) -> list[tuple[int, int]]:
    """Pair each wait with the record before it on its thread.

    A record is of the stream of the last launch before it; a wait is of the stream of the next
    launch after it, if that is another one.
    """
    is_record, is_wait = (
        calls["name"].is_in(matching(trace.names, [pattern])).to_list()
        for pattern in (EVENT_RECORD, STREAM_WAIT)
    )
    last_of_call, first_of_call = (np.full(calls.height + 1, -1, np.int64) for _ in range(2))
    rows = np.arange(lanes.call.size)
    last_of_call[lanes.call], first_of_call[lanes.call[::-1]] = rows, rows[::-1]
    after = np.full(calls.height, -1, np.int64)
    following = -1
    for number in range(calls.height - 1, -1, -1):
        after[number] = following
        following = first_of_call[number] if first_of_call[number] >= 0 else following
    pairs, before, recorded = [], -1, -1
    for number, (record, wait) in enumerate(zip(is_record, is_wait, strict=True)):
        if record:
            recorded = before
        elif wait and recorded >= 0:
            row = int(after[number])
            if row >= 0 and lanes.lane[row] != lanes.lane[recorded]:
                pairs.append((row, int(recorded)))
        if last_of_call[number] >= 0:
            before = int(last_of_call[number])
    return pairs


def _coincidences(work: pl.DataFrame) -> pl.DataFrame:
    """Return waits for work of another stream that ends when work starts without another reason."""
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    late = np.flatnonzero(work["rest_ns"].to_numpy() > ROUNDING_NS)
    numbers = work["device"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
    apart = numbers * (end.max(initial=0) - start.min(initial=0) + 1)  # one device after another
    order = np.argsort(end + apart, kind="stable")
    place = np.searchsorted((end + apart)[order], (start + apart)[late] + ROUNDING_NS, "right") - 1
    for _ in range(_SHORT_WORK):  # itself, and short work after it, may have ended by then
        place -= order[np.maximum(place, 0)] >= late
    found = order[np.maximum(place, 0)]
    lane, device = work["lane"].to_numpy(), work["device"].fill_null(-1).to_numpy()
    possible = (
        (place >= 0)
        & (found < late)
        & (lane[found] != lane[late])
        & (device[found] == device[late])
        & (start[late] - end[found] <= LONG_GAP_NS)
    )
    return _edges(late[possible], found[possible], inferred=True)


# --- calls that wait -------------------------------------------------------------------------


def _blocking(
    trace: Trace, calls: pl.DataFrame, work: pl.DataFrame, call: Ints
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the calls with what they wait for: kind, and rows of waits with ``call``."""
    kinds = _kinds(trace, calls, work, call)
    start, end = work["start"].to_numpy(), work["end"].to_numpy()
    until, spent = calls["end"].to_numpy(), calls["call_ns"].to_numpy().astype(float)
    done = until + np.clip(_EXACT * spent, ROUNDING_NS, LATENCY_NS)
    lanes = _Lanes(work["lane"].to_numpy(), call)
    pairs: list[tuple[int, int]] = []
    last_work, launched = np.full(calls.height, -1), np.flatnonzero(call >= 0)
    last_work[call[launched]] = launched
    for number in (~kinds.is_in(["", *OF_CALLS])).arg_true().to_list():
        kind = kinds[number]
        if kind == "copy":
            rows = [int(last_work[number])]
        elif kind == "queue":
            # an entry is free when work starts, or before, when it ends
            place = int(np.searchsorted(start, until[number], "right"))
            begun = range(max(place - _SHORT_WORK, 0), min(place, last_work[number] - QUEUED))
            rows = [row for row in begun if end[row] <= done[number]][-1:]
        else:
            rows = [lanes.last(lane, number) for lane in lanes.rows]
        pairs += [(number, row) for row in rows if row >= 0 and end[row] <= done[number]]
    edges = np.array(pairs, np.int64).reshape(-1, 2)
    ready = np.full(calls.height, -np.inf)
    np.maximum.at(ready, edges[:, 0], end[edges[:, 1]].astype(float))
    blocked = ready > calls["start"].to_numpy() + 0.2 * spent
    tail = np.where(blocked, np.maximum(until - ready, 0.0), 0.0)
    calls = calls.with_columns(
        call_ns=pl.Series(np.where(blocked, np.minimum(spent, GAP_NS), spent)),
        tail_ns=pl.Series(tail),
        kind=kinds.replace("", None),
    ).drop("does")
    waits = pl.DataFrame(
        {"call": edges[:, 0], "after": edges[:, 1]}, schema={"call": pl.Int64, "after": pl.Int64}
    )
    return calls, waits.with_columns(inferred=pl.lit(value=False))


def _pauses(
    calls: pl.DataFrame, work: pl.DataFrame, call: Ints
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the calls, and the waits of the host for the device that no call recorded."""
    before = pl.sum_horizontal("loader_ns", "launch_ns", "code_ns")
    of_thread = calls.with_columns(by=pl.int_range(pl.len())).filter(thread=-1)
    pauses = of_thread.with_columns(
        pl.col("by").shift(1).alias("call"), since=pl.col("start") - before,
        idle=pl.col("kind").shift(1).is_null() & (pl.col("code_ns") > _LEAST_PAUSE * before),
    ).filter("idle", pl.col("code_ns") >= _PAUSE_NS, pl.col("call") >= 0)  # fmt: skip
    if pauses.is_empty():
        return calls, pauses.select("call", after="by", inferred=pl.lit(value=False))
    ending = _awaited(pauses, work, call)
    calls = calls.with_columns(by=pl.int_range(pl.len()))
    calls = calls.join(
        ending.select("by", "rest_ns"), on="by", how="left", maintain_order="left"
    ).with_columns(
        code_ns=pl.when(pl.col("rest_ns").is_null())
        .then("code_ns")
        .otherwise((pl.col("rest_ns") - pl.col("launch_ns") - pl.col("loader_ns")).clip(0)),
        kind=pl.when(pl.col("by").is_in(ending["call"].implode()))
        .then(pl.lit(PAUSE))
        .otherwise("kind"),
    )
    return calls.drop("by", "rest_ns"), ending.select("call", "after", inferred=pl.lit(value=True))


def _awaited(pauses: pl.DataFrame, work: pl.DataFrame, call: Ints) -> pl.DataFrame:
    """Return the pauses in which the host waited: also after (row of work) and rest_ns.

    Such a pause ends shortly after work that was launched before it. By chance, few pauses would,
    and the rest would vary as much as the pause. If many do and the rest varies little, the host
    waited (it polled, or the call was not recorded), and only the rest is host time. So it did in
    one pause after which nothing is queued, if the rest is at most 0.1 % of it. A host that is one
    step ahead waits for work that was launched before the previous pause: by chance, it would be
    further ahead after each step, or not ahead.
    """
    end = work["end"]
    last = pl.Series(np.searchsorted(np.maximum.accumulate(call), pauses["by"]) - 1)
    latest = np.where(end == end.cum_max(), np.arange(end.len()), 0)
    drained_by = pl.Series(np.maximum.accumulate(latest)).gather(last.replace(-1, None))
    pauses = pauses.with_columns(drained_by=drained_by, drained=end.gather(drained_by))
    ends = work.select(until="end", by=pl.Series(call), after=pl.int_range(pl.len())).sort("until")
    late = pl.min_horizontal(pl.lit(LATENCY_NS), _EXACT * pl.col("code_ns")).cast(pl.Int64)
    rows = pauses.with_columns(latest=pl.col("start") + late).sort("latest")
    rows = rows.join_asof(ends, left_on="latest", right_on="until", suffix="_of")
    rows = rows.filter(pl.col("until") > pl.col("since"), pl.col("by_of") < pl.col("by"))
    rows = rows.with_columns(rest_ns=(pl.col("start") - pl.col("until")).clip(0))
    ending = rows.filter(pl.col("rest_ns") <= _REST * pl.col("code_ns"))
    rest, pause = (ending[name].cast(pl.Float64).to_numpy() for name in ("rest_ns", "code_ns"))
    many = ending.height >= max(_LEAST_PAUSES, rows.height / 2)
    if many and rest.std() < _REST * pause.std():
        return ending
    in_step = _in_step(pauses)
    if in_step.height >= max(_FEW_PAUSES, rows.height / 2):
        return in_step
    before = last.replace(-1, None).shift(1)
    ahead = pauses.with_columns(after=before, rest_ns=pl.col("start") - end.gather(before))
    between = pl.col("rest_ns").is_between(0, _REST * pl.col("code_ns"))
    ahead = ahead.filter(between, pl.col("start") - pl.col("rest_ns") > pl.col("since"))
    if ahead.height >= max(_LEAST_PAUSES, _LEAST_PAUSE * (pauses.height - 1)):
        return ahead
    alone = pl.col("drained") == pl.col("until"), pl.col("rest_ns") <= _EXACT * pl.col("code_ns")
    return ending.filter(*alone)


def _in_step(pauses: pl.DataFrame) -> pl.DataFrame:
    """Return the pauses that end a constant time after all queued work, with after and rest_ns.

    The time between both ends varies less than the pauses: if the host did not wait, ``n`` of them
    would differ by a share ``r`` of the variation of the pauses with a probability of about ``r``
    to the power of ``n - 1``. By the clock of the device, the work may end after the pause.
    """
    rest = pl.col("start") - pl.col("drained")
    rows = pauses.with_columns(after="drained_by", rest_ns=rest).filter(
        pl.col("drained") > pl.col("since"),
        pl.col("rest_ns").is_between(-_EARLY * pl.col("code_ns"), _REST * pl.col("code_ns")),
    )
    if rows.height < _FEW_PAUSES:
        return rows
    spread, whole = (
        rows[name].cast(pl.Float64).to_numpy().std() for name in ("rest_ns", "code_ns")
    )
    is_chance = whole == 0 or (spread / whole) ** (rows.height - 1) > _CHANCE
    return rows.clear() if is_chance else rows.with_columns(pl.col("rest_ns").clip(0))


def _kinds(trace: Trace, calls: pl.DataFrame, work: pl.DataFrame, call: Ints) -> pl.Series:
    """Return why each call may wait, or which call it is; empty for others.

    The first launch of a kernel that loads its code is a call that loads modules.
    """
    length = (calls["end"] - calls["start"]).to_numpy()
    launches = np.zeros(calls.height, bool)
    launches[call[call >= 0]] = True
    last_end = np.zeros(calls.height, np.int64)
    np.maximum.at(last_end, call[call >= 0], work["end"].to_numpy()[call >= 0])
    ends_in_call = launches & (last_end <= calls["end"].to_numpy() + ROUNDING_NS)

    def of(*classes: str) -> npt.NDArray[np.bool_]:
        return calls["does"].is_in(classes).fill_null(value=False).to_numpy()

    by_name = calls["name"].is_in(matching(trace.names, SYNCHRONISING_CALLS)).fill_null(value=False)
    synchronises = by_name.to_numpy() & ~launches
    allocates = of(*ALLOCATES) & (length > BLOCKED_NS)
    copies = of(COPY) & ends_in_call & (length > ROUNDING_NS)
    collective = calls["group"].is_not_null().to_numpy() & ~launches
    loads = calls["event"].is_in(first_launches(trace)["launch"].implode()).to_numpy()
    queued = launches & ~copies & ~loads & (length > BLOCKED_NS)
    conditions = [collective, allocates, synchronises, copies, queued]
    names = ["", "collective", "allocate", "synchronise", "copy", "queue", "module", *OF_CALLS]
    counts = ~launches & ((length > causes.LONG_CALL_NS) | ~of(*_IF_LONG))
    others = [of(*classes) & counts for classes in OF_CALLS.values()]
    number = np.select([*conditions, loads, *others], range(1, len(names)))
    return pl.Series(names)[number]


# --- annotations -----------------------------------------------------------------------------


def _ranges(
    trace: Trace, calls: pl.DataFrame, work: pl.DataFrame, call: Ints
) -> tuple[pl.Series, pl.DataFrame, pl.Series]:
    """Return the names of annotations, and the innermost one of each call and row of work."""
    spans = slices(trace, *ANNOTATION_KINDS).drop_nulls("name").cast({"name": pl.String})
    names = spans["name"].unique().sort()
    since = pl.sum_horizontal("loader_ns", "launch_ns", "code_ns")
    times = [calls.select(*THREAD, ts=pl.col("start") - ns) for ns in (0, since // 2)]
    of_call, before = (spans["name"][linking.enclosing(at, spans, THREAD)["slice"]] for at in times)
    code = _code(trace, calls, calls.select(pl.col("start") - since).to_series(), before)
    of_call, before = (
        one.replace_strict(
            names, pl.int_range(names.len(), eager=True), default=None, return_dtype=pl.Int32
        )
        for one in (of_call, before)
    )
    number = pl.Series(np.maximum(call, 0))
    of_work = of_call[number] if calls.height else pl.Series([None] * work.height, dtype=pl.Int32)
    of_work = pl.select(pl.when(pl.Series(call >= 0)).then(of_work)).to_series()
    operator = places_of(trace).operator_rows(calls.select("pid", "tid", ts="start"))
    of_calls = pl.DataFrame({"range": of_call, "range_before": before, "operator": operator})
    return names, of_calls.with_columns(code), of_work.alias("range")


def _code(trace: Trace, calls: pl.DataFrame, since: pl.Series, before: pl.Series) -> pl.Series:
    """Return the name and share of each part of much code before a call, if only in a step."""
    much = (calls["code_ns"] >= _CODE_NS) & before.str.contains(NUMBERED_STEP).fill_null(value=True)
    spans = calls.select(*THREAD, "code_ns", start=since, end="start").filter(much)
    parts = running(trace, spans, _CODE_NS // 2)
    share = pl.struct("name", frac=pl.col("ns") / pl.col("ns").sum())
    lists = parts.group_by("span", maintain_order=True).agg(code=share)
    code = lists.select("code", row=much.arg_true().gather(lists["span"]))
    every = pl.DataFrame({"row": pl.int_range(calls.height, dtype=pl.UInt32, eager=True)})
    return every.join(code, on="row", how="left", maintain_order="left")["code"]
