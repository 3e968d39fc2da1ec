"""Root ranks of wait times when the last rank was delayed in another process group."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import polars as pl
import pytest
from comm_traces import ALL_GATHER, ALL_REDUCE, GEMM, MS, US, device, step, trace

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.chains import is_steady, roots
from traceanalyzer.trace import Trace

FSDP = Path(__file__).parents[2].parent / "shared/data/attribution/fsdp"

SHARD = ((0, 1, 2, 3), (4, 5, 6, 7))
REPLICATE = ((0, 4), (1, 5), (2, 6), (3, 7))
LAYERS, STEPS = 4, 4
GATHER_NS, REDUCE_NS, GEMM_NS = 300 * US, 400 * US, MS


def hybrid_shard(
    extra: Mapping[tuple[int, int, int], int], *, overlapped: int | None = None
) -> list[Trace]:
    """Simulated hybrid sharding: gathers among four ranks, one reduction between pairs a step.

    Args:
        extra: by (rank, step, layer), nanoseconds that its compute takes longer.
        overlapped: rank with compute during all its gathers, so that their waits delay nothing.
    """
    now = dict.fromkeys(range(8), 0)
    events: dict[int, list[dict]] = {rank: [] for rank in range(8)}

    def meet(groups, name, number, took, base):
        for group in groups:
            end = max(now[rank] for rank in group) + took
            for rank in group:
                about = {
                    "dtype": "bfloat16", "elements_in": 4096, "elements_out": 4096,
                    "group": name, "group_size": len(group), "group_ranks": str(list(group)),
                    "seq": number, "stream": 20,
                }  # fmt: skip
                events[rank].append(device(base, now[rank], end - now[rank], **about))
                if rank == overlapped and base == ALL_GATHER:
                    events[rank].append(device(GEMM, now[rank], end - now[rank]))
                now[rank] = end

    for number in range(STEPS):
        begun = dict(now)
        for layer in range(LAYERS):
            meet(SHARD, "1", number * LAYERS + layer, GATHER_NS, ALL_GATHER)
            for rank in range(8):
                took = GEMM_NS + extra.get((rank, number, layer), 0)
                events[rank].append(device(GEMM, now[rank], took))
                now[rank] += took
        meet(REPLICATE, "2", number, REDUCE_NS, ALL_REDUCE)
        for rank in range(8):
            events[rank].append(step(number, begun[rank], now[rank] - begun[rank]))
    return [trace(rows, rank, world_size=8) for rank, rows in events.items()]


def caused(traces: list[Trace]) -> dict[int, int]:
    result = ta.comm_outliers(traces)
    assert result.ranks["imposed_ns"].sum() == result.totals.total_wait_ns
    return {rank: ns for rank, ns in result.ranks.select("rank", "imposed_ns").iter_rows() if ns}


def test_delayed_ranks_are_victims_of_the_straggler() -> None:
    """Rank 5 computes 5 ms longer before the last gather: 4, 6, 7 reach their pairs late."""
    traces = hybrid_shard({(5, 1, 2): 5 * MS})
    result = ta.comm_outliers(traces)
    # three wait at the gather and 0, 1, 2, 3 at the reduction, 5 ms each
    assert caused(traces) == {5: 7 * 5 * MS}
    stragglers = result.stragglers()
    assert stragglers["rank"].to_list() == [5]
    assert stragglers["victims"].to_list() == [[4, 6, 7]]
    assert stragglers["passed_ns"].to_list() == [3 * 5 * MS]
    assert set(result.outliers()["cause"].drop_nulls()) == {
        "waiting for rank 5",
        *(f"waiting for rank 5 (through rank {rank})" for rank in (4, 6, 7)),
    }


def test_additional_delay_of_a_victim_is_imposed_by_it() -> None:
    """Rank 4 is delayed 5 ms by rank 5 and then computes 2 ms longer: rank 0 waits for both.

    Ranks 0 and 4 leave the reduction 2 ms after the other pairs, so that three ranks of each shard
    group wait for them at the next gather.
    """
    traces = hybrid_shard({(5, 1, 2): 5 * MS, (4, 1, 3): 2 * MS})
    assert caused(traces) == {5: 7 * 5 * MS, 4: 7 * 2 * MS}


def test_imposed_time_equals_savings_without_the_straggler() -> None:
    """The same run without the straggler's extra time waits less by its imposed time."""
    jitter = {
        (rank, number, layer): (rank * 37 + number * 11 + layer * 53) % 29 * US
        for rank in range(8) for number in range(STEPS) for layer in range(LAYERS)
    }  # fmt: skip
    with_it = hybrid_shard(jitter | {(5, 1, 2): 5 * MS, (5, 2, 0): 3 * MS})
    waits = [ta.comm_outliers(t).totals.total_wait_ns for t in (with_it, hybrid_shard(jitter))]
    assert caused(with_it)[5] == pytest.approx(waits[0] - waits[1], rel=0.03)


