"""Predictions of what-if and the longest path: known programs, published numbers, invariants."""

from __future__ import annotations

import gzip
from dataclasses import fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import follower
import numpy as np
import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT
from diagnosing import finding
from hypothesis import given, settings, strategies as st
from perfetto_files import as_pytorch_writes, as_stages, load
from replays import job_st, usual_changes

import traceanalyzer as ta
from benchmarks.accuracy.cases import Plan, program_of
from benchmarks.accuracy.fault import FAULTS
from benchmarks.accuracy.simulator import simulate
from benchmarks.accuracy.write import write_kineto
from traceanalyzer.analyzers.critical_path import longest_path
from traceanalyzer.analyzers.replay import changes, engine, follow, sample
from traceanalyzer.analyzers.replay.program import _coincidences, measure
from traceanalyzer.analyzers.what_if import Options, ReplayOptions, replay
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
ALL_REDUCE_OF_GRAPH = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS = 5


def training(
    *,
    load: int = 2 * MS,
    compute: int = 5 * MS,
    synchronise: bool = True,
    rank: int = 0,
    other_load: int | None = None,
    first: int = 0,
    returns: int = 3 * US,
    loading: tuple[str, str] = ("user_annotation", LOADER),
    loads: dict[int, int] | None = None,
    steps: int = STEPS,
    **launcher: int,
) -> Trace:
    """Return steps of data loading, one kernel and, with another rank, an all_reduce of 100 us.

    ``loads`` has the time of loading in some steps.

    The recording begins with the step ``first``. A synchronising call ends ``returns`` after the
    work.
    """
    events: list[dict[str, Any]] = []
    at = free = 0
    usual = load
    for number in range(steps):
        load = (loads or {}).get(number, usual)
        begin, ids = at, {"correlation": 10 * number + 1}
        events = events if number > first else []
        events.append(host(*loading, at, load - 2 * US))
        launch = at + load
        events.append(host("cuda_runtime", "cudaLaunchKernel", launch, 3 * US, **ids, **launcher))
        start = max(launch + 5 * US, free + US)
        free = start + compute
        events.append(device(GEMM, start, compute, **ids))
        at = launch + 3 * US
        if other_load is not None:
            events.append(
                host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, correlation=10 * number + 2)
            )
            at += 3 * US
            reduced = max(free, free + other_load - load) + 100 * US
            more = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2, "seq": number}
            events.append(
                device(ALL_REDUCE, free + US, reduced - free, correlation=10 * number + 2, **more)
            )
            free = reduced + US
        if synchronise:
            done = max(at + 2 * US, free + returns)
            call = ("cuda_runtime", "cudaDeviceSynchronize", at, done - at)
            events.append(host(*call, **launcher))
            at = done
        events.append(step(number, begin, at - begin))
    return trace(events, rank=rank, path=f"rank{rank}.json")


def gain_ns(inputs: Any, **change: Any) -> float:
    """Return the gain of a change."""
    gain: float = ta.what_if(inputs, **change).changes["gain_ns"][0]
    return gain


def test_replay_of_the_unchanged_run_is_the_recording() -> None:
    result = usual_changes(training())
    assert abs(result.error_frac) < 1e-5
    assert result.start_error_p95_ns < 1 * US
    assert result.missing == result.inferred == 0


def test_loading_before_each_synchronised_step_gains_all_of_it() -> None:
    assert gain_ns(training(), free="data-loading") == pytest.approx(2 * MS, rel=0.01)
    assert gain_ns(training(), scale="DataLoaderIter.*=2") == pytest.approx(1 * MS, rel=0.01)


