"""Replay of the programs of all ranks: the longest path in recorded order, and what lies on it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.comm_outliers import arrivals
from traceanalyzer.analyzers.replay import sample
from traceanalyzer.analyzers.replay.follow import Durations, Flow, Moments, follow
from traceanalyzer.analyzers.replay.program import OF_CALLS, Floats, Ints, Program
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import numbering

Bools = npt.NDArray[np.bool_]

_NEVER = float("-inf")
#: A replay that differs by more from the recording is not the program that ran.
MOST_ERROR = 0.1
#: The range in which a process waits for a batch of the workers of PyTorch's DataLoader. They limit
#: the run if it waits in most steps for this share of a step: less may be spent on unpacking.
_OF_WORKERS, _LONG_WAIT = "_MultiProcessingDataLoaderIter", 0.1
#: So often waits for batches are corrected, until they are as exact as this.
_ROUNDS, _EXACT_NS = 4, 1_000
#: A profiler that takes a smaller share of the steps does not matter.
_PROFILED = 0.01
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

    def of_each(self, first_call: Ints, first_row: Ints) -> list[Weights]:
        """Divide the times of all ranks into those of each; see :class:`Job`."""
        columns: dict[str, Any] = {
            name: _cut(getattr(self, name), first_call if name in _BY_CALL else first_row)
            for name in _TIMES
        }
        return [
            replace(self, **{name: each[number] for name, each in columns.items()})
            for number in range(first_row.size - 1)
        ]


def _cut(values: npt.NDArray[Any], at: Ints) -> list[npt.NDArray[Any]]:
    """Return the values between these places; ``np.split`` is slow for many."""
    return [values[low:high] for low, high in pairwise(at.tolist())]


_BY_CALL = ("loader", "launch", "code", "call", "tail", "waits")
#: The columns of :class:`Weights`.
_TIMES = (*_BY_CALL, "latency", "lag", "rest", "duration", "transfer")


def joined(weights: Sequence[Weights]) -> Weights:
    """Return the times of all ranks in one."""
    if len(weights) == 1:
        return weights[0]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(one, name) for one in weights]) for name in _TIMES
    }
    return replace(weights[0], **columns)


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
        names: the rank of each program; of the only one with several GPUs, which are its ranks
            then, the number of each.
        unit: the number of the rank of each row of work among ``names``.
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
    names: tuple[int | None, ...]
    unit: Ints

    @cached_property
    def kinds(self) -> Ints:
        """What each row of work of all ranks is: same number, same kernel or collective."""
        collective = pl.concat_str(
            pl.col("name").cast(pl.String),
            pl.col("collective").fill_null(""),
            pl.col("group").cast(pl.String).fill_null("").str.replace_all(r"[\d,\[\]-]+", ""),
            pl.col("elements_in").fill_null(0),
            separator="|",
        )
        work = _of_all(self.programs, "work", ["name", "collective", "group", "elements_in"])
        is_transfer = pl.Series(self.flow.group >= 0)
        kind = pl.when("is_transfer").then(collective).otherwise(pl.col("name").cast(pl.String))
        rows = work.with_columns(is_transfer=is_transfer).with_columns(kind=kind)
        rank = pl.struct("kind", "is_transfer").rank("dense").cast(pl.Int64) - 1
        return rows.select(rank).to_series().to_numpy()

    @cached_property
    def places(self) -> Ints:
        """Like ``kinds``, but calls of a kernel with different places in a step are different.

        Calls of one kernel have different sizes. Kernels that some rank runs more often in a step
        have no place there.
        """
        n_ranks, once = len(self.names), ("unit", "kind", "step")
        rows = pl.DataFrame({
            "unit": self.unit, "kind": self.kinds, "step": self.step_of_work,
            "alone": self.flow.group < 0,
        })  # fmt: skip
        rows = rows.with_columns(place=pl.int_range(pl.len()).over(once), n=pl.len().over(once))
        each, n = ("kind", "step"), pl.col("n")
        alike = (n.min().over(each) == n.max().over(each)) & (
            n_ranks * n.min().over(each) == pl.len().over(each)
        )
        placed = pl.when(alike & pl.col("alone") & (pl.col("step") >= 0))
        rows = rows.select("kind", placed.then("step"), placed.then("place").alias("place"))
        _, (numbers,) = numbering.group_numbers(("kind", "step", "place"), rows)
        return numbers

    @cached_property
    def batches(self) -> list[Ints]:
        """The calls of each program before which it waited for workers of a data loader.

        None if it did so in fewer than half of the steps, or also after pauses in which the workers
        would have got ahead. Steps that were recorded apart have none.
        """
        each = []
        for program in self.programs:
            names = [n for n, name in enumerate(program.ranges) if _OF_WORKERS in name]
            rows = program.calls.with_row_index("call").filter(pl.col("range_before").is_in(names))
            call, start, wait = (rows[name].to_numpy() for name in ("call", "start", "loader_ns"))
            rest, length = np.diff(start) - wait[1:], program.steps["end"] - program.steps["start"]
            long = wait >= _LONG_WAIT * np.median(length.to_numpy()) if length.len() else wait < 0
            usual = np.median(wait) if wait.size else 0
            ahead = wait[1:][rest > np.median(rest) + usual] if rest.size else wait[:0]
            limits = 2 * long.sum() > length.len() and 2 * ahead.sum() <= usual * ahead.size
            each.append(call[long & limits & (len(self.begins) == 1)].astype(np.int64))
        return each

    @cached_property
    def step_names(self) -> list[str]:
        """The steps that all ranks recorded; if names differ, those of the rank with most.

        Without the last one of a sample.
        """
        names = [program.steps["step"].to_list() for program in self.programs]
        longest, of_all = max(names, key=len), set[str].intersection(*map(set, names))
        common = [name for name in longest if name in of_all]
        common = common[: len(common) - self.in_sample]
        return [name or "" for name in (common if len(common) >= self.least_steps else longest)]

    @cached_property
    def in_sample(self) -> bool:
        """Whether the last step is not counted, because later ones are not replayed."""
        return any(one.is_sample for one in self.programs) and len(self.begins) == 1

    @property
    def in_parts(self) -> bool:
        """Whether the sample is one of parts of the run, not of its steps."""
        return self.in_sample and self.step_names[0].startswith(sample.PART)

    @property
    def least_steps(self) -> int:
        """Number of steps from which on each is measured; otherwise the run is."""
        return _LEAST_STEPS - self.in_sample

    @property
    def sampled(self) -> str:
        """Which steps are counted: ``4 of 20 steps (12 to 15)``; empty if all are replayed."""
        if not any(one.is_sample for one in self.programs):
            return ""
        names = self.step_names[len(self.begins) == 1 :]
        ends = [re.findall(r"\d+|$", name)[-2:][0] or name for name in (names[0], names[-1])]
        recorded = max(one.recorded_steps for one in self.programs)
        what = "parts" if self.in_parts else "steps"
        return f"{len(names):,} of {recorded:,} {what} ({' to '.join(dict.fromkeys(ends))})"

    @cached_property
    def step_numbers(self) -> list[Ints]:
        """The number of each step of each rank among :attr:`step_names`, else -1."""
        place = {name: number for number, name in enumerate(self.step_names)}
        names = [program.steps["step"].to_list() for program in self.programs]
        known = all(len({*one}) == len(one) and {*place} <= {*one} for one in names)
        if not known or len(self.begins) > 1:
            return [np.arange(len(one)) for one in names]
        return [np.array([place.get(name, -1) for name in one], np.int64) for one in names]

    @cached_property
    def step_of_work(self) -> Ints:
        """The number of the step of each row of work of all ranks, else -1."""
        steps = _integers(_of_all(self.programs, "work", ["step"])["step"])
        rows = zip(self.step_numbers, _cut(steps, self.first_row), strict=True)
        return np.concatenate([np.append(numbers, -1)[row] for numbers, row in rows])

    def of_rank(self, number: int) -> Ints:
        """Return the number of the step of each row of work of a program, else -1."""
        return self.step_of_work[slice(*self.first_row[number : number + 2])]

    @cached_property
    def timed(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """When all calls and all work of all ranks ran, with their program.

        ``call`` of work is a number among all calls.
        """
        columns = ["start", "end", "thread", "kind", "code_ns", "tail_ns", "operator"]
        calls = _of_all(self.programs, "calls", columns)
        work = _of_all(self.programs, "work", ["device", "start", "end", "work_kind", "call"])
        first = pl.Series(self.first_call)[work["program"]]
        return calls, work.with_columns(pl.col("call") + first)

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
    """Join the programs of all ranks, of a sample of the steps if they are too large."""
    ordered = sample.common(
        sorted(programs, key=lambda one: (one.rank is None, one.rank or 0, one.path))
    )
    names, unit = _units(ordered)
    members = _members(ordered, unit)
    shifts, aligned = _shifts(ordered, members)
    members = _on_axis(members, shifts).filter(aligned or len(ordered) > 1)
    transfer = (
        (pl.col("end") - pl.col("start").max().over("key")).clip(lower_bound=0)
        if aligned
        else (pl.col("end") - pl.col("start")).min().over("key")
    )
    members = members.with_columns(transfer=transfer)
    calls, work = _of_all(ordered, "calls", _OF_CALLS), _of_all(ordered, "work", _OF_WORK)
    first_call, first_row = (
        np.searchsorted(rows["program"].to_numpy(), np.arange(len(ordered) + 1))
        for rows in (calls, work)
    )
    of_work, transfers = _by_place(members.filter(~pl.col("on_host")), work.height)
    of_call, host = _by_place(members.filter("on_host"), calls.height)
    apart = all(program.apart for program in ordered)
    windows = tuple(_windows(program, apart=apart) for program in ordered)
    shift, number = np.array(shifts), [rows["program"].to_numpy() for rows in (calls, work)]
    start = work["start"].to_numpy() + shift[number[1]]
    before = calls.select(pl.sum_horizontal("loader_ns", "launch_ns", "code_ns")).to_series()
    since = (calls["start"] - before).to_numpy() + shift[number[0]]
    begins = _begins(
        [one[:0] if apart else one for one in _cut(since, first_call)],
        _cut(start, first_row),
        windows,
    )
    flow = _flow(ordered, calls, work, start, (of_call, of_work), first_call, first_row)
    waiting = (of_call >= 0) | (np.diff(flow.awaits_at) > 0)
    launched = _integers(work["call"])
    least = _after_members(unit, of_work, launched) if len(ordered) == 1 else None
    plans = [
        _plan(waiting, launched, of_program[number], first_call[[n, -1]], int(first_row[n]), least)
        for number in range(len(begins))
        for n, of_program in enumerate(windows)
    ]
    groups = _cut(of_work, first_row), _cut(of_call, first_call)
    return Job(
        tuple(ordered), tuple(shifts), tuple(zip(*groups, strict=True)),
        np.bincount(members["key"].to_numpy()) if members.height else np.zeros(0, np.int64),
        tuple(_recorded(calls, work, transfers, host).of_each(first_call, first_row)),
        windows, begins, flow, np.concatenate(plans), np.cumsum([0, *map(len, plans)]),
        first_call, first_row, names, unit,
    )  # fmt: skip


def _units(programs: Sequence[Program]) -> tuple[tuple[int | None, ...], Ints]:
    """Return :attr:`Job.names` and :attr:`Job.unit`."""
    device = pl.concat([one.work["device"].cast(pl.Int64) for one in programs])
    known = device.unique().drop_nulls().sort()
    if len(programs) > 1 or known.len() < 2:
        sizes = [one.work.height for one in programs]
        return tuple(one.rank for one in programs), np.repeat(np.arange(len(programs)), sizes)
    number = np.searchsorted(known.to_numpy(), device.fill_null(known[0]).to_numpy())
    return tuple(known.to_list()), number


_OF_CALLS = [
    "start", "end", "thread", "kind", "step", "loader_ns", "launch_ns", "code_ns", "call_ns",
    "tail_ns",
]  # fmt: skip
_OF_WORK = ["start", "end", "call", "after", "step", "latency_ns", "lag_ns", "rest_ns"]


def _of_all(programs: Sequence[Program], table: str, columns: Sequence[str]) -> pl.DataFrame:
    """Return columns of a table of all programs, with the number of the program."""
    frames = [getattr(one, table)[list(columns)] for one in programs]
    number = np.repeat(np.arange(len(frames)), [one.height for one in frames])
    # files of several formats have texts of other types
    rows: pl.DataFrame = pl.concat(frames, how="vertical_relaxed", rechunk=True)
    return rows.insert_column(0, pl.Series("program", number))


def _integers(column: pl.Series) -> Ints:
    """Return the values of a column, -1 for null."""
    return column.fill_null(-1).to_numpy().astype(np.int64)


def _by_place(members: pl.DataFrame, size: int) -> tuple[Ints, Floats]:
    """Return the collective of each row of all ranks (-1: none), and the time of its transfer."""
    rows, group, transfer = members["row"].to_numpy(), np.full(size, -1), np.zeros(size)
    group[rows], transfer[rows] = members["key"].to_numpy(), members["transfer"].to_numpy()
    return group, transfer


def _members(programs: Sequence[Program], unit: Ints) -> pl.DataFrame:
    """Return the members of all collectives of several ranks: key, program, start, end.

    Also on_host, and row among the work or the calls of all ranks. The GPUs of one process may have
    other numbers of streams, in the same order, where the groups are not recorded.
    """
    columns = ["group", "start", "end"]
    within = pl.concat(
        one.steps["step"].gather(one.work["step"])
        if one.apart and one.steps.height
        else pl.Series([None], dtype=pl.String).new_from_index(0, one.work.height)
        for one in programs
    )
    work = _of_all(programs, "work", [*columns, "seq", "collective"]).with_row_index("row")
    work = work.with_columns(within.alias("within"), unit=unit)
    calls = _of_all(programs, "calls", columns).with_row_index("row").with_columns(unit="program")
    rows = pl.concat(
        [
            # names of groups may list thousands of ranks
            one.with_columns(pl.col("group").cast(pl.Categorical), on_host=pl.lit(on_host))
            for one, on_host in ((work, False), (calls, True))
        ],
        how="diagonal",
    ).drop_nulls("group")
    rows = rows.with_columns(pl.col("within").cast(pl.Categorical))
    rows = rows.with_columns(_numbered(rows["group"]), _numbered(rows["within"]))
    if len(programs) == 1:
        rows = rows.with_columns(pl.col("group").rank("dense").over("unit"))
    counted = pl.int_range(pl.len()).over("unit", "group", "within", "on_host")
    all_known = pl.col("seq").count().over("group", "on_host") == pl.len().over("group", "on_host")
    rows = rows.with_columns(number=pl.when(all_known).then("seq").otherwise(counted))
    rows = rows.with_columns(pl.col("number").cast(pl.Int64))
    key = ["group", "within", "on_host", "number"]
    several = pl.col("unit").n_unique().over(key) > 1
    once = pl.len().over([*key, "unit"]) == 1
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

    The clocks agree if nearly all collectives begin on all ranks before they end on one; a constant
    offset between the ends is that of a clock. Otherwise they are aligned by these ends.
    """
    epochs = [program.epoch_ns or 0 for program in programs]
    # 64-bit floats since 1970 are exact to 256 ns only
    firsts = [program.work["start"].min() for program in programs]
    begun = [one + epoch for one, epoch in zip(firsts, epochs, strict=True) if isinstance(one, int)]
    epochs = [epoch - min(begun, default=0) for epoch in epochs]
    placed = _on_axis(members, epochs)
    overlap = placed.group_by("key").agg(one=pl.col("start").max() <= pl.col("end").min())
    if not members.height or overlap["one"].mean() >= 0.95:  # type: ignore[operator]
        rows = placed.filter(~pl.col("on_host")).select(
            "end", "collective", instance="key", lane="group", rank="program",
            duration_ns=pl.col("end") - pl.col("start"), message_bytes=pl.lit(None, pl.Int64),
        )  # fmt: skip
        offsets = arrivals.applied(arrivals.clock_offsets(rows, {}))
        return [epoch - offsets.get(number, 0) for number, epoch in enumerate(epochs)], True
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


