"""Calls, waits, and ranges that fill gaps are named as what they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from comm_traces import GEMM, US, device, host, trace
from diagnosing import diagnosis

import traceanalyzer as ta
from traceanalyzer.analyzers.common.waits import (
    DATA,
    DISK,
    DRIVER,
    ENGINE,
    KV_TRANSFER,
    LOCK,
    SLEEPS,
    THREAD,
    UNKNOWN,
    wait_of,
)
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import call_class, is_communication

CLASSES = {
    "launch": ("cudaLaunchKernelExC_v11060", "hipExtModuleLaunchKernel", "cudaGraphLaunch"),
    "copy": ("cudaMemcpyAsync", "hipMemcpyWithStream", "cuMemPrefetchAsync"),
    "memset": ("cudaMemsetAsync", "cuMemsetD32_v2"),
    "synchronise": ("cudaDeviceSynchronize", "cuCtxSynchronize", "hipEventSynchronize"),
    "event": ("cudaEventRecord", "cudaStreamWaitEvent", "hipEventElapsedTime"),
    "allocate host memory": ("cudaHostAlloc", "cuMemHostAlloc", "hipHostMalloc", "cudaFreeHost"),
    "allocate device memory": ("cudaMalloc", "cuMemSetAccess", "hipFree", "cudaMemPoolCreate"),
    "load module": ("cuModuleLoadData", "cuLibraryLoadData", "hipModuleLoadDataEx"),
    "build graph": ("cudaGraphInstantiate", "cudaGraphAddMemcpyNode", "cudaStreamBeginCapture"),
    "create stream or event": ("cudaStreamCreateWithFlags", "hipEventDestroy"),
    "query": ("cudaGetDeviceProperties_v2", "cudaMemGetInfo", "cuModuleGetLoadingMode"),
    "share memory": ("cudaIpcOpenMemHandle", "cudaDeviceEnablePeerAccess"),
    "other": ("cudaSetDevice", "cudaLaunchHostFunc", "cuProfilerStart"),
}


@pytest.mark.parametrize(("name", "names"), CLASSES.items(), ids=str)
def test_class_of_each_call(name: str, names: tuple[str, ...]) -> None:
    assert {call_class(one) for one in names} == {name}


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", True),
        ("_Z22ncclKernel_SendRecv_RING", True),
        ("void rccl::reduce<float>()", True),
        ("ccl_allreduce_small", True),
        ("__amd_rocclr_copyBuffer.kd", False),
        ("occlusion_kernel", False),
        ("ccl_kernel(int*, int)", False),
        ("vaccline_update", False),
    ],
)
def test_communication_is_known_by_the_names_of_libraries(kernel: str, expected: bool) -> None:
    assert is_communication(kernel) == expected


@pytest.mark.parametrize(
    ("name", "file", "expected"),
    [
        ("usleep", None, SLEEPS),
        ("<built-in function sleep>", None, SLEEPS),
        ("<built-in method wait of PyCapsule object at 0x7f3a10>", None, UNKNOWN),
        ("deepspeed/runtime/swap_tensor/utils.py(30): swap_in_tensors", None, DISK),
        ("ioctl", None, DRIVER),
        ("<built-in method acquire of _thread.lock object at 0x7f>", None, LOCK),
        ("threading.py(1095): join", None, THREAD),
        ("_recv", "multiprocessing/connection.py", DATA),
        ("<built-in function sched_yield>", None, DATA),
        ("vllm/distributed/shm_broadcast.py(470): acquire_read", None, ENGINE),
        ("vllm/distributed/kv_transfer/nixl_connector.py(911): get_finished", None, KV_TRANSFER),
        ("poll", "sglang/srt/disaggregation/nixl/conn.py", KV_TRANSFER),
        ("load_kv_cache", None, KV_TRANSFER),
        ("update_kv_cache", None, None),
        ("join", "/home/u/bpe.py", None),
        ("read_file (io.py:3)", None, None),
    ],
)
def test_what_a_function_waits_for(name: str, file: str | None, expected: str | None) -> None:
    assert wait_of(name, file) == expected


@pytest.mark.parametrize("outer", ["", "vllm/distributed/shm_broadcast.py(470): acquire_read"])
def test_the_function_that_spins_is_named(outer: str) -> None:
    """A worker that spins waits for its engine; how long is not its own code."""

    def spin(at: int) -> list[dict[str, Any]]:
        names = [name for name in (outer, "<built-in function sched_yield>") if name]
        return [host("python_function", name, at * US, 490 * US) for name in names]

    (one,) = ta.diagnose(loop(spin)).diagnosis
    assert (one.id, one.severity, one.confidence) == ("host-code", "warning", "low")
    assert ("acquire_read" in one.title) == bool(outer)
    assert ("sched_yield" in one.title) != bool(outer)
    assert ("engine" in one.title) == bool(outer)


# --- one cause per loop --------------------------------------------------------------------------


def loop(between: Callable[[int], list[dict[str, Any]]], n: int = 30, gap: int = 500) -> Trace:
    """Return a loop of kernels of 50 us with gaps (us), and the host events of each gap."""
    rows = []
    for i in range(n):
        at = i * (50 + gap)
        rows += [
            host("cuda_runtime", "cudaLaunchKernel", (at - 8) * US, 5 * US, correlation=i),
            device(GEMM, at * US, 50 * US, correlation=i),
            *between(at + 50),
        ]
    return trace(rows)


def rules(recording: Trace) -> list[str]:
    return [one.id for one in ta.diagnose(recording).diagnosis]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("call", "rule"),
    [
        ("cuModuleLoadDataEx", "module-loading"),
        ("cudaGraphInstantiate", "graph-building"),
        ("cudaIpcOpenMemHandle", "communicator-creation"),
        ("cudaGetDeviceProperties", "api-calls"),
        ("cudaEventCreate", "api-calls"),
        ("cudaHostRegister", "memory-management"),
    ],
)
@pytest.mark.parametrize("us", [30, 450])
def test_only_launches_are_launch_overhead(call: str, rule: str, us: int) -> None:
    found = loop(lambda at: [host("cuda_runtime", call, at * US, us * US)], gap=us + 10)
    (one, *_) = ta.diagnose(found).diagnosis
    assert one.id == rule
    assert "launch-bound" not in rules(found) or us < 100


def test_captured_launches_are_graph_building() -> None:
    def captured(at: int) -> list[dict[str, Any]]:
        calls = [host("cuda_runtime", "cudaStreamBeginCapture", at * US, 5 * US)]
        calls.append(host("cuda_runtime", "cudaGraphLaunch", (at + 480) * US, 5 * US))
        calls += [
            host("cuda_runtime", "cudaLaunchKernel", (at + 10 + 20 * i) * US, 15 * US)
            for i in range(18)
        ]
        return [*calls, host("cuda_runtime", "cudaStreamEndCapture", (at + 400) * US, 50 * US)]

    assert rules(loop(captured))[0] == "graph-building"


@pytest.mark.parametrize("compiled", [True, False])
def test_what_an_operator_does_before_its_capture_is_graph_building(compiled: bool) -> None:
    """Other code before a capture, which ends before an operator begins, is not."""

    def captured(at: int) -> list[dict[str, Any]]:
        begin = 2 if compiled else 380
        return [
            host("user_annotation", "prepare", at * US, 480 * US),
            host("cpu_op", "CompiledFunction", (at + begin) * US, (480 - begin) * US),
            host("cuda_runtime", "cudaStreamBeginCapture", (at + 400) * US, 5 * US),
            host("cuda_runtime", "cudaStreamEndCapture", (at + 420) * US, 50 * US),
        ]

    costs = {one.id: one.cost_frac or 0 for one in ta.diagnose(loop(captured)).findings}
    assert costs["graph-building"] == pytest.approx(0.86 if compiled else 0.16, abs=0.03)
    assert (costs["host-code"] > 0.6) != compiled


@pytest.mark.sample(2)
@pytest.mark.parametrize(("us", "rule"), [(40, "small-copies"), (1_500, "synchronisation")])
def test_small_copies_that_block_are_named(us: int, rule: str) -> None:
    """A call of milliseconds waits for something else than the copy of 2 KB."""
    rows = []
    for i in range(100):
        at, kernel, copy = i * (us + 20), 2 * i, 2 * i + 1
        rows += [
            host("cuda_runtime", "cudaLaunchKernel", at * US, 5 * US, correlation=kernel),
            device(GEMM, (at + 6) * US, 10 * US, correlation=kernel),
            host("cuda_runtime", "cudaMemcpy", (at + 18) * US, us * US, correlation=copy),
            device(
                "Memcpy HtoD (Pageable -> Device)", (at + us + 10) * US, 2 * US,
                correlation=copy, bytes=2048, kind="gpu_memcpy",
            ),
        ]  # fmt: skip
    assert rules(trace(rows))[0] == rule


def test_small_copies_in_a_row_are_one_cause() -> None:
    """Pauses between the copies, and the copies, are a part of it: packed, all of that is gone."""
    rows: list[dict[str, Any]] = []
    for step in range(4):
        begin = 8_000 * step
        rows += [
            host("user_annotation", f"ProfilerStep#{step}", begin * US, 8_000 * US),
            host("cuda_runtime", "cudaLaunchKernel", begin * US, 5 * US, correlation=1_000 + step),
            device(GEMM, (begin + 10) * US, 3_990 * US, correlation=1_000 + step),
            host("cuda_runtime", "cudaDeviceSynchronize", (begin + 10) * US, 3_992 * US),
        ]
        for i in range(200):
            at, copy = begin + 4_000 + 20 * i, 200 * step + i
            call = ("cuda_runtime", "cudaMemcpy", (at + 6) * US, 14 * US)
            rows += [
                host(*call, correlation=copy),
                device(
                    "Memcpy HtoD (Pageable -> Device)", (at + 12) * US, 2 * US,
                    correlation=copy, bytes=2048, kind="gpu_memcpy",
                ),
            ]  # fmt: skip
    one, *others = ta.diagnose(trace(rows)).findings
    assert (one.id, others) == ("small-copies", [])
    assert one.cost_ns == pytest.approx(4_000 * US, rel=0.02)
    assert one.gain_ns == pytest.approx(one.cost_ns, rel=0.1)
    assert "200 per step" in " ".join(one.evidence)


@pytest.mark.matrix
def test_python_between_operators_is_launch_overhead() -> None:
    rows = [host("python_function", "nn.Module: Block_0", 0, 40_000 * US)]
    for i in range(80):
        at = i * 400
        rows += [
            host("cpu_op", "aten::mm", at * US, 40 * US),
            host("cuda_runtime", "cudaLaunchKernel", (at + 20) * US, 10 * US, correlation=i),
            device(GEMM, (at + 35) * US, 50 * US, correlation=i),
            host("python_function", "model.py(7): scale", (at + 45) * US, 90 * US),
        ]
    assert rules(trace(rows))[0] == "launch-bound"
    assert "host-code" not in rules(trace(rows))
    slow = [host("python_function", "model.py(9): count", (i * 400 + 60) * US, 320 * US)
            for i in range(80)]  # fmt: skip
    assert rules(trace([*rows, *slow]))[0] == "host-code"


def test_the_frame_between_the_leaf_and_own_code_is_named() -> None:
    def logged(at: int) -> list[dict[str, Any]]:
        frames = ("train.py(5): step", "wandb/sdk/run.py(9): log", "socket.py(700): readinto")
        builtin = "<built-in method recv_into of _socket.socket object at 0x7f>"
        return [
            host("python_function", name, (at + i) * US, (480 - 2 * i) * US)
            for i, name in enumerate((*frames, builtin))
        ]

    recording = loop(logged)
    (gap, *_) = ta.gpu_idle(recording).gaps.to_dicts()
    assert gap["own_code"] == "train.py(5): step"
    assert gap["called"] == "wandb/sdk/run.py(9): log"
    (one, *_) = ta.diagnose(recording).diagnosis
    assert "recv_into" in one.title
    assert "log (wandb/sdk/run.py:9)" in one.title
    assert "step (train.py:5)" in one.title
    assert one.advice.startswith("log (wandb/sdk/run.py:9)")


@pytest.mark.matrix
def test_recomputed_activations_are_no_file_access() -> None:
    """A range named ``checkpoint`` that launches kernels runs part of a model again."""
    around = loop(lambda at: [host("nvtx", "checkpoint", at * US, 495 * US)])
    assert "checkpoints" not in rules(around)
    saved = loop(lambda at: [host("nvtx", "checkpoint", at * US, 400 * US)])
    assert rules(saved)[0] == "checkpoints"


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("call", ["cuMemHostAlloc", "cudaMalloc", "cudaStreamCreate"])
def test_a_single_call_costs_once(call: str) -> None:
    """One long call of many gaps is setup; the same call in every gap is not."""
    single = loop(
        lambda at: [host("cuda_runtime", call, at * US, 30_000 * US)] if at == 50 else [],
        gap=31_000,
    )
    (one,) = (one for one in ta.diagnose(single).findings if one.id in ALLOCATING)
    assert one.per.endswith("once")
    assert "expandable_segments" not in one.advice
    each = loop(lambda at: [host("cuda_runtime", call, at * US, 450 * US)])
    (one,) = (one for one in ta.diagnose(each).findings if one.id in ALLOCATING)
    assert "once" not in one.per


ALLOCATING = ("memory-management", "api-calls")


# --- small recordings of each kind ---------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("file", "first"),
    [
        ("nsys/c1_module_load.sqlite.gz", "module-loading"),
        ("nsys/c1g_graph_build.sqlite.gz", "graph-building"),
        ("nsys/c18_one_time_alloc.sqlite.gz", "memory-management"),
        ("nsys/c22_usleep.sqlite.gz", "host-code"),
        ("nsys/c22b_ioctl.sqlite.gz", "host-code"),
        ("nsys/c21_activation_checkpoint.sqlite.gz", "host-code"),
        ("chrome/python_between_operators.json.gz", "launch-bound"),
    ],
)
def test_first_finding_names_the_cause(shared: Path, file: str, first: str) -> None:
    findings = diagnosis(shared / "data/causes" / file).diagnosis
    assert findings[0].id == first
    if file.startswith("nsys/c22"):
        assert "off the main thread" not in findings[0].advice


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "file",
    ["chrome/c17_rocclr_copy.json.gz", "nsys/c20_ccl_kernel.sqlite.gz"],
)
def test_kernels_of_other_libraries_are_no_communication(shared: Path, file: str) -> None:
    path = shared / "data/causes" / file
    assert "exposed-communication" not in {one.id for one in diagnosis(path).diagnosis}
    assert ta.overlap(path).scalars["communication_ns"] == 0


@pytest.mark.matrix
def test_mpi_calls_are_host_collectives(shared: Path) -> None:
    """Rank 2 computes on the host while the others wait in MPI_Allreduce."""
    path = shared / "data/causes/nsys/c26_mpi_ranks.sqlite.gz"
    (one, *_) = diagnosis(path).diagnosis
    assert (one.id, one.rank) == ("host-code", 2)
    assert [effect.id for effect in one.effects] == ["straggler"]
    assert ta.gpu_idle(path).idle_by_cause["waiting_for_peer"] > 170_000_000


def test_mpi_calls_in_gaps_wait_for_ranks() -> None:
    idle = ta.gpu_idle(loop(lambda at: [host("mpi", "MPI_Waitall", at * US, 450 * US)]))
    assert idle.idle_by_cause["waiting_for_peer"] > 0.8 * idle.idle_ns


@pytest.mark.matrix
def test_overhead_of_other_threads_hides_no_cause(shared: Path) -> None:
    def allocated(at: int) -> list[dict[str, Any]]:
        return [
            host("cuda_runtime", "cudaMalloc", at * US, 400 * US),
            host("overhead", "TLS allocation", (at + 1) * US, 480 * US, tid=99),
        ]

    assert rules(loop(allocated))[0] == "memory-management"
    path = shared / "data/causes/nsys/c15_overhead_other_threads.sqlite.gz"
    assert diagnosis(path).diagnosis[0].id == "memory-management"


@pytest.mark.parametrize(("call", "advised"), [("cudaMalloc", True), ("cuMemMap", False)])
def test_expandable_segments_are_advised_if_they_are_off(call: str, advised: bool) -> None:
    def allocated(at: int) -> list[dict[str, Any]]:
        in_gap = ("cuda_driver", call), ("cpu_op", "aten::empty")
        return [host(*named, at * US, 400 * US) for named in in_gap]

    first = ta.diagnose(loop(allocated)).findings[0]
    assert first.id == "memory-management"
    assert ("expandable_segments:True" in first.advice) == advised


def test_processes_that_share_a_gpu_are_one_device(shared: Path) -> None:
    path = shared / "data/causes/nsys/c19_two_processes_one_gpu.sqlite.gz"
    idle = ta.gpu_idle(path)
    assert idle.units.height == 1
    assert idle.busy_ns / idle.span_ns == pytest.approx(0.96, abs=0.002)
    assert "2 processes share a GPU" in (diagnosis(path).warning or "")
    assert ta.gpu_idle(path, by="process").units.height == 2


@pytest.mark.matrix
def test_almost_no_gpu_work_is_one_sentence(shared: Path) -> None:
    found = diagnosis(shared / "data/causes/nsys/c3_one_memset.sqlite.gz")
    assert not found.findings
    assert "almost no GPU work" in found.verdict
    idle = host("cuda_runtime", "cudaGetDeviceProperties", 300 * US, 2_000_000 * US)
    assert not ta.diagnose(trace([*tiny(), idle])).findings


def tiny() -> list[dict[str, Any]]:
    return [
        host("cuda_runtime", "cudaLaunchKernel", 0, 5 * US, correlation=1),
        device(GEMM, 10 * US, 50 * US, correlation=1),
        host("cuda_runtime", "cudaLaunchKernel", 2_100_000 * US, 5 * US, correlation=2),
        device(GEMM, 2_100_010 * US, 50 * US, correlation=2),
    ]
