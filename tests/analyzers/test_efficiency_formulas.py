"""FLOPs and bytes of each operator, computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import traceanalyzer as ta
from traceanalyzer.analyzers.efficiency.formulas import FORMULAS, formula_of
from traceanalyzer.analyzers.efficiency.inputs import Unknown, Work, is_possible, parse

BF16, FP32, FP16, FP8, INT64 = (
    "c10::BFloat16",
    "float",
    "c10::Half",
    "c10::Float8_e4m3fn",
    "long int",
)


def work(name: str, *inputs: tuple[Any, str] | str, list_type: str | None = None) -> Work:
    """Return the work of a call: (shape, type) of tensors, text of other arguments."""
    dims = [[] if isinstance(one, str) else one[0] for one in inputs]
    types = ["Scalar" if isinstance(one, str) else one[1] for one in inputs]
    values = [one if isinstance(one, str) else "" for one in inputs]
    parsed = parse(json.dumps(dims), json.dumps(types), json.dumps(values), list_type)
    formula = formula_of(name)
    assert formula is not None
    assert parsed is not None
    return formula(parsed)


def bf16(*shape: int) -> tuple[list[int], str]:
    return list(shape), BF16


def fp32(*shape: int) -> tuple[list[int], str]:
    return list(shape), FP32


def fp8(*shape: int) -> tuple[list[int], str]:
    return list(shape), FP8


LISTS = ([[10], [2, 5]], "TensorList")  # 20 elements
NO = ""

#: Operator, inputs, FLOPs, bytes.
MATRIX = [
    # 2 x 3 x 5 x 4; (12 + 20 + 15) x 2 bytes
    ("aten::mm", [bf16(3, 4), bf16(4, 5)], 120, 94),
    ("aten::addmm", [bf16(5), bf16(3, 4), bf16(4, 5), "1", "1"], 120, 104),
    ("aten::addmm_", [bf16(3, 5), bf16(3, 4), bf16(4, 5)], 120, 124),
    ("aten::_addmm_activation", [bf16(5), bf16(3, 4), bf16(4, 5)], 120, 104),
    ("aten::bmm", [fp32(2, 3, 4), fp32(2, 4, 5)], 240, 376),
    ("aten::baddbmm", [fp32(2, 3, 5), fp32(2, 3, 4), fp32(2, 4, 5)], 240, 496),
    ("aten::baddbmm_", [fp32(2, 3, 5), fp32(2, 3, 4), fp32(2, 4, 5)], 240, 496),
    ("aten::linear", [bf16(7, 3, 4), bf16(5, 4), bf16(5)], 840, 2 * (84 + 20 + 5 + 105)),
    ("aten::matmul", [bf16(7, 1, 3, 4), bf16(2, 4, 5)], 14 * 120, 2 * (84 + 40 + 210)),
    ("aten::mv", [fp32(3, 4), fp32(4)], 24, 4 * (12 + 4 + 3)),
    ("aten::addmv", [fp32(3), fp32(3, 4), fp32(4)], 24, 4 * (12 + 4 + 3)),
    ("aten::addmv_", [fp32(3), fp32(3, 4), fp32(4)], 24, 4 * (12 + 4 + 3)),
    ("aten::_int_mm", [([3, 4], "signed char"), ([4, 5], "signed char")], 120, 12 + 20 + 60),
    # FP8 operands of 1 byte, output of 2 bytes (code 15: BFloat16)
    ("aten::_scaled_mm", [fp8(16, 32), fp8(32, 8), fp32(), fp32(), NO, NO, "15"],
     8192, 512 + 256 + 256),
    # 6 rows in any groups
    ("aten::_grouped_mm", [bf16(6, 4), bf16(3, 4, 5), ([3], "int")], 240, 2 * (24 + 60 + 30)),
    ("aten::_scaled_grouped_mm", [fp8(6, 4), fp8(3, 4, 5)], 240, 24 + 60 + 60),
    ("_C::cutlass_scaled_mm", [bf16(3, 5), fp8(3, 4), fp8(4, 5)], 120, 12 + 20 + 30),
]  # fmt: skip

# input 2 x 3 x 8, 4 filters of 3 x 3: output 2 x 4 x 6, each of 2 x 9 FLOPs
CONV1D = 2 * 9 * 48
BYTES1D = 4 * (48 + 36 + 48)
# input 2 x 4 x 9 x 9, 6 filters of (4 / 2) x 3 x 3, stride 2, padding 1: output 2 x 6 x 5 x 5
CONV2D = 2 * 18 * 300
BYTES2D = 4 * (648 + 108 + 300)
IMAGE, FILTERS, OUTPUT = fp32(2, 4, 9, 9), fp32(6, 2, 3, 3), fp32(2, 6, 5, 5)
# transposed: input 2 x 6 x 5 x 5, weights 6 x 2 x 3 x 3, 2 groups: output 2 x 4 x 9 x 9
TRANSPOSED = 2 * 18 * 300
STRIDES = ("[2, 2]", "[1, 1]", "[1, 1]")  # stride, padding, dilation
DEPTHWISE = fp32(4, 1, 3, 3)

CONVOLUTIONS = [
    ("aten::conv1d", [fp32(2, 3, 8), fp32(4, 3, 3), NO, "[1]", "[0]", "[1]", "1"],
     CONV1D, BYTES1D),
    ("aten::conv2d", [IMAGE, FILTERS, NO, *STRIDES, "2"], CONV2D, BYTES2D),
    # 1 x 1 x 4 x 4 x 4, one filter of 2 x 2 x 2: output 3 x 3 x 3
    ("aten::conv3d", [fp32(1, 1, 4, 4, 4), fp32(1, 1, 2, 2, 2), NO, "[1]", "[0]", "[1]", "1"],
     2 * 8 * 27, 4 * (64 + 8 + 27)),
    ("aten::conv_transpose1d",  # output (8 - 1) x 2 + 3 = 17
     [fp32(2, 3, 8), fp32(3, 4, 3), NO, "[2]", "[0]", "[0]", "1", "[1]"],
     2 * 12 * 48, 4 * (48 + 36 + 2 * 4 * 17)),
    ("aten::conv_transpose2d",
     [OUTPUT, FILTERS, NO, "[2, 2]", "[1, 1]", "[0, 0]", "2", "[1, 1]"], TRANSPOSED, BYTES2D),
    ("aten::conv_transpose3d",
     [fp32(1, 1, 3, 3, 3), fp32(1, 1, 2, 2, 2), NO, "[1]", "[0]", "[0]", "1", "[1]"],
     2 * 8 * 27, 4 * (27 + 8 + 64)),
    *[(f"aten::{name}", [IMAGE, FILTERS, NO, *STRIDES, "False", "[0, 0]", "2"], CONV2D, BYTES2D)
      for name in ("convolution", "_convolution", "convolution_overrideable")],
    # padding, stride, dilation
    ("aten::cudnn_convolution", [IMAGE, FILTERS, "[1, 1]", "[2, 2]", "[1, 1]", "2"],
     CONV2D, BYTES2D),
    ("aten::cudnn_convolution_relu", [IMAGE, FILTERS, NO, *STRIDES, "2"], CONV2D, BYTES2D),
    ("aten::cudnn_convolution_add_relu", [IMAGE, FILTERS, OUTPUT, "1", NO, *STRIDES, "2"],
     CONV2D, BYTES2D),
    *[(f"aten::{name}_convolution", [IMAGE, FILTERS, NO, "[1, 1]", "[2, 2]", "[1, 1]", "2"],
       CONV2D, BYTES2D) for name in ("miopen", "mkldnn", "miopen_depthwise")],
    ("aten::cudnn_convolution_transpose",
     [OUTPUT, FILTERS, "[1, 1]", "[0, 0]", "[2, 2]", "[1, 1]", "2"], TRANSPOSED, BYTES2D),
    ("aten::miopen_convolution_transpose",
     [OUTPUT, FILTERS, NO, "[1, 1]", "[0, 0]", "[2, 2]", "[1, 1]", "2"], TRANSPOSED, BYTES2D),
    # 4 channels, each with 3 x 3 weights: output 2 x 4 x 7 x 7
    *[(f"aten::{name}", [fp32(2, 4, 9, 9), DEPTHWISE, "[3, 3]", NO, "[1, 1]", "[0, 0]", "[1, 1]"],
       2 * 9 * 392, 4 * (648 + 36 + 392)) for name in ("_conv_depthwise2d", "conv_depthwise3d")],
    # one gradient, with the size of the result
    *[(f"aten::{name}_convolution_backward_input", ["[2, 4, 9, 9]", OUTPUT, FILTERS],
       CONV2D, BYTES2D) for name in ("cudnn", "miopen")],
    *[(f"aten::{name}_convolution_backward_weight", ["[6, 2, 3, 3]", OUTPUT, IMAGE],
       CONV2D, BYTES2D) for name in ("cudnn", "miopen")],
    # both gradients: twice the forward pass
    ("aten::convolution_backward",
     [OUTPUT, IMAGE, FILTERS, "[6]", *STRIDES, "False", "[0, 0]", "2", "[True, True, True]"],
     2 * CONV2D, 4 * (300 + 2 * (648 + 108))),
]  # fmt: skip

# 2 batches, 8 heads of queries and 2 of keys, 16 queries, 32 keys, 64 elements
Q, K, V = bf16(2, 8, 16, 64), bf16(2, 2, 32, 64), bf16(2, 2, 32, 64)
Q_LAST, K_LAST = bf16(2, 16, 8, 64), bf16(2, 32, 2, 64)
SCORES = 2 * 8 * 16 * 32
FORWARD = 2 * SCORES * 128
MOVED = 2 * (2 * 16384 + 2 * 8192)
CAUSAL = FORWARD * (32 - 8) // 32  # the mask ends at the last key
# 4 packed sequences of 96 queries in total
PACKED = bf16(96, 8, 64)
EDGES = ([5], "int")
PACKED_FORWARD = 2 * (4 * 8 * 24 * 24) * 128
PACKED_MOVED = 2 * 4 * 96 * 8 * 64
DENSE = (NO, NO, "16", "32")

ATTENTION = [
    ("aten::_scaled_dot_product_flash_attention", [Q, K, V, "0.", "False", "False"],
     FORWARD, MOVED),
    ("aten::_flash_attention_forward", [Q_LAST, K_LAST, K_LAST, *DENSE, "0.", "True", "False"],
     CAUSAL, MOVED),
    ("aten::_scaled_dot_product_efficient_attention", [Q, K, V, NO, "True", "0.", "True"],
     CAUSAL, MOVED),
    ("aten::_efficient_attention_forward",
     [Q_LAST, K_LAST, K_LAST, NO, *DENSE, "0.", "0", "True"], FORWARD, MOVED),
    ("aten::_scaled_dot_product_cudnn_attention", [Q, K, V, NO, "True", "0.", "False"],
     FORWARD, MOVED),
    ("aten::_cudnn_attention_forward", [Q, K, V, NO, *DENSE, "True", "0.", "True"],
     CAUSAL, MOVED),
    ("aten::_scaled_dot_product_fused_attention_overrideable",
     [Q, K, V, NO, "0.", "False", "False"], FORWARD, MOVED),
    # backward: gradient, q, k, v, output, logsumexp, ...
    ("aten::_scaled_dot_product_flash_attention_backward",
     [Q, Q, K, V, Q, fp32(2, 8, 16), *DENSE, "0.", "False"], FORWARD * 5 // 2, 2 * MOVED),
    ("aten::_flash_attention_backward",
     [Q_LAST, Q_LAST, K_LAST, K_LAST, Q_LAST, fp32(2, 8, 16), *DENSE, "0.", "True"],
     CAUSAL * 5 // 2, 2 * MOVED),
    ("aten::_scaled_dot_product_efficient_attention_backward",
     [Q, Q, K, V, NO, Q, fp32(2, 8, 16), NO, NO, "0.", "[True]", "False"],
     FORWARD * 5 // 2, 2 * MOVED),
    ("aten::_efficient_attention_backward",
     [Q_LAST, Q_LAST, K_LAST, K_LAST, NO, Q_LAST, *DENSE, fp32(2, 8, 16), "0.", NO, NO, "1"],
     CAUSAL * 5 // 2, 2 * MOVED),
    ("aten::_scaled_dot_product_cudnn_attention_backward",
     [Q, Q, K, V, Q, fp32(2, 8, 16), NO, NO, NO, *DENSE, "0.", "False"],
     FORWARD * 5 // 2, 2 * MOVED),
    ("flash_attn::_flash_attn_forward", [Q_LAST, K_LAST, K_LAST, "0.", "0.125", "False"],
     FORWARD, MOVED),
    ("flash_attn::_flash_attn_varlen_forward",
     [PACKED, PACKED, PACKED, EDGES, EDGES, "40", "40", "0.", "0.125", "False"],
     PACKED_FORWARD, PACKED_MOVED),
    ("flash_attn::_flash_attn_backward",
     [Q_LAST, Q_LAST, K_LAST, K_LAST, Q_LAST, NO, NO, NO, NO, "0.", "0.125", "False"],
     FORWARD * 5 // 2, 2 * MOVED),
    ("flash_attn::_flash_attn_varlen_backward",
     [PACKED, PACKED, PACKED, PACKED, PACKED, NO, NO, NO, NO, EDGES, EDGES, "40", "40", "0.",
      "0.125", "False"], PACKED_FORWARD * 5 // 2, 2 * PACKED_MOVED),
]  # fmt: skip

#: Of a tensor of 6 x 8 in bf16 (96 bytes) with weights of 8: FLOPs per element are not exact.
X, W = bf16(6, 8), bf16(8)
BANDWIDTH = [
    ("aten::native_layer_norm", [X, "[8]", W, W, "1e-05"], 240, 96 + 32 + 96),
    ("aten::_fused_rms_norm", [X, "[8]", W, "1e-05"], 192, 96 + 16 + 96),
    ("aten::native_group_norm", [X, W, W, "6"], 240, 96 + 32 + 96),
    *[(f"aten::{name}_batch_norm", [X, W, W, W, W, "True"], 240, 96 + 64 + 96)
      for name in ("native", "cudnn", "miopen")],
    ("aten::native_layer_norm_backward", [X, X, "[8]", fp32(6, 1), fp32(6, 1), W, W],
     384, 192 + 48 + 32 + 96),
    ("aten::_fused_rms_norm_backward", [X, X, "[8]", fp32(6, 1), W], 384, 192 + 24 + 16 + 96),
    ("aten::native_group_norm_backward", [X, X, fp32(6), fp32(6), W], 384, 192 + 48 + 16 + 96),
    *[(f"aten::{name}_batch_norm_backward", [X, X, W], 384, 192 + 16 + 96)
      for name in ("native", "cudnn", "miopen")],
    *[(f"aten::{name}", [X, "1", "False"], 240, 192) for name in ("_softmax", "_log_softmax")],
    *[(f"aten::{name}_backward_data", [X, X, "1", "15"], 192, 288)
      for name in ("_softmax", "_log_softmax")],
    ("_C::rms_norm", [X, X, W, "1e-05"], 192, 96 + 96 + 16),
    ("_C::fused_add_rms_norm", [X, X, W, "1e-05"], 240, 4 * 96 + 16),
    ("aten::where", [([6, 8], "bool"), X, bf16()], 48, 48 + 96 + 2 + 96),
    ("aten::native_dropout", [X, "0.1", "True"], 48, 96 + 96 + 48),
    ("aten::copy_", [fp32(6, 8), X, "False"], 0, 96 + 192),
    ("aten::fill_", [X, "0"], 0, 96),
    ("aten::zero_", [X], 0, 96),
    ("_C::silu_and_mul", [bf16(6, 4), X], 48, 96 + 48),
    ("_C::gelu_and_mul", [bf16(6, 4), X], 48, 96 + 48),
    ("_C::static_scaled_fp8_quant", [fp8(6, 8), X, fp32(1)], 48, 96 + 4 + 48),
    # 5 rows of 8 out of 100, by indices of 8 bytes
    ("aten::embedding", [bf16(100, 8), ([5], INT64), "-1", "False", "False"], 0, 40 + 160),
    ("aten::index_select", [bf16(100, 8), "0", ([5], INT64)], 0, 40 + 160),
    ("aten::embedding_dense_backward", [bf16(5, 8), ([5], INT64), "100", "-1", "False"],
     40, 80 + 40 + 1600),
]  # fmt: skip

POINTWISE = {name for name, formula in FORMULAS.items() if formula is FORMULAS["aten::add"]}
IN_PLACE = {name for name, formula in FORMULAS.items() if formula is FORMULAS["aten::add_"]}
COMPARED = {name for name, formula in FORMULAS.items() if formula is FORMULAS["aten::eq"]}
REDUCED = {name for name, formula in FORMULAS.items() if formula is FORMULAS["aten::sum"]}

#: Operators over lists: lists read and written, FLOPs per element; 20 elements of 4 bytes.
OPTIMIZERS = {
    "aten::_fused_adam_": (4, 3, 12),
    "aten::_fused_adamw_": (4, 3, 12),
    "aten::_fused_sgd_": (3, 2, 4),
    "aten::_fused_adagrad_": (3, 2, 6),
    **{f"aten::_foreach_{name}_": (2, 1, 1) for name in ("add", "sub", "mul", "div", "lerp")},
    **{f"aten::_foreach_{name}_": (3, 1, 1) for name in ("addcmul", "addcdiv")},
    **{f"aten::_foreach_{name}_": (1, 1, 1) for name in ("sqrt", "zero", "neg")},
}

CASES = [*MATRIX, *CONVOLUTIONS, *ATTENTION, *BANDWIDTH]


@pytest.mark.parametrize(("name", "inputs", "flops", "moved"), CASES, ids=[c[0] for c in CASES])
def test_flops_and_bytes_by_hand(name, inputs, flops, moved):
    result = work(name, *inputs)
    assert (result.flops, result.bytes) == (flops, moved)
    assert result.exact == ("varlen" not in name)


def test_every_operator_with_a_formula_has_a_case():
    several = {"aten::cat", *POINTWISE, *IN_PLACE, *COMPARED, *REDUCED, *OPTIMIZERS}
    assert {case[0] for case in CASES} | several == set(FORMULAS)


@pytest.mark.parametrize("name", sorted(POINTWISE))
def test_pointwise_operators_write_the_broadcast_shape(name):
    result = work(name, X, bf16(8), "1")
    assert (result.flops, result.bytes) == (48, 96 + 16 + 96)


def test_a_python_number_is_no_wider_than_the_tensor():
    result = work("aten::mul", X, ([], "double"))
    assert (result.bytes, result.precision) == (96 + 8 + 96, "bf16")


@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_operators_in_place_write_their_first_tensor(name):
    result = work(name, X, bf16(1), "1")
    assert (result.flops, result.bytes) == (48, 96 + 2 + 96)


@pytest.mark.parametrize("name", sorted(COMPARED))
def test_comparisons_write_booleans(name):
    assert work(name, X, X).bytes == 96 + 96 + 48


@pytest.mark.parametrize("name", sorted(REDUCED))
def test_reductions_read_their_input(name):
    result = work(name, X, "[1]")
    assert (result.flops, result.bytes, result.exact) == (48, 96, False)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_optimizer_steps_read_and_write_lists(name):
    read, written, flops = OPTIMIZERS[name]
    result = work(name, *[LISTS] * read, "0.001", list_type="float")
    assert (result.flops, result.bytes) == (20 * flops, 80 * (read + written))
    with pytest.raises(Unknown):  # the type of lists is not recorded
        work(name, *[LISTS] * read, "0.001")


def test_concatenation_reads_and_writes_all_elements():
    assert work("aten::cat", LISTS, "0", list_type=BF16).bytes == 80


def test_generated_kernels_move_their_arguments():
    result = work("triton_poi_fused_add_mul_0", X, X, bf16(8), "48")
    assert (result.bytes, result.exact) == (96 + 96 + 16, False)


def test_gradients_of_a_convolution_follow_the_output_mask():
    inputs = [OUTPUT, IMAGE, FILTERS, "[6]", *STRIDES, "False", "[0, 0]", "2"]
    one = work("aten::convolution_backward", *inputs, "[False, True, True]")
    assert (one.flops, one.bytes) == (CONV2D, 4 * (300 + 648 + 108))
    assert work("aten::convolution_backward", *inputs, "[False, False, True]").flops == 0


def test_gradients_of_a_convolution_without_sizes():
    of_input = work("aten::cudnn_convolution_backward_input", NO, OUTPUT, FILTERS)
    assert (of_input.flops, of_input.bytes, of_input.exact) == (CONV2D, 4 * (300 + 108), False)
    # with the inputs of cudnn_convolution_backward
    of_weight = work("aten::cudnn_convolution_backward_weight", IMAGE, OUTPUT, FILTERS)
    assert (of_weight.flops, of_weight.bytes, of_weight.exact) == (CONV2D, BYTES2D, True)


def test_gradients_of_a_transposed_convolution():
    inputs = [IMAGE, OUTPUT, FILTERS, "[4]", *STRIDES, "True", "[0, 0]", "2"]
    result = work("aten::convolution_backward", *inputs, "[True, True, False]")
    assert result.flops == 2 * TRANSPOSED


def test_causal_attention_of_equal_lengths_is_half():
    square = bf16(2, 8, 64, 32)
    both = [
        work("aten::_scaled_dot_product_flash_attention", square, square, square, "0.", flag)
        for flag in ("True", "False")
    ]
    assert both[0].flops * 2 == both[1].flops


def test_packed_attention_is_a_lower_bound():
    inputs = [PACKED, PACKED, PACKED, EDGES, EDGES, "40", "40", "0."]
    result = work("aten::_flash_attention_forward", *inputs, "False", "False")
    # sum of n^2 of any 4 lengths that add up to 96
    longer = 2 * 8 * (40**2 + 40**2 + 8**2 + 8**2) * 128
    assert PACKED_FORWARD == result.flops < longer
    assert not result.exact


def test_types_of_products():
    assert work("aten::mm", fp8(16, 16), fp8(16, 16)).precision == "fp8"
    complex_ = ([3, 4], "c10::complex<float>"), ([4, 5], "c10::complex<float>")
    assert work("aten::mm", *complex_).flops == 4 * 120
    fp4 = ([16, 16], "c10::Float4_e2m1fn_x2"), ([16, 16], "c10::Float4_e2m1fn_x2")
    assert work("aten::_scaled_mm", *fp4).flops == 2 * 16 * 16 * 32


#: Inputs that are not enough, or do not fit.
UNUSABLE = [
    ("aten::mm", [bf16(3, 4)]),
    ("aten::mm", [bf16(3, 4), bf16(5, 6)]),
    ("aten::mm", [([3, 4], ""), ([4, 5], "")]),
    ("aten::linear", [bf16(), bf16(5, 4)]),
    ("aten::conv2d", [IMAGE, FILTERS]),
    ("aten::conv2d", [IMAGE, FILTERS, NO, "same", "[1, 1]", "[1, 1]", "1"]),
    ("aten::conv2d", [IMAGE, FILTERS, NO, "[0, 0]", "[1, 1]", "[1, 1]", "1"]),
    ("aten::conv2d", [IMAGE, FILTERS, NO, "[1, 1]", "[0, 0]", "[9, 9]", "1"]),
    ("aten::cudnn_convolution", [IMAGE, FILTERS, NO, NO, NO, NO]),
    ("aten::cudnn_convolution_backward_weight", [NO, OUTPUT, IMAGE]),
    ("aten::_scaled_dot_product_flash_attention", [Q, K, V, "0.", "perhaps"]),
    ("aten::add", ["1", "2"]),
    ("aten::_fused_adamw_", [([], "TensorList")]),
]


@pytest.mark.parametrize(("name", "inputs"), UNUSABLE)
def test_incomplete_inputs_have_no_work(name, inputs):
    with pytest.raises(Unknown):
        work(name, *inputs)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([BF16, "1"]),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=12,
)


@pytest.mark.matrix
@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(FORMULAS)),
    texts=st.tuples(*[st.none() | st.text(max_size=9) | json_values.map(json.dumps)] * 3),
)
def test_any_text_is_work_or_unknown(name, texts):
    inputs = parse(*texts)
    if inputs is None:
        return
    try:
        result = FORMULAS[name](inputs)
    except Unknown:
        return
    assert result.flops >= 0
    assert result.bytes >= 0


def test_impossible_sizes_are_no_work():
    huge = 1 << 40
    assert not is_possible(work("aten::mm", bf16(huge, huge), bf16(huge, huge)))


def test_deep_lists_are_no_shapes():
    assert parse("[" * 100_000, '["float"]', None) is None


def test_flops_of_pytorch(shared: Path):
    """PyTorch's own figures of the same run, in its table by input shapes."""
    folder = shared / "data" / "key_averages"
    columns = ["input_dims", "input_types", "concrete_inputs"]
    path = folder / "torch213_cpu_profiler_chrome.json.gz"
    events = ta.read(path, kinds="cpu_op", columns=columns).events
    total: dict[str, int] = {}
    for name, *texts in events.select("name", *columns).iter_rows():
        inputs, formula = parse(*texts), formula_of(name)
        if inputs is not None and formula is not None:
            try:
                total[name] = total.get(name, 0) + formula(inputs).flops
            except Unknown:
                continue
    printed = _printed_flops((folder / "torch213_cpu_profiler_list.dat").read_text())
    compared = ("aten::mm", "aten::addmm", "aten::conv2d", "aten::mul")
    assert printed["aten::conv2d"] > printed["aten::mm"] > 0
    for name in compared[:3]:
        assert total[name] == printed[name]


def _printed_flops(text: str) -> dict[str, int]:
    """Return the last column of a table of ``key_averages`` by operator."""
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("aten::")]
    return {row[0]: round(float(row[-1])) for row in rows if row[-1] != "--"}
