"""Nesting, compared with a plain implementation, for random slices."""

from __future__ import annotations

import random

import polars as pl
import pytest
from hypothesis import given, settings, strategies as st
from polars.testing import assert_frame_equal

from traceanalyzer.frames import intervals
from traceanalyzer.frames.nesting import nest, nest_mostly, self_time

SCHEMA = {"g": pl.Int64, "start": pl.Int64, "end": pl.Int64}
START, LENGTH = st.integers(0, 15), st.sampled_from([None, -1, *range(13)])
ROW = st.tuples(st.sampled_from([1, 1, None]), START, LENGTH)
Row = dict[str, int]

modest = settings(max_examples=60, deadline=None)


def slices(max_size: int = 25) -> st.SearchStrategy[pl.DataFrame]:
    rows = st.lists(ROW, max_size=max_size)
    results = rows.map(lambda r: pl.DataFrame(r, schema=SCHEMA, orient="row"))
    return results.map(lambda f: f.with_columns(end=pl.col("start") + pl.col("end")))


def tree(seed: int, size: int, deepest: int = 20) -> pl.DataFrame:
    """Properly nested slices of one thread, with instants, twins and shared bounds."""
    rng = random.Random(seed)  # noqa: S311 - a repeatable tree, no secret
    bounds: list[list[int]] = []
    open_rows: list[int] = []
    now = 0
    while len(bounds) < size:
        now += rng.choice([0, 0, 1, 5])
        if open_rows and (len(open_rows) == deepest or rng.random() < 0.5):
            bounds[open_rows.pop()][1] = now
        else:
            open_rows.append(len(bounds))
            bounds.append([now, now])
    for row in open_rows:
        bounds[row][1] = now
    return pl.DataFrame(bounds, schema=["start", "end"], orient="row")


def in_order(frame: pl.DataFrame) -> list[Row]:
    """The slices as dictionaries, by (group, start, longest first, row)."""
    rows = frame.with_row_index("row").filter(intervals.IS_INTERVAL)
    return rows.sort("g", "start", "end", "row", descending=[False, False, True, False]).to_dicts()


def main_lane(frame: pl.DataFrame, tolerance: int) -> dict[int, int | None]:
    """Row -> parent of the slices in the main lane, each compared with all before it."""
    kept: list[Row] = []
    parents: dict[int, int | None] = {}
    for s in in_order(frame):
        before = [k for k in kept if k["g"] == s["g"] and s["start"] < k["end"]]
        if any(
            s["start"] < k["end"] - tolerance and s["end"] > k["end"] + tolerance for k in before
        ):
            continue
        around = [k for k in before if s["end"] <= k["end"] + tolerance]
        parents[s["row"]] = around[-1]["row"] if around else None
        cut = min(s["end"], around[-1]["end"]) if around else s["end"]
        kept.append({**s, "end": cut})
    return parents


@modest
@given(slices(), st.integers(0, 3), st.sampled_from([0, 1 << 62, -(1 << 62)]))
def test_the_main_lane_follows_the_rule(frame: pl.DataFrame, tolerance: int, by: int) -> None:
    nested = nest(frame.with_columns(pl.col("start", "end") + by), ["g"], tolerance)
    main = nested.with_row_index("row").filter(pl.col("lane") == 0)
    assert dict(main.select("row", "parent").iter_rows()) == main_lane(frame, tolerance)


@modest
@given(slices(), st.integers(0, 3))
def test_no_slice_is_lost_and_every_lane_nests(frame: pl.DataFrame, tolerance: int) -> None:
    nested = nest(frame, ["g"], tolerance)
    assert_frame_equal(nested.select(frame.columns), frame)
    is_slice = frame.select(intervals.IS_INTERVAL.fill_null(value=False)).to_series()
    for column in ("depth", "lane"):
        assert (nested[column].is_not_null() == is_slice).all()
    rows = in_order(nested)
    by_row = {s["row"]: s for s in rows}
    for s in rows:
        s["cut"] = s["end"]
        if s["parent"] is None:
            assert s["depth"] == 0
            continue
        parent = by_row[s["parent"]]
        assert (s["g"], s["lane"], s["depth"]) == (parent["g"], parent["lane"], parent["depth"] + 1)
        assert parent["start"] <= s["start"] < parent["end"]
        assert s["end"] <= parent["cut"] + tolerance
        s["cut"] = min(s["end"], parent["cut"])
    for n, later in enumerate(rows):
        for earlier in rows[:n]:
            if (earlier["g"], earlier["lane"]) == (later["g"], later["lane"]):
                nests = later["end"] <= earlier["cut"] + tolerance
                assert nests or later["start"] >= earlier["cut"] - tolerance


