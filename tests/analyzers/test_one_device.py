"""What is one device: several GPUs of a process, processes that share a GPU, several recordings."""

from __future__ import annotations

from typing import Any

import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import MissingData
from traceanalyzer.trace import Trace

ABOUT = {"dtype": "float", "elements_in": 4096, "elements_out": 4096}


def data_parallel(rank: int | None, late: int = 5 * MS) -> Trace:
    """Return one process with two GPUs; GPU 1 is the straggler of every fourth reduction."""
    rows = []
    for i in range(8):
        for gpu in (0, 1):
            more = late if gpu == 1 and i % 4 == 3 else 0
            at = i * 20 * MS
            rows.append(device(GEMM, at, 8 * MS + more, device=gpu))
            reduce = device(ALL_REDUCE, at + 8 * MS + more, 6 * MS - more, device=gpu, stream=20)
            rows.append(reduce | ABOUT)
    return trace(rows, rank, path="one.json")


@pytest.mark.parametrize("rank", [None, 0])
def test_gpus_of_one_process_are_matched(rank: int | None) -> None:
    result = ta.comm_outliers(data_parallel(rank))
    assert (result.totals.n_collectives, result.totals.n_matched) == (8, 16)
    totals = result.ranks.sort("rank").select("rank", "wait_ns", "imposed_ns", "span_ns", "busy_ns")
    # from 0 to 154 ms each; 8 times 14 ms of work
    assert totals.rows() == [
        (0, 10 * MS, 0, 154 * MS, 112 * MS),
        (1, 0, 10 * MS, 154 * MS, 112 * MS),
    ]
    check_wording(result.verdict, *result.remarks)


def test_several_ranks_in_one_file_are_matched() -> None:
    ranks = [data_parallel(None).events.filter(device=gpu) for gpu in (0, 1)]
    rows = [
        row | (ABOUT if "nccl" in row["name"] else {})
        for rank, events in enumerate(ranks)
        for row in events.with_columns(rank=rank, device=0).to_dicts()
    ]
    result = ta.comm_outliers(trace(rows))
    assert (result.totals.n_ranks, result.totals.n_collectives) == (2, 8)
    check_wording(result.verdict)


def shared_gpu() -> Trace:
    """Two processes take turns on one GPU: 5 and 4 of each 10 ms."""
    rows = []
    for i in range(10):
        rows.append(device(GEMM, i * 10 * MS, 5 * MS, pid=1))
        rows.append(device(GEMM, i * 10 * MS + 5 * MS, 4 * MS, pid=2, stream=8))
        rows += [host("cpu_op", "aten::mm", i * 10 * MS, MS, pid=p, tid=p) for p in (1, 2)]
    return trace(rows, None, path="shared.json")


def test_gpu_shared_by_processes_is_one_device() -> None:
    one = shared_gpu()
    assert ta.overlap(one).devices.select("busy_ns", "span_ns").rows() == [(90 * MS, 99 * MS)]
    assert ta.kernels(one).busy_ns == 90 * MS
    by_device, by_process = ta.gpu_idle(one), ta.gpu_idle(one, by="process")
    assert by_device.units["busy_ns"].to_list() == [90 * MS]
    # each process from its first work to its last: 95 ms with nine gaps of 1 ms, and 94 ms
    busy = by_process.units.sort("pid").select("pid", "busy_ns").rows()
    assert busy == [(1, 86 * MS), (2, 85 * MS)]
    assert (by_process.span_ns, by_process.idle_ns) == (by_device.span_ns, by_device.idle_ns)
    assert by_process.idle_by_cause == by_device.idle_by_cause
    assert by_process.view().tables[0].frame.equals(by_device.view().tables[0].frame)
    check_wording(by_process.verdict, *by_process.view().notes)


def test_launches_and_steps_of_a_shared_gpu_are_those_of_one_device() -> None:
    rows = shared_gpu().events.to_dicts()
    for n, row in enumerate(rows):
        row["correlation"] = n
    calls = [
        host("cuda_runtime", "cudaLaunchKernel", row["ts"], US, correlation=n, pid=row["pid"])
        for n, row in enumerate(rows)
        if row["kind"] == "kernel"
    ]
    marks = [step(n, n * 50 * MS, 50 * MS) for n in range(2)]
    one = trace([*rows, *calls, *marks], None, path="shared.json")
    (device_row,) = ta.launches(one).devices.iter_rows(named=True)
    assert (device_row["span_ns"], device_row["idle_ns"]) == (99 * MS, 9 * MS)
    assert ta.steps(one).steps["compute_ns"].to_list() == [45 * MS] * 2


def cycle(number: int, rank: int | None = 0) -> Trace:
    rows = [device(GEMM, (number * 1000 + i * 10) * MS, 5 * MS) for i in range(10)]
    return trace(rows, rank, path=f"cycle{number}.json")


def test_recordings_of_one_device_are_one_device() -> None:
    """Two cycles of a profiler: the time between them is not recorded and not counted."""
    both = [cycle(0), cycle(1)]
    (row,) = ta.overlap(both).devices.iter_rows(named=True)
    assert (row["compute_ns"], row["idle_ns"], row["span_ns"]) == (100 * MS, 90 * MS, 190 * MS)
    check_wording(ta.overlap(both).verdict, ta.kernels(both).verdict, ta.gpu_idle(both).verdict)


def test_files_without_rank_are_separate() -> None:
    assert ta.overlap([cycle(0, None), cycle(1, None)]).devices.height == 2


def recorded(calls: list[str]) -> list[dict[str, Any]]:
    return [
        host("cuda_runtime", name, i * MS, 50 * US, correlation=i) for i, name in enumerate(calls)
    ]


def capture(*more: str) -> Trace:
    """Calls that capture a graph, with kernels of the warm-up before."""
    captured = ["cudaLaunchKernel"] * 8
    calls = ["cudaLaunchKernel", "cudaStreamBeginCapture", *captured, "cudaGraphInstantiate", *more]
    rows = recorded(calls)
    kernels = [device(GEMM, MS * at, 10 * US, correlation=0, pid=1) for at in (0, 90)]
    return trace([*rows, *kernels], 0, path="capture_8_decode.json")


def test_graph_capture_is_left_out() -> None:
    with raises_wording(MissingData):
        ta.gpu_idle(capture())
    result = ta.gpu_idle([capture(), cycle(0)])
    assert result.units["path"].to_list() == ["cycle0.json"]
    check_wording(*result.notes)


def test_program_that_captures_once_is_analysed() -> None:
    """Its kernels run: only few launches are captured."""
    kernels = [device(GEMM, MS * at, 10 * US, pid=1) for at in range(40)]
    assert (
        ta.gpu_idle(
            trace([*recorded(["cudaStreamBeginCapture", "cudaLaunchKernel"]), *kernels], 0)
        ).units.height
        == 1
    )


def test_program_with_graph_launches_is_analysed() -> None:
    assert ta.gpu_idle(capture("cudaGraphLaunch")).units.height == 1
