"""Scaling of small synthetic runs, against published figures and exact sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, device, host, step, trace
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.scaling.compute import scaling
from traceanalyzer.analyzers.scaling.result import PARTS
from traceanalyzer.errors import MissingData
from traceanalyzer.render import palette
from traceanalyzer.trace import Device, Trace

SECOND = 1_000_000_000
#: Mean epoch times in s of torch-ddp on Virgo, by GPUs (documentation of itwinai).
VIRGO = {4: 57.83, 8: 31.92, 16: 18.42, 32: 11.07}


def one_run(
    gpus: int, step_ns: int, folder: str = "", *, transfer_ns: int = 0, idle_ns: int = 0
) -> list[Trace]:
    """Two ranks of a run: two steps of computation, a transfer, and idle time at the end."""
    compute = step_ns - transfer_ns - idle_ns
    events = []
    for start in (0, step_ns):
        events += [
            step(start // step_ns, start, step_ns),
            device(GEMM, start, compute),
            device(ALL_REDUCE, start + compute, transfer_ns),
        ]
    events.append(device(GEMM, 2 * step_ns, MS))  # so that the last idle time is between kernels
    name = folder or f"run{gpus}"
    return [trace(events, rank, path=f"{name}/rank{rank}.json", world_size=gpus) for rank in (0, 1)]


def test_published_epoch_times():
    runs = [one for gpus, s in VIRGO.items() for one in one_run(gpus, round(s * SECOND))]
    result = scaling(runs)
    (last,) = result.sizes.filter(pl.col("gpus") == 32).iter_rows(named=True)
    assert round(last["speedup"], 2) == 5.22
    assert round(last["efficiency_frac"], 3) == 0.653
    assert last["ideal_speedup"] == 8
    assert result.sizes["step_ns"].to_list() == [s * SECOND for s in VIRGO.values()]


@pytest.mark.matrix
def test_weak_scaling():
    runs = [*one_run(2, 100 * MS), *one_run(8, 125 * MS)]
    (_, last) = scaling(runs, weak=True).sizes.iter_rows(named=True)
    assert last["efficiency_frac"] == pytest.approx(0.8)
    assert last["speedup"] == pytest.approx(3.2)
    assert last["lost_ns"] == pytest.approx(25 * MS)


@pytest.mark.matrix
def test_losses_by_part():
    runs = [
        *one_run(2, 100 * MS, transfer_ns=10 * MS),
        *one_run(4, 80 * MS, transfer_ns=20 * MS, idle_ns=8 * MS),
    ]
    losses = scaling(runs).losses.filter(pl.col("gpus") == 4)
    by_part = dict(losses.select("part", "lost_ns").rows())
    idle = sum(ns for part, ns in by_part.items() if part.startswith("idle"))
    assert by_part["compute"] == pytest.approx(52 * MS - 45 * MS)
    assert by_part["communication (exposed)"] == pytest.approx(20 * MS - 5 * MS)
    assert idle == pytest.approx(8 * MS)


times = st.integers(10, 200)


@settings(max_examples=25, deadline=None)
@given(
    runs=st.lists(st.tuples(times, st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=3),
    weak=st.booleans(),
)
def test_losses_add_up(runs, weak):
    traces = []
    for at, (step_ms, transfer, idle) in enumerate(runs):
        transfer_ns, idle_ns = transfer * MS, idle * MS
        traces += one_run(2 << at, step_ms * MS, transfer_ns=transfer_ns, idle_ns=idle_ns)
    result = scaling(traces, weak=weak)
    sums = result.losses.group_by("gpus").agg(pl.col("time_ns", "lost_ns").sum()).sort("gpus")
    assert sums["time_ns"].to_list() == pytest.approx(result.sizes["step_ns"].to_list())
    assert sums["lost_ns"].to_list() == pytest.approx(result.sizes["lost_ns"].to_list(), abs=1)


@pytest.mark.matrix
def test_repeated_runs_are_averaged():
    runs = [
        *one_run(2, 100 * MS),
        *one_run(4, 60 * MS, "first"),
        *one_run(4, 80 * MS, "second"),
    ]
    (_, last) = scaling(runs).sizes.iter_rows(named=True)
    assert (last["runs"], last["step_ns"], last["spread_ns"]) == (2, 70 * MS, 20 * MS)
    assert last["efficiency_frac"] == pytest.approx(100 / 70 / 2)


@pytest.mark.matrix
def test_ranks_of_one_job_may_be_in_several_folders():
    first, second = one_run(4, 60 * MS)
    (other,) = [trace(_rows(second), 1, path="node1/rank1.json", world_size=4)]
    result = scaling([*one_run(2, 100 * MS), first, other])
    assert result.runs["recorded"].to_list() == [2, 2]


def _rows(recorded: Trace) -> list[dict]:
    rows = recorded.events.select("kind", "name", "ts", "dur", "pid", "tid", "device", "stream")
    return rows.with_columns(pl.col("kind", "name").cast(pl.String)).to_dicts()


def test_without_a_world_size_the_devices_count():
    def unknown(ranks: int, step_ms: int) -> list[Trace]:
        events = [step(0, 0, step_ms * MS), device(GEMM, 0, step_ms * MS)]
        return [trace(events, at, path=f"run{ranks}/{at}.json") for at in range(ranks)]

    result = scaling([*unknown(1, 100), *unknown(3, 40)])
    assert result.sizes["gpus"].to_list() == [1, 3]
    assert result.sizes["efficiency_frac"].to_list() == pytest.approx([1, 100 / 120])


@pytest.mark.matrix
def test_the_order_of_inputs_does_not_matter():
    runs = [*one_run(2, 100 * MS), *one_run(4, 60 * MS), *one_run(8, 40 * MS)]
    assert scaling(runs).to_dict() == scaling(runs[::-1]).to_dict()


@pytest.mark.matrix
def test_runs_that_cannot_be_compared():
    with raises_wording(MissingData):
        scaling(one_run(2, 100 * MS))
    without = [trace([device(GEMM, 0, MS)], path="a/0.json"), trace([device(GEMM, 0, MS)], rank=1)]
    with raises_wording(MissingData):
        scaling(without)
    with raises_wording(MissingData):
        scaling(trace([host("cuda_runtime", "cudaLaunchKernel", 0, 0)]))


def test_charts_have_the_ideal_line():
    result = scaling([*one_run(2, 100 * MS), *one_run(4, 60 * MS)])
    step_time, speedup, parts = result.charts
    assert step_time.log_x
    assert step_time.log_y
    ideal = speedup.frame.filter(pl.col("series") == "ideal")
    assert ideal.select("gpus", "speedup").rows() == [(2, 1), (4, 2)]
    assert parts.frame["time_ns"].sum() == pytest.approx(160 * MS)


def test_states_have_the_colours_of_the_timeline():
    for state, name in PARTS.items():
        if state in palette.STATES:
            assert palette.MEANINGS[name] == palette.STATES[state][0]
    inks = [palette.MEANINGS[name] for name in PARTS.values()]
    assert len(set(inks)) == len(inks)


@pytest.mark.matrix
def test_a_verdict_agrees_with_the_losses():
    # 4 GPUs lose 10 ms, 8 GPUs are 1 ms faster than ideal, but communicate longer
    runs = [
        *one_run(2, 100 * MS),
        *one_run(4, 60 * MS),
        *one_run(8, 24 * MS, transfer_ns=3 * MS),
    ]
    result = scaling(runs)
    assert result.sizes["lost_ns"].to_list() == pytest.approx([0, 10 * MS, -1 * MS])
    check_wording(result.verdict)


@pytest.mark.matrix
def test_efficiency_far_above_ideal_is_not_the_same_work():
    weak = scaling([*one_run(2, 100 * MS), *one_run(8, 50 * MS)], weak=True)
    assert weak.sizes["efficiency_frac"][-1] == pytest.approx(2)
    check_wording(weak.verdict)
    plausible = scaling([*one_run(2, 100 * MS), *one_run(8, 24_500_000)])
    assert plausible.sizes["efficiency_frac"][-1] == pytest.approx(1.02, abs=0.001)
    assert "same work" not in plausible.verdict


@pytest.mark.matrix
def test_runs_on_different_gpus():
    def on(gpu: str, runs: list[Trace]) -> list[Trace]:
        return [
            replace(one, sources=(replace(one.meta, devices=(Device(0, gpu),)),)) for one in runs
        ]

    small, large = one_run(2, 100 * MS), one_run(4, 60 * MS)
    different = scaling([*on("A100", small), *on("H100", large)])
    assert "different GPUs (A100, H100)" in different.verdict
    assert different.runs["gpu"].to_list() == ["A100", "H100"]
    assert "different GPUs" not in scaling([*on("H100", small), *on("H100", large)]).verdict


def test_runs_of_one_folder_are_named_by_file():
    files = [
        replace(one, sources=(replace(one.meta, path=f"all/{gpus}.json"),))
        for gpus in (2, 4)
        for one in one_run(gpus, 200 * MS // gpus)[:1]
    ]
    assert scaling(files).runs["run"].to_list() == ["all/2.json", "all/4.json"]


@pytest.mark.matrix
def test_folders(tmp_path: Path):
    for run in (one_run(2, 100 * MS), one_run(4, 60 * MS)):
        for one in run:
            path = tmp_path / one.meta.path
            path.parent.mkdir(exist_ok=True)
            ta.convert(one, path.with_suffix(".parquet"))
    result = scaling([tmp_path / "run2", tmp_path / "run4"])
    assert result.sizes["gpus"].to_list() == [2, 4]
    assert [Path(name).name for name in result.runs["run"]] == ["run2", "run4"]


@pytest.mark.matrix
def test_other_work_is_recognised(shared: Path) -> None:
    """Compute is 37 ms longer than ideal, the loss is 22 ms."""
    kineto = shared / "data/chrome/kineto"
    files = [
        kineto / f"{name}.json.gz" for name in ("nccl_a100_rank0of2", "a100_rank3of8_sendrecv")
    ]
    result = ta.scaling(files)
    assert result.runs["run"].to_list() == list(map(str, files))
    check_wording(result.verdict)
    different = ta.scaling(
        [kineto / "resnet50_dataloader_workers0.json.gz", kineto / "dlrm_8ranks"]
    )
    assert "is above ideal" in different.verdict
    assert different.runs["run"][0].endswith("workers0.json.gz")


@pytest.mark.matrix
def test_parts_below_a_hundredth_of_the_loss_are_not_named() -> None:
    result = ta.scaling(ROOT / "fixtures/power")
    assert "idle: launches" not in result.verdict
    assert "-0.0" not in result.table()
