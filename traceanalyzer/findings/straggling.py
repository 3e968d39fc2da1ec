"""Rules about ranks that others wait for, and why a rank is late.

Longer idle time, other kernels, unequal work or experts, a slow stage of a pipeline.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers import chains, pipelines
from traceanalyzer.analyzers.comm_outliers.activity import NOTHING
from traceanalyzer.analyzers.comm_outliers.arrivals import CRITICAL_FRAC, WARN_FRAC, WARN_STEPS
from traceanalyzer.analyzers.comm_outliers.experts import UNEQUAL as UNEQUAL_LOADS
from traceanalyzer.analyzers.comm_outliers.pipelines import work_longer
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers, at_step, meanwhile, passed_on
from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.common.columns import largest_first
from traceanalyzer.analyzers.common.device_work import COMPUTE
from traceanalyzer.analyzers.common.display import at_start
from traceanalyzer.analyzers.common.kernel_names import ATTENTION
from traceanalyzer.analyzers.common.kernel_times import (
    BALANCE_EXPERTS,
    LARGER_INPUTS,
    LONG_CALL,
    OTHER_KERNELS,
    PERHAPS_SLOW,
    UNEQUAL,
    ZIGZAG,
    Difference,
    compare,
)
from traceanalyzer.analyzers.common.names import frame_text, python_frame
from traceanalyzer.analyzers.cuda_api.result import CudaApi
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.activities import Activity
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.steps.slow_steps import CODE, LONG_FRAC
from traceanalyzer.findings.device_time import (
    BUBBLE,
    EXPOSED,
    LINK,
    SLOW,
    UNEXPLAINED,
    WORK,
    DeviceTime,
    intervals_of,
    main_ranks,
    only_rank,
)
from traceanalyzer.findings.hardware import EQUAL_GPUS, LEAST, other_gpu, slow_gpus
from traceanalyzer.findings.rule import (
    MUCH_LEFT,
    OF_STEP,
    RULE_OF,
    Answers,
    Measured,
    Rule,
    explained_by,
    rule,
    within,
    without_others,
)
from traceanalyzer.result import Confidence, memoized
from traceanalyzer.units import format_frac, format_ns, format_ranges, format_ratio
from traceanalyzer.vocabulary import LAUNCH

#: Maximum number of ranks that are named.
_NAMED = 3

#: Causes with a smaller share are not listed.
_LEAST = 0.1

#: What balances the stages of a pipeline.
_MOVE_LAYERS = (
    "Move layers from this stage to the others; the first and last stage also have the embedding, "
    "output layer and loss."
)

#: From this share of a delay on, work may be its cause.
_MUCH = 0.25


def advice(answers: Answers, rank: int, waits: pl.DataFrame, by_cause: Mapping[str, int]) -> str:
    """Return advice for a straggler: by its kernels, its idle time, or what it did meanwhile.

    Args:
        answers: all results.
        rank: the straggler.
        waits: the losses of other ranks that wait for it.
        by_cause: the sum of these by the cause of the delay.
    """
    staged = stage_of(answers, rank) is not None or _in_stages(answers, waits)
    if _works_longer(by_cause) and other_gpu(answers, [rank]):
        return EQUAL_GPUS
    if (name := only_code(answers, rank, by_cause)[0]) and not staged:
        return f"Share the work of {name} among all ranks, or run it less often."
    difference = _difference(answers, rank, by_cause)
    of_layers = staged and difference is not None and not difference.attends
    if difference and difference.why in (*UNEQUAL, OTHER_KERNELS) and of_layers:
        return _MOVE_LAYERS
    if difference and difference.why in UNEQUAL and _of_tokens(answers, waits):
        return BALANCE_EXPERTS
    if difference:
        return difference.advice(answers.program.clocks, "this GPU", _BALANCE)
    cause = _main(by_cause)
    if cause in causes.WAITING and (idle := answers.of(GpuIdle)) is not None:
        return idle.of_rank(rank).advice(cause)
    if cause in (SLOW, LINK):
        return answers.program.slow_link
    if cause == WORK and answers.time.on_host:
        return f"Balance the work: {_BALANCE}; give every rank as many CPU cores."
    return _of_activity(answers, rank)


_BALANCE = "equal batches and layers for every rank"


def _in_stages(answers: Answers, waits: pl.DataFrame) -> bool:
    """Whether ranks wait mostly in sends and receives of pairs: for a stage of a pipeline."""
    comm, rows = answers.of(CommOutliers), waits.drop_nulls("collective")
    if comm is None or pipelines.are_rings(comm.arrivals):
        return False
    return 2 * int(rows.filter("scheduled")["lost_ns"].sum()) > int(rows["lost_ns"].sum())


def _of_tokens(answers: Answers, waits: pl.DataFrame) -> bool:
    """Whether ranks wait mostly where tokens are sent to experts and back (DeepEP)."""
    if (comm := answers.of(CommOutliers)) is None:
        return False
    is_exchange = pl.col("collective").cast(pl.String) == "all_to_all"
    names = comm.instances.filter(is_exchange)["name"].cast(pl.String)
    most = 2 * int(waits.filter(is_exchange)["lost_ns"].sum()) > int(waits["lost_ns"].sum())
    return most and bool(names.str.contains("(?i)deep_ep|dispatch|combine").any())


def _of_activity(answers: Answers, rank: int) -> str:
    """Return advice for a delay without a known cause: by what the rank did, if recorded."""
    comm, host = answers.of(CommOutliers), NOTHING
    if comm is not None and rank in comm.delayed.collectives["root_rank"]:
        host = comm.delayed.worst_of(rank)["host"] or NOTHING
    if not host.startswith(NOTHING):
        return (
            f"Shorten what rank {rank} does before the collective ({host}), or give the other "
            "ranks the same work."
        )
    return (
        f"Why rank {rank} arrives late was not recorded. Python stacks (with_stack=True) of this "
        "rank and another one show whether it runs other code; if not, swap the nodes of the two, "
        "to see whether the delay stays with the node."
    )


def slow_stages(answers: Answers) -> dict[int, list[int]]:
    """Return the ranks of each pipeline stage of several ranks that all work longer than others."""
    if (comm := answers.of(CommOutliers)) is None or comm.pipeline is None:
        return {}
    busy = answers.time.busy
    longer = busy.select("rank", longer=work_longer(busy["busy_ns"]))
    placed = comm.positions.drop_nulls("stage").join(longer, on="rank").sort("rank")
    stages = placed.group_by("stage").agg("rank", pl.col("longer").all())
    slow = stages.filter("longer", pl.col("rank").list.len() > 1).sort("stage")
    return dict(slow.select("stage", "rank").iter_rows())


@memoized
def _waits(answers: Answers) -> pl.DataFrame:
    """Return wait time without that for slow GPUs or hosts of several ranks, which has a finding.

    It is for work of these GPUs, and for launches of these hosts.
    """
    time = answers.time
    ranks = main_ranks(time.of_cause(causes.LAUNCH), time.windows["rank"].n_unique())
    much = time.frac(int(time.of_cause(causes.LAUNCH)["lost_ns"].sum())) >= LEAST
    hosts = ranks if much and len(ranks) > 1 and slow_host(answers, ranks) else ()
    return time.other_waits({WORK: slow_gpus(answers), causes.LAUNCH: hosts})


def stage_of(answers: Answers, rank: int) -> int | None:
    """Return the pipeline stage of a rank; None if the ranks are no pipeline."""
    comm = answers.of(CommOutliers)
    return None if comm is None else comm.stage_of(rank)


def only_code(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> tuple[str, str]:
    """Return the code that only a straggler works in, if it takes as long as the others wait.

    Also that as a clause: the others do not run it, or it takes little time there. Of nested
    functions and annotations the user's own ones come first, then the outermost. Ranks without
    Python stacks may run the same functions.
    """
    if (steps := answers.of(Steps)) is None or steps.code is None or not by_cause:
        return _launching_code(answers, rank, by_cause)
    others = max(answers.time.windows["rank"].n_unique() - 1, 1)
    least = _HALF * sum(by_cause.values()) / others
    if _main(by_cause) not in (WORK, UNEXPLAINED) or steps.by_kernels:
        return "", ""
    is_python = pl.col("kind") == "python_function"
    stacks = steps.code.filter(is_python)["rank"].n_unique() > others
    elsewhere = steps.code.filter(pl.col("rank") != rank).group_by("name")
    of_rank = steps.code.filter(pl.col("rank") == rank, ~is_python | stacks)
    times = of_rank.join(elsewhere.agg(other_ns=pl.col("total_ns").max()), on="name", how="left")
    unknown = pl.col("other_ns").is_null() & (~is_python | _is_long(answers))
    little = unknown | (pl.col("other_ns") < _LITTLE * pl.col("total_ns"))
    only = times.filter(little, pl.col("total_ns") >= least)
    rows = only.with_columns(of_user=_of_user(only)).sort(
        "of_user", "total_ns", "name", descending=[True, True, False]
    )
    if rows.is_empty():
        return _launching_code(answers, rank, by_cause)
    name, other_ns = frame_text(rows["name"][0]), rows["other_ns"][0]
    if other_ns is None:
        return name, f"only this rank runs {name}"
    ratio = format_ratio(rows["total_ns"][0] / other_ns)
    return name, f"{name} takes {ratio} as long as on the other ranks"


def _launching_code(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> tuple[str, str]:
    """Return the code that launches an additional kernel of a straggler, and that as a clause.

    Empty if it launches most other kernels, too.
    """
    difference, kernels = _difference(answers, rank, by_cause), answers.of(Kernels)
    if difference is None or kernels is None or kernels.heavy is None or not difference.alone:
        return "", ""
    place, rows = kernels.place(difference.alone), kernels.heavy.filter(work_kind=COMPUTE)
    name = place.get("code") or place.get("called")
    if not name or 2 * rows.filter(code=name)["ns"].sum() > rows["ns"].sum():
        return "", ""
    code = frame_text(name)
    return code, f"only this rank runs {difference.alone}, launched in {code}"


def _is_long(answers: Answers) -> pl.Expr:
    """Whether a function is so long on the host that the other ranks, if they run it, record it."""
    steps = answers.time.windows.select(pl.col("end") - pl.col("start")).to_series()
    return pl.col("median_ns") >= _MUCH_LONGER * LONG_FRAC * (steps.median() or 0)  # type: ignore[operator]


def _of_user(code: pl.DataFrame) -> pl.Series:
    """Return which annotations and Python functions are the user's own."""
    frames = code.select(frame=python_frame(pl.col("name"))).unnest("frame")
    of_user = [
        kind != "python_function" or libraries.is_own_code(name, file)
        for kind, name, file in zip(code["kind"], frames["name"], frames["file"], strict=True)
    ]
    return pl.Series(of_user, dtype=pl.Boolean)


