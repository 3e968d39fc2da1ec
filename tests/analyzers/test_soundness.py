"""Whether recordings are sound: what is corrected when they are read, and what is said."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import traceanalyzer as ta
from traceanalyzer import vocabulary as words
from traceanalyzer.analyzers.common.soundness import CODES, problems as problems_of, repaired
from traceanalyzer.trace import from_rows
from traceanalyzer.vocabulary import DEVICE_WORK

#: Microseconds in the absolute time of the files.
EPOCH = 1_750_000_000_000_000
GEMM, COPY = "sm90_xmma_gemm_f16", "Memcpy HtoD (Pageable -> Device)"

Event = dict[str, Any]


def call(name: str, at: float, dur: float, number: int | None = None, pid: int = 100) -> Event:
    args = {} if number is None else {"args": {"correlation": number}}
    return {"ph": "X", "cat": "cuda_runtime", "name": name, "pid": pid, "tid": 1,
            "ts": at, "dur": dur} | args  # fmt: skip


def kernel(
    name: str, at: float, dur: float, number: int, device: int = 0, stream: int = 7
) -> Event:
    args = {"device": device, "stream": stream, "correlation": number}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": device, "tid": stream,
            "ts": at, "dur": dur, "args": args}  # fmt: skip


def step(number: int, at: float, dur: float, pid: int = 100) -> Event:
    return {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": pid,
            "tid": 1, "ts": at, "dur": dur}  # fmt: skip


def operator(name: str, at: float, dur: float, pid: int = 100) -> Event:
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": pid, "tid": 1, "ts": at, "dur": dur}


def training(
    steps: int = 4, kernels: int = 25, *, device: int = 0, delay: float = 8, pid: int = 100
) -> list[Event]:
    """Return steps of 100 us per kernel, 80 us of it busy, one launch after the other."""
    events: list[Event] = []
    for one in range(steps):
        begin = one * kernels * 100.0
        events.append(step(one, begin, kernels * 100, pid))
        for place in range(kernels):
            at, number = begin + place * 100, 1 + one * kernels + place + 10_000 * device
            events.append(operator("aten::mm", at, 12, pid))
            events.append(call("cudaLaunchKernel", at + 2, 5, number, pid))
            events.append(kernel(f"{GEMM}_{place % 3}", at + 2 + delay, 80, number, device))
    return events


def write(
    path: Path, events: list[Event], *, rank: int | None = None, ranks: int = 1, after: float = 0
) -> Path:
    """Write a file of PyTorch's profiler; ``after`` moves all times, in us."""
    moved = [event | {"ts": event["ts"] + after} for event in events]
    text: dict[str, Any] = {"schemaVersion": 1, "traceEvents": moved}
    text |= {"baseTimeNanoseconds": EPOCH * 1000}
    text["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
    if rank is not None:
        text["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": ranks}
    path.write_text(json.dumps(text))
    return path


def problems(*paths: Path) -> dict[str, int]:
    """Return the problems that ``info`` names, with their counts."""
    rows = ta.info(paths, quick=False).problems
    return dict(rows.select("code", "count").iter_rows())


def busy_ns(path: Path) -> int:
    work = ta.read(path).events.filter(pl.col("kind").is_in(DEVICE_WORK))
    return int(work["dur"].sum())


@pytest.fixture(scope="session")
def causes(shared: Path) -> Path:
    folder = shared / "data/causes"
    if not folder.is_dir():
        pytest.skip(f"no recordings at {folder}")
    return folder


def test_a_sound_recording_has_no_problem(tmp_path: Path) -> None:
    assert problems(write(tmp_path / "a.json", training(), rank=0)) == {}


# --- impossible times ------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize("dur", [400, 6_000, 4_294_967])
def test_records_that_run_into_the_next_work_are_left_out(tmp_path: Path, dur: float) -> None:
    events = training()
    wrong = [event for event in events if event["cat"] == "kernel"][30]
    wrong["dur"] = dur
    path = write(tmp_path / "a.json", events)
    assert problems(path) == {words.IMPOSSIBLE_TIMES: 1}
    assert busy_ns(path) == 99 * 80_000
    found = ta.diagnose(path)
    assert "throttled-steps" not in {one.id for one in found.diagnosis}
    assert found.warning.startswith("1 of 100 records of device work")


def test_records_without_a_time_or_with_an_early_end_are_left_out(tmp_path: Path) -> None:
    events = training()
    kernels = [event for event in events if event["cat"] == "kernel"]
    for event in kernels[10:13]:
        event["ts"] = event["dur"] = 0
    kernels[20]["dur"] = -5
    path = write(tmp_path / "a.json", events, after=0)
    assert problems(path)[words.IMPOSSIBLE_TIMES] == 4
    assert busy_ns(path) == 96 * 80_000


def test_work_that_may_overlap_is_possible(tmp_path: Path) -> None:
    events = training()
    kernels = [event for event in events if event["cat"] == "kernel"]
    kernels[3]["dur"] = 100 + 1  # rounding
    kernels[5]["dur"] = 100 + 4  # a programmatic launch
    nodes = [kernel(f"node_{n}", 11_000 + n * 50, 400, 777) for n in range(40)]  # of one graph
    others = [kernel(GEMM, n * 100 + 30, 90, 5_000 + n, stream=9) for n in range(100)]
    events += [call("cudaGraphLaunch", 10_900, 20, 777), *nodes, *others]
    assert problems(write(tmp_path / "a.json", events)) == {}


def test_a_long_kernel_that_the_next_work_waits_for_is_possible(tmp_path: Path) -> None:
    events = training()
    events += [call("cudaLaunchKernel", 10_050, 5, 900), kernel(f"{GEMM}_0", 10_060, 90_000, 900)]
    events += [call("cudaDeviceSynchronize", 10_070, 89_990)]
    assert problems(write(tmp_path / "a.json", events)) == {}


@pytest.mark.matrix
def test_the_recordings_with_impossible_times(causes: Path) -> None:
    path = causes / "chrome/impossible_durations.json.gz"
    assert problems(path) == {words.IMPOSSIBLE_TIMES: 2}
    idle = ta.gpu_idle(path)
    assert idle.units["busy_ns"].sum() / 6 == pytest.approx(6_840_000, rel=0.01)
    assert problems(causes / "nsys/c12_bad_times.sqlite.gz") == {words.IMPOSSIBLE_TIMES: 20}
    untimed = causes / "nsys/c12_bad_times.sqlite.gz"
    assert ta.kernels(untimed).heaviest("name")["n"].sum() == 80
    assert {one.confidence for one in ta.diagnose(untimed).diagnosis} == {"low"}


def test_every_command_leaves_out_impossible_records_of_an_export(
    causes: Path, tmp_path: Path
) -> None:
    long = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = end + 4294967296 WHERE rowid = 30"
    path = changed(causes / "nsys/c16n_not_ready.sqlite.gz", tmp_path / "a.sqlite", long)
    assert problems(path) == {words.IMPOSSIBLE_TIMES: 1}
    assert ta.kernels(path).heaviest("name")["total_ns"].sum() == 59 * 900_000
    assert ta.gpu_idle(path).units["busy_ns"].sum() == 59 * 900_000
    assert ta.overlap(path).scalars["busy_ns"] == 59 * 900_000


# --- clock of the device -----------------------------------------------------------------------


@pytest.mark.parametrize("early", [20, 400, 3_000])
def test_a_device_clock_behind_the_host_is_corrected(tmp_path: Path, early: float) -> None:
    events = [
        event | ({"ts": event["ts"] - early} if event["cat"] == "kernel" else {})
        for event in [*training(), *training(device=1)]
    ]
    path = write(tmp_path / "a.json", events, after=5_000)
    assert problems(path) == {words.DEVICE_CLOCK: 100}
    sound = ta.read(write(tmp_path / "b.json", [*training(), *training(device=1)], after=5_000))
    shift = (
        ta.read(path).events.filter(kind="kernel")["ts"] - sound.events.filter(kind="kernel")["ts"]
    )
    assert shift.abs().max() == 8_000  # the latency of a launch, which is not recorded
    assert ta.read(path).events["ts"].is_sorted()


def test_one_of_two_devices_is_early(tmp_path: Path) -> None:
    late = training(device=1)
    early = [e | ({"ts": e["ts"] - 500} if e["cat"] == "kernel" else {}) for e in training()]
    path = write(tmp_path / "a.json", [*early, *late], after=5_000)
    rows = ta.read(path).events.filter(kind="kernel").group_by("device").agg(pl.col("ts").min())
    assert dict(rows.iter_rows()) == {0: 5_002_000, 1: 5_010_000}


def test_queued_work_shows_the_clock_by_its_first_kernels(tmp_path: Path) -> None:
    events = [
        event | ({"ts": event["ts"] - 300} if event["cat"] == "kernel" else {})
        for event in training(delay=8)
    ]
    queued = [call("cudaLaunchKernel", 20_000 + n, 0.5, 500 + n) for n in range(300)]
    queued += [kernel(GEMM, 20_100 + 70 * n, 70, 500 + n) for n in range(300)]
    assert problems(write(tmp_path / "a.json", events + queued, after=5_000))[words.DEVICE_CLOCK]


@pytest.mark.parametrize("early", [0, 2_000])
def test_work_on_an_idle_device_shows_the_clock(tmp_path: Path, early: float) -> None:
    """In each step the host runs far ahead: few kernels start as early as the first one."""
    events = []
    for number in range(6):
        begin = number * 15_000.0
        events.append(step(number, begin, 15_000))
        for place in range(75):
            at, correlation = begin + 5 * place, 1 + number * 75 + place
            events.append(call("cudaLaunchKernel", at, 4, correlation))
            events.append(kernel(GEMM, begin + 10 + 100 * place - early, 100, correlation))
    first = [event for event in events if event["name"] == GEMM][::75]
    for one in first[3:5]:  # by chance, or by a wrong correlation id
        one["ts"] -= 1_000
    path = write(tmp_path / "a.json", events, after=5_000)
    assert problems(path) == ({words.DEVICE_CLOCK: 6 * 21} if early else {})
    begin = ta.read(path).events.filter(kind="kernel")["ts"].min()
    assert begin == pytest.approx(5_000_000, abs=10_000)


@pytest.mark.matrix
def test_the_recordings_of_device_clocks(causes: Path) -> None:
    early = causes / "chrome/device_clock_3ms_early.json.gz"
    assert problems(early) == {words.DEVICE_CLOCK: 300}
    first = ta.diagnose(early).diagnosis[0]
    assert (first.id, first.confidence) == ("data-loading", "medium")
    assert first.cost_frac == pytest.approx(0.203, abs=0.002)
    assert problems(causes / "chrome/device_clock_right.json.gz") == {}


# --- missing kernels ---------------------------------------------------------------------------


def without(events: list[Event], chosen: range) -> list[Event]:
    kernels = [event for event in events if event["cat"] == "kernel"]
    lost = {id(kernels[place]) for place in chosen}
    return [event for event in events if id(event) not in lost]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("lost", "remedy"),
    [(range(25), "warm"), (range(75, 100), "synchronize"), (range(40, 60), "CUPTI drops")],
)
def test_kernels_that_are_not_recorded(tmp_path: Path, lost: range, remedy: str) -> None:
    path = write(tmp_path / "a.json", without(training(), lost))
    assert problems(path) == {words.MISSING_KERNELS: len(lost)}
    assert remedy in ta.info(path).problems["advice"][0]
    found = [one for one in ta.diagnose(path).diagnosis if one.analysis == "gpu_idle"]
    assert bool(found) == (remedy != "CUPTI drops"), "a hole looks idle: it is not judged"
    assert {one.confidence for one in found} <= {"low"}


