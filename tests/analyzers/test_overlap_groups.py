"""Communication by process group, by phase of training, within and between nodes."""

from __future__ import annotations

from typing import Any

import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, device, host, step, trace

import traceanalyzer as ta
from traceanalyzer.trace import Trace

MAIN, AUTOGRAD = 1, 2


def launched(kernel: str, at: int, start: int, dur: int, tid: int, **more: Any) -> list[Any]:
    ids = {"correlation": start, "pid": 1}
    call = host("cuda_runtime", "cudaLaunchKernel", at, 1000, tid=tid, correlation=start)
    return [call, device(kernel, start, dur, **ids, **more)]


def rank(number: int, *, backward: int = AUTOGRAD, hosts: bool = True) -> Trace:
    """Return a step of two groups: tp in forward and backward, dp in backward and the optimizer."""
    tp = {
        "group": "tp",
        "group_size": 2,
        "group_ranks": f"[{number // 2 * 2}, {number // 2 * 2 + 1}]",
    }
    dp = {"group": "dp", "group_size": 2, "group_ranks": f"[{number % 2}, {number % 2 + 2}]"}
    size = {"dtype": "float", "elements_in": 1024, "stream": 20}
    events = [
        step(0, 0, 20 * MS),
        *launched(GEMM, 10_000, 0, 4 * MS, MAIN),
        *launched(ALL_REDUCE, 20_000, MS, MS, MAIN, seq=0, **tp, **size),
        *launched(ALL_REDUCE, 30_000, 4 * MS, 2 * MS, backward, seq=1, **tp, **size),
        *launched(ALL_REDUCE, 40_000, 6 * MS, 3 * MS, backward, seq=0, **dp, **size),
        host("user_annotation", "Optimizer.step#AdamW.step", 5 * MS, MS),
        *launched(ALL_REDUCE, 5 * MS + 10_000, 10 * MS, 5 * MS, MAIN, seq=1, **dp, **size),
    ]
    node = f"node{number // 2}" if hosts else None
    return trace(events, number, world_size=4, host=node)


def rows(traces: list[Trace], by: Any) -> list[tuple[Any, ...]]:
    table = ta.overlap(traces, by=by).view().tables[0]
    assert table.name == "groups"
    keys = [name for name in ("group", "members", "place", "phase") if name in table.frame.columns]
    measured = ("n", "message_bytes", "communication_ns", "exposed_ns")
    return sorted(table.frame.select(*keys, *measured).rows())


def test_by_group_and_phase() -> None:
    traces = [rank(number) for number in range(4)]
    inner, outer = "within a node", "between nodes"
    result = rows(traces, "group,phase")
    assert result == sorted(
        (group, members, place, phase, 2, 2 * 4096, 2 * each, 2 * exposed)
        for group, pairs, place, parts in (
            ("tp", ("0-1", "2-3"), inner, (("forward", MS, 0), ("backward", 2 * MS, 2 * MS))),
            (
                "dp", ("0, 2", "1, 3"), outer,
                (("backward", 3 * MS, 3 * MS), ("optimizer", 5 * MS, 5 * MS)),
            ),
        )
        for members in pairs
        for phase, each, exposed in parts
    )  # fmt: skip


def test_what_is_not_known_is_not_zero() -> None:
    alone, several = ([rank(number) for number in range(n)] for n in (1, 4))
    for traces, unknown in ((alone, 4), (several, 0)):
        assert ta.overlap(traces).groups["waiting_ns"].null_count() == unknown
    columns = ta.overlap(alone, by="phase").view().tables[0].columns
    assert "waiting_ns" not in columns
    assert "message_bytes" in columns


def test_by_group_or_phase_alone() -> None:
    traces = [rank(number) for number in range(4)]
    by_group = {(row[0], row[1]): row[-2:] for row in rows(traces, "group")}
    assert by_group["tp", "0-1"] == (6 * MS, 4 * MS)
    assert by_group["dp", "1, 3"] == (16 * MS, 16 * MS)
    assert [row[:2] for row in rows(traces, "phase")] == sorted(
        [(place, phase) for place, phase in (
            ("within a node", "forward"), ("within a node", "backward"),
            ("between nodes", "backward"), ("between nodes", "optimizer"),
        )]
    )  # fmt: skip
    sums = ta.overlap(traces).groups["exposed_ns"].sum()
    assert sums == 4 * 10 * MS
    assert ta.overlap(traces).view().tables[0].name == "devices"


@pytest.mark.parametrize("backward", [AUTOGRAD, MAIN])
def test_phases_are_unknown_if_one_thread_launches_everything(backward: int) -> None:
    found = set(ta.overlap(rank(0, backward=backward)).groups["phase"])
    assert found == ({"forward", "backward"} if backward == AUTOGRAD else {"unknown"}) | {
        "optimizer"
    }


@pytest.mark.parametrize(
    ("group", "phase"),
    [
        ("forward:6-7", "forward"),
        ("pp_bwd_0", "backward"),
        ("optimizer-clip-main-grad", "optimizer"),
        ("params-all-gather:0-4", "unknown"),
        ("backward_optimizer_overlap", "backward"),
    ],
)
def test_names_of_groups_decide_if_one_thread_launches_everything(group: str, phase: str) -> None:
    events = [step(0, 0, 20 * MS), *launched(ALL_REDUCE, 10_000, MS, MS, MAIN, group=group)]
    assert ta.overlap(trace(events)).groups["phase"].to_list() == [phase]


def test_named_ranges_decide() -> None:
    events = [
        step(0, 0, 20 * MS),
        host("nvtx", "backward", 5_000, 20_000),
        *launched(ALL_REDUCE, 10_000, MS, MS, MAIN),
        *launched(GEMM, 40_000, 3 * MS, MS, MAIN),
    ]
    assert ta.overlap(trace(events)).groups["phase"].to_list() == ["backward"]


def test_without_communication_there_are_no_groups() -> None:
    result = ta.overlap(trace(launched(GEMM, 0, MS, MS, MAIN)), by="group")
    assert result.groups.is_empty()
    assert result.view().tables[0].frame.is_empty()
