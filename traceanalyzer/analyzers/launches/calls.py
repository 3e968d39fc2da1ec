"""Each launch call with the first piece of device work that it started."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceanalyzer.analyzers.launching import launches
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import LAUNCH_KINDS

#: Calls that are there to start device work; those of host functions start none.
LAUNCHING = r"(?i)(?:launch|memcpy|memset)"
_HOST_FUNCTION = r"(?i)hostfunc"

_CALL = ("launch", "launch_name", "launch_start", "launch_end")


def with_launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Device work with what was before it, and with its launch call where that was recorded.

    Args:
        trace: of one rank.
        work: rows of :func:`~traceanalyzer.analyzers.device_work.device_work`, by start.

    Returns:
        kind, name, device, process (its own pid, null where the file does not tell), stream,
        start, end; rank_free, device_free and stream_free (when all earlier work of the rank, the
        device, the stream had ended; null for the first); launch (row of ``events``), launch_pid,
        launch_tid, launch_name, launch_start, launch_end, null where no call is known. A row for
        each of ``work``.
    """
    found = launches(trace, work).drop_nulls("launch_end")
    calls = found.select(*_CALL, launch_pid="pid", launch_tid="tid")
    if found.height < work.height:
        calls = pl.DataFrame(
            [column.gather(_places(found["work"], work.height)) for column in calls]
        )
    ended = pl.col("end").cum_max().shift(1)
    return work.select(
        "kind", "name", "device", "stream", "start", "end",
        *calls,
        process="pid",
        rank_free=ended,
        device_free=ended.over("device"),
        stream_free=ended.over("device", "pid", "stream"),
    )  # fmt: skip


def _places(rows: pl.Series, height: int) -> pl.Series:
    """Of each number below ``height`` its place among the rows, null where it is not there."""
    place, known = np.zeros(height, np.uint32), np.zeros(height, np.bool_)
    place[rows], known[rows] = np.arange(rows.len()), True
    return nullable("place", place, known)


def launch_calls(work: pl.DataFrame) -> pl.DataFrame:
    """One row for each launch call that started work, by the start of its first piece.

    A graph launch is one call with many pieces.

    Args:
        work: rows of :func:`with_launches`.

    Returns:
        launch, pid, tid, launch_name, launch_start, launch_end; device, process, stream and start
        of the first piece, pieces (how many there are), call_ns, delay_ns (from the end of the call
        to the start of the first piece, 0 where that started earlier) and waited (whether earlier
        work of its stream had not ended when the call had).
    """
    launched = work.filter(pl.col("launch").is_not_null()) if work["launch"].null_count() else work
    pieces = pl.lit(1, pl.UInt32)
    if launched["launch"].n_unique() < launched.height:
        pieces = pl.len().over("launch").cast(pl.UInt32)
        launched = launched.with_columns(pieces=pieces).unique(
            "launch", keep="first", maintain_order=True
        )
        pieces = pl.col("pieces")
    call_end = pl.col("launch_end")
    return launched.select(
        "launch", "launch_name", "launch_start", "launch_end", "device", "process",
        "stream", "start",
        pid="launch_pid",
        tid="launch_tid",
        pieces=pieces,
        call_ns=call_end - pl.col("launch_start"),
        delay_ns=(pl.col("start") - call_end).clip(0),
        waited=(pl.col("stream_free") > call_end).fill_null(value=False),
    )  # fmt: skip


def runtime_calls(trace: Trace) -> pl.DataFrame:
    """All calls of the runtime and the driver: event, pid, tid, name, start, end; by start."""
    call = pl.col("kind").is_in(LAUNCH_KINDS) & (pl.col("dur") >= 0)
    event = trace.events.select(call).to_series().arg_true()
    return trace.events.select("pid", "tid", "name", "ts", "dur")[event].select(
        event.alias("event"), "pid", "tid", "name", start="ts", end=pl.col("ts") + pl.col("dur")
    )


def without_work(runtime: pl.DataFrame, calls: pl.DataFrame) -> int:
    """How many launch calls started no work that was recorded.

    Args:
        runtime: rows of :func:`runtime_calls`.
        calls: rows of :func:`launch_calls`.
    """
    text = pl.col("name").cast(pl.String)
    launching = text.str.contains(LAUNCHING) & ~text.str.contains(_HOST_FUNCTION)
    names = runtime.select(pl.col("name").unique().drop_nulls()).filter(launching)["name"]
    # work may be joined to a call of any name
    own = calls.filter(pl.col("launch_name").is_in(names.implode())).height
    return runtime.filter(pl.col("name").is_in(names.implode())).height - own
