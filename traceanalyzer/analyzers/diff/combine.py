"""The parts of two runs in, what changed out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from pathlib import PurePath

import polars as pl

from traceanalyzer.analyzers import flamegraph
from traceanalyzer.analyzers.diff import comparable, compared, noise
from traceanalyzer.analyzers.diff.compared import Pair
from traceanalyzer.analyzers.diff.measure import measured
from traceanalyzer.analyzers.diff.part import Part
from traceanalyzer.analyzers.diff.question import Question
from traceanalyzer.analyzers.diff.result import Diff
from traceanalyzer.analyzers.diff.run import Run, run_of
from traceanalyzer.analyzers.diff.usual import as_whole, by_step
from traceanalyzer.analyzers.flamegraph import FlameGraph
from traceanalyzer.analyzers.memory import MemoryDiff, diff_of
from traceanalyzer.errors import OptionError


def combine(
    question: Question,
    before: Sequence[Part],
    after: Sequence[Part],
    remarks: Sequence[str] = (),
) -> Diff:
    """What changed from one run to another.

    Args:
        question: what was asked of both.
        before: a part a rank of the run compared with.
        after: a part a rank of the run looked at.
        remarks: further notes.

    Raises:
        OptionError: a run has no parts.
    """
    if not before or not after:
        raise OptionError("no trace was given")
    runs = (run_of(before), run_of(after))
    measure = measured(*runs, question.min_change)
    why = comparable.obstacle(*runs, measure)
    measure = None if why else measure
    bases = (
        (by_step(runs[0]), by_step(runs[1]))
        if measure is not None and measure.name == "step"
        else (as_whole(runs[0], 1.0), as_whole(runs[1], measure.work if measure else 1.0))
    )
    pair = Pair(*runs, bases, question.min_change)
    shares = _shares(*runs)
    return Diff(
        measure=measure,
        why=why,
        parts=compared.parts(pair),
        kernels=compared.kernels(pair),
        families=compared.families(pair),
        on_device=compared.operators(pair, "device"),
        on_host=compared.operators(pair, "host"),
        collectives=compared.collectives(pair),
        functions=None if shares is None else _functions(shares, question.min_change),
        memory=_memory(*runs),
        steps=_steps(*runs),
        runs=_runs(*runs),
        files=_files(*runs),
        flame=None if shares is None else shares.flame,
        remarks=(*comparable.remarks(*runs, measure), *remarks),
    )


def _memory(before: Run, after: Run) -> MemoryDiff | None:
    held = before.memory and after.memory
    return diff_of(after.memory, before.memory) if held else None  # type: ignore[arg-type]


def _shares(before: Run, after: Run) -> FlameGraph | None:
    """Both runs' sampled stacks in one flamegraph, where they count the same."""
    if not (before.stacks and after.stacks):
        return None
    units = {part.unit for part in (*before.stacks, *after.stacks)}
    weigh = all(sum(p.weights[0].sum() for p in run.stacks) > 0 for run in (before, after))
    return flamegraph.combine(after.stacks, before.stacks) if len(units) == 1 and weigh else None


def _functions(shares: FlameGraph, least: float) -> pl.DataFrame:
    """Functions by their share of all weight, by themselves and with what they call."""
    frame = shares.functions
    counted = shares.unit == "samples" and shares.base is not None
    own, base = shares.total, shares.base or 1.0
    variance = sum(
        pl.col(name) * (1 - pl.col(name)) / total
        for name, total in (("base_self_frac", base), ("self_frac", own))
    )
    unsure = pl.lit(None, pl.Float64) if not counted else noise.ERRORS * variance**0.5
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
    return noise.judged_shares(rows, least)


def _steps(before: Run, after: Run) -> pl.DataFrame:
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


def _runs(before: Run, after: Run) -> pl.DataFrame:
    """One row a run: run, path, files, ranks, steps, format, gpus."""
    rows = [
        (
            when,
            _common(sorted({fact.path for fact in run.facts})),
            len({fact.path for fact in run.facts}),
            run.ranks,
            run.step_count or None,
            ", ".join(sorted({fact.format for fact in run.facts})),
            ", ".join(sorted({name for fact in run.facts for name in fact.gpus})) or None,
        )
        for run, when in ((before, "before"), (after, "after"))
    ]
    types = {
        "run": pl.String, "path": pl.String, "files": pl.Int64, "ranks": pl.Int64,
        "steps": pl.Int64, "format": pl.String, "gpus": pl.String,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=types, orient="row")


def _common(paths: Sequence[str]) -> str:
    """The path of the only file, or the folder that all are in."""
    if len(paths) == 1:
        return paths[0]
    levels = zip(*(PurePath(path).parts for path in paths), strict=False)
    return str(PurePath(*(level[0] for level in takewhile(lambda of: len(set(of)) == 1, levels))))


def _files(before: Run, after: Run) -> pl.DataFrame:
    """What was compared: run, path, rank, format, gpus, cut_off."""
    rows = [
        (when, fact.path, fact.rank, fact.format, ", ".join(sorted(set(fact.gpus))), fact.cut_off)
        for run, when in ((before, "before"), (after, "after"))
        for fact in run.facts
    ]
    types = {
        "run": pl.String, "path": pl.String, "rank": pl.Int32, "format": pl.String,
        "gpus": pl.String, "cut_off": pl.Boolean,
    }  # fmt: skip
    return pl.DataFrame(rows, schema=types, orient="row")
