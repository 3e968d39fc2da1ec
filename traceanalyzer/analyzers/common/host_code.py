"""Operator, annotation and Python frame that a host thread runs at a time."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common import libraries
from traceanalyzer.analyzers.common.names import frame_text, is_step, mapped, named, python_frame
from traceanalyzer.frames import intervals, linking, nesting, slice_tree
from traceanalyzer.trace import Trace, with_events
from traceanalyzer.vocabulary import ANNOTATION_KINDS, NCCL_ANNOTATION_PREFIXES, NUMBERED_STEP

THREAD = ["pid", "tid"]

#: More slices than this are a large part of the memory.
_MANY = 1 << 20

#: Ranges recorded as operators by PyTorch until 2021, such as ``Optimizer.step#SGD.step``.
_MARKED = "#"

#: Frames of C functions and of modules have no line in the program.
_NO_LINE = r"^<built-in|^nn\.Module:"
_CALL_STACK = r'"Call stack"\s*:\s*"((?:[^"\\]|\\.)+)"'


@dataclass(frozen=True)
class Places:
    """Operators and annotations on the host threads of a rank.

    The methods return a name for each row of pid, tid, ts; null if no such slice is open.

    Attributes:
        operators: pid, tid, name, start, end; sorted by start, longest first.
        annotations: the same columns for annotations that do not mark steps.
    """

    operators: pl.DataFrame
    annotations: pl.DataFrame

    def operator(self, at: pl.DataFrame) -> pl.Series:
        """Return the innermost operator."""
        return self.operators["name"][self.operator_rows(at)]

    def outer_operator(self, at: pl.DataFrame) -> pl.Series:
        """Return the outermost operator: one that starts when all earlier ones have ended."""
        return self._outer["name"][self.outer_rows(at)]

    def outer_rows(self, at: pl.DataFrame) -> pl.Series:
        """Return the number of the call of the outermost operator."""
        return linking.label_by_interval(at, self._outer, THREAD)["interval"]

    @cached_property
    def _outer(self) -> pl.DataFrame:
        ended = intervals.reached(self.operators, THREAD)
        return self.operators.filter((self.operators["start"] >= ended).fill_null(value=True))

    def annotation(self, at: pl.DataFrame) -> pl.Series:
        """Return the innermost annotation that does not mark a step."""
        return _innermost(at, self.annotations)

    def range(self, at: pl.DataFrame) -> pl.Series:
        """Return the innermost operator or annotation that does not mark a step."""
        operators, annotations = (
            slices[["name", "start"]][rows]
            for slices, rows in (
                (self.operators, self.operator_rows(at)),
                (self.annotations, linking.enclosing(at, self.annotations, THREAD)["slice"]),
            )
        )
        later = (annotations["start"] > operators["start"]).fill_null(value=True)
        return pl.select(
            pl.when(later & annotations["name"].is_not_null())
            .then(annotations["name"])
            .otherwise(operators["name"])
        ).to_series()

    def operator_rows(self, at: pl.DataFrame) -> pl.Series:
        """Return the row of the innermost operator."""
        if self.tree.height > _MANY:  # of so many the arrays are not kept
            return slice_tree.innermost(at, self.tree, THREAD)
        return self._lookup.innermost(at)

    @cached_property
    def _lookup(self) -> slice_tree.Lookup:
        return slice_tree.Lookup(self.tree, THREAD)

    @cached_property
    def tree(self) -> pl.DataFrame:
        """The operators with their parents: faster, as several analyses look up operators."""
        return slice_tree.build_tree(self.operators, THREAD)


def places_of(trace: Trace) -> Places:
    """Return the operators and annotations of a trace."""
    return trace.once("places", lambda: _places(trace))


def _places(trace: Trace) -> Places:
    recorded = slices(trace, "cpu_op")
    marked = recorded.select(named(recorded, [_MARKED])).to_series()
    operators = recorded.filter(~marked) if marked.any() else recorded
    annotations = pl.concat([slices(trace, "user_annotation", "nvtx"), recorded.filter(marked)])
    steps = named(annotations, [NUMBERED_STEP])
    return Places(
        operators, annotations.filter(~steps).sort("start", "end", descending=[False, True])
    )


def with_call_stacks(trace: Trace) -> Trace:
    """Return the trace with the stacks in arguments of operators (of PyTorch 1.8) as slices."""
    if "args" not in trace.events.columns or "python_function" in trace.kinds:
        return trace
    stack = pl.col("args").cast(pl.String).str.extract(_CALL_STACK)
    operators = trace.events.filter((pl.col("kind") == "cpu_op") & (pl.col("dur") >= 0))
    frames = operators.select("rank", "pid", "tid", "ts", "dur", name=stack).drop_nulls("name")
    rows = frames.with_columns(pl.col("name").str.split(";").list.reverse()).explode("name")
    kind = pl.lit("python_function").cast(trace.events.schema["kind"])
    rows = rows.with_columns(pl.col("name").cast(trace.events.schema["name"]), kind=kind)
    return with_events(trace, rows) if rows.height else trace


def functions(names: pl.DataFrame) -> pl.Expr:
    """Whether a row is a function of own code; without any, of a library: kind and name."""
    is_frame = pl.col("kind") == "python_function"
    of_user = is_frame & in_own_code(names["name"])
    has_any = names.select(of_user.any()).item()
    return of_user if has_any else is_frame & ~named(names, [_NO_LINE])


def python_frames(
    trace: Trace,
    at: pl.DataFrame,
    is_own_code: Callable[[str | None, str | None], bool] = libraries.is_own_code,
    least_ns: int = 0,
) -> pl.Series:
    """Return the innermost Python frame of own code at each row, else of any code with a line.

    Frames that take less than ``least_ns`` are left out.
    """
    if "python_function" not in trace.kinds:
        return pl.repeat(None, at.height, dtype=trace.events.schema["name"], eager=True)
    rows = slices(trace, "python_function").filter(pl.col("end") - pl.col("start") >= least_ns)
    lined = rows.filter(~named(rows, [_NO_LINE]))
    first = _innermost(at, lined.filter(in_own_code(lined["name"], is_own_code)))
    return pl.select(pl.coalesce(first, _innermost(at, lined))).to_series()


#: A span with less code than this share has other calls, whose frames are not those of the code.
_NEARLY_ALL = 0.9


def running(trace: Trace, spans: pl.DataFrame, least_ns: int) -> pl.DataFrame:
    """Return which Python frames, else operators, run in spans of threads, in order.

    If much of a span is other time, it is what runs in the middle.

    Args:
        trace: the trace.
        spans: pid, tid, start, end, ``code_ns`` (how much of it is code); those of a thread do not
            overlap.
        least_ns: frames and operators that take less are left out.

    Returns:
        span (row of ``spans``), name, ns.
    """
    length, span = pl.col("end") - pl.col("start"), pl.int_range(pl.len(), dtype=pl.UInt32)
    of_code = spans["code_ns"] >= _NEARLY_ALL * (spans["end"] - spans["start"])
    functions = slices(trace, "python_function", "cpu_op").filter(length >= least_ns)
    edges = pl.concat(functions.select(*THREAD, ts=side) for side in ("start", "end"))
    inside = linking.label_by_interval(edges, spans, THREAD).rename({"interval": "span"})
    first = pl.col("start") + pl.when(of_code).then(0).otherwise(length // 2)
    points = pl.concat([
        spans.select(*THREAD, ts=first, span=span),
        inside.filter(pl.col("span").is_in(of_code.arg_true().implode())),
    ]).unique().sort("span", "ts")  # fmt: skip
    frames = python_frames(trace, points, least_ns=least_ns).cast(pl.String)
    operators = places_of(trace).operator(points).cast(pl.String)
    name = mapped(pl.select(pl.coalesce(frames, operators)).to_series(), frame_text)
    end = spans["end"].gather(points["span"])
    until = pl.col("ts").shift(-1).over("span").fill_null(end)
    rows = points.select("span", name=name, ns=until - pl.col("ts"))
    return rows.filter(pl.col("ns") > 0)


#: Stacks of the program that a kernel was compiled of, or captured from, in its arguments.
_STACKS = r'"stack"\s*:\s*(\["(?:[^"\\]|\\.)*"(?:,\s*"(?:[^"\\]|\\.)*")*\])'
_LINE = re.compile(r'File "([^"\n]+)", line (\d{1,9}), in (\S+)')
_FOLDERS = re.compile(r".*[/\\](?=[^/\\]+[/\\][^/\\]+$)")


def recorded_lines(trace: Trace, events: pl.Series) -> pl.Series:
    """Return the lines of the program that made kernels: ``nn/model.py(27): forward``.

    Of each recorded stack it is the innermost line of own code, else of any: a fused kernel has
    several (``nn/model.py(27, 28): forward``).

    Args:
        trace: of one rank, with ``args`` of events; without, all are null.
        events: rows of ``events``.
    """
    return mapped(_stacks(trace, events), _lines)


def recorded_functions(trace: Trace, events: pl.Series) -> pl.Series:
    """Return the functions that all recorded stacks of a kernel begin with, each in a line.

    The outermost is first: ``nn/model.py(42): forward``, ``nn/model.py(27): norm``. Arguments as of
    :func:`recorded_lines`.
    """
    return mapped(_stacks(trace, events), _functions)


def _stacks(trace: Trace, events: pl.Series) -> pl.Series:
    args = trace.events.get_column("args", default=None)
    if args is None:
        return pl.repeat(None, len(events), dtype=pl.String, eager=True)
    stacks: pl.Series = args.gather(events).str.extract(_STACKS)
    return stacks


def _functions(stacks: str) -> str | None:
    each = [_LINE.findall(stack) for stack in json.loads(stacks)]
    common = takewhile(lambda of: len({one[::2] for one in of}) == 1, zip(*each, strict=False))
    return "\n".join(f"{file}({line}): {name}" for (file, line, name), *_ in common) or None


def _lines(stacks: str) -> str | None:
    lines: dict[tuple[str, str], set[int]] = {}
    for stack in json.loads(stacks):
        frames = _LINE.findall(stack)
        of_user = [one for one in frames if libraries.is_own_code(one[2], one[0])]
        for file, line, name in (of_user or frames)[-1:]:
            lines.setdefault((_FOLDERS.sub("", file), name), set()).add(int(line))
    places = [
        f"{file}({', '.join(map(str, sorted(at)))}): {name}"
        for (file, name), at in sorted(lines.items())
    ]
    return " and ".join(places) or None


#: What encloses this share of the cost of some calls is their place.
_MOST = 0.8
#: An operator that fills new memory, and those that allocate it.
_FILL, _ALLOCATES = "aten::fill_", "^aten::(?:new_)?empty|^aten::resize_"
#: Ranges of the collective itself: annotations of the libraries, functions of NCCL.
_COLLECTIVE = f"^(?:{'|'.join(NCCL_ANNOTATION_PREFIXES)}|(?:nccl|rccl)[A-Z])"
#: Functions of Python and PyTorch that only pass a call on.
_PASSES_ON = (
    r"(?:^|[/\\])torch[/\\](?:_\w+|overrides|autograd[/\\]\w+|utils[/\\]_\w+|nn[/\\](?:functional"
    r"|modules[/\\]module)|distributed[/\\](?:c10d_logger|_functional_collectives|tensor[/\\].*))\.py\("
    r"|distributed_c10d\.py\(\d+\): (?:\w*(?:reduce|gather|scatter|broadcast|send|recv|tensor"
    r"|to_all|single)|barrier|_\w+)$|(?:^|[/\\])contextlib\.py\("
    r"|: (?:_?wrap(?:per|ped)\w*|_(?:wrapped_)?call_impl|decorate_\w+|inner|_?fn|<lambda>)$"
)


def common_places(trace: Trace, at: pl.DataFrame) -> pl.DataFrame:
    """Return what encloses at least 80 % of the cost of each group of calls.

    Args:
        trace: of one rank.
        at: pid, tid, ts of each call, its ``group`` and its cost, ``ns``.

    Returns:
        group, and of what encloses the calls: operator (the innermost; of a fill of new memory the
        one that allocates), outer (the outermost operator), annotation (the innermost, without
        steps), code (the innermost Python frame of own code), called (below it,
        the innermost annotation, or frame of a library that does more than to pass the call on).
        Null where nothing encloses that much, or was not recorded. Frames and annotations that run
        for more than half of the recording are the whole program, and do not count, except in one
        of several steps. Around calls of threads without slices counts what the thread with most
        Python functions runs meanwhile.
    """
    tree = _tree_around(trace, at["ts"])
    kind, python = pl.col("kind"), pl.col("kind") == "python_function"
    marked = (kind == "cpu_op") & named(tree, [_MARKED])
    in_new = pl.col("name").gather("parent").cast(pl.String).str.contains(_ALLOCATES)
    fills = (pl.col("name") == _FILL) & in_new.fill_null(value=False)
    recorded = trace.events.select(pl.col("ts").max() - pl.col("ts").min()).item() or 0
    ends = pl.when(is_step(tree)).then("end").forward_fill().over(THREAD)
    in_one = (pl.col("end") <= ends).fill_null(value=False) & (is_step(tree).sum() >= _SEVERAL)
    short = in_one | (2 * (pl.col("end") - pl.col("start")) <= recorded)
    is_range = (kind.is_in(ANNOTATION_KINDS) | marked) & ~is_step(tree) & short
    is_range &= ~named(tree, [_COLLECTIVE])
    of_user = in_own_code(tree["name"])
    chosen = {
        "operator": (kind == "cpu_op") & ~marked & ~fills,
        "outer": (kind == "cpu_op") & ~marked,
        "annotation": is_range,
        "own_code": python & of_user & short,
        "called": is_range | (python & ~of_user & short & ~named(tree, [_NO_LINE, _PASSES_ON])),
    }
    tree = tree.with_columns(**chosen)
    row = slice_tree.innermost(at, tree, THREAD)
    main = tree.filter(python).group_by(THREAD).len().sort("len", *THREAD).tail(1)
    if row.has_nulls() and main.height:  # a thread without frames copies what the main one reads
        there = at.drop(THREAD).join(main, how="cross", maintain_order="left")
        row = row.fill_null(slice_tree.innermost(there, tree, THREAD))
    parents, inner = slice_tree.parents(tree), row.cast(pl.Int64).fill_null(nesting.ROOT).to_numpy()
    point, levels = np.arange(at.height), [np.zeros((2, 0), np.int64)]
    while (inside := inner != nesting.ROOT).any():
        point, inner = point[inside], inner[inside]
        levels.append(np.stack([point, inner]))
        inner = parents[inner]
    point, inner = np.concatenate(levels, axis=1)
    chain = at["group", "ns"][point].hstack(tree["name", "depth", *chosen][inner])
    chain = chain.with_columns(point=pl.Series(point))
    common = _common(chain, chosen, at.group_by("group").agg(whole=pl.col("ns").sum()))
    below = pl.col("depth_called") > pl.col("depth_own_code").fill_null(-1)
    names = {role: pl.col(f"name_{role}").cast(pl.String) for role in chosen}
    return common.select(
        "group", operator=names["operator"], outer=names["outer"], annotation=names["annotation"],
        code=names["own_code"], called=pl.when(below).then(names["called"]),
    )  # fmt: skip


#: From so many steps on, what runs in one of them is not the whole program.
_SEVERAL = 3


def _tree_around(trace: Trace, ts: pl.Series) -> pl.DataFrame:
    """Return the tree of the slices of host threads that run at any of these times."""
    times, events = ts.drop_nulls().sort().to_numpy(), trace.events
    near = np.zeros(events.height, np.bool_)
    for some in intervals.pieces(near.size):
        start, length = events["ts"][some], events["dur"][some].fill_null(0)
        near[some] = np.searchsorted(times, start) < np.searchsorted(times, start + length)
    rows = slices(trace, "cpu_op", *ANNOTATION_KINDS, "python_function", among=pl.Series(near))
    rows = rows.drop_nulls("tid")
    return slice_tree.build_tree(rows.sort("start", "end", descending=[False, True]), THREAD)


def _common(chain: pl.DataFrame, roles: Iterable[str], whole: pl.DataFrame) -> pl.DataFrame:
    """Return ``name`` and ``depth`` of the innermost slice around most of the cost of each group.

    In columns of each role. Of the role ``outer`` the outermost counts, with its negative depth.
    """
    keys, depth = ["role", "group"], pl.col("depth")
    rows = chain.unpivot(
        list(roles), index=["group", "point", "ns", "name", "depth"], variable_name="role"
    ).filter("value")
    sign = pl.when(pl.col("role") == "outer").then(-1).otherwise(1)
    rows = rows.with_columns(depth=depth.cast(pl.Int64) * sign)
    each = rows.group_by(*keys, "point", "name").agg(depth.max(), pl.col("ns").first())
    sums = each.group_by(*keys, "name").agg(pl.col("ns").sum(), depth.mean())
    most = sums.join(whole, on="group").filter(pl.col("ns") >= _MOST * pl.col("whole"))
    ordered = most.sort("depth", "name", descending=[True, False])
    first = ordered.unique(keys, keep="first", maintain_order=True)
    return first.pivot("role", on_columns=list(roles), index="group", values=["name", "depth"])


def slices(trace: Trace, *kinds: str, among: pl.Series | None = None) -> pl.DataFrame:
    """Return slices of these kinds (if ``among`` these rows): kind, pid, tid, name, start, end."""
    columns = trace.events[["kind", *THREAD, "name", "ts", "dur"]]
    is_chosen = pl.col("kind").is_in(kinds) & (pl.col("dur") > 0)
    rows = columns.filter(is_chosen if among is None else is_chosen & among)
    return rows.select("kind", *THREAD, "name", start="ts", end=pl.col("ts") + pl.col("dur"))


def _innermost(at: pl.DataFrame, slices: pl.DataFrame) -> pl.Series:
    """Return the names of the innermost slices."""
    return slices["name"][linking.enclosing(at, slices, THREAD)["slice"]]


def in_own_code(
    names: pl.Series, test: Callable[[str | None, str | None], bool] = libraries.is_own_code
) -> pl.Expr:
    """Whether the name of a frame is of own code."""
    distinct = names.unique().drop_nulls().to_frame("name")
    frames = distinct.select(frame=python_frame(pl.col("name").cast(pl.String))).unnest("frame")
    flags = [test(name, file) for file, name in frames[["file", "name"]].iter_rows()]
    kept = distinct["name"].filter(pl.Series(flags, dtype=pl.Boolean))
    return pl.col("name").is_in(kept.implode())
