"""When each cause of idleness applies to what the feeding threads were at: unit, start, end."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.device_work import COMMUNICATION
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.ground import Ground
from traceanalyzer.analyzers.gpu_idle.threads import is_operator
from traceanalyzer.analyzers.names import named
from traceanalyzer.frames import intervals, linking
from traceanalyzer.vocabulary import LAUNCH_KINDS

_THREAD = ["thread"]


def loading(ground: Ground, patterns: Sequence[str]) -> pl.DataFrame:
    """When a feeding thread waits for its data loader."""
    return _in(ground, causes.DATALOADER_KINDS, [*causes.DATALOADER, *patterns])


def calls(ground: Ground, patterns: Sequence[str]) -> pl.DataFrame:
    """When a feeding thread is in a call or an operator whose name matches a pattern."""
    return _in(ground, (*LAUNCH_KINDS, "cpu_op"), patterns)


def saving(ground: Ground) -> pl.DataFrame:
    """When a feeding thread saves or loads a model, or writes a file."""
    kinds = ("user_annotation", "python_function", "nvtx", "osrt", "other")
    return _in(ground, kinds, causes.SAVING)


def running(ground: Ground) -> pl.DataFrame:
    """When a feeding thread runs an operator."""
    return ground.of_units(ground.slices.filter(is_operator(ground.names)))


def copying(ground: Ground) -> pl.DataFrame:
    """When a feeding thread copies a batch to the device: the call, and the operator around it."""
    batch = (pl.col("bytes") >= causes.BATCH_BYTES) & (pl.col("kind") == "gpu_memcpy")
    copies = ground.work.with_row_index("work").filter(batch)
    copies = copies.filter(named(copies, [causes.HOST_TO_DEVICE]))
    left = ground.launched.filter(pl.col("work").is_in(copies["work"].implode()))
    found = [left.select(*_THREAD, "start", "end")]
    left = left.with_columns(ts="start")
    for name in causes.COPY_OPERATORS:
        around = ground.slices.filter(pl.col("name") == name)
        left = linking.enclosing(left, around, _THREAD)
        held = left["slice"].drop_nulls().unique()
        found.append(around[held].select(*_THREAD, "start", "end"))
        left = left.filter(pl.col("slice").is_null()).drop("slice")
    return ground.of_units(pl.concat(found))


def pending(ground: Ground) -> pl.DataFrame:
    """When communication is launched and has not begun, or runs on the host itself."""
    begun = ground.work.select("unit", "sort", begin="start")[ground.launched["work"]]
    rows = pl.concat([ground.launched, begun], how="horizontal")
    waiting = rows.filter(pl.col("sort") == COMMUNICATION)
    return pl.concat([waiting.select("unit", start="end", end="begin"), ground.collectives])


def launching(ground: Ground, gaps: pl.DataFrame) -> pl.DataFrame:
    """When work is being launched, and when the work that ends a gap waited in the queue.

    Launching are the launch calls, and the operators that launch something: the outermost, with all
    they do before and after.
    """
    slices = ground.slices.lazy()
    columns = ("thread", "start", "end")
    launch_calls = slices.filter(pl.col("kind").is_in(LAUNCH_KINDS)).select(columns).collect()
    operators = slices.filter(is_operator(ground.names)).select(columns).collect()
    runs = intervals.union(operators, _THREAD)
    points = ground.launched.select(*_THREAD, ts="start")
    held = linking.label_by_interval(points, runs, _THREAD)["interval"].drop_nulls().unique()
    dispatching = ground.of_units(pl.concat([launch_calls, runs[held]]))
    return pl.concat([dispatching, _queued(ground, gaps)])


def _queued(ground: Ground, gaps: pl.DataFrame) -> pl.DataFrame:
    """From the launch of the work that ends each gap to the gap's end."""
    begun = ground.work.select("unit", end="start")[ground.launched["work"]]
    started = begun.with_columns(ground.launched["start"].alias("launch"))
    ended = gaps.rename({"unit": "of"}).with_row_index("gap")
    queued = started.join(ended, on="end").filter(pl.col("unit") == pl.col("of"))
    launch = queued.group_by("gap").agg(pl.col("launch").min())
    held = gaps[launch["gap"]]
    return held.select("unit", start=pl.max_horizontal("start", launch["launch"]), end="end")


def extents(ground: Ground) -> pl.DataFrame:
    """From the first slice to the last of each feeding thread."""
    spans = ground.slices.group_by(_THREAD).agg(pl.col("start").min(), pl.col("end").max())
    return ground.of_units(spans)


def _in(ground: Ground, kinds: Sequence[str], patterns: Sequence[str]) -> pl.DataFrame:
    """When a feeding thread is in a slice of these kinds whose name matches a pattern."""
    named_so = ground.slices.filter(named(ground.names, patterns))
    return ground.of_units(named_so.filter(pl.col("kind").is_in(kinds)))
