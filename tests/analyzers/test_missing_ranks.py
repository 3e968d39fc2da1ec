"""Recordings of some ranks of a job: what seems slow may be wait time for the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, device, step, trace
from diagnosing import diagnosis

import traceanalyzer as ta
from traceanalyzer.trace import Device, Trace

RANKS = sorted((Path(__file__).parents[2] / "fixtures/nccl_8ranks").glob("rank*"))


@pytest.mark.sample(4, "complete")
@pytest.mark.parametrize(
    ("given", "complete"),
    [(4, False), (1, False), (7, False), (8, True)],
)
def test_slow_collectives_are_a_guess_without_all_ranks(given: int, complete: bool) -> None:
    comm = ta.comm_outliers(RANKS[:given])
    assert comm.has_all_ranks == complete
    found = {one.id: one for one in diagnosis(*RANKS[:given]).findings}
    slow = found.get("slow-collectives") or found["collective-outliers"]
    assert (slow.confidence != "low") == complete
    assert (slow.severity == "critical") == complete
    assert ("missing-ranks" in found) != complete


@pytest.mark.matrix
def test_the_bar_separates_transfers_with_all_ranks_only() -> None:
    names = []
    for given in (1, 4, 8):
        budget = diagnosis(*RANKS[:given]).budget
        rows = budget.filter(part="exposed communication")
        names.append(rows["name"].to_list())
    wait = "wait time for other ranks"
    assert names == [
        ["communication, wait included"],
        [wait, "transfer, and wait for missing ranks"],
        [wait, "transfer"],
    ]


@pytest.mark.matrix
def test_small_messages_are_no_slow_link_without_all_ranks(shared: Path) -> None:
    paths = sorted((shared / "data/chrome/kineto/dlrm_8ranks").glob("worker*"))
    few = ta.comm_outliers(paths[:2])
    assert not few.has_all_ranks
    assert few.slow_links["link_gbps"].null_count() == 0
    assert "slow-link" not in {one.id for one in ta.diagnose(paths[:2]).findings}


def _two_of_four(times: tuple[int, ...]) -> list[Trace]:
    """Ranks 0 and 1 of four: each step computes, then reduces 64 MiB so many times."""
    about = {
        "dtype": "float", "elements_in": 1 << 24, "elements_out": 1 << 24, "group": "0",
        "group_size": 4, "group_ranks": "[0, 1, 2, 3]",
    }  # fmt: skip
    events, at = [], 0
    for number in range(6):
        begin = at
        for nth, took in enumerate(times):
            events.append(device(GEMM, at, 4 * MS))
            seq = number * len(times) + nth
            events.append(device(ALL_REDUCE, at + 4 * MS, took * MS, seq=seq, **about))
            at += (4 + took) * MS
        events.append(step(number, begin, at - begin))
    gpus = tuple(Device(i, "NVIDIA H100 80GB HBM3") for i in range(4))
    return [trace(events, rank, world_size=4, host="a", devices=gpus) for rank in (0, 1)]


def test_transfers_of_one_rank_of_a_job_may_be_wait_time() -> None:
    """Half of a step are all_reduces, which last until the other ranks have arrived."""
    both = _two_of_four((1, 1, 1, 1))
    alone = {one.id: one for one in ta.diagnose(both[0]).findings}["exposed-communication"]
    known = {one.id: one for one in ta.diagnose(both).findings}["exposed-communication"]
    assert (alone.confidence, alone.severity) == ("low", "warning")
    assert known.confidence == "high"
    assert "files of all ranks" in alone.advice
    assert "files of all ranks" not in known.advice


def test_a_wait_for_a_rank_that_was_not_recorded_is_no_slow_link() -> None:
    """Three of four collectives of one size take 3 ms, the last 1 ms, as fast as the link."""
    found = {one.id: one for one in ta.diagnose(_two_of_four((3, 3, 3, 1))).findings}
    assert "slow-link" not in found
    # four times 1 ms, the last of which nothing can overlap
    assert found["exposed-communication"].cost_ns == 4 * MS
    missing = found["missing-ranks"]
    # three times 2 ms of a step of 26 ms
    assert missing.cost_ns == 6 * MS
    assert missing.cost_frac == pytest.approx(6 / 26)


def test_collectives_that_are_slow_each_time_are_a_slow_link_without_all_ranks() -> None:
    found = {one.id: one for one in ta.diagnose(_two_of_four((3, 3, 3, 3))).findings}
    assert found["slow-link"].confidence == "low"
    assert found["missing-ranks"].cost_ns is None
