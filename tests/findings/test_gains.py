"""Gains of findings: replays of the run without the cause, and what lies off the critical path."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT, SHARED
from replays import usual_changes

import traceanalyzer as ta
from benchmarks.accuracy.cases import Plan
from benchmarks.accuracy.fault import FAULTS
from benchmarks.accuracy.gains import of_plan
from traceanalyzer.findings import gains
from traceanalyzer.findings.result import Diagnosis
from traceanalyzer.result import Finding
from traceanalyzer.trace import Trace

STEPS = 5
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def rank(
    number: int, *, pause: int, compute: int, others: int, name: str = "work", known: bool = True,
    transfer: int = 100 * US,
) -> Trace:  # fmt: skip
    """Return steps of a pause of the host, one kernel, an all_reduce, and a synchronisation.

    Args:
        number: the rank.
        pause: time before the kernel is launched.
        compute: duration of the kernel.
        others: time from the begin of the step to the all_reduce of the other rank.
        name: annotation around the pause.
        known: the file has the number.
        transfer: time of the all_reduce after both have arrived.
    """
    events: list[dict[str, Any]] = []
    length = max(pause + compute, others) + 100 * US + transfer
    more = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2}
    for index in range(STEPS):
        at, ids = index * length, (10 * index + 1, 10 * index + 2)
        ready = at + pause + compute + 20 * US
        done = at + max(pause + compute, others) + 20 * US + transfer
        events += [
            step(index, at, length),
            host("user_annotation", name, at + US, pause - 2 * US),
            host("cuda_runtime", "cudaLaunchKernel", at + pause, 3 * US, correlation=ids[0]),
            host("cuda_runtime", "cudaLaunchKernel", at + pause + 4 * US, 3 * US,
                 correlation=ids[1]),
            host("cuda_runtime", "cudaDeviceSynchronize", at + pause + 8 * US,
                 done + 5 * US - at - pause - 8 * US),
            device(GEMM, at + pause + 5 * US, compute, correlation=ids[0]),
            device(ALL_REDUCE, ready, done - ready, correlation=ids[1], seq=index, **more),
        ]  # fmt: skip
    return trace(events, rank=number if known else None, path=f"rank{number}.json")


def by_id(result: Diagnosis) -> dict[str, Finding]:
    return {one.id: one for one in result.findings}


def off_path(result: Diagnosis) -> list[str]:
    return [note for note in result.input_notes if note.startswith("Off the critical path")]


def grouped(number: int, *, slow: int, steps: int = 3) -> Trace:
    """Return one of four ranks of steps with an all_reduce of two groups; one is slow."""
    events: list[dict[str, Any]] = []
    at = called = 0

    def launch(name: str, until: int, **about: Any) -> None:
        nonlocal at, called
        ids = {"correlation": len(events) + 1}
        events.append(host("cuda_runtime", "cudaLaunchKernel", called, 5 * US, **ids))
        events.append(device(name, max(at, called + 6 * US), until - at, **ids, **about))
        at, called = until, called + 10 * US

    data, model = ([0, 1], [2, 3])[number // 2], [number % 2, number % 2 + 2]
    for index in range(steps):
        begin, end = called, index * (10 + slow) * MS
        for ranks, until in ((model, 5), (data, 10 + (slow if number > 1 else 2))):
            launch(GEMM, at + 5 * MS - US)
            about = {"group": str(ranks), "group_ranks": str(ranks), "group_size": 2, "seq": index}
            launch(ALL_REDUCE, end + until * MS, stream=20, **about)
        events.append(step(index, begin, called - begin))
    return trace(events, rank=number, world_size=4)


def test_a_gain_is_a_share_of_the_longest_rank() -> None:
    """Ranks that wait in the next step for a slow group have a shorter last step."""
    result = ta.diagnose([grouped(number, slow=12) for number in range(4)])
    first = result.findings[0]
    assert (first.id, first.gain_basis) == ("exposed-communication", "replay")
    assert first.gain_frac == pytest.approx(12 / 22, rel=0.03)
    assert any("exceed" in note for note in result.input_notes)


def test_gain_of_a_pause_of_the_slowest_rank() -> None:
    fast = rank(0, pause=100 * US, compute=3 * MS, others=5 * MS, name=LOADER)
    slow = rank(1, pause=2 * MS, compute=3 * MS, others=3100 * US, name=LOADER)
    one = by_id(ta.diagnose([fast, slow]))["data-loading"]
    assert (one.gain_basis, one.rank) == ("replay", 1)
    assert one.gain_ns == pytest.approx(1.9 * MS, rel=0.06)
    assert one.gain_frac == pytest.approx(1.9 / 5.2, rel=0.06)


@pytest.mark.sample(2, "process")
@pytest.mark.parametrize("process", ["MultiProcessing", "SingleProcess"])
@pytest.mark.parametrize(("pause", "transfer"), [(2000, 1500), (4000, 900), (3000, 1200)])
def test_a_late_loader_hides_no_other_cause(process: str, pause: int, transfer: int) -> None:
    """What takes time beside it gains as much, once workers deliver batches in time."""
    name = LOADER.replace("MultiProcessing", process)
    with_loader = {"name": name, "transfer": transfer * US, "compute": 3 * MS}
    fast = rank(0, pause=100 * US, others=pause * US + 3 * MS, **with_loader)
    slow = rank(1, pause=pause * US, others=3100 * US, **with_loader)
    result = ta.diagnose([fast, slow])
    found = by_id(result)
    assert {"data-loading", "exposed-communication"} <= {*found}
    other = found["exposed-communication"]
    assert other.gain_ns == pytest.approx(transfer * US, rel=0.25)
    assert other.severity != "critical" or process == "SingleProcess"
    assert (gains.AFTER_LOADER in other.evidence) == (process == "MultiProcessing")


def test_files_without_ranks_are_replayed_together() -> None:
    """The pause of the second file is its own, although no file has a rank."""
    files = [
        rank(0, pause=100 * US, compute=3 * MS, others=5 * MS, name=LOADER, known=False),
        rank(1, pause=2 * MS, compute=3 * MS, others=3100 * US, name=LOADER, known=False),
    ]
    one = by_id(ta.diagnose(files))["data-loading"]
    assert one.gain_basis == "replay"
    assert one.gain_ns == pytest.approx(1.9 * MS, rel=0.1)


def test_pause_while_another_rank_computes_is_off_the_critical_path() -> None:
    paused = rank(0, pause=2 * MS, compute=3 * MS, others=20 * MS)
    busy = rank(1, pause=20 * US, compute=19980 * US, others=5 * MS)
    result = ta.diagnose([paused, busy])
    assert "host-code" not in by_id(result)
    assert len(off_path(result)) == 1
    assert dict(result.rules[["rule", "status"]].iter_rows())["host-code"] == "passed"


def test_gain_is_that_of_the_run_without_the_pause() -> None:
    paused, fixed = (
        ta.diagnose([rank(number, pause=pause, compute=3 * MS, others=pause + 3 * MS, name=LOADER)
                     for number in range(2)])
        for pause in (2 * MS, 100 * US)
    )  # fmt: skip
    gain = by_id(paused)["data-loading"].gain_ns
    steps = [float(ta.steps(rank(0, pause=pause, compute=3 * MS, others=pause + 3 * MS))
                   .ranks["median_ns"][0]) for pause in (2 * MS, 100 * US)]  # fmt: skip
    assert gain == pytest.approx(steps[0] - steps[1], rel=0.06)
    assert "data-loading" not in by_id(fixed)


def test_cost_is_a_bound_where_nothing_can_be_replayed() -> None:
    work = [device(GEMM, number * MS, MS // 2) for number in range(20)]
    result = ta.diagnose(trace(work))
    timed = [one for one in result.findings if one.cost_ns]
    assert timed
    assert all((one.gain_basis, one.gain_ns) == ("bound", one.cost_ns) for one in timed)
    assert any("not recorded" in note for note in result.input_notes)


@pytest.mark.matrix
def test_gains_are_equal_from_summaries(tmp_path: Path) -> None:
    inputs = [str(path) for path in sorted((ROOT / "fixtures/nccl_8ranks").glob("*.json*"))][:3]
    ta.summarize(inputs, tmp_path)
    findings = [ta.diagnose(given).to_dict()["findings"] for given in (inputs, tmp_path)]
    assert findings[0] == findings[1]
    assert any(one["gain_basis"] == "replay" for one in findings[0])


OFF_PATH = ROOT.parent / "shared/data/causes/chrome/offpath"


@pytest.mark.matrix
@pytest.mark.skipif(not OFF_PATH.exists(), reason="../shared/data is missing")
def test_idle_time_of_the_first_stage_gains_nothing() -> None:
    result = ta.diagnose(OFF_PATH)
    assert by_id(result).keys() == {"straggler"}
    assert len(off_path(result)) == 2


def waiting_host(layers: int = 10) -> Trace:
    """Return steps of kernels of 100 us; the host waits for each of them and then runs 30 us."""
    events: list[dict[str, Any]] = []
    length = 140 * US
    for number in range(4 * layers):
        at, ids = number * length, {"correlation": number + 1}
        if number % layers == 0:
            events.append(step(number // layers, at, layers * length))
        events += [
            host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, **ids),
            device(GEMM, at + 5 * US, 100 * US, **ids),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 4 * US, 106 * US),
        ]
    return trace(events)


def test_without_a_wait_the_host_runs_ahead() -> None:
    """Kernels then follow each other: 40 of 140 us are gained, the delay of launches too."""
    one = by_id(ta.diagnose(waiting_host()))["synchronisation"]
    assert one.gain_basis == "replay"
    assert one.gain_frac == pytest.approx(40 / 140, rel=0.03)


def code_after_waits(kind: str, length: int, writer: str) -> Trace:
    """Return steps of 20 kernels of 0.5 ms, each waited for and followed by 0.1 ms of host code.

    Host code of this length and kind follows the last one; then 40 kernels of 0.1 ms run.
    """
    events: list[dict[str, Any]] = []
    at = ids = 0
    for number in range(STEPS):
        begin = at
        for _ in range(20):
            ids += 1
            events += [
                host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, correlation=ids),
                device(GEMM, at + 5 * US, 500 * US, correlation=ids),
                host("cpu_op", "aten::item", at + 8 * US, 503 * US),
                host("cuda_runtime", "cudaMemcpyAsync", at + 9 * US, 3 * US, correlation=-ids),
                device("Memcpy DtoH (Device -> Pinned)", at + 506 * US, US, kind="gpu_memcpy",
                       bytes=4, correlation=-ids),
                host("cuda_runtime", "cudaStreamSynchronize", at + 13 * US, 497 * US),
            ]  # fmt: skip
            at += 610 * US
        name = {"python_function": "reward.py(22): compute_score"}.get(kind, LOADER)
        events += [host(kind, name, at - 95 * US, length)]
        at += length - 95 * US
        for k in range(40):
            ids += 1
            events += [
                host("cuda_runtime", "cudaLaunchKernel", at + 6 * k * US, 3 * US, correlation=ids),
                device(GEMM, at + 5 * US + 100 * k * US, 100 * US, correlation=ids),
            ]
        at += 4100 * US
        events += [
            step(number, begin, at - begin),
            host("cuda_runtime", "cudaStreamSynchronize", at - 3800 * US, 3790 * US),
        ]
    return trace(events, format=writer)


@pytest.mark.parametrize(("kind", "length", "writer", "gain_us"), [
    ("python_function", 9 * MS, "chrome-trace", 2141),
    ("python_function", 4 * MS, "nsys-sqlite", 2141),
    ("user_annotation", 4 * MS, "chrome-trace", 2165),
    ("python_function", 500 * US, "chrome-trace", 2665),
])  # fmt: skip
def test_long_code_after_a_wait_does_not_begin_before_its_results_exist(
    kind: str, length: int, writer: str, gain_us: int
) -> None:
    """Waits cost 2.1 ms per step: their removal gains that, and what short code overlaps then."""
    one = by_id(ta.diagnose(code_after_waits(kind, length, writer)))["synchronisation"]
    assert one.cost_ns == pytest.approx(2141 * US, rel=0.01)
    assert one.gain_ns == pytest.approx(gain_us * US, rel=0.01)


def slow_launches(each_us: int = 20, *, operators: bool = True, kernels: int = 40) -> Trace:
    """Return steps of kernels of 10 us; after the first ones, each waits for its launch.

    Args:
        each_us: time from launch to launch.
        operators: they were recorded, too.
        kernels: number of kernels in a step.
    """
    events: list[dict[str, Any]] = []
    length = kernels * each_us * US
    for number in range(4 * kernels):
        at, ids = number * each_us * US, {"correlation": number + 1}
        if number % kernels == 0:
            events.append(step(number // kernels, at, length))
            free = at
        start = max(at + 15 * US, free + 2 * US)
        free = start + (150 * US if number % kernels == 0 else 10 * US)
        events += [
            *[host("cpu_op", "aten::mul", at, (each_us - 1) * US)] * operators,
            host("cuda_runtime", "cudaLaunchKernel", at + 10 * US, 5 * US, **ids),
            device(GEMM, start, free - start, **ids),
        ]
    return trace(events)


@pytest.mark.parametrize(
    ("run", "severity", "confidence", "gain"),
    [
        (slow_launches(), "info", "low", 0.22),
        (slow_launches(200), "critical", "high", 0.93),
        (slow_launches(operators=False), "critical", "high", 0.22),
    ],
    ids=["as slow as the profiler makes it", "slower than that", "nothing that slows the host"],
)
def test_what_the_profiler_may_cause_is_no_certain_problem(
    run: Trace, severity: str, confidence: str, gain: float
) -> None:
    """An operator and two calls for each kernel cost at most 15 us, beside launches of 5 us."""
    one = by_id(ta.diagnose(run))["launch-bound"]
    assert (one.severity, one.confidence) == (severity, confidence)
    assert (one.gain_basis == "bound") == (confidence == "low")
    assert one.gain_frac == pytest.approx(gain, abs=0.01)


def test_without_launch_overhead_the_gaps_of_queued_kernels_remain() -> None:
    """Of 800 us of a step, the kernels need 150 and 39 times 10 us, and gaps of 2 us between."""
    run = slow_launches()
    launching = by_id(ta.diagnose(run))["launch-bound"].gain_frac
    gains = dict(usual_changes(run).changes.select("change", "gain_frac").iter_rows())
    assert launching == pytest.approx(1 - (150 + 39 * 12) / 800, abs=0.02)
    assert gains["no host time for operators and launches"] == pytest.approx(launching, abs=0.01)


def loading_after_wait(compute: int) -> Trace:
    """Return steps of a kernel that the host waits for, and 1 ms of data loading after it."""
    events: list[dict[str, Any]] = []
    length = compute + MS + 30 * US
    for number in range(6):
        at, ids = number * length, {"correlation": number + 1}
        events += [
            step(number, at, length),
            host(
                "user_annotation", LOADER.replace("MultiProcessing", "SingleProcess"), at + US, MS
            ),
            host("cuda_runtime", "cudaLaunchKernel", at + MS + 2 * US, 3 * US, **ids),
            device(GEMM, at + MS + 8 * US, compute, **ids),
            host("cuda_runtime", "cudaDeviceSynchronize", at + MS + 6 * US, compute + 20 * US),
        ]
    return trace(events)


@pytest.mark.parametrize(("compute", "ahead"), [(5 * MS, True), (MS // 2, False)])
def test_advice_to_run_ahead_if_the_host_waits_long_enough(compute: int, ahead: bool) -> None:
    """While the device works for half as long as loading takes, the host cannot run ahead."""
    run = loading_after_wait(compute)
    advice = by_id(ta.diagnose(run))["data-loading"].advice
    assert ("cudaDeviceSynchronize" in advice) == ahead
    if ahead:
        gains = dict(usual_changes(run).changes.select("change", "gain_ns").iter_rows())
        assert gains["no waits of the host for the device"] == pytest.approx(
            gains["no data loading"], rel=0.05
        )


def code_after_copy(operator: str, copy: str) -> Trace:
    """Return steps of a kernel, a blocking copy of 8 bytes after it, and 1 ms of host code."""
    events: list[dict[str, Any]] = []
    for number in range(STEPS):
        at, length = number * 7 * MS, 5 * MS
        kernel, copied = ({"correlation": 10 * number + n} for n in (1, 2))
        until = at + length + 30 * US
        events += [
            step(number, at, 7 * MS),
            host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, **kernel),
            device(GEMM, at + 8 * US, length, **kernel),
            host("cpu_op", operator, at + 10 * US, until - at - 8 * US),
            host("cuda_runtime", "cudaMemcpyAsync", at + 12 * US, 5 * US, **copied),
            device(copy, at + length + 10 * US, 2 * US, **copied, bytes=8) | {"kind": "gpu_memcpy"},
            host("cuda_runtime", "cudaStreamSynchronize", at + 20 * US, until - at - 20 * US),
            host("python_function", "train.py(9): predict", until + 5 * US, 1900 * US),
        ]
    return trace(events)


@pytest.mark.parametrize(
    ("operator", "copy"),
    [
        ("aten::to", "Memcpy HtoD (Pageable -> Device)"),
        ("aten::item", "Memcpy DtoH (Device -> Pageable)"),
    ],
)
def test_a_blocking_copy_before_host_code_is_named_as_the_wait(operator: str, copy: str) -> None:
    one = by_id(ta.diagnose(code_after_copy(operator, copy)))["host-code"]
    assert "predict" in one.title
    assert f"cudaStreamSynchronize in {operator}" in one.advice


def with_callback(steps: int = 4) -> Trace:
    """Return steps of a kernel of 1 ms and a callback of 1 ms after it, also in the last step."""
    events: list[dict[str, Any]] = []
    for number in range(steps):
        at, ids = number * 2 * MS, {"correlation": number + 1}
        events += [
            step(number, at, 2 * MS),
            host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, **ids),
            device(GEMM, at + 5 * US, MS, **ids),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 4 * US, MS + 2 * US),
            host("user_annotation", "on_batch_end", at + MS + 10 * US, 980 * US),
        ]
    return trace(events)


def test_a_pause_after_the_last_work_is_in_cost_and_gain() -> None:
    one = by_id(ta.diagnose(with_callback()))["host-code"]
    assert one.cost_frac == pytest.approx(0.5, rel=0.03)
    assert one.gain_frac == pytest.approx(one.cost_frac, rel=0.03)


def test_a_pause_between_the_last_whole_repeat_and_the_next_is_in_cost_and_gain() -> None:
    """Steps without marks end where the next one begins: the host allocates for 1 ms before it."""
    events: list[dict[str, Any]] = []
    names = (GEMM, "softmax_kernel", "adam_kernel")
    for number in range(11):
        at = number * 4030 * US
        for nth, name in enumerate(names if number < 10 else names[:1]):
            ids = {"correlation": 10 * number + nth + 1}
            called = at + nth * 4 * US
            events.append(host("cuda_runtime", "cudaLaunchKernel", called, 3 * US, **ids))
            events.append(device(name, at + 10 * US + nth * MS, MS - 2 * US, **ids))
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", at + 14 * US, 3 * MS))
        events.append(host("cuda_runtime", "cudaMalloc", at + 3020 * US, MS))
    one = by_id(ta.diagnose(trace(events)))["memory-management"]
    assert one.cost_frac == pytest.approx(1 / 4.03, rel=0.01)
    assert one.gain_frac == pytest.approx(one.cost_frac, rel=0.01)


def reducing(number: int, count: int, ranks: int) -> Trace:
    """Return steps of 10 ms of compute and reductions of 2 ms after it."""
    events: list[dict[str, Any]] = []
    more = {"group": "0", "group_ranks": str([*range(ranks)]), "group_size": ranks}
    length = (10 + 2 * count) * MS
    for index in range(4):
        at = index * length
        events.append(step(index, at, length))
        for n in range(count + 1):
            name, ns = (ALL_REDUCE, 2 * MS) if n else (GEMM, 10 * MS)
            begin = at + (10 + 2 * (n - 1)) * MS if n else at + 10 * US
            about = {"seq": index * count + n, "stream": 20, **more} if n else {}
            ids = {"correlation": index * 10 + n + 1}
            called = at + n * 5 * US
            events.append(host("cuda_runtime", "cudaLaunchKernel", called, 3 * US, **ids))
            events.append(device(name, begin, ns - 10 * US, **ids, **about))
        waits = at + (count + 1) * 5 * US
        until = at + length - 4 * US - waits
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", waits, until))
    return trace(events, rank=number)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize(("count", "gained"), [(1, 1), (4, 3)])
def test_the_last_of_several_reductions_is_no_gain(count: int, gained: int, ranks: int) -> None:
    """Also of two of eight ranks."""
    found = by_id(ta.diagnose([reducing(number, count, ranks) for number in range(2)]))
    one = found["exposed-communication"]
    assert one.cost_frac == pytest.approx(2 * count / (10 + 2 * count), rel=0.05)
    assert one.gain_frac == pytest.approx(one.cost_frac * gained / count, rel=0.05)


def parallel(number: int, *, transfer: int, copy: int) -> Trace:
    """Return steps of a kernel, then a reduction and a copy to the host on streams of their own."""
    events: list[dict[str, Any]] = []
    length = 4 * MS + max(transfer, copy) + 100 * US
    group = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2}
    for index in range(STEPS):
        at, end = index * length, 4 * MS + 20 * US
        works: list[tuple[str, int, int, dict[str, Any]]] = [
            (GEMM, 20 * US, 4 * MS, {}),
            (ALL_REDUCE, end, transfer, {"stream": 20, "seq": index, **group}),
            ("Memcpy DtoH (Device -> Pinned)", end, copy, {"stream": 30, "kind": "gpu_memcpy"}),
        ]
        events.append(step(index, at, length))
        done = at + length - 20 * US
        for place, (name, start, ns, about) in enumerate(works):
            ids, kind = {"correlation": 3 * index + place + 1}, about.pop("kind", "kernel")
            call = "cudaMemcpyAsync" if kind == "gpu_memcpy" else "cudaLaunchKernel"
            events += [
                host("cuda_runtime", call, at + 5 * place * US, 3 * US, **ids),
                device(name, at + start, ns, **ids, **about) | {"kind": kind},
            ]
        events.append(
            host("cuda_runtime", "cudaDeviceSynchronize", at + 18 * US, done - at - 18 * US)
        )
    return trace(events, rank=number, world_size=2)


@pytest.mark.parametrize(
    ("transfer", "copy", "gained", "is_pair"), [(7, 7, 7, True), (7, 2, 5, False)]
)
def test_a_copy_at_the_time_of_a_transfer_counts_with_it(
    transfer: int, copy: int, gained: int, *, is_pair: bool
) -> None:
    """Without the transfer alone, the step lasts until the copy ends."""
    ranks = [parallel(n, transfer=transfer * MS, copy=copy * MS) for n in range(2)]
    one = by_id(ta.diagnose(ranks))["exposed-communication"]
    assert (one.fix == "with-others") == is_pair
    assert one.gain_frac == pytest.approx(gained / (4 + transfer), abs=0.03)
    assert "host time" in one.gain_change or not is_pair


@pytest.mark.parametrize(
    ("name", "percent"), [("ddp4", 5), ("ddp4", 70), ("slow_loader", 60), ("slow_loader", 80)]
)
def test_loading_in_a_truncated_file_is_a_finding(
    name: str, percent: int, shared: Path, tmp_path: Path
) -> None:
    """Before the first call, it is not in the replay of a run without complete steps."""
    whole = gzip.decompress(
        (shared / "data/chrome/kineto_ddp_cpu" / name / "rank0.json.gz").read_bytes()
    )
    (tmp_path / "cut.json").write_bytes(whole[: len(whole) * percent // 100])
    result = ta.diagnose(tmp_path / "cut.json")
    share = result.budget.filter(part="idle", name="data loading")["time_frac"].item()
    assert share > 0.4
    assert by_id(result)["data-loading"].cost_frac == pytest.approx(share)


@pytest.mark.parametrize(
    ("path", "id_"),
    [
        (SHARED / "data" / "whatif" / "kineto", "slow-link"),
        (ROOT / "fixtures" / "nccl_8ranks", "slow-collectives"),
    ],
)
def test_a_faster_link_gains_at_most_what_instant_transfers_gain(path: Path, id_: str) -> None:
    """What the host does during a slow transfer takes as long with a faster one."""
    if not path.exists():
        pytest.skip(f"{path} is missing")
    result = ta.what_if(path)
    gains = dict(result.changes.select("change", "gain_ns").iter_rows())
    one = result.findings.row(by_predicate=pl.col("finding") == id_, named=True)
    assert 0.02 * result.replayed_ns < one["gain_ns"] <= gains["instant transfers"]


def test_slow_transfers_of_a_program_that_waits_for_launches_gain_nothing() -> None:
    """The device waits for transfers, and the host launches all the time: only that counts."""
    events: list[dict[str, Any]] = []
    kernels, each = 20, 100 * US
    for number in range(4 * kernels):
        at, ids = number * each, {"correlation": 2 * number + 1}
        if number % kernels == 0:
            events.append(step(number // kernels, at, kernels * each))
        slow = 60 * US if number % kernels in (5, 11) else 6 * US
        more = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2, "elements_in": 1 << 10}
        events += [
            host("cpu_op", "aten::mul", at, 99 * US),
            host("cuda_runtime", "cudaLaunchKernel", at + 10 * US, 5 * US, **ids),
            device(GEMM, at + 16 * US, 10 * US, **ids),
            host("cuda_runtime", "cudaLaunchKernel", at + 20 * US, 5 * US, correlation=2 * number),
            device(
                ALL_REDUCE, at + 30 * US, slow, correlation=2 * number, stream=20, seq=number,
                dtype="float", **more,
            ),
        ]  # fmt: skip
    found = ta.diagnose(trace(events, rank=0))
    assert [text for text in off_path(found) if "took much longer" in text]
    assert "collective-outliers" not in by_id(found)


@pytest.mark.parametrize(
    ("path", "share_time"),
    [("chrome/kineto/nccl_a100_rank0of2.json.gz", True), ("attribution/b12.json", False)],
)
def test_gains_that_share_time_are_more_than_all_together(
    path: str, share_time: bool, shared: Path
) -> None:
    """Several pauses of the host at the same time."""
    notes = ta.diagnose(shared / "data" / path).input_notes
    (note,) = (text for text in notes if text.startswith("All gains together"))
    assert ("less than their sum" in note) == share_time


def test_gains_of_different_steps_share_no_time() -> None:
    """Checkpoints are in some steps, the loader is slow in each step after the first."""
    notes = ta.diagnose(ROOT / "fixtures/ddp_gloo_4ranks").input_notes
    (note,) = (text for text in notes if text.startswith("All gains together"))
    assert "because some time counts in several" not in note
    assert "means of all steps" in note


@pytest.mark.parametrize(("path", "has_gains"), [("b3.json", False), ("b12.json", True)])
def test_notes_explain_gains_only_if_there_are_some(
    path: str, has_gains: bool, shared: Path
) -> None:
    found = ta.diagnose(shared / "data" / "attribution" / path)
    assert bool(found.findings) == has_gains
    assert any(text.startswith("Gain: ") for text in found.input_notes) == has_gains


def launching(name: str, each_us: int) -> Trace:
    """Return steps of 40 launches, 20 us apart, of kernels of this name and duration."""
    events: list[dict[str, Any]] = []
    apart = max(20, each_us) * US
    for number in range(5):
        begin = number * 41 * apart
        events.append(step(number, begin, 40 * apart + 10 * US))
        waits = 40 * (apart - 20 * US) + 7 * US
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", begin + 800 * US, waits))
        for n in range(40):
            at, ids = begin + n * 20 * US, {"correlation": 40 * number + n}
            events.append(host("cuda_runtime", "cudaLaunchKernel", at, 15 * US, **ids))
            events.append(device(name, begin + n * apart + 6 * US, each_us * US, **ids))
    return trace(events)


def test_faster_kernels_gain_nothing_while_the_host_is_the_limit() -> None:
    bound = ta.diagnose(launching("volta_sgemm_32x128_tn", 10))
    assert "no-tensor-cores" not in by_id(bound)
    assert any("single precision" in note for note in off_path(bound))
    busy = ta.diagnose(launching("volta_sgemm_32x128_tn", 60))
    assert by_id(busy)["no-tensor-cores"].gain_basis == "bound"


def test_loop_over_recurrent_cells() -> None:
    one = by_id(ta.diagnose(launching("void kernel::lstm_cell_forward<float, int, 1>()", 5)))
    assert "LSTMCell 40 times per step" in one["launch-bound"].title
    assert "torch.nn.LSTM " in one["launch-bound"].advice


@pytest.mark.parametrize("pause", [0, 300])
def test_host_code_after_waits_is_part_of_them_unless_it_has_a_name(pause: int) -> None:
    """Timers: each kernel of 400 us is waited for, and 60 us of host code follow the wait.

    A longer pause in each step has a name.
    """
    events: list[dict[str, Any]] = []
    length = (2400 + pause) * US
    for number in range(24):
        at, ids = 600 * US * number + number // 4 * pause * US, {"correlation": number + 1}
        if number % 4 == 0:
            events.append(step(number // 4, at, length))
        events += [
            host("cuda_runtime", "cudaLaunchKernel", at + US, 3 * US, **ids),
            device(GEMM, at + 10 * US, 400 * US, **ids),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 5 * US, 530 * US),
        ]
        if pause and number % 4 == 3:
            events.append(host("user_annotation", "tokenize", at + 536 * US, (pause + 60) * US))
    found = by_id(ta.diagnose(trace(events)))
    assert ("host-code" in found) == bool(pause)
    waits = 130 if pause else 196
    assert found["synchronisation"].cost_frac == pytest.approx(4 * waits / (2400 + pause), abs=0.02)


def test_a_pause_gains_nothing_if_a_loader_limits_the_run(shared: Path) -> None:
    """Rank 1 sleeps for 41 ms in a step, but rank 0 gets a batch each 51 ms in all steps."""
    result = ta.diagnose(shared / "data/chrome/kineto_ddp_cpu/ddp4_stack")
    assert "host-code" not in by_id(result)
    assert any("Off the critical path" in one and "sleeps" in one for one in result.input_notes)


@pytest.mark.parametrize(
    ("problem", "typical", "of_all", "staged"),
    [
        ({"id": "straggler", "rank": 1}, (1,), False, False),
        ({"id": "straggler", "ranks": (1, 2)}, (1, 2), True, False),
        ({"id": "unequal-work", "ranks": (1, 2)}, (1, 2), False, False),
        ({"id": "slow-gpu", "ranks": (1,), "fix": "move-layers"}, (), False, True),
        ({"id": "unknown-idleness", "rank": 1}, (), False, False),
    ],
)
def test_what_of_the_ranks_of_a_finding_changes(
    problem: dict[str, Any], typical: tuple[int, ...], of_all: bool, staged: bool
) -> None:
    texts = {"title": "", "evidence": (), "advice": "", "analysis": "comm_outliers"}
    one = Finding(**{"severity": "info", "confidence": "low", **texts, **problem})
    change = gains._like_others(gains._ranks(one), [one])
    assert change.typical_ranks == typical
    assert (change.of_all, change.equal_stages) == (of_all, staged)
    assert change.only_work == (one.id == "unequal-work")


def test_copies_of_one_slow_rank_gain_what_the_job_without_them_takes_less() -> None:
    """Copies of one rank at 3 instead of 50 GB/s."""
    fault = FAULTS["slow-host-copies-on-one-rank"]
    (one,) = of_plan(Plan("copies", (fault,), 201, "sharded", 4))
    assert one.gain_ns == pytest.approx(one.true_ns, rel=0.1)


def test_one_file_of_very_many_ranks(tmp_path: Path) -> None:
    """So many ranks would be above the limit, each of a few kernels."""
    text = gzip.decompress((ROOT / "fixtures/nccl_8ranks/rank0.json.gz").read_bytes())
    file = tmp_path / "rank0.json"
    file.write_bytes(text.replace(b'"world_size": 8', b'"world_size": 10000000'))
    result = ta.diagnose(file)
    assert result.diagnosis
    assert usual_changes(file).kernels > 0


def ahead(number: int, *, load: int, transfer: int) -> Trace:
    """Return a rank whose host waits for batches and runs ahead of the device; an exposed sum."""
    events: list[dict[str, Any]] = []
    more = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2}
    for index in range(STEPS):
        at, free = index * (load + MS), load + MS + index * (8 * MS + transfer)
        events += [
            step(index, at, load + MS),
            host("user_annotation", LOADER, at + US, load if number else 20 * US),
        ]
        for place, (name, start, ns) in enumerate(
            ((GEMM, free, 8 * MS), (ALL_REDUCE, free + 8 * MS, transfer))
        ):
            ids = {"correlation": 2 * index + place + 1}
            call = at + load + (10 + 10 * place) * US
            events += [
                host("cuda_runtime", "cudaLaunchKernel", call, 3 * US, **ids),
                device(name, start, ns - US, **ids, **(more | {"seq": index} if place else {})),
            ]
    return trace(events, rank=number, path=f"rank{number}.json")


@pytest.mark.parametrize(("load", "gains_all"), [(2, True), (11, False)])
def test_batches_limit_gains_only_if_they_take_as_long_as_the_steps(
    load: int, *, gains_all: bool
) -> None:
    """Steps of 12 ms on the device have 4 ms of exposed communication; batches come every 3, 12."""
    ranks = [ahead(number, load=load * MS, transfer=4 * MS) for number in range(2)]
    one = by_id(ta.diagnose(ranks)).get("exposed-communication")
    gain = 0.0 if one is None else one.gain_frac
    assert gain == pytest.approx(4 / 12 if gains_all else 0.0, abs=0.03)