@pytest.mark.parametrize(
    ("loads", "gain"),
    [
        ({}, 0),  # each batch is ready 7 ms after the one before, whatever the GPU does
        ({0: MS // 9, 1: MS // 9, 2: MS // 9}, 2.5 * MS),  # most steps find a batch
    ],
)
def test_batches_of_workers_are_ready_as_recorded(loads: dict[int, int], gain: int) -> None:
    waiting = training(loading=("user_annotation", WORKERS), loads=loads)
    assert gain_ns(waiting, scale="gemm=2") == pytest.approx(gain, rel=0.02, abs=10 * US)
    assert gain_ns(waiting, free="synchronisation") <= 2 * MS * (gain > 0) + 10 * US
    if not loads:
        faster = gain_ns(waiting, free="data-loading", scale="gemm=2")
        assert faster == pytest.approx(4.5 * MS, rel=0.01)


def test_a_wait_that_pauses_do_not_shorten_is_no_wait_for_workers() -> None:
    """After 30 ms in a kernel, workers would have a batch ready."""
    events = training(loading=("user_annotation", WORKERS), steps=9).events.to_dicts()
    job = engine.job_of([measure(trace(events))])
    assert [rows.size for rows in job.batches] == [9]
    from_step = next(e["ts"] for e in events if e["name"] == "ProfilerStep#4")
    later = [{**e, "ts": e["ts"] + 30 * MS * (e["ts"] >= from_step)} for e in events]
    assert [rows.size for rows in engine.job_of([measure(trace(later))]).batches] == [0]


@pytest.mark.parametrize(
    ("loading", "cause"),
    [
        (("cpu_op", "GraphLowering.compile_to_fn (dynamo_timed)"), "host-code"),
        (("cpu_op", "aten::sort"), "host-code"),  # it launches nothing
        (("cuda_runtime", "cudaFuncGetAttributes"), "module-loading"),
        (("cuda_runtime", "cudaMalloc"), "memory-management"),
        (("cuda_runtime", "cudaFreeHost"), "memory-management"),
        (("cuda_driver", "cuMemUnmap"), "memory-management"),
        (("cuda_runtime", "hipGraphInstantiate"), "graph-building"),
        (("cuda_runtime", "cudaDeviceGetAttribute"), "api-calls"),
        (("other", "Iterator::Root::Prefetch"), "data-loading"),
    ],
)
@pytest.mark.parametrize("launcher", [{}, {"tid": 9}])
def test_host_time_has_the_classes_of_gpu_idle(
    loading: tuple[str, str], cause: str, launcher: dict[str, int]
) -> None:
    """Also if the thread that marks the steps loads, and another one launches."""
    job = training(loading=loading, **launcher)
    of_code = launcher and cause != "data-loading"
    expected = "host-code" if of_code else cause
    assert gain_ns(job, free=expected) == pytest.approx(2 * MS, rel=0.02)
    for other in {"host-code", "launches", "data-loading", cause} - {expected}:
        assert gain_ns(job, free=other) == pytest.approx(0, abs=20 * US)


@pytest.mark.parametrize(("launched", "gain"), [(10 * US, 0), (14 * MS, 4 * MS)])
def test_faster_launches_do_not_shorten_pauses_of_queued_work(launched: int, gain: int) -> None:
    """Another process has the GPU for 4 ms, or the host launches late."""
    events = []
    for number in range(3):
        begin = number * 20 * MS
        events.append(step(number, begin, 20 * MS - US))
        for at, start, long in ((US, 0, 10), (launched, 14, 5)):
            ids = {"correlation": begin + at, "pid": 1}
            call = host("cuda_runtime", "cudaLaunchKernel", begin + at, US, **ids)
            events += [call, device(GEMM, begin + start * MS + 10 * US, long * MS, **ids)]
        events.append(
            host("cuda_runtime", "cudaDeviceSynchronize", begin + 14 * MS + 9 * US, 5 * MS)
        )
    gained = gain_ns(trace(events), free=["launches", "host-code"])
    assert gained == pytest.approx(gain + MS, abs=100 * US)  # 1 ms of code ends the step


@pytest.mark.parametrize("freed", ["start", "end"])
def test_a_launch_waits_for_a_free_entry_of_the_queue(freed: str) -> None:
    """Of 600: it is free when the kernel of a launch starts, or when it ends."""
    events, ready, now, each, kernels = [], [0] * 600, 0, 100 * US, 800
    free_at = 0
    for number in range(4):
        begin = now
        for _ in range(kernels):
            called = now
            now = max(now, ready[-600]) + 4 * US
            start = max(now, free_at + US)
            free_at = start + each
            ready.append(start if freed == "start" else free_at)
            ids = {"correlation": len(ready)}
            events.append(host("cuda_runtime", "cudaLaunchKernel", called, now - called, **ids))
            events.append(device(GEMM, start, each, **ids))
            now += US
        events.append(step(number, begin, now - begin))
    gained = gain_ns(trace(events), scale="gemm=2")
    assert gained == pytest.approx(kernels * each / 2, rel=0.02)


def test_loading_during_the_kernels_gains_nothing() -> None:
    ahead = training(synchronise=False)
    assert gain_ns(ahead, free="data-loading") == pytest.approx(0, abs=10 * US)
    assert gain_ns(ahead, scale="gemm=2") == pytest.approx(2.5 * MS, rel=0.01)


def test_a_faster_kernel_gains_until_loading_is_the_longest_path() -> None:
    ahead = training(synchronise=False)
    assert gain_ns(ahead, free="gemm") == pytest.approx(3 * MS, rel=0.01)


def test_a_call_waits_for_work_that_ends_later_on_the_clock_of_the_device() -> None:
    assert gain_ns(training(returns=-4 * US), scale="gemm=2") == pytest.approx(2.5 * MS, rel=0.01)


def test_without_synchronisation_loading_overlaps() -> None:
    assert gain_ns(training(), free="synchronisation") == pytest.approx(2 * MS, rel=0.01)


@pytest.fixture
def late() -> list[Trace]:
    """Two ranks, the second of which loads 6 ms instead of 2 ms."""
    return [
        training(rank=0, other_load=6 * MS),
        training(rank=1, load=6 * MS, other_load=2 * MS),
    ]


def test_a_recording_that_begins_later_has_the_same_steps() -> None:
    whole, part = ([training(rank=rank, other_load=2 * MS, first=n * rank) for rank in (0, 1)]
                   for n in (0, 2))  # fmt: skip
    late = usual_changes(part)
    assert late.recorded_ns == pytest.approx(usual_changes(whole).recorded_ns, rel=0.01)
    assert late.steps.filter(run="recorded")["step"].to_list() == [
        "ProfilerStep#3",
        "ProfilerStep#4",
    ]


def test_ranks_wait_for_the_one_that_loads(late: list[Trace]) -> None:
    assert gain_ns(late, typical_rank=1) == pytest.approx(4 * MS, rel=0.02)
    assert gain_ns(late, typical_rank=0) <= 10 * US
    assert gain_ns(late, free="data-loading") == pytest.approx(6 * MS, rel=0.02)
    assert gain_ns(late, no_wait=True) == pytest.approx(0, abs=0.02 * MS)
    assert gain_ns(late, network=2) == pytest.approx(0.05 * MS, rel=0.1)


def test_lost_time_of_a_rank_is_removed_from_that_rank_alone(late: list[Trace]) -> None:
    job = engine.job_of([measure(one) for one in late])
    lost = pl.DataFrame(
        {"path": "1", "rank": [1], "device": [0], "start_ns": [0], "end_ns": [2 * MS]},
        schema_overrides={"rank": pl.Int32, "device": pl.Int32},
    )
    first, second = changes.without_time(job, job.weights, lost)
    assert first.loader.tolist() == job.weights[0].loader.tolist()
    assert second.duration.tolist() == job.weights[1].duration.tolist()  # kernels remain
    removed = job.weights[1].loader - second.loader
    assert removed[0] > 0
    assert not removed[1:].any()


def test_too_much_work_is_refused_before_its_program_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = training()
    assert replay.measure(one, ReplayOptions()).work.height == STEPS
    monkeypatch.setattr(sample, "MOST_WORK", sample.LEAST_STEPS - 1)
    assert usual_changes(one).kernels == STEPS  # on request, all of it is replayed
    monkeypatch.setattr(sample.program, "measure", pytest.fail)
    with pytest.raises(MissingData):
        replay.measure(one, ReplayOptions())


def varying(rank: int, steps: int = 20, seldom: int | None = None) -> Trace:
    """Return steps of two ranks with other data loading in each step; seldom, one is slow."""
    loads = {number: 2 * MS + number * 37 % 5 * 10 * US for number in range(steps)}
    other = {number: ns + (MS if number == seldom else 0) for number, ns in loads.items()}
    return training(rank=rank, loads=other if rank else loads, other_load=2 * MS, steps=steps)


@cache
def of_all_steps() -> tuple[dict[str, float], dict[str, float], Any]:
    """Return the gains of changes, the longest path and a finding without a sample of the steps."""
    ranks = [varying(rank) for rank in (0, 1)]
    gains = dict(ta.what_if(ranks).changes.select("change", "gain_frac").iter_rows())
    classes = dict(ta.critical_path(ranks).classes.select("kind", "time_frac").iter_rows())
    return gains, classes, finding("data-loading", *ranks)


@pytest.mark.sample(3)
@pytest.mark.parametrize(("most", "kernels"), [(24, 24), (28, 28), (12, 12), (10, 16)])
def test_a_sample_of_the_steps_gains_as_much_as_all(
    most: int, kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks with two kernels a step: 3 to 7 of 20 steps, the first and last not counted.

    If not even three steps are below the limit, that of several ranks is higher.
    """
    gains, classes, whole = of_all_steps()
    ranks = [varying(rank) for rank in (0, 1)]
    monkeypatch.setattr(sample, "MOST_WORK", most)
    result = ta.what_if(ranks)
    counted = kernels // 4 - 2
    assert (result.kernels, result.steps.filter(run="recorded").height) == (kernels, counted)
    assert "of 20 steps" in result.sampled
    for row in result.changes.to_dicts():
        assert row["gain_frac"] == pytest.approx(gains[row["change"]], abs=0.005)
    path = ta.critical_path(ranks)
    assert path.steps == counted
    for row in path.classes.to_dicts():
        assert row["time_frac"] == pytest.approx(classes[row["kind"]], abs=0.02)
    one = finding("data-loading", *ranks)
    assert (one.gain_basis, one.cost_ns) == ("replay", whole.cost_ns)
    assert one.gain_frac == pytest.approx(whole.gain_frac, rel=0.02)


def test_ranks_are_sampled_in_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that recorded fewer steps, and one with less work than the limit."""
    ranks = [varying(0), varying(1, steps=12)]
    whole = [measure(one) for one in ranks]
    monkeypatch.setattr(sample, "MOST_WORK", 30)
    parts = [sample.measure(one) for one in ranks]
    assert [one.steps.height for one in parts] == [15, 12]
    shared = sample.common(parts)
    names = [one.steps["step"].to_list() for one in shared]
    assert names[0] == names[1]
    assert sum(one.work.height for one in shared) <= 30
    for cut, one in zip(shared, sample.common(whole), strict=True):
        both = cut.work.join(one.work, on="start")
        assert both.height >= 8
        assert both["latency_ns"].to_list() == both["latency_ns_right"].to_list()
    assert engine.checked_replay(engine.job_of(parts))[1] == pytest.approx(0, abs=0.01)


def test_time_that_is_lost_outside_the_sample_gains_at_most_its_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loads = {2: 60 * MS}
    one = training(load=50 * US, loads=loads, steps=20)
    (found,) = (one for one in ta.diagnose(one).findings if one.id == "data-loading")
    assert found.gain_basis == "replay"
    monkeypatch.setattr(sample, "MOST_WORK", 6)
    (found,) = (one for one in ta.diagnose(one).findings if one.id == "data-loading")
    assert (found.gain_basis, found.gain_ns) == ("bound", found.cost_ns)


def test_long_steps_of_one_rank_are_replayed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three steps with 20 kernels each, and a limit of 16 kernels; the first step is warm-up."""
    short = training(steps=60)
    marks = pl.col("name").cast(pl.String).str.starts_with("ProfilerStep")
    rows = short.select(~marks).events.to_dicts()
    until = [short.select(marks).events["ts"][number] for number in (0, 20, 40)]
    until.append(max(row["ts"] + row["dur"] for row in rows))
    rows += [step(n, begin, end - begin) for n, (begin, end) in enumerate(pairwise(until))]
    whole, part = (
        {one.id: one for one in ta.diagnose(trace(rows)).findings}["data-loading"]
        for most in (100, 16)
        if not monkeypatch.setattr(sample, "MOST_WORK", most)  # type: ignore[func-returns-value]
    )
    assert (part.gain_basis, part.cost_ns) == ("replay", whole.cost_ns)
    assert part.gain_frac == pytest.approx(whole.gain_frac, rel=0.02)
    ranks = [replace(trace(rows), sources=(replace(short.meta, rank=n),)) for n in (0, 1)]
    with pytest.raises(MissingData):  # the parts of one rank are not those of another one
        sample.common([replay.measure(one, ReplayOptions()) for one in ranks])


def test_long_steps_of_several_ranks_are_replayed_in_the_same_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two ranks without steps, with two kernels per collective, and several times the limit."""
    ranks = []
    for rank in (0, 1):
        one = varying(rank, steps=80).select(~pl.col("name").cast(pl.String).str.contains("Step"))
        ranks.append(replace(one, sources=(replace(one.meta, world_size=2),)))
    whole = ta.diagnose(ranks)
    monkeypatch.setattr(sample, "MOST_WORK", 32)
    part = ta.diagnose(ranks)
    (all_of_it,), (some,) = (
        [one for one in each.findings if one.id == "data-loading"] for each in (whole, part)
    )
    assert any("parts" in note for note in part.input_notes)
    assert (some.gain_basis, some.cost_ns) == ("replay", all_of_it.cost_ns)
    assert some.gain_frac == pytest.approx(all_of_it.gain_frac, rel=0.02)


@given(
    st.lists(st.integers(1, 9), min_size=4, max_size=30),
    st.integers(4, 100),
    st.lists(st.integers(1, 99), min_size=30, max_size=30),
)
@settings(max_examples=50)
def test_a_sample_is_below_the_limit(counts: list[int], most: int, lengths: list[int]) -> None:
    ends = np.cumsum(lengths[: len(counts)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "MOST_WORK", most)
        chosen = sample.typical(np.array(counts), ends)
    if chosen is None:
        assert min(sum(counts[n : n + 3]) for n in range(len(counts) - 2)) > most
    else:
        assert len(chosen) >= 3
        assert sum(counts[n] for n in chosen) <= most


def in_layers(rank: int, pause: int = 4 * MS, extra: int = 0) -> Trace:
    """Return steps of kernels of 1 ms and 5 ms with one name, each followed by an all_reduce.

    The host of rank 1 pauses before each step, and it alone runs another kernel before the first.
    """
    events: list[dict[str, Any]] = []
    at = number = 0
    for index in range(STEPS):
        begin, at = at, at + pause
        for size, compute, transfer in ((1 << 10, MS, 100 * US), (1 << 22, 5 * MS, 2 * MS)):
            about = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2, "seq": number}
            about |= {"elements_in": size, "dtype": "float"}
            first = size == 1 << 10
            wait = pause if first and not rank else 0
            alone = extra if first else 0
            launched = begin + (pause if rank else 0) + number % 2 * 20 * US
            kernels: list[tuple[str, int, int, dict[str, Any]]] = [
                (GEMM, at - wait, compute, {}),
                (ALL_REDUCE, at - wait + compute, wait + alone + transfer - US, about),
            ]
            if rank and alone:
                kernels = [
                    ("histogram", at, alone, {}),
                    (GEMM, at + alone, compute, {}),
                    (ALL_REDUCE, at + alone + compute, transfer - US, about),
                ]
            for name, start, ns, more in kernels:
                correlation = len(events) + 1
                call = ("cuda_runtime", "cudaLaunchKernel", launched, 3 * US)
                events.append(host(*call, correlation=correlation))
                events.append(
                    device(name, start + 8 * US, ns - US, correlation=correlation, **more)
                )
                launched += 5 * US
            at += alone + compute + transfer
            number += 1
        done = at + 20 * US
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", launched, done - launched))
        at = done
        events.append(step(index, begin, at - begin))
    return trace(events, rank=rank, path=f"rank{rank}.json")


def test_a_rank_like_the_others_keeps_the_sizes_of_its_kernels_and_transfers() -> None:
    """Calls of one kernel and collective are compared at their place, not by their mean."""
    ranks = [in_layers(0), in_layers(1)]
    assert gain_ns(ranks, typical_rank=1) == pytest.approx(4 * MS, rel=0.03)


def test_kernels_that_no_other_rank_runs_take_no_time_in_a_rank_like_the_others() -> None:
    """The other kernels keep their times: the collective after them would wait otherwise."""
    ranks = [in_layers(rank, pause=0, extra=3 * MS) for rank in (0, 1)]
    assert gain_ns(ranks, typical_rank=1) == pytest.approx(3 * MS, rel=0.02)


def test_kernels_of_one_rank_are_compared_with_the_mean_of_several_others() -> None:
    """Rank 0 runs as long as each of the others, and another, long kernel."""
    job: Any = SimpleNamespace(unit=np.array([0, 0, 1, 2]), kinds=np.array([0, 1, 0, 0]))
    times, chosen = np.array([10.0, 50.0, 10.0, 10.0]), np.array([True, False, False])
    left = changes._without_additional(job, times, np.zeros(4, np.bool_), chosen)
    assert left.tolist() == [10.0, 0.0, 10.0, 10.0]


def test_clocks_apart_are_aligned_by_the_ends_of_collectives() -> None:
    """The collectives of rank 1 begin, by its clock, after those of rank 0 have ended."""
    programs: Any = [SimpleNamespace(epoch_ns=None, work=pl.DataFrame({"start": [0]}))] * 2
    start = pl.Series([0, 100, 10_000, 10_100])
    members = pl.DataFrame({"key": [0, 1] * 2, "program": [0, 0, 1, 1], "start": start,
                            "end": start + 50})  # fmt: skip
    shifts, agree = engine._shifts(programs, members)
    assert (shifts[1] - shifts[0], agree) == (-10_000, False)


def test_an_annotation_has_no_kernels_that_are_launched_outside_of_all() -> None:
    events: list[dict[str, Any]] = []
    for number in range(STEPS):
        at, ids, other = number * 9 * MS, {"correlation": 2 * number + 1}, 2 * number + 2
        events += [
            host("user_annotation", "part", at, 10 * US),
            host("cuda_runtime", "cudaLaunchKernel", at + US, 3 * US, **ids),
            device(GEMM, at + 8 * US, 5 * MS, **ids),
            host("cuda_runtime", "cudaLaunchKernel", at + 20 * US, 3 * US, correlation=other),
            device("other", at + 5 * MS + 9 * US, 3 * MS, correlation=other),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 25 * US, 8 * MS),
        ]
    assert gain_ns(trace(events), scale="^part$=2") == pytest.approx(STEPS * 2.5 * MS, rel=0.01)


def test_what_only_the_host_of_another_rank_does_is_not_added() -> None:
    """Rank 1 pauses before each step."""
    job = engine.job_of([measure(in_layers(0)), measure(in_layers(1))])
    like, others = changes.changed(job, changes.Change(typical_ranks=(0,)))
    assert like.code.sum() <= job.weights[0].code.sum() < others.code.sum()


@pytest.mark.parametrize(("with_host", "left"), [(False, 0.0), (True, 1.0)])
def test_a_transfer_without_time_on_one_rank_has_none_on_the_others(
    with_host: bool, left: float
) -> None:
    """The host of a rank alone makes no transfer of the others shorter."""
    job = engine.job_of([measure(in_layers(rank, pause=0)) for rank in (0, 1)])
    lost = pl.DataFrame({"path": ["rank0.json"], "rank": [0], "device": [0], "start_ns": [0],
                         "end_ns": [1 << 40]})  # fmt: skip
    one, other = changes.without_time(job, job.weights, lost, with_host=with_host)
    assert one.transfer.sum() == 0
    assert other.transfer.sum() == left * job.weights[1].transfer.sum() > -1


def one_process(compute: tuple[int, int], *, by_gpu: bool = False) -> Trace:
    """Return steps of one process with two GPUs: a kernel and the all_reduce of both on each.

    Their communication streams have other numbers. The kernels are launched first, or all work of
    one GPU.
    """
    events: list[dict[str, Any]] = []
    at = 0
    for number in range(STEPS):
        begin = at
        order = [(gpu, work) for work in (0, 1) for gpu in (0, 1)]
        at_call = {}
        for one in sorted(order) if by_gpu else order:
            at_call[one] = at
            at += 20 * US
        ends = [at_call[gpu, 0] + 10 * US + compute[gpu] for gpu in (0, 1)]
        for (gpu, work), called in at_call.items():
            ids = {"correlation": 10 * number + 2 * gpu + work + 1, "device": gpu}
            events.append(host("cuda_runtime", "cudaLaunchKernel", called, 10 * US,
                               correlation=ids["correlation"]))  # fmt: skip
            first = ends[gpu] + US
            events.append(
                device(ALL_REDUCE, first, max(ends) + MS - first, stream=20 + gpu, **ids)
                if work
                else device(GEMM, called + 10 * US, compute[gpu], **ids)
            )
        done = max(ends) + MS + 3 * US
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", at, done - at))
        events.append(step(number, begin, done - begin))
        at = done
    return trace(events, rank=None, path="one.json")


@pytest.mark.parametrize("by_gpu", [False, True])
def test_gpus_of_one_process_are_ranks(*, by_gpu: bool) -> None:
    run = one_process((8 * MS, 11 * MS), by_gpu=by_gpu)
    assert gain_ns(run, typical_rank=1) == pytest.approx(3 * MS, abs=50 * US)
    assert gain_ns(run, typical_rank=0) == pytest.approx(0, abs=US)
    assert gain_ns(run, network=2) == pytest.approx(MS / 2, abs=US)
    (straggler,) = (one for one in ta.diagnose(run).findings if one.id == "straggler")
    assert (straggler.rank, straggler.gain_basis) == (1, "replay")
    assert straggler.gain_ns == pytest.approx(3 * MS, abs=50 * US)


def test_steps_of_the_gpus_of_a_process_have_a_row_each() -> None:
    alone = ta.what_if(one_process((8 * MS, 11 * MS)), free="synchronisation", no_wait=True)
    assert alone.by_rank["rank"].to_list() == [0, 1]
    assert np.diff(alone.by_rank["gain_ns"])[0] == pytest.approx(-3 * MS, abs=50 * US)


def test_ranks_like_their_mean_keep_the_times_of_their_hosts(late: list[Trace]) -> None:
    """Unequal work is divided, but the loader of one rank remains slow."""
    job = engine.job_of([measure(one) for one in late])
    equal = changes.changed(job, changes.Change(typical_ranks=(0, 1)))
    assert [one.loader.tolist() for one in equal] == [one.loader.tolist() for one in job.weights]


@pytest.mark.parametrize("kernels", [("prefill", "decode"), (GEMM, GEMM)])
def test_work_is_divided_between_collectives(kernels: tuple[str, str]) -> None:
    """Before one all_reduce of a step one rank works longer, and all work equally after it."""

    def of_rank(rank: int) -> Trace:
        events: list[dict[str, Any]] = []
        at = 0
        for index in range(STEPS):
            begin, large = at, index % 2 == rank
            for number, compute, longest in ((0, 5 if large else 1, 5), (1, 2, 2)):
                about = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2}
                about |= {"seq": 2 * index + number, "elements_in": 1 << 20, "dtype": "float"}
                name = "experts" if number else kernels[large]
                for what, start, end, more in (
                    (name, 0, compute * MS, {}),
                    (ALL_REDUCE, compute * MS, longest * MS + MS, about),
                ):  # fmt: skip
                    ids = {"correlation": len(events) + 1}
                    call = host("cuda_runtime", "cudaLaunchKernel", begin, US, **ids)
                    events += [call, device(what, at + start, end - start, **ids, **more)]
                at += (longest + 1) * MS
            events.append(step(index, begin, at - begin))
        return trace(events, rank=rank, world_size=2)

    job = engine.job_of([measure(of_rank(rank)) for rank in (0, 1)])
    equal = changes.changed(job, changes.Change(typical_ranks=(0, 1)))
    before, after = (
        sum(engine.step_times(job, [one.end for one in engine.replay(job, some)]))
        for some in (job.weights, equal)
    )
    assert before - after == pytest.approx((STEPS - 1) * 2 * MS, rel=0.02)  # 5 and 1 become 3


@pytest.mark.parametrize(
    ("times", "change", "gain"),
    [
        ([(5, 9)], "rank 1 like the mean of all ranks", 3),  # larger inputs: 3 and 9 become 6
        ([(15, 9)], "rank 1 like the others", 16),  # a slow GPU
        ([(5, 6), (5, 9), (5, 12)], "ranks 0, 1, 2, 3 like the mean of all ranks", 4.5),
    ],
)
def test_larger_inputs_of_a_rank_move_to_the_others(
    times: list[tuple[int, int]], change: str, gain: float
) -> None:
    """The others wait for the last rank; kernels take these times instead of 5 and 3 ms."""
    ranks, longest = [], sum(times[-1])
    for rank, each in enumerate([(5, 3), *times]):
        events = []
        for number in range(STEPS):
            at = begin = number * (longest + 1) * MS
            lengths = {GEMM: each[0], "moe": each[1], ALL_REDUCE: longest - sum(each) + 1}
            events.append(step(number, at, (longest + 1) * MS))
            for nth, (name, ms) in enumerate(lengths.items()):
                launch = {"correlation": 10 * number + nth}
                call = ("cuda_runtime", "cudaLaunchKernel", begin + nth * US, 1)
                events.append(host(*call, **launch))
                more = (
                    {"group": "0", "group_size": 1 + len(times), "seq": number} if nth == 2 else {}
                )
                events.append(device(name, at + 5 * US, ms * MS - 2 * US, **launch, **more))
                at += ms * MS
        ranks.append(trace(events, rank=rank, path=f"rank{rank}.json"))
    result = usual_changes(ranks)
    gains = dict(result.changes.select("change", "gain_ns").iter_rows())
    assert gains[change] == pytest.approx(gain * MS, rel=0.03)


@pytest.mark.parametrize("ahead_us", [0, 80])
def test_equal_ranks_with_clocks_apart_gain_nothing_like_each_other(ahead_us: int) -> None:
    """The transfers of 0.1 ms and 2 ms begin on both ranks before they end on one."""
    ranks = []
    for rank in (0, 1):
        one = in_layers(rank, pause=0)
        ranks.append(replace(one, sources=(replace(one.meta, epoch_ns=rank * ahead_us * US),)))
    result = usual_changes(ranks)
    alike = result.changes.filter(pl.col("change").str.ends_with("like the others"))
    assert alike["gain_ns"].to_list() == pytest.approx([0, 0], abs=5 * US)
    assert result.faster_ranks == ()


def test_a_given_change_is_displayed_without_findings(late: list[Trace]) -> None:
    (table, *_) = ta.what_if(late, free="launches").view().tables
    assert [*table.columns] == ["change", "step_ns", "gain_ns", "gain_frac"]
    assert {*table.columns} <= {*table.frame.columns}


def test_findings_and_changes_have_a_table_each(late: list[Trace]) -> None:
    result = ta.what_if(late)
    found, changed, *_ = result.view().tables
    assert (found.name, changed.name) == ("findings", "changes")
    assert found.frame["change"].null_count() == changed.frame["step_ns"].null_count() == 0
    assert found.frame["finding"].to_list() == result.findings["finding"].to_list()


def test_usual_changes_are_sorted_by_gain(late: list[Trace]) -> None:
    result = usual_changes(late)
    changes = result.changes
    assert changes["change"][0] == "no data loading"
    assert "rank 1 like the others" in changes["change"].to_list()
    assert changes["gain_ns"].is_sorted(descending=True)
    assert changes["gain_ns"].min() >= 0
    assert result.faster_ranks == ()  # rank 0 loads less, but its step waits for rank 1 anyway


def test_ranks_that_would_make_steps_longer_are_named(shared: Path) -> None:
    """Job ST: the last stage has 1.6 times the work of the others, and is on the longest path."""
    result = usual_changes(job_st(shared))
    gains = dict(result.changes.select("change", "gain_ns").iter_rows())
    assert result.faster_ranks == (0, 1, 2, 4, 5, 6)
    assert min(gains.values()) >= 0
    assert gains["no host time for other code"] / 1e9 == pytest.approx(
        2.214448 - 2.172697, rel=0.01
    )
    assert gains["ranks 3, 7 like the others"] / 1e9 == pytest.approx(0.529, abs=0.002)
    # without the data of the stage before, a stage cannot run: that is no waiting for ranks
    assert gains["no waiting for other ranks"] < 0.01 * result.recorded_ns


def test_gain_of_a_pipeline_stage_is_that_of_equal_stages(shared: Path) -> None:
    """Its layers move to the other stages, whose work becomes longer."""
    job = job_st(shared)
    (stage,) = (one for one in ta.diagnose(job).findings if one.ranks)
    assert (stage.id, stage.ranks, stage.gain_basis) == ("straggler", (3, 7), "replay")
    equal = ta.what_if(job, equal_stages=True).changes.row(0, named=True)
    assert stage.gain_change == equal["change"]
    assert stage.gain_ns == pytest.approx(equal["gain_ns"], rel=0.02)


def test_a_longest_path_goes_through_the_late_rank(late: list[Trace]) -> None:
    path = ta.critical_path(late)
    assert path.ranks["rank"][0] == 1
    shares = dict(path.classes.select("kind", "time_frac").iter_rows())
    assert shares["data loading"] == pytest.approx(6 / 11.1, rel=0.02)
    assert shares["kernels"] == pytest.approx(5 / 11.1, rel=0.02)


def test_answer_to_a_change_has_the_new_path_and_the_ranks_that_gain() -> None:
    """Rank 1 loads 6 ms instead of 2 ms and waits for nobody."""
    ranks = [training(rank=rank, load=load) for rank, load in ((0, 2 * MS), (1, 6 * MS))]
    result = ta.what_if(ranks, free="data-loading")
    gains = dict(result.by_rank.select("rank", "gain_ns").iter_rows())
    assert gains == {0: pytest.approx(2 * MS, rel=0.01), 1: pytest.approx(6 * MS, rel=0.01)}
    paths = {row["kind"]: row for row in result.paths.to_dicts()}
    assert paths["data loading"]["before_ns"] == pytest.approx(6 * MS, rel=0.01)
    assert paths["data loading"]["after_ns"] == 0
    assert paths["kernels"]["after_frac"] == pytest.approx(1, abs=0.01)
    assert result.paths["after_ns"].sum() == pytest.approx(result.changes["step_ns"][0])
    drawn = {row["run"]: row["start_ns"] for row in result.drawn.to_dicts()}
    assert drawn["replayed"] - drawn["changed"] == pytest.approx(6 * MS, rel=0.01)
    assert usual_changes(ranks).paths.is_empty()


def test_path_by_stage_annotation_and_family(shared: Path) -> None:
    path = ta.critical_path(job_st(shared))
    assert dict(path.stages.select("stage", "time_frac").iter_rows())[3] == pytest.approx(
        0.638, abs=2e-3
    )
    assert path.annotations["annotation"].to_list() == ["ProfilerStep*", None]
    loading = ta.critical_path(training())
    assert dict(loading.families.select("family", "time_frac").iter_rows())["gemm"] > 0.7
    assert LOADER in loading.annotations["annotation"].to_list()


def test_functions_in_one_pause_have_each_its_time_on_the_path() -> None:
    """As in diagnose: no function has the time of another one before the same call."""
    took = {"a.py(1): score": 1 * MS, "b.py(2): pack": 2 * MS, "c.py(3): plan": 3 * MS}
    events: list[dict[str, Any]] = []
    for number in range(STEPS):
        at, link = number * 8 * MS, {"correlation": number + 1}
        events.append(step(number, at, 8 * MS))
        for name, ns in took.items():
            events.append(host("python_function", name, at, ns))
            at += ns
        events += [
            host("cuda_runtime", "cudaLaunchKernel", at, 2 * US, **link),
            device(GEMM, at + 10 * US, 2 * MS - 30 * US, **link),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 20 * US, 2 * MS - 20 * US),
        ]
    recording = trace(events)
    path, idle = ta.critical_path(recording), ta.gpu_idle(recording)
    names = dict(path.names.filter(kind="other host code").select("name", "time_ns").rows())
    assert idle.basis.each_ns(idle.counted_by_cause["host_code"]) > 5 * MS
    for name, ns in took.items():
        (ran,) = (names[text] for text in names if text.startswith(name.split(": ")[1]))
        assert ran == pytest.approx(ns, rel=0.01)


