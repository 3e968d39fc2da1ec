"""Modules from the ``Module Hierarchy`` of operators: a real recording, and written operators."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from module_traces import write

import traceanalyzer as ta
from traceanalyzer.run.loop import examine

PATH = Path(__file__).parents[2] / "fixtures/torchscript/training.json.gz"
STEPS = 2
#: The layers of the model in the order of their calls.
LAYERS = [
    *(f"Net/first(Block)/fc{n}(Linear)" for n in (1, 2)),
    *(f"Net/blocks(Sequential)/{b}(Block)/fc{n}(Linear)" for b in (0, 1) for n in (1, 2)),
    "Net/head(Linear)",
]


def operators() -> list[dict[str, Any]]:
    events = json.loads(gzip.decompress(PATH.read_bytes()))["traceEvents"]
    return sorted((e for e in events if e.get("cat") == "cpu_op"), key=lambda e: e["ts"])


def by_module(result: Any, *columns: str) -> dict[str, Any]:
    return {name: values for name, *values in result.modules.select("module", *columns).rows()}


def test_layers_of_a_real_recording_have_the_time_of_their_operators():
    """The model calls its layers in a known order, whatever hierarchy PyTorch wrote to them."""
    result = by_module(ta.modules(PATH), "calls", "total_host_ns")
    linear = [round(e["dur"] * 1000) for e in operators() if e["name"] == "aten::linear"]
    assert len(linear) == STEPS * len(LAYERS)
    for at, name in enumerate(LAYERS):
        calls, host_ns = result[name]
        assert calls == STEPS
        # a layer is one operator; the first one of a step may have another before it
        assert host_ns == pytest.approx(sum(linear[at :: len(LAYERS)]), rel=0.02, abs=2000)
    forward = sum(round(e["dur"] * 1000) for e in operators() if e["name"] == "forward")
    assert result["Net"] == [STEPS, pytest.approx(forward, abs=100)]
    assert result["Net/blocks(Sequential)/1(Block)"][0] == STEPS


def test_classes_are_those_in_brackets():
    classes = {row["name"]: row["class"] for row in ta.modules(PATH).modules.to_dicts()}
    assert classes["fc1(Linear)"] == "Linear"
    assert classes["blocks(Sequential)"] == "Sequential"
    assert classes["Net"] == "Net"


def test_reports_have_the_same_modules():
    of_report = examine([PATH]).results["modules"]
    assert of_report.modules.equals(ta.modules(PATH).modules)  # type: ignore[attr-defined]


def operator(name: str, ts: float, dur: float, path: str = "", tid: int = 1) -> dict[str, Any]:
    event = {"ph": "X", "cat": "cpu_op", "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": tid}
    return event | {"args": {"External id": 1} | ({"Module Hierarchy": path} if path else {})}


TOP = "TOP(Net)::forward."


def calls(tmp_path: Path, *events: dict[str, Any]) -> dict[str, Any]:
    path = write(tmp_path / "rank0.json", list(events))
    return by_module(ta.modules(path), "calls", "total_host_ns")


def test_calls_end_with_the_method_of_the_model_or_at_another_module(tmp_path):
    result = calls(
        tmp_path,
        operator("forward", 0, 100, TOP),
        operator("aten::linear", 10, 20, f"{TOP}a(Linear)::forward."),
        operator("aten::addmm", 12, 10, f"{TOP}a(Linear)::forward."),
        operator("aten::gelu", 40, 10, f"{TOP}a(Linear)::forward."),
        operator("aten::linear", 60, 10, f"{TOP}b(Linear)::forward."),
        operator("aten::linear", 80, 10, f"{TOP}a(Linear)::forward."),
        operator("forward", 200, 50, TOP),
        operator("aten::linear", 210, 10, f"{TOP}a(Linear)::forward."),
    )
    assert result["Net"] == [2, 150_000]
    assert result["Net/a(Linear)"] == [3, 40_000 + 10_000 + 10_000]
    assert result["Net/b(Linear)"] == [1, 10_000]


def test_other_methods_and_functions_are_no_modules(tmp_path):
    result = calls(
        tmp_path,
        operator("forward", 0, 100, TOP),
        operator("aten::mul", 10, 20, "TOP(Net)::forward.SELF(Net)::scale."),
        operator("aten::relu", 40, 10, "TOP(Net)::forward.a(Act)::forward.relu."),
    )
    assert set(result) == {"Net", "Net/a(Act)", None}
    assert result["Net/a(Act)"] == [1, 10_000]


def test_an_operator_of_an_outer_module_within_one_of_an_inner_module(tmp_path):
    result = calls(
        tmp_path,
        operator("forward", 0, 100, TOP),
        operator("aten::linear", 10, 50, f"{TOP}a(Linear)::forward."),
        operator("aten::detach", 20, 10, TOP),
        operator("aten::addmm", 40, 10, f"{TOP}a(Linear)::forward."),
    )
    assert result["Net/a(Linear)"] == [1, 50_000]


def test_without_a_class_the_model_is_that_of_the_method_around(tmp_path):
    result = calls(
        tmp_path,
        operator("forward", 0, 100, TOP),
        operator("aten::linear", 10, 50, "TOP()::<forward op>.a(Linear)::forward."),
        operator("aten::linear", 200, 50, "TOP()::<forward op>.a(Linear)::forward."),
    )
    assert result["Net/a(Linear)"][0] == result["a(Linear)"][0] == 1


NODE = "autograd::engine::evaluate_function: "


@pytest.mark.parametrize("is_shifted", [False, True])
def test_operators_after_nodes_have_the_hierarchy_recorded_for_them(tmp_path, is_shifted):
    """PyTorch 2.13 numbers hierarchies without the nodes, and operators with them."""
    layer, last = f"{TOP}a(Linear)::forward.", f"{TOP}b(Linear)::forward."
    written = [TOP, layer, "", "", TOP, layer, last]
    if is_shifted:
        written = [TOP, layer, "", TOP, layer, last, ""]
    names = ["forward", "aten::linear", f"{NODE}MmBackward0", "MmBackward0", "forward"]
    names += ["aten::linear", "aten::linear"]
    spans = [(0, 50), (10, 10), (60, 20), (62, 10), (100, 50), (110, 10), (130, 10)]
    events = [
        operator(name, ts, dur, path)
        for name, (ts, dur), path in zip(names, spans, written, strict=True)
    ]
    result = calls(tmp_path, *events)
    assert result["Net"] == [2, 100_000]
    assert result["Net/a(Linear)"] == [2, 20_000]
    assert result["Net/b(Linear)"] == [1, 10_000]


def test_operators_of_the_backward_pass_are_no_calls(tmp_path):
    result = calls(
        tmp_path,
        operator("forward", 0, 100, TOP),
        operator(f"{NODE}torch::autograd::AccumulateGrad", 200, 50),
        operator("aten::detach", 210, 10, TOP),
    )
    assert result["Net"] == [1, 100_000]
    assert pl.DataFrame(result[None]).height == 2


@pytest.mark.parametrize("name", ["no_rank", "a100_rank3of8_sendrecv"])
def test_empty_hierarchies_are_none(name, shared):
    with pytest.raises(ta.MissingData):
        ta.modules(shared / f"data/chrome/kineto/{name}.json.gz")


def test_a_slice_without_a_name_is_no_module(tmp_path):
    nameless = {key: value for key, value in operator("", 5, 3).items() if key != "name"}
    result = calls(
        tmp_path,
        operator("forward", 0, 100, TOP),
        operator("aten::gelu", 40, 10, f"{TOP}a(Linear)::forward."),
        nameless,
        nameless | {"ts": 200},
    )
    assert result["Net/a(Linear)"] == [1, 10_000]
