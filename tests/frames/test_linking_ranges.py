"""Slices in ranges, and joins by ids, against plain loops."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from traceanalyzer.frames.intervals import Ints
from traceanalyzer.frames.linking import RangeContents, first_match, innermost_range, link
from traceanalyzer.frames.nesting import ROOT

HIGHEST, LOWEST = np.iinfo(np.int64).max, np.iinfo(np.int64).min

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25)
#: Many short ones among a few long ones, so that the search goes far.
DEEP = st.lists(st.tuples(st.integers(0, 200), st.sampled_from([1, 2, 50, 200])), max_size=80)


def columns(spans: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    """Starts and ends, ordered by start and the longest first."""
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    start = np.array([since for since, _ in ordered], np.int64)
    return start, start + np.array([length for _, length in ordered], np.int64)


def holders(ranges: tuple[Ints, Ints], since: int, until: int) -> list[int]:
    pairs = zip(*ranges, strict=True)
    return [row for row, (start, end) in enumerate(pairs) if start <= since and until <= end]


@settings(max_examples=60, deadline=None)
@given(st.one_of(SPANS, DEEP), st.one_of(SPANS, DEEP))
def test_innermost_range_is_the_last_started_containing_range(
    of_ranges: list[tuple[int, int]], of_slices: list[tuple[int, int]]
) -> None:
    ranges, (since, until) = columns(of_ranges), columns(of_slices)
    expected = [
        max(holders(ranges, *span), default=ROOT) for span in zip(since, until, strict=True)
    ]
    assert innermost_range(*ranges, since, until).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(st.one_of(SPANS, DEEP), st.one_of(SPANS, DEEP), st.integers(1, 9))
def test_range_sums_agree_with_a_plain_loop(
    of_ranges: list[tuple[int, int]], of_slices: list[tuple[int, int]], factor: int
) -> None:
    start, end = columns(of_ranges)
    since, until = columns(of_slices)
    value = np.arange(since.size) * factor % 17 - 8
    contained = RangeContents(start, end, since, until)
    inside = [(since >= low) & (until <= high) for low, high in zip(start, end, strict=True)]
    assert contained.count.tolist() == [rows.sum() for rows in inside]
    assert contained.sum(value).tolist() == [value[rows].sum() for rows in inside]
    assert contained.lowest(value).tolist() == [value[rows].min(initial=HIGHEST) for rows in inside]
    assert contained.highest(value).tolist() == [value[rows].max(initial=LOWEST) for rows in inside]


def test_deeply_nested_slices_take_linear_time() -> None:
    depth = 100_000
    inner = np.arange(depth, dtype=np.int64)
    contained = RangeContents(inner, 2 * depth - inner, inner, 2 * depth - inner)
    assert contained.count.tolist() == list(range(depth, 0, -1))
    assert (contained.highest(inner) == depth - 1).all()
    result = innermost_range(inner, 2 * depth - inner, inner, 2 * depth - inner)
    assert result.tolist() == list(range(depth))
    crossing = np.full(depth, depth)  # each has to skip all later ones
    result = innermost_range(inner, 2 * depth - inner, crossing, 2 * depth - inner)
    assert result.tolist() == list(range(depth))


# --- ids -----------------------------------------------------------------------------------------

IDS = st.one_of(
    st.none(), st.integers(-3, 3), st.sampled_from([-(1 << 63), (1 << 63) - 1, 1 << 40])
)
ROWS = st.lists(st.tuples(IDS, IDS), max_size=12)


@settings(max_examples=60, deadline=None)
@given(ROWS, ROWS)
def test_first_row_with_equal_ids_is_matched(
    left: list[tuple[int | None, int | None]], right: list[tuple[int | None, int | None]]
) -> None:
    types = {"a": pl.Int64, "b": pl.Int64}
    frames = [pl.DataFrame(rows, schema=types, orient="row") for rows in (left, right)]
    expected = [ROOT if None in row or row not in left else left.index(row) for row in right]
    assert first_match(*frames, ["a", "b"]).tolist() == expected
    linked = dict(link(*frames, ["a", "b"]).select("right", "left").iter_rows())
    assert [linked.get(row, ROOT) for row in range(len(right))] == expected


@pytest.mark.parametrize("dtype", [pl.String, pl.Int32, pl.UInt64])
def test_ids_of_other_types_match(dtype: type[pl.DataType]) -> None:
    left, right = (pl.DataFrame({"a": pl.Series(v).cast(dtype)}) for v in ([5, 7, 5], [7, 5, 1]))
    assert first_match(left, right, ["a"]).tolist() == [1, 0, ROOT]
