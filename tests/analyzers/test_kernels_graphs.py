"""Kernels of CUDA graphs: the launch of the graph, its annotation, graphs recorded as a whole."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from comm_traces import US, device, host, trace
from wording import check_wording

from traceanalyzer.analyzers.common import replays
from traceanalyzer.analyzers.kernels.compute import kernels

DECODE = "execute_context_0(0)_generation_8(8)"
REPLAY = [
    host("user_annotation", DECODE, 0, 100 * US),
    host("cpu_op", "aten::index", 0, 10 * US),
    host("cuda_runtime", "cudaLaunchKernel", US, 5 * US, correlation=1),
    device("index_kernel", 12 * US, 10 * US, correlation=1),
    host("cuda_runtime", "cudaGraphLaunch", 20 * US, 10 * US, correlation=2),
    device("gemm", 40 * US, 30 * US, correlation=2),
    device("softmax", 70 * US, 20 * US, correlation=2),
]


def test_graph_work_belongs_to_its_launch() -> None:
    groups = kernels(trace(REPLAY), by="operator").groups
    assert groups is not None
    assert groups.select("operator", "total_ns").rows() == [
        ("cudaGraphLaunch", 50 * US),
        ("aten::index", 10 * US),
    ]


def test_graph_work_has_the_engine_annotation() -> None:
    groups = kernels(trace(REPLAY), by="annotation").groups
    assert groups is not None
    assert groups.select("annotation", "total_ns").rows() == [(DECODE, 60 * US)]


def test_whole_graphs_are_noted_with_the_recording_option() -> None:
    (note,) = [
        note
        for note in kernels(trace([device("CUDA graph 7", 0, 10)])).view().notes
        if "graph" in note
    ]
    assert "--cuda-graph-trace=node" in note
    assert not [note for note in kernels(trace(REPLAY)).view().notes if "graph" in note]


def test_graph_work_is_matched_to_operators_of_an_eager_step() -> None:
    eager = [
        host("cpu_op", "aten::linear", 200 * US, 10 * US),
        host("cuda_runtime", "cudaLaunchKernel", 201 * US, 5 * US, correlation=3),
        device("gemm", 220 * US, 5 * US, correlation=3),
    ]
    for inputs in (trace([*REPLAY, *eager]), [trace(REPLAY), trace(eager, 0, path="eager.json")]):
        result = kernels(inputs, by="operator")
        assert result.groups is not None
        assert result.groups.select("operator", "total_ns").rows() == [
            ("aten::linear", 35 * US),
            ("cudaGraphLaunch", 20 * US),
            ("aten::index", 10 * US),
        ]
        assert (result.replayed, result.replayed_matched) == (2, 1)
        check_wording(result.view().notes)


def test_graph_work_is_matched_to_operators_of_its_capture() -> None:
    capture = [host("cuda_runtime", "cudaStreamBeginCapture", 0, US)]
    for n, name in enumerate(("aten::linear", "aten::softmax"), 1):
        capture.append(host("cpu_op", name, 10 * n * US, 9 * US))
        capture.append(
            host("cuda_runtime", "cudaLaunchKernel", 10 * n * US + 1, US, correlation=10 + n)
        )
    capture.append(host("cuda_runtime", "cudaStreamEndCapture", 90 * US, US))
    both = trace([*capture, *[{**row, "ts": row["ts"] + 200 * US} for row in REPLAY]])
    groups = kernels(both, by="operator").groups
    assert groups is not None
    assert groups.select("operator", "total_ns").rows() == [
        ("aten::linear", 30 * US),
        ("aten::softmax", 20 * US),
        ("aten::index", 10 * US),
    ]


@pytest.mark.parametrize(("graphs", "most"), [(40, 3_000_000), (40, 100)])
def test_pairs_of_graphs_and_repeats_are_limited(
    graphs: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replays, "_MOST_PAIRS", most)
    names = np.arange(1, 21, dtype=np.uint64)
    schema = {"context": pl.UInt64, "sequence": pl.UInt64, "position": pl.Int64}
    of_graphs = pl.DataFrame(
        {
            "context": np.tile(names, graphs),
            "sequence": np.repeat(np.arange(1, graphs + 1), names.size),
            "position": np.tile(np.arange(names.size), graphs),
        },
        schema_overrides=schema,
    )
    lane = {"context": np.tile(names, 50), "sequence": 9_999, "position": np.arange(1000)}
    lanes = pl.DataFrame(lane, schema_overrides=schema)
    lanes = lanes.with_columns(operator=pl.format("operator {}", "context"))
    matches = replays._in_order(of_graphs, lanes, ["operator"])
    assert matches.height == (graphs * names.size if most > 100 else 0)
