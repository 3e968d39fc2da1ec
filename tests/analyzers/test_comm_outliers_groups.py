"""Process groups that are slower than other groups of their kind, and pairs that send."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, step, trace

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.outliers import slow_pair
from traceanalyzer.trace import Trace

STEPS = 8


def groups(slow: int | None, size: int, usual_ns: int, *, name: str = "tp{}") -> list[Trace]:
    """Return four groups of two ranks; collectives of one of them take four times as long."""
    traces = []
    for rank in range(8):
        group = rank // 2
        took = usual_ns * (4 if group == slow else 1)
        about: dict[str, Any] = {
            "dtype": "float", "elements_in": size // 4, "group": name.format(group),
            "group_size": 2, "group_ranks": f"[{2 * group}, {2 * group + 1}]", "stream": 20,
        }  # fmt: skip
        events = []
        for number in range(STEPS):
            begin = number * 20 * MS
            events += [step(number, begin, 20 * MS), device(GEMM, begin, 5 * MS)]
            events.append(device(ALL_REDUCE, begin + 5 * MS, took, seq=number, **about))
        traces.append(trace(events, rank, world_size=8))
    return traces


@pytest.mark.matrix
@pytest.mark.sample(3)
@pytest.mark.parametrize("name", ["tp{}", "tp"])
@pytest.mark.parametrize(("size", "usual_ns"), [(64 << 20, 2 * MS), (1 << 20, MS), (4096, 30 * US)])
def test_a_slow_group_is_named_at_any_size(size: int, usual_ns: int, name: str) -> None:
    result = ta.comm_outliers(groups(2, size, usual_ns, name=name))
    slow = result.collectives.filter("slow")
    assert slow["group_ranks"].unique().to_list() == ["[4, 5]"]
    assert slow.height == STEPS
    assert slow["slow_factor"].to_list() == pytest.approx([4.0] * STEPS)
    assert "ranks 4, 5" in result.view().verdict
    assert not ta.comm_outliers(groups(None, size, usual_ns)).collectives["slow"].any()


@pytest.mark.matrix
def test_time_above_that_of_other_groups_is_the_cost() -> None:
    found = {one.id: one for one in ta.diagnose(groups(1, 4 << 20, 2 * MS)).findings}
    assert found["slow-collectives"].cost_ns == pytest.approx(6 * MS * 2 / 8, rel=0.01)
    assert "ranks 2, 3" in found["slow-collectives"].title


def test_bandwidth_of_sends_is_by_pair_of_ranks() -> None:
    """All pairs have one name; the second one is ten times as slow."""
    traces = []
    for rank in range(4):
        pair, took = rank // 2, MS * (10 if rank > 1 else 1)
        about = {"dtype": "float", "elements_in": 1 << 22, "group": "pp", "group_size": 2,
                 "group_ranks": f"[{2 * pair}, {2 * pair + 1}]"}  # fmt: skip
        events = [
            device("ncclDevKernel_SendRecv(x)", n * 20 * MS, took, seq=n, stream=20,
                   collective="recv" if rank % 2 else "send", **about)
            for n in range(6)
        ]  # fmt: skip
        traces.append(trace(events, rank, world_size=4))
    result = ta.comm_outliers(traces)
    sends = result.groups.filter(pl.col("collective") == "send").sort("busbw_gbps")
    assert sends["group"].to_list() == ["pp [2, 3]", "pp [0, 1]"]
    assert sends["busbw_gbps"][1] == pytest.approx(10 * sends["busbw_gbps"][0], rel=0.01)


@pytest.mark.parametrize("slow", [None, 0, 1, 2])
def test_the_slow_link_of_a_pipeline_is_by_its_fastest_transfer(slow: int | None) -> None:
    """Exchanges of a batch are not matched, and all but the fastest ones include waits."""
    traces = []
    for rank in range(4):
        events = []
        for n in range(12):
            at = n * 40 * MS
            events += [device("gemm", at, 10 * MS), step(n, at, 40 * MS)]
            for stage in {rank - 1, rank} & {0, 1, 2}:
                took = 4 * MS if stage == slow else MS // 5
                about = {"dtype": "float", "elements_in": 1 << 21, "group": f"pp{stage}",
                         "group_size": 2, "group_ranks": f"[{stage}, {stage + 1}]"}  # fmt: skip
                wait = (n % 4 > 0) * 5 * MS
                events.append(
                    device("ncclDevKernel_SendRecv(x)", at + (11 + 10 * stage) * MS, took + wait,
                           collective="coalesced", stream=20, **about)
                )  # fmt: skip
        traces.append(trace(events, rank, world_size=4))
    compared = ta.comm_outliers(traces)
    found = slow_pair(compared.instances, compared.totals.n_ranks)
    if slow is None:
        assert found is None
        return
    text, cost_ns = found or ("", 0)
    assert f"between the ranks [{slow}, {slow + 1}] takes at least 4 ms, 20 times" in text
    # that of 12 transfers, for each of 4 ranks
    assert cost_ns == pytest.approx(12 * (4 * MS - MS // 5) * 4)
