"""Changes of a program: what a fix would make shorter, or would no longer wait for."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.pipelines import connected
from traceanalyzer.analyzers.common.clocks import OWNER
from traceanalyzer.analyzers.common.device_work import COMPUTE, MEMORY
from traceanalyzer.analyzers.common.names import distinct, matching
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.replay import engine
from traceanalyzer.analyzers.replay.engine import Bools, Job, Weights
from traceanalyzer.analyzers.replay.program import PAUSE, Floats, Ints, Program
from traceanalyzer.errors import OptionError
from traceanalyzer.frames import intervals, numbering

LAUNCHES, LOADING, CODE = "launches", "data-loading", "host-code"
SYNCHRONISATION, COMMUNICATION, COPIES = "synchronisation", "communication", "copies"
SMALL_COPIES, MEMORY_CALLS = "small-copies", "memory-management"
GRAPHS, MODULES, API_CALLS = "graph-building", "module-loading", "api-calls"
SHORT_GAPS = "short-gaps"
#: Classes of time that ``free`` knows by name, and what is removed: all of it, overlapped or not.
CLASSES = {
    LOADING: "no data loading",
    MEMORY_CALLS: "no memory management",
    GRAPHS: "no graph building",
    MODULES: "no module loading",
    API_CALLS: "no other API calls",
    LAUNCHES: "no host time for operators and launches",
    SHORT_GAPS: "no short gaps",
    CODE: "no host time for other code",
    SYNCHRONISATION: "no waits of the host for the device",
    COPIES: "no copies",
    SMALL_COPIES: "no small blocking copies",
    COMMUNICATION: "instant transfers",
}
#: A smaller share of the step is no gain: what gains less is off the critical path.
NO_GAIN = 0.01
#: Classes of a run without devices.
ON_HOST = (LOADING, CODE, COMMUNICATION)
#: Kinds of calls of classes.
_CALLS = {MEMORY_CALLS: ("allocate", "memory"), GRAPHS: ("graph",), MODULES: ("module",),
          API_CALLS: ("other",)}  # fmt: skip
#: A call that returns this much later than the work that it waits for waits for something else.
_TAIL_NS = 1_000_000
#: Kernels of a rank that take at least this share of the time of those of the others are the same.
_SAME_FRAC = 0.9
#: A call that begins so shortly before or after the end of a transfer may have waited for it.
_AT_END_NS = 20_000
#: Host code that takes longer may need the results that a call before it waits for.
_LONG_CODE_NS = 1_000_000
#: A copy or a transfer that takes longer on the device is not small.
_SMALL_NS = 50_000
#: A rank in the name of a process group, which comes from the file.
RANK = re.compile(r"\b\d{1,9}\b")


@dataclass(frozen=True)
class Change:
    """What is different from the recorded run; all parts apply together.

    Attributes:
        free: names of :data:`CLASSES`, and regular expressions of kernels and annotations whose
            time is 0.
        scale: regular expressions of kernels and annotations with the factor by which they become
            faster: ``flash_.*=2``.
        typical_ranks: ranks whose kernels, transfers and (if longer) host times become the mean of
            the other ranks; if all are chosen, kernels and transfers become the mean of all ranks.
        of_all: they become the mean (of transfers: the median) over all ranks, with those that
            change, as in Lin et al., OSDI'25.
        network: factor by which transfers become faster.
        no_wait: collectives do not wait for other ranks; a receive waits for its send.
        equal_stages: the compute of each pipeline stage takes as long as that of the mean stage.
        only_work: transfers of the typical ranks keep their times.
    """

    free: tuple[str, ...] = ()
    scale: tuple[str, ...] = ()
    typical_ranks: tuple[int, ...] = ()
    of_all: bool = False
    network: float = 1.0
    no_wait: bool = False
    equal_stages: bool = False
    only_work: bool = False

    @property
    def text(self) -> str:
        """The change in words."""
        parts = [CLASSES.get(name, f"no time in {name}") for name in self.free]
        parts += ["{} {} times as fast".format(*item.rpartition("=")[::2]) for item in self.scale]
        if self.typical_ranks:
            ranks = ", ".join(map(str, self.typical_ranks))
            like = "the mean of all ranks" if self.of_all else "the others"
            parts.append(f"rank{'s' * (len(self.typical_ranks) > 1)} {ranks} like {like}")
        if self.equal_stages:
            parts.append("equal pipeline stages")
        if self.network != 1:
            parts.append(f"network {self.network:g} times as fast")
        return ", ".join([*parts, *(["no waiting for other ranks"] if self.no_wait else [])])


def changed(job: Job, change: Change, spans: pl.DataFrame | None = None) -> list[Weights]:
    """Return the times of all ranks with a change.

    Args:
        job: the programs of all ranks.
        change: the change.
        spans: path, rank, device, start_ns, end_ns: only calls in this time are of a class.

    Raises:
        OptionError: a regular expression or a factor is not valid, or matches nothing.
    """
    whole, (calls, work) = engine.joined(job.weights), job.timed
    if spans is not None and change.free:
        mine = _of_programs(job, spans)
        within = intervals.overlap_with(calls, mine, ["program"])["overlap"] > 0
        calls = calls.with_columns(kind=pl.when(within & ~_are_needed(calls, mine)).then("kind"))
    if change.free:
        whole = _without(change.free, whole, calls, work)
    weights = whole.of_each(job.first_call, job.first_row)
    for pattern, factor in _factors(change):
        _require_names(job, pattern)
        weights = [
            _faster(one, program, pattern, factor)
            for one, program in zip(weights, job.programs, strict=True)
        ]
    if COMMUNICATION in change.free and not any(one.on_host for one in job.programs):
        exposed = _exposed(job.timed[1])
        waiting = _without_waits(engine.joined(weights), job.timed[0], exposed, exposed)
        weights = waiting.of_each(job.first_call, job.first_row)
    if change.typical_ranks:
        weights = _typical(job, weights, change)
    if change.equal_stages:
        weights = _with_equal_stages(job, weights)
    return [
        replace(one, transfer=one.transfer / change.network, together=not change.no_wait)
        for one in weights
    ]


def _are_needed(calls: pl.DataFrame, mine: pl.DataFrame) -> pl.Series:
    """Mark waits and copies before long host code of which these spans have less than half.

    It may need the results of their operator, and then cannot run before it.
    """
    of_next = pl.col("start", "code_ns").shift(-1).over("program", "thread").name.prefix("next_")
    after = calls.with_columns(of_next).select(
        "program",
        start="end",
        end=pl.max_horizontal("end", "next_start"),
        code=pl.col("next_code_ns").fill_null(0),
    )
    within = intervals.overlap_with(after, mine, ["program"])["overlap"]
    before = (after["code"] > _LONG_CODE_NS) & (2 * within < after["code"])
    of_operators = pl.Series(_of_operators(calls, before.to_numpy()))
    return of_operators & calls["kind"].is_in(["synchronise", "copy"]).fill_null(value=False)


def _require_names(job: Job, pattern: str) -> None:
    """Check that a pattern matches a kernel or an annotation: it may be a misspelled class.

    Raises:
        OptionError: it matches none, or is not a regular expression.
    """
    for program in job.programs:
        if matching([*distinct(program.work), *program.ranges], [pattern]):
            return
    raise OptionError(
        f"no kernel and no annotation matches {pattern!r}; classes of time are {', '.join(CLASSES)}"
    )


def _factors(change: Change) -> Iterator[tuple[str, float]]:
    """Yield pattern and factor: infinite for time that becomes 0."""
    for pattern in change.free:
        if pattern not in CLASSES:
            yield pattern, np.inf
    for item in change.scale:
        pattern, _, factor = item.rpartition("=")
        try:
            value = float(factor)
        except ValueError:
            value = 0.0
        if not pattern or not value > 0:
            raise OptionError(f"--scale {item!r}: use REGEX=FACTOR with a factor above 0")
        yield pattern, value


def _without(
    free: Sequence[str], weights: Weights, calls: pl.DataFrame, work: pl.DataFrame
) -> Weights:
    """Return the times of all ranks without the classes of time that are free."""
    zero = {
        LAUNCHES: ("launch", "call", "latency"), LOADING: ("loader",), CODE: ("code",),
        SHORT_GAPS: ("lag",), COMMUNICATION: ("transfer",),
    }  # fmt: skip
    names = [name for kind in free for name in zero.get(kind, ())]
    spent = weights.call
    if LAUNCHES in free:
        weights = replace(weights, rest=np.where(_queued(weights, calls, work), weights.rest, 0.0))
    weights = replace(weights, **{name: np.zeros_like(getattr(weights, name)) for name in names})
    copying = _with_work(work, work["work_kind"] == MEMORY, spent.size)
    of_classes = {name: _in_calls(calls, kinds) for name, kinds in _CALLS.items()}
    for name, of_class in (*of_classes.items(), (COPIES, copying)):
        gone = of_class & (name in free)
        call = np.where(of_class, np.where(gone, 0.0, spent), weights.call)
        tail = np.where(gone, 0.0, weights.tail)
        weights = replace(weights, call=call, tail=tail, waits=weights.waits & ~gone)
    if MODULES in free:  # the kernel of such a launch starts when its code is loaded
        gone = np.append(_in_calls(calls, _CALLS[MODULES]), [False])
        of_work = gone[work["call"].fill_null(-1).to_numpy()]
        latency, rest = (np.where(of_work, 0.0, ns) for ns in (weights.latency, weights.rest))
        weights = replace(weights, latency=latency, rest=rest)
    if SYNCHRONISATION in free:
        is_sync = _in_calls(calls, ("synchronise",))
        weights = replace(weights, waits=weights.waits & ~(is_sync & ~unexplained(calls)))
    if CODE in free:
        weights = replace(weights, waits=weights.waits & ~_in_calls(calls, (PAUSE,)))
    if SMALL_COPIES in free:
        gone = ~_with_work(work, work["end"] - work["start"] > _SMALL_NS, calls.height)
        gone &= _of_operators(calls, _small_copies(calls) & gone)
        weights = _without_calls(weights, work, gone)
    of_kind = {COPIES: MEMORY, COMMUNICATION: COMMUNICATION}
    for kind in {*of_kind} & {*free}:
        is_kind = (work["work_kind"] == of_kind[kind]).to_numpy()
        weights = replace(weights, duration=np.where(is_kind, 0.0, weights.duration))
    return weights


def _queued(weights: Weights, calls: pl.DataFrame, work: pl.DataFrame) -> Bools:
    """Mark work that was launched before the work that it waits for had ended."""
    launch = calls["start"].gather(work["call"]).to_numpy()
    expected = work["start"].to_numpy() - weights.rest
    queued: Bools = expected > launch + weights.latency + 1  # ns; false without a launch call
    return queued


def _in_calls(calls: pl.DataFrame, kinds: Sequence[str]) -> Bools:
    """Mark calls of these kinds."""
    return calls["kind"].is_in(kinds).fill_null(value=False).to_numpy()


def _small_copies(calls: pl.DataFrame) -> Bools:
    """Mark calls of copies that the host waits for, of at most :data:`~.causes.LITTLE_COPY_NS`."""
    length = (calls["end"] - calls["start"]).to_numpy()
    small: Bools = _in_calls(calls, ("copy",)) & (length <= causes.LITTLE_COPY_NS)
    return small


def _with_work(work: pl.DataFrame, rows: pl.Series, size: int) -> Bools:
    """Mark the calls of some rows of work."""
    marked = np.zeros(size, np.bool_)
    marked[work["call"].filter(rows).drop_nulls().to_numpy()] = True
    return marked


def _of_operators(calls: pl.DataFrame, some: Bools) -> Bools:
    """Mark calls, and all calls of the operators that they are in: they prepare the same result."""
    keys = ["program", "operator"]
    of_some = calls.filter(pl.Series(some)).select(keys).drop_nulls().unique()
    marked = calls.join(of_some.with_columns(also=True), on=keys, how="left", maintain_order="left")
    both: Bools = some | marked["also"].fill_null(value=False).to_numpy()
    return both


def occurs(job: Job, name: str) -> bool:
    """Return whether a class has time in the run; classes that occur in each run do."""
    calls, _ = job.timed
    if name == SMALL_COPIES:
        return bool(_small_copies(calls).any())
    return name not in _CALLS or bool(_in_calls(calls, _CALLS[name]).any())


def _without_calls(weights: Weights, work: pl.DataFrame, gone: Bools) -> Weights:
    """Return the times without these calls, the operators before them, and their work."""
    call = work["call"].fill_null(-1).to_numpy()
    is_gone = np.append(gone, False)[call]
    times: dict[str, Any] = {
        name: np.where(rows, 0.0, getattr(weights, name))
        for rows, names in ((gone, _OF_A_CALL), (is_gone, _BEFORE_WORK))
        for name in names
    }
    return replace(weights, waits=weights.waits & ~gone, **times)


def fused(
    job: Job, weights: Sequence[Weights], spans: pl.DataFrame, frac: float, kind: str = COMPUTE
) -> list[Weights]:
    """Return the times if one kernel ran in place of the kernels in each span.

    It takes a share of their time; the host does not prepare and launch the others.

    Args:
        job: the programs of all ranks.
        weights: the times to change.
        spans: path, rank, device, start_ns, end_ns on the clock of each file.
        frac: the share of their time.
        kind: of these kernels; of communication, only short transfers.
    """
    whole, (calls, work), by = engine.joined(weights), job.timed, ["program", "device"]
    inside = intervals.overlap_with(work, _of_programs(job, spans), by)["overlap"] > 0
    rows = (inside.fill_null(value=False) & (work["work_kind"] == kind)).to_numpy()
    if kind == COMMUNICATION:
        group, met = job.flow.group, np.zeros(1 + job.sizes.size, np.bool_)
        met[group[rows]] = True  # the last one: of no collective
        rows |= met[group] & (group >= 0)
        rows &= np.where(group >= 0, whole.transfer, whole.duration) <= _SMALL_NS
    some, others = (_with_work(work, pl.Series(which), calls.height) for which in (rows, ~rows))
    gone = some & ~others  # a graph launches other work, too
    gone = gone if kind == COMPUTE else _of_operators(calls, gone)
    less = _without_calls(whole, work, gone)
    less = replace(
        less, code=np.where(gone, 0.0, less.code), transfer=np.where(rows, 0.0, less.transfer),
        duration=np.where(rows, whole.duration * frac, less.duration),
    )  # fmt: skip
    return less.of_each(job.first_call, job.first_row)


_OF_A_CALL, _BEFORE_WORK = ("launch", "call"), ("latency", "lag", "rest", "duration")


def _faster(weights: Weights, program: Program, pattern: str, factor: float) -> Weights:
    """Divide the time of kernels and annotations whose name matches."""
    ranges = {*matching(program.ranges, [pattern])}
    numbers = [number for number, name in enumerate(program.ranges) if name in ranges]
    in_range = program.work["range"].is_in(numbers).fill_null(value=False).to_numpy()
    hits = matching(distinct(program.work), [pattern])
    by_name = program.work["name"].is_in(hits).fill_null(value=False).to_numpy()
    called, before = (
        program.calls[name].is_in(numbers).fill_null(value=False).to_numpy()
        for name in ("range", "range_before")
    )

    def divided(times: Floats, where: object) -> Floats:
        return np.where(where, times / factor, times)  # type: ignore[call-overload, no-any-return]

    work = in_range | by_name
    return replace(
        weights, duration=divided(weights.duration, work), transfer=divided(weights.transfer, work),
        loader=divided(weights.loader, before), launch=divided(weights.launch, before),
        code=divided(weights.code, before), call=divided(weights.call, called),
    )  # fmt: skip


def without_time(
    job: Job, weights: Sequence[Weights], lost: pl.DataFrame, *, with_host: bool = True
) -> list[Weights]:
    """Return the times without what happened in lost time: host time, copies and transfers.

    Kernels, the usual delay between their launch and them, and waits for something that was not
    recorded remain.

    Args:
        job: the programs of all ranks.
        weights: the times to change.
        lost: path, rank, device, start_ns, end_ns on the clock of each file.
        with_host: whether the host did what cost the time; otherwise its times remain, see
            :func:`_without_waits`, and a transfer becomes shorter on all of its ranks.
    """
    mine = _of_programs(job, lost)
    if mine.is_empty():
        return list(weights)
    whole, (calls, work) = engine.joined(weights), job.timed
    if with_host:
        less = _without_time(whole, calls, work, mine)
    else:
        group, share = job.flow.group, np.ones(1 + job.sizes.size)  # the last one: of no collective
        np.minimum.at(share, group, _left(work, "end", whole.transfer, mine))
        transfer = whole.transfer * np.where(group < 0, 1.0, share[group])
        is_transfer = (work["work_kind"] == COMMUNICATION).to_numpy()
        left = _left(work, "end", whole.duration * is_transfer, mine)
        whole = replace(whole, duration=whole.duration * left, transfer=transfer)
        less = _without_waits(whole, calls, _exposed(work), mine)
    return less.of_each(job.first_call, job.first_row)


def share_with_copies(job: Job, lost: pl.DataFrame) -> float:
    """Return in what share of lost time copies run."""
    mine, copies = _of_programs(job, lost), job.timed[1].filter(work_kind=MEMORY)
    within = intervals.overlap_with(mine, copies, ["program", "device"])["overlap"].sum()
    return int(within) / max(int((mine["end"] - mine["start"]).sum()), 1)


def _of_programs(job: Job, spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans of ranks (path, rank, device, start_ns, end_ns) as those of programs."""
    owners = pl.Series("owner", [program.owner for program in job.programs], pl.String)
    rows = spans.with_columns(OWNER).join(owners.to_frame().with_row_index("program"), on="owner")
    return rows.select(pl.col("program").cast(pl.Int64), "device", start="start_ns", end="end_ns")


