"""Several recordings in one file, as ``cat a.json b.json`` writes: one is read, the rest named."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from harness import in_pieces

import traceanalyzer as ta
from traceanalyzer.errors import MalformedInput


def recording(seed: int, steps: int = 4) -> dict[str, Any]:
    """Steps of 10 ms with 8 kernels each; another seed is the same program 0.3 ms later."""
    events: list[dict[str, Any]] = []
    process = {"pid": 10, "tid": 10}
    for step in range(steps):
        start = 1000 + 300 * seed + 10_000 * step
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", **process}
        events.append({**mark, "ts": start, "dur": 10_000})
        for call in range(8):
            at, link = start + 1000 * call, {"correlation": 100 * step + call + 1}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 5}
            kernel = {"cat": "kernel", "name": f"gemm{call}", "ts": at + 10, "dur": 950}
            on_gpu = {"ph": "X", "pid": 0, "tid": 7, "args": {**link, "device": 0, "stream": 7}}
            events += [{"ph": "X", **launch, **process, "args": link}, {**kernel, **on_gpu}]
    device = {"id": 0, "name": f"GPU {seed}"}
    return {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}


FIRST, SECOND = (json.dumps(recording(seed)) for seed in (0, 1))


def read(folder: Path, text: str | bytes) -> ta.Trace:
    path = folder / "trace.json"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return ta.read(path)


def issues(trace: ta.Trace) -> dict[str, int]:
    return dict(trace.issues.select("code", "count").iter_rows())


@pytest.mark.parametrize("between", ["", "\n", " \r\n", "\0" * 9, "\ufeff"], ids=repr)
@pytest.mark.parametrize("second", [SECOND, SECOND[: len(SECOND) // 2], SECOND[:200]])
@pytest.mark.parametrize("indent", [None, 1])
def test_the_first_of_two_recordings_is_read(
    tmp_path: Path, between: str, second: str, indent: int | None
) -> None:
    first = json.dumps(json.loads(FIRST), indent=indent)
    alone, both = read(tmp_path, first), read(tmp_path, first + between + second)
    assert both.events.equals(alone.events)
    assert both.meta == alone.meta
    assert issues(both)["another-recording"] == 1
    with in_pieces(1 << 9):
        assert read(tmp_path, first + between + second).events.equals(alone.events)


def test_recordings_in_one_gzip_file(tmp_path: Path) -> None:
    both = gzip.compress(FIRST.encode()) + gzip.compress(SECOND.encode())
    assert read(tmp_path, both).events.equals(read(tmp_path, FIRST).events)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
@pytest.mark.parametrize("indent", [None, 1])
def test_the_recording_after_a_truncated_one_is_not_read(
    tmp_path: Path, share: float, indent: int | None
) -> None:
    first, second = (json.dumps(json.loads(text), indent=indent) for text in (FIRST, SECOND))
    cut = first[: int(share * len(first))]
    alone, both = read(tmp_path, cut), read(tmp_path, cut + second)
    assert both.events.height <= alone.events.height
    assert issues(both)["another-recording"] == 1


def test_an_empty_recording_does_not_hide_the_next(tmp_path: Path) -> None:
    both = read(tmp_path, '{"traceEvents": []}\n' + FIRST)
    assert both.events.height == len(json.loads(FIRST)["traceEvents"])
    assert both.issues.is_empty()


def test_every_analysis_names_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(FIRST + SECOND)
    result = ta.kernels(path)
    assert result.names["n"].sum() == 32
    assert any("another recording" in note for note in result.notes)


def test_arrays_with_work_of_one_stream_at_the_same_time_are_rejected(tmp_path: Path) -> None:
    arrays = [json.dumps(json.loads(text)["traceEvents"]) for text in (FIRST, SECOND)]
    for between in ("", "\n", ","):
        with pytest.raises(MalformedInput):
            read(tmp_path, between.join(arrays))


def test_arrays_of_one_recording_are_joined(tmp_path: Path) -> None:
    events = json.loads(FIRST)["traceEvents"]
    arrays = "\n".join(json.dumps(events[at : at + 20]) for at in range(0, len(events), 20))
    assert read(tmp_path, arrays).events.height == len(events)
