"""Tokens from rank to rank in all-to-alls of unequal sizes, and experts with unequal loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, MS, device, step, trace

import traceanalyzer as ta
from traceanalyzer.analyzers.comm_outliers.experts import experts as loads_of
from traceanalyzer.analyzers.comm_outliers.result import CommOutliers
from traceanalyzer.render.marks import prepare
from traceanalyzer.trace import Trace

WORLD, STEPS, WIDTH = 4, 5, 8
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
#: Rows that rank i sends to the experts of rank j.
Routed = Callable[[int, int, int], int]


def hot(_step: int, _source: int, target: int) -> int:
    return 300 if target == 2 else 100


def changing(at: int, _source: int, target: int) -> int:
    return 300 if target == at % WORLD else 100


def by_source(_step: int, source: int, target: int) -> int:
    return 10 * (source + 1) + target


#: Lists of tensors have no recorded splits, only sums.
_UNKNOWN: dict[str, Any] = {"splits_in": None, "splits_out": None}


def run(routed: Routed, ranks: Sequence[int] = range(WORLD), **more: Any) -> list[Trace]:
    """Return ranks that send tokens to experts, work 10 us for each, and send them back."""
    traces = []
    for rank in ranks:
        events = []
        for at in range(STEPS):
            start = 40 * MS * at
            matrix = [[routed(at, i, j) for j in range(WORLD)] for i in range(WORLD)]
            to, of = matrix[rank], [row[rank] for row in matrix]
            slowest = max(sum(row[j] for row in matrix) for j in range(WORLD))
            about: dict[str, Any] = {
                "collective": "all_to_all", "dtype": "float", "group": "ep", "group_size": WORLD,
                "group_ranks": str([*range(WORLD)]), "stream": 20, **more,
            }  # fmt: skip
            work = 10_000 * sum(of)
            back = start + 2 * MS + 10_000 * slowest + MS
            there = {"splits_in": str(to), "splits_out": str(of), "seq": 2 * at}
            again = {"splits_in": str(of), "splits_out": str(to), "seq": 2 * at + 1}
            there |= {"elements_in": WIDTH * sum(to), "elements_out": WIDTH * sum(of)} | about
            again |= {"elements_in": WIDTH * sum(of), "elements_out": WIDTH * sum(to)} | about
            arrival = start + 2 * MS + work
            events += [
                step(at, start, 40 * MS),
                device(SEND, start + MS, MS, **there),
                device(GEMM, start + 2 * MS, work),
                device(SEND, arrival, back - arrival, **again),
            ]
        traces.append(trace(events, rank, world_size=WORLD))
    return traces


def test_tokens_by_pair_are_those_on_the_way_to_the_experts() -> None:
    result = ta.comm_outliers(run(by_source), by="pair")
    pairs = {(row[0], row[1]): row[2:] for row in result.experts.pairs.iter_rows()}
    assert len(pairs) == WORLD**2
    for (source, target), (n, tokens, size, _) in pairs.items():
        assert (n, tokens) == (STEPS, STEPS * by_source(0, source, target))
        assert size == 4 * WIDTH * tokens
    of_mean = result.experts.pairs["of_mean"]
    assert of_mean.mean() == pytest.approx(1)
    first, *others = [table.name for table in result.view().tables]
    assert (first, "pairs" in others) == ("pairs", False)
    assert next(
        t for t in ta.comm_outliers(run(by_source)).view().tables if t.name == "pairs"
    ).detail


def test_a_heat_map_has_a_cell_per_pair_with_its_value() -> None:
    chart, *_ = ta.comm_outliers(run(hot), by="pair").view().charts()
    cells = chart.frame
    assert (chart.name, cells.height) == ("pairs", WORLD**2)
    assert (cells["end"] - cells["begin"]).to_list() == [1] * WORLD**2
    assert cells.unique(["source", "begin"]).height == WORLD**2
    assert chart.color
    hottest = cells.filter(pl.col(chart.color) == cells[chart.color].max())
    assert hottest.select("begin", chart.color).unique().rows() == [(1.5, 2)]
    assert prepare(chart).colors[2] == "#dcdc32"  # the end of a ramp


def test_loads_and_imbalance_of_both_directions() -> None:
    experts = ta.comm_outliers(run(hot)).experts
    assert experts.n == 2 * STEPS
    # rank 2 has 1,200 of 2,400 tokens, on the way to its experts and back
    assert experts.imbalance == pytest.approx(2)
    assert experts.main == (2, 2 * STEPS)
    assert experts.loads.row(0) == (2, STEPS * 1200, 2 * STEPS * 1200 * WIDTH, 2.0, 2 * STEPS)
    assert experts.steps["imbalance"].to_list() == pytest.approx([2] * STEPS)
    assert experts.places.select("place", "n", "rank", "same_frac").rows() == [
        (0, STEPS, 2, 1.0), (1, STEPS, 2, 1.0),
    ]  # fmt: skip


def test_a_rank_that_changes_is_not_persistent() -> None:
    experts = ta.comm_outliers(run(changing)).experts
    assert experts.imbalance == pytest.approx(2)
    assert experts.places["same_frac"].to_list() == pytest.approx([2 / STEPS] * 2)
    assert experts.steps["rank"].to_list() == [0, 1, 2, 3, 0]


@pytest.mark.parametrize(
    "traces",
    [
        pytest.param(run(hot, range(3)), id="a rank is missing"),
        pytest.param(run(hot, **_UNKNOWN, elements_in=None, elements_out=None), id="no sizes"),
        pytest.param(run(lambda *_: 100, **_UNKNOWN), id="equal sizes"),
    ],
)
def test_unknown_loads(traces: list[Trace]) -> None:
    experts = ta.comm_outliers(traces).experts
    assert (experts.n, experts.main) == (0, None)
    assert experts.pairs.is_empty()


def test_layers_differ_in_their_popular_experts() -> None:
    """Two layers, of which rank 0 and rank 3 have the popular experts in all steps."""
    instances = pl.DataFrame(
        [
            {
                "instance": 2 * at + layer, "rank": rank, "group": "ep", "group_size": WORLD,
                "group_ranks": None, "step": f"step {at}", "start": 2 * at + layer,
                "dtype": "float", "message_bytes": 4, "collective": "all_to_all",
                "elements_in": 6, "elements_out": 3 if rank == 3 * layer else 1, "splits_in": None,
            }
            for at in range(STEPS) for layer in range(2) for rank in range(WORLD)
        ]
    )  # fmt: skip
    experts = loads_of(instances)
    assert (experts.same_frac, experts.main) == (1.0, (0, STEPS))
    alone = loads_of(instances.with_columns(step=pl.lit(None, pl.String)))
    assert alone.same_frac == 0


@pytest.mark.parametrize("splits", [{"splits_in": "[100, 100, ...]"}, _UNKNOWN])
def test_cut_and_missing_lists_have_loads_but_no_pairs(splits: dict[str, Any]) -> None:
    result, known = ta.comm_outliers(run(hot, **splits)), ta.comm_outliers(run(hot))
    experts = result.experts
    assert result.groups["transfer_busbw_gbps"].equals(known.groups["transfer_busbw_gbps"])
    assert experts.imbalance == pytest.approx(2)
    assert experts.pairs.is_empty()
    assert experts.loads["tokens"].null_count() == WORLD


def findings(traces: list[Trace] | Path) -> dict[str, Any]:
    found = ta.diagnose(traces).findings
    return {one.id: one for root in found for one in (root, *root.effects)}


def test_the_cost_is_what_a_perfect_balance_gains() -> None:
    found = findings(run(hot))
    one = found["expert-imbalance"]
    # the experts of rank 2 take 12 ms, those of the others 4 ms, the mean is 6 ms
    assert one.cost_ns == pytest.approx(6 * MS, rel=0.01)
    assert one.rank == 2
    assert "straggler" in {effect.id for effect in one.effects}
    assert findings(run(changing))["expert-imbalance"].rank is None


def test_equal_tokens_are_no_finding() -> None:
    even = run(lambda *_: 100)
    experts = ta.comm_outliers(even).experts
    assert (experts.imbalance, experts.loads["most"].sum()) == (1, 0)
    assert "expert-imbalance" not in findings(even)
    # unequal pairs whose sums are equal
    assert "expert-imbalance" not in findings(run(lambda _, i, j: 50 + 10 * ((i + j) % WORLD)))


def test_recorded_experts(shared: Path) -> None:
    one = findings(shared / "data/causes/chrome/moe")["expert-imbalance"]
    # 4 ms of work instead of 1.75 ms; that of one of 7 counted steps shortens the one before
    assert one.cost_ns == pytest.approx(2.25 * MS)
    assert one.gain_ns == pytest.approx(2.25 * MS * 6 / 7, rel=0.01)
    assert one.gain_basis == "replay"
    result = ta.comm_outliers(shared / "data/causes/chrome/moe")
    assert isinstance(result, CommOutliers)
    assert result.experts.imbalance == pytest.approx(65_536 / 28_672)
    assert result.experts.main == (2, 16)
    tokens = dict(result.experts.loads.select("rank", "tokens").iter_rows())
    assert tokens == {2: 16 * 65_536, **dict.fromkeys((0, 1, 3), 16 * 16_384)}
    to_hot = result.experts.pairs.filter(pl.col("target") == 2)["tokens"]
    assert to_hot.to_list() == [16 * 16_384] * 4