def _without_waits(
    weights: Weights, calls: pl.DataFrame, exposed: pl.DataFrame, mine: pl.DataFrame
) -> Weights:
    """Return the times if the host waited in lost time, a part of exposed communication.

    It was not recorded that it waits, but nothing else was, and a call begins at the end of the
    communication: without the lost time, so much earlier.
    """
    ends = exposed.select("program", "end").unique().sort("end")
    rows = calls.select("program", "start", call=pl.int_range(pl.len())).sort("start")
    at_end = rows.join_asof(
        ends, left_on="start", right_on="end", by="program", strategy="nearest",
        tolerance=_AT_END_NS, check_sortedness=False,
    ).drop_nulls("end")["call"].to_numpy()  # fmt: skip
    waits = np.zeros(weights.code.size, np.bool_)
    waits[at_end] = True
    code = np.where(waits, weights.code * _left(calls, "start", weights.before, mine), weights.code)
    return replace(weights, code=code)


def _exposed(work: pl.DataFrame) -> pl.DataFrame:
    """Return when nothing but communication runs: program, device, start, end."""
    by, is_transfer = ["program", "device"], pl.col("work_kind") == COMMUNICATION
    rows = work.select(*by, "start", "end", "work_kind")
    return intervals.subtract(rows.filter(is_transfer), rows.filter(~is_transfer), by)


