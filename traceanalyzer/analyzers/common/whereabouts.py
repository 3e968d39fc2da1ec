"""Where in the program a thread was: its operator, annotation and Python frame at a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.libraries import is_own
from traceanalyzer.analyzers.common.names import named, python_frame
from traceanalyzer.frames import linking
from traceanalyzer.frames.intervals import Ints, narrow, nullable, stable_order
from traceanalyzer.frames.nesting import ROOT, innermost_exact
from traceanalyzer.frames.numbering import group_numbers
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import PROFILER_STEP

THREAD = ["pid", "tid"]

#: Ranges that PyTorch marked as operators until 2021, such as ``Optimizer.step#SGD.step``.
_MARKED = "#"

#: From so many times as many points as slices on, the slices are looked through without them.
_FEWER = 8

#: About so many slices are looked through at once.
_BLOCK = 1 << 16

#: Frames of C functions and of modules as such name no line of the program.
_NO_LINE = r"^<built-in|^nn\.Module:"

#: For points in order of time the slice of each, both of one thread, as a row number.
Find = Callable[[pl.DataFrame, pl.DataFrame], pl.Series]


@dataclass(frozen=True)
class Moments:
    """Moments of threads, by thread.

    Attributes:
        height: how many.
        threads: pid and tid of the threads.
        lanes: of each thread the numbers of its moments in order of time, and their ``ts`` in that
            order.
    """

    height: int
    threads: pl.DataFrame
    lanes: list[tuple[Ints, pl.DataFrame]]


def moments(points: pl.DataFrame) -> Moments:
    """Points with pid, tid and ts, made ready to be looked up."""
    threads, (thread,) = group_numbers(THREAD, points)
    times = points["ts"].to_numpy()
    order = stable_order(thread, times)
    lanes = [(rows, pl.DataFrame({"ts": times[rows]})) for rows in _parted(order, thread)]
    return Moments(points.height, threads, lanes)


@dataclass(frozen=True)
class Places:
    """The slices of a rank's host threads that tell where each was.

    Its functions give a name for each moment, null where the thread was in no such slice.

    Attributes:
        operators: pid, tid, name, start, end; in order of start, the longest first.
        annotations: the same of annotations that mark no step.
    """

    operators: pl.DataFrame
    annotations: pl.DataFrame

    def operator(self, at: Moments) -> pl.Series:
        """The innermost operator."""
        return _named(at, self.operators, _innermost)

    def outer_operator(self, at: Moments) -> pl.Series:
        """The outermost operator."""
        return _named(at, self.operators, _outermost)

    def annotation(self, at: Moments) -> pl.Series:
        """The innermost annotation that marks no step."""
        return _named(at, self.annotations, _innermost)


def places_of(trace: Trace) -> Places:
    """The operators and annotations of a trace."""
    recorded = _slices(trace, "cpu_op")
    marked = recorded.select(named(recorded, [_MARKED])).to_series()
    operators = recorded.filter(~marked) if marked.any() else recorded
    annotations = pl.concat([_slices(trace, "user_annotation", "nvtx"), recorded.filter(marked)])
    steps = named(annotations, [f"^{PROFILER_STEP}"])
    return Places(
        operators, annotations.filter(~steps).sort("start", "end", descending=[False, True])
    )


def python_frames(
    trace: Trace, at: Moments, own: Callable[[str | None, str | None], bool] = is_own
) -> pl.Series:
    """The innermost Python frame of one's own code at each moment, else of any with a line."""
    rows = _slices(trace, "python_function")
    lined = rows.filter(~named(rows, [_NO_LINE]))
    first = _named(at, lined.filter(_own(lined["name"], own)), _innermost)
    return pl.select(pl.coalesce(first, _named(at, lined, _innermost))).to_series()


def _slices(trace: Trace, *kinds: str) -> pl.DataFrame:
    return (
        trace.events.lazy()
        .filter(pl.col("kind").is_in(kinds), pl.col("dur") > 0)
        .select(*THREAD, "name", start="ts", end=pl.col("ts") + pl.col("dur"))
        .collect()
    )


