"""A rank's devices, the host threads that launch their work, and when each cause applies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import polars as pl

from traceanalyzer import vocabulary
from traceanalyzer.analyzers.common import device_steps, device_work, soundness
from traceanalyzer.analyzers.common.clocks import Origin, origin
from traceanalyzer.analyzers.common.columns import left_join
from traceanalyzer.analyzers.common.gpu_api import OF_PYTORCH, Api, api_of
from traceanalyzer.analyzers.common.launching import (
    first_launches,
    is_blocking,
    is_graph_capture,
    is_late,
    launches,
    wait_for_null_stream,
)
from traceanalyzer.analyzers.common.libraries import by_component, is_own_code
from traceanalyzer.analyzers.common.names import (
    ADDRESS,
    BACKWARD,
    distinct,
    mapped,
    matching,
    named,
    python_frame,
    starting_with,
)
from traceanalyzer.analyzers.common.replays import GRAPH_LAUNCH, captures, prepared
from traceanalyzer.analyzers.gpu_idle import Options, causes
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, linking, nesting, numbering
from traceanalyzer.trace import Trace, is_truncated, of_kinds, record_hint
from traceanalyzer.units import format_ns

#: Host slices that show the activity of a thread.
HOST = (
    *("cpu_op", "user_annotation", "python_function", *vocabulary.LAUNCH_KINDS),
    *("nvtx", "osrt", "mpi", "other"),
)

_GRAPH_CAPTURE = (
    "{path}: a recording of CUDA graph capture: kernels are captured, not run, so it has no idle "
    "time; pass the recording of the replays"
)

_ON_HOST = of_kinds(HOST) & pl.col("tid").is_not_null() & (pl.col("dur") >= 0)

#: What blocked the host: the profiler, or CUDA while it loads code.
OVERHEAD = "overhead"

_RUNS_COLLECTIVE = starting_with(*vocabulary.HOST_COLLECTIVE_PREFIXES)

#: MPI calls that wait for other ranks or send data.
_COMMUNICATES = (pl.col("kind") == "mpi") & ~pl.col("name").cast(pl.String).str.contains(
    r"^MPI_(?:Init|Finalize|Comm_|Type_|Wtime|Get_)"
)

_TF_POOL = "tf_Compute"
_SINGLE_PROCESS = "_SingleProcessDataLoaderIter"

#: The column of arguments, read on request.
_ARGS = "args"

_UNIT = {"unit": pl.UInt32, "device": pl.Int32, "pid": pl.Int64}
_NEVER = pl.DataFrame(schema={"unit": pl.UInt32, "start": pl.Int64, "end": pl.Int64})
_LANE = ["pid", "tid"]
_THREAD = ["thread"]
_SLICE = ["thread", "start", "end"]

_STREAM_WAITS = {"thread": pl.UInt32, "start": pl.Int64, "waits_for": pl.String}

#: Data that may be missing, as named by :func:`record_hint`.
_MAY_LACK = ("device work", "step", "other code")


@dataclass(frozen=True)
class Excerpt(Origin):
    """One rank's devices and host.

    Attributes:
        steps: rows of :func:`~traceanalyzer.analyzers.common.device_steps.device_steps`.
        units: unit (number), device, pid: what can be idle; pid if units are processes. Without
            device work one unit, the main thread.
        work: unit, kind, name, bytes, work_kind, start, end: device work.
        launched: work (row), thread, start, end: its launch calls.
        threads: unit, thread: the threads that launch each unit's work.
        slices: kind, name, thread, start, end: slices on those threads.
        samples: thread, ts, stack: sampled stacks of those threads, if they were read.
        stacks: the trace's table of stacks, which the samples refer to.
        samples_recorded: the file has sampled stacks, read or not.
        stream_waits: rows of :func:`_stream_waits`.
        unread_targets: the file has the targets of stream waits, in unread arguments.
        graph_gaps: gaps in graph replays are probably made by the recording.
        names: all distinct names, including those of slices.
        program: its GPU API and framework: whether operators or kernels of PyTorch were recorded.
        work_lost: the file is truncated, or work was launched but none recorded.
        recorded_until: end of the last work (of the last operator without device work) of a
            truncated file: what follows is missing, not idle. None if the file is complete.
        collectives: unit, start, end: when the host itself ran one, on any thread.
        overhead: unit, start, end: when the profiler blocked a process that uses the unit, between
            the unit's first work and its last.
        code_loading: unit, start, end: when CUDA loaded the code of kernels, in the same range.
        captures: thread, start, end: when a thread captured work in a graph.
        others: unit, name, start, end, label (the thread): Python functions of other threads of
            the processes that use the unit.
        hints: how to record missing data with the profiler that wrote the file.
        by_device: the same with one unit per device, if units are processes.
    """

    steps: pl.DataFrame
    units: pl.DataFrame
    work: pl.DataFrame
    launched: pl.DataFrame
    threads: pl.DataFrame
    slices: pl.DataFrame
    samples: pl.DataFrame
    stacks: pl.DataFrame
    samples_recorded: bool
    stream_waits: pl.DataFrame
    unread_targets: bool
    graph_gaps: bool
    names: list[str]
    program: Api
    work_lost: bool
    recorded_until: int | None
    collectives: pl.DataFrame
    overhead: pl.DataFrame
    code_loading: pl.DataFrame
    captures: pl.DataFrame
    others: pl.DataFrame
    hints: Mapping[str, str]
    by_device: Excerpt | None = None

    @property
    def on_host(self) -> bool:
        """Whether the unit is the main thread."""
        return self.work.is_empty()

    def named(self, kinds: Sequence[str], patterns: Sequence[str]) -> pl.DataFrame:
        """Return slices of these kinds whose name matches a pattern; see :attr:`slices`."""
        hits = matching(self.names, patterns)
        if not hits:
            return self.slices.clear()
        return self.slices.filter(pl.col("kind").is_in(kinds), pl.col("name").is_in(hits))

    @property
    def stacks_read(self) -> bool:
        """Whether there are Python functions or sampled stacks."""
        return (self.slices["kind"] == "python_function").any() or self.samples.height > 0

    def of_units(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return slices as intervals of the units of their thread: unit, start, end."""
        if rows.is_empty():
            return _NEVER
        return rows.join(self.threads, on="thread")[:, ["unit", "start", "end"]]