def test_steps_have_one_name_on_the_path(shared: Path) -> None:
    path = ta.critical_path(shared / "data/chrome/kineto_ddp_cpu/ddp4")
    named = path.names["name"].str.starts_with("ProfilerStep")
    assert path.names.filter(named)["name"].to_list() == ["ProfilerStep*"]


@pytest.mark.parametrize(
    ("kind", "name", "named"),
    [
        ("python_function", "train.py(77): update_metrics", "update_metrics (train.py:77)"),
        ("cpu_op", "torchvision::nms", "torchvision::nms"),
        ("user_annotation", "evaluate", "evaluate"),
        (None, "", "ProfilerStep*"),
    ],
)
def test_host_code_on_the_path_has_the_name_of_its_frame(
    kind: str | None, name: str, named: str
) -> None:
    """Of the innermost operator without frames; the step is no answer, unless nothing is known."""
    events = []
    for number in range(STEPS):
        at, link = number * 4 * MS, {"correlation": number + 1}
        events += [
            step(number, at, 4 * MS),
            *([] if kind is None else [host(kind, name, at + US, 3 * MS - 2 * US)]),
            host("cuda_runtime", "cudaLaunchKernel", at + 3 * MS, 2 * US, **link),
            device(GEMM, at + 3 * MS + 10 * US, MS // 2, **link),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 3 * MS + 20 * US, MS // 2),
        ]
    path = ta.critical_path(trace(events))
    names = path.names.filter(kind="other host code").select("name", "time_frac")
    # a frame or an operator takes 3 of the 4 ms, all code outside of calls a little more
    share = 0.75 if kind in ("python_function", "cpu_op") else 0.87
    assert names.row(0) == (named, pytest.approx(share, abs=0.02))
    of_annotation = kind == "user_annotation"
    assert (named in path.annotations["annotation"]) == (of_annotation or kind is None)
    gains = ta.what_if(trace(events), free=["ProfilerStep"]).changes["gain_frac"]
    assert (gains[0] > 0.8) == (not of_annotation)


def test_no_finding_is_all_of_them() -> None:
    rows, every = (ta.what_if(training(), finding=one).findings for one in (None, ()))
    assert rows is not None
    assert rows.equals(every)


def test_one_finding_is_removed_at_a_time() -> None:
    with pytest.raises(OptionError):
        ta.what_if(training(), finding=("data-loading", "launch-bound"))


def test_a_wait_for_a_copy_on_another_stream_is_inferred() -> None:
    events = []
    for number in range(STEPS):
        at, ids = number * 10 * MS, {"correlation": 4 * number + 1}
        copied = {"correlation": 4 * number + 2}
        events += [
            step(number, at, 10 * MS),
            host("cuda_runtime", "cudaMemcpyAsync", at, 2 * US, **copied),
            host("cuda_runtime", "cudaEventRecord", at + 3 * US, US),
            host("cuda_runtime", "cudaStreamWaitEvent", at + 5 * US, US),
            host("cuda_runtime", "cudaLaunchKernel", at + 7 * US, 2 * US, **ids),
            device("Memcpy HtoD (Pinned -> Device)", at + 8 * US, 4 * MS, stream=13,
                   kind="gpu_memcpy", **copied),
            device(GEMM, at + 4 * MS + 10 * US, 5 * MS, **ids),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 10 * US, 9 * MS + 3 * US),
        ]  # fmt: skip
    result = ta.what_if(trace(events), scale="Memcpy HtoD=2")
    assert result.inferred >= STEPS
    assert result.changes["gain_ns"][0] == pytest.approx(2 * MS, rel=0.01)


