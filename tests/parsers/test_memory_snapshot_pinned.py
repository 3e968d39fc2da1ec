"""Pinned host memory in a snapshot (torch 2.14) is no memory of a device."""

import pickle
from pathlib import Path
from typing import Any

import pytest

import traceanalyzer
from traceanalyzer.errors import MalformedInput

FIXTURE = Path(__file__).parents[2] / "fixtures" / "memory" / "training.pickle"
SIZE = 1 << 30
FRAMES = [{"name": "pin", "filename": "/home/ada/work/loader.py", "line": 7}]


def _segments(form: str) -> list[dict[str, Any]]:
    block = {"address": SIZE, "size": SIZE, "state": "active_allocated", "frames": FRAMES}
    if form == "blocks":
        return [block]
    return [{"address": SIZE, "total_size": SIZE, "frames": FRAMES, "blocks": [block]}]


def _events(form: str) -> list[Any]:
    event = {"action": "alloc", "addr": SIZE, "size": SIZE, "stream": 0, "time_us": 5}
    return [event] if form == "blocks" else [[event]]


@pytest.mark.parametrize("form", ["blocks", "segments"])
def test_device_memory_is_that_without_host_memory(form: str, tmp_path: Path) -> None:
    content = pickle.loads(FIXTURE.read_bytes())  # noqa: S301 - our own file
    content |= {"host_segments": _segments(form), "host_traces": _events(form)}
    path = tmp_path / "training.pickle"
    path.write_bytes(pickle.dumps(content))
    alone, both = traceanalyzer.read(FIXTURE), traceanalyzer.read(path)
    for table in ("events", "segments", "blocks", "memory_totals"):
        # the numbers of stacks may differ
        kept, expected = (
            frame.select(name for name in frame.columns if name != "stack")
            for frame in (getattr(both, table), getattr(alone, table))
        )
        assert kept.equals(expected)
    new = both.issues.filter(~both.issues["code"].is_in(alone.issues["code"].implode()))
    assert new.select("severity", "code", "count").rows() == [("notice", "pinned-host-memory", 2)]


def test_host_memory_alone_is_an_error(tmp_path: Path) -> None:
    content = {
        "segments": [],
        "device_traces": [[]],
        "host_segments": _segments("segments"),
        "host_traces": _events("segments"),
    }
    path = tmp_path / "pinned.pickle"
    path.write_bytes(pickle.dumps(content))
    with pytest.raises(MalformedInput, match="pinned host memory"):
        traceanalyzer.read(path)
