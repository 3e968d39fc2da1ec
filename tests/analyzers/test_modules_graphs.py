"""Modules of kernels that CUDA graphs launch: named by the kernels, or matched with eager steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from module_traces import Event, module, op, slice_, write

import traceanalyzer as ta
from traceanalyzer.errors import MissingData

#: Kernels of one step, in order: name, module, whether in the backward pass, us.
STEP = (
    ("gemm_a", "layers.0.attention", False, 5),
    ("softmax", "layers.0.attention", False, 3),
    ("gemm_b", "layers.0.mlp", False, 11),
    ("gemm_a", "layers.1.attention", False, 7),
    ("gemm_b", "layers.1.mlp", False, 13),
    ("loss", None, False, 1),
    ("gemm_b_bwd", "layers.1.mlp", True, 26),
    ("gemm_a_bwd", "layers.1.attention", True, 14),
)


def work(name: str, at: int, dur: int, correlation: int, **args: Any) -> Event:
    kernel = slice_("kernel", name, 7, at, at + dur, correlation=correlation, device=0, **args)
    return {**kernel, "pid": 0}


def replay(at: int, correlation: int, *, named: bool) -> list[Event]:
    """One graph launch, with the kernels of a step."""
    call = slice_("cuda_runtime", "cudaGraphLaunch", 1, at, at + 4, correlation=correlation)
    events, start = [op("replay", 1, at - 1, at + 5), call], at + 100
    for node, (name, fqn, backward, dur) in enumerate(STEP):
        args: dict[str, Any] = {"graph node id": node, "graph id": 1}
        if named and fqn:
            args |= {"module_fqn": fqn} | ({"autograd_phase": "backward"} if backward else {})
        events.append(work(name, start, dur, correlation, **args))
        start += dur + 1
    return events


def eager(at: int, correlation: int) -> list[Event]:
    """The forward part of a step, launched kernel by kernel in frames of modules."""
    events, start = [module("Model_0", 1, at, at + 100)], at + 100
    for number, (name, fqn, backward, dur) in enumerate(STEP):
        begin = at + 10 * number
        if backward:
            continue
        if fqn:
            events.append(module(fqn, 1, begin, begin + 8))
        key = correlation + number
        events += [
            op(f"aten::{name}", 1, begin + 1, begin + 7),
            slice_("cuda_runtime", "cudaLaunchKernel", 1, begin + 2, begin + 4, correlation=key),
            work(name, start, dur, key),
        ]
        start += dur + 1
    return events


def device_ns(result: Any, column: str = "self_device_ns") -> dict[str | None, int]:
    rows = result.modules.select("module", column).iter_rows()
    return {name: value // 1000 for name, value in rows if value}


NODES: dict[int, list[Any]] = {
    node: [{"module_fqn": fqn, **({"autograd_phase": "backward"} if backward else {})}, "step"]
    for node, (_, fqn, backward, _) in enumerate(STEP)
    if fqn
}


@pytest.mark.parametrize("of_graph", [0, 1 << 32])
@pytest.mark.parametrize("folder", ["", "step_10"])
def test_annotations_in_a_separate_file(tmp_path: Path, of_graph: int, folder: str) -> None:
    """Beside the trace or above it, by node or by graph and node."""
    nodes = {of_graph | node: annotations for node, annotations in NODES.items()}
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / "kernel_annotations_rank0_7.json").write_text(json.dumps(nodes))
    (tmp_path / "kernel_annotations_rank1_7.json").write_text("{}")
    alone = write(tmp_path / folder / "rank0.json", replay(0, 1, named=False))
    inside = write(tmp_path / "rank2.json", replay(0, 1, named=True))
    assert device_ns(ta.modules(alone)) == device_ns(ta.modules(inside))


@pytest.mark.parametrize("text", ["[1", "[]", '{"x": 1}', '{"1": 2}', '{"x": [{"a": 1}]}', ""])
def test_damaged_annotations_are_a_notice(tmp_path: Path, text: str) -> None:
    (tmp_path / "kernel_annotations_rank0.json").write_text(text)
    path = write(tmp_path / "rank0.json", replay(0, 1, named=False))
    trace = ta.read(path, columns=("args",))
    assert trace.issues["code"].to_list() == ["annotations-unreadable"]
    assert trace.events["args"].str.contains("module_fqn").sum() == 0


def test_kernels_name_their_module(tmp_path: Path) -> None:
    events = [*replay(0, 1, named=True), *replay(1000, 2, named=True)]
    result = ta.modules(write(tmp_path / "rank0.json", events))
    assert device_ns(result) == {
        "layers.0/attention": 2 * 8,
        "layers.0/mlp": 2 * 11,
        "layers.1/attention": 2 * (7 + 14),
        "layers.1/mlp": 2 * (13 + 26),
        None: 2 * 1,
    }
    assert device_ns(result, "backward_device_ns") == {
        "layers.1": 2 * 40, "layers.1/attention": 2 * 14, "layers.1/mlp": 2 * 26,
    }  # fmt: skip
    assert device_ns(result, "total_device_ns")["layers.1"] == 2 * 60
    assert result.named_ns == 2 * 79_000
    assert (result.replayed_ns, result.matched_ns) == (2 * 80_000, 0)
    assert dict(result.modules.select("name", "class").drop_nulls().iter_rows()) == {
        "layers.0": "layers", "layers.1": "layers", "attention": "attention", "mlp": "mlp",
    }  # fmt: skip


def test_kernels_without_a_name_are_those_of_eager_steps(tmp_path: Path) -> None:
    events = [*eager(0, 100), *replay(1000, 1, named=False), *replay(2000, 2, named=False)]
    result = ta.modules(write(tmp_path / "rank0.json", events))
    # the backward pass ran in no eager step: it stays at the launch of the graph
    assert device_ns(result) == {
        "Model_0": 3 * 1,
        "Model_0/layers.0.attention": 3 * 8,
        "Model_0/layers.0.mlp": 3 * 11,
        "Model_0/layers.1.attention": 3 * 7,
        "Model_0/layers.1.mlp": 3 * 13,
        None: 2 * 40,
    }
    assert (result.replayed_ns, result.matched_ns, result.named_ns) == (160_000, 80_000, 0)
    assert result.modules["mean_device_ns"].null_count() == result.modules.height
    assert result.modules["self_device_ns"].sum() == result.device_ns


def test_an_eager_trace_next_to_it_has_the_modules(tmp_path: Path) -> None:
    replays = write(tmp_path / "replay.json", replay(0, 1, named=False), rank=0)
    alone = write(tmp_path / "eager.json", eager(0, 100), rank=1)
    with pytest.raises(MissingData, match="no modules"):
        ta.modules(replays)
    result = ta.modules([alone, replays])
    assert result.input_notes == ()
    assert device_ns(result)["Model_0/layers.0.mlp"] == 2 * 11
    assert (result.replayed_ns, result.matched_ns) == (80_000, 40_000)


def test_modules_are_cut_at_the_depth(tmp_path: Path) -> None:
    events = [*eager(0, 100), *replay(1000, 1, named=False)]
    result = ta.modules(write(tmp_path / "rank0.json", events), depth=1)
    assert device_ns(result) == {"Model_0": 2 * 40, None: 40}


def test_a_kernel_of_two_modules_is_not_guessed(tmp_path: Path) -> None:
    twice = [
        *eager(0, 100),
        op("replay", 1, 999, 1005),
        slice_("cuda_runtime", "cudaGraphLaunch", 1, 1000, 1004, correlation=1),
        work("gemm_a", 1100, 5, 1),
    ]
    result = ta.modules(write(tmp_path / "rank0.json", twice))
    assert (result.replayed_ns, result.matched_ns) == (5_000, 0)
    assert device_ns(result)[None] == 5
