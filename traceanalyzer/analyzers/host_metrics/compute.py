"""Counters of each file, combined over all files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common import display, names
from traceanalyzer.analyzers.host_metrics import Options
from traceanalyzer.analyzers.host_metrics.result import HostMetrics
from traceanalyzer.errors import MissingData
from traceanalyzer.run.loop import run
from traceanalyzer.schema import LAST_NS
from traceanalyzer.trace import Inputs, Trace, record_hint
from traceanalyzer.units import NS_PER_S

#: Key of a series within a file.
SERIES = ["rank", "pid", "counter", "series"]

_PROCESS = ["rank", "path", "pid"]
_WHAT = ["counter", "series", "unit", "rate"]

#: Counters that are cumulative since the start of the host.
_CUMULATIVE = r"^(?:disk|network)/"

#: Times from here on (the year 2001) count from the Unix epoch: clocks that start with a machine
#: are always earlier.
_UNIX = 10**18

#: Units of series by the end of the name.
_UNITS = {"_bytes": "bytes", "_percent": "%", "_ms": "ms"}

#: How to record counters of GPUs beside kernels.
_RECORD = "nsys profile --gpu-metrics-devices=all records those of the GPUs"
#: The number of a GPU in the name of a series.
_OF_GPU = r"^GPU (\d{1,4})\b"
_NO_KERNELS = pl.DataFrame(
    schema={"kernel": pl.String, "counter": pl.String, "dur_ns": pl.Int64, "value_ns": pl.Float64}
)

#: Number of counters named if none matches.
_NAMED = 10


def needs(options: Options) -> Needs:
    """Counters, the names of processes, and kernels if they are asked for."""
    return Needs({"counter", "lane", *(("kernel",) if options.by else ())})


@dataclass(frozen=True)
class Part:
    """One file's counters.

    Attributes:
        path: the file.
        started_ns: absolute time of the file's first event, or None.
        readings: rank, pid, process (its name, or null), counter, series, unit, rate (whether it
            is one), at_ns (from the file's first event), lasted_ns (until the next reading, null
            for the last one), value; one row per reading (for rates without the first), by series
            and time.
        resets: number of times that a cumulative counter went down.
        kernels: sums of each counter during each kernel: kernel, counter, dur_ns, value_ns.
    """

    path: str
    started_ns: int | None
    readings: pl.DataFrame
    resets: int
    kernels: pl.DataFrame


def measure(trace: Trace, options: Options) -> Part:
    """Return the counters with a ``COUNTER/SERIES`` that matches a pattern, or all of them.

    The disk and network counters of Composer are cumulative: they are converted to rates between
    two readings. A counter that goes down was reset; that interval has no rate.

    Raises:
        MissingData: no counters were recorded, or none matches.
        OptionError: a pattern is not a regular expression.
    """
    path = trace.meta.path
    if trace.counters.is_empty():
        hint = _RECORD if options.by else record_hint(trace.meta, "counter")
        raise MissingData(f"{path}: no counters were recorded; {hint}")
    chosen = _chosen(trace, options.counters)
    if chosen.is_empty():
        available = trace.counters["name"].unique().cast(pl.String).sort().head(_NAMED)
        raise MissingData(
            f"{path}: no counter matches {' or '.join(map(repr, options.counters))}; available: "
            f"{', '.join(available)}"
        )
    earliest = chosen["ts"].min()
    start = trace.meta.start_ns if trace.meta.start_ns is not None else int(str(earliest))
    ordered = chosen.sort(*SERIES, "ts", maintain_order=True)
    rising = pl.col("counter").str.contains(_CUMULATIVE)
    rates, resets = _rates(ordered.filter(rising))
    lasted = (pl.col("ts").shift(-1) - pl.col("ts")).over(SERIES)
    plain = ordered.filter(~rising).with_columns(lasted_ns=lasted, rate=pl.lit(value=False))
    readings = pl.concat([plain, rates], how="diagonal").sort(*SERIES, "ts", maintain_order=True)
    named = readings.join(_processes(trace), on=["rank", "pid"], how="left", nulls_equal=True)
    return Part(
        path,
        _absolute(start, trace.meta.epoch_ns),
        named.sort(*SERIES, "ts", maintain_order=True).select(
            "rank", "pid", "process", "counter", "series", "rate", "lasted_ns", "value",
            unit=_unit(),
            at_ns=pl.col("ts") - start,
        ),
        resets,
        _by_kernel(trace, plain) if options.by else _NO_KERNELS,
    )  # fmt: skip


def combine(parts: Sequence[Part], options: Options) -> HostMetrics:
    """Combine the counters of all files.

    Raises:
        MissingData: counters by kernel are asked for, and no GPU has both.
    """
    kernels = _kernels(parts)
    if options.by and kernels.is_empty():
        raise MissingData(
            f"{parts[0].path}: no counter of a GPU was recorded while a kernel ran; {_RECORD}"
        )
    readings = _named(_moved(_without_repeats(parts)))
    at = readings["at_ns"]
    first, last = at.min(), at.max()
    return HostMetrics(
        span_ns=last - first if isinstance(first, int) and isinstance(last, int) else 0,
        counters=_counters(readings),
        series=_series(readings),
        readings=readings.select("on", *_PROCESS, *_WHAT, "at_ns", "lasted_ns", "value"),
        resets=sum(part.resets for part in parts),
        kernels=kernels,
    )


HOST_METRICS = Analyzer("host_metrics", Options, needs, measure, combine)


# --- one file ------------------------------------------------------------------------------


def _absolute(time: int, epoch: int | None) -> int | None:
    """Return a time since the Unix epoch, or None if the clock has another origin."""
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
    pairs = counters.select("counter", "series").unique()
    texts = [f"{counter}/{series}" for counter, series in pairs.iter_rows()]
    hits = names.matches(texts, patterns)
    return counters.join(
        pairs.filter(pl.Series(hits, dtype=pl.Boolean)), on=pairs.columns, how="semi"
    )


def _rates(counters: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return increases per second between readings, and the number of resets."""
    before = pl.col("ts", "value").shift(1).over(SERIES).name.suffix("_before")
    steps = counters.with_columns(before).with_columns(
        lasted_ns=pl.col("ts") - pl.col("ts_before"),
        increase=pl.col("value") - pl.col("value_before"),
    )
    rates = steps.filter(pl.col("lasted_ns") > 0)
    increasing = rates.filter(pl.col("increase") >= 0).select(
        "ts", *SERIES, "lasted_ns",
        value=pl.col("increase") * NS_PER_S / pl.col("lasted_ns"),
        rate=pl.lit(value=True),
    )  # fmt: skip
    return increasing, rates.height - increasing.height


