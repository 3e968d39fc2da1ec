"""Where threads were at moments, against a plain loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from comm_traces import host, trace
from hypothesis import given, settings
from hypothesis import strategies as st

from traceanalyzer.analyzers.common import whereabouts
from traceanalyzer.analyzers.common.whereabouts import moments, places_of
from traceanalyzer.frames.nesting import ROOT, innermost_exact, nest_exact


@st.composite
def nested(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Spans of which each lies in another or outside of it, in order, most often many."""
    spans: list[tuple[int, int]] = []

    def fill(low: int, high: int, depth: int) -> None:
        at = low
        while at < high and depth < 4:
            at += draw(st.integers(0, 3))
            end = min(at + draw(st.integers(1, 12)), high)
            if at < end:
                spans.append((at, end))
                fill(at, end, depth + 1)
            at = end

    fill(0, draw(st.integers(0, 150)), 0)
    return sorted(spans, key=lambda span: (span[0], -span[1]))


modest = settings(max_examples=60, deadline=None)


@modest
@given(nested(), st.lists(st.integers(-5, 160), max_size=40))
def test_innermost_exact_is_the_last_that_runs(
    spans: list[tuple[int, int]], times: list[int]
) -> None:
    start, end = (np.array([span[i] for span in spans], np.int64) for i in range(2))
    found = innermost_exact(start, end, np.array(times, np.int64))
    if found is None:
        assert nest_exact(start, end) is None
        return
    for time, row in zip(times, found.tolist(), strict=True):
        running = [i for i, (low, high) in enumerate(spans) if low <= time < high]
        assert row == (running[-1] if running else ROOT)


def test_innermost_exact_is_told_of_many_slices() -> None:
    start = np.repeat(np.arange(0, 1_000, 10), 2)
    end = start + np.tile([9, 5], 100)
    found = innermost_exact(start, end, np.array([-1, 0, 4, 5, 8, 9, 991, 2_000]))
    assert found is not None
    assert found.tolist() == [ROOT, 1, 1, 0, 0, ROOT, 199, ROOT]


@st.composite
def threads(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Operators and annotations of two threads, which may cross, and moments of three."""
    time = st.integers(0, 60)
    events = [
        host(
            kind,
            f"{kind}{number}",
            draw(time),
            draw(st.integers(0, 30)),
            tid=draw(st.integers(1, 2)),
        )
        for number, kind in enumerate(
            draw(st.lists(st.sampled_from(["cpu_op", "cpu_op", "user_annotation"]), max_size=15))
        )
    ]
    points = [
        {"pid": 1, "tid": draw(st.integers(1, 3)), "ts": draw(time)}
        for _ in range(draw(st.integers(1, 25)))
    ]
    return events, points


@modest
@given(st.sampled_from([1, 4, 1 << 16]), threads())
def test_places_are_those_of_a_plain_loop(
    block: int, found: tuple[list[dict[str, Any]], list[dict[str, Any]]]
) -> None:
    events, points = found
    made = trace([*events, host("cpu_op", "far away", 10_000, 10)])
    rows = made.events.to_dicts()
    at = moments(pl.DataFrame(points, schema={"pid": pl.Int64, "tid": pl.Int64, "ts": pl.Int64}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whereabouts, "_BLOCK", block)
        places = places_of(made)
        inner, marked = places.operator(at), places.annotation(at)
        outer = places.outer_operator(at)
    spans = [(r["tid"], r["ts"], r["ts"] + r["dur"]) for r in rows if r["kind"] == "cpu_op"]
    crossing = any(
        one[0] == other[0] and one[1] < other[1] < one[2] < other[2]
        for one in spans
        for other in spans
    )
    for number, point in enumerate(points):
        running = {
            kind: [
                row["name"]
                for row in rows
                if (row["kind"], row["tid"]) == (kind, point["tid"])
                and row["ts"] <= point["ts"] < row["ts"] + row["dur"]
            ]
            for kind in ("cpu_op", "user_annotation")
        }
        assert inner[number] == (running["cpu_op"] or [None])[-1]
        assert marked[number] == (running["user_annotation"] or [None])[-1]
        if crossing:
            assert outer[number] is None or outer[number] in running["cpu_op"]
        else:
            assert outer[number] == (running["cpu_op"] or [None])[0]
