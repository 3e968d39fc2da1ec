"""Causes of slow steps and of time between steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from comm_traces import MS, US, device, host, step, trace
from diagnosing import BY_ID, judged
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.steps.result import Steps
from traceanalyzer.analyzers.steps.slow_steps import FORWARD_ONLY
from traceanalyzer.findings import steps as step_rules
from traceanalyzer.findings.device_time import REPEATED
from traceanalyzer.findings.program import Program
from traceanalyzer.findings.rule import Answers
from traceanalyzer.run.loop import examine
from traceanalyzer.trace import Trace

Event = dict[str, Any]
MIB = 1 << 20
NODE = "autograd::engine::evaluate_function: MmBackward0"


def steps(extra: dict[int, Sequence[Event]], gap: int = 0) -> Trace:
    """Return six steps of 10 ms with a gap after each; steps with ``extra`` events take 30 ms."""
    events: list[Event] = []
    begin = 0
    for number in range(6):
        more = extra.get(number, ())
        length = (30 if more else 10) * MS
        events += [step(number, begin, length), *_usual(begin)]
        events += [{**event, "ts": event["ts"] + begin} for event in more]
        begin += length + gap
    return trace(events)


def _usual(begin: int) -> Iterator[Event]:
    """Return two layers and their backward pass."""
    for n in range(2):
        yield host("cpu_op", "aten::linear", begin + n * MS, MS // 2)
        yield device("gemm", begin + n * MS, MS)
        yield host("cpu_op", NODE, begin + (4 + n) * MS, MS // 2, tid=2)
        yield device("gemm", begin + (4 + n) * MS, MS)


def test_slow_steps_that_other_findings_explain_in_part_have_one_cost() -> None:
    """The whole share and that of the cost are both in the title, so that no other one follows."""
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    slow = [host("user_annotation", loader, 10 * MS, 10 * MS), device("gemm", 20 * MS, 10 * MS)]
    (one,) = judged("uneven-steps", steps({3: slow}))
    assert "25.0 % of step time" in one.title
    left = 1 - sum(share for id_, share in one.explained.items() if id_ != "throttled-steps")
    assert 0 < left < 1
    assert f"{100 * left * 0.25:.1f} %" in one.title
    assert one.total_ns == round(left * 20 * MS)


@pytest.mark.parametrize(("after", "found"), [((1, 3), True), (range(5), False), ((), False)])
def test_device_work_in_some_pauses_between_steps(after: Sequence[int], found: bool) -> None:
    """Work in most of the pauses means that the marks do not cover a step."""
    events: list[Event] = []
    for number in range(6):
        begin = number * 20 * MS
        events += [step(number, begin, 10 * MS), device("gemm", begin, 10 * MS)]
        if number in after:
            events += [host("user_annotation", "evaluate", begin + 10 * MS, 9 * MS)]
            events += [device("gemm", begin + 11 * MS, 8 * MS)]
    rows = judged("work-between-steps", trace(events))
    assert len(rows) == found
    for row in rows:
        assert row.cost_frac == pytest.approx(16 / 110)
        assert row.total_ns == 16 * MS
        assert "evaluate" in row.title


def of_jax(*took: int, compiles: Callable[[int], bool]) -> Trace:
    """Steps of these lengths in ms; half of some is compilation."""
    begin, events = 0, list[Event]()
    for number, length in enumerate(took):
        events.append(step(number, begin, length * MS))
        calls = (
            ("PjitFunction(add)", 6),
            ("PjitFunction(add)", 6),
            ("compiler.py(300): backend_compile_and_load", 5),
            ("compiler.py(292): backend_compile", 5),
        )
        for name, tenths in calls if compiles(number) else calls[: 2 * (length > 20)]:
            events.append(host("python_function", name, begin + MS, length * MS * tenths // 10))
        begin += length * MS
    return trace(events)


def test_jax_that_compiles_before_its_steps() -> None:
    """Compilation in warm-up explains no other step; nested slices of one name count once."""
    compiling = of_jax(500, 10, 10, 10, 40, 10, compiles=lambda number: number == 0)
    names = ["steps", "info", "gpu_idle"]
    answers = Answers(dict(examine([compiling], names, use="findings").results))
    assert answers.program.xla
    (one,) = BY_ID["uneven-steps"].judge(answers)
    assert "compilation" not in one.title
    assert "PjitFunction(add) (24 ms)" in one.title


def on_cpu(lengths: Sequence[Mapping[str, int]]) -> Trace:
    """Return one step for each mapping, with operators that take so many ms one after another.

    Nothing is recorded of the one without a name.
    """
    begin, events = 0, list[Event]()
    for number, operators in enumerate(lengths):
        events.append(step(number, begin, sum(operators.values()) * MS))
        for name, took in operators.items():
            events += [host("cpu_op", name, begin, took * MS)] * bool(name)
            begin += took * MS
    return trace(events)


@pytest.mark.parametrize(
    ("slow", "which"),
    [
        (({"mm": 14}, {"add": 6, "mm": 9}), "mostly mm"),
        (({"mm": 14, "add": 3}, {"mm": 15}), "mostly mm"),
        (({"mm": 16},), "mostly mm"),
        (({"mm": 10, "add": 3, "view": 3}, {"mm": 12}), "no single operator, but all of them"),
    ],
)
def test_slow_operators_by_chance(slow: Sequence[Mapping[str, int]], which: str) -> None:
    """Each slow step has another slow operator, or the one that takes most of the time anyway."""
    usual = {"mm": 7, "add": 1, "view": 1, "sum": 1}
    (one,) = judged("uneven-steps", on_cpu([usual] * 5 + [usual | more for more in slow]))
    assert one.confidence == "low"
    assert BY_ID["uneven-steps"].severity(one.size or 0, one.confidence) == "info"
    assert which in one.title


@pytest.mark.parametrize(("more", "alike"), [(1, True), (0, False)])
def test_steps_of_which_all_is_slow(more: int, alike: bool) -> None:
    """Half of a step is Python, of which nothing is recorded; operators are as slow, or not."""
    usual = {"mm": 6, "add": 2, "view": 2, "": 10}
    slow = {name: took + took * more for name, took in usual.items()} | {"": 22}
    (one,) = judged("uneven-steps", on_cpu([usual] * 5 + [slow] * 2))
    assert ("no single operator, but all of them" in one.title) == alike
    assert BY_ID["uneven-steps"].severity(one.size or 0, one.confidence) == (
        "info" if alike else "warning"
    )


def test_one_slow_operator_is_a_cause() -> None:
    usual = {"mm": 7, "add": 1, "view": 1, "sum": 1}
    (one,) = judged("uneven-steps", on_cpu([usual] * 5 + [usual | {"add": 6}] * 2))
    assert one.confidence == "medium"
    assert "5 ms more in add" in one.title


def summing(counts: Sequence[int], kind: str = "cpu_op") -> Trace:
    """Return steps that sum so many losses, each in 1 ms, on the host or the device."""
    begin, events = 0, list[Event]()
    for number, n in enumerate(counts):
        events += [step(number, begin, (10 + n) * MS), host("cpu_op", "mm", begin, 9 * MS)]
        for at in range(n):
            if kind == "kernel":
                events.append(device("aten::sum", begin + (10 + at) * MS, MS))
            else:
                events.append(host(kind, "aten::sum", begin + (10 + at) * MS, MS))
        begin += (10 + n) * MS
    return trace([e for e in events if kind == "cpu_op" or e["kind"] != "cpu_op"])


@pytest.mark.parametrize("kind", ["cpu_op", "kernel"])
def test_calls_that_grow_with_each_step(kind: str) -> None:
    (one,) = judged("growing-calls", summing([4, 6, 8, 10, 12], kind))
    assert "aten::sum, from 4 to 12: 8 ms more" in one.title
    assert one.cost_ns == (2 + 4 + 6 + 8) * MS // 5
    assert one.size == pytest.approx(8 / 22)


@pytest.mark.parametrize("counts", [[4, 6, 8, 10], [4, 8, 6, 10, 12], [4, 4, 4, 4, 12], [4] * 6])
def test_calls_that_do_not_grow(counts: Sequence[int]) -> None:
    """Few steps, a step with less, one long step, and no change."""
    assert not judged("growing-calls", summing(counts))


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ([8 * MIB] * 6, True),
        ([8 * MIB] * 4, False),
        ([80 * MIB, 8 * MIB, 0, 8 * MIB, 8 * MIB, 8 * MIB], False),
        ([4] * 6, False),
    ],
)
def test_host_memory_that_each_step_keeps(kept: Sequence[int], found: bool) -> None:
    """A sum of losses keeps the graph of each step. A state made once, or numbers, do not count."""
    events = list[Event]()
    for number, size in enumerate(kept):
        events += [
            step(number, number * 10 * MS, 9 * MS),
            host("cpu_op", "mm", number * 10 * MS, MS),
        ]
        for at, change, address in ((1, 64, 1), (2, size, 2 + number), (3, -64, 1)):
            ts = number * 10 * MS + at * MS
            block = {"bytes": change, "address": address, "dur": None}
            events += [host("cpu_instant_event", "[memory]", ts, 0) | block] if change else []
    measured = judged("growing-calls", trace(events))
    assert [one.cost_bytes for one in measured] == ([8 * MIB * 5] if found else [])


@pytest.mark.parametrize(("types", "found"), [("fdf", 1), ("fff", 0), ("ddd", 0)])
def test_matrix_products_in_double_precision(tmp_path: Path, types: str, found: int) -> None:
    """The time of products in double precision, half of which is gained, and the module of one."""
    events = [chrome("user_annotation", f"ProfilerStep#{n}", n * 100, 100) for n in (0, 1)]
    for n, one in enumerate(types * 2):
        at = n // 3 * 100 + n % 3 * 30
        name = {"f": "float", "d": "double"}[one]
        events.append(chrome("python_function", f"nn.Module: Linear_{n % 3}", at, 25))
        inputs = {"Input Dims": [[4, 4], [4, 4]], "Input type": [name, name]}
        events.append(chrome("cpu_op", "aten::mm", at, 20, args=inputs))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, "schemaVersion": 1}))
    results = dict(examine(path, use="findings").results)
    measured = list(BY_ID["double-products"].judge(Answers(results)))
    assert len(measured) == found
    for one in measured:
        assert one.title.startswith("nn.Module: Linear_1")
        assert one.size == pytest.approx(20 / 100 / 2)
        assert one.cost_ns == 10 * US


def chrome(kind: str, name: str, ts: int, dur: int, **more: object) -> dict[str, object]:
    times = {"ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": dur}
    return {"cat": kind, "name": name, **times, **more}


@pytest.mark.parametrize(
    ("took", "compiling", "effects"),
    [((5, 30, 10, 12, 11, 10), 5, ["uneven-steps"]), ((10, 10, 10, 10), 3, []), ((9, 9, 9), 0, [])],
)
def test_jax_that_compiles_in_its_steps(
    took: tuple[int, ...], compiling: int, effects: list[str]
) -> None:
    """The function that compiles is the cause, also in steps that all take as long."""
    found = ta.diagnose(of_jax(*took, compiles=lambda number: 0 < number <= compiling)).findings
    compiled_ns = sum(took[1 : compiling + 1]) * MS // 2
    assert [(one.id, one.cost_ns) for one in found] == [
        ("compiling-steps", round(compiled_ns / len(took)))
    ] * (compiling > 0)
    for one in found:
        assert one.cost_frac == pytest.approx(compiled_ns / sum(took) / MS)
        assert [effect.id for effect in one.effects] == effects
        assert "JAX_EXPLAIN_CACHE_MISSES" in one.advice


@pytest.mark.matrix
def test_forward_passes_without_a_backward_pass() -> None:
    layers = [host("cpu_op", "aten::linear", 10 * MS + n * MS, MS // 2) for n in range(15)]
    (one,) = judged("uneven-steps", steps({3: layers}))
    both = [event for n, one in enumerate(layers) for event in
            (one, host("cpu_op", NODE, 10 * MS + n * MS, MS // 4, tid=2))]  # fmt: skip
    (other,) = judged("uneven-steps", steps({3: both}))
    check_wording(one.title, other.title)


def test_a_step_that_only_evaluates() -> None:
    """The slow step has no backward pass at all."""
    events = steps({3: [host("cpu_op", "aten::linear", 10 * MS + n * MS, MS // 2)
                        for n in range(15)]}).events.to_dicts()  # fmt: skip
    slow = range(30 * MS, 60 * MS)
    without = [e for e in events if not (e["name"] == NODE and e["ts"] in slow)]
    (one,) = judged("uneven-steps", trace(without))
    assert FORWARD_ONLY in one.title
    compiles = host("cpu_op", "_compile.compile_inner (dynamo_timed)", 31 * MS, MS)
    (one,) = judged("uneven-steps", trace([*without, compiles]))
    assert FORWARD_ONLY not in one.title


@pytest.mark.parametrize("count", [4, 6])
def test_half_of_the_steps_evaluate(count: int) -> None:
    """The cost is the time above the other steps; the range is named, without the first step."""
    events, begin = list[Event](), 0
    for number in range(count + 1):
        length = (60 if not number else 14 if number % 2 else 10) * MS
        events += [step(number, begin, length), device("gemm", begin, 9 * MS)]
        if number % 2 or not number:
            events.append(host("user_annotation", "evaluate", begin + 10 * MS, 4 * MS))
            events.append(device("gemm", begin + 10 * MS, length - 10 * MS))
        begin += length
    (one,) = judged("uneven-steps", trace(events))
    assert one.total_ns == count // 2 * 4 * MS
    assert "only slow steps run evaluate" in one.title


def test_compilation_in_half_of_the_steps_is_one_finding() -> None:
    """Its phases are one place; its layers, which run without data, are no evaluation."""
    events, begin = list[Event](), 0
    for number in range(5):
        length = (90 if not number else 66 if number % 2 else 10) * MS
        events += [step(number, begin, length), device("gemm", begin, 10 * MS)]
        events.append(host("cpu_op", NODE, begin, MS))
        phases = ("aot_trace_joint_graph", "fx_codegen_and_compile") if length > 10 * MS else ()
        for n, phase in enumerate(phases):
            at = begin + 10 * MS + n * 28 * MS
            inner = host("cpu_op", "_compile.compile_inner (dynamo_timed)", at, 28 * MS)
            events += [inner, host("cpu_op", f"{phase} (dynamo_timed)", at + US, 27 * MS)]
            events += [host("cpu_op", "aten::linear", at + k * MS, US) for k in range(9)]
        events += [host("cpu_op", "aten::linear", begin, MS // 2)]
        begin += length
    events.append(device("gemm", begin, MS))
    found = ta.diagnose(trace(events)).findings
    assert [(one.id, [effect.id for effect in one.effects]) for one in found] == [
        ("host-code", ["uneven-steps"])
    ]
    assert "compile_inner" in found[0].title
    assert "recompiles" in found[0].advice


def test_annotations_without_an_end_run_no_code() -> None:
    """They would have all work that is launched after they begin."""
    more = [host("cuda_runtime", "cudaLaunchKernel", MS, US, correlation=1),
            device("gemm", MS, 9 * MS, correlation=1),
            host("user_annotation", "closed", MS // 2, MS),
            {**host("user_annotation", "open", MS // 2, 0), "dur": None}]  # fmt: skip
    code = examine([steps({2: more})], ["steps"], use="findings").results["steps"].code
    assert code.select("name", "total_ns").rows() == [("closed", 9 * MS)]


def test_each_slow_step_has_a_cause() -> None:
    saving = [host("user_annotation", "save_checkpoint", 10 * MS, 19 * MS)]
    compiling = [host("cpu_op", "_compile.compile_inner", 10 * MS, 18 * MS)]
    (one,) = judged("uneven-steps", steps({2: saving, 4: compiling}))
    text = " ".join([one.title, *one.evidence])
    assert "save_checkpoint (19 ms)" in text
    assert "_compile.compile_inner (18 ms)" in text


def test_cause_is_the_innermost_longer_range() -> None:
    """``train_step`` is in all steps; a range within it is longer."""
    nested = [
        host("user_annotation", "train_step", 9 * MS, 20 * MS + US),
        host("user_annotation", "Optimizer.step#SGD.step", 9 * MS, 20 * MS),
    ]
    usual = host("user_annotation", "train_step", 10 * MS, 9 * MS)
    (one,) = judged("uneven-steps", trace([*steps({3: nested}).events.to_dicts(), usual]))
    assert "Optimizer.step#SGD.step (20 ms)" in one.title
    assert "train_step (" not in one.title


def test_functions_of_other_threads_are_not_a_cause() -> None:
    waiting = [host("python_function", "threading.py(295): wait", 10 * MS, 19 * MS, tid=9)]
    (one,) = judged("uneven-steps", steps({3: waiting}))
    assert "threading" not in one.title


def test_activity_between_steps_is_named() -> None:
    swaps = [
        host("cpu_op", "_C_cache_ops::swap_blocks", n * 15 * MS + 10 * MS + 10 * US, 4 * MS)
        for n in range(5)
    ]
    traced = trace([*steps({}, gap=5 * MS).events.to_dicts(), *swaps])
    (one,) = judged("time-between-steps", traced)
    assert any("_C_cache_ops::swap_blocks for 20 ms" in text for text in one.evidence)


def test_sleeps_between_steps_may_be_those_of_a_timer() -> None:
    sleeps = [
        host("python_function", "<built-in function sleep>", n * 60 * MS + 10 * MS + US, 49 * MS)
        for n in range(5)
    ]
    traced = trace([*steps({}, gap=50 * MS).events.to_dicts(), *sleeps])
    (one,) = judged("time-between-steps", traced)
    assert one.confidence == "low"
    assert "load" in one.advice


def test_idle_time_of_a_step_ends_with_it() -> None:
    """The device is idle from the kernels of a step to those of the next one, 4 + 5 ms later."""
    examined = examine([steps({}, gap=5 * MS)], ["gpu_idle"], use="findings")
    time = Answers(dict(examined.results)).time
    idle = time.losses.filter(pl.col("end") - pl.col("start") > 3 * MS)
    assert idle["step"].to_list() == [f"ProfilerStep#{n}" for n in range(6)]
    assert (idle["end"] - idle["start"] == idle["lost_ns"]).all()
    assert idle["end"].to_list() == time.windows["end"].to_list()


@pytest.mark.parametrize("gap", [5 * MS, 40 * MS])
def test_time_between_steps_costs_more_than_a_step_if_it_is_longer(gap: int) -> None:
    """Six steps of 10 ms, and five times between them."""
    traced = steps({}, gap=gap)
    found = {one.id: one for one in ta.diagnose(traced).findings}
    cost = found["time-between-steps"].cost_ns
    assert cost == pytest.approx(5 * gap / 6, rel=0.01)


def rows_of_slow_steps(extra: dict[int, Sequence[Event]], *usual: Event) -> list[tuple[Any, ...]]:
    """Return name, time and usual time of what explains the slow steps."""
    traced = trace([*steps(extra).events.to_dicts(), *usual])
    result = examine([traced], ["steps"], use="findings").results["steps"]
    assert isinstance(result, Steps)
    assert result.only_slow is not None
    return result.only_slow.select("name", "total_ns", "usual_ns").rows()


@pytest.mark.matrix
def test_only_what_other_steps_lack_is_only_in_slow_steps() -> None:
    saving = host("user_annotation", "save_checkpoint", 10 * MS, 19 * MS)
    assert rows_of_slow_steps({3: [saving]}) == [("save_checkpoint", 19 * MS, None)]
    short = host("user_annotation", "save_checkpoint", 2 * MS, 10)
    assert rows_of_slow_steps({3: [saving]}, short) == [("save_checkpoint", 19 * MS, 0)]
    usual = host("user_annotation", "save_checkpoint", 2 * MS, 5 * MS)
    assert rows_of_slow_steps({3: [saving]}, usual) == [("save_checkpoint", 19 * MS, MS)]


def test_a_decorator_is_not_named_for_what_it_calls() -> None:
    decorator = host("python_function", "torch/utils/_contextlib.py(120): decorate_context",
                     10 * MS, 19 * MS)  # fmt: skip
    function = host("python_function", "train.py(56): validate", 10 * MS + US, 19 * MS - 2 * US)
    rows = rows_of_slow_steps({3: [decorator, function]})
    assert [name for name, *_ in rows] == ["train.py(56): validate"]


@pytest.mark.matrix
def test_ranges_that_differ_by_a_number_are_usual() -> None:
    """Each step forwards another layer: that of the slow step is not "only in slow steps"."""
    layers = [
        host("user_annotation", f"forward (blocks.{n}.norm1)", (10 * n + 1) * MS, 5 * MS)
        for n in (0, 1, 2, 4)
    ]
    slow = host("user_annotation", "forward (blocks.13.norm2)", 31 * MS, 6 * MS)
    stall = host("user_annotation", "save_checkpoint 3", 10 * MS, 19 * MS)
    assert rows_of_slow_steps({3: [slow]}, *layers) == []
    assert rows_of_slow_steps({3: [stall]}, *layers) == [("save_checkpoint 3", 19 * MS, None)]


@pytest.mark.matrix
def test_an_operator_that_waits_for_the_device_is_no_cause() -> None:
    copy = host("cpu_op", "aten::to", 10 * MS, 19 * MS)
    wait = host("cuda_runtime", "cudaStreamSynchronize", 11 * MS, 17 * MS)
    assert rows_of_slow_steps({3: [copy]}) == [("aten::to", 19 * MS, None)]
    assert rows_of_slow_steps({3: [copy, wait]}) == []
    saving = host("user_annotation", "save_checkpoint", 10 * MS, 19 * MS)
    rows = rows_of_slow_steps({3: [saving, copy, wait]})
    assert rows == [("save_checkpoint", 19 * MS, None)]


@pytest.mark.matrix
def test_one_of_nested_slices_is_the_cause() -> None:
    """The range with most of the excess, or one within it that other steps do not have."""
    outer = host("user_annotation", "train_step", 10 * MS, 19 * MS)
    part = host("user_annotation", "Optimizer.step#SGD.step", 11 * MS, 8 * MS)
    usual = [host("user_annotation", "train_step", 1 * MS, 5 * MS)]
    assert rows_of_slow_steps({3: [outer, part]}, *usual) == [("train_step", 19 * MS, MS)]
    saving = host("user_annotation", "save_checkpoint", 11 * MS, 15 * MS)
    operator = host("cpu_op", "aten::copy_", 11 * MS, 15 * MS)
    rows = rows_of_slow_steps({3: [outer, saving, operator]}, *usual)
    assert rows == [("save_checkpoint", 15 * MS, None)]


@pytest.mark.matrix
def test_slices_one_after_another_are_separate_causes() -> None:
    saving = host("user_annotation", "save_checkpoint", 10 * MS, 9 * MS)
    testing = host("user_annotation", "evaluate", 19 * MS, 8 * MS)
    rows = rows_of_slow_steps({3: [saving, testing]})
    assert [name for name, *_ in rows] == ["save_checkpoint", "evaluate"]


@pytest.mark.parametrize(
    ("attention", "large", "graphs", "trains", "slow"),
    [("paged_attention_v2_kernel", "gemm_large", False, False, False),
     ("stencil", "gemm_large", False, False, True),
     ("paged_attention_v2_kernel", "gemm_large", False, True, True),
     ("paged_attention_v2_kernel", "gemm_small", False, False, True),
     ("paged_attention_v2_kernel", "gemm_small", True, False, False)],
)  # fmt: skip
def test_steps_that_prefill_are_not_slow(
    attention: str, large: str, graphs: bool, trains: bool, slow: bool
) -> None:
    """Prefill and decode run other kernels, or a graph runs decode only; training does not."""
    events: list[Event] = []
    begin = call = 0
    for number in range(8):
        names = [large] * 3 if number == 4 else ["gemm_small", attention]
        length = 10 * MS * len(names)
        events.append(host("user_annotation", f"step {number}", begin, length))
        if trains:
            events.append(host("cpu_op", NODE, begin, MS // 2))
        for at, name in enumerate(names):
            call += 1
            start = begin + at * 10 * MS
            launch = "cudaGraphLaunch" if graphs and number != 4 else "cudaLaunchKernel"
            events.append(host("cuda_runtime", launch, start, US, correlation=call))
            events.append(device(name, start + 2 * US, 10 * MS - 3 * US, correlation=call))
        begin += length
    recording = trace(events)
    results = dict(examine([recording], ["steps", "kernels", "gpu_idle"], use="findings").results)
    sizes = [one.size for one in BY_ID["uneven-steps"].judge(Answers(results))]
    assert [size for size in sizes if size > 0.02] == (
        [pytest.approx(1 / 17, rel=1e-3)] if slow else []
    )


@pytest.mark.parametrize(
    ("first", "second", "steps"),
    [("_execute_mm_encoder", "_execute_mm_encoder", 2), ("visual_tower", "prefill", 1),
     ("prefill", "prefill", 0)],
)  # fmt: skip
def test_an_encoder_before_the_model_is_named(first: str, second: str, steps: int) -> None:
    """Its steps run other kernels than most, as those of prefill, whose length is the prompt's."""
    events: list[Event] = []
    begin = call = 0
    for number in range(9):
        more = {2: (first, "gemm_large"), 7: (second, f"gemm_{second}")}.get(number)
        names = [more[1]] * 12 if more else []
        names += ["gemm_small", "paged_attention_v2_kernel"]
        length = MS * len(names)
        events.append(host("user_annotation", f"step {number}", begin, length))
        events += [host("user_annotation", more[0], begin, 12 * MS)] if more else []
        for at, name in enumerate(names):
            call += 1
            start = begin + at * MS
            events.append(host("cuda_runtime", "cudaLaunchKernel", start, US, correlation=call))
            events.append(device(name, start + 2 * US, MS - 3 * US, correlation=call))
        begin += length
    results = dict(
        examine([trace(events)], ["steps", "kernels", "gpu_idle"], use="findings").results
    )
    ones = [one for one in BY_ID["uneven-steps"].judge(Answers(results)) if one.size > 0.02]
    assert [one.cost_frac for one in ones] == (
        [pytest.approx(12 * steps / (18 + 24), abs=0.002)] if steps else []
    )
    assert all(BY_ID["uneven-steps"].severity(one.size) == "info" for one in ones)