def _recorded(calls: pl.DataFrame, work: pl.DataFrame, transfer: Floats, host: Floats) -> Weights:
    """Return the recorded times of all ranks."""

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


#: (first call, last call, first work, last work) of each window of a program.
_Windows = tuple[tuple[int, int, int, int], ...]


def _windows(program: Program, *, apart: bool) -> _Windows:
    if not apart:
        return ((0, program.calls.height, 0, program.work.height),)
    steps = [_integers(rows["step"]) for rows in (program.calls, program.work)]
    return tuple(
        (*_range(np.flatnonzero(steps[0] == step)), *_range(np.flatnonzero(steps[1] == step)))
        for step in range(program.steps.height)
    )


def _range(rows: Ints) -> tuple[int, int]:
    return (int(rows[0]), int(rows[-1]) + 1) if rows.size else (0, 0)


def _after_members(unit: Ints, group: Ints, launched: Ints) -> Floats:
    """Return after which call of the only process each row of work comes in its plan.

    That is after the last launch of each collective before it on its GPU.
    """
    last = np.zeros(1 + group.max(initial=0))
    np.maximum.at(last, group[group >= 0], launched[group >= 0])
    rows = pl.DataFrame({"unit": unit, "last": np.where(group >= 0, last[group], _NEVER)})
    before = pl.col("last").shift(1, fill_value=_NEVER).cum_max().over("unit")
    return rows.select(before + 0.1).to_series().to_numpy()


