"""The bundled fixtures: what is wrong in them, on purpose, is what is found."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from conftest import ROOT
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.compute import comm_outliers
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.trace import Trace


def traces(folder: str) -> list[Trace]:
    files = sorted(Path(ROOT, "fixtures", folder).glob("*.gz"))
    return [ta.read(path) for path in files]


@pytest.fixture(scope="module")
def nccl() -> CommOutliers:
    return comm_outliers(traces("nccl_8ranks"), baseline=traces("nccl_8ranks_isolated"))


def test_straggler_with_slow_loader_is_reported(nccl: CommOutliers) -> None:
    actual = nccl.delayed.with_activity().sort("step")
    assert actual.select("rank", "step", "collective").rows() == [
        (5, "ProfilerStep#12", "all_gather"),
        (5, "ProfilerStep#15", "all_gather"),
    ]
    for text in actual["host"]:
        assert text.startswith("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    for text in actual["device"]:
        assert text.startswith("idle")
    assert nccl.scalars["straggler"] == 5


def test_slow_collective_has_no_straggler(nccl: CommOutliers) -> None:
    slow = nccl.collectives.filter("slow")
    assert slow.select("step", "collective").rows() == [("ProfilerStep#13", "reduce_scatter")]
    assert slow["slow_factor"].item() == pytest.approx(9, rel=0.1)
    causes = nccl.outliers().group_by("step").agg(pl.col("cause").unique()).sort("step")
    assert causes.rows() == [
        ("ProfilerStep#12", ["waiting for rank 5"]),
        ("ProfilerStep#13", ["slow on all ranks"]),
        ("ProfilerStep#15", ["waiting for rank 5"]),
    ]


def test_the_second_hosts_clock_runs_ahead(nccl: CommOutliers) -> None:
    assert nccl.clocks["applied"].to_list() == [False] * 4 + [True] * 4
    for offset, expected in zip(nccl.clocks["offset_ns"], [0] * 4 + [3_000_000] * 4, strict=True):
        assert abs(offset - expected) < 1_000


def test_collectives_overlapped_by_compute_are_slower(nccl: CommOutliers) -> None:
    assert nccl.baseline is not None
    ratios = dict(
        nccl.baseline.filter(pl.col("message_bytes") > 2**20)
        .select("collective", "ratio")
        .iter_rows()
    )
    assert ratios == {
        "reduce_scatter": pytest.approx(6, rel=0.1),
        "all_gather": pytest.approx(6, rel=0.1),
    }
    check_wording(nccl.verdict)


def test_a_real_recording_names_its_straggler() -> None:
    result = comm_outliers(traces("ddp_gloo_4ranks"))
    actual = result.delayed.with_activity().filter(rank=3)
    assert set(actual["step"]) == {"ProfilerStep#3", "ProfilerStep#5"}
    for text in actual["host"]:
        assert text.startswith("save_checkpoint ")
    # in step 2 two ranks start their two collectives in the other order
    assert result.totals.n_matched == result.totals.n_events == 4 * 4 * 2
    assert set(result.ranks["straggler_frac"] <= 1) == {True}
