"""How much of a device's memory was taken, at absolute times."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.memory import ledger, options
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.result import Result
from traceanalyzer.trace import Trace


@dataclass(frozen=True)
class Fill:
    """The memory of one device over time.

    Attributes:
        path: the file.
        rank: of the file, or None.
        device: its ordinal, or None.
        at_ns: when the history changes, in ns since the Unix epoch; None where that is not known.
        taken_bytes: what is taken from then on: reserved by the allocator, or, where that is not
            known, live; one more than times, the first being what was taken before.
    """

    path: str
    rank: int | None
    device: int | None
    at_ns: Ints | None
    taken_bytes: Ints

    def taken(self, start_ns: int, end_ns: int) -> tuple[int, bool]:
        """The most that was taken from one absolute time to another, and whether times are known.

        Of a stretch that the history does not reach, and without times, it is the most of all.
        """
        at = self.at_ns
        if at is None or not at.size or end_ns < at[0] or start_ns > at[-1]:
            return int(self.taken_bytes.max()), False
        first, last = np.searchsorted(at, [start_ns, end_ns], side="right")
        return int(self.taken_bytes[first : last + 1].max()), True


def needs(_options: options.Options) -> Needs:
    """What the curve of taken memory is made of."""
    return Needs(ledger.ALLOCATIONS, samples=True)


def measure(trace: Trace, _options: options.Options) -> list[Fill]:
    """The memory of each device of a trace of one rank.

    Raises:
        MissingData: nothing about memory was recorded.
    """
    epoch = trace.meta.epoch_ns
    found = []
    for of in ledger.ledgers(trace):
        times = of.rows["ts"]
        known = epoch is not None and not times.null_count()
        found.append(
            Fill(
                path=trace.meta.path,
                rank=trace.meta.rank,
                device=of.device,
                at_ns=times.to_numpy() + (epoch or 0) + ledger.origin(trace) if known else None,
                taken_bytes=of.live if of.reserved is None else of.reserved,
            )
        )
    return found


def combine(
    _parts: Sequence[list[Fill]], _options: options.Options, _base: Sequence[list[Fill]] = ()
) -> Result:
    """Nothing is shown of it: the parts are for other analyzers."""
    return Result()


MEMORY_FILL = Analyzer("memory_fill", options.Options, needs, measure, combine)
