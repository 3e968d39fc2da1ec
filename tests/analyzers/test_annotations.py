"""Annotations of small synthetic traces, and the command on the fixtures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
from comm_traces import GEMM, device, host, step, trace
from conftest import ROOT, run_cli
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers.annotations import By, Options
from traceanalyzer.analyzers.annotations.compute import annotated, annotations, attribute, launched
from traceanalyzer.analyzers.annotations.result import Annotations
from traceanalyzer.cli.main import status
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.trace import Trace

FIXTURES = ROOT / "fixtures"
GOLDEN = Callable[[str, str | bytes], None]
Row = dict[str, Any]


def mark(name: str, ts: int, dur: int | None, **more: Any) -> Row:
    return {**host("nvtx", name, ts, 0), "dur": dur, **more}


def launch(ts: int, correlation: int, dur: int | None = 2, **more: Any) -> Row:
    call = host("cuda_runtime", "cudaLaunchKernel", ts, 0, correlation=correlation, **more)
    return {**call, "dur": dur}


def work(ts: int, dur: int, correlation: int, **more: Any) -> Row:
    return device(GEMM, ts, dur, correlation=correlation, **more)


def rows(result: Annotations, *columns: str) -> dict[str, tuple[Any, ...]]:
    parsed = result.annotations.select("name", *columns)
    return {name: values for name, *rest in parsed.iter_rows() for values in [tuple(rest)]}


#: A layer in a forward pass, and an optimizer; the last kernel is in none, the first unknown.
NESTED = [
    mark("forward", 0, 50),
    mark("layer", 10, 20, category="lib"),
    mark("layer", 32, 8, category="lib"),
    mark("optimizer", 60, 20),
    launch(12, 1),
    launch(15, 2),
    launch(42, 3),
    launch(65, 4),
    launch(90, 5),
    work(100, 10, 1),
    work(120, 5, 2),
    work(130, 20, 3),
    work(160, 7, 4),
    work(170, 9, 5),
    work(180, 3, 99),
]


# --- sums ----------------------------------------------------------------------------------------


def test_host_time_is_summed_by_name() -> None:
    result = rows(annotations(trace(NESTED)), "ranges", "host_ns", "self_ns", "mean_ns", "max_ns")
    assert result == {
        "forward": (1, 50, 22, 50, 50),
        "layer": (2, 28, 28, 14, 20),
        "optimizer": (1, 20, 20, 20, 20),
    }


def test_device_work_has_total_and_self_sums() -> None:
    result = annotations(trace(NESTED))
    columns = ("launching", "projected_ns", "n", "device_ns", "self_n", "self_device_ns")
    assert rows(result, *columns) == {
        "forward": (1, 50, 3, 35, 1, 20),
        "layer": (1, 25, 2, 15, 2, 15),
        "optimizer": (1, 7, 1, 7, 1, 7),
    }
    assert result.annotations["device_frac"].to_list() == pytest.approx([35 / 54, 15 / 54, 7 / 54])
    assert (result.work.n, result.work.total_ns) == (6, 54)
    assert (result.inside.n, result.inside.total_ns) == (4, 42)
    assert (result.other_thread.n, result.unlaunched.n, result.unlaunched.total_ns) == (0, 1, 3)


def test_copies_and_memsets_count_as_work_but_not_as_kernels() -> None:
    recorded = [*NESTED, launch(68, 6), work(200, 4, 6, kind="gpu_memcpy")]
    columns = ("n", "kernels", "self_kernels", "device_ns", "projected_ns")
    assert rows(annotations(trace(recorded)), *columns)["optimizer"] == (2, 1, 1, 11, 44)


@pytest.mark.parametrize(
    ("call", "length", "inside"),
    [(10, 2, 1), (18, 2, 1), (9, 2, 0), (19, 2, 0), (20, 0, 1), (5, 30, 0), (12, None, 0)],
)
def test_launch_calls_count_only_if_completely_inside_the_range(
    call: int, length: int | None, inside: int
) -> None:
    recorded = trace([mark("a", 10, 10), launch(call, 1, length), work(100, 5, 1)])
    result = annotations(recorded)
    assert rows(result, "n")["a"] == (inside,)
    assert result.inside.n == inside
    assert result.unlaunched.n == (length is None)


def test_overlapping_ranges_count_independently() -> None:
    recorded = [
        mark("a", 0, 20),
        mark("b", 10, 20),
        launch(5, 1),
        launch(15, 2),
        launch(25, 3),
        *(work(100 * n, n, n) for n in (1, 2, 3)),
    ]
    result = annotations(trace(recorded))
    columns = ("n", "device_ns", "self_n", "self_device_ns", "host_ns", "self_ns")
    assert rows(result, *columns) == {"a": (2, 3, 1, 1, 20, 10), "b": (2, 5, 2, 5, 20, 20)}


def test_a_range_inside_one_of_its_name_counts_once() -> None:
    marks = [mark("f", 0, 50), mark("g", 5, 40), mark("f", 10, 30), mark("f", 60, 20)]
    calls = [launch(1, 1), launch(12, 2), launch(61, 3)]
    result = annotations(trace([*marks, *calls, work(100, 5, 1), work(110, 7, 2), work(120, 8, 3)]))
    assert rows(result, "ranges", "host_ns", "mean_ns", "n", "device_ns", "self_device_ns") == {
        "f": (3, 70, 33, 3, 20, 20),
        "g": (1, 40, 40, 1, 7, 0),
    }
    assert result.annotations["device_frac"].to_list() == pytest.approx([1.0, 0.35])


def test_ranges_are_grouped_by_domain() -> None:
    recorded = trace([mark("x", 0, 10), mark("x", 20, 10, category="NCCL")])
    frame = annotations(recorded).annotations.select("domain", "name", "ranges").sort("domain")
    assert frame.rows() == [(None, "x", 1), ("NCCL", "x", 1)]
    annotated = trace([host("user_annotation", "x", 0, 10, category="user_annotation")])
    assert annotations(annotated).annotations["domain"].to_list() == [None]


def test_profiler_steps_are_one_row() -> None:
    result = annotations(trace([step(1, 0, 10), step(2, 10, 20)]))
    assert rows(result, "ranges", "host_ns") == {"ProfilerStep*": (2, 30)}


def test_annotations_recorded_as_operators_count() -> None:
    name = "Optimizer.step#SGD.step"
    recorded = [host("cpu_op", name, 0, 10), host("cpu_op", "aten::mul", 2, 5)]
    assert rows(annotations(trace(recorded)), "ranges", "self_ns") == {name: (1, 10)}


def test_only_matching_names_count() -> None:
    result = annotations(trace(NESTED), names=["forward", "opt"])
    assert rows(result, "self_n", "self_ns") == {"forward": (3, 50), "optimizer": (1, 20)}
    check_wording(*result.notes)
    with raises_wording(MissingData):
        annotations(trace(NESTED[1:]), names=["back", "ward$"])
    with raises_wording(OptionError):
        annotations(trace(NESTED), names=["("])


# --- threads, processes, ranks -------------------------------------------------------------------


def test_work_of_another_thread_is_not_attributed() -> None:
    recorded = [
        mark("backward", 0, 50),
        launch(10, 1, tid=2),
        launch(60, 2, tid=2),
        work(100, 5, 1),
        work(120, 9, 2),
    ]
    result = annotations(trace(recorded))
    assert rows(result, "n")["backward"] == (0,)
    assert (result.other_thread.n, result.other_thread.total_ns) == (1, 5)
    assert "35.7 %" not in result.verdict
    check_wording(result.verdict)


def test_ranges_of_a_process_have_host_time_only() -> None:
    recorded = [mark("whole", 0, 50, tid=None), launch(10, 1), work(100, 5, 1)]
    result = annotations(trace(recorded))
    assert rows(result, "host_ns", "self_ns", "n") == {"whole": (50, None, 0)}
    assert result.process_wide == 1
    assert result.other_thread.n == 0
    check_wording(*result.notes)
    assert str(result)


def test_correlation_ids_are_matched_within_a_process() -> None:
    recorded = [
        mark("a", 0, 10),
        mark("b", 0, 10, pid=2),
        launch(2, 7),
        launch(2, 7, pid=2),
        work(100, 5, 7, pid=1),
        work(100, 9, 7, pid=2),
    ]
    assert rows(annotations(trace(recorded)), "n", "device_ns") == {"a": (1, 5), "b": (1, 9)}


def test_a_graph_launch_has_all_its_kernels() -> None:
    recorded = [mark("a", 0, 10), launch(2, 7), *(work(100 + 10 * n, 4, 7) for n in range(3))]
    result = rows(annotations(trace(recorded)), "n", "device_ns", "projected_ns", "self_n")
    assert result == {"a": (3, 12, 24, 3)}


def test_ranks_are_summed_unless_grouped_by_rank() -> None:
    recorded = [trace(NESTED, rank=0), trace(NESTED, rank=1)]
    both, apart = annotations(recorded), annotations(recorded, by="rank")
    assert rows(both, "ranges", "device_ns")["forward"] == (2, 70)
    values = apart.annotations.filter(pl.col("name") == "forward").select("rank", "device_ns")
    assert values.rows() == [(0, 35), (1, 35)]
    assert both.ranks.select("rank", "ranges", "n", "inside_ns").rows() == [
        (0, 4, 6, 42),
        (1, 4, 6, 42),
    ]
    assert str(annotations(recorded[::-1], by="rank")) == str(apart)


def test_files_without_a_rank_are_grouped_by_path() -> None:
    recorded = [trace(NESTED, rank=None, path=path) for path in ("b.json", "a.json")]
    apart = annotations(recorded, by="rank").annotations
    values = apart.filter(pl.col("name") == "layer").select("path", "device_ns")
    assert values.rows() == [("a.json", 15), ("b.json", 15)]


def test_two_ranks_in_one_trace_are_separated() -> None:
    events = [{**row, "rank": rank, "pid": rank} for rank in (0, 1) for row in NESTED]
    result = annotations(trace(events))
    assert rows(result, "ranges", "device_ns")["forward"] == (2, 70)
    assert result.ranks["rank"].to_list() == [0, 1]


# --- what is not there ---------------------------------------------------------------------------


def test_traces_without_device_work_have_host_time() -> None:
    result = annotations(trace(NESTED[:4]))
    check_wording(result.verdict)
    assert [table.name for table in result.tables] == ["host"]
    assert str(result)
    result.plot()


@pytest.mark.parametrize("events", [[], [work(0, 5, 1)], [host("cpu_op", "aten::mul", 0, 5)]])
def test_missing_annotations_raise_an_error(events: list[Row]) -> None:
    with raises_wording(MissingData):
        annotations(trace(events))


def test_instant_marks_are_not_ranges() -> None:
    with raises_wording(MissingData):
        annotations(trace([mark("now", 5, None)]))
    assert rows(annotations(trace([mark("now", 5, None), mark("a", 5, 0)])), "ranges") == {
        "a": (1,)
    }


def test_unclosed_annotations_are_counted() -> None:
    cut = {**step(2, 20, 0), "dur": None}
    result = annotations(trace([step(1, 0, 10), cut]))
    assert result.unclosed == 1
    check_wording(result.notes)


def test_work_without_correlation_ids_is_not_attributed() -> None:
    recorded = [mark("a", 0, 10), {**launch(2, 0), "correlation": None}, device(GEMM, 100, 5)]
    result = annotations(trace(recorded))
    assert (result.inside.n, result.unlaunched.n) == (0, 1)
    check_wording(result.verdict)


def test_a_range_without_a_name() -> None:
    recorded = trace(NESTED)
    blank = pl.Series("name", [None] * recorded.events.height, dtype=schema.NAME)
    result = annotations(replace(recorded, events=recorded.events.with_columns(blank)))
    assert result.annotations["name"].to_list() == [None, None]
    assert "(no name)" in result.verdict
    assert "(no name)" in str(result)
    result.plot()


# --- against a loop over all pairs ---------------------------------------------------------------

MARK = st.tuples(st.integers(0, 40), st.integers(0, 30), st.sampled_from([1, 1, 2, None]))
CALL = st.tuples(st.integers(0, 60), st.integers(0, 5), st.integers(1, 3), st.integers(1, 9))


@settings(max_examples=60, deadline=None)
@given(st.lists(MARK, min_size=1, max_size=15), st.lists(CALL, max_size=20))
def test_attribution_agrees_with_a_plain_loop(
    marks: list[tuple[int, int, int | None]], calls: list[tuple[int, int, int, int]]
) -> None:
    events = [mark(f"m{n}", ts, dur, tid=tid) for n, (ts, dur, tid) in enumerate(marks)]
    for n, (ts, dur, tid, _) in enumerate(calls):
        events.append(launch(ts, n, dur, tid=tid))
    events += [work(200 - 7 * n, length, n) for n, (*_, length) in enumerate(calls)]
    ranges = annotated(trace(events), ())[0]
    pieces = launched(trace(events), ranges)[0]
    result = attribute(ranges, pieces)
    inner = dict(zip(pieces["event"], result.innermost.tolist(), strict=True))
    assert len(inner) == len(calls)
    for row in result.ranges.iter_rows(named=True):
        ts, dur, tid = marks[int(row["name"][1:])]
        inside = [n for n, c in enumerate(calls) if c[2] == tid and ts <= c[0]]
        inside = [n for n in inside if calls[n][0] + calls[n][1] <= ts + dur]
        starts = [200 - 7 * n for n in inside]
        ends = [200 - 7 * n + calls[n][3] for n in inside]
        assert (row["n"], row["kernels"]) == (len(inside), len(inside))
        assert row["device_ns"] == sum(calls[n][3] for n in inside)
        assert row["projected_start"] == min(starts, default=None)
        assert row["projected_end"] == max(ends, default=None)
    start, end, thread = (result.ranges[c].to_list() for c in ("start", "end", "thread"))
    for piece in pieces.iter_rows(named=True):
        inside = [
            row
            for row in range(len(start))
            if thread[row] is not None
            and thread[row] == piece["thread"]
            and start[row] <= piece["since"]
            and piece["until"] <= end[row]
        ]
        assert inner[piece["event"]] == max(inside, default=-1)
    sums = result.ranges.select("self_n", "self_device_ns").sum().row(0)
    known = np.flatnonzero(result.innermost >= 0)
    assert sums == (known.size, (pieces["end"] - pieces["start"])[known].sum())


# --- the command ---------------------------------------------------------------------------------


def test_invalid_options_are_refused() -> None:
    with raises_wording(OptionError):
        Options(by="colour")  # type: ignore[arg-type]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nccl_8ranks", ["nccl_8ranks"]),
        ("by_rank", ["nccl_8ranks", "--by", "rank", "--name", "nccl", "--top", "5"]),
        ("on_host", ["ddp_gloo_4ranks"]),
        ("nsys", ["nsys/training.sqlite"]),
        ("all", ["nsys/training.sqlite", "--top", "all"]),
    ],
)
def test_terminal_output(name: str, arguments: list[str], golden: GOLDEN) -> None:
    done = run_cli("annotations", *arguments, "-q", cwd=FIXTURES)
    assert (done.returncode, done.stderr) == (0, "")
    golden(f"annotations_{name}.txt", done.stdout)


def test_json_and_csv_have_all_rows() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    parsed = json.loads(run_cli("annotations", path, "--to", "json").stdout)
    assert sum(row["self_n"] for row in parsed["annotations"]) == parsed["inside_n"] == 114
    header = run_cli("annotations", path, "--to", "csv").stdout.splitlines()[0]
    assert header.startswith("domain,name,ranges,host_ns,self_ns,mean_ns,median_ns,min_ns,max_ns")


def test_plot_is_written(tmp_path: Any) -> None:
    picture = tmp_path / "annotations.svg"
    done = run_cli("annotations", FIXTURES / "nccl_8ranks/rank0.json.gz", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Device work by annotation" in picture.read_text()


def test_invalid_arguments_exit_with_usage_error() -> None:
    assert status(["annotations", "x.json", "--by", "magic"]) == 2


def test_files_and_traces_give_the_same_result() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    whole: Trace = ta.read(path)
    for by in (None, *get_args(By)):
        assert str(ta.annotations(path, by=by)) == str(annotations(whole, by=by)), by
    assert str(ta.annotations(path, names="nccl")) == str(annotations(whole, names=["nccl"]))
