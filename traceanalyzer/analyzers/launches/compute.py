"""What a rank's trace says about launches: what is read, taken and measured."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.common import whereabouts
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.common.step_marks import MARK_KINDS, MARK_NAMES, step_marks
from traceanalyzer.analyzers.launches import calls as launching
from traceanalyzer.analyzers.launches import stretches as stretching
from traceanalyzer.analyzers.launches.all_ranks import combine
from traceanalyzer.analyzers.launches.options import Options
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK, LAUNCH_KINDS


def needs(_options: Options) -> Needs:
    """Device work, launch calls, and what tells where in the program they were made."""
    kinds = frozenset((*DEVICE_WORK, *LAUNCH_KINDS, *MARK_KINDS, "python_function"))
    return Needs(kinds, MARK_NAMES, unused=("external_id", "bytes"))


@dataclass(frozen=True)
class Part:
    """One rank's launches.

    Attributes:
        rank: or None.
        path: the file.
        calls: each launch call that started work: device, launch_name, pieces, call_ns, delay_ns,
            waited, annotation, operator, waiting_ns (of the device for it, in stretches).
        devices: device, start, end, idle_ns, work, launched_work, kernels, short_kernels, short_ns.
        streams: what :func:`~traceanalyzer.analyzers.launches.calls.streams` gives.
        queue: what :func:`~traceanalyzer.analyzers.launches.calls.drawn` gives.
        stretches: what :func:`~traceanalyzer.analyzers.launches.stretches.stretches` gives, with
            step, annotation and operator.
        steps: device, step, start, step_ns, stretch_ns, waiting_ns; none where no step is marked.
        short: kernels by name: kernels, short_kernels, short_ns.
        synchronising: what :func:`~traceanalyzer.analyzers.launches.stretches.by_place` gives.
        without_work: launch calls that started nothing that was recorded.
        clock_odd: pieces of work that seem to start before their call.
        after_last: synchronising calls after the last launch, which are not counted.
    """

    rank: int | None
    path: str
    calls: pl.DataFrame
    devices: pl.DataFrame
    streams: pl.DataFrame
    queue: pl.DataFrame
    stretches: pl.DataFrame
    steps: pl.DataFrame
    short: pl.DataFrame
    synchronising: pl.DataFrame
    without_work: int
    clock_odd: int
    after_last: int


@dataclass(frozen=True)
class Excerpt:
    """What is looked at of one rank, without the trace.

    Attributes:
        rank: or None.
        path: the file.
        work: rows of :func:`~traceanalyzer.analyzers.launches.calls.with_launches`.
        calls: rows of :func:`~traceanalyzer.analyzers.launches.calls.launch_calls`.
        waits: rows of :func:`~traceanalyzer.analyzers.launches.stretches.synchronising_calls`.
        python: of each of them the Python frame that made it.
        places: the slices that tell operators and annotations.
        steps: rows of :func:`~traceanalyzer.analyzers.common.step_marks.step_marks`.
        without_work: launch calls that started nothing that was recorded.
        after_last: synchronising calls after the last launch.
    """

    rank: int | None
    path: str
    work: pl.DataFrame
    calls: pl.DataFrame
    waits: pl.DataFrame
    python: pl.Series
    places: whereabouts.Places
    steps: pl.DataFrame
    without_work: int
    after_last: int


def take(trace: Trace, options: Options) -> Excerpt:
    """The few columns of a trace that count, so that it can be freed.

    Raises:
        MissingData: no device work, or not the calls that launched it.
        OptionError: ``step_name`` is no regular expression.
    """
    with ThreadPoolExecutor(1) as pool:
        placing = pool.submit(whereabouts.places_of, trace)
        marking = pool.submit(step_marks, trace, options.step_name)
        work = launching.with_launches(trace, device_work(trace))
        places, steps = placing.result(), marking.result()
    if work.is_empty():
        trace.require(*DEVICE_WORK)
    if work["launch"].null_count() == work.height:
        hint = record_hint(trace.meta, "device work")
        raise MissingData(
            f"{trace.meta.path}: no launch call belongs to the recorded device work; {hint}"
        )
    calls, runtime = launching.launch_calls(work), launching.runtime_calls(trace)
    waits, after_last = stretching.synchronising_calls(runtime, work)
    return Excerpt(
        rank=trace.meta.rank,
        path=trace.meta.path,
        work=work,
        calls=calls,
        waits=waits,
        python=whereabouts.python_frames(trace, _moments(waits)),
        places=places,
        steps=steps,
        without_work=launching.without_work(runtime, calls),
        after_last=after_last,
    )


def measure(excerpt: Excerpt, _options: Options) -> Part:
    """One rank's launches, queues, stretches and synchronising calls."""
    work, calls = excerpt.work, excerpt.calls
    with ThreadPoolExecutor(1) as pool:  # where calls were is half of it, and needs nothing else
        placed = pool.submit(_placed, excerpt)
        streams, course = _queues(calls, work)
        idle = stretching.device_gaps(work)
        gaps = stretching.launch_gaps(idle, excerpt.waits)
        found = stretching.stretches(gaps, idle, work)
        waiting = stretching.waiting_for(calls, gaps, found)
        costs = stretching.costs(excerpt.waits, work)
        launched, waited = placed.result()
        where = stretching.most_launched_in(found, calls, launched)
        waits = stretching.by_place(costs, waited)
        devices, short = _devices(work), _short_kernels(work)
        in_steps = _measured_steps(excerpt.steps, found, gaps)
    return Part(
        rank=excerpt.rank,
        path=excerpt.path,
        calls=calls.select(
            "device", "launch_name", "pieces", "call_ns", "delay_ns", "waited",
            **launched, waiting_ns=waiting,
        ),
        devices=devices,
        streams=streams,
        queue=course,
        stretches=_in_steps(where, excerpt.steps),
        steps=in_steps,
        short=short,
        synchronising=waits,
        without_work=excerpt.without_work,
        clock_odd=calls.filter(pl.col("start") < pl.col("launch_start")).height,
        after_last=excerpt.after_last,
    )  # fmt: skip