def test_short_work_waits_for_work_of_another_stream() -> None:
    """It would end within the rounding of times even if it waited for nothing.

    Work of another GPU that ends in between is none that it waits for.
    """
    events = []
    for number in range(STEPS):
        at, ids = number * 10 * MS, {"correlation": 4 * number + 1}
        read, other = {"correlation": 4 * number + 2}, {"correlation": 4 * number + 3}
        events += [
            step(number, at, 10 * MS),
            host("cuda_runtime", "cudaLaunchKernel", at, 2 * US, **ids),
            device(GEMM, at + 5 * US, 9 * MS, stream=13, **ids),
            host("cuda_runtime", "cudaMemcpyAsync", at + 7 * US, 2 * US, **read),
            device("Memcpy DtoH (Device -> Pageable)", at + 9 * MS + 6 * US, US,
                   kind="gpu_memcpy", **read),
            host("cuda_runtime", "cudaLaunchKernel", at + 3 * US, 2 * US, **other),
            device(GEMM, at + 9 * US, 9 * MS - 3500, device=1, **other),
            host("cuda_runtime", "cudaStreamSynchronize", at + 9 * US, 9 * MS),
        ]  # fmt: skip
    result = ta.what_if(trace(events), scale="gemm=3")
    assert result.inferred >= STEPS
    assert result.changes["gain_ns"][0] == pytest.approx(6 * MS, rel=0.01)


