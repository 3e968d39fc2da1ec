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
from traceanalyzer.analyzers.common.places import at_start, places
from traceanalyzer.analyzers.cuda_api import findings
from traceanalyzer.analyzers.cuda_api.result import CudaApi
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule, rule
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import CUT_OFF, GpuIdle
from traceanalyzer.analyzers.launches.calls import DEVICE, SHORT_KERNEL_NS
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.analyzers.overlap.result import Overlap, advice, why_exposed
from traceanalyzer.analyzers.transfers.result import ADVICE, MIGRATIONS, Transfers, page_faults
from traceanalyzer.result import Confidence, Severity
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: A device with this many times the median idle time of a cause is named.
_APART = 2

#: From so many steps of so many launches on, equal numbers of launches are no chance.
_ENOUGH_STEPS, _MANY_LAUNCHES = 3, 10

_LEVELS: Mapping[Severity, float] = {"warning": 0.05, "critical": 0.2}
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
#: Names alone show these, and people name things as they like.
_CONFIDENCE: Mapping[str, Confidence] = {causes.HOST_CODE: "medium", causes.UNKNOWN: "low"}


def _judge(cause: str, result: GpuIdle, answers: Answers) -> Iterator[Measured]:
    rows = result.steps if result.step_ns else result.units
    whole, cost = result.step_ns or result.span_ns, int(rows.select(_cost(cause).sum()).item())
    if not whole or not cost:
        return
    share = cost / whole
    what = "main thread" if result.on_host else "GPU"
    who = f"the {what} is idle" if result.units.height == 1 else f"the {what}s are idle"
    known: Confidence = "high" if result.host_known else "medium"
    of = "step time" if result.step_ns else "the recorded time"
    yield Measured(
        size=share,
        title=f"For {format_frac(share)} of {of} {who}, {causes.WAITING[cause]}: "
        f"{format_ns(cost)}{_per_step(result, cost)}.",
        evidence=tuple(_evidence(result, cause, answers)),
        advice=f"{result.advice(cause, format_ns(cost))}{_graph_advice(cause, answers)}",
        cost_ns=cost,
        of=of,
        confidence="low" if result.work_lost else _CONFIDENCE.get(cause, known),
    )


def _cost(cause: str) -> pl.Expr:
    """Idle time of a cause. Short gaps in which nothing was launched yet are launch-bound."""
    time = pl.col(f"{cause}_ns")
    if cause == causes.LAUNCH:
        return time + pl.col("short_launch_ns")
    return time - pl.col("short_launch_ns") if cause == causes.SHORT_GAP else time


def _per_step(result: GpuIdle, cost: int) -> str:
    steps = result.steps.height
    return f", {format_ns(cost / steps)} a step" if steps else ""


def _evidence(result: GpuIdle, cause: str, answers: Answers) -> Iterator[str]:
    if result.work_lost and result.on_host:
        yield "GPU work is missing in the file, so this is the main thread alone."
    elif result.work_lost:
        yield CUT_OFF
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
    yield (
        f"The longest such gap takes {format_ns(gap['end'] - gap['start'])}{step}"
        f"{f', while the host is in {inside}{frame}' if inside else ''}."
    )
    if gap["sampled"]:
        share = format_frac(gap["sampled_frac"])
        yield f"{share} of the stacks sampled in it are in {gap['sampled']}."
    if cause == causes.DEVICE_WAIT and gap["waits_for"]:
        yield f"{gap['waits_for']} was called before the launch of the kernel that ends it."


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


# --- communication ---------------------------------------------------------------------------

#: So many ranks are named.
_NAMED = 3


@rule(
    "comm_outliers",
    "the other ranks wait for one that comes late to collectives",
    "what the rank costs the others, as a share of all steps' time (without two steps: of "
    "the recorded time)",
    {"warning": WARN_FRAC, "critical": CRITICAL_FRAC},
)
def _late_rank(result: CommOutliers, _: Answers) -> Iterator[Measured]:
    for row in result.late_ranks().head(_NAMED).iter_rows(named=True):
        own = result.ranks.filter(pl.col("rank") == row["rank"]).row(0, named=True)
        told = result.steps.height >= WARN_STEPS
        share = own["late_frac"] if told else _share(row["imposed_ns"], result.total_span_ns)
        yield Measured(
            size=share,
            title=f"Rank {row['rank']} is a straggler: other ranks waited "
            f"{format_ns(row['imposed_ns'])} in total for it"
            f"{f', {format_frac(share)} of step time' if told else ''}.",
            evidence=tuple(_of_late_rank(result, row)),
            advice=f"Look at what rank {row['rank']} does before it arrives: more data or slower "
            "loading than on the others, a slower device or host, other work on its node.",
            cost_ns=row["imposed_ns"],
            of="step time" if told else "the recorded time",
            confidence="high" if own["late_steps"] >= WARN_STEPS else "low",
        )


def _of_late_rank(result: CommOutliers, row: Mapping[str, Any]) -> Iterator[str]:
    worst = result.worst_of(row["rank"])
    if row["victims"]:
        yield passed_on(row)
    yield (
        f"It arrived last at {row['times_last']:,} of {row['matched']:,} collectives, at worst "
        f"{format_ns(worst['late_ns'])} after the median of the others{_at(worst['step'])}."
    )
    did = [f"{side}: {worst[side]}" for side in ("host", "device") if worst[side] is not None]
    if did:
        yield f"Meanwhile on its {'; on its '.join(did)}."


