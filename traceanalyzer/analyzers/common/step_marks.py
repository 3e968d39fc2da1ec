"""Steps marked by annotations on the host."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import median
from typing import Any, NamedTuple, TypeVar

import polars as pl

from traceanalyzer.analyzers.base import Skipped
from traceanalyzer.analyzers.common.names import matcher, named
from traceanalyzer.trace import Meta, Trace
from traceanalyzer.vocabulary import (
    DEVICE_WORK,
    ENGINE_STEP,
    MEMORY_SNAPSHOT,
    PROFILER_STEP,
    SEVERAL_STEPS,
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
_ENGINE_STEP = re.compile(f"^(?:{ENGINE_STEP})$")
_SEVERAL_STEPS = re.compile(f"{SEVERAL_STEPS}$")
_LANE = ("rank", "pid", "tid")
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


class _Mark(NamedTuple):
    """A slice that may mark a step. There are few of them, so they are rows, not columns."""

    kind: str
    name: str | None
    rank: int | None
    pid: int | None
    tid: int | None
    start: int
    end: int

    @property
    def lane(self) -> tuple[int | None, ...]:
        return self.rank, self.pid, self.tid

    @property
    def order(self) -> tuple[Any, ...]:
        """Key of the order by lane (null first) and start, the longest first."""
        return *((number is not None, number) for number in self.lane), self.start, -self.end


def _step_marks(trace: Trace, step_name: str | None) -> pl.DataFrame:
    is_mark = pl.col("kind").is_in(MARK_KINDS) & (pl.col("dur") > 0)
    selected = _may_mark(trace.names, step_name) & is_mark & _complete(trace)
    columns = ["kind", "category", "name", *_LANE, "ts", "dur"]
    rows = trace.events[columns].filter(selected)
    rows = rows.select("kind", "name", *_LANE, start="ts", end=pl.col("ts") + pl.col("dur"))
    marks = list(map(_Mark._make, rows.iter_rows()))
    outer = _outermost(sorted(_chosen(marks, step_name), key=lambda mark: mark.order))
    steps = _without_tail(_of_one_thread(outer), trace)
    return pl.DataFrame(
        [
            (*one.lane, name, one.start, one.end)
            for one, name in zip(steps, _names(steps), strict=True)
        ],
        schema={
            **{name: trace.events[name].dtype for name in _LANE},
            "step": pl.String,
            "start": pl.Int64,
            "end": pl.Int64,
        },
        orient="row",
    )


def _may_mark(names: Sequence[str], step_name: str | None) -> pl.Expr:
    """Return the filter of events with a name or category of steps."""
    if step_name is not None:
        return named(names, [step_name])
    batch = pl.col("category") == _COMPOSER_BATCH_CATEGORY
    return batch.fill_null(value=False) | named(names, [steps_pattern(), f"^{_COMPOSER_BATCH}$"])


def _complete(trace: Trace) -> pl.Expr:
    """Return which marks lie inside the time window of the (first) file."""
    since, until = trace.meta.window
    after = pl.lit(value=True) if since is None else pl.col("ts") >= since
    return after if until is None else after & (pl.col("ts") + pl.col("dur") <= until)


def _chosen(marks: list[_Mark], step_name: str | None) -> list[_Mark]:
    """Return the first available kind of steps; all of ``marks`` if the user chose."""
    if step_name is not None:
        return marks
    is_step = matcher([steps_pattern()])
    profiler = [mark for mark in marks if (mark.name or "").startswith(PROFILER_STEP)]
    annotations = [mark for mark in marks if mark.kind in ("user_annotation", "nvtx")]
    numbered = [mark for mark in annotations if is_step(mark.name or "")]
    engine = [mark for mark in annotations if _ENGINE_STEP.match(mark.name or "")]
    if len(engine) > len(profiler):
        return engine
    return (
        profiler
        or [mark for mark in numbered if not _SEVERAL_STEPS.search(mark.name or "")]
        or numbered
        or [mark for mark in marks if not is_step(mark.name or "")]
    )


def _outermost(marks: Iterable[_Mark]) -> list[_Mark]:
    """Return the marks outside any other mark of their lane; each ends before the next begins.

    Args:
        marks: in their order.
    """
    outer: list[_Mark] = []
    reached: dict[tuple[int | None, ...], int] = {}
    for mark in marks:
        before = reached.get(mark.lane, mark.start)
        reached[mark.lane] = max(before, mark.end)
        is_next = before - mark.start < _ROUNDING_NS and mark.end > before
        if mark.start < before and not is_next:
            continue
        if outer and outer[-1].lane == mark.lane:
            outer[-1] = outer[-1]._replace(end=min(outer[-1].end, mark.start))
        outer.append(mark)
    return outer


def _of_one_thread(steps: list[_Mark]) -> list[_Mark]:
    """Return the steps of the thread of each rank with the most marked time, by rank and start."""
    marked: Counter[tuple[int | None, ...]] = Counter()
    for step in steps:
        marked[step.lane] += step.end - step.start
    most = {rank: lane for lane, _ in reversed(marked.most_common()) for rank in lane[:1]}
    return [step for step in steps if step.lane == most[step.rank]]


def _without_tail(steps: list[_Mark], trace: Trace) -> list[_Mark]:
    """Drop the last step of the profiler if the recording ended at its start.

    It is much shorter than the others, and no device work starts in it or after it.
    """
    kept = []
    for rank, run in groupby(steps, key=lambda step: step.rank):
        *others, last = run
        kept += others
        if not (others and (last.name or "").startswith(PROFILER_STEP)):
            kept.append(last)
            continue
        usual = median(step.end - step.start for step in others)
        is_short = last.end - last.start < _TAIL_FRAC * usual
        if not is_short or _last_device_work(trace, rank) >= last.start:
            kept.append(last)
    return kept


def _last_device_work(trace: Trace, rank: int | None) -> float:
    """Return the last start of device work of a rank; infinite if there is none."""
    is_work = pl.col("kind").is_in(DEVICE_WORK) & pl.col("rank").eq_missing(pl.lit(rank, pl.Int32))
    last = trace.events[["ts", "kind", "rank"]].filter(is_work)["ts"].max()
    return last if isinstance(last, int) else math.inf


def _names(steps: Sequence[_Mark]) -> list[str | None]:
    """Return the names of steps; equal ones of a rank are numbered."""
    total = Counter((step.rank, step.name) for step in steps)
    so_far: Counter[tuple[int | None, str | None]] = Counter()
    names = []
    for step in steps:
        key = step.rank, step.name
        so_far[key] += 1
        again = step.name is not None and total[key] > 1
        names.append(f"{step.name} [{so_far[key]}]" if again else step.name)
    return names


def of_composer(steps: Iterable[str]) -> bool:
    """Whether all steps are batches of Composer, by name."""
    return all(_BATCHES.fullmatch(step) for step in steps)


def without_snapshots(parts: Sequence[tuple[Meta, P]]) -> tuple[list[P], list[Skipped]]:
    """Drop parts of memory snapshots if there are traces: snapshots mark the same steps again.

    For :attr:`~traceanalyzer.analyzers.base.Analyzer.report_parts`.
    """
    traces = [part for meta, part in parts if meta.format != MEMORY_SNAPSHOT]
    return traces or [part for _, part in parts], []
