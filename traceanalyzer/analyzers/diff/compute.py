"""From each rank's trace to what changed between two runs."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import PurePath
from typing import TypeVar

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Needs
from traceanalyzer.analyzers.comm_outliers import compute as comm
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.diff import comparable, compared, result, runs
from traceanalyzer.analyzers.diff.options import Options
from traceanalyzer.analyzers.flamegraph import compute as flamegraph
from traceanalyzer.analyzers.flamegraph.result import FlameGraph
from traceanalyzer.analyzers.gpu_idle import compute as gpu_idle
from traceanalyzer.analyzers.gpu_idle.causes import BUSY, CAUSES
from traceanalyzer.analyzers.kernels import compute as kernels
from traceanalyzer.analyzers.memory import compute as memory
from traceanalyzer.analyzers.memory.diff import MemoryDiff, diff_of
from traceanalyzer.analyzers.memory.rank_memory import is_snapshot
from traceanalyzer.analyzers.operators import call_tree, compute as operators
from traceanalyzer.analyzers.steps import compute as steps
from traceanalyzer.errors import MissingData
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.trace import Trace, is_cut_off

Found = TypeVar("Found")

#: Columns of a step: what the device, or the main thread, was at.
BEHAVIOUR = tuple(f"{sort}_ns" for sort in (BUSY, *CAUSES))

#: What costs time where it is recorded, by the kind of its events.
_EXTRAS = {
    "python_function": "Python frames (with_stack)",
    "cpu_instant_event": "allocations (profile_memory)",
    "osrt": "calls of the operating system",
}

_WINDOWED = "Memory is not compared: its history counts as a whole."

#: What memory is measured on.
_PEAK = memory.MEMORY.options()
_MEMORY = memory.MEMORY.needs(_PEAK)


def needs(options: Options) -> Needs:
    """All that any of the comparisons needs."""
    asked = [
        steps.needs(steps.STEPS.options(options.step_name)),
        gpu_idle.needs(gpu_idle.GPU_IDLE.options()),
        operators.needs(operators.OPERATORS.options()),
        comm.LAUNCHES,
        *([_MEMORY] if options.with_memory else []),
    ]
    kinds = frozenset(("sample", "lane")).union(*(one.kinds for one in asked))
    names = dict.fromkeys(name for one in asked for name in one.names)
    return Needs(kinds, tuple(names), samples=True)


def measure(trace: Trace, options: Options) -> runs.Part:
    """What other analyzers find in one rank.

    Args:
        trace: one rank, read with what the options need.
        options: what is asked.

    Raises:
        MissingData: there is nothing in it to compare.
        OptionError: a pattern is not a regular expression.
    """
    of_idle = gpu_idle.GPU_IDLE.options(patterns=options.patterns, step_name=options.step_name)
    idle = _answer(lambda: gpu_idle.GPU_IDLE.part(trace, of_idle))
    of_kernels = kernels.KERNELS.options(patterns=options.patterns)
    work = _answer(lambda: kernels.measure(trace, of_kernels))
    calls = _answer(lambda: operators.take(trace, operators.OPERATORS.options()))
    of_comm = comm.COMM_OUTLIERS.options(patterns=options.patterns)
    of_stacks = flamegraph.FLAMEGRAPH.options(kinds=("sample",))
    # a snapshot's times are those of the allocator's calls: it is there for its memory
    of_steps = steps.STEPS.options(options.step_name)
    found = None if is_snapshot(trace) else _answer(lambda: steps.measure(trace, of_steps))
    if found is not None and found.by_kernels:
        found = None  # where a step begins may differ between the runs
    marks = None if found is None else found.steps.select("start", "end").unique()
    pieces = device_work(trace, options.patterns)
    part = runs.Part(
        facts=_facts(trace),
        steps=None if found is None else _with_behaviour(found, idle),
        idle=idle,
        kernels=work,
        work=None if work is None else _work_by_step(pieces, work, marks),
        operators=None if calls is None else _operators_by_step(calls, marks),
        comm=_answer(lambda: comm.measure(trace, of_comm)),
        memory=_answer(lambda: memory.measure(trace, _PEAK, drawn=False, causes=False))
        if _asks_memory(trace, options)
        else None,
        stacks=_answer(lambda: flamegraph.measure(trace, of_stacks)),
    )
    if not any((part.steps, part.idle, part.kernels, part.memory, part.stacks)):
        raise MissingData(f"{trace.meta.path}: nothing in it can be compared with another run")
    return part


def combine(parts: Sequence[runs.Part], options: Options, base: Sequence[runs.Part]) -> result.Diff:
    """What changed from one run to another.

    Args:
        parts: one for each rank of the run to look at.
        options: what is asked.
        base: one for each rank of the run to compare with.
    """
    both = (runs.run_of(base), runs.run_of(parts))
    measure = runs.measured(*both, options.min_change)
    why = comparable.obstacle(*both, measure)
    measure = None if why else measure
    in_steps = measure is not None and measure.name == "step"
    bases = [
        compared.by_step(run) if in_steps else compared.as_whole(run, work)
        for run, work in zip(both, (1.0, measure.work if measure else 1.0), strict=True)
    ]
    pair = compared.Pair(both, bases, options.min_change)
    shares = _shares(*both)
    return result.Diff(
        measure=measure,
        why=why,
        parts=compared.parts(pair),
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
        remarks=(
            *comparable.remarks(*both, measure),
            *([] if options.with_memory else [_WINDOWED]),
        ),
    )


DIFF = Analyzer("diff", Options, needs, measure, combine, base="before")


def _memory(before: runs.Run, after: runs.Run) -> MemoryDiff | None:
    held = before.memory and after.memory
    return diff_of(after.memory, before.memory) if held else None  # type: ignore[arg-type]


def _shares(before: runs.Run, after: runs.Run) -> FlameGraph | None:
    """Both runs' sampled stacks in one flamegraph, where they count the same."""
    if not (before.stacks and after.stacks):
        return None
    units = {part.unit for part in (*before.stacks, *after.stacks)}
    weigh = all(sum(p.weights[0].sum() for p in run.stacks) > 0 for run in (before, after))
    if len(units) > 1 or not weigh:
        return None
    return flamegraph.combine(after.stacks, flamegraph.FLAMEGRAPH.options(), before.stacks)