def awaited(late: int) -> Trace:
    """Return steps of a kernel, an all_reduce of 3 ms, and a launch this much after its end."""
    events = []
    for number in range(STEPS):
        at = number * 10 * MS
        events.append(step(number, at, 10 * MS))
        for name, start, ns, launch in (
            (GEMM, at + 10 * US, 6 * MS, at),
            (ALL_REDUCE, at + 6 * MS + 10 * US, 3 * MS, at + 20 * US),
            ("copy_kernel", at + 9 * MS + 11 * US, 100 * US, at + 9 * MS + 11 * US + late),
        ):
            ids = {"correlation": len(events)}
            events += [
                host("cuda_runtime", "cudaLaunchKernel", launch, 3 * US, **ids),
                device(name, start, ns, **ids),
            ]
    return trace(events)


@pytest.mark.parametrize(("late", "gain"), [(-10 * US, 3 * MS), (-2 * MS, 0)])
def test_a_host_that_goes_on_at_the_end_of_a_transfer_waited_for_it(late: int, gain: int) -> None:
    """Nothing was recorded that it waits for; otherwise it takes its time without the transfer."""
    assert gain_ns(awaited(late), free="communication") == pytest.approx(gain, abs=MS / 10)


@pytest.mark.parametrize("begin", [6 * MS, 8 * MS])
def test_a_part_of_a_transfer_that_the_host_waits_for(begin: int) -> None:
    """It goes on 1 ms earlier, whether the part is the first or the last one of the transfer."""
    job = engine.job_of([measure(awaited(-10 * US))])
    starts = [number * 10 * MS + begin + 10 * US for number in range(STEPS)]
    lost = pl.DataFrame(
        {
            "path": job.programs[0].path,
            "rank": job.programs[0].rank,
            "device": 0,
            "start_ns": starts,
            "end_ns": [at + MS for at in starts],
        },
        schema_overrides={"rank": pl.Int32, "device": pl.Int32},
    )
    less = changes.without_time(job, job.weights, lost, with_host=False)
    (before,), (after,) = engine.replay(job), engine.replay(job, less)
    assert before.end.max() - after.end.max() == pytest.approx(STEPS * MS, rel=0.02)


def test_small_copies_that_the_host_waits_for() -> None:
    """50 copies of 10 us, for which the slower rank waits 20 us each, and one of 2 ms."""
    events, at = [], 0
    for number in range(STEPS):
        begin = at
        for index in range(51):
            ids = {"correlation": 100 * number + index + 1}
            length = 2 * MS if index == 50 else 10 * US
            events += [
                host("cuda_runtime", "cudaMemcpyAsync", at, length + 10 * US, **ids),
                device("Memcpy HtoD (Pageable -> Device)", at + 5 * US, length, kind="gpu_memcpy",
                       **ids),
            ]  # fmt: skip
            at += length + 10 * US
        ids = {"correlation": 100 * number + 60}
        events.append(host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, **ids))
        events.append(device(GEMM, at + 5 * US, 5 * MS, **ids))
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", at + 4 * US, 5 * MS + 3 * US))
        at += 5 * MS + 10 * US
        events.append(step(number, begin, at - begin))
    faster = training(load=MS, compute=MS)
    for ranks in ([trace(events)], [faster, trace(events, rank=1)]):
        result = usual_changes(ranks)
        gains = dict(result.changes.select("change", "gain_ns").iter_rows())
        assert gains["no small blocking copies"] == pytest.approx(50 * 20 * US, rel=0.02)
        assert gains["no copies"] == pytest.approx(50 * 20 * US + 2 * MS + 10 * US, rel=0.02)
    assert "no small blocking copies" not in usual_changes(training()).changes["change"].to_list()


@pytest.mark.parametrize(("operator", "gain"), [("aten::nonzero", 100 * US), ("", 58 * US)])
def test_kernels_for_a_result_that_the_host_reads_go_with_its_copy(
    operator: str, gain: int
) -> None:
    """An operator runs a kernel of 40 us and reads its result; the next kernel waits for both."""
    events, at = [], 0
    for number in range(STEPS):
        begin, ids = at, [{"correlation": 3 * number + n} for n in (1, 2, 3)]
        if operator:
            events.append(host("cpu_op", operator, at, 98 * US))
        work = [(GEMM, at + 10 * US, 40 * US, "kernel"), (GEMM, at + 110 * US, MS, "kernel")]
        work.insert(1, ("Memcpy DtoH (Device -> Pinned)", at + 52 * US, 2 * US, "gpu_memcpy"))
        calls = [("cudaLaunchKernel", at + US, 4 * US), ("cudaMemcpyAsync", at + 6 * US, 90 * US),
                 ("cudaLaunchKernel", at + 100 * US, 4 * US)]  # fmt: skip
        for (name, start, ns, kind), call, one in zip(work, calls, ids, strict=True):
            events += [
                device(name, start, ns, kind=kind, **one),
                host("cuda_runtime", *call, **one),
            ]
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", at + 105 * US, MS + 8 * US))
        at += MS + 114 * US
        events.append(step(number, begin, at - begin))
    assert gain_ns(trace(events), free="small-copies") == pytest.approx(gain, rel=0.1)