def unexplained(calls: pl.DataFrame) -> Bools:
    """Mark calls that wait for something that was not recorded.

    They return much later than the recorded work that they wait for.
    """
    is_sync = (calls["kind"] == "synchronise").fill_null(value=False)
    return (is_sync & (calls["tail_ns"] > _TAIL_NS)).to_numpy()


def _left(rows: pl.DataFrame, ends: str, times: Floats, mine: pl.DataFrame) -> Floats:
    """Return the share of times with these ends that is not in lost time."""
    by = [name for name in ("program", "device") if name in rows.columns]
    share, some = np.ones(times.size), np.flatnonzero(times.round() > 0)
    if not some.size:
        return share
    spans = rows[[*by, ends]][some].rename({ends: "end"})
    start = pl.Series("start", spans["end"].to_numpy() - times[some].round().astype(np.int64))
    within = intervals.overlap_with(spans.hstack([start]), mine, by)["overlap"].to_numpy()
    share[some] -= within / np.maximum(times[some], 1)
    return share


def _without_time(
    weights: Weights, calls: pl.DataFrame, work: pl.DataFrame, mine: pl.DataFrame
) -> Weights:
    left = partial(_left, mine=mine)
    code = left(calls, "start", weights.before)
    in_call = left(calls, "end", weights.call)
    in_tail = left(calls, "end", weights.tail)
    copies = (work["work_kind"] == MEMORY).to_numpy()
    movable = copies | (work["work_kind"] == COMMUNICATION).to_numpy()
    return replace(
        weights, loader=weights.loader * code, launch=weights.launch * code,
        code=weights.code * code, call=weights.call * in_call,
        tail=weights.tail * np.where(unexplained(calls), 1.0, in_tail),
        latency=weights.latency * left(work, "start", weights.latency * copies),
        rest=weights.rest * left(work, "start", np.maximum(weights.rest, 0.0)),
        duration=weights.duration * left(work, "end", weights.duration * movable),
        transfer=weights.transfer * left(work, "end", weights.transfer),
    )  # fmt: skip


