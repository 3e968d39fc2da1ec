"""No share is above 100 %, and parts add up to no more than their whole, in any recording."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import US, device, host, step, trace
from conftest import ROOT, SHARED

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_work import PART_NAMES
from traceanalyzer.errors import MissingData
from traceanalyzer.result import Result

COMMANDS = {
    "steps": ta.steps, "gpu_idle": ta.gpu_idle, "launches": ta.launches,
    "comm_outliers": ta.comm_outliers, "overlap": ta.overlap, "kernels": ta.kernels,
    "operators": ta.operators, "annotations": ta.annotations, "modules": ta.modules,
    "diagnose": ta.diagnose,
}  # fmt: skip

#: Ratios that may be above 1 by their definition, and why.
RATIOS = {
    "cv_frac": "the standard deviation may be larger than the mean",
    "spread_frac": "the slowest rank may take several times the median",
    "link_frac": "a link may be faster than the peak in the table",
    "total_host_frac": "calls of a function inside itself count again, as in key_averages()",
    "total_device_frac": "likewise",
}

#: Sums of times in the files, which are rounded.
ROUNDING = 1e-3

#: Recordings of fixtures, and of the shared data.
RECORDINGS = [
    *(f"fixtures/{name}" for name in (
        "nccl_8ranks", "ddp_gloo_4ranks", "transformer", "composer", "jax_cpu",
        "nsys/training.sqlite", "torchscript", "upgrade", "xla", "rocpd", "nccl_8ranks_isolated",
    )),
    *(f"data/causes/chrome/{name}" for name in (
        "decode_after_mark.json.gz", "lag.pt.trace.json.gz", "jax_device_busy.json.gz",
        "pause_one_step_ahead.json.gz", "work_outside_repeats.json.gz",
        "first_step_loading.json.gz", "cropped_step_backlog.json.gz",
        "serving_split_healthy.json.gz", "moe", "balanced_pipeline",
        "two_buckets_in_flight", "ddp_gloo_two_ranks", "recording_starts_late", "host_clocks_apart",
        "one_long_kernel.json.gz", "impossible_durations.json.gz", "index_backward.json.gz",
    )),
    *(f"data/causes/nsys/{name}" for name in (
        "c5_round_trips", "c15_overhead_other_threads", "c19_two_processes_one_gpu",
        "c26_mpi_ranks",
    )),
    *(f"data/chrome/kineto/{name}.json.gz" for name in (
        "a100_rank3of8_sendrecv", "h100_qwen_inference", "mi300_rank0of8_rccl",
        "resnet50_dataloader_workers0", "v100_absolute_ns_ts", "no_rank", "mi250_rocm62",
    )),
    *(f"data/nsys/{name}.sqlite.gz" for name in ("mfu_2gpu_before", "power_iteration_t4")),
]  # fmt: skip


def opened(name: str) -> list[Path]:
    root = ROOT if name.startswith("fixtures") else SHARED
    found = sorted(root.glob(f"{name}*"))
    if not found:
        pytest.skip(f"no {root / name}")
    return found


def shares(result: Result) -> Iterator[tuple[str, str, float]]:
    """Yield table, column and largest value of all shares of a result."""
    for table in result.tables:
        for name in table.frame.columns:
            if name.endswith("_frac") and table.frame[name].dtype.is_numeric():
                most = table.frame[name].drop_nulls().max()
                yield table.name, name, float(most or 0)  # type: ignore[arg-type]
    for name, value in result.scalars.items():
        if name.endswith("_frac") and isinstance(value, float):
            yield "scalars", name, value


@pytest.mark.sample(40, "command")
@pytest.mark.parametrize("name", RECORDINGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_no_share_is_above_the_whole(command: str, name: str) -> None:
    paths: Any = opened(name)
    try:
        result = COMMANDS[command](paths)  # type: ignore[operator]
    except MissingData:
        return
    above = [row for row in shares(result) if row[2] > 1 + ROUNDING and row[1] not in RATIOS]
    assert not above
    assert_sums(command, result)


@pytest.mark.parametrize("streams", [2, 8])
@pytest.mark.parametrize("command", COMMANDS)
def test_kernels_that_overlap_themselves(command: str, streams: int) -> None:
    """A kernel runs on several streams at a time in each step, for 7/10 of its time or more."""
    events: list[dict[str, Any]] = []
    for number in range(4):
        at = number * 1000 * US
        events.append(step(number, at, 1000 * US))
        for stream in range(streams):
            ids = {"correlation": number * streams + stream + 1}
            begin = at + stream * 10 * US
            events.append(host("cuda_runtime", "cudaLaunchKernel", begin, 5 * US, **ids))
            events.append(device("heavy", begin + 5 * US, 800 * US, stream=stream, **ids))
    try:
        result: Any = COMMANDS[command](trace(events))  # type: ignore[operator]
    except MissingData:
        return
    assert not [row for row in shares(result) if row[2] > 1]
    if command == "kernels":
        assert result.names["device_frac"].to_list() == [1.0]
    if command == "diagnose":
        (heavy,) = (one for one in result.findings if one.id == "one-kernel")
        assert heavy.cost_frac == pytest.approx((0.79 + streams / 100), abs=0.001)


def test_different_kernels_at_the_same_time_take_no_more_than_the_gpu_is_busy() -> None:
    events: list[dict[str, Any]] = []
    for number in range(4):
        at = number * 1000 * US
        events.append(step(number, at, 1000 * US))
        for one in range(12):
            stream, place = one % 3, one // 3
            ids = {"correlation": 12 * number + one + 1}
            begin = at + (place * 3 + stream) * 5 * US
            events.append(host("cuda_runtime", "cudaLaunchKernel", begin, 4 * US, **ids))
            name = f"vectorized_elementwise_kernel<{one}>"
            start = at + 70 * US + place * 170 * US
            events.append(device(name, start, 160 * US, stream=stream, **ids))
    found = ta.diagnose(trace(events)).findings
    (fusible,) = (one for one in found if one.id == "memory-bound-kernels")
    assert 0.5 < (fusible.cost_frac or 0) < 0.7  # 640 us of 1 ms are busy


def assert_sums(command: str, result: Any) -> None:
    if command == "diagnose":
        parts = result.budget.filter(pl.col("part") != "of busy")["time_frac"]
        assert parts.sum() <= 1 + ROUNDING
        assert all((one.cost_frac or 0) <= 1 for one in result.findings)
    elif command == "gpu_idle":
        assert sum(result.idle_by_cause.values()) == result.idle_ns
        assert result.busy_ns + result.idle_ns == result.span_ns
    elif command == "steps":
        rows = result.steps.drop_nulls("compute_ns")
        parts = rows.select(pl.sum_horizontal(*PART_NAMES)).to_series()
        assert parts.to_list() == rows["duration_ns"].to_list()
