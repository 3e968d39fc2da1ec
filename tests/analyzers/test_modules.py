"""Modules of a small trace computed by hand, and of real recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from comm_traces import GEMM, device, host, trace
from hypothesis import given, settings, strategies as st
from module_traces import STEPS, Event, one_step, write

import traceanalyzer as ta
from traceanalyzer.errors import MissingData, OptionError


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    events = [event for n in range(STEPS) for event in one_step(10_000 * n, n)]
    return write(tmp_path / "rank0.json", events)


def rows(result: Any, *columns: str, per: int = STEPS * 1000) -> dict[str | None, tuple[Any, ...]]:
    """Return the columns by module, in us per step."""
    found = result.modules.select("module", *columns).iter_rows()
    return {name: tuple(value and value / per for value in values) for name, *values in found}


def test_device_time_by_phase(recording: Path) -> None:
    columns = ("self", "total", "forward", "backward", "recomputed")
    result = rows(ta.modules(recording), *(f"{name}_device_ns" for name in columns))
    assert result == {
        "Sequential_0": (0, 93, 23, 59, 11),
        "Sequential_0/Linear_0": (28, 28, 5, 23, 0),
        "Sequential_0/Linear_1": (26, 26, 7, 19, 0),
        "Sequential_0/Block_0": (0, 39, 11, 17, 11),
        "Sequential_0/Block_0/Linear_2": (39, 39, 11, 17, 11),
        None: (16, 16, 13, 3, 0),
    }


def test_host_time_by_phase(recording: Path) -> None:
    columns = ("self", "total", "forward", "backward", "recomputed")
    result = rows(ta.modules(recording), *(f"{name}_host_ns" for name in columns))
    assert result == {
        "Sequential_0": (68, 240, 100, 74, 66),
        "Sequential_0/Linear_0": (40, 40, 20, 20, 0),
        "Sequential_0/Linear_1": (40, 40, 20, 20, 0),
        "Sequential_0/Block_0": (22, 92, 32, 30, 30),
        "Sequential_0/Block_0/Linear_2": (70, 70, 20, 30, 20),
        None: (30, 30, 20, 10, 0),
    }


def test_calls_means_and_shares(recording: Path) -> None:
    result = ta.modules(recording)
    assert rows(result, "calls", "recomputed_calls", per=1)["Sequential_0/Block_0"] == (2, 2)
    assert rows(result, "calls", "recomputed_calls", per=1)["Sequential_0/Linear_1"] == (2, 0)
    first = result.modules.row(0, named=True)
    assert (first["mean_host_ns"], first["mean_device_ns"]) == (100_000, 93_000)
    assert first["device_frac"] == pytest.approx(93 / 109)
    assert first["host_frac"] == pytest.approx(240 / 270)
    assert result.modules["depth"].to_list() == [1, 2, 2, 2, 3, 0]
    assert (result.nodes, result.linked) == (12, 10)


def test_flops_of_a_product(recording: Path) -> None:
    result = rows(ta.modules(recording), "self_flops", "total_flops", per=STEPS)
    assert result["Sequential_0/Linear_0"] == (2 * 4 * 16 * 8, 2 * 4 * 16 * 8)
    assert result["Sequential_0"] == (0, 2 * 4 * 16 * 8)
    # its work has no shapes
    assert result["Sequential_0/Linear_1"] == (None, None)
    assert result["Sequential_0/Block_0"] == (0, None)


def test_ranks_are_summed(recording: Path, tmp_path: Path) -> None:
    one = ta.modules(recording)
    write(tmp_path / "rank1.json", json.loads(recording.read_text())["traceEvents"], rank=1)
    both = ta.modules(tmp_path)
    assert both.modules["module"].to_list() == one.modules["module"].to_list()
    for name in ("calls", "self_device_ns", "total_host_ns", "backward_device_ns"):
        assert both.modules[name].to_list() == (2 * one.modules[name]).to_list()
    assert both.ranks["rank"].to_list() == [0, 1]


def test_modules_below_the_depth_count_for_their_caller(recording: Path) -> None:
    result = ta.modules(recording, depth=2)
    device_time = rows(result, "self_device_ns", "total_device_ns", "calls")
    assert device_time["Sequential_0/Block_0"][:2] == (39, 39)
    assert result.modules["depth"].max() == 2
    assert rows(result, "calls", per=1)["Sequential_0/Block_0"] == (2,)


def test_annotations_that_match_are_modules() -> None:
    events = [
        host("user_annotation", "encoder", 0, 50),
        host("user_annotation", "other", 10, 20),
        host("cpu_op", "aten::mm", 12, 10),
        host("cuda_runtime", "cudaLaunchKernel", 14, 2, correlation=1),
        device(GEMM, 100, 30, correlation=1),
    ]
    result = ta.modules(trace(events), patterns="^enc")
    assert rows(result, "self_host_ns", "self_device_ns", per=1) == {
        "encoder": (50, 30),
        None: (0, 0),
    }
    with pytest.raises(MissingData):
        ta.modules(trace(events), patterns="decoder")
    with pytest.raises(MissingData):
        ta.modules(trace(events))
    with pytest.raises(OptionError):
        ta.modules(trace(events), patterns="(")


def test_flame_graph_has_phases_then_modules(recording: Path) -> None:
    (flame,) = ta.modules(recording).flames
    frame = flame.frame
    parents = dict(zip(frame["id"], frame["name"], strict=True))
    boxes = {
        (parents.get(parent), name): total / (STEPS * 1000)
        for parent, name, total in frame.select("parent", "name", "total").iter_rows()
    }
    assert boxes == {
        (None, "forward"): 23,
        ("forward", "Sequential_0"): 23,
        ("Sequential_0", "Linear_0"): boxes["Sequential_0", "Linear_0"],
        ("Sequential_0", "Linear_1"): boxes["Sequential_0", "Linear_1"],
        ("Sequential_0", "Block_0"): 11,
        ("Block_0", "Linear_2"): 11,
        (None, "(outside modules)"): 13,
        (None, "backward"): 62,
        ("backward", "Sequential_0"): 59,
        ("backward", "(outside modules)"): 3,
        (None, "recomputed"): 11,
        ("recomputed", "Sequential_0"): 11,
    }
    assert frame["self"].sum() == 109 * STEPS * 1000


# --- invariants ------------------------------------------------------------------------------

_SPANS = st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 2), st.integers(0, 3))


@settings(max_examples=40, deadline=None)
@given(st.lists(_SPANS, min_size=1, max_size=12), st.lists(st.integers(0, 90), max_size=8))
def test_self_times_and_the_rest_are_all_time(
    spans: list[tuple[int, int, int, int]], launches: list[int]
) -> None:
    kinds = ("python_function", "cpu_op", "cpu_op", "python_function")
    names = (
        "nn.Module: A_0",
        "aten::mm",
        "autograd::engine::evaluate_function: X",
        "nn.Module: B_0",
    )
    events = [host("python_function", "nn.Module: A_0", 0, 1)]
    for start, dur, tid, what in spans:
        events.append(host(kinds[what], names[what], start, dur, tid=tid))
    for number, at in enumerate(launches, start=1):
        events.append(host("cuda_runtime", "cudaLaunchKernel", at, 1, correlation=number))
        events.append(device(GEMM, 200 + 10 * number, number, correlation=number))
    result = ta.modules(trace(events))
    modules = result.modules
    assert modules["self_device_ns"].sum() == sum(range(len(launches) + 1))
    assert modules["self_host_ns"].sum() == result.host_ns
    top = modules.filter(modules["parent"].is_null())
    for of in ("host", "device"):
        assert top[f"total_{of}_ns"].sum() == modules[f"self_{of}_ns"].sum()
        if modules[f"total_{of}_ns"].count():
            parts = [modules[f"{name}_{of}_ns"] for name in ("forward", "backward", "recomputed")]
            assert sum(parts[1:], parts[0]).to_list() == modules[f"total_{of}_ns"].to_list()


# --- real recordings -------------------------------------------------------------------------


def _events(path: Path) -> list[Event]:
    events: list[Event] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("ph") == "X"]


def _ns(event: Event) -> tuple[int, int]:
    start, end = float(event["ts"]), float(event["ts"]) + float(event["dur"])
    return round(start * 1000), round(end * 1000)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", ["mi300_rank0of8_rccl", "b200_rank0of8_eager", "h100_qwen_inference"]
)
def test_device_time_of_modules_and_outside_is_that_of_all_kernels(shared: Path, name: str) -> None:
    path = shared / f"data/chrome/kineto/{name}.json.gz"
    kinds = ("kernel", "gpu_memcpy", "gpu_memset")
    all_ns = sum(
        round(float(event["dur"]) * 1000) for event in _events(path) if event.get("cat") in kinds
    )
    result = ta.modules(path)
    assert result.modules["self_device_ns"].sum() == pytest.approx(all_ns, abs=2)
    assert result.modules["self_host_ns"].sum() == result.host_ns


@pytest.mark.matrix
def test_phases_of_the_outermost_module_of_a_real_recording(shared: Path) -> None:
    """Forward: launched in its frame. Backward: in a node of one of the operators in its frame."""
    path = shared / "data/chrome/kineto/mi300_rank0of8_rccl.json.gz"
    events = _events(path)
    root = "DistributedDataParallel_0"
    frames = [event for event in events if event["name"] == f"nn.Module: {root}"]
    spans = [(event["tid"], *_ns(event)) for event in frames]

    def inside(event: Event) -> bool:
        at = _ns(event)[0]
        return any(tid == event["tid"] and since <= at < until for tid, since, until in spans)

    known = {
        event["args"]["Sequence number"]
        for event in events
        if event["args"].get("Fwd thread id") == 0
        and "Sequence number" in event["args"]
        and inside(event)
    }
    nodes = [
        (event["tid"], *_ns(event))
        for event in events
        if event["name"].startswith("autograd::engine::evaluate_function")
        and event["args"].get("Sequence number") in known
        and event["args"]["Fwd thread id"] == 1
    ]
    calls = {
        event["args"]["correlation"]: event
        for event in events
        if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]
    }
    forward_ns = backward_ns = 0
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        call = calls.get(event["args"].get("correlation"))
        if call is None:
            continue
        start, dur = _ns(call)[0], round(float(event["dur"]) * 1000)
        if inside(call):
            forward_ns += dur
        elif any(t == call["tid"] and since <= start < until for t, since, until in nodes):
            backward_ns += dur
    row = ta.modules(path).modules.row(0, named=True)
    assert row["module"] == root
    assert forward_ns > 0
    assert backward_ns > 0
    assert row["forward_device_ns"] == pytest.approx(forward_ns, abs=2)
    both = row["backward_device_ns"] + row["recomputed_device_ns"]
    assert both == pytest.approx(backward_ns, rel=1e-3)


def test_checkpointed_modules_of_a_real_recording(shared: Path) -> None:
    modules = ta.modules(shared / "data/chrome/kineto/mi300_rank0of8_rccl.json.gz").modules
    again = modules.filter(modules["recomputed_calls"] > 0)
    assert again["module"].str.contains("CheckpointWrapper").all()
    assert (again["recomputed_calls"] == again["calls"]).all()
    assert (again["total_device_ns"] > 0).all()


def test_compiled_regions_are_modules(tmp_path: Path) -> None:
    names = ["Torch-Compiled Region: 0/0", "## Call CompiledFxGraph abc ##", "aten::mm"]
    slices = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 100 - 2 * at}
        for at, (cat, name) in enumerate(
            zip(["cpu_op", "user_annotation", "cpu_op"], names, strict=True)
        )
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(slices))
    rows = ta.modules(path).modules
    assert [name for name in names if rows["module"].str.contains(name, literal=True).any()] == (
        names[:2]
    )


@pytest.mark.parametrize("again", [False, True], ids=["backward graph", "recomputed graph"])
def test_a_compiled_graph_of_the_backward_pass_is_no_module(tmp_path: Path, *, again: bool) -> None:
    region, graph = "Torch-Compiled Region: 0/0", "## Call CompiledFxGraph {} ##"
    node = "autograd::engine::evaluate_function: CompiledFunctionBackward"
    slices = [
        (region, 0, 100, None), ("CompiledFunction", 5, 90, 7), (graph.format("abc"), 10, 80, None),
        (node, 200, 150, 7), ("CompiledFunctionBackward", 205, 140, 7),
        (graph.format("abc" if again else "xyz"), 210, 130, None),
    ]  # fmt: skip
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur,
         "args": {} if number is None else
         {"Sequence number": number, "Fwd thread id": int(ts > 150)}}
        for name, ts, dur, number in slices
    ]  # fmt: skip
    path = tmp_path / "a.json"
    path.write_text(json.dumps(events))
    rows = ta.modules(path).modules.filter(module=region).to_dicts()
    assert [(row["forward_host_ns"], row["recomputed_calls"]) for row in rows] == [(100_000, 0)]
    backward = 150_000 - 130_000 * again
    assert rows[0]["backward_host_ns"] == backward


@pytest.mark.matrix
def test_modules_are_in_reports(tmp_path: Path) -> None:
    text = [
        {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": 0, "dur": 100}
        for cat, name in (("python_function", "nn.Module: Linear_0"), ("cpu_op", "aten::mm"))
    ]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(text))
    assert "modules" in [section.key for section in ta.report(path).sections]
    path.write_text(json.dumps(text[1:]))
    assert "modules" not in [section.key for section in ta.report(path).sections]


def test_flops_have_a_unit_and_the_legend_names_what_is_outside(recording: Path) -> None:
    result = ta.modules(recording)
    assert "FLOP]" in result.table()
    [flame] = result.view().flames()
    groups = flame.frame.filter(name="(outside modules)")["group"].to_list()
    assert groups
    assert None not in groups
