"""Idle gaps of a device and the work that ends them; all lost time as intervals by cause."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.names import matching
from traceanalyzer.analyzers.gpu_idle import Options, activities, causes
from traceanalyzer.analyzers.gpu_idle.causes import CAUSES, COPIES, EXPOSED, LOSS
from traceanalyzer.analyzers.gpu_idle.host import Excerpt, belongs
from traceanalyzer.frames import intervals, linking
from traceanalyzer.frames.intervals import Ints, Spans
from traceanalyzer.trace import of_kinds
from traceanalyzer.units import format_ns
from traceanalyzer.vocabulary import ANNOTATION_KINDS, LAUNCH_KINDS, steps_pattern


def with_launches(excerpt: Excerpt, gaps: pl.DataFrame) -> pl.DataFrame:
    """Add ``launched``: when the first launch call of the work that ends the gap returned.

    Null if that work has no launch call.
    """
    returned = np.full(excerpt.work.height, _NEVER)
    calls = excerpt.launched[["work", "end"]].drop_nulls()
    returned[calls["work"].to_numpy()] = calls["end"].to_numpy()
    unit, start = (excerpt.work[name].to_numpy() for name in ("unit", "start"))
    unit_of_gap, end = (gaps[name].to_numpy() for name in ("unit", "end"))
    launched = np.full(gaps.height, _NEVER)
    for number in excerpt.units["unit"]:
        of_unit, of_gap = unit == number, unit_of_gap == number
        launched[of_gap] = _first_returned(start[of_unit], returned[of_unit], end[of_gap])
    return gaps.with_columns(intervals.nullable("launched", launched, launched < _NEVER))


def _first_returned(start: Ints, returned: Ints, end: Ints) -> Ints:
    """Return when the first call of the work that starts at each end returned.

    Args:
        start: starts of work, in order.
        returned: when the call of each of them returned, or :data:`_NEVER`.
        end: ends of gaps.
    """
    if not start.size:
        return np.full(end.size, _NEVER)
    first = np.flatnonzero(np.append(True, start[1:] != start[:-1]))
    if first.size < start.size:  # several kernels or copies may start at once
        start, returned = start[first], np.minimum.reduceat(returned, first)
    place = np.minimum(np.searchsorted(start, end), start.size - 1)
    return np.where(start[place] == end, returned[place], _NEVER)


#: The time of a call that was not recorded.
_NEVER = np.iinfo(np.int64).max


def few_late(gaps: pl.DataFrame, by_cause: pl.DataFrame, counted: pl.DataFrame) -> pl.DataFrame:
    """Return the few gaps with nearly all launch overhead in steps; none if many have it.

    They are one of each device, however many launches are not late, or three of many, which are in
    at most half of the steps.

    Args:
        gaps: rows of :attr:`GpuIdle.gaps`, of late launches.
        by_cause: rows of :attr:`GpuIdle.causes`.
        counted: rows of :attr:`GpuIdle.counted`.
    """
    keys, whole = ["rank", "path", "device"], pl.col(f"{causes.LAUNCH}_ns")
    if "step" in counted.columns:
        gaps = gaps.join(counted, on=[*keys, "step"], how="semi", nulls_equal=True)
    times = counted.group_by(keys).agg(whole.sum(), steps=pl.len())
    late = by_cause.filter(pl.col("cause").cast(pl.String) == causes.LAUNCH)
    late = late.group_by(keys).agg(late=pl.col("gaps").sum())
    rows = gaps.sort("cause_ns", descending=True, maintain_order=True)
    for more in (times, late):
        rows = rows.join(more, on=keys, how="left", nulls_equal=True, maintain_order="left")
    cost, least = pl.col("cause_ns"), causes.SETUP_FRAC * whole
    few = rows.filter((cost.cum_sum() - cost).over(keys) < least)
    n, n_steps = pl.len().over(keys), pl.col("step").n_unique().over(keys)
    are_few = (n <= causes.FEW_LAUNCHES) & (pl.col("late") > causes.MANY_LAUNCHES)
    are_few &= (n_steps == 1) | (2 * n_steps <= pl.col("steps"))
    have_all = (cost.sum().over(keys) >= least) & ((n == 1) | are_few)
    return few.select(gaps.columns) if few.select(have_all.all()).item() else gaps.clear()


def advice_on_few(late: pl.DataFrame) -> str:
    """Return advice on the rows of :func:`few_late`; empty if there are none."""
    first, n = late.filter("first_run"), late.height
    if 2 * first["cause_ns"].sum() > late["cause_ns"].sum():
        return causes.LATE_FIRST.format(kernel=first["after"][0])
    text = f"{n} late launch{'es take' if n > 1 else ' takes'}"
    return causes.LATE_AGAIN.format(late=text) * (n > 0)


#: An operator is slow if it takes so long before its launch, in so many calls, and in all.
_SLOW_NS, _SLOW_CALLS, _ALL_SLOW_NS = 300_000, 3, 3_000_000


def slow_operator(gaps: pl.DataFrame) -> tuple[str, str]:
    """Return the operator in most gaps for launches that takes long before each, and advice.

    Both are empty if there is none.
    """
    name, _, n = activities.main_place(gaps, "innermost")
    ns = round(gaps.filter(innermost=name)["cause_ns"].median() or 0)  # type: ignore[arg-type]
    least_ns = max(_SLOW_NS, _ALL_SLOW_NS / max(n, 1))
    if n < _SLOW_CALLS or ns < least_ns or not re.match(causes.COMPUTES, name):
        return "", ""
    return name, (
        f"{name} takes {format_ns(ns)} on the host before each launch: it probably prepares "
        "something again (a compiled graph, a plan, a workspace). Keep its shapes equal from call "
        "to call (padding, a cache of fixed length), or use another implementation."
    )


def queued(gaps: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return when the work that ends a gap was queued: from the end of its launch call.

    Args:
        gaps: rows of :func:`with_launches`.

    Returns:
        unit, start, end, at most one row per gap: of work that waits (it was launched before the
        gap began, or takes longer than :data:`~.causes.LAUNCH_LATENCY_NS` to start), and of others.
    """
    delayed = pl.col("end") - pl.col("launched") > causes.LAUNCH_LATENCY_NS
    rows = gaps.select(
        "unit", "end", "launched", start=pl.max_horizontal("start", "launched"),
        waits=delayed | (pl.col("launched") <= pl.col("start")),
    )  # fmt: skip
    begun = (pl.col("start") < pl.col("end")) & pl.col("launched").is_not_null()
    waits, prompt = (rows.filter(begun & which) for which in (pl.col("waits"), ~pl.col("waits")))
    return waits[:, _INTERVAL], prompt[:, _INTERVAL]


