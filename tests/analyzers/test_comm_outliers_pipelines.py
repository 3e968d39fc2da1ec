"""Pipeline stages: wait time of the schedule, and of a stage that works longer or loads data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from comm_traces import MS, US, device, host, step, trace

import traceanalyzer as ta
from traceanalyzer.trace import Trace

SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
STEPS = 4
FORWARD, BACKWARD, TRANSFER = 2 * MS, 4 * MS, 100 * US


def pipeline(
    stages: int,
    batches: int,
    slower: Mapping[int, float] | None = None,
    loading: Mapping[int, int] | None = None,
) -> list[Trace]:
    """Return ranks of steps with all forward passes, then all backward passes.

    Args:
        stages: number of ranks.
        batches: micro-batches of a step.
        slower: by stage, how many times as long its kernels take.
        loading: by stage, time of its data loader before each forward pass.
    """
    free, events = [0] * stages, defaultdict[int, list[dict[str, Any]]](list)
    seq, slower, loading = defaultdict[int, int](int), slower or {}, loading or {}

    def exchange(edge: int) -> None:
        """A transfer between two stages, which both wait for."""
        ends = (edge, edge + 1)
        end = max(free[rank] for rank in ends) + TRANSFER
        for rank in ends:
            about = {"collective": "send" if rank == edge else "recv", "dtype": "bfloat16",
                     "elements_in": 1 << 20,
                     "group": f"pp{edge}", "group_size": 2, "group_ranks": f"[{edge}, {edge + 1}]",
                     "seq": seq[edge], "stream": 20}  # fmt: skip
            events[rank].append(device(SEND, free[rank], end - free[rank], **about))
            free[rank] = end
        seq[edge] += 1

    def work(rank: int, name: str, ns: int) -> None:
        took = round(ns * slower.get(rank, 1))
        events[rank].append(device(f"{name}_gemm", free[rank], took))
        free[rank] += took

    for number in range(STEPS):
        begin = max(free)
        free[:] = [begin] * stages
        for what, rank in _order(stages, batches):
            if what == "forward" and rank in loading:
                events[rank].append(
                    host("user_annotation", "load_batch", free[rank], loading[rank])
                )
                free[rank] += loading[rank]
            if what == "exchange":
                exchange(rank)
            else:
                work(rank, what, FORWARD if what == "forward" else BACKWARD)
        for rank in range(stages):
            events[rank].append(step(number, begin, max(free) - begin))
    return [trace(events[rank], rank, world_size=stages) for rank in range(stages)]


def _order(stages: int, batches: int) -> Iterator[tuple[str, int]]:
    """Yield the work of a step: a kernel of a stage, or a transfer from a stage to the next."""
    for _ in range(batches):
        for rank in range(stages):
            yield from [("exchange", rank - 1)] * (rank > 0)
            yield "forward", rank
    for _ in range(batches):
        for rank in reversed(range(stages)):
            yield from [("exchange", rank)] * (rank < stages - 1)
            yield "backward", rank


def bubble_frac(stages: int, batches: int) -> float:
    return (stages - 1) / (batches + stages - 1)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("stages", "batches"), [(2, 4), (4, 8), (4, 4)])
def test_equal_stages_wait_for_the_schedule(stages: int, batches: int) -> None:
    traces = pipeline(stages, batches)
    comm = ta.comm_outliers(traces)
    assert comm.pipeline == (stages, batches)
    assert comm.waits_for_schedule
    assert comm.view().scalars["straggler"] is None
    found = {one.id: one for one in ta.diagnose(traces).findings}
    assert "straggler" not in found
    assert 0 < found["pipeline-bubble"].cost_frac <= bubble_frac(stages, batches) + 1e-6


@pytest.mark.sample(3)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_slow_stage_is_the_straggler(stage: int) -> None:
    traces = pipeline(4, 8, slower={stage: 1.8})
    comm = ta.comm_outliers(traces)
    assert not comm.waits_for_schedule
    assert comm.view().scalars["straggler"] == stage
    found = {one.id: one for one in ta.diagnose(traces).findings}
    assert found["straggler"].rank == stage
    assert " 1.80 times" in found["straggler"].title
    bubble = found.get("pipeline-bubble")
    assert bubble is None or bubble.cost_frac <= bubble_frac(4, 8)


def test_waits_beyond_the_bubble_go_to_the_cause_on_the_late_stage() -> None:
    """Stages work as long, but the first one loads data before each micro-batch."""
    traces = pipeline(2, 8, loading={0: 10 * MS})
    assert not ta.comm_outliers(traces).waits_for_schedule
    found = {one.id: one for one in ta.diagnose(traces).findings}
    cause = next(iter(found.values()))
    assert cause.rank == 0
    assert cause.id in ("data-loading", "unknown-idleness", "host-code")
    assert [effect.id for effect in cause.effects] == ["straggler"]
    assert sum(one.cost_frac or 0 for one in found.values()) < 1


def test_balanced_pipeline_of_others(shared: Path) -> None:
    path = shared / "data/causes/chrome/balanced_pipeline"
    if not path.exists():
        pytest.skip(f"no folder {path}")
    comm = ta.comm_outliers(path)
    assert comm.pipeline == (2, 4)
    assert comm.waits_for_schedule
    assert comm.view().scalars["straggler"] is None
    assert ta.diagnose(path).findings[0].id == "pipeline-bubble"
