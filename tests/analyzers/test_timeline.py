"""States of devices over time: a partition that agrees with the other analyses, on one axis."""

from __future__ import annotations

from pathlib import Path
from random import Random

import polars as pl
import pytest
from any_trace import any_trace
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT, once
from hypothesis import given, settings, strategies as st

import traceanalyzer as ta
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.timeline.compute import timeline
from traceanalyzer.analyzers.timeline.result import Timeline
from traceanalyzer.analyzers.timeline.states import NAMES, OF_CAUSE, STATE, coarser
from traceanalyzer.analyzers.what_if import replay
from traceanalyzer.errors import MissingData
from traceanalyzer.result import Finding
from traceanalyzer.trace import Trace

FIXTURES = ROOT / "fixtures"
RANKS = FIXTURES / "nccl_8ranks"
IDLE = [f"{state}_ns" for state in ("dataloading", "launch", "synchronisation", "host", "idle")]


def times(result: Timeline) -> dict[str, int]:
    """Return the time of each state over all lanes, without the states that do not occur."""
    return {state: ns for state, ns in result.totals().items() if ns}


def assert_is_partition(result: Timeline) -> None:
    """Check that the states of each lane are disjoint, without gaps, from its start to its end."""
    for lane, start, end in result.lanes.select("lane", "start", "end").iter_rows():
        rows = result.states.filter(lane=lane)
        assert rows["start"].to_list() == [start, *rows["end"][:-1]]
        assert rows["end"][-1] == end
        assert (rows["end"] > rows["start"]).all()


def test_states_of_one_device() -> None:
    one = trace(
        [
            device(GEMM, 0, 10 * US),
            device(ALL_REDUCE, 5 * US, 15 * US, stream=20),
            device("Memcpy DtoD", 18 * US, 6 * US, kind="gpu_memcpy", stream=21),
            device(GEMM, 50 * US, 10 * US),
            host("user_annotation", "load_batch", 20 * US, 30 * US),
            host("cuda_runtime", "cudaLaunchKernel", 0, 1 * US, correlation=1),
        ]
    )
    result = timeline(one)
    assert result.states.select("start", "end", "state").rows() == [
        (0, 5_000, "compute"),
        (5_000, 10_000, "overlapped"),
        (10_000, 20_000, "transfer"),
        (20_000, 24_000, "copies"),
        *result.states.filter(pl.col("start").is_between(24_000, 49_999))
        .select("start", "end", "state")
        .rows(),
        (50_000, 60_000, "compute"),
    ]
    assert_is_partition(result)


@pytest.mark.sample(2)
@pytest.mark.parametrize("folder", ["nccl_8ranks", "nccl_8ranks_isolated"])
def test_states_agree_with_overlap_and_idle_time(folder: str) -> None:
    path = FIXTURES / folder
    result, parts, idle = (once(ask, path) for ask in (timeline, ta.overlap, ta.gpu_idle))
    assert_is_partition(result)
    sums = result.shares.select(pl.sum_horizontal(IDLE).sum()).item()
    totals = result.totals()
    devices = parts.devices
    assert totals["compute"] + totals["overlapped"] == devices["compute_ns"].sum()
    assert totals["overlapped"] == devices["overlapped_communication_ns"].sum()
    exposed = devices["exposed_communication_ns"].sum()
    assert totals["transfer"] + totals["waiting"] == exposed
    assert totals["copies"] == devices["exposed_memory_ns"].sum()
    assert sums == idle.idle_ns


@pytest.mark.matrix
@settings(max_examples=25)
@given(chance=st.randoms(use_true_random=False))
def test_states_of_any_trace_are_a_partition(chance: Random) -> None:
    one = any_trace(chance, chance.choice((3, 12, 40)))
    try:
        result = timeline(one)
    except MissingData:
        return
    for _, rows in result.states.group_by("lane"):
        assert (rows["start"][1:] >= rows["end"][:-1]).all()
    # Python's sum: that of several devices may be too large for 64 bits
    lengths = result.states.select(pl.col("end") - pl.col("start")).to_series().to_list()
    assert sum(result.totals().values()) == sum(lengths)


