"""Rules about what devices wait for: the host, other ranks, communication."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.arrivals import CRITICAL_FRAC, WARN_FRAC, WARN_STEPS
from traceanalyzer.analyzers.comm_outliers.result import (
    SLOW_LINK_FRAC,
    CommOutliers,
    passed_on,
    slow_links,
    small_collectives,
)
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.places import at_start, places
from traceanalyzer.analyzers.cuda_api import findings
from traceanalyzer.analyzers.cuda_api.result import CudaApi
from traceanalyzer.analyzers.diagnosis import pipeline, straggling
from traceanalyzer.analyzers.diagnosis.device_time import (
    EXPOSED,
    LINK,
    OUTLIER,
    SLOW,
    DeviceTime,
)
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule, rule
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import CUT_OFF, GpuIdle
from traceanalyzer.analyzers.launches.calls import DEVICE, SHORT_KERNEL_NS
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.analyzers.overlap.result import Overlap, advice, why_exposed
from traceanalyzer.analyzers.transfers.result import ADVICE, MIGRATIONS, Transfers, page_faults
from traceanalyzer.result import Confidence, Severity
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: From this share on, most of a loss is in one place.
_MOST = 0.6

#: From so many ranks on, one of them can be the place.
_SEVERAL = 2

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
#: The rule of each cause of idle time. The causes are disjoint, so no two findings claim one time.
_IDS = {
    causes.PROFILER: "profiler-overhead",
    causes.SHORT_GAP: "short-gaps",
    causes.DEVICE_WAIT: "device-wait",
    causes.DATALOADING: "data-loading",
    causes.BATCH_COPY: "batch-copies",
    causes.MODULE_LOADING: "module-loading",
    causes.SYNCHRONISATION: "synchronisation",
    causes.MEMORY_MANAGEMENT: "memory-management",
    causes.CHECKPOINT_IO: "checkpoints",
    causes.PEER: "waiting-for-ranks",
    causes.LAUNCH: "launch-bound",
    causes.HOST_CODE: "host-code",
    causes.UNKNOWN: "unknown-idleness",
}
#: The rules of causes of exposed communication.
_COMM_IDS = {SLOW: "slow-collectives", OUTLIER: "collective-outliers", LINK: "slow-link"}

#: Names alone show these, and people name things as they like.
_CONFIDENCE: Mapping[str, Confidence] = {causes.HOST_CODE: "medium", causes.UNKNOWN: "low"}


def _judge(cause: str, result: GpuIdle, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    losses = time.of_cause(cause)
    total = int(losses["lost_ns"].sum())
    if not total:
        return
    known: Confidence = "high" if result.host_known else "medium"
    rank = _only_rank(losses)
    advice = result.advice(cause, time.text(total))
    yield Measured(
        size=time.frac(total),
        title=_title(cause, result, losses, time, rank),
        evidence=tuple(_evidence(result, cause, answers, rank)),
        advice=f"{advice}{_graph_advice(cause, answers)}",
        total_ns=total,
        confidence="low" if result.work_lost else _CONFIDENCE.get(cause, known),
        rank=rank,
        step=_only_step(losses),
        intervals=_intervals(losses),
    )


def _title(
    cause: str, result: GpuIdle, losses: pl.DataFrame, time: DeviceTime, rank: int | None
) -> str:
    total = int(losses["lost_ns"].sum())
    size = f"{format_frac(time.frac(total))} of {time.of} ({time.text(total)})"
    what = "main thread" if result.on_host else "GPU"
    where = _in_steps(losses, time, rank)
    if rank is not None and losses["waited"].any():
        idle = f"Rank {rank} is idle{where}, {causes.WAITING[cause]}"
        return f"{idle}, and the other ranks wait for it: {size}."
    who = f"the {what} is idle" if result.units.height == 1 else f"the {what}s are idle"
    who = who if rank is None else f"rank {rank} is idle"
    return f"For {size} {who}{where}, {causes.WAITING[cause]}."


def _in_steps(losses: pl.DataFrame, time: DeviceTime, rank: int | None) -> str:
    """In which steps most of it is, where these are few: `` in 2 of 6 steps``."""
    there = losses.filter(~pl.col("waited"))
    if rank is not None:
        there = there.filter(root_rank=rank)
    steps = there.drop_nulls("step").group_by("step").agg(pl.col("lost_ns").sum())
    ordered = steps.sort("lost_ns", "step", descending=[True, False])
    before = pl.col("lost_ns").cum_sum() - pl.col("lost_ns")
    most = ordered.filter(before < _MOST * pl.col("lost_ns").sum())
    every = time.windows["step"].drop_nulls().n_unique()
    if not most.height or 2 * most.height > every:
        return ""
    if most.height == 1:
        return f" in {most['step'][0]}"
    return f" in {most.height:,} of {every:,} steps"


def _only_rank(losses: pl.DataFrame) -> int | None:
    """The rank at which most of a loss begins, where there are several."""
    if losses["rank"].n_unique() < _SEVERAL:
        return None
    sums = losses.drop_nulls("root_rank").group_by("root_rank").agg(pl.col("lost_ns").sum())
    top = sums.sort("lost_ns", "root_rank", descending=[True, False]).head(1)
    enough = top.filter(pl.col("lost_ns") >= _MOST * int(losses["lost_ns"].sum()))
    found: list[int] = enough["root_rank"].to_list()
    return found[0] if found else None


def _only_step(losses: pl.DataFrame) -> str | None:
    """The step in which most of a loss is."""
    sums = losses.drop_nulls("step").group_by("step").agg(pl.col("lost_ns").sum())
    most = sums.filter(pl.col("lost_ns") >= _MOST * int(losses["lost_ns"].sum()))
    found: list[str] = most["step"].to_list()
    return found[0] if found and losses["step"].n_unique() > 1 else None


def explained_by(
    losses: pl.DataFrame, whole_ns: float, column: str = "lost_ns"
) -> dict[str, float]:
    """The share of a time that other findings explain, by their ids.

    Args:
        losses: cause and ``column``, the time that is explained.
        whole_ns: the time in question.
        column: where the times are.
    """
    sums = losses.group_by("cause").agg(pl.col(column).sum()).sort("cause")
    shares: dict[str, float] = {}
    for cause, ns in sums.iter_rows():
        id_ = _IDS.get(cause) or _COMM_IDS.get(cause) or "late-rank"
        shares[id_] = shares.get(id_, 0.0) + min(ns / whole_ns, 1.0)
    return shares


def _intervals(losses: pl.DataFrame) -> pl.DataFrame:
    return losses.select("rank", "device", start_ns="start", end_ns="end")


def _cost(cause: str) -> pl.Expr:
    """Idle time of a cause. Short gaps in which nothing was launched yet are launch-bound."""
    time = pl.col(f"{cause}_ns")
    if cause == causes.LAUNCH:
        return time + pl.col("short_launch_ns")
    return time - pl.col("short_launch_ns") if cause == causes.SHORT_GAP else time


def _evidence(result: GpuIdle, cause: str, answers: Answers, rank: int | None) -> Iterator[str]:
    if rank is not None:
        yield from _waits_for(answers.time, cause, rank)
    if result.work_lost and result.on_host:
        yield "GPU work is missing in the file, so this is the main thread alone."
    elif result.work_lost:
        yield CUT_OFF
    if rank is None:
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


def _waits_for(time: DeviceTime, cause: str, rank: int) -> Iterator[str]:
    """How long the rank is idle, and how long the others wait for it, in which collective."""
    losses = time.of_cause(cause).filter(pl.col("root_rank") == rank)
    own, waited = (
        int(losses.filter(which)["lost_ns"].sum()) for which in (~pl.col("waited"), "waited")
    )
    if not waited:
        return
    waits = losses.filter("waited")
    by = waits.group_by("collective").agg(pl.col("lost_ns").sum(), pl.col("rank").n_unique())
    name, _, ranks = by.sort("lost_ns", "collective", descending=[True, False]).row(0)
    yield (
        f"Rank {rank} itself is idle for {format_ns(own)}; {format_count(ranks, 'other rank')} "
        f"wait {format_ns(waited)} in total for it, most of it in {name}."
    )
    yield (f"Without it, exposed communication falls by {time.text(waited)} at most.")


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
    sums = gaps.group_by(place=place).agg(pl.col("cause_ns").sum(), pl.len())
    whole = int(gaps["cause_ns"].sum())
    top = largest_first(sums.drop_nulls("place"), "cause_ns", "place").head(1)
    for name, ns, n in top.iter_rows():
        if gaps.height > 1 and 2 * ns >= whole:
            most = f"{n:,} of the {gaps.height:,} longest ({format_frac(ns / whole)} of their time)"
            yield f"In {most} it is in {name}."


def _loading(result: GpuIdle) -> Iterator[str]:
    """What was recognised as data loading, and the code that costs the time in it."""
    hidden = int(result.units["hidden_loader_ns"].sum())
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


# --- communication ---------------------------------------------------------------------------

#: So many things are named.
_NAMED = 3

#: What other findings leave unexplained of a straggler's delay is a finding from this share on.
_MUCH_LEFT = 0.2


@rule(
    "comm_outliers",
    "the other ranks wait for one that comes late to collectives",
    "exposed wait time of the other ranks for it as a share of their step time (of the recorded "
    "time, where no steps are marked)",
    {"warning": WARN_FRAC, "critical": CRITICAL_FRAC},
    uses=("gpu_idle", "kernels"),
)
def _late_rank(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    if pipeline.is_balanced(time):
        return  # ranks wait for the schedule, see pipeline-bubble
    waits = time.losses.filter("waited", pl.col("root_rank").is_not_null())
    by_rank = waits.group_by(rank="root_rank").agg(pl.col("lost_ns").sum())
    for rank, total in largest_first(by_rank, "lost_ns", "rank").head(_NAMED).iter_rows():
        yield _straggler(result, answers, rank, total)


def _straggler(result: CommOutliers, answers: Answers, rank: int, total: int) -> Measured:
    time = answers.time
    waits = time.waits_for(rank)
    by_cause = dict(waits.group_by("cause").agg(pl.col("lost_ns").sum()).iter_rows())
    others = time.windows.filter(pl.col("rank") != rank)
    share = total / max(others.select((pl.col("end") - pl.col("start")).sum()).item(), 1)
    explained = explained_by(waits.filter(pl.col("cause").is_in(list(_IDS))), total)
    left = 1 - sum(explained.values())
    own = result.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    reason = straggling.reason(answers, rank, by_cause)
    wait = f"{format_frac(share)} of their {time.of.removeprefix('the ')}"
    return Measured(
        size=share if left < _MUCH_LEFT else share * left,
        title=f"Rank {rank} is a straggler{f': {reason}' if reason else ''}; the other ranks wait "
        f"for it, {wait}.",
        evidence=(*straggling.why(by_cause), *_of_late_rank(result, own)),
        advice=straggling.advice(answers, rank, by_cause),
        total_ns=round(total * left) if left >= _MUCH_LEFT else total,
        confidence="high" if own["late_steps"] >= WARN_STEPS else "medium",
        rank=rank,
        step=_only_step(waits),
        intervals=_intervals(waits),
        explained=explained,
    )


def _of_late_rank(result: CommOutliers, row: Mapping[str, Any]) -> Iterator[str]:
    """How often and how much it was late, which ranks it delayed, and what it did meanwhile."""
    last = f"It arrived last at {row['times_last']:,} of {row['matched']:,} collectives"
    late = result.late_ranks().filter(pl.col("rank") == row["rank"])
    if late.is_empty():
        yield f"{last}."
        return
    if victims := passed_on(late.row(0, named=True)):
        yield victims
    worst = result.worst_of(row["rank"])
    yield (
        f"{last}, at worst {format_ns(worst['late_ns'])} after the median of the others"
        f"{_at(worst['step'])}."
    )
    did = [f"{side}: {worst[side]}" for side in ("host", "device") if worst[side] is not None]
    if did:
        yield f"Meanwhile on its {'; on its '.join(did)}."


@rule(
    "comm_outliers",
    "pipeline stages wait for each other although they have equal work",
    "exposed wait time in sends and receives as a share of step time (of the recorded time, where "
    "no steps are marked)",
    {"warning": 0.1, "critical": 0.3},
    uses=("gpu_idle",),
)
def _pipeline_bubble(_: CommOutliers, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    if pipeline.is_balanced(time):
        waits = time.losses.filter("waited")
        total = int(waits["lost_ns"].sum())
        yield Measured(
            size=time.frac(total),
            title=f"Pipeline bubble: for {format_frac(time.frac(total))} of {time.of} "
            f"({time.text(total)}) ranks wait for the stages before or after them.",
            evidence=tuple(pipeline.schedule(time, answers)),
            advice="Use more micro-batches per step, or a schedule with a smaller bubble "
            "(interleaved 1F1B, zero bubble).",
            total_ns=total,
            intervals=_intervals(waits),
        )


@rule(
    "comm_outliers",
    "collectives took long on all ranks after the last had arrived",
    "exposed time beyond the usual as a share of step time (or of the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _slow_collectives(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    slow = result.collectives.filter("slow").sort(
        "slow_factor", "instance", descending=[True, False]
    )
    if slow.is_empty():
        return
    worst = slow.row(0, named=True)
    claimed = _claimed(answers, SLOW)
    if claimed is None:
        return
    losses, total, size = claimed
    yield Measured(
        size=size,
        title=f"{format_count(slow.height, 'collective')} of {result.n_collectives:,} took long "
        f"on all ranks after the last had arrived{_at_cost(answers, total)}.",
        evidence=(_worst(worst, worst["pure_ns"], worst["slow_factor"]),),
        advice="The network or NVLink was slow or shared: compare the nodes and the time of day, "
        "look at NCCL's log (NCCL_DEBUG=INFO) for the transport and at other jobs on the fabric.",
        total_ns=total,
        confidence="high" if result.n_ranks > 1 else "medium",
        step=_only_step(losses) or (worst["step"] if slow.height == 1 else None),
        intervals=_intervals(losses),
    )


@rule(
    "comm_outliers",
    "collectives took much longer than others of their kind, and nothing explains it",
    "exposed time beyond the usual as a share of step time (or of the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _collective_outliers(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    found = result.outliers().filter(pl.col("cause").is_null())
    if found.is_empty():
        return
    worst = found.row(0, named=True)
    claimed = _claimed(answers, OUTLIER)
    if claimed is None:
        return
    losses, total, size = claimed
    yield Measured(
        size=size,
        title=f"{format_count(found.height, 'collective')} of {result.n_events:,} took much longer "
        f"than others of the kind{_at_cost(answers, total)}.",
        evidence=(_worst(worst, worst["duration_ns"], worst["factor"]),),
        advice="The files of all ranks tell whether that was waiting for a late rank or slow "
        "communication."
        if result.n_ranks == 1
        else "See when they happened and what ran beside them.",
        total_ns=total,
        confidence="low" if result.n_ranks == 1 else "medium",
        rank=_only_rank(losses),
        step=_only_step(losses),
        intervals=_intervals(losses),
    )


@rule(
    "comm_outliers",
    f"large collectives use less than {SLOW_LINK_FRAC:.0%} of their link's bandwidth",
    f"exposed time beyond that at {SLOW_LINK_FRAC:.0%} of the link as a share of step time (or of "
    "the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _slow_link(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    sentences = slow_links(result)
    if not sentences:
        return
    claimed = _claimed(answers, LINK)
    if claimed is None:
        return
    losses, total, size = claimed
    yield Measured(
        size=size,
        title=sentences[0],
        evidence=tuple(sentences[1:_NAMED]),
        advice="See which transport NCCL chose (NCCL_DEBUG=INFO): P2P disabled, a missing NVLink "
        "bridge, shared memory or sockets instead of NVLink or InfiniBand."
        + ("" if result.n_matched else " The files of all ranks show how much is wait time."),
        total_ns=total,
        confidence="medium" if result.n_matched else "low",
        intervals=_intervals(losses),
    )


@rule(
    "comm_outliers",
    "devices were nearly full while collectives were slow",
    "share of the slow collectives during which the device was nearly full",
    {"warning": 0.1, "critical": 0.5},
)
def _nearly_full_memory(result: CommOutliers, _: Answers) -> Iterator[Measured]:
    if result.memory is None or result.memory.is_empty():
        return
    full = result.memory.filter("near_full").sort("taken_frac", "id", descending=[True, False])
    if full.is_empty():
        return
    worst = full.row(0, named=True)
    yield Measured(
        size=full.height / result.memory.height,
        title=f"The device was nearly full during {full.height:,} of {result.memory.height:,} slow "
        f"collectives: {format_frac(worst['taken_frac'])} at most.",
        advice="That leaves NCCL small buffers: keep some memory free, with a smaller batch or "
        "torch.cuda.memory.set_per_process_memory_fraction(0.9).",
        cost_bytes=worst["taken_bytes"],
        cost_frac=worst["taken_frac"],
        of="the device's memory",
        confidence="medium",
    )


@rule(
    "overlap",
    "communication is not hidden behind compute",
    "exposed communication without wait time and without what slow collectives took too long, as a "
    "share of step time (or of the recorded time)",
    {"info": 0.05, "warning": 0.1, "critical": 0.3},
)
def _exposed_communication(result: Overlap, answers: Answers) -> Iterator[Measured]:
    time, sums = answers.time, result.scalars
    if not sums["exposed_communication_ns"]:
        return
    rest = time.of_cause(EXPOSED).filter(~pl.col("waited"))
    waits = time.losses.filter("waited")
    slow = time.losses.filter(pl.col("cause").is_in((SLOW, OUTLIER, LINK)))
    total = int(rest["lost_ns"].sum())
    whole = total + sum(int(rows["lost_ns"].sum()) for rows in (waits, slow))
    if not whole:
        return
    waited_ns = int(waits["lost_ns"].sum())
    besides = f" besides wait time for other ranks ({time.text(waited_ns)})" if waited_ns else ""
    yield Measured(
        size=time.frac(total),
        title=f"Communication that nothing overlaps takes {format_frac(time.frac(total))} of "
        f"{time.of} ({time.text(total)}){besides}.",
        evidence=(
            f"{format_frac(sums['overlap_frac'])} of all communication is overlapped.",
            *filter(None, (why_exposed(result),)),
            *_kinds_of_collectives(answers),
        ),
        advice=advice(result, waits=not waited_ns),
        total_ns=total,
        intervals=_intervals(rest),
        explained=explained_by(pl.concat([waits, slow]), whole),
    )


def _kinds_of_collectives(answers: Answers) -> Iterator[str]:
    """Which kind of collective takes most, and how much of all is waiting."""
    found = answers.get("comm_outliers")
    if not isinstance(found, CommOutliers) or not found.total_comm_ns:
        return
    if found.n_matched:
        share = found.total_wait_ns / found.total_comm_ns
        yield f"{format_frac(share)} of all communication is waiting for the last rank."
    if small := small_collectives(found):
        yield small
    top = found.groups.row(0, named=True) if found.groups.height else None
    if top is not None:
        speed = top["pure_busbw_gbps"] or top["busbw_gbps"]
        rate = f", at a bus bandwidth of {speed:.3g} GB/s" if speed else ""
        took = f"{top['n']:,} take {format_ns(top['total_ns'])}"
        yield f"Most time goes to {_what(top)}: {took}{rate}."


@rule(
    "overlap",
    "copies run while neither compute nor communication does",
    "exposed copies and sets as a share of the devices' time",
    {"warning": 0.05, "critical": 0.2},
)
def _exposed_copies(result: Overlap, answers: Answers) -> Iterator[Measured]:
    sums = result.scalars
    cost, span = sums["exposed_memory_ns"], sums["span_ns"]
    if not cost or not span:
        return
    ways = _ways(answers)
    top = ways.row(0, named=True) if ways.height else {"direction": "", "memory": ""}
    main = _WAYS.get(top["direction"], "") if ways.height else ""
    yield Measured(
        size=cost / span,
        title=f"Copies{main} run while no kernel does: copies and memsets beside which nothing "
        f"else runs take {format_frac(cost / span)} of the devices' time.",
        evidence=tuple(_of_way(row) for row in ways.head(_NAMED).iter_rows(named=True)),
        advice=_copying(top["direction"], top["memory"] or "", answers),
        total_ns=cost,
    )


#: Directions of copies in a sentence.
_WAYS = {
    "HtoD": " from the host to the device",
    "DtoH": " from the device to the host",
    "DtoD": " within the device",
    "PtoP": " between devices",
}


def _ways(answers: Answers) -> pl.DataFrame:
    """The kinds of copies without a kernel beside them, the most such time first."""
    found = answers.get("transfers")
    if not isinstance(found, Transfers):
        return pl.DataFrame()
    exposed = found.copies.filter(pl.col("exposed_ns") > 0)
    return largest_first(exposed, "exposed_ns", "direction", "memory")


def _of_way(row: Mapping[str, Any]) -> str:
    memory = f" ({row['memory']})" if row["memory"] else ""
    size = f" of {format_bytes(row['moved_bytes'])} in total" if row["moved_bytes"] else ""
    count = f"{row['n']:,} {'copy' if row['n'] == 1 else 'copies'}"
    if row["direction"] == "set":
        count = format_count(row["n"], "memset")
    alone = f"{format_ns(row['exposed_ns'])} without a kernel"
    return f"{row['direction']}{memory}: {count}{size}, {alone}."


def _copying(direction: str, memory: str, answers: Answers) -> str:
    """What may help against exposed copies, by their direction and memory."""
    if direction == "DtoD":
        return (
            "Avoid copies within the device (clone, contiguous, concatenation, changes of layout "
            "or type), or fuse them into the kernels that use the data; transfers lists them."
        )
    pytorch = answers.program.pytorch
    if "Pageable" in memory or not memory:
        pinned = "DataLoader(pin_memory=True), tensor.pin_memory()" if pytorch else "cudaMallocHost"
        start = f"Pinned host memory ({pinned}) and asynchronous copies let"
    else:
        start = "Asynchronous copies on a separate stream, started earlier, let"
    how = " with .to(device, non_blocking=True)" if pytorch else " with cudaMemcpyAsync"
    return f"{start} them run beside compute{how}; transfers lists them."


@rule(
    "transfers",
    "managed memory migrates when it is touched",
    "time of migrations and of GPU page faults, the larger, as a share of the devices' time",
    {"info": 0.02, "warning": 0.1, "critical": 0.3},
)
def _migrations(result: Transfers, _: Answers) -> Iterator[Measured]:
    rows = result.findings.filter(pl.col("finding").cast(pl.String) == MIGRATIONS)
    if rows.is_empty() or not result.span_ns:
        return
    faults = result.faults.filter("on_gpu")["total_ns"].sum()
    cost = max(int(rows["total_ns"].sum()), int(faults))
    moved = f"{format_count(int(rows['n'].sum()), 'migration')} move"
    size = format_bytes(int(rows["moved_bytes"].sum()))
    yield Measured(
        size=cost / result.span_ns,
        title=f"Migrations and page faults of managed memory take {format_ns(cost)}, "
        f"{format_frac(cost / result.span_ns)} of the devices' time.",
        evidence=(f"{moved} {size}{page_faults(result.faults)}.",),
        advice=f"{ADVICE[MIGRATIONS][:1].upper()}{ADVICE[MIGRATIONS][1:]}.",
        total_ns=cost,
    )


def _claimed(answers: Answers, cause: str) -> tuple[pl.DataFrame, int, float] | None:
    """The losses of a cause, how much that is in total, and its share of the devices' time."""
    time = answers.time
    losses = time.of_cause(cause)
    total = int(losses["lost_ns"].sum())
    return (losses, total, time.frac(total)) if total else None


