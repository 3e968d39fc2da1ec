"""Whatever a trace holds, every question is answered or refused in one line, in every form."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random, SystemRandom
from typing import Any

import pytest
from any_trace import QUESTIONS, any_trace
from damage import SHARE
from hypothesis import given, settings, strategies as st
from trace_rows import table

import traceanalyzer as ta
from traceanalyzer import limits, schema
from traceanalyzer.errors import TraceAnalyzerError
from traceanalyzer.render import FORMS, Form, render
from traceanalyzer.trace import sort_events

META = ta.Meta(path="rank0.json", format="chrome-trace")
#: Pictures take a tenth of a second each: the suite draws fewer of them.
DATA: tuple[Form, ...] = ("table", "csv", "json", "sqlite", "html")


def answers(given_: Any, name: str, forms: tuple[Form, ...]) -> bool:
    """Whether a question is answered; refused, it is in one line of ours."""
    try:
        result = QUESTIONS[name](given_)
        assert result.verdict
        for form in forms:
            assert render(result, form, top=5)
    except TraceAnalyzerError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either way is right
        return False
    return True


def traces(chance: Random) -> Any:
    """One trace, or those of several ranks."""
    found = [any_trace(chance, chance.choice((3, 12, 40))) for _ in range(chance.choice((1, 1, 3)))]
    return found if len(found) > 1 else found[0]


@pytest.mark.parametrize("name", QUESTIONS)
@settings(max_examples=10)
@given(chance=st.randoms(use_true_random=False))
def test_any_trace_is_answered_or_refused(name: str, chance: Random) -> None:
    answers(traces(chance), name, ("table", "json"))


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_shown_in_every_form(seed: int) -> None:
    chance = Random(seed)  # noqa: S311
    given_ = [any_trace(chance, 40) for _ in range(2)]
    assert sum(answers(given_, name, DATA if seed else FORMS) for name in QUESTIONS) > 4


@pytest.mark.parametrize("name", QUESTIONS)
def test_answers_do_not_change(name: str) -> None:
    chance = Random(5)  # noqa: S311
    given_ = [any_trace(chance, 40) for _ in range(2)]
    try:
        first, second = (render(QUESTIONS[name](given_), "json") for _ in range(2))
    except TraceAnalyzerError:
        return
    assert first == second


@pytest.mark.fuzz
def test_many_more(tmp_path: Path) -> None:
    """``make fuzz``: fresh seeds, in every form; the seed of a failure is shown."""
    end = time.monotonic() + SHARE
    seed = SystemRandom().randrange(1 << 40)
    while time.monotonic() < end:
        given_ = traces(Random(seed))  # noqa: S311
        for name in QUESTIONS:
            try:
                answers(given_, name, FORMS if seed % 8 == 0 else DATA)
            except Exception as error:
                raise AssertionError(f"{name} of traces(Random({seed}))") from error
        seed += 1


# --- what was found so -----------------------------------------------------------------------


def of(*rows: dict[str, Any], **tables: Any) -> ta.Trace:
    events = table("events", *rows, drop=("args", "input_dims"))
    return sort_events(ta.Trace(sources=(META,), events=events, **tables))


def test_operators_by_stack_where_no_frame_was_recorded() -> None:
    rows = [
        {"ts": 0, "dur": 5, "kind": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1},
        {"ts": 9, "dur": 5, "kind": "python_function", "name": "f", "pid": 1, "tid": 1},
    ]
    assert ta.operators(of(*rows), group_by_stack=3).operators["stack"].to_list() == [None, None]


def test_samples_that_count_more_than_integers_hold() -> None:
    most = float(limits.MOST_WEIGHT)
    stacks = table("stacks", {"id": 0, "name": "main", "file": "/a.py"})
    rows = [{"kind": "sample", "stack": 0, "weight": most} for _ in range(2000)]
    trace = of(*rows, stacks=stacks)
    assert ta.py_spy_report(trace).total_samples == 2000 * most
    assert ta.flamegraph(trace).functions["self_weight"].to_list() == [2000 * most]


def test_a_failed_request_on_a_stream_that_is_not_told() -> None:
    segment = {"id": 0, "device": 0, "address": 1 << 30, "total_bytes": 4 << 20,
               "allocated_bytes": 0, "active_bytes": 0, "stream": 7, "segment_type": "large",
    }  # fmt: skip
    failed = {"ts": 5, "kind": "oom", "name": "oom", "device": 0, "bytes": 8 << 20}
    found = ta.memory_oom(of(failed, segments=table("segments", segment)))
    assert found.errors["largest_free_bytes"].to_list() == [4 << 20]


def test_counters_on_clocks_too_far_apart() -> None:
    counters = table(
        "counters",
        *({"ts": at, "name": "cpu", "series": "cpu0_percent", "value": 5.0} for at in (0, 10)),
    )
    sources = [ta.Meta(path=name, format="chrome-trace", epoch_ns=epoch)
               for name, epoch in (("a", 0), ("b", limits.LAST_EPOCH_NS))]  # fmt: skip
    found = ta.host_metrics([ta.Trace(sources=(one,), counters=counters) for one in sources])
    assert found.readings["at_ns"].max() == 10


def test_events_without_a_length_stand_before_those_that_end_before_they_start() -> None:
    rows = [{"ts": 0, "dur": dur, "kind": "kernel", "name": "k"} for dur in (-5, None, 3)]
    trace = of(*rows)
    assert trace.events["dur"].to_list() == [3, None, -5]
    assert schema.check(trace.tables) == []


def test_sums_beyond_64_bits_are_shown() -> None:
    work = {"kind": "kernel", "name": "ncclDevKernel_AllReduce_Sum_f32", "device": 0, "stream": 7}
    ends = [{**work, "ts": -limits.LAST_NS, "dur": 1}, {**work, "ts": limits.LAST_NS - 1, "dur": 1}]
    ranks = [of(*ends).with_rank(rank) for rank in range(3)]
    found = ta.comm_outliers(ranks)
    assert found.total_span_ns > 1 << 64
    assert b'"total_span_ns": 2.5' in render(found, "json")
    assert render(found, "sqlite").startswith(b"SQLite")