def _plan(
    waiting: Bools, launched: Ints, window: tuple[int, int, int, int], calls: Ints, first_row: int,
    least: Floats | None,
) -> Ints:  # fmt: skip
    """Return what happens in a window: calls, ends of the calls that wait, and device work.

    Work comes after the start of its call and before its end; without a call, after the work
    before.

    Args:
        waiting: which calls of all ranks wait.
        launched: the call of each row of work of all ranks, among those of its rank.
        window: first call, last call, first work, last work.
        calls: number of the first call of this rank, and of all calls.
        first_row: number of the first row of work of this rank.
        least: after which call the work of the only rank comes.
    """
    first, last, row, last_row = window
    first_call, size = calls.tolist()
    waits = np.flatnonzero(waiting[first_call + first : first_call + last]) + first
    call = launched[first_row + row : first_row + last_row].astype(float)
    known = np.maximum.accumulate(np.append(first - 1.0, call))[1:]
    called = np.arange(first, last)
    of_work = np.where(call < 0, known + 0.5, known)
    of_work = of_work if least is None else np.maximum(of_work, least[row:last_row])
    keys = [called - 0.2, waits + 0.2, of_work]
    numbers = [
        called + first_call, size + first_call + waits,
        2 * size + first_row + np.arange(row, last_row),
    ]  # fmt: skip
    return np.concatenate(numbers)[np.argsort(np.concatenate(keys), kind="stable")]


