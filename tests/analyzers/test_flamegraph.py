"""Flame graphs of synthetic stacks against plain dictionaries."""

from __future__ import annotations

from collections import defaultdict

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from trace_rows import table
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.flamegraph import tree, weights
from traceanalyzer.errors import InputError, MissingData, OptionError
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import Meta, Trace

STACKS = {
    "main@train.py;fit@train.py;forward@torch/nn.py": 6,
    "main@train.py;fit@train.py": 1,
    "main@train.py;load@data.py;read@io.py": 2,
    "": 1,
}


def sampled(
    stacks: dict[str, float] | list[tuple[str, float, dict]],
    path: str = "profile.txt",
    unit: str | None = "samples",
    **meta,
) -> Trace:
    """Return a trace of samples from ``name@file;name@file``, a weight and event columns."""
    rows: dict[tuple, int] = {}
    samples = [(*item, {}) for item in stacks.items()] if isinstance(stacks, dict) else stacks
    events = []
    for stack, weight, more in samples:
        above = None
        for frame in filter(None, stack.split(";")):
            name, _, file = frame.partition("@")
            file, _, line = file.partition(":")
            key = (above, name, file or None, int(line) if line else None)
            above = rows.setdefault(key, len(rows))
        events.append({"kind": "sample", "stack": above, "weight": weight, **more})
    stack_rows = [
        {"id": at, "parent": key[0], "name": key[1], "file": key[2], "line": key[3]}
        for key, at in rows.items()
    ]
    return Trace(
        sources=(Meta(path=path, format="collapsed", weight_unit=unit, **meta),),
        events=table("events", *events, drop=ON_REQUEST),
        stacks=table("stacks", *stack_rows),
    )


def sliced(*slices: tuple[str, str, int, int], **more) -> Trace:
    """A trace of slices: kind, name, start, duration in ns."""
    rows = [
        {"kind": kind, "name": name, "ts": ts, "dur": dur, "pid": 1, "tid": 1, **more}
        for kind, name, ts, dur in slices
    ]
    return Trace(
        sources=(Meta(path="trace.json", format="chrome"),),
        events=table("events", *rows, drop=ON_REQUEST),
    )


def boxes(result: ta.FlameGraph, value: str = "total") -> dict[str, float]:
    """Each box's path of names and its weight."""
    paths: list[str] = []
    outcome = {}
    for row in result.flame.frame.iter_rows(named=True):
        above = "" if row["parent"] is None else f"{paths[row['parent']]};"
        paths.append(above + row["name"])
        outcome[paths[-1]] = row[value]
    assert len(outcome) == result.flame.frame.height, "a path occurs twice"
    return outcome


def self_of(result: ta.FlameGraph, by: str = "self_samples") -> dict[str, float]:
    return dict(result.functions.select("name", by).iter_rows())


def test_boxes_match_the_call_tree():
    result = ta.flamegraph(sampled(STACKS))
    assert boxes(result) == {
        "main": 9, "main;fit": 7, "main;load": 2, "main;fit;forward": 6, "main;load;read": 2,
        "(no stack)": 1,
    }  # fmt: skip
    assert boxes(result, "self") == {
        "main": 0, "main;fit": 1, "main;load": 0, "main;fit;forward": 6, "main;load;read": 2,
        "(no stack)": 1,
    }  # fmt: skip
    assert (result.total, result.unit, result.hidden) == (10, "samples", 0)


def test_frame_has_the_documented_schema():
    frame = ta.flamegraph(sampled(STACKS)).flame.frame
    assert dict(frame.schema) == {
        "id": pl.UInt32, "parent": pl.UInt32, "name": pl.String, "place": pl.String,
        "group": pl.String, "is_own_code": pl.Boolean, "imports": pl.Boolean,
        "self": pl.Float64, "total": pl.Float64, "hidden": pl.UInt32, "base": pl.Float64,
    }  # fmt: skip
    assert frame["id"].to_list() == list(range(frame.height))
    assert frame.filter(pl.col("parent") >= pl.col("id")).is_empty()
    assert frame["base"].null_count() == frame.height


