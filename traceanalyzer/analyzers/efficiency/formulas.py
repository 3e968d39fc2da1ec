"""FLOPs and bytes of operators, from the shapes and types of their inputs.

``FORMULAS`` maps the name of an operator to its formula. A formula gets the :class:`Inputs` of one
call and returns its :class:`Work`, or raises :class:`Unknown`. Sources:

* FLOPs of matrix products, convolutions and attention: ``torch/utils/flop_counter.py`` of PyTorch;
  an addition and a multiplication are two operations, an added bias is not counted.
* Causal attention: the scores below the diagonal only, which the kernels compute
  (FlashAttention, arXiv:2205.14135, and its benchmark). ``flop_counter`` counts all scores.
* Backward pass of attention: five matrix products instead of two (FlashAttention recomputes the
  scores), 2.5 x the forward pass.
* Bytes: each input is read once and each output is written once, the least that any kernel needs.

Positions of arguments are those of ``aten/src/ATen/native/native_functions.yaml``.
"""

import re
from collections.abc import Callable, Sequence

from traceanalyzer.analyzers.efficiency.inputs import (
    TYPES,
    Inputs,
    Shape,
    Unknown,
    Work,
    count,
    text_of,
)

Formula = Callable[[Inputs], Work]

GEMM, CONVOLUTION, ATTENTION = "gemm", "convolution", "attention"
NORM, SOFTMAX, POINTWISE, REDUCTION = "normalisation", "softmax", "pointwise", "reduction"
EMBEDDING, OPTIMIZER = "embedding", "optimizer"

#: Kinds whose FLOPs count for MFU: the rest is less than 1 % of a model's FLOPs.
MATRIX = (GEMM, CONVOLUTION, ATTENTION)


# --- matrix products -------------------------------------------------------------------------


def _product(
    x: Inputs, sizes: tuple[int, int, int, int], operands: Sequence[int], out_width: float
) -> Work:
    """Return the work of ``batch`` products of (m x k) and (k x n): 2 b m n k FLOPs."""
    batch, m, n, k = sizes
    read = sum(x.bytes(at) for at in operands)
    text = f"{batch}x{m}x{n}x{k}" if batch > 1 else f"{m}x{n}x{k}"
    return Work(
        GEMM,
        text,
        x.precision(operands[0]),
        (8 if x.precision(operands[0]).startswith("complex") else 2) * batch * m * n * k,
        int(read + batch * m * n * out_width),
        tiles=(batch, m, n),
        inner=k,
    )


def _mm(first: int = 0, bias: int | None = None, out_width: int | None = None) -> Formula:
    """Return the formula of a product of two vectors, matrices or batches, which are broadcast."""

    def formula(x: Inputs) -> Work:
        a, b = x.shape(first), x.shape(first + 1)
        if not a or not b:
            raise Unknown
        m, n = (a[-2] if len(a) > 1 else 1), (b[-1] if len(b) > 1 else 1)
        if a[-1] != (b[-2] if len(b) > 1 else b[0]):
            raise Unknown
        batch = count(_broadcast([a[:-2], b[:-2]]))
        added = (bias,) if bias is not None and x.has(bias) else ()
        width = out_width or x.width(first)
        return _product(x, (batch, m, n, a[-1]), (first, first + 1, *added), width)

    return formula


def _scaled_mm(x: Inputs) -> Work:
    """``_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype)``; FP4 holds 2 values."""
    (m, k), (inner, n) = _matrix(x, 0), _matrix(x, 1)
    if k != inner:
        raise Unknown
    out = TYPES.get(x.scalar_type(6) or "", ("", 2.0))[1]
    per_element = 2 if x.precision(0) == "fp4" else 1
    return _product(x, (1, m, n, k * per_element), (0, 1), out)


def _cutlass_scaled_mm(x: Inputs) -> Work:
    """``cutlass_scaled_mm(out, a, b, ...)`` of vLLM."""
    (m, k), (_, n) = _matrix(x, 1), _matrix(x, 2)
    return _product(x, (1, m, n, k), (1, 2), x.width(0))


