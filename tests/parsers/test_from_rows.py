"""Traces of small parsers, from rows."""

import polars as pl
import pytest
from hypothesis import given, strategies as st

from traceanalyzer import schema
from traceanalyzer.parsers.contract import Selection
from traceanalyzer.trace import Meta, Trace, from_rows

META = Meta("a.txt", "test", rank=3)
COLUMNS = ("ts", "dur", "kind", "name")
ROWS = [("20", 5, "kernel", "b"), (10, 1, "kernel", "a"), (10, 5, "cpu_op", None)]


def _trace() -> Trace:
    return from_rows(META, ROWS, [("data_loss", "bad-line", 2, "line 7")], columns=COLUMNS)


def test_rows_are_sorted_typed_and_filled() -> None:
    trace = _trace()
    assert schema.check(trace.tables) == []
    assert trace.events.select(COLUMNS).rows() == [
        (10, 5, "cpu_op", None), (10, 1, "kernel", "a"), (20, 5, "kernel", "b"),
    ]  # fmt: skip
    assert trace.events["rank"].to_list() == [3, 3, 3]
    assert trace.events["device"].null_count() == 3
    assert trace.meta.start_ns == 10
    assert trace.issues.rows() == [("data_loss", "bad-line", 2, "line 7", 3)]


def test_mappings_may_lack_columns() -> None:
    rows = [{"ts": 1, "kind": "kernel", "rank": 0}, {"ts": 0, "kind": "cpu_op", "args": "{}"}]
    trace = from_rows(Meta("a", "test", start_ns=-5), iter(rows))
    assert schema.check(trace.tables) == []
    assert trace.events.select("ts", "rank", "dur", "args").rows() == [
        (0, None, None, "{}"), (1, 0, None, None),
    ]  # fmt: skip
    assert trace.meta.start_ns == -5


def test_no_rows() -> None:
    trace = from_rows(META, [])
    assert schema.check(trace.tables) == []
    assert (trace.events.height, trace.meta.start_ns, trace.issues.height) == (0, None, 0)


def test_wrong_columns_are_refused() -> None:
    with pytest.raises(ValueError, match="no column 'start'"):
        from_rows(META, [{"start": 1}])
    with pytest.raises(ValueError, match="shorter"):
        from_rows(META, [(1, 2)], columns=COLUMNS)


@given(
    times=st.lists(st.tuples(st.integers(0, 9), st.none() | st.integers(0, 9))),
    windows=st.lists(st.tuples(st.integers(-1, 9), st.integers(1, 12)), max_size=2),
)
def test_selected_windows_are_those_of_between(
    times: list[tuple[int, int | None]], windows: list[tuple[int, int]]
) -> None:
    rows = [(*time, "kernel", None) for time in times]
    trace = from_rows(Meta("a", "test", start_ns=0), rows, columns=COLUMNS)
    chosen = Selection(windows=tuple(windows)).apply(trace).events
    if len(windows) == 1:
        assert chosen.equals(trace.between(*windows[0]).events)
    inside = [
        not windows or any(ts < hi and (ts + (dur or 0) > lo or ts >= lo) for lo, hi in windows)
        for ts, dur in trace.events.select("ts", "dur").rows()
    ]
    assert chosen.equals(trace.events.filter(pl.Series(inside, dtype=pl.Boolean)))


def test_selected_kinds_and_names() -> None:
    trace = _trace()
    selected = Selection(kinds=frozenset({"cpu_op"}), names=("b",)).apply(trace).events
    assert selected["ts"].to_list() == [10, 20]
    assert Selection().apply(trace) is trace
