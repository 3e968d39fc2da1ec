"""Findings: each rule on a result with its fault, thresholds, and skipped checks."""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import shlex
import shutil
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest
from comm_traces import MS, device, host, trace
from conftest import ROOT, once
from diagnosing import BY_ID, diagnosis, measured, measurements, results
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.base import Examination
from traceanalyzer.analyzers.common.step_marks import INFERRED_STEPS
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.cli import job as command
from traceanalyzer.errors import InputError, OptionError
from traceanalyzer.findings.judge import RULES, judge, with_thresholds
from traceanalyzer.findings.rule import Answers, Measured, Rule
from traceanalyzer.frames import intervals
from traceanalyzer.result import SEVERITIES, Confidence
from traceanalyzer.run import pieces as opened

FIXTURES = ROOT / "fixtures"
RANKS = FIXTURES / "nccl_8ranks"


@pytest.fixture(scope="module")
def late() -> ta.Diagnosis:
    return diagnosis(RANKS)


def find(result: ta.Diagnosis, rule: str) -> ta.Finding:
    """A finding, or the effect of one."""
    every = [one for root in result.diagnosis for one in (root, *root.effects)]
    return next(one for one in every if one.id == rule)


def test_golden(run_cli: Any, golden: Any) -> None:
    done = run_cli("diagnose", "fixtures/nccl_8ranks", "-q", cwd=ROOT)
    golden("diagnose/nccl_8ranks.txt", done.stdout)
    mixed = run_cli(
        "diagnose", "fixtures/memory/oom.pickle", "fixtures/py_spy/native.raw.txt", "-q", cwd=ROOT
    )
    golden("diagnose/mixed.txt", mixed.stdout)


def test_rules_have_unique_ids_and_ordered_thresholds() -> None:
    assert len(BY_ID) == len(RULES)
    for rule in RULES:
        levels = [rule.levels[name] for name in SEVERITIES if name in rule.levels]
        assert levels, rule.id
        assert levels == sorted(levels), rule.id
        assert rule.looks_for
        assert rule.measure


def test_command_severities() -> None:
    assert command.SEVERITIES == SEVERITIES


def test_analyses_of_rules_are_registered() -> None:
    from traceanalyzer.analyzers.registry import in_report

    assert {rule.analysis for rule in RULES} <= {entry.name for entry in in_report()}


@pytest.mark.matrix
def test_lost_time_is_idle_time_plus_exposed_communication_and_copies() -> None:
    """Each moment belongs to one cause: the causes add up to the times of other analyses."""
    time, idle = Answers(results(RANKS)).time, once(ta.gpu_idle, RANKS)
    columns = [*(f"{cause}_ns" for cause in causes.CAUSES), "exposed_communication_ns"]
    copies = ta.overlap(RANKS).steps["exposed_memory_ns"].sum()
    assert time.losses["lost_ns"].sum() == sum(idle.steps[name].sum() for name in columns) + copies
    rows = time.losses.select("path", "rank", "device", "start", "end")
    assert intervals.crowded(rows, ("path", "rank", "device")).is_empty()
    assert time.whole_ns == idle.step_ns


def test_wait_time_belongs_to_cause_of_delay(late: ta.Diagnosis) -> None:
    """The fixture: the DataLoader of rank 5 is slow in every third step; one collective is slow."""
    idle, comm = (once(analysis, RANKS) for analysis in (ta.gpu_idle, ta.comm_outliers))
    loading = find(late, "data-loading")
    assert loading.rank == 5
    idle_ns = idle.steps["dataloading_ns"].sum()
    waited = comm.ranks.filter(rank=5)["imposed_ns"].item()
    total = loading.cost_ns * idle.steps.height
    assert total == pytest.approx(idle_ns + waited, rel=0.01)
    assert loading.cost_frac == pytest.approx(total / idle.step_ns, rel=1e-6)
    assert {one.id for one in loading.effects} == {"straggler", "uneven-steps"}
    assert all(not one.advice for one in loading.effects)
    slow = comm.collectives.filter("slow").rows(named=True)
    over = sum(
        (row["transfer_ns"] - row["transfer_ns"] / row["slow_factor"]) * row["ranks"]
        for row in slow
    )
    cost = find(late, "slow-collectives").cost_ns
    assert cost == pytest.approx(over / idle.steps.height, rel=1e-3)
    exposed = find(late, "exposed-communication").cost_ns * idle.steps.height
    whole = idle.steps["exposed_communication_ns"].sum()
    waits = comm.totals.total_wait_ns
    assert exposed == pytest.approx(whole - waits - over, rel=0.01)


