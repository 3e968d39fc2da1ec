"""Replays of all ranks: unchanged, and with changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Unpack

import numpy as np
import polars as pl

from traceanalyzer.analyzers.base import Analyzer, Reading
from traceanalyzer.analyzers.common.device_work import COMPUTE
from traceanalyzer.analyzers.common.display import headings, sentences
from traceanalyzer.analyzers.replay import changes, engine, program
from traceanalyzer.analyzers.replay.changes import CLASSES, SYNCHRONISATION, Change
from traceanalyzer.analyzers.replay.engine import Job, Times
from traceanalyzer.analyzers.replay.program import Floats, Ints, Program
from traceanalyzer.analyzers.what_if import Options, Typical
from traceanalyzer.drawings import Chart
from traceanalyzer.errors import OptionError
from traceanalyzer.result import Result, Table, View
from traceanalyzer.run.loop import run
from traceanalyzer.trace import Inputs
from traceanalyzer.units import format_frac, format_ns, format_ranges

#: A smaller share of the step is no gain.
NO_GAIN = 0.01

#: Changes with this share of the largest gain are as good.
_ALIKE = 0.95

_CHANGES = headings("change, step_ns: step, gain_ns: gain, gain_frac: of step")
_STEPS = headings("run, step, step_ns: time")

_STAGES = headings(
    "stage, ranks, forward_ns: forward pass, backward_ns: backward pass, busy_ns: all passes, "
    "bubble_frac: bubble"
)
_PARTS = headings("part, time_ns: time, time_frac: share")


@dataclass(frozen=True)
class Schedule:
    """The schedule of a pipeline, means of all complete steps of all pipelines.

    Attributes:
        name: the recognised schedule.
        batches: micro-batches per step.
        chunks: parts of the model on each rank.
        span_ns: from the first pass of a step to the last one, over all stages.
        ideal_frac: bubble of a 1F1B schedule with equal stages, (stages - 1) / (chunks * batches +
            stages - 1).
        bubble_frac: share of span_ns, over all stages, in which a stage computes no pass.
        stages: one row per stage: stage, ranks, ``forward_ns``, ``backward_ns`` (compute of a
            pass), ``busy_ns`` (of all passes of a step), ``bubble_frac``.
        parts: ``span_ns`` by what it consists of: part, ``time_ns``, ``time_frac``. Compute is that
            of the mean stage; the bubble of the schedule is (stages - 1) passes of it; unequal
            stages (passes - 1) * (largest - mean compute of both passes), less if the largest stage
            is among the first; gaps within passes are those of the largest stage. Each is at most
            the rest.
        passes: those of one step: stage, rank, kind, batch, chunk, ``start_ns``, ``end_ns``.
    """

    name: str
    batches: int
    chunks: int
    span_ns: float
    ideal_frac: float
    bubble_frac: float
    stages: pl.DataFrame
    parts: pl.DataFrame
    passes: pl.DataFrame

    def text(self) -> str:
        """Describe the schedule, its bubble, and what makes it longer than the ideal."""
        text = (
            f"Pipeline of {self.stages.height} stages, {self.batches} micro-batches a step "
            f"({self.name}): the bubble is {format_frac(self.bubble_frac)} of the time of the "
            f"passes, {format_frac(self.ideal_frac)} with equal stages and no other waits."
        )
        more = self.parts.slice(2).sort("time_ns", descending=True).row(0, named=True)
        if more["time_frac"] < NO_GAIN:
            return text
        longest = f"{more['part']} ({format_ns(more['time_ns'])} a step)"
        return f"{text} Most of the difference: {longest}."

    def tables(self) -> tuple[Table, ...]:
        """Return the stages, the parts of a step, and the passes."""
        return (
            Table("pipeline_stages", "Pipeline stages, mean of their passes", self.stages, _STAGES),
            Table("pipeline_parts", "First to last pass of a step", self.parts, _PARTS),
            Table("pipeline_passes", "Passes of one step", self.passes, {}),
        )

    def chart(self) -> Chart:
        """Draw the passes of one step by stage."""
        chunk = pl.format(", chunk {}", "chunk") if self.chunks > 1 else pl.lit("")
        label = pl.format("{} of micro-batch {}{}", "kind", "batch", chunk)
        rows = self.passes.with_columns(pl.format("stage {}", "stage").alias("stage"), label=label)
        return Chart(
            "schedule", f"Schedule of the pipeline in one step ({self.name})", "span", rows,
            "start_ns", "stage", "time in the step", color="kind", x2="end_ns", label="label",
        )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class WhatIf(Result):
    """Step times of the run as recorded, replayed without a change, and replayed with changes.

    Attributes:
        changes: one row per change, the largest gain first: ``change``, ``step_ns`` (mean step time
            with it), ``gain_ns`` (replayed_ns - step_ns), ``gain_frac`` (of replayed_ns).
        steps: time of each step: ``run`` (``recorded``, ``replayed``, or the change), ``step``,
            ``step_ns``.
        given: the change was given; otherwise each usual one was tried.
        faster_ranks: ranks that are faster than the others: like them, steps would be longer.
            Without a given change, ``changes`` has no row for that.
        ranks: number of ranks.
        kernels: number of kernels and copies.
        recorded_ns: mean step time as recorded.
        replayed_ns: mean step time, replayed without a change.
        error_frac: replayed_ns / recorded_ns - 1.
        start_error_ns: median difference of the starts of device work.
        start_error_p95_ns: 95th percentile of that difference.
        edges: number of waits of a stream for another one.
        inferred: number of those that are not recorded but inferred.
        hint: how to record them, or empty.
        missing: number of kernels and copies without a launch call.
        one_by_one: steps were not recorded one after another; each is replayed alone.
        pipeline: the schedule of a pipeline, or None.
        world_size: number of ranks of the job, or None.
    """

    changes: pl.DataFrame
    steps: pl.DataFrame
    given: bool
    faster_ranks: tuple[int, ...]
    ranks: int
    kernels: int
    recorded_ns: float
    replayed_ns: float
    error_frac: float
    start_error_ns: float
    start_error_p95_ns: float
    edges: int
    inferred: int
    hint: str
    missing: int
    one_by_one: bool
    pipeline: Schedule | None
    world_size: int | None

    @property
    def alike(self) -> list[dict[str, Any]]:
        """The changes with at least 95 % of the largest gain; what the host does, then waits.

        Without waits the host runs ahead, which hides what it does after each of them.
        """
        least = _ALIKE * self.changes["gain_ns"][0]
        rows = self.changes.filter(pl.col("gain_ns") >= least).to_dicts()
        return sorted(rows, key=lambda row: row["change"] == CLASSES[SYNCHRONISATION])

    def view(self) -> View:
        """Build the view: the changes by gain, and the steps before and after."""
        return View(
            title="What would a fix gain?",
            verdict=sentences(_verdict(self), self.pipeline.text() if self.pipeline else ""),
            notes=tuple(_notes(self)),
            tables=(
                Table("changes", "Step time with each change", self.changes, _CHANGES, whole=True),
                *(self.pipeline.tables() if self.pipeline else ()),
                Table("steps", "Steps", self.steps, _STEPS, detail=True),
            ),
            scalars=self.numbers(
                "ranks", "kernels", "recorded_ns", "replayed_ns", "error_frac", "start_error_ns",
                "start_error_p95_ns", "edges", "inferred", "missing",
            ),
            charts=partial(_charts, self),
        )  # fmt: skip


def _verdict(result: WhatIf) -> str:
    steps = result.steps.filter(pl.col("run") == "recorded").height
    taken = format_ns(result.recorded_ns)
    counted = f"mean of {steps}" if result.one_by_one else f"mean of {steps} after the first"
    step = f"A step takes {taken} ({counted})." if steps > 1 else f"The run takes {taken}."
    best = result.changes.row(0, named=True)
    if result.given:
        return sentences(step, f"With the change ({best['change']}): {_compared(best)}.")
    alike = result.alike
    if best["gain_frac"] < NO_GAIN:
        return sentences(step, "None of the usual changes gains 1 % of it.")
    names = " or ".join(row["change"] for row in alike)
    first = f"Largest gain: {names}, {_gain(alike[0])}."
    following = result.changes.slice(len(alike), 1).filter(pl.col("gain_frac") >= NO_GAIN)
    second = [f"Next: {row['change']}, {_gain(row)}." for row in following.iter_rows(named=True)]
    return sentences(step, first, *second)


def _compared(row: dict[str, float]) -> str:
    step, gain = format_ns(row["step_ns"]), format_ns(abs(row["gain_ns"]))
    share = format_frac(abs(row["gain_frac"]))
    if abs(row["gain_frac"]) < NO_GAIN:
        return f"{step}, no gain (below 1 %)"
    return f"{step}, {gain} ({share}) {'less' if row['gain_ns'] > 0 else 'more'}"


def _gain(row: dict[str, float]) -> str:
    return f"{format_ns(row['gain_ns'])} ({format_frac(row['gain_frac'])})"


def _notes(result: WhatIf) -> Iterator[str]:
    yield (
        f"The replay of the unchanged run differs from the recording by "
        f"{format_frac(abs(result.error_frac))} in step time, and in starts of work by "
        f"{format_ns(result.start_error_ns)} (median), {format_ns(result.start_error_p95_ns)} "
        "(95th percentile)."
    )
    yield (
        "A gain is an estimate from the recorded program: changed kernels may compete for memory "
        "bandwidth and clocks. Gains of several changes do not add up."
    )
    if result.faster_ranks:
        ranks = format_ranges(result.faster_ranks)
        yield (
            f"Steps would be longer if these ranks were like the others, because their work is "
            f"shorter than that of the others: {ranks}."
        )
    yield from inferred_waits(result.inferred, result.edges, result.hint)
    if result.missing:
        yield (
            f"Kernels and copies without a recorded launch call: {result.missing:,}; they follow "
            "the work before them."
        )
    if result.one_by_one:
        yield "Only some steps were recorded: each one is replayed alone."
    if result.world_size and result.ranks < result.world_size:
        yield (
            f"{result.ranks} of {result.world_size} ranks were given: waiting for the others "
            "counts as time of transfers."
        )


def inferred_waits(inferred: int, edges: int, hint: str) -> Iterator[str]:
    """Say how many of the waits between streams are inferred, and how to record them."""
    if inferred:
        text = (
            f"{inferred:,} of {edges:,} waits between streams are inferred from the order of calls"
        )
        yield f"{text}; to know them, {hint}." if hint else f"{text}."


def _charts(result: WhatIf) -> tuple[Chart, ...]:
    gains = result.changes.filter(pl.col("gain_frac") >= NO_GAIN)
    order = ["recorded", "replayed", *result.changes["change"].head(3)]
    steps = result.steps.filter(pl.col("run").is_in(order))
    steps = steps.with_columns(number=pl.int_range(pl.len()).over("run"))
    charts = [result.pipeline.chart()] if result.pipeline else []
    if gains.height:
        charts.append(
            Chart("gains", "Gain of each change", "bar", gains, "change", "gain_ns", "", "gain")
        )
    if steps["number"].n_unique() > 1:
        charts.append(
            Chart("steps", "Steps before and after", "line", steps, "number", "step_ns", "step",
                  "time", color="run")
        )  # fmt: skip
    return tuple(charts)


#: A smaller share of the step is no loss.
_LOSS = 0.001
#: Ranks and stages that are tried one by one.
_MOST_TRIED = 16


def combine(parts: Sequence[Program], options: Options, _base: Sequence[Program] = ()) -> WhatIf:
    """Replay the run without a change, and with the given one or each usual one.

    Raises:
        MissingData: the replay without a change differs too much from the recording.
        OptionError: a rank or stage does not exist, or an expression is not valid.
    """
    job = engine.job_of(parts)
    unchanged, error = engine.checked_replay(job)
    recorded = np.array(engine.recorded_step_times(job))
    replayed = _steps(job, unchanged)
    stages = changes.stages(job)
    tried = [_given(job, stages, options)] if _is_given(options) else _usual(job, stages)
    rows = [(one, _steps(job, engine.replay(job, changes.changed(job, one)))) for one in tried]
    base = replayed.mean()
    loss = [(one.typical_ranks, steps.mean() / base - 1) for one, steps in rows]
    if not _is_given(options):
        rows = [
            row for row, (ranks, frac) in zip(rows, loss, strict=True) if not ranks or frac <= 0
        ]
    of_steps = [("recorded", recorded), ("replayed", replayed)]
    of_steps += [(change.text, times) for change, times in rows]
    starts = np.concatenate(
        [
            np.abs(times.start - (one.work["start"].to_numpy() + shift))
            for one, times, shift in zip(job.programs, unchanged, job.shifts, strict=True)
        ]
    )
    waits = engine.between_streams(job)
    return WhatIf(
        changes=_table(rows, replayed),
        steps=_of_steps(job.step_names, of_steps),
        given=_is_given(options),
        faster_ranks=tuple(
            sorted({rank for ranks, frac in loss if frac > _LOSS for rank in ranks})
        ),
        ranks=len(job.programs),
        kernels=sum(one.work.height for one in job.programs),
        recorded_ns=float(recorded.mean()),
        replayed_ns=float(replayed.mean()),
        error_frac=error,
        start_error_ns=float(np.median(starts)),
        start_error_p95_ns=float(np.percentile(starts, 95)),
        edges=waits.len(),
        inferred=int(waits.sum()),
        hint=job.programs[0].hint,
        missing=sum(one.missing for one in job.programs),
        one_by_one=len(job.begins) > 1,
        pipeline=_schedule(job, stages),
        world_size=max((one.world_size or 0 for one in job.programs), default=0) or None,
    )


WHAT_IF = Analyzer(
    "what_if", Options, program.needs, program.measure, combine, more=program.more_with_graphs
)


def _steps(job: Job, replayed: Sequence[Times]) -> Floats:
    return np.array(engine.step_times(job, [one.end for one in replayed]), np.float64)


def _is_given(options: Options) -> bool:
    return options != Options(typical=options.typical)


def _given(job: Job, stages: Sequence[tuple[int, ...]], options: Options) -> Change:
    ranks = _chosen("rank", options.typical_rank, {one.rank: (one.rank,) for one in job.programs})
    ranks |= _chosen("stage", options.typical_stage, dict(enumerate(stages)))
    return Change(
        tuple(options.free), tuple(options.scale), tuple(sorted(ranks)),
        options.typical == "all", options.network, options.no_wait,
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
        ranks = [one.rank for one in job.programs if one.rank is not None]
        if 1 < len(ranks) <= _MOST_TRIED:
            tried += [Change(typical_ranks=(rank,)) for rank in ranks]
    if stages:
        tried.append(Change(equal_stages=True))
    if len(stages) <= _MOST_TRIED:
        tried += [Change(typical_ranks=ranks) for ranks in stages if len(ranks) > 1]
    return tried


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


# --- schedule of a pipeline ----------------------------------------------------------------------
#
# A pass is the compute that a rank launches between two of its sends and receives: forward after a
# receive from the stage before or ahead of a send to the next one, backward in the other direction.
# Where the first and last stage run two passes without an exchange between them, these are divided
# by the usual share of both.

FORWARD, BACKWARD = "forward", "backward"
ONE_EACH, ALL_FORWARD, INTERLEAVED = "1F1B", "all forward, then all backward", "interleaved 1F1B"
LESS = "zero-bubble or another schedule"
#: A schedule that idles for less than this share of the ideal bubble of 1F1B is another one.
_LESS = 0.8
_PASSES = {
    "pipeline": pl.Int64, "stage": pl.Int64, "rank": pl.Int64, "step": pl.Int64, "kind": pl.String,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "busy_ns": pl.Int64, "wraps": pl.Int64,
}  # fmt: skip


def _schedule(job: Job, stages: Sequence[tuple[int, ...]]) -> Schedule | None:
    """Return the schedule if ranks are stages of a pipeline with as many passes each."""
    place = {rank: (row, n) for n, ranks in enumerate(stages) for row, rank in enumerate(ranks)}
    segments = {
        one.rank: [*_segments(one, shift, numbers, [all_[place[one.rank][0]] for all_ in stages])]
        for one, shift, numbers in zip(job.programs, job.shifts, job.step_numbers, strict=True)
        if one.rank in place
    }
    every = [*chain(*segments.values())]
    forward, both = _median((FORWARD,), every), _median((FORWARD, BACKWARD), every)
    usual = (forward, _median((BACKWARD,), every) or max(both - forward, 0.0))
    rows = [
        (*place[rank], rank, *each)
        for rank, of_rank in segments.items()
        for one in of_rank
        for each in _passes(one, usual, _median((BACKWARD,), of_rank), is_first=not place[rank][1])
    ]
    passes = pl.DataFrame(rows, schema=_PASSES, orient="row").filter(pl.col("step") >= 0)
    return _of_passes(passes, stages)


class _Segment(NamedTuple):
    """Compute of a rank between its sends and receives: start and end of each kernel.

    ``kinds`` are those of the passes that the exchanges before and after belong to; ``wraps`` is
    the number of receives of the first stage from the last one before it; other work may follow
    the passes of the ``last`` segment of a step.
    """

    step: int
    start: Ints
    end: Ints
    kinds: tuple[str, ...]
    wraps: int
    last: bool


def _segments(
    program: Program, shift: int, numbers: Ints, ranks: Sequence[int]
) -> Iterator[_Segment]:
    """Yield the segments of a rank, whose pipeline has these ranks."""
    work, count, stage = program.work, len(ranks), ranks.index(program.rank or 0)
    is_ring = count > 2
    lower = ranks[stage - 1] if stage or is_ring else None
    higher = ranks[(stage + 1) % count] if stage < count - 1 or is_ring else None
    rows = np.flatnonzero(program.in_pairs)
    marks = [[0] * 4]
    for what, group in work[rows].select("collective", pl.col("group").cast(pl.String)).iter_rows():
        peers = {int(rank) for rank in changes.RANK.findall((group or "").rpartition("[")[2])}
        sides = (lower in peers, higher in peers)
        marks.append([name in what.lower() and side for name in ("recv", "send") for side in sides])
    before = np.cumsum(marks, axis=0)
    kernels = np.flatnonzero((work["work_kind"] == COMPUTE).to_numpy() & ~program.in_pairs)
    step = np.append(numbers, -1)[work["step"].fill_null(-1).to_numpy().astype(int)][kernels]
    run = np.searchsorted(rows, kernels)
    begins = np.flatnonzero(np.diff(run, prepend=-1) | np.diff(step, prepend=-2))
    reached = before[run[begins]]
    since = np.diff(reached, axis=0, prepend=before[:1])
    until = np.diff(reached, axis=0, append=before[-1:])
    start, end = (work[name].to_numpy()[kernels] + shift for name in ("start", "end"))
    for n, inside in enumerate(np.split(np.arange(kernels.size), begins[1:])[: begins.size]):
        kinds = (FORWARD,) * bool(since[n, 0] or until[n, 3])
        kinds += (BACKWARD,) * bool(since[n, 1] or until[n, 2])
        wraps, at = 0 if stage else int(since[n, 0]), int(inside[-1])
        last = at + 1 == step.size or step[at + 1] != step[at]
        yield _Segment(int(step[at]), start[inside], end[inside], kinds, wraps, bool(last))


def _median(kinds: tuple[str, ...], segments: Iterable[_Segment]) -> float:
    """Return the usual time of segments with these passes, except last ones; 0 without one."""
    times = [
        float((one.end - one.start).sum())
        for one in segments
        if one.kinds == kinds and not (one.last and BACKWARD in kinds)
    ]
    return float(np.median(times)) if times else 0.0


def _passes(
    one: _Segment, usual: Sequence[float], usual_backward_ns: float, *, is_first: bool
) -> Iterator[tuple[object, ...]]:
    """Yield step, kind, start, end, busy time and wraps of each pass of a segment.

    Args:
        one: the segment.
        usual: times of a forward and a backward pass of any stage.
        usual_backward_ns: time of a backward pass of this stage.
        is_first: whether it is the first stage, where a backward pass comes before a forward one;
            on the last stage the forward pass comes first.
    """
    total, kinds = np.cumsum(one.end - one.start), one.kinds
    cuts = [0, total.size]
    if len(kinds) > 1:
        kinds = kinds[::-1] if is_first else kinds
        share = usual[is_first] / max(sum(usual), 1)
        cuts.insert(1, 1 + int(np.argmin(np.abs(total - share * total[-1]))))
    elif one.last and kinds == (BACKWARD,) and (usual[1] or usual_backward_ns):
        cuts[1] = 1 + int(np.argmin(np.abs(total - (usual_backward_ns or usual[1]))))
    for kind, a, b in zip(kinds, cuts, cuts[1:], strict=False):
        if b > a:
            busy = int((one.end - one.start)[a:b].sum())
            begin, end = int(one.start[a:b].min()), int(one.end[a:b].max())
            yield one.step, kind, begin, end, busy, one.wraps * (kind == FORWARD)


def _of_passes(passes: pl.DataFrame, stages: Sequence[tuple[int, ...]]) -> Schedule | None:
    """Return the schedule of the steps in which all stages run as many passes of both kinds."""
    keys, count = ["pipeline", "step"], len(stages)
    kind = pl.col("kind")
    of_stage = passes.group_by(*keys, "stage").agg(
        forward=(kind == FORWARD).sum(),
        backward=(kind == BACKWARD).sum(),
        wraps=pl.col("wraps").sum(),
    )
    usual = of_stage["forward"].mode().max() or 0
    same = (pl.col("forward") == usual) & (pl.col("backward") == usual)
    complete = of_stage.group_by(keys).agg(
        whole=same.all() & (pl.len() == count), wraps=pl.col("wraps").sum()
    ).filter("whole").sort(keys)  # fmt: skip
    if complete.is_empty():
        return None
    n_passes = int(usual)  # type: ignore[arg-type]
    batches = n_passes - int(complete["wraps"][0])
    if batches < 1 or n_passes % batches:
        return None
    chunks = n_passes // batches
    rows = passes.join(complete[keys], on=keys, how="semi").sort("start_ns")
    spans = rows.group_by(keys).agg(
        span=pl.col("end_ns").max() - pl.col("start_ns").min(), busy=pl.col("busy_ns").sum()
    ).sort("span", *keys)  # fmt: skip
    span = float(spans["span"].mean())  # type: ignore[arg-type]
    bubble = 1 - float(spans["busy"].mean()) / span / count  # type: ignore[arg-type]
    ideal = (count - 1) / (n_passes + count - 1)
    middle = spans[(spans.height - 1) // 2].select(keys)
    drawn = rows.join(middle, on=keys, how="semi")
    return Schedule(
        LESS if bubble < _LESS * ideal else _name(drawn, count, chunks),
        batches, chunks, span, ideal, bubble,
        *_stages_and_parts(rows, stages, n_passes, span), _labelled(drawn, count, chunks),
    )  # fmt: skip


def _stages_and_parts(
    rows: pl.DataFrame, stages: Sequence[tuple[int, ...]], n_passes: int, span: float
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return :attr:`Schedule.stages` and :attr:`Schedule.parts`."""
    busy, kind = pl.col("busy_ns"), pl.col("kind")
    table = rows.group_by("stage").agg(
        forward_ns=busy.filter(kind == FORWARD).mean(),
        backward_ns=busy.filter(kind == BACKWARD).mean(),
        gaps_ns=(pl.col("end_ns") - pl.col("start_ns") - busy).clip(lower_bound=0).mean(),
    ).sort("stage")  # fmt: skip
    each = table["forward_ns"] + table["backward_ns"]
    mean, most = float(each.mean()), float(each.max())  # type: ignore[arg-type]
    gaps = 2 * n_passes * float(table["gaps_ns"][int(each.arg_max() or 0)])
    longest = {
        "compute of the mean stage": n_passes * mean,
        "bubble of the schedule": (len(stages) - 1) * mean,
        "unequal stages": (n_passes - 1) * (most - mean),
        "gaps within passes": gaps,
        "transfers, waits and other": span,
    }
    times: list[float] = []
    for most in longest.values():
        times.append(max(min(most, span - sum(times)), 0.0))
    parts = pl.DataFrame({"part": [*longest], "time_ns": times})
    named = table.with_columns(
        ranks=pl.Series([", ".join(map(str, ranks)) for ranks in stages]),
        busy_ns=n_passes * each,
        bubble_frac=1 - n_passes * each / span,
    ).drop("gaps_ns")
    return named, parts.with_columns(time_frac=pl.col("time_ns") / span)