@pytest.mark.parametrize(
    ("slow", "kernels", "every"),
    [((2, 5, 8), 4, 3), ((2, 5), 4, 0), ((2, 5, 7), 4, 0), ((2, 5, 8), 0, 0)],
)  # fmt: skip
def test_every_nth_step_with_more_kernels_is_no_warning(
    slow: Sequence[int], kernels: int, every: int
) -> None:
    """Exactly every third step runs more kernels; not irregular ones, nor those that idle."""
    events: list[Event] = []
    begin = 0
    for number in range(10):
        more = (kernels or 6) * MS if number in slow else 0
        events.append(step(number, begin, 6 * MS + more))
        busy = 6 + (kernels if number in slow else 0)
        events += [device("gemm", begin + n * MS, MS - US) for n in range(busy)]
        begin += 6 * MS + more
    results = dict(examine([trace(events)], ["steps", "kernels"], use="findings").results)
    (one,) = BY_ID["uneven-steps"].judge(Answers(results))
    severity = BY_ID["uneven-steps"].severity(one.size)
    assert severity == ("info" if every else "warning")
    assert one.title.startswith(f"One step in {every} ") == bool(every)
    assert one.cost_frac is not None
    assert one.cost_frac > 0.1


@pytest.mark.parametrize(("loading", "is_cause"), [(0.1, False), (4.0, True)])
def test_little_idle_time_is_no_cause_of_slow_steps(loading: float, is_cause: bool) -> None:
    """Communication grows by 5 ms in slow steps, and waits for the data loader by less."""
    grown = {causes.DATALOADING: loading, REPEATED: 5.0, None: 5.0 + loading}
    rows = [(cause, round(ms * MS)) for cause, ms in grown.items()]
    answers: Any = SimpleNamespace(
        of=lambda _: ta.gpu_idle(steps({})),
        program=Program(),
        time=SimpleNamespace(
            in_steps=True, growth=pl.DataFrame(rows, schema=["cause", "grown_ns"], orient="row")
        ),
    )
    text, advice = step_rules._grown_cause(answers, "communication")
    assert bool(text) == is_cause
    assert ("num_workers" in advice) == is_cause


