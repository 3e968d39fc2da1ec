"""The inner loop of replays as plain Python, to compare ``_follow.c`` with."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise
from math import isnan, nan
from typing import Any

from traceanalyzer.analyzers.replay.follow import Durations, Flow, Moments
from traceanalyzer.analyzers.replay.program import Ints

_NEVER = float("-inf")


def follow(plan: Ints, bounds: Ints, sizes: Ints, *arrays: Any) -> None:
    """Do what ``_follow.follow`` does."""
    flow, arrays = Flow(*arrays[: len(Flow._fields)]), arrays[len(Flow._fields) :]
    times, moments = Durations(*arrays[:-7]), Moments(*arrays[-7:])
    follower = _Follower(sizes, flow, times, moments)
    plans = [deque(plan[first:last].tolist()) for first, last in pairwise(bounds.tolist())]
    ready, waiting = deque(range(len(plans))), defaultdict[int, list[int]](list)
    while ready or waiting:
        if ready:
            rank = ready.popleft()
            key = follower.advance(plans[rank])
            if key >= 0:
                waiting[key].append(rank)
        else:  # the recorded orders contradict: a collective ends without the rest
            follower.complete(min(waiting))
        for known in follower.completed:
            ready.extend(reversed(waiting.pop(known, ())))
        follower.completed.clear()
    follower.store(moments)


class _Follower:
    """The state of :func:`follow`, as lists: they are faster here than columns."""

    def __init__(self, sizes: Ints, flow: Flow, times: Durations, moments: Moments) -> None:
        self.flow = Flow(*(one.tolist() for one in flow))
        self.times = Durations(*(one.tolist() for one in times))
        self.moments = Moments(*(one.tolist() for one in moments))
        self.size = flow.thread.size
        self.free: dict[int, float] = {}
        self.missing: list[int] = sizes.tolist()
        self.last, self.who = [_NEVER] * sizes.size, [-1] * sizes.size
        self.members: dict[int, list[int]] = defaultdict(list)
        self.met: set[int] = set()
        self.completed: list[int] = []

    def store(self, moments: Moments) -> None:
        """Copy what is known now."""
        for target, values in zip(moments, self.moments, strict=True):
            target[:] = values

    def advance(self, plan: deque[int]) -> int:
        """Go on with a rank; return the collective whose end it needs, or -1 at the end."""
        size, flow = self.size, self.flow
        while plan:
            place = plan[0]
            if place >= 2 * size:
                row = place - 2 * size
                needs = self._follows(row)
                if (key := self._unknown([flow.after[row], *needs])) >= 0:
                    return key
                self._work(row, needs)
            elif place >= size:
                call = place - size
                needs = self._awaits(call) if self.times.waits[call] else []
                if (key := self._unknown(needs)) >= 0:
                    return key
                if (key := int(flow.meeting[call])) >= 0 and call not in self.met:
                    self.met.add(call)
                    self._arrive(key, call, self.moments.calls[call])
                    if self.missing[key] > 0:
                        return key
                self._end_call(call, needs)
            else:
                self._start_call(place)
            plan.popleft()
        return -1

    def _follows(self, row: int) -> list[int]:
        first, last = self.flow.follows_at[row : row + 2]
        return self.flow.follows[first:last]  # type: ignore[return-value]

    def _awaits(self, call: int) -> list[int]:
        first, last = self.flow.awaits_at[call : call + 2]
        return self.flow.awaits[first:last]  # type: ignore[return-value]

    def _unknown(self, rows: list[int]) -> int:
        """Return the collective of work that has started and whose end is not known yet, or -1."""
        start, end = self.moments.start, self.moments.end
        for row in rows:
            if row >= 0 and isnan(end[row]) and not isnan(start[row]):
                return int(self.flow.group[row])
        return -1

    def _work(self, row: int, needs: list[int]) -> None:
        flow, times, moments = self.flow, self.times, self.moments
        call, bound = flow.call[row], flow.after[row]
        ready = moments.end[bound] if bound >= 0 else nan
        if isnan(ready):
            ready, bound = _NEVER, -1
        for other in needs:
            if moments.end[other] > ready:
                ready, bound = moments.end[other], other
        by_work = ready + times.lag[row]
        by_call = moments.calls[call] + times.latency[row] if call >= 0 else _NEVER
        by_call = _NEVER if isnan(by_call) else by_call
        if by_work == by_call == _NEVER:
            moments.start[row] = flow.begun[row]
        else:
            moments.bound[row] = bound if by_work >= by_call else -1
            moments.start[row] = max(by_work, by_call) + times.rest[row]
        if flow.group[row] >= 0:
            self._arrive(flow.group[row], self.size + row, moments.start[row])
        else:
            moments.end[row] = moments.start[row] + times.took[row]

    def _start_call(self, call: int) -> None:
        flow, times, moments = self.flow, self.times, self.moments
        free = self.free.get(flow.thread[call])
        start = times.first[call] if free is None else free + times.before[call]
        moments.calls[call] = start
        if flow.meeting[call] < 0 and not self._awaits(call):
            moments.done[call] = self.free[flow.thread[call]] = start + times.spent[call]

    def _end_call(self, call: int, needs: list[int]) -> None:
        times, moments, meeting = self.times, self.moments, self.flow.meeting[call]
        done = moments.calls[call] + times.spent[call]
        for other in needs:
            end = moments.end[other] + times.tail[call]
            if end > done:
                done, moments.blocked[call] = end, other
        if meeting >= 0:
            done = self.last[meeting] + times.tail[call]
        moments.done[call] = self.free[self.flow.thread[call]] = done

    def _arrive(self, key: int, member: int, time: float) -> None:
        """A member arrives; the last one sets the ends of all."""
        self.members[key].append(member)
        if (time, -member) > (self.last[key], -self.who[key]):
            self.last[key], self.who[key] = time, member
        self.missing[key] -= 1
        if self.missing[key] <= 0:
            self.complete(key)

    def complete(self, key: int) -> None:
        """Set the ends of all members that have arrived."""
        self.missing[key] = 0
        self.completed.append(key)
        for member in self.members.pop(key, ()):
            self.moments.late[member] = self.who[key]
            if member >= self.size:
                row = member - self.size
                self.moments.end[row] = self.last[key] + self.times.transfer[row]
