"""Causes of a straggler: its kernels compared with those of the other ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import MS, US, device, host, step, trace
from conftest import ROOT
from diagnosing import diagnosis

import traceanalyzer as ta
from traceanalyzer.analyzers.common.names import frame_text
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.findings.device_time import WORK, main_ranks
from traceanalyzer.findings.rule import Answers
from traceanalyzer.findings.straggling import only_code
from traceanalyzer.run.loop import examine
from traceanalyzer.trace import Device, Trace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = {"gemm": 4.0, "softmax": 2.0, "layer_norm": 1.0, "multi_tensor_apply_kernel": 1.0}
STEPS = 6
ABOUT = {"dtype": "float", "elements_in": 1 << 20, "group": "0", "group_size": 4}


def job(
    odd: Mapping[str, float], more: int = 0, collective: str = ALL_REDUCE, ranks: int = 4
) -> list[Trace]:
    """Return equal ranks, except rank 2 with longer kernels, or more of one."""
    rank_works = [_works(odd, more) if rank == 2 else _works({}, 0) for rank in range(ranks)]
    last = max(sum(ns for _, ns in works) for works in rank_works)
    rows = [list(_rank(works, last, collective)) for works in rank_works]
    return [trace(events, rank, world_size=ranks) for rank, events in enumerate(rows)]


def _works(odd: Mapping[str, float], more: int) -> list[tuple[str, int]]:
    names = [*KERNELS, *["gemm"] * more]
    return [(name, round(KERNELS[name] * odd.get(name, 1) * MS)) for name in names]


def _rank(
    works: list[tuple[str, int]], last: int, collective: str = ALL_REDUCE
) -> Iterator[dict[str, Any]]:
    for number in range(STEPS):
        begin = number * (last + MS)
        yield step(number, begin, last + MS)
        at = begin
        for name, ns in works:
            yield device(name, at, ns)
            at += ns
        yield device(collective, at, begin + last + MS - at, stream=20, seq=number, **ABOUT)


def straggler(traces: list[Trace]) -> ta.Finding:
    first = ta.diagnose(traces).findings[0]
    assert (first.id, first.rank) == ("straggler", 2)
    return first


@pytest.mark.parametrize(
    ("odd", "more", "key"),
    [
        (dict.fromkeys(KERNELS, 1.5), 0, "throttled GPU"),
        ({"gemm": 2.0}, 0, "larger inputs"),
        ({}, 1, "more kernels"),
    ],
)
def test_cause_is_in_the_title(odd: Mapping[str, float], more: int, key: str) -> None:
    assert key in straggler(job(odd, more)).title


@pytest.mark.parametrize("kernel", ["void deep_ep::internode_ll::combine<7168>()", ALL_REDUCE])
def test_ranks_that_wait_for_tokens_get_advice_on_experts(kernel: str) -> None:
    ranks = job({"gemm": 2.0}, collective=kernel)
    assert ("EPLB" in straggler(ranks).advice) == (kernel != ALL_REDUCE)


@pytest.mark.matrix
def test_title_has_the_factor_of_the_kernels() -> None:
    assert " 1.50 times" in straggler(job(dict.fromkeys(KERNELS, 1.5))).title


@pytest.mark.matrix
@pytest.mark.parametrize(("ranks", "lanes"), [(4, 4), (9, 4)])
def test_the_timeline_shows_the_rank_of_a_finding(ranks: int, lanes: int) -> None:
    timeline = ta.diagnose(job({"gemm": 2.0}, ranks=ranks)).timeline
    assert timeline is not None
    assert "rank 2" in timeline.lanes["on"]
    assert (timeline.lanes.height, timeline.left_out) == (lanes, ranks - lanes)


def test_a_straggler_is_marked_at_the_longest_waits_of_others() -> None:
    traces = job({"gemm": 2.0})
    found = straggler(traces)
    assert found.intervals is not None
    short = found.intervals.head(1).with_columns(
        start_ns=pl.lit(0, pl.Int64), end_ns=pl.lit(5, pl.Int64)
    )  # of compute
    both = replace(found, intervals=pl.concat([short, found.intervals]))
    marks = ta.timeline(traces).with_findings([both]).marks
    length = found.intervals.select(pl.col("end_ns") - pl.col("start_ns")).to_series()
    marked = marks.select(pl.col("end") - pl.col("start")).to_series()
    assert marked.to_list() == length.top_k(3).to_list()


def test_cost_is_wait_time_of_the_other_ranks() -> None:
    one = straggler(job({"gemm": 2.0}))
    assert one.cost_ns == 4 * MS, "all steps are shorter without it"
    assert one.cost_frac == pytest.approx(4 / 13)


@pytest.mark.parametrize("slow", [1.5, 1.0])
def test_gpus_of_one_process_are_compared_like_ranks(slow: float) -> None:
    odd = dict.fromkeys(KERNELS, slow)
    works = [_works(odd if number == 2 else {}, 0) for number in range(4)]
    last = max(sum(ns for _, ns in kernels) for kernels in works)
    rows = [list(_rank(kernels, last)) for kernels in works]
    steps = [row for row in rows[0] if "device" not in row]
    work = [{**row, "device": n} for n in range(4) for row in rows[n] if "device" in row]
    found = ta.diagnose(trace([*steps, *work])).findings
    stragglers = [(one.rank, one.cost_ns) for one in found if one.id == "straggler"]
    assert stragglers == [(2, 4 * MS)] * (slow > 1)


def overlapping_rank(rank: int, late_ms: int) -> Iterator[dict[str, Any]]:
    """Yield steps of 20 ms: a product of 10 ms, and an all_reduce that ends after 12 ms."""
    for number in range(STEPS):
        begin, late = number * 20 * MS, late_ms * MS if rank else 0
        yield step(number, begin, 20 * MS)
        yield device("gemm", begin + late, 10 * MS)
        at = begin + late + MS
        yield device(ALL_REDUCE, at, begin + 12 * MS - at, stream=20, seq=number, **ABOUT)


@pytest.mark.parametrize(("late_ms", "lost_ms"), [(0, 0), (1, 1), (2, 2), (3, 2)])
def test_overlapped_wait_time_is_lost_where_it_delays_exposed_transfers(
    late_ms: int, lost_ms: int
) -> None:
    """2 ms of the transfer are exposed on rank 0, so that at most 2 ms of a delay are lost.

    diagnose and comm-outliers count the same.
    """
    traces = [trace(list(overlapping_rank(r, late_ms)), r, world_size=2) for r in range(2)]
    time = Answers(dict(examine(traces).results)).time
    assert time.waits_for(1)["lost_ns"].sum() == STEPS * lost_ms * MS
    assert ta.comm_outliers(traces).steps["cost_ns"].to_list() == [lost_ms * MS] * STEPS
    assert time.losses.filter(rank=0)["lost_ns"].sum() <= STEPS * 10 * MS, "no time counts twice"


PAGEABLE = "Memcpy HtoD (Pageable -> Device)"


def copying_job(annotation: str = "") -> list[Trace]:
    """Return four equal ranks; rank 2 copies 5 ms longer in each step, in an optional range."""
    return [trace(list(_copying_rank(rank, annotation)), rank, world_size=4) for rank in range(4)]


def _copying_rank(rank: int, annotation: str) -> Iterator[dict[str, Any]]:
    for number in range(STEPS):
        begin, took = number * 20 * MS, (6 if rank == 2 else 1) * MS
        yield step(number, begin, 20 * MS)
        yield host("cuda_runtime", "cudaMemcpyAsync", begin, took, correlation=2 * number)
        yield device(PAGEABLE, begin, took, correlation=2 * number, kind="gpu_memcpy")
        if annotation and rank == 2:
            yield host("user_annotation", annotation, begin, took)
        yield device("gemm", begin + took, 10 * MS, correlation=2 * number + 1)
        at = begin + took + 10 * MS
        yield host("cuda_runtime", "cudaLaunchKernel", begin, MS, correlation=2 * number + 1)
        yield device(ALL_REDUCE, at, begin + 20 * MS - at, stream=20, seq=number, **ABOUT)


@pytest.mark.matrix
def test_wait_time_for_copies_belongs_to_copies() -> None:
    first = ta.diagnose(copying_job()).findings[0]
    assert (first.id, first.rank) == ("exposed-copies", 2)
    waits, copies = 3 * 5 * MS, 6 * MS + 3 * MS
    assert first.cost_ns == (waits + copies) / 4
    assert "straggler" in {effect.id for effect in first.effects}


@pytest.mark.matrix
def test_checkpoint_copies_belong_to_the_checkpoint() -> None:
    first = ta.diagnose(copying_job("save_checkpoint")).findings[0]
    assert (first.id, first.rank) == ("checkpoints", 2)
    assert first.cost_ns == (3 * 5 * MS + 6 * MS) / 4


def test_parts_of_a_cost_add_up() -> None:
    """The rank, the ranks that wait for it, and other ranks with the same cause."""
    result = diagnosis(ROOT / "fixtures/nccl_8ranks")
    (loading,) = (one for one in result.findings if one.id == "data-loading")
    parts = [
        float(number) * {"us": 1e3, "ms": 1e6}[unit]
        for number, unit in re.findall(r"([\d.]+) (us|ms)", " ".join(loading.evidence[:2]))
    ]
    assert loading.cost_ns is not None
    assert sum(parts) == pytest.approx(loading.cost_ns * 8 * 6, rel=1e-3)


def test_loss_of_one_rank_without_waits_has_its_part() -> None:
    traces = [trace(list(_copying_alone(rank)), rank, world_size=2) for rank in range(2)]
    (one,) = (one for one in ta.diagnose(traces).findings if one.id == "exposed-copies")
    assert one.rank == 1
    assert "7 ms" in one.evidence[0]
    assert "3 ms" in one.evidence[1]


def _copying_alone(rank: int) -> Iterator[dict[str, Any]]:
    """Yield copies of 3 ms, on rank 1 of 7 ms, without communication."""
    yield device(PAGEABLE, 0, (7 if rank else 3) * MS, kind="gpu_memcpy")
    yield device("gemm", 7 * MS, 10 * MS)


@pytest.mark.sample(2)
@pytest.mark.parametrize("pairs", [4, 6])
def test_ranks_of_a_slow_group_are_no_stragglers(pairs: int) -> None:
    """All ranks wait in a small all_reduce for the ranks of one group, whose link is slow."""
    size, traces = 2 * pairs, []
    for rank in range(size):
        pair, events, seq = rank % pairs, [], 0
        begin = 0
        for number in range(4):
            at = begin + 10 * MS
            events += [step(number, begin, 40 * MS), device("gemm", begin, 10 * MS)]
            about = {"dtype": "float32", "group": f"dp{pair}", "group_size": 2,
                     "group_ranks": f"[{pair}, {pair + pairs}]", "stream": 20}  # fmt: skip
            for _ in range(2):
                took = 12 * MS if pair == 1 else 2 * MS
                sized = {**about, "elements_in": 1 << 22, "seq": (seq := seq + 1)}
                events.append(device(ALL_REDUCE, at, took, **sized))
                at += took
            world = {"dtype": "float32", "elements_in": 1, "group": "0", "group_size": size,
                     "group_ranks": str([*range(size)]), "stream": 20, "seq": number}  # fmt: skip
            events.append(device(ALL_REDUCE, at, begin + 34 * MS + 20 * US - at, **world))
            begin += 40 * MS
        traces.append(trace(events, rank, world_size=size))
    first, *others = ta.diagnose(traces).findings
    assert first.id == "slow-collectives"
    assert "ranks 1, " in first.title
    assert "straggler" not in {one.id for one in others}
    assert {one.id for one in first.effects} >= {"straggler"}
    # 20 of 40 ms: by all ranks, as wait time or in the collective
    assert first.cost_frac == pytest.approx(0.5, abs=0.03)


def one_of_many(place: int, steps: int = 5) -> Trace:
    """Return one rank of eight that waits for another one in one of six collectives of a step."""
    events = []
    for number in range(steps):
        begin = at = number * 60 * MS
        events.append(step(number, begin, 60 * MS))
        for which in range(6):
            took = 25 * MS + which * US if which == place else MS + number * US
            events.append(device("gemm", at, 5 * MS))
            events.append(device(ALL_REDUCE, at + 5 * MS, took, stream=20, **ABOUT))
            at += 5 * MS + took
    return trace(events, 0, world_size=8)


@pytest.mark.parametrize("place", [0, 3])
def test_a_single_rank_that_waits_at_one_place_of_each_step(place: int) -> None:
    first = ta.diagnose(one_of_many(place)).findings[0]
    assert (first.id, first.confidence) == ("collective-outliers", "medium")
    assert first.cost_frac == pytest.approx(24 / 60, abs=0.02)
    assert first.title.startswith("Another rank is probably late")
    assert "files of all ranks" in first.advice


def test_too_few_steps_do_not_show_a_late_rank() -> None:
    found = {one.id: one for one in ta.diagnose(one_of_many(0, steps=2)).findings}
    assert found["collective-outliers"].confidence == "low"


def copying(gbps: tuple[float, ...], pieces: int = 1) -> list[Trace]:
    """Return ranks that copy 100 MB per step at these rates, and then wait for each other.

    Those at less than 10 GB/s copy it in pieces.
    """
    name, longest = "Memcpy HtoD (Pinned -> Device)", 0.1 / min(gbps)
    traces = []
    for rank, rate in enumerate(gbps):
        events, took = [], round(0.1 / rate * 1000 * MS)
        whole = round(longest * 1000 * MS) + 12 * MS
        for number in range(4):
            begin = number * whole
            parts = pieces if rate < 10 else 1
            size = {"kind": "gpu_memcpy", "bytes": 100_000_000 // parts}
            copies = [
                device(name, begin + took * n // parts, took // parts, **size) for n in range(parts)
            ]
            gemm = device("gemm", begin + took, 10 * MS)
            at = begin + took + 10 * MS
            wait = device(ALL_REDUCE, at, begin + whole - at, stream=20, **ABOUT)
            events += [step(number, begin, whole), *copies, gemm, wait]
        traces.append(trace(events, rank, world_size=len(gbps)))
    return traces


@pytest.mark.parametrize(("slow", "ranks"), [(0, 4), (3, 4), (1, 2)])
def test_copies_of_one_rank_are_slow(slow: int, ranks: int) -> None:
    rates = tuple(3 if rank == slow else 48 for rank in range(ranks))
    first = ta.diagnose(copying(rates)).findings[0]
    assert (first.id, first.rank) == ("exposed-copies", slow)
    assert "3 GB/s (other ranks 48 GB/s)" in first.title
    assert "NUMA" in first.advice


@pytest.mark.parametrize("slow", [(2, 3), (0, 3)])
def test_copies_of_several_ranks_are_slow(slow: tuple[int, ...]) -> None:
    first = ta.diagnose(copying(tuple(16 if rank in slow else 48 for rank in range(4)))).findings[0]
    assert (first.id, first.rank) == ("exposed-copies", None)
    assert f"on {'ranks 2-3' if slow == (2, 3) else 'ranks 0, 3'} at 16 GB/s" in first.title
    assert "NUMA" in first.advice


def test_copies_of_two_ranks_at_similar_rates_are_usual() -> None:
    first = ta.diagnose(copying((3, 4))).findings[0]
    assert (first.id, "NUMA" in first.advice) == ("exposed-copies", False)


def test_small_copies_are_slower_than_large_ones_on_any_path() -> None:
    """In 2 pieces they are similar, in 4 they are not."""
    for pieces, similar in ((2, True), (4, False)):
        first = ta.diagnose(copying((48, 48, 48, 3), pieces)).findings[0]
        assert first.id == "exposed-copies"
        assert ("NUMA" in first.advice) == similar


@pytest.mark.parametrize(
    ("hidden", "exposed"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pinned)"),
        ("Memcpy DtoD (Device -> Device)", "Memcpy DtoD (Device -> Device)"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
    ],
)
def test_hidden_copies_say_nothing_of_exposed_ones(hidden: str, exposed: str) -> None:
    """Rank 3 copies a third as fast, but while a kernel runs."""
    traces = []
    for rank in range(4):
        events, about = [], {"kind": "gpu_memcpy", "bytes": 60_000_000}
        for number in range(4):
            begin, took = number * 20 * MS, (9 if rank == 3 else 3) * MS
            events += [step(number, begin, 20 * MS), device("gemm", begin, 15 * MS)]
            events.append(device(hidden, begin + MS, took, stream=9, **about))
            events.append(device(exposed, begin + 15 * MS, 2 * MS, **about))
            events.append(device(ALL_REDUCE, begin + 17 * MS, 3 * MS, stream=20, **ABOUT))
        traces.append(trace(events, rank, world_size=4))
    (one,) = (one for one in ta.diagnose(traces).findings if one.id == "exposed-copies")
    assert one.rank is None
    assert "NUMA" not in one.advice


def test_copies_of_equal_ranks() -> None:
    for one in ta.diagnose(copying((20, 20, 21, 20))).findings:
        assert "instead of" not in one.title
        assert "NUMA" not in one.advice


LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def launching(
    call_us: tuple[int, ...], kernel_us: int = 2, first_us: int = 0, load: int = 0
) -> list[Trace]:
    """Return ranks that launch kernels one by one, and then wait for each other.

    Operators take three times as long as their launch call, loading ``load`` times. The first call
    of a step takes at least ``first_us``.
    """
    kernels = 40
    traces, whole = [], (kernels * 3 + load) * max(call_us) * US + MS
    for rank, us in enumerate(call_us):
        events, correlation = [], 0
        for number in range(4):
            begin = free = number * whole
            at = begin + load * us * US
            loading = [host("user_annotation", LOADER, begin, at - begin)] * bool(load)
            events += [step(number, begin, whole), *loading]
            for place in range(kernels):
                ids = {"correlation": (correlation := correlation + 1)}
                call = US * (us if place else max(us, first_us))
                start = max(at + us * US + call, free)
                free = start + kernel_us * US
                events += [
                    host("cpu_op", "aten::mul", at, 2 * us * US + call - 100),
                    host("cuda_runtime", "cudaLaunchKernel", at + us * US, call, **ids),
                    device("mul", start, kernel_us * US, **ids),
                ]
                at += 2 * us * US + call
            ids, end = {"correlation": (correlation := correlation + 1)}, begin + whole
            joined = max(at, free)
            events += [
                host("cuda_runtime", "cudaLaunchKernelExC", at - 100, 90, **ids),
                device(ALL_REDUCE, joined, end - joined, stream=20, **ids, **ABOUT),
                host("cuda_runtime", "cudaDeviceSynchronize", at, end - at),
            ]
        traces.append(trace(events, rank, world_size=len(call_us)))
    return traces


@pytest.mark.sample(2)
@pytest.mark.parametrize("slow", [1, 3])
def test_the_host_of_one_rank_is_slow(slow: int) -> None:
    first = ta.diagnose(launching(tuple(25 if rank == slow else 5 for rank in range(4)))).findings[
        0
    ]
    assert (first.id, first.rank) == ("launch-bound", slow)
    assert "5 times as long as on the other ranks" in first.title
    assert "CPU" in first.advice


@pytest.mark.parametrize("recorded", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_the_hosts_of_a_node_are_slow(recorded: bool) -> None:
    """Nodes are recorded, or in the names of files."""
    traces = launching((5, 5, 25, 25))
    for rank, one in enumerate(traces):
        node = f"gpu-n{rank // 2}"
        path = f"run/{node}_{5000 + rank}.17643370{rank}.pt.trace.json.gz"
        named = {"host": node} if recorded else {"path": path}
        traces[rank] = replace(one, sources=(replace(one.meta, **named),))
    first = ta.diagnose(traces).findings[0]
    assert (first.id, first.rank, first.ranks) == ("launch-bound", None, (2, 3))
    assert first.title.startswith("Ranks 2-3 (all of node gpu-n1) idle")
    assert "5 times as long as on the other ranks" in first.title
    assert "CPU of these ranks" in first.advice
    assert first.gain_ns == pytest.approx(40 * 3 * (25 - 5) * US, rel=0.05), "like ranks 0 and 1"


LOSSES = {"rank": pl.Int32, "root_rank": pl.Int32, "waited": pl.Boolean, "lost_ns": pl.Int64}


@pytest.mark.parametrize(
    ("idle", "waits", "ranks"),
    [
        ([0, 1, 30, 31], {2: 3, 3: 60}, (2, 3)),
        ([30, 31, 29, 2], {1: 9}, ()),  # more than half of the ranks
        ([10, 11, 30, 31], {}, ()),  # not three times as long
        ([2, 2, 30, 31], {0: 99, 1: 30}, ()),  # other ranks cause most of the waits
        ([1, 30, 2, 1], {1: 60}, (1,)),
        ([30, 31, 30, 32], {3: 20}, ()),
        ([30, 31, 29, 2, 3, 2], {1: 9}, (0, 1, 2)),
        ([0, 0, 30, 31], {None: 50}, ()),  # not known which rank is waited for
    ],
)
def test_ranks_that_lose_alike(
    idle: list[int], waits: dict[int | None, int], ranks: tuple[int, ...]
) -> None:
    local = [(rank, rank, False, ns) for rank, ns in enumerate(idle) if ns]
    others = [(None, root, True, ns) for root, ns in waits.items()]
    losses = pl.DataFrame([*local, *others], schema=LOSSES, orient="row")
    assert main_ranks(losses, len(idle)) == ranks


def test_copies_of_some_ranks() -> None:
    first = ta.diagnose(copying((3, 3, 48, 48))).findings[0]
    assert (first.id, first.rank) == ("exposed-copies", None)
    assert " on ranks 0-1" in first.title


def test_a_slow_host_is_the_cause_of_slow_loading_and_compared_by_all_its_calls() -> None:
    """On the other ranks, whose host runs ahead, the GPU waits for the long first call only."""
    first, *more = ta.diagnose(
        launching((5, 5, 25, 5), kernel_us=20, first_us=20, load=10)
    ).findings
    assert (first.id, first.ranks) == ("launch-bound", (2,))
    assert "5 times as long as on the other ranks" in first.title
    assert "data-loading" in {one.id for one in first.effects}
    assert not {one.id for one in more} & {"data-loading", "host-code"}
    assert (first.gain_frac or 0) > 0.4


def test_slow_hosts_of_half_of_the_ranks_are_one_finding() -> None:
    first = ta.diagnose(launching((50, 50, 85, 85))).findings[0]
    assert (first.id, first.ranks) == ("launch-bound", (2, 3))


def test_hosts_of_equal_ranks_get_advice_on_launches() -> None:
    for one in ta.diagnose(launching((5, 6, 5, 5))).findings:
        assert "on the other ranks" not in one.title


@pytest.mark.parametrize(
    ("ms", "slower", "alone"),
    [((2, 12, 2), True, False), ((7, 12, 11), False, False), ((0, 12, 0), False, True)],
)
def test_code_that_takes_longer_on_one_rank_is_compared(
    ms: tuple[int, ...], slower: bool, alone: bool
) -> None:
    """Each rank runs a function before it launches, if ``alone`` one does; the others wait."""
    traces = []
    for rank, prepare in enumerate(ms):
        events = []
        for number in range(STEPS):
            begin, launch = number * 20 * MS, number * 20 * MS + prepare * MS
            events += [
                step(number, begin, 20 * MS),
                *[host("python_function", "runner.py(700): prepare", begin, prepare * MS)]
                * (prepare > 0),
                *[host("python_function", "runner.py(9): step", begin, (prepare + 2) * MS)] * alone,
                host("cuda_runtime", "cudaLaunchKernel", launch, 5 * US, correlation=2 * number),
                host("cuda_runtime", "cudaLaunchKernel", launch + 6 * US, 5 * US,
                     correlation=2 * number + 1),
                device("gemm", launch + 10 * US, 5 * MS, correlation=2 * number),
                device(ALL_REDUCE, launch + 5 * MS + 20 * US, (18 - prepare - 5) * MS, stream=20,
                       correlation=2 * number + 1, seq=number, **ABOUT),
            ]  # fmt: skip
        traces.append(trace(events, rank, world_size=3))
    found = [one for one in ta.diagnose(traces).findings if one.id == "host-code"]
    assert bool(found and "times as long" in found[0].title) == slower
    if slower:
        assert (found[0].rank, "6 times as long" in found[0].title) == (1, True)
    assert any("only this rank" in one.title for one in found if one.rank == 1) == alone


def evaluating(
    rank: int, steps: tuple[int, ...], frames: tuple[tuple[str, str], ...], elsewhere: int = 0
) -> list[Trace]:
    """Return four ranks that wait for one with further kernels in some steps.

    Args:
        rank: the rank with further kernels.
        steps: the steps in which it has them.
        frames: kind and name of the nested slices around them.
        elsewhere: time of the first of these on the other ranks; they launch nothing in it.
    """
    traces = []
    for one in range(4):
        events, begin = [], 0
        for number in range(STEPS):
            late = 20 * MS * (number in steps)
            whole = 11 * MS + late
            events.append(step(number, begin, whole))
            frame = "train.py(10): train_step"
            events.append(host("python_function", frame, begin, 10 * MS))
            events += [device("gemm", begin + n * MS, MS) for n in range(10)]
            at = begin + 10 * MS
            if late and one == rank:
                for depth, (kind, name) in enumerate(frames):
                    events.append(host(kind, name, at + depth * US, late - 2 * depth * US))
                events += [device("gemm", at + n * MS, MS) for n in range(20)]
                at += late
            elif late and elsewhere:
                events.append(host(*frames[0], at, elsewhere))
            events.append(device(ALL_REDUCE, at, begin + whole - at, stream=20, **ABOUT))
            begin += whole
        traces.append(trace(events, one, world_size=4))
    return traces


def averaging(frame: str) -> list[Trace]:
    """Return four ranks that wait for rank 0, whose host launches a long kernel in this frame."""
    traces = []
    for one in range(4):
        events = []
        for number in range(STEPS):
            begin = 20 * MS * number
            events += [
                step(number, begin, 20 * MS),
                host("python_function", "train.py(10): train_step", begin, 2 * MS),
                host(
                    "cuda_runtime", "cudaLaunchKernel", begin + MS, 5 * US, correlation=2 * number
                ),
                device("gemm", begin + 2 * MS, 9 * MS, correlation=2 * number),
            ]
            end = begin + 11 * MS
            if one == 0:
                more = {"correlation": 2 * number + 1}
                events += [
                    host("python_function", frame, begin + 1500 * US, 50 * US),
                    host("cuda_runtime", "cudaLaunchKernel", begin + 1510 * US, 5 * US, **more),
                    device("lerp_kernel", end, 6 * MS, **more),
                ]
                end += 6 * MS
            events.append(device(ALL_REDUCE, end, begin + 20 * MS - end, stream=20, **ABOUT))
        traces.append(trace(events, one, world_size=4))
    return traces


@pytest.mark.parametrize(
    ("frame", "named"),
    [("ema.py(31): update", "update (ema.py:31)"), ("train.py(10): train_step", "")],
)
def test_code_that_launches_a_kernel_of_one_rank_alone(frame: str, named: str) -> None:
    """A function that launches all other kernels, too, explains nothing."""
    (first, *_) = ta.diagnose(averaging(frame)).findings
    assert (first.id, first.rank) == ("straggler", 0)
    assert ("launched in" in first.title) == bool(named)
    assert (f"Share the work of {named}" in first.advice) == bool(named)


DECORATED = (
    ("python_function", "torch/utils/_contextlib.py(117): decorate_context"),
    ("python_function", "train.py(150): evaluate"),
)


@pytest.mark.parametrize(
    ("rank", "steps", "frames", "name"),
    [
        (0, (3,), DECORATED, "train.py(150): evaluate"),
        (2, tuple(range(STEPS)), (("user_annotation", "validation"),), "validation"),
    ],
)
def test_code_that_only_one_rank_runs_is_the_cause(
    rank: int, steps: tuple[int, ...], frames: tuple[tuple[str, str], ...], name: str
) -> None:
    first = ta.diagnose(evaluating(rank, steps, frames)).findings[0]
    assert (first.id, first.rank) == ("straggler", rank)
    assert f"only this rank runs {frame_text(name)}." in first.title
    assert frame_text(name) in first.advice
    assert first.confidence != "low"


def validating(rank: int, *, between: bool) -> Trace:
    """Return one of four ranks whose hosts run ahead; the first launches further kernels once.

    Args:
        rank: the rank.
        between: whether it does so between two steps, not in one.
    """
    events: list[dict[str, Any]] = []
    at, called = 0, 0

    def launch(name: str, until: int, **about: Any) -> None:
        nonlocal at, called
        ids = {"correlation": len(events) + 1}
        events.append(host("cuda_runtime", "cudaLaunchKernel", called, 5 * US, **ids))
        events.append(device(name, max(at, called + 6 * US), until - at, **ids, **about))
        at, called = until, called + 10 * US

    for number in range(STEPS):
        begin = called
        if number == 3 and rank == 0:
            for _ in range(20):
                launch("gemm", at + MS)
            events.append(host("user_annotation", "validation", begin, called - begin))
            begin = called if between else begin - US
        for _ in range(10):
            launch("gemm", at + MS)
        launch(ALL_REDUCE, 11 * MS * (number + 1) + 20 * MS * (number >= 3), stream=20, **ABOUT)
        events.append(step(number, begin, called - begin))
    return trace(events, rank, world_size=4)


@pytest.mark.parametrize("between", [True, False])
def test_device_work_of_code_that_only_one_rank_runs(*, between: bool) -> None:
    """The host launches it in a short time, also between steps."""
    ranks = [validating(rank, between=between) for rank in range(4)]
    first = ta.diagnose(ranks).findings[0]
    assert (first.id, first.rank, first.severity) == ("straggler", 0, "critical")
    assert "only this rank runs validation." in first.title
    assert "validation" in first.advice
    assert first.gain_basis == "replay"
    # a quarter of it is left
    (saved,) = re.findall(r"all ranks, it saves ([\d.]+) ms", " ".join(first.evidence))
    assert float(saved) == pytest.approx(0.75 * (first.cost_ns or 0) / MS, rel=0.001)
    # of the steps after the first
    assert first.gain_frac == pytest.approx(20 / 75, rel=0.02)
    assert all("idle" not in effect.title for effect in first.effects)


@pytest.mark.parametrize(("elsewhere", "times"), [(50 * US, 400), (15 * MS, 0)])
def test_code_that_takes_little_time_on_the_other_ranks(elsewhere: int, times: int) -> None:
    """All ranks have the annotation, but only one works long in it."""
    frames = (("user_annotation", "validation"),)
    title = ta.diagnose(evaluating(0, (3,), frames, elsewhere)).findings[0].title
    assert (f"validation takes {times} times as long as on the other ranks." in title) == bool(
        times
    )
    assert "only this rank" not in title


def test_functions_without_stacks_of_other_ranks_are_no_cause() -> None:
    """Stacks of one rank do not tell what the others run."""
    ranks = evaluating(0, (3,), DECORATED)
    no_stack = pl.col("kind") != "python_function"
    others = [replace(one, events=one.events.filter(no_stack)) for one in ranks[1:]]
    first = ta.diagnose([ranks[0], *others]).findings[0]
    assert "only this rank runs" not in first.title


@pytest.mark.parametrize(("us", "alone"), [(150, False), (1500, True)])
def test_a_function_that_other_ranks_may_run_too_shortly_to_record_it(us: int, alone: bool) -> None:
    """Functions of less than 1 % of a step are not recorded, and the device work counts."""
    results = examine(evaluating(0, (3,), DECORATED)).results
    steps = results["steps"]
    assert isinstance(steps, Steps)
    code = steps.code
    assert code is not None
    short = replace(steps, code=code.with_columns(median_ns=pl.lit(us * US)))
    name, _ = only_code(Answers({**results, "steps": short}), 0, {WORK: 60 * MS})
    assert name == ("evaluate (train.py:150)" if alone else "")


def test_code_of_all_ranks_is_no_cause() -> None:
    first = ta.diagnose(evaluating(1, (3,), (("python_function", "train.py(10): train_step"),)))
    assert "only this rank runs" not in first.findings[0].title


@pytest.mark.parametrize(("begins_ms", "length"), [(10, 8 * MS), (2, 8 * MS), (10, 200 * US)])
def test_gpus_of_a_process_run_one_after_another(begins_ms: int, length: int) -> None:
    """GPU 0 runs for 10 ms of each step, GPU 1 for 8 ms: after it, or beside it, or hardly."""
    events = []
    for number in range(STEPS):
        begin = number * 20 * MS
        events.append(step(number, begin, 20 * MS))
        for gpu, at, ns in ((0, begin, 10 * MS), (1, begin + begins_ms * MS, length)):
            ids = {"correlation": 2 * number + gpu}
            events += [
                host("cuda_runtime", "cudaLaunchKernel", at - 5 * US, 4 * US, **ids),
                host("cuda_runtime", "cudaStreamSynchronize", at, min(ns, begins_ms * MS)),
                {**device("gemm", at, ns, **ids), "device": gpu},
            ]
    findings = ta.diagnose(trace(events)).findings
    named = [one for one in findings if "tensor parallelism" in one.advice]
    assert [one.id for one in named] == ["device-wait"] * (begins_ms == 10 and length == 8 * MS)
    assert all(8 * MS < (one.cost_ns or 0) < 9 * MS for one in named)


@pytest.mark.parametrize(("ms", "uneven"), [(10, True), (17, False), (2, False)])
def test_a_gpu_of_the_process_has_more_work(ms: int, uneven: bool) -> None:
    """GPU 0 runs for 19 ms of each step, GPU 1 for less: the host waits for both."""
    events = []
    for number in range(STEPS):
        at = number * 20 * MS
        events.append(step(number, at, 20 * MS))
        for gpu, ns in ((0, 19 * MS), (1, ms * MS)):
            ids = {"correlation": 2 * number + gpu}
            events.append(
                host("cuda_runtime", "cudaLaunchKernel", at - 9 * US + gpu, 4 * US, **ids)
            )
            events.append({**device("gemm", at, ns, **ids), "device": gpu})
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", at + US, 19 * MS))
    named = [one for one in ta.diagnose(trace(events)).findings if "evenly" in one.advice]
    assert [one.id for one in named] == ["device-wait"] * uneven
    assert all("GPU 0" in one.title and "1.9 times" in one.title for one in named)
    assert all(4 * MS < (one.cost_ns or 0) < 6 * MS for one in named), "9 ms of one of both"


# --- collectives that the host runs while devices run others ---------------------------------

BARRIER, WAITALL = ("user_annotation", "gloo:barrier"), ("mpi", "MPI_Waitall")


def host_job(call: tuple[str, str], begins: list[int], ends: list[int]) -> list[Trace]:
    """Return ranks with a call in each step, from and until a time in ms, then 12 ms of kernels."""
    return [
        trace(list(_meeting(call, *times)), rank, world_size=len(begins))
        for rank, times in enumerate(zip(begins, ends, strict=True))
    ]


def _meeting(call: tuple[str, str], begin: int, end: int) -> Iterator[dict[str, Any]]:
    for number in range(STEPS):
        at = number * 24 * MS
        yield step(number, at, 24 * MS)
        yield host("python_function", "data.py(7): rebuild", at, begin * MS)
        yield {**host(*call, at + begin * MS, (end - begin) * MS), "tid": 1 + (call == BARRIER)}
        yield host("python_function", "<built-in method wait>", at + begin * MS, (end - begin) * MS)
        for name, kind, since, ms in (("gemm", "cudaLaunchKernel", 0, 10), (ALL_REDUCE, "", 10, 2)):
            start, key = at + (end + since) * MS, 2 * number + bool(since)
            stream = 20 if since else 7
            yield host(
                "cuda_runtime", kind or "cudaLaunchKernelExC", start - US, US, correlation=key
            )
            about = {**ABOUT, "seq": number} if since else {}
            yield device(name, start, ms * MS, stream=stream, correlation=key, **about)


@pytest.mark.parametrize(
    ("call", "gain_ms"),
    # code that takes longer than on the other ranks becomes like theirs
    [(BARRIER, 10), pytest.param(WAITALL, 8, marks=pytest.mark.matrix)],
)
def test_wait_on_the_host_belongs_to_the_last_rank(call: tuple[str, str], gain_ms: int) -> None:
    diagnosed = ta.diagnose(host_job(call, [2, 2, 10, 2], [12] * 4))
    first, second, *_ = diagnosed.findings
    assert (first.id, first.rank) == ("host-code", 2)
    assert first.cost_ns == 10 * MS, "2 ms of all ranks, 8 ms for it"
    assert first.gain_ns == pytest.approx(gain_ms * MS, rel=0.01)
    assert (second.id, second.rank, second.cost_ns) == ("waiting-for-ranks", None, 2 * MS)


@pytest.mark.parametrize("call", [WAITALL, pytest.param(BARRIER, marks=pytest.mark.matrix)])
def test_ranks_that_arrive_together_are_no_stragglers(call: tuple[str, str]) -> None:
    diagnosed = ta.diagnose(host_job(call, [2] * 4, [12] * 4))
    assert not [one for one in diagnosed.findings if one.rank is not None]
    first = diagnosed.findings[0]
    assert (first.id, first.cost_ns) == ("waiting-for-ranks", 10 * MS)


def logging(rank: int, *, named: bool) -> Iterator[dict[str, Any]]:
    """Yield steps of 6 ms of work, 4 ms of metrics on each rank, and 2 ms of logs on rank 0."""
    for number in range(STEPS):
        begin = number * 20 * MS
        yield step(number, begin, 20 * MS - US)
        yield host("python_function", "train.py(5): gather_metrics", begin, 4 * MS)
        yield device("gemm", begin + 4 * MS, 3 * MS)
        at = begin + 7 * MS
        if rank == 0:
            name = "train.py(9): write_log" if named else "train.py(5): gather_metrics"
            yield host("python_function", name, at, 2 * MS)
            at += 2 * MS
        yield device("gemm", at, 3 * MS)
        at += 3 * MS
        yield device(ALL_REDUCE, at, begin + 20 * MS - US - at, stream=20, seq=number, **ABOUT)


@pytest.mark.parametrize("named", [True, False])
def test_host_code_that_only_one_rank_runs_is_a_separate_finding(*, named: bool) -> None:
    """Its cost is 2 ms on one of four GPUs, and the wait time of the others for it."""
    ranks = [trace([*logging(rank, named=named)], rank, world_size=4) for rank in range(4)]
    found = [one for one in ta.diagnose(ranks).findings if one.id == "host-code"]
    costs = {one.rank: one.cost_ns for one in found}
    if named:
        assert costs == {0: pytest.approx(2 * MS, rel=0.02), None: pytest.approx(4 * MS, rel=0.02)}
        assert "write_log" in next(one.title for one in found if one.rank == 0)
    else:
        assert sum(costs.values()) == pytest.approx(6 * MS, rel=0.02)
        assert len(costs) == 1


def test_waits_for_one_straggler_are_no_unequal_work(shared: Path) -> None:
    found = ta.diagnose(shared / "data/causes/chrome/ddp_gloo_two_ranks").findings
    assert "slow_augment" in found[0].title
    assert "unequal-work" not in {one.id for one in found}


@pytest.mark.parametrize(
    ("gpu", "n", "others", "differs"),
    [
        ("NVIDIA A100-SXM4-80GB", 1, "NVIDIA H100 80GB HBM3", True),
        ("Tesla V100-SXM2-16GB", 2, "NVIDIA A100-SXM4-40GB", True),
        ("NVIDIA H100 80GB HBM3", 1, "NVIDIA A100-SXM4-80GB", False),  # not the slower one
        ("NVIDIA H200", 8, "NVIDIA H200", False),
    ],
)
def test_a_rank_on_another_gpu(gpu: str, n: int, others: str, differs: bool) -> None:
    gpus = [(Device(0, others),), tuple(Device(number, gpu) for number in range(n))]
    traces = [
        replace(one, sources=(replace(one.meta, devices=gpus[rank == 2]),))
        for rank, one in enumerate(job({"gemm": 2.0}))
    ]
    first = straggler(traces)
    assert ("its GPU is" in first.title) == ("one model" in first.advice) == differs
