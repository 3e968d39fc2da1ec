"""Statistics of groups: what polars says, group by group."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceanalyzer.frames.numbering import numbered
from traceanalyzer.frames.statistics import grouped, nested

WIDE = st.one_of(st.integers(-9, 9), st.integers(0, 1 << 40), st.integers(-(1 << 61), 1 << 61))


@given(rows=st.lists(st.tuples(st.integers(0, 5), WIDE), max_size=60))
def test_statistics_are_those_of_each_group(rows):
    group, value = ([row[i] for row in rows] for i in (0, 1))
    found = grouped(pl.Series(value, dtype=pl.Int64), np.array(group, np.int32), 7)
    assert found.height == 7
    for number, row in enumerate(found.iter_rows(named=True)):
        own = pl.Series([v for g, v in rows if g == number], dtype=pl.Int64)
        assert row["n"] == own.len()
        if not own.len():
            assert row["total"] == 0
            assert row["median"] is row["max"] is row["mean"] is None
            continue
        if abs(sum(own.to_list())) < 1 << 62:
            assert row["total"] == sum(own.to_list())
            assert row["mean"] == pytest.approx(sum(own.to_list()) / own.len(), rel=1e-12)
        assert (row["min"], row["max"]) == (own.min(), own.max())
        assert row["median"] == pytest.approx(own.median(), rel=1e-12, abs=1e-9)
        expected = own.quantile(0.99, "linear")
        assert row["p99"] == pytest.approx(expected, rel=1e-12, abs=1e-9)


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), WIDE), min_size=1, max_size=60),
    within=st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_groups_of_groups_are_as_if_they_were_groups(rows, within):
    outer = np.unique(within, return_inverse=True)[1].astype(np.int32)
    values = pl.Series([value for _, value in rows], dtype=pl.Int64)
    number = np.array([group for group, _ in rows], np.int32)
    fine, coarse = nested(values, number, outer)
    assert fine.equals(grouped(values, number, 6))
    assert coarse.equals(grouped(values, outer[number], int(outer.max()) + 1))


@given(
    rows=st.lists(st.tuples(st.none() | st.integers(-3, 3), st.sampled_from((None, "a", "b")))),
    scale=st.sampled_from((1, 1 << 40)),
)
def test_rows_that_agree_have_one_number(rows, scale):
    one = pl.Series([None if a is None else a * scale for a, _ in rows], dtype=pl.Int64)
    other = pl.Series([b for _, b in rows], dtype=pl.String)
    first, number = numbered((one, other))
    pairs = list(zip(one.to_list(), other.to_list(), strict=True))
    assert len(first) == len(set(pairs))
    for row, pair in enumerate(pairs):
        assert pairs[first[number[row]]] == pair
        assert pairs.index(pair) == first[number[row]]


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), WIDE), min_size=2, max_size=60),
    cut=st.integers(1, 59),
)
def test_values_may_lie_in_pieces(rows, cut):
    group, value = ([row[i] for row in rows] for i in (0, 1))
    pieces = [pl.Series(some, dtype=pl.Int64) for some in (value[:cut], value[cut:])]
    number = np.array(group, np.int32)
    whole = grouped(pl.Series(value, dtype=pl.Int64), number, 6)
    assert grouped(pl.concat(pieces, rechunk=False), number, 6).equals(whole)
