"""When each step ran, as the host marks it."""

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import polars as pl

from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.analyzers.common.names import named
from traceanalyzer.trace import Meta, Trace
from traceanalyzer.vocabulary import ENGINE_STEP, MEMORY_SNAPSHOT, PROFILER_STEP, steps_pattern

P = TypeVar("P")

#: Kinds of host slices that may mark a step; PyTorch recorded its own as operators until 2021.
MARK_KINDS = ("user_annotation", "nvtx", "cpu_op", "other")

#: Words of which one is in every name of a step that is looked for by default.
MARK_NAMES = (PROFILER_STEP,)

#: Steps that overlap by less follow one another: profilers round times and durations.
_ROUNDING_NS = 1_000

#: What Composer calls the slice that is a batch, from its start to its end, and its category in
#: older versions.
_COMPOSER_BATCH = "event/batch"
_COMPOSER_BATCH_CATEGORY = "batch_start,batch_end"
_BATCHES = re.compile(r"(?:event/)?batch(?: \[\d+\])?")


def step_marks(trace: Trace, step_name: str | None = None) -> pl.DataFrame:
    """The slices that mark steps: ``ProfilerStep#``, else the user's own, else Composer's batches.

    Steps of an inference engine count before all others, unless ``ProfilerStep#`` are as many. Of
    several sorts only the first that is there counts. A mark inside another one of its thread is
    no step of its own. Where marks overlap by less than 1 us, as by rounding, both are steps, and
    the first ends where the second begins. Where several threads mark steps, the one with the most
    marked time counts. Steps of one name are told apart by their order: ``## train_step ## [2]``.

    Args:
        trace: the host's slices of :data:`MARK_KINDS`.
        step_name: a regular expression; the slices whose name it matches are the steps.

    Returns:
        rank, pid, tid, step, start, end, by rank and start; those of a rank do not overlap.

    Raises:
        OptionError: ``step_name`` is not a regular expression.
    """
    return trace.once(("step_marks", step_name), lambda: _step_marks(trace, step_name))


def _step_marks(trace: Trace, step_name: str | None) -> pl.DataFrame:
    lane = ["rank", "pid", "tid"]
    is_mark = pl.col("kind").is_in(MARK_KINDS) & (pl.col("dur") > 0)
    wanted = trace.events.select(_may_mark(trace.events, step_name) & is_mark).to_series()
    end = pl.col("ts") + pl.col("dur")
    marks = trace.events.select("kind", "name", "ts", "dur", *lane).filter(wanted)
    marks = marks.select("kind", "name", *lane, start="ts", end=end)
    chosen = _chosen(marks, step_name).select(
        *lane, "start", "end", step=pl.col("name").cast(pl.String)
    )
    ordered = chosen.sort(*lane, "start", "end", descending=[False] * 4 + [True])
    before = pl.col("end").cum_max().shift(1).over(lane)
    overlap = before - pl.col("start")
    adjacent = (overlap <= 0) | ((overlap < _ROUNDING_NS) & (pl.col("end") > before))
    outer = ordered.filter(adjacent.fill_null(value=True))
    following = pl.col("start").shift(-1).over(lane)
    outer = outer.with_columns(end=pl.min_horizontal("end", following))
    length = (pl.col("end") - pl.col("start")).sum().over(lane)
    most = outer.with_columns(marked=length).sort("marked", descending=True, maintain_order=True)
    first = pl.struct("pid", "tid").first().over("rank")
    steps = most.filter(pl.struct("pid", "tid") == first).sort("rank", "start")
    nth = pl.int_range(pl.len()).over("rank", "step") + 1
    again = pl.format("{} [{}]", "step", nth)
    return steps.select(
        *lane,
        pl.when(pl.len().over("rank", "step") > 1).then(again).otherwise("step").alias("step"),
        "start",
        "end",
    )


def of_composer(steps: Iterable[str]) -> bool:
    """Whether these steps are the batches that Composer marks, by their names."""
    return all(_BATCHES.fullmatch(step) for step in steps)


def _may_mark(events: pl.DataFrame, step_name: str | None) -> pl.Expr:
    """Events whose name or category is that of any sort of step."""
    if step_name is not None:
        return named(events, [step_name])
    batch = pl.col("category") == _COMPOSER_BATCH_CATEGORY
    return batch.fill_null(value=False) | named(events, [steps_pattern(), f"^{_COMPOSER_BATCH}$"])


def _chosen(marks: pl.DataFrame, step_name: str | None) -> pl.DataFrame:
    """The first sort of step that is there; all of ``marks`` where the user chose."""
    if step_name is not None:
        return marks
    profiler = marks.filter(named(marks, [f"^{PROFILER_STEP}"]))
    own = marks.filter(pl.col("kind").is_in(("user_annotation", "nvtx")))
    engine = own.filter(named(own, [f"^(?:{ENGINE_STEP})$"]))
    if engine.height > profiler.height:
        return engine
    if profiler.height:
        return profiler
    own = own.filter(named(own, [steps_pattern()]))
    return own if own.height else marks.filter(~named(marks, [steps_pattern()]))


def without_snapshots(parts: Sequence[tuple[Meta, P]]) -> tuple[list[P], list[Skipped]]:
    """The parts of traces where there are any: a memory snapshot marks the same steps again.

    For :attr:`~traceanalyzer.analyzers.base.Analyzer.report_parts`.
    """
    traces = [part for meta, part in parts if meta.format != MEMORY_SNAPSHOT]
    return traces or [part for _, part in parts], []
