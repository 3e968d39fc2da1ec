"""One thing has one number: in each command, in a report, in a gate, and in a replay.

``test_agreement`` has the parts of a step; here is what is derived from them.
"""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from comm_traces import GEMM, MS, US, device, host, step, trace
from test_agreement import OFTEN, findings, results, traces

import traceanalyzer as ta
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.analyzers.gpu_idle.result import GpuIdle
from traceanalyzer.analyzers.replay.changes import CLASSES
from traceanalyzer.findings.result import EXPOSED_COPIES, IDLE, WAIT, Diagnosis
from traceanalyzer.findings.rule import IDLE_RULES
from traceanalyzer.render.text import gain
from traceanalyzer.tools.budgets import METRICS
from traceanalyzer.trace import Trace

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LOADING = causes.NAMES[causes.DATALOADING]
#: Metrics of a gate that are parts of the time in diagnose.
PARTS = {
    "dataloading_frac": ("name", LOADING), "exposed_copies_frac": ("part", EXPOSED_COPIES),
    "exposed_frac": ("part", "exposed communication"), "idle_frac": ("part", IDLE),
}  # fmt: skip


#: Recordings, two of them of ranks whose hosts wait in collectives while their GPUs are idle.
MANY = (*OFTEN, "causes/nsys/c26_mpi_ranks.sqlite.gz", "chrome/kineto_ddp_cpu/ddp4")
of_many = pytest.mark.parametrize("name", MANY, scope="module")
#: Causes of less than a thousandth are left out; copies that block the host are added to its time.
EQUAL = 2e-3


def diagnosed(name: str) -> tuple[Diagnosis, GpuIdle]:
    found, idle = results(name)["diagnose"], results(name).get("gpu_idle")
    if not isinstance(found, Diagnosis) or not isinstance(idle, GpuIdle) or not found.budget.height:
        pytest.skip("almost no GPU work")
    return found, idle


def part(found: Diagnosis, by: str, name: str) -> float:
    """Return the share of a part of the time."""
    return float(found.budget.filter(pl.col(by) == name)["time_frac"].sum())


@of_many
def test_a_report_has_the_findings_and_shares_of_diagnose(name: str) -> None:
    page, (found, idle) = ta.report(traces(name)), diagnosed(name)
    assert page.diagnosis_result.to_dict()["findings"] == found.to_dict()["findings"]
    facts = {one.name: one.value for one in page.facts}
    assert facts["idle_frac"] == part(found, "part", IDLE)
    assert facts["idle_frac"] == pytest.approx(idle.step_idle_frac, abs=EQUAL)
    assert facts["dataloading_frac"] == part(found, "name", LOADING)
    assert facts.get("wait_frac", 0.0) == part(found, "name", WAIT)


@of_many
def test_the_bar_is_idle_as_long_as_gpu_idle_says(name: str) -> None:
    """With the waits of a host in collectives, in which the device has no work."""
    found, idle = diagnosed(name)
    assert part(found, "part", IDLE) == pytest.approx(idle.step_idle_frac, abs=EQUAL)
    in_collectives = idle.basis.frac(idle.counted_by_cause[causes.PEER])
    of_idle = found.budget.filter(part=IDLE)
    named = of_idle.filter(pl.col("name").is_in((WAIT, causes.IN_COLLECTIVES)))["time_frac"].sum()
    # less than a thousandth is one of the other causes
    assert named == pytest.approx(in_collectives, abs=2e-3)


@pytest.mark.parametrize("metric", PARTS)
@of_many
def test_a_gate_measures_the_parts_of_diagnose(metric: str, name: str) -> None:
    (found, idle), of = diagnosed(name), METRICS[metric]
    result = results(name).get(of.analysis)
    value = None if result is None else of.of(result.scalars)
    if value is None:
        pytest.skip("not measured")
    assert value == pytest.approx(part(found, *PARTS[metric]), abs=0.005)
    if metric == "idle_frac":
        assert value == idle.step_idle_frac


@pytest.mark.parametrize("name", OFTEN)
def test_a_part_of_the_bar_is_the_cost_of_its_findings(name: str) -> None:
    """Of one device: of several, waits for those with the cause belong to it, too."""
    found, idle = diagnosed(name)
    if idle.units.height > 1:
        pytest.skip("several devices")
    names = dict(found.budget.filter(pl.col("part") == IDLE).select("name", "each_ns").rows())
    for cause, rule in IDLE_RULES.items():
        of_rule = [one for one in findings(found) if one.id == rule and one.per == found.per]
        if of_rule and cause != causes.HOST_CODE:  # which has that after waits apart
            cost = sum(one.cost_ns or 0 for one in of_rule)
            assert cost == pytest.approx(names[causes.NAMES[cause]], rel=0.005), rule