def test_findings_do_not_overlap_in_time(late: ta.Diagnosis) -> None:
    frames = [one.intervals.with_columns(id=pl.lit(one.id)) for one in late.diagnosis]
    rows = pl.concat(frames).rename({"start_ns": "start", "end_ns": "end"})
    assert intervals.crowded(rows, ("rank", "device")).is_empty()


def test_uneven_steps_cost(late: ta.Diagnosis) -> None:
    each = ta.steps(RANKS).counted.unique(["rank", "number"])
    over = 0.0
    for of_rank in each.partition_by("rank"):
        fast, slow = np.split(of_rank["duration_ns"].sort().to_numpy(), [3])
        is_half = slow[0] > 1.1 * fast[2] and fast[2] < 1.1 * fast[0]
        usual = np.median(fast if is_half else of_rank["duration_ns"])
        over += sum(max(0, one - usual) for one in of_rank["duration_ns"])
    cost = find(late, "uneven-steps").cost_ns
    assert cost == pytest.approx(over / each.height, abs=1)


def test_findings_are_sorted_by_severity_then_cost(late: ta.Diagnosis) -> None:
    order = [(-SEVERITIES.index(f.severity), -(f.cost_frac or 0)) for f in late.diagnosis]
    assert order == sorted(order)
    assert late.worst == late.diagnosis[0].severity == "critical"


@pytest.mark.parametrize("cause", causes.CAUSES)
def test_each_cause_of_idle_time_has_a_rule(cause: str) -> None:
    """Assign all idle time of a real result to one cause."""
    whole = results(RANKS)["gpu_idle"]
    is_idle = pl.col("cause").cast(pl.String).is_in(causes.CAUSES)
    moved = pl.when(is_idle).then(pl.lit(cause)).otherwise(pl.col("cause").cast(pl.String))
    lost = whole.lost.with_columns(cause=moved)
    (rule,) = (rule for rule in RULES if getattr(rule.function, "args", ()) == (cause,))
    one = measured(rule.id, replace(whole, lost=lost))
    idle = whole.steps.select(pl.sum_horizontal([f"{name}_ns" for name in causes.CAUSES]).sum())
    assert one.total_ns == idle.item()
    assert one.size == pytest.approx(one.total_ns / whole.step_ns)
    assert one.advice
    assert rule.severity(1.0) == max(rule.levels, key=SEVERITIES.index)


def with_idle_time(path: Path, cause: str, frac: float) -> Any:
    """Return idle time of a file in which ``frac`` of each span is idle for one cause."""
    idle = results(path)["gpu_idle"]
    span = pl.col("end") - pl.col("start")
    end = pl.col("start") + (span * frac).cast(pl.Int64)
    lost = idle.units.select("rank", "path", "device", "pid", "start", end=end, cause=pl.lit(cause))
    return replace(idle, lost=lost, steps=idle.steps.clear())


@pytest.mark.matrix
def test_synchronisation_names_the_call() -> None:
    trace = FIXTURES / "nsys" / "training.sqlite"
    idle, launches = with_idle_time(trace, causes.SYNCHRONISATION, 0.1), ta.launches(trace)
    one = measured("synchronisation", idle, launches=launches)
    call = launches.synchronising.by_place["call"][0]
    assert any(call in sentence for sentence in one.evidence)


