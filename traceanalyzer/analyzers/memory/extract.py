"""What one rank contributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceanalyzer.analyzers.memory.drawing import occupancy
from traceanalyzer.analyzers.memory.ground import Window, ground
from traceanalyzer.analyzers.memory.peak import Peak, measure
from traceanalyzer.result import Occupancy
from traceanalyzer.trace import Trace, is_cut_off


@dataclass(frozen=True)
class Part:
    """One rank's devices.

    Attributes:
        peaks: of each device.
        maps: the picture of each.
        cut_off: the end of the file is missing, and with it the end of the history.
    """

    peaks: tuple[Peak, ...]
    maps: tuple[Occupancy, ...]
    cut_off: bool = False


def extract(
    trace: Trace,
    library_names: Sequence[str] = (),
    window: Window = (None, None),
    *,
    drawn: bool = True,
) -> Part:
    """The memory of the devices of a trace of one rank.

    Args:
        trace: read with :data:`~.operations.NEEDS`.
        library_names: libraries whose frames name an allocation.
        window: (since, until) in ns after the first event.
        drawn: with the pictures; a comparison shows none.

    Raises:
        MissingData: it tells nothing of memory.
    """
    own = ground(trace, library_names, window=window)
    maps = []
    for of in own.ledgers if drawn else ():
        words = (
            f"rank {own.rank}" if own.rank is not None else "",
            f"device {of.device}" if len(own.ledgers) > 1 else "",
        )
        where = " ".join(word for word in words if word)
        maps.append(occupancy(of, own, f"memory_{own.rank}_{of.device}", where))
    return Part(tuple(measure(of, own) for of in own.ledgers), tuple(maps), is_cut_off(trace))
