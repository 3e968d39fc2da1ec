"""Two ranks' sequences of collectives set side by side."""

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


def test_sequences_that_meet_go_one_by_one() -> None:
    near = sequence(ENDS + 400_000)
    assert align(sequence(ENDS), near).tolist() == list(range(400))


def test_collectives_that_touch_meet() -> None:
    """Each of the second rank starts where the first rank's ends, and its next is nearer."""
    ends = np.arange(1, 9) * 1_000_000
    assert align(sequence(ends), sequence(ends + 500_000)).tolist() == list(range(8))


@pytest.mark.parametrize("clock", [0, 7_000_000_000, -7_000_000_000])
@pytest.mark.parametrize(
    ("first", "last"),
    [(0, 400), (5, 400), (60, 400), (150, 400), (0, 250), (0, 330), (150, 390)],
    ids=lambda own: str(own),
)
def test_a_recording_that_began_later_or_ended_earlier(clock: int, first: int, last: int) -> None:
    """Up to 64 places from either end a partner is found, whatever the clock says."""
    own = sequence(ENDS[first:last] + clock)
    assert align(sequence(ENDS), own).tolist() == list(range(first, last))
    back = align(own, sequence(ENDS)).tolist()
    assert back == [-1] * first + list(range(last - first)) + [-1] * (400 - last)


def test_each_place_is_taken_once_and_by_its_own_kind() -> None:
    reference = sequence(ENDS, kinds=3)
    found = align(reference, sequence(ENDS + 3_000_000_000, kinds=3)[1::2])
    assert found.tolist() == list(range(1, 400, 2))


def test_nothing_like_it() -> None:
    other = sequence(ENDS[:5]).with_columns(kind=pl.lit("other"))
    assert align(sequence(ENDS), other).tolist() == [-1] * 5
