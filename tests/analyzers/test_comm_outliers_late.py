"""Repeated stragglers (10 % of step time in two steps or more) and delayed collectives."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.arrivals import _repeated_stragglers, delayed
from traceanalyzer.trace import Trace


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


def on_host(rank: int, name: str, begin: int, end: int) -> dict[str, Any]:
    kind = "mpi" if name.startswith("MPI") else "user_annotation"
    return host(kind, name, begin * MS, (end - begin) * MS, rank=rank)


def test_ranks_do_not_wait_for_one_that_enters_after_they_left() -> None:
    """Rank 1 enters the last 2 of 8 calls, which wait for neighbours, after rank 0 left them."""
    begins = [[20 * n for n in range(8)], [20 * n + 8 * (n > 5) for n in range(8)]]
    traces = [
        trace(
            [*(on_host(rank, "MPI_Waitall", at, at + 4) for at in each), device(GEMM, 0, MS)], rank
        )
        for rank, each in enumerate(begins)
    ]
    totals = ta.comm_outliers(traces).totals
    assert (totals.n_events, totals.n_matched, totals.total_wait_ns) == (16, 12, 0)


def test_straggler_between_steps() -> None:
    """The waits within steps are short, and their straggler changes."""
    rows: list[list[dict[str, Any]]] = [[], []]
    for n in range(6):
        for rank in range(2):
            begin = 20 * n * MS
            late = US * ((n + rank) % 2)
            reduced = device(ALL_REDUCE, begin + MS + late, MS - late, stream=20)
            rows[rank] += [step(n, begin, 10 * MS), reduced]
            rows[rank].append(
                on_host(rank, "gloo:broadcast", 20 * n + (17 if rank else 11), 20 * n + 18)
            )
    result = ta.comm_outliers([trace(each, rank) for rank, each in enumerate(rows)])
    assert result.ranks["rank"][0] == 1
    assert result.ranks["imposed_ns"][0] == pytest.approx(36 * MS, abs=6 * US)
    assert result.is_steady(1)


def restarting(rank: int, *, number_again: bool, pause: int = 15_000 * MS, at: int = 5) -> Trace:
    """Return steps of an all_reduce; rank 2 is recorded from a step on that it begins late."""
    events: list[dict[str, Any]] = []
    for n in range(10):
        begin = n * 10 * MS + pause * (n > at)
        late = begin + pause * (n == at)
        arrives, ends = (late if rank == 2 else begin) + 2 * MS + rank * US, late + 3 * MS
        again = rank == 2 and number_again
        about = {
            "group": "0", "group_ranks": "[0, 1, 2]", "group_size": 3, "seq": n - at * again,
            "elements_in": 1 << 20, "dtype": "float", "stream": 20,
        }  # fmt: skip
        known = {"correlation": 2 * n}, {"correlation": 2 * n + 1}
        if rank == 2 and n < at:
            continue
        events += [
            step(n, arrives - 2 * MS, ends - arrives + 2 * MS),
            host("cuda_runtime", "cudaLaunchKernel", arrives - 2 * MS, 3 * US, **known[0]),
            device(GEMM, arrives - 2 * MS + 5 * US, MS, **known[0]),
            host("cuda_runtime", "cudaLaunchKernel", arrives - 2 * MS + 5 * US, 3 * US, **known[1]),
            device(ALL_REDUCE, arrives, ends - arrives, **known[1], **about),
        ]
    start = min(event["ts"] for event in events)
    return trace(events, rank, world_size=3, host="n0", start_ns=start)


@pytest.mark.parametrize("ranks", [[0, 1, 2], [0, 2], [2, 0]])
@pytest.mark.parametrize("number_again", [False, True])
def test_a_rank_that_restarts_is_no_straggler(number_again: bool, ranks: list[int]) -> None:
    traces = [restarting(rank, number_again=number_again) for rank in ranks]
    result = ta.comm_outliers(traces)
    assert result.totals.total_wait_ns < MS
    assert not result.clocks["applied"].any()
    assert any("restarted" in note for note in result.notes) == number_again
    found = {one.id for one in ta.diagnose(traces).findings}
    assert not found & {"straggler", "slow-collectives", "collective-outliers"}
    assert ("missing-ranks" in found) == (len(ranks) < 3)


def test_a_rank_that_pauses_without_a_restart_is_a_straggler() -> None:
    traces = [restarting(rank, number_again=False, pause=300 * MS) for rank in range(3)]
    assert "straggler" in {one.id for one in ta.diagnose(traces).findings}


@pytest.mark.parametrize("shifted", [0, 1])
@pytest.mark.parametrize("more", [0, 2])  # the profiler of one rank records more steps
@pytest.mark.parametrize("offset", [500 * MS, 5_000 * MS, -70_000 * MS])
def test_clocks_of_seconds_apart_under_one_host_name_are_no_restart(
    offset: int, more: int, shifted: int
) -> None:
    ranks = []
    for rank in range(2):
        events, late = [], 3 * MS * (rank == 1)
        for n in range(20 + more * rank):
            begin = n * 10 * MS + offset * (rank == shifted)
            known, ready = {"correlation": n + 1}, begin + 5 * MS + late
            about = {"seq": n, "group": "0", "group_size": 2, "stream": 20}
            events += [
                step(n, begin, 10 * MS),
                host("cuda_runtime", "cudaLaunchKernel", begin, 3 * US, **known),
                device(GEMM, begin + 5 * US, ready - begin - 5 * US, **known),
                device(ALL_REDUCE, ready, begin + 9 * MS - ready, **about),
            ]
        start = min(event["ts"] for event in events)
        ranks.append(trace(events, rank, world_size=2, host="n0", start_ns=start))
    result = ta.comm_outliers(ranks)
    assert result.clocks["applied"].any()
    assert result.ranks["rank"][0] == 1
    assert result.ranks["imposed_ns"][0] == pytest.approx(60 * MS, rel=0.01)
    assert not any("restarted" in note for note in result.notes)
    assert "straggler" in {one.id for one in ta.diagnose(ranks).findings}


def short_waits(late_ns: int) -> list[Trace]:
    """Return 4 ranks with 16 collectives in each of 4 steps; another rank is late at each."""
    ranks = []
    for rank in range(4):
        rows = [step(number, number * 16 * MS, 16 * MS) for number in range(4)]
        for at in range(64):
            late = (at * 7 // 3) % 4 == rank
            begin, end = at * MS + 400 * US + late * late_ns, at * MS + 900 * US
            rows.append(device(GEMM, at * MS, begin - at * MS))
            about = {"seq": at, "group": "0", "group_size": 4, "stream": 20}
            rows.append(device(ALL_REDUCE, begin, end - begin, **about))
        ranks.append(trace(rows, rank, world_size=4))
    return ranks


@pytest.mark.parametrize(("late_ns", "much"), [(400 * US, True), (40 * US, False)])
def test_many_short_waits_for_changing_ranks_are_no_lack_of_problems(
    late_ns: int, much: bool
) -> None:
    result = ta.comm_outliers(short_waits(late_ns))
    assert result.stragglers().is_empty()
    assert ("none in most" in str(result.verdict)) == much


@pytest.mark.parametrize(("steps", "late_in"), [(1, {0}), (2, {1})])
@pytest.mark.parametrize("jitter_ns", [0, 2 * US])
def test_short_waits_for_one_rank_are_not_for_ranks_that_change(
    steps: int, late_in: set[int], jitter_ns: int
) -> None:
    ranks = []
    for rank in range(2):
        rows = [step(number, number * 16 * MS, 16 * MS) for number in range(steps)]
        for at in range(16 * steps):
            last = 1 if at // 16 in late_in and at % 16 < 15 else 0
            late = (440 * US if last else jitter_ns) * (rank == last)
            begin, end = at * MS + 400 * US + late, at * MS + 900 * US
            rows.append(device(GEMM, at * MS, begin - at * MS))
            about = {"seq": at, "group": "0", "group_size": 2, "stream": 20}
            rows.append(device(ALL_REDUCE, begin, end - begin, **about))
        ranks.append(trace(rows, rank, world_size=2))
    result = ta.comm_outliers(ranks)
    assert result.stragglers().is_empty()
    assert result.ranks["imposed_ns"].gt(0).sum() == (2 if jitter_ns else 1)
    verdict = str(result.verdict)
    assert "which changes" not in verdict
    assert f"Rank 1 arrived last in {len(late_in)} of {steps} step" in verdict