def _name(drawn: pl.DataFrame, count: int, chunks: int) -> str:
    """Return the schedule by the forward passes of each stage before its first backward pass."""
    first = pl.col("start_ns").filter(pl.col("kind") == BACKWARD).min()
    early = (pl.col("kind") == FORWARD) & (pl.col("start_ns") < first)
    warm_up = drawn.group_by("stage").agg(early.sum()).sort("stage")["kind"].to_list()
    batches = drawn.filter(kind=FORWARD, stage=0).height
    known = {INTERLEAVED: chunks > 1, ALL_FORWARD: warm_up == [batches] * count,
             ONE_EACH: warm_up == [min(batches, count - n) for n in range(count)]}  # fmt: skip
    return next((name for name, is_it in known.items() if is_it), "unknown schedule")


def _labelled(drawn: pl.DataFrame, count: int, chunks: int) -> pl.DataFrame:
    """Number the micro-batches and chunks of passes: of several chunks, by groups of ``count``."""
    number = pl.int_range(pl.len()).over("stage", "kind")
    group, chunk = number // (count * chunks), number // count % chunks
    batch = group * count + number % count if chunks > 1 else number
    backward = pl.when(pl.col("kind") == BACKWARD).then(chunks - 1 - chunk).otherwise(chunk)
    begin = pl.col("start_ns").min()
    return drawn.sort("stage", "start_ns").select(
        "stage", "rank", "kind", batch=batch, chunk=backward if chunks > 1 else pl.lit(0),
        start_ns=pl.col("start_ns") - begin, end_ns=pl.col("end_ns") - begin,
    )  # fmt: skip


