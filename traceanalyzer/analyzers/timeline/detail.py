"""What is shown of a single kernel, copy, collective or gap."""

import numpy as np
import polars as pl

from traceanalyzer.analyzers.common.launching import launches
from traceanalyzer.frames import linking
from traceanalyzer.trace import Trace

#: Host slices that name the code that launched a kernel; the innermost counts.
_OPERATORS = ("cpu_op", "user_annotation", "nvtx")
#: Most gaps with a description, the longest first.
_GAPS = 4_000


def events(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return kernels, copies and memsets with the operator that launched them.

    Returns:
        device, stream, start, end, name, work_kind, bytes (of a copy), operator (the
        innermost operator or range around the launch call, or null), collective (null), count (1).
    """
    return work.select(
        "device", "stream", "start", "end", "name", "work_kind", "bytes",
        _operators(trace, work), collective=pl.lit(None, pl.String), count=pl.lit(1, pl.UInt32),
    )  # fmt: skip


def _operators(trace: Trace, work: pl.DataFrame) -> pl.Series:
    """Return the name of the innermost slice around the launch call of each row."""
    calls = launches(trace, work)
    is_slice = pl.col("kind").is_in(_OPERATORS) & (pl.col("dur") > 0) & pl.col("tid").is_not_null()
    slices = trace.events.filter(is_slice).select(
        "pid", "tid", "name", start="ts", end=pl.col("ts") + pl.col("dur")
    )
    points = calls.select("work", "pid", "tid", ts="launch_start")
    inner = linking.enclosing(points, slices, ["pid", "tid"])
    row = np.full(work.height, slices.height, np.uint32)
    launched = inner.drop_nulls("slice")
    row[launched["work"].to_numpy()] = launched["slice"].to_numpy()
    names = pl.concat([slices["name"], pl.Series([None], dtype=slices["name"].dtype)])
    return names[row].alias("operator")


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
