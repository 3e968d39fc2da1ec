"""Result of the modules analysis: data, verdict, notes, tables, charts and flame graphs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from traceanalyzer.analyzers.common.display import (
    bars,
    headings,
    known_columns,
    rank_column,
    sentences,
    table_of_known,
)
from traceanalyzer.analyzers.modules.assignment import PHASES, paths
from traceanalyzer.drawings import Chart, Flame
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_count, format_frac, format_ns

#: Values of each call that are summed.
SUMS = ("host_ns", "device_ns", "flops", "host_memory_bytes", "device_memory_bytes")

#: Those that are also listed by phase.
_BY_PHASE = ("host_ns", "device_ns")

#: Number of an instance at the end of its name: ``Linear_0``, ``layers.0``.
_NUMBER = r"(?:_\d+|(?:\.\d+)+)$"
#: Text of rows outside of any module.
OUTSIDE = "(outside modules)"

_FIRST = headings("module, calls, recomputed_calls: recomputed")
_DEVICE = headings(
    "self_device_ns: self device, total_device_ns: total device, device_frac: of device, "
    "forward_device_ns: forward, backward_device_ns: backward, "
    "recomputed_device_ns: recomputation, mean_device_ns: device/call"
)
_HOST = headings(
    "self_host_ns: self host, total_host_ns: total host, host_frac: of host, "
    "forward_host_ns: forward, backward_host_ns: backward, recomputed_host_ns: recomputation, "
    "mean_host_ns: host/call"
)
_WORK = headings(
    "self_flops: self FLOPs, total_flops: total FLOPs, "
    "self_device_memory_bytes: self device memory, total_device_memory_bytes: total device memory, "
    "self_host_memory_bytes: self host memory, total_host_memory_bytes: total host memory"
)
_CLASSES = headings(
    "class, modules, calls, self_device_ns: self device, total_device_ns: total device, "
    "device_frac: of device, self_host_ns: self host, total_host_ns: total host, "
    "total_flops: total FLOPs"
)
_RANKS = headings(
    "modules, calls, device_ns: device, inside_device_ns: in modules, host_ns: host, "
    "inside_host_ns: in modules"
)


@dataclass(frozen=True, eq=False, repr=False)
class Modules(Result):
    """Time, memory and FLOPs of each module, summed over calls and ranks.

    Attributes:
        modules: one row per module, callers before callees, and a last row with a null ``module``
            for everything outside of modules: ``module`` (names from the outermost on, separated
            by /), ``parent`` (row), ``name``, ``class``, ``depth`` (1: outermost), ``calls``
            (forward), ``recomputed_calls``; of ``host_ns``, ``device_ns``, ``flops``,
            ``host_memory_bytes`` and ``device_memory_bytes``: ``self_`` (without modules in it) and
            ``total_``; ``graph_device_ns`` (part of ``self_device_ns`` of CUDA or HIP graphs that
            the module launches, whose kernels may be of modules in it); ``forward_``,
            ``backward_`` and ``recomputed_`` parts of the totals of times (outside of modules,
            forward is all but the backward pass); ``host_frac`` and ``device_frac`` (total over
            all host time and all device work), ``mean_host_ns`` (forward time per call) and
            ``mean_device_ns`` (total per call; null with work of graphs, whose calls are not
            recorded). Null if the data was not recorded.
        ranks: one row per file and rank: ``rank``, ``path``, ``modules``, ``calls``, ``host_ns``,
            ``inside_host_ns``, ``device_ns``, ``inside_device_ns``.
        nodes: number of nodes of the backward pass.
        linked: number of nodes with a known forward operator.
        replayed_ns: device time of kernels launched by CUDA or HIP graphs.
        named_ns: part of it of kernels that have their module in their arguments.
        matched_ns: part of it of kernels that count for the module that launches the same
            kernels without a graph.
        unlaunched_ns: device time of work without a known call.
        functions: device time by lines of kernels, else by the innermost functions of own code (of
            libraries, on ranks without recorded own code): ``function``, ``device_ns``, and its
            ``forward_``, ``backward_`` and ``recomputed_`` parts.
    """

    question = "Which modules take the time?"
    scalar_names = (
        "nodes, linked, replayed_ns, named_ns, matched_ns, unlaunched_ns, host_ns, device_ns"
    )

    modules: pl.DataFrame
    ranks: pl.DataFrame
    nodes: int
    linked: int
    replayed_ns: int
    named_ns: int
    matched_ns: int
    unlaunched_ns: int
    functions: pl.DataFrame

    @property
    def device_ns(self) -> int | None:
        """Time of all device work; None if none was recorded."""
        times = self.ranks["device_ns"]
        return int(times.sum()) if times.count() else None

    @property
    def host_ns(self) -> int:
        """Time of the threads that run operators in any call."""
        return int(self.ranks["host_ns"].sum())

    def view(self) -> View:
        """Build the view: modules, classes, work, ranks; bars and flame graphs."""
        return self.view_from(_verdict, _notes, _tables, _charts, flames=partial(_flames, self))


def with_totals(
    modules: pl.DataFrame, sums: pl.DataFrame, of_graphs: Sequence[int]
) -> pl.DataFrame:
    """Return the rows of :attr:`Modules.modules`.

    Args:
        modules: ``parent``, ``name``; parents first.
        sums: ``module``, ``phase``, ``calls`` and :data:`SUMS`.
        of_graphs: ``graph_device_ns`` of each module, and of everything outside of modules.
    """
    outside = {"parent": [None], "name": [None]}
    numbered = pl.concat([modules, pl.DataFrame(outside, schema=modules.schema)])
    numbered = numbered.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    last = modules.height
    wide = numbered.select("row")
    for phase in PHASES:
        of_phase = sums.filter(pl.col("phase") == phase).select(
            pl.col("module").fill_null(last).alias("row"),
            *(pl.col(name).alias(f"{phase}_{name}") for name in ("calls", *SUMS)),
        )
        wide = wide.join(of_phase, on="row", how="left", maintain_order="left")
    known = [name for name in SUMS if sums[name].count()]
    parents = modules["parent"].to_list()
    columns = [
        pl.Series("calls", wide["forward_calls"].fill_null(0)),
        pl.Series("recomputed_calls", wide["recomputed_calls"].fill_null(0)),
    ]
    for name in SUMS:
        filled = (
            pl.when(pl.col(f"{phase}_calls").is_null()).then(0).otherwise(f"{phase}_{name}")
            for phase in PHASES
        )  # a module without calls in a phase has no row of it
        alone = [wide.select(column).to_series().to_list() for column in filled]
        both = [_with_inner(values, parents) for values in alone]
        parts = {f"self_{name}": _added(alone), f"total_{name}": _added(both)}
        if name in _BY_PHASE:
            parts |= {f"{phase}_{name}": both[at] for at, phase in enumerate(PHASES)}
        for column, values in parts.items():
            columns.append(pl.Series(column, values if name in known else [None] * (last + 1),
                                     dtype=pl.Int64))  # fmt: skip
    each = of_graphs if "device_ns" in known else [None] * (last + 1)
    columns.append(pl.Series("graph_device_ns", each, dtype=pl.Int64))
    return _described(numbered.drop("row").hstack(columns))


def _with_inner(values: list[int | None], parents: list[int | None]) -> list[int | None]:
    """Return the sums of each module's value and those of the modules in it; None if unknown."""
    totals = list(values)
    for row in range(len(parents) - 1, -1, -1):
        if (parent := parents[row]) is not None:
            totals[parent] = _sum((totals[parent], totals[row]))
    return totals


