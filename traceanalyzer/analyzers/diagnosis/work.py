"""Rules about steps, code, memory, the host, and the files themselves."""

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.diagnosis import memory
from traceanalyzer.analyzers.diagnosis.kernel_times import (
    MORE_KERNELS,
    SLOW_GPU,
    Difference,
    compare,
)
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, explained_by, rule
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.host_metrics.result import BUSY_PERCENT, HostMetrics
from traceanalyzer.analyzers.info.compute import Info
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.py_spy_report.result import LeafPaths
from traceanalyzer.analyzers.steps.phases import DECODE
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.steps.slow_steps import SLOW
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns, format_weight
from traceanalyzer.vocabulary import NO_GPU_WORK


@rule(
    "steps",
    "some steps take longer than the usual one",
    "time beyond each rank's median step, as a share of all steps' time",
    {"info": 0.02, "warning": 0.1, "critical": 0.3},
)
def _uneven_steps(result: Steps, answers: Answers) -> Iterator[Measured]:
    each = _on_device(
        result.counted.unique(["rank", "path", "number"], maintain_order=True), answers
    )
    # prefill takes as long as its prompts are
    each = each.filter(pl.col("phase").fill_null(DECODE) == DECODE)
    whole = int(each["duration_ns"].sum())
    usual = pl.col("duration_ns").median().over("rank", "path", "batch")
    over = pl.col("duration_ns") - usual
    longer = _by_own_time(each.with_columns(over=over.clip(0)), answers)
    cost = round(longer["over"].sum())
    if not cost or not whole:
        return
    worst = longer.row(0, named=True)
    grown = worst["grown"]
    grew = f", mostly {grown} ({format_ns(worst['grown_ns'])} more)" if grown else ""
    rank = f" of {worst['on']}" if result.ranks.height > 1 else ""
    slowest = (
        f"The slowest is {worst['step']}{rank}: {format_ns(worst['duration_ns'])}, "
        f"{worst['ratio']:.3g} times the median{grew}."
    )
    reason, remedy = _why_slow(result, answers, worst)
    yield Measured(
        size=cost / whole,
        title=f"Steps are uneven: {format_frac(cost / whole)} of step time is time beyond the "
        f"median step{f': {reason}' if reason else ''}.",
        evidence=(slowest, *_other_slow(result, longer, worst)),
        advice=remedy,
        step=worst["step"],
        total_ns=cost,
        confidence="high" if each.height >= _ENOUGH * result.ranks.height else "low",
        explained=_growth(answers),
    )


def _by_own_time(steps: pl.DataFrame, answers: Answers) -> pl.DataFrame:
    """The slowest steps first, without their wait time for other ranks."""
    keys = ["path", "rank", "step"]
    waits = answers.time.losses.filter("waited").group_by(keys).agg(waited=pl.col("lost_ns").sum())
    known = steps.join(waits, on=keys, how="left", nulls_equal=True, maintain_order="left")
    own = pl.col("over") - pl.col("waited").fill_null(0)
    return known.sort(own, "over", descending=True, maintain_order=True).drop("waited")


def _on_device(steps: pl.DataFrame, answers: Answers) -> pl.DataFrame:
    """The steps with their duration on the device, where that is known."""
    if not answers.time.in_steps:
        return steps
    keys = ["path", "rank", "step"]
    length = (pl.col("end") - pl.col("start")).max()
    windows = answers.time.windows.group_by(keys).agg(_device_ns=length)
    known = steps.join(windows, on=keys, how="left", nulls_equal=True, maintain_order="left")
    duration = pl.coalesce("_device_ns", "duration_ns")
    usual = duration.median().over("rank", "path", "batch")
    return known.with_columns(duration_ns=duration, ratio=duration / usual).drop("_device_ns")


def _why_slow(result: Steps, answers: Answers, worst: Mapping[str, Any]) -> tuple[str, str]:
    """Why a step is slow, and what to try: code that only it runs, or how its kernels differ."""
    look = (
        "See what the slow steps spend their time on that others do not: traceanalyzer steps and "
        "gpu-idle --by step show it."
    )
    kernels = _kernels_in(answers, worst)
    rows = _only_in(result, worst)
    is_code = rows.height > 0 and rows["kind"][0] in _CODE
    each = ", ".join(map(_with_time, rows.head(_NAMED).iter_rows(named=True)))
    if kernels and (kernels.why == SLOW_GPU or not is_code):
        host = f"; on the host {each}" if each and kernels.why == MORE_KERNELS else ""
        advice = kernels.advice("this GPU in those steps", "equal work in every step")
        return f"{kernels.text}{host}", advice
    return f"{each} in slow steps only" if each else "", look


