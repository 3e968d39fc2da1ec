"""Modules of kernels that CUDA graphs launch: named by the kernels, or matched with eager steps."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any, Literal

import numpy as np
import polars as pl
import pytest
from module_traces import Event, module, op, slice_, write

import traceanalyzer as ta
from traceanalyzer.analyzers.common import replays
from traceanalyzer.analyzers.modules.result import OUTSIDE
from traceanalyzer.errors import MissingData
from traceanalyzer.render.flamegraph import fill_of_package

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


@pytest.mark.parametrize("key", ["module_fqn", "name", "str"])
def test_annotations_in_a_pickle(tmp_path: Path, key: str) -> None:
    """As PyTorch 2.13 writes them; a text alone, there under ``str``, names a part of the model."""
    shared = {key: "layers.0.mlp"}
    nodes = {(1 << 32) + node: [shared] for node in range(3)} | {(1 << 32) + 3: ["head"]}
    (tmp_path / "kernel_annotations_rank0_fwd_bwd.pkl").write_bytes(pickle.dumps(nodes))
    path = write(tmp_path / "rank0.json", replay(0, 1, named=False))
    assert device_ns(ta.modules(path)) == {
        "layers.0/mlp": 5 + 3 + 11, "head": 7, None: 13 + 1 + 26 + 14,
    }  # fmt: skip


class Call:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.write_text, (Path("called"), "")


@pytest.mark.parametrize(
    "data", [pickle.dumps({1: Call()}), b"\x80\x04}", b"\x80\x04" + b"]" * 9 + b"a" * 8 + b"."]
)
def test_a_pickle_that_is_no_plain_data_is_a_notice(
    data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel_annotations_rank0_x.pkl").write_bytes(data)
    trace = ta.read(write(tmp_path / "r.json", replay(0, 1, named=False)), columns=("args",))
    assert trace.issues["code"].to_list() == ["annotations-unreadable"]
    assert not Path("called").exists()


def test_a_pickled_defaultdict_has_the_remedy(tmp_path: Path) -> None:
    data = pickle.dumps(defaultdict(list, NODES))
    (tmp_path / "kernel_annotations_rank0_x.pkl").write_bytes(data)
    trace = ta.read(write(tmp_path / "r.json", replay(0, 1, named=False)), columns=("args",))
    (detail,) = trace.issues["first"]
    assert "kernel_annotations_rank0_x.pkl" in detail
    assert "dict(annotations)" in detail


@pytest.mark.parametrize(
    ("args", "module"),
    [
        ({"name": "attention"}, "attention"),
        ({"annotation": '[{"module_fqn": "layers.3"}]'}, "layers.3"),
        ({"annotation": '[{"str": "mlp"}]'}, "mlp"),
    ],
)
def test_the_name_of_a_graph_node_is_its_module(
    args: dict[str, str], module: str, tmp_path: Path
) -> None:
    events = replay(0, 1, named=False)
    events[2]["args"] |= args
    assert device_ns(ta.modules(write(tmp_path / "r.json", events))) == {module: 5, None: 75}


@pytest.mark.parametrize("text", ["[1", "[]", '{"x": 1}', '{"1": 2}', '{"x": [{"a": 1}]}', ""])
def test_damaged_annotations_are_a_notice(tmp_path: Path, text: str) -> None:
    (tmp_path / "kernel_annotations_rank0.json").write_text(text)
    path = write(tmp_path / "rank0.json", replay(0, 1, named=False))
    trace = ta.read(path, columns=("args",))
    assert trace.issues["code"].to_list() == ["annotations-unreadable"]
    assert trace.events["args"].str.contains("module_fqn").sum() == 0


MODEL = "/home/me/model.py"
LOOP = f'  File "{MODEL}", line 42, in forward\n    x = self.norm(x)\n        ^^^^\n'
PASSED = '  File "/x/site-packages/torch/nn/functional.py", line 9, in relu\n    return y\n'


def frame(*lines: int) -> list[str]:
    """Stacks of a fused kernel, as Inductor records them."""
    return [f'{LOOP}  File "{MODEL}", line {n}, in norm\n    y\n{PASSED}' for n in lines]


STACKS = {"gemm_a": frame(27), "softmax": frame(28, 27), "gemm_b": frame(29)}
CODE = {
    "me/model.py(27): norm": 5 + 7,
    "me/model.py(27, 28): norm": 3,
    "me/model.py(29): norm": 11 + 13,
    None: 1 + 26 + 14,
}


def groups_of(result: ta.Kernels) -> list[str | None]:
    assert result.groups is not None
    return result.groups[result.by or ""].to_list()


def code_us(path: Path) -> dict[str | None, int]:
    """Time by recorded lines."""
    result = ta.kernels(path, by="code")
    assert result.groups is not None
    times = {name: ns // 1000 for name, ns in result.groups.select("code", "total_ns").iter_rows()}
    assert result.named_ns // 1000 == sum(us for name, us in times.items() if name)
    return times


def test_kernels_have_the_lines_that_they_were_compiled_of(tmp_path: Path) -> None:
    """In their arguments, as PyTorch adds them to a trace."""
    events = replay(0, 1, named=False)
    for number, event in enumerate(events):
        event["uid"] = number
        if stack := STACKS.get(event["name"]):
            event["args"]["stack"] = stack
    path = write(tmp_path / "rank0.json", events)
    assert code_us(path) == CODE
    modules = ta.modules([path, write(tmp_path / "m.json", eager(0, 100), rank=1)])
    times = {name: ns // 1000 for name, ns, *_ in modules.functions.iter_rows()}
    assert times == {name: us for name, us in CODE.items() if name}
    assert "args" in ta.read(path, args_with_modules="lines").events.columns


LOG = """V1129 16:33 torch/_inductor/compile_fx.py:1632] {{"artifact": {{"name": \
"inductor_provenance_tracking_kernel_stack_traces", "encoding": "json"}}, "rank": 0}}
\t{}
V1129 16:33 torch/_dynamo/utils.py:2389] {{"chromium_event": {{}}}}
\t{{"name": "x"}}
"""


@pytest.mark.parametrize("name", ["kernel_information", "x_kernel_stack_traces_16", "log"])
def test_lines_of_kernels_in_a_separate_file(name: str, tmp_path: Path) -> None:
    """By the name of the kernel, if all its calls have the same lines."""
    calls = {f"{kernel}:{at}": stacks for at, (kernel, stacks) in enumerate(STACKS.items())}
    calls |= {"loss:7": frame(30), "loss:8": frame(31), "extern_kernels.mm:9": frame(32)}
    calls["softmax:10"] = calls["softmax:1"][::-1]
    file, text = f"{name}.json", json.dumps(calls)
    if name == "log":
        file, text = "dedicated_log_torch_trace_rank_0_x.log", LOG.format(text)
    elif name == "kernel_information":
        text = json.dumps({call: {"stack_traces": stacks} for call, stacks in calls.items()})
    (tmp_path / file).write_text(text)
    path = write(tmp_path / "rank0.json", replay(0, 1, named=False))
    assert code_us(path) == CODE
    assert "args" in ta.read(path, args_with_modules="lines").events.columns


def lines_of(folder: Path, graphs: Sequence[dict[str, int]], kernels: str) -> list[int | None]:
    """Line of each kernel, given those of the calls of each graph."""
    for at, graph in enumerate(graphs):
        text = json.dumps({call: frame(line) for call, line in graph.items()})
        (folder / f"kernel_stack_traces_{at}.json").write_text(text)
    path = write(
        folder / "rank0.json",
        [work(name, 10 * at, 5, at) for at, name in enumerate(kernels.split())],
    )
    events = ta.read(path, columns=("args",)).events
    lines = events["args"].str.extract(r"line (\d+), in norm").cast(int)
    return lines.to_list()


def test_products_of_libraries_have_the_lines_between_their_neighbors(tmp_path: Path) -> None:
    """Only if all graphs have the same calls there, one for each kernel or a single one."""
    mm = "extern_kernels.mm"
    first = {"p:1": 1, f"{mm}:2": 2, "q:3": 3, f"{mm}:10": 4, f"{mm}:9": 5, "r:11": 6}
    first[f"{mm}:12"] = 7
    assert lines_of(tmp_path, [first], "g p g q g h r g p g q g h r g eager") == [
        None, 1, 2, 3, 5, 4, 6, 7, 1, 2, 3, 5, 4, 6, None, None,
    ]  # fmt: skip
    split = "p g sum q g h i r g eager p g sum q g h r"
    assert lines_of(tmp_path, [first], split) == [
        1, 2, 2, 3, 5, None, 4, 6, 7, None, 1, 2, 2, 3, 5, 4, 6,
    ]  # fmt: skip
    other = {"p:1": 1, f"{mm}:2": 8, "q:3": 3}
    assert lines_of(tmp_path, [first, other], "p g q g h r") == [1, None, 3, 5, 4, 6]


def test_lines_that_launched_the_nodes_of_a_graph(tmp_path: Path) -> None:
    stacks = {
        str((1 << 32) + node): f"{MODEL}:{27 + node}:norm\n{MODEL}:42:forward"
        for node, (kernel, *_) in enumerate(STEP)
        if kernel in STACKS
    }
    (tmp_path / "py_stacks.json.gz").write_bytes(gzip.compress(json.dumps(stacks).encode()))
    (tmp_path / "rank1_py_stacks.json").write_text("[")
    path = write(tmp_path / "rank0.json", replay(0, 1, named=False))
    assert code_us(path) == {
        **{f"me/model.py({27 + node}): norm": us for node, us in enumerate((5, 3, 11, 7, 13))},
        None: 1 + 26 + 14,
    }


def test_kernels_stand_on_the_functions_or_modules_that_they_state(tmp_path: Path) -> None:
    """Of a fused kernel those that all its stacks begin with; in flame graphs of device work."""
    events = replay(0, 1, named=True)
    for event in events:
        if stack := STACKS.get(event["name"]):
            event["args"]["stack"] = [LOOP, *stack] if event["name"] == "softmax" else stack
    path = write(tmp_path / "rank0.json", events)
    paths: list[str] = []
    times = []
    boxes = ta.flamegraph(path, kinds="kernel").flame.frame
    for name, parent, ns in boxes.select("name", "parent", "total").iter_rows():
        paths.append(name if parent is None else f"{paths[parent]};{name}")
        times.append(ns // 1000)
    assert dict(zip(paths, times, strict=True)) == {
        "forward": 39,
        "forward;softmax": 3,
        "forward;norm": 36,
        "forward;norm;relu": 36,
        "forward;norm;relu;gemm_a": 12,
        "forward;norm;relu;gemm_b": 24,
        "loss": 1,
        "layers.1": 40,
        "layers.1;mlp": 26,
        "layers.1;mlp;gemm_b_bwd": 26,
        "layers.1;attention": 14,
        "layers.1;attention;gemm_a_bwd": 14,
    }
    whole = ta.read(path, columns=("args",))
    assert ta.flamegraph(whole).functions["name"].to_list() == ["cudaGraphLaunch", "replay"]


def test_operators_by_stack_have_the_code_that_kernels_state(tmp_path: Path) -> None:
    """So many levels of it; the operator that launched the graph has the time without."""
    path = write(tmp_path / "rank0.json", replay(0, 1, named=True))
    expected = {
        1: {"attention": 29, "mlp": 50},
        2: {
            "attention; layers.0": 8,
            "mlp; layers.0": 11,
            "attention; layers.1": 21,
            "mlp; layers.1": 39,
        },
    }
    for levels, times in expected.items():
        result = ta.operators(path, group_by_stack=levels)
        rows = result.operators.filter(name="replay")
        for column in ("self_device_ns", "total_device_ns"):
            of_code = zip(rows["stack"], rows[column] // 1000, strict=True)
            assert dict(of_code) == times | {None: 1}
        assert result.operators["self_device_ns"].sum() == result.device_ns == 80_000


def test_kernels_by_module_are_those_of_modules(tmp_path: Path) -> None:
    """Named by the kernels, or of an eager step."""
    for events in (replay(0, 1, named=True), [*eager(0, 100), *replay(1000, 1, named=False)]):
        path = write(tmp_path / "rank0.json", events)
        groups = ta.kernels(path, by="module").groups
        assert groups is not None
        times = {name: ns // 1000 for name, ns in groups.select("module", "total_ns").iter_rows()}
        assert times == device_ns(ta.modules(path))


def test_a_finding_has_the_lines_of_its_kernel(tmp_path: Path) -> None:
    events = []
    for number in range(4):
        at = 1000 * number
        call = slice_("cuda_runtime", "cuLaunchKernel", 1, at, at + 5, correlation=number + 1)
        events += [slice_("user_annotation", f"ProfilerStep#{number}", 1, at, at + 1000), call]
        events.append(work("triton_poi_fused_x", at + 10, 900, number + 1, stack=frame(27)))
    path = write(tmp_path / "rank0.json", [{**e, "uid": n} for n, e in enumerate(events)])
    (title,) = [one.title for one in ta.diagnose(path).findings if one.id == "one-kernel"]
    assert "norm (me/model.py:27)" in title


INLINE = '{\n"schemaVersion": 1,\n"cudaGraphInlineAnnotated": true,\n"traceEvents": '


@pytest.mark.parametrize(
    "start",
    ["", INLINE, '{"schemaVersion": 1, "traceEvents": ', '{\n "schemaVersion": 1, "traceEvents":'],
)
def test_a_finding_has_the_module_of_its_kernel(start: str, tmp_path: Path) -> None:
    """That of all layers, from a file beside the trace, or from a trace with a sign of it."""
    nodes = {node: [{"module_fqn": f"layers.{node}.mlp.up"}] for node in range(4)}
    if not start:
        (tmp_path / "kernel_annotations_rank0.json").write_text(json.dumps(nodes))
    events = []
    for number in range(4):
        at, key = 1000 * number, number + 1
        call = slice_("cuda_runtime", "cudaGraphLaunch", 1, at, at + 5, correlation=key)
        events += [slice_("user_annotation", f"ProfilerStep#{number}", 1, at, at + 1000), call]
        for node in range(4):
            ids: dict[str, Any] = {"graph node id": node, "graph id": 1}
            args = ids | (nodes[node][0] if start else {})
            events.append(work("my_kernel", at + 10 + 240 * node, 235, key, **args))
    path = write(tmp_path / "rank0.json", events)
    if start:
        path.write_text(f"{start}{json.dumps(events)}}}")
    found = ta.diagnose(path).findings
    (title,) = [one.title for one in found if one.id == "one-kernel"]
    assert "layers.*.mlp.up" in title


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


@pytest.mark.parametrize("depth", [None, 1])
def test_a_module_that_launches_all_graphs_is_not_the_longest(
    depth: int | None, tmp_path: Path
) -> None:
    """Its kernels may be of any module in it, unless modules in it are not asked for."""
    path = write(tmp_path / "rank0.json", [module("Model_0", 1, 990, 1010),
                                           *replay(1000, 1, named=False)])  # fmt: skip
    result = ta.modules(path, depth=depth)
    assert device_ns(result) == {"Model_0": 80}
    assert device_ns(result, "graph_device_ns") == ({"Model_0": 80} if depth is None else {})
    assert ("has the highest" in result.verdict) == (depth is not None)
    assert ("graphs that Model_0 launches" in result.verdict) == (depth is None)


def test_the_longest_module_is_that_of_known_kernels(tmp_path: Path) -> None:
    """Eager kernels are longer than the graph of the model: one of them is known."""
    graph = slice_("cuda_runtime", "cudaGraphLaunch", 1, 1000, 1004, correlation=1)
    events = [*eager(0, 100), module("Model_0", 1, 990, 1010), graph, work("other", 1100, 12, 1)]
    result = ta.modules(write(tmp_path / "rank0.json", events))
    assert device_ns(result, "graph_device_ns") == {"Model_0": 12}
    assert result.verdict.partition(": ")[2].partition("/")[2].startswith("layers.1.mlp has")


def test_an_eager_trace_next_to_it_has_the_modules(tmp_path: Path) -> None:
    replays = write(tmp_path / "replay.json", replay(0, 1, named=False), rank=0)
    alone = write(tmp_path / "eager.json", eager(0, 100), rank=1)
    with pytest.raises(MissingData, match="no modules"):
        ta.modules(replays)
    result = ta.modules([alone, replays])
    assert result.input_notes == ()
    assert device_ns(result)["Model_0/layers.0.mlp"] == 2 * 11
    assert (result.replayed_ns, result.matched_ns) == (80_000, 40_000)


@pytest.mark.parametrize("by", ["operator", "module", "code"])
def test_a_file_of_replays_alone_has_kernels_of_no_module_or_operator(
    by: Literal["operator", "module", "code"], tmp_path: Path
) -> None:
    """They have those of an eager trace beside it."""
    step = slice_("user_annotation", "ProfilerStep#0", 1, -2, 300)
    path = write(tmp_path / "replay.json", [step, *replay(0, 1, named=False)[1:]])
    (alone,) = groups_of(ta.kernels(path, by=by))
    assert alone == {"operator": "cudaGraphLaunch", "module": None, "code": None}[by]
    eager_path = write(tmp_path / "eager.json", eager(0, 100), rank=1)
    if by != "code":
        assert len(groups_of(ta.kernels([path, eager_path], by=by))) > 3
        assert ta.kernels([path, eager_path], by=by).replayed_matched == 6


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


#: Kernels of one of several equal layers: name and module in the layer, us.
LAYER = (("norm", "norm", 2), ("gemm", "attention", 8), ("gemm", "mlp", 15), ("silu", "mlp", 1))


def layers(n: int) -> list[tuple[str, str | None, int]]:
    of_layers = [(name, f"layers_{at}/{part}", us) for at in range(n) for name, part, us in LAYER]
    return [("embedding", "embedding", 3), *of_layers, ("head", "head", 20)]


def launched(kernels: Sequence[tuple[str, str | None, int]], at: int, corr: int) -> list[Event]:
    """A step without replay: each kernel in the frames of its modules."""
    events, start = [], at + 10 * len(kernels)
    for number, (name, path, dur) in enumerate(kernels):
        begin, key = at + 10 * number, corr + number
        frames = path.split("/") if path else []
        events += [module(one, 1, begin + i, begin + 9 - i) for i, one in enumerate(frames)]
        call = slice_("cuda_runtime", "cudaLaunchKernel", 1, begin + 4, begin + 5, correlation=key)
        events += [op(f"aten::{name}", 1, begin + 3, begin + 6), call, work(name, start, dur, key)]
        start += dur + 1
    return events


def of_graph(kernels: Sequence[tuple[str, str | None, int]], at: int, corr: int) -> list[Event]:
    call = slice_("cuda_runtime", "cudaGraphLaunch", 1, at, at + 4, correlation=corr)
    events, start = [op("replay", 1, at - 1, at + 5), call], at + 100
    for node, (name, _, dur) in enumerate(kernels):
        events.append(work(name, start, dur, corr, **{"graph node id": node, "graph id": 1}))
        start += dur + 1
    return events


def of_modules(kernels: Sequence[tuple[str, str | None, int]], times: int) -> dict[str | None, int]:
    sums: dict[str | None, int] = {}
    for _, path, us in kernels:
        sums[path] = sums.get(path, 0) + times * us
    return sums


@pytest.mark.parametrize("n_layers", [1, 2, 9])
def test_equal_layers_have_the_modules_of_the_whole_graph_in_order(
    n_layers: int, tmp_path: Path
) -> None:
    """Two warm-up steps, of which one kernel a layer is another one than in the graph."""
    kernels = layers(n_layers)
    warm_up = [("other" if one[0] == "silu" else one[0], *one[1:]) for one in kernels]
    both = [("before", None, 4), *warm_up, ("loss", None, 4)] * 2
    eager_path = write(tmp_path / "eager.json", launched(both, 0, 1))
    graph_path = write(tmp_path / "graph.json", of_graph([*kernels, ("adam", None, 6)], 0, 1))
    per_module = of_modules(kernels, 3)
    for at in range(n_layers):  # silu is unknown: of the graph, not of the warm-up
        per_module[f"layers_{at}/mlp"] -= 1
    outside = {None: 16 + n_layers + 6}
    assert device_ns(ta.modules([eager_path, graph_path])) == per_module | outside


def test_a_graph_without_the_ends_of_a_step_has_the_modules_of_all_warm_up_steps(
    tmp_path: Path,
) -> None:
    """The graph has no kernel only once: each third of the warm-up is a repeat."""
    eager_path = write(tmp_path / "eager.json", launched(layers(4) * 3, 0, 1))
    graph_path = write(tmp_path / "graph.json", of_graph(layers(4)[1:-1], 0, 1))
    expected = of_modules(layers(4), 3)
    for name, us in of_modules(layers(4)[1:-1], 1).items():
        expected[name] += us
    assert device_ns(ta.modules([eager_path, graph_path])) == expected


def test_kernels_in_another_order_are_of_another_program(tmp_path: Path) -> None:
    """The other graph has each kernel as often."""
    kernels = [(f"kernel_{n}", f"layers_{at}", 5) for at in range(2) for n in range(20)]
    shuffled = [kernels[at] for at in np.random.default_rng(7).permutation(40)]
    eager_path = write(tmp_path / "eager.json", launched(kernels, 0, 1))
    for graph, matched in ((kernels, 40), (shuffled, 0)):
        graph_path = write(tmp_path / "graph.json", of_graph(graph, 0, 1))
        result = ta.modules([eager_path, graph_path])
        assert (result.replayed_ns, result.matched_ns) == (40 * 5_000, matched * 5_000)


def test_many_distinct_graphs_are_compared_in_linear_time() -> None:
    """To compare each kernel of 1,000 graphs with each of a step takes minutes."""
    random, names = np.random.default_rng(7), [*"abcde"] * 100

    def sequence(number: int, names: list[str]) -> pl.DataFrame:
        same = pl.Series([number] * len(names), dtype=pl.UInt64)
        columns = dict.fromkeys(replays.CONTEXTS[:-1], same)
        frame = pl.DataFrame(columns | {"names_0": pl.Series(names).hash()})
        return frame.with_columns(position=pl.int_range(pl.len()))

    def changed() -> list[str]:
        at = random.integers(0, 500, 2)
        return ["other" if i in at else name for i, name in enumerate(names)]

    graphs = pl.concat([sequence(number, changed()) for number in range(1_000)])
    eager = sequence(1_000, names).with_columns(to=pl.int_range(500) // 5)
    began = process_time()
    found = replays.resolved(graphs, [replays.known(eager, ["to"])], ["to"])
    assert process_time() - began < 10
    assert found.height > 0.5 * graphs.height


def test_a_graph_of_one_of_several_equal_layers_is_not_guessed(tmp_path: Path) -> None:
    eager_path = write(tmp_path / "eager.json", launched(layers(3), 0, 1))
    graph_path = write(tmp_path / "graph.json", of_graph(layers(1)[1:-1], 0, 1))
    assert device_ns(ta.modules([eager_path, graph_path])) == of_modules(layers(3), 1) | {None: 26}


def test_modules_and_kernels_have_the_same_code(tmp_path: Path) -> None:
    """Also of graphs and of the backward pass, whose thread runs no function."""
    kernels = [("embedding", "model.py(3): embed", 3), ("gemm", "model.py(9): mlp", 8)]
    frames = [
        {**one, "name": one["name"].removeprefix("nn.Module: ")} if "args" in one else one
        for one in launched(kernels, 0, 1)
    ]
    sequence = {"Sequence number": 7, "Fwd thread id": 0}
    forward = next(one for one in frames if one["name"] == "aten::gemm")
    forward["args"] = forward.get("args", {}) | sequence
    node = op("GemmBackward0", 2, 500, 520)
    node["args"] = {"Sequence number": 7, "Fwd thread id": 1}
    call = slice_("cuda_runtime", "cudaLaunchKernel", 2, 505, 506, correlation=90)
    backward = [node, call, work("gemm_bwd", 600, 30, 90)]
    eager_path = write(tmp_path / "eager.json", [module("Model_0", 1, 0, 40), *frames, *backward])
    graph_path = write(tmp_path / "graph.json", of_graph(kernels, 0, 1))
    both = [eager_path, graph_path]
    expected = {"model.py(9): mlp": 2 * 8 + 30, "model.py(3): embed": 2 * 3}
    by_code = ta.kernels(both, by="code").families.group_by("code").agg(pl.col("total_ns").sum())
    assert dict(by_code.rows()) == {name: 1000 * us for name, us in expected.items()}
    functions = ta.modules(both).functions
    assert dict(functions.select("function", "device_ns").rows()) == dict(by_code.rows())
    of_mlp = functions.filter(function="model.py(9): mlp")
    assert of_mlp["backward_device_ns"].to_list() == [30_000]


def test_stacks_in_arguments_of_operators_are_code(tmp_path: Path) -> None:
    """As PyTorch 1.8 wrote them: the innermost function first."""
    stack = "/x/site-packages/torch/nn/f.py(2): linear;net.py(4): forward;train.py(9): <module>"
    events = launched([("gemm", None, 8), ("loss", None, 2)], 0, 1)
    events[0]["args"] = {"Call stack": stack}
    path = write(tmp_path / "r.json", events)
    rows = ta.kernels(path, by="code").families.select("code", "total_ns").rows()
    assert sorted(rows, key=lambda row: row[1]) == [(None, 2000), ("net.py(4): forward", 8000)]
    by_stack = ta.operators(path, group_by_stack=2).operators.filter(name="aten::gemm")
    assert by_stack["stack"].to_list() == [
        "/x/site-packages/torch/nn/f.py(2): linear; net.py(4): forward"
    ]


def test_flame_graphs_of_modules_have_paths_and_colours_apart(tmp_path: Path) -> None:
    path = write(tmp_path / "r.json", [*eager(0, 100), *replay(1000, 1, named=True)])
    (flame,) = ta.modules(path).view().flames()
    places = dict(flame.frame.drop_nulls("place").select("place", "name").iter_rows())
    assert places["layers.0/attention"] == "attention"
    assert fill_of_package(OUTSIDE, own_code=False) == fill_of_package(None, own_code=False)
