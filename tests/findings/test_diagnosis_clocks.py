"""Findings about slow GPUs, unequal work and slow links: steps and ranks compared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, MS, device, host, step, trace
from diagnosing import judged, judged_by
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.findings.hardware import OTHER_GPUS
from traceanalyzer.findings.rule import Answers
from traceanalyzer.trace import Device, Trace

KERNELS = {"gemm": 4 * MS, "softmax": 2 * MS, "layer_norm": MS, "multi_tensor_apply": MS}
ABOUT = {"dtype": "float", "elements_in": 1 << 20, "group_size": 4, "stream": 20}
#: How many times as long a kernel takes on a rank in a step.
Factor = Callable[[int, int, str], float]


def job(
    factor: Factor, ranks: int = 4, group: str | None = "0", pause_ns: int = 0, n_steps: int = 5
) -> list[Trace]:
    """Return steps of each rank; ranks wait for the slowest in each step, and start together.

    Rank 1 launches nothing at the start of the last step, for ``pause_ns``.
    """
    events = (list(_rank(rank, ranks, factor, group, pause_ns, n_steps)) for rank in range(ranks))
    return [trace(rows, rank, world_size=ranks) for rank, rows in enumerate(events)]


def _rank(
    rank: int, ranks: int, factor: Factor, group: str | None, pause_ns: int, n_steps: int
) -> Iterator[dict[str, Any]]:
    begin = 0
    for number in range(n_steps):
        each = [_lengths(one, number, factor) for one in range(ranks)]
        pauses = [pause_ns if (one, number) == (1, n_steps - 1) else 0 for one in range(ranks)]
        length = max(pause + sum(ns) for pause, ns in zip(pauses, each, strict=True)) + MS
        end = begin + length
        yield step(number, begin, length)
        at = begin + pauses[rank]
        for name, ns in zip(KERNELS, each[rank], strict=True):
            yield device(name, at, ns)
            at += ns
        if ranks > 1:
            yield device(ALL_REDUCE, at, end - at, seq=number, group=group, **ABOUT)
        begin = end


def _lengths(rank: int, number: int, factor: Factor) -> list[int]:
    return [round(ns * factor(rank, number, name)) for name, ns in KERNELS.items()]


def throttled(last: int, kernels: tuple[str, ...] = tuple(KERNELS)) -> list[Trace]:
    """Return a trace of one GPU with kernels twice as long in the last steps."""
    return job(lambda _r, n, name: 2 if n >= 5 - last and name in kernels else 1, ranks=1)


@pytest.mark.sample(3)
@pytest.mark.parametrize("last", [1, 2, 3])
def test_throttled_steps_even_if_most_are_slow(last: int) -> None:
    (one,) = judged("throttled-steps", *throttled(last))
    assert one.total_ns == last * 8 * MS
    assert all(f"ProfilerStep#{5 - n}" in one.title for n in range(1, last + 1))
    check_wording(one.title, *one.evidence)


@pytest.mark.parametrize("slower", [0.05, 0.005])
def test_kernels_that_become_slower_are_compared_with_the_first_step(slower: float) -> None:
    """Only those steps count that take at least 1.1 times as long."""
    events, at = [], 0
    for number in range(12):
        lengths = [round(ns * (1 + slower * number)) for ns in KERNELS.values()]
        events.append(step(number, at, sum(lengths)))
        for kernel, ns in zip(KERNELS, lengths, strict=True):
            events.append(device(kernel, at, ns))
            at += ns
    found = judged("throttled-steps", trace(events))
    lost = sum(slower * n for n in range(12) if slower * n >= 0.1) * 8 * MS
    assert [one.total_ns for one in found] == [pytest.approx(lost, rel=0.05)] * (lost > 0)


def test_more_work_of_each_rank_in_turn_is_no_throttling() -> None:
    found = judged("throttled-steps", *job(lambda r, n, _: 1.6 if n == r + 1 else 1))
    assert found == []
    for at_random in (
        (2, 0, 1, 1, 3, 0, 2, 2, 1, 3, 0, 1),
        (2, 0, None, 1, 3, None, 2, 0, 1, None, 3, 0),
    ):
        slow = job(lambda r, n, _, which=at_random: 1.6 if r == which[n] else 1, n_steps=12)
        assert judged("throttled-steps", *slow) == []


@pytest.mark.parametrize(
    "slow",
    [
        [range(3, 6), range(8, 10), range(10, 12), []],
        [range(2, 6), range(6, 9), range(9, 12), []],
        [[2], [6], [9], []],
    ],
)
def test_gpus_that_throttle_at_different_times_have_no_work_in_turn(
    slow: list[Collection[int]],
) -> None:
    """In a row, or in few steps."""
    (one,) = judged("throttled-steps", *job(lambda r, n, _: 1.6 if n in slow[r] else 1, n_steps=12))
    assert one.total_ns == pytest.approx(sum(map(len, slow)) * 0.6 * 8 * MS)
    assert one.rank == 0
    assert one.evidence[-1] == OTHER_GPUS.format("2 other GPUs, which are")


def _served(prefills: int, slow: int) -> Trace:
    """Return 20 steps of an engine, some prefill; the last decode steps are throttled."""
    events, at = [], 0
    for number in range(20):
        prefills_here, throttled_here = number < prefills, number >= 20 - slow
        name = "step[EXTEND bs=2 toks=8192]" if prefills_here else "step[DECODE bs=64]"
        lengths = [ns * (12 if prefills_here else 1 + throttled_here) for ns in KERNELS.values()]
        events.append(host("user_annotation", name, at, sum(lengths)))
        for kernel, ns in zip(KERNELS, lengths, strict=True):
            events.append(device(kernel, at, ns))
            at += ns
    return trace(events)


@pytest.mark.parametrize(("prefills", "slow"), [(6, 0), (6, 3), (0, 3)])
def test_steps_of_an_engine_are_compared_with_equal_ones(prefills: int, slow: int) -> None:
    found = judged("throttled-steps", _served(prefills, slow))
    assert [one.total_ns for one in found] == [slow * 8 * MS] * (slow > 0)


def test_one_throttling_is_one_finding() -> None:
    """Two of five steps are slow: the time above the median step is a part of the cost."""
    (one,) = (f for f in ta.diagnose(throttled(2)).findings if f.step)
    assert (one.id, [effect.id for effect in one.effects]) == ("throttled-steps", ["uneven-steps"])


def test_slow_kernels_of_warm_up_are_in_no_step_that_counts() -> None:
    trace = job(lambda _r, n, _k: 3 if n == 0 else 1, ranks=1)
    assert ta.steps(trace).ranks["warm_up"].to_list() == [1]
    assert not judged("throttled-steps", *trace)


@pytest.mark.matrix
def test_some_longer_kernels_are_not_throttling() -> None:
    assert not judged("throttled-steps", *throttled(2, ("gemm",)))
    assert not judged("throttled-steps", *throttled(0))


@pytest.mark.sample(2)
@pytest.mark.parametrize("factor", [1.0, 1.8])
def test_all_steps_are_slower_than_work_launched_before_the_recording(factor: float) -> None:
    """The GPU lags two steps behind the host: the launch calls of the first two are missing."""
    events, at = [], 0
    for number in range(5):
        launched = number >= 2
        if launched:
            events.append(step(number, (number - 2) * MS, MS))
        for place, (name, ns) in enumerate(KERNELS.items()):
            length, correlation = round(ns * (factor if launched else 1)), 10 * number + place
            if launched:
                call = {"ts": (number - 2) * MS + place, "dur": 1, "correlation": correlation}
                events.append({**host("cuda_runtime", "cudaLaunchKernel", 0, 0), **call})
            events.append(device(name, at, length, correlation=correlation))
            at += length
    found = judged("throttled-steps", *[trace(events)])
    assert [one.step for one in found] == ["ProfilerStep#2"] * (factor > 1)
    assert all("outside the steps" in one.title for one in found)


@pytest.mark.matrix
@pytest.mark.parametrize("less", [1, 0.5])
def test_slow_gpu_without_matching_collectives(less: float) -> None:
    """Without matching collectives there is no wait time, but kernels are slow.

    A rank with less work does not hide that.
    """
    traces = job(lambda rank, _n, _k: {2: 1.5, 0: less}.get(rank, 1))
    alone = [trace([e for e in one.events.to_dicts() if e["name"] != ALL_REDUCE] + [
        device(f"{ALL_REDUCE[:-1]}{rank})", 0, 1_000, stream=20)], rank, world_size=4)
        for rank, one in enumerate(traces)]  # fmt: skip
    (one,) = judged("slow-gpu", *alone)
    assert one.rank == 2
    assert one.total_ns == 4 * 5 * 4 * MS


def test_a_slow_gpu_counts_kernels_of_several_streams_once() -> None:
    traces = []
    for rank in range(4):
        events, ns = [], (3 if rank > 1 else 1) * 4 * MS
        for number in range(5):
            begin = number * 20 * MS
            events.append(step(number, begin, 20 * MS))
            events += [device(name, begin, ns, stream=n) for n, name in enumerate(KERNELS)]
            events.append(device(ALL_REDUCE, begin + 17 * MS, 3 * MS, stream=20, seq=number))
        traces.append(trace(events, rank, world_size=4))
    (one,) = judged("slow-gpu", *traces)
    assert one.ranks == (2, 3)
    assert one.total_ns == 4 * 5 * 8 * MS


def test_slow_gpu_with_wait_time_is_a_straggler() -> None:
    traces = job(lambda rank, _n, _k: 1.5 if rank == 2 else 1)
    assert not judged("slow-gpu", *traces)
    assert ta.diagnose(traces).findings[0].id == "straggler"


@pytest.mark.parametrize(("n_ranks", "slow"), [(8, (4, 5, 6, 7)), (6, (1, 4)), (8, ())])
def test_slow_gpus_of_several_ranks_are_one_finding(n_ranks: int, slow: tuple[int, ...]) -> None:
    traces = job(lambda rank, _n, _k: 1.5 if rank in slow else 1, n_ranks)
    found, *others = judged_by(["slow-gpu", "straggler", "unequal-work"], *traces)
    assert [one.ranks for one in found] == [slow] * bool(slow)
    assert others == [[], []]


@pytest.mark.parametrize(("model", "found"), [("Tesla V100-SXM2", True), ("NVIDIA H200", False)])
def test_ranks_on_another_model_of_gpu_are_one_finding(model: str, found: bool) -> None:
    """Their kernels have other names, so that times of the same kernels are not compared."""
    traces = []
    for rank, one in enumerate(job(lambda rank, _n, _k: 1.5 if rank > 4 else 1, 8)):
        names = {one: f"volta_{one}" for one in KERNELS} if rank > 4 else {}
        name = pl.col("name").cast(pl.String).replace(names)
        gpus = (Device(0, model if rank > 4 else "NVIDIA A100-SXM4-80GB"),)
        meta = replace(one.meta, devices=gpus)
        events = one.events.with_columns(name.cast(one.events.schema["name"]))
        traces.append(replace(one, sources=(meta,), events=events))
    slow = judged("slow-gpu", *traces)
    assert [one.ranks for one in slow] == [(5, 6, 7)] * found
    assert ["one model" in one.advice for one in slow] == [True] * found


@pytest.mark.parametrize(
    ("nodes", "slow", "ranks"),
    [
        ("aabbcc", "aa", (0, 1)),
        ("aaabb", "aaa", (0, 1, 2)),
        ("aabbcc", "bbcc", ()),  # one node is fast
        ("abcdef", "bcdef", ()),
        ("aaaaa", "aaa", ()),
    ],
)
def test_slower_ranks_are_few_or_those_of_few_nodes(
    nodes: str, slow: str, ranks: tuple[int, ...]
) -> None:
    first = nodes.index(slow)
    of_slow = range(first, first + len(slow))
    times = [(rank, 14 if rank in of_slow else 10) for rank in range(len(nodes))]
    answers = Answers({})
    answers.__dict__["nodes"] = dict(enumerate(nodes))
    assert (*answers.slower(pl.DataFrame(times, ["rank", "ns"], orient="row")),) == ranks


@pytest.mark.parametrize(
    ("nodes", "ranks", "part"),
    [("aaaa", (2, 3), "half"), ("aaab", (0, 1, 2), "all"), ("aaab", (1, 2), ""),
     ("aaaaa", (2, 3, 4), ""), ("abab", (0, 1), "")],
)  # fmt: skip
def test_half_of_a_node_is_half_of_one_node(nodes: str, ranks: tuple[int, ...], part: str) -> None:
    answers = Answers({})
    answers.__dict__["nodes"] = dict(enumerate(nodes))
    assert answers.label(ranks).endswith(f" ({part} of node a)" if part else str(ranks[-1]))


@pytest.mark.sample(2)
@pytest.mark.parametrize("slow", [1.12, 1.8])
def test_a_rank_of_slow_gpus_is_a_straggler_for_another_cause(slow: float) -> None:
    """The GPUs of ranks 2 and 3 of 8 are slow, too little for a finding or much; rank 3 pauses."""
    traces = []
    for rank in range(8):
        events = []
        for number in range(5):
            begin, at = number * 60 * MS, number * 60 * MS + (30 * MS if rank == 3 else 0)
            events.append(step(number, begin, 60 * MS))
            for name, usual in KERNELS.items():
                ns = round(usual * (slow if rank in (2, 3) else 1))
                events.append(device(name, at, ns))
                at += ns
            length = begin + 60 * MS - at
            about = ABOUT | {"group_size": 8}
            events.append(device(ALL_REDUCE, at, length, seq=number, group="0", **about))
        traces.append(trace(events, rank, world_size=8))
    (gpus,), late = judged_by(["slow-gpu", "straggler"], *traces)
    assert (gpus.ranks, (gpus.size or 0) >= 0.05) == ((2, 3), slow > 1.5)
    assert late[0].rank == 3
    assert 0.35 <= (late[0].cost_frac or 0) <= 0.55


@pytest.mark.matrix
def test_unequal_work_of_another_rank_in_each_step() -> None:
    """Rank n has longer products in step n; in the last step no rank has."""
    traces = job(lambda rank, n, k: 1.5 if rank == n and k == "gemm" else 1)
    (one,) = judged("unequal-work", *traces)
    assert one.total_ns == 4 * 3 * 2 * MS
    assert one.rank is None
    check_wording(one.title, *one.evidence)
    assert not judged("unequal-work", *job(lambda r, _n, _k: 1.5 if r == 2 else 1))


def test_unequal_work_of_several_ranks_is_balanced_over_all() -> None:
    """A product takes 1 to 4 units on ranks 0 to 3. A single rank with more is a straggler."""
    traces = job(lambda rank, _n, k: 1 + rank if k == "gemm" else 1)
    found = ta.diagnose(traces).findings
    one = next(one for one in found if one.id == "unequal-work")
    assert not any(one.id == "straggler" for one in found)
    each = KERNELS["gemm"]
    assert one.cost_ns == pytest.approx(1.5 * each)
    assert one.gain_ns == pytest.approx(1.5 * each, rel=0.01)
    assert (one.rank, one.ranks) == (3, (2, 3))
    one_rank = ta.diagnose(job(lambda r, _n, k: 4 if r == 3 and k == "gemm" else 1)).findings
    assert [one.rank for one in one_rank if one.id == "straggler"] == [3]


def test_unequal_work_and_a_straggler_of_another_cause() -> None:
    traces = job(lambda rank, _n, k: 1 + rank if k == "gemm" else 1, pause_ns=99 * MS)
    (straggler,), (one,) = judged_by(["straggler", "unequal-work"], *traces)
    assert straggler.rank == 1
    assert one.ranks == (2, 3)
    assert "rank 1" not in one.evidence[0]


def test_unequal_work_in_each_step_and_an_idle_rank() -> None:
    """Rank 1 is idle in one step: the unequal work of the others remains a finding."""
    factor: Factor = lambda rank, n, k: 1.5 if rank == n and k == "gemm" else 1  # noqa: E731
    traces = job(factor, pause_ns=40 * MS)
    (straggler,), (one,) = judged_by(["straggler", "unequal-work"], *traces)
    assert (straggler.rank, max(straggler.explained)) == (1, "unknown-idleness")
    assert one.total_ns == 4 * 3 * 2 * MS


@pytest.mark.matrix
def test_slow_small_collective_is_on_a_slow_link() -> None:
    """1 KiB takes 5 ms on all ranks after the last arrival."""
    about = {"dtype": "float", "elements_in": 256, "stream": 20, "group": "0"}
    works = [(device("gemm", n * 10 * MS, 4 * MS), n) for n in range(6)]
    traces = [
        trace(
            [event for work, n in works for event in
             (work, device(ALL_REDUCE, n * 10 * MS + 4 * MS, 5 * MS, seq=n, **about))],
            rank, world_size=2,
        )
        for rank in range(2)
    ]  # fmt: skip
    (one,) = judged("slow-link", *traces)
    assert one.total_ns == pytest.approx(2 * 6 * 5 * MS, rel=0.01)
    check_wording(one.title)


@pytest.mark.parametrize(
    ("gpus", "on", "begins", "hosts", "ranks", "sure"),
    [
        (2, (0, 0), 0, ("a", "a"), 2, "medium"),
        (4, (1, 1), 20 * MS, ("a", "a"), 2, "medium"),
        (4, (0, 0), 0, ("a", "a"), 8, "low"),  # other ranks may use the other GPUs
        (2, (0, 0), 0, ("a", "b"), 2, None),  # the GPU of another host
        (1, (0, 0), 0, ("a", "a"), 2, None),  # one visible GPU per process
        (2, (0, 0), 500 * MS, ("a", "a"), 2, None),  # one after another
        (2, (0, 0), None, ("a", "a"), 2, None),  # perhaps one after another
        (4, (0, 1), 0, ("a", "a"), 2, None),  # one of them for a moment only
    ],
)
def test_ranks_share_a_gpu_while_another_is_free(
    gpus: int, on: tuple[int, int], begins: int | None, hosts: tuple[str, str], ranks: int,
    sure: str | None,
) -> None:  # fmt: skip
    """Each of two ranks computes for 9 of 10 ms of a step, and starts work on the first GPU."""
    devices = tuple(Device(n, "NVIDIA A100-SXM4-80GB") for n in range(gpus))
    traces = []
    for rank, node in enumerate(hosts):
        events = []
        for n in range(5):
            used = [(on[rank], 5000, 9 * MS), (on[0], 9 * MS + 9000, 20_000)]
            events.append(step(n, 10 * n * MS, 10 * MS))
            for at, (gpu, late, ns) in enumerate(used):
                ids = {"correlation": 2 * n + at + 1}
                called = 10 * n * MS + at * 2000
                events.append(host("cuda_runtime", "cudaLaunchKernel", called, 1000, **ids))
                events.append(device("gemm", 10 * n * MS + late, ns, **ids) | {"device": gpu})
        epoch = None if begins is None and rank else rank * (begins or 0)
        about = {"world_size": ranks, "devices": devices, "epoch_ns": epoch}
        name = f"{node}_{rank}.17.pt.trace.json"
        traces.append(trace(events, rank, host=node, path=name, **about))
    found = {one.id: one for one in ta.diagnose(traces).findings}
    one = found.get("shared-gpu")
    assert (one and one.confidence) == sure
    assert one is None or one.cost_frac == pytest.approx(0.45, abs=0.02)
