"""Launches of real traces against HTA, and sums that add up on each of them.

Rules of HTA (traceinsight 0.6.1), which the product does not have:

- times are cut inwards to whole microseconds: a start is rounded up, an end down;
- if two or more steps (``ProfilerStep#``) are marked, calls after the start of the last one are
  dropped;
- launches are the calls named in :data:`LAUNCHES`; the delay is clipped at 0;
- queue lengths are listed at each call and each start of work, and averaged without weights. The
  order within one microsecond is unknown: the mean is between those of both orders.
  ``hipExtLaunchKernel`` is not a launch.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from conftest import ROOT, SHARED
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.launches.calls import launch_calls, with_launches
from traceanalyzer.analyzers.launches.compute import NEEDS
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace

KINETO = SHARED / "data/chrome/kineto"
FILES = sorted(path.name for path in KINETO.glob("*.json.gz"))
WITHOUT_DEVICE = ("cpu_only_rank34of300.json.gz", "no_rank.json.gz")
COMPARED = (
    "a100_rank3of8_sendrecv",
    "b200_rank0of8_eager",
    "dlrm_8ranks",
    "mi300_rank0of8_rccl",
    "nccl_a100_rank0of2",
    "resnet50_dataloader_workers0",
    "resnet50_dataloader_workers4",
    "v100_rank1of2_2020_allreduce",
)
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC", "cudaMemcpyAsync", "cudaMemsetAsync")
NO_LAUNCH = ("hipExtLaunchKernel",)


@cache
def read(path: Path) -> Trace:
    wanted = NEEDS
    return ta.read(path, kinds=wanted.kinds, names=wanted.names)


def trace_of(shared: Path, name: str) -> Trace:
    folder = shared / "data/chrome/kineto"
    (path,) = folder.glob(f"{name}/worker0_*" if name == "dlrm_8ranks" else f"{name}.json.gz")
    return read(path)


def oracle(shared: Path, name: str, table: str) -> list[list[str]]:
    (path,) = (shared / "oracle/chrome" / name / "hta").glob(f"{table}.csv*")
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return list(csv.reader(text.decode().splitlines()))


def us_up(column: str) -> pl.Expr:
    return -((-pl.col(column)) // 1_000)


def us_down(column: str) -> pl.Expr:
    return pl.col(column) // 1_000


@cache
def counted(shared: Path, name: str) -> pl.DataFrame:
    """Return the launch calls that HTA counts, in microseconds."""
    trace = trace_of(shared, name)
    work = with_launches(trace, device_work(trace))
    ends = work.drop_nulls("launch").unique("launch", keep="first", maintain_order=True)["end"]
    calls = launch_calls(work).with_columns(end=ends)
    steps = trace.events.filter(pl.col("name").cast(pl.String).str.starts_with("ProfilerStep#"))
    if steps["name"].n_unique() > 1:
        calls = calls.filter(pl.col("launch_start") < steps["ts"].max())
    call, start = us_up("launch_start"), us_up("start")
    cpu = us_down("launch_end") - call
    return calls.select(
        "stream",
        pl.col("launch_name").cast(pl.String),
        trace.events["correlation"].gather(calls["launch"]).alias("correlation"),
        call=call,
        start=start,
        cpu=cpu,
        gpu=us_down("end") - start,
        delay=(start - call - cpu).clip(0),
    )


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", COMPARED)
def test_delays_and_durations_agree_with_hta(name: str, shared: Path) -> None:
    head, *rows = oracle(shared, name, "cuda_kernel_launch_stats")
    assert head[1:] == ["rank_key", "correlation", "cpu_duration", "gpu_duration", "launch_delay"]
    expected = sorted(tuple(int(float(v)) for v in row[2:]) for row in rows if row[1] == "0")
    known = counted(shared, name).filter(pl.col("launch_name").is_in(LAUNCHES))
    assert sorted(known.select("correlation", "cpu", "gpu", "delay").rows()) == expected
    assert expected or name == "mi300_rank0of8_rccl"


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", COMPARED)
def test_queues_agree_with_hta(name: str, shared: Path) -> None:
    rows = [r for r in oracle(shared, name, "queue_length_summary")[3:] if r[0] == "0"]
    calls = counted(shared, name).filter(~pl.col("launch_name").is_in(NO_LAUNCH))
    for _, stream, count, mean, _, low, _, median, _, high in rows:
        of_stream = calls.filter(pl.col("stream") == int(stream))
        shortest, longest = (_lengths(of_stream, first) for first in (-1, 1))
        assert len(longest) == float(count)
        assert (longest.max(), longest.min()) == (float(high), float(low))
        assert shortest.mean() - 1e-9 <= float(mean) <= longest.mean() + 1e-9
        assert np.median(shortest) <= float(median) <= np.median(longest)
    assert len(rows) == calls["stream"].n_unique()


def _lengths(calls: pl.DataFrame, first: int) -> np.ndarray:
    """The queue's length after each change; of those at one time ``first`` comes first."""
    changes = [(at, 1) for at in calls["call"]] + [(at, -1) for at in calls["start"]]
    ordered = sorted(changes, key=lambda change: (change[0], -first * change[1]))
    return np.cumsum([step for _, step in ordered])


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", [n for n in FILES if n not in WITHOUT_DEVICE])
def test_totals_add_up(name: str, shared: Path) -> None:
    trace = read(shared / "data/chrome/kineto" / name)
    result = ta.launches(trace)
    work = device_work(trace)
    devices, calls = result.devices, result.calls.by_name
    assert devices["launches"].sum() == calls["launches"].sum() == result.calls.launches
    assert (
        result.calls.by_operator["launches"].sum()
        == result.queue.streams["launches"].sum()
        == result.calls.launches
    )
    assert result.calls.delays["n"].sum() == result.calls.launches
    assert calls["pieces"].sum() + result.unmatched.unlaunched == work.height
    assert result.short.kernels == (work["kind"] == "kernel").sum()
    assert result.short.by_name["short_kernels"].sum() == result.short.short_kernels
    assert result.bound.stretches["waiting_ns"].sum() == result.bound.waiting_ns <= result.idle_ns
    assert result.bound.places["waiting_ns"].sum() == result.bound.waiting_ns
    assert result.calls.by_operator["waiting_ns"].sum() == result.bound.waiting_ns
    assert result.bound.synchronised_ns <= result.bound.waiting_ns
    assert (
        result.synchronising.synchronising_idle_ns + result.synchronising.synchronising_after_ns
        <= result.idle_ns
    )
    whole = result.bound.stretches["busy_ns"] + result.bound.stretches["waiting_ns"]
    assert (whole <= result.bound.stretches["length_ns"]).all()
    for frame in (devices, result.queue.streams, result.bound.stretches, result.steps):
        shares = frame.select(pl.col("^.*_frac$"))
        assert all((column.drop_nulls().is_between(0, 1)).all() for column in shares)