@modest
@given(slices(), st.integers(0, 3), st.randoms(use_true_random=False))
def test_the_order_of_different_slices_does_not_matter(
    frame: pl.DataFrame, tolerance: int, rng: random.Random
) -> None:
    frame = frame.unique(maintain_order=True).with_row_index("id")
    order = list(range(frame.height))
    rng.shuffle(order)
    results = [nest(f, ["g"], tolerance) for f in (frame, frame[order])]
    by_id = [f.with_columns(parent=f["id"].gather(f["parent"])).sort("id") for f in results]
    assert_frame_equal(*by_id)


@pytest.mark.parametrize("seed", range(4))
def test_arrays_and_stack_agree(seed: int) -> None:
    """An offender sends its group to the stack; the main lane must not change."""
    good = tree(seed, 3_000).sort("start", "end", descending=[False, True], maintain_order=True)
    exact = nest_mostly(*intervals.bounds(good))
    assert exact is not None
    assert not exact[2].size
    root = good.filter(pl.col("end") - pl.col("start") > 9)[0]
    offender = root.select(start=pl.col("end") - 5, end=pl.col("end") + 5_000_000)
    by_stack = nest(pl.concat([good, offender]))
    assert by_stack["lane"].to_list() == [0] * good.height + [1]
    assert by_stack["depth"].to_list() == [*exact[0].tolist(), 0]
    assert by_stack["parent"].fill_null(-1).to_list() == [*exact[1].tolist(), -1]


@pytest.mark.parametrize("seed", range(4))
def test_a_large_group_follows_the_rule(seed: int) -> None:
    """Enough slices for the array method, exact but for some that end one too late."""
    frame = tree(seed, 500, deepest=6).with_columns(g=1)
    late = pl.int_range(pl.len()).is_in(random.Random(seed).sample(range(500), 15 * seed))  # noqa: S311
    frame = frame.with_columns(end=pl.col("end") + late.cast(pl.Int64))
    for tolerance in (0, 1):
        nested = nest(frame, ["g"], tolerance).with_row_index("row").filter(pl.col("lane") == 0)
        assert dict(nested.select("row", "parent").iter_rows()) == main_lane(frame, tolerance)


@pytest.mark.parametrize("seed", range(4))
def test_self_times_add_up_to_the_roots(seed: int) -> None:
    good = pl.concat([tree(10 * seed + g, 800).with_columns(g=pl.lit(g)) for g in range(3)]).sample(
        fraction=1, shuffle=True, seed=seed
    )
    with_self_time = self_time(nest(good, ["g"]))
    assert with_self_time["self_time"].min() == 0
    assert with_self_time["self_time"].sum() == intervals.measure(good, ["g"])["length"].sum()


@modest
@given(slices(), st.integers(0, 3))
def test_self_time_is_what_no_child_covers(frame: pl.DataFrame, tolerance: int) -> None:
    with_self_time = self_time(nest(frame, ["g"], tolerance)).with_row_index("row")
    for row, start, end, time in with_self_time.select(
        "row", "start", "end", "self_time"
    ).iter_rows():
        if end is None or end < start:
            assert time is None
            continue
        children = with_self_time.filter(pl.col("parent") == row)
        inside = intervals.measure(intervals.clip(children, start, end))["length"].item()
        assert time == end - start - inside


def test_one_late_leaf_among_many_slices() -> None:
    leaves = [(start, start + 5) for start in range(0, 1000, 10)]
    assert lanes((0, 1000), *leaves, (997, 1001), tolerance=0)[-1] == (0, None, 1)
    assert lanes((0, 1000), *leaves, (997, 1001), tolerance=1)[-1] == (1, 0, 0)


def test_tolerated_overlap_is_not_counted_twice() -> None:
    frame = pl.DataFrame(
        [(0, 50), (10, 20), (19, 40), (45, 51)], schema=["start", "end"], orient="row"
    )
    assert self_time(nest(frame))["self_time"].to_list() == [15, 10, 21, 6]


