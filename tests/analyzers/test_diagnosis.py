"""Findings: each rule on an answer that shows its fault, thresholds, what cannot be told."""

from __future__ import annotations

import gc
import gzip
import json
import re
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer import run as examination
from traceanalyzer.analyzers.diagnosis.judge import RULES, judge, with_thresholds
from traceanalyzer.analyzers.diagnosis.rule import Measured, Rule
from traceanalyzer.analyzers.gpu_idle import causes
from traceanalyzer.cli import job as command
from traceanalyzer.errors import InputError, OptionError
from traceanalyzer.result import SEVERITIES, Result

FIXTURES = ROOT / "fixtures"
RANKS = FIXTURES / "nccl_8ranks"
BY_ID = {rule.id: rule for rule in RULES}


@pytest.fixture(scope="module")
def late() -> ta.Diagnosis:
    return ta.diagnose(RANKS)


def found(result: ta.Diagnosis, rule: str) -> ta.Finding:
    return next(one for one in result.diagnosis if one.rule == rule)


def measured(rule: str, result: Result, **others: Result) -> Measured:
    (one,) = BY_ID[rule].judge(result, others)
    return one


def test_golden(run_cli: Any, golden: Any) -> None:
    done = run_cli("diagnose", "fixtures/nccl_8ranks", "-q", cwd=ROOT)
    golden("diagnose/nccl_8ranks.txt", done.stdout)
    mixed = run_cli(
        "diagnose", "fixtures/memory/oom.pickle", "fixtures/py_spy/native.raw.txt", "-q", cwd=ROOT
    )
    golden("diagnose/mixed.txt", mixed.stdout)


def test_rules_have_names_of_their_own_and_thresholds_in_order() -> None:
    assert len(BY_ID) == len(RULES)
    for rule in RULES:
        levels = [rule.levels[name] for name in SEVERITIES if name in rule.levels]
        assert levels, rule.id
        assert levels == sorted(levels), rule.id
        assert rule.looks_for
        assert rule.measure


def test_the_command_knows_the_severities() -> None:
    assert command.SEVERITIES == SEVERITIES


def test_every_analysis_of_a_rule_is_asked() -> None:
    from traceanalyzer.analyzers.registry import in_report

    assert {rule.analysis for rule in RULES} <= {entry.name for entry in in_report()}


def test_numbers_are_those_of_the_analyses(late: ta.Diagnosis) -> None:
    comm, idle, over = ta.comm_outliers(RANKS), ta.gpu_idle(RANKS), ta.overlap(RANKS)
    worst = comm.ranks.row(0, named=True)
    rank = found(late, "late-rank")
    assert (rank.cost_ns, rank.cost_frac) == (worst["imposed_ns"], worst["late_frac"])
    assert f"Rank {worst['rank']}" in rank.title
    assert any("DataLoader" in one for one in rank.evidence)
    loading = found(late, "data-loading")
    assert loading.cost_frac == idle.step_dataloading_frac
    assert loading.cost_ns == idle.steps["dataloading_ns"].sum()
    exposed = found(late, "exposed-communication")
    assert exposed.cost_ns == over.scalars["exposed_communication_ns"]


def test_slow_collectives_by_hand(late: ta.Diagnosis) -> None:
    slow = ta.comm_outliers(RANKS).collectives.filter("slow").rows(named=True)
    over = sum(
        (row["pure_ns"] - row["pure_ns"] / row["slow_factor"]) * row["ranks"] for row in slow
    )
    assert found(late, "slow-collectives").cost_ns == pytest.approx(over, abs=1)


def test_uneven_steps_by_hand(late: ta.Diagnosis) -> None:
    each = ta.steps(RANKS).counted.unique(["rank", "number"])
    over = 0.0
    for own in each.partition_by("rank"):
        usual = own["duration_ns"].median()
        over += sum(max(0, one - usual) for one in own["duration_ns"])
    assert found(late, "uneven-steps").cost_ns == pytest.approx(over, abs=1)


def test_the_gravest_come_first_then_the_costliest(late: ta.Diagnosis) -> None:
    order = [(-SEVERITIES.index(f.severity), -(f.cost_frac or 0)) for f in late.diagnosis]
    assert order == sorted(order)
    assert late.worst == late.diagnosis[0].severity == "critical"


