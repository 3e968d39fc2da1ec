"""Gains of findings: replays of the run without the cause, and what lies off the critical path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from comm_traces import ALL_REDUCE, GEMM, MS, US, device, host, step, trace
from conftest import ROOT

import traceanalyzer as ta
from traceanalyzer.findings.result import Diagnosis
from traceanalyzer.result import Finding
from traceanalyzer.trace import Trace

STEPS = 5
LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def rank(number: int, *, pause: int, compute: int, others: int, name: str = "work") -> Trace:
    """Return steps of a pause of the host, one kernel, an all_reduce, and a synchronisation.

    Args:
        number: the rank.
        pause: time before the kernel is launched.
        compute: duration of the kernel.
        others: time from the begin of the step to the all_reduce of the other rank.
        name: annotation around the pause.
    """
    events: list[dict[str, Any]] = []
    length = max(pause + compute, others) + 200 * US
    more = {"group": "0", "group_ranks": "[0, 1]", "group_size": 2}
    for index in range(STEPS):
        at, ids = index * length, (10 * index + 1, 10 * index + 2)
        ready = at + pause + compute + 20 * US
        done = at + max(pause + compute, others) + 120 * US
        events += [
            step(index, at, length),
            host("user_annotation", name, at + US, pause - 2 * US),
            host("cuda_runtime", "cudaLaunchKernel", at + pause, 3 * US, correlation=ids[0]),
            host("cuda_runtime", "cudaLaunchKernel", at + pause + 4 * US, 3 * US,
                 correlation=ids[1]),
            host("cuda_runtime", "cudaDeviceSynchronize", at + pause + 8 * US,
                 done + 5 * US - at - pause - 8 * US),
            device(GEMM, at + pause + 5 * US, compute, correlation=ids[0]),
            device(ALL_REDUCE, ready, done - ready, correlation=ids[1], seq=index, **more),
        ]  # fmt: skip
    return trace(events, rank=number)


def by_id(result: Diagnosis) -> dict[str, Finding]:
    return {one.id: one for one in result.findings}


def off_path(result: Diagnosis) -> list[str]:
    return [note for note in result.input_notes if note.startswith("Off the critical path")]


def grouped(number: int, *, slow: int, steps: int = 3) -> Trace:
    """Return one of four ranks of steps with an all_reduce of two groups; one is slow."""
    events: list[dict[str, Any]] = []
    at = called = 0

    def launch(name: str, until: int, **about: Any) -> None:
        nonlocal at, called
        ids = {"correlation": len(events) + 1}
        events.append(host("cuda_runtime", "cudaLaunchKernel", called, 5 * US, **ids))
        events.append(device(name, max(at, called + 6 * US), until - at, **ids, **about))
        at, called = until, called + 10 * US

    data, model = ([0, 1], [2, 3])[number // 2], [number % 2, number % 2 + 2]
    for index in range(steps):
        begin, end = called, index * (10 + slow) * MS
        for ranks, until in ((model, 5), (data, 10 + (slow if number > 1 else 2))):
            launch(GEMM, at + 5 * MS - US)
            about = {"group": str(ranks), "group_ranks": str(ranks), "group_size": 2, "seq": index}
            launch(ALL_REDUCE, end + until * MS, stream=20, **about)
        events.append(step(index, begin, called - begin))
    return trace(events, rank=number, world_size=4)


def test_a_gain_is_a_share_of_the_longest_rank() -> None:
    """Ranks that wait in the next step for a slow group have a shorter last step."""
    result = ta.diagnose([grouped(number, slow=12) for number in range(4)])
    first = result.findings[0]
    assert (first.id, first.gain_basis) == ("exposed-communication", "replay")
    assert first.gain_frac == pytest.approx(12 / 22, rel=0.03)
    assert any("exceed" in note for note in result.input_notes)


def test_gain_of_a_pause_of_the_slowest_rank() -> None:
    fast = rank(0, pause=100 * US, compute=3 * MS, others=5 * MS, name=LOADER)
    slow = rank(1, pause=2 * MS, compute=3 * MS, others=3100 * US, name=LOADER)
    one = by_id(ta.diagnose([fast, slow]))["data-loading"]
    assert (one.gain_basis, one.rank) == ("replay", 1)
    assert one.gain_ns == pytest.approx(1.9 * MS, rel=0.06)
    assert one.gain_frac == pytest.approx(1.9 / 5.2, rel=0.06)


def test_pause_while_another_rank_computes_is_off_the_critical_path() -> None:
    paused = rank(0, pause=2 * MS, compute=3 * MS, others=20 * MS)
    busy = rank(1, pause=20 * US, compute=19980 * US, others=5 * MS)
    result = ta.diagnose([paused, busy])
    assert "host-code" not in by_id(result)
    assert len(off_path(result)) == 1
    assert dict(result.rules[["rule", "status"]].iter_rows())["host-code"] == "passed"


def test_gain_is_that_of_the_run_without_the_pause() -> None:
    paused, fixed = (
        ta.diagnose([rank(number, pause=pause, compute=3 * MS, others=pause + 3 * MS, name=LOADER)
                     for number in range(2)])
        for pause in (2 * MS, 100 * US)
    )  # fmt: skip
    gain = by_id(paused)["data-loading"].gain_ns
    steps = [float(ta.steps(rank(0, pause=pause, compute=3 * MS, others=pause + 3 * MS))
                   .ranks["median_ns"][0]) for pause in (2 * MS, 100 * US)]  # fmt: skip
    assert gain == pytest.approx(steps[0] - steps[1], rel=0.06)
    assert "data-loading" not in by_id(fixed)


def test_cost_is_a_bound_where_nothing_can_be_replayed() -> None:
    work = [device(GEMM, number * MS, MS // 2) for number in range(20)]
    result = ta.diagnose(trace(work))
    timed = [one for one in result.findings if one.cost_ns]
    assert timed
    assert all((one.gain_basis, one.gain_ns) == ("bound", one.cost_ns) for one in timed)
    assert any("not recorded" in note for note in result.input_notes)


@pytest.mark.matrix
def test_gains_are_equal_from_summaries(tmp_path: Path) -> None:
    inputs = [str(path) for path in sorted((ROOT / "fixtures/nccl_8ranks").glob("*.json*"))][:3]
    ta.summarize(inputs, tmp_path)
    findings = [ta.diagnose(given).to_dict()["findings"] for given in (inputs, tmp_path)]
    assert findings[0] == findings[1]
    assert any(one["gain_basis"] == "replay" for one in findings[0])


OFF_PATH = ROOT.parent / "shared/data/causes/chrome/offpath"


@pytest.mark.matrix
@pytest.mark.skipif(not OFF_PATH.exists(), reason="../shared/data is missing")
def test_idle_time_of_the_first_stage_gains_nothing() -> None:
    result = ta.diagnose(OFF_PATH)
    assert by_id(result).keys() == {"straggler"}
    assert len(off_path(result)) == 2
