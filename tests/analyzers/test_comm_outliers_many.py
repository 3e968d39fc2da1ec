"""Many ranks: names with host and GPU, and groups of ranks that cause the wait time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, strategies as st
from polars.testing import assert_frame_equal

import traceanalyzer as ta
from benchmarks.many_ranks import parts
from traceanalyzer.analyzers.comm_outliers import collectives
from traceanalyzer.analyzers.comm_outliers.chains import concentration, persistence, positions
from traceanalyzer.analyzers.comm_outliers.compute import COMM_OUTLIERS
from traceanalyzer.analyzers.common.device_work import device_work


def placed(imposed, hosts, gpus, stages=None):
    return pl.DataFrame(
        {
            "rank": pl.Series(range(len(imposed)), dtype=pl.Int32),
            "host": hosts,
            "gpu": pl.Series(gpus, dtype=pl.Int32),
            "stage": pl.Series(stages or [None] * len(imposed), dtype=pl.Int32),
            "imposed_ns": imposed,
        }
    )


@pytest.fixture(scope="module")
def late():
    """64 ranks on 8 hosts; rank 37 is late in every third step."""
    every = parts(64, 400, 10, {37: 150_000_000})
    return COMM_OUTLIERS.combine(every, COMM_OUTLIERS.options(), ())


@pytest.mark.matrix
def test_verdict_names_host_and_gpu(late):
    assert late.ranks["rank"][0] == 37
    assert late.rank_label(37) == "rank 37 (node4, GPU 5)"
    assert "37 (node4, GPU 5) is a straggler" in late.view().verdict
    few = COMM_OUTLIERS.combine(parts(16, 200, 10, {5: 150_000_000}), COMM_OUTLIERS.options(), ())
    assert few.rank_label(5) == "rank 5"
    assert "concentration" not in {table.name for table in few.view().tables}


def test_one_rank_dominates_its_host_and_gpu_index(late):
    rows = {row["part"]: row for row in concentration(late.positions).to_dicts()}
    caused = dict(late.ranks.select("rank", "imposed_ns").iter_rows())
    total = sum(caused.values())
    of_host, of_gpu = range(32, 40), range(5, 64, 8)
    assert rows["host"]["name"] == "node4"
    assert rows["host"]["imposed_ns"] == sum(caused[rank] for rank in of_host)
    assert rows["GPU index"]["name"] == "5"
    assert rows["GPU index"]["imposed_ns"] == sum(caused[rank] for rank in of_gpu)
    worst = sorted(caused.values(), reverse=True)[:2]  # 3 % of 64
    assert rows["worst 3 % of ranks"]["imposed_frac"] == pytest.approx(sum(worst) / total)


def test_straggler_is_in_every_third_step(late):
    steady = persistence(37, late.steps, late.collectives, late.arrivals)
    assert steady == (7, 20, 1, 1)


def test_ranks_with_one_visible_gpu_are_numbered_by_host():
    ranks = pl.DataFrame(
        {"rank": [0, 1, 2, 3], "host": ["a", "a", "b", "b"], "imposed_ns": [0, 0, 0, 0]},
        schema_overrides={"rank": pl.Int32},
    )
    device = [0, 0, 1, 3]
    rows = pl.DataFrame(
        {"rank": ranks["rank"], "device": device, "collective": "all_reduce", "group_ranks": None},
        schema_overrides={"group_ranks": pl.String, "device": pl.Int32},
    )
    assert positions(ranks, rows)["gpu"].to_list() == [0, 1, 1, 3]


def test_stages_are_places_in_the_group_that_sends():
    ranks = pl.DataFrame(
        {"rank": range(6), "host": None, "imposed_ns": [0, 0, 9, 0, 0, 1]},
        schema_overrides={"rank": pl.Int32, "host": pl.String},
    )
    rows = pl.DataFrame(
        {
            "rank": range(6),
            "device": 0,
            "collective": "send",
            "group_ranks": ["[0, 2, 4]", "[1, 3, 5]"] * 3,
        },
        schema_overrides={"rank": pl.Int32, "device": pl.Int32},
    )
    known = positions(ranks, rows)
    assert known["stage"].to_list() == [0, 0, 1, 1, 2, 2]
    row = concentration(known).filter(part="pipeline stage").row(0, named=True)
    assert (row["name"], row["imposed_ns"], row["ranks"]) == ("1", 9, 2)


@given(st.data())
def test_shares_are_sums_over_ranks(data):
    n = data.draw(st.integers(1, 70))
    imposed = data.draw(st.lists(st.integers(0, 10**15), min_size=n, max_size=n))
    hosts = data.draw(st.lists(st.sampled_from(["a", "b", None]), min_size=n, max_size=n))
    gpus = data.draw(st.lists(st.sampled_from([0, 1, None]), min_size=n, max_size=n))
    for row in concentration(placed(imposed, hosts, gpus)).to_dicts():
        values = np.array(imposed)
        if row["part"] == "host":
            values = values[[one == row["name"] for one in hosts]]
        elif row["part"] == "GPU index":
            values = values[[str(one) == row["name"] for one in gpus]]
        else:
            values = np.sort(values)[::-1][: max(1, -(-3 * n // 100))]
        assert row["imposed_ns"] == values.sum()
        assert row["ranks"] == len(values)
        assert row["ranks_frac"] == pytest.approx(len(values) / n)


def _ranks(folder: str) -> list[ta.Trace]:
    files = sorted((Path(__file__).parents[2] / "fixtures" / folder).glob("*rank*.json*"))
    return [ta.read(path) for path in files[:4]]


def _negative_id(trace: ta.Trace) -> ta.Trace:
    return replace(trace, events=trace.events.with_columns(external_id=-pl.col("external_id")))


def _to_peer(trace: ta.Trace) -> ta.Trace:
    return replace(trace, collectives=trace.collectives.with_columns(peer=pl.lit(1, pl.Int32)))


def _in_pairs(trace: ta.Trace) -> ta.Trace:
    kind = pl.lit("send_recv").cast(trace.collectives.schema["collective"])
    return replace(trace, collectives=trace.collectives.with_columns(collective=kind))


def _on_host(trace: ta.Trace) -> ta.Trace:
    return trace.select(pl.col("kind") != "kernel")


@pytest.mark.parametrize(
    ("folder", "change", "is_prepared"),
    [
        ("nccl_8ranks", None, True),
        ("ddp_gloo_4ranks", None, True),
        ("nccl_8ranks", _negative_id, False),
        ("nccl_8ranks", _to_peer, False),
        ("nccl_8ranks", _in_pairs, False),
        ("nccl_8ranks", _on_host, False),
    ],
)
def test_tables_of_several_small_traces_at_once_are_those_of_each(folder, change, is_prepared):
    compute = (device_work, collectives.device_work, collectives.communication, collectives.closed)
    traces, alone = (_ranks(folder) for _ in range(2))
    if change:
        traces[1], alone[1] = (change(several[1]) for several in (traces, alone))
    collectives.prepare(traces, COMM_OUTLIERS.options())
    assert [len(trace._computed) for trace in traces] == [4 * is_prepared] * 4
    for one, other in zip(traces, alone, strict=True):
        for table in compute:
            assert_frame_equal(table(one), table(other))
