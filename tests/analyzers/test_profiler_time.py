"""The time that the profiler takes, and gains without it, beside times measured on a GPU."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import traceanalyzer as ta

GPU = Path(__file__).parents[2] / "fixtures" / "gpu"
#: Step times in ms without the profiler, measured with these recordings: by record_more.py ...
MORE = {
    "gpt": 14.902,
    "unet": 10.592,
    "dlrm": 1.660,
    "dlrm-tables": 9.129,
    "dlrm-copies": 3.357,
    "decode-static": 2.792,
    "decode-cat": 41.861,
    "compiled": 5.994,
}
NO_STACKS = ["gpt", "unet", "dlrm-tables", "dlrm-copies", "decode-static", "decode-cat"]
#: ... and by record_faults.py.
MEASURED = MORE | {
    "base": 33.458,
    "optimizer": 35.587,
    "clip-items": 39.457,
    "pageable": 79.239,
    "pageable-fixed": 33.648,
    "checkpoint": 414.836,
    "launches": 2.749,
    "launches-fixed": 0.370,
    "decode": 3.696,
    "decode-fixed": 1.016,
    "empty-cache": 51.162,
}


def path(name: str) -> Path:
    return GPU / ("more" if name in MORE else "faults") / f"{name}.json.gz"


@cache
def what_if(name: str) -> Any:
    return ta.what_if(path(name), free="copies")  # any change: without one, it diagnoses


@cache
def diagnosis(name: str) -> Any:
    return ta.diagnose(path(name))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "name",
    ["base", "optimizer", "clip-items", "pageable", "checkpoint", "empty-cache", *NO_STACKS],
)
def test_steps_without_the_profiler(name: str) -> None:
    result = what_if(name)
    assert result.profiled
    assert result.replayed_ns / 1e6 == pytest.approx(MEASURED[name], rel=0.1)
    assert result.recorded_ns > result.replayed_ns


def test_a_graph_has_no_operators_to_record() -> None:
    result = what_if("launches-fixed")
    assert not result.profiled
    assert result.replayed_ns == pytest.approx(result.recorded_ns, rel=0.01)


#: Recording, its fix, the finding, and how far its gain may be from the measured one (of a step).
FIXES = [
    ("optimizer", "base", "unfused-optimizer", 0.04),
    ("clip-items", "base", "synchronisation", 0.02),
    ("pageable", "pageable-fixed", "exposed-copies", 0.03),
    ("checkpoint", "base", "checkpoints", 0.02),
    ("launches", "launches-fixed", "launch-bound", 0.05),
    ("decode", "decode-fixed", "launch-bound", 0.06),
    ("empty-cache", "base", "memory-management", 0.05),
    ("decode-cat", "decode-static", "launch-bound", 0.02),
    ("dlrm-copies", "dlrm", "batch-copies", 0.2),  # the fix removes launches, too
    ("dlrm-tables", "dlrm", "tensor-loop", 0.27),  # the same
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("name", "fixed", "finding", "off"), FIXES, ids=[one[0] for one in FIXES])
def test_gains_are_those_of_the_fix(name: str, fixed: str, finding: str, off: float) -> None:
    first = diagnosis(name).findings[0]
    gained = 1 - MEASURED[fixed] / MEASURED[name]
    assert (first.id, first.gain_basis) == (finding, "replay")
    assert first.gain_frac == pytest.approx(gained, abs=off)


def test_what_only_the_profiler_slows_is_no_problem() -> None:
    """The steps wait for launches for 13.8 % of the recorded time, and for 0 % without it."""
    assert {one.severity for one in diagnosis("base").findings} <= {"info"}


def test_a_compiled_model_that_is_fast_without_the_profiler_has_no_problem() -> None:
    """No operator shows the cost of another one. The GPU waits for launches for 27 % of the time.

    Without the profiler a step takes 5.99 ms, 5.65 of which the GPU works.
    """
    found = diagnosis("compiled").findings
    assert {one.severity for one in found} == {"info"}
    one = {one.id: one for one in found}["launch-bound"]
    assert (one.confidence, one.gain_basis) == ("low", "bound")
    assert not what_if("compiled").profiled


def test_an_operator_that_prepares_once_a_step_is_named() -> None:
    """One of the eight calls in a step plans for a new shape: 37 ms of the step of 42 ms."""
    slow, advice = ta.gpu_idle(path("decode-cat")).slow_operator
    assert slow == "aten::_cudnn_attention_forward"
    assert "shapes" in advice


def test_functions_of_python_cost_time_too() -> None:
    """Recorded with stacks: 369 functions in a step, beside 269 operators."""
    assert what_if("dlrm").replayed_ns / 1e6 == pytest.approx(MEASURED["dlrm"], rel=0.15)
