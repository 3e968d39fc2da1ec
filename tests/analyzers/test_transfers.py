"""Copies and memsets of small synthetic traces, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from comm_traces import ALL_REDUCE, GEMM, device, host, trace
from conftest import ROOT
from hypothesis import given, settings, strategies as st
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.analyzers.transfers.compute import transfers
from traceanalyzer.analyzers.transfers.result import ADVICE, Transfers
from traceanalyzer.errors import MissingData, OptionError

HTOD = "Memcpy HtoD (Pinned -> Device)"
PAGEABLE = "Memcpy HtoD (Pageable -> Device)"
DTOD = "Memcpy DtoD (Device -> Device)"
KIB, MIB = 1 << 10, 1 << 20


def copy(
    name: str, ts: int, dur: int | None, size: int | None = None, **more: Any
) -> dict[str, Any]:
    return device(name, ts, dur, **{"kind": "gpu_memcpy", "bytes": size, **more})


def memset(ts: int, dur: int, size: int | None = None, **more: Any) -> dict[str, Any]:
    return copy("Memset (Device)", ts, dur, size, kind="gpu_memset", **more)


def findings(result: Transfers) -> list[tuple[str, str, int]]:
    return result.findings.select("finding", "what", "n").rows()


# --- sums --------------------------------------------------------------------------------------


def test_unnamed_copy_is_counted_with_its_exposed_time() -> None:
    events = [copy(HTOD, 0, 100, 1_000), {**copy(HTOD, 200, 300, 5), "name": None}]
    kernel = device("gemm", 0, 60)
    result = transfers(trace([*events, kernel]))
    values = result.copies.select("direction", "n", "moved_bytes", "total_ns").rows()
    assert sorted(values) == [("HtoD", 1, 1_000, 100), ("unknown", 1, 5, 300)]


def test_copies_by_direction_and_memory() -> None:
    events = [
        copy(HTOD, 0, 100, 1_000),
        copy(HTOD, 200, 300, 2_000),
        copy(PAGEABLE, 600, 50, 10),
        copy(DTOD, 700, 60, 6_000),
        memset(800, 5, 40),
    ]
    result = transfers(trace(events))
    columns = (
        "direction",
        "memory",
        "n",
        "moved_bytes",
        "total_ns",
        "min_ns",
        "median_ns",
        "max_ns",
    )
    assert result.copies.select(columns).rows() == [
        ("HtoD", "Pinned -> Device", 2, 3_000, 400, 100, 200, 300),
        ("DtoD", "Device -> Device", 1, 6_000, 60, 60, 60, 60),
        ("HtoD", "Pageable -> Device", 1, 10, 50, 50, 50, 50),
        ("memset", "Device", 1, 40, 5, 5, 5, 5),
    ]
    assert result.copies["rate_gbps"].to_list() == [7.5, 100, 0.2, 8]
    assert (result.n, result.moved_bytes, result.total_ns, result.span_ns) == (5, 9_050, 515, 805)


@pytest.mark.parametrize(
    ("size", "label"),
    [
        (0, "< 4 KiB"),
        (4 * KIB - 1, "< 4 KiB"),
        (4 * KIB, "4 KiB - 64 KiB"),
        (64 * KIB - 1, "4 KiB - 64 KiB"),
        (64 * KIB, "64 KiB - 1 MiB"),
        (MIB, "1 MiB - 16 MiB"),
        (16 * MIB, "16 MiB - 256 MiB"),
        (256 * MIB - 1, "16 MiB - 256 MiB"),
        (256 * MIB, ">= 256 MiB"),
        (1 << 40, ">= 256 MiB"),
        (None, "unknown"),
    ],
)
def test_size_classes_have_exact_bounds(size: int | None, label: str) -> None:
    result = transfers(trace([copy(HTOD, 0, 10, size)]))
    assert result.sizes["size"].to_list() == [label]
    assert result.unsized == (size is None)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("Memcpy HtoD (Pinned -> Device)", ("HtoD", "Pinned -> Device")),
        ("Memcpy UVM DtoH (Unknown -> Unknown)", ("UVM DtoH", "Unknown -> Unknown")),
        ("Memcpy copy kind 99 (Device -> Array)", ("copy kind 99", "Device -> Array")),
        ("Memset (Managed)", ("memset", "Managed")),
        ("CopyHostToDevice", ("CopyHostToDevice", None)),
    ],
)
def test_directions_are_parsed_from_names(name: str, way: tuple[str, str | None]) -> None:
    assert transfers(trace([copy(name, 0, 10)])).copies.select("direction", "memory").row(0) == way


def test_unnamed_copy_has_an_unknown_direction() -> None:
    recorded = trace([copy(HTOD, 0, 10, 8)])
    nameless = pl.lit(None, recorded.events["name"].dtype).alias("name")
    result = transfers(replace(recorded, events=recorded.events.with_columns(nameless)))
    assert result.copies.select("direction", "memory", "n").rows() == [("unknown", None, 1)]
    check_wording(result.verdict)


def test_unsized_copies_have_no_bandwidth() -> None:
    result = transfers(trace([copy(HTOD, 0, 10, 100), copy(HTOD, 20, 30), memset(60, 5)]))
    assert result.copies.select("direction", "n", "moved_bytes", "rate_gbps").rows() == [
        ("HtoD", 2, 100, 10.0),
        ("memset", 1, None, None),
    ]
    check_wording(*result.notes)


# --- hidden or exposed -------------------------------------------------------------------------


def test_exposed_time_is_without_kernels() -> None:
    events = [
        device(GEMM, 0, 100),
        device(ALL_REDUCE, 150, 50, stream=20),
        copy(HTOD, 50, 100, stream=8),  # 50 overlap with the first, 50 with none
        copy(HTOD, 160, 20, stream=8),  # overlaps with communication
        copy(HTOD, 300, 10, stream=8),  # overlaps with none, twice
        copy(HTOD, 305, 10, stream=9),
        device(GEMM, 0, 900, device=1),  # another device does not count
    ]
    result = transfers(trace(events))
    row = result.copies.row(0, named=True)
    assert (row["total_ns"], row["exposed_ns"], row["exposed_n"]) == (140, 70, 3)
    assert row["exposed_frac"] == 0.5
    columns = ("device", "span_ns", "busy_ns", "alone_ns")
    assert result.devices.select(columns).rows() == [(0, 315, 135, 65)]
    assert result.alone_ns == 65


def test_copies_without_rank_or_device_have_a_row() -> None:
    events = [device(GEMM, 0, 30, device=None), copy(HTOD, 20, 20, device=None)]
    result = transfers(trace(events, rank=None))
    columns = ("rank", "device", "span_ns", "busy_ns", "alone_ns")
    assert result.devices.select(columns).rows() == [(None, None, 40, 20, 10)]


def test_exposed_time_is_unknown_without_kernels() -> None:
    result = transfers(trace([copy(HTOD, 0, 10, 8), memset(20, 5)]))
    assert result.copies["exposed_ns"].to_list() == [None, None]
    assert (result.alone_ns, result.devices["alone_ns"].to_list()) == (None, [None])
    check_wording(result.verdict)
    check_wording(*result.notes)


WORK = st.lists(
    st.tuples(
        st.sampled_from(["kernel", "gpu_memcpy", "gpu_memset"]),
        st.integers(0, 60),
        st.integers(0, 30),
        st.integers(0, 1),
        st.one_of(st.none(), st.integers(0, 1 << 20)),
    ),
    max_size=14,
).filter(lambda rows: any(row[0] != "kernel" for row in rows))


@settings(max_examples=50, deadline=None)
@given(WORK)
def test_sums_agree_with_a_count_of_nanoseconds(rows: list[Any]) -> None:
    """Compare with a count of single nanoseconds per copy and per device."""
    names = {"kernel": GEMM, "gpu_memcpy": HTOD, "gpu_memset": "Memset (Device)"}
    events = [
        device(names[kind], ts, dur, kind=kind, device=on, bytes=size)
        for kind, ts, dur, on, size in rows
    ]
    result = transfers(trace(events))
    running: dict[tuple[str, int], set[int]] = {}
    for kind, ts, dur, on, _ in rows:
        running.setdefault((kind, on), set()).update(range(ts, ts + dur))
    moves = [row for row in rows if row[0] != "kernel"]
    known = any(row[0] == "kernel" for row in rows)
    for on, busy_ns, alone_ns in result.devices.select("device", "busy_ns", "alone_ns").rows():
        busy = running.get(("gpu_memcpy", on), set()) | running.get(("gpu_memset", on), set())
        assert busy_ns == len(busy)
        assert alone_ns == (len(busy - running.get(("kernel", on), set())) if known else None)
    assert result.devices["device"].to_list() == sorted({row[3] for row in moves})
    exposed = sum(
        len(set(range(ts, ts + dur)) - running.get(("kernel", on), set()))
        for _, ts, dur, on, _ in moves
    )
    assert sum(result.copies["exposed_ns"].drop_nulls()) == (exposed if known else 0)
    for frame in (result.copies, result.sizes, result.by_device, result.devices):
        assert frame["n"].sum() == result.n == len(moves)
        assert frame["total_ns"].sum() == result.total_ns == sum(row[2] for row in moves)
        assert frame["moved_bytes"].sum() == result.moved_bytes == sum(row[4] or 0 for row in moves)


# --- findings ----------------------------------------------------------------------------------


def test_pageable_copies_are_findings() -> None:
    events = [copy(PAGEABLE, 0, 10, 8), copy(HTOD, 20, 10, 8), device(GEMM, 0, 100_000)]
    result = transfers(trace(events))
    assert findings(result) == [("pageable", "HtoD (Pageable -> Device)", 1)]
    check_wording(result.verdict)
    assert findings(transfers(trace(events[1:]))) == []


def test_many_small_copies_are_findings() -> None:
    small = [copy(HTOD, 100 * n, 10, 64 * KIB - 1) for n in range(100)]
    kernel = device(GEMM, 0, 20_000)
    assert findings(transfers(trace([*small[:99], kernel]))) == []
    result = transfers(trace([*small, kernel]))
    assert findings(result) == [("small-copies", "HtoD (Pinned -> Device) < 64 KiB", 100)]
    check_wording(result.verdict)
    large = [copy(HTOD, 50 + 100 * n, 10, 64 * KIB) for n in range(101)]
    assert findings(transfers(trace([*small, *large, kernel]))) == []
    # compared with much other work they are not reported
    long = device(GEMM, 0, 200_000)
    check_wording(transfers(trace([*small, long])).verdict)
    sets = [memset(100 * n, 10, 8) for n in range(200)]
    assert findings(transfers(trace([*sets, kernel]))) == []


def test_exposed_copies_are_findings() -> None:
    alone, kernel = copy(HTOD, 0, 10, MIB), device(GEMM, 10, 990)
    result = transfers(trace([alone, kernel]))
    assert findings(result) == [("exposed-copies", "HtoD (Pinned -> Device)", 1)]
    check_wording(result.verdict)
    assert findings(transfers(trace([copy(HTOD, 0, 9, MIB), device(GEMM, 9, 991)]))) == []
    # within a device there is nothing to overlap with the host
    result = transfers(trace([copy(DTOD, 0, 10, MIB), memset(10, 10), device(GEMM, 20, 80)]))
    assert findings(result) == []
    check_wording(result.verdict)


def test_every_finding_has_advice() -> None:
    events = [*(copy(PAGEABLE, 100 * n, 10, 8) for n in range(100)), device(GEMM, 10_000, 100)]
    events.append(copy("Memcpy UVM HtoD (Managed -> Managed)", 11_000, 1_000, MIB))
    result = transfers(trace(events))
    assert dict(result.findings.select("finding", "advice").rows()) == ADVICE


# --- what may be missing -----------------------------------------------------------------------


def test_missing_copies_raise_an_error() -> None:
    for events in ([], [device(GEMM, 0, 5)], [host("cpu_op", "aten::add", 0, 5)]):
        with raises_wording(MissingData):
            transfers(trace(events))
    with raises_wording(MissingData):
        transfers(trace([], format="nsys-sqlite"))
    with pytest.raises(OptionError, match="no input"):
        transfers([])


def test_copies_without_an_end() -> None:
    result = transfers(trace([copy(HTOD, 0, None), copy(HTOD, 5, 1), device(GEMM, 0, None)]))
    assert (result.n, result.unfinished) == (1, 1)
    check_wording(result.notes)
    assert result.copies["exposed_ns"].to_list() == [1]


def test_single_copy_of_zero_duration() -> None:
    result = transfers(trace([copy(HTOD, 7, 0, 8)]))
    check_wording(result.verdict)
    assert result.devices.select("span_ns", "busy_ns", "busy_frac").rows() == [(0, 0, None)]
    assert result.copies["rate_gbps"].to_list() == [None]
    assert "HtoD" in result.table()


# --- ranks -------------------------------------------------------------------------------------


def test_ranks_and_devices_have_one_row_each() -> None:
    first = trace([copy(HTOD, 0, 10, 8), copy(HTOD, 0, 20, 8, device=1)], rank=0)
    second = trace([copy(HTOD, 0, 30, 8), device(GEMM, 0, 60)], rank=1)
    result = transfers([second, first])
    columns = ("rank", "device", "n", "total_ns", "alone_ns")
    assert result.devices.select(columns).rows() == [
        (0, 0, 1, 10, None), (0, 1, 1, 20, None), (1, 0, 1, 30, 0),
    ]  # fmt: skip
    assert result.by_device.select("rank", "device", "n").rows() == [
        (0, 0, 1),
        (0, 1, 1),
        (1, 0, 1),
    ]
    assert [table.name for table in result.tables][-1] == "by_device"
    assert result.alone_ns == 0


def test_two_processes_on_one_device_are_one_device() -> None:
    events = [copy(HTOD, 0, 10, pid=1), device(GEMM, 5, 50, pid=2), memset(70, 5, pid=2)]
    result = transfers(trace(events))
    assert result.devices.select("n", "busy_ns", "alone_ns").rows() == [(2, 15, 10)]


# --- the command -------------------------------------------------------------------------------


def test_command_output_on_the_fixture(
    run_cli: Callable[..., Any], golden: Callable[[str, str | bytes], None]
) -> None:
    done = run_cli("transfers", ROOT / "fixtures/nccl_8ranks")
    assert (done.returncode, done.stderr) == (0, "")
    golden("transfers_nccl_8ranks.txt", done.stdout)


def test_command_writes_json_and_plot(run_cli: Callable[..., Any], tmp_path: Any) -> None:
    picture = tmp_path / "copies.svg"
    fixture = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    done = run_cli("transfers", fixture, "--to", "json", "--plot", picture)
    assert (done.returncode, done.stderr) == (0, "")
    parsed = json.loads(done.stdout)
    assert parsed["moved_bytes"] == sum(row["moved_bytes"] for row in parsed["copies"])
    assert picture.read_text().startswith("<?xml")


def test_command_without_gpu_reports_missing_data(run_cli: Callable[..., Any]) -> None:
    done = run_cli("transfers", ROOT / "fixtures/ddp_gloo_4ranks")
    assert (done.returncode, done.stdout) == (1, "")
    check_wording(done.stderr)


def test_files_and_traces_give_the_same_result() -> None:
    path = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    from_file, from_trace = ta.transfers(path), ta.transfers(ta.read(path))
    assert from_file.to_dict() == from_trace.to_dict()
