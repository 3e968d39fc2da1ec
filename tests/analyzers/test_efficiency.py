"""Efficiency of small synthetic traces, and of real ones against independent computations."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, US, device, host, step, trace
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.efficiency.compute import efficiency
from traceanalyzer.analyzers.efficiency.peaks import peaks_of
from traceanalyzer.analyzers.efficiency.result import Efficiency
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.schema import INPUTS
from traceanalyzer.trace import Device, Trace

H100 = "NVIDIA H100 80GB HBM3"
PEAK = 989.5
BF16 = "c10::BFloat16"
#: 2 x 4096^3 FLOPs: 138.9 us at the peak.
SQUARE = ([[4096, 4096], [4096, 4096]], [BF16, BF16])
FLOPS = 2 * 4096**3


def op(name: str, ts: int, dur: int, inputs: Any = None, **more: Any) -> dict[str, Any]:
    """Return an operator with (dims, types) or (dims, types, values); times in us."""
    texts = dict(zip(INPUTS, map(json.dumps, inputs or ()), strict=False))
    return host("cpu_op", name, ts * US, dur * US, **more) | texts


def kernel(at: int, start: int, dur: int, number: int, name: str = "gemm", **more: Any) -> Any:
    """Return a launch at a time and its kernel; times in us."""
    call = host("cuda_runtime", "cudaLaunchKernel", at * US, US, correlation=number)
    work = device(name, start * US, dur * US, correlation=number, **more)
    return {**call, **{key: more[key] for key in ("tid",) if key in more}}, work


def recorded(*events: Any, gpu: str | None = H100, rank: int = 0, **meta: Any) -> Trace:
    """Return a trace with the inputs of its operators."""
    rows = [row for one in events for row in (one if isinstance(one, tuple) else (one,))]
    plain = [{key: value for key, value in row.items() if key not in INPUTS} for row in rows]
    devices = (Device(0, gpu),) if gpu else ()
    result = trace(plain, rank, devices=devices, **meta)
    keys = ["kind", "name", "ts", "tid"]
    given = pl.DataFrame(
        [[row.get(key) for key in (*keys, *INPUTS)] for row in rows if "kind" in row],
        schema={
            "kind": pl.String, "name": pl.String, "ts": pl.Int64, "tid": pl.Int64,
            **dict.fromkeys(INPUTS, pl.String),
        },
        orient="row",
    )  # fmt: skip
    events_ = result.events.with_columns(pl.col("kind", "name").cast(pl.String))
    inputs = events_.join(given, on=keys, how="left", nulls_equal=True, maintain_order="left")
    columns = inputs.select(INPUTS).get_columns()
    return replace(result, events=result.events.with_columns(columns))


def one_product(**more: Any) -> Trace:
    """One step of 1 ms with one product of 200 us."""
    return recorded(
        step(1, 0, 1000 * US),
        op("aten::linear", 10, 50, SQUARE),
        op("aten::mm", 20, 30, SQUARE),
        kernel(30, 100, 200, 1),
        **more,
    )


def rows(result: Efficiency, *columns: str) -> list[tuple[Any, ...]]:
    return result.operators.select("operator", *columns).sort("operator").rows()


# --- one operator ------------------------------------------------------------------------------


def test_a_product_against_the_roof():
    result = efficiency(one_product())
    assert rows(result, "calls", "flops", "device_ns", "bound") == [
        ("aten::mm", 1, FLOPS, 200 * US, "compute")
    ]
    (row,) = result.operators.iter_rows(named=True)
    assert row["achieved_tflops"] == pytest.approx(FLOPS / 200e-6 / 1e12)
    assert row["achieved_gbps"] == pytest.approx(3 * 4096**2 * 2 / 200e-6 / 1e9)
    assert row["roof_ns"] == round(FLOPS / PEAK / 1e3)
    assert row["roof_frac"] == pytest.approx(FLOPS / PEAK / 1e3 / (200 * US))
    assert row["lost_ns"] == 200 * US - row["roof_ns"]
    assert result.mfu_frac == result.hfu_frac == pytest.approx(FLOPS / (1e-3 * PEAK * 1e12))
    assert result.covered_frac == 1


def test_an_operator_counts_if_it_calls_no_other_product():
    alone = recorded(op("aten::linear", 0, 50, SQUARE), kernel(30, 100, 200, 1))
    assert rows(efficiency(alone), "flops") == [("aten::linear", FLOPS)]


def test_an_operator_without_usable_inputs_leaves_kernels_to_its_caller():
    nested = recorded(
        op("aten::linear", 0, 50, SQUARE),
        op("aten::mm", 10, 30, ([[], []], ["", ""])),
        kernel(30, 100, 200, 1),
    )
    assert rows(efficiency(nested), "device_ns") == [("aten::linear", 200 * US)]


def test_kernels_on_parallel_streams_count_once():
    both = recorded(
        op("aten::mm", 0, 50, SQUARE),
        kernel(10, 100, 200, 1),
        kernel(20, 150, 200, 2, stream=8),
    )
    assert rows(efficiency(both), "calls", "kernels", "device_ns") == [("aten::mm", 1, 2, 250 * US)]


def test_bounds():
    small = ([[8, 8], [8, 8]], ["float", "float"])
    wide = ([[1 << 24]], ["float"])
    result = efficiency(
        recorded(
            op("aten::mm", 0, 9, SQUARE), kernel(1, 100, 200, 1),
            op("aten::exp", 10, 9, wide), kernel(11, 300, 60, 2),
            op("aten::add", 20, 9, small), kernel(21, 400, 2, 3),
        )
    )  # fmt: skip
    assert dict(rows(result, "bound")) == {
        "aten::mm": "compute", "aten::exp": "memory", "aten::add": "launch",
    }  # fmt: skip
    (exp,) = (row for row in result.operators.iter_rows(named=True) if row["bound"] == "memory")
    assert exp["roof_frac"] == pytest.approx(2 * 4 * 2**24 / 3350 / 60_000)


@pytest.mark.parametrize(
    ("shapes", "type_", "kernel_name", "precision", "why"),
    [
        ([[4096, 4096], [4096, 4096]], "float", "sgemm", "fp32", "FP32 without TF32"),
        ([[4096, 4096], [4096, 4096]], "float", "sm80_gemm_tf32f32", "tf32", None),
        ([[4096, 4096], [4096, 4095]], BF16, "gemm", "bf16", "unaligned"),
        ([[512, 4096], [4096, 512]], BF16, "gemm", "bf16", "small"),
        ([[511, 4096], [4096, 509]], BF16, "gemm", "bf16", "unaligned, small"),
        ([[4096, 4096], [4096, 4096]], BF16, "gemm", "bf16", None),
    ],
)
def test_why_a_product_is_slow(shapes, type_, kernel_name, precision, why):
    example = recorded(
        op("aten::mm", 0, 9, (shapes, [type_, type_])), kernel(1, 100, 9000, 1, kernel_name)
    )
    assert rows(efficiency(example), "precision", "why") == [("aten::mm", precision, why)]


def test_the_type_of_lists_is_that_of_the_kernel():
    lists = ([[[10], [2, 5]]] * 4, ["TensorList"] * 4)
    name = "multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4> >"
    example = recorded(op("aten::_fused_adamw_", 0, 9, lists), kernel(1, 10, 20, 1, name))
    assert rows(efficiency(example), "precision", "bytes") == [
        ("aten::_fused_adamw_", "fp32", 20 * 4 * 7)
    ]


def test_collectives_and_copies_do_not_count():
    example = recorded(
        op("aten::mm", 0, 9, SQUARE), kernel(1, 100, 200, 1),
        op("aten::copy_", 20, 9, ([[9], [9]], [BF16, BF16])),
        kernel(21, 300, 50, 2, "Memcpy HtoD", kind="gpu_memcpy"),
        kernel(40, 400, 900, 3, ALL_REDUCE),
    )  # fmt: skip
    result = efficiency(example)
    assert (result.kernel_ns, result.covered_ns) == (200 * US, 200 * US)


def test_kernels_without_a_formula_are_listed():
    example = recorded(
        op("aten::mm", 0, 9, SQUARE), kernel(1, 100, 200, 1),
        op("own::attention", 20, 9, SQUARE), kernel(21, 300, 100, 2),
        kernel(50, 400, 20, 3),
    )  # fmt: skip
    result = efficiency(example)
    assert result.uncovered.rows() == [("own::attention", 1, 100 * US), (None, 1, 20 * US)]
    assert result.covered_frac == pytest.approx(200 / 320)


# --- steps, recomputation, ranks -----------------------------------------------------------------


def _training_step(start: int, number: int) -> list[Any]:
    """Return a forward pass, recomputation in the backward pass, and gradients: 4 products."""
    backward = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    events = [step(number, start * US, 1000 * US), op("aten::mm", start + 1, 9, SQUARE)]
    events += [
        op(backward, start + 20, 99, tid=2),
        op("CheckpointFunctionBackward", start + 21, 90, tid=2),
        op("aten::linear", start + 22, 9, SQUARE, tid=2),
        op("aten::mm", start + 23, 7, SQUARE, tid=2),
        op("autograd::engine::evaluate_function: MmBackward0", start + 40, 60, tid=2),
        op("aten::mm", start + 50, 9, SQUARE, tid=2),
        op("aten::mm", start + 70, 9, SQUARE, tid=2),
    ]
    launches = ((2, None), (24, 2), (51, 2), (71, 2))
    for at, (offset, tid) in enumerate(launches):
        more = {} if tid is None else {"tid": tid}
        launch, work = kernel(start + offset, start + 50 + 200 * at, 190, 10 * number + at)
        events += [{**launch, **more}, work]
    return events


def training(**more: Any) -> Trace:
    return recorded(*_training_step(0, 1), *_training_step(1000, 2), **more)


def test_recomputed_products_count_for_hfu_only():
    result = efficiency(training())
    assert result.operators.select("calls", "recomputed_calls").rows() == [(8, 2)]
    assert result.steps["model_flops"].to_list() == [3 * FLOPS] * 2
    assert result.steps["recomputed_flops"].to_list() == [FLOPS] * 2
    assert result.mfu_frac == pytest.approx(3 * FLOPS / (PEAK * 1e9))
    assert result.hfu_frac == pytest.approx(4 * FLOPS / (PEAK * 1e9))
    assert result.ranks["tensor_frac"].to_list() == [1.0]


def test_steps_add_up_to_the_whole():
    result = efficiency(training())
    whole = int((result.operators["flops"] * result.operators["calls"]).sum())
    assert whole == result.steps.select("model_flops", "recomputed_flops").sum_horizontal().sum()
    assert result.steps["kernel_ns"].sum() == result.kernel_ns


def test_ranks_add_up():
    alone = efficiency(training())
    both = efficiency([training(rank=0), training(rank=1, path="b.json")])
    sums = ("calls", "recomputed_calls", "kernels", "device_ns", "roof_ns", "lost_ns")
    for name in sums:
        assert both.operators[name].to_list() == [2 * n for n in alone.operators[name]]
    assert both.kernel_ns == 2 * alone.kernel_ns
    assert both.mfu_frac == alone.mfu_frac
    assert both.ranks.height == 2


def test_the_order_of_ranks_does_not_matter():
    traces = [training(rank=at, path=f"{at}.json") for at in range(3)]
    one, other = efficiency(traces), efficiency(traces[::-1])
    assert one.to_dict() == other.to_dict()


def test_without_steps_the_recording_counts():
    example = recorded(op("aten::mm", 0, 9, SQUARE), kernel(1, 100, 200, 1))
    result = efficiency(example)
    assert not result.marked
    assert result.steps.select("step", "step_ns").rows() == [(None, 200 * US)]


def test_ranks_with_different_gpus_have_different_peaks():
    result = efficiency([one_product(), one_product(gpu="NVIDIA A100-SXM4-80GB", rank=1)])
    mfu = [FLOPS / (1e-3 * peak * 1e12) for peak in (PEAK, 312)]
    assert result.ranks["mfu_frac"].to_list() == pytest.approx(mfu)


# --- peaks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gpu", ["NVIDIA H100", "Some GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", None]
)
def test_unknown_gpus_have_no_peak(gpu):
    result = efficiency(one_product(gpu=gpu))
    assert result.mfu_frac is result.lost_ns is None
    assert result.operators["achieved_tflops"].to_list() == pytest.approx([FLOPS / 2e8])
    assert "--peak bf16=" in result.verdict
    given = efficiency(one_product(gpu=gpu), peak="bf16=100", bandwidth=1000)
    assert given.mfu_frac == pytest.approx(FLOPS / (1e-3 * 100e12))
    assert given.operators["roof_ns"].to_list() == [round(FLOPS / 100 / 1e3)]


def test_given_peaks_override_the_table():
    result = efficiency(one_product(), peak=["bf16=500", "fp8=1000"], precision="fp8")
    assert result.mfu_frac == pytest.approx(FLOPS / (1e-3 * 1000e12))
    assert set(result.peaks["origin"]) == {"table and given"}


@pytest.mark.parametrize("peak", ["bf16", "bf16=", "bf16=-1", "bf16=inf", "bf17=3", "=3"])
def test_wrong_peaks_are_rejected(peak):
    with raises_wording(OptionError):
        efficiency(one_product(), peak=peak)


def test_peaks_of_the_table(shared: Path):
    columns = {
        "fp32": "fp32_vector_TFLOPs",
        "tf32": "tf32_TFLOPs",
        "fp16": "bf16_fp16_TFLOPs",
        "fp8": "fp8_TFLOPs",
        "fp4": "fp4_TFLOPs",
    }
    with (shared / "data" / "gpu" / "gpu_peaks.csv").open() as file:
        for row in csv.DictReader(file):
            peaks = peaks_of(row["name"])
            assert peaks.gbps == float(row["GB_per_s"])
            for precision, column in columns.items():
                expected = float(row[column]) if row[column] else None
                assert peaks.tflops.get(precision) == expected, (row["name"], precision)


def test_similar_names_are_different_gpus():
    names = ["NVIDIA A10", "NVIDIA A100-SXM4-80GB", "NVIDIA L4", "NVIDIA L40", "NVIDIA L40S",
             "NVIDIA H200", "NVIDIA GH200 480GB", "NVIDIA B200", "NVIDIA GB200"]  # fmt: skip
    figures = [peaks_of(name) for name in names]
    assert len({(of.tflops["bf16"], of.gbps) for of in figures}) == len(names)


def test_gpus_without_bf16():
    assert "bf16" not in peaks_of("Tesla V100-SXM2-32GB").tflops
    assert peaks_of("Tesla T4").tflops["fp16"] == 65


@pytest.mark.parametrize(
    ("gpu", "options"),
    [
        ("Tesla V100-DGXS-32GB", ["fp16=125 --bandwidth 900", "fp16=112 --bandwidth 900"]),
        ("NVIDIA A100-PG509-200", ["bf16=312 --bandwidth 1555", "bf16=312 --bandwidth 2039"]),
        ("NVIDIA GeForce RTX 3090", []),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", []),
    ],
)
def test_options_of_similar_gpus(gpu, options):
    precision = "fp16" if "V100" in gpu else "bf16"
    result = efficiency(one_product(gpu=gpu), precision=precision)
    assert result.mfu_frac is None
    notes = " ".join(result.notes)
    assert all(option in notes for option in options)
    assert ("--peak" in notes) == bool(options)


# --- missing data, 6NT ---------------------------------------------------------------------------


def without_shapes() -> Trace:
    return recorded(
        step(1, 0, 1000 * US), op("aten::mm", 20, 30), kernel(30, 100, 200, 1), world_size=4
    )


def test_missing_shapes():
    with raises_wording(MissingData):
        efficiency(without_shapes())
    plain = one_product()
    with raises_wording(MissingData):
        efficiency(replace(plain, events=plain.events.drop(INPUTS)))
    with raises_wording(MissingData):
        efficiency(recorded(op("aten::mm", 20, 30, SQUARE)))


def test_mfu_by_parameters_and_tokens():
    result = efficiency(without_shapes(), params=1e9, tokens=100)
    # 6 x 1e9 x 100 / 4 GPUs in 1 ms
    assert result.mfu_6nt_frac == pytest.approx(6e11 / 4 / 1e-3 / (PEAK * 1e12))
    assert result.mfu_frac is None
    half = efficiency(without_shapes(), params=1e9, tokens=100, gpus=8)
    assert half.mfu_6nt_frac == pytest.approx((result.mfu_6nt_frac or 0) / 2)


def test_impossible_mfu_is_in_the_verdict():
    impossible = efficiency(without_shapes(), params=1e12, tokens=1e9)
    assert "impossible" in impossible.verdict
    assert "--tokens" in impossible.verdict
    assert "impossible" in efficiency(one_product(), peak="bf16=1").verdict
    assert "impossible" not in efficiency(one_product()).verdict


def test_parameters_without_a_peak():
    unknown = efficiency(replace_gpu(without_shapes(), "Some GPU"), params=1e9, tokens=100)
    assert "--peak bf16=" in unknown.verdict
    assert "Some GPU" in unknown.verdict
    t4 = replace_gpu(without_shapes(), "Tesla T4")
    result = efficiency(t4, params=1e9, tokens=100)
    assert result.mfu_6nt_frac is None
    assert "--precision fp16" in result.verdict
    assert efficiency(t4, params=1e9, tokens=100, precision="fp16").mfu_6nt_frac


def replace_gpu(one: Trace, gpu: str) -> Trace:
    return replace(one, sources=(replace(one.meta, devices=(Device(0, gpu),)),))


def test_traces_of_nsight_systems_have_no_shapes():
    plain = one_product()
    nsys = replace(plain, sources=(replace(plain.meta, format="nsys-sqlite"),))
    with pytest.raises(MissingData, match="--params"):
        efficiency(replace(nsys, events=nsys.events.drop(INPUTS)))


@pytest.mark.parametrize(("covered_us", "least"), [(960, False), (940, True), (300, True)])
def test_mfu_of_few_operators_is_a_lower_bound(covered_us, least):
    result = efficiency(
        recorded(
            step(1, 0, 2000 * US),
            op("aten::mm", 20, 30, SQUARE),
            kernel(30, 100, covered_us, 1),
            op("own::kernel", 60, 30),
            kernel(70, 1100, 1000 - covered_us, 2),
        )
    )
    assert result.covered_frac == pytest.approx(covered_us / 1000)
    assert ("at least" in result.verdict) == least
    assert result.verdict.startswith("MFU") == (covered_us > 500)


def test_parameters_need_tokens():
    with raises_wording(OptionError):
        efficiency(one_product(), params=1e9)


# --- real traces ---------------------------------------------------------------------------------


@pytest.mark.matrix
def test_convolutions_of_old_pytorch(shared: Path):
    """Without strides, the forward pass is left out, and named; both gradients are counted."""
    path = shared / "data" / "chrome" / "kineto" / "resnet50_dataloader_workers0.json.gz"
    result = efficiency(path, peak="fp32=15.7", bandwidth=900)
    sums = result.operators.filter(kind="convolution").group_by("operator").agg(
        pl.col("calls").sum(), flops=(pl.col("flops") * pl.col("calls")).sum()
    )  # fmt: skip
    by_operator = {name: (calls, flops) for name, calls, flops in sums.iter_rows()}
    name = "aten::cudnn_convolution_backward"
    assert set(by_operator) == {f"{name}_input", f"{name}_weight"}
    # 53 convolutions in each of 6 steps; the first one has no gradient of its input
    assert (by_operator[f"{name}_input"][0], by_operator[f"{name}_weight"][0]) == (6 * 52, 6 * 53)
    first = 2 * 3 * 7 * 7 * 32 * 64 * 112 * 112
    assert by_operator[f"{name}_weight"][1] - by_operator[f"{name}_input"][1] == 6 * first
    # ResNet-50 has 4.09 G multiplications per image of 224 x 224
    assert by_operator[f"{name}_weight"][1] / (6 * 32 * 2) == pytest.approx(4.09e9, rel=0.01)
    assert result.uncovered["operator"][0] == "aten::cudnn_convolution"
    assert "aten::cudnn_convolution " in " ".join(result.notes)


def test_products_of_a_real_trace(shared: Path):
    """The sum of 2 m n k over all calls, straight from the JSON."""
    path = shared / "data" / "chrome" / "kineto" / "h100_qwen_inference.json.gz"
    expected = {"aten::mm": 0, "aten::addmm": 0}
    with gzip.open(path) as file:
        for event in json.load(file)["traceEvents"]:
            if event.get("name") in expected:
                (m, k), (_, n) = [one for one in event["args"]["Input Dims"] if len(one) == 2]
                expected[event["name"]] += 2 * m * n * k
    result = efficiency(path)
    of = result.operators.with_columns(total=pl.col("flops") * pl.col("calls"))
    for name, flops in expected.items():
        assert of.filter(pl.col("operator") == name)["total"].sum() == flops
    assert result.ranks["gpu"].to_list() == [H100]
    assert ta.efficiency(path).to_dict() == result.to_dict()


def test_fused_attention_of_a_real_trace(shared: Path):
    path = shared / "data" / "chrome" / "kineto" / "h100_qwen_inference.json.gz"
    rows_ = efficiency(path).operators.filter(pl.col("kind") == "attention")
    # 24 layers, 16 x 16 heads, causal scores of 559 x 559, 64 elements
    assert rows_.select("operator", "calls", "flops").rows() == [
        ("aten::_flash_attention_forward", 24, 2 * (16 * 16 * 559 * 559 // 2) * 128)
    ]


def test_recomputation_of_a_real_trace(shared: Path):
    result = efficiency(shared / "data" / "chrome" / "kineto" / "mi300_rank0of8_rccl.json.gz")
    forward = result.operators.filter(pl.col("operator") == "aten::miopen_convolution")
    backward = result.operators.filter(pl.col("operator") == "aten::convolution_backward")
    again = int(forward["recomputed_calls"].sum())
    assert 0 < again == forward["calls"].sum() - backward["calls"].sum()
