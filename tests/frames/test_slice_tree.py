"""The tree of partially overlapping slices, compared with a plain implementation."""

from __future__ import annotations

import time

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st
from polars.testing import assert_frame_equal
from test_nesting import Row, in_order, modest, slices, tree

from traceanalyzer.frames import intervals, linking, nesting
from traceanalyzer.frames.nesting import ROOT
from traceanalyzer.frames.numbering import numbered
from traceanalyzer.frames.slice_tree import (
    build_tree,
    innermost,
    nearest,
    parents,
    with_descendants,
)

POINT = st.tuples(st.sampled_from([1, 1, None]), st.none() | st.integers(-1, 30))


def holders(frame: pl.DataFrame) -> dict[int, int | None]:
    """Row -> the last slice before it that holds it whole, each compared with all before it."""
    earlier: list[Row] = []
    result: dict[int, int | None] = {}
    for s in in_order(frame):
        around = [
            b["row"]
            for b in earlier
            if b["g"] == s["g"] and s["start"] < b["end"] and s["end"] <= b["end"]
        ]
        result[s["row"]] = around[-1] if around else None
        earlier.append(s)
    return result


def owned(frame: pl.DataFrame) -> dict[int, int]:
    """Row -> in how many units of time it is the last to have started of those that run."""
    rows = in_order(frame)
    self_times = {s["row"]: 0 for s in rows}
    for group in {s["g"] for s in rows}:
        for now in range(-1, 40):
            running = [s for s in rows if s["g"] == group and s["start"] <= now < s["end"]]
            if running:
                self_times[running[-1]["row"]] += 1
    return self_times


@modest
@given(slices(), st.sampled_from([0, 1 << 62, -(1 << 62)]))
def test_parent_is_the_last_started_containing_slice(frame: pl.DataFrame, by: int) -> None:
    slice_tree = build_tree(frame.with_columns(pl.col("start", "end") + by), ["g"])
    known = slice_tree.with_row_index("row").filter(intervals.IS_INTERVAL)
    assert dict(known.select("row", "parent").iter_rows()) == holders(frame)
    none = slice_tree.filter(~intervals.IS_INTERVAL.fill_null(value=False))
    assert none.select(pl.col("depth", "parent", "self_time").is_null().all()).row(0) == (True,) * 3


@modest
@given(slices())
def test_instant_belongs_to_the_last_started_slice(frame: pl.DataFrame) -> None:
    known = build_tree(frame, ["g"]).with_row_index("row").filter(intervals.IS_INTERVAL)
    assert dict(known.select("row", "self_time").iter_rows()) == owned(frame)


@modest
@given(slices())
def test_self_times_add_up_to_busy_time(frame: pl.DataFrame) -> None:
    self_times = build_tree(frame, ["g"]).group_by("g").agg(pl.col("self_time").sum()).sort("g")
    measured = intervals.measure(frame, ["g"]).rename({"length": "self_time"})
    assert_frame_equal(self_times, measured.sort("g"))


@modest
@given(st.integers(0, 1 << 30), st.sampled_from([5, 40, 400]))
def test_nested_slices_give_the_tree_of_nest(seed: int, size: int) -> None:
    frame = tree(seed, size)
    slice_tree, nested = build_tree(frame), nesting.nest(frame, tolerance=0)
    assert_frame_equal(slice_tree.select("depth", "parent"), nested.select("depth", "parent"))
    assert slice_tree["self_time"].equals(nesting.self_time(nested)["self_time"])


@modest
@given(slices(), st.integers(0, 1 << 30), st.sampled_from([100, 400]))
def test_crossing_slices_do_not_affect_others(crossing: pl.DataFrame, seed: int, size: int) -> None:
    near = tree(seed, size, deepest=2)
    far = near.with_columns(pl.col("start", "end") + 100_000)
    odd = crossing.filter(intervals.IS_INTERVAL).select(pl.col("start", "end") + 50_000)
    alone = [build_tree(part).drop("start", "end") for part in (near, odd, far)]
    rows = [0, near.height, near.height + odd.height]
    expected = [
        part.with_columns((pl.col("parent") + first).cast(pl.UInt32))
        for part, first in zip(alone, rows, strict=True)
    ]
    together = build_tree(pl.concat([near, odd, far])).drop("start", "end")
    assert_frame_equal(together, pl.concat(expected))