@rule(
    "comm_outliers",
    "collectives took long on all ranks after the last had arrived",
    "time beyond the usual, as a share of the recorded time",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
)
def _slow_collectives(result: CommOutliers, _: Answers) -> Iterator[Measured]:
    slow = result.collectives.filter("slow").sort(
        "slow_factor", "instance", descending=[True, False]
    )
    if slow.is_empty():
        return
    worst = slow.row(0, named=True)
    over = pl.col("pure_ns") * (1 - 1 / pl.col("slow_factor")) * pl.col("ranks")
    cost = round(slow.select(over.sum()).item())
    share = _share(cost, result.total_span_ns)
    yield Measured(
        size=share,
        title=f"{format_count(slow.height, 'collective')} of {result.n_collectives:,} took long "
        "on all ranks after the last had arrived: "
        f"{format_ns(cost)} beyond the usual, on all together.",
        evidence=(_worst(worst, worst["pure_ns"], worst["slow_factor"]),),
        advice="The network or NVLink was slow or shared: compare the nodes and the time of day, "
        "look at NCCL's log (NCCL_DEBUG=INFO) for the transport and at other jobs on the fabric.",
        cost_ns=cost,
        of="the recorded time",
        confidence="high" if result.n_ranks > 1 else "medium",
    )


@rule(
    "comm_outliers",
    "collectives took much longer than others of their kind, and nothing explains it",
    "time beyond the usual, as a share of the recorded time",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
)
def _collective_outliers(result: CommOutliers, _: Answers) -> Iterator[Measured]:
    found = result.outliers().filter(pl.col("cause").is_null())
    if found.is_empty():
        return
    worst, cost = found.row(0, named=True), int(found["over_ns"].sum())
    share = _share(cost, result.total_span_ns)
    yield Measured(
        size=share,
        title=f"{format_count(found.height, 'collective')} of {result.n_events:,} took much longer "
        f"than others of the kind: {format_ns(cost)} beyond the usual.",
        evidence=(_worst(worst, worst["duration_ns"], worst["factor"]),),
        advice="The files of all ranks tell whether that was waiting for a late rank or slow "
        "communication."
        if result.n_ranks == 1
        else "See when they happened and what ran beside them.",
        cost_ns=cost,
        of="the recorded time",
        confidence="low" if result.n_ranks == 1 else "medium",
    )


@rule(
    "comm_outliers",
    f"large collectives use less than {SLOW_LINK_FRAC:.0%} of their link's bandwidth",
    f"time beyond that at {SLOW_LINK_FRAC:.0%} of the link, as a share of the recorded time",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
)
def _slow_link(result: CommOutliers, _: Answers) -> Iterator[Measured]:
    sentences = slow_links(result)
    if not sentences:
        return
    took = pl.coalesce("pure_ns", "median_ns") * pl.col("n")
    over = took * (1 - pl.col("link_frac") / SLOW_LINK_FRAC)
    cost = round(result.slow_links.select(over.sum()).item())
    yield Measured(
        size=_share(cost, result.total_span_ns),
        title=sentences[0],
        evidence=tuple(sentences[1:_NAMED]),
        advice="See which transport NCCL chose (NCCL_DEBUG=INFO): P2P disabled, a missing NVLink "
        "bridge, shared memory or sockets instead of NVLink or InfiniBand."
        + ("" if result.n_matched else " The files of all ranks show how much is wait time."),
        cost_ns=cost,
        of="the recorded time",
        confidence="medium" if result.n_matched else "low",
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
    "exposed communication as a share of the devices' time",
    {"warning": 0.1, "critical": 0.3},
)
def _exposed_communication(result: Overlap, answers: Answers) -> Iterator[Measured]:
    sums = result.scalars
    cost, span, whole = (
        sums[name] for name in ("exposed_communication_ns", "span_ns", "communication_ns")
    )
    if not cost or not span:
        return
    share = cost / span
    yield Measured(
        size=share,
        title=f"Exposed communication takes {format_ns(cost)}, {format_frac(share)} of the "
        "devices' time.",
        evidence=(
            f"{format_frac(sums['overlap_frac'])} of {format_ns(whole)} is overlapped.",
            *filter(None, (why_exposed(result),)),
            *_kinds_of_collectives(answers),
        ),
        advice=advice(result),
        cost_ns=cost,
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
        yield f"Most time goes to {_what(top)}: {top['n']:,} take {format_ns(top['total_ns'])}."


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
    yield Measured(
        size=cost / span,
        title=f"Copies and sets beside which nothing else runs take {format_ns(cost)}, "
        f"{format_frac(cost / span)} of the devices' time.",
        advice=_copying(answers),
        cost_ns=cost,
    )


def _copying(answers: Answers) -> str:
    """What may help against exposed copies, by the memory that they are from."""
    found = answers.get("transfers")
    memory = found.copies["memory"] if isinstance(found, Transfers) else pl.Series([None])
    if memory.is_null().any() or memory.str.contains("Pageable").any():
        start = "Pinned memory (DataLoader(pin_memory=True)) and .to(device, non_blocking=True) let"
    else:
        start = "A stream of their own, with .to(device, non_blocking=True) in PyTorch, lets"
    return f"{start} copies run beside compute; transfers lists them."


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
        cost_ns=cost,
    )


def _worst(row: Mapping[str, Any], took_ns: int, factor: float) -> str:
    return (
        f"The worst, {_what(row)}{_at(row['step'])}, took {format_ns(took_ns)}, {factor:.3g} times "
        "the usual."
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _what(row: Mapping[str, Any]) -> str:
    """``all_gather of 64 MiB``."""
    size = row.get("message_bytes")
    return f"{row['collective']}{f' of {format_bytes(size)}' if size else ''}"


def _at(step: str | None) -> str:
    return f" in {step}" if step else ""


RULES = (
    _late_rank,
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
            uses=("cuda_api", "launches"),
        )
        for cause in causes.CAUSES
    ),
)
