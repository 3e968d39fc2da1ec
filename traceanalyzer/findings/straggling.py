"""Causes of a straggler: longer idle time, other kernels, a slow stage of a pipeline."""

from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from traceanalyzer.analyzers.comm_outliers import chains
from traceanalyzer.analyzers.comm_outliers.activity import NOTHING
from traceanalyzer.analyzers.comm_outliers.pipelines import POINT_TO_POINT, work_longer
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.common.names import frame_text, python_frame
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.steps.slow_steps import CODE
from traceanalyzer.findings.device_time import LINK, SLOW, UNEXPLAINED, WORK, DeviceTime
from traceanalyzer.findings.kernel_times import (
    LARGER_INPUTS,
    LONG_CALL,
    OTHER_KERNELS,
    UNEQUAL,
    Difference,
    compare,
)
from traceanalyzer.findings.rule import Answers
from traceanalyzer.result import Confidence
from traceanalyzer.units import format_frac

#: Causes with a smaller share are not listed.
_LEAST = 0.1

#: What balances the stages of a pipeline.
MOVE_LAYERS = (
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
    staged = stage_of(answers, rank) is not None or _in_stages(waits)
    if (name := only_code(answers, rank, by_cause)) and not staged:
        return f"Share the work of {name} among all ranks, or run it less often."
    difference = _difference(answers, rank, by_cause)
    if difference and difference.why in (*UNEQUAL, OTHER_KERNELS) and staged:
        return MOVE_LAYERS
    if difference:
        return difference.advice(answers.program, "this GPU", _BALANCE)
    cause, idle = _main(by_cause), answers.get("gpu_idle")
    if cause in causes.WAITING and isinstance(idle, GpuIdle):
        return idle.of_rank(rank).advice(cause)
    if cause in (SLOW, LINK):
        return answers.program.slow_link
    if cause == WORK and answers.time.on_host:
        return f"Balance the work: {_BALANCE}; give every rank as many CPU cores."
    return _of_activity(answers, rank)


_BALANCE = "equal batches and layers for every rank"


def _in_stages(waits: pl.DataFrame) -> bool:
    """Whether ranks wait mostly in sends and receives: for a stage of a pipeline."""
    rows = waits.drop_nulls("collective")
    paired = rows.filter(pl.col("collective").cast(pl.String).str.contains(POINT_TO_POINT))
    return 2 * int(paired["lost_ns"].sum()) > int(rows["lost_ns"].sum())


def _of_activity(answers: Answers, rank: int) -> str:
    """Return advice for a delay without a known cause: by what the rank did, if recorded."""
    comm, host = answers.get("comm_outliers"), NOTHING
    if isinstance(comm, CommOutliers) and rank in comm.delayed.collectives["root_rank"]:
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
    comm, busy = answers.get("comm_outliers"), answers.time.busy
    if not isinstance(comm, CommOutliers) or comm.pipeline is None:
        return {}
    longer = busy.select("rank", longer=work_longer(busy["busy_ns"]))
    placed = comm.positions.drop_nulls("stage").join(longer, on="rank").sort("rank")
    stages = placed.group_by("stage").agg("rank", pl.col("longer").all())
    slow = stages.filter("longer", pl.col("rank").list.len() > 1).sort("stage")
    return dict(slow.select("stage", "rank").iter_rows())


def stage_of(answers: Answers, rank: int) -> int | None:
    """Return the pipeline stage of a rank; None if the ranks are no pipeline."""
    comm = answers.get("comm_outliers")
    if not isinstance(comm, CommOutliers) or comm.pipeline is None:
        return None
    stages: dict[int, int] = dict(comm.positions.select("rank", "stage").iter_rows())
    return stages.get(rank)


def only_code(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> str:
    """Return the code that only a straggler runs, if it takes as long as the others wait.

    Of nested functions and annotations the user's own ones come first, then the outermost. Ranks
    without Python stacks may run the same functions.
    """
    steps = answers.get("steps")
    if not isinstance(steps, Steps) or steps.code is None or not by_cause:
        return ""
    others = max(answers.time.windows["rank"].n_unique() - 1, 1)
    least = _HALF * sum(by_cause.values()) / others
    if _main(by_cause) not in (WORK, UNEXPLAINED) or steps.by_kernels:
        return ""
    is_python = pl.col("kind") == "python_function"
    stacks = steps.code.filter(is_python)["rank"].n_unique() > others
    elsewhere = steps.code.filter(pl.col("rank") != rank)["name"].unique()
    only = steps.code.filter(
        pl.col("rank") == rank,
        ~is_python | stacks,
        ~pl.col("name").is_in(elsewhere.implode()),
        pl.col("total_ns") >= least,
    )
    rows = only.select("name", "total_ns", of_user=_of_user(only)).sort(
        "of_user", "total_ns", "name", descending=[True, True, False]
    )
    return frame_text(rows["name"][0]) if rows.height else ""


def _of_user(code: pl.DataFrame) -> pl.Series:
    """Return which annotations and Python functions are the user's own."""
    frames = code.select(frame=python_frame(pl.col("name"))).unnest("frame")
    of_user = [
        kind != "python_function" or libraries.is_own_code(name, file)
        for kind, name, file in zip(code["kind"], frames["name"], frames["file"], strict=True)
    ]
    return pl.Series(of_user, dtype=pl.Boolean)


#: Code takes as long as others wait for it from this share on.
_HALF = 0.5

#: The host of a rank is slow if its calls take this many times as long as on the other ranks.
_SLOW_HOST = 2.0
COMPARE_INPUTS = (
    "The other ranks run the same code in less time: compare what it works on (sizes, number of "
    "requests, lock, files). "
)
CHECK_HOST = (
    "Check the CPU of this rank: clock, temperature and power limit, the cores of the process "
    "(affinity, cgroup) and their NUMA node, other processes on them, and whether only this rank "
    "runs a debugger or profiler."
)


def slow_host(answers: Answers, rank: int | None) -> str:
    """Return that the launch calls of a rank are long, as a clause; empty if they are not."""
    launches = answers.get("launches")
    if rank is None or not isinstance(launches, Launches):
        return ""
    calls = launches.devices.drop_nulls("median_call_ns")
    of_rank = calls.filter(pl.col("rank") == rank)["median_call_ns"].median()
    usual = calls.filter(pl.col("rank") != rank)["median_call_ns"].median()
    if not isinstance(of_rank, float) or not isinstance(usual, float):
        return ""
    if of_rank < _SLOW_HOST * usual:
        return ""
    return f"launch calls take {of_rank / max(usual, 1):.3g} times as long as on the other ranks"


def slower_code(answers: Answers, rank: int | None, names: Iterable[str]) -> str:
    """Return that the first of this code that all ranks run takes longer on a rank, as a clause."""
    steps = answers.get("steps")
    if rank is None or not isinstance(steps, Steps) or steps.code is None:
        return ""
    each = steps.code.select("rank", "name", each=pl.col("total_ns") / pl.col("n"))
    for name in names:
        of_rank = float(each.filter(pl.col("rank") == rank, name=name)["each"].sum())
        usual = each.filter(pl.col("rank") != rank, name=name)["each"].median()
        if isinstance(usual, float) and of_rank >= _SLOW_HOST * usual > 0:
            return f"{of_rank / usual:.3g} times as long as on the other ranks"
    return ""


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
    if name := only_code(answers, rank, by_cause):
        return f"only this rank runs {name}"
    if cause in (SLOW, LINK):
        return "slow collectives of its group"
    idle = answers.get("gpu_idle")
    if cause in causes.WAITING and isinstance(idle, GpuIdle):
        return idle.of_rank(rank).state(cause)
    difference = _difference(answers, rank, by_cause)
    return difference.text if difference else ""


def keeps_its_work(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> bool:
    """Whether the rank is late by larger inputs: a fix moves work to the other ranks."""
    difference = _difference(answers, rank, by_cause)
    return difference is not None and difference.why == LARGER_INPUTS


def confidence_of_one_step(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> Confidence:
    """Return the confidence in a straggler of one step: ``low``, unless a call or code is known."""
    difference = _difference(answers, rank, by_cause)
    known = only_code(answers, rank, by_cause) or (difference and difference.why == LONG_CALL)
    return "medium" if known else "low"


def share_in_slow_steps(answers: Answers, rank: int, waits: pl.DataFrame) -> float:
    """Return the share of wait time for a rank in slow steps, in which it runs other code.

    0 if longer or more work is the main cause.
    """
    steps = answers.get("steps")
    if not isinstance(steps, Steps) or steps.only_slow is None or waits.is_empty():
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
        each = ", ".join(f"{_name(cause)} {format_frac(share)}" for cause, share in large)
        yield f"Delay by cause: {each}."


def _name(cause: str) -> str:
    if cause == WORK:
        return "longer or more work"
    if cause == causes.COPIES:
        return "copies"
    if cause in (SLOW, LINK):
        return "slow collectives"
    return causes.NAMES.get(cause, "unexplained")


def _main(by_cause: Mapping[str, int]) -> str:
    return max(sorted(by_cause), key=lambda name: by_cause[name])


def _works_longer(by_cause: Mapping[str, int]) -> bool:
    """Whether work is the largest known cause of a delay, with a large share."""
    known = {cause: ns for cause, ns in by_cause.items() if cause != UNEXPLAINED}
    much = by_cause.get(WORK, 0) >= _MUCH * sum(by_cause.values())
    return bool(known) and _main(known) == WORK and much


def _difference(answers: Answers, rank: int, by_cause: Mapping[str, int]) -> Difference | None:
    kernels = answers.get("kernels")
    if not _works_longer(by_cause) or not isinstance(kernels, Kernels) or kernels.by_step is None:
        return None
    comm = answers.get("comm_outliers")
    if rank in kernels.by_step["rank"] or not isinstance(comm, CommOutliers):
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
