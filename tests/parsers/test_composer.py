"""Traces of MosaicML Composer: merged files, and PyTorch's events in them and in separate files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import SHARED

import traceanalyzer as ta
from traceanalyzer.analyzers.common.display import count_devices
from traceanalyzer.parsers.chrome_trace.producers import BASE_STEP_NS

REPRO = SHARED / "data" / "composer" / "repro"
START_US = 1_715_000_000_000_000
#: The multiple of Kineto's step that lies before the start, in microseconds.
BASE_US = START_US // (BASE_STEP_NS // 1000) * (BASE_STEP_NS // 1000)


def composer_events(rank: int, start: int = START_US) -> list[dict[str, Any]]:
    """Two batches of a rank, as JSONTraceHandler writes them."""
    place = {"pid": rank, "tid": 1000 + rank}
    batch = {"name": "event/batch", "cat": "", **place}
    labels = {"process_name": {"name": f"Rank {rank} training loop process"}}
    labels |= {"global_rank": {"value": rank}, "clock_sync_timestamp_us": {"value": start + 50}}
    return [
        *(
            {"name": k, "cat": "", "ph": "M", "ts": start, **place, "args": a}
            for k, a in labels.items()
        ),
        *(
            {**batch, "ph": p, "ts": start + at}
            for p, at in zip("BEBE", (100, 500, 600, 900), strict=True)
        ),
    ]


def torch_events(rank: int, start: int, pid: int | None = None) -> list[dict[str, Any]]:
    """A launch and its kernel, as Kineto writes them; ``pid`` is what Composer makes of it."""
    host = 4000 + rank
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": start, "dur": 5}
    args = {"correlation": 7, "device": rank, "stream": 7}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "ts": start + 10, "dur": 40, "args": args}
    return [
        {**launch, "pid": host if pid is None else pid, "tid": host, "args": {"correlation": 7}},
        {**kernel, "pid": rank if pid is None else pid, "tid": 7},
    ]


def write(path: Path, events: list[dict[str, Any]], **top: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**top, "traceEvents": events} if top else events))
    return path


def merged(path: Path) -> Path:
    """As Composer's merger writes it: sort indices first, then the events of all ranks."""
    first = {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": 1, "args": {"sort_index": 9}}
    kernels = [event for rank in (0, 1) for event in torch_events(rank, START_US + 200, rank)]
    return write(path, [first, *composer_events(0), *composer_events(1), *kernels])


def test_merged_file_is_split_by_process(tmp_path: Path) -> None:
    path = merged(tmp_path / "node0_merged.json")
    assert ta.steps(path).steps["rank"].sort().to_list() == [0, 0, 1, 1]
    kernels = ta.read(path).events.filter(pl.col("kind") == "kernel")
    assert sorted(kernels.select("rank", "device").rows()) == [(0, 0), (1, 1)]


def test_merged_file_and_its_parts_count_once(tmp_path: Path) -> None:
    path = merged(tmp_path / "merged_trace.json")
    parts = [write(tmp_path / f"ep0-ba0-rank{n}.json", composer_events(n)) for n in (0, 1)]
    inputs, skipped = ta.find_inputs(tmp_path)
    assert inputs == [str(part) for part in parts]
    assert [left for left, _ in skipped] == [str(path)]
    assert ta.find_inputs([path, *parts]) == (inputs, skipped)
    assert ta.find_inputs(path) == ([str(path)], [])


def test_torch_events_are_placed_on_the_clock_of_composer(tmp_path: Path) -> None:
    torch = torch_events(0, START_US - BASE_US + 200, 0)
    trace = ta.read(write(tmp_path / "ep0-ba0-rank0.json", [*composer_events(0), *torch]))
    assert trace.events.filter(pl.col("kind") == "kernel")["ts"].item() == (START_US + 210) * 1000
    assert trace.events["ts"].is_sorted()
    assert trace.issues.is_empty()
    alone = ta.read(trace.meta.path, kinds="kernel")
    assert alone.events["ts"].to_list() == [(START_US + 210) * 1000]


def test_torch_events_of_another_time_stay_on_their_clock(tmp_path: Path) -> None:
    half = BASE_STEP_NS // 2000
    torch = torch_events(0, START_US - BASE_US + half, 0)
    trace = ta.read(write(tmp_path / "ep0-ba0-rank0.json", [*composer_events(0), *torch]))
    assert trace.issues["code"].to_list() == ["two-clocks"]
    kernel = trace.events.filter(pl.col("kind") == "kernel")
    assert kernel["ts"].to_list() == [(START_US - BASE_US + half + 10) * 1000]


@pytest.mark.sample(2)
@pytest.mark.parametrize("names", [("composer_profiler", "torch_profiler"), ("z", "a")])
def test_torch_events_in_both_files_count_once(tmp_path: Path, names: tuple[str, str]) -> None:
    composer, torch = names
    for rank in (0, 1):
        inside = torch_events(rank, START_US - BASE_US + 200, rank)
        events = [*composer_events(rank), *inside]
        write(tmp_path / composer / f"ep0-ba0-rank{rank}.json", events)
        torch_rows = torch_events(rank, START_US - BASE_US + 200)
        job = {"rank": rank, "world_size": 2}
        path = tmp_path / torch / f"rank{rank}.0.pt.trace.json"
        write(path, torch_rows, baseTimeNanoseconds=1000 * BASE_US, distributedInfo=job)
    assert ta.gpu_idle(tmp_path).units["busy_ns"].to_list() == [40_000, 40_000]
    assert ta.gpu_idle(tmp_path / composer).units["busy_ns"].to_list() == [40_000, 40_000]


def test_devices_of_the_recordings_of_both_profilers() -> None:
    if not REPRO.exists():
        pytest.skip("the shared Composer files are not here")
    devices = ta.gpu_idle(REPRO / "embedded").units
    assert devices.height == 2
    assert abs(devices["busy_ns"].sum() / 1e6 - 244.2) < 0.1


def test_cycles_of_one_rank_are_of_one_device(tmp_path: Path) -> None:
    for cycle in (0, 1):
        job = {"rank": 0, "world_size": 2}
        events = torch_events(0, 1000 * cycle)
        write(tmp_path / f"rank0.{cycle}.pt.trace.json", events, distributedInfo=job)
    units = ta.gpu_idle(tmp_path).units
    assert (units.height, count_devices(units)) == (2, 1)
    assert count_devices(units.with_columns(rank=pl.lit(None, pl.Int32))) == 2


def test_ranks_from_numbered_names(tmp_path: Path) -> None:
    events = torch_events(0, 100)
    for name in ("t-2-of-8.json", "t-5-of-8.json"):
        assert ta.read(write(tmp_path / "of" / name, events)).meta.rank == int(name[2])
    series = [write(tmp_path / "series" / f"run_{n}.json", events) for n in (0, 4)]
    assert ta.info(tmp_path / "series").files["rank"].to_list() == [0, 4]
    assert ta.info(series[1]).files["rank"].to_list() == [None]
    for name in ("run_3.json", "run_5.json"):
        write(tmp_path / "cycles" / name, events)
    assert ta.info(tmp_path / "cycles").files["rank"].to_list() == [None, None]


def profiler_steps(start: int, pid: int) -> list[dict[str, Any]]:
    """The same two batches as PyTorch's profiler marks them."""
    step = {"ph": "X", "cat": "user_annotation", "pid": pid, "tid": pid, "dur": 300}
    return [{**step, "name": f"ProfilerStep#{n}", "ts": start + 90 + n * 450} for n in (0, 1)]


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("base", [0, BASE_US], ids=["torch < 2.4", "torch >= 2.4"])
def test_both_profilers_of_a_job_count_events_and_steps_once(tmp_path: Path, base: int) -> None:
    """Before 2.4 PyTorch wrote times since 1970, as Composer does, and no base."""
    top = {"baseTimeNanoseconds": 1000 * base} if base else {}
    for rank in (0, 1):
        start = START_US - base
        inside = [*profiler_steps(start, rank), *torch_events(rank, start + 200, rank)]
        path = tmp_path / "composer_profiler" / f"ep0-ba0-rank{rank}.json"
        write(path, [*composer_events(rank), *inside])
        torch_rows = [*profiler_steps(start, 4000 + rank), *torch_events(rank, start + 200)]
        job = {"rank": rank, "world_size": 2}
        path = tmp_path / "torch_profiler" / f"rank{rank}.0.pt.trace.json"
        write(path, torch_rows, distributedInfo=job, **top)
    assert ta.gpu_idle(tmp_path).units["busy_ns"].to_list() == [40_000, 40_000]
    assert ta.kernels(tmp_path).n == 2
    steps = ta.steps(tmp_path)
    assert steps.steps.select("rank", "step").sort("rank", "step").rows() == [
        (rank, f"ProfilerStep#{n}") for rank in (0, 1) for n in (0, 1)
    ]
    assert len(steps.input_notes) == 2
    alone = ta.kernels(tmp_path / "composer_profiler")
    assert alone.n == 2


def test_torch_events_of_another_job_are_kept(tmp_path: Path) -> None:
    events = [*composer_events(0), *torch_events(0, START_US + 200, 0)]
    write(tmp_path / "composer_profiler" / "ep0-ba0-rank0.json", events)
    job = {"rank": 0, "world_size": 2}
    torch_rows = torch_events(0, START_US + 5_000)
    write(tmp_path / "torch_profiler" / "rank0.0.pt.trace.json", torch_rows, distributedInfo=job)
    assert ta.kernels(tmp_path).n == 2


def test_a_file_that_is_read_again_keeps_its_torch_events(tmp_path: Path) -> None:
    """The gaps are device-side waits, so the targets of stream waits are read, too."""
    events: list[dict[str, Any]] = []
    for number in range(20):
        at, ids = START_US + 1000 * number, {"correlation": number + 1}
        on_device = {**ids, "device": 0, "stream": 7}
        events += [
            slice_("cuda_runtime", "cudaLaunchKernel", at, 5, ids),
            slice_("kernel", "gemm", at + 320, 300, on_device),
            slice_("cuda_sync", "Stream Wait Event", at + 630, 3, on_device),
        ]
    path = write(tmp_path / "ep0-ba0-rank0.json", [*composer_events(0), *events])
    result = ta.gpu_idle(path)
    assert result.units["busy_ns"].to_list() == [20 * 300_000]
    assert "device_wait" in result.causes["cause"].to_list()


def slice_(cat: str, name: str, at: int, length: int, args: dict[str, int]) -> dict[str, Any]:
    return {
        "ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": at, "dur": length,
        "args": args,
    }  # fmt: skip


def test_a_reading_that_no_counter_has_is_counted(tmp_path: Path) -> None:
    swap = {"name": "memory/swap", "ph": "C", "pid": 0, "tid": 1000, "cat": ""}
    readings = [
        swap | {"ts": START_US + at, "args": {"used_gb": value}}
        for at, value in ((1, 2.0), (2, 1e22), (3, -1e300))
    ]
    trace = ta.read(write(tmp_path / "rank0.json", [*composer_events(0), *readings]))
    assert trace.counters["value"].to_list() == [1024]
    counts = dict(trace.issues.select("code", "count").iter_rows())
    assert counts["bad-counter"] == 2