def test_some_kernels_may_still_run_when_the_recording_ends(tmp_path: Path) -> None:
    assert problems(write(tmp_path / "a.json", without(training(8), range(198, 200)))) == {}


def test_launches_captured_in_a_graph_have_no_kernel(tmp_path: Path) -> None:
    captured = [call("cudaLaunchKernel", 20_010 + n, 0.5, 900 + n) for n in range(40)]
    around = [call("cudaStreamBeginCapture", 20_000, 1), call("cudaStreamEndCapture", 20_100, 1)]
    path = write(tmp_path / "a.json", [*training(), *around, *captured])
    assert problems(path) == {}


@pytest.mark.matrix
def test_launches_without_any_kernel(causes: Path, tmp_path: Path) -> None:
    built = write(tmp_path / "a.json", without(training(), range(100)))
    for path in (causes / "chrome/cuda_on_but_no_kernels.json.gz", built):
        assert problems(path) == {words.NO_GPU_WORK: 1}
        assert "synchronize" in (ta.read(path).meta.no_gpu_work or "")
        assert "gpu-not-traced" in {one.id for one in ta.diagnose(path).diagnosis}
    assert ta.read(built, kinds=["kernel"]).meta.no_gpu_work is None  # calls were not read


def test_unreadable_kernels_are_not_missing_ones(tmp_path: Path) -> None:
    """The recording was right, so no advice on how to record kernels."""
    events = [one | {"dur": 1e18} if one["cat"] == "kernel" else one for one in training()]
    trace = ta.read(write(tmp_path / "a.json", events))
    assert trace.issues["code"].to_list() == ["bad-duration"]
    assert trace.meta.no_gpu_work is None