# --- typical ranks -----------------------------------------------------------------------------


def _typical(job: Job, weights: Sequence[Weights], change: Change) -> list[Weights]:
    """Give the chosen ranks the times of the others: by kernel, collective, step and host time.

    A kernel takes the mean of the others at the same place of the step, if all ranks run it there
    equally often: calls of one kernel have different sizes. Kernels that no other rank runs take no
    time. A rank that runs more in a step than they do then runs it in the time that they need for
    theirs; what only another rank does, for example a checkpoint, is not added. With ``of_all`` the
    place and the number of kernels do not count. Unexplained time before work becomes that of the
    others.
    """
    of_all = change.of_all
    chosen = np.array([name in change.typical_ranks for name in job.names])
    whole, is_transfer, mine = engine.joined(weights), job.flow.group >= 0, chosen[job.unit]
    times = np.where(is_transfer, whole.transfer, whole.duration)
    kinds = job.kinds if of_all else job.places
    typical = _usual(kinds, times, is_transfer, of_all | chosen.all() | ~mine)[kinds]
    times = np.where(mine & ~np.isnan(typical), typical, times)
    if not (of_all or chosen.all()):
        times = _without_additional(job, times, is_transfer, chosen)
    changing = chosen & (not of_all)
    most = np.inf if chosen.all() else 1.0
    factors = _of_others(job, "work", times * ~is_transfer, changing)
    times *= np.where(is_transfer, 1.0, np.minimum(factors, most))
    rest = _of_others(job, "work", whole.rest.clip(0), changing)
    # work is divided, not what hosts do; the GPUs of one process have one host
    slow_host = changing & (not chosen.all() and len(job.programs) > 1)
    on_host = {
        name: ns * np.minimum(_of_others(job, "calls", ns, slow_host), 1.0)
        for name in ("loader", "launch", "code", "call")
        for ns in (getattr(whole, name),)
    }
    changed = replace(
        whole, duration=np.where(is_transfer, whole.duration, times),
        transfer=np.where(is_transfer & (not change.only_work), times, whole.transfer),
        rest=whole.rest * np.minimum(rest, 1.0), **on_host,
    )  # fmt: skip
    return changed.of_each(job.first_call, job.first_row)


