"""Steps from the timers that DeepSpeed prints with ``wall_clock_breakdown``."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common import printed
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.display import headings, rank_column, sentences, table_of_known
from traceanalyzer.analyzers.steps.options import Options
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.drawings import Chart
from traceanalyzer.errors import MissingData
from traceanalyzer.result import Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

_TIMERS, _THROUGHPUT = "timers", "throughput"

#: Column by DeepSpeed's name of a timer, before and since 0.10.1.
_COLUMNS = {
    "forward": "forward_ns",
    "fwd": "forward_ns",
    "backward": "backward_ns",
    "bwd": "backward_ns",
    "backward_inner": "backward_compute_ns",
    "bwd_inner": "backward_compute_ns",
    "backward_allreduce": "gradient_reduction_ns",
    "bwd_allreduce": "gradient_reduction_ns",
    "step": "optimizer_ns",
}
#: The parts of a step, and their labels.
_PARTS = {
    "forward_ns": "forward",
    "backward_compute_ns": "backward compute",
    "gradient_reduction_ns": "gradient reduction",
    "optimizer_ns": "optimizer step",
}
_NUMBERS = {
    "global_step": pl.Int64,
    "micro_step": pl.Int64,
    "samples_per_s": pl.Float64,
    "mean_samples_per_s": pl.Float64,
}
_PRINT_TABLE = headings(
    "number, duration_ns: step, forward_ns: forward, backward_ns: backward, "
    "backward_compute_ns: backward compute, gradient_reduction_ns: gradient reduction, "
    "optimizer_ns: optimizer step, line"
)
_TIMER_TABLE = headings(
    "timer, n: prints, median_ns: median, mean_ns: mean, min_ns: min, max_ns: max, "
    "total_frac: of step"
)
_SPEED_TABLE = headings(
    "global_step: step, samples_per_s: samples/s, mean_samples_per_s: mean samples/s, line"
)
_TIMER_NOTE = (
    "A print has the mean of the steps since the previous one; timers of micro steps have the last "
    "micro step. Gradient reduction (bwd_allreduce) is the exposed part with overlap_comm, "
    "otherwise all of it."
)
#: A print that takes this many times as long as the median is warm-up if it is the first.
_WARM_UP = 2


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class PrintedSteps(Steps):
    """Step times of printed timers: means of the steps since the previous print.

    As :class:`~.result.Steps`, whose tables are empty: single steps are not known.

    Attributes:
        prints: one row per print of whole steps: rank, path, number, duration_ns (forward +
            backward + step), forward_ns, backward_ns, backward_compute_ns (bwd_inner),
            gradient_reduction_ns (bwd_allreduce: the exposed part with overlap_comm, otherwise all
            of it), optimizer_ns, warm_up, printed_ns, line.
        timers: one row per timer and rank, warm-up not counted: rank, path, timer (as printed), n,
            median_ns, mean_ns, min_ns, max_ns, total_frac (mean over the mean step).
        throughput: rank, path, global_step, micro_step, samples_per_s, mean_samples_per_s,
            printed_ns, line.
        unused: number of prints whose times are 0 or whose line is incomplete.
    """

    prints: pl.DataFrame
    timers: pl.DataFrame
    throughput: pl.DataFrame
    unused: int

    def view(self) -> View:
        """Build the view: timers, prints, throughput."""
        return View(
            title="How long do steps take?",
            verdict=_verdict(self),
            notes=_notes(self),
            tables=_tables(self),
            scalars=_sums(self),
            charts=partial(_charts, self),
        )


def combine(rows: pl.DataFrame, options: Options) -> PrintedSteps:
    """Return the step times of all prints.

    Raises:
        MissingData: steps by name or kernel were requested.
    """
    if options.step_name is not None or options.step_every is not None:
        raise MissingData(
            f"{rows['path'][0]}: printed timers have no step names and no kernels; run without "
            "--step-name and --step-every"
        )
    timers = printed.wide(rows, _TIMERS, {"time_ns": pl.Int64}).drop_nulls("time_ns")
    prints, unused = _prints(timers)
    speed = printed.wide(rows, _THROUGHPUT, _NUMBERS).drop_nulls("samples_per_s")
    return PrintedSteps(
        **printed.blank(Steps),
        prints=prints,
        timers=_timers(timers, prints),
        throughput=speed.select("rank", "path", *_NUMBERS, "printed_ns", "line"),
        unused=unused,
    )


def _prints(timers: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the prints of whole steps, and the number of those without times."""
    names = dict.fromkeys(_COLUMNS.values())
    known = timers.with_columns(column=pl.col("name").replace_strict(_COLUMNS, default=None))
    keys = ["rank", "path", "block", "row"]
    columns = [
        pl.col("time_ns").filter(pl.col("column") == name).first().alias(name) for name in names
    ]
    lines = known.drop_nulls("column").group_by(keys, maintain_order=True)
    rows = lines.agg(*columns, pl.col("printed_ns", "line").first())
    parts = ["forward_ns", "backward_ns", "optimizer_ns"]
    whole = rows.with_columns(duration_ns=pl.sum_horizontal(parts, ignore_nulls=False))
    used = whole.filter(pl.col("duration_ns") > 0).with_columns(
        number=pl.int_range(pl.len()).over("rank", "path", "block")
    )
    median = pl.col("duration_ns").median().over("rank", "path", "block")
    first = (pl.col("number") == 0) & (pl.len().over("rank", "path", "block") > 1)
    return used.select(
        "rank", "path", "number", "duration_ns", *names,
        warm_up=first & (pl.col("duration_ns") > _WARM_UP * median),
        printed_ns="printed_ns", line="line",
    ), rows.height - used.height  # fmt: skip