def lanes(*bounds: tuple[int, int], tolerance: int = 1) -> list[tuple[int, int | None, int]]:
    frame = pl.DataFrame(bounds, schema=["start", "end"], orient="row")
    return nest(frame, tolerance=tolerance).select("depth", "parent", "lane").rows()


def test_twins_nest_in_the_order_of_rows() -> None:
    assert lanes((0, 5), (0, 5), (0, 9)) == [(1, 2, 0), (2, 0, 0), (0, None, 0)]


def test_instant_has_a_parent_and_no_children() -> None:
    at_start, at_end, inside = (0, 0), (9, 9), (4, 4)
    assert lanes((0, 9), at_start, inside, inside, at_end) == [
        (0, None, 0),
        (1, 0, 0),
        (1, 0, 0),
        (1, 0, 0),
        (0, None, 0),
    ]


def test_tolerance_is_one_nanosecond() -> None:
    assert lanes((0, 10), (5, 11)) == [(0, None, 0), (1, 0, 0)]
    assert lanes((0, 10), (9, 20)) == [(0, None, 0), (0, None, 0)]
    assert lanes((0, 10), (5, 12)) == [(0, None, 0), (0, None, 1)]
    assert lanes((0, 10), (8, 20)) == [(0, None, 0), (0, None, 1)]
    assert lanes((0, 10), (9, 20), tolerance=0) == [(0, None, 0), (0, None, 1)]


def test_tolerance_does_not_accumulate() -> None:
    assert lanes((0, 10), (2, 11), (3, 12)) == [(0, None, 0), (1, 0, 0), (0, None, 1)]


def test_overflow_lanes_nest_too_and_are_used_again() -> None:
    staircase = ((0, 10), (5, 20), (7, 30), (8, 19))
    assert lanes(*staircase) == [(0, None, 0), (0, None, 1), (0, None, 2), (1, 1, 1)]
    assert lanes((0, 10), (5, 15), (20, 30), (25, 35)) == [
        (0, None, 0),
        (0, None, 1),
        (0, None, 0),
        (0, None, 1),
    ]


def test_overflow_lanes_are_reused_with_tolerance() -> None:
    assert lanes((0, 10), (5, 15), (12, 20), (15, 30))[3] == (0, None, 1)
    assert lanes((0, 10), (5, 20), (6, 21), (7, 22)) == [
        (0, None, 0),
        (0, None, 1),
        (1, 1, 1),
        (0, None, 2),
    ]


def test_overflow_slice_gets_several_children() -> None:
    assert lanes((0, 10), (5, 40), (6, 12), (11, 20), (13, 25)) == [
        (0, None, 0),
        (0, None, 1),
        (1, 1, 1),
        (0, None, 0),
        (1, 1, 1),
    ]


def test_an_overflow_slice_takes_no_children_from_the_main_lane() -> None:
    assert lanes((0, 100), (10, 30), (20, 60), (40, 50)) == [
        (0, None, 0),
        (1, 0, 0),
        (0, None, 1),
        (1, 0, 0),
    ]


def test_every_step_of_a_long_staircase_has_its_lane() -> None:
    n = 20_000
    nested = nest(pl.DataFrame({"start": range(n), "end": range(n, 2 * n)}), tolerance=0)
    assert nested["lane"].to_list() == list(range(n))


@pytest.mark.parametrize("by", [(), ("g",)])
def test_empty_and_single(by: tuple[str, ...]) -> None:
    empty = pl.DataFrame(schema=SCHEMA)
    results = self_time(nest(empty, by))
    added = {"depth": pl.UInt32, "parent": pl.UInt32, "lane": pl.UInt32, "self_time": pl.Int64}
    assert results.schema == {**SCHEMA, **added}
    one = pl.DataFrame([(1, 3, 8)], schema=SCHEMA, orient="row")
    assert self_time(nest(one, by)).rows() == [(1, 3, 8, 0, None, 0, 5)]
    none = pl.DataFrame([(1, 3, None)], schema=SCHEMA, orient="row")
    assert self_time(nest(none, by)).rows() == [(1, 3, None, None, None, None, None)]
