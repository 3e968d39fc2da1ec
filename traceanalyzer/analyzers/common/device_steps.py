"""Steps on the device: the work that each step launched, and the span of that work.

A mark on the host ends when the host has launched its work, which the device may run much later. A
step on the device starts where the work launched before it ends, and ends with its own work::

    start = max(start on the host, end of all work launched before the step)
    end = max(end on the host, end of all work launched up to the end of the step)

So the idle gap before a kernel belongs to the step that launched the kernel, steps that wait for
their own work are as long as on the host, and spans never overlap. Work launched between two marks
belongs to no step, but that after a step of an inference engine to it (sampling). Steps that decode
begin where the step before them ends. Work that a step leaves on another stream ends at the latest
where the next step starts on the main stream, the one with most kernel time.
"""

import operator
from collections.abc import Sequence
from functools import partial
from itertools import dropwhile
from statistics import median
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common import step_marks
from traceanalyzer.analyzers.common.device_work import DEVICE, device_work, launched_work
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.analyzers.common.names import named
from traceanalyzer.analyzers.common.soundness import KERNEL_LAUNCHES
from traceanalyzer.frames import linking, nesting
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.frames.numbering import group_numbers, numbered
from traceanalyzer.trace import Trace, is_truncated, of_kinds
from traceanalyzer.vocabulary import CUDA_CALLS

#: Least share of the device work with a known launch; otherwise steps are measured on the host.
_LEAST_KNOWN = 0.5

#: Work that starts later than this after its launch waited for other work on the device.
_QUEUED_NS = 100_000

#: A first step that takes longer than this many times the median of the steps after it, and longer
#: than three quarters of them, is warm-up ...
WARM_UP_FACTOR = 1.5

#: ... if at least this many steps follow; and most warm-up steps in a row.
LEAST_AFTER, MAX_WARM_UP = 2, 10

#: It is none if several later steps, not right after it, take at least this share of its time: what
#: it does repeats (validation, images for a logger).
_REPEATED = 0.9

#: Before and after all times.
_NEVER, _EVER = -(1 << 62), 1 << 62


def device_steps(trace: Trace, step_name: str | None = None) -> pl.DataFrame:
    """Return when each step runs on the device, and the host range that launched it.

    Steps without device work, or with mostly unknown launches, run where the host marks them; steps
    detected from kernels are on the device already.

    Args:
        trace: the trace of one rank; without calls of
            :data:`~traceanalyzer.vocabulary.LAUNCH_KINDS`, ranges that the profiler recorded on the
            device (``gpu_user_annotation``) replace them.
        step_name: see :func:`~.step_marks.steps`.

    Returns:
        The rows of :func:`~.step_marks.steps` with ``host_start`` and ``host_end``; ``start`` and
        ``end`` are on the device, the same for all devices of the rank. Neither overlap.

    Raises:
        OptionError: ``step_name`` is not a regular expression.
    """
    key = ("device_steps", step_name)
    return trace.once(key, lambda: on_device(trace, step_marks.steps(trace, step_name)))