@pytest.mark.parametrize(("device_type", "on_gpu"), [(1, True), (6, True), (0, False)])
def test_allocations_on_a_gpu_without_any_kernel(
    tmp_path: Path, device_type: int, on_gpu: bool
) -> None:
    """Operators and allocations of a program whose GPU work was not recorded, or of a CPU."""
    events = [operator("aten::empty", 100 * n, 40) for n in range(9)]
    memory = {"Device Type": device_type, "Device Id": 0 if on_gpu else -1, "Bytes": 512}
    for n in range(9):
        args = memory | {"Addr": n, "Total Allocated": 512 * n, "Total Reserved": 8192}
        mark = {"ph": "i", "s": "t", "name": "[memory]", "pid": 100, "tid": 1, "ts": 100 * n + 9}
        events.append(mark | {"args": args})
    path = write(tmp_path / "a.json", events)
    assert problems(path) == ({words.NO_GPU_WORK: 1} if on_gpu else {})
    found = {one.id: one for one in ta.diagnose(path).diagnosis}
    assert ("gpu-not-traced" in found) == on_gpu
    assert ("host-code" in found) != on_gpu  # idle time of the main thread is not that of the GPU


# --- exports of nsys ---------------------------------------------------------------------------


def changed(path: Path, target: Path, *statements: str) -> Path:
    """Return a copy of an export, changed by SQL."""
    target.write_bytes(gzip.decompress(path.read_bytes()))
    with closing(sqlite3.connect(target)) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()
    return target


