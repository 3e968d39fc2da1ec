"""Snapshots against what independent code made of the same files."""

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

#: What the reference calls a number of ours.
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
    found = path(name)
    (device,) = json.loads(ORACLE.read_text())[found.name]
    return dict(device)


@every
def test_numbers_are_those_of_the_reference(name: str) -> None:
    row = answer(name).devices.row(0, named=True)
    expected = reference(name)
    assert {key: row[ours] for key, ours in SAME.items()} == {key: expected[key] for key in SAME}
    assert answer(name).devices.height == 1


@every
def test_the_peak_is_at_the_same_event(name: str) -> None:
    row, expected = answer(name).devices.row(0, named=True), reference(name)
    assert (-1 if row["peak_event"] is None else row["peak_event"]) == expected["peak_idx"]
    trace = ta.read(path(name))
    if expected["peak_time_us"] is not None and row["peak_ns"] is not None:
        assert trace.meta.epoch_ns is not None
        assert trace.meta.epoch_ns + row["peak_ns"] == 1000 * expected["peak_time_us"]


@every
def test_history_and_blocks_agree(name: str) -> None:
    row, expected = answer(name).devices.row(0, named=True), reference(name)
    wrong = [row[key] for key in ("reused_n", "twice_n", "resized_n", "lost_n", "difference_bytes")]
    assert wrong == [0] * 5
    assert row["before_n"] == sum(expected["anom"].values())


@every
def test_what_is_alive_adds_up_to_the_peak(name: str) -> None:
    found = answer(name)
    row = found.devices.row(0, named=True)
    assert found.alive["live_bytes"].sum() == row["peak_bytes"]
    assert found.alive["n"].sum() == row["peak_n"]
    for table in (found.lines, found.categories):
        assert table["live_bytes"].sum() == row["peak_bytes"]


@every
def test_the_largest_stacks_are_those_of_the_reference(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those recorded: the reference sums up what it knows no stack of by where it comes from.

    The reference keeps frames of the interpreter, so that stacks differ that are equal here.
    """
    monkeypatch.setattr(attribution, "_is_kept", lambda *_: True)
    told = [
        (top["bytes"], top["n"])
        for top in reference(name)["top"]
        if top["leaf"][0] != "<no frames>"
    ]
    own = ta.memory(path(name)).alive.filter(pl.col("stack").is_not_null())
    by_stack = own.group_by("stack").agg(pl.col("live_bytes", "n").sum())
    found = by_stack.sort("live_bytes", descending=True).select("live_bytes", "n").rows()
    assert found[: len(told)] == told
