"""Names and kinds that RPD and rocprofv3 share: API calls, copies, ranges."""

import re
from collections.abc import Sequence

import polars as pl

from traceanalyzer import schema
from traceanalyzer.vocabulary import collective_of_word

#: ``CopyHostToDevice`` of RPD, ``MEMORY_COPY_HOST_TO_DEVICE`` of rocprofv3.
_COPY = re.compile(r"(?i)copy_?(host|device)_?to_?(host|device)")
#: Calls and flushes of RPD itself.
PROFILER = r"^(?:\w*Table::\w+|rpdflush|rpd_\w+|hcc_activity_callback)$"
#: Details that PyTorch appends to the name of an operator begin at the first of these.
_DETAILS = r"^(.*?), (?:seq|op_id|sizes) = "
_RCCL = re.compile(r"^p?(?:nccl|rccl)(\w+)$")
#: RCCL's element types by number; names are like ``ncclBfloat16``.
DTYPES = dict(
    enumerate(
        (
            "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
            "bfloat16", "float8_e4m3fn", "float8_e5m2",
        )
    )
)  # fmt: skip
_MARKER = pl.lit("roctx", dtype=schema.NAME)
RCCL_CATEGORY = "RCCL"


def copy_name(operation: str | None) -> str:
    """Return the name of a copy as in Kineto: ``Memcpy HtoD (Host -> Device)``."""
    match = _COPY.search(operation or "")
    if not match:
        return "Memcpy Unknown (Unknown -> Unknown)"
    source, target = (place.capitalize() for place in match.groups())
    return f"Memcpy {source[0]}to{target[0]} ({source} -> {target})"


def first_kind(text: pl.Expr, patterns: Sequence[tuple[str, str]]) -> pl.Expr:
    """Return the kind of the first (kind, pattern) that a text matches, or null."""
    return pl.coalesce(
        pl.when(text.str.contains(pattern)).then(pl.lit(kind, dtype=schema.KIND))
        for kind, pattern in patterns
    )


def api_kind(name: pl.Expr) -> pl.Expr:
    """Return the kind of a call by its name: HIP and HSA calls, the profiler's, ranges."""
    kinds = (
        ("cuda_runtime", r"^hip[A-Z_]"),
        ("cuda_driver", r"^hsa_"),
        ("overhead", PROFILER),
    )
    return pl.coalesce(first_kind(name, kinds), pl.lit("nvtx", dtype=schema.KIND))


def without_details(text: pl.Expr) -> pl.Expr:
    """Return the operator in a text of ``emit_nvtx``, null for any other text."""
    return text.str.extract(_DETAILS)


def range_category(name: pl.Expr) -> pl.Expr:
    """Return the category of a range: RCCL's calls, or roctx."""
    is_rccl = name.str.contains(_RCCL.pattern).fill_null(value=False)
    return pl.when(is_rccl).then(pl.lit(RCCL_CATEGORY, dtype=schema.NAME)).otherwise(_MARKER)


def collective(name: str | None) -> str | None:
    """Return the collective of an RCCL call, ``ncclAllReduce`` -> ``all_reduce``, or None."""
    match = _RCCL.match(name or "")
    return collective_of_word(match[1]) if match else None


def dtype(value: str | None) -> str | None:
    """Return the element type of an RCCL argument, recorded as a number or as a name."""
    text = (value or "").strip()
    if text.isdecimal():
        return DTYPES.get(int(text)) if len(text) < 3 else None
    return text.removeprefix("nccl").lower() or None
