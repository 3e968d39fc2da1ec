"""Rules about what devices wait for: the host, other ranks, communication."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.arrivals import CRITICAL_FRAC, WARN_FRAC, WARN_STEPS
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common.places import at_start, places
from traceanalyzer.analyzers.cuda_api import findings
from traceanalyzer.analyzers.cuda_api.result import CudaApi
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule, rule
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import CUT_OFF, GpuIdle
from traceanalyzer.analyzers.launches.calls import SHORT_KERNEL_NS
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.result import Confidence, Severity
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns

#: From this many times the median on, one device's idleness is told apart.
_APART = 2

_LEVELS: Mapping[Severity, float] = {"warning": 0.05, "critical": 0.2}
#: What is not a fault, or is measured better by another rule.
_OWN_LEVELS: Mapping[str, Mapping[Severity, float]] = {
    causes.PROFILER: {"info": 0.05, "warning": 0.2},
    causes.SHORT_GAP: {"info": 0.1, "warning": 0.3},
    causes.LAUNCH: {"info": 0.2, "warning": 0.4},
}
_IDS = {
    causes.PROFILER: "profiler-overhead",
    causes.SHORT_GAP: "short-gaps",
    causes.DATALOADING: "data-loading",
    causes.BATCH_COPY: "batch-copies",
    causes.SYNCHRONISATION: "synchronisation",
    causes.MEMORY_MANAGEMENT: "memory-management",
    causes.CHECKPOINT_IO: "checkpoints",
    causes.PEER: "waiting-for-ranks",
    causes.LAUNCH: "launch-overhead",
    causes.HOST_CODE: "host-code",
    causes.UNKNOWN: "unknown-idleness",
}
#: Names alone tell these, and people name things as they like.
_CONFIDENCE: Mapping[str, Confidence] = {causes.HOST_CODE: "medium", causes.UNKNOWN: "low"}


def _judge(cause: str, result: GpuIdle, answers: Answers) -> Iterator[Measured]:
    column = f"{cause}_ns"
    rows = result.steps if result.step_ns else result.units
    whole, cost = result.step_ns or result.span_ns, int(rows[column].sum())
    if not whole or not cost:
        return
    share = cost / whole
    what = "training thread" if result.on_host else "GPU"
    who = f"the {what} is idle" if result.units.height == 1 else f"the {what}s are idle"
    known: Confidence = "high" if result.host_known else "medium"
    of = "step time" if result.step_ns else "the recorded time"
    yield Measured(
        size=share,
        title=f"For {format_frac(share)} of {of} {who}, {causes.WAITING[cause]}: "
        f"{format_ns(cost)}{_per_step(result, cost)}.",
        evidence=tuple(_evidence(result, cause, answers)),
        advice=_advice(result, cause, cost),
        cost_ns=cost,
        of=of,
        confidence="low" if result.work_lost else _CONFIDENCE.get(cause, known),
    )


def _per_step(result: GpuIdle, cost: int) -> str:
    steps = result.steps.height
    return f", {format_ns(cost / steps)} a step" if steps else ""


def _evidence(result: GpuIdle, cause: str, answers: Answers) -> Iterator[str]:
    if result.work_lost and result.on_host:
        yield "GPU work is missing in the file, so this is of the training thread alone."
    elif result.work_lost:
        yield CUT_OFF
    column = f"{cause}_ns"
    named = result.units.with_columns(places(result.units))
    order = named.sort(column, "on", descending=[True, False])
    worst, median = order.row(0, named=True), order[column].median()
    if named.height > 1 and isinstance(median, float) and worst[column] >= _APART * median:
        yield (
            f"{at_start(worst['on'])} stands out: {format_ns(worst[column])} against "
            f"{format_ns(median)} (median)."
        )
    gaps = result.gaps.filter(pl.col("cause").cast(pl.String) == cause)
    if gaps.height:
        gap = gaps.sort(pl.col("end") - pl.col("start"), descending=True).row(0, named=True)
        step = f", in {gap['step']}" if gap["step"] else ""
        inside = gap["host_event"] or gap["python"]
        yield (
            f"The longest such gap takes {format_ns(gap['end'] - gap['start'])}{step}"
            f"{f', while the host is in {inside}' if inside else ''}."
        )
    if cause == causes.DATALOADING:
        hidden = int(result.units["hidden_loader_ns"].sum())
        if hidden:
            yield f"The loader took another {format_ns(hidden)} while the GPU was busy."
    if cause == causes.SYNCHRONISATION:
        yield from _synchronising(answers)


def _synchronising(answers: Answers) -> Iterator[str]:
    """Where the host waits for the device, which launches knows."""
    found = answers.get("launches")
    if isinstance(found, Launches) and found.synchronising.height:
        worst = found.synchronising.row(0, named=True)
        where = worst["operator"] or worst["annotation"] or worst["python"]
        yield (
            f"Most of it is at {worst['call']}{f' in {where}' if where else ''}, "
            f"{worst['n']:,} {'time' if worst['n'] == 1 else 'times'}."
        )


def _advice(result: GpuIdle, cause: str, cost: int) -> str:
    code = result.hints["other code"]
    if cause == causes.UNKNOWN:
        return f"What the host did was not recorded: {code} shows which code runs meanwhile."
    if cause == causes.HOST_CODE:
        save = f"Moving it off the training loop would save {format_ns(cost)} at most."
        return f"The longest gaps tell where (gpu-idle lists them); {code} shows which code. {save}"
    return f"{causes.ADVICE[cause].format(code=code)} would save {format_ns(cost)} at most."


_CALLS = {
    findings.ASYNC_PAGEABLE: (
        "pageable-copies",
        "asynchronous copies from or to pageable memory block",
    ),
    findings.SYNC_MEMCPY: ("synchronous-copies", "copies by synchronous calls hold the host up"),
    findings.SYNC_MEMSET: (
        "synchronous-sets",
        "sets of memory by synchronous calls hold the host up",
    ),
    findings.ALLOC_IN_LOOP: ("allocation-in-loop", "memory is allocated or freed between launches"),
}


@rule(
    "launches",
    "devices run out of work again and again because the host launches too slowly",
    "waiting for launches as a share of the devices' time",
    {"warning": 0.05, "critical": 0.2},
)
def _launch_bound(result: Launches, _: Answers) -> Iterator[Measured]:
    if not result.waiting_ns or not result.span_ns:
        return
    share = result.waiting_ns / result.span_ns
    yield Measured(
        size=share,
        title=f"Launch-bound: for {format_frac(share)} of the devices' time "
        f"({format_ns(result.waiting_ns)}) they wait for the host's next launch.",
        evidence=tuple(_of_launches(result)),
        advice='Fewer and larger launches: CUDA graphs, torch.compile(mode="reduce-overhead"), '
        "fused or foreach optimizers, larger batches; and no .item(), .cpu() or print in the loop, "
        "so that the host can run ahead.",
        cost_ns=result.waiting_ns,
    )


def _of_launches(result: Launches) -> Iterator[str]:
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


def _calls(finding: str, result: CudaApi, _: Answers) -> Iterator[Measured]:
    for row in result.findings.filter(pl.col("finding").cast(pl.String) == finding).rows(
        named=True
    ):
        share = row["host_ns"] / result.span_ns if result.span_ns else 0.0
        moved = row["moved_bytes"]
        yield Measured(
            size=share,
            title=f"{row['n']:,} {findings.FINDINGS[finding].sentence(row['n'])} took the host "
            f"{format_ns(row['host_ns'])}, {format_frac(share)} of its time.",
            evidence=(f"They moved {format_bytes(moved)}.",) if moved else (),
            advice=f"{row['advice'][:1].upper()}{row['advice'][1:]}.",
            cost_ns=row["host_ns"],
            of="the host's time",
            confidence="medium",  # the host may have had time to spare
        )


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
            title=f"Rank {row['rank']} is late: the others together waited "
            f"{format_ns(row['imposed_ns'])} for it"
            f"{f', {format_frac(share)} of step time' if told else ''}.",
            evidence=tuple(_of_late_rank(result, row)),
            advice=f"Look at what rank {row['rank']} does before it arrives: more data or slower "
            "loading than on the others, a slower device or host, other work on its node.",
            cost_ns=row["imposed_ns"],
            of="step time" if told else "the recorded time",
            confidence="high" if own["late_steps"] >= WARN_STEPS else "low",
        )


def _of_late_rank(result: CommOutliers, row: Mapping[str, Any]) -> Iterator[str]:
    worst = result.late_with_context().filter(pl.col("rank") == row["rank"]).row(0, named=True)
    yield (
        f"It came last to {row['times_last']:,} of {row['matched']:,} collectives, at worst "
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
        title=f"Communication that no compute hides takes {format_ns(cost)}, {format_frac(share)} "
        "of the devices' time.",
        evidence=(
            f"Compute hides {format_frac(sums['overlap_frac'])} of {format_ns(whole)} in all.",
            *_kinds_of_collectives(answers),
        ),
        advice="Start collectives earlier and beside compute (smaller buckets, prefetching of "
        "shards, bucket_cap_mb, gradient accumulation); first see whether it is waiting for a late "
        "rank.",
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
    top = found.groups.row(0, named=True) if found.groups.height else None
    if top is not None:
        yield f"Most time goes to {_what(top)}: {top['n']:,} take {format_ns(top['total_ns'])}."


@rule(
    "overlap",
    "copies run while neither compute nor communication does",
    "exposed copies and sets as a share of the devices' time",
    {"warning": 0.05, "critical": 0.2},
)
def _exposed_copies(result: Overlap, _: Answers) -> Iterator[Measured]:
    sums = result.scalars
    cost, span = sums["exposed_memory_ns"], sums["span_ns"]
    if not cost or not span:
        return
    yield Measured(
        size=cost / span,
        title=f"Copies and sets beside which nothing else runs take {format_ns(cost)}, "
        f"{format_frac(cost / span)} of the devices' time.",
        advice="Pinned memory (DataLoader(pin_memory=True)) and .to(device, non_blocking=True) let "
        "copies run beside compute; transfers tells which they are.",
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
    _nearly_full_memory,
    _exposed_communication,
    _exposed_copies,
    *(
        Rule(
            _IDS[cause],
            "gpu_idle",
            f"devices are idle: {causes.WAITING[cause]}",
            "share of step time (of the recorded time, where no steps are marked)",
            _OWN_LEVELS.get(cause, _LEVELS),
            partial(_judge, cause),
        )
        for cause in causes.CAUSES
    ),
    _launch_bound,
    *(
        Rule(
            name,
            "cuda_api",
            looks_for,
            "time of the host in these calls, as a share of its recorded time",
            {"info": 0.01, "warning": 0.05, "critical": 0.25},
            partial(_calls, finding),
        )
        for finding, (name, looks_for) in _CALLS.items()
    ),
)
