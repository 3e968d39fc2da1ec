"""Numbering of rows by value, and statistics by number."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st

from traceanalyzer.analyzers.kernels.compute import _statistics
from traceanalyzer.frames import numbering
from traceanalyzer.frames.numbering import group_numbers, numbered

VALUES = st.one_of(st.integers(0, 9), st.integers(0, 1 << 40), st.integers(0, 1 << 52))


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), VALUES), min_size=1, max_size=60),
    within=st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_statistics_are_those_of_each_group(rows, within):
    values = pl.Series([value for _, value in rows])
    _, number = numbered([pl.Series([group for group, _ in rows])])
    outer = np.unique(within[: number.max() + 1], return_inverse=True)[1].astype(np.int32)
    for groups, result in zip(
        (number, outer[number]), _statistics(values, number, outer), strict=True
    ):
        assert result["group"].to_list() == list(range(groups.max() + 1))
        for group, row in enumerate(result.iter_rows(named=True)):
            of_group = values.filter(pl.Series(groups == group))
            assert row["n"] == of_group.len()
            assert row["total"] == of_group.sum()
            assert (row["min"], row["max"]) == (of_group.min(), of_group.max())
            assert row["median"] == pytest.approx(float(np.median(of_group)), rel=1e-12)
            assert row["p99"] == pytest.approx(float(np.quantile(of_group, 0.99)), rel=1e-12)


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


def test_one_group_of_texts_is_not_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "numbered", None)
    frame = pl.DataFrame(
        {"path": ["a"] * 3, "rank": [None, None, None]}, {"path": pl.String, "rank": pl.Int32}
    )
    groups, (first, second) = group_numbers(["path", "rank"], frame, frame.head(1))
    assert groups.rows() == [("a", None)]
    assert first.tolist() == [0, 0, 0]
    assert second.tolist() == [0]
