"""Slow collectives and the memory of their device."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.errors import MissingData

GIB = 1 << 30
CAPACITY = 80 * GIB
EPOCH_NS = 1_780_000_000_000_000_000
SLOW_AT_US = 5_000
Event = dict[str, Any]


def kernel(ts: float, dur: float) -> Event:
    args = {"device": 0, "stream": 20, "Collective name": "allreduce", "dtype": "Float"}
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 20, "ts": ts, "dur": dur,
            "args": {**args, "In msg nelems": 1000, "Out msg nelems": 1000}}  # fmt: skip


def instant(ts: float, address: int, size: int, reserved: int) -> Event:
    args = {"Total Allocated": size, "Total Reserved": reserved, "Bytes": size, "Addr": address,
            "Device Type": 1, "Device Id": 0}  # fmt: skip
    return {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": 1, "tid": 1,
            "ts": ts, "args": args}  # fmt: skip


def trace(path: Path, *more: Event, capacity: int | None = CAPACITY) -> Path:
    slow = [kernel(SLOW_AT_US, 900.0)]
    usual = [kernel(1000.0 * n, 100.0 + n % 3) for n in range(40) if 1000 * n != SLOW_AT_US]
    device = {"id": 0, "name": "H100"} | ({"totalGlobalMem": capacity} if capacity else {})
    whole = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": EPOCH_NS,
        "deviceProperties": [device],
        "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1},
        "traceEvents": [*usual, *slow, *more],
    }
    path.write_text(json.dumps(whole))
    return path


def snapshot(path: Path, changes: list[tuple[int, int]]) -> Path:
    """A snapshot of segments that come (bytes > 0) and go at a time in us after the epoch."""
    events, live = [], {}
    for number, (at, size) in enumerate(changes):
        action = "segment_alloc" if size > 0 else "segment_free"
        address = number << 40 if size > 0 else next(a for a, s in live.items() if s == -size)
        live = (
            {**live, address: size} if size > 0 else {a: s for a, s in live.items() if a != address}
        )
        events.append({"action": action, "addr": address, "size": abs(size), "stream": 0,
                       "time_us": EPOCH_NS // 1000 + at, "frames": []})  # fmt: skip
    segments = [
        {"device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large",
         "blocks": [{"address": address, "size": size, "state": "inactive", "frames": []}]}
        for address, size in live.items()
    ]  # fmt: skip
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [events]}))
    return path


FULL_THEN = [(0, 40 * GIB), (4_000, 38 * GIB), (7_000, -38 * GIB)]
FULL_LATER = [(0, 40 * GIB), (8_000, 38 * GIB)]


def test_device_full_during_outlier(tmp_path: Path) -> None:
    result = ta.comm_outliers(
        trace(tmp_path / "t.json"), memory=snapshot(tmp_path / "m.pickle", FULL_THEN)
    )
    assert result.memory is not None
    (row,) = result.memory.to_dicts()
    assert (row["taken_bytes"], row["capacity_bytes"]) == (78 * GIB, CAPACITY)
    assert row["aligned"]
    check_wording(result.verdict)
    assert "Device memory during outliers" in result.table()


def test_device_full_after_outlier(tmp_path: Path) -> None:
    result = ta.comm_outliers(
        trace(tmp_path / "t.json"), memory=snapshot(tmp_path / "m.pickle", FULL_LATER)
    )
    assert result.memory is not None
    assert result.memory["taken_bytes"].to_list() == [40 * GIB]
    assert "nearly full" not in result.verdict


def test_snapshot_among_inputs_is_used_as_memory(tmp_path: Path) -> None:
    trace(tmp_path / "t.json")
    snapshot(tmp_path / "m.pickle", FULL_THEN)
    assert "nearly full" in ta.comm_outliers(tmp_path).verdict
    assert ta.comm_outliers(tmp_path / "t.json").memory is None


def test_memory_instants_of_the_trace(tmp_path: Path) -> None:
    more = [instant(100.0, 1, GIB, 40 * GIB), instant(4500.0, 2, GIB, 79 * GIB)]
    path = trace(tmp_path / "t.json", *more)
    check_wording(ta.comm_outliers(path, memory=path).verdict)


def test_unknown_device_memory_is_noted(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json", capacity=None)
    result = ta.comm_outliers(path, memory=snapshot(tmp_path / "m.pickle", FULL_THEN))
    assert "nearly full" not in result.verdict
    check_wording(*result.notes)


def test_maximum_memory_counts_without_common_clock(tmp_path: Path) -> None:
    shifted = [(at + 10**9, size) for at, size in FULL_THEN]
    result = ta.comm_outliers(
        trace(tmp_path / "t.json"), memory=snapshot(tmp_path / "m.pickle", shifted)
    )
    assert result.memory is not None
    assert result.memory["aligned"].to_list() == [False]
    check_wording(*result.notes)


def test_trace_without_memory_data_is_an_error(tmp_path: Path) -> None:
    path = trace(tmp_path / "t.json")
    with pytest.raises(MissingData, match="profile_memory=True"):
        ta.comm_outliers(path, memory=path)


def test_memory_of_another_rank(tmp_path: Path) -> None:
    other = snapshot(tmp_path / "m_rank7.pickle", FULL_THEN)
    result = ta.comm_outliers(trace(tmp_path / "t.json"), memory=other)
    check_wording(*result.notes)