def test_wait_overlapped_by_compute_delays_nothing() -> None:
    """Rank 4 computed while it waited for rank 5: its compute causes its delay at rank 0."""
    traces = hybrid_shard({(5, 1, 2): 5 * MS}, overlapped=4)
    assert caused(traces) == {5: 6 * 5 * MS, 4: 5 * MS}


@pytest.mark.skipif(not FSDP.is_dir(), reason="the shared recordings are missing")
def test_chain_over_two_groups() -> None:
    result = ta.comm_outliers(FSDP)
    totals = dict(result.ranks.select("rank", "imposed_ns").iter_rows())
    assert result.stragglers()["rank"].to_list() == [5]
    assert totals[5] > 0.97 * result.totals.total_wait_ns
    assert set(pl.Series(result.delayed.collectives["root_rank"])) == {5}


def test_many_equal_root_ranks() -> None:
    """Each of 300 ranks delays the last one of a common collective by as much."""
    ranks, rows = 300, []
    for rank in range(ranks):
        for one, start in ((rank, 0), (ranks, 0)):  # a pair with the last rank
            rows.append((rank, rank, one, rank * MS + start, rank * MS + MS))
    traces_rows = [
        {"instance": i, "lane": lane, "rank": rank, "arrival": at, "leave": until,
         "wait_ns": (until - at) if rank == ranks else 0, "is_last": rank != ranks}
        for i, lane, rank, at, until in rows
    ]  # fmt: skip
    end = ranks * MS
    traces_rows += [
        {"instance": ranks, "lane": ranks, "rank": rank, "arrival": 0 if rank == 301 else end,
         "leave": end + MS, "wait_ns": end if rank == 301 else 0, "is_last": rank == ranks}
        for rank in (ranks, 301)
    ]  # fmt: skip
    frame = pl.DataFrame(traces_rows).with_columns(
        pl.lit(7).alias("stream"), pl.lit(0).alias("compute_ns"), once_ns="wait_ns"
    )
    found = roots(frame).filter(instance=ranks)
    assert found["root_ns"].sum() == end
    assert found["root_rank"].n_unique() == ranks


#: By step, the wait time that each rank causes.
@pytest.mark.parametrize(
    ("steps", "steady"),
    [
        ([{0: 9, 1: 1}] * 4, True),
        ([{0: 9}, {1: 8}, {2: 9}, {3: 8}, {0: 7}, {2: 5}], False),
        ([{n % 4: 10 + n} for n in range(48)], False),
        # two of four ranks are late in a few steps
        ([{0: 9}, {1: 5}, {0: 8}, {0: 0}], True),
        # one step has nearly all
        ([{0: 900}, {1: 2}, {2: 2}, {3: 1}], True),
        ([{n % 4: 5, 0: 6} for n in range(12)], True),
    ],
)
def test_a_steady_straggler_is_not_by_chance(steps: list[dict[int, int]], steady: bool) -> None:
    rows = [(n, rank, ns) for n, one in enumerate(steps) for rank, ns in one.items()]
    waits = pl.DataFrame(rows, schema=["step", "rank", "ns"], orient="row")
    top = waits.group_by("rank").agg(pl.col("ns").sum()).sort("ns", "rank")["rank"][-1]
    assert is_steady(waits, top, 4) == steady
