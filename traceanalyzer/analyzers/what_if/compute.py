"""Replays of all ranks: unchanged, and with changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from traceanalyzer.analyzers import critical_path
from traceanalyzer.analyzers.base import Analyzer
from traceanalyzer.analyzers.common.columns import ratio
from traceanalyzer.analyzers.common.device_work import COMPUTE
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.common.kernel_times import LARGER_INPUTS, compare
from traceanalyzer.analyzers.critical_path import inferred_waits, of_sample
from traceanalyzer.analyzers.replay import changes, engine, program, sample
from traceanalyzer.analyzers.replay.changes import NO_GAIN, Change
from traceanalyzer.analyzers.replay.engine import Job, Times, Weights
from traceanalyzer.analyzers.replay.profiler import UNPROFILED
from traceanalyzer.analyzers.replay.program import Floats, Program
from traceanalyzer.analyzers.what_if import Options
from traceanalyzer.analyzers.what_if.schedule import Schedule, schedule
from traceanalyzer.drawings import Chart
from traceanalyzer.errors import OptionError
from traceanalyzer.frames import intervals
from traceanalyzer.result import Result, Table, View
from traceanalyzer.units import format_frac, format_ns, format_ranges

_CHANGES = headings("change, step_ns: step, gain_ns: gain, gain_frac: of step")
_OF_FINDINGS = headings("finding, gain_ns: gain, gain_frac: of time, change")
#: Columns of :attr:`WhatIf.findings`.
FINDINGS = {"finding": pl.String, "change": pl.String, "gain_ns": pl.Float64,
            "gain_frac": pl.Float64, "gain_of": pl.String}  # fmt: skip
_STEPS = headings("run, step, step_ns: time")
_PATHS = headings(
    "kind: waiting for, before_ns: before, after_ns: after, after_frac: of step after"
)
_BY_RANK = headings("rank, before_ns: before, step_ns: step, gain_ns: gain, gain_frac: of step")
#: A change is drawn beside the recording up to so many pieces of work.
_MOST_DRAWN = 4_000


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf(Result):
    """Step times of the run as recorded, replayed without a change, and replayed with changes.

    Attributes:
        changes: one row per change, the largest gain first: ``change``, ``step_ns`` (mean step time
            with it), ``gain_ns`` (replayed_ns - step_ns), ``gain_frac`` (of replayed_ns).
        findings: ``finding`` (id), ``change`` (what is removed), ``gain_ns`` and ``gain_frac`` (of
            ``gain_of``) of the findings of ``diagnose``, in the mean of the steps that count there.
            One, if it was given.
        steps: time of each step: ``run`` (``recorded``, ``replayed``, or the change), ``step``,
            ``step_ns``.
        by_rank: of a given change, step times where ranks differ: ``rank``, ``before_ns``,
            ``step_ns``, ``gain_ns``, ``gain_frac``.
        paths: the longest path of a step before and after a given change: ``kind``, ``before_ns``,
            ``after_ns``, ``after_frac`` (of the step time after it).
        drawn: work of one step before and after a given change, of the rank that gains most:
            ``run``, ``kind``, ``start_ns``, ``end_ns`` from the start of the step.
        given: the change was given; otherwise each usual one was tried.
        faster_ranks: ranks that are faster than the others: like them, steps would be longer.
        unequal: work that is moved between ranks gains time, by one of the changes.
            Without a given change, ``changes`` has no row for that.
        ranks: number of ranks.
        kernels: number of kernels and copies.
        recorded_ns: mean step time as recorded.
        replayed_ns: mean step time, replayed without a change, and without the time that the
            profiler takes of the host.
        error_frac: relative error of the step time of the replay with the profiler.
        profiled: the profiler takes time of the steps.
        start_error_ns: median difference of the starts of device work.
        start_error_p95_ns: 95th percentile of that difference.
        edges: number of waits of a stream for another one.
        inferred: number of those that are not recorded but inferred.
        hint: how to record them, or empty.
        missing: number of kernels and copies without a launch call.
        sampled: which steps are replayed (``4 of 20 steps (12 to 15)``); empty if all are.
        one_by_one: steps were not recorded one after another; each is replayed alone.
        pipeline: the schedule of a pipeline, or None.
        world_size: number of ranks of the job, or None.
    """

    question = "What would a fix gain?"
    scalar_names = (
        "ranks, kernels, recorded_ns, replayed_ns, error_frac, start_error_ns, start_error_p95_ns, "
        "edges, inferred, missing"
    )

    changes: pl.DataFrame
    findings: pl.DataFrame
    steps: pl.DataFrame
    by_rank: pl.DataFrame
    paths: pl.DataFrame
    drawn: pl.DataFrame
    given: bool
    faster_ranks: tuple[int, ...]
    unequal: bool
    ranks: int
    kernels: int
    recorded_ns: float
    replayed_ns: float
    error_frac: float
    profiled: bool
    start_error_ns: float
    start_error_p95_ns: float
    edges: int
    inferred: int
    hint: str
    missing: int
    sampled: str
    one_by_one: bool
    pipeline: Schedule | None
    world_size: int | None

    def view(self) -> View:
        """Build the view: the changes by gain, and the steps before and after."""
        return self.view_from(_verdict, _notes, _tables, _charts)


def _verdict(result: WhatIf) -> str:
    return sentences(_of_changes(result), result.pipeline.text() if result.pipeline else "")


def _of_changes(result: WhatIf) -> str:
    steps = result.steps.filter(pl.col("run") == "recorded").height
    taken = format_ns(result.recorded_ns)
    mean = f"mean of {result.sampled or steps}"
    mean += " after the first" * (not (result.one_by_one or result.sampled))
    profiled = f"about {format_ns(result.replayed_ns)} without the profiler" * result.profiled
    of = ", ".join(filter(None, [mean * (steps > 1), profiled]))
    step = f"{'A step' if steps > 1 else 'The run'} takes {taken}{f' ({of})' if of else ''}."
    rows = result.findings.sort("gain_ns", descending=True).head(1).rows(named=True)
    whole = "step time" if steps > 1 else "the run"
    if result.given:
        if rows:
            gain = _gain(rows[0], rows[0]["gain_of"])
            without = f"Without the cause of {rows[0]['finding']}: {gain} less"
            return sentences(step, f"{without} ({rows[0]['change']}).")
        best = result.changes.row(0, named=True)
        changed = f"With the change ({best['change']}): {_compared(best)}."
        after = [
            f"{row['kind']} {format_frac(row['after_frac'])}"
            for row in result.paths.sort("after_ns", descending=True).head(2).to_dicts()
        ]
        what = "A step" if steps > 1 else "The run"
        then = f"{what} then waits for: {', '.join(after)}." if after else ""
        return sentences(step, changed, then)
    largest = [
        f"Largest gain of a finding: {row['finding']}, {_gain(row, row['gain_of'])}."
        for row in rows
    ]
    others = result.changes.filter(~pl.col("change").is_in([row["change"] for row in rows]))
    changes = others.filter(pl.col("gain_frac") >= NO_GAIN).head(2).rows(named=True)
    if not changes:
        return sentences(step, *largest, "None of the usual changes gains 1 % of it.")
    first = "Largest gain of another change" if rows else "Largest gain"
    each = zip((first, "Next"), changes, strict=False)
    return sentences(
        step, *largest, *(f"{n}: {row['change']}, {_gain(row, whole)}." for n, row in each)
    )


def _compared(row: dict[str, float]) -> str:
    step, gain = format_ns(row["step_ns"]), format_ns(abs(row["gain_ns"]))
    share = format_frac(abs(row["gain_frac"]))
    if abs(row["gain_frac"]) < NO_GAIN:
        return f"{step}, no gain (below 1 %)"
    return f"{step}, {gain} ({share}) {'less' if row['gain_ns'] > 0 else 'more'}"


def _gain(row: dict[str, float], of: str) -> str:
    return f"{format_ns(row['gain_ns'])} ({format_frac(row['gain_frac'])} of {of})"


def _notes(result: WhatIf) -> Iterator[str]:
    yield (
        f"The replay of the unchanged run differs from the recording by "
        f"{format_frac(abs(result.error_frac))} in step time, and in starts of work by "
        f"{format_ns(result.start_error_ns)} (median), {format_ns(result.start_error_p95_ns)} "
        "(95th percentile)."
    )
    if result.profiled:
        yield UNPROFILED
    yield (
        "A gain is an estimate from the recorded program: changed kernels may compete for memory "
        "bandwidth and clocks. Gains of several changes do not add up."
    )
    if result.findings.height:
        yield (
            "Gains of findings are those of diagnose, of the steps that it counts: only the time "
            "of the finding is removed. Other changes remove all time of a class, also what "
            "overlaps with device work."
        )
    if result.unequal and not result.given:
        yield (
            "Without waiting for other ranks, a step still takes as long as that of the rank with "
            "the most work: balance the work."
        )
    if result.faster_ranks:
        ranks = format_ranges(result.faster_ranks)
        yield f"In the replay, steps are longer if these ranks are like the others: {ranks}."
    yield from inferred_waits(result.inferred, result.edges, result.hint)
    if result.missing:
        yield (
            f"Kernels and copies without a recorded launch call: {result.missing:,}; they follow "
            "the work before them."
        )
    yield from of_sample(result.sampled)
    if result.one_by_one:
        yield "Only some steps were recorded: each one is replayed alone."
    if result.world_size and result.ranks < result.world_size:
        yield (
            f"{result.ranks} of {result.world_size} ranks were given: waiting for the others "
            "counts as time of transfers."
        )


def _tables(result: WhatIf) -> Iterator[Table]:
    if result.findings.height:
        title = "Gain without the cause of each finding"
        yield Table("findings", title, result.findings, _OF_FINDINGS, sentences=("change",))
    if result.changes.height:
        steps = result.steps.filter(pl.col("run") == "recorded").height
        of_run = {} if steps > 1 else {"step_ns": "run", "gain_frac": "of run"}
        title = f"{'Step' if steps > 1 else 'Run'} time with each change"
        yield Table("changes", title, result.changes, _CHANGES | of_run, whole=True)
    if result.paths.height:
        yield Table("paths", "Longest path before and after the change", result.paths, _PATHS)
    if result.by_rank.height:
        yield Table("by_rank", "Step time of each rank", result.by_rank, _BY_RANK)
    if result.pipeline:
        yield from result.pipeline.tables()
    yield Table("steps", "Steps", result.steps, _STEPS, detail=True)


def _charts(result: WhatIf) -> Iterator[Chart]:
    found = result.findings.drop("gain_of").with_columns(change=pl.col("finding"))
    gains = pl.concat([found, result.changes], how="diagonal").filter(
        pl.col("gain_frac") >= NO_GAIN
    )
    order = ["recorded", "replayed", *result.changes["change"].head(3)]
    steps = result.steps.filter(pl.col("run").is_in(order))
    steps = steps.with_columns(number=pl.int_range(pl.len()).over("run"))
    if result.pipeline:
        yield result.pipeline.chart()
    if result.drawn.height:
        yield Chart("drawn", "One step before and after the change", "span", result.drawn,
                    "start_ns", "run", "time in the step", color="kind", x2="end_ns")  # fmt: skip
    if gains.height:
        yield Chart("gains", "Gain of each change", "bar", gains, "change", "gain_ns", "", "gain")
    if steps["number"].n_unique() > 1:
        yield Chart("steps", "Steps before and after", "line", steps, "number", "step_ns", "step",
                  "time", color="run")  # fmt: skip


#: A smaller share of the step is no loss.
_LOSS = 0.001
#: Ranks and stages that are tried one by one.
_MOST_TRIED = 16


def combine(parts: Sequence[Program], options: Options) -> WhatIf:
    """Replay the run without a change, and with the given one or each usual one.

    Raises:
        MissingData: the replay without a change differs too much from the recording.
        OptionError: a rank or stage does not exist, or an expression is not valid.
    """
    job = engine.job_of(parts)
    unchanged, error = engine.checked_replay(job)
    recorded = np.array(engine.recorded_step_times(job))
    starts, as_recorded = _start_errors(job, unchanged), job
    job, unchanged = engine.unprofiled(job, unchanged)
    replayed = _steps(job, unchanged)
    stages = changes.stages(job)
    given = options != Options(typical=options.typical)
    tried = [_given(job, stages, options)] if given else _usual(job, stages)
    weights, after = job.weights, unchanged
    rows = []
    for one in [] if options.finding else tried:  # diagnose tries it
        times = engine.replay(job, changed := changes.changed(job, one))
        rows.append((one, _steps(job, times)))
        weights, after = (tuple(changed), times) if given else (weights, after)
    by_rank = _by_rank(job, unchanged, after)
    base = replayed.mean()
    loss = [(one, steps.mean() / base - 1) for one, steps in rows]
    slower = [one for one, frac in loss if frac > _LOSS and not one.of_all]
    faster = {rank for one in slower for rank in one.typical_ranks}
    if not given:
        without_gain = [one for one, frac in loss if one.typical_ranks and frac > 0]
        rows = [row for row in rows if row[0] not in without_gain]
    of_steps = [("recorded", recorded), ("replayed", replayed)]
    of_steps += [(change.text, times) for change, times in rows]
    waits = engine.between_streams(job)
    return WhatIf(
        changes=_table(rows, replayed),
        findings=pl.DataFrame(schema=FINDINGS),
        steps=_of_steps(job.step_names, of_steps),
        by_rank=by_rank,
        paths=_paths(job, unchanged, after, weights),
        drawn=_drawn(job, by_rank, {"replayed": unchanged, "changed": after}),
        given=given,
        faster_ranks=tuple(sorted(faster)),
        unequal=not given and any(one.of_all and -frac >= NO_GAIN for one, frac in loss),
        ranks=len(job.programs),
        kernels=sum(one.work.height for one in job.programs),
        recorded_ns=float(recorded.mean()),
        replayed_ns=float(replayed.mean()),
        error_frac=error,
        profiled=job is not as_recorded,
        start_error_ns=float(np.median(starts)),
        start_error_p95_ns=float(np.percentile(starts, 95)),
        edges=waits.len(),
        inferred=int(waits.sum()),
        hint=job.programs[0].hint,
        missing=sum(one.missing for one in job.programs),
        sampled=job.sampled,
        one_by_one=len(job.begins) > 1,
        pipeline=schedule(job, stages),
        world_size=max((one.world_size or 0 for one in job.programs), default=0) or None,
    )


WHAT_IF = Analyzer(
    "what_if", Options, program.NEEDS, sample.measure, combine,
    more=program.more_with_graphs, of_one_job="only",
)  # fmt: skip


def _steps(job: Job, replayed: Sequence[Times]) -> Floats:
    return np.array(engine.step_times(job, [one.end for one in replayed]), np.float64)


def _start_errors(job: Job, unchanged: Sequence[Times]) -> Floats:
    """Return by how much the starts of all work differ from the recorded ones."""
    rows = zip(job.programs, unchanged, job.shifts, strict=True)
    errors: list[Floats] = [
        np.abs(times.start - (one.work["start"].to_numpy() + shift)) for one, times, shift in rows
    ]
    return np.concatenate(errors)


def _by_rank(job: Job, before: Sequence[Times], after: Sequence[Times]) -> pl.DataFrame:
    """Return :attr:`WhatIf.by_rank`, empty if all ranks gain the same."""
    ns = [engine.rank_step_times(job, [one.end for one in times]) for times in (before, after)]
    table = pl.DataFrame(
        [*zip(job.names, *ns, strict=True)],
        schema={"rank": pl.Int64, "before_ns": pl.Float64, "step_ns": pl.Float64}, orient="row",
    ).drop_nulls("rank")  # fmt: skip
    gain, before_ns = pl.col("before_ns") - pl.col("step_ns"), pl.col("before_ns")
    table = table.with_columns(gain_ns=gain, gain_frac=ratio(gain, before_ns))
    apart = table.select(gain_frac=pl.col("gain_frac").max() - pl.col("gain_frac").min()).item()
    return table if (apart or 0.0) >= NO_GAIN else table.clear()


def _paths(
    job: Job, before: Sequence[Times], after: Sequence[Times], weights: Sequence[Weights]
) -> pl.DataFrame:
    """Return :attr:`WhatIf.paths`, empty without a change or of much work."""
    schema = dict.fromkeys(("before_ns", "after_ns", "after_frac"), pl.Float64)
    if before is after or int(job.first_row[-1]) > sample.MOST_WORK:
        return pl.DataFrame(schema={"kind": pl.String, **schema})
    sums = []
    for times, those in ((before, job.weights), (after, weights)):
        path, steps = critical_path.in_steps(job, times, those)
        ns = (pl.col("end") - pl.col("start")).sum() / steps
        sums.append(path.group_by("kind").agg(ns=ns))
    both = sums[0].join(sums[1], on="kind", how="full", coalesce=True, suffix="_of").fill_null(0.0)
    both = both.rename({"ns": "before_ns", "ns_of": "after_ns"})
    share = ratio("after_ns", pl.col("after_ns").sum())
    return both.with_columns(after_frac=share).sort("before_ns", "kind", descending=[True, False])


def _drawn(job: Job, by_rank: pl.DataFrame, runs: Mapping[str, Sequence[Times]]) -> pl.DataFrame:
    """Return :attr:`WhatIf.drawn` of the step in the middle."""
    rank = by_rank.sort("gain_ns", "rank", descending=[True, False])["rank"].first()
    number = next((n for n, one in enumerate(job.programs) if one.rank == rank), 0)
    step_of, kind = job.of_rank(number), job.programs[number].work["work_kind"].cast(pl.String)
    frames = []
    for run, times in runs.items():
        bounds = engine.step_bounds(job, times)
        middle = len(bounds) // 2
        inside = step_of == middle + len(job.step_names) - len(bounds)
        begin = round(bounds[middle][0])
        ends = {side: getattr(times[number], side).round() for side in ("start", "end")}
        rows = pl.DataFrame({"kind": kind, **ends}).filter(pl.Series(inside))
        spans = intervals.union(rows.cast({"start": pl.Int64, "end": pl.Int64}), ["kind"])
        frames.append(spans.select(
            pl.lit(run).alias("run"), "kind", start_ns=pl.col("start") - begin,
            end_ns=pl.col("end") - begin,
        ))  # fmt: skip
    drawn = pl.concat(frames)
    without = runs["changed"] is runs["replayed"] or drawn.height > _MOST_DRAWN
    return drawn.clear() if without else drawn


def _given(job: Job, stages: Sequence[tuple[int, ...]], options: Options) -> Change:
    ranks = _chosen("rank", options.typical_rank, {name: (name,) for name in job.names})
    ranks |= _chosen("stage", options.typical_stage, dict(enumerate(stages)))
    if options.equal_stages and not stages:
        raise OptionError("--equal-stages: the ranks are not the stages of a pipeline")
    return Change(
        tuple(options.free), tuple(options.scale), tuple(sorted(ranks)),
        options.typical == "all", options.network, options.no_wait, options.equal_stages,
    )  # fmt: skip


def _chosen(what: str, given: Sequence[str], known: Mapping[Any, tuple[Any, ...]]) -> set[int]:
    """Return the ranks of the given ranks or stages.

    Raises:
        OptionError: there is no such rank or stage.
    """
    ranks: set[int] = set()
    for text in given:
        number = next((one for one in known if str(one) == text), None)
        if number is None:
            numbers = ", ".join(str(one) for one in known if one is not None) or "none"
            raise OptionError(f"--typical-{what} {text}: there is no such {what}; known: {numbers}")
        ranks |= {*known[number]}
    return ranks


def _usual(job: Job, stages: Sequence[tuple[int, ...]]) -> list[Change]:
    """Return the usual changes of a run."""
    on_host = all(one.on_host for one in job.programs)
    classes = changes.ON_HOST if on_host else changes.CLASSES
    tried = [Change(free=(name,)) for name in classes if changes.occurs(job, name)]
    if job.sizes.size:
        tried += [Change(network=2.0), Change(no_wait=True)]
        ranks = [name for name in job.names if name is not None]
        if 1 < len(ranks) <= _MOST_TRIED:
            larger = _with_larger_inputs(job)
            tried += [Change(typical_ranks=(rank,), of_all=rank in larger) for rank in ranks]
            if len(larger) > 1:
                tried.append(Change(typical_ranks=tuple(sorted(ranks)), of_all=True))
    if stages:
        tried.append(Change(equal_stages=True))
    if len(stages) <= _MOST_TRIED:
        tried += [Change(typical_ranks=ranks) for ranks in stages if len(ranks) > 1]
    return tried


def _with_larger_inputs(job: Job) -> set[int]:
    """Return the ranks with larger inputs, which would move to the other ranks."""
    ns, names = pl.col("end") - pl.col("start"), pl.Series(job.names, dtype=pl.Int64)
    each = zip(job.programs, np.split(job.unit, job.first_row[1:-1]), strict=True)
    kernels = pl.concat(
        one.work.with_columns(rank=names[unit])
        .filter(pl.col("work_kind") == COMPUTE)
        .group_by("rank", "step", kernel=pl.col("name").cast(pl.String))
        .agg(n=pl.len().cast(pl.Int64), total_ns=ns.sum(), max_ns=ns.max())
        .with_columns(blocks=pl.lit(None, pl.Int64))
        for one, unit in each
    )
    ranks: list[int] = kernels["rank"].drop_nulls().unique().to_list()
    differences = {rank: compare(kernels, "rank", rank, "") for rank in ranks}
    return {rank for rank, one in differences.items() if one and one.why == LARGER_INPUTS}


def _table(rows: Sequence[tuple[Change, Floats]], replayed: Floats) -> pl.DataFrame:
    base = float(replayed.mean())
    table = pl.DataFrame(
        [(change.text, float(times.mean())) for change, times in rows],
        schema={"change": pl.String, "step_ns": pl.Float64},
        orient="row",
    )
    gain = base - pl.col("step_ns")
    table = table.with_columns(gain_ns=gain, gain_frac=gain / base)
    return table.sort("gain_ns", "change", descending=[True, False])


def _of_steps(steps: Sequence[str], rows: Sequence[tuple[str, Floats]]) -> pl.DataFrame:
    frames = []
    for name, times in rows:
        names = steps[-times.size :] if len(steps) >= times.size else [""] * times.size
        frames.append(pl.DataFrame({"run": [name] * times.size, "step": names, "step_ns": times}))
    return pl.concat(frames)
