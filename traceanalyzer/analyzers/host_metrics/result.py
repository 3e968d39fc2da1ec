"""Result of the host metrics analysis: data, verdict, notes, tables and charts."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.display import sentences
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns, format_times

#: CPUs this busy (in percent) have no capacity for more DataLoader workers.
BUSY_PERCENT = 95


#: GPU metrics by their names in nsys and PyTorch; "both" is reading and writing.
_GPU_METRICS = {
    "sm": r"(?i)^SMs? Active",
    "tensor": r"(?i)^Tensor Active",
    "read": r"(?i)^(?:DRAM|HBM) Read",
    "write": r"(?i)^(?:DRAM|HBM) Write",
    "both": r"(?i)^(?:DRAM|HBM) BW",
}


def gpu_metrics_text(row: dict[str, Any]) -> str:
    """Format a row of :meth:`HostMetrics.gpus`: ``SM active 18 %, tensor active 0 %``."""
    labels = {"sm_frac": "SM active", "tensor_frac": "tensor active", "dram_frac": "DRAM"}
    known = {name: label for name, label in labels.items() if row[name] is not None}
    return ", ".join(f"{label} {format_frac(row[name])}" for name, label in known.items())


@dataclass(frozen=True, eq=False, repr=False)
class HostMetrics(Result):
    """Host counters over time.

    Attributes:
        span_ns: from the earliest reading to the last.
        counters: one row per series of a process: on (the rank, process or file), rank, path, pid,
            process, counter, series, unit (``bytes``, ``%``, ``ms``; with ``/s`` a rate; empty if
            unknown), rate, n (readings, or intervals between two), first, min, mean (weighted by
            time), median, max, last.
        series: the same over all processes: counter, series, unit, rate, n, min, mean, median, max,
            max_on (label of the maximum).
        readings: on, rank, path, pid, counter, series, unit, rate, at_ns (from the file's first
            event), lasted_ns, value.
        resets: number of times that a cumulative counter went down.
        kernels: with ``by="kernel"``, one row per kernel and counter of its GPU: kernel, counter,
            dur_ns (time of the kernel with readings; kernels that overlap all count in full), mean
            (weighted by time). A reading counts until the next one, so kernels shorter than the
            sampling interval share readings with their neighbours.
    """

    question = "How busy was the host?"
    scalar_names = "span_ns, resets"

    span_ns: int
    counters: pl.DataFrame
    series: pl.DataFrame
    readings: pl.DataFrame
    resets: int
    kernels: pl.DataFrame

    def view(self) -> View:
        """Build the view: series in base units; sizes, rates and others formatted; line charts."""
        return self.view_from(_verdict, _notes, _tables, _charts)

    def busy_processors(self) -> tuple[float, float] | None:
        """Return the share of time with CPUs this busy, and their mean load in percent."""
        readings = self._readings("cpu", "cpu_percent").drop_nulls("lasted_ns")
        total = int(readings["lasted_ns"].sum())
        if not total:
            return None
        busy = int(readings.filter(pl.col("value") >= BUSY_PERCENT)["lasted_ns"].sum())
        return busy / total, self.series.filter(pl.col("series") == "cpu_percent")["mean"][0]

    def fullest_memory(self) -> dict[str, Any] | None:
        """Return the reading with the most memory used: ``value`` of ``total`` bytes, ``frac``."""
        series = ("used_bytes", "available_bytes")
        used, available = (self._readings("memory/virtual", name) for name in series)
        keys = ["on", "path", "at_ns"]
        both = used.join(available.select(*keys, free="value"), on=keys)
        both = both.with_columns(total=pl.col("value") + pl.col("free")).filter(pl.col("total") > 0)
        full = both.with_columns(frac=pl.col("value") / pl.col("total")).sort(
            "frac", descending=True
        )
        return full.row(0, named=True) if full.height else None

    def most_swap(self) -> dict[str, Any] | None:
        """Return the row of ``counters`` with most swap in use, or None."""
        used = self.counters.filter(
            (pl.col("counter") == "memory/swap")
            & (pl.col("series") == "used_bytes")
            & (pl.col("max") > 0)
        )
        order = used.sort("max", "on", descending=[True, False])
        return order.row(0, named=True) if order.height else None

    def busiest_disk(self) -> dict[str, Any] | None:
        """Return the row of ``series`` of the busiest disk, in ms per second, or None."""
        disks = self.series.filter(
            pl.col("counter").str.starts_with("disk/"), pl.col("series") == "busy_time_ms"
        ).sort("max", "counter", descending=[True, False], nulls_last=True)
        return disks.row(0, named=True) if disks.height and disks["max"][0] is not None else None

    def gpus(self) -> pl.DataFrame:
        """Return means of GPU metrics over the readings with active SMs; empty without any.

        Returns:
            gpu, sm_frac, tensor_frac, dram_frac (the largest one of read, write and both), null if
            not recorded.
        """
        names = {part: pl.col("counter").str.contains(name) for part, name in _GPU_METRICS.items()}
        rows = self.readings.select(
            "on", "series", "at_ns", pl.col("value") / 100,
            metric=pl.coalesce(pl.when(test).then(pl.lit(part)) for part, test in names.items()),
        ).drop_nulls("metric")  # fmt: skip
        active = rows.filter(pl.col("metric") == "sm", pl.col("value") > 0)
        working = rows.join(active, on=["on", "series", "at_ns"], how="semi", nulls_equal=True)
        mean = {
            part: pl.col("value").filter(pl.col("metric") == part).mean() for part in _GPU_METRICS
        }
        sums = working.group_by("on", gpu="series").agg(**mean).sort("on", "gpu")
        return sums.select(
            "gpu",
            sm_frac="sm",
            tensor_frac="tensor",
            dram_frac=pl.max_horizontal("read", "write", "both"),
        )

    def _readings(self, counter: str, series: str) -> pl.DataFrame:
        """Return the readings of one series."""
        return self.readings.filter(pl.col("counter") == counter, pl.col("series") == series)


# --- verdict and notes ---------------------------------------------------------------------

#: Least share of time with busy CPUs to report.
_BUSY_FRAC = 0.05

#: Memory this full has no room for the file cache, and soon none for the program.
_FULL_FRAC = 0.9

#: A disk that is busy for this share of the time is at its limit.
_DISK_BUSY_MS = 800


def _verdict(result: HostMetrics) -> str:
    """Describe problems of CPUs, memory, swap, the allocator and disks, and the highest rates."""
    tests = (_processors, _memory, _swap, _retries, _disks)
    alarming = sentences(*(test(result) for test in tests))
    return sentences(alarming or _nothing(result), *_busiest(result))


def _notes(result: HostMetrics) -> Iterator[str]:
    """Describe how means are computed, and what has no rate."""
    if result.readings.height:
        yield "Means are weighted by time: each reading counts until the next."
    if result.counters["rate"].any():
        yield "Disk and network counters are cumulative: values are increases per second."
    if result.resets:
        times = format_times(result.resets)
        yield f"A cumulative counter was reset {times}: there is no rate at that point."
    if result.kernels.height:
        yield (
            "Counters of kernels: means of the readings while they ran; kernels shorter than the "
            "sampling interval share readings with their neighbours."
        )


def _processors(result: HostMetrics) -> str:
    busy = result.busy_processors()
    if busy is None or busy[0] < _BUSY_FRAC:
        return ""
    share, mean = busy
    return (
        f"Host CPUs were at {BUSY_PERCENT} % or more for {format_frac(share)} of the time "
        f"({mean:.0f} % on average): data loading and kernel launches compete for them."
    )


def _memory(result: HostMetrics) -> str:
    worst = result.fullest_memory()
    if worst is None or worst["frac"] < _FULL_FRAC:
        return ""
    return (
        f"Memory was up to {format_frac(worst['frac'])} full: {format_bytes(worst['value'])} used "
        f"of {format_bytes(worst['total'])} (used and available)."
    )


def _swap(result: HostMetrics) -> str:
    worst = result.most_swap()
    if worst is None:
        return ""
    grew = worst["last"] - worst["first"]
    more = f", {format_bytes(grew)} more at the end than at the start" if grew > 0 else ""
    return f"Swap is in use: up to {format_bytes(worst['max'])}{more}."


def _retries(result: HostMetrics) -> str:
    rows = result.counters.filter(pl.col("series") == "alloc_retries")
    more = (rows["last"] - rows["first"]).sum()
    if not more:
        return ""
    return (
        f"PyTorch's CUDA allocator freed its cache and retried {more:.0f} "
        f"{'time' if more == 1 else 'times'}: device memory is nearly full."
    )


def _disks(result: HostMetrics) -> str:
    disk = result.busiest_disk()
    if disk is None or disk["max"] < _DISK_BUSY_MS:
        return ""
    return (
        f"{disk['counter'].removeprefix('disk/')} was busy for up to "
        f"{format_frac(disk['max'] / 1000)} of the time, {format_frac(disk['mean'] / 1000)} on "
        "average."
    )


def _busiest(result: HostMetrics) -> Iterator[str]:
    """Describe the disk and the network with the highest rate."""
    for family in ("disk", "network"):
        rates = result.series.filter(
            pl.col("counter").str.starts_with(f"{family}/"),
            pl.col("unit") == "bytes/s",
            pl.col("mean") > 0,
        ).sort("mean", "counter", "series", descending=[True, False, False])
        if rates.height:
            top = rates.row(0, named=True)
            yield (
                f"{top['counter'].partition('/')[2]} had the highest {family} rate: "
                f"{top['series'].removesuffix('_bytes')} {format_bytes(top['mean'])}/s on average, "
                f"up to {format_bytes(top['max'])}/s."
            )


def _nothing(result: HostMetrics) -> str:
    return (
        f"{format_count(result.series.height, 'counter series', '')} over "
        f"{format_ns(result.span_ns)}; no known problem."
    )


# --- tables --------------------------------------------------------------------------------

_STATISTICS = ("min", "mean", "median", "max")


def _tables(result: HostMetrics) -> tuple[Table, ...]:
    """Build the tables: series by process in base units; sizes, rates and others in total."""
    unit = pl.col("unit")
    sizes = _table(result, "sizes", "Memory and other sizes", unit == "bytes", "_bytes")
    rates = _table(result, "rates", "Bytes per second", unit == "bytes/s", "_bytes")
    other = _table(result, "others", "Other counters", ~unit.is_in(("bytes", "bytes/s")), "")
    tables = (_by_kernel(result), other, sizes, rates)
    return (_counters(result), *(t for t in tables if t.frame.height))


def _by_kernel(result: HostMetrics) -> Table:
    """Build the table of kernels, with a column for each counter."""
    names = result.kernels["counter"].unique(maintain_order=True).to_list()
    time = pl.col("dur_ns").max().alias("dur_ns")
    means = {
        f"mean {name}": pl.col("mean").filter(pl.col("counter") == name).first() for name in names
    }
    frame = result.kernels.group_by("kernel", maintain_order=True).agg(time, **means)
    columns = {"kernel": "kernel", "dur_ns": "time", **dict(zip(means, names, strict=True))}
    return Table("kernels", "Counters while kernels ran", frame, columns)


def _counters(result: HostMetrics) -> Table:
    names = ("on", "counter", "series", "unit", "n", "first", *_STATISTICS, "last")
    title = "All series by process, in base units"
    return Table("counters", title, result.counters, {name: name for name in names}, detail=True)


def _table(result: HostMetrics, name: str, title: str, chosen: pl.Expr, suffix: str) -> Table:
    """Build the table of a unit; the suffix of columns has the unit."""
    several = result.counters["on"].n_unique() > 1
    statistics = {stat: f"{stat}{suffix}" for stat in _STATISTICS}
    frame = result.series.filter(chosen).select(
        "counter", "series", "unit", "n", *(pl.col(s).alias(c) for s, c in statistics.items()),
        "max_on",
    )  # fmt: skip
    columns = {
        "counter": "counter",
        "series": "series",
        **({} if suffix else {"unit": "unit"}),
        "n": "n",
        **{column: stat for stat, column in statistics.items()},
        **({"max_on": "max on"} if several else {}),
    }
    return Table(name, title, frame, columns)


# --- charts --------------------------------------------------------------------------------

#: Devices of one kind share a chart and scale.
_FAMILY = r"^(disk|network)/"

#: Unit of operation counts, which are less informative than bytes.
_OPERATIONS_UNIT = "1/s"

_LABELS = {
    "bytes": "size",
    "bytes/s": "per second",
    "1/s": "per second",
    "ms/s": "ms per second",
    "%": "percent",
}


def _charts(result: HostMetrics) -> Iterator[Chart]:
    """Build one chart per counter family, with one panel per series and one line per rank.

    Constant series and rates of operations are left out, unless there is nothing else.
    """
    changing = result.series.filter(pl.col("max") > pl.col("min"))
    informative = changing.filter(pl.col("unit") != _OPERATIONS_UNIT)
    chosen = next((s for s in (informative, changing, result.series) if s.height), result.series)
    family = pl.coalesce(pl.col("counter").str.extract(_FAMILY), "counter")
    groups = chosen.select("counter", "series", "unit", family=family)
    for family_name, unit in (
        groups.select("family", "unit").unique(maintain_order=True).iter_rows()
    ):
        members = groups.filter(pl.col("family") == family_name, pl.col("unit") == unit)
        yield _chart(result, family_name, unit, members)


def _chart(result: HostMetrics, family: str, unit: str, members: pl.DataFrame) -> Chart:
    several = result.counters["on"].n_unique() > 1
    within = pl.when(pl.col("counter") == family).then("series")
    panel = within.otherwise(
        pl.format("{} {}", pl.col("counter").str.replace(_FAMILY, ""), "series")
    )
    value = "value_bytes" if unit.startswith("bytes") else "value"
    keys = ["counter", "series"]
    rows = result.readings.join(members.select(keys), on=keys, how="semi").sort(
        *keys, "on", "at_ns"
    )
    frame = rows.select("at_ns", "on", panel.alias("counter"), pl.col("value").alias(value))
    label = _LABELS.get(unit, unit or "value")
    return Chart(
        f"{family} {unit}".strip(), f"{family}, {label}" if unit.endswith("/s") else family,
        "line", frame, x="at_ns", y=value, x_label="time from the start", y_label=label,
        color="on" if several else None, panel="counter",
    )  # fmt: skip
