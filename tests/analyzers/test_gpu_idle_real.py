"""Idle time on real traces: exact sums, and the TensorBoard plugin's numbers by its own rule."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from wording import check_wording

import traceanalyzer
from traceanalyzer.analyzers.gpu_idle.compute import TIMES
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace

KINETO = [
    "a100_alexnet_cuda_sync", "a100_rank3of8_sendrecv", "b200_rank0of8_eager",
    "cpu_only_rank34of300", "dlrm_8ranks", "h100_qwen_inference", "mi250_rocm62",
    "mi300_rank0of8_rccl", "nccl_a100_rank0of2", "no_rank", "resnet50_2020_bare_array",
    "resnet50_dataloader_workers0", "resnet50_dataloader_workers4", "v100_absolute_ns_ts",
    "v100_rank1of2_2020_allreduce",
]  # fmt: skip
WORKERS = {"w0": "resnet50_dataloader_workers0", "w4": "resnet50_dataloader_workers4"}


def path(shared: Path, name: str) -> Path:
    folder = shared / "data/chrome/kineto"
    return folder / name if (folder / name).is_dir() else folder / f"{name}.json.gz"


def test_all_traces_are_in_the_list(shared: Path) -> None:
    actual = {
        item.name.removesuffix(".json.gz") for item in (shared / "data/chrome/kineto").iterdir()
    }
    assert actual == set(KINETO)


@cache
def idle(file: Path) -> traceanalyzer.GpuIdle:
    return traceanalyzer.gpu_idle(file)


@pytest.mark.sample(20, "by")
@pytest.mark.parametrize(
    ("name", "by"),
    [
        *((name, "device") for name in KINETO),
        *((name, "process") for name in ("dlrm_8ranks", "mi250_rocm62", "no_rank")),
    ],
)
def test_causes_add_up_to_idle_exactly(shared: Path, name: str, by: Any) -> None:
    file = path(shared, name)
    result = idle(file) if by == "device" else traceanalyzer.gpu_idle(file, by=by)
    assert sum(result.idle_by_cause.values()) == result.idle_ns
    assert result.causes["idle_ns"].sum() == result.idle_ns
    for frame in (result.units, result.steps):
        span = frame["end"] - frame["start"]
        assert frame.select(pl.sum_horizontal(TIMES)).to_series().equals(span, check_names=False)
    assert result.table()
    assert result.units.height == (8 if name == "dlrm_8ranks" else 1)


@pytest.mark.sample(16)
@pytest.mark.parametrize(
    "name", [n for n in KINETO if n not in ("cpu_only_rank34of300", "no_rank")]
)
def test_busy_is_the_union_of_device_work(shared: Path, name: str) -> None:
    """By marking instants, not by intervals: how many events are open at each."""
    for item in [path(shared, name)] if name != "dlrm_8ranks" else path(shared, name).iterdir():
        trace = traceanalyzer.read(item, kinds=["kernel", "gpu_memcpy", "gpu_memset"])
        work = trace.events.filter(pl.col("dur") > 0)
        steps = sorted([(t, 1) for t in work["ts"]] + [(t, -1) for t in work["ts"] + work["dur"]])
        busy, open_, since = 0, 0, 0
        for time, change in sorted(steps, key=lambda step: (step[0], -step[1])):
            if open_ == 0:
                since = time
            open_ += change
            if open_ == 0:
                busy += time - since
        assert idle(item).busy_ns == busy


# --- the loader ------------------------------------------------------------------------------


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("run", WORKERS)
def test_tensorboard_plugin_by_its_rule(shared: Path, run: str) -> None:
    """Its priorities: kernel, copy, memset, communication, runtime call, loader, operator, other.

    A step begins at the end of the previous one and ends with the last kernel launched in it. With
    these rules and our interval algebra every part of every step equals the plugin's, to the us.
    """
    oracle = json.loads((shared / "oracle/chrome/resnet50_dataloader_tb_plugin.json").read_text())
    trace = traceanalyzer.read(path(shared, WORKERS[run]))
    events = trace.events.filter(pl.col("dur") >= 0).with_columns(
        pl.col("name").cast(pl.String),
        start=pl.col("ts") // 1000,
        end=(pl.col("ts") + pl.col("dur")) // 1000,
    )
    steps = plugin_steps(events)
    loader = pl.col("name").str.contains(r"^enumerate\(Data(?:Loader|Pipe)\)#")
    is_step = pl.col("name").str.starts_with("ProfilerStep#")
    roles = [
        *(events.filter(pl.col("kind") == kind) for kind in ("kernel", "gpu_memcpy", "gpu_memset")),
        events.clear(),  # communication: there is none
        events.filter(pl.col("kind") == "cuda_runtime"),
        events.filter(loader),
        events.filter(pl.col("kind") == "cpu_op", ~loader, ~is_step),
    ]
    parts = intervals.divide(steps, roles)
    costs = [intervals.overlap_with(steps, part)["overlap"].to_list() for part in parts]
    costs.append((steps["end"] - steps["start"]).to_list())
    assert [list(row) for row in zip(*costs, strict=True)] == [
        row for _, row in oracle[run]["steps"]
    ]


def plugin_steps(events: pl.DataFrame) -> pl.DataFrame:
    marks = events.filter(pl.col("name").str.starts_with("ProfilerStep#")).sort("start")
    launched = events.filter(pl.col("kind") == "cuda_runtime").join(
        events.filter(pl.col("device").is_not_null()).select("correlation", last="end"),
        on="correlation",
    )
    steps, before = [], marks["start"][0]
    for start, end in marks.select("start", "end").iter_rows():
        of_step = launched.filter(pl.col("start") >= start, pl.col("end") <= end)
        steps.append((max(before, start), max(end, of_step["last"].max())))  # type: ignore[type-var]
        before = steps[-1][1]
    return pl.DataFrame(steps, schema={"start": pl.Int64, "end": pl.Int64}, orient="row")


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("run", WORKERS)
def test_loader_share_is_close_to_the_plugin(shared: Path, run: str) -> None:
    oracle = json.loads((shared / "oracle/chrome/resnet50_dataloader_tb_plugin.json").read_text())
    costs = dict(oracle[run]["avg_costs"])
    result = idle(path(shared, WORKERS[run]))
    share = costs["DataLoader"] / costs["Total"]
    assert result.step_dataloading_frac == pytest.approx(share, abs=0.005)  # 3 points are allowed
    lengths = result.steps.select((pl.col("end") - pl.col("start")) // 1_000).to_series().to_list()
    assert lengths == [times[-1] for _, times in oracle[run]["steps"]]
    assert (result.step_dataloading_frac > 0.1) == (run == "w0")
    check_wording(result.verdict)


def test_slow_loader_is_loader_bound(shared: Path) -> None:
    trace = shared / "data/chrome/kineto_ddp_cpu/slow_loader/rank0.json.gz"
    result = traceanalyzer.gpu_idle(trace)
    assert result.coverage.on_host
    assert result.verdict.count("waiting for the data loader") == 1
    assert result.step_dataloading_frac == pytest.approx(0.893, abs=0.0005)
    # PyTorch's annotation, and the frames of the loader that reach a little beyond it
    names = pl.col("name").cast(pl.String)
    marked = traceanalyzer.read(trace).events.filter(names.str.starts_with("enumerate("))
    assert 1 < result.units["loader_ns"].sum() / marked["dur"].sum() < 1.001


def test_the_sleeping_rank_spends_its_time_in_host_code(shared: Path) -> None:
    folder = shared / "data/chrome/kineto_ddp_cpu/ddp4"
    ranks = [traceanalyzer.gpu_idle(folder / f"rank{rank}.json.gz") for rank in range(4)]
    asleep = [
        rank.gaps.filter(pl.col("cause") == "host_code", pl.col("cause_ns") > 40_000_000)
        for rank in ranks
    ]
    assert [gaps.height for gaps in asleep] == [0, 0, 2, 0]
    assert sorted(asleep[2]["step"]) == ["ProfilerStep#2", "ProfilerStep#5"]
    assert set(asleep[2]["annotation"]) == {"train_step"}


@pytest.mark.matrix
def test_since_and_until_limit_the_trace(shared: Path) -> None:
    whole: Trace = traceanalyzer.read(path(shared, WORKERS["w0"]))
    cut = traceanalyzer.gpu_idle(path(shared, WORKERS["w0"]), since_ns=200_000_000)
    kept = whole.between(200_000_000).events.filter(pl.col("kind") == "kernel")
    assert cut.units["end"].max() == (kept["ts"] + kept["dur"]).max()
    assert cut.steps.height == 4  # the first is partly outside
