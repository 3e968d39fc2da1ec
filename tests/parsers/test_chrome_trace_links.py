"""Files of older profilers in which calls and kernels are linked otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceanalyzer as ta


def written(tmp_path: Path, events: list[dict[str, Any]]) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def slice_of(kind: str, name: str, ts: float, dur: float, **args: Any) -> dict[str, Any]:
    pid, tid = (2, 0) if kind in ("kernel", "gpu_memcpy") else (10, 10)
    return {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, "pid": pid, "tid": tid,
            "args": args}  # fmt: skip


def of_old_rocm(call: str = "hipLaunchKernel", kernel: str = "kernel") -> Iterator[dict[str, Any]]:
    """Yield operators with ids of their own; calls and kernels share the External id."""
    for i in range(20):
        at = 100.0 * i
        yield slice_of("cpu_op", "aten::mm", at, 20, **{"External id": 5 + i})
        yield slice_of("hip_runtime", call, at + 5, 10, **{"External id": 3 + i})
        yield slice_of(kernel, "Cijk_MT64x64", at + 30, 50, **{"External id": 3 + i})


@pytest.mark.parametrize(
    ("call", "kernel"), [("hipLaunchKernel", "kernel"), ("hipMemcpyAsync", "gpu_memcpy")]
)
def test_external_ids_of_old_rocm_files_link_calls(tmp_path: Path, call: str, kernel: str) -> None:
    path = written(tmp_path, list(of_old_rocm(call, kernel)))
    events = ta.read(path).events
    linked = events.filter(pl.col("kind").is_in(("cuda_runtime", kernel)))
    assert linked["correlation"].null_count() == 0
    assert linked["external_id"].null_count() == linked.height
    (row,) = ta.operators(path).operators.filter(name="aten::mm").iter_rows(named=True)
    assert row["self_device_ns"] == 20 * 50_000
    assert ta.launches(path).calls.launches == 20


def test_external_ids_of_operators_stay(tmp_path: Path) -> None:
    """Two calls of an operator have its id: that is no correlation."""
    events = [
        {**event, "args": {"External id": 5 + (i // 3) // 2}}
        for i, event in enumerate(of_old_rocm())
    ]
    recording = ta.read(written(tmp_path, events))
    assert recording.events["correlation"].null_count() == recording.events.height


def test_rocm_recording(shared: Path) -> None:
    path = shared / "data/causes/chrome/rocm_external_id.json.gz"
    top = ta.operators(path).operators.row(0, named=True)
    assert (top["name"], top["self_device_ns"]) == ("aten::mm", 10_850_000)


def of_event_list(name: str, n: int, kernels: int) -> Iterator[dict[str, Any]]:
    """Yield what ``EventList.export_chrome_trace`` writes."""
    number = 0
    for i in range(n):
        host = {"name": name, "ts": 300.0 * i, "tid": 1, "pid": "CPU functions", "args": {}}
        yield {**host, "ph": "X", "dur": 40.0}
        for k in range(kernels):
            at = 300.0 * i + 50 + 60 * k
            device = {"ts": at, "tid": 0, "pid": "CUDA functions", "args": {}, "name": "k"}
            yield {**host, "ph": "s", "id": number, "cat": "cpu_to_cuda"}
            yield {**device, "ph": "f", "id": number, "cat": "cpu_to_cuda"}
            yield {**device, "ph": "X", "dur": 50.0}
            number += 1


@pytest.mark.parametrize("kernels", [1, 3])
def test_export_of_event_lists(tmp_path: Path, kernels: int) -> None:
    path = written(tmp_path, list(of_event_list("aten::conv", 15, kernels)))
    kinds = dict(ta.read(path).events.group_by("kind").len().rows())
    assert kinds == {"cpu_op": 15, "kernel": 15 * kernels}
    (row,) = ta.operators(path).operators.iter_rows(named=True)
    # events are read in pieces: a kernel at the start of one has lost its flow
    assert row["self_device_ns"] >= 0.9 * 15 * kernels * 50_000
    assert ta.kernels(path).scalars["busy_ns"] == 15 * kernels * 50_000


def test_legacy_export(shared: Path) -> None:
    events = ta.read(shared / "data/causes/chrome/legacy_export.json.gz").events
    sums = events.group_by("kind").agg(n=pl.len(), ns=pl.col("dur").sum()).sort("kind").rows()
    assert sums == [("cpu_op", 60, 6_000_000), ("kernel", 60, 3_600_000)]
