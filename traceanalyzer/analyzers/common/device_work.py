"""What devices did, and of which sort each piece of work is."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from traceanalyzer.analyzers.common.names import named
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import COMMUNICATION_PATTERN, DEVICE_WORK

COMPUTE = "compute"
COMMUNICATION = "communication"
MEMORY = "memory"

#: What a piece of device work is: communication, a copy or set, or any other kernel.
SORT = pl.Enum((COMPUTE, COMMUNICATION, MEMORY))

#: What tells devices apart: each rank has its own, whatever their numbers.
DEVICE = ("rank", "device")


def device_work(trace: Trace, patterns: Sequence[str] = ()) -> pl.DataFrame:
    """All device work that has an end, with what sort of work it is.

    Communication is work whose name matches :data:`~traceanalyzer.vocabulary.COMMUNICATION_PATTERN`
    or one of ``patterns``, and kernels that name a collective in their arguments; memory are copies
    and sets; compute is the rest. Rows of ``gpu_user_annotation`` and ``cuda_sync`` are not work.

    Returns:
        One row a piece in order of start: event (its row of ``events``), rank, pid, device, stream,
        kind, name, correlation, external_id, bytes, start, end, sort.

    Raises:
        OptionError: a pattern is not a regular expression.
    """
    is_work = trace.events.select(
        pl.col("kind").is_in(DEVICE_WORK) & (pl.col("dur") >= 0).fill_null(value=False)
    ).to_series()
    if is_work.all():  # where nothing else was read, the columns are taken as they are
        rows, event = trace.events, pl.int_range(len(is_work), dtype=pl.UInt32, eager=True)
    else:
        rows, event = trace.events.filter(is_work), is_work.arg_true()
    work = rows.select(
        event.alias("event"),
        "rank", "pid", "device", "stream", "kind", "name", "correlation", "external_id", "bytes",
        start="ts", end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip
    told = pl.lit(value=False)
    if trace.collectives.height:
        told = pl.col("event").is_in(trace.collectives["event"].implode())
    sort = (
        pl.when(named(work, [COMMUNICATION_PATTERN, *patterns]) | told)
        .then(pl.lit(COMMUNICATION, dtype=SORT))
        .when(pl.col("kind") == "kernel")
        .then(pl.lit(COMPUTE, dtype=SORT))
        .otherwise(pl.lit(MEMORY, dtype=SORT))
    )
    return work.with_columns(sort=sort)


def extent(work: pl.DataFrame, by: Sequence[str] = DEVICE) -> pl.DataFrame:
    """First start to last end of each device's work: ``by``, ``start``, ``end``, sorted."""
    return work.group_by(by).agg(pl.col("start").min(), pl.col("end").max()).sort(by)