@pytest.mark.parametrize("cause", causes.CAUSES)
def test_each_cause_of_idleness_has_a_rule(cause: str) -> None:
    """All idleness of a real answer, said to be of one cause."""
    whole = ta.gpu_idle(RANKS)
    columns = [f"{name}_ns" for name in causes.CAUSES]
    moved = {
        name: getattr(whole, name).with_columns(
            pl.sum_horizontal(columns).alias(f"{cause}_ns")
            if f"{cause}_ns" == name_
            else pl.lit(0).alias(name_)
            for name_ in columns
        )
        for name in ("units", "steps")
    }
    rule = next(
        rule
        for rule in RULES
        if rule.function.__class__.__name__ == "partial" and rule.function.args == (cause,)
    )  # type: ignore[attr-defined]
    one = measured(rule.id, replace(whole, **moved))
    assert one.cost_ns == moved["steps"][f"{cause}_ns"].sum()
    assert one.size == pytest.approx(one.cost_ns / whole.step_ns)
    assert one.advice
    assert rule.severity(1.0) == max(rule.levels, key=SEVERITIES.index)


def test_synchronisation_names_the_call() -> None:
    trace = FIXTURES / "nsys" / "training.sqlite"
    idle, launches = ta.gpu_idle(trace), ta.launches(trace)
    waiting = idle.steps.with_columns(synchronisation_ns=pl.col("dataloading_ns"))
    one = measured("synchronisation", replace(idle, steps=waiting), launches=launches)
    call = launches.synchronising["call"][0]
    assert any(call in sentence for sentence in one.evidence)


