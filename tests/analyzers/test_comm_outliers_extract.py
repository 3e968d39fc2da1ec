"""Communication events of one rank and their descriptions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, GENERIC, MS, US, device, host, step, trace
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers import Options
from traceanalyzer.analyzers.comm_outliers.collectives import Part, closed, prepare
from traceanalyzer.analyzers.comm_outliers.compute import NEEDS, measure
from traceanalyzer.errors import OptionError
from traceanalyzer.trace import Trace


def extract(recording: Trace, patterns: Sequence[str] = ()) -> Part:
    return measure(recording, Options(comm_patterns=patterns))


def columns_of(
    recording: Trace, *columns: str, patterns: tuple[str, ...] = ()
) -> list[tuple[object, ...]]:
    return extract(recording, patterns).instances.select(columns).rows()


@pytest.mark.parametrize("collective", ["send_recv", "all_reduce", None])
def test_tables_of_several_ranks_at_once_are_those_of_each(collective: str | None) -> None:
    """The numbers of both ranks together have a gap."""

    def rank(number: int) -> Trace:
        args = {"collective": collective, "group": "5", "group_size": 2}
        kernels = [
            device(GENERIC, at * MS, US, seq=10 * number + at, correlation=at + 1, **args)
            for at in range(4)
        ]
        return trace(kernels, number)

    several = [rank(0), rank(1)]
    prepare(several, Options())
    for number, one in enumerate(several):
        assert closed(one).equals(closed(rank(number)))
        assert closed(one)["seq"].null_count() == 0


def test_arguments_of_the_kernel_come_first() -> None:
    kernel = device(
        ALL_REDUCE,
        10,
        5,
        collective="all_gather",
        dtype="c10::BFloat16",
        elements_in=10,
        elements_out=80,
        group="3",
        group_size=8,
        seq=4,
    )
    (row,) = extract(trace([kernel])).instances.iter_rows(named=True)
    assert row["collective"] == "all_gather"
    assert (row["dtype"], row["group"], row["group_size"], row["seq"]) == ("bfloat16", "3", 8, 4)
    assert row["message_bytes"] == 160, "the full message of an all_gather is its output"


def test_collective_is_derived_from_kernel_name() -> None:
    recording = trace([device(ALL_REDUCE, 10, 5), device(GENERIC, 20, 5), device(GEMM, 30, 5)])
    assert columns_of(recording, "collective", "message_bytes") == [
        ("all_reduce", None),
        ("ncclDevKernel_Generic", None),
    ]


CALL = {"dtype": "Float", "elements_in": 100, "elements_out": 100, "group": "0", "group_size": 2}


def host_call(ts: int, **more: object) -> list[dict[str, object]]:
    """c10d::allreduce_ > record_param_comms (which group) > nccl:all_reduce (which shape)."""
    return [
        host("cpu_op", "record_param_comms", ts, 50, external_id=11, **more),
        host("user_annotation", "nccl:all_reduce", ts + 10, 30, external_id=12),
    ]


def test_external_id_joins_a_kernel_to_its_host_call() -> None:
    recording = trace(
        [*host_call(0, **CALL), device(GENERIC, 500, 5, external_id=12, correlation=3)]
    )
    assert columns_of(recording, "collective", "group", "message_bytes") == [
        ("all_reduce", "0", 400)
    ]


def test_host_calls_that_touch_by_rounding_are_two_calls() -> None:
    calls = [
        host("cpu_op", "record_param_comms", ts, 52, external_id=number, seq=number, **CALL)
        for number, ts in ((1, 0), (2, 50))
    ]
    kernels = [device(GENERIC, 500 * number, 5, external_id=number) for number in (1, 2)]
    assert columns_of(trace([*calls, *kernels]), "seq", "group") == [(1, "0"), (2, "0")]


def test_correlation_joins_a_kernel_to_the_host_call_around_its_launch() -> None:
    # recordings of 2022 repeat the correlation id as External id; 11 is a host event's by chance
    kernel = device("ncclKernel_SendRecv_RING()", 500, 5, external_id=11, correlation=11)
    launch = host("cuda_runtime", "cudaLaunchKernel", 25, 5, correlation=11)
    shapes = {"dtype": "float", "elements_in": 6}
    called = host("user_annotation", "nccl:all_to_all", 20, 30, external_id=9, **shapes)
    decoy = host("user_annotation", "nccl:broadcast", 90, 9, external_id=11)
    without = trace([called, decoy, kernel])
    assert columns_of(without, "collective", "message_bytes") == [("send_recv", None)]
    recording = trace([called, decoy, launch, kernel])
    assert columns_of(recording, "collective", "message_bytes") == [("all_to_all", 24)]


def test_launch_outside_host_calls_is_not_joined() -> None:
    launch = host("cuda_runtime", "cudaLaunchKernel", 60, 5, correlation=3)
    recording = trace([*host_call(0, **CALL), launch, device(GENERIC, 500, 5, correlation=3)])
    assert columns_of(recording, "collective") == [("ncclDevKernel_Generic",)]


def test_host_events_are_communication_without_a_device() -> None:
    gloo = host("user_annotation", "gloo:all_reduce", 0, 9, dtype="float", elements_in=5)
    enqueued = host("user_annotation", "nccl:all_reduce", 0, 2)
    ucc = host("user_annotation", "ucc:all_reduce", 20, 9)
    columns = ("name", "message_bytes")
    on_host = [("gloo:all_reduce", 20), ("ucc:all_reduce", None)]
    assert columns_of(trace([gloo, enqueued, ucc]), *columns) == on_host
    part = extract(trace([gloo, enqueued, ucc, device(ALL_REDUCE, 2, 3), device(GEMM, 4, 4)]))
    times = part.instances.select("name", "device", "compute_ns").rows()
    assert times == [("gloo:all_reduce", None, None), (ALL_REDUCE, 0, 1)]
    assert part.activity == (6, 6, 3, 1), "shares are those of the device"


def test_waits_for_messages_are_communication() -> None:
    calls = [host("mpi", f"MPI_{call}", 10 * i, 9) for i, call in enumerate(("Wait", "Isend"))]
    assert columns_of(trace([*calls, device(GEMM, 40, 5)]), "collective") == [("MPI_Wait",)]


def test_projected_annotations_are_never_work() -> None:
    projected = device("nccl:all_reduce", 9, 7, kind="gpu_user_annotation")
    assert columns_of(trace([projected, device(ALL_REDUCE, 10, 5)]), "name") == [(ALL_REDUCE,)]


def test_patterns_add_communication() -> None:
    recording = trace([device("my_exchange_kernel", 0, 5), device(GEMM, 10, 5)])
    assert columns_of(recording, "name") == []
    assert columns_of(recording, "name", patterns=("exchange",)) == [("my_exchange_kernel",)]
    with raises_wording(OptionError):
        extract(recording, ["("])


def test_events_without_an_end_are_counted_and_left_out() -> None:
    recording = trace(
        [device(ALL_REDUCE, 0, None), device(ALL_REDUCE, 5, -3), device(ALL_REDUCE, 9, 0)]
    )
    part = extract(recording)
    assert (part.instances.height, part.unclosed) == (1, 2)


def test_overlapping_device_work() -> None:
    recording = trace(
        [
            device(ALL_REDUCE, 100, 100),
            device(GEMM, 50, 70, stream=8),  # overlaps 20
            device(GEMM, 110, 20, stream=9),  # overlaps the first by 10
            device("other", 150, 25, stream=8),
            device("Memcpy HtoD", 190, 30, kind="gpu_memcpy", stream=9),
            device(GEMM, 100, 100, device=1),
        ]
    )
    assert columns_of(recording, "compute_ns", "memory_ns", "overlapped_by") == [(55, 10, GEMM)]


def test_busy_idle_and_overlap_of_the_device() -> None:
    part = extract(
        trace(
            [
                device(GEMM, 0, 100),
                device(ALL_REDUCE, 50, 100, stream=8),
                device("Memset", 300, 50, kind="gpu_memset"),
                device("Stream Sync", 150, 150, kind="cuda_sync"),
            ]
        )
    )
    assert (
        part.activity.span_ns,
        part.activity.busy_ns,
        part.activity.comm_ns,
        part.activity.overlap_ns,
    ) == (350, 200, 100, 50)


def test_devices_of_one_rank_add_up() -> None:
    events = [device(ALL_REDUCE, 0, 10, device=d) for d in (0, 1)] + [device(GEMM, 10, 10)]
    part = extract(trace(events))
    assert (part.activity.span_ns, part.activity.busy_ns, part.activity.comm_ns) == (30, 30, 20)


def test_collective_belongs_to_the_step_of_its_host_call() -> None:
    asked = host_call(5 * US, **CALL)
    late_kernel = device(GENERIC, 15 * US, 5, external_id=11, correlation=1)
    before = device(GENERIC, 1 * US, 5, correlation=2)
    steps = [step(1, 0, 10 * US), step(2, 10 * US, 10 * US)]
    assert columns_of(trace([*steps, *asked, late_kernel, before]), "step") == [
        (None,),
        ("ProfilerStep#1",),
    ]
    # without a host call the start of the kernel counts
    assert columns_of(trace([*steps, late_kernel, before]), "step") == [
        ("ProfilerStep#1",),
        ("ProfilerStep#2",),
    ]


def test_steps_of_user_annotations() -> None:
    marks = [
        host("user_annotation", "Iteration 3", 0, MS),
        host("user_annotation", "forward", 0, 9),
    ]
    assert columns_of(trace([*marks, device(ALL_REDUCE, 5, 5)]), "step") == [("Iteration 3",)]


def test_first_read_requires_few_kinds() -> None:
    dense = {"cpu_op", "python_function", "gpu_user_annotation"}
    assert not NEEDS.kinds & dense


def test_absolute_times_are_exact() -> None:
    part = extract(trace([device(ALL_REDUCE, 123, 5)], epoch_ns=1_767_189_312_000_000_001))
    assert part.instances["start"].to_list() == [1_767_189_312_000_000_124]
    assert part.instances.schema["start"] == pl.Int64


def test_host_collectives_have_no_overlapping_device_work() -> None:
    gloo = host("user_annotation", "gloo:all_reduce", 0, 9)
    assert columns_of(trace([gloo, device(GEMM, 0, 5)]), "compute_ns", "overlapped_by") == [
        (None, None)
    ]


@pytest.mark.parametrize("name", ["## train_step ##", "ExecutionContext::enqueueV3"])
def test_steps_of_one_name_are_numbered(name: str) -> None:
    marks = [host("nvtx", name, i * MS, MS) for i in range(2)]
    recording = trace([*marks, device(ALL_REDUCE, 5, 5), device(ALL_REDUCE, MS + 5, 5)])
    assert columns_of(recording, "step") == [(f"{name} [1]",), (f"{name} [2]",)]


# --- collectives that are operators, as PyTorch wrote them until 2021 ----------------------------


def chrome_event(name: str, tid: int, ts: int, dur: int, cat: str = "cpu_op", **args: Any) -> Any:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur,
            "args": args}  # fmt: skip


GLOO = [
    chrome_event("gloo:all_reduce", 3, 0, 40, **{"Input Dims": [[1000]], "Input type": ["float"]}),
    chrome_event("gloo:broadcast", 4, 30, 30, **{"Input Dims": [[500]], "Input type": ["float"]}),
    chrome_event("aten::add_", 2, 0, 5),
]
ON_DEVICE = {"cat": "Kernel", "device": 0, "stream": 7}


@pytest.mark.parametrize("category", ["cpu_op", "Operator"])
def test_collectives_recorded_as_operators(tmp_path: Path, category: str) -> None:
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps([{**event, "cat": category} for event in GLOO]))
    result = ta.comm_outliers(path)
    assert result.instances.select("name", "message_bytes").rows() == [
        ("gloo:all_reduce", 4_000),
        ("gloo:broadcast", 2_000),
    ]
    assert result.totals.covered_ns == result.totals.total_span_ns == 60_000


def test_host_communication_overlapped_by_kernels(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    gemm = chrome_event("gemm", 7, 20, 25, **ON_DEVICE)
    path.write_text(json.dumps([*GLOO, gemm]))
    result = ta.comm_outliers(path)
    (rank,) = result.ranks.to_dicts()
    # the kernel overlaps 25 of 60 us of communication
    assert (result.totals.covered_ns, result.totals.total_span_ns) == (60_000, 60_000)
    assert rank["overlap_frac"] == 25 / 60
    assert (rank["idle_ns"], rank["compute_ns"]) == (35_000, 25_000)
    kernels = [{**gemm, "ts": 25}, chrome_event(ALL_REDUCE, 7, 40, 20, **ON_DEVICE)]
    path.write_text(json.dumps(kernels))
    # a kernel that communicates keeps the device busy: 10 us beside the other
    assert ta.comm_outliers(path).ranks["compute_ns"].to_list() == [25_000]


@pytest.mark.parametrize("library", ["nccl", "xccl", "ncclx", "rcclx", "mccl", "hccl"])
def test_message_size_is_taken_from_operator(tmp_path: Path, library: str) -> None:
    path = tmp_path / "rank0.json"
    dims = {"Input Dims": [[1000]], "Input type": ["float"], "External id": 5}
    kernel = chrome_event(
        ALL_REDUCE, 7, 20, 25, **ON_DEVICE, **{"External id": 5, "correlation": 9}
    )
    called = chrome_event(f"{library}:all_reduce", 3, 0, 10, **dims)
    path.write_text(json.dumps([called, kernel]))
    assert ta.comm_outliers(path).instances["message_bytes"].to_list() == [4_000]


def test_devices_without_communication_are_summed() -> None:
    work = [device(GEMM, 100 * n, 60, device=n) for n in range(2)]
    part = extract(trace(work))
    assert (
        part.activity.span_ns,
        part.activity.busy_ns,
        part.activity.comm_ns,
        part.activity.overlap_ns,
    ) == (120, 120, 0, 0)
    hosts = extract(trace([*work, host("user_annotation", "gloo:all_reduce", 40, 80)]))
    # the devices count as one: 0 to 60 and 100 to 160, of which the collective overlaps 20 and 20
    assert (
        hosts.activity.span_ns,
        hosts.activity.busy_ns,
        hosts.activity.comm_ns,
        hosts.activity.overlap_ns,
    ) == (160, 120, 80, 40)
