"""Findings about memory: one chain, the root cause first, with one advice."""

from __future__ import annotations

import contextlib
import pickle
import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import ROOT
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.units import format_bytes, format_frac

MEMORY = ROOT / "fixtures/memory"
MAKE = runpy.run_path(str(ROOT / "fixtures/make_memory.py"))
MIB = 1 << 20


def write(folder: Path, run: Any) -> Path:
    path = folder / "snapshot.pickle"
    path.write_bytes(pickle.dumps(MAKE["Snapshot"](run, "2.13").whole(), protocol=4))
    return path


def leaking_until_full(leak: int = 3 * MIB) -> Any:
    """Keep some MiB more in each step, until memory runs out."""
    run = MAKE["Run"]([MAKE["Device"](0, 160 * MIB)])
    with contextlib.suppress(MAKE["OutOfMemory"]):
        MAKE["train"](run.devices[0], run, steps=60, leak=leak)
    return run


def starved_and_full() -> Any:
    """Fragment memory, and request more than all free memory."""
    device = MAKE["Device"](0, 120 * MIB)
    run = MAKE["Run"]([device])
    blocks = [device.alloc(3 * MIB, "weights") for _ in range(36)]
    for block in blocks[::2]:
        device.free(block, "optimizer")
    with contextlib.suppress(MAKE["OutOfMemory"]):
        device.alloc(90 * MIB, "forward0")
    return run


@pytest.mark.parametrize(
    ("mib", "place", "severity"),
    [
        (90, "forward0", "warning"),
        (50, "optimizer", "warning"),
        (20, "optimizer", "critical"),
        (0, "", "critical"),
    ],
)
def test_an_error_after_which_the_program_goes_on(
    tmp_path: Path, mib: int, place: str, severity: str
) -> None:
    device = MAKE["Device"](0, 120 * MIB)
    run = MAKE["Run"]([device])
    weights = device.alloc(60 * MIB, "weights")
    with contextlib.suppress(MAKE["OutOfMemory"]):
        device.alloc(90 * MIB, "forward0")
    device.free(weights, "optimizer")
    if mib:
        device.alloc(mib * MIB, place)
    (one,) = (
        each for each in ta.diagnose(write(tmp_path, run)).findings if each.id == "out-of-memory"
    )
    assert one.severity == severity


def chain(result: ta.Diagnosis) -> list[tuple[str, list[str]]]:
    about = [one for one in result.diagnosis if one.analysis.startswith("memory")]
    return [(one.id, [effect.id for effect in one.effects]) for one in about]


def test_leak_is_the_cause_if_it_fills_the_memory(tmp_path: Path) -> None:
    result = ta.diagnose(write(tmp_path, leaking_until_full()))
    ((root, effects),) = chain(result)
    assert root == "memory-growth"
    assert "out-of-memory" in effects
    first = result.diagnosis[0]
    assert first.severity == "critical"
    assert [one.advice for one in first.effects] == [""] * len(effects)
    check_wording(first.title, first.advice, *(one.title for one in first.effects))


@pytest.mark.parametrize(("place", "kept"), [("log", True), ("forward0", False)])
def test_the_line_that_fills_the_memory_is_named(tmp_path: Path, place: str, kept: bool) -> None:
    """What a line without a known use never frees may be kept without need; activations are not."""
    device = MAKE["Device"](0, 120 * MIB)
    run = MAKE["Run"]([device])
    with contextlib.suppress(MAKE["OutOfMemory"]):
        for _ in range(100):
            device.alloc(4 * MIB, place)
    (one,) = ta.diagnose(write(tmp_path, run)).diagnosis
    assert "100.0 % at" in one.evidence[0]
    assert ("--step-every" in one.advice) == kept
    assert (one.confidence == "medium") == kept


def test_fragmentation_is_the_cause_if_free_pieces_suffice() -> None:
    result = ta.diagnose(MEMORY / "fragmented_oom.pickle")
    assert chain(result) == [("memory-fragmentation", ["out-of-memory"])]
    first = result.diagnosis[0]
    assert first.severity == "critical"
    assert "expandable_segments" in first.advice
    check_wording(first.title, first.advice, first.effects[0].title)


def test_fragmentation_is_not_the_cause_of_larger_requests(tmp_path: Path) -> None:
    result = ta.diagnose(write(tmp_path, starved_and_full()))
    assert chain(result) == [("out-of-memory", ["memory-fragmentation"])]
    assert "expandable_segments" not in result.diagnosis[0].advice


