"""CUDA calls of real recordings against independent sums and joins."""

from __future__ import annotations

import csv
import gzip
import re
import sqlite3
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
from wording import check_wording, raises_wording

import traceanalyzer as ta
from traceanalyzer.vocabulary import LAUNCH_KINDS

EXPORTS = [
    "cloverleaf_4xa100",
    "mfu_2gpu_after",
    "mfu_2gpu_before",
    "power_iteration_t4",
    "pre2022_two_long_gaps",
    "saxpy_mpi_lazy_false",
]

#: Copies joined to their calls by process and correlation id, as the rules of nsys analyze do.
JOINED = """
    SELECT c.srcKind, c.dstKind, c.copyKind, c.bytes, s.value, r."end" - r.start
    FROM CUPTI_ACTIVITY_KIND_MEMCPY c
    JOIN CUPTI_ACTIVITY_KIND_RUNTIME r
      ON r.correlationId = c.correlationId
     AND (r.globalTid >> 24) = (c.globalPid >> 24) AND r.eventClass <> 67
    JOIN StringIds s ON s.id = r.nameId
"""
PAGEABLE, HOST_TO_DEVICE, FROM_DEVICE, ON_DEVICE = 0, 1, 2, 8


def expected(path: Path) -> dict[str, tuple[int, int, int, int]]:
    """Return n, total, min and max of each call, from rows with versioned names.

    A name with and without a version belongs to the calls' backtraces, which do not count.
    """
    with path.open() as file:
        rows = list(csv.DictReader(file))
    bare = {row["name"]: re.sub(r"_v\d+$", "", row["name"]) for row in rows}
    versioned = {short for name, short in bare.items() if short != name}
    result: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for row in rows:
        if row["name"] in versioned:
            continue
        numbers = (row["calls"], row["total_ns"], row["min_ns"], row["max_ns"])
        result[bare[row["name"]]].append(tuple(map(int, numbers)))
    return {
        name: (sum(n), sum(total), min(low), max(high))
        for name, durations in result.items()
        for n, total, low, high in [tuple(zip(*durations, strict=True))]
    }


@pytest.mark.parametrize("name", EXPORTS)
def test_sums_agree_with_the_reference(shared: Path, name: str) -> None:
    result = ta.cuda_api(shared / f"data/nsys/{name}.sqlite.gz")
    reference = expected(shared / f"oracle/nsys/{name}/cuda_api_sum.csv")
    values = result.calls.select("call", "n", "total_ns", "min_ns", "max_ns").rows()
    assert {call: numbers for call, *numbers in values} == {
        call: list(numbers) for call, numbers in reference.items()
    }
    assert result.by_rank["n"].sum() == result.n


@pytest.mark.parametrize("name", EXPORTS)
def test_blocking_copies_agree_with_nsys_rules(shared: Path, tmp_path: Path, name: str) -> None:
    database = tmp_path / "export.sqlite"
    database.write_bytes(gzip.decompress((shared / f"data/nsys/{name}.sqlite.gz").read_bytes()))
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(JOINED).fetchall()
    pageable = [r for r in rows if "Async" in r[4] and PAGEABLE in r[:2]]
    blocking = [
        r
        for r in rows
        if r[4].startswith("cudaMemcpy") and "Async" not in r[4] and r[2] != ON_DEVICE
        and not (r[2] == HOST_TO_DEVICE and r[3] <= 64 * 1024)
    ]  # fmt: skip
    copies = ta.cuda_api(database).findings.filter(
        pl.col("finding").cast(pl.String).is_in(["async-pageable", "sync-memcpy", "value-read"])
    )
    # values read from the device are separate findings, unlike in nsys
    values = [r for r in (*pageable, *blocking) if r[2] == FROM_DEVICE and r[3] <= 256]
    expected = {
        "value-read": values,
        "async-pageable": [r for r in pageable if r not in values],
        "sync-memcpy": [r for r in blocking if r not in values],
    }
    numbers = copies.select("finding", "n", "host_ns", "moved_bytes").rows()
    assert {finding: sums for finding, *sums in numbers} == {
        finding: [len(rows), sum(r[5] for r in rows), sum(r[3] for r in rows)]
        for finding, rows in expected.items()
        if rows
    }


def test_pageable_copies_are_reported(shared: Path) -> None:
    result = ta.cuda_api(shared / "data/nsys/power_iteration_t4.sqlite.gz")
    copies = result.findings.filter(pl.col("finding").cast(pl.String) != "sync-call")
    assert copies.select(pl.col("n", "waited", "host_ns", "copy_ns").sum()).row(0) == (
        89, 89, 1_033_980_289, 322_040,
    )  # fmt: skip
    assert copies.select(pl.col("finding").cast(pl.String), "n").rows() == [
        ("value-read", 45), ("async-pageable", 44),
    ]  # fmt: skip
    check_wording(result.verdict)


def test_export_without_calls_has_a_recording_hint(shared: Path) -> None:
    with raises_wording(ta.MissingData):
        ta.cuda_api(shared / "data/nsys/nvtx_only_2022.sqlite.gz")


def test_chrome_traces_add_up(shared: Path, thorough: bool) -> None:
    paths = sorted((shared / "data/chrome/kineto").glob("*.json.gz"))
    looked_at = 0
    for path in paths[:: 1 if thorough else 4]:
        trace = ta.read(path, kinds=(*LAUNCH_KINDS, "gpu_memcpy", "gpu_memset"))
        calls = trace.events.filter(pl.col("kind").is_in(LAUNCH_KINDS), pl.col("dur") >= 0)
        if calls.is_empty():
            continue
        looked_at += 1
        result = ta.cuda_api(trace)
        assert (result.n, result.total_ns) == (calls.height, calls["dur"].sum())
        assert result.calls["n"].sum() == result.n
        moves = trace.events.filter(pl.col("kind").is_in(("gpu_memcpy", "gpu_memset")))
        assert result.moves["copy_ns"].sum() <= moves["dur"].sum()
        assert result.findings["host_ns"].max() is None or result.findings["host_frac"].max() <= 1  # type: ignore[operator]
    assert looked_at > (10 if thorough else 2)


def test_rocm_calls_are_classified(shared: Path) -> None:
    result = ta.cuda_api(shared / "data/chrome/kineto/mi300_rank0of8_rccl.json.gz")
    assert result.findings.select("finding", "n").rows() == [("sync-call", 1)]
    assert result.calls["call"][0] == "hipDeviceSynchronize"
    assert result.moves.filter(call="hipMemcpyAsync")["n"].sum() == 366