#: Code takes as long as others wait for it from this share on; below the other one, it takes little
#: time on other ranks.
_HALF, _LITTLE = 0.5, 0.1

#: Functions of this many times the least recorded length are that long on all ranks that run them.
_MUCH_LONGER = 3

#: If the rank with the second most work exceeds the mean by this share of the straggler's excess,
#: a remedy for the straggler alone leaves the others waiting.
_NEXT = 0.25

#: The host of a rank is slow if its calls take this many times as long as on the other ranks.
_SLOW_HOST = 1.5


def check_host(ranks: Sequence[int]) -> str:
    """Return advice for ranks whose host is slow."""
    these = f"th{'is' if len(ranks) == 1 else 'ese'} rank{'s' * (len(ranks) > 1)}"
    return (
        f"Check the CPU of {these}: clock (frequency governor), temperature and power limit, the "
        "cores of each process (affinity, cgroup) and their NUMA node, other processes on them, "
        f"and whether only {these} run{'s' * (len(ranks) == 1)} a debugger or profiler."
    )


def slow_host(answers: Answers, ranks: Sequence[int]) -> str:
    """Return that the launch calls of ranks are long, as a clause; empty if they are not."""
    if not ranks or (api := answers.of(CudaApi)) is None:
        return ""
    launches = api.by_rank.filter(pl.col("class") == LAUNCH)
    most = launches.filter(pl.col("call") == pl.col("call").sort_by("n").last())
    times = _times_as_long(most.select("rank", ns="median_ns"), ranks)
    return f"launch calls take {times}" if times else ""


