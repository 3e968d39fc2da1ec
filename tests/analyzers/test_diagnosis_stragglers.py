"""Why a rank is a straggler: its kernels compared with the same kernels of the other ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from comm_traces import MS, device, step, trace

import traceanalyzer as ta
from traceanalyzer.trace import Trace

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
KERNELS = {"gemm": 4.0, "softmax": 2.0, "layer_norm": 1.0, "multi_tensor_apply_kernel": 1.0}
STEPS = 6
ABOUT = {"dtype": "float", "elements_in": 1 << 20, "group": "0", "group_size": 4}


def job(odd: Mapping[str, float], more: int = 0) -> list[Trace]:
    """Four equal ranks, but rank 2 has kernels that are longer by a factor, or more of one."""
    rank_works = [_works(odd, more) if rank == 2 else _works({}, 0) for rank in range(4)]
    last = max(sum(ns for _, ns in works) for works in rank_works)
    return [trace(list(_rank(works, last)), r, world_size=4) for r, works in enumerate(rank_works)]


def _works(odd: Mapping[str, float], more: int) -> list[tuple[str, int]]:
    names = [*KERNELS, *["gemm"] * more]
    return [(name, round(KERNELS[name] * odd.get(name, 1) * MS)) for name in names]


def _rank(works: list[tuple[str, int]], last: int) -> Iterator[dict[str, Any]]:
    for number in range(STEPS):
        begin = number * (last + MS)
        yield step(number, begin, last + MS)
        at = begin
        for name, ns in works:
            yield device(name, at, ns)
            at += ns
        yield device(ALL_REDUCE, at, begin + last + MS - at, stream=20, seq=number, **ABOUT)


def straggler(traces: list[Trace]) -> ta.Finding:
    first = ta.diagnose(traces).found[0]
    assert (first.id, first.rank) == ("late-rank", 2)
    return first


@pytest.mark.parametrize(
    ("odd", "more", "key"),
    [
        (dict.fromkeys(KERNELS, 1.5), 0, "throttled GPU"),
        ({"gemm": 2.0}, 0, "larger inputs"),
        ({}, 1, "more kernels"),
    ],
)
def test_the_reason_is_in_the_title(odd: Mapping[str, float], more: int, key: str) -> None:
    assert key in straggler(job(odd, more)).title


def test_the_factor_is_that_of_the_kernels() -> None:
    assert " 1.50 times" in straggler(job(dict.fromkeys(KERNELS, 1.5))).title


def test_the_cost_is_the_wait_time_of_the_others() -> None:
    one = straggler(job({"gemm": 2.0}))
    assert one.cost_ns == 3 * 4 * MS / 4
    assert one.cost_frac == pytest.approx(3 / 13)
