"""What sort of computation a kernel does, by its name.

Libraries name kernels as they please, so this is a table of what is known of their habits: cuBLAS,
cuDNN, CUTLASS, flash-attention, ATen, Triton as TorchInductor uses it, vLLM, FlashInfer and
TensorRT-LLM, FBGEMM, and on AMD Tensile, rocBLAS, MIOpen, Composable Kernel. A name that tells
nothing is ``other``.
"""

from __future__ import annotations

import re
from functools import lru_cache

from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.common.kernel_names import function
from traceanalyzer.vocabulary import COMMUNICATION_PATTERN

GEMM = "gemm"
CONVOLUTION = "convolution"
OTHER = "other"

_COPY = re.compile(r"(?i)\b(?:memcpy\s*|copy)(\w+?)(?:to|2)(\w+)\b")
_PLACES = {
    "h": "H",
    "m": "H",
    "d": "D",
    "p": "P",
    "a": "A",
    "host": "H",
    "device": "D",
    "peer": "P",
}

#: Generic kernels of ATen, by what they are given; and what a name may say anywhere.
_GENERIC: dict[str, tuple[str, ...]] = {
    COMMUNICATION: (COMMUNICATION_PATTERN.removeprefix("(?i)"),),
    "norm": ("elementwise_kernel.*batch_norm",),
    "copy": (r"::(vectorized_|unrolled_)?elementwise_kernel\w*<.*(copy_kernel|_device_to_device)",),
    "elementwise": ("::(vectorized_|unrolled_|legacy::)?elementwise_kernel",),
    "reduce": ("::reduce_kernel<",),
}

#: Words in the names of functions, by family, in the order in which they are tried: a fused kernel
#: is of the first family that its name shows.
# fmt: off
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    # tables of embeddings are updated in the backward pass, whatever optimizer they are named for
    "embedding": ("(?<!rotary_)embedding", "fbgemm_gpu", "pooled_embs", "jagged"),
    "random": (
        "distribution_elementwise", "dropout", "philox", "bernoulli", "curand", "randperm",
        "multinomial",
    ),
    "optimizer": (
        "multi_tensor_apply", r"fused_?(adam|sgd|lamb\b|adagrad)", "(adam|sgd)w?_?(kernel|functor)",
    ),
    "norm": (
        "(batch|layer|group|instance|rms)_?norm", r"\bbn_[fb]w", "GammaBeta", "RowwiseMoments",
        "ComputeInternalGradients",
    ),
    "attention": (
        "fmha", "flash_(fwd|bwd|attn)", "attention", "attn", r"\bmha_", "[_:]mla_", "paged_?kv",
        "sdpa", "reshape_and_cache", "rotary", "BatchPrefill", "BatchDecode", "page_indices",
    ),
    "softmax": ("softmax", "logsumexp", "nll_?loss", "ClassNLL", "cross_entropy"),
    "moe": (r"\bmoe::", "moe_", "topk_?gating", "expandInputRows"),
    CONVOLUTION: (
        "conv(?!er)", r"(?<![a-z])[a-z]\d*cudnn_", "fprop", "[dw]grad", "winograd", "im2col",
        "col2im", "im2d2col", "implicit_gemm", "igemm_(fwd|bwd|wrw)", "bwd_(weight|data)",
        "cask_cudnn", "cudnn::cnn", "cutlass_cudnn", "SubTensorOp", "fft2d_",
    ),
    GEMM: (
        "gemm", "gemv", "nvjet", "^Cijk_", "cublas", "splitk_?reduce", "reduce_1Block", "matmul",
        r"\b[ab]?mm_", "_mm_", "_mfma_", "cutlass.*tensorop", r"\bdot_kernel", "epilogue::impl",
        "machete", "marlin", "wvsplitk", "triton_tem_",
    ),
    "pooling": (
        "(max|avg|average|mean)_?pool", "pooling", "upsampl", "grid_sampl", "interpolat",
        "roi_align",
    ),
    "sort": (
        "sort", "top_?k", "radix", "searchsorted", "Device(Scan|Compact|Select)", "ReduceByKey",
        "cumsum", "cumprod", "_scan_", "kernel_scan", "unique", "nonzero", "histogram",
        "kth_?value",
    ),
    "index": (
        "index", "gather", "scatter", "lookup", "take_", "masked_select", "tril", "triu",
        "one_?hot", "linearize", "to_dense_representation", "bounds_check", "compute_grad_weight",
    ),
    "quantization": ("quant", "fp8_cast", "cvt_", "[_:]amax_"),
    "copy": (
        "CatArray", "transpose", "permute", "nchw", "nhwc", r"(?<!\w)copy", "_copy", "contiguous",
        "[_:]cat_", "pad_", r"_pad\b", "repack", "reorder", "repeat", "roll_", "flip_",
    ),
    "reduce": (
        "reduc", "triton_(red|per)_", r"\bsum_", "_sum_", "mean_", "arg_?(max|min)", "norm2",
    ),
    "elementwise": (
        "element_?wise", "pointwise", "triton_poi_", "functor", "fill", "activation", "act_and_mul",
        "gelu", "silu", "swiglu", "relu", "sigmoid", "tanh", "scale", "op_?tensor", "bias",
        "arange", "cast", "lerp", "^cupy_", r"^loop_(\w+_)?fusion", "^wrapped_",
    ),
    "fft": ("fft",),
}
# fmt: on


def _tests(words: dict[str, tuple[str, ...]]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((of, re.compile("|".join(parts), re.IGNORECASE)) for of, parts in words.items())


_BY_NAME, _BY_FUNCTION = _tests(_GENERIC), _tests(_FUNCTIONS)

#: Every family that a kernel can be of.
KERNEL_FAMILIES: tuple[str, ...] = tuple(dict.fromkeys((*_GENERIC, *_FUNCTIONS, OTHER)))

#: Longer names are cut: nobody writes them, and time is finite.
_LONGEST = 4_000

#: Kernels that compute in single precision without tensor cores, on chips that have them.
_PLAIN_FLOAT = re.compile(
    r"(?:volta|turing|ampere|hopper|sm[789]\d|cutlass_[789]\d_simt)_(?:s(?:gemm|cudnn)_|simt_sgemm)"
    r"|cudnn_(?:infer|train)_(?:volta|turing|ampere)_scudnn|cutlass_[789]\d_simt_sgemm"
)


@lru_cache(maxsize=65_536)
def family(name: str, kind: str = "kernel") -> str:
    """The family of a piece of device work: of a kernel by its name, of a copy by its direction.

    Copies are ``memcpy HtoD``, ``memcpy DtoH``, ``memcpy DtoD``, ``memcpy PtoP`` or just
    ``memcpy``, sets are ``memset``.
    """
    if kind == "gpu_memset":
        return "memset"
    if kind == "gpu_memcpy":
        places = _COPY.search(name)
        known = [_PLACES.get(place.lower()) for place in places.groups()] if places else [None]
        return "memcpy" if None in known else f"memcpy {known[0]}to{known[1]}"
    text = name[:_LONGEST]
    # the types that a function is given say less than its own name
    tried = ((_BY_NAME, text), (_BY_FUNCTION, function(text)), (_BY_FUNCTION, text))
    return next((of for tests, said in tried for of, test in tests if test.search(said)), OTHER)


def is_plain_float(name: str) -> bool:
    """Whether the name says: single precision, no tensor cores, on a chip that has them."""
    return _PLAIN_FLOAT.search(name) is not None
