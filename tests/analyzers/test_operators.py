"""Operators of small traces written down event by event, and the command on the fixtures."""

from __future__ import annotations

import json
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
from traceanalyzer.analyzers.gpu_idle import gpu_idle
from traceanalyzer.analyzers.operators import operators
from traceanalyzer.analyzers.operators.options import SORT_BY, sort_column
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


def with_memory(made: Trace, device_types: Sequence[int | None]) -> Trace:
    """The trace with its ``[memory]`` instants, in order, being of these device types."""
    events = made.events.with_row_index("event").filter(pl.col("kind") == "cpu_instant_event")
    types = {c.name: c.dtype for c in schema.MEMORY_TOTALS}
    rows = {"event": events["event"], "device_type": list(device_types)}
    unknown = ("allocated_bytes", "reserved_bytes", "free_bytes")
    nothing = dict.fromkeys(unknown, [None] * len(device_types))
    return replace(made, memory_totals=pl.DataFrame({**rows, **nothing}, schema=types))


def table(result: Operators, *columns: str) -> dict[str, Any]:
    """Name -> the value of a column, or several."""
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


def test_self_is_without_what_a_call_calls() -> None:
    found = operators(trace(FORWARD))
    assert table(found, "calls", "self_host_ns", "total_host_ns") == {
        "ProfilerStep*": (1, 40 * US, 100 * US),
        "aten::linear": (1, 20 * US, 50 * US),
        "aten::addmm": (1, 20 * US, 30 * US),
        "aten::relu": (1, 5 * US, 10 * US),
        "cudaLaunchKernel": (3, 15 * US, 15 * US),
    }
    assert found.host_ns == 100 * US
    assert table(found, "self_host_frac")["aten::linear"] == 0.2


def test_device_work_belongs_to_the_operator_that_launched_it() -> None:
    found = operators(trace(FORWARD))
    assert table(found, "self_device_ns", "total_device_ns", "mean_device_ns") == {
        "aten::addmm": (15 * US, 15 * US, 15 * US),
        "aten::relu": (9 * US, 9 * US, 9 * US),
        "ProfilerStep*": (0, 24 * US, 24 * US),
        "aten::linear": (0, 15 * US, 15 * US),
        "cudaLaunchKernel": (0, 0, 0),
    }
    assert (found.sort_by, found.device_ns, found.unlaunched_ns) == ("self_device", 24 * US, 0)
    assert next(iter(table(found, "calls"))) == "aten::addmm"
    assert table(found, "self_device_frac")["aten::relu"] == 9 / 24


def test_steps_are_one_row() -> None:
    found = operators(trace([step(n, n * 10, 10) for n in range(3)]))
    assert table(found, "calls", "total_host_ns") == {"ProfilerStep*": (3, 30)}


def test_a_name_that_only_begins_like_a_step_stays() -> None:
    names = ("ProfilerStep#x", "ProfilerStep#", "ProfilerStep#1a", "ProfilerStep*")
    found = operators(trace([op(name, n, 1) for n, name in enumerate(names)]))
    assert set(table(found, "calls")) == set(names)


def test_a_call_that_calls_itself_counts_twice_in_total() -> None:
    recursion = [op("f", 0, 100), op("f", 10, 50), op("g", 70, 10), op("f", 20, 20)]
    # the innermost is all that the middle one calls, and is counted with it
    found = operators(trace(recursion))
    assert table(found, "calls", "self_host_ns", "total_host_ns") == {
        "f": (2, 90, 150),
        "g": (1, 10, 10),
    }


def test_an_only_call_of_the_same_name_is_one_with_its_caller() -> None:
    calls = [op("f", 0, 100), op("f", 10, 80), op("f", 20, 60), launch(30, 10, 1)]
    found = operators(trace([*calls, device(GEMM, 200, 7, correlation=1)]))
    assert table(found, "calls", "self_host_ns", "total_host_ns", "total_device_ns") == {
        "f": (1, 90, 100, 7),
        "cudaLaunchKernel": (1, 10, 10, 0),
    }


