"""Other devices than CUDA's: calls of their runtimes launch and wait like CUDA's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, US, device, host, step, trace
from harness import without_scan

import traceanalyzer as ta
from traceanalyzer.analyzers.common.kernel_names import family
from traceanalyzer.analyzers.cuda_api.result import sorted_out

#: Names of CUDA's calls in another runtime.
NAMES = {"cudaLaunchKernel": "urEnqueueKernelLaunch", "cudaDeviceSynchronize": "urQueueFinish"}


def training(kind: str) -> list[dict[str, Any]]:
    """Two steps: an operator launches a kernel, the host waits for it."""
    actual = []
    for number in range(2):
        at = number * 1_000 * US
        actual += [
            step(number, at, 1_000 * US),
            host("cpu_op", "aten::mm", at + 10 * US, 40 * US),
            host(kind, "cudaLaunchKernel", at + 20 * US, 10 * US, correlation=number),
            device(GEMM, at + 60 * US, 300 * US, correlation=number),
            host(kind, "cudaDeviceSynchronize", at + 100 * US, 400 * US),
        ]
    return actual


def normalized(result: ta.Result, kind: str = "") -> list[tuple[str, list[dict[str, Any]]]]:
    """Return all tables with calls and their kind renamed to CUDA's."""
    theirs = {**{new: old for old, new in NAMES.items()}, kind: "cuda_runtime"}
    return [
        (table.name, sorted(({k: theirs.get(v, v) for k, v in r.items()} for r in rows), key=str))
        for table in result.tables
        for rows in [table.frame.to_dicts()]
    ]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "analysis",
    [ta.gpu_idle, ta.launches, ta.annotations, ta.cuda_api, ta.kernels, ta.operators, ta.overlap],
    ids=lambda function: function.__name__,
)
@pytest.mark.parametrize("kind", ["xpu_runtime", "privateuse1_runtime"])
def test_calls_of_every_runtime_are_supported(analysis: Any, kind: str) -> None:
    renamed = [{**row, "name": NAMES.get(row["name"], row["name"])} for row in training(kind)]
    assert normalized(analysis(trace(renamed)), kind) == normalized(
        analysis(trace(training("cuda_runtime")))
    )


def test_categories_of_intel_calls() -> None:
    actual = sorted_out(
        [
            "urEnqueueKernelLaunch", "urEnqueueUSMMemcpy", "urQueueFinish", "urEventWait",
            "zeCommandListHostSynchronize", "urUSMDeviceAlloc", "urUSMFree", "urQueueFlush",
        ]
    )  # fmt: skip
    assert actual.launching == ("urEnqueueKernelLaunch",)
    assert (actual.moving, actual.waiting) == (("urEnqueueUSMMemcpy",), ())
    assert actual.synchronising == ("urEventWait", "urQueueFinish", "zeCommandListHostSynchronize")
    assert actual.allocating == ("urUSMDeviceAlloc", "urUSMFree")


def test_copies_from_and_to_the_system_s_memory() -> None:
    names = ("Memcpy M2D", "Memcpy D2M", "Memcpy D2D")
    assert [family(name, "gpu_memcpy") for name in names] == [
        "memcpy HtoD", "memcpy DtoH", "memcpy DtoD",
    ]  # fmt: skip


def test_work_of_mtia_is_device_work(tmp_path: Path) -> None:
    launch = {"ph": "X", "cat": "mtia_runtime", "name": "runFunction", "pid": 9, "tid": 9}
    work = {"ph": "X", "cat": "mtia_ccp_events", "name": "FC", "pid": 1, "tid": 3, "dur": 30}
    path = tmp_path / "mtia.json"
    at = {"device": 1, "stream": 3, "correlation": 5}
    events = [
        {**launch, "ts": 0, "dur": 5, "args": {"correlation": 5}},
        {**work, "ts": 10, "args": at},
        {**work, "ts": 50, "args": {"device": 1, "stream": 3}},
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert ta.gpu_idle(path).units.select("device", "busy_ns").rows() == [(1, 60_000)]
    with without_scan():
        again = ta.read(path).events
    assert again["kind"].to_list() == ["mtia_runtime", "kernel", "kernel"]
    assert again["category"].to_list()[1] == "mtia_ccp_events"


def test_work_of_cambricon_is_device_work(tmp_path: Path) -> None:
    at = {"device": 0, "stream": 3, "correlation": 5}
    rows = [
        ("mlu_runtime", "cnInvokeKernel", 0, 5, {"correlation": 5}),
        ("kernel", "MLUBlockKernel3StageMatmul", 10, 30, at),
        ("mlu_memcpy", "Memcpy HtoD", 50, 20, at),
        ("mlu_memset", "Memset", 80, 10, at),
        ("mlu_user_annotation", "forward", 10, 80, at),
    ]
    path = tmp_path / "mlu.json"
    events = [
        {
            "ph": "X",
            "cat": cat,
            "name": name,
            "pid": 1,
            "tid": 3,
            "ts": ts,
            "dur": dur,
            "args": args,
        }
        for cat, name, ts, dur, args in rows
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert ta.gpu_idle(path).units.select("device", "busy_ns").rows() == [(0, 60_000)]
    with without_scan():
        kinds = ta.read(path).events["kind"].cast(pl.String).sort().to_list()
    assert kinds == ta.read(path).events["kind"].cast(pl.String).sort().to_list()
    assert kinds == ["cuda_runtime", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "kernel"]


def test_slices_of_unknown_categories_and_phases(tmp_path: Path) -> None:
    """Slices are kept whatever their category, also those of phase T; other phases are counted."""
    rows = [("X", "npu_core"), ("T", "npu_core"), ("?", "npu_core"), ("?", "cpu_op")]
    events = [
        {"ph": ph, "cat": cat, "name": "a", "ts": at, "dur": 5, "pid": 1, "tid": 1}
        for at, (ph, cat) in enumerate(rows)
    ]
    path = tmp_path / "npu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = ta.read(path)
    assert trace.events.select("dur", "category").rows() == [(5_000, "npu_core")] * 2
    assert trace.issues.select("code", "severity", "count").rows() == [
        ("unknown-phase-?", "data_loss", 2)
    ]
