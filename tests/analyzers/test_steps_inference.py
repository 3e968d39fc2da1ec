"""Steps of inference engines: phase and batch size by the engine's annotations."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import polars as pl
import pytest
from comm_traces import GEMM, MS, device, host, step, trace
from diagnosing import measured, measurements

import traceanalyzer as ta
from benchmarks.accuracy.serving import queueing_job, serve
from benchmarks.accuracy.simulator import simulate
from benchmarks.accuracy.write import write_kineto
from traceanalyzer.analyzers.common.device_steps import device_steps, launching_step
from traceanalyzer.analyzers.common.step_marks import described, step_marks
from traceanalyzer.analyzers.steps.compute import steps
from traceanalyzer.analyzers.steps.engine import BETWEEN, IN_STEP
from traceanalyzer.trace import Trace
from traceanalyzer.vocabulary import ENGINE_STEP

DECODE = "execute_context_0(0)_generation_64(64)"
PREFILL = "execute_context_2(14721)_generation_0(0)"
MIXED = "execute_context_1(512)_generation_3(3)"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        (PREFILL, ("prefill", 2, 14721)),
        (f"{DECODE} [12]", ("decode", 64, 64)),
        (MIXED, ("mixed", 4, 515)),
        ("execute_context_0(0)_generation_0(0)", ("idle", 0, 0)),
        ("execute_context_1(888_788544)_generation_0(0)", ("prefill", 1, 888)),
        (
            "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)",
            ("decode", 64, 64),
        ),
        ("execute_new_2_cached_0", ("prefill", 2, None)),
        ("execute_new_1_cached_7 [3]", ("mixed", 8, None)),
        ("execute_new_0_cached_7", ("decode", 7, None)),
        ("step[EXTEND bs=2 toks=14721]", ("prefill", 2, 14721)),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", ("prefill", 2, 12)),
        ("step[DECODE bs=64]", ("decode", 64, 64)),
        ("step[MIXED bs=2 toks=90]", ("mixed", 2, 90)),
        ("step[TARGET_VERIFY bs=4]", ("decode", 4, None)),
        ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", ("draft", 4, None)),
        ("[Executor] _forward_step: 1 ctx reqs, 3 gen reqs", ("mixed", 4, None)),
        ("[Executor] _forward_step 70: 0 ctx reqs, 32 gen reqs", ("decode", 32, None)),
        ("[Executor] _forward_step 6: 2 ctx reqs, 900 ctx tokens, 5 gen reqs", ("mixed", 7, 905)),
        ("prefill[bs=3 tok=900 ctx=[300,300,300]]", ("prefill", 3, 900)),
        ("decode[bs=117/128 tok=117]", ("decode", 117, 117)),
        ("execute_diffusion_1_1024x1024", ("diffusion", 1, None)),
        ("capture_128_decode", None),
        ("ProfilerStep#3", None),
        ("train_step_3", None),
    ],
)
def test_names_of_steps_say_phase_requests_and_tokens(
    name: str, phase: tuple[str, int, int | None] | None
) -> None:
    assert described(name) == phase
    is_mark = re.fullmatch(ENGINE_STEP, re.sub(r" \[\d+\]$", "", name))
    assert (is_mark is not None) == (phase is not None)


def serving(names: dict[str, list[int]], *, busy: int = MS) -> list[dict[str, object]]:
    """Return consecutive steps of these names and lengths in ms, with 1 ms of work each."""
    events, at = [], 0
    for name, lengths in names.items():
        for length in lengths:
            events += [host("user_annotation", name, at, length * MS), device(GEMM, at, busy)]
            at += length * MS
    return events


SERVING = serving({PREFILL: [40], DECODE: [4, 4, 4, 6], MIXED: [10, 10]})


def test_times_by_phase_and_batch() -> None:
    result = steps(trace(SERVING)).phases
    assert result.select("phase", "batch", "steps", "total_ns", "median_ns").rows() == [
        ("prefill", 2, 1, 40 * MS, 40 * MS),
        ("mixed", 4, 2, 20 * MS, 10 * MS),
        ("decode", 64, 4, 18 * MS, 4 * MS),
    ]
    assert result["idle_frac"].to_list() == pytest.approx([39 / 40, 18 / 20, 14 / 18])
    assert sum(result["total_frac"]) == pytest.approx(1)


def test_steps_are_compared_within_their_phase() -> None:
    result = steps(trace(SERVING))
    assert not result.steps["warm_up"].any()
    ratios = dict(result.steps.select("step", "ratio").iter_rows())
    assert ratios[PREFILL] == ratios[f"{MIXED} [1]"] == ratios[f"{DECODE} [1]"] == 1
    assert ratios[f"{DECODE} [4]"] == 1.5
    one = measured("uneven-steps", result)
    assert (one.cost_ns, one.size) == (MS // 2, pytest.approx(2 / 18))  # of 4 decode steps


def test_engine_steps_count_before_few_profiler_steps() -> None:
    around = step(1, 0, 100 * MS)
    assert step_marks(trace([around, *SERVING])).height == 7
    each = [step(n, 100 * n * MS, 90 * MS) for n in range(7)]
    assert step_marks(trace([*each, *SERVING])).height == 7
    assert step_marks(trace([*each, *SERVING]))["step"][0] == "ProfilerStep#0"


def test_training_has_no_phases() -> None:
    result = steps(trace([step(1, 0, MS), step(2, MS, MS)]))
    assert result.phases.is_empty()
    assert "phases" not in {table.name for table in result.view().tables}
    assert "training" not in f"{steps(trace(SERVING))}"


# --- graphs and exposed host time ---------------------------------------------------------------

US = 1_000


def launched(
    name: str, at: int, graphs: int, eager: int, *, ahead: int = 50 * US, length: int = 2 * MS
) -> list[dict[str, object]]:
    """Return a step of 2 ms: its launches in turn, and their kernels from ``ahead`` on."""
    calls = ["cudaGraphLaunch"] * graphs + ["cudaLaunchKernel"] * eager
    calls = [
        call for pair in itertools.zip_longest(calls[:graphs], calls[graphs:]) for call in pair
    ]
    calls = [call for call in calls if call]
    each = (length - ahead) // len(calls)
    events = [host("user_annotation", name, at, length)]
    for number, call in enumerate(calls):
        ids = {"correlation": at + number, "pid": 1}
        events.append(host("cuda_runtime", call, at + number * 100, 90, correlation=at + number))
        # one graph launch with most of the time, or as long as the others
        start = at + ahead + number * each
        events.append(device(GEMM, start, each, **ids))
    return events


def test_steps_are_graphs_pieces_or_eager() -> None:
    shapes = {(1, 1): "graph", (9, 8): "piecewise", (0, 5): "eager", (1, 4): "eager"}
    rows = [
        event
        for number, (graphs, eager) in enumerate(shapes)
        for event in launched(DECODE, 3 * MS * number, graphs, eager)
    ]
    result = steps(trace(rows)).steps
    assert result["mode"].to_list() == [*shapes.values()]
    assert result["tokens"].to_list() == [64] * 4
    # 1 ms between the steps, and 50 us in each until its first main kernel
    assert result["exposed_ns"][0] is None
    assert result["exposed_ns"][1:].to_list() == pytest.approx([MS + 50 * US] * 3, abs=20)


def test_a_wait_for_another_stage_is_no_eager_execution() -> None:
    rows = launched(DECODE, 4 * MS, 1, 0) + launched(DECODE, 0, 1, 2)
    for row in rows:
        if row.get("correlation") == 1 and row["name"] == GEMM:
            row |= {"name": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"}
    modes = steps(trace(rows)).steps["mode"].to_list()
    assert modes == ["graph", "graph"]


def test_time_before_decode_steps_is_idle_time_of_steps() -> None:
    rows = [event for n in range(6) for event in launched(DECODE, 3 * MS * n, 1, 0)]
    idle = ta.gpu_idle(trace(rows))
    assert idle.steps["start"].to_list() == [0, *[2 * MS + 3 * MS * n for n in range(5)]]
    assert idle.idle_ns / idle.span_ns == pytest.approx(5.3 / 17)
    result = ta.diagnose(trace(rows))
    (found,) = [one for one in result.findings if one.id == "exposed-scheduler"]
    assert {"time-between-steps", "host-code"} & {one.id for one in found.effects}
    assert "time-between-steps" not in {one.id for one in result.findings}
    assert found.gain_frac == pytest.approx(1.05 / 3, abs=0.01)  # of the steps after the first
    # a prompt may come later
    rows += launched(PREFILL, 30 * MS, 1, 0)
    assert ta.gpu_idle(trace(rows)).steps["start"].to_list()[-1] == 30 * MS


@pytest.mark.parametrize(("decode", "prefill"), [
    (DECODE, PREFILL), ("step[DECODE bs=8]", "step[EXTEND bs=2 toks=90]"),
    ("[Executor] _forward_step 7: 0 ctx reqs, 9 gen reqs", "prefill[bs=3 tok=9 ctx=[3,3,3]]"),
])  # fmt: skip
def test_sampling_after_the_range_belongs_to_its_step(decode: str, prefill: str) -> None:
    """300 us of a sort are launched 100 us after each range; a prompt comes 20 ms later."""
    starts, sort = [*range(0, 15 * MS, 3 * MS), 35 * MS], "DeviceRadixSortKernel"
    rows = [one for at in starts[:-1] for one in launched(decode, at, 1, 0)]
    rows += launched(prefill, starts[-1], 1, 0)
    for number, at in enumerate(starts):
        ids = {"correlation": number + 1, "pid": 1}
        call = at + 2 * MS + 100 * US
        rows.append(host("cuda_runtime", "cudaLaunchKernel", call, 9 * US, correlation=number + 1))
        rows.append(device(sort, call + 10 * US, 300 * US, **ids))
    of = trace(rows)
    calls = pl.Series([at + 2 * MS + 100 * US for at in starts])
    assert launching_step(device_steps(of), calls, calls).to_list() == [*range(6)]
    (each,) = {*steps(of).steps["duration_ns"][1:-1]}
    assert each == 3 * MS  # from the end of the sampling before to that of its own
    assert device_steps(of)["start"][5] == starts[-1]


def test_a_rank_with_a_slow_host_is_not_the_scheduler_of_all() -> None:
    def of(rank: int, between: int) -> Trace:
        at = [(2 * MS + between) * n for n in range(6)]
        rows = [event for start in at for event in launched(DECODE, start, 1, 0)]
        return trace(rows, rank=rank)

    alike = measured("exposed-scheduler", steps([of(rank, MS) for rank in range(3)]))
    assert alike.total_ns == 3 * 5 * (MS + 50 * US)
    slow = measured("exposed-scheduler", steps([of(0, MS), of(1, MS), of(2, 5 * MS)]))
    assert slow.total_ns == 2 * 5 * (MS + 50 * US)


def test_copies_before_the_graph_are_not_its_start() -> None:
    rows = launched(DECODE, 0, 1, 0) + launched(DECODE, 3 * MS, 1, 0, ahead=500 * US)
    copy = {"correlation": 7, "pid": 1, "kind": "gpu_memcpy"}
    rows += [host("cuda_runtime", "cudaMemcpyAsync", 3 * MS, 90, correlation=7)]
    rows += [device("Memcpy HtoD", 3 * MS + 100 * US, 20 * US, **copy)]
    assert steps(trace(rows)).steps["exposed_ns"].to_list() == [None, MS + 480 * US]


def test_a_draft_before_the_graph_is_launch_overhead() -> None:
    """Its products run 30 us after each other, 10 us each; then the graph of the target runs."""
    rows = []
    for n in range(6):
        at, target = 4 * MS * n, launched(DECODE, 4 * MS * n, 1, 0, ahead=MS, length=3 * MS)
        rows += [target[0], *work_later(target[1:], MS - 100 * US)]
        for k in range(30):
            ids = {"correlation": at + 500 + k}
            rows.append(host("cuda_runtime", "cudaLaunchKernel", at + 30 * US * (k + 1), US, **ids))
            rows.append(device(GEMM, at + 30 * US * (k + 1) + 5 * US, 10 * US, pid=1, **ids))
        rows.append(host("cuda_runtime", "cudaStreamSynchronize", at + MS, 2 * MS))
    result = steps(trace(rows))
    assert result.steps["exposed_ns"][1:].to_list() == [MS + 35 * US] * 5
    idle = ta.gpu_idle(trace(rows)).idle_by_cause
    assert idle["launch_overhead"] >= 6 * 29 * 20 * US
    assert idle["synchronisation"] < MS


def work_later(rows: list[dict[str, object]], by: int) -> list[dict[str, object]]:
    """Return launch calls that are later by a time, and their kernels as they are."""
    return [row | {"ts": row["ts"] + by} if row["kind"] != "kernel" else row for row in rows]  # type: ignore[operator]


def test_exposed_time_is_divided_by_functions_of_the_engine() -> None:
    at = [0, 3 * MS, 6 * MS]
    rows = [event for start in at for event in launched(DECODE, start, 1, 0)]
    frames = {
        "vllm/v1/engine/core.py(288): step": (2 * MS, MS),
        "vllm/v1/core/sched/scheduler.py(176): schedule": (2 * MS + 200 * US, 300 * US),
        "heapq.py(12): heappop": (2 * MS + 300 * US, 100 * US),
        "vllm/v1/engine/core.py(850): _process_input_queue": (2 * MS + 600 * US, 100 * US),
    }
    rows += [host("python_function", name, *when) for name, when in frames.items()]
    result = steps(trace(rows))
    each = dict(result.scheduler.select("function", "total_ns").iter_rows())
    assert each == {
        "vllm/v1/core/sched/scheduler.py(176): schedule": 300 * US,
        "vllm/v1/engine/core.py(288): step": 600 * US,
        IN_STEP: 100 * US,
        BETWEEN: MS,
    }
    # without the wait for requests
    assert result.steps["exposed_ns"].to_list() == [None, 950 * US, MS + 50 * US]
    found = measured("exposed-scheduler", result)
    assert found.total_ns == 2 * MS
    assert found.size == pytest.approx(2 / 8)


@pytest.mark.parametrize("long_ms", [1, 40])
def test_exposed_time_of_few_steps_is_not_an_average(long_ms: int) -> None:
    """An adapter that is loaded in 2 of 12 steps: each is longer than a step."""
    rows, at = launched(DECODE, 0, 1, 0), 0
    for number in range(1, 13):
        at += 2 * MS
        if number in (4, 8):
            load = "vllm/lora/models.py(180): from_local_checkpoint"
            rows += [host("python_function", load, at + 10 * US, long_ms * MS - 20 * US)]
            at += long_ms * MS
        rows += launched(DECODE, at, 1, 0)
    found = measured("exposed-scheduler", steps(trace(rows)))
    is_few = long_ms == 40
    assert ("in 2 of 12 decode steps" in found.title) == is_few
    assert ("--async-scheduling" in found.advice) != is_few
    assert ("max-cpu-loras" in found.advice) == is_few


def test_steps_of_training_have_no_exposed_host_time() -> None:
    result = steps(
        trace(launched("ProfilerStep#1", 0, 1, 0) + launched("ProfilerStep#2", 3 * MS, 1, 0))
    )
    assert result.steps["mode"].to_list() == ["graph", "graph"]
    assert result.steps["exposed_ns"].null_count() == 2
    assert result.scheduler.is_empty()
    assert not measurements("exposed-scheduler", result)


def test_decode_steps_that_fall_back_to_eager() -> None:
    many = DECODE.replace("64", "70")
    rows = [event for n in range(6) for event in launched(DECODE, 2 * n * MS, 1, 0)]
    healthy = steps(trace(rows))
    assert not measurements("eager-decode", healthy)
    rows += launched(many, 12 * MS, 0, 5, length=4 * MS)
    found = measured("eager-decode", steps(trace(rows)))
    assert (found.total_ns, found.size) == (2 * MS, pytest.approx(2 / 16))
    assert "1 of 7" in found.title
    assert found.confidence == "medium"
    all_eager = steps(trace(launched(DECODE, 0, 0, 5) + launched(DECODE, 2 * MS, 0, 5)))
    assert not measurements("eager-decode", all_eager)


@pytest.mark.parametrize("every_us", [2_000, 20_000])
def test_queue_of_a_simulated_engine(every_us: float, tmp_path: Path) -> None:
    job = queueing_job(3, every_us)
    write_kineto(job, simulate(job, serve), tmp_path)
    requests, result = job.options.requests, steps(tmp_path)
    of_engine = result.engine_steps
    assert of_engine["tokens"].sum() == sum(one.prompt + one.tokens - 1 for one in requests)
    prefills = of_engine.filter(pl.col("phase") != "decode").height
    assert prefills == len({one.scheduled_us for one in requests})
    assert set(of_engine["mode"]) == {"graph", "eager"}
    by_phase = result.scheduler.filter(pl.col("function").str.contains("schedule$"))
    assert by_phase["each_ns"].to_list() == pytest.approx([150 * US] * by_phase.height, rel=0.01)
    # waits for requests are between steps, and not exposed
    assert not result.scheduler["function"].str.contains("_process_input_queue").any()
    exposed = of_engine["exposed_ns"].drop_nulls()
    assert exposed.to_list() == pytest.approx([180 * US] * exposed.len(), rel=0.05)
    assert (result.ranks["between_frac"][0] > 0.1) == (every_us > 10_000)


def test_decode_steps_without_host_code_name_no_function(tmp_path: Path) -> None:
    mark = {"ph": "X", "cat": "user_annotation", "name": "execute_context_0(0)_generation_2(2)"}
    events = [mark | {"pid": 1, "tid": 1, "ts": at, "dur": 400} for at in (38_000, 16_000)]
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "pid": 1, "tid": 1}
    kernel = {"ph": "X", "cat": "kernel", "name": "norm", "pid": 0, "tid": 7}
    for number, (called, ran) in enumerate([(10, 42_000), (32_000, 26_000)], 1):
        work = {"correlation": number, "device": 0, "stream": 7}
        events += [
            launch | {"ts": called, "dur": 20, "args": {"correlation": number}},
            kernel | {"ts": ran, "dur": 5, "args": work},
        ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    assert "mostly" not in ta.steps(path).verdict