@pytest.mark.parametrize("kind", ["other", "python_function", "user_annotation", "nvtx"])
def test_a_function_that_calls_itself_is_called_each_time(kind: str) -> None:
    calls = [host(kind, "fact", 0, 100), host(kind, "fact", 10, 80), host(kind, "fact", 20, 60)]
    found = operators(trace(calls))
    assert table(found, "calls", "self_host_ns", "total_host_ns") == {"fact": (3, 100, 240)}
    check_wording(*found.notes)
    wrapped = operators(trace([op("f", 0, 100), op("f", 10, 80)]))
    check_wording(*wrapped.notes)


def test_its_caller_says_of_what_kind_it_is() -> None:
    calls = [host("user_annotation", "f", 0, 100), op("f", 10, 80)]
    found = operators(trace(calls)).operators.select("name", "kind", "calls", "self_host_ns")
    assert found.rows() == [("f", "user_annotation", 1, 100)]


def test_operators_and_annotations_of_one_name_are_two_rows() -> None:
    calls = [host("user_annotation", "f", 0, 10), op("f", 20, 10)]
    found = operators(trace(calls)).operators
    assert sorted(found["kind"]) == ["cpu_op", "user_annotation"]


def test_the_profilers_own_bookkeeping_is_its_callers() -> None:
    calls = [op("f", 0, 100), op("aten::is_leaf", 10, 20), op("aten::output_nr", 40, 5)]
    assert table(operators(trace(calls)), "self_host_ns") == {"f": 100}


def test_a_slice_that_outlives_another_is_beside_it() -> None:
    """As record_function's annotation does to its own ``__enter__``."""
    python = [
        host("python_function", "train.py(1): main", 0, 100),
        host("python_function", "profiler.py(9): __enter__", 10, 10),
        host("user_annotation", "forward", 18, 50),
        op("aten::mm", 30, 10),
        host("python_function", "profiler.py(20): __exit__", 65, 10),
    ]
    found = operators(trace(python))
    assert table(found, "self_host_ns", "total_host_ns") == {
        "train.py(1): main": (35, 100),  # 10 before, 25 after
        "profiler.py(9): __enter__": (8, 10),
        "forward": (37, 50),  # to the start of __exit__, without aten::mm
        "aten::mm": (10, 10),
        "profiler.py(20): __exit__": (10, 10),
    }


def test_threads_and_processes_are_apart() -> None:
    calls = [
        op("f", 0, 100),
        op("f", 0, 100, tid=2),
        op("f", 0, 100, pid=2),
        op("f", 0, 100, pid=None),
    ]
    found = operators(trace(calls))
    assert table(found, "calls", "self_host_ns") == {"f": (4, 400)}
    assert found.ranks["threads"].to_list() == [4]


def test_events_of_no_length_and_without_an_end() -> None:
    calls = [op("f", 0, 10), op("g", 5, 0), {**op("h", 6, 0), "dur": None}]
    found = operators(trace(calls))
    assert table(found, "calls", "self_host_ns") == {"f": (1, 10), "g": (1, 0)}
    assert found.unclosed == 1
    check_wording(*found.notes)


def test_a_mark_needs_no_end() -> None:
    mark = {**host("nvtx", "mark", 5, 0), "dur": None}
    found = operators(trace([host("nvtx", "range", 0, 10), mark]))
    assert (found.unclosed, list(table(found, "calls"))) == (0, ["range"])


def test_a_single_event() -> None:
    found = operators(trace([op("f", 0, 10)], rank=None))
    assert table(found, "self_host_ns", "self_host_frac") == {"f": (10, 1.0)}
    assert (
        found.operators.select(pl.col("^.*device.*|.*memory.*$").is_null().all()).row(0)
        == (True,) * 9
    )
    assert str(found)
    found.plot()


def test_where_no_time_passed() -> None:
    found = operators(trace([op("f", 0, 0)]))
    assert "f" in str(found)
    check_wording(found.verdict)


# --- who launched what -------------------------------------------------------------------------


