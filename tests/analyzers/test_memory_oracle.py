"""Snapshots compared with an independent reference implementation."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import SHARED

import traceanalyzer as ta
from traceanalyzer.analyzers.memory import attribution

ORACLE = SHARED / "oracle" / "memory" / "peak_live_reserved.json"
NAMES = (
    "block_history",
    "block_history_at_oom",
    "forward_bf16",
    "inference",
    "shared_stacks_19k_events",
    "small",
    "synthetic_leak",
    "synthetic_oom",
    "synthetic_oom_expandable",
    "synthetic_torch20",
    "train_ring_truncated",
    "windows_paths",
)

every = pytest.mark.parametrize("name", NAMES)

#: Our column for each key of the reference.
SAME = {
    "start_live": "start_bytes",
    "peak_live": "peak_bytes",
    "end_live": "end_bytes",
    "end_live_rounded": "allocated_end_bytes",
    "reserved_peak": "reserved_peak_bytes",
    "reserved_end": "reserved_end_bytes",
    "n_alive_at_peak": "peak_n",
    "inactive": "inactive_bytes",
    "inactive_split": "inactive_split_bytes",
    "n_inactive_split": "inactive_split_n",
}


@cache
def answer(name: str) -> ta.Memory:
    return ta.memory(path(name))


def path(name: str) -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"no third-party data at {SHARED}; set TRACEANALYZER_SHARED")
    return SHARED / "data" / "memory" / f"{name}.pickle"


def reference(name: str) -> dict[str, Any]:
    file = path(name)  # skips without third-party data
    (device,) = json.loads(ORACLE.read_text())[file.name]
    return dict(device)


@pytest.mark.sample(3)
@every
def test_devices_match_reference(name: str) -> None:
    row = answer(name).devices.row(0, named=True)
    expected = reference(name)
    assert {key: row[ours] for key, ours in SAME.items()} == {key: expected[key] for key in SAME}
    assert answer(name).devices.height == 1


@pytest.mark.sample(4)
@every
def test_peak_event_matches_reference(name: str) -> None:
    row, expected = answer(name).devices.row(0, named=True), reference(name)
    assert (-1 if row["peak_event"] is None else row["peak_event"]) == expected["peak_idx"]
    trace = ta.read(path(name))
    if expected["peak_time_us"] is not None and row["peak_ns"] is not None:
        assert trace.meta.epoch_ns is not None
        assert trace.meta.epoch_ns + row["peak_ns"] == 1000 * expected["peak_time_us"]


@every
def test_history_matches_blocks(name: str) -> None:
    row, expected = answer(name).devices.row(0, named=True), reference(name)
    keys = ("reused_n", "double_free_n", "resized_n", "never_freed_n", "difference_bytes")
    assert [row[key] for key in keys] == [0] * 5
    assert row["before_n"] == sum(expected["anom"].values())


@every
def test_live_memory_sums_to_peak(name: str) -> None:
    result = answer(name)
    row = result.devices.row(0, named=True)
    assert result.alive["live_bytes"].sum() == row["peak_bytes"]
    assert result.alive["n"].sum() == row["peak_n"]
    for table in (result.lines, result.categories):
        assert table["live_bytes"].sum() == row["peak_bytes"]


@pytest.mark.sample(3)
@every
def test_largest_stacks_match_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare recorded stacks; the reference groups allocations without a stack differently.

    The reference keeps frames of the interpreter, so all frames are kept here too.
    """
    monkeypatch.setattr(attribution, "_is_in_program", lambda *_: True)
    expected = [
        (top["bytes"], top["n"])
        for top in reference(name)["top"]
        if top["leaf"][0] != "<no frames>"
    ]
    alive = ta.memory(path(name)).alive.filter(pl.col("stack").is_not_null())
    by_stack = alive.group_by("stack").agg(pl.col("live_bytes", "n").sum())
    rows = by_stack.sort("live_bytes", descending=True).select("live_bytes", "n").rows()
    assert rows[: len(expected)] == expected