def test_dependencies_of_graph_nodes_are_exact(shared: Path) -> None:
    """The last node waits for two branches: 80 + 120 us, and 60 us, which remain."""
    inferred, exact = (
        ta.what_if(shared / f"data/causes/chrome/{name}.json.gz", free="qkv|AllReduce")
        for name in ("k_kineto", "k_cuspy_deps")
    )
    assert (exact.edges, exact.inferred) == (28, 4)  # 6 per replay; a copy is not in the graph
    assert exact.changes["gain_ns"][0] == pytest.approx(140 * US, rel=0.01)
    assert exact.recorded_ns == inferred.recorded_ns
    path = ta.critical_path(shared / "data/causes/chrome/k_cuspy_deps.json.gz")
    assert {"k_norm", "k_qkv", ALL_REDUCE_OF_GRAPH, "k_out"} < {*path.names["name"]}
    assert "k_ffn" not in path.names["name"]


def test_dependencies_of_graph_nodes_in_perfetto(shared: Path, tmp_path: Path) -> None:
    """Stages that a render stage waited for are the arrows of the JSON."""
    source = shared / "data/causes/chrome/k_cuspy_deps.json.gz"
    events = load(gzip.decompress(source.read_bytes()))
    of_host = [e for e in events if "stream" not in e.get("args", {})]
    (path := tmp_path / "rank0.pftrace").write_bytes(as_pytorch_writes(of_host) + as_stages(events))
    json, perfetto = (ta.what_if(one, free="qkv|AllReduce") for one in (source, path))
    assert (perfetto.edges, perfetto.inferred) == (json.edges, json.inferred) == (28, 4)
    assert perfetto.changes["gain_ns"][0] == json.changes["gain_ns"][0]
    assert ta.modules(path).named_ns == ta.modules(source).named_ns == 2000 * US


def test_waits_without_a_recorded_event() -> None:
    events = [
        row
        for number in range(STEPS)
        for row in (
            step(number, number * MS, MS),
            host("cuda_runtime", "cudaStreamWaitEvent", number * MS, US),
            host("cuda_runtime", "cudaLaunchKernel", number * MS + US, US, correlation=number + 1),
            device(GEMM, number * MS + 5 * US, MS // 2, correlation=number + 1),
        )
    ]
    assert usual_changes(trace(events)).edges == 0
    check_path(ta.critical_path(trace(events)))


def polling(
    *, length: list[int], rest: int = 40 * US, alone: int = 0, ahead: bool = False
) -> Trace:
    """Return kernels, after which the host waits without a recorded call; or it pauses on its own.

    Args:
        length: of each kernel.
        rest: host time after the end of each kernel.
        alone: if given, the pause of the host after each launch.
        ahead: it waits for the kernel before the last one that it launched.
    """
    events, at, free = [], 0, 0
    for number, duration in enumerate(length):
        ids = {"correlation": number + 1}
        events.append(host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, **ids))
        start, before = max(at + 5 * US, free + US), max(free, at)
        free = start + duration
        events.append(device(GEMM, start, duration, **ids))
        at = at + alone if alone else (before if ahead else free) + rest
    return trace(events)


LENGTHS = [(1 + number % 3) * MS for number in range(24)]


def test_host_that_waits_without_a_recorded_call_follows_the_device() -> None:
    """Faster kernels end its pauses sooner; its time is only what comes after them."""
    result = ta.what_if(polling(length=LENGTHS), scale="gemm=2")
    assert result.changes["gain_ns"][0] == pytest.approx(sum(LENGTHS) / 2, rel=0.02)
    assert gain_ns(polling(length=LENGTHS), free="host-code") == pytest.approx(
        23 * 40 * US, rel=0.15
    )


def test_host_that_is_one_step_ahead_follows_the_device() -> None:
    """Kernels that take half the time halve the run."""
    job = polling(length=[2 * MS] * 24, ahead=True, rest=150 * US)
    assert measure(job).calls["kind"].drop_nulls().len() == 22
    assert gain_ns(job, scale="gemm=2") == pytest.approx(24 * MS, rel=0.05)


@pytest.mark.parametrize(
    ("length", "alone"),
    [
        (LENGTHS, 2 * MS),  # pauses end before or after the kernels
        ([2 * MS] * 24, 1900 * US),  # further ahead of the device after each one
        ([2 * MS] * 24, 2 * MS + 80 * US),  # shortly after each one, but always the same
        ([2 * MS + 10 * (n * 7919 % 11) * US for n in range(24)], 2 * MS + 150 * US),
    ],
)
def test_pauses_of_the_host_alone_do_not_follow_the_device(length: list[int], alone: int) -> None:
    job = polling(length=length, alone=alone)
    assert measure(job).calls["kind"].drop_nulls().is_empty()
    if alone > max(length):
        assert gain_ns(job, scale="gemm=2") <= max(length)  # only the last one


@pytest.mark.parametrize(("alone", "waits"), [(0, 5), (2 * MS, 0), (1300 * US, 0)])
def test_few_pauses_that_end_exactly_with_the_device_are_waits(alone: int, waits: int) -> None:
    length = [(1 + number % 3) * MS + number * 37 * US for number in range(6)]
    kinds = measure(polling(length=length, alone=alone)).calls["kind"].drop_nulls()
    assert kinds.len() == waits


@pytest.mark.parametrize(
    ("rest", "gain"), [(10 * US, 30 * MS), (200 * US, 15 * MS), (-10 * MS - 8 * US, 25 * MS)]
)
def test_one_long_pause_until_nothing_is_queued_follows_the_device(rest: int, gain: int) -> None:
    """Else the host launches 20 kernels after its pause, at 20 or 10 ms; they take 5 ms then."""
    events, free = [], 0
    for half, at in enumerate((0, 20 * MS + 26 * US + rest)):
        for number in range(20):
            launched, ids = at + number * 4 * US, {"correlation": 20 * half + number + 1}
            free = max(free, launched + 5 * US) + (MS + US if number else MS)
            events += [
                host("cuda_runtime", "cudaLaunchKernel", launched, 3 * US, **ids),
                device(GEMM, free - MS, MS, **ids),
            ]
    assert gain_ns(trace(events), scale="gemm=4") == pytest.approx(gain, rel=0.02)


def recorded_apart() -> list[dict[str, Any]]:
    """The host prepares 30 ms before each recorded step, and 1 ms in it."""
    events = []
    for number in range(STEPS):
        at, ids = number * 50 * MS, {"correlation": 2 * number + 1}
        more = {"correlation": 2 * number + 2}
        events += [
            step(10 * number, at, 14 * MS),
            host("cuda_runtime", "cudaLaunchKernel", at, 2 * US, **ids),
            device(GEMM, at + 5 * US, 4 * MS, **ids),
            host("cuda_runtime", "cudaLaunchKernel", at + 5 * MS, 2 * US, **more),
            device(GEMM, at + 5 * MS + 5 * US, 8 * MS, **more),
            host("cuda_runtime", "cudaDeviceSynchronize", at + 5 * MS + 4 * US, 8 * MS + 3 * US),
        ]
    return events


def test_time_between_steps_that_were_recorded_apart_is_no_gain() -> None:
    apart = trace(recorded_apart())
    assert usual_changes(apart).one_by_one
    assert gain_ns(apart, free="host-code") == pytest.approx(MS, rel=0.02)


@pytest.mark.parametrize("empty", [1, STEPS - 1])
def test_a_step_without_work_that_was_recorded_apart_takes_no_time(empty: int) -> None:
    """Its calls were recorded, its kernels were not."""
    late = range(empty * 50 * MS, empty * 50 * MS + 20 * MS)
    part = trace(
        one for one in recorded_apart() if one["kind"] != "kernel" or one["ts"] not in late
    )
    result = usual_changes(part)
    assert result.one_by_one
    assert 0 < result.replayed_ns < result.recorded_ns * 1.1
    assert gain_ns(part, free="host-code") == pytest.approx(MS, rel=0.3)
    assert ta.critical_path(part).path["time_ns"].sum() > 0


