"""Operators and lines that launch the kernels and collectives with most time."""

from dataclasses import replace

import polars as pl

from traceanalyzer.analyzers.common import host_code
from traceanalyzer.analyzers.common.device_work import COMMUNICATION, COMPUTE
from traceanalyzer.analyzers.common.launching import launch_rows
from traceanalyzer.frames import nesting
from traceanalyzer.trace import Trace

#: Kernels with a smaller share of the kernel time are left out; so there are at most ten.
_LEAST_FRAC = 0.1

SCHEMA = {
    "name": pl.String,
    "operator": pl.String,
    "outer": pl.String,
    "annotation": pl.String,
    "code": pl.String,
}


def places(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return where the host launched the longest call of each kernel with much of the time.

    Of collectives it is the call of median length: one kernel runs small and large messages.

    Args:
        trace: of one rank.
        work: rows of :func:`~traceanalyzer.analyzers.common.device_work.device_work`.

    Returns:
        name, operator (innermost), outer (outermost operator), annotation (innermost, without
        steps), code (innermost Python frame of own code); null where not recorded.
    """
    length = (work["end"] - work["start"]).alias("length")
    launch = nesting.row_numbers(launch_rows(trace, work), "launch")
    kernels = work[["name", "work_kind"]].hstack([length, launch])
    kernels = kernels.filter(pl.col("work_kind").is_in([COMPUTE, COMMUNICATION])).drop_nulls("name")
    keys = ["name", "work_kind"]
    sums = kernels.group_by(keys).agg(pl.col("length").sum())
    whole = pl.col("length").sum().over("work_kind")
    heavy = sums.filter(pl.col("length") >= _LEAST_FRAC * whole)[keys]
    calls = kernels.join(heavy, on=keys)
    longest = calls.sort("length", "launch", descending=[True, False], nulls_last=True)
    first, middle = pl.col("launch").first(), pl.col("launch").get(pl.len() // 2)
    call = pl.when(pl.col("work_kind").first() == COMPUTE).then(first).otherwise(middle)
    known = longest.drop_nulls("launch").group_by(keys).agg(call)
    launched = heavy.join(known, on=keys, how="left").sort("name").select("name", "launch")
    at = trace.events[["pid", "tid", "ts"]][launched["launch"]]
    rows = launched.hstack(_around(trace, at))
    return rows.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def _around(trace: Trace, at: pl.DataFrame) -> list[pl.Series]:
    """Return operator, outer, annotation and code around each of a few moments of threads."""
    end = pl.col("ts") + pl.col("dur")
    inside = [(pl.col("ts") <= ts) & (end > ts) for ts in at["ts"].drop_nulls()]
    is_around = pl.any_horizontal(pl.lit(value=False), *inside)
    near = replace(trace, events=trace.events.filter(is_around & pl.col("tid").is_not_null()))
    around = host_code.places_of(near)
    columns = {
        "operator": around.operator(at),
        "outer": around.outer_operator(at),
        "annotation": around.annotation(at),
        "code": host_code.python_frames(near, at),
    }
    return [values.alias(name) for name, values in columns.items()]
