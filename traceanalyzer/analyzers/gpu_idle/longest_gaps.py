"""The longest idle gaps of a rank, with the recorded host activity."""

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import names as common_names
from traceanalyzer.analyzers.common.columns import grouped, left_join
from traceanalyzer.analyzers.common.names import ADDRESS, distinct, frame_text, matching, named
from traceanalyzer.analyzers.common.step_marks import STEP
from traceanalyzer.analyzers.common.waits import TAKES, WAITS_AROUND, wait_of
from traceanalyzer.analyzers.gpu_idle.causes import (
    DEVICE_WAIT,
    LAUNCH_LATENCY_NS,
    MAKES_CODE,
    PROFILER,
    SAVING,
    SENDS_OBJECTS,
    SHORT_GAP,
)
from traceanalyzer.analyzers.gpu_idle.host import Excerpt, belongs
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import of_kinds
from traceanalyzer.vocabulary import ANNOTATION_KINDS, steps_pattern

#: Ranges of an optimizer step, of PyTorch and Lightning.
_OF_OPTIMIZER = r"(?i)optimizer[._]step"
#: A call that takes an item of a queue.
_TAKES = rf"(?:^|[/\\]){TAKES}"
#: Gaps of a rank that are analysed.
MOST = 200


def longest(
    excerpt: Excerpt,
    gaps: pl.DataFrame,
    caused: pl.DataFrame,
    filling: Sequence[pl.DataFrame],
    rivals: pl.DataFrame,
    libraries: Sequence[str],
) -> pl.DataFrame:
    """Return the longest gaps, longest first; those of host code in parts.

    Args:
        excerpt: one rank.
        gaps: unit, start, end.
        caused: unit, start, end, cause.
        filling: name, thread, start, end: slices that fill a gap together, a frame for each kind:
            file calls, and operators that compute on the CPU.
        rivals: rows of :func:`rivals_of`.
        libraries: components of paths of own code.

    Returns:
        unit, start, end, step (around its middle), cause (of most of it), cause_ns, before and
        after (names of the device work on either side), first_run (a kernel follows that did not
        run before), waits_for (the call that makes the stream
        of the next work wait), sampled (the most frequent leaf function of the stacks sampled in
        the gap) and sampled_frac, and, if it ran for half of the gap or more, the innermost
        host_event (or slices of ``filling`` of one name, together), the innermost python frame,
        the innermost frame of the libraries (own_code) and the frame that it calls (called), the
        innermost annotation that is not a step, the innermost one that launches work (without a
        GPU: runs operators), phase, and the
        innermost of all these (innermost).
    """
    length = pl.col("end") - pl.col("start")
    long = gaps.filter(length >= length.top_k(MOST).min())
    top = long.sort(length, "unit", "start", descending=[True, False, False]).head(MOST)
    middle = top.select("unit", "start", "end", ts=pl.col("start") + length // 2)
    within = linking.enclosing(middle[["ts"]], excerpt.steps)["slice"]
    rows = _between(_caused(top, caused), excerpt.work).with_columns(
        step=excerpt.steps["step"][within]
    )
    on_host = _on_host(middle, excerpt, libraries)
    for slices in filling:
        on_host = _with_many(on_host, rows, slices, excerpt)
    rival = _rivals(top, on_host["python"], rivals, excerpt)
    evidence = [rows, on_host, _sampled(top, excerpt), rival]
    return pl.concat([*evidence, _stream_waits(rows, excerpt)], how="horizontal")


#: The share of a gap that a function takes beside others.
_PART, _EVER = 0.1, -(1 << 62)


def cuts(excerpt: Excerpt, gaps: pl.DataFrame, code: pl.DataFrame) -> pl.DataFrame:
    """Return where functions or ranges begin or end in gaps, if several follow each other.

    Each takes at least a tenth of one of the longest gaps, and none nearly all of it.

    Args:
        excerpt: one rank.
        gaps: unit, start, end.
        code: unit, start, end: when the host runs code in them, for at least half of the gap.

    Returns:
        unit, ts.
    """
    length = pl.col("end") - pl.col("start")
    long = gaps.filter(length >= length.top_k(MOST).min())
    long = long.sort(length, descending=True, maintain_order=True).head(MOST)  # of equal ones
    long = intervals.overlap_with(long, code, ["unit"]).filter(2 * pl.col("overlap") >= length)
    least = _PART * (long.select(length.min()).item() or np.inf)
    steps = pl.col("name").is_in(matching(excerpt.names, [steps_pattern()]))
    parts = of_kinds((*ANNOTATION_KINDS, "python_function")) & ~steps & (length >= least)
    slices = excerpt.slices.filter(parts).join(excerpt.threads, on="thread")
    slices = slices.sort("start", length, descending=[False, True])
    unit, start, end = (slices[name].to_numpy() for name in ("unit", "start", "end"))
    rows: list[tuple[int, int]] = []
    for of_unit, since, until in long[["unit", "start", "end"]].iter_rows():
        at = np.flatnonzero((start < until) & (end > since) & (unit == of_unit))
        shared = (np.minimum(end[at], until) - np.maximum(start[at], since)) / (until - since)
        at = at[(shared >= _PART) & (shared <= 1 - _PART)]
        at = at[start[at] >= np.append(_EVER, np.maximum.accumulate(end[at]))[: at.size]]
        last, least_ns = since, _PART * (until - since)
        for cut in sorted([*start[at].tolist(), *end[at].tolist()]):
            if min(cut - last, until - cut) >= least_ns and slices["name"][at].n_unique() > 1:
                rows, last = [*rows, (of_unit, cut)], cut
    return pl.DataFrame(rows, schema={"unit": gaps["unit"].dtype, "ts": pl.Int64}, orient="row")


def _caused(gaps: pl.DataFrame, caused: pl.DataFrame) -> pl.DataFrame:
    """Add the main cause of each gap, ``cause``, and its time, ``cause_ns``."""
    # these are never part of a long gap
    parts = caused.filter(~pl.col("cause").is_in((PROFILER, SHORT_GAP))).with_columns(ts="start")
    in_gaps = linking.label_by_interval(parts, gaps, ["unit"])
    inside = in_gaps.filter(pl.col("interval").is_not_null())
    length = (pl.col("end") - pl.col("start")).sum().alias("cause_ns")
    sums = inside.group_by("interval", "cause").agg(length)
    main: dict[int, tuple[int, str]] = {}
    ordered = sums.sort("cause_ns", "cause", descending=[True, False])
    for gap, cause, cause_ns in ordered.iter_rows():
        main.setdefault(gap, (cause_ns, cause))
    rows = [main.get(gap, (None, None)) for gap in range(gaps.height)]
    columns = {"cause_ns": pl.Int64, "cause": pl.String}
    return gaps.hstack(pl.DataFrame(rows, schema=columns, orient="row"))


def _between(gaps: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Add the names of the device work before and after each gap, ``before`` and ``after``.

    ``first_run``: the work after it is a kernel that did not run before.
    """
    columns = []
    for edge, at, column in (("end", "start", "before"), ("start", "end", "after")):
        adjacent = work[["unit", edge, "name"]].filter(pl.col(edge).is_in(gaps[at].implode()))
        first: dict[tuple[int, int], str] = {}
        for unit, time, name in adjacent.iter_rows():
            if name is not None:  # of several the first by name
                first[unit, time] = min(first.get((unit, time), name), name)
        names = [first.get(place) for place in gaps[["unit", at]].iter_rows()]
        columns.append(pl.Series(column, names, dtype=pl.String))
    kernels = work.filter(pl.col("kind") == "kernel", pl.col("name").is_in(columns[1].implode()))
    first_runs = grouped(kernels, ["unit", "name"], first=pl.col("start").min())
    rows = gaps.hstack(columns)
    named = first_runs.with_columns(after=pl.col("name").cast(pl.String)).drop("name")
    first_run = left_join(rows, named, ["unit", "after"])["first"] >= rows["start"]
    return rows.with_columns(first_run=first_run.fill_null(value=False))


def _on_host(middle: pl.DataFrame, excerpt: Excerpt, libraries: Sequence[str]) -> pl.DataFrame:
    """Return the innermost slices that fill half of a gap or more on the unit's threads."""
    around = _around(middle, excerpt)
    if around.is_empty():
        columns = ("host_event", "python", "own_code", "annotation", "phase", "innermost", "called")
        return pl.DataFrame([intervals.nulls(name, pl.String, middle.height) for name in columns])
    steps = matching(excerpt.names, [steps_pattern()])
    is_range = of_kinds(ANNOTATION_KINDS) & ~pl.col("name").is_in(steps)
    ranges = around.filter(is_range)
    ranges = ranges.filter(~_of_closure(ranges, middle, excerpt))
    works = excerpt.launched[["thread", "start", "end"]]
    if excerpt.on_host:
        works = excerpt.slices.filter(pl.col("kind") == "cpu_op")[works.columns]
    launches = intervals.overlap_with(ranges, works, ["thread"])["overlap"] > 0
    python = around.filter(pl.col("kind") == "python_function")
    python = python.with_columns(is_own_code=belongs(python["name"], libraries))
    outer = [*WAITS_AROUND, *MAKES_CODE, SENDS_OBJECTS]
    whole = (named(around, names) for names in (outer, [_TAKES]))
    slices = {
        "host_event": around.filter(pl.col("kind") != "python_function"),
        "python": python,
        "own_code": python.filter("is_own_code"),
        "annotation": ranges,
        "phase": ranges.filter(launches),
        "innermost": pl.concat([*map(around.filter, whole), around]),
    }
    caller = pl.col("name", "start", "end").shift(1).over("gap")
    called = python.select("gap", "is_own_code", caller)
    called = called.filter("is_own_code").unique("gap", keep="first", maintain_order=True)
    # of slices of equal times it is unknown which one is inside the other: they are one
    first = around.unique("gap", keep="first").select("gap", "start", "end", same="name")
    same = called.join(first, on=["gap", "start", "end"], how="left", maintain_order="left")
    slices["called"] = same.with_columns(name=pl.coalesce("same", "name"))
    return pl.DataFrame([_first(rows, name, middle.height) for name, rows in slices.items()])


def _of_closure(ranges: pl.DataFrame, middle: pl.DataFrame, excerpt: Excerpt) -> pl.Series:
    """Mark the ranges of an optimizer step that runs a backward pass after the gap (Lightning)."""
    is_node = pl.col("name").is_in(matching(excerpt.names, [common_names.BACKWARD]))
    nodes = excerpt.slices.filter(is_node)["start"].sort()
    later = nodes.search_sorted(ranges["end"]) > nodes.search_sorted(middle["ts"][ranges["gap"]])
    return ranges.select(later & named(ranges, [_OF_OPTIMIZER])).to_series()


def _with_many(
    on_host: pl.DataFrame, gaps: pl.DataFrame, slices: pl.DataFrame, excerpt: Excerpt
) -> pl.DataFrame:
    """Name the slices of one name that fill half of a gap together, inside the annotation.

    The outermost operator is named, unless something else is inside.
    """
    if slices.is_empty():
        return on_host
    name = _filling(gaps, slices.join(excerpt.threads, on="thread"), 0.5)
    event = pl.col("host_event")
    ranges = [
        pl.col("annotation"),
        gaps["step"],
        gaps.select(STEP).to_series(),
        pl.col("innermost"),
    ]
    outer = pl.any_horizontal(event.is_null(), *(event == one for one in ranges))
    named = name.is_not_null() & outer
    return on_host.with_columns(
        pl.when(named).then(name).otherwise(column).alias(column)
        for column in ("host_event", "innermost")
    )


def _rivals(
    gaps: pl.DataFrame, python: pl.Series, rivals: pl.DataFrame, excerpt: Excerpt
) -> pl.DataFrame:
    """Return the Python thread that holds the interpreter lock in most of each gap, ``rival``.

    None in functions (``python``) that take half as long or longer while no such thread runs.
    """
    rival = _filling(gaps, rivals, _MOST_OF_GAP)
    if rival.null_count() < gaps.height:
        is_one = pl.col("name").cast(pl.String).is_in(python.implode())
        runs = excerpt.slices.filter(is_one, pl.col("start") < gaps["end"].max())
        alone = runs.filter(~pl.Series(intervals.meets(runs, rivals)))
        length = pl.col("end") - pl.col("start")
        times = alone.group_by(name=pl.col("name").cast(pl.String)).agg(alone=length.median())
        usual = left_join(python.alias("name").to_frame(), times, ["name"])["alone"]
        slow = 2 * usual >= gaps["end"] - gaps["start"]
        rival = rival.set(slow.fill_null(value=False), None)
    return rival.alias("rival").to_frame()


def rivals_of(excerpt: Excerpt) -> pl.DataFrame:
    """Return when other Python threads run code during which launches stop or are slow.

    The launching thread waits for the interpreter lock (GIL) that such a thread holds. Waits of
    these threads do not count.

    Returns:
        unit, name (function and thread), start, end, slows (launches are slow).
    """
    columns = (pl.col("name").cast(pl.String), "start", "end", pl.lit(value=False).alias("slows"))
    found = [excerpt.others.clear().select("unit", *columns)]
    if excerpt.others.is_empty():
        return found[0]
    calls = _prompt_launches(excerpt)
    for (unit, label), rows in excerpt.others.group_by("unit", "label", maintain_order=True):
        launches = calls.filter(unit=unit)
        waiting = rows.filter(pl.col("name").is_in([n for n in distinct(rows) if wait_of(n)]))
        code = intervals.subtract(rows, waiting, ["unit"])
        first, last = launches.select(pl.col("ts").min(), pl.col("end").max()).row(0)
        code = intervals.clip(code, first, last)
        spent = int(code.select((pl.col("end") - pl.col("start")).sum()).item())
        inside = linking.label_by_interval(launches, code, ["unit"])["interval"].is_not_null()
        during = int(inside.sum())
        others = launches.height - during
        hardly = during < others and during * (last - first - spent) < _HARDLY * others * spent
        works = rows.filter(pl.col("start").is_between(first, last)).height >= _ENOUGH
        slows = not hardly and _are_slow(launches, inside, excerpt, works=works)
        if hardly or slows:
            name = _rival_name(rows, str(label), spent)
            both = {"name": pl.lit(name), "slows": pl.lit(slows)}
            found.append(code.with_columns(**both)[found[0].columns])
    return pl.concat(found)


def _prompt_launches(excerpt: Excerpt) -> pl.DataFrame:
    """Return the launches: unit, ts, end, ns: the time of the call of a kernel that starts at once.

    A call may wait in a full launch queue, but then its kernel starts later.
    """
    begun, kinds = (excerpt.work[name][excerpt.launched["work"]] for name in ("start", "kind"))
    alone = pl.len().over("thread", "start") == 1  # no graph
    prompt = (begun - excerpt.launched["end"] <= LAUNCH_LATENCY_NS) & (kinds == "kernel")
    time = pl.when(alone & prompt).then(pl.col("end") - pl.col("start"))
    calls = excerpt.launched.with_columns(ns=time).join(excerpt.threads, on="thread")
    return calls.select("unit", "end", "ns", ts="start").drop_nulls("ts")


def _are_slow(launches: pl.DataFrame, inside: pl.Series, excerpt: Excerpt, *, works: bool) -> bool:
    """Whether the calls inside take several times as long as others, or as usual.

    Without others, the thread ``works`` if it calls functions: one that waits in native code is in
    the same function all the time.
    """
    times, others = (launches.filter(one)["ns"].drop_nulls() for one in (inside, ~inside))
    is_known = others.len() >= _ENOUGH
    if times.len() < _ENOUGH or excerpt.program.blocking:
        return False
    usual_ns = (others.quantile(0.5) or 0.0) if is_known else _USUAL_NS
    is_slow = (times.quantile(0.5) or 0.0) >= _SLOWER * max(usual_ns, _FAST_NS)
    return is_slow and (is_known or (works and not excerpt.program.slow_host))


def _rival_name(rows: pl.DataFrame, label: str, spent: int) -> str:
    """Return the function that runs for half of the time, and its thread: one that saves first."""
    starts = pl.col("name").cast(pl.String).str.contains(r"\bthreading\.py\(")
    length = pl.col("end") - pl.col("start")
    of_user, rest = rows.filter(belongs(rows["name"], ())), rows.filter(~starts)
    for some in (rows.filter(named(rows, SAVING)), of_user if of_user.height else rest):
        functions = some.group_by("name").agg(ns=length.sum())
        most = functions.filter(2 * pl.col("ns") >= spent).sort("ns", "name").head(1)["name"]
        if most.len():
            return f"{frame_text(str(most[0]))} in {label}"
    return label


#: Launches per time below this share of the usual number are hardly any.
_HARDLY = 0.1
#: Launch calls are slow from so many times the usual time on, in so many calls; usual times.
_SLOWER, _ENOUGH, _USUAL_NS, _FAST_NS = 3, 20, 8_000, 4_000


def _filling(gaps: pl.DataFrame, rows: pl.DataFrame, share: float) -> pl.Series:
    """Return the name of the rows (unit, name, start, end) that fill this share of each gap."""
    names = intervals.nulls("", pl.String, gaps.height)
    fills = pl.col("overlap") >= share * (pl.col("end") - pl.col("start"))
    for name in distinct(rows):
        of_name = rows.filter(pl.col("name") == name)
        shared = intervals.overlap_with(gaps[["unit", "start", "end"]], of_name, ["unit"])
        names = shared.select(pl.when(fills).then(pl.lit(name)).otherwise(names)).to_series()
    return names


#: From this share of a gap on, another thread runs in most of it.
_MOST_OF_GAP = 0.8


def _around(middle: pl.DataFrame, excerpt: Excerpt) -> pl.DataFrame:
    """Return the slices that fill half of a gap (a row of ``middle``), innermost first per gap.

    Such a slice contains the gap's middle.
    """
    half = (middle["end"] - middle["start"]).to_numpy() / 2
    long = pl.col("end") - pl.col("start") >= half.min(initial=np.inf)
    slices = excerpt.slices.filter(long).join(excerpt.threads, on="thread")
    unit, start, end = (slices[name].to_numpy() for name in ("unit", "start", "end"))
    matches = []
    for of_unit, since, until, ts in middle.iter_rows():
        at = np.flatnonzero((start <= ts) & (end > ts) & (unit == of_unit))
        shared = np.minimum(end[at], until) - np.maximum(start[at], since)
        matches.append(at[2 * shared >= until - since])
    gap = np.repeat(np.arange(len(matches)), [rows.size for rows in matches])
    rows = slices[np.concatenate([np.zeros(0, np.int64), *matches])]
    spins = pl.col("name").cast(pl.String).str.contains("sched_yield", literal=True)
    length = pl.col("end") - pl.col("start")
    # the function that spins says what it waits for
    return rows.with_columns(gap=pl.Series(gap)).sort(
        "gap", spins, length, "start", "name", descending=[False, False, False, True, False]
    )


def _first(rows: pl.DataFrame, name: str, gaps: int) -> pl.Series:
    """Return the name of the first of the rows of each gap."""
    first: dict[int, str] = {}
    for gap, text in zip(rows["gap"], rows["name"], strict=True):
        first.setdefault(gap, text)
    texts = [first.get(gap) for gap in range(gaps)]
    return pl.Series(name, [text and _ADDRESS.sub("", text, 1) for text in texts], dtype=pl.String)


_ADDRESS = re.compile(ADDRESS)


def _sampled(gaps: pl.DataFrame, excerpt: Excerpt) -> pl.DataFrame:
    """Return the most frequent leaf function sampled in each gap: sampled, sampled_frac.

    Samples are of the threads that launch the unit's work.
    """
    if excerpt.samples.is_empty():
        types = {"sampled": pl.String, "sampled_frac": pl.Float64}
        return pl.DataFrame([intervals.nulls(*of, gaps.height) for of in types.items()])
    points = excerpt.samples.join(excerpt.threads, on="thread")[["unit", "ts", "stack"]]
    ordered = gaps.with_row_index("gap").sort("unit", "start")
    inside = linking.label_by_interval(points, ordered, ["unit"]).drop_nulls("interval")
    frames = excerpt.stacks.select("id", function=_function())
    counts = (
        inside.select("stack", gap=ordered["gap"][inside["interval"]])
        .join(frames, left_on="stack", right_on="id")
        .group_by("gap", sampled="function")
        .agg(n=pl.len())
        .with_columns(sampled_frac=pl.col("n") / pl.col("n").sum().over("gap"))
        .sort("n", "sampled", descending=[True, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    rows = gaps.with_row_index("gap").join(counts, on="gap", how="left", maintain_order="left")
    return rows[["sampled", "sampled_frac"]]


def _function() -> pl.Expr:
    """Return the function of a frame; without symbols its library or program."""
    name, library = (pl.col(column).cast(pl.String) for column in ("name", "file"))
    unnamed = pl.format("{} (no symbols)", library.str.extract(r"([^/\\]+)$"))
    return pl.when(name.str.starts_with("[")).then(pl.coalesce(unnamed, name)).otherwise(name)


def _stream_waits(gaps: pl.DataFrame, excerpt: Excerpt) -> pl.DataFrame:
    """Return the call that makes the work after a device-side wait wait, ``waits_for``.

    It is the last one on the launching thread between the previous launch and that of the work.
    """
    if excerpt.stream_waits.is_empty():
        return pl.DataFrame(schema={"waits_for": pl.String}).clear(gaps.height)
    begun = excerpt.work.select("unit", end="start")[excerpt.launched["work"]]
    launches = excerpt.launched.select("thread", ts="start").with_columns(begun)
    previous = pl.col("ts").shift(1).over("thread")
    launches = launches.sort("thread", "ts").with_columns(previous=previous)
    ending = (
        gaps.with_row_index("gap")
        .filter(pl.col("cause") == DEVICE_WAIT)[["gap", "unit", "end"]]
        .join(launches, on=["unit", "end"])
        .unique("gap", keep="first")
    )
    last = ending.sort("ts").join_asof(
        excerpt.stream_waits.sort("start"),
        left_on="ts",
        right_on="start",
        by="thread",
        check_sortedness=False,
    )
    recent = last.filter(pl.col("start") >= pl.col("previous").fill_null(pl.col("start")))
    rows = gaps.with_row_index("gap").join(recent, on="gap", how="left", maintain_order="left")
    return rows[["waits_for"]]