def ahead(loads: tuple[int, ...]) -> Trace:
    """Return steps of a host that runs ahead after the first: loading, and kernels of 5 ms."""
    events: list[dict[str, Any]] = []
    at = free = 0
    for number, load in enumerate(loads):
        ids = {"correlation": number + 1}
        launch = at + load
        start = max(launch + 5 * US, free + US)
        events += [
            step(number, at, load + 20 * US), host("user_annotation", LOADER, at, load - 2 * US),
            host("cuda_runtime", "cudaLaunchKernel", launch, 3 * US, **ids),
            device(GEMM, start, 5 * MS, **ids),
        ]  # fmt: skip
        at, free = launch + 20 * US, start + 5 * MS
    return trace(events)


@pytest.mark.parametrize("first", [6, 20])
def test_the_begin_of_the_recording_is_no_gain_of_each_step(first: int) -> None:
    """The device has no work when the recording begins: that step waits for all of its batch."""
    recording = ahead((first * MS, *[6 * MS] * 6))
    (loading,) = (one for one in ta.diagnose(recording).findings if one.id == "data-loading")
    changes = dict(ta.what_if(recording).changes.select("change", "gain_ns").rows())
    expected = changes[CLASSES["data-loading"]]
    assert expected == pytest.approx(1 * MS, rel=0.05)
    assert loading.gain_ns == pytest.approx(expected, rel=0.01)


def test_arguments_that_were_not_read_are_a_note(shared: Any) -> None:
    path = shared / "data/chrome/kineto/a100_alexnet_cuda_sync.json.gz"
    if not path.exists():
        pytest.skip(f"no {path}")
    from_file, from_memory = ta.critical_path(path), ta.critical_path(ta.read(path))
    assert from_file.inferred < from_memory.inferred
    assert any('columns=["args"]' in note for note in from_memory.notes)
    assert not any('columns=["args"]' in note for note in from_file.notes)


def test_a_share_names_its_whole_if_that_is_not_the_recorded_step() -> None:
    recording = ahead((6 * MS,) * 6)
    (found,) = (one for one in ta.diagnose(recording).findings if one.id == "data-loading")
    assert not found.gain_of
    assert gain(found).endswith("%)")


def test_the_gain_of_a_real_loader_is_one_number(shared: Any) -> None:
    path = shared / "data/chrome/kineto/resnet50_dataloader_workers0.json.gz"
    (loading,) = (one for one in ta.diagnose(path).findings if one.id == "data-loading")
    changes = dict(ta.what_if(path).changes.select("change", "gain_ns").rows())
    assert loading.gain_ns == pytest.approx(changes[CLASSES["data-loading"]], rel=0.01)


@pytest.mark.parametrize(("pauses", "named"), [((0, 0, 0, 60, 0, 0), True), ((9,) * 40, False)])
def test_a_gain_of_the_steps_after_the_first_is_named(pauses: tuple[int, ...], named: bool) -> None:
    """Where they take longer than all steps: the gain of a step can then be more than its cost."""
    recording = ahead(tuple(MS + pause * MS for pause in pauses))
    (loading,) = (one for one in ta.diagnose(recording).findings if one.id == "data-loading")
    assert (loading.gain_ns > 1.05 * loading.cost_ns) == named
    assert ("after the first" in loading.gain_of) == named


@pytest.mark.parametrize("later", [0, 9, 10, 11])
def test_what_is_lost_once_in_the_first_step_counts(later: int) -> None:
    """Without the later pause, the first step is the only one with the cause."""
    events: list[dict[str, Any]] = []
    at = 0
    for number, pause in enumerate([10, 0, 0, 0, 0, later, 0, 0]):
        begin, at = at, at + pause * MS
        events.append(host("python_function", "train.py(9): prep", begin, pause * MS))
        for link in range(20 * number, 20 * number + 20):
            events.append(host("cuda_runtime", "cudaLaunchKernel", at, 3 * US, correlation=link))
            events.append(device(GEMM, at + 5 * US, MS, correlation=link))
            at += MS + 10 * US
        events.append(host("cuda_runtime", "cudaDeviceSynchronize", at - MS, MS))
        events.append(step(number, begin, at - begin))
    one = next(one for one in ta.diagnose(trace(events)).findings if one.id == "host-code")
    assert one.gain_ns == pytest.approx(one.cost_ns, rel=0.01)