def test_small_leak_is_not_the_cause(tmp_path: Path) -> None:
    run = MAKE["leaking"]()
    with contextlib.suppress(MAKE["OutOfMemory"]):
        run.devices[0].alloc(300 * MIB, "forward0")
    chains = dict(chain(ta.diagnose(write(tmp_path, run))))
    assert "out-of-memory" in chains
    assert chains["memory-growth"] == []


def test_errors_of_several_causes_are_one_finding(shared: Path) -> None:
    result = ta.diagnose(shared / "data/memory/synthetic_oom.pickle")
    ((root, effects),) = chain(result)
    assert (root, effects) == ("memory-growth", ["out-of-memory", "allocator-retries"])
    check_wording(*(one.title for one in result.diagnosis[0].effects))


def status(result: ta.Diagnosis) -> tuple[str, str]:
    (row,) = result.rules.filter(rule="out-of-memory").select("status", "why").rows()
    return row


@pytest.mark.matrix
def test_no_error_in_a_part_of_the_history_is_no_pass(tmp_path: Path) -> None:
    whole = (MEMORY / "training.pickle").read_bytes()
    cut = tmp_path / "cut.pickle"
    cut.write_bytes(whole[: len(whole) * 9 // 10])
    for path in (cut, MEMORY / "ring.pickle", MEMORY / "torch113_segments_only.pickle"):
        result, why = status(ta.diagnose(path))
        assert result == "skipped", path.name
        check_wording(why)
    assert status(ta.diagnose(MEMORY / "training.pickle")) == ("passed", None)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["train_ring_truncated", "block_history"])
def test_real_histories_that_are_a_part(name: str, shared: Path) -> None:
    result, why = status(ta.diagnose(shared / f"data/memory/{name}.pickle"))
    assert result == "skipped"
    check_wording(why)


def test_a_snapshot_without_problems_has_its_peak() -> None:
    """The peak is the largest sum of live sizes in the history, recomputed from the events."""
    path = ROOT / "fixtures/memory/training.pickle"
    result = ta.diagnose(path)
    (device,) = ta.memory(path).devices.to_dicts()
    assert format_bytes(device["peak_bytes"]) in result.about
    assert format_bytes(device["reserved_peak_bytes"]) in result.about
    events = ta.read(path).events.filter(pl.col("kind").is_in(["alloc", "free_completed"]))
    sizes = events.select(
        pl.when(pl.col("kind") == "alloc").then("bytes").otherwise(-pl.col("bytes").abs())
    ).to_series()
    assert device["peak_bytes"] == device["start_bytes"] + max(sizes.cum_sum().max(), 0)
    shares = dict(
        ta.memory(path).alive.group_by("category").agg(pl.col("live_frac").sum()).iter_rows()
    )
    largest = max(shares, key=shares.__getitem__)
    assert f"{largest} {format_frac(shares[largest])}" in result.about


def test_a_trace_with_a_time_budget_has_no_peak() -> None:
    assert "peak memory" not in ta.diagnose(ROOT / "fixtures/transformer").about


@pytest.mark.parametrize(("stack", "twice"), [("_ddp_init_helper (d.py:1)", 8), ("f (d.py:1)", 0)])
def test_gradients_that_lie_in_buckets_too(stack: str, twice: int) -> None:
    memory = ta.memory(MEMORY / "leak.pickle")
    rows = memory.alive.head(2).with_columns(
        live_bytes=pl.Series([8 * MIB, 10 * MIB]),
        category=pl.Series(["communication buffers", "gradients"]),
        stack=pl.Series([f"main (train.py:1);{stack}", "backward (_tensor.py:5)"]),
    )
    assert (f"{twice} MiB of gradients" in replace(memory, alive=rows).verdict) == (twice > 0)


@pytest.mark.parametrize(("rank", "twice"), [(0, [8]), (1, [])])
def test_gradients_and_buckets_are_compared_on_each_gpu(rank: int, twice: list[int]) -> None:
    """Ranks 0 and 2 have buckets of 8 and 2 MiB; gradients are on rank 2, and on another one."""
    memory = ta.memory(MEMORY / "leak.pickle")
    bucket, none = "main (train.py:1);_ddp_init_helper (d.py:1)", "backward (_tensor.py:5)"
    rows = pl.concat([memory.alive.head(1)] * 4).with_columns(
        rank=pl.Series([0, rank, 2, 2], dtype=memory.alive.schema["rank"]),
        live_bytes=pl.Series([8 * MIB, 10 * MIB, 2 * MIB, 2 * MIB]),
        category=pl.Series(["communication buffers", "gradients"] * 2),
        stack=pl.Series([bucket, none] * 2),
    )
    sizes = re.findall(r"(\d+) MiB of gradients", replace(memory, alive=rows).verdict)
    assert [int(size) for size in sizes] == (twice or [2])
