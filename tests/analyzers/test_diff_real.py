"""Pairs of real recordings with known differences."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path
from statistics import median

import polars as pl
import pytest
from wording import check_wording

import traceanalyzer as ta


@pytest.mark.matrix
def test_starved_training_differs_in_data_loading(shared: Path) -> None:
    folder = shared / "data/chrome/kineto"
    paths = [folder / f"resnet50_dataloader_workers{n}.json.gz" for n in (0, 4)]
    result = ta.diff(*paths)
    times = [_steps(path) for path in paths]
    assert result.measure is not None
    # steps on the device are not as long as their marks on the host
    assert result.measure.before == pytest.approx(median(times[0]) * 1000, rel=0.01)
    assert result.measure.after == pytest.approx(median(times[1]) * 1000, rel=0.01)
    # two of the six steps after took 40 % longer than the others: outliers
    assert result.outcome == "improvement"
    check_wording(result.verdict)
    assert result.parts is not None
    first = result.parts.row(0, named=True)
    assert (first["part"], first["state"]) == ("data loading", "faster")
    assert first["before_ns"] > 20 * first["after_ns"]


def _steps(path: Path) -> list[float]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [e["dur"] for e in events if e["name"].startswith("ProfilerStep#") and e["ph"] == "X"]


@pytest.mark.matrix
def test_recordings_of_fixed_length_are_scaled_to_equal_work(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/nsys"
    paths = [folder / f"mfu_2gpu_{when}.sqlite.gz" for when in ("before", "after")]
    result = ta.diff(*paths, step_name="not marked")
    assert result.measure is not None
    assert result.measure.name == "device"
    counts = [_most_used_kernel(path, tmp_path / path.stem) for path in paths]
    name = counts[0][0]
    assert counts[1][0] == name
    assert result.measure.work == pytest.approx(counts[1][1] / counts[0][1], abs=0.01)
    assert result.outcome == "regression"
    check_wording(result.verdict)


@pytest.mark.matrix
def test_steps_inferred_from_kernels_agree_with_whole_recordings(shared: Path) -> None:
    folder = shared / "data/nsys"
    paths = [folder / f"mfu_2gpu_{when}.sqlite.gz" for when in ("before", "after")]
    steps, whole = ta.diff(*paths).measure, ta.diff(*paths, step_name="not marked").measure
    assert steps is not None
    assert whole is not None
    assert (steps.name, whole.name) == ("step", "device")
    assert (steps.outcome, whole.outcome) == ("regression", "regression")
    assert steps.change_frac == pytest.approx(whole.change_frac, abs=0.03)
    assert steps.noise is not None
    assert whole.noise is None


def _most_used_kernel(path: Path, copy: Path) -> tuple[str, int]:
    """Return the kernel with the highest total time and its count, by SQL."""
    copy.write_bytes(gzip.decompress(path.read_bytes()))
    query = (
        "SELECT value, COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds "
        "ON StringIds.id = demangledName GROUP BY value ORDER BY SUM(end - start) DESC LIMIT 1"
    )
    connection = sqlite3.connect(copy)
    try:
        result: tuple[str, int] = connection.execute(query).fetchone()
    finally:
        connection.close()
    return result


@pytest.mark.matrix
def test_different_hardware_is_noted(shared: Path) -> None:
    folder = shared / "data/chrome/kineto"
    result = ta.diff(folder / "dlrm_8ranks", folder / "mi300_rank0of8_rccl.json.gz")
    text = " ".join(result.notes)
    check_wording(text)
    assert result.measure is not None
    assert result.measure.noise is None


@pytest.mark.matrix
def test_snapshot_peaks_are_compared(shared: Path) -> None:
    folder = shared / "data/memory"
    result = ta.diff(folder / "inference.pickle", folder / "forward_bf16.pickle")
    peaks = [ta.memory(folder / f"{name}.pickle") for name in ("inference", "forward_bf16")]
    assert result.measure is not None
    assert result.measure.name == "memory"
    assert [result.measure.before, result.measure.after] == [
        peak.scalars["peak_bytes"] for peak in peaks
    ]


def test_native_frames_change_shares(shared: Path) -> None:
    folder = shared / "data/pyspy"
    result = ta.diff(folder / "function.raw.txt", folder / "native.raw.txt")
    assert result.functions is not None
    assert result.functions["before_frac"].sum() == pytest.approx(1)
    assert result.functions["after_frac"].sum() == pytest.approx(1)
    assert (result.functions.filter(pl.col("noise_frac") == 0)["change_frac"] == 0).all()
