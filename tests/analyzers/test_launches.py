"""Launches of small synthetic traces."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import MS, US, device, host, step, trace
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer
from traceanalyzer.analyzers.common.device_work import device_work
from traceanalyzer.analyzers.launches.calls import drawn, launch_calls, queue_changes, with_launches
from traceanalyzer.analyzers.launches.compute import launches
from traceanalyzer.analyzers.launches.launch_bound import (
    LONG_NS,
    PROMPT_NS,
    costs,
    device_gaps,
    launch_gaps,
    stretches,
)
from traceanalyzer.analyzers.launches.result import Launches
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace

GEMM, ADD, FILL = "gemm", "add", "fill"


def call(
    number: int, ts: int, dur: int = 5 * US, name: str = "cudaLaunchKernel", **more: Any
) -> dict[str, Any]:
    return host("cuda_runtime", name, ts, dur, correlation=number, **more)


def kernel(number: int | None, ts: int, dur: int, name: str = GEMM, **more: Any) -> dict[str, Any]:
    return device(name, ts, dur, correlation=number, **more)


def copy(number: int, ts: int, dur: int, name: str, **more: Any) -> dict[str, Any]:
    return device(name, ts, dur, correlation=number, kind="gpu_memcpy", **more)


def op(name: str, ts: int, dur: int, **more: Any) -> dict[str, Any]:
    return host("cpu_op", name, ts, dur, **more)


def starved(n: int, at: int = 0, first: int = 0, idle: int = 8 * US) -> list[dict[str, Any]]:
    """Return kernels of 4 us, each launched while the device is idle."""
    period = 4 * US + idle
    launched = range(first, first + n)
    starts = [at + period * i for i in range(n)]
    rows = [call(c, s - 6 * US) for c, s in zip(launched, starts, strict=True)]
    return rows + [kernel(c, s, 4 * US) for c, s in zip(launched, starts, strict=True)]


def row(frame: pl.DataFrame, at: int = 0) -> dict[str, Any]:
    return frame.row(at, named=True)


# --- delays ----------------------------------------------------------------------------------


def test_delay_is_from_call_end_to_work_start() -> None:
    result = launches(
        trace(
            [
                *(call(1, 0), kernel(1, 12 * US, 100 * US)),
                # behind the first one, which ends at 112 us
                *(call(2, 10 * US), kernel(2, 113 * US, 10 * US)),
                # starts before its call returns
                *(call(3, 200 * US, 9 * US), kernel(3, 205 * US, 10 * US)),
            ]
        )
    )
    one = row(result.devices)
    assert (one["launches"], one["max_delay_ns"], one["median_delay_ns"]) == (3, 98 * US, 7 * US)
    assert one["mean_delay_ns"] == pytest.approx((7 + 98 + 0) * US / 3)
    assert one["waited_frac"] == pytest.approx(1 / 3)
    assert (one["late"], one["slow_calls"]) == (0, 0)
    assert (
        result.calls.median_delay_ns,
        result.unmatched.unlaunched,
        result.unmatched.without_work,
    ) == (7 * US, 0, 0)


def test_late_work_and_slow_calls_are_counted() -> None:
    result = launches(
        trace(
            [
                *(call(1, 0, 50 * US), kernel(1, 150 * US, US)),  # neither: exactly at the limits
                *(call(2, MS, 51 * US), kernel(2, MS + 152 * US, US)),
            ]
        )
    )
    assert row(result.devices)["late"] == 1
    assert row(result.calls.by_name)["slow_calls"] == 1
    assert row(result.calls.by_name)["max_call_ns"] == 51 * US


def test_graph_launch_is_one_launch_with_many_events() -> None:
    result = launches(
        trace(
            [
                call(1, 0, 10 * US, "cudaGraphLaunch"),
                *(kernel(1, (20 + 10 * i) * US, 9 * US, stream=7 + i % 2) for i in range(50)),
                *(call(2, 600 * US), kernel(2, 610 * US, US)),
            ]
        )
    )
    graph = row(result.calls.graphs)
    assert (graph["launch_name"], graph["launches"], graph["pieces"]) == ("cudaGraphLaunch", 1, 50)
    assert graph["max_delay_ns"] == 10 * US
    assert result.calls.launches == 2
    assert row(result.devices)["launches"] == 2
    # its device events wait on the device, not in the queue
    assert result.queue.streams["max_queue"].max() == 1
    assert result.unmatched.unlaunched == 0


def test_launches_are_grouped_by_call_and_operator() -> None:
    result = launches(
        trace(
            [
                op("aten::linear", 0, 100 * US),
                op("aten::addmm", 10 * US, 50 * US),
                *(call(1, 20 * US), kernel(1, 30 * US, US)),
                *(call(2, 80 * US, name="cudaMemsetAsync"), kernel(2, 90 * US, US)),
                *(call(3, 200 * US), kernel(3, 210 * US, US)),
            ]
        )
    )
    by_call = dict(result.calls.by_name.select("launch_name", "launches").iter_rows())
    assert by_call == {"cudaLaunchKernel": 2, "cudaMemsetAsync": 1}
    by_operator = dict(result.calls.by_operator.select("operator", "launches").iter_rows())
    assert by_operator == {"aten::addmm": 1, "aten::linear": 1, None: 1}
    assert list(by_operator) == ["aten::addmm", "aten::linear", None]


def test_only_operators_of_the_launching_thread_count() -> None:
    result = launches(
        trace(
            [
                op("aten::mm", 0, 100 * US, tid=2),
                op("aten::add", 0, 100 * US, tid=1),
                *(call(1, 20 * US, tid=1), kernel(1, 30 * US, US)),
                *(call(2, 40 * US, tid=2), kernel(2, 50 * US, US)),
                *(call(3, 60 * US, tid=3), kernel(3, 70 * US, US)),
                *(call(4, 80 * US, tid=2, pid=9), kernel(4, 90 * US, US)),
            ]
        )
    )
    by_operator = dict(result.calls.by_operator.select("operator", "launches").iter_rows())
    assert by_operator == {"aten::add": 1, "aten::mm": 1, None: 2}


def test_delays_are_counted_by_class_and_add_up() -> None:
    result = launches(
        trace(
            [
                *(call(1, 0), kernel(1, 5 * US, 900 * US)),
                *(call(2, 10 * US), kernel(2, 906 * US, 10 * US)),
                *(call(3, 2 * MS), kernel(3, 2 * MS + 5 * US + 1_999, 10 * US)),
            ]
        )
    )
    values = {(d, w): n for d, w, n in result.calls.delays.iter_rows() if n}
    assert values == {("0", False): 1, ("1 us", False): 1, ("500 us", True): 1}
    assert result.calls.delays["delay"].unique(maintain_order=True).to_list()[:4] == [
        "0", "> 0", "1 us", "2 us",
    ]  # fmt: skip


# --- what belongs together -------------------------------------------------------------------


def test_unmatched_work_and_calls_are_noted() -> None:
    result = launches(
        trace(
            [
                *(call(1, 0), kernel(1, 10 * US, US)),
                kernel(77, 20 * US, US),
                kernel(None, 30 * US, US),
                call(5, 40 * US),
                call(6, 50 * US, name="cudaLaunchHostFunc"),
                call(8, 60 * US, name="cudaEventRecord"),
            ]
        )
    )
    assert (result.unmatched.unlaunched, result.unmatched.without_work, result.calls.launches) == (
        2,
        1,
        1,
    )
    check_wording(*result.notes)


def test_missing_launch_calls_error_has_a_recording_hint() -> None:
    with raises_wording(MissingData):
        launches(trace([kernel(1, 0, US), kernel(2, US, US)]))
    with raises_wording(MissingData):
        launches(trace([kernel(None, 0, US), call(1, 0)]))


@pytest.mark.parametrize("events", [[], [op("aten::mm", 0, US)], [call(1, 0)]])
def test_missing_device_work_error_has_a_recording_hint(events: list[dict[str, Any]]) -> None:
    with pytest.raises(MissingData, match=r"ProfilerActivity\.CUDA"):
        launches(trace(events))


def test_empty_input_is_an_error() -> None:
    with pytest.raises(OptionError, match="no input"):
        launches([])


def test_a_single_launch_is_enough() -> None:
    result = launches(trace([call(1, 0), kernel(1, 10 * US, 0)], rank=None))
    one = row(result.devices)
    assert (one["rank"], one["span_ns"], one["busy_frac"], one["waiting_frac"]) == (
        None, 0, None, None,
    )  # fmt: skip
    assert row(result.queue.streams)["max_queue"] == 1
    check_wording(result.verdict)
    assert result.table()


def test_single_launch_is_worded_as_one() -> None:
    alone = trace([call(1, 0), kernel(1, 50 * US, 4 * US)])
    check_wording(launches(alone).verdict)
    behind = [call(1, 0), kernel(1, 10 * US, 4 * US), kernel(None, 14 * US, 36 * US)]
    one = trace([*behind[2:], call(2, 5 * US), kernel(2, 50 * US, US)])
    check_wording(launches(one).verdict)


def test_verdict_names_the_device_of_the_delays() -> None:
    traces = [trace([call(1, 0), kernel(1, 50 * US, 4 * US)], rank=rank) for rank in (0, 1)]
    check_wording(launches(traces).verdict)
    traces = [trace(starved(2, idle=100 * US), rank=rank) for rank in (0, 1)]
    check_wording(launches(traces).verdict)


def test_idle_share_below_one_is_not_printed_as_all() -> None:
    replays = [call(1, 0), kernel(1, 10 * US, 9 * US), call(2, 999 * MS), kernel(2, 1000 * MS, US)]
    text = launches(trace(replays)).verdict
    check_wording(text)


def test_processes_have_separate_ids_and_share_a_device() -> None:
    events = []
    for pid, at in ((1, 0), (2, 50 * US)):
        events += [call(9, at, pid=pid), kernel(9, at + 10 * US, 100 * US, pid=pid)]
        events += [call(10, at + 6 * US, pid=pid), kernel(10, at + 111 * US, US, pid=pid)]
    result = launches(trace(events))
    assert result.queue.streams.select("process", "stream", "launches", "max_queue").rows() == [
        (1, 7, 2, 2),
        (2, 7, 2, 2),
    ]
    # of one process the second kernel waited for the first; the device ran the other's meanwhile
    assert row(result.devices)["max_delay_ns"] == 100 * US
    assert result.idle_ns == US


def test_ranks_and_files_without_a_rank_are_separate() -> None:
    events = [call(1, 0), kernel(1, 10 * US, US)]
    ranks = launches([trace(events, rank=r) for r in (0, 1)])
    assert ranks.devices["on"].to_list() == ["rank 0", "rank 1"]
    files = launches([trace(events, rank=None, path=f"{n}.json") for n in "ab"])
    assert files.devices["launches"].to_list() == [1, 1]
    assert files.devices["on"].to_list() == ["a.json", "b.json"]
    assert files.calls.launches == 2


def test_device_annotations_and_waits_are_not_work() -> None:
    annotation = {"kind": "gpu_user_annotation", "correlation": 3}
    result = launches(
        trace(
            [
                *(call(1, 0), kernel(1, 10 * US, US)),
                device("ProfilerStep#1", 0, MS, **annotation),
                device("Stream Sync", 20 * US, MS, kind="cuda_sync", correlation=1),
            ]
        )
    )
    assert (result.span_ns, result.calls.launches) == (US, 1)


# --- queues ----------------------------------------------------------------------------------


def test_queue_length_is_launched_minus_started() -> None:
    result = launches(
        trace(
            [
                *(call(1, 0), kernel(1, 10 * US, 100 * US)),
                *(call(2, 20 * US), kernel(2, 110 * US, 30 * US)),
                *(call(3, 30 * US), kernel(3, 140 * US, 60 * US)),
            ]
        )
    )
    # waiting: 1 for 10 us, 0 for 10, 1 for 10, 2 for 80, 1 for 30, 0 for 60
    one = row(result.queue.streams)
    assert (one["launches"], one["max_queue"], one["queue_ns"]) == (3, 2, 200 * US)
    assert one["mean_queue"] == pytest.approx((10 + 10 + 160 + 30) / 200)
    assert one["empty_frac"] == pytest.approx(70 / 200)
    assert one["full_frac"] == 0


def test_full_queue_is_reported() -> None:
    launched = [call(i, i * US, US) for i in range(1_000)]
    launched += [call(1_000 + i, (1_000 + 20 * i) * US, 20 * US) for i in range(100)]
    ran = [kernel(i, 4 * MS + i * US, US) for i in range(1_100)]
    one = row(launches(trace(launched + ran)).queue.streams)
    assert one["max_queue"] == 1_100
    assert one["full_frac"] == pytest.approx(100 * 20 / 5_100)  # the calls that block


def test_clock_differences_do_not_make_queues_negative() -> None:
    result = launches(trace([call(1, 20 * US), kernel(1, 10 * US, 50 * US)]))
    assert (row(result.devices)["max_delay_ns"], row(result.queue.streams)["max_queue"]) == (0, 0)
    assert result.unmatched.clock_odd == 1
    assert any("clocks" in note for note in result.notes)


def test_chart_points_keep_first_extremes() -> None:
    # three waves: 1, 2 ... 900, 899 ... 1 launches wait
    wave = [*range(1, 901), *range(899, 0, -1)]
    length = [*wave, *wave, *wave, 0]
    both = [
        pl.DataFrame({"queue": at, "device": 0, "process": 7, "stream": at, "length": length})
        .with_columns(ts=pl.int_range(pl.len()) * 10 + start)
        for at, start in enumerate((0, 123_456))
    ]  # fmt: skip
    result = drawn(pl.concat(both))
    for changes, points in zip(both, result.partition_by("stream"), strict=True):
        assert 800 < points.height < 1300  # of 10,796
        start, after = changes["ts"][0], points.gather_every(2, 1)
        top = after.filter(pl.col("length") == 900)["ts"].to_list()
        assert top == [start + at * 10 for at in (899, 899 + 1799, 899 + 2 * 1799)]
        expected = {
            start + 10 * at: (before, now)
            for at, (before, now) in enumerate(itertools.pairwise([0, *length]))
        }
        for ts, pair in points.group_by("ts", maintain_order=True):
            assert tuple(pair["length"]) == expected[ts[0]]
        assert points["length"].to_list()[-1] == 0


# --- stretches -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "bound"), [("cuModuleLoadData", False), ("cudaEventRecord", True)]
)
def test_gaps_filled_by_other_calls_are_no_launch_gaps(name: str, bound: bool) -> None:
    """The host loads code, allocates or queries in each gap: fewer launches would not help."""
    events = []
    for i in range(30):
        events += [
            call(i, i * 100 * US - 7 * US),
            kernel(i, i * 100 * US, 10 * US),
            host("cuda_runtime", name, i * 100 * US + 12 * US, (75 if not bound else 5) * US),
        ]
    result = launches(trace(events))
    assert (result.bound.waiting_ns > 0) == bound
    assert ("Not launch-bound" in result.verdict) != bound


def test_warm_up_is_not_in_the_share_of_waits() -> None:
    """The first step takes long for other reasons; the share is that of the other steps."""
    events = [step(0, 0, 60 * MS), call(99, 0), kernel(99, 55 * MS, MS)]
    for i in range(1, 6):
        at = 60 * MS + i * MS
        events += [step(i, at, MS), *starved(40, at + 10 * US, first=100 * i, idle=16 * US)]
    result = launches(trace(events))
    assert result.steps["warm_up"].sum() == 1
    (cost,) = result.costs.to_dicts()
    assert (cost["n"], result.of) == (5, "step time")
    assert 0.5 < cost["waiting_frac"] < 0.9


def test_repeated_launch_gaps_form_a_stretch() -> None:
    inside = [op("aten::add_", i * 12 * US - 7 * US, 7 * US) for i in range(20)]
    result = launches(
        trace(
            [
                step(3, -10 * US, 700 * US),
                host("user_annotation", "Optimizer.step#SGD.step", -10 * US, 300 * US),
                *inside,
                *starved(20),
                # then the host launches ahead
                *(call(100 + i, (300 + i) * US, US) for i in range(30)),
                *(kernel(100 + i, 400 * US + i * 11 * US, 10 * US) for i in range(30)),
            ]
        )
    )
    (one,) = result.bound.stretches.to_dicts()
    # 19 gaps of 8 us and 20 kernels; the start of the last kernel ends the stretch
    assert (one["gaps"], one["at_ns"], one["length_ns"]) == (19, 4 * US, 19 * 12 * US - 4 * US)
    assert (one["waiting_ns"], one["busy_ns"], one["pieces"]) == (19 * 8 * US, 18 * 4 * US, 18)
    assert one["busy_frac"] == pytest.approx(72 / 224)
    assert (one["step"], one["annotation"], one["operator"]) == (
        "ProfilerStep#3", "Optimizer.step#SGD.step", "aten::add_",
    )  # fmt: skip
    assert (result.bound.stretch_ns, result.bound.waiting_ns) == (224 * US, 152 * US)
    assert row(result.bound.places)["place"] == "Optimizer.step#SGD.step"
    assert row(result.bound.places)["waiting_ns"] == result.bound.waiting_ns
    assert result.calls.by_operator["waiting_ns"].sum() == result.bound.waiting_ns
    assert row(result.steps)["waiting_ns"] == result.bound.waiting_ns
    assert "Launch-bound" in result.verdict
    assert "Optimizer.step#SGD.step" in result.verdict
    assert "CUDA graphs" in result.verdict


def test_ranges_recorded_as_operators_are_annotations() -> None:
    marked = [
        op("ProfilerStep#1", -MS, 3 * MS),
        op("Optimizer.zero_grad#SGD.zero_grad", -10 * US, MS),
        op("aten::zero_", -10 * US, MS),
    ]
    (one,) = launches(trace([*marked, *starved(15)])).bound.stretches.to_dicts()
    assert one["annotation"] == "Optimizer.zero_grad#SGD.zero_grad"
    assert (one["operator"], one["step"]) == ("aten::zero_", "ProfilerStep#1")


@pytest.mark.parametrize("why", ["few", "busy", "ahead", "late", "long", "unknown"])
def test_few_or_long_gaps_form_no_stretch(why: str) -> None:
    if why == "few":
        events = starved(10)  # 9 gaps
    elif why == "busy":
        events = [e | {"dur": 100 * US} if e["kind"] == "kernel" else e for e in starved(20)]
        events = [e | {"ts": e["ts"] // (12 * US) * 108 * US} for e in events]
        events = [e | {"ts": e["ts"] + 102 * US} if e["kind"] != "kernel" else e for e in events]
    elif (
        why == "ahead"
    ):  # all launched before the first starts: the gaps are not caused by the host
        events = [e | {"ts": -MS} if e["kind"] != "kernel" else e for e in starved(20)]
    elif why == "late":  # they start long after their calls: another cause
        events = [e | {"ts": e["ts"] * 40} if e["kind"] == "kernel" else e for e in starved(20)]
        events = [
            e | {"ts": e["ts"] * 40 + 6 * 40 * US - 26 * US} if e["kind"] != "kernel" else e
            for e in events
        ]
    elif why == "long":
        events = starved(20, idle=1_001 * US)
    else:
        known = [call(1, 9 * MS), kernel(1, 9 * MS + 10 * US, US)]
        events = [*(e for e in starved(20, first=2) if e["kind"] == "kernel"), *known]
    result = launches(trace(events))
    assert result.bound.stretches.is_empty()
    check_wording(result.verdict)


def test_long_gaps_and_kernels_separate_stretches() -> None:
    first = starved(12)
    second = starved(12, at=1_200 * US, first=50)
    assert launches(trace([*first, *second])).bound.stretches.height == 2
    near = starved(12, at=1_100 * US, first=50)
    assert launches(trace([*first, *near])).bound.stretches.height == 1
    long_kernel = [call(99, 150 * US), kernel(99, 160 * US, 1_030 * US)]
    assert launches(trace([*first, *long_kernel, *second])).bound.stretches.height == 2


@pytest.mark.parametrize(
    ("waits", "expected"), [((90, 100), False), ((90, 101), True), ((109, 120), True)]
)
def test_gaps_with_synchronisation_are_marked(waits: tuple[int, int], expected: bool) -> None:
    gap = {"device": 0, "start": 100, "end": 110, "launch": 0, "launch_end": 105}
    waiting = pl.DataFrame({"start": waits[:1], "end": waits[1:]})
    assert launch_gaps(pl.DataFrame([gap]), waiting)["synchronised"].to_list() == [expected]


@pytest.mark.parametrize(
    ("launch_end", "end", "result"),
    [
        (100, 110, 1),  # the call returned when the gap began
        (99, 110, 0),  # it was queued
        (100, 100 + PROMPT_NS, 1),
        (100, 101 + PROMPT_NS, 0),  # the work waited for something else
        (LONG_NS, 100 + LONG_NS, 1),
        (LONG_NS, 101 + LONG_NS, 0),
    ],
)
def test_launch_gaps_end_promptly_after_the_call(launch_end: int, end: int, result: int) -> None:
    gap = {"device": 0, "start": 100, "end": end, "launch": 0, "launch_end": launch_end}
    never = pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    assert launch_gaps(pl.DataFrame([gap]), never).height == result


def test_gaps_are_separate_for_each_device() -> None:
    result = launches(trace([*starved(20), *(e | {"device": 1} for e in _kernels(50, 240 * US))]))
    assert result.devices.select("device", "stretches").rows() == [(0, 1), (1, 0)]
    assert result.span_ns == (19 * 12 + 4 + 240) * US


def _kernels(number: int, dur: int) -> list[dict[str, Any]]:
    return [kernel(None, number, dur)]


def test_work_of_another_stream_fills_a_gap() -> None:
    other = [call(900, -100 * US), kernel(900, 0, 400 * US, stream=20)]
    result = launches(trace([*starved(20), *other]))
    assert (result.idle_ns, result.bound.stretches.height) == (0, 0)


# --- short kernels ---------------------------------------------------------------------------


def test_short_kernels_are_kernels_of_less_than_10_us() -> None:
    result = launches(
        trace(
            [
                *(call(1, 0), kernel(1, 10 * US, 10 * US - 1, ADD)),
                *(call(2, 100 * US), kernel(2, 110 * US, 10 * US, ADD)),
                *(call(3, 200 * US), kernel(3, 210 * US, US, FILL)),
                *(call(4, 300 * US), copy(4, 310 * US, US, "Memcpy DtoD (Device -> Device)")),
            ]
        )
    )
    assert (result.short.kernels, result.short.short_kernels) == (3, 2)
    assert result.short.by_name.select(
        "name", "short_kernels", "short_ns", "short_frac"
    ).rows() == [
        (ADD, 1, 10 * US - 1, 0.5),
        (FILL, 1, US, 1.0),
    ]
    assert row(result.short.by_name)["share_frac"] == pytest.approx(1 / 3)


# --- synchronising calls ---------------------------------------------------------------------


def test_a_synchronising_call_and_what_it_costs() -> None:
    result = launches(
        trace(
            [
                host("user_annotation", "train_step", 0, MS),
                op("aten::item", 18 * US, 52 * US),
                op("aten::_local_scalar_dense", 19 * US, 50 * US),
                host("python_function", "train.py(12): step", 0, MS),
                host("python_function", "torch/_tensor.py(7): item", 17 * US, 60 * US),
                host("python_function", "<built-in method item of Tensor>", 18 * US, 58 * US),
                *(call(1, 0), kernel(1, 10 * US, 50 * US)),
                host("cuda_runtime", "cudaStreamSynchronize", 20 * US, 45 * US),
                *(call(2, 90 * US), kernel(2, 100 * US, 50 * US)),
            ]
        )
    )
    (one,) = result.synchronising.by_place.to_dicts()
    assert (one["call"], one["n"]) == ("cudaStreamSynchronize", 1)
    # the device was busy to 60 us, the call ended at 65, the next kernel started at 100
    assert (one["host_ns"], one["idle_ns"], one["idle_after_ns"]) == (45 * US, 5 * US, 35 * US)
    assert (one["operator"], one["annotation"]) == ("aten::item", "train_step")
    assert one["python"] == "train.py(12): step"
    check_wording(result.verdict)


def test_innermost_operator_is_added_unless_outer_is_aten() -> None:
    result = launches(
        trace(
            [
                op("fbgemm::permute", 0, 60 * US),
                op("aten::item", 10 * US, 40 * US),
                *(call(1, 0), kernel(1, 5 * US, 20 * US)),
                host("cuda_runtime", "cudaStreamSynchronize", 20 * US, 10 * US),
                *(call(2, 90 * US), kernel(2, 100 * US, 50 * US)),
            ]
        )
    )
    assert row(result.synchronising.by_place)["operator"] == "fbgemm::permute > aten::item"


PAGEABLE = "Memcpy DtoH (Device -> Pageable)"
UPLOAD = "Memcpy HtoD (Pageable -> Device)"


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "what", "lasts", "blocks"),
    [
        ("cudaMemcpy", UPLOAD, 1, True),  # synchronous by name
        ("cuMemcpyDtoH_v2", PAGEABLE, 1, True),
        ("cudaMemcpyAsync", PAGEABLE, 40, True),
        ("cudaMemcpyAsync", UPLOAD, 15, True),  # returned while the copy ran
        ("cudaMemcpyAsync", UPLOAD, 9, False),  # returned before it began
        ("cudaMemcpyAsync", "Memcpy HtoD (Pinned -> Device)", 15, False),
        ("cudaMemcpyAsync", "Memcpy DtoD (Device -> Device)", 40, False),
        ("hipMemcpyWithStream", "Memcpy HtoD (Host -> Device)", 40, True),
        ("hipMemcpyDtoHAsync", "CopyDeviceToHost", 40, True),
        ("cudaMemcpyPeerAsync", "Memcpy PtoP (Device -> Device)", 40, False),
    ],
)
def test_blocking_copies_are_synchronising_calls(
    name: str, what: str, lasts: int, blocks: bool
) -> None:
    result = launches(
        trace(
            [
                *(call(1, 0, lasts * US, name), copy(1, 10 * US, 10 * US, what)),
                *(call(2, 90 * US), kernel(2, 100 * US, 50 * US)),
            ]
        )
    )
    assert result.synchronising.by_place["call"].to_list() == [name] * blocks


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name", ["cudaDeviceSynchronize", "hipStreamSynchronize", "cudaEventSynchronize",
             "cuCtxSynchronize", "cuStreamSynchronize_ptsz"],
)  # fmt: skip
def test_calls_that_synchronise_by_name(name: str) -> None:
    events = [call(1, 0), kernel(1, 10 * US, 20 * US), call(2, 90 * US), kernel(2, 95 * US, US)]
    waits = [host("cuda_runtime", name, 40 * US, 10 * US)]
    assert launches(trace([*events, *waits])).synchronising.by_place["n"].to_list() == [1]
    others = [host("cuda_runtime", n, 40 * US, US) for n in ("cudaEventQuery", "cudaEventRecord")]
    assert launches(trace([*events, *others])).synchronising.by_place.is_empty()


def test_waiting_after_the_last_launch_is_not_counted() -> None:
    result = launches(
        trace(
            [
                *(call(1, 0), kernel(1, 10 * US, 50 * US)),
                host("cuda_runtime", "cudaDeviceSynchronize", 20 * US, 45 * US),
            ]
        )
    )
    assert (result.synchronising.synchronising_ns, result.unmatched.after_last) == (0, 1)
    assert result.synchronising.by_place.is_empty()


def test_idleness_after_one_call_ends_where_the_next_one_starts() -> None:
    waits = [host("cuda_runtime", "cudaStreamSynchronize", ts * US, 5 * US) for ts in (40, 60)]
    result = launches(
        trace([call(1, 0), kernel(1, 10 * US, 30 * US), *waits, call(2, 90 * US),
               kernel(2, 100 * US, US)])
    )  # fmt: skip
    # idle from 40 to 100: two calls of 5 us, 15 us after the first and 35 after the second
    assert result.synchronising.synchronising_idle_ns == 10 * US
    assert result.synchronising.synchronising_after_ns == 50 * US
    assert result.idle_ns == 60 * US


def test_repeated_synchronisation_is_reported() -> None:
    waits = [
        host("cuda_runtime", "cudaStreamSynchronize", (i * 12 + 1) * US, 4 * US, tid=1)
        for i in range(19)
    ]
    result = launches(trace([*starved(20), *waits]))
    (one,) = result.bound.stretches.to_dicts()
    assert one["synchronised_frac"] == 1
    assert result.bound.synchronised_ns == result.bound.waiting_ns
    check_wording(result.verdict)


# --- steps -----------------------------------------------------------------------------------


def test_user_defined_steps_are_used() -> None:
    step_mark = host("user_annotation", "my step 1", -MS, 3 * MS)
    result = launches(trace([step_mark, *starved(15)]), step_name="^my step")
    assert row(result.steps)["step"] == "my step 1"
    assert launches(trace([step_mark, *starved(15)])).steps.is_empty()
    with raises_wording(OptionError):
        launches(trace([step_mark, *starved(15)]), step_name="(")


# --- generated traces ------------------------------------------------------------------------


@st.composite
def traces(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Launches with their work, work without a launch, and waiting, on few streams and threads."""
    time, short = st.integers(0, 60), st.integers(0, 9)
    events = []
    for number in range(draw(st.integers(1, 12))):
        thread = {"tid": draw(st.integers(1, 2))}
        began = draw(time)
        called = draw(short)
        lane = {"stream": draw(st.integers(7, 8)), "device": draw(st.integers(0, 1))}
        pieces = draw(st.sampled_from([1, 1, 1, 0, 2]))
        events.append(call(number, began, called, **thread))
        after = began + draw(st.integers(-2, 20))
        for piece in range(pieces):
            events.append(kernel(number, after + 10 * piece, draw(short), **lane))
    events += [kernel(None, draw(time), draw(short)) for _ in range(draw(st.integers(0, 2)))]
    events += [
        host("cuda_runtime", "cudaStreamSynchronize", draw(time), draw(short))
        for _ in range(draw(st.integers(0, 3)))
    ]
    return events


