"""Copies of real recordings against independent sums."""

from __future__ import annotations

import csv
from pathlib import Path

import polars as pl
import pytest
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.vocabulary import DEVICE_WORK

EXPORTS = [
    "cloverleaf_4xa100",
    "mfu_2gpu_after",
    "mfu_2gpu_before",
    "power_iteration_t4",
    "pre2022_two_long_gaps",
    "saxpy_mpi_lazy_false",
]
DIRECTIONS = {"1": "HtoD", "2": "DtoH", "8": "DtoD"}
MEMORY = {"0": "Pageable", "1": "Pinned", "2": "Device"}


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", EXPORTS)
def test_sums_agree_with_the_reference(shared: Path, name: str) -> None:
    result = ta.transfers(shared / f"data/nsys/{name}.sqlite.gz")
    with (shared / f"oracle/nsys/{name}/cuda_gpu_mem_sum.csv").open() as file:
        reference = {
            (
                DIRECTIONS[row["copyKind"]],
                f"{MEMORY[row['srcKind']]} -> {MEMORY[row['dstKind']]}",
            ): [int(row[of]) for of in ("count", "total_ns", "bytes", "min_ns", "max_ns")]
            for row in csv.DictReader(file)
        }
    copies = result.copies.filter(pl.col("direction") != "memset")
    columns = ("n", "total_ns", "moved_bytes", "min_ns", "max_ns")
    assert {(way, memory): numbers for way, memory, *numbers in copies.select(
        "direction", "memory", *columns
    ).rows()} == reference  # fmt: skip
    assert result.by_device.filter(pl.col("direction") != "memset")["n"].sum() == copies["n"].sum()


@pytest.mark.matrix
def test_every_chrome_trace_adds_up_or_reports_missing_data(shared: Path, thorough: bool) -> None:
    paths = sorted((shared / "data/chrome/kineto").glob("*.json.gz"))
    looked_at = 0
    for number, path in enumerate(paths):
        trace = ta.read(path, kinds=DEVICE_WORK)
        moves = trace.events.filter(pl.col("kind") != "kernel")
        if moves.is_empty():
            with raises_wording(ta.MissingData):
                ta.transfers(trace)
            continue
        if number % 4 and not thorough:
            continue
        looked_at += 1
        result = ta.transfers(trace)
        assert (result.n, result.total_ns) == (moves.height, moves["dur"].sum())
        assert result.moved_bytes == moves["bytes"].sum()
        for frame in (result.copies, result.sizes, result.by_device):
            assert frame["n"].sum() == result.n
            assert frame["exposed_ns"].sum() <= frame["total_ns"].sum()
        # copies without a kernel are the exposed copies of overlap
        exposed = ta.overlap(trace).scalars["exposed_memory_ns"]
        assert result.alone_ns == exposed
    assert looked_at > (10 if thorough else 1)


def test_bandwidths_agree_with_the_machine(shared: Path) -> None:
    result = ta.transfers(shared / "data/nsys/saxpy_mpi_lazy_false.sqlite.gz")
    rates = result.copies.select("direction", pl.col("rate_gbps").round(2)).rows()
    assert rates == [("HtoD", 14.09), ("DtoH", 13.28)]
    assert result.findings["finding"].to_list() == ["pageable", "pageable", *["exposed-copies"] * 2]


def test_advice_and_bandwidth_of_a_program_without_pytorch(shared: Path) -> None:
    """A memset of 3.7 GiB is recorded with 1.1 us."""
    result = ta.transfers(shared / "data/nsys/pre2022_two_long_gaps.sqlite.gz")
    advice = " ".join(result.findings["advice"])
    assert "cudaMallocHost" in advice
    assert "cudaMemcpyAsync" in advice
    assert "non_blocking" not in advice
    assert result.copies.filter(direction="memset")["rate_gbps"].to_list() == [None]
    assert result.sizes["rate_gbps"].max() == pytest.approx(7792, rel=1e-3)
    assert "GB/s" in result.notes[-1]
