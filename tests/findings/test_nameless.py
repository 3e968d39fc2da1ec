"""`diagnose` and `what-if` of recordings in which something has no name."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from processes import ROOT

import traceanalyzer as ta


@pytest.fixture
def events() -> list[dict[str, Any]]:
    path = ROOT / "fixtures/nccl_8ranks/rank0.json.gz"
    rows: list[dict[str, Any]] = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return rows


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op", "kernel", "cuda_runtime"])
def test_events_without_a_name(tmp_path: Path, events: list[dict[str, Any]], category: str) -> None:
    named = [one for one in events if one.get("cat") == category]
    assert named
    named[0]["name"] = None
    del named[-1]["name"]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"traceEvents": events}))
    found = ta.diagnose(path)
    assert found.rules.height
    assert ta.what_if(path).steps.height
