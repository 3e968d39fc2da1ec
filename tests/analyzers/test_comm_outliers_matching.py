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


#: As long as the gaps between them, and far shorter; three steps with a pause between them.
REGULAR = np.concatenate([np.arange(20) * 228_000 + step * 4_600_000 for step in range(3)])


@pytest.mark.parametrize("clock", [420_000, -310_000, 780_000, 3_000_000_000, -5_000_000])
@pytest.mark.parametrize("jitter", [0, 3_000])
def test_clocks_further_apart_than_collectives_do_not_shift_them(clock: int, jitter: int) -> None:
    noise = np.random.default_rng(5).integers(-jitter, jitter + 1, REGULAR.size)
    reference, other = sequence(REGULAR, 33_000), sequence(REGULAR + clock + noise, 33_000)
    assert align(reference, other).tolist() == list(range(REGULAR.size))


def test_a_shift_that_explains_more_is_taken() -> None:
    """Both recorded as many collectives, but one began five later."""
    assert align(sequence(ENDS[:-5]), sequence(ENDS[5:] + 7_000_000_000)).tolist() == [
        *range(5, 395), *[-1] * 5
    ]  # fmt: skip
