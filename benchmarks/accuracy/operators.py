"""Operators of a transformer: the kernels that they launch, and how long these take.

Matrix products take their FLOPs at 60 % of the peak of an H100, all other kernels the bytes that
they move.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.accuracy import names
from benchmarks.accuracy.simulator import Rank

VOCABULARY = 32_000
SEQUENCE = 2048
#: Operations and bytes for each microsecond.
TENSOR_CORE, SIMT, ATTENTION, MEMORY = 6.0e8, 0.5e8, 3.5e8, 2.5e6


@dataclass(frozen=True)
class Work:
    """Operators, the outermost first, and the kernels that the innermost one launches.

    Each call of a matrix product launches one kernel.
    """

    ops: tuple[str, ...]
    kernels: tuple[tuple[str, float], ...]
    dims: tuple[tuple[int, ...], ...]
    blocks: int


def run(r: Rank, works: Iterable[Work]) -> None:
    """Launch the kernels of operators."""
    single = not r.job.options.tensor_cores
    type_ = "float" if single else "c10::BFloat16"
    for work in works:
        shapes = [list(d) for d in work.dims]
        *outer, inner = work.ops
        is_product = inner in ("aten::mm", "aten::bmm")
        calls = [[kernel] for kernel in work.kernels] if is_product else [work.kernels]
        with ExitStack() as stack:
            for op in outer:
                stack.enter_context(r.op(op, shapes, type_))
            for kernels in calls:
                with r.op(inner, shapes, type_):
                    for kernel, us in kernels:
                        name = kernel.replace("c10::BFloat16", "float") if single else kernel
                        r.launch(name, us, grid=[work.blocks, 1, 1])
            if r.job.options.checks_gradients and outer and outer[0].startswith("autograd::"):
                check_for_nan(r)


def check_for_nan(r: Rank) -> None:
    """Read whether a gradient has a NaN, as anomaly detection of autograd does after each node."""
    for op, kernel in (("aten::isnan", names.ADD), ("aten::any", names.REDUCE)):
        with r.op(op):
            r.launch(kernel, 5.0)
    with r.op("aten::item"), r.op("aten::_local_scalar_dense"):
        r.copy("DtoH", 4, pinned=r.job.options.pinned_scalars, wait=True)


def product_us(tokens: int, n: int, k: int, *, tensor_cores: bool = True) -> float:
    """Duration of a matrix product."""
    return max(4.0, 2 * tokens * n * k / (TENSOR_CORE if tensor_cores else SIMT))


def memory_us(values: int) -> float:
    """Duration of a kernel that moves a number of 16-bit values."""
    return max(2.0, 2 * values / MEMORY)


def linear(tokens: int, n: int, k: int, *, tc: bool) -> Work:
    kernel = names.GEMM if tc else names.SGEMM
    us = product_us(tokens, n, k, tensor_cores=tc)
    dims = ((n,), (tokens, k), (k, n))
    return Work(("aten::linear", "aten::addmm"), ((kernel, us),), dims, tokens * n // 16_384)


def linear_backward(tokens: int, n: int, k: int, *, tc: bool) -> Work:
    us = product_us(tokens, n, k, tensor_cores=tc)
    kernels = (names.GEMM_NN, names.GEMM_NT) if tc else (names.SGEMM, names.SGEMM)
    ops = _backward_ops("AddmmBackward0", "aten::mm")
    dims = ((tokens, n), (n, k))
    return Work(ops, tuple((kernel, us) for kernel in kernels), dims, tokens * k // 16_384)


def _backward_ops(node: str, op: str) -> tuple[str, ...]:
    return (f"autograd::engine::evaluate_function: {node}", node, op)


def _pointwise(op: str, kernel: str, tokens: int, width: int, moved: int) -> Work:
    values = tokens * width
    kernels = ((kernel, memory_us(values * moved)),)
    return Work((op,), kernels, ((tokens, width), (tokens, width)), max(1, values // 1024))


def _norm(tokens: int, width: int) -> Work:
    ops = ("aten::layer_norm", "aten::native_layer_norm")
    us = memory_us(2 * tokens * width)
    return Work(ops, ((names.NORM, us),), ((tokens, width), (width,), (width,)), tokens)


def node(name: str, op: str, kernel: str, us: float, tokens: int, width: int) -> Work:
    return Work(_backward_ops(name, op), ((kernel, us),), ((tokens, width),), tokens)


@lru_cache(256)
def forward_layer(
    tokens: int, width: int, tc: bool, fused: bool, pointwise: int
) -> tuple[Work, ...]:
    """The operators of one transformer layer."""
    return (
        _norm(tokens, width),
        linear(tokens, 3 * width, width, tc=tc),
        *_attention(tokens, width, fused=fused),
        linear(tokens, width, width, tc=tc),
        _pointwise("aten::add", names.ADD, tokens, width, 3),
        _norm(tokens, width),
        linear(tokens, 4 * width, width, tc=tc),
        _pointwise("aten::gelu", names.GELU, tokens, 4 * width, 2),
        *(_pointwise("aten::mul", names.MUL, tokens, 4 * width, 3) for _ in range(pointwise)),
        linear(tokens, width, 4 * width, tc=tc),
        _pointwise("aten::add", names.ADD, tokens, width, 3),
    )


def attention_us(tokens: int, width: int) -> float:
    """Duration of causal attention with a flash kernel."""
    return max(5.0, 2 * tokens * min(SEQUENCE, tokens) * width / ATTENTION)


def _attention(tokens: int, width: int, *, fused: bool) -> tuple[Work, ...]:
    heads, length = width // 128, min(SEQUENCE, tokens)
    batch = max(1, tokens // length) * heads
    dims = ((tokens // length, heads, length, 128),) * 3
    if fused:
        ops = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_flash_attention",
               "aten::_flash_attention_forward")  # fmt: skip
        return (Work(ops, ((names.FLASH, attention_us(tokens, width)),), dims, batch * 16),)
    scores = batch * length * length
    product_time = product_us(batch * length, length, 128)
    bmm = ("aten::matmul", "aten::bmm")
    flat = ((batch, length, 128), (batch, 128, length))
    square = ((batch, length, length),)
    product = Work(bmm, ((names.BMM, product_time + memory_us(scores)),), flat, scores // 16_384)
    scale = ((names.MUL, memory_us(2 * scores)),)
    softmax = ((names.SOFTMAX, memory_us(2 * scores)),)
    return (
        product,
        Work(("aten::div",), scale, square, scores // 1024),
        Work(("aten::masked_fill", "aten::masked_fill_"), scale, square, scores // 1024),
        Work(("aten::softmax", "aten::_softmax"), softmax, square, scores // 4096),
        product,
    )


@lru_cache(256)
def backward_layer(
    tokens: int, width: int, tc: bool, fused: bool, pointwise: int
) -> tuple[Work, ...]:
    """The operators of the backward pass of one layer."""
    add = node("AddBackward0", "aten::add", names.ADD, memory_us(3 * tokens * width), tokens, width)
    us = memory_us(3 * tokens * width)
    op = "aten::native_layer_norm_backward"
    norm = node("NativeLayerNormBackward0", op, names.NORM_BACKWARD, us, tokens, width)
    wide = memory_us(12 * tokens * width)
    gelu = node(
        "GeluBackward0", "aten::gelu_backward", names.GELU_BACKWARD, wide, tokens, 4 * width
    )
    mul = node("MulBackward0", "aten::mul", names.MUL, 2 * wide, tokens, 4 * width)
    return (
        linear_backward(tokens, width, 4 * width, tc=tc),
        *(mul for _ in range(pointwise)),
        gelu,
        linear_backward(tokens, 4 * width, width, tc=tc),
        norm,
        add,
        linear_backward(tokens, width, width, tc=tc),
        *_attention_backward(tokens, width, fused=fused),
        linear_backward(tokens, 3 * width, width, tc=tc),
        norm,
        add,
    )


def _attention_backward(tokens: int, width: int, *, fused: bool) -> tuple[Work, ...]:
    heads, length = width // 128, min(SEQUENCE, tokens)
    batch = max(1, tokens // length) * heads
    if fused:
        ops = ("autograd::engine::evaluate_function: ScaledDotProductFlashAttentionBackward0",
               "ScaledDotProductFlashAttentionBackward0",
               "aten::_scaled_dot_product_flash_attention_backward",
               "aten::_flash_attention_backward")  # fmt: skip
        us = 2.5 * attention_us(tokens, width)
        dims = ((tokens // length, heads, length, 128),) * 4
        return (Work(ops, ((names.FLASH_BACKWARD, us),), dims, batch * 16),)
    scores = batch * length * length
    bmm = (names.BMM, product_us(batch * length, length, 128) + memory_us(scores))
    flat, square = ((batch, length, 128), (batch, 128, length)), ((batch, length, length),)
    softmax = ((names.SOFTMAX_BACKWARD, memory_us(3 * scores)),)
    scale = ((names.MUL, memory_us(2 * scores)),)
    of_softmax = _backward_ops("SoftmaxBackward0", "aten::_softmax_backward_data")
    of_mask = _backward_ops("MaskedFillBackward0", "aten::masked_fill")
    product = Work(_backward_ops("BmmBackward0", "aten::bmm"), (bmm, bmm), flat, scores // 16_384)
    return (
        product,
        Work(of_softmax, softmax, square, scores // 4096),
        Work(of_mask, scale, square, scores // 1024),
        Work(_backward_ops("DivBackward0", "aten::div"), scale, square, scores // 1024),
        product,
    )
