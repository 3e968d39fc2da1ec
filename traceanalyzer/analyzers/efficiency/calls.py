"""Operator calls of one rank with a formula, and the kernels that they launched."""

import re
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import launching
from traceanalyzer.analyzers.common.names import BACKWARD, CHECKPOINT, LAYERS, mapped, matcher
from traceanalyzer.analyzers.efficiency import inputs as recorded
from traceanalyzer.analyzers.efficiency.formulas import MATRIX, formula_of
from traceanalyzer.analyzers.efficiency.inputs import Unknown, Work
from traceanalyzer.frames import intervals, nesting, numbering, slice_tree
from traceanalyzer.trace import Trace

#: Columns of recorded inputs.
INPUTS = ("input_dims", "input_types", "concrete_inputs")

#: Columns of :class:`Work` in frames.
WORK = {
    "kind": pl.String,
    "shape": pl.String,
    "precision": pl.String,
    "flops": pl.Int64,
    "bytes": pl.Int64,
    "is_exact": pl.Boolean,
    "batch": pl.Int64,
    "rows": pl.Int64,
    "columns": pl.Int64,
    "inner": pl.Int64,
}

#: Kernels that compute products of FP32 on tensor cores, as TF32: cuBLAS and CUTLASS name the type
#: or the instruction; those of nvjet all use tensor cores.
_TF32 = re.compile(r"(?i)tf32|s1688|tensorop_s|nvjet_s")
#: Element type in the name of an optimizer's or a list's kernel.
_ELEMENT = re.compile(r"(?:Functor|CatArrayBatchedCopy\w*|Math)<(double|float|c10::\w+)")
_OPAQUE = re.compile(r"CatArrayBatchedCopy\w*<at::native::\(anonymous namespace\)::OpaqueType<(\d+)")
#: Element types of lists by size.
_BY_SIZE = {"1": "unsigned char", "2": "c10::BFloat16", "4": "float", "8": "double"}

#: A single operator may be part of the backward pass of somebody's own function.
_SEVERAL = 2


@dataclass(frozen=True)
class Calls:
    """Calls with a formula.

    Attributes:
        rows: one row per call: ``operator``, the columns of :data:`WORK`, ``first`` (start of its
            first kernel), ``launched`` (its launch, null if not recorded), ``kernels`` (their
            number), ``device_ns`` (time in which any of them ran), ``is_recomputed``.
        kernels: one row per compute kernel: ``start``, ``launched``, ``length_ns``,
            ``is_covered`` (whether it belongs to a call of ``rows``).
    """

    rows: pl.DataFrame
    kernels: pl.DataFrame


def calls_of(trace: Trace, work: pl.DataFrame) -> Calls:
    """Return the operator calls that have a formula and launched kernels.

    A kernel counts for the innermost operator around its launch that has a formula and whose inputs
    were recorded. A matrix product, convolution or attention that calls another one does not count.

    Args:
        trace: trace of one rank with operators, their inputs, and launch calls.
        work: compute kernels, rows of :func:`~.common.device_work.device_work`.
    """
    tree = _tree(trace)
    keys, key_of = _keys(tree)
    computed = [_work(*key, "float") for key in keys.iter_rows()]
    usable = np.array([work is not None for work in computed], bool)
    is_matrix = np.array([work is not None and work.kind in MATRIX for work in computed], bool)
    has = np.zeros(tree.height, bool)
    has[key_of >= 0] = usable[key_of[key_of >= 0]]
    matrix = has.copy()
    matrix[has] = is_matrix[key_of[has]]
    inside = slice_tree.with_descendants(matrix.astype(np.int64), tree)
    has &= ~(matrix & (inside > 1))
    call, launched = _callers(trace, work, tree, has)
    kernels = work.select(
        "start", "end", "name", length_ns=pl.col("end") - pl.col("start")
    ).with_columns(launched, intervals.nullable("call", call, call != nesting.ROOT))
    rows = _rows(kernels.drop_nulls("call"), tree, keys, key_of)
    covered = rows["call"].cast(pl.Int32)
    return Calls(
        rows.drop("call"),
        kernels.select(
            "start", "launched", "length_ns",
            is_covered=pl.col("call").is_in(covered.implode()).fill_null(value=False),
        ),
    )  # fmt: skip


def _tree(trace: Trace) -> pl.DataFrame:
    """Return the operators of all threads with their inputs, as a call tree."""
    is_operator = (pl.col("kind") == "cpu_op") & (pl.col("dur") >= 0) & pl.col("tid").is_not_null()
    rows = trace.events.filter(is_operator)
    thread = numbering.numbered([rows["pid"], rows["tid"]])[1]
    calls = rows.select(
        "name", "pid", "tid", "external_id", *INPUTS,
        start="ts", end=pl.col("ts") + pl.col("dur"), thread=pl.Series(thread),
    )  # fmt: skip
    return slice_tree.build_tree(calls, ["thread"])


def _keys(tree: pl.DataFrame) -> tuple[pl.DataFrame, nesting.Rows]:
    """Return the distinct operators and inputs with a formula, and that of each call (or -1)."""
    known = [name for name in tree["name"].unique().drop_nulls() if formula_of(name)]
    possible = pl.col("name").is_in(known) & pl.col("input_dims").is_not_null()
    calls = tree.select(possible.fill_null(value=False)).to_series().arg_true()
    columns = tree.select("name", *INPUTS)[calls]
    first, number = numbering.numbered(columns.get_columns())
    key_of = np.full(tree.height, -1, np.int32)
    key_of[calls.to_numpy()] = number
    return columns[first].with_columns(pl.col("name").cast(pl.String)), key_of


