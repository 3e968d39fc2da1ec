"""Operator calls of one rank with a formula, and the kernels that they launched."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import launching
from traceanalyzer.analyzers.common.device_work import COMPUTE, device_work
from traceanalyzer.analyzers.common.kernel_names import COPY, ELEMENTWISE, families_of
from traceanalyzer.analyzers.common.names import (
    BACKWARD,
    CHECKPOINT,
    LAYERS,
    distinct,
    mapped,
    matcher,
)
from traceanalyzer.analyzers.efficiency import formulas, inputs as recorded
from traceanalyzer.analyzers.efficiency.formulas import MATRIX, OF_CALLER, formula_of
from traceanalyzer.analyzers.efficiency.inputs import Unknown, Work
from traceanalyzer.analyzers.kernels.training import RECOMPUTED, training
from traceanalyzer.frames import intervals, nesting, numbering, slice_tree
from traceanalyzer.schema import INPUTS
from traceanalyzer.trace import Trace

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

#: Matrix products and convolutions that launch kernels.
PRODUCTS = frozenset(formulas.PRODUCTS.keys() - formulas.OUTER_PRODUCTS)
#: Operators whose inputs are read for products.
INPUTS_OF = PRODUCTS | {*OF_CALLER.values()}
#: Families of kernels that other rules count, whichever operator launches them.
_OTHER_FAMILIES = (COPY, ELEMENTWISE)
#: Maximum number of products, as operators with their inputs.
_MOST = 200

#: Kernels that compute products of FP32 on tensor cores, as TF32: cuBLAS and CUTLASS name the type
#: or the instruction; those of nvjet all use tensor cores.
_TF32 = re.compile(r"(?i)tf32|s1688|tensorop_s|nvjet_s")
#: Element type in the name of an optimizer's or a list's kernel.
_ELEMENT = re.compile(r"(?:Functor|CatArrayBatchedCopy\w*|Math)<(double|float|c10::\w+)")
_OPAQUE = re.compile(
    r"CatArrayBatchedCopy\w*<at::native::\(anonymous namespace\)::OpaqueType<(\d+)"
)
#: Element types of lists by size.
_BY_SIZE = {"1": "unsigned char", "2": "c10::BFloat16", "4": "float", "8": "double"}

#: Stands for the type of lists until their kernels are known.
_ANY_TYPE = "float"

#: The fields of a call without a formula.
_UNKNOWN = (None,) * len(Work._fields)

#: A single operator may be part of the backward pass of somebody's own function.
_SEVERAL = 2


@dataclass(frozen=True)
class Calls:
    """Calls with a formula.

    Attributes:
        rows: one row per call: ``event`` (row of ``events``), ``operator``, the columns of
            :data:`WORK`, ``first`` (start of its first kernel), ``launched`` (its launch, null if
            not recorded), ``kernels`` (their number), ``device_ns`` (time in which any of them
            ran), ``is_recomputed``.
        kernels: one row per compute kernel: ``start``, ``launched``, ``length_ns``, ``operator``
            (the innermost around its launch, or null), ``is_covered`` (whether it belongs to a call
            of ``rows``).
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
    operator, launched = _operators(trace, work, launching.launch_rows(trace, work), tree)
    keys, key_of = _keys(tree, _around(operator, tree))
    works = [_work(key, _ANY_TYPE) for key in keys.iter_rows()]
    has = _counted(tree, key_of, works)
    outer = slice_tree.nearest(tree, has)
    known = operator != nesting.ROOT
    call = np.full(work.height, nesting.ROOT, np.int32)
    call[known] = np.where(has[operator[known]], operator[known], outer[operator[known]])
    kernels = work.select(
        "start", "end", "name", length_ns=pl.col("end") - pl.col("start")
    ).with_columns(
        launched,
        intervals.nullable("call", call, call != nesting.ROOT),
        intervals.nullable("inner", operator, known),
    )
    rows = _rows(kernels.drop_nulls("call"), recomputed(tree), keys, key_of, works)
    covered = np.zeros(tree.height, bool)
    covered[rows["call"].to_numpy()] = True
    names = tree["name"].cast(pl.String)
    return Calls(
        rows.with_columns(tree["event"].gather(rows["call"])).drop("call"),
        kernels.select(
            "start", "launched", "length_ns",
            pl.Series("operator", names.gather(kernels["inner"].cast(pl.UInt32))),
            is_covered=pl.Series(np.append(covered, False)[call]),  # the last for ROOT
        ),
    )  # fmt: skip


