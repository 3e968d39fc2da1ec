"""What is shown of a single kernel, copy, collective or gap."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.host_code import places_of
from traceanalyzer.analyzers.common.launching import launches
from traceanalyzer.frames.intervals import nullable
from traceanalyzer.frames.nesting import ROOT
from traceanalyzer.trace import Trace

#: Most gaps with a description, the longest first.
_GAPS = 4_000


def events(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return kernels, copies and memsets with the operator that launched them.

    Returns:
        device, stream, start, end, name, work_kind, bytes (of a copy), operator (the innermost
        operator or annotation around the launch call, or null), collective (null), count (1).
    """
    return work.select(
        "device", "stream", "start", "end", "name", "work_kind", "bytes",
        _operators(trace, work), collective=pl.lit(None, pl.String), count=pl.lit(1, pl.UInt32),
    )  # fmt: skip


def _operators(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Return the innermost operator or annotation around the launch call of each row."""
    calls = launches(trace, work)
    at = calls.select("pid", "tid", ts="launch_start")
    names = places_of(trace).range(at)
    row = np.full(work.height, ROOT, np.int32)
    row[calls["work"].to_numpy()] = np.arange(calls.height)
    return names.gather(nullable("row", row, row != ROOT)).alias("operator")


def with_collectives(rows: pl.DataFrame, instances: pl.DataFrame) -> pl.DataFrame:
    """Set collective and bytes (the message size) of the kernels of collectives.

    Args:
        rows: rows of :func:`events` with lane.
        instances: lane, stream, start, collective, message_bytes.
    """
    keys = ["lane", "stream", "start"]
    known = instances.select(*keys, "message_bytes", of="collective").unique(keys, keep="first")
    joined = rows.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
    sizes = pl.coalesce("message_bytes", "bytes").alias("bytes")
    return joined.with_columns(sizes, collective="of").drop("of", "message_bytes")


def gaps(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the longest gaps with the work on either side and the host's activity.

    Args:
        rows: rows of ``GpuIdle.gaps`` with lane.

    Returns:
        lane, start, end, before, after, host (the host's activity: own code, Python, sampled
        function or slice, the first that is known), sorted by lane and start.
    """
    longest = rows.sort(pl.col("end") - pl.col("start"), descending=True).head(_GAPS)
    host = pl.coalesce("own_code", "python", "sampled", "host_event", "annotation")
    return longest.select(
        "lane", "start", "end", "before", "after", host=host.cast(pl.String)
    ).sort("lane", "start")