def test_lines_of_a_function_are_one_box():
    result = ta.flamegraph(sampled({"f@a.py:3": 1, "f@a.py:9;g@b.py:2": 2, "f@c.py": 4}))
    assert result.flame.frame.select("name", "place", "total").rows() == [
        ("f", "a.py:3-9", 3),
        ("f", "c.py", 4),
        ("g", "b.py:2", 2),
    ]


def test_own_code_is_highlighted_and_packages_set_the_colour():
    frame = ta.flamegraph(sampled(STACKS)).flame.frame
    result = {
        name: (group, is_own_code)
        for name, group, is_own_code in frame.select("name", "group", "is_own_code").rows()
    }
    assert result["fit"] == (None, True)
    assert result["forward"] == ("torch", False)
    frame = ta.flamegraph(sampled(STACKS), library_names="torch").flame.frame
    assert frame.filter("is_own_code")["name"].to_list() == ["forward"]


def test_functions_count_recursion_once_and_name_the_innermost_own_code():
    trace = sampled({"f@a.py;g@torch/x.py;f@a.py;h@torch/y.py": 3, "f@a.py": 1})
    functions = ta.flamegraph(trace).functions
    assert self_of(ta.flamegraph(trace), "total_samples") == {"f": 4, "g": 3, "h": 3}
    assert dict(functions.select("name", "inner_samples").rows()) == {"f": 4, "g": None, "h": None}
    assert functions["name"].to_list() == ["h", "f", "g"]


def test_verdict_names_the_largest_functions():
    result = ta.flamegraph(sampled(STACKS))
    check_wording(result.verdict)
    check_wording(" ".join(result.notes))


def test_inverted_boxes_start_with_leaf_functions():
    result = ta.flamegraph(sampled(STACKS), inverted=True)
    assert result.flame.inverted
    assert boxes(result) == {
        "forward": 6, "forward;fit": 6, "forward;fit;main": 6,
        "fit": 1, "fit;main": 1,
        "read": 2, "read;load": 2, "read;load;main": 2,
        "(no stack)": 1,
    }  # fmt: skip


def test_focus_starts_at_the_function():
    result = ta.flamegraph(sampled(STACKS), focus="^(fit|load)$")
    assert boxes(result) == {"fit": 7, "fit;forward": 6, "load": 2, "load;read": 2}
    assert "90.0 %" in result.notes[0]
    with raises_wording(OptionError):
        ta.flamegraph(sampled(STACKS), focus="nobody")
    with raises_wording(OptionError):
        ta.flamegraph(sampled(STACKS), focus="(")


def test_small_boxes_are_merged_and_reported():
    result = ta.flamegraph(sampled(STACKS), min_frac=0.25)
    assert boxes(result) == {
        "main": 9, "main;fit": 7, "main;fit;forward": 6, "main;(2 frames below 25 %)": 2,
        "(no stack)": 1,
    }  # fmt: skip
    assert boxes(result, "hidden")["main;(2 frames below 25 %)"] == 2
    check_wording(result.verdict, result.notes[-1])
    with pytest.raises(OptionError, match="--min-frac"):
        ta.flamegraph(sampled(STACKS), min_frac=1.0)


def test_a_report_merges_invisible_boxes():
    trace = sampled({"a;b": 100_000, "a;c": 10, "a;d": 12, "a;e": 30})
    (drawn,) = (one.result for one in ta.report(trace).sections if one.key == "flamegraph")
    assert sorted(boxes(drawn).values()) == [22, 30, 100_000, 100_052]
    assert len(boxes(ta.flamegraph(trace))) == 5


def test_default_draws_the_largest_boxes(monkeypatch):
    monkeypatch.setattr(tree, "BOXES", 3)
    wide = sampled({f"f{n}": 10 + n for n in range(20)})
    result = boxes(ta.flamegraph(wide))
    rest = next(name for name in result if name.startswith("(17 frames below"))
    assert result == {"f17": 27, "f18": 28, "f19": 29, rest: sum(range(10, 27))}
    alike = sampled({f"f{n}": 1 for n in range(20)})
    assert list(boxes(ta.flamegraph(alike)).values()) == [20]