@pytest.mark.parametrize(("computes", "over"), [(False, 54 + 61 + 56 + 53), (True, 1 + 8 + 3)])
def test_most_steps_are_slow(computes: bool, over: int) -> None:
    """They are compared with the fast ones, unless they compute more: the program is like that."""
    lengths, events = (88, 34, 95, 34, 90, 87), []
    for number, length in enumerate(lengths):
        at = sum(lengths[:number]) * MS
        work = (length if computes else 30) * MS
        events += [step(number, at, length * MS), device("gemm", at, work)]
    (one,) = judged("uneven-steps", trace(events))
    assert one.size == pytest.approx(over / sum(lengths), abs=0.01)


def test_steps_with_larger_inputs_are_no_warning() -> None:
    """The kernels of steps 2 and 6 take twice as long, except those that read the weights."""
    events, at = [], 0
    for number in range(8):
        size = 2 if number in (2, 6) else 1
        begin = at
        for name, ms in (("gemm", size), ("weights", 1)) * 5:
            events.append(device(name, at, ms * MS - US))
            at += ms * MS
        events.append(step(number, begin, at - begin))
    results = dict(examine([trace(events)], ["steps", "kernels"], use="findings").results)
    (one,) = BY_ID["uneven-steps"].judge(Answers(results))
    assert "larger inputs, which cost" in one.title
    assert BY_ID["uneven-steps"].severity(one.size) == "info"
    assert one.cost_frac == pytest.approx(10 / 90, abs=0.001)


