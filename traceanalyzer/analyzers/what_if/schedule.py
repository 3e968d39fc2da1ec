"""The schedule of a pipeline: its passes, its bubble, and what makes a step longer than the ideal.

A pass is the compute that a rank launches between two of its sends and receives: forward after a
receive from the stage before or ahead of a send to the next one, backward in the other direction.
Where the first and last stage run two passes without an exchange between them, these are divided
by the usual share of both.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.device_work import COMPUTE
from traceanalyzer.analyzers.common.display import headings
from traceanalyzer.analyzers.replay import changes
from traceanalyzer.analyzers.replay.changes import NO_GAIN
from traceanalyzer.analyzers.replay.engine import Job
from traceanalyzer.analyzers.replay.program import Ints, Program
from traceanalyzer.drawings import Chart
from traceanalyzer.result import Table
from traceanalyzer.units import format_frac, format_ns

FORWARD, BACKWARD = "forward", "backward"
ONE_EACH, ALL_FORWARD, INTERLEAVED = "1F1B", "all forward, then all backward", "interleaved 1F1B"
LESS = "zero-bubble or another schedule"
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
            f"passes, {format_frac(self.ideal_frac)} "
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
            begin, end = int(one.start[a:b].min()), int(one.end[a:b].max())
            # kernels of several streams may run at the same time
            busy = min(int((one.end - one.start)[a:b].sum()), end - begin)
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
    drawn = rows.join(spans[(spans.height - 1) // 2].select(keys), on=keys, how="semi")
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
        gaps_ns=(pl.col("end_ns") - pl.col("start_ns") - busy).mean(),
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