def prepared(events: list[dict[str, Any]]) -> tuple[Trace, pl.DataFrame, pl.DataFrame] | None:
    recorded = trace(events)
    work = with_launches(recorded, device_work(recorded))
    if not work.height or work["launch"].null_count() == work.height:
        return None
    return recorded, work, launch_calls(work)


modest = settings(max_examples=40, deadline=None)


@modest
@given(traces())
def test_queue_lengths_agree_with_a_plain_count(events: list[dict[str, Any]]) -> None:
    if (result := prepared(events)) is None:
        return
    _, work, calls = result
    changes = queue_changes(calls, work)
    key = ("device", "stream")
    for queue in changes.partition_by(key):
        lane = dict(zip(key, queue.select(key).row(0), strict=True))
        items = [
            (min(c["launch_start"], c["start"]), c["start"])
            for c in calls.to_dicts()
            if all(c[k] == v for k, v in lane.items())
        ]
        for ts, length in queue.select("ts", "length").iter_rows():
            assert length == sum(low <= ts < high for low, high in items)
        assert queue["lasted"].min() >= 0
        waited = (queue["length"] * queue["lasted"]).sum()
        assert waited == sum(high - low for low, high in items)
        assert queue["length"].to_list()[-1] == 0
        points = drawn(queue)
        assert points["length"].max() == queue["length"].max()
        assert points["ts"].is_sorted()


