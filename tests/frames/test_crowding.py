"""Overlapping intervals, compared with counts of unit cells."""

from __future__ import annotations

from collections import Counter

import polars as pl
from hypothesis import given, strategies as st
from test_intervals import BY, OFFSETS, assert_runs, cells, frames, modest, shifted

from traceanalyzer.frames.intervals import crowded, union


@modest
@given(frames(), st.sampled_from(OFFSETS))
def test_crowded_against_cells(frame: pl.DataFrame, offset: int) -> None:
    covered = [cells(row) for row in frame.with_row_index().partition_by("index")]
    counts = {
        key: Counter(cell for one in covered for cell in one.get(key, ()))
        for key in {key for one in covered for key in one}
    }
    twice = {key: {cell for cell, n in count.items() if n > 1} for key, count in counts.items()}
    result = crowded(shifted(frame, offset), BY)
    assert_runs(shifted(result, -offset), {key: value for key, value in twice.items() if value})


@modest
@given(frames())
def test_crowded_of_runs_and_doubled_runs(frame: pl.DataFrame) -> None:
    runs = union(frame, BY)
    assert crowded(runs, BY).is_empty()
    assert_runs(crowded(pl.concat([runs, runs]), BY), cells(runs))


def test_without_groups_and_without_rows() -> None:
    frame = pl.DataFrame({"start": [0, 5, 20, 5], "end": [10, 8, 30, 5]})
    assert crowded(frame).rows() == [(5, 8)]
    assert crowded(frame.clear()).rows() == []
