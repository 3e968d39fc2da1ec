"""Kernels of small synthetic traces, and the command on the fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, device, host, step, trace
from conftest import ROOT, run_cli
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.kernels import By
from traceanalyzer.analyzers.kernels.compute import kernels
from traceanalyzer.analyzers.kernels.result import Kernels
from traceanalyzer.cli.main import status
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.frames import intervals

FIXTURES = ROOT / "fixtures"
GOLDEN = Callable[[str, str | bytes], None]
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)"


def copy(ts: int, dur: int, **more: Any) -> dict[str, Any]:
    name = "Memcpy HtoD (Pinned -> Device)"
    return device(name, ts, dur, **{"kind": "gpu_memcpy", **more})


def launch(ts: int, correlation: int, **more: Any) -> dict[str, Any]:
    return host("cuda_runtime", "cudaLaunchKernel", ts, 2, correlation=correlation, **more)


def rows(frame: pl.DataFrame | None, *columns: str) -> list[tuple[Any, ...]]:
    assert frame is not None
    return frame.select(columns).rows()


WORK = [
    device(GEMM, 0, 40),
    device(GEMM, 50, 20),
    device(ADD, 80, 10),
    device(ALL_REDUCE, 30, 40, stream=20),
    copy(95, 5),
    {**device("memset", 98, 2), "kind": "gpu_memset"},
]

#: Two operators in two annotations in a step with kernels; the last kernel has no operator.
LAUNCHED = [
    step(1, 0, 100),
    host("user_annotation", "forward", 5, 40),
    host("cpu_op", "aten::linear", 8, 30),
    host("cpu_op", "aten::addmm", 10, 20),
    launch(15, 1),
    host("user_annotation", "optimizer", 50, 40),
    host("cpu_op", "aten::add_", 55, 20),
    launch(60, 2),
    launch(92, 3),
    device(GEMM, 200, 7, correlation=1),
    device(ADD, 210, 8, correlation=2),
    device(ADD, 220, 9, correlation=3),
    device("early", 0, 4, correlation=99),
]


# --- sums --------------------------------------------------------------------------------------


def test_kernels_by_family_and_by_name() -> None:
    result = kernels(trace(WORK))
    assert rows(result.families, "family", "n", "total_ns") == [
        ("gemm", 2, 60),
        ("communication", 1, 40),
        ("elementwise", 1, 10),
        ("memcpy HtoD", 1, 5),
        ("memset", 1, 2),
    ]
    assert rows(result.names, "kernel", "family", "n", "total_ns")[:3] == [
        ("gemm", "gemm", 2, 60),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication", 1, 40),
        ("vectorized_elementwise_kernel<CUDAFunctor_add<float>>", "elementwise", 1, 10),
    ]
    assert (result.n, result.total_ns, result.busy_ns, result.span_ns) == (6, 117, 85, 100)


def test_shares_add_up() -> None:
    result = kernels(trace(WORK))
    assert result.families["device_frac"][0] == pytest.approx(60 / 117)
    assert result.families["device_frac"].sum() == pytest.approx(1)
    check_wording(*result.notes)


def test_durations_are_summarized() -> None:
    lengths = [1, 2, 3, 4, 100]
    work = [device("k", 1_000 * n, dur) for n, dur in enumerate(lengths)]
    result = kernels(trace(work)).names.row(0, named=True)
    columns = ("n", "total_ns", "mean_ns", "min_ns", "median_ns", "p99_ns", "max_ns")
    assert [result[name] for name in columns] == [5, 110, 22, 1, 3, 96, 100]


def test_patterns_select_communication() -> None:
    recorded = trace([device("my_fabric_kernel", 0, 10)])
    assert kernels(recorded).families["family"].to_list() == ["other"]
    assert kernels(recorded, comm_patterns=["fabric"]).families["family"].to_list() == [
        "communication"
    ]
    with raises_wording(OptionError):
        kernels(recorded, comm_patterns=["("])


def test_kernel_with_a_collective_is_communication() -> None:
    values = trace([device("generic", 0, 10, collective="all_gather", seq=1)])
    assert kernels(values).families["family"].to_list() == ["communication"]


def test_verdict_names_the_largest_kernels() -> None:
    text = kernels(trace(WORK)).verdict
    check_wording(text)
    assert "comm-outliers" in text
    assert "tensor cores" not in text


def test_single_precision_kernels_are_reported() -> None:
    slow = [device("volta_sgemm_128x64_nt", 0, 60), device("h100_mystery", 60, 40)]
    check_wording(kernels(trace(slow)).verdict)
    fast = [device("ampere_bf16_s16816gemm_bf16_128x128_ldg8_stages_32x5_tn", 0, 60)]
    assert "tensor cores" not in kernels(trace(fast)).verdict
    few = [device("volta_sgemm_128x64_nt", 0, 5), device("h100_mystery", 60, 95)]
    assert "tensor cores" not in kernels(trace(few)).verdict


def test_copies_are_not_named_as_kernels() -> None:
    check_wording(kernels(trace([*WORK, copy(200, 999)])).verdict)
    assert "heaviest" not in kernels(trace([copy(0, 5)])).verdict


# --- groups ------------------------------------------------------------------------------------


def test_by_stream_shares_are_of_the_streams_device() -> None:
    work = [*WORK, device(GEMM, 0, 10, device=1)]
    result = kernels(trace(work), by="stream")
    assert rows(result.groups, "rank", "device", "stream", "n", "total_ns", "family") == [
        (0, 0, 7, 5, 77, "gemm"),
        (0, 0, 20, 1, 40, "communication"),
        (0, 1, 7, 1, 10, "gemm"),
    ]
    assert result.groups is not None
    assert result.groups["device_frac"].to_list() == pytest.approx([77 / 117, 40 / 117, 1])
    assert result.groups["family_frac"].to_list() == pytest.approx([60 / 77, 1, 1])
    assert rows(result.families, "device", "stream", "family", "total_ns")[-1] == (
        0,
        7,
        "memset",
        2,
    )
    columns = [list(table.columns) for table in result.tables]
    assert columns[0][:2] == ["device", "stream"], "one rank says nothing"


def test_by_rank_and_device() -> None:
    traces = [trace(WORK, rank=3), trace([device(GEMM, 0, 10)], rank=1)]
    by_rank = kernels(traces, by="rank")
    assert rows(by_rank.groups, "rank", "total_ns") == [(3, 117), (1, 10)]
    assert by_rank.groups is not None
    assert by_rank.groups["device_frac"].to_list() == pytest.approx([1, 1])
    by_device = kernels(traces, by="device")
    assert rows(by_device.groups, "rank", "device") == [(3, 0), (1, 0)]
    assert (by_rank.busy_ns, by_rank.span_ns) == (95, 110)


def test_by_operator() -> None:
    result = kernels(trace(LAUNCHED), by="operator")
    assert rows(result.groups, "operator", "n", "total_ns") == [
        (None, 2, 13),
        ("aten::add_", 1, 8),
        ("aten::addmm", 1, 7),
    ]
    assert "(none known)" in str(result)


def with_id(event: dict[str, Any], number: int | None) -> dict[str, Any]:
    return {**event, "external_id": number}


def test_external_id_gives_the_operator_without_a_launch_call() -> None:
    calls = [with_id(host("cpu_op", name, 0, 5), i) for i, name in enumerate(("zero", "mm", "add"))]
    work = [with_id(device(GEMM, 10 * i, 1 + i), i) for i in (0, 1, 1, 2)]
    result = kernels(trace([*calls, *work]), by="operator")
    assert rows(result.groups, "operator", "n") == [
        ("mm", 2),
        ("add", 1),
        (None, 1),
    ]  # 0 has no operator


def test_invalid_external_ids_are_ignored() -> None:
    ids = {"aten::addmm": 1, "aten::add_": 2}
    wrong = [
        with_id(event, ids.get(event["name"], 3 if event.get("device") == 0 else None))
        for event in LAUNCHED
    ]
    result = kernels(trace([*wrong, with_id(host("cpu_op", "other", 0, 1), 3)]), by="operator")
    assert rows(result.groups, "operator", "n") == rows(
        kernels(trace(LAUNCHED), by="operator").groups, "operator", "n"
    )


def test_by_annotation_steps_do_not_count() -> None:
    result = kernels(trace(LAUNCHED), by="annotation")
    assert rows(result.groups, "annotation", "n", "total_ns") == [
        (None, 2, 13),
        ("optimizer", 1, 8),
        ("forward", 1, 7),
    ]


def test_pytorch_annotations_recorded_as_operators_count() -> None:
    old = [{**e, "kind": "cpu_op"} if e["kind"] == "user_annotation" else e for e in LAUNCHED]
    names = {"forward": "enumerate(DataLoader)#x.__next__", "optimizer": "Optimizer.step#SGD.step"}
    old = [{**event, "name": names.get(event["name"], event["name"])} for event in old]
    result = kernels(trace(old), by="annotation")
    assert rows(result.groups, "annotation", "n") == [
        (None, 2),
        ("Optimizer.step#SGD.step", 1),
        ("enumerate(DataLoader)#x.__next__", 1),
    ]


@pytest.mark.parametrize("by", get_args(By)[:5])
def test_groups_add_up(by: Any) -> None:
    whole, result = kernels(trace(LAUNCHED)), kernels(trace(LAUNCHED), by=by)
    assert result.groups is not None
    for frame in (result.groups, result.families, result.names):
        assert (frame["n"].sum(), frame["total_ns"].sum()) == (whole.n, whole.total_ns)
    assert result.verdict == whole.verdict


# --- what is not there -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("events", "by", "text"),
    [
        ([], None, "no kernel, gpu_memcpy or gpu_memset .*CUDA"),
        ([host("cpu_op", "f", 0, 1)], None, "no kernel"),
        ([device(GEMM, 0, None)], None, "all recorded device work lacks an end time"),
        ([device(GEMM, 0, 5)], "operator", "no cuda_runtime or cuda_driver .*CPU, CUDA"),
        ([device(GEMM, 0, 5), launch(0, 1)], "operator", "no cpu_op .*ProfilerActivity.CPU"),
        ([device(GEMM, 0, 5), launch(0, 1)], "annotation", "no annotations .*record_function"),
        (
            [device(GEMM, 0, 5), launch(0, 1), step(1, 0, 9)],
            "annotation",
            "no annotations other than steps",
        ),
    ],
)
def test_missing_data_raises_an_error(events: list[dict[str, Any]], by: Any, text: str) -> None:
    with pytest.raises(MissingData, match=rf"rank0\.json: {text}"):
        kernels(trace(events), by=by)


def test_invalid_options_are_refused() -> None:
    with raises_wording(OptionError):
        kernels(trace(WORK), by="magic")  # type: ignore[arg-type]


def test_unfinished_work_is_excluded_and_counted() -> None:
    result = kernels(trace([*WORK, device("hangs", 70, None)]))
    assert (result.n, result.unfinished) == (6, 1)
    check_wording(result.notes)


def test_annotations_and_synchronisation_are_not_device_work() -> None:
    more = [
        {**device("ProfilerStep#1", 0, 1_000), "kind": "gpu_user_annotation"},
        {**device("Stream Synchronize", 0, 1_000), "kind": "cuda_sync"},
    ]
    assert kernels(trace([*WORK, *more])).total_ns == 117


def test_work_without_ids_has_no_operator() -> None:
    blind = [{**event, "correlation": None} for event in LAUNCHED if event.get("device") == 0]
    calls = [event for event in LAUNCHED if event.get("device") is None]
    result = kernels(trace([*calls, *blind]), by="operator")
    assert rows(result.groups, "operator", "n") == [(None, 4)]


def test_rank_column_is_omitted_without_ranks() -> None:
    result = kernels(trace(WORK, rank=None), by="stream")
    assert rows(result.groups, "rank", "stream") == [(None, 7), (None, 20)]
    assert "rank" not in result.tables[0].columns
    assert str(result)


def test_files_without_a_rank_are_separate_devices() -> None:
    parts = [trace(WORK, rank=None, path=name) for name in ("a.json", "b.json")]
    result = kernels(parts)
    assert (result.busy_ns, result.span_ns) == (170, 200)
    assert result.devices["path"].to_list() == ["a.json", "b.json"]
    assert "a.json" in str(result)


def test_two_processes_on_one_device_share_its_busy_time() -> None:
    work = [device(GEMM, 0, 50, pid=1), device(GEMM, 25, 50, pid=2)]
    result = kernels(trace(work))
    assert (result.total_ns, result.busy_ns, result.devices.height) == (100, 75, 1)


def test_unnamed_and_zero_length_kernels_count() -> None:
    recorded = trace([device("k", 0, 10), device("k", 20, 0)])
    blank = pl.Series("name", [None, None], dtype=pl.Categorical)
    result = kernels(replace(recorded, events=recorded.events.with_columns(blank)))
    assert rows(result.names, "name", "kernel", "family", "n", "total_ns") == [
        (None, None, "other", 2, 10)
    ]
    assert str(result)


def test_a_single_event_of_no_length() -> None:
    result = kernels(trace([device("k", 5, 0)]))
    assert rows(result.families, "n", "total_ns", "device_frac") == [(1, 0, None)]
    assert str(result)
    result.plot()


def test_result_does_not_depend_on_rank_order() -> None:
    parts = [trace(WORK, rank=0), trace(LAUNCHED, rank=1)]
    assert str(kernels(parts, by="rank")) == str(kernels(parts[::-1], by="rank"))


PIECE = st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.integers(0, 20), st.integers(0, 2))


@settings(max_examples=40, deadline=None)
@given(st.lists(PIECE, min_size=1, max_size=20))
def test_totals_are_at_least_the_busy_time(pieces: list[tuple[str, int, int, int]]) -> None:
    recorded = trace([device(n, ts, dur, stream=on, device=on % 2) for n, ts, dur, on in pieces])
    result = kernels(recorded)
    assert result.total_ns == sum(dur for _, _, dur, _ in pieces) >= result.busy_ns
    assert result.busy_ns <= result.span_ns
    work = recorded.events.select("device", start="ts", end=pl.col("ts") + pl.col("dur"))
    assert result.busy_ns == intervals.measure(work, ["device"])["length"].sum()
    one = result.names
    assert (one["min_ns"] <= one["median_ns"]).all()
    assert (one["median_ns"] <= one["p99_ns"]).all()
    assert (one["p99_ns"] <= one["max_ns"]).all()


# --- the command -------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nccl_8ranks", ["nccl_8ranks"]),
        ("operators", ["nccl_8ranks/rank5.json.gz", "--by", "operator"]),
        ("streams", ["nccl_8ranks", "--by", "stream", "--top", "5"]),
        ("all", ["nccl_8ranks_isolated", "--top", "all"]),
    ],
)
def test_terminal_output(name: str, arguments: list[str], golden: GOLDEN) -> None:
    done = run_cli("kernels", *arguments, "-q", cwd=FIXTURES)
    assert (done.returncode, done.stderr) == (0, "")
    golden(f"kernels_{name}.txt", done.stdout)


def test_json_and_csv_have_all_rows() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    parsed = json.loads(run_cli("kernels", path, "--to", "json").stdout)
    assert sum(row["n"] for row in parsed["names"]) == parsed["n"] == 114
    header = run_cli("kernels", path, "--to", "csv").stdout.splitlines()[0]
    assert header.startswith("family,n,total_ns,device_frac,mean_ns,min_ns,median_ns,p99_ns")


def test_plot_is_written(tmp_path: Any) -> None:
    picture = tmp_path / "kernels.svg"
    done = run_cli("kernels", FIXTURES / "nccl_8ranks/rank0.json.gz", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    text = picture.read_text()
    assert "Device work by family" in text
    assert "Kernels by total time" in text


def test_command_without_gpu_reports_missing_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert status(["kernels", str(FIXTURES / "ddp_gloo_4ranks"), "-q"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    check_wording(err)


def test_invalid_arguments_exit_with_usage_error() -> None:
    assert status(["kernels", "x.json", "--by", "magic"]) == 2


@pytest.mark.matrix
def test_files_and_traces_give_the_same_result() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    for by in (None, *(one for one in get_args(By) if one not in ("module", "code"))):
        values: Kernels = kernels(path, by=by)
        assert str(values) == str(kernels(ta.read(path), by=by)), by
    assert kernels(path, comm_patterns="gemm").families["family"][0] == "communication"