@modest
@given(traces())
def test_delays_refer_to_the_first_event(events: list[dict[str, Any]]) -> None:
    if (result := prepared(events)) is None:
        return
    recorded, _, calls = result
    rows = recorded.events.to_dicts()
    for one in calls.to_dicts():
        launch = rows[one["launch"]]
        pieces = [
            r for r in rows if r["kind"] == "kernel" and r["correlation"] == launch["correlation"]
        ]
        first = min(r["ts"] for r in pieces)
        assert one["delay_ns"] == max(first - launch["ts"] - launch["dur"], 0)
        assert (one["pieces"], one["call_ns"]) == (len(pieces), launch["dur"])


@modest
@given(traces())
def test_waiting_is_a_part_of_idleness(events: list[dict[str, Any]]) -> None:
    if (result := prepared(events)) is None:
        return
    _, work, _ = result
    nothing = pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64})
    idle = device_gaps(work)
    gaps = launch_gaps(idle, nothing)
    busy = {
        (d, t) for d, s, e in work.select("device", "start", "end").iter_rows() for t in range(s, e)
    }
    for number, low, high in gaps.select("device", "start", "end").iter_rows():
        assert low < high
        assert not busy & {(number, t) for t in range(low, high)}
    assert stretches(gaps, idle, work)["waiting_ns"].sum() <= (gaps["end"] - gaps["start"]).sum()


