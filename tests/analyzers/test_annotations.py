"""Annotations of small traces written down event by event, and the command on the fixtures."""

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
from traceanalyzer.analyzers.annotations import annotations
from traceanalyzer.analyzers.annotations.compute import annotated, attribute, launched
from traceanalyzer.analyzers.annotations.options import By, Options
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


def rows(found: Annotations, *columns: str) -> dict[str, tuple[Any, ...]]:
    told = found.annotations.select("name", *columns)
    return {name: values for name, *rest in told.iter_rows() for values in [tuple(rest)]}


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


def test_host_time() -> None:
    found = rows(annotations(trace(NESTED)), "ranges", "host_ns", "self_ns", "mean_ns", "max_ns")
    assert found == {
        "forward": (1, 50, 22, 50, 50),
        "layer": (2, 28, 28, 14, 20),
        "optimizer": (1, 20, 20, 20, 20),
    }


def test_device_work_inclusive_and_innermost() -> None:
    found = annotations(trace(NESTED))
    told = ("launching", "projected_ns", "n", "device_ns", "own_n", "own_device_ns")
    assert rows(found, *told) == {
        "forward": (1, 50, 3, 35, 1, 20),
        "layer": (1, 25, 2, 15, 2, 15),
        "optimizer": (1, 7, 1, 7, 1, 7),
    }
    assert found.annotations["device_frac"].to_list() == pytest.approx([35 / 54, 15 / 54, 7 / 54])
    assert (found.work.n, found.work.total_ns) == (6, 54)
    assert (found.inside.n, found.inside.total_ns) == (4, 42)
    assert (found.beside.n, found.unlaunched.n, found.unlaunched.total_ns) == (0, 1, 3)


def test_copies_and_sets_count_and_kernels_are_told_apart() -> None:
    made = [*NESTED, launch(68, 6), work(200, 4, 6, kind="gpu_memcpy")]
    told = ("n", "kernels", "own_kernels", "device_ns", "projected_ns")
    assert rows(annotations(trace(made)), *told)["optimizer"] == (2, 1, 1, 11, 44)


@pytest.mark.parametrize(
    ("call", "length", "inside"),
    [(10, 2, 1), (18, 2, 1), (9, 2, 0), (19, 2, 0), (20, 0, 1), (5, 30, 0), (12, None, 0)],
)
def test_the_call_lies_whole_in_the_range(call: int, length: int | None, inside: int) -> None:
    made = trace([mark("a", 10, 10), launch(call, 1, length), work(100, 5, 1)])
    found = annotations(made)
    assert rows(found, "n")["a"] == (inside,)
    assert found.inside.n == inside
    assert found.unlaunched.n == (length is None)


def test_ranges_that_overlap_each_count_for_themselves() -> None:
    made = [
        mark("a", 0, 20),
        mark("b", 10, 20),
        launch(5, 1),
        launch(15, 2),
        launch(25, 3),
        *(work(100 * n, n, n) for n in (1, 2, 3)),
    ]
    found = annotations(trace(made))
    told = ("n", "device_ns", "own_n", "own_device_ns", "host_ns", "self_ns")
    assert rows(found, *told) == {"a": (2, 3, 1, 1, 20, 10), "b": (2, 5, 2, 5, 20, 20)}


def test_domains_are_told_apart() -> None:
    made = trace([mark("x", 0, 10), mark("x", 20, 10, category="NCCL")])
    frame = annotations(made).annotations.select("domain", "name", "ranges").sort("domain")
    assert frame.rows() == [(None, "x", 1), ("NCCL", "x", 1)]
    annotated = trace([host("user_annotation", "x", 0, 10, category="user_annotation")])
    assert annotations(annotated).annotations["domain"].to_list() == [None]


def test_steps_of_the_profiler_are_one_row() -> None:
    found = annotations(trace([step(1, 0, 10), step(2, 10, 20)]))
    assert rows(found, "ranges", "host_ns") == {"ProfilerStep*": (2, 30)}


def test_annotations_that_were_recorded_as_operators_count_and_operators_do_not() -> None:
    name = "Optimizer.step#SGD.step"
    made = [host("cpu_op", name, 0, 10), host("cpu_op", "aten::mul", 2, 5)]
    assert rows(annotations(trace(made)), "ranges", "self_ns") == {name: (1, 10)}


def test_only_the_names_that_are_asked_for_count() -> None:
    found = annotations(trace(NESTED), names=["forward", "opt"])
    assert rows(found, "own_n", "self_ns") == {"forward": (3, 50), "optimizer": (1, 20)}
    check_wording(*found.notes)
    with raises_wording(MissingData):
        annotations(trace(NESTED[1:]), names=["back", "ward$"])
    with raises_wording(OptionError):
        annotations(trace(NESTED), names=["("])


