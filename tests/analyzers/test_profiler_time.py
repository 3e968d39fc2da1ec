"""The time that the profiler takes, and gains without it, beside times measured on a GPU."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest

import traceanalyzer as ta

FAULTS = Path(__file__).parents[2] / "fixtures" / "gpu" / "faults"
#: Step times in ms without the profiler, measured by record_faults.py with these recordings.
MEASURED = {
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


@cache
def what_if(name: str) -> Any:
    return ta.what_if(FAULTS / f"{name}.json.gz")


@cache
def diagnosis(name: str) -> Any:
    return ta.diagnose(FAULTS / f"{name}.json.gz")


@pytest.mark.parametrize(
    "name", ["base", "optimizer", "clip-items", "pageable", "checkpoint", "empty-cache"]
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
]


@pytest.mark.parametrize(("name", "fixed", "finding", "off"), FIXES, ids=[one[0] for one in FIXES])
def test_gains_are_those_of_the_fix(name: str, fixed: str, finding: str, off: float) -> None:
    first = diagnosis(name).findings[0]
    gained = 1 - MEASURED[fixed] / MEASURED[name]
    assert (first.id, first.gain_basis) == (finding, "replay")
    assert first.gain_frac == pytest.approx(gained, abs=off)


def test_what_only_the_profiler_slows_is_no_problem() -> None:
    """The steps wait for launches for 13.8 % of the recorded time, and for 0 % without it."""
    assert {one.severity for one in diagnosis("base").findings} <= {"info"}
