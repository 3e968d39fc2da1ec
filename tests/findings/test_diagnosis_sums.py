"""Costs of findings: each moment counts once, and a finding names the steps that lose it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from comm_traces import MS, host, step, trace
from diagnosing import diagnosis

import traceanalyzer as ta
from traceanalyzer.findings.judge import _Candidate, _chained
from traceanalyzer.findings.result import BUSY
from traceanalyzer.result import Finding
from traceanalyzer.trace import Trace

STEPS = 8


def not_useful(diagnosed: ta.Diagnosis) -> float:
    """Return the share of time that is neither compute nor operators."""
    return 1 - float(diagnosed.budget.filter(part=BUSY)["time_frac"].sum())


def costs(diagnosed: ta.Diagnosis) -> float:
    of_time = ("step time", "the recorded time")
    return sum(one.cost_frac or 0.0 for one in diagnosed.findings if one.of in of_time)


@pytest.mark.parametrize(
    "name", ["ddp_gloo_two_ranks", "loss_in_three_steps", "two_buckets_in_flight"]
)
def test_costs_are_at_most_the_lost_time(shared: Path, name: str) -> None:
    path = shared / "data/causes/chrome" / name
    if not path.exists():
        pytest.skip(f"no folder {path}")
    diagnosed = diagnosis(path)
    assert 0.5 * not_useful(diagnosed) < costs(diagnosed) <= not_useful(diagnosed) + 1e-9


def cpu_job(late: set[int]) -> list[Trace]:
    """Return two CPU ranks; in some steps rank 1 pauses for 60 ms, and rank 0 waits for it."""
    return [trace(list(_cpu_rank(rank, late)), rank, world_size=2) for rank in range(2)]


def _cpu_rank(rank: int, late: set[int]) -> Iterator[dict[str, Any]]:
    at = 0
    for number in range(STEPS):
        pause = 60 * MS if number in late else 0
        yield step(number, at, pause + 10 * MS)
        begin = at + (pause if rank else 0)
        yield host("cpu_op", "aten::mm", begin, 5 * MS)
        until = at + pause + 9 * MS
        yield host("cpu_op", "c10d::allreduce_", begin + 5 * MS, 1000)
        wait = {"ts": begin + 5 * MS + 1000, "dur": until - begin - 5 * MS - 1000}
        yield {**host("cpu_op", "_c10d_functional::wait_tensor", 0, 0), **wait}
        run = host("user_annotation", "gloo:all_reduce", begin + 5 * MS, until - begin - 5 * MS)
        yield {**run, "tid": 2, "dtype": "float", "elements_in": 1 << 18}
        at += pause + 10 * MS


@pytest.mark.parametrize("late", [{2}, {1, 4}, {1, 4, 6}])
def test_all_steps_with_the_loss_are_named(late: set[int]) -> None:
    diagnosed = ta.diagnose(cpu_job(late))
    first = diagnosed.findings[0]
    assert (first.id, first.rank) == ("host-code", 1)
    where = f"in {len(late)} of {STEPS} steps" if len(late) > 1 else "in ProfilerStep#2"
    assert where in first.title
    assert first.step == ("ProfilerStep#2" if len(late) == 1 else None)
    assert costs(diagnosed) <= not_useful(diagnosed) + 1e-9


def candidate(id_: str, cost: float, **explained: float) -> _Candidate:
    one = Finding(id_, "critical", "high", id_, (), "", "", cost_frac=cost, of="step time")
    return _Candidate(one, explained)


@pytest.mark.parametrize(
    ("candidates", "roots"),
    [
        # the largest share is of a finding that costs too little: the next one explains it
        ([candidate("a", 0.6), candidate("b", 0.1), candidate("c", 0.4, b=0.9, a=0.85)], "ab"),
        # no single one costs as much, but both together
        ([candidate("a", 0.2), candidate("b", 0.2), candidate("c", 0.4, a=0.5, b=0.5)], "ab"),
        ([candidate("a", 0.1), candidate("b", 0.1), candidate("c", 0.4, a=0.5, b=0.5)], "abc"),
        ([candidate("a", 0.4, c=1.0), candidate("c", 0.4, a=1.0)], "ac"),
    ],
)
def test_effects_of_findings(candidates: list[_Candidate], roots: str) -> None:
    assert {one.id for one in _chained(candidates)} == set(roots)
