"""Replay of runs on CPUs: operators, data loading, and collectives of gloo."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from comm_traces import MS, US, host, step, trace
from conftest import ROOT, once
from replays import usual_changes

import traceanalyzer as ta
from traceanalyzer.trace import Trace

STEPS = 6
TUTORIAL = ROOT / "fixtures/tutorial"


def rank(number: int, pauses: list[int], others: list[int], *, late_ns: int = 0) -> Trace:
    """Return steps of a pause, an operator of 3 ms that launches an all_reduce, and an optimizer.

    Args:
        number: the rank.
        pauses: the pause of each step.
        others: that of the other rank: the all_reduce ends 2 ms after the later one has started.
        late_ns: how long after the thread has gone on the end of the all_reduce is recorded.
    """
    events: list[dict[str, Any]] = []
    at = 0
    for index, (pause, other) in enumerate(zip(pauses, others, strict=True)):
        launch = at + pause + 2 * MS
        begun = launch + 100 * US
        done = at + max(pause, other) + 4100 * US
        end = done + 3 * MS
        events += [
            step(index, at, end - at),
            host("cpu_op", "aten::mm", at + pause, 3 * MS),
            host("cpu_op", "c10d::allreduce_", launch, 50 * US),
            host("user_annotation", "gloo:all_reduce", begun, done + late_ns - begun, tid=9),
            host("cpu_op", "aten::add_", done + 10 * US, 2 * MS),
        ]
        at = end
    return trace(events, rank=number)


SHORT, LONG = [MS] * STEPS, [MS, MS, 21 * MS, MS, 21 * MS, MS]


@pytest.mark.parametrize("late_ns", [0, 900 * US])
def test_rank_with_pauses_becomes_like_the_other(late_ns: int) -> None:
    fast = rank(0, SHORT, LONG, late_ns=late_ns)
    slow = rank(1, LONG, SHORT)
    before = [fast, slow]
    after = [rank(0, SHORT, SHORT), rank(1, SHORT, SHORT)]
    predicted = ta.what_if(before, typical_rank="1")
    measured = usual_changes(after)
    assert predicted.error_frac == pytest.approx(0, abs=1e-3)
    assert predicted.recorded_ns == pytest.approx(measured.recorded_ns + 8 * MS, rel=0.03)
    assert predicted.changes["step_ns"][0] == pytest.approx(measured.recorded_ns, rel=0.05)


@pytest.mark.parametrize("around", ["ProfilerStep#{}", "train_step", None])
def test_steps_recorded_as_operators_are_none(around: str | None) -> None:
    """As PyTorch 1.8 does; the data loader runs within each."""
    events: list[dict[str, Any]] = []
    for number in range(STEPS):
        at = number * 10 * MS
        loads = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        marks = [f"ProfilerStep#{number}", *([around.format(number)] if around else [])]
        events += [host("cpu_op", name, at, 10 * MS) for name in marks]
        events += [
            host("cpu_op", loads, at + 100 * US, 3 * MS),
            host("cpu_op", "aten::stack", at + 200 * US, MS),
            host("cpu_op", "aten::mm", at + 4 * MS, 6 * MS),
        ]
    result = ta.what_if(trace(events), free="data-loading")
    assert result.changes["gain_ns"][0] == pytest.approx(3 * MS, rel=0.01)


def test_operators_become_faster_by_name() -> None:
    pair = [rank(n, SHORT, SHORT) for n in range(2)]
    result = ta.what_if(pair, scale=["aten::add_=2"])
    assert result.changes["gain_ns"][0] == pytest.approx(MS, rel=0.01)
    path = ta.critical_path(pair)
    times = {row[:2]: row[2] for row in path.names.select("kind", "name", "time_ns").iter_rows()}
    assert times["operators", "aten::add_"] == pytest.approx(2 * MS, rel=0.01)
    assert times["transfers", "gloo:all_reduce"] == pytest.approx(2 * MS, rel=0.01)
    assert path.classes["time_frac"].sum() == pytest.approx(1)


def test_threads_of_an_unknown_process_are_replayed() -> None:
    pair = [rank(n, SHORT, SHORT) for n in range(2)]
    pid = pl.lit(None, pl.Int64).alias("pid")
    pair = [replace(one, events=one.events.with_columns(pid)) for one in pair]
    result = ta.what_if(pair, scale=["aten::add_=2"])
    assert result.changes["gain_ns"][0] == pytest.approx(MS, rel=0.01)


def test_hidden_collective_is_waited_for_at_the_end_of_its_step() -> None:
    events = [
        row
        for index in range(STEPS)
        for row in (
            step(index, index * 10 * MS, 10 * MS),
            host("cpu_op", "c10d::allreduce_", index * 10 * MS, 50 * US),
            host("user_annotation", "gloo:all_reduce", index * 10 * MS + 60 * US, 4 * MS, tid=9),
            host("cpu_op", "aten::mm", index * 10 * MS + 100 * US, 9 * MS),
        )
    ]
    result = ta.what_if(trace(events), scale=["aten::mm=9"])
    assert result.changes["step_ns"][0] == pytest.approx(4060 * US, rel=0.01)
    assert ta.what_if(trace(events), free=["communication"]).changes["gain_ns"][0] == 0


def test_prediction_of_the_repaired_loader_of_the_tutorial() -> None:
    """Loading of the recording with a slow loader becomes as long as in the repaired one."""
    repaired = ta.what_if(TUTORIAL / "loader", free="data-loading")
    predicted = ta.what_if(TUTORIAL / "before", free="data-loading").changes["step_ns"][0]
    predicted += repaired.changes["gain_ns"][0]
    assert predicted == pytest.approx(repaired.recorded_ns, rel=0.05)


def test_findings_of_a_run_on_cpus_have_gains_by_replay() -> None:
    result = once(ta.diagnose, TUTORIAL / "before")
    (one,) = (one for one in result.findings if one.id == "data-loading")
    assert one.gain_basis == "replay"
    assert one.gain_ns == pytest.approx(268.6 * MS, rel=0.02)


def test_checkpoints_of_one_rank_are_on_the_path() -> None:
    path = once(ta.critical_path, ROOT / "fixtures/ddp_gloo_4ranks")
    assert path.names["name"][0] == "save_checkpoint"
    assert path.ranks["rank"][0] == 3


@pytest.mark.parametrize("percent", [35, 60])
def test_work_after_the_complete_part_of_a_truncated_file_is_in_no_step(
    percent: int, shared: Path, tmp_path: Path
) -> None:
    """Kineto writes operators first: their end does not show when the recording ended."""
    whole = shared / "data/chrome/kineto_ddp_cpu/ddp4/rank0.json.gz"
    text = gzip.decompress(whole.read_bytes())
    (tmp_path / "cut.json").write_bytes(text[: len(text) * percent // 100])
    cut, complete = (usual_changes(path).steps for path in (tmp_path / "cut.json", whole))
    both = cut.join(complete, on=["run", "step"], suffix="_complete").filter(run="recorded")
    assert 2 <= both.height == cut.filter(run="recorded").height
    assert both["step_ns"].to_list() == pytest.approx(both["step_ns_complete"].to_list(), rel=0.02)
