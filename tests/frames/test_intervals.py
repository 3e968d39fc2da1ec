"""Interval algebra, compared with sets of unit cells, and its laws."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import example, given, settings, strategies as st
from polars.testing import assert_frame_equal

from traceanalyzer.frames import intervals
from traceanalyzer.frames.numbering import group_numbers

BY = ["g", "h"]
SCHEMA = {"g": pl.Int32, "h": pl.String, "start": pl.Int64, "end": pl.Int64}
OFFSETS = [0, -7, 1 << 62, -(1 << 62)]
TIME = st.integers(0, 30)
BOUND = st.one_of(st.none(), TIME)
ROW = st.tuples(st.sampled_from([1, None]), st.sampled_from(["a", "b"]), TIME, BOUND)
Cells = dict[tuple[object, object], set[int]]

modest = settings(max_examples=60, deadline=None)


def frames(max_size: int = 12) -> st.SearchStrategy[pl.DataFrame]:
    rows = st.lists(ROW, max_size=max_size)
    return rows.map(lambda r: pl.DataFrame(r, schema=SCHEMA, orient="row"))


def cells(frame: pl.DataFrame) -> Cells:
    """The unit cells covered, by group: the definition, one nanosecond at a time."""
    result: Cells = {}
    for g, h, start, end in frame.select(*BY, "start", "end").iter_rows():
        if start is not None and end is not None and start < end:
            result.setdefault((g, h), set()).update(range(start, end))
    return result


def combined(a: Cells, b: Cells, how: str) -> Cells:
    keys = a.keys() | b.keys()
    result = {key: getattr(a.get(key, set()), how)(b.get(key, set())) for key in keys}
    return {key: value for key, value in result.items() if value}


def length(frame: pl.DataFrame) -> int:
    return int(intervals.measure(frame)["length"].item())


def total(result: Cells) -> int:
    return sum(map(len, result.values()))


def shifted(frame: pl.DataFrame, by: int) -> pl.DataFrame:
    return frame.with_columns(pl.col("start", "end") + by)


def assert_runs(frame: pl.DataFrame, expected: Cells) -> None:
    """Sorted, disjoint, not even touching, and covering exactly these cells."""
    assert frame.columns == [*BY, "start", "end"]
    assert cells(frame) == expected
    assert_frame_equal(frame, frame.sort(*BY, "start"))
    apart = frame.select((pl.col("start") > pl.col("end").shift(1).over(BY)).all()).item()
    assert apart
    assert (frame["end"] > frame["start"]).all()


@modest
@given(frames(), st.sampled_from(OFFSETS))
def test_union_is_the_cells_covered(frame: pl.DataFrame, offset: int) -> None:
    moved = intervals.union(shifted(frame, offset), BY)
    assert_runs(shifted(moved, -offset), cells(frame))
    summed = frame.filter(intervals.IS_INTERVAL).select(pl.col("end") - pl.col("start"))
    assert total(cells(frame)) <= summed.sum().item()


@modest
@given(frames(), st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(frame: pl.DataFrame, random: object) -> None:
    other = frame.sample(fraction=1, shuffle=True, seed=random.randrange(1 << 30))  # type: ignore[attr-defined]
    assert_frame_equal(intervals.union(frame, BY), intervals.union(other, BY))
    assert_frame_equal(intervals.measure(frame, BY), intervals.measure(other, BY))


@modest
@given(frames(), frames())
def test_intersection_and_difference(a: pl.DataFrame, b: pl.DataFrame) -> None:
    both = intervals.intersect(a, b, BY)
    assert_runs(both, combined(cells(a), cells(b), "intersection"))
    assert_frame_equal(both, intervals.intersect(b, a, BY))
    assert_runs(intervals.subtract(a, b, BY), combined(cells(a), cells(b), "difference"))
    either = intervals.union(pl.concat([a, b]), BY)
    lengths = [intervals.measure(x, BY)["length"].sum() for x in (a, b, either, both)]
    assert lengths[0] + lengths[1] == lengths[2] + lengths[3]


@modest
@given(frames())
def test_summary_equals_its_parts(frame: pl.DataFrame) -> None:
    summed = intervals.summary(frame, BY)
    assert_frame_equal(summed.select(*BY, "length"), intervals.measure(frame, BY))
    known = (
        pl.col("start").filter(intervals.IS_INTERVAL),
        pl.col("end").filter(intervals.IS_INTERVAL),
    )
    expected = frame.group_by(BY).agg(
        n=known[0].len().cast(pl.Int64),
        total=(known[1] - known[0]).sum(),
        start=known[0].min().fill_null(0),
        end=known[1].max().fill_null(0),
    )
    assert_frame_equal(summed.drop("length"), expected.sort(BY))


@modest
@given(frames())
@example(
    pl.DataFrame([(1, "a", 0, 0), (1, "a", 1, 1), (1, "b", 0, 0)], schema=SCHEMA, orient="row")
)
def test_gaps_and_busy_add_up_to_the_span(frame: pl.DataFrame) -> None:
    gaps = intervals.gaps(frame, BY)
    known = frame.filter(intervals.IS_INTERVAL)
    span = known.group_by(BY).agg(pl.col("start").min(), pl.col("end").max())
    assert_runs(gaps, combined(cells(span), cells(frame), "difference"))
    busy = intervals.measure(frame, BY)["length"].sum()
    idle = intervals.measure(gaps, BY)["length"].sum()
    assert busy + idle == (span["end"] - span["start"]).sum()


@modest
@given(frames(), frames(3))
def test_gaps_within_a_given_span(frame: pl.DataFrame, span: pl.DataFrame) -> None:
    gaps = intervals.gaps(frame, BY, span)
    assert_runs(gaps, combined(cells(span), cells(frame), "difference"))


@modest
@given(frames(), frames(), frames(), st.sampled_from(OFFSETS))
def test_divide_against_cells(
    a: pl.DataFrame, b: pl.DataFrame, within: pl.DataFrame, offset: int
) -> None:
    moved = [shifted(frame, offset) for frame in (a, b, within)]
    in_a, in_b, asked = cells(a), cells(b), cells(within)
    later = combined(combined(in_b, asked, "intersection"), in_a, "difference")
    busy = combined(in_a, in_b, "union")
    expected = [
        combined(in_a, asked, "intersection"),
        {key: value for key, value in later.items() if key in asked},
        {key: rest for key, all_ in asked.items() if (rest := all_ - busy.get(key, set()))},
    ]
    divided = intervals.divide(moved[2], moved[:2], BY)
    for part, covered in zip(divided, expected, strict=True):
        assert_runs(shifted(part, -offset), covered)


@modest
@given(frames(), frames(), st.sampled_from(OFFSETS))
def test_overlap_with_against_cells(rows: pl.DataFrame, windows: pl.DataFrame, by: int) -> None:
    result = intervals.overlap_with(shifted(rows, by), shifted(windows, by), BY)
    assert_frame_equal(result.drop("overlap"), shifted(rows, by))
    covered = cells(windows)
    for g, h, start, end, overlap in shifted(result, -by).iter_rows():
        if end is None or end < start:
            assert overlap is None
        else:
            assert overlap == len(covered.get((g, h), set()) & set(range(start, end)))


@modest
@given(frames(), BOUND, BOUND)
def test_clip_keeps_the_inside(frame: pl.DataFrame, start: int, end: int) -> None:
    clipped = intervals.clip(frame, start, end)
    lo, hi = -1 if start is None else start, 99 if end is None else end
    window = {key: set(range(lo, hi)) for key in cells(frame)}
    assert cells(clipped) == combined(cells(frame), window, "intersection")
    assert clipped.filter((pl.col("start") < lo) | (pl.col("end") > hi)).is_empty()


def test_measure_has_a_row_for_every_group_even_without_intervals() -> None:
    frame = pl.DataFrame(
        {"g": [2, 1, 1, None, 3], "start": [0, 5, 7, 1, 9], "end": [4, 8, 9, None, 3]}
    )
    expected = pl.DataFrame({"g": [None, 1, 2, 3], "length": [0, 4, 4, 0]})
    assert_frame_equal(intervals.measure(frame, ["g"]), expected)
    assert length(frame) == 8


def test_touching_intervals_merge_and_empty_ones_cover_nothing() -> None:
    frame = pl.DataFrame({"start": [3, 0, 9, 3], "end": [5, 3, 9, 3]})
    assert intervals.union(frame).rows() == [(0, 5)]
    assert intervals.gaps(frame).rows() == [(5, 9)]


def test_clip_keeps_an_instant_in_the_window_and_other_columns() -> None:
    frame = pl.DataFrame({"name": list("abcd"), "start": [5, 4, 9, 0], "end": [5, 4, 9, 20]})
    assert intervals.clip(frame, 5, 9).rows() == [("a", 5, 5), ("d", 5, 9)]


def test_groups_have_separate_gaps() -> None:
    a = pl.DataFrame({"g": [1, 2], "start": [0, 0], "end": [10, 10]})
    b = pl.DataFrame({"g": [1, 3], "start": [2, 2], "end": [4, 4]})
    assert intervals.subtract(a, b, ["g"]).rows() == [(1, 0, 2), (1, 4, 10), (2, 0, 10)]
    assert intervals.intersect(a, b, ["g"]).rows() == [(1, 2, 4)]
    touching = pl.DataFrame({"g": [1, 2], "start": [0, 10], "end": [10, 15]})
    assert_frame_equal(intervals.union(touching, ["g"]), touching)


@pytest.mark.parametrize("by", [(), ("g",), ("g", "h")])
def test_empty_frames(by: tuple[str, ...]) -> None:
    empty = pl.DataFrame(schema=SCHEMA)
    one = pl.DataFrame([(1, "a", 2, 5)], schema=SCHEMA, orient="row")
    columns = [*by, "start", "end"]
    assert_frame_equal(intervals.union(empty, by), empty.select(columns))
    assert_frame_equal(intervals.gaps(empty, by), empty.select(columns))
    assert_frame_equal(intervals.gaps(one, by), empty.select(columns))
    assert_frame_equal(intervals.intersect(one, empty, by), empty.select(columns))
    assert_frame_equal(intervals.intersect(empty, one, by), empty.select(columns))
    assert_frame_equal(intervals.subtract(one, empty, by), one.select(columns))
    assert_frame_equal(intervals.subtract(empty, one, by), empty.select(columns))
    assert intervals.measure(empty, by)["length"].to_list() == ([] if by else [0])
    assert intervals.overlap_with(one, empty, by)["overlap"].to_list() == [0]
    assert intervals.overlap_with(empty, one, by)["overlap"].to_list() == []
    assert intervals.overlap_with(one, one, by)["overlap"].to_list() == [3]


def test_more_groups_than_16_bits() -> None:
    n = 70_000
    frame = pl.DataFrame({"g": range(n), "start": range(n), "end": range(2, n + 2)})
    assert_frame_equal(intervals.union(frame.reverse(), ["g"]), frame)
    assert intervals.measure(frame, ["g"])["length"].to_list() == [2] * n
    assert length(frame) == n + 1


VALUES = {
    pl.Int8: [None, -128, -1, 0, 127],
    pl.Int64: [None, -(1 << 63), 5, 6, (1 << 63) - 1],
    pl.UInt32: [None, 0, 70_000, 70_001, (1 << 32) - 1],
    pl.UInt64: [(1 << 64) - 3, (1 << 64) - 2, (1 << 64) - 1],
    pl.Float64: [None, -0.5, 0.25, float("inf")],
    pl.String: [None, "b", "a", ""],
    pl.Boolean: [None, True, False],
}


@modest
@given(st.data(), st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3))
def test_groups_are_numbered_in_their_order(data: st.DataObject, types: list[type]) -> None:
    row = st.tuples(*(st.sampled_from(VALUES[dtype]) for dtype in types))
    rows = data.draw(st.lists(row, max_size=12))
    frame = pl.DataFrame(rows, schema=list(zip("abc", types, strict=False)), orient="row")
    first, second = frame.head(4), frame.slice(4)
    groups, numbers = group_numbers(frame.columns, first, second)
    assert_frame_equal(groups, frame.unique().sort(frame.columns))
    for part, number in zip((first, second), numbers, strict=True):
        assert_frame_equal(groups[number], part)


@modest
@given(frames(), frames(), st.sampled_from(OFFSETS))
def test_meets_is_any_overlap(rows: pl.DataFrame, windows: pl.DataFrame, by: int) -> None:
    rows, windows = shifted(rows, by), shifted(windows, by)
    shared = intervals.overlap_with(rows, windows)["overlap"]
    expected = [overlap is not None and overlap > 0 for overlap in shared]
    assert intervals.meets(rows, windows).tolist() == expected
    in_order = rows.sort("start")
    shared = intervals.overlap_with(in_order, windows)["overlap"]
    assert intervals.meets(in_order, windows).sum() == (shared > 0).sum()


@pytest.mark.parametrize("start", [[0, 20], [20, 0]], ids=["in order", "not"])
def test_touching_a_window_is_not_an_overlap(start: list[int]) -> None:
    rows = pl.DataFrame({"start": start, "end": [at + 10 for at in start]})
    assert not intervals.meets(rows, pl.DataFrame({"start": [10], "end": [20]})).any()
    assert intervals.meets(rows, pl.DataFrame({"start": [9], "end": [21]})).all()


@modest
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-3, 3)), min_size=1, max_size=12))
def test_order_by_group_and_time_is_stable(
    pairs: list[tuple[int, int]],
) -> None:
    group, time = (np.array(column, np.int64) for column in zip(*pairs, strict=True))
    order = intervals.stable_order(group, time)
    assert order.tolist() == sorted(range(len(pairs)), key=lambda row: pairs[row])


@modest
@given(frames(), frames())
def test_times_far_apart_give_the_same_algebra(a: pl.DataFrame, b: pl.DataFrame) -> None:
    scale = 1 << 57  # group and time do not fit one number
    for operation in (intervals.intersect, intervals.subtract):
        near = operation(a, b, BY)
        far = operation(*(f.with_columns(pl.col("start", "end") * scale) for f in (a, b)), BY)
        assert_frame_equal(far, near.with_columns(pl.col("start", "end") * scale))
