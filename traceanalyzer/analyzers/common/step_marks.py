"""Steps marked by annotations on the host."""

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

import polars as pl

from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.analyzers.common.names import named
from traceanalyzer.trace import Meta, Trace
from traceanalyzer.vocabulary import (
    DEVICE_WORK,
    ENGINE_STEP,
    MEMORY_SNAPSHOT,
    PROFILER_STEP,
    steps_pattern,
)

P = TypeVar("P")

#: Kinds of host slices that may mark a step; PyTorch recorded its steps as operators until 2021.
MARK_KINDS = ("user_annotation", "nvtx", "cpu_op", "other")

#: Substrings, one of which is in each default name of a step.
MARK_NAMES = (PROFILER_STEP,)

#: Steps that overlap by less are consecutive: profilers round times and durations.
_ROUNDING_NS = 1_000

#: The last step is incomplete if it takes less than this share of the median of the others.
_TAIL_FRAC = 0.05

#: Name of the slice of a batch in Composer, and its category in older versions.
_COMPOSER_BATCH = "event/batch"
_COMPOSER_BATCH_CATEGORY = "batch_start,batch_end"
_BATCHES = re.compile(r"(?:event/)?batch(?: \[\d+\])?")


def step_marks(trace: Trace, step_name: str | None = None) -> pl.DataFrame:
    """Return slices that mark steps: ``ProfilerStep#``, else user steps, else Composer's batches.

    Steps of an inference engine come first, unless there are as many ``ProfilerStep#``. Only the
    first available kind is used. A mark inside another mark of its thread is ignored. Marks that
    overlap by less than 1 us (rounding) are both steps, and the first ends at the start of the
    second. Steps that are partly outside the time window of the trace are left out, as is a last
    ``ProfilerStep#`` that is much shorter than the others and has no device work. If several
    threads mark steps, the one with the most marked time is used. Steps with equal names are
    numbered: ``## train_step ## [2]``.

    Args:
        trace: trace with host slices of :data:`MARK_KINDS`.
        step_name: regular expression of the names of steps.

    Returns:
        rank, pid, tid, step, start, end, sorted by rank and start; steps of a rank do not overlap.

    Raises:
        OptionError: ``step_name`` is not a regular expression.
    """
    return trace.once(("step_marks", step_name), lambda: _step_marks(trace, step_name))


def _complete(trace: Trace) -> pl.Expr:
    """Return which marks lie inside the time window of the (first) file."""
    since, until = trace.meta.window
    after = pl.lit(value=True) if since is None else pl.col("start") >= since
    return after if until is None else after & (pl.col("end") <= until)


def _step_marks(trace: Trace, step_name: str | None) -> pl.DataFrame:
    lane = ["rank", "pid", "tid"]
    is_mark = pl.col("kind").is_in(MARK_KINDS) & (pl.col("dur") > 0)
    selected = trace.events.select(_may_mark(trace.names, step_name) & is_mark).to_series()
    end = pl.col("ts") + pl.col("dur")
    marks = trace.events[["kind", "name", "ts", "dur", *lane]].filter(selected)
    marks = marks.select("kind", "name", *lane, start="ts", end=end)
    marks = marks.filter(_complete(trace))
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
    steps = _without_tail(steps, trace)
    nth = pl.int_range(pl.len()).over("rank", "step") + 1
    again = pl.format("{} [{}]", "step", nth)
    return steps.select(
        *lane,
        pl.when(pl.len().over("rank", "step") > 1).then(again).otherwise("step").alias("step"),
        "start",
        "end",
    )


def _without_tail(steps: pl.DataFrame, trace: Trace) -> pl.DataFrame:
    """Drop the last step of the profiler if the recording ended at its start.

    It is much shorter than the others, and no device work starts in it or after it.
    """
    length = pl.col("end") - pl.col("start")
    before = length.sort_by("start").head(pl.len() - 1).median()
    is_tail = (
        pl.col("step").str.starts_with(PROFILER_STEP)
        & (pl.col("start") == pl.col("start").max().over("rank"))
        & (length < _TAIL_FRAC * before.over("rank"))
    )
    tails = steps.filter(is_tail)
    if tails.is_empty():
        return steps
    work = trace.events.select("rank", "ts", "kind").filter(pl.col("kind").is_in(DEVICE_WORK))
    last = work.group_by("rank").agg(_last=pl.col("ts").max())
    tails = tails.join(last, on="rank", nulls_equal=True).filter(pl.col("_last") < pl.col("start"))
    return steps.join(
        tails, on=["rank", "start"], how="anti", nulls_equal=True, maintain_order="left"
    )


def of_composer(steps: Iterable[str]) -> bool:
    """Whether all steps are batches of Composer, by name."""
    return all(_BATCHES.fullmatch(step) for step in steps)


def _may_mark(names: Sequence[str], step_name: str | None) -> pl.Expr:
    """Return the filter of events with a name or category of steps."""
    if step_name is not None:
        return named(names, [step_name])
    batch = pl.col("category") == _COMPOSER_BATCH_CATEGORY
    return batch.fill_null(value=False) | named(names, [steps_pattern(), f"^{_COMPOSER_BATCH}$"])


def _chosen(marks: pl.DataFrame, step_name: str | None) -> pl.DataFrame:
    """Return the first available kind of steps; all of ``marks`` if the user chose."""
    if step_name is not None:
        return marks
    profiler = marks.filter(named(marks, [f"^{PROFILER_STEP}"]))
    annotations = marks.filter(pl.col("kind").is_in(("user_annotation", "nvtx")))
    engine = annotations.filter(named(annotations, [f"^(?:{ENGINE_STEP})$"]))
    if engine.height > profiler.height:
        return engine
    if profiler.height:
        return profiler
    user = annotations.filter(named(annotations, [steps_pattern()]))
    return user if user.height else marks.filter(~named(marks, [steps_pattern()]))


def without_snapshots(parts: Sequence[tuple[Meta, P]]) -> tuple[list[P], list[Skipped]]:
    """Drop parts of memory snapshots if there are traces: snapshots mark the same steps again.

    For :attr:`~traceanalyzer.analyzers.base.Analyzer.report_parts`.
    """
    traces = [part for meta, part in parts if meta.format != MEMORY_SNAPSHOT]
    return traces or [part for _, part in parts], []