def test_nothing_can_be_replayed_without_launch_calls() -> None:
    work = [device(GEMM, number * MS, 900 * US) for number in range(5)]
    for analysis in (ta.what_if, ta.critical_path):
        with pytest.raises(MissingData, match="launch calls of 5 of 5"):
            analysis(trace(work))
        with pytest.raises(MissingData, match="neither GPU work nor operators of PyTorch"):
            analysis(trace([host("user_annotation", "train", 0, MS)]))


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "change",
    [{"scale": "gemm"}, {"scale": "gemm=0"}, {"scale": "gemm=x"}, {"free": "("}, {"network": 0},
     {"free": "dataloading"}, {"typical_rank": 7}, {"typical_rank": "x"}, {"typical_stage": 0}],
)  # fmt: skip
def test_changes_that_do_not_exist(change: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        ta.what_if(training(), **change)


def test_every_class_of_time_is_documented() -> None:
    help_of_free = next(one.metadata for one in fields(Options) if one.name == "free")
    page = (ROOT / "docs/what-if.md").read_text(encoding="utf-8")
    for name in changes.CLASSES:
        assert name in str(help_of_free)
        assert f"``{name}``" in (ta.what_if.__doc__ or "")
        assert f"`{name}`" in page


def test_numbers_of_thousands_of_digits_in_names_are_names() -> None:
    events = [
        row
        for number in range(STEPS)
        for row in (
            step(number, number * MS, MS) | {"name": "ProfilerStep#" + "9" * 5000 + str(number)},
            host("cuda_runtime", "cudaLaunchKernel", number * MS, US, correlation=number + 1),
            device(
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", number * MS + 5 * US,
                MS // 2, correlation=number + 1, collective="send", group="0",
                group_ranks=f"[0, {'7' * 5000}]", group_size=2, seq=number,
            ),
        )
    ]  # fmt: skip
    ranks = [trace(events, rank=rank, path=f"rank{rank}.json") for rank in (0, 1)]
    assert usual_changes(ranks).ranks == 2
    with pytest.raises(OptionError):
        ta.what_if(ranks, typical_rank="1" * 5000)


# --- invariants --------------------------------------------------------------------------------

WORK = st.tuples(st.integers(1, 50), st.integers(1, 400), st.sampled_from((7, 20)), st.booleans())


def program(work: list[tuple[int, int, int, bool]]) -> Trace:
    """Return a program of pauses, kernels on two streams, and synchronisations."""
    events, at = [], 0
    free = {7: 0, 20: 0}
    for number, (pause, length, stream, waits) in enumerate(work):
        at += pause * US
        ids = {"correlation": number + 1}
        events.append(host("cuda_runtime", "cudaLaunchKernel", at, 2 * US, **ids))
        start = max(at + 4 * US, free[stream] + US)
        free[stream] = start + length * US
        events.append(device(f"kernel_{length % 3}", start, length * US, stream=stream, **ids))
        at += 2 * US
        if waits:
            done = max(at + 2 * US, *(time + 2 * US for time in free.values()))
            events.append(host("cuda_runtime", "cudaDeviceSynchronize", at, done - at))
            at = done
    return trace(events)


@settings(max_examples=60, deadline=None)
@given(st.lists(WORK, min_size=4, max_size=30))
def test_no_change_gains_nothing_and_less_time_is_never_longer(
    work: list[tuple[int, int, int, bool]],
) -> None:
    job = engine.job_of([measure(program(work))])

    def step_ns(**change: Any) -> float:
        weights = changes.changed(job, changes.Change(**change))
        return sum(engine.step_times(job, [one.end for one in engine.replay(job, weights)]))

    before, error = engine.checked_replay(job)
    assert abs(error) < 0.001
    unchanged = sum(engine.step_times(job, [one.end for one in before]))
    assert step_ns(free=("copies",)) == unchanged  # there are none
    for change in ({"scale": (".=2",)}, {"free": ("launches",)}, {"free": ("synchronisation",)}):
        assert step_ns(**change) <= unchanged + 1
    both = ("kernel_=2", "kernel=3")
    assert step_ns(scale=both) == step_ns(scale=both[::-1])


RANKS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 1)), min_size=4, max_size=25
)


def with_collectives(rank: int, pieces: list[tuple[int, int, int]]) -> Trace:
    """Return a rank whose kernels are of 3 streams, some of them collectives of 2 groups.

    Each piece is the stream, what follows (a collective of group 0 or 1, a synchronisation, a wait
    of another stream), and whether the collectives of the pair of this rank are in reverse.
    """
    events: list[dict[str, Any]] = []
    at, free, counts = 0, [0, 0, 0], [0, 0]
    for number, (stream, then, turned) in enumerate(pieces):
        stream %= 3
        at += (3 + rank * number % 7) * US
        ids = {"correlation": number + 1}
        events.append(host("cuda_runtime", "cudaLaunchKernel", at, 2 * US, **ids))
        start = max(at + 4 * US, free[stream] + US)
        free[stream] = start + (20 + 5 * rank) * US
        more: dict[str, Any] = {}
        if then < 2:
            group = then ^ (turned & rank)
            more = {"group": str(group), "group_ranks": "[0, 1, 2]", "seq": counts[group]}
            counts[group] += 1
        name = ALL_REDUCE if more else "kernel"
        events.append(device(name, start, free[stream] - start, stream=stream + 7, **ids, **more))
        at += 2 * US
        if then == 2:
            done = max(at, *free) + 2 * US
            events.append(host("cuda_runtime", "cudaDeviceSynchronize", at, done - at))
            at = done
        if then == 3:
            events += [host("cuda_runtime", "cudaEventRecord", at, US),
                       host("cuda_runtime", "cudaStreamWaitEvent", at + US, US)]  # fmt: skip
            at += 2 * US
            free = [max(free)] * 3
    return trace(events, rank=rank, path=f"rank{rank}.json")


@settings(max_examples=25, deadline=None)
@given(RANKS)
def test_no_change_of_several_ranks_makes_the_run_longer(
    pieces: list[tuple[int, int, int]],
) -> None:
    """Collectives are in one order on all ranks; what is off the longest path gains nothing."""
    alike = [(stream, then, 0) for stream, then, _ in pieces]
    job = engine.job_of([measure(with_collectives(rank, alike)) for rank in range(3)])
    before = engine.replay(job)

    def whole_ns(weights: Any) -> float:
        return float(max(one.end.max() for one in engine.replay(job, weights)))

    base = whole_ns(job.weights)
    parts = {"free": ("launches",)}, {"network": 2.0}, {"scale": (".=2",)}, {"no_wait": True}
    for part in parts:
        assert whole_ns(changes.changed(job, changes.Change(**part))) <= base + 1
    path = longest_path(job, before).filter(kind="kernels")
    on_path = [path.filter(program=number)["start"].to_list() for number in range(3)]
    kept = [np.isin(one.start, starts) for one, starts in zip(before, on_path, strict=True)]
    less = [
        replace(one, duration=np.where(some, one.duration, 0.0))
        for one, some in zip(job.weights, kept, strict=True)
    ]
    assert whole_ns(less) == pytest.approx(base, abs=1)


@settings(max_examples=60, deadline=None)
@given(RANKS, st.sampled_from(("none", "launches", "waits", "together")))
def test_the_compiled_loop_has_the_times_of_the_other_one(
    pieces: list[tuple[int, int, int]], without: str
) -> None:
    """Also if the orders of collectives contradict, and if a rank lacks the last ones."""
    job = engine.job_of([measure(with_collectives(rank, pieces[rank:])) for rank in range(3)])
    weights = list(job.weights)
    for number, one in enumerate(weights):
        if without == "launches":
            weights[number] = replace(one, launch=0 * one.launch, latency=0 * one.latency)
        if without == "waits":
            weights[number] = replace(one, waits=one.waits & False)
        if without == "together":
            weights[number] = replace(one, together=False)
    compiled = engine.replay(job, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow, "_follow", follower)
        in_python = engine.replay(job, weights)
    for one, other in zip(compiled, in_python, strict=True):
        for values, expected in zip(one, other, strict=True):
            assert values.tolist() == pytest.approx(expected.tolist(), abs=1e-6, nan_ok=True)


@pytest.mark.skipif(follow._follow is None, reason="no compiler")
@pytest.mark.parametrize("argument", [0, 1, *range(3, 12)])  # 2 is counted down only
def test_the_compiled_loop_refuses_numbers_outside_of_its_arrays(argument: int) -> None:
    job = engine.job_of([measure(with_collectives(rank, [(0, 1, 0), (1, 3, 0), (2, 2, 0)]))
                         for rank in range(2)])  # fmt: skip
    given: list[tuple[Any, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follow._follow, "follow", lambda *arrays: given.append(arrays))
        engine.replay(job)
    (arrays,) = given
    assert follow._follow.follow(*arrays) is None
    for wrong in (-2, 1 << 40):
        values = arrays[argument].copy()
        if values.size:
            values[-1] = wrong
            with pytest.raises(IndexError):
                follow._follow.follow(*arrays[:argument], values, *arrays[argument + 1 :])
        with pytest.raises(IndexError):
            follow._follow.follow(*arrays[:20], values[:0], *arrays[21:])


def test_nothing_is_replayed_without_the_compiled_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "_follow", None)
    one = training()
    for analyze in (ta.what_if, ta.critical_path):
        with pytest.raises(MissingData, match="_follow"):
            analyze(one)
    findings = ta.diagnose(one).diagnosis
    assert {one.gain_basis for one in findings} == {"bound"}


def test_times_since_1970_lose_no_digits() -> None:
    """Two ranks start at times that differ by one microsecond: floats would round to 256 ns."""
    work = [(1, 3, 7, False)] * 2_000
    times = []
    for epoch in (0, 1_760_000_000_123_456_789):
        ranks = []
        for rank in (0, 1):
            one = program(work)
            meta = replace(one.meta, rank=rank, epoch_ns=epoch + rank * US)
            ranks.append(replace(one, sources=(meta,)))
        times.append(ta.what_if(ranks, free="copies").replayed_ns)
    assert times[0] == times[1]