def test_the_innermost_operator_counts_not_the_python_frame_in_it() -> None:
    calls = [
        host("python_function", "a.py(1): f", 0, 100),
        op("MyFunction", 10, 80),
        host("python_function", "jit.py(5): run", 20, 60),
        launch(30, 5, 1),
        launch(95, 2, 2),
        device("triton", 200, 7, correlation=1),
        device("triton", 300, 9, correlation=2),
    ]
    found = table(operators(trace(calls)), "self_device_ns", "total_device_ns")
    assert found["MyFunction"] == (7, 7)
    assert found["jit.py(5): run"] == (0, 0)
    assert found["a.py(1): f"] == (9, 16)  # nothing else is around the second launch


def test_a_graph_launch_has_all_its_kernels() -> None:
    kernels = [device(GEMM, 100 + n, 1, correlation=1) for n in range(5)]
    found = operators(trace([op("graph", 0, 50), launch(10, 5, 1), *kernels]))
    assert table(found, "self_device_ns")["graph"] == 5


def test_without_a_launch_call_the_external_id_tells() -> None:
    calls = [
        op("aten::mm", 0, 50, external_id=8),
        op("aten::add", 60, 50, external_id=9),
        launch(70, 5, 1, external_id=9),
        device("add", 100, 3, correlation=1, external_id=9),
        device(GEMM, 110, 7, correlation=None, external_id=8),
        device("before it all", 130, 4, correlation=None, external_id=0),
    ]
    found = operators(trace(calls))
    assert table(found, "self_device_ns") == {"aten::mm": 7, "aten::add": 3, "cudaLaunchKernel": 0}
    assert (found.device_ns, found.unlaunched_ns) == (14, 4)
    check_wording(*found.notes)


def test_external_ids_that_lead_astray_are_not_followed() -> None:
    calls = [
        op("aten::mm", 0, 50, external_id=1),
        op("aten::add", 60, 50, external_id=2),
        launch(70, 5, 1),
        device("add", 100, 3, correlation=1, external_id=1),  # launched in 2
        device(GEMM, 110, 7, correlation=None, external_id=2),
    ]
    found = operators(trace(calls))
    assert table(found, "self_device_ns") == {"aten::add": 3, "aten::mm": 0, "cudaLaunchKernel": 0}
    assert found.unlaunched_ns == 7


def test_no_operator_launches_before_it_starts() -> None:
    calls = [op("late", 100, 50, external_id=3), device(GEMM, 10, 7, external_id=3)]
    assert operators(trace(calls)).unlaunched_ns == 7


def test_where_no_operator_launched_anything_none_is_named() -> None:
    found = operators(trace([op("aten::mm", 0, 100), device(GEMM, 200, 8)]))
    check_wording(found.verdict)


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
def test_gpu_idle_is_named_where_it_can_answer(events: list[dict[str, Any]], answers: bool) -> None:
    made = trace([op("enumerate(DataPipe)#Shuffler", 20, 900), *events])
    said = operators(made).verdict
    check_wording(said)
    assert ("gpu-idle" in said) == answers
    if answers:
        assert gpu_idle(made).verdict
    else:
        with pytest.raises(MissingData):
            gpu_idle(made)


def test_a_launch_outside_of_all_operators_is_in_no_row() -> None:
    calls = [op("f", 0, 10), launch(50, 5, 1), device(GEMM, 100, 7, correlation=1)]
    found = operators(trace(calls))
    assert table(found, "self_device_ns") == {"cudaLaunchKernel": 0, "f": 0}
    assert found.unlaunched_ns == 7


def test_correlation_ids_belong_to_a_process() -> None:
    calls = [
        op("f", 0, 10), launch(5, 1, 1), device(GEMM, 20, 3, correlation=1, pid=1),
        op("g", 0, 10, pid=2), launch(5, 1, 1, pid=2), device(GEMM, 30, 5, correlation=1, pid=2),
    ]  # fmt: skip
    found = table(operators(trace(calls)), "self_device_ns")
    assert (found["f"], found["g"]) == (3, 5)


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
    found = operators(with_memory(trace(ALLOCATING), [1, 0, 1, 0]))
    assert table(
        found, "self_device_memory_bytes", "total_device_memory_bytes", "self_host_memory_bytes"
    ) == {
        "aten::linear": (0, 3072, 0),
        "aten::empty": (4096, 4096, 512),
        "aten::free": (-1024, -1024, 0),
    }
    assert found.outside_bytes == -64
    check_wording(found.notes)
    assert [t.name for t in found.tables] == ["operators", "memory"]
    assert found.tables[1].frame["name"][0] == "aten::empty"