@modest
@given(slices(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(frame: pl.DataFrame, random: object) -> None:
    unlike = frame.unique(maintain_order=True).with_row_index("id")  # twins go by their row
    mixed = unlike.sample(fraction=1, shuffle=True, seed=random.randrange(1 << 30))  # type: ignore[attr-defined]
    self_times = build_tree(unlike, ["g"]).select("id", "depth", "self_time")
    assert_frame_equal(
        build_tree(mixed, ["g"]).sort("id").select("id", "depth", "self_time"), self_times
    )


@modest
@given(slices(), st.lists(POINT, max_size=20))
def test_innermost_equals_enclosing(
    frame: pl.DataFrame, points: list[tuple[int | None, int | None]]
) -> None:
    rows = frame.filter(intervals.IS_INTERVAL)
    rows = rows.sort("start", "end", descending=[False, True], maintain_order=True)
    asked = pl.DataFrame(points, schema={"g": pl.Int64, "ts": pl.Int64}, orient="row")
    result = innermost(asked, build_tree(rows, ["g"]), ["g"])
    assert result.to_list() == linking.enclosing(asked, rows, ["g"])["slice"].to_list()


def test_the_innermost_of_slices_nested_very_deep() -> None:
    """Each lies in the one before; after their ends only the outermost still runs."""
    depth = 20_000
    rows = pl.DataFrame(
        {"start": range(depth), "end": [9 * depth, *range(8 * depth, 7 * depth, -1)][:depth]}
    )
    points = pl.DataFrame({"ts": [*range(7 * depth, 9 * depth, 7), 9 * depth]})
    began = time.perf_counter()
    result = innermost(points, build_tree(rows))
    assert result.equals(linking.enclosing(points, rows)["slice"])
    assert time.perf_counter() - began < 5


@modest
@given(slices(), st.lists(st.booleans(), min_size=25, max_size=25))
def test_nearest_equals_climbing(frame: pl.DataFrame, chosen: list[bool]) -> None:
    slice_tree = build_tree(frame, ["g"])
    wanted = np.array(chosen)[: slice_tree.height]
    for row, result in enumerate(nearest(slice_tree, wanted).tolist()):
        at = parents(slice_tree)[row]
        while at != ROOT and not wanted[at]:
            at = parents(slice_tree)[at]
        assert result == at


@modest
@given(slices(), st.lists(st.integers(-(1 << 58), 1 << 58), min_size=25, max_size=25))
def test_descendants_count_once_per_ancestor(frame: pl.DataFrame, values: list[int]) -> None:
    slice_tree = build_tree(frame, ["g"])
    expected = values[: slice_tree.height]
    self_times = np.array(expected, np.int64)
    for row, value in enumerate(values[: slice_tree.height]):
        at = parents(slice_tree)[row]
        while at != ROOT:
            expected[at] += value
            at = parents(slice_tree)[at]
    assert with_descendants(self_times, slice_tree).tolist() == expected
    assert self_times.tolist() == values[: slice_tree.height], "the values given were changed"


VALUE = st.tuples(
    st.none() | st.integers(-(1 << 62), 1 << 62),
    st.none() | st.sampled_from("abc"),
    st.sampled_from([True, False]),
)


@modest
@given(st.lists(VALUE, max_size=30), st.booleans())
def test_rows_are_numbered_by_value(
    rows: list[tuple[int | None, str | None, bool]], categorical: bool
) -> None:
    types = {"a": pl.Int64, "b": pl.Categorical if categorical else pl.String, "c": pl.Boolean}
    frame = pl.DataFrame(rows, schema=types, orient="row").with_columns(pl.col("c").cast(pl.Int8))
    first, number = numbered(frame.get_columns())
    assert first.size == len(set(rows))
    assert [rows[first[n]] for n in number] == rows
    assert all(rows.index(rows[row]) == row for row in first.tolist())


@pytest.mark.parametrize(
    ("rows", "distinct"),
    [(9_000, 3_000), (200_000, 70_000)],
    ids=["beyond the table", "beyond 32 bits"],
)
def test_many_combinations_are_numbered_without_a_table(rows: int, distinct: int) -> None:
    values = np.random.default_rng(7).integers(0, distinct, (2, rows))
    values[:, rows // 2 :] = values[:, : rows // 2]  # each pair twice
    columns = [pl.Series(self_times) for self_times in values]
    first, number = numbered(columns)
    pairs = values[0] * distinct + values[1]
    assert (np.sort(first) == np.sort(np.unique(pairs, return_index=True)[1])).all()
    assert (pairs[first[number]] == pairs).all()


def test_slices_do_not_run_at_their_end() -> None:
    rows = pl.DataFrame({"start": range(8), "end": [20, *[10] * 7]})
    result = innermost(pl.DataFrame({"ts": [9, 10, 11, 20]}), build_tree(rows))
    assert result.to_list() == [7, 0, 0, None]


def test_empty_input() -> None:
    empty = pl.DataFrame(schema={"g": pl.Int64, "start": pl.Int64, "end": pl.Int64})
    slice_tree = build_tree(empty, ["g"])
    assert slice_tree.columns == ["g", "start", "end", "depth", "parent", "self_time"]
    assert with_descendants(np.zeros(0, np.int64), slice_tree).size == 0
    points = pl.DataFrame({"g": [1], "ts": [5]})
    assert innermost(points, slice_tree, ["g"]).to_list() == [None]
