"""Which ranks are late by habit: a tenth of all steps' time, in two steps or more."""

from __future__ import annotations

import polars as pl
import pytest

from traceanalyzer.analyzers.comm_outliers.late import _habitual


def steps(*costs: tuple[int | None, int]) -> pl.DataFrame:
    """Steps of 100 ns: who was late, and what that cost."""
    rows = [
        {"straggler": rank, "cost_ns": cost, "cost_frac": cost / 100, "step_ns": 100}
        for rank, cost in costs
    ]
    return pl.DataFrame(rows)


@pytest.mark.parametrize(
    ("costs", "expected"),
    [
        ([(1, 10), (1, 10)], [1]),
        ([(1, 10), (1, 9)], []),  # less than a tenth of the second step
        ([(1, 90), (2, 0)], []),  # once is no habit
        ([(1, 15), (1, 14), (2, 5)], []),  # 29 of 300 ns are less than a tenth
        ([(1, 15), (1, 15), (2, 5)], [1]),  # 30 are not
        ([(1, 20), (2, 20), (1, 20), (2, 20)], [1, 2]),
    ],
)
def test_habits(costs, expected):
    assert sorted(_habitual(steps(*costs))) == expected