def test_launch_bound_evidence() -> None:
    trace = FIXTURES / "nsys" / "training.sqlite"
    waiting = {"place": ["forward", "backward", "forward", None], "waiting_ns": [150, 30, 50, 20]}
    result = ta.launches(trace)
    bound = replace(result.bound, waiting_ns=250, synchronised_ns=50, places=pl.DataFrame(waiting))
    short = replace(result.short, kernels=40, short_kernels=10)
    result = replace(result, bound=bound, short=short)
    one = measured("launch-bound", with_idle_time(trace, causes.LAUNCH, 0.25), launches=result)
    assert one.size == pytest.approx(0.25, rel=1e-6)
    check_wording(*one.evidence)
    assert not measurements("launch-bound", with_idle_time(trace, causes.UNKNOWN, 0.25))


def test_of_is_set_only_for_shares(late: ta.Diagnosis) -> None:
    for one in late.diagnosis:
        assert bool(one.of) == (one.cost_frac is not None)
    assert find(late, "exposed-communication").of == "step time"
    lone = diagnosis(RANKS / "rank0.json.gz")
    assert find(lone, "missing-ranks").of == ""


def test_uneven_memory_names_the_device() -> None:
    memory = ta.memory(FIXTURES / "memory" / "training.pickle")
    rows = [memory.devices.with_columns(rank=pl.lit(n, pl.Int32)) for n in range(4)]
    rows[2] = rows[2].with_columns(pl.col("peak_bytes") * 2)
    one = measured("uneven-memory", replace(memory, devices=pl.concat(rows)))
    assert one.size == 1
    assert "rank 2" in one.title
    assert not measurements("uneven-memory", replace(memory, devices=pl.concat(rows[:2])))


def test_nearly_full_memory_is_a_share_of_outliers() -> None:
    comm = ta.comm_outliers(RANKS)
    rows = [(1, 0.99, 99, True), (2, 0.5, 50, False)]
    memory = pl.DataFrame(
        rows, schema=["id", "taken_frac", "taken_bytes", "near_full"], orient="row"
    )
    one = measured("nearly-full-memory", replace(comm, memory=memory))
    assert (one.size, one.cost_frac, one.cost_bytes) == (0.5, 0.99, 99)
    assert not measurements("nearly-full-memory", comm)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("name", "rule", "severity"),
    [
        ("memory/leak.pickle", "memory-growth", "warning"),
        ("memory/oom.pickle", "out-of-memory", "critical"),
        ("composer", "full-host-memory", "warning"),
        ("composer", "swapping", "warning"),
        ("composer", "busy-disk", "warning"),
        ("composer", "busy-processors", "warning"),
        ("composer", "dropped-events", "warning"),
        ("composer", "time-between-steps", "critical"),
        ("nsys/training.sqlite", "exposed-copies", "warning"),
        ("py_spy/native.raw.txt", "hot-line", "info"),
    ],
)
def test_fixtures_have_expected_findings(name: str, rule: str, severity: str) -> None:
    assert find(diagnosis(FIXTURES / name), rule).severity == severity


@pytest.mark.matrix
def test_inputs_of_several_formats(late: ta.Diagnosis) -> None:
    """Each check uses the files that have its data."""
    stacks = FIXTURES / "py_spy/native.raw.txt"
    result = ta.diagnose([FIXTURES / "memory/leak.pickle", stacks, RANKS])
    rules = {one.id for one in result.diagnosis}
    assert {"data-loading", "memory-growth", "hot-line"} <= rules
    assert find(result, "straggler") == find(late, "straggler")


@pytest.mark.matrix
def test_data_loading_share_matches_tensorboard_plugin(shared: Path) -> None:
    truth = json.loads((shared / "oracle/chrome/resnet50_dataloader_tb_plugin.json").read_text())
    for name, key in (("workers0", "w0"), ("workers4", "w4")):
        file = shared / f"data/chrome/kineto/resnet50_dataloader_{name}.json.gz"
        loading = [f for f in ta.diagnose(file).diagnosis if f.id == "data-loading"]
        costs = dict(truth[key]["avg_costs"])
        share = costs["DataLoader"] / costs["Total"]
        assert bool(loading) == (share > 0.05)
        for one in loading:
            assert one.cost_frac == pytest.approx(share, abs=0.03)
            # steps with four workers are 16.7 % shorter, with the profiler; without it, the GPU has
            # work for all but 9 % of a step (98.5 of 108.2 ms)
            assert 0.03 < (one.gain_frac or 0) < 0.09


