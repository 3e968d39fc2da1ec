"""The inner loop of replays: compiled and Python code find the same times of any program."""

from __future__ import annotations

import time
from random import Random, SystemRandom
from typing import Any

import follower
import numpy as np
import pytest
from damage import SHARE

from traceanalyzer.analyzers.replay import follow
from traceanalyzer.analyzers.replay.follow import Durations, Flow, Moments

pytestmark = pytest.mark.skipif(follow._follow is None, reason="no compiler")

#: Values that are no index.
_OUTSIDE = (-(1 << 63), -2, 1 << 20, 1 << 40, (1 << 63) - 2, (1 << 63) - 1)
#: Programs in ``make test-all``; ``make fuzz`` tries as many as it can.
CASES = 300


def _lists(random: Random, count: int, rows: int) -> tuple[list[int], list[int]]:
    """Return lists of rows, one after the other, and where each begins."""
    at, found = [0], list[int]()
    for _ in range(count):
        found += [random.randrange(rows) for _ in range(random.choice((0, 0, 1, 3)) * (rows > 0))]
        at.append(len(found))
    return at, found


def program(random: Random) -> list[Any]:
    """Return the arguments of the loop: ranks with calls, work and collectives in any order."""
    ranks, meetings = random.randrange(1, 5), random.randrange(1, 5)
    plan, bounds, thread = list[int](), [0], list[int]()
    owners = [random.randrange(ranks) for _ in range(random.randrange(12))]
    works = [random.randrange(ranks) for _ in range(random.randrange(12))]
    calls, rows = len(owners), len(works)
    for owner in owners:
        thread.append(min(owner * 2 + random.randrange(2), calls))
    for rank in range(ranks):
        steps = [n for n, owner in enumerate(owners) if owner == rank for _ in range(2)]
        steps += [2 * calls + row for row, owner in enumerate(works) if owner == rank]
        random.shuffle(steps)
        # the second place of a call is its end
        plan += [n + calls * (n < calls and n in steps[:at]) for at, n in enumerate(steps)]
        bounds.append(len(plan))

    def any_of(most: int) -> int:
        return random.randrange(-1, most)

    follows_at, follows = _lists(random, rows, rows)
    awaits_at, awaits = _lists(random, calls, rows)
    texts: dict[str, Any] = {
        "thread": thread,
        "meeting": [any_of(meetings) if random.random() < 0.5 else -1 for _ in range(calls)],
        "call": [any_of(calls) for _ in range(rows)],
        "after": [any_of(rows) for _ in range(rows)],
        "group": [any_of(meetings) if random.random() < 0.5 else -1 for _ in range(rows)],
        "follows_at": follows_at, "follows": follows, "awaits_at": awaits_at, "awaits": awaits,
        "begun": [random.randrange(100) for _ in range(rows)],
    }  # fmt: skip
    flow = Flow(
        *(np.array(texts[n], np.float64 if n == "begun" else np.int64) for n in Flow._fields)
    )
    sizes = [random.randrange(5) for _ in range(meetings)]
    of_calls = ("before", "spent", "tail", "first")
    times = Durations(
        np.array([random.randrange(2) for _ in range(calls)], np.int64),
        *(
            np.array([random.randrange(9) for _ in range(calls if n in of_calls else rows)], float)
            for n in Durations._fields[1:]
        ),
    )
    whole = (np.array(one, np.int64) for one in (plan, bounds, sizes))
    return [*whole, *flow, *times, *Moments.unknown(calls, rows)]


def followed(seed: str) -> None:
    """Follow a program with both, and with an index outside of its array."""
    arrays = program(Random(seed))  # noqa: S311
    compiled, plain = ([one.copy() for one in arrays] for _ in range(2))
    follow._follow.follow(*compiled)
    follower.follow(*plain)
    for name, one, other in zip(Moments._fields, compiled[-7:], plain[-7:], strict=True):
        np.testing.assert_array_equal(one, other, err_msg=f"{name} of program(Random({seed!r}))")
    random = Random(seed)  # noqa: S311
    index = [n for n in range(12) if n != 2 and arrays[n].size]  # not the sizes of collectives
    damaged = arrays[random.choice(index)]
    damaged[random.randrange(damaged.size)] = random.choice(_OUTSIDE)
    with pytest.raises(IndexError):
        follow._follow.follow(*arrays)


def test_compiled_code_finds_the_same_times() -> None:
    for seed in range(CASES):
        followed(f"{seed}")


def test_what_is_not_planned_is_not_known() -> None:
    """Neither the work before nor the call bound the start: that is another number than none."""
    moments = Moments.unknown(2, 1)
    assert np.isnan(np.concatenate(moments[:4])).all()
    assert [one.tolist() for one in moments][4:] == [[-2], [-1, -1], [-1, -1, -1]]


@pytest.mark.fuzz
def test_many_more_programs() -> None:
    """``make fuzz`` and ``make fuzz-native``: new seeds until the time is up."""
    end, seed = time.monotonic() + SHARE, SystemRandom().randrange(1 << 40)
    while time.monotonic() < end:
        followed(f"{seed}")
        seed += 1
