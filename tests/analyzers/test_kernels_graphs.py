"""Kernels of CUDA graphs: the launch of the graph, its annotation, graphs recorded as a whole."""

from __future__ import annotations

from comm_traces import US, device, host, trace

from traceanalyzer.analyzers.kernels import kernels

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


def test_work_of_a_graph_belongs_to_its_launch() -> None:
    groups = kernels(trace(REPLAY), by="operator").groups
    assert groups is not None
    assert groups.select("operator", "total_ns").rows() == [
        ("cudaGraphLaunch", 50 * US),
        ("aten::index", 10 * US),
    ]


def test_work_of_a_graph_has_the_annotation_of_the_engine() -> None:
    groups = kernels(trace(REPLAY), by="annotation").groups
    assert groups is not None
    assert groups.select("annotation", "total_ns").rows() == [(DECODE, 60 * US)]


def test_whole_graphs_are_named_with_the_option_that_records_their_kernels() -> None:
    (note,) = [
        note
        for note in kernels(trace([device("CUDA graph 7", 0, 10)])).view().notes
        if "graph" in note
    ]
    assert "--cuda-graph-trace=node" in note
    assert not [note for note in kernels(trace(REPLAY)).view().notes if "graph" in note]