def _without_additional(job: Job, times: Floats, is_transfer: Bools, chosen: Bools) -> Floats:
    """Take the time of kernels that only chosen ranks run, if they run those of the others too.

    Without them, kernels must take about as long as on the others: otherwise they are what the
    others do by kernels with other names.
    """
    mine, compute = chosen[job.unit], np.where(is_transfer, 0.0, times)
    added = mine & ~is_transfer & ~np.isin(job.kinds, np.unique(job.kinds[~mine]))
    usual = compute[~mine].sum() / (~chosen).sum()
    kept = np.bincount(job.unit, np.where(added, 0.0, compute), minlength=chosen.size)
    return np.where(added & (kept >= _SAME_FRAC * usual)[job.unit], 0.0, times)


def _usual(kinds: Ints, times: Floats, is_transfer: Bools, peers: Bools) -> Floats:
    """Return the usual time of each kind of work on some ranks; not a number: of none.

    That is the mean; of transfers, which are kinds of their own, the median.
    """
    size = 1 + int(kinds.max(initial=-1))
    count = np.bincount(kinds[peers], minlength=size).astype(float)
    count[count == 0] = np.nan
    usual: Floats = np.bincount(kinds[peers], times[peers], minlength=size) / count
    moved = pl.DataFrame({"kind": kinds, "time": times}).filter(pl.Series(peers & is_transfer))
    medians = moved.group_by("kind").agg(pl.col("time").median())
    usual[medians["kind"].to_numpy()] = medians["time"].to_numpy()
    return usual