def _named(at: Moments, slices: pl.DataFrame, find: Find) -> pl.Series:
    """The names of the slices that ``find`` tells.

    It is asked for one thread after the other, and for stretches of time between which the thread
    was in no slice, so that what it needs meanwhile stays small.

    Args:
        at: when.
        slices: pid, tid, start, end and name, in order of start, the longest first.
        find: tells for points of a thread which slice.
    """
    place, known = np.zeros(at.height, np.uint32), np.zeros(at.height, np.bool_)
    _, (thread, of_slice) = group_numbers(THREAD, at.threads, slices)
    by_thread = _parted(np.argsort(narrow(of_slice), kind="stable"), of_slice)
    for number, (moments_of, times) in zip(thread.tolist(), at.lanes, strict=True):
        if number >= len(by_thread) or not (rows := by_thread[number]).size:
            continue
        there = slices.select("start", "end")[rows]
        for (first, last), (since, until) in _stretches(times, there):
            found = find(times[since:until], there[first:last])
            hit = found.is_not_null().to_numpy()
            asked = moments_of[since:until][hit]
            place[asked] = rows[first + found.drop_nulls().to_numpy().astype(np.int64)]
            known[asked] = True
    return slices["name"].gather(nullable("place", place, known))


def _parted(order: Ints, group: Ints) -> list[Ints]:
    """The rows in an order by group, apart for each group from 0 to the last that has a row."""
    return np.split(order, np.cumsum(np.bincount(group))[:-1]) if group.size else []


def _stretches(
    points: pl.DataFrame, slices: pl.DataFrame
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Bounds of rows of slices, and of the points that may lie in them."""
    free = _free(slices)
    cuts = free[np.searchsorted(free, np.arange(_BLOCK, slices.height, _BLOCK)) % free.size]
    cuts = np.unique(cuts[cuts > 0])
    at = np.searchsorted(points["ts"].to_numpy(), slices["start"].to_numpy()[cuts])
    return zip(
        pairwise([0, *cuts.tolist(), slices.height]),
        pairwise([0, *at.tolist(), points.height]),
        strict=True,
    )


def _innermost(points: pl.DataFrame, slices: pl.DataFrame) -> pl.Series:
    if _FEWER * slices.height > points.height:
        spans = (slices["start"].to_numpy(), slices["end"].to_numpy())
        exact = innermost_exact(*spans, points["ts"].to_numpy())
        if exact is None:
            return linking.enclosing(points, slices)["slice"]
        return nullable("slice", exact, exact != ROOT).cast(pl.UInt32)
    # which slice is the innermost changes only where one begins or ends
    edges = np.unique(slices.to_numpy())
    inner = linking.enclosing(pl.DataFrame({"ts": edges}), slices)["slice"]
    before = np.searchsorted(edges, points["ts"].to_numpy(), side="right")
    return pl.concat([inner.clear(1), inner]).gather(before)


def _outermost(points: pl.DataFrame, slices: pl.DataFrame) -> pl.Series:
    top = _free(slices)
    found = linking.label_by_interval(points, slices[top])["interval"]
    return pl.Series(top, dtype=pl.UInt32).gather(found)


def _free(slices: pl.DataFrame) -> Ints:
    """The slices of a thread that lie in no other: all before them have ended when they start."""
    ended = slices["end"].cum_max().shift(1)
    return np.flatnonzero((slices["start"] >= ended).fill_null(value=True).to_numpy())


def _own(names: pl.Series, is_own: Callable[[str | None, str | None], bool]) -> pl.Expr:
    """Whether a frame's name is that of one's own code."""
    distinct = names.unique().drop_nulls().to_frame("name")
    told = distinct.select(told=python_frame(pl.col("name").cast(pl.String))).unnest("told")
    own = [is_own(name, file) for file, name in told.select("file", "name").iter_rows()]
    return pl.col("name").is_in(distinct["name"].filter(pl.Series(own, dtype=pl.Boolean)).implode())
