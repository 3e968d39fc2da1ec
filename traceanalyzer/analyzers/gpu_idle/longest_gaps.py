"""The longest idle gaps of a rank, with the recorded host activity."""

import re
from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import names as common_names
from traceanalyzer.analyzers.common.columns import left_join
from traceanalyzer.analyzers.common.names import ADDRESS, distinct, frame_text, matching, named
from traceanalyzer.analyzers.common.step_marks import STEP
from traceanalyzer.analyzers.common.waits import TAKES, WAITS_AROUND, wait_of
from traceanalyzer.analyzers.gpu_idle.causes import DEVICE_WAIT, MAKES_CODE, PROFILER, SHORT_GAP
from traceanalyzer.analyzers.gpu_idle.host import Excerpt, belongs
from traceanalyzer.frames import intervals, linking
from traceanalyzer.trace import of_kinds
from traceanalyzer.vocabulary import ANNOTATION_KINDS, steps_pattern

#: Ranges of an optimizer step, of PyTorch and Lightning.
_OF_OPTIMIZER = r"(?i)optimizer[._]step"
#: Gaps of a rank that are analysed.
MOST = 200


def longest(
    excerpt: Excerpt,
    gaps: pl.DataFrame,
    caused: pl.DataFrame,
    filling: Sequence[pl.DataFrame],
    libraries: Sequence[str],
) -> pl.DataFrame:
    """Return the longest gaps, longest first; those of host code in parts.

    Args:
        excerpt: one rank.
        gaps: unit, start, end.
        caused: unit, start, end, cause.
        filling: name, thread, start, end: slices that fill a gap together, a frame for each kind:
            file calls, and operators that compute on the CPU.
        libraries: components of paths of own code.

    Returns:
        unit, start, end, step (around its middle), cause (of most of it), cause_ns, before and
        after (names of the device work on either side), waits_for (the call that makes the stream
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
    rival = _rivals(top, on_host["python"], excerpt)
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
    """Add the names of the device work before and after each gap, ``before`` and ``after``."""
    columns = []
    for edge, at, column in (("end", "start", "before"), ("start", "end", "after")):
        adjacent = work[["unit", edge, "name"]].filter(pl.col(edge).is_in(gaps[at].implode()))
        first: dict[tuple[int, int], str] = {}
        for unit, time, name in adjacent.iter_rows():
            if name is not None:  # of several the first by name
                first[unit, time] = min(first.get((unit, time), name), name)
        names = [first.get(place) for place in gaps[["unit", at]].iter_rows()]
        columns.append(pl.Series(column, names, dtype=pl.String))
    return gaps.hstack(columns)


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
    whole = (named(around, names) for names in ([*WAITS_AROUND, *MAKES_CODE], [TAKES]))
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


def _rivals(gaps: pl.DataFrame, python: pl.Series, excerpt: Excerpt) -> pl.DataFrame:
    """Return the Python thread that holds the interpreter lock in most of each gap, ``rival``.

    None in functions (``python``) that take half as long or longer while no such thread runs.
    """
    rivals = _rivals_of(excerpt)
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


def _rivals_of(excerpt: Excerpt) -> pl.DataFrame:
    """Return when other Python threads run code during which hardly any work is launched.

    The launching thread waits for the interpreter lock (GIL) that such a thread holds. Waits of
    these threads do not count.

    Returns:
        unit, name (function and thread), start, end.
    """
    found = [excerpt.others[["unit", "name", "start", "end"]].clear()]
    if excerpt.others.is_empty():
        return found[0]
    calls = excerpt.launched.join(excerpt.threads, on="thread")[["unit", "start"]].drop_nulls()
    for (unit, label), rows in excerpt.others.group_by("unit", "label", maintain_order=True):
        launches = calls.filter(unit=unit).rename({"start": "ts"})
        waiting = rows.filter(pl.col("name").is_in([n for n in distinct(rows) if wait_of(n)]))
        code = intervals.subtract(rows, waiting, ["unit"])
        first, last = launches.select(pl.col("ts").min().alias("first"), pl.col("ts").max()).row(0)
        code = intervals.clip(code, first, last)
        length = pl.col("end") - pl.col("start")
        spent = int(code.select(length.sum()).item())
        during = linking.label_by_interval(launches, code, ["unit"])["interval"].count()
        others = launches.height - during
        if during >= others or during * (last - first - spent) >= _HARDLY * others * spent:
            continue
        starts = pl.col("name").cast(pl.String).str.contains(r"\bthreading\.py\(")
        of_user, rest = rows.filter(belongs(rows["name"], ())), rows.filter(~starts)
        functions = (of_user if of_user.height else rest).group_by("name").agg(ns=length.sum())
        most = functions.filter(2 * pl.col("ns") >= spent).sort("ns", "name").head(1)["name"]
        name = f"{frame_text(str(most[0]))} in {label}" if most.len() else str(label)
        found.append(code.select("unit", pl.lit(name).alias("name"), "start", "end"))
    return pl.concat(found, how="vertical_relaxed")


#: Launches per time below this share of the usual number are hardly any.
_HARDLY = 0.1


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
