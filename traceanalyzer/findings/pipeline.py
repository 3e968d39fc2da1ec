"""Pipeline parallelism: wait time for the schedule or for a slow stage."""

from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.findings.device_time import DEVICE, DeviceTime
from traceanalyzer.findings.rule import Answers

#: Names of sends and receives in PyTorch and NCCL.
_P2P = r"(?i)send|recv|p2p"

#: Ranks are pipeline stages if this share of wait time is in sends and receives.
_MOSTLY = 0.8

#: Stages have equal work if the busiest exceeds the median of the others by at most this.
_EQUAL = 0.15


def is_balanced(time: DeviceTime) -> bool:
    """Whether ranks are pipeline stages with equal work, which wait for the schedule."""
    waits = time.losses.filter("waited")
    of_p2p = waits.filter(pl.col("collective").str.contains(_P2P))
    whole = int(waits["lost_ns"].sum())
    if not whole or int(of_p2p["lost_ns"].sum()) < _MOSTLY * whole:
        return False
    busy = _busy(time)["busy_ns"].sort()
    usual = busy.head(max(busy.len() - 1, 1)).median()
    return isinstance(usual, float) and busy[-1] <= (1 + _EQUAL) * usual


def schedule(time: DeviceTime, answers: Answers) -> Iterator[str]:
    """Yield the number of stages and micro-batches, and the minimum bubble."""
    comm = answers.get("comm_outliers")
    stages = time.windows["rank"].n_unique()
    if not isinstance(comm, CommOutliers) or not time.in_steps or stages < 2:
        return
    rows = comm.arrivals.filter(
        pl.col("collective").str.contains(_P2P), pl.col("step").is_not_null()
    )
    each = rows.group_by("rank", "step").len().group_by("rank").agg(pl.col("len").median())
    calls = each["len"].min()
    if not isinstance(calls, float) or calls < 2:  # one per direction in the first stage
        return
    batches = round(calls / 2)
    bubble = (stages - 1) / (batches + stages - 1)
    yield (
        f"With {stages} stages and {batches} micro-batches per step, a 1F1B schedule has a "
        f"bubble of {bubble:.0%}: (stages - 1) / (micro-batches + stages - 1)."
    )


def _busy(time: DeviceTime) -> pl.DataFrame:
    """Return the time without idle and wait time: path, rank, device, busy_ns."""
    whole = time.windows.group_by(DEVICE).agg(ns=(pl.col("end") - pl.col("start")).sum())
    lost = time.losses.group_by(DEVICE).agg(pl.col("lost_ns").sum())
    joined = whole.join(lost, on=DEVICE, how="left", nulls_equal=True)
    return joined.with_columns(busy_ns=pl.col("ns") - pl.col("lost_ns").fill_null(0))
