"""Files that record the same device at the same time: each moment counts once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from comm_traces import GEMM, MS, device, host, trace
from conftest import ROOT
from wording import check_wording

import traceanalyzer as ta
from traceanalyzer.trace import Trace

RANK = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
NOON = 1_700_000_000 * 10**9


def recorded(path: str, first: int, last: int, rank: int | None = 0, **meta: Any) -> Trace:
    """A kernel of 5 ms each 10 ms, with its launch, from step ``first`` up to ``last``."""
    rows = []
    for i in range(first, last):
        rows.append(host("cuda_runtime", "cudaLaunchKernel", i * 10 * MS, MS, correlation=i))
        rows.append(host("cpu_op", "aten::mm", i * 10 * MS, MS))
        rows.append(device(GEMM, i * 10 * MS + MS, 5 * MS, correlation=i))
    return trace(rows, rank, **{"path": path, "epoch_ns": NOON, **meta})


A = recorded("a.json", 0, 10)


@pytest.mark.parametrize("first", [5, 3, 9, 10, -2])
def test_busy_time_is_a_union(first: int) -> None:
    """The second file records ten kernels too, some of them at the same time."""
    both = [A, recorded("b.json", first, first + 10)]
    kernels = 10 + abs(first)
    assert ta.kernels(both).busy_ns == kernels * 5 * MS
    assert ta.overlap(both).scalars["compute_ns"] == kernels * 5 * MS
    assert ta.operators(both).operators["calls"].unique().to_list() == [kernels]
    overlap = [note for note in ta.kernels(both).notes if "counted once" in note]
    assert len(overlap) == (first != 10)
    for note in overlap:
        assert "a.json" in note
        assert "b.json" in note


def test_the_note_names_both_files() -> None:
    result = ta.diagnose([A, recorded("b.json", 5, 15)])
    (note,) = (note for note in result.notes if "counted once" in note)
    check_wording(note)


def test_recording_within_another_is_left_out() -> None:
    both = [A, recorded("b.json", 2, 8)]
    assert ta.kernels(both).busy_ns == 50 * MS
    check_wording(*ta.kernels(both).input_notes)


NOT_THE_SAME = {
    "another rank": recorded("b.json", 5, 15, rank=1),
    "no rank": recorded("b.json", 5, 15, rank=None),
    "no clock": recorded("b.json", 5, 15, epoch_ns=None),
    "another hour": recorded("b.json", 5, 15, epoch_ns=NOON + 3_600 * 10**9),
}


@pytest.mark.parametrize("name", NOT_THE_SAME)
def test_other_recordings_are_added(name: str) -> None:
    result = ta.kernels([A, NOT_THE_SAME[name]])
    assert result.busy_ns == 100 * MS
    assert not result.input_notes


def test_another_device_of_the_rank_is_added() -> None:
    rows = [row | {"device": 1} for row in recorded("b.json", 5, 15).events.to_dicts()]
    gpu = [row for row in rows if row["kind"] == "kernel"]
    result = ta.kernels([A, trace(gpu, 0, path="b.json", epoch_ns=NOON)])
    assert result.busy_ns == 100 * MS


@pytest.mark.matrix
def test_copy_of_a_file_is_noted_and_ignored(tmp_path: Path) -> None:
    original, copy = tmp_path / "rank0.json.gz", tmp_path / "copy_of_rank0.json"
    original.write_bytes(RANK.read_bytes())
    copy.write_bytes(gzip.decompress(RANK.read_bytes()))
    for function in (ta.kernels, ta.operators, ta.comm_outliers, ta.diagnose):
        result = function([original, copy])
        (note,) = (note for note in result.notes if "copy_of_rank0" in note)
        assert original.name in note
    check_wording(note)
    assert ta.kernels([original, copy]).busy_ns == ta.kernels(original).busy_ns


@pytest.mark.matrix
def test_copy_read_by_another_worker_is_detected(tmp_path: Path) -> None:
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "dur": 5}
    for rank in range(26):
        job = {"rank": rank, "world_size": 26, "backend": "nccl"}
        events = [{**kernel, "ts": 100 * n, "args": {"device": 0}} for n in range(1, 4 + rank)]
        text = json.dumps({"distributedInfo": job, "traceEvents": events})
        (tmp_path / f"rank{rank:02}.json").write_text(text)
    (tmp_path / "the_same.json").write_bytes((tmp_path / "rank03.json").read_bytes())
    alone, apart = (ta.kernels(tmp_path, workers=n) for n in (1, 2))
    assert alone.notes == apart.notes
    assert any("the_same.json" in note for note in apart.notes)
    assert alone.busy_ns == apart.busy_ns
