"""What the host runs in slow steps and in no other: checkpoints, evaluation, compilation."""

import math

import polars as pl

from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ANNOTATION_KINDS, LAUNCH_KINDS

#: A step that takes so many times the median is slow.
SLOW = 1.1

#: Slices of less of what a slow step takes beyond the median are left out ...
_LEAST_FRAC = 0.3

#: ... and those that take more of it in the median step.
_ELSEWHERE_FRAC = 0.2

#: Kinds of slices, what people named first: of slices of one duration the first counts.
_KINDS = (*ANNOTATION_KINDS, "python_function", "other", "gpu_memcpy", "cpu_op", *LAUNCH_KINDS)

#: Slices whose times differ by less are one in the other.
_NESTED_FRAC = 0.1

_SCHEMA = {
    "step": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "n": pl.Int64,
    "total_ns": pl.Int64,
}


def only_slow(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    """What the host runs in slow steps and hardly in others, with at least 30 % of their excess.

    Args:
        trace: of one rank.
        steps: step, start, end.

    Returns:
        step, kind, name, n, ``total_ns`` (of slices that begin in the step), the longest first; of
        nested slices of about one duration one is kept. Python functions count on the threads that
        mark steps: others wait for work most of the time.
    """
    each = steps.select("step", "start", "end").unique("start").sort("start")
    length = pl.col("end") - pl.col("start")
    over = length - length.median()
    slow = each.with_columns(over=over).filter(length > SLOW * length.median())
    if slow.is_empty() or 2 * slow.height > each.height:
        return pl.DataFrame(schema=_SCHEMA)
    long = pl.col("dur") >= int(_LEAST_FRAC * slow.select(pl.col("over").min()).item()) // _MANY
    slices = trace.events.filter(pl.col("kind").is_in(_KINDS), long).select(
        "ts", "dur", "tid", pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String)
    )
    marking = slices.filter(pl.col("name").is_in(each["step"].implode()))["tid"].unique()
    if marking.len():
        elsewhere = ~pl.col("tid").is_in(marking.implode())
        slices = slices.filter(~(elsewhere & (pl.col("kind") == "python_function")))
    number = linking.label_by_interval(slices.select("ts"), each)["interval"]
    of_step = slices.with_columns(step=each["step"].gather(number)).drop_nulls("step")
    of_step = of_step.filter(~pl.col("name").is_in(each["step"].implode()))
    sums = of_step.group_by("step", "name").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("dur").sum(), kind=pl.col("kind").first()
    )
    usual = (
        sums.join(slow, on="step", how="anti")
        .group_by("name")
        .agg(usual=pl.col("total_ns").sum() / max(each.height - slow.height, 1))
    )
    there = sums.join(slow.select("step", "over"), on="step").join(usual, on="name", how="left")
    kept = there.filter(
        pl.col("total_ns") - pl.col("usual").fill_null(0) >= _LEAST_FRAC * pl.col("over"),
        pl.col("usual").fill_null(0) <= _ELSEWHERE_FRAC * pl.col("total_ns"),
    )
    return _without_nested(kept).select(pl.col(name).cast(of) for name, of in _SCHEMA.items())


def _without_nested(rows: pl.DataFrame) -> pl.DataFrame:
    """Of slices of a step that take about as long one, the longest first.

    Of one kind that which takes the least share in other steps, then the longest.
    """
    order = pl.col("kind").replace_strict({kind: place for place, kind in enumerate(_KINDS)})
    usual = (pl.col("usual").fill_null(0) / pl.col("total_ns")).round(2)
    ranked = rows.with_columns(order=order, usual=usual)
    group = (pl.col("total_ns").log() / -math.log(1 - _NESTED_FRAC)).floor()
    by_order = ranked.sort(
        "order", "usual", "total_ns", "step", "name", descending=[False, False, True, False, False]
    )
    one = by_order.group_by("step", group.alias("length"), maintain_order=True)
    return one.first().sort("total_ns", "step", "name", descending=[True, False, False])


#: Slices that are shorter than the least by so many times are not summed up.
_MANY = 100