def test_nothing_allocated_is_not_the_same_as_not_recorded() -> None:
    recorded = operators(with_memory(trace(ALLOCATING), [6, 6, 6, 6]))
    assert recorded.operators["self_host_memory_bytes"].null_count() == 3
    assert sorted(recorded.operators["self_device_memory_bytes"]) == [-1024, 0, 4608]
    unknown = operators(with_memory(trace(ALLOCATING), [None] * 4))
    assert unknown.operators["self_device_memory_bytes"].null_count() == 3
    with pytest.raises(MissingData, match="profile_memory=True"):
        operators(trace(ALLOCATING), sort_by="self_host_memory")


def test_sorted_by_memory_memory_comes_first() -> None:
    made = with_memory(trace(ALLOCATING), [1, 0, 1, 0])
    found = operators(made, sort_by="total_device_memory")
    assert found.tables[0].name == "memory"
    assert found.tables[0].frame["name"].to_list() == ["aten::empty", "aten::linear", "aten::free"]


# --- rows told apart ---------------------------------------------------------------------------


def test_rows_by_input_shape() -> None:
    calls = [op("aten::mm", n * 10, n + 1) for n in range(4)]
    dims = pl.Series("input_dims", ["[[2, 2]]", "[[4, 4]]", "[[2, 2]]", None])
    made = trace(calls)
    with raises_wording(MissingData):
        operators(made, group_by_input_shape=True)
    none = replace(made, events=made.events.with_columns(input_dims=pl.lit(None, pl.String)))
    with pytest.raises(MissingData, match="record_shapes=True"):
        operators(none, group_by_input_shape=True)
    told = replace(made, events=made.events.with_columns(dims))
    found = operators(told, group_by_input_shape=True, sort_by="total_host").operators
    assert found.select("name", "input_dims", "calls", "total_host_ns").rows() == [
        ("aten::mm", "[[2, 2]]", 2, 4),
        ("aten::mm", None, 1, 4),
        ("aten::mm", "[[4, 4]]", 1, 2),
    ]


def test_rows_by_the_python_frames_around() -> None:
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
    found = operators(trace(calls), group_by_stack=2, sort_by="calls").operators
    own = found.filter(pl.col("name") == "aten::mm").select("stack", "calls", "total_host_ns")
    assert set(own.rows()) == {
        ("b.py(2): f; a.py(1): main", 1, 5),
        ("c.py(3): g; a.py(1): main", 1, 5),
        ("a.py(1): main", 1, 7),
        (None, 1, 9),
    }
    main = found.filter(pl.col("name") == "a.py(1): main")
    assert main["stack"].to_list() == [None], "a frame is not around itself"
    deeper = operators(trace(calls), group_by_stack=9).operators["stack"].drop_nulls()
    assert deeper.str.count_matches(";").max() == 1, "there are no more frames"
    assert operators(trace(calls), group_by_stack=1).operators.height == 8


def test_nonsense_is_refused() -> None:
    made = trace([op("f", 0, 1)])
    with raises_wording(OptionError):
        operators(made, sort_by="magic")  # type: ignore[arg-type]
    with raises_wording(OptionError):
        operators(made, group_by_stack=-1)


@pytest.mark.parametrize("word", SORT_BY)
def test_rows_are_sorted_as_asked(word: Any) -> None:
    more = [allocated(35 * US, 5), allocated(36 * US, 5), allocated(72 * US, 3)]
    made = with_memory(trace([*FORWARD, *more]), [0, 1, 1])
    values = operators(made, sort_by=word).operators[sort_column(word)].to_list()
    assert values == sorted(values, reverse=True)
    assert len(set(values)) > 1


def test_of_rows_that_are_equal_the_longer_on_the_host_comes_first() -> None:
    calls = [op("a", 0, 5), op("b", 10, 9), op("c", 20, 1), launch(20, 1, 1)]
    found = operators(trace([*calls, device(GEMM, 30, 7, correlation=1)]))
    assert found.operators["name"].to_list() == ["c", "b", "a", "cudaLaunchKernel"]


