"""When each call and each piece of work starts and ends: the inner loop of a replay.

``_follow.c`` does the same as :class:`_Follower`, about 100 times as fast.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import pairwise
from math import isnan, nan
from typing import Any, NamedTuple

import numpy as np

from traceanalyzer.analyzers.replay.program import Floats, Ints

try:
    import traceanalyzer.analyzers.replay._follow as _follow
except ImportError:  # no compiler
    _follow = None  # type: ignore[assignment]

_NEVER = float("-inf")


class Flow(NamedTuple):
    """What waits for what. Calls and rows of work are numbered over all ranks; -1: none.

    Attributes:
        thread, meeting: of calls: the thread, over all ranks; the collective on the host.
        call, after, group: of rows of work: the call, the row before on the stream, the collective.
        follows_at, follows: the rows that row ``n`` waits for: from ``follows_at[n]`` on.
        awaits_at, awaits: the rows that call ``n`` waits for, in the same form.
        begun: recorded start of work that waits for nothing.
    """

    thread: Ints
    meeting: Ints
    call: Ints
    after: Ints
    group: Ints
    follows_at: Ints
    follows: Ints
    awaits_at: Ints
    awaits: Ints
    begun: Floats


class Durations(NamedTuple):
    """The times of a replay: of calls up to ``first``, of work after it.

    Attributes:
        waits: whether a call waits for device work (0 or 1).
        before: since the call before it on its thread; spent: in it; tail: at its end.
        first: its start if no call was before it.
        latency, lag, rest: before work; took: of work; transfer: of a collective.
    """

    waits: Ints
    before: Floats
    spent: Floats
    tail: Floats
    first: Floats
    latency: Floats
    lag: Floats
    rest: Floats
    took: Floats
    transfer: Floats


class Moments(NamedTuple):
    """What a replay finds out; not a number or -1 where it is not known.

    Attributes:
        start, end: of work; calls, done: start and end of calls.
        bound: row that the start of work waited for; -1: its call; -2: neither.
        blocked: row that the end of a call waited for.
        late: last member of the collective of each call and (behind them) row: a call, or the
            number of all calls plus a row.
    """

    start: Floats
    end: Floats
    calls: Floats
    done: Floats
    bound: Ints
    blocked: Ints
    late: Ints

    @classmethod
    def unknown(cls, calls: int, rows: int) -> Moments:
        """Return moments of which none is known yet."""
        return cls(
            np.full(rows, np.nan), np.full(rows, np.nan), np.full(calls, np.nan),
            np.full(calls, np.nan), np.full(rows, -2), np.full(calls, -1),
            np.full(calls + rows, -1),
        )  # fmt: skip


def follow(
    plan: Ints, bounds: Ints, sizes: Ints, flow: Flow, times: Durations, moments: Moments
) -> None:
    """Add the moments of what is planned.

    The start of work is the latest of: the end of the work before it on its stream, the ends of
    the events that its stream waits for, and its launch call; each plus its delay. A collective of
    several ranks ends after the last of them has started, plus its transfer. A call of a thread
    follows the call before it; a call that waits ends after the device work that it waits for.

    Args:
        plan: what happens on each rank in order: with N calls, n is the begin of a call, N + n its
            end if it waits, 2 N + n a row of work.
        bounds: where the plan of each rank begins, and the end.
        sizes: number of members of each collective.
        flow: what waits for what.
        times: the times.
        moments: receives the result.
    """
    loop = _in_python if _follow is None else _follow.follow
    loop(plan, bounds, sizes, *flow, *times, *moments)


def _in_python(plan: Ints, bounds: Ints, sizes: Ints, *arrays: Any) -> None:
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
    """The state of :func:`follow_in_python`, as lists: they are faster here than columns."""

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