def code_of_one_rank(
    result: GpuIdle, losses: pl.DataFrame
) -> tuple[GpuIdle, pl.DataFrame, GpuIdle]:
    """Return the gaps and losses by host code that only one rank runs, if others wait for it.

    And the result without these gaps.

    It writes logs or metrics for all; other host code is that of all ranks.
    """
    waited = losses.filter("waited")
    rank, gaps = only_rank(waited), result.of_cause(causes.HOST_CODE)
    if rank is None or main_ranks(losses, losses["rank"].n_unique()):
        return result, losses.clear(), result
    code = pl.coalesce("own_code", "python", "host_event").fill_null("")
    common = gaps.filter(pl.col("rank") != rank).select(code).to_series().implode()
    only = gaps.filter(pl.col("rank") == rank, ~code.is_in(common))
    is_part = pl.when("waited").then(pl.col("root_rank") == rank).otherwise(within(losses, only))
    keys = ["rank", "device", "start"]
    others = result.gaps.join(only, on=keys, how="anti", nulls_equal=True, maintain_order="left")
    found = losses.filter(is_part) if only.height else losses.clear()
    return replace(result, gaps=only), found, replace(result, gaps=others)


def runs_alone(answers: Answers, ranks: Sequence[int], code: Activity) -> str:
    """Return that only these ranks run this function, as a clause; empty if others do, too."""
    if not ranks or (steps := answers.of(Steps)) is None or steps.code is None:
        return ""
    functions = steps.code.filter(kind="python_function")
    runs = {*functions.filter(_is_long(answers), name=code.place)["rank"]}
    stacks = {*functions["rank"]}
    if not runs or not runs <= {*ranks} or stacks != {*answers.time.windows["rank"]}:
        return ""
    return " (only this rank runs it)" if len(ranks) == 1 else " (only these ranks run it)"


