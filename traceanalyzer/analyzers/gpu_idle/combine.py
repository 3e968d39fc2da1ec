"""The ranks' contributions put together."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.gpu_idle.causes import CAUSE
from traceanalyzer.analyzers.gpu_idle.extract import extract
from traceanalyzer.analyzers.gpu_idle.part import Part
from traceanalyzer.analyzers.gpu_idle.result import By, GpuIdle
from traceanalyzer.analyzers.ranks import by_rank
from traceanalyzer.errors import OptionError
from traceanalyzer.trace import Trace


def gpu_idle(
    traces: Trace | Sequence[Trace],
    *,
    min_gap_ns: int = 10_000,
    dataloader: Sequence[str] = (),
    patterns: Sequence[str] = (),
    by: By = "device",
    libraries: Sequence[str] = (),
    step_name: str | None = None,
) -> GpuIdle:
    """Why is the GPU idle? Traces in memory; :func:`traceanalyzer.gpu_idle` reads files.

    A gap is a maximal stretch of a device's span in which none of its work runs, on any stream.
    Each moment of it has one cause: what the threads that launch the device's kernels were at, the
    first that fits of :data:`~.causes.CAUSES`; so the causes add up to the idle time. The span
    reaches from the first start to the last end of the device's work, and takes in the marked
    steps.

    Where no device work was recorded, the thread that marks steps (else the one with most time in
    operators) is looked at instead: it is busy in operators that are not part of loading data.

    Args:
        traces: one or more ranks.
        min_gap_ns: gaps shorter than this are the ordinary distance of kernels, ``short_gap``.
        dataloader: regular expressions of further host slices that are dataloading.
        patterns: regular expressions of further kernels that are communication.
        by: ``device``; ``process``: each process's part of a device; ``step``: steps come first.
        libraries: whose innermost Python frame is told of each gap; none: the user's own code.
        step_name: a regular expression of the slices that are steps.

    Raises:
        MissingData: neither device work nor operators were recorded.
        OptionError: a pattern is no regular expression, or ``min_gap_ns`` is negative.
    """
    options = {"dataloader": dataloader, "patterns": patterns, "libraries": libraries}
    parts = [
        extract(
            own, min_gap_ns=min_gap_ns, by_process=by == "process", step_name=step_name, **options
        )
        for own in by_rank(traces)
    ]
    return combine(parts, min_gap_ns=min_gap_ns, by=by)


def combine(
    parts: Sequence[Part],
    *,
    min_gap_ns: int = 10_000,
    by: By = "device",
    notes: Sequence[str] = (),
) -> GpuIdle:
    """The answer for all ranks.

    Raises:
        OptionError: ``min_gap_ns`` is negative.
    """
    if min_gap_ns < 0:
        raise OptionError(f"a gap of {min_gap_ns} ns: it cannot be shorter than nothing")
    units = _joined(parts, "units")
    key = ["rank", "path", "device", "pid"]
    steps = _joined(parts, "steps").sort(*key, "start", nulls_last=True)
    gaps = _joined(parts, "gaps").sort(
        pl.col("end") - pl.col("start"), *key, "start", descending=[True] + [False] * 5
    )
    causes = _joined(parts, "causes").sort(
        *key, "idle_ns", "cause", descending=[False] * 4 + [True, False]
    )
    return GpuIdle(
        by=by,
        on_host=all(part.on_host for part in parts),
        work_lost=any(part.work_lost for part in parts),
        host_known=all(part.host_known for part in parts),
        launches_known=all(part.launches_known or part.on_host for part in parts),
        min_gap_ns=min_gap_ns,
        gap_count=sum(part.gap_count for part in parts),
        units=units.sort(key),
        causes=causes,
        steps=steps,
        gaps=gaps,
        hints=parts[0].hints,
        more_notes=tuple(notes),
    )


def _joined(parts: Sequence[Part], table: str) -> pl.DataFrame:
    """One table of all parts, with rank, path, device and pid in place of the unit's number.

    ``start_ns`` counts from the beginning of the unit's span.
    """
    found = []
    for part in parts:
        rank, path = pl.lit(part.rank, pl.Int32).alias("rank"), pl.lit(part.path).alias("path")
        units = part.units.select("unit", rank, path, "device", "pid", origin="start")
        rows: pl.DataFrame = getattr(part, table)
        known = [name for name in ("device", "pid") if name in rows.columns]
        named = units.join(rows.drop(known), on="unit", maintain_order="left").drop("unit")
        if "start" in named.columns:
            named = named.with_columns(start_ns=pl.col("start") - pl.col("origin"))
        found.append(named.drop("origin"))
    joined = pl.concat(found)
    return joined.with_columns(pl.col("cause").cast(CAUSE)) if "cause" in joined.columns else joined
