"""Step times and throughput in the lines that DeepSpeed logs: ``time (ms) | fwd: ... | ...``."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.common.aggregates import wide
from traceanalyzer.analyzers.common.columns import left_join, ratio
from traceanalyzer.analyzers.common.display import sentences
from traceanalyzer.analyzers.printed import Options
from traceanalyzer.analyzers.printed.result import Form, table
from traceanalyzer.drawings import Chart
from traceanalyzer.units import format_count, format_frac, format_ns

_TIMERS, _THROUGHPUT = FORMS = ("timers", "throughput")
#: The time of an iteration of Megatron-LM, of a step of DeepSpeed's pipeline engine, and of others.
_ITERATIONS = ("elapsed time per iteration (ms)", "iter time (s)", "step time")
#: What the Trainer of Hugging Face prints of a training, and of each evaluation in it.
_TRAINING, _EVALUATION = "train_runtime", "eval_runtime"

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
    "optimizer": "optimizer_ns",  # Megatron-LM
    **dict.fromkeys(_ITERATIONS, "iteration_ns"),
}
#: The parts of a step, and their labels.
_PARTS = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "backward_compute_ns": "backward compute",
    "gradient_reduction_ns": "gradient reduction",
    "optimizer_ns": "optimizer step",
}
_NUMBERS = {
    "global_step": pl.Int64,
    "micro_step": pl.Int64,
    "samples_per_s": pl.Float64,
    "mean_samples_per_s": pl.Float64,
    "tokens_per_s": pl.Float64,
}
_OF_ITERATION = {"iteration": pl.Int64, "tflops": pl.Float64, "mfu_frac": pl.Float64}
_STEP_TABLE = (
    "number, duration_ns: step, forward_ns: forward, backward_ns: backward, "
    "backward_compute_ns: backward compute, gradient_reduction_ns: gradient reduction, "
    "optimizer_ns: optimizer step, tflops: TFLOP/s per GPU, mfu_frac: MFU, line"
)
_TIMER_TABLE = (
    "timer, n: prints, median_ns: median, mean_ns: mean, min_ns: min, max_ns: max, "
    "total_frac: of step"
)
_SPEED_TABLE = (
    "global_step: step, samples_per_s: samples/s, mean_samples_per_s: mean samples/s, "
    "tokens_per_s: tokens/s, line"
)
_NOTE = (
    "A line of timers has the mean of the steps since the previous one; timers of micro steps have "
    "the last micro step. Gradient reduction (bwd_allreduce) is the exposed part with "
    "overlap_comm, otherwise all of it."
)
#: Timers of the lines of DeepSpeed's pipeline engine, which are sums.
_SUMMED = pl.col("name").str.contains("^(?:batch_input|pipe_.*)$")
_OF_SUMS = (
    "Timers of DeepSpeed's pipeline engine are sums over the steps since the previous line "
    "(steps_per_print)."
)
#: What Megatron-LM does between iterations.
_BETWEEN = ("evaluate", "save-checkpoint")
#: From this share of a training on, its evaluations are named.
_MANY_EVALUATIONS = 0.1
#: A line that takes this many times as long as the median is warm-up if it is the first.
_WARM_UP = 2


def form(rows: pl.DataFrame, _options: Options) -> Form | None:
    """Return the statistics of each timer, the step times, and the throughput.

    ``timers``: one row per timer and rank without warm-up, longest first: timer (as printed), n,
    median_ns, mean_ns, min_ns, max_ns, total_frac (mean over the mean step). ``steps``: one row per
    line with whole steps: number (the iteration if printed), duration_ns (that of the iteration, or
    forward + backward + step), its parts, tflops (per GPU), mfu_frac, warm_up, printed_ns, line.
    Lines of DeepSpeed before an iteration of Megatron-LM are the same step. ``micro_steps``,
    without whole steps: the same of micro-steps.
    ``throughput``: global_step, micro_step, samples_per_s, mean_samples_per_s, tokens_per_s.
    """
    lines = wide(rows, _TIMERS, {"time_ns": pl.Int64}).drop_nulls("time_ns")
    iterations = wide(rows, _TIMERS, _OF_ITERATION)
    lines = lines.with_columns(of_step=_of_step())
    of_steps = lines.filter("of_step")
    steps, unused = _steps(of_steps, iterations)
    micro = of_steps.with_columns(pl.col("name").str.strip_suffix("_microstep"))
    micro_steps = _steps(micro, iterations)[0] if steps.is_empty() else steps.clear()
    timers = _statistics(lines, steps)
    speed = wide(rows, _THROUGHPUT, _NUMBERS).filter(
        pl.any_horizontal(pl.col("samples_per_s", "tokens_per_s").is_not_null())
    )
    speed = speed.select("rank", "path", *_NUMBERS, "printed_ns", "line")
    if lines.is_empty() and speed.is_empty():
        return None
    tables = (
        table("timers", "Timers", timers, _TIMER_TABLE),
        table("steps", "Step times, means of the steps since the previous line", steps,
              _STEP_TABLE),
        table("micro_steps", "Times of micro-steps", micro_steps, _STEP_TABLE),
        table("throughput", "Throughput", speed, _SPEED_TABLE, detail=True),
    )  # fmt: skip
    counted = steps.filter(~pl.col("warm_up"))
    sums = _sums(steps, counted, speed)
    return Form(
        tuple(one for one in tables if one.frame.height),
        sentences(_verdict(counted, "step"), _between(lines, counted))
        or _verdict(micro_steps, "micro-step")
        or sentences(_throughput(sums), _evaluations(lines)),
        tuple(_notes(lines, sums["warm_up_count"], unused)),
        sums,
        partial(_charts, counted),
    )


def _of_step() -> pl.Expr:
    """Whether timers are of the steps of the file, not sums or of an iteration before it."""
    block, job = pl.col("block"), ["rank", "path"]
    of_iterations = block.filter(pl.col("name").is_in(_ITERATIONS)).first().over(job)
    return (block == of_iterations).fill_null(~_SUMMED.any().over(*job, "block"))


def _steps(timers: pl.DataFrame, iterations: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return the lines with whole steps, and the number of those without times."""
    names = dict.fromkeys(_COLUMNS.values())
    known = timers.with_columns(column=pl.col("name").replace_strict(_COLUMNS, default=None))
    keys = ["rank", "path", "block", "row"]
    columns = [
        pl.col("time_ns").filter(pl.col("column") == name).first().alias(name) for name in names
    ]
    lines = known.drop_nulls("column").group_by(keys, maintain_order=True)
    rows = lines.agg(*columns, pl.col("printed_ns").first(), pl.col("line").max())
    sums = pl.sum_horizontal(["forward_ns", "backward_ns", "optimizer_ns"], ignore_nulls=False)
    whole = rows.with_columns(duration_ns=pl.coalesce("iteration_ns", sums))
    whole = left_join(whole, iterations.select(*keys, *_OF_ITERATION).drop_nulls("iteration"), keys)
    used = _once(whole.filter(pl.col("duration_ns") > 0), names).with_columns(
        number=pl.int_range(pl.len()).over("rank", "path", "block")
    )
    median = pl.col("duration_ns").median().over("rank", "path", "block")
    first = (pl.col("number") == 0) & (pl.len().over("rank", "path", "block") > 1)
    return used.select(
        "rank", "path", pl.coalesce("iteration", "number").alias("number"), "duration_ns", *names,
        "tflops", "mfu_frac",
        warm_up=first & (pl.col("duration_ns") > _WARM_UP * median),
        printed_ns="printed_ns", line="line",
    ), rows.height - used.height  # fmt: skip


