"""Module and phase of each call of a rank.

A call counts for the innermost module around it on its thread. Calls in a node of the backward pass
count for the module of the forward operator that created the node.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common.names import BACKWARD, matcher, named
from traceanalyzer.analyzers.efficiency.calls import recomputed
from traceanalyzer.analyzers.modules import hierarchy
from traceanalyzer.analyzers.modules.hierarchy import FRAME
from traceanalyzer.analyzers.modules.options import Options
from traceanalyzer.analyzers.operators import call_tree
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, nesting, slice_tree
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import ANNOTATION_KINDS

#: Part of the training step in which a call runs.
PHASES = ("forward", "backward", "recomputed")
_FORWARD, _BACKWARD, _RECOMPUTED = range(len(PHASES))

#: Names of the regions that torch.compile marks: a graph of the program, and its compiled graph.
_COMPILED = r"^(?:Torch-Compiled Region|## Call CompiledFxGraph)"
_COMPILED_KINDS = ("cpu_op", *ANNOTATION_KINDS)


@dataclass(frozen=True)
class Assigned:
    """Calls by module and phase.

    Attributes:
        modules: ``parent`` (row, null for an outermost module) and ``name``; parents first.
        module: row of ``modules`` of each call; ROOT outside of any module.
        phase: number of the phase in :data:`PHASES` of each call.
        is_module: whether the call is one of a module.
        nodes: number of nodes of the backward pass; linked: those with a known forward operator.
    """

    modules: pl.DataFrame
    module: nesting.Rows
    phase: npt.NDArray[np.int8]
    is_module: intervals.Bools
    nodes: int
    linked: int


def assign(trace: Trace, tree: pl.DataFrame, options: Options) -> Assigned:
    """Return module and phase of each call.

    Args:
        trace: trace of one rank.
        tree: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.build`.
        options: the options.

    Raises:
        MissingData: no modules were recorded.
        OptionError: a pattern is not a regular expression.
    """
    numbers = hierarchy.numbers(trace, tree)
    by_name = tree.select((pl.col("kind") == "cpu_op") & named(tree, [BACKWARD])).to_series()
    is_node: intervals.Bools = by_name.to_numpy().copy()
    is_node[numbers.filter(pl.col("forward_id") > 0)["row"].to_numpy()] = True
    in_node = slice_tree.nearest(tree, is_node) != nesting.ROOT
    is_module = _is_module(tree, options) & ~_backward_graphs(tree, in_node)
    if not is_module.any():
        raise MissingData(f"{trace.meta.path}: {_nothing(trace, options)}")
    created_by = hierarchy.forward_calls(numbers, tree.height)
    is_mark = is_module | is_node
    around = slice_tree.nearest(tree, is_mark)
    inner = np.where(is_mark, np.arange(tree.height, dtype=np.int32), around)
    owner = _owners(is_module, inner, around, created_by)
    of_mark = np.where(is_node, _BACKWARD, np.where(in_node, _RECOMPUTED, _FORWARD))
    phase = np.where(inner == nesting.ROOT, _FORWARD, of_mark[inner])
    phase[(phase == _BACKWARD) & recomputed(tree)] = _RECOMPUTED
    slices = np.flatnonzero(is_module).astype(np.int32)
    above = np.where(around == nesting.ROOT, nesting.ROOT, owner[around])[slices]
    modules, of_slice = _modules(tree["name"].gather(slices), slices, above, in_node[slices])
    number = np.full(tree.height + 1, nesting.ROOT, np.int32)  # the last for ROOT
    number[slices] = of_slice
    return Assigned(
        modules=modules,
        module=number[owner],
        phase=phase.astype(np.int8),
        is_module=is_module,
        nodes=int(is_node.sum()),
        linked=int((is_node & (created_by != nesting.ROOT)).sum()),
    )


def require_modules(trace: Trace, options: Options) -> None:
    """Check by names and arguments only whether modules were recorded, which is fast.

    Raises:
        MissingData: no modules were recorded.
    """
    is_marked = matcher([f"^{FRAME}", _COMPILED, *options.patterns])
    if not any(map(is_marked, trace.names)) and not hierarchy.recorded(trace):
        raise MissingData(f"{trace.meta.path}: {_nothing(trace, options)}")


def _is_module(tree: pl.DataFrame, options: Options) -> intervals.Bools:
    wanted = (pl.col("kind") == call_tree.FRAMES) & named(tree, [f"^{FRAME}"])
    wanted |= _is_compiled(tree)
    if options.patterns:
        wanted |= pl.col("kind").is_in(ANNOTATION_KINDS) & named(tree, options.patterns)
    mask: intervals.Bools = tree.select(wanted.alias("is_module")).to_series().to_numpy()
    return mask


def _backward_graphs(tree: pl.DataFrame, in_node: intervals.Bools) -> intervals.Bools:
    """Mark the compiled graphs of the backward pass: those that run only in its nodes.

    One that runs in the forward pass too is recomputed in a node.
    """
    rows = tree.select("name", graph=_is_compiled(tree)).with_columns(in_node=pl.Series(in_node))
    only = rows.select(pl.col("graph") & pl.col("in_node").all().over("name")).to_series()
    graphs: intervals.Bools = only.to_numpy()
    return graphs


def _is_compiled(tree: pl.DataFrame) -> pl.Expr:
    return pl.col("kind").is_in(_COMPILED_KINDS) & named(tree, [_COMPILED])


def _nothing(trace: Trace, options: Options) -> str:
    if options.patterns:
        return f"no module was recorded, and no annotation matches {', '.join(options.patterns)}"
    hint = record_hint(trace.meta, call_tree.FRAMES)
    marked = "mark modules with record_function or NVTX ranges and give --pattern"
    return "no modules were recorded; " + (f"{hint}, or {marked}" if hint else marked)


def _owners(
    is_module: intervals.Bools,
    inner: nesting.Rows,
    around: nesting.Rows,
    created_by: nesting.Rows,
) -> nesting.Rows:
    """Return the module's call that each call counts for; ROOT outside of any module.

    A node without a known operator counts for the module around it, as others in a recomputed part.
    """
    known = created_by != nesting.ROOT
    pointer = np.where(known, inner[created_by], around)
    pointer = np.append(pointer, nesting.ROOT).astype(np.int32)  # ROOT points to itself
    itself = np.flatnonzero(is_module)
    pointer[itself] = itself
    while not np.array_equal(following := pointer[pointer], pointer):
        pointer = following
    owner: nesting.Rows = pointer[inner]
    return owner


def _modules(
    names: pl.Series, slices: nesting.Rows, above: nesting.Rows, in_node: intervals.Bools
) -> tuple[pl.DataFrame, nesting.Rows]:
    """Return the distinct modules, and that of each call of one.

    A recomputed module is the one of the same name around the operator that created the node, if
    there is one: it may be recomputed in a node of its own.

    Args:
        names: name of each call.
        slices: row of each call in the tree, in order of start.
        above: row of the module's call around it, or ROOT.
        in_node: whether it is in a node of the backward pass.
    """
    numbers: dict[tuple[int, str], int] = {}
    parents: list[int] = []
    texts: list[str] = []
    of_slice: dict[int, int] = {nesting.ROOT: nesting.ROOT}
    plain = names.cast(pl.String).str.strip_prefix(FRAME).to_list()
    rows = zip(slices.tolist(), plain, above.tolist(), in_node.tolist(), strict=True)
    for row, name, around, again in rows:
        parent = of_slice[around]
        same = parent if again else nesting.ROOT
        while same != nesting.ROOT and texts[same] != name:
            same = parents[same]
        if same == nesting.ROOT:
            same = numbers.setdefault((parent, name), len(texts))
            if same == len(texts):
                parents.append(parent)
                texts.append(name)
        of_slice[row] = same
    parent_rows = pl.Series("parent", [None if at == nesting.ROOT else at for at in parents])
    frame = pl.DataFrame([parent_rows.cast(pl.Int64), pl.Series("name", texts, pl.String)])
    return frame, np.array([of_slice[row] for row in slices.tolist()], np.int32)