def test_launch_bound_by_hand() -> None:
    trace = FIXTURES / "nsys" / "training.sqlite"
    launches, idle = ta.launches(trace), ta.gpu_idle(trace)
    waiting = {"place": ["forward", "backward", "forward", None], "waiting_ns": [150, 30, 50, 20]}
    numbers = {"waiting_ns": 250, "kernels": 40, "short_kernels": 10, "synchronised_ns": 50}
    result = replace(launches, **numbers, places=pl.DataFrame(waiting))
    span = pl.col("end") - pl.col("start")
    units = idle.units.with_columns(launch_overhead_ns=span // 8, short_launch_ns=span // 8)
    one = measured(
        "launch-bound", replace(idle, units=units, steps=idle.steps.clear()), launches=result
    )
    assert one.size == one.cost_frac == pytest.approx(0.25, rel=1e-6)
    assert one.cost_ns == 2 * int(units["short_launch_ns"].sum())
    check_wording(*one.evidence)
    nothing = units.with_columns(launch_overhead_ns=0, short_launch_ns=0)
    without = replace(idle, units=nothing, steps=idle.steps.clear())
    assert not list(BY_ID["launch-bound"].judge(without, {}))


def test_only_a_share_is_of_something(late: ta.Diagnosis) -> None:
    for one in late.diagnosis:
        assert bool(one.of) == (one.cost_frac is not None)
    assert found(late, "exposed-communication").of == "the devices' time"
    lone = ta.diagnose(RANKS / "rank0.json.gz")
    assert found(lone, "missing-ranks").of == ""


def test_memory_that_differs_between_devices() -> None:
    memory = ta.memory(FIXTURES / "memory" / "training.pickle")
    rows = [memory.devices.with_columns(rank=pl.lit(n, pl.Int32)) for n in range(4)]
    rows[2] = rows[2].with_columns(pl.col("peak_bytes") * 2)
    one = measured("uneven-memory", replace(memory, devices=pl.concat(rows)))
    assert one.size == 1
    assert "rank 2" in one.title
    assert not list(BY_ID["uneven-memory"].judge(replace(memory, devices=pl.concat(rows[:2])), {}))


def test_nearly_full_memory_is_a_share_of_the_outliers() -> None:
    comm = ta.comm_outliers(RANKS)
    rows = [(1, 0.99, 99, True), (2, 0.5, 50, False)]
    memory = pl.DataFrame(
        rows, schema=["id", "taken_frac", "taken_bytes", "near_full"], orient="row"
    )
    one = measured("nearly-full-memory", replace(comm, memory=memory))
    assert (one.size, one.cost_frac, one.cost_bytes) == (0.5, 0.99, 99)
    assert not list(BY_ID["nearly-full-memory"].judge(comm, {}))


@pytest.mark.parametrize(
    ("name", "rule", "severity"),
    [
        ("memory/leak.pickle", "memory-growth", "warning"),
        ("memory/oom.pickle", "out-of-memory", "critical"),
        ("composer", "full-host-memory", "warning"),
        ("composer", "swapping", "warning"),
        ("composer", "busy-disk", "warning"),
        ("composer", "busy-processors", "warning"),
        ("composer", "lost-events", "warning"),
        ("composer", "time-between-steps", "critical"),
        ("nsys/training.sqlite", "exposed-copies", "warning"),
        ("py_spy/native.raw.txt", "hot-line", "info"),
    ],
)
def test_fixtures_show_their_faults(name: str, rule: str, severity: str) -> None:
    assert found(ta.diagnose(FIXTURES / name), rule).severity == severity


def test_all_fixtures_at_once_are_told_apart() -> None:
    """Formats of all sorts in one go: each question is answered by the files that can."""
    result = ta.diagnose([FIXTURES / "memory/leak.pickle", FIXTURES / "py_spy", RANKS])
    rules = {one.rule for one in result.diagnosis}
    assert {"late-rank", "memory-growth", "hot-line"} <= rules
    steps = found(result, "uneven-steps")
    assert steps == found(ta.diagnose(RANKS), "uneven-steps")  # those of the snapshot are others
    assert found(result, "late-rank").cost_ns == found(ta.diagnose(RANKS), "late-rank").cost_ns


def test_the_loaders_share_is_near_that_of_the_tensorboard_plugin(shared: Path) -> None:
    truth = json.loads((shared / "oracle/chrome/resnet50_dataloader_tb_plugin.json").read_text())
    for name, key in (("workers0", "w0"), ("workers4", "w4")):
        file = shared / f"data/chrome/kineto/resnet50_dataloader_{name}.json.gz"
        loading = [f for f in ta.diagnose(file).diagnosis if f.rule == "data-loading"]
        costs = dict(truth[key]["avg_costs"])
        share = costs["DataLoader"] / costs["Total"]
        assert bool(loading) == (share > 0.05)
        for one in loading:
            assert one.severity == "critical"
            assert one.cost_frac == pytest.approx(share, abs=0.03)


def test_a_slow_loader_on_the_cpu_is_critical(shared: Path) -> None:
    result = ta.diagnose(shared / "data/chrome/kineto_ddp_cpu/slow_loader")
    assert found(result, "data-loading").severity == "critical"


# --- thresholds ------------------------------------------------------------------------------


def test_thresholds_change_what_counts() -> None:
    assert not ta.diagnose(
        FIXTURES / "memory/leak.pickle",
        thresholds=["memory-growth=50%", "uneven-steps=1", "memory-fragmentation=0.9"],
    ).diagnosis
    grave = ta.diagnose(FIXTURES / "memory/leak.pickle", thresholds="memory-growth:critical=1%")
    assert found(grave, "memory-growth").severity == "critical"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("late=5%", "no rule is called 'late'"),
        ("late-rank", "no threshold"),
        ("late-rank=", "no threshold"),
        ("late-rank=-1", "no threshold"),
        ("late-rank=nan", "no threshold"),
        ("late-rank=inf", "no threshold"),
        ("late-rank:bad=1", "no severity"),
    ],
)
def test_thresholds_that_make_no_sense(text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        with_thresholds([text])


def test_a_threshold_without_a_severity_is_the_least_grave_one() -> None:
    rules = {rule.id: rule for rule in with_thresholds(["late-rank=1%", "hot-line=2"])}
    assert rules["late-rank"].levels == {"warning": 0.01, "critical": 0.2}
    assert rules["hot-line"].levels == {"info": 2}


@pytest.mark.parametrize(
    ("size", "severity"), [(0.099, None), (0.1, "warning"), (0.2, "warning"), (0.3, "critical")]
)
def test_a_threshold_counts_from_its_value_on(size: float, severity: str | None) -> None:
    rule = Rule("r", "a", "x", "y", {"warning": 0.1, "critical": 0.3}, lambda *_: ())
    assert rule.severity(size) == severity


# --- what cannot be told ---------------------------------------------------------------------


def test_what_was_not_recorded_cannot_be_told(late: ta.Diagnosis) -> None:
    rows = {row["rule"]: row for row in late.rules.rows(named=True)}
    assert rows["memory-growth"]["status"] == "cannot tell"
    assert "profile_memory=True" in rows["memory-growth"]["why"]
    assert rows["launch-bound"]["status"] == "nothing found"
    assert rows["late-rank"]["status"] == "found"
    check_wording(*late.notes)


def test_nothing_found_and_nothing_told_are_answers() -> None:
    nothing = judge({}, dict.fromkeys((rule.analysis for rule in RULES), "no data"))
    check_wording(nothing.verdict)
    assert nothing.worst is None
    calm = ta.diagnose(FIXTURES / "py_spy/native.raw.txt", thresholds="hot-line=99%")
    assert calm.verdict.startswith("Nothing found. ")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('{"traceEvents": "none"}')
    good = FIXTURES / "py_spy/native.raw.txt"
    result = ta.diagnose([good, tmp_path / "cut.json"])
    assert any("cut.json" in note for note in result.notes)
    with pytest.raises(InputError):
        ta.diagnose(tmp_path / "cut.json")


def test_a_file_that_is_cut_off_is_said_to_be(tmp_path: Path) -> None:
    """What is missing may have been at its end: no advice to record it, no sure finding."""
    whole = gzip.decompress((RANKS / "rank0.json.gz").read_bytes())
    cut = tmp_path / "cut.json"
    work = re.search(rb'"cat": "(kernel|gpu_mem\w+)"', whole)
    assert work is not None
    cut.write_bytes(whole[: work.start()])
    result = ta.diagnose(cut)
    why = dict(result.rules.select("rule", "why").rows())["exposed-copies"]
    assert "this file is cut off" in why
    idle = [one for one in result.diagnosis if one.analysis == "gpu_idle"]
    assert idle
    assert {one.confidence for one in idle} == {"low"}
    assert all("GPU work is missing" in one.evidence[0] for one in idle)
    # where some of the work is there, what is missing looks idle
    cut.write_bytes(whole[: len(whole) * 9 // 10])
    result = ta.diagnose(cut)
    idle = [one for one in result.diagnosis if one.analysis == "gpu_idle"]
    assert idle
    for one in idle:
        assert one.confidence == "low"
        assert "GPU work that it lost counts as idle" in one.evidence[0]


def test_one_trace_at_a_time_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[weakref.ref[ta.Trace]] = []
    whole = examination.read

    def watched(path: str, **how: Any) -> ta.Trace:
        gc.collect()
        assert [ref for ref in held if ref() is not None] == []
        trace = whole(path, **how)
        held.append(weakref.ref(trace))
        return trace

    monkeypatch.setattr(examination, "read", watched)
    ta.diagnose([RANKS / f"rank{n}.json.gz" for n in range(3)])
    assert len(held) == 3


# --- the command -----------------------------------------------------------------------------


@pytest.mark.parametrize(("severity", "status"), [("info", 3), ("warning", 3), ("critical", 0)])
def test_fail_on(run_cli: Any, severity: str, status: int) -> None:
    done = run_cli(
        "diagnose", FIXTURES / "memory/leak.pickle", "--fail-on", severity, "--to", "json", "-q"
    )
    assert done.returncode == status
    answer = json.loads(done.stdout)
    assert answer["warning_count"] == 1
    assert answer["findings"][0]["rule"] == "memory-growth"
    assert {row["rule"] for row in answer["rules"]} == BY_ID.keys()


def test_a_bad_threshold_is_a_wrong_command_line(run_cli: Any) -> None:
    done = run_cli("diagnose", RANKS, "--threshold", "nonsense=1")
    assert (done.returncode, done.stdout) == (2, "")
    check_wording(done.stderr)
