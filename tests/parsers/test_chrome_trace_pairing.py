"""Pairing of begin and end events, including mismatched ones."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import traceanalyzer as ta

Mark = tuple[str, str | None, int]
Slice = tuple[str, int, int | None]


def read(path: Path, marks: list[Mark], **more: object) -> tuple[list[Slice], dict[str, int]]:
    """Slices (name, start, length in us) and oddities of begins and ends in the order given."""
    events = [
        {"ph": phase, "pid": 1, "tid": 2, "ts": ts, **({} if name is None else {"name": name})}
        | more
        for phase, name, ts in marks
    ]
    first = {"ph": "X", "pid": 9, "tid": 9, "name": "first", "ts": 0, "dur": 0}
    path.write_text(json.dumps([first, *events]))
    trace = ta.read(path)
    rows = trace.events.filter(pl.col("pid") == 1).select("name", "ts", "dur").rows()
    slices = [(n or "", ts // 1_000, d if d is None else d // 1_000) for n, ts, d in rows]
    return slices, dict(trace.issues.select("code", "count").rows())


@pytest.mark.parametrize(
    ("marks", "expected", "issues"),
    [
        ("B a 0, B b 1, E b 3, E a 9", "a 0 9, b 1 2", {}),
        ("B a 0, B b 1, E - 3, E - 9", "a 0 9, b 1 2", {}),
        ("B a 0, B b 1, E a 3, E b 9", "a 0 3, b 1 8", {"mismatched-end": 1}),
        ("B a 0, E b 4", "a 0 4", {"mismatched-end": 1}),
        # the end of another name waits: both have their own
        ("B a 0, B b 1, E x 2, E b 3, E a 9", "a 0 9, b 1 2", {"unmatched-end": 1}),
        ("B a 0, B b 1, E x 2, E a 9", "a 0 9, b 1 1", {"mismatched-end": 2}),
        ("B a 0, B b 1, E x 2, E y 9", "a 0 9, b 1 1", {"mismatched-end": 2}),
        ("B a 0, E a 2, E a 3", "a 0 2", {"unmatched-end": 1}),
        ("E a 1, B a 2, E a 3", "a 2 1", {"unmatched-end": 1}),
        ("B a 0, B b 1, E b 2", "a 0 -, b 1 1", {"unclosed-begin": 1}),
        # an end that was written before its begin, at the same time
        ("B z 0, E a 2, B a 2, E z 4", "z 0 4, a 2 0", {"mismatched-end": 2}),
        ("E b 2, B a 2, B c 5, E c 6", "a 2 -, c 5 1", {"unmatched-end": 1, "unclosed-begin": 1}),
    ],
)
def test_mismatched_ends(tmp_path: Path, marks: str, expected: str, issues: object) -> None:
    events = [part.split() for part in marks.split(", ")]
    marks_in: list[Mark] = [(p, None if n == "-" else n, int(ts)) for p, n, ts in events]
    slices, counted = read(tmp_path / "marks.json", marks_in)
    rows = [part.split() for part in expected.split(", ")]
    assert sorted(slices) == sorted((n, int(ts), None if d == "-" else int(d)) for n, ts, d in rows)
    assert counted == issues


MARKS = st.lists(
    st.tuples(st.sampled_from("BE"), st.sampled_from(["a", "b", None]), st.integers(0, 9))
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(MARKS, st.booleans())
def test_every_mark_is_used_once_or_counted(
    tmp_path: Path, marks: list[Mark], asynchronous: bool
) -> None:
    how = {"cat": "x", "id": 7} if asynchronous else {}
    marks_in = [(p.lower() if asynchronous else p, n, ts) for p, n, ts in marks]
    if not marks_in:
        return
    slices, issues = read(tmp_path / "marks.json", marks_in, **how)
    begins, ends = (sum(p == what for p, *_ in marks) for what in "BE")
    open_ = sum(length is None for *_, length in slices)
    assert len(slices) == begins
    assert open_ == issues.get("unclosed-begin", 0)
    assert begins - open_ == ends - issues.get("unmatched-end", 0)
    assert all(length >= 0 for *_, length in slices if length is not None)
    starts = sorted(ts for p, _, ts in marks if p == "B")
    assert sorted(ts for _, ts, _ in slices) == starts


@pytest.mark.matrix
def test_many_unmatched_ends_are_fast(tmp_path: Path) -> None:
    marks: list[Mark] = [("B", "a", 0)] * 20_000 + [("E", f"x{i}", 1) for i in range(30_000)]
    slices, issues = read(tmp_path / "marks.json", marks)
    assert len(slices) == 20_000
    assert issues == {"mismatched-end": 20_000, "unmatched-end": 10_000}
