"""Replay of the programs of all ranks: the longest path in recorded order, and what lies on it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.replay.program import Floats, Ints, Program
from traceanalyzer.errors import MissingData

_NEVER = float("-inf")
#: A replay that differs by more from the recording is not the program that ran.
MOST_ERROR = 0.1
#: Fewer steps are measured as one: the first one begins with the recording.
_LEAST_STEPS = 3
#: Shorter stretches are faster call by call.
_LONG = 64


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


class Stretch(NamedTuple):
    """Calls and work that wait for no other rank, stream or device: all are replayed at once.

    Attributes:
        calls, rows: first and last (excluded).
        threads: numbers of the calls of each thread, from the first call.
        chains: numbers of the rows that follow each other on each stream, from the first row.
    """

    calls: tuple[int, int]
    rows: tuple[int, int]
    threads: list[Ints]
    chains: list[Ints]


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
        plans: what happens in each window of each program, see :func:`_plan`.
        begins: begin of each window on the axis.
        awaited: for each program, the rows of work that each row of work and each call waits for.
    """

    programs: tuple[Program, ...]
    shifts: tuple[int, ...]
    groups: tuple[tuple[Ints, Ints], ...]
    sizes: Ints
    weights: tuple[Weights, ...]
    windows: tuple[tuple[tuple[int, int, int, int], ...], ...]
    plans: tuple[tuple[tuple[int | Stretch, ...], ...], ...]
    begins: tuple[float, ...]
    awaited: tuple[tuple[dict[int, list[int]], ...], ...]


