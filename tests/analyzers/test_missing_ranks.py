"""Recordings of some ranks of a job: what seems slow may be wait time for the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnosing import diagnosis

import traceanalyzer as ta

RANKS = sorted((Path(__file__).parents[2] / "fixtures/nccl_8ranks").glob("rank*"))


@pytest.mark.parametrize(
    ("given", "complete"),
    [(1, False), (4, False), pytest.param(7, False, marks=pytest.mark.matrix), (8, True)],
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
