"""Exposed copies: their directions in the title and in the advice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, MS, US, device, host, step, trace
from diagnosing import finding
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.findings import copies
from traceanalyzer.trace import Trace

NAMES = {
    "HtoD": "Memcpy HtoD (Pageable -> Device)",
    "DtoH": "Memcpy DtoH (Device -> Pageable)",
    "DtoD": "Memcpy DtoD (Device -> Device)",
}


def exposed_copies(*lengths: tuple[str, int], extra: str = "") -> ta.Finding:
    """Return the finding for copies of these directions and lengths in ms, and other work."""
    events, at = [device("gemm", 0, 10 * MS)], 10 * MS
    for direction, ms in lengths:
        events.append(device(NAMES[direction], at, ms * MS, kind="gpu_memcpy"))
        at += ms * MS
    recorded = trace(events)
    if extra:
        meta = replace(recorded.meta, format="chrome-trace", extra=extra)
        recorded = replace(recorded, sources=(meta,))
    one = finding("exposed-copies", recorded)
    check_wording(one.title, one.advice)
    return one


def test_advice_for_jax_is_not_that_for_cuda() -> None:
    of_jax = exposed_copies(("DtoH", 9), extra='{"highres-ticks": true}').advice
    assert "copy_to_host_async" in of_jax
    assert "cudaMallocHost" not in of_jax
    assert "copy_to_host_async" not in exposed_copies(("DtoH", 9)).advice

    jax = exposed_copies(("DtoD", 9), extra='{"highres-ticks": true}').advice
    assert ("donate" in jax, "clone" in jax) == (True, False)


@pytest.mark.parametrize(
    ("stream", "wait", "overlap", "is_found"),
    [(14, "", 0, True), (7, "", 0, False), (14, "cudaStreamWaitEvent", 0, False),
     (14, "", 2 * MS, False)],
)  # fmt: skip
def test_copies_that_wait_for_the_null_stream(
    stream: int, wait: str, overlap: int, *, is_found: bool
) -> None:
    """Copies on other streams are enqueued early, but begin when a kernel of stream 7 ends."""
    events = []
    for n in range(30):
        at = n * 9 * MS
        calls = ("cudaLaunchKernel", "cudaMemcpyAsync", *filter(None, [wait]))
        events += [
            host("cuda_runtime", call, n * 100 * US + i * 20 * US, 5 * US, correlation=3 * n + i)
            for i, call in enumerate(calls)
        ]
        events.append(device("beamform", at + 5 * MS, 5 * MS, stream=7, correlation=3 * n))
        copy = {"kind": "gpu_memcpy", "stream": stream, "correlation": 3 * n + 1, "bytes": 1 << 26}
        begin = at + 10 * MS + US - overlap
        name = NAMES["HtoD"].replace("Pageable", "Pinned")
        events.append(device(name, begin, 3 * MS + 998 * US, **copy))
    recorded = trace(events)
    meta = replace(recorded.meta, format="nsys-sqlite")
    findings = ta.diagnose(replace(recorded, sources=(meta,))).findings
    (one,) = (one for one in findings if one.id == "exposed-copies")
    assert ("cudaStreamNonBlocking" in one.advice) == is_found


@pytest.mark.parametrize(("stream", "ahead", "writer", "is_late"), [
    (14, False, "chrome-trace", True), (14, False, "nsys-sqlite", True),
    (7, False, "chrome-trace", False), (14, True, "chrome-trace", False),
])  # fmt: skip
def test_copies_on_another_stream_that_begin_too_late(
    stream: int, writer: str, *, ahead: bool, is_late: bool
) -> None:
    """Copies of 8 ms; kernels of 4 ms wait for them, or run meanwhile (copied one step ahead)."""
    events = []
    for n in range(6):
        at, first = 13 * n * MS, 0 if ahead else 8 * MS
        copy = {"kind": "gpu_memcpy", "stream": stream, "correlation": 9 * n, "bytes": 1 << 27}
        name = NAMES["HtoD"].replace("Pageable", "Pinned")
        events += [
            step(n, at, 13 * MS), device(name, at + 20 * US, 8 * MS, **copy),
            host("cuda_runtime", "cudaMemcpyAsync", at, 9 * US, correlation=9 * n),
        ]  # fmt: skip
        for k in range(4):
            ids, begin = 9 * n + k + 1, at + first + k * MS + 50 * US
            call = host("cuda_runtime", "cudaLaunchKernel", at + k * US + 10 * US, US,
                        correlation=ids)  # fmt: skip
            events += [call, device(GEMM, begin, MS, correlation=ids)]
    recorded = trace(events)
    one = finding(
        "exposed-copies", replace(recorded, sources=(replace(recorded.meta, format=writer),))
    )
    check_wording(one.title, one.advice)
    assert ("step ahead" in one.advice, "separate stream" in one.advice) == (is_late, not is_late)


@pytest.mark.parametrize(("gbps", "pinned"), [(32, False), (8, True)])
def test_fast_copies_of_unknown_memory_need_no_pinned_memory(gbps: int, *, pinned: bool) -> None:
    copy = {"kind": "gpu_memcpy", "bytes": 5 * MS * gbps}
    events = [device("gemm", 0, 10 * MS), device("Memcpy DtoH (Device -> Host)", 11 * MS, 5 * MS,
                                                 **copy)]  # fmt: skip
    one = finding("exposed-copies", trace(events))
    assert ("several times as fast" in one.advice) == pinned


def test_migrations_are_one_finding_with_the_page_faults_of_the_host() -> None:
    """No exposed copies; the host touches the memory again after each migration to it."""
    events = []
    for at in range(0, 120, 10):
        name = "Memcpy UVM DtoH (Managed -> Managed)"
        move = device(name, (at + 4) * MS, 3 * MS, kind="gpu_memcpy", bytes=1 << 20)
        launch = host("cuda_runtime", "cudaLaunchKernel", at * MS - 9 * US, US, correlation=at)
        events += [device("saxpy", at * MS, 4 * MS, correlation=at), move, launch]
    first, *others = ta.diagnose(trace(events)).diagnosis
    assert (first.id, [one.id for one in first.effects]) == ("migrations", ["host-code"])
    assert not {"exposed-copies", "host-code"} & {one.id for one in others}


@pytest.mark.parametrize(("each_us", "copies", "kernel"), [
    (800, True, "adamw_8bit_kernel"), (600, False, "spmv"), (900, True, "stencil"),
])  # fmt: skip
def test_page_faults_of_kernels_name_the_kernel_and_keep_steps_on_the_device(
    each_us: int, kernel: str, *, copies: bool
) -> None:
    """Steps of 10 ms on the device, launched in 1 ms; 5 ms of a kernel, in part page faults."""
    events = []
    for n in range(6):
        events += [step(n, n * MS, MS)]
        for k, name in enumerate((GEMM, kernel)):
            ids, at = 10 * n + k + 1, 10 * n * MS + 5 * k * MS + 200 * US
            events.append(host("cuda_runtime", "cudaLaunchKernel", n * MS + k * US, US,
                               correlation=ids))  # fmt: skip
            events.append(device(name, at, 5 * MS, correlation=ids, pid=1))
        for k in range(5):
            on = {"stream": None, "correlation": None}
            events.append(device("GPU page faults", at + k * MS, each_us * US, kind="page_fault",
                                 **on))  # fmt: skip
            events += [device("Memcpy UVM HtoD (Managed -> Device)", at + k * MS + US, 100 * US,
                              kind="gpu_memcpy", bytes=1 << 21, **on)] * copies  # fmt: skip
    result = ta.diagnose(trace(events))
    first = result.diagnosis[0]
    assert (first.id, first.cost_ns) == ("migrations", 5 * each_us * US)
    assert kernel in first.title
    assert "one-kernel" not in {one.id for one in result.findings}
    assert ta.steps(trace(events)).steps["duration_ns"].median() == 10 * MS


def test_migrations_are_not_in_the_cost_of_other_copies() -> None:
    names = (NAMES["DtoH"], "Memcpy UVM DtoH (Managed -> Managed)")
    events = [device("gemm", 0, 10 * MS)]
    for at, name in zip((10, 16), names, strict=True):
        events.append(device(name, at * MS, 4 * MS, kind="gpu_memcpy", bytes=1 << 20))
    one = finding("exposed-copies", trace(events))
    assert one.cost_ns == 4 * MS


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize(("main", "other"), [("HtoD", "DtoH"), ("DtoH", "HtoD")])
def test_direction_of_nearly_all_copies_is_in_the_title(main: str, other: str) -> None:
    name = {"HtoD": "host-to-device", "DtoH": "device-to-host"}
    nearly = exposed_copies((main, 9), (other, 1)).title
    assert name[main] in nearly
    assert name[other] not in nearly
    assert not any(one in exposed_copies((main, 8), (other, 2)).title for one in name.values())


def test_each_large_direction_has_its_part_and_advice() -> None:
    one = exposed_copies(("DtoH", 5), ("HtoD", 3), ("DtoD", 2))
    assert one.cost_ns == 10 * MS
    assert [one.title.count(part) for part in ("5 ms", "3 ms", "2 ms")] == [1, 1, 1]
    assert "device-to-device" in one.advice
    assert "both directions" in one.advice


def test_weights_of_a_recurrent_layer_are_copied_in_each_call() -> None:
    events = []
    for number in range(6):
        at = 10 * MS * number
        events += [
            host("cpu_op", "aten::_cudnn_rnn", at, 90 * US),
            host("cuda_runtime", "cudaMemcpyAsync", at + 5 * US, 5 * US, correlation=number),
            device(NAMES["DtoD"], at + 20 * US, 4 * MS, kind="gpu_memcpy", correlation=number),
            device("gemm", at + 5 * MS, 4 * MS),
        ]
    one = finding("exposed-copies", trace(events))
    assert "flatten_parameters()" in one.advice
    assert "contiguous" not in one.advice


def test_memsets_get_no_advice_for_copies() -> None:
    """A memset cannot overlap a copy to or from the host: less memory is set."""
    sets = [
        device("Memset (Device)", at * MS, 2 * MS, kind="gpu_memset", bytes=1 << 30)
        for at in range(10, 20, 2)
    ]
    (one,) = ta.diagnose(trace([device("gemm", 0, 10 * MS), *sets])).diagnosis
    assert (one.id, one.cost_frac) == ("exposed-copies", pytest.approx(0.5))
    assert "memsets" in one.title
    assert "non_blocking" not in one.advice
    assert "Set less memory" in one.advice


def there_and_back(
    back: int, kernel_ms: int, trips: int = 6, memory: str = "Pageable"
) -> ta.Finding:
    """Return the finding for data that is copied before and after each kernel."""
    events, at = [], 0
    for _ in range(trips):
        for name, ms, size in (("HtoD", 5, 16 << 20), ("", kernel_ms, 0), ("DtoH", 5, back)):
            work = device(NAMES[name].replace("Pageable", memory) if name else "gemm", at, ms * MS)
            events.append(work | ({"kind": "gpu_memcpy", "bytes": size} if name else {}))
            at += ms * MS
    return finding("exposed-copies", trace(events))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("back", "kernel_ms", "trips", "keeps", "bound"),
    [
        (16 << 20, 1, 6, True, True),
        (16 << 20, 30, 6, True, False),
        (4, 1, 6, False, True),
        # input and output of a program that runs once
        (16 << 20, 1, 2, False, True),
    ],
)
def test_data_that_goes_there_and_back_stays_on_the_device(
    back: int, kernel_ms: int, trips: int, keeps: bool, bound: bool
) -> None:
    one = there_and_back(back, kernel_ms, trips)
    assert ("keep the data on the device" in one.advice) == keeps
    compute = f"{kernel_ms} ms per step" if trips > 3 else f"{trips * kernel_ms} ms"
    assert (f"at most the compute time, {compute}" in one.advice) == bound


def test_round_trips_of_others(shared: Path) -> None:
    path = shared / "data/causes/nsys/c5_round_trips.sqlite.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    first = ta.diagnose(path).findings[0]
    assert first.id == "exposed-copies"
    assert "keep the data on the device" in first.advice
    assert "400 us per step" in first.advice, "overlap gains at most the compute time"


@pytest.mark.parametrize(("memory", "most_ms"), [("Pinned", 1), ("Pageable", 10)])
def test_copies_that_can_only_be_overlapped_gain_the_compute_time(
    memory: str, most_ms: int
) -> None:
    one = there_and_back(4, 1, 6, memory)  # 6 steps
    assert one.gain_ns == most_ms * MS


def exchanges(call: str, before: str, late_ms: int = 0) -> list[Trace]:
    """Return two ranks that copy to the host, call MPI, and copy back; rank 1 may be late."""
    return [trace(list(_exchange(call, before, rank * late_ms)), rank) for rank in range(2)]


def _exchange(call: str, before: str, late_ms: int) -> Iterator[dict[str, Any]]:
    meet = (14 + late_ms) * MS
    for number in range(6):
        at = number * 40 * MS
        yield step(number, at, 40 * MS)
        works = ("gemm", 0, 10), (before, 10, 2), (NAMES["HtoD"], 30, 2)
        for key, (name, start, ms) in enumerate(works, 10 * number):
            kind = "gpu_memcpy" if "Memcpy" in name else "kernel"
            begin = at + start * MS
            yield host("cuda_runtime", "cudaMemcpyAsync", begin - US, US, correlation=key)
            yield device(name, begin, ms * MS, kind=kind, correlation=key, bytes=1 << 24)
        yield host("mpi", call, at + meet, 29 * MS - meet)


def test_mpi_between_copies_of_the_same_data_takes_pointers_to_the_device() -> None:
    findings = ta.diagnose(exchanges("MPI_Sendrecv", NAMES["DtoH"])).findings
    advice = {one.id: one.advice for one in findings}
    assert "GPU-aware" in advice["exposed-copies"]
    assert "on the device between kernels" not in advice["exposed-copies"]
    assert "GPU-aware" in advice["waiting-for-ranks"]
    (waits,) = (one for one in findings if one.id == "waiting-for-ranks")
    assert "MPI_Sendrecv after every rank" in waits.title
    no_copies = ta.diagnose(exchanges("MPI_Sendrecv", "gemm")).findings
    assert not any("GPU-aware" in one.advice for one in no_copies)


def test_an_exchange_of_mpi_is_compared_between_ranks() -> None:
    result = ta.comm_outliers(exchanges("MPI_Sendrecv", NAMES["DtoH"], late_ms=8))
    waited = result.arrivals.group_by("rank").agg(pl.col("wait_ns").sum()).sort("rank")
    assert waited.rows() == [(0, 6 * 8 * MS), (1, 0)]
    assert result.pipeline is None, "ranks exchange borders; they are no stages"


@pytest.mark.parametrize(
    ("up", "form", "keeps"),
    [(2, "nsys-sqlite", True), (4, "nsys-sqlite", False), (2, "chrome-trace", False)],
)
def test_arrays_of_one_size_that_go_there_and_partly_back_stay_on_the_device(
    up: int, form: str, keeps: bool
) -> None:
    """Two arrays up and one down in each iteration, as OpenACC does without a data region."""
    events, at, size = [], 0, 8 << 20
    for _ in range(6):
        for name, ms in [("HtoD", 3)] * up + [("", 1), ("DtoH", 3)]:
            memory = NAMES[name].replace("Pageable", "Pinned") if name else "jacobi"
            work = device(memory, at * MS, ms * MS)
            events.append(work | ({"kind": "gpu_memcpy", "bytes": size} if name else {}))
            at += ms
    findings = ta.diagnose(trace(events, format=form)).findings
    (one,) = (one for one in findings if one.id == "exposed-copies")
    assert ("a data region" in one.advice) == keeps


def norms(kind: str) -> Iterator[dict[str, Any]]:
    """Yield steps that copy a gradient to the host four times, and compute its norm there."""
    for number in range(4):
        begin, ids = number * 40 * MS, number * 10
        yield step(number, begin, 40 * MS)
        yield host("cpu_op", "aten::mm", begin, MS)
        yield host("cuda_runtime", "cudaLaunchKernel", begin + US, 5 * US, correlation=ids)
        yield device("gemm", begin + 10 * US, 16 * MS - 10 * US, correlation=ids)
        for place in range(4):
            at, link = begin + (16 + 6 * place) * MS, {"correlation": ids + place + 1}
            yield host("cpu_op", "aten::to", at, 3 * MS)
            yield host("cuda_runtime", "cudaMemcpyAsync", at + US, 3 * MS - 2 * US, **link)
            copy = {"kind": "gpu_memcpy", "bytes": 1 << 26, **link}
            yield device(f"Memcpy {kind}", at + 5 * US, 3 * MS - 10 * US, **copy)
            yield host("cpu_op", "aten::linalg_vector_norm", at + 3 * MS, 3 * MS)


def test_copies_for_an_operator_on_the_cpu_are_one_finding_with_it() -> None:
    first, *more = ta.diagnose(trace(norms("DtoH (Device -> Pinned)"))).findings
    assert first.id == "exposed-copies"
    assert first.gain_frac == pytest.approx(24 / 40, abs=0.02)
    assert "aten::linalg_vector_norm runs on the CPU" in first.advice
    assert [one.id for one in first.effects] == ["host-code"]
    assert "host-code" not in {one.id for one in more}


def test_an_operator_on_the_cpu_before_copies_to_the_device_is_another_finding() -> None:
    findings = ta.diagnose(trace(norms("HtoD (Pageable -> Device)"))).findings
    assert {"exposed-copies", "host-code"} <= {one.id for one in findings}


@pytest.mark.parametrize(("same", "name"), [(True, "sample"), (True, "log"), (False, "log")])
def test_host_code_on_what_it_copies_is_one_finding(same: bool, name: str) -> None:
    """A copy of 2 ms after each kernel of 4 ms, then 3 ms of Python."""
    events = []
    for number in range(6):
        at = 10 * MS * number
        copy = host("cuda_runtime", "cudaMemcpyAsync", at + MS, 5 * MS, correlation=2 * number + 1)
        log = host("python_function", f"train.py(9): {name}", at + 5 * US, 9 * MS)
        if not same:
            log |= {"ts": at + 6 * MS + US, "dur": 3 * MS}
            events.append(host("python_function", "train.py(4): load", at + 5 * US, 5_900 * US))
        events += [
            step(number, at, 10 * MS),
            host("cuda_runtime", "cudaLaunchKernel", at, 4 * US, correlation=2 * number),
            device("gemm", at + 4 * US, 4 * MS, correlation=2 * number),
            copy, log,
            host("python_function", "numpy/core.py(77): sort", at + 6 * MS + 2 * US, 2_900 * US),
            device(NAMES["DtoH"], at + 4 * MS + 4 * US, 2 * MS, kind="gpu_memcpy",
                   correlation=2 * number + 1, bytes=1 << 20),
        ]  # fmt: skip
    found = {one.id: one for one in ta.diagnose(trace(events)).diagnosis}
    assert ("exposed-copies" not in found) == same
    assert ("do this on the GPU" in found["host-code"].advice) == (name == "sample")
    cost = 6 * MS if same else 4 * MS
    assert found["host-code"].cost_ns == pytest.approx(cost, abs=20 * US)


@pytest.mark.parametrize(
    ("memory", "gbps", "small_ns", "pageable"),
    [
        ("Pageable -> Device", 30.0, 0, True),
        ("Pinned -> Device", 3.0, 0, False),
        ("Host -> Device", 19.0, 0, True),
        ("Host -> Device", 20.0, 0, False),
        (None, None, 0, True),
        ("Pageable -> Device", 3.0, 901, False),  # 99 of 1,000 ns
        ("Pageable -> Device", 3.0, 800, True),
    ],
)
def test_large_parts_of_pageable_memory(
    memory: str | None, gbps: float | None, small_ns: int, pageable: bool
) -> None:
    names = ("direction", "memory", "rate_gbps", "exposed_ns")
    rows = [("HtoD", memory, gbps, 99), ("HtoD", "Pinned -> Device", 50.0, small_ns)]
    rows = pl.DataFrame(rows, schema=names, orient="row")
    assert copies._are_pageable(rows, ["HtoD"]) == pageable
    assert not copies._are_pageable(rows, ["DtoH"])
