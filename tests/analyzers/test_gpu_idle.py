"""Idle time by cause, on traces written down event by event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, US, device, host, step, trace
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from sample_results import Sample
from wording import check_wording, raises_wording

import traceanalyzer
from traceanalyzer import GpuIdle, MissingData, OptionError
from traceanalyzer.analyzers.common.clocks import axis
from traceanalyzer.analyzers.common.display import at_start
from traceanalyzer.analyzers.common.gpu_api import Api
from traceanalyzer.analyzers.gpu_idle import Options, causes
from traceanalyzer.analyzers.gpu_idle.causes import BATCH_BYTES, CAUSES
from traceanalyzer.analyzers.gpu_idle.compute import GPU_IDLE, TIMES, gpu_idle
from traceanalyzer.render import table
from traceanalyzer.trace import Trace

HTOD = "Memcpy HtoD (Pageable -> Device)"
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def launched(
    start: int, end: int, call: int, name: str = GEMM, number: int | None = None, **more: Any
) -> list[dict[str, Any]]:
    """A kernel and the call of 2 us that launched it; times in us."""
    number = start if number is None else number
    return [
        device(name, start * US, (end - start) * US, correlation=number, **more),
        host("cuda_runtime", "cudaLaunchKernel", call * US, 2 * US, correlation=number),
    ]


def busy_but(gap: tuple[int, int], *events: dict[str, Any], **more: Any) -> GpuIdle:
    """Return a 1 ms device span with one idle gap (us) and these host events."""
    start, end = gap
    work = [*launched(0, start, -10), *launched(end, 1000, end - 3)]
    return gpu_idle(trace([*work, *events]), **more)


def lost(result: GpuIdle) -> dict[str, int]:
    """Idle time by cause, in us, of the causes that occur."""
    return {cause: ns // US for cause, ns in result.idle_by_cause.items() if ns}


def adds_up(result: GpuIdle) -> None:
    for frame in (result.units, result.steps):
        span = frame["end"] - frame["start"]
        assert frame.select(pl.sum_horizontal(TIMES)).to_series().to_list() == span.to_list()
    assert sum(result.idle_by_cause.values()) == result.idle_ns
    assert result.causes["idle_ns"].sum() == result.idle_ns


# --- one cause each --------------------------------------------------------------------------

SLICES = {
    "dataloading": [
        host("user_annotation", LOADER, 100 * US, 100 * US),
        host("python_function", "torch/utils/data/_x.py(7): __next__", 100 * US, 100 * US),
        host("nvtx", "load batch", 100 * US, 100 * US),
        host("other", "dataloader/next", 100 * US, 100 * US),
        host("cpu_op", "enumerate(DataPipe)#Shuffler", 100 * US, 100 * US),
    ],
    "synchronisation": [
        host("cuda_runtime", "cudaStreamSynchronize", 100 * US, 100 * US),
        host("cuda_runtime", "hipDeviceSynchronize", 100 * US, 100 * US),
        host("cuda_driver", "cuCtxSynchronize", 100 * US, 100 * US),
        host("cuda_runtime", "cudaMemcpy", 100 * US, 100 * US),
        host("cpu_op", "aten::item", 100 * US, 100 * US),
    ],
    "communicator_setup": [
        host("nvtx", "ncclCommInitRank", 100 * US, 100 * US),
        host("cuda_runtime", "cudaIpcOpenMemHandle", 100 * US, 100 * US),
    ],
    "module_loading": [
        host("cuda_driver", "cuModuleLoadData", 100 * US, 100 * US),
        host("cuda_driver", "cuLibraryLoadData", 100 * US, 100 * US),
        host("cuda_runtime", "hipModuleLoad", 100 * US, 100 * US),
    ],
    "graph_building": [
        host("cuda_runtime", "cudaGraphInstantiate", 100 * US, 100 * US),
        host("cuda_runtime", "hipGraphExecUpdate", 100 * US, 100 * US),
    ],
    "api_calls": [
        host("cuda_runtime", "cudaGetDeviceProperties", 100 * US, 100 * US),
        host("cuda_runtime", "cudaStreamCreate", 100 * US, 100 * US),
        host("cuda_driver", "cuEventQuery", 100 * US, 100 * US),
    ],
    "memory_management": [
        host("cuda_runtime", "cudaMalloc", 100 * US, 100 * US),
        host("cuda_runtime", "cudaHostAlloc", 100 * US, 100 * US),
        host("cuda_driver", "cuMemSetAccess", 100 * US, 100 * US),
    ],
    "checkpoint_io": [
        host("user_annotation", "save_checkpoint", 100 * US, 100 * US),
        host("python_function", "torch/serialization.py(850): save", 100 * US, 100 * US),
        host("osrt", "fsync", 100 * US, 100 * US),
    ],
    "waiting_for_peer": [host("cpu_op", "gloo:all_reduce", 100 * US, 100 * US)],
    "host_code": [
        host("user_annotation", "forward", 100 * US, 100 * US),
        host("cpu_op", "aten::randperm", 100 * US, 90 * US),
        host("python_function", "torch/utils/checkpoint.py(5): checkpoint", 100 * US, 100 * US),
    ],
}


@pytest.mark.parametrize(
    ("cause", "event"),
    [(cause, event) for cause, events in SLICES.items() for event in events],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_host_activity_is_the_cause(cause: str, event: dict[str, Any]) -> None:
    result = busy_but((100, 200), event)
    # the last 3 us: the launch of the kernel that ends the gap
    expected = {cause: 100}
    if cause == "host_code":
        expected = {"host_code": 97, "launch_overhead": 3}
    assert lost(result) == expected
    adds_up(result)
    (gap,) = result.gaps.to_dicts()
    assert (gap["cause"], gap["at_ns"]) == (cause, 100 * US)


@pytest.mark.parametrize(
    "call", ["read", "pread64", "getc", "fgets", "__getdelim", "fread", "open64"]
)
def test_file_calls_of_the_launching_thread_are_a_cause(call: str) -> None:
    result = busy_but((100, 200), host("osrt", call, 100 * US, 100 * US))
    assert lost(result) == {"checkpoint_io": 100}
    assert result.host.file_calls.rows() == [(None, 100 * US, 100 * US), (call, 100 * US, 100 * US)]


def test_short_file_calls_together_are_the_host_activity() -> None:
    reads = [host("osrt", "read", at * US, 8 * US) for at in range(100, 200, 10)]
    around = host("nvtx", "prepare", 90 * US, 115 * US)
    for events in (reads, [*reads, around]):
        (gap,) = busy_but((100, 200), *events).gaps.to_dicts()
        assert (gap["cause"], gap["host_event"]) == ("checkpoint_io", "read")


@pytest.mark.parametrize(
    "other",
    [
        host("osrt", "poll", 90 * US, 9 * US),
        host("osrt", "epoll_wait", 100 * US, 50 * US),
        host("nvtx", "recv from rank 1", 90 * US, 200 * US),
        host("nvtx", "all_reduce", 90 * US, 200 * US),
        host("cuda_runtime", "cudaLaunchKernel", 99 * US, 102 * US),
    ],
    ids=lambda event: event["name"],
)
def test_reads_of_pipes_and_sockets_are_no_file_calls(other: dict[str, Any]) -> None:
    result = busy_but((100, 200), host("osrt", "read", 150 * US, 50 * US), other)
    assert result.idle_by_cause["checkpoint_io"] == 0
    assert result.host.file_calls.is_empty()


def test_a_long_read_of_a_line_waits_for_a_terminal() -> None:
    ms = 1_000
    gap = (100, 200 * ms)
    work = [*launched(0, 100, -10), *launched(gap[1], 300 * ms, gap[1] - 3)]
    line = host("osrt", "getc", 100 * US, (gap[1] - 100) * US)
    result = gpu_idle(trace([*work, line]))
    assert "reads files or other input (getc)" in result.verdict
    assert "it waits for a terminal or pipe, not a file" in result.verdict
    assert "do not wait for a terminal or pipe" in result.verdict
    check_wording(result.verdict)
    adds_up(result)


def test_first_matching_cause_counts() -> None:
    loader = host("user_annotation", LOADER, 100 * US, 30 * US)
    sync = host("cuda_runtime", "cudaDeviceSynchronize", 110 * US, 50 * US)
    malloc = host("cuda_runtime", "cudaMalloc", 150 * US, 30 * US)
    expected = {"dataloading": 30, "synchronisation": 30, "memory_management": 20}
    assert lost(busy_but((100, 200), loader, sync, malloc)) == {
        **expected, "launch_overhead": 3, "host_code": 17,
    }  # fmt: skip


def test_profiler_overhead_splits_a_gap() -> None:
    loader = host("user_annotation", LOADER, 100 * US, 100 * US)
    flush = host("overhead", "Buffer Flush", 120 * US, 30 * US, tid=0)
    before = host("overhead", "Instrumentation", -5 * US, 10 * US, tid=0)
    result = busy_but((100, 200), loader, flush, before)
    assert lost(result) == {"profiler_overhead": 30, "dataloading": 70}
    gaps = result.gaps.sort("start").select("at_ns", pl.col("end") - pl.col("start"), "cause")
    assert gaps.rows() == [
        (100 * US, 20 * US, "dataloading"),
        (150 * US, 50 * US, "dataloading"),
    ]
    adds_up(result)


def test_operators_that_launch_and_the_latency_of_launches_are_launch_overhead() -> None:
    work = [*launched(0, 100, -10), *launched(200, 1000, 180)]
    op = host("cpu_op", "aten::linear", 120 * US, 40 * US)
    range_around = host("cpu_op", "Optimizer.step#SGD.step", 100 * US, 100 * US)
    result = gpu_idle(trace([*work, op, range_around]))
    # until 160 the operator launches nothing; from 180 the launch and its latency, to the end
    assert lost(result) == {"host_code": 80, "launch_overhead": 20}
    assert result.gaps["host_event"].to_list() == ["Optimizer.step#SGD.step"]
    covering = host("cpu_op", "aten::linear", 120 * US, 70 * US)
    assert lost(gpu_idle(trace([*work, covering]))) == {"host_code": 20, "launch_overhead": 80}


@pytest.mark.parametrize(
    ("call", "waits"),
    [
        (177, 0),  # starts 21 us after its launch call: 179 to 200
        (178, 0),
        (100, 98),
        (50, 100),  # queued before the gap began
        (95, 100),
    ],
)
def test_queued_work_waits_on_the_device(call: int, waits: int) -> None:
    waits = 21 if call == 177 else waits
    sync = host("cuda_runtime", "cudaStreamSynchronize", 103 * US, 97 * US)
    loader = host("user_annotation", LOADER, 103 * US, 97 * US)
    for event in (sync, loader):
        result = gpu_idle(trace([*launched(0, 100, -10), *launched(200, 1000, call), event]))
        assert lost(result).get("device_wait", 0) == waits
        adds_up(result)


def test_device_side_wait_reports_stream_wait_call() -> None:
    work = [*launched(0, 100, -10), *launched(200, 1000, 90)]
    event = host("cuda_runtime", "cudaStreamWaitEvent", 80 * US, 2 * US)
    (gap,) = gpu_idle(trace([*work, event])).gaps.to_dicts()
    assert (gap["cause"], gap["waits_for"]) == ("device_wait", "cudaStreamWaitEvent")
    earlier = {**event, "ts": -20 * US}  # before the launch of other work
    (gap,) = gpu_idle(trace([*work, earlier])).gaps.to_dicts()
    assert (gap["cause"], gap["waits_for"]) == ("device_wait", None)


def test_batch_copy_is_not_host_code() -> None:
    work = [
        *launched(0, 100, -10),
        device(HTOD, 190 * US, 10 * US, kind="gpu_memcpy", correlation=7, bytes=1 << 20),
        host("cuda_runtime", "cudaMemcpyAsync", 150 * US, 50 * US, correlation=7),
        host("cpu_op", "aten::to", 120 * US, 85 * US),
        host("cpu_op", "aten::copy_", 130 * US, 75 * US),
    ]
    (copies,) = {lost(gpu_idle(trace([*work, *launched(200, 300, 199)])))["batch_copy"]}
    assert copies == 70  # from aten::to's start to the copy's
    for size, counts in ((8, False), (BATCH_BYTES - 1, False), (BATCH_BYTES, True)):
        sized = [{**event, "bytes": size} if event["name"] == HTOD else event for event in work]
        actual = lost(gpu_idle(trace([*sized, *launched(200, 300, 199)])))
        assert ("batch_copy" in actual) is counts


def test_queued_communication_is_a_device_side_wait() -> None:
    work = [
        *launched(0, 100, -10),
        *launched(300, 400, 110, ALL_REDUCE, stream=20),
        *launched(400, 500, 390),
    ]
    assert lost(gpu_idle(trace(work))) == {
        "device_wait": 188, "launch_overhead": 2, "host_code": 10,
    }  # fmt: skip


def test_short_gaps_have_no_other_cause() -> None:
    loader = host("user_annotation", LOADER, 0, 1000 * US)
    work = [*launched(0, 100, -10), *launched(105, 200, 98), *launched(230, 300, 226)]
    result = gpu_idle(trace([*work, loader]))
    assert lost(result) == {"short_gap": 5, "dataloading": 30}
    # the kernel after the short gap was launched in time
    late = [*launched(0, 100, -10), *launched(105, 200, 101), *launched(230, 300, 226)]
    assert lost(gpu_idle(trace([*late, loader]))) == {"launch_overhead": 5, "dataloading": 30}
    assert result.gap_count == 1
    assert lost(gpu_idle(trace([*work, loader]), min_gap_ns=40 * US)) == {
        "short_gap": 5, "launch_overhead": 30,
    }  # fmt: skip
    assert lost(gpu_idle(trace([*work, loader]), min_gap_ns=0)) == {
        "device_wait": 5, "dataloading": 30,
    }  # fmt: skip
    # one that is just as long is not shorter
    exactly = gpu_idle(trace([*work, loader]), min_gap_ns=30 * US)
    assert lost(exactly) == {"short_gap": 5, "dataloading": 30}


def test_copying_thread_does_not_count() -> None:
    work = [*launched(0, 100, -10), *launched(200, 300, 197)]
    fetching = [
        host("cuda_runtime", "cudaMemcpyAsync", 20 * US, 2 * US, correlation=9, tid=5),
        device(HTOD, 30 * US, 5 * US, kind="gpu_memcpy", correlation=9, bytes=1 << 20, stream=8),
        host("user_annotation", LOADER, 0, 300 * US, tid=5),
    ]
    result = gpu_idle(trace([*work, *fetching]))
    assert "dataloading" not in lost(result)
    assert result.units["loader_ns"].to_list() == [0]


def test_patterns_of_the_user() -> None:
    custom = host("user_annotation", "read_shards", 100 * US, 50 * US)
    assert "dataloading" not in lost(busy_but((100, 200), custom))
    assert lost(busy_but((100, 200), custom, dataloader=["^read_"]))["dataloading"] == 50
    with raises_wording(OptionError):
        busy_but((100, 200), custom, dataloader=["("])


# --- steps, gaps -----------------------------------------------------------------------------


def in_steps() -> list[dict[str, Any]]:
    """Two steps of 500 us; in each the loader takes 200, of which 50 are hidden by a kernel."""
    events = []
    for number in (0, 1):
        t = 500 * number
        events += [
            step(number, t * US, 490 * US),
            host("user_annotation", LOADER, t * US, 200 * US),
            *launched(t + 210, t + 300, t + 205),
            *launched(t + 300, t + 550, t + 280, stream=9),
            *launched(t + 310, t + 340, t + 290, ALL_REDUCE),
        ]
    return events


def test_steps_and_loader_time() -> None:
    result = gpu_idle(trace(in_steps()))
    adds_up(result)
    us = result.steps.select(
        "step", *(pl.col(n) // US for n in ("busy_ns", "dataloading_ns", "loader_ns"))
    )
    assert us.rows() == [("ProfilerStep#0", 340, 200, 250), ("ProfilerStep#1", 340, 150, 150)]
    assert result.steps["exposed_communication_ns"].to_list() == [0, 0]
    # the span begins with the first step
    assert result.units.select("start", "end").row(0) == (0, 1050 * US)
    assert result.units["overlapped_loader_ns"].to_list() == [50 * US]
    assert result.step_dataloading_frac == pytest.approx(350 / 1050)
    assert result.verdict.count("waiting for the data loader") == 1
    check_wording(result.verdict)
    check_wording(result.notes[0])


def test_steps_by_step_name() -> None:
    events = [*in_steps(), host("user_annotation", "epoch half", 0, 700 * US)]
    result = gpu_idle(trace(events), step_name="^epoch")
    assert result.steps["step"].to_list() == ["epoch half"]
    assert gpu_idle(trace(events), by="step").tables[0].name == "steps"


def test_the_longest_gaps_are_explained() -> None:
    frames = [
        host("python_function", "train.py(10): main", 0, 1000 * US),
        host("python_function", "PIL/Image.py(5): resize", 105 * US, 90 * US),
        host("python_function", "data.py(3): __getitem__", 102 * US, 96 * US),
        host("user_annotation", "outer", 0, 400 * US),
        host("user_annotation", LOADER, 100 * US, 99 * US),
        step(3, 0, 1000 * US),
    ]
    work = [*launched(0, 100, -10, "first()"), *launched(200, 1000, 197, "second()")]
    (gap,) = gpu_idle(trace([*work, *frames])).gaps.to_dicts()
    columns = ("host_event", "python", "own_code", "annotation", "before", "after", "step")
    assert [gap[name] for name in columns] == [
        LOADER, "PIL/Image.py(5): resize", "data.py(3): __getitem__", LOADER, "first()",
        "second()", "ProfilerStep#3",
    ]  # fmt: skip
    (named,) = gpu_idle(trace([*work, *frames]), library_names=["train"]).gaps.to_dicts()
    assert named["own_code"] == "train.py(10): main"


# --- what may be missing ---------------------------------------------------------------------


def test_only_kernels() -> None:
    result = gpu_idle(trace([device(GEMM, 0, 100 * US), device(GEMM, 300 * US, 100 * US)]))
    assert lost(result) == {"unknown": 200}
    assert any("activities=[ProfilerActivity.CPU" in note for note in result.notes)
    assert not result.coverage.host_known


def test_without_correlation_ids() -> None:
    work = [device(GEMM, 0, 100 * US), device(GEMM, 300 * US, 100 * US)]
    calls = [host("cuda_runtime", "cudaLaunchKernel", t * US, 2 * US) for t in (-10, 290)]
    loader = host("user_annotation", LOADER, 100 * US, 150 * US)
    result = gpu_idle(trace([*work, *calls, loader]))
    assert lost(result) == {"dataloading": 150, "launch_overhead": 2, "host_code": 40, "unknown": 8}
    assert not result.coverage.launches_known
    check_wording(*result.notes)


def test_without_rank() -> None:
    result = gpu_idle(trace(in_steps(), rank=None))
    assert result.units["rank"].to_list() == [None]
    assert result.step_dataloading_frac == pytest.approx(350 / 1050)


def test_without_kernels_the_training_thread_is_analysed() -> None:
    events = [
        step(0, 0, 1000 * US),
        host("user_annotation", LOADER, 0, 600 * US),
        host("cpu_op", "aten::stack", 100 * US, 300 * US),
        host("cpu_op", "aten::mm", 700 * US, 100 * US),
        host("user_annotation", "gloo:all_reduce", 780 * US, 120 * US, tid=9),
    ]
    result = gpu_idle(trace(events))
    adds_up(result)
    assert result.coverage.on_host
    assert result.busy_ns == 100 * US
    assert lost(result) == {"dataloading": 600, "waiting_for_peer": 100, "host_code": 200}
    check_wording(result.verdict)


def test_missing_gpu_work_is_reported(tmp_path: Any) -> None:
    op = host("cpu_op", "aten::mm", 0, 100 * US)
    launch = host("cuda_runtime", "cudaLaunchKernel", 10 * US, 2 * US, correlation=1)
    check_wording(gpu_idle(trace([op])).verdict)
    check_wording(gpu_idle(trace([op, launch])).verdict)
    cut = tmp_path / "cut.json"
    event = '{"ph":"X","cat":"cpu_op","name":"aten::mm","ts":1,"dur":9,"pid":1,"tid":1}'
    cut.write_text(f'{{"traceEvents": [{event},{event},{{"ph":"X","cat":"ker')
    check_wording(traceanalyzer.gpu_idle(cut).verdict)
    kernel = '{"ph":"X","cat":"kernel","name":"k","ts":3,"dur":2,"pid":0,"tid":7}'
    later = kernel.replace('"ts":3', '"ts":90')
    cut.write_text(f'{{"traceEvents": [{event},{kernel},{later},{{"ph":"X","cat":"ker')
    some = traceanalyzer.gpu_idle(cut)
    assert not some.coverage.on_host
    check_wording(some.verdict)
    cut.write_text(f'{{"traceEvents": [{event},{event},{{"ph":"X","cat":"ker')
    with raises_wording(MissingData):
        traceanalyzer.overlap(cut)


def test_trace_without_work_is_an_error() -> None:
    with raises_wording(MissingData):
        gpu_idle(trace([host("user_annotation", "x", 0, 5)]))
    with pytest.raises(MissingData):
        gpu_idle(trace([]))


def test_one_kernel_is_never_idle() -> None:
    result = gpu_idle(trace([device(GEMM, 5, 0)]))
    assert (result.span_ns, result.idle_ns) == (0, 0)
    check_wording(result.verdict)
    assert gpu_idle(trace([device(GEMM, 5, 10)])).idle_ns == 0
    assert result.table()


def two_processes() -> Iterable[dict[str, Any]]:
    for pid, starts in ((1, (0, 400)), (2, (200, 600))):
        for start in starts:
            number = 10 * start
            yield device(GEMM, start * US, 200 * US, pid=pid, correlation=number)
            call = {"correlation": number, "pid": pid, "tid": pid}
            yield host("cuda_runtime", "cudaLaunchKernel", (start - 5) * US, 2 * US, **call)


def test_two_processes_on_one_device() -> None:
    events = list(two_processes())
    result = gpu_idle(trace(events))
    assert (result.units.height, result.idle_ns) == (1, 0)
    apart = gpu_idle(trace(events), by="process")
    assert apart.units["pid"].to_list() == [1, 2]
    # the device works for the other process while this one has none
    assert (apart.units["end"] - apart.units["start"] == apart.units["busy_ns"]).all()
    adds_up(apart)


def test_several_ranks_are_separate() -> None:
    traces = [trace(in_steps(), rank=rank) for rank in (1, 0)]
    result = gpu_idle(traces)
    assert result.units["rank"].to_list() == [0, 1]
    assert result.steps["rank"].to_list() == [0, 0, 1, 1]
    assert result.span_ns == 2 * gpu_idle(traces[0]).span_ns
    check_wording(result.verdict)
    assert [chart.name for chart in result.charts] == ["steps", "devices", "gaps"]


def test_files_without_rank_are_identified_by_name() -> None:
    traces = [
        replace(one, sources=(replace(one.meta, path=f"run/{name}.json"),))
        for one, name in ((trace(in_steps(), rank=None), name) for name in ("first", "second"))
    ]
    result = gpu_idle(traces)
    assert [table.frame["file"].unique().sort().to_list() for table in result.tables[1:]] == [
        ["first.json", "second.json"]
    ] * 3
    assert "file" in result.tables[1].columns
    assert result.charts[1].frame["on"].n_unique() == 2
    assert "file" not in gpu_idle(traces[0]).tables[1].columns


@pytest.mark.matrix
def test_file_name_is_not_capitalized() -> None:
    def idle(path: str, gap: int) -> Trace:
        work = [*launched(0, 10, -5), *launched(10 + gap, 30 + gap, 5)]
        return trace(work, rank=None, path=f"run/{path}")

    files = [idle("p1_head.json", 400), idle("rank b.json", 20), idle("c.json", 20)]
    check_wording(gpu_idle(files).verdict)
    places = ("rank 3", "rank 3 device 1", "device 0", "rank b.json", "device 0 rank 1")
    labels = [at_start(place) for place in places]
    assert labels == ["Rank 3", "Rank 3 device 1", "Device 0", "rank b.json", "device 0 rank 1"]


def test_busy_rank_does_not_stand_out() -> None:
    result = gpu_idle([trace([device(GEMM, 0, 10 + rank)], rank=rank) for rank in (0, 1)])
    assert result.idle_ns == 0
    assert "stands out" not in result.verdict
    check_wording(result.verdict)


def test_advice_without_device() -> None:
    result = gpu_idle(trace([host("cpu_op", "aten::mm", 0, 100)]))
    assert result.coverage.on_host
    check_wording(result.verdict)


# --- invariants ------------------------------------------------------------------------------

NAMES = [LOADER, "aten::item", "aten::mm", "cudaMalloc", "forward", "ProfilerStep#1", "aten::to"]
KINDS = ["cpu_op", "user_annotation", "python_function", "cuda_runtime"]
WORK = st.tuples(
    st.integers(0, 300), st.integers(0, 60), st.integers(0, 1), st.integers(1, 6),
    st.sampled_from([GEMM, ALL_REDUCE, HTOD]),
)  # fmt: skip
HOST = st.tuples(
    st.integers(-20, 320), st.integers(0, 100), st.integers(1, 2), st.integers(1, 6),
    st.sampled_from(NAMES), st.sampled_from(KINDS),
)  # fmt: skip


def random_trace(work: list[Any], slices: list[Any], shift: int) -> list[dict[str, Any]]:
    kinds = {HTOD: "gpu_memcpy"}
    return [
        device(name, (ts + shift) * US, dur * US, device=number, correlation=correlation,
               kind=kinds.get(name, "kernel"), bytes=1 << 20)
        for ts, dur, number, correlation, name in work
    ] + [
        host(kind, name, (ts + shift) * US, dur * US, tid=tid, correlation=correlation)
        for ts, dur, tid, correlation, name, kind in slices
    ]  # fmt: skip


@pytest.mark.matrix
@settings(max_examples=30, deadline=None)
@given(
    st.lists(WORK, min_size=1, max_size=12),
    st.lists(HOST, max_size=12),
    st.integers(-1000, 1 << 40),
    st.booleans(),
)
def test_causes_add_up_wherever_time_begins(
    work: list[Any], slices: list[Any], shift: int, by_process: bool
) -> None:
    by = "process" if by_process else "device"
    result = gpu_idle(trace(random_trace(work, slices, 0)), by=by)
    adds_up(result)
    assert (result.gaps["end"] > result.gaps["start"]).all()
    moved = gpu_idle(trace(random_trace(work, slices, shift)), by=by)
    assert moved.idle_by_cause == result.idle_by_cause
    assert moved.gaps["at_ns"].to_list() == result.gaps["at_ns"].to_list()


@pytest.mark.parametrize("kind", ["cpu_op", "user_annotation"])
def test_a_main_thread_is_busy_in_compiled_graphs(kind: str) -> None:
    events = [
        host("cpu_op", "aten::mm", 0, 10 * US),
        host(kind, "## Call CompiledFxGraph abc ##", 20 * US, 70 * US),
        host("cpu_op", "aten::mm", 90 * US, 10 * US),
    ]
    assert gpu_idle(trace(events)).busy_ns == 90 * US


def test_short_gaps_of_a_main_thread_are_between_operators() -> None:
    result = gpu_idle(trace([host("cpu_op", "aten::mm", n * 15 * US, 10 * US) for n in range(9)]))
    assert "kernels" not in result.waiting(causes.SHORT_GAP)
    assert "CUDA" not in result.advice(causes.SHORT_GAP)


# --- the command -----------------------------------------------------------------------------


def test_the_command_on_a_fixture(run_cli: Any, golden: Any) -> None:
    done = run_cli("gpu-idle", "fixtures/nccl_8ranks", "--top", "4", cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    golden("gpu_idle_nccl_8ranks.txt", done.stdout)


def test_the_commands_options(run_cli: Any, tmp_path: Any) -> None:
    picture = tmp_path / "idle.svg"
    rank0 = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    done = run_cli(
        "gpu-idle", rank0, "--min-gap", "1ms", "--dataloader", "x", "--pattern", "y", "--by",
        "process", "--library-name", "torch", "--step-name", "Step#1[01]", "--plot", picture,
        "--to", "json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert '"min_gap' not in done.stdout
    assert '"step_dataloading_frac"' in done.stdout
    assert picture.read_text().startswith("<?xml")
    wrong = run_cli("gpu-idle", rank0, "--min-gap", "soon")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert run_cli("gpu-idle", rank0, "--min-gap", "-1ms").returncode == 2


def test_file_without_data_is_noted(tmp_path: Any) -> None:
    other = tmp_path / "empty.json"
    other.write_text('{"traceEvents": [{"ph":"X","cat":"x","name":"y","ts":1,"dur":2,"pid":1}]}')
    rank0 = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    result = traceanalyzer.gpu_idle([rank0, other])
    check_wording(*result.notes)
    with pytest.raises(MissingData):
        traceanalyzer.gpu_idle(other)


def test_every_cause_has_texts() -> None:
    known = set(causes.CAUSES) - {causes.HOST_CODE}
    program = Api(hip=False, pytorch=True, trains=True)
    assert all(causes.advice(cause, program, code="X") for cause in known)
    for texts in (causes.NAMES, causes.WAITING):
        assert tuple(texts) == CAUSES


def test_files_and_traces_have_the_same_result() -> None:
    path = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    assert str(traceanalyzer.gpu_idle(path)) == str(gpu_idle(traceanalyzer.read(path)))


def test_gaps_of_all_ranks_are_on_one_axis_if_clocks_are_known() -> None:
    def ranks(epochs: tuple[int | None, ...]) -> list[Trace]:
        several = (trace(in_steps(), rank=rank) for rank in range(len(epochs)))
        return [
            replace(one, sources=(replace(one.meta, epoch_ns=epoch),))
            for one, epoch in zip(several, epochs, strict=True)
        ]

    def starts(result: GpuIdle) -> list[list[int]]:
        gaps = result.gaps.sort("start").partition_by("rank", maintain_order=True)
        return [one["at_ns"].to_list() for one in gaps]

    one, later = starts(gpu_idle(ranks((10**18, 10**18 + 7))))
    assert later == [time + 7 for time in one]
    # of another day, or of an unknown time: each rank from its own start
    for epochs in ((10**18, 2 * 10**18), (10**18, None)):
        result = gpu_idle(ranks(epochs))
        assert not result.one_clock
        assert starts(result) == [one, one]


def test_a_report_puts_the_gaps_on_the_axis_of_its_timeline() -> None:
    result = gpu_idle(trace(in_steps(), rank=0))
    shifts = result.gaps.select("rank", "path", "device", shift=5).unique()
    placed = result.on_axis(shifts, one_clock=True)
    assert (placed.gaps["at_ns"] == placed.gaps["start"] + 5).all()


def test_a_part_without_units_does_not_move_the_others() -> None:
    given = traceanalyzer.read(ROOT / "fixtures/nccl_8ranks/rank0.json.gz")
    part = GPU_IDLE.part(given, Options())
    empty = replace(part, rank=1, units=part.units.clear())
    alone, shared = axis([part], "units")
    assert shared
    both, shared = axis([empty, part], "units")
    assert (both.to_list(), shared) == ([0, *alone], True)
    none, shared = axis([empty], "units")
    assert (none.to_list(), shared) == ([0], True)


@pytest.mark.matrix
@pytest.mark.parametrize("inputs", ["nccl_8ranks", "ddp_gloo_4ranks", "transformer", "nsys"])
def test_narrow_terminal_keeps_start_and_host_activity(inputs: str) -> None:
    gaps = next(one for one in gpu_idle(ROOT / "fixtures" / inputs).tables if one.name == "gaps")
    heads = table.render(Sample(table_list=(gaps,)), width=80).splitlines()[:8]
    printed = " ".join(heads)
    assert ("start" in printed) == ("at_ns" in gaps.columns)
    assert ("activity" in printed) == ("activity" in gaps.columns)
