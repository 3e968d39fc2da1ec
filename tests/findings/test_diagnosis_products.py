"""Findings about matrix products and convolutions far from the roof of the GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from diagnosing import measurements

import traceanalyzer as ta
from traceanalyzer.findings.judge import RULES
from traceanalyzer.findings.rule import Measured
from traceanalyzer.run.loop import examine
from traceanalyzer.schema import ON_REQUEST

ROOT = Path(__file__).parents[2]
TRANSFORMER = ROOT / "fixtures" / "transformer" / "rank0.json.gz"
KINETO = ROOT.parent / "shared" / "data" / "chrome" / "kineto"
H100 = "NVIDIA H100 80GB HBM3"
#: TFLOP/s of dense BF16 and FP32 of the data sheet.
BF16, FP32 = 989.5e12, 67e12
TYPES = {"bf16": "c10::BFloat16", "fp32": "float"}
GEMM = "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"
SGEMM = "ampere_sgemm_128x64_tn"
SOFTMAX = "void softmax_warp_forward<float, float, float, 10, false, false>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"

Call = tuple[str, list[list[int]], str, str, float]


def write(path: Path, calls: list[Call], gpu: str = H100) -> Path:
    """Write a trace of operators with one kernel each: (name, dims, type, kernel, us)."""
    events: list[dict[str, Any]] = []
    at = 1000.0
    for n, (name, dims, type_, kernel, dur) in enumerate(calls, 1):
        args = {"Input Dims": dims, "Input type": [TYPES[type_]] * len(dims)}
        slices = [
            ("cpu_op", name, at, 8, 1, {**args, "External id": n}),
            ("cuda_runtime", "cudaLaunchKernel", at + 1, 5, 1, {"correlation": n}),
            ("kernel", kernel, at + 10, dur, 7, {"device": 0, "stream": 7, "correlation": n}),
        ]
        events += [
            {"ph": "X", "cat": cat, "name": what, "ts": ts, "dur": took, "pid": 1, "tid": tid}
            | {"args": arguments}
            for cat, what, ts, took, tid, arguments in slices
        ]
        at += 10 + dur
    trace = {"deviceProperties": [{"id": 0, "name": gpu}], "traceEvents": events}
    path.write_text(json.dumps(trace))
    return path


def product(m: int, k: int, n: int, us: float, kernel: str = GEMM, type_: str = "bf16") -> Call:
    return "aten::mm", [[m, k], [k, n]], type_, kernel, us


def found(path: Path) -> list[Measured]:
    examined = examine(path, use="findings")
    return measurements("far-from-roof", examined.results["efficiency"], **examined.results)


@pytest.mark.parametrize(("us", "n"), [(279.5, 0), (400, 1)])
def test_products_that_are_about_equal_lose_nothing(tmp_path: Path, us: float, n: int) -> None:
    calls = [product(4096, 4096, 4096, 277), product(4096, 4096, 4104, us)]
    assert len(found(write(tmp_path / "a.json", calls))) == n


@pytest.mark.parametrize(("us", "reach"), [(200, 2 * 4096**3 / BF16 / 200e-6), (0, 1)])
def test_cost_is_the_time_above_what_others_reach_of_the_roof(
    tmp_path: Path, us: float, reach: float
) -> None:
    calls = [product(4096, 4096, 4097, 1000), product(4096, 4096, 4096, us)]
    (one,) = found(write(tmp_path / "a.json", calls if us else calls[:1]))
    roof_ns = 2 * 4096 * 4096 * 4097 / BF16 * 1e9
    assert one.total_ns == pytest.approx(1_000_000 - roof_ns / reach, abs=2)
    assert one.size == pytest.approx((1_000_000 - roof_ns) / (1000 + us) / 1000, rel=0.01)
    assert one.confidence == "high"
    assert "16 bytes" in one.advice


@pytest.mark.matrix
def test_reason_is_the_shape(tmp_path: Path) -> None:
    small = found(write(tmp_path / "a.json", [product(128, 128, 128, 100)]))[0]
    assert "more work per product" in small.advice
    large = found(write(tmp_path / "b.json", [product(4096, 4096, 4096, 1000)]))[0]
    assert "newer library" in large.advice
    assert large.confidence == "medium"


def test_kernels_of_other_findings_are_not_counted(tmp_path: Path) -> None:
    attention: list[Call] = [
        ("aten::bmm", [[16, 512, 64], [16, 64, 512]], "bf16", GEMM, 500),
        ("aten::_softmax", [[16, 512, 512]], "bf16", SOFTMAX, 500),
        ("aten::mm", [[2048, 2048], [2048, 2048]], "bf16", GEMM, 300),
    ]
    (one,) = found(write(tmp_path / "a.json", attention))
    assert one.total_ns == pytest.approx(300_000 - 2 * 2048**3 / BF16 * 1e9, abs=2)
    # without attention, the batched product counts
    (one,) = found(write(tmp_path / "b.json", [attention[0], attention[2]]))
    assert one.total_ns is not None
    assert one.total_ns > 700_000
    plain = product(512, 512, 512, 400, SGEMM, "fp32")
    assert not found(write(tmp_path / "c.json", [plain]))  # no-tensor-cores counts it
    mostly_fast = [plain, *[product(8192, 8192, 8192, 2000)] * 3]
    (one,) = found(write(tmp_path / "d.json", mostly_fast))  # below its threshold
    assert one.total_ns == pytest.approx(400_000 - 2 * 512**3 / FP32 * 1e9, abs=2)
    assert "TF32" in one.advice
    copies: list[Call] = [("aten::mm", [[512, 512], [512, 512]], "bf16", ADD, 300)]
    assert not found(write(tmp_path / "e.json", copies))


def test_unknown_gpus_are_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.json", [product(128, 128, 128, 100)], gpu="NVIDIA X999")
    rows = ta.diagnose(path).rules.filter(rule="far-from-roof")
    assert rows["status"].to_list() == ["skipped"]
    assert "X999" in rows["why"][0]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([("aten::mm", [], "bf16", GEMM, 100.0)], "no input shapes"),
        ([("aten::add", [[4, 4]], "bf16", ADD, 100.0)], "no matrix product"),
    ],
)
def test_missing_data_is_named(tmp_path: Path, calls: list[Call], why: str) -> None:
    path = write(tmp_path / "a.json", calls)
    if "shapes" in why:
        path.write_text(path.read_text().replace('"Input Dims": [], "Input type": [], ', ""))
    rows = ta.diagnose(path).rules.filter(rule="far-from-roof")
    assert why in rows["why"][0]


@pytest.mark.matrix
def test_finding_on_a_transformer() -> None:
    """The product with an unaligned vocabulary runs at 0.21e15 FLOP/s."""
    (one,) = found(TRANSFORMER)
    rows = ta.efficiency(TRANSFORMER).operators
    unaligned = rows.filter(operator="aten::mm", why="unaligned")
    assert one.total_ns is not None
    assert unaligned["lost_ns"].sum() > one.total_ns > 0.8 * unaligned["lost_ns"].sum()
    assert "50257" in one.evidence[0]


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("function", [ta.diagnose, ta.report])
def test_a_trace_in_memory_gives_the_same(function: Any) -> None:
    trace = ta.read(TRANSFORMER, columns=ON_REQUEST)
    span = int(trace.events["ts"].max() - trace.events["ts"].min())
    window = {"since_ns": span // 6, "until_ns": 5 * span // 6}
    of_trace, of_file = (function(one, **window).to_dict() for one in (trace, TRANSFORMER))
    assert of_trace == of_file
    assert "far-from-roof" in json.dumps(of_file)


@pytest.mark.sample(2)
@pytest.mark.skipif(not KINETO.exists(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", ["b200_rank0of8_eager", "h100_qwen_inference"])
def test_products_on_real_traces_are_those_of_efficiency(name: str) -> None:
    path = KINETO / f"{name}.json.gz"
    examined: Any = examine(path, ["efficiency"], use="findings").results["efficiency"]
    columns = ["operator", "shape", "precision", "calls", "device_ns", "lost_ns"]
    products, every = (
        one.operators.filter(kind="gemm").select(columns).sort(columns)
        for one in (examined, ta.efficiency(path))
    )
    assert products.height > 2
    assert products.equals(every)


def test_rule_is_registered() -> None:
    assert "far-from-roof" in {rule.id for rule in RULES}


UNALIGNED = "cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align1"


def test_sizes_of_unaligned_kernels(tmp_path: Path) -> None:
    """Any odd size may be that of rows: the layout of transposed matrices is not recorded."""
    calls = [product(4097, 4096, 4096, 1000, UNALIGNED), product(4096, 4096, 4096, 200)]
    (one,) = found(write(tmp_path / "a.json", calls))
    assert "16 bytes" in one.advice
    assert "newer library" not in one.advice
    aligned = [product(4097, 4096, 4096, 1000), calls[1]]
    (one,) = found(write(tmp_path / "b.json", aligned))
    assert "newer library" in one.advice
