"""Rules for communication: stragglers, slow collectives and links, missing overlap."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.arrivals import CRITICAL_FRAC, WARN_FRAC, WARN_STEPS
from traceanalyzer.analyzers.comm_outliers.experts import UNEQUAL
from traceanalyzer.analyzers.comm_outliers.result import (
    SLOW_LINK_FRAC,
    CommOutliers,
    fewer_collectives,
    passed_on,
    slow_groups,
    slow_links,
    small_collectives,
)
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.common.display import at_start
from traceanalyzer.analyzers.common.names import frame_text
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.kernels.training import GRADIENTS, REPEATED as PURPOSE_REPEATED
from traceanalyzer.analyzers.overlap.result import Overlap, advice, why_exposed
from traceanalyzer.findings import straggling
from traceanalyzer.findings.busy import called_in
from traceanalyzer.findings.device_time import (
    BUBBLE,
    DEVICE,
    EXPOSED,
    LINK,
    OUTLIER,
    REPEATED,
    SLOW,
    WORK,
    DeviceTime,
    intervals_of,
    only_rank,
)
from traceanalyzer.findings.rule import (
    MUCH_LEFT,
    RULE_OF,
    Answers,
    Measured,
    Rule,
    explained_by,
    rule,
)
from traceanalyzer.units import format_bytes, format_count, format_frac, format_ns, format_ranges

#: Maximum number of items in a list.
_NAMED = 3

_MORE_FILES = (
    "Add the files of all ranks to separate wait time for stragglers from slow communication."
)


@rule(
    "comm_outliers",
    "a rank that arrives late at collectives, so that the other ranks wait",
    "exposed wait time of the other ranks for it as a share of their step time (of the recorded "
    "time if no steps are marked)",
    {"warning": WARN_FRAC, "critical": CRITICAL_FRAC},
    uses=("gpu_idle", "kernels", "steps"),
    compares_ranks=True,
)
def _straggler(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    alike = straggling.slow_stages(answers)
    for stage, ranks in alike.items():
        yield from _measure_stage(time, stage, ranks)
    of_stages = [rank for ranks in alike.values() for rank in ranks]
    waits = time.losses.filter("waited", ~pl.col("root_rank").is_in(of_stages))
    by_rank = waits.group_by(rank="root_rank").agg(pl.col("lost_ns").sum())
    for rank, total in largest_first(by_rank, "lost_ns", "rank").head(_NAMED).iter_rows():
        if straggling.is_steady(time, rank):
            yield _measure_straggler(result, answers, rank, total)


def _measure_stage(time: DeviceTime, stage: int, ranks: Sequence[int]) -> Iterator[Measured]:
    """Yield the wait time for a stage of which all ranks work longer than those of other stages."""
    of_stage = pl.col("rank").is_in(ranks)
    waits = time.losses.filter("waited", ~of_stage, pl.col("root_rank").is_in(ranks))
    total = int(waits["lost_ns"].sum())
    others = time.windows.filter(~of_stage)
    others_ns = int(others.select((pl.col("end") - pl.col("start")).sum()).item())
    if not total or not others_ns:
        return
    busy = time.busy
    times = busy.filter(of_stage)["busy_ns"].mean() / busy.filter(~of_stage)["busy_ns"].median()  # type: ignore[operator]
    share = total / others_ns
    yield Measured(
        size=share,
        title=f"Pipeline stage {stage} (ranks {format_ranges(ranks)}) works {times:.2f} times as "
        f"long as the others: they wait {format_ns(total)} in total "
        f"({format_frac(share)} of their {time.of.removeprefix('the ')}).",
        advice=straggling.MOVE_LAYERS,
        total_ns=round(share * time.whole_ns),
        step=time.only_step(waits),
        intervals=intervals_of(waits),
        ranks=tuple(ranks),
    )


def _measure_straggler(result: CommOutliers, answers: Answers, rank: int, total: int) -> Measured:
    time = answers.time
    waits = time.waits_for(rank)
    by_cause = dict(waits.group_by("cause").agg(pl.col("lost_ns").sum()).iter_rows())
    length = (pl.col("end") - pl.col("start")).sum()
    others_ns = max(time.windows.filter(pl.col("rank") != rank).select(length).item(), 1)
    share = total / others_ns
    explained = explained_by(waits.filter(pl.col("cause").is_in(list(RULE_OF))), total)
    left = 1 - sum(explained.values())
    in_slow_steps = straggling.share_in_slow_steps(answers, rank, waits)
    of_experts = _of_experts(result, waits)
    # a straggler works longer by as much as each other rank waits; tokens must go to some rank
    work = by_cause.get(WORK, 0) * (1 - sum(of_experts.values()))
    longer = work * (time.whole_ns / others_ns - 1)
    row = result.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    reason, label = straggling.reason(answers, rank, by_cause), result.rank_label(rank)
    if (stage := straggling.stage_of(answers, rank)) is not None:
        label += f" (pipeline stage {stage})"
    spread = result.spread()
    mean = "on average " if result.ranks.height > 2 else ""
    wait = f"{mean}{format_frac(share)} of their {time.of.removeprefix('the ')}"
    size = share if left < MUCH_LEFT else share * left
    cause = f" Cause: {reason}." if reason else ""
    return Measured(
        size=size,
        title=f"{at_start(label)} is a straggler: the other ranks wait {format_ns(total)} in total "
        f"({wait}).{cause}",
        evidence=(
            *straggling.why(by_cause),
            *_all_waits(time, row, total),
            *_arrivals(result, row),
            *([spread] if rank == result.ranks["rank"][0] and spread else []),
        ),
        advice=straggling.advice(answers, rank, waits, by_cause),
        total_ns=round(total * size / share + longer),
        confidence="high"
        if row["straggler_steps"] >= WARN_STEPS or not time.in_steps
        else straggling.confidence_of_one_step(answers, rank, by_cause),
        rank=rank,
        ranks=(rank,) if straggling.keeps_its_work(answers, rank, by_cause) else (),
        step=time.only_step(waits),
        intervals=intervals_of(waits),
        explained=explained | {"uneven-steps": in_slow_steps} | of_experts,
    )


def _all_waits(time: DeviceTime, row: Mapping[str, Any], total: int) -> Iterator[str]:
    """Yield the wait time that ``comm-outliers`` counts for a rank, if it is more than the cost."""
    basis = [*([] if time.on_host else ["without compute"]), *["within steps"] * time.in_steps]
    if row["imposed_ns"] > (1 + _SAME) * total and basis:
        yield (
            f"This is wait time {' and '.join(basis)} (the command comm-outliers counts "
            f"all of it: {format_ns(row['imposed_ns'])} in total)."
        )


#: Times that differ by less are printed with the same digits.
_SAME = 0.0005


def _arrivals(result: CommOutliers, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield arrival delays of a straggler, delayed ranks, and its activity during the delay."""
    last = f"It arrived last at {row['times_last']:,} of {row['matched']:,} collectives"
    late = result.stragglers().filter(pl.col("rank") == row["rank"])
    if late.is_empty():
        yield f"{last}."
        return
    if victims := passed_on(late.row(0, named=True)):
        yield victims
    worst = result.delayed.worst_of(row["rank"])
    yield (
        f"{last}. Largest arrival delay: {format_ns(worst['arrival_delay_ns'])}"
        f"{_at(worst['step'])}."
    )
    sides = [f"{side}: {worst[side]}" for side in ("host", "device") if worst[side] is not None]
    if sides:
        yield f"During that delay, {'; '.join(sides)}."