LAUNCHES = Analyzer("launches", Options, needs, measure, combine, take=take)


# --- one rank ------------------------------------------------------------------------------


def _queues(calls: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Each stream's queue, and its course."""
    changes = launching.queue_changes(calls, work)
    return launching.streams(changes, calls), launching.drawn(changes)


def _placed(excerpt: Excerpt) -> tuple[dict[str, pl.Series], dict[str, pl.Series]]:
    """Annotation and operator of each launch call; the same and more of each synchronising call."""
    places, calls, waits = excerpt.places, excerpt.calls, excerpt.waits
    launched_at = calls.select("pid", "tid", start="launch_start")
    both = _moments(pl.concat([launched_at, waits.select("pid", "tid", "start")]))
    named = {"annotation": places.annotation(both), "operator": places.operator(both)}
    launched = {column: names.head(calls.height) for column, names in named.items()}
    waited = {column: names.tail(waits.height) for column, names in named.items()}
    outer = places.outer_operator(_moments(waits))
    return launched, {**waited, "outer_operator": outer, "python": excerpt.python}


def _moments(calls: pl.DataFrame) -> whereabouts.Moments:
    """When and on which threads calls start."""
    return whereabouts.moments(calls.select("pid", "tid", ts="start"))


def _devices(work: pl.DataFrame) -> pl.DataFrame:
    """Each device's span and how much of it was busy, and what there was to launch."""
    idle = (pl.col("start") - pl.col("device_free")).clip(0).sum()
    length = pl.col("end") - pl.col("start")
    kernel = pl.col("kind") == "kernel"
    short = kernel & (length < launching.SHORT_KERNEL_NS)
    return (
        work.group_by("device")
        .agg(
            pl.col("start").min(),
            pl.col("end").max(),
            idle_ns=idle,
            work=pl.len(),
            launched_work=pl.col("launch").count(),
            kernels=kernel.sum(),
            short_kernels=short.sum(),
            short_ns=length.filter(short).sum(),
        )
        .sort("device")
    )


def _short_kernels(work: pl.DataFrame) -> pl.DataFrame:
    """Kernels by name: how many, how many of them short, and how long these ran in all."""
    length = pl.col("end") - pl.col("start")
    short = length < launching.SHORT_KERNEL_NS
    return (
        work.filter(pl.col("kind") == "kernel")
        .group_by("name")
        .agg(kernels=pl.len(), short_kernels=short.sum(), short_ns=length.filter(short).sum())
        .filter(pl.col("short_kernels") > 0)
    )


def _in_steps(found: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The step in which each stretch began."""
    places = linking.label_by_interval(found.select(ts="start"), steps)["interval"]
    return found.with_columns(steps["step"].gather(places).alias("step"))


def _measured_steps(steps: pl.DataFrame, found: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """How much of each step lies in stretches, and in their gaps, on each device."""
    devices = gaps.select("device").unique()
    rows = steps.select("step", "start", "end").join(devices, how="cross")
    waiting = intervals.intersect(gaps, found, ["device"])
    measured = rows.with_columns(
        step_ns=pl.col("end") - pl.col("start"),
        stretch_ns=intervals.overlap_with(rows, found, ["device"])["overlap"],
        waiting_ns=intervals.overlap_with(rows, waiting, ["device"])["overlap"],
    )
    return measured.drop("end").sort("device", "start")