@pytest.mark.matrix
@settings(max_examples=8, deadline=None)
@given(traces(), st.integers(-1000, 1000))
def test_results_do_not_depend_on_the_clock(events: list[dict[str, Any]], shift: int) -> None:
    if prepared(events) is None:
        return
    first = launches(trace(events))
    moved = launches(trace([e | {"ts": e["ts"] + shift} for e in events]))
    assert _answer(first) == _answer(moved)


def _answer(result: Launches) -> dict[str, Any]:
    return result.to_dict()


@modest
@given(traces())
def test_synchronising_costs_agree_with_a_plain_count(events: list[dict[str, Any]]) -> None:
    if (result := prepared(events)) is None:
        return
    recorded, work, _ = result
    waits = recorded.events.filter(pl.col("name") == "cudaStreamSynchronize").select(
        start="ts", end=pl.col("ts") + pl.col("dur")
    )
    busy = {t for s, e in work.select("start", "end").iter_rows() for t in range(s, e)}
    span = range(work["start"].min(), work["end"].max())
    idle = {t for t in span if t not in busy}
    after: set[int] = set()
    for one in costs(waits, work).to_dicts():
        cells = set(range(one["start"], one["end"]))
        assert one["idle_ns"] == len(cells & idle)
        counted = set(range(one["end"], one["end"] + one["idle_after_ns"]))
        assert counted <= idle
        assert not counted & after
        after |= counted


