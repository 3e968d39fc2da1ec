"""Replay of the programs of all ranks: the longest path in recorded order, and what lies on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceanalyzer.analyzers.replay.follow import Durations, Flow, Moments, follow
from traceanalyzer.analyzers.replay.program import OF_CALLS, Floats, Ints, Program
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import numbering

_NEVER = float("-inf")
#: A replay that differs by more from the recording is not the program that ran.
MOST_ERROR = 0.1
#: Fewer steps are measured as one: the first one begins with the recording.
_LEAST_STEPS = 3


@dataclass(frozen=True)
class Weights:
    """The times of one rank that a change edits, in ns; one value per call or row of work.

    Attributes:
        loader, launch, code: before a call; call: in it; tail: at its end.
        waits: whether a call waits for device work.
        latency, lag, rest: before device work, see :class:`~.program.Program`.
        duration: of device work that is not a collective of several ranks.
        transfer: of a collective of several ranks, after the last arrival.
        together: whether the ranks of collectives wait for each other; a receive always waits.
    """

    loader: Floats
    launch: Floats
    code: Floats
    call: Floats
    tail: Floats
    waits: Any
    latency: Floats
    lag: Floats
    rest: Floats
    duration: Floats
    transfer: Floats
    together: bool = True

    @property
    def before(self) -> Floats:
        """Time of the host before each call."""
        return self.loader + self.launch + self.code


@dataclass(frozen=True)
class Job:
    """The programs of all ranks on one axis, and their collectives.

    Attributes:
        programs: by rank.
        shifts: what is added to the times of each program.
        groups: for each program, the collective of each row of work (-1: of this rank alone), and
            of each call on the host.
        sizes: number of members of each collective that were recorded.
        weights: the recorded times.
        windows: (first call, last call, first work, last work) of each program, by step if steps
            are replayed one by one, otherwise one window.
        begins: begin of each window on the axis.
        flow: what waits for what, over all ranks.
        plan: what happens in each window of each program, see :func:`~.follow.follow`.
        bounds: where the plan of each program begins in each window, and the end.
        first_call, first_row: number of the first call and row of work of each program, and the
            number of all.
    """

    programs: tuple[Program, ...]
    shifts: tuple[int, ...]
    groups: tuple[tuple[Ints, Ints], ...]
    sizes: Ints
    weights: tuple[Weights, ...]
    windows: tuple[tuple[tuple[int, int, int, int], ...], ...]
    begins: tuple[float, ...]
    flow: Flow
    plan: Ints
    bounds: Ints
    first_call: Ints
    first_row: Ints

    @cached_property
    def kinds(self) -> list[Ints]:
        """What each row of work of each program is: same number, same kernel or collective."""
        collective = pl.concat_str(
            pl.col("name").cast(pl.String),
            pl.col("collective").fill_null(""),
            pl.col("group").cast(pl.String).fill_null("").str.replace_all(r"[\d,\[\]-]+", ""),
            pl.col("elements_in").fill_null(0),
            separator="|",
        )
        name = pl.col("name").cast(pl.String)
        frames = [
            program.work.select(
                kind=pl.when(pl.Series(of_work >= 0)).then(collective).otherwise(name),
                is_transfer=pl.Series(of_work >= 0),
            )
            for program, (of_work, _) in zip(self.programs, self.groups, strict=True)
        ]
        rank = pl.struct("kind", "is_transfer").rank("dense").cast(pl.Int64) - 1
        numbers = pl.concat(frames).select(rank).to_series().to_numpy()
        return np.split(numbers, self.first_row[1:-1])

    @cached_property
    def places(self) -> list[Ints]:
        """Like ``kinds``, but calls of a kernel with different places in a step are different.

        Calls of one kernel have different sizes. Kernels that some rank runs more often in a step
        have no place there.
        """
        steps = [
            np.append(numbers, -1)[program.work["step"].fill_null(-1).to_numpy().astype(int)]
            for program, numbers in zip(self.programs, step_numbers(self), strict=True)
        ]
        n_ranks, once = len(self.programs), ("program", "kind", "step")
        rows = pl.DataFrame({
            "program": np.repeat(np.arange(n_ranks), np.diff(self.first_row)),
            "kind": np.concatenate(self.kinds), "step": np.concatenate(steps),
            "alone": np.concatenate([of_work < 0 for of_work, _ in self.groups]),
        })  # fmt: skip
        rows = rows.with_columns(place=pl.int_range(pl.len()).over(once), n=pl.len().over(once))
        each, n = ("kind", "step"), pl.col("n")
        alike = (n.min().over(each) == n.max().over(each)) & (
            n_ranks * n.min().over(each) == pl.len().over(each)
        )
        placed = pl.when(alike & pl.col("alone") & (pl.col("step") >= 0))
        rows = rows.select("kind", placed.then("step"), placed.then("place").alias("place"))
        _, (numbers,) = numbering.group_numbers(("kind", "step", "place"), rows)
        return np.split(numbers, self.first_row[1:-1])

    def member(self, number: int) -> tuple[int, int]:
        """Return program and row of a member of a collective; of a call -1 - row."""
        size = int(self.first_call[-1])
        at = self.first_call if number < size else self.first_row
        place = number if number < size else number - size
        rank = int(np.searchsorted(at, place, "right")) - 1
        row = place - int(at[rank])
        return rank, -1 - row if number < size else row


class Times(NamedTuple):
    """Start and end of all device work of a rank, and what each start and call waited for.

    Attributes:
        start, end: of work on the axis; calls, done: start and end of each call.
        bound: row of work that the start of work waited for; -1: its call; -2: neither.
        blocked: row of work that the end of a call waited for; -1: none.
        late: last member of the collective of each row, see :meth:`Job.member`; -1: none.
        met: the same of each call.
    """

    start: Floats
    end: Floats
    calls: Floats
    done: Floats
    bound: Ints
    blocked: Ints
    late: Ints
    met: Ints


# --- joining the ranks -------------------------------------------------------------------------


def job_of(programs: Sequence[Program]) -> Job:
    """Join the programs of all ranks."""
    ordered = sorted(programs, key=lambda one: (one.rank is None, one.rank or 0, one.path))
    members = _members(ordered)
    shifts, aligned = _shifts(ordered, members)
    members = _on_axis(members, shifts)
    transfer = (
        (pl.col("end") - pl.col("start").max().over("key")).clip(lower_bound=0)
        if aligned
        else (pl.col("end") - pl.col("start")).min().over("key")
    )
    members = members.with_columns(transfer=transfer)
    groups, weights = [], []
    by_program = members.partition_by("program", as_dict=True)
    for number, program in enumerate(ordered):
        mine = by_program.get((number,), members.clear())
        of_work = np.full(program.work.height, -1, np.int64)
        of_call = np.full(program.calls.height, -1, np.int64)
        times = np.zeros(program.work.height)
        host = np.zeros(program.calls.height)
        for rows, target, values in ((mine.filter(~pl.col("on_host")), of_work, times),
                                     (mine.filter("on_host"), of_call, host)):  # fmt: skip
            target[rows["row"].to_numpy()] = rows["key"].to_numpy()
            values[rows["row"].to_numpy()] = rows["transfer"].to_numpy()
        groups.append((of_work, of_call))
        weights.append(_recorded(program, times, host))
    apart = all(program.apart for program in ordered)
    windows = tuple(_windows(program, apart=apart) for program in ordered)
    begins = _begins(ordered, shifts, windows, apart=apart)
    first_call, first_row = (
        np.cumsum([0, *(getattr(one, name).height for one in ordered)])
        for name in ("calls", "work")
    )
    plans = [
        _plan(program, of_groups[1], of_program[number], first_call[[n, -1]], int(first_row[n]))
        for number in range(len(begins))
        for n, (program, of_groups, of_program) in enumerate(
            zip(ordered, groups, windows, strict=True)
        )
    ]
    return Job(
        tuple(ordered), tuple(shifts), tuple(groups),
        np.bincount(members["key"].to_numpy()) if members.height else np.zeros(0, np.int64),
        tuple(weights), windows, begins,
        _flow(ordered, shifts, groups, first_call, first_row),
        np.concatenate(plans), np.cumsum([0, *map(len, plans)]), first_call, first_row,
    )  # fmt: skip


def _members(programs: Sequence[Program]) -> pl.DataFrame:
    """Return the members of all collectives of several ranks: key, program, row, start, end."""
    frames = []
    for number, program in enumerate(programs):
        names = program.steps["step"]
        step = names[program.work["step"]] if names.len() else None
        work = program.work.with_columns(
            row=pl.int_range(pl.len()),
            on_host=pl.lit(value=False),
            within=pl.lit(None, pl.String) if step is None or not program.apart else step,
        ).drop_nulls("group")
        calls = program.calls.with_columns(
            row=pl.int_range(pl.len()),
            on_host=pl.lit(value=True),
            within=pl.lit(None, pl.String),
            seq=pl.lit(None, pl.Int64),
        ).drop_nulls("group")
        columns = ["row", "on_host", "group", "seq", "within", "start", "end"]
        # names of groups may list thousands of ranks
        short = pl.col("group", "within").cast(pl.Categorical)
        rows = pl.concat(one.select(columns).with_columns(short) for one in (work, calls))
        counted = pl.int_range(pl.len()).over("group", "within", "on_host")
        frames.append(
            rows.with_columns(
                program=pl.lit(number, pl.Int64), number=pl.coalesce("seq", counted).cast(pl.Int64)
            )
        )
    rows = pl.concat(frames)
    rows = rows.with_columns(_numbered(rows["group"]), _numbered(rows["within"]))
    key = ["group", "within", "on_host", "number"]
    several = pl.col("program").n_unique().over(key) > 1
    once = pl.len().over([*key, "program"]) == 1
    rows = rows.filter(several & once)
    return rows.with_columns(key=pl.struct(key).rank("dense").cast(pl.Int64) - 1)


def _numbered(names: pl.Series) -> pl.Series:
    """Return the number of each name in their order, whatever was read before."""
    known = names.unique().drop_nulls()
    order = np.argsort(known.cast(pl.String).to_numpy())
    numbers = np.empty_like(order)
    numbers[order] = np.arange(order.size)
    return names.to_physical().replace_strict(
        known.to_physical(), pl.Series(numbers, dtype=pl.Int64), default=None
    )


def _on_axis(members: pl.DataFrame, shifts: Sequence[int]) -> pl.DataFrame:
    shift = pl.Series(shifts, dtype=pl.Int64)[members["program"]]
    return members.with_columns(pl.col("start") + shift, pl.col("end") + shift)


def _shifts(programs: Sequence[Program], members: pl.DataFrame) -> tuple[list[int], bool]:
    """Return what is added to the times of each program, and whether the clocks agree.

    The clocks agree if nearly all collectives begin on all ranks before they end on one. Otherwise
    they are aligned by the ends of common collectives.
    """
    epochs = [program.epoch_ns or 0 for program in programs]
    # 64-bit floats since 1970 are exact to 256 ns only
    firsts = [program.work["start"].min() for program in programs]
    begun = [one + epoch for one, epoch in zip(firsts, epochs, strict=True) if isinstance(one, int)]
    epochs = [epoch - min(begun, default=0) for epoch in epochs]
    placed = _on_axis(members, epochs)
    overlap = placed.group_by("key").agg(one=pl.col("start").max() <= pl.col("end").min())
    if not members.height or overlap["one"].mean() >= 0.95:  # type: ignore[operator]
        return epochs, True
    known = {0: 0}
    while len(known) < len(programs):
        shifted = placed.filter(pl.col("program").is_in(list(known)))
        shift = pl.col("program").replace_strict(known, return_dtype=pl.Int64)
        ends = shifted.group_by("key").agg(there=(pl.col("end") + shift).mean())
        rest = placed.filter(~pl.col("program").is_in(list(known))).join(ends, on="key")
        if rest.is_empty():
            break
        apart = rest.group_by("program").agg(by=(pl.col("there") - pl.col("end")).median())
        known |= {number: round(by) for number, by in apart.iter_rows()}
    return [epoch + known.get(number, 0) for number, epoch in enumerate(epochs)], False


def _recorded(program: Program, transfer: Floats, host: Floats) -> Weights:
    calls, work = program.calls, program.work

    def of(frame: pl.DataFrame, name: str) -> Floats:
        return frame[name].to_numpy().astype(float)

    tail = np.where(host > 0, host, of(calls, "tail_ns"))
    waits = ~calls["kind"].is_in([*OF_CALLS])  # null: it does not wait
    return Weights(
        loader=of(calls, "loader_ns"), launch=of(calls, "launch_ns"), code=of(calls, "code_ns"),
        call=of(calls, "call_ns"), tail=tail, waits=waits.fill_null(False).to_numpy(),
        latency=of(work, "latency_ns"), lag=of(work, "lag_ns"), rest=of(work, "rest_ns"),
        duration=of(work, "end") - of(work, "start"), transfer=transfer,
    )  # fmt: skip


def _windows(program: Program, *, apart: bool) -> tuple[tuple[int, int, int, int], ...]:
    if not apart:
        return ((0, program.calls.height, 0, program.work.height),)
    windows = []
    for step in range(program.steps.height):
        calls = np.flatnonzero((program.calls["step"] == step).fill_null(False).to_numpy())
        work = np.flatnonzero((program.work["step"] == step).fill_null(False).to_numpy())
        windows.append((*_range(calls), *_range(work)))
    return tuple(windows)


def _range(rows: Ints) -> tuple[int, int]:
    return (int(rows[0]), int(rows[-1]) + 1) if rows.size else (0, 0)


def _plan(
    program: Program,
    meeting: Ints,
    window: tuple[int, int, int, int],
    calls: Ints,
    first_row: int,
) -> Ints:
    """Return what happens in a window: calls, ends of the calls that wait, and device work.

    Work comes after the begin of its call and before its end; without a call, after the work
    before.

    Args:
        program: the program of a rank.
        meeting: the collective of each call.
        window: first call, last call, first work, last work.
        calls: number of the first call of this rank, and of all calls.
        first_row: number of the first row of work of this rank.
    """
    first, last, row, last_row = window
    first_call, size = calls.tolist()
    waits = meeting >= 0
    waits[program.waits["call"].drop_nulls().to_numpy()] = True
    waiting = np.flatnonzero(waits[first:last]) + first
    launched = program.work["call"].fill_null(-1).to_numpy()[row:last_row].astype(float)
    known = np.maximum.accumulate(np.append(first - 1.0, launched))[1:]
    called = np.arange(first, last)
    keys = [called - 0.2, waiting + 0.2, np.where(launched < 0, known + 0.5, known)]
    numbers = [
        called + first_call, size + first_call + waiting,
        2 * size + first_row + np.arange(row, last_row),
    ]  # fmt: skip
    return np.concatenate(numbers)[np.argsort(np.concatenate(keys), kind="stable")]


def _flow(
    programs: Sequence[Program],
    shifts: Sequence[int],
    groups: Sequence[tuple[Ints, Ints]],
    first_call: Ints,
    first_row: Ints,
) -> Flow:
    """Return what waits for what, with numbers over all ranks."""
    threads, call, after, begun = [], [], [], []
    waits: dict[str, list[Ints]] = {"work": [], "call": []}
    count = 0
    for n, (program, shift) in enumerate(zip(programs, shifts, strict=True)):
        calls, work = program.calls, program.work
        thread = calls["thread"].rank("dense").fill_null(0).to_numpy().astype(np.int64)
        threads.append(thread + count)
        count += 1 + int(thread.max(initial=0))
        of_call = work["call"].fill_null(-1).to_numpy()
        before = work["after"].to_numpy()
        call.append(np.where(of_call >= 0, of_call + first_call[n], -1))
        after.append(np.where(before >= 0, before + first_row[n], -1))
        begun.append((work["start"] + shift).to_numpy().astype(float))
        for key, at in (("work", first_row), ("call", first_call)):
            edges = program.waits[[key, "after"]].drop_nulls().to_numpy().T.copy()
            edges[0] += at[n]
            edges[1] += first_row[n]
            waits[key].append(edges)
    return Flow(
        np.concatenate(threads), np.concatenate([of_call for _, of_call in groups]),
        np.concatenate(call), np.concatenate(after),
        np.concatenate([of_work for of_work, _ in groups]),
        *_by_row(np.concatenate(waits["work"], axis=1), int(first_row[-1])),
        *_by_row(np.concatenate(waits["call"], axis=1), int(first_call[-1])),
        np.concatenate(begun),
    )  # fmt: skip


def _by_row(edges: Ints, size: int) -> tuple[Ints, Ints]:
    """Return where what each row waits for begins, and what it waits for."""
    row, after = edges.astype(np.int64)
    counts = np.cumsum(np.bincount(row, minlength=size))
    return np.append(0, counts), after[np.argsort(row, kind="stable")]


def _begins(
    programs: Sequence[Program],
    shifts: Sequence[int],
    windows: Sequence[Sequence[tuple[int, int, int, int]]],
    *,
    apart: bool,
) -> tuple[float, ...]:
    """Return the first start of device work in each window; of calls too in one window."""
    begins = []
    for number in range(min(len(of_program) for of_program in windows)):
        starts = []
        for program, shift, of_program in zip(programs, shifts, windows, strict=True):
            calls, until, first, last = of_program[number]
            begun = [program.work["start"][first:last].min()]
            since = pl.col("start") - pl.sum_horizontal("loader_ns", "launch_ns", "code_ns")
            begun += [] if apart else [program.calls[calls:until].select(since).to_series().min()]
            starts += [time + shift for time in begun if isinstance(time, int)]
        begins.append(float(min(starts, default=0)))
    return tuple(begins)


# --- replay ------------------------------------------------------------------------------------


def replay(job: Job, weights: Sequence[Weights] | None = None) -> list[Times]:
    """Return when all device work starts and ends with these times; see :mod:`.follow`."""
    weights = weights or job.weights
    moments = Moments.unknown(int(job.first_call[-1]), int(job.first_row[-1]))
    flow = job.flow
    if not all(one.together for one in weights):
        together = np.repeat([one.together for one in weights], np.diff(job.first_row))
        together |= np.concatenate([program.in_pairs for program in job.programs])
        flow = flow._replace(group=np.where(together, flow.group, -1))
    durations = _durations(job, weights, flow.group != job.flow.group)
    ranks = len(job.programs)
    for window, begin in enumerate(job.begins):
        if len(job.begins) > 1:
            durations = durations._replace(first=_first(job, weights, begin))
        bounds = job.bounds[window * ranks : (window + 1) * ranks + 1]
        follow(job.plan, bounds, job.sizes, flow, durations, moments)
    return _by_rank(job, moments)


def _durations(job: Job, weights: Sequence[Weights], alone: Any) -> Durations:
    """Return the times over all ranks; ``alone`` marks collectives that wait for no other rank."""

    def of(name: str) -> Floats:
        return np.concatenate([getattr(one, name) for one in weights])

    times = {name: of(name) for name in ("tail", "latency", "lag", "rest", "transfer")}
    return Durations(
        waits=of("waits").astype(np.int64), before=of("before"),
        spent=of("call"), first=_first(job, weights, None),
        took=np.where(alone, times["transfer"], of("duration")), **times,
    )  # fmt: skip


def _first(job: Job, weights: Sequence[Weights], begin: float | None) -> Floats:
    """Return the start of each call if it is the first one of its thread.

    The time before it begins as recorded; in a step that is replayed alone, not before the step,
    because the pause between steps that were recorded apart is not a part of them.
    """
    first = []
    for program, shift, recorded, one in zip(
        job.programs, job.shifts, job.weights, weights, strict=True
    ):
        start = (program.calls["start"] + shift).to_numpy().astype(float)
        since, before = start - recorded.before, one.before
        if begin is not None:
            inside = np.maximum(start - begin, 0.0) / np.maximum(recorded.before, 1)
            before = np.where(since < begin, before * inside, before)
            since = np.maximum(since, np.minimum(begin, start))
        first.append(since + before)
    return np.concatenate(first)


def _by_rank(job: Job, moments: Moments) -> list[Times]:
    times = []
    size = int(job.first_call[-1])
    for number in range(len(job.programs)):
        call, row = (slice(*at[number : number + 2]) for at in (job.first_call, job.first_row))
        first = int(job.first_row[number])
        bound, blocked = moments.bound[row], moments.blocked[call]
        times.append(
            Times(
                moments.start[row], moments.end[row], moments.calls[call], moments.done[call],
                np.where(bound >= 0, bound - first, bound),
                np.where(blocked >= 0, blocked - first, -1),
                moments.late[size + first :][: bound.size], moments.late[call],
            )
        )  # fmt: skip
    return times


def checked_replay(job: Job) -> tuple[list[Times], float]:
    """Return the replay without a change, and the relative error of its step time.

    Raises:
        MissingData: the error is above 10 %.
    """
    times = replay(job)
    replayed = step_times(job, [one.end for one in times])
    recorded = sum(recorded_step_times(job))
    if not recorded:
        raise MissingData("the steps take no time, so nothing can be replayed")
    error = sum(replayed) / recorded - 1
    if abs(error) > MOST_ERROR:
        raise MissingData(
            f"the replay of the unchanged run differs by {100 * error:+.1f} % from the recording, "
            "so it does not show what the run waited for"
        )
    return times, error


def between_streams(job: Job) -> pl.Series:
    """Return for each wait of a stream for another one whether it is inferred."""
    return pl.concat(one.waits.drop_nulls("work")["inferred"] for one in job.programs)


# --- measures ----------------------------------------------------------------------------------


def recorded_step_times(job: Job) -> list[float]:
    """Return the duration of each step as recorded."""
    ends = [
        (program.work["end"] + shift).to_numpy().astype(float)
        for program, shift in zip(job.programs, job.shifts, strict=True)
    ]
    return step_times(job, ends)


def step_times(job: Job, ends: Sequence[Floats]) -> list[float]:
    """Return the duration of each step, over all ranks.

    A step takes from the end of the work of the steps before it to the end of its own; the first
    one from the begin of the recording. Steps that were recorded apart begin with their first
    device work.

    Args:
        job: the programs.
        ends: ends of the device work of each rank, on the axis of the job.
    """
    last = _last_ends(job, ends)
    if len(job.begins) > 1:
        return list(map(float, last[: len(job.begins)] - np.array(job.begins)))
    return list(map(float, np.diff(_bounds(job, last, ends))))


def step_bounds(job: Job, times: Sequence[Times]) -> list[tuple[float, float]]:
    """Return begin and end of each step of a replay, on the axis; see :func:`step_times`."""
    ends = [one.end for one in times]
    if len(job.begins) > 1:
        lengths = step_times(job, ends)
        return [(begin, begin + length) for begin, length in zip(job.begins, lengths, strict=True)]
    bounds = _bounds(job, _last_ends(job, ends), ends).tolist()
    return list(pairwise(bounds))


def _last_ends(job: Job, ends: Sequence[Floats]) -> Floats:
    """Return the last end of the work of each step, over all ranks; -inf without work."""
    numbers = step_numbers(job)
    last = np.full(1 + max((int(one.max(initial=-1)) for one in numbers), default=-1), _NEVER)
    for program, end, number in zip(job.programs, ends, numbers, strict=True):
        row = program.work["step"].fill_null(-1).to_numpy().astype(np.int64)
        step = np.append(number, -1)[row]
        np.maximum.at(last, step[step >= 0], end[step >= 0])
    return last


def step_numbers(job: Job) -> list[Ints]:
    """Return the number of each step of each rank among :func:`step_names`, else -1."""
    place = {name: number for number, name in enumerate(step_names(job))}
    names = [program.steps["step"].to_list() for program in job.programs]
    known = all(len({*one}) == len(one) and {*place} <= {*one} for one in names)
    if not known or len(job.begins) > 1:
        return [np.arange(len(one)) for one in names]
    return [np.array([place.get(name, -1) for name in one], np.int64) for one in names]


def step_names(job: Job) -> list[str]:
    """Return the steps that all ranks recorded; if names differ, those of the rank with most."""
    names = [program.steps["step"].to_list() for program in job.programs]
    longest = max(names, key=len)
    common = [name for name in longest if all(name in one for one in names)]
    return [name or "" for name in (common if len(common) >= _LEAST_STEPS else longest)]


def _bounds(job: Job, last: Floats, ends: Sequence[Floats]) -> Floats:
    """Return where steps begin and end: at the ends of steps, or the whole run as one step."""
    reached = np.maximum.accumulate(last[np.isfinite(last)])
    if reached.size >= _LEAST_STEPS:
        return reached
    return np.array(
        [job.begins[0], max((float(one.max()) for one in ends if one.size), default=job.begins[0])]
    )