@rule(
    "comm_outliers",
    "unequal work between ranks: another rank is the straggler in each step",
    "exposed wait time for ranks with longer or more work as a share of step time (of the recorded "
    "time if no steps are marked), if no rank is a straggler in most steps",
    {"info": 0.05, "warning": 0.1, "critical": 0.3},
    uses=("gpu_idle", "kernels"),
)
def _unequal_work(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    waits = time.of_cause(WORK)
    stragglers = [one for one in _straggler.function(result, answers) if one.size >= WARN_FRAC]
    total = int(waits["lost_ns"].sum())
    if not total or stragglers:
        return
    sums = waits.group_by("step", "root_rank").agg(pl.col("lost_ns").sum())
    top = largest_first(sums, "lost_ns", "step", "root_rank").head(_NAMED)
    each = ", ".join(
        f"rank {rank}{_at(step)} ({format_ns(ns)} in total)" for step, rank, ns in top.iter_rows()
    )
    yield Measured(
        size=time.frac(total),
        title=f"Unequal work: ranks wait {time.share(total)} for the rank with the most work, "
        "which changes between steps.",
        evidence=(f"Most of the wait time is for {each}.",),
        advice="Balance the work: inputs of equal size (bucket by sequence length, equal numbers "
        "of tokens per rank), equal numbers of layers or experts.",
        total_ns=total,
        confidence="medium",
        intervals=intervals_of(waits),
        explained=_of_experts(result, waits),
    )


@rule(
    "comm_outliers",
    "experts with unequal numbers of tokens, for which the other ranks wait",
    "exposed wait time for ranks with longer or more work at all-to-alls whose largest load is at "
    "least 1.1 times the mean, as a share of step time (or of the recorded time)",
    {"info": 0.01, "warning": 0.05, "critical": 0.15},
    uses=("gpu_idle", "kernels"),
    compares_ranks=True,
)
def _expert_imbalance(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    time, experts = answers.time, result.experts
    waits = time.of_cause(WORK).filter(pl.col("collective").str.contains("all_to_all"))
    total = int(waits["lost_ns"].sum())
    if experts.main is None or experts.imbalance < UNEQUAL or not total:
        return
    rank, most = experts.main
    of_rank = most / experts.n
    persistent = f"rank {rank} in {most:,} of {format_count(experts.n, 'all_to_all')}"
    yield Measured(
        size=time.frac(total),
        title=f"Experts have unequal loads: the other ranks wait {time.share(total)} for the rank "
        f"with the most tokens, {experts.imbalance:.3g} times the mean ({persistent}).",
        evidence=(
            *(
                f"Most tokens: rank {row['rank']}, {row['of_mean']:.3g} times the mean rank."
                for row in experts.loads.head(1).iter_rows(named=True)
            ),
            "The rank with the most tokens is the same all the time: its experts are popular."
            if of_rank >= _MOSTLY
            else "The rank with the most tokens changes: the router is uneven for each batch.",
        ),
        advice=_PLACE_EXPERTS if of_rank >= _MOSTLY else _BALANCE_ROUTER,
        total_ns=total,
        rank=rank if of_rank >= _MOSTLY else None,
        intervals=intervals_of(waits),
    )


#: From this share of all-to-alls on, one rank has the largest load persistently.
_MOSTLY = 0.8
_PLACE_EXPERTS = (
    "Spread the popular experts over the ranks, or replicate them (EPLB), and raise "
    "the weight of the load-balancing loss or bias of the router."
)
_BALANCE_ROUTER = (
    "Raise the weight of the load-balancing loss or bias of the router, limit the tokens of an "
    "expert (capacity factor), or use larger batches, whose loads differ less."
)


def _of_experts(result: CommOutliers, waits: pl.DataFrame) -> dict[str, float]:
    """Return the share of waits that unequal loads of experts explain."""
    whole = int(waits["lost_ns"].sum())
    if not whole or result.experts.imbalance < UNEQUAL:
        return {}
    of_work = waits.filter(pl.col("cause") == WORK, pl.col("collective").str.contains("all_to_all"))
    return {"expert-imbalance": int(of_work["lost_ns"].sum()) / whole}


@rule(
    "comm_outliers",
    "pipeline stages that wait for each other by their schedule",
    "exposed wait time in sends, receives and collectives of several stages, at most the bubble of "
    "a 1F1B schedule, as a share of step time (of the recorded time if no steps are marked)",
    {"info": 0.1, "warning": 0.15, "critical": 0.3},
    uses=("gpu_idle",),
    compares_ranks=True,
)
def _pipeline_bubble(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    claimed = _claimed(answers, BUBBLE)
    if claimed is None or result.pipeline is None:
        return
    losses, total, size = claimed
    time = answers.time
    schedule = result.pipeline.schedule(1 - time.frac(int(time.busy["busy_ns"].sum())))
    yield Measured(
        size=size,
        title=f"Ranks wait {time.share(total)} for the stage before or after.",
        evidence=tuple(filter(None, [schedule])),
        advice="Use more micro-batches per step, or a schedule with a smaller bubble "
        f"({'interleaved 1F1B, ' * (result.pipeline.chunks == 1)}zero bubble).",
        total_ns=total,
        intervals=intervals_of(losses),
    )


@rule(
    "comm_outliers",
    "gradients reduced in every micro-batch instead of once per step",
    "exposed time of the earlier reductions as a share of step time (or of the recorded time)",
    {"info": 0.02, "warning": 0.05, "critical": 0.2},
    uses=("gpu_idle", "kernels"),
)
def _repeated_reduction(_: CommOutliers, answers: Answers) -> Iterator[Measured]:
    kernels = answers.get("kernels")
    claimed = _claimed(answers, REPEATED)
    if claimed is None or not isinstance(kernels, Kernels) or kernels.training is None:
        return
    losses, total, size = claimed
    rows = kernels.training.filter(purpose=PURPOSE_REPEATED)
    passes = rows.select(pl.col("call").max()).item()
    yield Measured(
        size=size,
        title=f"Gradients are reduced {passes} times per optimizer step, once per accumulated "
        f"micro-batch: all but the last cost {answers.time.share(total)}.",
        evidence=(
            f"Each backward pass before Optimizer.step launches {losses['collective'][0]} again.",
        ),
        advice="Run all micro-batches of a step except the last one within model.no_sync() of "
        "DistributedDataParallel (Accelerate: accelerator.accumulate, Lightning: "
        "accumulate_grad_batches).",
        total_ns=total,
        intervals=intervals_of(losses),
    )


@rule(
    "comm_outliers",
    "collectives that are slow on all ranks after the last rank has arrived",
    "additional exposed time as a share of step time (or of the recorded time)",
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
    if not (claimed := _claimed(answers, SLOW)):
        return
    losses, total, size = claimed
    yield Measured(
        size=size,
        title=f"{slow.height:,} of {format_count(result.totals.n_collectives, 'collective')} "
        f"{'was' if slow.height == 1 else 'were'} slow after {result.every_rank} had arrived"
        f"{slow_groups(result)}: this costs {answers.time.share(total)}{_with_waits(losses)}.",
        evidence=(_worst(worst, worst["transfer_ns"], worst["slow_factor"]),),
        advice=answers.program.slow_network(on_host=answers.time.on_host)
        if result.has_all_ranks
        else _MORE_FILES,
        total_ns=total,
        confidence="high" if result.has_all_ranks else "low",
        step=answers.time.only_step(losses) or (worst["step"] if slow.height == 1 else None),
        intervals=intervals_of(losses),
    )


@rule(
    "comm_outliers",
    "collectives much longer than others of their kind, without a known cause",
    "additional exposed time as a share of step time (or of the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _collective_outliers(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    outliers = result.outliers().filter(pl.col("cause").is_null())
    if outliers.is_empty():
        return
    worst = outliers.row(0, named=True)
    if not (claimed := _claimed(answers, OUTLIER)):
        return
    losses, total, size = claimed
    alone = result.totals.n_ranks == 1
    place = _place_in_steps(result, outliers) if alone else None
    nth = f"{worst['collective']} number {(place or 0) + 1}"
    what = (
        f"{outliers.height:,} of {format_count(result.totals.n_events, 'collective')} took"
        if place is None
        else f"Another rank is probably late: {nth} of each step takes"
    )
    yield Measured(
        size=size,
        title=f"{what} much longer than others of the same kind: this costs "
        f"{answers.time.share(total)}.",
        evidence=(_worst(worst, worst["duration_ns"], worst["factor"]),),
        advice=_LATE_ELSEWHERE
        if place is not None
        else _MORE_FILES
        if alone
        else answers.program.slow_network(on_host=answers.time.on_host),
        total_ns=total,
        confidence="low" if alone and place is None else "medium",
        rank=only_rank(losses),
        step=answers.time.only_step(losses),
        intervals=intervals_of(losses),
    )


_LATE_ELSEWHERE = "Add the files of all ranks: they show which rank is late, and why."


def _place_in_steps(result: CommOutliers, outliers: pl.DataFrame) -> int | None:
    """Return the place in the step at which nearly each step has an outlier; None otherwise.

    A rank that waits at the same place of each step waits for others, not for a busy network.
    """
    order = ["group", "collective"]
    placed = result.instances.drop_nulls("step").sort("at_ns", "id")
    placed = placed.with_columns(place=pl.int_range(pl.len()).over("step", *order))
    of_outliers = placed.filter(pl.col("id").is_in(outliers["id"].implode()))
    steps = placed["step"].n_unique()
    most = largest_first(
        of_outliers.group_by("place").agg(n=pl.col("step").n_unique()), "n", "place"
    )
    if steps < _MANY_STEPS or most.is_empty() or most["n"][0] < _NEARLY_ALL * steps:
        return None
    if most["n"][0] < _NEARLY_ALL * outliers.height:
        return None
    return int(most["place"][0])


#: Fewer steps may have an outlier at the same place by chance; the share of steps, of outliers.
_MANY_STEPS, _NEARLY_ALL = 3, 0.8


@rule(
    "comm_outliers",
    f"large collectives below {SLOW_LINK_FRAC:.0%} of the bandwidth of their link",
    f"exposed time above that at {SLOW_LINK_FRAC:.0%} of the bandwidth as a share of step time (or "
    "of the recorded time)",
    {"info": 0.005, "warning": 0.02, "critical": 0.1},
    uses=("gpu_idle",),
)
def _slow_link(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    sentences = slow_links(result)
    if not sentences:
        return
    if not (claimed := _claimed(answers, LINK)):
        return
    losses, total, size = claimed
    yield Measured(
        size=size,
        title=sentences[0],
        evidence=tuple(sentences[1:_NAMED]),
        advice=answers.program.slow_link
        + ("" if result.has_all_ranks else " Add the files of all ranks to separate wait time."),
        total_ns=total,
        confidence="medium" if result.has_all_ranks else "low",
        intervals=intervals_of(losses),
    )


@rule(
    "comm_outliers",
    "device memory nearly full during slow collectives",
    "share of slow collectives during which device memory was nearly full",
    {"warning": 0.1, "critical": 0.5},
)
def _nearly_full_memory(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    if result.memory is None or result.memory.is_empty():
        return
    full = result.memory.filter("near_full").sort("taken_frac", "id", descending=[True, False])
    if full.is_empty():
        return
    worst = full.row(0, named=True)
    yield Measured(
        size=full.height / result.memory.height,
        title=f"Device memory was nearly full during {full.height:,} of {result.memory.height:,} "
        f"slow collectives (up to {format_frac(worst['taken_frac'])} used).",
        advice="Keep some memory free (a smaller batch or "
        "torch.cuda.memory.set_per_process_memory_fraction(0.9)): "
        f"{answers.program.library} has little memory for its buffers.",
        cost_bytes=worst["taken_bytes"],
        cost_frac=worst["taken_frac"],
        of="device memory",
        confidence="medium",
    )


@rule(
    "overlap",
    "communication that is not overlapped with compute",
    "exposed communication, except wait time and the excess of slow collectives, as a share of "
    "step time (or of the recorded time)",
    {"info": 0.05, "warning": 0.1, "critical": 0.3},
    uses=("comm_outliers", "kernels"),
)
def _exposed_communication(result: Overlap, answers: Answers) -> Iterator[Measured]:
    time, sums = answers.time, result.scalars
    if not sums["exposed_communication_ns"]:
        return
    rest = time.of_cause(EXPOSED).filter(~pl.col("waited"))
    waits = time.losses.filter("waited")
    slow = time.losses.filter(
        ~pl.col("waited"), pl.col("cause").is_in((REPEATED, SLOW, OUTLIER, LINK))
    )
    total = int(rest["lost_ns"].sum())
    whole = total + sum(int(rows["lost_ns"].sum()) for rows in (waits, slow))
    if not whole:
        return
    waited_ns = int(waits["lost_ns"].sum())
    last = _last_ns(answers)
    wait = f", plus {format_ns(time.each_ns(waited_ns))} of wait time for other ranks"
    remedy = _exposing(result, answers, waits=not waited_ns)
    where = called_in(answers.place(COMMUNICATION))
    yield Measured(
        size=time.frac(total),
        title=f"Communication{where} is not overlapped with compute: {time.share(total)}"
        f"{wait if waited_ns else ''}.",
        evidence=(
            *_kinds_of_collectives(answers),
            *filter(None, (why_exposed(result),)),
            f"{format_frac(sums['overlap_frac'])} of all communication is overlapped with compute.",
        ),
        advice=remedy,
        confidence="low" if remedy == _PAIRS else "high",
        total_ns=total,
        most_gain_ns=max(total - last, 0) if last else None,
        intervals=intervals_of(rest),
        explained=explained_by(pl.concat([waits, slow]), whole),
    )


def _last_ns(answers: Answers) -> int:
    """Return the time of the last of several large reductions of a group in a step, of all ranks.

    It ends after the last compute that it could overlap with, however early the others start.
    """
    compared = answers.get("comm_outliers")
    if not isinstance(compared, CommOutliers) or not answers.time.in_steps:
        return 0
    is_sum = pl.col("collective").str.contains("all_reduce|reduce_scatter")
    rows = compared.collectives.filter(is_sum).drop_nulls("step").sort("instance")
    keys = ["step", "group", "group_ranks"]
    large = pl.col("transfer_ns") >= pl.col("transfer_ns").max().over(keys) / 2
    ranks = pl.col("group_size").fill_null(answers.time.windows.n_unique(DEVICE))
    last = rows.filter(large).group_by(keys).agg((pl.col("transfer_ns") * ranks).last(), n=pl.len())
    return int(last.filter(pl.col("n") > 1)["transfer_ns"].sum())


def _exposing(result: Overlap, answers: Answers, *, waits: bool) -> str:
    """Return advice for exposed communication: by the kind of most collectives and their size."""
    comm, kind = answers.get("comm_outliers"), ""
    if isinstance(comm, CommOutliers):
        if comm.mostly_unknown_pairs:
            return _PAIRS
        kind = _main_kind(comm)
        if answers.program.pytorch and kind == "all_to_all":
            return _EXCHANGE
        if kind == "all_reduce" and _only_infers(answers, comm):
            return _TENSOR_PARALLEL
        if kind == "all_reduce" and _in_layers(answers, comm):
            return _TENSOR_PARALLEL_TRAINING
        if text := _of_place(answers, kind) or _of_issuer(answers, comm):
            return text
        if _in_small_buckets(answers, comm):
            return _LARGER_BUCKETS
        if small_collectives(comm):
            text = fewer_collectives(comm)
            return f"{text[:1].upper()}{text[1:]}: small messages take as long as larger ones."
    compared = isinstance(comm, CommOutliers) and comm.totals.n_matched > 0
    waits = waits and not compared
    text = advice(result, waits=waits, pytorch=answers.program.pytorch, kind=kind)
    compute, exposed = float(answers.time.busy["busy_ns"].sum()), answers.time.of_cause(EXPOSED)
    if not compute or compute >= exposed.filter(~pl.col("waited"))["lost_ns"].sum():
        return text
    return f"{text} Overlap alone gains at most the compute time, {answers.time.text(compute)}."


def _of_place(answers: Answers, kind: str) -> str:
    """Return advice for collectives of a norm or an optimizer step; empty for other places."""
    place = answers.place(COMMUNICATION)
    name = str(place.get("called") or place.get("code") or "")
    if kind == "all_reduce" and re.search(_OF_NORM, name):
        return _ONE_NORM.format(frame_text(name))
    return _AFTER_STEP if kind == "all_gather" and re.search(_OF_OPTIMIZER, name) else ""


#: Functions that reduce the norm of gradients, and steps of optimizers.
_OF_NORM = r"clip_grad|grad_norm|total_norm"
_OF_OPTIMIZER = r"(?i)optim\w*[.#](?:.*\.)?step|(?:optim|zero)[^:]*: step$"
_ONE_NORM = (
    "{} reduces norms one by one: compute the norms of all gradients (torch._foreach_norm, "
    "clip_grad_norm_(foreach=True)), combine those of a rank, and reduce that one number."
)
_AFTER_STEP = (
    "The optimizer gathers the updated parameters after its step (ZeRO-1, ZeRO-2), when nothing is "
    "left to compute: overlap it with the next forward pass (Megatron --overlap-param-gather), "
    "gather 16-bit parameters, or use plain data parallelism if the optimizer state fits."
)
#: Reductions of gradients of less than this size, and so many in a step, are in small buckets.
_SMALL_BUCKET, _MANY_BUCKETS = 4 << 20, 32
_LARGER_BUCKETS = (
    "Use larger buckets (DDP bucket_cap_mb, 25 MiB by default; FSDP: larger units): reductions of "
    "so little data take longer for the same bytes, and each needs a launch."
)


def _in_small_buckets(answers: Answers, comm: CommOutliers) -> bool:
    """Whether many small reductions of gradients take most of the time of communication."""
    top = comm.groups.head(1)
    is_small = pl.col("message_bytes") <= _SMALL_BUCKET
    rows = top.filter(is_small, pl.col("collective").is_in(["all_reduce", "reduce_scatter"]))
    most = 2 * rows["total_ns"].sum() > comm.groups["total_ns"].sum()
    each = rows["n"].sum() / max(answers.time.windows.height, 1)
    return bool(most and answers.program.trains and each >= _MANY_BUCKETS)


#: Advice for sends and receives whose partner is not known.
_PAIRS = (
    "Most of it is in sends and receives whose partner was not recorded (batch_isend_irecv): they "
    "include the wait for it, in a pipeline by its schedule. Compare it with the bubble of the "
    "schedule first: (stages - 1) / (micro-batches + stages - 1)."
)


def _of_issuer(answers: Answers, comm: CommOutliers) -> str:
    """Return advice for collectives of a part of the program other than the reducer; or empty."""
    kernels, top = answers.get("kernels"), comm.groups.head(1)
    if not isinstance(kernels, Kernels) or kernels.heavy is None or top.is_empty():
        return ""
    kind = top["collective"][0]
    names = comm.instances.filter(collective=kind)["name"].unique()
    for place in kernels.heavy.filter(pl.col("name").is_in(names.implode())).iter_rows(named=True):
        issuer = re.sub(_OF_LIBRARY, "", place["annotation"] or "")
        around = f"{place['outer']} {issuer} {place['code']}"
        if "SyncBatchNorm" in around:
            return _SYNC_BATCH_NORM
        if kind == "broadcast" and issuer:
            return _BROADCASTS.format(issuer, top["n"][0])
        if re.search(_LOGGING, around) and small_collectives(comm):
            return _OF_METRICS.format(issuer or frame_text(str(place["code"])))
    return ""


#: Annotations of PyTorch and its libraries.
_OF_LIBRARY = r"^(?:nccl:|Optimizer\.|DistributedDataParallel\.|FullyShardedDataParallel).*"

#: Code that logs: ``log``, ``self.log_dict``, ``LoggerConnector``; not logits or log_softmax.
_LOGGING = r"(?i)(?<![a-z:])log(?:_(?:dict|metrics?)|ger|ging)?(?![a-z0-9_])|logger|metric"

#: Advice by the part of the program that issues most collectives.
_SYNC_BATCH_NORM = (
    "SyncBatchNorm issues these collectives, two per layer: use GroupNorm or LayerNorm, "
    "synchronise only some layers, or use BatchNorm if the batch of a GPU is large enough."
)
_BROADCASTS = (
    "{} issues the broadcasts ({:,} in total): copy the tensors into one flat buffer (or a few) "
    "and broadcast that, overlap it with work that does not need the result, or do it less often."
)
_OF_METRICS = (
    "{} reduces metrics: reduce them every N steps instead of each step, and all together as one "
    "tensor (Lightning: log with on_epoch=True, or without sync_dist=True)."
)


#: Advice for exchanges (of tokens between experts, of embeddings), and for sums in inference.
_EXCHANGE = (
    "Overlap the all_to_all with compute that does not need its result (another micro-batch, "
    "layers that are not exchanged), keep the exchange within a node, or send fewer bytes (FP8)."
)
_TENSOR_PARALLEL = (
    "In tensor parallelism the next operator needs the sum of an all_reduce, so it cannot be "
    "overlapped: use fewer GPUs per model, an all_reduce for small messages (one-shot or symmetric "
    "memory), or CUDA graphs around it."
)
_TENSOR_PARALLEL_TRAINING = (
    "In tensor parallelism the next operator needs the sum of an all_reduce: use fewer GPUs per "
    "model, all joined by NVLink, and sequence parallelism with all_gather and reduce_scatter that "
    "overlap parts of the products (Megatron --sequence-parallel --tp-comm-overlap)."
)
#: Tensor parallelism sums in each layer: from so many all_reduces of a rank on.
_MANY_SUMS = 16
#: In training, sums of one size from the begin of a step to its end: from so many on.
_MANY_IN_STEP = 8
#: Sums in the first and the last part of a step; gradients are reduced from its middle on.
_PART = 0.25


def _in_layers(answers: Answers, comm: CommOutliers) -> bool:
    """Whether most time of all_reduces in training is in sums of layers, not of gradients.

    They are of one size, and many from the begin of each step to its end.
    """
    if not (answers.program.pytorch and answers.program.trains):
        return False
    keys, rows = ["path", "rank", "step"], comm.instances.filter(collective="all_reduce")
    kernels, length = answers.get("kernels"), (pl.col("end") - pl.col("start")).sum()
    if isinstance(kernels, Kernels) and kernels.training is not None:
        of_gradients = kernels.training.filter(purpose=GRADIENTS).select(length).item()
        if 2 * of_gradients > rows["duration_ns"].sum():
            return False
    sizes = rows.group_by("message_bytes").agg(ns=pl.col("duration_ns").sum())
    size = largest_first(sizes, "ns", "message_bytes")["message_bytes"][0]
    rows = rows.filter(pl.col("message_bytes").eq_missing(size))
    windows = answers.time.windows.select(*keys, begin="start", until="end")
    placed = rows.drop_nulls("step").join(windows, on=keys)
    place = (pl.col("ts") - pl.col("begin")) / (pl.col("until") - pl.col("begin"))
    each = placed.group_by(keys).agg(n=pl.len(), first=place.min(), last=place.max())
    n, first, last = each.select(pl.col("n", "first", "last").median()).row(0)
    return bool(n and n >= _MANY_IN_STEP and first < _PART and last > 1 - _PART)


def _only_infers(answers: Answers, comm: CommOutliers) -> bool:
    """Whether many collectives and operators of PyTorch were recorded, but no training."""
    kernels = answers.get("kernels")
    many = comm.totals.n_events >= _MANY_SUMS * max(comm.totals.n_ranks, 1)
    known = many and isinstance(kernels, Kernels) and kernels.has_operators
    return known and answers.program.pytorch and not answers.program.trains


def _main_kind(comm: CommOutliers) -> str:
    """Return the collective with most of the time; empty if none has."""
    sums = comm.groups.group_by("collective").agg(pl.col("total_ns").sum())
    top = largest_first(sums, "total_ns", "collective").head(1)
    has_most = top["total_ns"].sum() > comm.groups["total_ns"].sum() / 2
    return str(top["collective"][0]) if has_most else ""


def _kinds_of_collectives(answers: Answers) -> Iterator[str]:
    """Yield the kind of collective with the most time, and the share of wait time."""
    comm = answers.get("comm_outliers")
    if not isinstance(comm, CommOutliers) or not comm.totals.total_comm_ns:
        return
    for top in comm.groups.head(1).iter_rows(named=True):
        speed = top["transfer_busbw_gbps"] or top["busbw_gbps"]
        rate = f", bus bandwidth {speed:.3g} GB/s" if speed else ""
        each = top["n"] / max(answers.time.windows.height, 1)
        calls = f"{top['n']:,} calls"
        calls += f" ({each:.3g} per step and GPU)" if answers.time.in_steps else ""
        yield f"Most time: {_what(top)}, {format_ns(top['total_ns'])} in {calls}{rate}."
    if small := small_collectives(comm, advise=not _of_issuer(answers, comm)):
        yield small
    if comm.totals.n_matched:
        share = comm.totals.total_wait_ns / comm.totals.total_comm_ns
        yield f"{format_frac(share)} of all communication is wait time for the last rank."


def _claimed(answers: Answers, cause: str) -> tuple[pl.DataFrame, int, float] | None:
    """Return the losses of a cause, their total in ns, and their share of the time."""
    time = answers.time
    losses = time.of_cause(cause)
    total = int(losses["lost_ns"].sum())
    return (losses, total, time.frac(total)) if total else None


def _with_waits(losses: pl.DataFrame) -> str:
    return ", including wait time of other ranks" if losses["waited"].any() else ""


def _worst(row: Mapping[str, Any], took_ns: int, factor: float) -> str:
    return (
        f"Slowest: {_what(row)}{_at(row['step'])}, {format_ns(took_ns)} ({factor:.3g} times the "
        "usual)."
    )


def _what(row: Mapping[str, Any]) -> str:
    """Return collective and size: ``all_gather of 64 MiB``."""
    size = row.get("message_bytes")
    return f"{row['collective']}{f' of {format_bytes(size)}' if size else ''}"


def _at(step: str | None) -> str:
    return f" in {step}" if step else ""


RULES: tuple[Rule, ...] = (
    _straggler, _unequal_work, _expert_imbalance,
    _pipeline_bubble, _repeated_reduction, _slow_collectives,
    _collective_outliers, _slow_link, _nearly_full_memory, _exposed_communication,
)  # fmt: skip