@pytest.mark.parametrize(("kernel", "share"), [("gesvd", 1.0), ("sgemm", 0.0)])
def test_operator_that_only_every_nth_step_runs(kernel: str, share: float) -> None:
    """Slow kernels of these steps are the cause, which another rule finds; products are not."""
    events: list[Event] = []
    begin = 0
    for number in range(10):
        names, length = ["gemm"], 6 * MS
        if number in (2, 5, 8):
            events.append(host("cpu_op", "aten::linalg_svd", begin + 4 * US, 2 * US))
            names, length = ["gemm", kernel], 10 * MS
        for n, name in enumerate(names):
            at, call = begin + 4 * n * US, 2 * number + n
            events.append(host("cuda_runtime", "cudaLaunchKernel", at, US, correlation=call))
            at = begin + 5 * US + 6 * n * MS
            events.append(device(name, at, (4 if n else 6) * MS - 6 * US, correlation=call))
        events.append(step(number, begin, length))
        begin += length
    names = ["steps", "kernels", "gpu_idle"]
    results = dict(examine([trace(events)], names, use="findings").results)
    (one,) = BY_ID["uneven-steps"].judge(Answers(results))
    assert one.title.startswith("One step in 3 ")
    assert one.explained.get("one-kernel", 0.0) == pytest.approx(share, abs=0.01)
    assert "launched by aten::linalg_svd" in one.title


@pytest.mark.parametrize(
    ("slow", "grown", "period"),
    [
        ((1, 5, 9), "idle", 4),
        ((1, 5, 10), "idle", 0),
        ((3, 9), "idle", 0),
        ((3, 9), "compute", 6),
        ((1, 5), "compute", 0),
    ],
)
def test_period_of_slow_steps(slow: tuple[int, ...], grown: str, period: int) -> None:
    rows = [
        {"path": "a", "rank": None, "number": number, "ratio": 3.0 if number in slow else 1.0,
         "grown": grown, "grown_ns": 2 * MS, "over": 2 * MS}
        for number in range(12)
    ]  # fmt: skip
    assert step_rules._period(pl.DataFrame(rows), rows[slow[0]]) == period
