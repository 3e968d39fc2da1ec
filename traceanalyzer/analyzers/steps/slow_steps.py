"""Host slices that only slow steps have: checkpoints, evaluation, compilation."""

import math

import polars as pl

from traceanalyzer.analyzers.common.names import BACKWARD, LAYERS, matching
from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ANNOTATION_KINDS, LAUNCH_KINDS, PROFILER_STEP

#: A step that takes more than this many times the median is slow.
SLOW = 1.1

#: Least share of the excess of a slow step over the median, for slices to count ...
_LEAST_FRAC = 0.3

#: ... and most share of their time in other steps.
_ELSEWHERE_FRAC = 0.2

#: Kinds of slices that say which code runs: annotations, Python functions, and copies.
CODE = (*ANNOTATION_KINDS, "python_function", "other", "gpu_memcpy")

#: Kinds of slices, user-named ones first: of nested slices of equal duration the first counts.
_KINDS = (*CODE, "cpu_op", *LAUNCH_KINDS)

#: Slices whose times differ by less are taken as nested.
_NESTED_FRAC = 0.1

_SCHEMA = {
    "step": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "n": pl.Int64,
    "total_ns": pl.Int64,
}


def only_slow(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """Return host slices of slow steps, rare in others, with at least 30 % of the excess time.

    Args:
        trace: the trace of one rank.
        steps: step, start, end.

    Returns:
        step, kind, name, n, ``total_ns`` (of slices that begin in the step), the longest first; of
        nested slices of about the same duration one is kept. Python functions count on threads
        that mark steps: other threads wait for work most of the time.
    """
    each = steps[["step", "start", "end"]].unique("start").sort("start")
    length = pl.col("end") - pl.col("start")
    over = length - length.median()
    slow = each.with_columns(over=over).filter(length > SLOW * length.median())
    if slow.is_empty() or 2 * slow.height > each.height:
        return pl.DataFrame(schema=_SCHEMA)
    least: float = slow["over"].min()  # type: ignore[assignment]
    long = pl.col("dur") >= int(_LEAST_FRAC * least) // _MANY
    columns = trace.events[["ts", "dur", "tid", "name", "kind"]]
    slices = columns.filter(pl.col("kind").is_in(_KINDS), long)
    marking = slices.filter(pl.col("name").is_in(each["step"].implode()))["tid"].unique()
    if marking.len():
        elsewhere = ~pl.col("tid").is_in(marking.implode())
        slices = slices.filter(~(elsewhere & (pl.col("kind") == "python_function")))
    number = linking.label_by_interval(slices[["ts"]], each)["interval"]
    of_step = slices[["dur", "name", "kind"]].hstack([each["step"][number]])
    is_mark = pl.col("name").is_in(each["step"].implode())
    of_step = of_step.filter(pl.col("step").is_not_null() & ~is_mark)
    if of_step.is_empty():
        return _forward_only(trace, each, slow)
    sums = of_step.group_by("step", "name").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("dur").sum(), kind=pl.col("kind").first()
    )
    sums = sums.with_columns(pl.col("name", "kind").cast(pl.String))
    usual = (
        sums.join(slow, on="step", how="anti")
        .group_by("name")
        .agg(usual=pl.col("total_ns").sum() / max(each.height - slow.height, 1))
    )
    candidates = sums.join(slow[["step", "over"]], on="step").join(usual, on="name", how="left")
    kept = candidates.filter(
        pl.col("total_ns") - pl.col("usual").fill_null(0) >= _LEAST_FRAC * pl.col("over"),
        pl.col("usual").fill_null(0) <= _ELSEWHERE_FRAC * pl.col("total_ns"),
    )
    slices = _without_nested(kept).select(pl.col(name).cast(of) for name, of in _SCHEMA.items())
    return pl.concat([slices, _forward_only(trace, each, slow)])


_BETWEEN = {name: of for name, of in _SCHEMA.items() if name != "step"}

#: What slow steps run that have many layers more than others, but no more of a backward pass.
FORWARD_ONLY = "forward passes without a backward pass"

#: From so many times as many layers on.
_MORE = 1.5


