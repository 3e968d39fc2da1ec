"""Short names and families of kernels.

The names of template kernels are pages of types. The short name is the function with its specific
template arguments: ``vectorized_elementwise_kernel<4,CUDAFunctor_add<float>>``.

There is no naming convention across libraries, so families are a table of known patterns: cuBLAS,
cuDNN, CUTLASS, flash-attention, ATen, Triton as used by TorchInductor, vLLM, FlashInfer and
TensorRT-LLM, FBGEMM, and on AMD Tensile, rocBLAS, MIOpen, Composable Kernel. A name without a match
is ``other``.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import compress

import polars as pl

from traceanalyzer.analyzers.common.device_work import COMMUNICATION
from traceanalyzer.analyzers.common.names import frame_text, matching
from traceanalyzer.files import packaged
from traceanalyzer.vocabulary import COMMUNICATION_PATTERN

#: Longer names are truncated before matching: compilers do not emit them, and matching takes time.
_LONGEST = 4_000

_OPEN, _CLOSE = "<([{", ">)]}"
_BRACKET = re.compile(r"[<>()\[\]{}]")
_TO_BRACKET = re.compile(r"[^<>()\[\]{}]*[<>()\[\]{}]")

#: Different spellings by compilers and profilers: (text that occurs in it, pattern, replacement).
_SPELLINGS = tuple(
    (part, re.compile(pattern), replacement)
    for part, pattern, replacement in (
        ("(anonymous", r"\(anonymous namespace\)::", ""),
        ("unnamed", r"<unnamed>::|\(unnamed\)::", ""),
        ("_GLOBAL__N_1", "_GLOBAL__N_1::", ""),
        (")", r"\((?:int|bool|unsigned int|unsigned long|long|char)\)(?=-?\d)", ""),
        ("[lambda", r"\[lambda\(([^()\[\]]*)\) \(instance (\d+)\)\]", r"{lambda(\1)#\2}"),
        ("operator ()", r"operator \(\)", "operator()"),
        ("enable_if", r"^(?:std::)?enable_if(?:_t)?<.*?>(?:::type)? (?=\w)", ""),
        ("u", r"u(?<=\du)l?\b", ""),
    )
)

#: A lambda: the function that defines it, and its parameter types.
_LAMBDA = re.compile(
    r"""
    (\w+) (?:<[^<>]*(?:<[^<>]*>)?[^<>]*>)? (?:::operator\(\))? \([^()]*\) (?:[ ]const)?
    (?:::\{lambda\([^()]*\)\#\d+\}::operator\(\)\(\)[ ]const)*
    ::\{lambda\(([^()]*)\)\#\d+\}
    """,
    re.VERBOSE,
)
_WRAPPED = re.compile(r"\bgpu_(?:index_)?kernel_impl(?:_nocast)?<")
#: Kernels that only launch their template argument.
_LAUNCHERS = ("kernel", "Kernel", "Kernel2", "device_kernel", "kentry")

#: Plain template arguments: numbers, booleans, number types.
_PLAIN = re.compile(
    r"-?\d+|true|false|void|(?:unsigned |signed )?(?:char|short|int|long)|float\d*|double|half|bool"
    r"|(?:__)?(?:nv_)?b?float16(?:_t)?|BFloat16|Half|Float8_\w+|\(\w+\)\d+"
)
_QUALIFIER = re.compile(r"\b\w+::")
_AROUND = re.compile(r" +(?=[<>,])| (?<=[<>,] ) *")
_START = re.compile(r"[<(]")

#: Arguments that are the same for most kernels.
_PLUMBING = re.compile(
    r",\s*(?:[Aa]rray<char\s*\*,[ ]\d+>"
    r"|(?:Trivial)?OffsetCalculator<[^<>]*(?:<[^<>]*>)?[^<>]*>"
    r"|(?:Load|Store)With(?:out)?Cast(?:<\d+>)?)"
)

#: Copies and memsets; and Tensile on AMD up to the tile size.
_WHOLE = re.compile(r"(?i:memcpy|memset|copy)\w* .*|Cijk_\w*?_MT\d+x\d+x\d+")


def function(name: str) -> str:
    """Return the function with namespaces, without template arguments and parameters."""
    return _parts(name)[0]


def code_text(name: str) -> str:
    """Return the name of a function for a sentence; in C++ without types and parameters."""
    if "::" in name and " (" not in name and name.endswith((")", ") const")):
        return function(name).rpartition(" ")[2]
    return frame_text(name)


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return a short name for each name: the function and its specific template arguments.

    Numbers and plain types shared by all kernels of a function are omitted; equal short names are
    numbered: ``gemm<64,true>``, ``gemm<128,true> [2]``.
    """
    groups: defaultdict[tuple[str, int], dict[str, list[str]]] = defaultdict(dict)
    for name in sorted(set(names)):
        called, arguments = _brief(name)
        groups[called, len(arguments)][name] = arguments
    short: dict[str, str] = {}
    used: dict[str, int] = {}
    for (called, number), group in groups.items():
        specific = number and [
            len(values) > 1 or not _PLAIN.fullmatch(*values)
            for values in map(set, zip(*group.values(), strict=True))
        ]
        for name, arguments in group.items():
            kept = ",".join(compress(arguments, specific)) if specific else ""
            brief = f"{called}<{kept}>" if kept else called
            count = used[brief] = used.get(brief, 0) + 1
            short[name] = brief if count == 1 else f"{brief} [{count}]"
    return short


@lru_cache(maxsize=1 << 18)
def _brief(name: str) -> tuple[str, list[str]]:
    """Return the function without namespaces, and its template arguments without plumbing."""
    whole = _WHOLE.match(name)
    if whole:
        return whole[0], []
    called, arguments = _parts(name)
    plain = called.rpartition("::")[2]
    parts = _arguments(arguments) if arguments else []
    kinds = [part for part in parts if not _PLAIN.fullmatch(part)]
    launches = plain in _LAUNCHERS and (len(parts) == 1 or plain == "kentry")
    return (kinds[0], []) if launches and kinds else (plain or name, parts)


@lru_cache(maxsize=1 << 16)
def _arguments(arguments: str) -> list[str]:
    """Return template arguments without plumbing: many functions have the same."""
    arguments = _without_lambdas(arguments)
    if "::" in arguments:
        arguments = _QUALIFIER.sub("", arguments)
    if "," in arguments:
        arguments = _PLUMBING.sub("", arguments)
    if " " in arguments:
        arguments = _AROUND.sub("", arguments).strip()
    return _split(arguments)


def _split(arguments: str) -> list[str]:
    """Split arguments at commas outside brackets."""
    parts, depth = list[str](), 0
    for piece in arguments.split(",") if arguments else ():
        if depth > 0:
            parts[-1] += f",{piece}"
        else:
            parts.append(piece)
        if _BRACKET.search(piece):
            depth += sum(map(piece.count, _OPEN)) - sum(map(piece.count, _CLOSE))
    return parts


@lru_cache(maxsize=1 << 18)
def _parts(name: str) -> tuple[str, str]:
    """Return the function with namespaces, and its template arguments."""
    text = name[:_LONGEST]
    if text.startswith("_Z"):
        return _mangled(text), ""
    for part, pattern, replacement in _SPELLINGS:
        if part in text:
            text = pattern.sub(replacement, text)
    text = text.removeprefix("void ")
    if "<" not in text:
        return text.partition("(")[0].strip(), ""
    called, arguments, at = "", "", 0
    while (start := _START.search(text, at)) and start[0] == "<":
        end = _closing(text, start.start())
        arguments = text[start.end() : end]
        called += text[at : start.start()]
        at = end + 1
    called += text[at : start.start() if start else None]
    return called.strip(), arguments


def _closing(text: str, at: int) -> int:
    """Return the index of the matching bracket; the end of the text if there is none."""
    depth = 0
    for part in _TO_BRACKET.findall(text, at):
        at += len(part)
        if part[-1] in _OPEN:
            depth += 1
        elif text[at - 2] != "-":
            depth -= 1
            if not depth:
                return at - 1
    return len(text)


def _without_lambdas(arguments: str) -> str:
    """Return template arguments with lambdas replaced by the function that defines them."""
    if wrapped := "kernel_impl" in arguments and _WRAPPED.search(arguments):
        end = _closing(arguments, wrapped.end() - 1)
        arguments = arguments[: wrapped.start()] + arguments[wrapped.end() : end]
    return _LAMBDA.sub(r"\1(\2)", arguments) if "lambda" in arguments else arguments


def _mangled(name: str) -> str:
    """Return the identifiers at the start of a mangled name: ``_ZN2ck4gemm`` is ``ck::gemm``."""
    identifiers = []
    at = 3 if name.startswith(("_ZN", "_ZL")) else 2
    while number := re.match(r"\d+", name[at:]):
        start = at + number.end()
        at = start + int(number[0])
        identifiers.append(name[start:at])
    return "::".join(one for one in identifiers if one != "_GLOBAL__N_1") or name


# --- families ------------------------------------------------------------------------------

GEMM = "gemm"
CONVOLUTION = "convolution"
ATTENTION, SOFTMAX, KV_CACHE = "attention", "softmax", "kv cache"
ELEMENTWISE, COPY, OPTIMIZER = "elementwise", "copy", "optimizer"
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


def _not_after(word: str) -> str:
    """Return the pattern of a place that does not follow a word, without lookbehind."""
    parts = (f"(?:^|[^{word[at]}]){word[at + 1 :]}" for at in range(len(word)))
    return f"(?:{'|'.join(parts)})"


def _patterns(of: str) -> dict[str, tuple[str, ...]]:
    """Return the patterns of ``kernel_families.toml`` without lookaround, which polars lacks."""
    return {
        one: tuple(
            re.sub(r"\(\?<!(\w+)\)", lambda word: _not_after(word[1]), text) for text in patterns
        )
        for one, patterns in packaged("analyzers/common/kernel_families.toml")[of].items()
    }


#: Patterns of whole names: generic kernels of ATen by their arguments, and communication.
_GENERIC = {COMMUNICATION: (COMMUNICATION_PATTERN.removeprefix("(?i)"),), **_patterns("whole")}
#: Patterns of function names by family, in the order in which they are tried.
_FUNCTIONS = _patterns("functions")

#: Fewer names are tested in Python: compiling the patterns of polars takes longer.
_FEW_NAMES = 100

#: Kernels generated by TorchInductor: ``poi`` is pointwise, ``red`` and ``per`` are reductions,
#: ``tem`` is a template, ``spl`` a scan. The names of the fused operations follow.
_INDUCTOR = re.compile(r"triton_(?:(poi|for|red|per|tem|spl)\w*?_fused_(\w*)|_0d1d)")
#: Kernels of TorchInductor until 2023 are named by their signature only.
FUSED = "fused, unnamed"
_TEMPLATES = ((ATTENTION, "attention"), (CONVOLUTION, "conv"), (GEMM, ""))
_REDUCTIONS = (
    ("norm", "(layer|batch|group|instance|rms)_?norm|var_mean|rsqrt"),
    (SOFTMAX, "softmax|logsumexp|nll_loss|cross_entropy"),
    ("reduce", ""),
)

#: Names of the kernels among which those of :data:`SOFTMAX` are.
MAY_BE_SOFTMAX = f"(?i){'|'.join(_FUNCTIONS[SOFTMAX])}"

#: All families of kernels.
KERNEL_FAMILIES: tuple[str, ...] = tuple(dict.fromkeys((*_GENERIC, *_FUNCTIONS, FUSED, OTHER)))

#: FP32 kernels without tensor cores on GPUs that have them: kernels of cuBLAS, CUTLASS and cuDNN
#: (``ffma`` is the FP32 instruction), and float templates of cuDNN.
PLAIN_FLOAT = (
    r"(?:volta|turing|ampere|hopper|sm[789]\d|cutlass_[789]\d_simt)_(?:s(?:gemm|cudnn)_|simt_sgemm)"
    r"|cudnn_(?:infer|train)_(?:volta|turing|ampere)_scudnn|cutlass_[789]\d_simt_sgemm"
    r"|xmma_\w*_f32f32_f32f32_f32_\w*_ffma_"
    r"|(?:[dw]grad|fprop)\w*_(?:engine|alg\w*)<float\b"
    r"|convolve_sgemm<float, ?float\b|winograd\w*::\w+<(?:\d+, ?)?float, ?float\b"
)

#: Tensor core kernels of CUTLASS that load one or two elements at a time, because a row of a matrix
#: is not a multiple of 16 bytes.
_UNALIGNED = r"tensorop_(?:[a-ce-z]\w*_)?[a-ce-z]\d+gemm\w*_align[12]\b"

#: Kernels in double precision: products of cuBLAS, CUTLASS, cuDNN and Tensile; templates of double,
#: and arrays of Julia.
_DOUBLE = r"(?:^|_)d(?:884)?gem[mv]|_f64f64_|Cijk_\w+?_DB_|<double\b|Array<Float64,"


def family(name: str, kind: str = "kernel") -> str:
    """Return the family of device work: of a kernel by its name, of a copy by its direction.

    Copies are ``memcpy HtoD``, ``memcpy DtoH``, ``memcpy DtoD``, ``memcpy PtoP`` or just
    ``memcpy``; memsets are ``memset``. Of many kernels, :func:`families_of` is faster.
    """
    if kind == "gpu_memset":
        return "memset"
    if kind == "gpu_memcpy":
        places = _COPY.search(name)
        known = [_PLACES.get(place.lower()) for place in places.groups()] if places else [None]
        return "memcpy" if None in known else f"memcpy {known[0]}to{known[1]}"
    return _kernel_family(name[:_LONGEST])


@lru_cache(maxsize=1024)
def _kernel_family(text: str) -> str:
    """Return the family of a kernel."""
    if fused := _INDUCTOR.match(text):
        return _fused_family(fused[1], fused[2] or "")
    parts = (text, function(text))
    return next((one for one, test, part in _tests() if test.search(parts[part])), OTHER)


@cache
def _tests() -> tuple[tuple[str, re.Pattern[str], int], ...]:
    """Return the patterns of :func:`_attempts`, compiled."""
    return tuple((one, re.compile(pattern), part) for one, pattern, part in _attempts())


def _attempts() -> Iterator[tuple[str, str, int]]:
    """Yield families, patterns and what they are of: the whole name (0), or the function (1).

    In order: the function is more specific than its template arguments.
    """
    for table, part in ((_GENERIC, 0), (_FUNCTIONS, 1), (_FUNCTIONS, 0)):
        for one, patterns in table.items():
            yield one, f"(?i){'|'.join(patterns)}", part


def families_of(names: Iterable[str]) -> dict[str, str]:
    """Return the family of each kernel, as :func:`family` does; in less than 10 us each."""
    distinct = list(dict.fromkeys(names))
    if len(distinct) < _FEW_NAMES:
        return {name: family(name) for name in distinct}
    result = dict.fromkeys(distinct, OTHER)
    texts = [name[:_LONGEST] for name in distinct]
    left = pl.DataFrame({"name": distinct, "0": texts, "1": [function(text) for text in texts]})
    is_fused = left["0"].str.contains(f"^{_INDUCTOR.pattern}")
    result |= {name: family(name) for name in left.filter(is_fused)["name"]}
    left = left.filter(~is_fused)
    for one, pattern, part in _attempts():
        matches = left[str(part)].str.contains(pattern)
        result |= dict.fromkeys(left.filter(matches)["name"], one)
        left = left.filter(~matches)
    return result


#: Kernels of libraries that change the layout of images: no compiler fuses them.
CHANGES_LAYOUT = re.compile(r"(?i)nchw_?to_?nhwc|nhwc_?to_?nchw")


#: Kernels that copy several tensors into a new one (torch.cat).
JOINS = r"CatArray|(?i:\bcat_kernel|concat)"


def is_fusible(name: str) -> bool:
    """Whether a compiler could fuse the kernel: TorchInductor has fused its own already."""
    return not (_INDUCTOR.match(name) or CHANGES_LAYOUT.search(name))


def fused_operations(name: str) -> str:
    """Return the operations of a kernel of TorchInductor as in its name, else an empty text."""
    match = _INDUCTOR.match(name)
    return match[2] or "" if match else ""


def _fused_family(prefix: str | None, operations: str) -> str:
    """Return the family of a TorchInductor kernel by its prefix and operations."""
    if prefix is None:
        return FUSED
    if prefix in ("poi", "for"):
        return ELEMENTWISE
    if prefix == "spl":
        return "sort"
    patterns = _TEMPLATES if prefix == "tem" else _REDUCTIONS
    return next(name for name, pattern in patterns if re.search(pattern, operations))


def plain_float(names: Iterable[str]) -> list[str]:
    """Return the kernels that use FP32 without tensor cores on a GPU that has them."""
    return matching(names, [PLAIN_FLOAT])


def unaligned(names: Iterable[str]) -> list[str]:
    """Return the matrix products whose rows are not multiples of 16 bytes."""
    return matching(names, [_UNALIGNED])


def double(names: Iterable[str]) -> list[str]:
    """Return the kernels that use double precision."""
    return matching(names, [_DOUBLE])
