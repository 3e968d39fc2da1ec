"""Joins by id and by time, compared with loops over all pairs."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from polars.testing import assert_frame_equal

from traceanalyzer.frames import intervals
from traceanalyzer.frames.linking import enclosing, label_by_interval, link

ID = st.one_of(st.none(), st.integers(0, 4))
GROUP = st.sampled_from([1, 2, None])
TIME = st.integers(0, 30)
BOUND = st.one_of(st.none(), TIME)
OFFSETS = st.sampled_from([0, 1 << 62, -(1 << 62)])
SLICE = {"g": pl.Int64, "start": pl.Int64, "end": pl.Int64}
POINT = {"g": pl.Int64, "ts": pl.Int64}

modest = settings(max_examples=60, deadline=None)


def rows_of(schema: dict[str, type[pl.DataType]], *fields: st.SearchStrategy[int | None]):  # type: ignore[no-untyped-def]
    rows = st.lists(st.tuples(*fields), max_size=20)
    return rows.map(lambda r: pl.DataFrame(r, schema=schema, orient="row"))


slices = rows_of(SLICE, GROUP, TIME, BOUND)
points = rows_of(POINT, GROUP, BOUND)
ids = rows_of({"a": pl.Int64, "b": pl.Int32}, ID, ID)


def holders(frame: pl.DataFrame, group: int | None, ts: int | None) -> list[tuple[int, int, int]]:
    """(start, -end, row) of the slices of the group that run at the point."""
    return [
        (start, -end, row)
        for row, (g, start, end) in enumerate(frame.iter_rows())
        if g == group and None not in (ts, end) and start <= ts < end
    ]


@modest
@given(ids, ids)
def test_link_matches_the_first_row_of_an_id(left: pl.DataFrame, right: pl.DataFrame) -> None:
    known = list(left.iter_rows())
    expected = [
        (known.index(row), n)
        for n, row in enumerate(right.iter_rows())
        if None not in row and row in known
    ]
    assert link(left, right, ["a", "b"]).rows() == expected


@modest
@given(ids, ids, st.sampled_from([1 << 40, -(1 << 60)]))
def test_links_do_not_depend_on_how_far_ids_are_apart(
    left: pl.DataFrame, right: pl.DataFrame, factor: int
) -> None:
    apart = pl.col("a") * factor
    spread = link(left.with_columns(apart), right.with_columns(apart), ["a", "b"])
    assert_frame_equal(spread, link(left, right, ["a", "b"]))
    as_text = pl.col("a").cast(pl.String)
    text = link(left.with_columns(as_text), right.with_columns(as_text), ["a", "b"])
    assert_frame_equal(text, spread)


def test_many_rows_link_to_one_and_null_to_none() -> None:
    left = pl.DataFrame({"id": [7, None, 8, 7], "time": [1, 2, 3, 4]})
    right = pl.DataFrame({"id": [8, 7, None, 9, 7]})
    assert link(left, right, ["id"]).rows() == [(2, 0), (0, 1), (0, 4)]
    assert link(left.clear(), right, ["id"]).rows() == []
    assert link(left, right.clear(), ["id"]).schema == {"left": pl.UInt32, "right": pl.UInt32}


@modest
@given(points, slices, OFFSETS)
def test_enclosing_is_the_last_started_running_slice(
    asked: pl.DataFrame, frame: pl.DataFrame, by: int
) -> None:
    moved = asked.with_columns(pl.col("ts") + by)
    result = enclosing(moved, frame.with_columns(pl.col("start", "end") + by), ["g"])
    assert_frame_equal(result.drop("slice"), moved)
    expected_rows = [max(holders(frame, g, ts), default=(None,))[-1] for g, ts in asked.iter_rows()]
    assert result["slice"].to_list() == expected_rows


def test_enclosing_in_a_large_tree() -> None:
    """Enough slices for the array method: 500 outer ones of 8 leaves each."""
    outer = pl.DataFrame({"start": range(0, 50_000, 100)}).with_columns(end=pl.col("start") + 95)
    leaf = pl.DataFrame({"start": range(0, 50_000, 100)}).join(
        pl.DataFrame({"nth": range(8)}), how="cross"
    )
    leaf = leaf.select(start=pl.col("start") + 10 * pl.col("nth") + 5, end=pl.col("start"))
    leaf = leaf.with_columns(end=pl.col("start") + 5)
    frame = pl.concat([outer, leaf])
    asked = pl.DataFrame({"ts": [104, 105, 109, 110, 194, 195, 49_999, -1]})
    assert enclosing(asked, frame)["slice"].to_list() == [1, 508, 508, 1, 1, None, None, None]


@modest
@given(points, slices, OFFSETS)
def test_label_by_interval_where_none_overlap(
    asked: pl.DataFrame, frame: pl.DataFrame, by: int
) -> None:
    runs = intervals.union(frame, ["g"])
    moved = asked.with_columns(pl.col("ts") + by)
    result = label_by_interval(moved, runs.with_columns(pl.col("start", "end") + by), ["g"])
    assert_frame_equal(result.drop("interval"), moved)
    expected_rows = [max(holders(runs, g, ts), default=(None,))[-1] for g, ts in asked.iter_rows()]
    assert result["interval"].to_list() == expected_rows


def test_label_by_interval_in_row_order() -> None:
    steps = pl.DataFrame({"start": [20, 0, 10, 10, 25], "end": [30, 10, 10, 19, 25]})
    asked = pl.DataFrame({"ts": [10, 9, 19, 29, None, 30]})
    assert label_by_interval(asked, steps)["interval"].to_list() == [3, 1, None, 0, None, None]


@pytest.mark.parametrize("by", [(), ("g",)])
def test_empty_frames(by: tuple[str, ...]) -> None:
    no_points, no_slices = pl.DataFrame(schema=POINT), pl.DataFrame(schema=SLICE)
    point = pl.DataFrame([(1, 5)], schema=POINT, orient="row")
    a_slice = pl.DataFrame([(1, 5, 6)], schema=SLICE, orient="row")
    for function, name in ((enclosing, "slice"), (label_by_interval, "interval")):
        assert function(no_points, a_slice, by).schema == {**POINT, name: pl.UInt32}
        assert function(no_points, no_slices, by).height == 0
        assert function(point, no_slices, by)[name].to_list() == [None]
        assert function(point, a_slice, by)[name].to_list() == [0]
