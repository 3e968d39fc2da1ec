"""Rules about ranks that wait for one another, and about slow or exposed communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.comm_outliers.stragglers import CRITICAL_FRAC, WARN_FRAC, WARN_STEPS
from traceanalyzer.analyzers.diagnosis.rule import Answers, Measured, Rule
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.units import format_bytes, format_frac, format_ns

#: So many ranks are named.
_NAMED = 3


def rules() -> tuple[Rule, ...]:
    """Late ranks, slow collectives, outliers, exposed communication, exposed copies."""
    return (
        Rule(
            "late-rank",
            "comm_outliers",
            "the other ranks wait for one that comes late to collectives",
            "what the rank costs the others, as a share of all steps' time (without two steps: of "
            "the recorded time)",
            {"warning": WARN_FRAC, "critical": CRITICAL_FRAC},
            _late_rank,
        ),
        Rule(
            "slow-collectives",
            "comm_outliers",
            "collectives took long on all ranks after the last had arrived",
            "time beyond the usual, as a share of the recorded time",
            {"info": 0.005, "warning": 0.02, "critical": 0.1},
            _slow_collectives,
        ),
        Rule(
            "collective-outliers",
            "comm_outliers",
            "collectives took much longer than others of their kind, and nothing explains it",
            "time beyond the usual, as a share of the recorded time",
            {"info": 0.005, "warning": 0.02, "critical": 0.1},
            _outliers,
        ),
        Rule(
            "nearly-full-memory",
            "comm_outliers",
            "devices were nearly full while collectives were slow",
            "share of the slow collectives during which the device was nearly full",
            {"warning": 0.1, "critical": 0.5},
            _nearly_full,
        ),
        Rule(
            "exposed-communication",
            "overlap",
            "communication is not hidden behind compute",
            "exposed communication as a share of the devices' time",
            {"warning": 0.1, "critical": 0.3},
            _exposed_communication,
        ),
        Rule(
            "exposed-copies",
            "overlap",
            "copies run while neither compute nor communication does",
            "exposed copies and sets as a share of the devices' time",
            {"warning": 0.05, "critical": 0.2},
            _exposed_copies,
        ),
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
            cost_frac=share,
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
        title=f"{_counted(slow.height, 'collective')} of {result.n_collectives:,} took long on all "
        f"ranks after the last had arrived: {format_ns(cost)} beyond the usual, on all together.",
        evidence=(_worst(worst, worst["pure_ns"], worst["slow_factor"]),),
        advice="The network or NVLink was slow or shared: compare the nodes and the time of day, "
        "look at NCCL's log (NCCL_DEBUG=INFO) for the transport and at other jobs on the fabric.",
        cost_ns=cost,
        cost_frac=share,
        of="the recorded time",
        confidence="high" if result.n_ranks > 1 else "medium",
    )


def _outliers(result: CommOutliers, _: Answers) -> Iterator[Measured]:
    found = result.outliers().filter(pl.col("cause").is_null())
    if found.is_empty():
        return
    worst, cost = found.row(0, named=True), int(found["over_ns"].sum())
    share = _share(cost, result.total_span_ns)
    yield Measured(
        size=share,
        title=f"{_counted(found.height, 'collective')} of {result.n_events:,} took much longer "
        f"than others of the kind: {format_ns(cost)} beyond the usual.",
        evidence=(_worst(worst, worst["duration_ns"], worst["factor"]),),
        advice="The files of all ranks tell whether that was waiting for a late rank or slow "
        "communication."
        if result.n_ranks == 1
        else "See when they happened and what ran beside them.",
        cost_ns=cost,
        cost_frac=share,
        of="the recorded time",
        confidence="low" if result.n_ranks == 1 else "medium",
    )


def _nearly_full(result: CommOutliers, _: Answers) -> Iterator[Measured]:
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
        cost_frac=share,
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
        cost_frac=cost / span,
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


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