def product_calls(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """Return the calls of the matrix products and convolutions with most device time.

    Of :data:`PRODUCTS`; the copies and pointwise kernels that they launch are not counted.

    Args:
        trace: trace of one rank with operators, their inputs, and launch calls.
        patterns: see :func:`~.common.device_work.device_work`.

    Returns:
        Rows of :attr:`Calls.rows` without ``event``.
    """
    work = device_work(trace, patterns)
    of_name = families_of(distinct(work))
    others = [name for name, one in of_name.items() if one in _OTHER_FAMILIES]
    is_other = work["name"].cast(pl.String).is_in(others)
    is_used = (work["work_kind"] == COMPUTE) & ~is_other.fill_null(value=False)
    kernels = work.select("device", "start", "end", "name", "external_id").filter(is_used)
    tree = _tree(trace, INPUTS_OF)
    launch = launching.launch_rows(trace, work)[is_used.to_numpy()]
    operator, launched = _operators(trace, kernels, launch, tree)
    known = operator != nesting.ROOT
    kernels, operator = kernels.with_columns(launched).filter(known), operator[known]
    keys, key_of = _keys(tree, _around(operator, tree))
    length = (kernels["end"] - kernels["start"]).to_numpy()
    keyed = key_of[operator] >= 0
    device_ns = np.bincount(key_of[operator][keyed], length[keyed], minlength=keys.height)
    longest = set(np.argsort(-device_ns, kind="stable")[:_MOST].tolist())
    works = [_work(key, _ANY_TYPE) if i in longest else None for i, key in enumerate(keys.rows())]
    counts = _counted(tree, key_of, works)[operator]
    rows = kernels.filter(counts).select(
        "start", "end", "name", "launched", "device",
        length_ns=pl.Series(length[counts]), call=pl.Series(operator[counts], dtype=pl.UInt32),
    )  # fmt: skip
    again = training(trace, patterns).filter(purpose=RECOMPUTED).select("device", "start", "end")
    is_again = np.zeros(tree.height, bool)
    if again.height:
        is_again[rows.join(again, on=again.columns, how="semi")["call"].to_numpy()] = True
    return _rows(rows, is_again, keys, key_of, works).drop("call")


def _tree(trace: Trace, names: Collection[str] | None = None) -> pl.DataFrame:
    """Return the operators of all threads with their inputs, as a call tree.

    Args:
        trace: trace of one rank.
        names: names of the operators; None for all.
    """
    is_operator = (pl.col("kind") == "cpu_op") & (pl.col("dur") >= 0) & pl.col("tid").is_not_null()
    if names is not None:
        is_operator &= pl.col("name").is_in(list(names))
    # columns are selected first: a filter copies all others
    columns = ("name", "pid", "tid", "external_id", *INPUTS, "ts", "dur")
    event = trace.events.select(is_operator.fill_null(value=False)).to_series().arg_true()
    rows = trace.events.select(columns)[event].with_columns(event.alias("event"))
    thread = numbering.numbered([rows["pid"], rows["tid"]])[1]
    calls = rows.drop("ts", "dur").with_columns(
        start=rows["ts"], end=rows["ts"] + rows["dur"], thread=pl.Series(thread)
    )
    return _with_callers(slice_tree.build_tree(calls, ["thread"]))


def _with_callers(tree: pl.DataFrame) -> pl.DataFrame:
    """Take the inputs of the caller for operators that lack a size (:data:`.OF_CALLER`)."""
    names = tree["name"].cast(pl.String)
    lacks = names.is_in(list(OF_CALLER)) & tree["concrete_inputs"].is_null()
    if not lacks.any():
        return tree
    caller = names.replace_strict(OF_CALLER, default=None, return_dtype=pl.String)
    is_caller = (lacks & (names.gather(tree["parent"]) == caller)).fill_null(value=False)
    inputs = [
        tree[name].gather(tree["parent"]).zip_with(is_caller, tree[name]).alias(name)
        for name in INPUTS
    ]
    return tree.with_columns(inputs)


def _operators(
    trace: Trace, work: pl.DataFrame, launch: nesting.Rows, tree: pl.DataFrame
) -> tuple[nesting.Rows, pl.Series]:
    """Return the innermost operator around each launch (or ROOT), and the launch time."""
    rows = nesting.row_numbers(launch, "event")
    points = trace.events.select("pid", "tid", "ts")[rows.fill_null(0)]
    points = points.with_columns(pl.when(rows.is_not_null()).then("ts").alias("ts"))
    inner = slice_tree.innermost(points, tree, ["pid", "tid"])
    operator = inner.cast(pl.Int32).fill_null(nesting.ROOT).to_numpy()
    operator = launching.with_external_ids(operator, work, tree.select("start", "external_id"))
    return operator, points["ts"].alias("launched")


def _around(operator: nesting.Rows, tree: pl.DataFrame) -> intervals.Bools:
    """Return which calls launched kernels, themselves or by a call inside them."""
    launched = np.bincount(operator[operator != nesting.ROOT], minlength=tree.height)
    return slice_tree.with_descendants(launched.astype(np.int64), tree) > 0


def _keys(tree: pl.DataFrame, launched: intervals.Bools) -> tuple[pl.DataFrame, nesting.Rows]:
    """Return the distinct operators and inputs with a formula, and that of each call (or -1)."""
    known = [name for name in tree["name"].unique().drop_nulls() if formula_of(name)]
    possible = (
        pl.col("name").is_in(known) & pl.col("input_dims").is_not_null() & pl.Series(launched)
    )
    calls = tree.select(possible.fill_null(value=False)).to_series().arg_true()
    columns = tree.select("name", *INPUTS)[calls]
    first, number = numbering.numbered(columns.get_columns())
    key_of = np.full(tree.height, -1, np.int32)
    key_of[calls.to_numpy()] = number
    return columns[first].with_columns(pl.col("name").cast(pl.String)), key_of


def _counted(
    tree: pl.DataFrame, key_of: nesting.Rows, works: Sequence[Work | None]
) -> intervals.Bools:
    """Return which calls count: they have a formula, and no product calls another one."""
    keyed = key_of >= 0
    counted, matrix = np.zeros(tree.height, bool), np.zeros(tree.height, bool)
    counted[keyed] = np.array([work is not None for work in works], bool)[key_of[keyed]]
    is_matrix = np.array([work is not None and work.kind in MATRIX for work in works], bool)
    matrix[keyed] = is_matrix[key_of[keyed]]
    inside = slice_tree.with_descendants(matrix.astype(np.int64), tree)
    return counted & ~(matrix & (inside > 1))


def _work(key: tuple[str | None, ...], list_type: str | None) -> Work | None:
    """Return the work of an operator and inputs; None if it cannot be computed from these."""
    name, dims, types, values = key
    formula = formula_of(name or "")
    inputs = recorded.parse(dims, types, values, list_type)
    if formula is None or inputs is None:
        return None
    try:
        work = formula(inputs)
    except Unknown:
        return None
    return work if recorded.is_possible(work) else None


def _rows(
    kernels: pl.DataFrame,
    is_again: intervals.Bools,
    keys: pl.DataFrame,
    key_of: nesting.Rows,
    works: Sequence[Work | None],
) -> pl.DataFrame:
    """Return the rows of :class:`Calls`, with ``call``, a row of the tree."""
    longest = kernels.sort("call", "length_ns").unique("call", keep="last", maintain_order=True)
    calls = _busy(kernels).sort("call")
    names = longest.sort("call")["name"]
    at = calls["call"].to_numpy()
    list_type, is_tf32 = mapped(names, _list_type), mapped(names, _is_tf32, pl.Boolean)
    variants = [list_type.alias("list_type"), is_tf32.alias("is_tf32")]
    first, number = numbering.numbered([pl.Series("key", key_of[at]), *variants])
    table = pl.DataFrame([pl.Series("key", key_of[at]), *variants])[first]
    has_lists = keys["input_types"].str.contains(recorded.TENSOR_LIST, literal=True).to_list()
    found = [
        _work(keys.row(key), list_type) if has_lists[key] else works[key]
        for key, list_type, _ in table.iter_rows()
    ]
    on_tensor_cores = table["is_tf32"] & pl.col("kind").is_in(MATRIX)
    tf32 = pl.when(on_tensor_cores & (pl.col("precision") == "fp32")).then(pl.lit("tf32"))
    work = _columns(found).with_columns(precision=tf32.otherwise("precision"))[number]
    return calls.hstack(work).with_columns(
        pl.Series("operator", keys["name"].gather(key_of[at])),
        pl.Series("is_recomputed", is_again[at]),
    ).drop_nulls("kind")  # fmt: skip


def _busy(kernels: pl.DataFrame) -> pl.DataFrame:
    """Return call, first, launched, kernels, and device_ns: the time in which any of them ran."""
    sums = kernels.group_by("call").agg(
        first=pl.col("start").min(), launched=pl.col("launched").min(), kernels=pl.len(),
        device_ns=pl.col("length_ns").sum(),
    )  # fmt: skip
    several = sums.filter(pl.col("kernels") > 1).select("call")
    if several.is_empty():
        return sums
    # kernels of one call may overlap
    busy = intervals.measure(kernels.join(several, on="call", how="semi"), ["call"])
    joined = sums.join(busy, on="call", how="left")
    return joined.with_columns(device_ns=pl.coalesce("length", "device_ns")).drop("length")


def _columns(works: Sequence[Work | None]) -> pl.DataFrame:
    """Return the columns of :data:`WORK`, null without a work."""
    rows = [work or _UNKNOWN for work in works]
    *texts, exact, tiles, inner = zip(*rows, strict=True) if rows else [()] * len(_UNKNOWN)
    sizes = zip(*(one or (None,) * 3 for one in tiles), strict=True) if rows else [()] * 3
    values = (*texts, exact, *sizes, [one or None for one in inner])
    return pl.DataFrame(
        [
            pl.Series(name, column, kind)
            for (name, kind), column in zip(WORK.items(), values, strict=True)
        ]
    )


def _is_tf32(kernel: str) -> bool:
    return _TF32.search(kernel) is not None


def _list_type(kernel: str) -> str | None:
    """Return the element type of a list of tensors, from the name of the kernel."""
    if match := _OPAQUE.search(kernel):
        return _BY_SIZE.get(match[1])
    match = _ELEMENT.search(kernel)
    return match[1] if match else None


def recomputed(tree: pl.DataFrame) -> intervals.Bools:
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
    mask: intervals.Bools = (inner != nesting.ROOT) & (again | checkpoint)[inner]
    return mask


def _named(tree: pl.DataFrame, pattern: str) -> intervals.Bools:
    matches = mapped(tree["name"], matcher([pattern]), pl.Boolean)
    return matches.fill_null(value=False).to_numpy().astype(np.bool_)
