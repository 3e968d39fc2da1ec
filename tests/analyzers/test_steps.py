"""Step times, their statistics and slow steps."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median, stdev
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_steps import fast_ns, warm_up
from traceanalyzer.analyzers.common.device_work import PARTS
from traceanalyzer.analyzers.common.step_marks import step_marks
from traceanalyzer.analyzers.steps import Options
from traceanalyzer.analyzers.steps.compute import (
    Part,
    combine,
    measure,
    measure_for_diagnosis,
    needs,
    steps,
)
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace, concat

Event = dict[str, Any]


def loop(lengths: list[int], *, compute: int = 10, start: int = 0, gap: int = 0) -> list[Event]:
    """Return steps of these lengths, each with one kernel from its start."""
    events, at = [], start
    for number, length in enumerate(lengths):
        events += [step(number, at, length), device(GEMM, at, compute)]
        at += length + gap
    return events


def batch(ts: int, dur: int, **more: Any) -> Event:
    """Return the marks of a Composer batch."""
    return host("other", "event/batch", ts, dur, **more)


def of(result: Steps, *names: str) -> list[tuple[Any, ...]]:
    return result.steps.select(names).rows()


def assert_adds_up(result: Steps) -> None:
    known = result.steps.drop_nulls("compute_ns")
    parts = known.select(pl.sum_horizontal(f"{part}_ns" for part in PARTS)).to_series()
    assert parts.to_list() == known["duration_ns"].to_list()
    assert known["busy_ns"].to_list() == (known["duration_ns"] - known["idle_ns"]).to_list()


def test_steps_overlapping_by_rounding_both_count() -> None:
    """A step ends 1 ns or 999 ns after the start of the next one."""
    events = [step(1, 0, 10_001), step(2, 10_000, 10_999), step(3, 20_000, 10_000)]
    result = steps(trace(events))
    assert of(result, "step", "at_ns", "duration_ns") == [
        ("ProfilerStep#1", 0, 10_000),
        ("ProfilerStep#2", 10_000, 10_000),
        ("ProfilerStep#3", 20_000, 10_000),
    ]
    assert result.steps["before_ns"].drop_nulls().to_list() == [0, 0]


def test_the_two_lengths_of_steps_are_counted() -> None:
    verdict = steps(trace(loop([300, 100, 300, 300, 100, 300, 300, 100, 300, 300]))).verdict
    assert "7 of 10 steps take 3 times" in verdict
    assert "the other 3 " in verdict


def test_nested_step_does_not_count() -> None:
    events = [step(1, 0, 10_000), step(2, 9_500, 500), step(3, 5_000, 6_000), step(4, 11_000, 900)]
    assert of(steps(trace(events)), "step") == [("ProfilerStep#1",), ("ProfilerStep#4",)]


# --- steps and their parts -------------------------------------------------------------------


def test_step_parts_of_a_small_trace() -> None:
    events = [
        step(1, 0, 100),
        device(GEMM, 90, 30),
        step(2, 110, 100),
        device(ALL_REDUCE, 115, 25, stream=9),
        device("Memset", 200, 5, kind="gpu_memset"),
    ]
    result = steps(trace(events))
    names = ("step", "number", "at_ns", "duration_ns", "before_ns", *(f"{p}_ns" for p in PARTS))
    assert of(result, *names) == [
        ("ProfilerStep#1", 0, 0, 100, None, 10, 0, 0, 90),
        ("ProfilerStep#2", 1, 110, 100, 0, 10, 20, 5, 65),
    ]
    assert_adds_up(result)


def test_statistics_of_durations() -> None:
    lengths = [100, 130, 90, 110, 120]
    row = steps(trace(loop(lengths, gap=10))).ranks.row(0, named=True)
    assert row["steps"] == 5
    assert row["mean_ns"] == pytest.approx(110)
    assert row["median_ns"] == median(lengths)
    assert row["std_ns"] == pytest.approx(stdev(lengths))
    assert row["cv_frac"] == pytest.approx(stdev(lengths) / 110)
    assert (row["min_ns"], row["max_ns"], row["warm_up"]) == (90, 130, 0)
    assert row["between_ns"] == 40
    assert row["between_frac"] == pytest.approx(40 / 590)


def test_slowest_steps_are_first_with_the_part_that_grew() -> None:
    events = loop([100, 100, 180, 100])
    events[5]["dur"] = 75  # the third step's kernel
    result = steps(trace(events))
    table = result.tables[0].frame
    assert table["step"].to_list()[0] == "ProfilerStep#2"
    assert table.row(0, named=True)["grown"] == "compute"
    assert table.row(0, named=True)["grown_ns"] == 65
    assert table["grown"].to_list()[1:] == [None] * 3
    check_wording(result.verdict)


def test_similar_steps_do_not_stand_out() -> None:
    check_wording(steps(trace(loop([100, 101, 102]))).verdict)


def test_single_step_has_no_variance() -> None:
    result = steps(trace(loop([100])))
    check_wording(result.verdict)
    assert result.ranks.row(0, named=True)["std_ns"] is None
    assert [table.name for table in result.tables] == ["steps"]


LENGTHS = st.lists(st.integers(1, 1_000), min_size=1, max_size=8)


@pytest.mark.matrix
@settings(max_examples=15, deadline=None)
@given(LENGTHS, st.lists(st.tuples(st.integers(0, 4_000), st.integers(0, 500)), max_size=8))
def test_parts_add_up_and_shifting_changes_nothing(
    lengths: list[int], work: list[tuple[int, int]]
) -> None:
    def recorded(at: int) -> Steps:
        kernels = [
            device((GEMM, ALL_REDUCE)[n % 2], at + ts, dur, stream=n % 3)
            for n, (ts, dur) in enumerate(work)
        ]
        return steps(trace([*loop(lengths, start=at, gap=7), *kernels]))

    here = recorded(0)
    assert_adds_up(here)
    assert here.to_dict() == recorded(1 << 61).to_dict()
    assert here.steps["duration_ns"].to_list() == lengths
    counted = here.ranks.row(0, named=True)
    assert counted["steps"] + counted["warm_up"] == len(lengths)


# --- warm-up ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durations", "leading"),
    [
        ([], 0),
        ([9], 0),
        ([9, 1], 0),  # one step after it is not enough
        ([16, 10, 10], 1),
        ([15, 10, 10], 0),
        ([90, 30, 10, 10, 10], 2),
        ([20, 10, 10, 10, 90], 1),
        ([70, 14, 14, 89, 28, 112], 0),  # steps that vary as much all the way
        ([102, 32, 31, 101, 32, 32, 102, 32, 32], 0),  # what it does repeats
        ([102, 101, 99, 32, 32, 32, 32, 101, 32], 3),
        ([10, 10, 90, 10], 0),
        ([2**n for n in range(20, 0, -1)], 10),
        ([0, 0, 0], 0),
    ],
)
def test_warm_up_is_much_longer_leading_steps(durations: list[int], leading: int) -> None:
    assert warm_up(durations) == leading


def test_warm_up_is_marked_and_excluded() -> None:
    result = steps(trace(loop([400, 100, 100, 104])))
    assert result.steps["warm_up"].to_list() == [True, False, False, False]
    assert result.ranks.select("steps", "warm_up", "max_ns").rows() == [(3, 1, 104)]
    check_wording(result.verdict)
    assert result.tables[0].frame["step"].to_list()[-1] == "ProfilerStep#0"
    assert result.charts[0].frame["warm_up"].sum() == 1
    assert any("warm-up" in note for note in result.notes)


# --- marks of other sorts --------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [("Step 190 to 200", "Step 200 to 210"), ("iter 0-9", "iter 10-19"), ("step 3", "step 4")],
)
def test_numbered_ranges_are_steps(names: tuple[str, ...]) -> None:
    marks = [host("nvtx", name, at * MS, MS) for at, name in enumerate(names)]
    others = host("nvtx", "Step to 3", 0, 9 * MS)
    assert step_marks(trace([*marks, others]))["step"].to_list() == [*names]


def test_steps_in_a_range_of_several_count() -> None:
    several = host("nvtx", "step 0 to 2", 0, 2 * MS)
    each = [host("nvtx", f"step {at}", at * MS, MS) for at in (0, 1)]
    assert step_marks(trace([several, *each]))["step"].to_list() == ["step 0", "step 1"]


@pytest.mark.parametrize(
    "name", ["Steps", "step 1 of 2", "Step 1 to end", "footstep 3 to 4", "IO 3"]
)
def test_other_ranges_are_no_steps(name: str) -> None:
    assert step_marks(trace([host("nvtx", name, 0, MS)])).is_empty()


def test_steps_by_name() -> None:
    events = [host("user_annotation", f"train_{n}", 100 * n, 50) for n in range(3)]
    result = steps(trace(events), step_name=r"^train_\d")
    assert of(result, "step", "duration_ns") == [(f"train_{n}", 50) for n in range(3)]
    with raises_wording(OptionError):
        steps(trace(events), step_name="(")


def test_annotations_are_suggested_without_marks() -> None:
    call = host("other", "builtins.len", 550, 5, category="fee")  # of VizTracer
    events = [
        *[call | {"ts": 550 + n} for n in range(9)],
        *(host("user_annotation", f"my epoch {n}", 100 * n, 50) for n in range(3)),
        host("user_annotation", "eval", 500, 50),
        host("user_annotation", "nccl:all_reduce", 600, 50),
        *(host("user_annotation", "f" * 61, 700 + n, 1) for n in range(9)),  # a template of C++
    ]
    with pytest.raises(MissingData) as caught:
        steps(trace(events))
    text = str(caught.value)
    check_wording(text)
    assert "record_function" in text
    assert "--step-name" in text
    assert "builtins" not in text
    check_wording(text)
    with raises_wording(MissingData):
        steps(trace(events), step_name="x")


def test_composer_batches_have_host_parts() -> None:
    events = [
        host("other", "event/dataloader", 0, 20),
        batch(25, 100),
        host("other", "event/forward", 30, 40),
        host("other", "event/backward", 75, 30),
        host("other", "event/dataloader", 130, 50),
        batch(185, 100),
        host("other", "event/forward", 190, 40),
        host("other", "event/backward", 235, 30),
    ]
    result = steps(trace(events))
    names = ("step", "before_ns", "dataloader_ns", "forward_ns", "backward_ns", "compute_ns")
    assert of(result, *names) == [
        ("event/batch [1]", None, 20, 40, 30, None),
        ("event/batch [2]", 60, 50, 40, 30, None),
    ]
    check_wording(result.verdict)
    assert result.charts[1].frame["part"].unique().sort().to_list() == ["backward", "forward"]


def test_older_composer_batches_are_marked_by_category() -> None:
    marked = host("other", "batch", 0, 100, category="batch_start,batch_end")
    assert of(steps(trace([marked])), "step", "duration_ns") == [("batch", 100)]


def test_batches_of_composer_without_a_name_are_numbered() -> None:
    names = "other", None
    marked = [host(*names, at, 9, category="batch_start,batch_end") for at in (0, 10, 20)]
    work = [device("gemm", at + 2, 5) for at in (0, 10, 20)]
    assert steps(trace([*marked, *work])).steps["step"].to_list() == [
        f"step [{n}]" for n in (1, 2, 3)
    ]


# --- several ranks and files -----------------------------------------------------------------


def test_ranks_are_compared_within_each_step() -> None:
    traces = [trace(loop([100, 100, length]), rank=n) for n, length in enumerate((100, 140, 100))]
    result = steps(traces)
    assert result.common.select("step", "ranks", "slowest", "spread_ns", "spread_frac").rows() == [
        ("ProfilerStep#0", 3, "rank 0", 0, 0),
        ("ProfilerStep#1", 3, "rank 0", 0, 0),
        ("ProfilerStep#2", 3, "rank 1", 40, 0.4),
    ]
    check_wording(result.verdict)
    assert [table.name for table in result.tables] == ["common", "ranks", "steps"]
    assert steps(concat(traces)).common.equals(result.common)


def test_step_slow_on_all_ranks_is_the_slowest() -> None:
    def rank(number: int) -> Trace:
        events = loop([100, 100, 160])
        return trace([*events, device(ALL_REDUCE, 220, 60, stream=9)], rank=number)

    result = steps([rank(0), rank(1)])
    assert result.common["grown"].to_list() == [None, None, "communication"]
    check_wording(result.verdict)


def test_consecutive_files_of_a_rank_are_one_recording() -> None:
    files = [
        trace([batch(1_000 * n, 100), batch(1_000 * n + 200, 100)], path=f"ep0-ba{n}.json")
        for n in (10, 9)
    ]
    result = steps(files)
    assert of(result, "path", "step", "number", "at_ns", "before_ns") == [
        ("ep0-ba9.json", "event/batch [1]", 0, 0, None),
        ("ep0-ba9.json", "event/batch [2]", 1, 200, 100),
        ("ep0-ba9.json", "event/batch [3]", 2, 1_000, 700),
        ("ep0-ba9.json", "event/batch [4]", 3, 1_200, 100),
    ]
    single = steps([trace([batch(1_000 * n, 100)], path=f"{n}.json") for n in range(3)])
    assert single.steps["step"].to_list() == [f"event/batch [{n}]" for n in (1, 2, 3)]


def test_missing_numbers_between_files_are_a_pause_of_the_profiler() -> None:
    first = trace([step(1, 0, 100), step(2, 100, 100)], path="a.json")
    for number, before in ((3, 50), (6, None)):
        second = trace([step(number, 250, 100)], path="b.json")
        assert steps([first, second]).steps["before_ns"].to_list() == [None, 0, before]


def test_files_of_one_process_without_a_rank_are_one_recording() -> None:
    files = [
        trace([step(n, n * 1000, 100)], rank=None, start_ns=0,
              path=f"{process}.179571763342606409{n}.pt.trace.json")
        for n, process in ((1, "host_7"), (2, "host_7"), (3, "host_8"))
    ]  # fmt: skip
    result = steps(files)
    assert result.ranks.height == 2
    assert result.steps.sort("path", "at_ns")["at_ns"].to_list() == [1000, 2000, 3000]


def test_profiler_steps_of_several_cycles_keep_their_numbers() -> None:
    first = trace([step(1, 0, 100)], path="a.json")
    second = trace([step(7, 500, 100)], path="b.json")
    assert steps([second, first]).steps["step"].to_list() == ["ProfilerStep#1", "ProfilerStep#7"]


def test_overlapping_files_of_a_rank_are_two_recordings() -> None:
    result = steps([trace(loop([100, 100]), path=path) for path in ("a.json", "b.json")])
    assert result.ranks["path"].to_list() == ["a.json", "b.json"]
    assert list(result.tables[1].columns)[:2] == ["file", "rank"]
    unknown = steps([trace(loop([100]), rank=None, path=path) for path in ("a.json", "b.json")])
    assert unknown.ranks["rank"].to_list() == [None, None]


def test_devices_of_a_rank_have_one_row_each() -> None:
    events = [*loop([100, 100]), device(GEMM, 50, 20, device=1)]
    result = steps(trace(events))
    assert of(result, "device", "compute_ns", "number") == [
        (0, 10, 0),
        (1, 20, 0),
        (0, 10, 1),
        (1, 0, 1),
    ]
    assert result.scalars["step_count"] == 2
    assert "device" in result.tables[0].columns
    assert any("several devices" in note for note in result.notes)


def test_two_processes_on_one_device_are_one_device() -> None:
    events = [step(1, 0, 100), device(GEMM, 0, 10, pid=1), device(GEMM, 5, 10, pid=2)]
    assert of(steps(trace(events)), "compute_ns") == [(15,)]


# --- little or nothing -----------------------------------------------------------------------


def test_run_without_gpu_has_durations_only() -> None:
    result = steps(trace([step(1, 0, 100), step(2, 100, 120)], rank=None))
    assert of(result, "duration_ns", "idle_ns") == [(100, None), (120, None)]
    assert result.parts == {}
    assert not {"idle_ns", "grown", "rank"} & result.tables[0].columns.keys()
    assert [chart.name for chart in result.charts] == ["times"]
    check_wording(*result.notes)


@pytest.mark.parametrize("events", [[], [device(GEMM, 0, 10)]], ids=["empty", "only kernels"])
def test_missing_steps_raise_an_error(events: list[Event]) -> None:
    with pytest.raises(MissingData, match=r"profiler\.step\(\)"):
        steps(trace(events))


def test_mark_of_zero_duration_is_not_a_step() -> None:
    with pytest.raises(MissingData):
        steps(trace([step(1, 0, 0)]))


def test_empty_input() -> None:
    with pytest.raises(OptionError, match="no input"):
        steps([])


def test_result_does_not_depend_on_file_order() -> None:
    parts: list[Part] = [measure(trace(loop([100, 120]), rank=n), Options()) for n in (3, 1, None)]
    assert combine(parts, Options()).to_dict() == combine(parts[::-1], Options()).to_dict()


# --- real recordings -------------------------------------------------------------------------


def test_every_real_trace_adds_up_or_reports_missing_data(shared: Path, thorough: bool) -> None:
    wanted = needs(Options())
    answered = 0
    paths = sorted((shared / "data/chrome/kineto").glob("*.json.gz"))
    for path in paths[:: 1 if thorough else 4]:
        try:
            result = steps(ta.read(path, kinds=wanted.kinds, names=wanted.names))
        except MissingData as error:
            assert "--step-name" in str(error)  # noqa: PT017 - most have steps
            continue
        assert_adds_up(result)
        assert result.table()
        answered += 1
    assert answered >= (10 if thorough else 2)


@pytest.mark.matrix
def test_steps_recorded_as_operators_in_2021(shared: Path) -> None:
    path = shared / "data/chrome/kineto/resnet50_dataloader_workers4.json.gz"
    result = ta.steps(path)
    assert [round(ns / MS, 1) for ns in result.steps["duration_ns"]] == [
        182.3, 126.2, 127.2, 123.1, 163.5, 124.2,
    ]  # fmt: skip
    check_wording(result.verdict)
    by_name = ta.steps(path, step_name=r"^Optimizer\.step")
    assert by_name.scalars["step_count"] == 6


def test_one_file_per_batch(shared: Path) -> None:
    folder = shared / "data/chrome/composer"
    files = sorted(folder.glob("ep0-*"))
    result = ta.steps(files)
    assert result.ranks.select("rank", "steps").rows() == [(0, 2), (1, 2)]
    assert result.steps["duration_ns"].unique().to_list() == [400 * US]


# --- the command -----------------------------------------------------------------------------


def test_command_output_on_the_fixture(run_cli, golden) -> None:
    done = run_cli("steps", ROOT / "fixtures/nccl_8ranks")
    assert (done.returncode, done.stderr) == (0, "")
    golden("steps_nccl_8ranks.txt", done.stdout)


@pytest.mark.parametrize("fixture", ["composer", "ddp_gloo_4ranks"])
def test_runs_without_device_work(fixture: str, golden, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    golden(f"steps_{fixture}.txt", ta.steps(ROOT / "fixtures" / fixture).table())


@pytest.mark.matrix
def test_command_writes_json_and_plot(run_cli, tmp_path: Path) -> None:
    drawn = tmp_path / "steps.svg"
    path = ROOT / "fixtures/nccl_8ranks/rank5.json.gz"
    done = run_cli("steps", path, "--step-name", "^ProfilerStep", "--to", "json", "--plot", drawn)
    assert (done.returncode, done.stderr) == (0, "")
    parsed = json.loads(done.stdout)
    assert parsed["step_count"] == 6
    assert len(parsed["steps"]) == 6
    assert "Step times" in drawn.read_text()


def unmarked(steps: int) -> Trace:
    """Return unmarked steps of three kernels, launched 5 us before; 10 us between steps."""
    rows = []
    for n in range(3 * steps):
        at = n * 20 * US + n // 3 * 10 * US
        rows.append(host("cuda_runtime", "cudaLaunchKernel", at, 2 * US, correlation=n))
        rows.append(device(f"kernel {n % 3}", at + 5 * US, 20 * US, correlation=n))
    return trace(rows)


def test_all_analyses_use_inferred_steps() -> None:
    result = unmarked(6)
    starts = ta.steps(result).steps["at_ns"].to_list()
    assert starts == [n * 70 * US for n in range(6)]
    idle, launched = ta.gpu_idle(result, min_gap_ns=0), ta.launches(result)
    assert idle.steps["at_ns"].to_list() == starts
    assert idle.steps["busy_ns"].to_list() == [60 * US] * 6
    assert launched.steps["launches"].to_list() == [3] * 6
    parts = ta.overlap(result, by="step").steps
    assert parts["compute_ns"].to_list() == [60 * US] * 6
    assert idle.coverage.steps_by_kernels
    assert launched.steps_by_kernels
    check_wording(idle.verdict, *idle.view().notes, *launched.view().notes)


def test_marks_without_a_thread_are_not_inferred() -> None:
    rows = [{**step(n, n * MS, MS), "tid": None, "pid": None} for n in range(3, 8)]
    rows += [device("gemm", n * MS, MS // 2) for n in range(3, 8)]
    result = trace(rows)
    assert not steps(result).by_kernels
    assert not ta.gpu_idle(result).coverage.steps_by_kernels


@pytest.mark.parametrize("over", [0, 1_000, 1_900, 9_000])
def test_marks_that_overlap_by_rounding_are_steps(over: int) -> None:
    """JAX writes steps of 1 ms that overlap by 1 us."""
    result = steps(trace([step(n, n * MS, MS + over) for n in range(6)]))
    assert result.steps.height == 6
    assert result.steps["duration_ns"].to_list()[:5].count(MS) == 5


def test_ambiguous_steps_are_inferred_on_request_only() -> None:
    idle = ta.gpu_idle(unmarked(3))
    assert idle.steps.is_empty()
    assert not idle.coverage.steps_by_kernels
    check_wording(*idle.view().notes)


def test_time_between_files_of_a_rank_is_not_between_steps():
    first, second = ([step(n, at + n * 10 * MS, 10 * MS) for n in range(3)] for at in (0, 900 * MS))
    kernels = [[device(GEMM, one["ts"], MS) for one in marks] for marks in (first, second)]
    files = [
        trace([*marks, *work], path=f"cycle{n}.json")
        for n, (marks, work) in enumerate(zip((first, second), kernels, strict=True))
    ]
    ranks = ta.steps(files).ranks
    assert ranks["steps"].sum() == 6
    assert ranks["between_ns"].sum() == 0


def test_the_usual_time_of_a_function_is_its_median() -> None:
    """The first of five calls takes 50 ms, the others 2 ms."""
    events = [step(n, n * 100 * MS, 100 * MS) for n in range(5)]
    events += [
        host(
            "python_function", "runner.py(9): prepare", n * 100 * MS + US, 2 * MS if n else 50 * MS
        )
        for n in range(5)
    ]
    rows = measure_for_diagnosis(trace(events), Options()).code
    assert rows is not None
    row = rows.filter(name="runner.py(9): prepare").row(0, named=True)
    assert (row["n"], row["total_ns"], row["median_ns"]) == (5, 58 * MS, 2 * MS)


@pytest.mark.parametrize(
    ("lengths", "usual", "slow"),
    [
        ([88, 34, 95, 34, 90, 87], 34, 4),
        ([88, 34, 95, 87, 90, 87], None, 0),  # one fast step
        ([34, 34, 34, 88, 34, 34], None, 0),  # the median is a fast step
        ([60, 62, 64, 66, 68, 70], None, 0),
    ],
)
def test_more_than_half_of_the_steps_are_slow(
    lengths: list[int], usual: int | None, slow: int
) -> None:
    frame = pl.DataFrame({"ns": lengths})
    assert frame.select(fast_ns(pl.col("ns"))).item() == usual
    verdict = steps(trace(loop(lengths, compute=1))).verdict
    assert (f"{slow} of 6 steps" in verdict) == bool(slow)


@pytest.mark.parametrize(
    ("lengths", "slow"),
    [
        ([10.0] * 4 + [14.0] * 8, 8),
        ([10.0] * 4 + [11.0] * 8, 0),
        ([41.8, 46.4, 812.0, 851.0, 888.0], 3),
        ([10, 10.5, 13, 14, 15, 17, 19, 21], 0),
        ([10, 10, 11.9, 12.6, *[15.2] * 6], 0),
        ([18.6, 19.0, 35.5, 65.9, 80.5, 138.6], 0),
    ],
)
def test_two_levels_of_steps_are_named(lengths: list[float], slow: int) -> None:
    """Most steps are slow, so that none is slower than the median; a spread is no two levels."""
    starts = [round(sum(lengths[:n]) * MS) for n in range(len(lengths))]
    events = [step(n, at, round(lengths[n] * MS)) for n, at in enumerate(starts)]
    text = f"{slow} of {len(lengths)} steps take" if slow else "as long as the other"
    assert (text in ta.steps(trace(events)).verdict) == (slow > 0)
