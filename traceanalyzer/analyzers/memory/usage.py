"""Memory use of each device at absolute times, for other analyzers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.memory import Options, ledger
from traceanalyzer.frames.intervals import Ints
from traceanalyzer.result import Result
from traceanalyzer.trace import Trace


@dataclass(frozen=True)
class Fill:
    """Memory use of one device over time.

    Attributes:
        path: path of the file.
        rank: rank of the file, or None.
        device: device ordinal, or None.
        at_ns: times of events in ns since the Unix epoch; None if not known.
        taken_bytes: bytes in use after each event, and before the first: reserved by the
            allocator, or live if reserved is not known.
    """

    path: str
    rank: int | None
    device: int | None
    at_ns: Ints | None
    taken_bytes: Ints

    def taken(self, start_ns: int, end_ns: int) -> tuple[int, bool]:
        """Return the maximum bytes in use from one absolute time to another.

        Also return whether it is of these times: without times, or if the history does not reach
        them, it is the maximum of the whole history.
        """
        at = self.at_ns
        if at is None or not at.size or end_ns < at[0] or start_ns > at[-1]:
            return int(self.taken_bytes.max()), False
        first, last = np.searchsorted(at, [start_ns, end_ns], side="right")
        return int(self.taken_bytes[first : last + 1].max()), True


def measure(trace: Trace, _options: Options) -> list[Fill]:
    """Return the memory use of each device of a trace of one rank.

    Raises:
        MissingData: no memory events were recorded.
    """
    epoch = trace.meta.epoch_ns
    fills = []
    for history in ledger.ledgers(trace):
        times = history.rows["ts"]
        known = epoch is not None and not times.null_count()
        fills.append(
            Fill(
                path=trace.meta.path,
                rank=trace.meta.rank,
                device=history.device,
                at_ns=times.to_numpy() + (epoch or 0) + ledger.origin(trace) if known else None,
                taken_bytes=history.live if history.reserved is None else history.reserved,
            )
        )
    return fills


def combine(_parts: Sequence[list[Fill]], _options: Options) -> Result:
    """Return an empty result: other analyzers use the parts."""
    return Result()


MEMORY_USAGE = Analyzer(
    "memory_usage", Options, Needs(ledger.ALLOCATIONS, samples=True), measure, combine
)
