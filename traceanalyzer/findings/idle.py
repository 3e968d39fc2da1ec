"""Rules for idle time, one for each cause."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.common import kernel_names
from traceanalyzer.analyzers.common.names import called_in, frame_text
from traceanalyzer.analyzers.common.step_marks import STEP
from traceanalyzer.analyzers.common.waits import DATA, ENGINE, SLEEPS, wait_of
from traceanalyzer.analyzers.gpu_idle import activities, causes
from traceanalyzer.analyzers.gpu_idle.result import TRUNCATED, GpuIdle, activity, files_accessed
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.analyzers.transfers.result import Transfers
from traceanalyzer.findings import launching, straggling
from traceanalyzer.findings.device_time import DEVICE, MOST, DeviceTime, intervals_of, main_ranks
from traceanalyzer.findings.rule import (
    BETWEEN_LAUNCHES,
    IDLE_RULES,
    OF_GLOO,
    WITH_WARM_UP,
    Answers,
    Measured,
    Rule,
    within,
)
from traceanalyzer.result import Confidence, Severity, memoized
from traceanalyzer.units import (
    format_bytes,
    format_count,
    format_frac,
    format_ns,
    format_ranges,
)
from traceanalyzer.vocabulary import NO_GPU_WORK

#: Maximum number of items in a list.
_NAMED = 3

#: A loss in the first step counts as setup from this many steps on.
_ENOUGH_STEPS = 3

_LEVELS: Mapping[Severity, float] = {"info": 0.03, "warning": 0.05, "critical": 0.2}
#: Causes that are often not a problem.
_OTHER_LEVELS: Mapping[str, Mapping[Severity, float]] = {
    causes.PROFILER: {"info": 0.05, "warning": 0.2},
    causes.SHORT_GAP: {"info": 0.1, "warning": 0.3},
}
#: Causes that are recognised by names only, or unknown.
_CONFIDENCE: Mapping[str, Confidence] = {causes.HOST_CODE: "medium", causes.UNKNOWN: "low"}
_COMPARE_INPUTS = "The other ranks run this code in less time: compare inputs, locks and files. "


def _judge(cause: str, result: GpuIdle, answers: Answers) -> Iterator[Measured]:
    yield from _in_warm_up(cause, result, answers)
    result = launching.after_warm_up(cause, result)
    losses = _losses_of(answers, cause)
    if cause in causes.STOPPED:
        for apart, one_cause in launching.APART:
            inside, result = apart(result)
            if inside.gaps.is_empty():
                continue
            if cause == one_cause:
                both = pl.concat(_losses_of(answers, one) for one in causes.STOPPED)
                chosen = both.filter(launching.at_gaps(both, inside.gaps))
                yield from _measured(cause, inside, chosen, answers)
            losses = losses.filter(~launching.at_gaps(losses, inside.gaps))
    if answers.is_little(IDLE_RULES[cause], losses):
        return
    if cause == causes.HOST_CODE:
        one, of_one, result = straggling.code_of_one_rank(result, losses)
        yield from _measured(cause, one, of_one, answers)
        losses = losses.join(of_one, on=[*DEVICE, "start"], how="anti", nulls_equal=True)
        for one, of_place in launching.by_place(result, losses, answers.time, _LEVELS["info"]):
            yield from _measured(cause, one, of_place, answers)
        return
    yield from _measured(cause, result, losses, answers)


def _measured(
    cause: str, result: GpuIdle, losses: pl.DataFrame, answers: Answers
) -> Iterator[Measured]:
    time, total = answers.time, int(losses["lost_ns"].sum())
    if answers.is_little(IDLE_RULES[cause], losses):
        return
    if cause == causes.COMMUNICATOR and result.of_cause(cause).is_empty():
        yield _first_collective(losses, answers)
        return
    ranks = main_ranks(losses, time.windows["rank"].n_unique())
    rank = ranks[0] if len(ranks) == 1 else None
    result = result.of_rank(rank)
    steps = main_steps(losses, time, ranks)
    once = _is_once(cause, result, losses, answers)
    alone = cause == causes.PEER and not _are_matched(answers)
    if once:
        advice = causes.ONCE[answers.program.pytorch]
    elif alone:
        advice = causes.ALONE
    else:
        advice = f"{_advice(cause, result, answers)}{_without_wait(cause, result, answers)}"
    waiting = _waiting(cause, result, answers)
    if cause == causes.SYNCHRONISATION:
        read = ("", "") if once else launching.read_collectives(answers)
        waiting, advice = f"{waiting}{read[0]}", read[1] or advice
        if _after_waits(answers).height:
            waiting = f"{waiting} and runs host code after each wait"
    of_host = cause in (causes.LAUNCH, causes.HOST_CODE) and not once
    slow, slower = "" if once else straggling.slow_host(answers, ranks), ""
    if slow and of_host:
        waiting, advice = f"{waiting} ({slow})", straggling.check_host(ranks)
    elif of_host and (slower := straggling.slower_code(answers, ranks, result.activity(cause))):
        waiting = f"{waiting}, {slower}"
        advice = f"{_COMPARE_INPUTS}{straggling.check_host(ranks)}"
    waiting += straggling.runs_alone(answers, ranks, result.activity(cause)) * of_host
    if cause == causes.HOST_CODE:
        advice = launching.of_host_code(result, answers, steps) or advice
    if cause in _GROWING and (grown := _growing(losses, time, ranks)):
        waiting, advice = f"{waiting}, longer in each step ({grown})", f"{_CLEAR}{advice}"
    moves = cause == causes.HOST_CODE and result.activity(cause).moves_to_gpu
    unsure = _is_unsure(cause, result, answers, by_chance=bool(steps) and not ranks) or alone
    is_known = result.coverage.host_known and not _slow_code(cause, result, answers, losses)
    by_design = cause == causes.HOST_CODE and launching.by_design(result, answers, steps, total)
    yield Measured(
        size=min(time.frac(total), _LEVELS["info"]) if by_design else None,
        cost_frac=time.frac(total),
        title=_title(result, losses, answers, ranks, steps, waiting, once=once),
        evidence=tuple(_evidence(result, cause, answers, ranks)),
        advice=advice,
        total_ns=total,
        most_gain_ns=0 if by_design else _most_gain(cause, result, time, total * bool(slower)),
        once=once,
        confidence="low" if unsure else _confidence(cause, result, is_known=is_known),
        rank=rank,
        step=steps[0] if len(steps) == 1 else None,
        intervals=None if moves else intervals_of(losses),
        ranks=ranks if (slow and of_host) or (slower and not steps) else (),  # not pauses in a few
        explained=_explained(cause, result, answers, losses, slow),
    )


def _is_unsure(cause: str, result: GpuIdle, answers: Answers, *, by_chance: bool) -> bool:
    """Whether a cause has low confidence: it may be no problem, or another one."""
    unsure = result.coverage.work_lost
    unsure |= cause == causes.DEVICE_WAIT and answers.time.busiest is not None
    if cause != causes.HOST_CODE:
        return unsure
    waits = result.activity(cause).wait in (DATA, ENGINE, SLEEPS) and not result.program.trains
    on_gpu = result.coverage.on_host and bool(answers.program.gpus)
    return unsure or waits or on_gpu or (by_chance and answers.by_chance)


def _most_gain(cause: str, result: GpuIdle, time: DeviceTime, slower_ns: int) -> int | None:
    """Return the loss by code that is slower than on other ranks, or without restarts of workers.

    None if loader workers start at most once: those that start at the beginning of the recording
    may start for the first time.
    """
    if slower_ns:
        return slower_ns
    if cause != causes.DATALOADING or not result.host.starts_workers or not time.in_steps:
        return None
    losses, first = time.of_cause(cause), time.windows["step"][0]
    again = int(losses.filter(pl.col("step") != first)["lost_ns"].sum())
    return again or None


@memoized
def _losses_of(answers: Answers, cause: str) -> pl.DataFrame:
    """Return the lost time of a cause, without that of loops, and with that of its copies."""
    losses = answers.time.of_cause(cause)
    loops = (answers.loops,) if cause in BETWEEN_LAUNCHES else ()
    checks = (answers.nan_checks,) if cause in (*BETWEEN_LAUNCHES, causes.HOST_CODE) else ()
    for spans in (*loops, *checks):
        losses = losses.filter(~within(losses, spans)) if spans.height else losses
    if cause == causes.HOST_CODE and answers.reads_copies:
        return pl.concat([losses, answers.time.of_cause(causes.COPIES)])
    if cause == causes.MODULE_LOADING:
        return pl.concat([losses, answers.remade])
    if cause == causes.SYNCHRONISATION:
        return pl.concat([losses, _after_waits(answers)])
    if cause == causes.LAUNCH:
        return answers.without_eager(losses)
    if cause == causes.HOST_CODE:
        keys = [*DEVICE, "start"]
        return losses.join(_after_waits(answers), on=keys, how="anti", nulls_equal=True)
    return losses


@memoized
def _after_waits(answers: Answers) -> pl.DataFrame:
    """Return losses by host code after waits for the device, if those take more time.

    It has no name, or that of the range of the waits. Without them, the host would run it while the
    device works.
    """
    losses, result = answers.time.losses, answers.of(GpuIdle)
    if result is None or (launches := answers.of(Launches)) is None:
        return losses.clear()
    one, where = result.activity(causes.HOST_CODE), launching.synchronising_place(launches)
    is_part = not one.frame and one.place in ("", where.get("annotation"))
    waits = int(answers.time.of_cause(causes.SYNCHRONISATION)["lost_ns"].sum())
    code = answers.time.of_cause(causes.HOST_CODE)
    if (
        not is_part
        or waits < code["lost_ns"].sum()
        or not launching.waits_before(answers, causes.HOST_CODE)[0]
    ):
        return losses.clear()
    return pl.concat([code.filter("waited"), launching.following_waits(answers, causes.HOST_CODE)])


def _explained(
    cause: str, result: GpuIdle, answers: Answers, losses: pl.DataFrame, slow: str
) -> dict[str, float]:
    """Return the shares of idle time that other findings explain.

    After migrations of managed memory to the host, host code touches what the device used before:
    it is in page faults. On a slow host, loaders and other calls take longer, too. Threads without
    CPUs do not explain :func:`_slow_code`.
    """
    shares = answers.of_engine(losses)
    shares |= {} if _slow_code(cause, result, answers, losses) else answers.without_cpus
    if remade := int(answers.remade.filter(cause=cause)["lost_ns"].sum()):
        shares[IDLE_RULES[causes.MODULE_LOADING]] = remade / int(losses["lost_ns"].sum())
    if slow and cause != causes.LAUNCH:
        shares[IDLE_RULES[causes.LAUNCH]] = 1.0
    if cause != causes.HOST_CODE:
        return shares
    if launching.compiles_in_all(answers, result.activity(cause).place):
        return {"compiling-steps": 1.0}
    shares |= {"exposed-copies": 1.0} if answers.on_cpu else {}
    gaps = result.of_cause(cause)
    after = int(gaps.filter(pl.col("before").str.contains("UVM DtoH"))["cause_ns"].sum())
    return shares | ({"migrations": after / int(gaps["cause_ns"].sum())} if after else {})


#: Intervals of slow code take at least this share of its time in a step, and are most of it.
_LONG_FRAC = 0.1


def _slow_code(cause: str, result: GpuIdle, answers: Answers, losses: pl.DataFrame) -> str:
    """Return own code with most of a loss in few long intervals, of threads that lack CPUs.

    The code between operators, which such threads make longer, is in many short ones.
    """
    least = _LONG_FRAC * answers.time.each_ns(int(losses["lost_ns"].sum()))
    is_long = losses["lost_ns"] >= least
    most = 2 * losses["lost_ns"].filter(is_long).sum() >= losses["lost_ns"].sum()
    return result.activity(cause).frame if answers.without_cpus and most else ""


#: Causes whose time may grow with each step, and what to do about it.
_GROWING = (causes.HOST_CODE, causes.DATALOADING, causes.CHECKPOINT_IO, causes.MEMORY_MANAGEMENT)
_CLEAR = (
    "It takes longer in each step: find the list, history or cache that grows, and clear it or "
    "keep a running value. "
)


def _growing(losses: pl.DataFrame, time: DeviceTime, ranks: Sequence[int]) -> str:
    """Return the time of a GPU in the first and the last step, if it grows; otherwise empty."""
    local = _local(losses, ranks)
    grown = time.growing(local.group_by("step").agg(ns=pl.col("lost_ns").sum()))
    first, last = (format_ns(ns / max(local.n_unique(DEVICE), 1)) for ns in grown or (0, 0))
    return f"{first} in the first, {last} in the last" if grown else ""


def _first_collective(losses: pl.DataFrame, answers: Answers) -> Measured:
    """Return the time of the first collective of a group, which creates the communicator."""
    time, total = answers.time, int(losses["lost_ns"].sum())
    steps = main_steps(losses, time, ())
    first = losses["collective"].drop_nulls().head(1)
    return Measured(
        title=f"The first {first[0] if first.len() else 'collective'} of a process group"
        f"{in_steps(steps, time)} creates its communicator: {time.share(total, once=True)}.",
        advice=causes.ONCE[answers.program.pytorch],
        total_ns=total,
        once=True,
        confidence="medium",
        step=steps[0] if len(steps) == 1 else None,
        intervals=intervals_of(losses),
    )


def _in_warm_up(cause: str, result: GpuIdle, answers: Answers) -> Iterator[Measured]:
    """Yield setup in warm-up steps: it is in the cost of no step, and is named once."""
    time = answers.time
    if time.warm_up.is_empty():
        return
    losses = time.warm_up.filter(pl.col("cause") == cause)
    total = int(losses["lost_ns"].sum())
    later = time.of_cause(cause)
    repeats = later["lost_ns"].sum() >= total and later["step"].n_unique() > 1
    if not total or repeats or not launching.is_set_up(cause, result, answers):
        return
    size = total / (time.whole_ns + time.warm_up_ns)
    steps = losses["step"].unique().sort()
    where = f"{steps[0]} (warm-up)" if steps.len() == 1 else "warm-up steps"
    what, several = "Main thread" if result.coverage.on_host else "GPU", result.units.height > 1
    does = activities.clause(result.waiting(cause), f" in {where}", several=several)
    yield Measured(
        size=size,
        title=f"{what}{'s' * several} {does}: {time.text(total, once=True)}.",
        evidence=tuple(_longest(result, cause, steps, within=True)),
        advice=causes.ONCE[answers.program.pytorch],
        total_ns=total,
        once=True,
        cost_frac=size,
        of=WITH_WARM_UP,
        confidence=_confidence(cause, result, is_known=True),
        step=steps[0] if steps.len() == 1 else None,
        intervals=intervals_of(losses),
    )


#: Idle time in collectives that are compared with those of other ranks, and in others.
_AFTER_ARRIVAL = "after every rank has arrived"
_FOR_OTHERS = "(waiting for other ranks, or slow communication)"


#: Causes of idle time whose calls have a place.
_PLACED = (causes.SYNCHRONISATION, causes.LAUNCH)


def _waiting(cause: str, result: GpuIdle, answers: Answers) -> str:
    """Return what a main thread or device does in idle time of a cause, and where it waits."""
    one = result.activity(cause)
    where = f" in {one.range}" if one.range else ""
    if cause == causes.DEVICE_WAIT and answers.time.in_turn:
        return "waiting while another GPU of the process runs (they run one after another)"
    if cause == causes.DEVICE_WAIT and (busiest := answers.time.busiest):
        longer = f"works {busiest[1]:.2g} times as long as the others"
        return f"waiting while GPU {busiest[0]} of the process runs, which {longer}"
    if cause in _PLACED and not (one.pauses or launching.read_collectives(answers)[0]):
        place = frame_text(result.waited["frame"] or result.waited["range"])
        if cause == causes.SYNCHRONISATION and place:
            called = frame_text(launching.called_at(result, answers))
            return f"{result.waiting(cause)} in {', '.join(filter(None, [called, place]))}"
        pieces = launching.in_pieces(result, answers)[0] if cause == causes.LAUNCH else ""
        return f"{result.waiting(cause)}{pieces or called_in(answers.place(cause))}"
    if cause == causes.MEMORY_MANAGEMENT:
        return f"{result.waiting(cause)}{result.freeing[0] or one.where}"
    if cause == causes.HOST_CODE and answers.reads_copies:
        return f"{result.waiting(cause)}, on data copied from the GPU"
    if cause == causes.CHECKPOINT_IO and (copying := launching.copies_state(result, answers)):
        return f"waiting while the state is copied to the host in {frame_text(copying)}"
    if cause == causes.DATALOADING:
        return f"{result.waiting(cause)}{launching.pinning(result, answers)[0]}"
    if cause == causes.MODULE_LOADING and answers.remade.height:
        return f"waiting while the host makes and destroys a plan or module again and again{where}"
    if cause != causes.PEER:
        return result.waiting(cause)
    place = result.activity(cause).place
    where = place if place.startswith("MPI_") else "collectives"
    return f"in {where} {_AFTER_ARRIVAL if _are_matched(answers) else _FOR_OTHERS}"


def _are_matched(answers: Answers) -> bool:
    """Whether collectives that the host runs were compared between ranks."""
    compared = answers.of(CommOutliers)
    return compared is not None and compared.arrivals["device"].has_nulls()


def _confidence(cause: str, result: GpuIdle, *, is_known: bool) -> Confidence:
    reads = cause == causes.CHECKPOINT_IO and result.reads  # of files, pipes or sockets
    if reads or result.activity(cause).pauses:  # pauses have a probable cause
        return "medium"
    return _CONFIDENCE.get(cause, "high" if is_known else "medium")


def _advice(cause: str, result: GpuIdle, answers: Answers) -> str:
    if cause == causes.PEER and answers.by_gloo:
        return f"{OF_GLOO}."
    if cause == causes.MODULE_LOADING and answers.remade.height:
        return _MAKE_ONCE
    if cause == causes.PEER and _are_matched(answers):
        return activities.advice_on_collectives(result.activity(cause))
    if cause == causes.DEVICE_WAIT and answers.time.in_turn:
        return causes.ALL_GPUS if result.program.pytorch else causes.LAUNCH_ON_ALL
    if cause == causes.DEVICE_WAIT and answers.time.busiest:
        return causes.EVENLY
    if cause == causes.DATALOADING and (pins := launching.pinning(result, answers)[1]):
        return pins
    if cause == causes.DATALOADING and result.has_loader:
        return f"{_slowest_of_loading(result)}{result.advice(cause)}"
    if cause == causes.CHECKPOINT_IO and (copying := launching.copies_state(result, answers)):
        return activities.advice_on_files(copying, pytorch=result.program.pytorch)
    if cause == causes.SYNCHRONISATION and (of := launching.of_waits(result, answers)):
        return of
    if cause == causes.LAUNCH and (launches := answers.of(Launches)) is not None:
        return launching.launch_advice(result, launches, answers)
    on_gpu = cause == causes.HOST_CODE and result.coverage.on_host and answers.program.gpus
    return f"{launching.RECORD_GPU} {result.advice(cause)}" if on_gpu else result.advice(cause)


_MAKE_ONCE = (
    "Modules are loaded, unloaded and loaded again: make what has them (a plan of cuFFT, a "
    "descriptor, a compiled kernel) once before the loop, and keep it."
)


def _without_wait(cause: str, result: GpuIdle, answers: Answers) -> str:
    """Return advice to let the host run ahead, if it waits for the device before this cause."""
    one = result.activity(cause)
    reads = f"grad_scaler|(?:{activities.OFFLOADED})|{causes.SENDS_OBJECTS}"
    names_it = cause == causes.HOST_CODE and bool(re.search(reads, f"{one.place} {one.called}"))
    names_it |= cause == causes.DATALOADING and 2 * answers.free_of_loader < 1  # it is the limit
    searched = cause in _OF_HOST and not names_it
    call = launching.waits_before(answers, cause)[0] if searched else ""
    first = "Or" if cause == causes.DATALOADING else "If this code needs no results of the GPU,"
    return f" {first} remove the wait before it ({call}): the host then runs ahead." * bool(call)


def _slowest_of_loading(result: GpuIdle) -> str:
    """Return advice for the code with most of the data loading, if it has half of it."""
    if result.host.loader_code["name"].str.contains(_DISPATCHES).any():
        return "Let each rank load its own batches (Accelerate: dispatch_batches=False). "
    for row in _code_of_loading(result).iter_rows(named=True):
        share = row["self_ns"] / max(int(result.units["loader_ns"].sum()), 1)
        if share >= _MOST_OF_LOADING and not result.host.starts_workers:
            name = frame_text(row["name"])
            return f"Make {name} faster, or its result smaller ({format_frac(share)} of loading). "
    return ""


#: Functions by which one rank sends the batches that it loads to the others.
_DISPATCHES = r"accelerate[/\\].*: (?:_fetch_batches|broadcast_object_list)$"
#: From this share of data loading on, its code is named in the advice.
_MOST_OF_LOADING = 0.5


def _code_of_loading(result: GpuIdle) -> pl.DataFrame:
    """Return the code with the highest self time in data loading, except the loader itself."""
    loader = result.host.loader["name"].implode()
    code = result.host.loader_code.filter(~pl.col("name").is_in(loader)).head(1)
    waits = pl.col("name").cast(pl.String).str.contains(_READS)
    return code.filter([wait_of(name) is None for name in code["name"]]).filter(~waits)


#: Calls and operators in which the host only waits for a device.
_READS = r"^aten::(?:item|_local_scalar_dense)$|Synchronize"


def _is_once(cause: str, result: GpuIdle, losses: pl.DataFrame, answers: Answers) -> bool:
    """Whether the loss is setup: loading of kernels, or in the first recorded step.

    Without steps: in a few calls.
    """
    time = answers.time
    if cause == causes.MODULE_LOADING and launching.are_first_launches(losses, answers):
        return True
    if not time.in_steps:
        is_late = cause == causes.LAUNCH
        may_be = cause in causes.FIRST_USE or (is_late and _is_within_setup(result, losses))
        few = may_be and (_is_in_few(losses, _ONE) or _is_in_few(losses, _FEW, _MANY))
        return few or (is_late and result.is_once(cause))
    begin = pl.col("start").min().over(DEVICE)
    first = time.windows.drop_nulls("step").filter(
        pl.col("start") == begin, pl.len().over(DEVICE) >= _ENOUGH_STEPS
    )
    in_first = losses.join(first, on=[*DEVICE, "step"], how="semi", nulls_equal=True)
    least = causes.SETUP_FRAC * int(losses["lost_ns"].sum())
    return int(in_first["lost_ns"].sum()) >= least and launching.is_set_up(cause, result, answers)


def _is_within_setup(result: GpuIdle, losses: pl.DataFrame) -> bool:
    """Whether most late launches are a part of gaps for other causes, and one of these is setup."""
    alone = int(result.of_cause(causes.LAUNCH)["cause_ns"].sum())
    return 2 * alone < losses["lost_ns"].sum() and any(map(result.is_once, causes.FIRST_USE))


def _is_in_few(losses: pl.DataFrame, few: int, least: int = 0) -> bool:
    """Whether the longest intervals of each device have nearly all, of more than ``least``."""
    lost = pl.col("lost_ns")
    is_in_few = (lost.top_k(few).sum() >= causes.SETUP_FRAC * lost.sum()) & (pl.len() > least)
    return bool(losses.group_by(DEVICE).agg(is_in_few.alias("few"))["few"].all())


#: Calls that a loop repeats take about the same time each; setup takes most of it in a few calls
#: (of more than 6). A call that does not repeat has nearly all.
_FEW, _MANY, _ONE = 3, 6, 1


#: From this share on, wait time of other ranks is mentioned.
_SOME_FRAC = 0.05


def _title(
    result: GpuIdle, losses: pl.DataFrame, answers: Answers, ranks: Sequence[int],
    steps: Sequence[str], waiting: str, *, once: bool,
) -> str:  # fmt: skip
    time, total = answers.time, int(losses["lost_ns"].sum())
    what = "Main thread" if result.coverage.on_host else "GPU"
    several = len(ranks or result.units) > 1
    who = f"R{answers.label(ranks)[1:]}" if ranks else f"{what}{'s' * several}"
    others = "" if (losses["cause"] == causes.PEER).all() else including(losses, ranks)
    does = activities.clause(waiting, in_steps(steps, time), several=several)
    alone = len(steps) == 1 and not once and _is_in_few(losses, _ONE)
    whole = f"{time.text(total, once=True)}: " * alone
    return f"{who} {does}: {whole}{time.share(total, once=once)}{others}."


def including(losses: pl.DataFrame, ranks: Sequence[int]) -> str:
    """Return what a loss includes besides that of the named ranks (or of all devices)."""
    some = _SOME_FRAC * int(losses["lost_ns"].sum())
    waited = int(losses.filter("waited")["lost_ns"].sum())
    if not ranks:
        return ", including wait time of other ranks" if waited > some else ""
    is_other = ~_caused_by(ranks) & ~pl.col("waited")
    others = int(losses.filter(is_other)["lost_ns"].sum())
    kind = "copy" if (losses["cause"] == causes.COPIES).any() else "idle"
    parts = [*["wait"] * (waited > 0), *[kind] * (others > some)]
    return f", including {' and '.join(parts)} time of other ranks" if parts else ""


def _caused_by(ranks: Sequence[int]) -> pl.Expr:
    return pl.col("root_rank").is_in(ranks).fill_null(value=False)


def _local(losses: pl.DataFrame, ranks: Sequence[int]) -> pl.DataFrame:
    """Return the loss of ranks (of all, if none are named) without waits for them."""
    local = losses.filter(~pl.col("waited"))
    return local.filter(_caused_by(ranks)) if ranks else local


#: Greatest loss of other steps, as a share of that of the steps with most of it.
_ELSEWHERE = 0.25


def in_steps(steps: Sequence[str], time: DeviceTime) -> str:
    """Return the steps with most of a loss as a phrase: `` in 2 of 6 steps``."""
    if len(steps) == 1:
        return f" in {steps[0]}"
    every = time.windows["step"].drop_nulls().n_unique()
    return f" in {len(steps):,} of {every:,} steps" if steps else ""


def main_steps(losses: pl.DataFrame, time: DeviceTime, ranks: Sequence[int]) -> list[str]:
    """Return the steps with most of the loss (of ranks, without waits for them), if they are few.

    Steps with at least half of the loss of the smallest of them belong to them. A step outside of
    them has a small part of their loss on average.
    """
    steps = _local(losses, ranks).drop_nulls("step").group_by("step").agg(pl.col("lost_ns").sum())
    ordered = steps.sort("lost_ns", "step", descending=[True, False])
    before = pl.col("lost_ns").cum_sum() - pl.col("lost_ns")
    least = ordered.filter(before < MOST * pl.col("lost_ns").sum())["lost_ns"].min() or 0
    most = ordered.filter(pl.col("lost_ns") >= least / 2)  # type: ignore[operator]
    every = time.windows["step"].drop_nulls().n_unique()
    if not most.height or 2 * most.height > every:
        return []
    whole, in_most = (int(rows["lost_ns"].sum()) for rows in (ordered, most))
    if (whole - in_most) / (every - most.height) > _ELSEWHERE * in_most / most.height:
        return []
    return most["step"].to_list()


def _evidence(result: GpuIdle, cause: str, answers: Answers, ranks: Sequence[int]) -> Iterator[str]:
    time = answers.time
    yield from of_ranks(time, cause, ranks)
    if result.coverage.work_lost and result.coverage.on_host:
        lacks = NO_GPU_WORK in set(answers.problems["code"])
        what = "GPU work is missing in the file" if lacks else "Work may be missing in the file"
        yield f"{what}: this is idle time of the main thread."
    elif result.coverage.work_lost:
        yield TRUNCATED
    yield from _longest(result, cause, time.warm_up["step"])
    yield from _compared(result, cause, time)
    if answers.without_cpus:
        yield "Threads of the process seem to lack CPUs, which makes this take longer, too."
    if cause == causes.DATALOADING:
        yield from _loading(result)
        if not result.host.starts_workers:
            yield from _in_turn(answers, main_steps(time.of_cause(cause), time, ranks))
    if cause in _OF_HOST and (before := launching.waits_before(answers, cause))[0]:
        yield (
            f"Right before {format_frac(before[1])} of it the host waits for the device "
            f"({before[0]}): without that call, {causes.NAMES[cause]} could overlap with device "
            "work, if it needs no results of the GPU."
        )
    elif cause == causes.SMALL_COPIES:
        yield from _small_copies(result, answers)
    elif cause == causes.CHECKPOINT_IO:
        yield from files_accessed(result)
    elif cause == causes.SYNCHRONISATION:
        yield from launching.synchronising(answers)
    elif cause == causes.LAUNCH:
        yield from launching.launching(answers)
        yield from _counted_apart(answers)
    elif cause in launching.CALLS:
        yield from launching.calls(answers, launching.CALLS[cause])


def _counted_apart(answers: Answers) -> Iterator[str]:
    """Yield the whole launch overhead if loops of small kernels or decode steps have a part."""
    time, rows = answers.time, _losses_of(answers, causes.LAUNCH)
    whole = int(time.of_cause(causes.LAUNCH)["lost_ns"].sum())
    if time.frac(whole - int(rows["lost_ns"].sum())) >= _PART:
        yield (
            f"Launch overhead is {time.text(whole)} with that of loops and checks, which are "
            "findings or notes of their own."
        )


#: From this share of the time on, a part that is counted apart is named.
_PART = 0.01


def _compared(result: GpuIdle, cause: str, time: DeviceTime) -> Iterator[str]:
    """Yield the total time, and that of ``gpu-idle`` if it differs."""
    rows = time.of_cause(cause)
    total, waited = int(rows["lost_ns"].sum()), bool(rows["waited"].any())
    counted = int(result.by_device.units[f"{cause}_ns"].sum())
    if abs(counted - total) > _ALIKE * total:
        text = f"gpu-idle counts {format_ns(counted)}"
        if cause == causes.PEER:
            yield f"Total: {format_ns(total)}; {text}, with waits that other findings count."
            return
        more = " with late launches in short gaps" * (cause == causes.LAUNCH)
        more = " with the wait time of other ranks" if waited else more
        rest = "of idle time, steps that do not count included"
        yield f"Total: {format_ns(total)}{more}; {text} {rest}."


#: Totals that differ by less are not compared.
_ALIKE = 0.01


def of_ranks(time: DeviceTime, cause: str, ranks: Sequence[int]) -> Iterator[str]:
    """Yield the parts of a loss: of some ranks, wait time for them, others; and what it delays."""
    if not ranks:
        return
    losses = time.of_cause(cause)
    of_rank, is_wait = _caused_by(ranks), pl.col("waited")
    idle, waited, elsewhere, passed_on = (
        int(losses.filter(which)["lost_ns"].sum())
        for which in (
            of_rank & ~is_wait, of_rank & is_wait, ~of_rank & ~is_wait, ~of_rank & is_wait,
        )
    )  # fmt: skip
    state, states = ("copies", "copy") if cause == causes.COPIES else ("is idle", "are idle")
    if cause == causes.HOST_CODE and time.on_host:
        state, states = f"is {activities.OUTSIDE}", f"are {activities.OUTSIDE}"
    one = len(ranks) == 1
    who = f"Rank{'s' * (not one)} {format_ranges(ranks)}"
    parts = [f"{who} {state if one else states} for {format_ns(idle)} in total"]
    if waited:
        waits = losses.filter(of_rank & is_wait)
        by = waits.group_by("collective").agg(pl.col("lost_ns").sum(), pl.col("rank").n_unique())
        name, _, waiting = by.sort("lost_ns", "collective", descending=[True, False]).row(0)
        others = f"{waiting:,} {'other ' * one}rank{'s wait' if waiting > 1 else ' waits'}"
        whom = "it" if one else "them"
        # comm-outliers counts all wait time
        within = " within steps" if time.in_steps else " between their first and last GPU work"
        within *= time.in_steps or waits["on_host_ns"].sum() > 0
        parts.append(f"{others} {format_ns(waited)} for {whom}{within}, mostly in {name}")
    yield f"{'; '.join(parts)}."
    passed = [f"the other ranks wait {format_ns(passed_on)} for them"] * (passed_on > 0)
    if elsewhere:
        same = f"Other ranks {states} for {format_ns(elsewhere)} for the same cause"
        yield f"{'; '.join([same, *passed])}."
    if waited:
        yield f"Without this delay, {time.exposed} would be up to {time.text(waited)} shorter."


#: From this share of a gap on, its cause is all of it.
_MOST_OF_GAP = 0.9


def _longest(
    result: GpuIdle, cause: str, steps: pl.Series, *, within: bool = False
) -> Iterator[str]:
    """Yield the longest gap of this cause in or outside of steps, and the host activity in it."""
    gaps = result.of_cause(cause)
    in_steps = pl.col("step").is_in(steps.implode()).fill_null(value=False)
    gaps = gaps.filter(in_steps if within else ~in_steps)
    if gaps.is_empty() or cause == causes.PEER:  # most of a gap may be a wait for a late rank
        return
    if (pauses := result.pauses_of(cause)[0]).height:
        yield launching.pauses(pauses)
        return
    in_place = (pl.col("own_code") == activities.main_place(gaps)[0]) & pl.lit(cause in _PLACED)
    in_place = in_place.fill_null(value=False)  # the place of most of the time, which is named
    longest = gaps.sort(in_place, pl.col("end") - pl.col("start"), descending=True).head(1)
    gap = longest.with_columns(activity=activity(), plain_step=STEP).row(0, named=True)
    step = f" in {gap['step']}" if gap["step"] else ""
    inside = gap["activity"] or gap["python"]
    inside = None if inside in (gap["step"], gap["plain_step"]) else inside
    code = gap["own_code"] or gap["python"]
    called = gap["called"] if gap["called"] not in (inside, code) else None
    frames = ", ".join(map(frame_text, filter(None, [called, code if code != inside else None])))
    frame = f", {frames}" if frames else ""
    around = f" in {gap['annotation']}" if gap["annotation"] not in (None, inside) else ""
    while_in = f", while the host is in {frame_text(inside)}{frame}{around}" if inside else ""
    after = _between(gap) if not inside else ""
    length = gap["end"] - gap["start"]
    part = f" ({format_ns(gap['cause_ns'])} of it for this cause)"
    part = part if gap["cause_ns"] < _MOST_OF_GAP * length else ""
    there = " there" * bool(length < (gaps["end"] - gaps["start"]).max())
    yield from launching.by_range(gaps)
    yield f"Longest gap{there}: {format_ns(length)}{part}{step}{while_in}{after}."
    yield from _places(gaps)
    if gap["sampled"]:
        share = format_frac(gap["sampled_frac"])
        yield f"{share} of the stacks sampled in this gap are in {gap['sampled']}."
    if cause == causes.DEVICE_WAIT and gap["waits_for"]:
        yield f"{gap['waits_for']} was called before the kernel after this gap was launched."


def _between(gap: Mapping[str, Any]) -> str:
    """Return the device work before and after a gap as a phrase, as far as it is known."""
    sides = {side: gap[side] for side in ("before", "after") if gap[side]}
    short = kernel_names.short_names(sides.values())
    if len(sides) > 1:
        return f", between {short[gap['before']]} and {short[gap['after']]}"
    return "".join(f", {_OTHER_SIDE[side]} {short[name]}" for side, name in sides.items())


#: Where a gap is in relation to the device work on its side.
_OTHER_SIDE = {"before": "after", "after": "before"}


def _places(gaps: pl.DataFrame) -> Iterator[str]:
    """Yield the place of the host in most of the longest gaps."""
    name, ns, n = activities.main_place(gaps)
    if n > 1:
        share = ns / int(gaps["cause_ns"].sum())
        part = "all" if share == 1 else f"{format_frac(share)} of the time"
        yield f"In {part} of the longest gaps, the host is in {frame_text(name)}."


def _loading(result: GpuIdle) -> Iterator[str]:
    """Yield overlapped data loading, and the matched ranges."""
    overlapped = int(result.units["overlapped_loader_ns"].sum())
    if overlapped:
        yield f"Another {format_ns(overlapped)} in total is overlapped with GPU work."
    if result.host.loader.height:
        top = result.host.loader.row(0, named=True)
        yield f"Data loading was detected by {top['name']} ({format_count(top['n'], 'call')})."


def _in_turn(answers: Answers, steps: Collection[str]) -> Iterator[str]:
    """Yield that every Nth step waits: the batches of N workers are ready at the same time."""
    every = answers.time.windows["step"].drop_nulls().unique(maintain_order=True)
    apart = every.is_in([*steps]).arg_true().cast(pl.Int64).diff().drop_nulls().unique()
    if len(steps) > _SEVERAL and apart.len() == 1 and apart[0] > 1:
        yield (
            f"Exactly one step in {apart[0]} waits, as with {apart[0]} loader workers whose "
            "batches are ready at the same time (num_workers)."
        )


#: More steps than this show an interval.
_SEVERAL = 2


def _small_copies(result: GpuIdle, answers: Answers) -> Iterator[str]:
    """Yield the number and mean size of the small copies to the device."""
    steps = result.by_device.steps.height
    if (transfers := answers.of(Transfers)) is None:
        return
    small = pl.col("moved_bytes") < causes.BATCH_BYTES * pl.col("n")
    rows = transfers.copies.filter(pl.col("direction") == "HtoD", small)
    n, size = int(rows["n"].sum()), int(rows["moved_bytes"].sum())
    if n:
        each = f" ({n / steps:,.0f} per step and GPU)" if steps else ""
        yield f"Small copies to the GPU: {n:,}{each}, {format_bytes(size // n)} each on average."


#: What the host does besides launching: it overlaps with device work if the host runs ahead.
_OF_HOST = (causes.DATALOADING, causes.HOST_CODE)


RULES: tuple[Rule, ...] = tuple(
    Rule(
        IDLE_RULES[cause],
        "gpu_idle",
        f"idle devices: {causes.WAITING[cause]}",
        "share of step time (or of the recorded time)",
        _OTHER_LEVELS.get(cause, _LEVELS),
        partial(_judge, cause),
        uses=("comm_outliers", "cuda_api", "info", "kernels", "launches", "steps", "transfers"),
    )
    for cause in causes.CAUSES
)