def _flow(
    programs: Sequence[Program],
    calls: pl.DataFrame,
    work: pl.DataFrame,
    start: Ints,
    groups: tuple[Ints, Ints],
    first_call: Ints,
    first_row: Ints,
) -> Flow:
    """Return what waits for what, with numbers over all ranks."""
    program, launched, before = (_integers(work[name]) for name in ("program", "call", "after"))
    waits = _of_all(programs, "waits", ["work", "call", "after"])

    def edges(key: str, at: Ints) -> tuple[Ints, Ints]:
        known = waits[["program", key, "after"]].drop_nulls()
        of, row, after = (known[name].to_numpy() for name in known.columns)
        return _by_row(row + at[of], after + first_row[of], int(at[-1]))

    return Flow(
        numbering.numbered([calls["program"], calls["thread"]])[1].astype(np.int64), groups[0],
        np.where(launched >= 0, launched + first_call[program], -1),
        np.where(before >= 0, before + first_row[program], -1),
        groups[1], *edges("work", first_row), *edges("call", first_call), start.astype(float),
    )  # fmt: skip


def _by_row(row: Ints, after: Ints, size: int) -> tuple[Ints, Ints]:
    """Return where what each row waits for begins, and what it waits for."""
    counts = np.cumsum(np.bincount(row, minlength=size))
    return np.append(0, counts), after[np.argsort(row, kind="stable")]


