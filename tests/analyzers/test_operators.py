"""Operators of small synthetic traces, and the command on the fixtures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, US, device, host, step, trace
from conftest import ROOT, run_cli
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.analyzers.gpu_idle.compute import gpu_idle
from traceanalyzer.analyzers.operators import SORT_BY, sort_column
from traceanalyzer.analyzers.operators.compute import operators
from traceanalyzer.analyzers.operators.result import Operators
from traceanalyzer.cli.main import status
from traceanalyzer.errors import MissingData, OptionError
from traceanalyzer.frames import intervals
from traceanalyzer.trace import Trace

FIXTURES = ROOT / "fixtures"
GOLDEN = Callable[[str, str | bytes], None]


def op(name: str, ts: int, dur: int, **more: Any) -> dict[str, Any]:
    return host("cpu_op", name, ts, dur, **more)


def launch(ts: int, dur: int, correlation: int, **more: Any) -> dict[str, Any]:
    return host("cuda_runtime", "cudaLaunchKernel", ts, dur, correlation=correlation, **more)


def allocated(ts: int, size: int, **more: Any) -> dict[str, Any]:
    instant = host("cpu_instant_event", "[memory]", ts, 0, bytes=size, **more)
    return {**instant, "dur": None}


def with_memory(recorded: Trace, device_types: Sequence[int | None]) -> Trace:
    """Return the trace with these device types of its ``[memory]`` instants, in order."""
    events = recorded.events.with_row_index("event").filter(pl.col("kind") == "cpu_instant_event")
    types = schema.types("memory_totals")
    rows = {"event": events["event"], "device_type": list(device_types)}
    unknown = ("allocated_bytes", "reserved_bytes", "free_bytes")
    nothing = dict.fromkeys(unknown, [None] * len(device_types))
    return replace(recorded, memory_totals=pl.DataFrame({**rows, **nothing}, schema=types))


def table(result: Operators, *columns: str) -> dict[str, Any]:
    """Return the values of one or several columns by name."""
    rows = result.operators.select("name", *columns).rows()
    return {name: values[0] if len(columns) == 1 else tuple(values) for name, *values in rows}


FORWARD = [
    step(1, 0, 100 * US),
    op("aten::linear", 10 * US, 50 * US),
    op("aten::addmm", 20 * US, 30 * US),
    launch(30 * US, 5 * US, 1),
    launch(40 * US, 5 * US, 2),
    op("aten::relu", 70 * US, 10 * US),
    launch(72 * US, 5 * US, 3),
    device(GEMM, 200 * US, 7 * US, correlation=1),
    device(GEMM, 210 * US, 8 * US, correlation=2),
    device("relu", 220 * US, 9 * US, correlation=3),
]


# --- time --------------------------------------------------------------------------------------


def test_self_time_excludes_nested_calls() -> None:
    result = operators(trace(FORWARD))
    assert table(result, "calls", "self_host_ns", "total_host_ns") == {
        "ProfilerStep*": (1, 40 * US, 100 * US),
        "aten::linear": (1, 20 * US, 50 * US),
        "aten::addmm": (1, 20 * US, 30 * US),
        "aten::relu": (1, 5 * US, 10 * US),
        "cudaLaunchKernel": (3, 15 * US, 15 * US),
    }
    assert result.host_ns == 100 * US
    assert table(result, "self_host_frac")["aten::linear"] == 0.2


def test_device_work_belongs_to_the_launching_operator() -> None:
    result = operators(trace(FORWARD))
    assert table(result, "self_device_ns", "total_device_ns", "mean_device_ns") == {
        "aten::addmm": (15 * US, 15 * US, 15 * US),
        "aten::relu": (9 * US, 9 * US, 9 * US),
        "ProfilerStep*": (0, 24 * US, 24 * US),
        "aten::linear": (0, 15 * US, 15 * US),
        "cudaLaunchKernel": (0, 0, 0),
    }
    assert (result.sort_by, result.device_ns, result.unlaunched_ns) == ("self_device", 24 * US, 0)
    assert next(iter(table(result, "calls"))) == "aten::addmm"
    assert table(result, "self_device_frac")["aten::relu"] == 9 / 24


def test_steps_are_one_row() -> None:
    result = operators(trace([step(n, n * 10, 10) for n in range(3)]))
    assert table(result, "calls", "total_host_ns") == {"ProfilerStep*": (3, 30)}


def test_names_with_a_step_prefix_are_kept() -> None:
    names = ("ProfilerStep#x", "ProfilerStep#", "ProfilerStep#1a", "ProfilerStep*")
    result = operators(trace([op(name, n, 1) for n, name in enumerate(names)]))
    assert set(table(result, "calls")) == set(names)


def test_recursive_calls_count_twice_in_total_time() -> None:
    recursion = [op("f", 0, 100), op("f", 10, 50), op("g", 70, 10), op("f", 20, 20)]
    # the innermost is the only call of the middle one, and merged with it
    result = operators(trace(recursion))
    assert table(result, "calls", "self_host_ns", "total_host_ns") == {
        "f": (2, 90, 150),
        "g": (1, 10, 10),
    }


def test_recursive_calls_count_once_in_shares() -> None:
    recursion = [op("f", 0, 100), op("g", 10, 80), op("f", 20, 60), launch(30, 10, 1)]
    again = [op("f", 200, 100), op("f", 200, 40), op("h", 240, 10), launch(241, 5, 2)]
    work = [device(GEMM, 400, 7, correlation=1), device(GEMM, 410, 3, correlation=2)]
    rows = operators(trace([*recursion, *again, *work])).operators
    shares = rows.select("name", "total_host_frac", "total_device_frac")
    by_name = {name: rest for name, *rest in shares.iter_rows()}
    assert by_name["f"] == [1.0, 1.0]
    assert by_name["g"] == [pytest.approx(80 / 200), pytest.approx(7 / 10)]
    assert rows.select(pl.col("^total_.*_frac$").max()).row(0) == (1.0, 1.0)


def test_only_call_of_the_same_name_is_merged() -> None:
    calls = [op("f", 0, 100), op("f", 10, 80), op("f", 20, 60), launch(30, 10, 1)]
    result = operators(trace([*calls, device(GEMM, 200, 7, correlation=1)]))
    assert table(result, "calls", "self_host_ns", "total_host_ns", "total_device_ns") == {
        "f": (1, 90, 100, 7),
        "cudaLaunchKernel": (1, 10, 10, 0),
    }


@pytest.mark.parametrize("kind", ["other", "python_function", "user_annotation", "nvtx"])
def test_recursive_functions_are_not_merged(kind: str) -> None:
    calls = [host(kind, "fact", 0, 100), host(kind, "fact", 10, 80), host(kind, "fact", 20, 60)]
    result = operators(trace(calls))
    assert table(result, "calls", "self_host_ns", "total_host_ns") == {"fact": (3, 100, 240)}
    check_wording(*result.notes)
    wrapped = operators(trace([op("f", 0, 100), op("f", 10, 80)]))
    check_wording(*wrapped.notes)


def test_merged_call_has_the_kind_of_its_caller() -> None:
    calls = [host("user_annotation", "f", 0, 100), op("f", 10, 80)]
    result = operators(trace(calls)).operators.select("name", "kind", "calls", "self_host_ns")
    assert result.rows() == [("f", "user_annotation", 1, 100)]


def test_operators_and_annotations_of_equal_name_are_separate() -> None:
    calls = [host("user_annotation", "f", 0, 10), op("f", 20, 10)]
    result = operators(trace(calls)).operators
    assert sorted(result["kind"]) == ["cpu_op", "user_annotation"]


def test_profiler_bookkeeping_counts_for_the_caller() -> None:
    calls = [op("f", 0, 100), op("aten::is_leaf", 10, 20), op("aten::output_nr", 40, 5)]
    assert table(operators(trace(calls)), "self_host_ns") == {"f": 100}


def test_crossing_slices_are_siblings() -> None:
    """As the annotation of record_function and its ``__enter__`` do."""
    python = [
        host("python_function", "train.py(1): main", 0, 100),
        host("python_function", "profiler.py(9): __enter__", 10, 10),
        host("user_annotation", "forward", 18, 50),
        op("aten::mm", 30, 10),
        host("python_function", "profiler.py(20): __exit__", 65, 10),
    ]
    result = operators(trace(python))
    assert table(result, "self_host_ns", "total_host_ns") == {
        "train.py(1): main": (35, 100),  # 10 before, 25 after
        "profiler.py(9): __enter__": (8, 10),
        "forward": (37, 50),  # to the start of __exit__, without aten::mm
        "aten::mm": (10, 10),
        "profiler.py(20): __exit__": (10, 10),
    }


def test_threads_and_processes_are_separate() -> None:
    calls = [
        op("f", 0, 100),
        op("f", 0, 100, tid=2),
        op("f", 0, 100, pid=2),
        op("f", 0, 100, pid=None),
    ]
    result = operators(trace(calls))
    assert table(result, "calls", "self_host_ns") == {"f": (4, 400)}
    assert result.ranks["threads"].to_list() == [4]


def test_zero_length_and_unclosed_events() -> None:
    calls = [op("f", 0, 10), op("g", 5, 0), {**op("h", 6, 0), "dur": None}]
    result = operators(trace(calls))
    assert table(result, "calls", "self_host_ns") == {"f": (1, 10), "g": (1, 0)}
    assert result.unclosed == 1
    check_wording(*result.notes)


def test_a_mark_needs_no_end() -> None:
    mark = {**host("nvtx", "mark", 5, 0), "dur": None}
    result = operators(trace([host("nvtx", "range", 0, 10), mark]))
    assert (result.unclosed, list(table(result, "calls"))) == (0, ["range"])


def test_a_single_event() -> None:
    result = operators(trace([op("f", 0, 10)], rank=None))
    assert table(result, "self_host_ns", "self_host_frac") == {"f": (10, 1.0)}
    assert (
        result.operators.select(pl.col("^.*device.*|.*memory.*$").is_null().all()).row(0)
        == (True,) * 9
    )
    assert str(result)
    result.plot()


def test_zero_total_time() -> None:
    result = operators(trace([op("f", 0, 0)]))
    assert "f" in str(result)
    check_wording(result.verdict)


# --- who launched what -------------------------------------------------------------------------


def test_innermost_operator_counts_before_python_frames() -> None:
    calls = [
        host("python_function", "a.py(1): f", 0, 100),
        op("MyFunction", 10, 80),
        host("python_function", "jit.py(5): run", 20, 60),
        launch(30, 5, 1),
        launch(95, 2, 2),
        device("triton", 200, 7, correlation=1),
        device("triton", 300, 9, correlation=2),
    ]
    result = table(operators(trace(calls)), "self_device_ns", "total_device_ns")
    assert result["MyFunction"] == (7, 7)
    assert result["jit.py(5): run"] == (0, 0)
    assert result["a.py(1): f"] == (9, 16)  # nothing else is around the second launch


def test_a_graph_launch_has_all_its_kernels() -> None:
    kernels = [device(GEMM, 100 + n, 1, correlation=1) for n in range(5)]
    result = operators(trace([op("graph", 0, 50), launch(10, 5, 1), *kernels]))
    assert table(result, "self_device_ns")["graph"] == 5


def test_external_id_gives_the_operator_without_a_launch_call() -> None:
    calls = [
        op("aten::mm", 0, 50, external_id=8),
        op("aten::add", 60, 50, external_id=9),
        launch(70, 5, 1, external_id=9),
        device("add", 100, 3, correlation=1, external_id=9),
        device(GEMM, 110, 7, correlation=None, external_id=8),
        device("before it all", 130, 4, correlation=None, external_id=0),
    ]
    result = operators(trace(calls))
    assert table(result, "self_device_ns") == {"aten::mm": 7, "aten::add": 3, "cudaLaunchKernel": 0}
    assert (result.device_ns, result.unlaunched_ns) == (14, 4)
    check_wording(*result.notes)


def test_invalid_external_ids_are_ignored() -> None:
    calls = [
        op("aten::mm", 0, 50, external_id=1),
        op("aten::add", 60, 50, external_id=2),
        launch(70, 5, 1),
        device("add", 100, 3, correlation=1, external_id=1),  # launched in 2
        device(GEMM, 110, 7, correlation=None, external_id=2),
    ]
    result = operators(trace(calls))
    assert table(result, "self_device_ns") == {"aten::add": 3, "aten::mm": 0, "cudaLaunchKernel": 0}
    assert result.unlaunched_ns == 7


def test_operators_do_not_launch_before_their_start() -> None:
    calls = [op("late", 100, 50, external_id=3), device(GEMM, 10, 7, external_id=3)]
    assert operators(trace(calls)).unlaunched_ns == 7


def test_verdict_without_launching_operators() -> None:
    result = operators(trace([op("aten::mm", 0, 100), device(GEMM, 200, 8)]))
    check_wording(result.verdict)


@pytest.mark.parametrize(
    ("events", "answers"),
    [
        ([], False),
        ([op("ProfilerStep#1", 10, 3)], False),
        ([op("aten::mm", 10, 3)], True),
        ([device(GEMM, 200, 8)], True),
    ],
    ids=["only a loader", "a step", "an operator", "device work"],
)
def test_gpu_idle_is_named_if_applicable(events: list[dict[str, Any]], answers: bool) -> None:
    recorded = trace([op("enumerate(DataPipe)#Shuffler", 20, 900), *events])
    text = operators(recorded).verdict
    check_wording(text)
    assert ("gpu-idle" in text) == answers
    if answers:
        assert gpu_idle(recorded).verdict
    else:
        with pytest.raises(MissingData):
            gpu_idle(recorded)


def test_launch_outside_of_operators_is_in_no_row() -> None:
    calls = [op("f", 0, 10), launch(50, 5, 1), device(GEMM, 100, 7, correlation=1)]
    result = operators(trace(calls))
    assert table(result, "self_device_ns") == {"cudaLaunchKernel": 0, "f": 0}
    assert result.unlaunched_ns == 7


def test_correlation_ids_are_matched_within_a_process() -> None:
    calls = [
        op("f", 0, 10), launch(5, 1, 1), device(GEMM, 20, 3, correlation=1, pid=1),
        op("g", 0, 10, pid=2), launch(5, 1, 1, pid=2), device(GEMM, 30, 5, correlation=1, pid=2),
    ]  # fmt: skip
    result = table(operators(trace(calls)), "self_device_ns")
    assert (result["f"], result["g"]) == (3, 5)


# --- memory ------------------------------------------------------------------------------------

ALLOCATING = [
    op("aten::linear", 0, 100),
    op("aten::empty", 10, 20),
    allocated(15, 4096),
    allocated(16, 512),
    op("aten::free", 50, 20),
    allocated(60, -1024),
    allocated(150, -64),
    op("aten::linear", 0, 100, tid=2),
]


def test_memory_belongs_to_the_call_of_its_thread() -> None:
    result = operators(with_memory(trace(ALLOCATING), [1, 0, 1, 0]))
    assert table(
        result, "self_device_memory_bytes", "total_device_memory_bytes", "self_host_memory_bytes"
    ) == {
        "aten::linear": (0, 3072, 0),
        "aten::empty": (4096, 4096, 512),
        "aten::free": (-1024, -1024, 0),
    }
    assert result.outside_bytes == -64
    check_wording(result.notes)
    assert [t.name for t in result.tables] == ["operators", "memory"]
    assert result.tables[1].frame["name"][0] == "aten::empty"


def test_zero_allocation_differs_from_not_recorded() -> None:
    recorded = operators(with_memory(trace(ALLOCATING), [6, 6, 6, 6]))
    assert recorded.operators["self_host_memory_bytes"].null_count() == 3
    assert sorted(recorded.operators["self_device_memory_bytes"]) == [-1024, 0, 4608]
    unknown = operators(with_memory(trace(ALLOCATING), [None] * 4))
    assert unknown.operators["self_device_memory_bytes"].null_count() == 3
    with pytest.raises(MissingData, match="profile_memory=True"):
        operators(trace(ALLOCATING), sort_by="self_host_memory")


def test_memory_table_is_first_if_sorted_by_memory() -> None:
    recorded = with_memory(trace(ALLOCATING), [1, 0, 1, 0])
    result = operators(recorded, sort_by="total_device_memory")
    assert result.tables[0].name == "memory"
    assert result.tables[0].frame["name"].to_list() == ["aten::empty", "aten::linear", "aten::free"]


# --- grouping ----------------------------------------------------------------------------------


def test_rows_by_input_shape() -> None:
    calls = [op("aten::mm", n * 10, n + 1) for n in range(4)]
    dims = pl.Series("input_dims", ["[[2, 2]]", "[[4, 4]]", "[[2, 2]]", None])
    recorded = trace(calls)
    with raises_wording(MissingData):
        operators(recorded, group_by_input_shape=True)
    none = replace(
        recorded, events=recorded.events.with_columns(input_dims=pl.lit(None, pl.String))
    )
    with pytest.raises(MissingData, match="record_shapes=True"):
        operators(none, group_by_input_shape=True)
    values = replace(recorded, events=recorded.events.with_columns(dims))
    result = operators(values, group_by_input_shape=True, sort_by="total_host").operators
    assert result.select("name", "input_dims", "calls", "total_host_ns").rows() == [
        ("aten::mm", "[[2, 2]]", 2, 4),
        ("aten::mm", None, 1, 4),
        ("aten::mm", "[[4, 4]]", 1, 2),
    ]


def test_rows_by_python_stack() -> None:
    calls = [
        host("python_function", "a.py(1): main", 0, 100),
        host("python_function", "b.py(2): f", 10, 20),
        op("aten::outer", 11, 10),
        op("aten::mm", 12, 5),
        host("python_function", "c.py(3): g", 40, 20),
        op("aten::mm", 42, 5),
        op("aten::mm", 70, 7),
        op("aten::mm", 0, 9, tid=2),
    ]
    with pytest.raises(MissingData, match="with_stack=True"):
        operators(trace([op("f", 0, 1)]), group_by_stack=1)
    result = operators(trace(calls), group_by_stack=2, sort_by="calls").operators
    mm_rows = result.filter(pl.col("name") == "aten::mm").select("stack", "calls", "total_host_ns")
    assert set(mm_rows.rows()) == {
        ("b.py(2): f; a.py(1): main", 1, 5),
        ("c.py(3): g; a.py(1): main", 1, 5),
        ("a.py(1): main", 1, 7),
        (None, 1, 9),
    }
    main = result.filter(pl.col("name") == "a.py(1): main")
    assert main["stack"].to_list() == [None], "a frame is not around itself"
    deeper = operators(trace(calls), group_by_stack=9).operators["stack"].drop_nulls()
    assert deeper.str.count_matches(";").max() == 1, "there are no more frames"
    assert operators(trace(calls), group_by_stack=1).operators.height == 8


def test_invalid_options_are_refused() -> None:
    recorded = trace([op("f", 0, 1)])
    with raises_wording(OptionError):
        operators(recorded, sort_by="magic")  # type: ignore[arg-type]
    with raises_wording(OptionError):
        operators(recorded, group_by_stack=-1)


@pytest.mark.sample(4)
@pytest.mark.parametrize("word", SORT_BY)
def test_rows_are_sorted_by_the_option(word: Any) -> None:
    more = [allocated(35 * US, 5), allocated(36 * US, 5), allocated(72 * US, 3)]
    recorded = with_memory(trace([*FORWARD, *more]), [0, 1, 1])
    values = operators(recorded, sort_by=word).operators[sort_column(word)].to_list()
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1


def test_ties_are_sorted_by_host_time() -> None:
    calls = [op("a", 0, 5), op("b", 10, 9), op("c", 20, 1), launch(20, 1, 1)]
    result = operators(trace([*calls, device(GEMM, 30, 7, correlation=1)]))
    assert result.operators["name"].to_list() == ["c", "b", "a", "cudaLaunchKernel"]


# --- what is not there -------------------------------------------------------------------------


def test_other_slices_count_without_operators() -> None:
    composer = [host("other", "batch", 0, 100), host("other", "forward", 10, 30)]
    assert table(operators(trace(composer)), "self_host_ns") == {"batch": 70, "forward": 30}
    both = operators(trace([*composer, op("aten::mm", 5, 1)]))
    assert table(both, "calls") == {"aten::mm": 1}


@pytest.mark.parametrize(
    "events",
    [
        [],
        [device(GEMM, 0, 10, correlation=1), launch(0, 1, 1)],
        [{**op("f", 0, 0), "dur": None}],
        [op("aten::is_leaf", 0, 5)],
        [host("other", "slice on a device", 0, 5, device=0)],
    ],
    ids=["empty", "only kernels", "never ends", "only bookkeeping", "on a device"],
)
def test_missing_operators_error_has_a_recording_hint(events: list[dict[str, Any]]) -> None:
    with raises_wording(MissingData):
        operators(trace(events))


def test_sorting_by_missing_device_time_is_an_error() -> None:
    with raises_wording(MissingData):
        operators(trace([op("f", 0, 1)]), sort_by="self_device")


def test_work_without_correlation_ids_is_not_attributed() -> None:
    calls = [op("f", 0, 100), {**launch(10, 5, 1), "correlation": None}, device(GEMM, 20, 7)]
    result = operators(trace(calls))
    assert result.unlaunched_ns == result.device_ns == 7
    assert set(table(result, "self_device_ns").values()) == {0}


# --- ranks -------------------------------------------------------------------------------------


def test_ranks_are_summed() -> None:
    cpu = [op("f", 0, 30), op("g", 50, 5)]
    result = operators([trace(FORWARD, rank=1), trace(cpu, rank=0), trace(cpu, rank=None)])
    assert table(result, "calls", "self_host_ns", "self_device_ns")["f"] == (2, 60, None)
    assert result.device_ns == 24 * US
    assert result.ranks.select("rank", "calls", "threads", "host_ns", "device_ns").rows() == [
        (0, 2, 1, 35, None),
        (1, 7, 1, 100 * US, 24 * US),
        (None, 2, 1, 35, None),
    ]
    assert [t.name for t in result.tables] == ["operators", "ranks"]


def test_ranks_in_one_trace_are_separated() -> None:
    both = [*FORWARD, *[{**event, "rank": 1} for event in FORWARD]]
    result = operators(trace(both))
    assert result.ranks["rank"].to_list() == [0, 1]
    assert table(result, "self_device_ns")["aten::addmm"] == 30 * US


def test_result_does_not_depend_on_rank_order() -> None:
    parts = [trace(FORWARD, rank=0), trace([op("f", 0, 30)], rank=1)]
    assert str(operators(parts)) == str(operators(parts[::-1]))


SLICE = st.tuples(
    st.sampled_from(["cpu_op", "user_annotation", "python_function", "cuda_runtime"]),
    st.sampled_from("abcd"),
    st.integers(0, 40),
    st.integers(0, 30),
    st.integers(1, 2),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(SLICE, min_size=1, max_size=25))
def test_self_times_add_up_with_overlaps(
    rows: list[tuple[str, str, int, int, int]],
) -> None:
    recorded = trace([host(kind, name, ts, dur, tid=tid) for kind, name, ts, dur, tid in rows])
    if all(row[0] == "cuda_runtime" for row in rows):
        return
    result = operators(recorded)
    spans = recorded.events.select("tid", start="ts", end=pl.col("ts") + pl.col("dur"))
    assert result.operators["self_host_ns"].sum() == result.host_ns
    assert result.host_ns == intervals.measure(spans, ["tid"])["length"].sum()
    assert result.operators["self_host_ns"].min() >= 0  # type: ignore[operator]


# --- the command -------------------------------------------------------------------------------


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nccl_8ranks", ["nccl_8ranks"]),
        ("ddp_gloo_rank3", ["ddp_gloo_4ranks/rank3.json.gz", "--top", "15"]),
        ("composer", ["composer"]),
        ("shapes", ["ddp_gloo_4ranks", "--group-by-input-shape", "--sort-by", "total_host"]),
    ],
)
def test_terminal_output(name: str, arguments: list[str], golden: GOLDEN) -> None:
    done = run_cli("operators", *arguments, "-q", cwd=FIXTURES)
    assert (done.returncode, done.stderr) == (0, "")
    golden(f"operators_{name}.txt", done.stdout)


def test_json_and_csv_have_all_rows() -> None:
    path = FIXTURES / "ddp_gloo_4ranks/rank0.json.gz"
    parsed = json.loads(run_cli("operators", path, "--to", "json").stdout)
    lines = run_cli("operators", path, "--to", "csv").stdout.splitlines()
    assert len(parsed["operators"]) == len(lines) - 1 == 56
    assert lines[0].startswith("name,kind,calls,self_host_ns,self_host_frac,total_host_ns")
    assert parsed["n_calls"] == sum(row["calls"] for row in parsed["operators"])


def test_plot_is_written(tmp_path: Any) -> None:
    picture = tmp_path / "operators.svg"
    done = run_cli("operators", FIXTURES / "nccl_8ranks/rank0.json.gz", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Operators by self device time" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["ddp_gloo_4ranks", "--sort-by", "self_device"], "no device work was recorded"),
        (["ddp_gloo_4ranks", "--group-by-stack", "3"], "with_stack=True"),
        (["py_spy/default.raw.txt"], "traceanalyzer flamegraph"),
    ],
)
def test_missing_data_is_one_error_line(
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(FIXTURES)
    assert status(["operators", *arguments, "-q"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert err.count("\n") == 1


def test_invalid_arguments_exit_with_usage_error() -> None:
    assert status(["operators", "x.json", "--sort-by", "magic"]) == 2
    assert status(["operators", "x.json", "--group-by-stack", "-1"]) == 2


def test_files_and_traces_give_the_same_result() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    assert str(ta.operators(path)) == str(operators(ta.read(path)))


# --- kernels that graphs replay ----------------------------------------------------------------

ADD, NORM = "add_kernel", "norm_kernel"
LAYER = [("aten::mm", GEMM), ("aten::add", ADD), ("aten::mul", ADD), ("aten::norm", NORM)]


def eager(at: int = 0) -> list[dict[str, Any]]:
    """Return a step of operators with one launch and one kernel of 1 us each."""
    rows = []
    for n, (operator, kernel) in enumerate(LAYER, at):
        rows += [op(operator, n * 100, 90), launch(n * 100 + 10, 10, n)]
        rows.append(device(kernel, n * 100 + 50, 1, correlation=n))
    return rows


def replay(at: int, kernels: Sequence[str], dur: int = 10) -> list[dict[str, Any]]:
    """Return one graph launch within an annotation, with kernels of ``dur`` us."""
    rows = [host("user_annotation", "replay", at, 90)]
    rows.append(host("cuda_runtime", "cudaGraphLaunch", at + 10, 50, correlation=at))
    for n, kernel in enumerate(kernels):
        rows.append(device(kernel, at + 100 + n * dur, dur, correlation=at))
    return rows


KERNELS = [kernel for _, kernel in LAYER]


def test_replayed_kernels_belong_to_the_operators_of_an_eager_step() -> None:
    for inputs in (
        trace([*eager(), *replay(5_000, KERNELS)]),
        [trace(replay(5_000, KERNELS)), trace(eager(), 0, path="eager.json")],
    ):
        result = operators(inputs)
        times = table(result, "self_device_ns", "total_device_ns")
        assert {name: times[name] for name, _ in LAYER} == dict.fromkeys(
            (name for name, _ in LAYER), (11, 11)
        )
        assert times["replay"] == (0, 40)
        assert (result.replayed, result.replayed_matched) == (4, 4)
        assert (result.replayed_ns, result.replayed_matched_ns) == (40, 40)
        check_wording(*result.view().notes)


def test_unidentified_replayed_kernels_stay_at_the_launch() -> None:
    """One kernel is unknown, another one is launched by two operators."""
    result = operators(trace([*eager(), *replay(5_000, ["other", ADD, GEMM])]))
    times = table(result, "self_device_ns")
    assert (times["aten::mm"], times["aten::add"], times["replay"]) == (11, 1, 20)
    assert (result.replayed, result.replayed_matched, result.replayed_matched_ns) == (3, 1, 10)
    check_wording(*result.view().notes)


def test_note_explains_how_to_match_replayed_kernels() -> None:
    result = operators(trace([op("model", 5_000, 90), *replay(5_000, KERNELS)]))
    assert (result.replayed_matched, table(result, "self_device_ns")["replay"]) == (0, 40)
    check_wording(*result.view().notes)


def test_captured_launch_calls_match_graph_kernels_in_order() -> None:
    capture = [host("cuda_runtime", "cudaStreamBeginCapture", 0, 5)]
    for n, (operator, _) in enumerate(LAYER, 1):
        capture += [op(operator, n * 100, 90), launch(n * 100 + 10, 10, n)]
    capture.append(host("cuda_runtime", "cudaStreamEndCapture", 900, 5))
    capture += [op("aten::sum", 1_000, 90), launch(1_010, 10, 9)]
    replays = [*replay(5_000, KERNELS), *replay(6_000, KERNELS[:3])]
    result = operators([trace(replays), trace(capture, 0, path="capture.json")])
    times = table(result, "self_device_ns")
    assert [times[name] for name, _ in LAYER] == [10, 10, 10, 10]
    assert times["replay"] == 30  # no capture has three launches
    assert result.unlaunched_ns == 0


def test_replayed_kernels_outside_of_calls_are_matched() -> None:
    replayed = [row for row in replay(5_000, KERNELS) if row["name"] != "replay"]
    result = operators(trace([*eager(), *replayed]))
    assert (result.unlaunched_ns, result.replayed_matched) == (0, 4)


def test_python_functions_are_apart_and_without_addresses() -> None:
    events = [
        host("python_function", f"<built-in method f of T object at 0x7f{n}0>", 100 * n, 50)
        for n in range(3)
    ]
    events += [host("cpu_op", "aten::mm", 100 * n + 10, 30) for n in range(3)]
    events.append(host("python_function", "threading.py(359): wait", 0, 1000, tid=99))
    result = ta.operators(trace(events))
    of = {one.name: one.frame for one in result.tables}
    assert of["operators"]["name"].to_list() == ["aten::mm"]
    functions = of["python_functions"].select("name", "calls").rows()
    assert ("<built-in method f of T object>", 3) in functions
    assert "0x" not in result.table()
    shares = pl.concat(list(of.values())[:2], how="diagonal")["self_host_frac"]
    assert shares.sum() == pytest.approx(1)
    assert f"{100 * 90 / 1150:.1f} %" in result.verdict


# --- spans of programs without operators -------------------------------------------------------


def spans_of(*rows: tuple[str, str | None, int, int, int]) -> Trace:
    return trace([host(kind, name, ts, dur, tid=tid) for kind, name, ts, dur, tid in rows])


def test_spans_by_name_and_thread() -> None:
    result = operators(
        spans_of(
            ("other", "request", 0, 100, 1),
            ("other", "parse", 10, 30, 1),
            ("other", "request", 200, 50, 2),
            ("async", "fetch", 0, 300, 1),
            ("async", "fetch", 50, 400, 1),
        )
    )
    assert result.spans.rows() == [
        ("thread 1", "request", 1, 70, 100, 100),
        ("thread 2", "request", 1, 50, 50, 50),
        ("thread 1", "parse", 1, 30, 30, 30),
        (None, "fetch", 2, None, 700, 400),
    ]
    (rows,) = result.view().tables
    assert rows.frame.height == 4
    assert not re.search("host|operator|kernel|CUDA|torch", str(result))
    check_wording(result.verdict)


def test_asynchronous_spans_alone_are_no_missing_operators() -> None:
    result = operators(spans_of(("async", "request", 0, 300, 1), ("async", "request", 9, 400, 1)))
    assert result.spans.rows() == [(None, "request", 2, None, 700, 400)]
    assert result.host_ns == 0


def test_spans_with_operators_or_gpu_calls_are_none() -> None:
    other = host("other", "x", 0, 10)
    assert operators(trace([other, op("aten::mm", 0, 10)])).spans.is_empty()
    assert operators(trace([other, launch(20, 5, 1), device(GEMM, 30, 9)])).spans.is_empty()


def test_diagnose_says_that_spans_are_spans() -> None:
    found = ta.diagnose(spans_of(("other", "request", 0, 100, 1), ("async", "fetch", 0, 300, 1)))
    assert set(found.rules.filter(status="skipped")["why"]) == {"the recording has spans only"}
    other = ta.diagnose(trace([step(0, 0, 100), host("other", "x", 0, 50)]))
    assert "the recording has spans only" not in set(other.rules["why"])


def test_asynchronous_spans_with_gpu_work_are_no_calls() -> None:
    with pytest.raises(MissingData, match="no operators"):
        operators(trace([host("async", "request", 0, 300), device(GEMM, 30, 9)]))


def test_spans_without_a_name_count_nowhere() -> None:
    result = operators(spans_of(("other", "a", 0, 100, 1), ("other", None, 0, 300, 2)))
    assert result.spans["name"].to_list() == ["a"]
    assert result.spans["self_ns"].sum() == result.host_ns == 100


def test_spans_of_several_processes_have_their_number() -> None:
    rows = [host("other", "a", 0, 100, pid=pid) for pid in (1, 2)]
    assert sorted(operators(trace(rows)).spans["thread"]) == [
        "process 1, thread 1",
        "process 2, thread 1",
    ]