def _added(parts: list[list[int | None]]) -> list[int | None]:
    return [_sum(values) for values in zip(*parts, strict=True)]


def _sum(values: Iterable[int | None]) -> int | None:
    """Return the sum; None if nothing is known but zeros, and something is unknown."""
    known = list(values)
    total = sum(value or 0 for value in known)
    return None if None in known and not total else total


def _described(rows: pl.DataFrame) -> pl.DataFrame:
    """Add path, class, depth, shares and means."""
    depths: list[int] = []
    for parent, name in rows.select("parent", "name").iter_rows():
        depths.append(0 if name is None else 1 if parent is None else depths[parent] + 1)
    shares = [
        (pl.col(f"total_{of}_ns") / _nonzero(pl.col(f"self_{of}_ns").sum())).alias(f"{of}_frac")
        for of in ("host", "device")
    ]
    calls = _nonzero(pl.col("calls"))
    sums = [name for name in rows.columns if name not in ("parent", "name")]
    return rows.with_columns(
        paths(rows),
        pl.coalesce(
            pl.col("name").str.extract(r"\((\w+)\)$"), pl.col("name").str.replace(_NUMBER, "")
        ).alias("class"),
        pl.Series("depth", depths, pl.Int64),
        *shares,
        (pl.col("forward_host_ns") / calls).round().cast(pl.Int64).alias("mean_host_ns"),
        (pl.col("total_device_ns") / calls).round().cast(pl.Int64).alias("mean_device_ns"),
    ).select(
        "module", "parent", "name", "class", "depth", *sums,
        "host_frac", "device_frac", "mean_host_ns", "mean_device_ns",
    )  # fmt: skip


