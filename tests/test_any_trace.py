"""Every analysis of a random trace gives a result in every format, or a one-line error."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import polars.selectors as cs
import pytest
from any_trace import QUESTIONS, any_trace
from damage import SHARE
from hypothesis import given, settings, strategies as st
from trace_rows import table

import traceanalyzer as ta
from traceanalyzer import schema
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.render import FORMS, Form, render
from traceanalyzer.schema import ON_REQUEST
from traceanalyzer.trace import issue_rows, sort_events

META = ta.Meta(path="rank0.json", format="chrome-trace")
#: Images take a tenth of a second each, so that the suite draws those of every fourth analysis.
DATA: tuple[Form, ...] = ("table", "csv", "json", "sqlite", "html")


def answers(inputs: Any, name: str, forms: tuple[Form, ...]) -> bool:
    """Return whether an analysis gives a result, all numbers finite; its errors have one line."""
    try:
        result = QUESTIONS[name](inputs)
        assert result.verdict
        for one in result.tables:
            numbers = one.frame.select(cs.float()).unpivot()["value"]
            assert numbers.is_finite().all(), one.name
        for form in forms:
            assert render(result, form, top=5)
    except TraceAnalyzerError as error:
        assert "\n" not in str(error)  # noqa: PT017 - both outcomes are correct
        return False
    return True


def traces(chance: Random) -> Any:
    """Return one trace, or traces of several ranks."""
    result = [
        any_trace(chance, chance.choice((3, 12, 40))) for _ in range(chance.choice((1, 1, 3)))
    ]
    return result if len(result) > 1 else result[0]


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", QUESTIONS)
@settings(max_examples=4)
@given(chance=st.randoms(use_true_random=False))
def test_any_trace_is_analyzed_or_refused(name: str, chance: Random) -> None:
    answers(traces(chance), name, ("table", "json"))


@pytest.mark.sample(2)
@pytest.mark.parametrize(("seed", "forms", "least"), [(7, FORMS, 12), (2, DATA, 20)])
def test_results_in_every_output_format(
    seed: int, forms: tuple[Form, ...], least: int, thorough: bool
) -> None:
    """Most analyses have an answer, fewer have a picture; traces of few ranks take less."""
    chance = Random(seed)  # noqa: S311
    inputs = [any_trace(chance, 40) for _ in range(2)]
    asked = {
        name: forms if thorough or number % 6 == 0 else DATA if number % 3 == 0 else ("json",)
        for number, name in enumerate(QUESTIONS)
    }
    assert sum(answers(inputs, name, forms) for name, forms in asked.items()) > least


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", QUESTIONS)
def test_results_are_deterministic(name: str) -> None:
    chance = Random(5)  # noqa: S311
    inputs = [any_trace(chance, 40) for _ in range(2)]
    try:
        first, second = (render(QUESTIONS[name](inputs), "json") for _ in range(2))
    except TraceAnalyzerError:
        return
    assert first == second


@pytest.mark.fuzz
def test_fuzz(tmp_path: Path) -> None:
    """``make fuzz``: new seeds, every format; a failure prints its seed."""
    end = time.monotonic() + SHARE
    seed = SystemRandom().randrange(1 << 40)
    while time.monotonic() < end:
        inputs = traces(Random(seed))  # noqa: S311
        for name in QUESTIONS:
            try:
                answers(inputs, name, FORMS if seed % 8 == 0 else DATA)
            except Exception as error:
                raise AssertionError(f"{name} of traces(Random({seed}))") from error
        seed += 1


# --- regressions -----------------------------------------------------------------------------


def of(*rows: dict[str, Any], **tables: Any) -> ta.Trace:
    events = table("events", *rows, drop=ON_REQUEST)
    return sort_events(ta.Trace(sources=(META,), events=events, **tables))


def test_operators_by_stack_without_frames() -> None:
    rows = [
        {"ts": 0, "dur": 5, "kind": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1},
        {"ts": 9, "dur": 5, "kind": "python_function", "name": "f", "pid": 1, "tid": 1},
    ]
    assert ta.operators(of(*rows), group_by_stack=3).operators["stack"].to_list() == [None, None]


def test_sample_weights_beyond_integers() -> None:
    most = float(schema.MAX_WEIGHT)
    stacks = table("stacks", {"id": 0, "name": "main", "file": "/a.py"})
    rows = [{"kind": "sample", "stack": 0, "weight": most} for _ in range(2000)]
    trace = of(*rows, stacks=stacks)
    assert ta.py_spy_report(trace).total_samples == 2000 * most
    assert ta.flamegraph(trace).functions["self_weight"].to_list() == [2000 * most]


def test_failed_request_on_an_unknown_stream() -> None:
    segment = {"id": 0, "device": 0, "address": 1 << 30, "total_bytes": 4 << 20,
               "allocated_bytes": 0, "active_bytes": 0, "stream": 7, "segment_type": "large",
    }  # fmt: skip
    failed = {"ts": 5, "kind": "oom", "name": "oom", "device": 0, "bytes": 8 << 20}
    result = ta.memory_oom(of(failed, segments=table("segments", segment)))
    assert result.errors["largest_free_bytes"].to_list() == [4 << 20]


def test_counters_with_distant_clocks() -> None:
    counters = table(
        "counters",
        *({"ts": at, "name": "cpu", "series": "cpu0_percent", "value": 5.0} for at in (0, 10)),
    )
    sources = [ta.Meta(path=name, format="chrome-trace", epoch_ns=epoch)
               for name, epoch in (("a", 0), ("b", schema.LAST_EPOCH_NS))]  # fmt: skip
    result = ta.host_metrics([ta.Trace(sources=(one,), counters=counters) for one in sources])
    assert result.readings["at_ns"].max() == 10


def test_order_of_empty_and_negative_durations() -> None:
    rows = [{"ts": 0, "dur": dur, "kind": "kernel", "name": "k"} for dur in (-5, None, 3)]
    trace = of(*rows)
    assert trace.events["dur"].to_list() == [3, None, -5]
    assert schema.check(trace.tables) == []


def test_sums_beyond_64_bits() -> None:
    work = {"kind": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "device": 0, "stream": 7}
    ends = [{**work, "ts": -schema.LAST_NS, "dur": 1}, {**work, "ts": schema.LAST_NS - 1, "dur": 1}]
    ranks = [of(*ends).with_rank(rank) for rank in range(3)]
    result = ta.comm_outliers(ranks)
    assert result.totals.total_span_ns > 1 << 64
    assert b'"total_span_ns": 2.5' in render(result, "json")
    assert render(result, "sqlite").startswith(b"SQLite")


def test_steps_without_a_length_are_compared() -> None:
    """The step of the second process lasts as long as its only work, no time."""
    copy = {"ts": 17, "kind": "gpu_memcpy", "name": "Memcpy"}
    rows = [
        {"ts": 0, "dur": 1, "kind": "user_annotation", "name": "ProfilerStep#1", "pid": 1},
        {**copy, "dur": 2, "device": 1, "pid": 1, "correlation": 4},
        {**copy, "dur": 0, "device": 0, "pid": 2, "correlation": 6},
        {"ts": 32, "dur": 0, "kind": "cuda_runtime", "name": "x", "pid": 2, "correlation": 6},
    ]
    result = ta.diff(of(*rows), of(*rows))
    assert result.measure is not None
    assert (result.measure.name, result.measure.before) == ("step", 0)
    assert result.verdict


def test_work_without_a_length_cannot_be_compared() -> None:
    kernel = {"ts": 5, "dur": 0, "kind": "kernel", "name": "k", "device": 0, "stream": 7}
    trace = of(kernel, issues=issue_rows([("data_loss", "truncated", 1, None)], None))
    assert ta.diff(trace, trace).outcome == "cannot be compared"


def test_lines_with_samples_that_count_nothing() -> None:
    stacks = table(
        "stacks",
        {"id": 0, "name": "main", "file": "/a.py", "line": 1},
        {"id": 1, "name": "load", "file": "/opt/venv/lib/python3.12/site-packages/b.py"},
    )
    rows = ({"ts": 0, "kind": "sample", "stack": n, "weight": 5.0 * n} for n in range(2))
    assert not any("a.py" in one.title for one in ta.diagnose(of(*rows, stacks=stacks)).findings)