def _by_kernel(trace: Trace, readings: pl.DataFrame) -> pl.DataFrame:
    """Sum each counter of a GPU over the time of each kernel on that GPU.

    A reading lasts until the next one, so the sum over a kernel is the difference of the
    integral of the counter at its end and at its start.
    """
    kernels = trace.events.filter(pl.col("kind") == "kernel").drop_nulls("dur").select(
        "rank", "device", start="ts", end=pl.col("ts") + pl.col("dur"),
        kernel=pl.col("name").cast(pl.String),
    )  # fmt: skip
    of_gpu = readings.with_columns(device=pl.col("series").str.extract(_OF_GPU).cast(pl.Int32))
    sums = [_NO_KERNELS]
    for rows in of_gpu.drop_nulls(["device", "lasted_ns"]).partition_by(SERIES):
        one = rows.row(0, named=True)
        mine = kernels.filter(pl.col("device") == one["device"])
        if one["rank"] is not None:
            mine = mine.filter(pl.col("rank") == one["rank"])
        lasted = rows["lasted_ns"].to_numpy()
        times = np.append(0, np.cumsum(lasted))
        integral = np.append(0, np.cumsum(lasted * rows["value"].to_numpy()))
        start, end = (
            np.clip((mine[edge] - one["ts"]).to_numpy(), 0, times[-1]) for edge in ("start", "end")
        )
        value = np.interp(end, times, integral) - np.interp(start, times, integral)
        timed = mine.select("kernel", counter=pl.lit(one["counter"])).with_columns(
            dur_ns=pl.Series(end - start), value_ns=pl.Series(value)
        )
        sums.append(timed.group_by("kernel", "counter", maintain_order=True).sum())
    return pl.concat(sums)


