"""Timelines for tests of drawings."""

from __future__ import annotations

from functools import cache

from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT

from traceanalyzer.analyzers.timeline.compute import timeline
from traceanalyzer.analyzers.timeline.result import Timeline
from traceanalyzer.trace import Trace

RANKS = ROOT / "fixtures" / "nccl_8ranks"

#: Length of a step; of its compute.
STEP, COMPUTE = 10 * MS, 6 * MS


def many(ranks: int, *, slow: int | None = None, steps: int = 3) -> list[Trace]:
    """Return ranks with one all_reduce at the end of each step; ``slow`` loads data first."""
    return [_rank(rank, steps, late=rank == slow) for rank in range(ranks)]


@cache
def of_many() -> Timeline:
    """Return the timeline of 64 ranks, of which rank 37 is slow."""
    return timeline(many(64, slow=37))


def _rank(rank: int, steps: int, *, late: bool) -> Trace:
    events = []
    for number in range(steps):
        at, delay = number * STEP, 2 * MS if late else 100 * US
        begin, ids = at + delay, {"correlation": number + 1}
        events += [
            step(number, at, STEP),
            host("user_annotation", "enumerate(DataLoader)#_Iter.__next__", at, delay - US),
            host("cuda_runtime", "cudaLaunchKernel", begin - US, US, **ids),
            device(GEMM, begin, COMPUTE, **ids),
            device(
                ALL_REDUCE, begin + COMPUTE, STEP - delay - COMPUTE, stream=20, **_recorded(number)
            ),
        ]
    return trace(events, rank=rank, host=f"node{rank // 8}")


def _recorded(number: int) -> dict[str, object]:
    return {"group": "0", "group_size": 64, "seq": number, "elements_in": 1024}