def drained(
    excerpt: Excerpt, gaps: pl.DataFrame, busy: pl.DataFrame, synchronising: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the gaps that a synchronisation before them leads to, and which follow it at once.

    A synchronising call or blocking copy at whose end a gap begins has emptied the launch queue.
    Without the call the host would have used its wait to get ahead, by at most the longest wait so
    far and a step (what it prepares next needs results): gaps are due to waits while the host needs
    no more time for the next launch in them than it would be ahead. A long gap right after a wait
    is also caused by the host's activity, and so is a gap that is half covered by a range, or
    functions of :data:`_ON_CPU`, that begin in it.

    Args:
        excerpt: one rank.
        gaps: unit, start, end, launched; by unit and start; see :func:`with_launches`.
        busy: unit, start, end: when each unit's work runs.
        synchronising: unit, start, end of synchronising calls and blocking copies.

    Returns:
        unit, start, end: all gaps that are due to a wait, and those that only a wait causes.
    """
    waits = intervals.union(synchronising, ["unit"])
    columns = ["unit", "start", "end"]
    waits = intervals.overlap_with(waits, busy, ["unit"]).filter(pl.col("overlap") > 0)
    ended = waits.select("unit", "overlap", ended="end").sort("ended")
    latest = pl.col("start") + causes.LAUNCH_LATENCY_NS
    rows = gaps.with_columns(latest=latest).join_asof(
        ended, left_on="latest", right_on="ended", by="unit", coalesce=False, check_sortedness=False
    )
    length, since = pl.col("end") - pl.col("start"), pl.max_horizontal("start", "ended")
    follows = pl.col("ended") >= pl.col("start") - causes.LAUNCH_LATENCY_NS
    used = pl.coalesce((pl.col("launched") - since).clip(0), length)
    begun = excerpt.steps["start"].sort()
    step = begun.search_sorted(rows["start"], "right")
    of_wait = begun.search_sorted(rows["ended"].fill_null(0))
    rows = rows.with_columns(follows=follows, used=used, step=step, of_wait=of_wait)
    due = rows[[*columns, "follows"]].filter(_within_waits(rows))
    del rows  # of millions of gaps
    soon = due.filter("follows", length <= _LONG_NS)[columns]
    marked = excerpt.slices.filter(pl.col("kind").is_in(ANNOTATION_KINDS))
    computing = excerpt.named(("python_function",), [_ON_CPU])
    ranges = excerpt.of_units(pl.concat([marked, computing]))
    return due[columns], soon.filter(~_mostly_covered(soon, ranges))


#: Functions of libraries that compute on the CPU: they use what the host waited for.
_ON_CPU = r"(?:^|[/\\])(?:scipy|numpy|pandas|sklearn|skimage|shapely|networkx|cv2|PIL)[/\\]"


def _within_waits(rows: pl.DataFrame) -> pl.Series:
    """Mark gaps in which the host uses no more time than it would be ahead without waits.

    Args:
        rows: unit, ended, overlap, of_wait (step) of the last wait before a gap; used, follows,
            step; by unit, in order.
    """
    columns = rows["unit"], rows["used"], rows["step"], rows["of_wait"]
    unit, used, step, of_wait = (column.to_numpy() for column in columns)
    ended = rows["ended"].fill_null(_NEVER).to_numpy()
    is_first = np.ones(rows.height, np.bool_)
    is_first[1:] = (unit[1:] != unit[:-1]) | (ended[1:] != ended[:-1])
    first = np.flatnonzero(is_first)
    follows = np.logical_or.reduceat(rows["follows"].fill_null(value=False).to_numpy(), first)
    waits = rows["overlap"].fill_null(0).to_numpy()[first] * follows
    ahead, spare, longest, last = [], dict[int, int](), 0, None
    middle = step[(first + np.append(first[1:], unit.size)) // 2]  # of the gaps after a wait
    runs = unit[first], middle, of_wait[first], waits, np.add.reduceat(used, first)
    for of_unit, now, at, wait, spent in zip(*(one.tolist() for one in runs), strict=True):
        if of_unit != last:
            last, spare, longest = of_unit, {}, 0
        longest = max(longest, wait)
        spare = {before: ns for before, ns in spare.items() if before + 1 >= now}
        spare[at] = spare.get(at, 0) + min(wait, longest - sum(spare.values()))
        ahead.append(sum(spare.values()))
        for before in sorted(spare):
            paid = min(spare[before], spent)
            spare[before], spent = spare[before] - paid, spent - paid
    total = np.cumsum(used)
    most = np.array(ahead, np.int64) + total[first] - used[first]
    return pl.Series((total <= most[np.cumsum(is_first) - 1]) & (step <= of_wait + 1))


#: In a longer gap after a wait the host does something else than preparing the next launch.
_LONG_NS = 1_000_000


def _mostly_covered(gaps: pl.DataFrame, ranges: pl.DataFrame) -> pl.Series:
    """Return which gaps are covered by half or more by ranges that begin in them."""
    begun = linking.label_by_interval(ranges.rename({"start": "ts"}), gaps, ["unit"])
    begun = begun.drop_nulls("interval")
    number = begun["interval"]
    inside = begun.select("unit", start="ts", end=pl.min_horizontal("end", gaps["end"][number]))
    number = number.unique()
    some = intervals.overlap_with(gaps[number], inside, ["unit"])
    most = some.select(2 * pl.col("overlap") >= pl.col("end") - pl.col("start")).to_series()
    covered = np.zeros(gaps.height, np.bool_)
    covered[number.filter(most).to_numpy()] = True
    return pl.Series(covered)


#: Number of rows of a rank from which :func:`merged` merges short ones.
MANY = 100_000
#: How the length of short ones grows while there are still more rows.
_LONGER = 4


_INTERVAL = ["unit", "start", "end"]
#: The longest intervals for which the call that waits is looked up.
_MOST_WAITS = 2_000


def waits(
    excerpt: Excerpt, calls: pl.DataFrame, idle: pl.DataFrame, options: Options
) -> pl.DataFrame:
    """Return the calls that wait for the device in or before idle time, and where they are matches.

    Args:
        excerpt: one rank.
        calls: unit, start, end: when the host waits for the device.
        idle: unit, start, end: idle time by synchronisation.
        options: options of the analysis.

    Returns:
        call, operator (the outermost one of ATen around it, or else the innermost one), range (the
        innermost annotation that is not a step), frame (the innermost frame of own code), ns: idle
        time after the start of the call.
    """
    length = pl.col("end") - pl.col("start")
    long = idle.filter(length >= length.top_k(_MOST_WAITS).min())
    late = long.select("unit", ts="end", ns=length).sort("ts")
    begun = calls.select("unit", "start", ts="start").sort("ts")
    matches = late.join_asof(begun, on="ts", by="unit", check_sortedness=False)
    begins = pl.col("start").is_in(matches["start"].implode())
    rows = excerpt.slices.filter(of_kinds((*LAUNCH_KINDS, "cpu_op")), begins)
    once = rows.join(excerpt.threads, on="thread").unique(["unit", "start"], keep="first")
    matches = matches.join(once.drop("kind", "end"), on=["unit", "start"], maintain_order="left")
    points = matches.with_columns(ts="start", end=pl.col("start") + 1)
    around = excerpt.slices.filter(pl.Series(intervals.meets(excerpt.slices, points)))
    is_aten = pl.col("name").cast(pl.String).str.starts_with("aten::")  # ranges in nsys
    is_operator = is_aten | (pl.col("kind") == "cpu_op")
    is_step = pl.col("name").is_in(matching(excerpt.names, [steps_pattern()]))
    # operators inside those of ATen are less known
    aten_end = pl.when(is_aten).then("end").otherwise(0).cum_max().shift(1, fill_value=0)
    operators = around.filter(is_operator).sort("start", -pl.col("end"))
    python = around.filter(pl.col("kind") == "python_function")
    slices = {
        "operator": operators.filter(pl.col("start") >= aten_end.over("thread")),
        "range": around.filter(of_kinds(ANNOTATION_KINDS), ~is_operator, ~is_step),
        "frame": python.filter(belongs(python["name"], options.library_names)),
    }
    names = {
        column: of["name"].cast(pl.String)[linking.enclosing(points, of, ["thread"])["slice"]]
        for column, of in slices.items()
    }
    places = matches.select(pl.col("name").cast(pl.String).alias("call"), "ns", **names)
    return places.group_by(pl.exclude("ns"), maintain_order=True).agg(pl.col("ns").sum())


def mostly(rows: pl.DataFrame) -> dict[str, str]:
    """Return what half of the time of :func:`waits` has: call, operator, range and frame.

    Texts are empty without one; the call, too, if it is made in different operators.
    """
    rows, most = rows.with_columns(pl.col("operator").fill_null(_OUTSIDE)), dict[str, str]()
    for name in ("call", "operator", "range", "frame"):
        sums = rows.group_by(name).agg(ns=2 * pl.col("ns").sum()).sort("ns", name).tail(1)
        most[name] = "".join(sums.filter(pl.col("ns") >= rows["ns"].sum())[name].drop_nulls())
    most["call"] *= bool(most["operator"])
    return most | {"operator": most["operator"].replace(_OUTSIDE, "")}


#: In place of the operator around a call, if there is none.
_OUTSIDE = "outside"


def lost(pieces: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return all lost intervals with their cause.

    Args:
        pieces: idle time by each of :data:`CAUSES`, exposed communication, exposed copies of
            checkpoints and files, small ones that block the host, those while another Python thread
            delays the next kernel, and other exposed copies.

    Returns:
        unit, start, end, cause; sorted by unit and start.
    """
    *idle, exposed, saved, little, slowed, copies = pieces
    frames = dict(zip((*CAUSES, EXPOSED, COPIES), (*idle, exposed, copies), strict=True))
    of_copies = {
        causes.CHECKPOINT_IO: saved, causes.SMALL_COPIES: little, causes.HOST_CODE: slowed,
    }  # fmt: skip
    for cause, alone in of_copies.items():
        frames[cause] = pl.concat([frame[:, _INTERVAL] for frame in (frames[cause], alone)])
    rows = labelled(list(frames.values()), pl.Series(list(frames), dtype=LOSS))
    order = intervals.stable_order(rows["unit"].to_numpy(), rows["start"].to_numpy())
    return rows[order]


def labelled(frames: Sequence[pl.DataFrame], causes: pl.Series) -> pl.DataFrame:
    """Return the intervals of frames, one per cause, as unit, start, end, cause."""
    number = np.repeat(np.arange(len(frames)), [frame.height for frame in frames])
    rows = pl.concat([frame[:, _INTERVAL] for frame in frames])
    return rows.hstack([causes[number].alias("cause")])


def merged(rows: pl.DataFrame, marks: pl.DataFrame, limit_ns: int) -> pl.DataFrame:
    """Merge short intervals if there are more than :data:`MANY`, and longer ones while there are.

    The short intervals of one cause from one long interval or mark to the next become one row with
    their summed length; the rows of several causes follow each other from the first start. So the
    time of each cause from one mark to another is unchanged, and rows stay disjoint. Exposed
    communication and intervals around a mark stay as they are.

    Args:
        rows: unit, start, end, cause, disjoint and sorted; see :func:`lost`.
        marks: unit, ts: times between which the time of each cause must be right.
        limit_ns: intervals shorter than this are short at first.

    Returns:
        unit, start, end, cause; sorted.
    """
    length = pl.col("end") - pl.col("start")
    longest = rows.select(length.max().fill_null(0)).item()
    if rows.height > MANY:  # at most half as many rows stay as they are
        kept = length.top_k(MANY // 2).min().fill_null(0)
        limit_ns = max(limit_ns, rows.select(kept).item())
    while rows.height > MANY and limit_ns <= _LONGER * longest:
        rows = _without_short(rows, marks, limit_ns)
        limit_ns *= _LONGER
    return rows


def _without_short(rows: pl.DataFrame, marks: pl.DataFrame, limit_ns: int) -> pl.DataFrame:
    """Merge the intervals that are shorter than a limit."""
    unit, start, end = (rows[name].to_numpy() for name in ("unit", "start", "end"))
    cause = rows["cause"].to_physical().to_numpy()
    length = end - start
    cell, last = _cells(marks, unit, start, end)
    exposed = pl.Series([EXPOSED], dtype=LOSS).to_physical()[0]
    short = (length < limit_ns) & (cause != exposed) & (cell == last)
    begins = np.ones(start.size, np.bool_)
    begins[1:] = ~(short[1:] & short[:-1]) | (unit[1:] != unit[:-1]) | (cell[1:] != cell[:-1])
    run = np.cumsum(begins)
    order = np.argsort(run * len(LOSS.categories) + cause, kind="stable")
    run, cause = run[order], cause[order]
    first = np.flatnonzero(np.diff(run, prepend=0) | np.diff(cause.astype(np.int8), prepend=-1))
    sums = np.add.reduceat(length[order], first)
    # each row begins where the previous one of its run ends
    run, ends = run[first], np.cumsum(sums)
    of_run = np.flatnonzero(np.diff(run, prepend=0))
    base = start[begins] - (ends - sums)[of_run]
    since = ends - sums + np.repeat(base, np.diff(of_run, append=run.size))
    return rows[["unit", "cause"]][order[first]].select(
        "unit", pl.Series("start", since), pl.Series("end", since + sums), "cause"
    )


def _cells(marks: pl.DataFrame, unit: Ints, start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Return the number of marks until the start of each interval, and before its end."""
    known, at = marks["unit"].to_numpy(), marks["ts"].to_numpy()
    order = intervals.stable_order(known, at)
    spans = Spans(known[order], at[order], at[order])
    count = intervals.counting(spans, unit)
    return count(unit, start), count(unit, np.maximum(end - 1, start))


@dataclass(frozen=True)
class Coverage:
    """What was recorded of a rank, or of all ranks.

    Attributes:
        on_host: no device work was recorded; the units are the main threads of the ranks, busy in
            operators.
        work_lost: a file is truncated, or work was launched but none recorded.
        host_known: host slices were recorded.
        launches_known: launch calls were joined to device work, if there is any.
        stacks_known: Python functions or sampled stacks of the main threads were recorded.
        steps_by_kernels: steps are not marked but detected by repeating kernels.
        unread_samples: a file has unread sampled stacks, and a gap lacks a cause.
        unread_targets: a gap is a device-side wait, and the targets of stream waits were not read.
        graph_gaps: gaps in graph replays are probably made by the recording.
        hints: how to record missing data with the profiler that wrote the (first) file.
    """

    on_host: bool
    work_lost: bool
    host_known: bool
    launches_known: bool
    stacks_known: bool
    steps_by_kernels: bool
    unread_samples: bool
    unread_targets: bool
    graph_gaps: bool
    hints: Mapping[str, str]

    @classmethod
    def joined(cls, several: Sequence[Coverage]) -> Coverage:
        """Return the coverage of all ranks."""
        names = {*vars(several[0])} - {"hints"}
        each = {name: [getattr(one, name) for one in several] for name in names}
        known: Any = {name: all(of) if name in _OF_ALL else any(of) for name, of in each.items()}
        return replace(several[0], **known)


#: What is recorded only if all ranks have it.
_OF_ALL = {"on_host", "host_known", "launches_known"}