def test_files_and_traces_give_the_same_result() -> None:
    path = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    assert str(traceanalyzer.launches(path)) == str(launches(traceanalyzer.read(path)))


# --- blocked launch calls ------------------------------------------------------------------------


def blocked_launches(name: str, kind: str = "overhead", **more: Any) -> Launches:
    """Return five launches; the second spends 900 of its 1,000 us in this overhead."""
    starts = [0, 100 * US, 2_000 * US, 2_100 * US, 2_200 * US]
    rows = [call(n, at, (1_000 if n == 1 else 5) * US) for n, at in enumerate(starts)]
    rows += [kernel(n, at + 1_010 * US, 50 * US) for n, at in enumerate(starts)]
    rows.append(host(kind, name, 150 * US, 900 * US, **more))
    return launches(trace(rows))


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("Lazy Function Loading", {"pid": -1, "tid": 0}),
        ("Runtime Triggered Module Loading", {}),
        ("cuModuleLoadData", {"kind": "cuda_driver"}),
        ("cuLibraryLoadData", {"kind": "cuda_driver"}),
    ],
)
def test_module_loading_calls_are_reported(name: str, more: dict[str, Any]) -> None:
    result = blocked_launches(name, **more)
    assert (result.calls.slow_calls, result.calls.loading_calls, result.calls.loading_ns) == (
        1,
        1,
        900 * US,
    )
    (row,) = result.calls.by_name.to_dicts()
    assert (row["loading_calls"], row["loading_ns"]) == (1, 900 * US)
    check_wording(result.verdict)


