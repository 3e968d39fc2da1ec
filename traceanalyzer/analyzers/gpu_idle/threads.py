"""The threads of the host that feed a device, and what ran on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.needs import HOST
from traceanalyzer.analyzers.names import named
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace, record_hint
from traceanalyzer.vocabulary import LAUNCH_KINDS

_THREAD = ["pid", "tid"]

_ON_HOST = pl.col("kind").is_in(HOST) & pl.col("tid").is_not_null() & (pl.col("dur") >= 0)


def host(trace: Trace) -> pl.LazyFrame:
    """Slices on threads of the host: kind, name, pid, tid, start, end."""
    end = pl.col("ts") + pl.col("dur")
    columns = ("kind", "name", *_THREAD)
    return trace.events.lazy().filter(_ON_HOST).select(*columns, start="ts", end=end)


def slices(trace: Trace, threads: pl.DataFrame) -> pl.DataFrame:
    """Slices of these threads (pid, tid, thread): kind, name, thread, start, end."""
    found = [np.zeros(0, np.uint32)]
    for pid, tid in threads.select(_THREAD).iter_rows():  # they are few
        own = pl.col("pid").eq_missing(pid) & pl.col("tid").eq_missing(tid)
        found.append(trace.events.select(_ON_HOST & own).to_series().arg_true().to_numpy())
    rows = np.concatenate(found)
    thread = threads["thread"].to_numpy().repeat([own.size for own in found[1:]])
    order = np.argsort(rows, kind="stable")
    return trace.events.select("kind", "name", "ts", "dur")[rows[order]].select(
        "kind", "name", pl.Series("thread", thread[order]),
        start="ts", end=pl.col("ts") + pl.col("dur"),
    )  # fmt: skip


def is_operator(events: pl.DataFrame | Sequence[str]) -> pl.Expr:
    """Whether a slice is an operator, not a range around some; see :func:`named`."""
    return (pl.col("kind") == "cpu_op") & named(events, [causes.OPERATOR])


def feeding(
    trace: Trace,
    units: pl.DataFrame,
    work: pl.DataFrame,
    calls: pl.DataFrame,
    steps: pl.DataFrame,
) -> pl.DataFrame:
    """unit, pid, tid, thread (number): the threads that launch each unit's kernels or mark steps.

    The thread of the training loop, which marks the steps, may leave launching to others. Threads
    that launch only copies, such as those that fetch batches ahead, do not feed the device.
    Without correlation ids they are the threads that call launches at all, else those with
    operators. Without device work it is the one that marks steps, else has most operators' time.

    Raises:
        MissingData: neither device work nor operators were recorded.
    """
    if work.is_empty():
        found = units.select("unit").join(_training(trace, steps), how="cross")
    else:
        found = _launching(calls, work)
        if found.is_empty():
            found = units.select("unit").join(_unlinked(trace), how="cross")
        looping = found.select("unit", "pid").join(
            steps.select(_THREAD).unique(), on="pid", nulls_equal=True
        )
        found = pl.concat([found, looping]).unique()
    if "pid" in units.columns and work.height:
        process = units.select("unit", process="pid")
        same = (pl.col("pid") == pl.col("process")).fill_null(value=True)
        found = found.join(process, on="unit").filter(same).drop("process")
    number = pl.struct(_THREAD).rank("dense").cast(pl.UInt32)
    return found.sort("unit", *_THREAD).with_columns(thread=number)


def _launching(calls: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    made = calls.select(*_THREAD).with_columns(work.select("unit", "kind")[calls["work"]])
    kernels = made.filter(pl.col("kind") == "kernel")
    return (kernels if kernels.height else made).select("unit", *_THREAD).unique()


def launches(trace: Trace) -> bool:
    """Whether any thread calls a launch, joined to device work or not."""
    return _calling(trace).height > 0


def _calling(trace: Trace) -> pl.DataFrame:
    launch = pl.col("kind").is_in(LAUNCH_KINDS) & named(trace.events, ["Launch"])
    return host(trace).filter(launch).select(*_THREAD).unique().collect()


def _unlinked(trace: Trace) -> pl.DataFrame:
    calling = _calling(trace)
    if calling.height:
        return calling
    return host(trace).filter(is_operator(trace.events)).select(*_THREAD).unique().collect()


def _training(trace: Trace, steps: pl.DataFrame) -> pl.DataFrame:
    length = (pl.col("end") - pl.col("start")).sum().alias("length")
    running = host(trace).filter(is_operator(trace.events))
    busiest = running.group_by(_THREAD).agg(length).collect()
    if busiest.is_empty():
        hint = record_hint(trace.meta, "device work")
        raise MissingData(
            f"{trace.meta.path}: neither GPU work nor operators were recorded; {hint}"
        )
    if steps.height:
        return steps.select(_THREAD).head(1)
    first = busiest.sort("length", *_THREAD, descending=[True, False, False])
    return first.select(_THREAD).head(1)