def _only_in(result: Steps, step: Mapping[str, Any]) -> pl.DataFrame:
    """What the host runs in one slow step and hardly in others: code, else all that is known."""
    if result.only_slow is None:
        return pl.DataFrame()
    same = pl.col("path") == step["path"], pl.col("rank").eq_missing(step["rank"])
    only = result.only_slow.filter(*same, pl.col("step") == step["step"])
    code = only.filter(pl.col("kind").is_in(_CODE))
    return code if code.height else only


def _with_time(row: Mapping[str, Any]) -> str:
    return f"{row['name']} ({format_ns(row['total_ns'])})"


#: Kinds of slices that show the code: annotations, Python functions, and copies.
_CODE = ("user_annotation", "nvtx", "mpi", "python_function", "other", "gpu_memcpy")


def _kernels_in(answers: Answers, worst: Mapping[str, Any]) -> Difference | None:
    """How the kernels of the slowest step differ from those of the other steps of its rank."""
    kernels = answers.get("kernels")
    if not isinstance(kernels, Kernels) or kernels.by_step is None:
        return None
    same = pl.col("path") == worst["path"], pl.col("rank").eq_missing(worst["rank"])
    rows = kernels.by_step.filter(*same, pl.col("step").is_not_null())
    return compare(rows, "step", worst["step"], "in other steps")


def _other_slow(result: Steps, longer: pl.DataFrame, worst: Mapping[str, Any]) -> Iterator[str]:
    """Which other steps are slow, and what each of them runs most that others do not."""
    others = longer.filter(pl.col("ratio") >= SLOW, pl.col("step") != worst["step"])
    others = others.unique("step", keep="first", maintain_order=True)
    names = []
    for step in others.head(_NAMED).iter_rows(named=True):
        rows = _only_in(result, step).head(1).iter_rows(named=True)
        names.append(": ".join([step["step"], *map(_with_time, rows)]))
    if names:
        more = f" and {others.height - _NAMED} more" if others.height > _NAMED else ""
        yield f"Other slow steps: {', '.join(names)}{more}."


#: So many names are listed.
_NAMED = 3


def _growth(answers: Answers) -> dict[str, float]:
    """What the slow steps lose more than others, by the finding that explains it."""
    time = answers.time
    if not time.in_steps:
        return {}
    grown = time.growth
    whole = float(grown.filter(pl.col("cause").is_null())["grown_ns"].sum())
    causes = grown.drop_nulls("cause").filter(pl.col("grown_ns") > 0)
    return explained_by(causes, whole, "grown_ns") if whole else {}


#: From so many steps a rank on, their median says what is usual.
_ENOUGH = 5


@rule(
    "steps",
    "prefill holds up decoding: steps with prompts take much longer than those without",
    "share of step time of prefill and mixed steps that take at least three times as long as the "
    "median decode step",
    {"info": 0.1, "warning": 0.25},
)
def _prefill_stalls(result: Steps, _: Answers) -> Iterator[Measured]:
    rows = result.counted.unique(["rank", "path", "number"]).drop_nulls("phase")
    decode = rows.filter(phase=DECODE)["duration_ns"].median()
    whole = int(rows["duration_ns"].sum())
    if not isinstance(decode, float) or not decode:
        return
    long = rows.filter(pl.col("phase") != DECODE, pl.col("duration_ns") >= _STALL * decode)
    if long.is_empty():
        return
    longest = long.sort("duration_ns", "step", descending=[True, False]).row(0, named=True)
    cost, usual = int(long["duration_ns"].sum()), float(long["duration_ns"].median() or 0)  # type: ignore[arg-type]
    steps = format_count(long.height, "prefill or mixed step")
    yield Measured(
        size=cost / whole,
        title=f"Prefill stalls decoding: {steps} take {format_frac(cost / whole)} of step time, "
        f"{format_ns(usual)} each (median), {usual / decode:.1f} times as long as a decode step.",
        evidence=(
            f"The longest is {longest['step']}: {format_ns(longest['duration_ns'])}.",
            f"A decode step takes {format_ns(decode)} (median).",
        ),
        advice="Split long prompts (chunked prefill, a smaller limit of batched tokens), or run "
        "prefill and decode on separate GPUs.",
        total_ns=cost,
        confidence="medium",
    )


#: Prefill steps that take so many times as long as a decode step hold up the requests that decode.
_STALL = 3


