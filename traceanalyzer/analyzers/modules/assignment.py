"""Module and phase of each call of a rank, by names, sequence numbers and module hierarchy.

A call counts for the innermost module around it on its thread. Calls in a node of the backward pass
count for the module of the forward operator that created the node.

All kernels of a graph replay share one launch call. ``torch.cuda.graph_annotations`` writes the
module of a kernel into its arguments: that is exact. Else the module is the one that launches the
same kernel between the same kernels in a step without replay, or in the capture
(:mod:`traceanalyzer.analyzers.common.replays`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.common import host_code, replays
from traceanalyzer.analyzers.common.names import BACKWARD, matching, named
from traceanalyzer.analyzers.efficiency.calls import recomputed
from traceanalyzer.analyzers.modules import Options
from traceanalyzer.analyzers.operators import call_tree
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, nesting, slice_tree
from traceanalyzer.trace import Trace, of_kinds, record_hint, with_events
from traceanalyzer.vocabulary import ANNOTATION_KINDS, DEVICE_WORK

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


def assign(
    trace: Trace,
    tree: pl.DataFrame,
    options: Options,
    *,
    may_be_none: bool = False,
    functions: intervals.Bools | None = None,
) -> Assigned:
    """Return module and phase of each call.

    Args:
        trace: trace of one rank.
        tree: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.build`.
        options: the options.
        may_be_none: no error if calls have no modules.
        functions: rows of the tree that count as modules, in place of the modules.

    Raises:
        MissingData: no modules were recorded.
        OptionError: a pattern is not a regular expression.
    """
    numbers = sequence_numbers(trace, tree)
    by_name = tree.select((pl.col("kind") == "cpu_op") & named(tree, [BACKWARD])).to_series()
    is_node: intervals.Bools = by_name.to_numpy().copy()
    is_node[numbers.filter(pl.col("forward_id") > 0)["row"].to_numpy()] = True
    in_node = slice_tree.nearest(tree, is_node) != nesting.ROOT
    if functions is None:
        functions = _is_module(tree, options) & ~_backward_graphs(tree, in_node)
    is_module = functions
    if not is_module.any() and not may_be_none:
        raise MissingData(f"{trace.meta.path}: {_nothing(trace, options)}")
    created_by = forward_calls(numbers, tree.height)
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


def missing(trace: Trace, options: Options) -> str:
    """Return why there are no modules, by names and arguments only, which is fast; empty if any."""
    marked = matching(trace.names, [f"^{FRAME}", _COMPILED, *options.patterns])
    if marked or recorded(trace):
        return ""
    eager = ", in a step without replay, as graphs run no Python" * are_launched(trace)
    return f"{trace.meta.path}: {_nothing(trace, options)}{eager}"


def _is_module(tree: pl.DataFrame, options: Options) -> intervals.Bools:
    wanted = (pl.col("kind") == call_tree.FRAMES) & named(tree, [f"^{FRAME}"])
    wanted |= _is_compiled(tree)
    if options.patterns:
        wanted |= of_kinds(ANNOTATION_KINDS) & named(tree, options.patterns)
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
    return of_kinds(_COMPILED_KINDS) & named(tree, [_COMPILED])


def _nothing(trace: Trace, options: Options) -> str:
    if options.patterns:
        return f"no module was recorded, and no annotation matches {', '.join(options.patterns)}"
    if host_code.with_call_stacks(trace) is not trace:
        return (
            "this version of PyTorch recorded stacks without modules; `traceanalyzer kernels --by "
            "code` has the lines, PyTorch 1.12 or later with_stack=True records modules"
        )
    hint = record_hint(trace.meta, call_tree.FRAMES)
    marked = "mark modules with record_function or NVTX ranges and give --pattern"
    return "no modules were recorded; " + (f"{hint}, or {marked}" if hint else marked)