# --- the function -------------------------------------------------------------------------------


def what_if(
    inputs: Inputs,
    *,
    free: str | Sequence[str] = (),
    scale: str | Sequence[str] = (),
    typical_rank: int | str | Sequence[int | str] = (),
    typical_stage: int | str | Sequence[int | str] = (),
    typical: Typical = "others",
    network: float = 1.0,
    no_wait: bool = False,
    **reading: Unpack[Reading],
) -> WhatIf:
    """Return how long a step would take with a change; without a change, with each usual one.

    The program of the run (what each kernel and each call waits for) is replayed with other times.
    step time = from the end of the work of the steps before to the end of its own work, over all
    ranks; gain = replayed step time - step time with the change.

    Args:
        inputs: a trace, a file or a folder, or several of them.
        free: ``launches``, ``short-gaps``, ``data-loading``, ``host-code``, ``synchronisation``,
            ``communication``, ``copies``, ``small-copies``, ``memory-management``,
            ``graph-building``, ``module-loading``, ``api-calls``, or a regular expression of
            kernels or annotations, whose time becomes 0.
        scale: ``REGEX=FACTOR``: kernels and annotations become faster by the factor.
        typical_rank: ranks that become like the others.
        typical_stage: pipeline stages that become like the others, from 0.
        typical: whether times become those of the ``others``, or the mean of ``all`` ranks.
        network: factor by which transfers become faster.
        no_wait: collectives do not wait for other ranks.
        **reading: see :class:`~traceanalyzer.analyzers.base.Reading`.

    Raises:
        InputError: a file cannot be read.
        MissingData: no device work, or too few of its launch calls, were recorded; or the replay of
            the unchanged run differs from the recording by more than 10 %.
        OptionError: a regular expression, factor, rank or stage is not valid.
    """
    ranks, stages = (
        tuple(map(str, (given,) if isinstance(given, (int, str)) else given))
        for given in (typical_rank, typical_stage)
    )
    options = Options(free, scale, ranks, stages, typical, network, no_wait)
    return run(WHAT_IF, inputs, options, **reading)
