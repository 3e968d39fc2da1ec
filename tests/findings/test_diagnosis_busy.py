"""Findings about busy time: unfused attention, memory-bound kernels, CUDA graph candidates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from comm_traces import US, device, host, step, trace
from diagnosing import BY_ID, measured, measurements
from wording import check_wording

from traceanalyzer.analyzers.kernels.compute import kernels
from traceanalyzer.analyzers.launches.compute import launches
from traceanalyzer.findings.rule import Measured
from traceanalyzer.run.loop import examine
from traceanalyzer.trace import Device, Trace

SOFTMAX = "void softmax_warp_forward<float, float, float, 10, false, false>"
LOG_SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 5, true, false>"
)
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"
COPY = "void at::native::elementwise_kernel<direct_copy_kernel_cuda(at::TensorIteratorBase&)>()"
FUSED = "triton_poi_fused_add_mul_0"
FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4> >(P)"


def launched(works: list[tuple[str, str, int]]) -> Iterator[dict[str, Any]]:
    """Yield operators with one launch and one kernel each: (operator, kernel, duration in us)."""
    at = 0
    for n, (operator, kernel, dur) in enumerate(works):
        yield host("cpu_op", operator, at, 8 * US)
        yield host("cuda_runtime", "cudaLaunchKernel", at + US, 5 * US, correlation=n)
        yield device(kernel, at + 10 * US, dur * US, correlation=n)
        at += (10 + dur) * US


def judged(rule: str, traced: Trace) -> list[Measured]:
    names = ["kernels", "gpu_idle", "info"]
    results = dict(examine([traced], names, use="findings").results)
    return measurements(rule, results.pop("kernels"), **results)


ATTENTION = [
    ("aten::bmm", GEMM, 300),
    ("aten::_softmax", SOFTMAX, 200),
    ("aten::baddbmm", GEMM, 100),
    ("aten::mm", GEMM, 200),
    ("aten::add", ADD, 200),
]


def test_unfused_attention_is_softmax_and_batched_products() -> None:
    (one,) = judged("unfused-attention", trace(launched(ATTENTION)))
    span = sum(10 + dur for *_, dur in ATTENTION) - 10
    assert (one.total_ns, one.size) == (600 * US, pytest.approx(600 / span))
    assert one.confidence == "high"
    products = sum(dur for operator, _, dur in ATTENTION if operator.endswith("bmm"))
    assert one.most_gain_ns == (600 - products / 2) * US, "a fused kernel computes them, too"


def test_pointwise_kernels_between_product_and_softmax_are_attention() -> None:
    works = [
        ("aten::bmm", GEMM, 300),
        ("aten::div", ADD, 50),
        ("aten::masked_fill", COPY, 30),
        ("aten::logsumexp", "void at::native::reduce_kernel<512, 1, ReduceOp<float> >(P)", 40),
        ("aten::softmax", SOFTMAX, 200),
        ("aten::dropout", ADD, 20),
        ("aten::bmm", GEMM, 100),
        ("aten::add", ADD, 200),
        ("aten::mm", GEMM, 200),
        ("aten::add", ADD, 200),
        ("aten::_softmax", SOFTMAX, 10),
    ]
    (one,) = judged("unfused-attention", trace(launched(works)))
    assert one.total_ns == (300 + 50 + 30 + 40 + 200 + 20 + 100 + 10) * US
    assert not judged("memory-bound-kernels", trace(launched(works))), "no time counts twice"


def test_copies_and_masks_between_product_and_softmax_do_not_part_them() -> None:
    """masked_fill copies the scores (a copy of the device, which is no kernel)."""
    mask = "void at::native::triu_tril_kernel<bool, int, false, 8, false>(P)"
    works = [("aten::bmm", GEMM, 300), ("aten::div", ADD, 50), ("aten::tril", mask, 5),
             ("aten::copy_", "Memcpy DtoD (Device -> Device)", 30), ("aten::masked_fill_", ADD, 70),
             ("aten::_softmax", SOFTMAX, 200), ("aten::bmm", GEMM, 100)]  # fmt: skip
    events = [
        event | {"kind": "gpu_memcpy" if event["name"].startswith("Memcpy") else event["kind"]}
        for event in launched(works)
    ]
    (one,) = judged("unfused-attention", trace(events))
    assert one.total_ns == (300 + 50 + 5 + 70 + 200 + 100) * US


def test_only_time_in_steps_counts() -> None:
    """The first product runs before the step."""
    works = launched([("aten::mm", SGEMM, 200), ("aten::mm", SGEMM, 300), ("aten::mm", GEMM, 100)])
    traced = trace([*works, step(1, 210 * US, 420 * US)])
    (one,) = judged("no-tensor-cores", traced)
    assert one.total_ns == 300 * US


@pytest.mark.parametrize(
    "more",
    [
        ("aten::_flash_attention_forward", FLASH, 100),
        ("FlashAttnFunc", "unknown_kernel", 100),
    ],
    ids=["kernel", "operator"],
)
def test_next_to_fused_attention_only_runs_of_softmax_and_products_are_unfused(
    more: tuple[str, str, int],
) -> None:
    """A softmax of a router, and products of experts, are no attention."""
    mm = ("aten::mm", GEMM, 20)
    router = [ATTENTION[1], mm, ATTENTION[0], mm, ATTENTION[2], mm]
    assert not judged("unfused-attention", trace(launched([*router, more])))
    (one,) = judged("unfused-attention", trace(launched([*ATTENTION, more, *router])))
    assert one.total_ns == 600 * US


@pytest.mark.parametrize("missing", ["aten::_softmax", "aten::bmm"])
def test_softmax_or_products_alone_are_not_attention(missing: str) -> None:
    works = [work for work in ATTENTION if work[0] not in (missing, "aten::baddbmm")]
    assert not judged("unfused-attention", trace(launched(works)))


def test_softmax_kernels_count_without_operators() -> None:
    works = [GEMM, ADD, SOFTMAX, GEMM, ADD, LOG_SOFTMAX, ADD, SOFTMAX, COPY]
    traced = trace(device(name, 1_000 * US * n, 100 * US) for n, name in enumerate(works))
    (one,) = judged("unfused-attention", traced)
    assert (one.total_ns, one.confidence) == (400 * US, "medium")
    check_wording(one.title, *one.evidence)


@pytest.mark.parametrize(
    "works",
    [(GEMM, LOG_SOFTMAX, ADD, ADD), (GEMM, SOFTMAX, "topk", GEMM), (GEMM, SOFTMAX)],
    ids=["loss", "router", "sampling"],
)
def test_softmax_kernels_of_other_uses_are_not_attention(works: Sequence[str]) -> None:
    traced = trace(device(name, 1_000 * US * n, 300 * US) for n, name in enumerate(works))
    assert not judged("unfused-attention", traced)


@pytest.mark.parametrize(
    ("works", "fusible"),
    [
        ([ADD, COPY, GEMM, ADD], 200),
        ([ADD, GEMM, COPY, GEMM], 0),
        ([ADD, ADD, ADD, GEMM], 600),
        ([ADD, FUSED, COPY], 0),
    ],
    ids=["pair", "apart", "equal", "fused"],
)
def test_the_longest_of_each_sequence_of_pointwise_kernels_remains(
    works: list[str], fusible: int
) -> None:
    lengths = {ADD: 300, COPY: 200, GEMM: 400, FUSED: 100}
    events = [device(name, 1_000 * n, lengths[name]) for n, name in enumerate(works)]
    events += [
        device(ADD, 300, 100, stream=20),
        device("Memcpy HtoD", 8_000, 500, kind="gpu_memcpy"),
    ]
    found = judged("memory-bound-kernels", trace(events))
    assert sum(one.total_ns or 0 for one in found) == fusible
    assert [one.size for one in found] == [pytest.approx(fusible / 8_500)] * bool(fusible)


def test_severity_of_memory_bound_kernels() -> None:
    rule = BY_ID["memory-bound-kernels"]
    sizes = (0.09, 0.1, 0.25, 0.35)
    assert [rule.severity(size) for size in sizes] == [None, "info", "warning", "critical"]


def test_inductor_kernels_are_not_memory_bound() -> None:
    traced = trace([device(FUSED, 0, 900), device(GEMM, 1_000, 100)])
    assert not judged("memory-bound-kernels", traced)


def stepwise(per_step: list[int], call: str = "cudaLaunchKernel") -> Trace:
    """Return steps with these numbers of launches of 2 us kernels, 40 us apart."""
    events, at, n = [], 0, 0
    for number, count in enumerate(per_step):
        events.append(step(number, at, count * 40 * US))
        for _ in range(count):
            events.append(host("cuda_runtime", call, at + US, 35 * US, correlation=n))
            events.append(device("gemm", at + 37 * US, 2 * US, correlation=n))
            at, n = at + 40 * US, n + 1
    return trace(events)


def launch_bound(traced: Trace) -> Measured:
    return measured(
        "launch-bound", examine(traced, ["gpu_idle"]).results["gpu_idle"], launches=launches(traced)
    )


def test_launches_per_step() -> None:
    assert launches(stepwise([30, 20])).steps["launches"].to_list() == [30, 20]


def test_equal_launches_are_cuda_graph_candidates() -> None:
    equal = launch_bound(stepwise([30, 30, 30]))
    assert any("30 launches" in sentence for sentence in equal.evidence)
    assert "CUDA graph" in equal.advice
    for other in (stepwise([30, 29, 30]), stepwise([30, 30])):
        assert not any("launches each" in sentence for sentence in launch_bound(other).evidence)


def test_graph_launches_are_not_candidates() -> None:
    graphs = launch_bound(stepwise([30, 30, 30], "cudaGraphLaunch"))
    assert not any("launches each" in sentence for sentence in graphs.evidence)


SGEMM = "ampere_sgemm_128x64_nn"


def test_kernel_rules_do_not_overlap() -> None:
    works = [
        ("aten::bmm", SGEMM, 200),
        ("aten::_softmax", SOFTMAX, 100),
        ("aten::mm", SGEMM, 300),
        ("aten::add", ADD, 400),
        ("aten::add", ADD, 500),
    ]
    traced = trace(launched(works))
    rules = ("unfused-attention", "no-tensor-cores", "memory-bound-kernels")
    by_rule = {rule: judged(rule, traced)[0] for rule in rules}
    assert [one.total_ns for one in by_rule.values()] == [300 * US, 300 * US, 400 * US]
    assert sum(one.total_ns or 0 for one in by_rule.values()) <= kernels(traced).busy_ns
    assert all(BY_ID[rule].severity(one.size) for rule, one in by_rule.items())
    check_wording(by_rule["no-tensor-cores"].title, *by_rule["no-tensor-cores"].evidence)


def test_attention_products_below_threshold_count_for_tensor_cores() -> None:
    works = [("aten::bmm", SGEMM, 50), ("aten::_softmax", SOFTMAX, 30), ("aten::mm", SGEMM, 920)]
    (one,) = judged("no-tensor-cores", trace(launched(works)))
    assert one.total_ns == 970 * US


def test_products_in_single_precision_have_their_place() -> None:
    events = [*launched([("aten::mm", SGEMM, 50), ("aten::mm", GEMM, 50)])]
    frame = host("python_function", "vae.py(291): decode", 0, 30 * US)
    (one,) = judged("no-tensor-cores", trace([*events, frame]))
    assert "in decode (vae.py:291)" in one.title


DGEMM = "void cutlass::Kernel2<cutlass_80_simt_dgemm_128x64_8x5_nn_align1>(Params)"
UNALIGNED = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_64x64_nn_align2>(Params)"


@pytest.mark.parametrize("kernel", [DGEMM, ADD.replace("<float>", "<double>")])
def test_double_precision_is_a_finding_where_products_use_lower_precision(kernel: str) -> None:
    works = [("aten::mm", GEMM, 300), ("aten::linear", kernel, 200), ("aten::mm", GEMM, 300)]
    traced = trace(launched(works))
    (one,) = judged("double-precision", traced)
    assert one.total_ns == 200 * US
    assert "launched by aten::linear" in one.title
    (other,) = judged("one-kernel", traced) or [one]
    assert other is one or other.explained == {"double-precision": 1.0}
    assert not judged("double-precision", trace(launched(works[1:2] * 3)))


@pytest.mark.parametrize(
    ("gpu", "slow"), [("NVIDIA GeForce RTX 4090", True), ("NVIDIA H100 80GB HBM3", False)]
)
def test_double_precision_on_a_gpu_that_is_slow_in_it(gpu: str, *, slow: bool) -> None:
    kernel = "gpu_broadcast(CuDeviceArray<Float64, 3, 1>)"
    devices = (Device(0, name=gpu),)
    found = judged("double-precision", trace(launched([("", kernel, 300)] * 3), devices=devices))
    assert [one.confidence for one in found] == ["low"] * slow


def test_kernels_for_unaligned_rows_are_a_finding_unless_shapes_are_known() -> None:
    works = [("aten::mm", GEMM, 300), ("aten::linear", UNALIGNED, 200), ("aten::mm", DGEMM, 300)]
    (one,) = judged("unaligned-products", trace(launched(works)))
    assert one.total_ns == 200 * US
    assert "launched by aten::linear" in one.title
