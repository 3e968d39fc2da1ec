"""Rules about devices that wait for their host: idle time, steps, launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.places import at_start, places
from traceanalyzer.analyzers.cuda_api.findings import (
    ALLOC_IN_LOOP,
    ASYNC_PAGEABLE,
    FINDINGS,
    SYNC_MEMCPY,
    SYNC_MEMSET,
)
from traceanalyzer.analyzers.cuda_api.result import CudaApi
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import CUT_OFF, GpuIdle
from traceanalyzer.analyzers.launches.calls import SHORT_KERNEL_NS
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.result import Confidence, Severity
from traceanalyzer.units import format_bytes, format_frac, format_ns

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


def rules() -> tuple[Rule, ...]:
    """Idle time by cause, then CUDA calls and launches."""
    return (*_idle_rules(), *_call_rules())


def _idle_rules() -> tuple[Rule, ...]:
    """A rule for each cause of idleness."""
    return tuple(
        Rule(
            _IDS[cause],
            "gpu_idle",
            f"devices are idle: {causes.WAITING[cause]}",
            "share of step time (of the recorded time, where no steps are marked)",
            _OWN_LEVELS.get(cause, _LEVELS),
            partial(_judge, cause),
        )
        for cause in causes.CAUSES
    )


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
        cost_frac=share,
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
    ASYNC_PAGEABLE: ("pageable-copies", "asynchronous copies from or to pageable memory block"),
    SYNC_MEMCPY: ("synchronous-copies", "copies by synchronous calls hold the host up"),
    SYNC_MEMSET: ("synchronous-sets", "sets of memory by synchronous calls hold the host up"),
    ALLOC_IN_LOOP: ("allocation-in-loop", "memory is allocated or freed between launches"),
}


def _call_rules() -> tuple[Rule, ...]:
    """Launch-bound stretches, and each of the calls that hold the host up."""
    return (
        Rule(
            "launch-bound",
            "launches",
            "devices run out of work again and again because the host launches too slowly",
            "waiting for launches as a share of the devices' time",
            {"warning": 0.05, "critical": 0.2},
            _launch_bound,
        ),
        *(
            Rule(
                rule,
                "cuda_api",
                looks_for,
                "time of the host in these calls, as a share of its recorded time",
                {"info": 0.01, "warning": 0.05, "critical": 0.25},
                partial(_calls, finding),
            )
            for finding, (rule, looks_for) in _CALLS.items()
        ),
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
        cost_frac=share,
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
            title=f"{row['n']:,} {FINDINGS[finding].sentence(row['n'])} took the host "
            f"{format_ns(row['host_ns'])}, {format_frac(share)} of its time.",
            evidence=(f"They moved {format_bytes(moved)}.",) if moved else (),
            advice=f"{row['advice'][:1].upper()}{row['advice'][1:]}.",
            cost_ns=row["host_ns"],
            cost_frac=share,
            of="the host's time",
            confidence="medium",  # the host may have had time to spare
        )