def test_deep_stack_is_merged_and_reported(monkeypatch):
    deep = sampled({";".join(f"f{n % 7}" for n in range(5_000)): 2, "f0": 1})
    result = ta.flamegraph(deep)
    assert result.flame.frame.height == weights.DEEPEST + 1
    assert boxes(result)[";".join(f"f{n % 7}" for n in range(2_000)) + ";" + weights.TOO_DEEP] == 2
    assert any(weights.TOO_DEEP in note for note in result.notes)


def test_inputs_are_added_or_grouped_by_file_or_rank():
    a = sampled({"f@a.py:1": 1}, "a/rank0.txt", rank=0)
    b = sampled({"f@a.py:2": 2, "g": 3}, "b/rank1.txt", rank=1)
    assert boxes(ta.flamegraph([a, b])) == {"f": 3, "g": 3}
    both = {"rank0.txt": 1, "rank0.txt;f": 1, "rank1.txt": 5, "rank1.txt;f": 2, "rank1.txt;g": 3}
    assert boxes(ta.flamegraph([a, b], by="file")) == both
    with_rank = [t.with_rank(t.meta.rank) for t in (a, b)]
    renamed = {path.replace("rank", "rank ").replace(".txt", ""): w for path, w in both.items()}
    assert boxes(ta.flamegraph(with_rank, by="rank")) == renamed
    assert boxes(ta.flamegraph(ta.concat(with_rank), by="rank")) == renamed
    assert boxes(ta.flamegraph(ta.concat(with_rank), by="file")) == both
    assert boxes(ta.flamegraph(with_rank, rank=1)) == {"f": 2, "g": 3}
    with pytest.raises(OptionError, match="rank 7"):
        ta.flamegraph(with_rank, rank=7)


def threaded() -> Trace:
    trace = sampled(
        [
            ("f;g", 1, {"pid": 7, "tid": 1}),
            ("f", 2, {"pid": 7, "tid": 2}),
            ("f;g", 4, {"pid": 8, "tid": 1}),
            ("", 8, {"pid": 8, "tid": 1}),
        ]
    )
    lanes = table(
        "lanes",
        {"pid": 7, "label": "python train.py", "textual": False},
        {"pid": 7, "tid": 1, "label": "MainThread", "textual": False},
        {"pid": 7, "tid": 2, "label": "pin_memory", "textual": False},
    )
    return Trace(trace.sources, trace.events, trace.stacks, lanes=lanes)


def test_processes_and_threads_are_grouped():
    assert boxes(ta.flamegraph(threaded(), by="process")) == {
        "process 7: python train.py": 3, "process 7: python train.py;f": 3,
        "process 7: python train.py;f;g": 1,
        "process 8": 12, "process 8;f": 4, "process 8;f;g": 4, "process 8;(no stack)": 8,
    }  # fmt: skip
    named = "process 7: python train.py, thread 1: MainThread"
    result = boxes(ta.flamegraph(threaded(), by="thread", inverted=True))
    assert {path: result[path] for path in result if path.startswith(named)} == {
        named: 1, f"{named};g": 1, f"{named};g;f": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("threads", "total"), [(["pin"], 2), (["1"], 13), (["2", "MainThread"], 3), ([], 15)]
)
def test_threads_are_chosen_by_number_or_name(threads, total):
    assert ta.flamegraph(threaded(), threads=threads).total == total


def test_unknown_thread_error_lists_available_threads():
    with raises_wording(OptionError):
        ta.flamegraph(threaded(), threads=["loader"])