@rule(
    "steps",
    "time passes between steps: evaluation, logging, checkpoints",
    "time between steps as a share of the time from the first to the last",
    {"info": 0.05, "warning": 0.15, "critical": 0.3},
)
def _time_between_steps(result: Steps, answers: Answers) -> Iterator[Measured]:
    rows = result.ranks.drop_nulls("between_frac").sort(
        "between_frac", "on", descending=[True, False]
    )
    if rows.is_empty():
        return
    worst = rows.row(0, named=True)
    rank = f" on {worst['on']}" if result.ranks.height > 1 else ""
    yield Measured(
        size=worst["between_frac"],
        title=f"Between steps{rank} pass {format_ns(worst['between_ns'])}, "
        f"{format_frac(worst['between_frac'])} of the time.",
        evidence=(*_running_between(result, worst), *_between_steps(answers)),
        advice=(
            "Between the steps of an inference engine lie scheduling, sampling and waiting for "
            "requests"
            if result.phases.height
            else "Evaluate, log and save less often, or in the background"
        )
        + "; what happens there shows in a flamegraph.",
        total_ns=int(rows["between_ns"].sum()),
        confidence="medium",
    )


def _running_between(result: Steps, worst: Mapping[str, Any]) -> Iterator[str]:
    """What the host runs between the steps of a rank."""
    if result.between is None:
        return
    same = pl.col("path") == worst["path"], pl.col("rank").eq_missing(worst["rank"])
    for row in result.between.filter(*same).head(_NAMED).iter_rows(named=True):
        yield (
            f"The host runs {row['name']} for {format_ns(row['total_ns'])} of it "
            f"({format_count(row['n'], 'call')})."
        )


def _between_steps(answers: Answers) -> Iterator[str]:
    """Why devices are idle between steps, and what the host does in the longest gap there."""
    time, idle = answers.time, answers.get("gpu_idle")
    if not isinstance(idle, GpuIdle):
        return
    whole = time.outside["idle_ns"].sum()
    for cause, ns in time.outside.head(1).iter_rows():
        if ns:
            share = format_frac(ns / whole)
            yield f"{share} of the time lost outside steps is {causes.LOSING[cause]}."
    inside = pl.coalesce("own_code", "python", "host_event")
    gaps = idle.gaps.filter(pl.col("step").is_null()).with_columns(inside=inside)
    gaps = gaps.drop_nulls("inside")
    length = pl.col("end") - pl.col("start")
    for gap in gaps.sort(length, descending=True).head(1).iter_rows(named=True):
        took = format_ns(gap["end"] - gap["start"])
        yield f"The longest gap there takes {took}, while the host is in {gap['inside']}."


@rule(
    "py_spy_report",
    "one line of your own code is on the stack in many samples",
    "share of the samples",
    {"info": 0.1},
)
def _hot_line(result: LeafPaths, _: Answers) -> Iterator[Measured]:
    if not result.total_samples:
        return
    keys = ["library_function_name", "library_function_path", "library_function_line"]
    sums = (
        result.paths.drop_nulls("library_function_line")
        .group_by(keys)
        .agg(pl.col("samples").sum())
        .sort("samples", *keys, descending=[True, False, False, False])
    )
    if sums.is_empty():
        return
    name, path, line, samples = sums.row(0)
    share = samples / result.total_samples
    own, whole = (format_weight(n, result.unit) for n in (samples, result.total_samples))
    yield Measured(
        size=share,
        title=f"{format_frac(share)} of the samples are in or below one line of your own code: "
        f"{name} ({path}:{line}).",
        evidence=(f"These are {own} of {whole}.",),
        advice="The flamegraph shows what it calls.",
        of="the samples",
    )


# --- the host and the files ------------------------------------------------------------------

_LOSSES = ("error", "data_loss")


