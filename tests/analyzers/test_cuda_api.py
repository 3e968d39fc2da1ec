"""CUDA calls of small synthetic traces, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, device, host, trace
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.cuda_api.compute import cuda_api
from traceanalyzer.analyzers.cuda_api.result import FINDINGS, CudaApi, sorted_out
from traceanalyzer.errors import MissingData, OptionError

HTOD = "Memcpy HtoD (Pageable -> Device)"
PINNED = "Memcpy HtoD (Pinned -> Device)"
DTOH = "Memcpy DtoH (Device -> Pageable)"
DTOD = "Memcpy DtoD (Device -> Device)"
MIB = 1 << 20


def call(name: str, ts: int, dur: int | None, **more: Any) -> dict[str, Any]:
    return host("cuda_runtime", name, ts, dur, **more)  # type: ignore[arg-type]


def launch(ts: int, **more: Any) -> dict[str, Any]:
    return call("cudaLaunchKernel", ts, 5, **more)


def copied(by: str, name: str, size: int | None, number: int, **more: Any) -> list[dict[str, Any]]:
    """A call of 50 ns and its copy, which ends 10 ns before the call does, or later."""
    late = more.pop("late", -10)
    kind = more.pop("kind", "gpu_memcpy")
    ts = number * 1_000
    return [
        call(by, ts, 50, correlation=number, **more),
        device(name, ts + 20 + late, 20, kind=kind, bytes=size, correlation=number),
    ]


def findings(result: CudaApi) -> dict[str, tuple[int, int]]:
    """Return count and host time by finding."""
    rows = result.findings.select("finding", "n", "host_ns").rows()
    return {name: (n, host_ns) for name, n, host_ns in rows}


# --- sums --------------------------------------------------------------------------------------


def test_calls_are_summed_by_name() -> None:
    durations = [10, 20, 30, 40, 200]
    events = [call("cudaEventQuery", 1_000 * n, dur) for n, dur in enumerate(durations)]
    driver = host("cuda_driver", "cuLaunchKernel", 9_000, 100)
    result = cuda_api(trace([*events, driver]))
    assert result.calls.select("call", "n", "total_ns").rows() == [
        ("cudaEventQuery", 5, 300),
        ("cuLaunchKernel", 1, 100),
    ]
    row = result.calls.row(0, named=True)
    columns = ("mean_ns", "median_ns", "min_ns", "max_ns", "p99_ns")
    assert [row[name] for name in columns] == [60, 30, 10, 200, 194]
    assert row["total_frac"] == 0.75
    assert (result.n, result.total_ns, result.span_ns) == (6, 400, 9_100)
    assert result.findings.is_empty()
    check_wording(result.verdict)


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["cudaLaunchKernel", "cudaMalloc", "cudaMemcpy", "hipFree"]),
        st.integers(0, 10_000),
        st.integers(0, 500),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(CALLS)
def test_rank_sums_add_up_to_the_total(rows: list[tuple[str, int, int, int]]) -> None:
    """Check counts, totals, extremes and medians for any distribution of calls over ranks."""
    ranks = {rank for *_, rank in rows}
    traces = [
        trace([call(name, ts, dur) for name, ts, dur, of in rows if of == rank], rank=rank)
        for rank in ranks
    ]
    result = cuda_api(traces)
    for name, n, total, low, high in result.calls.select(
        "call", "n", "total_ns", "min_ns", "max_ns"
    ).rows():
        durations = [dur for of, _, dur, _ in rows if of == name]
        assert (n, total, low, high) == (
            len(durations),
            sum(durations),
            min(durations),
            max(durations),
        )
    assert result.by_rank["total_ns"].sum() == result.total_ns == result.ranks["total_ns"].sum()
    assert result.n == len(rows)


def test_calls_without_an_end_and_without_a_name() -> None:
    events = [launch(0), call("cudaFree", 10, None), call(None, 20, 7)]  # type: ignore[arg-type]
    result = cuda_api(_nameless(events))
    assert result.unfinished == 1
    assert result.calls["call"].to_list() == [None, "cudaLaunchKernel"]
    check_wording(result.verdict)
    check_wording(*result.notes)


def _nameless(events: list[dict[str, Any]]) -> Any:
    """Return a trace in which the name ``?`` is null."""
    recorded = trace([{**event, "name": event["name"] or "?"} for event in events])
    names = recorded.events["name"].cast(pl.String).replace("?", None).cast(pl.Categorical())
    return type(recorded)(sources=recorded.sources, events=recorded.events.with_columns(names))


def test_missing_calls_raise_an_error() -> None:
    with raises_wording(MissingData):
        cuda_api(trace([device(GEMM, 0, 5)]))
    with pytest.raises(MissingData, match="lack an end"):
        cuda_api(trace([call("cudaFree", 0, None)]))
    with pytest.raises(MissingData):
        cuda_api(trace([]))
    with pytest.raises(OptionError, match="no input"):
        cuda_api([])


def test_a_single_call_of_no_duration() -> None:
    result = cuda_api(trace([call("cudaLaunchKernel", 0, 0)]))
    check_wording(result.verdict)
    assert result.calls["total_frac"].to_list() == [None]
    assert "1" in result.table()


# --- copies and sets ---------------------------------------------------------------------------


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("by", "name", "size", "finding"),
    [
        ("cudaMemcpyAsync", HTOD, 8, "async-pageable"),
        ("cudaMemcpyAsync", DTOH, MIB, "async-pageable"),
        ("cudaMemcpy2DAsync", HTOD, MIB, "async-pageable"),
        ("hipMemcpyAsync", HTOD, MIB, "async-pageable"),
        ("cuMemcpyHtoDAsync_v2", HTOD, MIB, "async-pageable"),
        ("cudaMemcpyAsync", PINNED, MIB, None),
        ("cudaMemcpyAsync", DTOD, MIB, None),
        ("cudaMemcpy", HTOD, 64 * 1024 + 1, "sync-memcpy"),
        ("cudaMemcpy", HTOD, 64 * 1024, None),
        ("cudaMemcpy", HTOD, None, "sync-memcpy"),
        ("cudaMemcpy", PINNED, MIB, "sync-memcpy-pinned"),
        ("cudaMemcpy", PINNED, 8, None),
        ("cudaMemcpy", DTOH, 257, "sync-memcpy"),
        ("cudaMemcpy", DTOH, 256, "value-read"),
        ("cudaMemcpyAsync", DTOH, 4, "value-read"),
        ("hipMemcpyWithStream", "Memcpy DtoH (Device -> Host)", 4, "value-read"),
        ("cudaMemcpy", DTOD, MIB, None),
        ("hipMemcpyWithStream", "Memcpy HtoD (Host -> Device)", MIB, "sync-memcpy"),
        ("cuMemcpyDtoH_v2", DTOH, MIB, "sync-memcpy"),
        ("cudaMemcpyPeer", "Memcpy PtoP (Device -> Device)", MIB, None),
    ],
)
def test_blocking_copies_are_findings(by: str, name: str, size: int, finding: str | None) -> None:
    result = cuda_api(trace(copied(by, name, size, 1)))
    assert result.moves.select("call", "name", "moved_bytes", "host_ns", "copy_ns").rows() == [
        (by, name, size, 50, 20)
    ]
    assert result.moves["finding"].to_list() == [finding]
    assert findings(result) == ({finding: (1, 50)} if finding else {})


@pytest.mark.parametrize(
    ("by", "name", "finding"),
    [
        ("cudaMemset", "Memset (Managed)", "sync-memset"),
        ("cudaMemset2D", "Memset (Pinned)", "sync-memset"),
        ("cudaMemset", "Memset (Device)", None),
        ("cudaMemsetAsync", "Memset (Managed)", None),
    ],
)
def test_blocking_memsets_are_findings(by: str, name: str, finding: str | None) -> None:
    result = cuda_api(trace(copied(by, name, 8, 1, kind="gpu_memset")))
    assert result.moves["finding"].to_list() == [finding]
    assert findings(result) == ({finding: (1, 50)} if finding else {})


def test_calls_returning_after_the_copy_count_as_waited() -> None:
    waits = copied("cudaMemcpyAsync", DTOH, 8, 1, late=10)
    leaves = copied("cudaMemcpyAsync", DTOH, 8, 2, late=11)
    result = cuda_api(trace([*waits, *leaves]))
    assert result.findings.select("n", "waited", "host_ns", "copy_ns", "moved_bytes").rows() == [
        (2, 1, 100, 40, 16)
    ]


def test_calls_with_several_copies_count_once() -> None:
    events = copied("cudaMemcpy", DTOH, 100, 1)
    second = {**events[1], "ts": events[1]["ts"] + 5, "bytes": 11}
    result = cuda_api(trace([*events, second]))
    values = result.moves.select("n", "moved_bytes", "host_ns", "copy_ns").rows()
    assert values == [(1, 111, 50, 40)]


def test_copies_of_zero_duration_count() -> None:
    by, moved = copied("cudaMemcpy", DTOH, 8, 1)
    result = cuda_api(trace([by, {**moved, "dur": 0}]))
    assert result.moves.select("n", "moved_bytes", "copy_ns").rows() == [(1, 8, 0)]
    assert result.alone == 0


def test_calls_and_copies_are_matched_within_a_process() -> None:
    mine = copied("cudaMemcpy", DTOH, 8, 1)
    other = copied("cudaMemcpyAsync", PINNED, 9, 1, pid=2)
    mine[1]["pid"], other[1]["pid"] = 1, 2
    result = cuda_api(trace([*mine, *other]))
    assert sorted(result.moves.select("call", "moved_bytes").rows()) == [
        ("cudaMemcpy", 8),
        ("cudaMemcpyAsync", 9),
    ]


def test_calls_without_recorded_copies_are_noted() -> None:
    alone = [call("cudaMemcpy", 0, 50, correlation=7), call("cudaMemcpy", 100, 50)]
    result = cuda_api(trace([*alone, *copied("cudaMemcpy", DTOH, 8, 1)]))
    assert (result.alone, findings(result)) == (2, {"value-read": (1, 50)})
    check_wording(*result.notes)


# --- waiting and allocating --------------------------------------------------------------------


def test_calls_are_classified_by_name() -> None:
    sorts = sorted_out(
        ["cudaMemcpy", "cudaMemcpyAsync", "cudaMemset", "cudaDeviceSynchronize", "cudaMalloc",
         "cudaMallocAsync", "cudaFreeHost", "cudaHostAlloc", "cuMemAlloc_v2", "hipHostMalloc",
         "cudaHostRegister", "cudaLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch",
         "cudaLaunchHostFunc", "hipExtModuleLaunchKernel", "cudaFuncGetAttributes",
         "cuCtxSynchronize", "hipEventSynchronize"]
    )  # fmt: skip
    assert sorts.moving == ("cudaMemcpy", "cudaMemcpyAsync", "cudaMemset")
    assert sorts.waiting == ("cudaMemcpy", "cudaMemset")
    assert sorts.synchronising == (
        "cuCtxSynchronize",
        "cudaDeviceSynchronize",
        "hipEventSynchronize",
    )
    assert sorts.allocating == (
        "cuMemAlloc_v2", "cudaFreeHost", "cudaHostAlloc", "cudaHostRegister", "cudaMalloc",
        "hipHostMalloc",
    )  # fmt: skip
    assert sorts.launching == (
        "cuLaunchKernelEx",
        "cudaGraphLaunch",
        "cudaLaunchKernel",
        "hipExtModuleLaunchKernel",
    )


ALLOCATING = [
    call("cudaMalloc", 0, 100),
    launch(200),
    call("cudaMalloc", 300, 30),
    call("cudaFree", 400, 20),
    call("cudaMalloc", 900, 10),
    launch(1_200),
    call("cudaFree", 1_300, 50),
]


@pytest.mark.parametrize("pid", [1, None])
def test_allocations_between_launches_are_findings(pid: int | None) -> None:
    result = cuda_api(trace([{**row, "pid": pid} for row in ALLOCATING]))
    columns = ("call", "n", "total_ns", "max_ns", "loop_n", "loop_ns", "late_n", "late_ns")
    assert result.allocations.select(columns).rows() == [
        ("cudaMalloc", 3, 140, 100, 2, 40, 1, 10),
        ("cudaFree", 2, 70, 50, 1, 20, 0, 0),
    ]
    assert findings(result) == {"alloc-in-loop": (3, 60)}
    check_wording(result.verdict)


def test_allocations_in_the_first_half_are_warm_up() -> None:
    result = cuda_api(trace([row for row in ALLOCATING if row["ts"] != 900]))
    assert findings(result) == {"alloc-in-loop": (2, 50)}
    check_wording(result.verdict)


@pytest.mark.parametrize(
    ("ts", "inside", "late"),
    [(200, 0, 0), (201, 1, 0), (699, 1, 0), (700, 1, 1), (1_199, 1, 1), (1_200, 0, 0)],
)
def test_loop_and_second_half_have_exact_bounds(ts: int, inside: int, late: int) -> None:
    events = [launch(200), call("cudaMalloc", ts, 10), launch(1_200)]
    row = cuda_api(trace(events)).allocations.row(0, named=True)
    assert (row["loop_n"], row["late_n"]) == (inside, late)
    assert (row["loop_ns"], row["late_ns"]) == (10 * inside, 10 * late)


def test_loops_are_separate_for_each_process() -> None:
    other = [launch(5_000, pid=2), launch(6_000, pid=2), call("cudaMalloc", 5_500, 1)]
    assert findings(cuda_api(trace([*ALLOCATING, *other]))) == {"alloc-in-loop": (3, 60)}


def test_traces_without_launches_have_no_loop() -> None:
    result = cuda_api(trace([call("cudaMalloc", 0, 10), call("cudaMalloc", 50, 10)]))
    assert result.allocations.select("n", "loop_n", "loop_ns", "late_n").rows() == [(2, 0, 0, 0)]
    assert findings(result) == {}


def test_synchronising_calls_are_findings() -> None:
    events = [launch(0), call("cudaStreamSynchronize", 10, 90), call("cudaEventQuery", 200, 5)]
    result = cuda_api(trace(events))
    assert findings(result) == {"sync-call": (1, 90)}
    assert result.findings["host_frac"].to_list() == [0.9]
    check_wording(result.verdict)


def test_small_findings_share_one_sentence() -> None:
    long = call("cudaLaunchKernel", 10, 100_000)
    result = cuda_api(trace([long, *copied("cudaMemcpy", DTOH, 8, 200)]))
    assert findings(result) == {"value-read": (1, 50)}
    check_wording(result.verdict)


def test_every_finding_has_texts() -> None:
    for finding in FINDINGS.values():
        assert finding.sentence(1) == finding.one
        assert finding.sentence(2) == finding.several
        assert finding.advice
        assert len(finding.what) < 32


# --- ranks -------------------------------------------------------------------------------------


def test_ranks_have_one_row_each() -> None:
    first = trace([*ALLOCATING, *copied("cudaMemcpy", DTOH, 8, 3)], rank=0)
    second = trace([launch(0), call("cudaDeviceSynchronize", 10, 300)], rank=1)
    result = cuda_api([second, first])
    columns = ("rank", "n", "total_ns", "waiting_ns", "copying_ns", "allocating_ns")
    assert result.ranks.select(columns).rows() == [(0, 8, 270, 0, 50, 60), (1, 2, 305, 300, 0, 0)]
    assert result.by_rank.filter(pl.col("call") == "cudaLaunchKernel").select(
        "rank", "n"
    ).rows() == [
        (0, 2),
        (1, 1),
    ]
    names = [table.name for table in result.tables]
    assert names == ["findings", "calls", "moves", "allocations", "ranks", "by_rank"]


def test_trace_of_several_ranks_is_separated() -> None:
    both = trace([launch(0, rank=0), launch(9, rank=1)], rank=None)
    assert cuda_api(both).ranks["rank"].to_list() == [0, 1]


def test_one_rank_has_no_table_of_ranks() -> None:
    names = [table.name for table in cuda_api(trace(ALLOCATING)).tables]
    assert names == ["findings", "calls", "moves", "allocations"]


# --- the command -------------------------------------------------------------------------------


def test_command_output_on_the_fixture(
    run_cli: Callable[..., Any], golden: Callable[[str, str | bytes], None]
) -> None:
    done = run_cli("api", ROOT / "fixtures/nccl_8ranks")
    assert (done.returncode, done.stderr) == (0, "")
    golden("api_nccl_8ranks.txt", done.stdout)


def test_command_writes_json_and_plot(run_cli: Callable[..., Any], tmp_path: Any) -> None:
    picture = tmp_path / "calls.svg"
    fixture = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    done = run_cli("api", fixture, "--to", "json", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    parsed = json.loads(done.stdout)
    assert parsed["n"] == sum(row["n"] for row in parsed["calls"])
    assert picture.read_text().startswith("<?xml")


def test_command_without_gpu_reports_missing_data(run_cli: Callable[..., Any]) -> None:
    done = run_cli("api", ROOT / "fixtures/ddp_gloo_4ranks")
    assert (done.returncode, done.stdout) == (1, "")
    check_wording(done.stderr)


def test_files_and_traces_give_the_same_result() -> None:
    path = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    from_file, from_trace = ta.cuda_api(path), ta.cuda_api(ta.read(path))
    assert from_file.to_dict() == from_trace.to_dict()