def _begins(
    since: Sequence[Ints], start: Sequence[Ints], windows: Sequence[_Windows]
) -> tuple[float, ...]:
    """Return the first start of device work in each window; of the time before calls too.

    Args:
        since: begin of the time before each call of each rank on the axis.
        start: start of each row of work of each rank.
        windows: of each rank.
    """
    begins = []
    for number in range(min(map(len, windows))):
        begun = []
        for of_calls, of_work, (calls, until, first, last) in zip(
            since, start, (one[number] for one in windows), strict=True
        ):
            begun += [of_calls[calls:until], of_work[first:last]]
        times = np.concatenate(begun)
        begins.append(float(times.min()) if times.size else 0.0)
    return tuple(begins)


# --- replay ------------------------------------------------------------------------------------


def replay(job: Job, weights: Sequence[Weights] | None = None) -> list[Times]:
    """Return when all device work starts and ends with these times; see :mod:`.follow`.

    Workers of a data loader that limit the run deliver batches as recorded, whatever the run does
    meanwhile.
    """
    if weights is None or not any(rows.size for rows in job.batches):
        return _replayed(job, weights or job.weights)
    whole = joined(weights)
    ready = np.concatenate([_delivered(job, *one) for one in enumerate(weights)])
    whole = replace(whole, loader=np.where(np.isfinite(ready), 0.0, whole.loader))
    for _ in range(_ROUNDS):
        times = _replayed(job, whole.of_each(job.first_call, job.first_row))
        early = np.fmax(ready - np.concatenate([one.calls for one in times]), 0.0)
        if early.max(initial=0.0) < _EXACT_NS:
            break
        each = _cut(early, job.first_call)
        late = [np.diff(np.maximum.accumulate(ns), prepend=0.0) for ns in each]
        whole = replace(whole, loader=whole.loader + np.concatenate(late))
    return times


