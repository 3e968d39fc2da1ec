"""What the name of a kernel says: a short name, and the family of its computation.

A kernel of a template library is called by a page of types. People know it by its function and by
what it was given: ``vectorized_elementwise_kernel<4,CUDAFunctor_add<float>>``.

Libraries name kernels as they please, so families are a table of what is known of their habits:
cuBLAS, cuDNN, CUTLASS, flash-attention, ATen, Triton as TorchInductor uses it, vLLM, FlashInfer and
TensorRT-LLM, FBGEMM, and on AMD Tensile, rocBLAS, MIOpen, Composable Kernel. A name that tells
nothing is ``other``.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.vocabulary import COMMUNICATION_PATTERN

#: Longer names are cut before they are looked into: no compiler writes them, and time is finite.
_LONGEST = 4_000

_OPEN, _CLOSE = "<([{", ">)]}"

#: Ways in which compilers and profilers write one thing: (pattern, instead).
_SPELLINGS = tuple(
    (re.compile(pattern), instead)
    for pattern, instead in (
        (r"\(anonymous namespace\)::|<unnamed>::|\(unnamed\)::|_GLOBAL__N_1::", ""),
        (r"\((?:int|bool|unsigned int|unsigned long|long|char)\)(?=-?\d)", ""),
        (r"\[lambda\(([^()\[\]]*)\) \(instance (\d+)\)\]", r"{lambda(\1)#\2}"),
        (r"operator \(\)", "operator()"),
        (r"^std::enable_if<.*?>::type ", ""),
        (r"^void ", ""),
        (r"(\d)ul?\b", r"\1"),
    )
)

#: A function object made in place: the function that made it, and the types that it takes.
_LAMBDA = re.compile(
    r"""
    (\w+) (?:<[^<>]*(?:<[^<>]*>)?[^<>]*>)? (?:::operator\(\))? \([^()]*\) (?:[ ]const)?
    (?:::\{lambda\([^()]*\)\#\d+\}::operator\(\)\(\)[ ]const)*
    ::\{lambda\(([^()]*)\)\#\d+\}
    """,
    re.VERBOSE,
)
_WRAPPED = re.compile(r"\bgpu_(?:index_)?kernel_impl(?:_nocast)?<")
#: Kernels that only start the one they are given.
_LAUNCHERS = ("kernel", "Kernel", "Kernel2", "device_kernel")

#: Template arguments that say little by themselves: numbers, truths, types of numbers.
_PLAIN = re.compile(
    r"-?\d+|true|false|void|(?:unsigned |signed )?(?:char|short|int|long)|float\d*|double|half|bool"
    r"|(?:__)?(?:nv_)?b?float16(?:_t)?|BFloat16|Half|Float8_\w+|\(\w+\)\d+"
)
_QUALIFIER = re.compile(r"\b\w+::")

#: Arguments that are much the same for every kernel of their sort.
_PLUMBING = re.compile(
    r",\s*(?:[Aa]rray<char\s*\*,[ ]\d+>"
    r"|(?:Trivial)?OffsetCalculator<[^<>]*(?:<[^<>]*>)?[^<>]*>"
    r"|(?:Load|Store)With(?:out)?Cast(?:<\d+>)?)"
)

#: Copies and sets; and Tensile on AMD: what is multiplied, and the tile, the rest is how.
_WHOLE = re.compile(r"(?i:memcpy|memset|copy)\w* .*|Cijk_\w*?_MT\d+x\d+x\d+")


@lru_cache(maxsize=65_536)
def function(name: str) -> str:
    """The function with its namespaces, without template arguments and parameters."""
    return _parts(name)[0]


def short_names(names: Iterable[str]) -> dict[str, str]:
    """A short name for each name: the function, and the template arguments that tell.

    Numbers and plain types that all kernels of one function share are left out; names that are
    still the same are numbered: ``gemm<64,true>``, ``gemm<128,true> [2]``.
    """
    alike: defaultdict[tuple[str, int], dict[str, list[str]]] = defaultdict(dict)
    for name in sorted(set(names)):
        called, arguments = _brief(name)
        alike[called, len(arguments)][name] = arguments
    found: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for (called, _), group in alike.items():
        told = [
            not (_PLAIN.fullmatch(own[0]) and len(set(own)) == 1)
            for own in zip(*group.values(), strict=True)
        ]
        for name, arguments in group.items():
            pairs = zip(arguments, told, strict=True)
            kept = ",".join(argument for argument, tells in pairs if tells)
            brief = f"{called}<{kept}>" if kept else called
            taken[brief] += 1
            found[name] = brief if taken[brief] == 1 else f"{brief} [{taken[brief]}]"
    return found


@lru_cache(maxsize=65_536)
def _brief(name: str) -> tuple[str, list[str]]:
    """The function without namespaces, and its template arguments without plumbing."""
    whole = _WHOLE.match(name)
    if whole:
        return whole[0], []
    called, arguments = _parts(name)
    plain = called.rsplit("::", 1)[-1]
    told = _PLUMBING.sub("", _QUALIFIER.sub("", _told(arguments)))
    given = _split(re.sub(r"\s*([<>,])\s*", r"\1", told).strip())
    if plain in _LAUNCHERS and len(given) == 1:
        return given[0], []
    return plain or name, given


def _split(arguments: str) -> list[str]:
    """Arguments that commas part, outside of all brackets."""
    parts, depth = [""], 0
    for letter in arguments:
        depth += (letter in _OPEN) - (letter in _CLOSE)
        if letter == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts if arguments else []


def _parts(name: str) -> tuple[str, str]:
    """The function with its namespaces, and its template arguments."""
    text = name[:_LONGEST]
    if text.startswith("_Z"):
        return _mangled(text), ""
    for pattern, instead in _SPELLINGS:
        text = pattern.sub(instead, text)
    called, arguments, at = "", "", 0
    while at < len(text) and text[at] != "(":
        if text[at] == "<":
            end = _closing(text, at)
            arguments = text[at + 1 : end]
            at = end + 1
        else:
            called += text[at]
            at += 1
    return called.strip(), arguments


def _closing(text: str, at: int) -> int:
    """Where the bracket at a place is closed; the end where it never is."""
    depth = 0
    for place in range(at, len(text)):
        if text[place] in _OPEN:
            depth += 1
        elif text[place] in _CLOSE and text[place - 1] != "-":
            depth -= 1
            if not depth:
                return place
    return len(text)


def _told(arguments: str) -> str:
    """Template arguments with function objects named by the function that made them."""
    wrapped = _WRAPPED.search(arguments)
    if wrapped:
        end = _closing(arguments, wrapped.end() - 1)
        arguments = arguments[: wrapped.start()] + arguments[wrapped.end() : end]
    return _LAMBDA.sub(r"\1(\2)", arguments)


def _mangled(name: str) -> str:
    """The identifiers at the start of a mangled name: ``_ZN2ck4gemm`` is ``ck::gemm``."""
    found = []
    at = 3 if name.startswith(("_ZN", "_ZL")) else 2
    while number := re.match(r"\d+", name[at:]):
        start = at + number.end()
        at = start + int(number[0])
        found.append(name[start:at])
    return "::".join(word for word in found if word != "_GLOBAL__N_1") or name


# --- families ------------------------------------------------------------------------------

GEMM = "gemm"
CONVOLUTION = "convolution"
ATTENTION, SOFTMAX, KV_CACHE = "attention", "softmax", "kv cache"
ELEMENTWISE, COPY = "elementwise", "copy"
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
    KV_CACHE: (
        "(append|store|set|write|copy|update|save|gather)_?(paged_?)?kv_?(cache|buffer)",
        "(reshape|concat)_and_cache", "kv_?indices", "page_indices", "(copy|swap)_blocks",
    ),
    ATTENTION: (
        "fmha", "flash_?(fwd|bwd|attn|mla|infer)", "attention", "(?<![a-z])(sage|s)?_?attn",
        r"\bmha_", "[_:]f?mla_", "paged_?kv", "sdpa", "BatchPrefill", "BatchDecode",
    ),
    "moe": (
        "(?<![a-z])(moe|experts?)(?![a-z])", "(?-i:(?:Mo[eE]|Experts?)(?![a-z]))", "topk_?gating",
        "grouped_?topk", "expandInputRows", "routing(Indices|Main|Renormalize|Custom)",
        "(un)?permute_tokens",
    ),
    SOFTMAX: ("softmax", "logsumexp", "nll_?loss", "ClassNLL", "cross_entropy"),
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
        "rotary", "(?<![a-z])rope(?![a-z])", "arange", "cast", "lerp", "^cupy_",
        r"^loop_(\w+_)?fusion", "^wrapped_",
    ),
    "fft": ("fft",),
}
# fmt: on


def _tests(words: dict[str, tuple[str, ...]]) -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((of, re.compile("|".join(parts), re.IGNORECASE)) for of, parts in words.items())


_BY_NAME, _BY_FUNCTION = _tests(_GENERIC), _tests(_FUNCTIONS)

#: Kernels that TorchInductor generates: ``poi`` is pointwise, ``red`` and ``per`` reduce, ``tem``
#: is a template, ``spl`` a scan. Then come the names of the fused operations.
_INDUCTOR = re.compile(r"triton_(?:(poi|for|red|per|tem|spl)\w*?_fused_(\w*)|_0d1d)")
#: Kernels of TorchInductor until 2023 have the name of their signature only.
FUSED = "fused, unnamed"
_TEMPLATES = ((ATTENTION, "attention"), (CONVOLUTION, "conv"), (GEMM, ""))
_REDUCTIONS = (
    ("norm", "(layer|batch|group|instance|rms)_?norm|var_mean|rsqrt"),
    (SOFTMAX, "softmax|logsumexp|nll_loss|cross_entropy"),
    ("reduce", ""),
)

#: Every family that a kernel can be of.
KERNEL_FAMILIES: tuple[str, ...] = tuple(dict.fromkeys((*_GENERIC, *_FUNCTIONS, FUSED, OTHER)))

#: Kernels that compute in single precision without tensor cores, on chips that have them: those of
#: cuBLAS, CUTLASS and cuDNN (``ffma`` is the plain instruction), and cuDNN's templates of floats.
_PLAIN_FLOAT = re.compile(
    r"(?:volta|turing|ampere|hopper|sm[789]\d|cutlass_[789]\d_simt)_(?:s(?:gemm|cudnn)_|simt_sgemm)"
    r"|cudnn_(?:infer|train)_(?:volta|turing|ampere)_scudnn|cutlass_[789]\d_simt_sgemm"
    r"|xmma_\w*_f32f32_f32f32_f32_\w*_ffma_"
    r"|(?:[dw]grad|fprop)\w*_(?:engine|alg\w*)<float\b"
    r"|convolve_sgemm<float, ?float\b|winograd\w*::\w+<(?:\d+, ?)?float, ?float\b"
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
    fused = _INDUCTOR.match(text)
    if fused:
        return _fused_family(fused[1], fused[2] or "")
    # the types that a function is given say less than its own name
    tried = ((_BY_NAME, text), (_BY_FUNCTION, function(text)), (_BY_FUNCTION, text))
    return next((of for tests, said in tried for of, test in tests if test.search(said)), OTHER)


def is_inductor(name: str) -> bool:
    """Whether TorchInductor generated the kernel: its operations are fused already."""
    return _INDUCTOR.match(name) is not None


def _fused_family(prefix: str | None, operations: str) -> str:
    """The family of a kernel of TorchInductor, by its prefix and its operations."""
    if prefix is None:
        return FUSED
    if prefix in ("poi", "for"):
        return ELEMENTWISE
    if prefix == "spl":
        return "sort"
    patterns = _TEMPLATES if prefix == "tem" else _REDUCTIONS
    return next(name for name, pattern in patterns if re.search(pattern, operations))


def is_plain_float(name: str) -> bool:
    """Whether the name says: single precision, no tensor cores, on a chip that has them."""
    return _PLAIN_FLOAT.search(name) is not None