def _of_others(job: Job, part: str, times: Floats, chosen: Bools) -> Floats:
    """Return by what times of the chosen ranks are multiplied, to be in sum those of the others.

    Sums are those of each step, and between steps. If all ranks are chosen, they become the mean,
    and those of work are from one collective to the next. A step that not all ranks recorded keeps
    its times.

    Args:
        job: the programs of all ranks.
        part: ``work`` or ``calls``.
        times: of these, of all ranks.
        chosen: which ranks change.
    """
    if not chosen.any():
        return np.ones_like(times)
    between, alone, first = range(3)
    steps = []
    for program, numbers in zip(job.programs, job.step_numbers, strict=True):
        row = getattr(program, part)["step"].fill_null(-1).to_numpy().astype(int)
        steps.append(np.append(np.where(numbers < 0, alone, numbers + first), between)[row])
    step, sizes = np.concatenate(steps), [one.size for one in steps]
    owner = job.unit if part == "work" else np.repeat(np.arange(len(sizes)), sizes)
    span = _between_collectives(job, step, times) if part == "work" and chosen.all() else step
    count = 1 + int(span.max(initial=0))
    cell = owner * count + span
    sums = np.bincount(cell, times, minlength=chosen.size * count).reshape(-1, count)
    usual = sums[~chosen | chosen.all()].mean(axis=0)
    factors = np.where(chosen[:, None] & (sums > 0), usual / np.maximum(sums, 1), 1.0)
    of_rows: Floats = np.where(step == alone, 1.0, factors.ravel()[cell])
    return of_rows