@dataclass(frozen=True)
class HostTime:
    """Data loading and file access on the host.

    Attributes:
        loader: slices that count as data loading: name, n, total_ns (nested ones in each other).
        loader_code: time inside data loading by function of your own code, or else by function
            or operator: name, self_ns.
        file_calls: calls of the OS runtime that access files in idle time of data loading,
            checkpoints and files, other host code or unknown cause: name, idle_ns, longest_ns (the
            longest call); the row without a name is the union of all calls.
        copies_pinned: no copy of a batch is named as one from pageable memory.
        waits: rows of :func:`~.gaps.waits`.
        regions: calls of regions that torch.compile compiled.
    """

    loader: pl.DataFrame
    loader_code: pl.DataFrame
    file_calls: pl.DataFrame
    copies_pinned: bool
    waits: pl.DataFrame
    regions: int

    @classmethod
    def joined(cls, several: Sequence[HostTime]) -> HostTime:
        """Return the sums of all ranks."""
        return cls(
            loader=_summed([one.loader for one in several], "total_ns"),
            loader_code=_summed([one.loader_code for one in several], "self_ns"),
            file_calls=_summed([one.file_calls for one in several], "idle_ns"),
            copies_pinned=all(one.copies_pinned for one in several),
            waits=pl.concat([one.waits for one in several]),
            regions=sum(one.regions for one in several),
        )

    @cached_property
    def loads_in_process(self) -> bool:
        """Whether PyTorch's DataLoader runs without worker processes."""
        return bool(self.loader["name"].str.contains(_SINGLE_PROCESS, literal=True).any())

    @cached_property
    def loads_tf_data(self) -> bool:
        """Whether a graph of TensorFlow waits for the elements of a dataset."""
        return bool(self.loader["name"].str.contains(causes.NEXT_ELEMENT).any())

    @cached_property
    def starts_workers(self) -> bool:
        """Whether data loading starts worker processes, and waits for their first batches."""
        starting = self.loader_code.filter(pl.col("name").str.contains(causes.STARTS_WORKERS))
        return bool(4 * starting["self_ns"].sum() > self.loader_code["self_ns"].sum())

    @cached_property
    def long_line(self) -> str | None:
        """The call that reads a line and takes longer than any read of a file, with its time."""
        reads_line = pl.col("name").str.contains(causes.READS_LINE)
        calls = self.file_calls.filter(pl.col("longest_ns") >= causes.LONG_LINE_NS, reads_line)
        for name, ns in calls.sort("longest_ns").tail(1).select("name", "longest_ns").iter_rows():
            return f"{name} takes {format_ns(ns)}"
        return None


def _summed(frames: Sequence[pl.DataFrame], time: str) -> pl.DataFrame:
    """Return the sums of all ranks by name, most time first."""
    rows = pl.concat(frames).group_by("name")
    sums = rows.agg(pl.exclude("name", "longest_ns").sum(), pl.col("^longest_ns$").max())
    return sums.sort(time, "name", descending=[True, False])


def take(trace: Trace, options: Options) -> Excerpt:
    """Extract one rank's devices and host threads from its trace.

    Raises:
        MissingData: neither device work nor operators were recorded, or only the capture of graphs.
        OptionError: a pattern is not a regular expression.
    """
    if is_graph_capture(trace):
        raise MissingData(_GRAPH_CAPTURE.format(path=trace.meta.path))
    device_work.require_all_work(trace)
    work = device_work.device_work(trace, options.comm_patterns)
    steps = device_steps.device_steps(trace, options.step_name)
    until = recorded_until(trace, work, steps)
    steps = until_end(steps, until)
    by_process = options.by == "process"
    keys = ["device", "pid"] if by_process else ["device"]
    groups, (number,) = numbering.group_numbers(keys, work)
    units = groups.with_row_index("unit")
    if work.is_empty():
        units = pl.DataFrame({"unit": [0], "device": [None], "pid": [None]}, schema_overrides=_UNIT)
    calls = launches(trace, work).select("work", *_LANE, start="launch_start", end="launch_end")
    work = work.hstack([pl.Series("unit", number, dtype=pl.UInt32)])
    threads = _threads(trace, units, work, calls, steps.drop_nulls("tid"))
    code_loading = _code_loading(trace, work, threads)  # before other columns are in memory
    known = threads[["pid", "tid", "thread"]].unique("thread")
    first, code = numbering.numbered(calls[_LANE].get_columns())
    thread = left_join(calls[_LANE][first], known, _LANE)["thread"][code]
    launched = calls[["work", "start", "end"]].insert_column(1, thread)
    del calls, thread  # of millions of calls, before the slices are taken
    pids = threads[["unit", "pid"]].unique()
    slices = slices_of(trace, known)
    return Excerpt(
        **origin(trace.meta),
        steps=steps,
        units=units.select("unit", "device", pid="pid" if by_process else pl.lit(None, pl.Int64)),
        work=work[["unit", "kind", "name", "bytes", "work_kind", "start", "end"]],
        launched=launched,
        threads=threads[["unit", "thread"]],
        slices=slices,
        samples=_samples(trace, known),
        stacks=trace.stacks,
        samples_recorded=trace.meta.weight_unit is not None,
        stream_waits=_stream_waits(trace, known),
        graph_gaps=soundness.has_graph_gaps(trace),
        unread_targets=_ARGS not in trace.events.columns and "cuda_sync" in trace.kinds,
        names=trace.names,
        program=_program(trace, work, launched, slices),
        work_lost=is_truncated(trace) or (work.is_empty() and _launches_work(trace)),
        recorded_until=until,
        collectives=_collectives(trace, pids),
        overhead=_overhead(
            trace, work, threads, [causes.LOADS_CODE, causes.QUEUE_FULL], others=True
        ),
        code_loading=code_loading,
        captures=prepared(captures(slices, trace.names), slices),
        others=_of_others(trace, threads),
        hints=soundness.hints(trace, _MAY_LACK, linked=launched.height > 0),
        by_device=take(trace, replace(options, by="device")) if by_process else None,
    )