def _work(
    name: str, dims: str | None, types: str | None, values: str | None, list_type: str | None
) -> Work | None:
    """Return the work of a call, or None if it cannot be computed from what was recorded."""
    formula, inputs = formula_of(name), recorded.parse(dims, types, values, list_type)
    if formula is None or inputs is None:
        return None
    try:
        work = formula(inputs)
    except Unknown:
        return None
    return work if recorded.is_possible(work) else None


def _callers(
    trace: Trace, work: pl.DataFrame, tree: pl.DataFrame, has: intervals.Bools
) -> tuple[nesting.Rows, pl.Series]:
    """Return the call with a formula that launched each kernel (or ROOT), and the launch time."""
    launch = launching.launch_rows(trace, work)
    rows = intervals.nullable("event", launch, launch != nesting.ROOT).cast(pl.UInt32)
    points = trace.events.select("pid", "tid", "ts")[rows.fill_null(0)]
    points = points.with_columns(pl.when(rows.is_not_null()).then("ts").alias("ts"))
    inner = slice_tree.innermost(points, tree, ["pid", "tid"])
    operator = inner.cast(pl.Int32).fill_null(nesting.ROOT).to_numpy()
    operator = launching.with_external_ids(operator, work, tree.select("start", "external_id"))
    outer = slice_tree.nearest(tree, has)
    call = np.full(work.height, nesting.ROOT, np.int32)
    known = operator != nesting.ROOT
    at = operator[known]
    call[known] = np.where(has[at], at, outer[at])
    return call, points["ts"].alias("launched")


def _rows(
    kernels: pl.DataFrame, tree: pl.DataFrame, keys: pl.DataFrame, key_of: nesting.Rows
) -> pl.DataFrame:
    """Return the rows of :class:`Calls`, with ``call``, a row of ``tree``."""
    longest = kernels.sort("call", "length_ns").unique("call", keep="last", maintain_order=True)
    sums = kernels.group_by("call").agg(
        first=pl.col("start").min(), launched=pl.col("launched").min(), kernels=pl.len()
    )
    busy = intervals.measure(kernels, ["call"]).rename({"length": "device_ns"})
    calls = sums.sort("call").hstack([busy.sort("call")["device_ns"]])
    names = longest.sort("call")["name"]
    at = calls["call"].to_numpy()
    list_type, is_tf32 = mapped(names, _list_type), mapped(names, _is_tf32, pl.Boolean)
    variants = [list_type.alias("list_type"), is_tf32.alias("is_tf32")]
    first, number = numbering.numbered([pl.Series("key", key_of[at]), *variants])
    table = pl.DataFrame([pl.Series("key", key_of[at]), *variants])[first]
    works = [
        _row(_work(*keys.row(key), list_type), is_tf32=bool(is_tf32))
        for key, list_type, is_tf32 in table.iter_rows()
    ]
    work = pl.DataFrame(works, schema=WORK, orient="row")[number]
    return calls.hstack(work).with_columns(
        pl.Series("operator", keys["name"].gather(key_of[at])),
        pl.Series("is_recomputed", _recomputed(tree)[at]),
    ).drop_nulls("kind")  # fmt: skip


def _row(work: Work | None, *, is_tf32: bool) -> tuple[object, ...]:
    if work is None:
        return (None,) * len(WORK)
    on_tensor_cores = work.kind in MATRIX and work.precision == "fp32" and is_tf32
    precision = "tf32" if on_tensor_cores else work.precision
    tiles = work.tiles or (None, None, None)
    sizes = (*tiles, work.inner or None)
    return work.kind, work.shape, precision, work.flops, work.bytes, work.exact, *sizes


def _is_tf32(kernel: str) -> bool:
    return _TF32.search(kernel) is not None


def _list_type(kernel: str) -> str | None:
    """Return the element type of a list of tensors, from the name of the kernel."""
    if match := _OPAQUE.search(kernel):
        return _BY_SIZE.get(match[1])
    match = _ELEMENT.search(kernel)
    return match[1] if match else None


def _recomputed(tree: pl.DataFrame) -> intervals.Bools:
    """Return which calls compute activations again: calls of layers in the backward pass.

    PyTorch's checkpointing runs the operators of the forward pass (``aten::linear``) inside a node
    of the backward pass, whose own operators differ (``aten::mm``).
    """
    layer = _named(tree, LAYERS)
    checkpoint = _named(tree, CHECKPOINT)
    node = checkpoint | _named(tree, BACKWARD)
    again = layer & (slice_tree.nearest(tree, node) != nesting.ROOT)
    if not checkpoint.any() and tree["name"].filter(pl.Series(again)).n_unique() < _SEVERAL:
        return np.zeros(tree.height, bool)
    known = layer | node
    inner = np.where(known, np.arange(tree.height), slice_tree.nearest(tree, known))
    return (inner != nesting.ROOT) & (again | checkpoint)[inner]


def _named(tree: pl.DataFrame, pattern: str) -> intervals.Bools:
    matches = mapped(tree["name"], matcher([pattern]), pl.Boolean)
    return matches.fill_null(value=False).to_numpy()