def _owners(
    is_module: intervals.Bools, inner: nesting.Rows, around: nesting.Rows, created_by: nesting.Rows
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


#: Name of the frame of a module.
FRAME = "nn.Module: "
#: An instance, its class and the method.
_LEVEL = re.compile(r"([^.():]+)\(([^()]*)\)::")
#: The outermost module, whose instance has no name; another method of the same module.
_TOP, _SELF = "TOP", "SELF"
_TEXT = r'"Module Hierarchy"\s*:\s*"([^"]+)"'
_NODE = re.compile(BACKWARD)
_KEYS = ("rank", "pid", "tid")


@dataclass
class _Call:
    """A call of a module: its name, and its first and last moment so far."""

    name: str
    start: int
    end: int


def recorded(trace: Trace) -> bool:
    """Whether operators have modules in their arguments."""
    events = trace.events
    if "args" not in events.columns or not events["args"].count():
        return False
    return bool(events["args"].cast(pl.String).str.contains(_TEXT).any())


def with_slices(trace: Trace) -> Trace:
    """Return the trace with a slice for each call of a module in the hierarchy of operators."""
    if not recorded(trace):
        return trace
    marked = pl.col("kind").is_in(("cpu_op", "user_annotation")) & pl.col("tid").is_not_null()
    operators = trace.events.filter(marked, pl.col("dur") >= 0).select(
        *_KEYS, "ts", end=pl.col("ts") + pl.col("dur"), name=pl.col("name").cast(pl.String),
        text=pl.col("args").cast(pl.String).str.extract(_TEXT),
    )  # fmt: skip
    rows = [
        (*thread, f"{FRAME}{call.name}", call.start, call.end - call.start)
        for thread, of_thread in operators.group_by(*_KEYS, maintain_order=True)
        if of_thread["text"].count()
        for call in _calls(_aligned(of_thread))
    ]
    types = {name: trace.events.schema[name] for name in (*_KEYS, "name", "ts", "dur")}
    slices = pl.DataFrame(rows, schema=types, orient="row").with_columns(
        kind=pl.lit("python_function").cast(trace.events.schema["kind"])
    )
    return with_events(trace, slices)


def _aligned(operators: pl.DataFrame) -> pl.DataFrame:
    """Return the operators of a thread, each with its own hierarchy.

    PyTorch (2.13 and before) records no hierarchy for nodes of the backward pass, and gives
    operators the recorded ones by their number, so that those after a node have that of a later
    operator. The sign of this is a node with a hierarchy.
    """
    nodes = operators["name"].str.extract(BACKWARD + r"(.*)$").drop_nulls().unique()
    is_node = operators["name"].is_in(nodes.implode())
    if not operators["text"].filter(is_node).count():
        return operators
    number = (~is_node).cum_sum().cast(pl.Int64) - 1  # among the operators that are no nodes
    texts = operators["text"].gather(number.clip(0))
    known = pl.DataFrame({"text": texts, "is_node": is_node})
    return operators.with_columns(known.select(pl.when(~pl.col("is_node")).then("text")))


def _calls(operators: pl.DataFrame) -> Iterator[_Call]:
    """Yield the calls of modules in one thread, from its operators in order of start.

    Calls end with the outermost operator (the method of the model), or before the first operator of
    another module.
    """
    running: list[_Call] = []
    until, top, in_node = -(1 << 63), "", False
    for name, start, end, text in operators.select("name", "ts", "end", "text").iter_rows():
        if start >= until:
            yield from running
            running.clear()
            until, in_node, top = end, bool(_NODE.match(name or "")), ""
        if in_node or text is None:
            continue
        levels = _levels(text)
        top = top or levels[0]
        path = [level for level in (top, *levels[1:]) if level]
        same = _in_common(running, path)
        if any(call.end > start for call in running[same:]):
            continue  # an operator of an outer module within one of an inner module
        yield from running[same:]
        del running[same:]
        for call in running:
            call.end = max(call.end, end)
        running += [_Call(level, start, end) for level in path[same:]]
    yield from running


def _in_common(running: list[_Call], path: list[str]) -> int:
    """Return how many of the running calls are of the first modules of a path."""
    pairs = enumerate(zip(running, path, strict=False))
    return next(
        (at for at, (call, level) in pairs if call.name != level), min(len(running), len(path))
    )


@cache
def _levels(text: str) -> tuple[str, ...]:
    """Return class of the outermost module, empty if unknown, and the modules in it."""
    found = [(name, kind) for name, kind in _LEVEL.findall(text) if name != _SELF]
    top = found[0][1] if found and found[0][0] == _TOP else ""
    return (top, *[f"{name}({kind})" for name, kind in found if name != _TOP])


#: Columns that identify the thread in which a node was created.
_CREATOR = ["pid", "forward_id"]

_STEM = r"([A-Za-z_0-9]+?)(?:Backward\d*)?$"


def sequence_numbers(trace: Trace, tree: pl.DataFrame) -> pl.DataFrame:
    """Return the operators with a sequence number.

    Args:
        trace: trace of one rank, with ``args`` of events.
        tree: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.build` with ``event``.

    Returns:
        ``row`` (of ``tree``), ``pid``, ``thread``, ``start``, ``name``, ``sequence``,
        ``forward_id`` (PyTorch's number of the thread that created the node; 0 in the forward
        pass). Empty if ``args`` were not read.
    """
    operators = (tree["kind"] == "cpu_op").arg_true()
    rows = tree.select("thread", "start", "name")[operators].with_columns(row=operators)
    events = trace.events.select("pid", *(["args"] * ("args" in trace.events.columns)))
    events = events[tree["event"][operators]]
    args = events["args"] if "args" in events.columns else pl.repeat(None, rows.height, eager=True)
    text = args.cast(pl.String).alias("args")
    return rows.hstack([events["pid"], text]).select(
        "row", "pid", "thread", "start", pl.col("name").cast(pl.String),
        sequence=_integer("Sequence number"),
        forward_id=_integer("Fwd thread id").fill_null(0),
    ).drop_nulls("sequence")  # fmt: skip


def _integer(key: str) -> pl.Expr:
    text = pl.col("args").str.extract(rf'"{key}"\s*:\s*"?(\d{{1,18}})\b')
    return text.cast(pl.Int64, strict=False)


def forward_calls(operators: pl.DataFrame, height: int) -> nesting.Rows:
    """Return the forward operator that created each backward node.

    That is the last one with the sequence number of the node that started before it, in the thread
    that created the node.

    Args:
        operators: rows of :func:`sequence_numbers`.
        height: number of rows of the tree.

    Returns:
        A row of the tree for each row of the tree; ROOT for other calls and unknown operators.
    """
    backward = operators.filter(pl.col("forward_id") > 0)
    forward = operators.filter(pl.col("forward_id") == 0)
    threads = _threads(backward, forward)
    by = ["creator", "sequence"]
    left = backward.join(threads, on=_CREATOR).select("row", "start", *by).sort("start", "row")
    right = forward.select("start", pl.col("thread").alias("creator"), "sequence", call="row")
    links = left.join_asof(
        right.sort("start", "call"), on="start", by=by, allow_exact_matches=False,
        check_sortedness=False,
    ).drop_nulls("call")  # fmt: skip
    calls = np.full(height, nesting.ROOT, np.int32)
    calls[links["row"].to_numpy()] = links["call"].to_numpy()
    return calls


def _threads(backward: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Return the thread of each forward id: pid, forward_id, creator.

    That is the thread with most operators of the same sequence number and name (``aten::addmm``,
    ``AddmmBackward0``); each thread has one id.
    """
    of_node = backward.select(*_CREATOR, "sequence", stem=_stem()).unique()
    of_call = forward.select("pid", "sequence", creator="thread", base=_stem()).unique()
    pairs = of_node.join(of_call, on=["pid", "sequence"], nulls_equal=True)
    scores = pairs.group_by(*_CREATOR, "creator").agg(
        same=(pl.col("stem") == pl.col("base")).sum(), n=pl.col("sequence").n_unique()
    )
    ordered = scores.sort(
        "same", "n", *_CREATOR, "creator", descending=[True, True, False, False, False]
    )
    threads: dict[tuple[int, int], int] = {}
    for pid, forward_id, creator, *_ in ordered.iter_rows():
        if (pid, forward_id) not in threads and creator not in threads.values():
            threads[pid, forward_id] = creator
    types = dict.fromkeys((*_CREATOR, "creator"), pl.Int64)
    rows = [(*key, creator) for key, creator in threads.items()]
    frame = pl.DataFrame(rows, schema=types, orient="row")
    return frame.cast({"creator": forward.schema["thread"]})


def _stem() -> pl.Expr:
    """Return ``addmm`` of ``aten::addmm`` and of ``AddmmBackward0``."""
    return pl.col("name").str.extract(_STEM).str.to_lowercase().str.replace_all("_", "")


#: The module of a kernel, else the name that the program gave a node of a graph; also in a list
#: that is a text.
_MODULE = (
    r'\\?"module_fqn\\?"\s*:\s*\\?"([^"\\]+)',
    r'(?s)"graph node id".*\\?"(?:name|str)\\?"\s*:\s*\\?"([^"\\]+)',
)
_BACKWARD_PHASE = r'"autograd_phase\\?"\s*:\s*\\?"backward'
#: ``layers.0`` is one module: a container has no work of its own.
_PATH_LEVEL = re.compile(r"[^.]+(?:\.\d+)*")
#: Of rows outside of any module.
OUTSIDE = -1


def are_launched(trace: Trace) -> bool:
    """Whether graphs were launched."""
    return bool(matching(trace.names, [replays.GRAPH_LAUNCH]))


def are_annotated(trace: Trace) -> bool:
    """Whether device work has modules in its arguments."""
    return bool(_named(_texts(trace)).count())


def _texts(trace: Trace) -> pl.Series:
    if "args" not in trace.events.columns:
        return pl.Series("args", [], pl.String)
    return trace.events.filter(of_kinds(DEVICE_WORK))["args"].cast(pl.String)


def named_modules(trace: Trace, events: pl.Series) -> pl.Series:
    """Return the modules in the arguments of some events; null without any."""
    args = trace.events.get_column("args", default=None)
    if args is None:
        return pl.repeat(None, len(events), dtype=pl.String, eager=True)
    return _named(args.gather(events).cast(pl.String))


def _named(args: pl.Series) -> pl.Series:
    return args.to_frame().select(pl.coalesce(args.str.extract(one) for one in _MODULE)).to_series()


def code_paths(trace: Trace, events: pl.Series) -> pl.Series:
    """Return the recorded functions of kernels, else the levels of their modules, each in a line.

    The outermost is first; null without either.
    """
    functions = host_code.recorded_functions(trace, events)
    levels = named_modules(trace, events).str.extract_all(_PATH_LEVEL.pattern).list.join("\n")
    return functions.zip_with(functions.is_not_null(), levels)


@dataclass(frozen=True)
class Placed:
    """Device work by module and phase.

    Attributes:
        modules: those of the calls, and after them those that kernels name: ``parent``, ``name``.
        module: row of ``modules`` of each row of the work; ROOT outside of any.
        phase: number of the phase in :data:`~.assignment.PHASES` of each row.
        is_named: whether the arguments of the row have the module.
    """

    modules: pl.DataFrame
    module: nesting.Rows
    phase: npt.NDArray[np.int8]
    is_named: npt.NDArray[np.bool_]


def placed(trace: Trace, work: pl.DataFrame, launch: nesting.Rows, assigned: Assigned) -> Placed:
    """Return the module of device work: the one that it names, else that of its launch call.

    Args:
        trace: trace of one rank, with ``args`` of events.
        work: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.launched_work`.
        launch: call of each row; ROOT if unknown.
        assigned: modules and phases of the calls.
    """
    is_known = launch != nesting.ROOT
    module = np.where(is_known, np.append(assigned.module, nesting.ROOT)[launch], nesting.ROOT)
    phase = np.where(is_known, np.append(assigned.phase, 0)[launch], 0)
    if not are_annotated(trace):
        none = np.zeros(work.height, np.bool_)
        return Placed(assigned.modules, module.astype(np.int32), phase.astype(np.int8), none)
    texts = trace.events["args"].gather(work["event"]).cast(pl.String)
    names = named_modules(trace, work["event"])
    is_named = names.is_not_null().to_numpy()
    distinct = names.drop_nulls().unique(maintain_order=True).to_list()
    modules, rows = _with_named(assigned.modules, distinct)
    number = names.replace_strict(distinct, rows, default=None, return_dtype=pl.Int32)
    module = np.where(is_named, number.fill_null(nesting.ROOT).to_numpy(), module)
    is_backward = texts.str.contains(_BACKWARD_PHASE).fill_null(value=False).to_numpy()
    of_named = np.where(is_backward, PHASES.index("backward"), PHASES.index("forward"))
    phase = np.where(is_named, of_named, phase)
    return Placed(modules, module.astype(np.int32), phase.astype(np.int8), is_named)


def of_work(trace: Trace) -> tuple[pl.Series, npt.NDArray[np.bool_]]:
    """Return the module of each row of device work, null outside of any, and whether it names it.

    Args:
        trace: result of :func:`with_slices`, with ``args`` of events.

    Raises:
        MissingData: no modules were recorded.
    """
    calls = call_tree.all_calls(trace)
    tree = call_tree.build(calls)
    may_be_none = are_annotated(trace) or are_launched(trace)
    assigned = assign(trace, tree, Options(), may_be_none=may_be_none)
    work = call_tree.launched_work(trace, calls["event"])
    place = placed(trace, work, launches(work, tree), assigned)
    return paths(place.modules)[nesting.row_numbers(place.module)], place.is_named


def code_of(
    trace: Trace, tree: pl.DataFrame, launch: nesting.Rows, events: pl.Series
) -> pl.DataFrame:
    """Return the code of device work or captured calls: code, phase, is_named.

    That is the recorded lines that a kernel was compiled of or captured from (``is_named``), else
    the innermost function of own code (of libraries, if the rank has none) around the call,
    or around the forward operator that created the node of the backward pass around it.

    Args:
        trace: trace of one rank, with ``args`` of events.
        tree: calls of the rank.
        launch: call of each row; ROOT if unknown.
        events: event of each row.
    """
    mask = tree.select(host_code.functions(tree).fill_null(value=False)).to_series().to_numpy()
    assigned = assign(trace, tree, Options(), may_be_none=True, functions=mask)
    module = np.append(assigned.module, nesting.ROOT)[launch]  # ROOT is the last row
    names = assigned.modules["name"].cast(pl.String)[nesting.row_numbers(module)]
    lines = host_code.recorded_lines(trace, events)
    phase = np.array(PHASES)[np.append(assigned.phase, 0)[launch]]
    return pl.DataFrame(
        {
            "code": lines.zip_with(lines.is_not_null(), names.alias(lines.name)),
            "phase": pl.Series(phase, dtype=pl.String),
            "is_named": lines.is_not_null(),
        }
    )


def code_of_work(trace: Trace) -> pl.DataFrame:
    """Return :func:`code_of` of each row of device work.

    Raises:
        MissingData: no calls were recorded.
    """
    calls = call_tree.all_calls(trace)
    tree = call_tree.build(calls)
    work = call_tree.launched_work(trace, calls["event"])
    return code_of(trace, tree, launches(work, tree), work["event"])


def launches(work: pl.DataFrame, tree: pl.DataFrame) -> nesting.Rows:
    """Return the call that launched each piece of device work, else the operator by external id."""
    call = work["call"].fill_null(nesting.ROOT).to_numpy()
    rows: nesting.Rows = np.where(call == nesting.ROOT, call_tree.callers(work, tree), call)
    return rows


def paths(modules: pl.DataFrame) -> pl.Series:
    """Return the path of each module, ``model/layers.0``; parents come first."""
    texts: list[str | None] = []
    for parent, name in modules.select("parent", "name").iter_rows():
        texts.append(name if parent is None else f"{texts[parent]}/{name}")
    return pl.Series("module", texts, pl.String)


def _with_named(modules: pl.DataFrame, names: Sequence[str]) -> tuple[pl.DataFrame, list[int]]:
    """Add modules by their qualified names; return the row of each name."""
    numbers: dict[tuple[int | None, str], int] = {}
    first, rows = modules.height, []
    for name in names:
        row: int | None = None
        for level in _PATH_LEVEL.findall(name) or [name]:
            row = numbers.setdefault((row, level), first + len(numbers))
        rows.append(row or 0)
    added = pl.DataFrame(list(numbers), schema=modules.schema, orient="row")
    return pl.concat([modules, added]), rows


def replayed(work: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return the kernels of replays without a module or code of their own, by context and launch.

    Args:
        work: all device work, with ``is_named``, ``phase`` and the column ``by``.
        by: ``module`` or ``code``.

    Returns:
        :data:`~.replays.CONTEXTS`, ``by`` and ``phase`` of the launch call, ``n``, ``length_ns``.
    """
    rows = work.filter("replayed", ~pl.col("is_named"))
    return rows.group_by(*replays.CONTEXTS, by, "phase").agg(
        n=pl.len().cast(pl.Int64), length_ns=pl.col("length_ns").sum()
    )


def launchers(work: pl.DataFrame, captured: pl.DataFrame, by: str) -> pl.DataFrame:
    """Return what is known of kernels that no graph launched: ``context``, ``to``, ``to_phase``.

    Args:
        work: all device work, as of :func:`replayed`.
        captured: rows of :func:`~traceanalyzer.analyzers.operators.call_tree.captured_calls`,
            with the same columns.
        by: ``module`` or ``code``.
    """
    both = (rows.drop_nulls(by) for rows in (work.filter(~pl.col("replayed")), captured))
    renamed = [one.rename({by: "to", "phase": "to_phase"}) for one in both]
    return pl.concat([replays.known(one, ["to", "to_phase"]) for one in renamed])


def of_rows(module: nesting.Rows, phase: npt.NDArray[np.int8]) -> list[pl.Series]:
    """Return ``module``, :data:`OUTSIDE` for ROOT, and ``phase``."""
    numbers = np.where(module == nesting.ROOT, OUTSIDE, module).astype(np.int64)
    return [pl.Series("module", numbers), pl.Series("phase", np.array(PHASES)[phase], pl.String)]


def moved(
    replayed: Sequence[pl.DataFrame], launchers: Sequence[pl.DataFrame], by: str
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the device time of replays as changes of sums, and that which stays at the launches.

    Args:
        replayed: rows of :func:`replayed` of all ranks, modules numbered over all.
        launchers: rows of :func:`launchers` of all ranks, likewise.
        by: ``module`` or ``code``.

    Returns:
        The column ``by``, ``phase``, ``device_ns``; and the column ``by``, ``graph_device_ns``.
    """
    rows = pl.concat(replayed)
    found = replays.resolved(rows, launchers, ["to", "to_phase"])
    time = pl.col("length_ns")
    changes = pl.concat(
        [
            found.select(by, "phase", device_ns=-time),
            found.select(pl.col("to").alias(by), phase="to_phase", device_ns=time),
        ]
    )
    left = pl.concat(
        [rows.select(by, graph_device_ns=time), found.select(by, graph_device_ns=-time)]
    )
    return changes, left.group_by(by).agg(pl.col("graph_device_ns").sum())