def test_difference_is_scaled_and_keeps_missing_functions():
    now = sampled({"f;g": 6, "f;h": 4}, "now.txt")
    before = sampled({"f;g": 1, "f;gone": 1}, "before.txt")
    result = ta.flamegraph(now, base=before)
    assert boxes(result) == {"f": 10, "f;g": 6, "f;h": 4, "f;gone": 0}
    assert boxes(result, "base") == {"f": 10, "f;g": 5, "f;h": 0, "f;gone": 5}
    changes = result.to_polars("changes").select("name", "change_self_frac").rows()
    assert changes == [("gone", -0.5), ("h", 0.4), ("g", pytest.approx(0.1))]
    check_wording(result.verdict)
    assert (result.base, result.total) == (2, 10)
    assert result.tables[0].name == "changes"


def test_columns_before_and_after_are_a_difference():
    stacks = [("f", 1, {"category": "before"}), ("f", 2, {"category": "after"})]
    stacks += [("g", 3, {"category": "before"}), ("g", 2, {"category": "after"})]
    result = ta.flamegraph(sampled(stacks))
    assert (result.total, result.base) == (4, 4)
    assert boxes(result, "base") == {"f": 1, "g": 3}
    compared = ta.flamegraph(sampled(stacks), base=sampled(stacks))
    assert boxes(compared, "base") == {"f": 2, "g": 2}


# --- slices ----------------------------------------------------------------------------------

SLICES = (
    ("cpu_op", "aten::linear", 0, 100),
    ("cpu_op", "aten::addmm", 20, 60),
    ("cuda_runtime", "cudaLaunchKernel", 30, 10),
    ("cpu_op", "aten::addmm", 200, 50),
)


def test_slices_weigh_their_self_time():
    result = ta.flamegraph(sliced(*SLICES))
    assert boxes(result, "self") == {
        "aten::linear": 40,
        "aten::linear;aten::addmm": 50,
        "aten::linear;aten::addmm;cudaLaunchKernel": 10,
        "aten::addmm": 50,
    }
    assert (result.unit, result.total) == ("ns", 150)
    assert result.flame.frame["group"].unique().sort().to_list() == [None, "aten"]


@pytest.mark.parametrize(
    ("slice_", "function"),
    [
        ("train.py(12): step", ("step", "train.py", 12)),
        ("/home/u/a(1).py(12): <module>", ("<module>", "/home/u/a(1).py", 12)),
        ("C.step (/home/u/a (1).py:12)", ("C.step", "/home/u/a (1).py", 12)),
        ("C.<locals>.f (/home/u/a.py)", ("C.<locals>.f", "/home/u/a.py", None)),
        ("<module> (<string>:1)", ("<module>", "<string>", 1)),
        ("/home/u/a.py(7).h", ("h", "/home/u/a.py", 7)),
        ("<string>(1).<module>", ("<module>", "<string>", 1)),
        ("builtins.exec", ("builtins.exec", None, None)),
        ("thread (12): io", ("thread (12): io", None, None)),
        ("parse (parse.cc:7)", ("parse (parse.cc:7)", None, None)),
        ("aten::add(7).x", ("aten::add(7).x", None, None)),
        ("step (a.py:1234567890)", ("step (a.py:1234567890)", None, None)),
    ],
)
def test_slices_named_as_python_functions(slice_, function):
    """As torch.profiler, viztracer, viztracer until 2020 and py-spy name them."""
    calls = weights.sliced(
        trace := sliced(("other", slice_, 0, 10)), pl.Series([0]), None, (None, None)
    )
    assert calls.frames.row(0) == function
    assert ta.flamegraph(trace).functions["name"].to_list() == [function[0]]


