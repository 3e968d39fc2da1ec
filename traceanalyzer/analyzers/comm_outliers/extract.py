"""From one rank's trace, the few rows that the comparison needs."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.comm_outliers import beside, describe
from traceanalyzer.analyzers.comm_outliers.part import INSTANCES, Part
from traceanalyzer.analyzers.kernel_names import function
from traceanalyzer.analyzers.names import mapped
from traceanalyzer.analyzers.step_marks import step_marks
from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace, record_hint


def extract(trace: Trace, patterns: Sequence[str] = ()) -> Part:
    """One rank's collectives, its steps, and how busy its device was.

    Args:
        trace: one rank, read with at least :data:`~.needs.NEEDS`.
        patterns: regular expressions of names that are communication too.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    work = beside.device_work(trace)
    found, wants_launches = describe.communication(trace, work, patterns)
    closed = found.filter(pl.col("dur") >= 0).with_columns(
        start="ts", end=pl.col("ts") + pl.col("dur")
    )
    compute = beside.compute_kernels(work, closed)
    meta = trace.meta
    shift = meta.epoch_ns or 0
    steps = step_marks(trace).select("step", "start", "end")
    instances = beside.add(_in_steps(closed, steps), work, compute)
    return Part(
        rank=meta.rank,
        path=meta.path,
        host=meta.host,
        world_size=meta.world_size,
        shift_ns=shift,
        epoch_known=meta.epoch_ns is not None,
        instances=_shaped(instances, shift),
        steps=steps.with_columns(pl.col("start", "end") + shift),
        unclosed=found.height - closed.height,
        wants_launches=wants_launches,
        record_hint=record_hint(meta, "collective"),
        **beside.activity(trace, work, closed, compute),
    )


def _shaped(instances: pl.DataFrame, shift: int) -> pl.DataFrame:
    """Exactly the columns of :data:`INSTANCES`; a collective without name has its kernel's."""
    kernel = mapped(instances["name"], function)
    return instances.with_columns(
        pl.col("start", "end") + shift, collective=pl.coalesce("collective", kernel)
    ).select(pl.col(name).cast(dtype) for name, dtype in INSTANCES.items())


def _in_steps(instances: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Adds the step in which the host asked for each collective; null between steps.

    Where the trace does not tell when that was, the collective's own start counts, which on a
    device that lags behind its host may lie in the step after; but those that ran before the first
    one it tells of were asked for before the recording began.
    """
    first_told = instances.filter(pl.col("issued").is_not_null())["start"].min()
    known = pl.col("issued").is_not_null() | (pl.col("start") >= (first_told or 0))
    asked = pl.when(known).then(pl.coalesce("issued", "start"))
    found = linking.enclosing(instances.with_columns(ts=asked), steps)
    return found.with_columns(step=steps["step"].gather(found["slice"]))