@pytest.mark.parametrize("name", WITHOUT_DEVICE)
def test_runs_without_a_gpu_are_refused(name: str, shared: Path) -> None:
    with pytest.raises(MissingData, match=r"ProfilerActivity\.CUDA"):
        ta.launches(shared / "data/chrome/kineto" / name)


def test_delays_agree_with_a_plain_loop(shared: Path) -> None:
    trace = read(shared / "data/chrome/kineto/b200_rank0of8_eager.json.gz")
    ends, delays = {}, []
    for event in trace.events.to_dicts():
        if event["kind"] in ("cuda_runtime", "cuda_driver"):
            ends[event["correlation"]] = event["ts"] + event["dur"]
    for event in trace.events.to_dicts():
        if event["kind"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            delays.append(max(event["ts"] - ends[event["correlation"]], 0))
    one = ta.launches(trace).devices.row(0, named=True)
    assert one["launches"] == len(delays)
    assert one["max_delay_ns"] == max(delays)
    assert one["mean_delay_ns"] == pytest.approx(np.mean(delays))
    assert one["median_delay_ns"] == np.median(delays)
    assert one["late"] == sum(delay > 100_000 for delay in delays)


# --- what is known of the recordings ---------------------------------------------------------


def verdict(shared: Path, name: str) -> str:
    return ta.launches(read(shared / f"data/chrome/kineto/{name}.json.gz")).verdict


def test_an_eager_inference_is_launch_bound(shared: Path) -> None:
    text = verdict(shared, "b200_rank0of8_eager")
    check_wording(text)


@pytest.mark.parametrize("name", ["mi300_rank0of8_rccl", "v100_absolute_ns_ts"])
def test_a_busy_device_is_not_launch_bound(name: str, shared: Path) -> None:
    text = verdict(shared, name)
    check_wording(text)


@pytest.mark.matrix
def test_data_loading_starvation_is_not_launch_bound(shared: Path) -> None:
    text = verdict(shared, "resnet50_dataloader_workers0")
    assert "for other reasons" in text
    check_wording(text)


# --- the command -----------------------------------------------------------------------------


def test_text_output(run_cli: Callable[..., Any], golden: Callable[..., None]) -> None:
    done = run_cli("launches", "fixtures/nccl_8ranks/rank5.json.gz", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    golden("launches_nccl_rank5.txt", done.stdout)


@pytest.mark.matrix
def test_plot_is_written(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    plot, answer = tmp_path / "a.svg", tmp_path / "a.csv"
    done = run_cli(
        "launches", "fixtures/nccl_8ranks/rank0.json.gz", "--plot", plot, "-o", answer, cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Launch queues of streams" in plot.read_text()
    assert answer.read_text().startswith("on,rank,path,device,span_ns")


def test_run_without_gpu_has_a_recording_hint(run_cli: Callable[..., Any]) -> None:
    done = run_cli("launches", "fixtures/ddp_gloo_4ranks/rank0.json.gz", cwd=ROOT)
    assert (done.returncode, done.stdout) == (1, "")
    check_wording(done.stderr)


def test_mixed_folder_names_skipped_files(run_cli: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("nccl_8ranks/rank0.json.gz", "ddp_gloo_4ranks/rank1.json.gz"):
        (tmp_path / Path(name).name).write_bytes((ROOT / "fixtures" / name).read_bytes())
    done = run_cli("launches", tmp_path, "--to", "json")
    assert done.returncode == 0
    assert "Skipped: " in done.stdout
    assert "rank1.json.gz: no kernel" in done.stdout