def slower_code(answers: Answers, ranks: Sequence[int], code: Activity) -> str:
    """Return that this code, or what it runs in, takes longer on ranks, as a clause; or empty."""
    if (steps := answers.of(Steps)) is None or steps.code is None:
        return ""
    if runs_alone(answers, ranks, code):
        return ""
    each = steps.code.select("rank", "name", ns=pl.col("median_ns").cast(float))
    names = (code.frame, code.place, code.range)
    return next(filter(None, (_times_as_long(each.filter(name=n), ranks) for n in names)), "")


def _times_as_long(rows: pl.DataFrame, ranks: Sequence[int]) -> str:
    """Return that the median time of these ranks is much longer than that of the others."""
    is_of = pl.col("rank").is_in(ranks)
    of_ranks, usual = (rows.filter(which)["ns"].median() for which in (is_of, ~is_of))
    if not isinstance(of_ranks, float) or not isinstance(usual, float):
        return ""
    if not of_ranks >= _SLOW_HOST * usual > 0:
        return ""
    return f"{format_ratio(of_ranks / usual)} as long as on the other ranks"


def is_steady(time: DeviceTime, rank: int) -> bool:
    """Whether one rank delays the others, not by chance the one with the most work in some steps.

    True if another cause than work delays it, or if no steps are marked.
    """
    waits = time.losses.filter("waited").drop_nulls("root_rank")
    of_rank = waits.filter(root_rank=rank).group_by("cause").agg(pl.col("lost_ns").sum())
    if not time.in_steps or _main(dict(of_rank.iter_rows())) not in (WORK, UNEXPLAINED):
        return True
    rows = waits.filter(pl.col("cause").is_in([WORK, UNEXPLAINED]))
    steps = rows.select("step", rank="root_rank", ns="lost_ns")
    return chains.is_steady(steps, rank, time.windows["rank"].n_unique())