def test_a_program_that_failed(causes: Path, tmp_path: Path) -> None:
    path = causes / "nsys/c16_illegal_address.sqlite.gz"
    assert set(problems(path)) == {words.FAILED_CALLS, words.NO_GPU_WORK}
    [first] = ta.diagnose(path).diagnosis
    assert (first.id, first.severity) == ("failed-program", "critical")
    assert [effect.id for effect in first.effects] == ["gpu-not-traced"]
    assert "700" in first.title


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("code", "fails"), [(719, True), (716, True), (600, False), (2, False), (1, False)]
)
def test_only_errors_of_the_device_mean_that_the_program_failed(
    causes: Path, tmp_path: Path, code: int, fails: bool
) -> None:
    update = f"UPDATE CUPTI_ACTIVITY_KIND_RUNTIME SET returnValue = {code} WHERE rowid > 500"
    path = changed(causes / "nsys/c16n_not_ready.sqlite.gz", tmp_path / "a.sqlite", update)
    assert (words.FAILED_CALLS in problems(path)) == fails
    assert problems(causes / "nsys/c16n_not_ready.sqlite.gz") == {}


def test_why_kernels_are_missing_in_an_export(causes: Path, tmp_path: Path) -> None:
    path = causes / "nsys/c14_wsl2_no_kernels.sqlite.gz"
    assert "WSL2" in (ta.read(path).meta.no_gpu_work or "")
    linux = "UPDATE TARGET_INFO_SYSTEM_ENV SET value = '5.15.0-generic' WHERE value LIKE '%WSL%'"
    other = ta.read(changed(path, tmp_path / "a.sqlite", linux)).meta.no_gpu_work or ""
    assert "driver" in other
    assert "WSL" not in other
    lost = "DELETE FROM CUPTI_ACTIVITY_KIND_SYNCHRONIZATION WHERE start > 20000000"
    early = ta.read(changed(path, tmp_path / "b.sqlite", lost)).meta.no_gpu_work or ""
    assert "exit normally" in early
    queries = ta.read(causes / "nsys/c6_queries_only.sqlite.gz")
    assert queries.issues.filter(code=words.NO_GPU_WORK)["severity"].to_list() == ["notice"]


def test_one_rank_of_a_forked_job_is_traced(causes: Path, tmp_path: Path) -> None:
    path = causes / "nsys/c24_one_rank_traced.sqlite.gz"
    assert problems(path) == {words.UNTRACED_PROCESSES: 3}
    assert "--trace-fork-before-exec" in ta.info(path).problems["advice"][0]
    workers = "DELETE FROM PROCESSES WHERE pid = 4102"  # fewer than GPUs: loader workers
    assert problems(changed(path, tmp_path / "a.sqlite", workers)) == {}
    alone = "DELETE FROM StringIds WHERE value LIKE 'nccl%'"
    assert problems(changed(path, tmp_path / "b.sqlite", alone)) == {}


