"""Why communication is exposed: the reasons and their shares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, device, host, trace
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.trace import Trace

FSDP = Path(__file__).parents[2].parent / "shared/data/attribution/fsdp"


def launched(kernel: dict[str, Any], at: int, number: int) -> list[dict[str, Any]]:
    """A kernel with its launch call."""
    call = host("cuda_runtime", "cudaLaunchKernel", at, 1000, correlation=number)
    return [call, {**kernel, "correlation": number, "pid": 1}]


def iteration(collective_at: int, launch_at: int, took: int = 4 * MS, stream: int = 20) -> Trace:
    """10 ms of compute on stream 7, and one reduction."""
    return trace(
        [
            *launched(device(GEMM, MS, 10 * MS), 0, 1),
            *launched(device(ALL_REDUCE, collective_at, took, stream=stream), launch_at, 2),
        ]
    )


def shares(*traces: Trace) -> dict[str, int]:
    rows = ta.overlap(traces).reasons.select("reason", "exposed_ns").iter_rows()
    return dict(rows)


@pytest.mark.parametrize(
    ("one", "reason", "exposed"),
    [
        (iteration(11 * MS, 2 * MS, stream=7), "shared_stream", 4 * MS),
        (iteration(13 * MS, 12 * MS), "launched_late", 4 * MS),
        (iteration(11 * MS, 2 * MS), "after_compute", 4 * MS),
        (iteration(9 * MS, 2 * MS), "other", 2 * MS),  # 2 of its 4 ms overlap with compute
    ],
)
def test_each_reason_is_recognized(one: Trace, reason: str, exposed: int) -> None:
    assert shares(one) == {reason: exposed}
    check_wording(ta.overlap(one).verdict)


def test_streams_of_a_graph_are_no_reason() -> None:
    """The driver chooses them by the edges of the graph: another stream would change nothing."""
    call = host("cuda_runtime", "cudaGraphLaunch", 0, 1000, correlation=1)
    work = [device(GEMM, MS, 10 * MS), device(ALL_REDUCE, 11 * MS, 4 * MS, stream=7)]
    graph = [{**one, "correlation": 1, "pid": 1} for one in work]
    assert shares(trace([call, *graph])) == {"after_compute": 4 * MS}


def test_collectives_of_the_host_expose_no_device_time() -> None:
    gloo = host("user_annotation", "gloo:broadcast", 20 * MS, 9 * MS)
    one = iteration(11 * MS, 2 * MS)
    assert shares(trace([*one.events.iter_rows(named=True), gloo])) == {"after_compute": 4 * MS}


@pytest.mark.matrix
def test_wait_time_is_subtracted_first() -> None:
    """Rank 0 arrives at 11 ms, rank 1 at 14 ms; both leave at 15 ms: 3 ms are wait time."""
    both = [
        trace(
            [
                *launched(device(GEMM, MS, end - MS), 0, 1),
                *launched(device(ALL_REDUCE, end, 15 * MS - end, stream=7), 2 * MS, 2),
            ],
            rank,
        )
        for rank, end in ((0, 11 * MS), (1, 14 * MS))
    ]
    assert shares(*both) == {"waiting": 3 * MS, "shared_stream": 2 * MS}
    assert ta.overlap(both).reasons["rank"].to_list() == [1, None]
    check_wording(ta.overlap(both).verdict)
    result = {
        one.id: one for one in ta.diagnose(both, thresholds="exposed-communication=1%").findings
    }
    rest = result["exposed-communication"]
    assert (rest.cost_ns, result["straggler"].cost_ns) == (MS, 3 * MS)  # per GPU
    check_wording(*rest.evidence, rest.advice, result["straggler"].title)


def test_launch_calls_are_read_from_a_file(tmp_path: Path) -> None:
    """The first read skips launch calls; the second read has them."""
    path = tmp_path / "rank0.json"
    ta.convert(iteration(13 * MS, 12 * MS), path)
    assert set(ta.overlap(path).reasons["reason"]) == {"launched_late"}


def test_small_exposed_communication_has_no_reasons() -> None:
    assert ta.overlap(iteration(11 * MS, 2 * MS, took=MS // 10)).reasons.is_empty()


@pytest.mark.skipif(not FSDP.is_dir(), reason="the shared sets of recordings are not there")
def test_reasons_add_up_to_the_exposed_communication() -> None:
    result = ta.overlap(FSDP)
    assert result.reasons["exposed_ns"].sum() == result.devices["exposed_communication_ns"].sum()
    waits = ta.comm_outliers(FSDP).totals.total_wait_ns
    assert dict(result.reasons.select("reason", "exposed_ns").iter_rows())["waiting"] == waits