def _functions(shares: FlameGraph, least: float) -> pl.DataFrame:
    """Functions by their share of all weight, by themselves and with what they call."""
    frame = shares.functions
    counted = shares.unit == "samples" and shares.base is not None
    own, base = shares.total, shares.base or 1.0
    variance = sum(
        pl.col(name) * (1 - pl.col(name)) / total
        for name, total in (("base_self_frac", base), ("self_frac", own))
    )
    unsure = pl.lit(None, pl.Float64) if not counted else runs.ERRORS * variance**0.5
    rows = frame.select(
        "name",
        "place",
        "own",
        pl.when(pl.col("base_total_frac") > 0).then("base_self_frac").alias("before_frac"),
        pl.when(pl.col("total_frac") > 0).then("self_frac").alias("after_frac"),
        unsure.alias("noise_frac"),
        before_total_frac="base_total_frac",
        after_total_frac="total_frac",
    )
    return runs.judged_shares(rows, least)


def _steps(before: runs.Run, after: runs.Run) -> pl.DataFrame:
    """Every step's time in both runs: run, on, step, number, duration_ns, warm_up."""
    found = [
        run.steps.steps.unique(["rank", "path", "number"], maintain_order=True).select(
            pl.lit(when).alias("run"), "rank", "path", "on", "step", "number", "duration_ns",
            "warm_up",
        )
        for run, when in ((before, "before"), (after, "after"))
        if run.steps
    ]  # fmt: skip
    return pl.concat(found) if found else pl.DataFrame()


def _runs(before: runs.Run, after: runs.Run) -> pl.DataFrame:
    """One row a run: run, path, files, ranks, steps, format, gpus."""
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
    """The path of the only file, or the folder that all are in."""
    if len(paths) == 1:
        return paths[0]
    levels = zip(*(PurePath(path).parts for path in paths), strict=False)
    return str(PurePath(*(level[0] for level in takewhile(lambda of: len(set(of)) == 1, levels))))


def _files(before: runs.Run, after: runs.Run) -> pl.DataFrame:
    """What was compared: run, path, rank, format, gpus, cut_off."""
    rows = [
        {"run": when, "path": fact.path, "rank": fact.rank, "format": fact.format}
        | {"gpus": ", ".join(sorted(set(fact.gpus))), "cut_off": fact.cut_off}
        for run, when in ((before, "before"), (after, "after"))
        for fact in run.facts
    ]
    return pl.DataFrame(rows, schema_overrides={"rank": pl.Int32})