def test_exports_before_2022_name_the_gpu(causes: Path) -> None:
    trace = ta.read(causes / "nsys/c4_pre2022_gpu.sqlite.gz")
    assert [(one.id, one.name) for one in trace.meta.devices] == [(0, "NVIDIA GeForce RTX 3080")]
    assert not trace.issues["severity"].is_in(["error", "data_loss"]).any()


# --- the allocator -----------------------------------------------------------------------------


def allocating(steps: range, prefix: str) -> list[Event]:
    """Return a training that allocates and frees memory for each kernel of some steps."""
    events = training()
    for one in steps:
        for place in range(25):
            at = one * 2_500 + place * 100
            events += [call(f"{prefix}Malloc", at, 1), call(f"{prefix}Free", at + 90, 8)]
    return events


@pytest.mark.parametrize("prefix", ["cuda", "hip"])
def test_the_caching_allocator_is_off(tmp_path: Path, prefix: str) -> None:
    path = write(tmp_path / "a.json", allocating(range(4), prefix))
    assert problems(path) == {words.NO_CACHING_ALLOCATOR: 100}
    first = write(tmp_path / "b.json", allocating(range(1), prefix))
    assert problems(first) == {}


def test_an_emptied_cache_is_not_off(tmp_path: Path) -> None:
    """``torch.cuda.empty_cache`` frees all segments of a step one after another."""
    frees = [
        call(name, one * 2_500 + at + place, 1)
        for one in range(4)
        for place in range(25)
        for name, at in (("cudaMalloc", 5), ("cudaFree", 2_440))
    ]
    assert problems(write(tmp_path / "a.json", [*training(), *frees])) == {}


@pytest.mark.matrix
def test_the_recording_without_a_caching_allocator(causes: Path) -> None:
    path = causes / "chrome/no_caching_allocator.json.gz"
    first = ta.diagnose(path).diagnosis[0]
    assert first.id == "memory-management"
    for text in (first.advice, ta.gpu_idle(path).view().verdict):
        assert "PYTORCH_NO_CUDA_MEMORY_CACHING" in text
        assert "expandable_segments" not in text


# --- graph replays -------------------------------------------------------------------------------