# --- what is not there -------------------------------------------------------------------------


def test_other_slices_count_where_nothing_else_was_recorded() -> None:
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
def test_without_operators_it_says_how_to_record_them(events: list[dict[str, Any]]) -> None:
    with raises_wording(MissingData):
        operators(trace(events))


def test_without_device_work_device_time_cannot_sort() -> None:
    with raises_wording(MissingData):
        operators(trace([op("f", 0, 1)]), sort_by="self_device")


def test_without_correlation_ids_nothing_is_guessed() -> None:
    calls = [op("f", 0, 100), {**launch(10, 5, 1), "correlation": None}, device(GEMM, 20, 7)]
    found = operators(trace(calls))
    assert found.unlaunched_ns == found.device_ns == 7
    assert set(table(found, "self_device_ns").values()) == {0}


# --- ranks -------------------------------------------------------------------------------------


def test_ranks_are_summed_up() -> None:
    cpu = [op("f", 0, 30), op("g", 50, 5)]
    found = operators([trace(FORWARD, rank=1), trace(cpu, rank=0), trace(cpu, rank=None)])
    assert table(found, "calls", "self_host_ns", "self_device_ns")["f"] == (2, 60, None)
    assert found.device_ns == 24 * US
    assert found.ranks.select("rank", "calls", "threads", "host_ns", "device_ns").rows() == [
        (0, 2, 1, 35, None),
        (1, 7, 1, 100 * US, 24 * US),
        (None, 2, 1, 35, None),
    ]
    assert [t.name for t in found.tables] == ["operators", "ranks"]


def test_ranks_in_one_trace_are_taken_apart() -> None:
    both = [*FORWARD, *[{**event, "rank": 1} for event in FORWARD]]
    found = operators(trace(both))
    assert found.ranks["rank"].to_list() == [0, 1]
    assert table(found, "self_device_ns")["aten::addmm"] == 30 * US


def test_the_answer_does_not_depend_on_the_order_of_ranks() -> None:
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
def test_self_times_add_up_whatever_overlaps(
    rows: list[tuple[str, str, int, int, int]],
) -> None:
    made = trace([host(kind, name, ts, dur, tid=tid) for kind, name, ts, dur, tid in rows])
    if all(row[0] == "cuda_runtime" for row in rows):
        return
    found = operators(made)
    spans = made.events.select("tid", start="ts", end=pl.col("ts") + pl.col("dur"))
    assert found.operators["self_host_ns"].sum() == found.host_ns
    assert found.host_ns == intervals.measure(spans, ["tid"])["length"].sum()
    assert found.operators["self_host_ns"].min() >= 0  # type: ignore[operator]


# --- the command -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("nccl_8ranks", ["nccl_8ranks"]),
        ("ddp_gloo_rank3", ["ddp_gloo_4ranks/rank3.json.gz", "--top", "15"]),
        ("composer", ["composer"]),
        ("shapes", ["ddp_gloo_4ranks", "--group-by-input-shape", "--sort-by", "total_host"]),
    ],
)
def test_what_the_terminal_shows(name: str, arguments: list[str], golden: GOLDEN) -> None:
    done = run_cli("operators", *arguments, "-q", cwd=FIXTURES)
    assert (done.returncode, done.stderr) == (0, "")
    golden(f"operators_{name}.txt", done.stdout)


def test_other_forms_hold_all_rows() -> None:
    path = FIXTURES / "ddp_gloo_4ranks/rank0.json.gz"
    told = json.loads(run_cli("operators", path, "--to", "json").stdout)
    lines = run_cli("operators", path, "--to", "csv").stdout.splitlines()
    assert len(told["operators"]) == len(lines) - 1 == 56
    assert lines[0].startswith("name,kind,calls,self_host_ns,self_host_frac,total_host_ns")
    assert told["n_calls"] == sum(row["calls"] for row in told["operators"])