def _between_collectives(job: Job, step: Ints, times: Floats) -> Ints:
    """Number the spans of steps between collectives in which all ranks work, for each row of work.

    A step is one span if ranks take part in different numbers of collectives.
    """
    rows = pl.DataFrame({"unit": job.unit, "step": step, "ns": times, "met": job.flow.group >= 0})
    met, each = pl.col("met"), ("unit", "step")
    rows = rows.with_columns(n=met.sum().over(each), nth=met.cum_sum().over(each))
    alike = pl.col("n").min().over("step") == pl.col("n").max().over("step")
    rows = rows.with_columns(pl.when(alike).then("nth").otherwise(0).alias("nth"))
    rows = rows.with_columns(work=pl.col("ns").sum().over("unit", "step", "nth"))
    ranks = pl.col("unit").filter(pl.col("work") > 0).n_unique().over("step", "nth")
    begins = pl.when(ranks == len(job.names)).then("nth").otherwise(0).alias("nth")
    spans = rows.with_columns(begins).select("step", pl.col("nth").cum_max().over(each))
    _, (numbers,) = numbering.group_numbers(("step", "nth"), spans)
    return numbers


# --- pipeline stages ---------------------------------------------------------------------------


def stages(job: Job) -> list[tuple[int, ...]]:
    """Return the ranks of each pipeline stage, from the ranks that send to each other.

    Ranks that are joined by sends and receives are one pipeline; its n-th rank is of stage n.
    """
    names = [one.work.filter(one.in_pairs)["group"].unique().drop_nulls() for one in job.programs]
    texts = [group.rpartition("[")[2] for groups in names for group in groups]
    groups = [[int(rank) for rank in RANK.findall(text)] for text in texts]
    pipelines = sorted({tuple(sorted(ranks)) for ranks in connected(groups).values()})
    depth = {len(ranks) for ranks in pipelines}
    if len(depth) != 1 or depth == {1}:
        return []
    return [tuple(stage) for stage in zip(*pipelines, strict=True)]