@rule(
    "host_metrics",
    f"the host's processors are at {BUSY_PERCENT} % or more",
    "share of the time in which they are",
    {"warning": 0.05, "critical": 0.5},
)
def _busy_processors(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    found = result.busy_processors()
    if found is not None:
        share, mean = found
        yield Measured(
            size=share,
            title=f"The host's processors were at {BUSY_PERCENT} % or more for "
            f"{format_frac(share)} of the time ({mean:.0f} % on average).",
            advice="Whatever runs on the host competes, data loading and the launching of kernels "
            "among it: fewer loader workers than cores, OMP_NUM_THREADS, nothing else on the node.",
            of="the time",
            confidence="medium",
        )


@rule(
    "host_metrics",
    "the host's memory is nearly full",
    "share that is used at worst",
    {"warning": 0.9, "critical": 0.98},
)
def _full_host_memory(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.fullest_memory()
    if row is not None:
        yield Measured(
            size=row["frac"],
            title=f"The host's memory was up to {format_frac(row['frac'])} full: "
            f"{format_bytes(row['value'])} of {format_bytes(row['total'])}.",
            advice="Fewer loader workers or less prefetching; memory-mapped data.",
            cost_bytes=round(row["value"]),
            of="the host's memory",
        )


@rule(
    "host_metrics",
    "swap is in use",
    "bytes of it at worst",
    {"warning": 1},
    counts=True,
)
def _swapping(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.most_swap()
    if row is not None:
        yield Measured(
            size=row["max"],
            title=f"Swap is in use: up to {format_bytes(row['max'])}.",
            advice="The host has too little memory for what runs on it.",
            cost_bytes=round(row["max"]),
            confidence="medium",
        )


@rule(
    "host_metrics",
    "a disk is at its limit",
    "share of the time in which it was busy, at worst",
    {"warning": 0.8},
)
def _busy_disk(result: HostMetrics, _: Answers) -> Iterator[Measured]:
    row = result.busiest_disk()
    if row is not None:
        yield Measured(
            size=row["max"] / 1000,
            title=f"{row['counter'].removeprefix('disk/')} was busy for "
            f"{format_frac(row['max'] / 1000)} of the time at worst.",
            evidence=(f"{format_frac(row['mean'] / 1000)} on average.",),
            advice="Faster or local storage, larger reads, fewer small files.",
            of="the time",
            confidence="medium",
        )


@rule(
    "info",
    "events of a file were lost: it is cut off or damaged",
    "files that lost events",
    {"warning": 1},
    counts=True,
)
def _lost_events(result: Info, _: Answers) -> Iterator[Measured]:
    lost = result.issues.filter(pl.col("severity").is_in(_LOSSES), pl.col("code") != NO_GPU_WORK)
    files = lost["path"].n_unique()
    if not files:
        return
    first = lost.row(0, named=True)
    place = f", first at {first['first']}" if first["first"] else ""
    yield Measured(
        size=files,
        title=f"{format_count(files, 'file')} of {result.files.height:,} lost "
        f"events: {', '.join(sorted(lost['code'].unique()))}.",
        evidence=(f"{first['path']}: {first['code']}{place}.",),
        advice="All numbers are of what is left; stop the profiler before the job ends, so that it "
        "can finish its file.",
    )


@rule(
    "info",
    "the profiler was to record GPU work, and could not",
    "files without GPU work",
    {"warning": 1},
    counts=True,
)
def _gpu_not_traced(result: Info, answers: Answers) -> Iterator[Measured]:
    failed = result.issues.filter(pl.col("code") == NO_GPU_WORK, pl.col("severity").is_in(_LOSSES))
    if failed.is_empty():
        if answers.one_job:
            yield from _ranks_without_gpu_work(result)
        return
    first = failed.row(0, named=True)
    reason, _sep, remedy = first["first"].rpartition("; ")
    yield Measured(
        size=failed.height,
        title=f"{format_count(failed.height, 'file')} of {result.files.height:,} "
        f"{'has' if failed.height == 1 else 'have'} no GPU work although it was traced.",
        evidence=(f"{first['path']}: {reason}.",),
        advice=f"{remedy[:1].upper()}{remedy[1:]}.",
    )


def _ranks_without_gpu_work(result: Info) -> Iterator[Measured]:
    """Ranks that lack GPU work where others of the same format have it."""
    files = result.files.select("path", "rank", "format", "world_size")
    rows = result.contents.join(files, on=["path", "rank"], how="left", nulls_equal=True)
    alike = ("format", "world_size")
    rows = rows.filter((pl.col("device_work") > 0).any().over(alike), pl.col("events") > 0)
    without = rows.filter(pl.col("device_work") == 0, pl.col("world_size") > 1)
    if without.is_empty():
        return
    ranks = without["rank"].drop_nulls().sort().to_list()
    who = f"rank{'' if len(ranks) == 1 else 's'} {', '.join(map(str, ranks[:_NAMED]))}"
    more = f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
    yield Measured(
        size=without.height,
        title=f"No GPU work was recorded of {who if ranks else without['path'][0]}{more}, although "
        "the other ranks have it.",
        evidence=(f"{without['path'][0]} has {without['launch_calls'][0]:,} launch calls.",),
        advice="Record it with ProfilerActivity.CUDA as on the other ranks; another profiler that "
        "runs at the same time (nsys, DCGM) keeps CUPTI from recording.",
        rank=ranks[0] if len(ranks) == 1 else None,
    )


@rule(
    "info",
    "files of some ranks are not there",
    "ranks that are missing",
    {"info": 1},
    counts=True,
    compares_ranks=True,
)
def _missing_ranks(result: Info, _: Answers) -> Iterator[Measured]:
    world = result.files["world_size"].max()
    ranks = result.files["rank"].drop_nulls().n_unique()
    if not isinstance(world, int) or not ranks or ranks >= world:
        return
    yield Measured(
        size=world - ranks,
        title=f"Files of {ranks:,} of {world:,} ranks are there.",
        advice="With all ranks' files, waiting for late ranks can be told from slow communication.",
    )


RULES = (
    _uneven_steps, _prefill_stalls, _time_between_steps, _hot_line, *memory.RULES, _busy_processors,
    _full_host_memory, _swapping, _busy_disk, _lost_events, _gpu_not_traced, _missing_ranks,
)  # fmt: skip
