"""Costs of findings: each moment counts once, and a finding names the steps that lose it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, BROADCAST, GEMM, MS, US, device, host, step, trace
from diagnosing import diagnosis, finding

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.outliers import small_kind
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.findings import communication
from traceanalyzer.findings.judge import _Candidate, _chained
from traceanalyzer.findings.result import BUSY
from traceanalyzer.result import Finding
from traceanalyzer.trace import Trace

STEPS = 8


def not_useful(diagnosed: ta.Diagnosis) -> float:
    """Return the share of time that is neither compute nor operators."""
    return 1 - float(diagnosed.budget.filter(part=BUSY)["time_frac"].sum())


def costs(diagnosed: ta.Diagnosis) -> float:
    of_time = ("step time", "the recorded time")
    return sum(one.cost_frac or 0.0 for one in diagnosed.findings if one.of in of_time)


@pytest.mark.parametrize(
    "name", ["ddp_gloo_two_ranks", "loss_in_three_steps", "two_buckets_in_flight"]
)
def test_costs_are_at_most_the_lost_time(shared: Path, name: str) -> None:
    path = shared / "data/causes/chrome" / name
    if not path.exists():
        pytest.skip(f"no folder {path}")
    diagnosed = diagnosis(path)
    assert 0.5 * not_useful(diagnosed) < costs(diagnosed) <= not_useful(diagnosed) + 1e-9


def test_cost_of_a_straggler_is_the_sum_of_its_parts(shared: Path) -> None:
    """Wait time in no other finding is at most all of it; the rest of the cost is of the rank."""
    found = ta.diagnose(shared / "data/chrome/kineto_ddp_cpu/ddp4")
    (one,) = (one for one in found.findings if one.id == "straggler")
    whole, counted = map(float, re.findall(r"([\d.]+) %", one.title))
    (direct_ms,) = (float(text.split()[0]) for text in one.evidence if "itself" in text)
    assert one.cost_ns is not None
    assert one.cost_frac is not None
    assert 0 < counted < whole < 100 * one.cost_frac
    direct_frac = direct_ms * MS / one.cost_ns * one.cost_frac
    assert counted / 100 + direct_frac == pytest.approx(one.cost_frac, abs=0.001)


def test_a_slow_link_says_how_much_of_its_cost_is_wait_time(shared: Path) -> None:
    """Job ST: transfers of 91.85 ms a step, and 21.46 ms of waits for ranks that they delay."""
    found = ta.diagnose(shared / "data/whatif/kineto")
    (one,) = (one for one in found.findings if one.id == "slow-link")
    transfer = found.budget.filter(name="transfer")["each_ns"].item()
    assert one.cost_ns is not None
    waits_ms = float(one.evidence[0].split()[0])
    assert 0 < one.cost_ns - waits_ms * MS < transfer < one.cost_ns


def cpu_job(late: set[int]) -> list[Trace]:
    """Return two CPU ranks; in some steps rank 1 pauses for 60 ms, and rank 0 waits for it."""
    return [trace(list(_cpu_rank(rank, late)), rank, world_size=2) for rank in range(2)]


def _cpu_rank(rank: int, late: set[int]) -> Iterator[dict[str, Any]]:
    at = 0
    for number in range(STEPS):
        pause = 60 * MS if number in late else 0
        yield step(number, at, pause + 10 * MS)
        begin = at + (pause if rank else 0)
        yield host("cpu_op", "aten::mm", begin, 5 * MS)
        until = at + pause + 9 * MS
        yield host("cpu_op", "c10d::allreduce_", begin + 5 * MS, 1000)
        wait = {"ts": begin + 5 * MS + 1000, "dur": until - begin - 5 * MS - 1000}
        yield {**host("cpu_op", "_c10d_functional::wait_tensor", 0, 0), **wait}
        run = host("user_annotation", "gloo:all_reduce", begin + 5 * MS, until - begin - 5 * MS)
        yield {**run, "tid": 2, "dtype": "float", "elements_in": 1 << 18}
        at += pause + 10 * MS


@pytest.mark.matrix
@pytest.mark.parametrize("late", [{2}, {1, 4}, {1, 4, 6}])
def test_all_steps_with_the_loss_are_named(late: set[int]) -> None:
    diagnosed = ta.diagnose(cpu_job(late))
    first = diagnosed.findings[0]
    assert (first.id, first.rank) == ("host-code", 1)
    where = f"in {len(late)} of {STEPS} steps" if len(late) > 1 else "in ProfilerStep#2"
    assert where in first.title
    assert first.step == ("ProfilerStep#2" if len(late) == 1 else None)
    assert costs(diagnosed) <= not_useful(diagnosed) + 1e-9


def candidate(id_: str, cost: float, **explained: float) -> _Candidate:
    one = Finding(id_, "critical", "high", id_, (), "", "", cost_frac=cost, of="step time")
    return _Candidate(one, explained)


@pytest.mark.parametrize(
    ("candidates", "roots"),
    [
        # the largest share is of a finding that costs too little: the next one explains it
        ([candidate("a", 0.6), candidate("b", 0.1), candidate("c", 0.4, b=0.9, a=0.85)], "ab"),
        # no single one costs as much, but both together
        ([candidate("a", 0.2), candidate("b", 0.2), candidate("c", 0.4, a=0.5, b=0.5)], "ab"),
        ([candidate("a", 0.1), candidate("b", 0.1), candidate("c", 0.4, a=0.5, b=0.5)], "abc"),
        ([candidate("a", 0.4, c=1.0), candidate("c", 0.4, a=1.0)], "ac"),
        # a small share of an effect does not explain it: a straggler and its slow steps
        (
            [
                candidate("a", 0.2),
                candidate("b", 0.2),
                candidate("c", 0.4, a=0.5, b=0.5, d=0.01),
                candidate("d", 0.4, a=0.5, b=0.5, c=1.0),
            ],
            "ab",
        ),
    ],
)
def test_effects_of_findings(candidates: list[_Candidate], roots: str) -> None:
    assert {one.id for one in _chained(candidates)} == set(roots)


def streams(rank: int) -> Iterator[dict[str, Any]]:
    """Yield steps in which two streams communicate at the same time; one in six is slow."""
    for number in range(12):
        begin, slow = number * 40 * MS, 20 * MS if number % 6 == 5 else 0
        yield step(number, begin, 40 * MS)
        yield device("gemm", begin, 5 * MS)
        for stream in (20, 21):
            yield device(ALL_REDUCE, begin + 5 * MS, 5 * MS + slow, stream=stream, dtype="float",
                         elements_in=1 << 24, group=str(stream), group_size=2,
                         seq=number)  # fmt: skip


@pytest.mark.matrix
def test_collectives_of_two_streams_count_a_moment_once() -> None:
    diagnosed = ta.diagnose([trace(list(streams(rank)), rank, world_size=2) for rank in range(2)])
    slow = next(one for one in diagnosed.findings if one.id == "slow-collectives")
    assert slow.cost_ns == pytest.approx(20 * MS / 6, rel=0.01)
    assert costs(diagnosed) <= not_useful(diagnosed) + 1e-9


def loader_after(call_ms: int) -> Iterator[dict[str, Any]]:
    """Yield steps that load for 10 ms, after the host waited so long for the device."""
    for number in range(6):
        begin = number * 30 * MS
        yield step(number, begin, 30 * MS)
        yield host("cuda_runtime", "cudaLaunchKernel", begin, 1000, correlation=number)
        yield device("gemm", begin + 2000, 18 * MS, correlation=number)
        if call_ms:
            yield host("cpu_op", "aten::item", begin + 19 * MS - call_ms * MS, call_ms * MS)
            call = host("cuda_runtime", "cudaStreamSynchronize", begin + 19 * MS, 0)
            yield {**call, "ts": begin + 19 * MS - call_ms * MS + 10, "dur": call_ms * MS - 20}
        load = host("user_annotation", "dataloader", begin + 19 * MS, 10 * MS)
        yield load


@pytest.mark.matrix
@pytest.mark.parametrize("call_ms", [0, 18])
def test_a_synchronisation_that_exposes_the_loader_is_named(call_ms: int) -> None:
    found = {one.id: one for one in ta.diagnose(trace(list(loader_after(call_ms)))).findings}
    texts = " ".join(found["data-loading"].evidence)
    assert ("cudaStreamSynchronize" in texts) == bool(call_ms)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("elements", "times", "part"),
    [
        (256, 140, "larger buckets"),
        (4, 140, "single numbers"),
    ],
)
def test_small_messages_need_larger_buckets_in_the_advice(
    elements: int, times: int, part: str
) -> None:
    about = {"dtype": "float", "elements_in": elements, "group": "0", "group_size": 2, "stream": 20}
    rows = [
        event
        for number in range(3)
        for event in (
            step(number, number * 4 * MS, 4 * MS),
            device("gemm", number * 4 * MS, MS),
            *(device(ALL_REDUCE, number * 4 * MS + MS + i * 20_000, 18_000,
                     seq=number * times + i, **about) for i in range(times)),
        )
    ]  # fmt: skip
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    found = {one.id: one for one in ta.diagnose(traces).findings}
    assert part in found["exposed-communication"].advice


@pytest.mark.parametrize(
    ("issuer", "kernel", "part"),
    [
        (("cpu_op", "SyncBatchNorm"), ALL_REDUCE, "GroupNorm"),
        (("python_function", "torch/nn/modules/_functions.py(60): forward"), ALL_REDUCE,
         "GroupNorm"),
        (("cpu_op", "ReduceAddCoalesced"), ALL_REDUCE.replace("AllReduce", "Reduce"),
         "use DistributedDataParallel"),
        (("user_annotation", "update_weights"), ALL_REDUCE.replace("AllReduce", "Broadcast"),
         "update_weights issues the broadcasts"),
        (("user_annotation", "nccl:broadcast"), ALL_REDUCE.replace("AllReduce", "Broadcast"),
         "one flat buffer"),
        (("user_annotation", "Net.training_step_log"), ALL_REDUCE, "without sync_dist"),
        (("python_function", "utils.py(286): clip_grad_norm_"), ALL_REDUCE, "reduce that one"),
        (("python_function", "torch/nn/parallel/distributed.py(2072): _sync_buffers"),
         ALL_REDUCE.replace("AllReduce", "Broadcast"), "broadcast_buffers=False"),
        (("cpu_op", "aten::mm"), ALL_REDUCE, "larger buckets"),
        (("user_annotation", "logits of all ranks"), ALL_REDUCE, "larger buckets"),
    ],
)  # fmt: skip
def test_advice_on_small_collectives_fits_what_issues_them(
    issuer: tuple[str, str], kernel: str, part: str
) -> None:
    about = {"dtype": "float", "elements_in": 256, "group": "0", "group_size": 2, "stream": 20}
    rows = []
    for number in range(3):
        begin = number * 4 * MS
        rows += [step(number, begin, 4 * MS), host(*issuer, begin, 500 * US)]
        rows.append(host("cuda_runtime", "cudaLaunchKernel", begin, US, correlation=len(rows)))
        rows.append(device("gemm", begin + 5 * US, 990 * US, correlation=len(rows) - 1))
        rows.append(host("user_annotation", "Optimizer.step#SGD.step", begin + 600 * US, US))
        for i in range(140):
            ids = {"correlation": len(rows), "seq": number * 140 + i}
            at = begin + (3 * i + 2) * US
            rows.append(host("cuda_runtime", "cudaLaunchKernel", at, US, correlation=len(rows)))
            rows.append(device(kernel, begin + MS + i * 20 * US, 18 * US, **ids, **about))
        # the next step begins when the host has waited for all of them
        rows.append(host("cuda_runtime", "cudaDeviceSynchronize", begin + 700 * US, 3100 * US))
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    one = finding("exposed-communication", *traces)
    assert part in one.advice
    assert one.fix == "fewer-calls"  # each advice has the host issue fewer of them
    assert ("larger buckets" in " ".join(one.evidence)) == (part == "larger buckets")


def test_small_collectives_that_compute_hides_cost_nothing() -> None:
    rows = [step(0, 0, 30 * MS), device(GEMM, 0, 29 * MS)]
    of = {"dtype": "float", "group": "0", "group_size": 2, "stream": 20, "elements_in": 8}
    rows += [device(ALL_REDUCE, MS + n * 61 * US, 60 * US, seq=n, **of) for n in range(60)]
    result = ta.comm_outliers([trace(rows, rank, world_size=2) for rank in range(2)])
    assert small_kind(result.instances, 2) is None
    assert small_kind(result.instances.with_columns(compute_ns=pl.lit(0)), 2) is not None


@pytest.mark.parametrize(
    ("times", "kernel", "hidden", "part"),
    [
        (60, BROADCAST, False, "broadcast_buffers=False"),
        (60, ALL_REDUCE, False, "single numbers"),
        (60, BROADCAST, True, ""),
        (6, BROADCAST, False, ""),
    ],
)
def test_small_collectives_among_large_ones(
    times: int, kernel: str, part: str, *, hidden: bool
) -> None:
    """Small ones are named if they have a part of the exposed time; advice on buckets is not."""
    of_group = {"dtype": "float", "group": "0", "group_size": 2, "stream": 20}
    rows = []
    for number in range(4):
        begin = number * 30 * MS
        rows += [step(number, begin, 30 * MS), device("gemm", begin, 8 * MS)]
        at = begin if hidden else begin + 8 * MS
        rows += [
            device(kernel, at + i * 61 * US, 60 * US, elements_in=8, seq=number * 64 + i,
                   **of_group)
            for i in range(times)
        ]  # fmt: skip
        large = {**of_group, "elements_in": 25_000_000}
        rows += [
            device(ALL_REDUCE, begin + 12 * MS + i * 4 * MS, 4 * MS, seq=number * 64 + 60 + i,
                   **large)
            for i in range(4)
        ]  # fmt: skip
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    compared = ta.comm_outliers(traces)
    small = small_kind(compared.instances, compared.totals.n_ranks)
    one = finding("exposed-communication", *traces)
    assert (small is not None) == bool(part)
    assert not one.fix  # not all of it goes with fewer calls
    assert one.advice.count("small") == bool(part)
    assert part in one.advice
    if small is not None:
        kind = "broadcast" if kernel == BROADCAST else "all_reduce"
        assert (small["collective"], small["n"], small["message_bytes"]) == (kind, times, 32)
        assert small["ns"] == 2 * 4 * times * 60 * US
        assert small["frac"] == pytest.approx(3.6 / 19.6)


def test_a_few_collectives_of_sync_batch_norm_are_not_all() -> None:
    about = {"dtype": "float", "elements_in": 256, "group": "0", "group_size": 2, "stream": 20}
    rows = []
    for number in range(4):
        begin = number * 4 * MS
        rows += [step(number, begin, 4 * MS), device("gemm", begin, MS)]
        for i in range(140):
            at, of_norm = begin + i * 3 * US, i < 10
            code = "torch/nn/modules/_functions.py(60): forward" if of_norm else "a.py(4): sums"
            rows.append(host("python_function", code, at, 2 * US + US // 2))
            ids = {"correlation": len(rows), "seq": len(rows)}
            rows.append(
                host("cuda_runtime", "cudaLaunchKernel", at + US, US, correlation=len(rows))
            )
            name, start = GATHER if of_norm else ALL_REDUCE, begin + MS + i * 20 * US
            rows.append(device(name, start, 18 * US, **ids, **about))
    one = finding("exposed-communication", *(trace(rows, r, world_size=2) for r in range(2)))
    assert "BatchNorm" not in one.advice


def test_advice_fits_the_most_exposed_collectives_among_others() -> None:
    """Two thirds are broadcasts of buffers, one third the end of a reduction."""
    about = {"dtype": "float", "elements_in": 1 << 20, "group": "0", "group_size": 2, "stream": 20}
    broadcast = ALL_REDUCE.replace("AllReduce", "Broadcast")
    buffers = "torch/nn/parallel/distributed.py(2072): _sync_buffers"
    rows = []
    for number in range(3):
        begin = number * 10 * MS
        rows.append(step(number, begin, 10 * MS))
        rows.append(host("python_function", buffers, begin, 100 * US))
        for kernel, call, at, ns in (
            (broadcast, 10 * US, 20 * US, 2 * MS), ("gemm", 300 * US, 2021 * US, 6 * MS),
            (ALL_REDUCE, 400 * US, 6 * MS, 3 * MS),
        ):  # fmt: skip
            ids = {"correlation": len(rows)}
            rows.append(host("cuda_runtime", "cudaLaunchKernel", begin + call, US, **ids))
            named = {} if kernel == "gemm" else {**about, "seq": len(rows)}
            rows.append(device(kernel, begin + at, ns, **ids, **named))
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    one = finding("exposed-communication", *traces)
    assert "broadcast_buffers=False" in one.advice


GATHER, SCATTER = (ALL_REDUCE.replace("AllReduce", name) for name in ("AllGather", "ReduceScatter"))


@pytest.mark.parametrize(
    ("collectives", "most", "wrap"),
    [
        ([(GATHER, 0, 4), (ALL_REDUCE, 5, 1)], "all_reduce", False),  # the gather is overlapped
        ([(GATHER, 5, 2), (GATHER, 7, 2), (SCATTER, 9, 2)], "all_gather", True),
        ([(GATHER, at, 1) for at in (5, 6, 7, 8)] + [(SCATTER, 9, 2)], "all_gather", False),
    ],
)
def test_the_collective_with_the_most_exposed_time_decides(
    collectives: list[tuple[str, int, int]], most: str, wrap: bool
) -> None:
    """A product takes the first 5 ms of each step; a model that is one unit has two gathers."""
    about = {"dtype": "float", "elements_in": 1 << 24, "group": "0", "group_size": 2, "stream": 20}
    rows = []
    for number in range(3):
        begin = 11 * number * MS
        rows += [step(number, begin, 11 * MS), device("gemm", begin, 5 * MS)]
        for name, at, ms in collectives:
            out = {"elements_in": 1 << 23, "elements_out": 1 << 24} if name == GATHER else {}
            rows.append(device(name, begin + at * MS, ms * MS, seq=len(rows), **about | out))
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    one = finding("exposed-communication", *traces)
    assert most in one.evidence[0]
    assert ("fully_shard for each block" in one.advice) == wrap


MIB = 1 << 20


@pytest.mark.parametrize(
    ("gathers", "sums", "peak", "part"),
    [
        ([(4, 768 * MIB)], (2, 1536 * MIB), 15, "are one FSDP unit"),
        (
            [(64, 8 * MIB), (64, 4 * MIB)],
            (64, 16 * MIB),
            15,
            "64 gathers per step and GPU, of 6 MiB",
        ),
        ([(32, 150 * MIB)], (16, 150 * MIB), 15, "reshard_after_forward=False"),
        ([(32, 150 * MIB)], (16, 150 * MIB), 70, ""),  # no memory for it
        ([(16, 150 * MIB)], (16, 150 * MIB), 15, ""),  # kept already
    ],
)
def test_advice_on_units_of_sharded_parameters(
    gathers: list[tuple[int, int]], sums: tuple[int, int], peak: int, part: str
) -> None:
    """Two steps of one rank."""
    kinds = ["all_gather"] * len(gathers) + ["reduce_scatter"]
    n, sizes = zip(*gathers, sums, strict=True)
    groups = pl.DataFrame(
        {"collective": kinds, "n": n, "message_bytes": sizes, "total_ns": [1000] * len(kinds)}
    )
    steps = pl.DataFrame({"path": "a", "rank": 0, "step": ["1", "2"]})
    comm: Any = SimpleNamespace(groups=groups, instances=steps)
    answers: Any = SimpleNamespace(memory_use=(peak << 30, 80 << 30))
    advice = communication._of_units(answers, comm, "all_gather")
    assert part in advice if part else not advice


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("gs" * 12, True),  # a layer gathers and scatters twice, forward and backward
        ("gsgs" * 3 + "ggs" * 6, True),  # products of gradients gather again
        ("g" * 12 + "gs" * 12, False),  # FSDP
        ("s" * 12 + "g" * 12, False),  # ZeRO-1: gradients, then parameters
        ("gs" * 3, False),  # too few for layers
        ("g" * 12, False),
    ],
)
def test_activations_of_sequences_are_gathered_and_scattered_in_turn(
    order: str, *, expected: bool
) -> None:
    kinds = [{"g": "all_gather", "s": "reduce_scatter"}[letter] for letter in order]
    rows = pl.DataFrame({"collective": kinds, "ts": range(len(kinds))})
    rows = rows.with_columns(path=pl.lit("a"), rank=0, group=pl.lit("3")).join(
        pl.DataFrame({"step": ["1", "2"]}), how="cross"
    )
    comm: Any = SimpleNamespace(instances=rows, groups=pl.DataFrame({"group": ["3"]}))
    assert communication._are_of_sequences(comm) == expected


@pytest.mark.parametrize(("size", "is_across"), [(2, True), (4, False)])
def test_small_groups_between_hosts(size: int, *, is_across: bool) -> None:
    groups = pl.DataFrame({"link": ["network"], "group_size": [size]})
    hosts = pl.DataFrame({"rank": range(4), "host": ["a", "a", "b", "b"]})
    comm: Any = SimpleNamespace(groups=groups, ranks=hosts)
    assert bool(communication._across_hosts(comm)) == is_across


@pytest.mark.parametrize(("first", "part"), [(0, "NVLink"), (10, "gradient buckets")])
def test_sums_of_layers_in_training_are_no_gradients(first: int, part: str) -> None:
    """Layers of 1 ms, each followed by an all_reduce from the layer ``first`` on."""
    about = {"dtype": "float", "elements_in": 1 << 24, "group": "9", "group_size": 2}
    rows, called = [], 0
    for number in range(3):
        rows.append(step(number, called, 100 * US))
        backward = "autograd::engine::evaluate_function: MmBackward0"
        rows.append(host("cpu_op", backward, called + 50 * US, 40 * US))
        for layer in range(30):
            at = (30 * number + layer) * 2 * MS
            ids = {"correlation": len(rows)}
            reduced = {"correlation": len(rows) + 1, "stream": 20, **about}
            rows += [host("cuda_runtime", "cudaLaunchKernel", called + US + n * US, US // 2, **one)
                     for n, one in enumerate((ids, reduced))]  # fmt: skip
            rows.append(device("gemm", at, (1 + (layer < first)) * MS - US, **ids))
            if layer >= first:
                rows.append(device(ALL_REDUCE, at + MS, MS - US, **reduced))
            called += 3 * US
        called += 10 * US
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    found = {one.id: one for one in ta.diagnose(traces).findings}
    assert part in found["exposed-communication"].advice


@pytest.mark.parametrize(("times", "part"), [(16, "One parameter"), (2, "gradient buckets")])
def test_a_sum_much_larger_than_the_buckets_is_one_parameter(times: int, part: str) -> None:
    """Backward of 10 ms with four buckets of 16 MiB each step, then the large sum of 6 ms."""
    about = {"dtype": "float", "group": "0", "group_size": 2, "stream": 20}
    rows = []
    for number in range(3):
        at = number * 20 * MS
        rows += [
            step(number, at, 20 * MS),
            host("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at, 100 * US),
        ]
        kernels = [("gemm", 0, 10 * MS, {})]
        for bucket in range(4):
            sizes = {**about, "elements_in": 1 << 22}
            kernels.append((ALL_REDUCE, (bucket + 1) * 2 * MS, MS, sizes))
        kernels.append((ALL_REDUCE, 10 * MS, 6 * MS, {**about, "elements_in": times << 22}))
        for place, (name, start, dur, more) in enumerate(kernels):
            ids = {"correlation": len(rows)}
            rows.append(host("cuda_runtime", "cudaLaunchKernel", at + place * US, US // 2, **ids))
            rows.append(device(name, at + start + 10 * US, dur, **ids, **more))
        rows.append(host("cuda_runtime", "cudaDeviceSynchronize", at + MS, 15 * MS + 12 * US))
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    one = finding("exposed-communication", *traces)
    assert part in one.advice
    assert bool(one.gain_frac) == (times == 16)  # fewer bytes shorten the last one, too


@pytest.mark.parametrize(
    ("kind", "trains", "steps", "part"),
    [
        ("AllReduce_Sum_f32", True, 3, "gradient buckets"),
        ("AllReduce_Sum_f32", False, 3, "gradient buckets"),
        ("AllReduce_Sum_f32", False, 16, "tensor parallelism"),
        ("AllToAll", False, 3, "all_to_all"),
    ],
)
def test_advice_on_exposed_communication_fits_the_collective(
    kind: str, trains: bool, steps: int, part: str
) -> None:
    about = {"dtype": "float", "elements_in": 1 << 24, "group": "0", "group_size": 2, "stream": 20}
    rows = []
    for number in range(steps):
        at = number * 4 * MS
        rows += [
            step(number, at, 4 * MS),
            host("cpu_op", "aten::mm", at, 1000),
            host("cuda_runtime", "cudaLaunchKernel", at + 100, 500, correlation=2 * number),
            host("cuda_runtime", "cudaLaunchKernel", at + 700, 200, correlation=2 * number + 1),
            device("gemm", at + 2000, MS, correlation=2 * number),
            device(f"ncclDevKernel_{kind}_RING_LL(X)", at + MS + 5000, 2 * MS, seq=number,
                   correlation=2 * number + 1, **about),
        ]  # fmt: skip
        if trains:
            rows.append(host("cpu_op", "autograd::engine::evaluate_function: X", at + 1100, 100))
    traces = [trace(rows, rank, world_size=2) for rank in range(2)]
    found = {one.id: one for one in ta.diagnose(traces).findings}
    assert part in found["exposed-communication"].advice


@pytest.mark.parametrize(
    ("sizes", "forwards", "repeats"),
    [
        ([[4, 8, 4, 8]] * 3, 2, True),
        ([[4, 8, 4, 8]] * 3, 1, False),  # layers of one pass
        ([[4, 8, 4, 8]] * 3, 0, False),  # not recorded
        ([[4, 8, 4, 8], [4, 8]], 2, False),
        ([[4, 8, 8]] * 3, 2, False),
        ([[4]] + [[4, 8, 4, 8]] * 3, 2, True),
        ([[4, 4, 4]] * 3, 3, True),
    ],
)
def test_reductions_that_processes_repeat(
    sizes: list[list[int]], forwards: int, *, repeats: bool
) -> None:
    rows = pl.DataFrame(
        {"collective": "gloo:all_reduce", "step": str(step), "instance": 100 * step + at,
         "message_bytes": size}
        for step, each in enumerate(sizes) for at, size in enumerate(each)
    )  # fmt: skip
    losses = pl.DataFrame({"waited": [False], "cause": [causes.PEER], "lost_ns": [120]})
    time = SimpleNamespace(losses=losses, on_host=True, share=str)
    names = ["DistributedDataParallel.forward", "Optimizer.step#SGD.step"]
    steps = SimpleNamespace(code=pl.DataFrame({"name": names, "n": [forwards * 3, 3]}))
    answers: Any = SimpleNamespace(time=time, of=lambda _: steps)
    comm: Any = SimpleNamespace(collectives=rows)
    found = [one.total_ns for one in communication._repeated_on_hosts(comm, answers)]
    assert found == ([round(120 * (1 - 1 / forwards))] if repeats else [])
