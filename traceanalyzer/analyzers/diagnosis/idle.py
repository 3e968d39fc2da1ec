"""Rules about idle time: one for each cause of it."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.places import at_start, places
from traceanalyzer.analyzers.cuda_api import findings
from traceanalyzer.analyzers.cuda_api.result import CudaApi
from traceanalyzer.analyzers.diagnosis.device_time import (
    MOST,
    DeviceTime,
    intervals_of,
    only_rank,
    only_step,
)
from traceanalyzer.analyzers.diagnosis.rule import IDLE_RULES, Answers, Measured, Rule
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import TRUNCATED, GpuIdle
from traceanalyzer.analyzers.launches.calls import DEVICE, SHORT_KERNEL_NS
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.result import Confidence, Severity
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: So many things are named.
_NAMED = 3

#: A device with this many times the median idle time of a cause is named.
_APART = 2

#: From so many steps of so many launches on, equal numbers of launches are no chance.
_ENOUGH_STEPS, _MANY_LAUNCHES = 3, 10

_LEVELS: Mapping[Severity, float] = {"info": 0.03, "warning": 0.05, "critical": 0.2}
#: What may be no fault.
_OTHER_LEVELS: Mapping[str, Mapping[Severity, float]] = {
    causes.PROFILER: {"info": 0.05, "warning": 0.2},
    causes.SHORT_GAP: {"info": 0.1, "warning": 0.3},
}
#: Names alone show these, and people name things as they like.
_CONFIDENCE: Mapping[str, Confidence] = {causes.HOST_CODE: "medium", causes.UNKNOWN: "low"}


def _judge(cause: str, result: GpuIdle, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    losses = time.of_cause(cause)
    total = int(losses["lost_ns"].sum())
    if not total:
        return
    known: Confidence = "high" if result.host_known else "medium"
    rank = only_rank(losses)
    once = _is_once(cause, result, losses, time)
    advice = _ONCE_ADVICE if once else result.advice(cause, time.text(total))
    graph_advice = "" if once else _graph_advice(cause, answers)
    yield Measured(
        size=time.frac(total),
        title=_title(cause, result, losses, time, rank),
        evidence=tuple(_evidence(result, cause, answers, rank)),
        advice=f"{advice}{graph_advice}",
        total_ns=total,
        once=once,
        confidence="low" if result.work_lost else _CONFIDENCE.get(cause, known),
        rank=rank,
        step=only_step(losses),
        intervals=intervals_of(losses),
    )


#: Causes that are work of the first step where they are in no other.
_FIRST_USE = (causes.MODULE_LOADING, causes.MEMORY_MANAGEMENT)
#: From this share on nearly all of a loss is in the first step.
_NEARLY_ALL = 0.8
#: What programs do once: handles, communicators, compilation.
_SET_UP = (
    r"(?i)cu(?:blas|dnn|solver|sparse|fft)\w*Create|CommInit|init_process_group|new_group"
    r"|cu(?:Module|Library)Load|hipModuleLoad|_?dynamo|inductor|compil|autotun|lazy_init"
)
_ONCE_ADVICE = (
    "This is set-up of the first step, not a cost of each step: leave it out of the recording with "
    "torch.profiler.schedule(wait=1, warmup=1, active=N), or run warm-up steps before it starts."
)


def _is_once(cause: str, result: GpuIdle, losses: pl.DataFrame, time: DeviceTime) -> bool:
    """Whether it is set-up that only the first recorded step has."""
    keys = ["path", "rank", "device"]
    begin = pl.col("start").min().over(keys)
    first = time.windows.drop_nulls("step").filter(
        pl.col("start") == begin, pl.len().over(keys) >= _ENOUGH_STEPS
    )
    there = losses.join(first, on=[*keys, "step"], how="semi", nulls_equal=True)
    if int(there["lost_ns"].sum()) < _NEARLY_ALL * int(losses["lost_ns"].sum()):
        return False
    gaps = result.gaps.filter(pl.col("cause").cast(pl.String) == cause)
    names = pl.concat_str("host_event", "python", "own_code", separator=" ", ignore_nulls=True)
    set_up = int(gaps.filter(names.str.contains(_SET_UP))["cause_ns"].sum())
    return cause in _FIRST_USE or 2 * set_up > int(gaps["cause_ns"].sum())


#: Wait time of other ranks from this share on is mentioned.
_SOME_FRAC = 0.05


def _title(
    cause: str, result: GpuIdle, losses: pl.DataFrame, time: DeviceTime, rank: int | None
) -> str:
    total = int(losses["lost_ns"].sum())
    once = _is_once(cause, result, losses, time)
    size = f"{format_frac(time.frac(total))} of {time.of} ({time.text(total, once=once)})"
    what = "main thread" if result.on_host else "GPU"
    where = in_steps(losses, time, rank)
    if rank is not None and losses["waited"].any():
        idle = f"Rank {rank} is idle{where}, {causes.WAITING[cause]}"
        return f"{idle}, and the other ranks wait for it: {size}."
    who = f"the {what} is idle" if result.units.height == 1 else f"the {what}s are idle"
    who = who if rank is None else f"rank {rank} is idle"
    waited = int(losses.filter("waited")["lost_ns"].sum())
    others = ", or wait for a rank that is" if waited > _SOME_FRAC * total else ""
    return f"For {size} {who}{where}, {causes.WAITING[cause]}{others}."


def in_steps(losses: pl.DataFrame, time: DeviceTime, rank: int | None) -> str:
    """In which steps most of it is, where these are few: `` in 2 of 6 steps``."""
    there = losses.filter(~pl.col("waited"))
    if rank is not None:
        there = there.filter(root_rank=rank)
    steps = there.drop_nulls("step").group_by("step").agg(pl.col("lost_ns").sum())
    ordered = steps.sort("lost_ns", "step", descending=[True, False])
    before = pl.col("lost_ns").cum_sum() - pl.col("lost_ns")
    most = ordered.filter(before < MOST * pl.col("lost_ns").sum())
    every = time.windows["step"].drop_nulls().n_unique()
    if not most.height or 2 * most.height > every:
        return ""
    if most.height == 1:
        return f" in {most['step'][0]}"
    return f" in {most.height:,} of {every:,} steps"


def _cost(cause: str) -> pl.Expr:
    """Idle time of a cause. Short gaps in which nothing was launched yet are launch-bound."""
    time = pl.col(f"{cause}_ns")
    if cause == causes.LAUNCH:
        return time + pl.col("short_launch_ns")
    return time - pl.col("short_launch_ns") if cause == causes.SHORT_GAP else time


def _evidence(result: GpuIdle, cause: str, answers: Answers, rank: int | None) -> Iterator[str]:
    if rank is not None:
        yield from waits_for(answers.time, cause, rank)
    if result.work_lost and result.on_host:
        yield "GPU work is missing in the file, so this is the main thread alone."
    elif result.work_lost:
        yield TRUNCATED
    if rank is None and answers.one_job:
        yield from _idlest(result, cause)
    yield from _longest(result, cause)
    if cause == causes.DATALOADING:
        yield from _loading(result)
    elif cause == causes.SYNCHRONISATION:
        yield from _synchronising(answers)
    elif cause == causes.LAUNCH:
        yield from _launching(answers)
    elif cause in _CALLS:
        yield from _calls(answers, _CALLS[cause])


def waits_for(time: DeviceTime, cause: str, rank: int) -> Iterator[str]:
    """How long the rank is idle, and how long the others wait for it, in which collective."""
    losses = time.of_cause(cause).filter(pl.col("root_rank") == rank)
    idle, waited = (
        int(losses.filter(which)["lost_ns"].sum()) for which in (~pl.col("waited"), "waited")
    )
    if not waited:
        return
    waits = losses.filter("waited")
    by = waits.group_by("collective").agg(pl.col("lost_ns").sum(), pl.col("rank").n_unique())
    name, _, ranks = by.sort("lost_ns", "collective", descending=[True, False]).row(0)
    did = "copies" if cause == causes.COPIES else "is idle"
    others = "1 other rank waits" if ranks == 1 else f"{ranks:,} other ranks wait"
    yield (
        f"Rank {rank} itself {did} for {format_ns(idle)}; {others} {format_ns(waited)} in total "
        f"for it, mostly in {name}."
    )
    yield f"Without it, {time.exposed} falls by {time.text(waited)} at most."


def _idlest(result: GpuIdle, cause: str) -> Iterator[str]:
    """The device that waits much longer than most."""
    named = result.units.with_columns(places(result.units), cost=_cost(cause))
    order = named.sort("cost", "on", descending=[True, False])
    worst, median = order.row(0, named=True), order["cost"].median()
    if named.height > 1 and isinstance(median, float) and worst["cost"] >= _APART * median:
        yield (
            f"{at_start(worst['on'])} stands out: {format_ns(worst['cost'])} against "
            f"{format_ns(median)} (median)."
        )


def _longest(result: GpuIdle, cause: str) -> Iterator[str]:
    """What the host did in the longest gap of this cause."""
    gaps = result.gaps.filter(pl.col("cause").cast(pl.String) == cause)
    if gaps.is_empty():
        return
    gap = gaps.sort(pl.col("end") - pl.col("start"), descending=True).row(0, named=True)
    step = f", in {gap['step']}" if gap["step"] else ""
    inside = gap["host_event"] or gap["python"]
    inside = None if inside == gap["step"] else inside
    code = gap["own_code"] or gap["python"]
    frame = f" ({code})" if code and code != inside else ""
    around = f" in {gap['annotation']}" if gap["annotation"] not in (None, inside) else ""
    while_in = f", while the host is in {inside}{frame}{around}" if inside else ""
    yield f"The longest such gap takes {format_ns(gap['end'] - gap['start'])}{step}{while_in}."
    yield from _places(gaps)
    if gap["sampled"]:
        share = format_frac(gap["sampled_frac"])
        yield f"{share} of the stacks sampled in it are in {gap['sampled']}."
    if cause == causes.DEVICE_WAIT and gap["waits_for"]:
        yield f"{gap['waits_for']} was called before the launch of the kernel that ends it."


def _places(gaps: pl.DataFrame) -> Iterator[str]:
    """Where the host is in most of the longest gaps of a cause."""
    place = pl.coalesce("own_code", "annotation", "host_event", "python")
    # the mark of the step says only that the host is in the step
    place = pl.when(place.ne_missing(pl.col("step"))).then(place)
    sums = gaps.group_by(place=place).agg(pl.col("cause_ns").sum(), pl.len())
    whole = int(gaps["cause_ns"].sum())
    top = largest_first(sums.drop_nulls("place"), "cause_ns", "place").head(1)
    for name, ns, n in top.iter_rows():
        if gaps.height > 1 and 2 * ns >= whole:
            share = f"{format_frac(ns / whole)} of their time"
            yield f"The host is in {name} in {n:,} of the {gaps.height:,} longest gaps, {share}."


def _loading(result: GpuIdle) -> Iterator[str]:
    """What was recognised as data loading, and the code that costs the time in it."""
    hidden = int(result.units["overlapped_loader_ns"].sum())
    if hidden:
        yield f"The loader took another {format_ns(hidden)} while the GPU was busy."
    if result.loader.height:
        top = result.loader.row(0, named=True)
        yield f"Recognised by {top['name']}: {format_count(top['n'], 'call')}."
    code = result.loader_code.filter(~pl.col("name").is_in(result.loader["name"].implode()))
    whole = int(result.units["loader_ns"].sum())
    if code.height and whole:
        top = code.row(0, named=True)
        share = top["self_ns"] / whole
        yield (
            f"In it {top['name']} has the highest self time: {format_ns(top['self_ns'])} "
            f"({format_frac(share)})."
        )


def _synchronising(answers: Answers) -> Iterator[str]:
    """Where the host waits for the device, from the results of launches."""
    result = answers.get("launches")
    if isinstance(result, Launches) and result.synchronising.height:
        worst = result.synchronising.row(0, named=True)
        where = worst["operator"] or worst["annotation"] or worst["python"]
        yield (
            f"Most of it is at {worst['call']}{f' in {where}' if where else ''}, "
            f"{worst['n']:,} {'time' if worst['n'] == 1 else 'times'}."
        )
        losses = answers.time.of_cause(causes.SYNCHRONISATION)
        idle = int(losses.filter(~pl.col("waited"))["lost_ns"].sum())
        if 2 * result.synchronising_idle_ns < idle:
            share = format_frac(1 - result.synchronising_idle_ns / idle)
            yield (
                f"{share} of it comes after such a call, in other host code before the next "
                "launch: without the call that would run beside the device's work."
            )


def _launching(answers: Answers) -> Iterator[str]:
    """How short the kernels are, and where most of the waiting is, from the results of launches."""
    result = answers.get("launches")
    if not isinstance(result, Launches) or not result.waiting_ns:
        return
    if result.kernels:
        short = result.short_kernels / result.kernels
        yield (
            f"{format_frac(short)} of the kernels are shorter than {format_ns(SHORT_KERNEL_NS)}."
        )
    named = result.places.drop_nulls("place")
    if named.height:
        sums = named.group_by("place").agg(pl.col("waiting_ns").sum())
        place, waiting = sums.sort("waiting_ns", "place", descending=[True, False]).row(0)
        yield f"{format_frac(waiting / result.waiting_ns)} of the waiting is in {place}."
    if result.synchronised_ns:
        share = result.synchronised_ns / result.waiting_ns
        yield f"{format_frac(share)} of it lies around calls that wait for the device."
    if equal := _equal_launches(result):
        yield f"{equal}, without a CUDA graph."


def _equal_launches(result: Launches) -> str:
    """How many launches each step makes, where all steps of a device make as many, no graphs."""
    each = result.steps.group_by(DEVICE).agg(steps=pl.len(), n=pl.col("launches").unique())
    equal = (pl.col("n").list.len() == 1) & (pl.col("steps") >= _ENOUGH_STEPS)
    graphs = result.calls["launch_name"].cast(pl.String).str.contains("(?i)graph").any()
    counts: list[int] = each["n"].list.explode().sort().to_list()
    if graphs or each.is_empty() or not each.select(equal.all()).item():
        return ""
    low, high = counts[0], counts[-1]
    if low < _MANY_LAUNCHES:
        return ""
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    devices = " (by device)" if low < high else ""
    steps = max(each["steps"].to_list())
    return f"All {steps:,} steps make {number} launches each{devices}"


def _graph_advice(cause: str, answers: Answers) -> str:
    """How to replay steps of equal launches as CUDA graphs."""
    result = answers.get("launches")
    if cause != causes.LAUNCH or not isinstance(result, Launches) or not _equal_launches(result):
        return ""
    return (
        ' If shapes do not change, torch.compile(mode="reduce-overhead") or torch.cuda.graph '
        "replays a step as one CUDA graph."
    )


#: Findings of cuda_api that are evidence of a cause.
_CALLS = {
    causes.BATCH_COPY: (findings.ASYNC_PAGEABLE, findings.SYNC_MEMCPY, findings.SYNC_PINNED),
    causes.MEMORY_MANAGEMENT: (findings.ALLOC_IN_LOOP,),
}


def _calls(answers: Answers, names: Sequence[str]) -> Iterator[str]:
    result = answers.get("cuda_api")
    if not isinstance(result, CudaApi):
        return
    rows = result.findings.filter(pl.col("finding").cast(pl.String).is_in(names))
    for row in rows.iter_rows(named=True):
        text = findings.FINDINGS[row["finding"]].sentence(row["n"])
        moved = f", {format_bytes(row['moved_bytes'])}" if row["moved_bytes"] else ""
        yield f"Recorded: {row['n']:,} {text}{moved}."
    if findings.ALLOC_IN_LOOP in names:
        kinds = pl.col("call").cast(pl.String).str.contains("|".join(causes.MANAGING_MEMORY))
        named = result.calls.filter(kinds).head(_NAMED).select("call", "n", "total_ns").iter_rows()
        each = ", ".join(f"{name} {n:,} times ({format_ns(ns)})" for name, n, ns in named)
        if each:
            yield f"Calls: {each}."


RULES = tuple(
    Rule(
        IDLE_RULES[cause],
        "gpu_idle",
        f"devices are idle: {causes.WAITING[cause]}",
        "share of step time (of the recorded time, where no steps are marked)",
        _OTHER_LEVELS.get(cause, _LEVELS),
        partial(_judge, cause),
        uses=("comm_outliers", "cuda_api", "info", "launches"),
    )
    for cause in causes.CAUSES
)