def test_the_plot_is_drawn(tmp_path: Any) -> None:
    picture = tmp_path / "operators.svg"
    done = run_cli("operators", FIXTURES / "nccl_8ranks/rank0.json.gz", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Operators by self device time" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ddp_gloo_4ranks", "--sort-by", "self_device"], "no device work was recorded"),
        (["ddp_gloo_4ranks", "--group-by-stack", "3"], "with_stack=True"),
        (["py_spy/default.raw.txt"], "no operators were recorded"),
    ],
)
def test_what_is_missing_is_said_in_a_line(
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(FIXTURES)
    assert status(["operators", *arguments, "-q"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_a_wrong_word_is_usage() -> None:
    assert status(["operators", "x.json", "--sort-by", "magic"]) == 2
    assert status(["operators", "x.json", "--group-by-stack", "-1"]) == 2


def test_files_and_traces_give_the_same() -> None:
    path = FIXTURES / "nccl_8ranks/rank0.json.gz"
    assert str(ta.operators(path)) == str(operators(ta.read(path)))


# --- kernels that graphs replay ----------------------------------------------------------------

ADD, NORM = "add_kernel", "norm_kernel"
LAYER = [("aten::mm", GEMM), ("aten::add", ADD), ("aten::mul", ADD), ("aten::norm", NORM)]


def eager(at: int = 0) -> list[dict[str, Any]]:
    """A step of operators with one launch and one kernel of 1 us each."""
    rows = []
    for n, (operator, kernel) in enumerate(LAYER, at):
        rows += [op(operator, n * 100, 90), launch(n * 100 + 10, 10, n)]
        rows.append(device(kernel, n * 100 + 50, 1, correlation=n))
    return rows


def replay(at: int, kernels: Sequence[str], dur: int = 10) -> list[dict[str, Any]]:
    """One graph launch within an annotation, with kernels of so many us."""
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
        found = operators(inputs)
        times = table(found, "self_device_ns", "total_device_ns")
        assert {name: times[name] for name, _ in LAYER} == dict.fromkeys(
            (name for name, _ in LAYER), (11, 11)
        )
        assert times["replay"] == (0, 40)
        assert (found.replayed, found.replayed_matched) == (4, 4)
        assert (found.replayed_ns, found.replayed_matched_ns) == (40, 40)
        check_wording(*found.view().notes)


def test_replayed_kernels_that_nothing_identifies_stay_at_the_launch() -> None:
    """Another kernel, and one of which two operators launch the same."""
    found = operators(trace([*eager(), *replay(5_000, ["other", ADD, GEMM])]))
    times = table(found, "self_device_ns")
    assert (times["aten::mm"], times["aten::add"], times["replay"]) == (11, 1, 20)
    assert (found.replayed, found.replayed_matched, found.replayed_matched_ns) == (3, 1, 10)
    check_wording(*found.view().notes)


def test_without_a_step_before_the_note_says_how_to_find_the_operators() -> None:
    found = operators(trace([op("model", 5_000, 90), *replay(5_000, KERNELS)]))
    assert (found.replayed_matched, table(found, "self_device_ns")["replay"]) == (0, 40)
    check_wording(*found.view().notes)


def test_launch_calls_of_a_capture_are_kernels_of_the_graph_in_order() -> None:
    capture = [host("cuda_runtime", "cudaStreamBeginCapture", 0, 5)]
    for n, (operator, _) in enumerate(LAYER, 1):
        capture += [op(operator, n * 100, 90), launch(n * 100 + 10, 10, n)]
    capture.append(host("cuda_runtime", "cudaStreamEndCapture", 900, 5))
    capture += [op("aten::sum", 1_000, 90), launch(1_010, 10, 9)]
    replays = [*replay(5_000, KERNELS), *replay(6_000, KERNELS[:3])]
    found = operators([trace(replays), trace(capture, 0, path="capture.json")])
    times = table(found, "self_device_ns")
    assert [times[name] for name, _ in LAYER] == [10, 10, 10, 10]
    assert times["replay"] == 30  # no capture has three launches
    assert found.unlaunched_ns == 0


def test_replayed_kernels_outside_of_every_call_are_found_too() -> None:
    replayed = [row for row in replay(5_000, KERNELS) if row["name"] != "replay"]
    found = operators(trace([*eager(), *replayed]))
    assert (found.unlaunched_ns, found.replayed_matched) == (0, 4)
