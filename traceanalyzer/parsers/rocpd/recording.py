"""The content of a recording, and names and kinds that RPD and rocprofv3 share."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from traceanalyzer import schema
from traceanalyzer.trace import Device, Issue
from traceanalyzer.vocabulary import collective_of_word

COUNTERS = pl.Schema(
    {
        "ts": pl.Int64(),
        "name": pl.Categorical(),
        "series": pl.Categorical(),
        "pid": pl.Int64(),
        "value": pl.Float64(),
    }
)
LANES = pl.Schema({"owner": pl.Int64, "pid": pl.Int64, "tid": pl.Int64, "label": pl.String})


@dataclass
class Recording:
    """The rows of a database.

    Attributes:
        version: name and version of the tables.
        parts: rows of ``events`` and its side tables, with ``owner``: the process, unique in the
            file (process ids of several hosts are not).
        used: ``owner`` and ``device`` of device work, distinct.
        counters: columns of :data:`COUNTERS`.
        lanes: columns of :data:`LANES`.
        devices: GPUs.
        host: name of the host, or None.
        ranks: rank and world size by owner, where recorded.
        start_ns: time of the first event, or None.
        issues: what was not read.
    """

    version: str
    parts: list[pl.DataFrame] = field(default_factory=list)
    used: pl.DataFrame = field(
        default_factory=lambda: pl.DataFrame(schema={"owner": pl.Int64, "device": pl.Int32})
    )
    counters: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=COUNTERS))
    lanes: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=LANES))
    devices: tuple[Device, ...] = ()
    host: str | None = None
    ranks: dict[int, tuple[int, int | None]] = field(default_factory=dict)
    start_ns: int | None = None
    issues: list[Issue] = field(default_factory=list)


def launch_shape(
    grid: str, block: str, axes: str, in_items: pl.Series | bool = True
) -> list[pl.Expr]:
    """Return grid, in blocks, and block of each axis.

    Args:
        grid: the column of the grid, with ``{}`` for the axis.
        block: the column of the size of a block, in work items.
        axes: the three axes.
        in_items: whether the grid is recorded in work items.
    """
    shape = []
    for axis in axes:
        size, items = pl.col(block.format(axis)), pl.col(grid.format(axis))
        blocks = pl.when(size > 0).then((items + size - 1) // size)
        shape += [
            pl.when(in_items).then(blocks).otherwise(items).alias(f"grid_{axis.lower()}"),
            size.alias(f"block_{axis.lower()}"),
        ]
    return [column.cast(pl.Int32, strict=False) for column in shape]


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
    kinds = (("cuda_runtime", r"^hip[A-Z_]"), ("cuda_driver", r"^hsa_"), ("overhead", PROFILER))
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
