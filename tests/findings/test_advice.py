"""The advice follows from what was recorded: the call, the operator, the range, the line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, US, device, host, step, trace
from diagnosing import finding

import traceanalyzer as ta
from traceanalyzer.analyzers.common import waits
from traceanalyzer.analyzers.common.gpu_api import Api, api_of
from traceanalyzer.analyzers.common.kernel_times import LARGER_INPUTS, UNEQUAL, Difference
from traceanalyzer.analyzers.common.names import frame_text
from traceanalyzer.analyzers.gpu_idle import activities, causes
from traceanalyzer.analyzers.gpu_idle.activities import (
    Activity,
    advice_on_launches,
    advice_on_synchronisation,
)
from traceanalyzer.cli.main import status
from traceanalyzer.findings import idle, launching
from traceanalyzer.findings.judge import RULES
from traceanalyzer.render import render
from traceanalyzer.render.pieces import fixes
from traceanalyzer.result import Finding
from traceanalyzer.trace import Meta, Trace

ROOT = Path(__file__).parents[2]
TRAINING = Api(hip=False, pytorch=True, trains=True)
Rows = list[dict[str, Any]]


def loop(between: Callable[[int], Rows], n: int = 30, gap: int = 500) -> Trace:
    """Return a loop of kernels of 50 us with gaps (us), and the host events of each gap."""
    rows = []
    for i in range(n):
        at = i * (50 + gap)
        rows += [
            host("cpu_op", "aten::mm", (at - 9) * US, 7 * US),
            host("cuda_runtime", "cudaLaunchKernel", (at - 8) * US, 5 * US, correlation=i),
            device(GEMM, at * US, 50 * US, correlation=i),
            *between(at + 50),
        ]
    return trace(rows)


def first(recording: Trace, rule: str) -> Finding:
    return finding(rule, recording)


def root(recording: Trace, rule: str) -> Finding:
    """Return the finding of a rule with its effects, of which other rules have findings."""
    (one,) = (one for one in ta.diagnose(recording).findings if one.id == rule)
    return one


@pytest.mark.parametrize(("frame", "rule"), [
    ("scipy/optimize/_lsap.py(20): linear_sum_assignment", "host-code"),
    ("site-packages/pandas/core/frame.py(9): merge", "host-code"),
    ("torch/nn/functional.py(9): pad", "synchronisation"),
])  # fmt: skip
def test_what_uses_results_on_the_cpu_is_no_wait_for_them(frame: str, rule: str) -> None:
    """A wait for each kernel of 5 ms, then 600 us on the host before the next launch."""
    rows, each = [], 5600
    for i in range(12):
        at = i * each
        rows += [
            host("cuda_runtime", "cudaLaunchKernel", (at - 8) * US, 5 * US, correlation=i),
            device(GEMM, at * US, 5000 * US, correlation=i),
            host("cuda_runtime", "cudaStreamSynchronize", (at + 9) * US, 4993 * US),
            host("python_function", "train.py(7): match", (at + 1) * US, 5590 * US),
            host("python_function", frame, (at + 5010) * US, 570 * US),
        ]
    found = ta.diagnose(trace(rows)).findings
    assert [one.id for one in found if one.id in ("host-code", "synchronisation")] == [rule]


@pytest.mark.parametrize(("us", "part"), [(300, "pinned_use_cuda_host_register"), (60, "workers")])
def test_workers_do_not_speed_up_the_thread_that_pins_batches(us: int, part: str) -> None:
    def between(at: int) -> Rows:
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        pins = host("cuda_runtime", "cudaHostAlloc", (at + 5) * US, us * US) | {"tid": 2}
        return [host("user_annotation", name, at * US, 480 * US), pins]

    assert part in first(loop(between), "data-loading").advice


@pytest.mark.parametrize(("kind", "waits_us", "left"), [
    ("MultiProcessing", 90, 0), ("MultiProcessing", 5, 1), ("SingleProcess", 90, 1),
])  # fmt: skip
def test_kernels_gain_little_while_loader_workers_are_the_limit(
    kind: str, waits_us: int, left: int
) -> None:
    """Steps of 400 us: a wait for the loader, then a sort of 300 us."""
    rows = []
    for n in range(8):
        at, name = 400 * n, f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"
        rows += [
            step(n, at * US, 400 * US),
            host("user_annotation", name, at * US, waits_us * US),
            host("cpu_op", "aten::sort", (at + 94) * US, 9 * US),
            host("cuda_runtime", "cudaLaunchKernel", (at + 95) * US, 5 * US, correlation=n),
            device("radixSortKernel", (at + 99) * US, 300 * US, correlation=n),
        ]
    found = {one.id: one for one in ta.diagnose(trace(rows)).findings}
    assert (found["one-kernel"].severity == "info") == (not left)
    assert found["one-kernel"].gain_frac == pytest.approx(left * 300 / 400, abs=0.1)


def test_without_pinned_memory_there_is_no_advice_on_it() -> None:
    result: Any = SimpleNamespace(units=pl.DataFrame({"loader_ns": [0]}))
    calls = pl.DataFrame(schema={"call": pl.String, "total_ns": pl.Int64, "n": pl.Int64})
    answers: Any = SimpleNamespace(of=lambda _: SimpleNamespace(calls=calls))
    assert launching.pinning(result, answers) == ("", "")


@pytest.mark.parametrize(("us", "pins"), [(300, True), (60, False)])
@pytest.mark.parametrize("call", ["cudaHostAlloc", "cudaMallocHost", "cuMemHostAlloc"])
def test_buffers_that_are_pinned_in_the_loop(call: str, us: int, pins: bool) -> None:
    def between(at: int) -> Rows:
        inside = host("cuda_runtime", call, (at + 5) * US, us * US)
        return [host("python_function", "train.py(63): next_batch", at * US, 480 * US), inside]

    one = first(loop(between), "data-loading")
    assert (f"mostly {call}" in one.title) == ("buffers once" in one.advice) == pins


@pytest.mark.parametrize(
    ("operator", "call", "advised"),
    [
        ("aten::pin_memory", "cudaHostAlloc", "DataLoader(pin_memory=True)"),
        ("aten::empty", "cudaMalloc", "expandable_segments"),
    ],
)
def test_pinned_host_memory_is_no_device_memory(operator: str, call: str, advised: str) -> None:
    def between(at: int) -> Rows:
        inside = host("cuda_runtime", call, (at + 5) * US, 470 * US)
        return [*python("train.py(31): to_device")(at), host("cpu_op", operator, at * US, 480 * US),
                inside]  # fmt: skip

    one = first(loop(between), "memory-management")
    assert advised in one.advice
    assert ("device memory" in one.title) == (call == "cudaMalloc")


def test_a_process_that_a_step_starts_is_named() -> None:
    def between(at: int) -> Rows:
        poll = host("python_function", "<built-in method poll of select.poll object at 0x7f>",
                    (at + 5) * US, 470 * US)  # fmt: skip
        return [*python("monitor.py(9): gpu_stats", "subprocess.py(506): run")(at), poll]

    one = first(loop(between), "host-code")
    assert "run (subprocess.py:506), gpu_stats (monitor.py:9)" in one.title
    assert "start it less often" in one.advice


def test_a_wait_before_a_request_is_repeated_is_no_sleep_to_remove() -> None:
    def between(at: int) -> Rows:
        frames = ("train.py(31): log", "tenacity/__init__.py(480): __call__",
                  "tenacity/nap.py(31): sleep")  # fmt: skip
        inside = host("python_function", "<built-in function sleep>", (at + 5) * US, 470 * US)
        return [*python(*frames)(at), inside]

    assert waits.ADVICE[waits.RETRY][1:] in first(loop(between), "host-code").advice


def test_graphs_of_pytorch_are_recorded_for_each_shape() -> None:
    builds = loop(lambda at: [host("cuda_runtime", "cudaGraphInstantiate", at * US, 480 * US)])
    assert "mark_dynamic" in first(builds, "graph-building").advice


@pytest.mark.parametrize("name", ["all_gather_object", "all_gather"])
def test_collectives_of_objects_are_replaced_by_one_tensor(name: str) -> None:
    def between(at: int) -> Rows:
        frames = ("train.py(44): log", f"torch/distributed/distributed_c10d.py(2900): {name}")
        wait = host("cuda_runtime", "cudaStreamSynchronize", (at + 5) * US, 470 * US)
        return [*python(*frames)(at), wait]

    one = first(loop(between), "synchronisation")
    assert ("one tensor" in one.advice) == ("object" in name)


@pytest.mark.parametrize("name", ["all_gather_object", "all_gather"])
def test_pickling_of_a_collective_of_objects_is_of_the_collective(name: str) -> None:
    """The innermost frame is ``load`` of pickle, also while the host waits before it."""

    def between(at: int) -> Rows:
        frames = ("train.py(44): log", f"torch/distributed/distributed_c10d.py(2900): {name}")
        load = host("python_function", "<built-in method load of _pickle.Unpickler object>",
                    (at + 5) * US, 470 * US)  # fmt: skip
        return [*python(*frames)(at), load]

    one = first(loop(between), "host-code")
    assert (causes.NO_OBJECTS in one.advice) == ("object" in name)
    assert ("host runs all_gather_object" in one.title) == ("object" in name)


@pytest.mark.parametrize(("copied", "part"), [(True, ".item()"), (False, "torch.cuda.synchronize")])
def test_waits_after_a_copy_to_the_host_read_numbers(copied: bool, part: str) -> None:
    """In a recording of nsys, no operator says so."""

    def between(at: int) -> Rows:
        copy = device("Memcpy DtoH (Device -> Pinned)", at * US, 2 * US) | {"kind": "gpu_memcpy"}
        wait = host("cuda_runtime", "cudaStreamSynchronize", (at - 2) * US, 480 * US)
        return [wait, *[copy] * copied]

    assert part in first(loop(between), "synchronisation").advice


# --- host code -------------------------------------------------------------------------------


def python(*frames: str) -> Callable[[int], Rows]:
    return lambda at: [
        host("python_function", name, (at + 1 + i) * US, (480 - 2 * i) * US)
        for i, name in enumerate(frames)
    ]


def compiling(at: int) -> Rows:
    """A compilation whose parts are operators, as torch.compile records them."""
    parts = ("_compile.compile_inner", "fx_codegen_and_compile")
    return [
        host("cpu_op", f"{name} (dynamo_timed)", (at + 1 + i) * US, (480 - 2 * i) * US)
        for i, name in enumerate(parts)
    ]


def annotated(name: str, *, launches: bool = False) -> Callable[[int], Rows]:
    """Return gaps in a range; it launches if it lasts until the next launch has ended."""
    return lambda at: [host("user_annotation", name, at * US, (500 if launches else 480) * US)]


@pytest.mark.parametrize(
    ("between", "part", "never"),
    [
        (python("train.py(19): slow_augment"), "slow_augment (train.py:19)", "thread"),
        (python("train.py(7): step", "wandb/sdk/run.py(9): log"), "log (wandb/sdk/run.py:9)", "X"),
        (
            python("train.py(5): step", "torch/_dynamo/symbolic_convert.py(4): run"),
            "recompiles",
            "X",
        ),
        (compiling, "TORCH_LOGS=recompiles", "Record"),
        (
            python("model.py(5): torch_dynamo_resume_in_forward_at_7"),
            "in forward (model.py:5)",
            "X",
        ),
        (python("train.py(5): tidy", "<built-in function collect>"), "gc.freeze()", "Compile"),
        (annotated("rotate_logs"), "rotate_logs launches no GPU work", "Compile"),
        (annotated("sample_batch_on_gpu", launches=True), "torch.compile", "another thread"),
        (annotated("Optimizer.step#SGD.step", launches=True), "foreach=True", "thread"),
        (annotated("Optimizer.step#DeepSpeedCPUAdam.step", launches=True), "offloaded", "foreach"),
        (
            python(
                "train.py(5): f",
                "deepspeed/ops/adam/cpu_adam.py(150): step",
                "<built-in method adam_update of PyCapsule object at 0x7f0000000000>",
            ),
            "offloaded",
            "DataLoader",
        ),
        (
            python("train.py(5): f", "deepspeed/ops/adam/cpu_adam.py(150): step"),
            "offloaded",
            "DataLoader",
        ),
        (
            python(
                "train.py(5): f",
                "torch/amp/grad_scaler.py(380): step",
                "torch/optim/adamw.py(3): step",
            ),
            "bfloat16",
            "foreach",
        ),
        (annotated("DistributedDataParallel.forward", launches=True), "FSDP", "thread"),
        (annotated("## backward ##", launches=True), "## backward ##", "thread"),
        (annotated("WritePlotFile", launches=True), "WritePlotFile less often", "CUDA graphs"),
        (annotated("PME mesh"), "-pme gpu", "thread"),
        (annotated("EXECUTE_SLOW"), "%%cudf.pandas.profile", "thread"),
        (
            python("a/func_graph.py(9): func_graph_from_py_func", "train.py(88): train_step"),
            "reduce_retracing=True",
            "faster",
        ),
        (lambda _: [], "with_stack=True", "thread"),
    ],
)
def test_host_code_gets_the_advice_of_what_runs(
    between: Callable[[int], Rows], part: str, never: str
) -> None:
    one = first(loop(between), "host-code")
    assert part in one.advice
    assert never not in one.advice


def test_tracing_is_named_and_work_that_moves_to_the_gpu_has_no_gain() -> None:
    frames = python("a/func_graph.py(9): func_graph_from_py_func", "train.py(88): train_step")
    one = first(loop(frames), "host-code")
    assert "TensorFlow traces train_step (train.py:88)" in one.title
    assert one.gain_basis == "replay"
    moves = first(loop(annotated("PME mesh")), "host-code")
    assert (moves.gain_basis, moves.severity) == ("bound", "critical")


def test_a_call_that_cudf_leaves_to_pandas_is_one_finding_with_its_copies() -> None:
    def between(at: int) -> Rows:
        copies = (
            ("Memcpy DtoH (Device -> Pageable)", 5),
            ("Memcpy HtoD (Pageable -> Device)", 400),
        )
        ranges = (("DataFrame.apply", 0, 500), ("EXECUTE_SLOW", 60, 330))
        return [
            *(host("nvtx", name, (at + begin) * US, us * US) for name, begin, us in ranges),
            *(device(copy, (at + after) * US, 50 * US) | {"kind": "gpu_memcpy"}
              for copy, after in copies),
        ]  # fmt: skip

    one = root(loop(between), "host-code")
    assert "DataFrame.apply" in one.title
    assert [effect.id for effect in one.effects] == ["exposed-copies"]
    assert one.cost_ns is not None
    assert one.cost_ns > 350 * US


@pytest.mark.parametrize(("us", "is_slow"), [(480, True), (100, False)])
def test_an_operator_that_takes_long_before_its_launch(us: int, *, is_slow: bool) -> None:
    rows = []
    for i in range(40):
        at = i * (50 + us) * US
        rows += [
            host("cpu_op", "aten::sdpa", at, us * US),
            host("xpu_runtime", "urEnqueueKernelLaunch", at + (us - 5) * US, 4 * US, correlation=i),
            device(GEMM, at + us * US, 49 * US, correlation=i),
        ]
    one = first(trace(rows), "launch-bound")
    assert ("aten::sdpa before its launch" in one.title) == is_slow
    assert ("equal from call to call" in one.advice) == is_slow
    assert "graph" not in one.advice.replace("a compiled graph", "")


@pytest.mark.parametrize(("us", "is_slow"), [(20, True), (4, False)])
def test_a_host_that_is_slow_in_all_operators(us: int, *, is_slow: bool) -> None:
    rows = []
    for i in range(40):
        at = i * 600 * US
        rows += [
            host("cpu_op", "aten::batch_norm", at, 500 * US),
            *(host("cpu_op", "aten::view", at + j * 50 * US, us * US) for j in range(1, 5)),
            host("cuda_runtime", "cudaLaunchKernel", at + 490 * US, 4 * US, correlation=i),
            device(GEMM, at + 500 * US, 100 * US, correlation=i),
        ]
    one = first(trace(rows), "launch-bound")
    assert ("aten::batch_norm before its launch" in one.title) != is_slow
    assert ("aten::view" in one.advice) == is_slow


@pytest.mark.parametrize("unloads", [True, False])
def test_a_plan_in_each_iteration_is_one_finding(*, unloads: bool) -> None:
    def between(at: int) -> Rows:
        calls = (("cuModuleUnload", 5, 90), ("cudaMalloc", 200, 80), ("cuModuleLoadData", 285, 190))
        return [
            host("nvtx", "propagate", (at + 1) * US, 480 * US),
            *(host("cuda_runtime", name, (at + begin) * US, us * US)
              for name, begin, us in calls if unloads or name != "cuModuleUnload"),
        ]  # fmt: skip

    one = root(loop(between), "module-loading")
    effects = {"host-code", "memory-management"} if unloads else set()
    assert {effect.id for effect in one.effects} == effects
    assert ("in propagate" in one.title) == ("cuFFT" in one.advice and unloads)
    assert one.cost_frac == pytest.approx(0.87 if unloads else 0.33, abs=0.05)


@pytest.mark.parametrize(("frac", "place"), [(0.9, "ggml_vec_dot"), (0.4, "")])
def test_samples_name_host_code_without_other_places(frac: float, place: str) -> None:
    columns = ("innermost", "own_code", "called", "annotation", "phase", "before", "rival", "step")
    row = dict.fromkeys(columns) | {"cause_ns": 9, "sampled": "ggml_vec_dot", "sampled_frac": frac}
    gaps = pl.DataFrame([row] * 3)
    assert activities.of_gaps(gaps, gaps.clear()).place == place
    assert not activities.of_gaps(gaps).place
    named = gaps.with_columns(innermost=pl.lit("aten::flip"))
    assert activities.of_gaps(named, gaps.clear()).place == "aten::flip"


def test_operators_that_the_gpu_lacks_are_one_finding() -> None:
    """The operator copies its input to the CPU, computes there, and copies the result back."""
    name = "aten::linalg_inv_ex"

    def between(at: int) -> Rows:
        rows = [
            host("cpu_op", name, (at + 1) * US, 450 * US),
            host("cpu_op", name, (at + 138) * US, 180 * US),
        ]
        for n, (copy, after) in enumerate((("D2M", 10), ("M2D", 330))):
            ids = {"correlation": 1000 + 2 * at + n}
            begin = (at + after) * US
            rows += [
                host("xpu_runtime", "urEnqueueUSMMemcpy", begin - 5 * US, 2 * US, **ids),
                device(f"Memcpy {copy}", begin, 120 * US, **ids) | {"kind": "gpu_memcpy"},
            ]
        return rows

    one = root(loop(between), "exposed-copies")
    assert f"The GPU has no kernel of {name}" in one.advice
    assert "device to host" in one.title
    assert [effect.id for effect in one.effects] == ["host-code"]


@pytest.mark.parametrize(("us", "reads"), [(1, False), (100, True)])
def test_a_number_that_is_read_is_no_data_of_operators_on_the_cpu(us: int, reads: bool) -> None:
    def between(at: int) -> Rows:
        to_host, to_gpu = "Memcpy DtoH (Device -> Pinned)", "Memcpy HtoD (Pageable -> Device)"
        return [
            device(to_host, (at + 10) * US, us * US) | {"kind": "gpu_memcpy"},
            host("cpu_op", "aten::stft", (at + 120) * US, 100 * US),
            device(to_gpu, (at + 230) * US, 200 * US) | {"kind": "gpu_memcpy"},
        ]

    ids = [one.id for one in ta.diagnose([loop(between)]).findings]
    assert ("host-code" in ids) != reads


@pytest.mark.parametrize("on_cpu", [True, False])
def test_copies_of_offloaded_parameters(on_cpu: bool) -> None:
    """Copies in both directions in each step; the CPU updates the parameters, or augments data."""
    name = "Optimizer.step#AdamW.step" if on_cpu else "augment"
    operator = "aten::_fused_adamw_" if on_cpu else "aten::flip"

    def between(at: int) -> Rows:
        copies = (("Memcpy DtoH (Device -> Pinned)", 10), ("Memcpy HtoD (Pinned -> Device)", 330))
        return [
            *(device(copy, (at + after) * US, 120 * US) | {"kind": "gpu_memcpy"}
              for copy, after in copies),
            host("user_annotation", name, (at + 135) * US, 190 * US),
            host("cpu_op", operator, (at + 138) * US, 180 * US),
        ]  # fmt: skip

    one = root(loop(between), "exposed-copies")
    assert ("offload_optimizer" in one.advice) == on_cpu
    assert ("aten::flip runs on the CPU" in one.advice) != on_cpu
    # what the CPU computes on the copies has the same cause
    assert [effect.id for effect in one.effects] == ["host-code"]
    updates = sum(effect.cost_ns or 0 for effect in one.effects)
    assert one.cost_ns == pytest.approx(240 * US + updates, rel=0.1)
    assert updates > 100 * US


def test_each_function_has_a_cost() -> None:
    names = ("a.py(1): collect", "b.py(2): pack", "c.py(3): plan")
    findings = ta.diagnose(loop(lambda at: python(names[at // 550 % 3])(at))).findings
    found = {one.title.split()[6]: one.cost_ns for one in findings if one.id == "host-code"}
    assert {*found} == {"collect", "pack", "plan"}
    assert [*found.values()] == pytest.approx([479 * 10 * US] * 3, rel=0.1)


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_functions_in_one_gap_have_a_gain_each(share: float) -> None:
    def between(at: int) -> Rows:
        first_us = int(480 * share)
        spans = (("a.py(1): dtw", 5, first_us), ("b.py(2): speech", 5 + first_us, 480 - first_us))
        return [host("python_function", n, (at + t) * US, us * US) for n, t, us in spans]

    findings = [one for one in ta.diagnose(loop(between)).findings if one.id == "host-code"]
    gains = {one.title.split()[6]: one.gain_frac for one in findings}
    assert gains["dtw"] == pytest.approx(480 / 550 * share, rel=0.05)
    assert gains["speech"] == pytest.approx(480 / 550 * (1 - share), rel=0.05)


@pytest.mark.parametrize(
    ("inner", "restarts"),
    [
        ("multiprocessing/popen_fork.py(62): _launch", True),
        ("torch/utils/data/dataloader.py(1012): __init__", True),
        ("<built-in function fork>", True),
        ("multiprocessing/queues.py(113): get", False),
    ],
)
def test_workers_that_start_in_the_loop_are_kept(inner: str, restarts: bool) -> None:
    frames = python("train.py(5): epoch", "torch/utils/data/dataloader.py(9): __iter__", inner)
    advice = first(loop(frames), "data-loading").advice
    assert ("persistent_workers=True" in advice) == restarts
    assert ("num_workers" in advice) != restarts


def test_first_start_of_workers_is_no_gain() -> None:
    """Each of four steps starts workers and waits for them, longer than it computes."""
    starts = python("train.py(5): epoch", "torch/utils/data/dataloader.py(1012): __init__")

    def between(at: int) -> Rows:
        waits = host("cuda_runtime", "cudaDeviceSynchronize", (at - 40) * US, 38 * US)
        return [*starts(at), waits, step(at // 550, (at - 60) * US, 545 * US)]

    one = first(loop(between, n=4), "data-loading")
    assert one.gain_frac == pytest.approx(3 / 4 * (one.cost_frac or 0), rel=0.02)
    assert "runs ahead" not in one.advice


@pytest.mark.parametrize(("late", "expected"), [((1, 5, 9), True), ((1, 5, 8), False)])
def test_interval_of_steps_that_wait_for_workers(late: Sequence[int], expected: bool) -> None:
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

    def between(at: int) -> Rows:
        name = loader if at // 550 in late else "augment"
        marked = step(at // 550, (at - 60) * US, 545 * US)
        return [host("user_annotation", name, (at + 1) * US, 480 * US), marked]

    one = first(loop(between, n=12), "data-loading")
    assert any("one step in 4 waits" in text for text in one.evidence) == expected


def test_a_function_around_two_slices_of_loading_is_not_loading() -> None:
    """Both slices of the loader touch, and the function begins with the first one."""

    def between(at: int) -> Rows:
        starts = "torch/utils/data/dataloader.py(1012): __init__"
        loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        return [
            host("python_function", "train.py(5): fit", at * US, 460 * US),
            host(
                "python_function", "torch/utils/data/dataloader.py(9): __iter__", at * US, 450 * US
            ),
            host("python_function", starts, at * US, 445 * US),
            host("user_annotation", loader, (at + 450) * US, 30 * US),
        ]

    assert "persistent_workers=True" in first(loop(between), "data-loading").advice


def test_time_of_the_profiler_is_not_the_program() -> None:
    frames = python(
        "train.py(5): main", "site-packages/torch/profiler/profiler.py(342): start_trace"
    )
    rules = [finding.id for finding in ta.diagnose(loop(frames)).findings]
    assert "profiler-overhead" in rules
    assert "host-code" not in rules


def test_batches_that_one_rank_sends_to_the_others() -> None:
    frames = python(
        "torch/utils/data/dataloader.py(9): __next__",
        "accelerate/data_loader.py(770): _fetch_batches",
        "accelerate/utils/operations.py(556): broadcast_object_list",
    )
    assert "dispatch_batches=False" in first(loop(frames), "data-loading").advice


ENGINE = "vllm/v1/engine/core.py(730): _process_input_queue"


@pytest.mark.parametrize(
    ("between", "severity", "part"),
    [
        (python(ENGINE, "queue.py(1): get", "threading.py(3): wait"), "info", "no requests"),
        (lambda at: [host("osrt", "epoll_wait", at * US, 480 * US)], "info", "requests"),
        (lambda at: [host("osrt", "recv", at * US, 480 * US)], "warning", "requests"),
        (python("vllm/v1/engine/core.py(9): step"), "critical", "step (vllm/v1/engine/core.py:9)"),
    ],
)
def test_waiting_for_requests_is_not_critical(
    between: Callable[[int], Rows], severity: str, part: str
) -> None:
    one = first(loop(between), "host-code")
    assert one.severity == severity
    assert part in one.advice
    assert one.gain_frac == (0 if severity == "info" else one.cost_frac)


@pytest.mark.parametrize(
    ("frame", "inner", "part"),
    [
        (
            "store.py(71): load_sample",
            "<built-in function fromfile>",
            "ahead in a background thread",
        ),
        ("buffer.py(31): next_batch", "<method 'acquire' of '_thread.RLock' objects>", "the lock"),
        ("torch/utils/data/dataloader.py(7): __next__", "<built-in function f>", "num_workers"),
    ],
)
def test_data_loading_without_a_loader_names_the_function(
    frame: str, inner: str, part: str
) -> None:
    one = first(loop(python("train.py(5): next_batch", frame, inner)), "data-loading")
    assert part in one.advice
    in_loader = "dataloader" in frame
    assert ("the data loader" in one.title) == in_loader
    assert (frame_text(frame) in one.title) != in_loader


@pytest.mark.parametrize(
    ("frame", "rule", "part"),
    [
        ("dataset.py(41): __next__", "data-loading", "__next__ (dataset.py:41)"),
        ("train.py(7): augment", "host-code", "augment (train.py:7)"),
        ("jax/_src/compiler.py(9): backend_compile", "host-code", "JAX_EXPLAIN_CACHE_MISSES"),
    ],
)
def test_python_of_the_thread_that_gives_work_to_the_launching_one(
    frame: str, rule: str, part: str
) -> None:
    """JAX launches from a thread of its own, which runs no Python."""
    events = loop(python("train.py(5): epoch", frame)).events.to_dicts()
    launching = [e | {"tid": 2} for e in events if e["kind"] == "cuda_runtime"]
    others = [e for e in events if e["kind"] in ("kernel", "python_function")]
    helper = host("python_function", "threading.py(9): wait", 0, 30 * 550 * US, tid=3)
    one = first(trace([*launching, *others, helper]), rule)
    assert part in one.advice
    assert not re.search("torch|DataLoader|with_stack", one.advice)


def test_objects_are_gathered_as_tensors() -> None:
    called = "torch/distributed/distributed_c10d.py(3100): all_gather_object"
    gathers = Activity(place="gloo:all_gather", frame="train.py(131): log_metrics", called=called)
    assert "in log_metrics (train.py:131): send tensors" in activities.advice_on_collectives(
        gathers
    )


def test_line_stands_in_the_title() -> None:
    recording = loop(python("train.py(19): slow_augment"))
    result = ta.diagnose(recording)
    assert any("slow_augment" in part.label for part in result.budget_bar.parts)
    assert any("slow_augment" in why for why in ta.gpu_idle(recording).tables[0].frame["why"])
    one = first(recording, "host-code")
    assert "slow_augment (train.py:19)" in one.title


def test_buffers_of_ddp() -> None:
    """Operators that flatten buffers run before each forward pass because of their broadcast."""
    between = annotated("DistributedDataParallel.forward", launches=True)
    flatten = "aten::unflatten_dense_tensors"
    rows = lambda at: [*between(at), host("cpu_op", flatten, (at + 5) * US, 400 * US)]  # noqa: E731
    assert "broadcast_buffers=False" in first(loop(rows), "host-code").advice


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize(("n", "step"), [(1, ""), (1, "ProfilerStep#1"), (12, "ProfilerStep#1")])
def test_operators_that_compute_on_the_cpu(*, waits: bool, n: int, step: str) -> None:
    """Operators without a call are no launch overhead and no synchronisation, however they touch.

    One operator, or one for each table, right before the operators that launch.
    """
    each = 9_600 // n

    def rows(at: int) -> Rows:
        operators = [
            host("cpu_op", name, (at + 300 + i * each) * US, each * US)
            for i in range(n)
            for name in ("aten::embedding_bag", "aten::_embedding_bag")
        ]
        calls = [host("cuda_runtime", "cudaStreamSynchronize", at * US, 105 * US)] * waits
        to = host("cpu_op", "aten::mm", (at + 300 + n * each) * US, 7 * US)
        mark = [host("user_annotation", step, (at - 9) * US, 9_999 * US)] if step else []
        return [*mark, *operators, *calls, to]

    one, *others = ta.diagnose(synchronised(rows, 10_000)).findings
    assert one.id == "host-code"
    assert one.cost_frac == pytest.approx(0.96, abs=0.03)
    assert "aten::embedding_bag (CPU operator)" in one.title
    assert "to the GPU" in one.advice
    assert not {"launch-bound", "synchronisation"} & {other.id for other in others}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("aten::nonzero", "launch"),
        ("autograd::engine::evaluate_function: OwnBackward", ""),
        ("c10d::allreduce_", ""),
        ("aten::mul", "short"),
    ],
)
def test_operators_that_do_not_compute_on_the_cpu(name: str, call: str) -> None:
    def rows(at: int) -> Rows:
        operators = [host("cpu_op", name, (at + 200) * US, (90 if call == "short" else 700) * US)]
        if call == "launch":
            operators += [
                host("cuda_runtime", "cudaLaunchKernel", (at + 890) * US, US, correlation=at + 1),
                device(GEMM, (at + 895) * US, US, correlation=at + 1),
            ]
        return operators

    findings = ta.diagnose(synchronised(rows)).findings
    assert findings
    assert "(CPU operator)" not in str(findings)


# --- synchronisation -------------------------------------------------------------------------


def synchronised(inside: Callable[[int], Rows], period: int = 1_000) -> Trace:
    """Return a loop in which the host waits for each kernel, and what it does then."""
    rows: Rows = []
    for i in range(30):
        at = i * period
        rows += [
            host("cpu_op", "aten::mm", (at - 9) * US, 7 * US),
            host("cuda_runtime", "cudaLaunchKernel", (at - 8) * US, 5 * US, correlation=i),
            device(GEMM, at * US, 100 * US, correlation=i),
            *inside(at),
        ]
    return trace(rows)


@pytest.mark.parametrize("n", [1, 40])
@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaMemcpyAsync"])
def test_optimizer_on_the_cpu(n: int, call: str) -> None:
    """Operators within Optimizer.step that launch nothing compute on the CPU."""

    def rows(at: int) -> Rows:
        each = 840 // n
        return [
            host("cuda_runtime", call, at * US, 105 * US),
            host("user_annotation", "Optimizer.step#Adam.step", (at + 110) * US, 870 * US),
            *(
                host("cpu_op", "aten::add_", (at + 120 + i * each) * US, (each - 1) * US)
                for i in range(n)
            ),
        ]

    (one, *_) = ta.diagnose(synchronised(rows)).findings
    assert "Optimizer.step#Adam.step runs on the CPU" in one.title
    assert "on the GPU" in one.advice
    assert ".item()" not in one.advice


def test_function_of_an_optimizer_that_launches_kernels_is_not_on_the_cpu() -> None:
    place = "megatron/optimizer/clip_grads.py(112): count_zeros_fp32"
    after = {"reduce_kernel<512>": False, "Memcpy DtoH (Device -> Pinned)": True, "": True}
    assert {one: Activity(place=place, after=one).steps_on_cpu for one in after} == after


@pytest.mark.parametrize(
    ("operator", "call", "part"),
    [
        ("aten::item", "cudaStreamSynchronize", "aten::item reads a number"),
        ("aten::nonzero", "cudaStreamSynchronize", "size that depends on the data"),
        ("aten::where", "cudaStreamSynchronize", "size that depends on the data"),
        ("aten::to", "cudaMemcpyAsync", "non_blocking=True"),
        ("aten::copy_", "cudaStreamSynchronize", "non_blocking=True"),
        ("", "cudaDeviceSynchronize", "Remove cudaDeviceSynchronize"),
    ],
)
def test_synchronisation_names_the_call(operator: str, call: str, part: str) -> None:
    def rows(at: int) -> Rows:
        kind = "cuda_runtime"
        calls = [host(kind, call, (at + 2) * US, 400 * US)]
        if operator:
            calls.append(host("cpu_op", operator, at * US, 410 * US))
        return calls

    advice = activities.advice_on_synchronisation(Activity(), call, operator, pytorch=True)
    assert part in advice
    if call != "cudaMemcpyAsync":  # without the copy itself, the call waits for nothing
        recorded = synchronised(rows)
        one = first(recorded, "synchronisation")
        assert part in one.advice
        assert ta.gpu_idle(recorded).advice("synchronisation") == one.advice


def test_synchronisation_is_placed_by_its_call_not_by_the_gap_after_it() -> None:
    def rows(at: int) -> Rows:
        return [
            host("user_annotation", "log loss", (at + 1) * US, 105 * US),
            host("cpu_op", "aten::item", (at + 2) * US, 103 * US),
            host("cpu_op", "aten::_local_scalar_dense", (at + 3) * US, 101 * US),
            host("cuda_runtime", "cudaStreamSynchronize", (at + 4) * US, 99 * US),
            host("user_annotation", "next batch is prepared", (at + 107) * US, 100 * US),
        ]

    recorded = synchronised(rows, 211)
    call = {"call": "cudaStreamSynchronize", "operator": "aten::item", "range": "log loss"}
    result = ta.gpu_idle(recorded)
    assert result.idle_by_cause["synchronisation"]
    assert result.waited == {**call, "frame": ""}
    advice = result.advice("synchronisation")
    assert advice.startswith("aten::item reads a number from the GPU in log loss:")


def test_synchronisation_in_several_operators_names_none_of_them() -> None:
    def rows(at: int) -> Rows:
        operator = ("aten::item", "aten::nonzero", "aten::to")[at // 1_000 % 3]
        call = host("cuda_runtime", "cudaStreamSynchronize", (at + 2) * US, 400 * US)
        return [host("cpu_op", operator, at * US, 410 * US), call]

    result = ta.gpu_idle(synchronised(rows))
    assert (result.waited["call"], result.waited["operator"]) == ("", "")
    advice = result.advice("synchronisation")
    assert "Remove" not in advice
    assert ".item(), .cpu()" in advice


@pytest.mark.parametrize(
    ("one", "part"),
    [
        (Activity(called="torch/amp/grad_scaler.py(351): _maybe_opt_step"), "bfloat16"),
        (Activity(called="torch/cuda/__init__.py(1): item"), "reads a number"),
    ],
)
def test_numbers_that_a_scaler_reads_are_not_of_the_program(one: Activity, part: str) -> None:
    call = "cudaStreamSynchronize"
    advice = activities.advice_on_synchronisation(one, call, "aten::item", pytorch=True)
    assert part in advice


@pytest.mark.parametrize("place", ["", "deepspeed/utils/timer.py(71): stop"])
def test_only_deepspeed_has_its_timer(place: str) -> None:
    one = Activity(called=place)
    call = "cudaDeviceSynchronize"
    advice = activities.advice_on_synchronisation(one, call, "", pytorch=True)
    assert ("wall_clock_breakdown" in advice) == bool(place)


# --- launches --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "part"),
    [
        ("cudaLaunchKernel", "unset CUDA_LAUNCH_BLOCKING=1"),
        ("hipLaunchKernel", "unset HIP_LAUNCH_BLOCKING=1"),
    ],
)
@pytest.mark.parametrize("blocks", [False, True])
def test_launch_calls_that_wait_for_their_kernels(call: str, part: str, *, blocks: bool) -> None:
    rows: Rows = []
    for i in range(60):
        at = i * 100
        rows += [
            host("cpu_op", "aten::mm", (at - 9) * US, 80 * US),
            host("cuda_runtime", call, (at - 5) * US, (70 if blocks else 4) * US, correlation=i),
            device(GEMM, at * US, 60 * US, correlation=i),
        ]
    one = first(trace(rows), "launch-bound")
    assert (part in one.advice) == blocks
    assert one.cost_frac == pytest.approx(0.4, abs=0.02)


@pytest.mark.parametrize("memory", ["Pinned", "Device"])
def test_many_small_copies_are_packed(memory: str) -> None:
    """The device waits for launches of copies: fewer copies, not graphs."""
    rows = []
    for i in range(400):
        at = i * 20
        rows += [
            host("cuda_runtime", "cudaMemcpyAsync", at * US, 15 * US, correlation=i),
            device(
                f"Memcpy HtoD ({memory} -> Device)", (at + 16) * US, 2 * US, correlation=i,
                bytes=2048, kind="gpu_memcpy",
            ),
        ]  # fmt: skip
    found = {one.id: one for one in ta.diagnose(trace(rows)).findings}
    one = found.get("launch-bound") or found["small-copies"]
    assert "one" in one.advice
    assert "graph" not in one.advice.lower()


def test_launches_of_an_optimizer_are_fused() -> None:
    one = Activity(place="Optimizer.step#Adam.step", range="Optimizer.step#Adam.step")
    assert "fused=True" in activities.advice_on_launches(one, one.range, GEMM)


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("train.py(19): slow_augment", "slow_augment (train.py:19)"),
        ("<built-in method recv_into of _socket.socket object>", "recv_into"),
        ("<built-in function sleep>", "sleep"),
        ("rotate_logs", "rotate_logs"),
        ("aten::add", "aten::add"),
    ],
)
def test_frames_in_sentences(name: str, expected: str) -> None:
    assert frame_text(name) == expected


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("train.py(80): save_checkpoint", "asynchronously"),
        ("lora.py(120): load_lora_weights", "before the loop"),
        ("train.py(9): evaluate", "less often"),
        ("dataloader/train", "workers"),
        ("torch/_dynamo/convert_frame.py(3): compile", "recompiles"),
        ("torch/_compile.py(42): inner", "out of the loop"),  # around code that is not compiled
        ("torch/_dynamo/eval_frame.py(600): _fn", "out of the loop"),
        ("rotate_logs", "less often"),
    ],
)
def test_advice_on_code_of_slow_steps(name: str, part: str) -> None:
    assert part in activities.advice_on_slice(name, pytorch=True)
    assert not re.search("torch|TORCH", activities.advice_on_slice("jit", pytorch=False))


@pytest.mark.parametrize(
    ("name", "format_", "extra", "framework", "part"),
    [
        ("genericReformat::copyPackedKernel", "nsys-sqlite", "", "", "CUDA graphs"),
        ("cupy_add__float64_float64", "nsys-sqlite", "", "cupy", "cupy.fuse"),
        ("wrapped_add", "nsys-sqlite", "", "xla", "jax.jit"),
        ("add", "chrome-trace", '{"highres-ticks": 1}', "xla", "jax.jit"),
        ("at::native::add", "nsys-sqlite", "", None, "torch.compile"),
    ],
)
def test_advice_names_the_framework_of_the_program(
    name: str, format_: str, extra: str, framework: str | None, part: str
) -> None:
    traced: Any = SimpleNamespace(meta=Meta("x", format_, extra=extra), names=[name])
    api = api_of(traced)
    assert (api.framework, api.pytorch) == (framework or "", framework is None)
    text = causes.advice(causes.LAUNCH, api, code="")
    assert part in text
    assert ("torch" in text) == api.pytorch


def test_no_cause_tells_to_look_in_other_tables() -> None:
    for cause in set(causes.CAUSES) - {causes.HOST_CODE}:
        text = causes.advice(cause, TRAINING, code="record the host")
        assert text
        assert "table of" not in text


def test_activity_of_gaps_is_what_fills_half_of_their_time() -> None:
    names = ["innermost", "own_code", "called", "annotation", "phase", "before", "rival"]
    frame = pl.DataFrame(
        {"cause_ns": [6, 3, 2], "step": ["s", "s [2]", None]}
        | {name: ["a", "b", "s"] for name in names}
    )
    assert activities.of_gaps(frame).place == "a"
    assert not activities.of_gaps(frame.head(0)).text
    steps = frame.with_columns(innermost=pl.lit("s"))
    assert activities.of_gaps(steps.head(2)).place == ""


def test_each_rule_has_its_change_in_the_documentation() -> None:
    """One section per rule, with code before and after."""
    page = (ROOT / "docs" / "fixes.md").read_text()
    sections = re.split(r"^### ", page, flags=re.MULTILINE)[1:]
    known = {
        name: section
        for section in sections
        for name in re.findall(r"`([\w-]+)`", section.partition("\n")[0])
    }
    assert known.keys() == {rule.id for rule in RULES}
    for name, section in known.items():
        diff = re.search(r"^```diff\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
        assert diff, name
        assert re.search(r"^\+", diff[1], re.MULTILINE), name
        assert len(diff[1].splitlines()) <= 6, name


def test_each_rule_has_an_example_for_pages_and_terminals(capsys: Any) -> None:
    assert {rule.id for rule in RULES} == fixes().keys()
    result = ta.diagnose(loop(python("train.py(19): slow_augment")))
    page = render(result, "html").decode()
    for one in result.diagnosis:
        code = re.search(r"```\w*\n(.*?)```", fixes()[one.id], re.DOTALL)
        assert code
        assert escape(code[1].rstrip()) in page
        assert status(["diagnose", "--explain", one.id]) == 0
        assert code[1] in capsys.readouterr().out
    assert f"--explain {result.diagnosis[0].id}" in str(result)
    assert status(["diagnose", "--explain", "host-cod"]) == 2
    assert "'host-code'" in capsys.readouterr().err


def test_ranks_that_wait_get_the_rank_that_waits_least(shared: Path) -> None:
    """Rank 1 runs slow_augment in some steps, and rank 0 waits for it."""
    idle = ta.gpu_idle(shared / "data/causes/chrome/ddp_gloo_two_ranks")
    assert re.findall(r"Rank (\d).*(slow_augment)", idle.advice(causes.PEER)) == [
        ("1", "slow_augment")
    ]
    alone = ta.gpu_idle(shared / "data/causes/chrome/ddp_gloo_two_ranks/rank0.json.gz")
    assert "Rank" not in alone.advice(causes.PEER)


@pytest.mark.parametrize(
    ("place", "part"),
    [
        ("vllm/v1/core/sched/scheduler.py(180): schedule", "async-scheduling"),
        ("sglang/srt/managers/scheduler.py(90): get_next_batch_to_run", "async-scheduling"),
        ("vllm/v1/worker/gpu_model_runner.py(700): _prepare_inputs", "run it less often"),
        ("debugging.py(418): _format_print_callback", "remove it from the jitted step"),
        ("jax/_src/callback.py(90): pure_callback_impl", "remove it from the jitted step"),
        ("aten::_pin_memory", "DataLoader(pin_memory=True)"),
        ("<frozen importlib._bootstrap>(1007): _find_and_load", "top of the file"),
    ],
)
def test_schedulers_of_requests_run_ahead(place: str, part: str) -> None:
    one = Activity(place=place)
    api = replace(TRAINING, pytorch=False)
    assert part in activities.advice_on_host_code(one, api, code="", on_host=False)


@pytest.mark.parametrize(
    ("kernel", "of_experts"),
    [("GemmUniversal<GroupProblemShape<int>>", True), ("moe_align_block_size", True),
     ("ampere_bf16_s16816gemm_128x64", False)],
)  # fmt: skip
def test_work_of_experts_is_balanced_by_their_router(kernel: str, of_experts: bool) -> None:
    for why in UNEQUAL:
        advice = Difference(why, f"some kernels take longer, mostly {kernel}").advice("")
        assert ("router" in advice) == of_experts


def test_unequal_tables_need_another_sharding() -> None:
    for kernel, of_tables in (
        ("split_embedding_codegen_forward_unweighted", True),
        ("gemm", False),
    ):
        text = Difference(LARGER_INPUTS, f"mostly {kernel} (2 times as long)").advice("")
        assert ("TorchRec" in text) == of_tables


@pytest.mark.parametrize(
    ("place", "called", "buffers"),
    [
        ("aten::copy_", "torch/nn/parallel/distributed.py(1640): _pre_forward", True),
        ("aten::copy_", "torch/nn/parallel/distributed.py(1530): forward", False),
        ("aten::mul", "torch/nn/parallel/distributed.py(1640): _pre_forward", False),
    ],
)
def test_copies_of_broadcast_buffers(place: str, called: str, buffers: bool) -> None:
    """Each of many small copies starts late, after a wait for the device before the forward."""
    one = Activity(place=place, frame="train.py(212): main", called=called, after="Memcpy DtoD")
    item = advice_on_synchronisation(one, "cudaStreamSynchronize", "aten::item", pytorch=True)
    late = advice_on_launches(one, "", "Memcpy DtoD")
    assert all(("broadcast_buffers=False" in text) == buffers for text in (item, late))


def test_time_that_is_waits_only_grows_in_no_step() -> None:
    row = {"path": "a", "rank": 0, "device": 0, "step": "step 1", "lost_ns": 5, "waited": True}
    time = SimpleNamespace(growing=lambda rows: None if rows.is_empty() else (1, 2))
    assert idle._growing(pl.DataFrame([row]), time, ()) == ""


@pytest.mark.parametrize(
    ("function", "writes"),
    [("generate.py(97): save_images", True), ("a.py(1): imwrite", True), ("a.py(1): write", True),
     ("a.py(1): savings", False), ("a.py(1): update_saves", False)],
)  # fmt: skip
def test_code_that_writes_results_is_not_compiled(function: str, writes: bool) -> None:
    one = Activity(place=function, frame=function)
    advice = activities.advice_on_host_code(one, TRAINING, code="", on_host=False)
    assert ("thread or process" in advice) == writes
