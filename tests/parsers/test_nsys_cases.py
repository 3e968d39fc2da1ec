"""Exports of single cases: recording errors, managed memory, overhead, metrics."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pytest
from conftest import ROOT
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import MissingData

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture
def case(tmp_path, monkeypatch) -> Iterator[Callable[[str], Path]]:
    monkeypatch.syspath_prepend(str(FIXTURES))
    import nsys_cases

    yield lambda name: nsys_cases.write(name, tmp_path / f"{name}.sqlite")
    for module in ("make_nsys", "nsys_tables", "nsys_cases"):
        sys.modules.pop(module)


def issue(trace: ta.Trace, code: str) -> list[tuple[str, str]]:
    return trace.issues.filter(pl.col("code") == code).select("severity", "first").rows()


# --- what nsys was to record, and did not -----------------------------------------------------


@pytest.mark.parametrize(
    ("name", "severity", "reason"),
    [
        ("traced_without_events", "notice", "uses CUDA"),
        ("driver_too_new", "data_loss", "supports the installed driver"),
        ("invalid_device", "error", "CUPTI_ERROR_INVALID_DEVICE"),
    ],
)
def test_gpu_work_that_was_traced_and_is_missing_is_explained(case, name, severity, reason):
    trace = ta.read(case(name))
    [(measured, text)] = issue(trace, "no-gpu-work")
    assert measured == severity
    assert reason in text
    assert reason in (trace.meta.no_gpu_work or "")
    assert not [text for _, text in issue(trace, "not-recorded") if "--trace=cuda" in text]
    for ask in (ta.kernels, ta.gpu_idle):
        with raises_wording(MissingData) as caught:
            ask(trace)
        assert reason in str(caught.value)


def test_an_option_that_was_off_is_advised(case):
    trace = ta.read(case("not_traced"))
    assert issue(trace, "no-gpu-work") == []
    assert trace.meta.no_gpu_work is None
    assert [text for _, text in issue(trace, "not-recorded") if "--trace=cuda" in text]
    with pytest.raises(MissingData, match="--trace=cuda"):
        ta.kernels(trace)


def test_nsys_error_with_gpu_work_is_a_notice(case):
    trace = ta.read(case("partly_failed"))
    assert issue(trace, "no-gpu-work") == []
    assert issue(trace, "nsys-message") == [("notice", "CUPTI_ERROR_INVALID_DEVICE")]


def test_diagnose_reports_that_the_gpu_could_not_be_traced(case):
    report = ta.diagnose(case("invalid_device"))
    [measured] = [finding for finding in report.findings if finding.id == "gpu-not-traced"]
    assert measured.severity == "warning"
    check_wording(measured.title, *measured.evidence, measured.advice)
    assert "dropped-events" not in {finding.id for finding in report.findings}


# --- managed memory ---------------------------------------------------------------------------


def names(trace: ta.Trace, kind: str) -> set[str]:
    return set(trace.events.filter(pl.col("kind") == kind)["name"].cast(pl.String))


def test_memory_and_directions_are_named_never_numbered(case):
    assert names(ta.read(case("managed")), "gpu_memcpy") == {"Memcpy UVM HtoD (Managed -> Managed)"}
    assert names(ta.read(case("pinned_copies")), "gpu_memcpy") == {
        "Memcpy HtoD (Managed -> Device)",
        "Memcpy HtoD (Pinned -> Device)",
        "Memcpy Unknown (Unknown -> Unknown)",
    }


@pytest.mark.matrix
@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["exposed_migrations", "pinned_copies"])
def test_managed_and_pinned_copies_get_no_advice_to_pin(case, name):
    trace = ta.read(case(name))
    result = ta.transfers(trace)
    advice = [*result.findings["advice"], result.view().verdict]
    advice += [ta.overlap(trace).view().verdict, *ta.gpu_idle(trace).view().notes]
    advice.append(ta.gpu_idle(trace).view().verdict)
    advice += (
        [] if name == "exposed_migrations" else ta.cuda_api(trace).findings["advice"].to_list()
    )
    advice += [finding.advice for finding in ta.diagnose(trace).findings]
    assert not [
        text for text in advice if text and ("pin_memory" in text or "Pinned memory" in text)
    ]
    check_wording(result.view().verdict, *result.findings["advice"])


def test_migrations_are_a_finding_with_prefetching_as_advice(case):
    measured = ta.transfers(ta.read(case("exposed_migrations"))).findings
    [row] = measured.rows(named=True)
    assert (row["finding"], row["n"]) == ("migrations", 200)
    assert row["total_ns"] == row["exposed_ns"] == 200 * 25_000
    assert "cudaMemPrefetchAsync" in row["advice"]


# --- overhead ---------------------------------------------------------------------------------


@pytest.mark.matrix
def test_module_loading_is_not_profiler_overhead(case):
    idle = ta.gpu_idle(case("module_loading"))
    sums = dict(idle.causes.select("cause", "idle_ns").rows())
    assert sums["module_loading"] == pytest.approx(20_000_000, abs=100_000)
    assert sums["profiler_overhead"] == pytest.approx(5_000_000, abs=10_000)
    measured = {one.id: one for one in ta.diagnose(case("module_loading")).findings}
    check_wording(measured["module-loading"].title, measured["module-loading"].advice)
    check_wording(*ta.launches(case("module_loading")).view().notes)


def test_full_queue_is_detected_by_blocking_calls(case):
    trace = ta.read(case("full_queue"))
    [stream] = ta.launches(trace).queue.streams.to_dicts()
    assert stream["max_queue"] < 300
    assert stream["full_frac"] > 0.5
    sums = dict(ta.gpu_idle(trace).causes.select("cause", "idle_ns").rows())
    assert sums.get("profiler_overhead", 0) == 0


def test_a_long_queue_without_slow_calls_is_not_full(case):
    [stream] = ta.launches(case("long_queue")).queue.streams.to_dicts()
    assert stream["max_queue"] > 1_500
    assert stream["full_frac"] == 0


# --- files -------------------------------------------------------------------------------------


@pytest.mark.matrix
def test_file_calls_are_a_cause(case):
    result = ta.gpu_idle(case("file_reads"))
    assert result.host.file_calls.rows() == [
        (None, 28_800_000, 3_000_000),
        ("read", 27_000_000, 3_000_000),
        ("open64", 1_800_000, 200_000),
    ]
    assert result.idle_by_cause["checkpoint_io"] == 28_800_000
    assert result.idle_by_cause["dataloading"] == 0
    check_wording(result.verdict)
    [finding] = (one for one in ta.diagnose(case("file_reads")).findings if one.id == "checkpoints")
    assert "reads files or other input (read)" in finding.title
    assert "background thread" in finding.advice
    check_wording(finding.title, finding.advice, *finding.evidence)


def test_file_calls_in_a_loader_are_data_loading(case):
    result = ta.gpu_idle(case("loader_reads"))
    assert result.idle_by_cause["dataloading"] == 27_000_000
    assert dict(result.host.file_calls[["name", "idle_ns"]].rows())["read"] == 27_000_000
    check_wording(result.verdict)


# --- steps ------------------------------------------------------------------------------------


def test_unmarked_steps_are_inferred_from_kernels(case):
    result = ta.steps(case("unmarked_steps"))
    assert result.by_kernels
    assert result.steps["step"].to_list() == [f"step {number}" for number in range(10)]
    assert result.steps["compute_ns"].to_list() == [600_000] * 7 + [660_000] + [600_000] * 2
    check_wording(*result.view().notes)


def test_a_kernel_that_begins_a_step_can_be_named(case):
    result = ta.steps(case("unmarked_steps"), step_every="^relu$")
    assert result.steps.height == 20
    with raises_wording(MissingData):
        ta.steps(case("unmarked_steps"), step_every="^softmax$")


def test_kernels_without_a_pattern_are_not_steps(case):
    with raises_wording(MissingData):
        ta.steps(case("long_queue"))


def test_numbered_ranges_are_one_row(case):
    rows = ta.annotations(case("numbered_steps")).annotations
    assert sorted(rows.select("name", "ranges").rows()) == [("epoch 1", 1), ("step *", 20)]


# --- metrics ----------------------------------------------------------------------------------


def test_gpu_metrics_are_evidence_of_findings(case):
    trace = ta.read(case("gpu_metrics"))
    [gpu] = ta.host_metrics(trace).gpus().rows(named=True)
    assert gpu == {"gpu": "GPU 0", "sm_frac": 0.18, "tensor_frac": 0, "dram_frac": 0.92}
    measured = {finding.id: finding for finding in ta.diagnose(trace).findings}
    check_wording(measured["memory-bound"].title, *measured["no-tensor-cores"].evidence)
    assert "idle-multiprocessors" not in measured


def test_network_adapters_have_counters(case):
    counters = ta.read(case("gpu_metrics")).counters
    nic = counters.filter(pl.col("name") == "IB: Bytes sent [B/s]")
    assert nic.select("series", "value").unique().rows() == [("NIC 1 port 1", 25e9)]


def test_device_work_without_a_process_is_of_the_only_one(tmp_path: Path) -> None:
    whole, without = tmp_path / "whole.sqlite", tmp_path / "without.sqlite"
    shutil.copy(ROOT / "fixtures/nsys/training.sqlite", whole)
    with closing(sqlite3.connect(whole)) as database:
        work = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET")]
        (first,) = database.execute(f"select min(globalPid) from {work[0]}").fetchone()
        for table, column in [(name, "globalPid") for name in work] + [
            ("CUPTI_ACTIVITY_KIND_RUNTIME", "globalTid")
        ]:
            database.execute(f"delete from {table} where {column} >> 24 != {first >> 24}")
        database.commit()
        shutil.copy(whole, without)
    with closing(sqlite3.connect(without)) as database:
        for table in work:
            database.execute(f"alter table {table} drop column globalPid")
        database.commit()
    one, other = ta.read(whole), ta.read(without)
    columns = ["ts", "dur", "kind", "name", "pid", "device", "stream", "correlation"]
    device = [
        trace.events.filter(pl.col("tid").is_null()).select(columns) for trace in (one, other)
    ]
    assert device[0].height
    assert device[0].cast({"name": pl.String}).equals(device[1].cast({"name": pl.String}))
    assert "missing-column" not in other.issues["code"]
