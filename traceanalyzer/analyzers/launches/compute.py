"""Launch statistics of each rank, combined over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import (
    clocks,
    device_steps,
    device_work,
    host_code,
    soundness,
    step_marks,
)
from traceanalyzer.analyzers.common.columns import grouped, joined, ratio
from traceanalyzer.analyzers.common.display import places
from traceanalyzer.analyzers.common.gpu_api import Api, api_of, joined_api
from traceanalyzer.analyzers.common.launching import GRAPH_LAUNCH, SLOW_CALL_NS
from traceanalyzer.analyzers.launches import Options, calls as launching, launch_bound, result
from traceanalyzer.analyzers.launches.calls import DEVICE
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, linking
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs, Trace, record_hint
from traceanalyzer.units import format_ns
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS

#: Work that starts later than this after its launch call is late: it waited for something.
LATE_NS = 100_000

#: Lower bounds of the classes of delays above 0, from 1 us to 1 s.
_BOUNDS = (*(first * 10**power for power in range(3, 9) for first in (1, 2, 5)), 10**9)
_CLASSES = ("0", "> 0", *map(format_ns, _BOUNDS))

#: What is left out for rules.
_COUNTS = dict.fromkeys(("kernels", "short_kernels"), pl.UInt32)
_NO_SHORT = pl.DataFrame(schema={"name": pl.Categorical(), **_COUNTS, "short_ns": pl.Int64})
_NO_PLACE = [pl.lit(None, pl.String).alias(name) for name in ("annotation", "operator", "step")]


#: Device work, launch calls, and the operators, annotations and frames around them.
NEEDS = Needs(
    {*DEVICE_WORK, *LAUNCH_KINDS, *step_marks.MARK_KINDS, "python_function", launching.OVERHEAD},
    step_marks.MARK_NAMES,
    unused=("external_id", "bytes"),
)


@dataclass(frozen=True)
class Part(clocks.Origin):
    """One rank's launches.

    Attributes:
        calls: one row per launch call with device work: device, launch_name, pieces, call_ns,
            delay_ns, waited, loading_ns (part of call_ns in which CUDA loaded code), annotation,
            operator, waiting_ns (wait of the device for it in stretches).
        devices: device, start, end, idle_ns, work, launched_work, kernels, short_kernels, short_ns.
        streams: result of :func:`~traceanalyzer.analyzers.launches.calls.streams`.
        queue: result of :func:`~traceanalyzer.analyzers.launches.calls.drawn`.
        stretches: result of :func:`~traceanalyzer.analyzers.launches.launch_bound.stretches` with
            step, annotation and operator.
        steps: device, step, start, step_ns, stretch_ns, waiting_ns, idle_ns, launches,
            graph_launches; empty without steps.
        steps_by_kernels: steps are inferred from repeating kernels.
        short: kernels by name: kernels, short_kernels, short_ns.
        synchronising: result of :func:`~traceanalyzer.analyzers.launches.launch_bound.by_place`.
        unmatched: device work and calls that do not count, or have no counterpart.
        program: GPU API and framework of the program.
    """

    calls: pl.DataFrame
    devices: pl.DataFrame
    streams: pl.DataFrame
    queue: pl.DataFrame
    stretches: pl.DataFrame
    steps: pl.DataFrame
    steps_by_kernels: bool
    short: pl.DataFrame
    synchronising: pl.DataFrame
    unmatched: result.Unmatched
    program: Api


@dataclass(frozen=True)
class Excerpt(clocks.Origin):
    """The data needed of one rank, without the trace.

    Attributes:
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.
        calls: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_overhead`.
        waits: rows of :func:`~traceanalyzer.analyzers.launches.launch_bound.synchronising_calls`.
        others: rows of :func:`~traceanalyzer.analyzers.launches.launch_bound.other_calls`.
        python: the Python frame of each of ``waits``.
        places: slices of operators and annotations.
        steps: rows of :func:`~traceanalyzer.analyzers.common.device_steps.device_steps`.
        unmatched: device work and calls that do not count, or have no counterpart.
        program: GPU API and framework of the program.
    """

    work: pl.DataFrame
    calls: pl.DataFrame
    waits: pl.DataFrame
    others: pl.DataFrame
    python: pl.Series
    places: host_code.Places
    steps: pl.DataFrame
    unmatched: result.Unmatched
    program: Api


def take(trace: Trace, options: Options) -> Excerpt:
    """Extract the needed columns of a trace, so that it can be freed.

    Raises:
        MissingData: device work or its launch calls were not recorded.
        OptionError: ``step_name`` is not a regular expression.
    """
    steps = device_steps.device_steps(trace, options.step_name)
    work = trace.kept(launching.with_launches(trace, device_work.device_work(trace)))
    if work.is_empty():
        trace.require(*DEVICE_WORK)
    if work["launch"].null_count() == work.height:
        hint = record_hint(trace.meta, "device work")
        missing = f"no launch calls were recorded for the device work; {hint}"
        raise MissingData(f"{trace.meta.path}: {soundness.unlinked(trace) or missing}")
    calls, runtime = trace.kept(launching.launch_calls(work)), launching.runtime_calls(trace)
    waits, after_last = launch_bound.synchronising_calls(runtime, work, trace.names)
    work = work.drop("launch_pid", "launch_tid", "launch_name", "launch_start", "stream_free")
    without_work = launching.without_work(runtime, calls)
    others = launch_bound.other_calls(runtime)
    calls = launching.with_overhead(trace, calls, runtime)
    del runtime  # before the places are taken
    return Excerpt(
        **clocks.origin(trace.meta),
        work=work,
        calls=calls,
        waits=waits,
        others=others,
        python=host_code.python_frames(trace, _moments(waits)),
        places=host_code.places_of(trace),
        steps=steps,
        unmatched=_unmatched(work, calls, without_work, after_last),
        program=api_of(trace),
    )


def measure(excerpt: Excerpt, _options: Options, *, for_rules: bool = False) -> Part:
    """Measure the launches, queues, stretches and synchronising calls of one rank.

    With ``for_rules`` only the calls that a device waited for in stretches, those that load code
    and the first one of each name are placed and counted; queues, short kernels by name, and the
    places of stretches are left out.
    """
    work, calls = excerpt.work, excerpt.calls
    idle = launch_bound.device_gaps(work)
    gaps = launch_bound.launch_gaps(idle, excerpt.waits, excerpt.others)
    stretches = launch_bound.stretches(gaps, idle, work)
    waiting_ns = launch_bound.waiting_for(calls, gaps, stretches)
    steps = _measured_steps(excerpt, stretches, gaps, idle)
    if for_rules:
        used = (waiting_ns > 0) | calls["launch_name"].is_first_distinct()
        used |= calls["loading_ns"] > 0
        calls, waiting_ns = calls.filter(used), waiting_ns.filter(used)
    launched, waited = _placed(excerpt, calls)
    streams, queue, short = launching.NO_STREAMS, launching.NO_QUEUE, _NO_SHORT
    where = stretches.with_columns(_NO_PLACE)
    if not for_rules:
        changes = launching.queue_changes(calls, work)
        streams, queue = launching.streams(changes, calls), launching.drawn(changes)
        short = _short_kernels(work)
        placed = launch_bound.most_launched_in(stretches, calls, launched)
        where = _in_steps(placed, excerpt.steps)
    return Part(
        **clocks.origin(excerpt),
        calls=calls.select(
            "device", "launch_name", "pieces", "call_ns", "delay_ns", "waited", "loading_ns",
            **launched, waiting_ns=waiting_ns,
        ),
        devices=_by_device(work),
        streams=streams,
        queue=queue,
        stretches=where,
        steps=steps,
        steps_by_kernels=step_marks.by_kernels(excerpt.steps),
        short=short,
        synchronising=launch_bound.by_place(launch_bound.costs(excerpt.waits, work), waited),
        unmatched=excerpt.unmatched,
        program=excerpt.program,
    )  # fmt: skip


def combine(parts: Sequence[Part], _options: Options) -> result.Launches:
    """Combine the launches of all ranks."""
    calls, (shifts, _) = joined(parts, "calls"), clocks.axis(parts, "devices")
    stretches = _stretches(parts, shifts)
    devices = _devices(parts, calls, stretches)
    on = devices[[*DEVICE, "on"]]
    span_ns, idle_ns, kernels, short = _sums(
        devices, "span_ns", "idle_ns", "kernels", "short_kernels"
    )
    stretch_ns, waiting_ns, sync_ns = _sums(stretches, "length_ns", "waiting_ns", "synchronised_ns")
    stretches, places = _named(stretches, on), _named(_places(calls), on)
    return result.Launches(
        span_ns=span_ns,
        idle_ns=idle_ns,
        devices=devices,
        bound=result.LaunchBound(stretch_ns, waiting_ns, sync_ns, stretches, places),
        calls=_calls(calls),
        short=result.ShortKernels(kernels, short, _short(parts)),
        synchronising=_synchronising(parts),
        queue=result.Queue(_named(_streams(parts), on), _named(_queue(parts, shifts), on)),
        unmatched=result.Unmatched.summed([part.unmatched for part in parts]),
        steps=_named(_steps(parts), on),
        steps_by_kernels=any(part.steps_by_kernels for part in parts),
        program=joined_api([part.program for part in parts]),
    )


LAUNCHES = Analyzer(
    "launches",
    Options,
    NEEDS,
    measure,
    combine,
    take=take,
    measure_for={"findings": partial(measure, for_rules=True)},
    slow=True,
)


# --- one rank ------------------------------------------------------------------------------


def _placed(
    excerpt: Excerpt, calls: pl.DataFrame
) -> tuple[dict[str, pl.Series], dict[str, pl.Series]]:
    """Return annotation and operator of launch calls, with Python frames of synchronising calls."""
    places, waits = excerpt.places, excerpt.waits
    launched_at = calls.select("pid", "tid", start="launch_start")
    both = _moments(pl.concat([launched_at, waits[["pid", "tid", "start"]]]))
    named = {"annotation": places.annotation(both), "operator": places.operator(both)}
    launched = {column: names.head(calls.height) for column, names in named.items()}
    waited = {column: names.tail(waits.height) for column, names in named.items()}
    outer = places.outer_operator(_moments(waits))
    return launched, {**waited, "outer_operator": outer, "python": excerpt.python}


def _unmatched(
    work: pl.DataFrame, calls: pl.DataFrame, without_work: int, after_last: int
) -> result.Unmatched:
    length = (pl.col("end") - pl.col("start")).sum()
    unlaunched = work.filter(pl.col("launch").is_null())
    before_ns, work_ns = (rows.select(length).item() for rows in (unlaunched, work))
    odd = calls.filter(pl.col("start") < pl.col("launch_start")).height
    return result.Unmatched(unlaunched.height, before_ns, work_ns, without_work, after_last, odd)


def _moments(calls: pl.DataFrame) -> pl.DataFrame:
    """Return start times and threads of calls."""
    return calls.select("pid", "tid", ts="start")


def _by_device(work: pl.DataFrame) -> pl.DataFrame:
    """Return the span, idle time and kernel counts of each device."""
    idle = (pl.col("start") - pl.col("device_free")).clip(0).sum()
    length = pl.col("end") - pl.col("start")
    kernel = pl.col("kind") == "kernel"
    short = kernel & (length < launching.SHORT_KERNEL_NS)
    return grouped(
        work, ["device"],
        start=pl.col("start").min(), end=pl.col("end").max(), idle_ns=idle, work=pl.len(),
        launched_work=pl.col("launch").count(), kernels=kernel.sum(), short_kernels=short.sum(),
        short_ns=length.filter(short).sum(),
    ).sort("device")  # fmt: skip


def _short_kernels(work: pl.DataFrame) -> pl.DataFrame:
    """Count kernels and short kernels by name, with the total time of short ones."""
    length = pl.col("end") - pl.col("start")
    short = length < launching.SHORT_KERNEL_NS
    kernels = work.select("kind", "name", length=length, short=short).filter(kind="kernel")
    sums = {
        "short_kernels": pl.col("short").sum(),
        "short_ns": pl.col("length").filter("short").sum(),
    }
    counted = kernels.group_by("name").agg(kernels=pl.len(), **sums)
    return counted.filter(pl.col("short_kernels") > 0)


def _in_steps(stretches: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Add the step in which each stretch began."""
    places = linking.label_by_interval(stretches.select(ts="start"), steps)["interval"]
    return stretches.hstack([steps["step"][places]])


def _measured_steps(
    excerpt: Excerpt, stretches: pl.DataFrame, gaps: pl.DataFrame, idle: pl.DataFrame
) -> pl.DataFrame:
    """Measure launches, stretches, gaps and idle time of each step by device.

    A launch belongs to the step of its call, or of its work if steps are inferred from kernels.
    """
    steps = excerpt.steps
    at = "start" if step_marks.by_kernels(steps) else "launch_start"
    is_graph = pl.col("launch_name").cast(pl.String).str.contains(GRAPH_LAUNCH)
    launched = excerpt.calls.select("device", ts=at, graph=is_graph)
    devices = excerpt.work[["device"]].unique()
    rows = steps[["step", "start", "end"]].join(devices, how="cross")
    waiting = intervals.intersect(gaps, stretches, ["device"])
    within = linking.label_by_interval(launched, device_steps.on_host(steps))["interval"]
    names = steps["step"].cast(pl.Categorical)  # small, of millions of launches
    counts = launched.select("device", "graph", step=names[within])
    sums = (
        counts.group_by("device", "step")
        .agg(launches=pl.len(), graph_launches=pl.col("graph").sum())
        .with_columns(pl.col("step").cast(pl.String))
    )
    measured = rows.with_columns(
        step_ns=pl.col("end") - pl.col("start"),
        stretch_ns=intervals.overlap_with(rows, stretches, ["device"])["overlap"],
        waiting_ns=intervals.overlap_with(rows, waiting, ["device"])["overlap"],
        idle_ns=intervals.overlap_with(rows, idle, ["device"])["overlap"],
    ).join(sums, ["device", "step"], "left")
    return measured.drop("end").sort("device", "start")


# --- all ranks -----------------------------------------------------------------------------


def delay_columns(calls: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    """Return statistics of delays and durations of launch calls by group.

    Returns:
        ``by``, launches, pieces, mean_, median_, p99_ and max_delay_ns, late, waited_frac, mean_,
        median_ and max_call_ns, slow_calls, loading_calls (slow calls that mostly load code),
        loading_ns (of these calls), waiting_ns (wait of devices in stretches); one row without
        ``by``. The percentile is not interpolated: it is the nearest delay.
    """
    delay, call, loading = (pl.col(name) for name in ("delay_ns", "call_ns", "loading_ns"))
    slow = call > SLOW_CALL_NS
    loads = slow & (2 * loading >= call)
    measured = (
        pl.len().alias("launches"),
        pl.col("pieces").sum(),
        delay.mean().alias("mean_delay_ns"),
        delay.median().alias("median_delay_ns"),
        delay.quantile(0.99, "nearest").alias("p99_delay_ns"),
        delay.max().alias("max_delay_ns"),
        (delay > LATE_NS).sum().alias("late"),
        pl.col("waited").mean().alias("waited_frac"),
        call.mean().alias("mean_call_ns"),
        call.median().alias("median_call_ns"),
        call.max().alias("max_call_ns"),
        slow.sum().alias("slow_calls"),
        loads.sum().alias("loading_calls"),
        loading.filter(loads).sum().alias("loading_ns"),
        pl.col("waiting_ns").sum(),
    )
    return calls.group_by(by).agg(measured) if by else calls.select(measured)


def _calls(calls: pl.DataFrame) -> result.Calls:
    overall = delay_columns(calls, []).row(0, named=True)
    numbers = ("median_delay_ns", "p99_delay_ns", "slow_calls", "loading_calls", "loading_ns")
    return result.Calls(
        launches=calls.height,
        **{name: overall[name] for name in numbers},
        by_name=_most_first(delay_columns(calls, ["launch_name"])),
        graphs=_most_first(delay_columns(calls.filter(pl.col("pieces") > 1), ["launch_name"])),
        by_operator=_most_first(delay_columns(calls, ["operator"]), "waiting_ns"),
        delays=_delays(calls),
    )


def _sums(rows: pl.DataFrame, *columns: str) -> tuple[int, ...]:
    return rows.select(pl.col(columns).sum()).row(0)


def _named(frame: pl.DataFrame, on: pl.DataFrame) -> pl.DataFrame:
    """Add the label of the device to the rows."""
    return frame.join(on, on=DEVICE, how="left", maintain_order="left", nulls_equal=True)


def _devices(parts: Sequence[Part], calls: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    counts = ("stretches", "stretch_ns", "launches", "late", "slow_calls", "waiting_ns")
    devices = joined(parts, "devices").with_columns(span_ns=pl.col("end") - pl.col("start"))
    of_stretches = stretches.group_by(DEVICE).agg(
        stretches=pl.len(), stretch_ns=pl.col("length_ns").sum()
    )
    for sums in (delay_columns(calls, DEVICE), of_stretches):
        devices = devices.join(sums, on=DEVICE, how="left", nulls_equal=True)
    measured = devices.with_columns(pl.col(counts).fill_null(0)).sort(DEVICE)
    return measured.select(
        places(measured), *DEVICE, "span_ns", "idle_ns", "stretches", "stretch_ns", "waiting_ns",
        "launches", "mean_delay_ns", "median_delay_ns", "p99_delay_ns", "max_delay_ns", "late",
        "waited_frac", "mean_call_ns", "median_call_ns", "slow_calls", "kernels", "short_kernels",
        "short_ns",
        busy_frac=ratio(pl.col("span_ns") - pl.col("idle_ns"), "span_ns"),
        stretch_frac=ratio("stretch_ns", "span_ns"),
        waiting_frac=ratio("waiting_ns", "span_ns"),
        short_frac=ratio("short_kernels", "kernels"),
        unlaunched=pl.col("work") - pl.col("launched_work"),
    )  # fmt: skip


def _streams(parts: Sequence[Part]) -> pl.DataFrame:
    """Return the streams of all ranks, those with most launches first."""
    streams = joined(parts, "streams").select(
        *DEVICE, "process", "stream", "launches", "mean_queue", "max_queue", "queue_ns",
        empty_frac=ratio("empty_ns", "queue_ns"),
        full_frac=ratio("full_ns", "queue_ns"),
    )  # fmt: skip
    return streams.sort("launches", *DEVICE, "process", "stream", descending=[True] + [False] * 5)


def _stretches(parts: Sequence[Part], shifts: pl.Series) -> pl.DataFrame:
    """Return the stretches of all ranks, those with the longest wait first."""
    stretches = clocks.on_axis(parts, "stretches", shifts)
    length = pl.col("end") - pl.col("start")
    return stretches.select(
        *DEVICE, "step", "gaps", "pieces", "busy_ns", "waiting_ns", "synchronised_ns", "annotation",
        "operator", "at_ns",
        length_ns=length,
        busy_frac=ratio("busy_ns", length),
        synchronised_frac=ratio("synchronised_ns", "waiting_ns"),
    ).sort("waiting_ns", *DEVICE, "at_ns", descending=[True] + [False] * 4)  # fmt: skip


def _steps(parts: Sequence[Part]) -> pl.DataFrame:
    steps = joined(parts, "steps").sort(*DEVICE, "start")
    ends = steps.with_columns(end=pl.col("start") + pl.col("step_ns"))
    return steps.with_columns(device_steps.is_warm_up(ends, DEVICE)).select(
        *DEVICE, "step", "step_ns", "stretch_ns", "waiting_ns", "idle_ns", "warm_up",
        pl.col("launches", "graph_launches").fill_null(0),
        stretch_frac=ratio("stretch_ns", "step_ns"),
        waiting_frac=ratio("waiting_ns", "step_ns"),
    )  # fmt: skip


def _synchronising(parts: Sequence[Part]) -> result.Synchronising:
    """Sum the synchronising calls of all ranks by place, most device idle time first."""
    sums = pl.col("n", "host_ns", "idle_ns", "idle_after_ns").sum()
    places = joined(parts, "synchronising").group_by(launch_bound.PLACE).agg(sums, ranks=pl.len())
    idle = pl.col("idle_ns") + pl.col("idle_after_ns")
    order = [idle, pl.col("host_ns"), *map(pl.col, launch_bound.PLACE)]
    times = ["host_ns", "idle_ns", "idle_after_ns"]
    by_place = places.sort(
        order, descending=[True, True] + [False] * len(launch_bound.PLACE)
    ).select(*launch_bound.PLACE, "ranks", "n", *times)
    host_ns, idle_ns, after_ns = _sums(by_place, *times)
    return result.Synchronising(host_ns, idle_ns, after_ns, by_place)


def _short(parts: Sequence[Part]) -> pl.DataFrame:
    """Sum the short kernels of all ranks by name, the most frequent first."""
    kernels = int(joined(parts, "devices")["kernels"].sum())
    sums = pl.col("kernels", "short_kernels", "short_ns").sum()
    named = joined(parts, "short").with_columns(pl.col("name").cast(pl.String))
    summed = named.group_by("name").agg(sums)
    return summed.with_columns(
        short_frac=ratio("short_kernels", "kernels"),
        share_frac=ratio("short_kernels", pl.lit(kernels)),
        mean_ns=ratio("short_ns", "short_kernels"),
    ).sort("short_kernels", "name", descending=[True, False])


def _delays(calls: pl.DataFrame) -> pl.DataFrame:
    """Count the launches by class of delay and by whether earlier work was queued before them.

    The label of a class is its lower bound. Empty classes between others are included.
    """
    number = np.searchsorted([0, 1, *_BOUNDS], calls["delay_ns"].to_numpy(), side="right") - 1
    numbered = calls[["waited"]].with_columns(number=pl.Series(number, dtype=pl.UInt32))
    counted = numbered.group_by("number", "waited").agg(n=pl.len())
    lowest, highest = int(number.min()), int(number.max())
    grid = pl.DataFrame({"number": range(lowest, highest + 1)}, schema={"number": pl.UInt32}).join(
        pl.DataFrame({"waited": [False, True]}), how="cross"
    )
    classes = grid.join(counted, on=["number", "waited"], how="left").sort("number", "waited")
    names = pl.Series(_CLASSES).gather(classes["number"])
    return classes.select(names.alias("delay"), "waited", pl.col("n").fill_null(0))


def _queue(parts: Sequence[Part], shifts: pl.Series) -> pl.DataFrame:
    """Return the queue lengths over time."""
    return clocks.on_axis(parts, "queue", shifts, at="ts")[
        [*DEVICE, "process", "stream", "length", "at_ns"]
    ]


def _most_first(rows: pl.DataFrame, *first: str) -> pl.DataFrame:
    """Sort by the columns, then by number of launches, in descending order; ties by name."""
    name = rows.columns[0]
    order = [*first, "launches", name]
    return rows.with_columns(pl.col(name).cast(pl.String)).sort(
        order, descending=[True] * (len(order) - 1) + [False], nulls_last=True
    )


def _places(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the wait of each device for launches by annotation, or else by operator."""
    names = pl.col("annotation", "operator").cast(pl.String)
    waiting = calls.filter(pl.col("waiting_ns") > 0).with_columns(names)
    sums = waiting.group_by(*DEVICE, place=pl.coalesce("annotation", "operator")).agg(
        pl.col("waiting_ns").sum()
    )
    return sums.sort("waiting_ns", *DEVICE, "place", descending=[True] + [False] * 4)


def launches(
    inputs: Inputs, *, step_name: str | None = None, **reading: Unpack[Reading]
) -> result.Launches:
    """Return how fast the host launches device work.

    The result has the delay from launch call to start, the launch queue of each stream,
    launch-bound time, and the cost of synchronising calls. One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        step_name: a regular expression; slices whose names match are steps.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: device work or its launch calls were not recorded.
        OptionError: ``step_name`` is not a regular expression.
    """
    return run(LAUNCHES, inputs, Options(step_name), **reading)
