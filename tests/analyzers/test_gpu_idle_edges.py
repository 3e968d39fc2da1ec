"""Idle time at the edges of its definitions: one launch, the profiler at the end, no pids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from comm_traces import GEMM, MS, US, device, host, step, trace

from traceanalyzer import GpuIdle
from traceanalyzer.analyzers.gpu_idle.compute import gpu_idle
from traceanalyzer.trace import issue_rows

Event = dict[str, Any]


def work(number: int, start: int, end: int, **more: Any) -> list[Event]:
    """A kernel and the call that launched it; times in us."""
    call = host("cuda_runtime", "cudaLaunchKernel", (start - 3) * US, 2 * US, correlation=number)
    return [device(GEMM, start * US, (end - start) * US, correlation=number, **more), call]


def idle_by_cause(result: GpuIdle) -> dict[str, int]:
    return {cause: ns // US for cause, ns in result.idle_by_cause.items() if ns}


def test_one_launch_is_sufficient() -> None:
    bare = device(GEMM, 300 * US, 100 * US)
    actual = gpu_idle(trace([*work(1, 0, 100), bare]))
    assert actual.coverage.launches_known
    assert actual.coverage.host_known
    alone = gpu_idle(trace([device(GEMM, 0, 100 * US), bare]))
    assert not alone.coverage.launches_known
    assert not alone.coverage.host_known


@pytest.mark.parametrize(
    ("start", "end", "counts"),
    [
        (0, 250, False),  # begins with the first work
        (1, 250, True),
        (150, 399, True),
        (150, 400, False),  # lasts until the end of the last work
        (50, 450, False),
    ],
)
def test_the_profiler_counts_strictly_between_first_and_last_work(
    start: int, end: int, counts: bool
) -> None:
    flush = host("overhead", "Buffer Flush", start * US, (end - start) * US, tid=0)
    result = gpu_idle(trace([*work(1, 0, 100), *work(2, 300, 400), flush]))
    inside = min(end, 300) - max(start, 100)
    assert idle_by_cause(result).get("profiler_overhead", 0) == (inside if counts else 0)


def test_overhead_counts_for_its_process_only() -> None:
    flush = host("overhead", "Buffer Flush", 120 * US, 100 * US, pid=2, tid=0)
    pieces = [*work(1, 0, 100, pid=1), *work(2, 300, 400, pid=1)]
    assert "profiler_overhead" not in idle_by_cause(gpu_idle(trace([*pieces, flush])))
    same_process = {**flush, "pid": 1}
    assert idle_by_cause(gpu_idle(trace([*pieces, same_process])))["profiler_overhead"] == 100


def test_file_without_process_ids_is_one_process() -> None:
    pieces = [{**event, "pid": None} for event in [*work(1, 5, 100), *work(2, 300, 400)]]
    loading = host("user_annotation", "enumerate(DataLoader)#_X.__next__", 110 * US, 180 * US)
    bare = {**loading, "pid": None}
    gather = {**loading, "name": "gloo:all_reduce", "pid": None}
    assert idle_by_cause(gpu_idle(trace([*pieces, bare])))["dataloading"] == 180
    assert idle_by_cause(gpu_idle(trace([*pieces, gather])))["waiting_for_peer"] == 180


def test_thread_that_marks_steps_counts() -> None:
    launching = [{**event, "tid": 2} for event in [*work(1, 5, 100), *work(2, 300, 400)]]
    loading = host("user_annotation", "enumerate(DataLoader)#_X.__next__", 110 * US, 180 * US)
    other = idle_by_cause(gpu_idle(trace([*launching, loading])))
    assert "dataloading" not in other, "a thread that does neither is a prefetching one"
    looping = [*launching, loading, step(1, 0, 400 * US)]
    assert idle_by_cause(gpu_idle(trace(looping)))["dataloading"] == 180
    elsewhere = [{**event, "pid": 7} for event in looping[-2:]]
    assert "dataloading" not in idle_by_cause(gpu_idle(trace([*launching, *elsewhere])))


def test_span_is_first_to_last_work_and_steps() -> None:
    pieces = [
        *work(1, 100, 200), *work(2, 300, 400), *work(3, 150, 160, device=1),
        *work(4, 180, 190, device=1),
    ]  # fmt: skip
    units = gpu_idle(trace(pieces)).units.sort("device")
    assert units.select("start", "end").rows() == [(100_000, 400_000), (150_000, 190_000)]
    marked = gpu_idle(trace([*pieces, step(1, 50 * US, 500 * US)])).units.sort("device")
    assert marked.select("start", "end").rows() == [(50_000, 550_000)] * 2


@pytest.mark.parametrize(
    ("name", "inner", "kind", "cause"),
    [
        ("sglang/srt/managers/scheduler.py(9): get_next_batch_to_run", "", "", "host_code"),
        ("/opt/site-packages/vllm/worker/runner.py(9): prepare_batch", "", "", "host_code"),
        ("get_next_batch_to_run", "", "user_annotation", "host_code"),
        ("train.py(9): get_next_batch", "", "", "dataloading"),
        ("get_next_batch", "", "user_annotation", "dataloading"),
        ("sglang/srt/managers/scheduler.py(9): recv_requests", "aten::item", "", "host_code"),
        ("tensorrt_llm/py_executor.py(9): _fetch_new_requests", "aten::item", "", "host_code"),
        ("sglang/srt/managers/scheduler.py(9): run_batch", "aten::item", "", "synchronisation"),
        ("train.py(9): recv_requests", "aten::item", "", "synchronisation"),
    ],
)
def test_engines_choose_requests_and_wait_for_them(
    name: str, inner: str, kind: str, cause: str
) -> None:
    """They load no data, and read numbers that other processes send."""
    pieces = [*work(1, 0, 100), *work(2, 1000, 1100)]
    pieces.append(host(kind or "python_function", name, 150 * US, 800 * US))
    if inner:
        pieces.append(host("cpu_op", inner, 160 * US, 780 * US))
    found = idle_by_cause(gpu_idle(trace(pieces)))
    assert max(found, key=found.__getitem__) == cause


@pytest.mark.parametrize(("end", "idle"), [(0, None), (100, 0.0)])
def test_a_share_of_no_time_is_unknown(end: int, idle: float | None) -> None:
    """Not 0, as on a device that is always busy."""
    numbers = gpu_idle(trace(work(1, 0, end))).scalars
    assert (numbers["step_idle_frac"], numbers["idle_frac"]) == (idle, idle)


@pytest.mark.parametrize("on_host", [False, True])
def test_truncated_recording_ends_with_its_last_work(on_host: bool) -> None:
    """Profilers write GPU work last: its lost end is no idle time."""
    operators = [host("cpu_op", "aten::mm", start * US, 100 * US) for start in (0, 300)]
    work_ = operators if on_host else [*work(1, 5, 100), *work(2, 300, 400)]
    marks = [step(1, 0, 250 * US), step(2, 250 * US, 250 * US), step(3, 500 * US, 250 * US)]
    complete = trace([*work_, *marks])
    truncated = replace(complete, issues=issue_rows([("data_loss", "truncated", 1, None)], 0))
    spans = [gpu_idle(one).units["end"].to_list() for one in (complete, truncated)]
    assert spans == [[750 * US], [400 * US]]
    steps = gpu_idle(truncated).steps
    assert steps.select("start", "end").rows() == [(0, 250 * US), (250 * US, 400 * US)]
    assert gpu_idle(truncated).idle_ns == (200 if on_host else 205) * US


def test_main_thread_that_waits_for_the_autograd_thread() -> None:
    """What the autograd thread does counts for the main thread, which waits in run_backward."""
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        host("cpu_op", "aten::mm", 0, 100 * US),
        host("python_function", "<built-in method run_backward>", 100 * US, 300 * US),
        host("cpu_op", node, 150 * US, 200 * US, tid=2),
        host("cpu_op", "aten::mm", 400 * US, 100 * US),
        host("cpu_op", "aten::mm", 0, 500 * US, tid=3),
        step(1, 0, 500 * US),
    ]
    result = gpu_idle(trace(events))
    assert result.coverage.on_host
    assert result.units.height == 1
    assert idle_by_cause(result) == {"host_code": 100}
    elsewhere = [{**event, "pid": 2} if event["tid"] == 2 else event for event in events]
    assert idle_by_cause(gpu_idle(trace(elsewhere))) == {"host_code": 300}


def test_count_and_duration_of_causes() -> None:
    pieces = [*work(1, 0, 100), *work(2, 200, 300), *work(3, 500, 600), *work(4, 601, 700)]
    sync = [
        host("cuda_runtime", "cudaStreamSynchronize", 100 * US, 97 * US),
        host("cuda_runtime", "cudaStreamSynchronize", 300 * US, 150 * US),
    ]
    result = gpu_idle(trace([*pieces, *sync]))
    (row,) = [r for r in result.causes.to_dicts() if r["cause"] == "synchronisation"]
    assert (row["gaps"], row["idle_ns"], row["longest_ns"]) == (2, 247 * US, 150 * US)
    (short,) = [r for r in result.causes.to_dicts() if r["cause"] == "short_gap"]
    assert (short["gaps"], short["idle_ns"]) == (1, US)
    assert result.gap_count == 2


def wait(start: int, end: int) -> Event:
    return host("cuda_runtime", "cudaStreamSynchronize", start * US, (end - start) * US)


def test_range_explains_only_the_gap_of_its_start() -> None:
    pieces = [*work(1, 0, 1000), *work(2, 1200, 1300), *work(3, 1500, 1600)]
    waits = [wait(10, 1002), wait(1210, 1302)]
    epoch = host("user_annotation", "epoch", 1005 * US, 900 * US)
    assert idle_by_cause(gpu_idle(trace([*pieces, *waits]))) == {"synchronisation": 400}
    actual = idle_by_cause(gpu_idle(trace([*pieces, *waits, epoch])))
    assert actual == {"synchronisation": 2 + 3 + 200, "host_code": 195}


def test_host_code_after_a_wait_is_not_synchronisation() -> None:
    """The queue is empty, but the host computes for milliseconds before it launches again."""
    pieces = [*work(1, 0, 20_000), *work(2, 32_000, 33_000), wait(10, 20_002)]
    code = host("python_function", "metrics.py(12): bleu", 10 * US, 31_900 * US)
    result = gpu_idle(trace([*pieces, code]))
    assert idle_by_cause(result) == {"synchronisation": 5, "host_code": 11_995}
    assert result.gaps["own_code"].to_list() == ["metrics.py(12): bleu"]


def test_launches_after_an_empty_queue_are_due_to_the_wait() -> None:
    """Each kernel starts when it is launched, until the gaps are as long as the wait was."""
    starts = [1005, *range(1070, 1490, 70)]  # gaps of 5 and 60 us
    pieces = [event for n, at in enumerate(starts) for event in work(n, at, at + 10)]
    busy = work(99, 0, 1000)
    few = gpu_idle(trace([*busy, *pieces, wait(870, 1002)]))
    assert idle_by_cause(few) == {"synchronisation": 120, "launch_overhead": 240}
    many = gpu_idle(trace([*busy, *pieces, wait(10, 1002)]))
    assert "launch_overhead" not in idle_by_cause(many)
    without = gpu_idle(trace([*busy, *pieces]))
    assert "synchronisation" not in idle_by_cause(without)


@pytest.mark.parametrize(("long", "launching"), [(70, 0), (50, 9 * 38)])
def test_waits_count_together_while_the_host_would_be_ahead(long: int, launching: int) -> None:
    """The host needs 37 us for a launch after each wait, for 10 us or more of each kernel."""
    events, at = [], 0
    for number in range(20):
        end = at + (long if number % 2 == 0 else 10)
        events += [*work(number, at, end), wait(at, end + 2)]
        at = end + 40
    idle = idle_by_cause(gpu_idle(trace(events)))
    assert idle.get("launch_overhead", 0) == launching
    assert sum(idle.values()) == 19 * 40


@pytest.mark.parametrize(("marked", "launching"), [(True, 3), (False, 0)])
def test_a_long_wait_is_no_cause_of_launch_gaps_two_steps_later(
    marked: bool, launching: int
) -> None:
    """After a prefill of 5 ms, each step has nine gaps of 60 us between launches, and a wait."""
    events, steps = [*work(0, 0, 5000), wait(10, 5002)], [step(0, 0, 5003 * US)]
    for number in range(1, 5):
        begin = 5005 + 1000 * (number - 1)
        starts = range(begin, begin + 700, 70)
        events += [
            event for n, at in enumerate(starts) for event in work(100 * number + n, at, at + 10)
        ]
        events.append(wait(begin + 632, begin + 642))
        steps.append(step(number, begin * US - 2 * US, 1000 * US))
    idle = idle_by_cause(gpu_idle(trace([*events, *steps * marked])))
    assert idle.get("launch_overhead", 0) // (9 * 60) == launching


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "cudaLaunchKernel"])
def test_short_gaps_between_nodes_of_a_graph_are_no_case_for_graphs(call: str) -> None:
    replay = host("cuda_runtime", call, 0, 5 * US, correlation=1)
    nodes = [device(GEMM, (10 + 12 * n) * US, 10 * US, correlation=1) for n in range(20)]
    result = gpu_idle(trace([replay, *nodes]))
    assert result.program.replays == (call == "cudaGraphLaunch")
    assert ("nodes of CUDA graphs" in result.advice("short_gap")) == result.program.replays


def test_steps_by_kernels_are_on_the_device() -> None:
    """The host launches all steps at once; they run one after the other."""
    events, number = [], 0
    for begin in range(0, 6_000, 1_000):
        for place, name in enumerate(("embed", "gemm", "softmax", "gemm", "adam")):
            start, number = begin + 200 * place, number + 1
            events.append(device(name, start * US, 190 * US, correlation=number))
            call = ("cuda_runtime", "cudaLaunchKernel", (number - 40) * US, US)
            events.append(host(*call, correlation=number))
    steps = gpu_idle(trace(events)).steps
    lengths = set((steps["end"] - steps["start"]).to_list())
    assert steps.height == 5
    assert max(lengths) <= 1_000 * US


def test_steps_partly_outside_the_window_do_not_count_as_idle():
    events = [step(n, n * 10 * MS, 10 * MS) for n in range(3)]
    events += [device(GEMM, at * MS, MS) for at in range(30)]
    whole = trace(events)
    cut = gpu_idle(whole, since_ns=5 * MS, until_ns=24 * MS)
    assert cut.idle_ns == 0
    assert cut.steps["step"].to_list() == ["ProfilerStep#1"]
    cut = gpu_idle(whole, since_ns=12 * MS, until_ns=15 * MS)
    assert (cut.idle_ns, cut.span_ns) == (0, 3 * MS)


def test_a_device_with_copies_only_has_the_causes_of_its_thread() -> None:
    """Device 1 only receives copies, which the thread starts that launches kernels of device 0."""
    events = []
    for number in range(4):
        at = number * 10 * MS
        for place, name in enumerate(("cudaLaunchKernel", "cudaMemcpyAsync")):
            call = 2 * number + place
            events.append(
                host("cuda_runtime", name, at + 9 * MS + place * 1000, 500, correlation=call)
            )
            work = device("gemm", at + 9 * MS + 5000, MS // 2, correlation=call)
            copy = {"kind": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "device": 1}
            events.append(work | copy if place else work)
        events.append(host("user_annotation", "dataloader", at, 9 * MS))
    result = gpu_idle(trace(events))
    units = {row["device"]: row for row in result.units.iter_rows(named=True)}
    assert units[1]["unknown_ns"] == units[0]["unknown_ns"] == 0
    assert units[1]["dataloading_ns"] > 20 * MS