@dataclass
class Times:
    """Start and end of all device work of a rank, and what each start and call waited for.

    Attributes:
        start, end: of work on the axis; calls, done: start and end of each call.
        bound: row of work that the start of work waited for; -1: its call; -2: neither.
        blocked: row of work that the end of a call waited for; -1: none.
        late: rank and row (of a call: -1 - row) of the last member of the collective of each row.
    """

    start: list[Any]
    end: list[Any]
    calls: list[Any]
    done: list[Any]
    bound: list[int]
    blocked: list[int]
    late: dict[int, tuple[int, int]] = field(default_factory=dict)


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
    return Job(
        tuple(ordered), tuple(shifts), tuple(groups),
        np.bincount(members["key"].to_numpy()) if members.height else np.zeros(0, np.int64),
        tuple(weights), windows,
        tuple(tuple(_plan(program, of_groups, window) for window in of_program)
              for program, of_groups, of_program in zip(ordered, groups, windows, strict=True)),
        _begins(ordered, shifts, windows, apart=apart),
        tuple(tuple(_lists(one.waits, key) for key in ("work", "call")) for one in ordered),
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
        rows = pl.concat([work[columns], calls[columns]])
        counted = pl.int_range(pl.len()).over("group", "within", "on_host")
        frames.append(
            rows.with_columns(
                program=pl.lit(number, pl.Int64), number=pl.coalesce("seq", counted).cast(pl.Int64)
            )
        )
    rows = pl.concat(frames)
    key = ["group", "within", "on_host", "number"]
    several = pl.col("program").n_unique().over(key) > 1
    once = pl.len().over([*key, "program"]) == 1
    rows = rows.filter(several & once)
    return rows.with_columns(key=pl.struct(key).rank("dense").cast(pl.Int64) - 1)


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
    epochs = [epoch - min(epochs) for epoch in epochs]
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
    return Weights(
        loader=of(calls, "loader_ns"), launch=of(calls, "launch_ns"), code=of(calls, "code_ns"),
        call=of(calls, "call_ns"), tail=tail, waits=calls["kind"].is_not_null().to_numpy(),
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
    program: Program, groups: tuple[Ints, Ints], window: tuple[int, int, int, int]
) -> tuple[int | Stretch, ...]:
    """Return what happens in a window: calls, ends of the calls that wait, and device work.

    They are numbered in this sequence: all calls, their ends, all rows of work. Work comes after
    the begin of its call and before its end; without a call, after the work before.
    """
    first, last, row, last_row = window
    calls, size = program.calls, program.calls.height
    waits = np.zeros(size, bool)
    waits[program.waits["call"].drop_nulls().to_numpy()] = True
    waits |= groups[1] >= 0
    waiting = np.flatnonzero(waits[first:last]) + first
    launched = program.work["call"].fill_null(-1).to_numpy()[row:last_row].astype(float)
    known = np.maximum.accumulate(np.append(first - 1.0, launched))[1:]
    called = np.arange(first, last)
    keys = [called - 0.2, waiting + 0.2, np.where(launched < 0, known + 0.5, known)]
    numbers = [called, size + waiting, 2 * size + np.arange(row, last_row)]
    order = np.concatenate(numbers)[np.argsort(np.concatenate(keys), kind="stable")]
    lane = program.work.select(pl.struct("device", "stream").rank("dense")).to_series().to_numpy()
    thread = calls["thread"].rank("dense").to_numpy()
    alone = np.concatenate([~waits, np.zeros(size, bool), _follow_only(program, groups[0], lane)])
    plan: list[int | Stretch] = []
    for part in np.split(order, np.flatnonzero(np.diff(alone[order])) + 1):
        if part.size < _LONG or not alone[part[0]]:
            plan += part.tolist()
            continue
        c, r = part[part < size], part[part >= size] - 2 * size
        plan.append(Stretch(_range(c), _range(r), _split(thread[c]), _split(lane[r])))
    return tuple(plan)


def _follow_only(program: Program, group: Ints, lane: Ints) -> npt.NDArray[np.bool_]:
    """Return which work waits at most for its call and for the row before it on its stream."""
    ordered = np.argsort(lane, kind="stable")
    before = np.full(lane.size, -1)
    same = lane[ordered[1:]] == lane[ordered[:-1]]
    before[ordered[1:][same]] = ordered[:-1][same]
    follows = np.zeros(lane.size, bool)
    follows[program.waits["work"].drop_nulls().to_numpy()] = True
    result: npt.NDArray[np.bool_] = (
        (group < 0) & ~follows & (program.work["after"].to_numpy() == before)
    )
    return result


def _split(key: Ints) -> list[Ints]:
    """Return the places of each value."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if key.size else []


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


class _Rank:
    """The lists of one rank that the replay goes through: lists are faster than columns here."""

    def __init__(self, job: Job, number: int, weights: Weights) -> None:
        program = job.programs[number]
        self.number = number
        self.free: dict[int, float] = {}
        self.weights = weights
        shift = job.shifts[number]
        calls, work = program.calls, program.work
        self.thread = calls["thread"].to_list()
        self.before = weights.before.tolist()
        self.spent, self.tail = weights.call.tolist(), weights.tail.tolist()
        self.spent_before = job.weights[number].before.tolist()
        self.recorded = (calls["start"] + shift).to_list()
        self.launched_by = work["call"].fill_null(-1).to_numpy()
        self.call = self.launched_by.tolist()
        self.after = work["after"].to_list()
        self.begun = (work["start"] + shift).to_list()
        self.latency, self.lag = weights.latency.tolist(), weights.lag.tolist()
        self.rest, self.took = weights.rest.tolist(), weights.duration
        self.transfer = weights.transfer.tolist()
        self.group, self.meeting = (one.tolist() for one in job.groups[number])
        if not weights.together:
            meets = (job.groups[number][0] >= 0) & ~program.in_pairs
            self.group = np.where(meets, -1, job.groups[number][0]).tolist()
            self.took = np.where(meets, weights.transfer, weights.duration)
        self.duration = self.took.tolist()
        self.follows, awaits = job.awaited[number]
        self.awaits = {call: rows for call, rows in awaits.items() if weights.waits[call]}
        self.waiting = {*awaits, *np.flatnonzero(job.groups[number][1] >= 0).tolist()}
        work_times, call_times = ([None] * size for size in (work.height, calls.height))
        self.times = Times(
            start=work_times.copy(), end=work_times, calls=call_times.copy(), done=call_times,
            bound=[-2] * work.height, blocked=[-1] * calls.height,
        )  # fmt: skip

    def unknown(self, needs: Sequence[int]) -> int:
        """Return the collective of work that has started and whose end is not known yet, or -1."""
        times = self.times
        for row in needs:
            if row >= 0 and times.end[row] is None and times.start[row] is not None:
                return int(self.group[row])
        return -1

    def start_work(self, row: int, needs: Sequence[int]) -> None:
        """Set the start of work: after what it waits for, and after its call."""
        times, call, after = self.times, self.call[row], self.after[row]
        ready, bound = times.end[after] if after >= 0 else None, after
        if ready is None:
            ready, bound = _NEVER, -1
        for other in needs:
            end = times.end[other]
            if end is not None and end > ready:
                ready, bound = end, other
        by_work = ready + self.lag[row]
        by_call = times.calls[call] + self.latency[row] if call >= 0 else _NEVER
        if by_work == by_call == _NEVER:
            times.start[row] = float(self.begun[row])
        elif by_work >= by_call:
            times.bound[row] = bound
            times.start[row] = by_work + self.rest[row]
        else:
            times.bound[row] = -1
            times.start[row] = by_call + self.rest[row]

    def replay_stretch(self, part: Stretch, begin: float | None) -> None:
        """Set the times of a stretch: calls follow each other, work follows its call or stream.

        ``end = max(end before + lag, call + latency) + rest + duration`` for all work of a stream:
        with the sums S of lag, rest and duration, ``end - S`` is a running maximum.
        """
        times, weights, (first, last) = self.times, self.weights, part.calls
        before = weights.before[first:last]
        begun = np.zeros(last - first)
        done = np.zeros(last - first)
        for calls in part.threads:
            thread = self.thread[first + calls[0]]
            free = self.free.get(thread)
            if free is None:
                free = self.first_begin(first + int(calls[0]), begin) - before[calls[0]]
            spent = weights.call[first:last][calls]
            done[calls] = free + np.cumsum(before[calls] + spent)
            begun[calls] = done[calls] - spent
            self.free[thread] = float(done[calls[-1]])
        times.calls[first:last], times.done[first:last] = begun.tolist(), done.tolist()
        begin_row, end_row = part.rows
        call = self.launched_by[begin_row:end_row]
        launched = np.full(call.size, _NEVER)
        inside = (call >= first) & (call < last)
        launched[inside] = begun[call[inside] - first]
        for place in np.flatnonzero((call >= 0) & ~inside).tolist():
            launched[place] = times.calls[call[place]]
        work = slice(begin_row, end_row)
        by_call, lag = launched + weights.latency[work], weights.lag[work]
        took = weights.rest[work] + self.took[work]
        end, bound = np.zeros(call.size), np.full(call.size, -1)
        for rows in part.chains:
            head = begin_row + int(rows[0])
            free = times.end[self.after[head]] if self.after[head] >= 0 else None
            if free is None and by_call[rows[0]] == _NEVER:
                by_call[rows[0]] = self.begun[head] - weights.rest[head]
            free = _NEVER if free is None else free
            total = np.cumsum(lag[rows] + took[rows])
            known = np.maximum.accumulate(by_call[rows] + took[rows] - total)
            end[rows] = total + np.maximum(known, free)
            ready = np.append(free, end[rows[:-1]]) + lag[rows]
            before = np.append(self.after[head], begin_row + rows[:-1])
            bound[rows] = np.where(ready >= by_call[rows], before, -1)
        times.start[work], times.end[work] = (end - self.took[work]).tolist(), end.tolist()
        times.bound[work] = bound.tolist()

    def end_work(self, row: int, meetings: _Meetings) -> None:
        """Set the end of work; the last member of a collective sets the ends of all."""
        if self.group[row] >= 0:
            meetings.arrive(self.group[row], self, row, self.times.start[row])
        else:
            self.times.end[row] = self.times.start[row] + self.duration[row]

    def first_begin(self, call: int, begin: float | None) -> float:
        """Return the start of the first call of a thread.

        The time before it begins as recorded; in a step that is replayed alone, not before the
        step, because the pause between steps that were recorded apart is not a part of them.
        """
        recorded, before = self.recorded[call], self.before[call]
        since = recorded - self.spent_before[call]
        if begin is not None and since < begin:
            before *= max(recorded - begin, 0.0) / max(self.spent_before[call], 1)
            since = min(begin, recorded)
        return float(since + before)

    def end_call(self, call: int, needs: Sequence[int], arrived: float | None) -> None:
        """Set the end of a call: after the work that it waits for, or the last rank's arrival."""
        times = self.times
        done = times.calls[call] + self.spent[call]
        for other in needs:
            end = times.end[other]
            if end is not None and end + self.tail[call] > done:
                done, times.blocked[call] = end + self.tail[call], other
        times.done[call] = done if arrived is None else arrived + self.tail[call]
        self.free[self.thread[call]] = times.done[call]


def _lists(edges: pl.DataFrame, key: str) -> dict[int, list[int]]:
    """Return the rows of work that each row or call waits for."""
    lists: dict[int, list[int]] = defaultdict(list)
    for row, after in edges[[key, "after"]].drop_nulls().iter_rows():
        lists[row].append(after)
    return lists


class _Meetings:
    """The collectives: who has arrived, and the time at which the last one did."""

    def __init__(self, sizes: Ints) -> None:
        self.missing = sizes.tolist()
        self.last: dict[int, float] = {}
        self.who: dict[int, tuple[int, int]] = {}
        self.members: dict[int, list[tuple[_Rank, int]]] = defaultdict(list)

    def arrive(self, key: int, rank: _Rank, row: int, time: float) -> None:
        """A member arrives; the last one sets the ends of all."""
        self.members[key].append((rank, row))
        if time > self.last.get(key, _NEVER):
            self.last[key], self.who[key] = time, (rank.number, row)
        self.missing[key] -= 1
        if self.missing[key] <= 0:
            self.complete(key)

    def complete(self, key: int) -> None:
        """Set the ends of all members that have arrived."""
        self.missing[key] = 0
        for rank, row in self.members.pop(key):
            rank.times.late[row] = self.who[key]
            if row >= 0:
                rank.times.end[row] = self.last[key] + rank.transfer[row]


def replay(job: Job, weights: Sequence[Weights] | None = None) -> list[Times]:
    """Return when all device work starts and ends with these times.

    The start of work is the latest of: the end of the work before it on its stream, the ends of
    the events that its stream waits for, and its launch call; each plus its delay. A collective of
    several ranks ends after the last of them has started, plus its transfer. A call of a thread
    follows the call before it; a call that waits ends after the device work that it waits for.
    """
    ranks = [_Rank(job, number, one) for number, one in enumerate(weights or job.weights)]
    for window, begin in enumerate(job.begins):
        meetings = _Meetings(job.sizes)
        alone = begin if len(job.begins) > 1 else None
        running = [
            _run(rank, of_rank[window], alone, meetings)
            for rank, of_rank in zip(ranks, job.plans, strict=True)
        ]
        _finish(running, meetings)
    return [rank.times for rank in ranks]


def checked_replay(job: Job) -> tuple[list[Times], float]:
    """Return the replay without a change, and the relative error of its step time.

    Raises:
        MissingData: the error is above 10 %.
    """
    times = replay(job)
    replayed = step_times(job, [np.array(one.end, np.float64) for one in times])
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


def _finish(running: Sequence[Iterator[int]], meetings: _Meetings) -> None:
    """Run all ranks; one that needs the end of a collective waits until all members arrive.

    Collectives that never complete, because the recorded orders contradict, end without the rest.
    """
    ready, waiting = deque(running), dict[int, list[Iterator[int]]]()
    while ready or waiting:
        if not ready:
            key = min(waiting)
            meetings.complete(key)
            ready.extend(waiting.pop(key))
        rank = ready.popleft()
        needed = next(rank, None)
        if needed is not None:
            waiting.setdefault(needed, []).append(rank)
        for key in [key for key in waiting if meetings.missing[key] <= 0]:
            ready.extend(waiting.pop(key))


def _run(
    rank: _Rank, plan: Sequence[int | Stretch], begin: float | None, meetings: _Meetings
) -> Iterator[int]:
    """Replay a window of one rank; yield each collective whose end is needed and not yet known.

    A call follows the call before it on its thread.
    """
    times, thread, size = rank.times, rank.thread, len(rank.thread)
    rank.free = free = dict[int, float]()
    for place in plan:
        if isinstance(place, Stretch):
            heads = [rank.after[place.rows[0] + int(rows[0])] for rows in place.chains]
            while (key := rank.unknown(heads)) >= 0:
                yield key
            rank.replay_stretch(place, begin)
        elif place < size:
            free_at = free.get(thread[place])
            start = (
                rank.first_begin(place, begin) if free_at is None else free_at + rank.before[place]
            )
            times.calls[place] = start
            if place not in rank.waiting:
                times.done[place] = free[thread[place]] = start + rank.spent[place]
        elif place >= 2 * size:
            row = place - 2 * size
            after, others = rank.after[row], rank.follows.get(row, ())
            if others or (after >= 0 and times.end[after] is None):
                while (key := rank.unknown([after, *others])) >= 0:
                    yield key
            rank.start_work(row, others)
            rank.end_work(row, meetings)
        else:
            call = place - size
            needs, meeting = rank.awaits.get(call, []), rank.meeting[call]
            while (key := rank.unknown(needs)) >= 0:
                yield key
            if meeting >= 0:
                meetings.arrive(meeting, rank, -1 - call, times.calls[call])
                if meetings.missing[meeting] > 0:
                    yield meeting
            rank.end_call(call, needs, meetings.last.get(meeting))


def between_streams(job: Job) -> pl.Series:
    """Return for each wait of a stream for another one whether it is inferred."""
    return pl.concat(one.waits.drop_nulls("work")["inferred"] for one in job.programs)


# --- measures ----------------------------------------------------------------------------------


def recorded_step_times(job: Job) -> list[float]:
    """Return the duration of each step as recorded."""
    ends = [
        program.work["end"].to_numpy().astype(float) + shift
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
    ends = [np.array(one.end, np.float64) for one in times]
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