def _timers(timers: pl.DataFrame, prints: pl.DataFrame) -> pl.DataFrame:
    """Sum up each timer, without the lines of warm-up and of prints without times."""
    time = pl.col("time_ns")
    until = prints.filter("warm_up").select("rank", "path", last="line")
    late = timers.join(until, on=["rank", "path"], how="left", nulls_equal=True)
    counted = late.filter(pl.col("last").is_null() | (pl.col("line") > pl.col("last")), time > 0)
    steps = prints.filter(~pl.col("warm_up"))
    mean = steps.group_by("rank", "path").agg(step_ns=pl.col("duration_ns").mean())
    sums = counted.group_by("rank", "path", timer="name", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64),
        median_ns=time.median().round().cast(pl.Int64),
        mean_ns=time.mean().round().cast(pl.Int64),
        min_ns=time.min(),
        max_ns=time.max(),
    )
    joined = sums.join(
        mean, on=["rank", "path"], how="left", nulls_equal=True, maintain_order="left"
    )
    return joined.with_columns(total_frac=ratio("mean_ns", "step_ns")).drop("step_ns")


# --- words -------------------------------------------------------------------------------------


def _counted(result: PrintedSteps) -> pl.DataFrame:
    return result.prints.filter(~pl.col("warm_up"))


def _sums(result: PrintedSteps) -> dict[str, Any]:
    times = _counted(result)["duration_ns"]
    return {
        "print_count": times.len(),
        "warm_up_count": int(result.prints["warm_up"].sum()),
        "median_ns": times.median(),
        "min_ns": times.min(),
        "max_ns": times.max(),
        "samples_per_s": result.throughput["samples_per_s"].median(),
    }


def _verdict(result: PrintedSteps) -> str:
    counted, sums = _counted(result), _sums(result)
    speed = sums["samples_per_s"]
    rate = f"Throughput: {speed:,.4g} samples/s (median)." if speed is not None else ""
    if counted.is_empty():
        return sentences("No timers of whole steps were printed.", rate)
    whole = int(counted["duration_ns"].sum())
    shares = [(int(counted[name].sum()), label) for name, label in _PARTS.items()]
    parts = ", ".join(f"{label} {format_frac(ns / whole)}" for ns, label in shares if ns)
    prints = format_count(counted.height, "print")
    return sentences(
        f"A step takes {format_ns(sums['median_ns'])} (median of {prints}): {parts}.", rate
    )


def _notes(result: PrintedSteps) -> tuple[str, ...]:
    notes = [printed.NOTE, _TIMER_NOTE]
    warm = int(result.prints["warm_up"].sum())
    if warm:
        notes.append(f"Not counted: {format_count(warm, 'print')} of warm-up.")
    if result.unused:
        notes.append(
            f"Not counted: {format_count(result.unused, 'print')} without the times of all parts "
            "(the flops profiler resets them)."
        )
    return tuple(notes)


def _tables(result: PrintedSteps) -> tuple[Table, ...]:
    tables = []
    for name, title, frame, headed, detail in (
        ("timers", "Timers", result.timers, _TIMER_TABLE, False),
        ("prints", "Prints of whole steps", result.prints, _PRINT_TABLE, False),
        ("throughput", "Throughput", result.throughput, _SPEED_TABLE, True),
    ):
        several = frame.select("rank", "path").n_unique() > 1
        columns = {**(rank_column(frame) if several else {}), **headed}
        if frame.height:
            tables.append(table_of_known(name, title, frame, columns, detail=detail))
    return tuple(tables)


def _charts(result: PrintedSteps) -> tuple[Chart, ...]:
    """Build stacked bars of the parts of the prints."""
    counted = _counted(result)
    if counted.is_empty():
        return ()
    parts = [
        counted.select("number", time_ns=name, part=pl.lit(label)) for name, label in _PARTS.items()
    ]
    return (
        Chart(
            name="prints", title="Parts of a step by print", mark="bar",
            frame=pl.concat(parts).drop_nulls("time_ns"), x="number", y="time_ns",
            x_label="print", y_label="time", color="part", stacked=True,
        ),
    )  # fmt: skip