@pytest.mark.matrix
def test_waiting_is_named_by_its_rank() -> None:
    result = once(timeline, RANKS)
    waits = result.states.filter(state="waiting").with_columns(ns=pl.col("end") - pl.col("start"))
    longest = waits.group_by("peer").agg(pl.col("ns").sum()).sort("ns")["peer"][-1]
    assert longest == 5
    assert result.states.filter(pl.col("state") != "waiting")["peer"].null_count() == (
        result.states.height - waits.height
    )
    # no compute overlaps the waits of this recording, so that all wait time is exposed
    of_ranks = ta.comm_outliers(RANKS).ranks
    assert waits["ns"].sum() == pytest.approx(of_ranks["wait_ns"].sum(), rel=0.01)


def test_clocks_of_hosts_are_aligned_by_collectives() -> None:
    # the clock of the second host of the fixture is 3 ms ahead
    events = once(timeline, RANKS).events.filter(collective="all_gather").sort("start")
    ends = events.with_columns(place=pl.int_range(pl.len()).over("lane", order_by="start"))
    spread = ends.group_by("place").agg(apart=pl.col("end").max() - pl.col("end").min())
    assert spread["apart"].max() < 100 * US


def test_ranks_without_a_common_clock_begin_at_zero() -> None:
    ranks = [trace([device(GEMM, 10 * MS, MS)], rank=0, epoch_ns=0)]
    ranks.append(trace([device(GEMM, 50 * MS, MS)], rank=1, epoch_ns=None))
    result = timeline(ranks)
    assert not result.one_clock
    assert result.lanes["start"].to_list() == [0, 0]


def test_recordings_of_one_device_are_one_row() -> None:
    several = [
        trace([device(GEMM, at, MS)], rank=0, path=f"cycle{at}.json") for at in (0, 100 * MS)
    ]
    result = timeline(several)
    assert result.lanes.height == 1
    assert result.states["start"].to_list() == [0, 100 * MS]


def test_devices_of_one_process_are_rows() -> None:
    one = trace([device(GEMM, 0, MS), device(GEMM, MS, MS, device=1)])
    assert timeline(one).lanes.select("device", "start", "end").rows() == [
        (0, 0, MS),
        (1, MS, 2 * MS),
    ]


@pytest.mark.matrix
def test_order_of_rows() -> None:
    result = timeline(RANKS, order="cost")
    assert result.shares["rank"][0] == 5
    assert result.drawing().lanes["on"][0] == "rank 5"


def test_main_threads_without_device_work() -> None:
    events = [step(1, 0, 10 * MS), host("cpu_op", "aten::mm", 0, 4 * MS)]
    result = timeline(trace(events))
    assert result.on_host
    assert times(result)["compute"] == 4 * MS
    assert result.events.is_empty()


def test_operator_and_message_of_events() -> None:
    events = once(timeline, RANKS).events
    gathers = events.filter(collective="all_gather")
    assert set(gathers["bytes"]) == {64 << 20}
    assert set(gathers["operator"].cast(pl.String)) == {"nccl:_all_gather_base"}


