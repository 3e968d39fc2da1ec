"""From the gaps of each rank's devices to the idle time of all ranks, by cause."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.common.columns import with_source
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE
from traceanalyzer.analyzers.common.libraries import by_component, is_own
from traceanalyzer.analyzers.common.names import ADDRESS, is_step, python_frame
from traceanalyzer.analyzers.gpu_idle import causes, host
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSE, CAUSES, PROFILER, SHORT_GAP
from traceanalyzer.analyzers.gpu_idle.host import Excerpt, take
from traceanalyzer.analyzers.gpu_idle.options import Options
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.frames import intervals, linking
from traceanalyzer.vocabulary import ANNOTATION_KINDS, DEVICE_WORK

#: Columns of times: what ran, then idleness by cause. They add up to end - start.
TIMES = tuple(f"{sort}_ns" for sort in (BUSY, *CAUSES))

#: Those, and how long the loader took, how long copies of batches took, how much of the loader was
#: hidden behind a busy device, and communication without compute.
MEASURES = (*TIMES, "loader_ns", "copy_ns", "hidden_loader_ns", "exposed_communication_ns")
_UNIT = ["unit"]

#: Gaps that are looked into.
LONGEST = 200


def needs(_options: Options) -> Needs:
    """Device work, and all that shows what the host was at."""
    kinds = {*DEVICE_WORK, *host.HOST, host.OVERHEAD}
    return Needs(kinds, unused=("external_id", "stream"))


@dataclass(frozen=True)
class Part:
    """One rank's devices, or its training thread where no device work was recorded.

    Attributes:
        rank: global rank, or None where the file does not tell.
        path: the file.
        on_host: there was no device work: the unit is the training thread, busy in operators.
        work_lost: the file is cut off; or there is no device work, yet some was launched.
        host_known: host slices were recorded.
        launches_known: launch calls were joined to device work.
        units: unit (number), device, pid, start, end and :data:`MEASURES`.
        causes: unit, cause, gaps (stretches of idleness in which it occurs), idle_ns, longest_ns.
        steps: unit, step, start, end and :data:`MEASURES`.
        gaps: the longest: unit, start, end, step, cause, cause_ns, and what is known of each.
        gap_count: idle stretches that are not short.
        hints: how the profiler that wrote the file records what it lacks.
    """

    rank: int | None
    path: str
    on_host: bool
    work_lost: bool
    host_known: bool
    launches_known: bool
    units: pl.DataFrame
    causes: pl.DataFrame
    steps: pl.DataFrame
    gaps: pl.DataFrame
    gap_count: int
    hints: Mapping[str, str]


def measure(excerpt: Excerpt, options: Options) -> Part:
    """One rank's idleness by cause.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    loader, copies = host.loading(excerpt, options.dataloader), host.copying(excerpt)
    busy = _busy(excerpt, loader)
    units = _spans(excerpt)
    profiler = intervals.subtract(excerpt.overhead, busy, _UNIT)
    idle = intervals.gaps(pl.concat([busy, profiler]), _UNIT, units)
    short = pl.col("end") - pl.col("start") < options.min_gap_ns
    gaps = idle.filter(~short)
    # most slices run while the device is busy: only the others can tell why it is not
    near = replace(excerpt, slices=excerpt.slices.filter(intervals.meets(excerpt.slices, gaps)))
    why = [loader, copies, *_other_causes(near, gaps), host.extents(excerpt)]
    pieces = [busy, profiler, idle.filter(short), *_divided(gaps, why)]
    hidden = intervals.intersect(loader, busy, _UNIT)
    windows = [*pieces, loader, copies, hidden, _exposed(excerpt)]
    marked = excerpt.steps.select("step", "start", "end").join(units.select("unit"), how="cross")
    measured = _measured(pl.concat([units, marked], how="diagonal"), windows)
    return Part(
        rank=excerpt.rank,
        path=excerpt.path,
        on_host=excerpt.on_host,
        work_lost=excerpt.work_lost,
        host_known=excerpt.slices.height > 0,
        launches_known=excerpt.launched.height > 0,
        units=measured.head(units.height).drop("step"),
        causes=_by_cause(pieces),
        steps=measured.tail(marked.height).drop("device", "pid"),
        gaps=_longest(excerpt, gaps, pieces, options.library_names),
        gap_count=gaps.height,
        hints=excerpt.hints,
    )


def combine(parts: Sequence[Part], options: Options, _base: Sequence[Part] = ()) -> GpuIdle:
    """The idle time of all ranks by cause."""
    units = _joined(parts, "units")
    key = ["rank", "path", "device", "pid"]
    steps = _joined(parts, "steps").sort(*key, "start", nulls_last=True)
    gaps = _joined(parts, "gaps").sort(
        pl.col("end") - pl.col("start"), *key, "start", descending=[True] + [False] * 5
    )
    by_cause = _joined(parts, "causes").sort(
        *key, "idle_ns", "cause", descending=[False] * 4 + [True, False]
    )
    return GpuIdle(
        by=options.by,
        on_host=all(part.on_host for part in parts),
        work_lost=any(part.work_lost for part in parts),
        host_known=all(part.host_known for part in parts),
        launches_known=all(part.launches_known or part.on_host for part in parts),
        min_gap_ns=options.min_gap_ns,
        gap_count=sum(part.gap_count for part in parts),
        units=units.sort(key),
        causes=by_cause,
        steps=steps,
        gaps=gaps,
        hints=parts[0].hints,
    )


