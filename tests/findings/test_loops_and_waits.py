"""Loops of small kernels, threads without CPUs, stalls, and programs that wait by design."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from comm_traces import MS, US, device, host, step, trace
from diagnosing import judged
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.common.names import frame_text, matches
from traceanalyzer.analyzers.common.waits import (
    DEVICE,
    QUEUE,
    RANKS,
    REQUESTS,
    THREAD,
    wait_of,
)
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.memory.growth import _is_regular
from traceanalyzer.trace import Trace

GATHER = "void at::native::index_elementwise_kernel<128, 4>()"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"
_numbers = iter(range(1 << 30))
_Events = list[dict[str, Any]]


# --- loops -----------------------------------------------------------------------------------


def launch(name: str, at: int, ns: int) -> Iterator[dict[str, Any]]:
    number = next(_numbers)
    yield host("cuda_runtime", "cudaLaunchKernel", at, US, correlation=number)
    yield device(name, at + US, ns, correlation=number)


def looping(
    kernels: list[str], times: int, frame: str = "model.py(7): scan", *, apart: bool = True
) -> Trace:
    """Return three steps of 10 ms: a product of 5 ms, then a loop with kernels of 10 us."""
    events: _Events = []
    for number in range(3):
        at = number * 10 * MS
        events += [step(number, at, 10 * MS), *launch("gemm", at, 5 * MS)]
        at, n = at + 6 * MS, times * len(kernels)
        events += [host("python_function", frame, at, n * 12 * US)] if frame else []
        events += [] if apart else [host("cpu_op", "aten::scan", at, n * 12 * US)]
        for kernel in kernels * times:
            events += [host("cpu_op", "aten::op", at, 11 * US), *launch(kernel, at, 10 * US)]
            at += 12 * US
    return trace(events)


@pytest.mark.parametrize(
    ("kernels", "times"), [([GATHER], 32), ([ADD, GATHER, "sm90_gemm"], 130), ([ADD, GATHER], 48)]
)
def test_a_loop_of_small_kernels(kernels: list[str], times: int) -> None:
    (one,) = judged("tensor-loop", looping(kernels, times))
    n = len(kernels) * times
    assert f"scan (model.py:7) launches {n} small kernels per step" in one.title
    assert f"{len(kernels)} per iteration" in one.title
    assert 3 * n * 10 * US <= (one.total_ns or 0) <= 3 * n * 12 * US
    check_wording(one.title, *one.evidence, one.advice)


@pytest.mark.parametrize(
    ("mark", "regions", "found"),
    [
        ("TorchDynamo Cache Lookup", 12, True),
        ("Torch-Compiled Region: {}/0", 6, True),
        ("Torch-Compiled Region: 0/0", 6, False),  # one graph, called for each micro-batch
        ("TorchDynamo Cache Lookup", 2, False),
        ("aten::zeros", 12, False),
    ],
)
def test_graph_breaks_between_compiled_regions(mark: str, regions: int, found: bool) -> None:
    """A compiled model, loss and optimizer are no breaks."""
    events: _Events = []
    for number in range(4):
        begin = number * regions * 100 * US
        events.append(step(number, begin, regions * 100 * US))
        for number_of, at in enumerate(range(begin, begin + regions * 100 * US, 100 * US)):
            wrapper = "torch/_dynamo/eval_frame.py(745): compile_wrapper"
            events += [host("python_function", "model.py(12): forward", at, 99 * US)]
            events += [host("python_function", wrapper, at + US, 95 * US)]
            events += [host("cpu_op", mark.format(number_of), at + 2 * US, 70 * US)]
            events += launch("triton_poi_fused_0", at + 80 * US, 5 * US)
    (one,) = judged("launch-bound", trace(events))
    assert (f"{regions} compiled regions per step" in one.title) == found
    assert ("fullgraph" in one.advice) == found


@pytest.mark.parametrize(
    "one",
    [
        looping([GATHER], 12),
        looping([GATHER], 32, frame=""),
        looping([ADD, GATHER], 48, apart=False),
        looping(["sm90_gemm"], 40),
        looping(["void multi_tensor_apply_kernel<Adam>()"], 40),
        looping([ADD, GATHER, ADD + "1", GATHER + "1", ADD + "2"], 20),
        looping(["sm90_gemm", ADD], 24),
        looping([ADD, GATHER, "Memcpy DtoH (Device -> Pageable)"], 40),
        looping([ADD, "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)"], 40),
    ],
    ids=[
        "few",
        "no frame",
        "one operator",
        "products",
        "tensors",
        "long",
        "layers",
        "reads",
        "sends",
    ],
)
def test_other_kernels_are_no_loop(one: Trace) -> None:
    assert not judged("tensor-loop", one)


def calling(
    frame: str, kernels: list[str], *, times: int = 6, passes: int = 1, together: bool = False
) -> Trace:
    """Return three steps of 10 ms: a function that launches kernels of 100 us before each product.

    The calls are in so many forward passes, or, if 0, in none. With ``together``, the products
    follow all calls.
    """
    events: _Events = []
    for number in range(3):
        at = number * 10 * MS
        events.append(step(number, at, 10 * MS))
        for layer in range(times):
            begin, names = at, kernels[: 1 + layer] if len(kernels) > 2 else kernels
            events.append(host("python_function", frame.format(layer), at, len(names) * 110 * US))
            for kernel in names:
                events += launch(kernel, at + US, 100 * US)
                at += 110 * US
            if not together:
                events += launch("gemm", at, MS)
                at += MS + 10 * US
            if passes > 1:
                events.append(host("python_function", "nn.Module: Model_0", begin, at - begin))
        if passes == 1:
            begin = number * 10 * MS
            events.append(host("python_function", "nn.Module: Model_0", begin, at - begin))
        events += launch("gemm", at, MS)
    return trace(events)


COS, MASKS = ADD.replace("CUDAFunctor_add", "cos_kernel_cuda"), [GATHER, ADD]


@pytest.mark.parametrize(
    ("one", "kernels"),
    [
        (calling("flex_attention.py(890): create_block_mask", MASKS), 10),
        (calling("nn.Module: LlamaRotaryEmbedding_{}", [COS]), 5),
        (calling("utils.py(61): _get_unpad_data", [GATHER], times=4), 3),
        (calling("nn.Module: LlamaRotaryEmbedding_{}", [GATHER]), 0),  # it applies the table
        (calling("model.py(7): make_mask", MASKS, times=3), 0),
        (calling("model.py(7): make_mask", MASKS, passes=6), 0),  # of micro-batches, or tokens
        (calling("model.py(7): make_mask", MASKS, passes=0), 0),  # of tokens, perhaps
        (calling("model.py(7): make_masks", MASKS, together=True), 0),  # of images of a batch
        (calling("model.py(7): make_mask", [*MASKS, "sm90_gemm"]), 0),
        (calling("model.py(7): make_mask", [str(n) for n in range(6)]), 0),  # not equal
        (calling("model.py(7): get_dropout_mask", MASKS), 0),
        (calling("model.py(7): apply_mask", MASKS), 0),
    ],
)
def test_work_that_all_layers_could_share(one: Trace, kernels: int) -> None:
    found = [found for found in judged("one-kernel", one) if "in a pass" in found.title]
    assert [found.total_ns for found in found] == [3 * kernels * 100 * US] * (kernels > 0)
    for shared in found:
        check_wording(shared.title, shared.advice)


def waiting_in(frame: str, calls: int) -> Trace:
    """Return three steps of 10 ms in which a function of a library waits for products so often."""
    events: _Events = []
    for number in range(3):
        begin, each = number * 10 * MS, 10 * MS // calls
        events.append(step(number, begin, 10 * MS))
        events.append(host("python_function", "train.py(9): run", begin, 10 * MS - US))
        for at in range(begin, begin + calls * each, each):
            events += launch("gemm", at, each // 2)
            until = each // 2 + 2 * US
            events += [
                host("python_function", frame, at + 2 * US, until),
                host("cpu_op", "aten::nonzero", at + 3 * US, until - 2 * US),
                host("cuda_runtime", "cudaStreamSynchronize", at + 4 * US, until - 4 * US),
                host("cpu_op", "aten::cumsum", at + until + 3 * US, each // 2 - 9 * US),
            ]
    return trace(events)


UNPAD = "transformers/modeling_flash_attention_utils.py(75): _get_unpad_data"


@pytest.mark.parametrize(
    ("frame", "calls", "shared"),
    [(UNPAD, 24, True), (UNPAD, 2, False), ("torch/nn/utils/rnn.py(9): sort_lengths", 24, False)],
)
def test_waits_of_a_function_that_layers_could_share(frame: str, calls: int, shared: bool) -> None:
    (one,) = judged("synchronisation", waiting_in(frame, calls))
    function = frame_text(frame)
    assert f"in {function}, run (train.py:9)" in one.title
    assert one.advice.startswith(f"{function} waits for the GPU {calls} times per step") == shared
    check_wording(one.title, one.advice)


@pytest.mark.parametrize(
    ("name", "compiled", "share"),
    [
        ("_compile.compile_inner (dynamo_timed)", (0, 1, 2, 3, 4, 5), 0.89),
        ("_compile.compile_inner (dynamo_timed)", (5,), 0.4),
        ("backward._backward_impl (dynamo_timed)", (2, 3, 4, 5), 0.8),
        ("build_guards", (0, 1, 2, 3, 4, 5), 0.0),
    ],
)
def test_compilation_on_the_cpu_in_steps(
    name: str, compiled: tuple[int, ...], share: float
) -> None:
    """What compiles in all steps is no setup, even if the first ones take longer."""
    events: _Events = []
    at = 0
    for number in range(6):
        begin, ns = at, (80 if number > 2 else 240) * MS
        if number in compiled:
            events += [host("cpu_op", name, at + US, ns)]
            events += [host("cpu_op", "aten::mm", at + ns // 4, ns // 4)]
            at += ns
        events += [host("cpu_op", "aten::mm", at + 2 * US, 20 * MS)]
        at += 20 * MS + 10 * US
        events.append(step(number, begin, at - begin))
    recording = trace(events)
    found = judged("compiling-steps", recording)
    assert [one.size for one in found] == [pytest.approx(share, abs=0.05)] * (share > 0)
    if len(compiled) == 6 and share:
        first, *others = ta.diagnose(recording).findings
        assert (first.id, first.severity) == ("compiling-steps", "critical")
        assert not any("one-time setup" in one.advice for one in others)


# --- threads without CPUs ----------------------------------------------------------------------


def on_cpu(times: Callable[[int, int], float], kernel: bool = False) -> Trace:
    """Return four steps of 60 operators of the CPU, which take so many ms."""
    events: _Events = list(launch("gemm", 0, MS)) if kernel else []
    at = 0
    for number in range(4):
        calls, begin = [], at
        for n in range(60):
            ns = round(times(number, n) * MS)
            calls.append(host("cpu_op", f"aten::op{n % 5}", at, ns))
            at += ns + 5 * US
        events += [step(number, begin, at - begin), *calls]
    return trace(events)


@pytest.mark.parametrize(
    ("times", "least"),
    [
        (lambda step, n: 8 if (3 * n + step) % 4 else 1, 6.25),
        (lambda step, n: 5 if (n + step) % 2 else 1, 3),
        (lambda step, n: 1 + (7 * n + 5 * step) % 11, 2),
    ],
)
def test_threads_without_cpus(times: Callable[[int, int], float], least: float) -> None:
    (one,) = judged("contended-cpus", on_cpu(times))
    assert one.size is not None
    assert 1 - 1 / least - 0.05 <= one.size < 1
    check_wording(one.title, one.advice)


@pytest.mark.parametrize(
    "one",
    [
        on_cpu(lambda _, n: 1 + n % 3),
        on_cpu(lambda step, _: 1 + 3 * step),
        on_cpu(lambda step, n: 100 if (step, n) == (2, 5) else 1),
        on_cpu(lambda step, n: (8 if (3 * n + step) % 4 else 1) / 30),
        on_cpu(lambda step, n: 8 if (3 * n + step) % 4 else 1, kernel=True),
        on_cpu(lambda step, n: 8 if (n // 15 + step) % 4 else 1 + n % 2),
        on_cpu(lambda step, n: 1 + (7 * (n // 6) + 5 * step) % 11),
        on_cpu(lambda step, n: (1 + n % 3) * (1 + (5 * (n // 4) + 3 * step) % 7)),
    ],
    ids=["equal", "larger inputs", "one stall", "short", "a GPU", "lengths", "experts", "samples"],
)
def test_other_differences_are_no_lack_of_cpus(one: Trace) -> None:
    assert not judged("contended-cpus", one)


def test_the_least_of_several_processes_without_cpus_is_named() -> None:
    often = on_cpu(lambda step, n: 8 if (3 * n + step) % 4 else 1)
    less = on_cpu(lambda step, n: 5 if (n + step) % 2 else 1)
    (one,) = judged("contended-cpus", *(trace(each.events.to_dicts(), rank)
                                        for rank, each in enumerate((often, less))))  # fmt: skip
    assert "2 processes" in one.title
    assert "at least 3.0 times" in one.title
    assert one.size == pytest.approx(1 - 1 / 6.25, abs=0.05)


#: Times of operators of threads that lack CPUs.
def delayed(step: int, n: int) -> float:
    return 8 if (3 * n + step) % 4 else 1


def with_code(ms: Callable[[int], int], pieces: int = 1, *, loader: bool = False) -> Trace:
    """Return six steps of such operators on three threads, with code that takes so many ms."""
    events: _Events = []
    at = 0
    for number in range(6):
        calls, begin = [], at
        for n in range(40):
            if n % (40 // pieces) == 0 and (ns := ms(number) * MS // pieces):
                calls.append(host("python_function", "train.py(12): augment", at, ns))
                if loader:
                    calls.append(host("user_annotation", LOADER, at - US, ns + US))
                at += ns + US
            for tid in (1, 2, 3):
                calls.append(
                    host(
                        "cpu_op",
                        f"aten::op{n % 5}",
                        at,
                        round(delayed(number + tid, n) * MS),
                        tid=tid,
                    )
                )
            at += 8 * MS + 5 * US
        events += [step(number, begin, at - begin), *calls]
    return trace(events)


LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(("loader", "rule"), [(False, "host-code"), (True, "data-loading")])
def test_slow_code_of_threads_without_cpus_is_named(loader: bool, rule: str) -> None:
    found = {one.id: one for one in ta.diagnose(with_code(lambda _: 400, loader=loader)).findings}
    assert found.keys() == {rule, "contended-cpus"}
    assert found[rule].cost_ns == pytest.approx(400 * MS, rel=0.25)  # with gaps between operators
    assert found[rule].confidence != "high"
    assert "augment (train.py:12)" in found[rule].title + found[rule].advice
    assert sum(one.cost_frac or 0 for one in found.values()) <= 1


def test_code_between_operators_of_threads_without_cpus_is_an_effect() -> None:
    (one,) = ta.diagnose(with_code(lambda _: 80, pieces=40)).findings
    assert one.id == "contended-cpus"
    assert [effect.id for effect in one.effects] == ["host-code"]


def test_warm_up_is_no_cost_of_threads_without_cpus_and_its_code_no_cause() -> None:
    found = ta.diagnose(with_code(lambda number: 5_000 * (number == 0)))
    (one,) = [one for one in found.findings if one.id == "contended-cpus"]
    assert one.cost_ns is not None
    assert one.cost_ns <= found.budget.filter(part="busy")["each_ns"].sum()
    (code,) = [effect for effect in one.effects if effect.id == "host-code"]
    assert "augment" not in code.title


def test_what_a_lack_of_cpus_explains_is_an_effect() -> None:
    found = ta.diagnose(on_cpu(lambda step, n: (8 if (3 * n + step) % 4 else 1) * (1 + step)))
    assert [one.id for one in found.findings][:1] == ["contended-cpus"]
    assert "uneven-steps" not in {one.id for one in found.findings}


# --- waits by design, and stalls -----------------------------------------------------------------


def serving(wait: str, *more: dict[str, Any]) -> Trace:
    """Return ten steps of 2 ms with 98 ms between them, in which the host waits."""
    events: _Events = list(more)
    for number in range(10):
        at = number * 100 * MS
        events += [step(number, at, 2 * MS), *launch("gemm", at, 2 * MS - 4 * US)]
        events += [host("python_function", wait, at + 2 * MS + US, 98 * MS - 2 * US)]
    return trace(events)


SLEEP = "<built-in function sleep>"


@pytest.mark.parametrize(
    ("more", "severity"),
    [([], "info"), ([host("cpu_op", "autograd::engine::evaluate_function: A", 0, US)], "warning")],
)
def test_a_program_that_sleeps_between_steps(more: _Events, severity: str) -> None:
    found = {one.id: one for one in ta.diagnose(serving(SLEEP, *more)).findings}
    assert found["time-between-steps"].severity == severity
    assert found["time-between-steps"].cost_frac == pytest.approx(0.98, abs=0.02)


TAKES, POLLS = "queue.py(154): get", "selectors.py(452): select"
RESIZES = [
    host("python_function", "PIL/Image.py(2200): resize", n * 100 * MS + 3 * MS, 90 * MS)
    | {"tid": 9}
    for n in range(10)
]
TRAINS = [host("cpu_op", "autograd::engine::evaluate_function: A", 0, US)]


@pytest.mark.parametrize(
    ("wait", "more", "severity", "says"),
    [
        (TAKES, [], "info", "the load is low"),
        (POLLS, [], "info", "the load is low"),
        ("app/server.py(7): wait_for_request", [], "info", "its load is low"),
        (TAKES, RESIZES, "critical", "resize (PIL/Image.py:2200)"),
        (TAKES, TRAINS, "critical", "what fills the queue"),
        ("pipeline/p2p.py(7): wait_requests", [], "critical", "wait_requests"),
        ("sglang/srt/managers/scheduler.py(7): recv_requests", [], "info", "The server has no"),
        ("subprocess.py(1): communicate", [], "critical", "the process run in the background"),
        ("app/server.py(7): send_request", [], "critical", "less often"),
    ],
)
def test_a_program_that_waits_between_steps(
    wait: str, more: _Events, severity: str, says: str
) -> None:
    (one,) = (f for f in ta.diagnose(serving(wait, *more)).findings if f.id == "time-between-steps")
    assert (one.severity, says in one.advice) == (severity, True)


def test_code_between_steps_is_no_wait_by_design() -> None:
    (one,) = ta.diagnose(serving("server.py(5): work")).findings
    assert one.severity == "critical"


@pytest.mark.parametrize(
    ("kernel", "pauses", "severity"),
    [
        ("flash_fwd_splitkv_kernel", (2, 5), "info"),
        ("paged_attention_v1_kernel", (1, 3, 7), "info"),
        ("flash_fwd_splitkv_kernel", tuple(range(1, 9)), "critical"),
        ("stencil", (2, 5), "critical"),
    ],
)
def test_unknown_code_in_few_steps_may_be_between_requests(
    kernel: str, pauses: tuple[int, ...], severity: str
) -> None:
    events: _Events = []
    at = 0
    for number in range(9):
        begin = at
        at += 50 * MS * (number in pauses)
        for name in ("gemm", kernel):
            events += launch(name, at, MS)
            at += MS + 10 * US
        events.append(step(number, begin, at - begin))
    (one,) = (found for found in ta.diagnose(trace(events)).findings if found.id == "host-code")
    assert one.severity == severity
    assert "the load is low" in one.advice


def stalling(name: str, long: tuple[int, ...]) -> Trace:
    """Return eight steps whose optimizer clears gradients in 20 us, or in 10 ms."""
    events: _Events = []
    at = 0
    for number in range(8):
        ns = 10 * MS if number in long else 20 * US
        events += [step(number, at, 5 * MS + ns + 10 * US), *launch("gemm", at, 5 * MS)]
        events += [host("user_annotation", name, at + 5 * MS + 5 * US, ns)]
        at += 5 * MS + ns + 10 * US
    return trace(events)


@pytest.mark.parametrize(
    ("name", "long", "stalls"),
    [
        ("Optimizer.zero_grad#SGD.zero_grad", (2, 5), True),
        ("Optimizer.zero_grad#AdamW.zero_grad", (6,), True),
        ("Optimizer.step#Lamb.step", (3, 4), True),
        ("evaluate", (2, 5), False),
    ],
)
def test_a_stall_of_code_that_is_the_same_in_all_steps(
    name: str, long: tuple[int, ...], *, stalls: bool
) -> None:
    found = {one.id: one for one in ta.diagnose(stalling(name, long)).findings}
    assert ("schedstat" in found["host-code"].advice) == stalls


# --- memory, and waits of samples ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "regular"),
    [
        ([0, 5, 0, 0, 5, 0, 0, 5, 0], True),
        ([9, 0, 10, 0, 9, 0], True),
        ([5, 0, 0, 5, 0, 0], False),
        ([5, 5, 5, 0, 0, 0, 0], False),
        ([0, 5, 0, 0, 9, 0, 0, 5, 0], False),
        ([0, 5, 0, 5, 0, 0, 5, 0], False),
        ([0, 0, 0], False),
    ],
)
def test_growth_in_every_nth_step(change: list[int], *, regular: bool) -> None:
    assert _is_regular(np.array(change)) is regular


@pytest.mark.parametrize(
    ("name", "file", "wait"),
    [
        ("barrier", "torch/distributed/distributed_c10d.py", RANKS),
        ("all_gather_object", "torch/distributed/distributed_c10d.py", RANKS),
        ("_tensor_to_object", "torch/distributed/distributed_c10d.py", None),  # it unpickles
        ("monitored_barrier", "/x/site-packages/torch/distributed/distributed_c10d.py", RANKS),
        ("all_reduce", "torch/distributed/distributed_c10d.py", None),
        ("barrier", "game.py", None),
        ("get", "/usr/lib/python3.11/queue.py", QUEUE),
        ("get", "C:\\py\\multiprocessing\\queues.py", QUEUE),
        ("put", "/usr/lib/python3.11/queue.py", THREAD),
        ("get", "/x/my_queue.py", None),
        ("<built-in method get of _queue.SimpleQueue object at 0x7f>", None, QUEUE),
        ("<built-in method get of dict object at 0x7f>", None, None),
        ("app/server.py(7): wait_for_request", None, REQUESTS),
        ("app/server.py(7): get_requests", None, None),
        ("pipeline/p2p.py(7): wait_requests", None, None),
        ("vllm/v1/engine/core.py(7): get_request_counts", None, None),
        ("<built-in function _cuda_synchronize>", None, DEVICE),
    ],
)
def test_waits_by_function(name: str, file: str | None, wait: str | None) -> None:
    assert wait_of(name, file) == wait


@pytest.mark.parametrize(
    ("kernels", "trains"), [((), False), (("flash_bwd_dq_dk_dv_kernel",), True)]
)
def test_unknown_pauses_of_training_are_no_low_load(kernels: tuple[str, ...], trains: bool) -> None:
    events: _Events = []
    at = 0
    for number in range(9):
        begin, at = at, at + 50 * MS * (number in (2, 5))
        for name in ("gemm", "flash_fwd_splitkv_kernel", *kernels):
            events += launch(name, at, MS)
            at += MS + 10 * US
        events.append(step(number, begin, at - begin))
    worst = ta.diagnose(trace(events)).findings[0]
    assert (worst.severity == "critical") == trains


def test_one_wait_in_numbered_ranges_is_one_finding() -> None:
    events: _Events = []
    place = "vllm/distributed/kv_transfer/kv_connector/v1/nixl_connector.py(640): get_finished"
    for number in range(12):
        at, wait = number * 30 * MS, 20 * MS * (number % 3 == 0)
        events.append(host("user_annotation", f"execute_model_{number}", at, 29 * MS))
        events += [host("python_function", place, at + US, wait)] * bool(wait)
        events += launch("gemm", at + wait + 2 * US, 30 * MS - wait - 10 * US)
    found = [one for one in ta.diagnose(trace(events)).findings if "get_finished" in one.title]
    assert [one.id for one in found] == ["host-code"]
    assert found[0].cost_frac == pytest.approx(3 * 20 / 359, abs=0.01)  # none before the first


@pytest.mark.parametrize(
    ("name", "loads"),
    [
        ("train.py(3): load_batch", True),
        ("load_data.py(12): foo", False),
        ("load_batch(3): foo", False),
        ("IO: load_batch(4)", True),
        ("a/vllm/x.py(3): load_data", False),
        ("x(1): " * 20_000, False),
        ("load_batch(1): " * 20_000, False),
    ],
)
def test_names_that_load_data(name: str, loads: bool) -> None:
    assert matches([name, *map(str, range(50))], causes.DATALOADER)[0] == loads
