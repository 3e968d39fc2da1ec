"""The replayed run, for the gains of findings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.common.clocks import OWNER
from traceanalyzer.analyzers.critical_path import longest_path
from traceanalyzer.analyzers.replay import changes, engine, program, sample
from traceanalyzer.analyzers.replay.engine import Job, Weights
from traceanalyzer.analyzers.replay.program import Floats, Ints, Program
from traceanalyzer.analyzers.what_if import ReplayOptions
from traceanalyzer.frames import intervals
from traceanalyzer.result import Result

_ENDS = ("start", "end")
_PROGRAMS = {"program": pl.Int64, "rank": pl.Int32, "path": pl.String, "shift": pl.Int64}
#: Through more device work, a path takes longer to find than a timeline.
MOST_DRAWN = 50_000
#: This many times the lost time of a measured step is not part of what each step loses: a cause of
#: every second step has twice its mean in its steps.
_MUCH_MORE = 2.5


@dataclass(frozen=True, eq=False, repr=False)
class Replay(Result):
    """The run as it was recorded, to be replayed with changes.

    Attributes:
        job: the programs of all ranks.
        whole_ns: how long the replay without a change takes, from the first launch or work (of a
            sample: from the end of its first step) to the end of the last step (or work).
        error_frac: its relative error.
        waits_for_others: calls of the host wait for something that was not recorded.
        times: start and end of all work and calls without a change.
        unprofiled_frac: step time without the profiler as a share of that with it.
        as_recorded: the job and its times with the time that the profiler takes of the host;
            ``job`` and ``times`` are without it.
    """

    job: Job
    whole_ns: float
    error_frac: float
    waits_for_others: bool
    times: Sequence[engine.Times]
    unprofiled_frac: float
    as_recorded: tuple[Job, list[engine.Times]]

    def unprofiled(self, column: str = "profiler_frac") -> "Replay":
        """Return it without the time that the profiler takes; see :func:`.engine.unprofiled`."""
        job, times = engine.unprofiled(*self.as_recorded, column)
        shorter, whole = (
            sum(engine.step_times(job, [one.end for one in run]))
            for run in (times, self.as_recorded[1])
        )
        whole_ns, frac = _whole_ns(job, times), shorter / whole
        return replace(self, job=job, times=times, whole_ns=whole_ns, unprofiled_frac=frac)

    def gain_ns(
        self, weights: Sequence[Weights], ends: Mapping[str, int], lost: pl.DataFrame
    ) -> float:
        """Return by how much the run is shorter with these times and without lost time.

        Args:
            weights: the changed times.
            ends: where the last step of each owner ends; the pause after its work counts too,
                except in a sample.
            lost: path, rank, start_ns, end_ns: what is removed of these pauses.
        """
        times = engine.replay(self.job, weights)
        gain = min(self.whole_ns - _whole_ns(self.job, times), self._most_ns(times))
        if len(self.job.begins) > 1 or self.job.in_sample:  # it begins with such a pause
            return gain
        programs = self.job.programs
        last = [
            int(_last(self.job, n, one.work["end"].to_numpy())) for n, one in enumerate(programs)
        ]
        until = [max(ends.get(one.owner, at), at) for one, at in zip(programs, last, strict=True)]
        paused = pl.DataFrame(
            {"owner": [one.owner for one in programs], "last": last, "until": until},
            schema={"owner": pl.String, "last": pl.Int64, "until": pl.Int64},
        ).with_row_index("program")
        start, end = (pl.col(side).clip("last", "until") for side in ("start_ns", "end_ns"))
        after = lost.with_columns(OWNER).join(paused, on="owner")
        removed = intervals.measure(after.select("program", start=start, end=end), ["program"])
        pauses = (paused["until"] - paused["last"]).to_numpy()
        left = pauses.copy()
        left[removed["program"].to_numpy()] -= removed["length"].to_numpy()
        return gain + self._pause_ns(self.times, pauses) - self._pause_ns(times, left)

    def _most_ns(self, times: Sequence[engine.Times]) -> float:
        """Return how much shorter the run can be: a longer one would wait for its next batch."""
        batches = zip(self.times, times, self.job.batches, strict=True)
        limits = (self._limit_ns(one.calls[at], two.calls[at]) for one, two, at in batches)
        return min(self.whole_ns, *limits)

    def _limit_ns(self, before: Floats, after: Floats) -> float:
        """Return how much shorter a run can be whose batches arrive at these times.

        Its last batch is not later than now, or its usual steps still take as long as its batches.
        """
        if before.size <= 1:
            return float(before.sum() - after.sum()) if before.size else self.whole_ns
        lengths = engine.step_times(self.job, [one.end for one in self.times])
        taken_ns = (after[-1] - after[0]) * after.size / (after.size - 1)
        longer_ns = len(lengths) * np.median(lengths) - taken_ns
        return float(max(before[-1] - after[-1], longer_ns))

    def _pause_ns(self, times: Sequence[engine.Times], pauses: Ints) -> float:
        """Return by how much the run is longer with pauses after the work of steps of each rank."""
        ends = [_last(self.job, number, one.end) for number, one in enumerate(times)]
        return float(max(np.array(ends) + pauses) - max(ends))

    def shorter_frac(self, weights: Sequence[Weights], steps: Collection[str]) -> float:
        """Return by what share these steps are shorter with these times (all if none is known)."""
        times = engine.replay(self.job, weights)
        before, after = (sum(self._lengths(one, steps)) for one in (self.times, times))
        return min(before - after, self._most_ns(times)) / before

    def step_ns(self, steps: Collection[str]) -> float | None:
        """Return how long these steps take in the mean, or None if the run is one step."""
        lengths = self._lengths(self.times, steps)
        return float(np.mean(lengths)) if len(self._bounds) > 1 else None

    @cached_property
    def _bounds(self) -> list[tuple[float, float]]:
        """Begin and end of each step with the time of the profiler, on the axis."""
        return engine.step_bounds(*self.as_recorded)

    def is_in_steps(self, lost: pl.DataFrame) -> bool:
        """Return whether the steps that are measured tell what lost time costs a step.

        The first step is not measured if there are several: it begins with the recording, when the
        device has no work. Time after the last work is not in the last one. They do not tell it if
        much more is lost there than in a measured step: what happens once, or at the start.
        """
        if len(self._bounds) < 2:
            return False
        each = zip(self.job.programs, self.job.shifts, strict=True)
        shift = OWNER.replace_strict(
            {one.owner: by for one, by in each}, default=None, return_dtype=pl.Int64
        )
        start, end = (pl.col(f"{side}_ns") + shift for side in _ENDS)
        begin, until = self._bounds[0][0], self._bounds[-1][1]
        inside = end.clip(begin, until) - start.clip(begin, until)
        some, whole = lost.select(inside.sum().alias("inside"), (end - start).sum()).row(0)
        return bool(whole - some <= _MUCH_MORE * some / len(self._bounds))

    def _lengths(self, times: Sequence[engine.Times], steps: Collection[str]) -> list[float]:
        lengths = engine.step_times(self.job, [one.end for one in times])
        names = self.job.step_names[-len(lengths) :]
        counted = [ns for ns, name in zip(lengths, names, strict=False) if name in steps]
        return counted if sum(counted) else lengths

    def longest_path(self) -> pl.DataFrame:
        """Return the longest path: rank, path (of the file), device, kind, name, start, end.

        The device is null on the host. Start and end are on the clock of the file, in ns.
        """
        rows = longest_path(*self.as_recorded)
        each = zip(self.job.programs, self.job.shifts, strict=True)
        of = [(number, one.rank, one.path, shift) for number, (one, shift) in enumerate(each)]
        programs = pl.DataFrame(of, _PROGRAMS, orient="row")
        rows = rows.join(programs, on="program", maintain_order="left")
        begin, end = (pl.col(name).round().cast(pl.Int64) - pl.col("shift") for name in _ENDS)
        return rows.select("rank", "path", "device", "kind", "name", start=begin, end=end)

    def drawn_path(self) -> tuple[pl.DataFrame | None, str]:
        """Return the longest path for a timeline, or why there is none."""
        count = sum(one.work.height for one in self.job.programs)
        return (None, not_drawn(count)) if count > MOST_DRAWN else (self.longest_path(), "")

    def spans_of_parts(self, names: Collection[str]) -> pl.DataFrame | None:
        """Return when these parts of the run ran: owner, from, until; None for steps."""
        if not self.job.in_parts:
            return None
        return pl.concat(
            one.steps.filter(pl.col("step").is_in(names)).select(
                pl.col("start").min().alias("from"), pl.col("end").max().alias("until"),
                owner=pl.lit(one.owner),
            )
            for one in self.job.programs
        )  # fmt: skip

    def waits_for_batches(self) -> float:
        """Return how long a rank waits for workers of a data loader that limit the run, in ns."""
        waits = zip(self.job.weights, self.job.batches, strict=True)
        return max(float(one.loader[rows].sum()) for one, rows in waits)

    def has(self, lost: pl.DataFrame) -> bool:
        """Return whether most of the lost time is in the replay, before other work of its rank.

        The replay of a run without steps begins with its first call.
        """
        programs, first = self.job.programs, self.job.begins[0] if len(self.job.begins) == 1 else 0
        begins = {p.owner: int(first) - by for p, by in zip(programs, self.job.shifts, strict=True)}
        ends = {one.owner: one.work["start"].max() for one in programs}
        begin, last = (
            OWNER.replace_strict(known, default=None, return_dtype=pl.Int64)
            for known in (begins, ends)
        )
        ns, is_in = pl.col("end_ns") - pl.col("start_ns"), pl.col("start_ns") < last
        inside = ns.filter(is_in & (pl.col("end_ns") > begin)).sum()
        return bool(lost.select(2 * inside >= ns.sum()).item())

    def without(
        self,
        lost: pl.DataFrame,
        transfers: pl.DataFrame,
        change: changes.Change,
        calls: pl.DataFrame | None = None,
    ) -> list[Weights]:
        """Return the times with a change and without lost time.

        Args:
            lost: see :func:`~traceanalyzer.analyzers.replay.changes.without_time`.
            transfers: the same of time that the host has no part in.
            change: the change.
            calls: the same of calls that a class of the change has; default: all.
        """
        changed = changes.changed(self.job, change, calls)
        less = changes.without_time(self.job, changed, transfers, with_host=False)
        return changes.without_time(self.job, less, lost)


def _last(job: Job, number: int, ends: npt.NDArray[Any]) -> Any:
    """Return the last end of the work of steps of a rank; without steps, of all work."""
    in_step = job.of_rank(number) >= 0
    return ends[in_step if in_step.any() else ...].max(initial=0)


def not_drawn(count: int) -> str:
    """Return why the path through so much work is not drawn."""
    return (
        f"it is drawn through at most {MOST_DRAWN:,} kernels and copies, these are {count:,}; "
        "traceanalyzer critical-path adds it up"
    )


def _whole_ns(job: Job, times: Sequence[engine.Times]) -> float:
    bounds = engine.step_bounds(job, times)
    if len(job.begins) > 1:
        return float(sum(end - begin for begin, end in bounds))
    return float(bounds[-1][1] - (bounds[0][0] if job.sampled else job.begins[0]))


def combine(parts: Sequence[Program], _options: ReplayOptions) -> Replay:
    """Replay the run without a change.

    Raises:
        MissingData: the replay differs too much from the recording, or there is too much work.
    """
    some = sample.common(parts)
    sample.require_few(sum(one.work.height for one in some), len(some))
    job = engine.job_of(some)
    recorded, error = engine.checked_replay(job)
    others = bool(changes.unexplained(job.timed[0]).any())
    whole = _whole_ns(job, recorded)
    return Replay(job, whole, error, others, recorded, 1.0, (job, recorded)).unprofiled()


measure = partial(sample.measure, is_limited=True)
WHAT_IF_REPLAY = Analyzer(
    "what_if_replay", ReplayOptions, program.NEEDS, measure, combine, more=program.more
)
