"""Results from a truncated file report it, in notebooks and on the terminal."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from conftest import ROOT
from wording import raises_wording

import traceanalyzer as ta
from traceanalyzer.errors import MissingData

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

NOTE = "is truncated: events at its end are missing in all numbers."
ANALYSES = [
    ta.comm_outliers,
    ta.gpu_idle,
    ta.kernels,
    ta.launches,
    ta.operators,
    ta.overlap,
    ta.steps,
    ta.annotations,
    ta.cuda_api,
    ta.transfers,
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trace, and what was left of it where its writer was killed."""
    texts = [
        gzip.decompress((ROOT / "fixtures" / "nccl_8ranks" / f"rank{rank}.json.gz").read_bytes())
        for rank in range(2)
    ]
    folder = tmp_path_factory.mktemp("cut")
    whole, cut = folder / "whole.json", folder / "cut.json"
    whole.write_bytes(texts[1])
    cut.write_bytes(texts[0][: texts[0].rindex(b'"ph": "X"')])
    return whole, cut


@pytest.mark.sample(5)
@pytest.mark.parametrize("analysis", ANALYSES, ids=lambda analysis: str(analysis.__name__))
def test_note_names_truncated_file(files: tuple[Path, Path], analysis: Any) -> None:
    whole, cut = files
    assert not [note for note in analysis(whole).notes if NOTE in note]
    assert [note for note in analysis(cut).notes if NOTE in note] == [f"{cut} {NOTE}"]
    assert [note for note in analysis([whole, cut]).notes if NOTE in note] == [f"{cut} {NOTE}"]


@pytest.mark.sample(4)
@pytest.mark.parametrize("analysis", ANALYSES[1:], ids=lambda analysis: str(analysis.__name__))
def test_skipped_file_is_not_reported_as_truncated(
    files: tuple[Path, Path], analysis: Any, tmp_path: Path
) -> None:
    useless = tmp_path / "useless.json"
    useless.write_text('{"traceEvents": [{"ph": "M", "name": "x"}, {"ph": "X", "ts')
    notes = analysis([files[0], useless]).notes
    assert [note for note in notes if str(useless) in note]
    assert not [note for note in notes if NOTE in note]


def test_file_of_another_rank_is_not_reported_as_truncated(files: tuple[Path, Path]) -> None:
    whole, cut = files
    assert [n for n in ta.kernels([whole, cut], rank=0).notes if NOTE in n]
    assert not [n for n in ta.kernels([whole, cut], rank=1).notes if NOTE in n]


def test_truncated_compressed_file_is_reported(files: tuple[Path, Path]) -> None:
    whole, _ = files
    packed = whole.with_name("packed.json.gz")
    packed.write_bytes(gzip.compress(whole.read_bytes())[:-5_000])
    assert [note for note in ta.kernels(packed).notes if NOTE in note] == [f"{packed} {NOTE}"]
    other = ROOT / "fixtures" / "corpus" / "memory-snapshot.zip"  # its largest member is whole
    assert not [note for note in ta.memory(other).notes if NOTE in note]


@pytest.mark.parametrize("analysis", [ta.comm_outliers, ta.kernels, ta.overlap, ta.launches])
def test_missing_data_error_mentions_truncation(tmp_path: Path, analysis: Any) -> None:
    path = tmp_path / "cut.json"
    event = '{"ph": "X", "cat": "cpu_op", "name": "f", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
    path.write_text(f'{{"traceEvents": [{event}, {event[:40]}')
    with raises_wording(MissingData):
        analysis(path)
    path.write_text(f'{{"traceEvents": [{event}]}}')
    with pytest.raises(MissingData) as caught:
        analysis(path)
    assert "truncated" not in str(caught.value)


def kineto(steps: Sequence[int], cut: int, missing: Collection[int] = ()) -> bytes:
    """Return a file in Kineto's order, steps first, then the GPU work of these steps.

    Each of five steps launches 40 kernels, which run in 60 % of it.

    Args:
        steps: the order of the steps with GPU work.
        cut: the number of kernels that are left.
        missing: numbers of kernels that are not written.
    """
    head = [("user_annotation", f"ProfilerStep#{n}", 1, 1000 * n, 1000, {}) for n in range(5)]
    rows = []
    for number in (40 * step + n for step in steps for n in range(40)):
        if number in missing:
            continue
        ids = {"correlation": number}
        rows.append(("cuda_runtime", "cudaLaunchKernel", 1, 25 * number + 1, 2, ids))
        ids = {**ids, "device": 0, "stream": 7}
        rows.append(("kernel", "gemm", 7, 25 * number + 5, 15, ids))
    events = [
        {"ph": "X", "cat": cat, "name": name, "pid": 0 if cat == "kernel" else 1, "tid": tid,
         "ts": ts, "dur": dur, "args": args}
        for cat, name, tid, ts, dur, args in [*head, *rows[: 2 * cut]]
    ]  # fmt: skip
    text = orjson.dumps({"schemaVersion": 1, "traceEvents": events})
    return text if cut == len(rows) // 2 else text[:-3]


@pytest.mark.parametrize(
    ("order", "cut", "complete"),
    [
        ([0, 1, 2, 3, 4], 200, [0, 1, 2, 3, 4]),
        ([0, 1, 2, 3, 4], 140, [0, 1, 2]),
        # buffers of the profiler are not always in order
        ([4, 0, 1, 2, 3], 150, [0, 1]),
        ([4, 0, 1, 2, 3], 20, []),
    ],
)
def test_only_complete_steps_count(
    order: list[int], cut: int, complete: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(kineto(order, cut))
    result = ta.gpu_idle(path)
    marked = result.steps["step"].str.starts_with("ProfilerStep#")
    assert result.steps["step"].filter(marked).to_list() == [f"ProfilerStep#{n}" for n in complete]
    assert result.basis.frac(result.basis.whole_ns - int(result.counted["busy_ns"].sum())) == (
        pytest.approx(0.4, abs=0.02)
    )
    found = {one.id for one in ta.diagnose(path).findings}
    assert not found & {"uneven-steps", "host-code", "time-between-steps"}


def test_steps_with_holes_do_not_count(tmp_path: Path) -> None:
    """Two steps lack a quarter of their kernels, one has all: in a file of a few steps the most."""
    path = tmp_path / "rank0.json"
    path.write_bytes(kineto([0, 1, 2, 3, 4], 102, missing={*range(20, 30), *range(60, 70)}))
    steps = ta.gpu_idle(path).steps
    assert steps["step"].drop_nulls().to_list() == ["ProfilerStep#2"]


def test_work_that_was_launched_ahead_counts(tmp_path: Path) -> None:
    """The host is ahead by all kernels; call and kernel are written together."""
    events = []
    for number in range(100):
        about = {"ph": "X", "pid": 1, "tid": 1, "args": {"correlation": number}}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2 * number, "dur": 1}
        kernel = {"cat": "kernel", "name": "gemm", "ts": 1000 + 20 * number, "dur": 20}
        events += [{**about, **call}, {**about, **kernel, "pid": 0, "tid": 7}]
    path = tmp_path / "rank0.json"
    path.write_bytes(orjson.dumps({"schemaVersion": 1, "traceEvents": events})[:-3])
    assert (
        ta.gpu_idle(path).counted["busy_ns"].sum() == 98 * 20_000
    )  # the last one may be incomplete