def _unit() -> pl.Expr:
    """Return the unit by the end of the series' name; empty if unknown."""
    series, rate = pl.col("series"), pl.when("rate").then(pl.lit("/s")).otherwise(pl.lit(""))
    known = [pl.when(series.str.ends_with(e)).then(pl.lit(unit)) for e, unit in _UNITS.items()]
    count = pl.when("rate").then(pl.lit("1")).otherwise(pl.lit(""))
    return pl.concat_str(pl.coalesce(*known, count), rate)


def _processes(trace: Trace) -> pl.DataFrame:
    """Return the names of processes: rank, pid, process."""
    named = trace.lanes.filter(pl.col("tid").is_null(), pl.col("label").is_not_null())
    return named.select("rank", "pid", process="label").unique(["rank", "pid"], keep="first")


# --- all files -----------------------------------------------------------------------------


def _without_repeats(parts: Sequence[Part]) -> list[Part]:
    """Return the parts without the readings of no rank that several ranks of a file share."""
    kept: list[Part] = []
    paths: set[str] = set()
    for part in parts:
        of_rank = part.readings.drop_nulls("rank") if part.path in paths else part.readings
        kept.append(replace(part, readings=of_rank))
        paths.add(part.path)
    return kept


def _kernels(parts: Sequence[Part]) -> pl.DataFrame:
    """Return the mean of each counter during each kernel, most time first."""
    sums = pl.concat(part.kernels for part in parts).group_by("kernel", "counter").sum()
    timed = sums.filter(pl.col("dur_ns") > 0).with_columns(
        mean=pl.col("value_ns") / pl.col("dur_ns")
    )
    order = timed.select("kernel", "counter", "dur_ns", "mean")
    return order.sort("dur_ns", "kernel", "counter", descending=[True, False, False])


def _counters(readings: pl.DataFrame) -> pl.DataFrame:
    """Summarize each series of each process."""
    value = pl.col("value")
    ends = (value.first().alias("first"), value.last().alias("last"))
    key = ["on", *_PROCESS, "process", *_WHAT]
    sums = readings.group_by(key, maintain_order=True).agg(*_statistics(), *ends)
    order = ["counter", "series", "rank", "path", "pid"]
    return sums.sort(order).select(*key, "n", "first", "min", "mean", "median", "max", "last")


def _series(readings: pl.DataFrame) -> pl.DataFrame:
    """Summarize each series over all processes."""
    highest = pl.col("on").get(pl.col("value").arg_max()).alias("max_on")
    sums = readings.group_by(_WHAT, maintain_order=True).agg(*_statistics(), highest)
    return sums.sort("counter", "series")


def _statistics() -> tuple[pl.Expr, ...]:
    """Return statistics; the mean is weighted by the time until the next reading."""
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
    """Return all readings, on one clock if all files have absolute times."""
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
    """Add a label for the process of each reading: rank or file, with its name if needed."""
    key = ["rank", "path"]
    files = readings.select(key).unique(maintain_order=True)
    processes = readings.select(*_PROCESS, "process").unique(maintain_order=True)
    processes = processes.join(files.with_columns(display.places(files)), on=key, nulls_equal=True)
    alone = files.height == 1 and files["rank"][0] is None
    name = pl.coalesce("process", pl.format("process {}", "pid"))
    both = name if alone else pl.concat_str("on", name, separator=" ")
    needed = (pl.len().over(key) > 1) | alone
    labels = processes.select(*_PROCESS, on=pl.when(needed).then(both).otherwise("on"))
    return readings.join(labels, on=_PROCESS, how="left", maintain_order="left", nulls_equal=True)


def host_metrics(
    inputs: Inputs,
    *,
    counters: str | Sequence[str] = (),
    by: Literal["kernel"] | None = None,
    **reading: Unpack[Reading],
) -> HostMetrics:
    """Return host counters over time: CPU, memory, disk, network and others.

    One file is in memory at a time.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        counters: regular expressions; only counters with a matching ``COUNTER/SERIES``. Default:
            all.
        by: ``"kernel"`` also gives the mean of each counter of a GPU while each kernel ran.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no counters were recorded, or none matches.
        OptionError: a pattern is not a regular expression.
    """
    return run(HOST_METRICS, inputs, Options(counters, by), **reading)
