"""Parts of device time, compared with a computation per nanosecond and on real traces."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, device, host, trace
from hypothesis import given, settings, strategies as st
from polars.testing import assert_frame_equal

import traceanalyzer as ta
from traceanalyzer.analyzers.common.device_work import (
    PARTS,
    WORK_KIND,
    device_work,
    extent,
    measure_parts,
)
from traceanalyzer.vocabulary import COMMUNICATION_TERMS, DEVICE_WORK

TIME = st.integers(0, 25)
DEVICES = st.sampled_from([0, 1, None])
WORK_KINDS = st.sampled_from(["compute", "communication", "memory"])
WORK = st.tuples(DEVICES, TIME, st.integers(0, 8), WORK_KINDS)
WINDOW = st.tuples(DEVICES, TIME, st.integers(0, 12))
MEASURES = [
    "compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns", "busy_ns",
    "communication_ns", "overlapped_communication_ns", "memory_ns", "overlapped_memory_ns",
]  # fmt: skip

modest = settings(max_examples=20, deadline=None)
Cells = dict[str, set[int]]


def works(rows: list[tuple[int | None, int, int, str]]) -> pl.DataFrame:
    types = {"device": pl.Int32, "start": pl.Int64, "dur": pl.Int64, "work_kind": WORK_KIND}
    frame = pl.DataFrame(rows, schema=types, orient="row")
    rank = pl.lit(None, pl.Int32).alias("rank")
    return frame.select(
        rank, "device", "start", (pl.col("start") + pl.col("dur")).alias("end"), "work_kind"
    )


def windows_of(rows: list[tuple[int | None, int, int]]) -> pl.DataFrame:
    return works([(*row, "compute") for row in rows]).drop("work_kind")


def cells(work: pl.DataFrame, number: int | None) -> Cells:
    """Return the nanoseconds in which each kind of work runs on a device."""
    running: Cells = {"compute": set(), "communication": set(), "memory": set()}
    rows = work.filter(pl.col("device").eq_missing(pl.lit(number)))
    for start, end, kind in rows.select("start", "end", "work_kind").iter_rows():
        running[kind].update(range(start, end))
    return running


def expected(work: Cells, window: set[int]) -> dict[str, set[int]]:
    """Apply the definitions per nanosecond."""
    compute, comm, memory = (work[kind] & window for kind in ("compute", "communication", "memory"))
    return {
        "compute_ns": compute,
        "exposed_communication_ns": comm - compute,
        "exposed_memory_ns": memory - comm - compute,
        "idle_ns": window - compute - comm - memory,
        "busy_ns": compute | comm | memory,
        "communication_ns": comm,
        "overlapped_communication_ns": comm & compute,
        "memory_ns": memory,
        "overlapped_memory_ns": memory & (compute | comm),
    }


@modest
@given(st.lists(WORK, max_size=10).map(works), st.lists(WINDOW, max_size=6).map(windows_of))
def test_measures_match_nanoseconds(work: pl.DataFrame, windows: pl.DataFrame) -> None:
    measured = measure_parts(work, windows)
    assert measured.columns == [*windows.columns, *MEASURES]
    for row in measured.to_dicts():
        want = expected(cells(work, row["device"]), set(range(row["start"], row["end"])))
        assert {name: row[name] for name in MEASURES} == {k: len(v) for k, v in want.items()}


@modest
@given(st.lists(WORK, max_size=10).map(works), st.integers(-(1 << 60), 1 << 60))
def test_measures_ignore_time_shift_and_row_order(work: pl.DataFrame, shift: int) -> None:
    span = extent(work)
    moved = measure_parts(
        work.reverse().with_columns(pl.col("start", "end") + shift),
        span.with_columns(pl.col("start", "end") + shift),
    )
    assert_frame_equal(moved.select(MEASURES), measure_parts(work, span).select(MEASURES))


def test_measures_of_one_device() -> None:
    work = device_work(
        trace(
            [
                device(GEMM, 0, 10),
                device(ALL_REDUCE, 5, 10, stream=20),
                device("Memcpy HtoD", 12, 8, kind="gpu_memcpy", stream=21),
                device(GEMM, 30, 0),
                device(GEMM, 35, 5),
                host("cpu_op", "aten::mm", 0, 100),
            ]
        )
    )
    whole = measure_parts(work, extent(work)).row(0, named=True)
    assert [whole[name] for name in MEASURES] == [15, 5, 5, 15, 25, 10, 5, 8, 3]


def test_window_without_bounds_or_work() -> None:
    work = works([(0, 0, 10, "compute")])
    windows = windows_of([(0, 5, 10), (0, 0, 10), (1, 5, 10)]).with_columns(
        end=pl.Series([None, 10, 15])
    )
    measured = measure_parts(work, windows)
    assert measured["compute_ns"].to_list() == [None, 10, 0]
    assert measured["idle_ns"].to_list() == [None, 0, 10]


@pytest.mark.parametrize("empty", ["work", "windows", "both"])
def test_empty_inputs_keep_columns(empty: str) -> None:
    work = works([] if empty != "windows" else [(0, 0, 10, "compute")])
    windows = windows_of([] if empty != "work" else [(0, 0, 10)])
    measured = measure_parts(work, windows)
    assert measured.columns == [*windows.columns, *MEASURES]
    assert measured.height == windows.height


def test_device_is_shared_by_processes_but_not_by_ranks() -> None:
    rows = [device(GEMM, 0, 10, pid=1), device(GEMM, 5, 10, pid=2, stream=8)]
    together = device_work(trace(rows))
    assert measure_parts(together, extent(together))["compute_ns"].to_list() == [15]
    apart = device_work(trace([{**row, "rank": n} for n, row in enumerate(rows)]))
    assert measure_parts(apart, extent(apart))["compute_ns"].to_list() == [10, 10]


def test_parts_of_real_traces_sum_to_span(shared: Path) -> None:
    names = ("nccl_a100_rank0of2", "a100_rank3of8_sendrecv", "mi300_rank0of8_rccl")
    for name in names:
        path = shared / f"data/chrome/kineto/{name}.json.gz"
        work = device_work(ta.read(path, kinds=DEVICE_WORK, names=COMMUNICATION_TERMS))
        span = extent(work)
        measured = measure_parts(work, span)
        total = measured.select(pl.sum_horizontal(f"{part}_ns" for part in PARTS)).to_series()
        assert total.to_list() == (span["end"] - span["start"]).to_list(), path