GPU_IDLE = Analyzer("gpu_idle", Options, needs, measure, combine, take=take)


# --- when it is ------------------------------------------------------------------------------


def _busy(excerpt: Excerpt, loader: pl.DataFrame) -> pl.DataFrame:
    """When each unit's work runs; when a training thread is in operators, not loading or saving."""
    if not excerpt.on_host:
        return intervals.union(excerpt.work, _UNIT)
    waiting = pl.concat([loader, host.saving(excerpt)])
    return intervals.subtract(host.running(excerpt), waiting, _UNIT)


def _spans(excerpt: Excerpt) -> pl.DataFrame:
    """The units with start and end: from their first work to their last, and the marked steps."""
    active = (
        host.extents(excerpt) if excerpt.on_host else excerpt.work.select("unit", "start", "end")
    )
    marked = excerpt.steps.select("start", "end").join(excerpt.units.select("unit"), how="cross")
    spans = pl.concat([active, marked.select("unit", "start", "end")])
    ends = spans.group_by("unit").agg(pl.col("start").min(), pl.col("end").max())
    return excerpt.units.join(ends, on="unit", maintain_order="left")


# --- why it is -------------------------------------------------------------------------------


def _other_causes(excerpt: Excerpt, gaps: pl.DataFrame) -> list[pl.DataFrame]:
    """When each cause between those of the input and other host code applies, in their order."""
    return [
        host.calls(excerpt, causes.SYNCHRONISING),
        host.calls(excerpt, causes.MANAGING_MEMORY),
        host.saving(excerpt),
        host.pending(excerpt),
        host.launching(excerpt, gaps),
    ]


def _divided(gaps: pl.DataFrame, why: Sequence[pl.DataFrame]) -> list[pl.DataFrame]:
    """The gaps in pieces, by the first cause that applies; the last of the list: by none."""
    pieces = intervals.first_running(why, gaps, _UNIT)
    first = pl.col("first").fill_null(len(why))
    return [pieces.filter(first == place).drop("first") for place in range(len(why) + 1)]


# --- how much --------------------------------------------------------------------------------


def _exposed(excerpt: Excerpt) -> pl.DataFrame:
    """When communication runs without compute."""
    communication, compute = (
        excerpt.work.filter(pl.col("sort") == sort) for sort in (COMMUNICATION, COMPUTE)
    )
    return intervals.subtract(communication, compute, _UNIT)


def _by_cause(pieces: Sequence[pl.DataFrame]) -> pl.DataFrame:
    length = pl.col("end") - pl.col("start")
    summed = [
        idle.group_by("unit")
        .agg(
            pl.len().cast(pl.Int64).alias("gaps"),
            length.sum().alias("idle_ns"),
            length.max().alias("longest_ns"),
        )
        .select("unit", pl.lit(cause).alias("cause"), "gaps", "idle_ns", "longest_ns")
        for cause, idle in zip(CAUSES, pieces[1:], strict=True)
    ]
    return pl.concat(summed)