def _asks_memory(trace: Trace, options: Options) -> bool:
    kinds = _MEMORY.kinds - {"cpu_op", "nvtx", "python_function", "user_annotation"}
    recorded = trace.segments.height > 0 or bool(trace.events["kind"].is_in(kinds).any())
    return options.with_memory and recorded


def _answer(ask: Callable[[], Found]) -> Found | None:
    """The answer to a question; None where the file lacks what it needs."""
    try:
        return ask()
    except MissingData:
        return None


def _facts(trace: Trace) -> runs.Facts:
    kinds = set(trace.events["kind"].unique().cast(pl.String))
    extras = tuple(said for kind, said in _EXTRAS.items() if kind in kinds)
    return runs.Facts(**vars(trace.meta), extras=extras, cut_off=is_cut_off(trace))


def _with_behaviour(found: steps.Part, idle: gpu_idle.Part | None) -> steps.Part:
    """The steps with where they are marked, and why their devices were idle."""
    rows = found.steps.with_columns(source=pl.lit(found.path), mark="start")
    if idle is None:
        unknown = [pl.lit(None, pl.Int64).alias(name) for name in BEHAVIOUR]
        return replace(found, steps=rows.drop("busy_ns").with_columns(unknown))
    units = idle.units.select("unit", "device")
    told = idle.steps.select("unit", "start", *BEHAVIOUR).join(units, on="unit").drop("unit")
    joined = rows.drop("busy_ns").join(
        told, on=["device", "start"], how="left", nulls_equal=True, maintain_order="left"
    )
    return replace(found, steps=joined)


def _work_by_step(
    pieces: pl.DataFrame, part: kernels.Part, marks: pl.DataFrame | None
) -> pl.DataFrame:
    """Kernels, copies and sets of each step.

    Args:
        pieces: :func:`~traceanalyzer.analyzers.common.device_work.device_work` of the rank.
        part: of the same pieces, in their order.
        marks: start and end of the steps, which do not overlap; None without any.

    Returns:
        mark (the step's start, null outside), name, family, n, total_ns.
    """
    rows = pieces.select(_mark(pieces["start"], marks)).hstack(part.work)
    sums = rows.group_by("mark", "kernel").agg(
        n=pl.len().cast(pl.Int64), total_ns=pl.col("length_ns").sum()
    )
    told = part.kernels[sums["kernel"]].with_columns(pl.col("name").cast(pl.String))
    named = sums.drop("kernel").hstack(told)
    alike = named.group_by("mark", "name", "family").agg(pl.col("n", "total_ns").sum())
    return alike.select("mark", "name", "family", "n", "total_ns")


def _operators_by_step(excerpt: operators.Excerpt, marks: pl.DataFrame | None) -> pl.DataFrame:
    """Operators, annotations and calls of each step, without Python frames.

    Args:
        excerpt: of the rank's trace.
        marks: as for :func:`_work_by_step`.

    Returns:
        mark, name, kind, n, host_ns (time in it less that in the calls it makes), device_ns (work
        that it launched itself, null where no device work was recorded).
    """
    tree = call_tree.build(excerpt.calls)
    counted = call_tree.counted_as(tree)
    unlaunched = excerpt.work.is_empty()
    caller = call_tree.callers(excerpt.work, tree)
    device = call_tree.device_time(excerpt.work, caller, tree.height)
    launched = pl.lit(None, pl.Int64) if unlaunched else pl.Series(device)
    is_call = counted == np.arange(tree.height)
    rows = tree.select(
        _mark(tree["start"].gather(counted), marks),
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


def _mark(times: pl.Series, marks: pl.DataFrame | None) -> pl.Series:
    """The start of the step that each time lies in; null outside of all."""
    if marks is None or marks.is_empty():
        return pl.Series("mark", [None] * times.len(), dtype=pl.Int64)
    ordered = marks.sort("start")
    start, end = ordered["start"].to_numpy(), ordered["end"].to_numpy()
    at = times.to_numpy()
    place = np.searchsorted(start, at, side="right") - 1
    inside = (place >= 0) & (at < end[place])
    return nullable("mark", start[np.maximum(place, 0)], inside)
