"""Data of each rank from other analyzers, compared between two runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import PurePath
from typing import TypeVar

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.comm_outliers import compute as comm
from traceanalyzer.analyzers.common.columns import left_join
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.diff import Options, comparable, compared, result, roles, runs
from traceanalyzer.analyzers.flamegraph import compute as flamegraph
from traceanalyzer.analyzers.flamegraph.result import FlameGraph
from traceanalyzer.analyzers.gpu_idle import compute as gpu_idle
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES
from traceanalyzer.analyzers.kernels import compute as kernels
from traceanalyzer.analyzers.memory import compute as memory, ledger
from traceanalyzer.analyzers.memory.diff import MemoryDiff, diff_of
from traceanalyzer.analyzers.memory.rank_memory import is_snapshot
from traceanalyzer.analyzers.operators import call_tree, compute as operators
from traceanalyzer.analyzers.steps import compute as steps
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.trace import Trace, is_truncated

P = TypeVar("P")

#: Columns of a step: busy time and idle causes of the device or main thread.
BEHAVIOUR = tuple(f"{part}_ns" for part in (BUSY, *CAUSES))

#: Recorded data with overhead, by the kind of its events.
_EXTRAS = {
    "python_function": runs.PYTHON_FRAMES,
    "cpu_instant_event": runs.ALLOCATIONS,
    "osrt": "operating system calls",
}

#: Options of the operators: with input shapes if recorded.
_CALLS = tuple(operators.OPERATORS.options(group_by_input_shape=shapes) for shapes in (True, False))

_WINDOWED = "Memory is not compared: it needs the whole recording."

#: Options of the memory part.
_PEAK = memory.MEMORY.options()


def needs(options: Options) -> Needs:
    """The data that any of the comparisons needs."""
    each = [
        steps.needs(steps.STEPS.options(options.step_name)),
        gpu_idle.NEEDS,
        operators.needs(_CALLS[0]),
        comm.NEEDS,
        *([ledger.NEEDS] if options.with_memory else []),
    ]
    kinds = frozenset(("sample", "lane")).union(*(one.kinds for one in each))
    names = dict.fromkeys(name for one in each for name in one.names)
    return Needs(kinds, tuple(names), ("input_dims",), samples=True)


def measure(trace: Trace, options: Options) -> runs.Part:
    """Run the other analyzers on one rank.

    Args:
        trace: one rank, read with the needs of the options.
        options: the options.

    Raises:
        MissingData: the trace has no data to compare.
        OptionError: a pattern is not a regular expression.
    """
    of_idle = gpu_idle.GPU_IDLE.options(
        comm_patterns=options.comm_patterns, step_name=options.step_name
    )
    idle = _part_or_none(lambda: gpu_idle.GPU_IDLE.part(trace, of_idle))
    of_kernels = kernels.KERNELS.options(comm_patterns=options.comm_patterns)
    work = _part_or_none(lambda: kernels.measure(trace, of_kernels))
    calls = next(
        filter(None, (_part_or_none(partial(operators.take, trace, how)) for how in _CALLS)), None
    )
    of_comm = comm.COMM_OUTLIERS.options(comm_patterns=options.comm_patterns)
    of_stacks = flamegraph.FLAMEGRAPH.options(kinds=("sample",))
    # times of a snapshot are those of allocator calls: only its memory counts
    of_steps = steps.STEPS.options(options.step_name)
    steps_part = (
        None if is_snapshot(trace) else _part_or_none(lambda: steps.measure(trace, of_steps))
    )
    marks = None
    if steps_part is not None:
        marks = steps_part.steps.select("start", "end", "host_start", "host_end").unique()
    pieces = device_work(trace, options.comm_patterns)
    pieces = pieces.with_columns(_mark(pieces["start"], marks))
    part = runs.Part(
        facts=_facts(trace),
        steps=None if steps_part is None else _with_behaviour(steps_part, idle),
        idle=idle,
        kernels=work,
        work=None if work is None else _work_by_step(pieces, work),
        units=None if work is None else roles.measure(trace, pieces, work, calls, _typical(marks)),
        operators=None if calls is None else _operators_by_step(calls, marks),
        comm=_part_or_none(lambda: comm.measure(trace, of_comm)),
        memory=_part_or_none(lambda: memory.measure(trace, _PEAK, drawn=False, causes=False))
        if _compares_memory(trace, options)
        else None,
        stacks=_part_or_none(lambda: flamegraph.measure(trace, of_stacks)),
    )
    if not any((part.steps, part.idle, part.kernels, part.memory, part.stacks)):
        raise MissingData(f"{trace.meta.path}: no data that can be compared with another run")
    return part


def combine(
    parts: Sequence[runs.Part],
    options: Options,
    base: Sequence[runs.Part] = (),
    *,
    by_mean: bool | None = None,
) -> result.Diff:
    """Compare two runs.

    Args:
        parts: one for each rank of the run after.
        options: the options.
        base: one for each rank of the run before.
        by_mean: see :func:`~.runs.measured`.
    """
    both = runs.with_same_steps(runs.run_of(base), runs.run_of(parts), options.min_change)
    measure = runs.measured(*both, options.min_change, by_mean=by_mean)
    pairing = roles.pair(both[0].units, both[1].units) if both[0].units and both[1].units else None
    why = comparable.obstacle(*both, measure, pairing)
    measure = None if why else measure
    bases = [
        compared.by_step(run, typical=measure.name == "step")
        if measure is not None and measure.in_steps
        else compared.as_whole(run, work)
        for run, work in zip(both, (1.0, measure.work if measure else 1.0), strict=True)
    ]
    pair = compared.Pair(both, bases, options.min_change)
    shares = _shares(*both)
    parts_of_time = compared.parts(pair)
    return result.Diff(
        measure=measure,
        why=why,
        parts=parts_of_time,
        places=compared.places(pair, parts_of_time),
        roles=compared.roles(pair, pairing) if pairing else None,
        paired_frac=pairing.paired_frac if pairing else None,
        kernels=compared.kernels(pair),
        families=compared.families(pair),
        on_device=compared.operators(pair, "device"),
        on_host=compared.operators(pair, "host"),
        collectives=compared.collectives(pair),
        functions=None if shares is None else _functions(shares, options.min_change),
        memory=_memory(*both),
        steps=_steps(*both),
        runs=_runs(*both),
        files=_files(*both),
        flame=None if shares is None else shares.flame,
        reservations=comparable.reservations(*both, measure, pairing),
        remarks=(
            *comparable.remarks(*both, measure, pairing),
            *([] if options.with_memory else [_WINDOWED]),
        ),
    )


DIFF = Analyzer("diff", Options, needs, measure, combine, base="before")


def _memory(before: runs.Run, after: runs.Run) -> MemoryDiff | None:
    both = before.memory and after.memory
    return diff_of(after.memory, before.memory) if both else None  # type: ignore[arg-type]


def _shares(before: runs.Run, after: runs.Run) -> FlameGraph | None:
    """Return the sampled stacks of both runs in one flame graph if their units agree."""
    if not (before.stacks and after.stacks):
        return None
    units = {part.unit for part in (*before.stacks, *after.stacks)}
    weigh = all(sum(p.weights[0].sum() for p in run.stacks) > 0 for run in (before, after))
    if len(units) > 1 or not weigh:
        return None
    return flamegraph.combine(after.stacks, flamegraph.FLAMEGRAPH.options(), before.stacks)


def _functions(shares: FlameGraph, least: float) -> pl.DataFrame:
    """Compare the self and total shares of functions."""
    frame = shares.functions
    counted = shares.unit == "samples" and shares.base is not None
    after, before = shares.total, shares.base or 1.0
    variance = sum(
        pl.col(name) * (1 - pl.col(name)) / total
        for name, total in (("base_self_frac", before), ("self_frac", after))
    )
    noise = pl.lit(None, pl.Float64) if not counted else runs.ERRORS * variance**0.5
    rows = frame.select(
        "name",
        "place",
        "is_own_code",
        pl.when(pl.col("base_total_frac") > 0).then("base_self_frac").alias("before_frac"),
        pl.when(pl.col("total_frac") > 0).then("self_frac").alias("after_frac"),
        noise.alias("noise_frac"),
        before_total_frac="base_total_frac",
        after_total_frac="total_frac",
    )
    return runs.judged_shares(rows, least)


def _steps(before: runs.Run, after: runs.Run) -> pl.DataFrame:
    """Return the times of all steps of both runs: run, on, step, number, duration_ns, warm_up."""
    frames = [
        run.steps.steps.unique(["rank", "path", "number"], maintain_order=True).select(
            pl.lit(when).alias("run"), "rank", "path", "on", "step", "number", "duration_ns",
            "warm_up",
        )
        for run, when in ((before, "before"), (after, "after"))
        if run.steps
    ]  # fmt: skip
    return pl.concat(frames) if frames else pl.DataFrame()


def _runs(before: runs.Run, after: runs.Run) -> pl.DataFrame:
    """Return one row per run: run, path, files, ranks, steps, format, gpus."""
    rows = [
        {
            "run": when,
            "path": _common(sorted({fact.path for fact in run.facts})),
            "files": len({fact.path for fact in run.facts}),
            "ranks": run.ranks,
            "steps": run.step_count or None,
            "format": ", ".join(sorted({fact.format for fact in run.facts})),
            "gpus": ", ".join(sorted({name for fact in run.facts for name in fact.gpus})) or None,
        }
        for run, when in ((before, "before"), (after, "after"))
    ]
    return pl.DataFrame(rows, schema_overrides={"steps": pl.Int64, "gpus": pl.String})


def _common(paths: Sequence[str]) -> str:
    """Return the path of the only file, or the common folder."""
    if len(paths) == 1:
        return paths[0]
    levels = zip(*(PurePath(path).parts for path in paths), strict=False)
    return str(PurePath(*(level[0] for level in takewhile(lambda of: len(set(of)) == 1, levels))))


def _files(before: runs.Run, after: runs.Run) -> pl.DataFrame:
    """Return one row per file: run, path, rank, format, gpus, cut_off."""
    rows = [
        {"run": when, "path": fact.path, "rank": fact.rank, "format": fact.format}
        | {"gpus": ", ".join(sorted(set(fact.gpus))), "cut_off": fact.cut_off}
        for run, when in ((before, "before"), (after, "after"))
        for fact in run.facts
    ]
    return pl.DataFrame(rows, schema_overrides={"rank": pl.Int32})


def _compares_memory(trace: Trace, options: Options) -> bool:
    kinds = ledger.NEEDS.kinds - {"cpu_op", "nvtx", "python_function", "user_annotation"}
    recorded = trace.segments.height > 0 or bool(trace.events["kind"].is_in(kinds).any())
    return options.with_memory and recorded


def _part_or_none(measure: Callable[[], P]) -> P | None:
    """Return the part of another analyzer; None if the file lacks the data."""
    try:
        return measure()
    except MissingData:
        return None


def _facts(trace: Trace) -> runs.Facts:
    kinds = set(trace.events["kind"].unique().cast(pl.String))
    extras = tuple(label for kind, label in _EXTRAS.items() if kind in kinds)
    return runs.Facts(**vars(trace.meta), extras=extras, cut_off=is_truncated(trace))


def _with_behaviour(part: steps.Part, idle: gpu_idle.Part | None) -> steps.Part:
    """Add the file and start of the steps, and the idle causes of their devices."""
    rows = part.steps.with_columns(source=pl.lit(part.path), mark="start")
    if idle is None:
        unknown = [pl.lit(None, pl.Int64).alias(name) for name in BEHAVIOUR]
        return replace(part, steps=rows.drop("busy_ns").with_columns(unknown))
    units = idle.units.select("unit", "device")
    causes = idle.steps.select("unit", "start", *BEHAVIOUR).join(units, on="unit").drop("unit")
    return replace(part, steps=left_join(rows.drop("busy_ns"), causes, ["device", "start"]))


def _typical(marks: pl.DataFrame | None) -> int | None:
    """Return the start of the step of median length; None without steps."""
    if marks is None or marks.is_empty():
        return None
    ordered = marks.sort(pl.col("end") - pl.col("start"), "start")
    return int(ordered["start"][(marks.height - 1) // 2])


def _work_by_step(pieces: pl.DataFrame, part: kernels.Part) -> pl.DataFrame:
    """Sum kernels, copies and memsets by step.

    Args:
        pieces: :func:`~traceanalyzer.analyzers.common.device_work.device_work` of the rank, with
            ``mark``.
        part: the kernels of the same work, in the same order.

    Returns:
        mark (the step's start, null outside), name, family, n, total_ns.
    """
    rows = pieces.select("mark").hstack(part.work)
    sums = rows.group_by("mark", "kernel").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("length_ns").sum()
    )
    kernels_of_sums = part.kernels[sums["kernel"]].with_columns(pl.col("name").cast(pl.String))
    named = sums.drop("kernel").hstack(kernels_of_sums)
    summed = named.group_by("mark", "name", "family").agg(pl.col("n", "total_ns").sum())
    return summed.select("mark", "name", "family", "n", "total_ns")


def _operators_by_step(excerpt: operators.Excerpt, marks: pl.DataFrame | None) -> pl.DataFrame:
    """Sum operators, annotations and calls by step, without Python frames.

    Args:
        excerpt: the excerpt of the rank's trace.
        marks: start, end, ``host_start`` and ``host_end`` of the steps; None without any.

    Returns:
        mark, name, kind, n, host_ns (self time), device_ns (self device time, null if no device
        work was recorded).
    """
    tree = call_tree.build(excerpt.calls)
    counted = call_tree.counted_as(tree)
    unlaunched = excerpt.work.is_empty()
    caller = call_tree.callers(excerpt.work, tree)
    device = call_tree.device_time(excerpt.work, caller, tree.height)
    launched = pl.lit(None, pl.Int64) if unlaunched else pl.Series(device)
    is_call = counted == np.arange(tree.height)
    rows = tree.select(
        _mark(tree["start"].gather(counted), marks, "host_"),
        "name",
        tree["kind"].gather(counted),
        n=pl.Series(is_call.astype(np.int64)),
        host_ns="self_time",
        device_ns=launched,
    )
    sums = rows.filter(pl.col("kind") != call_tree.FRAMES).group_by("mark", "name", "kind")
    total = sums.agg(
        pl.col("n", "host_ns").sum(),
        pl.lit(None, pl.Int64).alias("device_ns") if unlaunched else pl.col("device_ns").sum(),
    )
    return total.with_columns(pl.col("name", "kind").cast(pl.String))


def _mark(times: pl.Series, marks: pl.DataFrame | None, on: str = "") -> pl.Series:
    """Return the start of the step that each time is in; null outside of all steps.

    Times are on the device, with ``on="host_"`` on the host.
    """
    if marks is None or marks.is_empty():
        return pl.Series("mark", [None] * times.len(), dtype=pl.Int64)
    ordered = marks.sort("start")
    start, end = ordered[f"{on}start"].to_numpy(), ordered[f"{on}end"].to_numpy()
    at = times.to_numpy()
    place = np.searchsorted(start, at, side="right") - 1
    inside = (place >= 0) & (at < end[place])
    return nullable("mark", ordered["start"].to_numpy()[np.maximum(place, 0)], inside)
