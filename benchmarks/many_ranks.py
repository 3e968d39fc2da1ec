"""Time and memory to combine the communication of many ranks, from generated parts.

    python -m benchmarks.many_ranks --ranks 1024 --collectives 2000 --groups 10

Every rank takes part in one group of all ranks and in smaller groups of neighbours or of every n-th
rank, as data, tensor and pipeline parallelism make them. Some are late in every third step.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers.comm_outliers.collectives import INSTANCES, Activity, Part
from traceanalyzer.analyzers.common.jobs import Recording

GPUS_PER_HOST, STEPS = 8, 20
STEP_NS, START_NS = 500_000_000, 1_780_000_000_000_000_000
LATE_NS = 30_000_000
SIZES = (8, 64, 16, 4, 128, 32, 2, 256, 512)


def members(group: int, ranks: int) -> tuple[np.ndarray, int]:
    """Return the number of the group of each rank, and the size of the groups."""
    every = np.arange(ranks)
    if group == 0:
        return every * 0, ranks
    size = min(SIZES[(group - 1) % len(SIZES)], ranks)
    # neighbours, or every n-th rank
    return (every // size, size) if group % 2 else (every % max(ranks // size, 1), size)


def parts(
    ranks: int, collectives: int, groups: int, late: dict[int, int], seed: int = 1
) -> list[Part]:
    """Return the part of each rank.

    Args:
        ranks: number of ranks.
        collectives: collectives of each rank.
        groups: process groups of each rank.
        late: time in ns that a rank is late in every third step.
        seed: of the random durations.
    """
    dice = np.random.default_rng(seed)
    order = np.arange(collectives)
    step = order * STEPS // collectives
    gap = STEP_NS * STEPS // collectives
    group = order % groups
    arrival = order * gap + dice.integers(0, gap // 4, (ranks, collectives))
    for rank, ns in late.items():
        arrival[rank] += np.where((step % 3 == 0) & (order % 10 == 0), ns, 0)
    end = np.empty_like(arrival)
    names = np.empty((ranks, collectives), dtype=object)
    sizes = np.empty(collectives, dtype=np.int32)
    for number in range(groups):
        mine, size = members(number, ranks)
        columns = np.flatnonzero(group == number)
        sizes[columns] = size
        for one in np.unique(mine):
            rows = np.flatnonzero(mine == one)
            done = arrival[np.ix_(rows, columns)].max(axis=0) + gap // 4
            end[np.ix_(rows, columns)] = done
            names[np.ix_(rows, columns)] = f"{number}_{one}"
    return [
        _part(rank, ranks, arrival[rank], end[rank], names[rank], sizes, step)
        for rank in range(ranks)
    ]


def _part(
    rank: int,
    ranks: int,
    start: np.ndarray,
    end: np.ndarray,
    group: np.ndarray,
    size: np.ndarray,
    step: np.ndarray,
) -> Part:
    n = len(start)
    known: dict[str, Any] = {
        "start": start + START_NS,
        "end": end + START_NS,
        "issued": start,
        "name": ["ncclDevKernel_AllReduce_Sum_bf16_RING_LL"] * n,
        "collective": ["allreduce"] * n,
        "dtype": ["BFloat16"] * n,
        "message_bytes": [8 << 20] * n,
        "group": group.tolist(),
        "group_size": size,
        "device": [rank % GPUS_PER_HOST] * n,
        "stream": [20] * n,
        "step": [f"ProfilerStep#{one}" for one in step.tolist()],
        "compute_ns": [0] * n,
        "memory_ns": [0] * n,
    }
    frame = pl.DataFrame({name: pl.Series(name, values) for name, values in known.items()})
    frame = frame.with_columns(seq=pl.int_range(pl.len()).over("group") + 1)
    instances = frame.select(
        (pl.col(name) if name in frame.columns else pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in INSTANCES.items()
    )
    edges = np.arange(STEPS + 1) * STEP_NS + START_NS
    steps = pl.DataFrame(
        {"step": [f"ProfilerStep#{i}" for i in range(STEPS)], "start": edges[:-1], "end": edges[1:]}
    )
    span = STEP_NS * STEPS
    path = f"run/rank{rank}.json.gz"
    host = f"node{rank // GPUS_PER_HOST}"
    return Part(
        rank=rank,
        path=path,
        host=host,
        world_size=ranks,
        shift_ns=START_NS,
        epoch_known=True,
        start_ns=0,
        instances=instances,
        steps=steps,
        activity=Activity(span, span * 9 // 10, int((end - start).sum()), 0),
        gpu="NVIDIA H100 80GB HBM3",
        node_gpus=GPUS_PER_HOST,
        recording=Recording(path, rank, ranks, "nccl", "NVIDIA", frozenset({1000 + rank}),
                            START_NS, START_NS + span),
    )  # fmt: skip


def main() -> None:
    """Print seconds and the largest memory of ``combine`` and of its texts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--collectives", type=int, default=2000)
    parser.add_argument("--groups", type=int, default=10)
    given = parser.parse_args()
    from traceanalyzer.analyzers.comm_outliers.compute import COMM_OUTLIERS

    late = {437 % given.ranks: LATE_NS, 11 % given.ranks: LATE_NS // 3}
    every = parts(given.ranks, given.collectives, given.groups, late)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    result = COMM_OUTLIERS.combine(every, COMM_OUTLIERS.options(), ())
    combined = time.perf_counter()
    view = result.view()
    end = time.perf_counter()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"parts {before:,.0f} MiB, peak {after:,.0f} MiB")
    print(f"combine {combined - start:.1f} s, view {end - combined:.1f} s")
    print(view.verdict)


if __name__ == "__main__":
    main()
