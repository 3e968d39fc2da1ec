"""Steps of inference engines: phase and batch size by the engine's annotations."""

from __future__ import annotations

import pytest
from comm_traces import GEMM, MS, device, host, step, trace
from diagnosing import measured

from traceanalyzer.analyzers.common.step_marks import step_marks
from traceanalyzer.analyzers.steps import steps
from traceanalyzer.analyzers.steps.statistics import phase_of

DECODE = "execute_context_0(0)_generation_64(64)"
PREFILL = "execute_context_2(14721)_generation_0(0)"
MIXED = "execute_context_1(512)_generation_3(3)"


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        (PREFILL, ("prefill", 2)),
        (f"{DECODE} [12]", ("decode", 64)),
        (MIXED, ("mixed", 4)),
        ("execute_context_1(888_788544)_generation_0(0)", ("prefill", 1)),
        (
            "execute_64_context_0(sq0sk0sqsq0sqsk0)_generation_64(sq64sk131072sqsq64sqsk131072)",
            ("decode", 64),
        ),
        ("step[EXTEND bs=2 toks=14721]", ("prefill", 2)),
        ("step[DECODE bs=64]", ("decode", 64)),
        ("step[MIXED bs=2 toks=90]", ("mixed", 2)),
        ("prefill[bs=3 tok=900 ctx=[300,300,300]]", ("prefill", 3)),
        ("decode[bs=117/128 tok=117]", ("decode", 117)),
        ("execute_diffusion_1_1024x1024", ("diffusion", 1)),
        ("capture_128_decode", None),
        ("ProfilerStep#3", None),
        ("train_step_3", None),
    ],
)
def test_phases_are_parsed_from_names(name: str, phase: tuple[str, int] | None) -> None:
    assert phase_of(name) == phase


def serving(names: dict[str, list[int]], *, busy: int = MS) -> list[dict[str, object]]:
    """Return consecutive steps of these names and lengths in ms, with 1 ms of work each."""
    events, at = [], 0
    for name, lengths in names.items():
        for length in lengths:
            events += [host("user_annotation", name, at, length * MS), device(GEMM, at, busy)]
            at += length * MS
    return events


SERVING = serving({PREFILL: [40], DECODE: [4, 4, 4, 6], MIXED: [10, 10]})


def test_times_by_phase_and_batch() -> None:
    result = steps(trace(SERVING)).phases
    assert result.select("phase", "batch", "steps", "total_ns", "median_ns").rows() == [
        ("prefill", 2, 1, 40 * MS, 40 * MS),
        ("mixed", 4, 2, 20 * MS, 10 * MS),
        ("decode", 64, 4, 18 * MS, 4 * MS),
    ]
    assert result["idle_frac"].to_list() == pytest.approx([39 / 40, 18 / 20, 14 / 18])
    assert sum(result["total_frac"]) == pytest.approx(1)


def test_steps_are_compared_within_their_phase() -> None:
    result = steps(trace(SERVING))
    assert not result.steps["warm_up"].any()
    ratios = dict(result.steps.select("step", "ratio").iter_rows())
    assert ratios[PREFILL] == ratios[f"{MIXED} [1]"] == ratios[f"{DECODE} [1]"] == 1
    assert ratios[f"{DECODE} [4]"] == 1.5
    one = measured("uneven-steps", result)
    assert (one.total_ns, one.size) == (2 * MS, pytest.approx(2 / 18))


def test_engine_steps_count_before_few_profiler_steps() -> None:
    around = step(1, 0, 100 * MS)
    assert step_marks(trace([around, *SERVING])).height == 7
    each = [step(n, 100 * n * MS, 90 * MS) for n in range(7)]
    assert step_marks(trace([*each, *SERVING])).height == 7
    assert step_marks(trace([*each, *SERVING]))["step"][0] == "ProfilerStep#0"


def test_training_has_no_phases() -> None:
    result = steps(trace([step(1, 0, MS), step(2, MS, MS)]))
    assert result.phases.is_empty()
    assert "phases" not in {table.name for table in result.view().tables}
    assert "training" not in f"{steps(trace(SERVING))}"
