"""One kernel that takes a large part of the time is named with its operator and line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import US, device, host, step, trace
from diagnosing import BY_ID, diagnosis, measurements

from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.findings.rule import Measured
from traceanalyzer.run.loop import examine
from traceanalyzer.trace import Trace

GEMM = ("aten::mm", "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", 400)
ADD = (
    "aten::add",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()",
    100,
)
SORT = "void cub::DeviceRadixSortOnesweepKernel<cub::DeviceRadixSortPolicy<long> >(bool*)"
CAST = "void at::native::elementwise_kernel<128, bfloat16_copy_kernel_cuda(TensorIterator&)>()"
COPY = "void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda(TensorIterator&)>()"
INDEXING = "void at::native::indexing_backward_kernel<c10::BFloat16, 4>(long const*)"


def steps(works: list[tuple[str, str, int]], node: str = "") -> Trace:
    return trace(_steps(works, node))


def _steps(works: list[tuple[str, str, int]], node: str) -> Iterator[dict[str, Any]]:
    length = sum(us for _, _, us in works) * US
    for number in range(4):
        begin = number * length
        yield step(number, begin, length)
        yield host("python_function", "train.py(7): loss", begin, length)
        at = begin
        for place, (operator, kernel, us) in enumerate(works):
            call, (outer, _, name) = number * len(works) + place, operator.rpartition(" > ")
            if node or outer:
                yield host("cpu_op", node or outer, at, 9 * US)
            yield host("cpu_op", name, at + US, 7 * US)
            yield host("cuda_runtime", "cudaLaunchKernel", at + 2 * US, US, correlation=call)
            yield device(kernel, at + 4 * US, us * US - US, correlation=call)
            at += us * US


def examined(traced: Trace) -> dict[str, Any]:
    return dict(examine([traced], ["kernels", "gpu_idle"], use="findings").results)


def judged(traced: Trace) -> list[Measured]:
    results = examined(traced)
    return [m for m in measurements("one-kernel", results.pop("kernels"), **results)
            if m.size >= 0.15]  # fmt: skip


def test_the_place_of_kernels_that_are_no_finding_is_not_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works = [(f"aten::a{n}", f"mystery_{n}", 10 + n) for n in range(30)]
    results = examined(steps([*works, ("aten::sort", SORT, 200)]))
    places: list[str | None] = []
    place = Kernels.place
    monkeypatch.setattr(
        Kernels, "place", lambda self, name, *kind: places.append(name) or place(self, name, *kind)
    )
    assert [*measurements("one-kernel", results.pop("kernels"), **results)]
    assert len(places) < 10


@pytest.mark.parametrize(
    ("operator", "kernel", "part"),
    [
        ("aten::_index_put_impl_", INDEXING, "index_select"),
        ("aten::sort", SORT, "topk"),
        ("aten::scatter_add_", "_scatter_gather_elementwise_kernel", "segment"),
        ("triton_mine", "my_triton_kernel_0d1d2", "triton.autotune"),
        ("aten::_to_copy", CAST, "once"),
        ("aten::contiguous", COPY, "enable_gqa"),
        ("aten::repeat", COPY, "enable_gqa"),
        ("aten::_to_copy", COPY, "once"),
        ("aten::embedding_dense_backward", "embedding_backward_feature_kernel<float>", "sparse"),
        ("aten::something", "mystery", "ncu"),
        ("HloOp", "infeed.3", "prefetch"),
        ("HloOp", "outfeed", "input pipeline"),
        ("HloOp", "infeed_fusion_kernel", "ncu"),
        ("SelectiveScanFn", "selective_scan_fwd_kernel<Selective_Scan_traits<128> >", "ncu"),
    ],
)
def test_kernel_is_named_with_operator_and_line(operator: str, kernel: str, part: str) -> None:
    (one,) = judged(steps([GEMM, (operator, kernel, 600)], "IndexBackward0" * (kernel == INDEXING)))
    assert one.size == pytest.approx(0.6, rel=0.01)
    assert operator in one.title
    assert ("IndexBackward0" in one.title) == (kernel == INDEXING)
    assert "loss (train.py:7)" in one.title
    assert part in one.advice


@pytest.mark.parametrize("range_", ["handle_request", "forward", "## step ##"])
def test_the_function_in_a_range_is_named(range_: str) -> None:
    events = [*_steps([GEMM, ("aten::sort", SORT, 600)], "")]
    spans = [one for one in events if one["kind"] == "python_function"]
    around = [host("user_annotation", range_, one["ts"], one["dur"]) for one in spans]
    for one in spans:
        one |= {"name": "peft/tuners/lora/layer.py(690): merge", "dur": one["dur"] - 2 * US}
    (found,) = judged(trace([*around, *events]))
    assert "launched by aten::sort in merge (peft/tuners/lora/layer.py:690)" in found.title


def test_transforms_and_recurrent_layers_are_main_work_and_a_radix_is_not_that_of_a_sort() -> None:
    assert not judged(steps([GEMM, ("", "void dense_fft_radix16<float2>", 600)]))
    assert not judged(
        steps([GEMM, ("aten::_cudnn_rnn", "RNN_blockPersist_fp_LSTM<__half>()", 600)])
    )
    (one,) = judged(steps([GEMM, ("", "void sweep_radix16<float2>", 600)]))
    assert "topk" not in one.advice


def test_kernels_of_recurrent_layers_are_main_work() -> None:
    backward = (
        "CudnnRnnBackward0",
        "RNN_blockPersist_bp_LSTM<__half, float, __half, 256, 4, 32>",
        600,
    )
    assert not judged(steps([GEMM, backward]))


@pytest.mark.parametrize(("us", "share"), [(200, 0.5), (40, 0.3)])
def test_casts_of_logits_count_with_the_loss(us: int, share: float) -> None:
    """They take as long as its kernels; other casts are shorter."""
    loss = "void at::native::cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>()"
    works = [(*GEMM[:2], 700 - us), ("aten::_log_softmax", loss, 300), ("aten::copy_", CAST, us)]
    rows = judged(steps(works))
    (one,) = (row for row in rows if "log-softmax" in row.title)
    assert one.cost_frac == pytest.approx(share, rel=0.02)
    assert "cunn_SoftMaxForward" in one.title


COPY = (
    "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::"
    "TensorIteratorBase&)::{{lambda({})#1}}, std::array<char*, 2ul>, 4, at::native::memory::"
    "LoadWithCast<1>, at::native::memory::StoreWithCast<1> >(int)"
)
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<{}> >()"


def test_kernels_that_dequantize_count_together() -> None:
    names = ("kDequantizeBlockwise<bf16>", "dequantize_block_q4_K<float>")
    (one,) = judged(steps([work for name in names for work in (("", name, 120), GEMM)]))
    assert (one.size, one.cost_frac) == (0.15, pytest.approx(120 / 520, rel=0.02))
    assert "Marlin" in one.advice


@pytest.mark.parametrize(
    ("operator", "kernels", "part"),
    [
        (
            "ConvolutionBackward0",
            ["void at::native::conv_depthwise2d_grad_weight_kernel<float, float, int>()"],
            "channels_last",
        ),
        ("", ["DepthwiseConv2dBackpropFilterGPUKernelNCHWSmall<float>"], "channels_last"),
        ("aten::miopen_convolution", ["naive_conv_nonpacked_bwd_nchw_half_double_half"], "MIOPEN"),
        ("", ["void genericReformat::copyPackedKernel<float, __half>()"], "trtexec"),
        ("aten::slow_conv3d_forward", ["void at::native::vol2col_kernel<c10::BFloat16>()"], "type"),
        ("aten::_efficient_attention_forward", ["fmha_cutlassF_f32_aligned_64x64_sm80"], "bfloat1"),
        (
            "aten::_log_softmax",
            [
                "void at::native::cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>()",
                "void at::native::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>()",
            ],
            "fused loss",
        ),
        ("aten::_linalg_eigh", ["void syevj_sweep_kernel<float>()"], "Decompose"),
        ("aten::empty", [FILL.format("c10::Half"), FILL.format("float")], "fill_uninitialized"),
        ("aten::copy_", [COPY.format("float"), COPY.format("c10::BFloat16")], "bfloat16 weights"),
    ],
)
def test_slow_kinds_count_together(operator: str, kernels: list[str], part: str) -> None:
    """Kernels that replace the usual one when the type, shape or layout does not suit it."""
    filled = operator == "aten::empty"
    works = [
        work
        for kernel in kernels
        for work in (("aten::fill_" if filled else operator, kernel, 120), GEMM)
    ]
    (one,) = judged(steps(works, operator * filled))
    assert one.size == pytest.approx(120 / 520, rel=0.02)
    assert one.total_ns == 4 * 119 * US * len(kernels)
    assert operator in one.title
    assert part in one.advice


def test_kernels_that_a_healthy_program_runs_as_long_are_no_finding() -> None:
    assert not judged(steps([GEMM, ("", "mystery", 90)])), "18 % may be what the program is for"
    assert judged(steps([GEMM, ("aten::sort", SORT, 90)]))


def test_many_casts_with_one_short_loss_are_not_those_of_its_logits() -> None:
    loss = ("aten::_log_softmax", "void cunn_SoftMaxForward<4, LogSoftMaxForwardEpilogue>()", 30)
    layer = [("aten::copy_", COPY.format("float"), 30), (*GEMM[:2], 100)]
    (one,) = judged(steps([*layer * 8, loss]))
    assert "another type" in one.title


def test_casts_are_a_warning_from_12_percent_on() -> None:
    def casting(us: int) -> list[Measured]:
        casts = [("aten::copy_", COPY.format(kind), us) for kind in ("float", "c10::BFloat16")]
        return judged(steps([casts[0], GEMM, casts[1], GEMM]))

    (one,) = casting(60)
    assert (one.size, one.cost_frac) == (0.17, pytest.approx(120 / 920, rel=0.03))
    assert not casting(50)


@pytest.mark.parametrize(("others", "casts"), [(1, []), (6, [6])])
def test_casts_within_unfused_attention_count_with_it(others: int, casts: list[int]) -> None:
    cast, product = ("aten::copy_", COPY.format("float"), 200), (*GEMM[:2], 100)
    softmax = ("aten::_softmax", "void softmax_warp_forward<float>()", 300)
    batched = ("aten::bmm", *GEMM[1:])
    found = judged(steps([batched, cast, softmax, cast, batched, *[product, cast] * others]))
    ns = [round((one.cost_frac or 0) * (1500 + 300 * others)) for one in found]
    assert ns == pytest.approx([200 * n for n in casts], rel=0.02)


@pytest.mark.parametrize(
    ("operator", "kernel", "us", "size"),
    [
        # what a healthy program may run for this long
        (
            "aten::cudnn_batch_norm",
            "void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float>()",
            600,
            1,
        ),
        ("aten::_fused_adamw_", "multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >", 130, 1),
        ("aten::_fused_adamw_", "multi_tensor_apply_kernel<FusedAdamMathFunctor<float> >", 400, 2),
        ("", "void at::native::batch_norm_backward_elemt_channels_last_kernel<float>()", 600, 2),
        (
            "NativeBatchNormBackward0",
            "void at::native::batch_norm_backward_reduce_kernel<float, float, float, int>()",
            600,
            2,
        ),
        ("aten::zeros", FILL.format("float"), 130, 1),
        ("", "CUDA graph 3", 4_000, 1),
        ("aten::_flash_attention_forward", "fmha_cutlassF_bf16_aligned_64x64_sm80", 600, 0),
    ],
)
def test_usual_kinds_are_warnings_only_with_much_time(
    operator: str, kernel: str, us: int, size: int
) -> None:
    sizes = [one.size for one in judged(steps([GEMM, (operator, kernel, us)]))]
    share = pytest.approx(us / (us + 400), rel=0.02)
    assert sizes == [[], [0.15], [share]][size]


def test_kernels_that_convert_the_layout_count_together() -> None:
    convolution = ("aten::cudnn_convolution", "sm80_xmma_fprop_implicit_gemm_f16f16", 500)
    to, back = (f"void cudnn::ops::{name}Kernel<__half>" for name in ("nchwToNhwc", "nhwcToNchw"))
    works = [("aten::cudnn_convolution", to, 130), convolution,
             ("aten::cudnn_convolution", back, 120)]  # fmt: skip
    (one,) = judged(steps(works))
    assert one.size == pytest.approx(250 / 750, rel=0.02)
    assert "channels_last" in one.advice
    (less,) = judged(steps([*works[:1], convolution, convolution]))
    assert BY_ID["one-kernel"].severity(less.size or 0.0) == "warning"
    results = examined(steps([*works, *works[:1]]))
    assert not measurements("memory-bound-kernels", results["kernels"], **results)


def test_time_of_a_kernel_counts_in_one_finding() -> None:
    """Fusion saves one of two calls of gelu: the one that is next to a longer kernel."""
    gelu, add = ADD[1].replace("CUDAFunctor_add", "Gelu"), (*ADD[:2], 450)
    each = [("aten::gelu", gelu, 600), GEMM, ("aten::gelu", gelu, 400), add, GEMM]
    traced = steps(each)
    results = examined(traced)
    (fused,) = measurements("memory-bound-kernels", results["kernels"], **results)
    assert (fused.total_ns, "in loss (train.py:7)" in fused.title) == (4 * 399 * US, True)
    assert not judged(traced)  # of the same function


def test_kernel_of_unknown_kind_and_operator_is_no_warning() -> None:
    work = [device("mystery", number * 10 * US, 9 * US) for number in range(50)]
    (one,) = judged(trace(work))
    assert one.size == 0.15
    assert one.cost_frac == pytest.approx(0.9, rel=0.02)
    (one,) = judged(trace([*work, host("cpu_op", "aten::add", 0, US)]))
    assert one.size == pytest.approx(0.9, rel=0.02)


@pytest.mark.parametrize("operator", ["aten::slow_conv3d_forward", "aten::mm"])
def test_products_of_a_slow_operator_count_with_it(operator: str) -> None:
    works = [("aten::slow_conv3d_forward", "void at::native::vol2col_kernel<float>()", 300),
             (operator, "gemm_mine", 200), (*GEMM[:1], "gemm_other", 500)]  # fmt: skip
    (one,) = judged(steps(works))
    assert one.size == pytest.approx(0.3 if operator == "aten::mm" else 0.5, rel=0.02)


def test_kernels_of_forward_and_backward_of_an_operator_count_together() -> None:
    works = [("mine::_route", "route_a", 160), ("mine::_route_backward", "route_b", 150),
             ("other::route", "other", 120), (*GEMM[:2], 570)]  # fmt: skip
    (one,) = judged(steps(works))
    assert one.size == pytest.approx(0.31, rel=0.02)
    assert "2 kernels of one operator, mostly route_a" in one.title
    assert ", mostly launched by mine::_route" in one.title


@pytest.mark.parametrize(
    ("kernel", "closure", "part"),
    [("gemm_ns", False, 0.6), ("gemm_ns", True, None), ("multi_tensor_adam", False, None)],
)
def test_optimizer_step_of_matrix_products(kernel: str, closure: bool, part: float | None) -> None:
    """Muon multiplies matrices in its step; AdamW does not, nor does a closure with the model."""
    works = [("aten::mm", kernel, 600), GEMM]
    length = sum(us for _, _, us in works) * US
    marks = [host("user_annotation", "Optimizer.step#Muon.step", n * length, 60 * US)
             for n in range(4)]  # fmt: skip
    if closure:
        node = "autograd::engine::evaluate_function: MmBackward0"
        marks += [host("cpu_op", node, n * length + 20 * US, 9 * US, tid=2) for n in range(4)]
    each = [m for m in judged(trace([*_steps(works, ""), *marks])) if "matrix products" in m.title]
    assert [m.size for m in each] == ([pytest.approx(part, rel=0.02)] if part else [])
    assert not any("ranks" in "".join(m.evidence) for m in each)


def test_copies_that_run_as_kernels_are_no_kernel_to_profile() -> None:
    names = ("__amd_rocclr_copyBuffer.kd", "Cijk_Ailk_Bljk_SB_MT64x64")
    work = [device(names[n % 2], n * 10 * US, 9 * US) for n in range(50)]
    (one,) = judged(trace(work))
    assert one.size == pytest.approx(0.45, rel=0.02)
    assert "hipMemcpy" in one.advice


@pytest.mark.parametrize(
    "works",
    [
        [GEMM] * 3,
        [GEMM, ("aten::sort", SORT, 60)],
        # counted as fusible
        [GEMM, *[ADD] * 12],
    ],
)
def test_other_programs_have_no_such_kernel(works: list[tuple[str, str, int]]) -> None:
    assert not judged(steps(works))


@pytest.mark.matrix
def test_recording_of_others(shared: Path) -> None:
    path = shared / "data/causes/chrome/index_backward.json.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    first = diagnosis(path).findings[0]
    assert (first.id, first.cost_frac) == ("one-kernel", pytest.approx(0.655, abs=0.003))
    assert all(name in first.title for name in ("indexing_backward_kernel", "_index_put_impl_"))


@pytest.mark.parametrize(
    ("grid", "is_small"), [((1, 1, 1), True), ((64, 1, 1), False), ((1, 8, 8), False)]
)
def test_a_grid_of_few_blocks(grid: tuple[int, int, int], *, is_small: bool) -> None:
    traced = steps([("", "weight_sum", 400), GEMM])
    rows = traced.events.with_row_index("event").filter(pl.col("name").cast(str) == "weight_sum")
    sizes = {f"grid_{axis}": pl.lit(n, pl.Int32) for axis, n in zip("xyz", grid, strict=True)}
    grids = rows.select("event", **sizes)
    grids = pl.concat([traced.launch_configs, grids], how="diagonal_relaxed")
    (found,) = judged(replace(traced, launch_configs=grids))
    assert any("block" in text for text in found.evidence) == is_small
    assert ("larger grid" in found.advice) == is_small


@pytest.mark.parametrize(("size", "is_much"), [(2064, True), (64, False)])
def test_a_kernel_that_spills_registers(size: int, *, is_much: bool) -> None:
    traced = steps([("", "jacobian", 400), GEMM])
    rows = traced.events.with_row_index("event").filter(pl.col("name").cast(str) == "jacobian")
    sizes = rows.select("event", local_memory=pl.lit(size, pl.Int64))
    shapes = pl.concat([traced.launch_configs, sizes], how="diagonal_relaxed")
    (found,) = judged(replace(traced, launch_configs=shapes))
    assert any("2,064 B of local memory" in text for text in found.evidence) == is_much
    assert ("nvcc -Xptxas -v" in found.advice) == is_much


@pytest.mark.parametrize(
    ("lengths", "is_found"), [((600, 1500), True), ((600, 1500, 600), False), ((900,) * 3, True)]
)
def test_one_long_call_of_three_is_no_kernel_to_replace(
    lengths: tuple[int, ...], *, is_found: bool
) -> None:
    rows, at = [], 0
    for number, us in enumerate(lengths):
        rows.append(step(number, at, (us + 500) * US))
        for call, (kernel, begin, length) in enumerate(
            (("mystery", 2, us), (GEMM[1], us + 3, 490))
        ):
            ids = {"correlation": 2 * number + call}
            rows.append(host("cuda_runtime", "cudaLaunchKernel", at + call * US, US, **ids))
            rows.append(device(kernel, at + begin * US, length * US, **ids))
        at += (us + 500) * US
    assert bool(judged(trace(rows))) == is_found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("_lora_shrink_kernel", "_lora_expand_kernel"),
        ("_sgemm_lora_a_kernel", "_qkv_lora_b_kernel"),
        ("void bgmv_shrink_kernel<float, 16>()", "void bgmv_expand_kernel<float, 16>()"),
    ],
)
def test_kernels_of_adapters_are_one_finding(one: str, other: str) -> None:
    (found,) = judged(steps([GEMM, ("", one, 100), ("", other, 80), ("", "florae", 60)]))
    assert found.cost_frac == pytest.approx(180 / 640, rel=0.02)
    assert "merge_and_unload" in found.advice


@pytest.mark.parametrize(("us", "severity"), [(25, None), (40, "info"), (60, "warning")])
def test_conversions_of_layout_count_sooner(us: int, severity: str | None) -> None:
    """They are avoidable as a whole, unlike other kernels with so little time."""
    kernel = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>()"
    traced = steps([GEMM, ("aten::cudnn_convolution", kernel, us), ("", "mystery", 60)])
    found = [m.size or 0.0 for m in judged(traced) if "NHWC" in m.title]
    expected = [severity] * (severity is not None)
    assert [BY_ID["one-kernel"].severity(size) for size in found] == expected


@pytest.mark.parametrize(
    ("kernel", "reads"),
    [
        ("graphbolt::UVAIndexSelectImpl<float, long>()", True),
        ("void gather_zero_copy<float>()", True),
        ("quiver_uva_gather", True),
        ("void gather_guava<float>()", False),
    ],
)
def test_kernels_that_read_host_memory(kernel: str, reads: bool) -> None:
    (found,) = judged(steps([GEMM, ("", kernel, 600)]))
    assert ("PCIe" in found.advice) == reads
    assert "loss (train.py:7)" in found.title


@pytest.mark.parametrize(("us", "found"), [(150, False), (300, False), (900, True)])
def test_fusions_of_xla_are_usual(us: int, found: bool) -> None:
    rows = judged(steps([GEMM, ("", "input_reduce_fusion_7", us)]))
    assert [("XLA" in one.advice) for one in rows] == [True] * found


_NODE = "autograd::engine::evaluate_function: "


@pytest.mark.parametrize(
    ("around", "part"),
    [
        ("aten::index_add_", "deterministic"),
        (f"{_NODE}GatherBackward0", "deterministic"),
        ("aten::index_put_", "deterministic"),
        (f"{_NODE}IndexBackward0", "index_select"),
    ],
)
def test_sorts_of_indices_count_with_the_sums_of_elements(around: str, part: str) -> None:
    operator = f"{around} > aten::_index_put_impl_"
    (one,) = judged(steps([GEMM, (operator, SORT, 200), (operator, INDEXING, 300)]))
    assert one.total_ns == pytest.approx(4 * 498 * US, rel=0.001)
    assert part in one.advice


@pytest.mark.parametrize(
    ("operator", "us", "found"),
    [("aten::contiguous", 90, True), ("", 60, True), ("aten::clone", 40, False)],
)
def test_copies_of_strided_tensors_are_a_finding_sooner(
    operator: str, us: int, found: bool
) -> None:
    """Also if a longer kernel is none."""
    name = "at::native::elementwise_kernel<128, 2, gpu_kernel_impl<direct_copy_kernel_cuda()>>()"
    rows = judged(steps([GEMM, ("", "mystery", 95), GEMM, (operator, name, us)]))
    assert ["enable_gqa" in one.advice for one in rows] == [True] * found


_SUMS = (f"{_NODE}torch::autograd::AccumulateGrad > aten::add_", ADD[1], 300)
_OF_TABLE = f"{_NODE}EmbeddingBackward0 > aten::embedding_dense_backward"


@pytest.mark.parametrize(
    ("fill", "other", "us"),
    [(400, "", 0), (80, SORT, 290), (80, "compute_grad_weight_indices<float>()", 350)],
)
def test_fills_of_tables_count_once_and_other_kernels_of_tables_too(
    fill: int, other: str, us: int
) -> None:
    others = [(_OF_TABLE, other, us)] * bool(other)
    found = judged(steps([GEMM, _SUMS, GEMM, (_OF_TABLE, FILL.format("float"), fill), *others]))
    times = [4 * (one - 1) * US for one in (300 + fill - 1, us) if one]
    assert sorted(one.total_ns for one in found) == pytest.approx(sorted(times), rel=0.001)


@pytest.mark.parametrize(("fill", "is_table"), [(80, True), (300, True), (10, False)])
def test_dense_gradients_of_tables_are_filled_and_added(fill: int, is_table: bool) -> None:
    """A sum takes at most four times as long as the fill of the same table."""
    sums, of_table = _SUMS, _OF_TABLE
    (one,) = judged(steps([GEMM, sums, GEMM, (of_table, FILL.format("float"), fill)]))
    assert ("sparse=True" in one.advice) == is_table
    filled = (fill - 1) * is_table
    assert one.total_ns == pytest.approx(4 * (299 + filled) * US, rel=0.001)


def test_products_with_sparse_matrices_are_usual() -> None:
    kernel = "void cusparse::csrmm_alg2_kernel<cusparse::CsrMMPolicy<128u>, float>()"
    assert not judged(steps([GEMM, ("torch_sparse::spmm_sum", kernel, 900)]))


CLIP = "torch/nn/utils/clip_grad.py(210): clip_grad_norm_"


def _accumulating(
    ranges: dict[str, int], passes: int, *, apart: bool = True, optimizer: str = "AdamW.step"
) -> Trace:
    """Steps of several passes: products and ranges that launch a kernel of 1 ms each.

    Each call of the same function is for a micro-batch, with products before it, if ``apart``.
    """
    events: list[dict[str, Any]] = []
    call = 0
    for number in range(3):
        at = number * 50 * 1000 * US
        events.append(step(number, at, 50 * 1000 * US))
        for name, times in [
            *ranges.items(),
            (f"Optimizer.step#{optimizer}", int(bool(optimizer))),
            ("aten::mm", passes),
        ]:
            for call_of in [*["aten::mm"] * (apart and name == CLIP), name] * times:
                kind = "python_function" if ".py(" in call_of else "cpu_op"
                kernel = "gemm" if call_of == "aten::mm" else "multi_tensor_apply_kernel"
                calls = [host(kind, call_of, at, 100 * US)]
                calls.append(host("cuda_runtime", "cudaLaunchKernel", at, US, correlation=call))
                thread = {"tid": 99} if "Accumulate" in call_of else {}
                events += [one | thread for one in calls]
                events.append(device(kernel, at + 2 * US, 1000 * US, correlation=call))
                at, call = at + 1000 * US, call + 1
    return trace(events)


@pytest.mark.parametrize(
    ("ranges", "part", "ms"),
    [
        ({CLIP: 8}, "8 times", 7),
        ({CLIP: 3}, "3 times", 2),
        ({"Optimizer.zero_grad#SGD.zero_grad": 1, "torch::autograd::AccumulateGrad": 3}, "0", 4),
        ({"aten::_cudnn_rnn_flatten_weight": 5}, "recurrent", 5),
        ({CLIP: 1}, "", 0),  # once per step
        ({"torch::autograd::AccumulateGrad": 4}, "", 0),  # micro-batches are added
    ],
)
def test_work_that_a_setting_avoids(ranges: dict[str, int], part: str, ms: int) -> None:
    found = [one for one in judged(_accumulating(ranges, 8)) if part and part in one.title]
    assert [round(one.total_ns or 0) for one in found] == [3 * ms * 1000 * US] * bool(ms)


@pytest.mark.parametrize(
    ("apart", "optimizer"),
    [(False, "AdamW.step"), (True, "")],
    ids=["of other parameters", "unknown optimizer"],
)
def test_gradients_that_are_clipped_as_often_as_needed(*, apart: bool, optimizer: str) -> None:
    found = judged(_accumulating({CLIP: 8}, 8, apart=apart, optimizer=optimizer))
    assert not any("clipped" in one.title for one in found)