@settings(max_examples=40, deadline=None)
@given(st.lists(WORK, min_size=4, max_size=30))
def test_shares_of_the_longest_path_add_up(work: list[tuple[int, int, int, bool]]) -> None:
    check_path(ta.critical_path(program(work)))


@settings(max_examples=40, deadline=None)
@given(st.lists(WORK, min_size=4, max_size=30))
def test_work_that_is_not_on_the_longest_path_gains_nothing(
    work: list[tuple[int, int, int, bool]],
) -> None:
    job = engine.job_of([measure(program(work))])
    (before,) = engine.replay(job)
    on_path = longest_path(job, [before]).filter(kind="kernels")["start"].to_list()
    kept = np.isin(before.start, on_path)
    weights = replace(job.weights[0], duration=np.where(kept, job.weights[0].duration, 0.0))
    (after,) = engine.replay(job, [weights])
    assert after.end.max() == before.end.max()


def check_path(path: Any) -> None:
    """Check that the path has no gap and its shares add up to the step time."""
    tables = [path.classes, path.names, path.ranks, path.families, path.annotations]
    for table in [*tables, *([path.stages] if path.stages.height else [])]:
        assert table["time_frac"].sum() == pytest.approx(1)
        assert table["time_ns"].sum() == pytest.approx(path.step_ns)
        assert table["time_ns"].min() > 0
    ends = (path.path["at_ns"] + path.path["time_ns"]).head(-1)
    assert (ends - path.path["at_ns"].tail(-1)).abs().max() < 10


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("path", ["nccl_8ranks", "ddp_2ranks"])
def test_fixtures_are_replayed(path: str) -> None:
    folder = ROOT / "fixtures" / path
    if not folder.exists():
        pytest.skip(f"no fixture {path}")
    try:
        result = ta.what_if(folder)
    except MissingData as error:
        pytest.skip(str(error))
    assert abs(result.error_frac) < 0.02
    check_path(ta.critical_path(folder))


# --- published numbers and simulated jobs --------------------------------------------------------

FREE = ("launches", "short-gaps", "host-code")
PUBLISHED = (
    ({"free": FREE}, 2.172697),
    ({"free": (*FREE, "communication")}, 2.051408),
    ({"free": FREE, "scale": "backward_compute=2"}, 1.549116),
    ({"free": (*FREE, "optimizer_kernel")}, 2.129564),
    ({"free": FREE, "typical_stage": 3, "typical": "all"}, 1.771040),
    ({"free": FREE, "typical_stage": (0, 1, 2), "typical": "all"}, 2.271412),
    ({"free": FREE, "typical_rank": 7, "typical": "all"}, 2.162352),
    ({"free": FREE, "typical_rank": tuple(range(7)), "typical": "all"}, 2.270836),
    ({"free": FREE, "typical_rank": tuple(range(8)), "typical": "all"}, 1.843296),
)


@pytest.mark.sample(12)
@pytest.mark.parametrize(("change", "seconds"), PUBLISHED)
def test_published_replays_of_a_pipeline(
    shared: Path, change: dict[str, Any], seconds: float
) -> None:
    """OSDI'25, "Understanding Stragglers in Large Model Training", job ST."""
    result = ta.what_if(job_st(shared), **change)
    assert result.recorded_ns / 1e9 == pytest.approx(2.214448, rel=1e-5)
    assert result.changes["step_ns"][0] / 1e9 == pytest.approx(seconds, rel=1e-5)
    assert result.inferred == 0


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("fault", "family", "world", "change"),
    [
        ("one-slow-kernel", "single", 1, {"free": "indexing_backward"}),
        ("loader-slow", "single", 1, {"free": "data-loading"}),
        ("slow-gpu", "data-parallel", 4, {"typical_rank": None}),
        ("unfused-pointwise", "sharded", 4, {"free": "MulFunctor"}),
        ("garbage-collection-on-one-rank", "sharded", 4, {"free": "host-code"}),
        ("device-copies", "single", 1, {"free": "Memcpy DtoD"}),
    ],
)
def test_gain_is_that_of_the_job_without_the_fault(
    fault: str, family: str, world: int, change: dict[str, Any], tmp_path: Path
) -> None:
    plan = Plan(fault, (FAULTS[fault],), 11, family, world, record=("marks",))
    job, healthy = plan.base_job(), plan.base_job()
    (expected,) = plan._inject(job, plan._sizes(plan._wall_us()))
    paths = []
    for name, one in (("faulty", job), ("healthy", healthy)):
        (tmp_path / name).mkdir()
        write_kineto(one, simulate(one, program_of(one)), tmp_path / name)
        paths.append(tmp_path / name)
    given = {key: expected.rank if value is None else value for key, value in change.items()}
    result = ta.what_if(paths[0], **given)
    true = result.recorded_ns - ta.what_if(paths[1], free="copies").recorded_ns
    gain = result.changes["gain_ns"][0]
    assert abs(gain - true) <= max(0.1 * true, 0.01 * result.recorded_ns)


def test_tables_have_the_documented_columns() -> None:
    result = usual_changes(training())
    assert result.changes.columns == ["change", "step_ns", "gain_ns", "gain_frac"]
    assert set(result.steps["run"]) >= {"recorded", "replayed"}
    assert result.steps.filter(pl.col("run") == "recorded").height == STEPS - 1


def test_path_of_one_rank_is_that_of_hta(shared: Path) -> None:
    """HTA 0.5.0, ``critical_path_analysis`` of the annotation ``measure|forward``, instance 1.

    Times in us: on the host, launch delay, kernels, between kernels.
    """
    expected = {"host": 32_042, "launch": 30, "kernels": 3_712, "gaps between kernels": 50}
    path = ta.critical_path(shared / "data/chrome/kineto/a100_alexnet_cuda_sync.json.gz").path
    kernels = path.filter(pl.col("kind").is_in(["kernels", "gaps between kernels"]))
    sums = dict(kernels.group_by("kind").agg(us=pl.col("time_ns").sum() / US).iter_rows())
    for kind in ("kernels", "gaps between kernels"):
        assert sums[kind] == pytest.approx(expected[kind], abs=2), kind
    first = kernels["at_ns"].min()
    before = path.filter(pl.col("at_ns") < first)
    launch = before.row(-1, named=True)
    assert (launch["kind"], launch["time_ns"]) == ("launches", pytest.approx(30 * US, abs=2 * US))
    begin = first - (expected["host"] + expected["launch"]) * US
    on_host = before.filter(pl.col("at_ns") + pl.col("time_ns") > begin)["kind"].unique()
    known = {"launches", "other host code", "end of waiting calls", "memory management"}
    assert set(on_host) <= known


def test_a_first_launch_loads_its_module_as_in_gpu_idle(shared: Path) -> None:
    """It takes 3.06 s, which all later work waits for."""
    file = shared / "data/chrome/kineto/a100_alexnet_cuda_sync.json.gz"
    idle = dict(ta.gpu_idle(file).causes.select("cause", "idle_ns").iter_rows())
    assert idle["module_loading"] > 3_000 * MS
    gain = ta.what_if(file, free="module-loading").changes["gain_ns"].item()
    assert gain == pytest.approx(idle["module_loading"], rel=0.001)


def test_path_of_an_operator_with_two_kernels_has_the_edges_that_hta_expects() -> None:
    """The edges of HTA's test of ``simple_add``: 15 and 14 us to the launch, 27 us, 7 us."""
    at = 10 * US
    events = [
        step(0, 0, 200 * US),
        host("cuda_runtime", "cudaDeviceSynchronize", 0, at),
        host("cpu_op", "aten::relu_", at, 93 * US),
        host("cpu_op", "aten::clamp_min_", at + 15 * US, 61 * US),
        host("cuda_runtime", "cudaLaunchKernel", at + 29 * US, 17 * US, correlation=1),
        host("cuda_runtime", "cudaLaunchKernel", at + 48 * US, 4 * US, correlation=2),
        device("clamp", at + 56 * US, 40 * US, correlation=1),
        device("add", at + 103 * US, 30 * US, correlation=2),
    ]
    result = ta.critical_path(trace(events))
    check_path(result)
    parts = result.path.select("kind", "time_ns").rows()
    assert parts[-5:] == [
        ("launches", 29 * US), ("launches", 27 * US), ("kernels", 40 * US),
        ("gaps between kernels", 7 * US), ("kernels", 30 * US),
    ]  # fmt: skip


def test_ranks_of_several_formats_are_replayed_together() -> None:
    assert usual_changes(str(ROOT / "fixtures/rocpd")).to_dict()["changes"]


def test_streams_wait_for_work_of_their_device() -> None:
    """Work of device 1 ends last before the work on stream 2 of device 0 starts."""
    work = pl.DataFrame(
        {
            "start": [0, 0, 105_000],
            "end": [100_000, 104_000, 200_000],
            "device": [0, 1, 0],
            "lane": [0, 1, 2],
            "rest_ns": [0.0, 0.0, 99_000.0],
        }
    )
    edges = _coincidences(work)
    assert edges.select("work", "after", "inferred").rows() == [(2, 0, True)]


def test_without_a_change_the_inputs_are_read_once() -> None:
    """``diagnose`` has the programs that the usual changes replay."""
    paths: list[str] = []
    export = ROOT / "fixtures" / "nsys" / "training.sqlite"
    result = ta.what_if(export, on_trace=lambda one: paths.append(one.meta.path))
    assert paths == [str(export)]
    assert result.changes.height > 1