def replays(gaps: list[float], launch: str = "cudaGraphLaunch") -> list[Event]:
    """Return six replays of a graph of 20 kernels; the gaps between them repeat."""
    events: list[Event] = []
    for one in range(6):
        at, number = one * 4_000.0, one + 1
        events += [step(one, at, 3_990), call(launch, at, 20, number)]
        events += [call("cudaStreamSynchronize", at + 30, 3_900)]
        at += 40
        for place in range(20):
            dur = 40 + 30 * (place % 4)
            events.append(kernel(f"node_{place}", at, dur, number, stream=7 + place // 10))
            at += dur + gaps[place % len(gaps)]
    return events


@pytest.mark.sample(2)
@pytest.mark.parametrize("launch", ["cudaGraphLaunch", "hipGraphLaunch"])
def test_equal_gaps_in_graph_replays_are_of_the_recording(tmp_path: Path, launch: str) -> None:
    path = write(tmp_path / "a.json", replays([12, 13.5, 13], launch))
    assert problems(path) == {words.GRAPH_GAPS: 6 * 18}
    [wait] = [one for one in ta.diagnose(path).diagnosis if one.id == "device-wait"]
    assert (wait.severity, wait.confidence) == ("warning", "low")
    assert "without a profiler" in wait.advice


@pytest.mark.parametrize("gaps", [[1.5], [3, 2, 4], [8, 200, 60, 30]])
def test_usual_and_different_gaps_in_graph_replays_are_real(
    tmp_path: Path, gaps: list[float]
) -> None:
    assert problems(write(tmp_path / "a.json", replays(gaps))) == {}


@pytest.mark.parametrize(("late_us", "count"), [(900, 3), (5, 0)])
def test_the_rank_that_is_ready_last_in_a_timeline_of_horovod(
    tmp_path: Path, late_us: int, count: int
) -> None:
    """Three tensors in 3 ms, of four ranks each, of which rank 2 is ready ``late_us`` later."""
    events: list[Event] = []
    for tensor in range(3):
        at = 1000 * tensor
        of = {"pid": tensor + 1}
        events += [{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": at, **of}]
        ready = {3: 1, 0: 2, 1: 3, 2: 3 + late_us}
        marks = [
            {"ph": "X", "name": f"{rank}", "ts": at + us, "dur": 0} for rank, us in ready.items()
        ]
        events += [mark | of for mark in marks]
        events += [{"ph": "E", "ts": at + 950, **of}]
        events += [{"ph": "X", "name": "ALLREDUCE", "ts": at + 950, "dur": 50, **of}]
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events))
    assert problems(path).get(words.READY_LATE, 0) == count
    if count:
        [text] = ta.info(path).problems["text"]
        assert text.startswith("Rank 2 ")
        assert "2.703 ms" in text  # three times 901 us after the lower median, rank 0


def test_the_recording_with_gaps_in_a_graph(causes: Path) -> None:
    path = causes / "chrome/gaps_in_a_graph.json.gz"
    assert problems(path) == {words.GRAPH_GAPS: 708}
    wait, *others = ta.diagnose(path).diagnosis
    assert (wait.id, wait.confidence) == ("device-wait", "low")
    assert {one.severity for one in others} <= {"info"}


# --- several recordings --------------------------------------------------------------------------

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def rank_of_job(rank: int, begins: int, ends: int = 40, first: float = 0) -> list[Event]:
    """Return the steps of one rank; a collective waits until all ranks take part."""
    events: list[Event] = []
    for one in range(begins, ends):
        at, wait = one * 1_000.0, first if one == begins else 0
        at -= wait
        events += [step(one, at, 1_000 + wait), operator("aten::mm", at, 12)]
        for place, (name, start, dur) in enumerate(
            [(GEMM, 20, 500), (NCCL, 550, 100 + wait)], start=1
        ):
            events.append(call("cudaLaunchKernel", at + start - 10, 5, 2 * one + place))
            events.append(kernel(name, at + start, dur, 2 * one + place, stream=6 + place))
    return events


def job(folder: Path, late: int, begin_us: float) -> list[Path]:
    """Write four ranks, of which one is recorded later; the others wait for it."""
    folder.mkdir()
    return [
        write(
            folder / f"rank{rank}.json",
            rank_of_job(rank, 0, first=0 if rank == late else begin_us),
            rank=rank, ranks=4, after=begin_us,
        )
        for rank in range(4)
    ]  # fmt: skip


def test_a_rank_that_is_recorded_later_is_no_straggler(
    tmp_path: Path, causes: Path, thorough: bool
) -> None:
    cases = [(job(tmp_path / "late", 1, 3_000_000), 1)]
    if thorough:
        cases.append(([causes / "chrome/recording_starts_late"], 2))
    for paths, rank in cases:
        info = ta.info(paths, quick=False).problems
        assert info["code"].to_list() == [words.RECORDINGS_APART]
        assert f"rank {rank} begins" in info["text"][0]
        result = ta.comm_outliers(paths)
        assert result.totals.total_wait_ns < 1_000_000
        assert result.totals.n_outliers == 0
        found = ta.diagnose(paths)
        assert not {"straggler", "uneven-steps"} & {one.id for one in found.diagnosis}


@pytest.mark.matrix
def test_a_straggler_that_is_recorded_stays_one(tmp_path: Path) -> None:
    tmp_path.joinpath("job").mkdir()
    paths = []
    for rank in range(4):
        events = rank_of_job(rank, 0, first=0 if rank == 1 else 3_000_000)
        events.append(operator("profiler", -3_000_000, 10))
        paths.append(
            write(tmp_path / f"job/{rank}.json", events, rank=rank, ranks=4, after=3_000_000)
        )
    assert problems(*paths) == {}
    assert ta.comm_outliers(paths).ranks["rank"][0] == 1
    assert ta.comm_outliers(paths).totals.total_wait_ns > 8_000_000_000


@pytest.mark.matrix
def test_recordings_that_end_apart(tmp_path: Path) -> None:
    ends = {0: 4_000, 1: 4_000, 2: 1_000}
    paths = [
        write(tmp_path / f"{rank}.json", rank_of_job(rank, 0, end), rank=rank, ranks=3)
        for rank, end in ends.items()
    ]
    assert problems(*paths) == {words.RECORDINGS_APART: 1}
    assert "rank 2 ends 3 s before" in ta.info(paths, quick=False).problems["text"][0]


def test_the_time_that_the_profiler_needs_to_process_its_events_is_not_recorded(
    tmp_path: Path,
) -> None:
    mark = {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": ""}
    paths = []
    for rank, until in enumerate((12_000, 9_000_000)):
        events = [*rank_of_job(rank, 0), mark | {"ts": until}]
        paths.append(write(tmp_path / f"{rank}.json", events, rank=rank, ranks=2))
    assert problems(*paths) == {}


def test_a_file_of_two_processes(tmp_path: Path) -> None:
    both = [*training(), *training(pid=200)]
    assert problems(write(tmp_path / "a.json", both, rank=0, ranks=2)) == {words.SAME_RANK: 2}


@pytest.mark.matrix
def test_processes_of_one_rank_at_the_same_time_are_named(tmp_path: Path) -> None:
    def note(after: float) -> str:
        one = write(tmp_path / "a.json", training(), rank=0, ranks=2, after=after)
        other = write(tmp_path / "b.json", training(pid=200), rank=0, ranks=2)
        return " ".join(ta.diagnose([one, other]).input_notes)

    assert "Rank 0 is recorded by several processes" in note(30)
    assert "several processes" not in note(1_000_000)


# --- all recordings ------------------------------------------------------------------------------

#: Recordings with problems; all others are sound.
_UNSOUND = {
    "causes/chrome/cuda_on_but_no_kernels.json.gz": {words.NO_GPU_WORK},
    "causes/chrome/device_clock_3ms_early.json.gz": {words.DEVICE_CLOCK},
    "causes/chrome/gaps_in_a_graph.json.gz": {words.GRAPH_GAPS},
    "causes/chrome/impossible_durations.json.gz": {words.IMPOSSIBLE_TIMES},
    "causes/chrome/no_caching_allocator.json.gz": {words.NO_CACHING_ALLOCATOR},
    "causes/chrome/recording_starts_late": {words.RECORDINGS_APART},
    "causes/nsys/c12_bad_times.sqlite.gz": {words.IMPOSSIBLE_TIMES},
    "causes/nsys/c14_wsl2_no_kernels.sqlite.gz": {words.NO_GPU_WORK},
    "causes/nsys/c16_illegal_address.sqlite.gz": {words.NO_GPU_WORK, words.FAILED_CALLS},
    "causes/nsys/c19_two_processes_one_gpu.sqlite.gz": {words.SHARED_DEVICE},
    "causes/nsys/c24_one_rank_traced.sqlite.gz": {words.UNTRACED_PROCESSES},
    "causes/nsys/c6_queries_only.sqlite.gz": {words.NO_GPU_WORK},
}
_ELSEWHERE = ("conformance", "memory", "collapsed", "pyspy", "ncu", "flight_recorder", "deepspeed")
_TRACES = (".json", ".json.gz", ".sqlite", ".sqlite.gz", ".rpd", ".rpd.gz", ".db")
_SAMPLE = ("dlrm_8ranks", "nsys/mfu_2gpu_after.sqlite.gz", "recording_starts_late", "mi250_rocm62")


#: Names of the files of one rank in the folder of a job.
_OF_RANK = re.compile(r"(?:rank|worker|tp|ep\d+-ba\d+-rank|mytrace-)_?\d")


def recordings(shared: Path) -> list[Path]:
    """Return the folders of ranks, and all single recordings, of third parties."""
    data = shared / "data"
    folders = [path for path in sorted(data.rglob("*")) if path.is_dir()]
    jobs = [one for one in folders if sum(bool(_OF_RANK.match(p.name)) for p in one.iterdir()) > 1]
    files = [path for path in sorted(data.rglob("*")) if path.name.endswith(_TRACES)]
    chosen = [path for path in [*jobs, *files] if not {*path.parts} & {*_ELSEWHERE}]
    return [path for path in chosen if path.is_dir() or path.parent not in jobs]


def unsound(path: Path) -> set[str] | None:
    """Return the codes of the problems of a recording; None if it cannot be read."""
    try:
        return set(problems(path))
    except ta.errors.TraceAnalyzerError:
        return None


@pytest.mark.matrix
def test_sound_recordings_of_others_have_no_problem(shared: Path) -> None:
    chosen = [path for path in recordings(shared) if any(part in str(path) for part in _SAMPLE)]
    assert len(chosen) >= len(_SAMPLE)
    for path in chosen:
        name = str(path.relative_to(shared / "data"))
        assert unsound(path) == _UNSOUND.get(name, set()), name


@pytest.mark.matrix
def test_all_recordings_of_others(shared: Path) -> None:
    for path in recordings(shared):
        name = str(path.relative_to(shared / "data"))
        assert (unsound(path) or set()) == _UNSOUND.get(name, set()), name


@pytest.mark.matrix
def test_each_code_is_ordered_and_has_advice(causes: Path) -> None:
    assert len(set(CODES)) == len(CODES)
    for name in _UNSOUND:
        if (path := causes.parent / name).is_file():
            rows = ta.info(path).problems
            assert rows["advice"].null_count() == 0
            assert rows["text"].str.ends_with(".").all()


@pytest.mark.parametrize(("period", "kept"), [(1, False), (50, True)])
def test_ids_that_many_calls_share_link_nothing(tmp_path: Path, period: int, kept: bool) -> None:
    """All calls and kernels have one id; after a wrap-around, two calls have each."""
    events = training()
    for event in events:
        if "correlation" in (args := event.get("args", {})):
            args["correlation"] %= period
    path = write(tmp_path / "a.json", events)
    ids = ta.read(path).events.filter(kind="kernel")["correlation"]
    assert (ids.null_count() == 0, ids.null_count() == ids.len()) == (kept, not kept)
    assert problems(path) == ({} if kept else {words.UNLINKED_WORK: 100})
    if not kept:
        assert ta.steps(path).sums["median_ns"] == pytest.approx(2_500_000, rel=0.02)
        assert ta.diagnose(path).findings == ta.diagnose(_without_ids(tmp_path)).findings


def test_work_without_links_is_named_where_launch_calls_are_missed(tmp_path: Path) -> None:
    """The launch calls were recorded: what lacks is the id of their kernels."""
    linked, path = write(tmp_path / "a.json", training()), _without_ids(tmp_path)
    assert problems(linked) == {}
    assert problems(path) == {words.UNLINKED_WORK: 100}
    late = {one.id: one.confidence for one in ta.diagnose(path).findings}
    assert late == {"launch-bound": "low"}
    for analysis in (ta.launches, ta.what_if):
        analysis(linked)
        with pytest.raises(ta.errors.MissingData, match="100 launch calls have no correlation id"):
            analysis(path)


def _of_processes(*ids: list[int], known: bool = True, queries: int = 0) -> ta.Trace:
    """Return a trace of processes whose calls and kernels have these ids; queries have id 0."""
    query = {"kind": "cuda_runtime", "name": "cudaEventQuery", "correlation": 0, "dur": 10}
    rows: list[dict[str, Any]] = [query | {"ts": at, "pid": 1, "tid": 1} for at in range(queries)]
    for pid, numbers in enumerate(ids, 1):
        for place, number in enumerate(numbers):
            one = {"ts": place * 1000, "dur": 100, "correlation": number, "pid": pid}
            rows.append(one | {"kind": "cuda_runtime", "name": "cudaLaunchKernel", "tid": pid})
            rows.append(one | {"kind": "kernel", "name": "k", "ts": place * 1000 + 200, "device": 0,
                               "stream": 7, "pid": pid if known else None})  # fmt: skip
    return from_rows(ta.Meta("a.sqlite", words.NSYS), rows)


@pytest.mark.parametrize(("known", "kept"), [(True, 50), (False, 49)])
def test_a_shared_id_is_of_its_process(*, known: bool, kept: int) -> None:
    """Kernels of the other process keep their ids, also 0, if it is known whose they are."""
    trace = repaired(_of_processes([0] * 50, list(range(50)), known=known))
    links = trace.events.group_by("kind", "pid").agg(pl.col("correlation").count())
    counts = {(kind, pid): n for kind, pid, n in links.iter_rows()}
    assert counts.pop(("cuda_runtime", 1)) == 0
    assert counts.pop(("cuda_runtime", 2)) == 50
    assert sum(counts.values()) == kept
    issue = trace.issues.filter(code=words.UNLINKED_WORK).row(0, named=True)
    assert issue["count"] == 50
    assert f"{100 - kept} of 100 kernels" in issue["first"]
    assert not [one for one in problems_of(trace) if one[1] == words.MISSING_KERNELS]


def test_few_kernels_with_a_shared_id_are_no_problem() -> None:
    """Calls that launch nothing may have no id of their own."""
    trace = repaired(_of_processes(list(range(1, 101)), queries=40))
    assert trace.issues.is_empty()
    assert trace.events.filter(kind="kernel")["correlation"].null_count() == 0


def _without_ids(folder: Path) -> Path:
    events = [{**one, "args": {**one.get("args", {})}} for one in training()]
    for event in events:
        event["args"].pop("correlation", None)
    return write(folder / "b.json", events)
