"""Merging of short lost intervals, and what diagnose measures only for its rules."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from polars.testing import assert_frame_equal

import traceanalyzer as ta
from traceanalyzer.analyzers import registry
from traceanalyzer.analyzers.gpu_idle import gaps
from traceanalyzer.analyzers.gpu_idle.causes import EXPOSED, LOSS
from traceanalyzer.run.ranks import by_rank

FIXTURES = Path(__file__).parents[2] / "fixtures"
LIMIT = 10
CAUSES = ("short_gap", "launch_overhead", "exposed_copies", EXPOSED)
TYPES: dict[str, Any] = {"unit": pl.UInt32, "start": pl.Int64, "end": pl.Int64, "cause": LOSS}

#: Unit, time since the previous interval, length, cause.
INTERVALS = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 8), st.integers(1, 2 * LIMIT), st.sampled_from(CAUSES)
    ),
    max_size=40,
)
MARKS = st.lists(st.tuples(st.integers(0, 1), st.integers(-5, 400)), max_size=6)


def rows_of(steps: list[tuple[int, int, int, str]]) -> pl.DataFrame:
    at = {0: 0, 1: 0}
    rows = []
    for unit, pause, length, cause in steps:
        start = at[unit] + pause
        at[unit] = start + length
        rows.append((unit, start, start + length, cause))
    return pl.DataFrame(sorted(rows), schema=TYPES, orient="row")


def sums(rows: pl.DataFrame, marks: list[tuple[int, int]]) -> dict[tuple[Any, ...], int]:
    """The time of each unit and cause between two marks, moment by moment."""
    total: dict[tuple[Any, ...], int] = defaultdict(int)
    for unit, start, end, cause in rows.iter_rows():
        for moment in range(start, end):
            cell = sum(1 for of, ts in marks if of == unit and ts <= moment)
            total[unit, cause, cell] += 1
    return dict(total)


@given(steps=INTERVALS, marks=MARKS)
@settings(max_examples=60, deadline=None)
def test_merged_intervals_have_the_same_times_between_marks(steps, marks):
    rows = rows_of(steps)
    at = pl.DataFrame(marks, schema={"unit": pl.UInt32, "ts": pl.Int64}, orient="row")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gaps, "MANY", 0)
        merged = gaps.merged(rows, at, LIMIT)
    assert merged.schema == rows.schema
    assert sums(merged, marks) == sums(rows, marks)
    assert_frame_equal(merged, merged.sort("unit", "start"))
    before = pl.col("end").shift(1).over("unit")
    assert merged.filter(pl.col("start") < before).is_empty()
    kept = pl.col("cause") == EXPOSED
    assert_frame_equal(merged.filter(kept), rows.filter(kept))


def test_few_intervals_are_not_merged():
    rows = rows_of([(0, 1, 2, "short_gap")] * 50)
    marks = pl.DataFrame(schema={"unit": pl.UInt32, "ts": pl.Int64})
    assert gaps.merged(rows, marks, LIMIT) is rows


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["nsys/training.sqlite", "transformer", "nccl_8ranks"])
def test_findings_do_not_depend_on_merging(name, monkeypatch):
    expected = ta.diagnose(FIXTURES / name)
    monkeypatch.setattr(gaps, "MANY", 0)
    actual = ta.diagnose(FIXTURES / name)
    found = [
        [{**one.to_dict(), "gain_ns": None, "gain_frac": None} for one in result.findings]
        for result in (actual, expected)
    ]
    assert found[0] == found[1]
    for one, other in zip(actual.findings, expected.findings, strict=True):
        assert one.gain_frac == pytest.approx(other.gain_frac, abs=0.01)
    assert_frame_equal(actual.budget, expected.budget)


@pytest.mark.parametrize(
    ("analysis", "used"),
    [
        (
            "launches",
            (
                *("bound.waiting_ns", "bound.synchronised_ns", "bound.places"),
                *("short.kernels", "short.short_kernels", "steps"),
                *("synchronising.by_place", "synchronising.synchronising_idle_ns"),
            ),
        ),
        ("overlap", ("devices", "reasons")),
    ],
)
def test_rules_get_the_numbers_of_the_command(analysis, used):
    analyzer = registry.ENTRIES[analysis].analyzer()
    traces = by_rank(ta.read(FIXTURES / "nsys" / "training.sqlite"))
    options = analyzer.options()
    measure, take = analyzer.measure_used("findings"), analyzer.take or (lambda one, _: one)
    few = analyzer.combine([measure(take(one, options), options) for one in traces], options)
    all_ = analyzer.combine([analyzer.part(one, options) for one in traces], options)
    for name in used:
        expected, actual = map(attrgetter(name), (all_, few))
        if isinstance(expected, pl.DataFrame):
            assert_frame_equal(actual, expected)
        else:
            assert actual == expected
    if analysis == "launches":
        names = {frozenset(one.calls.by_name["launch_name"]) for one in (few, all_)}
        assert len(names) == 1
        assert few.calls.launches < all_.calls.launches