#: Operators that only change how a tensor is read: 1 to 4 us, with Python's stacks up to 10 us.
_VIEW, _SLOW_VIEW_NS, _MANY_VIEWS = "^aten::(?:view|as_strided)$", 15_000, 100


def _program(trace: Trace, work: pl.DataFrame, launched: pl.DataFrame, slices: pl.DataFrame) -> Api:
    api = api_of(trace)
    views = slices.filter(pl.col("name").is_in(matching(trace.names, [_VIEW])))
    are_slow = views.select((pl.col("end") - pl.col("start")).median() >= _SLOW_VIEW_NS).item()
    compiles = matching(trace.names, [causes.MAKES_CODE[1]])  # then operators run in Python
    return replace(
        api,
        pytorch=bool(matching(trace.names, [OF_PYTORCH])),
        uncached=soundness.is_uncached(trace),
        maps_memory=bool(matching(trace.names, [causes.MAPS_MEMORY])),
        blocking=is_blocking(work, launched),
        # other streams of PyTorch do not wait for the null stream
        null_stream=(
            not (api.pytorch or matching(trace.names, [vocabulary.STREAM_WAIT]))
            and wait_for_null_stream(work, launched)
        ),
        replays=2 * launched["start"].n_unique() < launched.height
        and bool(matching(trace.names, [GRAPH_LAUNCH])),
        slow_host=len(views) >= _MANY_VIEWS and bool(are_slow) and not compiles,
        late_copies=is_late(work, launched),
    )


def _collectives(trace: Trace, pids: pl.DataFrame) -> pl.DataFrame:
    """Return when the host runs a collective, for the units of its process: unit, start, end."""
    hits = matching(trace.names, [_RUNS_COLLECTIVE])
    if not hits and "mpi" not in trace.kinds:
        return _NEVER
    runs = _host_slices(trace, pl.col("name").is_in(hits) | _COMMUNICATES)
    return runs.join(pids, on="pid", nulls_equal=True)[["unit", "start", "end"]]


def recorded_until(trace: Trace, work: pl.DataFrame, steps: pl.DataFrame) -> int | None:
    """Return until when a truncated file is complete: its steps, and what runs before its end."""
    if not is_truncated(trace):
        return None
    end = trace.meta.complete_until
    active = work if work.height else _host_slices(trace, _is_operator(trace.names))
    if end is None:
        return active["end"].max()  # type: ignore[return-value]
    before = active.filter(pl.col("start") < end)
    return pl.concat([before["end"], steps["end"]]).max()  # type: ignore[return-value]


def until_end(rows: pl.DataFrame, end: int | None) -> pl.DataFrame:
    """Return rows with start and end up to the end of a truncated recording."""
    if end is None:
        return rows
    return rows.filter(pl.col("start") < end).with_columns(pl.col("end").clip(upper_bound=end))


def _overhead(
    trace: Trace,
    work: pl.DataFrame,
    threads: pl.DataFrame,
    patterns: Sequence[str],
    *,
    others: bool = False,
) -> pl.DataFrame:
    """Return overhead by name, strictly between the first work and the last: unit, start, end.

    The names are those that match a pattern, or with ``others`` those that match none. Overhead of
    threads that do not launch the unit's work blocks nothing; Kineto does not record the thread. A
    file without the process of device work counts as one process.
    """
    if OVERHEAD not in trace.kinds:
        return _NEVER
    end = pl.col("ts") + pl.col("dur")
    columns = trace.events[["kind", "name", *_LANE, "ts", "dur"]]
    rows = columns.filter(pl.col("kind") == OVERHEAD, pl.col("dur") >= 0)
    launches = pl.col("tid").is_in(threads["tid"].unique().implode())
    rows = rows.filter(launches | (pl.col("tid").fill_null(0) == 0))
    pids = threads[["unit", "pid"]].unique()
    matches = named(rows, patterns).fill_null(value=False)
    rows = rows.filter(~matches if others else matches).select("pid", start="ts", end=end)
    ends = work.group_by("unit").agg(first=pl.col("start").min(), last=pl.col("end").max())
    if work["pid"].null_count():
        of_units = rows.join(ends, how="cross")
    else:
        of_units = rows.join(pids, on="pid").join(ends, on="unit")
    inside = (pl.col("start") > pl.col("first")) & (pl.col("end") < pl.col("last"))
    return of_units.filter(inside)[["unit", "start", "end"]]