def _nonzero(value: pl.Expr) -> pl.Expr:
    return pl.when(value != 0).then(value)


# --- verdict and notes ---------------------------------------------------------------------


def _verdict(result: Modules) -> str:
    """Describe the share of modules, its phases, and the module with the highest self time."""
    of, what = ("host", "host time") if not result.device_ns else ("device", "device work")
    whole = result.device_ns or result.host_ns
    rows = result.modules.drop_nulls("module")
    inside = int(rows[f"self_{of}_ns"].sum())
    roots = rows.filter(pl.col("depth") == 1)
    phases = [(name, int(roots[f"{name}_{of}_ns"].sum())) for name in PHASES]
    each = ", ".join(f"{name} {format_ns(time)}" for name, time in phases if time)
    share = format_frac(inside / whole) if whole else "0 %"
    first = f"Modules take {share} of {what} ({format_ns(inside)} of {format_ns(whole)})"
    start = f"{first}: {each}." if each else f"{first}."
    if of == "device":  # kernels of graphs may be of any module in the one that launches them
        self_ns = pl.col("self_device_ns") - pl.col("graph_device_ns")
        rows = rows.with_columns(self_device_ns=self_ns)
    most = rows.sort(f"self_{of}_ns", descending=True, maintain_order=True).row(0, named=True)
    time = most[f"self_{of}_ns"] or 0
    of_graphs = int(result.modules["graph_device_ns"].sum()) if of == "device" else 0
    if of_graphs > time:
        share = format_frac(of_graphs / whole)
        longest = (
            f"{format_ns(of_graphs)} ({share}) is of graphs{_launched_by(rows, of_graphs)} and not "
            "divided by module: the module with the highest self time is unknown."
        )
        return sentences(start, longest)
    if not inside:
        return start
    others = rows.filter(pl.col(f"self_{of}_ns") == time).height - 1
    with_others = f" and {format_count(others, 'other module')} have" if others else " has"
    longest = (
        f"{most['module']}{with_others} the highest self {of} time: {format_ns(time)}"
        f"{' each' * bool(others)} ({format_frac(time / whole)})."
    )
    shared, classes = "", _classes(rows).row(0, named=True)
    if classes["modules"] > 1:
        time = classes[f"self_{of}_ns"]
        shared = (
            f"Of all classes, {classes['class']} ({classes['modules']:,} modules) has the highest: "
            f"{format_ns(time)} ({format_frac(time / whole)})."
        )
    return sentences(start, longest, shared)


def _launched_by(rows: pl.DataFrame, of_graphs: int) -> str:
    """Return which module launches all graphs whose kernels are not divided by module."""
    names = rows.filter(graph_device_ns=of_graphs)["module"]
    return f" that {names[0]} launches" if names.len() == 1 else ""


