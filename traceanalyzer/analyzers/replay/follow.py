"""When each call and each piece of work starts and ends: the inner loop of a replay.

It is compiled (``_follow.c``): without it nothing is replayed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traceanalyzer.analyzers.replay.program import Floats, Ints
from traceanalyzer.errors import MissingData

try:
    import traceanalyzer.analyzers.replay._follow as _follow
except ImportError:  # no compiler
    _follow = None  # type: ignore[assignment]


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
        plan: what happens on each rank in order: with N calls, n is the start of a call, N + n its
            end if it waits, 2 N + n a row of work.
        bounds: where the plan of each rank begins, and the end.
        sizes: number of members of each collective.
        flow: what waits for what.
        times: the times.
        moments: receives the result.

    Raises:
        MissingData: the package was installed without a compiler.
    """
    if _follow is None:
        raise MissingData(
            "replays need the compiled part _follow: install a wheel, or a C compiler and reinstall"
        )
    _follow.follow(plan, bounds, sizes, *flow, *times, *moments)
