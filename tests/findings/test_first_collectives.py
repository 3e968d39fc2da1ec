"""The first collective of a process group, in which its communicator is created on the device."""

from __future__ import annotations

import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace

import traceanalyzer as ta
from traceanalyzer.trace import Trace

STEPS, RANKS = 8, 4


def rank(number: int, *, slow: tuple[int, ...], late: int | None = None, of: str = "1") -> Trace:
    """Return steps with a kernel and an all_reduce for each of two groups.

    Args:
        number: the rank.
        slow: steps in which the all_reduce takes 20 ms more than 500 us.
        late: the rank that arrives 20 ms late in these steps instead.
        of: the group of these; group 1 is used from step 2 on.
    """
    events, at = [], 0
    for index in range(STEPS):
        begin = at
        for group in ("0", "1")[: 1 + (index >= 2)]:
            ids = ({"correlation": len(events) + n} for n in (1, 2))
            is_slow = index in slow and group == of
            arrives = at + 2010 * US + (20 * MS if is_slow and number == late else 0)
            ends = at + 2510 * US + (20 * MS if is_slow else 0)
            for name, start, end, about in (
                (GEMM, at + 5 * US, at + 2005 * US, {}),
                (ALL_REDUCE, arrives + number * US, ends, {
                    "group": group, "group_ranks": "[0, 1, 2, 3]", "group_size": RANKS,
                    "seq": index, "elements_in": 1 << 20, "dtype": "float",
                }),
            ):  # fmt: skip
                known = next(ids)
                events.append(host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, **known))
                events.append(device(name, start, end - start, **known, **about))
            at = ends + 10 * US
        events.append(step(index, begin, at - begin - 5 * US))
    return trace(events, rank=number, world_size=RANKS)


def ids(**about: object) -> dict[str, ta.Finding]:
    result = ta.diagnose([rank(number, **about) for number in range(RANKS)])  # type: ignore[arg-type]
    return {one.id: one for one in result.findings}


def test_first_collective_of_a_group_is_its_setup_once() -> None:
    found = ids(slow=(2,))
    assert not {*found} & {"slow-collectives", "straggler", "collective-outliers"}
    one = found["communicator-creation"]
    assert (one.severity, one.step) == ("warning", "ProfilerStep#2")
    assert one.cost_ns == pytest.approx(20 * MS, rel=0.01)  # of each GPU, once
    assert "step" not in one.per
    comm = ta.comm_outliers([rank(number, slow=(2,)) for number in range(RANKS)])
    assert comm.collectives["setup"].sum() == 1
    assert comm.collectives["slow"].sum() == 0


@pytest.mark.parametrize(
    ("about", "expected"),
    [
        ({"slow": (5,)}, "slow-collectives"),  # not the first one
        ({"slow": (2, 5)}, "collective-outliers"),  # nor is it the only one
    ],
)
def test_other_slow_collectives_are_no_setup(about: dict[str, object], expected: str) -> None:
    found = ids(**about)
    assert expected in found
    assert "communicator-creation" not in found


def test_rank_that_arrives_late_at_the_first_collective_is_no_setup() -> None:
    assert "communicator-creation" not in ids(slow=(2,), late=3)