def _once(lines: pl.DataFrame, parts: Iterable[str]) -> pl.DataFrame:
    """Return each step once: DeepSpeed's lines before an iteration only add the missing parts."""
    job = ["rank", "path"]
    known = pl.col("iteration_ns").is_not_null()
    ordered = lines.sort("line").with_columns(of=known.cum_sum(reverse=True).over(job))
    others = ordered.filter(~known).group_by(*job, "of").agg(pl.col(parts).mean().round())
    steps = ordered.filter(known | ~known.any().over(job))
    before = {name: f"{name}_before" for name in parts}
    filled = left_join(steps, others.rename(before), [*job, "of"])
    return filled.with_columns(
        pl.coalesce(name, one).cast(pl.Int64) for name, one in before.items()
    )


def _statistics(timers: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the statistics of each timer, without warm-up and times of 0."""
    time = pl.col("time_ns")
    until = steps.filter("warm_up").select("rank", "path", last="line")
    late = timers.join(until, on=["rank", "path"], how="left", nulls_equal=True)
    counted = late.filter(pl.col("last").is_null() | (pl.col("line") > pl.col("last")), time > 0)
    whole = steps.filter(~pl.col("warm_up"))
    mean = whole.group_by("rank", "path").agg(step_ns=pl.col("duration_ns").mean())
    sums = counted.group_by("rank", "path", timer="name", maintain_order=True).agg(
        n=pl.len().cast(pl.Int64),
        median_ns=time.median().round().cast(pl.Int64),
        mean_ns=time.mean().round().cast(pl.Int64),
        of_step_ns=time.filter("of_step").mean(),
        min_ns=time.min(),
        max_ns=time.max(),
    )
    joined = left_join(sums, mean, ["rank", "path"])
    is_part = ~pl.col("timer").is_in(_ITERATIONS)
    is_within = is_part & (pl.col("of_step_ns") <= pl.col("step_ns"))
    shares = joined.with_columns(
        total_frac=pl.when(is_within).then(ratio("of_step_ns", "step_ns"))
    ).drop("step_ns", "of_step_ns")
    order = ["mean_ns", "rank", "path"]
    return shares.sort(order, descending=[True, False, False], maintain_order=True)


def _sums(steps: pl.DataFrame, counted: pl.DataFrame, speed: pl.DataFrame) -> dict[str, Any]:
    times = counted["duration_ns"]
    return {
        "line_count": times.len(),
        "warm_up_count": int(steps["warm_up"].sum()),
        "median_ns": times.median(),
        "min_ns": times.min(),
        "max_ns": times.max(),
        "samples_per_s": speed["samples_per_s"].median(),
        "tokens_per_s": speed["tokens_per_s"].median(),
    }


def _parts(counted: pl.DataFrame) -> dict[str, str]:
    """Return the parts of a step; the backward pass whole if its parts were not printed."""
    is_split = counted["backward_compute_ns"].null_count() < counted.height
    whole = "backward_ns" if is_split else "backward_compute_ns"
    return {name: label for name, label in _PARTS.items() if name != whole}


def _verdict(counted: pl.DataFrame, what: str) -> str:
    if counted.is_empty():
        return ""
    times = counted["duration_ns"]
    whole = int(times.sum())
    longest = (
        max((int(counted[name].sum()), label) for name, label in parts.items())
        for parts in (_parts(counted), _PARTS)
    )
    ns, label = next((one for one in longest if whole < 2 * one[0] <= 2 * whole), (0, ""))
    most = f", most of it {label} ({format_frac(ns / whole)})" if ns else ""
    mfu = counted["mfu_frac"].drop_nulls()
    used = f" MFU: {format_frac(mfu.median())}." if mfu.len() else ""  # type: ignore[arg-type]
    return f"A {what} takes {format_ns(times.median())} (median){most}.{used}"  # type: ignore[arg-type]


def _throughput(sums: dict[str, Any]) -> str:
    named = ((sums[f"{what}_per_s"], what) for what in ("samples", "tokens"))
    rate, what = next((one for one in named if one[0] is not None), (None, ""))
    return "" if rate is None else f"Throughput: {rate:,.5g} {what}/s (median)."


def _evaluations(lines: pl.DataFrame) -> str:
    """Return a sentence on the evaluations within a training that take much of its time."""
    whole = lines.filter(pl.col("name") == _TRAINING)
    until = whole["line"].max() or 0
    within = lines.filter(pl.col("name") == _EVALUATION, pl.col("line") < until)
    frac = int(within["time_ns"].sum()) / max(int(whole["time_ns"].sum()), 1)
    text = f"{format_count(within.height, 'evaluation')} took {format_frac(frac)} of the training."
    return text if whole.height == 1 and _MANY_EVALUATIONS <= frac <= 1 else ""


def _between(lines: pl.DataFrame, counted: pl.DataFrame) -> str:
    """Return a sentence on what takes much of the time between the first and last iteration."""
    if counted.height < 2 or counted.select("rank", "path").n_unique() > 1:
        return ""
    until = pl.col("line").is_between(counted["line"].min(), counted["line"].max())
    within = lines.filter(until, pl.col("name").is_in(_BETWEEN)).sort("time_ns", descending=True)
    number, ns = pl.col("number"), int(within["time_ns"].sum())
    steps = counted.select((number.max() - number.min()) * pl.col("duration_ns").mean())
    frac, names = ns / max(ns + steps.item(), 1), within["name"].unique(maintain_order=True)
    text = f"Between steps, {' and '.join(names)} took {format_frac(frac)} of the time."
    return text if frac >= _MANY_EVALUATIONS else ""


def _notes(lines: pl.DataFrame, warm: int, unused: int) -> Iterator[str]:
    if {*lines["name"]} - {*_ITERATIONS, _TRAINING, _EVALUATION}:
        yield _OF_SUMS if lines.select(_SUMMED.any()).item() else _NOTE
    if warm:
        yield f"Not counted: {format_count(warm, 'line')} of timers of warm-up."
    if unused:
        yield (
            f"Not counted: {format_count(unused, 'line')} of timers without the times of all parts "
            "(the flops profiler resets them)."
        )


def _charts(counted: pl.DataFrame) -> tuple[Chart, ...]:
    """Build stacked bars of the parts of steps."""
    if counted.is_empty():
        return ()
    parts = [
        counted.select("number", time_ns=name, part=pl.lit(label))
        for name, label in _parts(counted).items()
    ]
    return (
        Chart(
            name="steps", title="Parts of a step by line", mark="bar",
            frame=pl.concat(parts).drop_nulls("time_ns"), x="number", y="time_ns",
            x_label="line", y_label="time", color="part", stacked=True,
        ),
    )  # fmt: skip