# --- threads, processes, ranks -------------------------------------------------------------------


def test_work_of_another_thread_is_not_in_a_threads_ranges() -> None:
    made = [
        mark("backward", 0, 50),
        launch(10, 1, tid=2),
        launch(60, 2, tid=2),
        work(100, 5, 1),
        work(120, 9, 2),
    ]
    found = annotations(trace(made))
    assert rows(found, "n")["backward"] == (0,)
    assert (found.beside.n, found.beside.total_ns) == (1, 5)
    assert "35.7 %" not in found.verdict
    check_wording(found.verdict)


def test_ranges_of_a_process_have_host_time_only() -> None:
    made = [mark("whole", 0, 50, tid=None), launch(10, 1), work(100, 5, 1)]
    found = annotations(trace(made))
    assert rows(found, "host_ns", "self_ns", "n") == {"whole": (50, None, 0)}
    assert found.process_wide == 1
    assert found.beside.n == 0
    check_wording(*found.notes)
    assert str(found)


def test_correlation_ids_are_those_of_a_process() -> None:
    made = [
        mark("a", 0, 10),
        mark("b", 0, 10, pid=2),
        launch(2, 7),
        launch(2, 7, pid=2),
        work(100, 5, 7, pid=1),
        work(100, 9, 7, pid=2),
    ]
    assert rows(annotations(trace(made)), "n", "device_ns") == {"a": (1, 5), "b": (1, 9)}


def test_a_graph_launch_has_all_its_kernels() -> None:
    made = [mark("a", 0, 10), launch(2, 7), *(work(100 + 10 * n, 4, 7) for n in range(3))]
    found = rows(annotations(trace(made)), "n", "device_ns", "projected_ns", "own_n")
    assert found == {"a": (3, 12, 24, 3)}


def test_ranks_are_summed_up_or_told_apart() -> None:
    made = [trace(NESTED, rank=0), trace(NESTED, rank=1)]
    both, apart = annotations(made), annotations(made, by="rank")
    assert rows(both, "ranges", "device_ns")["forward"] == (2, 70)
    told = apart.annotations.filter(pl.col("name") == "forward").select("rank", "device_ns")
    assert told.rows() == [(0, 35), (1, 35)]
    assert both.ranks.select("rank", "ranges", "n", "inside_ns").rows() == [
        (0, 4, 6, 42),
        (1, 4, 6, 42),
    ]
    assert str(annotations(made[::-1], by="rank")) == str(apart)


def test_files_that_tell_no_rank_are_told_apart_by_name() -> None:
    made = [trace(NESTED, rank=None, path=path) for path in ("b.json", "a.json")]
    apart = annotations(made, by="rank").annotations
    told = apart.filter(pl.col("name") == "layer").select("path", "device_ns")
    assert told.rows() == [("a.json", 15), ("b.json", 15)]


def test_two_ranks_in_one_trace() -> None:
    events = [{**row, "rank": rank, "pid": rank} for rank in (0, 1) for row in NESTED]
    found = annotations(trace(events))
    assert rows(found, "ranges", "device_ns")["forward"] == (2, 70)
    assert found.ranks["rank"].to_list() == [0, 1]


# --- what is not there ---------------------------------------------------------------------------


def test_without_device_work_there_is_host_time() -> None:
    found = annotations(trace(NESTED[:4]))
    check_wording(found.verdict)
    assert [table.name for table in found.tables] == ["host"]
    assert str(found)
    found.plot()


@pytest.mark.parametrize("events", [[], [work(0, 5, 1)], [host("cpu_op", "aten::mul", 0, 5)]])
def test_no_annotation(events: list[Row]) -> None:
    with raises_wording(MissingData):
        annotations(trace(events))


def test_marks_are_no_ranges() -> None:
    with raises_wording(MissingData):
        annotations(trace([mark("now", 5, None)]))
    assert rows(annotations(trace([mark("now", 5, None), mark("a", 5, 0)])), "ranges") == {
        "a": (1,)
    }


def test_annotations_without_an_end_are_counted() -> None:
    cut = {**step(2, 20, 0), "dur": None}
    found = annotations(trace([step(1, 0, 10), cut]))
    assert found.unclosed == 1
    check_wording(found.notes)


def test_without_correlation_ids_no_work_is_in_any() -> None:
    made = [mark("a", 0, 10), {**launch(2, 0), "correlation": None}, device(GEMM, 100, 5)]
    found = annotations(trace(made))
    assert (found.inside.n, found.unlaunched.n) == (0, 1)
    check_wording(found.verdict)


