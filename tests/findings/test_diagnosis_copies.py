"""Exposed copies: their directions in the title and in the advice."""

from __future__ import annotations

import pytest
from comm_traces import MS, device, trace
from wording import check_wording

import traceanalyzer as ta

NAMES = {
    "HtoD": "Memcpy HtoD (Pageable -> Device)",
    "DtoH": "Memcpy DtoH (Device -> Pageable)",
    "DtoD": "Memcpy DtoD (Device -> Device)",
}


def exposed_copies(*lengths: tuple[str, int]) -> ta.Finding:
    """Return the finding for copies of these directions and lengths in ms, and other work."""
    events, at = [device("gemm", 0, 10 * MS)], 10 * MS
    for direction, ms in lengths:
        events.append(device(NAMES[direction], at, ms * MS, kind="gpu_memcpy"))
        at += ms * MS
    (one,) = (one for one in ta.diagnose(trace(events)).findings if one.id == "exposed-copies")
    check_wording(one.title, one.advice)
    return one


@pytest.mark.parametrize(("main", "other"), [("HtoD", "DtoH"), ("DtoH", "HtoD")])
def test_direction_of_nearly_all_copies_is_in_the_title(main: str, other: str) -> None:
    name = {"HtoD": "host-to-device", "DtoH": "device-to-host"}
    nearly = exposed_copies((main, 9), (other, 1)).title
    assert name[main] in nearly
    assert name[other] not in nearly
    assert not any(one in exposed_copies((main, 8), (other, 2)).title for one in name.values())


def test_each_large_direction_has_its_part_and_advice() -> None:
    one = exposed_copies(("DtoH", 5), ("HtoD", 3), ("DtoD", 2))
    assert one.cost_ns == 10 * MS
    assert [one.title.count(part) for part in ("5 ms", "3 ms", "2 ms")] == [1, 1, 1]
    assert "device-to-device" in one.advice
    assert "both directions" in one.advice