def _measured(rows: pl.DataFrame, windows: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """The rows with :data:`MEASURES`: how much of each is which."""
    keys = rows.select("unit", "start", "end")
    times = {
        name: intervals.overlap_with(keys, frame, _UNIT)["overlap"]
        for name, frame in zip(MEASURES, windows, strict=True)
    }
    return rows.with_columns(**times)


# --- the longest gaps ----------------------------------------------------------------------


def _longest(
    excerpt: Excerpt,
    gaps: pl.DataFrame,
    pieces: Sequence[pl.DataFrame],
    libraries: Sequence[str],
) -> pl.DataFrame:
    """The longest gaps, in order of length.

    Returns:
        unit, start, end, step (in which its middle lies), cause (that fills most of it), cause_ns,
        before and after (names of the device work on either side), and, where one ran for half of
        the gap or more, the innermost host_event, the innermost python frame, the innermost frame
        of the libraries (own_code), and the innermost annotation that is no step.
    """
    length = pl.col("end") - pl.col("start")
    long = gaps.filter(length >= length.top_k(LONGEST).min())
    top = long.sort(length, "unit", "start", descending=[True, False, False]).head(LONGEST)
    middle = top.select("unit", "start", "end", ts=pl.col("start") + length // 2)
    within = linking.enclosing(middle.select("ts"), excerpt.steps)["slice"]
    known = _between(_caused(top, pieces), excerpt.work).with_columns(
        step=excerpt.steps["step"].gather(within)
    )
    return pl.concat([known, _told(middle, excerpt, libraries)], how="horizontal")


def _caused(gaps: pl.DataFrame, pieces: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Adds the cause that most of each gap is due to, ``cause``, and how much, ``cause_ns``."""
    numbered = gaps.with_row_index("gap")
    parts = [
        idle.select("unit", "start", "end", ts="start", sort=pl.lit(place, pl.UInt32))
        for place, idle in enumerate(pieces[1:])
        if CAUSES[place] not in (PROFILER, SHORT_GAP)  # none of these is in a long gap
    ]
    held = linking.label_by_interval(pl.concat(parts), gaps, ["unit"]).rename({"interval": "gap"})
    most = (
        held.drop_nulls("gap")
        .group_by("gap", "sort")
        .agg(cause_ns=(pl.col("end") - pl.col("start")).sum())
        .sort("cause_ns", "sort", descending=[True, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    cause = pl.col("sort").replace_strict(dict(enumerate(CAUSES)), return_dtype=pl.String)
    told = most.select("gap", "cause_ns", cause=cause)
    return numbered.join(told, on="gap", how="left", maintain_order="left").drop("gap")


def _between(gaps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Adds the names of the device work that ends where a gap begins, and of what ends it."""
    for edge, at, name in (("end", "start", "before"), ("start", "end", "after")):
        beside = work.select("unit", pl.col(edge).alias(at), pl.col("name").alias(name))
        found = (
            beside.join(gaps, on=["unit", at], how="semi")
            .with_columns(pl.col(name).cast(pl.String))
            .sort(name)
            .unique(["unit", at], keep="first", maintain_order=True)
        )
        gaps = gaps.join(found, on=["unit", at], how="left", maintain_order="left")
    return gaps


def _told(middle: pl.DataFrame, excerpt: Excerpt, libraries: Sequence[str]) -> pl.DataFrame:
    """What ran for half of a gap or more on the threads that feed the unit: the innermost."""
    around = _around(middle, excerpt)
    ranges = pl.col("kind").is_in(ANNOTATION_KINDS)
    python = around.filter(pl.col("kind") == "python_function")
    told = {
        "host_event": around.filter(pl.col("kind") != "python_function"),
        "python": python,
        "own_code": python.filter(_belongs(python["name"], libraries)),
        "annotation": around.filter(ranges, ~is_step(around)),
    }
    found = pl.DataFrame({"gap": np.arange(middle.height)})
    for name, rows in told.items():
        found = found.join(_first(rows, name), on="gap", how="left", maintain_order="left")
    return found.drop("gap")


def _around(middle: pl.DataFrame, excerpt: Excerpt) -> pl.DataFrame:
    """Every slice that fills half of a gap (a row of ``middle``), the innermost of each gap first.

    Such a slice contains the gap's middle.
    """
    half = (middle["end"] - middle["start"]).to_numpy() / 2
    long = pl.col("end") - pl.col("start") >= half.min(initial=np.inf)
    slices = excerpt.slices.filter(long).join(excerpt.threads, on="thread")
    unit, start, end = (slices[name].to_numpy() for name in ("unit", "start", "end"))
    held = []
    for own, since, until, ts in middle.iter_rows():
        at = np.flatnonzero((start <= ts) & (end > ts) & (unit == own))
        shared = np.minimum(end[at], until) - np.maximum(start[at], since)
        held.append(at[2 * shared >= until - since])
    gap = np.repeat(np.arange(len(held)), [rows.size for rows in held])
    found = slices[np.concatenate([np.zeros(0, np.int64), *held])].with_columns(gap=pl.Series(gap))
    length = pl.col("end") - pl.col("start")
    return found.sort("gap", length, "start", "name", descending=[False, False, True, False])


def _first(rows: pl.DataFrame, name: str) -> pl.DataFrame:
    return rows.unique("gap", keep="first", maintain_order=True).select(
        "gap", pl.col("name").cast(pl.String).str.replace(ADDRESS, "").alias(name)
    )


def _belongs(names: pl.Series, libraries: Sequence[str]) -> pl.Expr:
    """Whether a Python frame is of one of the libraries; without any, of the user's own code."""
    distinct = names.unique().cast(pl.String).to_frame("slice")
    told = distinct.select("slice", told=python_frame(pl.col("slice"))).unnest("told")
    match = by_component(libraries)
    own = [
        name
        for name, file, function in told.select("slice", "file", "name").iter_rows()
        if (match(file) is not None if libraries else is_own(function, file))
    ]
    return pl.col("name").is_in(own)


# --- all ranks -----------------------------------------------------------------------------


def _joined(parts: Sequence[Part], table: str) -> pl.DataFrame:
    """One table of all parts, with rank, path, device and pid in place of the unit's number.

    ``start_ns`` counts from the beginning of the unit's span.
    """
    found = []
    for part in parts:
        units = part.units.select("unit", "device", "pid", origin="start")
        rows: pl.DataFrame = getattr(part, table)
        known = [name for name in ("device", "pid") if name in rows.columns]
        named = units.join(rows.drop(known), on="unit", maintain_order="left").drop("unit")
        if "start" in named.columns:
            named = named.with_columns(start_ns=pl.col("start") - pl.col("origin"))
        found.append(with_source(named.drop("origin"), part))
    joined = pl.concat(found)
    return joined.with_columns(pl.col("cause").cast(CAUSE)) if "cause" in joined.columns else joined