def test_slow_loader_on_cpu_is_critical(shared: Path) -> None:
    result = ta.diagnose(shared / "data/chrome/kineto_ddp_cpu/slow_loader")
    assert find(result, "data-loading").severity == "critical"


# --- thresholds ------------------------------------------------------------------------------


def test_thresholds_change_findings() -> None:
    assert not ta.diagnose(
        FIXTURES / "memory/leak.pickle",
        thresholds=["memory-growth=50%", "uneven-steps=1", "memory-fragmentation=0.9"],
    ).diagnosis
    grave = ta.diagnose(FIXTURES / "memory/leak.pickle", thresholds="memory-growth:critical=1%")
    assert find(grave, "memory-growth").severity == "critical"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("late=5%", "unknown rule 'late'"),
        ("straggler", "invalid threshold"),
        ("straggler=", "invalid threshold"),
        ("straggler=-1", "invalid threshold"),
        ("straggler=nan", "invalid threshold"),
        ("straggler=inf", "invalid threshold"),
        ("straggler:bad=1", "unknown severity 'bad'"),
    ],
)
def test_invalid_thresholds(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        with_thresholds([text])


def test_threshold_without_severity_is_the_lowest() -> None:
    rules = {rule.id: rule for rule in with_thresholds(["straggler=1%", "hot-line=2"])}
    assert rules["straggler"].levels == {"warning": 0.01, "critical": 0.2}
    assert rules["hot-line"].levels == {"info": 2}


@pytest.mark.parametrize(
    ("size", "severity"), [(0.099, None), (0.1, "warning"), (0.2, "warning"), (0.3, "critical")]
)
def test_threshold_is_inclusive(size: float, severity: str | None) -> None:
    rule = Rule("r", "a", "x", "y", {"warning": 0.1, "critical": 0.3}, lambda *_: ())
    assert rule.severity(size) == severity


# --- skipped checks ---------------------------------------------------------------------------


def test_checks_without_data_are_skipped(late: ta.Diagnosis) -> None:
    rows = {row["rule"]: row for row in late.rules.rows(named=True)}
    assert rows["memory-growth"]["status"] == "skipped"
    assert "profile_memory=True" in rows["memory-growth"]["why"]
    assert rows["launch-bound"]["status"] == "passed"
    assert rows["straggler"]["status"] == "failed"
    check_wording(*late.notes)


def test_verdict_without_findings() -> None:
    missing = dict.fromkeys((rule.analysis for rule in RULES), "no data")
    nothing = judge(Examination({}, missing, (), ()))
    check_wording(nothing.verdict)
    assert nothing.worst is None
    calm = ta.diagnose(FIXTURES / "py_spy/native.raw.txt", thresholds="hot-line=99%")
    check_wording(calm.verdict)


def test_a_file_of_two_ranks_is_one_file(tmp_path: Path) -> None:
    path = Path(shutil.copy(FIXTURES / "nsys" / "training.sqlite", tmp_path))
    os.truncate(path, int(path.stat().st_size * 0.9))
    assert find(ta.diagnose(path), "dropped-events").title.startswith("The file has ")


@pytest.mark.matrix
def test_commands_in_notes_can_be_copied(tmp_path: Path) -> None:
    """Whatever the name of the folder is, and with the full stop of the sentence."""
    folder = tmp_path / "my run; echo $HOME"
    folder.mkdir()
    shutil.copy(RANKS / "rank0.json.gz", folder)
    shutil.copy(next((FIXTURES / "flight_recorder" / "missing").glob("*rank_0*")), folder)
    (note,) = (note for note in diagnosis(folder).notes if "traceanalyzer hang" in note)
    parts = shlex.split(note.partition("traceanalyzer ")[2])
    assert parts[0] == "hang"
    assert folder.samefile(parts[1])
    assert len(parts) == 2


def test_detected_steps_are_noted() -> None:
    kernels = [
        device(name, (10 * step + at) * MS, MS)
        for step in range(8)
        for at, name in enumerate(("gemm", "add", "norm", "mul", "relu"))
    ]
    detected = [note for note in ta.diagnose(trace(kernels)).notes if note == INFERRED_STEPS]
    assert len(detected) == 1
    assert INFERRED_STEPS not in diagnosis(RANKS / "rank0.json.gz").notes


def test_unreadable_files_are_noted(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"traceEvents": "none"}')
    good = FIXTURES / "py_spy/native.raw.txt"
    result = ta.diagnose([good, tmp_path / "cut.json"])
    assert any("cut.json" in note for note in result.notes)
    with pytest.raises(InputError):
        ta.diagnose(tmp_path / "cut.json")


@pytest.mark.matrix
def test_truncated_file_lowers_confidence(tmp_path: Path) -> None:
    """Missing data may have been at its end: no advice to record it, idle time is not judged."""
    text = gzip.decompress((RANKS / "rank0.json.gz").read_bytes())
    whole = json.loads(text)
    on_gpu = ("kernel", "gpu_memcpy", "gpu_memset")
    events = [one for one in whole["traceEvents"] if one.get("cat") not in on_gpu]
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps({**whole, "traceEvents": events})[:-3])
    result = ta.diagnose(cut)
    why = dict(result.rules.select("rule", "why").rows())["exposed-copies"]
    check_wording(why)
    assert not [one for one in result.diagnosis if one.analysis == "gpu_idle"]
    # missing work of a partial recording looks idle
    cut.write_bytes(text[: len(text) * 9 // 10])
    result = ta.diagnose(cut)
    idle = [one for one in result.diagnosis if one.analysis == "gpu_idle"]
    assert idle
    for one in idle:
        assert one.confidence == "low"
        check_wording(one.evidence[0])


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("inputs", "reads"),
    [
        ([RANKS / f"rank{n}.json.gz" for n in range(2)], 2),
        (FIXTURES / "nsys" / "training.sqlite", 4),  # read again: its streams wait for events
    ],
)
def test_one_trace_is_in_memory_at_a_time(
    inputs: Any, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    traces: list[weakref.ref[ta.Trace]] = []
    whole = opened.read_ranks

    def built(build: Callable[[], ta.Trace]) -> ta.Trace:
        gc.collect()
        assert [ref for ref in traces if ref() is not None] == []
        trace = build()
        traces.append(weakref.ref(trace))
        return trace

    def watched(path: str, **how: Any) -> list[Callable[[], ta.Trace]]:
        return [partial(built, build) for build in whole(path, **how)]

    monkeypatch.setattr(opened, "read_ranks", watched)
    ta.diagnose(inputs)
    assert len(traces) == reads


# --- the command -----------------------------------------------------------------------------


@pytest.mark.sample(3)
@pytest.mark.parametrize(("severity", "status"), [("info", 3), ("warning", 3), ("critical", 0)])
def test_fail_on(run_cli: Any, severity: str, status: int) -> None:
    done = run_cli(
        "diagnose", FIXTURES / "memory/leak.pickle", "--fail-on", severity, "--to", "json", "-q"
    )
    assert done.returncode == status
    answer = json.loads(done.stdout)
    assert answer["warning_count"] == 1
    assert answer["findings"][0]["id"] == "memory-growth"
    assert {row["rule"] for row in answer["rules"]} == BY_ID.keys()


def test_invalid_threshold_is_a_usage_error(run_cli: Any) -> None:
    done = run_cli("diagnose", RANKS, "--threshold", "nonsense=1")
    assert (done.returncode, done.stdout) == (2, "")
    check_wording(done.stderr)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    "paths",
    [["memory/oom.pickle", "py_spy"], [RANKS], ["nsys/training.sqlite"], ["ddp_gloo_4ranks"]],
    ids=["mixed", "ranks", "nsys", "gloo"],
)
def test_json_follows_the_schema(run_cli: Any, paths: list[str | Path]) -> None:
    schema = json.loads((ROOT / "docs/diagnosis.schema.json").read_text())
    inputs = [FIXTURES / path for path in paths]
    done = run_cli("diagnose", *inputs, "--to", "json", "-q")
    answer = json.loads(done.stdout)
    jsonschema.validate(answer, schema)
    assert len(answer["inputs"]) == answer["files"]
    named = {one["id"] for one in answer["findings"]} <= BY_ID.keys()
    assert named


def test_bar_has_the_causes_of_the_findings() -> None:
    """Large causes have their own part, also if a timeline has one state for them; so do copies."""
    events = []
    for n, call in enumerate(["cudaMalloc", "save_checkpoint", "cudaMalloc"]):
        at = n * 20 * MS
        events += [
            device("Memcpy HtoD (Pageable -> Device)", at, 2 * MS, kind="gpu_memcpy"),
            device("gemm", at + 2 * MS, 8 * MS, correlation=n),
            host("cuda_runtime", "cudaLaunchKernel", at, MS, correlation=n),
            host("user_annotation" if "_" in call else "cuda_runtime", call, at + 9 * MS, 11 * MS),
        ]
    events.append(device("gemm", 60 * MS, 10 * MS, correlation=9))
    events.append(host("cuda_runtime", "cudaLaunchKernel", 60 * MS, MS, correlation=9))
    result = ta.diagnose(trace(events))
    bar = result.budget_bar
    assert bar is not None
    parts = {part.label: part.ns for part in bar.parts}
    assert parts["busy"] == 34 * MS
    assert parts["copies (exposed)"] == 6 * MS
    for label, rule, ms in (
        ("idle: memory management", "memory-management", 20),
        ("idle: checkpoints and files", "checkpoints", 10),
    ):
        assert parts[label] == find(result, rule).cost_ns == ms * MS
    assert sum(parts.values()) == 70 * MS


def test_part_of_the_longest_gap_that_has_the_cause() -> None:
    """A gap of 10 ms, of which 6 ms are in the call."""
    calls = [(0, 4), (14, 4)]
    events = [device("gemm", at * MS, ms * MS, correlation=at) for at, ms in calls]
    events += [
        host("cuda_runtime", "cudaLaunchKernel", at * MS, MS, correlation=at) for at, _ in calls
    ]
    events.append(host("cuda_runtime", "cudaMalloc", 6 * MS, 6 * MS))
    one = find(ta.diagnose(trace(events)), "memory-management")
    (text,) = (text for text in one.evidence if text.startswith("Longest gap"))
    assert re.findall(r"[\d.]+ ms", text) == ["10 ms", "6 ms"]


@pytest.mark.parametrize(("confidence", "severity"), [("low", "warning"), ("medium", "critical")])
def test_low_confidence_is_at_most_a_warning(
    confidence: Confidence, severity: str, late: ta.Diagnosis
) -> None:
    def measure(*_: object) -> list[Measured]:
        return [Measured(size=0.9, title="A problem.", confidence=confidence)]

    rule = replace(BY_ID["straggler"], function=measure, analysis="comm_outliers")
    examined = Examination(results(RANKS), {}, (), ())
    (one,) = judge(examined, [rule]).findings
    assert one.severity == severity


def test_budget_adds_up_to_the_time(late: ta.Diagnosis) -> None:
    parts = late.budget.filter(pl.col("part") != "of busy")
    assert parts["time_frac"].sum() == pytest.approx(1, abs=0.01)
    idle = ta.gpu_idle(RANKS)
    assert parts["each_ns"].sum() == pytest.approx(idle.step_ns / idle.steps.height, rel=0.01)
    calm = ta.diagnose(FIXTURES / "upgrade/before.json.gz", thresholds=[f"{r}=1e9" for r in BY_ID])
    assert "Where the time goes" in calm.table()
