"""Findings about training steps: optimizers, recomputed activations, repeated reductions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, MS, US, device, host, step, trace
from diagnosing import BY_ID, judged, judged_by
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.findings.rule import Answers
from traceanalyzer.run.loop import examine
from traceanalyzer.trace import Trace

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >()"
FOREACH = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<AdamFunctor>()"
AUTOGRAD = 2
_numbers = iter(range(1 << 30))


def launch(name: str, at: int, ns: int, *, tid: int = 1, **more: Any) -> Iterator[dict[str, Any]]:
    number = next(_numbers)
    yield host("cuda_runtime", "cudaLaunchKernel", at, US, tid=tid, correlation=number)
    yield device(name, at + US, ns, correlation=number, **more)


# --- the optimizer ---------------------------------------------------------------------------


STEP = "Optimizer.step#AdamW.step"


def optimizing(kernels: int, name: str = ADD, place: str = STEP, operators: str = "") -> Trace:
    """Return three steps of 10 ms: 5 ms of products, then 10 us kernels in the optimizer."""
    names = operators.split()
    return trace(
        [e for number in range(3) for e in _optimizing(number, kernels, name, place, names)]
    )


def _optimizing(
    number: int, kernels: int, name: str, place: str, operators: Sequence[str]
) -> Iterator[dict[str, Any]]:
    begin = number * 10 * MS
    yield step(number, begin, 10 * MS)
    yield from launch("gemm", begin, 5 * MS)
    yield host("user_annotation", place, begin + 6 * MS, 3 * MS)
    for n in range(kernels):
        at = begin + 6 * MS + n * 12 * US
        if operators:
            yield host("cpu_op", operators[n % len(operators)], at, 11 * US)
        kinds = name.split("|")
        yield from launch(kinds[n % len(kinds)], at, 10 * US)


def test_kernels_per_tensor_without_operators() -> None:
    """As nsys records it: one of four kernels runs twice for each tensor, which has five."""
    names = [ADD.replace("Functor", f"{kind}Functor") for kind in ("Mul", "Lerp", "Sqrt", "Div")]
    (one,) = judged("unfused-optimizer", optimizing(200, "|".join([*names, names[0]])))
    assert "5 per tensor" in one.title
    assert one.total_ns == pytest.approx(3 * (2 / 3 * 2 * MS + 199 * 2 * US))


def test_unfused_optimizer() -> None:
    """Half of 2 ms in each step, and 199 pauses of 2 us between the kernels."""
    (one,) = judged("unfused-optimizer", optimizing(200))
    assert one.total_ns == 3 * (MS + 199 * 2 * US)
    assert "200 small kernels" in one.title
    check_wording(one.title, *one.evidence)


def test_many_kernels_of_one_matrix_are_no_loop_over_tensors() -> None:
    assert not judged("unfused-optimizer", optimizing(200, operators="aten::_linalg_svd"))
    assert judged("unfused-optimizer", optimizing(200, operators="aten::linalg_vector_norm"))


NINE = (
    "aten::add_ aten::mul_ aten::lerp_ aten::mul_ aten::addcmul_ aten::sqrt aten::div aten::add_ "
    "aten::addcdiv_"
)


@pytest.mark.parametrize(
    ("operators", "frac", "each"), [("aten::mul_ aten::add_", 1 / 2, 2), (NINE, 2 / 3, 9)]
)
def test_a_loop_over_tensors(operators: str, frac: float, each: int) -> None:
    (one,) = judged("tensor-loop", optimizing(180, place="ema_update", operators=operators))
    assert one.total_ns == pytest.approx(3 * (frac * 1.8 * MS + 179 * 2 * US))
    assert one.title.startswith("ema_update")
    assert f"{each} per tensor" in one.title
    assert one.intervals is not None
    assert one.intervals.height == 3
    check_wording(one.title, *one.evidence)


@pytest.mark.parametrize("place", ["Optimizer.zero_grad#SGD.zero_grad", "unscale"])
def test_gradients_that_are_filled_with_zeros(place: str) -> None:
    (one,) = judged("tensor-loop", optimizing(180, place=place, operators="aten::zero_"))
    assert ("set_to_none=True" in one.advice) == ("zero_grad" in place)


@pytest.mark.parametrize(
    ("kernels", "operators"),
    [(90, "aten::mul_ aten::add_"), (180, "aten::mul aten::add"), (180, "")],
)
def test_short_runs_and_operators_of_layers_are_no_loop(kernels: int, operators: str) -> None:
    assert not judged("tensor-loop", optimizing(kernels, place="forward", operators=operators))


def test_idle_time_and_kernels_of_a_loop_are_counted_once() -> None:
    loop = optimizing(180, place="ema_update", operators="aten::mul_ aten::add_")
    found = {one.id: one for one in ta.diagnose(loop).findings}
    assert not {*found} & {"launch-bound", "short-gaps", "memory-bound-kernels", "one-kernel"}
    assert found["tensor-loop"].gain_basis == "replay"
    assert found["tensor-loop"].gain_frac == pytest.approx(1.258 / 10, rel=0.1)


@pytest.mark.parametrize(("kernels", "name"), [(99, ADD), (200, FOREACH), (0, ADD)])
def test_few_or_fused_optimizer_kernels_are_not_a_finding(kernels: int, name: str) -> None:
    assert not judged("unfused-optimizer", optimizing(kernels, name))


@pytest.mark.matrix
def test_optimizer_kernels_are_not_memory_bound_kernels() -> None:
    assert judged("memory-bound-kernels", optimizing(99))
    assert not judged("memory-bound-kernels", optimizing(200))


# --- recomputed activations ------------------------------------------------------------------

NODE = "autograd::engine::evaluate_function: "


def backward(operators: Sequence[str], node: str = "ReluBackward0", steps: int = 1) -> Trace:
    """Return steps with a backward pass of 10 ms in which these operators launch 1 ms each."""
    events = []
    for number in range(steps):
        begin = number * 20 * MS
        events += [step(number + 1, begin, 20 * MS), *launch("gemm", begin, 5 * MS)]
        for name in (f"{NODE}{node}", node):
            events.append(host("cpu_op", name, begin + 6 * MS, 10 * MS, tid=AUTOGRAD))
        for n, name in enumerate(operators):
            at = begin + 7 * MS + n * MS
            events.append(host("cpu_op", name, at, MS, tid=AUTOGRAD))
            events += launch("kernel", at + US, MS, tid=AUTOGRAD)
    return trace(events)


@pytest.mark.matrix
def test_layers_in_the_backward_pass_are_recomputed() -> None:
    (one,) = judged("recomputed-activations", backward(["aten::linear", "aten::layer_norm"]))
    assert (one.total_ns, one.size) == (2 * MS, pytest.approx(0.1))
    assert "aten::linear" in one.evidence[0]
    check_wording(one.title, *one.evidence)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("peak", "size", "text"), [(76, 0.05, "Recompute only"), (15, 0.1, "Memory is free")]
)
def test_recomputation_is_needed_where_memory_is_full(peak: int, size: float, text: str) -> None:
    traced = backward(["aten::linear", "aten::layer_norm"])
    names = ["kernels", "gpu_idle"]
    answers = Answers(dict(examine([traced], names, use="findings").results))
    vars(answers)["memory_use"] = (peak * 2**30, 80 * 2**30)
    (one,) = BY_ID["recomputed-activations"].judge(answers)
    assert one.size == pytest.approx(size)
    assert one.advice.startswith(text)


def test_time_of_recomputed_layers_is_per_step() -> None:
    """Layers have the unit of the cost: 1 ms in each of three steps."""
    (one,) = judged(
        "recomputed-activations", backward(["aten::linear", "aten::layer_norm"], steps=3)
    )
    assert one.total_ns == 3 * 2 * MS
    assert one.evidence[0].count("(1 ms per step and GPU)") == 2


@pytest.mark.matrix
def test_all_work_of_a_reentrant_checkpoint_is_recomputed() -> None:
    again = backward(["aten::linear", "aten::add"], "CheckpointFunctionBackward")
    (one,) = judged("recomputed-activations", again)
    assert one.total_ns == 2 * MS


@pytest.mark.matrix
@pytest.mark.parametrize("operators", [["aten::mm", "aten::add"], ["aten::linear"] * 2])
def test_backward_operators_are_not_recomputation(operators: list[str]) -> None:
    assert not judged("recomputed-activations", backward(operators))


# --- repeated reductions ---------------------------------------------------------------------


def accumulating(
    rank: int, reduced: Sequence[int], ddp: bool = True, forward: bool = False,
    kernel: str = ALL_REDUCE, frame: str = "",
) -> Trace:  # fmt: skip
    """Return two steps of micro-batches with 2 ms of compute, then reductions of 1 ms."""
    events: list[dict[str, Any]] = []
    seq = 0
    for number in range(2):
        begin = number * 20 * MS
        events.append(step(number, begin, 20 * MS))
        for batch, count in enumerate(reduced):
            at = begin + batch * 5 * MS
            about = {"elements_in": 1 << 22, "dtype": "float", "group_size": 2, "group": "0"}
            if ddp:
                events.append(host("user_annotation", "DistributedDataParallel.forward", at, MS))
            events += launch("gemm", at, 2 * MS)
            if forward:
                more = {"seq": (seq := seq + 1), "stream": 20, **about}
                events += launch(ALL_REDUCE, at + 2 * MS, MS, **more)
            for _ in range(count):
                more = {"seq": (seq := seq + 1), "stream": 20, **about}
                events += launch(kernel, at + 3 * MS, MS, tid=AUTOGRAD, **more)
            if frame:
                of_hook = host("python_function", frame, at + 2 * MS, 2 * MS)
                events.append({**of_hook, "tid": AUTOGRAD})
        events.append(host("user_annotation", "Optimizer.step#SGD.step", begin + 19 * MS, US))
    return trace(events, rank, world_size=2)


ZERO = "deepspeed/runtime/zero/stage_1_and_2.py(983): reduce_independent_p_g_buckets"
REDUCE_SCATTER = "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevComm*)"


@pytest.mark.parametrize(
    ("ddp", "kernel"),
    [(True, ALL_REDUCE), (False, ALL_REDUCE), (False, REDUCE_SCATTER)],
    ids=["True", "False", "reduce_scatter"],
)
def test_repeated_reduction(ddp: bool, kernel: str) -> None:
    traces = [accumulating(rank, (1, 1, 1), ddp, kernel=kernel) for rank in range(2)]
    by_id = {one.id: one for one in ta.diagnose(traces).findings}
    one = by_id["repeated-reduction"]
    assert one.cost_ns == 2 * MS
    assert "3 times" in one.title
    assert by_id["exposed-communication"].cost_ns == MS, "no time counts twice"
    if kernel == ALL_REDUCE:
        check_wording(one.title, *one.evidence)


HOOK = "train.py(5): hook"


def test_zero_reduces_in_each_micro_batch_by_design() -> None:
    for frame, no_sync, of_zero in ((ZERO, False, True), (HOOK, True, False), ("", True, True)):
        traces = [accumulating(rank, (1, 1, 1), False, frame=frame) for rank in range(2)]
        (one,) = judged("repeated-reduction", *traces)
        assert ("no_sync()" in one.advice, "ZeRO-2 or" in one.title) == (no_sync, not no_sync)
        assert ("larger micro-batches" in one.advice) == of_zero


@pytest.mark.parametrize("size", [1 << 21, 2_064_384, 1 << 20])  # padding differs
def test_sums_between_replicas_of_shards(size: int) -> None:
    """HSDP of 2 x 2 ranks: each rank sums its part of the gradients over the replicas."""

    def rank_of(rank: int) -> Trace:
        other = {"dtype": "float", "group_size": 2, "stream": 20, "seq": 1}
        shard, replica = rank // 2, rank % 2
        events = [step(0, 0, 20 * MS), *launch("gemm", 0, 2 * MS)]
        of_shard = {"group": f"s{shard}", "group_ranks": f"[{2 * shard}, {2 * shard + 1}]"}
        of_replica = {"group": f"r{replica}", "group_ranks": f"[{replica}, {replica + 2}]"}
        events += launch(REDUCE_SCATTER, 3 * MS, MS, elements_in=1 << 22, **of_shard, **other)
        for at in (5 * MS, 10 * MS):
            other["seq"] += 1
            events += launch(ALL_REDUCE, at, 4 * MS, elements_in=size, **of_replica, **other)
        return trace(events, rank, world_size=4)

    (one,) = judged("exposed-communication", *map(rank_of, range(4)))
    assert ("set_requires_all_reduce" in one.advice) == (size > 1 << 20)
    assert "in 2 groups of 2 ranks" in one.evidence[0]
    assert "8 calls (2 per step and GPU)" in one.evidence[0]
    # overlap with compute cannot hide the last sum, but fewer bytes make it shorter
    assert (one.most_gain_ns is None) == (size > 1 << 20)


def test_sums_of_the_forward_pass_too_are_no_gradients() -> None:
    """Tensor parallelism sums in each micro-batch, in the forward and the backward pass."""
    traces = [accumulating(rank, (1, 1), ddp=False, forward=True) for rank in range(2)]
    assert not judged("repeated-reduction", *traces)


@pytest.mark.matrix
@pytest.mark.parametrize("reduced", [(0, 0, 1), (1, 1, 2), (1,)])
def test_different_or_single_reductions_are_not_repeated(reduced: tuple[int, ...]) -> None:
    assert not judged("repeated-reduction", *(accumulating(rank, reduced) for rank in range(2)))


# --- checks of gradients ---------------------------------------------------------------------


def checked_gradients(nodes: int = 20, *, check: bool = True) -> Trace:
    """Return steps of nodes with a kernel of 50 us, and a check for NaN that waits until 80 us."""
    events: list[dict[str, Any]] = []
    for number in range(3 * nodes):
        at = number * 100 * US
        if number % nodes == 0:
            events.append(step(number // nodes, at, nodes * 100 * US))
        events.append(host("cpu_op", f"{NODE}MmBackward0", at, 90 * US))
        events += launch("gemm", at + US, 50 * US)
        if check:
            events.append(host("cpu_op", "aten::isnan", at + 5 * US, 10 * US))
            events += launch(ADD, at + 60 * US - 8 * US, 5 * US)
            events.append(host("cuda_runtime", "cudaStreamSynchronize", at + 60 * US, 28 * US))
    return trace(events)


def test_anomaly_detection() -> None:
    """From the check at 53 us to the next kernel at 102 us, in each node but the last one."""
    (one,) = judged("anomaly-detection", checked_gradients())
    assert one.total_ns == pytest.approx(3 * 20 * 49 * US, rel=0.02)
    found = {one.id for one in ta.diagnose(checked_gradients()).findings}
    assert not found & {"synchronisation", "launch-bound"}
    check_wording(one.title, *one.evidence)


def test_stacks_in_the_forward_pass_are_of_anomaly_detection() -> None:
    """Before the nodes of each of 3 steps, 10 operators of 400 us with kernels of 10 us.

    The last check of a step lasts until the first of these kernels.
    """
    events: list[dict[str, Any]] = []
    for number in range(3):
        at = number * 6 * MS
        events.append(step(number, at, 6 * MS))
        for begin in range(at, at + 4 * MS, 400 * US):
            events.append(host("cpu_op", "aten::mm", begin, 390 * US))
            events += launch("gemm", begin + 380 * US, 10 * US)
        for begin in range(at + 4 * MS, at + 6 * MS, 100 * US):
            events.append(host("cpu_op", f"{NODE}MmBackward0", begin, 90 * US))
            events.append(host("cpu_op", "aten::isnan", begin + 5 * US, 10 * US))
            events += [*launch("gemm", begin + US, 50 * US), *launch(ADD, begin + 52 * US, 5 * US)]
            events.append(host("cuda_runtime", "cudaStreamSynchronize", begin + 60 * US, 28 * US))
    recorded = trace(events)
    (one,) = judged("anomaly-detection", recorded)
    assert one.total_ns == pytest.approx((3 * (9 * 390 + 20 * 49) + 2 * 328) * US, rel=0.02)
    assert [one.id for one in ta.diagnose(recorded).findings] == ["anomaly-detection"]


def test_gradients_without_checks_are_no_anomaly_detection() -> None:
    assert not judged("anomaly-detection", checked_gradients(check=False))


# --- logged metrics --------------------------------------------------------------------------


def logging(rank: int, metrics: int, kernel: str = ALL_REDUCE) -> Trace:
    """Return steps of 1 ms in which the host reads small collectives one after another."""
    events: list[dict[str, Any]] = []
    group = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2, "dtype": "float"}
    for number in range(4):
        begin = number * MS
        events += [step(number, begin, MS), *launch("gemm", begin, 500 * US)]
        for n in range(metrics):
            at = begin + 510 * US + n * 40 * US
            seq = number * 10 + n
            events += launch(kernel, at, 10 * US, seq=seq, elements_in=1, **group)
            events.append(host("cuda_runtime", "cudaStreamSynchronize", at + 2 * US, 10 * US))
    return trace(events, rank=rank)


@pytest.mark.parametrize(
    ("metrics", "kernel", "named"),
    [(8, ALL_REDUCE, True), (2, ALL_REDUCE, False), (8, "ncclDevKernel_Broadcast_RING", False)],
)
def test_metrics_of_all_ranks_are_the_cause_of_waits(
    metrics: int, kernel: str, named: bool
) -> None:
    found = judged("synchronisation", *(logging(rank, metrics, kernel) for rank in range(2)))
    titles = [one.title for one in found if "calls of at most 4 B" in one.title]
    assert bool(titles) == named


# --- what grows with each step ---------------------------------------------------------------

CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 4>()"


def lengthening(each: Sequence[int], *, on_device: bool) -> Trace:
    """Return steps of a kernel of 1 ms, and a kernel or a pause of the host of some ms."""
    events: list[dict[str, Any]] = []
    begin = 0
    for number, ms in enumerate(each):
        events += [*launch("gemm", begin, MS)]
        if on_device:
            events += launch(CAT, begin + MS + US, ms * MS)
        else:
            events.append(host("cuda_runtime", "cudaDeviceSynchronize", begin + 2 * US, MS))
            events.append(host("user_annotation", "update", begin + MS + 3 * US, ms * MS - 4 * US))
        length = (1 + ms) * MS + 2 * US
        events.append(step(number, begin, length))
        begin += length
    return trace(events)


GROWS, VARIES = (1, 2, 3, 4, 5, 6, 7, 8), (8, 1, 7, 2, 6, 3, 5, 4)


@pytest.mark.parametrize(("each", "grows"), [(GROWS, True), (VARIES, False)])
def test_host_code_that_takes_longer_in_each_step(each: Sequence[int], grows: bool) -> None:
    (one,) = judged("host-code", lengthening(each, on_device=False))
    assert ("longer in each step" in one.title) == grows
    check_wording(one.title)


def test_copies_that_grow_with_each_step() -> None:
    """What the copies take above the first one, 1 ms; the kernel is no other finding."""
    grown = lengthening(GROWS, on_device=True)
    (one,) = judged("growing-copies", grown)
    assert one.total_ns == (sum(GROWS) - len(GROWS)) * MS
    check_wording(one.title, one.advice)
    assert {found.id for found in ta.diagnose(grown).findings} == {"growing-copies"}


def generating(length: int = 6000, added: int = 1) -> Trace:
    """Return steps of a kernel of 1 ms, and two copies of 1 ms that extend a cache: K and V."""
    events: list[dict[str, Any]] = []
    for number in range(6):
        begin, sizes = number * 4 * MS, f"[16,{length + number * added},128],[16,{added},128]"
        events += [step(number, begin, 4 * MS - US), *launch("gemm", begin, MS)]
        for n in (1, 2):
            operator = host("cpu_op", "aten::cat", begin + n * MS, 10 * US)
            events.append({**operator, "input_dims": f"[[{sizes}],[]]"})
            events += launch(CAT, begin + n * MS + US, MS - 2 * US)
    return trace(events)


def test_cache_that_is_copied_to_add_a_token() -> None:
    """All copies count, and the pairs of them are nothing that could be fused."""
    (one,) = judged("growing-copies", generating())
    assert one.total_ns == 6 * 2 * (MS - 2 * US)
    check_wording(one.title)
    found = {found.id for found in ta.diagnose(generating()).findings}
    assert "growing-copies" in found
    assert found.isdisjoint({"one-kernel", "memory-bound-kernels"})


@pytest.mark.parametrize(("length", "added"), [(6000, 0), (10, 50)])
def test_joined_tensors_that_are_not_extended_little(length: int, added: int) -> None:
    joining = generating(length, added)
    growing, bound = judged_by(["growing-copies", "memory-bound-kernels"], joining)
    assert not growing
    fused = sum(one.total_ns or 0 for one in bound)
    assert not fused  # copies that join tensors are not fused with each other


#: Operators of an RMS norm, and nodes of its backward pass; the others are neighbours.
NORM = ["add", "copy_", "pow", "mean", "add", "rsqrt", "mul", "copy_", "mul", "mm"]
NODES = ["Mul", "Mul", "ToCopy", "Mul", "Mul", "Rsqrt", "Mean", "Pow", "Pow", "ToCopy", "Add"]


def normalizing(names: list[str], nodes: list[str]) -> Trace:
    """Return 3 steps with a kernel of 1 ms in each of the operators and nodes, and a product."""
    events: list[dict[str, Any]] = []
    around = [f"autograd::engine::evaluate_function: {n}Backward{int(n == 'Mean')}" for n in nodes]
    for begin in (0, 400 * MS, 800 * MS):
        at = begin
        for name in (*(f"aten::{name}" for name in names), *around):
            events.append(host("cpu_op", name, at, MS // 2))
            events += launch("reduce_kernel<MeanOps>" if name == "aten::mean" else ADD, at + US, MS)
            at += MS
        events += [step(begin, begin, 399 * MS), *launch("sgemm", at, 300 * MS)]
    return trace(events)


@pytest.mark.parametrize(
    ("names", "nodes", "kernels"),
    [(NORM, [], 7), (NORM, NODES, 16), (NORM[2:7], [], 4), (NORM[3:], [], 0)],
    ids=["forward", "backward", "one type", "no square"],
)
def test_norms_by_separate_operators(names: list[str], nodes: list[str], kernels: int) -> None:
    """All kernels of each norm but the first count; neighbours and other operators do not."""
    found = judged("separate-norms", normalizing(names, nodes))
    assert sum(one.total_ns or 0 for one in found) == 3 * kernels * MS


def test_copies_of_changing_sizes_do_not_grow() -> None:
    assert not judged("growing-copies", lengthening(VARIES, on_device=True))


# --- kernels beside collectives --------------------------------------------------------------


def overlapping(factor: float, *, sizes: int = 1) -> Trace:
    """Return kernels of three names, half of them beside an all_reduce, and its factor."""
    events: list[dict[str, Any]] = []
    at = 0
    for call in range(24):
        shared = call % 2
        begin = at
        for kernel in range(3):
            length = 100 * US * (1 + call // 2 % sizes)
            length = round(length * (factor if shared else 1))
            events += launch(f"kernel_{kernel}", at, length)
            at += length + 5 * US
        if shared:
            events += launch(ALL_REDUCE, begin, at - begin, stream=20)
    result = trace([*events, step(0, 0, at)])
    rows = result.events.with_row_index("event").filter(pl.col("stream") == 7)
    grids = rows.select("event", grid_x=pl.lit(64, pl.Int32), grid_y=1, grid_z=1)
    return replace(
        result, launch_configs=pl.concat([result.launch_configs, grids], how="diagonal_relaxed")
    )


def test_kernels_that_collectives_slow() -> None:
    (one,) = judged("slowed-compute", overlapping(1.3))
    assert one.total_ns == pytest.approx(12 * 3 * 30 * US, rel=0.01)


@pytest.mark.parametrize(
    "recording", [overlapping(1.0), overlapping(1.3, sizes=3)], ids=["as fast", "sizes"]
)
def test_kernels_that_collectives_do_not_slow(recording: Trace) -> None:
    assert not judged("slowed-compute", recording)


# --- many calls of one operator ----------------------------------------------------------------


def calling(operators: Sequence[str], us: int, kernels: int, between: int = 0) -> Trace:
    """Return three steps of 10 ms: operators with kernels each, and other kernels after each."""
    events: list[dict[str, Any]] = []
    for number in range(3):
        events += [step(number, number * 10 * MS, 10 * MS)]
        for n in range(5):
            events += launch("gemm", number * 10 * MS + n * MS, MS)
        at = number * 10 * MS + 6 * MS
        for operator in operators:
            length = kernels * (us + 2) * US
            events += [host("cpu_op", operator, at, length)]
            for n in range(kernels):
                events += launch(ADD, at + n * (us + 2) * US + US // 2, us * US)
            at += length + US
            for _ in range(between):
                events += launch("other", at, 10 * US)
                at += 12 * US
    return trace(events)


BAG = "aten::embedding_bag"


@pytest.mark.parametrize(
    ("operators", "kernels", "between", "left"),
    [
        ([BAG] * 26, 1, 0, 1 / 2),
        (["aten::embedding"] * 9, 2, 3, 1 / 2),
        (["autograd::engine::evaluate_function: EmbeddingBagBackward0"] * 12, 4, 1, 1 / 3),
    ],
)
def test_tables_one_by_one(operators: list[str], kernels: int, between: int, left: float) -> None:
    (one,) = judged("tensor-loop", calling(operators, 20, kernels, between))
    n = len(operators) * kernels
    assert f"embedding tables launches {n} small kernels per step" in one.title
    least = 3 * n * 20 * US * (1 - left)
    assert least <= (one.total_ns or 0) < 1.6 * least


@pytest.mark.parametrize(
    ("operators", "us", "between"),
    [([BAG] * 7, 20, 0), ([BAG] * 26, 60, 0), ([BAG] * 26, 20, 4), (["aten::linear"] * 26, 20, 0)],
)
def test_few_or_large_tables_are_no_loop(operators: list[str], us: int, between: int) -> None:
    assert not judged("tensor-loop", calling(operators, us, 1, between))


@pytest.mark.parametrize(
    "operator",
    ["aten::_weight_norm", "autograd::engine::evaluate_function: WeightNormInterfaceBackward0"],
)
def test_weights_that_each_pass_computes(operator: str) -> None:
    (one,) = judged("tensor-loop", calling([operator] * 40, 3, 4, between=2))
    assert "parametrization" in one.title
    assert "160 small kernels per step" in one.title
    assert 3 * 160 * 3 * US <= (one.total_ns or 0) < 1.8 * 3 * 160 * 3 * US
    assert "remove_weight_norm" in one.advice