def _code_loading(trace: Trace, work: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    """Return when the code of kernels is loaded: recorded overhead, and their first launches."""
    recorded = _overhead(trace, work, threads, [causes.LOADS_CODE])
    first = first_launches(trace)
    units = work["unit"][first["work"]]
    return pl.concat([recorded, first.select(units, "start", "end")])


# --- host threads ----------------------------------------------------------------------------


def _host_slices(trace: Trace, condition: pl.Expr) -> pl.DataFrame:
    """Return slices on host threads that fulfil the condition: pid, tid, start, end."""
    rows = trace.events[["kind", "name", *_LANE, "ts", "dur"]].filter(_ON_HOST & condition)
    return rows.select(*_LANE, start="ts", end=pl.col("ts") + pl.col("dur"))


def slices_of(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    """Return slices of these threads (pid, tid, thread): kind, name, thread, start, end."""
    by_thread = [np.zeros(0, np.uint32)]
    for pid, tid in threads.select(_LANE).iter_rows():  # few rows
        on_thread = pl.col("pid").eq_missing(pid) & pl.col("tid").eq_missing(tid)
        matches = trace.events.select(_ON_HOST & on_thread).to_series()
        by_thread.append(matches.arg_true().to_numpy())
    rows = np.concatenate(by_thread)
    thread = threads["thread"].to_numpy().repeat([part.size for part in by_thread[1:]])
    if threads.height > 1:
        order = np.argsort(rows, kind="stable")
        rows, thread = rows[order], thread[order]
        del order  # of millions of slices, before they are taken
    return trace.events[["kind", "name", "ts", "dur"]][rows].select(
        "kind", "name", pl.Series("thread", thread),
        start="ts", end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip


def _samples(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    """Return sampled stacks of these threads (pid, tid, thread): thread, ts, stack."""
    if "stack" not in trace.events.columns or "sample" not in trace.kinds:
        return pl.DataFrame(schema={"thread": pl.UInt32, "ts": pl.Int64, "stack": pl.UInt32})
    events = trace.events[["kind", *_LANE, "ts", "stack"]]
    rows = events.filter(pl.col("kind") == "sample").drop_nulls(["stack", "ts"])
    return rows.join(threads, on=_LANE, nulls_equal=True)[["thread", "ts", "stack"]]


def _stream_waits(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    """Return calls of these threads that make a stream wait: thread, start, waits_for.

    ``waits_for`` is the call, with the stream of the event that it waits for if ``cuda_sync`` rows
    and their arguments were read.
    """
    hits = matching(trace.names, [vocabulary.STREAM_WAIT])
    if not hits:
        return pl.DataFrame(schema=_STREAM_WAITS)
    is_wait = of_kinds(vocabulary.LAUNCH_KINDS) & pl.col("name").is_in(hits)
    columns = (*_LANE, "correlation", "name")
    calls = trace.events[["kind", "ts", *columns]].filter(is_wait)
    waits = calls.rename({"ts": "start"}).join(threads, on=_LANE, nulls_equal=True)
    name = pl.col("name").cast(pl.String)
    if _ARGS not in trace.events.columns:
        return waits.select("thread", "start", waits_for=name)
    target = pl.col(_ARGS).str.json_path_match("$.wait_on_stream")
    targets = trace.events.filter(pl.col("kind") == "cuda_sync").select(
        "correlation", stream=target
    )
    with_stream = pl.format("{} (an event of stream {})", name, "stream")
    known = targets.filter(~pl.col("stream").str.starts_with("-"))  # -1: not known
    first = known.drop_nulls().unique("correlation", keep="first")
    return waits.join(first, on="correlation", how="left").select(
        "thread", "start", waits_for=pl.coalesce(with_stream, name)
    )


def _of_others(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    """Return the Python functions of other threads: unit, name, start, end, label."""
    columns = trace.events[["kind", "name", *_LANE, "ts", "dur"]]
    python = columns.filter(pl.col("kind") == "python_function", pl.col("dur") >= 0)
    python = python.join(threads, on=_LANE, how="anti", nulls_equal=True)
    labels = trace.lanes.drop_nulls("tid").unique(_LANE)[[*_LANE, "label"]]
    python = python.join(labels, on=_LANE, how="left")
    return python.join(threads[["unit", "pid"]].unique(), on="pid").select(
        "unit", "name", start="ts", end=pl.col("ts") + pl.col("dur"),
        label=pl.coalesce("label", pl.format("thread {}", "tid")),
    )  # fmt: skip


def _is_operator(events: pl.DataFrame | Sequence[str]) -> pl.Expr:
    """Return whether a slice is an operator, not a range around operators; see :func:`named`."""
    return (pl.col("kind") == "cpu_op") & named(events, [causes.OPERATOR])


def _threads(
    trace: Trace, units: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame, steps: pl.DataFrame
) -> pl.DataFrame:
    """Return the threads that launch each unit's kernels or mark steps: unit, pid, tid, thread.

    The thread of the training loop, which marks the steps or runs Python, may leave launching to
    others. Threads that launch only copies, such as prefetching threads, do not count. Without
    correlation ids: the threads with launch calls, otherwise those with operators, otherwise with
    Python functions. Without device work: the main thread (it marks steps, otherwise it has most
    time in operators), and the threads that run the backward pass for it.

    Raises:
        MissingData: neither device work nor operators were recorded.
    """
    if work.is_empty():
        threads = units[["unit"]].join(main_threads(trace, steps), how="cross")
    else:
        threads = _launching(calls, work)
        if threads.is_empty():
            threads = units[["unit"]].join(_unlinked(trace), how="cross")
        looping = threads[["unit", "pid"]].join(
            steps.select(_LANE).unique(), on="pid", nulls_equal=True
        )
        threads = pl.concat([threads, looping, _giving_work(trace, threads)]).unique()
    if "pid" in units.columns and work.height:
        process = units.select("unit", process="pid")
        same = (pl.col("pid") == pl.col("process")).fill_null(value=True)
        threads = threads.join(process, on="unit").filter(same).drop("process")
    number = pl.struct(_LANE).rank("dense").cast(pl.UInt32)
    return threads.sort("unit", *_LANE).with_columns(thread=number)


def _launching(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    launched = calls[_LANE].hstack(work[["unit", "kind"]][calls["work"]])
    threads = launched[numbering.numbered(launched.get_columns())[0]]
    is_kernel = pl.col("kind") == "kernel"
    return threads.filter(is_kernel | ~is_kernel.any().over("unit"))[["unit", *_LANE]].unique()


def _giving_work(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    """Return the threads that provide what others launch: unit, pid, tid.

    Those in which TensorFlow waits for data or XLA calls Python, TensorFlow's pool, which runs
    operators on any thread, and the one with most Python if those that launch have none (JAX).
    """
    waits = _host_slices(trace, named(trace.names, causes.GIVE_WORK))[_LANE]
    pool = trace.lanes.filter(pl.col("label").str.starts_with(_TF_POOL))[_LANE]
    waits = pl.concat([waits, pool], how="vertical_relaxed").unique()
    waiting = threads[["unit", "pid"]].unique().join(waits, on="pid", nulls_equal=True)
    return pl.concat([waiting, _with_most_python(trace, threads)])


def _with_most_python(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    python = pl.col("kind") == "python_function"
    # operators of PyTorch run on the thread that calls them, with or without recorded Python
    known = python | (pl.col("kind") == "cpu_op") & named(trace.names, [OF_PYTORCH])
    if trace.events.select((known & pl.col("tid").is_in(threads["tid"].implode())).any()).item():
        return threads.clear()
    length = (pl.col("end") - pl.col("start")).sum().alias("length")
    busiest = _host_slices(trace, python).group_by(_LANE).agg(length)
    main = busiest.group_by("pid").agg(pl.col("tid").sort_by("length", "tid").last())
    return threads[["unit", "pid"]].unique().join(main, on="pid", nulls_equal=True)


def _launches_work(trace: Trace) -> bool:
    return trace.meta.no_gpu_work is not None or _calling(trace).height > 0


def _calling(trace: Trace) -> pl.DataFrame:
    """Return the threads with launch calls, joined to device work or not: pid, tid."""
    calls = distinct(
        trace.events[["kind", "name"]].filter(pl.col("kind").is_in(vocabulary.LAUNCH_KINDS))
    )
    launches = [name for name in calls if vocabulary.call_class(name) == vocabulary.LAUNCH]
    condition = of_kinds(vocabulary.LAUNCH_KINDS) & pl.col("name").is_in(launches)
    return _host_slices(trace, condition)[[*_LANE]].unique()


def _unlinked(trace: Trace) -> pl.DataFrame:
    calling = _calling(trace)
    if calling.height:
        return calling
    operators = _host_slices(trace, _is_operator(trace.names))[[*_LANE]].unique()
    if operators.height:
        return operators
    # JAX: Python runs on the main thread and on that of callbacks
    known = (pl.col("kind") == "python_function") | named(trace.names, causes.GIVE_WORK)
    return _host_slices(trace, known)[[*_LANE]].unique()


def main_threads(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the main thread and those that run the backward pass for it: pid, tid.

    Raises:
        MissingData: no operators were recorded.
    """
    return _with_autograd(trace, _training(trace, steps))


def _training(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    length = (pl.col("end") - pl.col("start")).sum().alias("length")
    busiest = _host_slices(trace, _is_operator(trace.names)).group_by(_LANE).agg(length)
    if busiest.is_empty():
        hint = record_hint(trace.meta, "device work")
        raise MissingData(
            f"{trace.meta.path}: neither GPU work nor operators of PyTorch were recorded; {hint}"
        )
    if steps.height:
        return steps.select(_LANE).head(1)
    first = busiest.sort("length", *_LANE, descending=[True, False, False])
    return first.select(_LANE).head(1)


def _with_autograd(trace: Trace, main: pl.DataFrame) -> pl.DataFrame:
    """Add the threads of the same process that run the backward pass: the main thread waits."""
    nodes = (pl.col("kind") == "cpu_op") & named(trace.names, [BACKWARD])
    running = _host_slices(trace, nodes)[[*_LANE]].unique()
    same = running.join(main, on="pid", how="semi", nulls_equal=True)
    return pl.concat([main, same]).unique()


# --- when causes apply ---------------------------------------------------------------------


def loading(excerpt: Excerpt, patterns: Sequence[str]) -> pl.DataFrame:
    """Return slices in which a thread waits for its data loader: kind, name, thread, start, end.

    Matched by the patterns, by default :data:`~.causes.DATALOADER`.
    """
    return excerpt.named(causes.DATALOADER_KINDS, patterns or causes.DATALOADER)


def loader_slices(loading: pl.DataFrame) -> pl.DataFrame:
    """Return the slices of data loading by name: name, n, total_ns (of nested slices both)."""
    rows = loading.with_columns(pl.col("name").cast(pl.String).str.replace(ADDRESS, ""))
    total = (pl.col("end") - pl.col("start")).sum()
    return rows.group_by("name").agg(n=pl.len().cast(pl.Int64), total_ns=total)


def loader_code(excerpt: Excerpt, loading: pl.DataFrame) -> pl.DataFrame:
    """Return self time inside data loading by own code, or else function or operator.

    Returns:
        name (of the innermost function of own code around it, not of its comprehensions; without
        one, its own name), self_ns.
    """
    code = excerpt.slices.filter(pl.col("kind").is_in(("python_function", "cpu_op")))
    begun = linking.enclosing(code.with_columns(ts="start"), loading, _THREAD).drop_nulls("slice")
    if begun.is_empty():
        return pl.DataFrame(schema={"name": pl.String, "self_ns": pl.Int64})
    inside = begun.filter(pl.col("end") <= loading["end"].gather(begun["slice"])).drop("slice")
    nested = nesting.self_time(nesting.nest(inside, _THREAD))
    functions = inside.filter(pl.col("kind") == "python_function")
    of_user = functions.filter(
        belongs(functions["name"], ()), ~pl.col("name").cast(pl.String).str.contains(_INNER)
    )
    around = of_user["name"][linking.enclosing(nested, of_user, _THREAD)["slice"]].cast(pl.String)
    name = pl.coalesce(around, pl.col("name").cast(pl.String)).str.replace(ADDRESS, "")
    return nested.group_by(name=name).agg(self_ns=pl.col("self_time").sum())


#: Functions that are a part of another one.
_INNER = "<(?:listcomp|dictcomp|setcomp|genexpr|lambda)>$"


def belongs(names: pl.Series, libraries: Sequence[str]) -> pl.Expr:
    """Return whether a Python frame is of a library; without libraries, of the user's own code."""
    if names.is_empty():
        return pl.lit(value=False)
    distinct = names.unique().cast(pl.String).to_frame("slice")
    frames = distinct.select("slice", frame=python_frame(pl.col("slice"))).unnest("frame")
    match = by_component(libraries)
    matches = [
        name
        for name, file, function in frames[["slice", "file", "name"]].iter_rows()
        if (match(file) is not None if libraries else is_own_code(function, file))
    ]
    return pl.col("name").is_in(matches)


def calls(excerpt: Excerpt, patterns: Sequence[str]) -> pl.DataFrame:
    """Return when a thread is in a call or an operator whose name matches a pattern."""
    return _in(excerpt, (*vocabulary.LAUNCH_KINDS, "cpu_op"), patterns)


def classified(excerpt: Excerpt) -> pl.DataFrame:
    """Return the CUDA, HIP and driver calls: thread, start, end, class (see :func:`call_class`)."""
    calls = excerpt.slices.filter(pl.col("kind").is_in(vocabulary.LAUNCH_KINDS))
    of_class = mapped(calls["name"], vocabulary.call_class).alias("class")
    return calls.select("thread", "start", "end", of_class)


def in_class(
    excerpt: Excerpt, calls: pl.DataFrame, *classes: str, least_ns: int = 0
) -> pl.DataFrame:
    """Return when a thread is in a call of these classes that takes as long: unit, start, end."""
    long = pl.col("end") - pl.col("start") >= least_ns
    return excerpt.of_units(calls.filter(pl.col("class").is_in(classes) & long))


def building_graphs(excerpt: Excerpt, calls: pl.DataFrame) -> pl.DataFrame:
    """Return when a thread builds a CUDA graph: in its calls, and while a stream is captured."""
    return pl.concat(
        [in_class(excerpt, calls, vocabulary.BUILD_GRAPH), excerpt.of_units(excerpt.captures)]
    )


def creating_communicators(excerpt: Excerpt, calls: pl.DataFrame) -> pl.DataFrame:
    """Return when a thread creates a communicator, or shares device memory with other processes.

    The first call of a collective, and those of the first step, create what they need: then they
    take far longer than others of their name.
    """
    kinds = ("cpu_op", "user_annotation", "python_function", "nvtx", "other")
    ranges = _in(excerpt, kinds, causes.SETS_UP_COMMUNICATION)
    first = pl.max_horizontal(pl.col("start").min().over("name"), excerpt.steps["end"].min())
    length = pl.col("end") - pl.col("start")
    least = pl.max_horizontal(causes.SETUP_TIMES * length.median().over("name"), causes.SETUP_NS)
    starting = excerpt.named(("cpu_op",), [causes.STARTS_COLLECTIVE])
    starting = starting.filter(pl.col("start") <= first, length > least)
    return pl.concat(
        [ranges, excerpt.of_units(starting), in_class(excerpt, calls, vocabulary.SHARE)]
    )


def saving(excerpt: Excerpt) -> pl.DataFrame:
    """Return when a thread saves or loads a model, by the names of functions and ranges."""
    kinds = ("user_annotation", "python_function", "nvtx", "other")
    unclear = excerpt.named(kinds, [causes.SAVING_OR_RUNNING])
    if unclear.is_empty():
        return _in(excerpt, kinds, causes.SAVING)
    sure = excerpt.named(kinds, causes.SAVING)
    return excerpt.of_units(pl.concat([sure, unclear.filter(~_runs_model(excerpt, unclear))]))


def _runs_model(excerpt: Excerpt, ranges: pl.DataFrame) -> pl.Series:
    """Return which ranges launch kernels or, without a GPU, mostly run operators."""
    if excerpt.on_host:
        operators = excerpt.slices.filter(_is_operator(excerpt.names))
        inside = intervals.overlap_with(ranges, operators, _THREAD)
        return inside.select(2 * pl.col("overlap") > pl.col("end") - pl.col("start")).to_series()
    is_kernel = excerpt.work["kind"][excerpt.launched["work"]] == "kernel"
    launches = excerpt.launched.filter(is_kernel)
    return intervals.overlap_with(ranges, launches, _THREAD)["overlap"] > 0


def awaiting(excerpt: Excerpt) -> pl.DataFrame:
    """Return when a thread waits in an operator for a collective of another thread."""
    return _in(excerpt, ("cpu_op",), causes.AWAITS_COLLECTIVE)


def accessing_files(near: Excerpt, excerpt: Excerpt) -> pl.DataFrame:
    """Return the calls of the OS runtime that access files: kind, name, thread, start, end.

    Without those inside a call of CUDA or a range of communication, and those right after a
    ``poll`` or similar: they access drivers, pipes or sockets.

    Args:
        near: one rank, with the slices in gaps.
        excerpt: the same with all slices.
    """
    calls = near.named(["osrt"], [causes.FILE_CALLS])
    if calls.is_empty():
        return calls
    polls = excerpt.named(["osrt"], [causes.POLLING])
    others = (
        near.slices.filter(pl.col("kind").is_in(vocabulary.LAUNCH_KINDS)),
        near.named(("cpu_op", *vocabulary.ANNOTATION_KINDS), causes.TRANSPORT),
        polls.with_columns(pl.col("end") + causes.AFTER_POLL_NS),
    )
    around = intervals.union(pl.concat(others), _THREAD)
    inside = linking.label_by_interval(calls.with_columns(ts="start"), around, _THREAD)
    return calls.filter(inside["interval"].is_null())


def file_calls(excerpt: Excerpt, calls: pl.DataFrame, idle: pl.DataFrame) -> pl.DataFrame:
    """Return how long threads access files while their unit is idle, by call.

    Args:
        excerpt: one rank.
        calls: rows of :func:`accessing_files`.
        idle: unit, start, end.

    Returns:
        name, longest_ns (the longest call), idle_ns. The row without a name is the union of all
        calls.
    """
    types = {"name": pl.String, "longest_ns": pl.Int64, "idle_ns": pl.Int64}
    if calls.is_empty():
        return pl.DataFrame(schema=types)
    by_name = [(None, calls)] + [(str(name), rows) for (name,), rows in calls.group_by("name")]
    length = pl.col("end") - pl.col("start")
    totals = []
    for name, rows in by_name:
        shared = intervals.intersect(excerpt.of_units(rows), idle, ["unit"])
        totals.append((name, rows.select(length.max()).item(), shared.select(length.sum()).item()))
    return pl.DataFrame(totals, schema=types, orient="row").filter(pl.col("idle_ns") > 0)


def running(excerpt: Excerpt) -> pl.DataFrame:
    """Return when a thread runs an operator or a compiled graph with kernels of its own."""
    kinds = ("cpu_op", *vocabulary.ANNOTATION_KINDS)
    graphs = pl.col("kind").is_in(kinds) & named(excerpt.names, [causes.COMPILED_GRAPH])
    return excerpt.of_units(excerpt.slices.filter(_is_operator(excerpt.names) | graphs))


def copying(excerpt: Excerpt) -> pl.DataFrame:
    """Return when a thread copies a batch to the device: the call, and the operator around it."""
    return _around_copies(excerpt, _batches(excerpt))


def blocking_little(excerpt: Excerpt) -> pl.DataFrame:
    """Return copies of small buffers to the device that the host waits for: rows with their number.

    A copy blocks the host if its memory is pageable, by the name of its call, or if the call
    returns after the copy. A call that takes longer than :data:`~.causes.LITTLE_COPY_NS` waits for
    something else.
    """
    copies = _to_device(excerpt, pl.col("bytes") < causes.BATCH_BYTES)
    if copies.is_empty():
        return copies
    is_short = pl.col("end") - pl.col("start") <= causes.LITTLE_COPY_NS
    calls = excerpt.launched.filter(pl.col("work").is_in(copies["work"].implode()), is_short)
    copies = copies.filter(pl.col("work").is_in(calls["work"].implode()))
    ended = excerpt.work["end"][calls["work"]]
    waited = calls["work"].filter(calls["end"] >= ended)
    pageable = pl.col("name").is_in(matching(distinct(copies), ["Pageable"]))
    return copies.filter(pageable | pl.col("work").is_in(waited.implode()))


def copying_little(excerpt: Excerpt, copies: pl.DataFrame) -> pl.DataFrame:
    """Return when a thread makes these copies, and the short times from one to the next."""
    if copies.is_empty():
        return _NEVER
    is_one = pl.col("work").is_in(copies["work"].implode())
    after = pl.col("end").shift(1).over("thread")
    pauses = excerpt.launched.sort("thread", "start").select(
        "thread", start=after, end="start", both=is_one & is_one.shift(1).over("thread")
    )
    short = (pl.col("end") - pl.col("start")).is_between(0, _BETWEEN_LAUNCHES_NS)
    between = excerpt.of_units(pauses.filter("both", short))
    return pl.concat([_around_copies(excerpt, copies), between])


def _around_copies(excerpt: Excerpt, copies: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of copies, and the operators around them: unit, start, end."""
    if copies.is_empty():
        return _NEVER
    left = excerpt.launched.filter(pl.col("work").is_in(copies["work"].implode()))
    slices = [left[[*_THREAD, "start", "end"]]]
    left = left.with_columns(ts="start")
    for name in causes.COPY_OPERATORS:
        if name not in excerpt.names:
            continue
        around = excerpt.slices.filter(pl.col("name") == name)
        if around.is_empty():
            continue
        left = linking.enclosing(left, around, _THREAD)
        enclosing = left["slice"].drop_nulls().unique()
        slices.append(around[enclosing][[*_THREAD, "start", "end"]])
        left = left.filter(pl.col("slice").is_null()).drop("slice")
    return excerpt.of_units(pl.concat(slices))


def _batches(excerpt: Excerpt) -> pl.DataFrame:
    """Return copies of batches to the device: rows of :attr:`Excerpt.work` with their number."""
    return _to_device(excerpt, pl.col("bytes") >= causes.BATCH_BYTES)


def _to_device(excerpt: Excerpt, condition: pl.Expr) -> pl.DataFrame:
    hits = matching(excerpt.names, [causes.HOST_TO_DEVICE])
    if not hits:
        return excerpt.work.clear().with_row_index("work")
    to_device = (pl.col("kind") == "gpu_memcpy") & pl.col("name").is_in(hits)
    return excerpt.work.with_row_index("work").filter(to_device & condition)


def copies_pinned(excerpt: Excerpt) -> bool:
    """Return whether all copies of batches are from pinned or managed memory."""
    names = distinct(_batches(excerpt))
    return len(matching(names, [r"\((?:Pinned|Managed)"])) == len(names)


def blocking_copies(excerpt: Excerpt) -> pl.DataFrame:
    """Return when a thread is in a call that copies from a device and returns after the copy."""
    hits = matching(excerpt.names, [causes.DEVICE_TO_HOST])
    if not hits:
        return _NEVER
    from_device = (pl.col("kind") == "gpu_memcpy") & pl.col("name").is_in(hits)
    is_copy = excerpt.work.select(from_device).to_series()[excerpt.launched["work"]]
    calls = excerpt.launched.filter(is_copy)
    return excerpt.of_units(calls.filter(calls["end"] >= excerpt.work["end"][calls["work"]]))


def launching(excerpt: Excerpt, calls: pl.DataFrame, on_cpu: pl.DataFrame) -> pl.DataFrame:
    """Return when work is being launched: unit, start, end; see :func:`launch_time`.

    Args:
        excerpt: one rank.
        calls: rows of :func:`classified`.
        on_cpu: rows of :func:`computing`.
    """
    launches = calls.filter(pl.col("class").is_in(vocabulary.LAUNCHES_WORK)).drop("class")
    none = not excerpt.on_host and excerpt.launched.is_empty()  # no launch call is recorded
    points = excerpt.slices.filter(_is_operator(excerpt.names)) if none else excerpt.launched
    running = launch_time(excerpt.slices, excerpt.names, points, launches)
    return excerpt.of_units(running if none else intervals.subtract(running, on_cpu, _THREAD))


def launch_time(
    slices: pl.DataFrame, names: Sequence[str], launched: pl.DataFrame, calls: pl.DataFrame
) -> pl.DataFrame:
    """Return when threads launch work: thread, start, end.

    That is in launch calls and in the outermost operators that launch something, for their whole
    duration, and in short times from one of these to the next: there eager code prepares the next
    launch. The time of :func:`computing` is to be subtracted.

    Args:
        slices: kind, name, thread, start, end.
        names: their names.
        launched: thread, start, end of calls that launched work.
        calls: thread, start, end of other calls that count.
    """
    runs = intervals.union(slices.filter(_is_operator(names))[_SLICE], _THREAD)
    points = launched.select("thread", ts="start")
    launch = linking.label_by_interval(points, runs, _THREAD)["interval"].drop_nulls().unique()
    running = [calls[_SLICE], launched[_SLICE], runs[launch]]
    known = intervals.union(pl.concat(running).drop_nulls(), _THREAD)
    same = pl.col("thread") == pl.col("thread").shift(-1)
    known = known.with_columns(next=pl.when(same).then(pl.col("start").shift(-1)))
    pause = pl.col("next") - pl.col("end")
    end = pl.when(pause <= _BETWEEN_LAUNCHES_NS).then("next").otherwise("end")
    long = known.filter(pause > _BETWEEN_LAUNCHES_NS, pause <= _IN_MODULE_NS)
    long = long.select("thread", start="end", end="next")
    return pl.concat([known.select("thread", "start", end=end), _in_modules(slices, names, long)])


def computing(slices: pl.DataFrame, names: Sequence[str], launched: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost long operators without a call: they compute on the CPU.

    Nodes of the backward pass, which may run Python, do not count.

    Args:
        slices: kind, name, thread, start, end.
        names: their names.
        launched: thread, start, end of calls that launched work.

    Returns:
        name, thread, start, end.
    """
    long = pl.col("end") - pl.col("start") > _BETWEEN_LAUNCHES_NS
    rows = slices.filter(long & (pl.col("kind") == "cpu_op") & named(names, [causes.COMPUTES]))
    if rows.is_empty():
        return rows[["name", *_SLICE]]
    calls = slices.filter(pl.col("kind").is_in(vocabulary.LAUNCH_KINDS))
    calls = pl.concat([calls[_SLICE], launched[_SLICE].drop_nulls()])
    rows = intervals.overlap_with(rows, calls, _THREAD).filter(pl.col("overlap") == 0)
    rows = rows.sort(*_SLICE, "name", descending=[False, False, True, True])
    before = pl.col("end").cum_max().shift(1).over("thread")
    return rows.filter((pl.col("end") > before).fill_null(value=True))[["name", *_SLICE]]


def _in_modules(slices: pl.DataFrame, names: Sequence[str], long: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of long pauses between launches in a module, without other functions.

    Args:
        slices: kind, name, thread, start, end.
        names: their names.
        long: thread, start, end of the pauses.
    """
    if not matching(names, [_MODULE]):
        return long.clear()
    python = slices.filter(pl.col("kind") == "python_function").with_columns(ts="start")
    modules = python.filter(named(names, [_MODULE]))
    length = pl.col("end") - pl.col("start")
    functions = python.filter(length > _BETWEEN_LAUNCHES_NS, length <= _IN_MODULE_NS)
    begun = linking.label_by_interval(functions, long, _THREAD).drop_nulls("interval")
    in_pause = begun.filter(begun["end"] <= long["end"][begun["interval"]])
    return intervals.subtract(intervals.intersect(long, modules, _THREAD), in_pause, _THREAD)


#: In a pause between launches up to this, the host prepares the next launch.
_BETWEEN_LAUNCHES_NS = 100_000
#: The same between two operators of one module.
_IN_MODULE_NS = 1_000_000
_MODULE = r"^nn\.Module: "


def extents(excerpt: Excerpt) -> pl.DataFrame:
    """Return the time from the first slice to the last of each thread."""
    spans = excerpt.slices.group_by(_THREAD).agg(pl.col("start").min(), pl.col("end").max())
    return excerpt.of_units(spans)


def _in(excerpt: Excerpt, kinds: Sequence[str], patterns: Sequence[str]) -> pl.DataFrame:
    """Return when a thread is in a slice of these kinds whose name matches a pattern."""
    return excerpt.of_units(excerpt.named(kinds, patterns))
