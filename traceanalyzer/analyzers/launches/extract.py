"""From one rank's trace: its launches, queues, stretches and synchronising calls."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.device_work import device_work
from traceanalyzer.analyzers.launches import queue, synchronising
from traceanalyzer.analyzers.launches.calls import (
    launch_calls,
    runtime_calls,
    with_launches,
    without_work,
)
from traceanalyzer.analyzers.launches.needs import SHORT_KERNEL_NS
from traceanalyzer.analyzers.launches.part import Part
from traceanalyzer.analyzers.launches.stretches import (
    device_gaps,
    launch_gaps,
    most_launched_in,
    stretches,
    waiting_for,
)
from traceanalyzer.analyzers.step_marks import step_marks
from traceanalyzer.analyzers.whereabouts import (
    Places,
    moments,
    places_of,
    python_frames,
)
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import DEVICE_WORK


@dataclass(frozen=True)
class Ground:
    """What is looked at of one rank, without the trace.

    Attributes:
        rank: or None.
        path: the file.
        work: rows of :func:`~.calls.with_launches`.
        calls: rows of :func:`~.calls.launch_calls`.
        waits: rows of :func:`~.synchronising.synchronising_calls`.
        python: of each of them the Python frame that made it.
        places: the slices that tell operators and annotations.
        steps: rows of :func:`~traceanalyzer.analyzers.step_marks.step_marks`.
        without_work: launch calls that started nothing that was recorded.
        after_last: synchronising calls after the last launch.
    """

    rank: int | None
    path: str
    work: pl.DataFrame
    calls: pl.DataFrame
    waits: pl.DataFrame
    python: pl.Series
    places: Places
    steps: pl.DataFrame
    without_work: int
    after_last: int


def extract(trace: Trace, *, step_name: str | None = None) -> Part:
    """One rank's launches: :func:`lay`, then :func:`measure`."""
    return measure(lay(trace, step_name=step_name))


def lay(trace: Trace, *, step_name: str | None = None) -> Ground:
    """The few columns of a trace that count, so that it can be forgotten.

    Args:
        trace: one rank, read with :data:`~.needs.NEEDS`.
        step_name: a regular expression of the slices that are steps.

    Raises:
        MissingData: no device work, or not the calls that launched it.
        OptionError: ``step_name`` is no regular expression.
    """
    with ThreadPoolExecutor(1) as pool:
        placing = pool.submit(places_of, trace)
        marking = pool.submit(step_marks, trace, step_name)
        work = with_launches(trace, device_work(trace))
        places, steps = placing.result(), marking.result()
    if work.is_empty():
        trace.require(*DEVICE_WORK)
    if work["launch"].null_count() == work.height:
        hint = record_hint(trace.meta, "device work")
        raise MissingData(
            f"{trace.meta.path}: no launch call belongs to the recorded device work; {hint}"
        )
    calls, runtime = launch_calls(work), runtime_calls(trace)
    waits, after_last = synchronising.synchronising_calls(runtime, work)
    return Ground(
        rank=trace.meta.rank,
        path=trace.meta.path,
        work=work,
        calls=calls,
        waits=waits,
        python=python_frames(trace, moments(waits.select("pid", "tid", ts="start"))),
        places=places,
        steps=steps,
        without_work=without_work(runtime, calls),
        after_last=after_last,
    )


def measure(ground: Ground) -> Part:
    """What one rank contributes."""
    work, calls = ground.work, ground.calls
    with ThreadPoolExecutor(1) as pool:  # where calls were is half of it, and needs nothing else
        placed = pool.submit(_placed, ground)
        streams, course = _queues(calls, work)
        idle = device_gaps(work)
        gaps = launch_gaps(idle, ground.waits)
        found = stretches(gaps, idle, work)
        waiting = waiting_for(calls, gaps, found)
        costs = synchronising.costs(ground.waits, work)
        launched, waited = placed.result()
        where = most_launched_in(found, calls, launched)
        waits = synchronising.by_place(costs, waited)
        devices, short = _devices(work), _short_kernels(work)
        in_steps = _measured_steps(ground.steps, found, gaps)
    return Part(
        rank=ground.rank,
        path=ground.path,
        calls=calls.select(
            "device", "launch_name", "pieces", "call_ns", "delay_ns", "waited",
            **launched, waiting_ns=waiting,
        ),
        devices=devices,
        streams=streams,
        queue=course,
        stretches=_in_steps(where, ground.steps),
        steps=in_steps,
        short=short,
        synchronising=waits,
        without_work=ground.without_work,
        clock_odd=calls.filter(pl.col("start") < pl.col("launch_start")).height,
        after_last=ground.after_last,
    )  # fmt: skip


def _queues(calls: pl.DataFrame, work: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Each stream's queue, and its course."""
    changes = queue.queue_changes(calls, work)
    return queue.streams(changes, calls), queue.drawn(changes)


def _placed(ground: Ground) -> tuple[dict[str, pl.Series], dict[str, pl.Series]]:
    """Annotation and operator of each launch call; the same and more of each synchronising call."""
    places, calls, waits = ground.places, ground.calls, ground.waits
    waited_at = waits.select("pid", "tid", ts="start")
    both = moments(pl.concat([calls.select("pid", "tid", ts="launch_start"), waited_at]))
    named = {"annotation": places.annotation(both), "operator": places.operator(both)}
    launched = {column: names.head(calls.height) for column, names in named.items()}
    waited = {column: names.tail(waits.height) for column, names in named.items()}
    outer = places.outer_operator(moments(waited_at))
    return launched, {**waited, "outer_operator": outer, "python": ground.python}


def _devices(work: pl.DataFrame) -> pl.DataFrame:
    """Each device's span and how much of it was busy, and what there was to launch."""
    idle = (pl.col("start") - pl.col("device_free")).clip(0).sum()
    length = pl.col("end") - pl.col("start")
    kernel = pl.col("kind") == "kernel"
    short = kernel & (length < SHORT_KERNEL_NS)
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
    short = length < SHORT_KERNEL_NS
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
