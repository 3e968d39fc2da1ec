"""Pipeline parallelism: whether ranks wait for the schedule or for a slow stage."""

from collections.abc import Iterator

import polars as pl

from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.analyzers.diagnosis.device_time import DEVICE, DeviceTime
from traceanalyzer.analyzers.diagnosis.rule import Answers

#: Sends and receives, as PyTorch and NCCL name them.
_P2P = r"(?i)send|recv|p2p"

#: From this share of wait time in sends and receives on, ranks are pipeline stages.
_MOSTLY = 0.8

#: Stages whose busy time exceeds the median of the others by less have equal work.
_EQUAL = 0.15


def is_balanced(time: DeviceTime) -> bool:
    """Whether ranks are pipeline stages of equal work, so that they wait for the schedule."""
    waits = time.losses.filter("waited")
    of_p2p = waits.filter(pl.col("collective").str.contains(_P2P))
    whole = int(waits["lost_ns"].sum())
    if not whole or int(of_p2p["lost_ns"].sum()) < _MOSTLY * whole:
        return False
    busy = _busy(time)["busy_ns"].sort()
    usual = busy.head(max(busy.len() - 1, 1)).median()
    return isinstance(usual, float) and busy[-1] <= (1 + _EQUAL) * usual


def schedule(time: DeviceTime, answers: Answers) -> Iterator[str]:
    """How many stages and micro-batches there are, and the bubble that follows from them."""
    comm = answers.get("comm_outliers")
    stages = time.windows["rank"].n_unique()
    if not isinstance(comm, CommOutliers) or not time.in_steps or stages < 2:
        return
    rows = comm.arrivals.filter(
        pl.col("collective").str.contains(_P2P), pl.col("step").is_not_null()
    )
    each = rows.group_by("rank", "step").len().group_by("rank").agg(pl.col("len").median())
    calls = each["len"].min()
    if not isinstance(calls, float) or calls < 2:  # the first stage: one in each direction
        return
    batches = round(calls / 2)
    bubble = (stages - 1) / (batches + stages - 1)
    yield (
        f"With {stages} stages and {batches} micro-batches per step, a 1F1B schedule alone leaves "
        f"{bubble:.0%} of the time idle: (stages - 1) / (micro-batches + stages - 1)."
    )


def _busy(time: DeviceTime) -> pl.DataFrame:
    """The time in which each device is neither idle nor waits: path, rank, device, busy_ns."""
    whole = time.windows.group_by(DEVICE).agg(ns=(pl.col("end") - pl.col("start")).sum())
    lost = time.losses.group_by(DEVICE).agg(pl.col("lost_ns").sum())
    joined = whole.join(lost, on=DEVICE, how="left", nulls_equal=True)
    return joined.with_columns(busy_ns=pl.col("ns") - pl.col("lost_ns").fill_null(0))
