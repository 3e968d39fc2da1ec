"""The files' counters put together."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.host_metrics.extract import Part, extract
from traceanalyzer.analyzers.host_metrics.result import HostMetrics
from traceanalyzer.analyzers.places import places
from traceanalyzer.errors import OptionError
from traceanalyzer.limits import LAST_NS
from traceanalyzer.trace import Trace

_PROCESS = ["rank", "path", "pid"]
_WHAT = ["counter", "series", "unit", "rate"]


def host_metrics(traces: Trace | Sequence[Trace], *, counters: Sequence[str] = ()) -> HostMetrics:
    """How did the host fare? Traces in memory; :func:`traceanalyzer.host_metrics` reads files.

    Args:
        traces: one or more.
        counters: regular expressions; only counters whose ``COUNTER/SERIES`` one matches.

    Raises:
        MissingData: a trace has no counters, or none that matches.
        OptionError: a pattern is no regular expression, or there is no trace.
    """
    given = [traces] if isinstance(traces, Trace) else traces
    return combine([extract(trace, counters) for trace in given])


def combine(parts: Sequence[Part], notes: Sequence[str] = ()) -> HostMetrics:
    """The answer for all files.

    Raises:
        OptionError: there are no parts.
    """
    if not parts:
        raise OptionError("no trace was given")
    readings = _named(_moved(parts))
    at = readings["at_ns"]
    first, last = at.min(), at.max()
    return HostMetrics(
        span_ns=last - first if isinstance(first, int) and isinstance(last, int) else 0,
        counters=_counters(readings),
        series=_series(readings),
        readings=readings.select("on", *_PROCESS, *_WHAT, "at_ns", "lasted_ns", "value"),
        resets=sum(part.resets for part in parts),
        more_notes=tuple(notes),
    )


def _counters(readings: pl.DataFrame) -> pl.DataFrame:
    """Each series of each process."""
    value = pl.col("value")
    ends = (value.first().alias("first"), value.last().alias("last"))
    key = ["on", *_PROCESS, "process", *_WHAT]
    found = readings.group_by(key, maintain_order=True).agg(*_statistics(), *ends)
    order = ["counter", "series", "rank", "path", "pid"]
    return found.sort(order).select(*key, "n", "first", "min", "mean", "median", "max", "last")


def _series(readings: pl.DataFrame) -> pl.DataFrame:
    """Each series of all processes."""
    highest = pl.col("on").get(pl.col("value").arg_max()).alias("max_on")
    found = readings.group_by(_WHAT, maintain_order=True).agg(*_statistics(), highest)
    return found.sort("counter", "series")


def _statistics() -> tuple[pl.Expr, ...]:
    """The mean over time: each value counts as long as it held; that of the last is not known."""
    value, lasted = pl.col("value"), pl.col("lasted_ns")
    weighted = (value * lasted).sum() / lasted.sum()
    return (
        pl.len().alias("n"),
        value.min().alias("min"),
        pl.when(lasted.sum() > 0).then(weighted).otherwise(value.mean()).alias("mean"),
        value.median().alias("median"),
        value.max().alias("max"),
    )


def _moved(parts: Sequence[Part]) -> pl.DataFrame:
    """All readings, on one clock where all files know the absolute time of theirs."""
    starts = [part.started_ns for part in parts]
    known = [start for start in starts if start is not None]
    one_clock = len(known) == len(parts) and max(known) - min(known) <= LAST_NS
    shifts = [start - min(known) if start is not None and one_clock else 0 for start in starts]
    return pl.concat(
        part.readings.select(pl.lit(part.path).alias("path"), pl.all()).with_columns(
            pl.col("at_ns") + shift
        )
        for part, shift in zip(parts, shifts, strict=True)
    )


def _named(readings: pl.DataFrame) -> pl.DataFrame:
    """The readings with what their process is called: its rank or file, its name where need be."""
    key = ["rank", "path"]
    files = readings.select(key).unique(maintain_order=True)
    found = readings.select(*_PROCESS, "process").unique(maintain_order=True)
    found = found.join(files.with_columns(places(files)), on=key, nulls_equal=True)
    alone = files.height == 1 and files["rank"][0] is None
    own = pl.coalesce("process", pl.format("process {}", "pid"))
    both = own if alone else pl.concat_str("on", own, separator=" ")
    needed = (pl.len().over(key) > 1) | alone
    told = found.select(*_PROCESS, on=pl.when(needed).then(both).otherwise("on"))
    return readings.join(told, on=_PROCESS, how="left", maintain_order="left", nulls_equal=True)