def test_findings_are_marked_on_the_rank_of_their_cause() -> None:
    result = once(timeline, RANKS)
    place = result.places.filter(rank=5)
    intervals = pl.DataFrame(
        {"rank": [0, 5], "device": [0, 1], "start_ns": [0, 0], "end_ns": [9 * MS, 2 * MS]},
        schema={"rank": pl.Int32, "device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )
    finding = Finding("straggler", "warning", "high", "late", (), "", "comm_outliers", rank=5)
    marked = result.with_findings([finding, Finding(**vars(finding) | {"intervals": intervals})])
    shift = place["shift"][0]
    assert marked.marks.row(0) == (place["lane"][0], shift, 2 * MS + shift, 2, "late")
    assert marked.marks["number"].to_list() == [2, 2]


def test_no_events_are_refused() -> None:
    with pytest.raises(MissingData):
        timeline(trace([]))


@pytest.mark.matrix
def test_export_of_nsys(shared: Path) -> None:
    result = timeline(shared / "data" / "nsys" / "mfu_2gpu_before.sqlite.gz")
    assert_is_partition(result)
    assert result.lanes["rank"].to_list() == [0, 1]
    assert result.matched


# --- merging ---------------------------------------------------------------------------------

RUNS = st.lists(
    st.tuples(st.integers(1, 50), st.sampled_from(list(NAMES)[:4])), min_size=1, max_size=200
)


@given(lanes=st.lists(RUNS, min_size=1, max_size=3), most=st.integers(2, 40))
def test_merged_states_are_a_partition_with_the_same_sums(
    lanes: list[list[tuple[int, str]]], most: int
) -> None:
    rows = []
    for lane, runs in enumerate(lanes):
        at = 0
        for length, state in runs:
            rows.append((lane, at, at + length, state))
            at += length
    schema = {"lane": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "state": STATE}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    merged, cell = coarser(frame, most, ["lane"], "state")
    assert (cell == 0) == (frame.height <= most)
    length = (pl.col("end") - pl.col("start")).sum()
    for one in (frame, merged):
        assert (one.filter(pl.col("start") != pl.col("end").shift().over("lane"))).height == 0
    sums = [
        one.group_by("lane", "state").agg(length).sort("lane", "state") for one in (frame, merged)
    ]
    assert sums[0].equals(sums[1])


def test_merged_events_are_counted() -> None:
    rows = [(0, 10 * n, 10 * n + 1 + n % 2, "compute", f"k{n % 2}", 1) for n in range(1000)]
    schema = {"lane": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "state": STATE}
    frame = pl.DataFrame(
        rows, schema=schema | {"name": pl.String, "count": pl.UInt32}, orient="row"
    )
    merged, cell = coarser(frame, 100, ["lane"], "state")
    assert merged.height <= 110
    assert merged["count"].sum() == 1000
    assert set(merged["name"]) == {"k1"}  # the longest
    assert cell == 99  # of an axis of 9,992 ns


def test_findings_of_a_file_without_rank_are_marked() -> None:
    result = timeline(trace([device(GEMM, 0, MS)], rank=None))
    intervals = pl.DataFrame(
        {"rank": [None], "device": [0], "start_ns": [0], "end_ns": [MS]},
        schema={"rank": pl.Int32, "device": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64},
    )
    finding = Finding("x", "warning", "high", "slow", (), "", "kernels", intervals=intervals)
    assert result.with_findings([finding]).marks.select("start", "end").rows() == [(0, MS)]


def test_every_cause_has_a_state() -> None:
    assert OF_CAUSE.keys() == set(causes.LOSS.categories)


@pytest.mark.matrix
def test_a_short_timeline_shows_who_delays_others() -> None:
    """Main threads that wait for a late rank are idle, too, but not of themselves."""
    drawing = ta.diagnose(ROOT / "fixtures/ddp_gloo_4ranks").view().timelines()[0]
    assert (drawing.lanes["on"].to_list(), drawing.left_out) == ([f"rank {n}" for n in range(4)], 0)
    assert set(drawing.states.drop_nulls("peer")["state"].unique()) == {"waiting"}


@pytest.mark.matrix
def test_cycles_of_a_rank_are_one_row_of_a_short_timeline() -> None:
    cycles = [
        trace(
            [device(GEMM, at, 10 * MS), device(ALL_REDUCE, at + 20 * MS, 10 * MS)],
            path=f"{rank} {at}.json", rank=rank,
        )
        for rank in (0, 1) for at in (0, 90 * MS)
    ]  # fmt: skip
    drawing = ta.diagnose(cycles).view().timelines()[0]
    assert drawing.lanes.select("start", "end").rows() == [(0, 120 * MS)] * 2
    busy = drawing.states.filter(state="compute", lane=0)
    assert busy.select((pl.col("end") - pl.col("start")).sum()).item() == 20 * MS


def test_critical_path_is_that_of_the_analysis() -> None:
    result, critical = once(timeline, RANKS), once(ta.critical_path, RANKS)
    path = result.path
    assert (path["start"][1:] >= path["end"][:-1]).all()
    length = pl.col("end") - pl.col("start")
    sums = dict(path.filter(pl.col("start") >= result.steps["end"].min()).group_by("kind").agg(
        ns=length.sum()).iter_rows())  # fmt: skip
    for kind, ns in critical.classes.head(3).select("kind", "time_ns").iter_rows():
        assert sums[kind] == pytest.approx(ns * critical.steps, rel=0.05), kind
    longest = path.sort(length).tail(3)
    lanes = dict(result.lanes.select("lane", "rank").iter_rows())
    assert all(lanes[row["lane"]] == row["rank"] for row in longest.iter_rows(named=True))
    loading = path.filter(length > 5 * MS, kind="data loading")
    assert loading["rank"].to_list() == [5, 5]


def test_path_is_drawn_as_a_row_that_counts_nowhere() -> None:
    result = once(timeline, RANKS)
    drawing = result.drawing()
    assert drawing.lanes["on"].to_list()[-1] == "critical path"
    assert drawing.states.filter(lane=8).height == drawing.events.filter(lane=8).height > 50
    assert result.shares.height == len(drawing.by_loss) == 8
    assert sum(result.totals().values()) == result.shares["span_ns"].sum()


def test_reason_why_there_is_no_critical_path() -> None:
    result = timeline(trace([device(GEMM, n * MS, MS // 2) for n in range(9)], rank=0))
    assert result.path.is_empty()
    assert result.drawing().lanes.height == 1
    assert [note for note in result.notes if "launch calls of 9 of 9" in note]


@pytest.mark.parametrize("most", [20, 60], ids=["of one rank", "of all ranks"])
def test_many_kernels_have_no_critical_path(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(replay, "MOST_DRAWN", most)
    result = timeline(RANKS)
    assert result.path.is_empty()
    assert [note for note in result.notes if "critical-path" in note]


def test_waits_in_mpi_are_waits_for_a_rank() -> None:
    def of(rank: int, work: int) -> Trace:
        events = []
        for number in range(6):
            at, ids = 400 * US * number, {"correlation": number + 1}
            events += [
                host("cuda_runtime", "cudaLaunchKernel", at, 2 * US, **ids),
                device(GEMM, at + 5 * US, work, **ids),
                host("cuda_runtime", "cudaDeviceSynchronize", at + 3 * US, work + 3 * US),
                host("mpi", "MPI_Allreduce", at + work + 10 * US, 320 * US - work, group="0"),
            ]
        return trace(events, rank=rank)

    ranks = [of(0, 100 * US), of(1, 300 * US)]
    lengths = pl.col("end") - pl.col("start")
    for lanes in (timeline(ranks), ta.diagnose(ranks).timeline):
        assert lanes is not None
        states = lanes.states.filter(pl.col("state") == "waiting")
        assert states.select(lengths.sum()).item() == pytest.approx(5 * 200 * US, rel=0.02)
        assert states["peer"].unique().to_list() == [1]


def test_ranks_that_differ_only_in_waits_are_compared_by_them() -> None:
    late = [0, 30]
    ranks = [
        trace(
            [
                device(GEMM, 0, (20 + late[rank]) * MS),
                device(ALL_REDUCE, (20 + late[rank]) * MS, (40 - late[rank]) * MS, stream=7),
                device(GEMM, 60 * MS, 40 * MS),
            ],
            rank,
        )
        for rank in (0, 1)
    ]
    verdict = ta.timeline(ranks).verdict
    assert "rank 0 (30.0 %), least: rank 1 (0.0 %)" in verdict
