"""Steps on the device: the work that each step launched, the same for every command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, US, device, host, step, trace
from conftest import SHARED

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_steps import device_steps, unrecorded_until
from traceanalyzer.trace import Trace

Event = dict[str, Any]
COPY = "Memcpy DtoH (Device -> Pinned)"


def work(number: int, call: int, start: int, end: int, **more: Any) -> list[Event]:
    """A kernel and its launch call of 1 us, on thread ``tid``; times in us."""
    tid, pid = more.pop("tid", 1), more.pop("pid", 1)
    name = more.pop("name", GEMM)
    return [
        device(name, start * US, (end - start) * US, correlation=number, **more),
        host(
            "cuda_runtime", "cudaLaunchKernel", call * US, US, correlation=number, tid=tid, pid=pid
        ),
    ]


def spans(recording: Trace) -> list[tuple[int, int]]:
    """Start and end of the steps on the device, in us."""
    return device_steps(recording).select(pl.col("start", "end") // US).rows()  # type: ignore[return-value]


#: Three marks of 100 us without a gap; the device runs each step for 400 us.
AHEAD = [
    *(step(n, n * 100 * US, 100 * US) for n in range(3)),
    *work(1, 10, 20, 410), *work(2, 110, 410, 800), *work(3, 210, 810, 1200),
]  # fmt: skip


def test_a_step_is_the_span_of_the_work_that_it_launched() -> None:
    assert spans(trace(AHEAD)) == [(0, 410), (410, 800), (800, 1200)]


def test_all_commands_use_the_same_steps() -> None:
    recording = trace(AHEAD)
    lengths = [410 * US, 390 * US, 400 * US]
    assert ta.steps(recording).steps.sort("number")["duration_ns"].to_list() == lengths
    idle = ta.gpu_idle(recording).steps
    assert (idle["end"] - idle["start"]).to_list() == lengths
    assert ta.overlap(recording, by="step").steps["span_ns"].to_list() == lengths
    assert ta.diagnose(recording).about.endswith("3 steps, median step 400 us")


@pytest.mark.parametrize(("lost", "known"), [(1, 5), (2, 3)])
def test_steps_without_their_last_kernels_do_not_count(lost: int, known: int) -> None:
    """The program failed in step 3: kernels of that step, and all later ones, are missing."""
    events = [step(n, n * 1000 * US, 1000 * US) for n in range(5)]
    for number in range(30 + 10 * (2 - lost)):
        at = number * 100
        events += work(number, at, at + 10, at + 90)
    for at in range(3950 if lost == 1 else 3000, 4000 if lost == 1 else 5000, 100):
        events.append(host("cuda_runtime", "cudaLaunchKernel", at * US, US, correlation=900 + at))
    assert len(spans(trace(events))) == known


def test_by_window_measures_marks() -> None:
    result = ta.steps(trace(AHEAD), by="window")
    assert result.steps["duration_ns"].to_list() == [100 * US] * 3
    assert result.steps["compute_ns"].to_list() == [80 * US, 100 * US, 100 * US]


def test_synchronised_steps_are_as_long_as_their_marks() -> None:
    marks = [step(n, n * 500 * US, 500 * US) for n in range(2)]
    recording = trace([*marks, *work(1, 10, 20, 410), *work(2, 510, 520, 900)])
    assert spans(recording) == [(0, 500), (500, 1000)]


def test_work_of_other_threads_counts_and_of_other_processes_does_not() -> None:
    of_thread = work(4, 220, 1200, 1300, tid=9)
    assert spans(trace([*AHEAD, *of_thread]))[2] == (800, 1300)
    assert spans(trace([*AHEAD, *work(4, 220, 1200, 1300, pid=9)]))[2] == (800, 1200)


def test_kernels_of_a_replayed_graph_belong_to_its_launch() -> None:
    replay = host("cuda_runtime", "cudaGraphLaunch", 10 * US, US, correlation=7)
    nodes = [device(GEMM, at * US, 90 * US, correlation=7) for at in range(20, 820, 100)]
    recording = trace([step(0, 0, 100 * US), step(1, 100 * US, 100 * US), replay, *nodes])
    assert spans(recording) == [(0, 810), (810, 810)]


def test_work_between_marks_belongs_to_no_step_and_is_no_time_between_steps() -> None:
    events = []
    for n in range(4):
        at = 1000 * n
        events += [step(n, at * US, 100 * US), *work(10 * n, at + 10, at + 20, at + 700)]
        events += work(10 * n + 1, at + 200, at + 700, at + 950)  # sampling
    recording = trace(events)
    assert spans(recording) == [(1000 * n, 1000 * n + 700) for n in range(4)]
    result = ta.steps(recording)
    assert result.ranks["between_ns"].to_list() == [3 * 50 * US]  # 250 us of 300 are busy
    late = trace(event for n in range(1) for event in [*events, *work(99, 3050, 3950, 4200)])
    assert spans(late)[-1] == (3000, 4200)


def test_work_left_on_another_stream_ends_where_the_next_step_starts() -> None:
    """An asynchronous copy of a step does not take the time of the steps after it."""
    copy = work(9, 20, 410, 1150, name=COPY, kind="gpu_memcpy", stream=8)
    assert spans(trace([*AHEAD, *copy])) == [(0, 410), (410, 800), (800, 1200)]
    tail = work(9, 220, 1200, 1400, name=ALL_REDUCE, stream=8)
    assert spans(trace([*AHEAD, *tail]))[-1] == (800, 1400)


def test_all_devices_of_a_rank_have_the_same_steps() -> None:
    second = [*work(4, 30, 50, 420, device=1), *work(5, 130, 420, 790, device=1)]
    assert spans(trace([*AHEAD, *second])) == [(0, 420), (420, 800), (800, 1200)]


def test_without_launch_calls_recorded_ranges_count_else_marks() -> None:
    bare = [event for event in AHEAD if event["kind"] != "cuda_runtime"]
    assert spans(trace(bare)) == [(0, 100), (100, 200), (200, 300)]
    ranges = [
        device(f"ProfilerStep#{n}", start * US, (end - start) * US, kind="gpu_user_annotation")
        for n, (start, end) in enumerate([(20, 410), (410, 800), (810, 1200)])
    ]
    assert spans(trace([*bare, *ranges])) == [(0, 410), (410, 800), (800, 1200)]
    # XLA names the ranges by the number of the step only
    marks = [{**event, "name": event["name"].replace("ProfilerStep#", "train step ")}
             for event in bare]  # fmt: skip
    numbers = [{**event, "name": event["name"].removeprefix("ProfilerStep#")} for event in ranges]
    assert spans(trace([*marks, *numbers])) == [(0, 410), (410, 800), (800, 1200)]
    assert spans(trace([*marks, *numbers[1:]])) == [(0, 100), (100, 200), (200, 300)]


def test_most_launches_must_be_known() -> None:
    unknown = [device(GEMM, at * US, 10 * US, stream=9) for at in range(30, 130, 10)]
    assert spans(trace([*AHEAD, *unknown])) == [(0, 100), (100, 200), (200, 300)]


def test_the_first_step_starts_after_work_launched_before_the_recording() -> None:
    before = device(GEMM, -50 * US, 200 * US, correlation=0)
    moved = [step(0, 0, 100 * US), *work(1, 10, 150, 400)]
    assert spans(trace([before, *moved])) == [(150, 400)]


def test_time_before_the_first_device_event_is_unknown_if_work_was_queued() -> None:
    recording = trace([step(0, 0, 100 * US), *work(1, 10, 5000, 6000)])
    assert unrecorded_until(recording) == 5000 * US
    assert spans(recording) == [(5000, 6000)]
    for result in (ta.gpu_idle(recording), ta.overlap(recording)):
        assert result.scalars["span_ns"] == 1000 * US
        assert result.scalars["idle_ns"] == 0
    late = trace([step(0, 0, 6000 * US), *work(1, 4000, 5000, 5500)])
    assert unrecorded_until(late) == 5000 * US
    assert spans(late) == [(0, 6000)]  # 4 ms of the host before the launch, which waits 1 ms
    loading = trace([step(0, 0, 6000 * US), *work(1, 4990, 5000, 6000)])
    assert unrecorded_until(loading) is None
    assert ta.gpu_idle(loading).idle_ns == 5000 * US


# --- recordings ------------------------------------------------------------------------------

CAUSES = SHARED / "data/causes/chrome"


def cause(name: str) -> Path:
    path = CAUSES / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "step_us", "busy_frac"),
    [
        ("decode_after_mark", 8854, 0.838),
        ("decode_overlapped", 7469, 0.958),
        ("lag.pt.trace", 984_100, 0.497),
        ("host_marks_run_ahead", 24_777, 0.998),
        ("jax_device_busy", 6012, 0.998),
        ("one_step_healthy", 8087, 0.968),
        ("pause_one_step_ahead", 7892, 0.615),
        ("cropped_step_backlog", 120_000, 0.998),
    ],
)
def test_steps_of_hosts_that_run_ahead(name: str, step_us: int, busy_frac: float) -> None:
    path = cause(name)
    result = ta.steps(path)
    assert result.scalars["median_ns"] / US == pytest.approx(step_us, rel=0.001)
    rows = result.counted
    assert 1 - rows["idle_ns"].sum() / rows["duration_ns"].sum() == pytest.approx(
        busy_frac, abs=0.001
    )
    idle = ta.gpu_idle(path).steps
    assert idle["end"].sum() - idle["start"].sum() == result.steps["duration_ns"].sum()


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "name",
    ["jax_device_busy", "serving_split_healthy", "decode_overlapped", "one_step_healthy",
     "cropped_step_backlog"],
)  # fmt: skip
def test_a_busy_device_is_no_problem(name: str) -> None:
    findings = ta.diagnose(cause(name)).findings
    assert all(one.severity == "info" for one in findings), [one.title for one in findings]


@pytest.mark.matrix
def test_a_pause_is_in_the_step_that_launched_the_next_kernel() -> None:
    path = cause("pause_one_step_ahead")
    (finding,) = ta.diagnose(path).findings
    assert finding.step == "ProfilerStep#9"
    assert "ProfilerStep#8" not in f"{finding.title} {finding.evidence}"
    assert ta.gpu_idle(path).gaps["step"][0] == "ProfilerStep#9"


def layers(count: int, *, head: bool = True, pause: int = 1) -> Trace:
    """A forward pass without marks: an embedding, layers of three kernels, and a head."""
    names = ["embedding", *["qkv", "attention", "projection"] * count, *["logits"] * head]
    events, at = [], 0
    for number, name in enumerate(names):
        at += pause if name == "qkv" else 1
        events += work(number, number, at, at + 50, name=name)
        at += 50
    return trace(events)


@pytest.mark.parametrize("count", [4, 12, 80])
def test_layers_of_one_pass_are_no_steps(count: int) -> None:
    assert device_steps(layers(count)).is_empty()


def test_repeats_after_a_pause_or_without_other_kernels_around_are_steps() -> None:
    assert device_steps(layers(12, pause=40)).height == 12
    assert device_steps(layers(12, head=False)).height >= 11


def test_one_forward_of_layers_has_no_steps() -> None:
    with pytest.raises(ta.MissingData):
        ta.steps(cause("one_forward_of_layers"))
    assert ta.diagnose(cause("one_forward_of_layers")).findings == ()


@pytest.mark.matrix
def test_first_launches_are_named_once_and_in_no_cost_per_step() -> None:
    path = cause("first_step_loading")
    first, *others = ta.diagnose(path).findings
    assert (first.id, first.step) == ("module-loading", "ProfilerStep#0")
    assert first.per == "GPU, once"
    assert sum(one.cost_ns or 0 for one in others) <= 640 * US
    idle = ta.gpu_idle(path)
    assert max(idle.idle_by_cause, key=lambda name: idle.idle_by_cause[name]) == "module_loading"
    assert ta.launches(path).calls.loading_calls == 8


def test_work_outside_steps_counts_in_no_cost() -> None:
    (finding,) = ta.diagnose(cause("work_outside_repeats")).findings
    assert finding.id == "no-tensor-cores"
    assert finding.cost_ns == 27_000 * US
    assert finding.cost_frac == pytest.approx(27 / 27.54, abs=0.001)