def _linear(x: Inputs) -> Work:
    """``linear(input, weight, bias)``: input [..., k], weight [n, k]."""
    a, (n, k) = x.shape(0), _matrix(x, 1)
    if not a or a[-1] != k:
        raise Unknown
    bias = (2,) if x.has(2) else ()
    return _product(x, (1, count(a[:-1]), n, k), (0, 1, *bias), x.width(0))


def _grouped_mm(x: Inputs) -> Work:
    """``_grouped_mm(a, b, offs)``: one product per group; each row of ``a`` is in one group.

    The lengths of the groups are not recorded, but do not matter: 2-D times 3-D is m x n x k in
    total, and 2-D times 2-D (gradients of weights) sums over the rows of all groups.
    """
    a, b = x.shape(0), x.shape(1)
    both = len(a) == len(b) == 3
    if not {len(a), len(b)} <= {2, 3} or a[-1] != b[-2] or (both and a[0] != b[0]):
        raise Unknown
    width = max(x.width(0), 2.0)  # FP8 products are written in 16 bits
    return _product(x, (a[0] if both else 1, a[-2], b[-1], a[-1]), (0, 1), width)


# --- convolutions ------------------------------------------------------------------------------


def _convolution(weight: int = 1, **at: int) -> Formula:
    """Return the formula of a convolution.

    FLOPs: 2 x weights per output channel x output elements; transposed: 2 x weights per input
    channel x input elements. The output has (in + 2 p - d (k - 1) - 1) // s + 1 elements per
    dimension, a transposed one (in - 1) s - 2 p + d (k - 1) + output padding + 1.

    Args:
        weight: position of the weights.
        at: positions of ``stride``, ``padding``, ``dilation``; ``output_padding`` for a transposed
            one; ``transposed`` if an argument says so.
    """

    def formula(x: Inputs) -> Work:
        image, kernel = x.shape(0), x.shape(weight)
        spatial = len(image) - 2
        if spatial < 1 or len(kernel) != len(image):
            raise Unknown
        stride, padding, dilation = (
            _per_dimension(x.numbers(at[name]), spatial)
            for name in ("stride", "padding", "dilation")
        )
        transposed = x.flag(at["transposed"]) if "transposed" in at else "output_padding" in at
        extra = _per_dimension(x.numbers(at["output_padding"]), spatial) if transposed else ()
        sizes = []
        for axis, size in enumerate(image[2:]):
            field = dilation[axis] * (kernel[2 + axis] - 1) + 1
            if transposed:
                sizes.append((size - 1) * stride[axis] - 2 * padding[axis] + field + extra[axis])
            elif stride[axis] < 1:
                raise Unknown
            else:
                sizes.append((size + 2 * padding[axis] - field) // stride[axis] + 1)
        if min(sizes) < 0:
            raise Unknown
        groups = x.number(at["groups"]) if transposed else 1
        channels = kernel[1] * groups if transposed else kernel[0]
        out = (image[0], channels, *sizes)
        flops = 2 * count(kernel[1:]) * count(image if transposed else out)
        moved = x.bytes(0) + x.bytes(weight) + count(out) * x.width(0)
        return _convolution_work(x, image, kernel, flops, moved)

    return formula


def _convolution_backward(x: Inputs) -> Work:
    """``convolution_backward(grad_output, input, weight, ..., transposed, ..., output_mask)``.

    Gradients of the input and of the weights each cost as much as the forward pass.
    """
    out, image, kernel = x.shape(0), x.shape(1), x.shape(2)
    if len(out) < 3 or not len(out) == len(image) == len(kernel):
        raise Unknown
    wanted = x.flags(10)
    forward = 2 * count(kernel[1:]) * count(image if x.flag(7) else out)
    of_input, of_weight = [*wanted, False, False][:2]
    # the gradient of the input needs the weights, that of the weights the input
    moved = x.bytes(0) + (of_input + of_weight) * (x.bytes(1) + x.bytes(2))
    return _convolution_work(x, image, kernel, forward * (of_input + of_weight), moved)


def _gradient_of_input(x: Inputs) -> Work:
    """``cudnn_convolution_backward_input(input_size, grad_output, weight, ...)``, PyTorch < 1.11.

    Without the recorded size of the input, its bytes are not counted: a lower bound.
    """
    out, kernel = x.shape(1), x.shape(2)
    if len(out) < 3 or len(out) != len(kernel):
        raise Unknown
    try:
        written, exact = count(x.numbers(0)), True
    except Unknown:
        written, exact = 0, False
    text = f"{text_of(out)}, weight {text_of(kernel)}"
    moved = x.bytes(1) + x.bytes(2) + written * x.width(1)
    flops = 2 * count(kernel[1:]) * count(out)
    return Work(CONVOLUTION, text, x.precision(1), flops, int(moved), exact)


def _gradient_of_weight(x: Inputs) -> Work:
    """``cudnn_convolution_backward_weight(weight_size, grad_output, input, ...)``, PyTorch < 1.11.

    Where the size of the weights is not recorded, the inputs are those of the operator that calls
    it (:data:`OF_CALLER`): ``(input, grad_output, weight, ...)``.
    """
    if x.has(0):
        image, kernel, read = x.shape(0), x.shape(2), x.bytes(0)
    else:
        image, kernel, read = x.shape(2), x.numbers(0), x.bytes(2)
    out = x.shape(1)
    if len(out) < 3 or not len(out) == len(image) == len(kernel):
        raise Unknown
    moved = x.bytes(1) + read + count(kernel) * x.width(1)
    return _convolution_work(x, image, kernel, 2 * count(kernel[1:]) * count(out), moved)


def _convolution_work(x: Inputs, image: Shape, kernel: Shape, flops: int, moved: float) -> Work:
    text = f"{text_of(image)}, weight {text_of(kernel)}"
    return Work(CONVOLUTION, text, x.precision(1), flops, int(moved))


def _per_dimension(values: Shape, spatial: int) -> Shape:
    """Return one value per spatial dimension; one value stands for all."""
    if len(values) == 1:
        return values * spatial
    if len(values) != spatial:
        raise Unknown
    return values


# --- attention ---------------------------------------------------------------------------------

#: FLOPs of the backward pass over those of the forward pass: five products instead of two.
_BACKWARD_PRODUCTS = 2.5


def _attention(
    first: int = 0,
    *,
    causal: int,
    heads_first: bool = True,
    backward: bool = False,
    lengths: int | None = None,
    mask: bool = False,
) -> Formula:
    """Return the formula of fused attention: 2 B Hq (Dqk + Dv) FLOPs per score that is computed.

    Args:
        first: position of the queries; keys and values follow.
        causal: position of the flag, or of the mask type if ``mask``.
        heads_first: tensors are [batch, heads, sequence, dim], else [batch, sequence, heads, dim].
        backward: a backward pass.
        lengths: position of ``cu_seqlens_q``, if sequences may be packed: tensors are then
            [tokens, heads, dim], and their lengths are not recorded. FLOPs are a lower bound, those
            of sequences of equal length.
        mask: ``causal`` is the position of ``custom_mask_type``, whose values above 0 are causal.
    """

    def formula(x: Inputs) -> Work:
        q, k, v = (x.shape(first + at) for at in range(3))
        is_causal = x.number(causal) > 0 if mask else x.flag(causal)
        if lengths is not None and x.has(lengths):
            sizes, exact = _packed(q, k, x.shape(lengths or 0)), False
        elif len(q) == len(k) == len(v) == 4:
            heads, tokens = (1, 2) if heads_first else (2, 1)
            sizes, exact = (q[0], q[heads], q[tokens], k[tokens]), True
        else:
            raise Unknown
        batch, heads_q, length_q, length_k = sizes
        scores = int(batch * heads_q * _scores(length_q, length_k, causal=is_causal))
        factor = _BACKWARD_PRODUCTS if backward else 1
        moved = x.bytes(first) + x.bytes(first + 1) + x.bytes(first + 2)
        moved += count(q[:-1]) * v[-1] * x.width(first)  # the output
        text = f"{text_of(q)}, kv {text_of(k)}{', causal' if is_causal else ''}"
        flops = int(2 * scores * (q[-1] + v[-1]) * factor)
        # backward: reads these and the gradient of the output, writes three gradients
        moved = 2 * moved if backward else moved
        return Work(ATTENTION, text, x.precision(first), flops, int(moved), exact)

    return formula


def _packed(q: Shape, k: Shape, edges: Shape) -> tuple[int, int, float, float]:
    """Return batch, heads and mean lengths of packed sequences."""
    q, k = (shape[1:] if len(shape) == 4 and shape[0] == 1 else shape for shape in (q, k))
    if len(q) != 3 or len(k) != 3 or len(edges) != 1 or edges[0] < 2:
        raise Unknown
    batch = edges[0] - 1
    return batch, q[1], q[0] / batch, k[0] / batch


def _scores(length_q: float, length_k: float, *, causal: bool) -> float:
    """Return the number of scores that are computed; causal masks end at the last key."""
    if not causal:
        return length_q * length_k
    if length_q > length_k:
        return length_k * length_k / 2
    return length_q * (length_k - length_q / 2)


# --- operators that memory bandwidth limits ------------------------------------------------------


def _moved(kind: str, *, read: Sequence[int], written: Sequence[int], passes: int = 1) -> Formula:
    """Return the formula of an operator that reads and writes tensors of given sizes."""

    def formula(x: Inputs) -> Work:
        shape = x.shape(read[0] if read else written[0])
        known = [at for at in (*read, *written) if x.has(at)]
        moved = int(sum(x.bytes(at) for at in known))
        at = read[0] if read else written[0]
        return Work(kind, text_of(shape), x.precision(at), passes * count(shape), moved)

    return formula


def _pointwise(x: Inputs) -> Work:
    """Return one operation per element: reads all tensors, writes one of the broadcast shape."""
    tensors = x.tensors()
    if not tensors:
        raise Unknown
    out = _broadcast([x.shape(at) for at in tensors])
    widest = max(tensors, key=lambda at: (len(x.shape(at)) > 0, x.width(at)))
    moved = sum(x.bytes(at) for at in tensors) + count(out) * x.width(widest)
    return Work(POINTWISE, text_of(out), x.precision(widest), count(out), int(moved))


def _in_place(x: Inputs) -> Work:
    """Return one operation per element of the first tensor, which is read and written."""
    out = x.shape(0)
    moved = sum(x.bytes(at) for at in x.tensors()) + x.bytes(0)
    return Work(POINTWISE, text_of(out), x.precision(0), count(out), int(moved))


def _compare(x: Inputs) -> Work:
    """Return a comparison: reads all tensors, writes booleans."""
    tensors = x.tensors()
    out = _broadcast([x.shape(at) for at in tensors])
    moved = sum(x.bytes(at) for at in tensors) + count(out)
    return Work(POINTWISE, text_of(out), x.precision(tensors[0]), count(out), int(moved))


def _where(x: Inputs) -> Work:
    out = _broadcast([x.shape(at) for at in x.tensors()])
    moved = sum(x.bytes(at) for at in x.tensors()) + count(out) * x.width(1)
    return Work(POINTWISE, text_of(out), x.precision(1), count(out), int(moved))


def _dropout(x: Inputs) -> Work:
    """``native_dropout(input, p, train)`` writes its output and a mask of booleans."""
    shape = x.shape(0)
    moved = 2 * x.bytes(0) + count(shape)
    return Work(POINTWISE, text_of(shape), x.precision(0), count(shape), int(moved))


def _reduction(x: Inputs) -> Work:
    """Return a reduction: reads its input; the output is small, and not counted."""
    shape = x.shape(0)
    return Work(
        REDUCTION, text_of(shape), x.precision(0), count(shape), int(x.bytes(0)), exact=False
    )


def _cat(x: Inputs) -> Work:
    elements = x.elements_of_list(0)
    moved = 2 * elements * x.list_width()
    return Work(POINTWISE, f"{elements} elements", x.list_precision(), 0, int(moved))


def _norm_like(kind: str, passes: int, *, inputs: int = 1) -> Formula:
    """Return the formula of an operator over ``inputs`` tensors of the first one's shape.

    All other tensors (weights, statistics) are read once; one of its shape is written.
    """

    def formula(x: Inputs) -> Work:
        shape = x.shape(0)
        if any(x.shape(at) != shape for at in range(inputs)):
            raise Unknown
        moved = sum(x.bytes(at) for at in x.tensors()) + x.bytes(0)
        return Work(kind, text_of(shape), x.precision(0), passes * count(shape), int(moved))

    return formula


def _lookup(table: int, indices: int) -> Formula:
    """Return the formula of rows copied out of a table by index."""

    def formula(x: Inputs) -> Work:
        rows, chosen = x.shape(table), x.shape(indices)
        if len(rows) < 1:
            raise Unknown
        elements = count(chosen) * count(rows[1:])
        moved = x.bytes(indices) + 2 * elements * x.width(table)
        text = f"{text_of(chosen)} of {text_of(rows)}"
        return Work(EMBEDDING, text, x.precision(table), 0, int(moved))

    return formula


def _embedding_backward(x: Inputs) -> Work:
    """``embedding_dense_backward(grad, indices, num_weights, ...)`` writes the whole table."""
    grad = x.shape(0)
    table = x.number(2) * grad[-1] if grad else 0
    moved = x.bytes(0) + x.bytes(1) + table * x.width(0)
    return Work(EMBEDDING, f"{text_of(grad)}", x.precision(0), count(grad), int(moved))


def _optimizer(lists: int, written: int, flops: int) -> Formula:
    """Return the formula of a step over lists of tensors: parameters, gradients, states.

    Their element type is taken from the kernel's name.

    Args:
        lists: number of lists that are read, from the first argument on.
        written: number of these that are written.
        flops: operations per element.
    """

    def formula(x: Inputs) -> Work:
        elements = x.elements_of_list(0)
        present = sum(_has_list(x, at) for at in range(lists))
        moved = elements * x.list_width() * (present + min(written, present))
        precision = x.list_precision()
        return Work(OPTIMIZER, f"{elements} elements", precision, flops * elements, int(moved))

    return formula


def _has_list(x: Inputs, at: int) -> bool:
    try:
        return x.elements_of_list(at) > 0
    except Unknown:
        return False


def _generated(x: Inputs) -> Work:
    """Return a kernel of TorchInductor: its arguments are its inputs and outputs, moved once."""
    tensors = x.tensors()
    if not tensors:
        raise Unknown
    shapes = [x.shape(at) for at in tensors]
    largest = max(range(len(tensors)), key=lambda at: count(shapes[at]))
    moved = int(sum(x.bytes(at) for at in tensors))
    precision = x.precision(tensors[largest])
    shape = shapes[largest]
    return Work(POINTWISE, text_of(shape), precision, count(shape), moved, exact=False)


def _matrix(x: Inputs, at: int) -> Shape:
    shape = x.shape(at)
    if len(shape) != 2:
        raise Unknown
    return shape


def _broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the shape that these are broadcast to."""
    if not shapes:
        raise Unknown
    length = max(map(len, shapes))
    padded = [(1,) * (length - len(shape)) + tuple(shape) for shape in shapes]
    sizes = [{size for size in column if size != 1} for column in zip(*padded, strict=True)]
    if any(len(different) > 1 for different in sizes):
        raise Unknown
    return tuple(next(iter(different), 1) for different in sizes)


# --- the table -----------------------------------------------------------------------------------

_CONV_ARGUMENTS = {"stride": 3, "padding": 4, "dilation": 5}
_OF_LIBRARY = {"padding": 2, "stride": 3, "dilation": 4}
_WITH_BIAS = {"padding": 3, "stride": 4, "dilation": 5}
_DEPTHWISE = {"stride": 4, "padding": 5, "dilation": 6}


def _of(formula: Formula, names: str) -> dict[str, Formula]:
    """Return the formula of each of these operators of PyTorch, separated by blanks."""
    return dict.fromkeys((f"aten::{name}" for name in names.split()), formula)


#: Matrix products and convolutions.
PRODUCTS: dict[str, Formula] = {
    **_of(_mm(), "mm bmm matmul mv"),
    **_of(_mm(1, bias=0), "addmm addmm_ _addmm_activation baddbmm baddbmm_"),
    "aten::linear": _linear,
    **_of(_mm(1), "addmv addmv_"),
    "aten::_int_mm": _mm(out_width=4),
    "aten::_scaled_mm": _scaled_mm,
    **_of(_grouped_mm, "_grouped_mm _scaled_grouped_mm"),
    "_C::cutlass_scaled_mm": _cutlass_scaled_mm,
    # convolutions: conv1d-3d call convolution, which calls the one of a library
    **_of(_convolution(**_CONV_ARGUMENTS), "conv1d conv2d conv3d cudnn_convolution_relu"),
    **_of(
        _convolution(stride=3, padding=4, output_padding=5, groups=6, dilation=7),
        "conv_transpose1d conv_transpose2d conv_transpose3d",
    ),
    **_of(
        _convolution(**_CONV_ARGUMENTS, transposed=6, output_padding=7, groups=8),
        "convolution _convolution convolution_overrideable",
    ),
    "aten::cudnn_convolution": _convolution(**_OF_LIBRARY),
    "aten::cudnn_convolution_add_relu": _convolution(stride=5, padding=6, dilation=7),
    **_of(
        _convolution(**_WITH_BIAS),
        "miopen_convolution miopen_depthwise_convolution mkldnn_convolution",
    ),
    "aten::cudnn_convolution_transpose": _convolution(
        padding=2, output_padding=3, stride=4, dilation=5, groups=6
    ),
    "aten::miopen_convolution_transpose": _convolution(
        padding=3, output_padding=4, stride=5, dilation=6, groups=7
    ),
    **_of(_convolution(**_DEPTHWISE), "_conv_depthwise2d conv_depthwise3d"),
    "aten::convolution_backward": _convolution_backward,
    **_of(_gradient_of_input, "cudnn_convolution_backward_input miopen_convolution_backward_input"),
    **_of(
        _gradient_of_weight, "cudnn_convolution_backward_weight miopen_convolution_backward_weight"
    ),
}

FORMULAS: dict[str, Formula] = {
    **PRODUCTS,
    # attention: the outer operators call the inner ones, which count
    "aten::_scaled_dot_product_flash_attention": _attention(causal=4),
    "aten::_flash_attention_forward": _attention(causal=8, heads_first=False, lengths=3),
    "aten::_scaled_dot_product_efficient_attention": _attention(causal=6),
    "aten::_efficient_attention_forward": _attention(
        causal=9, heads_first=False, lengths=4, mask=True
    ),
    "aten::_scaled_dot_product_cudnn_attention": _attention(causal=6),
    "aten::_cudnn_attention_forward": _attention(causal=10, lengths=4),
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention(causal=5),
    "aten::_scaled_dot_product_flash_attention_backward": _attention(
        1, causal=11, backward=True, lengths=6
    ),
    "aten::_flash_attention_backward": _attention(
        1, causal=11, heads_first=False, backward=True, lengths=6
    ),
    "aten::_scaled_dot_product_efficient_attention_backward": _attention(
        1, causal=11, backward=True
    ),
    "aten::_efficient_attention_backward": _attention(
        1, causal=14, heads_first=False, backward=True, lengths=6, mask=True
    ),
    "aten::_scaled_dot_product_cudnn_attention_backward": _attention(
        1, causal=14, backward=True, lengths=9
    ),
    "flash_attn::_flash_attn_forward": _attention(causal=5, heads_first=False),
    "flash_attn::_flash_attn_varlen_forward": _attention(causal=9, heads_first=False, lengths=3),
    "flash_attn::_flash_attn_backward": _attention(1, causal=11, heads_first=False, backward=True),
    "flash_attn::_flash_attn_varlen_backward": _attention(
        1, causal=15, heads_first=False, backward=True, lengths=9
    ),
    # normalisation and softmax: several operations per element, but bandwidth limits them
    **_of(
        _norm_like(NORM, 5),
        "native_layer_norm native_group_norm native_batch_norm cudnn_batch_norm miopen_batch_norm",
    ),
    "aten::_fused_rms_norm": _norm_like(NORM, 4),
    **_of(
        _norm_like(NORM, 8, inputs=2),
        """native_layer_norm_backward _fused_rms_norm_backward native_group_norm_backward
        native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward""",
    ),
    **_of(_norm_like(SOFTMAX, 5), "_softmax _log_softmax"),
    **_of(_norm_like(SOFTMAX, 4, inputs=2), "_softmax_backward_data _log_softmax_backward_data"),
    "_C::rms_norm": _moved(NORM, read=(1, 2), written=(0,), passes=4),
    "_C::fused_add_rms_norm": _moved(NORM, read=(0, 1, 2), written=(0, 1), passes=5),
    # pointwise
    **_of(
        _pointwise,
        """add sub rsub mul div neg abs pow square reciprocal exp log sqrt rsqrt sin cos tanh
        sigmoid relu erf clamp clamp_min clamp_max maximum minimum lerp addcmul addcdiv gelu
        silu leaky_relu hardswish nan_to_num round threshold_backward sigmoid_backward
        tanh_backward gelu_backward silu_backward native_dropout_backward masked_fill tril triu
        mse_loss_backward remainder floor bitwise_and bitwise_or""",
    ),
    **_of(
        _in_place,
        """add_ sub_ mul_ div_ neg_ pow_ exp_ sqrt_ sigmoid_ relu_ clamp_ clamp_min_ lerp_ addcmul_
        addcdiv_ silu_ masked_fill_ tanh_ leaky_relu_ hardtanh_ abs_ reciprocal_""",
    ),
    **_of(_compare, "eq ne lt le gt ge isnan isinf logical_not"),
    "aten::where": _where,
    "aten::native_dropout": _dropout,
    "aten::copy_": _moved(POINTWISE, read=(1,), written=(0,), passes=0),
    **_of(_moved(POINTWISE, read=(), written=(0,), passes=0), "fill_ zero_"),
    "aten::cat": _cat,
    "_C::silu_and_mul": _moved(POINTWISE, read=(1,), written=(0,)),
    "_C::gelu_and_mul": _moved(POINTWISE, read=(1,), written=(0,)),
    "_C::static_scaled_fp8_quant": _moved(POINTWISE, read=(1, 2), written=(0,)),
    **_of(
        _reduction,
        """sum mean max min amax amin argmax argmin prod norm linalg_vector_norm all any var std
        var_mean logsumexp""",
    ),
    # embeddings
    "aten::embedding": _lookup(0, 1),
    "aten::index_select": _lookup(0, 2),
    "aten::embedding_dense_backward": _embedding_backward,
    # optimizers: lists of parameters, gradients and states
    **_of(_optimizer(4, 3, 12), "_fused_adam_ _fused_adamw_"),
    "aten::_fused_sgd_": _optimizer(3, 2, 4),
    "aten::_fused_adagrad_": _optimizer(3, 2, 6),
    **_of(
        _optimizer(2, 1, 1),
        "_foreach_add_ _foreach_sub_ _foreach_mul_ _foreach_div_ _foreach_lerp_",
    ),
    **_of(_optimizer(3, 1, 1), "_foreach_addcmul_ _foreach_addcdiv_"),
    **_of(_optimizer(1, 1, 1), "_foreach_sqrt_ _foreach_zero_ _foreach_neg_"),
}

#: Products that call another one, which counts.
OUTER_PRODUCTS = {
    *("aten::linear", "aten::matmul", "aten::convolution", "aten::_convolution"),
    *(f"aten::{kind}{n}d" for kind in ("conv", "conv_transpose") for n in (1, 2, 3)),
}

#: Operators that may lack a size, and the ones that call them with a tensor of that size.
OF_CALLER = {
    f"aten::{library}_convolution_backward_weight": f"aten::{library}_convolution_backward"
    for library in ("cudnn", "miopen")
}

_INDUCTOR = re.compile(r"triton_(?:poi|red|per|for)\w*_fused_\w+")


def formula_of(name: str) -> Formula | None:
    """Return the formula of an operator, or None."""
    return FORMULAS.get(name) or (_generated if _INDUCTOR.fullmatch(name) else None)
