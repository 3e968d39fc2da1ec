"""Warm-up steps count in no share of step time, whichever command names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import traceanalyzer as ta

RANKS, STEPS, LATE_US, STEP_US = 4, 8, 4_000, 20_000
GEMM_INPUTS = {"Input Dims": [[2048] * 2] * 2, "Input type": ["c10::BFloat16"] * 2}
FLOPS_OF_STEP = 8 * 2 * 2048**3


def job(folder: Path, warm_up: int) -> list[Path]:
    """Write a run of 4 ranks: rank 2 is 4 ms late in each step of 20 ms, more in warm-up."""
    paths = [folder / f"rank{rank}.json" for rank in range(RANKS)]
    for rank, path in enumerate(paths):
        path.write_text(json.dumps(recording(rank, warm_up)))
    return paths


def recording(rank: int, warm_up: int) -> dict[str, Any]:
    events: list[dict[str, Any]] = []
    host = {"ph": "X", "pid": 100 + rank, "tid": 1}

    def launch(name: str, at: int, start: int, dur: int, stream: int, **more: Any) -> None:
        link = {"correlation": len(events)}
        kernel = {"ph": "X", "cat": "kernel", "name": name, "pid": rank, "tid": stream}
        on_device = {**link, "device": rank, "stream": stream, **more}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 8}
        events.append({**host, **call, "args": link})
        events.append({**kernel, "ts": start, "dur": dur, "args": on_device})

    start = 1_000
    for step in range(STEPS):
        slow = 5 if step < warm_up else 1
        late, length = (LATE_US * 3 * slow if slow > 1 else LATE_US), STEP_US * slow
        delay = late if rank == 2 else 0
        mark = {"cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        events.append({**host, **mark, "ts": start, "dur": length})
        for call in range(8):
            at = start + delay + 100 + 1_000 * call
            gemm = {"cat": "cpu_op", "name": "aten::mm", "args": GEMM_INPUTS}
            events.append({**host, **gemm, "ts": at - 4, "dur": 20})
            launch("ampere_bf16_gemm_128x128", at, at + 15, 950, 7)
        arrival, end = start + delay + 8_250, start + late + 9_500
        collective = {"Collective name": "allreduce", "In msg nelems": 10**6, "dtype": "Float"}
        group = {"Process Group Name": "0", "Group size": RANKS, "Seq": step}
        name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*, x)"
        launch(name, arrival - 50, arrival, end - arrival, 8, **collective, **group)
        start += length
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": i, "name": "NVIDIA A100-SXM4-40GB"} for i in range(RANKS)],
        "distributedInfo": {"rank": rank, "world_size": RANKS, "backend": "nccl"},
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": events,
    }


@pytest.mark.parametrize("warm_up", [0, 1, 2])
def test_shares_of_step_time_do_not_count_warm_up(tmp_path: Path, warm_up: int) -> None:
    paths, counted = job(tmp_path, warm_up), STEPS - warm_up
    assert ta.steps(paths).view().scalars["warm_up_count"] == warm_up * RANKS
    worst = ta.comm_outliers(paths).ranks.row(0, named=True)
    assert (worst["rank"], worst["straggler_steps"]) == (2, counted)
    of_others = LATE_US / STEP_US * (RANKS - 1) / RANKS  # in the mean of all ranks
    assert worst["straggler_frac"] == pytest.approx(of_others, rel=0.01)


@pytest.mark.parametrize("warm_up", [0, 1])
def test_mfu_does_not_count_warm_up(tmp_path: Path, warm_up: int) -> None:
    result = ta.efficiency(job(tmp_path, warm_up))
    assert result.ranks["steps"].to_list() == [STEPS - warm_up] * RANKS
    assert result.mfu_frac == pytest.approx(FLOPS_OF_STEP / (312e12 * STEP_US * 1e-6))
    assert result.steps.filter("warm_up").height == warm_up * RANKS


def test_overlap_says_that_it_counts_warm_up(tmp_path: Path) -> None:
    result = ta.overlap(job(tmp_path, 1), by="step")
    assert result.steps.filter("warm_up")["step"].unique().to_list() == ["ProfilerStep#0"]
    assert "ProfilerStep#0" in result.view().verdict
