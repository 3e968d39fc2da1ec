"""The parts of device time by device, step, stream and over time."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_work import (
    COMPUTE,
    PARTS,
    WORK_KIND,
    device_work,
    extent,
    measure_parts,
)
from traceanalyzer.analyzers.overlap import Options
from traceanalyzer.analyzers.overlap.compute import COARSE, NEEDS, combine, measure, overlap
from traceanalyzer.analyzers.overlap.result import Overlap
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace, concat

EVENTS = [
    step(1, 0, 100 * US),
    step(2, 100 * US, 100 * US),
    device(GEMM, 10 * US, 40 * US),
    device(ALL_REDUCE, 40 * US, 40 * US, stream=20),
    device("Memcpy HtoD", 70 * US, 40 * US, kind="gpu_memcpy", stream=21),
    device(GEMM, 150 * US, 30 * US),
]
MEASURES = [
    "span_ns", "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns",
    "communication_ns", "overlapped_communication_ns",
]  # fmt: skip


def assert_adds_up(result: Overlap) -> None:
    """Check that parts add up to the span, and exposed and overlapped to the total."""
    for frame in (result.devices, result.steps, result.timeline):
        parts = frame.select(pl.sum_horizontal(f"{part}_ns" for part in PARTS)).to_series()
        assert parts.to_list() == frame["span_ns"].to_list()
        for sort in ("communication", "memory"):
            both = frame[f"exposed_{sort}_ns"] + frame[f"overlapped_{sort}_ns"]
            assert both.to_list() == frame[f"{sort}_ns"].to_list()
        assert (frame["idle_ns"] + frame["busy_ns"]).to_list() == frame["span_ns"].to_list()
        assert (
            frame.select((pl.col(f"{part}_ns") >= 0).all() for part in PARTS).row(0) == (True,) * 4
        )


def test_device_parts_of_a_small_trace() -> None:
    result = overlap(trace(EVENTS))
    row = result.devices.row(0, named=True)
    assert [row[name] // US for name in MEASURES] == [170, 70, 30, 30, 40, 40, 10]
    assert row["overlap_frac"] == 0.25
    assert row["utilisation_frac"] == 130 / 170
    assert (row["at_ns"], row["rank"], row["device"]) == (0, 0, 0)
    assert result.scalars["overlap_frac"] == 0.25
    assert_adds_up(result)


def test_work_counts_for_the_step_it_runs_in() -> None:
    steps = overlap(trace(EVENTS), by="step").steps
    assert steps["step"].to_list() == ["ProfilerStep#1", "ProfilerStep#2"]
    assert steps.select(MEASURES).rows() == [
        tuple(n * US for n in (100, 40, 30, 20, 10, 40, 10)),
        tuple(n * US for n in (100, 30, 0, 10, 60, 0, 0)),
    ]
    assert steps["overlap_frac"].to_list() == [0.25, None]


def test_a_stream_is_alone_while_no_other_runs() -> None:
    result = overlap(trace(EVENTS), by="stream")
    names = ["stream", "events", "busy_ns", "compute_ns", "communication_ns", "memory_ns"]
    assert result.streams.select(*names, "alone_ns").rows() == [
        (7, 2, 70 * US, 70 * US, 0, 0, 60 * US),
        (20, 1, 40 * US, 0, 40 * US, 0, 20 * US),
        (21, 1, 40 * US, 0, 0, 40 * US, 30 * US),
    ]
    names = ["streams", "reasons", "devices", "steps", "low_utilisation", "groups"]
    assert [table.name for table in result.tables] == names
    assert [table.detail for table in result.tables] == [False, False, True, True, True, True]


WORK = st.tuples(
    st.sampled_from([GEMM, ALL_REDUCE, "Memset"]),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 2),
    st.integers(0, 2),
)


@pytest.mark.matrix
@settings(max_examples=25, deadline=None)
@given(st.lists(WORK, min_size=1, max_size=12), st.lists(st.integers(1, 10**5), max_size=4))
def test_parts_add_up_and_no_stream_is_alone_longer_than_busy(
    work: list[tuple[str, int, int, int, int]], lengths: list[int]
) -> None:
    events = [
        device(name, ts, dur, device=number, stream=stream)
        for name, ts, dur, number, stream in work
    ]
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    marks = [step(n, ts, dur) for n, (ts, dur) in enumerate(zip(starts, lengths, strict=True))]
    result = overlap(trace([*events, *marks]))
    assert_adds_up(result)
    streams = result.streams
    assert (streams["alone_ns"] <= streams["busy_ns"]).all()
    busy = dict(result.devices.select("device", "busy_ns").iter_rows())
    for number, alone, total in (
        streams.group_by("device")
        .agg(pl.col("alone_ns").sum(), pl.col("busy_ns").sum())
        .iter_rows()
    ):
        assert alone <= busy[number] <= total
    over_time = result.timeline.group_by("device").agg(pl.col("busy_ns", "span_ns").sum())
    by_place = {number: (was_busy, span) for number, was_busy, span in over_time.iter_rows()}
    if result.timeline.height:
        assert {number: times[0] for number, times in by_place.items()} == busy
        span = result.devices.select((pl.col("at_ns") + pl.col("span_ns")).max()).item()
        assert {times[1] for times in by_place.values()} == {span - result.devices["at_ns"].min()}


# --- several ranks, devices, files -----------------------------------------------------------


def test_ranks_have_one_row_each_in_order() -> None:
    traces = [trace(EVENTS, rank=rank) for rank in (10, 2)]
    assert overlap(traces).devices["rank"].to_list() == [2, 10]
    assert overlap(concat(traces)).devices["rank"].to_list() == [2, 10]


def test_two_processes_on_one_device_are_one_device() -> None:
    events = [
        device(GEMM, 0, 10, pid=1, stream=7),
        device(GEMM, 5, 10, pid=2, stream=7),
        device(GEMM, 20, 10, pid=2, stream=8),
    ]
    result = overlap(trace(events))
    assert result.devices.select("compute_ns", "idle_ns").rows() == [(25, 5)]
    assert result.streams["busy_ns"].to_list() == [15, 10]


def test_overlapping_slices_of_a_stream_count_once() -> None:
    result = overlap(trace([device(GEMM, 0, 10), device(ALL_REDUCE, 5, 10), device(GEMM, 5, 3)]))
    row = result.devices.row(0, named=True)
    assert (row["span_ns"], row["compute_ns"], row["exposed_communication_ns"]) == (15, 10, 5)
    assert result.streams["alone_ns"].to_list() == [15]


def test_devices_of_a_rank_have_one_row_per_step() -> None:
    events = [step(1, 0, 100), device(GEMM, 0, 10), device(GEMM, 50, 10, device=1)]
    result = overlap(trace(events), by="step")
    assert result.steps.select("device", "compute_ns").rows() == [(0, 10), (1, 10)]
    assert result.charts[0].frame["on"].unique().sort().to_list() == [
        "rank 0 device 0",
        "rank 0 device 1",
    ]


def test_files_without_a_rank_are_labelled_by_path() -> None:
    traces = [trace(EVENTS, rank=None, path=f"runs/{name}/t.json") for name in "ab"]
    result = overlap(traces)
    table = result.tables[0]
    assert list(table.columns)[:2] == ["file", "device"]
    assert table.frame["file"].to_list() == ["a/t.json", "b/t.json"]


@pytest.mark.matrix
def test_common_clock_if_all_recordings_overlap() -> None:
    later = [{**event, "ts": event["ts"] + 20 * US} for event in EVENTS]
    together = overlap([trace(EVENTS), trace(later, rank=1)]).devices
    assert together["at_ns"].to_list() == [0, 20 * US]
    hours = [{**event, "ts": event["ts"] + 3_600_000 * MS} for event in EVENTS]
    apart = overlap([trace(EVENTS), trace(hours, rank=1)])
    assert apart.devices["at_ns"].to_list() == [0, 0]
    assert apart.timeline["at_ns"].max() < MS  # type: ignore[operator]
    unknown = overlap([trace(EVENTS), trace(later, rank=1, epoch_ns=None)]).devices
    assert unknown["at_ns"].to_list() == [0, 0]


def test_timeline_has_few_stretches_on_one_grid() -> None:
    events = [device(GEMM, 7_003 * n, 3_500, device=n % 2) for n in range(1_000)]
    timeline = overlap([trace(events), trace(events, rank=1)]).timeline
    starts = timeline["at_ns"].unique().sort()
    assert starts.len() <= COARSE + 1
    steps = starts.diff().drop_nulls().unique().to_list()
    assert len(steps) == 1
    assert str(steps[0]).rstrip("0") in ("1", "2", "5")


# --- verdict ---------------------------------------------------------------------------------


def test_stretches_of_low_utilisation_are_noted() -> None:
    # of five stretches of 50 ms one is half busy, one is busy for 49 ms of 50, one for 24
    events = [
        device(GEMM, at * MS, dur * MS) for at, dur in ((0, 25), (50, 49), (101, 24), (249, 1))
    ]
    result = overlap(trace(events))
    by_50 = result.timeline.with_columns(place=pl.col("at_ns") // (50 * MS))
    measured = by_50.group_by("place").agg(pl.col("busy_ns", "span_ns").sum()).sort("place")
    assert measured["busy_ns"].to_list() == [25 * MS, 49 * MS, 24 * MS, 0, MS]
    low = result.to_polars("low_utilisation")
    assert low.equals(result.timeline.filter(pl.col("busy_ns") * 2 < pl.col("span_ns")))
    width = result.timeline["span_ns"].max()
    assert any(
        note.startswith(
            f"{low.height} of {result.timeline.height} intervals of {width / MS:.0f} ms "
        )
        for note in result.notes
    )
    full = overlap(trace([device(GEMM, 0, 10)]))
    assert full.low.is_empty()
    assert not any("stretches" in note for note in full.notes)


def test_verdict_names_exposed_communication_and_next_commands() -> None:
    text = overlap(trace(EVENTS)).verdict
    check_wording(text)
    assert "gpu-idle" in text


@pytest.mark.parametrize(
    "events",
    [
        [device(GEMM, 0, 10)],
        [device(GEMM, 0, 10), device(ALL_REDUCE, 2, 3, stream=9)],
        [device(GEMM, 0, 1000), device(ALL_REDUCE, 995, 9, stream=9)],
        [device(GEMM, 5, 0)],
    ],
    ids=["no communication", "all overlapped", "little exposed", "no duration"],
)
def test_verdict_of_small_cases(events: list[dict[str, object]]) -> None:
    check_wording(overlap(trace(events)).verdict)


def test_differing_ranks_are_named() -> None:
    early = [device(GEMM, 0, 10), device(ALL_REDUCE, 10, 90)]
    late = [device(GEMM, 0, 90), device(ALL_REDUCE, 90, 10)]
    text = overlap([trace(early), trace(late, rank=1)]).verdict
    check_wording(text)


def test_patterns_select_communication() -> None:
    events = trace([device("my_ring_reduce", 0, 10), device(GEMM, 5, 10)])
    assert overlap(events).scalars["communication_ns"] == 0
    assert overlap(events, comm_patterns=["ring_reduce$"]).scalars["communication_ns"] == 10
    with raises_wording(OptionError):
        overlap(events, comm_patterns=["("])


def test_communication_columns_only_with_communication() -> None:
    without = overlap(trace([device(GEMM, 0, 10)])).tables[0]
    assert "overlap_frac" not in without.columns
    assert "overlap_frac" in overlap(trace(EVENTS)).tables[0].columns


# --- little or nothing -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [[], [host("cpu_op", "aten::mm", 0, 10), host("user_annotation", "gloo:all_reduce", 0, 9)]],
    ids=["empty", "cpu run"],
)
def test_missing_device_work_error_has_a_recording_hint(events: list[dict[str, object]]) -> None:
    with raises_wording(MissingData):
        overlap(trace(events))


def test_unfinished_work_is_noted() -> None:
    result = overlap(trace([device(GEMM, 0, 10), device(GEMM, 20, None)]))
    assert result.devices["span_ns"].to_list() == [10]
    check_wording(*result.notes)
    with pytest.raises(MissingData):
        overlap(trace([device(GEMM, 20, None)]))


def test_single_and_zero_length_events() -> None:
    whole = overlap(trace([device(GEMM, 5, 10)], rank=None))
    assert whole.devices.select("span_ns", "compute_ns", "utilisation_frac").rows() == [(10, 10, 1)]
    none = overlap(trace([device(GEMM, 5, 0)]))
    assert none.devices.select("span_ns", "utilisation_frac").rows() == [(0, None)]
    assert none.timeline.is_empty()
    assert [chart.name for chart in none.charts] == ["parts"]
    assert none.table()


def test_missing_steps_raise_an_error() -> None:
    unmarked = trace([device(GEMM, 0, 10)])
    with raises_wording(MissingData):
        overlap(unmarked, by="step")
    assert overlap([unmarked, trace(EVENTS, rank=1)], by="step").steps["rank"].to_list() == [1, 1]


def test_empty_input() -> None:
    with pytest.raises(OptionError, match="no input"):
        overlap([])


def test_inputs_are_unchanged_and_order_does_not_matter() -> None:
    one, other = trace(EVENTS), trace(EVENTS, rank=1)
    before = one.events.clone()
    first, second = (
        combine([measure(trace, Options()) for trace in traces], Options())
        for traces in ((one, other), (other, one))
    )
    assert first.to_dict() == second.to_dict()
    assert one.events.equals(before)


# --- real recordings -------------------------------------------------------------------------


def read(path: Path) -> Trace:
    wanted = NEEDS
    return ta.read(path, kinds=wanted.kinds, names=wanted.names)


def test_every_real_trace_adds_up_or_reports_missing_data(shared: Path, thorough: bool) -> None:
    paths = sorted((shared / "data/chrome/kineto").glob("*.json.gz"))
    answered = 0
    for path in paths[:: 1 if thorough else 4]:
        events = read(path)
        try:
            result = overlap(events)
        except MissingData:
            assert not events.events["device"].drop_nulls().len(), path
            continue
        assert_adds_up(result)
        answered += 1
    assert answered >= (10 if thorough else 2)


@pytest.mark.matrix
def test_dlrm_overlap_agrees_with_the_peer(shared: Path) -> None:
    result = ta.overlap(shared / "data/chrome/kineto/dlrm_8ranks")
    shares = [round(100 * share, 2) for share in result.devices["overlap_frac"]]
    assert shares == [4.5, 2.47, 7.88, 3.31, 0.56, 0.64, 7.56, 9.51]
    idle = [6419, 6428, 7046, 8145, 8887, 9121, 7051, 8308]
    assert [ns // US for ns in result.devices["idle_ns"]] == idle


def test_parts_agree_with_tracelens_except_memsets(shared: Path) -> None:
    table = shared / "oracle/chrome/dlrm_8ranks/tracelens/gpu_timeline.csv"
    names = {
        "compute_ns": "computation_time",
        "exposed_communication_ns": "exposed_comm_time",
        "exposed_memory_ns": "exposed_memcpy_time",
        "idle_ns": "idle_time",
        "communication_ns": "total_comm_time",
        "memory_ns": "total_memcpy_time",
    }
    expected = pl.read_csv(table).sort("rank").select(pl.col(names.values()) * US)
    for rank, row in enumerate(expected.rows()):
        (path,) = (shared / "data/chrome/kineto/dlrm_8ranks").glob(f"worker{rank}_*")
        work = device_work(read(path))
        kind = pl.when(pl.col("kind") == "gpu_memset").then(pl.lit(COMPUTE, WORK_KIND))
        theirs = work.with_columns(work_kind=kind.otherwise("work_kind"))
        assert measure_parts(theirs, extent(work)).select(names.keys()).row(0) == row
        ours = measure_parts(work, extent(work)).select(names.keys()).row(0)
        assert (ours == row) is work.filter(pl.col("kind") == "gpu_memset").is_empty()


# --- the command -----------------------------------------------------------------------------


def test_command_output_on_the_fixture(run_cli, golden) -> None:
    done = run_cli("overlap", ROOT / "fixtures/nccl_8ranks")
    assert (done.returncode, done.stderr) == (0, "")
    golden("overlap_nccl_8ranks.txt", done.stdout)


@pytest.mark.matrix
def test_command_by_step_and_in_json(run_cli, tmp_path: Path) -> None:
    path = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    drawn = tmp_path / "plot.svg"
    done = run_cli(
        "overlap", path, "--by", "step", "--pattern", "gemm", "--to", "json", "--plot", drawn
    )
    assert done.returncode == 0
    parsed = json.loads(done.stdout)
    assert len(parsed["steps"]) == 6
    assert parsed["communication_ns"] == (
        parsed["exposed_communication_ns"] + parsed["overlapped_communication_ns"]
    )
    assert "Step time breakdown" in drawn.read_text()


def test_command_without_gpu_reports_missing_data(run_cli) -> None:
    done = run_cli("overlap", ROOT / "fixtures/ddp_gloo_4ranks")
    assert done.returncode == 1
    check_wording(done.stderr)
    assert done.stdout == ""
