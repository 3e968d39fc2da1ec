"""Profiles of ONNX Runtime: nodes by operator and provider, runs as steps, and CUDA kernels."""

import json
from pathlib import Path
from typing import Any

import pytest

import traceanalyzer as ta

Json = dict[str, Any]


def _event(category: str, name: str, ts: int, dur: int, **args: str) -> Json:
    return {
        "cat": category, "pid": 7, "tid": 8, "dur": dur, "ts": ts, "ph": "X", "name": name,
        "args": args,
    }  # fmt: skip


def _node(op: str, ts: int, dur: int, provider: str = "CUDA") -> Json:
    more = {"op_name": op, "provider": f"{provider}ExecutionProvider"}
    return _event("Node", f"/model/{op}_{ts % 1000}_kernel_time", ts, dur, **more)


def _run(ts: int, *, kernels: bool) -> list[Json]:
    """A run of 945 us: 200 us of convolutions, a copy, 600 us on the CPU, a copy back."""
    events = [
        _event("Session", "model_run", ts, 945),
        _event("Session", "SequentialExecutor::Execute", ts + 5, 940),
        _node("Conv", ts + 10, 100),
        _node("Conv", ts + 110, 100),
        _node("MemcpyToHost", ts + 210, 80),
        _node("GridSample", ts + 290, 600, "CPU"),
        _node("MemcpyFromHost", ts + 890, 50),
    ]
    if kernels:
        of = {"stream": "13", "grid_x": "4", "block_x": "256"}
        events += [
            _event("Kernel", "sm80_conv", ts + 20, 90, op_name="Conv", **of),
            _event("Kernel", "sm80_conv", ts + 120, 90, op_name="Conv", **of),
            _event("Kernel", "MemcpyDeviceToHost", ts + 220, 60, op_name="MemcpyToHost", **of),
            _event("Kernel", "MemcpyHostToDevice", ts + 895, 40, op_name="MemcpyFromHost", **of),
        ]
    return events


def _written(folder: Path, *, kernels: bool) -> Path:
    path = folder / "onnxruntime_profile.json"
    events = [_event("Session", "session_initialization", 0, 900_000)]
    for at in range(10):
        events += _run(1_000_000 + 950 * at, kernels=kernels)
    path.write_text(json.dumps(events))
    return path


def test_nodes_are_operators_with_their_provider(tmp_path: Path) -> None:
    trace = ta.read(_written(tmp_path, kernels=True))
    kinds = dict(trace.events.select("name", "kind").cast(str).unique().iter_rows())
    assert kinds["onnx::Conv (CUDAExecutionProvider)"] == "cpu_op"
    assert kinds["onnx::GridSample (CPUExecutionProvider)"] == "user_annotation"
    assert kinds["sm80_conv"] == "kernel"
    assert kinds["Memcpy DtoH"] == kinds["Memcpy HtoD"] == "gpu_memcpy"
    on_gpu = trace.events.filter(trace.events["device"] == 0)
    assert on_gpu["stream"].unique().to_list() == [13]
    assert on_gpu["tid"].null_count() == on_gpu.height == 40
    assert ta.steps(trace).ranks["steps"].to_list() == [10]


def test_a_provider_alone_has_no_fallback(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps([_node("Conv", 0, 5, "CPU"), _node("Relu", 5, 5, "CPU")]))
    assert set(ta.read(path).events["kind"]) == {"cpu_op"}


@pytest.mark.parametrize(
    ("kernels", "rule", "cost_ns"),
    [(False, "host-code", 660_000), (True, "exposed-copies", 725_000)],
)
def test_operators_on_the_cpu_between_those_on_a_gpu(
    tmp_path: Path, kernels: bool, rule: str, cost_ns: int
) -> None:
    """With kernels, the copies to the host and back are one finding with the operator."""
    first, *_ = ta.diagnose(_written(tmp_path, kernels=kernels)).findings
    assert (first.id, first.severity) == (rule, "critical")
    assert "onnx::GridSample (CPUExecutionProvider)" in first.title
    assert first.cost_ns == pytest.approx(cost_ns, rel=0.02)
    assert "ONNX Runtime" in first.advice