def _forward_only(trace: Trace, each: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Rows for steps that evaluate: ``total_ns`` is their time beyond the median step."""
    named = [matching(trace.names, [pattern]) for pattern in (LAYERS, BACKWARD)]
    if not all(named):
        return pl.DataFrame(schema=_SCHEMA)
    events = trace.events[["kind", "ts", "name"]].filter(pl.col("kind") == "cpu_op")
    layers, backward = (
        _per_step(events.filter(pl.col("name").is_in(names)), each) for names in named
    )
    rows = slow.join(layers, on="step").join(backward, on="step", suffix="_backward")
    usual, usual_backward = (
        counts.join(slow, on="step", how="anti").select(pl.col("n").median()).item() or 0
        for counts in (layers, backward)
    )
    is_more = (pl.col("n") >= _MORE * usual) & (pl.col("n_backward") <= _MORE * usual_backward)
    steps = rows.filter(is_more, usual > 0, usual_backward > 0).with_columns(
        kind=pl.lit("other"), name=pl.lit(FORWARD_ONLY), total_ns="over"
    )
    return steps.select(pl.col(name).cast(of) for name, of in _SCHEMA.items())


def _per_step(events: pl.DataFrame, each: pl.DataFrame) -> pl.DataFrame:
    number = linking.label_by_interval(events[["ts"]], each)["interval"]
    return pl.DataFrame({"step": each["step"][number.drop_nulls()]}).group_by("step").len("n")


def between(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """What the host runs between steps, if that takes 30 % of the time between them or more.

    Args:
        trace: of one rank.
        steps: step, start, end.

    Returns:
        kind, name, n, ``total_ns`` of slices that begin and end between two steps, the longest
        first; of nested slices of about one duration one is kept.
    """
    each = steps[["start", "end"]].unique("start").sort("start")
    windows = each.select(start=pl.col("end").shift(1), end="start")
    windows = windows.filter(pl.col("end") > pl.col("start"))
    length = int((windows["end"] - windows["start"]).sum())
    if not length:
        return pl.DataFrame(schema=_BETWEEN)
    slices = trace.events[["kind", "name", "ts", "dur"]].filter(
        pl.col("kind").is_in(_KINDS), pl.col("dur") > 0
    )
    number = linking.label_by_interval(slices[["ts"]], windows)["interval"]
    inside = slices.hstack([windows["end"][number].alias("until")])
    marks = matching(trace.names, [f"^{PROFILER_STEP}"])
    inside = inside.filter(
        pl.col("ts") + pl.col("dur") <= pl.col("until"), ~pl.col("name").is_in(marks)
    )
    if inside.is_empty():
        return pl.DataFrame(schema=_BETWEEN)
    inside = inside.with_columns(pl.col("name", "kind").cast(pl.String))
    sums = inside.group_by("name").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("dur").sum(), kind=pl.col("kind").first()
    )
    kept = sums.filter(pl.col("total_ns") >= _LEAST_FRAC * length)
    rows = _without_nested(kept.with_columns(step=pl.lit(""), usual=pl.lit(0)))
    return rows.select(pl.col(name).cast(of) for name, of in _BETWEEN.items())


def _without_nested(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep one of the slices of a step with about the same duration, the longest first.

    Of slices of one kind, keep the one with the smallest share in other steps, then the longest.
    """
    if rows.is_empty():
        return rows
    order = pl.col("kind").replace_strict({kind: place for place, kind in enumerate(_KINDS)})
    usual = (pl.col("usual").fill_null(0) / pl.col("total_ns")).round(2)
    ranked = rows.with_columns(order=order, usual=usual)
    group = (pl.col("total_ns").log() / -math.log(1 - _NESTED_FRAC)).floor()
    by_order = ranked.sort(
        "order", "usual", "total_ns", "step", "name", descending=[False, False, True, False, False]
    )
    one = by_order.group_by("step", group.alias("length"), maintain_order=True)
    return one.first().sort("total_ns", "step", "name", descending=[True, False, False])


#: Slices that are this many times shorter than the least excess are not summed.
_MANY = 100