def test_a_range_without_a_name() -> None:
    made = trace(NESTED)
    blank = pl.Series("name", [None] * made.events.height, dtype=schema.NAME)
    found = annotations(replace(made, events=made.events.with_columns(blank)))
    assert found.annotations["name"].to_list() == [None, None]
    assert "(no name)" in found.verdict
    assert "(no name)" in str(found)
    found.plot()


# --- against a loop over all pairs ---------------------------------------------------------------

MARK = st.tuples(st.integers(0, 40), st.integers(0, 30), st.sampled_from([1, 1, 2, None]))
CALL = st.tuples(st.integers(0, 60), st.integers(0, 5), st.integers(1, 3), st.integers(1, 9))


@settings(max_examples=150, deadline=None)
@given(st.lists(MARK, min_size=1, max_size=15), st.lists(CALL, max_size=20))
def test_attribution_is_that_of_a_loop(
    marks: list[tuple[int, int, int | None]], calls: list[tuple[int, int, int, int]]
) -> None:
    events = [mark(f"m{n}", ts, dur, tid=tid) for n, (ts, dur, tid) in enumerate(marks)]
    for n, (ts, dur, tid, _) in enumerate(calls):
        events.append(launch(ts, n, dur, tid=tid))
    events += [work(200 - 7 * n, length, n) for n, (*_, length) in enumerate(calls)]
    ranges = annotated(trace(events), ())[0]
    pieces = launched(trace(events), ranges)[0]
    found = attribute(ranges, pieces)
    inner = dict(zip(pieces["event"], found.innermost.tolist(), strict=True))
    assert len(inner) == len(calls)
    for row in found.ranges.iter_rows(named=True):
        ts, dur, tid = marks[int(row["name"][1:])]
        held = [n for n, c in enumerate(calls) if c[2] == tid and ts <= c[0]]
        held = [n for n in held if calls[n][0] + calls[n][1] <= ts + dur]
        starts = [200 - 7 * n for n in held]
        ends = [200 - 7 * n + calls[n][3] for n in held]
        assert (row["n"], row["kernels"]) == (len(held), len(held))
        assert row["device_ns"] == sum(calls[n][3] for n in held)
        assert row["projected_start"] == min(starts, default=None)
        assert row["projected_end"] == max(ends, default=None)
    start, end, thread = (found.ranges[c].to_list() for c in ("start", "end", "thread"))
    for piece in pieces.iter_rows(named=True):
        held = [
            row
            for row in range(len(start))
            if thread[row] is not None
            and thread[row] == piece["thread"]
            and start[row] <= piece["since"]
            and piece["until"] <= end[row]
        ]
        assert inner[piece["event"]] == max(held, default=-1)
    own = found.ranges.select("own_n", "own_device_ns").sum().row(0)
    known = np.flatnonzero(found.innermost >= 0)
    assert own == (known.size, (pieces["end"] - pieces["start"])[known].sum())


# --- the command ---------------------------------------------------------------------------------


def test_nonsense_is_refused() -> None:
    with raises_wording(OptionError):
        Options(by="colour")  # type: ignore[arg-type]


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
def test_what_the_terminal_shows(name: str, arguments: list[str], golden: GOLDEN) -> None:
    done = run_cli("annotations", *arguments, "-q", cwd=FIXTURES)
    assert (done.returncode, done.stderr) == (0, "")
    golden(f"annotations_{name}.txt", done.stdout)


def test_other_forms_hold_all_rows() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    told = json.loads(run_cli("annotations", path, "--to", "json").stdout)
    assert sum(row["own_n"] for row in told["annotations"]) == told["inside_n"] == 114
    header = run_cli("annotations", path, "--to", "csv").stdout.splitlines()[0]
    assert header.startswith("domain,name,ranges,host_ns,self_ns,mean_ns,median_ns,min_ns,max_ns")


def test_the_plot_is_drawn(tmp_path: Any) -> None:
    picture = tmp_path / "annotations.svg"
    done = run_cli("annotations", FIXTURES / "nccl_8ranks/rank0.json.gz", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Device work by annotation" in picture.read_text()


def test_a_wrong_word_is_usage() -> None:
    assert status(["annotations", "x.json", "--by", "magic"]) == 2


def test_files_and_traces_give_the_same() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    whole: Trace = ta.read(path)
    for by in (None, *get_args(By)):
        assert str(ta.annotations(path, by=by)) == str(annotations(whole, by=by)), by
    assert str(ta.annotations(path, names="nccl")) == str(annotations(whole, names=["nccl"]))