def _delivered(job: Job, number: int, weights: Weights) -> Floats:
    """Return the earliest start of each call of a program that waits for a batch, else -inf.

    Shorter waits are those of faster workers; without most of the time, none waits.
    """
    rows, ready = job.batches[number], np.full(weights.loader.size, _NEVER)
    removed = job.weights[number].loader[rows] - weights.loader[rows]
    start = job.programs[number].calls["start"].to_numpy()[rows] + job.shifts[number]
    if removed.sum() <= weights.loader[rows].sum():
        ready[rows] = start - np.cumsum(removed)
    return ready


def _replayed(job: Job, weights: Sequence[Weights]) -> list[Times]:
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
    every = joined(weights)
    return Durations(
        waits=every.waits.astype(np.int64), before=every.before, spent=every.call,
        tail=every.tail, first=_first(job, weights, None), latency=every.latency, lag=every.lag,
        rest=every.rest, took=np.where(alone, every.transfer, every.duration),
        transfer=every.transfer,
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


def unprofiled(
    job: Job, unchanged: list[Times], column: str = "profiler_frac"
) -> tuple[Job, list[Times]]:
    """Return the job and its replay without the time that the profiler takes of the host.

    They are those given if the profiler takes less than 1 % of the steps. The column has its share,
    see :mod:`.profiler`.
    """
    left = [1 - one.calls[column].to_numpy() for one in job.programs]
    if all((one == 1).all() for one in left):
        return job, unchanged
    each = zip(job.weights, left, strict=True)
    weights = tuple(replace(one, launch=one.launch * x, code=one.code * x) for one, x in each)
    without = replace(job, weights=weights)
    times = replay(without, weights)
    before, after = (sum(step_times(job, [one.end for one in run])) for run in (unchanged, times))
    return (without, times) if after < (1 - _PROFILED) * before else (job, unchanged)


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
    one from the start of the recording. Steps that were recorded apart begin with their first
    device work, and take no time without any.

    Args:
        job: the programs.
        ends: ends of the device work of each rank, on the axis of the job.
    """
    last = _last_ends(job, ends)
    if len(job.begins) > 1:
        return list(map(float, np.maximum(last[: len(job.begins)] - np.array(job.begins), 0.0)))
    return list(map(float, np.diff(_bounds(job, last, ends))))


def rank_step_times(job: Job, ends: Sequence[Floats]) -> list[float]:
    """Return the mean duration of the steps of each rank, between the ends of its work."""
    means, order = [], np.argsort(job.unit, kind="stable")
    at = np.append(0, np.cumsum(np.bincount(job.unit, minlength=len(job.names))))
    steps, all_ends = job.step_of_work[order], np.concatenate(ends)[order]
    for step, end in zip(_cut(steps, at), _cut(all_ends, at), strict=True):
        last = np.full(1 + int(step.max(initial=0)), _NEVER)
        np.maximum.at(last, step[step >= 0], end[step >= 0])
        reached = last[np.isfinite(last)]
        if len(job.begins) > 1:
            means.append(float(np.mean((last - job.begins[: last.size])[np.isfinite(last)])))
        elif reached.size >= job.least_steps:
            means.append(float(reached.max() - reached[0]) / (reached.size - 1))
        else:
            means.append(float(end.max(initial=job.begins[0])) - job.begins[0])
    return means


def step_bounds(job: Job, times: Sequence[Times]) -> list[tuple[float, float]]:
    """Return begin and end of each step of a replay, on the axis; see :func:`step_times`."""
    ends = [one.end for one in times]
    if len(job.begins) > 1:
        lengths = step_times(job, ends)
        return [(begin, begin + length) for begin, length in zip(job.begins, lengths, strict=True)]
    return list(pairwise(_bounds(job, _last_ends(job, ends), ends).tolist()))


def _last_ends(job: Job, ends: Sequence[Floats]) -> Floats:
    """Return the last end of the work of each step, over all ranks; -inf without work."""
    count = max(len(job.begins), *(1 + int(one.max(initial=-1)) for one in job.step_numbers))
    last, known = np.full(count, _NEVER), job.step_of_work >= 0
    np.maximum.at(last, job.step_of_work[known], np.concatenate(ends)[known])
    return last


def _bounds(job: Job, last: Floats, ends: Sequence[Floats]) -> Floats:
    """Return where steps begin and end: at the ends of steps, or the whole run as one step."""
    reached = np.maximum.accumulate(last[np.isfinite(last)])
    if reached.size >= job.least_steps:
        return reached
    return np.array(
        [job.begins[0], max((float(one.max()) for one in ends if one.size), default=job.begins[0])]
    )
