"""Events that overlap spans of time, compared with one event and one span at a time."""

from itertools import chain, pairwise

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from traceanalyzer import schema
from traceanalyzer.trace import Meta, Trace, in_spans, overlaps

TIMES = st.integers(-6, 6)
EVENTS = st.lists(st.tuples(TIMES, st.none() | st.integers(-3, 6)), max_size=12)
SPANS = st.lists(st.tuples(st.none() | TIMES, st.none() | TIMES), min_size=1, max_size=4)


def trace_of(events: list[tuple[int, int | None]]) -> Trace:
    rows = schema.empty("events").clear(len(events))
    times = [pl.Series("ts", [ts for ts, _ in events], pl.Int64)]
    times.append(pl.Series("dur", [dur for _, dur in events], pl.Int64))
    points = {"ts": [ts for ts, _ in events], "value": [0.0] * len(events)}
    counters = schema.empty("counters").clear(len(events))
    return Trace(
        (Meta("a.json", "chrome-trace"),),
        events=rows.with_columns(times),
        counters=counters.with_columns(pl.Series(name, of) for name, of in points.items()),
    )


def is_within(ts: int, dur: int | None, spans: list[tuple], *, with_start: bool) -> bool:
    """The definition, in plain words."""
    end = ts + max(dur or 0, 0)
    for lo, hi in spans:
        if hi is not None and ts >= hi:
            continue
        if lo is None or end > lo or (with_start and ts >= lo):
            return True
    return False


@given(EVENTS, SPANS)
def test_overlapping(events, spans):
    trace = trace_of(events)
    chosen = trace.overlapping(spans)
    expected = [one for one in events if is_within(*one, spans, with_start=True)]
    assert chosen.events.select("ts", "dur").rows() == expected
    points = [ts for ts, _ in events if is_within(ts, 0, spans, with_start=True)]
    assert chosen.counters["ts"].to_list() == points


@given(EVENTS, SPANS, st.booleans())
def test_condition_on_events(events, spans, with_start):
    chosen = trace_of(events).events.filter(in_spans(spans, with_start=with_start))
    expected = [one for one in events if is_within(*one, spans, with_start=with_start)]
    assert chosen.select("ts", "dur").rows() == expected


@given(st.lists(st.tuples(TIMES, st.integers(0, 6)), min_size=1), SPANS)
def test_numbers_arrays_and_expressions_agree(events, spans):
    expected = [is_within(*one, spans, with_start=False) for one in events]
    assert [bool(overlaps(ts, ts + dur, spans)) for ts, dur in events] == expected
    start, dur = (np.array(of) for of in zip(*events, strict=True))
    unlimited = any(span == (None, None) for span in spans)
    if not unlimited:
        assert overlaps(start, start + dur, spans).tolist() == expected


@given(EVENTS, st.lists(TIMES, min_size=2, unique=True).map(sorted))
def test_instant_is_in_one_of_successive_spans(events, cuts):
    spans = list(pairwise(cuts))
    instants = [(ts, None) for ts, _ in events]
    parts = [trace_of(instants).overlapping([span]).events["ts"].to_list() for span in spans]
    assert sorted(chain.from_iterable(parts)) == sorted(
        ts for ts, _ in events if cuts[0] <= ts < cuts[-1]
    )


@pytest.mark.parametrize(
    ("event", "span", "expected"),
    [
        ((0, 5), (5, 9), False),  # ends where the span starts
        ((9, 5), (5, 9), False),  # starts where it ends
        ((5, None), (5, 9), True),  # an instant at the start
        ((9, None), (5, 9), False),
        ((7, -3), (5, 9), True),  # a negative duration counts as an instant
    ],
)
def test_edges(event, span, expected):
    assert trace_of([event]).overlapping([span]).events.height == expected
