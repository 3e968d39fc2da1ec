"""Searches for the fastest kernel are one finding, and other findings do not count them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from comm_traces import US, device, host, step, trace

import traceanalyzer as ta

CONV = "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x32"
ROPE = "_rope_fused_kernel_0d1d2d3de"
AUTOTUNER = "triton/runtime/autotuner.py(192): run"
BENCH = "triton/testing.py(96): do_bench"
STEP, WORK, SEARCH = 2_000 * US, 1_000 * US, 8_000 * US


def steps(*, triton: bool, tunes: bool = True) -> Iterator[dict[str, Any]]:
    """Yield six steps with one kernel each; the fourth one measures 40 more."""
    at, call = 0, 0
    for number in range(6):
        search = SEARCH * (tunes and number == 3)
        yield step(number, at, STEP + search)
        yield host("python_function", "model.py(7): forward", at, STEP + search)
        operator = at + 10 * US
        if triton:
            yield host("python_function", AUTOTUNER, operator, search + 100 * US)
        else:
            yield host("cpu_op", "aten::cudnn_convolution", operator, search + 100 * US)
        if search and triton:
            yield host("python_function", BENCH, operator + 10 * US, search)
        for n in range(40 * bool(search)):
            moment = operator + 20 * US + n * SEARCH // 40
            yield host("cuda_runtime", "cudaLaunchKernel", moment, US, correlation=call)
            yield device(ROPE if triton else CONV, moment + 5 * US, 100 * US, correlation=call)
            yield host("cuda_runtime", "cudaEventSynchronize", moment + 10 * US, 100 * US)
            call += 1
        launch = operator + search + 50 * US
        yield host("cuda_runtime", "cudaLaunchKernel", launch, US, correlation=call)
        yield device(ROPE if triton else CONV, launch + 5 * US, WORK, correlation=call)
        call += 1
        at += STEP + search


@pytest.mark.parametrize("triton", [True, False])
def test_measuring_kernels_is_one_finding_and_explains_the_others(triton: bool) -> None:
    found = {one.id: one for one in ta.diagnose([trace(steps(triton=triton))]).findings}
    tuning = found["kernel-tuning"]
    # without the call that follows it in the same range
    assert tuning.cost_ns == pytest.approx(SEARCH / 6, rel=0.02)
    assert tuning.gain_ns == pytest.approx(SEARCH / 6, rel=0.02)
    assert tuning.step == "ProfilerStep#3"
    assert ("cache_results" in tuning.advice) == triton
    assert "uneven-steps" in {one.id for one in tuning.effects}
    assert "uneven-steps" not in found


@pytest.mark.parametrize("triton", [True, False])
def test_launches_of_tuned_kernels_are_no_tuning(triton: bool) -> None:
    found = ta.diagnose([trace(steps(triton=triton, tunes=False))]).findings
    assert "kernel-tuning" not in {one.id for one in found}


def test_memory_that_a_search_allocates_is_a_part_of_it() -> None:
    events = [*steps(triton=False)]
    (first,) = (one["ts"] for one in events if one["dur"] > SEARCH and one["kind"] == "cpu_op")
    for one in events:
        one["ts"] += 4 * STEP * (one["ts"] > first)  # the kernels of the search come later
        if one["ts"] <= first < one["ts"] + one["dur"]:
            one["dur"] += 4 * STEP
    events.append(host("cuda_runtime", "cudaMalloc", first + 5 * US, 4 * STEP - 10 * US))
    found = {one.id: one for one in ta.diagnose([trace(events)]).findings}
    tuning = found["kernel-tuning"]
    assert tuning.cost_ns == pytest.approx((SEARCH + 4 * STEP) / 6, rel=0.02)
    assert "memory-management" in {one.id for one in tuning.effects}
    assert "memory-management" not in found