def reason(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> str:
    """Return the main cause as a phrase for the title; empty if unknown."""
    cause = _main(by_cause)
    if cause == causes.COPIES:
        return "longer exposed copies"
    if _works_longer(by_cause) and (gpu := other_gpu(answers, [rank])):
        return gpu
    if clause := only_code(answers, rank, by_cause)[1]:
        return clause
    if cause in (SLOW, LINK):
        return "slow collectives of its group"
    if cause in causes.WAITING and (idle := answers.of(GpuIdle)) is not None:
        return idle.of_rank(rank).state(cause)
    difference = _difference(answers, rank, by_cause)
    return difference.text if difference else ""


def keeps_its_work(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> bool:
    """Whether the rank is late by its part of divided work: a fix moves it to the other ranks.

    That may be so, too, if it is unknown whether the GPU is slow: the gain is then no less.
    """
    one = _difference(answers, rank, by_cause)
    return one is not None and (one.why in (LARGER_INPUTS, PERHAPS_SLOW) or one.attends)


def confidence_of_one_step(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> Confidence:
    """Return the confidence in a straggler of one step: ``low``, unless a call or code is known."""
    difference = _difference(answers, rank, by_cause)
    known = only_code(answers, rank, by_cause)[0] or (difference and difference.why == LONG_CALL)
    return "medium" if known else "low"


def share_in_slow_steps(answers: Answers, rank: int, waits: pl.DataFrame) -> float:
    """Return the share of wait time for a rank in slow steps, in which it runs other code.

    0 if longer or more work is the main cause.
    """
    if (steps := answers.of(Steps)) is None or steps.only_slow is None or waits.is_empty():
        return 0.0
    sums = waits.group_by("cause").agg(pl.col("lost_ns").sum())
    if _main(dict(sums.iter_rows())) == WORK:
        return 0.0
    code = steps.only_slow.filter(pl.col("rank") == rank, pl.col("kind").is_in(CODE))
    inside = waits.filter(pl.col("step").is_in(code["step"].unique().implode()))
    return int(inside["lost_ns"].sum()) / int(waits["lost_ns"].sum())


def why(by_cause: Mapping[str, int]) -> Iterator[str]:
    """Yield the shares of a straggler's delay by cause, if several are large."""
    whole = sum(by_cause.values())
    parts = sorted(by_cause.items(), key=lambda item: (-item[1], item[0]))
    large = [(cause, ns / whole) for cause, ns in parts if ns >= _LEAST * whole]
    if len(large) > 1:
        each = ", ".join(
            f"{_CAUSES.get(cause, 'unexplained')} {format_frac(share)}" for cause, share in large
        )
        yield f"Delay by cause: {each}."


#: Names of causes of delays.
_CAUSES = causes.NAMES | {
    WORK: "longer or more work", causes.COPIES: "copies",
    SLOW: "slow collectives", LINK: "slow collectives",
}  # fmt: skip


def _main(by_cause: Mapping[str, int]) -> str:
    return max(sorted(by_cause), key=lambda name: by_cause[name])


def _works_longer(by_cause: Mapping[str, int]) -> bool:
    """Whether work is the largest known cause of a delay, with a large share."""
    known = {cause: ns for cause, ns in by_cause.items() if cause != UNEXPLAINED}
    much = by_cause.get(WORK, 0) >= _MUCH * sum(by_cause.values())
    return bool(known) and _main(known) == WORK and much


def _difference(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> Difference | None:
    return _of_kernels(answers, rank) if _works_longer(by_cause) else None


@memoized
def _of_kernels(answers: Answers, rank: int) -> Difference | None:
    """Return how the kernels of a rank differ from those of the others."""
    if (kernels := answers.of(Kernels)) is None or kernels.by_step is None:
        return None
    if rank in kernels.by_step["rank"] or (comm := answers.of(CommOutliers)) is None:
        return compare(kernels.by_step, "rank", rank, "on the other ranks")
    # the files have no rank: ranks are numbered by their collectives
    places = comm.arrivals.filter(pl.col("rank") == rank).select("path", "device").unique()
    if places.height != 1:
        return None
    path, device = places.row(0)
    devices = kernels.by_step.filter(pl.col("path") == path)
    if devices["device"].n_unique() > 1:
        return compare(devices, "device", device, "on the other ranks")
    return compare(kernels.by_step, "path", path, "on the other ranks")


# --- rules --------------------------------------------------------------------------------------


@rule(
    "comm_outliers",
    "a rank that arrives late at collectives, so that the other ranks wait",
    f"exposed wait time of the other ranks for it, {OF_STEP} of all ranks",
    {"warning": WARN_FRAC, "critical": CRITICAL_FRAC},
    uses=("gpu_idle", "kernels", "steps"),
    compares_ranks=True,
)
def _straggler(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    alike = slow_stages(answers)
    for stage, ranks in alike.items():
        yield from _measure_stage(time, stage, ranks)
    together = [rank for ranks in alike.values() for rank in ranks]
    waits = _waits(answers).filter(~pl.col("root_rank").is_in(together))
    by_rank = waits.group_by(rank="root_rank").agg(pl.col("lost_ns").sum())
    for rank, total in largest_first(by_rank, "lost_ns", "rank").head(_NAMED).iter_rows():
        if is_steady(time, rank) and not _with_more_work(answers, rank):
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
        f"long as the others, which wait {time.share(total)}.",
        advice=_MOVE_LAYERS,
        fix="move-layers",
        total_ns=round(share * time.whole_ns),
        step=time.only_step(waits),
        intervals=intervals_of(waits),
        ranks=tuple(ranks),
    )


def _measure_straggler(result: CommOutliers, answers: Answers, rank: int, total: int) -> Measured:
    time = answers.time
    waits = _waits(answers).filter(root_rank=rank)
    by_cause = dict(waits.group_by("cause").agg(pl.col("lost_ns").sum()).iter_rows())
    length = (pl.col("end") - pl.col("start")).sum()
    others_ns = max(time.windows.filter(pl.col("rank") != rank).select(length).item(), 1)
    share = total / others_ns
    explained = explained_by(waits.filter(pl.col("cause").is_in(list(RULE_OF))), total)
    left = 1 - sum(explained.values())
    experts = _of_experts(result, waits)
    # a straggler works longer by as much as each other rank waits; tokens must go to some rank
    work = by_cause.get(WORK, 0) * (1 - sum(experts.values()))
    longer = work * (time.whole_ns / others_ns - 1)
    row = result.ranks.filter(pl.col("rank") == rank).row(0, named=True)
    why_late, label = reason(answers, rank, by_cause), result.rank_label(rank)
    spread = result.spread()
    size = share if left < MUCH_LEFT else share * left
    cause = f" Cause: {why_late}." if why_late else ""
    counted = total * size / share  # the wait time in no other finding
    cost, shared = round(counted + longer), 1 - 1 / max(result.ranks.height, 1)
    waited = cost if abs(cost - total) < _NEARLY_SAME * total else total
    wait = f"{time.share(waited)}{without_others(time.frac(counted), size / share)}"
    of_rank = f"{time.text(longer)} of the cost is longer work of {label} itself."
    code = only_code(answers, rank, by_cause)[0] if result.stage_of(rank) is None else ""
    remedy = advice(answers, rank, waits, by_cause)
    return Measured(
        size=size,
        title=f"{at_start(label)} is a straggler: the other ranks wait {wait}.{cause}",
        evidence=(
            *[f"Shared by all ranks, it saves {time.share(round(shared * cost))}."] * bool(code),
            *[of_rank] * (waited != cost and longer >= _NEARLY_SAME * cost),
            *why(by_cause),
            *_all_waits(time, result, row, total),
            *_arrivals(result, row),
            *([spread] if rank == result.ranks["rank"][0] and spread else []),
        ),
        advice=remedy,
        fix="move-layers" if remedy == _MOVE_LAYERS else "",
        total_ns=cost,
        confidence="high"
        if row["straggler_steps"] >= WARN_STEPS or not time.in_steps
        else confidence_of_one_step(answers, rank, by_cause),
        rank=rank,
        ranks=(rank,) if keeps_its_work(answers, rank, by_cause) else (),
        step=time.only_step(waits),
        intervals=intervals_of(waits),
        explained=explained
        | {"uneven-steps": share_in_slow_steps(answers, rank, waits)}
        | experts
        | answers.without_cpus,
    )


def _all_waits(
    time: DeviceTime, result: CommOutliers, row: Mapping[str, Any], total: int
) -> Iterator[str]:
    """Yield the wait time that ``comm-outliers`` counts for a rank, if it is more than the cost."""
    basis = ["with main threads idle" if time.on_host else "without compute"]
    basis += ["within steps"] * time.in_steps
    basis += ["without the bubble of the schedule"] * (result.pipeline is not None)
    if row["imposed_ns"] > (1 + _SAME) * total:
        yield (
            f"This is wait time {', '.join(basis)} (the command comm-outliers counts "
            f"all of it: {format_ns(row['imposed_ns'])} in total)."
        )


#: Times that differ by less are printed with the same digits, or as one time.
_SAME, _NEARLY_SAME = 0.0005, 0.01


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
        f"{at_step(worst['step'])}."
    )
    if text := meanwhile(worst):
        yield text


def _with_more_work(answers: Answers, rank: int) -> tuple[int, ...]:
    """Return the ranks with more work than the mean if this straggler is not the only such rank.

    Empty if another cause than larger inputs delays it, or if the rank with the second most work
    exceeds the mean by less than a quarter as much. Work is the time of the GPUs of a rank without
    idle time and exposed communication. Stages of pipelines are not compared.
    """
    waits = _waits(answers).filter(root_rank=rank).group_by("cause").agg(pl.col("lost_ns").sum())
    by_cause = dict(waits.iter_rows())
    if stage_of(answers, rank) is not None or not keeps_its_work(answers, rank, by_cause):
        return ()
    busy = answers.time.busy.drop_nulls("rank").group_by("rank").agg(pl.col("busy_ns").sum())
    over = busy.with_columns(pl.col("busy_ns") - pl.col("busy_ns").mean())
    more = largest_first(over.filter(pl.col("busy_ns") > 0), "busy_ns", "rank")
    if more.height < 2 or more["busy_ns"][1] < _NEXT * more["busy_ns"][0]:
        return ()
    return tuple(sorted(more["rank"])) if rank in more["rank"] else ()


@rule(
    "comm_outliers",
    "unequal work of ranks: another rank is the straggler in each step, or several ranks have more "
    "work than the mean over all steps",
    f"exposed wait time for ranks with longer or more work, {OF_STEP}, if there is no single "
    "straggler in most steps",
    {"info": 0.05, "warning": 0.1, "critical": 0.3},
    uses=("gpu_idle", "kernels"),
)
def _unequal_work(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    time = answers.time
    late = [one for one in answers.measured(_straggler) if (one.size or 0.0) >= WARN_FRAC]
    stragglers = [one for one in late if sum(one.explained.values()) < _HALF]
    of_others = [rank for one in stragglers for rank in one.ranks or (one.rank,)]
    waits = _waits(answers).filter(~pl.col("root_rank").is_in(of_others), cause=WORK)
    total = int(waits["lost_ns"].sum())
    if not total:
        return
    sums = waits.group_by("step", "root_rank").agg(pl.col("lost_ns").sum())
    top = largest_first(sums, "lost_ns", "step", "root_rank").head(_NAMED)
    each = ", ".join(
        f"rank {rank}{at_step(step)} ({format_ns(ns)} in total)"
        for step, rank, ns in top.iter_rows()
    )
    most = int(top["root_rank"][0])
    more = _with_more_work(answers, most) if is_steady(time, most) else ()
    of_late = [rank for one in late for rank in one.ranks or (one.rank,)]
    theirs = int(waits.filter(pl.col("root_rank").is_in(of_late))["lost_ns"].sum())
    if not more and (stragglers or 2 * theirs > total):
        return
    which = (
        f"rank {most} with the most work. Ranks {format_ranges(more)} have more than the mean over "
        "all steps"
        if more
        else "the rank with the most work, which changes between steps"
    )
    kernels = answers.of(Kernels)
    attends = more and kernels and kernels.families["family"].is_in([ATTENTION]).any()
    difference = _difference(answers, most, {WORK: total}) if more else None
    yield Measured(
        title=f"Unequal work: ranks wait {time.share(total)} for {which}.",
        evidence=(
            *[f"On rank {most}, {one.text}." for one in [difference] if one],
            f"Most of the wait time is for {each}.",
        ),
        advice=ZIGZAG
        if difference and difference.attends
        else f"{_EQUAL}{f' {ZIGZAG}' * bool(attends)}",
        total_ns=total,
        confidence="high" if more else "medium",
        rank=most if more else None,
        ranks=more,
        intervals=intervals_of(waits),
        explained=_of_experts(result, waits),
    )


_EQUAL = (
    "Balance the work: inputs of equal size (bucket by sequence length, equal numbers of tokens "
    "per rank), equal numbers of layers or experts."
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
    if experts.main is None or experts.imbalance < UNEQUAL_LOADS or not total:
        return
    rank, is_one, by = experts.main[0], experts.is_one, experts.persistent_in
    yield Measured(
        title=f"Experts have unequal loads: the other ranks wait {time.share(total)} for the rank "
        f"with the most tokens, {format_ratio(experts.imbalance)} the mean ({experts.who()}).",
        evidence=(
            *(
                f"Most tokens: rank {row['rank']}, {format_ratio(row['of_mean'])} the mean rank."
                for row in experts.loads.head(1).iter_rows(named=True)
            ),
            "The rank with the most tokens is the same all the time: its experts are popular."
            if is_one
            else f"Each {by} has its own rank with the most tokens: its experts there are popular."
            if by
            else "The rank with the most tokens changes: the router is uneven for each batch.",
        ),
        advice=_PLACE_EXPERTS if is_one or by else _BALANCE_ROUTER,
        total_ns=total,
        rank=rank if is_one else None,
        intervals=intervals_of(waits),
    )


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
    if not whole or result.experts.imbalance < UNEQUAL_LOADS:
        return {}
    of_work = waits.filter(pl.col("cause") == WORK, pl.col("collective").str.contains("all_to_all"))
    return {"expert-imbalance": int(of_work["lost_ns"].sum()) / whole}


@rule(
    "comm_outliers",
    "pipeline stages that wait for each other by their schedule",
    "exposed wait time in sends, receives and collectives of several stages, at most the bubble of "
    "a 1F1B schedule, as a share of step time (or of the recorded time)",
    {"info": 0.1, "warning": 0.15, "critical": 0.3},
    uses=("gpu_idle",),
    compares_ranks=True,
)
def _pipeline_bubble(result: CommOutliers, answers: Answers) -> Iterator[Measured]:
    lost = claimed(answers, BUBBLE)
    if lost is None or result.pipeline is None:
        return
    losses, total = lost
    time = answers.time
    schedule = result.pipeline.schedule(1 - time.frac(int(time.busy["busy_ns"].sum())))
    yield Measured(
        title=f"Ranks wait {time.share(total)} for the stage before or after.",
        evidence=tuple(filter(None, [schedule])),
        advice=_IN_FLIGHT
        if not answers.program.trains
        else "Use more micro-batches per step, or a schedule with a smaller bubble "
        f"({'interleaved 1F1B, ' * (result.pipeline.chunks == 1)}zero bubble).",
        total_ns=total,
        most_gain_ns=min(round(result.pipeline.gain_frac * time.whole_ns), total) or None,
        intervals=intervals_of(losses),
    )


_IN_FLIGHT = (
    "Keep at least as many batches in flight as there are stages: enough requests at a time, and "
    "a scheduler that starts the next batch before the last stage ends; or divide layers over the "
    "GPUs (tensor parallelism) in place of stages."
)


def claimed(answers: Answers, cause: str) -> tuple[pl.DataFrame, int] | None:
    """Return the losses of a cause, and their total in ns; None without any."""
    losses = answers.time.of_cause(cause)
    total = int(losses["lost_ns"].sum())
    return (losses, total) if total else None


def waited_for_missing(answers: Answers) -> tuple[int, tuple[str, ...]]:
    """Return exposed wait time for ranks that were not recorded, in steps if any, and evidence."""
    comm = answers.of(CommOutliers)
    if comm is None or comm.waits_for_missing.is_empty():
        return 0, ()
    waits = comm.waits_for_missing
    name, usual, least = waits.select("collective", "usual_ns", "shortest_ns").row(0)
    waits = waits.drop_nulls("step") if answers.time.in_steps else waits
    exposed = answers.time.of_cause(EXPOSED).filter(~pl.col("waited"))
    text = f"{name} takes {format_ns(round(usual))} (median), the shortest of the same size "
    text += f"{format_ns(least)}: a slow link is slow each time."
    return min(int(waits["over_ns"].sum()), int(exposed["lost_ns"].sum())), (text,)


RULES: tuple[Rule, ...] = (_straggler, _unequal_work, _expert_imbalance, _pipeline_bubble)