def test_other_slow_calls_are_not_module_loading() -> None:
    for result in (
        blocked_launches("Instrumentation"),
        blocked_launches("cuModuleLoadData", "cuda_driver", tid=2),
    ):
        assert (result.calls.slow_calls, result.calls.loading_calls, result.calls.loading_ns) == (
            1,
            0,
            0,
        )


def test_full_command_buffer_is_a_full_queue() -> None:
    (stream,) = blocked_launches("Command Buffer Full").queue.streams.to_dicts()
    assert stream["full_frac"] == pytest.approx(1_000 / 3_260)
    (other,) = blocked_launches("Buffer Flush").queue.streams.to_dicts()
    assert other["full_frac"] == 0


@pytest.mark.parametrize(
    ("name", "graph", "pytorch"),
    [
        ("cudaLaunchKernel", "cudaGraphLaunch", True),
        ("hipLaunchKernel", "hipGraphLaunch", True),
        ("hipLaunchKernel", "", True),
        ("cudaLaunchKernel", "", False),
    ],
)
def test_advice_fits_the_program(name: str, graph: str, pytorch: bool) -> None:
    rows = [row | {"name": name} if row["kind"] == "cuda_runtime" else row for row in starved(40)]
    if graph:
        rows += [call(100, 900 * US, name=graph), kernel(100, 910 * US, 4 * US)]
    recorded = trace([*rows, step(1, -10 * US, MS)])
    if not pytorch:
        recorded = trace(rows)
        recorded = replace(recorded, sources=(replace(recorded.meta, format="nsys-sqlite"),))
    result = launches(recorded)
    check_wording(result.verdict)
    assert ("capture the other 40 launches per step" in result.verdict) == bool(graph)
    assert ("CUDA" in result.verdict) == (name.startswith("cuda") and not graph)
    assert ("torch" in result.verdict) == (pytorch and not graph)