def _notes(result: Modules) -> Iterator[str]:
    """Describe how calls are attributed, and what was not counted."""
    yield (
        "Self time is without the modules called in a module. The backward pass counts for the "
        "module of the forward operator with the same sequence number; shares are of all ranks."
    )
    if result.nodes > result.linked:
        rest = format_count(result.nodes - result.linked, "backward node")
        yield (
            f"{rest} of {result.nodes:,} without a recorded forward operator (gradient "
            f"accumulation, or recorded without sequence numbers): {OUTSIDE} unless recomputed."
        )
    if not result.nodes and not result.modules["backward_device_ns"].sum():
        yield "No backward pass was recorded."
    if result.modules["recomputed_calls"].sum() or result.modules["recomputed_host_ns"].sum():
        yield "Recomputation is the forward pass of modules or layers within the backward pass."
    yield from _graph_notes(result)
    if result.unlaunched_ns:
        yield (
            f"{format_ns(result.unlaunched_ns)} of device work has no recorded launch call: "
            f"{OUTSIDE}."
        )


def _graph_notes(result: Modules) -> Iterator[str]:
    """Describe how work of graphs is attributed, with the share of each way."""
    whole, named, matched = result.replayed_ns, result.named_ns, result.matched_ns
    of_graphs = f"{format_ns(whole)} launched by CUDA or HIP graphs"
    if named:
        yield (
            f"{format_ns(named)} of the {of_graphs} ({format_frac(named / whole)}) counts for the "
            "module in the arguments of its kernels (torch.cuda.graph_annotations)."
        )
    if matched:
        yield (
            f"{format_ns(matched)} of the {of_graphs} ({format_frac(matched / whole)}) counts for "
            "the module that launches the same kernels in a step without replay or in the capture."
        )
    if rest := whole - matched - named:
        yield (
            f"{format_ns(rest)} of device work was launched by CUDA or HIP graphs, and counts for "
            "the module that launches the graph: no step without replay and no capture among the "
            "inputs shows which module its kernels are of. Add a trace of one of the same program, "
            "or mark kernels with torch.cuda.graph_annotations (PyTorch 2.14)."
        )


# --- tables, charts and flame graphs -------------------------------------------------------


def _tables(result: Modules) -> Iterator[Table]:
    """Build the tables: modules on device and host, memory and FLOPs, classes, ranks."""
    rows, missing = result.modules, {"module": OUTSIDE}
    first = {name: label for name, label in _FIRST.items() if name != "recomputed_calls"}
    if rows["recomputed_calls"].sum():
        first = _FIRST
    for name, columns in (("device", _DEVICE), ("host", _HOST)):
        if rows[f"total_{name}_ns"].count():
            title = f"Modules by {name} time"
            sorted_rows = rows.sort(f"total_{name}_ns", descending=True, maintain_order=True)
            each = {**first, **columns}
            yield Table(f"modules_{name}", title, sorted_rows, each, missing=missing)
    work = known_columns(rows, _WORK)
    if work:
        used = rows.filter(pl.any_horizontal(pl.col(name) != 0 for name in work))
        if used.height:
            kinds = {"flops": "FLOPs", "bytes": "Memory allocated minus freed"}
            known = [text for kind, text in kinds.items() if any(kind in name for name in work)]
            title = "; ".join(known)
            yield Table("work", title, used, {**_FIRST_ONLY, **work}, missing=missing)
    if result.functions["device_ns"].sum():
        frame = result.functions.with_columns(
            device_frac=pl.col("device_ns") / pl.lit(result.device_ns or None)
        )
        yield Table("functions", "Code by device time", frame, _FUNCTIONS)
    yield table_of_known("classes", "Classes of modules", _classes(rows), _CLASSES)
    if result.ranks.height > 1:
        columns = {**rank_column(result.ranks), **_RANKS}
        yield table_of_known("ranks", "Ranks", result.ranks, columns)


_FIRST_ONLY = headings("module, calls")
_FUNCTIONS = headings(
    """function, device_ns: device, forward_device_ns: forward, backward_device_ns: backward,
    recomputed_device_ns: recomputed, device_frac: of device time"""
)


