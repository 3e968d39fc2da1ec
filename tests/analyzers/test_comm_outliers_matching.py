"""Alignment of two ranks' sequences of collectives."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from traceanalyzer.analyzers.comm_outliers.matching import align

#: Unevenly apart, so that only one distance of the clocks fits.
ENDS = np.cumsum(np.random.default_rng(3).integers(1_000_000, 9_000_000, 400))


def sequence(ends: np.ndarray, length: int = 500_000, kinds: int = 1) -> pl.DataFrame:
    kind = pl.Series(np.arange(len(ends)) % kinds).cast(pl.String)
    return pl.DataFrame({"kind": kind, "start": ends - length, "end": ends})


def test_overlapping_sequences_are_matched_in_order() -> None:
    near = sequence(ENDS + 400_000)
    assert align(sequence(ENDS), near).tolist() == list(range(400))


def test_adjacent_collectives_are_matched() -> None:
    """Each of the second rank starts where the first rank's ends, and its next is nearer."""
    ends = np.arange(1, 9) * 1_000_000
    assert align(sequence(ends), sequence(ends + 500_000)).tolist() == list(range(8))


@pytest.mark.parametrize("clock", [0, 7_000_000_000, -7_000_000_000])
@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 400), (5, 400), (60, 400), (150, 400), (0, 250), (0, 330), (150, 390)],
    ids=str,
)
def test_shorter_recording_is_aligned(clock: int, first: int, last: int) -> None:
    """Matches are found up to 64 places from either end, at any clock offset."""
    part = sequence(ENDS[first:last] + clock)
    assert align(sequence(ENDS), part).tolist() == list(range(first, last))
    back = align(part, sequence(ENDS)).tolist()
    assert back == [-1] * first + list(range(last - first)) + [-1] * (400 - last)


def test_matches_are_unique_and_of_one_kind() -> None:
    reference = sequence(ENDS, kinds=3)
    result = align(reference, sequence(ENDS + 3_000_000_000, kinds=3)[1::2])
    assert result.tolist() == list(range(1, 400, 2))


def test_sequences_without_similar_events() -> None:
    other = sequence(ENDS[:5]).with_columns(kind=pl.lit("other"))
    assert align(sequence(ENDS), other).tolist() == [-1] * 5