def on_device(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return :func:`device_steps` for the rows of :func:`~.step_marks.steps`."""
    steps = steps.sort("start").with_columns(host_start="start", host_end="end")
    steps = _with_kernels(trace, steps) if steps.height else steps
    if steps.is_empty():
        return steps
    if step_marks.by_kernels(steps):
        return _launched_from(trace, steps)
    steps = _with_sampling(trace, steps)
    reached = _reached(trace, steps)
    if reached is not None:
        steps = steps.with_columns(
            start=pl.max_horizontal("host_start", pl.Series(reached[:-1:2])),
            end=pl.max_horizontal("host_end", pl.Series(reached[1::2])),
        )
    return step_marks.with_time_before(steps)


def _with_kernels(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return steps without the last ones, if more than a tenth of their kernels is missing.

    The program failed, or the profiler stopped, before the device ran what they launched.
    """
    events = trace.events[["kind", "name", "ts"]]
    calls = launch_rows(trace, device_work(trace))
    calls = calls[calls != nesting.ROOT]
    if not calls.size or is_truncated(trace):
        return steps
    last = events["ts"].to_numpy()[calls].max()
    is_launch = of_kinds(CUDA_CALLS) & named(trace.names, [KERNEL_LAUNCHES])
    launched = events.filter(is_launch)[["ts"]]
    step = linking.label_by_interval(launched, steps)["interval"]
    whole, missing = (
        np.bincount(one.drop_nulls().to_numpy(), minlength=steps.height)
        for one in (step, step.filter(launched["ts"] > last))
    )
    complete = _MISSING * missing <= whole
    return steps.filter(pl.Series(complete)) if complete.any() else steps


#: Up to a part of so many of its kernels may be missing in a step.
_MISSING = 10


def _with_sampling(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps; those of an inference engine end with the last launch before the next."""
    of_engine = step_marks.with_phases(steps[["step"]])["phase"].is_not_null()
    if not of_engine.any():
        return steps
    rows = launch_rows(trace, device_work(trace))
    calls = trace.events[["pid", "ts", "dur"]][rows[rows != nesting.ROOT]]
    calls = calls.filter(pl.col("pid").eq_missing(steps["pid"][0])).sort("ts")
    if calls.is_empty():
        return steps
    start, end = (steps[name].to_numpy() for name in ("host_start", "host_end"))
    usual = int(np.median(start[1:] - end[:-1])) if steps.height > 1 else 0
    until = np.append(start[1:], end[-1] + usual)
    place = np.maximum(np.searchsorted(calls["ts"].to_numpy(), until) - 1, 0)
    last = calls[place].select(end=pl.col("ts") + pl.col("dur").fill_null(0))["end"]
    ends = pl.Series(np.clip(last.to_numpy(), end, np.maximum(until, end)))
    return steps.with_columns(host_end=pl.when(of_engine).then(ends).otherwise("host_end"))


def _launched_from(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return steps detected from kernels with the host range from their first launch on.

    It ends at the first launch of the next step. Unknown launches leave the range on the device.
    """
    work = device_work(trace)
    rows = launch_rows(trace, work)
    calls = trace.events["ts"].to_numpy()
    first = np.searchsorted(work["start"].to_numpy(), steps["start"].to_numpy())
    if first[-1] == rows.size or (rows[first] == nesting.ROOT).any():
        return steps
    launched = np.maximum.accumulate(calls[rows[first]])
    last = steps["end"].to_numpy()[-1:] - (steps["start"].to_numpy() - launched)[-1:]
    return steps.with_columns(
        host_start=pl.Series(launched), host_end=pl.Series(np.append(launched[1:], last))
    )


def on_host(steps: pl.DataFrame) -> pl.DataFrame:
    """Return :func:`device_steps` with start and end on the host."""
    return steps.with_columns(start="host_start", end="host_end")


def launching_step(steps: pl.DataFrame, launched: pl.Series, started: pl.Series) -> pl.Series:
    """Return the row of :func:`device_steps` that launched each piece of device work.

    Args:
        steps: rows of :func:`device_steps`.
        launched: start of the launch call; null if unknown.
        started: start on the device, by which work without a known launch counts, and all work if
            steps are detected from kernels.
    """
    by_call = None
    if not step_marks.by_kernels(steps):
        by_call = linking.label_by_interval(launched.to_frame("ts"), on_host(steps))["interval"]
        if not launched.null_count():
            return by_call.alias("step")
    in_span = linking.label_by_interval(started.to_frame("ts"), steps)["interval"].alias("step")
    return in_span if by_call is None else in_span.zip_with(launched.is_null(), by_call)


def unrecorded_until(trace: Trace, begin: int | None = None) -> int | None:
    """Return the start of the first device work if the device ran unrecorded work before it.

    The first work starts long after its launch call only if the device still runs work of before
    the recording. That time is unknown, neither busy nor idle.

    Args:
        trace: of one rank.
        begin: start of the first step on the host. If the host then runs longer before the launch
            than the launch waits, the step is not measured from the first work on only: None.
    """
    known = trace.once("unrecorded_until", lambda: _first_queued(trace))
    if known is None or (begin is not None and known[1] - begin > known[0] - known[1]):
        return None
    return known[0]


def _first_queued(trace: Trace) -> tuple[int, int] | None:
    """Return start and launch of the first device work if it waited for other work."""
    first = device_work(trace).head(1)
    row = launch_rows(trace, first)
    if not row.size or row[0] == nesting.ROOT:
        return None
    start = first["start"][0]
    called, took = trace.events[["ts", "dur"]].row(int(row[0]))
    return (start, called) if start - called - max(took or 0, 0) > _QUEUED_NS else None


#: Slow steps take longer than fast ones from this ratio between the shortest and the longest of
#: them on.
_GROUP_FACTOR = 1.5
#: Of at least so many steps half are slow if the two in the middle differ by more than this factor,
#: and the fast ones by less.
_LEAST_HALVES, _HALF_FACTOR = 4, 1.1


def fast_ns(length: pl.Expr) -> pl.Expr:
    """Return the median of the fast steps if slow ones are more than half; otherwise null.

    The fast steps, 2 and a quarter of all or more, are those before the greatest ratio between two
    lengths, if that is large.
    """
    ordered = length.sort()
    ratios = ordered / ordered.shift(1).clip(1)
    n, slow = ratios.arg_max(), ratios.max()
    are_two = (slow >= _GROUP_FACTOR) & (4 * n >= length.len()) & (n > 1) & (2 * n < length.len())
    return pl.when(are_two).then(length.filter(length < ordered.get(n)).median())


def usual_ns(length: pl.Expr) -> pl.Expr:
    """Return the median; that of the fast steps if slow ones are half of all or more."""
    ordered, n = length.sort(), length.len()
    first, last = ordered.first(), ordered.get((n - 1) // 2)
    is_half = (n >= _LEAST_HALVES) & (last < _HALF_FACTOR * first)
    is_half &= ordered.get(n // 2) > _HALF_FACTOR * last
    of_half = pl.when(is_half).then(length.filter(length <= last).median())
    return pl.coalesce(fast_ns(length), of_half, length.median())


def two_levels(times: pl.Series) -> tuple[pl.Series, pl.Series] | None:
    """Return the times before and after the greatest ratio in order, if they are two levels.

    The times of each, 2 or more, differ little, or much less than the two levels.
    """
    ordered = times.sort()
    at = (ordered / ordered.shift(1)).fill_null(1).arg_max() or 0
    fast, slow = ordered[:at], ordered[at:]
    if min(fast.len(), slow.len()) < 2:
        return None
    apart = _OF_GAP * (slow[0] - fast[-1])
    narrow = (one[-1] - one[0] <= max(LEVEL * one[0], apart) for one in (fast, slow))
    return (fast, slow) if all(narrow) else None


#: Times of one level differ by at most this share, or this share of the gap between two levels.
LEVEL, _OF_GAP = 0.1, 0.25


# --- warm-up ---------------------------------------------------------------------------------


def warm_up(durations: Sequence[int]) -> int:
    """Count the first steps that take much longer than those after them."""
    most = max(min(MAX_WARM_UP, len(durations) - LEAST_AFTER), 0)
    for first in range(most):
        length, after = durations[first], sorted(durations[first + 1 :])
        least = WARM_UP_FACTOR * median(after)
        later = dropwhile(partial(operator.lt, least), durations[first + 1 :])
        repeats = sum(one >= _REPEATED * length for one in later) > 1
        if repeats or length <= max(least, after[-(-len(after) * 3 // 4) - 1]):
            return first
    return most


def is_warm_up(steps: pl.DataFrame, by: Sequence[str]) -> pl.Series:
    """Return which steps are warm-up; none of an inference engine, whose steps differ.

    Args:
        steps: ``by``, the columns that identify a recording, step, start and end.
        by: steps with equal values of these columns follow each other.
    """
    number = group_numbers(list(by), steps)[1][0] if by else np.zeros(steps.height, np.int64)
    length = (steps["end"] - steps["start"]).to_numpy()
    of_engine = step_marks.with_phases(steps[["step"]])["phase"].is_not_null()
    leading = np.zeros(steps.height, np.bool_)
    order = np.lexsort((steps["start"].to_numpy(), number))
    for rows in np.split(order, np.flatnonzero(np.diff(number[order])) + 1):
        if not of_engine[rows].any():
            leading[rows[: warm_up(length[rows].tolist())]] = True
    return pl.Series("warm_up", leading)


# --- work of each host range -----------------------------------------------------------------


class _Work(NamedTuple):
    """Device work and the segment of the host that launched it.

    Segment 2k + 1 is step k, the others are before, between and after the steps.
    """

    segment: Ints
    start: Ints
    end: Ints
    is_main: npt.NDArray[np.bool_]


def _reached(trace: Trace, steps: pl.DataFrame) -> Ints | None:
    """Return when the work launched up to the end of each segment ends; None if unknown."""
    edges = steps.select(pl.concat_list("host_start", "host_end").explode()).to_series().to_numpy()
    work = _by_launch(trace, steps, edges)
    if work is None:
        work = _by_annotations(trace, steps)
    if work is None:
        return None
    size = edges.size + 1
    last, main_last = np.full((2, size), _NEVER)
    first = np.full(size, _EVER)
    np.maximum.at(last, work.segment, work.end)
    np.maximum.at(main_last, work.segment[work.is_main], work.end[work.is_main])
    np.minimum.at(first, work.segment[work.is_main], work.start[work.is_main])
    following = np.append(np.minimum.accumulate(first[::-1])[::-1][1:], _EVER)
    ends = np.maximum(main_last, np.minimum(last, following))
    ends[0] = max(ends[0], unrecorded_until(trace, int(edges[0])) or _NEVER)
    return np.maximum.accumulate(ends)


def _by_launch(trace: Trace, steps: pl.DataFrame, edges: Ints) -> _Work | None:
    """Return the device work by the start of its launch call in the process of the steps."""
    work = launched_work(trace)
    rows = launch_rows(trace, work)
    known = rows != nesting.ROOT
    if not known.any():
        return None
    calls = trace.events[["pid", "ts"]][rows[known]]
    segment = np.zeros(rows.size, np.int64)  # work of before the recording
    segment[known] = np.searchsorted(edges, calls["ts"].to_numpy(), side="right")
    start, first = work["start"].to_numpy(), int(np.argmax(known))
    if known[first:].mean() < _LEAST_KNOWN:
        return None
    used = known.copy()
    used[:first] = True
    pid = steps["pid"][0]
    if pid is not None:
        used[known] = (calls["pid"] == pid).fill_null(value=True).to_numpy()
    is_main = _is_main(work)
    return _Work(segment[used], start[used], work["end"].to_numpy()[used], is_main[used])


def _is_main(work: pl.DataFrame) -> npt.NDArray[np.bool_]:
    """Whether device work is a kernel on the stream of its device with most kernel time."""
    is_kernel = (work["kind"] == "kernel").to_numpy()
    if not is_kernel.any():
        return np.ones(work.height, np.bool_)
    lanes, (lane,) = group_numbers([*DEVICE, "stream"], work)
    length = np.where(is_kernel, work["end"].to_numpy() - work["start"].to_numpy(), 0)
    sums = np.zeros(lanes.height, np.int64)
    np.add.at(sums, lane, length)
    sums[np.bincount(lane, is_kernel, lanes.height) == 0] = -1  # only copies
    order = np.argsort(-sums, kind="stable")
    _, device = numbered([lanes[name] for name in DEVICE])
    main = order[np.unique(device[order], return_index=True)[1]]
    is_main: npt.NDArray[np.bool_] = is_kernel & np.isin(lane, main)
    return is_main


def _by_annotations(trace: Trace, steps: pl.DataFrame) -> _Work | None:
    """Return the ranges of the steps that the profiler recorded on the device.

    The n-th range of a name on a stream belongs to the n-th step of that name; None if any step has
    no range. XLA names ranges of steps on the device by their number only.
    """
    is_range = pl.col("kind") == "gpu_user_annotation"
    events = trace.events[["kind", "name", "device", "stream", "ts", "dur"]].filter(is_range)
    ranges = events.with_columns(pl.col("name").cast(pl.String)).filter(pl.col("dur") >= 0)
    nth = pl.int_range(pl.len())
    numbered = ranges.sort("ts").with_columns(nth=nth.over("name", "device", "stream"))
    for name in (step_marks.STEP, step_marks.STEP.str.extract(r" (\d+)$")):
        names = steps.select(name=name, number=pl.int_range(pl.len()))
        joined = numbered.join(names.with_columns(nth=nth.over("name")), on=["name", "nth"])
        if joined["number"].n_unique() == steps.height:
            break
    else:
        return None
    start = joined["ts"].to_numpy()
    segment = 2 * joined["number"].to_numpy() + 1
    return _Work(segment, start, start + joined["dur"].to_numpy(), np.ones(start.size, np.bool_))
