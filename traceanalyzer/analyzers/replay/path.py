"""The longest path of a replay: what each moment of the run waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.device_work import COMMUNICATION, MEMORY
from traceanalyzer.analyzers.replay.engine import Job, Times

KERNELS: str = "kernels"
COPIES: str = "copies"
TRANSFERS: str = "transfers"
OPERATORS: str = "operators"
GAPS: str = "gaps between kernels"
LAUNCHES: str = "launches"
LOADING: str = "data loading"
CODE: str = "other host code"
SYNCHRONISATION: str = "end of waiting calls"
BEFORE: str = "not recorded"
#: What the longest path runs through.
CLASSES = (
    KERNELS, OPERATORS, COPIES, TRANSFERS, GAPS, LAUNCHES, LOADING, CODE, SYNCHRONISATION, BEFORE,
)  # fmt: skip


class Part(NamedTuple):
    """A part of the path, from start to end: of a rank, of a class, with the name of the work.

    The device is that of the work; None on the host.
    """

    rank: int
    kind: str
    name: str | None
    start: float
    end: float
    device: int | None = None


def longest_path(job: Job, times: Sequence[Times]) -> pl.DataFrame:
    """Return the longest path, from the end of the last device work back to the begin.

    Returns:
        program (number), kind (of :data:`CLASSES`), name (of the work or call), start, end in ns on
        the axis of the job, device (null on the host), in order; the parts follow each other
        without a gap.
    """
    walk = _Walk(job, times)
    parts = [part for window in range(len(job.begins)) for part in [*walk.back(window)][::-1]]
    schema = {"program": pl.Int64, "kind": pl.String, "name": pl.String, "start": pl.Float64,
              "end": pl.Float64, "device": pl.Int32}  # fmt: skip
    return pl.DataFrame(parts, schema=schema, orient="row")


class _Walk:
    """Goes from a node of the program to the one that it waited for."""

    def __init__(self, job: Job, times: Sequence[Times]) -> None:
        self.job, self.times = job, times
        self.names = [one.work["name"].cast(pl.String).to_list() for one in job.programs]
        self.kinds = [one.work["work_kind"].cast(pl.String).to_list() for one in job.programs]
        self.devices = [one.work["device"].to_list() for one in job.programs]
        self.calls = [one.work["call"].to_list() for one in job.programs]
        self.call_names = [one.calls["name"].cast(pl.String).to_list() for one in job.programs]
        self.ranges = [one.calls["range_before"].to_list() for one in job.programs]
        before = pl.int_range(pl.len(), dtype=pl.Int64).shift(1, fill_value=-1).over("thread")
        self.before = [one.calls.select(before).to_series().to_list() for one in job.programs]

    def back(self, window: int) -> Iterator[Part]:
        """Yield the parts of the path in a window, the last one first."""
        begin = self.job.begins[window]
        rank, row = self._last(window)
        at: tuple[str, int, int] | None = ("end of work", rank, row)
        while at is not None:
            step = {
                "end of work": self._end_of_work,
                "start of work": self._start_of_work,
                "end of call": self._end_of_call,
                "start of call": self._start_of_call,
            }[at[0]]
            parts, following = step(at[1], at[2])
            for part in parts:
                yield part._replace(start=max(part.start, begin))
                if part.start <= begin:
                    return
            if following is None and parts:
                yield Part(at[1], BEFORE, None, begin, parts[-1].start)
            at = following

    def _last(self, window: int) -> tuple[int, int]:
        """Return rank and row of the work that ends last in a window."""
        ends = []
        for number, (times, windows) in enumerate(zip(self.times, self.job.windows, strict=True)):
            *_, first, last = windows[window]
            of_rank = times.end[first:last]
            last_end = of_rank.max(initial=-np.inf)
            ends += [(last_end, number, first + row) for row in np.flatnonzero(of_rank == last_end)]
        _, rank, row = max(ends)
        return rank, int(row)

    def _end_of_work(self, rank: int, row: int) -> _Step:
        times = self.times[rank]
        end, name, device = times.end[row], self.names[rank][row], self.devices[rank][row]
        if times.late[row] >= 0:
            part = Part(rank, TRANSFERS, name, end, end, device)
            return self._after_last(part, times.late[row])
        compute = OPERATORS if self.job.programs[rank].on_host else KERNELS
        kind = {MEMORY: COPIES, COMMUNICATION: TRANSFERS}.get(self.kinds[rank][row], compute)
        return [Part(rank, kind, name, times.start[row], end, device)], ("start of work", rank, row)

    def _after_last(self, part: Part, member: int) -> _Step:
        """Go on with the rank that arrived last at a collective, which begins there."""
        other, row = self.job.member(member)
        if row >= 0:
            start = self.times[other].start[row]
            return [part._replace(start=start)], ("start of work", other, row)
        start = self.times[other].calls[-1 - row]
        return [part._replace(start=start)], ("start of call", other, -1 - row)

    def _start_of_work(self, rank: int, row: int) -> _Step:
        times = self.times[rank]
        start, bound, name = times.start[row], times.bound[row], self.names[rank][row]
        device = self.devices[rank][row]
        if bound >= 0:
            part = Part(rank, GAPS, name, times.end[bound], start, device)
            return [part], ("end of work", rank, bound)
        if bound == -1:
            call = self.calls[rank][row]
            part = Part(rank, LAUNCHES, name, times.calls[call], start)
            return [part], ("start of call", rank, call)
        return [Part(rank, GAPS, name, start, start, device)], None

    def _end_of_call(self, rank: int, call: int) -> _Step:
        times = self.times[rank]
        done, row = times.done[call], times.blocked[call]
        name = self._call_name(rank, call)
        if row >= 0:
            part = Part(rank, SYNCHRONISATION, name, times.end[row], done)
            return [part], ("end of work", rank, row)
        if times.met[call] >= 0:
            return self._after_last(Part(rank, TRANSFERS, name, done, done), times.met[call])
        part = Part(rank, LAUNCHES, name, times.calls[call], done)
        return [part], ("start of call", rank, call)

    def _start_of_call(self, rank: int, call: int) -> _Step:
        times, weights = self.times[rank], self.job.weights[rank]
        start, before = times.calls[call], self.before[rank][call]
        name = self._before_name(rank, call)
        if before < 0 or np.isnan(times.done[before]):
            return [Part(rank, CODE, name, start, start)], None
        parts, until = [], start
        whole = start - times.done[before]
        host = weights.code[call], weights.launch[call], weights.loader[call]
        scale = whole / sum(host) if sum(host) else 0.0
        for kind, time in zip((CODE, LAUNCHES, LOADING), host, strict=True):
            if time:
                parts.append(Part(rank, kind, name, until - time * scale, until))
                until -= time * scale
        if parts:
            parts[-1] = parts[-1]._replace(start=times.done[before])
        return parts, ("end of call", rank, before)

    def _before_name(self, rank: int, call: int) -> str:
        """Return the annotation in which the time before a call is, or the call."""
        number = self.ranges[rank][call]
        if number is not None:
            name: str = self.job.programs[rank].ranges[number]
            return name
        return f"before {self._call_name(rank, call)}"

    def _call_name(self, rank: int, call: int) -> str | None:
        name: str | None = self.call_names[rank][call]
        return name


_Step = tuple[list[Part], "tuple[str, int, int] | None"]
