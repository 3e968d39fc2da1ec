"""Exposed copies: their directions in the title and in the advice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from comm_traces import MS, device, trace
from wording import check_wording

import traceanalyzer as ta

NAMES = {
    "HtoD": "Memcpy HtoD (Pageable -> Device)",
    "DtoH": "Memcpy DtoH (Device -> Pageable)",
    "DtoD": "Memcpy DtoD (Device -> Device)",
}


def exposed_copies(*lengths: tuple[str, int], extra: str = "") -> ta.Finding:
    """Return the finding for copies of these directions and lengths in ms, and other work."""
    events, at = [device("gemm", 0, 10 * MS)], 10 * MS
    for direction, ms in lengths:
        events.append(device(NAMES[direction], at, ms * MS, kind="gpu_memcpy"))
        at += ms * MS
    recorded = trace(events)
    if extra:
        meta = replace(recorded.meta, format="chrome-trace", extra=extra)
        recorded = replace(recorded, sources=(meta,))
    (one,) = (one for one in ta.diagnose(recorded).findings if one.id == "exposed-copies")
    check_wording(one.title, one.advice)
    return one


def test_advice_for_jax_is_not_that_for_cuda() -> None:
    of_jax = exposed_copies(("DtoH", 9), extra='{"highres-ticks": true}').advice
    assert "copy_to_host_async" in of_jax
    assert "cudaMallocHost" not in of_jax
    assert "copy_to_host_async" not in exposed_copies(("DtoH", 9)).advice


@pytest.mark.matrix
@pytest.mark.sample(2)
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


def test_memsets_get_no_advice_for_copies() -> None:
    """A memset cannot overlap a copy to or from the host: less memory is set."""
    sets = [
        device("Memset (Device)", at * MS, 2 * MS, kind="gpu_memset", bytes=1 << 30)
        for at in range(10, 20, 2)
    ]
    (one,) = ta.diagnose(trace([device("gemm", 0, 10 * MS), *sets])).diagnosis
    assert (one.id, one.cost_frac) == ("exposed-copies", pytest.approx(0.5))
    assert "memsets" in one.title
    assert "non_blocking" not in one.advice
    assert "Set less memory" in one.advice


def there_and_back(
    back: int, kernel_ms: int, trips: int = 6, memory: str = "Pageable"
) -> ta.Finding:
    """Return the finding for data that is copied before and after each kernel."""
    events, at = [], 0
    for _ in range(trips):
        for name, ms, size in (("HtoD", 5, 16 << 20), ("", kernel_ms, 0), ("DtoH", 5, back)):
            work = device(NAMES[name].replace("Pageable", memory) if name else "gemm", at, ms * MS)
            events.append(work | ({"kind": "gpu_memcpy", "bytes": size} if name else {}))
            at += ms * MS
    (one,) = (one for one in ta.diagnose(trace(events)).findings if one.id == "exposed-copies")
    return one


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("back", "kernel_ms", "trips", "keeps", "bound"),
    [
        (16 << 20, 1, 6, True, True),
        (16 << 20, 30, 6, True, False),
        (4, 1, 6, False, True),
        # input and output of a program that runs once
        (16 << 20, 1, 2, False, True),
    ],
)
def test_data_that_goes_there_and_back_stays_on_the_device(
    back: int, kernel_ms: int, trips: int, keeps: bool, bound: bool
) -> None:
    one = there_and_back(back, kernel_ms, trips)
    assert ("keep the data on the device" in one.advice) == keeps
    compute = f"{kernel_ms} ms per step" if trips > 3 else f"{trips * kernel_ms} ms"
    assert (f"at most the compute time, {compute}" in one.advice) == bound


def test_round_trips_of_others(shared: Path) -> None:
    path = shared / "data/causes/nsys/c5_round_trips.sqlite.gz"
    if not path.exists():
        pytest.skip(f"no file {path}")
    first = ta.diagnose(path).findings[0]
    assert first.id == "exposed-copies"
    assert "keep the data on the device" in first.advice
    assert "400 us per step" in first.advice, "overlap gains at most the compute time"


@pytest.mark.parametrize(("memory", "most_ms"), [("Pinned", 1), ("Pageable", 10)])
def test_copies_that_can_only_be_overlapped_gain_the_compute_time(
    memory: str, most_ms: int
) -> None:
    one = there_and_back(4, 1, 6, memory)  # 6 steps
    assert one.gain_ns == most_ms * MS
