"""Repeated stragglers (10 % of step time in two steps or more) and delayed collectives."""

from __future__ import annotations

import polars as pl
import pytest

from traceanalyzer.analyzers.comm_outliers.arrivals import _repeated_stragglers, delayed


def collectives(*delays: int) -> pl.DataFrame:
    """Return collectives with these arrival delays of rank 1."""
    rows = [
        {
            "instance": number,
            "last_rank": 1,
            "arrival_delay_ns": delay,
            "imposed_ns": 5,
            "step": "s",
        }
        for number, delay in enumerate(delays)
    ]
    return pl.DataFrame(rows)


def steps(*costs: tuple[int | None, int]) -> pl.DataFrame:
    """Return steps of 100 ns with straggler and cost."""
    rows = [
        {
            "straggler": rank,
            "cost_ns": cost,
            "cost_frac": cost / 100,
            "step_ns": 100,
            "warm_up": False,
        }
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
def test_repeated_stragglers(costs, expected):
    assert sorted(_repeated_stragglers(steps(*costs))) == expected


@pytest.mark.parametrize(
    ("delays", "least", "chosen"),
    [
        ((0, 1, 2), 1, [1, 2]),  # without a delay
        ((0, 1, 2), 0, [1, 2]),
        ((3, 4, 5), 4, [1, 2]),
        ((1, 2, 3, 4), 9, [0, 1, 2]),  # of many small delays three
    ],
)
def test_delayed_collectives(delays: tuple[int, ...], least: int, chosen: list[int]) -> None:
    rows = pl.DataFrame(
        [
            {"instance": number, "path": "a", "device": 0, "is_last": True, "ts": 100}
            for number in range(len(delays))
        ]
    )
    marks = pl.DataFrame({"step": ["s", "s"], "rank": [0, 1], "arrival": [3, 10]})
    habit = steps((1, 50), (1, 50)) if least > max(delays) else steps((1, 0))
    result = delayed(collectives(*delays), rows, habit, marks, least)
    assert result["instance"].to_list() == chosen
    assert result["window_start_ns"].to_list() == [100 - delays[number] for number in chosen]
    assert result["into_step_ns"].to_list() == [7] * len(chosen)


def test_delayed_collectives_are_sorted_by_imposed_time() -> None:
    imposed = pl.Series("imposed_ns", [5, 70, 6, 70])
    result = delayed(
        collectives(9, 9, 9, 9).with_columns(imposed),
        pl.DataFrame(
            [
                {"instance": n, "path": "a", "device": 0, "is_last": True, "ts": 100}
                for n in range(4)
            ]
        ),
        steps((1, 0)),
        pl.DataFrame({"step": ["s", "s"], "rank": [0, 1], "arrival": [3, 10]}),
        1,
    )
    assert result["instance"].to_list() == [1, 3, 2, 0]


def test_small_delays_in_one_step_are_left_out() -> None:
    delays = (1, 2, 3)
    rows = pl.DataFrame(
        [
            {"instance": n, "path": "a", "device": 0, "is_last": True, "ts": 100}
            for n in range(len(delays))
        ]
    )
    marks = pl.DataFrame({"step": ["s", "s"], "rank": [0, 1], "arrival": [3, 10]})
    rare = steps((1, 90), (2, 0))
    assert delayed(collectives(*delays), rows, rare, marks, least_ns=9).is_empty()
    assert delayed(collectives(1, 9, 3), rows, rare, marks, least_ns=9)["instance"].to_list() == [1]
