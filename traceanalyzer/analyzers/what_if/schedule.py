"""The schedule of a pipeline: its passes, its bubble, and what makes a step longer than the ideal.

A pass is the compute that a rank launches between two of its sends and receives: forward after a
receive from the stage before or ahead of a send to the next one, backward in the other direction.
Where the first and last stage run two passes without an exchange between them, these are divided
by the usual share of both. Other compute after the first backward pass of a step, up to the last
matrix product before the optimizer, are gradients of weights (zero-bubble schedules).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.device_work import COMPUTE
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.common.kernel_names import (
    CONVOLUTION,
    GEMM,
    OPTIMIZER,
    families_of,
)
from traceanalyzer.analyzers.common.names import matching as named_like
from traceanalyzer.analyzers.overlap.reasons import RANGES
from traceanalyzer.analyzers.replay import changes
from traceanalyzer.analyzers.replay.changes import NO_GAIN
from traceanalyzer.analyzers.replay.engine import Job
from traceanalyzer.analyzers.replay.program import Ints, Program
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Table
from traceanalyzer.units import format_frac, format_ns

FORWARD, BACKWARD, WEIGHTS = "forward", "backward", "gradients of weights"
ONE_EACH, ALL_FORWARD, INTERLEAVED = "1F1B", "all forward, then all backward", "interleaved 1F1B"
LESS = "zero-bubble or another schedule"
ZB_H1, EITHER = "zero-bubble ZB-H1", "1F1B or zero-bubble"
#: Gradients of weights after backward passes take at least this share of a backward pass, also
#: those ahead of a pass in the same segment.
_LEAST = 0.25
#: A schedule that idles for less than this share of the ideal bubble of 1F1B is another one.
_LESS = 0.8
_PASSES = {
    "pipeline": pl.Int64, "stage": pl.Int64, "rank": pl.Int64, "step": pl.Int64, "kind": pl.String,
    "start_ns": pl.Int64, "end_ns": pl.Int64, "busy_ns": pl.Int64, "wraps": pl.Int64,
}  # fmt: skip

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
            stages - 1); of ZB-H1, (stages - 1) * (all passes - 2 * gradients of weights) of a
            micro-batch, as a share of that and of the compute.
        bubble_frac: share of span_ns, over all stages, in which a stage computes no pass.
        stages: one row per stage: stage, ranks, ``forward_ns``, ``backward_ns`` (compute of a
            pass, with the gradients of weights), ``busy_ns`` (of all passes of a step),
            ``bubble_frac``.
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
            f"passes, {format_frac(self.ideal_frac)} "
        )
        if self.name == EITHER:
            return (
                f"{text}in 1F1B. Matrix products after the last send of a stage are not counted: "
                "they are gradients of weights or the optimizer, which was not recorded as a range."
            )
        if self.name == LESS:  # its own minimum is not known
            return f"{text}in 1F1B."
        text += "with equal stages and no other waits."
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


def schedule(job: Job, stages: Sequence[tuple[int, ...]]) -> Schedule | None:
    """Return the schedule if ranks are stages of a pipeline with as many passes each."""
    place = {rank: (row, n) for n, ranks in enumerate(stages) for row, rank in enumerate(ranks)}
    segments = {
        one.rank: [*_segments(one, shift, numbers, [all_[place[one.rank][0]] for all_ in stages])]
        for one, shift, numbers in zip(job.programs, job.shifts, job.step_numbers, strict=True)
        if one.rank in place
    }
    every = [*chain(*segments.values())]
    later = [each for rank, each in segments.items() if place[rank][1]]
    forward, both = _median((FORWARD,), every), _median((FORWARD, BACKWARD), every)
    backward = _median((BACKWARD,), every) or max(both - forward, 0.0)
    are_apart = _are_apart(later, backward)
    alone = {rank: _alone(each) if are_apart else {} for rank, each in segments.items()}
    if are_apart:
        of_later = [times for rank, times in alone.items() if place[rank][1]]
        forward = _typical(alone.values(), (FORWARD,))
        both = _typical(of_later, (FORWARD, BACKWARD))
        backward = _typical(of_later, (BACKWARD,)) or max(both - forward, 0.0)
    rows = [
        (*place[rank], rank, *each)
        for rank, of_rank in segments.items()
        for one in of_rank
        for each in _passes(one, (forward, backward), _median((BACKWARD,), of_rank), alone[rank],
                            is_first=not place[rank][1])
    ]  # fmt: skip
    passes = pl.DataFrame(rows, schema=_PASSES, orient="row").filter(pl.col("step") >= 0)
    return _of_passes(passes, stages, are_apart, backward)


class _Segment(NamedTuple):
    """Compute of a rank between its sends and receives: start and end of each kernel.

    ``kinds`` are those of the passes that the exchanges before and after belong to; ``wraps`` is
    the number of receives of the first stage from the last one before it; other work may follow
    the passes of the ``last`` segment of a step. ``weights`` is the number of kernels up to the
    last matrix product before the optimizer, whose work ``ends`` them if recorded.
    """

    step: int
    start: Ints
    end: Ints
    kinds: tuple[str, ...]
    wraps: int
    last: bool
    weights: int
    ends: bool


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
    is_product, is_optimizer = _purposes(program, kernels)
    in_backward = -2  # the last step with a backward pass
    for n, inside in enumerate(np.split(np.arange(kernels.size), begins[1:])[: begins.size]):
        kinds = (FORWARD,) * bool(since[n, 0] or until[n, 3])
        kinds += (BACKWARD,) * bool(since[n, 1] or until[n, 2])
        wraps, at = 0 if stage else int(since[n, 0]), int(inside[-1])
        last = at + 1 == step.size or step[at + 1] != step[at]
        if BACKWARD in kinds:
            in_backward = int(step[at])
        until_optimizer = np.append(np.flatnonzero(is_optimizer[inside]), inside.size)[0]
        products = np.flatnonzero(is_product[inside][:until_optimizer])
        weights = int(products[-1]) + 1 if products.size and in_backward == step[at] else 0
        yield _Segment(
            int(step[at]), start[inside], end[inside], kinds, wraps, bool(last), weights,
            bool(until_optimizer < inside.size),
        )  # fmt: skip


def _purposes(program: Program, kernels: Ints) -> tuple[Any, Any]:
    """Return which kernels are matrix products, and which are of the optimizer."""
    work = program.work[kernels].select(pl.col("name").cast(pl.String), "range")
    families = families_of(work["name"].drop_nulls().unique())
    family = work["name"].replace_strict(families, default=None, return_dtype=pl.String)
    in_optimizer = named_like(program.ranges, [RANGES[OPTIMIZER]])
    ranges = [n for n, name in enumerate(program.ranges) if name in in_optimizer]
    return (
        family.is_in([GEMM, CONVOLUTION]).fill_null(value=False).to_numpy(),
        (
            family.eq(OPTIMIZER).fill_null(value=False)
            | work["range"].is_in(ranges).fill_null(value=False)
        ).to_numpy(),
    )


def _are_apart(stages: Iterable[Sequence[_Segment]], backward_ns: float) -> bool | None:
    """Whether ranks compute gradients of weights after backward passes; None: not known.

    After the last send, they are products of the optimizer if its work is not recorded as such.
    One rank alone may delay those of the output layer.
    """
    rest = [[one for one in each if not one.kinds and one.weights] for each in stages]
    for each in rest:
        time = sum(int((one.end - one.start)[: one.weights].sum()) for one in each)
        if time <= _LEAST * backward_ns * len({one.step for one in each}):
            return False
    return any(not one.last or one.ends for one in chain(*rest)) or None


def _alone(segments: Iterable[_Segment]) -> dict[tuple[str, ...], float]:
    """Return the median time of the first segment with these passes in a step.

    No gradients of weights are before it.
    """
    firsts: dict[tuple[int, tuple[str, ...]], float] = {}
    for one in segments:
        firsts.setdefault((one.step, one.kinds), float((one.end - one.start).sum()))
    kinds = {kinds for _, kinds in firsts if kinds}
    return {
        one: float(np.median([ns for (_, kinds), ns in firsts.items() if kinds == one]))
        for one in kinds
    }


def _median(kinds: tuple[str, ...], segments: Iterable[_Segment]) -> float:
    """Return the usual time of segments with these passes, except last ones; 0 without one."""
    times = [
        float((one.end - one.start).sum())
        for one in segments
        if one.kinds == kinds and not (one.last and BACKWARD in kinds)
    ]
    return float(np.median(times)) if times else 0.0


def _typical(alone: Iterable[Mapping[tuple[str, ...], float]], kinds: tuple[str, ...]) -> float:
    """Return the median over ranks of the time of segments with these passes; 0 without one."""
    times = [each[kinds] for each in alone if kinds in each]
    return float(np.median(times)) if times else 0.0


def _passes(
    one: _Segment,
    usual: Sequence[float],
    usual_backward_ns: float,
    alone: Mapping[tuple[str, ...], float],
    *,
    is_first: bool,
) -> Iterator[tuple[object, ...]]:
    """Yield step, kind, start, end, busy time and wraps of each pass of a segment.

    Args:
        one: the segment.
        usual: times of a forward and a backward pass of any stage.
        usual_backward_ns: time of a backward pass of this stage.
        alone: times of segments without gradients of weights, if these are passes of the stage.
        is_first: whether it is the first stage, where a backward pass comes before a forward one;
            on the last stage the forward pass comes first.
    """
    total, kinds = np.cumsum(one.end - one.start), one.kinds
    cuts = [0, total.size]
    usual_ns = usual_backward_ns or usual[1]
    extra = 0.0 if is_first else total[-1] - alone.get(kinds, total[-1])
    if alone and not kinds:
        kinds, cuts[1] = (WEIGHTS,) * bool(one.weights), one.weights
    elif len(kinds) > 1:
        kinds = kinds[::-1] if is_first else kinds
        share = usual[is_first] / max(sum(usual), 1)
        if alone and is_first:
            share = max(1 - usual[0] / total[-1], 0.0)
        begin = extra if extra > _LEAST * alone.get(one.kinds, np.inf) else 0.0
        cuts.insert(1, _nearest(total, begin + share * (total[-1] - begin)))
    elif one.last and kinds == (BACKWARD,) and usual_ns:
        cuts[1] = (one.weights if alone else 0) or _nearest(total, usual_ns)
    if one.kinds and extra > _LEAST * alone.get(one.kinds, np.inf):
        kinds = (WEIGHTS, *kinds)
        cuts.insert(1, _nearest(total, extra))
    for kind, a, b in zip(kinds, cuts, cuts[1:], strict=False):
        if b > a:
            begin, end = int(one.start[a:b].min()), int(one.end[a:b].max())
            # kernels of several streams may run at the same time
            busy = min(int((one.end - one.start)[a:b].sum()), end - begin)
            yield one.step, kind, begin, end, busy, one.wraps * (kind == FORWARD)


def _nearest(total: Ints, time: float) -> int:
    """Return the number of kernels that take about this time in total."""
    return 1 + int(np.argmin(np.abs(total - time)))


def _of_passes(
    passes: pl.DataFrame,
    stages: Sequence[tuple[int, ...]],
    are_apart: bool | None,
    backward_ns: float,
) -> Schedule | None:
    """Return the schedule of the steps in which all stages run as many passes of both kinds.

    Args:
        passes: step, stage, kind and times.
        stages: the ranks of each stage.
        are_apart: whether gradients of weights are passes; None: not known.
        backward_ns: usual time of a backward pass without them.
    """
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
    drawn = rows.join(spans[(spans.height - 1) // 2].select(keys), on=keys, how="semi")
    table = _stages(rows, stages, n_passes, span)
    mean, apart_ns = float(table["busy_ns"].mean()) / n_passes, 0.0  # type: ignore[arg-type]
    name = _name(drawn, count, chunks)
    if are_apart and name == ONE_EACH:
        name, apart_ns = ZB_H1, max(float(table["backward_ns"].mean()) - backward_ns, 0.0)  # type: ignore[arg-type]
    idle = (count - 1) * max(mean - 2 * apart_ns, 0.0)
    if (are_apart and name != ZB_H1) or bubble < _LESS * idle / (n_passes * mean + idle):
        name, idle = LESS, (count - 1) * mean
    if are_apart is None and name in (ONE_EACH, LESS):
        name = EITHER
    return Schedule(
        name, batches, chunks, span, idle / (n_passes * mean + idle), bubble, table.drop("gaps_ns"),
        _parts(table, idle, n_passes, span), _labelled(drawn, count, chunks),
    )  # fmt: skip


def _stages(
    rows: pl.DataFrame, stages: Sequence[tuple[int, ...]], n_passes: int, span: float
) -> pl.DataFrame:
    """Return :attr:`Schedule.stages`, and ``gaps_ns`` within the passes of a step."""
    busy, kind = pl.col("busy_ns"), pl.col("kind")
    backward = kind == BACKWARD
    gaps = pl.col("end_ns") - pl.col("start_ns") - busy
    each = pl.col("forward_ns") + pl.col("backward_ns")
    return (
        rows.group_by("stage")
        .agg(
            forward_ns=busy.filter(kind == FORWARD).mean(),
            backward_ns=busy.filter(kind != FORWARD).sum() / backward.sum(),
            gaps_ns=n_passes * gaps.sum() / backward.sum(),
        )
        .sort("stage")
        .with_columns(
            ranks=pl.Series([", ".join(map(str, ranks)) for ranks in stages]),
            busy_ns=n_passes * each,
            bubble_frac=1 - n_passes * each / span,
        )
    )


def _parts(table: pl.DataFrame, idle: float, n_passes: int, span: float) -> pl.DataFrame:
    """Return :attr:`Schedule.parts`, with this bubble of the schedule."""
    each = table["busy_ns"] / n_passes
    mean, most = float(each.mean()), float(each.max())  # type: ignore[arg-type]
    longest = {
        "compute of the mean stage": n_passes * mean,
        "bubble of the schedule": idle,
        "unequal stages": (n_passes - 1) * (most - mean),
        "gaps within passes": float(table["gaps_ns"][int(each.arg_max() or 0)]),
        "transfers, waits and other": span,
    }
    times: list[float] = []
    for most in longest.values():
        times.append(max(min(most, span - sum(times)), 0.0))
    parts = pl.DataFrame({"part": [*longest], "time_ns": times})
    return parts.with_columns(time_frac=pl.col("time_ns") / span)


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