def _classes(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum the modules by class; a module in one of the same class is in its total once."""
    outermost: list[bool] = []
    classes: list[set[str | None]] = []
    for parent, name in rows.select("parent", "class").iter_rows():
        above = classes[parent] if parent is not None else set()
        outermost.append(name not in above)
        classes.append({*above, name})
    alone = ("calls", "self_host_ns", "self_device_ns", "self_flops")
    within = ("total_host_ns", "total_device_ns", "total_flops", "device_frac")
    flagged = rows.with_columns(pl.Series("outermost", outermost)).drop_nulls("module")
    sums = flagged.group_by("class", maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("modules"),
        *(_known_sum(pl.col(name)).alias(name) for name in alone),
        *(_known_sum(pl.col(name).filter("outermost")).alias(name) for name in within),
    )
    by = "self_device_ns" if sums["self_device_ns"].sum() else "self_host_ns"
    return sums.sort(by, "class", descending=[True, False])


def _known_sum(value: pl.Expr) -> pl.Expr:
    return pl.when(value.count() > 0).then(value.sum())


def _charts(result: Modules) -> Iterator[Chart]:
    """Build bars of the modules with the highest self time."""
    for of in ("device", "host"):
        column = f"self_{of}_ns"
        rows = result.modules.with_columns(pl.col("module").fill_null(OUTSIDE))
        rows = rows.sort(column, descending=True, maintain_order=True, nulls_last=True)
        if rows[column].count():
            title = f"Modules by self {of} time"
            label = f"self {of} time"
            yield bars(f"self_{of}", title, rows, length=column, label="module", x_label=label)


def _flames(result: Modules) -> tuple[Flame, ...]:
    """Build a flame graph of device work, or of host time without any: phases, then modules."""
    of, what = ("device", "Device work") if result.device_ns else ("host", "Host time")
    boxes: list[_Box] = []
    for phase in PHASES:
        _add_boxes(boxes, phase, result.modules, f"{phase}_{of}_ns")
    types = {"parent": pl.UInt32, "name": pl.String, "place": pl.String, "group": pl.String}
    types |= {"self": pl.Float64, "total": pl.Float64}
    frame = pl.DataFrame(boxes, schema=types, orient="row").with_row_index("id")
    if frame.is_empty():
        return ()
    whole = frame.filter(pl.col("parent").is_null())["total"].sum()
    subtitle = f"{format_ns(round(whole))}, all calls and ranks"
    filled = frame.select(
        "id", "parent", "name", "place", "group",
        *(pl.lit(value=False).alias(name) for name in ("is_own_code", "imports")), "self", "total",
        pl.lit(0, pl.UInt32).alias("hidden"), pl.lit(None, pl.Float64).alias("base"),
    )  # fmt: skip
    return (Flame("modules", f"{what} by module", subtitle, "ns", filled),)


#: Parent, name, path (a search for layers.0.mlp finds it), group, self, total.
_Box = tuple[int | None, str, str | None, str | None, float, float]


def _add_boxes(
    boxes: list[_Box],
    phase: str,
    modules: pl.DataFrame,
    column: str,
) -> None:
    """Add the boxes of a phase.

    Outside of modules only the backward pass has a known phase: the rest is a root.
    """
    outside = modules.height - 1
    parents, totals = modules["parent"].to_list(), modules[column].to_list()
    alone = list(totals)
    for parent, total in zip(parents, totals, strict=True):
        if parent is not None:
            alone[parent] -= total
    of_modules = sum(
        total for parent, total in zip(parents[:outside], totals, strict=False) if parent is None
    )
    is_apart = phase == PHASES[0]
    whole = of_modules if is_apart else of_modules + totals[outside]
    root = len(boxes)
    if whole:
        boxes.append((None, phase, None, "phase", 0.0, float(whole)))
    place: dict[int, int] = {}
    rows = zip(*modules[["parent", "name", "module", "class"]].get_columns(), strict=True)
    for row, (parent, name, path, group) in enumerate(rows):
        if totals[row]:
            place[row] = len(boxes)
            above = place[parent] if parent is not None else root
            known = None if row == outside and is_apart else above
            label, group = (OUTSIDE, OUTSIDE) if row == outside else (name, group)
            boxes.append((known, label, path, group, float(alone[row]), float(totals[row])))
