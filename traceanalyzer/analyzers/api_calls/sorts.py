"""What a call does, by its name; each distinct name is looked at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traceanalyzer.analyzers.gpu_idle.causes import MANAGING_MEMORY
from traceanalyzer.analyzers.names import matcher
from traceanalyzer.vocabulary import SYNCHRONISING_CALLS

_MOVING = r"(?i)mem(?:cpy|set)"
_LAUNCHING = r"(?i)launch(?!HostFunc)"
_ASYNCHRONOUS = r"(?i)async|enqueue|append"


@dataclass(frozen=True)
class Sorts:
    """The names of calls, by what they do.

    Attributes:
        moving: that copy or set memory.
        waiting: of those, the ones that by their name return when the copy is done.
        synchronising: that wait for the device and do nothing else.
        allocating: that get memory from the driver or give it back; those in the order of a stream
            (``cudaMallocAsync``) come from a pool, and are not among them.
        launching: that launch kernels or graphs.
    """

    moving: tuple[str, ...]
    waiting: tuple[str, ...]
    synchronising: tuple[str, ...]
    allocating: tuple[str, ...]
    launching: tuple[str, ...]


def sorted_out(names: Iterable[str]) -> Sorts:
    """Which of the names do what."""
    moves, waits, manages, launches, returns = map(
        matcher, ([_MOVING], SYNCHRONISING_CALLS, MANAGING_MEMORY, [_LAUNCHING], [_ASYNCHRONOUS])
    )
    known = sorted(names)
    prompt = {name for name in known if returns(name)}
    moving = [name for name in known if moves(name)]
    return Sorts(
        moving=tuple(moving),
        waiting=tuple(name for name in moving if name not in prompt),
        synchronising=tuple(name for name in known if waits(name) and name not in moving),
        allocating=tuple(name for name in known if manages(name) and name not in prompt),
        launching=tuple(name for name in known if launches(name)),
    )