def test_slices_can_be_counted_selected_and_clipped():
    trace = sliced(*SLICES)
    assert ta.flamegraph(trace, weight="count").total == 4
    assert boxes(ta.flamegraph(trace, kinds=["cuda_runtime"])) == {"cudaLaunchKernel": 10}
    assert boxes(ta.flamegraph(trace, since_ns=35, until_ns=205)) == {
        "aten::linear": 65,
        "aten::linear;aten::addmm": 45,
        "aten::linear;aten::addmm;cudaLaunchKernel": 5,
        "aten::addmm": 5,
    }
    with raises_wording(MissingData):
        ta.flamegraph(trace, weight="bytes")
    with raises_wording(MissingData):
        ta.flamegraph(trace, kinds=["kernel"])
    copies = sliced(("gpu_memcpy", "HtoD", 0, 5), bytes=64, device=0, stream=7, tid=None)
    result = ta.flamegraph(copies, kinds=["gpu_memcpy"], weight="bytes")
    assert (result.total, "own code" in result.verdict) == (64, False)


def test_python_functions_are_preferred_and_parsed():
    python = ("python_function", "train.py(12): step", 0, 100)
    result = ta.flamegraph(sliced(python, ("cpu_op", "aten::mm", 10, 10)))
    assert boxes(result) == {"step": 100}
    assert result.flame.frame.select("place", "is_own_code").row(0) == ("train.py:12", True)


def test_steps_are_one_box():
    steps = [("user_annotation", f"ProfilerStep#{n}", 10 * n, 10) for n in range(3)]
    assert boxes(ta.flamegraph(sliced(*steps))) == {"ProfilerStep": 30}


def test_overlapping_slices_are_noted():
    trace = sliced(("cpu_op", "a", 0, 100), ("cpu_op", "b", 50, 100))
    result = ta.flamegraph(trace)
    assert boxes(result) == {"a": 100, "b": 100}
    check_wording(result.notes[0])


# --- what cannot be ---------------------------------------------------------------------------


def test_empty_input_raises_an_error():
    with raises_wording(MissingData):
        ta.flamegraph(sliced(("kernel", "k", 0, 5), device=0, tid=None))
    with raises_wording(MissingData):
        ta.flamegraph(sampled(STACKS), since_ns=5)
    with pytest.raises(MissingData, match="no weight"):
        ta.flamegraph(sampled({"f": 0}))
    with raises_wording(OptionError):
        ta.flamegraph(sampled(STACKS), weight="time")
    with raises_wording(InputError):
        ta.flamegraph(sampled(STACKS), base=sliced(*SLICES))
    assert ta.flamegraph([sliced(*SLICES), sampled(STACKS)]).total == 10


def test_zero_weights_are_not_counted():
    odd = {"f": 2, "g": 0, "h": -3, "i": float("nan"), "j": float("inf")}
    result = ta.flamegraph(sampled(odd))
    assert result.total == 2
    assert "4 samples" in result.notes[0]


def test_cyclic_stack_table_is_refused():
    trace = sampled(STACKS)
    circle = trace.stacks.with_columns(parent=pl.lit(2, pl.UInt32))
    with pytest.raises(InputError, match="not a tree"):
        ta.flamegraph(Trace(trace.sources, trace.events, circle))


# --- against plain dictionaries -----------------------------------------------------------------

PATHS = st.lists(st.sampled_from("abc"), max_size=5).map(";".join)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PATHS, st.integers(1, 9)), min_size=1, max_size=10), st.booleans())
def test_arbitrary_stacks_add_up(stacks, reverse):
    result = ta.flamegraph(sampled([(*stack, {}) for stack in stacks]), inverted=reverse)
    expected: dict[str, float] = defaultdict(float)
    for stack, weight in stacks:
        names = (stack or "(no stack)").split(";")[:: -1 if reverse else 1]
        for length in range(1, len(names) + 1):
            expected[";".join(names[:length])] += weight
    assert boxes(result) == expected
    assert result.functions["self_samples"].sum() == sum(weight for _, weight in stacks)


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    ("name", "total"),
    [("default", 1902), ("subproc_threads", 2170), ("native", 2597), ("threads_idle", 4398)],
)
def test_recordings_add_up(shared, name, total):
    result = ta.flamegraph(shared / "data" / "pyspy" / f"{name}.raw.txt", by="thread")
    frame = result.flame.frame
    assert result.total == frame["self"].sum() == total
    assert frame.filter(pl.col("parent").is_null())["total"].sum() == total
