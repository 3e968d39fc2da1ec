"""Time, memory and FLOPs of the modules of each rank, combined over all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs, Reading
from traceanalyzer.analyzers.common.columns import per_rank, sum_if_known
from traceanalyzer.analyzers.common.device_work import COMPUTE, device_work
from traceanalyzer.analyzers.common.host_code import with_call_stacks
from traceanalyzer.analyzers.efficiency.calls import calls_of
from traceanalyzer.analyzers.efficiency.formulas import MATRIX
from traceanalyzer.analyzers.modules import Options, assignment
from traceanalyzer.analyzers.modules.assignment import PHASES, assign, with_slices
from traceanalyzer.analyzers.modules.result import SUMS, Modules, with_totals
from traceanalyzer.analyzers.operators import call_tree
from traceanalyzer.analyzers.operators.compute import runs_operators
from traceanalyzer.errors import MissingData
from traceanalyzer.frames import intervals, nesting
from traceanalyzer.run.loop import run
from traceanalyzer.schema import INPUTS
from traceanalyzer.trace import Inputs, Trace
from traceanalyzer.vocabulary import DEVICE_WORK

#: Columns of the sums of a part.
_KEYS = ["module", "phase"]


#: Host calls with their arguments and inputs, device work and allocations.
NEEDS = Needs(
    {*call_tree.HOST, *DEVICE_WORK, call_tree.ALLOCATIONS},
    columns=(*INPUTS, "args"),
    unused=("category",),
)


@dataclass(frozen=True)
class Part:
    """One rank's modules.

    Attributes:
        rank: global rank, or None if the file has none.
        path: the file.
        modules: one row per module: ``parent`` (row, null for an outermost module), ``name``.
        missing: why the rank has no modules: kernels of its graphs may be of those of others.
        sums: one row per module and phase: ``module`` (row of ``modules``, null outside of any),
            ``phase`` (of :data:`.assignment.PHASES`), ``calls``, and :data:`.result.SUMS`, null if
            the data was not recorded, FLOPs also if device work has no formula.
        nodes: number of nodes of the backward pass.
        linked: number of nodes with a known forward operator.
        replays: rows of :func:`.graphs.replayed`.
        launchers: rows of :func:`.graphs.launchers`.
        replayed_ns: device time of kernels launched by CUDA or HIP graphs.
        named_ns: part of it of kernels whose arguments have their module.
        unlaunched_ns: device time of work without a known call.
        functions: ``code``, ``phase``, ``device_ns``: sums of :func:`.assignment.code_of`.
        functions_replays, functions_launchers: as of modules.
    """

    rank: int | None
    path: str
    modules: pl.DataFrame
    missing: str
    sums: pl.DataFrame
    nodes: int
    linked: int
    replays: pl.DataFrame
    launchers: pl.DataFrame
    replayed_ns: int
    named_ns: int
    unlaunched_ns: int
    functions: pl.DataFrame
    functions_replays: pl.DataFrame
    functions_launchers: pl.DataFrame


def measure(trace: Trace, options: Options) -> Part:
    """Return the modules of one rank.

    Raises:
        MissingData: no modules were recorded.
        OptionError: a pattern is not a regular expression.
    """
    missing = "" if assignment.are_annotated(trace) else assignment.missing(trace, options)
    if missing and not assignment.are_launched(trace):
        raise MissingData(missing)
    trace = with_slices(with_call_stacks(trace))
    calls = call_tree.all_calls(trace)
    tree = call_tree.build(calls)
    assigned = assign(
        trace, tree, options, may_be_none=bool(missing) or assignment.are_annotated(trace)
    )
    work = call_tree.launched_work(trace, calls["event"])
    launch = assignment.launches(work, tree)
    place = assignment.placed(trace, work, launch, assigned)
    captured = call_tree.captured_calls(trace, calls["event"])
    at = captured["call"].to_numpy()
    in_capture = captured.with_columns(assignment.of_rows(assigned.module[at], assigned.phase[at]))
    by_module = work.with_columns(
        *assignment.of_rows(place.module, place.phase), is_named=pl.Series(place.is_named)
    )
    memory = call_tree.allocations(call_tree.instants_of(trace, calls), tree)
    outside = place.modules.height
    every = _groups(assigned.module, assigned.phase, outside)
    of_call = np.append(every, outside * len(PHASES))  # the last for ROOT
    self_host = tree["self_time"].to_numpy() * runs_operators(tree)
    length = work["length_ns"].to_numpy()
    flops = _flops(trace, calls["event"])
    values = {
        "calls": (every, assigned.is_module.astype(np.int64)),
        "host_ns": (every, self_host),
        "device_ns": (_groups(place.module, place.phase, outside), length) if length.size else None,
        "flops": None if flops is None else (of_call[flops[0]], flops[1]),
        "host_memory_bytes": None if memory.host is None else (every, memory.host),
        "device_memory_bytes": None if memory.device is None else (every, memory.device),
    }
    return Part(
        rank=trace.meta.rank,
        path=trace.meta.path,
        modules=place.modules,
        missing=missing,
        sums=_sums(values, outside),
        nodes=assigned.nodes,
        linked=assigned.linked,
        replays=assignment.replayed(by_module, "module"),
        launchers=assignment.launchers(by_module, in_capture, "module"),
        replayed_ns=int(work.filter("replayed")["length_ns"].sum()),
        named_ns=int(length[place.is_named & work["replayed"].to_numpy()].sum()),
        unlaunched_ns=int(length[launch == nesting.ROOT].sum()),
        **_functions(trace, tree, calls["event"], work, captured),
    )


def _functions(
    trace: Trace, tree: pl.DataFrame, event: pl.Series, work: pl.DataFrame, captured: pl.DataFrame
) -> dict[str, pl.DataFrame]:
    """Return the device time by code, and what is known of replays."""
    call = np.append(assignment.launches(work, tree), captured["call"].to_numpy())
    of_call = event[captured["call"]]
    code = assignment.code_of(trace, tree, call, pl.concat([work["event"], of_call]))
    by_code, in_capture = work.hstack(code[: work.height]), captured.hstack(code[work.height :])
    return {
        "functions": by_code.group_by("code", "phase").agg(device_ns=pl.col("length_ns").sum()),
        "functions_replays": assignment.replayed(by_code, "code"),
        "functions_launchers": assignment.launchers(by_code, in_capture, "code"),
    }


def _flops(trace: Trace, events: pl.Series) -> tuple[nesting.Rows, intervals.Ints] | None:
    """Return calls with a formula for their FLOPs (rows of the tree), and the FLOPs."""
    columns = trace.events.columns
    if not all(name in columns for name in INPUTS) or not trace.events["input_dims"].count():
        return None
    work = device_work(trace)
    work = work.filter(pl.col("work_kind") == COMPUTE)
    if work.is_empty():
        return None
    rows = calls_of(trace, work).rows.filter(pl.col("kind").is_in(MATRIX))
    event, numbers = rows["event"].to_numpy(), events.to_numpy()
    at = np.minimum(np.searchsorted(numbers, event), numbers.size - 1)
    return np.where(numbers[at] == event, at, nesting.ROOT).astype(np.int32), rows[
        "flops"
    ].to_numpy()


def _groups(module: nesting.Rows, phase: npt.NDArray[np.int8], outside: int) -> intervals.Ints:
    """Return the number of module and phase of each row; of rows outside of any the last module."""
    number = np.where(module == nesting.ROOT, outside, module).astype(np.int64)
    return number * len(PHASES) + phase


def _sums(
    values: dict[str, tuple[intervals.Ints, intervals.Ints] | None], outside: int
) -> pl.DataFrame:
    """Sum values (group and value) by module and phase."""
    n = len(PHASES)
    number = np.arange((outside + 1) * n)
    rows = {"module": number // n, "phase": np.array(PHASES)[number % n].tolist()}
    frame = pl.DataFrame(rows, schema={"module": pl.Int64, "phase": pl.String})
    for name, pair in values.items():
        total = None if pair is None else _added(*pair, number.size)
        frame = frame.with_columns(
            pl.lit(None, pl.Int64).alias(name) if total is None else pl.Series(name, total)
        )
    if (pair := values["flops"]) is not None:
        has_formula = pl.Series(np.bincount(pair[0], minlength=number.size) > 0)
        is_known = has_formula | (pl.col("device_ns") == 0)
        frame = frame.with_columns(pl.when(is_known).then("flops").alias("flops"))
    used = pl.any_horizontal((pl.col(name) != 0).fill_null(value=False) for name in values)
    known = pl.when(pl.col("module") < outside).then("module").alias("module")
    return frame.filter(used).with_columns(known)


def _added(group: intervals.Ints, values: intervals.Ints, size: int) -> intervals.Ints:
    """Return the exact sum of the values of each group."""
    total = np.zeros(size, np.int64)
    np.add.at(total, group, values)
    return total


# --- all ranks -----------------------------------------------------------------------------


def combine(parts: Sequence[Part], options: Options) -> Modules:
    """Sum the modules of all ranks; modules with the same names from the outermost are one.

    Raises:
        MissingData: no modules were recorded.
    """
    if all(part.missing for part in parts):
        raise MissingData(parts[0].missing)
    ordered = sorted(parts, key=lambda part: (part.rank is None, part.rank or 0, part.path))
    numbers: dict[tuple[int | None, str], int] = {}
    places = [_places(part, numbers, options.depth) for part in ordered]
    frame = pl.DataFrame(
        list(numbers), schema={"parent": pl.Int64, "name": pl.String}, orient="row"
    )
    each = list(zip(ordered, places, strict=True))
    changes, left = assignment.moved(
        [_renumbered(part.replays, place, "module") for part, place in each],
        [_renumbered(part.launchers, place, "to") for part, place in each],
        "module",
    )
    inside = pl.col("module") != assignment.OUTSIDE
    changes = changes.with_columns(pl.when(inside).then("module").alias("module"))
    sums = [_sums_of(part, place) for part, place in each]
    rows = (
        pl.concat([*sums, changes], how="diagonal")
        .group_by(_KEYS)
        .agg(*map(sum_if_known, ("calls", *SUMS)), unknown=pl.col("flops").null_count() > 0)
        .with_columns(pl.col("calls").fill_null(0))
    )
    is_unknown = pl.col("unknown") & (pl.col("flops") == 0)
    rows = rows.with_columns(pl.when(~is_unknown).then("flops").alias("flops")).drop("unknown")
    of_graphs = dict(left.iter_rows())
    numbered = (*range(frame.height), assignment.OUTSIDE)
    modules = with_totals(frame, rows, [of_graphs.get(one, 0) for one in numbered])
    if options.depth is not None:  # modules below are no modules of the result
        inner = pl.col("graph_device_ns") * (pl.col("depth") < options.depth)
        modules = modules.with_columns(graph_device_ns=inner)
    matched_ns = sum(int(part.replays["length_ns"].sum()) for part in parts)
    matched_ns -= sum(of_graphs.values())
    if matched_ns:
        modules = modules.with_columns(pl.lit(None, pl.Int64).alias("mean_device_ns"))
    return Modules(
        modules=modules,
        ranks=per_rank(parts, [_numbers(part) for part in parts]),
        nodes=sum(part.nodes for part in parts),
        linked=sum(part.linked for part in parts),
        replayed_ns=sum(part.replayed_ns for part in parts),
        named_ns=sum(part.named_ns for part in parts),
        matched_ns=matched_ns,
        unlaunched_ns=sum(part.unlaunched_ns for part in parts),
        functions=_by_function(parts),
    )


def _by_function(parts: Sequence[Part]) -> pl.DataFrame:
    """Return the rows of :attr:`Modules.functions`."""
    changes, _ = assignment.moved(
        [part.functions_replays for part in parts],
        [part.functions_launchers for part in parts],
        "code",
    )
    time = pl.col("device_ns")
    of_phase = {f"{one}_device_ns": time.filter(phase=one).sum() for one in PHASES}
    rows = pl.concat([*(part.functions for part in parts), changes]).drop_nulls("code")
    rows = rows.group_by(function="code").agg(time.sum(), **of_phase).filter(time > 0)
    return rows.sort("device_ns", "function", descending=[True, False])


def _places(
    part: Part, numbers: dict[tuple[int | None, str], int], depth: int | None
) -> pl.DataFrame:
    """Return the numbers of the modules of a part among those of all parts.

    Modules below the depth become that at this depth.

    Returns:
        ``place`` and ``depth`` of each module of the part.
    """
    places: list[int] = []
    depths: list[int] = []
    for parent, name in part.modules.iter_rows():
        deeper = 1 if parent is None else depths[parent] + 1
        depths.append(deeper)
        if depth is not None and deeper > depth:
            places.append(places[parent])
        else:
            above = None if parent is None else places[parent]
            places.append(numbers.setdefault((above, name), len(numbers)))
    is_kept = [depth is None or one <= depth for one in depths]
    types = {"place": pl.Int64, "is_kept": pl.Boolean}
    return pl.DataFrame({"place": places, "is_kept": is_kept}, schema=types)


def _renumbered(rows: pl.DataFrame, places: pl.DataFrame, name: str) -> pl.DataFrame:
    """Return rows with the numbers of modules of all parts; those outside of any stay."""
    inside = pl.when(pl.col(name) != assignment.OUTSIDE).then(name)
    number = places["place"].gather(rows.select(inside).to_series())
    return rows.with_columns(number.fill_null(assignment.OUTSIDE).alias(name))


def _sums_of(part: Part, places: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of a part; a module at the depth keeps its number of calls."""
    place = places[part.sums["module"]] if places.height else None
    if place is None:
        return part.sums
    calls = pl.when(place["is_kept"].fill_null(value=True)).then("calls").otherwise(0)
    return part.sums.with_columns(calls.alias("calls"), place["place"].alias("module"))


def _numbers(part: Part) -> dict[str, int | None]:
    inside = part.sums.drop_nulls("module")
    has_device = part.sums["device_ns"].count() > 0
    return {
        "modules": part.modules.height,
        "calls": int(inside["calls"].sum()),
        "host_ns": int(part.sums["host_ns"].sum()),
        "inside_host_ns": int(inside["host_ns"].sum()),
        "device_ns": int(part.sums["device_ns"].sum()) if has_device else None,
        "inside_device_ns": int(inside["device_ns"].sum()) if has_device else None,
    }


MODULES = Analyzer("modules", Options, NEEDS, measure, combine)


def modules(
    inputs: Inputs,
    *,
    patterns: str | Sequence[str] = (),
    depth: int | None = None,
    **reading: Unpack[Reading],
) -> Modules:
    """Return time, memory and FLOPs of each ``nn.Module``, forward and backward.

    One file is in memory at a time; the ranks are summed.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        patterns: regular expressions; annotations with matching names are modules too.
        depth: count modules below this depth for the module at this depth; None for all.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: no input can be read.
        MissingData: no modules were recorded.
        OptionError: a pattern is not a regular expression, or ``depth`` is below 1.
    """
    return run(MODULES, inputs, Options(patterns, depth), **reading)
