"""One rank of a trace lacks what is needed: the others are answered for, and it is named."""

from __future__ import annotations

import pytest
from comm_traces import GEMM, MS, device, host, step, trace

import traceanalyzer as ta
from traceanalyzer.errors import MissingData
from traceanalyzer.run.loop import examine


def worked(rank: int) -> list[dict]:
    """A rank that launches a kernel, in a step."""
    place = {"rank": rank, "pid": 10 + rank}
    return [
        step(1, 0, 10 * MS) | place,
        host("cuda_runtime", "cudaLaunchKernel", MS, MS, correlation=1, **place),
        host("nvtx", "forward", 0, 9 * MS, **place),
        device(GEMM, 3 * MS, 4 * MS, correlation=1, **place),
        device("Memcpy HtoD (Pinned -> Device)", 8 * MS, MS, **place, kind="gpu_memcpy"),
    ]


def idle(rank: int) -> dict:
    """Return a rank with only a system call."""
    return host("osrt", "poll", 0, 10 * MS, rank=rank, pid=10 + rank)


ANALYSES = [
    *(ta.kernels, ta.gpu_idle, ta.launches, ta.overlap),
    *(ta.annotations, ta.transfers, ta.cuda_api, ta.steps),
]


def rows(result: ta.Result) -> list[tuple[str, int]]:
    return [(table.name, table.frame.height) for table in result.tables]


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda function: function.__name__)
def test_rank_without_required_data_is_left_out(analysis):
    both = trace([*worked(0), idle(1)], None, path="node.json")
    alone = trace(worked(0), None, path="node.json")
    result = analysis(both)
    assert rows(result) == rows(analysis(alone))
    lines = [note for note in result.notes if note.startswith("Skipped")]
    assert len(lines) == 1
    assert lines[0].startswith("Skipped: node.json, rank 1: ")


@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda function: function.__name__)
def test_missing_data_on_all_ranks_is_an_error(analysis):
    with pytest.raises(MissingData, match=r"node\.json"):
        analysis(trace([idle(0), idle(1)], None, path="node.json"))


def test_report_names_the_skipped_rank():
    both = trace([*worked(0), idle(1)], None, path="node.json")
    lacking = [note for note in examine(both).results["kernels"].notes if "Skipped" in note]
    assert len(lacking) == 1
    assert lacking[0].startswith("Skipped: node.json, rank 1: ")
