"""From one trace: its counters, those that only count up as rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from traceanalyzer.analyzers.names import matcher
from traceanalyzer.analyzers.needs import Needs
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.units import NS_PER_S

NEEDS = Needs(kinds=frozenset(("counter", "lane")))

#: What tells series apart within a file.
SERIES = ["rank", "pid", "counter", "series"]

#: Counters that only count up, from the start of the host.
_CUMULATIVE = r"^(?:disk|network)/"

#: Times from here on (the year 2001) count from the Unix epoch: no clock that starts with a machine
#: goes so far.
_UNIX = 10**18

#: Counters named where none matches.
_NAMED = 10


@dataclass(frozen=True)
class Part:
    """One file's counters.

    Attributes:
        path: the file.
        started_ns: absolute time of the file's first event, or None.
        readings: rank, pid, process (its name, or null), counter, series, unit, rate (whether it
            is one), at_ns (from the file's first event), lasted_ns (how long the value held, null
            for the last of all), value; a row a reading, of rates a row for each but the first;
            by series and time.
        resets: times that a counter that only counts up went down.
    """

    path: str
    started_ns: int | None
    readings: pl.DataFrame
    resets: int


def extract(trace: Trace, patterns: Sequence[str] = ()) -> Part:
    """The counters whose ``COUNTER/SERIES`` matches a pattern, or all of them.

    The disk and network counters of Composer only count up: each becomes the rate between two
    readings. Where one goes down it was reset; that stretch has no rate.

    Raises:
        MissingData: no counters were recorded, or none that matches.
        OptionError: a pattern is no regular expression.
    """
    path = trace.meta.path
    if trace.counters.is_empty():
        hint = record_hint(trace.meta, "counter")
        raise MissingData(f"{path}: no counters were recorded; {hint}")
    chosen = _chosen(trace, patterns)
    if chosen.is_empty():
        there = trace.counters["name"].unique().cast(pl.String).sort().head(_NAMED)
        raise MissingData(
            f"{path}: no counter matches {' or '.join(map(repr, patterns))}; there are "
            f"{', '.join(there)}"
        )
    earliest = chosen["ts"].min()
    start = trace.meta.start_ns if trace.meta.start_ns is not None else int(str(earliest))
    ordered = chosen.sort(*SERIES, "ts", maintain_order=True)
    rising = pl.col("counter").str.contains(_CUMULATIVE)
    rates, resets = _rates(ordered.filter(rising))
    held = (pl.col("ts").shift(-1) - pl.col("ts")).over(SERIES)
    plain = ordered.filter(~rising).with_columns(lasted_ns=held, rate=pl.lit(value=False))
    readings = pl.concat([plain, rates], how="diagonal").sort(*SERIES, "ts", maintain_order=True)
    told = readings.join(_processes(trace), on=["rank", "pid"], how="left", nulls_equal=True)
    return Part(
        path,
        _absolute(start, trace.meta.epoch_ns),
        told.sort(*SERIES, "ts", maintain_order=True).select(
            "rank", "pid", "process", "counter", "series", "rate", "lasted_ns", "value",
            unit=_unit(),
            at_ns=pl.col("ts") - start,
        ),
        resets,
    )  # fmt: skip


def _absolute(time: int, epoch: int | None) -> int | None:
    """A time since the Unix epoch: clocks that count from there are beyond any other's."""
    if epoch is not None:
        return time + epoch
    return time if time >= _UNIX else None


def _chosen(trace: Trace, patterns: Sequence[str]) -> pl.DataFrame:
    counters = trace.counters.select(
        "ts", "rank", "pid", "value", pl.col("series").cast(pl.String),
        counter=pl.col("name").cast(pl.String),
    )  # fmt: skip
    if not patterns:
        return counters
    test = matcher(patterns)
    pairs = counters.select("counter", "series").unique()
    hits = [test(f"{counter}/{series}") for counter, series in pairs.iter_rows()]
    return counters.join(
        pairs.filter(pl.Series(hits, dtype=pl.Boolean)), on=pairs.columns, how="semi"
    )


def _rates(counters: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Increase a second between readings, and how often a counter went down instead."""
    before = pl.col("ts", "value").shift(1).over(SERIES).name.suffix("_before")
    steps = counters.with_columns(before).with_columns(
        lasted_ns=pl.col("ts") - pl.col("ts_before"),
        increase=pl.col("value") - pl.col("value_before"),
    )
    rates = steps.filter(pl.col("lasted_ns") > 0)
    found = rates.filter(pl.col("increase") >= 0).select(
        "ts", *SERIES, "lasted_ns",
        value=pl.col("increase") * NS_PER_S / pl.col("lasted_ns"),
        rate=pl.lit(value=True),
    )  # fmt: skip
    return found, rates.height - found.height


def _unit() -> pl.Expr:
    """By the series' ending: what its numbers count; empty where that is not told."""
    series, rate = pl.col("series"), pl.when("rate").then(pl.lit("/s")).otherwise(pl.lit(""))
    unit = (
        pl.when(series.str.ends_with("_bytes"))
        .then(pl.lit("bytes"))
        .when(series.str.ends_with("_percent"))
        .then(pl.lit("%"))
        .when(series.str.ends_with("_ms"))
        .then(pl.lit("ms"))
        .when("rate")
        .then(pl.lit("1"))
        .otherwise(pl.lit(""))
    )
    return pl.concat_str(unit, rate)


def _processes(trace: Trace) -> pl.DataFrame:
    """The names of processes: rank, pid, process."""
    named = trace.lanes.filter(pl.col("tid").is_null(), pl.col("label").is_not_null())
    return named.select("rank", "pid", process="label").unique(["rank", "pid"], keep="first")
