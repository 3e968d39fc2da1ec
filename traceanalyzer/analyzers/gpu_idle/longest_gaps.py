"""The longest idle gaps of a rank, with all that was recorded of what the host did meanwhile."""

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.libraries import by_component, is_own_code
from traceanalyzer.analyzers.common.names import ADDRESS, is_step, python_frame
from traceanalyzer.analyzers.gpu_idle.causes import DEVICE_WAIT, PROFILER, SHORT_GAP
from traceanalyzer.analyzers.gpu_idle.host import Excerpt
from traceanalyzer.frames import linking
from traceanalyzer.vocabulary import ANNOTATION_KINDS

#: Gaps of a rank that are looked into.
MOST = 200


def longest(
    excerpt: Excerpt,
    gaps: pl.DataFrame,
    caused: pl.DataFrame,
    libraries: Sequence[str],
) -> pl.DataFrame:
    """The longest gaps, in order of length.

    Returns:
        unit, start, end, step (in which its middle lies), cause (that fills most of it), cause_ns,
        before and after (names of the device work on either side), waits_for (the call that made
        the stream of the next work wait), sampled (the leaf function of most of the stacks that
        were sampled in the gap) and sampled_frac, and, where one ran for half of the gap or more,
        the innermost host_event, the innermost python frame, the innermost frame of the libraries
        (own_code), and the innermost annotation that is no step.
    """
    length = pl.col("end") - pl.col("start")
    long = gaps.filter(length >= length.top_k(MOST).min())
    top = long.sort(length, "unit", "start", descending=[True, False, False]).head(MOST)
    middle = top.select("unit", "start", "end", ts=pl.col("start") + length // 2)
    within = linking.enclosing(middle.select("ts"), excerpt.steps)["slice"]
    known = _between(_caused(top, caused), excerpt.work).with_columns(
        step=excerpt.steps["step"].gather(within)
    )
    evidence = [known, _on_host(middle, excerpt, libraries), _sampled(top, excerpt)]
    return pl.concat([*evidence, _stream_waits(known, excerpt)], how="horizontal")


def _caused(gaps: pl.DataFrame, caused: pl.DataFrame) -> pl.DataFrame:
    """Adds the cause that most of each gap is due to, ``cause``, and how much, ``cause_ns``."""
    numbered = gaps.with_row_index("gap")
    # none of these is in a long gap
    parts = caused.filter(~pl.col("cause").is_in((PROFILER, SHORT_GAP))).with_columns(ts="start")
    held = linking.label_by_interval(parts, gaps, ["unit"]).rename({"interval": "gap"})
    most = (
        held.drop_nulls("gap")
        .group_by("gap", "cause")
        .agg(cause_ns=(pl.col("end") - pl.col("start")).sum())
        .sort("cause_ns", "cause", descending=[True, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    told = most.select("gap", "cause_ns", pl.col("cause").cast(pl.String))
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


def _on_host(middle: pl.DataFrame, excerpt: Excerpt, libraries: Sequence[str]) -> pl.DataFrame:
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
        if rows.is_empty():
            found = found.with_columns(pl.lit(None, pl.String).alias(name))
            continue
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
    if names.is_empty():
        return pl.lit(value=False)
    distinct = names.unique().cast(pl.String).to_frame("slice")
    told = distinct.select("slice", told=python_frame(pl.col("slice"))).unnest("told")
    match = by_component(libraries)
    own = [
        name
        for name, file, function in told.select("slice", "file", "name").iter_rows()
        if (match(file) is not None if libraries else is_own_code(function, file))
    ]
    return pl.col("name").is_in(own)


def _sampled(gaps: pl.DataFrame, excerpt: Excerpt) -> pl.DataFrame:
    """The leaf function of most of the stacks that were sampled in each gap: sampled, sampled_frac.

    Of the threads that feed the gap's unit.
    """
    if excerpt.samples.is_empty():
        blank = pl.DataFrame(schema={"sampled": pl.String, "sampled_frac": pl.Float64})
        return blank.clear(gaps.height)
    points = excerpt.samples.join(excerpt.threads, on="thread").select("unit", "ts", "stack")
    ordered = gaps.with_row_index("gap").sort("unit", "start")
    inside = linking.label_by_interval(points, ordered, ["unit"]).drop_nulls("interval")
    frames = excerpt.stacks.select("id", function=_function())
    counts = (
        inside.select("stack", gap=ordered["gap"].gather(inside["interval"]))
        .join(frames, left_on="stack", right_on="id")
        .group_by("gap", sampled="function")
        .agg(n=pl.len())
        .with_columns(sampled_frac=pl.col("n") / pl.col("n").sum().over("gap"))
        .sort("n", "sampled", descending=[True, False])
        .unique("gap", keep="first", maintain_order=True)
    )
    rows = gaps.with_row_index("gap").join(counts, on="gap", how="left", maintain_order="left")
    return rows.select("sampled", "sampled_frac")


def _function() -> pl.Expr:
    """The function of a frame; without symbols the library or program that it lies in."""
    name, library = (pl.col(column).cast(pl.String) for column in ("name", "file"))
    unnamed = pl.format("{} (no symbols)", library.str.extract(r"([^/\\]+)$"))
    return pl.when(name.str.starts_with("[")).then(pl.coalesce(unnamed, name)).otherwise(name)


def _stream_waits(gaps: pl.DataFrame, excerpt: Excerpt) -> pl.DataFrame:
    """What the work that ends a device-side wait was made to wait for: the call, ``waits_for``.

    The last one on the launching thread between the previous launch and that of the work.
    """
    if excerpt.stream_waits.is_empty():
        return pl.DataFrame(schema={"waits_for": pl.String}).clear(gaps.height)
    begun = excerpt.work.select("unit", end="start")[excerpt.launched["work"]]
    launches = excerpt.launched.select("thread", ts="start").with_columns(begun)
    previous = pl.col("ts").shift(1).over("thread")
    launches = launches.sort("thread", "ts").with_columns(previous=previous)
    ending = (
        gaps.with_row_index("gap")
        .filter(pl.col("cause") == DEVICE_WAIT)
        .select("gap", "unit", "end")
        .join(launches, on=["unit", "end"])
        .unique("gap", keep="first")
    )
    found = ending.sort("ts").join_asof(
        excerpt.stream_waits.sort("start"),
        left_on="ts",
        right_on="start",
        by="thread",
        check_sortedness=False,
    )
    known = found.filter(pl.col("start") >= pl.col("previous").fill_null(pl.col("start")))
    rows = gaps.with_row_index("gap").join(known, on="gap", how="left", maintain_order="left")
    return rows.select("waits_for")