@pytest.mark.parametrize("in_steps", [True, False])
def test_without_other_launches_none_are_to_be_captured(in_steps: bool) -> None:
    """All launches are of graphs: neither "the other 0 launches" nor graphs as advice."""
    rows = [row | {"name": "cudaGraphLaunch"} if "Launch" in row["name"] else row
            for row in starved(40)]  # fmt: skip
    result = launches(trace([*rows, *[step(1, -10 * US, MS)] * in_steps]))
    assert result.calls.launches == 40
    assert result.more_graphs
    assert "other" not in result.more_graphs.partition("(")[0]
    assert "capture" not in result.verdict


def test_synchronising_calls_of_other_programs_are_named() -> None:
    rows = []
    for number in range(30):
        at = number * 40 * US
        rows += [call(number, at), kernel(number, at + 6 * US, 8 * US)]
        rows.append(host("cuda_runtime", "cudaDeviceSynchronize", at + 6 * US, 10 * US))
    recorded = trace(rows)
    recorded = replace(recorded, sources=(replace(recorded.meta, format="nsys-sqlite"),))
    check_wording(launches(recorded).verdict)
    assert ".item()" not in launches(recorded).verdict


@pytest.mark.matrix
def test_first_launches_that_load_code_are_known_without_overhead_records() -> None:
    """Calls of 5 us, but 4 ms at the first launch of each kernel; one waits for a full queue."""
    rows: list[dict[str, Any]] = []
    at = 0
    for number in range(20):
        took = 4 * MS if number < 4 else 5 * US
        rows.append(host("cuda_runtime", "cudaLaunchKernel", at, took, correlation=number))
        rows.append(device(f"k{number % 4}", at + took, 50 * US, correlation=number))
        at += took + 60 * US
    recording = trace(rows)
    assert launches(recording).calls.loading_ns == 4 * (4 * MS - 5 * US)
    assert traceanalyzer.gpu_idle(recording).idle_by_cause["module_loading"] == 3 * 4 * MS
    (finding,) = (
        one for one in traceanalyzer.diagnose(recording).findings if one.id == "module-loading"
    )
    assert finding.per.endswith("once")
    busy = device("before", -MS, 30 * MS, correlation=99)
    assert launches(trace([*rows, busy])).calls.loading_ns == 0