def _at_cost(answers: Answers, total: int) -> str:
    return f": {answers.time.text(total)} of exposed communication beyond the usual"


def _worst(row: Mapping[str, Any], took_ns: int, factor: float) -> str:
    return (
        f"The worst, {_what(row)}{_at(row['step'])}, took {format_ns(took_ns)}, {factor:.3g} times "
        "the usual."
    )


def _what(row: Mapping[str, Any]) -> str:
    """``all_gather of 64 MiB``."""
    size = row.get("message_bytes")
    return f"{row['collective']}{f' of {format_bytes(size)}' if size else ''}"


def _at(step: str | None) -> str:
    return f" in {step}" if step else ""


RULES = (
    _late_rank,
    _pipeline_bubble,
    _slow_collectives,
    _collective_outliers,
    _slow_link,
    _nearly_full_memory,
    _exposed_communication,
    _exposed_copies,
    _migrations,
    *(
        Rule(
            _IDS[cause],
            "gpu_idle",
            f"devices are idle: {causes.WAITING[cause]}",
            "share of step time (of the recorded time, where no steps are marked)",
            _OTHER_LEVELS.get(cause, _LEVELS),
            partial(_judge, cause),
            uses=("comm_outliers", "cuda_api", "info", "launches"),
        )
        for cause in causes.CAUSES
    ),
)