def _with_equal_stages(job: Job, weights: Sequence[Weights]) -> list[Weights]:
    """Scale all compute of each stage, so that it takes as long as in the mean stage.

    The calls that launch it take as long as for as many kernels as in the mean stage: those of
    additional kernels are gone, and those of missing ones take the mean time of all stages.
    """
    ranks = stages(job)
    if not ranks:
        return list(weights)
    stage = [
        next((n for n, some in enumerate(ranks) if one.rank in some), -1) for one in job.programs
    ]
    rows = [one.work["work_kind"] == COMPUTE for one in job.programs]
    calls = [
        _with_work(one.work, mine, one.calls.height)
        for one, mine in zip(job.programs, rows, strict=True)
    ]
    each = [*zip(stage, weights, [mine.to_numpy() for mine in rows], calls, strict=True)]
    # by stage, the last ones of ranks of no stage: kernels, compute, and time before and in calls
    sums = np.zeros((3, len(ranks) + 1))
    for n, one, mine, of_mine in each:
        host = (one.launch + one.code + one.call)[of_mine].sum() + one.rest[mine].sum()
        sums[:, n] += mine.sum(), one.duration[mine].sum(), host
    kernels, busy, host = sums
    means = sums[:, :-1].mean(1)
    less = np.minimum(means[0] / np.maximum(kernels, 1), 1)
    wanted = host * less + np.maximum(means[0] - kernels, 0) * means[2] / max(means[0], 1)
    of_host = np.where(host > 0, wanted / np.maximum(host, 1), 1)
    of_busy = means[1] / np.maximum(busy, 1)
    of_host[-1] = of_busy[-1] = 1
    return [
        replace(
            one, duration=one.duration * np.where(mine, of_busy[n], 1),
            rest=one.rest * np.where(mine, of_host[n], 1),
            **{name: getattr(one, name) * np.where(of_mine, of_host[n], 1)
               for name in ("launch", "code", "call")},
        )
        for n, one, mine, of_mine in each
    ]  # fmt: skip
