"""Operators and annotations of threads at times, compared with a plain loop."""

from __future__ import annotations

from typing import Any

import polars as pl
from comm_traces import host, trace
from hypothesis import given, settings, strategies as st

from traceanalyzer.analyzers.common.host_code import places_of

modest = settings(max_examples=60, deadline=None)


@st.composite
def threads(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Generate operators and annotations of two threads, which may cross, and times of three."""
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
@given(threads())
def test_places_match_plain_loop(
    generated: tuple[list[dict[str, Any]], list[dict[str, Any]]],
) -> None:
    events, points = generated
    recorded = trace([*events, host("cpu_op", "far away", 10_000, 10)])
    rows = recorded.events.to_dicts()
    at = pl.DataFrame(points, schema={"pid": pl.Int64, "tid": pl.Int64, "ts": pl.Int64})
    places = places_of(recorded)
    inner, marked = places.operator(at), places.annotation(at)
    outer, either = places.outer_operator(at), places.range(at)
    spans = [(r["tid"], r["ts"], r["ts"] + r["dur"]) for r in rows if r["kind"] == "cpu_op"]
    crossing = any(
        one[0] == other[0] and one[1] < other[1] < one[2] < other[2]
        for one in spans
        for other in spans
    )
    for number, point in enumerate(points):
        running = {
            kind: [
                (row["name"], row["ts"])
                for row in rows
                if (row["kind"], row["tid"]) == (kind, point["tid"])
                and row["ts"] <= point["ts"] < row["ts"] + row["dur"]
            ]
            for kind in ("cpu_op", "user_annotation")
        }
        operators, annotations = ([(None, -1), *running[kind]] for kind in running)
        assert inner[number] == operators[-1][0]
        assert marked[number] == annotations[-1][0]
        later = max(operators[-1], annotations[-1], key=lambda one: one[1])  # the operator of equal
        assert either[number] == later[0]
        if crossing:
            assert outer[number] in [name for name, _ in operators]
        else:
            assert outer[number] == operators[min(1, len(operators) - 1)][0]


def test_a_numbered_step_is_no_place() -> None:
    names = ("ProfilerStep#3", "step 3", "train_step_3", "step of the decoder")
    rows = [host("user_annotation", name, 100 * i, 50) for i, name in enumerate(names)]
    at = pl.DataFrame({"pid": [1] * 4, "tid": [1] * 4, "ts": [10, 110, 210, 310]})
    assert places_of(trace(rows)).annotation(at).to_list() == [None, None, None, names[-1]]
