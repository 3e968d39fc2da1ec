"""The function that most launches of exposed work have in common is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from comm_traces import MS, US, device, host, step, trace

import traceanalyzer as ta
from traceanalyzer.analyzers.common.gpu_api import Api
from traceanalyzer.analyzers.common.names import called_in
from traceanalyzer.analyzers.gpu_idle.activities import Activity, advice_on_host_code
from traceanalyzer.findings.communication import _of_place
from traceanalyzer.findings.rule import Answers
from traceanalyzer.run.loop import examine

COPY, GATHER, SYNC = "gpu_memcpy", "ncclDevKernel_AllGather_RING_LL", "cudaStreamSynchronize"
WEIGHTS, INPUT = "accelerate/utils/modeling.py(310): set_weights", "run.py(9): feed"


def _steps(work: str, calls: list[tuple[str, str, int]]) -> Iterator[dict[str, Any]]:
    """Yield steps in which functions, in an annotation, launch work of some length in ms."""
    for number in range(4):
        begin = number * 100 * MS
        yield step(number, begin, 100 * MS)
        for nth, (outer, inner, ms) in enumerate(calls):
            at, call = begin + nth * 20 * MS, 10 * number + nth
            yield host("python_function", outer, at, 19 * MS)
            yield host("user_annotation", "nccl:gather", at, 19 * MS)
            yield host("python_function", inner, at, 18 * MS)
            yield host("python_function", "torch/_ops.py(1158): __call__", at, 17 * MS)
            yield host("cuda_runtime", "cudaLaunchKernel", at, US, correlation=call)
            if work == SYNC:
                yield host("cuda_runtime", SYNC, at + US, 3 * US)
                yield device("gemm", at + 4 * US + ms * MS, US, correlation=call)
            elif work == COPY:
                copy = device("Memcpy HtoD (Pageable -> Device)", at, ms * MS, correlation=call)
                yield copy | {"kind": COPY}
            else:
                yield device(work, at, ms * MS, correlation=call)
        yield device("gemm", begin + 90 * MS, 5 * MS)


@pytest.mark.parametrize(
    ("work", "kind"), [(COPY, "memory"), (GATHER, "communication"), (SYNC, "synchronisation")]
)
def test_function_around_most_of_the_cost_is_named(work: str, kind: str) -> None:
    line = "flux.py(480): block"
    mostly = [(line, WEIGHTS, 9), (line, WEIGHTS, 9), (line, "torch/_tensor.py(9): to", 2)]
    for calls, place in (
        (mostly, " in set_weights (accelerate/utils/modeling.py:310), block (flux.py:480)"),
        ([*mostly, ("main.py(1): main", INPUT, 12)], ""),
        ([(line, INPUT, 9), (INPUT, INPUT, 9), (line, WEIGHTS, 2)], " in feed (run.py:9)"),
    ):
        results = examine([trace(_steps(work, calls))], ["kernels"], use="findings").results
        assert called_in(Answers(results).place(kind)) == place


def test_what_runs_for_most_of_the_recording_is_no_place() -> None:
    rows = [host("python_function", "train.py(1): main", 0, 400 * MS), *_steps(COPY, [
        ("a.py(1): one", "b.py(1): first", 9), ("a.py(2): two", "b.py(2): second", 9),
    ])]  # fmt: skip
    results = examine([trace(rows)], ["kernels"], use="findings").results
    assert called_in(Answers(results).place("memory")) == ""


@pytest.mark.parametrize("late", [150, 40])
def test_function_around_most_late_launches_is_named(late: int) -> None:
    """Not that of the longest gap: 400 us in forward before the first of 160 short kernels."""
    forward, experts, rows = "model.py(88): forward", "transformers/moe.py(240): experts", []
    for number in range(4):
        begin = number * 10 * MS
        rows += [
            step(number, begin, 10 * MS),
            host("python_function", forward, begin, 4 * MS),
            host("python_function", experts, begin + MS, late * 20 * US - 1),
        ]
        for nth in range(160):
            at, call = begin + MS + nth * 20 * US, 1000 * number + nth
            rows.append(host("cuda_runtime", "cudaLaunchKernel", at, 10 * US, correlation=call))
            rows.append(device("gemm", at + 11 * US, 5 * US, correlation=call))
        rows.append(device("step", begin + 5 * MS, 400 * US))
    (one,) = (one for one in ta.diagnose(trace(rows)).findings if one.id == "launch-bound")
    mostly = late == 150
    named = "in experts (transformers/moe.py:240), forward (model.py:88)"
    assert (named in one.title, "kernels of experts" in one.advice) == (mostly, mostly)


@pytest.mark.parametrize(
    ("function", "kind", "part"),
    [
        ("deepspeed/runtime/zero/stage_1_and_2.py(2020): step", "all_gather", "ZeRO-1"),
        ("torch/optim/optimizer.py(480): step", "all_reduce", ""),
        ("megatron/core/fsdp/unit.py(9): unshard", "all_gather", ""),
        ("torch/nn/utils/clip_grad.py(216): clip_grad_norm_", "all_reduce", "_foreach_norm"),
    ],
)
def test_advice_on_collectives_fits_their_place(function: str, kind: str, part: str) -> None:
    traced = trace(_steps(GATHER, [(function, function, 9)]))
    text = _of_place(Answers(examine([traced], ["kernels"], use="findings").results), kind)
    assert part in text
    assert bool(text) == bool(part)


@pytest.mark.parametrize(
    ("runs", "gathers", "once"),
    [
        (
            "transformers/generation/utils.py(2215): generate",
            "zero/coordinator.py(290): fetch",
            True,
        ),
        ("transformers/trainer.py(310): training_step", "zero/coordinator.py(290): fetch", False),
        (
            "transformers/generation/utils.py(2215): generate",
            "tensor_parallel/layers.py(9): f",
            False,
        ),
    ],
)
def test_parameters_that_are_gathered_for_each_token(runs: str, gathers: str, once: bool) -> None:
    rows = []
    for number in range(4):
        at = number * 100 * MS
        rows += [
            step(number, at, 100 * MS),
            host("python_function", runs, at, 90 * MS),
            host("python_function", gathers, at, 20 * MS),
            host("cuda_runtime", "cudaLaunchKernel", at, US, correlation=2 * number),
            device(GATHER, at + US, 30 * MS, correlation=2 * number),
            host("cuda_runtime", "cudaLaunchKernel", at + 25 * MS, US, correlation=2 * number + 1),
            device("gemm", at + 40 * MS, 20 * MS, correlation=2 * number + 1),
        ]
    results = examine([trace(rows)], ["kernels"], use="findings").results
    text = _of_place(Answers(results), "all_gather")
    assert ("ds3_gather_for_generation" in text) == once


@pytest.mark.parametrize(
    ("function", "part"),
    [
        ("accelerate/hooks.py(330): pre_forward", "offloaded"),
        ("vllm/worker/cache_engine.py(101): swap_out", "KV cache"),
        ("accelerate/utils/operations.py(150): send_to_device", "pin_memory"),
    ],
)
def test_advice_on_copies_fits_their_place(function: str, part: str) -> None:
    found = ta.diagnose(trace(_steps(COPY, [("loop.py(1): run", function, 15)]))).findings
    (one,) = (one for one in found if one.id == "exposed-copies")
    assert part in one.advice


@pytest.mark.parametrize(("operator", "part"), [("aten::lstm", "flatten"), ("aten::mm", "clone")])
def test_advice_on_copies_fits_their_operator(operator: str, part: str) -> None:
    rows = []
    for row in _steps(COPY, [("loop.py(1): run", "torch/nn/modules/rnn.py(9): forward", 15)]):
        rows.append(
            row | {"name": "Memcpy DtoD (Device -> Device)"} if row["kind"] == COPY else row
        )
        if row["name"] == "torch/_ops.py(1158): __call__":
            rows.append(row | {"kind": "cpu_op", "name": operator})
    (one,) = (one for one in ta.diagnose(trace(rows)).findings if one.id == "exposed-copies")
    assert part in one.advice


def test_lookups_of_compiled_code_are_no_compilation() -> None:
    one = Activity(place="TorchDynamo Cache Lookup")
    api = Api(hip=False, pytorch=True, trains=True)
    text = advice_on_host_code(one, api, code="", on_host=False)
    assert "graph_breaks" in text
    assert "recompiles" not in text
